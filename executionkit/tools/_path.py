"""The path of one call through its layers, built once per tool and configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
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
    from executionkit.tools.middleware._base import (
        Layer,
        Middleware,
        Next,
        ToolRequest,
    )
    from executionkit.tools.middleware.cache import CacheLayer

__all__ = ("PathParts", "ToolPath")


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
    retry: RetryConfig | None = None
    layers: tuple[Layer, ...] = ()
    """Around each attempt, outermost first."""

    middleware: tuple[Middleware, ...] = ()
    """Layers of the user, around everything else."""

    tracer: Any = None


class ToolPath:
    """From a call to its result, for one tool."""

    __slots__ = (
        "_cache",
        "_clock",
        "_enters",
        "_guards",
        "_inner",
        "_layers",
        "_machine",
        "_now",
        "_retry",
        "_shop",
        "_start",
        "_tracer",
        "parts",
        "record",
        "timeout",
    )

    def __init__(self, record: ToolRecord, parts: PathParts) -> None:
        self.record: ToolRecord = record
        self.parts: PathParts = parts
        self.timeout: float | None = parts.timeout
        self._shop = parts.shop
        self._clock = parts.shop.clock
        self._start = parts.start
        self._guards = parts.guards
        self._cache = parts.cache
        self._retry = parts.retry
        self._layers = parts.layers
        self._tracer = parts.tracer
        self._enters = tuple(layer.enter for layer in parts.layers)
        self._machine = machine_name()
        self._now = self._clock.monotonic
        self._inner: Next | None = self._outermost()
        if parts.middleware:
            self._inner = compose(parts.middleware, self._inner or self._attempt)

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

    def _outermost(self) -> Next | None:
        if self._guards is not None:
            return self._guarded
        if self._cache is not None:
            return self._cached
        if self._retry is not None:
            return self._retrying
        return self._attempt if self._layers else None

    async def run(self, request: ToolRequest) -> ToolResult:
        """Run a call to its end; only a cancellation is raised."""
        shop = self._shop
        now = self._now
        began = now()
        traced = self._tracer and self._tracer.begin(request)
        try:
            if self._inner is None:  # nothing but the tool, which is common
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
        except BaseException as exc:
            if traced:
                traced.end(request, None, exc)
            raise
        if traced:
            traced.end(request, result, result.exception)
        return result

    def _failed(self, request: ToolRequest, exc: Exception, began: float) -> ToolResult:
        return failed_result(
            request.call,
            exc,
            attempts=request.attempts,
            start_time=began + self._shop.offset,
            duration=self._now() - began,
            retried=bool(getattr(exc, "retries_exhausted", request.attempts > 1)),
            partial=shown_items(request),
            warnings=tuple(request.warnings or ()),
        )

    async def _guarded(self, request: ToolRequest) -> Any:
        guards = self._guards
        waiting = guards.enter(request)
        if waiting is not None:
            await waiting
        if self._cache is not None:
            value = await self._cached(request)
        elif self._retry is not None or request.retry is not None:
            value = await self._retrying(request)
        else:
            value = await self._attempt(request)
        value = guards.finish(request, value)
        return await value if asyncio.iscoroutine(value) else value

    async def _cached(self, request: ToolRequest) -> Any:
        cache = self._cache
        if cache is None or not request.use_cache:
            return await self._retrying(request)
        if request.arguments is None:
            prepare(self.record, request)
        return await cache(request, self._retrying)

    async def _retrying(self, request: ToolRequest) -> Any:
        config = request.retry or self._retry
        if config is None or not config.max_retries:
            return await self._attempt(request)
        if config.budget is not None or config.rate_limit_strategy is not None:
            run = Attempts(config, self._clock, None, request.deadline)
            await run.first_attempt()
        else:
            try:
                return await self._attempt(request)
            except Exception as exc:
                run = Attempts(config, self._clock, None, request.deadline)
                run.number = 1
                if not await run.next_attempt(exc):
                    raise
        return await run.go_on(lambda _number: self._attempt(request))

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
