"""From what a server says went wrong to one error of the tree.

The status decides; an error object inside a 200 or a stream is read as the status it
stands for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from executionkit._constants import MAX_ERROR_DETAIL_CHARS
from executionkit._redact import redact
from executionkit._wire.loading import load_reply
from executionkit._wire.retry_hints import parse_duration, retry_hint
from executionkit.errors import (
    BadResponseError,
    LLMError,
    PermanentError,
    ProviderError,
    RateLimitError,
    StreamError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit._clock import Clock

__all__ = (
    "PERMANENT_STATUSES",
    "Failure",
    "excerpt",
    "failure_in",
    "failure_of_response",
    "refuse",
    "to_error",
    "to_reply_error",
    "to_stream_error",
)

PERMANENT_STATUSES: Final = frozenset(
    {
        *(400, 401, 402, 403, 404, 405, 410, 413, 414, 415, 422, 431, 501, 505),
        *range(300, 400),
    }
)
"""Statuses after which the same request fails again (redirects are not followed)."""

_RATE_LIMITED: Final = 429
_SERVER_ERROR: Final = 500
_UNPAID: Final = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "insufficient_credits",
        "account_deactivated",
    }
)
# The words for a kind of failure -> the status that it stands for.
_STATUS_OF_KIND: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "too_many_requests": 429,
    "resource_exhausted": 429,
    "server_error": 500,
    "api_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "bad_gateway": 502,
    "service_unavailable": 503,
    "unavailable": 503,
    "timeout": 504,
    "timeout_error": 504,
    "overloaded": 529,
    "overloaded_error": 529,
    "engine_overloaded": 529,
}
_PHRASES: Final[Mapping[int, str]] = {
    401: "not authenticated",
    403: "not allowed",
    404: "not found",
    408: "timeout",
    429: "rate limited",
    529: "server overloaded",
}
_STATUS: Final = re.compile(r"[345][0-9]{2}")
_MAX_CODE: Final = 1_000_000
_SCAN_CHARS: Final = 16 * MAX_ERROR_DETAIL_CHARS
_TITLE: Final = re.compile(r"<title[^<>]*>([^<]*)", re.IGNORECASE)
_TAG: Final = re.compile(r"<(?:script|style)\b[^<]*|<[^<>]*>", re.IGNORECASE)
_SPACE: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Failure:
    """What a server said about a failure, before it is an error."""

    detail: str = ""
    """Its words, not yet redacted or cut."""

    kind: str = ""
    """The error's `type`, in lower case."""

    code: str = ""
    """The error's `code`, in lower case."""

    status: int = 0
    """The HTTP status that was answered or is meant; 0 = it does not say."""

    retry_after: float | None = None
    """Seconds to wait, when the server says so."""

    request_id: str = ""

    @property
    def permanent(self) -> bool:
        """Whether the same request fails again."""
        return self.status in PERMANENT_STATUSES or not _UNPAID.isdisjoint(
            (self.code, self.kind)
        )


def excerpt(text: str, *, secrets: Sequence[str] = ()) -> str:
    """`text` on one line, redacted, cut to what fits an error message."""
    # The cut comes after the redaction: half a key would not be recognised.
    shown = redact(_SPACE.sub(" ", text[:_SCAN_CHARS]).strip(), secrets=secrets)
    if len(shown) <= MAX_ERROR_DETAIL_CHARS:
        return shown
    return shown[:MAX_ERROR_DETAIL_CHARS] + "..."


def _plain(text: str) -> str:
    """The readable text of a page, or the text itself when it is no page."""
    text = text[:_SCAN_CHARS].lstrip("\ufeff \t\r\n")
    if not text.startswith("<"):
        return text
    from html import unescape

    title = _TITLE.search(text)
    if title and title[1].strip():
        return unescape(title[1])
    return unescape(_TAG.sub(" ", text))


def _word(value: object) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < _MAX_CODE else ""
    return value.strip().lower() if isinstance(value, str) else ""


def _status_in(*values: object) -> int:
    for value in values:
        match = _STATUS.fullmatch(_word(value))
        if match:
            return int(match[0])
    return 0


def _dump(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return ""


def _words(error: Mapping[str, Any]) -> str:
    for key in ("message", "detail", "error", "msg"):
        value = error.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, (list, Mapping)) and value:
            return _dump(value)
    return ""


def _hint_in(error: Mapping[str, Any]) -> float | None:
    """Google's `RetryInfo`: it has no header for it."""
    details = error.get("details")
    for item in details if isinstance(details, list) else ():
        delay = item.get("retryDelay") if isinstance(item, Mapping) else None
        if isinstance(delay, str):
            return parse_duration(delay) or None
    return None


