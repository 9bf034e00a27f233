"""A real HTTP server for tests, which does what a script says.

It listens on a free port of the loopback interface, speaks HTTP/1.1, records what it is
asked, and can misbehave in every way that servers do: drip, stall, cut a body off, reset
the connection, answer garbage, not answer at all. Nothing in it waits for time: a reply
waits at a `Gate` until the test opens it.

```python
async with ScriptedServer([json_reply({"ok": True})]) as server:
    ...  # use server.url
assert server.requests[0].json() == {"hello": "world"}
```
"""

from __future__ import annotations

import asyncio
import http
import inspect
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Self

from executionkit._http.wire import ChunkedBody
from executionkit.testing._replies import (
    PATIENCE,
    Gate,
    ReceivedRequest,
    Reply,
    Script,
    Signal,
    drip,
    json_reply,
    no_reply,
    raw_reply,
    reset_reply,
    sse_reply,
)
from executionkit.types import freeze_mapping

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

__all__ = (
    "Gate",
    "ReceivedRequest",
    "Reply",
    "ScriptedServer",
    "drip",
    "json_reply",
    "no_reply",
    "raw_reply",
    "reset_reply",
    "sse_reply",
)

_MAX_HEAD = 1 << 20
_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends RST, not FIN


class ScriptedServer:
    """An HTTP server that follows a script; use it with `async with`.

    Args:
        script: One reply for every request; or one for each, in order; or a function
            (sync or async) that takes a `ReceivedRequest`.
        tls: Serve `https` with this context.

    Leaving the block closes everything, and raises `AssertionError` when more requests
    came than the script has replies for, or its function failed.
    """

    def __init__(
        self, script: Script = (), *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._decide = _decider(script)
        self._tls = tls
        self._signal = Signal()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[_Connection] = set()
        self._problems: list[str] = []
        self._disconnects = 0
        self.requests: list[ReceivedRequest] = []
        """All requests, in the order in which they were complete."""
        self.accepted: int = 0
        """Connections accepted so far."""
        self.in_flight: int = 0
        """Requests whose reply is not complete."""
        self.peak: int = 0
        """The highest `in_flight` so far."""

    @property
    def port(self) -> int:
        """The port it listens on; refused once the block is left."""
        assert self._port, "use the server with `async with`"
        return self._port

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, without a slash at the end."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    @property
    def disconnects(self) -> int:
        """Clients that went away before their reply was complete."""
        return self._disconnects

    async def received(self, count: int = 1, *, timeout: float = PATIENCE) -> None:
        """Wait until `count` requests in all have come in completely.

        Raises:
            TimeoutError: They did not within `timeout` seconds.
        """
        await self._signal.wait(lambda: len(self.requests) >= count, timeout)

    async def busy(self, count: int, *, timeout: float = PATIENCE) -> None:
        """Wait until `count` requests are in flight at once.

        Raises:
            TimeoutError: They were not within `timeout` seconds.
        """
        await self._signal.wait(lambda: self.in_flight >= count, timeout)

    async def disconnected(self, timeout: float = PATIENCE, *, count: int = 1) -> None:
        """Wait until `count` clients in all went away before their reply was complete.

        Raises:
            TimeoutError: They did not within `timeout` seconds.
        """
        await self._signal.wait(lambda: self._disconnects >= count, timeout)

    async def idle(self, *, timeout: float = PATIENCE) -> None:
        """Wait until no connection is open.

        Raises:
            TimeoutError: Some still were after `timeout` seconds.
        """
        await self._signal.wait(lambda: not self._connections, timeout)

    def drop_connections(self, *, reset: bool = False) -> None:
        """Close all connections, as a server does that restarts."""
        for connection in list(self._connections):
            connection.drop(reset=reset)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", 0, ssl=self._tls, backlog=1024
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [each.task for each in self._connections if each.task is not None]
        self.drop_connections(reset=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        if self._problems and kind is None:
            raise AssertionError("; ".join(self._problems))

    # What its connections tell it.

    def _opened(self, connection: _Connection) -> int:
        self._connections.add(connection)
        self.accepted += 1
        return self.accepted - 1

    def _closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._signal.notify()

    def _begin(self, request: ReceivedRequest) -> None:
        self.requests.append(request)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        self._signal.notify()

    def _finish(self, *, gone: bool) -> None:
        self.in_flight -= 1
        self._disconnects += gone
        self._signal.notify()

    async def _reply_to(self, request: ReceivedRequest) -> Reply:
        try:
            reply = self._decide(request)
            return await reply if inspect.isawaitable(reply) else reply
        except Exception as exc:  # noqa: BLE001 - a script's failure is told at the end
            problem = f"{request.method} {request.path}: {type(exc).__name__}: {exc}"
            self._problems.append(problem)
            return json_reply({"error": {"message": problem}}, status=500)


def _decider(script: Script) -> Callable[[ReceivedRequest], Reply | Awaitable[Reply]]:
    if isinstance(script, Reply):
        return lambda _request: script
    if callable(script):
        return script
    replies = deque(script)

    def following(_request: ReceivedRequest) -> Reply:
        if not replies:
            msg = "the script has no more replies"
            raise AssertionError(msg)
        return replies.popleft()

    return following


class _Connection(asyncio.Protocol):
    """One client's connection: reads requests, plays replies."""

    def __init__(self, server: ScriptedServer) -> None:
        self._owner = server
        self._signal = Signal()
        self._buffer = b""
        self._out: asyncio.Transport | None = None
        self._number = -1
        self._gone = False  # the client has left
        self._answering = False
        self._full = False  # the socket takes no more for now
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out = transport  # type: ignore[assignment]
        self._number = self._owner._opened(self)  # noqa: SLF001 - one unit
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._signal.notify()

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - its base's
        self._leave()
        self._owner._closed(self)  # noqa: SLF001 - one unit

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._signal.notify()

    def drop(self, *, reset: bool) -> None:
        """Close it from the server's side."""
        transport = self._out
        if transport is None:
            return
        if reset:
            sock = transport.get_extra_info("socket")
            if sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        else:
            transport.close()

    def _leave(self) -> None:
        self._gone = True
        self._signal.notify()
        if self._answering and self.task is not None:
            self.task.cancel()

    async def _serve(self) -> None:
        try:
            while (request := await self._read_request()) is not None:
                if not await self._exchange(request):
                    break
        except asyncio.CancelledError:
            if not self._gone:  # the server itself is being closed
                raise
        finally:
            self.drop(reset=False)

    async def _exchange(self, request: ReceivedRequest) -> bool:
        """Answer one request; whether the connection can serve another."""
        owner = self._owner
        owner._begin(request)  # noqa: SLF001 - one unit
        self._answering = True
        complete = False
        try:
            reply = await owner._reply_to(request)  # noqa: SLF001 - one unit
            keep = await self._play(reply, request)
            complete = True
            return keep
        finally:
            self._answering = False
            owner._finish(gone=self._gone and not complete)  # noqa: SLF001 - one unit

    async def _play(self, reply: Reply, request: ReceivedRequest) -> bool:
        if reply.hold is not None:
            await reply.hold.wait()
        if not reply.raw:
            await self._write(_head(reply))
        chunked = reply.framing == "chunked" and not reply.raw
        for piece in () if request.method == "HEAD" else reply.pieces:
            if not isinstance(piece, bytes):
                await piece.wait()
            elif chunked and piece:
                await self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                await self._write(piece)
        if reply.ending == "hang":
            await self._signal.wait(lambda: False, None)
        if reply.ending == "reset":
            self.drop(reset=True)
        if reply.ending != "complete":
            return False
        if chunked:
            await self._write(b"0\r\n\r\n")
        return not (reply.close or reply.raw or reply.framing == "close")

    async def _write(self, data: bytes) -> None:
        if self._out is not None:
            self._out.write(data)
            await self._signal.wait(lambda: not self._full, None)

    async def _read_request(self) -> ReceivedRequest | None:
        """The next request; None when the client leaves before it is complete."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            # What starts like this is TLS or noise: no request will come of it.
            noise = self._buffer and not self._buffer[:1].isalpha()
            if noise or len(self._buffer) > _MAX_HEAD or not await self._more():
                return None
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        self._buffer = self._buffer[end + 4 :]
        method, path, _ = f"{lines[0]}  ".split(" ", 2)
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await self._read_body(headers)
        if body is None:
            return None
        return ReceivedRequest(
            method, path, freeze_mapping(headers), body, self._number
        )

    async def _read_body(self, headers: Mapping[str, str]) -> bytes | None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            framing = ChunkedBody()
            body = b""
            while True:
                data, self._buffer = framing.feed(self._buffer)
                body += data
                if framing.complete:
                    return body
                if not await self._more():
                    return None
        length = int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            if not await self._more():
                return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return body

    async def _more(self) -> bool:
        """Wait for more bytes; False when there will be none."""
        had = len(self._buffer)
        await self._signal.wait(lambda: self._gone or len(self._buffer) > had, None)
        return len(self._buffer) > had


def _head(reply: Reply) -> bytes:
    try:
        reason = http.HTTPStatus(reply.status).phrase
    except ValueError:
        reason = ""
    lines = [f"HTTP/1.1 {reply.status} {reason}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    given = {name.lower() for name in reply.headers}
    may_have_body = reply.status >= 200 and reply.status not in {204, 304}
    if reply.framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif reply.framing == "length" and "content-length" not in given and may_have_body:
        size = sum(len(each) for each in reply.pieces if isinstance(each, bytes))
        lines.append(f"Content-Length: {size}")
    if reply.close or reply.framing == "close":
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
