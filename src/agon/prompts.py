"""Role prompts as text and tokens, and a completion's tokens read back into a reply.

A role prompt is one user turn, rendered by the tokenizer's own chat template:

    plain       {problem} and the request for the form
    challenge   the plain prompt and, after it, the rival's summary and what to make of it

The plain part's tokens are an exact prefix of the challenge's, and the same in every arm.

Problem and summary are untrusted: whatever they contain, none of it becomes a control token. The
template is rendered once, around a placeholder for the whole user turn. What it writes and what
our prompts write is encoded with its control tokens; untrusted text is encoded apart from that.
transformers' `split_special_tokens` does not serve here: it leaves added tokens that are not
special, such as Qwen's `<think>`, and it changes a state that threads share.

What this module does not do: sample, judge, decide which summary is shown to whom, or check that
prompts fit the context (`preflight` does).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agon.config import GameConfig, PromptConfig
from agon.errors import ConfigError
from agon.parsing import Parsed, leaves_thinking_open, neutralise, parse, thinking_delimiters
from agon.records import Completion, Problem, Prompt, Reply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Style = Literal["standard", "compact"]

STANDARD_PLAIN = """{problem}

Reason step by step before you answer. If your thinking is not kept apart for you, write it inside \
<think> and </think>. After the reasoning, write exactly one <summary>...</summary> block, a short \
recap of the reasoning, and then exactly one <answer>...</answer> block that holds the final \
answer and nothing else."""

STANDARD_CHALLENGE = """

A rival has already tried this problem. This is the rival's own summary:

<rival>
{summary}
</rival>

Do not trust it and do not paraphrase it: it may be wrong. Verify its claims, derive the solution \
again yourself, and reply in the form asked for above."""

DEFAULTS: dict[Style, tuple[str, str, str]] = {
    "standard": (STANDARD_PLAIN, STANDARD_CHALLENGE, "(The rival left no usable summary.)"),
    "compact": ("{problem}", " rival {summary}", "?"),
}
"""Plain prompt, challenge part, and what stands for a summary where there is none. `compact` is
the embedded model's: it has no English."""

FIXED_DATE = datetime.date(2024, 7, 26)
"""Today, for templates that write the date: a prompt must be the same on every day."""

_FIXED_STRFTIME = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f" | replace('%{code}', '{FIXED_DATE:%{code}}')" for code in "aAbBdHIjmMpSyY")
    + " }}{%- endmacro %}\n"
)
"""Hides transformers' clock from templates that ask it; it lets no function in as a variable."""

_PLACEHOLDER = "agonuserturn5f0c9d"
_RESERVED = frozenset(
    {"conversation", "messages", "chat_template", "tokenize", "add_generation_prompt"}
    | {"continue_final_message", "padding", "truncation", "max_length", "return_tensors"}
    | {"return_dict", "tokenizer_kwargs", "return_assistant_tokens_mask"}
    | {"sanitize_control_tokens"}
)


