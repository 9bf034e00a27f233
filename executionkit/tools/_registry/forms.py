"""What can be a tool, and how each of them is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Final

from executionkit.engine._schema.docstring import parse_docstring
from executionkit.errors import ToolRegistrationError
from executionkit.tools._record import Kind
from executionkit.tools._registry.calls import FreshMethod, OneArgument
from executionkit.types import Tool

__all__ = ("Form", "kind_of", "read_form")

_ENTRIES: Final = ("execute", "_execute", "__call__")
_CHAINED: Final = ("ainvoke", "invoke")
_CHAINED_BY_NAME: Final = ("_arun", "_run")
_MISSING: Final = object()

Getter = Callable[[], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What was read off an object that is to be a tool."""

    source: str
    """`class`, `instance`, `function`, `tool` or `langchain`."""

    name: str | None
    """Its own name; None when it has none that could be used."""

    description: str = ""
    function: Callable[..., Any]
    """What runs."""

    described: Callable[..., Any]
    """What has the parameters that a model fills: `function`, or a stand-in."""

    kind: Kind
    fresh: Callable[[str], Getter] | None = None
    """Makes, from the tool's name, what gives `function` for one call."""

    stream: Callable[..., Any] | None = None
    """The same, item by item."""

    fresh_stream: Callable[[str], Getter] | None = None
    parameters: Mapping[str, Any] | None = None
    """The schema that it brings along; None = from the signature."""

    arguments_model: Any = None
    """The class `Arguments` inside of a class."""

    result_model: Any = None
    """The class `Result` inside of a class."""

    tool: Tool | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    """Metadata that it brings along."""


def kind_of(function: Callable[..., Any]) -> Kind:
    """How a function is run. Partial functions and callable objects are seen through."""
    while isinstance(function, functools.partial):
        function = function.func
    candidates: list[Any] = [function]
    if not inspect.isroutine(function) and not isinstance(function, type):
        candidates.append(getattr(type(function), "__call__", None))  # noqa: B004
    for item in candidates:
        if inspect.iscoroutinefunction(item):
            return Kind.ASYNC
        if inspect.isasyncgenfunction(item):
            return Kind.ASYNC_STREAM
        if inspect.isgeneratorfunction(item):
            return Kind.SYNC_STREAM
    return Kind.SYNC


def read_form(source: Any) -> Form:
    """What `source` is, as a tool.

    Raises:
        ToolRegistrationError: When it cannot be one: what is missing, and what to do.
    """
    if isinstance(source, Tool):
        return _of_tool(source)
    if isinstance(source, type):
        return _of_class(source)
    if inspect.isroutine(source) or isinstance(source, functools.partial):
        return _of_function(source)
    if inspect.iscoroutine(source) or inspect.isgenerator(source):
        msg = (
            f"a tool must be a function, got what `{source.__name__}` gave when it was "
            "called; register it without the parentheses"
        )
        if inspect.iscoroutine(source):
            source.close()
        raise ToolRegistrationError(msg)
    return _of_object(source)


def _of_tool(tool: Tool) -> Form:
    return Form(
        source="tool",
        name=tool.name,
        description=tool.description,
        function=tool.execute,
        described=tool.execute,
        kind=kind_of(tool.execute),
        parameters=tool.parameters,
        tool=tool,
    )


def _of_function(function: Callable[..., Any]) -> Form:
    behind: Any = function
    while isinstance(behind, functools.partial):
        behind = behind.func
    if inspect.isfunction(function) and next(iter(_first(function)), "") == "self":
        msg = (
            f"`{function.__qualname__}` cannot be a tool: it is a method and needs an "
            "object; register the method of one, `made.method`"
        )
        raise ToolRegistrationError(msg)
    return Form(
        source="function",
        name=getattr(behind, "__name__", None),
        description=_first_words(behind),
        function=function,
        described=_without_bound(function),
        kind=kind_of(function),
    )


