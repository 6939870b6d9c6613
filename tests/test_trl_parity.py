"""On the same batch our loss, adapter gradients and advantages equal TRL's, to rounding.

TRL's real `GRPOTrainer` gets a twin of the base with the same adapter. Its own
`_generate_and_score_completions` pads the rollouts, computes advantages, the denominator and the
reference, and its own `compute_loss` the loss; only sampling and the old log-probabilities are
given, the latter since TRL at one update a step takes the policy's present ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import models
from agon.config import Config
from agon.policies import Policies
from agon.records import Draft, Reward
from agon.rewards import group_advantages
from agon.update import stream_rows

GROUP, LIMIT = 4, 12
REWARDS: list[float | None] = [2.5, 0.0, 0.5, 3.5, 0.0, 2.25, 0.0, 0.5]
LOSS_TYPES = ["grpo", "dapo", "dr_grpo"]


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{index}": index for index in range(models.VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")),
        pad_token="w0",
        eos_token="w1",
        unk_token="w2",
    )


@dataclass
class Oracle:
    """TRL's trainer, ready for its forward pass."""

    trainer: Any
    drafts: Sequence[Draft]
    rewards: Sequence[float | None]

    def inputs(self) -> dict[str, torch.Tensor]:
        """The batch as TRL itself makes it from the rollouts and rewards."""
        prompts = [{"prompt": "w5", "index": index} for index in range(len(self.drafts))]
        batch = self.trainer._generate_and_score_completions(prompts)
        old_BT = torch.zeros(batch["completion_ids"].shape)
        for index, draft in enumerate(self.drafts):
            logprobs = draft.reply.completion.logprobs
            old_BT[index, : len(logprobs)] = torch.tensor(logprobs)
        return batch | {"old_per_token_logps": old_BT}

    def loss_and_gradients(self) -> tuple[float, dict[str, torch.Tensor]]:
        """TRL's loss, and the gradients of its adapter under our names."""
        loss = self.trainer.compute_loss(self.trainer.model, self.inputs())
        loss.backward()
        gradients = {
            name.replace(".default.", "."): parameter.grad
            for name, parameter in self.trainer.model.named_parameters()
            if parameter.requires_grad
        }
        return loss.item(), gradients


def oracle(
    policies: Policies,
    drafts: Sequence[Draft],
    rewards: Sequence[float | None],
    config: Config,
    folder: Path,
    **more: Any,
) -> Oracle:
    """A GRPOTrainer of the same settings whose adapter is a copy of `b`.

    The penalty's correction for the ratio, on by default in TRL 1.16, is off unless `more` has it.
    """
    trl = pytest.importorskip("trl")

    def rollouts(_prompts: Any, _trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [list(draft.prompt.token_ids) for draft in drafts],
            "completion_ids": [list(draft.reply.completion.token_ids) for draft in drafts],
            "logprobs": None,
        }

    def reward(index: list[int], **_: Any) -> list[float | None]:
        return [rewards[place] for place in index]

    objective = config.objective
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = trl.GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            report_to="none",
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=len(drafts),
            gradient_accumulation_steps=1,
            num_generations=GROUP,
            max_completion_length=config.sampling.max_new_tokens,
            loss_type=objective.aggregation,
            scale_rewards="group" if objective.scale_rewards else "none",
            epsilon=objective.clip,
            beta=objective.beta,
            temperature=config.sampling.temperature,
            **{"use_bias_correction_kl": False} | more,
        )
        trainer = trl.GRPOTrainer(
            model=models.tiny_base(),
            args=arguments,
            reward_funcs=reward,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["w5"] * len(drafts)}),
            processing_class=word_tokenizer(),
            peft_config=LoraConfig(
                r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            rollout_func=rollouts,
        )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    ours = models.weights(policies, "b")
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(ours[name.replace(".default.", ".")])
    return Oracle(trainer, drafts, rewards)


def credited(
    drafts: Sequence[Draft], rewards: Sequence[float | None], config: Config
) -> list[Draft]:
    """The rollouts with our advantages; a reward of None makes them unscored."""
    advantages = [
        advantage
        for start in range(0, len(rewards), GROUP)
        for advantage in group_advantages(
            rewards[start : start + GROUP], config.objective.scale_rewards
        )
    ]
    return [
        replace(
            draft,
            reward=None if reward is None else Reward(correctness=reward),
            advantage=advantage,
        )
        for draft, reward, advantage in zip(drafts, rewards, advantages, strict=True)
    ]


def ours(
    policies: Policies, drafts: Sequence[Draft], config: Config
) -> tuple[float, dict[str, torch.Tensor], float]:
    """Our loss, gradients and share of clipped tokens."""
    updater = models.updater(policies, config)
    loss, clipped, *_ = updater.backward("b", *stream_rows(drafts, config))
    return loss, models.gradients(policies, "b"), clipped


