"""The made-up experiment that all tests of the report share."""

from __future__ import annotations

from pathlib import Path

import pytest

from agon.experiments.spec import Experiment, load_experiment
from made_up_results import experiment_text


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment's file."""
    path = tmp_path_factory.mktemp("experiment") / "made-up.toml"
    path.write_text(experiment_text())
    return path


@pytest.fixture(scope="session")
def experiment(spec: Path) -> Experiment:
    """The experiment."""
    return load_experiment(spec)
