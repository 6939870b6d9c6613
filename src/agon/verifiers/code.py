"""Programs: right when they pass their tests, each run on its own in a sandbox.

Runs in a worker process of the pool of `[code]`, which keeps one sandbox for all its programs.
Every test is run, also after a failure, until the program's whole time is up. What each said is
in `Verdict.tests`:

    passed                     wrong output, assertion failed, raised X
    exit code N, killed by S   the main process ended so, whatever it printed before
    time limit, memory limit, process limit, file limit, output limit
    not run                    the program's whole time was up before

A failure of the sandbox is never the program's: it is raised, and so unscored.

What this module does not do: isolate (`agon.sandbox`), or compare outputs (`outputs`).
"""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agon.records import Outcome, Verdict
from agon.sandbox import (
    Ending,
    Isolation,
    Limits,
    Result,
    Sandbox,
    SandboxError,
    open_sandbox,
    read_only,
)
from agon.verifiers.asserts.testing import ENDED
from agon.verifiers.base import Contested
from agon.verifiers.outputs import same_output
from agon.verifiers.programs import ProgramTests, Unusable, encode_text, program_of, read_gold

if TYPE_CHECKING:
    from agon.config import CodeConfig

PASSED, NOT_RUN = "passed", "not run"
LIMITED = (Ending.TIME, Ending.MEMORY, Ending.PROCESSES, Ending.FILES, Ending.OUTPUT)
MARGIN_SECONDS = 30.0
"""What a worker may take beyond the program's whole time: starting the sandbox, late endings."""

SHORTEST_SECONDS = 0.05
"""With less than this left of the whole time, a test is not started."""

BUSY_SHARE = 0.8
"""A program that used less than this share of its time limit as CPU time slept or was starved."""

_ASSERT_MODULES = ("wire", "serving", "testing")
_MAIN = """
import os
from agon.verifiers.asserts.{} import main
main(os.path.dirname(os.path.abspath(__file__)))
"""
_SERVE, _TEST = _MAIN.format("serving").encode(), _MAIN.format("testing").encode()


@dataclass(frozen=True, slots=True)
class Settings:
    """`[code]` as a worker gets it, in JSON; workers do without pydantic."""

    isolation: Isolation
    seconds: float
    total_seconds: float
    memory_mib: int
    processes: int
    output_kib: int
    file_mib: int
    pass_share: float

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))


def settings_of(config: CodeConfig) -> Settings:
    """The settings of a configuration."""
    return Settings(
        config.isolation,
        config.seconds,
        config.total_seconds,
        config.memory_mib,
        config.processes,
        config.output_kib,
        config.file_mib,
        config.pass_share,
    )


def verify(settings: str, gold: str, answer: str) -> Verdict:
    """Run the program of an answer block on every test.

    Raises:
        Contested: It failed by its time limit alone while it hardly used the CPU.
        SandboxError, NoIsolation: The sandbox failed.
    """
    try:
        tests = read_gold(gold)
    except Unusable as fault:
        return Verdict(Outcome.UNSCORED, f"the problem has {fault}")
    try:
        program = program_of(answer)
    except Unusable as fault:
        return Verdict(Outcome.WRONG, str(fault))
    chosen = Settings(**json.loads(settings))
    examiner = _Examiner(_sandbox(chosen.isolation), chosen, tests, encode_text(program))
    try:
        return examiner.verdict()
    except SandboxError:
        examiner.sandbox.close()
        _sandbox.cache_clear()  # the next program gets a new one
        raise


def verify_gold(gold: str) -> Verdict:
    """Whether programs can be judged by a gold answer: it is read, no program is run."""
    try:
        tests = read_gold(gold)
    except Unusable as fault:
        return Verdict(Outcome.WRONG, str(fault))
    return Verdict(Outcome.RIGHT, f"{tests.count} tests")


@functools.lru_cache(maxsize=1)
def _sandbox(isolation: Isolation) -> Sandbox:
    return open_sandbox(isolation)


@functools.cache
def _assert_files() -> dict[str, bytes]:
    """The modules that assert tests need in the sandbox, where no package is installed."""
    folder = Path(__file__).parent / "asserts"
    packages = ("agon", "agon/verifiers", "agon/verifiers/asserts")
    return {f"{package}/__init__.py": b"" for package in packages} | {
        f"{packages[-1]}/{name}.py": (folder / f"{name}.py").read_bytes()
        for name in _ASSERT_MODULES
    }


