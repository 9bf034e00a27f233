"""JSON Schema to a grammar that the engine can hold a reply to.

The engine's matcher (LLGuidance) writes without any constraint when it is given a
keyword that it does not know. So a schema is rebuilt here from the keywords that it is
known to keep; every other one is left out and named in a note. The rebuilt schema is a
little stricter where that helps a small model to end: objects with named properties get
no others, integers have 64 bits. Whoever asked for the schema still has to validate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from executionkit._local.grammar_values import (
    BOUNDS,
    INT_MAX,
    INT_MIN,
    MAX_COUNT,
    OF_ARRAY,
    OF_OBJECT,
    OF_STRING,
    GrammarError,
    check_range,
    ends,
    guess_type,
    is_count,
    is_exact,
    is_names,
    is_safe_pattern,
    merge,
    pick_options,
    refusal,
)
from executionkit.types import JsonObject, JsonValue, thaw

__all__ = ("Constraint", "GrammarError", "constrain")

_MAX_DEPTH: Final = 24
"""Nesting below which any value is allowed; the engine gives up not far beyond."""

_MAX_NODES: Final = 1000
_FORMATS: Final = frozenset(
    {
        *("date", "time", "date-time", "duration", "email"),
        *("hostname", "ipv4", "ipv6", "uuid"),
    }
)
_TYPES: Final = frozenset(
    {"string", "number", "integer", "boolean", "null", "array", "object"}
)
_SILENT: Final = frozenset(
    {
        *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions"),
        *("title", "description", "default", "examples", "example", "deprecated"),
        *("readOnly", "writeOnly", "contentEncoding", "contentMediaType"),
        *("nullable", "strict", "discriminator", "unevaluatedProperties"),
    }
)
_KEPT: Final = frozenset(
    {
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "multipleOf"),
        *(*BOUNDS, *OF_STRING, *OF_ARRAY, *OF_OBJECT),
    }
)
_STYLE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_STARTS: Final = {"object": ('{"', "{}"), "array": ("[",), "string": ('"',)}


class Constraint(NamedTuple):
    """A grammar for the engine, and how far it goes."""

    grammar: str
    """In the engine's own notation."""

    notes: tuple[str, ...]
    """What the schema asks for and the grammar does not enforce."""

    starts: tuple[str, ...]
    """How every reply begins, which one without constraint hardly does; empty = any."""


def constrain(schema: JsonValue) -> Constraint:
    """The grammar of `schema`.

    Raises:
        GrammarError: When the schema is none, allows nothing, or refers to something
            that is not in it; the message says where.
    """
    try:
        root = thaw(schema)
    except RecursionError:
        root = None
    if not isinstance(root, dict) and root is not True:
        path, what = "#", "an object of reasonable depth"
        raise refusal(path, f"must be {what}, got {type(schema).__name__}")
    work = _Rebuilder(root if isinstance(root, dict) else {})
    built = work.rebuild(root, "#", 0)
    work.check_ends(built)
    whole = {"x-guidance": _STYLE, **built}
    if work.definitions:
        whole["$defs"] = work.definitions
    grammar = "%llguidance {}\nstart: %json " + json.dumps(whole, allow_nan=False)
    return Constraint(grammar, tuple(dict.fromkeys(work.notes)), _starts(built))


def _starts(built: JsonObject) -> tuple[str, ...]:
    """How all values begin; empty when that is not known."""
    branches = built.get("anyOf")
    if not branches:
        return _STARTS.get(built.get("type", ""), ())
    starts = [_starts(branch) for branch in branches]
    return tuple(chain.from_iterable(starts)) if all(starts) else ()


