"""Worker processes: limits, what they mean, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
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
from agon.verifiers.pool import IN_VAIN, WorkerPool
from agon.verifiers.worker import MAX_DETAIL

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


@pytest.fixture(scope="module")
def patient() -> Iterator[WorkerPool]:
    """A pool whose time limit no check of these tests reaches on any machine."""
    with WorkerPool(2, 120, 256, modules=["pool_functions"]) as opened:
        yield opened


def only(pool: WorkerPool, function: str, *arguments: str) -> Verdict:
    return pool.map(f"pool_functions.{function}", [arguments])[0]


def test_verdicts_come_in_the_order_of_the_items(patient: WorkerPool) -> None:
    texts = [str(number % 7) for number in range(40)]
    verdicts = patient.map("pool_functions.echo", [(text,) for text in texts])
    assert [verdict.reason for verdict in verdicts] == texts


def test_any_text_survives_the_way_to_the_worker_and_back(patient: WorkerPool) -> None:
    text = 'é∞\n\x00\ud800 "{}\\' * 50
    assert only(patient, "echo", text).reason == text


def test_no_process_starts_before_the_first_item() -> None:
    before = children(os.getpid())
    with WorkerPool(2, SECONDS, 256) as pool:
        assert pool.map("pool_functions.echo", []) == []
        assert children(os.getpid()) == before


def test_a_worker_is_used_again(patient: WorkerPool) -> None:
    assert len({only(patient, "whoami", str(number)).reason for number in range(5)}) == 1


def test_a_worker_imports_neither_torch_nor_the_main_program() -> None:
    with WorkerPool(1, 5, 1024) as pool:
        names = set(only(pool, "modules", "").reason.split())
    assert "math_verify" in names
    assert not names & {"torch", "transformers", "datasets", "pydantic", "pytest"}


@pytest.mark.parametrize("function", ["hang", "hang_in_c"])
def test_a_hanging_check_is_killed_and_wrong(pool: WorkerPool, function: str) -> None:
    begin = time.monotonic()
    verdict = only(pool, function, "x")
    assert verdict == Verdict(Outcome.WRONG, "takes more than 0.6 s to check")
    assert time.monotonic() - begin >= 2 * SECONDS  # both attempts had their time
    assert only(pool, "echo", "next").reason == "next"


def test_others_are_answered_while_a_check_hangs(patient: WorkerPool, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(only, patient, "wait_for", file)
        assert only(patient, "echo", "other").reason == "other"
        assert only(patient, "touch", file).correct  # only this lets the first one end
        assert hanging.result().correct


def test_time_counts_from_the_begin_of_a_check_and_not_from_its_queueing() -> None:
    items = [(f"0.5{'0' * number}",) for number in range(5)]  # in all beyond the limit of 2 s
    with WorkerPool(1, 2, 256, modules=["pool_functions"]) as pool:
        assert all(verdict.correct for verdict in pool.map("pool_functions.sleep", items))


def test_a_memory_hog_is_wrong_and_does_not_harm_the_next_check(patient: WorkerPool) -> None:
    verdicts = [only(patient, "hog", ""), only(patient, "echo", "next")]
    assert verdicts[0] == Verdict(Outcome.WRONG, "takes more than 256 MiB to check")
    assert verdicts[1].reason == "next"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit holds on Linux alone")
def test_without_a_memory_limit_the_address_space_has_none() -> None:
    inherited = resource.getrlimit(resource.RLIMIT_AS)[0]
    with WorkerPool(1, 60, None, modules=["pool_functions"]) as pool:
        assert only(pool, "address_space", "").reason == str(inherited)
    with WorkerPool(1, 60, 300, modules=["pool_functions"]) as pool:
        assert only(pool, "address_space", "").reason == str(300 * 2**20)


@pytest.mark.parametrize(
    ("function", "argument"), [("leave", "0"), ("leave", "7"), ("segfault", "")]
)
def test_an_item_that_ends_its_process_twice_is_wrong(
    patient: WorkerPool, function: str, argument: str
) -> None:
    assert only(patient, function, argument).outcome is Outcome.WRONG
    assert only(patient, "echo", "next").reason == "next"


@pytest.mark.parametrize("kind", ["hang", "leave"])
def test_an_item_that_passes_the_retry_has_its_verdict(
    pool: WorkerPool, tmp_path: Path, kind: str
) -> None:
    assert only(pool, "misbehave_once", kind, str(tmp_path / "marker")).outcome is Outcome.RIGHT


def test_a_contested_verdict_holds_when_it_is_contested_twice(
    patient: WorkerPool, tmp_path: Path
) -> None:
    assert only(patient, "contest", str(tmp_path / "once"), "1").correct
    verdict = only(patient, "contest", str(tmp_path / "always"), "9")
    assert verdict == Verdict(Outcome.WRONG, "time limit", ("time limit",), "1")
    assert (tmp_path / "always").read_text() == "xx"


def retry_lines(log: Path) -> list[list[str]]:
    """The lines of the log from the begin of the retry of `suspect` up to its end."""
    lines = [line.split() for line in log.read_text().splitlines()]
    begins = [place for place, line in enumerate(lines) if line[:2] == ["begin", "suspect"]]
    [end] = [place for place, line in enumerate(lines) if line[:2] == ["end", "suspect"]]
    assert len(begins) == 2
    assert lines[begins[0]][2] != lines[begins[1]][2]  # a fresh worker
    assert len(lines) > end + 1  # others ran before and after it
    assert begins[1] > 2
    return lines[begins[1] : end + 1]


def retry_beside_a_busy_thread(pool: WorkerPool, log: Path) -> None:
    """A check that fails once, while another thread keeps the pool busy before and after it."""
    over = threading.Event()

    def keep_busy() -> None:
        """Ends with checks that were handed over after the retry, however slow the machine is."""
        for number in itertools.count():
            last = over.is_set()
            items = [(str(log), f"item{number}.{part}", "") for part in range(4)]
            verdicts = pool.map("pool_functions.log_both_ends", items)
            assert all(verdict.correct for verdict in verdicts)
            if last:
                return

    with ThreadPoolExecutor() as threads:
        busy = threads.submit(keep_busy)
        assert until(lambda: log.exists() and "end" in log.read_text(), 60)
        try:
            assert only(pool, "log_both_ends", str(log), "suspect", "once").correct
        finally:
            over.set()
        busy.result()


def test_the_retry_runs_alone_in_a_fresh_worker(patient: WorkerPool, tmp_path: Path) -> None:
    retry_beside_a_busy_thread(patient, tmp_path / "log")
    assert len(retry_lines(tmp_path / "log")) == 2  # nothing of others between begin and end


def test_a_flood_of_failing_items_is_retried_side_by_side(
    patient: WorkerPool, tmp_path: Path
) -> None:
    """Each of the last two items ends only when the other's second attempt runs at its side."""
    in_vain = [("leave", f"leave{number}", str(tmp_path)) for number in range(IN_VAIN + 2)]
    meeting = [("meet", name, str(tmp_path)) for name in ("meet1", "meet2")]
    verdicts = patient.map("pool_functions.leave_or_meet", in_vain + meeting)
    assert [verdict.correct for verdict in verdicts] == [0] * len(in_vain) + [1, 1]
    retry_beside_a_busy_thread(patient, tmp_path / "log")
    assert len(retry_lines(tmp_path / "log")) == 2  # the flood is over: alone again


