"""Executors around executors: one policy each, over anything that runs calls."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ErrorInfo, ToolCall, ToolResult
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import ErrorCode, ToolRateLimitedError
from executionkit.testing import FakeClock
from executionkit.testing.clock import settle
from executionkit.tools.executors import (
    CachingToolExecutor,
    CircuitBreakerConfig,
    CircuitBreakerExecutor,
    CircuitState,
    Executor,
    InMemoryCache,
    RateLimitedToolExecutor,
    RateLimiter,
    RetryableToolExecutor,
    RetryConfig,
    ToolCircuitBreaker,
    ToolExecutor,
    ToolWrapper,
    cacheable,
    rate_limited,
    retryable,
)
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from executionkit.tools.registry import ToolRegistry


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    fake = FakeClock(auto=True)
    with fake.installed():
        yield fake


def call(name: str = "echo", id: str | None = None, **arguments: Any) -> ToolCall:  # noqa: A002
    return ToolCall(id, name, arguments)


class Inner:
    """An executor of somebody else: answers each call as it is told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[ToolCall] = []
        self.timeouts: list[float | None] = []
        self.used_cache: list[bool] = []

    async def execute(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        use_cache: bool = True,
    ) -> list[ToolResult]:
        self.timeouts.append(timeout)
        self.used_cache.append(use_cache)
        return [await self.one(item) for item in calls]

    async def one(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        answer: Any = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if inspect.isfunction(answer):
            answer = await answer(call)
        if isinstance(answer, ToolResult):
            return replace(answer, call_id=call.id)
        if isinstance(answer, BaseException):
            return ToolResult.failure(call, answer)
        return ToolResult(call.name, answer, call_id=call.id)


def limiter_around(inner: object) -> ToolWrapper:
    return RateLimitedToolExecutor(inner, RateLimiter(global_limit=1000))


def cache_around(inner: object) -> ToolWrapper:
    return CachingToolExecutor(inner, InMemoryCache())


WRAPPERS: dict[str, Callable[[object], ToolWrapper]] = {
    "plain": ToolWrapper,
    "rate": limiter_around,
    "breaker": CircuitBreakerExecutor,
    "breaker by name": lambda inner: CircuitBreakerExecutor(
        inner, circuit_breaker=ToolCircuitBreaker()
    ),
    "retry": RetryableToolExecutor,
    "cache": cache_around,
    "all": lambda inner: cache_around(
        RetryableToolExecutor(CircuitBreakerExecutor(limiter_around(inner)))
    ),
}


@pytest.fixture(params=list(WRAPPERS))
def wrap(request: pytest.FixtureRequest) -> Callable[[object], ToolWrapper]:
    return WRAPPERS[request.param]


# --- what all of them promise ---------------------------------------------------------


@pytest.mark.req("T-01")
async def test_all_calls_start_at_once_and_end_in_order_of_completion(
    wrap: Callable[[object], ToolWrapper], clock: FakeClock
) -> None:
    async def sleepy(call: ToolCall) -> str:
        await clock.sleep(call.arguments["s"])
        return call.id

    executor = wrap(Inner(sleepy))
    calls = [
        call("t", "slow", s=0.4),
        call("t", "mid", s=0.3),
        call("t", "fast", s=0.1),
    ]
    began = clock.monotonic()
    results = await executor.execute(calls)
    assert clock.monotonic() - began == pytest.approx(0.4)
    assert [item.call_id for item in results] == ["fast", "mid", "slow"]
    ordered = await executor.execute(calls, use_cache=False, return_order="submission")
    assert [item.call_id for item in ordered] == ["slow", "mid", "fast"]


@pytest.mark.req("T-11")
@pytest.mark.usefixtures("clock")
async def test_results_are_paired_by_id_whatever_order_they_come_in(
    wrap: Callable[[object], ToolWrapper],
) -> None:
    registry = create_registry(echo)
    executor = wrap(InProcessStrategy(registry))
    for _ in range(2):
        calls = [call("echo", f"c{n}", x=n) for n in range(20)]
        results = await executor.execute(calls)
        assert {item.call_id: item.result for item in results} == {
            f"c{n}": n for n in range(20)
        }


@pytest.mark.req("T-04")
@pytest.mark.req("executor.contract")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("kind", ["strategy", "processor", "executor"])
async def test_every_executor_takes_the_same_arguments(
    wrap: Callable[[object], ToolWrapper], kind: str
) -> None:
    registry = create_registry(echo)
    inner: object = {
        "strategy": InProcessStrategy(registry),
        "processor": ToolProcessor(registry),
        "executor": ToolExecutor(registry),
    }[kind]
    executor = wrap(inner)
    assert isinstance(executor, Executor)
    for results in (
        await executor.execute([call(x=1)]),
        await executor.execute([call(x=1)], 5.0, False),
        await executor.execute([call(x=1)], timeout=5.0, use_cache=True),
    ):
        assert [item.result for item in results] == [1]
    assert await executor.execute([]) == []


@pytest.mark.req("executor.contract")
@pytest.mark.usefixtures("clock")
async def test_timeout_and_use_cache_are_handed_on_where_they_are_taken(
    wrap: Callable[[object], ToolWrapper],
) -> None:
    class Bare:
        async def execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
            return [ToolResult(item.name, "bare") for item in calls]

    class Runs:
        async def run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
            return [ToolResult(item.name, "runs", call_id=item.id) for item in calls]

    inner = Inner("full")
    executor = wrap(inner)
    await executor.execute([call()], 3.0, False)
    await executor.execute([call()])
    assert inner.timeouts == [3.0, None]
    assert inner.used_cache == [False, True]
    for bare, text in ((Bare(), "bare"), (Runs(), "runs")):
        [result] = await wrap(bare).execute([call(id="mine")], 3.0, False)
        assert (result.result, result.call_id) == (text, "mine")


@pytest.mark.req("executor.contract")
async def test_an_executor_without_a_time_limit_is_stopped_all_the_same(
    wrap: Callable[[object], ToolWrapper], clock: FakeClock
) -> None:
    class Bare:
        async def execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
            await clock.sleep(100)
            return []

    began = clock.monotonic()
    [result] = await wrap(Bare()).execute([call()], timeout=2.0)
    assert clock.monotonic() - began == pytest.approx(2.0)
    assert result.error == "Timeout after 2.0s"
    assert result.error_code is ErrorCode.TOOL_TIMEOUT
    with execution_scope(ExecutionContext.with_deadline(1.0)):
        [result] = await wrap(Bare()).execute([call()])
    assert result.error_code is ErrorCode.DEADLINE_EXCEEDED


@pytest.mark.req("executor.contract")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("gone", [[], [ToolResult("echo", 1, call_id="another")]])
async def test_a_lost_result_is_a_failure_of_its_call(
    wrap: Callable[[object], ToolWrapper], gone: list[ToolResult]
) -> None:
    class Lossy:
        async def execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
            return gone

    [result] = await wrap(Lossy()).execute([call(id="mine")])
    assert result.call_id == "mine"
    assert "gave no result" in (result.error or "")


@pytest.mark.req("executor.contract")
@pytest.mark.usefixtures("clock")
async def test_what_an_executor_raises_is_a_result(
    wrap: Callable[[object], ToolWrapper],
) -> None:
    class Broken:
        async def execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
            raise ZeroDivisionError("by zero")

    results = await wrap(Broken()).execute([call(id="a"), call(id="b")])
    assert {item.call_id for item in results} == {"a", "b"}
    assert all("by zero" in (item.error or "") for item in results)


@pytest.mark.req("executor.contract")
async def test_cancelling_the_caller_cancels_the_calls_and_is_raised(
    wrap: Callable[[object], ToolWrapper],
) -> None:
    begun, stopped = asyncio.Event(), []

    async def hang(call: ToolCall) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(call.id)
        return ""

    inner = Inner(hang)
    task = asyncio.ensure_future(
        wrap(inner).execute([call(id="a", x=1), call(id="b", x=2)])
    )
    async with asyncio.timeout(5):
        await begun.wait()
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(stopped) == ["a", "b"]
    assert len(inner.calls) == 2  # nothing was tried again


@pytest.mark.req("executor.contract")
def test_what_runs_no_calls_is_refused(wrap: Callable[[object], ToolWrapper]) -> None:
    for wrong in (object(), Inner, None, "executor"):
        with pytest.raises(TypeError, match="execute"):
            wrap(wrong)


@pytest.mark.req("executor.contract")
async def test_a_wrong_timeout_or_order_is_refused() -> None:
    executor = ToolWrapper(Inner(1))
    with pytest.raises(ValueError, match="timeout"):
        await executor.execute([call()], timeout=-1)
    with pytest.raises(ValueError, match="random"):
        await executor.execute([call()], return_order="random")


@pytest.mark.req("executor.contract")
async def test_shutdown_reaches_the_strategy() -> None:
    executor = cache_around(limiter_around(ToolExecutor(create_registry(echo))))
    assert (await executor.execute([call(x=1)]))[0].is_success
    await executor.shutdown()
    [result] = await executor.execute([call(x=2)])
    assert result.error == "System is shutting down"


async def echo(x: Any) -> Any:
    """Give it back."""
    return x


# --- ToolExecutor ---------------------------------------------------------------------


def sleeper(registry: ToolRegistry, clock: FakeClock, **metadata: Any) -> None:
    async def nap() -> str:
        await clock.sleep(1000)
        return "slept"

    registry.add(nap, **metadata)


@pytest.mark.req("executor.tool")
@pytest.mark.req("T-31")
async def test_the_most_specific_timeout_counts(clock: FakeClock) -> None:
    registry = create_registry()
    sleeper(registry, clock)

    async def limit(executor: ToolExecutor, timeout: float | None = None) -> Any:
        began = clock.monotonic()
        [result] = await executor.execute([call("nap")], timeout)
        assert result.error_code is ErrorCode.TOOL_TIMEOUT
        return clock.monotonic() - began

    strategy = InProcessStrategy(registry, default_timeout=7)
    assert await limit(ToolExecutor(registry)) == pytest.approx(30)
    assert await limit(ToolExecutor(registry, 3)) == pytest.approx(3)
    assert await limit(ToolExecutor(strategy=strategy)) == pytest.approx(7)
    assert await limit(ToolExecutor(None, 3, strategy)) == pytest.approx(3)
    assert await limit(ToolExecutor(None, 3, strategy), 2) == pytest.approx(2)
    own = create_registry()
    sleeper(own, clock, timeout=5)
    assert await limit(ToolExecutor(own, 3)) == pytest.approx(5)


@pytest.mark.req("executor.tool")
async def test_a_tool_executor_needs_tools() -> None:
    with pytest.raises(ValueError, match="registry"):
        ToolExecutor()
    strategy = InProcessStrategy(create_registry())
    with pytest.raises(ValueError, match="strategy_kwargs"):
        ToolExecutor(strategy=strategy, strategy_kwargs={"max_concurrency": 1})
    made = ToolExecutor(create_registry(echo), strategy_kwargs={"max_concurrency": 3})
    assert made.strategy.max_concurrency == 3  # type: ignore[attr-defined]
    assert made.supports_streaming


@pytest.mark.req("executor.tool")
async def test_streams_come_item_by_item_with_the_id_of_their_call() -> None:
    async def count(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    executor = ToolExecutor(create_registry(count))
    items = [
        item async for item in executor.stream_execute([call("count", "c", n=10)], 5)
    ]
    assert [item.result for item in items if item.is_partial] == list(range(10))
    assert {item.call_id for item in items} == {"c"}


@pytest.mark.req("executor.tool")
@pytest.mark.req("T-04")
@pytest.mark.usefixtures("clock")
async def test_a_strategy_that_only_runs_is_enough() -> None:
    class Elsewhere:
        timeouts: ClassVar[list[float | None]] = []

        async def run(
            self, calls: Sequence[ToolCall], timeout: float | None = None
        ) -> list[ToolResult]:
            self.timeouts.append(timeout)
            return [ToolResult(item.name, "there") for item in calls]

        async def stream_run(
            self, calls: Sequence[ToolCall], timeout: float | None = None
        ) -> AsyncIterator[ToolResult]:
            for result in await self.run(calls, timeout):
                yield result

    executor = ToolExecutor(None, 4, Elsewhere())  # type: ignore[arg-type]
    results = await executor.execute([call(id="a")], use_cache=False)
    results += [item async for item in executor.stream_execute([call()], 2)]
    assert [item.result for item in results] == ["there", "there"]
    assert Elsewhere.timeouts == [4, 2]


@pytest.mark.req("executor.cache")
@pytest.mark.usefixtures("clock")
async def test_a_change_of_the_registry_is_seen() -> None:
    async def t() -> str:
        return "ok"

    registry = create_registry()
    registry.add(t, cacheable=False)
    executor = CachingToolExecutor(ToolExecutor(registry), InMemoryCache())
    for _ in range(2):
        assert not (await executor.execute([call("t")]))[0].cached
    registry.add(t, cacheable=True, replace=True)
    await executor.execute([call("t")])
    assert (await executor.execute([call("t")]))[0].cached


# --- rate limits ----------------------------------------------------------------------


@pytest.mark.req("executor.rate")
@pytest.mark.req("T-15")
async def test_a_call_waits_for_its_own_limit_only(clock: FakeClock) -> None:
    limiter = RateLimiter(tool_limits={"limited": (1, 10)})
    executor = RateLimitedToolExecutor(Inner("ok"), limiter)
    await executor.execute([call("limited")])
    began = clock.monotonic()
    ends: dict[str, float] = {}

    async def run(name: str) -> None:
        await executor.execute([call(name)])
        ends[name] = clock.monotonic() - began

    await asyncio.gather(run("limited"), run("fast"))
    assert ends == {"limited": pytest.approx(10), "fast": 0}


@pytest.mark.req("executor.rate")
@pytest.mark.req("T-15")
async def test_a_permit_that_comes_too_late_fails_at_once(clock: FakeClock) -> None:
    inner = Inner("ok")
    limiter = RateLimiter(global_limit=1, global_period=60)
    executor = RateLimitedToolExecutor(inner, limiter)
    await executor.execute([call()])
    began = clock.monotonic()
    [result] = await executor.execute([call()], timeout=0.1)
    assert clock.monotonic() == began
    assert result.error_code is ErrorCode.TOOL_RATE_LIMITED
    assert result.retry_after_ms == pytest.approx(60_000)
    assert result.attempts == 0
    with execution_scope(ExecutionContext.with_deadline(5)):
        [result] = await executor.execute([call()])
    assert result.error_code is ErrorCode.TOOL_RATE_LIMITED
    assert len(inner.calls) == 1


@pytest.mark.req("executor.rate")
@pytest.mark.req("T-15")
async def test_cancelled_waiters_and_refused_calls_use_nothing_up(
    clock: FakeClock,
) -> None:
    limiter = RateLimiter(global_limit=4, tool_limits={"echo": (2, 60)})
    executor = RateLimitedToolExecutor(ToolExecutor(create_registry(echo)), limiter)
    await executor.execute([call(x=1), call("unknown"), call(wrong=1)])
    usage = await limiter.get_usage()
    assert (usage["global"]["used"], usage["echo"]["used"]) == (1, 1)
    await limiter.wait("echo")
    waiters = [asyncio.ensure_future(limiter.wait("echo")) for _ in range(2)]
    await asyncio.sleep(0)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert (await limiter.get_usage())["global"]["used"] == 2


@pytest.mark.req("executor.rate")
@pytest.mark.req("T-31")
async def test_a_timeout_counts_the_wait_and_names_what_was_given(
    clock: FakeClock,
) -> None:
    registry = create_registry()
    sleeper(registry, clock)
    limiter = RateLimiter(global_limit=1, global_period=3)
    executor = RateLimitedToolExecutor(ToolExecutor(registry), limiter)
    await limiter.wait("nap")
    began = clock.monotonic()
    [result] = await executor.execute([call("nap")], timeout=5.0)
    assert clock.monotonic() - began == pytest.approx(5)
    assert result.error == "Timeout after 5.0s"
    assert result.error_code is ErrorCode.TOOL_TIMEOUT


@pytest.mark.req("executor.rate")
@pytest.mark.req("factory.direct")
async def test_a_limiter_can_be_used_and_watched_by_itself(clock: FakeClock) -> None:
    limiter = RateLimiter(
        global_limit=3, global_period=60, tool_limits={"slow": (1, 5), "web.*": (2, 60)}
    )
    await limiter.wait("slow")
    assert await limiter.check_limits("slow") == (False, True)
    assert await limiter.check_limits("other") == (False, False)
    usage = await limiter.get_usage("slow")
    assert usage["slow"] == {"used": 1, "limit": 1, "period": 5, "remaining": 0}
    assert usage["global"]["used"] == 1
    with pytest.raises(ToolRateLimitedError) as caught:
        await limiter.wait("slow", timeout=1)
    assert caught.value.retry_after == pytest.approx(5)
    began = clock.monotonic()
    await limiter.wait("slow")
    assert clock.monotonic() - began == pytest.approx(5)
    await limiter.wait("web.get")
    assert (await limiter.get_usage("web.put"))["web.put"]["used"] == 1
    assert await limiter.check_limits("web.put") == (True, False)
    await limiter.reset("slow")
    assert (await limiter.get_usage("slow"))["slow"]["used"] == 0
    assert (await limiter.get_usage())["global"]["used"] == 3
    await limiter.reset(None)
    assert (await limiter.get_usage())["global"]["used"] == 0
    assert "unlimited" not in await limiter.get_usage("unlimited")


@pytest.mark.req("executor.rate")
@pytest.mark.req("T-42")
@pytest.mark.parametrize(
    "wrong",
    [
        {"global_limit": 0},
        {"global_limit": 1, "global_period": 0},
        {"tool_limits": {"a": (0, 1)}},
        {"tool_limits": {"a": 5}},
    ],
)
def test_a_limit_that_admits_nobody_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RateLimiter(**wrong)


@pytest.mark.req("executor.rate")
async def test_a_limiter_of_somebody_else_is_waited_for_in_time(
    clock: FakeClock,
) -> None:
    class Foreign:
        def __init__(self) -> None:
            self.names: list[str] = []

        async def wait(self, tool: str) -> None:
            self.names.append(tool)
            await clock.sleep(5)

    inner = Inner("ok")
    foreign = Foreign()
    executor = RateLimitedToolExecutor(inner, foreign)
    assert (await executor.execute([call("web.get")]))[0].result == "ok"
    [result] = await executor.execute([call("web.get")], timeout=1)
    assert result.error_code is ErrorCode.TOOL_RATE_LIMITED
    assert foreign.names == ["web.get", "web.get"]
    assert len(inner.calls) == 1
    with pytest.raises(TypeError, match="wait"):
        RateLimitedToolExecutor(inner, object())  # type: ignore[arg-type]


@pytest.mark.req("executor.rate")
@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=12),
)
async def test_no_window_ever_holds_more_starts_than_its_limit(
    limit: int, names: list[str]
) -> None:
    fake = FakeClock(auto=True)
    with fake.installed():
        starts: list[float] = []

        async def note(call: ToolCall) -> str:
            starts.append(fake.monotonic())
            return "ok"

        limiter = RateLimiter(
            global_limit=limit, global_period=10, tool_limits={"a": (1, 3)}
        )
        executor = RateLimitedToolExecutor(Inner(note), limiter)
        results = await executor.execute([call(name) for name in names])
        assert all(item.is_success for item in results)
        for begin in starts:
            assert sum(begin <= s < begin + 10 - 1e-6 for s in starts) <= limit


