"""Running calls: names become paths, paths give results, results come out in order."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit.calls import CallProblem, ReturnOrder, ToolCall, ToolResult
from executionkit.context import get_current_context, remaining_deadline
from executionkit.errors import ToolProcessorError
from executionkit.tools._asked import announced, check_calls, request_context
from executionkit.tools._batch import Batch
from executionkit.tools._gate import entered
from executionkit.tools._nesting import caller_in
from executionkit.tools._run_options import Override, RunOptions
from executionkit.tools._settle import (
    failed_result,
    over_budget_result,
    unreadable_result,
)
from executionkit.tools._streaming import Emitter, put
from executionkit.tools.middleware._base import ToolRequest

if TYPE_CHECKING:
    from executionkit.tools._gate import Gate
    from executionkit.tools._path import ToolPath
    from executionkit.tools._record import ToolRecord
    from executionkit.tools._running import Workshop
    from executionkit.tools._trace import Tracer
    from executionkit.tools.registry import ToolRegistry

__all__ = ("Opener", "Override", "Paths", "RunOptions", "run_calls", "stream_calls")

Entry: TypeAlias = "ToolCall | CallProblem"

Run: TypeAlias = "Callable[[ToolRequest], Coroutine[Any, Any, ToolResult]]"

_MAX_UNREAD: Final = 64


class Paths:
    """Finds the path of a call; each is built once and kept until the registry changes.

    Args:
        registry: Where names are looked up.
        build: Makes the path of a tool.
        shop: Where tools at work are booked.
    """

    __slots__ = (
        "_build",
        "_by_name",
        "_by_record",
        "_version",
        "gate",
        "gates",
        "refused",
        "registry",
        "shop",
        "tracer",
    )

    def __init__(
        self,
        registry: ToolRegistry,
        build: Callable[[ToolRecord], ToolPath],
        shop: Workshop,
    ) -> None:
        self.registry: ToolRegistry = registry
        self.shop: Workshop = shop
        self.gate: Gate | None = None
        """What all calls have to pass in the end; None = nothing."""
        self.gates: tuple[Gate, ...] = ()
        """Gates that a call passes once, whatever calls its tool makes in turn."""
        self.tracer: Tracer | None = None
        self.refused: int = 0
        """Calls that were answered before they could enter a path."""
        self._build = build
        self._by_name: dict[tuple[str, str], ToolPath] = {}
        self._by_record: dict[str, ToolPath] = {}
        self._version = -1

    def find(self, name: str, namespace: str) -> ToolPath:
        """The path of the tool that a call means.

        Raises:
            ToolNotFoundError: When there is none.
            ToolRegistrationError: When there are several.
        """
        path = self.known().get((name, namespace))
        if path is None:
            record = self.registry.resolve(name, namespace)
            path = self._by_record.get(record.full_name)
            if path is None or path.record is not record:
                path = self._by_record[record.full_name] = self._build(record)
            # Only names that mean something are kept: their number is bounded.
            self._by_name[name, namespace] = path
        return path

    def known(self) -> Mapping[tuple[str, str], ToolPath]:
        """The paths that were found by name since the registry changed."""
        if self._version != self.registry.version:
            self.forget()
            self._version = self.registry.version
        return self._by_name

    def forget(self) -> None:
        """Build the paths anew."""
        self._by_name.clear()
        self._by_record.clear()


class Opener:
    """Opens the calls of one batch."""

    __slots__ = (
        "_budget",
        "_caller",
        "_clock",
        "_deadline",
        "_find",
        "_inside",
        "_is_told",
        "_is_traced",
        "_known",
        "_options",
        "_own",
        "_paths",
        "emit",
        "gate",
    )

    def __init__(self, paths: Paths, options: RunOptions, context: Context) -> None:
        self._paths = paths
        self._find = paths.find
        self._known = paths.known()
        self._options = options
        self._clock = paths.shop.clock
        current = options.context or get_current_context()
        self._budget = None if current is None else current.budget
        self._deadline: float | None = None
        if current is not None and current.deadline is not None:
            left = context.run(remaining_deadline)
            if left is not None:
                self._deadline = self._clock.monotonic() + left
        if options.timeout is not None and not options.from_start:
            self._deadline = self._sooner(options.timeout)
        self.emit: Callable[[ToolRequest, Any], Awaitable[None] | None] | None = None
        self._is_traced = paths.tracer is not None and paths.tracer.is_active()
        self._is_told = self._is_traced or options.on_tool_start is not None
        self._caller = caller_in(context)
        self._inside = entered(paths.gates, context) if paths.gates else ()
        self._own = (
            self._deadline is not None
            or options.timeout is not None
            or not options.use_cache
            or options.overrides is not None
            or bool(self._inside)
            or self._caller is not None
        )
        self.gate: Gate | None = None if self._inside else paths.gate

    def __call__(self, place: int, call: ToolCall | CallProblem) -> Any:
        if isinstance(call, CallProblem):
            self._paths.refused += 1
            return unreadable_result(call)
        path = self._known.get((call.name, call.namespace))
        if path is None:
            try:
                path = self._find(call.name, call.namespace)
            except ToolProcessorError as exc:
                return self._refused(place, call, failed_result(call, exc, attempts=0))
        if self._budget is not None and not self._pay(path.record.tool.cost):
            result = over_budget_result(call, path.record.tool.cost, self._budget)
            return self._refused(place, call, result)
        request = ToolRequest(call, path.record, path.timeout)
        if place:
            request.index = place
        if call.idempotency_key is not None:
            request.is_special = True
        if self._own or self.emit is not None:
            self._apply(request)
        cost = path.record.tool.cost if self._budget is not None else 0.0
        if not self._is_told and not cost:
            return path.first, request
        run: Run = path.run_traced if self._is_traced else path.run
        if self._options.on_tool_start is not None:
            run = announced(run, self._options.on_tool_start)
        return (self._paid(run, cost) if cost else run), request

    def _refused(self, place: int, call: ToolCall, result: ToolResult) -> Any:
        """The answer to a call that enters no path; those who watch are told first."""
        self._paths.refused += 1
        tracer = self._paths.tracer
        if tracer is None or not self._is_traced:
            return result

        async def tell(_request: ToolRequest) -> ToolResult:
            await tracer.refused(call, place, result)
            return result

        nothing: Any = None  # there is no tool
        return tell, ToolRequest(call, nothing, None)

    def _paid(self, run: Run, cost: float) -> Run:
        """`run` of a call that has paid, and that gets it back when no tool ran."""

        async def run_and_settle(request: ToolRequest) -> ToolResult:
            result = await run(request)
            if not result.attempts and self._budget is not None:
                self._budget += cost
            return result

        return run_and_settle

    def _pay(self, cost: float) -> bool:
        if self._budget is None or cost <= self._budget:
            self._budget = None if self._budget is None else self._budget - cost
            return True
        return False

    def _apply(self, request: ToolRequest) -> None:
        """What the caller asked for beyond the tool's own settings."""
        options = self._options
        limit = options.timeout
        request.deadline = self._deadline
        request.inside = self._inside
        request.caller = self._caller
        if limit is not None:
            request.timeout = request.limit = limit
            if options.from_start:
                request.deadline = self._sooner(limit)
        request.use_cache = options.use_cache
        request.emit = self.emit
        override = None
        if options.overrides is not None:
            override = options.overrides.get(request.call.id)
        if override is None:
            return
        if override.timeout is not None:
            request.timeout = override.timeout
        if override.retry is not None:
            request.retry = override.retry
            request.is_special = True

    def _sooner(self, seconds: float) -> float:
        due = self._clock.monotonic() + seconds
        return due if self._deadline is None else min(due, self._deadline)