def failure_in(payload: object) -> Failure | None:
    """What the error object of a reply or a stream event says; None = there is none."""
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if not isinstance(payload, Mapping):
        return None
    error: object = payload.get("error")
    if not error and payload.get("object") == "error":
        error = payload
    if not error:
        return None
    if not isinstance(error, Mapping):
        kind = _word(error)
        kind = kind if kind in _STATUS_OF_KIND else _word(payload.get("type"))
        status = _status_in(payload.get("status"), payload.get("code"))
        words = error if isinstance(error, str) else _dump(error)
        return Failure(words, kind, "", status or _STATUS_OF_KIND.get(kind, 0))
    kind, code = _word(error.get("type")), _word(error.get("code"))
    word = _word(error.get("status"))
    status = (
        _status_in(code, word, kind)
        or _STATUS_OF_KIND.get(code, 0)
        or _STATUS_OF_KIND.get(kind, 0)
        or _STATUS_OF_KIND.get(word, 0)
    )
    return Failure(_words(error), kind or word, code, status, _hint_in(error))


def failure_of_response(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    clock: Clock | None = None,
) -> Failure:
    """What a response with a status outside 200-299 says.

    Args:
        status: The HTTP status.
        headers: Names in lower case.
        body: As received: JSON, a page, plain text, anything.
        clock: For dates in the headers. None = the current clock.
    """
    text = body[: 4 * _SCAN_CHARS].decode("utf-8", "replace")
    payload: object = None
    if text.lstrip("\ufeff \t\r\n")[:1] in {"{", "["}:
        try:
            payload = load_reply(body)
        except ValueError:
            payload = None
    inside = failure_in(payload)
    if inside is None:
        words = _words(payload) if isinstance(payload, Mapping) else ""
        inside = Failure(words or _plain(text))
    hint = retry_hint(headers, status=status, clock=clock)
    return Failure(
        inside.detail,
        inside.kind,
        inside.code,
        status,
        inside.retry_after if hint is None else hint,
        headers.get("x-request-id") or headers.get("request-id") or "",
    )


def _phrase(status: int) -> str:
    if status in _PHRASES:
        return _PHRASES[status]
    if status >= _SERVER_ERROR:
        return "server error"
    return "redirect" if status in range(300, 400) else "request refused"


def _message(failure: Failure, who: str, secrets: Sequence[str]) -> str:
    if failure.status:
        said = f"{who} HTTP {failure.status} ({_phrase(failure.status)})"
    else:
        said = f"{who} an error"
        if failure.kind:
            said += f" ({excerpt(failure.kind, secrets=secrets)})"
    detail = excerpt(failure.detail, secrets=secrets)
    return f"{said}: {detail}" if detail else said


def _facts(failure: Failure, secrets: Sequence[str]) -> dict[str, Any]:
    facts = {
        "status": failure.status,
        "type": excerpt(failure.kind, secrets=secrets),
        "code": excerpt(failure.code, secrets=secrets),
        "request_id": excerpt(failure.request_id, secrets=secrets),
    }
    return {key: value for key, value in facts.items() if value}


def to_error(
    failure: Failure,
    *,
    secrets: Sequence[str] = (),
    who: str = "The provider answered",
) -> LLMError:
    """The error to raise for `failure`.

    429 is `RateLimitError` unless money is what is missing; what cannot work next time
    is `PermanentError`, the rest `ProviderError`. `metadata` has the `status`, `type`,
    `code` and `request_id` that are known.

    Args:
        failure: What the server said.
        secrets: Texts that must not appear in the message.
        who: The beginning of the message.
    """
    message = _message(failure, who, secrets)
    facts = _facts(failure, secrets)
    if failure.permanent:
        return PermanentError(message, metadata=facts)
    hint = failure.retry_after
    if failure.status == _RATE_LIMITED:
        if hint is None:
            return RateLimitError(message, retry_after_known=False, metadata=facts)
        return RateLimitError(message, retry_after=hint, metadata=facts)
    error = ProviderError(message, metadata=facts)
    error.retry_after = hint
    return error


def to_reply_error(failure: Failure, *, secrets: Sequence[str] = ()) -> LLMError:
    """The error to raise for an error object inside a 200.

    The request was taken, and maybe billed. It is permanent unless the object names a
    failure that passes.
    """
    error = to_error(failure, secrets=secrets, who="The reply reported")
    if failure.status:
        return error
    return PermanentError(str(error), metadata=error.metadata)


def to_stream_error(
    failure: Failure, *, partial_text: str, started: bool, secrets: Sequence[str] = ()
) -> LLMError:
    """The error to raise for an error event of a stream.

    Before any content it is the same as the answer to a plain request, so that it can
    be retried unseen; an error of no known kind counts as one of the server then. After
    content it is a `StreamError`, or a `PermanentError` where retrying is no use.
    """
    error = to_error(failure, secrets=secrets, who="The stream reported")
    if isinstance(error, PermanentError) or (not started and failure.status):
        error.partial_text = partial_text
        return error
    broken = StreamError(str(error), partial_text=partial_text, metadata=error.metadata)
    broken.retry_after = failure.retry_after
    return broken


def refuse(what: str, text: str = "", *, secrets: Sequence[str] = ()) -> NoReturn:
    """Raise `BadResponseError` for an answer that is not what the API promises.

    Args:
        what: What is wrong with it.
        text: The answer; a short, redacted part of it is shown.
        secrets: Texts that must not appear in the message.
    """
    shown = excerpt(_plain(text), secrets=secrets)
    raise BadResponseError(f"{what}; received: {shown}" if shown else what)
