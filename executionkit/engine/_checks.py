"""Checks of configured numbers, with one wording for all of the engine."""

from __future__ import annotations

import math

__all__ = ("check_int", "check_number")


def check_int(name: str, value: object, minimum: int) -> int:
    """`value` when it is a whole number of at least `minimum`.

    Raises:
        ValueError: When it is not (a bool and a float are not whole numbers here).
    """
    if type(value) is not int:
        msg = f"`{name}` must be an int, got {value!r}"
        raise ValueError(msg)
    if value < minimum:
        msg = f"{name} must be >= {minimum}, got {value}"
        raise ValueError(msg)
    return value


def check_number(
    name: str, value: object, minimum: float = 0.0, *, above: bool = False
) -> float:
    """`value` when it is a finite number of at least `minimum`.

    Args:
        name: What the number is called where the user wrote it.
        value: The number.
        minimum: The least value allowed.
        above: When True the value must be greater than `minimum`.

    Raises:
        ValueError: When it is not (NaN, infinities and bools are refused).
    """
    if type(value) is bool or not isinstance(value, (int, float)):
        msg = f"`{name}` must be a number, got {value!r}"
        raise ValueError(msg)
    if not math.isfinite(value):
        msg = f"`{name}` must be finite, got {value!r}"
        raise ValueError(msg)
    if value < minimum or (above and value == minimum):
        sign = ">" if above else ">="
        msg = f"{name} must be {sign} {minimum}, got {value!r}"
        raise ValueError(msg)
    return value
