"""Values as JSON between the two processes: exact for Python's plain types, opaque for all others.

None, bool, str, small int stand for themselves; every other value is a list whose first item names
its type. An instance of a subclass of a plain type travels as the plain value that it holds. What
is not plain stays where it is and travels as a number, a handle.

What this module does not do: run anything of a value's class on decoding. Encoding happens on the
side that owns the value.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

MOST_DEPTH = 200
SAFE_INT = 2**53

Handle = Callable[[Any], int]
"""From an object that is not plain to its number; raises TypeError where there are none."""

Object = Callable[[int], Any]
"""From a handle's number to the object."""


class NotPlain(TypeError):
    """A value that cannot travel, or a message that is none of ours."""


def encode(value: Any, handle: Handle, depth: int = 0) -> Any:
    """A value as what `json.dumps` can write.

    Raises:
        NotPlain: It is nested too deep.
    """
    if depth > MOST_DEPTH:
        raise NotPlain(f"a value nested more than {MOST_DEPTH} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return "".join(str.__iter__(value))
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -SAFE_INT < number < SAFE_INT else ["int", hex(number)]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, bytes | bytearray):
        kind = "bytes" if isinstance(value, bytes) else "bytearray"
        return [kind, bytes(value).hex()]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    return _encode_collection(value, handle, depth + 1)


def _encode_collection(value: Any, handle: Handle, depth: int) -> Any:
    for kind, base in _COLLECTIONS.items():
        if isinstance(value, base):
            # The base's own iteration: a subclass may show other items than it holds.
            return [kind, [encode(item, handle, depth) for item in base.__iter__(value)]]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["dict", [[encode(k, handle, depth), encode(v, handle, depth)] for k, v in pairs]]
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    return ["handle", handle(value)]


def decode(data: Any, handled: Object) -> Any:
    """The value of `encode`'s data.

    Raises:
        NotPlain: The data is none of `encode`'s.
    """
    if data is None or isinstance(data, bool | int | str):
        return data
    try:
        kind, *rest = data
        if kind in _SCALARS:
            return _SCALARS[kind](*rest)
        if kind in _COLLECTIONS:
            [items] = rest
            return _COLLECTIONS[kind](decode(item, handled) for item in items)
        if kind == "dict":
            [pairs] = rest
            return {decode(key, handled): decode(value, handled) for key, value in pairs}
        if kind == "handle":
            return handled(*rest)
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise NotPlain(f"not a plain value: {error}") from error
    raise NotPlain(f"not a plain value: {str(kind)[:40]!r}")


_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, object)
}
_SCALARS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": range,
    "type": _TYPES.__getitem__,
}
_COLLECTIONS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}
