"""Where a server is, and how it is talked to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from executionkit._frozen import freeze_mapping, sealed

__all__ = (
    "HttpServer",
    "MCPOptions",
    "SseServer",
    "StdioServer",
    "Token",
    "read_server",
)

Token: TypeAlias = str | Callable[[], Awaitable[str]]
"""A bearer token, or what gives the one that is valid now."""

_MEBIBYTE: Final = 1024 * 1024


@sealed
@dataclass(frozen=True, slots=True)
class StdioServer:
    """A program that is started and spoken to over its standard input and output."""

    command: str
    """The program: a path, or a name that `PATH` finds."""

    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    """Added to the few variables that it gets anyway: `HOME`, `PATH`, `USER`, ..."""

    cwd: str | None = None
    """Where it runs. None = here."""

    def __post_init__(self) -> None:
        given: Any = self.args
        if isinstance(given, (str, bytes)) or not all(
            isinstance(item, str) for item in given
        ):
            msg = f"`args` must be a list of str, one for each argument; got {given!r}"
            raise TypeError(msg)
        object.__setattr__(self, "args", tuple(given))
        if self.env is not None:
            object.__setattr__(self, "env", freeze_mapping(self.env))


@sealed
@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server behind a URL (streamable HTTP)."""

    url: str
    headers: Mapping[str, str] = field(default_factory=freeze_mapping, repr=False)
    """Sent with each request."""

    token: Token | None = field(default=None, repr=False)
    """A bearer token, or an async function that gives it. The function is asked once,
    and again, once for a request, when the server answers 401."""

    auth: Any = field(default=None, repr=False)
    """An `httpx2.Auth`, such as the SDK's `OAuthClientProvider`."""

    def __post_init__(self) -> None:
        _check_address(self)
        object.__setattr__(self, "headers", freeze_mapping(self.headers))


@sealed
@dataclass(frozen=True, slots=True)
class SseServer:
    """A server behind a URL that speaks the old transport of HTTP with SSE."""

    url: str
    headers: Mapping[str, str] = field(default_factory=freeze_mapping, repr=False)
    token: Token | None = field(default=None, repr=False)
    """As `HttpServer` says."""

    auth: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_address(self)
        object.__setattr__(self, "headers", freeze_mapping(self.headers))


def _check_address(server: HttpServer | SseServer) -> None:
    if not server.url.startswith(("http://", "https://")):
        msg = f"`url` must begin with http:// or https://, got {server.url[:80]!r}"
        raise ValueError(msg)
    token: Any = server.token
    if token is not None and not isinstance(token, str) and not callable(token):
        msg = f"`token` must be a str or an async function, got {type(token).__name__}"
        raise TypeError(msg)
    if token is not None and server.auth is not None:
        msg = "give `token` or `auth`, not both: each of them sets the same header"
        raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class MCPOptions:
    """How a connection behaves; all durations are seconds."""

    timeout: float | None = 30.0
    """How long a call may go without an answer or a sign of progress. None = no limit."""

    max_total: float | None = 600.0
    """How long a call may take, whatever progress it reports. None = no limit."""

    connect_timeout: float = 30.0
    """Start, handshake and the list of tools together."""

    close_timeout: float = 5.0
    """How long closing may take before the server is killed or left."""

    mode: str = "auto"
    """`"auto"` asks for the newest protocol and falls back to the handshake of older
    ones, `"legacy"` shakes hands at once, a version without handshake pins it."""

    send_context: bool = True
    """Whether the ids, trace, deadline and budget of the current `ExecutionContext` go
    along with each call."""

    trust_hints: bool = True
    """Whether tools are taken for read-only or idempotent when the server says so. Such
    calls may be cached, repeated, and sent again after a lost connection."""

    max_message_bytes: int = 64 * _MEBIBYTE
    """The longest message that is read; a longer one ends the connection."""

    client: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of the SDK's `Client`: `elicitation_callback`,
    `sampling_callback`, `logging_callback`, `client_info`, ..."""

    def __post_init__(self) -> None:
        for name in ("timeout", "max_total"):
            value: Any = getattr(self, name)
            if value is not None:
                _check_seconds(name, value)
        _check_seconds("connect_timeout", self.connect_timeout)
        _check_seconds("close_timeout", self.close_timeout)
        if type(self.max_message_bytes) is not int or self.max_message_bytes < 1:
            msg = f"`max_message_bytes` must be an int >= 1, got {self.max_message_bytes!r}"
            raise ValueError(msg)
        own = {"server", "mode", "cache", "message_handler"} & set(self.client)
        if own:
            msg = f"`client` may not set {', '.join(sorted(own))}: the connection does"
            raise ValueError(msg)


def _check_seconds(name: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        msg = f"`{name}` must be seconds > 0, got {value!r}"
        raise ValueError(msg)


def read_server(
    server: Any, headers: Mapping[str, str] | None, token: Token | None
) -> Any:
    """What a user gave as a server, in its normal form; a server object as it is.

    Raises:
        TypeError: When it is no server, or is none that takes headers and a token.
    """
    if isinstance(server, str):
        return HttpServer(server, headers or {}, token)
    if headers is not None or token is not None:
        msg = (
            "`headers` and `token` belong to a URL; for others say them in "
            f"`HttpServer(...)` or `SseServer(...)`, got {type(server).__name__}"
        )
        raise TypeError(msg)
    if server is None or isinstance(server, (bytes, int, float, list, tuple, dict)):
        msg = (
            "`server` must be a URL, `StdioServer(command, args)`, `SseServer(url)`, "
            f"or a server object of the SDK, got {type(server).__name__}"
        )
        raise TypeError(msg)
    return server
