"""The values and protocols of the HTTP layer; nothing here does I/O."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from executionkit._redact import redact_url
from executionkit.types import freeze_mapping, sealed

__all__ = (
    "ConnectionCounts",
    "HttpRequest",
    "HttpResponse",
    "HttpStream",
    "HttpTimeouts",
    "HttpTransport",
)


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionCounts:
    """What a transport has done below HTTP since it was made, in all loops together."""

    dialed: int = 0
    """Connections that it began to open; all addresses of a name count as one."""

    failed: int = 0
    """Those of them that were refused, broke, or reached the `connect` limit. A retry
    that needs a connection again is one more of each."""

    resent: int = 0
    """Requests sent once more because the server had just closed a connection that was
    kept alive; no answer to them had begun."""


@sealed
@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """The three time limits of one request, in seconds. None = no such limit."""

    total: float | None = 120.0
    """From the call until the last byte of the body, however the bytes drip."""

    connect: float | None = 10.0
    """For name resolution, TCP and TLS together, when a connection must be opened."""

    idle: float | None = None
    """The longest silence between two bytes of the body, once the headers are there."""

    def __post_init__(self) -> None:
        for name in ("total", "connect", "idle"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                msg = f"`{name}` must be > 0 seconds, or None for no limit; got {value}"
                raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True, repr=False)
class HttpRequest:
    """One request.

    The transport adds `Host`, `Content-Length`, `Accept`, `Accept-Encoding` and
    `User-Agent`; the last three and `Host` can be given. Redirects are never followed.
    """

    method: str
    url: str
    """Absolute, `http` or `https`; credentials in it become a basic `Authorization`."""

    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    once: bool = False
    """Whether it must not be sent twice, not even when the server seems to have closed a
    connection that was kept alive: it goes over a new one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", freeze_mapping(self.headers))

    def __repr__(self) -> str:
        # Headers carry keys and bodies carry prompts: neither belongs in a log.
        return (
            f"HttpRequest({self.method} {redact_url(self.url)}, "
            f"{len(self.headers)} headers, {len(self.body)} bytes)"
        )


@sealed
@dataclass(frozen=True, slots=True, repr=False)
class HttpResponse:
    """A complete response; any status, redirects and errors included."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case; repeated headers joined with a comma."""

    body: bytes = b""
    """The whole body, decompressed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", freeze_mapping(self.headers))

    def __repr__(self) -> str:
        kind = self.headers.get("content-type", "")
        return f"HttpResponse({self.status}, {kind!r}, {len(self.body)} bytes)"


@runtime_checkable
class HttpStream(Protocol):
    """A response whose body is still to come.

    Close it in a `finally`: a stream that is neither read to its end nor closed holds
    its connection. A read that fails or is cancelled closes the stream; reading on
    after that is a `ProviderConnectionError`, never a silent end.
    """

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, decompressed, in pieces as they arrive; none is empty.

        Raises (while iterating):
            ProviderConnectionError: The connection broke before the body was complete.
            ProviderTimeoutError: The idle or the total limit was reached.
        """
        ...

    async def read(self, limit: int) -> bytes:
        """The rest of the body, at most `limit` bytes of it; then close."""
        ...

    async def aclose(self) -> None:
        """Abort the connection at once, unless the body is complete. Idempotent."""
        ...


@runtime_checkable
class HttpTransport(Protocol):
    """Sends requests. One object serves any number of event loops and threads.

    Every failure is a `ProviderConnectionError`, a `ProviderTimeoutError`, a
    `BadResponseError` (a body that is too large) or a `PermanentError` (a request that
    cannot be sent); statuses are never errors here.
    """

    @property
    def name(self) -> str:
        """Which implementation it is."""
        ...

    async def send(self, request: HttpRequest, timeouts: HttpTimeouts) -> HttpResponse:
        """Send `request` and read the whole response."""
        ...

    async def open_stream(
        self, request: HttpRequest, timeouts: HttpTimeouts
    ) -> HttpStream:
        """Send `request` and return as soon as the headers are there."""
        ...

    async def aclose(self) -> None:
        """Close the running loop's connections. Using it again opens new ones."""
        ...
