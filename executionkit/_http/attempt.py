"""One try to send a request, and what is counted about connections."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from executionkit._http.limits import within
from executionkit._http.values import ConnectionCounts

if TYPE_CHECKING:
    from executionkit._http.prepare import Call

__all__ = ("Attempt", "Tally")

_T = TypeVar("_T")


class Tally:
    """The counts of one transport. Any loop, and so any thread, adds to them."""

    __slots__ = ("_lock", "counts")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: ConnectionCounts = ConnectionCounts()

    def add(self, *, dialed: int = 0, failed: int = 0, resent: int = 0) -> None:
        """Count what has just happened."""
        with self._lock:
            old = self.counts
            self.counts = ConnectionCounts(
                dialed=old.dialed + dialed,
                failed=old.failed + failed,
                resent=old.resent + resent,
            )


@dataclass(slots=True, eq=False)
class Attempt:
    """What a backend reports about one try to send a request.

    A kept-alive connection may have been closed by the server a moment ago. When a
    *reused* connection breaks before one byte of the response has arrived, the request
    is sent once more, on a fresh connection; in all other cases the server may have
    acted on it, and the failure is the caller's to judge.
    """

    call: Call
    tally: Tally
    fresh: bool = False
    """Asks the backend for a connection that no request has used before."""

    reused: bool = False
    """Whether the connection had served a request before."""

    heard: bool = False
    """Whether a byte of the response has arrived."""

    connects: int = 0
    """How often the backend asked for a connection."""

    link: Any = None
    """The backend's own object for the connection."""

    dialing: bool = False
    """Whether a connection has been begun for it."""

    async def dial(
        self, seconds: float | None, step: Callable[[], Awaitable[_T]]
    ) -> _T:
        """Run a step of opening a connection, within `seconds` (None = no limit)."""
        if not self.dialing:
            self.dialing = True
            self.tally.add(dialed=1)
        try:
            return await within(self.call.clock, seconds, "connect", step)
        except Exception:
            self.tally.add(failed=1)
            raise

    @property
    def stale(self) -> bool:
        """Whether a failure means no more than that the connection was old."""
        return self.reused and not self.heard
