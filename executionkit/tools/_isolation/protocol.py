"""What the parent and a worker say to each other: frames over a stream socket.

A frame is a header, the length of each buffer, a pickle (protocol 5), and the buffers
that stand outside of it. Both sides run the same code of the same user: the pickles
are no boundary of trust.
"""

from __future__ import annotations

import pickle  # nosec B403 - between a parent and its own child
import struct
from typing import Any, Final

__all__ = (
    "ACK",
    "CALL",
    "DIED",
    "DONE",
    "FAIL",
    "ITEM",
    "LOAD",
    "LOADED",
    "READY",
    "REFUSED",
    "UNREADABLE",
    "WINDOW",
    "Assembler",
    "BrokenFrameError",
    "Frame",
    "pack",
)

READY: Final = 1
"""From a worker: it listens. Value: its process id."""
LOAD: Final = 2
"""To a worker: keep a tool. Value: (key, pickle of its functions, files, needs)."""
LOADED: Final = 3
CALL: Final = 4
"""To a worker: (key, stream, arguments, context, variables, limits, tell_size)."""
ITEM: Final = 5
"""From a worker: an item of a streaming tool."""
ACK: Final = 6
"""To a worker: so many items have been taken."""
DONE: Final = 7
"""From a worker: (value, resident bytes or 0)."""
FAIL: Final = 8
"""From a worker: (what, type's name, text, traceback, pickled exception, bytes)."""

REFUSED: Final = 9
"""From a worker: the fence it was to have cannot be built. Value: why."""

# Never sent: what the parent's side says of a worker.
DIED: Final = 100
UNREADABLE: Final = 101

WINDOW: Final = 16
"""Items that a worker may send before any of them has been taken."""

MAX_LOADED: Final = 256
"""Tools that a worker keeps; both sides forget them all when there are more."""

_MAGIC: Final = 0xE5
_HEADER: Final = struct.Struct("!BBIQ")  # magic, kind, buffers, bytes of the pickle
_SIZE: Final = struct.Struct("!Q")
_ROOM: Final = 65_536
_MAX_BUFFERS: Final = 1024
_MAX_BYTES: Final = 1 << 40


class BrokenFrameError(Exception):
    """Bytes that are no frame."""


def pack(kind: int, value: object) -> list[Any]:
    """The parts of a frame, to be sent one after the other.

    Raises:
        Exception: Whatever the pickling of `value` raises.
    """
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, 5, buffer_callback=buffers.append)
    if not buffers:
        head = _HEADER.pack(_MAGIC, kind, 0, len(body))
        return [head + body] if len(body) < _ROOM else [head, body]
    if len(buffers) > _MAX_BUFFERS:
        body = pickle.dumps(value, 5)
        return [_HEADER.pack(_MAGIC, kind, 0, len(body)), body]
    raw = [item.raw() for item in buffers]
    head = _HEADER.pack(_MAGIC, kind, len(raw), len(body))
    head += b"".join([_SIZE.pack(item.nbytes) for item in raw])
    return [head, body, *raw]


class Frame:
    """One frame, as it was received; read it before more bytes are."""

    __slots__ = ("_body", "_buffers", "kind")

    def __init__(self, kind: int, body: memoryview, buffers: list[Any]) -> None:
        self.kind: int = kind
        self._body = body
        self._buffers = buffers

    def value(self, *, plain: bool = False) -> Any:
        """What was sent.

        Args:
            plain: Whether only plain data is read, nothing that could run code.

        Raises:
            Exception: Whatever unpickling raises: classes that are not here, and more.
        """
        if plain:
            from executionkit.tools._isolation.plain import read_plain

            return read_plain(self._body, self._buffers)
        return pickle.loads(self._body, buffers=self._buffers)  # noqa: S301 # nosec B301 - our own child


class Assembler:
    """Cuts a stream of bytes into frames.

    Put bytes into `room()`, say how many with `add`, and take frames with `next` until
    there is none. Small frames are read where they lie; a large one gets memory of its
    own, and the rest of it is received right there.
    """

    __slots__ = ("_end", "_filled", "_large", "_start", "_view")

    def __init__(self) -> None:
        self._view = memoryview(bytearray(_ROOM))
        self._start = 0
        self._end = 0
        self._large: memoryview | None = None
        self._filled = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty after `next` gave None."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._view[self._end :]

    def add(self, count: int) -> None:
        """So many bytes were put into `room()`."""
        if self._large is not None:
            self._filled += count
        else:
            self._end += count

    def next(self) -> Frame | None:
        """The next whole frame; None = more bytes are needed.

        Raises:
            BrokenFrameError: When the bytes are none.
        """
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            whole, self._large, self._filled = self._large, None, 0
            return _cut(whole, own=True)
        view = self._view[self._start : self._end]
        total = _length(view)
        if total is not None and total <= len(view):
            self._start += total
            if self._start == self._end:
                self._start = self._end = 0
            return _cut(view[:total], own=False)
        if total is not None and total > _ROOM:
            self._large = memoryview(bytearray(total))
            self._large[: len(view)] = view
            self._filled = len(view)
            self._start = self._end = 0
        elif self._start:
            rest = bytes(view)
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return None


def _length(view: memoryview) -> int | None:
    """The bytes of the frame that begins here; None = not yet known."""
    if len(view) < _HEADER.size:
        return None
    magic, _, count, total = _HEADER.unpack_from(view)
    if magic != _MAGIC or count > _MAX_BUFFERS:
        msg = "the bytes received are no frame"
        raise BrokenFrameError(msg)
    head = _HEADER.size + count * _SIZE.size
    if len(view) < head:
        return None
    total += head
    for number in range(count):
        total += _SIZE.unpack_from(view, _HEADER.size + number * _SIZE.size)[0]
    if total > _MAX_BYTES:
        msg = f"a frame of {total} bytes was announced"
        raise BrokenFrameError(msg)
    return int(total)


def _cut(view: memoryview, *, own: bool) -> Frame:
    """The frame that `view` is.

    Args:
        view: Its bytes.
        own: Whether the memory is the frame's own: buffers may stay where they are.
    """
    _, kind, count, size = _HEADER.unpack_from(view)
    place = _HEADER.size + count * _SIZE.size
    body = view[place : place + size]
    place += size
    buffers: list[Any] = []
    for number in range(count):
        length = _SIZE.unpack_from(view, _HEADER.size + number * _SIZE.size)[0]
        part = view[place : place + length]
        buffers.append(part if own else bytearray(part))
        place += length
    return Frame(kind, body, buffers)
