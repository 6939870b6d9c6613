"""Properties of the saved training state: whole or not there, and continued to the bit."""

from __future__ import annotations

import errno
import json
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors import SafetensorError

import models
from agon import checkpoints
from agon.checkpoints import (
    State,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    optimizer_tensors,
    save_checkpoint,
)
from agon.errors import CheckpointError
from agon.policies import Policies
from agon.update import Updater

FILES = [
    "state.json",
    "optimizer-a.safetensors",
    "optimizer-b.safetensors",
    "adapters/a/adapter_model.safetensors",
    "adapters/b/adapter_model.safetensors",
    "adapters/b/adapter_config.json",
]


@dataclass
class Run:
    """Policies and their optimizers, and steps on fixed rollouts."""

    policies: Policies = field(default_factory=models.tiny_policies)
    updater: Updater = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        config = models.settings(optimizer={"weight_decay": 0.01, "clip_norm": 0.5})
        self.updater = models.updater(self.policies, config)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for name in self.policies.names:
                drafts = models.sampled_by(
                    self.policies, name, [1.0, -0.5, 0.2, -0.7], seed=self.step
                )
                self.updater.step(name, [drafts], 1e-2 / (1 + self.step))
            self.step += 1

    def save(self, folder: Path, keep: int = 2) -> Path:
        versions = {name: self.policies.version(name) for name in self.policies.names}
        state = State(self.step, versions, {"metrics": 12}, {"flat": 3.0}, {"torch": "2"})
        return save_checkpoint(folder, state, self.policies, self.updater.optimizers, keep)

    def load(self, folder: Path) -> State:
        state = load_checkpoint(folder, self.policies, self.updater.optimizers)
        self.step = state.step
        return state

    def moments(self) -> dict[str, torch.Tensor]:
        return {
            f"{name} {key}": value.clone()
            for name in self.policies.names
            for key, value in optimizer_tensors(
                self.updater.optimizers[name], self.policies.parameters(name)
            ).items()
        }


def another_run(**overrides: Any) -> Run:
    """A run that shares nothing but the base with the one that was saved."""
    return Run(models.tiny_policies(seed=7, moved=False, **overrides))


# Round trip


def test_a_checkpoint_brings_everything_back_to_the_bit(tmp_path: Path) -> None:
    run = Run()
    run.train(2)
    other = another_run()
    state = other.load(run.save(tmp_path))
    assert state == State(2, {"a": 2, "b": 2}, {"metrics": 12}, {"flat": 3.0}, {"torch": "2"})
    assert models.digests(other.policies) == models.digests(run.policies)
    models.assert_same(other.moments(), run.moments())
    assert {key.rpartition("|")[2] for key in run.moments()} == {"step", "exp_avg", "exp_avg_sq"}
    assert [other.policies.version(name) for name in ("base", "a", "b")] == [0, 2, 2]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_restored_run_continues_as_if_it_had_not_stopped(cut: int, tmp_path: Path) -> None:
    """Three steps in one go, and the same three with a checkpoint between two of them."""
    straight, first, second = Run(), Run(), another_run()
    straight.train(3)
    first.train(cut)
    second.load(first.save(tmp_path))
    second.train(3 - cut)
    assert models.digests(second.policies) == models.digests(straight.policies)
    models.assert_same(second.moments(), straight.moments())
    assert second.policies.version("b") == 3


def test_the_global_generators_continue_too(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float, float]:
        values = random.gauss(), np.random.normal(), torch.rand(()).item(), random.random()
        return (values[0], float(values[1]), values[2], values[3])

    run = Run()
    with torch.random.fork_rng(devices=[]):
        draw()
        folder = run.save(tmp_path)
        expected = [draw() for _ in range(3)]
        run.load(folder)
        assert [draw() for _ in range(3)] == expected


def test_one_policy_is_saved_and_loaded_alone(tmp_path: Path) -> None:
    run = Run(models.tiny_policies(count=1))
    run.train(1)
    folder = run.save(tmp_path)
    assert not (folder / "adapters" / "b").exists()
    other = Run(models.tiny_policies(count=1, seed=7))
    other.load(folder)
    models.assert_same(other.moments(), run.moments())


