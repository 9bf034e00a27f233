"""Puts a schema together with its definitions, as few of them as will do."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from executionkit.engine._schema.walk import reachable_schemas, subschemas

__all__ = (
    "DEFS",
    "assemble",
    "definition_name",
    "hint_at_times",
    "rename_references",
)

DEFS: Final = "#/$defs/"
"""What a reference to a definition starts with."""


def definition_name(schema: Any) -> str | None:
    """The definition that a schema refers to; None when it does not."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str) and reference.startswith(DEFS):
        return reference.removeprefix(DEFS)
    return None


def _references(schema: Any) -> Iterator[str]:
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, dict):
            continue
        name = definition_name(part)
        if name is not None:
            yield name
        todo.extend(inner for _, inner in subschemas(part))


def rename_references(schema: Any, names: dict[str, str]) -> None:
    """Change the references of a schema, in place, from old names to new ones."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, dict):
            continue
        name = definition_name(part)
        if name in names:
            part["$ref"] = DEFS + names[name]
        todo.extend(inner for _, inner in subschemas(part))


def hint_at_times(schema: Any) -> None:
    """Change a schema so that `date-time` and `time` are asked for but not asserted.

    Both formats have an offset; the types of Python, and of pydantic, do without, and
    refuse by themselves what is no time.
    """
    for _, part in list(reachable_schemas(schema)):
        if part.get("format") in {"date-time", "time"} and "anyOf" not in part:
            keys = [key for key in ("type", "format") if key in part]
            timed = {key: part.pop(key) for key in keys}
            part["anyOf"] = [timed, {"type": "string"}]


def assemble(root: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema that needs nothing else.

    A definition that is used once, and not by itself, is put where it is used. The root
    is never a bare reference: model APIs want an object there.

    Args:
        root: The schema, which may refer to definitions.
        definitions: Name -> schema.
    """
    root = copy.deepcopy(root)
    definitions = copy.deepcopy(definitions)
    reached = _reached(root, definitions)
    uses = Counter(_references(root))
    for name in reached:
        uses.update(_references(definitions[name]))
    circular = {
        name for name in reached if name in _reached(definitions[name], definitions)
    }
    inline = {name for name in reached if uses[name] == 1 and name not in circular}
    top = definition_name(root)
    if top in definitions and uses[top] > 1:
        merged = copy.deepcopy(definitions[top])
        root = {**merged, **{k: v for k, v in root.items() if k != "$ref"}}
    built = _expand(root, definitions, inline)
    kept = {
        name: _expand(definitions[name], definitions, inline)
        for name in reached
        if name not in inline and (name != top or name in circular or uses[name] > 1)
    }
    return {**built, "$defs": kept} if kept else built


def _reached(schema: Any, definitions: dict[str, Any]) -> list[str]:
    """The definitions that a schema uses, also through others, in a fixed order."""
    found: dict[str, None] = {}
    todo = list(_references(schema))
    while todo:
        name = todo.pop(0)
        if name in definitions and name not in found:
            found[name] = None
            todo.extend(_references(definitions[name]))
    return list(found)


def _expand(schema: Any, definitions: dict[str, Any], inline: set[str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    name = definition_name(schema)
    if name in inline:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _expand({**definitions[name], **rest}, definitions, inline)
    for way, inner in list(subschemas(schema)):
        holder: Any = schema if len(way) == 1 else schema[str(way[0])]
        holder[way[-1]] = _expand(inner, definitions, inline)
    return schema
