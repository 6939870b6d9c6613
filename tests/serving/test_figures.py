"""A request with an evaluation's seed is sampled as `agon eval` samples it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from agon.engines.base import Sampling
from agon.evaluation.protocols import System, evaluate
from agon.preflight import read_language
from agon.recipes import load_recipe
from agon.rounds import Table
from agon.runs import RunFolder
from agon.tasks import countdown, load_task
from agon.tasks.asked import problem_of
from agon.tasks.splits import Split, stable_id
from agon.workshop import for_use, load_run_adapters, open_engine
from conftest import Running

PROBLEMS, SAMPLES, SEED = 12, 2, 5
SYSTEMS = ("base", "a", "b", "a->b", "b->a")
MODELS = {"base": "base", "a": "a", "b": "b", "a->b": "agon-a-b", "b->a": "agon-b-a"}


class Judge:
    """The task's own verifier, in this process."""

    def judge(self, items: Any) -> list[Any]:
        return [countdown.verify(problem.gold, answer or "") for problem, answer in items]


@pytest.fixture(scope="module")
def evaluated(run: Path) -> tuple[list[Any], dict[str, list[Any]]]:
    folder = RunFolder(run)
    config = for_use(folder.read_config())
    language = read_language(config)
    policies, engine = open_engine(config, language)
    load_run_adapters(folder, policies, 1)
    problems = list(load_task(config.task).problems[Split.DEV][:PROBLEMS])
    sampling = Sampling(config.sampling.max_new_tokens, config.sampling.temperature)
    table = Table(engine, Judge(), language.prompter)
    systems = [System(tuple(name.split("->"))) for name in SYSTEMS]
    return problems, evaluate(systems, problems, SAMPLES, SEED, sampling, table)


async def ask_all(url: str, problems: list[Any]) -> dict[tuple[str, str], Any]:
    """Everything at once: requests of all systems share batches."""
    found = {}
    async with httpx.AsyncClient(timeout=120.0) as client:

        async def one(system: str, problem: Any) -> None:
            body = {
                "model": MODELS[system],
                "messages": [{"role": "user", "content": problem.question}],
                "seed": SEED,
                "n": SAMPLES,
            }
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            found[system, problem.id] = answer.json()

        await asyncio.gather(*(one(s, p) for s in SYSTEMS for p in problems))
    return found


def test_answers_and_token_counts_equal_those_of_an_evaluation(
    served: Running, evaluated: tuple[list[Any], dict[str, list[Any]]]
) -> None:
    """Rounding may move a token between batches; on this model and these problems it does not."""
    problems, results = evaluated
    found = asyncio.run(ask_all(served.url, problems))
    for system in SYSTEMS:
        for attempt in results[system]:
            answer = found[system, attempt.problem]
            choice = answer["choices"][attempt.sample]
            assert choice["message"]["content"] == (attempt.answer or "")
            assert choice["agon"]["answered"] == (attempt.answer is not None)
            stages = choice["agon"]["stages"]
            assert tuple(stage["completion_tokens"] for stage in stages) == attempt.generated
            assert tuple(stage["prompt_tokens"] for stage in stages) == attempt.prompt
            assert choice["finish_reason"] == ("length" if attempt.truncated else "stop")
        usages = [found[system, problem.id]["usage"] for problem in problems]
        assert sum(usage["completion_tokens"] for usage in usages) == sum(
            sum(attempt.generated) for attempt in results[system]
        )
    assert len({a.answer for attempts in results.values() for a in attempts}) > 10
    assert served.idle


def test_a_question_that_is_asked_has_the_id_that_its_task_gives_it() -> None:
    config = load_recipe("countdown-agon", [])
    for problem in load_task(config.task).problems[Split.DEV][:50]:
        assert problem_of("countdown", f" {problem.question}\n").id == problem.id
    assert problem_of("gsm8k", "How  many?").id == stable_id("gsm8k", "how many?")
    with pytest.raises(ValueError, match="empty"):
        problem_of("gsm8k", " \n")
    with pytest.raises(ValueError, match="expected the form"):
        problem_of("countdown", "what is 2 + 2?")
