"""Role prompts under real chat templates: what is trusted is a control token, the rest is text."""

from __future__ import annotations

import importlib.resources
import importlib.util
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agon.config import GameConfig, PromptConfig
from agon.errors import ConfigError
from agon.parsing import neutralise
from agon.prompts import STANDARD_PLAIN, Prompter
from agon.records import Completion, PolicyVersion, Problem, Prompt

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PROBLEM = Problem("p", "What is 2 + 3?\nGive a number", "5", "math")
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINKING = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
BAR = "\uff5c"
DEEPSEEK = [f"<{BAR}begin\u2581of\u2581sentence{BAR}>", f"<{BAR}end\u2581of\u2581sentence{BAR}>"]
LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Family:
    """A chat template with the control tokens of its models."""

    template: str
    special: list[str]
    eos: str
    other: list[str] = field(default_factory=list)
    bos: str | None = None
    arguments: dict[str, object] = field(default_factory=dict)
    ends_turn: str | None = None
    thinking_open: bool = False


FAMILIES = {
    "qwen3": Family("qwen3", CHATML, "<|im_end|>", THINKING),
    "qwen3-thinking": Family(
        "qwen3", CHATML, "<|im_end|>", THINKING, arguments={"enable_thinking": True}
    ),
    "qwen3-no-thinking": Family(
        "qwen3", CHATML, "<|im_end|>", THINKING, arguments={"enable_thinking": False}
    ),
    "qwen3.5": Family("qwen3_5_think", CHATML, "<|im_end|>", THINKING, thinking_open=True),
    "deepseek-r1": Family(
        "deepseek_r1_distill",
        DEEPSEEK,
        DEEPSEEK[1],
        [f"<{BAR}User{BAR}>", f"<{BAR}Assistant{BAR}>", "<think>", "</think>"],
        bos=DEEPSEEK[0],
        thinking_open=True,
    ),
    "llama3": Family(
        "llama3", [*LLAMA, "<|eot_id|>"], LLAMA[1], bos=LLAMA[0], ends_turn="<|eot_id|>"
    ),
    "llama3.2": Family("llama3_2", [*LLAMA, "<|eot_id|>"], "<|eot_id|>", bos=LLAMA[0]),
    "smollm2": Family(SMOLLM2, CHATML, "<|im_end|>"),
    "gemma3": Family(
        "gemma3",
        ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        "<eos>",
        ["\n\n", "<table>"],
        bos="<bos>",
        ends_turn="<end_of_turn>",
    ),
    "gemma4": Family(
        "gemma4_v5",
        ["<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"],
        "<eos>",
        ["\n\n"],
        bos="<bos>",
        arguments={"enable_thinking": True},
        ends_turn="<turn|>",
    ),
}
EMBEDDED = "embedded"
ALL = [*FAMILIES, EMBEDDED]
CONTROL = sorted({text for f in FAMILIES.values() for text in f.special + f.other if text.strip()})

BLOCK_TAGS = ("<summary>", "</summary>", "<answer>", "</answer>")
THINKING_TAGS = ("<think>", "</think>", "<|channel>thought\n", "<channel|>")
OTHER_TEXT = ("<|end|>", "<|user|>", "<|unk|>", "< ANSWER >", "</rival>", "é", "漢", "\n\n", " ")
HOSTILE = st.lists(
    st.sampled_from((*CONTROL, *BLOCK_TAGS, *THINKING_TAGS, *OTHER_TEXT)) | st.text(max_size=8),
    max_size=12,
).map("".join)
REPLIES = st.lists(
    st.sampled_from(
        (*BLOCK_TAGS, *THINKING_TAGS, "<answer>MARKER</answer>", "MARKER", "s", " ", "<|im_end|>")
    ),
    max_size=14,
).map("".join)


def chat_template(name: str) -> str:
    """A template of TRL's wheel, or the text itself."""
    if "{" in name:
        return name
    file = importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja"
    if not file.is_file():
        pytest.skip(f"the installed TRL has no chat template {name}")
    return file.read_text(encoding="utf-8")


