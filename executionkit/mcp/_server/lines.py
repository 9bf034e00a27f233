"""Messages as lines, over any pair of byte streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from executionkit.mcp._server.messages import Message, encode

__all__ = ("ByteReader", "ByteWriter", "LineOutlet", "lines")

_CHUNK = 65_536
_HIGH = 1024 * 1024


class ByteReader(Protocol):
    """Where bytes come from; an `asyncio.StreamReader` is one."""

    async def read(self, n: int, /) -> bytes:
        """At most `n` bytes; none at the end."""
        ...


class ByteWriter(Protocol):
    """Where bytes go; an `asyncio.StreamWriter` is one."""

    def write(self, data: bytes, /) -> object:
        """Take `data`; does not wait."""
        ...

    async def drain(self) -> None:
        """Wait until there is room for more."""
        ...


async def lines(reader: ByteReader, limit: int) -> AsyncGenerator[bytes | None]:
    """The lines of a stream, without their ends; empty ones are left out.

    Args:
        reader: The stream.
        limit: Bytes of a line. None stands for a longer one, which is skipped.
    """
    rest = bytearray()
    skipping = False
    while True:
        data = await reader.read(_CHUNK)
        if not data:
            break
        *complete, last = data.split(b"\n")
        for part in complete:
            rest += part
            line, rest = bytes(rest), bytearray()
            if skipping:
                skipping = False
            elif len(line) > limit:
                yield None
            elif line.strip():
                yield line
        if not skipping:
            rest += last
            if len(rest) > limit:
                skipping, rest = True, bytearray()
                yield None
    if rest.strip() and not skipping:
        yield bytes(rest)


class LineOutlet:
    """Writes each message as one line."""

    def __init__(self, writer: ByteWriter) -> None:
        self._writer: Any = writer
        self.closed: bool = False
        """Whether the other end does not take anything any more."""

    @property
    def full(self) -> bool:
        """Whether so much waits that what may be lost should not be added."""
        if self.closed:
            return True
        transport = getattr(self._writer, "transport", None)
        if transport is not None:
            return bool(transport.get_write_buffer_size() > _HIGH)
        return bool(getattr(self._writer, "full", False))

    def put(self, message: Message | list[Message]) -> None:
        """Write a message; when the other end is gone, it is dropped."""
        if self.closed:
            return
        try:
            self._writer.write(encode(message) + b"\n")
        except (OSError, RuntimeError, ValueError):
            self.closed = True

    async def drain(self) -> None:
        """Wait until there is room for more."""
        if self.closed:
            return
        try:
            await self._writer.drain()
        except (OSError, RuntimeError, ValueError):
            self.closed = True

    def pause(self) -> None:
        """A pipe stays as it is."""
