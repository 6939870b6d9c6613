"""Cards and what is assumed about using them: every figure is an assumption and shown as one.

Nothing of it was measured by this project: peak arithmetic and bandwidth are the data sheets'
(`cards.toml`), the shares of them that a run reaches are usual values of well-fed training and
decoding. A plan's hours are no better than they are.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from agon.errors import ConfigError

GIB = 2**30
CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Card:
    """One accelerator, or this machine's processor.

    Attributes:
        key: What `--card` takes.
        name: For people.
        memory: Bytes that a process can address.
        flops: Dense bfloat16 operations a second; 0 where no time is estimated.
        bandwidth: Bytes a second from its memory.
    """

    key: str
    name: str
    memory: float
    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a plan assumes about every card.

    Attributes:
        update_share: Of peak arithmetic that the update reaches.
        prefill_share: Of peak arithmetic that prompts and large decoding batches reach.
        bandwidth_share: Of peak bandwidth that decoding reaches.
        launch_seconds: Of the host, for one layer of one decoding step. Eager torch with adapters
            takes 1.2 ms on a processor here for a layer that computes nothing (0.7 ms without
            adapters; docs/scaling.md). vLLM replays recorded graphs.
        runtime: Bytes that context, libraries and kernels take.
        fragmentation: Share of the planned memory that the allocator wastes.
    """

    update_share: float = 0.35
    prefill_share: float = 0.5
    bandwidth_share: float = 0.6
    launch_seconds: float = 1e-3
    runtime: float = 1.0 * GIB
    fragmentation: float = 0.08


IN_PROCESS = Assumptions()
VLLM = Assumptions(launch_seconds=5e-5)


def known_cards() -> dict[str, Card]:
    """The cards of the table, by key."""
    tables = tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))
    return {
        key: Card(
            key,
            row["name"],
            row["memory_gib"] * GIB,
            row["bfloat16_tflops"] * 1e12,
            row["bandwidth_gb_s"] * 1e9,
        )
        for key, row in tables.items()
    }


def find_cards(names: list[str]) -> list[Card]:
    """Cards by key; `cpu` is this machine, whose memory alone is planned.

    Raises:
        ConfigError: There is no such card.
    """
    known = known_cards()
    found = []
    for name in names:
        if name == CPU:
            found.append(Card(CPU, "this machine's processor", machine_memory(), 0.0, 0.0))
        elif name in known:
            found.append(known[name])
        else:
            keys = ", ".join((*known, CPU))
            raise ConfigError(f"--card: got {name!r}, expected one of {keys}")
    return found


def machine_memory() -> float:
    """Bytes of this machine's memory; 0 where the system does not say."""
    import os

    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return 0.0