class _Examiner:
    """One program and its tests."""

    def __init__(
        self, sandbox: Sandbox, settings: Settings, tests: ProgramTests, program: bytes
    ) -> None:
        self.sandbox = sandbox
        self._settings = settings
        self._tests = tests
        self._program = program
        self._end = time.monotonic() + settings.total_seconds
        self._detail = ""
        self._starved = False

    def verdict(self) -> Verdict:
        """Run every test that there is time for."""
        said: list[str] = []
        examine: Callable[[int, Limits], str] = (
            self._by_output if self._tests.kind == "stdio" else self._by_assert
        )
        for number in range(self._tests.count):
            left = self._end - time.monotonic()
            if left < SHORTEST_SECONDS:
                said.append(NOT_RUN)
                continue
            own = min(self._settings.seconds, self._tests.seconds or math.inf)
            outcome = examine(number, self._limits(min(own, left)))
            cut = outcome == Ending.TIME and left < own
            said.append(NOT_RUN if cut else outcome)
        verdict = self._sum_up(said)
        slow = (PASSED, NOT_RUN, Ending.TIME)
        if not verdict.correct and self._starved and all(one in slow for one in said):
            raise Contested(verdict)
        return verdict

    def _sum_up(self, said: list[str]) -> Verdict:
        passed = said.count(PASSED)
        # Compared as counts: 0.7 * 10 is more than 7 in floating point.
        enough = passed >= math.ceil(self._settings.pass_share * len(said) - 1e-9)
        reason = f"{passed} of {len(said)} tests passed"
        if passed < len(said):
            first = next(place for place, one in enumerate(said) if one != PASSED)
            reason += f"; test {first + 1}: {said[first]}"
        outcome = Outcome.RIGHT if enough and passed else Outcome.WRONG
        return Verdict(outcome, reason, tuple(said), self._detail)

    def _limits(self, seconds: float) -> Limits:
        s = self._settings
        return Limits(seconds, s.memory_mib, s.processes, s.output_kib, s.file_mib)

    def _by_output(self, number: int, limits: Limits) -> str:
        stdin, expected = self._tests.stdio[number]
        result = self.sandbox.run(self._program, encode_text(stdin), limits)
        fault = self._fault(result, limits)
        if fault is None and not same_output(encode_text(expected), result.output):
            fault = "wrong output"
        return PASSED if fault is None else fault

    def _by_assert(self, number: int, limits: Limits) -> str:
        case = {
            "prelude": self._tests.prelude,
            "names": self._tests.names,
            "test": self._tests.asserts[number],
        }
        files = _assert_files()
        serving_files = {**files, "main.py": _SERVE, "program.py": self._program}
        testing_files = {**files, "main.py": _TEST}
        text = read_only(json.dumps(case).encode())
        requests, requests_end = os.pipe()
        answers, answers_end = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        runs = []
        try:
            runs.append(
                self.sandbox.start(
                    serving_files,
                    "main.py",
                    nothing,
                    limits,
                    printing=False,
                    further=(requests, answers_end),
                )
            )
            runs.append(
                self.sandbox.start(
                    testing_files, "main.py", text, limits, further=(requests_end, answers)
                )
            )
        except BaseException:
            for running in runs:
                running.close()
            raise
        finally:
            for descriptor in (requests, requests_end, answers, answers_end, nothing, text):
                os.close(descriptor)
        program, testing = runs
        self.sandbox.finish(runs, main=testing)
        return self._assert_outcome(program.result, testing.result, limits)

    def _assert_outcome(self, program: Result, testing: Result, limits: Limits) -> str:
        """The statements' verdict, or how the program ended where it ended too early."""
        ended = f"the program {ENDED}"
        if testing.status.ending is Ending.EXIT and testing.status.code == 0:
            outcome = str(json.loads(testing.output)["outcome"])
            if outcome == PASSED:
                return PASSED
            if outcome != ended:
                self._detail = self._detail or _last_words(program)
                return outcome
        early = program.status.ending is Ending.EXIT and "exit code 0 before the test's end"
        return self._fault(program, limits) or self._fault(testing, limits) or early or ended

    def _fault(self, result: Result, limits: Limits) -> str | None:
        """What is wrong with the way that a run ended; None when it ended well."""
        status = result.status
        fault: str | None = None
        if status.ending in LIMITED:
            fault = status.ending.value
            if status.ending is Ending.TIME and status.cpu < BUSY_SHARE * limits.seconds:
                self._starved = True
        elif status.code is not None and status.code < 0:
            fault = f"killed by {_signal_name(-status.code)}"
        elif status.code:
            said = result.error_tail.rstrip().rpartition(b"\n")[2]
            out_of_memory = said.startswith(b"MemoryError")
            fault = Ending.MEMORY.value if out_of_memory else f"exit code {status.code}"
        if fault is not None:
            self._detail = self._detail or _last_words(result)
        return fault


def _last_words(result: Result) -> str:
    """The end of what a run wrote to stderr, for people."""
    return result.error_tail.decode("utf-8", "replace")[-1500:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
