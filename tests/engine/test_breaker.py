"""The circuit breaker: when it opens, whom it lets through, when it closes."""

from __future__ import annotations

import asyncio
import math
import pickle
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from executionkit.engine.breaker import (
    BreakerConfig,
    BreakerSnapshot,
    CircuitBreaker,
    CircuitState,
    Ticket,
    counts_as_failure,
)
from executionkit.errors import (
    BudgetExhaustedError,
    BulkheadFullError,
    ProviderConnectionError,
    ProviderTimeoutError,
    RateLimitError,
    ToolCircuitOpenError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolRateLimitedError,
    ToolTimeoutError,
    ToolValidationError,
)
from executionkit.testing import FakeClock, settle

CLOSED, OPEN, HALF = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


def breaker(clock: FakeClock | None = None, **options: Any) -> CircuitBreaker:
    config = BreakerConfig(**{"failure_threshold": 2, "reset_timeout": 10.0, **options})
    return CircuitBreaker(config, name="db", clock=clock or FakeClock())


def opened(clock: FakeClock, **options: Any) -> CircuitBreaker:
    made = breaker(clock, **options)
    for _ in range(2):
        made.before().failure()
    assert made.state is OPEN
    return made


async def ok() -> str:
    return "ok"


async def bad(error: BaseException) -> str:
    raise error


@pytest.mark.req("breaker.config")
def test_the_defaults_are_the_documented_ones() -> None:
    config = BreakerConfig()
    assert config.failure_threshold == 5
    assert config.success_threshold == 2
    assert config.reset_timeout == 60.0
    assert config.half_open_max_calls == 1
    assert config.failure_window == 60.0
    assert config.timeout_threshold is None
    assert config.probe_lease is None
    assert config.is_failure is counts_as_failure
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.req("breaker.config", "T-42")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failure_threshold", 0),
        ("failure_threshold", 1.5),
        ("failure_threshold", True),
        ("success_threshold", 0),
        ("half_open_max_calls", 0),
        ("reset_timeout", -1.0),
        ("reset_timeout", math.nan),
        ("failure_window", 0.0),
        ("failure_window", math.inf),
        ("timeout_threshold", 0.0),
        ("timeout_threshold", -1.0),
        ("probe_lease", 0.0),
    ],
)
def test_a_senseless_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        BreakerConfig(**{name: value})


# --- closed ----------------------------------------------------------------------------


@pytest.mark.req("breaker.opens")
def test_enough_failures_open_the_circuit() -> None:
    made = CircuitBreaker(BreakerConfig(failure_threshold=3), clock=FakeClock())
    for count in range(3):
        assert made.state is CLOSED
        assert made.snapshot().failure_count == count
        made.before().failure()
    assert made.state is OPEN
    with pytest.raises(ToolCircuitOpenError):
        made.before()


@pytest.mark.req("breaker.opens")
@pytest.mark.parametrize("through_run", [False, True])
async def test_a_success_forgets_the_failures_before_it(through_run: bool) -> None:
    made = breaker()
    for _ in range(5):
        made.before().failure()
        if through_run:
            assert await made.run(ok) == "ok"
        else:
            made.before().success()
        assert made.snapshot().failure_count == 0
    assert made.state is CLOSED


@pytest.mark.req("breaker.window")
async def test_a_failure_counts_for_the_length_of_the_window() -> None:
    clock = FakeClock()
    made = breaker(clock, failure_window=5.0)
    made.before().failure()
    await clock.advance(4.999)
    assert made.snapshot().failure_count == 1
    await clock.advance(0.001)
    assert made.snapshot().failure_count == 0
    made.before().failure()
    assert made.state is CLOSED
    await clock.advance(4.9)
    made.before().failure()
    assert made.state is OPEN
    assert made.snapshot().failure_count == 2


@pytest.mark.req("breaker.window")
async def test_without_a_window_failures_never_age() -> None:
    clock = FakeClock()
    made = breaker(clock, failure_window=None)
    made.before().failure()
    await clock.advance(1e6)
    made.before().failure()
    assert made.state is OPEN


@pytest.mark.req("breaker.speed")
def test_a_closed_circuit_reads_no_clock_and_makes_no_objects() -> None:
    class NoClock(FakeClock):
        def monotonic(self) -> float:
            raise AssertionError

    made = CircuitBreaker(clock=NoClock())
    assert made.before() is made.before()
    made.before().success()


# --- open and half open ------------------------------------------------------------------