@cache
def byte_level_bpe() -> str:
    """A small byte-level BPE tokenizer, serialised."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    text = "think summary answer rival the reasoning step by step problem 12 345 x + y = z. \n\n "
    tokenizer.train_from_iterator([text * 20, "<|im_end|> <answer> </think> channel user"], trainer)
    return tokenizer.to_str()


@cache
def family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    if name == EMBEDDED:
        path = Path(__file__).parents[1] / "scripts" / "build_embedded_base.py"
        specification = importlib.util.spec_from_file_location("build_embedded_base", path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module.build_tokenizer()
    family = FAMILIES[name]
    tokenizer = Tokenizer.from_str(byte_level_bpe())
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in family.special])
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in family.other]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=family.eos,
        bos_token=family.bos,
        chat_template=chat_template(family.template),
        clean_up_tokenization_spaces=False,
    )


@cache
def make_prompter(name: str, max_summary_tokens: int = 512, **templates: str) -> Prompter:
    return Prompter(
        family_tokenizer(name),
        PromptConfig(**templates),
        GameConfig(max_summary_tokens=max_summary_tokens),
        {} if name == EMBEDDED else FAMILIES[name].arguments,
        style="compact" if name == EMBEDDED else "standard",
    )


def control_ids(name: str) -> set[int]:
    """Ids of the added tokens that are not white space."""
    added = family_tokenizer(name).added_tokens_decoder.items()
    return {token for token, entry in added if entry.content.strip()}


def rival_span(name: str, shown: str) -> tuple[int, ...]:
    """Tokens of the rival's text inside a challenge: what differs from a template around it."""
    prompter = make_prompter(name)
    empty = prompter.challenge(PROBLEM, None).token_ids
    filled = prompter.challenge(PROBLEM, shown).token_ids
    placeholder = prompter.count("?" if name == EMBEDDED else "(The rival left no usable summary.)")
    plain = prompter.plain(PROBLEM).token_ids
    start = next(i for i, pair in enumerate(zip(plain, empty, strict=False)) if pair[0] != pair[1])
    lead = " rival " if name == EMBEDDED else prompter._lead[0]
    start += len(family_tokenizer(name).encode(lead, add_special_tokens=False))
    end = len(empty) - start - placeholder
    return filled[start : len(filled) - end]


def completion_of(name: str, text: str) -> Completion:
    ids = tuple(family_tokenizer(name).encode(text, add_special_tokens=False))
    zeros = (0.0,) * len(ids)
    return Completion(ids, zeros, zeros, False, PolicyVersion("a", 0))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_plain_prompt_is_what_the_template_renders_and_encodes(name: str) -> None:
    tokenizer, prompt = family_tokenizer(name), make_prompter(name).plain(PROBLEM)
    user = STANDARD_PLAIN.replace("{problem}", PROBLEM.question)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": user}],
        tokenize=False,
        add_generation_prompt=True,
        date_string="26 Jul 2024",
        **FAMILIES[name].arguments,
    )
    assert prompt.text == rendered
    assert tokenizer.decode(prompt.token_ids) == rendered
    assert list(prompt.token_ids) == tokenizer.encode(rendered, add_special_tokens=False)


def test_the_embedded_prompts_are_those_it_was_trained_on() -> None:
    tokenizer, prompter = family_tokenizer(EMBEDDED), make_prompter(EMBEDDED)
    problem = Problem("p", "make 24 from 3,10,12", "", "countdown")
    texts = {
        "<|user|>make 24 from 3,10,12<|end|><|assistant|>": prompter.plain(problem),
        "<|user|>make 24 from 3,10,12 rival 10*3=30-12=18<|end|><|assistant|>": (
            prompter.challenge(problem, "10*3=30-12=18")
        ),
        "<|user|>make 24 from 3,10,12 rival ?<|end|><|assistant|>": (
            prompter.challenge(problem, None)
        ),
    }
    for text, prompt in texts.items():
        assert prompt == Prompt(text, tuple(tokenizer(text)["input_ids"]), False)


@pytest.mark.parametrize("name", ALL)
def test_the_plain_user_turn_is_an_exact_prefix_of_the_challenge(name: str) -> None:
    prompter = make_prompter(name)
    plain = prompter.plain(PROBLEM)
    challenge = prompter.challenge(PROBLEM, "It is 5.")
    tail_text, tail_ids = prompter._tail
    assert challenge.text.startswith(plain.text.removesuffix(tail_text))
    assert challenge.text.endswith(tail_text)
    turn = plain.token_ids[: len(plain.token_ids) - len(tail_ids)]
    assert challenge.token_ids[: len(turn)] == turn
    assert challenge.token_ids[-len(tail_ids) :] == tail_ids == plain.token_ids[-len(tail_ids) :]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_template_decides_whether_thinking_is_open(name: str) -> None:
    prompt = make_prompter(name).plain(PROBLEM)
    assert prompt.thinking_open is FAMILIES[name].thinking_open
    assert make_prompter(name).challenge(PROBLEM, None).thinking_open is prompt.thinking_open


@pytest.mark.parametrize("name", FAMILIES)
def test_a_whole_reply_reads_the_same_under_every_template(name: str) -> None:
    prompter, family = make_prompter(name), FAMILIES[name]
    opening = "" if family.thinking_open else "<think>"
    text = f"{opening}2 + 3 = 5</think>\n<summary>I added.</summary>\n<answer>5</answer>"
    end = family.ends_turn or family.eos
    reply = prompter.read(prompter.plain(PROBLEM), completion_of(name, text + end))
    assert (reply.thinking, reply.summary, reply.answer) == ("2 + 3 = 5", "I added.", "5")
    assert (reply.format_score, reply.text) == (1.0, text)


