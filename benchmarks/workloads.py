"""What is sampled and trained on in the benchmarks: prompts, lengths and rewards, by seed.

Tokens are drawn at random from the model's ordinary vocabulary: what they say has no part in how
long it takes to compute. Lengths are uniform between two bounds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Rollouts of groups side by side, as plain lists, so that they travel as JSON.

    Attributes:
        group: Rollouts of one prompt.
        prompts: Each rollout's prompt, token ids.
        completions: Token ids; the last of each is the end token.
        rewards: Equal within a flat group, 0 and 1 in turn within the others.
    """

    group: int
    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: list[float]

    @property
    def longest_prompt(self) -> int:
        """Tokens."""
        return max(map(len, self.prompts))

    @property
    def longest_completion(self) -> int:
        """Tokens."""
        return max(map(len, self.completions))

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        return sum(map(len, self.completions))


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the growth benchmark.

    Attributes:
        problems: Different prompts.
        group: Rollouts of each.
        prompt: Prompt tokens.
        length: Completion tokens of every rollout.
        width: Hidden width of the model.
        layers: Its depth.
        slots: Rows that decode at once.
        microbatch_tokens: Padded tokens of one pass of the update.
    """

    problems: int
    group: int
    prompt: int
    length: int
    width: int
    layers: int
    slots: int
    microbatch_tokens: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which tokens may be drawn, and what ends a completion."""

    ordinary: tuple[int, ...]
    end: int
    pad: int

    @classmethod
    def of(cls, folder: str) -> Vocabulary:
        """That of the model in a folder, read without loading it."""
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
        added = {int(token["id"]) for token in tokenizer["added_tokens"]}
        ends = config["eos_token_id"]
        end = int(ends[0] if isinstance(ends, list) else ends)
        pad = config.get("pad_token_id")
        ordinary = tuple(token for token in range(config["vocab_size"]) if token not in added)
        return cls(ordinary, end, end if pad is None else int(pad))


def lengths(count: int, low: int, high: int, key: str) -> list[int]:
    """Completion lengths, uniform from low to high, both included."""
    generator = random.Random(f"lengths/{key}")
    return [generator.randint(low, high) for _ in range(count)]


def prompts(count: int, group: int, around: int, words: Vocabulary, key: str) -> list[list[int]]:
    """Prompts of about so many tokens (within a sixth), each repeated for its group."""
    generator = random.Random(f"prompts/{key}")
    made = []
    for _ in range(count):
        length = generator.randint(around - around // 6, around + around // 6)
        made += [generator.choices(words.ordinary, k=length)] * group
    return made


def completions(wanted: Sequence[int], words: Vocabulary, key: str) -> list[list[int]]:
    """Random tokens at given lengths, the end token included."""
    generator = random.Random(f"completions/{key}")
    return [[*generator.choices(words.ordinary, k=length - 1), words.end] for length in wanted]


def rewards(problems: int, group: int, flat: int, key: str) -> list[float]:
    """Rewards of which so many groups, drawn by the key, are flat."""
    chosen = set(random.Random(f"flat/{key}").sample(range(problems), flat))
    return [
        0.0 if problem in chosen else float(sample % 2)
        for problem in range(problems)
        for sample in range(group)
    ]


def rollouts(
    problems: int,
    group: int,
    around: int,
    bounds: tuple[int, int],
    flat: int,
    words: Vocabulary,
    key: str,
) -> Rollouts:
    """A whole stream of rollouts.

    Args:
        problems: Groups.
        group: Rollouts of each.
        around: Prompt tokens.
        bounds: Shortest and longest completion, tokens.
        flat: Groups whose rewards are all equal.
        words: What is drawn from.
        key: Seed.
    """
    return Rollouts(
        group,
        prompts(problems, group, around, words, key),
        completions(lengths(problems * group, *bounds, key), words, key),
        rewards(problems, group, flat, key),
    )
