"""Requests of the API, checked strictly: what is not honoured is refused by name.

Three kinds of parameters: those that are honoured; those that are accepted and ignored, since they
cannot change a completion (`IGNORED`); those whose only supported value is the one that does
nothing, such as `top_p = 1`, because Agon samples the whole distribution and has no tools.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, StringConstraints

IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
)
"""Accepted without any effect."""

Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Text = Annotated[str, Strict()]
Truth = Annotated[bool, Strict()]
StopString = Annotated[str, Strict(), StringConstraints(min_length=1, max_length=256)]


def _only(allowed: tuple[Any, ...], why: str) -> AfterValidator:
    """A parameter with values that do nothing, and no others."""

    def check(value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in (None, *allowed)):
            shown = " or ".join(map(repr, allowed)) or "null"
            raise ValueError(f"{why}: only {shown} is supported")
        return value

    return AfterValidator(check)


Untruncated = _only((1, 1.0), "Agon samples the whole distribution")
NoTopK = _only((-1, 0), "Agon samples the whole distribution")
NoPenalty = _only((0, 0.0), "Agon samples the model's own distribution")
NoPenaltyFactor = _only((1, 1.0), "Agon samples the model's own distribution")
NoBias = _only(({},), "Agon samples the model's own distribution")
NoLogprobs = _only((False, 0), "log-probabilities are not served")
NoTools = _only(([],), "there are no tools")
NoToolChoice = _only(("none", "auto"), "there are no tools")
TextOnly = _only(({"type": "text"},), "replies are text in Agon's own form")
TextModality = _only((["text"],), "replies are text")
Unsupported = _only((), "Agon has no such control")
NoMinimum = _only((0, 0.0), "Agon samples the whole distribution")
NotRanked = _only((1,), "choices are not ranked")
NotEchoed = _only((False,), "prompts are not echoed")
Kept = _only((False,), "control tokens stay in the text")


class _Body(BaseModel):
    """A request body: unknown parameters are errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class TextPart(BaseModel):
    """One part of a message's content."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One turn. What clients send back of our own replies (reasoning) is ignored."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart] | None = None
    tool_calls: Annotated[Any, NoTools] = None


class StreamOptions(_Body):
    """How a stream ends."""

    include_usage: Truth | None = None
    include_obfuscation: Truth | None = None


class _Common(_Body):
    """What both endpoints have."""

    model: Text
    n: Integer | None = Field(None, ge=1, le=128)
    """Choices. Choice i is the try number i of the seed."""
    seed: Integer | None = Field(None, ge=-(2**63), le=2**63 - 1)
    """`evaluation.seed` of the run gives what `agon eval` samples; null is a fresh one."""
    stop: StopString | Annotated[list[StopString], Field(max_length=4)] | None = None
    """Strings that end the last stage; never the draft."""
    stream: Truth | None = None
    stream_options: StreamOptions | None = None
    temperature: Number | None = Field(None, ge=0, le=100)
    """0 is greedy; null is the run's."""
    top_p: Annotated[Any, Untruncated] = None
    top_k: Annotated[Any, NoTopK] = None
    min_p: Annotated[Any, NoMinimum] = None
    presence_penalty: Annotated[Any, NoPenalty] = None
    frequency_penalty: Annotated[Any, NoPenalty] = None
    repetition_penalty: Annotated[Any, NoPenaltyFactor] = None
    logit_bias: Annotated[Any, NoBias] = None
    logprobs: Annotated[Any, NoLogprobs] = None
    skip_special_tokens: Annotated[Any, Kept] = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    parallel_tool_calls: Any = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatRequest(_Common):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Integer | None = Field(None, ge=1)
    """Most tokens of each stage."""
    max_completion_tokens: Integer | None = Field(None, ge=1)
    """The same; the smaller of the two counts."""
    top_logprobs: Annotated[Any, NoLogprobs] = None
    tools: Annotated[Any, NoTools] = None
    tool_choice: Annotated[Any, NoToolChoice] = None
    functions: Annotated[Any, NoTools] = None
    function_call: Annotated[Any, NoToolChoice] = None
    response_format: Annotated[Any, TextOnly] = None
    modalities: Annotated[Any, TextModality] = None
    reasoning_effort: Annotated[Any, Unsupported] = None
    verbosity: Annotated[Any, Unsupported] = None
    audio: Annotated[Any, Unsupported] = None
    prediction: Annotated[Any, Unsupported] = None
    web_search_options: Annotated[Any, Unsupported] = None


class CompletionRequest(_Common):
    """Body of `/v1/completions`."""

    prompt: (
        Text
        | Annotated[list[Integer], Field(min_length=1)]
        | Annotated[list[Text], Field(min_length=1, max_length=128)]
        | Annotated[list[list[Integer]], Field(min_length=1, max_length=128)]
    )
    """Texts, or token ids of the base's own vocabulary."""
    max_tokens: Integer | None = Field(None, ge=1)
    best_of: Annotated[Any, NotRanked] = None
    echo: Annotated[Any, NotEchoed] = None
    suffix: Annotated[Any, Unsupported] = None


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail
