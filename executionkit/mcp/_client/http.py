"""A server behind a URL: headers, tokens, and what went wrong with which request."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit._clock import get_clock
from executionkit._redact import redact_exception_text
from executionkit.context import get_current_context
from executionkit.errors import require
from executionkit.mcp._client.results import mend_result
from executionkit.mcp._client.servers import SseServer
from executionkit.mcp._client.watch import CURRENT, Watch
from executionkit.observability import trace_headers

if TYPE_CHECKING:
    from executionkit.mcp._client.servers import HttpServer, MCPOptions

__all__ = ("HttpWire",)

SESSION_HEADER: Final = "mcp-session-id"
_UNAUTHORIZED: Final = 401
_MAX_WAIT: Final = 86_400.0
_log = logging.getLogger("executionkit")


class HttpWire:
    """The requests to one server; what the SDK calls a transport.

    Args:
        server: Where it is.
        options: Limits.
        on_lost: Called once, with the reason, when the stream of messages has ended.
    """

    is_http: Final = True

    def __init__(
        self,
        server: HttpServer | SseServer,
        options: MCPOptions,
        on_lost: Callable[[str], None],
    ) -> None:
        self.server: HttpServer | SseServer = server
        self.options: MCPOptions = options
        self._on_lost = on_lost
        self._is_sse = isinstance(server, SseServer)
        self._is_closing = False
        self._inner: Any = None
        self._client: Any = None
        self._tokens = _Tokens(server.token)
        self.trouble: str = ""
        """What last kept a request from being answered."""
        self.spoilt: dict[str, str] = {}
        """Tools that the last list had and that cannot be read, and why."""

    @property
    def target(self) -> Any:
        """What the SDK's client takes."""
        return self

    @property
    def stderr(self) -> str:
        """Nothing: the server runs elsewhere."""
        return ""

    @property
    def pid(self) -> int | None:
        """None: the server runs elsewhere."""
        return None

    def describe(self) -> str:
        """What is known of how the connection ended."""
        return self.trouble

    async def __aenter__(self) -> tuple[_Tap, Any]:
        server, limit = self.server, self.options.connect_timeout
        httpx2: Any = require("httpx2", extra="mcp")
        # How long an answer may take is watched per call.
        timeout = httpx2.Timeout(None, connect=limit, pool=limit)
        make = _client_class()
        common = {"headers": dict(server.headers), "auth": server.auth}
        if self._is_sse:
            sse = require("mcp.client.sse", extra="mcp")
            self._inner = sse.sse_client(
                server.url,
                httpx_client_factory=lambda **_: make(self, timeout=timeout, **common),
            )
        else:
            http = require("mcp.client.streamable_http", extra="mcp")
            self._client = make(self, timeout=timeout, **common)
            await self._client.__aenter__()
            self._inner = http.streamable_http_client(
                server.url,
                http_client=self._client,
                max_sse_event_size=self.options.max_message_bytes,
            )
        try:
            read, write = await self._inner.__aenter__()
        except BaseException:
            await self._close_client()
            raise
        return _Tap(read, self), write

    async def __aexit__(self, *exc: object) -> Any:
        self._is_closing = True
        try:
            return await self._inner.__aexit__(*exc)
        finally:
            await self._close_client()

    def ended(self) -> None:
        """No message comes any more."""
        if not self._is_closing:
            self._is_closing = True
            self._on_lost("the server has closed the stream")

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def send(self, send: Callable[..., Any], request: Any, given: Any) -> Any:
        """Send one request: with its headers, and with a new token after a 401."""
        watch = CURRENT.get()
        if self.options.send_context:
            _add_context(request.headers)
        if watch is not None:
            watch.has_session = SESSION_HEADER in request.headers
        try:
            response: Any
            if request.method == "DELETE":  # some servers never answer it
                async with get_clock().timeout(self.options.close_timeout / 2):
                    response = await self._authorized(send, request, given)
            else:
                response = await self._authorized(send, request, given)
            if request.method == "POST":
                await self._receive(response, watch)
        except Exception as exc:  # noqa: BLE001 - also what a token function raises
            return self._failed(watch, request, exc)
        if self._is_sse and request.method == "POST" and response.status_code >= 400:
            self._refused(watch, response.status_code)
        return response

    async def _receive(self, response: Any, watch: Watch | None) -> None:
        """Note what came; read what is no stream, while a failure is this call's alone."""
        if watch is not None:
            watch.status = response.status_code
            watch.retry_after = _seconds(response.headers.get("retry-after"))
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            if watch is not None:
                response.stream = _stream_class()(response.stream, watch)
            return
        limit, held = self.options.max_message_bytes, 0
        parts: list[bytes] = []
        async for part in response.aiter_bytes():
            held += len(part)
            if held > limit:
                await response.aclose()
                httpx2: Any = require("httpx2", extra="mcp")
                msg = f"the answer has more than {limit} bytes"
                raise httpx2.ReadError(msg)
            parts.append(part)
        response._content = b"".join(parts)  # noqa: SLF001 - what `aread` does

    async def _authorized(
        self, send: Callable[..., Any], request: Any, given: Any
    ) -> Any:
        tokens = self._tokens
        used = await tokens.put(request.headers)
        response = await send(request, **given)
        if response.status_code != _UNAUTHORIZED or not tokens.can_renew:
            return response
        await response.aread()
        await response.aclose()
        await tokens.renew(used)
        await tokens.put(request.headers)
        return await send(request, **given)

    def _failed(self, watch: Watch | None, request: Any, exc: Exception) -> Any:
        why = redact_exception_text(exc) or "no answer"
        self.trouble = f"{type(exc).__name__}: {why}"
        if watch is None:
            raise exc
        if request.method != "POST" or self._is_sse:
            watch.fail(exc)
            raise exc
        # Raised, it would end every other call of this connection too.
        watch.failure = exc
        httpx2: Any = require("httpx2", extra="mcp")
        return httpx2.Response(502, request=request)

    def _refused(self, watch: Watch | None, status: int) -> None:
        self.trouble = f"HTTP {status}"
        if watch is not None:
            watch.fail(RuntimeError(f"HTTP {status}"))