# --- circuit breakers -----------------------------------------------------------------


def states(executor: CircuitBreakerExecutor) -> dict[str, CircuitState]:
    return {k: v["state"] for k, v in executor.get_circuit_states().items()}


FAST = CircuitBreakerConfig(failure_threshold=2, success_threshold=1, reset_timeout=10)


@pytest.mark.req("executor.breaker")
async def test_an_open_circuit_refuses_at_once_until_a_probe_succeeds(
    clock: FakeClock,
) -> None:
    inner = Inner(OSError("1"), OSError("2"), "fine")
    executor = CircuitBreakerExecutor(inner, tool_configs={"t": FAST})
    await executor.execute([call("t")])
    await executor.execute([call("t")])
    assert states(executor) == {"t": CircuitState.OPEN}
    [result] = await executor.execute([call("t", "mine")])
    assert result.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert (result.call_id, result.attempts) == ("mine", 0)
    assert (result.machine, result.pid) == ("circuit_breaker", 0)
    assert result.retry_after_ms == pytest.approx(10_000)
    assert result.error_info is not None
    assert result.error_info.details["reset_timeout"] == pytest.approx(10)
    assert result.error == (
        "Tool 't' circuit breaker is open (failures: 2) (reset in 10.0s)"
    )
    assert len(inner.calls) == 2
    await clock.sleep(10)
    assert (await executor.execute([call("t")]))[0].result == "fine"
    assert states(executor) == {"t": CircuitState.CLOSED}


