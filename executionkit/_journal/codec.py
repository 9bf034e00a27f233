"""Values as JSON text and back, exactly: what comes back is equal and of the same type.

JSON-like values stay as they are. Others are objects with a tag:
`{"$": "tuple", "v": [1, 2]}`. Nothing is guessed and nothing pickled: a value that has
no form here is refused.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType, NoneType
from typing import Any, Final

from executionkit._frozen import FrozenDict, FrozenList
from executionkit._journal.failures import pack_error, unpack_error
from executionkit._llm import LLMResponse
from executionkit.calls import CallProblem, ErrorInfo, ToolCall, ToolResult
from executionkit.errors import ErrorCategory, ErrorCode, JournalValueError
from executionkit.types import (
    PatternResult,
    TerminationReason,
    TokenUsage,
    VotingStrategy,
)

__all__ = ("decode", "encode", "is_plain")

_TAG: Final = "$"
_ATOMS: Final = frozenset({NoneType, bool, int, str})
_DICTS: Final = frozenset({dict, FrozenDict, MappingProxyType})
_LISTS: Final = frozenset({list, FrozenList})
_VALUES: Final[Mapping[str, type]] = MappingProxyType(
    {
        cls.__name__: cls
        for cls in (
            CallProblem,
            ErrorInfo,
            LLMResponse,
            PatternResult,
            TokenUsage,
            ToolCall,
            ToolResult,
        )
    }
)
_ENUMS: Final[Mapping[str, type]] = MappingProxyType(
    {
        cls.__name__: cls
        for cls in (ErrorCategory, ErrorCode, TerminationReason, VotingStrategy)
    }
)
_LEFT_OUT: Final = frozenset({(LLMResponse, "raw")})
"""What no program goes by, and that may hold anything."""


def encode(value: Any) -> str:
    """A value as JSON text.

    Raises:
        JournalValueError: When it has no form; says where in it.
    """
    try:
        return json.dumps(_pack(value, "value"), allow_nan=False, separators=(",", ":"))
    except JournalValueError:
        raise
    except RecursionError:
        msg = "the value is nested too deep, or holds itself"
        raise JournalValueError(msg) from None
    except ValueError as exc:  # a number with more digits than can be printed
        msg = f"the value cannot be kept: {exc}"
        raise JournalValueError(msg) from None


def decode(text: str) -> Any:
    """The value that `encode` wrote.

    Raises:
        JournalValueError: When the text is nothing of the kind.
    """
    try:
        return _unpack(json.loads(text))
    except (
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
        AttributeError,
        ArithmeticError,  # of a Decimal
    ) as exc:
        msg = f"the journal holds something that cannot be read: {type(exc).__name__}"
        raise JournalValueError(msg) from exc


def is_plain(value: Any) -> bool:
    """Whether a value reads the same in every process: JSON's own types, in order."""
    kind = type(value)
    if kind in _ATOMS or kind is float:
        return True
    if kind in _DICTS:
        return all(type(k) is str and is_plain(v) for k, v in value.items())
    return kind in _LISTS and all(map(is_plain, value))


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {_TAG: tag, "v": value}


def _pack(value: Any, where: str) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind in _DICTS:
        return _pack_dict(value, where)
    if kind in _LISTS:
        return _pack_items(value, where)
    if kind is tuple:
        return _tagged("tuple", _pack_items(value, where))
    if kind in {set, frozenset}:
        items = _pack_items(value, where)
        return _tagged(kind.__name__, sorted(items, key=json.dumps))
    if kind in {bytes, bytearray}:
        return _tagged("bytes", base64.b64encode(value).decode("ascii"))
    return _pack_other(value, kind, where)


def _pack_items(values: Any, where: str) -> list[Any]:
    return [_pack(item, f"{where}[{index}]") for index, item in enumerate(values)]


def _pack_dict(value: Mapping[Any, Any], where: str) -> Any:
    if _TAG not in value and all(type(key) is str for key in value):
        return {key: _pack(item, f"{where}[{key!r}]") for key, item in value.items()}
    pairs = [
        [_pack(key, f"a key of {where}"), _pack(item, f"{where}[{key!r:.60}]")]
        for key, item in value.items()
    ]
    return _tagged("dict", pairs)


def _pack_other(value: Any, kind: type, where: str) -> Any:
    name = kind.__name__
    if _VALUES.get(name) is kind:
        parts = {
            item.name: _pack(getattr(value, item.name), f"{where}.{item.name}")
            for item in fields(value)
            if (kind, item.name) not in _LEFT_OUT
        }
        return _tagged(name, parts)
    if _ENUMS.get(name) is kind:
        return _tagged(name, value.value)
    if isinstance(value, BaseException):
        return _tagged("error", pack_error(value, lambda item: _pack(item, where)))
    text = _text_of(value, kind)
    if text is not None:
        return _tagged(name, text)
    msg = (
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which a journal cannot "
        "keep; return JSON-like values"
    )
    raise JournalValueError(msg)


def _text_of(value: Any, kind: type) -> str | None:
    """The text of a value of the standard library that has an exact one."""
    makers = _makers()
    if kind.__name__ not in makers or kind is not makers[kind.__name__][0]:
        return None
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    if kind.__name__ != "datetime":
        return str(text)
    # A zone with a name, or the second one of two equal hours, is more than its text.
    again = makers["datetime"][1](text)
    return str(text) if again == value and repr(again) == repr(value) else None


def _makers() -> dict[str, tuple[type, Callable[[str], Any]]]:
    from datetime import date, datetime, time  # most runs need none of these
    from decimal import Decimal
    from uuid import UUID

    return {
        "Decimal": (Decimal, Decimal),
        "UUID": (UUID, UUID),
        "date": (date, date.fromisoformat),
        "datetime": (datetime, datetime.fromisoformat),
        "time": (time, time.fromisoformat),
    }


def _unpack(value: Any) -> Any:
    if type(value) is list:
        return [_unpack(item) for item in value]
    if type(value) is not dict:
        return value
    if _TAG not in value:
        return {key: _unpack(item) for key, item in value.items()}
    tag, inner = value[_TAG], value["v"]
    maker = _SIMPLE.get(tag)
    if maker is not None:
        return maker(inner)
    if tag in _VALUES:
        return _VALUES[tag](**{name: _unpack(item) for name, item in inner.items()})
    if tag in _ENUMS:
        return _ENUMS[tag](inner)
    if tag == "error":
        return unpack_error(inner, _unpack)
    return _makers()[tag][1](inner)


_SIMPLE: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "bytes": base64.b64decode,
        "dict": lambda pairs: {_unpack(key): _unpack(item) for key, item in pairs},
        "float": float,
        "frozenset": lambda items: frozenset(map(_unpack, items)),
        "set": lambda items: set(map(_unpack, items)),
        "tuple": lambda items: tuple([_unpack(item) for item in items]),
    }
)