def test_many_hanging_items_in_one_batch_are_all_wrong() -> None:
    items = [(str(number),) for number in range(12)]
    with WorkerPool(4, 0.3, 256, modules=["pool_functions"]) as pool:
        verdicts = pool.map("pool_functions.hang", items)
        assert only(pool, "echo", "next").reason == "next"
    assert {verdict.reason for verdict in verdicts} == {"takes more than 0.3 s to check"}


def test_there_are_never_more_workers_than_the_pool_has(tmp_path: Path) -> None:
    before, most = set(children(os.getpid())), 0
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.is_set():
            most = max(most, len(set(children(os.getpid())) - before))
            time.sleep(0.001)

    items = [("leave", f"leave{number}", str(tmp_path)) for number in range(IN_VAIN + 4)]
    with ThreadPoolExecutor() as threads, WorkerPool(2, 60, 256, ["pool_functions"]) as pool:
        watching = threads.submit(watch)
        pool.map("pool_functions.leave_or_meet", items)
        pool.map("pool_functions.echo", [(str(number),) for number in range(20)])
        over.set()
        watching.result()
    assert 1 <= most <= 2


def test_the_same_item_is_judged_once(patient: WorkerPool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    verdicts = patient.map("pool_functions.log_line", [(str(log), "here")] * 10)
    assert len(verdicts) == 10
    assert all(verdict.correct for verdict in verdicts)
    assert log.read_text() == "here\n"


@pytest.mark.parametrize(
    "function", ["raise_error", "system_exit", "no_verdict", "does_not_exist", "no_module.x"]
)
def test_a_failure_of_the_judge_itself_is_unscored_with_its_traceback(
    patient: WorkerPool, function: str
) -> None:
    verdict = only(patient, function, "the text")
    assert verdict.outcome is Outcome.UNSCORED
    assert function.split(".")[0] in verdict.reason
    assert verdict.detail.startswith("Traceback (most recent call last)")
    if function == "raise_error":
        assert verdict.detail.endswith("ValueError: the text\n")
        assert verdict.detail.count("File ") == 1  # the function's own frame, not the worker's
        assert "pool_functions.py" in verdict.detail
    assert only(patient, "echo", "next").reason == "next"


def test_a_function_that_raises_costs_no_worker(patient: WorkerPool) -> None:
    before = only(patient, "whoami", "1").reason
    for function in ("raise_error", "no_verdict", "does_not_exist"):
        only(patient, function, "x")
    assert only(patient, "whoami", "2").reason == before


def test_a_long_traceback_keeps_its_end_and_a_long_detail_its_begin(patient: WorkerPool) -> None:
    verdict = only(patient, "raise_with_long_text", "100000")
    assert len(verdict.detail) < MAX_DETAIL + 10
    assert verdict.detail.endswith("the end\n")
    assert only(patient, "long_detail", "100000").detail == "x" * MAX_DETAIL


def test_an_error_whose_text_never_comes_is_ended_by_the_limit(pool: WorkerPool) -> None:
    assert only(pool, "raise_slow_text", "x").reason == "takes more than 0.6 s to check"


@pytest.mark.parametrize("outcome", Outcome)
def test_the_whole_verdict_travels(patient: WorkerPool, outcome: Outcome) -> None:
    expected = Verdict(outcome, "the rule", ("passed", "time limit"), "read as 1/2")
    assert only(patient, "in_full", outcome.value) == expected


def test_a_module_that_cannot_be_preloaded_leaves_items_unscored_and_says_why() -> None:
    with WorkerPool(1, SECONDS, 256, modules=["pool_functions", "no_such_module"]) as pool:
        verdict = only(pool, "echo", "a")
    assert verdict.outcome is Outcome.UNSCORED
    assert "no_such_module" in verdict.reason
    assert "ModuleNotFoundError" in verdict.detail


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


def test_a_worker_killed_while_idle_is_replaced_without_a_trace(patient: WorkerPool) -> None:
    os.kill(int(only(patient, "whoami", "x").reason), signal.SIGKILL)
    assert only(patient, "echo", "still here").reason == "still here"


def test_several_threads_get_their_own_verdicts(patient: WorkerPool) -> None:
    def ask(thread: int) -> list[str]:
        items = [(f"{thread}.{number}",) for number in range(25)]
        return [verdict.reason for verdict in patient.map("pool_functions.echo", items)]

    with ThreadPoolExecutor(6) as threads:
        for thread, reasons in enumerate(threads.map(ask, range(6))):
            assert reasons == [f"{thread}.{number}" for number in range(25)]


def test_hundreds_of_coroutines_are_answered_while_one_check_hangs() -> None:
    async def main(pool: WorkerPool) -> tuple[list[list[Verdict]], list[Verdict]]:
        hanging = asyncio.create_task(pool.map_async("pool_functions.hang", [("x",)]))
        calls = [
            pool.map_async("pool_functions.echo", [(f"{number}",), ("same",)])
            for number in range(300)
        ]
        return await asyncio.gather(*calls), await hanging

    with WorkerPool(2, SECONDS, 256, modules=["pool_functions"]) as pool:
        answers, hanging = asyncio.run(main(pool))
    assert [verdict.outcome for verdict in hanging] == [Outcome.WRONG]
    for number, verdicts in enumerate(answers):
        assert [verdict.reason for verdict in verdicts] == [f"{number}", "same"]


def test_the_event_loop_runs_while_a_coroutine_waits(patient: WorkerPool, tmp_path: Path) -> None:
    """The check ends only when the loop itself creates the file."""
    file = tmp_path / "file"

    async def create_late() -> None:
        for _ in range(20):
            await asyncio.sleep(0.01)
        file.touch()

    async def main() -> Verdict:
        waiting = patient.map_async("pool_functions.wait_for", [(str(file),)])
        [verdict], _ = await asyncio.gather(waiting, create_late())
        return verdict

    assert asyncio.run(main()).correct


def test_a_cancelled_call_frees_its_worker_and_drops_what_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main(pool: WorkerPool) -> str:
        items = [(str(log), f"{number}") for number in range(50)]
        call = asyncio.create_task(pool.map_async("pool_functions.log_and_hang", items))
        while not log.exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        [verdict] = await pool.map_async("pool_functions.echo", [("free",)])
        return verdict.reason

    # The limit is longer than a test may take, so only the cancellation can free the worker.
    with WorkerPool(1, 3600, 256, modules=["pool_functions"]) as pool:
        assert asyncio.run(main(pool)) == "free"
    assert log.read_text() == "0\n"


def test_a_coroutine_times_out_at_its_own_limit(patient: WorkerPool, tmp_path: Path) -> None:
    async def main() -> None:
        never = [(str(tmp_path / "never"),)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(patient.map_async("pool_functions.wait_for", never), 0.3)

    asyncio.run(main())
    assert only(patient, "echo", "next").reason == "next"


def test_no_child_is_left_after_close_even_when_a_check_runs(tmp_path: Path) -> None:
    before, log = set(children(os.getpid())), tmp_path / "log"
    pool = WorkerPool(2, 3600, 256, modules=["pool_functions"])
    with ThreadPoolExecutor() as threads:
        running = threads.submit(only, pool, "log_and_hang", str(log), "begun")
        assert until(log.exists, 60)
        pool.close()
        assert running.result().outcome is Outcome.UNSCORED
    pool.close()
    assert set(children(os.getpid())) <= before
    with pytest.raises(RuntimeError):
        only(pool, "echo", "x")


PARENT = """
import sys
from agon.verifiers.pool import IN_VAIN, WorkerPool
from agon.verifiers.worker import MAX_DETAIL
if __name__ == "__main__":
    pool = WorkerPool(2, float(sys.argv[2]), 256, modules=["pool_functions"])
    pool.map("pool_functions.echo", [("warm",)])
    print("ready", flush=True)
    pool.map(f"pool_functions.{sys.argv[1]}", [("30",)])
    sys.stdin.read()
"""


def start_parent(function: str, seconds: float, tmp_path: Path) -> subprocess.Popen[str]:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), function, str(seconds)],
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
    time.sleep(0.3)  # long enough, mostly, for the check to begin; the tests hold without it too
    return parent


