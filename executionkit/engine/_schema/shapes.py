"""Python types that are one JSON value: text, numbers, choices, dates and the like."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, LiteralString, TypeAlias, get_args

from executionkit.engine._schema.defs import hint_at_times
from executionkit.engine._schema.problems import SchemaProblem, Step, pointer
from executionkit.engine._schema.values import equality_key, is_plain, json_type

__all__ = (
    "Parser",
    "SchemaValueError",
    "Shape",
    "Steps",
    "keep",
    "leaf_shape",
    "literal_shape",
    "reject",
    "type_name",
)

Steps: TypeAlias = tuple[Step, ...]

Parser: TypeAlias = Callable[[Any, Steps], Any]
"""(JSON value that fits the schema, where it stands) -> the Python value."""


class SchemaValueError(ValueError):
    """A JSON value does not make a value of the type.

    Args:
        problems: What is wrong, one thing or more.
    """

    def __init__(self, problems: Sequence[SchemaProblem]) -> None:
        self.problems: tuple[SchemaProblem, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "; ".join(str(problem) for problem in self.problems)


@dataclass(frozen=True, slots=True)
class Shape:
    """A type as JSON Schema, and the way back."""

    schema: dict[str, Any]
    parse: Parser
    scalar: type | None = field(default=None)
    """The Python type, when JSON values already are of it."""


def reject(message: str, steps: Steps) -> SchemaValueError:
    """The error for a value that is wrong in one way."""
    return SchemaValueError([SchemaProblem(pointer(steps), message)])


def type_name(tp: Any) -> str:
    """The type as somebody would write it."""
    return tp.__name__ if isinstance(tp, type) else str(tp).replace("typing.", "")


def keep(value: Any, _steps: Steps) -> Any:
    """The JSON value as it is."""
    return value


def _to_float(value: Any, steps: Steps) -> float:
    try:
        return float(value)
    except OverflowError:
        msg = "is too great for a float"
        raise reject(msg, steps) from None


_SCALARS: Final[dict[Any, Shape]] = {
    Any: Shape({}, keep),
    object: Shape({}, keep),
    None: Shape({"type": "null"}, keep, type(None)),
    type(None): Shape({"type": "null"}, keep, type(None)),
    str: Shape({"type": "string"}, keep, str),
    LiteralString: Shape({"type": "string"}, keep, str),
    bool: Shape({"type": "boolean"}, keep, bool),
    int: Shape({"type": "integer"}, lambda value, _: int(value), int),
    float: Shape({"type": "number"}, _to_float, float),
}


def leaf_shape(tp: Any) -> Shape | None:
    """The shape of a type that has no parts; None for any other type."""
    try:
        if tp in _SCALARS:
            return _SCALARS[tp]
    except TypeError:  # not hashable, so no type of ours
        return None
    if not isinstance(tp, type):
        return None
    if issubclass(tp, Enum):
        return _choice([(member.value, member) for member in tp], tp)
    return _format_shape(tp)


def literal_shape(tp: Any) -> Shape | None:
    """The shape of a `Literal[...]`; None when one of its values is no JSON."""
    values = [
        (value.value if isinstance(value, Enum) else value, value)
        for value in get_args(tp)
    ]
    return _choice(values, tp)


def _choice(pairs: list[tuple[Any, Any]], tp: Any) -> Shape | None:
    values = [value for value, _ in pairs]
    if not values or not all(_is_scalar(value) for value in values):
        return None
    members = {equality_key(value): member for value, member in reversed(pairs)}
    types = list(dict.fromkeys(json_type(value) for value in values))
    schema: dict[str, Any] = {"type": types[0]} if len(types) == 1 else {}
    schema["enum"] = values

    def parse(value: Any, steps: Steps) -> Any:
        try:
            return members[equality_key(value)]
        except KeyError:
            msg = f"is no {type_name(tp)}"
            raise reject(msg, steps) from None

    return Shape(schema, parse)


def _is_scalar(value: Any) -> bool:
    return is_plain(value) and not isinstance(value, (Mapping, list))


def _text_format(name: str, read: Callable[[str], Any], words: str) -> Shape:
    def parse(value: Any, steps: Steps) -> Any:
        try:
            return read(value)
        except ValueError:
            msg = f"is not {words}"
            raise reject(msg, steps) from None

    schema = {"type": "string", "format": name}
    hint_at_times(schema)
    return Shape(schema, parse)


def _read_datetime(text: str) -> dt.datetime:
    if len(text) <= len("2000-01-01"):
        raise ValueError(text)  # a date alone does not say the time
    return dt.datetime.fromisoformat(text)


def _format_shape(tp: type) -> Shape | None:
    if tp is dt.datetime:
        return _text_format("date-time", _read_datetime, "an ISO 8601 date and time")
    if tp is dt.date:
        return _text_format("date", dt.date.fromisoformat, "an ISO 8601 date")
    if tp is dt.time:
        return _text_format("time", dt.time.fromisoformat, "an ISO 8601 time")
    home = tp.__module__.partition(".")[0]
    if home == "uuid" and tp.__name__ == "UUID":
        return _text_format("uuid", tp, "a UUID")
    if home == "pathlib" and hasattr(tp, "__fspath__"):
        return _text_format("path", tp, "a path")
    if home in {"decimal", "_decimal"} and tp.__name__ == "Decimal":
        return _decimal_shape(tp)
    return None


def _decimal_shape(tp: Callable[[str], Any]) -> Shape:
    def parse(value: Any, steps: Steps) -> Any:
        # The shortest text of a float is the decimal that was written.
        try:
            number = tp(value if isinstance(value, str) else repr(value))
        except ArithmeticError:
            number = None
        if number is None or not number.is_finite():
            msg = "is not a decimal number"
            raise reject(msg, steps)
        return number

    either = [{"type": "number"}, {"type": "string", "format": "decimal"}]
    return Shape({"anyOf": either}, parse)
