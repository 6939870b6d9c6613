"""The model inside the package is what docs/results.md says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agon.assets import EMBEDDED, model_folder
from agon.engines.base import Sampling
from agon.evaluation.protocols import System, evaluate
from agon.evaluation.statistics import Summary, summarise
from agon.preflight import read_language, read_task
from agon.recipes import load_recipe
from agon.tasks.splits import Split
from agon.workshop import open_workshop


@pytest.fixture(scope="module")
def figures() -> dict[str, Summary]:
    """Base and base->base on every dev problem, one sample each."""
    config = load_recipe("countdown-agon")
    problems = read_task(config).problems[Split.DEV]
    workshop = open_workshop(config, read_language(config))
    try:
        sampling = Sampling(config.sampling.max_new_tokens)
        systems = [System(("base",)), System(("base", "base"))]
        results = evaluate(systems, problems, 1, 0, sampling, workshop.table)
    finally:
        workshop.close()
    return {name: summarise(attempts) for name, attempts in results.items()}


def test_it_is_at_most_three_megabytes() -> None:
    folder = Path(model_folder(EMBEDDED))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3_000_000


def test_it_solves_between_15_and_35_percent_of_dev(figures: dict[str, Summary]) -> None:
    assert figures["base"].problems >= 1000
    assert 0.15 <= figures["base"].pass_1 <= 0.35


def test_the_untrained_mixture_gains_some_points_and_no_more(figures: dict[str, Summary]) -> None:
    gain = figures["base->base"].pass_1 - figures["base"].pass_1
    assert 0.02 <= gain <= 0.06


def test_it_keeps_to_the_form(figures: dict[str, Summary]) -> None:
    assert figures["base"].truncated <= 0.01
    conversions, regressions = figures["base->base"].conversions, figures["base->base"].regressions
    assert conversions is not None
    assert regressions is not None
    assert conversions > regressions
