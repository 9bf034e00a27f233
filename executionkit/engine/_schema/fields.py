"""The fields of Python's record types, and the annotations of functions, resolved."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

from executionkit.engine._schema.annotated import strip_qualifiers
from executionkit.engine._schema.docstring import parse_docstring
from executionkit.engine._schema.problems import SchemaError
from executionkit.engine._schema.shapes import Shape
from executionkit.engine._schema.values import NotJsonError, to_plain

__all__ = (
    "Field",
    "Record",
    "Unresolved",
    "function_behind",
    "function_hints",
    "json_default",
    "object_schema",
    "record_of",
)

_FACTORIES: Final = frozenset({dict, list, set, tuple, frozenset})


@dataclasses.dataclass(frozen=True, slots=True)
class Unresolved:
    """Stands for an annotation that names something unknown."""

    text: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a record, or a parameter of a function."""

    name: str
    type: Any
    required: bool
    description: str = ""
    has_default: bool = False
    default: Any = None
    """Its JSON form."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A type that is an object in JSON."""

    name: str
    description: str
    fields: tuple[Field, ...]
    make: Callable[..., Any]


def object_schema(
    fields: Sequence[Field], shapes: Mapping[str, Shape], *, extra: Any = False
) -> dict[str, Any]:
    """The schema of an object with these fields.

    Args:
        fields: Its fields.
        shapes: The shape of each, by name.
        extra: What other members must fit.
    """
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {item.name: shapes[item.name].schema for item in fields},
    }
    required = [item.name for item in fields if item.required]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = extra
    return schema


def json_default(value: Any) -> tuple[bool, Any]:
    """(has one, JSON form) of a default value."""
    try:
        return True, to_plain(_json_form(value))
    except NotJsonError:
        return False, None


def _json_form(value: Any) -> Any:
    if isinstance(value, Enum):
        return _json_form(value.value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "__fspath__") or type(value).__name__ in {"UUID", "Decimal"}:
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value) if item.init]
        value = {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return {key: _json_form(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_form(item) for item in value]
    return value


def record_of(tp: Any) -> Record | None:
    """The fields of a dataclass, typed dict or named tuple; None for anything else.

    Raises:
        SchemaError: When a field's annotation cannot be resolved.
    """
    if not isinstance(tp, type):
        return None
    if dataclasses.is_dataclass(tp):
        return _dataclass(tp)
    if issubclass(tp, dict) and hasattr(tp, "__required_keys__"):
        return _typed_dict(tp)
    if issubclass(tp, tuple) and hasattr(tp, "_fields"):
        return _named_tuple(tp)
    return None


def _own_words(tp: type) -> tuple[str, dict[str, str]]:
    doc = vars(tp).get("__doc__") or ""
    if doc.startswith(f"{tp.__name__}("):  # written by `@dataclass` or `NamedTuple`
        doc = ""
    return parse_docstring(doc)


def _class_hints(tp: type) -> dict[str, Any]:
    try:
        names = {tp.__name__: tp}
        return typing.get_type_hints(tp, localns=names, include_extras=True)
    except Exception as exc:  # annotations are code: they may raise anything
        msg = (
            f"an annotation of `{tp.__name__}` cannot be resolved ({exc}); import what "
            "it names at the top of its module, not under `TYPE_CHECKING`"
        )
        raise SchemaError(msg) from exc


def _dataclass(tp: type) -> Record:
    hints = _class_hints(tp)
    description, words = _own_words(tp)
    fields: list[Field] = []
    for name in getattr(tp, "__dataclass_fields__", ()):
        if isinstance(hints[name], dataclasses.InitVar):
            msg = f"`{tp.__name__}.{name}` is an `InitVar`, which no schema can show"
            raise SchemaError(msg)
    for item in dataclasses.fields(tp):
        if item.init:
            about = item.metadata.get("description") or words.get(item.name, "")
            fields.append(_dataclass_field(item, hints[item.name], about))
    return Record(tp.__name__, description, tuple(fields), tp)


def _dataclass_field(item: Any, hint: Any, about: str) -> Field:
    default: Any = item.default
    factory: Any = item.default_factory
    required = default is dataclasses.MISSING and factory is dataclasses.MISSING
    if factory in _FACTORIES:
        default = factory()
    has_default, encoded = (
        (False, None) if default is dataclasses.MISSING else json_default(default)
    )
    return Field(item.name, hint, required, about, has_default, encoded)


def _typed_dict(tp: type) -> Record:
    description, words = _own_words(tp)
    required_keys: frozenset[str] = getattr(tp, "__required_keys__")  # noqa: B009
    fields: list[Field] = []
    for name, hint in _class_hints(tp).items():
        inner, required = strip_qualifiers(hint)
        if required is None:
            required = name in required_keys
        fields.append(Field(name, inner, required, words.get(name, "")))
    return Record(tp.__name__, description, tuple(fields), dict)


def _named_tuple(tp: type) -> Record:
    description, words = _own_words(tp)
    hints = _class_hints(tp)
    defaults: Mapping[str, Any] = getattr(tp, "_field_defaults", {})
    names: tuple[str, ...] = getattr(tp, "_fields", ())
    fields = [
        Field(
            name,
            hints.get(name, Any),
            name not in defaults,
            words.get(name, ""),
            *(json_default(defaults[name]) if name in defaults else (False, None)),
        )
        for name in names
    ]
    return Record(tp.__name__, description, tuple(fields), tp)


def function_behind(target: Any) -> Any:
    """The plain function that is called when `target` is called.

    A target that is not made of Python functions comes back as it is.
    """
    from inspect import unwrap

    while not hasattr(target, "__code__"):
        if isinstance(target, partial):
            target = target.func
            continue
        holder = target if isinstance(target, type) else type(target)
        name = "__init__" if isinstance(target, type) else "__call__"
        inner = getattr(holder, name, None)
        if not hasattr(inner, "__code__"):
            return target
        target = inner
    return unwrap(target)


def function_hints(function: Any) -> dict[str, Any]:
    """The annotations of a function, resolved.

    One that cannot be resolved is an `Unresolved`, so that it harms only who needs it.
    """
    names = _closure(function)
    try:
        return typing.get_type_hints(function, localns=names, include_extras=True)
    except Exception:  # noqa: BLE001 - annotations are code: they may raise anything
        return {
            name: _one_hint(name, annotation, function, names)
            for name, annotation in getattr(function, "__annotations__", {}).items()
        }


def _closure(function: Any) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    found: dict[str, Any] = {}
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _one_hint(name: str, annotation: Any, function: Any, names: dict[str, Any]) -> Any:
    def holder() -> None:
        """Carries one annotation."""

    holder.__annotations__ = {name: annotation}
    try:
        hints = typing.get_type_hints(
            holder,
            globalns=getattr(function, "__globals__", {}),
            localns=names,
            include_extras=True,
        )
    except Exception as exc:  # noqa: BLE001 - as above
        message = (
            f"the annotation `{annotation}` cannot be resolved ({exc}); import what it "
            "names at the top of the module, not under `TYPE_CHECKING`"
        )
        return Unresolved(str(annotation), message)
    return hints[name]
