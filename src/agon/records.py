"""The records that travel through Agon: problem, prompt, reply, verdict, draft, challenge, round.

Frozen, plain data. This module imports neither torch nor any other module of the package and
computes nothing: parsing lives in `parsing`, credit in `rewards`, the game in `rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What a verifier can say of a reply."""

    RIGHT = "right"
    WRONG = "wrong"
    UNSCORED = "unscored"


class Role(StrEnum):
    """Which stage of a round a rollout belongs to."""

    DRAFT = "draft"
    CHALLENGE = "challenge"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with its gold answer.

    Attributes:
        id: Stable name, derived from the normalised question; it decides the split.
        question: The text shown to the policies.
        gold: The gold answer in the form that the verifier reads.
        verifier: Name of the verifier, a key of `agon.verifiers.verifiers_of`, or a function of
            the user's own as `package.module:function`.
    """

    id: str
    question: str
    gold: str
    verifier: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and encoded prompt.

    Attributes:
        text: The rendered chat prompt, for people and logs.
        token_ids: What the engine is given.
        thinking_open: Whether the chat template has already opened the thinking block.
    """

    text: str
    token_ids: tuple[int, ...]
    thinking_open: bool


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Which policy wrote a completion: `base`, `a` or `b`, after how many optimizer steps."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns for one prompt.

    Attributes:
        token_ids: Generated tokens, the end-of-turn token included when it was reached.
        logprobs: Natural-log probability of each of them under the sampled distribution.
        entropies: Entropy in nats of the distribution that each was drawn from, or an unbiased
            estimate of it, where the engine cannot see the whole distribution.
        truncated: True when the token limit ended it.
        policy: Who wrote it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    truncated: bool
    policy: PolicyVersion


@dataclass(frozen=True, slots=True)
class Reply:
    """A completion read as thinking, summary and answer.

    Attributes:
        text: The decoded completion without its end-of-turn token.
        thinking: The reasoning trace, or None when no thinking was closed.
        summary: Content of the single closed, non-empty summary block after the thinking.
        answer: Content of the single closed, non-empty answer block after the thinking.
        format_score: phi of the design, one of 0, 0.5 and 1.
        completion: The tokens behind the text.
    """

    text: str
    thinking: str | None
    summary: str | None
    answer: str | None
    format_score: float
    completion: Completion

    @property
    def length(self) -> int:
        """Generated tokens."""
        return len(self.completion.token_ids)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of a reply.

    Attributes:
        outcome: Right, wrong, or unscored.
        reason: In a few words, the rule that decided it.
        tests: For a program, what each test said, in the tests' order.
        detail: More for people who ask: how both answers were read, or a failure's traceback.
    """

    outcome: Outcome
    reason: str
    tests: tuple[str, ...] = ()
    detail: str = ""

    @property
    def scored(self) -> bool:
        """Whether the verifier reached a judgement."""
        return self.outcome is not Outcome.UNSCORED

    @property
    def correct(self) -> int:
        """The design's c: 1 for right, 0 otherwise. Meaningful only when scored."""
        return int(self.outcome is Outcome.RIGHT)


@dataclass(frozen=True, slots=True)
class Reward:
    """One rollout's reward, term by term; `total` is what the advantage is computed from."""

    correctness: float = 0.0
    rivalry: float = 0.0
    tiebreak: float = 0.0
    format: float = 0.0
    length: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return self.correctness + self.rivalry + self.tiebreak + self.format + self.length


@dataclass(frozen=True, slots=True)
class Draft:
    """One first-stage rollout; `reward` is None when it is unscored."""

    prompt: Prompt
    reply: Reply
    verdict: Verdict
    reward: Reward | None
    advantage: float


@dataclass(frozen=True, slots=True)
class Challenge:
    """One second-stage rollout, judged against a rival draft of the same problem.

    Attributes:
        shown: The text passed on as the rival's summary; None when the exchange is hidden.
        rival: Index within the group of the draft that the credit is computed against.
    """

    prompt: Prompt
    reply: Reply
    verdict: Verdict
    reward: Reward | None
    advantage: float
    shown: str | None
    rival: int


@dataclass(frozen=True, slots=True)
class Round:
    """One step's rollouts: P problems, a group of N drafts each and as many challenges or none.

    Attributes:
        step: Index of the step, from 0.
        drafter: Name of the policy that drafted.
        challenger: Name of the policy that challenged; None without a second stage.
        problems: The P problems.
        drafts_PN: Drafts by problem and sample.
        challenges_PN: Challenges by problem and sample; empty groups without a second stage.
    """

    step: int
    drafter: str
    challenger: str | None
    problems: tuple[Problem, ...]
    drafts_PN: tuple[tuple[Draft, ...], ...]
    challenges_PN: tuple[tuple[Challenge, ...], ...]
