"""The models that a server offers, and which direction of the cascade is called `agon`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from agon.engines.base import BASE
from agon.runs import RunFolder

CASCADE = "agon"
"""The model that is the pair in its chosen direction."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model name.

    Attributes:
        name: What clients ask for.
        stages: Its policies, one or a drafter and a challenger.
        about: Why it is what it is.
    """

    name: str
    stages: tuple[str, ...]
    about: str

    @property
    def system(self) -> str:
        """The name that evaluations use, such as `a->b`."""
        return "->".join(self.stages)


def served_models(policies: int, direction: tuple[tuple[str, str], str]) -> dict[str, Served]:
    """Every model by name: the pair, its two directions, the adapters alone, the base.

    Args:
        policies: How many adapters there are; one is a self-cascade.
        direction: From `choose_direction`.
    """
    stages, why = direction
    pairs = [("a", "b"), ("b", "a")] if policies == 2 else [("a", "a")]
    alone = ("a", "b")[:policies]
    models = [
        Served(CASCADE, stages, why),
        *(
            Served("agon-" + "-".join(pair), pair, f"{pair[0]} drafts, {pair[1]} answers")
            for pair in pairs
        ),
        *(Served(name, (name,), f"the adapter {name} alone, one pass") for name in alone),
        Served(BASE, (BASE,), "the frozen base alone, one pass"),
    ]
    return {model.name: model for model in models}


def choose_direction(
    folder: RunFolder | None, policies: int, step: int | None
) -> tuple[tuple[str, str], str]:
    """The better direction of the run's own dev evaluation; a->b where there is none.

    The test split chooses nothing, so `evaluations/dev.json` alone is read.

    Args:
        folder: The run; None where adapters were given as folders.
        policies: How many adapters there are.
        step: The step of the adapters that are served.

    Returns:
        The stages, and a sentence that says why.
    """
    if policies == 1:
        return ("a", "a"), "one policy: it reads the summary of its own draft"
    fallback = ("a", "b")
    if folder is None:
        return fallback, "a->b, since adapters without a run have no dev evaluation"
    file = folder.evaluations / "dev.json"
    try:
        found = json.loads(file.read_text())
        rates = {name: float(found["systems"][name]["pass_1"]) for name in ("a->b", "b->a")}
        counted, at = int(found["systems"]["a->b"]["problems"]), int(found["step"])
    except FileNotFoundError:
        return fallback, "a->b, since the run has no dev evaluation: `agon eval` makes one"
    except (OSError, ValueError, KeyError, TypeError):
        return fallback, f"a->b, since {file.name} has no pass@1 of both directions"
    stages = fallback if rates["a->b"] >= rates["b->a"] else ("b", "a")
    figures = ", ".join(f"{name} {100 * rate:.1f} %" for name, rate in rates.items())
    why = f"{'->'.join(stages)}, the better on {counted} dev problems ({figures})"
    if at != step:
        why += f"; evaluated at step {at}, served from step {step}"
    return stages, why
