"""One point of the growth benchmark: a random model samples rollouts and takes one update.

Each point runs in a process of its own, so that its peak memory is its own. The process is a fork
of a server that has imported everything and computed nothing, since importing takes longer than
most points.
"""

from __future__ import annotations

from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import workloads
from agon import process
from agon.engines.base import Sampling
from agon.engines.torch_engine import TorchEngine
from agon.records import Prompt
from arms.agon_update import POLICY, UpdateArm
from peers.memory import Meter, set_threads
from workloads import Point

VOCABULARY, HEAD_WIDTH = 4096, 32
END, PAD = 1, 0


def make_model(width: int, layers: int, seed: int) -> Any:
    """A random Llama whose head is tied to its embedding."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=max(1, width // HEAD_WIDTH // 2),
        head_dim=HEAD_WIDTH,
        max_position_embeddings=2**16,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def measure(point: Point, threads: int, repeats: int, seed: int) -> dict[str, Any]:
    """Sample and update so many times.

    Returns:
        `parameters` of the layers, and for `sampling` and `update` the repeats' seconds, the
        greatest peak in MiB, and what was resident before the first of them.
    """
    set_threads(threads)
    model = make_model(point.width, point.layers, seed)
    head = model.get_output_embeddings().weight.numel()
    parameters = sum(parameter.numel() for parameter in model.parameters()) - head
    arm = UpdateArm(model, point.microbatch_tokens, PAD, seed=seed)
    words = workloads.Vocabulary(tuple(range(2, VOCABULARY)), END, PAD)
    drawn = workloads.rollouts(
        point.problems, point.group, point.prompt, (point.length, point.length), 0, words, str(seed)
    )
    context = drawn.longest_prompt + point.length
    engine = TorchEngine(arm.policies, (), PAD, point.slots, context)
    prompts = [Prompt("", tuple(ids), thinking_open=False) for ids in drawn.prompts]
    keys = [f"{seed}/{index}" for index in range(len(prompts))]
    engine.generate(prompts[:2], POLICY, Sampling(2), keys[:2])  # folds the weights
    runs: dict[str, list[dict[str, float]]] = {"sampling": [], "update": []}
    for _ in range(repeats):
        meter = Meter()
        engine.generate(prompts, POLICY, Sampling(point.length), keys)
        runs["sampling"].append(meter.read())
    arm.load(asdict(drawn))
    arm.step(only=2)
    for _ in range(repeats):
        runs["update"].append(arm.step())
    return {
        "parameters": parameters,
        "tokens": drawn.tokens,
        **{
            part: {
                "seconds": [run["seconds"] for run in taken],
                "before_mib": taken[0]["before_mib"],
                "peak_mib": max(run["peak_mib"] for run in taken),
            }
            for part, taken in runs.items()
        },
    }


def answer(connection: Connection, point: Point, threads: int, repeats: int, seed: int) -> None:
    """Measure in this process and send the figures, or the error's text."""
    process.prepare()
    try:
        connection.send(measure(point, threads, repeats, seed))
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        raise
