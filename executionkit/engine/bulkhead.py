"""Bulkheads: bounded concurrency per tool, pattern, namespace, and in all.

A call needs a slot of every level that concerns it, all in the same moment: a call that
waits for its own saturated tool holds no slot that others could use. The oldest waiter
whose slots are all there goes first. For one event loop at a time; not thread-safe.

What is known of a tool (its counters, the match of its name) is kept for the 1024 tools
used last, and for all that have calls in flight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from executionkit._clock import get_clock
from executionkit.engine._checks import check_int, check_number
from executionkit.engine._slots import DEFAULT_NAMESPACE, Route, Slots
from executionkit.types import freeze_mapping, sealed

if TYPE_CHECKING:
    from types import TracebackType

    from executionkit._clock import Clock

__all__ = ("Bulkhead", "BulkheadConfig", "BulkheadSlot", "BulkheadStats")


@sealed
@dataclass(frozen=True, slots=True)
class BulkheadConfig:
    """Limits. A name matches as `namespace.tool` first, then as the bare tool.

    The limit of a tool: `tool_limits` (exact name), else the first match in `patterns`,
    else `default_limit`. All tools that match one pattern share its slots.
    """

    default_limit: int = 10
    """Calls at once of a tool without a limit of its own."""

    tool_limits: Mapping[str, int] = field(default_factory=dict)
    """Name to calls at once. A bare name counts the tool in all namespaces together."""

    patterns: Mapping[str, int] = field(default_factory=dict)
    """Glob (`*` crosses dots) to calls at once of all matching tools together."""

    namespace_limits: Mapping[str, int] = field(default_factory=dict)
    """Namespace to calls at once of all its tools."""

    global_limit: int | None = None
    """Calls at once of all tools. None = no limit."""

    acquisition_timeout: float | None = None
    """Seconds to wait for a slot. None = no limit; 0 = do not wait."""

    max_queue_depth: int | None = None
    """Waiters per tool (per pattern where one applies); one more fails at once.
    None = no limit."""

    enable_metrics: bool = True
    """Read by the layer that emits metrics; the counters are kept either way."""

    def __post_init__(self) -> None:
        check_int("default_limit", self.default_limit, 1)
        for name in ("tool_limits", "patterns", "namespace_limits"):
            limits = freeze_mapping(getattr(self, name))
            for key, limit in limits.items():
                check_int(f"{name}[{key!r}]", limit, 1)
            object.__setattr__(self, name, limits)
        if self.global_limit is not None:
            check_int("global_limit", self.global_limit, 1)
        if self.acquisition_timeout is not None:
            check_number("acquisition_timeout", self.acquisition_timeout)
        if self.max_queue_depth is not None:
            check_int("max_queue_depth", self.max_queue_depth, 0)


@sealed
@dataclass(frozen=True, slots=True)
class BulkheadStats:
    """What one tool has done with its slots so far."""

    tool: str
    namespace: str
    acquired: int
    released: int
    rejected: int
    """Calls refused at once: the queue was full, or the caller would not wait."""

    timeouts: int
    """Calls refused after a wait."""

    current_active: int
    peak_active: int
    total_wait_time: float
    """Seconds, over all calls that had to wait."""

    waiting: int
    """Calls in the queue right now."""


class BulkheadSlot:
    """A place in the bulkhead: `async with bulkhead.acquire(...)`. Use it once."""

    __slots__ = ("_is_used", "_namespace", "_route", "_slots", "_timeout", "_tool")

    def __init__(
        self, slots: Slots, tool: str, namespace: str, timeout: float | None
    ) -> None:
        self._slots = slots
        self._tool = tool
        self._namespace = namespace
        self._timeout = timeout
        self._route: Route | None = None
        self._is_used = False

    async def __aenter__(self) -> None:
        if self._is_used:
            msg = "a slot is for one use at a time; call `acquire` for each"
            raise RuntimeError(msg)
        self._is_used = True
        try:
            await self._enter()
        except BaseException:
            self._is_used = False
            raise

    async def _enter(self) -> None:
        route = self._slots.try_enter(self._tool, self._namespace)
        if route is None:
            route = await self._slots.enter(self._tool, self._namespace, self._timeout)
        self._route = route

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        route, self._route = self._route, None
        self._is_used = False
        if route is not None:
            self._slots.leave(route)


class Bulkhead:
    """Slots for calls.

    Args:
        config: The limits. None = ten calls at once per tool.
        clock: None = the clock of the current context.
    """

    __slots__ = ("_config", "_slots")

    def __init__(
        self, config: BulkheadConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        self._config = config or BulkheadConfig()
        self._slots = Slots(self._config, clock or get_clock())

    @property
    def config(self) -> BulkheadConfig:
        """The limits that it was made with."""
        return self._config

    @property
    def slots(self) -> Slots:
        """The counting behind it, for who must not pay for a context manager."""
        return self._slots

    def acquire(
        self,
        tool: str,
        namespace: str = DEFAULT_NAMESPACE,
        timeout: float | None = None,
    ) -> BulkheadSlot:
        """A slot for one call of `tool`, to be entered with `async with`.

        Args:
            tool: The tool's name, bare or dotted.
            namespace: The namespace it lives in.
            timeout: Seconds to wait at most; 0 = do not wait. None =
                `acquisition_timeout` of the configuration.

        Raises:
            BulkheadFullError: On entering, when there is no slot in time;
                `limit_type` says which level was full.
        """
        if timeout is None:
            timeout = self._config.acquisition_timeout
        elif math.isnan(timeout):
            msg = "`timeout` must be a number of seconds or None, got nan"
            raise ValueError(msg)
        elif timeout == math.inf:
            timeout = None
        return BulkheadSlot(self._slots, tool, namespace, timeout)

    def configure_tool(self, tool: str, limit: int | None) -> None:
        """Set the limit of a tool; calls that run already count towards it.

        Args:
            tool: Its name, as in `tool_limits`.
            limit: Calls at once. None = back to its pattern or the default.
        """
        _set(self._slots.tool_limits, tool, limit)
        self._slots.rebuild()

    def configure_namespace(self, namespace: str, limit: int | None) -> None:
        """Set the limit of a namespace; calls that run already count towards it.

        Args:
            namespace: Its name.
            limit: Calls at once. None = no limit.
        """
        _set(self._slots.namespace_limits, namespace, limit)
        self._slots.rebuild()

    def get_tool_limit(self, tool: str, namespace: str = DEFAULT_NAMESPACE) -> int:
        """The limit that applies to a tool: its own, its pattern's, or the default."""
        route = Route(tool, namespace)
        route.resources = self._slots.resources_of(route)
        return route.scarce.limit or 0

    def get_namespace_limit(self, namespace: str) -> int | None:
        """The limit of a namespace; None = no limit."""
        return self._slots.namespace_limits.get(namespace)

    async def get_queue_depth(self, tool: str, namespace: str | None = None) -> int:
        """How many calls of a tool wait; `namespace=None` = in all namespaces."""
        return sum(
            route.waiting
            for route in self._slots.routes()
            if tool in route.names
            and (namespace is None or namespace == route.namespace)
        )

    def get_stats(
        self, tool: str, namespace: str = DEFAULT_NAMESPACE
    ) -> BulkheadStats | None:
        """The counters of a tool; None when it was never called."""
        route = self._slots.find(tool, namespace)
        return None if route is None else _stats(route)

    def get_all_stats(self) -> dict[str, BulkheadStats]:
        """The counters of all tools, by `namespace.tool`."""
        return {
            f"{route.namespace}.{route.tool}": _stats(route)
            for route in self._slots.routes()
        }


def _set(limits: dict[str, int], name: str, limit: int | None) -> None:
    if limit is None:
        limits.pop(name, None)
    else:
        limits[name] = check_int("limit", limit, 1)


def _stats(route: Route) -> BulkheadStats:
    return BulkheadStats(
        route.tool,
        route.namespace,
        route.acquired,
        route.released,
        route.rejected,
        route.timeouts,
        route.active,
        route.peak,
        route.wait_time,
        route.waiting,
    )
