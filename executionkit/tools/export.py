"""Tools in the formats of OpenAI, Anthropic, MCP and OpenAPI.

Providers allow letters, digits, `_` and `-` in a name, 64 of them. `ToolNames` maps
full names to such names and back; a registry understands both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

from executionkit._frozen import freeze_mapping, sealed, thaw
from executionkit.tools._record import ToolRecord
from executionkit.tools._registry.names import decode_wire, full_name, wire_name
from executionkit.tools.registry import ToolRegistry
from executionkit.types import Tool

__all__ = (
    "ToolNames",
    "export_openapi",
    "to_anthropic",
    "to_mcp",
    "to_openai",
)

One: TypeAlias = ToolRecord | Tool
Many: TypeAlias = ToolRegistry | Iterable[ToolRecord | Tool]


@sealed
@dataclass(frozen=True, slots=True)
class ToolNames:
    """Full names of tools, and their names at a provider.

    A name at a provider depends on the full name alone, and no two full names share
    one: `web.fetch` is `web__fetch`; a name that would be too long, or could be mistaken
    for another, ends in `___` and a hash.
    """

    names: tuple[str, ...] = ()
    """The full names; only those with a hash have to be known to be read back."""

    _full: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        table = {wire_name(name): name for name in self.names}
        object.__setattr__(self, "_full", freeze_mapping(table))

    @classmethod
    def of(cls, tools: Many) -> ToolNames:
        """The names of these tools."""
        return cls(tuple(_full_name(item) for item in _each(tools)))

    @staticmethod
    def wire_name(full: str) -> str:
        """The name at a provider."""
        return wire_name(full)

    def full_name(self, wire: str) -> str:
        """The full name that a provider's name stands for.

        A full name, and a name that nobody knows, come back so that they say what the
        model wrote.
        """
        known = self._full.get(wire)
        if known is not None:
            return known
        if wire in self.names:
            return wire
        return decode_wire(wire) or wire


def _each(tools: Any) -> list[One]:
    found: list[One] = list(
        tools.listed() if isinstance(tools, ToolRegistry) else tools
    )
    given: list[Any] = list(found)
    for item in given:
        if not isinstance(item, (ToolRecord, Tool)):
            kind = type(item).__name__
            msg = (
                f"`tools` must be a registry, or hold records or `Tool`s, got {kind}; "
                "`create_registry(...)` makes them of classes and functions"
            )
            raise TypeError(msg)
    return found


def _full_name(item: One) -> str:
    if isinstance(item, ToolRecord):
        return item.full_name
    return full_name(item.name, item.namespace)


def _export(tools: Any, one: Callable[[One], dict[str, Any]]) -> Any:
    if isinstance(tools, (ToolRecord, Tool)):
        return one(tools)
    return [one(item) for item in _each(tools)]


def _normal(item: One) -> Tool:
    return item.tool if isinstance(item, ToolRecord) else item


def _schema(item: One) -> dict[str, Any]:
    schema: dict[str, Any] = thaw(_normal(item).parameters)
    # Providers want both, also of a tool without parameters.
    return {"type": "object", "properties": {}, **schema}


@overload
def to_openai(tools: One) -> dict[str, Any]: ...
@overload
def to_openai(tools: Many) -> list[dict[str, Any]]: ...
def to_openai(tools: One | Many) -> Any:
    """Tools as OpenAI's chat API takes them: one object for one, a list for many.

    Args:
        tools: A record, a `Tool`, several of them, or a registry (those it lists).

    Raises:
        TypeError: When it is something else.
    """
    return _export(tools, _openai)


def _openai(item: One) -> dict[str, Any]:
    function = {
        "name": wire_name(_full_name(item)),
        "description": _normal(item).description,
        "parameters": _schema(item),
    }
    return {"type": "function", "function": function}


@overload
def to_anthropic(tools: One) -> dict[str, Any]: ...
@overload
def to_anthropic(tools: Many) -> list[dict[str, Any]]: ...
def to_anthropic(tools: One | Many) -> Any:
    """Tools as Anthropic's messages API takes them.

    Args:
        tools: As for `to_openai`.

    Raises:
        TypeError: As `to_openai` says.
    """
    return _export(tools, _anthropic)


def _anthropic(item: One) -> dict[str, Any]:
    return {
        "name": wire_name(_full_name(item)),
        "description": _normal(item).description,
        "input_schema": _schema(item),
    }


@overload
def to_mcp(tools: One) -> dict[str, Any]: ...
@overload
def to_mcp(tools: Many) -> list[dict[str, Any]]: ...
def to_mcp(tools: One | Many) -> Any:
    """Tools as an MCP server lists them, with hints from their side effects.

    Names are those of providers: clients hand them on as they are. What is not known of
    a tool is left out, and clients then assume the worst.

    Args:
        tools: As for `to_openai`.

    Raises:
        TypeError: As `to_openai` says.
    """
    return _export(tools, _mcp)


def _mcp(item: One) -> dict[str, Any]:
    tool = _normal(item)
    data = item.metadata if isinstance(item, ToolRecord) else None
    made: dict[str, Any] = {
        "name": wire_name(_full_name(item)),
        "description": tool.description,
        "inputSchema": _schema(item),
    }
    if data is not None and data.title:
        made["title"] = data.title
    if data is not None and data.result_schema is not None:
        made["outputSchema"] = thaw(data.result_schema)
    hints = _hints(tool)
    if hints:
        made["annotations"] = hints
    return made


def _hints(tool: Tool) -> dict[str, bool]:
    hints: dict[str, bool] = {}
    if tool.side_effects in ("none", "read"):
        return {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}
    if tool.side_effects in ("write", "destructive"):
        hints["readOnlyHint"] = False
        hints["destructiveHint"] = tool.side_effects == "destructive"
        hints["idempotentHint"] = tool.idempotent
    elif tool.idempotent:
        hints["idempotentHint"] = True
    return hints


def export_openapi(
    tools: One | Many, *, title: str = "Tools", version: str = "1.0.0"
) -> dict[str, Any]:
    """An OpenAPI 3.1 document with one POST operation for each tool.

    Args:
        tools: As for `to_openai`.
        title: The document's title.
        version: The document's version.

    Raises:
        TypeError: As `to_openai` says.
    """
    many = [tools] if isinstance(tools, (ToolRecord, Tool)) else _each(tools)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": {
            f"/tools/{wire_name(_full_name(item))}": {"post": _operation(item)}
            for item in many
        },
    }


def _operation(item: One) -> dict[str, Any]:
    tool = _normal(item)
    data = item.metadata if isinstance(item, ToolRecord) else None
    result: Any = {}
    if data is not None and data.result_schema is not None:
        result = thaw(data.result_schema)
    operation: dict[str, Any] = {
        "operationId": wire_name(_full_name(item)),
        "description": tool.description,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _schema(item)}},
        },
        "responses": {
            "200": {
                "description": "What the tool returned",
                "content": {"application/json": {"schema": result}},
            }
        },
    }
    if tool.tags:
        operation["tags"] = sorted(tool.tags)
    return operation
