"""Anthropic's Messages API: what a whole answer says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit._llm import TRUNCATED_REASONS, LLMResponse, Owned
from executionkit._wire.common import RawCall, collect_calls, text_of_parts
from executionkit._wire.failures import failure_in, refuse, to_reply_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit._wire.anthropic_request import AnswerTool
    from executionkit.types import JsonValue

__all__ = ("answer_text", "parse_message", "reply_of")

_REFUSED: Final = "the model refused to answer"


def parse_message(
    payload: JsonValue,
    secrets: Sequence[str] = (),
    *,
    answer: AnswerTool | None = None,
) -> LLMResponse:
    """The reply in the JSON of a whole answer.

    Args:
        payload: The answer's JSON; it belongs to the reply from here on.
        secrets: Texts that must not appear in an error.
        answer: The tool whose input is the text of the answer, when one was offered.

    Raises:
        LLMError: When the answer is an error object, or not what the API promises.
    """
    failure = failure_in(payload)
    if failure is not None:
        raise to_reply_error(failure, secrets=secrets)
    if not isinstance(payload, dict):
        refuse("the answer was not a JSON object")
    if not isinstance(payload.get("content"), (list, str)):
        refuse("the answer did not include a list of content blocks")
    return reply_of(payload, answer=answer, secrets=secrets)


def answer_text(given: object, *, wrapped: bool) -> str:
    """The input of the answer tool as the text of the answer."""
    if wrapped and isinstance(given, Mapping) and "value" in given:
        given = given["value"]
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


class _Sorted:
    """The blocks of a message by what they mean."""

    __slots__ = ("answered", "blocks", "calls", "texts", "thoughts")

    def __init__(self, content: object, answer: AnswerTool | None) -> None:
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        given = content if isinstance(content, list) else []
        self.blocks = [block for block in given if isinstance(block, dict)]
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[RawCall] = []
        self.answered = False
        for block in self.blocks:
            self._add(block, answer)

    def _add(self, block: dict[str, Any], answer: AnswerTool | None) -> None:
        kind = block.get("type")
        if kind == "text":
            self.texts.append(text_of_parts(block.get("text")))
        elif kind == "thinking":
            self.thoughts.append(text_of_parts(block.get("thinking")))
        elif kind == "tool_use" and answer and block.get("name") == answer.name:
            self.answered = True
            self.texts.append(answer_text(block.get("input"), wrapped=answer.wrapped))
        elif kind == "tool_use":
            call = RawCall(block.get("id"), block.get("name"), block.get("input"))
            self.calls.append(call)

    @property
    def ends_in_call(self) -> bool:
        return bool(self.calls) and self.blocks[-1].get("type") == "tool_use"


def reply_of(
    message: dict[str, Any],
    *,
    answer: AnswerTool | None = None,
    text: str | None = None,
    cut_off: bool = True,
    secrets: Sequence[str] = (),
) -> LLMResponse:
    """The reply that a message stands for.

    Args:
        message: The message, whole or assembled from a stream; the input of a
            `tool_use` may still be a JSON text. It belongs to the reply from here on.
        answer: The tool whose input is the text of the answer, when one was offered.
        text: The text, when it is known already. None = that of the blocks.
        cut_off: Whether a call at the end of a truncated reply counts as incomplete:
            a whole answer shows only what could be parsed of it.
        secrets: Texts that must not appear in an error.

    Raises:
        BadResponseError: When it has neither text nor a call that can be answered.
    """
    given = message.get("stop_reason")
    reason = given if isinstance(given, str) and given else "unknown"
    truncated = reason in TRUNCATED_REASONS
    found = _Sorted(message.get("content"), answer)
    if truncated and cut_off and found.ends_in_call:
        found.calls[-1] = found.calls[-1]._replace(incomplete=True)
    content = "".join(found.texts) if text is None else text
    read = collect_calls(found.calls, truncated=truncated, secrets=secrets)
    if read.unusable and not content:
        refuse(f"the answer's {read.unusable}")
    if found.answered and not found.calls and reason == "tool_use":
        reason = "end_turn"  # the only tool was the answer itself
    usage = message.get("usage")
    return LLMResponse(
        content,
        read.calls,
        reason,
        usage if isinstance(usage, dict) else {},
        Owned(message),
        problems=read.problems,
        parts=tuple(found.blocks),
        refusal=_refusal(message, content) if reason == "refusal" else None,
        reasoning="".join(found.thoughts) or None,
        model=_text(message.get("model")),
        id=_text(message.get("id")),
        notes=read.notes,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _refusal(message: Mapping[str, Any], content: str) -> str:
    details = message.get("stop_details")
    said = details.get("explanation") if isinstance(details, Mapping) else None
    return said if isinstance(said, str) and said else content or _REFUSED
