"""A circuit breaker: after enough failures, calls are refused until a probe succeeds.

| state | event | what happens |
|---|---|---|
| closed | success | the failures are forgotten |
| closed | failure | counted; `failure_threshold` of them within `failure_window`: open |
| open | call | refused until `reset_timeout` has passed, then half open |
| half open | call | a probe, at most `half_open_max_calls` at once; the others are refused |
| half open | success | counted; `success_threshold` of them: closed |
| half open | failure | open again |

The outcome of a call counts only in the state in which the call was admitted: what
began before the circuit opened cannot close it. Pure: no lock, because nothing is
awaited inside; the clock is read only when a failure or an open circuit asks for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from executionkit._clock import get_clock
from executionkit.engine._checks import check_int, check_number
from executionkit.errors import ErrorCategory, ExecutionKitError, ToolCircuitOpenError
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._clock import Clock

__all__ = (
    "BreakerConfig",
    "BreakerSnapshot",
    "CircuitBreaker",
    "CircuitState",
    "Ticket",
    "counts_as_failure",
)

T = TypeVar("T")


class CircuitState(StrEnum):
    """What a breaker does with calls."""

    CLOSED = "closed"
    """They pass."""

    OPEN = "open"
    """They are refused."""

    HALF_OPEN = "half_open"
    """A few pass, as probes."""


_FAILURES: Final = frozenset(
    {ErrorCategory.CONNECTION, ErrorCategory.EXECUTION, ErrorCategory.TIMEOUT}
)


def counts_as_failure(exc: Exception) -> bool:
    """The default for `is_failure`: does this error say that the other side is ill?

    Timeouts, lost connections and errors of the call itself do. Refusals do not: wrong
    arguments, an unknown name, a rate limit, a full queue, a budget.
    """
    return not isinstance(exc, ExecutionKitError) or exc.category in _FAILURES


@sealed
@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a circuit opens and closes."""

    failure_threshold: int = 5
    """Failures that open the circuit, without a success between them."""

    success_threshold: int = 2
    """Successful probes that close it."""

    reset_timeout: float = 60.0
    """Seconds that it stays open before probes are let through."""

    half_open_max_calls: int = 1
    """Probes at once."""

    failure_window: float | None = 60.0
    """Seconds after which a failure no longer counts. None = never."""

    timeout_threshold: float | None = None
    """Seconds: a call that takes longer counts as a failure. None = off."""

    is_failure: Callable[[Exception], bool] = counts_as_failure
    """Which errors count. One that does not is no success either."""

    probe_lease: float | None = None
    """Seconds after which a probe that did not report loses its place. None = never."""

    def __post_init__(self) -> None:
        check_int("failure_threshold", self.failure_threshold, 1)
        check_int("success_threshold", self.success_threshold, 1)
        check_int("half_open_max_calls", self.half_open_max_calls, 1)
        check_number("reset_timeout", self.reset_timeout)
        for name in ("failure_window", "timeout_threshold", "probe_lease"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, above=True)


@sealed
@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """What a breaker looks like right now."""

    state: CircuitState
    failure_count: int
    """Failures that count towards opening, or that opened it."""

    success_count: int
    """Successful probes since it is half open."""

    half_open_calls: int
    """Probes in flight."""

    opened_at: float | None
    """Monotonic time of the last opening; None when closed."""

    time_until_half_open: float | None
    """Seconds; 0.0 when due, None when not open, `inf` when isolated."""


