"""From what a user registers to a `ToolRecord`: schema, parser, checks, metadata."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from executionkit._clock import get_clock
from executionkit._frozen import freeze_mapping
from executionkit.engine._schema.fields import function_behind, function_hints
from executionkit.engine._schema.quick import quick_check
from executionkit.engine.schema import SchemaError, compile_schema
from executionkit.engine.schema_infer import (
    parser_from_callable,
    schema_for_type,
    schema_from_callable,
)
from executionkit.errors import ToolRegistrationError
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools._registry.calls import ModelResult, wrap
from executionkit.tools._registry.forms import Form
from executionkit.tools._registry.metadata import ToolMetadata
from executionkit.tools._registry.names import full_name
from executionkit.types import Tool

__all__ = ("build_record",)

Parse = Callable[[Mapping[str, Any]], dict[str, Any]]

_STREAMS: Final = (Kind.ASYNC_STREAM, Kind.SYNC_STREAM)
_CONTEXT: Final = "ExecutionContext"


def build_record(
    source: object,
    form: Form,
    names: tuple[str, str],
    of_tool: dict[str, Any],
    kept: dict[str, Any],
) -> ToolRecord:
    """The record of one tool.

    Args:
        source: What was registered.
        form: What was read off it.
        names: (name, namespace).
        of_tool: What users said of fields of `Tool`.
        kept: What users said of fields of `ToolMetadata`.

    Raises:
        ToolRegistrationError: When it would fail at each call; says why.
    """
    label = full_name(*names)
    try:
        made = _Reading(form, label, of_tool.pop("parameters", None))
        validator = compile_schema(made.parameters)
    except SchemaError as exc:
        msg = f"Tool '{label}': its parameters are no usable JSON Schema: {exc}"
        raise ToolRegistrationError(msg, original_error=exc) from exc
    try:
        tool = _tool(form, names, made, of_tool)
    except (TypeError, ValueError) as exc:
        raise ToolRegistrationError(str(exc), original_error=exc) from exc
    record = ToolRecord(
        tool,
        kind=form.kind,
        validator=validator,
        accepts=quick_check(made.parameters),
        parse=made.parse,
        context_parameters=made.context,
        stream=_stream(form, label),
        source=source,
    )
    record.metadata = _metadata(record, form, kept)
    return record


def _tool(
    form: Form, names: tuple[str, str], made: _Reading, of_tool: dict[str, Any]
) -> Tool:
    name, namespace = names
    label = full_name(*names)
    streams = form.kind in _STREAMS or form.stream is not None
    if of_tool.get("streaming", streams) is False and streams:
        of_tool = {**of_tool, "streaming": True}
    if form.tool is not None:
        fields = {"name": name, "namespace": namespace, **of_tool}
        if made.parameters is not form.parameters:
            fields["parameters"] = made.parameters
        if streams:
            fields["streaming"] = True
        changed = {
            key: value
            for key, value in fields.items()
            if getattr(form.tool, key) != value
        }
        return dataclasses.replace(form.tool, **changed) if changed else form.tool
    said: dict[str, Any] = {
        "description": form.description,
        "streaming": streams,
        **of_tool,
    }
    finish = ModelResult(form.result_model, label) if _checks(form) else None
    fresh = None if form.fresh is None else form.fresh(label)
    return Tool(
        name=name,
        namespace=namespace,
        parameters=made.parameters,
        execute=wrap(form.kind, fresh, form.function, finish),
        **said,
    )


def _checks(form: Form) -> bool:
    return hasattr(form.result_model, "model_validate")


def _stream(form: Form, label: str) -> Callable[..., Any] | None:
    if form.stream is None:
        return None
    fresh = None if form.fresh_stream is None else form.fresh_stream(label)
    return wrap(Kind.ASYNC_STREAM, fresh, form.stream)


class _Reading:
    """The parameters of a tool, the way to them from JSON, and who fills them."""

    def __init__(self, form: Form, label: str, given: Any) -> None:
        self.parse: Parse | None = None
        self.context: tuple[str, ...] = ()
        self.parameters: Mapping[str, Any]
        function = form.described
        own = form.parameters if given is None else given
        if form.source == "langchain":
            self.parameters = _object_schema(own, label)
            return
        self.context = _context_parameters(function)
        if form.arguments_model is not None and given is None:
            self._read_model(form, label)
            return
        if own is None:
            self.parameters, _ = schema_from_callable(function)
            self.parse = parser_from_callable(function)
            return
        self.parameters = _object_schema(own, label)
        if form.tool is None:
            self.parse = _parser_or_none(function)
        names = set(self.parameters.get("properties", ()))
        _check_fit(
            form.function, label, names, self.context, _forbids_more(self.parameters)
        )

    def _read_model(self, form: Form, label: str) -> None:
        model = form.arguments_model
        schema, make = schema_for_type(model)
        self.parameters = _object_schema(schema, label)
        one = _parameter_of_type(form.function, model)
        if one is not None:
            self.parse = lambda arguments: {one: make(arguments)}
            return
        fields = _field_names(model)
        self.parse = functools.partial(_spread, make, fields)
        names = (
            set(self.parameters.get("properties", ())) if fields is None else {*fields}
        )
        _check_fit(form.function, label, names, self.context, closed=True)


def _spread(
    make: Callable[[Any], Any],
    fields: tuple[str, ...] | None,
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    made = make(arguments)
    if fields is None:
        return dict(made)
    return {name: getattr(made, name) for name in fields}


def _field_names(model: Any) -> tuple[str, ...] | None:
    """The attributes of a model; None when it is a dict."""
    fields: Any = getattr(model, "model_fields", None)
    if isinstance(fields, Mapping):
        return tuple(fields)
    if dataclasses.is_dataclass(model):
        return tuple(item.name for item in dataclasses.fields(model))
    return None


def _object_schema(schema: Any, label: str) -> Mapping[str, Any]:
    if not isinstance(schema, Mapping):
        msg = (
            f"Tool '{label}': `parameters` must be a JSON Schema of its arguments (a "
            f"mapping), got {type(schema).__name__}"
        )
        raise ToolRegistrationError(msg)
    kind = schema.get("type", "object")
    if kind != "object" or not isinstance(schema.get("properties", {}), Mapping):
        msg = (
            f"Tool '{label}': `parameters` must describe an object, "
            '{"type": "object", "properties": {...}}; got '
            f"`type` {kind!r}, `properties` {type(schema.get('properties')).__name__}"
        )
        raise ToolRegistrationError(msg)
    return schema


def _forbids_more(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and not schema.get(
        "patternProperties"
    )


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _check_fit(
    function: Callable[..., Any],
    label: str,
    names: set[str],
    context: tuple[str, ...],
    closed: bool,  # noqa: FBT001 - private
) -> None:
    """Refuse a schema by which the function cannot be called.

    Raises:
        ToolRegistrationError: When it names what the function does not take, or forbids
            what it needs.
    """
    parameters = _signature(function)
    if parameters is None:
        return
    by_name = [
        item
        for item in parameters
        if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    ]
    takes = {item.name for item in by_name}
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters)
    surplus = sorted(names - takes)
    if surplus and not takes_any:
        msg = (
            f"Tool '{label}': `parameters` has {', '.join(surplus)}, which its function "
            f"does not take; it takes {', '.join(sorted(takes)) or 'nothing'}"
        )
        raise ToolRegistrationError(msg)
    needs = {item.name for item in by_name if item.default is item.empty}
    missing = sorted(needs - names - set(context))
    if missing and closed:
        msg = (
            f"Tool '{label}': its function needs {', '.join(missing)}, which "
            "`parameters` does not have; add it, or give the parameter a default"
        )
        raise ToolRegistrationError(msg)


def _parser_or_none(function: Callable[..., Any]) -> Parse | None:
    try:
        return parser_from_callable(function)
    except SchemaError:
        return None


def _context_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters that hold an `ExecutionContext`."""
    parameters = _signature(function)
    if not parameters:
        return ()
    # Most functions have none, and resolving annotations takes its time.
    hints: Mapping[str, Any] | None = None
    found: list[str] = []
    for item in parameters:
        text = item.annotation
        text = text if isinstance(text, str) else getattr(text, "__name__", str(text))
        if _CONTEXT not in text and _CONTEXT not in str(item.annotation):
            continue
        if hints is None:
            hints = _schema_names(function)
        if item.name not in hints and item.kind is not item.VAR_KEYWORD:
            found.append(item.name)
    return tuple(found)


