"""The statements' process: proxies in place of the program's names, then the statements.

Started in the sandbox with the test as JSON on standard input, requests to the program on
descriptor 3 and its answers on descriptor 4. Its own verdict is the one line of JSON on its
standard output, which the program's process has no way to reach.

What this module does not do: trust an answer. Whatever comes is a plain value or an error; a
program that says anything else, or is gone, has failed, and no `except` of a statement hides it.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from agon.verifiers.asserts import wire

ENDED = "ended"
"""The process is over, or has closed its end; how it ended is known outside."""


class ProgramGone(BaseException):
    """The program's process has ended, or has said what it cannot."""


class ProgramError(Exception):
    """An error of the program whose class is not one of Python's own."""


class Client:
    """Our end of the two pipes.

    Attributes:
        broken: Why the program has failed for good; empty while it has not.
    """

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        """Talk over two pipes."""
        self._requests = requests
        self._answers = answers
        self._proxies: dict[int, Proxy] = {}
        self.broken = ""

    def names(self) -> set[str]:
        """The names that the program has defined, which it says first."""
        match self._receive():
            case ["ready", list(names)]:
                return {name for name in names if isinstance(name, str)}
        raise self._gone("did not start")

    def ask(self, kind: str, *operands: Any) -> Any:
        """The program's answer to a request.

        Raises:
            Exception: What the program raised, by the name of Python's own class.
            ProgramGone: It does not answer.
        """
        encoded = [wire.encode(operand, _number) for operand in operands]
        self._send([kind, *encoded])
        match self._receive():
            case ["value", result, list(changes)]:
                try:
                    if kind == "call":
                        self._apply(changes, operands[1])
                    return wire.decode(result, self._proxy)
                except wire.NotPlain as error:
                    raise self._gone(str(error)) from error
            case ["error", str(name), str(text)]:
                kind_of_error = getattr(builtins, name, None)
                if isinstance(kind_of_error, type) and issubclass(kind_of_error, Exception):
                    raise _made(kind_of_error, text)
                raise ProgramError(f"{name}: {text}")
        raise self._gone("gave no answer")

    def _apply(self, changes: list[Any], arguments: list[Any]) -> None:
        """Do to our arguments what the call did to the program's copies of them."""
        for change in changes:
            match change:
                case [int(place), new] if 0 <= place < len(arguments):
                    _replace(arguments[place], wire.decode(new, self._proxy))
                case _:
                    raise wire.NotPlain("changed an argument that is not there")

    def _proxy(self, number: int) -> Proxy:
        if not isinstance(number, int):
            raise TypeError("a handle is a number")
        return self._proxies.setdefault(number, Proxy(self, number))

    def _send(self, message: list[Any]) -> None:
        try:
            self._requests.write(json.dumps(message).encode() + b"\n")
            self._requests.flush()
        except OSError as error:
            raise self._gone(ENDED) from error

    def _receive(self) -> Any:
        try:
            line = self._answers.readline()
            if not line:
                raise self._gone(ENDED)
            return json.loads(line)
        except (OSError, ValueError, RecursionError) as error:
            raise self._gone("wrote to the channel of its results") from error

    def _gone(self, why: str) -> ProgramGone:
        self.broken = self.broken or why
        return ProgramGone(why)


class Proxy:
    """An object of the program. Equal to itself alone; everything else is asked of the program."""

    __slots__ = ("_agon_client", "_agon_number")

    def __init__(self, client: Client, number: int) -> None:
        object.__setattr__(self, "_agon_client", client)
        object.__setattr__(self, "_agon_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the program's object."""
        return self._agon_client.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        return self._agon_client.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._agon_client.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._agon_client.ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._agon_client.ask("put", self, key, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._agon_client.ask("list", self))

    def __contains__(self, item: Any) -> bool:
        return bool(self._agon_client.ask("contains", self, item))

    def __len__(self) -> int:
        return int(self._agon_client.ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._agon_client.ask("bool", self))

    def __str__(self) -> str:
        return str(self._agon_client.ask("str", self))

    def __repr__(self) -> str:
        return str(self._agon_client.ask("repr", self))


def judge(client: Client, case: dict[str, Any]) -> str:
    """Run one test: `passed`, or why not, in a few words."""
    try:
        namespace: dict[str, Any] = {"__name__": "tests"}
        exec(case["prelude"], namespace)
        defined = client.names()
        for name in case["names"]:
            if name not in defined:
                return f"{name} is not defined"
            namespace[name] = client.ask("name", name)
        exec(case["test"], namespace)
    except AssertionError:
        outcome = "assertion failed"
    except ProgramGone:
        outcome = ""
    except BaseException as error:
        outcome = f"raised {type(error).__name__}"
    else:
        outcome = "passed"
    return f"the program {client.broken}" if client.broken else outcome


def main(folder: str) -> None:
    """Judge the test on standard input and print the verdict; nothing is read from the folder."""
    report = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what a statement prints is no verdict
    sys.setrecursionlimit(10_000)
    with open(0, "rb", closefd=False) as file:
        case = json.load(file)
    client = Client(os.fdopen(3, "wb"), os.fdopen(4, "rb"))
    os.write(report, json.dumps({"outcome": judge(client, case)}).encode())


def _number(value: Any) -> int:
    if isinstance(value, Proxy):
        number: int = value._agon_number
        return number
    raise wire.NotPlain(f"a test passes a {type(value).__name__}, which cannot be sent")


def _made(kind: type[Exception], text: str) -> Exception:
    try:
        return kind(text)
    except TypeError:  # such as UnicodeDecodeError, which wants more
        return ProgramError(f"{kind.__name__}: {text}")


def _replace(old: Any, new: Any) -> None:
    if type(old) is list and type(new) is list:
        old[:] = new
    elif type(old) is dict and type(new) is dict:
        old.clear()
        old.update(new)
    elif type(old) is set and type(new) is set:
        old.clear()
        old |= new
    elif type(old) is bytearray and type(new) is bytearray:
        old[:] = new
    else:
        raise wire.NotPlain("changed the type of an argument")
