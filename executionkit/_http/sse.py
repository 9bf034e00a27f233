"""Server-sent events: bytes in, events out.

Follows the event stream format of the HTML standard: lines end at LF, CRLF or CR and
nowhere else (U+2028, U+0085, VT and FF are ordinary characters), a line that starts
with a colon is a comment, a blank line ends an event. Two deviations, on purpose:
bytes that are not UTF-8 are an error instead of U+FFFD, and an event whose blank line
is missing at the end of the stream is still delivered (servers end on `data: [DONE]`).

Bytes are scanned, not characters: a character cut in two by the network is whole again
before it is decoded.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from executionkit._constants import MAX_RESPONSE_BYTES
from executionkit.errors import StreamError
from executionkit.types import sealed

__all__ = ("SseDecoder", "SseEvent", "iter_sse")

_BOM = b"\xef\xbb\xbf"


@sealed
@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event."""

    event: str
    """Its name; `"message"` when the server gave none."""

    data: str
    """Its `data` lines, joined by a newline."""


class SseDecoder:
    """Turns chunks, cut anywhere, into events; does no I/O.

    Args:
        max_line: Bytes of one line, and of one event's data, that are held at most.

    A broken stream does not lose the events before the break: `feed` and `close` return
    them, and `error` says what is wrong with the rest. Feeding after that does nothing.
    """

    __slots__ = (
        "_data",
        "_held",
        "_max_line",
        "_name",
        "_parts",
        "_size",
        "_start",
        "_swallow_lf",
        "error",
    )

    def __init__(self, *, max_line: int = MAX_RESPONSE_BYTES) -> None:
        self._max_line = max_line
        self._parts: list[bytes] = []  # of the line that has not ended yet
        self._held = 0  # bytes in them
        self._data: list[bytes] = []  # lines of the event that has not ended yet
        self._size = 0  # bytes in them
        self._name = b""
        self._start = True
        self._swallow_lf = False  # the last chunk ended in CR: a LF belongs to it
        self.error: StreamError | None = None

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes."""
        if not chunk or self.error is not None:
            return []
        if self._swallow_lf:
            self._swallow_lf = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._swallow_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._held = 0
        events = self._read_lines(lines)
        if rest and self.error is None:
            self._parts.append(rest)
            self._held += len(rest)
            if self._held > self._max_line:
                self._fail_on_size()
        return events

    def close(self) -> list[SseEvent]:
        """The last event, if the stream ended without the blank line after it."""
        if self.error is not None:
            return []
        lines = [b"".join(self._parts), b""] if self._parts else [b""]
        self._parts.clear()
        return self._read_lines(lines)

    def _read_lines(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        if self._start and lines:
            self._start = False
            lines[0] = lines[0].removeprefix(_BOM)
        for line in lines:
            if line:
                self._read_field(line)
            elif self._data:
                event = self._event()
                if event is not None:
                    events.append(event)
            else:
                self._name = b""
            if self.error is not None:
                break
        return events

    def _read_field(self, line: bytes) -> None:
        self._size += len(line)
        if self._size > self._max_line:
            self._fail_on_size()
        elif line.startswith(b"data: "):
            self._data.append(line[6:])
        else:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value)
            elif name == b"event":
                self._name = value.removeprefix(b" ")
            elif not self._data:
                self._size = 0  # a comment between events is not part of one

    def _event(self) -> SseEvent | None:
        data, name = self._data, self._name
        self._data, self._name, self._size = [], b"", 0
        content = data[0] if len(data) == 1 else b"\n".join(data)
        try:
            return SseEvent(name.decode() if name else "message", content.decode())
        except UnicodeDecodeError as exc:
            msg = f"the event stream is not valid UTF-8: {exc.reason}"
            self.error = StreamError(msg)
            return None

    def _fail_on_size(self) -> None:
        msg = (
            f"a line or event of the stream is longer than {self._max_line} bytes; "
            "the server does not speak server-sent events, or `max_line` is too small"
        )
        self.error = StreamError(msg)


async def iter_sse(
    chunks: AsyncIterable[bytes], *, max_line: int = MAX_RESPONSE_BYTES
) -> AsyncIterator[SseEvent]:
    """The events in a body that arrives in chunks, each as soon as it is complete.

    Args:
        chunks: The body; `HttpStream.chunks()`. Its errors pass through.
        max_line: Bytes of one line, and of one event's data, that are held at most.

    Raises:
        StreamError: A line is too long, or the bytes are not UTF-8 (a character cut off
            by the end of the stream included).
    """
    decoder = SseDecoder(max_line=max_line)
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            yield event
        if decoder.error is not None:
            raise decoder.error
    for event in decoder.close():
        yield event
    if decoder.error is not None:
        raise decoder.error
