"""Tokens to text as they come, and stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextStream:
    """Decodes a completion token by token; the pieces join to the decoded whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_token_ids: Sequence[int]) -> None:
        """Begin a completion.

        Args:
            tokenizer: A fast one decodes in linear time, another one anew with each token.
            end_token_ids: They have no text.
        """
        self._tokenizer: Any = tokenizer
        self._ends = frozenset(end_token_ids)
        self._stream = DecodeStream(skip_special_tokens=False) if tokenizer.is_fast else None
        self._ids: list[int] = []
        self._written = 0

    def push(self, token: int) -> str:
        """The text that a token completes; empty in the middle of a character."""
        if token in self._ends:
            return ""
        self._ids.append(token)
        if self._stream is not None:
            piece = self._stream.step(self._tokenizer.backend_tokenizer, token) or ""
        else:
            text = self._decoded()
            if text.endswith("\N{REPLACEMENT CHARACTER}"):
                return ""
            piece = text[self._written :]
        self._written += len(piece)
        return piece

    def rest(self) -> str:
        """What is left at the end, such as half a character."""
        piece = self._decoded()[self._written :]
        self._written += len(piece)
        return piece

    def _decoded(self) -> str:
        return str(
            self._tokenizer.decode(
                self._ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


class StopFilter:
    """Passes text on until a stop string; the beginning of one is held back until it is decided."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings; without any, everything passes at once."""
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """What may be passed on. After a stop string nothing is."""
        if self.stopped:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        hold = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def rest(self) -> str:
        """What was held back for a stop string that did not come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
