"""How long a server asks to wait, in every form that servers use."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given, strategies as st

from executionkit._wire.retry_hints import (
    parse_duration,
    parse_retry_after,
    retry_hint,
)
from executionkit.testing import FakeClock

NOW = 1.7e9
CLOCK = FakeClock(wall=NOW)


@pytest.mark.req("HT-02", "HT-03")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("75", 75.0),
        ("86400", 86400.0),
        ("0.25", 0.25),
        (" 3 ", 3.0),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        ("Tue, 14 Nov 2023 22:13:50 -0000", 30.0),
        ("2s", 2.0),
    ],
)
def test_retry_after_is_read_as_seconds_and_never_shortened(
    value: str, seconds: float
) -> None:
    """HT-02, HT-03: numbers, dates against an injected clock, durations."""
    assert retry_hint({"retry-after": value}, clock=CLOCK) == pytest.approx(seconds)


@pytest.mark.req("HT-03")
@pytest.mark.parametrize(
    "value",
    [
        *("0", "-1", "nan", "inf", "-inf", "soon", "", "1e999", "9" * 5000),
        *("1_000", "\u0663", "\u0663s", "1\u0660m"),
        formatdate(NOW - 30, usegmt=True),
        "Tue, 99 Nov 2023 22:13:50 GMT",
        "Tue, 14 Nov 99999999999 22:13:50 GMT",
    ],
)
def test_a_hint_that_asks_for_nothing_leaves_the_backoff_alone(value: str) -> None:
    """HT-03: zero, negative, past, not finite, junk."""
    assert retry_hint({"retry-after": value}, clock=CLOCK) is None


@pytest.mark.req("HT-04")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("6m0s", 360), ("500ms", 0.5), ("1h30m0s", 5400), ("2m59.56s", 179.56)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """HT-04: Go's way to write a duration."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.req("HT-04")
def test_the_later_of_two_exhausted_budgets_counts() -> None:
    """HT-04: requests in one second, tokens in six minutes."""
    headers = {
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert retry_hint(headers) == 360
    assert retry_hint({**headers, "retry-after": "5"}) == 5
    assert retry_hint({**headers, "retry-after": "junk"}) == 360
    assert retry_hint(headers, status=503) is None


@pytest.mark.req("HT-04")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [("12", 12.0), (str(NOW + 7), 7.0), (str((NOW + 7) * 1000), 7.0), ("x", None)],
)
def test_a_reset_may_be_seconds_or_a_date(value: str, seconds: float | None) -> None:
    hint = retry_hint({"x-ratelimit-reset": value}, clock=CLOCK)
    assert hint == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.req("HT-04")
def test_milliseconds_win_over_seconds() -> None:
    assert retry_hint({"retry-after-ms": "250", "retry-after": "1"}) == 0.25
    assert retry_hint({"retry-after-ms": "x", "retry-after": "1"}) == 1
    assert retry_hint({"retry-after-ms": "0", "retry-after": "1"}) is None


def test_the_current_clock_is_used_without_one(fake_clock: FakeClock) -> None:
    later = formatdate(fake_clock.wall() + 12, usegmt=True)
    assert parse_retry_after(later) == pytest.approx(12)


@pytest.mark.req("HT-03")
@given(st.text(max_size=200), st.sampled_from(["retry-after", "x-ratelimit-reset"]))
def test_no_header_breaks_the_parser(value: str, name: str) -> None:
    """HT-03: never an exception, never a wait that is not a positive number."""
    hint = retry_hint({name: value, "retry-after-ms": ""}, clock=CLOCK)
    assert hint is None or 0 < hint < float("inf")
