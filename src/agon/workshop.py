"""A model ready to play: policies, engine, judge and prompter of one configuration.

Training, evaluation and solving all begin here, after `preflight`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from agon.checkpoints import latest_checkpoint
from agon.config import Config, EngineConfig
from agon.distributed import ALONE, Processes
from agon.engines.base import Engine, Follower
from agon.engines.opening import open_follower, open_torch
from agon.engines.torch_engine import TorchEngine
from agon.errors import CheckpointError
from agon.policies import Policies, load_base
from agon.preflight import Language
from agon.rounds import Table
from agon.runs import RunFolder
from agon.sharded import ShardedBase
from agon.verifiers import PooledJudge


@dataclass(frozen=True, slots=True)
class Workshop:
    """What plays a round, and the policies behind it.

    Attributes:
        follower: The table's engine where it samples from copies of the adapters; None where it
            samples from the policies themselves.
    """

    policies: Policies
    table: Table
    judge: PooledJudge
    device: torch.device
    language: Language
    sharded: ShardedBase | None = None
    follower: Follower | None = None

    def sampling(self) -> AbstractContextManager[None]:
        """Sample inside: a sharded base is whole there. All processes enter and leave it."""
        return nullcontext() if self.sharded is None else self.sharded.whole()

    def close(self) -> None:
        """End the verifier's worker processes and what samples."""
        self.judge.close()
        if self.follower is not None:
            self.follower.close()


def open_workshop(
    config: Config,
    language: Language,
    judge: PooledJudge | None = None,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
    processes: Processes = ALONE,
) -> Workshop:
    """Load the base, start the adapters as the configuration says, and open the engine.

    Args:
        config: The run's configuration.
        language: From `preflight.read_language`.
        judge: One that is running already; None starts one.
        folder: The run's, where copies of the adapters may go; None is the working folder.
        say: Told what an engine beside the trainer was found to be.
        processes: The run's processes, among which a base may be shared out.

    Raises:
        AdapterError: A warm start does not fit.
        EngineError: The model cannot be sampled as `engine.kind` says.
    """
    policies, sharded = open_policies(config, processes)
    follower = None
    if config.engine.kind != "torch":
        follower = open_follower(config, language, policies, folder or Path(), say)
    engine: Engine = follower or open_torch(config, language, policies, fold=sharded is None)
    judge = judge or PooledJudge(config.verifier, config.code)
    table = Table(engine, judge, language.prompter)
    device = policies.model.get_base_model().device
    return Workshop(policies, table, judge, device, language, sharded, follower)


def open_engine(config: Config, language: Language) -> tuple[Policies, TorchEngine]:
    """For serving: the policies and an engine that goes back and forth between them; no judge.

    Raises:
        AdapterError: A warm start does not fit.
        EngineError: The model cannot be sampled in process.
    """
    policies, _ = open_policies(config, ALONE)
    return policies, open_torch(config, language, policies, copies_each=True)


def open_policies(config: Config, processes: Processes) -> tuple[Policies, ShardedBase | None]:
    """The base on its device, shared out among processes if it is to be, and its adapters.

    Raises:
        AdapterError: A warm start does not fit.
    """
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    device = choose_device(config)
    # The adapters are drawn on the CPU, so that their start does not hang on the device.
    policies = Policies(
        load_base(config.model, device), config.adapters, config.game.policies, config.seeds.init
    )
    sharded = None
    if config.model.shard and processes.size > 1:
        sharded = ShardedBase(policies, device, processes.size)
    else:
        policies.model.to(device)
    warm = {"a": config.adapters.warm_a, "b": config.adapters.warm_b}
    for name in policies.names:
        start = warm[name]
        if start is not None:
            policies.load(name, Path(start), field=f"adapters.warm_{name}")
    return policies, sharded


def without_start(config: Config) -> Config:
    """A run's configuration once it has adapters of its own.

    The folders that they began from are no longer needed and may be gone.
    """
    adapters = config.adapters.model_copy(update={"warm_a": None, "warm_b": None})
    return config.model_copy(update={"adapters": adapters})


def for_use(config: Config) -> Config:
    """A run's configuration for using its adapters, on whatever device is here."""
    training = config.training.model_copy(update={"device": "auto"})
    model = config.model.model_copy(update={"shard": False})
    return without_start(config).model_copy(update={"training": training, "model": model})


def in_process(config: Config) -> Config:
    """A configuration that samples from the policies themselves, whatever the run sampled with."""
    return config.model_copy(update={"engine": EngineConfig()})


def choose_device(config: Config) -> torch.device:
    """The device of `training.device`: a CUDA GPU where Accelerate finds one, else the CPU."""
    from accelerate import PartialState

    if config.training.device == "cpu":
        return torch.device("cpu")
    found = torch.device(PartialState().device)
    # Sampling needs double precision, which Apple's GPUs do not have.
    return found if found.type == "cuda" else torch.device("cpu")


def load_run_adapters(folder: RunFolder, policies: Policies, updates_per_step: int) -> int:
    """Put a run's newest adapters into the policies.

    Returns:
        The step that they come from.

    Raises:
        CheckpointError: The run has no checkpoint.
    """
    checkpoint = latest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"{folder.path} has no checkpoint yet: let it train for a while")
    step = int(checkpoint.name.removeprefix("step-"))
    for name in policies.names:
        policies.load(name, checkpoint / "adapters" / name, field=f"checkpoint {checkpoint.name}")
        policies.set_version(name, step * updates_per_step)
    return step
