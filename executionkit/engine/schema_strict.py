"""The strict form of a schema that OpenAI-like APIs force a model to follow.

In strict mode every member is required and no other is allowed; what was optional may
be null instead. Keywords that the mode does not know and that only narrow a value are
left out: the arguments are checked against the full schema afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from executionkit.engine._schema.problems import SchemaError, Step, pointer
from executionkit.engine._schema.values import json_type, to_plain
from executionkit.engine._schema.walk import resolve_pointer
from executionkit.engine.schema_coerce import admitted_types, narrow_schema

__all__ = ("drop_strict_nulls", "strict_schema")

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
_KEPT: Final = frozenset(
    {
        "const",
        "description",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "multipleOf",
        "pattern",
        "type",
    }
)
_FORMATS: Final = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "uuid",
    }
)
_NULL: Final = {"type": "null"}
_MAX_DEPTH: Final = 32

Where = tuple[Step, ...]


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The strict twin of an object schema; the schema itself is not changed.

    Every value that fits the schema fits the twin once its missing members are null;
    `drop_strict_nulls` is the way back.

    Raises:
        SchemaError: When strict mode cannot say it: members without a fixed name, values
            of any type, arrays without one item schema, `allOf`, a root that is no
            object.
    """
    root = to_plain(schema)
    if "object" not in admitted_types(root, root) or "anyOf" in root or "$ref" in root:
        _refuse("the root must be an object schema by itself", ())
    strict = _strict(root, root, ())
    for keyword in ("$defs", "definitions"):
        if isinstance(root.get(keyword), dict):
            strict[keyword] = {
                name: _strict(part, root, (keyword, name))
                for name, part in root[keyword].items()
            }
    return strict


def _refuse(what: str, where: Where) -> NoReturn:
    msg = f"strict mode cannot be used: {what}; offer the tool without it"
    raise SchemaError(msg, pointer(where))


def _strict(part: Any, root: Any, where: Where) -> dict[str, Any]:
    if not isinstance(part, dict):
        _refuse("a value of any type", where)
    for keyword in ("allOf", "patternProperties", "prefixItems", "$dynamicRef"):
        if keyword in part:
            _refuse(f"`{keyword}` is not known there", where)
    strict = {key: value for key, value in part.items() if key in _KEPT}
    if part.get("format") in _FORMATS:
        strict["format"] = part["format"]
    if "$ref" in part:
        if _target_is_missing(part["$ref"], root):
            _refuse("a reference that leads nowhere", where)
        strict["$ref"] = part["$ref"]
        return strict
    for keyword in ("anyOf", "oneOf"):
        if keyword in part:
            strict["anyOf"] = [
                _strict(item, root, (*where, keyword, index))
                for index, item in enumerate(part[keyword])
            ]
            return strict
    return {**strict, **_strict_parts(part, root, where)}


def _strict_parts(part: dict[str, Any], root: Any, where: Where) -> dict[str, Any]:
    types = part.get("type", ())
    if not types and not part.keys() & {"enum", "const"}:
        _refuse("a value of any type", where)
    parts: dict[str, Any] = {}
    if "object" in types:
        parts = _strict_object(part, root, where)
    if "array" in types:
        if "items" not in part:
            _refuse("an array of anything", where)
        parts["items"] = _strict(part["items"], root, (*where, "items"))
    return parts


def _target_is_missing(reference: str, root: Any) -> bool:
    try:
        resolve_pointer(root, reference)
    except LookupError:
        return True
    return False


def _strict_object(part: dict[str, Any], root: Any, where: Where) -> dict[str, Any]:
    if part.get("additionalProperties", False) is not False:
        _refuse("members without a fixed name", where)
    members: dict[str, Any] = {}
    required = part.get("required", [])
    for name, inner in part.get("properties", {}).items():
        member = _strict(inner, root, (*where, "properties", name))
        if name not in required and "null" not in admitted_types(inner, root):
            member = _nullable(member)
        members[name] = member
    return {
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    words = {key: schema.pop(key) for key in ("description",) if key in schema}
    return {**words, "anyOf": [schema, _NULL]}


def drop_strict_nulls(
    arguments: Mapping[str, Any], schema: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments without the nulls that strict mode made the model write.

    A member goes when it is null, is not required, and its schema does not admit null.

    Args:
        arguments: What the model wrote; not changed.
        schema: The schema that was given to `strict_schema`.
    """
    return _drop_members(arguments, schema, schema, 0)


def _drop_members(
    value: Mapping[str, Any], schema: Any, root: Any, depth: int
) -> dict[str, Any]:
    fields: Mapping[str, Any] = {}
    required: Any = ()
    if isinstance(schema, Mapping):
        fields = schema.get("properties", {})
        required = schema.get("required", ())
    kept: dict[str, Any] = {}
    for name, item in value.items():
        field = fields.get(name, True)
        unwanted = name not in required and "null" not in admitted_types(field, root)
        if item is not None or not unwanted:
            kept[name] = _drop(item, field, root, depth + 1)
    return kept


def _drop(value: Any, schema: Any, root: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH or not isinstance(value, (Mapping, list)):
        return value
    inner = narrow_schema(schema, root, json_type(value))
    if isinstance(value, Mapping):
        return _drop_members(value, inner, root, depth)
    items = inner.get("items", True) if isinstance(inner, Mapping) else True
    return [_drop(item, items, root, depth + 1) for item in value]
