"""Layers around calls: their order, whose setting counts, and what each one promises."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.engine.breaker import BreakerConfig, CircuitState
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.engine.retry import RetryConfig
from executionkit.errors import (
    BudgetExhaustedError,
    ErrorCode,
    ProviderError,
    RateLimitError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolValidationError,
)
from executionkit.testing import FakeClock, settle
from executionkit.tools._options import ToolPolicy
from executionkit.tools._runs import Override
from executionkit.tools.guard_rules import BudgetGuard
from executionkit.tools.guards import GuardResult, GuardVerdict
from executionkit.tools.middleware import DEFAULT_ORDER
from executionkit.tools.middleware.breaker import BreakerOptions
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.tools.strategies import InProcessStrategy

NO_PAUSE = RetryConfig(max_retries=3, base_delay=0.0)


class Work:
    """A tool on a fake clock that notes when it starts and how many run at once."""

    def __init__(self, clock: FakeClock, failures: int = 0) -> None:
        self.clock = clock
        self.failures = failures
        self.starts: list[float] = []
        self.active = 0
        self.peak = 0

    async def execute(self, seconds: float = 0.0) -> int:
        self.starts.append(self.clock.monotonic())
        number = len(self.starts)
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            await self.clock.sleep(seconds)
        finally:
            self.active -= 1
        if number <= self.failures:
            msg = f"failure {number}"
            raise RuntimeError(msg)
        return number


def registry_of(tool: object, name: str = "work", **metadata: Any) -> ToolRegistry:
    registry = create_registry()
    registry.add(tool, name, **metadata)
    return registry


def calls(n: int, name: str = "work", **arguments: Any) -> list[ToolCall]:
    return [ToolCall(f"c{i}", name, arguments) for i in range(n)]


async def one(processor: ToolProcessor, name: str = "work", **more: Any) -> ToolResult:
    [result] = await processor.execute(calls(1, name, **more))
    return result


def first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


class CountingGuard:
    name = "counting"

    def __init__(self) -> None:
        self.before = 0
        self.after = 0

    def check(self, _call: Any, _record: Any) -> GuardResult:
        self.before += 1
        return GuardResult(verdict=GuardVerdict.ALLOW)

    def check_output(self, _call: Any, _record: Any, _value: Any) -> GuardResult:
        self.after += 1
        return GuardResult(verdict=GuardVerdict.ALLOW)


class Own:
    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, request: Any, nxt: Any) -> Any:
        self.calls += 1
        return await nxt(request)


def full(registry: ToolRegistry, **changes: Any) -> ToolProcessor:
    """A processor with every layer on."""
    options: dict[str, Any] = {
        "enable_caching": True,
        "retry_config": NO_PAUSE,
        "circuit_breaker_config": BreakerConfig(failure_threshold=100),
        "tool_rate_limits": {"work": (100, 60)},
        "bulkhead_config": BulkheadConfig(default_limit=100),
    }
    return ToolProcessor(registry, **{**options, **changes})


# --- the order ------------------------------------------------------------------------
@pytest.mark.req("layers.order")
def test_all_layers_stand_in_the_documented_order() -> None:
    processor = full(
        registry_of(Work(FakeClock())), guards=[CountingGuard()], middleware=[Own()]
    )
    layers = processor.describe("work")["work"]
    assert tuple(name for name in layers if name != "Own") == DEFAULT_ORDER
    assert layers.index("Own") == layers.index("trace") + 1
    assert processor.describe() == {"work": layers}


@pytest.mark.req("layers.off")
def test_nothing_but_validation_and_the_time_limit_is_there_by_default() -> None:
    layers = ToolProcessor(registry_of(Work(FakeClock()))).describe("work")["work"]
    assert layers == ("trace", "validation", "timeout", "strategy")


@pytest.mark.req("layers.order")
async def test_outside_of_retry_is_once_per_call_and_inside_once_per_attempt(
    auto_clock: FakeClock,
) -> None:
    work, guard, own = Work(auto_clock, failures=2), CountingGuard(), Own()
    processor = full(registry_of(work), guards=[guard], middleware=[own])
    result = await one(processor)
    assert (result.result, result.attempts) == (3, 3)
    assert (own.calls, guard.before, guard.after) == (1, 1, 1)
    stats = await processor.stats()
    assert stats.rate_limits is not None
    assert stats.bulkhead is not None
    assert stats.rate_limits["work"].used == 3
    assert stats.bulkhead["default.work"].acquired == 3
    assert stats.retries == 2


@pytest.mark.req("layers.order")
async def test_the_breaker_sees_every_attempt(auto_clock: FakeClock) -> None:
    config = BreakerConfig(failure_threshold=3)
    work = Work(auto_clock, failures=9)
    retry = RetryConfig(max_retries=1, base_delay=0.0)
    processor = full(
        registry_of(work), circuit_breaker_config=config, retry_config=retry
    )
    await one(processor)
    stats = await processor.stats()
    assert stats.circuits == {"work": CircuitState.CLOSED}
    await one(processor)
    stats = await processor.stats()
    assert stats.circuits == {"work": CircuitState.OPEN}
    assert len(work.starts) == 3


@pytest.mark.req("layers.order")
async def test_a_cache_hit_reaches_no_layer_behind(auto_clock: FakeClock) -> None:
    work, guard = Work(auto_clock), CountingGuard()
    processor = full(registry_of(work), guards=[guard])
    first_result, second = await one(processor), await one(processor)
    assert (first_result.cached, second.cached) == (False, True)
    assert guard.before == guard.after == 2
    stats = await processor.stats()
    assert stats.rate_limits is not None
    assert stats.bulkhead is not None
    assert stats.rate_limits["work"].used == 1
    assert stats.bulkhead["default.work"].acquired == 1
    assert len(work.starts) == 1


@pytest.mark.req("layers.order")
async def test_wrong_arguments_reach_no_layer_behind(auto_clock: FakeClock) -> None:
    work = Work(auto_clock)
    processor = full(
        registry_of(work), circuit_breaker_config=BreakerConfig(failure_threshold=1)
    )
    result = await one(processor, seconds="soon")
    assert result.error_code is ErrorCode.TOOL_VALIDATION_ERROR
    assert (result.attempts, work.starts) == (0, [])
    stats = await processor.stats()
    assert stats.circuits == {"work": CircuitState.CLOSED}
    assert stats.rate_limits is not None
    assert stats.rate_limits["work"].used == 0
    assert sum(item.acquired for item in (stats.bulkhead or {}).values()) == 0


@pytest.mark.req("layers.waiting")
async def test_who_waits_for_a_permit_holds_no_slot(fake_clock: FakeClock) -> None:
    work, other = Work(fake_clock), Work(fake_clock)
    registry = registry_of(work)
    registry.add(other, "other")
    processor = ToolProcessor(
        registry,
        default_timeout=None,
        tool_rate_limits={"work": (1, 60)},
        bulkhead_config=BulkheadConfig(global_limit=1),
    )
    running = asyncio.create_task(processor.execute(calls(2)))
    await settle()
    assert len(work.starts) == 1
    assert (await one(processor, "other")).is_success
    await fake_clock.advance(60)
    assert all(result.is_success for result in await running)


@pytest.mark.req("layers.waiting", "T-TRAP-15")
@pytest.mark.parametrize("why", ["rate limit", "bulkhead", "backoff"])
async def test_who_waits_holds_no_place_of_max_concurrency(
    fake_clock: FakeClock, why: str
) -> None:
    work, other = Work(fake_clock, failures=why == "backoff"), Work(fake_clock)
    registry = registry_of(work)
    registry.add(other, "other")
    settings_of: dict[str, dict[str, Any]] = {
        "rate limit": {"tool_rate_limits": {"work": (1, 60)}},
        "bulkhead": {"bulkhead_config": BulkheadConfig(tool_limits={"work": 1})},
        "backoff": {"enable_retries": True, "retry_base_delay": 50.0},
    }
    processor = ToolProcessor(
        registry,
        default_timeout=None,
        max_concurrency=2 if why == "bulkhead" else 1,
        **settings_of[why],
    )
    seconds = 30.0 if why == "bulkhead" else 0.0
    batch = [*calls(3, seconds=seconds), ToolCall("last", "other")]
    ended: list[str | None] = []

    async def read() -> None:
        async for result in processor.astream(batch):
            ended.append(result.call_id)

    reading = asyncio.create_task(read())
    await settle()
    await fake_clock.advance(0)
    assert "last" in ended
    await fake_clock.advance(150)
    await asyncio.wait_for(reading, 5)
    assert sorted(filter(None, ended)) == ["c0", "c1", "c2", "last"]


@pytest.mark.req("layers.waiting")
async def test_the_time_limit_of_an_attempt_begins_when_the_tool_starts(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(
        registry_of(work),
        default_timeout=2.0,
        bulkhead_config=BulkheadConfig(default_limit=1),
    )
    results = await processor.execute(calls(5, seconds=1.5))
    assert [result.error for result in results] == [None] * 5
    assert work.starts == [1000.0, 1001.5, 1003.0, 1004.5, 1006.0]


# --- whose setting counts -------------------------------------------------------------
PRESENCE = list(itertools.product([True, False], repeat=4))


def chosen(present: tuple[bool, ...], *values: int) -> list[int | None]:
    pairs = zip(present, values, strict=True)
    return [value if is_there else None for is_there, value in pairs]


def policies_of(field: str, exact: Any, pattern: Any) -> dict[str, ToolPolicy]:
    found: dict[str, ToolPolicy] = {}
    if pattern is not None:  # put first: an exact name wins by being exact
        found["web.*"] = ToolPolicy(**{field: pattern})
    if exact is not None:
        found["web.work"] = ToolPolicy(**{field: exact})
    return found


@pytest.mark.req("policies.timeout", "T-SEED-19")
@pytest.mark.parametrize("present", PRESENCE)
async def test_the_most_specific_time_limit_counts(
    auto_clock: FakeClock, present: tuple[bool, ...]
) -> None:
    call, exact, own, pattern = chosen(present, 1, 2, 3, 4)
    metadata: dict[str, Any] = {} if own is None else {"timeout": float(own)}
    work = Work(auto_clock)
    processor = ToolProcessor(
        registry_of(work, "web.work", **metadata),
        default_timeout=5,
        policies=policies_of("timeout", exact, pattern),
    )
    overrides = {"c0": Override(timeout=call)} if call is not None else None
    [result] = await processor.execute(
        calls(1, "web.work", seconds=100), overrides=overrides
    )
    assert result.error_code is ErrorCode.TOOL_TIMEOUT
    assert result.duration == first(call, exact, own, pattern, 5)


@pytest.mark.req("policies.timeout")
async def test_a_time_limit_of_the_call_bounds_the_call_as_a_whole(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(
        registry_of(work, timeout=2.0), enable_retries=True, retry_base_delay=0.0
    )
    [result] = await processor.execute(calls(1, seconds=100), timeout=5)
    assert result.error == "Timeout after 5s"
    assert result.duration == 5
    [result] = await processor.execute(calls(1, seconds=100))
    assert result.duration == 8  # four attempts of the tool's two seconds


@pytest.mark.req("policies.timeout")
async def test_none_and_infinity_are_no_limit(auto_clock: FakeClock) -> None:
    work = Work(auto_clock)
    free = ToolProcessor(registry_of(work), default_timeout=None)
    assert "timeout" not in free.describe("work")["work"]
    assert (await one(free, seconds=1e6)).is_success
    endless = ToolPolicy(timeout=float("inf"))
    by_policy = ToolProcessor(registry_of(work), policies={"work": endless})
    assert (await one(by_policy, seconds=1e6)).is_success
    own = ToolProcessor(registry_of(work, timeout=None))
    assert (await one(own, seconds=1e6)).is_success


@pytest.mark.req("policies.retries", "T-SEED-19")
@pytest.mark.parametrize("present", PRESENCE)
async def test_the_most_specific_number_of_retries_counts(
    auto_clock: FakeClock, present: tuple[bool, ...]
) -> None:
    call, exact, own, pattern = chosen(present, 1, 2, 3, 4)
    work = Work(auto_clock, failures=99)
    processor = ToolProcessor(
        registry_of(work, "web.work", max_retries=own),
        enable_retries=True,
        max_retries=5,
        retry_base_delay=0.0,
        policies=policies_of("max_retries", exact, pattern),
    )
    overrides = None
    if call is not None:
        overrides = {"c0": Override(retry=RetryConfig(call, base_delay=0.0))}
    [result] = await processor.execute(calls(1, "web.work"), overrides=overrides)
    retries = first(call, exact, own, pattern, 5)
    assert retries is not None
    assert result.attempts == len(work.starts) == retries + 1
    assert result.error == f"Max retries reached ({retries}): failure {retries + 1}"


@pytest.mark.req("policies.retries")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_caching": True},
        {"enable_bulkhead": True},
        {"guards": [CountingGuard()]},
        {"middleware": [Own()]},
        {"trace": lambda _event: None},
    ],
    ids=lambda options: "".join(options),
)
async def test_retries_of_one_call_count_whatever_else_is_on(
    auto_clock: FakeClock, options: dict[str, Any]
) -> None:
    work = Work(auto_clock, failures=99)
    processor = ToolProcessor(registry_of(work), **options)
    pair = [ToolCall(f"c{n}", "work", {"seconds": n}) for n in range(2)]
    twice = {"c1": Override(retry=RetryConfig(2, base_delay=0.0))}
    results = await processor.execute(pair, overrides=twice)
    assert {r.call_id: r.attempts for r in results} == {"c0": 1, "c1": 3}
    never = ToolProcessor(registry_of(work), retry_config=NO_PAUSE, **options)
    off = {"c1": Override(retry=RetryConfig(0))}
    results = await never.execute(pair, overrides=off)
    assert {r.call_id: r.attempts for r in results} == {"c0": 4, "c1": 1}


@pytest.mark.req("policies.retries")
async def test_a_policy_turns_retries_on_and_so_does_a_tool(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock, failures=99)
    registry = registry_of(work, max_retries=2)
    assert (await one(ToolProcessor(registry))).attempts == 3
    policies = {"w*": ToolPolicy(max_retries=4), "work": ToolPolicy(max_retries=1)}
    processor = ToolProcessor(registry, policies=policies)
    assert (await one(processor)).attempts == 2


@pytest.mark.req("policies.names")
async def test_the_full_name_wins_over_the_bare_one(auto_clock: FakeClock) -> None:
    policies = {"work": ToolPolicy(timeout=7), "web.work": ToolPolicy(timeout=3)}
    registry = registry_of(Work(auto_clock), "web.work")
    registry.add(Work(auto_clock), "db.work")
    processor = ToolProcessor(registry, policies=policies)
    assert (await one(processor, "web.work", seconds=9)).duration == 3
    assert (await one(processor, "db.work", seconds=9)).duration == 7


@pytest.mark.req("policies.names")
async def test_the_first_pattern_that_matches_counts(auto_clock: FakeClock) -> None:
    policies = {"mcp.n*": ToolPolicy(timeout=2), "mcp.*": ToolPolicy(timeout=5)}
    registry = registry_of(Work(auto_clock), "mcp.notion")
    registry.add(Work(auto_clock), "mcp.github")
    processor = ToolProcessor(registry, policies=policies)
    assert (await one(processor, "mcp.notion", seconds=9)).duration == 2
    assert (await one(processor, "mcp.github", seconds=9)).duration == 5


@pytest.mark.req("policies.rate-limits", "T-SEED-19", "T-SEED-18")
@pytest.mark.parametrize("present", PRESENCE)
async def test_the_most_specific_rate_limit_counts_and_the_global_one_as_well(
    auto_clock: FakeClock, present: tuple[bool, ...]
) -> None:
    exact, own, pattern, overall = chosen(present, 7, 6, 5, 4)
    limits: dict[str, tuple[int, float]] = {}
    if pattern is not None:
        limits["web.*"] = (pattern, 60.0)
    if exact is not None:
        limits["web.work"] = (exact, 60.0)
    work = Work(auto_clock)
    registry = registry_of(
        work, "web.work", rate_limit=None if own is None else (own, 60.0)
    )
    processor = ToolProcessor(
        registry,
        enable_rate_limiting=True,
        global_rate_limit=overall,
        tool_rate_limits=limits,
    )
    results = await processor.execute(calls(9, "web.work"), timeout=30)
    limit = first(exact, own, pattern)
    expected = min(9 if limit is None else limit, overall or 9)
    assert len(work.starts) == sum(result.is_success for result in results) == expected
    codes = {result.error_code for result in results if not result.is_success}
    assert codes <= {ErrorCode.TOOL_RATE_LIMITED}


@pytest.mark.req("policies.concurrency", "T-SEED-19")
@pytest.mark.parametrize("present", PRESENCE)
async def test_the_most_specific_concurrency_counts_and_the_global_one_as_well(
    auto_clock: FakeClock, present: tuple[bool, ...]
) -> None:
    exact, own, pattern, overall = chosen(present, 7, 6, 5, 4)
    config = BulkheadConfig(
        default_limit=8,
        tool_limits={} if exact is None else {"web.work": exact},
        patterns={} if pattern is None else {"web.*": pattern},
        global_limit=overall,
    )
    work = Work(auto_clock)
    registry = registry_of(work, "web.work", concurrency_limit=own)
    processor = ToolProcessor(registry, bulkhead_config=config)
    results = await processor.execute(calls(20, "web.work", seconds=1))
    limit = first(exact, own, pattern, 8)
    assert limit is not None
    assert work.peak == min(limit, overall or limit)
    assert all(result.is_success for result in results)


@pytest.mark.req("policies.concurrency")
async def test_a_namespace_limit_counts_all_its_tools(auto_clock: FakeClock) -> None:
    work = Work(auto_clock)
    registry = registry_of(work, "ext.a")
    registry.add(work, "ext.b")
    registry.add(work, "c")
    config = BulkheadConfig(namespace_limits={"ext": 3})
    processor = ToolProcessor(registry, bulkhead_config=config)
    mixed = [*calls(5, "ext.a", seconds=1), *calls(5, "ext.b", seconds=1)]
    await processor.process(mixed)
    assert work.peak == 3


# --- retries --------------------------------------------------------------------------
class Raises:
    def __init__(self, *errors: BaseException) -> None:
        self.errors = deque(errors)
        self.runs = 0

    async def execute(self) -> str:
        self.runs += 1
        if len(self.errors) > 1:
            raise self.errors.popleft()
        raise self.errors[0]


HOPELESS = [
    ToolValidationError("work", ["no"]),
    ToolNotFoundError("inner"),
    BudgetExhaustedError("no money"),
    asyncio.CancelledError(),
]
HOPEFUL = [
    ValueError("x"),
    ConnectionError("x"),
    TimeoutError("x"),
    OSError(5, "x"),
    ToolExecutionError("work", ValueError("x")),
    ProviderError("x"),
    Exception(""),
]


@pytest.mark.req("retries.kinds", "T-TRAP-14")
@pytest.mark.parametrize("error", HOPELESS, ids=lambda error: type(error).__name__)
async def test_what_trying_again_cannot_help_is_tried_once(
    auto_clock: FakeClock, error: BaseException
) -> None:
    tool = Raises(error)
    processor = ToolProcessor(registry_of(tool), enable_retries=True)
    began = auto_clock.monotonic()
    result = await one(processor)
    assert (result.attempts, tool.runs) == (1, 1)
    assert not result.is_success
    assert not result.retryable
    assert auto_clock.monotonic() == began
    assert result.error_info is not None
    assert result.error_info.message == result.error


@pytest.mark.req("retries.kinds")
@pytest.mark.parametrize("error", HOPEFUL, ids=lambda error: type(error).__name__)
async def test_what_trying_again_can_help_is_tried_again(
    auto_clock: FakeClock, error: BaseException
) -> None:
    tool = Raises(error)
    processor = ToolProcessor(
        registry_of(tool), enable_retries=True, max_retries=2, retry_base_delay=1.0
    )
    result = await one(processor)
    assert (result.attempts, tool.runs) == (3, 3)
    assert result.retryable
    assert result.exception is error


@pytest.mark.req("retries.kinds", "T-TRAP-14")
async def test_unknown_names_and_wrong_arguments_are_answered_at_once(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(registry_of(work), enable_retries=True)
    began = auto_clock.monotonic()
    unknown = await one(processor, "nothing")
    wrong = await one(processor, seconds=[])
    assert (unknown.attempts, wrong.attempts, work.starts) == (0, 0, [])
    assert auto_clock.monotonic() == began


@pytest.mark.req("retries.writes")
@pytest.mark.parametrize("effects", ["write", "destructive"])
async def test_what_writes_is_not_repeated_after_it_has_begun(
    auto_clock: FakeClock, effects: str
) -> None:
    work = Work(auto_clock, failures=1)
    registry = registry_of(work, side_effects=effects)
    result = await one(ToolProcessor(registry, retry_config=NO_PAUSE))
    assert (result.error, result.attempts) == ("failure 1", 1)
    assert len(work.starts) == 1


@pytest.mark.req("retries.writes")
async def test_a_write_that_timed_out_is_not_repeated(auto_clock: FakeClock) -> None:
    work = Work(auto_clock)
    registry = registry_of(work, side_effects="write", timeout=1.0)
    result = await one(ToolProcessor(registry, retry_config=NO_PAUSE), seconds=5)
    assert result.error_code is ErrorCode.TOOL_TIMEOUT
    assert len(work.starts) == 1


@pytest.mark.req("retries.writes")
@pytest.mark.parametrize("said", [{"idempotent": True}, {"max_retries": 1}])
async def test_a_write_is_repeated_when_its_author_says_so(
    auto_clock: FakeClock, said: dict[str, Any]
) -> None:
    work = Work(auto_clock, failures=1)
    registry = registry_of(work, side_effects="write", **said)
    result = await one(ToolProcessor(registry, retry_config=NO_PAUSE))
    assert (result.result, result.attempts) == (2, 2)


@pytest.mark.req("retries.writes")
async def test_a_write_that_was_refused_before_it_began_is_tried_again(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    registry = registry_of(work, side_effects="write")
    processor = ToolProcessor(
        registry,
        retry_config=RetryConfig(9, base_delay=4.0, max_delay=4.0),
        bulkhead_config=BulkheadConfig(default_limit=1, acquisition_timeout=0),
    )
    results = await processor.execute(calls(2, seconds=1))
    assert [result.error for result in results] == [None, None]
    assert len(work.starts) == 2
    assert [result.attempts for result in results] == [1, 1]


@pytest.mark.req("retries.hints")
async def test_the_pause_that_a_tool_asks_for_is_honoured(
    auto_clock: FakeClock,
) -> None:
    tool = Raises(RateLimitError("busy", retry_after=7.0))
    processor = ToolProcessor(
        registry_of(tool), enable_retries=True, max_retries=2, retry_base_delay=0.0
    )
    result = await one(processor)
    assert result.attempts == 3
    assert [pause for pause in auto_clock.sleeps if pause] == [7.0, 7.0]
    assert result.retry_after_ms == 7000


@pytest.mark.req("retries.hints", "T-TRAP-32")
async def test_a_pause_that_does_not_fit_the_deadline_is_not_begun(
    auto_clock: FakeClock,
) -> None:
    tool = Raises(RateLimitError("busy", retry_after=7.0))
    processor = ToolProcessor(registry_of(tool), enable_retries=True)
    began = auto_clock.monotonic()
    [result] = await processor.execute(calls(1), timeout=5)
    assert auto_clock.monotonic() == began
    assert (result.attempts, result.error) == (1, "busy")


@pytest.mark.req("retries.kinds", "T-TRAP-36")
async def test_retries_of_one_type_match_by_type(auto_clock: FakeClock) -> None:
    config = RetryConfig(2, base_delay=0.0, retryable=(ConnectionError,))
    for error, attempts in ((ConnectionError("gone"), 3), (ValueError("no"), 1)):
        tool = Raises(error)
        processor = ToolProcessor(registry_of(tool), retry_config=config)
        assert (await one(processor)).attempts == attempts
    assert auto_clock.sleeps == [0.0, 0.0]


@pytest.mark.req("retries.shared", "LM-17")
async def test_twenty_calls_share_one_policy_and_no_counter(
    auto_clock: FakeClock,
) -> None:
    runs: Counter[int] = Counter()

    async def flaky(n: int) -> int:
        runs[n] += 1
        await auto_clock.sleep(0.1)
        if runs[n] < 3:
            raise ConnectionError
        return n

    processor = ToolProcessor(create_registry(flaky), enable_retries=True)
    batch = [ToolCall(str(n), "flaky", {"n": n}) for n in range(20)]
    results = await processor.execute(batch)
    assert {result.attempts for result in results} == {3}
    assert {result.call_id: result.result for result in results} == {
        str(n): n for n in range(20)
    }


# --- breakers -------------------------------------------------------------------------
@pytest.mark.req("breakers.rejection", "T-TRAP-42")
async def test_a_rejection_of_the_breaker_is_answered_at_once(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock, failures=99)
    processor = ToolProcessor(
        registry_of(work),
        enable_retries=True,
        circuit_breaker_config=BreakerConfig(failure_threshold=4, reset_timeout=300),
    )
    await one(processor)
    assert len(work.starts) == 4
    began = auto_clock.monotonic()
    result = await one(processor)
    assert auto_clock.monotonic() == began
    assert result.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert (result.attempts, len(work.starts)) == (0, 4)
    assert result.retry_after_ms == 300_000
    assert result.error == (
        "Tool 'work' circuit breaker is open (failures: 4) (reset in 300.0s)"
    )


@pytest.mark.req("breakers.rejection", "T-TRAP-42", "T-TRAP-32")
async def test_the_real_error_is_kept_when_the_circuit_opens_meanwhile(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock, failures=99)
    processor = ToolProcessor(
        registry_of(work),
        retry_config=NO_PAUSE,
        circuit_breaker_config=BreakerConfig(failure_threshold=2),
    )
    result = await one(processor)
    assert (result.attempts, len(work.starts)) == (2, 2)
    assert result.error == "Max retries reached (1): failure 2"
    assert result.error_code is ErrorCode.TOOL_EXECUTION_FAILED
    assert any("circuit breaker is open" in text for text in result.warnings)


@pytest.mark.req("breakers.counting", "T-TRAP-17")
async def test_callers_errors_and_refusals_open_no_circuit(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(
        registry_of(work),
        circuit_breaker_config=BreakerConfig(failure_threshold=1),
        tool_rate_limits={"work": (2, 60)},
        bulkhead_config=BulkheadConfig(default_limit=1, acquisition_timeout=0),
    )
    assert (await one(processor, seconds="x")).error_code is not None
    full_house = await processor.execute(calls(2, seconds=1))
    codes = {result.error_code for result in full_house}
    assert codes == {None, ErrorCode.BULKHEAD_FULL}
    assert (await one(processor)).is_success
    [limited] = await processor.execute(calls(1), timeout=1)
    assert limited.error_code is ErrorCode.TOOL_RATE_LIMITED
    stats = await processor.stats()
    assert stats.circuits == {"work": CircuitState.CLOSED}


@pytest.mark.req("breakers.counting", "T-TRAP-17")
async def test_a_call_from_before_the_opening_closes_no_circuit(
    fake_clock: FakeClock,
) -> None:
    gate = asyncio.Event()
    runs: list[str] = []

    async def work(kind: str) -> str:
        runs.append(kind)
        if kind == "bad":
            raise ConnectionError
        if kind == "early":
            await gate.wait()
        return kind

    config = BreakerConfig(
        failure_threshold=1,
        success_threshold=1,
        reset_timeout=10,
        half_open_max_calls=1,
    )
    processor = ToolProcessor(
        create_registry(work), default_timeout=None, circuit_breaker_config=config
    )
    early = asyncio.create_task(one(processor, kind="early"))
    await settle()
    await one(processor, kind="bad")
    await fake_clock.advance(10)
    gate_of_probe = asyncio.create_task(one(processor, kind="early"))
    await settle()
    assert runs == ["early", "bad", "early"]
    refused = await one(processor, kind="late")
    assert refused.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    early_only, gate = gate, asyncio.Event()
    early.cancel()
    with pytest.raises(asyncio.CancelledError):
        await early
    refused = await one(processor, kind="late")
    assert refused.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    early_only.set()
    assert (await gate_of_probe).is_success
    assert (await one(processor, kind="late")).is_success


@pytest.mark.req("breakers.counting", "T-TRAP-17")
async def test_time_spent_in_a_queue_opens_no_circuit(fake_clock: FakeClock) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(
        registry_of(work),
        circuit_breaker_config=BreakerConfig(failure_threshold=1),
        bulkhead_config=BulkheadConfig(default_limit=1),
    )
    running = asyncio.create_task(one(processor, seconds=3))
    await settle()
    waiting = asyncio.create_task(processor.execute(calls(1), timeout=1))
    await fake_clock.advance(1)
    [late] = await waiting
    assert (late.error, late.attempts) == ("Timeout after 1s", 0)
    assert (await processor.stats()).circuits == {"work": CircuitState.CLOSED}
    await fake_clock.advance(2)
    assert (await running).is_success


@pytest.mark.req("breakers.probes", "LM-11")
async def test_one_probe_runs_and_the_others_are_told_when_to_come_back(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock, failures=1)
    config = BreakerConfig(
        failure_threshold=1,
        success_threshold=1,
        reset_timeout=30,
        half_open_max_calls=1,
    )
    processor = ToolProcessor(registry_of(work), circuit_breaker_config=config)
    await one(processor)
    await fake_clock.advance(30)
    running = asyncio.create_task(processor.execute(calls(50, seconds=1)))
    await settle()
    assert len(work.starts) == 2
    await fake_clock.advance(1)
    results = await running
    refused = [result for result in results if not result.is_success]
    assert len(refused) == 49
    assert {result.error_code for result in refused} == {ErrorCode.TOOL_CIRCUIT_OPEN}
    assert {result.retry_after_ms for result in refused} == {30_000}
    assert (await one(processor)).is_success


@pytest.mark.req("breakers.cancelled", "T-TRAP-17")
async def test_a_cancelled_probe_gives_its_place_back(fake_clock: FakeClock) -> None:
    work = Work(fake_clock, failures=1)
    config = BreakerConfig(failure_threshold=1, reset_timeout=30, half_open_max_calls=1)
    processor = ToolProcessor(registry_of(work), circuit_breaker_config=config)
    await one(processor)
    await fake_clock.advance(30)
    probe = asyncio.create_task(one(processor, seconds=5))
    await settle()
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    stats = await processor.stats()
    assert stats.circuits == {"work": CircuitState.HALF_OPEN}
    assert (await one(processor)).is_success


@pytest.mark.req("breakers.settings")
async def test_a_tool_may_have_a_breaker_of_its_own(auto_clock: FakeClock) -> None:
    registry = registry_of(Work(auto_clock, failures=99), "db.work")
    registry.add(Work(auto_clock, failures=99), "web.work")
    options = BreakerOptions(
        default=BreakerConfig(failure_threshold=5),
        tools={"db.*": BreakerConfig(failure_threshold=2)},
    )
    processor = ToolProcessor(registry, circuit_breaker_config=options)
    for _ in range(3):
        await one(processor, "db.work")
        await one(processor, "web.work")
    stats = await processor.stats()
    assert stats.circuits == {
        "db.work": CircuitState.OPEN,
        "web.work": CircuitState.CLOSED,
    }


# --- rate limits ----------------------------------------------------------------------
@pytest.mark.req("limits.deadline", "T-TRAP-15")
async def test_a_permit_that_comes_too_late_is_refused_at_once(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(registry_of(work), tool_rate_limits={"work": (1, 60)})
    assert (await one(processor)).is_success
    began = auto_clock.monotonic()
    [result] = await processor.execute(calls(1), timeout=59)
    assert auto_clock.monotonic() == began
    assert result.error_code is ErrorCode.TOOL_RATE_LIMITED
    assert result.retry_after_ms == 60_000
    assert (result.attempts, result.retryable) == (0, True)
    [result] = await processor.execute(calls(1), timeout=61)
    assert result.is_success
    assert work.starts == [1000.0, 1060.0]


@pytest.mark.req("limits.refund", "T-TRAP-15")
async def test_a_cancelled_waiter_uses_no_permit(fake_clock: FakeClock) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(
        registry_of(work), default_timeout=None, global_rate_limit=3
    )
    await processor.execute(calls(3))
    waiting = [asyncio.create_task(one(processor)) for _ in range(2)]
    await settle()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await fake_clock.advance(60)
    results = await asyncio.wait_for(processor.execute(calls(3)), 5)
    assert all(result.is_success for result in results)
    assert len(work.starts) == 6


@pytest.mark.req("limits.refund")
async def test_a_permit_of_a_call_that_got_no_slot_is_given_back(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(
        registry_of(work),
        tool_rate_limits={"work": (5, 60)},
        bulkhead_config=BulkheadConfig(default_limit=1, acquisition_timeout=0),
    )
    results = await processor.execute(calls(5, seconds=1))
    assert sum(result.is_success for result in results) == 1
    stats = await processor.stats()
    assert stats.rate_limits is not None
    assert stats.rate_limits["work"].used == 1


@pytest.mark.req("limits.refund")
async def test_a_call_cancelled_while_it_waits_for_a_slot_gives_its_permit_back(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(
        registry_of(work),
        tool_rate_limits={"work": (5, 60)},
        bulkhead_config=BulkheadConfig(default_limit=1),
    )
    running = asyncio.create_task(one(processor, seconds=1))
    await settle()
    waiting = asyncio.create_task(one(processor))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await fake_clock.advance(1)
    assert (await running).is_success
    stats = await processor.stats()
    assert stats.rate_limits is not None
    assert stats.rate_limits["work"].used == 1
    assert stats.bulkhead is not None
    assert stats.bulkhead["default.work"].current_active == 0


@pytest.mark.req("limits.own-queue", "T-TRAP-15")
async def test_a_call_waits_for_its_own_limit_only(auto_clock: FakeClock) -> None:
    limited, free = Work(auto_clock), Work(auto_clock)
    registry = registry_of(limited, "limited")
    registry.add(free, "fast")
    processor = ToolProcessor(
        registry, default_timeout=None, tool_rate_limits={"limited": (1, 60)}
    )
    batch = [*calls(2, "limited"), ToolCall("f", "fast")]
    results = await processor.execute(batch)
    assert [result.call_id for result in results] == ["c0", "f", "c1"]
    assert free.starts == [1000.0]
    assert limited.starts == [1000.0, 1060.0]


@pytest.mark.req("limits.attempts", "T-TRAP-15")
async def test_every_attempt_takes_a_permit(auto_clock: FakeClock) -> None:
    work = Work(auto_clock, failures=99)
    processor = ToolProcessor(
        registry_of(work),
        enable_retries=True,
        max_retries=4,
        retry_base_delay=0.0,
        tool_rate_limits={"work": (2, 60)},
    )
    result = await one(processor)
    assert result.attempts == 5
    assert work.starts == [1000.0, 1000.0, 1060.0, 1060.0, 1120.0]


@pytest.mark.req("limits.glob")
async def test_tools_that_match_one_glob_share_its_permits(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    registry = registry_of(work, "web.a")
    registry.add(work, "web.b")
    processor = ToolProcessor(registry, tool_rate_limits={"web.*": (3, 60)})
    mixed = [ToolCall(str(i), f"web.{'ab'[i % 2]}") for i in range(6)]
    results = await processor.execute(mixed, timeout=1)
    assert sum(result.is_success for result in results) == 3


# --- bulkheads ------------------------------------------------------------------------
@pytest.mark.req("bulkheads.wired", "T-TRAP-05", "T-SEED-24")
async def test_bulkheads_limit_calls_over_all_batches(auto_clock: FakeClock) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(
        registry_of(work),
        enable_bulkhead=True,
        bulkhead_config=BulkheadConfig(default_limit=1),
    )
    await asyncio.gather(*[processor.execute(calls(5, seconds=1)) for _ in range(2)])
    assert work.peak == 1
    assert processor.bulkhead is not None
    stats = processor.bulkhead.get_stats("work")
    assert stats is not None
    assert (stats.acquired, stats.released, stats.peak_active) == (10, 10, 1)
    assert stats.total_wait_time == sum(range(10))


@pytest.mark.req("bulkheads.queue", "T-TRAP-05", "T-SEED-25")
async def test_a_full_queue_refuses_at_once(fake_clock: FakeClock) -> None:
    work = Work(fake_clock)
    config = BulkheadConfig(default_limit=1, max_queue_depth=2)
    processor = ToolProcessor(registry_of(work), bulkhead_config=config)
    running = asyncio.create_task(processor.execute(calls(5, seconds=1)))
    await settle()
    assert processor.bulkhead is not None
    assert await processor.bulkhead.get_queue_depth("work") == 2
    await fake_clock.advance(3)
    results = await running
    refused = [result for result in results if not result.is_success]
    assert [result.call_id for result in refused] == ["c3", "c4"]
    for result in refused:
        assert result.error_code is ErrorCode.BULKHEAD_FULL
        assert result.error_info is not None
        assert result.error_info.details["limit_type"] == "queue_depth"
        assert (result.attempts, result.duration) == (0, 0)


@pytest.mark.req("bulkheads.timeout")
async def test_a_wait_for_a_slot_is_bounded(auto_clock: FakeClock) -> None:
    work = Work(auto_clock)
    config = BulkheadConfig(default_limit=1, acquisition_timeout=2)
    processor = ToolProcessor(registry_of(work), bulkhead_config=config)
    results = await processor.execute(calls(2, seconds=5))
    assert [result.error_code for result in results] == [
        ErrorCode.BULKHEAD_FULL,
        None,
    ]
    assert results[0].duration == 2
    by_deadline = await processor.execute(calls(2, seconds=5), timeout=1)
    assert {result.error for result in by_deadline} == {"Timeout after 1s"}
    assert sorted(result.attempts for result in by_deadline) == [0, 1]


@pytest.mark.req("bulkheads.waiting", "T-TRAP-18")
async def test_who_waits_for_a_full_tool_takes_no_slot_of_others(
    fake_clock: FakeClock,
) -> None:
    slow, idle = Work(fake_clock), Work(fake_clock)
    registry = registry_of(slow, "slow")
    registry.add(idle, "idle")
    config = BulkheadConfig(
        tool_limits={"slow": 1}, global_limit=3, acquisition_timeout=0.5
    )
    processor = ToolProcessor(registry, bulkhead_config=config)
    running = asyncio.create_task(processor.execute(calls(4, "slow", seconds=0.4)))
    await settle()
    assert (await one(processor, "idle")).is_success
    await fake_clock.advance(2)
    await running


@pytest.mark.req("bulkheads.pattern", "T-TRAP-18", "T-SEED-26")
async def test_tools_that_match_one_pattern_share_its_slots(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    registry = create_registry()
    names = [f"db.t{i}" for i in range(5)]
    for name in names:
        registry.add(work, name)
    config = BulkheadConfig(patterns={"db.*": 3})
    processor = ToolProcessor(registry, bulkhead_config=config)
    batch = [ToolCall(None, name, {"seconds": 1}) for name in names * 3]
    results = await processor.execute(batch)
    assert work.peak == 3
    assert all(result.is_success for result in results)


@pytest.mark.req("bulkheads.timeout", "T-TRAP-18")
async def test_counts_stay_exact_after_timeouts_and_cancellations(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock)
    config = BulkheadConfig(default_limit=1, acquisition_timeout=1)
    processor = ToolProcessor(registry_of(work), bulkhead_config=config)
    tasks = [asyncio.create_task(one(processor, seconds=3)) for _ in range(4)]
    await settle()
    tasks[3].cancel()
    await fake_clock.advance(3)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert processor.bulkhead is not None
    stats = processor.bulkhead.get_stats("work")
    assert stats is not None
    assert (stats.current_active, stats.waiting, stats.timeouts) == (0, 0, 2)
    assert (await one(processor)).is_success


@pytest.mark.req("concurrency.max", "T-TRAP-31")
@pytest.mark.parametrize("given", [False, True])
async def test_max_concurrency_holds_over_all_batches_whoever_runs_tools(
    auto_clock: FakeClock,
    given: bool,
) -> None:
    work = Work(auto_clock)
    registry = registry_of(work)
    strategy = InProcessStrategy(registry) if given else None
    processor = ToolProcessor(registry, strategy, max_concurrency=2)
    await asyncio.gather(*[processor.execute(calls(4, seconds=1)) for _ in range(3)])
    assert work.peak == 2


@pytest.mark.req("concurrency.max")
async def test_places_that_another_batch_frees_are_used_at_once(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(registry_of(work), max_concurrency=3)
    early = asyncio.create_task(processor.execute(calls(3, seconds=1)))
    for _ in range(3):
        await asyncio.sleep(0)
    await processor.execute(calls(6, seconds=1))
    await early
    assert auto_clock.monotonic() == 1003.0
    assert work.peak == 3


# --- many at once ---------------------------------------------------------------------
@pytest.mark.req("limits.hold", "LM-02")
@given(
    starts=st.integers(1, 20),
    period=st.sampled_from([0.5, 1.0, 7.0]),
    slots=st.none() | st.tuples(st.integers(1, 12), st.integers(1, 12)),
    failures=st.integers(0, 30),
    seconds=st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=1, max_size=4),
)
@settings(max_examples=25)
def test_limits_hold_over_a_hundred_calls(
    starts: int,
    period: float,
    slots: tuple[int, int] | None,
    failures: int,
    seconds: list[float],
) -> None:
    clock = FakeClock(auto=True)
    work = Work(clock, failures)
    options: dict[str, Any] = {}
    if slots is not None:
        options["max_concurrency"] = slots[0]
        options["bulkhead_config"] = BulkheadConfig(default_limit=slots[1])

    async def run() -> list[ToolResult]:
        processor = ToolProcessor(
            registry_of(work),
            default_timeout=None,
            tool_rate_limits={"work": (starts, period)},
            retry_config=RetryConfig(40, base_delay=0.01),
            **options,
        )
        lengths = itertools.islice(itertools.cycle(seconds), 100)
        batch = [ToolCall(None, "work", {"seconds": n}) for n in lengths]
        halves = await asyncio.gather(
            processor.execute(batch[:50]), processor.execute(batch[50:])
        )
        return [*halves[0], *halves[1]]

    with clock.installed():
        results = asyncio.run(run())
    assert all(result.is_success for result in results)
    assert sum(result.attempts for result in results) == len(work.starts)
    assert len(work.starts) == 100 + failures
    if slots is not None:
        assert work.peak <= min(slots)
        return
    for early, late in zip(work.starts, work.starts[starts:], strict=False):
        assert late - early >= period - 1e-9


TENTHS = st.integers(0, 30).map(lambda n: n / 10)
LIVES = st.lists(
    st.fixed_dictionaries(
        {
            "begins": TENTHS,
            "seconds": TENTHS,
            "fails": st.booleans(),
            "cancelled": st.none() | TENTHS,
            "timeout": st.none() | TENTHS,
            "same": st.booleans(),
        }
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.req("limits.random", "LM-10")
@given(
    lives=LIVES,
    starts=st.integers(1, 6),
    slots=st.integers(1, 3),
    queue=st.none() | st.integers(0, 4),
    at_once=st.none() | st.integers(1, 3),
    caching=st.booleans(),
    retries=st.integers(0, 2),
    probes=st.booleans(),
)
@settings(max_examples=25)
def test_whatever_ends_calls_nothing_is_lost_or_left_behind(
    lives: list[dict[str, Any]],
    starts: int,
    slots: int,
    queue: int | None,
    at_once: int | None,
    caching: bool,
    retries: int,
    probes: bool,
) -> None:
    clock = FakeClock(auto=True)
    begun: list[float] = []
    active = peak = 0

    async def work(number: int, seconds: float, fails: bool) -> int:
        nonlocal active, peak
        begun.append(clock.monotonic())
        active += 1
        peak = max(peak, active)
        try:
            await clock.sleep(seconds)
        finally:
            active -= 1
        if fails:
            raise ConnectionError
        return number

    async def live(processor: ToolProcessor, number: int, life: dict[str, Any]) -> Any:
        await clock.sleep(life["begins"])
        call = ToolCall(
            f"c{number}",
            "work",
            {
                "number": 0 if life["same"] else number,
                "seconds": life["seconds"],
                "fails": life["fails"],
            },
        )
        running = asyncio.create_task(processor.execute([call], life["timeout"]))
        if life["cancelled"] is not None:
            await clock.sleep(life["cancelled"])
            running.cancel()
        [ended] = await asyncio.gather(running, return_exceptions=True)
        if isinstance(ended, asyncio.CancelledError):
            return None
        assert isinstance(ended, list), ended
        [result] = ended
        assert result.call_id == call.id
        assert result.is_success is False or result.result in {0, number}
        return result

    async def run() -> None:
        registry = create_registry(work)
        processor = ToolProcessor(
            registry,
            default_timeout=2.0,
            max_concurrency=at_once,
            enable_caching=caching,
            retry_config=RetryConfig(retries, base_delay=0.1),
            tool_rate_limits={"work": (starts, 1.0)},
            bulkhead_config=BulkheadConfig(default_limit=slots, max_queue_depth=queue),
            circuit_breaker_config=BreakerConfig(
                failure_threshold=2 if probes else 1000,
                success_threshold=1,
                reset_timeout=0.5,
            ),
        )
        async with asyncio.timeout(20):
            results = await asyncio.gather(
                *[live(processor, n, life) for n, life in enumerate(lives)]
            )
        stats = await processor.stats()
        assert stats.bulkhead is not None
        assert stats.rate_limits is not None
        slot = stats.bulkhead["default.work"]
        assert (slot.current_active, slot.waiting, stats.active) == (0, 0, 0)
        assert slot.acquired == slot.released
        assert peak <= min(slots, at_once or slots)
        ended = [result for result in results if result is not None]
        assert sum(result.attempts for result in ended) <= len(begun)
        # A permit that was not used may stand for an earlier one, yet not for ever.
        assert stats.rate_limits["work"].used <= len(begun)
        await clock.sleep(5)
        later = (await processor.stats()).rate_limits
        assert later is not None
        assert later["work"].used == 0
        last = await processor.execute(
            [ToolCall("last", "work", {"number": -1, "seconds": 0.1, "fails": False})]
        )
        assert last[0].result == -1

    with clock.installed():
        asyncio.run(run())


KINDS = ["good", "bad", "flaky", "slow", "items", "gives_up", "wrong", "unknown"]
WATCHERS: dict[str, dict[str, Any]] = {
    "middleware": {"middleware": [Own()]},
    "guard": {"guards": [CountingGuard()]},
    "trace": {"trace": lambda _event: None},
}


@pytest.mark.req("layers.same")
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=8),
    twice=st.booleans(),
    timeout=st.sampled_from([None, 0.5, 3.0]),
    keyed=st.booleans(),
    caching=st.booleans(),
    retries=st.none() | st.integers(0, 2),
    starts=st.none() | st.integers(1, 3),
    slots=st.none() | st.integers(1, 2),
    threshold=st.none() | st.integers(1, 3),
    at_once=st.none() | st.integers(1, 2),
)
@settings(max_examples=30)
def test_who_only_watches_changes_nothing(
    kinds: list[str],
    twice: bool,
    timeout: float | None,
    keyed: bool,
    caching: bool,
    retries: int | None,
    starts: int | None,
    slots: int | None,
    threshold: int | None,
    at_once: int | None,
) -> None:
    """The short way of a call and the long one come to the same."""

    def play(watcher: dict[str, Any]) -> Any:
        clock = FakeClock(auto=True)
        runs: Counter[str] = Counter()

        async def good(n: int = 0) -> list[int]:
            return [n]

        async def bad(n: int = 0) -> None:
            msg = f"bad {n}"
            raise ConnectionError(msg)

        async def flaky(n: int = 0) -> int:
            runs["flaky"] += 1
            await clock.sleep(0.1)
            if runs["flaky"] % 2:
                raise ValueError
            return n

        async def slow(n: int = 0) -> int:
            await clock.sleep(1.5)
            return n

        async def items(n: int = 0) -> AsyncIterator[int]:
            yield n
            await clock.sleep(0.1)
            yield n + 1

        async def gives_up(n: int = 0) -> None:
            raise asyncio.CancelledError

        async def run() -> Any:
            registry = create_registry(good, bad, flaky, slow, items, gives_up)
            processor = ToolProcessor(
                registry,
                default_timeout=1.0,
                max_concurrency=at_once,
                enable_caching=caching,
                retry_config=None
                if retries is None
                else RetryConfig(retries, base_delay=0.0),
                tool_rate_limits=None if starts is None else {"*": (starts, 1.0)},
                bulkhead_config=None
                if slots is None
                else BulkheadConfig(default_limit=slots),
                circuit_breaker_config=None
                if threshold is None
                else BreakerConfig(failure_threshold=threshold, reset_timeout=2.0),
                **watcher,
            )
            batch = [
                ToolCall(
                    f"c{n}",
                    "good" if kind == "wrong" else kind,
                    {"n": "x" if kind == "wrong" else n % 2},
                    idempotency_key=f"k{n}" if keyed and n % 3 == 0 else None,
                )
                for n, kind in enumerate(kinds)
            ]
            found = await processor.execute(batch, timeout)
            if twice:
                found += await processor.execute(
                    batch, timeout, return_order="submission"
                )
            stats = await processor.stats()
            shown = [
                (
                    *(r.call_id, r.result, r.error, r.error_code, r.is_partial),
                    *(r.attempts, r.cached, round(r.duration, 6)),
                    round(r.start_time, 6),
                )
                for r in found
            ]
            return shown, stats.tools, stats.circuits, clock.monotonic()

        with clock.installed():
            return asyncio.run(run())

    expected = play({})
    for name, watcher in WATCHERS.items():
        assert play(watcher) == expected, name


@pytest.mark.req("limits.calls", "LM-21")
async def test_more_calls_than_a_budget_allows_are_refused_one_by_one(
    auto_clock: FakeClock,
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(registry_of(work), guards=[BudgetGuard(max_calls=3)])
    results = await processor.execute(calls(8, seconds=1))
    assert len(work.starts) == 3
    refused = [result for result in results if not result.is_success]
    assert len(refused) == 5
    assert {result.error_code for result in refused} == {ErrorCode.TOOL_BLOCKED}


# --- the order of results is presentation only ----------------------------------------
@pytest.mark.req("order.presentation", "T-TRAP-03", "T-SEED-07")
@pytest.mark.parametrize("order", [*ReturnOrder, None, "submission"])
async def test_the_order_of_results_changes_no_policy(
    auto_clock: FakeClock, order: Any
) -> None:
    work = Work(auto_clock, failures=1)
    processor = full(
        registry_of(work),
        tool_rate_limits={"work": (2, 60)},
        bulkhead_config=BulkheadConfig(default_limit=1),
        circuit_breaker_config=BreakerConfig(failure_threshold=2),
    )
    seconds = {"a": 3.0, "b": 0.0, "c": 3.0}
    batch = [ToolCall(key, "work", {"seconds": n}) for key, n in seconds.items()]
    results = await processor.process(batch, return_order=order)
    # One slot, so the second call runs while the first one pauses; the third is equal
    # to the first, and the window of the limit is full after two starts.
    assert work.starts == [1000.0, 1003.0, 1060.0]
    assert work.peak == 1
    found = {r.call_id: (r.result, r.attempts, r.cached) for r in results}
    assert found == {"a": (3, 2, False), "b": (2, 1, False), "c": (3, 0, True)}


@pytest.mark.req("policies.rate-limit-at-start")
async def test_a_rate_limit_counts_starts_also_behind_a_full_bulkhead() -> None:
    clock = FakeClock()
    starts: list[float] = []
    gates = [asyncio.Event() for _ in range(5)]

    async def job(n: int) -> int:
        starts.append(clock.monotonic())
        await gates[n].wait()
        return n

    processor = ToolProcessor(
        create_registry(job),
        default_timeout=None,
        tool_rate_limits={"job": (1, 1.0)},
        bulkhead_config=BulkheadConfig(tool_limits={"job": 1}),
        clock=clock,
    )
    calls = [ToolCall(str(n), "job", {"n": n}) for n in range(5)]
    task = asyncio.create_task(processor.execute(calls))
    for _ in range(10):
        await clock.advance(1.0)
    for gate in gates:
        gate.set()
    async with asyncio.timeout(5):
        while not task.done():
            await clock.advance(0.25)
    assert [result.result for result in await task] == [0, 1, 2, 3, 4]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert min(gaps) >= 1.0, starts
