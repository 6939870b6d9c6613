"""Rounds under every arm's settings: who samples what, what is shown, and what is paid for it."""

from __future__ import annotations

import ast
import itertools
import threading
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agon
from agon.config import Config
from agon.prompts import Prompter
from agon.records import Challenge, Draft, Problem, Role, Round, Verdict
from agon.rewards import ADVANTAGE_EPSILON, group_advantages
from agon.rounds import Table, derangement, exchange, play_round, rollout_keys, seats
from fakes import (
    UNJUDGED,
    BytePrompter,
    GoldJudge,
    Script,
    ScriptedEngine,
    key_parts,
    make_config,
    make_problems,
    make_reply,
    make_table,
    written,
)

P, N = 3, 2
NOBODY, PLAIN, OWN, FOREIGN, FILLER = "nobody", "plain", "own", "foreign", "filler"


@dataclass(frozen=True)
class Arm:
    """A row of the design's table: settings, and what must follow from them."""

    settings: Mapping[str, Any]
    sees: str
    even_seats: tuple[str, str | None] = ("a", "b")
    odd_seats: tuple[str, str | None] = ("b", "a")
    # R(b) without format by (c(b), c(rival)): wrong/wrong, wrong/right, right/right, right/wrong
    pay: tuple[float, float, float, float] = (0, 0, 2, 3)
    shared_rival: bool = False
    group: int = N


def one_policy(exchange: str = "none", **more: Any) -> dict[str, Any]:
    """Settings of an arm with one policy."""
    settings = {"game.policies": 1, "game.exchange": exchange, "reward.credit": "correctness"}
    return settings | {name.replace("__", "."): value for name, value in more.items()}


CORRECTNESS = (0.0, 0.0, 2.0, 2.0)
ALONE = {"sees": NOBODY, "even_seats": ("a", None), "odd_seats": ("a", None), "pay": CORRECTNESS}
ARMS = {
    "grpo": Arm(one_policy(), **ALONE),
    "grpo-2n": Arm(one_policy(sampling__group_size=2 * N), **ALONE, group=2 * N),
    "length-penalty": Arm(one_policy(reward__length_penalty=0.5), **ALONE),
    "self-refine": Arm(one_policy("paired"), OWN, ("a", "a"), ("a", "a"), CORRECTNESS),
    "cooperative": Arm({"reward.credit": "correctness"}, OWN, pay=CORRECTNESS),
    "agon": Arm({}, OWN),
    "margin": Arm({"reward.credit": "margin"}, OWN, pay=(0, -1, 2, 3)),
    "tiebreak": Arm({"reward.tiebreak": 0.5}, OWN),
    "fixed": Arm({"game.rotate": False}, OWN, odd_seats=("a", "b")),
    "hidden-shared": Arm(
        {"game.exchange": "hidden", "reward.rival": "shared"}, PLAIN, shared_rival=True
    ),
    "hidden-paired": Arm({"game.exchange": "hidden"}, PLAIN),
    "shuffled": Arm({"game.exchange": "shuffled"}, FOREIGN),
    "filler": Arm({"game.exchange": "filler"}, FILLER),
}
EACH_ARM = pytest.mark.parametrize("name", ARMS)
TWO_STAGE = pytest.mark.parametrize("name", [n for n, arm in ARMS.items() if arm.sees != NOBODY])


def config_of(name: str, **settings: Any) -> Config:
    """An arm's configuration, small and without format rewards unless asked for."""
    small = {"sampling.group_size": N, "reward.format_weight": 0.0}
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return make_config(small | dict(ARMS[name].settings) | given)


def answer_of(role: Role, problem: int, sample: int) -> bool:
    """Whether the script answers rightly: all four pairs of verdicts occur, whoever the rival."""
    number = N * problem + sample
    return number % 2 == 0 if role is Role.DRAFT else number // 2 % 2 == 0


def script(policy: str, key: str) -> str:
    """Every text can be traced to its stage, problem and sample."""
    role, problem, sample = key_parts(key)
    name = f"{role}-{policy}-{problem}-{sample}"
    answer = f"g{problem}" if answer_of(role, problem, sample) else f"{name}-miss"
    return written(answer, f"recap-{name}", f"thought-{name}")


def summary_of(policy: str, problem: int, sample: int) -> str:
    """The scripted summary of a draft."""
    return f"recap-{Role.DRAFT}-{policy}-{problem}-{sample}"