@pytest.mark.req("executor.breaker")
@pytest.mark.usefixtures("clock")
async def test_a_circuit_is_reset_by_hand_and_concerns_its_tool_alone() -> None:
    inner = Inner(OSError("no"))
    executor = CircuitBreakerExecutor(inner, default_config=FAST)
    for _ in range(3):
        await executor.execute([call("a"), call("web.b")])
    open_ = CircuitState.OPEN
    assert states(executor) == {"a": open_, "web.b": open_}
    shown = executor.get_circuit_states()["a"]
    assert (shown["failure_count"], shown["half_open_calls"]) == (2, 0)
    assert shown["time_until_half_open"] == pytest.approx(10)
    _done = executor.reset_circuit("a")  # with or without `await`
    await executor.reset_circuit("never called")
    assert states(executor) == {"a": CircuitState.CLOSED, "web.b": open_}


@pytest.mark.req("executor.breaker")
@pytest.mark.req("T-17")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("by_name", [False, True])
async def test_caller_errors_and_refusals_open_no_circuit(by_name: bool) -> None:
    inner = ToolExecutor(create_registry(echo))
    breaker = ToolCircuitBreaker(default_config=FAST) if by_name else None
    executor = (
        CircuitBreakerExecutor(inner, circuit_breaker=breaker)
        if by_name
        else CircuitBreakerExecutor(inner, default_config=FAST)
    )
    for _ in range(4):
        await executor.execute([call(wrong=1), call("nope")])
    assert (await executor.execute([call(x=1)]))[0].is_success
    if breaker is not None:
        assert (await breaker.get_state("echo"))["state"] == "closed"
    else:
        assert set(states(executor).values()) == {CircuitState.CLOSED}