def _without_bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in for a partial function without the keywords that it has already.

    They were given by the programmer (a client, a key): no model sees or changes them.
    """
    if not isinstance(function, functools.partial) or not function.keywords:
        return function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function
    left = [
        item
        for name, item in signature.parameters.items()
        if name not in function.keywords
    ]

    def stand_in(**_arguments: Any) -> None:
        """Never called."""

    named: Any = functools.update_wrapper(stand_in, function.func)
    named.__signature__ = signature.replace(parameters=left)
    return stand_in


def _first(function: Any) -> tuple[str, ...]:
    """The first positional parameter, where there is one."""
    code = inspect.unwrap(function).__code__
    names: tuple[str, ...] = code.co_varnames[: min(1, code.co_argcount)]
    return names


def _first_words(thing: Any) -> str:
    """The docstring up to its first section; empty for one that nobody wrote."""
    doc = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    if not isinstance(doc, str):
        return ""
    if isinstance(thing, type) and doc.startswith(f"{thing.__name__}("):
        return ""  # by `@dataclass`
    return parse_docstring(doc)[0]


def _found(cls: type, name: str) -> Any:
    """The attribute as a class has it, not its metaclass; `_MISSING` when it has none."""
    for base in cls.__mro__[:-1]:  # not `object`
        if name in vars(base):
            return vars(base)[name]
    return _MISSING


class _Methods:
    """The methods of a class, or of an object, with `self` out of the way."""

    def __init__(self, cls: type, source: Any = _MISSING) -> None:
        self.cls: type = cls
        self._source = source
        kind = "class" if source is _MISSING else "object of"
        self.what: str = f"the {kind} `{cls.__qualname__}`"
        self._own: Mapping[str, Any] = (
            {} if source is _MISSING else getattr(source, "__dict__", {})
        )

    def has(self, name: str) -> bool:
        return self._own.get(name, _found(self.cls, name)) not in (_MISSING, None)

    def get(self, name: str) -> Any:
        if self._source is not _MISSING:
            return getattr(self._source, name)
        raw = _found(self.cls, name)
        # A method bound to the class: its signature is that of an object's method.
        return (
            MethodType(raw, self.cls)
            if inspect.isfunction(raw)
            else getattr(self.cls, name)
        )

    def entry(self) -> str | None:
        """What runs the tool: an async `_aexecute`, else the first there is."""
        if self.has("_aexecute") and inspect.iscoroutinefunction(self.get("_aexecute")):
            return "_aexecute"
        for name in _ENTRIES:
            if self.has(name) and callable(self.get(name)):
                return name
        return None


def _no_entry(what: str) -> ToolRegistrationError:
    return ToolRegistrationError(
        f"{what} cannot be a tool: it has no method `execute` (or `_aexecute`, "
        "`__call__`, `stream_execute`); give it `async def execute(self, ...)`"
    )


def _stream_method(methods: _Methods, entry: str | None) -> Callable[..., Any] | None:
    """`stream_execute`, where it is to be used.

    Raises:
        ToolRegistrationError: When it is promised and missing, or does not stream.
    """
    name = "supports_streaming"
    promised = methods.has(name) and bool(methods.get(name))
    if not methods.has("stream_execute"):
        kind = kind_of(methods.get(entry)) if entry is not None else Kind.SYNC
        if promised and kind in (Kind.ASYNC, Kind.SYNC):
            msg = (
                f"{methods.what} says `{name} = True` and has no `stream_execute`; "
                "give it one (an async generator), or leave that out"
            )
            raise ToolRegistrationError(msg)
        return None
    if entry is not None and not promised:
        return None
    method: Callable[..., Any] = methods.get("stream_execute")
    allowed = [Kind.ASYNC_STREAM] + ([Kind.SYNC_STREAM] if entry is None else [])
    if kind_of(method) not in allowed:
        msg = (
            f"`stream_execute` of {methods.what} must be an async generator: `yield` "
            "its items"
        )
        raise ToolRegistrationError(msg)
    return method


def _check_can_be_made(cls: type, what: str) -> None:
    if inspect.isabstract(cls):
        names = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        msg = f"{what} is abstract ({names}); register a class that has them"
        raise ToolRegistrationError(msg)
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [
        item.name
        for item in parameters
        if item.default is item.empty
        and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    if needed:
        msg = (
            f"{what} cannot be a tool: an object of it is made without arguments for "
            f"each call, and it needs {', '.join(needed)}; register an object of it, or "
            "give them defaults"
        )
        raise ToolRegistrationError(msg)


def _of_class(cls: type) -> Form:
    methods = _Methods(cls)
    form = _of_methods(methods, "class")
    _check_can_be_made(cls, methods.what)
    return form


def _of_methods(methods: _Methods, source: str) -> Form:
    cls, entry = methods.cls, methods.entry()
    stream = _stream_method(methods, entry)
    if entry is None and stream is None:
        raise _no_entry(methods.what)
    method = entry or "stream_execute"
    function = methods.get(method)
    by_class = source == "class"

    def fresh(name: str) -> Getter:
        return FreshMethod(cls, method, name)

    def fresh_stream(name: str) -> Getter:
        return FreshMethod(cls, "stream_execute", name)

    return Form(
        source=source,
        name=cls.__name__,
        description=_first_words(cls) or _first_words(function),
        function=function,
        described=function,
        kind=kind_of(function),
        fresh=fresh if by_class else None,
        stream=stream if entry is not None else None,
        fresh_stream=fresh_stream if by_class else None,
        arguments_model=_model(cls, "Arguments"),
        result_model=_model(cls, "Result"),
    )


def _model(cls: type, name: str) -> Any:
    found = _found(cls, name)
    return found if isinstance(found, type) else None


def _of_object(source: Any) -> Form:
    methods = _Methods(type(source), source)
    own = any(methods.has(name) for name in ("_aexecute", "execute", "stream_execute"))
    if not own and _is_chained(source):
        return _of_chained(source)
    return _of_methods(methods, "instance")


def _is_chained(source: Any) -> bool:
    """Whether it looks like a tool of a chain library: names, words, schema, entry."""
    return (
        isinstance(getattr(source, "name", None), str)
        and isinstance(getattr(source, "description", None), str)
        and (hasattr(source, "args_schema") or hasattr(source, "args"))
        and any(
            callable(getattr(source, name, None))
            for name in (*_CHAINED, *_CHAINED_BY_NAME)
        )
    )


def _of_chained(source: Any) -> Form:
    entry = next(
        name
        for name in (*_CHAINED, *_CHAINED_BY_NAME)
        if callable(getattr(source, name, None))
    )
    function: Callable[..., Any] = getattr(source, entry)
    one = OneArgument(function) if entry in _CHAINED else None
    return Form(
        source="langchain",
        name=source.name,
        description=source.description,
        function=function,
        described=function,
        kind=kind_of(function),
        fresh=None if one is None else lambda _name: one,
        parameters=_chained_schema(source),
    )


def _chained_schema(source: Any) -> Mapping[str, Any]:
    schema: Any = getattr(source, "args_schema", None)
    for maker in ("model_json_schema", "schema"):
        if isinstance(schema, type) and hasattr(schema, maker):
            made: Mapping[str, Any] = getattr(schema, maker)()
            return made
    if isinstance(schema, Mapping):
        return schema
    args: Any = getattr(source, "args", None)
    properties = dict(args) if isinstance(args, Mapping) else {}
    return {
        "type": "object",
        "properties": properties,
        "required": [
            name
            for name, item in properties.items()
            if not isinstance(item, Mapping) or "default" not in item
        ],
    }
