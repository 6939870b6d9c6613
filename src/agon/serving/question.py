"""A chat as one problem.

The policies were trained on a single user turn. So the last user turn is the problem, and what
stands before it (system and developer messages, earlier turns) is written in front of it, in the
same turn, each under a line that says whose it is. A chat of one user message is its text exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from agon.serving.errors import ApiError, clean
from agon.serving.schema import Message

_NAMES = {"user": "User", "assistant": "Assistant"}


def question_of(messages: Sequence[Message]) -> str:
    """The problem's text.

    Raises:
        ApiError: The last message is not the user's, or a message has no content.
    """
    last = messages[-1]
    if last.role != "user":
        raise ApiError(
            400,
            f"messages: the last one is of role {last.role!r}, expected 'user': its text is the "
            "problem, and begun answers are not continued",
            param="messages",
        )
    texts = [_text(message, place) for place, message in enumerate(messages)]
    if not texts[-1].strip():
        raise ApiError(400, "messages: the last one is empty", param="messages")
    before = [
        text if message.role in ("system", "developer") else f"{_NAMES[message.role]}: {text}"
        for message, text in zip(messages[:-1], texts[:-1], strict=True)
        if text.strip()
    ]
    own = texts[-1]
    if any(message.role in _NAMES for message in messages[:-1]):
        own = f"User: {own}"
    return "\n\n".join((*before, own))


def _text(message: Message, place: int) -> str:
    """A message's text; parts are joined as they stand."""
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise ApiError(
            400, f"messages.{place}.content is missing", param=f"messages.{place}.content"
        )
    if isinstance(message.content, str):
        return clean(message.content)
    return clean("".join(part.text for part in message.content))
