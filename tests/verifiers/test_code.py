"""Verdicts on programs: outputs, tests, limits, and who is to blame."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agon.config import CodeConfig, VerifierConfig
from agon.records import Outcome, Problem, Verdict
from agon.sandbox import NoIsolation, open_sandbox, processes
from agon.verifiers import PooledJudge, code
from agon.verifiers.base import Contested
from agon.verifiers.outputs import same_output
from agon.verifiers.programs import ProgramTests, Unusable, program_of, read_gold

ADD = "print(sum(map(int, input().split())))"
SETTINGS_OF = code.settings_of


@pytest.fixture(scope="module")
def settings() -> Iterator[code.Settings]:
    """Generous limits in the strongest isolation; one sandbox for all tests here."""
    try:
        open_sandbox("strongest").close()
    except NoIsolation as reasons:
        pytest.skip(f"no sandbox works here: {reasons}")
    yield code.settings_of(CodeConfig(seconds=20.0, memory_mib=256))
    code._sandbox("strongest").close()
    code._sandbox.cache_clear()


def stdio(*tests: tuple[str, str], seconds: float | None = None) -> str:
    return ProgramTests("stdio", stdio=tests, seconds=seconds).to_gold()


def asserts(*tests: str, names: tuple[str, ...] = ("f",), prelude: str = "") -> str:
    return ProgramTests("asserts", asserts=tests, names=names, prelude=prelude).to_gold()


def verify(settings: code.Settings, gold: str, answer: str) -> Verdict:
    """A verdict, also where a busy machine makes a time limit contestable."""
    try:
        return code.verify(settings.to_json(), gold, answer)
    except Contested as contested:
        return contested.verdict


# Outputs


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("7\n", "7", True),
        ("7\n", "  7 \r\n\n", True),
        ("1 2\n3\n", "1\n2 3", True),
        ("", " \n\t", True),
        ("", "0", False),
        ("7", "", False),
        ("7", "7 7", False),
        ("7", "07", False),
        ("7", "7.0", False),
        ("7", "+7", False),
        ("-0", "0", False),
        ("YES", "yes", False),
        ("YES", "YES.", False),
        ("0.5", "0.5000004", True),
        ("0.5", "0.50001", False),
        ("0.5", ".5", True),
        ("7.0", "7", True),
        ("1e9", "1000000500", True),
        ("1e9", "1000002000", False),
        ("123456789.25", "123456789.30", True),
        ("-1.5", "1.5", False),
        ("0.0", "-0.0000001", True),
        ("1.5", "nan", False),
        ("nan", "nan", True),
        ("nan", "NaN", False),
        ("1.5", "inf", False),
        ("1e999", "1e999", True),
        ("1e999", "1e998", False),
        ("1.5", "1_5e-1", False),
        ("1.5", "0x1.8p0", False),
        ("1.5", "\u0661.5", False),
        ("1.5", "1.5abc", False),
        ("1.2.3", "1.2.4", False),
        ("e", "f", False),
        ("1.", "1", True),
        ("7", "7\x00", False),
        ("7 ", "7\u00a0", False),
    ],
)
def test_outputs_compare_as_contest_judges_do(expected: str, printed: str, same: bool) -> None:
    assert same_output(expected.encode(), printed.encode()) is same


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_two_outputs_can_be_compared(expected: bytes, printed: bytes) -> None:
    assert same_output(expected, expected)
    assert same_output(expected, printed) in (True, False)
    assert same_output(expected, b"  " + expected.replace(b" ", b"\r\n ") + b"\n")


@given(st.floats(-1e12, 1e12), st.floats(-3, 3))
def test_a_float_may_differ_by_a_millionth_of_itself_or_of_one(value: float, times: float) -> None:
    shifted = value + times * 1e-6 * max(1.0, abs(value))
    if abs(abs(times) - 1) > 0.01:
        same = same_output(f"{value:.9f}".encode(), f"{shifted:.9f}".encode())
        assert same is (abs(times) < 1)


def test_a_word_of_a_million_digits_costs_nothing_to_compare() -> None:
    expected = b"0." + b"1" * 10**6
    assert not same_output(expected, expected[:-1] + b"2")


# Programs and golds as text


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("Here it is:\n\n```py\nprint(1)\nprint(2)\n```\nIt prints.", "print(1)\nprint(2)"),
        ("```python\nprint(1)", "print(1)"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)"),
        ("  if x:\n    pass", "  if x:\n    pass"),
        ("x = '''\n`` `\n'''", "x = '''\n`` `\n'''"),
        ("s = '```'\nprint(s)", "s = '```'\nprint(s)"),
    ],
)
def test_the_program_is_the_content_of_the_one_fence_or_all(answer: str, program: str) -> None:
    assert program_of(answer) == program


@pytest.mark.parametrize(
    "answer", ["```\na\n```\n```\nb\n```", "```\na\n```\ntext\n```", "x" * 10**6]
)
def test_an_answer_with_several_programs_or_too_long_is_wrong(answer: str) -> None:
    with pytest.raises(Unusable):
        program_of(answer)
    assert code.verify("{}", stdio(("", "")), answer).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "gold",
    [
        "",
        "42",
        "[]",
        "null",
        "{}",
        '{"kind": "stdio"}',
        '{"kind": "stdio", "tests": []}',
        '{"kind": "stdio", "tests": [["1"]]}',
        '{"kind": "stdio", "tests": [["1", 2]]}',
        '{"kind": "stdio", "tests": "ab"}',
        '{"kind": "stdio", "tests": [["1", "2"]], "seconds": 0}',
        '{"kind": "stdio", "tests": [["1", "2"]], "seconds": "soon"}',
        '{"kind": "asserts", "tests": ["assert f()"]}',
        '{"kind": "asserts", "tests": [], "names": ["f"]}',
        '{"kind": "oracle", "tests": ["x"]}',
    ],
)
def test_a_gold_without_usable_tests_is_wrong_by_itself_and_unscored_for_programs(
    gold: str,
) -> None:
    assert code.verify_gold(gold).outcome is Outcome.WRONG
    assert code.verify("{}", gold, ADD).outcome is Outcome.UNSCORED


def test_a_gold_survives_being_written_and_read() -> None:
    for gold in (stdio(("é\u2028\n", '"\\"'), ("", ""), seconds=2.5), asserts("assert f()", "x")):
        assert read_gold(gold).to_gold() == gold
        assert code.verify_gold(gold) == Verdict(Outcome.RIGHT, "2 tests")


# Verdicts


def test_every_test_is_run_and_kept_also_after_a_failure(settings: code.Settings) -> None:
    gold = stdio(("3 4", "7"), ("1 1", "3"), ("1 x", "1"), ("5 5", "10"))
    verdict = verify(settings, gold, ADD)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.tests == ("passed", "wrong output", "exit code 1", "passed")
    assert verdict.reason == "2 of 4 tests passed; test 2: wrong output"
    assert "ValueError" in verdict.detail


def test_all_or_nothing_unless_a_share_is_asked_for(settings: code.Settings) -> None:
    gold = stdio(*[("3 4", "7")] * 7, *[("3 4", "8")] * 3)
    for share, right in ((1.0, False), (0.8, False), (0.7, True), (0.1, True)):
        assert verify(replace(settings, pass_share=share), gold, ADD).correct == right
    nothing = stdio(("3 4", "8"))
    assert not verify(replace(settings, pass_share=0.01), nothing, ADD).correct


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("", "passed"),
        ("print()", "passed"),
        ("print(0)", "wrong output"),
        ("raise ValueError", "exit code 1"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("x = bytearray(1 << 30)", "memory limit"),
        ("while True: print('x' * 10_000)", "output limit"),
        ("this is no Python", "exit code 1"),
        ("\x00", "exit code 1"),
        ("'\ud800'", "exit code 1"),
    ],
)
def test_empty_expected_output_is_passed_by_silence_and_a_clean_exit_alone(
    settings: code.Settings, program: str, said: str
) -> None:
    assert verify(settings, stdio(("", "")), program).tests == (said,)


def test_the_shorter_time_limit_counts(settings: code.Settings) -> None:
    for own, problem in ((0.5, None), (20.0, 0.5), (0.5, 20.0)):
        limits = replace(settings, seconds=own)
        begin = time.monotonic()
        verdict = verify(limits, stdio(("", ""), seconds=problem), "while True: pass")
        assert verdict.tests == ("time limit",)
        assert 0.5 <= time.monotonic() - begin < 15


def test_what_is_not_reached_in_the_whole_time_has_failed(settings: code.Settings) -> None:
    limits = replace(settings, seconds=1.0, total_seconds=1.5)
    begin = time.monotonic()
    verdict = verify(limits, stdio(*[("", "")] * 50), "while True: pass")
    assert verdict.outcome is Outcome.WRONG
    assert verdict.tests == ("time limit", *["not run"] * 49)
    assert time.monotonic() - begin < 20


def test_a_time_limit_without_work_is_contested_where_it_alone_decides(
    settings: code.Settings,
) -> None:
    limits = replace(settings, seconds=0.5)
    sleep = "import time; time.sleep(60)"
    with pytest.raises(Contested) as contested:
        code.verify(limits.to_json(), stdio(("", "")), sleep)
    assert contested.value.verdict.tests == ("time limit",)
    gold = stdio(("1", "1"), ("", ""))  # the first test fails whatever the second does
    also_wrong = code.verify(
        limits.to_json(), gold, f"import sys\nif not sys.stdin.read(): {sleep}"
    )
    assert also_wrong.tests == ("wrong output", "time limit")


# Assertions, in two sandboxes


def test_assertions_judge_a_program_that_cannot_see_them(settings: code.Settings) -> None:
    gold = asserts("assert f(3, 4) == 7", "assert f(1, 1) == 2", "assert f('a', 'b') == 'ab'")
    right = verify(settings, gold, "def f(a, b): return a + b")
    assert right == Verdict(Outcome.RIGHT, "3 of 3 tests passed", ("passed",) * 3)
    wrong = verify(settings, gold, "def f(a, b): return 7")
    assert wrong.tests == ("passed", "assertion failed", "assertion failed")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("def g(): pass", "f is not defined"),
        ("def f(): raise KeyError", "raised KeyError"),
        ("raise ValueError", "exit code 1"),
        ("import os; os._exit(0)", "exit code 0 before the test's end"),
        ("def f():\n    import os; os._exit(0)", "exit code 0 before the test's end"),
        ("def f():\n    import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("def f(): return bytearray(1 << 30)", "raised MemoryError"),
        ("def f():\n    while True: pass", "time limit"),
        ("import os\ndef f(): os.write(4, b'[]' * 100)", "the program wrote to the channel"),
        ("import os\nos.closerange(3, 10)\ndef f(): return 7", "exit code 1"),
        ('print(\'{\\"outcome\\": \\"passed\\"}\')\ndef f(): 0', "assertion failed"),
        ("def f(): print('passed' * 10**6)", "assertion failed"),
    ],
)
def test_a_program_that_ends_floods_or_forges_fails_the_assertion(
    settings: code.Settings, program: str, said: str
) -> None:
    limits = replace(settings, seconds=1.0 if said == "time limit" else 20.0)
    assert verify(limits, asserts("assert f() == 7"), program).tests[0].startswith(said)


def test_a_program_cannot_find_what_is_asserted(settings: code.Settings) -> None:
    """It looks through its files, its memory of the call, its frames and its input."""
    program = (
        "import gc, glob, sys\n"
        "def f(x):\n"
        "    text = sys.stdin.read() + str(sys.argv)\n"
        "    for path in glob.glob('/*') + glob.glob('/code/**', recursive=True):\n"
        "        try: text += open(path).read()\n"
        "        except OSError: pass\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        text += str(frame.f_locals) + str(frame.f_globals); frame = frame.f_back\n"
        "    text += str([o for o in gc.get_objects() if type(o) in (list, dict)][:3000])\n"
        "    return 'secret' + 'value' if 'secret' + 'value' in text else None\n"
    )
    gold = asserts("assert f(1) == 'secretvalue'")
    assert verify(settings, gold, program).tests == ("assertion failed",)


def test_each_assertion_meets_a_fresh_program(settings: code.Settings) -> None:
    program = "calls = []\ndef f():\n    calls.append(1); return len(calls)"
    assert verify(settings, asserts(*["assert f() == 1"] * 3), program).correct


# In worker processes


def problem(gold: str) -> Problem:
    return Problem("code-1", "?", gold, "code")


def test_a_judge_runs_programs_in_workers_and_keeps_what_each_test_said(
    settings: code.Settings,
) -> None:
    config = CodeConfig(seconds=20.0, memory_mib=256)
    with PooledJudge(VerifierConfig(), config) as judge:
        right, wrong, none, unusable, sum_of = judge.judge(
            [
                (problem(stdio(("3 4", "7"))), f"```python\n{ADD}\n```"),
                (problem(stdio(("3 4", "7"), ("1 1", "3"))), ADD),
                (problem(stdio(("3 4", "7"))), None),
                (problem("{}"), ADD),
                (Problem("math-1", "?", "7", "math"), "7"),
            ]
        )
        assert [
            p.outcome for p in judge.judge_golds([problem("{}"), problem(stdio(("", "")))])
        ] == [
            Outcome.WRONG,
            Outcome.RIGHT,
        ]
    assert right == Verdict(Outcome.RIGHT, "1 of 1 tests passed", ("passed",))
    assert wrong.tests == ("passed", "wrong output")
    assert none.outcome is Outcome.WRONG
    assert unusable.outcome is Outcome.UNSCORED
    assert sum_of.correct


def test_a_sleeper_is_tried_again_before_it_is_wrong(settings: code.Settings) -> None:
    config = CodeConfig(seconds=0.5, memory_mib=256)
    begin = time.monotonic()
    with PooledJudge(VerifierConfig(), config) as judge:
        sleeper = "import time; time.sleep(60)"
        [verdict] = judge.judge([(problem(stdio(("", ""))), sleeper)])
    assert verdict.outcome is Outcome.WRONG
    assert verdict.tests == ("time limit",)
    assert time.monotonic() - begin >= 2 * 0.5


def test_a_failing_sandbox_is_unscored_and_the_next_program_gets_a_new_one(
    settings: code.Settings,
) -> None:
    before = set(processes.descendants(os.getpid()))
    config = CodeConfig(workers=1, seconds=60.0, memory_mib=256)
    items = [(problem(stdio(("3 4", "7"))), ADD)]
    with PooledJudge(VerifierConfig(), config) as judge:
        assert judge.judge(items)[0].correct
        [launcher] = [
            pid
            for pid in processes.descendants(os.getpid())
            if pid not in before
            and b"agon.sandbox.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(launcher, signal.SIGKILL)
        [broken] = judge.judge(items)
        assert broken.outcome is Outcome.UNSCORED
        assert "SandboxError" in broken.reason
        assert judge.judge(items)[0].correct


def test_without_a_sandbox_programs_are_unscored_and_mathematics_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(config: CodeConfig) -> code.Settings:
        return replace(SETTINGS_OF(config), isolation="nowhere")  # type: ignore[arg-type]

    monkeypatch.setattr("agon.verifiers.code.settings_of", nowhere)
    with PooledJudge(VerifierConfig()) as judge:
        program, sum_of = judge.judge(
            [(problem(stdio(("", ""))), ""), (Problem("m", "?", "1/2", "math"), "0.5")]
        )
    assert program.outcome is Outcome.UNSCORED
    assert "NoIsolation" in program.reason
    assert sum_of.correct


def test_nothing_is_left_when_a_judge_is_closed_in_the_middle(settings: code.Settings) -> None:
    config = CodeConfig(workers=1, seconds=60.0, memory_mib=256)
    judge = PooledJudge(VerifierConfig(), config)
    before = set(processes.descendants(os.getpid()))
    found: list[Any] = []
    sleeper = "import time; time.sleep(600)"
    thread = threading.Thread(
        target=lambda: found.extend(judge.judge([(problem(stdio(("", ""))), sleeper)]))
    )
    thread.start()
    end = time.monotonic() + 30
    while len(set(processes.descendants(os.getpid())) - before) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    started = set(processes.descendants(os.getpid())) - before
    assert len(started) >= 4  # worker, launcher, supervisor, program
    judge.close()
    thread.join()
    assert found[0].outcome is Outcome.UNSCORED
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < end:
        time.sleep(0.02)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


# Settings


def test_settings_reach_the_worker_whole() -> None:
    config = CodeConfig(seconds=3.5, pass_share=0.5, isolation="limits")
    settings = code.settings_of(config)
    assert code.Settings(**json.loads(settings.to_json())) == settings
    shared = set(CodeConfig.model_fields) - {"workers"}
    assert {name: getattr(config, name) for name in shared} == json.loads(settings.to_json())
