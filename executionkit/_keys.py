"""Canonical keys: equal calls have equal texts, different calls never have.

"Different" is by type too: `1`, `1.0`, `True` and `"1"` are four values. What has no
canonical form (an object whose text is its address, a number too long to print) has no
key, and a call without a key is not cached.

A key has four lines: the tool's full name, its version, whose it is (tenant and user),
and the arguments; each in a form without line breaks.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from json import encoder as _json_encoder
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol

from executionkit._frozen import FrozenDict, FrozenList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


__all__ = (
    "MAX_KEY_TEXT",
    "cache_key",
    "canonical",
    "fingerprint",
    "idempotency_key",
    "key_prefix",
    "scope_of",
)


class _Call(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...


class _Owner(Protocol):
    @property
    def tenant_id(self) -> str | None: ...
    @property
    def user_id(self) -> str | None: ...


MAX_KEY_TEXT: Final = 512
"""Characters of arguments above which a key holds their SHA-256 instead."""

_FLAT: Final = frozenset({str, int, float, bool, NoneType})
_DICTS: Final = frozenset({dict, FrozenDict})
_LISTS: Final = frozenset({list, FrozenList})


def _make_chunks() -> Callable[[Any, int], Iterable[str]]:
    """The encoder of JSON: `JSONEncoder.encode` builds it for each call, this is kept.

    Text stays as it is: `ensure_ascii` would write an emoji and its two surrogates
    alike.
    """
    make = getattr(_json_encoder, "c_make_encoder", None)
    if make is None:
        encode = json.JSONEncoder(
            ensure_ascii=False, sort_keys=True, separators=(",", ":")
        ).encode
        return lambda value, _level: encode(value)
    text = getattr(_json_encoder, "encode_basestring")  # noqa: B009 - not in the stubs
    made: Callable[[Any, int], Iterable[str]] = make(
        markers=None,
        default=None,
        encoder=text,
        indent=None,
        key_separator=":",
        item_separator=",",
        sort_keys=True,
        skipkeys=False,
        allow_nan=True,
    )
    return made


_chunks: Final = _make_chunks()
_join: Final = "".join


def _encode(value: Any) -> str:
    return _join(_chunks(value, 0))


def _is_plain(value: Any) -> bool:
    """Whether JSON keeps all that distinguishes `value`: exact JSON types, text keys."""
    kind = type(value)
    if kind in _FLAT:
        return True
    if kind in _DICTS:
        return _is_plain_dict(value)
    return kind in _LISTS and all(map(_is_plain, value))


def _is_plain_dict(value: Mapping[Any, Any]) -> bool:
    for name, item in value.items():
        if type(name) is not str or (type(item) not in _FLAT and not _is_plain(item)):
            return False
    return True


def canonical(value: Any) -> str | None:
    """The text of `value` that no different value has; None when there is none."""
    if type(value) is MappingProxyType:
        value = value.copy()  # the encoder of C wants a dict
    try:
        if type(value) in _DICTS and _is_plain_dict(value):
            text = _join(_chunks(value, 0))
            return text if len(text) <= MAX_KEY_TEXT else f"#{_sha256(text)}"
        typed = _typed(value)
    except (RecursionError, ValueError):  # no end of it, or too many digits
        return None
    if typed is None:
        return None
    return f"~{typed}" if len(typed) <= MAX_KEY_TEXT else f"##{_sha256(typed)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- values that are not plain JSON -----------------------------------------------
def _typed(value: Any) -> str | None:
    kind = type(value)
    if kind in _FLAT:
        return _encode_scalar(value)
    write = _writers().get(kind)
    if write is not None:
        return write(value)
    return _enum(value)


def _encode_scalar(value: Any) -> str:
    # In a list: not every encoder of C takes a bare scalar.
    return _encode([value])[1:-1]


def _joined(values: Iterable[Any], opening: str, closing: str) -> str | None:
    texts: list[str] = []
    for value in values:
        text = _typed(value)
        if text is None:
            return None
        texts.append(text)
    if opening == "<":  # a set has no order
        texts.sort()
    return opening + ",".join(texts) + closing


def _mapping(value: Mapping[Any, Any]) -> str | None:
    pairs: list[tuple[str, str]] = []
    for name, item in value.items():
        key, text = _typed(name), _typed(item)
        if key is None or text is None:
            return None
        pairs.append((key, text))
    pairs.sort()
    return "{" + ",".join([f"{key}:{text}" for key, text in pairs]) + "}"


def _datetime(value: Any) -> str | None:
    zone = value.tzinfo
    name = "" if zone is None else _zone(zone)
    if name is None:
        return None
    return f"T({value.replace(tzinfo=None).isoformat()},{value.fold},{name})"


def _zone(zone: Any) -> str | None:
    from datetime import timezone

    if type(zone) is timezone:
        return _encode_scalar(repr(zone))
    key = getattr(zone, "key", None)  # zoneinfo.ZoneInfo
    if type(zone).__module__.partition(".")[0] == "zoneinfo" and type(key) is str:
        return _encode_scalar(f"zone {key}")
    return None


def _enum(value: Any) -> str | None:
    from enum import Enum, Flag

    kind = type(value)
    if not isinstance(value, Enum) or "<locals>" in kind.__qualname__:
        return None
    name = value.value if isinstance(value, Flag) else value.name
    text = _typed(name)
    where = _encode_scalar(f"{kind.__module__}.{kind.__qualname__}")
    return None if text is None else f"E({where},{text})"


def _named(mark: str) -> Callable[[Any], str]:
    return lambda value: f"{mark}({_encode_scalar(str(value))})"


@cache
def _writers() -> Mapping[type, Callable[[Any], str | None]]:
    """How each type is written; made at first use, as most calls need none of it."""
    from collections import OrderedDict, defaultdict
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from fractions import Fraction
    from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
    from uuid import UUID

    return {
        **dict.fromkeys(
            (dict, FrozenDict, OrderedDict, defaultdict, MappingProxyType), _mapping
        ),
        **dict.fromkeys((list, FrozenList), lambda v: _joined(v, "[", "]")),
        tuple: lambda v: _joined(v, "(", ")"),
        **dict.fromkeys((set, frozenset), lambda v: _joined(v, "<", ">")),
        **dict.fromkeys((bytes, bytearray), lambda v: f"b({v.hex()})"),
        complex: lambda v: f"j({v.real!r},{v.imag!r})",
        date: _named("d"),
        datetime: _datetime,
        time: lambda v: None if v.tzinfo else f"t({v.isoformat()},{v.fold})",
        timedelta: lambda v: f"P({v.days},{v.seconds},{v.microseconds})",
        Decimal: _named("D"),
        Fraction: _named("Q"),
        UUID: _named("U"),
        **{
            kind: _named(kind.__name__)
            for kind in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)
        },
    }


# --- keys -------------------------------------------------------------------------
def key_prefix(full_name: str, version: str) -> str:
    """The two lines of a key that are the same for all calls of a tool."""
    return f"{_encode_scalar(full_name)}\n{_encode_scalar(version)}\n"


def scope_of(context: _Owner | None) -> str:
    """Whose call it is, as a line without its end: tenant and user; empty without."""
    if context is None:
        return ""
    tenant, user = context.tenant_id, context.user_id
    return "" if tenant is None and user is None else _encode([tenant, user])


def cache_key(
    full_name: str, version: str, arguments: Mapping[str, Any], scope: str = ""
) -> str | None:
    """The key of a call's result; None when the arguments have no canonical form.

    Args:
        full_name: The tool, with its namespace.
        version: The tool's version: a new one shares nothing with the old.
        arguments: What the call says.
        scope: Whose call it is; see `scope_of`.
    """
    text = canonical(arguments)
    if text is None:
        return None
    return f"{key_prefix(full_name, version)}{scope}\n{text}"


def fingerprint(full_name: str, arguments: Mapping[str, Any]) -> str | None:
    """SHA-256 (hex) of a tool's name and arguments; None without canonical form."""
    text = canonical(arguments)
    return None if text is None else _sha256(f"{_encode_scalar(full_name)}\n{text}")


def idempotency_key(call: _Call) -> str | None:
    """SHA-256 of the tool's name and the arguments, 64 hex digits.

    The call's id does not enter. None when an argument has no canonical form. Worked
    out anew each time, as nothing that could change is remembered.
    """
    name = call.name
    if call.namespace != "default":
        name = f"{call.namespace}.{name}"
    return fingerprint(name, call.arguments)
