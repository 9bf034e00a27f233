"""The time of one call, and what is known of its HTTP requests."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from executionkit.errors import MCPTimeoutError

if TYPE_CHECKING:
    import asyncio

    from executionkit._clock import Clock

__all__ = ("CURRENT", "Progress", "Watch")

Progress = Callable[[dict[str, Any]], None]
"""Takes `{"progress": ..., "total": ..., "message": ...}`; the last two when known."""


class Watch:
    """Watches one exchange with a server.

    Two limits: `idle` begins again with each sign of progress, `total` does not.

    Args:
        clock: Measures.
        idle: Seconds; None = no limit.
        total: Seconds; None = no limit.
        tell: Told of progress.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_idle",
        "_is_over",
        "_tell",
        "_total",
        "failure",
        "has_ended",
        "has_session",
        "limit",
        "retry_after",
        "status",
    )

    def __init__(
        self,
        clock: Clock,
        idle: float | None,
        total: float | None,
        tell: Progress | None = None,
    ) -> None:
        self._clock = clock
        self._idle = idle
        self._total = total
        self._tell = tell
        self._due = None if total is None else clock.monotonic() + total
        self._is_over = False
        seconds = min((s for s in (idle, total) if s is not None), default=None)
        self.limit: asyncio.Timeout = clock.timeout(seconds)
        """To be entered around the exchange."""
        self.status: int | None = None
        """The HTTP status of the answer."""
        self.retry_after: float | None = None
        """Seconds, as the server asked for by HTTP."""
        self.failure: Exception | None = None
        """What kept a request from being sent or answered."""
        self.has_ended: bool = False
        """Whether the stream of the answer came to its end by itself."""
        self.has_session: bool = False
        """Whether the request belonged to a session."""

    async def progress(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        """The server says how far it is."""
        if self._is_over or self.limit.expired():
            return
        if self._idle is not None:
            due = self._clock.monotonic() + self._idle
            self.limit.reschedule(due if self._due is None else min(due, self._due))
        if self._tell is not None:
            said: dict[str, Any] = {"progress": progress}
            if total is not None:
                said["total"] = total
            if message is not None:
                said["message"] = message
            self._tell(said)

    def fail(self, exc: Exception) -> None:
        """Give the exchange up at once."""
        self.failure = exc
        if not self._is_over and not self.limit.expired():
            self.limit.reschedule(self._clock.monotonic())

    def end(self) -> None:
        """The exchange is over: what is told from now on is too late."""
        self._is_over = True

    def error(self, server: str, tool: str) -> MCPTimeoutError:
        """The error of a call that took too long; it names both limits."""
        overall = self._due is not None and self._clock.monotonic() >= self._due - 1e-3
        idle, total = _shown(self._idle), _shown(self._total)
        limits = f"idle limit {idle}, total limit {total}"
        if overall and self._total is not None:
            what, limit = f"tool '{tool}' (over its total limit; {limits})", self._total
        else:
            what = f"tool '{tool}' (no answer and no progress; {limits})"
            limit = self._idle or 0.0
        error = MCPTimeoutError(server, what, limit)
        error.details.update(
            tool_name=tool,
            limit="total" if overall else "idle",
            idle_limit=self._idle,
            total_limit=self._total,
        )
        return error


def _shown(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:g}s"


CURRENT: Final[ContextVar[Watch | None]] = ContextVar("executionkit_mcp", default=None)
"""The exchange that the running code belongs to; it reaches the HTTP requests."""