@pytest.mark.parametrize("policy", ["a", "b"])
def test_the_adapters_of_a_checkpoint_are_plain_peft_folders(policy: str, tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    folder = run.save(tmp_path) / "adapters" / policy
    alone = PeftModel.from_pretrained(models.tiny_base(), str(folder)).eval()
    ids = torch.tensor([[4, 9, 30, 2]])
    with run.policies.active(policy), torch.no_grad():
        assert torch.equal(alone(input_ids=ids).logits, run.policies.model(input_ids=ids).logits)


def test_saving_changes_nothing_of_the_run(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    before, moments = models.digests(run.policies), run.moments()
    run.save(tmp_path)
    assert models.digests(run.policies) == before
    models.assert_same(run.moments(), moments)
    assert not any(parameter.requires_grad for parameter in run.policies.model.parameters())


# What is kept


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_are_kept(keep: int, tmp_path: Path) -> None:
    run = Run()
    for step in (5, 10, 15, 20):
        run.step = step
        run.save(tmp_path, keep)
    expected = [f"step-{step:06d}" for step in (5, 10, 15, 20)[-keep:]]
    assert [path.name for path in list_checkpoints(tmp_path)] == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == expected
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000020"


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("step-1000000", "step-999999", "step-000001", "step-12", "step-000002.old"):
        (tmp_path / name).mkdir()
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-000001", "step-999999", "step-1000000"]


def test_a_folder_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nowhere") is None


def test_a_leftover_of_a_killed_write_is_ignored_and_replaced(tmp_path: Path) -> None:
    leftover = tmp_path / ".step-000000.part"
    (leftover / "adapters").mkdir(parents=True)
    (leftover / "optimizer-zzz.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path) is None
    folder = Run().save(tmp_path)
    assert not leftover.exists()
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapters",
        "optimizer-a.safetensors",
        "optimizer-b.safetensors",
        "state.json",
    ]


def test_saving_a_step_again_leaves_the_complete_checkpoint_untouched(tmp_path: Path) -> None:
    run = Run()
    folder = run.save(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert run.save(tmp_path) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert list(tmp_path.glob(".step-*")) == []


# Writes that fail


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """A real failure of writing: files of this process may not grow beyond the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def trained_and_saved(folder: Path) -> tuple[Run, Path, dict[str, bytes]]:
    """A run with one good checkpoint that has trained on since."""
    run = Run()
    run.train(1)
    good = run.save(folder, keep=1)
    before = contents(folder)
    run.train(1)
    return run, good, before


@pytest.mark.parametrize("fails", ["adapters/a/adapter_model.safetensors", "state.json"])
def test_a_disk_that_takes_no_more_leaves_the_last_checkpoint_and_names_it(
    fails: str, tmp_path: Path
) -> None:
    run, good, before = trained_and_saved(tmp_path)
    limit = (good / fails).stat().st_size - 100
    with (
        file_size_limit(limit),
        pytest.raises(CheckpointError, match="step-000002 could not be written") as caught,
    ):
        run.save(tmp_path, keep=1)
    assert f"last good checkpoint is {good};" in str(caught.value)
    assert contents(tmp_path) == before
    another_run().load(good)
    assert run.save(tmp_path, keep=1) == tmp_path / "step-000002"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EIO, "Input/output error"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
        SafetensorError("Error while serializing: I/O error: Disk quota exceeded"),
    ],
    ids=str,
)
def test_an_optimizer_that_cannot_be_written_leaves_the_last_checkpoint_and_names_it(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, good, before = trained_and_saved(tmp_path)

    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(checkpoints, "save_file", failing)
    with pytest.raises(CheckpointError, match="step-000002 could not be written") as caught:
        run.save(tmp_path, keep=1)
    assert str(error) in str(caught.value)
    assert f"last good checkpoint is {good};" in str(caught.value)
    assert contents(tmp_path) == before


def test_a_first_write_that_fails_says_that_there_is_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", failing)
    with pytest.raises(CheckpointError, match="There is no earlier checkpoint; free some space"):
        Run().save(tmp_path)


@pytest.mark.parametrize("call", ["save_file", "_random_states", "_sync_tree"])
def test_a_kill_during_the_write_leaves_the_last_checkpoint(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, good, before = trained_and_saved(tmp_path)

    def killed(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, call, killed)
        with pytest.raises(SystemExit):
            run.save(tmp_path, keep=1)
    assert latest_checkpoint(tmp_path) == good
    assert contents(good) == {
        name.removeprefix(f"{good.name}/"): data for name, data in before.items()
    }
    assert run.save(tmp_path, keep=1) == tmp_path / "step-000002"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


# Reads that fail


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    run = Run()
    for _ in range(2):
        run.train(1)
        run.save(folder)
    return folder


def refused(run: Run, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        run.load(folder)
    message = str(caught.value)
    assert f"checkpoint {folder} cannot be read" in message
    return message


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_damaged_checkpoint_names_itself_and_the_one_to_fall_back_to(
    damage: str, name: str, two_checkpoints: Path, tmp_path: Path
) -> None:
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "step-000002" / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 if damage == "cut" else 0])
    message = refused(another_run(), tmp_path / "step-000002")
    assert "delete that folder to resume from step-000001" in message
    assert another_run().load(tmp_path / "step-000001").step == 1


def test_a_lone_damaged_checkpoint_says_that_there_is_no_other(
    two_checkpoints: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(two_checkpoints / "step-000001", tmp_path / "step-000001")
    (folder / "state.json").unlink()
    assert "there is no other checkpoint; start a new run" in refused(another_run(), folder)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"rank": 2}, "set adapters.rank = 3"),
        ({"alpha": 5.0}, "set adapters.alpha = 6.0"),
        ({"target_modules": ("q_proj",)}, "adapters.target_modules"),
        ({"base": models.tiny_base(seed=1)}, "another base"),
    ],
    ids=["rank", "alpha", "targets", "base"],
)
def test_a_checkpoint_of_another_configuration_is_refused(
    overrides: dict[str, Any], expected: str, two_checkpoints: Path
) -> None:
    message = refused(another_run(**overrides), two_checkpoints / "step-000002")
    assert expected in message
    assert "step-000001" in message


def test_a_checkpoint_of_one_policy_does_not_start_two(tmp_path: Path) -> None:
    folder = Run(models.tiny_policies(count=1)).save(tmp_path)
    assert "adapters/b" in refused(another_run(), folder)


def test_moments_of_an_unknown_parameter_are_refused(two_checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "step-000002" / "optimizer-a.safetensors"
    checkpoints.save_file({"elsewhere.lora_A.weight|exp_avg": torch.zeros(2)}, path)
    assert "elsewhere.lora_A.weight" in refused(another_run(), tmp_path / "step-000002")


def test_the_state_is_readable_by_people(two_checkpoints: Path) -> None:
    record = json.loads((two_checkpoints / "step-000002" / "state.json").read_text())
    assert record["step"] == 2
    assert record["versions"] == {"a": 2, "b": 2}
    assert record["log_sizes"] == {"metrics": 12}
