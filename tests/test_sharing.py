"""The plan of shared prefixes: every row once, within the budget, as much saved as can be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agon.objective import Row
from agon.sharing import Pack, plan, shared_prefixes

PROMPTS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), min_size=1, max_size=7
)


def row(prompt: tuple[int, ...], completion: int = 2) -> Row:
    return Row(prompt, (9,) * completion, (0.0,) * completion, 1.0)


def saving(prompts: list[tuple[int, ...]], members: tuple[int, ...]) -> int:
    """Tokens saved when these run their longest common prefix once."""
    chosen = [prompts[i] for i in members]
    limit = min(map(len, chosen)) - 1
    length = next(
        (n for n in range(limit, 0, -1) if len({prompt[:n] for prompt in chosen}) == 1), 0
    )
    return (len(members) - 1) * length


def partitions(items: list[int]) -> list[list[tuple[int, ...]]]:
    """All ways to cut a list into runs."""
    if not items:
        return [[]]
    return [
        [tuple(items[:size]), *more]
        for size in range(1, len(items) + 1)
        for more in partitions(items[size:])
    ]


@settings(max_examples=60, deadline=None)
@given(PROMPTS)
def test_no_other_cut_of_the_sorted_prompts_saves_more(prompts: list[tuple[int, ...]]) -> None:
    clusters = shared_prefixes(prompts)
    assert sorted(i for members, _ in clusters for i in members) == list(range(len(prompts)))
    for members, length in clusters:
        assert len({prompts[i][:length] for i in members}) == 1
        assert all(length < len(prompts[i]) for i in members)
    saved = sum((len(members) - 1) * length for members, length in clusters)
    best = max(
        sum(saving(prompts, members) for members in partition)
        for partition in partitions(sorted(range(len(prompts)), key=prompts.__getitem__))
    )
    assert saved == best


def test_a_group_shares_its_prompt_and_not_the_chat_header_of_all() -> None:
    header = tuple(range(100, 110))
    problems = [header + tuple(range(base, base + 20)) for base in (0, 30, 60)]
    prompts = [problem for problem in problems for _ in range(8)]
    clusters = shared_prefixes(prompts)
    assert sorted(length for _, length in clusters) == [29, 29, 29]
    assert [len(members) for members, _ in clusters] == [8, 8, 8]


def test_challenges_of_one_problem_share_the_problem() -> None:
    problem = tuple(range(40))
    prompts = [(*problem, 50 + i, 60, 61) for i in range(4)]
    assert shared_prefixes(prompts) == [([0, 1, 2, 3], 40)]


@settings(max_examples=100, deadline=None)
@given(PROMPTS, st.integers(1, 40), st.booleans())
def test_every_row_is_run_once_within_the_budget(
    prompts: list[tuple[int, ...]], budget: int, share: bool
) -> None:
    rows = [row(prompt, 1 + len(prompt) % 3) for prompt in prompts]
    packs = plan(rows, budget, share)
    placed = [index for pack in packs for batch in pack.batches for index in batch]
    assert sorted(placed) == list(range(len(rows)))
    for pack in packs:
        check_pack(pack, rows, budget)
    if not share:
        assert all(not pack.prefixes for pack in packs)


def check_pack(pack: Pack, rows: list[Row], budget: int) -> None:
    prefixes = [
        pack.prefixes[pack.prefix_of[i]] for batch in pack.batches for i in batch if pack.prefixes
    ]
    for index, prefix in zip([i for b in pack.batches for i in b], prefixes, strict=False):
        assert rows[index].prompt_ids[: len(prefix)] == prefix
    width = max(map(len, pack.prefixes), default=0)
    held = width * len(pack.prefixes)
    assert held <= max(budget // 2, width)
    for batch in pack.batches:
        lengths = [
            rows[i].tokens - (len(pack.prefixes[pack.prefix_of[i]]) if pack.prefixes else 0)
            for i in batch
        ]
        assert len(batch) == 1 or max(lengths) * len(batch) <= budget - held


@pytest.mark.parametrize(("completion", "shared"), [(2, True), (400, False)])
def test_what_saves_little_is_not_shared(completion: int, shared: bool) -> None:
    packs = plan([row(tuple(range(30)), completion)] * 8, 10_000, share=True)
    assert bool(packs[0].prefixes) == shared
