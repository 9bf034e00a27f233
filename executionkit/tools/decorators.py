"""The registry of the process, and the decorators that fill it.

Code that wants to know exactly which tools there are makes a registry of its own with
`create_registry`; a decorated class or function keeps its name and metadata there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, overload

from executionkit.tools._record import ToolRecord
from executionkit.tools._registry.done import Done
from executionkit.tools._registry.forms import read_form
from executionkit.tools._registry.marks import Mark, put_mark
from executionkit.tools._registry.metadata import read_metadata
from executionkit.tools._registry.names import (
    DEFAULT_NAMESPACE,
    full_name,
    split_name,
)
from executionkit.tools.registry import ToolRegistry

__all__ = (
    "ToolRegistryProvider",
    "ensure_registrations",
    "get_default_registry",
    "initialize",
    "register_fn_tool",
    "register_langchain_tool",
    "register_tool",
    "reset_registry",
    "tool",
)

_F = TypeVar("_F", bound=Callable[..., Any])


class _Holder:
    """The one piece of state: which registry is the process's."""

    __slots__ = ("registry",)

    def __init__(self) -> None:
        self.registry: ToolRegistry = ToolRegistry()


_HOLDER: Final = _Holder()


def get_default_registry(*, auto_initialize: bool = True) -> ToolRegistry:  # noqa: ARG001 - older code says it
    """The registry of the process; `await` gives the same.

    Args:
        auto_initialize: Accepted for older code; there is nothing to initialize.
    """
    return _HOLDER.registry


async def initialize() -> ToolRegistry:
    """The registry of the process.

    Nothing needs to be prepared: what is decorated is registered right there. Code
    that calls this first may go on to do so.
    """
    return _HOLDER.registry


async def ensure_registrations() -> int:
    """The number of tools in the registry of the process; nothing is ever pending."""
    return len(_HOLDER.registry.records())


def reset_registry() -> None:
    """Begin anew with an empty registry of the process; for tests."""
    _HOLDER.registry = ToolRegistry()


class ToolRegistryProvider:
    """Says which registry is the process's; all methods may be awaited."""

    @staticmethod
    def get_registry() -> ToolRegistry:
        """The registry of the process."""
        return _HOLDER.registry

    @staticmethod
    def set_registry(registry: ToolRegistry | None) -> Done[None]:
        """Put another one in its place.

        Args:
            registry: The other one; None = a new one, without tools.

        Raises:
            TypeError: When it is none.
        """
        given: object = registry
        if given is not None and not isinstance(given, ToolRegistry):
            kind = type(given).__name__
            msg = f"`registry` must be a ToolRegistry, got {kind}; `create_registry()`"
            raise TypeError(msg)
        _HOLDER.registry = ToolRegistry() if registry is None else registry
        return Done(None)

    @staticmethod
    def reset() -> Done[None]:
        """Begin anew with an empty one; for tests."""
        reset_registry()
        return Done(None)


@overload
def tool(name: _F, /) -> _F: ...


@overload
def tool(
    name: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    description: str | None = None,
    *,
    registry: ToolRegistry | None = None,
    replace: bool = False,
    **metadata: Any,
) -> Callable[[_F], _F]: ...


def tool(
    name: Any = None,
    namespace: str = DEFAULT_NAMESPACE,
    description: str | None = None,
    *,
    registry: ToolRegistry | None = None,
    replace: bool = False,
    **metadata: Any,
) -> Any:
    """Register a class or function as a tool; with or without parentheses.

    The class or function stays what it is. When it is registered elsewhere, it brings
    its name and metadata along. A module that is loaded again replaces its tools.

    Args:
        name: The tool's name, `namespace.name` if you like; None = that of the class or
            function.
        namespace: The namespace, when the name does not say it.
        description: What the model is told; None = from the docstring.
        registry: Where; None = the registry of the process.
        replace: True takes the place of a tool of that name.
        metadata: As for `ToolRegistry.add`.

    Raises:
        ToolRegistrationError: When it is no tool, or the name is taken.
    """
    if name is not None and not isinstance(name, str):
        _register(name, None, namespace, metadata, registry, replace=replace)
        return name
    if description is not None:
        metadata["description"] = description

    def decorate(target: _F) -> _F:
        _register(target, name, namespace, metadata, registry, replace=replace)
        return target

    return decorate