@pytest.mark.req("executor.breaker")
@pytest.mark.req("T-17")
async def test_a_probe_place_belongs_to_its_call(clock: FakeClock) -> None:
    gates: list[asyncio.Event] = []

    async def gated(call: ToolCall) -> Any:
        gate = asyncio.Event()
        gates.append(gate)
        await gate.wait()
        return call.arguments.get("outcome", "ok")

    inner = Inner(gated)
    executor = CircuitBreakerExecutor(inner, default_config=FAST)

    def start(**arguments: Any) -> asyncio.Task[list[ToolResult]]:
        return asyncio.ensure_future(executor.execute([call("t", **arguments)]))

    async with asyncio.timeout(5):
        old = start()  # begun before the circuit opens, ends after
        await settle()
        inner.answers = [OSError("1"), OSError("2"), gated]
        await executor.execute([call("t")])
        await executor.execute([call("t")])
        await clock.sleep(10)
        probe = start()
        await settle()
        assert states(executor) == {"t": CircuitState.HALF_OPEN}
        gates[0].set()
        assert (await old)[0].is_success
        assert states(executor) == {"t": CircuitState.HALF_OPEN}
        [second] = await executor.execute([call("t")])
        assert second.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
        probe.cancel()  # its place is free again
        with pytest.raises(asyncio.CancelledError):
            await probe
        third = start()
        await settle()
        gates[2].set()
        assert (await third)[0].is_success
    assert states(executor) == {"t": CircuitState.CLOSED}