def _add_context(headers: Any) -> None:
    context = get_current_context()
    told = {} if context is None else context.to_headers()
    told.update(trace_headers())
    for name, value in told.items():
        if name not in headers:
            headers[name] = value


def _seconds(text: str | None) -> float | None:
    """`Retry-After` in seconds; None for a date and for what is no number."""
    if text is None or not text.isascii() or not text.isdigit():
        return None
    return min(float(text), _MAX_WAIT)


class _Tokens:
    """The bearer token in use; asked for once, and again when the server refuses it."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._token: str | None = source if isinstance(source, str) else None
        self._lock = asyncio.Lock()
        self.can_renew: bool = callable(source)

    async def put(self, headers: Any) -> str | None:
        """Set the header; gives the token that was used."""
        if self._source is None:
            return None
        if self._token is None:
            await self.renew(None)
        headers["Authorization"] = f"Bearer {self._token}"
        return self._token

    async def renew(self, refused: str | None) -> None:
        """Ask for a token, unless somebody has done so since `refused` was given."""
        async with self._lock:
            if self._token is not None and self._token != refused:
                return
            made: Any = self._source()
            token = await made if inspect.isawaitable(made) else made
            if not isinstance(token, str) or not token:
                msg = f"`token` must give a str that is not empty, got {type(token).__name__}"
                raise TypeError(msg)
            self._token = token


@cache
def _client_class() -> Any:
    """The SDK's HTTP client with our `send` in it."""
    httpx2: Any = require("httpx2", extra="mcp")

    class Client(httpx2.AsyncClient):  # type: ignore[misc]  # known at run time only
        def __init__(self, wire: HttpWire, **given: Any) -> None:
            super().__init__(**given)
            self._wire = wire

        async def send(self, request: Any, **given: Any) -> Any:
            return await self._wire.send(super().send, request, given)

    return Client


@cache
def _stream_class() -> Any:
    """The body of an answer, whose end is noted."""
    httpx2: Any = require("httpx2", extra="mcp")

    class Stream(httpx2.AsyncByteStream):  # type: ignore[misc]  # known at run time only
        def __init__(self, inner: Any, watch: Watch) -> None:
            self._inner = inner
            self._watch = watch

        async def __aiter__(self) -> Any:
            try:
                async for part in self._inner:
                    yield part
            except httpx2.HTTPError as exc:
                self._watch.failure = exc
                raise
            self._watch.has_ended = True

        async def aclose(self) -> None:
            await self._inner.aclose()

    return Stream


class _Tap:
    """The stream of messages, mended on its way, and its end told."""

    def __init__(self, inner: Any, wire: HttpWire) -> None:
        self._inner = inner
        self._wire = wire

    @property
    def last_context(self) -> Any:
        """The context variables of the sender of the last message."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> Any:
        return await self._inner.__aexit__(*exc)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    async def receive(self) -> Any:
        """The next message."""
        return self._mended(await self._inner.receive())

    async def __anext__(self) -> Any:
        try:
            return self._mended(await self._inner.__anext__())
        except StopAsyncIteration:
            self._wire.ended()
            raise

    def _mended(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        mend_result(result, self._wire.spoilt)
        return item
