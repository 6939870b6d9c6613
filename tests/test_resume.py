"""An interrupted run, continued, is the uninterrupted one to the bit, whatever ended it.

Every run here is `agon train` in a process of its own, forked from a server that has imported
torch, with a trap where the process shall be killed, interrupted or run out of disk. `TINY` and
`agon` serve other test files too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

RECIPE = "countdown-agon"
STEPS = 5
LARGEST_NUMBER = 9
PRELOADED = [
    "pytest",
    "accelerate",
    "agon.commands.evaluate",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.tokenization_auto",
]
"""What the server imports once for all processes that it forks."""


def settings(**sections: Any) -> list[str]:
    """`--set` options: `settings(game={"policies": 1})`."""
    return [
        part
        for section, fields in sections.items()
        for field, value in fields.items()
        for part in ("--set", f"{section}.{field}={json.dumps(value)}")
    ]


TINY = settings(
    training={"steps": STEPS, "problems_per_step": 2, "device": "cpu", "threads": 1},
    sampling={"group_size": 4, "max_new_tokens": 48},
    evaluation={"every": 0, "problems": 4},
    checkpoint={"every": 2},
)
PAIR: list[str] = []
SELF_REFINE = settings(game={"policies": 1}, reward={"credit": "correctness"})
LOGGED = settings(logging={"compress": True}, evaluation={"every": 2})
"""Rounds compressed, and evaluations between steps and after the last."""


@dataclass(frozen=True)
class Trap:
    """What happens at the n-th call of a function of the package.

    Attributes:
        owner: Module, or `module:Class`.
        name: The function's name there.
        call: At which call, from 1.
        does: Name of a function below.
        after: Whether it happens when the call has returned.
        room: Bytes that a file may have once the disk is full; None is what the run's log files
            have now and 100 more.
    """

    owner: str
    name: str
    call: int
    does: str = "kill"
    after: bool = False
    room: int | None = None

    def spring(self, arguments: tuple[Any, ...]) -> None:
        match self.does:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill_in_half":
                Path(arguments[1]).write_bytes(b"half a file")
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            case "interrupt_twice":
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "fail":
                raise OSError("the disk of this rank is on fire")
            case "stray":
                policies = arguments[0]._policies
                next(iter(policies.parameters("b").values())).data += 1e-7
            case "fill":
                resource.setrlimit(
                    resource.RLIMIT_FSIZE, (self.room or _log_size() + 100, resource.RLIM_INFINITY)
                )

    def set(self) -> None:
        place = pkgutil.resolve_name(self.owner)
        original: Callable[..., Any] = getattr(place, self.name)
        calls = 0

        def trapped(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.call and not self.after:
                self.spring(arguments)
            result = original(*arguments, **options)
            if calls == self.call and self.after:
                self.spring(arguments)
            return result

        setattr(place, self.name, trapped)


def _log_size() -> int:
    """Size of the longest log file of the run that this process trains."""
    logs = Path(sys.argv[-1]).glob("*.jsonl*")
    return max(log.stat().st_size for log in logs)


@dataclass(frozen=True)
class Ended:
    """A process that has ended; a signal is its negative number."""

    status: int | None
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """The lines of stderr that are the program's own."""
        lines = self.err.replace("\r", "\n").splitlines()
        return [line for line in lines if line and "Loading weights" not in line]


def agon(folder: Path, *arguments: str | Path, traps: Sequence[Trap] = ()) -> Ended:
    """Run `agon` with its standard streams in files of `folder`."""
    process = launch(folder, *arguments, traps=traps)
    process.join()
    return Ended(process.exitcode, (folder / "stdout").read_text(), (folder / "stderr").read_text())