@pytest.mark.req("executor.breaker")
@pytest.mark.req("T-17")
async def test_a_cancelled_probe_frees_its_place_by_name_too(clock: FakeClock) -> None:
    async def hang(call: ToolCall) -> None:
        await asyncio.Event().wait()

    inner = Inner(OSError("1"), OSError("2"), hang)
    breaker = ToolCircuitBreaker(default_config=FAST)
    executor = CircuitBreakerExecutor(inner, circuit_breaker=breaker)
    for _ in range(2):
        await executor.execute([call("t")])
    await clock.sleep(10)
    probe = asyncio.ensure_future(executor.execute([call("t")]))
    await settle()
    assert (await breaker.get_state("t"))["half_open_calls"] == 1
    [refused] = await executor.execute([call("t")])
    assert refused.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert (await breaker.get_state("t"))["half_open_calls"] == 0


@pytest.mark.req("executor.breaker")
@pytest.mark.req("T-36")
@pytest.mark.usefixtures("clock")
async def test_circuits_of_invented_names_are_bounded() -> None:
    inner = Inner(OSError("no"))
    executor = CircuitBreakerExecutor(inner, default_config=FAST)
    for _ in range(2):
        await executor.execute([call("real")])
    inner.answers = ["ok"]
    await executor.execute([call(f"t{n}") for n in range(3000)])
    found = states(executor)
    assert len(found) <= 1024
    assert found["real"] is CircuitState.OPEN  # those at rest went first


