"""Old log-probabilities by the trainer's word, and weights for a sampler that is not the trainer.

The closed form is written out token by token in plain numbers; nothing of it uses the package's
tensor code.
"""

from __future__ import annotations

import math

import pytest
import torch

import models
from agon.errors import ConfigError
from agon.objective import importance_weights
from agon.recipes import build_config
from agon.records import Draft
from agon.trainer import update_figures
from agon.update import Updater, stream_rows

ADVANTAGES = [1.2, -0.8, 0.5, -1.0, 0.3, -0.2]
NOISE = 0.4
TRAINER = {"old_logprobs": "trainer"}


def logprobs_now(policies: models.Policies, draft: Draft) -> list[float]:
    """By a plain forward pass of one row."""
    ids = draft.prompt.token_ids, draft.reply.completion.token_ids
    with torch.no_grad():
        return [float(value) for value in models.plain_logprobs(policies, "b", *ids)]


def closed_form(
    now: list[list[float]],
    old: list[list[float]],
    sampler: list[list[float]],
    clip: float,
    cap: float | None,
) -> tuple[float, int]:
    """The dapo loss of rows with `ADVANTAGES` and the number of truncated tokens."""
    total, truncated, tokens = 0.0, 0, sum(map(len, now))
    for advantage, *row in zip(ADVANTAGES, now, old, sampler, strict=True):
        for log_p, log_pi, log_mu in zip(*row, strict=True):
            ratio = math.exp(log_p - log_pi)
            clipped = min(max(ratio, 1 - clip), 1 + clip)
            loss = -min(ratio * advantage, clipped * advantage)
            weight = 1.0
            if cap is not None:
                weight = min(math.exp(log_pi - log_mu), cap)
                truncated += math.exp(log_pi - log_mu) > cap
            total += weight * loss / tokens
    return total, truncated


def test_a_weight_is_the_ratio_of_trainer_to_sampler_cut_at_the_cap() -> None:
    trainer = torch.log(torch.tensor([0.2, 0.5, 0.9, 0.3])).requires_grad_()
    sampler = torch.log(torch.tensor([0.4, 0.5, 0.3, 0.1]))
    weights, truncated = importance_weights(trainer, sampler, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([0.5, 1.0, 2.0, 2.0]))
    assert truncated.tolist() == [False, False, True, True]
    assert not weights.requires_grad


@pytest.mark.parametrize("cap", [None, 1.1, 1e9])
def test_the_first_update_s_loss_and_gradient_are_the_closed_form(cap: float | None) -> None:
    """The ratio is one, so that each token's gradient is its weight times -A grad log p."""
    policies = models.tiny_policies()
    drafts = models.sampled_by(policies, "b", ADVANTAGES, noise=NOISE)
    config = models.settings(objective=TRAINER | {"importance_cap": cap})
    rows, weights = stream_rows(drafts, config)
    found = models.updater(policies, config).backward("b", rows, weights)
    gradients = models.gradients(policies, "b")
    models.clear_gradients(policies)

    now = [logprobs_now(policies, draft) for draft in drafts]
    sampler = [list(row.logprobs) for row in rows]
    expected, truncated = closed_form(now, now, sampler, config.objective.clip, cap)
    tokens = sum(map(len, now))
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.clipped == 0
    assert found.capped == pytest.approx(truncated / tokens)
    assert (truncated > 0) == (cap == 1.1)
    assert found.gap == pytest.approx(
        sum(
            abs(p - q) for x, y in zip(now, sampler, strict=True) for p, q in zip(x, y, strict=True)
        )
        / tokens,
        rel=1e-4,
    )
    with policies.active("b"):
        for row, ps, qs in zip(rows, now, sampler, strict=True):
            logprobs_T = models.plain_logprobs(policies, "b", row.prompt_ids, row.completion_ids)
            w = [
                1.0 if cap is None else min(math.exp(p - q), cap)
                for p, q in zip(ps, qs, strict=True)
            ]
            (-(logprobs_T * torch.tensor(w)).sum() * row.advantage / tokens).backward()
    models.assert_same(gradients, models.gradients(policies, "b"), relative=1e-5)


