"""lm-evaluation-harness and inspect-ai, pointed at the server, find what `agon eval` finds.

Both run in an environment of their own (`make test-clients` sets it up and names its interpreter in
AGON_CLIENTS_PYTHON), or in this one where they are installed. Scores are taken by the task's own
verifier where it needs no more than Python (countdown) and by equal numbers (GSM8K).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agon.engines.base import Sampling
from agon.evaluation.protocols import System, evaluate
from agon.preflight import read_language
from agon.records import Outcome
from agon.rounds import Table
from agon.runs import RunFolder
from agon.tasks import load_task
from agon.tasks.splits import Split
from agon.verifiers import PooledJudge
from agon.workshop import for_use, load_run_adapters, open_engine
from conftest import Running, make_run, start_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMOLLM2 = Path(__file__).resolve().parents[2] / "models" / "smollm2-135m-instruct-dequantised"
SOURCES = str(Path(__file__).resolve().parents[2] / "src")
SEED = 3
SYSTEMS = {"base": "base", "a->b": "agon-a-b"}

SCORE = """
def right(task, gold, answer):
    if task == "countdown":
        from agon.tasks.countdown import verify
        return str(verify(gold, answer).outcome) == "right"
    return answer.strip().replace(",", "").lstrip("$") == gold


def process(doc, results):
    return {"acc": float(right(doc["task"], doc["gold"], results[0])), "said": results[0]}
"""

TASK = """
task: agon_rows
dataset_path: json
dataset_kwargs:
  data_files:
    test: {rows}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{gold}}}}"
generation_kwargs:
  until: []
  do_sample: true
  temperature: 1.0
  max_gen_toks: {limit}
process_results: !function score.process
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""

INSPECT = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate
from score import right

url, model, rows, limit, seed, logs = sys.argv[1:]
rows = [json.loads(line) for line in open(rows)]


@scorer(metrics=[accuracy()])
def same():
    async def score(state, target):
        said = state.output.completion
        return Score(value=float(right(state.metadata["task"], target.text, said)), answer=said)

    return score


config = GenerateConfig(temperature=1.0, max_tokens=int(limit), seed=int(seed), max_connections=8)
samples = [
    Sample(id=i, input=row["question"], target=row["gold"], metadata={"task": row["task"]})
    for i, row in enumerate(rows)
]
(log,) = eval(
    Task(dataset=samples, solver=generate(), scorer=same()),
    model=get_model(
        f"openai-api/agon/{model}", base_url=f"{url}/v1", api_key="none", config=config
    ),
    log_dir=logs, display="none", fail_on_error=True,
)
assert log.status == "success", log.error
print(json.dumps({
    "acc": log.results.scores[0].metrics["accuracy"].value,
    "said": {sample.id: sample.output.completion for sample in log.samples},
}))
"""


def interpreter(module: str) -> str:
    """A Python that has a harness; skips where there is none."""
    python = os.environ.get("AGON_CLIENTS_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{module} is not installed: `make test-clients` sets it up")
    return python


@dataclass(frozen=True)
class Scored:
    """A served run and what an evaluation finds on its rows."""

    served: Running
    rows: Path
    limit: int
    answers: dict[str, list[str]]
    rates: dict[str, float]


def scored(folder: Path, run: Path, problems: int) -> Scored:
    """Evaluate, then serve; the rows go to a file for the harnesses."""
    config = for_use(RunFolder(run).read_config())
    language = read_language(config)
    policies, engine = open_engine(config, language)
    load_run_adapters(RunFolder(run), policies, 1)
    chosen = list(load_task(config.task).problems[Split.DEV][:problems])
    judge = PooledJudge(config.verifier, config.code)
    limit = config.sampling.max_new_tokens
    try:
        table = Table(engine, judge, language.prompter)
        systems = [System(tuple(name.split("->"))) for name in SYSTEMS]
        results = evaluate(systems, chosen, 1, SEED, Sampling(limit), table)
    finally:
        judge.close()
    rows = folder / "rows.jsonl"
    lines = [{"question": p.question, "gold": p.gold, "task": config.task.name} for p in chosen]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "score.py").write_text(SCORE)
    (folder / "inspect_rows.py").write_text(INSPECT)
    (folder / "rows.yaml").write_text(TASK.format(rows=rows, limit=limit))
    rates = {
        name: sum(a.outcome is Outcome.RIGHT for a in found) / len(found)
        for name, found in results.items()
    }
    answers = {name: [a.answer or "" for a in found] for name, found in results.items()}
    return Scored(start_server(run), rows, limit, answers, rates)


@pytest.fixture(scope="module")
def countdown(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scored]:
    made = scored(tmp_path_factory.mktemp("countdown"), run, 24)
    yield made
    made.served.stop()


@pytest.fixture(scope="module")
def gsm8k(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scored]:
    if not SMOLLM2.is_dir():
        pytest.skip("SmolLM2 is not here: `make smollm2` builds it")
    folder = tmp_path_factory.mktemp("gsm8k")
    run = make_run(
        folder / "run",
        f"model.name_or_path={SMOLLM2}",
        f"task.path={shared_data / 'gsm8k'}",
        "sampling.max_new_tokens=64",
        recipe="smollm2-gsm8k",
    )
    made = scored(folder, run, 6)
    yield made
    made.served.stop()


def run_lm_eval(case: Scored, model: str, out: Path) -> tuple[float, list[str]]:
    folder = case.rows.parent
    arguments = (
        f"model={model},base_url={case.served.url}/v1/chat/completions,num_concurrent=8,"
        f"max_retries=1,seed={SEED},eos_string=<|never|>"
    )
    command = [
        interpreter("lm_eval"), "-m", "lm_eval", "--model", "local-chat-completions",
        "--model_args", arguments, "--tasks", "agon_rows", "--include_path", str(folder),
        "--apply_chat_template", "--log_samples", "--output_path", str(out),
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": f"{folder}:{SOURCES}", "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(out / "hub"), "OPENAI_API_KEY": "none",
    }  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = out.rglob("results_*.json")
    (samples,) = out.rglob("samples_agon_rows_*.jsonl")
    accuracy = json.loads(results.read_text())["results"]["agon_rows"]["acc,none"]
    rows = sorted(
        (json.loads(line) for line in samples.read_text().splitlines()), key=lambda r: r["doc_id"]
    )
    return float(accuracy), [row["resps"][0][0] for row in rows]


def run_inspect(case: Scored, model: str, out: Path) -> tuple[float, list[str]]:
    folder = case.rows.parent
    command = [
        interpreter("inspect_ai"), str(folder / "inspect_rows.py"), case.served.url, model,
        str(case.rows), str(case.limit), str(SEED), str(out),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{SOURCES}"}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    said = found["said"]
    return float(found["acc"]), [said[str(index)] for index in range(len(said))]


@pytest.mark.parametrize("rows", ["countdown", "gsm8k"])
@pytest.mark.parametrize("harness", [run_lm_eval, run_inspect])
@pytest.mark.parametrize("system", list(SYSTEMS))
def test_a_harness_gets_the_answers_and_the_score_of_an_evaluation(
    request: pytest.FixtureRequest, tmp_path: Path, rows: str, harness: Any, system: str
) -> None:
    interpreter("lm_eval" if harness is run_lm_eval else "inspect_ai")
    case: Scored = request.getfixturevalue(rows)
    accuracy, said = harness(case, SYSTEMS[system], tmp_path / "out")
    assert said == case.answers[system]
    assert accuracy == pytest.approx(case.rates[system])
    if rows == "countdown":
        assert 0 < accuracy < 1
    assert case.served.idle
