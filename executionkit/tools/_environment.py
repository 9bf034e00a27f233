"""Reading values from variables of an environment: what, value, remedy in each error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeAlias

from executionkit._constants import DefaultInt, DefaultSeconds
from executionkit._frozen import freeze_mapping

__all__ = (
    "Reader",
    "read_choice",
    "read_count",
    "read_counts",
    "read_names",
    "read_rates",
    "read_seconds",
    "read_seconds_by_name",
    "read_switch",
    "reads",
    "unknown_variables",
)

Reader: TypeAlias = "Callable[[str, str], Any]"
"""Gives a value from the name of a variable and its text, which is not empty."""

_YES: Final = frozenset({"true", "1", "yes", "on"})
_NO: Final = frozenset({"false", "0", "no", "off"})
_NONE: Final = "none"


def reads(reader: Reader, default: Any, *, shown: bool = True) -> Any:
    """A field of a dataclass that `reader` reads from a variable.

    Args:
        reader: Reads it.
        default: What it is without a variable.
        shown: Whether it is in the text form of the dataclass.
    """
    if type(default) is int:
        default = DefaultInt(default)
    elif type(default) is float:
        default = DefaultSeconds(default)
    metadata = {"read": reader, "default": default}
    if isinstance(default, dict):
        return field(default_factory=freeze_mapping, metadata=metadata)
    return field(default=default, metadata=metadata, repr=shown)


def _refusal(variable: str, text: str, wanted: str) -> ValueError:
    return ValueError(f"{variable} must be {wanted}; got {text[:80]!r}")


def read_switch(variable: str, text: str) -> bool:
    """True or False.

    Raises:
        ValueError: For any other word.
    """
    word = text.lower()
    if word in _YES or word in _NO:
        return word in _YES
    raise _refusal(variable, text, "true or false (or 1/0, yes/no, on/off)")


def read_count(least: int, *, none: bool = True) -> Reader:
    """Reads whole numbers from `least` on; `none` as None where `none` allows it."""
    wanted = f"a whole number >= {least}" + (", or none for no limit" if none else "")

    def read(variable: str, text: str) -> int | None:
        if none and text.lower() == _NONE:
            return None
        return _count(variable, text, text, least, wanted)

    return read


def read_seconds(*, above: bool = False, none: bool = True) -> Reader:
    """Reads seconds from 0 on, or above 0; `none` as None where `none` allows it."""
    wanted = "a number of seconds > 0" if above else "a number of seconds >= 0"
    wanted += ", or none for no limit" if none else ""

    def read(variable: str, text: str) -> float | None:
        if none and text.lower() == _NONE:
            return None
        return _seconds(variable, text, text, wanted, above=above)

    return read


def read_choice(words: Sequence[str]) -> Reader:
    """Reads one of `words`, in any case."""

    def read(variable: str, text: str) -> str:
        if text.lower() not in words:
            raise _refusal(variable, text, f"one of {', '.join(words)}")
        return text.lower()

    return read


def read_names(_variable: str, text: str) -> tuple[str, ...]:
    """Names with commas between."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_counts(least: int) -> Reader:
    """Reads whole numbers by name, `name=2,other=5`."""
    wanted = f"name=number with commas between, numbers whole and >= {least}"

    def read(variable: str, text: str) -> dict[str, int]:
        return {
            name: _count(variable, text, value, least, wanted)
            for name, value in _pairs(variable, text, wanted)
        }

    return read


def read_rates(variable: str, text: str) -> dict[str, tuple[int, float]]:
    """Reads (starts, seconds) by name, `name=10/60,other=5/1`.

    Raises:
        ValueError: When it is written in another way.
    """
    wanted = "name=starts/seconds with commas between, e.g. search=10/60,mail=5/1"
    found: dict[str, tuple[int, float]] = {}
    for name, value in _pairs(variable, text, wanted):
        starts, _, period = (part.strip() for part in value.partition("/"))
        found[name] = (
            _count(variable, text, starts, 1, wanted),
            _seconds(variable, text, period, wanted, above=True),
        )
    return found


def read_seconds_by_name(variable: str, text: str) -> dict[str, float]:
    """Reads seconds by name, `name=2.5,other=none`; `none` gives infinity.

    Raises:
        ValueError: When it is written in another way.
    """
    wanted = "name=seconds with commas between, seconds > 0 or none for no limit"
    return {
        name: math.inf
        if value.lower() == _NONE
        else _seconds(variable, text, value, wanted, above=True)
        for name, value in _pairs(variable, text, wanted)
    }


def unknown_variables(
    environ: Mapping[str, str], prefix: str, known: Sequence[str]
) -> None:
    """Refuse variables that begin with `prefix` and are none of `known`.

    Raises:
        ValueError: When there are some; names them, and names that are like them.
    """
    import difflib

    names = [name.upper() for name in known]
    given = [name[len(prefix) :] for name in environ if name.startswith(prefix)]
    unknown = sorted(set(given) - set(names))
    if not unknown:
        return
    parts: list[str] = []
    for name in unknown[:10]:
        # Without the prefix, which is like itself in all of them.
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.7)
        like = " or ".join(prefix + other for other in close)
        parts.append(f"{prefix}{name}" + (f" (did you mean {like}?)" if like else ""))
    msg = (
        f"unknown variables: {', '.join(parts)}; correct or remove them, or read with "
        "`strict=False`"
    )
    raise ValueError(msg)


def _pairs(variable: str, text: str, wanted: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        # The value comes after the last mark: a name may hold one.
        name, mark, value = (item.strip() for item in part.rpartition("="))
        if not (name and mark and value):
            raise _refusal(variable, text, wanted)
        if name in seen:
            raise _refusal(variable, text, f"{wanted}, each name once")
        seen.add(name)
        yield name, value


def _count(variable: str, text: str, value: str, least: int, wanted: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise _refusal(variable, text, wanted) from None
    if number < least:
        raise _refusal(variable, text, wanted)
    return number


def _seconds(
    variable: str, text: str, value: str, wanted: str, *, above: bool
) -> float:
    try:
        number = float(value)
    except ValueError:
        raise _refusal(variable, text, wanted) from None
    if not math.isfinite(number) or number < 0 or (above and not number):
        raise _refusal(variable, text, wanted)
    return number