def test_later_updates_keep_the_first_one_s_log_probabilities_and_weights() -> None:
    policies = models.tiny_policies()
    drafts = models.sampled_by(policies, "b", ADVANTAGES, noise=NOISE)
    config = models.settings(objective=TRAINER | {"importance_cap": 1.1, "clip": 0.01})
    rows, weights = stream_rows(drafts, config)
    updater, old = models.updater(policies, config), {}
    first = [logprobs_now(policies, draft) for draft in drafts]
    updater.backward("b", rows, weights, old)
    with torch.no_grad():  # a step of the optimizer, as large as it likes
        for parameter in policies.parameters("b").values():
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1)
            )
    second = updater.backward("b", rows, weights, old)
    now = [logprobs_now(policies, draft) for draft in drafts]
    sampler = [list(row.logprobs) for row in rows]
    expected, truncated = closed_form(now, first, sampler, 0.01, 1.1)
    assert second.loss == pytest.approx(expected, rel=1e-4)
    assert second.capped == pytest.approx(truncated / sum(map(len, now)))
    assert 0 < second.clipped < 1
    wrong, _ = closed_form(now, now, sampler, 0.01, 1.1)
    assert abs(wrong - expected) > 1e-3 * abs(expected)


@pytest.mark.parametrize("mu", [1, 2])
def test_a_step_of_the_updater_uses_the_first_update_s_word_throughout(mu: int) -> None:
    """With one update nothing is ever clipped, whatever the sampler said; with two something is."""
    policies = models.tiny_policies()
    drafts = models.sampled_by(policies, "b", ADVANTAGES, noise=NOISE)
    config = models.settings(objective=TRAINER | {"updates_per_step": mu, "clip": 1e-4})
    stats = models.updater(policies, config).step("b", [drafts], 1e-2)
    assert (stats.clipped > 0) == (mu == 2)
    assert stats.ratio_gap > 0.1


def test_a_sampler_without_a_gap_makes_all_settings_agree() -> None:
    results = []
    for objective in ({}, TRAINER, TRAINER | {"importance_cap": 2.0}):
        policies = models.tiny_policies()
        drafts = models.sampled_by(policies, "b", ADVANTAGES)
        config = models.settings(objective=objective)
        updater = models.updater(policies, config)
        figures = updater.backward("b", *stream_rows(drafts, config))
        results.append((figures.loss, models.gradients(policies, "b")))
    for loss, gradients in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-6)
        models.assert_same(gradients, results[0][1], relative=1e-5)


@pytest.mark.parametrize("budget", [1, 10**9])
@pytest.mark.parametrize("share", [True, False])
def test_neither_microbatches_nor_shared_prefixes_mix_rows_up(budget: int, share: bool) -> None:
    policies = models.tiny_policies()
    drafts = models.sampled_by(policies, "b", ADVANTAGES, noise=NOISE)
    config = models.settings(
        objective=TRAINER | {"importance_cap": 1.1},
        training={"microbatch_tokens": budget, "share_prefixes": share},
    )
    rows, weights = stream_rows(drafts, config)
    old: dict[int, torch.Tensor] = {}
    Updater(policies, config, models.PAD, models.CPU).backward("b", rows, weights, old)
    assert sorted(old) == list(range(len(rows)))
    for place, draft in enumerate(drafts):
        assert old[place].tolist() == pytest.approx(logprobs_now(policies, draft), abs=1e-5)


def test_the_truncated_share_is_a_metric_only_with_a_cap() -> None:
    for cap in (None, 1.1):
        policies = models.tiny_policies()
        drafts = models.sampled_by(policies, "b", ADVANTAGES, noise=NOISE)
        config = models.settings(objective=TRAINER | {"importance_cap": cap})
        figures = update_figures("b", models.updater(policies, config).step("b", [drafts], 1e-3))
        assert ("update.b.capped" in figures) == (cap is not None)
    assert 0 < figures["update.b.capped"] < 1


def test_a_cap_on_the_sampler_s_own_ratio_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r'importance_cap needs objective.old_logprobs = "trainer"'
    ):
        build_config({"objective": {"importance_cap": 2.0}})
