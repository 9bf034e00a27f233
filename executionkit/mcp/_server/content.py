"""What a tool returned, as the result of `tools/call`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from executionkit._redact import redact
from executionkit.calls import render_result
from executionkit.engine.schema import SchemaError, compile_schema
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.calls import ToolResult

__all__ = ("call_result", "error_result", "has_structure", "text")

# What a block must have, and since when there are such blocks.
_BLOCKS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "text": (("text",), ""),
    "image": (("data", "mimeType"), ""),
    "resource": (("resource",), ""),
    "audio": (("data", "mimeType"), "2025-03-26"),
    "resource_link": (("uri", "name"), "2025-06-18"),
}
_WHOLE: Final = frozenset({"content", "structuredContent", "isError", "_meta"})
STRUCTURED_SINCE: Final = "2025-06-18"
ANY_JSON_SINCE: Final = "2026-07-28"


def text(value: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": value}


def _is_block(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    known = _BLOCKS.get(str(value.get("type")))
    return known is not None and all(key in value for key in known[0])


def _are_blocks(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(value) > 0
        and all(_is_block(item) for item in value)
    )


def _for_version(block: Any, version: str) -> dict[str, Any]:
    made: dict[str, Any] = thaw(block)
    if version >= _BLOCKS[made["type"]][1]:
        return made
    about = made.get("uri") or made.get("mimeType") or ""
    return text(f"[{made['type']} {about}: this protocol version cannot carry it]")


def error_result(message: str) -> dict[str, Any]:
    """A failure that the model may read. Secrets in `message` are masked."""
    return {"content": [text(redact(message))], "isError": True}


def has_structure(schema: Mapping[str, Any] | None, version: str) -> bool:
    """Whether results of that schema can be sent as data in that version."""
    if schema is None or version < STRUCTURED_SINCE:
        return False
    return version >= ANY_JSON_SINCE or schema.get("type") == "object"


def call_result(
    result: ToolResult, schema: Mapping[str, Any] | None, version: str
) -> dict[str, Any]:
    """The result of `tools/call`.

    A content block, a list of them, and a mapping that is a whole MCP result stay what
    they are; anything else becomes text, and data too where there is a schema for it.

    Args:
        result: What the tool came to.
        schema: The schema of its results; None = none is known.
        version: The protocol version of the client.
    """
    if result.error is not None:
        return error_result(result.error)
    value = result.result
    if _is_block(value):
        return {"content": [_for_version(value, version)], "isError": False}
    if _are_blocks(value):
        blocks = [_for_version(item, version) for item in value]
        return {"content": blocks, "isError": False}
    if isinstance(value, Mapping) and _is_whole(value):
        return _whole(value, version)
    try:
        shown = render_result(value)
    except TypeError as exc:
        return error_result(f"The result of '{result.tool}' is not JSON: {exc}")
    made: dict[str, Any] = {"content": [text(shown)], "isError": False}
    if schema is not None and has_structure(schema, version):
        problems = _problems(schema, value)
        if problems:
            wrong = f"'{result.tool}' returned what its own schema forbids: {problems}"
            return {**error_result(f"{wrong}\n{shown}")}
        made["structuredContent"] = thaw(value)
    return made


def _is_whole(value: Mapping[str, Any]) -> bool:
    found = value.get("content")
    return set(value) <= _WHOLE and (_are_blocks(found) or found == [] or found == ())


def _whole(value: Mapping[str, Any], version: str) -> dict[str, Any]:
    made: dict[str, Any] = thaw(value)
    made["content"] = [_for_version(item, version) for item in made["content"]]
    made["isError"] = bool(made.get("isError", False))
    data = made.get("structuredContent")
    if version < STRUCTURED_SINCE or (
        version < ANY_JSON_SINCE and not isinstance(data, dict)
    ):
        made.pop("structuredContent", None)
    return made


def _problems(schema: Mapping[str, Any], value: Any) -> str:
    try:
        found = compile_schema(schema).validate(thaw(value))
    except SchemaError:
        return ""
    return "; ".join(str(problem) for problem in found[:3])
