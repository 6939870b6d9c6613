"""The whole training state, saved and resumed as one.

    checkpoints/step-000050/adapters/a/    plain PEFT folders
                            adapters/b/
                            optimizer-a.safetensors
                            optimizer-b.safetensors
                            state.json     step, versions, log sizes, counters, library versions

Whose turn it is, the learning rates, the data cursor and all sampling hang on the step and the
seeds, so the step stands for them. A checkpoint is written aside, brought to the disk and renamed:
a kill at any moment leaves the previous one whole.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from agon.errors import AgonError, CheckpointError
from agon.policies import Policies

_NAME = re.compile(r"step-(\d{6,})")
_UNREADABLE = (
    AgonError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    SafetensorError,  # derives from Exception alone
)


@dataclass(frozen=True, slots=True)
class State:
    """What a checkpoint holds besides adapters and optimizers.

    Attributes:
        step: Completed steps.
        versions: Optimizer steps of each adapter.
        log_sizes: Bytes of each log at this moment, `metrics` and `rounds`.
        problems: Identifies the training problems and their order.
        counters: The stop rule's counts and the totals shown to people.
        environment: Versions and threads that the run had.
    """

    step: int
    versions: dict[str, int]
    log_sizes: dict[str, int]
    problems: str = ""
    counters: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    folder: Path,
    state: State,
    policies: Policies,
    optimizers: Mapping[str, torch.optim.Optimizer],
    keep: int,
) -> Path:
    """Write a checkpoint and delete the ones that `keep` no longer covers.

    Raises:
        CheckpointError: It could not be written; earlier checkpoints are untouched.
    """
    final = folder / f"step-{state.step:06d}"
    aside = folder / f".{final.name}.part"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        policies.save(aside / "adapters")
        for name, optimizer in optimizers.items():
            tensors = optimizer_tensors(optimizer, policies.parameters(name))
            save_file(tensors, aside / f"optimizer-{name}.safetensors")
        record = {**asdict(state), "random": _random_states()}
        (aside / "state.json").write_text(json.dumps(record, indent=1) + "\n")
        _sync_tree(aside)
        if final.exists():
            # A step has one state, so the complete checkpoint that is there holds it already.
            shutil.rmtree(aside)
        else:
            aside.rename(final)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        last = latest_checkpoint(folder)
        raise CheckpointError(
            f"{final} could not be written: {error}. "
            + (f"The last good checkpoint is {last}" if last else "There is no earlier checkpoint")
            + "; free some space and continue with `agon train --resume`"
        ) from error
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(
    folder: Path, policies: Policies, optimizers: Mapping[str, torch.optim.Optimizer]
) -> State:
    """Put a checkpoint's state into policies and optimizers.

    Args:
        folder: One checkpoint, `checkpoints/step-N`.
        policies: Of the same configuration as the run that wrote it.
        optimizers: One for each adapter.

    Raises:
        CheckpointError: A file is missing, cut short or of another run.
    """
    try:
        record = json.loads((folder / "state.json").read_text())
        states = record.pop("random")
        state = State(**record)
        for name, optimizer in optimizers.items():
            policies.load(name, folder / "adapters" / name, field=f"checkpoint {folder.name}")
            tensors = load_file(folder / f"optimizer-{name}.safetensors")
            restore_optimizer(optimizer, policies.parameters(name), tensors)
            policies.set_version(name, state.versions[name])
        _restore_random(states)
    except _UNREADABLE as error:
        raise _unreadable(folder, error) from error
    return state


def _unreadable(folder: Path, error: Exception) -> CheckpointError:
    others = [path.name for path in list_checkpoints(folder.parent) if path != folder]
    remedy = (
        f"delete that folder to resume from {others[-1]}"
        if others
        else "there is no other checkpoint; start a new run"
    )
    return CheckpointError(
        f"checkpoint {folder} cannot be read ({type(error).__name__}: {error}): {remedy}"
    )


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, torch.Tensor]:
    """An optimizer's state as named tensors: `parameter name|moment`."""
    return {
        f"{name}|{key}": torch.as_tensor(value).detach().cpu().contiguous()
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """The reverse of `optimizer_tensors`.

    Raises:
        KeyError: A tensor belongs to no parameter.
    """
    moments: dict[str, dict[str, torch.Tensor]] = {}
    for full, value in tensors.items():
        name, _, key = full.rpartition("|")
        moments.setdefault(name, {})[key] = value
    for name, values in moments.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {
            # AdamW keeps its step count on the CPU whatever the parameter's device.
            key: value if key == "step" else value.to(parameter.device)
            for key, value in values.items()
        }


def _random_states() -> dict[str, Any]:
    """Global generators. Agon draws from keyed generators; libraries may draw from these."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(
        tuple[str, Any, int, int, float], numpy.random.get_state(legacy=True)
    )
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, keys.tolist(), position, has_gauss, cached],
        "torch": torch.get_rng_state().tolist(),
    }


def _restore_random(states: Mapping[str, Any]) -> None:
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))


def _sync_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
