"""What is judged when the answer is a program: its tests, its text in the answer block, settings.

A gold answer of this kind is JSON text with the fields

    kind      "stdio": each test is [standard input, expected output]
              "asserts": each test is Python text that fails by raising
    tests     at least one
    seconds   the problem's own time limit for each test, or null
    prelude   (asserts) Python text that runs before each test, without the program
    names     (asserts) the names that tests take from the program

What this module does not do: run anything.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

MAX_PROGRAM_CHARACTERS = 200_000

_FENCE = re.compile(r"^[ \t]*```+[ \t]*[\w+.-]*[ \t\r]*$", re.MULTILINE)


class Unusable(ValueError):
    """What is wrong with a gold answer or a program's text."""


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """A gold answer, read.

    Attributes:
        kind: How tests are run.
        stdio: (standard input, expected output) of each test.
        asserts: Python text of each test.
        seconds: The problem's own limit for each test; None has none.
        prelude: Runs before each assert test.
        names: What assert tests take from the program.
    """

    kind: Literal["stdio", "asserts"]
    stdio: tuple[tuple[str, str], ...] = ()
    asserts: tuple[str, ...] = ()
    seconds: float | None = None
    prelude: str = ""
    names: tuple[str, ...] = ()

    def to_gold(self) -> str:
        """As the JSON text of `Problem.gold`."""
        values: dict[str, Any] = {"kind": self.kind}
        if self.kind == "asserts":
            values |= {"prelude": self.prelude, "names": self.names, "tests": self.asserts}
        else:
            values["tests"] = self.stdio
        return json.dumps({**values, "seconds": self.seconds}, ensure_ascii=False)

    @property
    def count(self) -> int:
        """How many tests there are."""
        return len(self.stdio) + len(self.asserts)


def read_gold(gold: str) -> ProgramTests:
    """The tests of a gold answer.

    Raises:
        Unusable: It is not of the module's form, or has no test.
    """
    try:
        values = json.loads(gold)
        kind, tests, seconds = values["kind"], values["tests"], values.get("seconds")
        if seconds is not None and not 0 < float(seconds) < float("inf"):
            raise Unusable(f"a time limit of {seconds} s")
        if kind == "stdio":
            read = ProgramTests("stdio", stdio=tuple((_text(a), _text(b)) for a, b in tests))
        elif kind == "asserts":
            read = ProgramTests(
                "asserts",
                asserts=tuple(map(_text, tests)),
                prelude=_text(values.get("prelude", "")),
                names=tuple(map(_text, values["names"])),
            )
        else:
            raise Unusable(f"tests of the kind {kind!r}, expected stdio or asserts")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, Unusable):
            raise
        raise Unusable(f"tests that cannot be read ({type(error).__name__}: {error})") from error
    if read.count == 0:
        raise Unusable("no tests")
    limit = None if seconds is None else float(seconds)
    return ProgramTests(read.kind, read.stdio, read.asserts, limit, read.prelude, read.names)


def program_of(answer: str) -> str:
    """The program in an answer block: the content of its one code fence, or all of it.

    A fence is a line of three backticks, with or without a language's name. Text around the one
    fenced part is ignored; an opening fence that is not closed ends with the answer.

    Raises:
        Unusable: There are several fenced parts, or the program is too long.
    """
    fences = list(_FENCE.finditer(answer))
    if len(fences) > 2:
        raise Unusable("several fenced programs")
    if fences:
        end = fences[1].start() if len(fences) == 2 else len(answer)
        answer = answer[fences[0].end() : end]
    if len(answer) > MAX_PROGRAM_CHARACTERS:
        raise Unusable(f"a program of more than {MAX_PROGRAM_CHARACTERS} characters")
    return answer.strip("\r\n")


def encode_text(text: str) -> bytes:
    """UTF-8; half characters, which no file can hold, as bytes that Python refuses."""
    return text.encode("utf-8", "surrogatepass")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, expected text")
    return value