@dataclass
class Played:
    """A round with everything that was seen of it."""

    round: Round
    engine: ScriptedEngine
    judge: GoldJudge
    prompter: BytePrompter
    problems: list[Problem] = field(default_factory=list)

    def pairs(self) -> Iterator[tuple[int, int, Challenge, Draft]]:
        """Problem, sample, challenge and the draft it is credited against."""
        for p, challenges in enumerate(self.round.challenges_PN):
            for n, challenge in enumerate(challenges):
                yield p, n, challenge, self.round.drafts_PN[p][challenge.rival]


def play(
    config: Config, step: int = 0, write: Script = script, count: int = P, prompter: Any = None
) -> Played:
    """Play one round over fakes."""
    engine, judge, problems = ScriptedEngine(write), GoldJudge(), make_problems(count)
    prompter = prompter or BytePrompter()
    played = play_round(problems, step, config, Table(engine, judge, prompter))
    return Played(played, engine, judge, prompter, problems)


@EACH_ARM
def test_an_arms_seats_are_those_of_the_design(name: str) -> None:
    arm, config = ARMS[name], config_of(name)
    assert [seats(step, config.game) for step in range(4)] == [
        arm.even_seats,
        arm.odd_seats,
        arm.even_seats,
        arm.odd_seats,
    ]


@EACH_ARM
@pytest.mark.parametrize("step", [0, 1])
def test_each_stage_is_one_call_of_the_engine_by_the_policy_in_its_seat(name, step) -> None:
    arm, played = ARMS[name], play(config_of(name), step)
    drafter, challenger = arm.odd_seats if step else arm.even_seats
    assert (played.round.step, played.round.drafter, played.round.challenger) == (
        step,
        drafter,
        challenger,
    )
    policies = [drafter] if challenger is None else [drafter, challenger]
    assert [call.policy for call in played.engine.calls] == policies
    assert [len(call.prompts) for call in played.engine.calls] == [P * arm.group] * len(policies)
    for group in played.round.drafts_PN:
        assert {draft.reply.completion.policy.name for draft in group} == {drafter}
    for _, _, challenge, _ in played.pairs():
        assert challenge.reply.completion.policy.name == challenger


@EACH_ARM
def test_every_draft_gets_the_plain_prompt_of_its_problem(name: str) -> None:
    arm, played = ARMS[name], play(config_of(name))
    plain = [played.prompter.plain(problem) for problem in played.problems]
    expected = tuple(prompt for prompt in plain for _ in range(arm.group))
    assert played.engine.calls[0].prompts == expected
    assert [[d.prompt for d in group] for group in played.round.drafts_PN] == [
        [prompt] * arm.group for prompt in plain
    ]


@EACH_ARM
@pytest.mark.parametrize("step", [0, 1])
def test_the_challenger_sees_what_the_arm_shows_and_nothing_else(name: str, step: int) -> None:
    arm, config = ARMS[name], config_of(name)
    played = play(config, step)
    drafter = played.round.drafter
    order = derangement(P, f"{config.seeds.sampling}/{step}/shuffle")
    sent = iter(played.engine.calls[1].prompts if arm.sees != NOBODY else ())
    for p, n, challenge, _ in played.pairs():
        own = summary_of(drafter, p, n)
        shown = {
            PLAIN: None,
            OWN: own,
            FOREIGN: summary_of(drafter, order[p], n),
            FILLER: played.prompter.filler(len(own)),
        }[arm.sees]
        prompt = (
            played.prompter.plain(played.problems[p])
            if arm.sees == PLAIN
            else played.prompter.challenge(played.problems[p], shown)
        )
        assert challenge.shown == shown
        assert challenge.prompt == prompt == next(sent)
    assert next(sent, None) is None


@TWO_STAGE
@pytest.mark.parametrize("step", [0, 1])
def test_neither_thinking_nor_answer_block_reaches_the_challengers_prompt(name, step) -> None:
    for call in play(config_of(name), step).engine.calls:
        for prompt in call.prompts:
            assert "thought" not in prompt.text
            assert "miss" not in prompt.text
            assert "<" not in prompt.text
            assert prompt.token_ids == tuple(prompt.text.encode())


PIECES = ("<think>", "</think>", "<summary>", "</summary>", "<answer>", "</answer>", "s", "\n")


