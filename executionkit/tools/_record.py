"""A tool as the registry keeps it: everything that is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executionkit.engine.schema import Validator
    from executionkit.tools._registry.metadata import ToolMetadata
    from executionkit.types import Tool

__all__ = ("Kind", "ToolRecord")


class Kind(StrEnum):
    """How a tool's function is run."""

    ASYNC = "async"
    """A coroutine function: on the event loop."""

    SYNC = "sync"
    """A plain function: in a thread of the library."""

    ASYNC_STREAM = "async_stream"
    """An async generator function: on the event loop; its items are progress."""

    SYNC_STREAM = "sync_stream"
    """A generator function: in a thread; its items are progress."""


class ToolRecord:
    """One registered tool. Made by the registry, read by everybody else."""

    __slots__ = (
        "accepts",
        "context_parameters",
        "full_name",
        "kind",
        "metadata",
        "name",
        "names",
        "namespace",
        "parse",
        "quick_parse",
        "source",
        "stream",
        "tool",
        "validator",
    )

    def __init__(
        self,
        tool: Tool,
        *,
        kind: Kind,
        validator: Validator,
        accepts: Callable[[Mapping[str, Any]], bool] | None = None,
        parse: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
        context_parameters: tuple[str, ...] = (),
        stream: Callable[..., Any] | None = None,
        source: object = None,
    ) -> None:
        self.tool: Tool = tool
        """The normal form: name, description, schema, `execute`, metadata."""
        self.name: str = tool.name
        self.namespace: str = tool.namespace
        self.full_name: str = (
            tool.name
            if tool.namespace == "default"
            else f"{tool.namespace}.{tool.name}"
        )
        """`namespace.name`; the bare name in the default namespace."""
        self.names: tuple[str, ...] = tuple(dict.fromkeys((self.full_name, self.name)))
        """What settings may call it, the most precise first."""
        self.kind: Kind = kind
        """How `tool.execute` is run."""
        self.validator: Validator = validator
        """Checks arguments against `tool.parameters`."""
        self.accepts: Callable[[Mapping[str, Any]], bool] | None = accepts
        """A quick check: True = certainly valid, False = ask `validator`. None = ask."""
        self.parse: Callable[[Mapping[str, Any]], dict[str, Any]] | None = parse
        """From JSON to what the function's annotations say; None = JSON as it is."""
        self.quick_parse: Callable[[Mapping[str, Any]], dict[str, Any]] | None = (
            None if getattr(parse, "is_exact", False) else parse
        )
        """What of `parse` is left to do after `accepts` said yes."""
        self.context_parameters: tuple[str, ...] = context_parameters
        """Parameters that the runtime fills with the `ExecutionContext`."""
        self.stream: Callable[..., Any] | None = stream
        """An async generator function with the same parameters, where the tool has one
        beside `execute` (`stream_execute` of a class)."""
        self.source: object = source
        """What was registered: the class, function, instance or `Tool`."""
        self.metadata: ToolMetadata | None = None
        """What is said of it besides; the registry fills it in."""
