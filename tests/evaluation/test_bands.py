"""Bands over seeds, and the ends of curves."""

from __future__ import annotations

import numpy as np
import pytest

from agon.evaluation.bands import band, ends, quantiles, running_mean


def test_a_band_has_the_steps_that_every_seed_has_and_reaches_over_all_seeds() -> None:
    found = band([([0, 1, 2, 3], [1.0, None, 3.0, 4.0]), ([0, 2, 3], [3.0, 1.0, None])])
    assert found.steps == (0, 2)
    assert (found.mean, found.low, found.high) == ((2.0, 2.0), (1.0, 1.0), (3.0, 3.0))
    assert found.seeds == 2


def test_one_seed_has_a_band_without_width() -> None:
    found = band([([0, 1], [0.2, 0.4])])
    assert found.low == found.mean == found.high


@pytest.mark.parametrize("curves", [[], [([0], [None])], [([0], [1.0]), ([1], [1.0])]])
def test_curves_without_a_common_step_are_refused(curves: list) -> None:
    with pytest.raises(ValueError, match="no step"):
        band(curves)


def test_a_window_averages_with_the_values_before() -> None:
    assert running_mean([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]
    assert running_mean([1, 2, 3], 1) == [1, 2, 3]


def test_ends_are_means_of_the_first_and_last_tenth() -> None:
    assert ends([*range(20)]) == (0.5, 18.5)
    assert ends([None, 4.0, None]) == (4.0, 4.0)
    assert ends([None]) is None


def test_quantiles_of_nothing_are_nothing() -> None:
    assert quantiles(np.array([])) is None
    assert quantiles(np.arange(11.0)) == (1, 2.5, 5, 7.5, 9)
