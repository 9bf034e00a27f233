"""HTTP/1.1 for a server: strict reading, limits, and plain writing."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from executionkit._clock import get_clock

__all__ = ("Connection", "Head", "WireError", "Writing")

_CHUNK: Final = 65_536
_MAX_HEAD: Final = 32_768
_MAX_HEADERS: Final = 100
_MAX_CHUNK_LINE: Final = 256
_MAX_LINGER: Final = 8 * 1024 * 1024
_LINGER_SECONDS: Final = 0.5
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) (/[!-~]{0,4000}) HTTP/1\.([01])")
_HEADER: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*")
_DIGITS: Final = re.compile(r"[0-9]{1,12}")
_SIZE: Final = re.compile(r"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_BODYLESS: Final = (202, 204)


class WireError(Exception):
    """A request that is not served; the connection is closed afterwards."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status: int = status
        self.reason: str = reason


@dataclass(slots=True)
class Head:
    """The first line and the headers of a request."""

    method: str
    path: str
    """Without the query."""

    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case; the values of several are joined with `, `."""

    repeated: frozenset[str] = frozenset()
    """The names that came more than once."""

    keep_alive: bool = True
    chunked: bool = False
    """Whether the client understands chunks: from HTTP/1.1 on."""


class Connection:
    """One connection: reads requests, and notices when the client has gone.

    Args:
        reader: From `asyncio.start_server`.
        writer: From `asyncio.start_server`.
        seconds: How long each part of a request may take to come.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        seconds: float,
    ) -> None:
        self._reader = reader
        self.writer: Writing = Writing(writer, seconds)
        self._seconds = seconds
        self._buffer = bytearray()
        self._ended = False

    async def _fill(self) -> bool:
        """Read more; False at the end."""
        if self._ended:
            return False
        try:
            data = await self._reader.read(_CHUNK)
        except OSError:
            data = b""
        self._buffer += data
        self._ended = not data
        return bool(data)

    async def head(self, idle_seconds: float) -> Head | None:
        """The next request; None when there is none any more.

        Raises:
            WireError: When it is malformed or too large.
        """
        try:
            async with get_clock().timeout(idle_seconds):
                while not self._buffer:
                    if not await self._fill():
                        return None
            async with get_clock().timeout(self._seconds):
                while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                    if len(self._buffer) > _MAX_HEAD:
                        raise WireError(431, "the headers are too large")
                    if not await self._fill():
                        return None
        except TimeoutError:
            return None
        if end > _MAX_HEAD:
            raise WireError(431, "the headers are too large")
        text = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 4]
        return _read_head(text)

    async def body(self, head: Head, limit: int) -> bytes:
        """The body of a request.

        Raises:
            WireError: When it is malformed, too large, or does not come in time.
        """
        try:
            async with get_clock().timeout(self._seconds):
                return await self._body(head, limit)
        except TimeoutError:
            raise WireError(408, "the body did not come in time") from None

    async def _body(self, head: Head, limit: int) -> bytes:
        coding = head.headers.get("transfer-encoding")
        length = head.headers.get("content-length")
        if coding is not None:
            if coding.lower() != "chunked" or length is not None or not head.chunked:
                raise WireError(400, "a body of two lengths, or of an unknown coding")
            return await self._chunks(limit)
        if length is None:
            return b""
        if _DIGITS.fullmatch(length) is None:
            raise WireError(400, "`Content-Length` is no number")
        size = int(length)
        if size > limit:
            raise WireError(413, f"the body is longer than {limit} bytes")
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not await self._fill():
                raise WireError(400, "the body ends too early")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _line(self) -> str:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_CHUNK_LINE or not await self._fill():
                raise WireError(400, "a malformed chunk")
        text = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 2]
        return text

    async def _chunks(self, limit: int) -> bytes:
        found = bytearray()
        while True:
            size = _SIZE.fullmatch(await self._line())
            if size is None:
                raise WireError(400, "a malformed chunk")
            length = int(size[1], 16)
            if length == 0:
                break
            if len(found) + length > limit:
                raise WireError(413, f"the body is longer than {limit} bytes")
            found += await self._exactly(length)
            if await self._line():
                raise WireError(400, "a malformed chunk")
        for _ in range(_MAX_HEADERS):  # trailers, which nobody needs
            if not await self._line():
                return bytes(found)
        raise WireError(400, "too many trailers")

    async def linger(self) -> None:
        """Take what the client still sends, for a moment.

        A connection that is closed with unread bytes takes the response with it.
        """
        left = _MAX_LINGER
        self.writer.finish()
        try:
            async with get_clock().timeout(_LINGER_SECONDS):
                while left > 0 and await self._fill():
                    left -= len(self._buffer)
                    self._buffer.clear()
        except TimeoutError:
            pass

    async def gone(self) -> None:
        """Wait until the client has gone. What it sends meanwhile is kept."""
        while await self._fill():
            if len(self._buffer) > _MAX_HEAD:
                # A client that sends so much ahead is not listening.
                return


