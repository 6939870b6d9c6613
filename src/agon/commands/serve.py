"""`agon serve`: the trained pair behind an OpenAI-compatible API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from agon.adapter_folders import read_adapter_config
from agon.assets import EMBEDDED
from agon.checkpoints import latest_checkpoint
from agon.config import Config
from agon.display import caution, say
from agon.engines.base import BASE
from agon.errors import CheckpointError, ConfigError
from agon.preflight import Language, check_settings, read_language
from agon.recipes import build_config
from agon.runs import RunFolder
from agon.workshop import for_use, load_run_adapters, open_engine

if TYPE_CHECKING:
    from agon.serving.backends import Backend
    from agon.serving.guard import Limits
    from agon.serving.models import Served
    from agon.serving.service import Service

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
KEY_VARIABLE = "AGON_API_KEY"
DEFAULT_TOKENS = 1024
"""Completion limit of a stage where no run gives one."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command's options; `agon serve --help` explains them."""

    run: Path | None = None
    base: str | None = None
    adapter_a: Path | None = None
    adapter_b: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    allow_anyone: bool = False
    allow_hosts: tuple[str, ...] = ()
    upstream: str | None = None
    upstream_names: tuple[str | None, str | None, str | None] = (None, None, None)
    upstream_key: str | None = None
    cut_drafts: bool = False
    early_exit: bool = False
    max_tokens: int | None = None
    slots: int | None = None
    max_requests: int = 256
    rate: float | None = None
    body_kib: int = 1024
    timeout: float = 600.0
    drain: int = 120
    prefix_tokens: int = 16_384


@dataclass(frozen=True, slots=True)
class Pair:
    """What is served, before any weight is read.

    Attributes:
        folder: The run; None where adapters were given as folders.
        adapters: Each adapter's folder.
        step: Training step of a run's adapters.
        task: Gives problems their ids.
    """

    config: Config
    folder: RunFolder | None
    adapters: Mapping[str, Path]
    step: int | None
    task: str


def serve(options: ServeOptions, console: Console) -> int:
    """Serve until a signal ends it.

    Returns:
        The process's exit status.

    Raises:
        AgonError: Anything that the user can mend.
    """
    try:
        import fastapi  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "agon serve needs further packages: pip install 'agon-rl[serve]'"
        ) from error
    from agon.serving.server import Place, listen, make_server, url_of

    limits = read_limits(options)
    pair = read_pair(options)
    listening = listen(Place(options.host, options.port))
    try:
        service = open_service(options, pair, console)
        place = Place(options.host, options.port, options.drain)
        server = make_server(service, limits, place)
        for served in service.models.values():
            say(console, f"  {served.name:<10} {served.system:<6} {served.about}")
        say(console, f"Agon serves at {url_of(listening)} (API under /v1). Stop with Ctrl-C.")
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            say(console, "stopped")
    finally:
        listening.close()
    return 0


def read_limits(options: ServeOptions) -> Limits:
    """Who may ask what.

    Raises:
        ConfigError: A number is out of range, or the server would be open to all unnoticed.
    """
    from agon.serving.guard import Limits

    for name, value, least in (
        ("--max-requests", options.max_requests, 1),
        ("--body-kib", options.body_kib, 1),
        ("--timeout", options.timeout, 0.001),
        ("--drain", options.drain, 0),
        ("--prefix-tokens", options.prefix_tokens, 0),
        ("--slots", 1 if options.slots is None else options.slots, 1),
        ("--max-tokens", 1 if options.max_tokens is None else options.max_tokens, 1),
        ("--rate", 1 if options.rate is None else options.rate, 0.001),
    ):
        if not value >= least:
            raise ConfigError(f"{name}: got {value}, expected {least} or more")
    key = options.api_key or os.environ.get(KEY_VARIABLE) or None
    own = options.host in LOOPBACK
    if not own and key is None and not options.allow_anyone:
        raise ConfigError(
            f"--host {options.host} lets other machines in: give --api-key (or {KEY_VARIABLE}), "
            "or --allow-anyone"
        )
    hosts = LOOPBACK | {name.lower() for name in options.allow_hosts}
    return Limits(
        api_key=key,
        hosts=hosts if own or options.allow_hosts else None,
        body_bytes=options.body_kib * 1024,
        rate_per_minute=options.rate,
    )


