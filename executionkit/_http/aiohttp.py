"""The transport on aiohttp: proven, with a parser in C."""

from __future__ import annotations

import io
import socket
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from executionkit._http.attempt import Attempt
from executionkit._http.base import KEEPALIVE_SECONDS, BaseTransport
from executionkit._http.connect import resolve
from executionkit._http.limits import LimitReachedError
from executionkit._http.proxies import EnvironmentProxies
from executionkit._threads import run_in_thread

if TYPE_CHECKING:
    import ssl

    import aiohttp
    import yarl
    from aiohttp.abc import AbstractResolver
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

    from executionkit._http.prepare import Call

__all__ = ("AiohttpTransport",)

_MAX_LINE = 64 * 1024
_PLAIN_BODY_LIMIT = 1 << 20
"""aiohttp warns about larger bodies that are plain bytes."""

_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")

# Classes of aiohttp are extended in functions, because it may not be installed.

_attempt: ContextVar[Attempt | None] = ContextVar("executionkit_aiohttp", default=None)


@cache
def _resolver_class() -> type[AbstractResolver]:
    from aiohttp.abc import AbstractResolver

    class Resolver(AbstractResolver):
        """Looks names up in threads of ours, see `connect`."""

        async def resolve(
            self, host: str, port: int = 0, family: int = socket.AF_INET
        ) -> list[Any]:
            return [
                {
                    "hostname": host,
                    "host": address[0],
                    "port": address[1],
                    "family": kind,
                    "proto": 0,
                    "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                }
                for kind, address in await run_in_thread(resolve, host, port)
                if family in {socket.AF_UNSPEC, kind}
            ]

        async def close(self) -> None:
            """There is nothing to close."""

    return Resolver


@cache
def _handler_class() -> type[ResponseHandler]:
    from aiohttp.client_proto import ResponseHandler

    class Handler(ResponseHandler):
        """Remembers what decides whether a broken connection was merely old."""

        served = False
        heard = False

        def data_received(self, data: bytes) -> None:
            self.heard = True
            super().data_received(data)

    return Handler


@cache
def _connector_class() -> type[aiohttp.TCPConnector]:
    import aiohttp

    class Connector(aiohttp.TCPConnector):
        """Reports to the attempt, and opens connections under its connect limit."""

        def __init__(self, **options: Any) -> None:
            super().__init__(resolver=_resolver_class()(), **options)
            factory: Any = partial(_handler_class(), loop=self._loop)
            self._factory = factory

        async def connect(self, req: Any, traces: Any, timeout: Any) -> Connection:
            attempt = _attempt.get()
            connect = super().connect
            if attempt is None:
                return await connect(req, traces, timeout)
            attempt.connects += 1
            if attempt.connects > 1:
                # aiohttp sends idempotent requests again by itself, whatever the
                # connection was; how often a request goes out is ours to decide.
                msg = "the server closed the connection before the response"
                raise aiohttp.ClientConnectionError(msg)
            return await _usable(attempt, lambda: connect(req, traces, timeout))

        async def _create_connection(
            self, req: Any, traces: Any, timeout: Any
        ) -> ResponseHandler:
            attempt = _attempt.get()
            create = super()._create_connection
            if attempt is None:
                return await create(req, traces, timeout)
            seconds = attempt.call.timeouts.connect
            return await attempt.dial(seconds, lambda: create(req, traces, timeout))

    return Connector


async def _usable(
    attempt: Attempt, connect: Callable[[], Awaitable[Connection]]
) -> Connection:
    """A connection that suits the attempt; unsuitable ones of the pool are closed."""
    while True:
        connection = await connect()
        handler: Any = connection.protocol
        attempt.reused = getattr(handler, "served", False)
        # `should_close` is true when bytes came in that nobody asked for.
        if not attempt.reused or not (attempt.fresh or handler.should_close):
            break
        connection.close()
    handler.served, handler.heard = True, False
    attempt.link = handler, connection.transport
    return connection


@lru_cache(maxsize=256)
def _url(text: str) -> yarl.URL:
    import yarl

    return yarl.URL(text, encoded=True)


@lru_cache(maxsize=32)
def _timeout(connect: float | None) -> aiohttp.ClientTimeout:
    import aiohttp

    return aiohttp.ClientTimeout(total=None, sock_connect=connect)


class _Client:
    """A session on one loop."""

    __slots__ = ("owned", "proxies", "session")

    def __init__(
        self, tls: ssl.SSLContext | None, given: aiohttp.ClientSession | None
    ) -> None:
        import aiohttp

        self.owned = given is None
        self.proxies = EnvironmentProxies() if given is None else None
        self.session = given or aiohttp.ClientSession(
            connector=_connector_class()(
                limit=0,  # `BaseTransport` limits, and its waiting is not connecting
                keepalive_timeout=KEEPALIVE_SECONDS,
                ssl=True if tls is None else tls,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_OURS,
            timeout=_timeout(None),
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
        )


class _Response:
    """A response of aiohttp; a `RawResponse`."""

    __slots__ = ("_attempt", "_content", "_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, attempt: Attempt) -> None:
        self.status = response.status
        headers: dict[str, str] = {}
        for name, value in response.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        self.headers = headers
        self._response = response
        self._content = response.content
        self._attempt = attempt

    @property
    def complete(self) -> bool:
        return self._content.at_eof()

    def take(self) -> bytes:
        return self._content.read_nowait(-1)

    async def more(self) -> bytes:
        return await self._content.readany()

    async def abort(self) -> None:
        self._response.close()
        _abort(self._attempt)


def _abort(attempt: Attempt) -> None:
    # aiohttp closes a connection after flushing; a cancelled upload must not go on.
    if attempt.link is not None and attempt.link[1] is not None:
        attempt.link[1].abort()


class AiohttpTransport(BaseTransport[_Client]):
    """HTTP/1.1 by aiohttp.

    Args:
        max_connections: See `BaseTransport`.
        max_response_bytes: See `BaseTransport`.
        tls: Instead of aiohttp's default context.
        session: A session to use instead of one per loop. It works on its own loop only,
            keeps its settings, and is not closed by `aclose`.
    """

    name = "aiohttp"

    def __init__(
        self,
        *,
        max_connections: int,
        max_response_bytes: int,
        tls: ssl.SSLContext | None = None,
        session: aiohttp.ClientSession | None = None,
    ) -> None:
        super().__init__(
            max_connections=max_connections, max_response_bytes=max_response_bytes
        )
        self._tls = tls
        self._session = session

    def _new_client(self) -> _Client:
        return _Client(self._tls, self._session)

    @staticmethod
    async def _close_client(client: _Client) -> None:
        if client.owned:
            await client.session.close()

    async def _start(self, client: _Client, call: Call, attempt: Attempt) -> _Response:
        import aiohttp

        options: dict[str, Any] = {}
        if client.proxies is not None:
            proxy = client.proxies.http_for_target(call.target, self.name)
            if proxy is not None:
                options["proxy"] = proxy.url
            options["timeout"] = _timeout(None)
        else:
            options["timeout"] = _timeout(call.timeouts.connect)
            options["skip_auto_headers"] = _OURS
        body: Any = call.body or None
        if len(call.body) > _PLAIN_BODY_LIMIT:
            body = io.BytesIO(call.body)
        token = _attempt.set(attempt)
        try:
            response = await client.session.request(
                call.method,
                _url(call.target.url),
                headers=call.headers,
                data=body,
                allow_redirects=False,
                auto_decompress=False,
                **options,
            )
        except BaseException as exc:
            if attempt.link is not None:
                attempt.heard = getattr(attempt.link[0], "heard", True)
            _abort(attempt)
            if isinstance(exc, aiohttp.ServerTimeoutError):
                raise LimitReachedError(which="connect") from None
            raise
        finally:
            _attempt.reset(token)
        return _Response(response, attempt)
