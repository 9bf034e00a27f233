"""One HTTP/1.1 connection on the event loop, and the response that is read from it.

Bytes are taken from the connection by whoever reads the response; when nobody does,
reading from the socket pauses.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeAlias

from executionkit._http.failures import WireError
from executionkit._http.wire import Head, find_head_end, parse_head

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit._http.proxies import Proxy

__all__ = ("Connection", "ConnectionResponse", "Owner", "Route")

_MAX_BUFFER = 256 * 1024
"""Unread bytes at which reading from the socket pauses."""

_JOIN_LIMIT = 64 * 1024
"""Bodies up to this size are sent together with their head."""

Route: TypeAlias = "tuple[tuple[str, str, int], Proxy | None]"
"""Where a connection leads: the origin, and the proxy on the way."""


class Owner(Protocol):
    """The pool that a connection belongs to."""

    loop: asyncio.AbstractEventLoop
    live: set[Connection]

    def give_back(self, connection: Connection, clock: Clock) -> None:
        """Its response is complete."""
        ...

    def forget(self, connection: Connection) -> None:
        """It is gone."""
        ...


class Connection(asyncio.Protocol):
    """One socket: the bytes that came in, and whether there can be more."""

    __slots__ = (
        "_paused",
        "_waiter",
        "buffer",
        "ended",
        "error",
        "heard",
        "idle_since",
        "owner",
        "route",
        "transport",
    )

    def __init__(self, owner: Owner, route: Route) -> None:
        self.route = route
        self.buffer = b""
        self.ended = False  # no more bytes will come
        self.error: Exception | None = None  # why, if not by the server's will
        self.heard = False  # since the last request was sent
        self.idle_since: float | None = None  # None while a request owns it
        self.transport: asyncio.Transport | None = None
        self.owner = owner
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.owner.live.add(self)

    def data_received(self, data: bytes) -> None:
        if self.idle_since is not None:
            self.abort()  # nobody asked: the next answer would be the wrong one
            return
        self.heard = True
        self.buffer = self.buffer + data if self.buffer else data
        if len(self.buffer) >= _MAX_BUFFER and not self._paused:
            self._paused = True
            if self.transport is not None:
                self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.error = self.error or exc
        self.transport = None
        self.owner.forget(self)
        self._wake()

    # What the owner of the connection calls.

    @property
    def usable(self) -> bool:
        """Whether a request can still be sent on it."""
        transport = self.transport
        if self.ended or transport is None or transport.is_closing():
            return False
        # A server may answer before it has read the whole request.
        return transport.get_write_buffer_size() == 0

    def send(self, head: bytes, body: bytes) -> None:
        """Write a request; the loop buffers what the socket does not take at once."""
        self.heard = False
        transport = self.transport
        if transport is None:
            raise self.error or WireError(
                "the connection was closed before the request"
            )
        if len(body) <= _JOIN_LIMIT:
            transport.write(head + body if body else head)
        else:
            transport.write(head)
            transport.write(body)

    async def wait(self) -> None:
        """Wait until there is more in the buffer, or there will never be."""
        waiter = self.owner.loop.create_future()
        self._waiter = waiter
        try:
            await waiter
        finally:
            self._waiter = None

    def consume(self, rest: bytes) -> None:
        """Leave `rest` in the buffer; read on from the socket."""
        self.buffer = rest
        if self._paused and len(rest) < _MAX_BUFFER:
            self._paused = False
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    async def read_head(self, method: str) -> Head:
        """The head of the response; interim ones (1xx) are skipped."""
        while True:
            end = find_head_end(self.buffer)
            if end > 0:
                head = parse_head(self.buffer[:end], method)
                self.consume(self.buffer[end:])
                if head.status >= 200:
                    return head
                if head.status == 101:
                    msg = "the server switched protocols without being asked"
                    raise WireError(msg)
            elif self.ended:
                if self.error is not None:
                    raise self.error
                where = "inside the head of" if self.buffer else "before"
                msg = f"the server closed the connection {where} the response"
                raise WireError(msg)
            else:
                await self.wait()

    def abort(self) -> None:
        """Close the socket at once; what is unsent is dropped."""
        self.ended = True
        if self.transport is not None:
            self.transport.abort()
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class ConnectionResponse:
    """A response on a connection of ours; a `RawResponse`."""

    __slots__ = (
        "_clock",
        "_connection",
        "_framing",
        "_head",
        "complete",
        "headers",
        "status",
    )

    def __init__(self, connection: Connection, head: Head, clock: Clock) -> None:
        self.status = head.status
        self.headers = head.headers
        self._connection = connection
        self._head = head
        self._framing = head.framing
        self._clock = clock
        self.complete = False
        if head.framing.complete:
            self._finish()

    def take(self) -> bytes:
        connection = self._connection
        if not connection.buffer or self.complete:
            return b""
        data, rest = self._framing.feed(connection.buffer)
        connection.consume(rest)
        if self._framing.complete:
            self._finish()
        return data

    async def more(self) -> bytes:
        connection = self._connection
        while not self.complete:
            if connection.ended:
                if connection.error is not None:
                    raise connection.error
                self._framing.end()
                self._finish()
                break
            await connection.wait()
            data = self.take()
            if data:
                return data
        return b""

    async def abort(self) -> None:
        self._connection.abort()

    def _finish(self) -> None:
        self.complete = True
        connection = self._connection
        if self._head.keep_alive:
            connection.owner.give_back(connection, self._clock)
        else:
            connection.abort()
