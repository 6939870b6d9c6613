"""Worker processes: limits, what they mean, and that nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agon.config import VerifierConfig
from agon.records import Outcome, Problem, Verdict
from agon.verifiers import PooledJudge
from agon.verifiers.base import NO_ANSWER
from agon.verifiers.pool import WorkerPool

SECONDS = 0.6


def children(parent: int) -> list[int]:
    """The living child processes of a process, zombies left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(ppid) == parent and state != "Z":
            found.append(int(entry.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, SECONDS, 256, modules=["pool_functions"]) as opened:
        opened.map("pool_functions.echo", [("warm",), ("up",)])
        yield opened


def only(pool: WorkerPool, function: str, *arguments: str) -> Verdict:
    return pool.map(f"pool_functions.{function}", [arguments])[0]


def test_verdicts_come_in_the_order_of_the_items(pool: WorkerPool) -> None:
    texts = [str(number % 7) for number in range(40)]
    verdicts = pool.map("pool_functions.echo", [(text,) for text in texts])
    assert [verdict.reason for verdict in verdicts] == texts


def test_any_text_survives_the_way_to_the_worker_and_back(pool: WorkerPool) -> None:
    text = 'é∞\n\x00\ud800 "{}\\' * 50
    assert only(pool, "echo", text).reason == text


def test_no_process_starts_before_the_first_item() -> None:
    before = children(os.getpid())
    with WorkerPool(2, SECONDS, 256) as pool:
        assert pool.map("pool_functions.echo", []) == []
        assert children(os.getpid()) == before


def test_a_worker_is_used_again(pool: WorkerPool) -> None:
    assert len({only(pool, "whoami", str(number)).reason for number in range(5)}) == 1


def test_a_worker_imports_neither_torch_nor_the_main_program() -> None:
    with WorkerPool(1, 5, 1024) as pool:
        names = set(only(pool, "modules", "").reason.split())
    assert "math_verify" in names
    assert not names & {"torch", "transformers", "datasets", "pydantic", "pytest"}


@pytest.mark.parametrize("function", ["hang", "hang_in_c"])
def test_a_hanging_check_is_killed_in_time_while_others_are_answered(
    pool: WorkerPool, function: str
) -> None:
    begin = time.monotonic()
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(only, pool, function, "x")
        time.sleep(0.1)
        assert only(pool, "echo", "other").reason == "other"
        assert not hanging.done()
        verdict = hanging.result()
    assert verdict.outcome is Outcome.WRONG
    assert "0.6 s" in verdict.reason
    starts = 2  # the fresh worker of the retry may have to start, and the check runs twice
    assert time.monotonic() - begin < 2 * (SECONDS + 1) + starts


def test_one_attempt_ends_within_a_second_of_its_limit(pool: WorkerPool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    only(pool, "log_times", "hang", str(log))
    begins = [float(line.split()[3]) for line in log.read_text().splitlines()]
    assert len(begins) == 2
    assert begins[1] - begins[0] >= SECONDS
    assert time.monotonic() - begins[1] < SECONDS + 1


def test_time_counts_from_the_begin_of_a_check_and_not_from_its_queueing(
    pool: WorkerPool,
) -> None:
    each, count = 0.7 * SECONDS, 6  # in all far beyond the limit, each within it
    items = [(f"{each}{'0' * number}",) for number in range(1, count + 1)]
    assert all(verdict.correct for verdict in pool.map("pool_functions.sleep", items))


def test_a_memory_hog_is_wrong_and_does_not_harm_the_next_check(pool: WorkerPool) -> None:
    verdicts = [only(pool, "hog", ""), only(pool, "echo", "next")]
    assert verdicts[0] == Verdict(Outcome.WRONG, "takes more than 256 MiB to check")
    assert verdicts[1].reason == "next"


@pytest.mark.parametrize(
    ("function", "argument"), [("leave", "0"), ("leave", "7"), ("segfault", "")]
)
def test_an_item_that_ends_its_process_twice_is_wrong(
    pool: WorkerPool, function: str, argument: str
) -> None:
    assert only(pool, function, argument).outcome is Outcome.WRONG
    assert only(pool, "echo", "next").reason == "next"


@pytest.mark.parametrize("kind", ["hang", "leave"])
def test_an_item_that_passes_the_retry_has_its_verdict(
    pool: WorkerPool, tmp_path: Path, kind: str
) -> None:
    assert only(pool, "misbehave_once", kind, str(tmp_path / "marker")).outcome is Outcome.RIGHT


def test_the_retry_runs_alone_in_a_fresh_worker(pool: WorkerPool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    over = threading.Event()

    def keep_busy() -> None:
        """Ends with a check that was handed over after the retry, however slow the machine is."""
        for number in itertools.count():
            last = over.is_set()
            items = [(f"item{number}.{part}", str(log)) for part in range(4)]
            assert all(verdict.correct for verdict in pool.map("pool_functions.log_times", items))
            if last:
                return

    with ThreadPoolExecutor() as threads:
        busy = threads.submit(keep_busy)
        assert until(lambda: log.exists() and "end" in log.read_text(), 30)
        try:
            assert only(pool, "log_times", "hang", str(log)).outcome is Outcome.WRONG
        finally:
            over.set()
        busy.result()
    lines = [line.split() for line in log.read_text().splitlines()]
    first, second = (line for line in lines if line[1] == "hang")
    assert first[2] != second[2]
    begin = float(second[3])
    begins = {line[1]: float(line[3]) for line in lines if line[0] == "begin"}
    ends = {line[1]: float(line[3]) for line in lines if line[0] == "end"}
    assert any(end < begin for end in ends.values())
    assert any(begins[name] > begin for name in ends)
    for name, end in ends.items():  # the retry lasts SECONDS; half of it leaves room for a lag
        assert end < begin or begins[name] > begin + SECONDS / 2


def test_the_same_item_is_judged_once(pool: WorkerPool) -> None:
    begin = time.monotonic()
    verdicts = pool.map("pool_functions.sleep", [("0.4",)] * 10)
    assert all(verdict.correct for verdict in verdicts)
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize("function", ["raise_error", "system_exit", "does_not_exist"])
def test_a_failure_of_the_judge_itself_is_unscored(pool: WorkerPool, function: str) -> None:
    assert only(pool, function, "x").outcome is Outcome.UNSCORED
    assert only(pool, "echo", "next").reason == "next"


def test_a_worker_that_cannot_start_leaves_items_unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with WorkerPool(2, SECONDS, 256) as pool:
        verdicts = pool.map("pool_functions.echo", [("a",), ("b",)])
    assert [verdict.outcome for verdict in verdicts] == [Outcome.UNSCORED] * 2
    assert "cannot start" in verdicts[0].reason


def test_a_memory_limit_below_the_libraries_own_need_is_unscored_and_says_so() -> None:
    with WorkerPool(1, SECONDS, 40) as pool:
        verdict = only(pool, "echo", "a")
    assert verdict.outcome is Outcome.UNSCORED
    assert "verifier.memory_mib" in verdict.reason


def test_the_smallest_memory_setting_suffices_for_mathematics() -> None:
    with WorkerPool(1, 5, 128) as pool:
        verdict = pool.map("agon.verifiers.maths.verify", [(r"\frac{1}{2}", "0.5")])[0]
    assert verdict.outcome is Outcome.RIGHT


def test_a_worker_killed_while_idle_is_replaced_without_a_trace(pool: WorkerPool) -> None:
    os.kill(int(only(pool, "whoami", "x").reason), signal.SIGKILL)
    assert only(pool, "echo", "still here").reason == "still here"


def test_several_threads_get_their_own_verdicts(pool: WorkerPool) -> None:
    def ask(thread: int) -> list[str]:
        items = [(f"{thread}.{number}",) for number in range(25)]
        return [verdict.reason for verdict in pool.map("pool_functions.echo", items)]

    with ThreadPoolExecutor(6) as threads:
        for thread, reasons in enumerate(threads.map(ask, range(6))):
            assert reasons == [f"{thread}.{number}" for number in range(25)]


def test_no_child_is_left_after_close_even_when_a_check_runs() -> None:
    before = set(children(os.getpid()))
    pool = WorkerPool(2, 30, 256, modules=["pool_functions"])
    with ThreadPoolExecutor() as threads:
        running = threads.submit(only, pool, "hang", "x")
        assert until(lambda: bool(set(children(os.getpid())) - before), 10)
        time.sleep(0.5)
        pool.close()
        assert running.result().outcome is Outcome.UNSCORED
    pool.close()
    assert set(children(os.getpid())) <= before
    with pytest.raises(RuntimeError):
        only(pool, "echo", "x")


PARENT = """
import sys
from agon.verifiers.pool import WorkerPool
if __name__ == "__main__":
    pool = WorkerPool(2, 1.5, 256, modules=["pool_functions"])
    pool.map("pool_functions.echo", [("warm",)])
    print("ready", flush=True)
    pool.map(f"pool_functions.{sys.argv[1]}", [("30",)])
    sys.stdin.read()
"""


def start_parent(function: str, tmp_path: Path) -> subprocess.Popen[str]:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), function],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        process_group=0,
        # A test run in the background ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    time.sleep(0.3)
    return parent


@pytest.mark.parametrize("function", ["echo", "hang", "hang_in_c"])
def test_workers_end_when_their_parent_is_killed(function: str, tmp_path: Path) -> None:
    parent = start_parent(function, tmp_path)
    workers = children(parent.pid)
    assert workers
    parent.kill()
    parent.communicate()
    assert until(lambda: not any(alive(worker) for worker in workers), 1.5 + 1)


def test_an_interrupt_from_the_terminal_shows_no_worker_traceback(tmp_path: Path) -> None:
    parent = start_parent("hang", tmp_path)
    workers = children(parent.pid)
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=15)
    assert errors.count("Traceback") == 1  # the parent's own
    assert "worker.py" not in errors
    assert until(lambda: not any(alive(worker) for worker in workers), 3)