@pytest.mark.req("executor.breaker")
@pytest.mark.usefixtures("clock")
async def test_a_breaker_of_somebody_else_decides() -> None:
    class Foreign:
        def __init__(self) -> None:
            self.told: list[str] = []
            self.opened = False

        async def can_execute(self, tool: str) -> bool:
            return not self.opened

        async def record_success(self, tool: str) -> None:
            self.told.append(f"+{tool}")

        async def record_failure(self, tool: str) -> None:
            self.told.append(f"-{tool}")

    foreign = Foreign()
    executor = CircuitBreakerExecutor(Inner("ok", OSError()), circuit_breaker=foreign)
    await executor.execute([call("t")])
    await executor.execute([call("t")])
    assert executor.get_circuit_states() == {}
    await executor.reset_circuit("t")  # which it does not have
    foreign.opened = True
    [result] = await executor.execute([call("t")])
    assert result.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert foreign.told == ["+t", "-t"]
    with pytest.raises(TypeError, match="itself"):
        CircuitBreakerExecutor(Inner(1), circuit_breaker=foreign, default_config=FAST)
    with pytest.raises(TypeError, match="default_config"):
        CircuitBreakerExecutor(Inner(1), default_config={})  # type: ignore[arg-type]


# --- retries --------------------------------------------------------------------------

QUICK = RetryConfig(max_retries=3, base_delay=1.0)


@pytest.mark.req("executor.retry")
@pytest.mark.usefixtures("clock")
async def test_a_failure_that_may_pass_is_tried_again() -> None:
    inner = Inner(ConnectionError("1"), TimeoutError("2"), "ok")
    executor = RetryableToolExecutor(inner, default_config=QUICK)
    [result] = await executor.execute([call(id="mine")])
    assert (result.result, result.attempts, result.call_id) == ("ok", 3, "mine")


@pytest.mark.req("executor.retry")
@pytest.mark.usefixtures("clock")
async def test_the_last_real_error_is_kept_with_the_number_of_retries() -> None:
    inner = Inner(OSError("1"), OSError("2"), OSError("3"), OSError("last"))
    executor = RetryableToolExecutor(
        inner, default_config=QUICK, tool_configs={"once": RetryConfig(max_retries=0)}
    )
    [result] = await executor.execute([call()])
    assert result.error == "Max retries reached (3): last"
    assert result.attempts == 4
    [result] = await executor.execute([call("once")])
    assert (result.error, result.attempts) == ("last", 1)


REFUSALS = [
    ErrorCode.TOOL_NOT_FOUND,
    ErrorCode.TOOL_VALIDATION_ERROR,
    ErrorCode.TOOL_CIRCUIT_OPEN,
    ErrorCode.TOOL_CANCELLED,
    ErrorCode.TOOL_BLOCKED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.BUDGET_EXHAUSTED,
]


@pytest.mark.req("executor.retry")
@pytest.mark.req("T-42")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("code", REFUSALS)
async def test_refusals_and_cancellations_are_not_retried(code: ErrorCode) -> None:
    answer = ToolResult("t", error_info=ErrorInfo.from_code(code, "no"))
    inner = Inner(answer)
    config = RetryConfig(max_retries=3, retryable=lambda _exc: True)
    [result] = await RetryableToolExecutor(inner, default_config=config).execute(
        [call()]
    )
    assert len(inner.calls) == 1
    assert result.error == "no"


@pytest.mark.req("executor.retry")
@pytest.mark.usefixtures("clock")
async def test_what_the_error_says_of_itself_is_believed() -> None:
    info = ErrorInfo.from_code(ErrorCode.TOOL_EXECUTION_FAILED, "never")
    inner = Inner(ToolResult("t", error_info=replace(info, retryable=False)))
    await RetryableToolExecutor(inner, default_config=QUICK).execute([call()])
    assert len(inner.calls) == 1


@pytest.mark.req("executor.retry")
async def test_the_pause_that_an_error_asks_for_is_kept(clock: FakeClock) -> None:
    info = ErrorInfo.from_code(ErrorCode.TOOL_RATE_LIMITED, "later")
    limited = ToolResult("t", error_info=replace(info, retry_after_ms=7000))
    executor = RetryableToolExecutor(Inner(limited, "ok"), default_config=QUICK)
    began = clock.monotonic()
    assert (await executor.execute([call()]))[0].result == "ok"
    assert clock.monotonic() - began == pytest.approx(7)
    executor = RetryableToolExecutor(Inner(limited, "ok"), default_config=QUICK)
    began = clock.monotonic()
    [result] = await executor.execute([call()], timeout=5)
    assert clock.monotonic() == began  # it does not fit: no wait for nothing
    assert result.error_code is ErrorCode.TOOL_RATE_LIMITED


@pytest.mark.req("executor.retry")
@pytest.mark.req("T-36")
@pytest.mark.usefixtures("clock")
async def test_kinds_of_exceptions_decide_by_what_was_raised() -> None:
    config = RetryConfig(max_retries=2, retryable=(ConnectionError,))
    for raised, attempts in ((ConnectionResetError("a"), 3), (KeyError("b"), 1)):
        inner = Inner(raised)
        await RetryableToolExecutor(inner, default_config=config).execute([call()])
        assert len(inner.calls) == attempts


