"""The sessions of an HTTP server, as versions before 2026-07-28 have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from executionkit._clock import get_clock
from executionkit.mcp._server.session import Session
from executionkit.mcp._server.streams import EventStream

if TYPE_CHECKING:
    from executionkit.mcp._server.core import Core

__all__ = ("HTTPSession", "Sessions")

_MAX_FINISHED: Final = 32
_MAX_FINISHED_BYTES: Final = 4 * 1024 * 1024
_EVICT_SECONDS: Final = 60.0


class HTTPSession:
    """One session, and the streams over which its client can be reached."""

    def __init__(self, core: Core) -> None:
        self.id = os.urandom(16).hex()
        self.standing: EventStream = EventStream("s0")
        self.session: Session = Session(core, self.standing)
        self.used = get_clock().monotonic()
        """When the client was last heard of, in seconds of the monotonic clock."""
        self._streams: dict[str, EventStream] = {}
        self._count = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nobody listens."""
        return not self.session.running and not self.standing.is_read

    def open_stream(self) -> EventStream:
        """A stream for the answer of a request."""
        assert self.session.peer is not None  # noqa: S101 - it is initialized
        self._count += 1
        name = f"s{self._count}"
        primed = self.session.peer.version >= "2025-11-25"
        stream = self._streams[name] = EventStream(name, primed=primed)
        self._forget()
        return stream

    def drop_stream(self, stream: EventStream) -> None:
        """Forget a stream that nobody will ask for."""
        self._streams.pop(stream.name or "", None)

    def find_stream(self, event_id: str) -> tuple[EventStream, int] | None:
        """The stream of an event, and the event's number in it."""
        name, _, number = event_id.rpartition("-")
        stream = self.standing if name == "s0" else self._streams.get(name)
        if stream is None or not (number.isascii() and number.isdigit()):
            return None
        return stream, int(number[:12])

    def _forget(self) -> None:
        finished = [one for one in self._streams.values() if one.finished]
        size = sum(one.size for one in finished)
        for count, one in enumerate(finished):
            few = len(finished) - count <= _MAX_FINISHED
            if few and size <= _MAX_FINISHED_BYTES:
                return
            size -= one.size
            self.drop_stream(one)

    async def end(self) -> None:
        """Cancel what runs, and end the streams."""
        await self.session.finish(0.0)
        for stream in (self.standing, *self._streams.values()):
            stream.finish()


class Sessions:
    """All sessions, of a bounded number.

    Args:
        core: What is offered.
        limit: How many there may be.
        seconds: How long one may be unused.
    """

    def __init__(self, core: Core, limit: int, seconds: float) -> None:
        self._core = core
        self._limit = limit
        self._seconds = seconds
        self._all: dict[str, HTTPSession] = {}

    def __iter__(self) -> Iterator[HTTPSession]:
        return iter(tuple(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    async def sweep(self) -> None:
        """End the sessions that were not used for too long."""
        now = get_clock().monotonic()
        for one in self:
            if one.is_idle and now - one.used > self._seconds:
                await self.end(one)

    async def make(self) -> HTTPSession | None:
        """A new session; None when there are too many that are in use."""
        await self.sweep()
        if len(self._all) >= self._limit:
            now = get_clock().monotonic()
            idle = [one for one in self if one.is_idle]
            oldest = min(idle, key=lambda one: one.used, default=None)
            if oldest is None or now - oldest.used < _EVICT_SECONDS:
                return None
            await self.end(oldest)
        made = HTTPSession(self._core)
        self._all[made.id] = made
        return made

    def find(self, session_id: str) -> HTTPSession | None:
        """The session of that id, which is in use from now on."""
        found = self._all.get(session_id)
        if found is not None:
            found.used = get_clock().monotonic()
        return found

    async def end(self, session: HTTPSession) -> None:
        """End a session; its id means nothing any more."""
        self._all.pop(session.id, None)
        await session.end()

    async def end_all(self) -> None:
        """End all sessions."""
        for one in self:
            await self.end(one)
