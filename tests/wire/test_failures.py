"""What a server says went wrong becomes one error of the tree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._constants import MAX_ERROR_DETAIL_CHARS
from executionkit._wire.failures import (
    PERMANENT_STATUSES,
    Failure,
    failure_in,
    failure_of_response,
    to_error,
    to_reply_error,
    to_stream_error,
)
from executionkit.errors import (
    LLMError,
    PermanentError,
    ProviderError,
    RateLimitError,
    StreamError,
)

KEY = "tops3cret-value-17"


def error_for(
    status: int, body: object = b"", headers: dict[str, str] | None = None
) -> LLMError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    failure = failure_of_response(status, headers or {}, data)
    return to_error(failure, secrets=(KEY,))


@pytest.mark.req("D-12")
@pytest.mark.parametrize(
    "status",
    [
        *(400, 401, 402, 403, 404, 405, 410, 413, 414, 415, 422, 431, 501, 505),
        *(300, 301, 302, 303, 304, 307, 308),
    ],
)
def test_what_fails_again_is_permanent(status: int) -> None:
    """D-12: these are never sent again."""
    error = error_for(status, {"error": {"message": "no"}})
    assert type(error) is PermanentError
    assert not error.retryable
    assert f"HTTP {status}" in str(error)
    assert "no" in str(error)


@pytest.mark.req("D-12")
@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 504, 529, 418, 599])
def test_what_may_pass_is_retryable(status: int) -> None:
    error = error_for(status, {"error": "busy"})
    assert type(error) is ProviderError
    assert error.retryable
    assert f"HTTP {status}" in str(error)
    assert status not in PERMANENT_STATUSES


def test_a_server_error_says_so() -> None:
    assert "HTTP 500 (server error): boom" in str(
        error_for(500, {"error": {"message": "boom"}})
    )


@pytest.mark.req("D-12", "D-41")
def test_429_is_a_rate_limit_with_its_detail_and_hint() -> None:
    """D-41: the detail of a 429 is kept."""
    body = {"error": {"message": "30 rpm reached", "code": "rate_limit_exceeded"}}
    error = error_for(429, body, {"retry-after": "7", "x-request-id": "r-1"})
    assert isinstance(error, RateLimitError)
    assert error.retry_after == 7
    assert error.retry_after_known
    assert "30 rpm reached" in str(error)
    assert error.metadata == {
        "status": 429,
        "code": "rate_limit_exceeded",
        "request_id": "r-1",
    }


def test_429_without_a_hint_says_that_the_wait_is_a_guess() -> None:
    error = error_for(429)
    assert isinstance(error, RateLimitError)
    assert error.retry_after == 1.0
    assert not error.retry_after_known


@pytest.mark.req("D-12")
@pytest.mark.parametrize(
    "error_object",
    [
        {"message": "pay", "code": "insufficient_quota"},
        {"message": "pay", "type": "insufficient_quota"},
        {"message": "pay", "code": "billing_hard_limit_reached"},
    ],
)
def test_429_for_want_of_money_is_permanent(error_object: dict[str, Any]) -> None:
    """D-12: waiting does not fill an account."""
    assert type(error_for(429, {"error": error_object})) is PermanentError


@pytest.mark.req("D-11")
@pytest.mark.parametrize("status", [503, 529, 500])
def test_a_hint_counts_on_server_errors_too(status: int) -> None:
    """D-11: 503 with Retry-After."""
    assert error_for(status, b"", {"retry-after": "7"}).retry_after == 7
    assert error_for(status).retry_after is None


def test_googles_hint_in_the_body_counts() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo"}]
    details += [{"retryDelay": "34s"}]
    body = [{"error": {"code": 429, "message": "slow down", "details": details}}]
    error = error_for(429, body)
    assert error.retry_after == 34
    assert "slow down" in str(error)


@pytest.mark.req("D-41")
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ({"detail": "no such field"}, "no such field"),
        ({"message": "bad", "object": "error"}, "bad"),
        ({"error": {"message": ""}}, ""),
        (b"plain words", "plain words"),
        (b"\xff\xfe", ""),
        (b"{broken", "{broken"),
    ],
)
def test_the_detail_of_a_422_is_kept(body: object, shown: str) -> None:
    """D-41: also in the forms of other servers."""
    assert shown in str(error_for(422, body))


@pytest.mark.req("HT-07")
@pytest.mark.parametrize("status", [502, 503])
def test_an_html_page_is_cut_to_its_title(status: int) -> None:
    """HT-07: 120 kB of page."""
    page = b"<html><head><title>502 Bad &amp; Gateway</title></head><body>"
    page += b"<p>x</p>" * 15_000
    error = error_for(status, page, {"content-type": "text/html"})
    assert isinstance(error, ProviderError)
    assert f"HTTP {status}" in str(error)
    assert "502 Bad & Gateway" in str(error)
    assert len(str(error)) < MAX_ERROR_DETAIL_CHARS + 100


@pytest.mark.req("HT-07")
def test_an_html_page_without_a_title_is_cut_to_some_text() -> None:
    page = b"<div><style>p{}</style>" + b"<p>sorry, try later</p>" * 10_000
    error = error_for(502, page)
    assert "sorry, try later" in str(error)
    assert "<p>" not in str(error)
    assert len(str(error)) < MAX_ERROR_DETAIL_CHARS + 100


@pytest.mark.req("OB-04", "D-22")
def test_the_detail_is_redacted_before_it_is_cut() -> None:
    """OB-04: the key by its value, also where the cut would go through it."""
    for before in range(MAX_ERROR_DETAIL_CHARS - 30, MAX_ERROR_DETAIL_CHARS + 5):
        error = error_for(401, {"error": {"message": "x" * before + KEY}})
        assert KEY[:8] not in str(error)
    echo = {"error": {"message": "no", "type": f"bad {KEY}", "code": KEY}}
    error = error_for(400, echo, {"x-request-id": KEY})
    assert KEY not in repr(error) + repr(error.metadata)


@pytest.mark.req("D-12")
@pytest.mark.parametrize(
    ("error_object", "kind"),
    [
        ({"message": "m", "type": "overloaded_error"}, ProviderError),
        ({"message": "m", "type": "server_error"}, ProviderError),
        ({"message": "m", "type": "rate_limit_error"}, RateLimitError),
        ({"message": "m", "code": 429}, RateLimitError),
        ({"message": "m", "code": "502"}, ProviderError),
        ({"message": "m", "status": "UNAVAILABLE"}, ProviderError),
        ({"message": "m", "type": "invalid_request_error"}, PermanentError),
        ({"message": "m", "type": "never heard of"}, PermanentError),
        ({"message": "m"}, PermanentError),
        ("just words", PermanentError),
        ({"code": 10**30}, PermanentError),
    ],
)
def test_an_error_in_a_200_is_permanent_unless_it_passes(
    error_object: object, kind: type[LLMError]
) -> None:
    """D-12: a 200 with an error body is not sent again four times."""
    failure = failure_in({"error": error_object})
    assert failure is not None
    assert type(to_reply_error(failure)) is kind


@pytest.mark.parametrize(
    "payload",
    [None, 3, "error", [], {}, {"error": None}, {"error": {}}, {"error": ""}],
)
def test_no_error_is_seen_where_there_is_none(payload: object) -> None:
    assert failure_in(payload) is None


@pytest.mark.req("ST-11", "ST-12")
def test_a_stream_error_is_retryable_and_tells_what_had_come() -> None:
    """ST-12 before content: as the plain answer. ST-11 after it: a `StreamError`."""
    busy = Failure("busy", "overloaded_error", status=529)
    first = to_stream_error(busy, partial_text="", started=False)
    assert type(first) is ProviderError
    assert first.retryable
    later = to_stream_error(busy, partial_text="so far", started=True)
    assert type(later) is StreamError
    assert later.partial_text == "so far"
    assert "busy" in str(later)
    unknown = to_stream_error(Failure("?"), partial_text="", started=False)
    assert type(unknown) is StreamError
    limit = Failure("slow", "rate_limit_error", status=429, retry_after=3)
    assert to_stream_error(limit, partial_text="", started=False).retry_after == 3
    assert to_stream_error(limit, partial_text="a", started=True).retry_after == 3


@pytest.mark.req("ST-11")
def test_a_permanent_stream_error_stays_permanent() -> None:
    failure = Failure("bad", "invalid_request_error", status=400)
    error = to_stream_error(failure, partial_text="so far", started=True)
    assert type(error) is PermanentError
    assert error.partial_text == "so far"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "type", "code", "status", "detail", "details"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@pytest.mark.req("provider.total")
@given(st.integers(100, 999), JSON, st.binary(max_size=60))
def test_any_error_body_becomes_one_error(
    status: int, value: object, junk: bytes
) -> None:
    for body in (
        json.dumps({"error": value}).encode(),
        json.dumps(value).encode(),
        junk,
    ):
        error = to_error(failure_of_response(status, {}, body), secrets=(KEY,))
        assert f"HTTP {status}" in str(error)
        assert len(str(error)) < MAX_ERROR_DETAIL_CHARS + 100
