"""Calls in data: whole answers, messages, blocks, lists of calls, streams of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from executionkit._llm import TRUNCATED_REASONS
from executionkit._wire.common import RawCall, text_of_parts
from executionkit.calls import ToolCall
from executionkit.tools.parsing.result import Reading
from executionkit.tools.parsing.shapes import (
    CALL_TYPES,
    INNER_CALLS,
    NOT_A_CALL,
    NOT_AN_OBJECT,
    read_declared,
    read_entry,
)
from executionkit.tools.parsing.streams import is_stream, read_stream
from executionkit.tools.parsing.text import read_text

__all__ = ("kind_of", "read_value")

_NOT_THE_MODEL: Final = frozenset(
    {"developer", "function", "ipython", "system", "tool", "user"}
)
_ANSWERS: Final = frozenset(
    {"custom_tool_call_output", "function_call_output", "tool_result", "tool-result"}
)
_WHOLE: Final = frozenset({"candidates", "choices", "message", "output", "tool_calls"})
_REASONS: Final = ("finish_reason", "stop_reason", "finishReason", "done_reason")
_GEMINI_LIMIT: Final = "MAX_TOKENS"
_INCOMPLETE: Final = "incomplete"
_PROGRAM: Final = "program"


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def _was_cut(entry: Mapping[str, Any]) -> bool:
    for key in _REASONS:
        reason = entry.get(key)
        if isinstance(reason, str) and reason:
            return reason in TRUNCATED_REASONS or reason == _GEMINI_LIMIT
    return entry.get("status") == _INCOMPLETE


def read_value(value: object, *, made_by: str = _PROGRAM) -> Reading | None:
    """The calls in a value: a mapping or a list, from a program or from JSON.

    Args:
        value: Any value; what is no mapping and no list has no calls.
        made_by: `"program"` for data that a caller hands in; anything else for JSON in
            a text, where an object must look more like a call to be taken for one.
    """
    # Plain types first: asking the abstract ones takes long.
    if isinstance(value, list):
        return _read_list(value, lenient=made_by == _PROGRAM)
    if type(value) is dict or isinstance(value, Mapping):
        return _read_mapping(value, lenient=made_by == _PROGRAM)
    if _is_list(value):
        return _read_list(value, lenient=made_by == _PROGRAM)
    return None


def _read_mapping(
    value: Mapping[str, Any], *, lenient: bool = False, is_reply: bool = False
) -> Reading | None:
    declared = value.get("tool_calls")
    role = value.get("role")
    if isinstance(role, str) and role in _NOT_THE_MODEL:
        return None  # a part of the conversation that the model did not write
    if declared:
        given = declared if _is_list(declared) else [declared]
        cut = len(value) > 1 and _was_cut(value)
        return Reading([_declared(entry) for entry in given], cut)
    whole = _read_answer(value)
    if whole is not None:
        return whole
    call = read_entry(value, lenient=lenient)
    if call is not None:
        return Reading([call], _was_cut(value) and not call.incomplete)
    parts = value.get("parts")
    if _is_list(parts) and (is_reply or role is not None or len(value) == 1):
        return _read_list(parts)
    is_reply = is_reply or role in ("assistant", "model")
    return _read_content(value, is_reply=is_reply)


def _declared(entry: object) -> RawCall | ToolCall:
    return entry if isinstance(entry, ToolCall) else read_declared(entry)


def _read_content(value: Mapping[str, Any], *, is_reply: bool) -> Reading | None:
    content = value.get("content")
    if isinstance(content, str):
        return _of_text(content, cut=_was_cut(value)) if is_reply else None
    if not _is_list(content):
        return None
    found = _read_list(content)
    if found is None or not found.entries:
        return found
    if _was_cut(value):
        last = content[-1]
        ends_in_call = isinstance(last, Mapping) and last.get("type") == "tool_use"
        entry = found.entries[-1]
        if ends_in_call and isinstance(entry, RawCall):
            # A whole answer shows only what could be parsed of a call cut in half.
            found.entries[-1] = entry._replace(incomplete=True)
        found.truncated = True
    return found


def _read_answer(value: Mapping[str, Any]) -> Reading | None:
    """The calls of a whole answer of an API; None when `value` is none."""
    choices = value.get("choices")
    if _is_list(choices) and choices:
        if is_stream([value]):
            return _from_stream([value])
        return _read_choice(choices[0])
    candidates = value.get("candidates")
    if _is_list(candidates) and candidates:
        return _read_candidate(candidates[0])
    for key in ("output", "message"):
        inner = value.get(key)
        if isinstance(inner, Mapping) and _is_message(inner):
            found = _read_mapping(inner, is_reply=True)
            if found is not None:
                found.truncated = found.truncated or _was_cut(value)
            return found
    output = value.get("output")
    if _is_list(output) and any(
        isinstance(item, Mapping) and "type" in item for item in output
    ):
        found = _read_list(output)
        if found is not None:
            found.truncated = _was_cut(value)
        return found
    return None


def _read_candidate(candidate: object) -> Reading | None:
    if not isinstance(candidate, Mapping):
        return None
    content = candidate.get("content")
    found = (
        _read_mapping(content, is_reply=True) if isinstance(content, Mapping) else None
    )
    if found is not None:
        found.truncated = _was_cut(candidate)
    return found


def _is_message(value: Mapping[str, Any]) -> bool:
    return any(key in value for key in ("role", "content", "tool_calls", "message"))


def _read_choice(choice: object) -> Reading | None:
    if not isinstance(choice, Mapping):
        return None
    message = choice.get("message")
    if not isinstance(message, Mapping):
        text = choice.get("text")  # the older completions form
        return _of_text(text if isinstance(text, str) else "", cut=_was_cut(choice))
    found = _read_mapping(message, is_reply=True)
    if found is not None and not found.truncated:
        found.truncated = _was_cut(choice)
    return found


def _of_text(text: str, *, cut: bool = False) -> Reading:
    entries = read_text(text, _of_json)
    return Reading(entries, cut, "" if entries else text)


def _of_json(value: object) -> list[Any]:
    found = read_value(value, made_by="model")
    return [] if found is None else found.entries


def _from_stream(items: Sequence[Any]) -> Reading:
    found, text = read_stream(items)
    if not found.entries and text:
        return _of_text(text, cut=found.truncated)
    return found


def _is_conversation(items: Sequence[Any]) -> bool:
    """Whether a list holds what others than the model said, answers of tools too."""
    for item in items:
        if type(item) is dict or isinstance(item, Mapping):
            role, kind = item.get("role"), item.get("type")
            if isinstance(role, str) and role in _NOT_THE_MODEL:
                return True
            if isinstance(kind, str) and kind in _ANSWERS:
                return True
    return False


def _read_list(items: Sequence[Any], *, lenient: bool = False) -> Reading | None:
    if not items:
        return None
    if is_stream(items):
        return _from_stream(items)
    if _is_conversation(items):
        # Earlier calls have been answered; running them again would be wrong.
        last = items[-1]
        return (
            _read_mapping(last, lenient=lenient) if isinstance(last, Mapping) else None
        )
    entries: list[RawCall | ToolCall] = []
    unknown: list[int] = []
    texts: list[str] = []
    truncated = False
    for item in items:
        if isinstance(item, ToolCall):
            entries.append(item)
        elif type(item) is not dict and not isinstance(item, Mapping):
            unknown.append(len(entries))
            entries.append(RawCall(problem=NOT_AN_OBJECT))
        elif not _WHOLE.isdisjoint(item):
            found = _read_mapping(item, is_reply=True)
            if found is not None:
                entries += found.entries
                truncated = truncated or found.truncated
        else:
            _read_item(item, entries, unknown, texts, lenient=lenient)
    if len(unknown) == len(entries):
        return _of_text("".join(texts))  # no call among them: data, or text
    return Reading(entries, truncated)


def _read_item(
    item: Mapping[str, Any],
    entries: list[RawCall | ToolCall],
    unknown: list[int],
    texts: list[str],
    *,
    lenient: bool,
) -> None:
    """Take one object of a list: a call, a piece of text, or something unknown."""
    call = read_entry(item, lenient=lenient)
    kind = item.get("type")
    if call is not None:
        entries.append(call)
    elif isinstance(kind, str) and kind not in CALL_TYPES:
        inner = item.get("content") if kind == "message" else None
        texts.append(text_of_parts(list(inner) if _is_list(inner) else item))
    elif "text" in item:
        if not item.get("thought"):
            texts.append(text_of_parts(item["text"]))
    elif "role" in item or item.keys() <= {"thoughtSignature", "reasoningContent"}:
        texts.append(text_of_parts(item.get("content")))
    else:
        unknown.append(len(entries))
        entries.append(RawCall(item.get("id"), item.get("name"), problem=NOT_A_CALL))


def kind_of(value: object) -> str:
    """The name of the format that `value` has; empty when it is none with calls."""
    if _is_list(value):
        if is_stream(value):
            return "stream"
        return next(filter(None, map(kind_of, value)), "")
    if not isinstance(value, Mapping):
        return ""
    return _kind_of_mapping(value)


def _kind_of_mapping(value: Mapping[str, Any]) -> str:
    declared = value.get("tool_calls")
    if declared:
        first = declared[0] if _is_list(declared) else declared
        plain = isinstance(first, Mapping) and not (
            "function" in first or "custom" in first
        )
        return "json" if plain else "openai"
    if is_stream([value]):
        return "stream"
    choices = value.get("choices")
    if _is_list(choices) and choices:
        first = choices[0]
        message = first.get("message") if isinstance(first, Mapping) else None
        return kind_of(message) or "openai"
    if _is_list(value.get("candidates")) or _is_list(value.get("parts")):
        return "gemini"
    if _is_list(value.get("output")):
        return "responses"
    if isinstance(value.get("message"), Mapping):
        return kind_of(value["message"])
    if _is_list(value.get("content")):
        return kind_of(value["content"])
    return _kind_of_entry(value)


def _kind_of_entry(value: Mapping[str, Any]) -> str:
    if isinstance(value.get("function"), Mapping):
        return "openai"
    kind = value.get("type")
    if kind == "tool_use":
        return "anthropic"
    if kind in ("function_call", "custom_tool_call") and "name" in value:
        return "responses"
    for key in INNER_CALLS:
        inner = value.get(key)
        if isinstance(inner, Mapping):
            older = key == "function_call" and "args" not in inner
            return "function_call" if older else "gemini"
    return "json" if read_entry(value, lenient=True) is not None else ""