class _Rebuilder:
    """Rebuilds one schema, remembering references and what was left out."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._nodes = 0
        self.definitions: dict[str, Any] = {}
        self.notes: list[str] = []

    def rebuild(self, schema: JsonValue, path: str, depth: int) -> dict[str, Any]:
        """`schema` with nothing in it but what the engine keeps."""
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            shown = (
                "`false` allows no value" if schema is False else "must be an object"
            )
            raise refusal(path, shown)
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise refusal(path, f"has more than {_MAX_NODES} parts")
        if depth > _MAX_DEPTH:
            self.notes.append(f"{path} is too deep to be enforced")
            return {}
        return self._combined(schema, path, depth)

    def _combined(
        self, schema: dict[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        if "allOf" in schema:
            schema = self._all_of(schema, path, 0)
        for key in sorted(schema.keys() - _KEPT - _SILENT):
            if not key.startswith("x-"):
                self._leave_out(key, path)
        if "$ref" in schema:
            return self._reference(schema, path, depth)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._any_of(schema, key, path, depth)
        return self._value(schema, path, depth)

    def check_ends(self, built: JsonObject) -> None:
        """Refuse references that go round for ever."""
        ending: set[str] = set()
        more = True
        while more:
            more = False
            for name in self.definitions.keys() - ending:
                if ends(self.definitions[name], ending):
                    ending.add(name)
                    more = True
        if len(ending) < len(self.definitions) or not ends(built, ending):
            path, why = "#", "`$ref` leads back to itself; no reply could ever end"
            raise refusal(path, why)

    def _leave_out(self, key: str, path: str) -> None:
        self.notes.append(f"`{key}` at {path} is not enforced")

    def _resolve(self, pointer: object, path: str) -> JsonValue:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise refusal(path, f"`$ref` {pointer!r} is not inside of the schema")
        target: JsonValue = self._root
        for part in pointer[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key in map(str, range(len(target))):
                target = target[int(key)]
            else:
                raise refusal(path, f"`$ref` {pointer!r} points at nothing")
        return target

    def _reference(
        self, schema: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        pointer = schema["$ref"]
        target = self._resolve(pointer, path)
        beside = {key: schema[key] for key in schema.keys() & _KEPT if key != "$ref"}
        if beside and isinstance(target, dict):
            return self.rebuild(merge(target, beside), path, depth + 1)
        if pointer not in self._names:
            name = self._names[pointer] = f"d{len(self._names)}"
            self.definitions[name] = {}
            self.definitions[name] = self.rebuild(target, pointer, depth + 1)
        return {"$ref": f"#/$defs/{self._names[pointer]}"}

    def _all_of(
        self, schema: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        branches = schema["allOf"]
        if not isinstance(branches, list) or not branches:
            raise refusal(path, "`allOf` must be a non-empty array")
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for index, branch in enumerate(branches):
            if branch is True:
                continue
            where = f"{path}/allOf/{index}"
            whole = branch
            for _ in range(_MAX_DEPTH):
                if not isinstance(whole, dict) or "$ref" not in whole:
                    break
                rest = {key: item for key, item in whole.items() if key != "$ref"}
                target = self._resolve(whole["$ref"], where)
                whole = merge(target, rest) if isinstance(target, dict) else target
            if not isinstance(whole, dict) or "$ref" in whole:
                raise refusal(where, "must be an object")
            if "allOf" in whole:
                if depth > _MAX_DEPTH:
                    raise refusal(where, "is nested too deeply")
                whole = self._all_of(whole, where, depth + 1)
            merged = merge(merged, whole)
        return merged

    def _any_of(
        self, schema: Mapping[str, Any], key: str, path: str, depth: int
    ) -> dict[str, Any]:
        branches = schema[key]
        if not isinstance(branches, list) or not branches:
            raise refusal(path, f"`{key}` must be a non-empty array")
        beside = {name: value for name, value in schema.items() if name != key}
        built: list[dict[str, Any]] = []
        refused: GrammarError | None = None
        for index, branch in enumerate(branches):
            whole = merge(beside, branch) if isinstance(branch, dict) else branch
            try:
                built.append(self.rebuild(whole, f"{path}/{key}/{index}", depth + 1))
            except GrammarError as exc:
                refused = exc
        if refused is not None and not built:
            raise refused
        return built[0] if len(built) == 1 else {"anyOf": built}

    def _value(
        self, schema: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        kinds = self._types(schema, path)
        if "const" in schema or "enum" in schema:
            return pick_options(schema, kinds if "type" in schema else (), path)
        if not kinds:
            return {}
        built = [self._of_type(kind, schema, path, depth) for kind in kinds]
        return built[0] if len(built) == 1 else {"anyOf": built}

    def _types(self, schema: Mapping[str, Any], path: str) -> list[str]:
        given = schema.get("type", guess_type(schema))
        kinds = list(given) if isinstance(given, list) else [given]
        if kinds == [None]:
            return []
        if not kinds:
            raise refusal(path, "allows no type at all")
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _TYPES:
                raise refusal(path, f"{kind!r} is not a type")
        if schema.get("nullable") is True and "null" not in kinds:
            kinds.append("null")
        return kinds

    def _of_type(
        self, kind: str, schema: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        if kind == "string":
            return self._string(schema, path)
        if kind in {"integer", "number"}:
            return self._number(kind, schema, path)
        if kind == "array":
            return self._array(schema, path, depth)
        if kind == "object":
            return self._object(schema, path, depth)
        return {"type": kind}

    def _counts(
        self, schema: Mapping[str, Any], low: str, high: str, path: str
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        for key in (low, high):
            if is_count(schema.get(key)):
                found[key] = schema[key]
            elif key in schema:
                self._leave_out(key, path)
        if found.get(low, 0) > found.get(high, MAX_COUNT):
            raise refusal(path, f"`{low}` is larger than `{high}`")
        return found

    def _string(self, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        # One of pattern, format, lengths: together they could allow nothing, which
        # the engine takes for no constraint at all.
        lengths = self._counts(schema, "minLength", "maxLength", path)
        pattern, form = schema.get("pattern"), schema.get("format")
        left_out = {"pattern", "format", *lengths} & schema.keys()
        if is_safe_pattern(pattern):
            built: dict[str, Any] = {"pattern": pattern}
        elif isinstance(form, str) and form in _FORMATS:
            built = {"format": form}
        else:
            built = dict(lengths)
        for key in sorted(left_out - built.keys()):
            self._leave_out(key, path)
        return {"type": "string", **built}

    def _number(
        self, kind: str, schema: Mapping[str, Any], path: str
    ) -> dict[str, Any]:
        built: dict[str, Any] = {"type": kind}
        for key in (*BOUNDS, "multipleOf"):
            if is_exact(schema.get(key)):
                built[key] = schema[key]
            elif key in schema:
                self._leave_out(key, path)
        if built.get("multipleOf", 1) <= 0:
            raise refusal(path, "`multipleOf` must be above 0")
        check_range(built, path)
        if kind == "integer":
            if "exclusiveMinimum" not in built:
                built.setdefault("minimum", INT_MIN)
            if "exclusiveMaximum" not in built:
                built.setdefault("maximum", INT_MAX)
        return built

    def _array(
        self, schema: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        built: dict[str, Any] = {"type": "array"}
        built.update(self._counts(schema, "minItems", "maxItems", path))
        first, rest = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(rest, list):  # the form of older drafts
            first, rest = rest, schema.get("additionalItems", True)
        if isinstance(first, list) and first:
            built["prefixItems"] = [
                self.rebuild(item, f"{path}/prefixItems/{index}", depth + 1)
                for index, item in enumerate(first)
            ]
        if rest is not False:
            built["items"] = self.rebuild(rest, f"{path}/items", depth + 1)
            return built
        most = len(built.get("prefixItems", ()))
        if built.get("minItems", 0) > most:
            raise refusal(path, f"`minItems` is larger than the {most} items allowed")
        built["maxItems"] = min(most, built.get("maxItems", most))
        return built

    def _object(
        self, schema: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        given, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(given, dict) or not is_names(required):
            raise refusal(path, "`properties` must be an object, `required` names")
        more = schema.get("additionalProperties", not given)
        if "patternProperties" in schema:
            more = True
        where = f"{path}/additionalProperties"
        others = True if more is False else self.rebuild(more, where, depth + 1)
        properties = self._properties(given, required, path, depth)
        for key in required:
            if key not in properties:
                if schema.get("additionalProperties") is False:
                    raise refusal(path, f"{key!r} is required and not allowed")
                properties[key] = {} if others is True else others
        built: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "required": list(dict.fromkeys(required)),
            "additionalProperties": False if more is False else others,
        }
        if not properties and more is not False:
            built.update(self._counts(schema, "minProperties", "maxProperties", path))
        return built

    def _properties(
        self, given: Mapping[str, Any], required: Sequence[str], path: str, depth: int
    ) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for key, value in given.items():
            if value is not False or key in required:  # `false` forbids the property
                where = f"{path}/properties/{key}"
                properties[key] = self.rebuild(value, where, depth + 1)
        return properties