class Prompter:
    """Writes the prompts of one model and one game, and reads its replies.

    Attributes:
        end_token_ids: The tokens that end a turn: the tokenizer's, those given, and the one that
            the chat template writes after an assistant's turn.
        delimiters: The model's thinking delimiters.
        thinking_open: Whether every prompt ends inside a thinking block.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: PromptConfig,
        game: GameConfig,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        style: Style = "standard",
        eos_token_ids: int | Sequence[int] | None = None,
    ) -> None:
        """Render the chat template and encode all that does not change.

        Args:
            tokenizer: With a chat template.
            config: The user's prompt templates, if any.
            game: Length of the summary and the filler text.
            chat_template_kwargs: Arguments for the chat template, such as `enable_thinking`.
            style: Default prompts: `standard`, or `compact` for the embedded model.
            eos_token_ids: `eos_token_id` of the model's generation configuration.

        Raises:
            ConfigError: There is no chat template, it does not render one user turn as given, a
                prompt template lacks its field, or nothing ends a turn.
        """
        plain, challenge, self._no_summary = DEFAULTS[style]
        before, after = _halves("plain", "{problem}", config.plain or plain)
        lead, frame_end = _halves("challenge", "{summary}", config.challenge or challenge)
        head, tail = _around_user_turn(tokenizer, chat_template_kwargs or {})
        self._tokenizer = tokenizer
        self._texts = _UntrustedTexts(tokenizer)
        self._before = self._trusted(head + before)
        self._after = self._trusted(after)
        self._lead = self._trusted(lead)
        self._frame_end = self._trusted(frame_end)
        self._tail = self._trusted(tail)
        self._max_summary_tokens = game.max_summary_tokens
        self._filler = neutralise(game.filler)
        if not self.count(self._filler.strip()):
            raise ConfigError("game.filler is blank: give it a text to repeat")
        self.delimiters = thinking_delimiters(str(tokenizer.get_chat_template()))
        self.thinking_open = leaves_thinking_open(tail, self.delimiters)
        given = [eos_token_ids] if isinstance(eos_token_ids, int) else eos_token_ids or []
        self.end_token_ids = self._end_token_ids(given, chat_template_kwargs or {})

    def plain(self, problem: Problem) -> Prompt:
        """The prompt of a draft, and of a challenge whose exchange is hidden."""
        question = self._texts.encode(problem.question)
        return self._prompt(self._before, question, self._after, self._tail)

    def challenge(self, problem: Problem, shown: str | None) -> Prompt:
        """The plain prompt with a rival's summary after it.

        Args:
            problem: The problem.
            shown: The summary, as `clip` returns it. None, or a blank one, is shown as no usable
                summary, in plain words. Tags in it are neutralised.
        """
        question = self._texts.encode(problem.question)
        usable = shown is not None and shown.strip()
        summary = self._texts.encode(neutralise(shown) if shown and usable else self._no_summary)
        parts = (self._before, question, self._after, self._lead, summary, self._frame_end)
        return self._prompt(*parts, self._tail)

    def clip(self, summary: str) -> str:
        """A summary with its tags neutralised, cut to at most `game.max_summary_tokens` tokens."""
        return self._cut(neutralise(summary), self._max_summary_tokens)

    def count(self, text: str) -> int:
        """Tokens of an untrusted text, as it is encoded inside a prompt."""
        return len(self._texts.encode(text)[1])

    def filler(self, tokens: int) -> str:
        """`game.filler`, repeated and cut to a number of tokens or, at a seam, slightly fewer."""
        text = self._filler
        while self.count(text) < tokens:
            text += text
        return self._cut(text, tokens)

    def read(self, prompt: Prompt, completion: Completion) -> Reply:
        """Decode and parse a completion of a prompt.

        Control tokens inside the completion stay in the text; one end-of-turn token at its end
        does not.
        """
        ids = completion.token_ids
        if ids and ids[-1] in self.end_token_ids:
            ids = ids[:-1]
        text = str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        return Reply(text, *self.parts(prompt, text), completion=completion)

    def parts(self, prompt: Prompt, text: str) -> Parsed:
        """Thinking, summary and answer of a reply's text, without its end-of-turn token."""
        return parse(text, prompt.thinking_open, self.delimiters)

    def raw(self, text: str) -> Prompt:
        """A text to be continued as it stands, without role prompts; nothing in it is control."""
        kept, ids = self._texts.encode(text)
        return Prompt(kept, ids, thinking_open=False)

    def _prompt(self, *parts: tuple[str, tuple[int, ...]]) -> Prompt:
        return Prompt(
            text="".join(text for text, _ in parts),
            token_ids=tuple(token for _, ids in parts for token in ids),
            thinking_open=self.thinking_open,
        )

    def _trusted(self, text: str) -> tuple[str, tuple[int, ...]]:
        return text, _encode_trusted(self._tokenizer, text)

    def _cut(self, text: str, tokens: int) -> str:
        """A longest prefix of at most so many tokens, by bisection."""
        if self.count(text) <= tokens:
            return text
        # A prefix of `fits` characters is short enough, one of `too_long` is not. It starts from
        # four characters a token and at most doubles, so that a huge text is not encoded again.
        fits, too_long = 0, len(text)
        middle = min(4 * tokens, len(text) // 2)
        while too_long - fits > 1:
            if self.count(text[:middle]) <= tokens:
                fits = middle
            else:
                too_long = middle
            middle = max(fits + 1, min((fits + too_long) // 2, 2 * fits + 4 * tokens))
        return text[:fits]

    def _end_token_ids(
        self, given: Iterable[int], chat_template_kwargs: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Distinct end-of-turn tokens, in the order of this class's description."""
        found = [self._tokenizer.eos_token_id, *given]
        turn_end = _after_assistant_turn(self._tokenizer, chat_template_kwargs).lstrip()
        first = _encode_trusted(self._tokenizer, turn_end)[:1]
        found += [token for token in first if token in self._texts.control_ids]
        ends = tuple(dict.fromkeys(int(token) for token in found if token is not None))
        if not ends:
            raise ConfigError(
                "no token ends a turn: the tokenizer has no eos token and its chat template writes "
                "none after an assistant's turn; set the tokenizer's eos_token"
            )
        return ends


class _UntrustedTexts:
    """Encodes text so that no control token comes out, whatever it contains.

    Control tokens are the special tokens and all other added tokens, but for those of white space
    alone (Gemma's and GPT-NeoX's runs of it), which are ordinary text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = {
            token: str(entry.content)
            for token, entry in tokenizer.added_tokens_decoder.items()
            if entry.special or not entry.content.isspace()
        }
        self._tokenizer = tokenizer
        self.control_ids = frozenset(added) | frozenset(tokenizer.all_special_ids)
        contents = sorted((text for text in added.values() if text), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, contents)) or r"(?!)")

    def encode(self, text: str) -> tuple[str, tuple[int, ...]]:
        """The text, as far as it could be kept, and its tokens, none of them a control token."""
        text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates have no tokens
        ids = self._encode_apart(text)
        if self.control_ids.isdisjoint(ids):
            return text, ids
        # Left are characters without a token (they read as the unknown token, which is a control
        # token) and control tokens that only a normaliser brings about.
        characters = {character: self._encode_apart(character) for character in set(text)}
        known = "".join(
            character if self.control_ids.isdisjoint(characters[character]) else "?"
            for character in text
        )
        ids = self._encode_apart(known)
        if not self.control_ids.isdisjoint(ids):
            singles = (self._encode_apart(character) for character in known)
            ids = tuple(token for single in singles for token in single)
        return known, tuple(token for token in ids if token not in self.control_ids)

    def _encode_apart(self, text: str) -> tuple[int, ...]:
        """Encode with every control token's text cut after its first character, and joined again.

        The tokenizer then never sees a whole one, and the text stays as it is.
        """
        segments, start = [], 0
        match = self._control.search(text)
        while match is not None:
            cut = match.start() + 1
            segments.append(text[start:cut])
            start = cut
            match = self._control.search(text, cut)
        segments.append(text[start:])
        segments = [segment for segment in segments if segment]
        if not segments:
            return ()
        rows = self._tokenizer(segments, add_special_tokens=False, verbose=False)["input_ids"]
        return tuple(int(token) for row in rows for token in row)


def _halves(name: str, field: str, template: str) -> tuple[str, str]:
    """A user's template around its one field. Other braces are text."""
    parts = template.split(field)
    if len(parts) != 2:
        raise ConfigError(
            f"prompts.{name} must contain {field} exactly once, and does so {len(parts) - 1} times"
        )
    return parts[0], parts[1]


def _encode_trusted(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Tokens of text that we or the template wrote: its control tokens are meant."""
    if not text:
        return ()
    ids = tokenizer.encode(
        text, add_special_tokens=False, split_special_tokens=False, verbose=False
    )
    return tuple(int(token) for token in ids)


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    chat_template_kwargs: Mapping[str, Any],
    add_generation_prompt: bool,
) -> str:
    """The chat template's text, with a fixed date."""
    from jinja2 import TemplateError

    clashes = _RESERVED.intersection(chat_template_kwargs)
    if clashes:
        raise ConfigError(
            f"model.chat_template_kwargs sets {', '.join(sorted(clashes))}, which is Agon's to "
            "set: keep to the chat template's own variables, such as enable_thinking"
        )
    template = str(tokenizer.get_chat_template())
    if "strftime_now" in template:
        template = _FIXED_STRFTIME + template
    variables = {"date_string": FIXED_DATE.strftime("%d %b %Y"), **chat_template_kwargs}
    try:
        rendered = tokenizer.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"the chat template does not render a user turn alone: {error}; check "
            "model.chat_template_kwargs, or use a model whose template does"
        ) from error
    return str(rendered)


def _around_user_turn(
    tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """What the chat template writes before and after the content of a single user turn."""
    if not tokenizer.chat_template:
        raise ConfigError(
            "the tokenizer has no chat template, and role prompts need one: use the model's "
            "instruction-tuned version, or add a chat_template.jinja to its folder"
        )
    turn = [{"role": "user", "content": _PLACEHOLDER}]
    parts = _render(tokenizer, turn, chat_template_kwargs, True).split(_PLACEHOLDER)
    if len(parts) != 2:
        raise ConfigError(
            "the chat template must write the text of a user turn exactly once and unchanged, and "
            f"writes it {len(parts) - 1} times: use a model whose template takes plain text"
        )
    if parts[1].endswith("<|start|>assistant"):
        raise ConfigError(
            "the chat template is in the Harmony format, whose replies are several messages in "
            "channels: Agon reads single messages; use a model of another format"
        )
    return parts[0], parts[1]


def _after_assistant_turn(
    tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, Any]
) -> str:
    """What the chat template writes after an assistant's turn; empty where it says nothing."""
    reply = "agonassistantturn5f0c9d"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": reply}]
    try:
        rendered = _render(tokenizer, turns, chat_template_kwargs, False)
    except ConfigError:
        return ""  # a template that renders prompts only; the tokenizer's eos must do
    return rendered.partition(reply)[2]
