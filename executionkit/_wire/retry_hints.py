"""How long a server asks to wait: every header form there is, as seconds.

Nothing is capped here: a hint is never replaced by something shorter. Who cannot wait
that long fails instead.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from executionkit._clock import get_clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executionkit._clock import Clock

__all__ = ("parse_duration", "parse_retry_after", "retry_hint")

_RATE_LIMITED: Final = 429
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(?:\d{1,12}(?:\.\d{1,12})?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m|h|d)")
_MAX_CHARS: Final = 100
# A plain number above this is a date in seconds, above the second one in milliseconds.
_EPOCH_SECONDS: Final = 1e9
_EPOCH_MILLISECONDS: Final = 1e12
_MS_HEADERS: Final = ("retry-after-ms", "x-ms-retry-after-ms")
_RESET_HEADERS: Final = (
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-reset",
)


def parse_duration(text: str) -> float | None:
    """Seconds of a duration such as `1s`, `6m0s`, `500ms`, `1h30m0s`; None = none."""
    text = text.strip().lower()
    if len(text) > _MAX_CHARS or not _DURATION.fullmatch(text):
        return None
    parts = _DURATION_PART.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _number(text: str) -> float | None:
    # Python also reads `1_000` and digits of other scripts, which no server means.
    if len(text) > _MAX_CHARS or "_" in text or not text.isascii():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(text: str, clock: Clock | None) -> float | None:
    """Seconds until an HTTP date; negative when it is past, None when it is none."""
    if len(text) > _MAX_CHARS:
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        stamp = when.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return stamp - (clock or get_clock()).wall()


def parse_retry_after(text: str, *, clock: Clock | None = None) -> float | None:
    """Seconds of a `Retry-After` value: a number, a duration, or an HTTP date.

    Args:
        text: The header's value.
        clock: Whose wall time dates are compared with. None = the current clock.

    Returns:
        The seconds, negative when the date is past; None when it is none of these.
    """
    number = _number(text)
    if number is not None:
        return number
    duration = parse_duration(text)
    return _seconds_until(text, clock) if duration is None else duration


def _reset(text: str, clock: Clock | None) -> float | None:
    """Seconds until a budget is full again: a duration, seconds, or a date."""
    number = _number(text)
    if number is None:
        return parse_duration(text)
    if number >= _EPOCH_MILLISECONDS:
        number /= 1000
    if number >= _EPOCH_SECONDS:
        return number - (clock or get_clock()).wall()
    return number


def _positive(seconds: float | None) -> float | None:
    return seconds if seconds is not None and seconds > 0 else None


def retry_hint(
    headers: Mapping[str, str],
    *,
    status: int = _RATE_LIMITED,
    clock: Clock | None = None,
) -> float | None:
    """Seconds that the server asks to wait before the next request.

    `retry-after-ms` is preferred over `Retry-After`, and both over the resets of the
    rate limits, of which the latest counts. Resets matter for status 429 only: other
    answers carry them too.

    Args:
        headers: The response's headers, names in lower case.
        status: The response's status.
        clock: Whose wall time dates are compared with. None = the current clock.

    Returns:
        A number above zero; None when there is no hint, or one that asks for nothing
        (`0`, negative, a past date, junk): the caller's own backoff applies then.
    """
    for name in _MS_HEADERS:
        number = _number(headers.get(name, ""))
        if number is not None:
            return _positive(number / 1000)
    said = headers.get("retry-after")
    if said is not None:
        seconds = parse_retry_after(said, clock=clock)
        if seconds is not None:
            return _positive(seconds)
    if status != _RATE_LIMITED:
        return None
    resets = [
        _reset(headers[name], clock) for name in _RESET_HEADERS if name in headers
    ]
    return _positive(max((item for item in resets if item is not None), default=None))
