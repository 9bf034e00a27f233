"""The state behind limits and circuits, by the name of a tool, in this process."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from executionkit._clock import get_clock
from executionkit.calls import ToolCall
from executionkit.engine.breaker import (
    BreakerConfig,
    CircuitBreaker,
    CircuitState,
    Ticket,
)
from executionkit.errors import ToolCircuitOpenError
from executionkit.tools._lookup import most_specific
from executionkit.tools._wrapping import KnownTool, checked
from executionkit.tools.middleware._base import ToolRequest
from executionkit.tools.middleware.breaker import shown_state
from executionkit.tools.middleware.rate_limit import RateLimitOptions, RateLimits

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.engine.rate_bucket import SlidingWindow
    from executionkit.tools.middleware.rate_limit import RateLimitLayer

__all__ = (
    "CircuitBreakerInterface",
    "Circuits",
    "RateLimiter",
    "RateLimiterInterface",
    "ToolCircuitBreaker",
)

_MAX_CIRCUITS: Final = 1024
_MAX_OPEN_CALLS: Final = 10_000


@runtime_checkable
class RateLimiterInterface(Protocol):
    """Gives permits by the name of a tool."""

    async def wait(self, tool: str) -> None:
        """Wait until `tool` may start, and count the start."""
        ...


@runtime_checkable
class CircuitBreakerInterface(Protocol):
    """Decides by the name of a tool whether it may be called.

    Each `can_execute` that says True is followed by one report. An object that also has
    `async release(tool)` is told of calls that say nothing about the tool: cancelled,
    or refused before they reached it.
    """

    async def can_execute(self, tool: str) -> bool:
        """Whether `tool` may be called now."""
        ...

    async def record_success(self, tool: str) -> None:
        """The call worked."""
        ...

    async def record_failure(self, tool: str) -> None:
        """The call failed in a way that counts."""
        ...


class RateLimiter:
    """How many calls may start in any window of time, in this process.

    A permit is taken of all tools' limit and of the tool's own in the same moment: who
    waits for one of them has used up nothing of the other. First in, first out.

    Args:
        global_limit: Starts of all tools together per `global_period`. None = no limit.
        global_period: Seconds.
        tool_limits: (starts, seconds) by full name, bare name, or glob.
        clock: None = the clock of the current context.

    Raises:
        ValueError: For a limit below 1 or a period that is not above 0.
    """

    def __init__(
        self,
        *,
        global_limit: int | None = None,
        global_period: float = 60.0,
        tool_limits: Mapping[str, tuple[int, float]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = RateLimitOptions(
            global_limit=global_limit,
            global_period=global_period,
            tool_limits=tool_limits or {},
        )
        self._clock: Clock = clock or get_clock()
        self._limits = RateLimits(options, self._clock)
        self._has_overall = global_limit is not None

    def layer(self, record: Any) -> Any:
        """The layer of one tool; None when no limit concerns it."""
        return self._limits.bind_local(record)

    async def wait(self, tool: str, timeout: float | None = None) -> None:
        """Wait until `tool` may start, and count the start.

        Args:
            tool: The full name, or the bare one.
            timeout: Seconds to wait at most. None = no limit; 0 = do not wait.

        Raises:
            ToolRateLimitedError: At once, when it cannot start in time.
        """
        known: Any = KnownTool(tool, "default")
        layer = self.layer(known)
        if layer is None:
            return
        request = ToolRequest(ToolCall("", tool), known, None)
        if timeout is not None:
            request.deadline = self._clock.monotonic() + timeout
        waiting = layer.enter(request)
        if waiting is not None:
            await waiting

    async def check_limits(self, tool: str) -> tuple[bool, bool]:
        """(all tools' limit is reached, the tool's own is reached); takes nothing."""
        own, overall = self._windows(tool)
        return (
            overall is not None and overall.wait_time() > 0,
            own is not None and own.wait_time() > 0,
        )

    async def get_usage(self, tool: str | None = None) -> dict[str, dict[str, Any]]:
        """`used`, `limit`, `period` and `remaining`: of `"global"`, and by name.

        Args:
            tool: Also this tool's, where it has a limit. None = all that have a name.
        """
        usage = self._limits.get_usage()
        if tool is not None:
            own, _ = self._windows(tool)
            usage = {name: usage[name] for name in usage if name == "global"}
            if own is not None:
                usage[tool] = own.usage()
        return {
            name: {
                "used": item.used,
                "limit": item.limit,
                "period": item.period,
                "remaining": item.remaining,
            }
            for name, item in usage.items()
        }

    async def reset(self, tool: str | None = None) -> None:
        """Forget the starts of a tool; None = all starts."""
        if tool is None:
            self._limits.reset()
            return
        own, _ = self._windows(tool)
        if own is not None:
            own.reset()

    def _windows(self, tool: str) -> tuple[SlidingWindow | None, SlidingWindow | None]:
        """The tool's own window, and that of all tools."""
        known: Any = KnownTool(tool, "default")
        layer: RateLimitLayer | None = self._limits.bind_local(known)
        if layer is None:
            return None, None
        windows = layer.windows
        overall = windows[-1] if self._has_overall else None
        own = windows[0] if len(windows) > self._has_overall else None
        return own, overall


