"""How a context is written to headers and read from them, W3C Trace Context included."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypedDict
from urllib.parse import quote, unquote_to_bytes

from executionkit._clock import get_clock
from executionkit.types import JsonValue

__all__ = (
    "MAX_BUDGET",
    "ContextFields",
    "ContextHeader",
    "decode",
    "encode",
    "in_seconds",
    "is_span_id",
    "is_traceparent",
    "is_tracestate",
    "now",
    "read_headers",
    "seconds_text",
    "version_00",
)

MAX_BUDGET: Final = 1e300
"""A budget above this is refused; it keeps the sum of two finite."""

_MAX_SECONDS: Final = 10 * 365 * 86_400.0
_MAX_HEADER_CHARS: Final = 8192
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# All visible ASCII but the percent sign, and the space.
_AS_IT_IS = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"

# W3C Trace Context: version-trace-parent-flags; a future version may say more.
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
    r"(?:-[\x21-\x7e]*)?"
)
_TRACEPARENT_CHARS = 55
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")
_STATE_KEY = r"(?:[a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_STATE_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_STATE_MEMBER = re.compile(f"({_STATE_KEY})=({_STATE_VALUE})")
_STATE_MEMBERS = 32


class ContextHeader(StrEnum):
    """The headers by which a context travels between services."""

    REQUEST_ID = "X-Request-ID"
    CORRELATION_ID = "X-Correlation-ID"
    USER_ID = "X-User-ID"
    TENANT_ID = "X-Tenant-ID"
    TRACEPARENT = "traceparent"
    TRACESTATE = "tracestate"
    DEADLINE_SECONDS = "X-Deadline-Seconds"
    """Seconds that remain; relative, so that the clocks need not agree."""

    BUDGET = "X-Budget"


class ContextFields(TypedDict, total=False):
    """The fields of an `ExecutionContext`, as keyword arguments."""

    request_id: str
    correlation_id: str | None
    user_id: str | None
    tenant_id: str | None
    traceparent: str | None
    tracestate: str | None
    span_id: str | None
    deadline: datetime | None
    budget: float | None
    metadata: Mapping[str, JsonValue]
    created_at: datetime


def now() -> datetime:
    """The wall time of the clock in use."""
    return datetime.fromtimestamp(get_clock().wall(), UTC)


def in_seconds(seconds: float) -> datetime:
    """The time `seconds` from now; at most ten years away."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        msg = f"`seconds` must be a number, got {seconds!r}"
        raise TypeError(msg)
    if not abs(seconds) <= _MAX_SECONDS:
        msg = f"`seconds` must be within 10 years, got {seconds!r}; None is no deadline"
        raise ValueError(msg)
    return now() + timedelta(seconds=seconds)


def is_span_id(value: str) -> bool:
    """Whether `value` is a span id of W3C Trace Context."""
    return _SPAN_ID.fullmatch(value) is not None


def is_traceparent(value: str) -> bool:
    """Whether `value` is a `traceparent` of W3C Trace Context, of any version."""
    if _TRACEPARENT.fullmatch(value) is None:
        return False
    return len(value) == _TRACEPARENT_CHARS or not value.startswith("00")


def version_00(traceparent: str, span_id: str | None = None) -> str:
    """`traceparent` in the version that we speak, as its specification asks."""
    version, trace, parent, flags = traceparent[:_TRACEPARENT_CHARS].split("-")
    if version != "00":
        flags = f"{int(flags, 16) & 3:02x}"
    return f"00-{trace}-{span_id or parent}-{flags}"


def is_tracestate(value: str) -> bool:
    """Whether `value` is a `tracestate` of W3C Trace Context."""
    members = [member.strip(" \t") for member in value.split(",", _STATE_MEMBERS + 1)]
    found = [_STATE_MEMBER.fullmatch(member) for member in members if member]
    keys = [match[1] for match in found if match is not None]
    return len(keys) == len(found) == len(set(keys)) <= _STATE_MEMBERS


# --- headers --------------------------------------------------------------------
def encode(value: str) -> str:
    """`value` in visible ASCII; percent-encoded where it is not."""
    text = quote(value.encode("utf-8", "surrogatepass"), safe=_AS_IT_IS)
    bare = text.strip(" ")  # the ends would be stripped on the way
    left = len(text) - len(text.lstrip(" "))
    return "%20" * left + bare + "%20" * (len(text) - left - len(bare))


def seconds_text(seconds: float) -> str:
    """Remaining seconds as a decimal; "0" means expired."""
    # Rounded down: a deadline never moves away on its way. But never to "0" while there
    # is time left.
    rounded = max(math.floor(seconds * 1000) / 1000, 0.001) if seconds > 0 else 0.0
    return f"{rounded:.3f}".rstrip("0").rstrip(".")


def _texts(headers: object) -> Iterator[tuple[str, str]]:
    pairs: object = headers.items() if isinstance(headers, Mapping) else headers
    for pair in pairs if isinstance(pairs, Iterable) else ():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            continue
        name, value = (
            part.decode("latin-1") if isinstance(part, bytes) else part for part in pair
        )
        if isinstance(value, (int, float)) and abs(value) < 1e18:
            value = repr(value)
        if isinstance(name, str) and isinstance(value, str):
            yield name.strip().lower(), value


def read_headers(headers: object) -> ContextFields:
    """The fields that can be read from `headers`; the rest is left out."""
    values: dict[str, str] = {}
    for name, value in _texts(headers):
        if len(value) <= _MAX_HEADER_CHARS:
            values.setdefault(name, _CONTROLS.sub("", value).strip())
    read: ContextFields = {}
    for header, key in (
        (ContextHeader.REQUEST_ID, "request_id"),
        (ContextHeader.CORRELATION_ID, "correlation_id"),
        (ContextHeader.USER_ID, "user_id"),
        (ContextHeader.TENANT_ID, "tenant_id"),
    ):
        text = decode(values.get(header.lower(), ""))
        if text:
            read[key] = text  # type: ignore[literal-required]  # the four names above
    traceparent = values.get(ContextHeader.TRACEPARENT, "")
    if is_traceparent(traceparent):
        read["traceparent"] = traceparent
        state = values.get(ContextHeader.TRACESTATE, "")
        if state and is_tracestate(state):
            read["tracestate"] = state
    seconds = _number(values.get(ContextHeader.DEADLINE_SECONDS.lower(), ""))
    if seconds is not None and seconds <= _MAX_SECONDS:
        read["deadline"] = in_seconds(max(0.0, seconds))
    budget = _number(values.get(ContextHeader.BUDGET.lower(), ""))
    if budget is not None and 0 <= budget <= MAX_BUDGET:
        read["budget"] = budget
    return read


def decode(text: str) -> str:
    """What `encode` has written; text that is not encoded stays as it is."""
    if "%" not in text:
        return text
    raw = unquote_to_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def _number(text: str) -> float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None
