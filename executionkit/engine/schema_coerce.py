"""From what a model wrote as arguments to an object, without ever guessing.

Models encode too often: the whole object as a JSON string, or one field of it. What is
decoded here is decoded because nothing else can be meant, and each decoded field is
reported. Text for a field that takes text stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from executionkit._constants import MAX_PROBLEM_CHARS
from executionkit.engine._json.strict import Failure, attempt, skip_space
from executionkit.engine._schema.problems import SchemaProblem, Step, pointer
from executionkit.engine._schema.values import (
    NotJsonError,
    is_plain,
    json_type,
    to_plain,
)
from executionkit.engine._schema.walk import resolve_pointer

__all__ = (
    "ArgumentsError",
    "admitted_types",
    "coerce_arguments",
    "decode_arguments",
    "narrow_schema",
)

_MAX_ENCODINGS: Final = 4
"""JSON strings around an object that are opened at most."""

_MAX_DEPTH: Final = 32
"""Levels of fields below the arguments that are looked at."""

_ALL_TYPES: Final = frozenset(
    {"array", "boolean", "integer", "null", "number", "object", "string"}
)


class ArgumentsError(ValueError):
    """The arguments of a call cannot be read as an object.

    Args:
        message: What is wrong, in words for the model.
        raw: What was read; at most `MAX_PROBLEM_CHARS` characters are kept.
        position: Where reading failed, in characters from the start; None = unknown.
        length: The full length in characters.
    """

    def __init__(
        self,
        message: str,
        raw: str = "",
        position: int | None = None,
        length: int | None = None,
    ) -> None:
        length = len(raw) if length is None else length
        raw = raw[:MAX_PROBLEM_CHARS]
        super().__init__(message, raw, position, length)
        self.message = message
        self.raw = raw
        self.position = position
        self.length = length

    def __str__(self) -> str:
        return self.message


def decode_arguments(
    raw: str | Mapping[str, Any] | None, *, schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments that a model wrote for a call, as a new dict.

    None and blank text mean that there are none. A JSON string that holds the text of
    an object is opened, up to four times. Anything else that is no object is an error:
    never an empty object, which would run a tool with its defaults.

    Args:
        raw: The arguments as they came.
        schema: With it, fields are decoded as `coerce_arguments` does; call that
            yourself to learn which.

    Raises:
        ArgumentsError: When there is no object to be had.
    """
    arguments = _read_object(raw)
    return arguments if schema is None else coerce_arguments(arguments, schema)[0]


def _read_object(raw: object) -> dict[str, Any]:
    if raw is None:
        return {}
    if isinstance(raw, Mapping):
        for key in raw:
            if not isinstance(key, str):
                msg = f"arguments must have text keys, got a {type(key).__name__}"
                raise ArgumentsError(msg)
        return dict(raw)
    if not isinstance(raw, str):
        msg = f"arguments must be a dict or JSON string, got a Python {type(raw).__name__}"
        raise ArgumentsError(msg)
    if not raw.strip():
        return {}
    value: Any = raw
    for _ in range(1 + _MAX_ENCODINGS):
        value = _read_text(value, raw)
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            break
    msg = f"arguments must decode to a JSON object, got a JSON {json_type(value)}"
    raise ArgumentsError(msg, raw)


def _read_text(text: str, raw: str) -> Any:
    try:
        return _loads(text)
    except _UnreadableError as exc:
        position = exc.position if text is raw else None
        msg = f"arguments were not valid JSON: {exc.reason}"
        raise ArgumentsError(msg, raw, position) from None