def _read_head(text: str) -> Head:
    first, *rest = text.split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None or "\n" in text.replace("\r\n", ""):
        raise WireError(400, "a malformed request")
    if len(rest) > _MAX_HEADERS:
        raise WireError(431, "too many headers")
    headers: dict[str, str] = {}
    repeated: set[str] = set()
    for item in rest:
        found = _HEADER.fullmatch(item)
        if found is None or "\0" in item or "\r" in item:
            raise WireError(400, "a malformed header")
        name = found[1].lower()
        if name in headers:
            repeated.add(name)
            headers[name] += f", {found[2]}"
        else:
            headers[name] = found[2]
    if repeated & {"content-length", "transfer-encoding", "host", "mcp-session-id"}:
        raise WireError(400, "a header that may come once came twice")
    newer = line[3] == "1"
    asked = headers.get("connection", "").lower()
    return Head(
        method=line[1],
        path=line[2].partition("?")[0],
        headers=headers,
        repeated=frozenset(repeated),
        keep_alive="close" not in asked if newer else False,
        chunked=newer,
    )


class Writing:
    """Writes responses.

    Args:
        writer: From `asyncio.start_server`.
        seconds: How long a client may take nothing; then the connection is broken.
    """

    def __init__(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds
        self._chunked = False

    @property
    def closing(self) -> bool:
        """Whether the connection is closed or being closed."""
        return self._writer.is_closing()

    def _start(
        self,
        status: int,
        headers: Mapping[str, str] | None,
        more: Iterable[tuple[str, str]],
    ) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"{name}: {value}" for name, value in more]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        *,
        keep_alive: bool = True,
    ) -> None:
        """Write a whole response."""
        more = [("Cache-Control", "no-store")]
        if status not in _BODYLESS or body:
            more.append(("Content-Type", content_type))
        if status != HTTPStatus.NO_CONTENT:
            more.append(("Content-Length", str(len(body))))
        if not keep_alive:
            more.append(("Connection", "close"))
        self._start(status, headers, more)
        if body:
            self._writer.write(body)
        await self._drain()

    async def go_on(self) -> None:
        """Tell the client that its body is wanted."""
        self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self._drain()

    async def begin_events(
        self, headers: Mapping[str, str] | None, *, chunked: bool, keep_alive: bool
    ) -> None:
        """Begin a stream of events."""
        more = [
            ("Content-Type", "text/event-stream"),
            ("Cache-Control", "no-store, no-transform"),
            ("X-Accel-Buffering", "no"),
        ]
        self._chunked = chunked
        if chunked:
            more.append(("Transfer-Encoding", "chunked"))
        if not (chunked and keep_alive):
            more.append(("Connection", "close"))
        self._start(200, headers, more)
        await self._drain()

    async def send(self, data: bytes) -> None:
        """Write a part of a stream."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._writer.write(data)
        await self._drain()

    async def end_events(self) -> None:
        """End a stream."""
        if self._chunked:
            self._writer.write(b"0\r\n\r\n")
            await self._drain()

    def finish(self) -> None:
        """Say that nothing more is written."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def _drain(self) -> None:
        try:
            async with get_clock().timeout(self._seconds):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        try:
            async with get_clock().timeout(self._seconds):
                await self._writer.wait_closed()
        except OSError:  # a timeout is one too
            self._writer.transport.abort()
