"""When two outputs of a program are the same: the rules of the judges of programming contests.

Outputs are compared word by word, where any run of ASCII white space parts words; so line ends,
trailing blanks and the last newline do not count. Two words are the same when their bytes are, or
when the expected one is written as a decimal number with a point or an exponent and the printed
one is a finite number within 1e-6 of it, absolutely or relatively. Whole numbers and all other
words, `YES` against `Yes` too, must agree to the byte.

What this module does not do: judge problems that accept several outputs, or look at exit codes.
"""

from __future__ import annotations

import re

TOLERANCE = 1e-6
MAX_FLOAT_CHARACTERS = 400

_NUMBER = rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_ANY_NUMBER = re.compile(_NUMBER)
_FLOAT = re.compile(rb"(?=[^.eE]*[.eE])" + _NUMBER)


def same_output(expected: bytes, printed: bytes) -> bool:
    """Whether a printed output is the expected one."""
    expected_words, printed_words = expected.split(), printed.split()
    if expected_words == printed_words:
        return True
    if len(expected_words) != len(printed_words):
        return False
    return all(map(_same_word, expected_words, printed_words))


def _same_word(expected: bytes, printed: bytes) -> bool:
    if expected == printed:
        return True
    if max(len(expected), len(printed)) > MAX_FLOAT_CHARACTERS:
        return False
    if not _FLOAT.fullmatch(expected) or not _ANY_NUMBER.fullmatch(printed):
        return False
    wanted, got = float(expected), float(printed)
    if abs(wanted) == float("inf") or abs(got) == float("inf"):
        return False  # digits beyond what a float holds: only the same bytes are the same
    return abs(wanted - got) <= TOLERANCE * max(1.0, abs(wanted))
