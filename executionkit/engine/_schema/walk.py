"""The parts of a schema: dialects, subschemas, references, and what is wrong with them.

All backends get a schema that passed here, so they agree on the rules that they treat
differently by themselves: nothing is ever fetched, and a schema that refers to itself
without going into the value is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from executionkit.engine._schema.problems import SchemaError, Step, join_names, pointer

__all__ = (
    "DRAFT_2020_12",
    "Dialect",
    "Schema",
    "check_references",
    "dialect_of",
    "has_inner_ids",
    "pointer_steps",
    "reachable_schemas",
    "resolve_pointer",
    "subschemas",
)

Schema: TypeAlias = dict[str, Any] | bool
"""A JSON Schema as JSON has it."""

_ONE: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_MANY: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED: Final = frozenset(
    {
        "$defs",
        "definitions",
        "dependencies",
        "dependentSchemas",
        "patternProperties",
        "properties",
    }
)
# Keywords whose subschemas look at the same place in the value.
_IN_PLACE: Final = frozenset(
    {
        "allOf",
        "anyOf",
        "dependencies",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "oneOf",
        "then",
    }
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class Dialect:
    """A version of JSON Schema."""

    name: str
    uri: str
    """What `$schema` says, without an empty fragment."""

    ref_stands_alone: bool = False
    """Whether `$ref` turns off the keywords next to it (up to draft 7)."""


DRAFT_2020_12: Final = Dialect(
    "2020-12", "https://json-schema.org/draft/2020-12/schema"
)
"""What a schema without `$schema` is read as."""

_DIALECTS: Final = (
    DRAFT_2020_12,
    Dialect("2019-09", "https://json-schema.org/draft/2019-09/schema"),
    Dialect("7", "http://json-schema.org/draft-07/schema", ref_stands_alone=True),
    Dialect("6", "http://json-schema.org/draft-06/schema", ref_stands_alone=True),
    Dialect("4", "http://json-schema.org/draft-04/schema", ref_stands_alone=True),
)
_META: Final = ("https://json-schema.org/draft/", "http://json-schema.org/draft-0")


def dialect_of(schema: Schema) -> Dialect:
    """The dialect that the schema's `$schema` names; 2020-12 when it names none.

    Raises:
        SchemaError: When it names one that is not known.
    """
    named = schema.get("$schema", "") if isinstance(schema, dict) else ""
    if not isinstance(named, str):
        msg = "must be text; remove it to use JSON Schema 2020-12"
        raise SchemaError(msg, "/$schema")
    if not named:
        return DRAFT_2020_12
    wanted = named.removesuffix("#").partition("://")[2]
    for dialect in _DIALECTS:
        if dialect.uri.partition("://")[2] == wanted:
            return dialect
    known = join_names([dialect.uri for dialect in _DIALECTS])
    msg = f"{join_names([named])} is no known dialect; use one of: {known}"
    raise SchemaError(msg, "/$schema")


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """(way, subschema) for each direct subschema of an object schema."""
    for keyword, value in schema.items():
        if keyword in _ONE and isinstance(value, (dict, bool)):
            yield (keyword,), value
        elif keyword in _MANY and isinstance(value, list):
            for index, item in enumerate(value):
                yield (keyword, index), item
        elif keyword in _NAMED and isinstance(value, dict):
            for name, item in value.items():
                yield (keyword, name), item


def reachable_schemas(
    root: Schema,
) -> Iterator[tuple[tuple[Step, ...], dict[str, Any]]]:
    """(way, schema) for the root and all object schemas below it, each once.

    Targets of local references count, wherever they stand.
    """
    seen: set[int] = set()
    todo: list[tuple[tuple[Step, ...], Any]] = [((), root)]
    while todo:
        steps, schema = todo.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield steps, schema
        for way, inner in subschemas(schema):
            todo.append((steps + way, inner))
        for keyword in _REFERENCES:
            target = _local_target(root, schema.get(keyword))
            if target is not None:
                todo.append((pointer_steps(schema[keyword]), target))


def has_inner_ids(root: Schema) -> bool:
    """Whether a schema below the root has its own base address."""
    return any(
        steps and isinstance(schema.get(keyword), str)
        for steps, schema in reachable_schemas(root)
        for keyword in ("$id", "id")
    )


def pointer_steps(reference: str) -> tuple[Step, ...]:
    """The steps of a local reference (`#` or `#/...`), names and indices as text."""
    return tuple(
        token.replace("~1", "/").replace("~0", "~")
        for token in reference[2:].split("/")
        if reference != "#"
    )


def resolve_pointer(root: Schema, reference: str) -> Any:
    """What a local reference (`#` or `#/...`) points to.

    Raises:
        LookupError: When there is nothing, or when it is not such a reference.
    """
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        raise LookupError(reference)
    place: Any = root
    for token in pointer_steps(_unquote(reference)):
        if isinstance(place, list):
            place = place[_index(str(token))]
        elif isinstance(place, dict) and token in place:
            place = place[token]
        else:
            raise LookupError(reference)
    return place


def _unquote(reference: str) -> str:
    head, *parts = reference.split("%")
    raw = head.encode()
    try:
        for part in parts:
            raw += bytes.fromhex(part[:2]) + part[2:].encode()
        return raw.decode()
    except ValueError as exc:
        raise LookupError(reference) from exc


def _index(text: str) -> int:
    # RFC 6901: ASCII digits without leading zeros.
    if not re.fullmatch("0|[1-9][0-9]{0,8}", text):
        raise LookupError(text)
    return int(text)


def _local_target(root: Schema, reference: Any) -> Any:
    """The schema that a local reference means; None for any other reference."""
    if not isinstance(reference, str):
        return None
    try:
        return resolve_pointer(root, reference)
    except LookupError:
        return None


def check_references(root: Schema, dialect: Dialect) -> None:
    """Refuse references that leave the schema, lead nowhere, or go in a circle.

    A schema whose parts have their own `$id` is left to the backend.

    Raises:
        SchemaError: Naming the reference, its place, and the remedy.
    """
    if not isinstance(root, dict) or has_inner_ids(root):
        return
    own = root.get("$id", root.get("id"))
    for steps, schema in reachable_schemas(root):
        for keyword in _REFERENCES:
            reference = schema.get(keyword)
            if isinstance(reference, str):
                _check_reference(root, reference, own, (*steps, keyword))
    _check_circles(root, dialect)


def _check_reference(
    root: Schema, reference: str, own: Any, steps: tuple[Step, ...]
) -> None:
    if reference.startswith("#/") and _local_target(root, reference) is None:
        msg = f"{join_names([reference])} points to nothing; add what it names"
        raise SchemaError(msg, pointer(steps))
    if reference.startswith(("#", *_META)):
        return
    if isinstance(own, str) and reference.partition("#")[0] == own.partition("#")[0]:
        return
    msg = (
        f"{join_names([reference])} is outside of the schema and is never fetched; "
        'copy it into `$defs` and refer to it as "#/$defs/NAME"'
    )
    raise SchemaError(msg, pointer(steps))


def _in_place(
    root: Schema, schema: dict[str, Any], dialect: Dialect
) -> Iterator[dict[str, Any]]:
    for keyword in _REFERENCES:
        target = _local_target(root, schema.get(keyword))
        if isinstance(target, dict):
            yield target
    if dialect.ref_stands_alone and "$ref" in schema:
        return
    for way, inner in subschemas(schema):
        if way[0] in _IN_PLACE and isinstance(inner, dict):
            yield inner


def _check_circles(root: dict[str, Any], dialect: Dialect) -> None:
    # Depth first, with the open path in `opened`; a schema met twice on one path is
    # applied to the same value again and again.
    done: set[int] = set()
    for start_steps, start in reachable_schemas(root):
        if id(start) in done:
            continue
        opened = {id(start)}
        stack = [(start, _in_place(root, start, dialect))]
        while stack:
            schema, ahead = stack[-1]
            inner = next(ahead, None)
            if inner is None:
                stack.pop()
                opened.discard(id(schema))
                done.add(id(schema))
            elif id(inner) in opened:
                msg = (
                    "a reference comes back to its own schema without going into the "
                    "value; put the reference under `properties` or `items`"
                )
                raise SchemaError(msg, pointer(start_steps))
            elif id(inner) not in done:
                opened.add(id(inner))
                stack.append((inner, _in_place(root, inner, dialect)))
