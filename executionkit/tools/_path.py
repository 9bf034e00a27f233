"""The path of one call through its layers, built once per tool and configuration."""

from __future__ import annotations

from collections.abc import Coroutine
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from executionkit.calls import ToolResult, make_result
from executionkit.tools._arguments import prepare
from executionkit.tools._attempt import AttemptPath
from executionkit.tools._exits import odd_failure
from executionkit.tools._machine import machine_name
from executionkit.tools._nesting import MAKES_CALLS
from executionkit.tools._parts import Counts, PathParts
from executionkit.tools._settle import failed_result, unusable_result
from executionkit.tools._streaming import shown_items
from executionkit.tools.middleware._base import compose
from executionkit.tools.middleware._flights import LEAD
from executionkit.tools.middleware.breaker import BreakerLayer

if TYPE_CHECKING:
    from executionkit.engine.retry import RetryConfig
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import Next, ToolRequest
    from executionkit.tools.middleware.cache import Flight

__all__ = ("Counts", "PathParts", "ToolPath")


class ToolPath(AttemptPath):
    """From a call to its result, for one tool."""

    __slots__ = (
        "_cache",
        "_circuit",
        "_guards",
        "_inner",
        "_is_general",
        "_machine",
        "_once",
        "_tracer",
    )

    def __init__(
        self, record: ToolRecord, parts: PathParts, counts: Counts | None = None
    ) -> None:
        super().__init__(record, parts, counts)
        self._guards = parts.guards
        self._cache = parts.cache
        self._once = parts.cache or parts.once
        self._tracer = parts.tracer
        self._machine = machine_name()
        self._circuit = next(
            (x.circuit for x in parts.layers if isinstance(x, BreakerLayer)), None
        )
        self._inner: Next = compose(parts.middleware, self._outermost())
        # What may have to wait before the first attempt, or around it.
        self._is_general = bool(
            parts.middleware
            or parts.guards
            or (parts.cache is not None and not parts.cache.is_sync)
            or (parts.retry is not None and not _is_simple(parts.retry))
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, outermost first."""
        parts = self.parts
        names = ["trace"] if parts.tracer is not None else []
        names += [getattr(m, "__name__", type(m).__name__) for m in parts.middleware]
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
        if self._cache is not None:
            return self._cached
        return self._attempt if self._retry is None else self._retrying

    def first(self, request: ToolRequest) -> Any:  # noqa: C901, PLR0912 - calls cost time here
        """Make the first step of a call right here.

        Most calls end with it, and cost neither a task nor a coroutine of ours.

        Returns:
            The result, or a coroutine of it: the rest, which must be run.
        """
        if self._is_general or request.is_special:
            return self.run(request)
        request.began = began = self._now()
        self._counts.calls += 1
        key: str | None = None
        entered = 0
        try:
            arguments = request.arguments or prepare(self.record, request)
            if self._cache is not None and request.use_cache:
                key, value = self._look_up(request)
                if request.cached:
                    return self._result(request, value, began)
                if value is not None:
                    return self._follow(request, began, key or "", value)
            for enter in self._enters:
                waiting = enter(request)
                if waiting is not None:
                    rest = self._enter_later(request, entered, waiting)
                    return self._rest(request, began, key, rest)
                entered += 1
            if self._shop.is_closed or request.deadline is not None:
                self._check_time(request)
            if self._is_held:
                MAKES_CALLS.set(request)
            request.started = True
            request.attempts = 1
            coro = self._execute(**arguments) if self._execute else self._start(request)
            try:
                waits_for = coro.send(None)
            except StopIteration as stop:
                value = stop.value
            else:
                rest = self._end_later(request, coro, waits_for)
                return self._rest(request, began, key, rest)
            entered = 0
            for leave in self._leaves:
                leave(request, None)
            if key is not None:
                self._cache.done(key, request, value)  # type: ignore[union-attr]
            return self._result(request, value, began)
        except BaseException as exc:  # noqa: BLE001 - a failure is a result
            return self._first_failed(request, began, key, entered, exc)

    def _first_failed(
        self,
        request: ToolRequest,
        began: float,
        key: str | None,
        entered: int,
        exc: BaseException,
    ) -> Any:
        if not isinstance(exc, Exception):
            failure = odd_failure(exc, request.call.name)
            if failure is not None:
                failure.__cause__ = exc
                exc = failure
        for layer in reversed(self._layers[:entered]):
            layer.leave(request, exc)
        if self._retry is not None and isinstance(exc, Exception):
            return self._rest(request, began, key, _raised(exc))
        if key is not None and self._cache is not None:
            self._cache.failed(key, request, exc)
        if not isinstance(exc, Exception):
            raise exc
        return self._failed(request, exc, began)

    def _look_up(self, request: ToolRequest) -> tuple[str | None, Any]:
        """(key, cached value or an equal call in flight); no key = not cached.

        With a key and nothing else, this call leads: `done` or `failed` must follow.
        """
        cache: Any = self._cache
        key = cache.key(request)
        if key is None:
            return None, None
        found = cache.lookup(key)
        if found is not None:
            request.cached = True
            self._counts.cached += 1
            return key, found.value
        flight = cache.join(key)
        if flight is None:
            request.leads = key
        return key, flight

    async def _follow(
        self, request: ToolRequest, began: float, key: str, flight: Flight
    ) -> ToolResult:
        """Wait for an equal call; do its work when it is gone."""
        cache: Any = self._cache
        try:
            value = await cache.wait(flight, request)
        except Exception as exc:  # noqa: BLE001 - a failure is a result
            return self._failed(request, exc, began)
        if value is LEAD:
            return await self._rest(request, began, key, self._attempt(request))
        request.cached = True
        self._counts.cached += 1
        return self._result(request, value, began)

    async def _rest(
        self,
        request: ToolRequest,
        began: float,
        key: str | None,
        attempt: Coroutine[Any, Any, Any],
    ) -> ToolResult:
        """What is left of a call whose first attempt has begun."""
        cache: Any = self._cache
        try:
            if self._retry is None:
                value = await attempt
            else:
                value = await self._retrying(request, attempt)
            if key is not None:
                cache.done(key, request, value)
        except BaseException as exc:
            if key is not None:
                cache.failed(key, request, exc)
            if isinstance(exc, Exception):
                return self._failed(request, exc, began)
            raise
        return self._result(request, value, began)

    async def run(self, request: ToolRequest) -> ToolResult:
        """Run a call to its end; only a cancellation is raised."""
        request.began = began = self._now()
        self._counts.calls += 1
        try:
            value = await (self._special(request) or self._inner)(request)
            return self._result(request, value, began)
        except Exception as exc:  # noqa: BLE001 - a failure is a result
            return self._failed(request, exc, began)

    def _result(self, request: ToolRequest, value: Any, began: float) -> ToolResult:
        shop = self._shop
        try:
            return make_result(
                request.call,
                value,
                began + shop.offset,
                self._now() - began,
                request.attempts,
                request.cached,
                self._machine,
                request.pid or shop.pid,
                tuple(request.warnings) if request.warnings else (),
            )
        except (ValueError, TypeError, RecursionError) as exc:
            # No matter of trying again: the tool has run.
            error = unusable_result(request.call, value, exc)
            return self._failed(request, error, began)

    def _special(self, request: ToolRequest) -> Next | None:
        """The way of a call that brings retries or an idempotency key of its own."""
        if not request.is_special or self._guards is not None:
            return None
        inner: Next = self._cached
        middleware = self.parts.middleware
        return compose(middleware, inner) if middleware else inner

    async def run_traced(self, request: ToolRequest) -> ToolResult:
        """The same, told to those who watch."""
        tracer = self._tracer
        if tracer is None:
            return await self.run(request)
        request.is_cacheable = self._cache is not None and request.use_cache
        request.circuit = self._circuit
        traced = await tracer.begin(request)
        try:
            result = await self.run(request)
        except BaseException as exc:
            await traced.end(None, exc, self._now())
            raise
        await traced.end(result, result.exception, self._now())
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
            pid=request.pid,
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


def _is_simple(config: RetryConfig) -> bool:
    """Whether nothing has to be had before the first attempt."""
    return config.budget is None and config.rate_limit_strategy is None


async def _raised(exc: Exception) -> Any:
    raise exc