@settings(deadline=None)
@given(st.lists(st.sampled_from((*PIECES, "<answer>MARK</answer>", "MARK")), max_size=12))
def test_whatever_the_draft_a_withheld_text_is_not_in_the_challenge(pieces: list[str]) -> None:
    text = "".join(pieces)
    played = play(config_of("agon"), write=lambda _policy, _key: text, count=1)
    for draft, challenge in zip(
        played.round.drafts_PN[0], played.round.challenges_PN[0], strict=True
    ):
        if "MARK" not in (draft.reply.summary or ""):
            assert "MARK" not in challenge.prompt.text
        assert "<answer>" not in challenge.prompt.text


@EACH_ARM
@pytest.mark.parametrize("step", [0, 1])
def test_a_challenge_is_credited_against_the_draft_that_the_arm_names(name, step) -> None:
    arm, played = ARMS[name], play(config_of(name), step)
    seen = set()
    for p, n, challenge, rival in played.pairs():
        assert challenge.rival == (0 if arm.shared_rival else n)
        expected_rival = 0 if arm.shared_rival else n
        c_b = answer_of(Role.CHALLENGE, p, n)
        c_a = answer_of(Role.DRAFT, p, expected_rival)
        assert (challenge.verdict.correct, rival.verdict.correct) == (c_b, c_a)
        pay = {
            (False, False): arm.pay[0],
            (False, True): arm.pay[1],
            (True, True): arm.pay[2],
            (True, False): arm.pay[3],
        }[c_b, c_a]
        assert challenge.reward is not None
        # Every text of a challenge is longer than its draft's, so the tiebreak pays nothing here.
        assert challenge.reply.length > rival.reply.length or not (c_a and c_b)
        assert challenge.reward.total == pay
        seen.add((c_b, c_a))
    assert len(seen) == (0 if arm.sees == NOBODY else 2 if arm.shared_rival else 4)


@EACH_ARM
def test_a_draft_earns_two_where_it_is_right_and_loses_its_length_where_that_is_asked(name) -> None:
    config = config_of(name)
    for p, group in enumerate(play(config).round.drafts_PN):
        for n, draft in enumerate(group):
            penalty = config.reward.length_penalty
            lost = penalty * draft.reply.length / config.sampling.max_new_tokens
            assert draft.reward is not None
            assert draft.reward.total == 2.0 * answer_of(Role.DRAFT, p, n) - lost
            assert (lost > 0) == (name == "length-penalty")


def test_the_tiebreak_is_paid_to_the_shorter_of_two_right_replies() -> None:
    def write(_policy: str, key: str) -> str:
        role, problem, sample = key_parts(key)
        longer = role is Role.DRAFT if sample == 0 else role is Role.CHALLENGE
        return written(f"g{problem}", thinking="so on" if longer else "so")

    played = play(config_of("tiebreak"), write=write, count=1)
    totals = [c.reward.total for c in played.round.challenges_PN[0] if c.reward is not None]
    assert totals == [2.5, 2.0]


@EACH_ARM
@pytest.mark.parametrize("scale", [True, False])
def test_advantages_are_relative_to_the_group_of_one_problem_and_one_role(name, scale) -> None:
    config = config_of(name, objective__scale_rewards=scale)
    played = play(config).round
    for group in (*played.drafts_PN, *played.challenges_PN):
        totals = [None if r.reward is None else r.reward.total for r in group]
        assert [r.advantage for r in group] == group_advantages(totals, scale)


@EACH_ARM
def test_the_judge_is_asked_for_the_answer_block_of_every_reply(name: str) -> None:
    arm, played = ARMS[name], play(config_of(name))
    stages = [played.round.drafts_PN]
    if arm.sees != NOBODY:
        stages.append(played.round.challenges_PN)
    assert played.judge.asked == [
        [
            (problem, rollout.reply.answer)
            for problem, group in zip(played.problems, stage, strict=True)
            for rollout in group
        ]
        for stage in stages
    ]


@EACH_ARM
def test_a_round_has_a_group_of_each_role_for_each_problem(name: str) -> None:
    arm, played = ARMS[name], play(config_of(name))
    assert played.round.problems == tuple(played.problems)
    assert [len(group) for group in played.round.drafts_PN] == [arm.group] * P
    expected = 0 if arm.sees == NOBODY else arm.group
    assert [len(group) for group in played.round.challenges_PN] == [expected] * P