def read_pair(options: ServeOptions) -> Pair:
    """The run, or the adapter folders and their base.

    Raises:
        ConfigError: Neither or both were given, or settings do not fit this machine.
        CheckpointError: The run cannot be read.
        AdapterError: A folder is no plain LoRA.
    """
    folders = {"a": options.adapter_a, "b": options.adapter_b}
    given = {name: folder for name, folder in folders.items() if folder is not None}
    if (options.run is None) == (not given):
        raise ConfigError(
            "give a run folder, or two adapter folders with --adapter-a, --adapter-b and --base"
        )
    if options.run is not None:
        return _read_run(options.run)
    if len(given) < 2 or options.base is None:
        raise ConfigError("--adapter-a, --adapter-b and --base belong together: give all three")
    settings = read_adapter_config(given["a"], "--adapter-a")
    read_adapter_config(given["b"], "--adapter-b")
    targets = settings.get("target_modules")
    config = build_config(
        {
            "model": {"name_or_path": options.base},
            "adapters": {
                "rank": settings.get("r"),
                "alpha": settings.get("lora_alpha"),
                "target_modules": targets,
            },
            "sampling": {"max_new_tokens": options.max_tokens or DEFAULT_TOKENS, "slots": 64},
        }
    )
    check_settings(config)
    task = "countdown" if options.base == EMBEDDED else "asked"
    return Pair(config, None, given, None, task)


def _read_run(run: Path) -> Pair:
    folder = RunFolder(run)
    config = for_use(folder.read_config())
    check_settings(config)
    checkpoint = latest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"{run} has no checkpoint yet: let it train for a while")
    names = ("a", "b")[: config.game.policies]
    adapters = {name: checkpoint / "adapters" / name for name in names}
    step = int(checkpoint.name.removeprefix("step-"))
    return Pair(config, folder, adapters, step, config.task.name)


def open_service(options: ServeOptions, pair: Pair, console: Console) -> Service:
    """Load what writes, and name the models.

    Raises:
        AgonError: Anything that the user can mend.
    """
    from agon.serving.models import choose_direction, served_models
    from agon.serving.play import Shortcuts
    from agon.serving.service import Service, Settings

    config, policies = pair.config, len(pair.adapters)
    if options.early_exit and (options.cut_drafts or policies == 1):
        raise ConfigError(
            "--early-exit compares the answers of two policies' drafts: it needs a run of two "
            "policies, and drafts that are not cut (leave --cut-drafts out)"
        )
    language = read_language(config)
    if pair.folder is None:
        # No run has checked that its summaries fit the context.
        most = min(config.game.max_summary_tokens, max(1, language.context // 8))
        game = config.game.model_copy(update={"max_summary_tokens": most})
        config = config.model_copy(update={"game": game})
        language = read_language(config)
    models = served_models(policies, choose_direction(pair.folder, policies, pair.step))
    backend: Backend
    if options.upstream is not None:
        backend, models = _upstream(options, language, models)
        identity = "agon-upstream"
    else:
        backend, identity = _in_process(options, pair, language)
    settings = Settings(
        task=pair.task,
        max_new_tokens=options.max_tokens or config.sampling.max_new_tokens,
        temperature=config.sampling.temperature,
        max_summary_tokens=config.game.max_summary_tokens,
        identity=identity,
        shortcuts=Shortcuts(options.cut_drafts, options.early_exit),
        max_requests=options.max_requests,
        timeout_seconds=options.timeout,
    )
    if settings.shortcuts.early_exit or settings.shortcuts.cut_drafts:
        caution(console, "shortcuts are on: answers may differ from `agon eval`'s")
    return Service(backend, language, models, settings)


def _in_process(options: ServeOptions, pair: Pair, language: Language) -> tuple[Backend, str]:
    """The engine with its adapters, and a name for both."""
    from agon.engines.continuous import Scheduler
    from agon.serving.backends import EngineBackend

    config = pair.config
    if options.slots is not None:
        changed = config.sampling.model_copy(update={"slots": options.slots})
        config = config.model_copy(update={"sampling": changed})
    policies, engine = open_engine(config, language)
    if pair.folder is not None:
        load_run_adapters(pair.folder, policies, config.objective.updates_per_step)
    else:
        for name, folder in pair.adapters.items():
            policies.load(name, folder, field=f"--adapter-{name}")
    scheduler = Scheduler(engine, prefix_tokens=options.prefix_tokens)
    step = "given" if pair.step is None else f"step{pair.step}"
    return EngineBackend(scheduler, language), f"agon-{policies.fingerprint}-{step}"


def _upstream(
    options: ServeOptions, language: Language, models: dict[str, Served]
) -> tuple[Backend, dict[str, Served]]:
    """The other server; only models whose policies it has are offered."""
    from agon.serving.models import CASCADE
    from agon.serving.upstream import UpstreamBackend, check_upstream

    names = {
        policy: name
        for policy, name in zip(("a", "b", BASE), options.upstream_names, strict=True)
        if name is not None
    }
    kept = {name: served for name, served in models.items() if set(served.stages) <= names.keys()}
    if CASCADE not in kept:
        needed = sorted(set(models[CASCADE].stages))
        raise ConfigError(
            "--upstream needs the upstream's model names of the pair: give "
            + " and ".join(f"--upstream-{policy}" for policy in needed)
        )
    assert options.upstream is not None
    check_upstream(options.upstream, names, options.upstream_key)
    key, seconds = options.upstream_key, options.timeout
    return UpstreamBackend(options.upstream, names, language, key, seconds), kept
