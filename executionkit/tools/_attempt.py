"""Attempts of one call: each through the layers that are around an attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from executionkit._redact import redact_exception_text
from executionkit.engine._attempts import Attempts
from executionkit.errors import ToolCancelledError
from executionkit.tools._arguments import prepare
from executionkit.tools._exits import odd_failure
from executionkit.tools._nesting import MAKES_CALLS
from executionkit.tools._parts import Counts, PathParts
from executionkit.tools._running import SHUT_DOWN, Running, out_of_time

if TYPE_CHECKING:
    from executionkit.engine.retry import RetryConfig
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("AttemptPath",)

_MAX_ROUNDS: Final = 8
"""How often a call tries for a slot and a permit together."""


class AttemptPath:
    """The inner half of a path: from the retries to the tool.

    Args:
        record: The tool.
        parts: What the path is made of.
        counts: What is counted; None = nobody looks.
    """

    __slots__ = (
        "_clock",
        "_counts",
        "_enters",
        "_execute",
        "_is_held",
        "_layers",
        "_leaves",
        "_moment",
        "_now",
        "_repeats",
        "_retry",
        "_shop",
        "_start",
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
        self._now = self._clock.monotonic
        self._start = parts.start
        self._execute = parts.function
        self._retry = parts.retry
        self._repeats = parts.repeats
        self._counts = counts or Counts()
        self._layers = parts.layers
        # Whether others may wait for what a call has while its tool makes calls.
        self._is_held = parts.cache is not None or any(
            layer.lends for layer in parts.layers
        )
        self._enters = tuple(layer.enter for layer in parts.layers)
        # Where the layer stands whose gift is meant for the moment of the start.
        self._moment = next(
            (at for at, layer in enumerate(parts.layers) if layer.is_moment), None
        )
        self._leaves = tuple(layer.leave for layer in reversed(parts.layers))

    async def _retrying(
        self, request: ToolRequest, first: Coroutine[Any, Any, Any] | None = None
    ) -> Any:
        """Attempts until one succeeds; the first one may have begun already."""
        config = request.retry or self._retry
        if config is None or not config.max_retries:
            return await (first or self._attempt(request))
        run = await self._paced(config, request)
        failure: Exception | None = None
        while True:
            attempt, first = first or self._attempt(request), None
            try:
                return await attempt
            except Exception as exc:
                if request.traced is not None:
                    await request.traced.attempt_failed(exc, self._now())
                if request.started:
                    failure = exc
                    if not self._repeats:
                        raise
                if run is None:
                    run = self._course(config, request)
                    run.number = 1
                if not await run.next_attempt(exc):
                    if failure is None or failure is exc:
                        raise
                    # A refusal is not what went wrong with this call.
                    why = redact_exception_text(exc)
                    request.warn(f"not tried again: {why}")
                    raise failure from None
                self._counts.retries += 1

    async def _paced(
        self, config: RetryConfig, request: ToolRequest
    ) -> Attempts | None:
        """The course of a call whose first attempt needs a permit, after it was had."""
        if config.budget is None and config.rate_limit_strategy is None:
            return None
        run = self._course(config, request)
        await run.first_attempt()
        return run

    def _course(self, config: RetryConfig, request: ToolRequest) -> Attempts:
        traced = request.traced
        return Attempts(
            config,
            self._clock,
            deadline=request.deadline,
            on_retry=None if traced is None else traced.on_retry,
            on_wait=None if traced is None else traced.scope.waited,
        )

    async def _attempt(self, request: ToolRequest) -> Any:
        if request.arguments is None:
            prepare(self.record, request)
        request.started = False
        return await self._enter_later(request, 0, None)

    async def _enter_later(
        self, request: ToolRequest, entered: int, waiting: Awaitable[None] | None
    ) -> Any:
        """The rest of an attempt: `waiting` first, then the layers from `entered` on."""
        inside = _Entered(entered)
        try:
            await self._enter_all(request, inside, waiting)
            self._admit(request)
            if self._is_held or request.leads is not None:
                MAKES_CALLS.set(request)
            coro = self._start(request)
            try:
                waits_for = coro.send(None)
            except StopIteration as stop:
                value = stop.value
            except BaseException as exc:
                failure = odd_failure(exc, request.call.name)
                if failure is None:
                    raise
                raise failure from exc
            else:
                value = await Running(request, coro, waits_for, self._shop)
        except BaseException as exc:
            for layer in reversed(self._layers[: inside.count]):
                layer.leave(request, exc)
            raise
        for leave in self._leaves:
            leave(request, None)
        return value

    async def _enter_all(
        self, request: ToolRequest, inside: _Entered, waiting: Awaitable[None] | None
    ) -> None:
        """Enter all layers; nothing is held for the start while a layer further in waits.

        When a slot is there and the permit that was given back is not, the slot is given
        back too, and both are tried for again.
        """
        layers, moment = self._layers, self._moment
        rounds = 0
        while True:
            while waiting is not None or inside.count < len(layers):
                if waiting is None:
                    waiting = self._enters[inside.count](request)
                if waiting is not None:
                    if moment is not None and inside.count > moment:
                        layers[moment].give_back(request)
                    await waiting
                    waiting = None
                inside.count += 1
            if moment is None or layers[moment].retake(request):
                return
            rounds += 1
            if rounds > _MAX_ROUNDS:  # enough: it keeps the slot and waits
                waiting = self._enters[moment](request)
                if waiting is not None:
                    await waiting
                return
            for layer in reversed(layers[moment + 1 : inside.count]):
                layer.leave(request, None)
            inside.count = moment

    async def _end_later(
        self, request: ToolRequest, coro: Coroutine[Any, Any, Any], waits_for: Any
    ) -> Any:
        """The rest of an attempt whose tool has begun."""
        try:
            value = await Running(request, coro, waits_for, self._shop)
        except BaseException as exc:
            for leave in self._leaves:
                leave(request, exc)
            raise
        for leave in self._leaves:
            leave(request, None)
        return value

    def _admit(self, request: ToolRequest) -> None:
        """Check that the tool may begin: from here on it may have effects."""
        self._check_time(request)
        request.started = True
        request.attempts += 1
        if request.traced is not None:
            request.traced.begins(self._now())

    def _check_time(self, request: ToolRequest) -> None:
        if self._shop.is_closed:
            raise ToolCancelledError(SHUT_DOWN)
        deadline = request.deadline
        if deadline is not None and deadline <= self._now():
            raise out_of_time(request, "was not started")


class _Entered:
    """How many layers a call is inside of."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count: int = count
