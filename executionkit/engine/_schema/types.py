"""Any Python type as JSON Schema, with the way back from JSON to the type.

Dataclasses, typed dicts, named tuples and models become objects. They go to `$defs`
when they are used more than once, or contain themselves.
"""

from __future__ import annotations

import json
import re
from collections import abc
from collections.abc import Callable, Mapping
from types import UnionType
from typing import (
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from executionkit.engine._schema.annotated import (
    keywords_of,
    split_annotated,
    strip_qualifiers,
)
from executionkit.engine._schema.defs import (
    DEFS,
    assemble,
    definition_name,
    hint_at_times,
    rename_references,
)
from executionkit.engine._schema.fields import (
    Field,
    Record,
    Unresolved,
    object_schema,
    record_of,
)
from executionkit.engine._schema.parsers import Choices, model_parser, no_form
from executionkit.engine._schema.problems import SchemaError
from executionkit.engine._schema.shapes import (
    SchemaValueError,
    Shape,
    Steps,
    keep,
    leaf_shape,
    literal_shape,
    reject,
    type_name,
)
from executionkit.engine._schema.values import to_plain
from executionkit.engine.schema import compile_schema

__all__ = ("Env", "TypeBuilder", "schema_for_type")

_T = TypeVar("_T")

Env: TypeAlias = Mapping[Any, Any]
"""Type variable -> the type that it stands for."""

_LISTS: Final[tuple[Any, ...]] = (
    list,
    abc.Collection,
    abc.Iterable,
    abc.MutableSequence,
    abc.Sequence,
)
_SETS: Final[dict[Any, type]] = {
    abc.MutableSet: set,
    abc.Set: frozenset,
    frozenset: frozenset,
    set: set,
}
_DICTS: Final[tuple[Any, ...]] = (dict, abc.Mapping, abc.MutableMapping)
_EMPTY: Final[Env] = {}


class TypeBuilder:
    """Builds shapes that share one set of definitions."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        """Name -> schema of each object type seen so far."""

        self._shapes: dict[Any, Shape] = {}

    def finish(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema together with the definitions that it needs."""
        return assemble(schema, self.definitions)

    def build(self, tp: Any, where: str, env: Env = _EMPTY) -> Shape:
        """The shape of a type.

        Args:
            tp: The type, its references resolved.
            where: What has this type, for errors.
            env: What the type variables stand for.

        Raises:
            SchemaError: When the type has no form in JSON.
        """
        tp, metadata = split_annotated(strip_qualifiers(tp)[0])
        if metadata:
            shape = self.build(tp, where, env)
            schema = {**shape.schema, **keywords_of(metadata, shape.schema, where)}
            return Shape(schema, shape.parse, shape.scalar)
        if isinstance(tp, Unresolved):
            msg = f"{where}: {tp.message}"
            raise SchemaError(msg)
        leaf = leaf_shape(tp)
        if leaf is not None:
            return leaf
        return self._indirect(tp, where, env) or self._structure(tp, where, env)

    def _indirect(self, tp: Any, where: str, env: Env) -> Shape | None:
        """The shape of a name for another type; None for any other type."""
        if isinstance(tp, TypeVar):
            return self._variable(tp, where, env)
        supertype = getattr(tp, "__supertype__", None)
        if supertype is not None:  # NewType
            return self.build(supertype, where, env)
        origin = get_origin(tp) or tp
        if type(origin).__name__ == "TypeAliasType":  # `type X = ...`, from 3.12 on
            names = dict(zip(origin.__type_params__, get_args(tp), strict=False))
            return self._define(
                tp,
                lambda _: self.build(origin.__value__, where, names),
            )
        return None

    def _variable(self, tp: TypeVar, where: str, env: Env) -> Shape:
        if tp in env:
            return self.build(env[tp], where)
        if tp.__constraints__:
            return self.build(Union[tp.__constraints__], where, env)  # noqa: UP007
        return self.build(Any if tp.__bound__ is None else tp.__bound__, where, env)

    def _structure(self, tp: Any, where: str, env: Env) -> Shape:
        origin = get_origin(tp) or tp
        args = get_args(tp)
        if not isinstance(origin, abc.Hashable):
            raise SchemaError(no_form(tp, where))
        if origin in (Union, UnionType):
            return self._union(args, where, env)
        if origin is Literal:
            shape = literal_shape(tp)
        elif origin in _LISTS or origin in _SETS:
            return self._array(origin, args, where, env)
        elif origin is tuple:
            return self._tuple(args, where, env)
        elif origin in _DICTS:
            return self._mapping(args, where, env)
        elif hasattr(origin, "model_json_schema") and hasattr(origin, "model_validate"):
            return self._define(tp, lambda name: self._model(tp, name, where))
        else:
            shape = self._record(tp, origin, args, env)
        if shape is None:
            raise SchemaError(no_form(tp, where))
        return shape

    def _union(self, args: tuple[Any, ...], where: str, env: Env) -> Shape:
        shapes = [self.build(arg, where, env) for arg in args]
        if any(not shape.schema for shape in shapes):  # one of them admits everything
            return Shape({}, keep)
        # As text, because Python's equality takes `1` for `true`.
        different = {json.dumps(shape.schema): shape.schema for shape in shapes}
        schemas = list(different.values())
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        return Shape(schema, Choices(shapes, self.definitions))

    def _array(self, origin: Any, args: tuple[Any, ...], where: str, env: Env) -> Shape:
        item = self.build(args[0] if args else Any, f"an item of {where}", env)
        schema: dict[str, Any] = {"type": "array"}
        if item.schema:
            schema["items"] = item.schema
        make: type = list
        if origin in _SETS:
            make = _SETS[origin]
            schema["uniqueItems"] = True

        def parse(value: Any, steps: Steps) -> Any:
            return make(
                [item.parse(part, (*steps, at)) for at, part in enumerate(value)]
            )

        return Shape(schema, parse)

    def _tuple(self, args: tuple[Any, ...], where: str, env: Env) -> Shape:
        if not args or (len(args) == 2 and args[1] is Ellipsis):
            whole = self._array(list, args[:1], where, env)
            return Shape(
                whole.schema, lambda value, steps: tuple(whole.parse(value, steps))
            )
        items = [self.build(arg, f"an item of {where}", env) for arg in args]
        schema = {
            "type": "array",
            "prefixItems": [item.schema or True for item in items],
            "minItems": len(items),
            "maxItems": len(items),
        }

        def parse(value: Any, steps: Steps) -> Any:
            return tuple(
                item.parse(part, (*steps, at))
                for at, (item, part) in enumerate(zip(items, value, strict=True))
            )

        return Shape(schema, parse)

    def _mapping(self, args: tuple[Any, ...], where: str, env: Env) -> Shape:
        key = self.build(args[0] if args else str, where, env)
        if key.schema.get("type") != "string":
            msg = (
                f"{where} is a mapping whose keys are `{type_name(args[0])}`; "
                "keys of JSON are text: use `dict[str, ...]`, or a list of pairs"
            )
            raise SchemaError(msg)
        value_shape = self.build(args[1] if args else Any, f"a value of {where}", env)
        schema: dict[str, Any] = {"type": "object"}
        if key.schema != {"type": "string"}:
            schema["propertyNames"] = key.schema
        if value_shape.schema:
            schema["additionalProperties"] = value_shape.schema

        def parse(value: Any, steps: Steps) -> Any:
            return {
                key.parse(name, steps): value_shape.parse(item, (*steps, name))
                for name, item in value.items()
            }

        return Shape(schema, parse)

    def _model(self, tp: Any, own_name: str, where: str) -> Shape:
        """A pydantic model, or anything with the same two methods."""
        try:
            schema: dict[str, Any] = tp.model_json_schema()
        except Exception as exc:  # the model's own code
            msg = f"{where} is a model without a schema: {exc}"
            raise SchemaError(msg) from exc
        inner: dict[str, Any] = schema.pop("$defs", {})
        names: dict[str, str] = {}
        itself = definition_name(schema)
        if itself in inner and len(schema) == 1:  # it contains itself
            schema = inner.pop(itself)
            names[itself] = own_name
        for name, part in inner.items():
            names[name] = self._free_name(name, part)
            self.definitions[names[name]] = part
        for part in (schema, *inner.values()):
            rename_references(part, names)
            hint_at_times(part)
        return Shape(schema, model_parser(tp))

    def _record(
        self, tp: Any, origin: Any, args: tuple[Any, ...], env: Env
    ) -> Shape | None:
        record = record_of(origin)
        if record is None:
            return None
        parameters = getattr(origin, "__parameters__", ())
        given = [env.get(arg, arg) if isinstance(arg, TypeVar) else arg for arg in args]
        names = dict(zip(parameters, given, strict=False))
        key = (origin, *given)
        return self._define(key, lambda _: self._object(record, names), type_name(tp))

    def _define(self, key: Any, build: Callable[[str], Shape], name: str = "") -> Shape:
        try:
            known = self._shapes.get(key)
        except TypeError:  # metadata inside of it is not hashable
            key = repr(key)
            known = self._shapes.get(key)
        if known is not None:
            return known
        name = self._free_name(name or type_name(key))
        self.definitions[name] = {}
        built: list[Shape] = []

        def parse(value: Any, steps: Steps) -> Any:
            return built[0].parse(value, steps)

        shape = Shape({"$ref": DEFS + name}, parse)
        # Known before it is built, so that a type may contain itself.
        self._shapes[key] = shape
        built.append(build(name))
        self.definitions[name] = built[0].schema
        return shape

    def _free_name(self, name: str, schema: Any = None) -> str:
        base = re.sub(r"\W+", "_", name.rpartition("<locals>.")[2]).strip("_") or "Type"
        free, number = base, 1
        while free in self.definitions and self.definitions[free] != schema:
            number += 1
            free = f"{base}{number}"
        return free

    def _object(self, record: Record, env: Env) -> Shape:
        shapes = {
            item.name: self.field_shape(item, f"`{record.name}.{item.name}`", env)
            for item in record.fields
        }
        schema = object_schema(record.fields, shapes)
        if record.description:
            schema = {"description": record.description, **schema}

        def parse(value: Any, steps: Steps) -> Any:
            values = {
                name: shapes[name].parse(item, (*steps, name))
                for name, item in value.items()
                if name in shapes
            }
            try:
                return record.make(**values)
            except ValueError as exc:
                msg = f"is refused by {record.name}: {exc}"
                raise reject(msg, steps) from exc

        return Shape(schema, parse)

    def field_shape(self, item: Field, where: str, env: Env = _EMPTY) -> Shape:
        """The shape of a field, with its description and default."""
        shape = self.build(item.type, where, env)
        schema = dict(shape.schema)
        if item.description:
            schema.setdefault("description", item.description)
        if item.has_default:
            schema["default"] = item.default
        return Shape(schema, shape.parse, shape.scalar)


@overload
def schema_for_type(tp: type[_T]) -> tuple[dict[str, Any], Callable[[Any], _T]]: ...


@overload
def schema_for_type(tp: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]: ...


def schema_for_type(tp: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The JSON Schema of a type, and the function that makes its values from JSON.

    Takes what annotations are made of: built-in types, `Literal`, unions, lists,
    tuples, sets and dicts of them, enums, dates, UUID, paths, `Decimal`, dataclasses,
    `TypedDict`, `NamedTuple`, `NewType`, generics of these, pydantic models.

    The function checks the value against the schema first. It raises
    `SchemaValueError` with the problems when the value does not fit, or when the type
    itself refuses it (a constructor or a model raises `ValueError`).

    Raises:
        SchemaError: When the type has no form in JSON.
    """
    builder = TypeBuilder()
    shape = builder.build(tp, f"`{type_name(tp)}`")
    schema = builder.finish(shape.schema)
    validator = compile_schema(schema)

    def parse(value: Any) -> Any:
        problems = validator.validate(value)
        if problems:
            raise SchemaValueError(problems)
        return shape.parse(to_plain(value), ())

    return schema, parse