def setup(
    rewards: Sequence[float | None] = REWARDS, noise: float = 0.3, **objective: Any
) -> tuple[Policies, list[Draft], Config]:
    temperature = objective.pop("temperature", 1.0)
    config = models.settings(
        objective=objective, sampling={"temperature": temperature, "max_new_tokens": LIMIT}
    )
    policies = models.tiny_policies()
    drafts = models.sampled_by(
        policies, "b", [0.0] * len(rewards), noise=noise, temperature=temperature, longest=LIMIT
    )
    return policies, credited(drafts, rewards, config), config


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_and_gradients_equal_trl_s(
    loss_type: str, scale: bool, beta: float, temperature: float, tmp_path: Path
) -> None:
    """With clipped tokens of both signs, different lengths, left against right padding."""
    policies, drafts, config = setup(
        aggregation=loss_type, scale_rewards=scale, beta=beta, temperature=temperature
    )
    expected_loss, expected = oracle(
        policies, drafts, REWARDS, config, tmp_path
    ).loss_and_gradients()
    loss, gradients, clipped = ours(policies, drafts, config)
    assert clipped > 0.05
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    models.assert_same(gradients, expected, relative=1e-5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_without_old_log_probabilities_of_its_own_trl_is_our_first_update(
    loss_type: str, tmp_path: Path
) -> None:
    """The ratio is one: TRL takes the policy's present log-probabilities, we the sampler's."""
    policies, drafts, config = setup(noise=0.0, aggregation=loss_type)
    theirs = oracle(policies, drafts, REWARDS, config, tmp_path)
    inputs = theirs.inputs()
    del inputs["old_per_token_logps"]
    theirs.trainer.compute_loss(theirs.trainer.model, inputs).backward()
    expected = {
        name.replace(".default.", "."): parameter.grad
        for name, parameter in theirs.trainer.model.named_parameters()
        if parameter.requires_grad
    }
    _, gradients, clipped = ours(policies, drafts, config)
    assert clipped == 0
    models.assert_same(gradients, expected, relative=1e-5)


def test_trl_s_correction_of_the_penalty_for_the_ratio_is_not_ours(tmp_path: Path) -> None:
    """A departure: TRL's default loss holds r_t k_t, ours k_t as Shao et al. 2024 have it.

    At a ratio of one the losses are equal and the gradients differ by k_t grad log p_t.
    """
    policies, drafts, config = setup(noise=0.0, beta=0.5)
    corrected = {"use_bias_correction_kl": True}
    expected_loss, expected = oracle(
        policies, drafts, REWARDS, config, tmp_path, **corrected
    ).loss_and_gradients()
    loss, gradients, _ = ours(policies, drafts, config)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    gaps = [float((gradients[name] - value).abs().max()) for name, value in expected.items()]
    assert max(gaps) > 1e-3


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(
    "rewards",
    [
        REWARDS,
        [0.0, 0.0, 0.0, 0.5, 2.0, 2.0, 2.0, 2.0],
        [None, 0.0, 2.0, 2.5, None, None, 0.5, 3.0],
    ],
    ids=["all scored", "one group flat", "some unscored"],
)
def test_advantages_equal_trl_s(rewards: list[float | None], scale: bool, tmp_path: Path) -> None:
    policies, drafts, config = setup(rewards, scale_rewards=scale)
    advantages_B = oracle(policies, drafts, rewards, config, tmp_path).inputs()["advantages"]
    mine = [draft.advantage for draft in drafts]
    assert advantages_B.tolist() == pytest.approx(mine, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_unscored_rows_stay_in_trl_s_denominator_and_out_of_ours(
    loss_type: str, tmp_path: Path
) -> None:
    """A departure: both give them no advantage, but only TRL divides by their tokens or rows."""
    rewards: list[float | None] = [None, 0.0, 2.0, 2.5, 0.5, None, 3.0, 0.0]
    policies, drafts, config = setup(rewards, aggregation=loss_type)
    expected_loss, expected = oracle(
        policies, drafts, rewards, config, tmp_path
    ).loss_and_gradients()
    loss, gradients, _ = ours(policies, drafts, config)
    tokens = {True: 0, False: 0}
    for draft in drafts:
        tokens[draft.reward is not None] += draft.reply.length
    factor = sum(tokens.values()) / tokens[True] if loss_type == "dapo" else 8 / 6
    assert factor > 1.1
    assert loss == pytest.approx(factor * expected_loss, rel=1e-5, abs=1e-6)
    models.assert_same(
        gradients, {name: factor * value for name, value in expected.items()}, relative=1e-5
    )
