"""The protocol of Redis, version 2: commands to bytes, bytes to replies.

Source: the "Redis serialization protocol specification" of the Redis documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = (
    "Parser",
    "ProtocolError",
    "Question",
    "Reply",
    "ReplyError",
    "pack",
    "to_bytes",
)

Reply: TypeAlias = Any
"""An int, bytes, None, a list of replies, or a `ReplyError`."""

_MAX_BULK: Final = 512 * 1024 * 1024
_MAX_DEPTH: Final = 16
_END: Final = b"\r\n"


@dataclass(frozen=True, slots=True)
class Question:
    """A command, and what to do when things go wrong."""

    arguments: tuple[bytes, ...]
    fallback: Question | None = None
    """To ask instead when the server does not know the script."""

    again: Question | None = None
    """To ask when the connection was lost before the reply. None = it fails."""

    is_minor: bool = False
    """Whether it is not worth a connection of its own: nobody waits for the reply."""


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


class ReplyError(Exception):
    """The server answered that a command failed."""

    @property
    def code(self) -> str:
        """The first word, e.g. `NOSCRIPT`."""
        return str(self).partition(" ")[0]


class _MoreError(Exception):
    """The reply is not all there yet."""

    def __init__(self, need: int) -> None:
        super().__init__()
        self.need = need
        """Bytes that the buffer must hold at least."""


def to_bytes(value: Any) -> bytes:
    """An argument of a command; any text at all can be one."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass")


def pack(arguments: Sequence[bytes]) -> bytes:
    """A command as it is sent."""
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(value), value) for value in arguments]
    return b"".join(parts)


class Parser:
    """Takes bytes as they come, gives the replies that are complete."""

    __slots__ = ("_buffer", "_need")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = 0

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that `data` completes.

        Raises:
            ProtocolError: When the bytes make no sense.
        """
        buffer = self._buffer
        buffer += data
        size = len(buffer)
        replies: list[Reply] = []
        start = 0
        if size < self._need:
            return replies
        try:
            while start < size:
                reply, start = _parse(buffer, start, _MAX_DEPTH)
                replies.append(reply)
            self._need = 0
        except _MoreError as more:
            self._need = more.need - start
        del buffer[:start]
        return replies


def _parse(buffer: bytearray, start: int, depth: int) -> tuple[Reply, int]:
    end = buffer.find(_END, start)
    if end < 0:
        raise _MoreError(len(buffer) + 1)
    kind = buffer[start]
    line = bytes(buffer[start + 1 : end])
    end += 2
    if kind == 58:  # an integer
        return _int(line), end
    if kind == 42:  # an array
        return _array(buffer, _int(line), end, depth)
    if kind == 36:  # a text of known length
        return _bulk(buffer, _int(line), end)
    if kind == 43:  # a short text
        return line, end
    if kind == 45:
        return ReplyError(line.decode("utf-8", "replace")), end
    msg = "the server does not speak the Redis protocol"
    raise ProtocolError(msg)


def _bulk(buffer: bytearray, length: int, start: int) -> tuple[Reply, int]:
    if length < 0:
        return None, start
    if length > _MAX_BULK:
        msg = f"a reply of {length} bytes is too long"
        raise ProtocolError(msg)
    end = start + length
    if len(buffer) < end + 2:
        raise _MoreError(end + 2)
    return bytes(buffer[start:end]), end + 2


def _array(buffer: bytearray, length: int, start: int, depth: int) -> tuple[Reply, int]:
    if length < 0:
        return None, start
    if not depth:
        msg = "a reply is nested too deeply"
        raise ProtocolError(msg)
    items: list[Reply] = []
    for _ in range(length):
        item, start = _parse(buffer, start, depth - 1)
        items.append(item)
    return items, start


def _int(line: bytes) -> int:
    try:
        return int(line)
    except ValueError as exc:
        msg = "the server sent a number that is none"
        raise ProtocolError(msg) from exc