@pytest.mark.parametrize("function", ["echo", "hang", "hang_in_c"])
def test_workers_end_when_their_parent_is_killed(function: str, tmp_path: Path) -> None:
    parent = start_parent(function, 3, tmp_path)
    parent.send_signal(signal.SIGSTOP)  # so that it replaces no worker between the two lines
    workers = children(parent.pid)
    parent.kill()
    parent.communicate()
    assert until(lambda: not any(alive(worker) for worker in workers), 60)
    assert workers or function != "echo"  # a hanging one may be between two workers


def test_an_interrupt_from_the_terminal_waits_for_no_check_and_shows_no_worker_traceback(
    tmp_path: Path,
) -> None:
    parent = start_parent("hang", 3600, tmp_path)
    workers = children(parent.pid)
    assert workers
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=120)
    assert errors.count("Traceback") == 1  # the parent's own
    assert "worker.py" not in errors
    assert until(lambda: not any(alive(worker) for worker in workers), 60)


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


def test_gold_answers_are_judged_in_order_in_process_or_by_a_worker() -> None:
    golds = ["5", r"\frac{1}{2}", "", "Yes"]
    problems = [Problem(gold, "?", gold, "math") for gold in golds]
    with PooledJudge(VerifierConfig(workers=1)) as judge:
        verdicts = judge.judge_golds(problems)
    assert [verdict.correct for verdict in verdicts] == [1, 1, 0, 1]


