"""One provider among several: its name, its circuit, its rest, how fast it answers."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executionkit.engine._checks import check_int, check_number
from executionkit.engine.breaker import CircuitBreaker, CircuitState, Ticket
from executionkit.errors import ExecutionKitError, ToolCircuitOpenError
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.engine.breaker import BreakerConfig

__all__ = ("HedgeOptions", "Latencies", "Member", "ProviderStatus")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeOptions:
    """When a second request is sent because the first one is slow."""

    delay: float | None = None
    """Seconds to wait for the first one. None = as `quantile` of the latest answers of
    the same provider took."""

    quantile: float = 0.95
    """Above 0, at most 1: 0.95 hedges the slowest twentieth."""

    min_samples: int = 20
    """Answers that must be known before `quantile` is used; until then no hedge."""

    window: int = 200
    """How many of the latest answers count, at least `min_samples`."""

    max_share: float = 0.05
    """Hedges per call in the long run, above 0, at most 1."""

    burst: int = 1
    """Hedges that may be saved up, and that are allowed from the start."""

    def __post_init__(self) -> None:
        if self.delay is not None:
            check_number("delay", self.delay)
        check_int("min_samples", self.min_samples, 1)
        check_int("window", self.window, self.min_samples)
        check_int("burst", self.burst, 1)
        for name in ("quantile", "max_share"):
            value = check_number(name, getattr(self, name), above=True)
            if value > 1:
                msg = f"{name} must be <= 1, got {value!r}"
                raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderStatus:
    """What a `FallbackProvider` knows about one of its providers right now."""

    name: str
    circuit: CircuitState | None
    """None without breakers."""

    resting: float
    """Seconds for which it asked to be left alone."""

    latency: float | None
    """Seconds after which a hedge is sent; None = never, or not known yet."""


class Latencies:
    """The latest durations, kept in order, so that a quantile is one look.

    Args:
        options: `quantile`, `min_samples` and `window` of it count.
    """

    __slots__ = ("_latest", "_options", "_sorted")

    def __init__(self, options: HedgeOptions) -> None:
        self._options = options
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        """An answer took this long."""
        if len(self._latest) == self._options.window:
            oldest = self._latest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._latest.append(seconds)
        insort(self._sorted, seconds)

    def quantile(self) -> float | None:
        """The smallest duration that covers the share; None with too few of them."""
        if len(self._sorted) < self._options.min_samples:
            return None
        rank = math.ceil(self._options.quantile * len(self._sorted))
        return self._sorted[rank - 1]


def _ignore(*_: object) -> None:
    """What is told where there is no circuit."""


class Member:
    """One of the providers of a `FallbackProvider`.

    Args:
        name: Unique among them.
        provider: Answers.
        breakers: None = no circuit.
        hedge: None = its latencies are of no interest.
        clock: Of the circuit.
    """

    __slots__ = (
        "_free",
        "_is_told",
        "_rests_until",
        "breaker",
        "can_call_tools",
        "delay",
        "latencies",
        "name",
        "provider",
    )

    def __init__(
        self,
        name: str,
        provider: Any,
        breakers: BreakerConfig | None,
        hedge: HedgeOptions | None,
        clock: Clock | None,
    ) -> None:
        self.name: str = name
        self.provider: Any = provider
        self.can_call_tools: bool = getattr(provider, "supports_tools", False) is True
        self.breaker: CircuitBreaker | None = None
        if breakers is not None:
            self.breaker = CircuitBreaker(breakers, name=name, clock=clock)
        self.delay: float | None = None if hedge is None else hedge.delay
        self.latencies: Latencies | None = None
        if hedge is not None and hedge.delay is None:
            self.latencies = Latencies(hedge)
        self._rests_until = -math.inf
        self._is_told = False
        self._free = Ticket(_ignore, self, None)

    def resting(self, now: float) -> float:
        """Seconds for which it asked to be left alone."""
        return max(0.0, self._rests_until - now)

    def must_rest(self, now: float) -> bool:
        """Whether it said itself that it takes nothing now."""
        return self._is_told and self._rests_until > now

    def wait(self, now: float) -> float:
        """Seconds until it can be asked again; 0.0 = now."""
        opens = None if self.breaker is None else self.breaker.snapshot()
        due = 0.0 if opens is None else opens.time_until_half_open or 0.0
        return max(due, self.resting(now))

    def admit(self) -> Ticket | None:
        """A ticket of the circuit; None when it is open."""
        if self.breaker is None:
            return self._free
        try:
            return self.breaker.before()
        except ToolCircuitOpenError:
            return None

    def answered(self, ticket: Ticket, seconds: float | None) -> None:
        """It answered after `seconds` (None: not measured)."""
        if not self._is_told:  # else it was asked before it said so
            self._rests_until = -math.inf
        if self.breaker is not None:
            self.breaker.succeeded(ticket)
        if seconds is not None:
            self.took(seconds)

    def took(self, seconds: float) -> None:
        """An answer took this long, or would have taken longer."""
        if self.latencies is not None:
            self.latencies.add(seconds)

    def failed(self, ticket: Ticket, exc: BaseException, now: float) -> None:
        """It raised `exc`; how long it wants to rest is kept."""
        if self.breaker is not None:
            self.breaker.settle(ticket, exc)
        hint = exc.retry_after if isinstance(exc, ExecutionKitError) else None
        if hint is not None and 0 < hint < math.inf:
            told = getattr(exc, "retry_after_known", True) is True
            # What it asked for is never shortened by another one of its refusals.
            if not self.must_rest(now) or (told and now + hint > self._rests_until):
                self._rests_until = now + hint
                self._is_told = told

    def hedge_after(self) -> float | None:
        """Seconds after which a second request makes sense; None = never."""
        return self.delay if self.latencies is None else self.latencies.quantile()

    def status(self, now: float) -> ProviderStatus:
        """What is known right now."""
        return ProviderStatus(
            name=self.name,
            circuit=None if self.breaker is None else self.breaker.state,
            resting=self.resting(now),
            latency=self.hedge_after(),
        )
