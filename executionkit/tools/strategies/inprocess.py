"""Tools in this process: async ones on the event loop, others in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._constants import DEFAULT_TOOL_TIMEOUT, DefaultSeconds
from executionkit._threads import ThreadPool
from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.tools._gate import Gate
from executionkit.tools._path import PathParts, ToolPath
from executionkit.tools._record import Kind
from executionkit.tools._running import Workshop
from executionkit.tools._runs import Paths, RunOptions, run_calls, stream_calls
from executionkit.tools._streaming import Drain, collect, drain

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import Layer, ToolRequest
    from executionkit.tools.registry import ToolRegistry

__all__ = ("InProcessStrategy",)

_SHUTDOWN_SECONDS: Final = 2.0
_MAX_THREADS: Final = 64


class InProcessStrategy:
    """Runs tools in this process.

    Async functions and async generators run on the event loop; plain functions and
    generators in threads that the strategy owns. A thread cannot be stopped: when its
    call is over time, it is left behind, counted in `abandoned`, and holds up nobody.

    Args:
        registry: Where names are looked up. None = the default registry.
        default_timeout: Seconds per call for tools that say nothing else; None = 30.
        max_concurrency: Calls at once, over everything that this strategy runs. Calls
            that a tool makes in turn run in its place. None = no limit.
        max_threads: Plain functions at once.
        grace: Seconds that a cancelled tool may take to end.
        clock: None = the clock of the current context.
    """

    def __init__(
        self,
        registry: ToolRegistry | None = None,
        default_timeout: float | None = None,
        max_concurrency: int | None = None,
        *,
        max_threads: int = _MAX_THREADS,
        grace: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self.registry: ToolRegistry | None = registry
        self.default_timeout: float = _seconds("default_timeout", default_timeout)
        self.max_concurrency: int | None = _count("max_concurrency", max_concurrency)
        self.shop: Workshop = Workshop(clock or get_clock(), grace)
        """Where tools at work are booked."""
        self._threads = ThreadPool(name="executionkit-tool")
        self.gate: Gate | None = (
            None
            if self.max_concurrency is None
            else Gate("concurrency", self.max_concurrency, self.shop.clock)
        )
        threads = _count("max_threads", max_threads) or _MAX_THREADS
        self._thread_gate = Gate("threads", threads, self.shop.clock, lends=True)
        self._paths: Paths | None = None

    @property
    def supports_streaming(self) -> bool:
        return True

    @property
    def active(self) -> int:
        """Tools that run right now and wait for something."""
        return len(self.shop.running)

    @property
    def abandoned(self) -> int:
        """Tools that did not end when they had to, and run on by themselves."""
        return self.shop.abandoned + self._threads.stats().abandoned

    def gates(self, record: ToolRecord) -> tuple[Layer, ...]:
        """What a call of this tool has to pass before it may run."""
        gates: list[Layer] = []
        if record.kind in {Kind.SYNC, Kind.SYNC_STREAM}:
            gates.append(self._thread_gate)
        if self.gate is not None:
            gates.append(self.gate)
        return tuple(gates)

    def starter(
        self, record: ToolRecord
    ) -> Callable[[ToolRequest], Coroutine[Any, Any, Any]]:
        """How calls of this tool are begun; worked out once per tool."""
        if record.kind is Kind.ASYNC and record.stream is None:
            return _call_function
        return self.start

    def function(
        self, record: ToolRecord
    ) -> Callable[..., Coroutine[Any, Any, Any]] | None:
        """The coroutine function that is all there is to a call; None = use `start`."""
        if record.kind is Kind.ASYNC and record.stream is None:
            return record.tool.execute
        return None

    def start(self, request: ToolRequest, /) -> Coroutine[Any, Any, Any]:
        """Begin one attempt; see `ExecutionStrategy`."""
        record = request.record
        if record.stream is not None and request.emit is not None:
            arguments = request.arguments or {}
            return collect(record.stream(**arguments), request)
        if record.kind is Kind.ASYNC:
            return _call_function(request)
        if record.kind is Kind.ASYNC_STREAM:
            return _collect_function(request)
        return self._in_thread(request)

    async def run(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        return_order: ReturnOrder | str = ReturnOrder.COMPLETION,
    ) -> list[ToolResult]:
        """Run `calls` at once, each with its own result; failures are results.

        Args:
            calls: The calls.
            timeout: Seconds per call, waiting for its turn included.
            return_order: As they finish, or as they were given.

        Raises:
            ValueError: When `return_order` is unknown.
        """
        options = RunOptions(timeout=timeout, order=ReturnOrder(return_order))
        return await run_calls(self._own_paths(), calls, options)

    async def execute(
        self, calls: Sequence[ToolCall], *, timeout: float | None = None
    ) -> list[ToolResult]:
        """The same as `run`."""
        return await self.run(calls, timeout)

    def stream_run(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        on_tool_start: Callable[[ToolCall], Awaitable[None] | None] | None = None,
    ) -> AsyncIterator[ToolResult]:
        """Run `calls`; results as they come, and each item of streaming tools before.

        Args:
            calls: The calls.
            timeout: Seconds per call, waiting for its turn included.
            on_tool_start: Called, and awaited, right before a call begins; what it
                raises is logged.
        """
        options = RunOptions(timeout=timeout, on_tool_start=on_tool_start)
        return stream_calls(self._own_paths(), calls, options)

    async def shutdown(self) -> None:
        """Refuse new calls, cancel the running ones, wait 2 seconds at most.

        Cancelled calls have the result "Execution was cancelled", new ones "System is
        shutting down".
        """
        await self.shop.close(_SHUTDOWN_SECONDS)

    async def close(self) -> None:
        """The same as `shutdown`."""
        await self.shutdown()

    def _own_paths(self) -> Paths:
        if self._paths is None:
            registry = self.registry
            if registry is None:
                from executionkit.tools.decorators import get_default_registry

                registry = self.registry = get_default_registry()
            self._paths = Paths(registry, self._path, self.shop)
            self._paths.gate = self.gate
            self._paths.gates = () if self.gate is None else (self.gate,)
        return self._paths

    def _path(self, record: ToolRecord) -> ToolPath:
        own = record.tool.timeout
        parts = PathParts(
            start=self.starter(record),
            function=self.function(record),
            shop=self.shop,
            timeout=self.default_timeout if isinstance(own, DefaultSeconds) else own,
            layers=self.gates(record),
        )
        return ToolPath(record, parts)

    async def _in_thread(self, request: ToolRequest) -> Any:
        box = Drain(request, asyncio.get_running_loop())
        try:
            outcome = await self._threads.run(_call_and_drain, request, box)
            if inspect.isawaitable(outcome):
                outcome = await outcome
            await box.all_read()
        except BaseException:
            box.stop_reading()
            raise
        return outcome


def _call_function(request: ToolRequest) -> Coroutine[Any, Any, Any]:
    return request.record.tool.execute(**request.arguments)  # type: ignore[arg-type, no-any-return]


def _collect_function(request: ToolRequest) -> Coroutine[Any, Any, Any]:
    return collect(request.record.tool.execute(**(request.arguments or {})), request)


def _call_and_drain(request: ToolRequest, box: Drain) -> Any:
    return drain(request.record.tool.execute(**(request.arguments or {})), box)


def _seconds(name: str, value: float | None) -> float:
    if value is None:
        return DEFAULT_TOOL_TIMEOUT
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        msg = f"`{name}` must be > 0 seconds, or None for {DEFAULT_TOOL_TIMEOUT}; got {value!r}"
        raise ValueError(msg)
    return value


def _count(name: str, value: int | None) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        msg = f"`{name}` must be an int >= 1, or None for no limit; got {value!r}"
        raise ValueError(msg)
    return value