@pytest.mark.req("breaker.refusal")
async def test_a_refusal_says_when_to_come_back() -> None:
    clock = FakeClock()
    made = opened(clock)
    await clock.advance(4.0)
    with pytest.raises(ToolCircuitOpenError, match="'db'") as caught:
        made.before()
    assert caught.value.retry_after == pytest.approx(6.0)
    assert caught.value.details["failure_count"] == 2
    assert made.snapshot() == BreakerSnapshot(OPEN, 2, 0, 0, 1000.0, 6.0)


@pytest.mark.req("breaker.half-open")
async def test_after_the_timeout_a_probe_decides() -> None:
    clock = FakeClock()
    made = opened(clock, success_threshold=1)
    await clock.advance(10.0)
    assert made.snapshot().time_until_half_open == 0.0
    assert made.state is OPEN
    probe = made.before()
    assert made.state is HALF
    assert made.snapshot() == BreakerSnapshot(HALF, 2, 0, 1, 1000.0, None)
    probe.success()
    assert made.state is CLOSED
    assert made.snapshot() == BreakerSnapshot(CLOSED, 0, 0, 0, None, None)


@pytest.mark.req("breaker.half-open")
async def test_a_failed_probe_opens_it_anew_with_a_full_timeout() -> None:
    clock = FakeClock()
    made = opened(clock)
    await clock.advance(12.0)
    made.before().failure()
    assert made.state is OPEN
    assert made.snapshot().time_until_half_open == pytest.approx(10.0)
    await clock.advance(9.9)
    with pytest.raises(ToolCircuitOpenError):
        made.before()


@pytest.mark.req("breaker.half-open", "T-17")
async def test_it_closes_after_enough_probes_one_by_one() -> None:
    """T-17: with one slot the next probe is admitted when the first has reported."""
    clock = FakeClock()
    made = opened(clock, success_threshold=3)
    await clock.advance(10.0)
    for count in range(3):
        assert made.snapshot().success_count == count
        made.before().success()
    assert made.state is CLOSED


@pytest.mark.req("LM-11", "breaker.half-open")
@pytest.mark.parametrize("probes", [1, 3])
async def test_fifty_callers_at_once_make_no_stampede(probes: int) -> None:
    """LM-11: exactly the permitted number of probes runs, the others fail fast."""
    clock = FakeClock()
    made = opened(clock, half_open_max_calls=probes, success_threshold=probes)
    await clock.advance(10.0)
    ran = 0

    async def call() -> None:
        nonlocal ran
        ran += 1
        await clock.sleep(1.0)

    tasks = [asyncio.ensure_future(made.run(call)) for _ in range(50)]
    await settle(3)
    assert ran == probes
    refused = [task.exception() for task in tasks if task.done()]
    assert len(refused) == 50 - probes
    for error in refused:
        assert isinstance(error, ToolCircuitOpenError)
        assert error.retry_after == 10.0
    await clock.advance(1.0)
    assert made.state is CLOSED
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.req("T-17", "breaker.generations")
async def test_what_began_before_it_opened_cannot_close_it() -> None:
    """T-17: late results free no probe's slot and count for nothing."""
    clock = FakeClock()
    made = breaker(clock, success_threshold=1)
    old = [made.before() for _ in range(4)]
    made.before().failure()
    made.before().failure()
    old[0].success()
    old[1].failure()
    assert made.snapshot().failure_count == 2
    await clock.advance(10.0)
    probe = made.before()
    old[2].success()
    old[3].failure()
    assert made.state is HALF
    assert made.snapshot().half_open_calls == 1
    probe.success()
    assert made.state is CLOSED
    old[0].failure()
    old[1].failure()
    assert made.state is CLOSED
    assert made.snapshot().failure_count == 0


@pytest.mark.req("breaker.generations")
async def test_a_probe_of_an_earlier_round_counts_for_nothing() -> None:
    clock = FakeClock()
    made = opened(clock, half_open_max_calls=2)
    await clock.advance(10.0)
    slow, quick = made.before(), made.before()
    quick.failure()
    slow.success()
    assert made.state is OPEN
    await clock.advance(10.0)
    made.before()
    slow.failure()
    assert made.state is HALF


@pytest.mark.req("breaker.generations")
async def test_a_probe_counts_once() -> None:
    clock = FakeClock()
    made = opened(clock)
    await clock.advance(10.0)
    probe = made.before()
    for _ in range(3):
        probe.success()
    assert made.snapshot().success_count == 1
    probe.failure()
    assert made.state is HALF


