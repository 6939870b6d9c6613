"""Numbers as text, the same way everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from agon.evaluation.comparisons import Difference

MINUS = "−"


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage without its sign: `61.3`."""
    return f"{100 * share:.{digits}f}"


def maybe_percent(share: float | None) -> str:
    """Likewise; empty where there is none."""
    return "" if share is None else percent(share)


def interval(low: float, high: float) -> str:
    """A 95 % interval of shares in percent: `[58.0, 64.1]`."""
    return f"[{percent(low)}, {percent(high)}]"


def points(difference: float) -> str:
    """A difference of shares in points, signed: `+2.1`, `−0.4`."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", MINUS)


def points_interval(difference: Difference) -> str:
    """Its interval: `[−0.4, +4.6]`."""
    return f"[{points(difference.low)}, {points(difference.high)}]"


def p_value(p: float | None) -> str:
    """A p-value; where there is one seed there is no test."""
    if p is None:
        return "one seed"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def by_seed(shares: Sequence[float]) -> str:
    """Every seed's percentage."""
    return "  ".join(percent(share) for share in shares)


def points_by_seed(left: Sequence[float], right: Sequence[float]) -> str:
    """Every seed's difference in points."""
    return "  ".join(points(x - y) for x, y in zip(left, right, strict=True))


def count(number: int, what: str) -> str:
    """`1 seed`, `5 seeds`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def direction(difference: Difference) -> str:
    """What an interval says of the sign of a difference."""
    if difference.low > 0:
        return "ahead"
    return "behind" if difference.high < 0 else "undecided"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def arrow(system: str) -> str:
    """A system's name with a real arrow."""
    return system.replace("->", "→")


def spread(numbers: Sequence[int], what: str) -> str:
    """`5 seeds`; `2 to 5 seeds` where not all are equal."""
    fewest, most = min(numbers), max(numbers)
    return count(most, what) if fewest == most else f"{fewest} to {count(most, what)}"
