"""Log-probabilities of batches, and gradients through shared prefixes, are those of plain rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import models
from agon.logprobs import Scorer, collate
from agon.objective import Row
from agon.policies import Policies
from agon.records import Draft
from agon.update import stream_rows

SHAPES = [(3, 12), (14, 1), (1, 5), (7, 7), (2, 20), (9, 3)]
ARCHITECTURES = ["llama", "qwen3", "mistral", "gemma3", "gemma4", "granite"]


def random_rows(seed: int, shapes: list[tuple[int, int]]) -> list[Row]:
    """Rows of random tokens with (prompt, completion) lengths."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length: int) -> tuple[int, ...]:
        ids = torch.randint(2, models.VOCABULARY, (length,), generator=generator)
        return tuple(ids.tolist())

    return [
        Row(tokens(prompt), tokens(completion), (-1.0,) * completion, 1.0)
        for prompt, completion in shapes
    ]


def groups(policies: Policies, policy: str, sizes: tuple[int, ...] = (4, 3, 1)) -> list[Draft]:
    """Rollouts in groups: equal prompts, then prompts that share a beginning, then a lone one."""
    drafts = models.sampled_by(policies, policy, [0.5] * sum(sizes), noise=0.2, longest=9)
    generator = torch.Generator().manual_seed(5)

    def tokens(length: int) -> tuple[int, ...]:
        ids = torch.randint(2, models.VOCABULARY, (length,), generator=generator)
        return tuple(ids.tolist())

    shared = [tokens(11), tokens(9), tokens(4)]
    grouped = []
    for place, draft in enumerate(drafts):
        group = 0 if place < sizes[0] else 1 if place < sizes[0] + sizes[1] else 2
        prompt_ids = shared[group] + (tokens(1 + place % 3) if group == 1 else ())
        with torch.no_grad():
            old = models.plain_logprobs(
                policies, policy, prompt_ids, draft.reply.completion.token_ids
            )
        noisy = (old + 0.2 * torch.randn(len(old), generator=generator)).tolist()
        advantage = (-1.0) ** place * (0.3 + 0.2 * place)
        grouped.append(
            models.draft(prompt_ids, draft.reply.completion.token_ids, noisy, advantage, policy)
        )
    return grouped


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_of_padded_rows_are_those_of_each_row_alone(
    architecture: str, temperature: float
) -> None:
    policies = models.tiny_policies(base=models.tiny_base(architecture))
    rows = random_rows(1, SHAPES)
    scorer = Scorer(policies.model, models.PAD)
    batch = collate(rows, [0] * len(rows), models.PAD, models.CPU)
    with policies.active("b"), torch.no_grad():
        logprobs_N = scorer.logprobs(batch, temperature)
        alone_N = torch.cat(
            [
                models.plain_logprobs(
                    policies, "b", row.prompt_ids, row.completion_ids, temperature
                )
                for row in rows
            ]
        )
    torch.testing.assert_close(logprobs_N, alone_N, atol=1e-5, rtol=0)


def test_the_padding_token_reaches_no_result() -> None:
    policies = models.tiny_policies()
    rows = random_rows(2, SHAPES)
    results = []
    for pad in (0, 17):
        scorer = Scorer(policies.model, pad)
        with policies.active("a"), torch.no_grad():
            batch = collate(rows, [0] * len(rows), pad, models.CPU)
            results.append(scorer.logprobs(batch, temperature=1.0))
    assert torch.equal(*results)


def test_collate_lines_completions_up_by_input_position() -> None:
    rows = [
        Row((5, 6, 7), (8, 9), (-0.5, -0.25), 2.0),
        Row((5,), (7, 8, 9, 10), (-1.0, -2.0, -3.0, -4.0), -1.0),
    ]
    batch = collate(rows, [1, 0], 0, models.CPU)
    assert batch.input_ids_BL.tolist() == [[6, 7, 8, 0], [5, 7, 8, 9]]
    assert batch.places_N.tolist() == [1, 2, 4, 5, 6, 7]
    assert batch.targets_N.tolist() == [8, 9, 7, 8, 9, 10]
    assert batch.sampler_logprobs_N.tolist() == [-0.5, -0.25, -1, -2, -3, -4]
    assert batch.advantages_N.tolist() == [2, 2, -1, -1, -1, -1]
    assert batch.rows_N.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("budget", [24, 60, 10_000])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sharing_prefixes_leaves_loss_and_gradient(
    architecture: str, budget: int, beta: float
) -> None:
    policies = models.tiny_policies(base=models.tiny_base(architecture))
    drafts = groups(policies, "b")
    results = []
    for share in (False, True):
        config = models.settings(
            objective={"beta": beta},
            training={"share_prefixes": share, "microbatch_tokens": budget},
        )
        models.clear_gradients(policies)
        updater = models.updater(policies, config)
        figures = updater.backward("b", *stream_rows(drafts, config))
        results.append((models.gradients(policies, "b"), figures))
    (plain, plain_figures), (shared, shared_figures) = results
    models.assert_same(shared, plain, relative=2e-5)
    assert shared_figures == pytest.approx(plain_figures, rel=1e-4)


def test_a_shared_prefix_is_run_once() -> None:
    policies = models.tiny_policies()
    drafts = groups(policies, "a")
    config = models.settings(training={"share_prefixes": True})
    updater = models.updater(policies, config)
    shapes: list[tuple[int, ...]] = []
    policies.model.get_input_embeddings().register_forward_hook(
        lambda _module, args, _output: shapes.append(tuple(args[0].shape))
    )
    updater.backward("a", *stream_rows(drafts, config))
    longest = max(draft.reply.length for draft in drafts)
    # Two prefixes; the seven rows that continue them; the row that shares nothing.
    assert shapes[0] == (2, 10)
    assert shapes[1][0] == 7
    assert shapes[1][1] <= longest + 3
    assert shapes[2][0] == 1
    assert len(shapes) == 3


def test_a_prefix_gradient_is_there_at_all() -> None:
    """Cutting the graph at the prefix's keys without joining it again would change the result."""
    policies = models.tiny_policies()
    config = models.settings()
    rows, weights = stream_rows(groups(policies, "a"), config)
    updater = models.updater(policies, config)
    updater.backward("a", rows, weights)
    whole = models.gradients(policies, "a")
    models.clear_gradients(policies)
    prefixes: list[Any] = []
    original = updater._scorer.prefixes

    def keep(pack: Any) -> Any:
        made = original(pack)
        if made is not None:
            made.backward = lambda: prefixes.append(made)
        return made

    updater._scorer.prefixes = keep  # type: ignore[method-assign]
    updater.backward("a", rows, weights)
    with pytest.raises(AssertionError):
        models.assert_same(models.gradients(policies, "a"), whole, relative=1e-3)
    assert len(prefixes) == 1


def test_no_logits_are_kept() -> None:
    """What a forward pass saves for the backward one has no tensor as wide as the vocabulary."""
    wide = 4099
    policies = models.tiny_policies(base=models.tiny_base(vocab_size=wide))
    scorer = Scorer(policies.model, models.PAD)
    batch = collate(random_rows(1, SHAPES), [0] * len(SHAPES), models.PAD, models.CPU)
    saved: list[torch.Size] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.shape)
        return tensor

    with policies.active("a"), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        scorer.logprobs(batch, 1.0).sum().backward()
    assert saved
    assert not [shape for shape in saved if wide in shape]