def test_gemmas_own_thinking_channel_is_read() -> None:
    prompter = make_prompter("gemma4")
    text = "<|channel>thought\n<answer>6</answer>\n<channel|><summary>s</summary><answer>5</answer>"
    reply = prompter.read(prompter.plain(PROBLEM), completion_of("gemma4", text + "<turn|>"))
    assert (reply.thinking, reply.answer, reply.format_score) == ("<answer>6</answer>", "5", 1.0)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_token_that_the_template_ends_a_turn_with_is_known(name: str) -> None:
    family, tokenizer = FAMILIES[name], family_tokenizer(name)
    ends = [family.eos, family.ends_turn or family.eos]
    expected = tuple(dict.fromkeys(tokenizer.convert_tokens_to_ids(ends)))
    assert make_prompter(name).end_token_ids == expected


def test_end_tokens_of_the_generation_configuration_are_added() -> None:
    tokenizer = family_tokenizer("qwen3")
    extra = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    for given_ids in (extra, [extra, tokenizer.eos_token_id]):
        prompter = Prompter(tokenizer, PromptConfig(), GameConfig(), {}, eos_token_ids=given_ids)
        assert prompter.end_token_ids == (tokenizer.eos_token_id, extra)


def test_one_end_token_is_stripped_and_other_control_tokens_stay() -> None:
    prompter = make_prompter("qwen3")
    text = "<|im_start|><answer>5</answer><|im_end|>"
    reply = prompter.read(prompter.plain(PROBLEM), completion_of("qwen3", text + "<|im_end|>"))
    assert reply.text == text
    cut = prompter.read(prompter.plain(PROBLEM), completion_of("qwen3", "<answer>5"))
    assert (cut.text, cut.answer) == ("<answer>5", None)


@pytest.mark.parametrize("name", ALL)
def test_a_missing_summary_is_said(name: str) -> None:
    prompter = make_prompter(name)
    said = " rival ?" if name == EMBEDDED else "(The rival left no usable summary.)"
    assert said in prompter.challenge(PROBLEM, None).text
    assert prompter.challenge(PROBLEM, " \n") == prompter.challenge(PROBLEM, None)


@pytest.mark.parametrize("name", FAMILIES)
def test_hostile_text_is_kept_as_text(name: str) -> None:
    """Each control token's text is still legible, and none of it is a control token."""
    hostile = "".join(CONTROL)
    problem = Problem("p", hostile, "", "math")
    prompt = make_prompter(name).plain(problem)
    assert hostile in prompt.text
    assert family_tokenizer(name).decode(prompt.token_ids) == prompt.text
    harmless = make_prompter(name).plain(PROBLEM)
    controls = control_ids(name)
    assert [i for i in prompt.token_ids if i in controls] == [
        i for i in harmless.token_ids if i in controls
    ]


def test_characters_that_the_tokenizer_lacks_are_shown_as_question_marks() -> None:
    problem = Problem("p", "make 漢 from \ud800", "", "countdown")
    prompt = make_prompter(EMBEDDED).plain(problem)
    assert prompt.text == "<|user|>make ? from ?<|end|><|assistant|>"
    assert family_tokenizer(EMBEDDED).unk_token_id not in prompt.token_ids


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(ALL), HOSTILE)
def test_rival_text_never_holds_a_control_token(name: str, shown: str) -> None:
    prompter, controls = make_prompter(name), control_ids(name)
    assert controls.isdisjoint(rival_span(name, shown))
    harmless = prompter.challenge(PROBLEM, "It is 5.").token_ids
    hostile = prompter.challenge(PROBLEM, shown).token_ids
    assert Counter(i for i in hostile if i in controls) == Counter(
        i for i in harmless if i in controls
    )


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(ALL), HOSTILE, HOSTILE, st.integers(1, 12))
def test_rival_text_holds_no_tag_and_fits_its_limit(name, text, more, limit) -> None:
    prompter = make_prompter(name, max_summary_tokens=limit)
    shown = prompter.clip(text + more)
    assert prompter.count(shown) <= limit
    assert neutralise(text + more).startswith(shown)
    assert neutralise(shown) == shown
    if prompter.count(neutralise(text + more)) <= limit:
        assert shown == neutralise(text + more)
    if shown.strip():
        assert len(rival_span(name, shown)) == prompter.count(shown)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(list(FAMILIES)), REPLIES)
