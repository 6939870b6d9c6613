"""What every engine refuses before it samples. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agon.engines.base import Sampling
from agon.errors import EngineError
from agon.records import Prompt


def check_requests(
    prompts: Sequence[Prompt],
    policy: str,
    sampling: Sampling,
    keys: Sequence[str],
    known: Sequence[str],
    context_limit: int,
    limits: Sequence[int] | None = None,
) -> np.ndarray:
    """Refuse what cannot be sampled; return each request's completion limit, (R,).

    Args:
        prompts: What is to be continued.
        policy: Who shall continue it.
        sampling: Length limit and temperature.
        keys: One for each prompt.
        known: Policies that there are.
        context_limit: Most tokens of prompt and completion together.
        limits: Completion limit of each prompt; None is `sampling.max_new_tokens` for all.

    Raises:
        EngineError: An unknown policy, a key or limit too few, a limit out of range, an empty
            prompt, or one that does not fit the context.
    """
    if policy not in known:
        raise EngineError(f"unknown policy {policy!r}: expected one of {', '.join(known)}")
    if len(keys) != len(prompts):
        raise EngineError(f"{len(prompts)} prompts came with {len(keys)} keys: give one each")
    most = sampling.max_new_tokens
    if most < 1:
        raise EngineError(f"sampling.max_new_tokens is {most}, expected 1 or more")
    limit_R = np.full(len(prompts), most) if limits is None else np.asarray(limits, dtype=int)
    if limit_R.shape != (len(prompts),):
        raise EngineError(f"{len(prompts)} prompts came with {len(limit_R)} limits: give one each")
    if len(limit_R) and not 1 <= limit_R.min() <= limit_R.max() <= most:
        raise EngineError(
            f"the limits lie between {limit_R.min()} and {limit_R.max()}, expected 1 to "
            f"sampling.max_new_tokens = {most}"
        )
    longest, limit = max(
        (
            (len(prompt.token_ids), int(limit))
            for prompt, limit in zip(prompts, limit_R, strict=True)
        ),
        key=sum,
        default=(0, 0),
    )
    if longest + limit > context_limit:
        name = "sampling.max_new_tokens" if limits is None else "its limit"
        raise EngineError(
            f"a prompt of {longest} tokens and {name} = {limit} make {longest + limit}, but "
            f"the model's context holds {context_limit}: lower {name} (or "
            "game.max_summary_tokens, which lengthens the challenger's prompt)"
        )
    if any(not prompt.token_ids for prompt in prompts):
        raise EngineError("a prompt has no tokens: there is nothing to continue")
    return limit_R