@EACH_ARM
def test_training_samples_the_whole_distribution_at_the_configured_length(name: str) -> None:
    config = config_of(name, sampling__max_new_tokens=77, sampling__temperature=0.7)
    for call in play(config).engine.calls:
        assert (call.sampling.max_new_tokens, call.sampling.temperature) == (77, 0.7)


def test_only_the_first_draft_counts_under_a_shared_rival() -> None:
    for unscored, expected in [(0, [None, None]), (1, [3.0, 3.0])]:

        def write(_policy: str, key: str, unscored: int = unscored) -> str:
            role, problem, sample = key_parts(key)
            if role is Role.CHALLENGE:
                return written(f"g{problem}")
            return written(UNJUDGED if sample == unscored else "miss")

        group = play(config_of("hidden-shared"), write=write, count=1).round.challenges_PN[0]
        assert [c.reward and c.reward.total for c in group] == expected
        assert [c.advantage for c in group] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "challenge_scored"),
    [("agon", False), ("margin", False), ("tiebreak", False), ("cooperative", True)],
)
def test_an_unscored_draft_takes_its_challenge_along_where_they_are_compared(
    name, challenge_scored
) -> None:
    def write(_policy: str, key: str) -> str:
        role, problem, sample = key_parts(key)
        if role is Role.CHALLENGE:
            return written(f"g{problem}" if sample else "miss")
        return written(UNJUDGED if sample == 0 else "miss")

    config = config_of(name, sampling__group_size=3)
    played = play(config, write=write, count=1).round
    drafts, challenges = played.drafts_PN[0], played.challenges_PN[0]
    assert [draft.reward is None for draft in drafts] == [True, False, False]
    assert [c.reward is None for c in challenges] == [not challenge_scored, False, False]
    assert [draft.advantage for draft in drafts] == [0.0, 0.0, 0.0]
    if challenge_scored:
        assert challenges[0].advantage < 0 < challenges[1].advantage
    else:
        assert [c.advantage for c in challenges] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["agon", "self-refine", "shuffled", "filler"])
def test_a_draft_without_a_summary_is_shown_as_such(name: str) -> None:
    played = play(config_of(name), write=lambda _policy, _key: written("x", summary=None), count=2)
    for _, _, challenge, _ in played.pairs():
        assert challenge.shown is None
        assert challenge.prompt.text.endswith("rival (none)")


@pytest.mark.parametrize("name", ["agon", "self-refine", "shuffled", "filler"])
def test_what_is_shown_is_cut_to_the_summarys_limit(name: str) -> None:
    played = play(config_of(name), prompter=BytePrompter(max_summary_tokens=5))
    shown = {challenge.shown for _, _, challenge, _ in played.pairs()}
    assert shown == ({"lorem"} if name == "filler" else {"recap"})


def test_the_filler_has_the_tokens_of_the_summary_it_stands_for() -> None:
    lengths = [3, 17, 60]

    def write(_policy: str, key: str) -> str:
        _, problem, _ = key_parts(key)
        return written("x", "é" * lengths[problem])

    played = play(config_of("filler"), write=write)
    for p, _, challenge, _ in played.pairs():
        assert challenge.shown == ("lorem ipsum " * 60)[: 2 * lengths[p]]


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(0, 50), st.integers(0, 5))
def test_shuffling_is_a_derangement_of_the_problems(count: int, step: int, seed: int) -> None:
    order = derangement(count, f"{seed}/{step}/shuffle")
    assert sorted(order) == list(range(count))
    assert all(place != item for place, item in enumerate(order))


@pytest.mark.parametrize("count", [0, 1])
def test_a_derangement_of_fewer_than_two_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="at least 2 items"):
        derangement(count, "key")


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(0, 1000), st.integers(0, 1000))
def test_shuffled_summaries_come_from_another_problem_and_each_is_shown_once(
    count: int, step: int, seed: int
) -> None:
    config = config_of("shuffled", seeds__sampling=seed)
    replies = [make_reply(summary=f"{p}/{n}") for p in range(count) for n in range(N)]
    shown = exchange(replies, step, config, BytePrompter())
    assert shown == exchange(replies, step, config, BytePrompter())
    assert sorted(shown) == sorted(f"{p}/{n}" for p in range(count) for n in range(N))
    for index, text in enumerate(shown):
        problem, sample = text.split("/")
        assert int(problem) != index // N
        assert int(sample) == index % N


