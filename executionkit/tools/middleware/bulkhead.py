"""The bulkhead's layer: a slot of every level per attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executionkit.engine.bulkhead import Bulkhead, BulkheadConfig
from executionkit.errors import BulkheadFullError
from executionkit.tools._running import out_of_time
from executionkit.tools.middleware._base import Layer

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from executionkit._clock import Clock
    from executionkit.engine._slots import Slots
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("BulkheadLayer", "Bulkheads")

_UNLIMITED = 2**62


class Bulkheads:
    """One bulkhead for all tools.

    Args:
        config: The limits. None = only those that tools have of their own.
        clock: Measures waits.
    """

    def __init__(self, config: BulkheadConfig | None, clock: Clock) -> None:
        self._clock = clock
        self._has_limits = config is not None
        self.bulkhead: Bulkhead = Bulkhead(
            config or BulkheadConfig(default_limit=_UNLIMITED), clock=clock
        )

    def bind(self, record: ToolRecord) -> BulkheadLayer | None:
        """The layer of one tool; None when no limit concerns it."""
        config = self.bulkhead.config
        own = record.tool.max_concurrency
        if own is not None and not any(n in config.tool_limits for n in record.names):
            self.bulkhead.configure_tool(record.full_name, own)
        elif not self._has_limits:
            return None
        return BulkheadLayer(self.bulkhead, record, self._clock)


class BulkheadLayer(Layer):
    """Takes a slot of the tool, its pattern, its namespace and of all, or waits."""

    __slots__ = ("_clock", "_places", "_route", "_slots", "_timeout")

    name = "bulkhead"
    lends = True

    def __init__(self, bulkhead: Bulkhead, record: ToolRecord, clock: Clock) -> None:
        self._slots: Slots = bulkhead.slots
        self._route = self._slots.pin(record.name, record.namespace)
        self._places = (self._route,)
        self._timeout = bulkhead.config.acquisition_timeout
        self._clock = clock

    def enter(self, request: ToolRequest, /) -> Awaitable[None] | None:
        if self._slots.try_pass(self._route):
            request.places = self._places
            return None
        return self._wait(request)

    def leave(self, request: ToolRequest, _exc: BaseException | None, /) -> None:
        request.places = ()
        if request.loans is None:
            self._slots.leave(self._route)
        else:
            self._slots.leave(self._route, request)

    async def _wait(self, request: ToolRequest) -> None:
        began = self._clock.monotonic()
        timeout = self._timeout
        by_deadline = False
        if request.deadline is not None:
            left = max(0.0, request.deadline - began)
            if timeout is None or left < timeout:
                timeout, by_deadline = left, True
        route = self._route
        call = None if request.caller is None else request
        try:
            await self._slots.enter(route.tool, route.namespace, timeout, call)
        except BulkheadFullError as exc:
            if by_deadline and exc.timeout is not None:
                raise out_of_time(request, "was not started") from exc
            raise
        finally:
            request.waited("slot", self._clock.monotonic() - began)
        request.places = self._places
