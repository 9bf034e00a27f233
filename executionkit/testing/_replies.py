"""What the scripted server answers: replies, gates inside of them, shapes of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from executionkit._clock import SystemClock
from executionkit.types import JsonValue, freeze_mapping, sealed

__all__ = (
    "PATIENCE",
    "Gate",
    "Piece",
    "ReceivedRequest",
    "Reply",
    "Script",
    "Signal",
    "drip",
    "json_reply",
    "no_reply",
    "raw_reply",
    "reset_reply",
    "sse_reply",
)

PATIENCE = 5.0
"""Seconds after which a wait for something that does not happen fails."""


class Signal:
    """Lets tasks wait until something is true."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def notify(self) -> None:
        """Something has changed: let those go on whose condition is true now."""
        for condition, future in list(self._waiting):
            if condition() and not future.done():
                future.set_result(None)

    async def wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `condition` is true.

        Raises:
            TimeoutError: It was not within `timeout` seconds (None = for ever).
        """
        if condition():
            return
        entry = condition, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            # Real time, even when a fake clock is installed: sockets run on that.
            async with SystemClock().timeout(timeout):
                await entry[1]
        finally:
            self._waiting.remove(entry)


class Gate:
    """A place in a reply where the server waits until the test lets it pass."""

    def __init__(self) -> None:
        self._signal = Signal()
        self._tickets = 0
        self._open = False
        self._arrivals = 0

    def release(self, count: int = 1) -> None:
        """Let the server pass `count` times."""
        self._tickets += count
        self._signal.notify()

    def open(self) -> None:
        """Let it pass from now on."""
        self._open = True
        self._signal.notify()

    async def arrived(self, count: int = 1, *, timeout: float = PATIENCE) -> None:
        """Wait until the server has come here `count` times in all.

        What stands before the gate has been written to the socket then.

        Raises:
            TimeoutError: It did not come within `timeout` seconds.
        """
        await self._signal.wait(lambda: self._arrivals >= count, timeout)

    async def wait(self) -> None:
        """What the server does here."""
        self._arrivals += 1
        self._signal.notify()
        await self._signal.wait(lambda: self._open or self._tickets > 0, None)
        if not self._open:
            self._tickets -= 1


Piece: TypeAlias = "bytes | Gate | asyncio.Event"
"""A part of a body: bytes to send, or a place to wait at."""


@sealed
@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answers to one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Sequence[Piece] = b""
    """The bytes, or pieces: each is written alone, gates are waited at."""

    _: KW_ONLY

    framing: Literal["length", "chunked", "close"] = "length"
    """How the body's end is told: `Content-Length`, chunks (one for each piece), or the
    end of the connection. A `Content-Length` in `headers` is sent as it is."""

    ending: Literal["complete", "cut", "reset", "hang"] = "complete"
    """After the body: as it should be; close without the final chunk (send a larger
    `Content-Length` to cut a sized body); reset the connection; keep silent."""

    hold: Gate | asyncio.Event | None = None
    """Where to wait before the first byte."""

    close: bool = False
    """Whether to close the connection afterwards, and say so."""

    raw: bool = False
    """Whether the body is everything that is sent: no head is made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", freeze_mapping(self.headers))
        if not isinstance(self.body, bytes):
            object.__setattr__(self, "body", tuple(self.body))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The body in pieces."""
        if isinstance(self.body, bytes):
            return (self.body,) if self.body else ()
        return tuple(self.body)


@sealed
@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """What a client asked."""

    method: str
    path: str
    """With the query, as it stood in the request line."""

    headers: Mapping[str, str]
    """Names in lower case."""

    body: bytes = b""
    connection: int = 0
    """The number of the connection it came on, from 0."""

    def json(self) -> JsonValue:
        """The body, read as JSON."""
        return json.loads(self.body)


Script: TypeAlias = (
    "Reply | Iterable[Reply] | Callable[[ReceivedRequest], Reply | Awaitable[Reply]]"
)
"""One reply for every request, one after another, or a function that decides."""


def json_reply(
    value: JsonValue,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    hold: Gate | asyncio.Event | None = None,
) -> Reply:
    """A complete reply with `value` as its JSON body."""
    kind = {"content-type": "application/json"}
    body = json.dumps(value).encode()
    return Reply(status, {**kind, **(headers or {})}, body, hold=hold)


def sse_reply(
    events: Iterable[JsonValue | tuple[str, JsonValue] | Piece],
    *,
    done: str | None = "[DONE]",
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    hold: Gate | asyncio.Event | None = None,
    ending: Literal["complete", "cut", "reset", "hang"] = "complete",
) -> Reply:
    """A stream of server-sent events, each in a chunk of its own.

    Args:
        events: Text, or a value that is written as JSON; with a name in front as a pair
            `(name, value)`. Bytes are sent as they are, gates are waited at.
        done: Text of the last event; None = none.
        status: The status.
        headers: More headers.
        hold: Where to wait before the first byte.
        ending: See `Reply`.
    """
    pieces = [_event(item) for item in events]
    if done is not None:
        pieces.append(_event(done))
    kind = {"content-type": "text/event-stream"}
    return Reply(
        status,
        {**kind, **(headers or {})},
        pieces,
        framing="chunked",
        hold=hold,
        ending=ending,
    )


def _event(item: Any) -> Piece:
    if isinstance(item, (bytes, Gate, asyncio.Event)):
        return item
    name, value = item if isinstance(item, tuple) else ("", item)
    text = value if isinstance(value, str) else json.dumps(value)
    lines = [f"event: {name}"] if name else []
    lines += [f"data: {line}" for line in text.split("\n")]
    return "\n".join([*lines, "", ""]).encode()


def raw_reply(
    data: bytes | Sequence[Piece],
    *,
    ending: Literal["complete", "cut", "reset", "hang"] = "cut",
) -> Reply:
    """These bytes and no others; then, unless said otherwise, the connection ends."""
    return Reply(body=data, raw=True, ending=ending)


def no_reply() -> Reply:
    """The request is read and never answered."""
    return Reply(raw=True, ending="hang")


def reset_reply() -> Reply:
    """The connection is reset instead of an answer."""
    return Reply(raw=True, ending="reset")


def drip(body: bytes, gate: Gate, *, size: int = 1) -> tuple[Piece, ...]:
    """`body` in pieces of `size` bytes, with a wait at `gate` before each."""
    pieces: list[Piece] = []
    for start in range(0, len(body), size):
        pieces += [gate, body[start : start + size]]
    return tuple(pieces)