def test_shuffling_differs_between_steps_and_between_seeds() -> None:
    by_step = {tuple(derangement(8, f"0/{step}/shuffle")) for step in range(20)}
    by_seed = {tuple(derangement(8, f"{seed}/0/shuffle")) for seed in range(20)}
    assert len(by_step) > 15
    assert len(by_seed) > 15


@TWO_STAGE
def test_a_round_replayed_is_the_same_round(name: str) -> None:
    first, second = play(config_of(name), 4), play(config_of(name), 4)
    assert first.round == second.round
    assert first.engine.calls == second.engine.calls


@TWO_STAGE
def test_no_two_rollouts_of_a_run_share_a_key(name: str) -> None:
    keys = [
        key
        for seed, step in itertools.product(range(2), range(3))
        for call in play(config_of(name, seeds__sampling=seed), step).engine.calls
        for key in call.keys
    ]
    assert len(keys) == len(set(keys)) == 2 * 3 * 2 * P * N


def test_keys_do_not_depend_on_the_other_problems_or_their_order() -> None:
    first, second, third = make_problems(3)

    def keys_of(problem: Problem, batch: list[Problem]) -> list[str]:
        sources = [item for item in batch for _ in range(N)]
        keys = rollout_keys(7, 3, Role.DRAFT, sources)
        return [key for key, source in zip(keys, sources, strict=True) if source == problem]

    assert keys_of(first, [first, second]) == keys_of(first, [third, second, first])


def test_the_other_seeds_do_not_touch_the_keys() -> None:
    changed = {"seeds__data": 5, "seeds__init": 5, "seeds__evaluation": 5}
    keys = [call.keys for call in play(config_of("agon")).engine.calls]
    assert [call.keys for call in play(config_of("agon", **changed)).engine.calls] == keys


def test_drafts_are_the_same_in_every_arm_with_the_same_group() -> None:
    """Arms are compared on common random numbers: only what follows the draft may differ."""
    calls = [play(config_of(name)).engine.calls[0] for name in ARMS if ARMS[name].group == N]
    assert all(call == calls[0] for call in calls)


def test_one_policys_swapped_seats_are_the_same_policy() -> None:
    for rotate in (True, False):
        config = config_of("self-refine", game__rotate=rotate)
        assert seats(0, config.game) == seats(1, config.game) == ("a", "a")


def test_seats_swap_under_rotation_alone() -> None:
    game = config_of("agon").game
    assert seats(0, game) == seats(1, game)[::-1] == seats(2, game)
    fixed = config_of("fixed").game
    assert seats(0, fixed) == seats(1, fixed) == ("a", "b")


def test_the_stopwatch_times_draft_challenge_and_verification() -> None:
    parts: list[str] = []

    @contextmanager
    def stopwatch(part: str) -> Iterator[None]:
        parts.append(part)
        yield

    play_round(make_problems(1), 0, config_of("agon"), make_table(script), stopwatch)
    assert parts == ["draft", "challenge", "verify"]


@pytest.mark.parametrize("first_is_right", [True, False])
def test_a_hidden_shared_draft_gives_the_advantages_of_plain_correctness(first_is_right) -> None:
    """Correctness is scaled by 2 or 3 for the whole group, and equal format drops out.

    3x / (3s + eps) exceeds 2x / (2s + eps) by less than eps / (6s) of itself, and eight verdicts
    that are not all equal have s >= sqrt(1/8).
    """

    def write(_policy: str, key: str) -> str:
        role, problem, sample = key_parts(key)
        right = sample < 3 if role is Role.CHALLENGE else first_is_right == (sample == 0)
        return written(f"g{problem}" if right else "miss")

    settings = {"sampling__group_size": 8, "reward__format_weight": 0.5}
    shared = play(config_of("hidden-shared", **settings), write=write).round.challenges_PN
    plain = play(
        config_of("hidden-shared", **settings, reward__credit="correctness"), write=write
    ).round.challenges_PN
    bound = ADVANTAGE_EPSILON / (6 * (1 / 8) ** 0.5)
    for one, other in zip(shared, plain, strict=True):
        expected = [challenge.advantage for challenge in other]
        assert [c.advantage for c in one] == pytest.approx(expected, rel=bound, abs=0)
        assert (one[0].advantage == other[0].advantage) is first_is_right


