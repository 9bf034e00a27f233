"""Telling those who watch about one tool call of a reply."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit.errors import ErrorCode

if TYPE_CHECKING:
    from executionkit.calls import ToolCall, ToolResult
    from executionkit.observability import Scope

__all__ = ("DeskTrace",)

_BLOCKED: Final = frozenset(
    {ErrorCode.APPROVAL_DENIED, ErrorCode.APPROVAL_PENDING, ErrorCode.TOOL_BLOCKED}
)
# Nothing may be awaited any more when one of these ends a coroutine.
_FATAL: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)


class DeskTrace:
    """The pair of events of one call.

    Args:
        scope: Of the call.
        call: As the model made it.
    """

    __slots__ = ("_began", "_call", "_scope")

    def __init__(self, scope: Scope, call: ToolCall) -> None:
        self._scope = scope
        self._call = call
        self._began = 0.0

    async def started(self, arguments: dict[str, Any]) -> None:
        """The call is looked at."""
        self._began = get_clock().monotonic()
        facts = {**self._facts(), "arguments": arguments}
        await self._scope.tell("tool_call_start", facts)
        self._began = get_clock().monotonic()

    async def ended(self, result: ToolResult | None) -> None:
        """It was answered; with what, is in `result`."""
        facts = {**self._ending(), **self._scope.more}
        if result is not None:
            facts["attempts"] = result.attempts
            facts["cached"] = result.cached
            if self._scope.is_replayed:
                facts["replayed"] = True
            code = result.error_code
            facts["blocked"] = code in _BLOCKED
            if code is not None:
                facts["error"] = code.value
        await self._scope.tell("tool_call_end", facts)

    async def failed(self, exc: BaseException) -> None:
        """It was not answered, because of `exc`."""
        if isinstance(exc, _FATAL):
            return
        facts = self._ending()
        facts["error"] = type(exc).__name__
        if isinstance(exc, asyncio.CancelledError):
            # The callback may be the very thing that hangs.
            await self._scope.tell_briefly("tool_call_end", facts)
        else:
            await self._scope.tell("tool_call_end", facts)

    def _facts(self) -> dict[str, Any]:
        return {"tool_name": self._call.name, "tool_call_id": self._call.id}

    def _ending(self) -> dict[str, Any]:
        took = get_clock().monotonic() - self._began
        return {
            **self._facts(),
            "duration": took,
            "attempts": 0,
            "cached": False,
            "blocked": False,
        }