async def run_calls(
    paths: Paths, calls: Iterable[ToolCall | CallProblem], options: RunOptions
) -> list[ToolResult]:
    """The results of `calls`, in the order that the options ask for."""
    given = tuple(calls)  # a tool may get hold of the caller's list
    check_calls(given)
    if not given:
        return []
    context = request_context(options.context)
    done: list[Any]
    sink: Any
    if options.order is ReturnOrder.COMPLETION:
        done = []

        def append(_place: int, result: ToolResult) -> None:
            done.append(result)

        sink = append
    else:
        done = [None] * len(given)
        sink = done.__setitem__
    opener = Opener(paths, options, context)
    batch = Batch(
        iter(enumerate(given)),
        opener,
        sink,
        paths.shop,
        total=len(given),
        gate=opener.gate,
        context=context,
    )
    await batch.run()
    return done


async def stream_calls(
    paths: Paths,
    calls: Iterable[Entry] | AsyncIterator[Entry],
    options: RunOptions,
    limit: int | None = None,
) -> AsyncGenerator[ToolResult]:
    """Results of `calls` as they come, items of streaming tools as partial results.

    The source is read, and tools go on, only as fast as results are taken. Leaving the
    loop cancels what still runs.
    """
    context = request_context(options.context)
    opener = Opener(paths, options, context)
    queue: asyncio.Queue[ToolResult | None] = asyncio.Queue(_MAX_UNREAD)

    def sink(_place: int, result: ToolResult) -> Awaitable[None] | None:
        return put(queue, result)

    if options.items:
        opener.emit = Emitter(queue)
    total = float("inf")
    if isinstance(calls, Sequence):
        calls = tuple(calls)  # a tool may get hold of the caller's list
        total = len(calls)
    batch = Batch(
        calls if isinstance(calls, AsyncIterator) else iter(enumerate(calls)),
        opener,
        sink,
        paths.shop,
        total=total,
        gate=opener.gate,
        limit=limit,
        context=context,
    )
    batch.start()
    end = asyncio.ensure_future(_finish(batch, queue))
    try:
        while True:
            item = await queue.get()
            if item is None:
                break
            yield item
        await end
    finally:
        if not end.done():
            end.cancel()
            await batch.cancel()
            await asyncio.wait((end,))
        elif not end.cancelled():
            end.exception()  # who leaves before the end has no use for it


async def _finish(batch: Batch, queue: asyncio.Queue[ToolResult | None]) -> None:
    try:
        await batch.join()
    finally:
        task = asyncio.current_task()
        if task is None or not task.cancelling():  # else the reader has left
            await queue.put(None)
