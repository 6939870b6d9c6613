"""Keys and values of prompts that were run lately, for prompts that begin alike.

A challenge begins with its problem's plain prompt, and people ask the same thing again. Keys and
values hang on the adapter, so a policy's prefixes serve that policy alone: in a cascade a->b the
challenge of b gains nothing from the draft of a, but much from an earlier draft of b.

Dimensions: H key-value heads, T prompt length, D head width, L layers, V vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor

from agon.engines.prefill import Prefilled, States


@dataclass(frozen=True, slots=True)
class _Entry:
    """One prompt alone: its keys and values, (1, H, T, D), and what follows it, (1, V)."""

    states_L: States
    logits_1V: Tensor


class Prefixes:
    """The last prompts of one policy, up to a number of tokens."""

    def __init__(self, tokens: int, shortest: int) -> None:
        """Begin empty.

        Args:
            tokens: Most tokens that are kept; 0 keeps none.
            shortest: Least common beginning that is worth using.
        """
        self._most, self._shortest = tokens, shortest
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        self.tokens = 0

    def whole(self, ids: tuple[int, ...]) -> Prefilled | None:
        """A prompt that was run before, if it is still there."""
        entry = self._entries.get(ids)
        if entry is None:
            return None
        self._entries.move_to_end(ids)
        return Prefilled({ids: 0}, entry.logits_1V, list(entry.states_L))

    def longest(self, ids: tuple[int, ...]) -> tuple[States, int] | None:
        """States of the longest beginning that some prompt shares, and how many tokens that is.

        The prompt's last token is never among them: it predicts the completion's first.
        """
        best, found = self._shortest - 1, None
        for other in self._entries:
            length = _common(ids[:-1], other)
            if length > best:
                best, found = length, other
        if found is None:
            return None
        self._entries.move_to_end(found)
        cut = slice(0, best)
        states_L = [
            None if states is None else (states[0][:, :, cut], states[1][:, :, cut])
            for states in self._entries[found].states_L
        ]
        return states_L, best

    def keep(self, done: Prefilled) -> None:
        """Remember every prompt of a prefill, and forget the oldest where there are too many."""
        for ids, row in done.rows.items():
            if ids in self._entries or not self._shortest <= len(ids) <= self._most:
                continue
            # Copies, so that an entry does not hold the whole batch's memory.
            states_L = [
                None
                if states is None
                else tuple(part[row : row + 1, :, -len(ids) :].clone() for part in states)
                for states in done.states_L
            ]
            logits_1V = done.logits_UV[row : row + 1].clone()
            self._entries[ids] = _Entry(states_L, logits_1V)  # type: ignore[arg-type]
            self.tokens += len(ids)
        while self.tokens > self._most:
            ids, _ = self._entries.popitem(last=False)
            self.tokens -= len(ids)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens that two prompts have in common from the beginning."""
    limit = min(len(one), len(other))
    if one[:limit] == other[:limit]:
        return limit
    return next(place for place in range(limit) if one[place] != other[place])
