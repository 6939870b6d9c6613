"""Which rows share the beginning of their prompts, and which of them go through the model together.

The rollouts of a group have one prompt, or one problem at the beginning of it. What they share is
run once, and its keys and values serve all of them (`logprobs`). This module only plans; it holds
no tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from agon.objective import Row, microbatches

WORTH = 0.1
"""Least share of all tokens that sharing must save; below it the masks cost more than it gains."""

_WINDOW = 64
"""Most rows that share one prefix."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows that go through the model after their shared prefixes have.

    Attributes:
        prefixes: What is run first, different token sequences; none where nothing is shared.
        prefix_of: For each of the pack's rows, by index, which prefix it continues.
        batches: The rows' indices, in microbatches.
    """

    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    prefix_of: dict[int, int] = field(default_factory=dict)
    batches: list[list[int]] = field(default_factory=list)


def plan(rows: Sequence[Row], budget: int, share: bool) -> list[Pack]:
    """Put every row into one microbatch of one pack.

    Args:
        rows: What is to be run.
        budget: Most padded tokens of one pass; a longer row runs alone.
        share: Whether to share prefixes where that is worth it.
    """
    clusters = [([index], 0) for index in range(len(rows))]
    if share:
        found = shared_prefixes([row.prompt_ids for row in rows])
        saved = sum((len(members) - 1) * length for members, length in found)
        if saved >= WORTH * sum(row.tokens for row in rows):
            clusters = found
    packs = _shared_packs(rows, [c for c in clusters if c[1] > 0], budget)
    alone = [index for members, length in clusters if length == 0 for index in members]
    if alone:
        groups = microbatches([rows[index].tokens for index in alone], budget)
        packs.append(Pack(batches=[[alone[place] for place in group] for group in groups]))
    return packs


def _shared_packs(
    rows: Sequence[Row], clusters: Sequence[tuple[list[int], int]], budget: int
) -> list[Pack]:
    """Clusters of like prefix length together, at most half of the budget in prefixes."""
    packs: list[Pack] = []
    lengths = [length for _, length in clusters]
    for group in microbatches(lengths, budget // 2):
        pack = Pack()
        left = budget - max(lengths[place] for place in group) * len(group)
        members: list[int] = []
        for place in group:
            cluster, length = clusters[place]
            pack.prefix_of.update(dict.fromkeys(cluster, len(pack.prefixes)))
            pack.prefixes.append(rows[cluster[0]].prompt_ids[:length])
            members += cluster
        rest = [rows[i].tokens - len(pack.prefixes[pack.prefix_of[i]]) for i in members]
        pack.batches.extend([members[at] for at in batch] for batch in microbatches(rest, left))
        packs.append(pack)
    return packs


def shared_prefixes(prompts: Sequence[tuple[int, ...]]) -> list[tuple[list[int], int]]:
    """Split sorted prompts into runs that save the most tokens when each runs its prefix once.

    A prefix ends before its shortest prompt does: the last token of a prompt predicts the first
    of the completion, so it belongs to the row.

    Returns:
        (indices, prefix length) of each cluster; a length of 0 for a prompt that shares nothing.
    """
    order = sorted(range(len(prompts)), key=lambda index: prompts[index])
    sorted_prompts = [prompts[index] for index in order]
    common = [0] + [_common(one, other) for one, other in itertools.pairwise(sorted_prompts)]
    # best[end]: most tokens saved among the first `end` prompts; start[end]: where the last
    # cluster of that choice begins. Neighbours in sorted order share the longest prefixes.
    best, start, shared = [0] * (len(order) + 1), [0] * (len(order) + 1), [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        best[end], start[end] = best[end - 1], end - 1
        length = len(sorted_prompts[end - 1])
        for begin in range(end - 2, max(-1, end - 1 - _WINDOW), -1):
            length = min(length, common[begin + 1])
            if length == 0:
                break
            saving = best[begin] + (end - begin - 1) * length
            if saving > best[end]:
                best[end], start[end], shared[end] = saving, begin, length
    clusters = []
    end = len(order)
    while end:
        clusters.append((sorted(order[start[end] : end]), shared[end]))
        end = start[end]
    return clusters[::-1]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens that two prompts have in common from the beginning, the last of either left out."""
    limit = min(len(one), len(other)) - 1
    if one[:limit] == other[:limit]:
        return limit
    return next(place for place in range(limit) if one[place] != other[place])