class Circuits:
    """The circuits of tools by name; 1024 are kept, those at rest are forgotten first.

    Args:
        default: For tools that `configs` does not name.
        configs: By full name, bare name, or glob.
        clock: Measures times.
    """

    __slots__ = ("_clock", "_configs", "_default", "by_name")

    def __init__(
        self,
        default: BreakerConfig | None,
        configs: Mapping[str, BreakerConfig] | None,
        clock: Clock,
    ) -> None:
        self._default = BreakerConfig() if default is None else default
        checked("default_config", {"": self._default}, BreakerConfig)
        self._configs: Mapping[str, BreakerConfig] = checked(
            "tool_configs", configs, BreakerConfig
        )
        self._clock = clock
        self.by_name: dict[str, CircuitBreaker] = {}

    def config(self, names: tuple[str, ...]) -> BreakerConfig:
        """The settings of a tool; the full name first."""
        return most_specific(self._configs, names) or self._default

    def get(self, names: tuple[str, ...]) -> CircuitBreaker:
        """The circuit of a tool; the full name first."""
        circuit = self.by_name.get(names[0])
        if circuit is None:
            if len(self.by_name) >= _MAX_CIRCUITS:
                self._make_room()
            circuit = self.by_name[names[0]] = self.new(names)
        return circuit

    def new(self, names: tuple[str, ...]) -> CircuitBreaker:
        """A circuit that is not kept."""
        return CircuitBreaker(self.config(names), name=names[0], clock=self._clock)

    def state(self, names: tuple[str, ...]) -> dict[str, Any]:
        """How a circuit stands; one that is not kept is closed."""
        shown = (self.by_name.get(names[0]) or self.new(names)).snapshot()
        return shown_state(shown, self.config(names))

    def states(self) -> dict[str, dict[str, Any]]:
        """How each circuit stands, by the tool's full name."""
        return {name: self.state(_names(name)) for name in self.by_name}

    def reset(self, names: tuple[str, ...]) -> None:
        """Close a circuit and forget its failures."""
        circuit = self.by_name.get(names[0])
        if circuit is not None:
            circuit.reset()

    def _make_room(self) -> None:
        """Forget a circuit: one at rest if there is one, else the oldest."""
        resting = (
            name
            for name, circuit in self.by_name.items()
            if circuit.state is CircuitState.CLOSED
            and not circuit.snapshot().failure_count
        )
        del self.by_name[next(resting, None) or next(iter(self.by_name))]


