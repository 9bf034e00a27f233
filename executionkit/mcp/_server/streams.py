"""Server-sent events: a stream of messages that a client can take up again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

from executionkit._clock import get_clock
from executionkit.mcp._server.messages import Message, encode

__all__ = ("EventStream", "heartbeat")

_MAX_KEPT: Final = 256
_MAX_UNSENT: Final = 1024
_MAX_ALL: Final = 4096
_HIGH: Final = 256
_MAX_KEPT_BYTES: Final = 1024 * 1024
_HEARTBEAT_SECONDS: Final = 15.0
_RETRY_MS: Final = 500

heartbeat: Final = b": still here\n\n"
"""A comment: nothing happens with it but that the connection is used."""


class EventStream:
    """The messages about one request, or those about none, in order.

    Args:
        name: Part of the events' ids; None = the stream cannot be taken up again, and
            nothing is kept that was sent.
        primed: Whether it begins with an empty event, so that the client knows an id
            to come back with from the start.
    """

    def __init__(self, name: str | None, *, primed: bool = False) -> None:
        self.name: str | None = name
        self.finished: bool = False
        """Whether there will be no more messages."""
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._next = 0
        self._sent = -1
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()
        self._reader = 0
        self._reading = False
        self.answer: Any = None
        """The last message that was an answer, or several."""
        if primed:
            self._add(f"id: {name}-0\nretry: {_RETRY_MS}\ndata: \n\n".encode())

    @property
    def count(self) -> int:
        """How many events there have been."""
        return self._next

    @property
    def unsent(self) -> int:
        """How many events nobody has taken yet."""
        return self._next - 1 - self._sent

    @property
    def last_sent(self) -> int:
        """The number of the last event that somebody has taken; -1 = none."""
        return self._sent

    @property
    def size(self) -> int:
        """The bytes that are kept."""
        return self._bytes

    @property
    def is_read(self) -> bool:
        """Whether a client is taking events now."""
        return self._reading

    # --- as an outlet ---
    @property
    def full(self) -> bool:
        """Whether so much waits that what may be lost should not be added."""
        return self.unsent > _MAX_UNSENT

    def put(self, message: Message | list[Message]) -> None:
        """Add a message."""
        if isinstance(message, list) or "method" not in message:
            self.answer = message
        head = "event: message\n"
        if self.name is not None:
            head += f"id: {self.name}-{self._next}\n"
        self._add(f"{head}data: ".encode() + encode(message) + b"\n\n")

    def _add(self, frame: bytes) -> None:
        if self.finished:
            return
        self._events.append((self._next, frame))
        self._bytes += len(frame)
        self._next += 1
        if self.unsent > _MAX_ALL:  # nobody has come for a long time
            self._bytes -= len(self._events.popleft()[1])
        self._changed.set()

    async def drain(self) -> None:
        """Wait while a client that is there is slow; one that is not costs no time."""
        while self._reading and self.unsent > _HIGH:
            self._moved.clear()
            await self._moved.wait()

    def pause(self) -> None:
        """Let go of the reader; it may come back with the id of its last event."""
        self._reader += 1
        self._reading = False
        self._changed.set()
        self._moved.set()

    def finish(self) -> None:
        """Say that this was all."""
        self.finished = True
        self._changed.set()

    async def begun(self) -> None:
        """Wait until there is anything, or the end."""
        while not self._events and not self.finished:
            self._changed.clear()
            await self._changed.wait()

    # --- as a source ---
    async def frames(self, after: int = -1) -> AsyncGenerator[bytes]:
        """The events after that number, to the end of the stream.

        Ends early when another reader comes, or at `pause`. Now and then a comment
        comes, when there is nothing else.
        """
        self._reader += 1
        mine = self._reader
        self._reading = True
        position = after
        try:
            while self._reader == mine:
                self._changed.clear()
                for number, frame in [one for one in self._events if one[0] > position]:
                    yield frame
                    position = number
                    self._sent = max(self._sent, number)
                    self._moved.set()
                    if self._reader != mine:
                        return
                self._forget()
                if self.finished and position >= self._next - 1:
                    return
                if position < self._next - 1:
                    continue
                try:
                    async with get_clock().timeout(_HEARTBEAT_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    yield heartbeat
        finally:
            if self._reader == mine:
                self._reading = False
                self._moved.set()

    def _forget(self) -> None:
        while self._events and self._events[0][0] <= self._sent:
            keep = self.name is not None and (
                len(self._events) <= _MAX_KEPT and self._bytes <= _MAX_KEPT_BYTES
            )
            if keep:
                break
            self._bytes -= len(self._events.popleft()[1])
