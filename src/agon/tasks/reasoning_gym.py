"""Any data set of reasoning-gym (an extra): generated problems with their own scorers.

Entries are generated in order from `task.generator_seed`; each question is taken once. The first
`task.test_problems` are test, the next `task.dev_problems` dev, the rest train, so no question
stands in two splits. Where an entry hangs on its index alone, as in nearly all data sets, asking
for more training problems changes neither dev nor test.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from typing import Any

from agon.config import TaskConfig
from agon.errors import ConfigError, DataError
from agon.records import Problem
from agon.tasks.splits import Split, stable_id
from agon.verifiers.generated import HASH_SEED, gold_of

TRIES = 2
"""Entries that are looked at for each problem that is wanted; small data sets repeat themselves."""


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems of each split and notes on what was dropped.

    Raises:
        ConfigError: reasoning-gym is not installed, or has no such data set or option.
        DataError: The data set has too few different questions, or fails to generate.
    """
    name = config.dataset or ""
    check_known(name)
    held_out = config.test_problems + config.dev_problems
    wanted = held_out + config.train_problems
    entries, looked_at = _entries(config, wanted)
    if len(entries) <= held_out:
        raise DataError(
            f"task.dataset: {name} has only {len(entries)} different questions among {looked_at}, "
            f"too few to hold out {held_out} for dev and test and train on the rest: lower "
            "task.dev_problems and task.test_problems, or widen task.dataset_options"
        )
    problems = [_problem(config, TRIES * wanted, *entry) for entry in entries]
    notes = []
    if repeated := looked_at - len(entries):
        notes.append(f"{repeated} of {looked_at} entries of {name} repeat a question.")
    if len(problems) < wanted:
        notes.append(
            f"{name} has {len(problems) - held_out} training problems instead of the "
            f"{config.train_problems} of task.train_problems."
        )
    test = config.test_problems
    return {
        Split.TRAIN: tuple(problems[held_out:]),
        Split.DEV: tuple(problems[test:held_out]),
        Split.TEST: tuple(problems[:test]),
    }, notes


def check_known(name: str) -> None:
    """Check that reasoning-gym is installed and has a data set.

    Raises:
        ConfigError: It is not, or has not.
    """
    try:
        from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            'task.name = "reasoning_gym" needs reasoning-gym: pip install '
            f"'agon-rl[reasoning-gym]' ({error})"
        ) from error
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=5)
        meant = f"; did you mean {', '.join(close)}?" if close else "."
        raise ConfigError(
            f"task.dataset: reasoning-gym has no data set {name!r}{meant} It has "
            f"{', '.join(sorted(DATASETS))}"
        )


def _entries(config: TaskConfig, wanted: int) -> tuple[list[tuple[int, str, str | None]], int]:
    """(index, question, answer) of different questions, and how many entries were looked at."""
    spec = {
        "dataset": config.dataset,
        "options": config.dataset_options,
        "seed": config.generator_seed,
        "size": TRIES * wanted,
        "wanted": wanted,
    }
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agon.tasks.generate", json.dumps(spec)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": HASH_SEED},
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DataError(f"task.dataset: generating {config.dataset} failed: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    if "config" in found:
        raise ConfigError(found["config"])
    if "data" in found:
        raise DataError(found["data"])
    return [tuple(entry) for entry in found["entries"]], found["looked_at"]


def _problem(
    config: TaskConfig, size: int, index: int, question: str, answer: str | None
) -> Problem:
    options, seed = config.dataset_options, config.generator_seed
    gold = gold_of(config.dataset or "", options, seed, size, index, answer)
    return Problem(stable_id("reasoning_gym", question), question, gold, "generated")
