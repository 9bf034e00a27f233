"""The transport that needs nothing but the standard library.

An HTTP/1.1 client on the event loop's own transports, not `urllib` in threads. In
threads, each request in flight costs a thread, a total deadline must be rebuilt from
socket timeouts that restart with every byte, cancelling needs a second thread to shut
the socket down, and the pool becomes a hidden ceiling. Here a request is a coroutine:
a deadline is a timer, cancelling closes the socket in the same step of the loop, and a
thousand requests are a thousand sockets. The environment's proxies are honoured as
`urllib` does (`CONNECT` for `https`), TLS is the default context of `ssl`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cache
from typing import TYPE_CHECKING

from executionkit._http.attempt import Attempt
from executionkit._http.base import KEEPALIVE_SECONDS, BaseTransport, tick
from executionkit._http.connect import Resolver, open_socket
from executionkit._http.connection import Connection, ConnectionResponse, Route
from executionkit._http.failures import WireError
from executionkit._http.proxies import EnvironmentProxies, Proxy

if TYPE_CHECKING:
    import ssl

    from executionkit._clock import Clock
    from executionkit._http.prepare import Call, Target

__all__ = ("StdlibTransport",)


class _Pool:
    """The connections of one loop."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.live: set[Connection] = set()
        self.proxies = EnvironmentProxies()
        self._idle: dict[Route, deque[Connection]] = {}
        self._resolver = Resolver()
        self._tls = tls
        self._closed = False

    def reuse(self, route: Route, clock: Clock) -> Connection | None:
        """The idle connection that was used last, if one is still good."""
        idle = self._idle.get(route)
        if not idle:
            return None
        oldest = clock.monotonic() - KEEPALIVE_SECONDS
        while idle and (idle[0].idle_since or 0.0) < oldest:
            idle.popleft().abort()
        while idle:
            connection = idle.pop()
            if connection.usable:
                connection.idle_since = None
                return connection
        return None

    def give_back(self, connection: Connection, clock: Clock) -> None:
        """Keep a connection whose response is complete for the next request."""
        if self._closed or not connection.usable or connection.buffer:
            connection.abort()
            return
        connection.idle_since = clock.monotonic()
        self._idle.setdefault(connection.route, deque()).append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.live.discard(connection)
        idle = self._idle.get(connection.route)
        if idle is not None and connection.idle_since is not None:
            try:
                idle.remove(connection)
            except ValueError:
                return
            if not idle:
                del self._idle[connection.route]

    async def connect(self, call: Call, route: Route) -> Connection:
        """A new connection to where `route` leads, TLS included."""
        target, proxy = call.target, route[1]
        hop = target if proxy is None else proxy
        secure = hop.scheme == "https"
        context = self._context() if secure else None
        sock = await open_socket(self._resolver, hop.host, hop.port, call.clock)
        connection = Connection(self, route)
        try:
            await self.loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=context,
                server_hostname=hop.host if secure else None,
            )
            if proxy is not None and target.scheme == "https":
                await self._tunnel(connection, target, proxy)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def close(self) -> None:
        """Abort every connection, in use or not."""
        self._closed = True
        self._resolver.close()
        for connection in list(self.live):
            connection.error = connection.error or ConnectionAbortedError(
                "the transport was closed"
            )
            connection.abort()
        # The loop closes a socket in the step after `abort`; with TLS one more.
        for _ in range(3):
            await tick()

    async def _tunnel(
        self, connection: Connection, target: Target, proxy: Proxy
    ) -> None:
        shown = f"[{target.host}]" if ":" in target.host else target.host
        where = f"{shown}:{target.port}"
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        if proxy.credentials is not None:
            lines.append(f"Proxy-Authorization: {proxy.credentials}")
        connection.send("\r\n".join([*lines, "", ""]).encode("ascii"), b"")
        head = await connection.read_head("HEAD")  # no body follows a tunnel's head
        if not 200 <= head.status < 300 or connection.transport is None:
            msg = f"the proxy refused to connect to the server: status {head.status}"
            raise WireError(msg)
        connection.transport = await self.loop.start_tls(
            connection.transport,
            connection,
            self._context(),
            server_hostname=target.host,
        )

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = default_tls()
        return self._tls


@cache
def default_tls() -> ssl.SSLContext:
    """The system's trusted certificates, host names checked, HTTP/1.1 only.

    Loading them takes a while, so it is done once.
    """
    import ssl

    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class StdlibTransport(BaseTransport[_Pool]):
    """HTTP/1.1 on the event loop, without any dependency."""

    name = "stdlib"

    def __init__(
        self,
        *,
        max_connections: int,
        max_response_bytes: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            max_connections=max_connections, max_response_bytes=max_response_bytes
        )
        self._tls = tls

    def _new_client(self) -> _Pool:
        return _Pool(self._tls)

    @staticmethod
    async def _close_client(client: _Pool) -> None:
        await client.close()

    async def _start(
        self, client: _Pool, call: Call, attempt: Attempt
    ) -> ConnectionResponse:
        route = (
            call.target.origin,
            client.proxies.http_for_target(call.target, self.name),
        )
        connection = None if attempt.fresh else client.reuse(route, call.clock)
        if connection is None:
            seconds = call.timeouts.connect
            connection = await attempt.dial(
                seconds, lambda: client.connect(call, route)
            )
        else:
            attempt.reused = True
        try:
            connection.send(_request_head(call, route[1]), call.body)
            head = await connection.read_head(call.method)
        except BaseException:
            attempt.heard = connection.heard
            connection.abort()
            raise
        return ConnectionResponse(connection, head, call.clock)


def _request_head(call: Call, proxy: Proxy | None) -> bytes:
    target = call.target
    forward = proxy is not None and target.scheme == "http"
    lines = [f"{call.method} {target.url if forward else target.path} HTTP/1.1"]
    if not call.names_host:
        lines.append(f"Host: {target.authority}")
    lines += [f"{name}: {value}" for name, value in call.headers.items()]
    if forward and proxy is not None and proxy.credentials is not None:
        lines.append(f"Proxy-Authorization: {proxy.credentials}")
    if call.needs_length:
        lines.append(f"Content-Length: {len(call.body)}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")
