"""Values as text that other processes read back, and that can run nothing.

JSON, with the few kinds that it lacks written as `{"$": [kind, content]}`. What has no
such form is not kept: a server that others write to must never be unpickled.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from typing import Any, Final

from executionkit._frozen import freeze

__all__ = ("decode", "encode")

_MARK: Final = "$"


def encode(value: Any) -> bytes | None:
    """`value` as bytes; None when it has no form that comes back as it was."""
    try:
        text = json.dumps(_plain(value), ensure_ascii=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None
    return text.encode("ascii")


def decode(data: bytes) -> Any:
    """What `encode` made the bytes of, read-only.

    Raises:
        ValueError: When they are of something else.
    """
    try:
        return freeze(_rich(json.loads(data)))
    except (TypeError, KeyError, IndexError, RecursionError, OverflowError) as exc:
        msg = "a stored value cannot be read"
        raise ValueError(msg) from exc


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in {str, bool, int, float}:
        return value
    if isinstance(value, Mapping):
        return _mapping(value)
    if kind is list or (isinstance(value, list) and kind.__name__ == "FrozenList"):
        return [_plain(item) for item in value]
    for name, known, write in _WRITERS:
        if kind is known:
            return {_MARK: [name, write(value)]}
    msg = f"a {kind.__name__} is not kept in a shared store"
    raise TypeError(msg)


def _mapping(value: Mapping[Any, Any]) -> Any:
    if type(value).__name__ not in {"dict", "FrozenDict"}:
        msg = f"a {type(value).__name__} is not kept in a shared store"
        raise TypeError(msg)
    if _MARK not in value and all(type(key) is str for key in value):
        return {key: _plain(item) for key, item in value.items()}
    pairs = [[_plain(key), _plain(item)] for key, item in value.items()]
    return {_MARK: ["dict", pairs]}


def _items(value: Any) -> list[Any]:
    return [_plain(item) for item in value]


def _moment(value: datetime) -> list[Any]:
    if value.tzinfo is not None and type(value.tzinfo) is not timezone:
        msg = "only times without a zone, or with a fixed offset, are kept"
        raise TypeError(msg)
    return [value.isoformat(), value.fold]


_WRITERS: Final[tuple[tuple[str, type, Any], ...]] = (
    ("tuple", tuple, _items),
    ("set", set, _items),
    ("frozenset", frozenset, _items),
    ("bytes", bytes, lambda value: base64.b64encode(value).decode()),
    ("complex", complex, lambda value: [value.real, value.imag]),
    ("datetime", datetime, _moment),
    ("date", date, date.isoformat),
    ("timedelta", timedelta, lambda v: [v.days, v.seconds, v.microseconds]),
)

_READERS: Final[dict[str, Any]] = {
    "dict": lambda pairs: {_rich(key): _rich(item) for key, item in pairs},
    "tuple": lambda items: tuple(_rich(item) for item in items),
    "set": lambda items: {_rich(item) for item in items},
    "frozenset": lambda items: frozenset(_rich(item) for item in items),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "complex": lambda parts: complex(*parts),
    "datetime": lambda parts: datetime.fromisoformat(parts[0]).replace(fold=parts[1]),
    "date": date.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
}


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return [_rich(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _MARK in value:
        name, content = value[_MARK]
        return _READERS[name](content)
    return {key: _rich(item) for key, item in value.items()}