class _Outcome(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    ABANDONED = "abandoned"


class Ticket:
    """An admitted call. Report once how it ended; what comes later is ignored."""

    __slots__ = ("_report", "epoch", "started")

    def __init__(
        self,
        report: Callable[[Ticket, _Outcome], None],
        epoch: object,
        started: float | None,
    ) -> None:
        self._report = report
        self.epoch: object = epoch
        """The state of the breaker in which it was admitted; an identity."""
        self.started: float | None = started
        """Monotonic time, where the breaker needs it."""

    def success(self) -> None:
        """The call returned."""
        self._report(self, _Outcome.SUCCESS)

    def failure(self) -> None:
        """The call failed in a way that counts."""
        self._report(self, _Outcome.FAILURE)

    def abandon(self) -> None:
        """The call says nothing: cancelled, or refused before it reached anything."""
        self._report(self, _Outcome.ABANDONED)


class CircuitBreaker:
    """One circuit. See the module for its states.

    Args:
        config: None = the defaults.
        name: What it protects; for the error message.
        clock: None = the clock of the current context.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_epoch",
        "_failure_count",
        "_failures",
        "_is_isolated",
        "_name",
        "_opened_at",
        "_pass",
        "_probes",
        "_state",
        "_successes",
    )

    def __init__(
        self,
        config: BreakerConfig | None = None,
        *,
        name: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._config = config or BreakerConfig()
        self._name = name
        self._clock = clock or get_clock()
        # The times of the last failures, as many as matter.
        self._failures: deque[float] = deque(maxlen=self._config.failure_threshold)
        self._probes: dict[Ticket, float] = {}
        self._pass: Ticket | None = None
        self._opened_at: float | None = None
        self._close()

    @property
    def name(self) -> str:
        """What it protects."""
        return self._name

    @property
    def state(self) -> CircuitState:
        """The state. An open circuit becomes half open with the first call after."""
        return self._state

    def before(self) -> Ticket:
        """Admit a call; report its end on the ticket.

        Raises:
            ToolCircuitOpenError: When the circuit is open or all probes are out;
                `retry_after` says when to come back: when probes are due, or, while
                they are out, `reset_timeout`, should they fail.
        """
        # While closed all calls share one ticket: nothing is counted per call.
        if self._pass is not None:
            return self._pass
        if self._state is CircuitState.CLOSED:
            return Ticket(self._record, self._epoch, self._clock.monotonic())
        return self._probe()

    async def run(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Admit, call and report in one.

        Raises:
            ToolCircuitOpenError: When the call is refused.
            Exception: What `fn` raises.
        """
        ticket = self._pass or self.before()
        try:
            result = await fn()
        except BaseException as exc:
            self.settle(ticket, exc)
            raise
        self.succeeded(ticket)
        return result

    def succeeded(self, ticket: Ticket) -> None:
        """Report that the call returned; the same as `ticket.success()`, and quicker."""
        if ticket is not self._pass:
            ticket.success()
        elif self._failures:
            self._failures.clear()

    def settle(self, ticket: Ticket, exc: BaseException) -> None:
        """Report that the call raised `exc`; `is_failure` says what that means.

        A cancellation counts as nothing. When `is_failure` itself raises, the call
        counts as failed and `exc` gets a note about it.
        """
        if not isinstance(exc, Exception):
            ticket.abandon()
            return
        try:
            failed = self._config.is_failure(exc)
        except Exception as broken:  # noqa: BLE001 - a user's function must not hide `exc`
            exc.add_note(
                f"Counted as a failure, because `is_failure` raised {broken!r}"
            )
            failed = True
        if failed:
            ticket.failure()
        else:
            ticket.abandon()

    def snapshot(self) -> BreakerSnapshot:
        """What the breaker looks like right now."""
        failures = self._failure_count
        if self._state is CircuitState.CLOSED:
            failures = self._recent_failures(self._clock.monotonic())
        return BreakerSnapshot(
            self._state,
            failures,
            self._successes,
            len(self._probes),
            self._opened_at,
            self._time_until_half_open(),
        )

    def reset(self) -> None:
        """Close the circuit and forget everything; calls in flight no longer count."""
        self._close()

    def isolate(self) -> None:
        """Open the circuit by hand; it stays open until `reset`."""
        self._open(self._clock.monotonic())
        self._is_isolated = True

    def _probe(self) -> Ticket:
        now = self._clock.monotonic()
        if self._state is CircuitState.OPEN:
            left = self._time_until_half_open()
            if left:
                raise self._refusal(left)
            self._enter(CircuitState.HALF_OPEN)
        lease = self._config.probe_lease
        if lease is not None:
            for ticket, since in list(self._probes.items()):
                if now - since >= lease:
                    del self._probes[ticket]
        if len(self._probes) >= self._config.half_open_max_calls:
            raise self._refusal(self._config.reset_timeout)
        ticket = Ticket(self._record, self._epoch, now)
        self._probes[ticket] = now
        return ticket

    def _record(self, ticket: Ticket, outcome: _Outcome) -> None:
        if ticket.epoch is not self._epoch:
            return  # admitted in a state that is over
        if self._state is CircuitState.HALF_OPEN:
            if self._probes.pop(ticket, None) is None:
                return
        elif outcome is _Outcome.SUCCESS and ticket.started is None:
            if self._failures:
                self._failures.clear()
            return
        if outcome is _Outcome.SUCCESS and not self._was_slow(ticket):
            self._succeeded()
        elif outcome is not _Outcome.ABANDONED:
            self._failed()

    def _was_slow(self, ticket: Ticket) -> bool:
        limit = self._config.timeout_threshold
        if limit is None or ticket.started is None:
            return False
        return self._clock.monotonic() - ticket.started > limit

    def _succeeded(self) -> None:
        if self._state is CircuitState.CLOSED:
            self._failures.clear()
            return
        self._successes += 1
        if self._successes >= self._config.success_threshold:
            self._close()

    def _failed(self) -> None:
        now = self._clock.monotonic()
        self._failures.append(now)
        enough = self._recent_failures(now) >= self._config.failure_threshold
        if enough or self._state is CircuitState.HALF_OPEN:
            self._open(now)

    def _recent_failures(self, now: float) -> int:
        window = self._config.failure_window
        if window is not None:
            while self._failures and self._failures[0] <= now - window:
                self._failures.popleft()
        return len(self._failures)

    def _open(self, now: float) -> None:
        self._failure_count = self._recent_failures(now)
        self._opened_at = now
        self._enter(CircuitState.OPEN)

    def _close(self) -> None:
        self._failures.clear()
        self._failure_count = 0
        self._opened_at = None
        self._is_isolated = False
        self._enter(CircuitState.CLOSED)
        if self._config.timeout_threshold is None:
            self._pass = Ticket(self._record, self._epoch, None)

    def _enter(self, state: CircuitState) -> None:
        self._state = state
        self._epoch = object()
        self._pass = None
        self._probes.clear()
        self._successes = 0

    def _time_until_half_open(self) -> float | None:
        if self._state is not CircuitState.OPEN or self._opened_at is None:
            return None
        if self._is_isolated:
            return math.inf
        due = self._opened_at + self._config.reset_timeout
        return max(0.0, due - self._clock.monotonic())

    def _refusal(self, seconds: float) -> ToolCircuitOpenError:
        known = seconds if seconds < math.inf else None
        return ToolCircuitOpenError(self._name, self._failure_count, known)
