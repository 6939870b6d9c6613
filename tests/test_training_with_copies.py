"""Training where something else samples: what the loop logs, and what it does when that is lost.

The sampler is a second copy of the embedded base that reads the adapter folders
(`mirror.py`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file

import mirror
from agon.checkpoints import latest_checkpoint, load_checkpoint
from agon.display import Display
from agon.engines.adapter_store import AdapterStore, Copy
from agon.engines.base import Sampling
from agon.engines.canary import Canary
from agon.engines.following import FollowingEngine, Request, Sampled
from agon.errors import EngineError, SamplerLost
from agon.policies import load_base
from agon.preflight import read_language, read_task, training_problems
from agon.recipes import load_recipe
from agon.records import Problem
from agon.rounds import Table
from agon.runs import RunFolder
from agon.tasks.splits import Split
from agon.trainer import Trainer
from agon.workshop import Workshop, open_workshop

STEPS = 4
OVERRIDES = [
    f"training.steps={STEPS}",
    "training.problems_per_step=2",
    "training.device=cpu",
    "training.threads=1",
    "sampling.group_size=4",
    "sampling.max_new_tokens=48",
    "evaluation.every=0",
    "checkpoint.every=100",
]


class Fleeting(mirror.Mirror):
    """A mirror that fails for good after so many calls for whole stages."""

    stages = 10**9
    error: type[EngineError] = SamplerLost

    def sample(
        self, requests: Sequence[Request], adapter: Copy | None, sampling: Sampling, *rest: Any
    ) -> list[Sampled]:
        if len(requests) > len(mirror.PROMPTS):
            self.stages -= 1
        if self.stages < 0:
            raise self.error("the sampler is gone")
        return super().sample(requests, adapter, sampling, *rest)


def open_run(folder: Path, stages: int = 10**9) -> tuple[Trainer, Workshop, Fleeting]:
    """A trainer over the embedded base whose rollouts come from a mirror."""
    config = load_recipe("countdown-agon", OVERRIDES)
    language, data = read_language(config), read_task(config)
    shop = open_workshop(config, language)
    ends = language.prompter.end_token_ids
    backend = Fleeting(
        base=load_base(config.model), adapters=config.adapters, ends=ends, context_limit=512
    )
    backend.stages = stages
    question = data.problems[Split.DEV][0]
    prompts = [language.prompter.plain(Problem("c", question.question, "", "none"))] * 2
    canary = Canary(shop.policies, prompts, 1.0, language.pad_token_id, 0.1)
    store = AdapterStore(folder / "copies")
    engine = FollowingEngine(backend, shop.policies, store, canary, ends, language.context)
    shop = replace(shop, table=Table(engine, shop.judge, language.prompter), follower=engine)
    run = RunFolder(folder / "run")
    if not run.path.exists():
        run.create()
    problems = training_problems(data, config)
    return Trainer(config, run, shop, problems, [], {}), shop, backend


def train(trainer: Trainer) -> None:
    with Display(Console(file=io.StringIO()), STEPS, "run") as display:
        trainer.run(display)


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "run" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    trainer, shop, _ = open_run(folder)
    train(trainer)
    shop.close()
    return folder


def test_every_step_s_rollouts_are_by_the_adapters_as_the_step_before_left_them(
    whole: Path,
) -> None:
    for row in rows(whole, "rounds"):
        roles = ("draft", "challenge") if row["step"] % 2 == 0 else ("challenge", "draft")
        for role, name in zip(roles, "ab", strict=True):
            assert (row[role]["policy"], row[role]["version"]) == (name, row["step"])


def test_the_times_and_gaps_of_renewals_are_in_the_metrics(whole: Path) -> None:
    for row in rows(whole, "metrics"):
        assert row["time.sync"] > 0
        for name in ("a", "b"):
            assert 0 <= row[f"sync.{name}.gap"] < 1e-4
            assert 0 <= row[f"update.{name}.ratio_gap"] < 1e-4


def test_no_copy_is_left_when_the_workshop_closes(whole: Path) -> None:
    assert list((whole / "copies").iterdir()) == []


@pytest.mark.parametrize("stages", [2, 5])
def test_a_lost_sampler_saves_the_steps_that_are_done_and_resuming_gives_the_whole_run(
    stages: int, whole: Path, tmp_path: Path
) -> None:
    """Lost between two steps, and between the stages of one."""
    trainer, shop, _ = open_run(tmp_path, stages)
    with pytest.raises(SamplerLost):
        train(trainer)
    shop.close()
    saved = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert saved.name == f"step-{stages // 2:06d}"
    trainer, shop, _ = open_run(tmp_path)
    trainer.restore(load_checkpoint(saved, shop.policies, trainer.updater.optimizers))
    train(trainer)
    shop.close()
    last = f"run/checkpoints/step-{STEPS:06d}/adapters"
    for name in ("a", "b"):
        file = f"{last}/{name}/adapter_model.safetensors"
        one, other = load_file(whole / file), load_file(tmp_path / file)
        assert all(bool((one[key] == other[key]).all()) for key in one)
    timeless = [
        [{k: v for k, v in row.items() if not k.startswith(("time.", "memory."))} for row in found]
        for found in (rows(whole, "metrics"), rows(tmp_path, "metrics"))
    ]
    gaps = [
        [{k: row.pop(k) for k in list(row) if k.startswith("sync.")} for row in run]
        for run in timeless
    ]
    assert timeless[0] == timeless[1]
    assert len(gaps[0]) == len(gaps[1]) == STEPS
    assert rows(whole, "rounds") == rows(tmp_path, "rounds")


def test_an_engine_that_errs_in_another_way_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities that are not finite, an adapter ignored: the fault may lie further back."""
    monkeypatch.setattr(Fleeting, "error", EngineError)
    trainer, shop, _ = open_run(tmp_path, stages=2)
    with pytest.raises(EngineError):
        train(trainer)
    shop.close()
    assert latest_checkpoint(tmp_path / "run" / "checkpoints") is None