@pytest.mark.req("executor.retry")
@pytest.mark.req("T-31")
async def test_timeout_bounds_all_attempts_and_pauses(clock: FakeClock) -> None:
    registry = create_registry()
    sleeper(registry, clock)
    executor = RetryableToolExecutor(
        ToolExecutor(registry, 2.0), default_config=RetryConfig(5, base_delay=0)
    )
    began = clock.monotonic()
    [result] = await executor.execute([call("nap")], timeout=5.0)
    assert clock.monotonic() - began == pytest.approx(5)
    assert "Timeout after 5.0s" in (result.error or "")
    inner = Inner(OSError("no"))
    executor = RetryableToolExecutor(inner, default_config=QUICK)
    await executor.execute([call()], timeout=4.0)
    handed = [item for item in inner.timeouts if item is not None]
    assert handed == sorted(handed, reverse=True)
    assert max(handed) <= 4.0


@pytest.mark.req("executor.retry")
@pytest.mark.usefixtures("clock")
async def test_retries_of_layers_do_not_multiply() -> None:
    calls: list[int] = []

    async def broken() -> None:
        calls.append(1)
        raise ConnectionError("no")

    inner = ToolProcessor(create_registry(broken), max_retries=2, enable_retries=True)
    [result] = await RetryableToolExecutor(inner, default_config=QUICK).execute(
        [call("broken")]
    )
    assert len(calls) == result.attempts == 3
    assert result.error == "Max retries reached (2): no"


@pytest.mark.req("executor.retry")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("metadata", "attempts"),
    [
        ({"side_effects": "write"}, 1),
        ({"side_effects": "write", "idempotent": True}, 4),
        ({"side_effects": "read"}, 4),
    ],
)
async def test_what_writes_is_not_repeated_once_it_has_begun(
    metadata: dict[str, Any], attempts: int
) -> None:
    calls: list[int] = []

    async def pay() -> None:
        calls.append(1)
        raise ConnectionError("lost the answer")

    registry = create_registry()
    registry.add(pay, **metadata)
    executor = RetryableToolExecutor(
        limiter_around(ToolExecutor(registry)), default_config=QUICK
    )
    await executor.execute([call("pay")])
    assert len(calls) == attempts


@pytest.mark.req("executor.retry")
@pytest.mark.req("executor.breaker")
@pytest.mark.req("T-42")
async def test_an_open_circuit_ends_the_retries_at_once(clock: FakeClock) -> None:
    inner = Inner(OSError("really broken"))
    executor = RetryableToolExecutor(
        CircuitBreakerExecutor(inner, default_config=FAST), default_config=QUICK
    )
    await executor.execute([call()])
    began = clock.monotonic()
    [result] = await executor.execute([call()])
    assert clock.monotonic() == began
    assert result.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert len(inner.calls) == 2  # the breaker saw every attempt


@pytest.mark.req("executor.rate")
@pytest.mark.req("T-15")
async def test_each_attempt_takes_a_permit_of_a_limiter_inside(
    clock: FakeClock,
) -> None:
    limiter = RateLimiter(global_limit=1, global_period=60)
    inner = Inner(OSError("no"))
    executor = RetryableToolExecutor(
        RateLimitedToolExecutor(inner, limiter), default_config=QUICK
    )
    await executor.execute([call()], timeout=50)
    assert len(inner.calls) == 1
    assert (await limiter.get_usage())["global"]["used"] == 1


# --- the cache ------------------------------------------------------------------------


@pytest.mark.req("executor.cache")
@pytest.mark.req("T-02")
@pytest.mark.usefixtures("clock")
async def test_an_equal_call_is_answered_from_the_cache() -> None:
    inner = Inner({"n": 1}, {"n": 2})
    executor = CachingToolExecutor(inner, InMemoryCache())
    [first] = await executor.execute([call("s", "a", q=1)])
    [again] = await executor.execute([call("s", "b", q=1)])
    assert (first.cached, again.cached) == (False, True)
    assert again.result == first.result == {"n": 1}
    assert (again.call_id, again.machine, again.pid) == ("b", "cache", 0)
    [other] = await executor.execute([call("s", q=2)])
    assert other.result == {"n": 2}
    [fresh] = await executor.execute([call("s", q=1)], use_cache=False)
    assert not fresh.cached
    assert await executor.invalidate("s", {"q": 1}) == 1
    [anew] = await executor.execute([call("s", q=1)])
    assert not anew.cached


@pytest.mark.req("executor.cache")
@pytest.mark.usefixtures("clock")
async def test_equal_calls_of_one_batch_run_once() -> None:
    gate = asyncio.Event()

    async def gated(call: ToolCall) -> str:
        gate.set()
        await settle(3)
        return "once"

    inner = Inner(gated)
    executor = CachingToolExecutor(inner, InMemoryCache())
    results = await executor.execute([call("s", f"c{n}", q=1) for n in range(5)])
    assert len(inner.calls) == 1
    assert sorted(item.call_id or "" for item in results) == [f"c{n}" for n in range(5)]
    assert sum(item.cached for item in results) == 4


@pytest.mark.req("executor.cache")
@pytest.mark.usefixtures("clock")
async def test_failures_are_not_cached_and_are_reported_as_they_are() -> None:
    inner = Inner(OSError("no"), "yes")
    executor = CachingToolExecutor(inner, InMemoryCache())
    [failed] = await executor.execute([call("s", "mine")])
    assert (failed.error, failed.call_id) == ("no", "mine")
    assert (await executor.execute([call("s")]))[0].result == "yes"