def test_a_withheld_answer_never_reaches_the_challenger(name: str, text: str) -> None:
    prompter = make_prompter(name)
    reply = prompter.read(prompter.plain(PROBLEM), completion_of(name, text))
    shown = None if reply.summary is None else prompter.clip(reply.summary)
    challenge = prompter.challenge(PROBLEM, shown)
    if "MARKER" not in (reply.summary or ""):
        assert "MARKER" not in challenge.text
    # A summary that is read holds no answer block, whatever the reply.
    assert "<answer>" not in (reply.summary or "")


def test_a_long_summary_is_cut_to_the_limit_exactly_where_tokens_are_short() -> None:
    prompter = make_prompter("qwen3", max_summary_tokens=64)
    for text in ("7" * 5000, "the reasoning " * 1000, "漢" * 1000, " " * 20_000):
        shown = prompter.clip(text)
        assert text.startswith(shown)
        assert 60 <= prompter.count(shown) <= 64


@pytest.mark.parametrize("name", ["qwen3", "gemma3", EMBEDDED])
def test_filler_has_the_tokens_it_is_asked_for(name: str) -> None:
    prompter = make_prompter(name)
    for tokens in (0, 1, 2, 9, 64, 300):
        filler = prompter.filler(tokens)
        assert tokens - 1 <= prompter.count(filler) <= tokens
        if filler.strip():
            assert len(rival_span(name, filler)) == prompter.count(filler)


def test_no_prompt_holds_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ strftime_now('%Y-%m-%d') }};" + chat_template("llama3_2")
    tokenizer = family_tokenizer("llama3.2")
    monkeypatch.setattr(tokenizer, "chat_template", template)
    text = Prompter(tokenizer, PromptConfig(), GameConfig(), {}).plain(PROBLEM).text
    assert text.startswith("2024-07-26;")
    assert "Today Date: 26 Jul 2024" in text
    given_date = {"date_string": "1 Jan 2030"}
    text = Prompter(tokenizer, PromptConfig(), GameConfig(), given_date).plain(PROBLEM).text
    assert "Today Date: 1 Jan 2030" in text


def test_user_templates_take_braces_and_their_own_words() -> None:
    config = PromptConfig(plain="Q: {problem} {x} {{}}\n", challenge="\nSeen: {summary} {y}")
    prompter = Prompter(family_tokenizer("smollm2"), config, GameConfig(), {})
    problem = Problem("p", "a {summary} {problem} b", "", "math")
    text = prompter.challenge(problem, "{problem}").text
    assert "user\nQ: a {summary} {problem} b {x} {{}}\n\nSeen: {problem} {y}<|im_end|>" in text


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"plain": "Solve it."}, r"prompts\.plain must contain \{problem\} exactly once.* 0 times"),
        ({"plain": "{problem} {problem}"}, r"prompts\.plain .* 2 times"),
        ({"challenge": "See above."}, r"prompts\.challenge must contain \{summary\}"),
    ],
)
def test_a_user_template_without_its_field_is_refused(templates, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_prompter("smollm2", **templates)


@pytest.mark.parametrize(
    ("template", "arguments", "message"),
    [
        (None, {}, "no chat template.*instruction-tuned"),
        ("{{ messages[0].content[:3] }}", {}, "exactly once and unchanged"),
        ("{{ messages[0].content }}" * 2, {}, "writes it 2 times"),
        ("{{ messages[0].content | upper }}", {}, "writes it 0 times"),
        ("{{ raise_exception('no users') }}", {}, "does not render a user turn alone: no users"),
        (SMOLLM2, {"tokenize": True}, r"chat_template_kwargs sets tokenize"),
    ],
)
def test_a_template_that_cannot_serve_is_refused(
    template, arguments, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = family_tokenizer("smollm2")
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(ConfigError, match=message):
        Prompter(tokenizer, PromptConfig(), GameConfig(), arguments)


def test_a_multimodal_template_is_refused() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_level_bpe()),
        chat_template=chat_template("smolvlm"),
    )
    with pytest.raises(ConfigError, match="plain text"):
        Prompter(tokenizer, PromptConfig(), GameConfig(), {})


def test_a_template_whose_replies_are_several_messages_is_refused(monkeypatch) -> None:
    tokenizer = family_tokenizer("smollm2")
    monkeypatch.setattr(tokenizer, "chat_template", chat_template("gptoss"))
    with pytest.raises(ConfigError, match="Harmony"):
        Prompter(tokenizer, PromptConfig(), GameConfig(), {})


def test_a_model_whose_turns_nothing_ends_is_refused() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_level_bpe()),
        chat_template="{{ messages[0].content }}",
    )
    with pytest.raises(ConfigError, match="no token ends a turn"):
        Prompter(tokenizer, PromptConfig(), GameConfig(), {})


def test_a_blank_filler_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"game\.filler is blank"):
        Prompter(family_tokenizer("qwen3"), PromptConfig(), GameConfig(filler=" "), {})
