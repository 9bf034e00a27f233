"""JSON values as Python holds them: which are JSON, of what type, when equal.

A value counts as JSON when it is None, bool, int, finite float, str, list or dict with
text keys. Near relatives (tuples, mappings, `StrEnum` members) have a plain twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.types import FrozenDict, FrozenList

__all__ = (
    "NotJsonError",
    "equality_key",
    "exact_ratio",
    "is_plain",
    "json_type",
    "to_plain",
)

_ATOMS: Final = frozenset({str, bool, type(None)})
_DICTS: Final = frozenset({dict, FrozenDict})
_LISTS: Final = frozenset({list, FrozenList})

# Python itself refuses to write or read an integer of more than 4300 digits
# (CVE-2020-10735), so a greater one can be no JSON.
_HUGE: Final = 10**4300


class NotJsonError(ValueError):
    """A value holds something that JSON cannot say.

    Args:
        message: What it is.
        steps: The keys and indices that lead to it.
    """

    def __init__(self, message: str, steps: tuple[str | int, ...] = ()) -> None:
        super().__init__(message, steps)
        self.message = message
        self.steps = steps

    def __str__(self) -> str:
        return self.message


def is_plain(value: Any, depth: int = MAX_JSON_DEPTH) -> bool:
    """Whether `value` is JSON as it stands; False when `to_plain` must look at it.

    This runs on every valid value, so it is written for speed.

    Args:
        value: Any object.
        depth: Levels of nesting that are allowed.
    """
    kind = type(value)
    if kind in _DICTS:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    elif kind not in _LISTS:
        if kind is int:
            plain: bool = -_HUGE < value < _HUGE
            return plain
        return kind in _ATOMS or (kind is float and isfinite(value))
    if depth <= 0:
        return False
    for item in value:
        if type(item) not in _ATOMS and not is_plain(item, depth - 1):
            return False
    return True


def to_plain(value: Any) -> Any:
    """A copy of `value` in plain dicts, lists and atoms.

    Mappings become dicts, tuples become lists, and members of `StrEnum` and `IntEnum`
    (and other heirs of str, int and float) become what they inherit from.

    Raises:
        NotJsonError: When a part of it has no JSON form: NaN, infinity, bytes, sets,
            other objects, keys that are no text, nesting deeper than `MAX_JSON_DEPTH`
            or than the stack has room for.
    """
    try:
        return _convert(value, ())
    except RecursionError:
        msg = "is nested too deeply"
        raise NotJsonError(msg) from None


def _convert(value: Any, steps: tuple[str | int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return _plain_number(value, steps)
    if len(steps) >= MAX_JSON_DEPTH:
        msg = f"is nested deeper than {MAX_JSON_DEPTH} levels"
        raise NotJsonError(msg)
    if isinstance(value, Mapping):
        return {
            _plain_key(key, steps): _convert(item, (*steps, str(key)))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_convert(item, (*steps, index)) for index, item in enumerate(value)]
    msg = f"is not a JSON value but a Python {type(value).__name__}"
    raise NotJsonError(msg, steps)


def _plain_number(value: float, steps: tuple[str | int, ...]) -> int | float:
    if isinstance(value, int):
        number = int(value)
        if not -_HUGE < number < _HUGE:
            msg = "is an integer of more than 4300 digits, which JSON cannot carry"
            raise NotJsonError(msg, steps)
        return number
    if not isfinite(value):
        msg = f"is not a JSON number: {float(value)}"
        raise NotJsonError(msg, steps)
    return float(value)


def _plain_key(key: Any, steps: tuple[str | int, ...]) -> str:
    if not isinstance(key, str):
        msg = f"has a key that is no text but a Python {type(key).__name__}"
        raise NotJsonError(msg, steps)
    return str.__str__(key)


def json_type(value: Any) -> str:
    """The name that JSON Schema gives to the type of a plain value.

    `integer` for every int, and for a float without a fraction such as `3.0`.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return "object" if isinstance(value, Mapping) else "array"


_TRUE: Final = ("boolean", True)
_FALSE: Final = ("boolean", False)


def equality_key(value: Any) -> Any:
    """A hashable that is equal for two plain values just when JSON calls them equal.

    `1` equals `1.0` and not `true`; the order of an object's members does not count;
    integers compare exactly, also with floats.
    """
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, list):
        return ("array", *map(equality_key, value))
    if isinstance(value, dict):
        return frozenset((key, equality_key(item)) for key, item in value.items())
    return value


def exact_ratio(value: float) -> tuple[int, int]:
    """A JSON number as an exact fraction (numerator, denominator).

    A float with a fraction counts as the decimal that it is written as, so `0.3` is
    three tenths; a whole float counts as the integer that it holds.
    """
    if isinstance(value, int) or value.is_integer():
        return int(value), 1
    from decimal import Decimal

    return Decimal(repr(value)).as_integer_ratio()
