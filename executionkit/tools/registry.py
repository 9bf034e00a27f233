"""Which tools there are, and under which names they are called.

A tool is a class, an object, a function, a `Tool`; `ToolRegistry` makes a `ToolRecord`
of it, checks everything that can be checked before the first call, and finds it again
by name.

Names: `namespace.name`, or the bare name in the namespace `default`. A call that names
a namespace stays in it. A bare name means the tool in `default`, else the tool in the
only namespace that has one of that name; when there are several, that is an error that
lists them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from executionkit.errors import ToolRegistrationError
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools._registry.build import build_record
from executionkit.tools._registry.done import Done
from executionkit.tools._registry.forms import read_form
from executionkit.tools._registry.marks import mark_of, policies_of
from executionkit.tools._registry.metadata import (
    NOT_GIVEN,
    NotGiven,
    ToolInfo,
    ToolMetadata,
    best_matches,
    read_metadata,
)
from executionkit.tools._registry.missing import AmbiguousToolError
from executionkit.tools._registry.names import (
    DEFAULT_NAMESPACE,
    full_name,
    split_name,
)
from executionkit.tools._registry.table import CallNames, ToolTable

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = (
    "AmbiguousToolError",
    "Kind",
    "ToolInfo",
    "ToolMetadata",
    "ToolRecord",
    "ToolRegistry",
    "create_registry",
)


class ToolRegistry:
    """Tools by name. All work is done at once; nothing here waits for anything.

    The methods with `await` in their examples are there for code that awaits them.
    `register_tool` and `unregister_tool` have done their work when they return, so
    that a forgotten `await` loses nothing; `add`, `remove` and `find` say the same
    without any await. A registry can be awaited too, and gives itself.

    Threads may register and look up at the same time.
    """

    def __init__(self) -> None:
        self._table = ToolTable()
        self._asked: dict[str, object] = {}
        self._lock = threading.RLock()
        self.call_names: Container[str] = CallNames(self._table, self._lock)
        """Which names a call may say: full ones, bare ones, and those for providers."""

    @property
    def version(self) -> int:
        """Grows with each change: what was looked up before may be different now."""
        return self._table.version

    def __await__(self) -> Generator[Any, Any, ToolRegistry]:
        yield from ()  # makes it a generator
        return self

    def __contains__(self, name: object) -> bool:
        """Whether there is a tool of that full name."""
        return name in self._table.records

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(self._table.records)} tools in "
            f"{len(self._table.spaces)} namespaces>"
        )

    # --- changing it ---

    def add(
        self,
        tool: object,
        name: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float | NotGiven | None = NOT_GIVEN,
        **more: Any,
    ) -> ToolRecord:
        """Register a tool.

        Args:
            tool: A class with `execute` (made anew for each call, without arguments),
                an object of one, a function or generator function, sync or async, a
                `Tool`, or a tool of a chain library.
            name: The name; None = that of `@tool`, else the tool's own. With a dot:
                namespace and name, split at the first one.
            namespace: The namespace; when it is not `default`, dots stay in the name.
            metadata: What `ToolMetadata` lists, as a mapping.
            replace: True takes the place of a tool of that name.
            description: What the model is told; None = from the docstring.
            parameters: JSON Schema of the arguments; None = from the signature.
            timeout: Seconds one call may run; None = no limit. Left out: 30, or what
                the processor says.
            more: Metadata by name; stronger than `metadata`.

        Raises:
            ToolRegistrationError: When the name is taken, or the tool could not be
                called: what is wrong, and what to do.
        """
        form = read_form(tool)
        mark = mark_of(tool)
        said: dict[str, Any] = {**more, "timeout": timeout}
        if description is not None:
            said["description"] = description
        if parameters is not None:
            said["parameters"] = parameters
        chosen = name or (mark.name if mark is not None else None) or form.name
        if chosen is None:
            msg = f"{form.source} {tool!r:.80} has no name of its own; give `name=...`"
            raise ToolRegistrationError(msg)
        if namespace == DEFAULT_NAMESPACE and name is None:
            if mark is not None:
                namespace = mark.namespace
            elif form.tool is not None:
                namespace = form.tool.namespace
        names = split_name(chosen, namespace)
        label = repr(full_name(*names))
        marked = None if mark is None else mark.metadata
        said_first = policies_of(tool)
        of_tool, kept = read_metadata(label, said_first, marked, metadata, said)
        asked = (of_tool.copy(), kept.copy())
        full = full_name(*names)
        with self._lock:
            old = self._table.records.get(full)
            if old is not None and not replace:
                if old.source is tool and self._asked[full] == asked:
                    return old
                raise _taken(old)
            record = build_record(tool, form, names, of_tool, kept)
            self._put(record, old)
            self._asked[full] = asked
        return record

    def _put(self, record: ToolRecord, old: ToolRecord | None) -> None:
        data = record.metadata
        if old is not None:
            if data is not None and old.metadata is not None:
                created = old.metadata.created_at
                data = record.metadata = dataclasses.replace(data, created_at=created)
            if (old.name, old.namespace) != (record.name, record.namespace):
                self._table.take(old)  # the same full name, split elsewhere
        self._table.put(record, hide=data is not None and data.defer_loading)

    def remove(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Forget a tool; calls that run go on. False when there is none."""
        with self._lock:
            record = self.find(name, namespace)
            if record is None:
                return False
            self._table.take(record)
            del self._asked[record.full_name]
        return True

    def register_tool(
        self,
        tool: object,
        name: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float | NotGiven | None = NOT_GIVEN,
        **more: Any,
    ) -> Done[ToolRecord]:
        """`add`, for `await registry.register_tool(...)`; done without the await too.

        Raises:
            ToolRegistrationError: As `add` says, at once.
        """
        return Done(
            self.add(
                tool,
                name,
                namespace,
                metadata,
                replace=replace,
                description=description,
                parameters=parameters,
                timeout=timeout,
                **more,
            )
        )

    def unregister_tool(
        self, name: str, namespace: str = DEFAULT_NAMESPACE
    ) -> Done[bool]:
        """`remove`, for `await registry.unregister_tool(...)`."""
        return Done(self.remove(name, namespace))

    # --- looking things up ---

    def resolve(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> ToolRecord:
        """The tool that a call means.

        Names as `executionkit.tools.export` gives them to providers are understood.

        Args:
            name: The name in the call: bare, or with its namespace before a dot.
            namespace: The namespace of the call; `default` = none was named.

        Raises:
            AmbiguousToolError: When several namespaces have that bare name.
            ToolNotFoundError: When there is none; names that are like it are suggested.
        """
        full = name if namespace == DEFAULT_NAMESPACE else f"{namespace}.{name}"
        table = self._table
        record = table.records.get(full)
        if record is None:
            with self._lock:
                record = table.search(name, namespace)
        if table.hidden:
            table.show(record)  # it is in use from now on
        return record

    def find(self, name: str, namespace: str = DEFAULT_NAMESPACE) -> ToolRecord | None:
        """The tool of exactly that name; None when there is none.

        A bare name means the namespace `default` alone, and a name with a dot the
        namespace before it.
        """
        return self._table.find(name, namespace)

    def records(self, namespace: str | None = None) -> tuple[ToolRecord, ...]:
        """All tools, those with `defer_loading` too, in the order of registration.

        Args:
            namespace: Only those of this one.
        """
        if namespace is None:
            return tuple(self._table.records.values())
        return tuple(self._table.spaces.get(namespace, {}).values())

    def listed(self, namespace: str | None = None) -> tuple[ToolRecord, ...]:
        """The tools that models are told about: `records` without the hidden ones."""
        hidden = self._table.hidden
        found = self.records(namespace)
        return tuple([item for item in found if item.full_name not in hidden])

    async def get_tool(
        self, name: str, namespace: str = DEFAULT_NAMESPACE
    ) -> object | None:
        """What was registered under exactly that name; None when nothing was."""
        record = self.find(name, namespace)
        return None if record is None else record.source

    async def get_tool_strict(
        self, name: str, namespace: str = DEFAULT_NAMESPACE
    ) -> object:
        """What was registered, for a name as in a call.

        Raises:
            AmbiguousToolError: As `resolve` says.
            ToolNotFoundError: As `resolve` says.
        """
        return self.resolve(name, namespace).source

    async def get_metadata(
        self, name: str, namespace: str = DEFAULT_NAMESPACE
    ) -> ToolMetadata | None:
        """What is known of the tool of exactly that name; None when there is none."""
        record = self.find(name, namespace)
        return None if record is None else record.metadata

    async def list_metadata(self, namespace: str | None = None) -> list[ToolMetadata]:
        """What is known of all tools, or of those of one namespace."""
        found = [record.metadata for record in self.listed(namespace)]
        return [item for item in found if item is not None]

    async def list_tools(self, namespace: str | None = None) -> list[ToolInfo]:
        """Where all tools are, or those of one namespace."""
        return [ToolInfo(item.namespace, item.name) for item in self.listed(namespace)]

    async def list_namespaces(self) -> list[str]:
        """The namespaces that have tools, the first used first."""
        return list(self._table.spaces)

    # --- tools that are loaded when they are needed ---

    async def get_active_tools(self, namespace: str | None = None) -> list[ToolInfo]:
        """The tools in use: the same as `list_tools`."""
        return await self.list_tools(namespace)

    async def get_deferred_tools(
        self, namespace: str | None = None
    ) -> list[ToolMetadata]:
        """What is known of the tools that are hidden still."""
        hidden = self._table.hidden
        found = [item for item in self.records(namespace) if item.full_name in hidden]
        return [item.metadata for item in found if item.metadata is not None]

    async def search_deferred_tools(
        self, query: str = "", tags: Iterable[str] | None = None, limit: int = 5
    ) -> list[ToolMetadata]:
        """The hidden tools that have most of the words of `query`.

        Args:
            query: Words; looked for in name, description, keywords and tags.
            tags: Only tools that have one of them.
            limit: How many at most.
        """
        found = await self.get_deferred_tools()
        return best_matches(found, query, frozenset(tags or ()), limit)

    async def load_deferred_tool(
        self, name: str, namespace: str = DEFAULT_NAMESPACE
    ) -> object:
        """List a hidden tool from now on; gives what was registered.

        Raises:
            ToolNotFoundError: As `resolve` says.
        """
        return self.resolve(name, namespace).source


def _taken(old: ToolRecord) -> ToolRegistrationError:
    known = getattr(old.source, "__qualname__", None) or type(old.source).__name__
    return ToolRegistrationError(
        f"there is a tool '{old.full_name}' already ({known}); give this one another "
        "`name` or `namespace`, or say `replace=True`",
        details={"tool_name": old.name, "namespace": old.namespace},
    )


def create_registry(*tools: object) -> ToolRegistry:
    """A registry of its own, with these tools: nothing in it is seen elsewhere.

    Args:
        tools: As `ToolRegistry.add` takes them.

    Raises:
        ToolRegistrationError: As `ToolRegistry.add` says.
    """
    registry = ToolRegistry()
    for tool in tools:
        registry.add(tool)
    return registry
