"""When a failed call is tried again, how long it waits, and what the last error says."""

from __future__ import annotations

import asyncio
import math
import pickle
import traceback
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from executionkit._constants import MAX_COOLDOWN
from executionkit.engine.rate_bucket import SlidingWindow, TokenBucket
from executionkit.engine.retry import (
    DEFAULT_RETRY,
    NEVER_RETRIED,
    RetryBudget,
    RetryConfig,
    run_with_retry,
    with_retry,
)
from executionkit.errors import (
    ApprovalDeniedError,
    BadResponseError,
    BudgetExhaustedError,
    DeadlineExceededError,
    ErrorCode,
    ExecutionKitError,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    RateLimitError,
    ToolBlockedError,
    ToolCircuitOpenError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolValidationError,
)
from executionkit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Script:
    """An async function that raises or returns what the script says, in order."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    async def __call__(self, *args: Any, **kwargs: Any) -> object:
        self.calls.append((args, kwargs))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if callable(step):
            step = step()
        if isinstance(step, BaseException):
            raise step
        return step

    @property
    def count(self) -> int:
        return len(self.calls)


def down() -> ProviderError:
    return ProviderError("down")


def half() -> float:
    return 0.5


FAST = RetryConfig(base_delay=0.0)


# --- configuration ---------------------------------------------------------------


@pytest.mark.req("retry.config")
def test_the_defaults_are_the_documented_ones() -> None:
    assert RetryConfig() == DEFAULT_RETRY
    assert DEFAULT_RETRY.max_retries == 3
    assert DEFAULT_RETRY.base_delay == 1.0
    assert DEFAULT_RETRY.max_delay == 60.0
    assert DEFAULT_RETRY.exponential_base == 2.0
    assert DEFAULT_RETRY.retryable == (RateLimitError, ProviderError)
    assert DEFAULT_RETRY.rate_limit_strategy is None
    assert DEFAULT_RETRY.budget is None


@pytest.mark.req("retry.config")
def test_the_first_six_options_may_be_given_by_position() -> None:
    bucket = TokenBucket(1.0, clock=FakeClock())
    config = RetryConfig(2, 0.5, 10.0, 3.0, (OSError,), bucket)
    assert config.max_retries == 2
    assert config.base_delay == 0.5
    assert config.max_delay == 10.0
    assert config.exponential_base == 3.0
    assert config.retryable == (OSError,)
    assert config.rate_limit_strategy is bucket


@pytest.mark.req("D-40", "retry.config")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_retries", -1),
        ("max_retries", 2.5),
        ("max_retries", True),
        ("max_retries", None),
        ("base_delay", -0.1),
        ("base_delay", math.nan),
        ("base_delay", math.inf),
        ("base_delay", "1"),
        ("base_delay", True),
        ("max_delay", -1.0),
        ("max_delay", math.nan),
        ("max_delay", math.inf),
        ("exponential_base", 0.99),
        ("exponential_base", math.nan),
        ("exponential_base", math.inf),
    ],
)
def test_a_senseless_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        RetryConfig(**{name: value})


@pytest.mark.req("retry.config")
def test_the_message_about_negative_retries_keeps_its_words() -> None:
    with pytest.raises(ValueError, match="max_retries must be >= 0, got -1"):
        RetryConfig(max_retries=-1)


@pytest.mark.req("retry.config")
def test_zero_delays_and_a_base_of_one_are_fine() -> None:
    config = RetryConfig(0, 0, 0, 1)
    assert config.get_delay(7) == 0.0


@pytest.mark.req("retry.config")
def test_kinds_are_normalised_and_checked() -> None:
    assert RetryConfig(retryable=OSError).retryable == (OSError,)  # type: ignore[arg-type]
    assert RetryConfig(retryable=[OSError]).retryable == (OSError,)  # type: ignore[arg-type]
    for bad in ((OSError, "x"), (int,), (OSError("x"),)):
        with pytest.raises(TypeError, match="retryable"):
            RetryConfig(retryable=bad)  # type: ignore[arg-type]


@pytest.mark.req("D-33", "retry.config")
def test_a_config_is_a_frozen_slotted_value() -> None:
    config = RetryConfig(max_retries=1)
    with pytest.raises(FrozenInstanceError):
        config.max_retries = 2  # type: ignore[misc]
    assert not hasattr(config, "__dict__")
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(RetryConfig(max_retries=1))


@pytest.mark.req("retry.config")
def test_should_retry_asks_for_the_type() -> None:
    assert DEFAULT_RETRY.should_retry(RateLimitError("x"))
    assert DEFAULT_RETRY.should_retry(ProviderConnectionError("x"))
    assert not DEFAULT_RETRY.should_retry(PermanentError("x"))
    assert not DEFAULT_RETRY.should_retry(OSError("x"))
    assert not RetryConfig(retryable=(BaseException,)).should_retry(
        asyncio.CancelledError()
    )


@pytest.mark.req("retry.config")
def test_should_retry_asks_a_predicate() -> None:
    config = RetryConfig(retryable=lambda exc: "busy" in str(exc))
    assert config.should_retry(OSError("busy"))
    assert not config.should_retry(OSError("gone"))
    assert not config.should_retry(KeyboardInterrupt("busy"))
    assert not config.should_retry(BudgetExhaustedError("busy"))


# --- the pause -------------------------------------------------------------------


@pytest.mark.req("retry.full-jitter")
def test_the_pause_is_a_random_share_of_a_growing_bound() -> None:
    config = RetryConfig(base_delay=0.5, max_delay=3.0)
    bounds = [config.get_delay(n, random=lambda: 1.0) for n in range(1, 6)]
    assert bounds == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert config.get_delay(2, random=half) == 0.5
    assert config.get_delay(2, random=lambda: 0.0) == 0.0


@pytest.mark.req("D-40", "retry.full-jitter")
@given(
    st.integers(1, 10_000),
    st.floats(0.0, 1e6),
    st.floats(0.0, 1e6),
    st.floats(1.0, 1e6),
)
def test_any_attempt_has_a_pause_within_the_bounds(
    attempt: int, base: float, longest: float, growth: float
) -> None:
    config = RetryConfig(3, base, longest, growth)
    top = config.get_delay(attempt, random=lambda: 1.0)
    assert 0.0 <= top <= longest
    assert top >= min(base, longest)
    later = config.get_delay(attempt + 1, random=lambda: 1.0)
    assert later >= top
    assert config.get_delay(attempt) <= top


@pytest.mark.req("D-40")
def test_the_eleven_hundredth_attempt_waits_max_delay() -> None:
    assert RetryConfig().get_delay(1100, random=lambda: 1.0) == 60.0
    assert RetryConfig(base_delay=0.0).get_delay(1100, random=lambda: 1.0) == 0.0


@pytest.mark.parametrize("attempt", [0, -1, 1.5, True])
def test_attempts_count_from_one(attempt: Any) -> None:
    with pytest.raises(ValueError, match="attempt"):
        DEFAULT_RETRY.get_delay(attempt)


@pytest.mark.req("retry.full-jitter")
async def test_the_jitter_source_and_the_clock_are_the_given_ones() -> None:
    clock = FakeClock(auto=True)
    script = Script(down(), down(), down(), "ok")
    config = RetryConfig(base_delay=1.0)
    assert await run_with_retry(script, config, clock=clock, random=half) == "ok"
    assert clock.sleeps == [0.5, 1.0, 2.0]
    assert [args for args, _ in script.calls] == [(1,), (2,), (3,), (4,)]


@pytest.mark.req("retry.full-jitter")
async def test_a_pause_of_zero_still_lets_others_run(fake_clock: FakeClock) -> None:
    assert await with_retry(Script(down(), "ok"), FAST) == "ok"
    assert fake_clock.sleeps == [0.0]


# --- how often -------------------------------------------------------------------


@pytest.mark.req("retry.attempts")
@pytest.mark.parametrize(("max_retries", "sent"), [(0, 1), (1, 2), (3, 4)])
async def test_max_retries_counts_attempts_after_the_first(
    max_retries: int, sent: int
) -> None:
    script = Script(down)
    with pytest.raises(ProviderError):
        await with_retry(script, RetryConfig(max_retries, 0.0))
    assert script.count == sent


@pytest.mark.req("retry.attempts")
async def test_arguments_reach_every_attempt() -> None:
    script = Script(down(), "ok")
    assert await with_retry(script, FAST, 1, 2, seed="x", clock="y") == "ok"
    assert script.calls == [((1, 2), {"seed": "x", "clock": "y"})] * 2


@pytest.mark.req("retry.attempts")
async def test_a_failure_of_another_kind_is_final() -> None:
    script = Script(PermanentError("no"))
    with pytest.raises(PermanentError) as caught:
        await with_retry(script, FAST)
    assert script.count == 1
    assert caught.value.attempts == 1
    assert not caught.value.retries_exhausted


@pytest.mark.req("retry.attempts")
async def test_a_predicate_that_raises_does_not_hide_the_failure() -> None:
    def broken(_exc: Exception) -> bool:
        raise KeyError("bug")

    with pytest.raises(OSError, match="real") as caught:
        await with_retry(Script(OSError("real")), RetryConfig(retryable=broken))
    assert "KeyError" in caught.value.__notes__[0]


@pytest.mark.req("retry.attempts")
@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit]
)
@pytest.mark.parametrize("with_hook", [False, True])
async def test_a_cancellation_or_an_exit_passes_at_once(
    error: type[BaseException], with_hook: bool
) -> None:
    script = Script(error())
    config = RetryConfig(base_delay=0.0, retryable=(BaseException,))
    hook = (lambda _n: None) if with_hook else None
    with pytest.raises(error):
        await with_retry(script, config, _before_attempt=hook)
    assert script.count == 1


@pytest.mark.req("retry.attempts")
async def test_a_cancellation_ends_the_pause(fake_clock: FakeClock) -> None:
    script = Script(down)
    task = asyncio.ensure_future(with_retry(script, DEFAULT_RETRY))
    await fake_clock.advance(0.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.count == 1
    assert fake_clock.pending == 0


REFUSALS: list[ExecutionKitError] = [
    BudgetExhaustedError("spent"),
    DeadlineExceededError("late"),
    ApprovalDeniedError("no"),
    ToolBlockedError("t"),
    ToolCircuitOpenError("t"),
    ToolNotFoundError("t"),
    ToolValidationError("t"),
]


@pytest.mark.req("D-09", "T-14", "T-42", "retry.never-retried")
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
async def test_a_refusal_is_never_retried(error: ExecutionKitError) -> None:
    assert error.code in NEVER_RETRIED
    script = Script(error)
    for kinds in ((Exception,), lambda _exc: True):
        script.calls.clear()
        with pytest.raises(type(error)) as caught:
            await with_retry(script, RetryConfig(3, 0.0, retryable=kinds))
        assert caught.value is error
        assert script.count == 1
        assert error.attempts == 0
        assert not error.retries_exhausted


@pytest.mark.req("retry.never-retried")
async def test_a_refusal_after_failures_tells_what_was_sent_before() -> None:
    script = Script(down(), down(), BudgetExhaustedError("spent"))
    with pytest.raises(BudgetExhaustedError) as caught:
        await with_retry(script, FAST)
    assert caught.value.attempts == 2


@pytest.mark.req("retry.own-limit")
async def test_an_error_s_own_limit_bounds_the_retries_of_its_kind() -> None:
    script = Script(lambda: BadResponseError("html"))
    with pytest.raises(BadResponseError) as caught:
        await with_retry(script, FAST)
    assert script.count == 2
    assert caught.value.attempts == 2
    assert caught.value.retries_exhausted


class TwiceError(ProviderError):
    """May be tried again twice."""

    retry_limit = 2


@pytest.mark.req("retry.own-limit")
async def test_an_own_limit_of_two_allows_two_retries() -> None:
    script = Script(lambda: TwiceError("x"))
    with pytest.raises(TwiceError):
        await with_retry(script, RetryConfig(9, 0.0))
    assert script.count == 3


@pytest.mark.req("retry.own-limit")
async def test_other_kinds_do_not_use_up_that_limit() -> None:
    script = Script(down(), BadResponseError("a"), down(), "ok")
    assert await with_retry(script, FAST) == "ok"


@pytest.mark.req("LM-17")
async def test_one_config_serves_many_calls_at_once() -> None:
    """LM-17: 20 concurrent calls that fail twice each make exactly 3 attempts each."""
    scripts = [Script(down(), down(), "ok") for _ in range(20)]
    results = await asyncio.gather(*[with_retry(s, FAST) for s in scripts])
    assert results == ["ok"] * 20
    assert [script.count for script in scripts] == [3] * 20


# --- what the final error says ----------------------------------------------------


@pytest.mark.req("LM-24", "retry.final-error")
async def test_the_final_error_says_how_many_requests_were_sent() -> None:
    """LM-24: a first failure of another kind counts as well."""
    script = Script(BadResponseError("x"), ProviderConnectionError("net"))
    with pytest.raises(ProviderConnectionError) as caught:
        await with_retry(script, FAST)
    assert caught.value.attempts == script.count == 4
    assert caught.value.retries_exhausted
    assert str(caught.value) == "net (requests sent: 4)"
    assert caught.value.message == "net"
    shown = "".join(traceback.format_exception(caught.value)).lower()
    assert shown.count("requests sent: 4") == 1
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.attempts) == ("net (requests sent: 4)", 4)


@pytest.mark.req("retry.final-error")
async def test_the_error_that_is_raised_is_the_last_one_itself() -> None:
    last = ProviderError("last")
    with pytest.raises(ProviderError) as caught:
        await with_retry(Script(down(), last), RetryConfig(1, 0.0))
    assert caught.value is last
    assert str(last) == "last (requests sent: 2)"
    assert last.args == ("last",)


@pytest.mark.req("retry.final-error")
async def test_a_foreign_error_gets_the_note_too() -> None:
    config = RetryConfig(2, 0.0, retryable=(OSError,))
    with pytest.raises(OSError, match="disk") as caught:
        await with_retry(Script(lambda: OSError("disk")), config)
    assert caught.value.__notes__ == ["Requests sent: 3"]
    assert vars(caught.value).keys() == {"__notes__"}


@pytest.mark.req("retry.final-error")
async def test_one_object_raised_again_and_again_keeps_one_note() -> None:
    error = OSError("same")
    error.add_note("mine")
    config = RetryConfig(1, 0.0, retryable=(OSError,))
    for _ in range(2):
        with pytest.raises(OSError, match="same"):
            await with_retry(Script(error), config)
    assert error.__notes__ == ["mine", "Requests sent: 2"]


@pytest.mark.req("HT-12", "retry.layers")
async def test_layers_do_not_multiply() -> None:
    """HT-12: an error on which an inner layer gave up is not tried again outside."""
    script = Script(lambda: RateLimitError("slow", retry_after=0.0))

    async def inner() -> object:
        return await with_retry(script, RetryConfig(3, 0.0))

    async def middle() -> object:
        return await with_retry(inner, RetryConfig(3, 0.0))

    with pytest.raises(RateLimitError) as caught:
        await with_retry(middle, RetryConfig(2, 0.0))
    assert script.count == 4
    assert caught.value.attempts == 4
    assert str(caught.value) == "slow (requests sent: 4)"
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.req("HT-12", "retry.layers")
async def test_a_layer_that_is_off_does_not_stop_the_outer_one() -> None:
    script = Script(down)

    async def inner() -> object:
        return await with_retry(script, RetryConfig(0))

    with pytest.raises(ProviderError) as caught:
        await with_retry(inner, RetryConfig(2, 0.0))
    assert script.count == 3
    assert caught.value.attempts == 3


@pytest.mark.req("HT-12")
async def test_who_asks_for_no_retries_gets_one_request() -> None:
    script = Script(lambda: RateLimitError("slow"))
    with pytest.raises(RateLimitError) as caught:
        await with_retry(script, RetryConfig(0))
    assert script.count == 1
    assert caught.value.attempts == 1
    assert str(caught.value) == "slow"
    assert not caught.value.retries_exhausted
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.req("retry.layers")
async def test_attempts_of_inner_layers_are_added_up() -> None:
    """Outer attempt 1 sent 2 requests of its own kind, outer attempt 2 sent 3."""

    def spent(count: int) -> ToolExecutionError:
        error = ToolExecutionError("t")
        error.attempts = count
        return error

    script = Script(spent(2), spent(3))
    config = RetryConfig(1, 0.0, retryable=(ToolExecutionError,))
    with pytest.raises(ToolExecutionError) as caught:
        await with_retry(script, config)
    assert caught.value.attempts == 5


# --- what the server asks for ------------------------------------------------------


@pytest.mark.req("HT-02", "D-11", "retry.hint")
@pytest.mark.parametrize("kind", [RateLimitError, ProviderError])
async def test_a_hint_is_waited_out_in_full(kind: type[ExecutionKitError]) -> None:
    error = kind("busy")
    error.retry_after = 7.0
    clock = FakeClock(auto=True)
    await run_with_retry(Script(error, "ok"), DEFAULT_RETRY, clock=clock, random=half)
    assert clock.sleeps == [7.0]


@pytest.mark.req("retry.hint")
async def test_the_jitter_wins_when_it_is_longer() -> None:
    error = RateLimitError("busy", retry_after=0.25)
    clock = FakeClock(auto=True)
    await run_with_retry(Script(error, "ok"), DEFAULT_RETRY, clock=clock, random=half)
    assert clock.sleeps == [0.5]


@pytest.mark.req("HT-02", "D-11", "retry.hint")
@pytest.mark.parametrize("hint", [75.0, 86_400.0, math.inf])
async def test_a_hint_above_the_cap_fails_now_and_stays_on_the_error(
    hint: float,
) -> None:
    """HT-02: `Retry-After: 75` with a cap of 60 s."""
    clock = FakeClock(auto=True)
    script = Script(RateLimitError("busy", retry_after=hint))
    with pytest.raises(RateLimitError) as caught:
        await run_with_retry(script, DEFAULT_RETRY, clock=clock)
    assert script.count == 1
    assert clock.sleeps == []
    assert caught.value.retry_after == hint
    assert caught.value.retries_exhausted


@pytest.mark.req("HT-02", "retry.hint")
async def test_a_hint_of_exactly_the_cap_is_waited_out() -> None:
    clock = FakeClock(auto=True)
    error = RateLimitError("busy", retry_after=60.0)
    await run_with_retry(Script(error, "ok"), DEFAULT_RETRY, clock=clock)
    assert clock.sleeps == [60.0]


@pytest.mark.req("HT-02", "retry.hint")
async def test_a_hint_beyond_the_deadline_fails_now() -> None:
    """HT-02: with a deadline of 30 s left a hint of 40 s cannot be honoured."""
    clock = FakeClock(auto=True)
    script = Script(RateLimitError("busy", retry_after=40.0))
    with pytest.raises(RateLimitError) as caught:
        await run_with_retry(
            script, DEFAULT_RETRY, clock=clock, deadline=clock.monotonic() + 30.0
        )
    assert script.count == 1
    assert clock.sleeps == []
    assert caught.value.retry_after == 40.0


@pytest.mark.req("retry.hint")
@pytest.mark.parametrize("hint", [-1.0, 0.0, math.nan, None])
async def test_a_useless_hint_means_the_usual_pause(hint: float | None) -> None:
    clock = FakeClock(auto=True)
    error = ProviderError("busy")
    error.retry_after = hint
    await run_with_retry(Script(error, "ok"), DEFAULT_RETRY, clock=clock, random=half)
    assert clock.sleeps == [0.5]


@pytest.mark.req("retry.hint")
async def test_a_pause_nobody_asked_for_yields_to_the_cap() -> None:
    clock = FakeClock(auto=True)
    error = RateLimitError("busy", retry_after_known=False)
    config = RetryConfig(base_delay=0.0, max_delay=0.25)
    await run_with_retry(Script(error, "ok"), config, clock=clock)
    assert clock.sleeps == [0.25]


# --- deadline ----------------------------------------------------------------------


@pytest.mark.req("retry.deadline")
async def test_after_the_deadline_nothing_is_sent() -> None:
    clock = FakeClock()
    script = Script("ok")
    with pytest.raises(DeadlineExceededError):
        await run_with_retry(
            script, DEFAULT_RETRY, clock=clock, deadline=clock.monotonic()
        )
    assert script.count == 0


@pytest.mark.req("retry.deadline")
async def test_a_pause_that_cannot_end_in_time_is_not_begun() -> None:
    """The real failure is raised, not the deadline that it met."""
    clock = FakeClock(auto=True)
    script = Script(down(), ProviderError("second"))
    with pytest.raises(ProviderError, match="second") as caught:
        await run_with_retry(
            script,
            RetryConfig(base_delay=2.0),
            clock=clock,
            random=half,
            deadline=clock.monotonic() + 2.5,
        )
    assert clock.sleeps == [1.0]
    assert script.count == 2
    assert caught.value.retries_exhausted
    assert caught.value.attempts == 2


@pytest.mark.req("retry.deadline")
async def test_a_pause_that_ends_at_the_deadline_is_too_long() -> None:
    clock = FakeClock(auto=True)
    with pytest.raises(ProviderError):
        await run_with_retry(
            Script(down),
            RetryConfig(base_delay=2.0),
            clock=clock,
            random=half,
            deadline=clock.monotonic() + 1.0,
        )
    assert clock.sleeps == []


@pytest.mark.req("retry.deadline")
async def test_a_permit_that_comes_too_late_is_not_waited_for() -> None:
    clock = FakeClock()
    bucket = TokenBucket(0.1, clock=clock)
    await bucket.acquire()
    config = RetryConfig(rate_limit_strategy=bucket)
    script = Script("ok")
    with pytest.raises(DeadlineExceededError, match="rate_limit_strategy") as caught:
        await run_with_retry(
            script, config, clock=clock, deadline=clock.monotonic() + 5.0
        )
    assert script.count == 0
    assert caught.value.retry_after == pytest.approx(10.0)
    assert bucket.stats().waiting == 0


@pytest.mark.req("retry.deadline")
async def test_a_permit_in_time_is_waited_for() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(1.0, clock=clock)
    await bucket.acquire()
    config = RetryConfig(rate_limit_strategy=bucket)
    deadline = clock.monotonic() + 5.0
    done = await run_with_retry(Script("ok"), config, clock=clock, deadline=deadline)
    assert done == "ok"


@pytest.mark.req("retry.deadline")
async def test_no_permit_for_a_retry_in_time_leaves_the_real_error() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(0.1, clock=clock)
    config = RetryConfig(base_delay=0.0, rate_limit_strategy=bucket)
    script = Script(down)
    with pytest.raises(ProviderError, match="down") as caught:
        await run_with_retry(
            script, config, clock=clock, deadline=clock.monotonic() + 5.0
        )
    assert script.count == 1
    assert caught.value.retries_exhausted


@pytest.mark.req("retry.deadline")
async def test_a_deadline_inside_an_attempt_is_final() -> None:
    script = Script(DeadlineExceededError("inner"))
    with pytest.raises(DeadlineExceededError, match="inner"):
        await run_with_retry(script, FAST)
    assert script.count == 1


# --- the shared limiter --------------------------------------------------------------


@pytest.mark.req("D-10", "retry.cooldown")
@pytest.mark.parametrize("max_retries", [0, 1, 3])
async def test_every_429_starts_the_cooldown(max_retries: int) -> None:
    """D-10: also with no retries at all, and after the last attempt."""
    clock = FakeClock(auto=True)
    bucket = TokenBucket(1000.0, 10.0, clock=clock)
    config = RetryConfig(max_retries, 0.0, rate_limit_strategy=bucket)
    script = Script(lambda: RateLimitError("slow", retry_after=1.5))
    with clock.installed(), pytest.raises(RateLimitError):
        await with_retry(script, config)
    assert bucket.wait_time() == pytest.approx(1.5)


@pytest.mark.req("D-10")
@pytest.mark.parametrize(
    "make",
    [
        lambda c: TokenBucket(9.0, 9.0, clock=c),
        lambda c: SlidingWindow(9, 1.0, clock=c),
    ],
)
async def test_the_next_caller_waits_out_the_cooldown(make: Any) -> None:
    clock = FakeClock(auto=True)
    limiter = make(clock)
    config = RetryConfig(0, rate_limit_strategy=limiter)
    script = Script(RateLimitError("slow", retry_after=2.0), "ok")
    with clock.installed():
        with pytest.raises(RateLimitError):
            await with_retry(script, config)
        began = clock.monotonic()
        assert await with_retry(script, config) == "ok"
    assert clock.monotonic() - began == pytest.approx(2.0)


@pytest.mark.req("retry.cooldown")
@pytest.mark.parametrize(("max_delay", "paused"), [(5.0, MAX_COOLDOWN), (300.0, 300.0)])
async def test_one_long_hint_does_not_stop_all_callers_for_a_day(
    max_delay: float, paused: float
) -> None:
    clock = FakeClock()
    bucket = TokenBucket(1.0, clock=clock)
    config = RetryConfig(max_delay=max_delay, rate_limit_strategy=bucket)
    with clock.installed(), pytest.raises(RateLimitError):
        await with_retry(Script(RateLimitError("no", retry_after=86_400.0)), config)
    assert bucket.wait_time() == pytest.approx(paused)


@pytest.mark.req("retry.cooldown")
async def test_only_a_429_pauses_the_others() -> None:
    clock = FakeClock()
    bucket = TokenBucket(1.0, 5.0, clock=clock)
    error = ProviderError("busy")
    error.retry_after = 9.0
    with clock.installed(), pytest.raises(ProviderError):
        await with_retry(Script(error), RetryConfig(0, rate_limit_strategy=bucket))
    assert bucket.wait_time() == 0.0


@pytest.mark.req("retry.permit")
async def test_each_attempt_takes_a_permit() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(2.0, clock=clock)
    times: list[float] = []

    async def call() -> None:
        times.append(clock.monotonic())
        if len(times) < 3:
            raise down()

    config = RetryConfig(base_delay=0.0, rate_limit_strategy=bucket)
    with clock.installed():
        await with_retry(call, config)
    assert [at - times[0] for at in times] == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.req("D-09", "retry.permit")
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_check_comes_after_the_permit_and_right_before_the_call(
    is_async: bool,
) -> None:
    """D-09: a limit that is checked before a wait may be passed after it."""
    clock = FakeClock(auto=True)
    log: list[tuple[str, float]] = []
    bucket = TokenBucket(1.0, clock=clock)

    def note(number: int) -> Awaitable[None] | None:
        log.append((f"check {number}", clock.monotonic() - 1000.0))
        return asyncio.sleep(0) if is_async else None

    async def call() -> None:
        log.append(("call", clock.monotonic() - 1000.0))
        if len(log) < 4:
            raise down()

    config = RetryConfig(base_delay=0.0, rate_limit_strategy=bucket)
    with clock.installed():
        await with_retry(call, config, _before_attempt=note)
    assert log == [("check 1", 0.0), ("call", 0.0), ("check 2", 1.0), ("call", 1.0)]


@pytest.mark.req("retry.permit")
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_refused_attempt_gives_its_permit_back(is_async: bool) -> None:
    clock = FakeClock()
    bucket = TokenBucket(0.001, 1.0, clock=clock)

    async def later() -> None:
        raise BudgetExhaustedError("spent")

    def refuse(_number: int) -> Awaitable[None]:
        if is_async:
            return later()
        raise BudgetExhaustedError("spent")

    config = RetryConfig(rate_limit_strategy=bucket)
    script = Script("ok")
    with pytest.raises(BudgetExhaustedError) as caught:
        await with_retry(script, config, _before_attempt=refuse)
    assert script.count == 0
    assert caught.value.attempts == 0
    assert bucket.stats().available == pytest.approx(1.0)


@pytest.mark.req("retry.permit")
async def test_a_cancelled_check_gives_the_permit_back() -> None:
    clock = FakeClock()
    bucket = TokenBucket(0.001, 1.0, clock=clock)
    config = RetryConfig(rate_limit_strategy=bucket)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        with_retry(Script("ok"), config, _before_attempt=lambda _n: never)
    )
    await clock.advance(0.0)
    assert bucket.stats().available == pytest.approx(0.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bucket.stats().available == pytest.approx(1.0)


@pytest.mark.req("retry.permit")
async def test_a_refused_retry_names_the_failure_before_it() -> None:
    def refuse(number: int) -> None:
        if number == 2:
            raise BudgetExhaustedError("spent")

    first = down()
    with pytest.raises(BudgetExhaustedError) as caught:
        await with_retry(Script(first), FAST, _before_attempt=refuse)
    assert caught.value.__context__ is first
    assert caught.value.attempts == 1


class _Pacer:
    """A limiter of somebody else: it cannot refund, and knows no timeout."""

    def __init__(self) -> None:
        self.log: list[object] = []

    async def acquire(self) -> None:
        self.log.append("acquire")

    def drain(self, seconds: float) -> None:
        self.log.append(seconds)


@pytest.mark.req("retry.permit")
async def test_a_limiter_of_your_own_needs_two_methods_only() -> None:
    pacer = _Pacer()
    config = RetryConfig(1, 0.0, rate_limit_strategy=pacer)
    with pytest.raises(RateLimitError):
        await with_retry(Script(lambda: RateLimitError("x", retry_after=0.0)), config)
    assert pacer.log == ["acquire", 0.0, "acquire", 0.0]

    def refuse(_number: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        await with_retry(Script("ok"), config, _before_attempt=refuse)
    assert not vars(caught.value)


@pytest.mark.req("retry.permit", "window.exact")
async def test_a_refusal_that_takes_longer_than_the_window_frees_nobody_s_place() -> (
    None
):
    clock = FakeClock()
    window = SlidingWindow(1, 1.0, clock=clock)

    async def refuse(_number: int) -> None:
        await clock.sleep(2.0)
        raise BudgetExhaustedError("spent")

    config = RetryConfig(rate_limit_strategy=window)
    task = asyncio.ensure_future(
        with_retry(Script("ok"), config, _before_attempt=refuse)
    )
    await clock.advance(1.5)
    await window.acquire()  # the refused one's place has lapsed already
    await clock.advance(0.5)
    with pytest.raises(BudgetExhaustedError):
        await task
    assert not window.try_acquire()


# --- on_retry ----------------------------------------------------------------------


@pytest.mark.req("retry.on-retry")
@pytest.mark.parametrize("is_async", [False, True])
async def test_on_retry_hears_of_each_pause(is_async: bool) -> None:
    clock = FakeClock(auto=True)
    heard: list[tuple[int, Exception, float]] = []
    first, second = down(), down()

    def hear(number: int, exc: Exception, delay: float) -> Awaitable[None] | None:
        heard.append((number, exc, delay))
        return asyncio.sleep(0) if is_async else None

    await run_with_retry(
        Script(first, second, "ok"),
        DEFAULT_RETRY,
        clock=clock,
        random=half,
        on_retry=hear,
    )
    assert heard == [(1, first, 0.5), (2, second, 1.0)]


@pytest.mark.req("retry.on-retry")
async def test_on_retry_is_silent_when_there_is_no_retry() -> None:
    heard: list[int] = []
    with pytest.raises(ProviderError):
        await run_with_retry(
            Script(down), RetryConfig(0), on_retry=lambda n, _e, _d: heard.append(n)
        )
    assert heard == []


# --- retry budget --------------------------------------------------------------------


@pytest.mark.req("retry.budget")
async def test_a_budget_bounds_the_retries_of_all_calls_together() -> None:
    budget = RetryBudget(ratio=0.1, reserve=3.0)
    config = RetryConfig(5, 0.0, budget=budget)
    script = Script(down)
    for _ in range(50):
        with pytest.raises(ProviderError):
            await with_retry(script, config)
    # 50 calls, 3 retries from the reserve, a tenth of the calls later on.
    assert 50 + 3 + 4 <= script.count <= 50 + 3 + 5


@pytest.mark.req("retry.budget")
async def test_a_call_that_finds_no_funds_fails_with_its_error() -> None:
    budget = RetryBudget(ratio=0.01, reserve=1.0)
    assert budget.funds == 1.0
    assert budget.withdraw()
    assert not budget.withdraw()
    with pytest.raises(ProviderError) as caught:
        await with_retry(Script(down), RetryConfig(budget=budget))
    assert caught.value.retries_exhausted
    assert budget.funds == pytest.approx(0.01)


@pytest.mark.req("retry.budget")
def test_a_budget_saves_up_to_its_reserve() -> None:
    budget = RetryBudget()
    assert budget.funds == 10.0
    assert budget.withdraw()
    budget.deposit()
    assert budget.funds == pytest.approx(9.2)
    budget = RetryBudget(ratio=0.5, reserve=2.0)
    for _ in range(9):
        budget.deposit()
    assert budget.funds == 2.0
    with pytest.raises(ValueError, match="ratio"):
        RetryBudget(ratio=0.0)
    with pytest.raises(ValueError, match="reserve"):
        RetryBudget(reserve=0.5)


@given(st.lists(st.booleans(), max_size=60), st.floats(0.01, 2.0), st.floats(1.0, 5.0))
def test_a_budget_never_lends(steps: list[bool], ratio: float, reserve: float) -> None:
    budget = RetryBudget(ratio, reserve)
    granted = deposits = 0
    for deposit in steps:
        if deposit:
            budget.deposit()
            deposits += 1
        else:
            granted += budget.withdraw()
        assert 0.0 <= budget.funds <= reserve
    assert granted <= reserve + ratio * deposits + 1e-9


# --- all rules together ----------------------------------------------------------------

KINDS: dict[str, Callable[[], Exception]] = {
    "down": down,
    "limit": lambda: RateLimitError("x", retry_after=2.0),
    "html": lambda: BadResponseError("x"),
    "no": lambda: PermanentError("x"),
    "spent": lambda: BudgetExhaustedError("x"),
}


def _expected(steps: list[str], max_retries: int) -> tuple[int, bool]:
    """(attempts, success) by the rules, written down a second time."""
    bad_responses = 0
    for number, step in enumerate(steps, 1):
        if step == "ok":
            return number, True
        if step in {"no", "spent"} or number > max_retries:
            return number, False
        bad_responses += step == "html"
        if bad_responses > 1 and step == "html":
            return number, False
    raise AssertionError


@pytest.mark.req("retry.attempts")
@given(
    st.lists(st.sampled_from([*KINDS, "ok"]), max_size=6),
    st.integers(0, 4),
)
def test_the_rules_hold_for_every_course(steps: list[str], max_retries: int) -> None:
    steps = [*steps, "ok"]
    script = Script(*[KINDS.get(step, "ok") for step in steps])
    clock = FakeClock(auto=True)
    config = RetryConfig(max_retries, 0.5)
    attempts, success = _expected(steps, max_retries)

    async def course() -> None:
        if success:
            assert await run_with_retry(script, config, clock=clock) == "ok"
            return
        with pytest.raises(ExecutionKitError) as caught:
            await run_with_retry(script, config, clock=clock)
        refused = caught.value.code is ErrorCode.BUDGET_EXHAUSTED
        assert caught.value.attempts == attempts - refused

    asyncio.run(course())
    assert script.count == attempts
    assert len(clock.sleeps) == attempts - 1
    for step, pause in zip(steps, clock.sleeps, strict=False):
        assert pause >= 2.0 if step == "limit" else pause <= 4.0


@pytest.mark.req("retry.says-why-not")
class TestWhyThereWasNoOtherAttempt:
    async def test_a_wait_that_is_longer_than_allowed(self) -> None:
        error = RateLimitError("HTTP 429", retry_after=100.0)
        for _ in range(2):  # one object, raised again: one note
            error.retries_exhausted = False
            with pytest.raises(RateLimitError) as caught:
                await run_with_retry(Script(error), RetryConfig(max_delay=10.0))
            assert caught.value.__notes__ == [
                "Not retried: the wait of 100s is over `max_delay=10`"
            ]

    async def test_a_wait_that_ends_after_the_deadline(self) -> None:
        clock = FakeClock()
        error = RateLimitError("HTTP 429", retry_after=5.0)
        with pytest.raises(RateLimitError) as caught:
            await run_with_retry(
                Script(error),
                RetryConfig(max_delay=10.0),
                clock=clock,
                deadline=clock.monotonic() + 2.0,
            )
        assert caught.value.__notes__ == [
            "Not retried: the wait of 5s ends after the deadline"
        ]

    async def test_a_budget_of_retries_that_is_used_up(self) -> None:
        budget = RetryBudget(ratio=0.1, reserve=1.0)
        config = RetryConfig(max_retries=5, base_delay=0.0, budget=budget)
        with pytest.raises(ProviderError) as caught:
            await run_with_retry(Script(ProviderError("HTTP 503")), config)
        assert "Not retried: the `budget` of retries is used up" in (
            caught.value.__notes__
        )

    async def test_a_failure_that_is_never_retried_needs_no_reason(self) -> None:
        with pytest.raises(PermanentError) as caught:
            await run_with_retry(Script(PermanentError("HTTP 401")), RetryConfig())
        assert not hasattr(caught.value, "__notes__")


@pytest.mark.req("retry.config")
@pytest.mark.parametrize("kinds", [3, "ValueError", b"x", [3], ["ValueError"], None])
def test_what_names_no_failures_is_refused_with_its_name(kinds: Any) -> None:
    with pytest.raises(TypeError, match="`retryable` must"):
        RetryConfig(retryable=kinds)
