"""Answers as objects of a provider's own library: as plain data, by duck typing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from executionkit.calls import ToolCall

__all__ = ("to_data",)

_FIELDS: Final = (
    "arguments",
    "args",
    "call_id",
    "candidates",
    "choices",
    "content",
    "content_block",
    "custom",
    "delta",
    "finish_reason",
    "function",
    "function_call",
    "id",
    "idempotency_key",
    "index",
    "input",
    "item",
    "message",
    "name",
    "namespace",
    "object",
    "output",
    "output_index",
    "partial_json",
    "parts",
    "response",
    "role",
    "status",
    "stop_reason",
    "text",
    "thought",
    "tool",
    "tool_calls",
    "type",
)
_SIGNS: Final = (
    "candidates",
    "choices",
    "content",
    "delta",
    "function",
    "function_call",
    "message",
    "name",
    "output",
    "parts",
    "tool",
    "tool_calls",
    "type",
)
_DUMPS: Final = ("model_dump", "to_dict", "dict")
_MAX_DEPTH: Final = 16
_ATOMS: Final = (str, int, float, bool, type(None))


def _dumped(value: object) -> Any:
    for name in _DUMPS:
        dump: Callable[[], Any] | None = getattr(value, name, None)
        made: object = None
        if callable(dump):
            with suppress(Exception):  # a foreign object; its fields are left
                made = dump()
        if isinstance(made, Mapping):
            return made
    return None


def to_data(value: object, depth: int = _MAX_DEPTH) -> Any:
    """`value` as mappings and lists where it is an object of a foreign library.

    An object that can dump itself (`model_dump`, `to_dict`) is asked to; of another one
    the fields that answers have are read. What is none of them is returned as it is.
    """
    if isinstance(value, (*_ATOMS, bytes, bytearray, ToolCall)) or depth <= 0:
        return value
    if type(value) is dict:
        return value
    if isinstance(value, (list, tuple)):
        if all(type(item) is dict for item in value):
            return value
        return [to_data(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        return value
    made = _dumped(value)
    if made is not None:
        return made
    if isinstance(value, type) or not any(hasattr(value, name) for name in _SIGNS):
        return value
    fields: dict[str, Any] = {}
    for name in _FIELDS:
        given = getattr(value, name, None)
        if given is not None and not callable(given):
            fields[name] = to_data(given, depth - 1)
    return fields or value
