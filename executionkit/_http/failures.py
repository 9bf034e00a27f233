"""Whatever goes wrong in any backend, said in the library's own errors.

The backends' exceptions carry requests, headers and URLs, so none of them is chained:
a cause that is made here keeps the type's name, the error number and a redacted text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executionkit._http.limits import Limit, LimitReachedError
from executionkit._redact import redact
from executionkit.errors import (
    BadResponseError,
    LLMError,
    ProviderConnectionError,
    ProviderTimeoutError,
)

if TYPE_CHECKING:
    from executionkit._http.prepare import Call

__all__ = ("BodyTooLargeError", "WireError", "closed", "explain")

_MAX_CHAIN = 8
_MAX_DETAIL = 300


class WireError(Exception):
    """The bytes of the server break HTTP, or end too early; never leaves this package.

    Its text is fixed: it quotes nothing that the server sent.
    """


class BodyTooLargeError(Exception):
    """The body is larger than the cap; never leaves this package."""

    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.cap = cap


def explain(exc: Exception, call: Call) -> LLMError:
    """The error that the caller gets for `exc`.

    Args:
        exc: What the backend, or this package, raised.
        call: The request it happened to.
    """
    if isinstance(exc, LLMError):
        return exc
    if isinstance(exc, LimitReachedError):
        return _timeout(exc.which, call)
    # Ours only if our scope has ended: the system has a `TimeoutError` of its own.
    if isinstance(exc, TimeoutError) and call.scope.expired():
        return closed(call) if call.aborted else _timeout("total", call)
    if isinstance(exc, BodyTooLargeError):
        return BadResponseError(
            f"the body that `{call.shown_url}` sent is larger than {exc.cap} bytes, "
            "the cap for one response"
        )
    if isinstance(exc, WireError):
        return ProviderConnectionError(f"`{call.shown_url}`: {exc}")
    return _connection(exc, call)


def closed(call: Call) -> ProviderConnectionError:
    """The error of a request whose transport was closed under it."""
    return ProviderConnectionError(
        f"connection to `{call.shown_url}` failed: the transport was closed meanwhile"
    )


def _timeout(which: Limit, call: Call) -> ProviderTimeoutError:
    seconds = getattr(call.timeouts, which)
    what = {
        "connect": "no connection could be opened",
        "idle": "the server went silent inside the body",
        "total": "the response was not complete",
    }[which]
    return ProviderTimeoutError(
        f"`{call.shown_url}`: {what} within {seconds:g} s, the `{which}` limit; "
        f"raise `{which}` of `HttpTimeouts` if that is too short",
        metadata={"limit": which, "seconds": seconds},
    )


def _connection(exc: Exception, call: Call) -> ProviderConnectionError:
    deepest = _operating_system_error(exc)
    shown = exc if deepest is None else deepest
    name = type(shown).__name__
    text = redact(str(shown), secrets=call.secrets()).strip()[:_MAX_DETAIL]
    detail = f"{name}: {text}" if text else name
    error = ProviderConnectionError(
        f"connection to `{call.shown_url}` failed: {detail}",
        metadata={"cause": type(exc).__name__},
    )
    error.__cause__ = _twin(exc, deepest, detail)
    return error


def _operating_system_error(exc: BaseException) -> OSError | None:
    """The innermost error of the system, which says more than what wraps it."""
    found: OSError | None = None
    current: BaseException | None = exc
    for _ in range(_MAX_CHAIN):
        if current is None:
            break
        if isinstance(current, OSError) and isinstance(current.errno, int):
            found = current
        # Not `__context__`: the caller may be handling an error of its own.
        current = current.__cause__
    return found


def _twin(exc: Exception, deepest: OSError | None, detail: str) -> Exception:
    """A cause without any object of the request in it."""
    if deepest is not None and type(deepest).__module__ in {"builtins", "socket"}:
        return type(deepest)(deepest.errno, detail)
    return ConnectionError(f"{type(exc).__module__}.{detail}")