@overload
def register_tool(name: _F, /) -> _F: ...


@overload
def register_tool(
    name: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    *,
    defer_loading: bool = False,
    search_keywords: Iterable[str] | None = None,
    allowed_callers: Iterable[str] | None = None,
    **metadata: Any,
) -> Callable[[_F], _F]: ...


def register_tool(
    name: Any = None,
    namespace: str = DEFAULT_NAMESPACE,
    *,
    defer_loading: bool = False,
    search_keywords: Iterable[str] | None = None,
    allowed_callers: Iterable[str] | None = None,
    **metadata: Any,
) -> Any:
    """`tool`, under its older name and with its older arguments.

    Args:
        name: As for `tool`.
        namespace: As for `tool`.
        defer_loading: True hides the tool from lists until it is called or loaded.
        search_keywords: Words under which a hidden tool is found.
        allowed_callers: Who may call it; kept, for those who ask.
        metadata: As for `tool`.

    Raises:
        ToolRegistrationError: As for `tool`.
    """
    if defer_loading:
        metadata["defer_loading"] = True
    for key, value in (
        ("search_keywords", search_keywords),
        ("allowed_callers", allowed_callers),
    ):
        if value is not None:
            metadata[key] = value if isinstance(value, str) else list(value)
    return tool(name, namespace, **metadata)


def register_fn_tool(
    func: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    registry: ToolRegistry | None = None,
    **metadata: Any,
) -> Done[ToolRecord]:
    """Register a function, sync or async; with or without `await`.

    Args:
        func: The function.
        name: As for `ToolRegistry.add`.
        description: As for `ToolRegistry.add`.
        namespace: As for `ToolRegistry.add`.
        registry: Where; None = the registry of the process.
        metadata: As for `ToolRegistry.add`.

    Raises:
        ToolRegistrationError: As `ToolRegistry.add` says.
    """
    chosen = _HOLDER.registry if registry is None else registry
    return chosen.register_tool(
        func, name, namespace, description=description, **metadata
    )


def register_langchain_tool(
    tool: object,  # the older API's name
    *,
    name: str | None = None,
    description: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    registry: ToolRegistry | None = None,
) -> Done[ToolRecord]:
    """Register a tool of a chain library; with or without `await`.

    It is known by what it has: `name`, `description`, `args_schema` or `args`, and one
    of `ainvoke`, `invoke`, `_arun`, `_run`. `ToolRegistry.add` takes it just as well.

    Args:
        tool: The tool.
        name: As for `ToolRegistry.add`.
        description: As for `ToolRegistry.add`.
        namespace: As for `ToolRegistry.add`.
        registry: Where; None = the registry of the process.

    Raises:
        ToolRegistrationError: As `ToolRegistry.add` says.
    """
    chosen = _HOLDER.registry if registry is None else registry
    return chosen.register_tool(tool, name, namespace, description=description)


def _register(
    target: Any,
    name: str | None,
    namespace: str,
    metadata: dict[str, Any],
    registry: ToolRegistry | None,
    *,
    replace: bool,
) -> None:
    chosen = _HOLDER.registry if registry is None else registry
    form = read_form(target)
    names = split_name(name or form.name or "", namespace)
    read_metadata(repr(full_name(*names)), metadata)  # refuse it before it is marked
    old = chosen.find(*names)
    again = replace or (old is not None and _is_reloaded(old.source, target))
    record = chosen.add(target, *names, metadata, replace=again)
    mark = Mark(name=record.name, namespace=record.namespace, metadata=metadata)
    put_mark(target, mark)


def _is_reloaded(old: Any, new: Any) -> bool:
    """Whether both are made by the same lines of the same module."""
    places = [
        (getattr(item, "__module__", None), getattr(item, "__qualname__", None))
        for item in (old, new)
    ]
    return places[0] == places[1] and None not in places[0]
