"""Reads a response's body: limits, size cap, decompression; the same for every backend.

A backend hands over a `RawResponse`; `Reader` makes the body of it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from executionkit._http.failures import BodyTooLargeError, WireError
from executionkit._http.limits import Limit, LimitReachedError, within

if TYPE_CHECKING:
    from executionkit._http.prepare import Call

__all__ = ("Inflate", "Owner", "RawResponse", "Reader")

_PIECE = 1 << 20
"""Bytes that one step of decompression yields at most."""

_AUTO_HEADER = 32 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class RawResponse(Protocol):
    """What a backend gives: the head, and the body's bytes as they come in."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case; repeated headers joined with a comma."""
        ...

    @property
    def complete(self) -> bool:
        """True once the last byte of the body has been handed out."""
        ...

    def take(self) -> bytes:
        """Bytes that are here already; empty when there are none."""
        ...

    async def more(self) -> bytes:
        """Wait for bytes; empty means that the body is complete."""
        ...

    async def abort(self) -> None:
        """Close the connection at once. Called at most once, never after the end."""
        ...


class Owner(Protocol):
    """Whom a reader tells that it is done."""

    closing: set[asyncio.Task[None]]
    """Readers that are being aborted because nobody holds them any more."""

    def release(self, reader: Reader) -> None:
        """Its connection is free, or closed. Called once."""
        ...


class Inflate:
    """Undoes gzip and deflate step by step, so that no step makes much more memory."""

    __slots__ = ("_engine", "_gzip", "_input", "_more_inside", "_started")

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding in {"gzip", "x-gzip"}
        self._engine: zlib._Decompress | None = None
        self._input = b""
        self._more_inside = False
        self._started = False

    def put(self, data: bytes) -> None:
        """Hand in compressed bytes."""
        self._input += data
        self._started = True

    def take(self) -> bytes:
        """The next piece; empty when more input is needed.

        Raises:
            WireError: The data is corrupt.
        """
        while self._input or self._more_inside:
            engine = self._engine
            if engine is None or engine.eof:
                engine = self._next_engine()
                if engine is None:
                    return b""
            try:
                piece = engine.decompress(self._input, _PIECE)
            except zlib.error:
                msg = "the compressed body is corrupt"
                raise WireError(msg) from None
            self._input = engine.unused_data if engine.eof else engine.unconsumed_tail
            self._more_inside = len(piece) == _PIECE and not engine.eof
            if piece:
                return piece
        return b""

    def end(self) -> None:
        """Say that the input is over.

        Raises:
            WireError: The compressed data is not.
        """
        if self._started and (self._engine is None or not self._engine.eof):
            msg = "the compressed body is incomplete"
            raise WireError(msg)

    def _next_engine(self) -> zlib._Decompress | None:
        if self._engine is not None:  # a gzip file may have several members
            self._input = self._input.lstrip(b"\0") if self._gzip else b""
            if not self._input:
                return None
        if self._gzip:
            self._engine = zlib.decompressobj(_AUTO_HEADER)
        elif len(self._input) < 2:
            return None
        else:
            # "deflate" means the zlib format; some servers send it without its header.
            first, second = self._input[0], self._input[1]
            has_header = first & 15 == zlib.DEFLATED and (first << 8 | second) % 31 == 0
            self._engine = zlib.decompressobj(zlib.MAX_WBITS if has_header else _RAW)
        return self._engine


def _inflate_for(headers: Mapping[str, str]) -> Inflate | None:
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in {"", "identity"}:
        return None
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return Inflate(encoding)
    msg = "the body's `content-encoding` is none of those that were asked for"
    raise WireError(msg)


class Reader:
    """The body of one response, read under the limits of its call.

    Args:
        raw: What the backend gave.
        call: The request and its limits.
        owner: Told once, when the connection is not needed any more.
        deadline: Monotonic time at which the total limit ends; None when the caller
            watches over it.
    """

    __slots__ = (
        "_call",
        "_deadline",
        "_inflate",
        "_raw",
        "closed",
        "complete",
        "headers",
        "owner",
        "status",
    )

    def __init__(
        self,
        raw: RawResponse,
        call: Call,
        owner: Owner,
        deadline: float | None,
    ) -> None:
        self.status = raw.status
        self.headers = raw.headers
        self.complete = False
        self._raw = raw
        self._call = call
        self.owner = owner
        self.closed = False
        self._deadline = deadline
        self._inflate = _inflate_for(raw.headers)

    async def read_all(self, cap: int) -> bytes:
        """The whole body. Of a page that explains a failure, its first `cap` bytes do.

        Raises:
            BodyTooLargeError: It is larger than `cap` bytes, decompressed, and the
                status is one of success.
        """
        parts: list[bytes] = []
        size = 0
        while data := await self.next():
            size += len(data)
            parts.append(data)
            if size > cap:
                if 200 <= self.status < 300:
                    raise BodyTooLargeError(cap)
                await self.abort()
                return b"".join(parts)[:cap]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def next(self) -> bytes:
        """The next bytes of the decoded body; empty at its end."""
        if self.complete:
            return b""
        if self._inflate is None:
            data = await self._next_raw()
        else:
            data = await self._next_inflated(self._inflate)
        if not data:
            self.complete = True
            self._done()
        return data

    async def abort(self) -> None:
        """Close the connection at once, unless the body is complete. Idempotent."""
        if self.closed:
            return
        self._done()
        if not self._raw.complete:
            await self._raw.abort()

    def abort_soon(self) -> None:
        """`abort` in a task of its own; for those who cannot wait."""
        closing = self.owner.closing
        task = asyncio.ensure_future(self.abort())
        closing.add(task)
        task.add_done_callback(closing.discard)

    def _done(self) -> None:
        if not self.closed:
            self.closed = True  # given back, or about to be closed
            self.owner.release(self)

    async def _next_inflated(self, inflate: Inflate) -> bytes:
        while True:
            piece = inflate.take()
            if piece:
                return piece
            data = await self._next_raw()
            if not data:
                inflate.end()
                return b""
            inflate.put(data)

    async def _next_raw(self) -> bytes:
        raw = self._raw
        deadline = self._deadline
        if deadline is not None and self._call.clock.monotonic() >= deadline:
            raise LimitReachedError(which="total")
        data = raw.take()
        if data or raw.complete:
            return data
        seconds, which = self._allowance()
        return await within(self._call.clock, seconds, which, raw.more)

    def _allowance(self) -> tuple[float | None, Limit]:
        """How long the next wait may last, and the name of the limit behind it."""
        idle = self._call.timeouts.idle
        if self._deadline is None:
            return idle, "idle"
        left = self._deadline - self._call.clock.monotonic()
        if idle is not None and idle < left:
            return idle, "idle"
        return left, "total"