def test_the_judge_sends_each_item_to_the_verifier_that_its_problem_names() -> None:
    countdown = Problem("c", "make 22 from 3,5,7", "22 from 3,5,7", "countdown")
    maths = Problem("m", "?", r"\frac{1}{2}", "math")
    before = set(children(os.getpid()))
    with PooledJudge(VerifierConfig(workers=1)) as judge:
        verdicts = judge.judge(
            [(countdown, "5*3+7"), (countdown, "5+3+7"), (maths, r"\frac{1}{2}"), (maths, None)]
        )
        assert set(children(os.getpid())) <= before  # no worker is needed for these
        assert [verdict.correct for verdict in verdicts] == [1, 0, 1, 0]
        assert verdicts[3] == NO_ANSWER
        mixed = judge.judge([(maths, "0.5"), (countdown, "5*3+7"), (maths, "0.6"), (maths, "")])
        assert [verdict.correct for verdict in mixed] == [1, 1, 0, 0]
        assert not judge.judge([(countdown, " " * 10_000 + "5*3+7")])[0].correct


def test_a_gold_answer_that_equals_itself_as_text_alone_is_no_gold_answer() -> None:
    golds = ["5", r"\frac{1}{2}", "Yes", r"\frac{1", "9^{9^{9}}"]
    problems = [Problem(gold, "?", gold, "math") for gold in golds]
    with PooledJudge(VerifierConfig(workers=1)) as judge:
        verdicts = judge.judge_golds(problems)
    assert [verdict.correct for verdict in verdicts] == [1, 1, 1, 0, 0]
