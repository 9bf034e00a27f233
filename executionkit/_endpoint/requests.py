"""One address of a model API: headers, limits and errors of the requests there."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from executionkit._arguments import shown
from executionkit._constants import MAX_RESPONSE_BYTES
from executionkit._http import (
    TRANSPORTS,
    ConnectionCounts,
    HttpRequest,
    HttpTimeouts,
    open_transport,
)
from executionkit._redact import redact
from executionkit._wire.failures import failure_of_response, to_error
from executionkit._wire.urls import Target, target_of
from executionkit.context import remaining_deadline
from executionkit.errors import (
    DeadlineExceededError,
    ExecutionKitError,
    LLMError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
)
from executionkit.observability import trace_headers
from executionkit.types import FrozenDict

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from executionkit._http import HttpStream, HttpTransport

__all__ = ("Endpoint", "Options", "make_endpoint")

_T = TypeVar("_T")
_EndpointT = TypeVar("_EndpointT", bound="Endpoint")
_SECRET_HEADERS: Final = ("auth", "key", "token", "secret", "cookie", "password")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_MIN_SECRET_CHARS: Final = 4
# The limit that a transport names -> the provider's setting of it.
_SETTINGS: Final = {
    "total": "timeout",
    "idle": "idle_timeout",
    "connect": "connect_timeout",
}


def _merge(defaults: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Both; `extra` wins, whatever the case of a name."""
    new = {str(name).lower() for name in extra}
    merged = {k: v for k, v in defaults.items() if k.lower() not in new}
    merged.update(extra)
    given: dict[Any, Any] = merged  # by users
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            msg = f"the header {name!r} must be a text, got {type(value).__name__}"
            raise TypeError(msg)
        if not value.isascii() or not value.isprintable():
            msg = f"the value of the header `{name}` has characters that cannot be sent"
            raise ValueError(msg)
        if not _HEADER_NAME.fullmatch(name):
            msg = f"{name!r} cannot be the name of a header"
            raise ValueError(msg)
    return merged