def _schema_names(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What the schema keeps of the parameters; nothing when it has no schema."""
    try:
        properties: Mapping[str, Any] = schema_from_callable(function)[0]["properties"]
    except SchemaError:
        return {}
    return properties


def _parameter_of_type(function: Callable[..., Any], model: Any) -> str | None:
    """The name of the one parameter that takes the whole model."""
    hints = function_hints(function_behind(function))
    for item in _signature(function) or ():
        if hints.get(item.name) is model:
            return item.name
        named = item.annotation
        if isinstance(named, str) and named.rpartition(".")[2] == model.__name__:
            return item.name
    return None


def _metadata(record: ToolRecord, form: Form, kept: dict[str, Any]) -> ToolMetadata:
    tool = record.tool
    now = datetime.fromtimestamp(get_clock().wall(), UTC)
    said: dict[str, Any] = {
        "source": form.source,
        "source_name": _where(record.source),
        "result_schema": _result_schema(form),
        "created_at": now,
        "updated_at": now,
        **kept,
    }
    return ToolMetadata(
        name=tool.name,
        namespace=tool.namespace,
        description=tool.description,
        version=tool.version,
        is_async=record.kind in (Kind.ASYNC, Kind.ASYNC_STREAM),
        argument_schema=tool.parameters,
        tags=tool.tags,
        side_effects=tool.side_effects,
        idempotent=tool.idempotent,
        cacheable=tool.cacheable,
        cost=tool.cost,
        timeout=tool.timeout,
        rate_limit=tool.rate_limit,
        concurrency_limit=tool.max_concurrency,
        max_retries=tool.max_retries,
        supports_streaming=tool.streaming,
        **said,
    )


def _where(source: Any) -> str:
    while isinstance(source, functools.partial):
        source = source.func
    if isinstance(source, Tool):
        source = source.execute
    named = source if hasattr(source, "__qualname__") else type(source)
    module = sys.intern(getattr(named, "__module__", None) or "")
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)


def _result_schema(form: Form) -> Mapping[str, Any] | None:
    """The schema of what comes out, where the class or an annotation says it."""
    model = form.result_model
    if form.source in ("tool", "langchain") or form.kind in _STREAMS:
        return None
    if model is None:
        if not getattr(function_behind(form.function), "__annotations__", {}).get(
            "return"
        ):
            return None
        model = function_hints(function_behind(form.function)).get("return")
        if not isinstance(model, type) or model is dict:
            return None
    try:
        schema, _ = schema_for_type(model)
    except SchemaError:
        return None
    if schema.get("type") != "object" or not schema.get("properties"):
        return None
    return freeze_mapping(schema)