@pytest.fixture(scope="module")
def real_prompter() -> Prompter:
    """The real prompter over a byte-level tokenizer and a ChatML template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    config = config_of("hidden-shared")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in control])
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template
    )
    return Prompter(fast, config.prompts, config.game)


@pytest.mark.parametrize("name", ["hidden-shared", "hidden-paired"])
def test_a_hidden_exchanges_challenge_is_the_plain_prompt_byte_for_byte(
    name: str, real_prompter: Prompter
) -> None:
    tokenizer = real_prompter._tokenizer
    engine, config = ScriptedEngine(script, tokenizer.encode), config_of(name)
    played = play_round(make_problems(P), 0, config, Table(engine, GoldJudge(), real_prompter))
    plain, challenged = (call.prompts for call in engine.calls)
    assert challenged == plain
    for problem, group in zip(played.problems, played.challenges_PN, strict=True):
        for challenge in group:
            assert challenge.prompt.text.encode() == real_prompter.plain(problem).text.encode()
            assert challenge.prompt.token_ids == real_prompter.plain(problem).token_ids
            assert challenge.reply.summary is not None
    shown = config_of("agon")
    play_round(make_problems(P), 0, shown, Table(engine, GoldJudge(), real_prompter))
    assert all(a != b for a, b in zip(engine.calls[-1].prompts, plain, strict=True))


def literal_values(annotation: Any) -> set[str]:
    """All strings that the Literals inside a type allow."""
    if typing.get_origin(annotation) is typing.Literal:
        return {value for value in typing.get_args(annotation) if isinstance(value, str)}
    if isinstance(annotation, UnionType) or typing.get_origin(annotation) is not None:
        return set().union(*map(literal_values, typing.get_args(annotation)), set())
    return set()


def setting_values() -> set[str]:
    """Strings that some setting of a configuration may have."""
    return {
        value
        for section in Config.model_fields.values()
        if hasattr(section.annotation, "model_fields")
        for setting in section.annotation.model_fields.values()
        for value in literal_values(setting.annotation)
    }


def test_no_source_file_compares_anything_with_an_arms_name() -> None:
    """An arm is data. Names that a setting may have too, such as `margin`, are compared there."""
    values = setting_values()
    assert {"margin", "filler", "shuffled", "grpo"} <= values
    names = set(ARMS) - values
    assert {"agon", "cooperative", "grpo-2n", "self-refine", "fixed", "hidden-shared"} <= names
    found = []
    for path in sorted(Path(agon.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare | ast.pattern):
                constants = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                found += [(path.name, node.lineno, name) for name in names & constants]
    assert found == []


def test_the_core_does_not_know_the_arms_names() -> None:
    names = set(ARMS) - setting_values()
    for module in ("rounds", "rewards", "trainer", "update", "objective", "policies"):
        tree = ast.parse((Path(agon.__path__[0]) / f"{module}.py").read_text(encoding="utf-8"))
        constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not names & constants, module
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not {"arm", "arms"} & words, module


# Verification beside sampling


class PatientJudge(GoldJudge):
    """Judges the drafts only after the challenges have been asked for."""

    def __init__(self, challenged: threading.Event) -> None:
        super().__init__()
        self.challenged = challenged

    def judge(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        assert self.challenged.wait(30)
        return super().judge(items)


@TWO_STAGE
def test_drafts_are_judged_while_the_challenges_are_sampled(name: str) -> None:
    challenged = threading.Event()

    def announced(policy: str, key: str) -> str:
        if key_parts(key)[0] is Role.CHALLENGE:
            challenged.set()
        return script(policy, key)

    table = Table(ScriptedEngine(announced), PatientJudge(challenged), BytePrompter())
    played = play_round(make_problems(P), 0, config_of(name), table)
    assert played == play_round(make_problems(P), 0, config_of(name), make_table(script))


class BrokenJudge(GoldJudge):
    def judge(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        raise RuntimeError("the judge is gone")


def test_an_error_of_the_judge_is_not_lost_beside_the_sampling() -> None:
    table = Table(ScriptedEngine(script), BrokenJudge(), BytePrompter())
    with pytest.raises(RuntimeError, match="the judge is gone"):
        play_round(make_problems(P), 0, config_of("agon"), table)