def _secret_values(headers: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for name, value in headers.items():
        if any(word in name.lower() for word in _SECRET_HEADERS):
            found += [value, value.rpartition(" ")[2]]
    return found


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _check_seconds(name: str, value: Any) -> None:
    if value is None:
        return
    if not _is_number(value, int, float):
        msg = (
            f"`{name}` must be a number of seconds, or None for no limit; got "
            f"{shown(value)}"
        )
        raise TypeError(msg)
    if not value > 0:
        msg = f"`{name}` must be > 0 seconds, or None for no limit; got {value}"
        raise ValueError(msg)


def _check_transport(given: object) -> None:
    names = ", ".join(f"`{name}`" for name in TRANSPORTS)
    if isinstance(given, str):
        if given not in TRANSPORTS:
            msg = f"`transport` must be one of {names}, or None; got {given!r}"
            raise ValueError(msg)
    elif given is not None and not callable(getattr(given, "send", None)):
        msg = (
            f"`transport` must be one of {names}, a transport object, or None; got "
            f"{shown(given)}"
        )
        raise TypeError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a provider that concern its connection."""

    timeout: float | None
    idle_timeout: float | None
    connect_timeout: float | None
    transport: HttpTransport | str | None
    headers: Mapping[str, str]
    max_connections: int

    def __post_init__(self) -> None:
        for name in ("timeout", "idle_timeout", "connect_timeout"):
            _check_seconds(name, getattr(self, name))
        _check_transport(self.transport)
        if not _is_number(self.max_connections, int):
            msg = (
                "`max_connections` must be an int, got "
                f"{type(self.max_connections).__name__}"
            )
            raise TypeError(msg)
        if self.max_connections < 1:
            msg = f"`max_connections` must be >= 1, got {self.max_connections}"
            raise ValueError(msg)


@overload
def make_endpoint(
    base_url: str, path: str, key_header: Mapping[str, str], options: Options
) -> Endpoint: ...
@overload
def make_endpoint(
    base_url: str,
    path: str,
    key_header: Mapping[str, str],
    options: Options,
    kind: type[_EndpointT],
) -> _EndpointT: ...
def make_endpoint(
    base_url: str,
    path: str,
    key_header: Mapping[str, str],
    options: Options,
    kind: type[Endpoint] | None = None,
) -> Endpoint:
    """The endpoint of `path` under `base_url`.

    Args:
        base_url: See `target_of`.
        path: Begins with a slash.
        key_header: The headers of the API itself, with the key if there is one. A name
            and password in the URL stand in for a key.
        options: The rest.
        kind: The class of the endpoint. None = `Endpoint`.

    Raises:
        ValueError: When a setting cannot be used; no secret is shown.
    """
    target = target_of(base_url, path)
    defaults = {"Content-Type": "application/json"}
    if target.authorization:
        defaults["Authorization"] = target.authorization
    headers = _merge(_merge(defaults, key_header), options.headers)
    timeouts = HttpTimeouts(
        options.timeout, options.connect_timeout, options.idle_timeout
    )
    return (kind or Endpoint)(
        target,
        headers,
        timeouts=timeouts,
        transport=options.transport,
        max_connections=options.max_connections,
    )


class Endpoint:
    """Where requests of one provider go, with all that is the same for each.

    Args:
        target: The address.
        headers: Sent with every request.
        timeouts: For every request; the context's deadline shortens the total.
        transport: A transport (closed by its owner), its name, or None for the best one
            installed.
        max_connections: Requests in flight at once, per event loop.
    """

    __slots__ = (
        "_given",
        "_headers",
        "_lock",
        "_max_connections",
        "_name",
        "_opened",
        "_stream_headers",
        "_timeouts",
        "secrets",
        "url",
    )

    def __init__(
        self,
        target: Target,
        headers: Mapping[str, str],
        *,
        timeouts: HttpTimeouts,
        transport: HttpTransport | str | None,
        max_connections: int,
    ) -> None:
        self.url: str = target.url
        secrets = (*target.secrets, *_secret_values(headers))
        self.secrets: tuple[str, ...] = tuple(
            dict.fromkeys(item for item in secrets if len(item) >= _MIN_SECRET_CHARS)
        )
        self._headers = FrozenDict(headers)
        self._stream_headers = FrozenDict({"Accept": "text/event-stream", **headers})
        self._timeouts = timeouts
        self._name = transport if isinstance(transport, str) else None
        self._given = None if isinstance(transport, str) else transport
        self._opened: HttpTransport | None = None
        self._max_connections = max_connections
        self._lock = threading.Lock()

    async def post(self, body: bytes) -> bytes:
        """Send `body`; the body of the answer, when its status is 200-299.

        Raises:
            LLMError: Any other status, or no answer.
            DeadlineExceededError: The context's deadline leaves no time.
        """
        timeouts = self._limits()
        request = self._request(body, self._headers)
        response = await self._guard(
            self._transport().send(request, timeouts), timeouts
        )
        if 200 <= response.status < 300:
            return response.body
        failure = failure_of_response(response.status, response.headers, response.body)
        raise to_error(failure, secrets=self.secrets)

    async def open(self, body: bytes) -> tuple[HttpStream, HttpTimeouts]:
        """Send `body`; the answer while it comes, when its status is 200-299.

        Raises:
            LLMError: Any other status, or no answer.
            DeadlineExceededError: The context's deadline leaves no time.
        """
        timeouts = self._limits()
        request = self._request(body, self._stream_headers)
        stream = await self._guard(
            self._transport().open_stream(request, timeouts), timeouts
        )
        if 200 <= stream.status < 300:
            return stream, timeouts
        try:
            said = await self._guard(stream.read(MAX_RESPONSE_BYTES), timeouts)
        except LLMError:
            said = b""  # the status says enough
        finally:
            await stream.aclose()
        failure = failure_of_response(stream.status, stream.headers, said)
        raise to_error(failure, secrets=self.secrets)

    async def aclose(self) -> None:
        """Close the running loop's connections; using it again opens new ones."""
        opened = self._opened
        if opened is not None:
            await opened.aclose()

    @property
    def connection_counts(self) -> ConnectionCounts:
        """See `ConnectionCounts`; zeros for a transport that does not count."""
        used = self._given or self._opened
        counts: object = getattr(used, "connection_counts", None)
        return counts if isinstance(counts, ConnectionCounts) else ConnectionCounts()

    def _transport(self) -> HttpTransport:
        if self._given is not None:
            return self._given
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = open_transport(
                        self._name, max_connections=self._max_connections
                    )
        return self._opened

    def _limits(self) -> HttpTimeouts:
        left = remaining_deadline()
        timeouts = self._timeouts
        if left is None or (timeouts.total is not None and timeouts.total <= left):
            return timeouts
        if left <= 0:
            msg = "the deadline of the context has passed; the request was not sent"
            raise DeadlineExceededError(msg)
        return replace(timeouts, total=left)

    def _request(self, body: bytes, headers: Mapping[str, str]) -> HttpRequest:
        traced = trace_headers()
        if traced:
            headers = FrozenDict(dict(headers) | traced)
        return HttpRequest("POST", self.url, headers, body)

    async def _guard(self, work: Awaitable[_T], timeouts: HttpTimeouts) -> _T:
        try:
            return await work
        except (ProviderConnectionError, ProviderTimeoutError) as exc:
            failure = self.explain(exc, timeouts)
        # Outside of the handler: the first error would only repeat the second.
        raise failure

    def _is_deadline(self, timeouts: HttpTimeouts) -> bool:
        """Whether the total limit is what the context's deadline left."""
        return timeouts is not self._timeouts

    def explain(
        self, error: ProviderError, timeouts: HttpTimeouts
    ) -> ExecutionKitError:
        """A transport's failure in the words of the provider and its settings."""
        limit = str(error.metadata.get("limit"))
        said = redact(str(error), secrets=self.secrets)
        if not isinstance(error, ProviderTimeoutError) or limit not in _SETTINGS:
            error.args = (f"Transport failure: {said}",)
            return error
        said = said.partition("; raise")[0]
        if limit == "total" and self._is_deadline(timeouts):
            said += "; the deadline of the context set it"
            return DeadlineExceededError(said, metadata=error.metadata)
        return ProviderTimeoutError(
            f"Transport failure: {said}; raise `{_SETTINGS[limit]}` of the provider if "
            "that is too short",
            metadata={**error.metadata, "setting": _SETTINGS[limit]},
        )
