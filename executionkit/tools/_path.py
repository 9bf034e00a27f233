"""The path of one call through its layers, built once per tool and configuration."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from executionkit.calls import ToolResult, make_result
from executionkit.engine._attempts import Attempts
from executionkit.errors import ToolCancelledError
from executionkit.tools._arguments import prepare
from executionkit.tools._machine import machine_name
from executionkit.tools._running import SHUT_DOWN, Running, out_of_time
from executionkit.tools._settle import failed_result
from executionkit.tools._streaming import shown_items
from executionkit.tools.middleware._base import compose

if TYPE_CHECKING:
    from executionkit.engine.retry import RetryConfig
    from executionkit.tools._record import ToolRecord
    from executionkit.tools._running import Workshop
    from executionkit.tools._trace import Tracer
    from executionkit.tools.middleware._base import (
        Layer,
        Middleware,
        Next,
        ToolRequest,
    )
    from executionkit.tools.middleware.cache import CacheLayer

__all__ = ("Counts", "PathParts", "ToolPath")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathParts:
    """What a path is made of. What is not there costs nothing."""

    start: Callable[[ToolRequest], Coroutine[Any, Any, Any]]
    """The strategy: begins the tool."""

    shop: Workshop
    """Where the tools at work are booked."""

    timeout: float | None = None
    """Seconds per attempt; None = no limit."""

    guards: Any = None
    cache: CacheLayer | None = None
    once: CacheLayer | None = None
    """Honours idempotency keys, also where nothing is cached."""

    retry: RetryConfig | None = None
    layers: tuple[Layer, ...] = ()
    """Around each attempt, outermost first."""

    middleware: tuple[Middleware, ...] = ()
    """Layers of the user, around everything else."""

    tracer: Tracer | None = None

    repeats: bool = True
    """Whether a call that was begun and failed may be begun again."""


class Counts:
    """What became of the calls of one tool."""

    __slots__ = ("cached", "calls", "failures", "retries")

    def __init__(self) -> None:
        self.calls: int = 0
        self.failures: int = 0
        self.cached: int = 0
        self.retries: int = 0


class ToolPath:
    """From a call to its result, for one tool."""

    __slots__ = (
        "_cache",
        "_clock",
        "_counts",
        "_enters",
        "_guards",
        "_inner",
        "_is_plain",
        "_layers",
        "_machine",
        "_now",
        "_once",
        "_repeats",
        "_retry",
        "_shop",
        "_start",
        "_tracer",
        "parts",
        "record",
        "timeout",
    )

    def __init__(
        self, record: ToolRecord, parts: PathParts, counts: Counts | None = None
    ) -> None:
        self.record: ToolRecord = record
        self.parts: PathParts = parts
        self.timeout: float | None = parts.timeout
        self._shop = parts.shop
        self._clock = parts.shop.clock
        self._start = parts.start
        self._guards = parts.guards
        self._cache = parts.cache
        self._once = parts.cache or parts.once
        self._retry = parts.retry
        self._layers = parts.layers
        self._repeats = parts.repeats
        self._tracer = parts.tracer
        self._counts = counts or Counts()
        self._enters = tuple(layer.enter for layer in parts.layers)
        self._machine = machine_name()
        self._now = self._clock.monotonic
        self._inner: Next = compose(parts.middleware, self._outermost())
        # Nothing but the tool: common, and run without a step in between.
        self._is_plain = not (
            parts.middleware
            or parts.guards
            or parts.cache
            or parts.retry
            or parts.layers
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, outermost first."""
        parts = self.parts
        names = [type(item).__name__ for item in parts.middleware]
        names += ["trace"] if parts.tracer is not None else []
        names += ["guards"] if parts.guards is not None else []
        names += ["validation"]
        names += ["cache"] if parts.cache is not None else []
        names += ["retry"] if parts.retry is not None else []
        names += [layer.name for layer in parts.layers]
        names += ["timeout"] if parts.timeout is not None else []
        return (*names, "strategy")

    def _outermost(self) -> Next:
        if self._guards is not None:
            return self._guarded
        return self._cached

    async def run(self, request: ToolRequest) -> ToolResult:
        """Run a call to its end; only a cancellation is raised."""
        shop = self._shop
        now = self._now
        began = now()
        self._counts.calls += 1
        try:
            if self._is_plain and not request.is_special:
                if request.arguments is None:
                    prepare(self.record, request)
                self._admit(request)
                coro = self._start(request)
                try:
                    waits_for = coro.send(None)
                except StopIteration as stop:
                    value = stop.value
                else:
                    value = await Running(request, coro, waits_for, shop)
            else:
                value = await self._inner(request)
            duration = now() - began
            result = make_result(
                request.call,
                value,
                began + shop.offset,
                duration,
                request.attempts,
                request.cached,
                self._machine,
                shop.pid,
                tuple(request.warnings) if request.warnings else (),
            )
        except Exception as exc:  # noqa: BLE001 - a failure is a result
            result = self._failed(request, exc, began)
        return result

    async def run_traced(self, request: ToolRequest) -> ToolResult:
        """The same, told to those who watch."""
        tracer = self._tracer
        if tracer is None:
            return await self.run(request)
        traced = await tracer.begin(request)
        try:
            result = await self.run(request)
        except BaseException as exc:
            await traced.end(None, exc)
            raise
        await traced.end(result, result.exception)
        return result

    def _failed(self, request: ToolRequest, exc: Exception, began: float) -> ToolResult:
        self._counts.failures += 1
        return failed_result(
            request.call,
            exc,
            attempts=request.attempts,
            start_time=began + self._shop.offset,
            duration=self._now() - began,
            retried=request.attempts > 1,
            partial=shown_items(request),
            warnings=tuple(request.warnings or ()),
        )

    async def _guarded(self, request: ToolRequest) -> Any:
        guards: Any = self._guards
        waiting = guards.enter(request)
        if waiting is not None:
            await waiting
        try:
            value = await self._cached(request)
        except BaseException as exc:
            guards.leave(request, exc)
            raise
        finished = guards.finish(request, value)
        return await finished if iscoroutine(finished) else finished

    async def _cached(self, request: ToolRequest) -> Any:
        layer = self._cache
        if layer is None and request.call.idempotency_key is not None:
            layer = self._once
        if layer is None:
            return await self._retrying(request)
        if request.arguments is None:
            prepare(self.record, request)
        value = await layer(request, self._retrying)
        if request.cached:
            self._counts.cached += 1
        return value

    async def _retrying(self, request: ToolRequest) -> Any:
        config = request.retry or self._retry
        if config is None or not config.max_retries:
            return await self._attempt(request)
        run: Attempts | None = None
        if config.budget is not None or config.rate_limit_strategy is not None:
            run = Attempts(config, self._clock, None, request.deadline)
            await run.first_attempt()
        while True:
            try:
                return await self._attempt(request)
            except Exception as exc:
                if request.started and not self._repeats:
                    raise
                if run is None:
                    run = Attempts(config, self._clock, None, request.deadline)
                    run.number = 1
                if not await run.next_attempt(exc):
                    raise
                self._counts.retries += 1

    async def _attempt(self, request: ToolRequest) -> Any:
        if request.arguments is None:
            prepare(self.record, request)
        entered = 0
        request.started = False
        try:
            for enter in self._enters:
                waiting = enter(request)
                if waiting is not None:
                    await waiting
                entered += 1
            self._admit(request)
            coro = self._start(request)
            try:
                waits_for = coro.send(None)
            except StopIteration as stop:
                value = stop.value
            else:
                value = await Running(request, coro, waits_for, self._shop)
        except BaseException as exc:
            for layer in self._layers[entered - 1 :: -1] if entered else ():
                layer.leave(request, exc)
            raise
        if entered:
            for layer in reversed(self._layers):
                layer.leave(request, None)
        return value

    def _admit(self, request: ToolRequest) -> None:
        """Check that the tool may begin: from here on it may have effects."""
        if self._shop.is_closed:
            raise ToolCancelledError(SHUT_DOWN)
        deadline = request.deadline
        if deadline is not None and deadline <= self._now():
            raise out_of_time(request, "was not started")
        request.started = True
        request.attempts += 1
