"""How long a run takes: sampling step by step at the live batch size, the update by arithmetic.

A decoding step over B rows takes the longest of

    (weights + sum of the rows' keys and values) / (bandwidth x share)
    B x operations of a token / (arithmetic x share)
    layers x launch time

after the roofline model (Williams et al. 2009; Pope et al. 2022 for decoding). Rows end as replies
do, so B falls; a waiting request takes a free slot (`timeline`). Replies are taken as spread evenly
between nothing and twice their mean, cut at the limit. Verdicts are judged meanwhile and cost
nothing here; loading, saving and waiting for other processes are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agon.planning.arithmetic import Arithmetic
from agon.planning.cards import Assumptions, Card

BANDWIDTH, FLOPS, LAUNCH = "bandwidth", "arithmetic", "launches"


@dataclass(slots=True)
class Spent:
    """Seconds by what limits them."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, limit: str, seconds: float) -> None:
        """Add seconds that a limit causes."""
        self.seconds[limit] = self.seconds.get(limit, 0.0) + seconds

    @property
    def total(self) -> float:
        """Seconds in all."""
        return sum(self.seconds.values())

    @property
    def limit(self) -> str:
        """What causes most of them."""
        return max(self.seconds, key=lambda name: self.seconds[name]) if self.seconds else FLOPS


@dataclass(frozen=True, slots=True)
class Stage:
    """Rollouts that are sampled together on one card.

    Attributes:
        rollouts: How many.
        prompts: Different prompts among them, each prefilled once.
        prompt: Tokens of each.
        mean: Tokens of a reply in the mean.
        limit: Most tokens of a reply.
        slots: Most rows that decode at once.
    """

    rollouts: int
    prompts: int
    prompt: float
    mean: float
    limit: int
    slots: int


def reply_lengths(count: int, mean: float, limit: int) -> list[float]:
    """Lengths spread evenly over [0, 2 mean], cut at the limit; their mean is kept where it can be.

    A mean at the limit makes every reply as long as that.
    """
    if mean >= limit:
        return [float(limit)] * count
    width = min(2 * mean, 2 * limit)
    lengths = [width * (index + 0.5) / count for index in range(count)]
    cut = [min(length, float(limit)) for length in lengths]
    # What cutting takes from the long ones is given to all, within the limit.
    for _ in range(50):
        missing = mean * count - sum(cut)
        room = [limit - length for length in cut]
        if missing < 1e-6 * mean * count or sum(room) <= 0:
            break
        cut = [
            length + missing * space / sum(room) for length, space in zip(cut, room, strict=True)
        ]
    return cut


def timeline(stage: Stage) -> Iterator[tuple[int, float, float]]:
    """Stretches of decoding with one number of rows: (rows, mean context, steps)."""
    lengths = reply_lengths(stage.rollouts, stage.mean, stage.limit)
    # The queue is in no order: its ends take turns, so that every part of it is alike.
    waiting = [
        lengths[place // 2 if place % 2 else -1 - place // 2] for place in range(len(lengths))
    ]
    live: list[tuple[float, float]] = []
    while waiting or live:
        while waiting and len(live) < stage.slots:
            live.append((0.0, waiting.pop(0)))
        steps = min(length - done for done, length in live)
        context = stage.prompt + sum(done for done, _ in live) / len(live) + steps / 2
        if steps > 0:
            yield len(live), context, steps
        live = [
            (done + steps, length) for done, length in live if length - done - steps > 1e-9 * length
        ]


def sampling_time(
    model: Arithmetic, stage: Stage, card: Card, assumed: Assumptions
) -> tuple[Spent, float]:
    """Seconds of one stage on one card, and its mean live batch."""
    spent = Spent()
    prefill = stage.prompts * (model.text_operations(stage.prompt) + 2.0 * model.head)
    spent.add(FLOPS, prefill / (card.flops * assumed.prefill_share))
    launches = len(model.layers) * assumed.launch_seconds
    row_steps = total_steps = 0.0
    for rows, context, steps in timeline(stage):
        read = model.step_bytes() + rows * model.row_bytes(context)
        times = {
            BANDWIDTH: read / (card.bandwidth * assumed.bandwidth_share),
            FLOPS: rows * model.token_operations(context) / (card.flops * assumed.prefill_share),
            LAUNCH: launches,
        }
        limit = max(times, key=lambda name: times[name])
        spent.add(limit, steps * times[limit])
        row_steps += rows * steps
        total_steps += steps
    return spent, row_steps / max(total_steps, 1e-9)


def update_time(
    model: Arithmetic, stage: Stage, card: Card, assumed: Assumptions, checkpointing: bool
) -> float:
    """Seconds of the update on one stage's rollouts on one card; no row is left out."""
    rate = card.flops * assumed.update_share
    lengths = reply_lengths(stage.rollouts, stage.mean, stage.limit)
    return (
        sum(model.update_operations(stage.prompt, length, checkpointing) for length in lengths)
        / rate
    )
