"""The program's process: run the program, then answer calls to the names that it defined.

Started in the sandbox with the program beside it as `program.py`, calls on descriptor 3 and
results on descriptor 4, one JSON text a line. The program can do what it likes with both: it can
say nothing with them that a returned value could not say.

What this module does not do: know what is asserted.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any, BinaryIO

from agon.verifiers.asserts import wire

MODULE = "program"


class Server:
    """Answers requests about the program's objects."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        """Serve the names of a namespace."""
        self._namespace = namespace
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._requests: dict[str, Callable[..., Any]] = {
            "name": self._namespace.__getitem__,
            "get": getattr,
            "set": setattr,
            "item": lambda owner, key: owner[key],
            "put": lambda owner, key, value: owner.__setitem__(key, value),
            "list": list,
            "len": len,
            "bool": bool,
            "str": str,
            "repr": repr,
            "contains": lambda owner, item: item in owner,
        }

    def answer(self, request: list[Any]) -> list[Any]:
        """`["value", result, changed arguments]` or `["error", type's name, text]`."""
        try:
            kind, *operands = request
            values = [wire.decode(operand, self._objects.__getitem__) for operand in operands]
            if kind != "call":
                return ["value", self._encode(self._requests[kind](*values)), []]
            function, arguments, named = values
            result = self._encode(function(*arguments, **named))
            return ["value", result, self._changes(arguments, operands[1][1])]
        except Exception as error:
            return ["error", _builtin_name(error), str(error)[:500]]

    def _encode(self, value: Any) -> Any:
        return wire.encode(value, self._number)

    def _number(self, value: Any) -> int:
        """The handle of an object, the same one each time."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)  # kept, so that its id is never another's
        return self._numbers[id(value)]

    def _changes(self, arguments: list[Any], before: list[Any]) -> list[list[Any]]:
        """Which arguments the call has changed, as [place, new value]."""
        changes = []
        for place, argument in enumerate(arguments):
            if type(argument) in (list, dict, set, bytearray):
                now = self._encode(argument)
                if now != before[place]:
                    changes.append([place, now])
        return changes


def _builtin_name(error: BaseException) -> str:
    """The nearest class of an error that every Python has."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins")


def serve(server: Server, requests: BinaryIO, results: BinaryIO) -> None:
    """Answer until no more requests come."""
    for line in requests:
        answer = server.answer(json.loads(line))
        results.write(json.dumps(answer).encode() + b"\n")
        results.flush()


def main(folder: str) -> None:
    """Run `program.py` as a module, say which names it has, serve.

    An error of the program ends this process, with the traceback on stderr.
    """
    source = f"{folder}/program.py"
    requests, results = os.fdopen(3, "rb"), os.fdopen(4, "wb")
    module = types.ModuleType(MODULE)
    module.__file__ = source
    sys.modules[MODULE] = module
    with open(source, "rb") as file:
        code = compile(file.read(), source, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    names = [name for name in module.__dict__ if isinstance(name, str)]
    results.write(json.dumps(["ready", names]).encode() + b"\n")
    results.flush()
    serve(Server(module.__dict__), requests, results)
