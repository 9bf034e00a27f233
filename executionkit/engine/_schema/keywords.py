"""The keywords of the subset validator that look at one value by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Final, TypeAlias

from executionkit.engine._schema.formats import FORMATS
from executionkit.engine._schema.pattern import compile_pattern
from executionkit.engine._schema.problems import Failure, Step
from executionkit.engine._schema.regex import PatternError
from executionkit.engine._schema.values import equality_key, exact_ratio
from executionkit.types import FrozenDict, FrozenList

__all__ = (
    "ANNOTATIONS",
    "KEYWORDS",
    "Check",
    "MalformedError",
    "Path",
    "UnsupportedError",
    "names_of",
    "steps_of",
)

Path: TypeAlias = "tuple[Path, Step] | None"
"""The way to a value, last step first; built for each value, so it is kept cheap."""

Check: TypeAlias = Callable[[Any, Path, list[Failure]], None]
"""Looks at a value and appends what is wrong with it."""


class MalformedError(ValueError):
    """A keyword's value breaks the rules of JSON Schema."""


class UnsupportedError(ValueError):
    """A keyword's value is good JSON Schema that the subset cannot check."""


def steps_of(path: Path) -> list[Step]:
    """The steps of a path, first step first."""
    steps: list[Step] = []
    while path is not None:
        path, step = path
        steps.append(step)
    steps.reverse()
    return steps


_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "array": (list, FrozenList),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict, FrozenDict),
    "string": (str,),
}


def names_of(limit: Any) -> list[str]:
    """A list of names that do not repeat.

    Raises:
        MalformedError: When it is something else.
    """
    if (
        not isinstance(limit, list)
        or not all(isinstance(name, str) for name in limit)
        or len(set(limit)) != len(limit)
    ):
        msg = "must be a list of different texts"
        raise MalformedError(msg)
    return limit


def _type(limit: Any) -> Check:
    names = [limit] if isinstance(limit, str) else names_of(limit)
    if not names or not all(name in _PYTHON_TYPES for name in names):
        msg = f"must be one or more of {', '.join(_PYTHON_TYPES)}"
        raise MalformedError(msg)
    allowed = frozenset(kind for name in names for kind in _PYTHON_TYPES[name])
    whole = "integer" in names

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        kind = type(value)
        if kind in allowed or (whole and kind is float and value.is_integer()):
            return
        found.append(Failure(steps_of(path), "type", names, value))

    return check


def _const(limit: Any) -> Check:
    wanted = equality_key(limit)

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if equality_key(value) != wanted:
            found.append(Failure(steps_of(path), "const", limit, value))

    return check


def _enum(limit: Any) -> Check:
    if not isinstance(limit, list):
        msg = "must be a list"
        raise MalformedError(msg)
    wanted = frozenset(map(equality_key, limit))

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if equality_key(value) not in wanted:
            found.append(Failure(steps_of(path), "enum", limit, value))

    return check


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _bound(
    keyword: str, holds: Callable[[float, float], bool]
) -> Callable[[Any], Check]:
    def make(limit: Any) -> Check:
        if not _is_number(limit):
            msg = "must be a number"
            raise MalformedError(msg)

        def check(value: Any, path: Path, found: list[Failure]) -> None:
            if _is_number(value) and not holds(value, limit):
                found.append(Failure(steps_of(path), keyword, limit, value))

        return check

    return make


def _multiple_of(limit: Any) -> Check:
    if not _is_number(limit) or limit <= 0:
        msg = "must be a number greater than 0"
        raise MalformedError(msg)
    top, bottom = exact_ratio(limit)

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if not _is_number(value):
            return
        value_top, value_bottom = exact_ratio(value)
        if (value_top * bottom) % (value_bottom * top):
            found.append(Failure(steps_of(path), "multipleOf", limit, value))

    return check


def _size(
    keyword: str, kind: type[Sized], holds: Callable[[int, int], bool]
) -> Callable[[Any], Check]:
    def make(limit: Any) -> Check:
        if not _is_number(limit) or limit < 0 or limit != int(limit):
            msg = "must be a whole number that is not negative"
            raise MalformedError(msg)
        size = int(limit)

        def check(value: Any, path: Path, found: list[Failure]) -> None:
            if isinstance(value, kind) and not holds(len(value), size):
                found.append(Failure(steps_of(path), keyword, size, value))

        return check

    return make


def _unique_items(limit: Any) -> Check | None:
    if not isinstance(limit, bool):
        msg = "must be true or false"
        raise MalformedError(msg)
    if not limit:
        return None

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if isinstance(value, list) and len(set(map(equality_key, value))) < len(value):
            found.append(Failure(steps_of(path), "uniqueItems", limit, value))

    return check


def _required(limit: Any) -> Check:
    names = names_of(limit)

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if not isinstance(value, dict):
            return
        found.extend(
            Failure(steps_of(path), "required", name, value)
            for name in names
            if name not in value
        )

    return check


def _pattern(limit: Any) -> Check:
    if not isinstance(limit, str):
        msg = "must be text"
        raise MalformedError(msg)
    try:
        search = compile_pattern(limit).search
    except PatternError as exc:
        raise UnsupportedError(str(exc)) from exc

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if isinstance(value, str) and not search(value):
            found.append(Failure(steps_of(path), "pattern", limit, value))

    return check


def _format(limit: Any) -> Check | None:
    if not isinstance(limit, str):
        msg = "must be text"
        raise MalformedError(msg)
    holds = FORMATS.get(limit)
    if holds is None:  # an annotation
        return None

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if isinstance(value, str) and not holds(value):
            found.append(Failure(steps_of(path), "format", limit, value))

    return check


def _at_least(size: float, limit: float) -> bool:
    return size >= limit


def _at_most(size: float, limit: float) -> bool:
    return size <= limit


KEYWORDS: Final[dict[str, Callable[[Any], Check | None]]] = {
    "const": _const,
    "enum": _enum,
    "exclusiveMaximum": _bound("exclusiveMaximum", lambda value, limit: value < limit),
    "exclusiveMinimum": _bound("exclusiveMinimum", lambda value, limit: value > limit),
    "format": _format,
    "maxItems": _size("maxItems", list, _at_most),
    "maxLength": _size("maxLength", str, _at_most),
    "maxProperties": _size("maxProperties", dict, _at_most),
    "maximum": _bound("maximum", _at_most),
    "minItems": _size("minItems", list, _at_least),
    "minLength": _size("minLength", str, _at_least),
    "minProperties": _size("minProperties", dict, _at_least),
    "minimum": _bound("minimum", _at_least),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "required": _required,
    "type": _type,
    "uniqueItems": _unique_items,
}
"""Keyword -> what makes its check; None = nothing to check."""

_ANY: Final[tuple[type, ...]] = (object,)

ANNOTATIONS: Final[dict[str, tuple[type, ...]]] = {
    "$comment": (str,),
    "contentEncoding": (str,),
    "contentMediaType": (str,),
    "contentSchema": (dict, bool),
    "default": _ANY,
    "deprecated": (bool,),
    "description": (str,),
    "discriminator": _ANY,
    "examples": (list,),
    "nullable": _ANY,
    "readOnly": (bool,),
    "title": (str,),
    "writeOnly": (bool,),
}
"""Keywords that say nothing about validity -> the types that their values may have.

`discriminator` and `nullable` are OpenAPI's: JSON Schema does not know them, so every
validator passes over them.
"""