@pytest.mark.req("breaker.cancel")
async def test_a_cancelled_probe_frees_its_slot_and_counts_for_nothing() -> None:
    clock = FakeClock()
    made = opened(clock)
    await clock.advance(10.0)
    task = asyncio.ensure_future(made.run(asyncio.Event().wait))
    await settle(3)
    assert made.snapshot().half_open_calls == 1
    task.cancel()
    await settle(3)
    assert made.snapshot() == BreakerSnapshot(HALF, 2, 0, 0, 1000.0, None)
    assert await made.run(ok) == "ok"


@pytest.mark.req("breaker.cancel")
async def test_cancellations_never_open_a_circuit() -> None:
    made = breaker()
    for error in (asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)):
            await made.run(lambda error=error: bad(error))  # type: ignore[misc]
    made.before().abandon()
    assert made.snapshot().failure_count == 0


@pytest.mark.req("breaker.lease")
async def test_a_probe_that_never_reports_loses_its_place() -> None:
    clock = FakeClock()
    made = opened(clock, probe_lease=5.0)
    await clock.advance(10.0)
    lost = made.before()
    await clock.advance(4.9)
    with pytest.raises(ToolCircuitOpenError):
        made.before()
    await clock.advance(0.1)
    second = made.before()
    lost.failure()
    assert made.state is HALF
    second.success()
    assert made.snapshot().success_count == 1


@pytest.mark.req("breaker.lease")
async def test_without_a_lease_a_probe_may_take_any_time() -> None:
    clock = FakeClock()
    made = opened(clock)
    await clock.advance(10.0)
    made.before()
    await clock.advance(1e6)
    with pytest.raises(ToolCircuitOpenError):
        made.before()


# --- what is a failure ---------------------------------------------------------------------


