"""Plain values over the wire, and proxies that a program cannot use to fool a statement."""

from __future__ import annotations

import collections
import contextlib
import enum
import json
import math
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agon.verifiers.asserts import serving, testing, wire

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
        | st.frozensets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)


def no_handle(value: Any) -> int:
    raise wire.NotPlain(type(value).__name__)


def there_and_back(value: Any) -> Any:
    return wire.decode(json.loads(json.dumps(wire.encode(value, no_handle))), no_handle)


def types(value: Any) -> Any:
    """A value's type and those of all that it holds."""
    if isinstance(value, dict):
        return dict, [(types(key), types(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types(item) for item in value]
    return type(value)


@given(PLAIN)
def test_plain_values_arrive_equal_and_of_the_same_types(value: Any) -> None:
    assert there_and_back(value) == value
    assert types(there_and_back(value)) == types(value)


def test_values_at_the_edges_arrive() -> None:
    for value in (
        10**5000,
        -(2**53),
        2**53,
        math.inf,
        5e-324,
        range(3, 9, 2),
        bytearray(b"0"),
        int,
    ):
        assert there_and_back(value) == value
    assert math.copysign(1, there_and_back(-0.0)) == -1
    assert math.isnan(there_and_back(math.nan))


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 7

    def __add__(self, other: int) -> int:
        return 7

    def __index__(self) -> int:
        return 7


class LyingList(list[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([7])


class LyingText(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "7"

    def __iter__(self) -> Iterator[str]:
        return iter("7")


class Colour(enum.IntEnum):
    RED = 3


def test_an_instance_of_a_subclass_travels_as_the_plain_value_that_it_holds() -> None:
    for value, plain in (
        (Liar(0), 0),
        (LyingList([1, 2]), [1, 2]),
        (LyingText("no"), "no"),
        (Colour.RED, 3),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.namedtuple("Pair", "a b")(1, 2), (1, 2)),
    ):
        arrived = there_and_back(value)
        assert arrived == plain
        assert type(arrived) is type(plain)


@pytest.mark.parametrize(
    "data",
    [
        [],
        ["int", "seven"],
        ["int", 7],
        ["list"],
        ["list", 7],
        ["dict", [["key"]]],
        ["dict", [[["list", []], 1]]],
        ["set", [["list", []]]],
        ["range", 1, 2, 0],
        ["type", "exec"],
        ["eval", "1"],
        ["handle"],
        ["handle", "x", "y"],
        {"a": 1},
        [["list"], 1],
        ["bytes", "zz"],
        ["float", "0x1p99999999"],
    ],
)
def test_what_is_no_value_is_refused(data: Any) -> None:
    with pytest.raises(wire.NotPlain):
        wire.decode(data, no_handle)


def test_nesting_without_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(wire.NotPlain):
        wire.encode(value, no_handle)


def judge(program: str, test: str, names: tuple[str, ...] = ("f",), prelude: str = "") -> str:
    """A program and a test over real pipes, in two threads instead of two sandboxes."""
    requests, requests_end = os.pipe()
    answers, answers_end = os.pipe()

    def serve() -> None:
        with os.fdopen(requests, "rb") as reading, os.fdopen(answers_end, "wb") as writing:
            namespace: dict[str, Any] = {"__name__": "program"}
            exec(program, namespace)
            writing.write(json.dumps(["ready", list(namespace)]).encode() + b"\n")
            writing.flush()
            with contextlib.suppress(SystemExit):
                serving.serve(serving.Server(namespace), reading, writing)

    thread = threading.Thread(target=serve)
    thread.start()
    with os.fdopen(requests_end, "wb") as writing, os.fdopen(answers, "rb") as reading:
        client = testing.Client(writing, reading)
        case = {"prelude": prelude, "names": names, "test": test}
        outcome = testing.judge(client, case)
    thread.join()
    return outcome


def test_a_right_function_passes_and_a_wrong_one_fails() -> None:
    assert judge("def f(x): return x + 1", "assert f(3) == 4") == "passed"
    assert judge("def f(x): return x", "assert f(3) == 4") == "assertion failed"


def test_an_object_that_claims_to_equal_everything_equals_nothing() -> None:
    program = (
        "class Any:\n"
        "    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n"
        "    __hash__ = object.__hash__\n"
        "def f(): return Any()\n"
        "def g(): return [Any()]"
    )
    for test in ("assert f() == 7", "assert g() == [7]", "assert 7 == f()", "assert not f() != 7"):
        assert judge(program, test, ("f", "g")) == "assertion failed"


def test_the_tests_own_names_are_not_the_programs() -> None:
    program = "def f(): return 0\ndef abs(x): return 0\ndef len(x): return 7\nAssertionError = None"
    assert judge(program, "assert abs(f() - 7) < 1e-6") == "assertion failed"
    assert judge(program, "assert len([f()]) == 7") == "assertion failed"
    assert judge(program, "assert sum([abs(-3)]) == 3") == "passed"


def test_what_the_prelude_defines_is_known_to_the_test_alone() -> None:
    prelude = "def helper(x): return x * 2"
    assert judge("def f(x): return x + x", "assert f(4) == helper(4)", prelude=prelude) == "passed"
    program = "def helper(x): return 0\ndef f(x): return 0"
    assert judge(program, "assert f(4) == helper(4)", prelude=prelude) == "assertion failed"
    assert "NameError" in judge("def f(x): return helper(x)", "f(1)", prelude=prelude)


def test_a_list_that_the_program_changes_is_changed_for_the_test() -> None:
    program = "def f(xs, d, s):\n    xs.sort(); d['new'] = [1]; s.add(9)"
    test = (
        "xs, d, s = [3, 1, 2], {}, {1}\nalias = xs\nassert f(xs, d, s) is None\n"
        "assert alias == [1, 2, 3] and d == {'new': [1]} and s == {1, 9}"
    )
    assert judge(program, test) == "passed"


def test_errors_of_the_program_arrive_as_python_s_own() -> None:
    program = (
        "class Mine(KeyError): pass\n"
        "def f(kind):\n"
        "    if kind == 'mine': raise Mine('x')\n"
        "    if kind == 'unicode': b'\\xff'.decode()\n"
        "    return int(kind)"
    )
    raising = "try: f({!r})\nexcept {}: pass\nelse: assert False"
    assert judge(program, raising.format("seven", "ValueError")) == "passed"
    assert judge(program, raising.format("mine", "KeyError")) == "passed"
    assert judge(program, "f('seven')") == "raised ValueError"
    assert judge(program, "f('unicode')") == "raised ProgramError"


def test_objects_of_the_program_can_be_built_changed_and_passed_back() -> None:
    program = (
        "class Node:\n"
        "    def __init__(self, value): self.value, self.left = value, None\n"
        "def f(node): return node.value + (f(node.left) if node.left else 0)"
    )
    test = (
        "root = Node(1)\nroot.left = Node(2)\nassert f(root) == 3\nassert root.left.value == 2\n"
        "assert root.left is root.left and root.left == root.left and root != root.left"
    )
    assert judge(program, test, ("f", "Node")) == "passed"


def test_a_generator_can_be_listed() -> None:
    assert judge("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]") == "passed"


def test_a_name_that_is_missing_is_said() -> None:
    assert judge("def g(): return 1", "assert f() == 1") == "f is not defined"


def test_a_test_that_hides_every_error_does_not_hide_a_program_that_is_gone() -> None:
    program = "import sys\ndef f(): sys.exit(0)"
    test = "try: f()\nexcept BaseException: pass"
    assert judge(program, test).startswith("the program ")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\n",
        b"[]\n",
        b'["value"]\n',
        b'["value", ["eval", "1"], []]\n',
        b'["value", 7, [[0, 7]]]\n',
        b'["value", 7, [[5, ["list", []]]]]\n',
        b'["value", 7, "x"]\n',
        b'["ready", []]\n',
        b'["error", 7, 7]\n',
        b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_an_answer_of_another_kind_fails_the_program(answer: bytes) -> None:
    answers, answers_end = os.pipe()
    os.set_blocking(answers_end, True)
    requests = os.open(os.devnull, os.O_WRONLY)
    head = b'["ready", ["f"]]\n["value", ["handle", 0], []]\n'
    writer = threading.Thread(
        target=lambda: (os.write(answers_end, head + answer), os.close(answers_end))
    )
    with os.fdopen(requests, "wb") as writing, os.fdopen(answers, "rb") as reading:
        writer.start()
        case = {"prelude": "", "names": ["f"], "test": "assert f([1]) == 7"}
        outcome = testing.judge(testing.Client(writing, reading), case)
        writer.join()
    assert outcome.startswith("the program ")


@pytest.mark.parametrize(
    "name", ["SystemExit", "KeyboardInterrupt", "print", "no_such", "ExceptionGroup"]
)
def test_an_error_by_another_name_is_an_error_of_the_program(name: str) -> None:
    answers, answers_end = os.pipe()
    os.write(answers_end, json.dumps(["error", name, "x"]).encode() + b"\n")
    os.close(answers_end)
    with open(os.devnull, "wb") as writing, os.fdopen(answers, "rb") as reading:
        client = testing.Client(writing, reading)
        with pytest.raises(testing.ProgramError):
            client.ask("name", "f")
