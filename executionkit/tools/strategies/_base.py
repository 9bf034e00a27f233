"""What runs a tool: the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from executionkit.calls import ReturnOrder, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("ExecutionStrategy", "OnToolStart")

OnToolStart = "Callable[[ToolCall], Awaitable[None] | None]"


@runtime_checkable
class ExecutionStrategy(Protocol):
    """Runs tools: in this process, in others, on other machines.

    `start` is what the processor needs; it puts its own layers, time limits and
    cancellation around it. `run` and `stream_run` serve those who use a strategy alone.
    """

    @property
    def supports_streaming(self) -> bool:
        """Whether items of streaming tools come one by one."""
        ...

    def start(self, request: ToolRequest, /) -> Awaitable[Any]:
        """Begin one attempt of one call.

        What it returns gives the tool's plain value, or raises what the tool raised
        or a typed error. Cancelling it stops the tool: when it has ended, no effect of
        the tool comes after. `request.arguments` are validated; `request.timeout` and
        `request.deadline` are watched by the caller.
        """
        ...

    async def run(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        return_order: ReturnOrder | str = ReturnOrder.COMPLETION,
    ) -> list[ToolResult]:
        """Run `calls`; one result each, failures included."""
        ...

    def stream_run(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        on_tool_start: Callable[[ToolCall], Awaitable[None] | None] | None = None,
    ) -> AsyncIterator[ToolResult]:
        """Run `calls`; results, and items of streaming tools, as they come."""
        ...

    async def shutdown(self) -> None:
        """Refuse new calls, stop the running ones, free everything. Idempotent."""
        ...
