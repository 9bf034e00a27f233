"""One call in one object: the shapes that models and providers give it.

| shape | id | name | arguments |
|---|---|---|---|
| OpenAI chat | `id` | `function.name` | `function.arguments` |
| OpenAI Responses | `call_id` | `name` | `arguments`, `input` |
| Anthropic | `id` | `name` | `input` |
| Gemini | `functionCall.id` | `functionCall.name` | `functionCall.args` |
| plain | any of them | `name`, `tool` | `arguments`, `args`, `input`, `parameters` |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executionkit._wire.common import RawCall

__all__ = (
    "CALL_TYPES",
    "INNER_CALLS",
    "NOT_AN_OBJECT",
    "NOT_A_CALL",
    "named_call",
    "read_declared",
    "read_entry",
)

NOT_AN_OBJECT: Final = "tool call payload was not an object"
"""What is wrong with an entry of a list of calls that is no object."""
NOT_A_CALL: Final = "the entry is not a tool call: it has no name and no arguments"
"""What is wrong with an object in a list of calls that is no call."""

_ARGUMENT_KEYS: Final = ("arguments", "args", "input", "parameters")
_NAME_KEYS: Final = ("name", "tool", "tool_name", "toolName")
_ID_KEYS: Final = (
    "call_id",
    "id",
    "tool_use_id",
    "tool_call_id",
    "toolCallId",
    "toolUseId",
)
_KNOWN: Final = frozenset(
    {
        *_ARGUMENT_KEYS,
        *_NAME_KEYS,
        *_ID_KEYS,
        "idempotency_key",
        "index",
        "namespace",
        "status",
        "type",
    }
)
_USUAL: Final = frozenset({"arguments", "id", "name"})
CALL_TYPES: Final = frozenset(
    {
        "custom_tool_call",
        "function",
        "function_call",
        "tool-call",
        "tool_call",
        "tool_use",
    }
)
"""Values of `type` that mean a call which we are asked to run."""

INNER_CALLS: Final = ("functionCall", "function_call", "toolUse")
"""Keys under which an object holds one call."""


def _first(entry: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        value = entry.get(key)
        if value is not None:
            return value
    return None


def _is_schema(value: object) -> bool:
    """Whether it is the schema of arguments, so that the object defines a tool."""
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    return kind == "object" and isinstance(value.get("properties"), Mapping)


def named_call(entry: Mapping[str, Any], source: Mapping[str, Any]) -> RawCall:
    """The call in `source`, a part of `entry` or `entry` itself."""
    space = source.get("namespace")
    key = source.get("idempotency_key")
    return RawCall(
        _first(source, _ID_KEYS) if entry is source else _first(entry, _ID_KEYS),
        _first(source, _NAME_KEYS),
        _first(source, _ARGUMENT_KEYS),
        incomplete=entry.get("status") == "incomplete",
        namespace=entry.get("namespace") if space is None else space,
        idempotency_key=entry.get("idempotency_key") if key is None else key,
    )


def _in_function(
    entry: Mapping[str, Any], function: Mapping[str, Any]
) -> RawCall | None:
    if "arguments" not in function:
        if "description" in function or _is_schema(function.get("parameters")):
            return None  # the definition of a tool
        if _first(function, _NAME_KEYS) is None:
            return None
    return named_call(entry, function)


def _custom(entry: Mapping[str, Any], source: Mapping[str, Any]) -> RawCall:
    """A tool whose input is free text."""
    call_id = _first(entry, _ID_KEYS)
    return RawCall(call_id, source.get("name"), {"input": source.get("input")})


def _inner(entry: Mapping[str, Any]) -> RawCall | None:
    for key in INNER_CALLS:
        inner = entry.get(key)
        if isinstance(inner, Mapping) and not _KNOWN.isdisjoint(inner):
            call = named_call(inner, inner)
            return call if call.id is not None else call._replace(id=entry.get("id"))
    return None


def _plain(entry: Mapping[str, Any], *, lenient: bool) -> RawCall | None:
    if _KNOWN.isdisjoint(entry) or "description" in entry:
        return None
    name = _first(entry, _NAME_KEYS)
    kind = entry.get("type")
    typed = isinstance(kind, str) and kind in CALL_TYPES
    named = isinstance(name, str) and name.strip()
    if name is None and typed and isinstance(entry.get("function"), str):
        return named_call(entry, {**entry, "name": entry["function"]})
    if _is_schema(entry.get("parameters")) and "arguments" not in entry:
        return None
    if "arguments" in entry:
        # More keys than these are common (`thought`, `reason`) when it is a call.
        sure = named or _KNOWN.issuperset(entry)
        return named_call(entry, entry) if sure else None
    if not (lenient and "tool" in entry) and not _KNOWN.issuperset(entry):
        return None
    if not named:
        return named_call(entry, entry) if typed or "tool" in entry else None
    has_arguments = any(key in entry for key in _ARGUMENT_KEYS)
    if has_arguments or typed or "tool" in entry:
        return named_call(entry, entry)
    return None


def read_entry(entry: Mapping[str, Any], *, lenient: bool = False) -> RawCall | None:
    """The call that an object is; None when it is something else.

    Args:
        entry: Any object.
        lenient: `{"tool": ...}` with other keys beside is a call too: a program made
            it, not a model.
    """
    if (
        "arguments" in entry
        and _USUAL.issuperset(entry)
        and type(entry.get("name")) is str
        and entry["name"].strip()
    ):
        return RawCall(entry.get("id"), entry["name"], entry["arguments"])
    function = entry.get("function")
    if isinstance(function, Mapping):
        return _in_function(entry, function)
    custom = entry.get("custom")
    kind = entry.get("type")
    if isinstance(custom, Mapping) and kind == "custom":
        return _custom(entry, custom)
    if kind == "custom_tool_call":
        return _custom(entry, entry)
    if kind in ("tool_use", "tool-call") or (
        kind == "function_call" and "name" in entry
    ):
        return named_call(entry, entry)
    return _inner(entry) or _plain(entry, lenient=lenient)


def read_declared(entry: object) -> RawCall:
    """The call that an entry of a list of calls must be."""
    if type(entry) is not dict and not isinstance(entry, Mapping):
        return RawCall(problem=NOT_AN_OBJECT)
    function = entry.get("function")
    if (
        type(function) is dict
        and "arguments" in function
        and "namespace" not in entry
        and "idempotency_key" not in entry
    ):
        return RawCall(entry.get("id"), function.get("name"), function["arguments"])
    call = read_entry(entry, lenient=True)
    if call is not None:
        return call
    if isinstance(function, Mapping):
        return RawCall(_first(entry, _ID_KEYS), problem=NOT_A_CALL)
    found = named_call(entry, entry)
    if isinstance(found.name, str) and "description" not in entry:
        return found
    return found._replace(problem=NOT_A_CALL)