def launch(
    folder: Path,
    *arguments: str | Path,
    traps: Sequence[Trap] = (),
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """Start `agon` as above without waiting for its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    files = folder / "stdout", folder / "stderr"
    more = environment or {}
    process = context.Process(target=_main, args=([*map(str, arguments)], traps, *files, more))
    process.start()
    return process


def _main(
    arguments: list[str],
    traps: Sequence[Trap],
    out: Path,
    err: Path,
    environment: Mapping[str, str],
) -> None:
    os.environ.update(environment)
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv = ["agon", *arguments]
    for trap in traps:
        trap.set()
    from agon.cli import main
    from agon.tasks import countdown

    # A twentieth of the problems: all of them take longer to enumerate than a run here lasts.
    countdown.enumerate_problems.__defaults__ = (LARGEST_NUMBER,)
    main()


def start(folder: Path, options: Sequence[str], *traps: Trap) -> Ended:
    """Begin a run in `folder/run`."""
    run = folder / "run"
    return agon(folder, "train", RECIPE, *TINY, *options, "--run-dir", run, traps=traps)


def resume(folder: Path, *traps: Trap, options: Sequence[str] = ()) -> Ended:
    """Continue the run in `folder/run`."""
    return agon(folder, "train", *options, "--resume", folder / "run", traps=traps)


def checkpoints(run: Path) -> list[str]:
    """Names of the complete checkpoints, oldest first."""
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times and memory figures."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith(("time.", "memory."))}
        for row in rows
    ]


def rounds(run: Path) -> bytes:
    """The bytes of the only rounds file."""
    [file] = run.glob("rounds.jsonl*")
    return file.read_bytes()


def weights(run: Path) -> dict[str, dict[str, bytes]]:
    """Adapters and optimizers of the newest checkpoint: the bytes of every tensor."""
    newest = run / "checkpoints" / checkpoints(run)[-1]
    return {
        str(file.relative_to(newest)): {
            name: f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes()
            for name, tensor in load_file(file).items()
        }
        for file in newest.rglob("*.safetensors")
    }


def assert_same_run(one: Path, other: Path) -> None:
    """Two runs are equal but for times, memory figures and what hangs on their lengths."""
    assert metrics(one) == metrics(other)
    assert rounds(one) == rounds(other)
    assert checkpoints(one)[-1] == checkpoints(other)[-1]
    assert weights(one) == weights(other)
    states = [
        json.loads((run / "checkpoints" / checkpoints(run)[-1] / "state.json").read_text())
        for run in (one, other)
    ]
    for key in ("step", "versions", "counters", "environment"):
        assert states[0][key] == states[1][key], key
    [sizes, others] = [state["log_sizes"] for state in states]
    assert sizes["rounds"] == others["rounds"]


def assert_stopped(ended: Ended, *parts: str) -> None:
    """Status 2, and one line on stderr that holds the parts."""
    assert ended.status == 2, ended
    [line] = ended.said
    assert line.startswith("agon: ")
    for part in parts:
        assert part in line


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run of two policies."""
    return _reference(tmp_path_factory.mktemp("pair"), PAIR)


@pytest.fixture(scope="module")
def self_refine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run of one policy in both roles, with compressed rounds and evaluations."""
    return _reference(tmp_path_factory.mktemp("self"), SELF_REFINE + LOGGED)


def _reference(folder: Path, options: list[str]) -> Path:
    ended = start(folder, options)
    assert ended.status == 0, ended.err
    run = folder / "run"
    assert len([row for row in metrics(run) if "learning_rate" in row]) == STEPS
    assert checkpoints(run) == ["step-000004", "step-000005"]
    return run


def before_the_end(reference: Path, folder: Path) -> Path:
    """A copy of a finished run that has lost its last checkpoint."""
    run = folder / "run"
    shutil.copytree(reference, run)
    shutil.rmtree(run / "checkpoints" / "step-000005")
    return run


IN_THE_LOGS = "agon.trainer", "round_rows"
"""The step's line of metrics is written, its rounds are not."""
IN_THE_UPDATE = "agon.trainer:Updater", "step"
IN_SAMPLING = "agon.engines.torch_engine:TorchEngine", "generate"
IN_A_CHECKPOINT = "agon.checkpoints", "save_file"
IN_SAVING = "agon.trainer", "save_checkpoint"
BEFORE_THE_RENAMING = "agon.checkpoints", "_sync_tree"

# Each moment and the checkpoints that it leaves.
CHAIN = [
    (Trap(*IN_THE_LOGS, call=2), []),
    (Trap(*IN_A_CHECKPOINT, call=1, does="kill_in_half"), []),
    (Trap(*IN_SAVING, call=1, after=True), ["step-000002"]),
    (Trap(*IN_THE_UPDATE, call=4), ["step-000002"]),
    (Trap(*BEFORE_THE_RENAMING, call=1, after=True), ["step-000002"]),
]


def test_a_run_killed_again_and_again_ends_as_the_uninterrupted_one(pair: Path, tmp_path) -> None:
    go_on = lambda trap: start(tmp_path, PAIR, trap)  # noqa: E731
    for trap, left in CHAIN:
        assert go_on(trap).status == -signal.SIGKILL
        assert checkpoints(tmp_path / "run") == left
        go_on = lambda trap: resume(tmp_path, trap)  # noqa: E731
    assert resume(tmp_path).status == 0
    assert_same_run(tmp_path / "run", pair)
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_a_killed_run_of_one_policy_with_compressed_rounds_ends_as_the_uninterrupted_one(
    self_refine: Path, tmp_path: Path
) -> None:
    ended = start(tmp_path, SELF_REFINE + LOGGED, Trap(*IN_THE_LOGS, call=4))
    assert ended.status == -signal.SIGKILL
    assert checkpoints(tmp_path / "run") == ["step-000002"]
    killed = resume(tmp_path, Trap("agon.trainer:Trainer", "_last_evaluation", call=1))
    assert killed.status == -signal.SIGKILL
    assert resume(tmp_path).status == 0
    assert_same_run(tmp_path / "run", self_refine)


@pytest.mark.slow
@pytest.mark.parametrize(
    "trap",
    [
        Trap(*IN_THE_UPDATE, call=2),
        Trap(*IN_A_CHECKPOINT, call=2, does="kill_in_half"),
        Trap(*IN_SAVING, call=1),
        Trap(*IN_SAVING, call=1, after=True),
        Trap(*IN_SAVING, call=2, after=True),
        Trap(*IN_SAVING, call=3, after=True),
        Trap(*IN_SAMPLING, call=6),
        Trap(*IN_THE_LOGS, call=3),
        Trap(*IN_THE_LOGS, call=4, after=True),
        Trap(*IN_A_CHECKPOINT, call=3, does="kill_in_half"),
        Trap(*BEFORE_THE_RENAMING, call=2),
        Trap("agon.checkpoints", "_sync", call=40, after=True),
        Trap("agon.trainer:Trainer", "_last_evaluation", call=1, after=True),
    ],
    ids=lambda trap: f"{trap.name}-{trap.call}-{trap.does}-{'after' if trap.after else 'before'}",
)
@pytest.mark.parametrize("game", ["pair", "self_refine"])
def test_a_kill_at_any_moment_loses_only_work(game: str, trap: Trap, request, tmp_path) -> None:
    options = {"pair": PAIR, "self_refine": SELF_REFINE + LOGGED}[game]
    start(tmp_path, options, trap)
    assert resume(tmp_path).status == 0
    assert_same_run(tmp_path / "run", request.getfixturevalue(game))


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
def test_a_kill_from_outside_inside_a_checkpoint_leaves_the_earlier_ones(
    pair: Path, tmp_path: Path, nth: int
) -> None:
    run = tmp_path / "run"
    process = launch(tmp_path, "train", RECIPE, *TINY, "--run-dir", run)
    while process.is_alive():
        if list((run / "checkpoints").glob(f".step-{2 * nth:06d}.part")):
            process.kill()
        time.sleep(0.001)
    assert process.exitcode == -signal.SIGKILL
    assert checkpoints(run) == [f"step-{2 * k:06d}" for k in range(1, nth)]
    assert resume(tmp_path).status == 0
    assert_same_run(run, pair)


@pytest.mark.parametrize(
    ("trap", "steps"),
    [
        (Trap(*IN_SAMPLING, call=8, does="interrupt"), 3),
        (Trap(*IN_THE_UPDATE, call=6, does="interrupt"), 3),
    ],
    ids=["sampling-is-dropped", "an-update-is-finished"],
)
def test_ctrl_c_saves_says_how_to_go_on_and_costs_nothing(pair, tmp_path, trap, steps) -> None:
    ended = start(tmp_path, PAIR, trap)
    run = tmp_path / "run"
    assert ended.status == 130
    assert f"interrupted after {steps} steps" in ended.out
    assert f"`agon train --resume {run}`" in ended.out
    assert ended.said == []
    assert checkpoints(run) == ["step-000002", f"step-{steps:06d}"]
    assert metrics(run) == metrics(pair)[:steps]
    assert resume(tmp_path).status == 0
    assert_same_run(run, pair)


@pytest.mark.parametrize(
    ("trap", "steps"),
    [
        (Trap(*IN_SAMPLING, call=8, does="terminate"), 3),
        (Trap(*IN_THE_UPDATE, call=6, does="terminate"), 3),
    ],
    ids=["sampling-is-dropped", "an-update-is-finished"],
)
def test_sigterm_saves_ends_with_the_status_to_requeue_on_and_costs_nothing(
    pair: Path, tmp_path: Path, trap: Trap, steps: int
) -> None:
    ended = start(tmp_path, PAIR, trap)
    assert ended.status == 75
    assert f"ended by SIGTERM after {steps} steps" in ended.out
    assert ended.said == []
    assert checkpoints(tmp_path / "run") == ["step-000002", f"step-{steps:06d}"]
    assert resume(tmp_path).status == 0
    assert_same_run(tmp_path / "run", pair)


def test_sigterm_before_the_first_step_ends_with_the_same_status(tmp_path: Path) -> None:
    ended = start(tmp_path, PAIR, Trap("agon.commands.train", "read_task", 1, "terminate"))
    assert ended.status == 75
    assert ended.said == []


def test_a_second_ctrl_c_inside_an_update_saves_no_half_made_step(tmp_path: Path) -> None:
    ended = start(tmp_path, PAIR, Trap(*IN_THE_UPDATE, call=6, does="interrupt_twice"))
    assert ended.status == 130
    assert ended.said == []
    assert checkpoints(tmp_path / "run") == ["step-000002"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "trap",
    [
        Trap(*IN_THE_UPDATE, call=4, does="interrupt_twice"),
        Trap(*IN_SAMPLING, call=1, does="interrupt"),
        Trap(*IN_SAVING, call=1, does="interrupt"),
        Trap(*IN_SAVING, call=1, does="interrupt_twice"),
        Trap(*IN_A_CHECKPOINT, call=2, does="interrupt_twice"),
        Trap(*IN_THE_LOGS, call=3, does="interrupt"),
        Trap(*IN_THE_LOGS, call=3, does="interrupt_twice"),
        Trap("agon.trainer", "summarise", call=5, does="interrupt"),
        Trap("agon.trainer", "summarise", call=7, does="interrupt"),
        Trap(*IN_THE_UPDATE, call=STEPS, does="interrupt"),
    ],
    ids=lambda trap: f"{trap.name}-{trap.call}-{trap.does}",
)
def test_ctrl_c_at_any_moment_costs_nothing(self_refine: Path, tmp_path: Path, trap: Trap) -> None:
    assert start(tmp_path, SELF_REFINE + LOGGED, trap).status == 130
    assert resume(tmp_path).status == 0
    assert_same_run(tmp_path / "run", self_refine)


def test_resuming_a_finished_run_changes_nothing(self_refine: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(self_refine, run)
    ended = resume(tmp_path)
    assert ended.status == 0
    assert f"continuing {run} after {STEPS} steps" in ended.out
    assert_same_run(run, self_refine)
    files = [
        {str(file.relative_to(folder)) for file in folder.rglob("*")}
        for folder in (run, self_refine)
    ]
    assert files[0] == files[1]


def test_a_full_disk_in_a_checkpoint_leaves_the_last_one_and_the_run_goes_on(
    pair: Path, tmp_path: Path
) -> None:
    ended = start(tmp_path, PAIR, Trap(*IN_SAVING, call=2, does="fill", room=100_000))
    run = tmp_path / "run"
    assert_stopped(
        ended,
        f"{run}/checkpoints/step-000004 could not be written",
        f"The last good checkpoint is {run}/checkpoints/step-000002",
        "free some space and continue with `agon train --resume`",
    )
    assert os.listdir(run / "checkpoints") == ["step-000002"]
    assert resume(tmp_path).status == 0
    assert_same_run(run, pair)


def test_a_full_disk_in_a_log_names_the_log_and_the_run_goes_on(pair: Path, tmp_path) -> None:
    trap = Trap("agon.runs:LogFile", "append", call=6, does="fill")
    ended = start(tmp_path, PAIR, trap)
    run = tmp_path / "run"
    assert_stopped(ended, "cannot write rounds of step 2", f"`agon train --resume {run}`")
    assert checkpoints(run) == ["step-000002"]
    assert resume(tmp_path).status == 0
    assert_same_run(run, pair)


@pytest.mark.slow
@pytest.mark.parametrize(
    "trap",
    [
        Trap("agon.runs:LogFile", "append", call=3, does="fill"),
        Trap(*IN_SAVING, call=1, does="fill", room=100_000),
        Trap(*IN_SAVING, call=2, does="fill", room=400_000),
        Trap("agon.trainer:State", "__init__", call=2, does="fill", room=30_000),
    ],
    ids=["metrics", "first-checkpoint", "optimizer", "state"],
)
def test_a_full_disk_at_any_moment_loses_only_work(pair: Path, tmp_path: Path, trap: Trap) -> None:
    assert_stopped(start(tmp_path, PAIR, trap), "space")
    assert resume(tmp_path).status == 0
    assert_same_run(tmp_path / "run", pair)


@pytest.fixture
def small_disk(pair: Path, tmp_path: Path) -> Iterator[Path]:
    """A disk with room for one and a half checkpoints."""
    files = [file for file in (pair / "checkpoints" / "step-000004").rglob("*") if file.is_file()]
    size = int(1.5 * sum(file.stat().st_size for file in files))
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
def test_a_disk_that_really_is_full_leaves_the_last_checkpoint(pair: Path, small_disk) -> None:
    assert_stopped(
        start(small_disk, PAIR),
        "No space left on device",
        "The last good checkpoint is",
        "step-000002",
    )
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert resume(small_disk).status == 0
    assert_same_run(small_disk / "run", pair)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("state.json", _cut),
        ("optimizer-b.safetensors", _cut),
        pytest.param("adapters/b/adapter_model.safetensors", _cut, marks=pytest.mark.slow),
        pytest.param("adapters/a/adapter_config.json", Path.unlink, marks=pytest.mark.slow),
    ],
)
def test_an_unreadable_checkpoint_is_named_with_the_one_to_go_back_to(
    pair: Path, tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(pair, run)
    newest = run / "checkpoints" / "step-000005"
    damage(newest / file)
    before = rounds(run), metrics(run)
    assert_stopped(
        resume(tmp_path),
        f"checkpoint {newest} cannot be read",
        "delete that folder to resume from step-000004",
    )
    assert (rounds(run), metrics(run)) == before


def test_without_its_last_checkpoint_a_run_goes_on_from_the_one_before(pair, tmp_path) -> None:
    run = before_the_end(pair, tmp_path)
    ended = resume(tmp_path)
    assert f"continuing {run} after 4 steps" in ended.out
    assert_same_run(run, pair)


def test_an_unreadable_only_checkpoint_says_that_there_is_no_other(pair, tmp_path) -> None:
    run = before_the_end(pair, tmp_path)
    (run / "checkpoints" / "step-000004" / "state.json").write_text("{}")
    assert_stopped(resume(tmp_path), "there is no other checkpoint; start a new run")


def test_settings_that_may_change_change_nothing_else(pair: Path, tmp_path: Path) -> None:
    run = before_the_end(pair, tmp_path)
    changes = settings(
        checkpoint={"every": 1, "keep": 3},
        logging={"project": "other", "trackers": ["tensorboard"]},
        stop={"window": 30, "truncated_share": 1.0, "unscored_share": 1.0},
        verifier={"workers": 1},
        training={"threads": 1, "device": "cpu", "process_timeout": 30.0, "wait_timeout": 60.0},
    )
    from agon.recipes import RESUMABLE

    # What has no meaning in one process that samples by itself is tested where it has.
    here = {name for name in RESUMABLE if not name.startswith("engine.")} - {"model.shard"}
    assert {change.partition("=")[0] for change in changes[1::2]} == here
    ended = resume(tmp_path, options=changes)
    assert ended.status == 0, ended.err
    assert_same_run(run, pair)


def test_another_environment_is_said(pair: Path, tmp_path: Path) -> None:
    run = before_the_end(pair, tmp_path)
    file = run / "checkpoints" / "step-000004" / "state.json"
    state = json.loads(file.read_text())
    state["environment"]["torch"] = "2.0.0"
    file.write_text(json.dumps(state))
    ended = resume(tmp_path)
    assert ended.status == 0
    assert "warning: torch was 2.0.0 and is" in ended.out
    assert "threads was" not in ended.out


def test_a_log_that_lost_lines_is_refused(pair: Path, tmp_path: Path) -> None:
    run = before_the_end(pair, tmp_path)
    (run / "rounds.jsonl").write_text("")
    assert_stopped(resume(tmp_path), f"{run}/rounds.jsonl has 0 bytes", "start a new run")