@pytest.mark.req("T-17", "breaker.classifier")
@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (OSError("x"), True),
        (TimeoutError(), True),
        (ProviderConnectionError("x"), True),
        (ProviderTimeoutError("x"), True),
        (ToolTimeoutError("t", 1.0), True),
        (ToolExecutionError("t", OSError("x")), True),
        (ToolValidationError("t"), False),
        (ToolNotFoundError("t"), False),
        (ToolRateLimitedError("t"), False),
        (BulkheadFullError("t"), False),
        (BudgetExhaustedError("x"), False),
        (RateLimitError("x"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_refusals_and_the_caller_s_mistakes_open_nothing(
    error: Exception, counts: bool
) -> None:
    made = breaker()
    with pytest.raises(type(error)):
        await made.run(lambda: bad(error))
    assert made.snapshot().failure_count == int(counts)


@pytest.mark.req("breaker.classifier")
async def test_an_error_that_does_not_count_is_no_success_either() -> None:
    clock = FakeClock()
    made = breaker(clock)
    made.before().failure()
    with pytest.raises(ToolValidationError):
        await made.run(lambda: bad(ToolValidationError("t")))
    assert made.snapshot().failure_count == 1
    made.before().failure()
    await clock.advance(10.0)
    with pytest.raises(ToolValidationError):
        await made.run(lambda: bad(ToolValidationError("t")))
    assert made.snapshot() == BreakerSnapshot(HALF, 2, 0, 0, 1000.0, None)


@pytest.mark.req("LM-14", "breaker.classifier")
async def test_a_classifier_that_raises_hides_nothing_and_wedges_nothing() -> None:
    """LM-14: the original error, the slot freed, the call counted as failed."""

    def broken(_exc: Exception) -> bool:
        raise KeyError("bug")

    clock = FakeClock()
    made = opened(clock, is_failure=broken)
    await clock.advance(10.0)
    with pytest.raises(OSError, match="real") as caught:
        await made.run(lambda: bad(OSError("real")))
    assert "KeyError" in caught.value.__notes__[0]
    assert made.state is OPEN
    assert made.snapshot().half_open_calls == 0
    assert made.snapshot().time_until_half_open == 10.0


@pytest.mark.req("breaker.slow")
@pytest.mark.parametrize(("seconds", "counts"), [(1.0, 0), (1.001, 1)])
async def test_a_slow_success_counts_as_a_failure(seconds: float, counts: int) -> None:
    clock = FakeClock(auto=True)
    made = breaker(clock, timeout_threshold=1.0)

    async def call() -> str:
        await clock.sleep(seconds)
        return "done"

    assert await made.run(call) == "done"
    assert made.snapshot().failure_count == counts


@pytest.mark.req("breaker.slow")
async def test_a_quick_success_forgets_failures_where_slowness_is_watched() -> None:
    clock = FakeClock(auto=True)
    made = opened(clock, timeout_threshold=1.0, success_threshold=1)
    await clock.sleep(10.0)
    assert await made.run(ok) == "ok"
    assert made.state is CLOSED
    made.before().failure()
    assert await made.run(ok) == "ok"
    assert made.snapshot().failure_count == 0
    await clock.sleep(0.5)
    slow = made.before()
    await clock.sleep(2.0)
    slow.abandon()
    assert made.snapshot().failure_count == 0


# --- by hand ---------------------------------------------------------------------------------


@pytest.mark.req("breaker.by-hand")
async def test_reset_closes_and_forgets() -> None:
    clock = FakeClock()
    made = opened(clock)
    made.reset()
    assert made.snapshot() == BreakerSnapshot(CLOSED, 0, 0, 0, None, None)
    made.before().failure()
    assert made.state is CLOSED


@pytest.mark.req("breaker.by-hand")
async def test_an_isolated_circuit_stays_open_until_reset() -> None:
    clock = FakeClock()
    made = breaker(clock)
    flying = made.before()
    made.isolate()
    await clock.advance(1e6)
    assert made.snapshot().time_until_half_open == math.inf
    with pytest.raises(ToolCircuitOpenError) as caught:
        made.before()
    assert caught.value.retry_after is None
    flying.success()
    assert made.state is OPEN
    made.reset()
    assert await made.run(ok) == "ok"
    for _ in range(2):
        made.before().failure()
    assert made.snapshot().time_until_half_open == 10.0


# --- any course of events ------------------------------------------------------------------


class Model(RuleBasedStateMachine):
    """The breaker against its table, written down a second time without tricks."""

    tickets: Bundle[tuple[Ticket, int, bool]] = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.real = CircuitBreaker(
            BreakerConfig(
                failure_threshold=3,
                success_threshold=2,
                reset_timeout=10.0,
                half_open_max_calls=2,
                failure_window=20.0,
            ),
            clock=self.clock,
        )
        self.state = CLOSED
        self.generation = 0
        self.failures: list[float] = []
        self.opened_at = 0.0
        self.probes = 0
        self.successes = 0

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def become(self, state: CircuitState) -> None:
        self.state = state
        self.generation += 1
        self.probes = self.successes = 0
        if state is OPEN:
            self.opened_at = self.now
        if state is CLOSED:
            self.failures = []

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.clock._now += seconds

    @rule(target=tickets)
    def ask(self) -> Any:
        if self.state is OPEN and self.now >= self.opened_at + 10.0:
            self.become(HALF)
        admitted = self.state is CLOSED or (self.state is HALF and self.probes < 2)
        if not admitted:
            with pytest.raises(ToolCircuitOpenError) as caught:
                self.real.before()
            left = self.opened_at + 10.0 - self.now if self.state is OPEN else 10.0
            assert caught.value.retry_after == pytest.approx(left)
            return None, -1, False
        self.probes += self.state is HALF
        return self.real.before(), self.generation, True

    @rule(ticket=consumes(tickets))
    def succeed(self, ticket: tuple[Ticket, int, bool]) -> None:
        if not ticket[2]:
            return
        ticket[0].success()
        if ticket[1] != self.generation:
            return
        if self.state is CLOSED:
            self.failures = []
        else:
            self.probes -= 1
            self.successes += 1
            if self.successes == 2:
                self.become(CLOSED)

    @rule(ticket=consumes(tickets))
    def fail(self, ticket: tuple[Ticket, int, bool]) -> None:
        if not ticket[2]:
            return
        ticket[0].failure()
        if ticket[1] != self.generation:
            return
        if self.state is HALF:
            self.become(OPEN)
            return
        self.failures = [at for at in self.failures if at > self.now - 20.0]
        self.failures.append(self.now)
        if len(self.failures) >= 3:
            self.become(OPEN)

    @rule(ticket=consumes(tickets))
    def cancel(self, ticket: tuple[Ticket, int, bool]) -> None:
        if not ticket[2]:
            return
        ticket[0].abandon()
        if ticket[1] == self.generation and self.state is HALF:
            self.probes -= 1

    @rule()
    @precondition(lambda self: self.state is not CLOSED)
    def reset(self) -> None:
        self.real.reset()
        self.become(CLOSED)

    @invariant()
    def agrees(self) -> None:
        shown = self.real.snapshot()
        assert shown.state is self.state is self.real.state
        assert shown.half_open_calls == self.probes
        assert shown.success_count == self.successes
        if self.state is CLOSED:
            recent = [at for at in self.failures if at > self.now - 20.0]
            assert shown.failure_count == len(recent)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestModel.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.req("LM-11", "T-17", "breaker.opens", "breaker.generations")
]


@pytest.mark.req("breaker.config")
def test_a_circuit_says_what_it_protects() -> None:
    assert CircuitBreaker(name="search").name == "search"
