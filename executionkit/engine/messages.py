"""Chat messages in OpenAI's form. Every function returns a fresh dict.

Nothing that the caller hands in is kept or changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.types import JsonObject

__all__ = (
    "assistant_message",
    "assistant_tool_calls_message",
    "copy_message",
    "system_message",
    "tool_message",
    "user_message",
)

_NO_ARGUMENTS = "{}"


# `json.dumps` with options builds an encoder for each call; this one is built once.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def system_message(content: str | Sequence[JsonObject]) -> dict[str, Any]:
    """A message that instructs the model; text, or a list of content parts."""
    return {"role": "system", "content": thaw(content)}


def user_message(content: str | Sequence[JsonObject]) -> dict[str, Any]:
    """A message of the user; text, or a list of content parts."""
    return {"role": "user", "content": thaw(content)}


def assistant_message(content: str | Sequence[JsonObject]) -> dict[str, Any]:
    """A message of the model; text, or a list of content parts."""
    return {"role": "assistant", "content": thaw(content)}


def tool_message(tool_call_id: str, content: str) -> dict[str, Any]:
    """The answer to one tool call."""
    return {"role": "tool", "tool_call_id": tool_call_id, "content": content}


def assistant_tool_calls_message(
    content: str | None, tool_calls: Sequence[ToolCall | JsonObject]
) -> dict[str, Any]:
    """A message of the model that asks for tools.

    Args:
        content: The text beside the calls; empty becomes None.
        tool_calls: `ToolCall`s, or calls in OpenAI's own form. Servers parse the
            arguments again, so an empty text is sent as an empty object.
    """
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [_wire_call(call) for call in tool_calls],
    }


def copy_message(message: JsonObject) -> dict[str, Any]:
    """A deep copy of a message, fit to be sent: no tool call has empty arguments."""
    copied: dict[str, Any] = thaw(message)
    calls = copied.get("tool_calls")
    if isinstance(calls, list):
        copied["tool_calls"] = [
            _wire_call(call) if isinstance(call, Mapping) else call for call in calls
        ]
    return copied


def _wire_call(call: ToolCall | JsonObject) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        text = _encode(thaw(call.arguments))
        return {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": text},
        }
    copied: dict[str, Any] = thaw(call)
    function = copied.get("function")
    if isinstance(function, dict):
        function["arguments"] = _arguments_text(function.get("arguments"))
    return copied


def _arguments_text(arguments: Any) -> str:
    if arguments is None:
        return _NO_ARGUMENTS
    if isinstance(arguments, str):
        return arguments if arguments.strip() else _NO_ARGUMENTS
    return _encode(arguments)
