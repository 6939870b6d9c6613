"""Several processes do what one does, and one that is lost ends the run with its rank.

Every run here is `agon train` in two processes over gloo, forked as in `test_resume`.
"""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agon.distributed import ALONE, check_launcher, join, part
from agon.errors import ConfigError
from agon.recipes import load_recipe
from test_resume import (
    IN_SAMPLING,
    IN_THE_UPDATE,
    RECIPE,
    TINY,
    Ended,
    Trap,
    agon,
    checkpoints,
    launch,
    metrics,
    rounds,
    settings,
)

SIZE = 2
STEPS = 4
SILENCE = 3.0
"""Seconds of `training.process_timeout` here."""

ENDS_WITHIN = SILENCE + 10 + 5
"""The stated time, and some for a busy machine."""

OPTIONS = settings(
    training={"steps": STEPS, "problems_per_step": 3, "process_timeout": SILENCE},
    evaluation={"every": 2, "problems": 5},
)
"""Problems and dev problems that do not divide by two."""

SILENT = settings(evaluation={"every": 0})

Traps = Mapping[int, Sequence[Trap]]


def environment(rank: int, port: int, size: int = SIZE) -> dict[str, str]:
    """What a launcher sets."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {
        **{name: str(value) for name, value in numbers.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def together(
    folder: Path, *arguments: str | Path, traps: Traps | None = None, abandon: int | None = None
) -> list[Ended]:
    """Run `agon` in two processes; the one to abandon is killed when the other has ended."""
    port, processes = free_port(), []
    for rank in range(SIZE):
        (folder / f"rank-{rank}").mkdir(exist_ok=True)
        processes.append(
            launch(
                folder / f"rank-{rank}",
                *arguments,
                traps=(traps or {}).get(rank, ()),
                environment=environment(rank, port),
            )
        )
    for rank, process in enumerate(processes):
        if rank != abandon:
            process.join()
    if abandon is not None:
        processes[abandon].kill()
        processes[abandon].join()
    return [
        Ended(
            process.exitcode,
            (folder / f"rank-{rank}" / "stdout").read_text(),
            (folder / f"rank-{rank}" / "stderr").read_text(),
        )
        for rank, process in enumerate(processes)
    ]


def start(folder: Path, *options: str, **more: Any) -> list[Ended]:
    """Begin a run of two processes in `folder/run`."""
    run = folder / "run"
    return together(folder, "train", RECIPE, *TINY, *OPTIONS, *options, "--run-dir", run, **more)


def start_alone(folder: Path, *options: str, **more: Any) -> Ended:
    run = folder / "run"
    return agon(folder, "train", RECIPE, *TINY, *OPTIONS, *options, "--run-dir", run, **more)


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """All numbers of each adapter and of each kind of moment of the newest checkpoint, in a row."""
    newest = run / "checkpoints" / checkpoints(run)[-1]
    parts: dict[str, list[torch.Tensor]] = {}
    for file in sorted(newest.rglob("*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            kind = name.partition("|")[2]
            parts.setdefault(f"{file.relative_to(newest)} {kind}", []).append(tensor.flatten())
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rounds(run).decode().splitlines()]


def assert_like(run: Path, reference: Path) -> None:
    """The same run up to rounding: equal rollouts, close figures and adapters."""
    assert rows_of(run) == rows_of(reference)
    assert checkpoints(run)[-1] == checkpoints(reference)[-1]
    lines, others = metrics(run), metrics(reference)
    assert len(lines) == len(others)
    for line, other in zip(lines, others, strict=True):
        assert list(line) == list(other)
        for key, value in line.items():
            if isinstance(value, str):
                assert value == other[key]
            elif "ratio_gap" not in key:
                assert value == pytest.approx(other[key], rel=1e-4, abs=1e-6), key
    ours, theirs = tensors(run), tensors(reference)
    assert ours.keys() == theirs.keys()
    for file in ours:
        # AdamW makes whole steps of gradients that are rounding alone, so single weights may
        # differ: what counts is the distance of all of them together.
        distance = float((ours[file] - theirs[file]).norm())
        assert distance <= 1e-4 * float(theirs[file].norm()), file


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    ended = start_alone(folder)
    assert ended.status == 0, ended.err
    return folder / "run"


# One result


def test_two_processes_end_as_one_though_the_problems_do_not_divide(alone: Path, tmp_path) -> None:
    first, second = start(tmp_path)
    assert (first.status, second.status) == (0, 0), (first, second)
    assert_like(tmp_path / "run", alone)
    assert first.out.count("done:") == 1
    assert second.out == ""
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == SIZE


def test_a_shared_out_base_changes_nothing_and_neither_does_checkpointing(
    alone: Path, tmp_path: Path
) -> None:
    options = settings(model={"shard": True}, training={"gradient_checkpointing": True})
    for ended in start(tmp_path, *options):
        assert ended.status == 0, ended
    assert_like(tmp_path / "run", alone)


def test_summaries_of_other_problems_travel_between_processes(tmp_path: Path) -> None:
    options = settings(
        game={"exchange": "shuffled"}, training={"steps": 1}, evaluation={"every": 0}
    )
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert start_alone(one, *options).status == 0
    for ended in start(two, *options):
        assert ended.status == 0, ended
    assert rows_of(two / "run") == rows_of(one / "run")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("count", [0, 1, 5, 7, 20])
def test_parts_follow_each_other_and_differ_by_one_at_most(count: int, size: int) -> None:
    parts = [part(range(count), rank, size) for rank in range(size)]
    assert [item for items in parts for item in items] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


# At load


def test_more_processes_than_problems_are_refused_before_anything_starts(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "17")
    with pytest.raises(ConfigError, match=r"problems_per_step = 16, .* 17 processes"):
        join(load_recipe(RECIPE))


def test_one_process_alone_joins_nobody_and_cannot_share_a_base_out(monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join(load_recipe(RECIPE)) is ALONE
    with pytest.raises(ConfigError, match=r"model.shard = true .* the only one"):
        join(load_recipe(RECIPE, ["model.shard=true"]))


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_a_launcher_that_does_not_say_the_ranks_is_refused(name: str, monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv(name, "1")
    check_launcher()
    monkeypatch.setenv(name, "2")
    with pytest.raises(ConfigError, match=rf"{name} = 2, but not WORLD_SIZE"):
        check_launcher()
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_launcher()


def test_other_commands_refuse_to_run_in_several_processes(tmp_path: Path) -> None:
    process = launch(tmp_path, "eval", tmp_path, environment={"WORLD_SIZE": "2"})
    process.join()
    assert process.exitcode == 2
    assert "agon eval runs in one process" in (tmp_path / "stderr").read_text()


# Lost processes


@pytest.mark.parametrize(
    ("lost", "trap"),
    [
        (1, Trap(*IN_THE_UPDATE, call=3)),
        (1, Trap(*IN_SAMPLING, call=4, does="stop")),
        (0, Trap(*IN_THE_UPDATE, call=3, does="stop")),
    ],
    ids=["killed", "stopped", "stopped-first"],
)
def test_a_lost_process_ends_the_others_with_its_rank_within_the_stated_time(
    lost: int, trap: Trap, tmp_path: Path
) -> None:
    begun = time.monotonic()
    ended = start(tmp_path, *SILENT, traps={lost: [trap]}, abandon=lost)
    left = ended[1 - lost]
    assert left.status == 2, left
    assert f"rank {lost} " in left.err
    assert "Traceback" not in left.err
    last = (tmp_path / "run" / "metrics.jsonl").stat().st_mtime
    assert time.time() - last < ENDS_WITHIN
    assert time.monotonic() - begun < 60


def test_a_process_that_fails_ends_the_others_with_its_words(tmp_path: Path) -> None:
    trap = Trap(*IN_SAMPLING, call=4, does="fail")
    first, second = start(tmp_path, *SILENT, traps={1: [trap]})
    assert first.status == 2
    assert "rank 1 failed: the disk of this rank is on fire" in first.err
    assert second.status != 0


def test_adapters_that_differ_in_one_bit_end_the_run_with_the_rank(tmp_path: Path) -> None:
    trap = Trap(*IN_THE_UPDATE, call=4, does="stray")
    for ended in start(tmp_path, *SILENT, traps={1: [trap]}):
        assert ended.status == 2
        assert "adapters after 1 steps: rank 1 differs from rank 0" in ended.err
    assert checkpoints(tmp_path / "run") == []


# Ended and continued


def test_a_preempted_run_saves_and_goes_on_with_another_number_of_processes(
    alone: Path, tmp_path: Path
) -> None:
    trap = Trap(*IN_SAMPLING, call=15, does="terminate")  # the drafts of step 3
    for ended in start(tmp_path, traps={0: [trap], 1: [trap]}):
        assert ended.status == 75, ended
    run = tmp_path / "run"
    assert checkpoints(run) == ["step-000002", "step-000003"]
    ended = agon(tmp_path, "train", "--resume", run)
    assert ended.status == 0, ended.err
    assert "processes was 2 and is 1" in ended.out
    assert_like(run, alone)


def test_sigterm_at_one_process_ends_all_in_the_same_step_and_two_go_on_where_one_began(
    alone: Path, tmp_path: Path
) -> None:
    assert start_alone(tmp_path, traps=[Trap(*IN_THE_UPDATE, call=3)]).status == -signal.SIGKILL
    run = tmp_path / "run"
    resume = ("train", "--resume", run)
    trap = Trap(*IN_THE_UPDATE, call=3, does="terminate")
    first, second = together(tmp_path, *resume, traps={1: [trap]})
    assert (first.status, second.status) == (75, 75), (first, second)
    assert "ended by SIGTERM after" in first.out
    for ended in together(tmp_path, *resume):
        assert ended.status == 0, ended
    assert_like(run, alone)


def test_all_processes_stop_together_where_nothing_can_be_learned(tmp_path: Path) -> None:
    options = settings(sampling={"max_new_tokens": 2}, stop={"window": 2}, evaluation={"every": 0})
    first, second = start(tmp_path, *options)
    assert (first.status, second.status) == (1, 1), (first, second)
    assert first.err.count("training stopped") == 1
    assert second.err == ""
    assert checkpoints(tmp_path / "run") == ["step-000002"]