class _UnreadableError(ValueError):
    def __init__(self, reason: str, position: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


def _loads(text: str) -> Any:
    """Read strict JSON: no NaN, no infinity (`1e999`), no nesting without end.

    Raises:
        _UnreadableError: When the text is anything else.
    """
    start = skip_space(text, 1 if text.startswith("\ufeff") else 0)
    outcome = attempt(text, start)
    if isinstance(outcome, Failure):
        position = outcome.at if outcome.at >= 0 else None
        raise _UnreadableError(outcome.reason, position)
    value, end = outcome
    end = skip_space(text, end)
    if end < len(text):
        reason = "more text follows the value"
        raise _UnreadableError(reason, end)
    try:
        return value if is_plain(value) else to_plain(value)
    except NotJsonError as exc:
        reason = f"a value {exc}"
        raise _UnreadableError(reason, None) from None
    except RecursionError:
        reason = "it is nested too deeply"
        raise _UnreadableError(reason, None) from None


def coerce_arguments(
    arguments: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Decode fields that were encoded once too often, where the schema leaves no doubt.

    A field is decoded when its schema does not admit text, its value is text, and that
    text is JSON of a type that the schema admits. Numbers, booleans and null must
    moreover be written the one way that JSON writers write them: `42`, `-1.5`, `true`;
    not `042`, `+1`, `1e3`, ` 42`, `True`. Integers stay exact, and a text with a
    fraction is never taken for an integer. A field that admits text keeps it.

    Valid arguments come back as they are, so it is enough to call this when validation
    has found something.

    Args:
        arguments: The arguments of a call; not changed.
        schema: Their JSON Schema.

    Returns:
        The arguments, and one note in words for each decoded field.
    """
    decoder = _Decoder(schema)
    coerced = decoder.members(arguments, schema, ())
    return coerced, tuple(decoder.notes)


def admitted_types(schema: Any, root: Any) -> frozenset[str]:
    """The JSON types that a value may have under `schema`; a number admits integers.

    Types that it leaves out are certainly refused. Those it names may be refused by
    keywords that are not looked at.

    Args:
        schema: The schema, or a part of one.
        root: The whole schema, for its references.
    """
    return _admitted(schema, root, frozenset())


def _admitted(schema: Any, root: Any, seen: frozenset[str]) -> frozenset[str]:
    if schema is False:
        return frozenset()
    if not isinstance(schema, Mapping):
        return _ALL_TYPES
    types = _own_types(schema)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        target = _resolve(root, reference)
        types &= _admitted(target, root, seen | {reference})
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), (list, tuple)):
            parts = [_admitted(part, root, seen) for part in schema[keyword]]
            types &= frozenset[str]().union(*parts)
    if isinstance(schema.get("allOf"), (list, tuple)):
        for part in schema["allOf"]:
            types &= _admitted(part, root, seen)
    return types


def _own_types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = _ALL_TYPES
    named = schema.get("type")
    if isinstance(named, str):
        types = _with_integer({named})
    elif isinstance(named, (list, tuple)):
        types = _with_integer(named)
    if "const" in schema:
        types &= _with_integer({json_type(schema["const"])})
    if isinstance(schema.get("enum"), (list, tuple)):
        types &= _with_integer(json_type(value) for value in schema["enum"])
    return types


def _with_integer(names: Iterable[str]) -> frozenset[str]:
    found = frozenset(names)
    return found | {"integer"} if "number" in found else found


def _resolve(root: Any, reference: str) -> Any:
    try:
        return resolve_pointer(root, reference)
    except LookupError:
        return True


def narrow_schema(schema: Any, root: Any, kind: str) -> Any:
    """The schema behind a reference, or behind the one alternative that admits a type.

    Args:
        schema: The schema, or a part of one.
        root: The whole schema, for its references.
        kind: The JSON type of the value at hand.
    """
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return schema
        if isinstance(schema.get("$ref"), str):
            schema = _resolve(root, schema["$ref"])
            continue
        fitting = [
            part
            for keyword in ("anyOf", "oneOf")
            for part in schema.get(keyword, ())
            if kind in admitted_types(part, root)
        ]
        if len(fitting) != 1:
            return schema
        schema = fitting[0]
    return schema


class _Decoder:
    """Walks arguments and schema side by side.

    Args:
        root: The whole schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.notes: list[str] = []
        self._root = root

    def members(
        self, value: Mapping[str, Any], schema: Any, steps: tuple[Step, ...]
    ) -> dict[str, Any]:
        fields = _part(schema, "properties") or {}
        others = _part(schema, "additionalProperties")
        return {
            key: self._value(item, fields.get(key, others), (*steps, key))
            for key, item in value.items()
        }

    def _value(self, value: Any, schema: Any, steps: tuple[Step, ...]) -> Any:
        if len(steps) > _MAX_DEPTH:
            return value
        if isinstance(value, str):
            value = self._text(value, schema, steps)
        if isinstance(value, Mapping):
            return self.members(
                value, narrow_schema(schema, self._root, "object"), steps
            )
        if isinstance(value, list):
            part = _part(narrow_schema(schema, self._root, "array"), "items")
            return [
                self._value(item, part, (*steps, index))
                for index, item in enumerate(value)
            ]
        return value

    def _text(self, text: str, schema: Any, steps: tuple[Step, ...]) -> Any:
        types = admitted_types(schema, self._root)
        if not types or "string" in types:
            return text
        try:
            value = _loads(text)
        except _UnreadableError:
            return text
        if not _is_meant(value, text, types):
            return text
        note = f"was text that holds a JSON {json_type(value)}, and was decoded"
        self.notes.append(str(SchemaProblem(pointer(steps), note)))
        return value


def _part(schema: Any, keyword: str) -> Any:
    return schema.get(keyword) if isinstance(schema, Mapping) else None


def _is_meant(value: Any, text: str, types: frozenset[str]) -> bool:
    if isinstance(value, (dict, list)):
        return json_type(value) in types
    # A float that is whole, such as 3.0, is not taken for an integer here.
    kind = "number" if isinstance(value, float) else json_type(value)
    return kind in types and json.dumps(value) == text
