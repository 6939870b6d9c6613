"""Train the embedded base: a small Llama that imitates noisy countdown searches.

Every demonstration, plain or challenger, is drawn from the same process: attempts are proposed,
worked out, and the search ends at the first hit or gives up after a miss with a fixed
probability. A proposal is a solution with probability GOOD and any legal chain otherwise. A
challenger's demonstration differs in one thing: with probability RHO its first attempt works out
the rival's proposal, whether that is right or wrong. What the rival is shown to have proposed
comes from the same search.

    python scripts/build_embedded_base.py --out src/agon/assets/countdown-base

RHO was set on untrained figures alone; docs/results.md has them. Only problems of the training
split are seen. Fully seeded; about half an hour on one core.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agon.records import Problem
from agon.tasks.countdown import Chain, chains, enumerate_problems, evaluate, read_question
from agon.tasks.splits import Split

GOOD = 0.15
GIVE_UP = 0.5
MOST_ATTEMPTS = 8
RHO = 0.3
MEAN_TOKENS = 40

PAD, USER, ASSISTANT, END, UNKNOWN = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<|unk|>"
TAGS = ["<think>", "</think>", "<summary>", "</summary>", "<answer>", "</answer>"]
WORDS = ["make ", " from ", " rival "]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('this model knows the roles user and assistant') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Numbers below 100, a few words and single characters; tags and turns are added tokens."""
    numbers = [str(n) for n in range(100)] + [f"0{n}" for n in range(10)]
    characters = [chr(code) for code in range(32, 127) if not chr(code).isdigit()] + ["\n"]
    specials = [PAD, USER, ASSISTANT, END, UNKNOWN]
    symbols = specials + TAGS + WORDS + numbers + characters
    tokenizer = Tokenizer(
        models.WordLevel({s: i for i, s in enumerate(symbols)}, unk_token=UNKNOWN)
    )
    pattern = Regex("make | from | rival |[0-9]{1,2}|[\\s\\S]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """About 0.35 million parameters, tied embeddings."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.05,
    )
    return LlamaForCausalLM(config)


def worked(chain: Chain) -> str:
    """A chain with its values, as written in the trace: `4*7=28-6=22`."""
    x, first, y, second, z = chain
    middle, value = evaluate(chain)
    return f"{x}{first}{y}={middle}{second}{z}={value}"


def search(problem: Problem, rng: random.Random, first: Chain | None = None) -> list[Chain]:
    """Attempts of one noisy search; `first` is tried before any proposal of its own."""
    numbers, target = read_question(problem.question)
    legal = chains(numbers)
    hits = [chain for chain in legal if evaluate(chain)[1] == target]
    attempts: list[Chain] = []
    while True:
        if first is not None and not attempts:
            attempts.append(first)
        else:
            attempts.append(rng.choice(hits if rng.random() < GOOD else legal))
        hit = evaluate(attempts[-1])[1] == target
        if hit or len(attempts) == MOST_ATTEMPTS or rng.random() < GIVE_UP:
            return attempts


def reply(attempts: list[Chain]) -> str:
    """The think, summary, answer form around a search."""
    last = attempts[-1]
    trace = ";".join(worked(chain) for chain in attempts)
    answer = "".join(map(str, last))
    return f"<think>{trace}</think><summary>{worked(last)}</summary><answer>{answer}</answer>"


def demonstration(problem: Problem, rho: float, rng: random.Random) -> tuple[str, str]:
    """User turn and reply; plain and challenger prompts alike often."""
    if rng.random() < 0.5:
        return problem.question, reply(search(problem, rng))
    rival = search(problem, rng)[-1]
    first = rival if rng.random() < rho else None
    return f"{problem.question} rival {worked(rival)}", reply(search(problem, rng, first))


def batches(
    problems: list[Problem],
    rho: float,
    rows: int,
    tokenizer: PreTrainedTokenizerFast,
    rng: random.Random,
) -> Iterator[dict[str, torch.Tensor]]:
    """Endless batches: right-padded ids, mask and labels (-100 off the reply), (rows, length).

    Rows of like length share a batch, since otherwise half of the work would be padding.
    """
    while True:
        pairs = [demonstration(rng.choice(problems), rho, rng) for _ in range(rows * 8)]
        heads = tokenizer([f"{USER}{user}{END}{ASSISTANT}" for user, _ in pairs])["input_ids"]
        tails = tokenizer([text + END for _, text in pairs])["input_ids"]
        encoded = sorted(zip(heads, tails, strict=True), key=lambda pair: len(pair[0] + pair[1]))
        chunks = [encoded[start : start + rows] for start in range(0, len(encoded), rows)]
        rng.shuffle(chunks)
        for chunk in chunks:
            yield collate(chunk, tokenizer.pad_token_id)


def collate(
    encoded: list[tuple[list[int], list[int]]], pad_token_id: int
) -> dict[str, torch.Tensor]:
    """Tensors of one batch of (prompt, reply) token lists."""
    longest = max(len(head + tail) for head, tail in encoded)
    ids = torch.full((len(encoded), longest), pad_token_id)
    labels = torch.full_like(ids, -100)
    for row, (head, tail) in enumerate(encoded):
        end = len(head) + len(tail)
        ids[row, :end] = torch.tensor(head + tail)
        labels[row, len(head) : end] = torch.tensor(tail)
    mask = (ids != pad_token_id).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="continue from this folder's weights")
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--rho", type=float, default=RHO)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    problems = list(enumerate_problems(Split.TRAIN))
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    if arguments.start:
        model = LlamaForCausalLM.from_pretrained(arguments.start)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, weight_decay=0.01)
    warm = min(100, arguments.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / arguments.steps)) + 0.01
        ),
    )
    started, losses = time.time(), []
    data = batches(problems, arguments.rho, arguments.rows, tokenizer, rng)
    for step, inputs in enumerate(islice(data, arguments.steps), start=1):
        labels = inputs.pop("labels")[:, 1:]
        logits = model(**inputs).logits[:, :-1]
        total = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum")
        # A constant divisor weighs every token alike; the mean over a batch of short replies
        # would weigh its tokens more, and teach the model to give up too early.
        loss = total / (arguments.rows * MEAN_TOKENS)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 0:
            mean = sum(losses[-100:]) / 100
            print(f"step {step} loss {mean:.4f} {time.time() - started:.0f} s", flush=True)
        if step % 1000 == 0 or step == arguments.steps:
            model.save_pretrained(arguments.out)
            tokenizer.save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