class ToolCircuitBreaker:
    """One circuit per tool, in this process.

    `can_execute` and the reports after it may come from anywhere: a report belongs to
    the oldest open call of the same task, else to the oldest open one. A probe that is
    never reported gives its place back after `reset_timeout` seconds.

    1024 circuits are kept; those that have nothing to remember go first.

    Args:
        default_config: For tools that `tool_configs` does not name. None = the defaults.
        tool_configs: By full name, bare name, or glob.
        clock: None = the clock of the current context.

    Raises:
        TypeError: When one of them is no `BreakerConfig`.
    """

    def __init__(
        self,
        *,
        default_config: BreakerConfig | None = None,
        tool_configs: Mapping[str, BreakerConfig] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._circuits = Circuits(
            _leased(BreakerConfig() if default_config is None else default_config),
            {name: _leased(config) for name, config in (tool_configs or {}).items()},
            clock or get_clock(),
        )
        self._open: dict[str, deque[tuple[object, Ticket]]] = {}

    async def can_execute(self, tool: str) -> bool:
        """Whether `tool` may be called now; when it may, report how that ended."""
        names = _names(tool)
        try:
            ticket = self._circuits.get(names).before()
        except ToolCircuitOpenError:
            return False
        if names[0] not in self._open:
            self._forget_strangers()
            self._open[names[0]] = deque(maxlen=_MAX_OPEN_CALLS)
        self._open[names[0]].append((_task(), ticket))
        return True

    async def record_success(self, tool: str) -> None:
        """The call worked."""
        ticket = self._ticket(tool)
        if ticket is not None:
            ticket.success()

    async def record_failure(self, tool: str) -> None:
        """The call failed in a way that counts. Counts without `can_execute`, too."""
        ticket = self._ticket(tool)
        if ticket is not None:
            ticket.failure()

    async def release(self, tool: str) -> None:
        """The call says nothing about the tool: cancelled, or never sent."""
        ticket = self._ticket(tool)
        if ticket is not None:
            ticket.abandon()

    async def get_state(self, tool: str) -> dict[str, Any]:
        """How the circuit of a tool stands; one that was never called is closed.

        `opened_at` is monotonic time; `time_until_half_open` is 0 when probes are due,
        and None unless the circuit is open.
        """
        return self._circuits.state(_names(tool))

    async def get_all_states(self) -> dict[str, dict[str, Any]]:
        """`get_state` of each tool that was called."""
        return self.states()

    async def reset(self, tool: str) -> None:
        """Close the circuit of a tool and forget its failures."""
        self.reset_now(tool)

    async def reset_all(self) -> int:
        """Close all circuits; how many there were."""
        names = tuple(self._circuits.by_name)
        for name in names:
            self.reset_now(name)
        return len(names)

    def states(self) -> dict[str, dict[str, Any]]:
        """`get_all_states`, without an await."""
        return self._circuits.states()

    def reset_now(self, tool: str) -> None:
        """`reset`, without an await."""
        names = _names(tool)
        self._open.pop(names[0], None)
        self._circuits.reset(names)

    def _ticket(self, tool: str) -> Ticket | None:
        """The open call that a report is about; None when the report counts nothing."""
        names = _names(tool)
        calls = self._open.get(names[0])
        if not calls:
            circuit = self._circuits.get(names)
            is_closed = circuit.state is CircuitState.CLOSED
            return circuit.before() if is_closed else None
        task = _task()
        found = next((item for item in calls if item[0] == task), calls[0])
        calls.remove(found)
        if not calls:
            del self._open[names[0]]
        return found[1]

    def _forget_strangers(self) -> None:
        """Forget the open calls of circuits that are no longer kept."""
        if len(self._open) >= _MAX_CIRCUITS:
            kept = self._circuits.by_name
            self._open = {n: calls for n, calls in self._open.items() if n in kept}


def _leased(config: Any) -> Any:
    """`config` with an end for probes that nobody reports."""
    if not isinstance(config, BreakerConfig) or config.probe_lease is not None:
        return config
    return replace(config, probe_lease=config.reset_timeout or None)


def _names(tool: str) -> tuple[str, ...]:
    return KnownTool(tool, "default").names


def _task() -> object:
    """Who asks, without keeping it alive."""
    task = asyncio.current_task()
    return None if task is None else weakref.ref(task)