EASY = [
    ("42", "42", 1),
    ("42", "43", 0),
    ("1,234", "1234", 1),
    ("-7", "+7", 0),
    ("007", "7", 1),
    ("10" * 90, "10" * 90, 1),
    (r"\frac{x^2}{2}", r"\frac{x^2}{2}", 1),
    (r"$\text{Yes}$", "yes.", 1),
    ("No", "Yes", 0),
    (r"\sqrt{2}", "", 0),
    (r"\sqrt{2}", "{" * 1_000_000, 0),
]


def test_easy_pairs_never_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker can start here, so whatever needs one is unscored."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    items = [(Problem("p", "?", gold, "math"), answer) for gold, answer, _ in EASY]
    with PooledJudge(VerifierConfig(workers=1)) as judge:
        verdicts = judge.judge(items)
        hard = judge.judge([(Problem("p", "?", r"\sqrt{2}", "math"), r"2^{1/2}")])
        awaited = asyncio.run(judge.judge_async(items))
    assert [(v.scored, v.correct) for v in verdicts] == [(True, right) for *_, right in EASY]
    assert awaited == verdicts
    assert [verdict.outcome for verdict in hard] == [Outcome.UNSCORED]  # the premise holds


def test_a_coroutine_gets_the_same_verdicts_as_a_thread() -> None:
    countdown = Problem("c", "make 22 from 3,5,7", "22 from 3,5,7", "countdown")
    maths = Problem("m", "?", r"\frac{1}{2}", "math")
    items = [(maths, "0.5"), (countdown, "5*3+7"), (maths, r"\frac{x}{y}"), (maths, None)]
    with PooledJudge(VerifierConfig(workers=2)) as judge:
        expected = judge.judge(items)

        async def main() -> list[list[Verdict]]:
            return await asyncio.gather(*(judge.judge_async(items) for _ in range(30)))

        assert asyncio.run(main()) == [expected] * 30
    assert [verdict.correct for verdict in expected] == [1, 1, 0, 0]
