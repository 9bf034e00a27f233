"""Limits and circuits of this process, behind the protocols of the stores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from executionkit._clock import get_clock
from executionkit.backends._limits import (
    BreakerLease,
    LimitPermit,
    LimitRule,
    Outcome,
)
from executionkit.engine.breaker import CircuitBreaker, CircuitState
from executionkit.engine.rate_bucket import SlidingWindow, WindowUsage, acquire_all

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.engine.breaker import BreakerConfig, BreakerSnapshot

__all__ = ("MemoryBreakers", "MemoryLimiter")

_MAX_KEYS: Final = 10_000


class MemoryLimiter:
    """Exact windows of this process; see `LimiterBackend`.

    Windows that nobody uses are dropped when there are very many keys.

    Args:
        clock: None = the clock of the current context.
        max_keys: Windows kept.
    """

    def __init__(
        self, clock: Clock | None = None, *, max_keys: int = _MAX_KEYS
    ) -> None:
        self._clock = clock or get_clock()
        self._max_keys = max_keys
        self._windows: OrderedDict[LimitRule, SlidingWindow] = OrderedDict()

    async def acquire(
        self,
        rules: Sequence[LimitRule],
        *,
        cost: int = 1,
        timeout: float | None = None,
    ) -> LimitPermit:
        windows = [self._window(rule) for rule in rules]
        await acquire_all(windows, cost, timeout=timeout)
        spent: list[float] = [self._clock.monotonic()]
        return LimitPermit(tuple(rules), cost, spent)

    async def refund(self, permit: LimitPermit) -> None:
        if not permit.token:
            return
        since = permit.token.pop()
        for rule in permit.rules:
            window = self._windows.get(rule)
            if window is not None:
                window.refund(permit.cost, since=since)

    async def usage(self, rule: LimitRule) -> WindowUsage:
        return self._window(rule).usage()

    async def reset(self, key: str | None = None) -> None:
        for rule, window in self._windows.items():
            if key is None or rule.key == key:
                window.reset()

    def _window(self, rule: LimitRule) -> SlidingWindow:
        window = self._windows.get(rule)
        if window is not None:
            self._windows.move_to_end(rule)
            return window
        window = SlidingWindow(rule.limit, rule.period, clock=self._clock)
        self._windows[rule] = window
        if len(self._windows) > self._max_keys:
            self._forget_one()
        return window

    def _forget_one(self) -> None:
        for rule, window in self._windows.items():
            if not window.usage().used and not window.stats().waiting:
                del self._windows[rule]
                return


class MemoryBreakers:
    """Circuits of this process; see `BreakerBackend`.

    Closed circuits without failures are dropped when there are very many keys.

    Args:
        clock: None = the clock of the current context.
        max_keys: Circuits kept.
    """

    def __init__(
        self, clock: Clock | None = None, *, max_keys: int = _MAX_KEYS
    ) -> None:
        self._clock = clock or get_clock()
        self._max_keys = max_keys
        self._circuits: OrderedDict[str, CircuitBreaker] = OrderedDict()

    async def before(self, key: str, config: BreakerConfig) -> BreakerLease:
        circuit = self._circuit(key, config)
        return BreakerLease(key, config, [(circuit, circuit.before())])

    async def report(self, lease: BreakerLease, outcome: Outcome) -> None:
        if not lease.token:
            return
        circuit, ticket = lease.token.pop()
        if outcome == "success":
            circuit.succeeded(ticket)
        elif outcome == "failure":
            ticket.failure()
        else:
            ticket.abandon()

    async def snapshot(self, key: str, config: BreakerConfig) -> BreakerSnapshot:
        return self._circuit(key, config).snapshot()

    async def states(self) -> Mapping[str, str]:
        return {key: circuit.state.value for key, circuit in self._circuits.items()}

    async def reset(self, key: str | None = None) -> None:
        for name, circuit in self._circuits.items():
            if key is None or name == key:
                circuit.reset()

    def _circuit(self, key: str, config: BreakerConfig) -> CircuitBreaker:
        circuit = self._circuits.get(key)
        if circuit is not None:
            self._circuits.move_to_end(key)
            return circuit
        circuit = CircuitBreaker(config, name=key, clock=self._clock)
        self._circuits[key] = circuit
        if len(self._circuits) > self._max_keys:
            self._forget_one()
        return circuit

    def _forget_one(self) -> None:
        for key, circuit in self._circuits.items():
            snapshot = circuit.snapshot()
            quiet = snapshot.state is CircuitState.CLOSED
            if quiet and not snapshot.failure_count:
                del self._circuits[key]
                return