@pytest.mark.req("executor.cache")
@pytest.mark.usefixtures("clock")
async def test_partial_results_are_not_cached() -> None:
    part = ToolResult("s", "part", is_partial=True)
    executor = CachingToolExecutor(Inner(part, "whole"), InMemoryCache())
    assert (await executor.execute([call("s")]))[0].is_partial
    assert (await executor.execute([call("s")]))[0].result == "whole"


@pytest.mark.req("executor.cache")
async def test_times_to_live_by_tool(clock: FakeClock) -> None:
    inner = Inner("ok")
    executor = CachingToolExecutor(
        inner, InMemoryCache(), default_ttl=10, tool_ttls={"short": 1}
    )
    for name in ("short", "long"):
        await executor.execute([call(name)])
    await clock.sleep(5)
    for name in ("short", "long"):
        await executor.execute([call(name)])
    assert [item.name for item in inner.calls] == ["short", "long", "short"]
    with pytest.raises(ValueError, match="ttl"):
        CachingToolExecutor(inner, InMemoryCache(), default_ttl=0)
    with pytest.raises(TypeError):
        CachingToolExecutor(inner, object())  # type: ignore[arg-type]


@pytest.mark.req("executor.cache")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("chosen", "metadata", "cached"),
    [
        (None, {}, True),
        (None, {"side_effects": "write"}, False),
        (None, {"cacheable": False}, False),
        (["t"], {"side_effects": "write"}, True),
        (["t"], {"cacheable": False}, False),
        (["web.t"], {"namespace": "web"}, True),
        (["t"], {"namespace": "web"}, True),
        (["other"], {}, False),
        ([], {}, False),
    ],
)
async def test_which_tools_are_cached(
    chosen: list[str] | None, metadata: dict[str, Any], cached: bool
) -> None:
    async def t() -> str:
        return "ok"

    registry = create_registry()
    registry.add(t, **metadata)
    executor = CachingToolExecutor(
        ToolExecutor(registry), InMemoryCache(), cacheable_tools=chosen
    )
    await executor.execute([call("t")])
    assert (await executor.execute([call("t")]))[0].cached is cached


# --- marks ----------------------------------------------------------------------------


@pytest.mark.req("executor.marks")
@pytest.mark.usefixtures("clock")
async def test_a_mark_for_retries_has_an_effect_everywhere() -> None:
    calls: list[int] = []

    @retryable(max_retries=2, base_delay=0)
    async def flaky() -> None:
        calls.append(1)
        raise ConnectionError("no")

    registry = create_registry(flaky)
    assert registry.records()[0].tool.max_retries == 2
    for executor in (
        RetryableToolExecutor(ToolExecutor(registry)),
        ToolProcessor(registry),
        ToolProcessor(registry, enable_retries=True, max_retries=9),
    ):
        calls.clear()
        await executor.execute([call("flaky")])
        assert len(calls) == 3
    calls.clear()
    named = RetryableToolExecutor(
        InProcessStrategy(registry), tool_configs={"flaky": RetryConfig(0)}
    )
    await named.execute([call("flaky")])
    assert len(calls) == 1


@pytest.mark.req("executor.marks")
async def test_a_mark_for_a_limit_has_an_effect_everywhere(clock: FakeClock) -> None:
    @rate_limited(1, period=30)
    class Slow:
        async def execute(self) -> str:
            return "ok"

    registry = create_registry(Slow)
    assert registry.records()[0].tool.rate_limit == (1, 30)
    for executor in (
        ToolProcessor(registry),
        ToolExecutor(registry),
        RateLimitedToolExecutor(InProcessStrategy(registry), RateLimiter()),
    ):
        began = clock.monotonic()
        await executor.execute([call("Slow"), call("Slow")])
        assert clock.monotonic() - began == pytest.approx(30)


@pytest.mark.req("executor.marks")
@pytest.mark.usefixtures("clock")
async def test_marks_add_up_and_arguments_of_the_registry_win() -> None:
    @retryable(max_retries=2)
    @rate_limited(5, 1.0)
    @cacheable(ttl=3)
    async def marked() -> str:
        return "ok"

    registry = create_registry(marked)
    tool = registry.records()[0].tool
    assert (tool.max_retries, tool.rate_limit) == (2, (5, 1.0))
    other = create_registry()
    other.add(marked, rate_limit=(7, 2.0))
    assert other.records()[0].tool.rate_limit == (7, 2.0)
    executor = CachingToolExecutor(ToolExecutor(registry), InMemoryCache())
    await executor.execute([call("marked")])
    assert (await executor.execute([call("marked")]))[0].cached


@pytest.mark.req("executor.marks")
def test_a_mark_that_comes_too_late_is_refused() -> None:
    from executionkit.tools.decorators import tool

    registry = create_registry()

    @tool(registry=registry)
    async def early() -> None: ...

    with pytest.raises(TypeError, match="below `@tool`"):
        retryable()(early)
    with pytest.raises(TypeError, match="below `@tool`"):
        rate_limited(1)(early)

    @tool(registry=registry)
    @rate_limited(3)
    async def fine() -> None: ...

    assert registry.records()[1].tool.rate_limit == (3, 60.0)


@pytest.mark.req("executor.marks")
def test_marks_check_their_numbers() -> None:
    with pytest.raises(ValueError, match="max_retries"):
        retryable(-1)
    with pytest.raises(ValueError, match="limit"):
        rate_limited(0)
