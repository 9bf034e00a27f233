"""The processor: what each of its settings and methods does, what goes in and comes out."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from executionkit._constants import MAX_ERROR_CHARS
from executionkit.approval import ApprovalGate
from executionkit.backends import InMemoryCache, open_backend
from executionkit.calls import ReturnOrder, ToolCall, ToolResult, ToolRunner
from executionkit.context import (
    ExecutionContext,
    execution_scope,
    get_current_context,
)
from executionkit.engine.breaker import BreakerConfig, CircuitState
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.engine.retry import RetryConfig
from executionkit.errors import (
    BulkheadFullError,
    ErrorCategory,
    ErrorCode,
    MCPConnectionError,
    MCPTimeoutError,
    ToolBlockedError,
    ToolExecutionError,
    ToolProcessorError,
    ToolRateLimitedError,
    ToolValidationError,
)
from executionkit.observability import TraceEvent
from executionkit.patterns.react_loop import react_loop
from executionkit.testing import (
    FakeClock,
    ScriptedProvider,
    settle,
    tool_call_reply,
)
from executionkit.tools._bulk import BatchProgress
from executionkit.tools._options import ToolPolicy
from executionkit.tools.config import ProcessorConfig
from executionkit.tools.decorators import (
    get_default_registry,
    reset_registry,
    tool as registered,
)
from executionkit.tools.guard_rules import SchemaGuard
from executionkit.tools.guards import GuardResult, GuardVerdict
from executionkit.tools.middleware.breaker import BreakerOptions
from executionkit.tools.middleware.cache import CacheOptions, IdempotencyOptions
from executionkit.tools.middleware.rate_limit import RateLimitOptions
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.tools.strategies import InProcessStrategy


async def echo(text: str = "") -> str:
    """Say it again."""
    return text


async def boom(text: str = "boom") -> str:
    """Fail."""
    raise RuntimeError(text)


class Sleeper:
    """Sleeps on a fake clock and counts its runs."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.runs = 0
        self.active = 0
        self.peak = 0

    async def execute(self, seconds: float = 0.0) -> float:
        self.runs += 1
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            await self.clock.sleep(seconds)
        finally:
            self.active -= 1
        return seconds


def tools(clock: FakeClock | None = None) -> ToolRegistry:
    registry = create_registry(echo, boom)
    if clock is not None:
        registry.add(Sleeper(clock), "sleeper")
    return registry


def sleeper_of(registry: ToolRegistry) -> Sleeper:
    source = registry.resolve("sleeper").source
    assert isinstance(source, Sleeper)
    return source


async def one(processor: ToolProcessor, name: str, **arguments: Any) -> ToolResult:
    [result] = await processor.process([{"tool": name, "arguments": arguments}])
    return result


# --- what goes in ---------------------------------------------------------------------
AS_JSON = json.dumps({"text": "hi"})
OPENAI_CALL = {
    "id": "k1",
    "type": "function",
    "function": {"name": "echo", "arguments": AS_JSON},
}
INPUTS: dict[str, Any] = {
    "tag": f"<tool name=\"echo\" args='{AS_JSON}'/>",
    "tag in prose": f"I will call it.\n<tool name=\"echo\" args='{AS_JSON}'/>\nNow.",
    "openai text": json.dumps({"tool_calls": [OPENAI_CALL]}),
    "function call text": json.dumps(
        {"function_call": {"name": "echo", "arguments": AS_JSON}}
    ),
    "array text": json.dumps([{"tool": "echo", "arguments": {"text": "hi"}}]),
    "object text": json.dumps({"name": "echo", "arguments": {"text": "hi"}}),
    "openai dict": {"tool_calls": [OPENAI_CALL]},
    "chat completion": {
        "choices": [{"message": {"content": None, "tool_calls": [OPENAI_CALL]}}]
    },
    "function call dict": {"function_call": {"name": "echo", "arguments": AS_JSON}},
    "direct dict": {"tool": "echo", "arguments": {"text": "hi"}},
    "list of dicts": [{"tool": "echo", "arguments": {"text": "hi"}}],
    "openai list": [OPENAI_CALL],
    "anthropic blocks": [
        {"type": "text", "text": "well"},
        {"type": "tool_use", "id": "k1", "name": "echo", "input": {"text": "hi"}},
    ],
    "a call": ToolCall("k1", "echo", {"text": "hi"}),
    "list of calls": [ToolCall("k1", "echo", {"text": "hi"})],
    "tuple of calls": (ToolCall("k1", "echo", {"text": "hi"}),),
    "bytes": f"<tool name=\"echo\" args='{AS_JSON}'/>".encode(),
}
WITH_ID = {
    "openai text",
    "openai dict",
    "chat completion",
    "openai list",
    "anthropic blocks",
    "a call",
    "list of calls",
    "tuple of calls",
}


@pytest.mark.req("processor.inputs", "T-TRAP-29")
@pytest.mark.parametrize("kind", INPUTS)
async def test_whatever_holds_a_call_is_run(kind: str) -> None:
    processor = ToolProcessor(tools())
    [result] = await processor.process(INPUTS[kind])
    assert (result.tool, result.result, result.error) == ("echo", "hi", None)
    assert result.call_id == "k1" if kind in WITH_ID else result.call_id
    assert result.attempts == 1


@pytest.mark.req("processor.inputs")
@pytest.mark.parametrize("data", ["", "Just words.", None, [], {}, (), b"", "{}"])
async def test_what_holds_no_call_has_no_result(data: Any) -> None:
    assert await ToolProcessor(tools()).process(data) == []


@pytest.mark.req("processor.inputs")
async def test_what_holds_no_reply_at_all_is_refused() -> None:
    with pytest.raises(TypeError, match="a reply must be"):
        await ToolProcessor(tools()).process(3)


@pytest.mark.req("processor.inputs", "T-TRAP-29")
async def test_a_call_that_cannot_be_read_is_one_failed_result() -> None:
    ran: list[str] = []

    async def note(text: str = "guessed") -> str:
        ran.append(text)
        return text

    good = {"id": "good", "function": {"name": "note", "arguments": AS_JSON}}
    bad = {"id": "bad", "function": {"name": "note", "arguments": '{"text": "h'}}
    processor = ToolProcessor(create_registry(note))
    results = await processor.process(
        {"tool_calls": [bad, good]}, return_order="submission"
    )
    assert [result.call_id for result in results] == ["bad", "good"]
    assert ran == ["hi"]
    assert results[0].error_category is ErrorCategory.VALIDATION
    assert results[0].attempts == 0
    assert not results[0].retryable
    assert results[1].is_success


@pytest.mark.req("processor.inputs", "T-TRAP-29")
async def test_equal_calls_in_one_text_run_twice() -> None:
    text = "<tool name=\"echo\" args='{}'/>" * 2
    results = await ToolProcessor(tools()).process(text)
    assert len(results) == 2
    assert len({result.call_id for result in results}) == 2


# --- settings -------------------------------------------------------------------------
@pytest.mark.req("processor.defaults", "T-SEED-01", "T-SEED-02", "T-TRAP-37")
def test_the_defaults_are_the_documented_ones() -> None:
    options = ToolProcessor(tools()).options
    assert options.timeout == 10.0
    layers = (
        options.cache,
        options.retry,
        options.breaker,
        options.rate_limit,
        options.bulkhead,
        options.max_concurrency,
    )
    assert layers == (None,) * 6
    on = ToolProcessor(
        tools(),
        enable_caching=True,
        enable_retries=True,
        enable_circuit_breaker=True,
        enable_rate_limiting=True,
        enable_bulkhead=True,
    ).options
    assert on.cache is not None
    assert on.cache.ttl == 300
    assert on.retry is not None
    assert on.retry.max_retries == 3
    assert on.breaker is not None
    assert on.breaker.default.failure_threshold == 5
    assert on.breaker.default.reset_timeout == 60.0
    assert on.bulkhead == BulkheadConfig()
    assert on.rate_limit is not None
    assert on.rate_limit.global_limit is None


@pytest.mark.req("processor.defaults")
def test_the_settings_stand_in_the_documented_order() -> None:
    names = list(inspect.signature(ToolProcessor).parameters)
    assert names[:19] == [
        *("registry", "strategy", "default_timeout", "max_concurrency"),
        *("enable_caching", "cache_ttl", "enable_rate_limiting", "global_rate_limit"),
        *("tool_rate_limits", "enable_retries", "max_retries", "retry_config"),
        *("enable_circuit_breaker", "circuit_breaker_threshold"),
        *("circuit_breaker_timeout", "parser_plugins", "bulkhead_config"),
        *("enable_bulkhead", "retry_base_delay"),
    ]


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "enable_caching": ("cache", {"cache": CacheOptions()}),
    "enable_retries": ("retry", {"retry_config": RetryConfig()}),
    "enable_circuit_breaker": (
        "breaker",
        {"circuit_breaker_config": BreakerConfig()},
    ),
    "enable_rate_limiting": ("rate_limit", {"global_rate_limit": 5}),
    "enable_bulkhead": ("bulkhead", {"bulkhead_config": BulkheadConfig()}),
}


@pytest.mark.req("processor.switches")
@pytest.mark.parametrize("switch", OPTIONS)
def test_a_switch_left_alone_is_on_when_its_options_are_given(switch: str) -> None:
    name, options = OPTIONS[switch]
    given: dict[str, Any] = dict(options)
    assert getattr(ToolProcessor(tools(), **given).options, name) is not None
    given[switch] = False
    assert getattr(ToolProcessor(tools(), **given).options, name) is None
    alone: dict[str, Any] = {switch: True}
    assert getattr(ToolProcessor(tools(), **alone).options, name) is not None


NUMBERS: list[tuple[str, dict[str, Any]]] = [
    ("retry", {"max_retries": 2}),
    ("retry", {"max_retries": 3}),  # the default, but somebody said so
    ("retry", {"retry_base_delay": 0.5}),
    ("cache", {"cache_ttl": 5}),
    ("cache", {"cache_ttl": 300}),
    ("breaker", {"circuit_breaker_threshold": 2}),
    ("breaker", {"circuit_breaker_timeout": 60.0}),
]


@pytest.mark.req("processor.switches")
@pytest.mark.parametrize(("name", "given"), NUMBERS, ids=str)
def test_a_number_of_a_layer_turns_it_on_alike_in_both_ways(
    name: str, given: dict[str, Any]
) -> None:
    direct = ToolProcessor(tools(), **given).options
    assert getattr(direct, name) is not None
    config = ProcessorConfig(**given).create_processor(tools()).options
    assert getattr(config, name) is not None
    for other in {"retry", "cache", "breaker"} - {name}:
        assert getattr(direct, other) is getattr(config, other) is None
    switch = {"retry": "retries", "cache": "caching", "breaker": "circuit_breaker"}
    off: dict[str, Any] = {**given, f"enable_{switch[name]}": False}
    assert getattr(ToolProcessor(tools(), **off).options, name) is None
    again = dataclasses.replace(ProcessorConfig(), default_timeout=1)
    assert (again.enable_caching, again.enable_retries) == (False, False)


@pytest.mark.req("processor.switches")
async def test_retries_that_were_asked_for_happen() -> None:
    tried: list[int] = []

    async def shaky() -> str:
        tried.append(1)
        if len(tried) < 3:
            raise OSError
        return "ok"

    async with ToolProcessor(
        create_registry(shaky), max_retries=2, retry_base_delay=0.0
    ) as processor:
        [result] = await processor.process({"tool": "shaky", "arguments": {}})
    assert (result.result, len(tried)) == ("ok", 3)


@pytest.mark.req("stores.address")
@pytest.mark.parametrize(
    "options", [CacheOptions, IdempotencyOptions, RateLimitOptions, BreakerOptions]
)
def test_an_address_in_place_of_a_store_is_refused_with_the_remedy(
    options: Any,
) -> None:
    with pytest.raises(TypeError, match=r"open_backend\(url\)") as caught:
        options(backend="redis://:s3cr3t-w0rd@host")
    assert "s3cr3t" not in str(caught.value)


MISSPELT: list[dict[str, Any]] = [
    {"tool_rate_limits": {"serch": (1, 60), "search": (9, 60), "db.*": (9, 60)}},
    {"policies": {"serch": ToolPolicy(timeout=1), "fet*": ToolPolicy(timeout=1)}},
    {"cache": CacheOptions(tool_ttls={"serch": 1, "web.fetch": 1})},
    {"bulkhead_config": BulkheadConfig(tool_limits={"serch": 1, "fetch": 1})},
    {"bulkhead_config": BulkheadConfig(patterns={"serch": 1, "*": 1})},
    {
        "circuit_breaker_config": BreakerOptions(
            tools={"serch": BreakerConfig(), "search": BreakerConfig()}
        )
    },
]


@pytest.mark.req("processor.misspelt")
@pytest.mark.parametrize("options", MISSPELT, ids=lambda o: next(iter(o)))
async def test_a_setting_for_a_tool_that_is_not_there_is_told_of_once(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def search(n: int) -> int:
        return n

    registry = create_registry(search)
    registry.add(search, "web.fetch")
    async with ToolProcessor(registry, **options) as processor:
        for n in range(3):
            for tool in ("search", "web.fetch"):
                [result] = await processor.process(
                    {"tool": tool, "arguments": {"n": n}}
                )
                assert result.is_success
    [told] = [record for record in caplog.records if record.name == "executionkit"]
    assert told.levelname == "WARNING"
    assert "'serch' concerns no tool" in told.getMessage()
    assert "did you mean search" in told.getMessage()


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"default_timeout": 0}, ValueError, "default_timeout"),
    ({"default_timeout": float("nan")}, ValueError, "default_timeout"),
    ({"default_timeout": "1"}, ValueError, "default_timeout"),
    ({"max_concurrency": 0}, ValueError, "max_concurrency"),
    ({"max_concurrency": 1.5}, ValueError, "max_concurrency"),
    ({"enable_retries": True, "max_retries": -1}, ValueError, "max_retries"),
    ({"retry_config": 3}, TypeError, "retry_config"),
    ({"circuit_breaker_config": 3}, TypeError, "circuit_breaker_config"),
    ({"bulkhead_config": {"default_limit": 3}}, TypeError, "bulkhead_config"),
    ({"tool_rate_limits": {"a": 5}}, ValueError, "tool_limits"),
    ({"tool_rate_limits": {"a": (1, 2, 3)}}, ValueError, "tool_limits"),
    ({"policies": {"a": 5}}, TypeError, "policies"),
    ({"guards": 3}, TypeError, "guards"),
    ({"state": 3}, TypeError, "open_backend"),
    ({"state": "redis//x"}, ValueError, "memory://"),
    ({"middleware": "abc"}, TypeError, "middleware"),
    ({"parser_plugins": "JsonToolPlugin"}, TypeError, "parser_plugins"),
    ({"parser_plugins": ["NoSuchPlugin"]}, ValueError, "NoSuchPlugin"),
]


@pytest.mark.req("processor.checked")
@pytest.mark.parametrize(("options", "kind", "text"), WRONG, ids=str)
def test_a_wrong_setting_is_refused_when_it_is_given(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        ToolProcessor(tools(), **options)


@pytest.mark.req("processor.checked")
def test_what_is_no_registry_is_refused_when_it_is_given() -> None:
    given: Any = [echo]
    with pytest.raises(TypeError, match="must be a ToolRegistry, got list"):
        ToolProcessor(given)


@pytest.mark.req("processor.checked")
def test_one_guard_alone_is_refused_with_a_hint() -> None:
    given: Any = SchemaGuard()
    with pytest.raises(TypeError, match=r"write `guards=\[\.\.\.\]`"):
        ToolProcessor(tools(), guards=given)


@pytest.mark.req("processor.checked", "T-TRAP-42")
@pytest.mark.parametrize(
    "options",
    [{"global_rate_limit": 0}, {"tool_rate_limits": {"echo": (0, 60)}}],
    ids=str,
)
async def test_a_limit_of_zero_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="limit"):
        ToolProcessor(tools(), **options)


@pytest.fixture
def clean_registry() -> Iterator[None]:
    reset_registry()
    yield
    reset_registry()


@pytest.mark.req("processor.registry")
@pytest.mark.usefixtures("clean_registry")
async def test_without_a_registry_the_one_of_the_process_is_used() -> None:
    @registered(name="greet")
    async def greet() -> str:
        return "hello"

    processor = ToolProcessor()
    assert (await one(processor, "greet")).result == "hello"
    assert processor.registry is get_default_registry()
    assert await processor.list_tools() == ["greet"]


@pytest.mark.req("processor.strategy", "T-TRAP-23", "T-TRAP-31")
async def test_a_strategy_of_the_callers_stays_open_and_obeys_the_processor(
    auto_clock: FakeClock,
) -> None:
    registry = tools(auto_clock)
    strategy = InProcessStrategy(registry, default_timeout=99, clock=auto_clock)
    processor = ToolProcessor(registry, strategy, default_timeout=2)
    assert processor.strategy is strategy
    assert (await one(processor, "sleeper", seconds=50)).duration == 2
    await processor.close()
    [result] = await strategy.run([ToolCall("a", "echo", {"text": "x"})])
    assert result.is_success


@pytest.mark.req("processor.strategy", "T-TRAP-23")
async def test_its_own_strategy_is_shut_down_with_the_processor(
    fake_clock: FakeClock,
) -> None:
    registry = tools(fake_clock)
    async with ToolProcessor(registry) as processor:
        strategy = processor.strategy
        running = asyncio.create_task(one(processor, "sleeper", seconds=50))
        await settle()
    result = await running
    assert result.error == "Execution was cancelled"
    assert result.error_code is ErrorCode.TOOL_CANCELLED
    [late] = await strategy.run([ToolCall("a", "echo")])
    assert late.error == "System is shutting down"
    assert late.error_code is ErrorCode.TOOL_CANCELLED
    assert late.attempts == 0


@pytest.mark.req("processor.life")
async def test_a_closed_processor_begins_anew() -> None:
    processor = ToolProcessor(tools(), enable_caching=True)
    await one(processor, "echo", text="x")
    assert (await one(processor, "echo", text="x")).cached
    await processor.close()
    await processor.close()
    result = await one(processor, "echo", text="x")
    assert (result.result, result.cached) == ("x", False)
    await processor.close()


@pytest.mark.req("processor.life")
@pytest.mark.parametrize("kind", ["cache", "state"])
async def test_closing_leaves_a_store_that_others_use(kind: str) -> None:
    store: dict[str, Any] = {
        "cache": InMemoryCache(),
        "state": open_backend("memory://"),
    }
    shared: dict[str, Any] = {"enable_caching": True, kind: store[kind]}
    async with ToolProcessor(tools(), **shared) as first:
        assert not (await one(first, "echo", text="a")).cached
    async with ToolProcessor(tools(), **shared) as second:
        assert (await one(second, "echo", text="a")).cached


@pytest.mark.req("processor.life")
async def test_it_is_ready_without_initialize_and_close_without_use_is_fine() -> None:
    await ToolProcessor(tools()).close()
    processor = ToolProcessor(tools())
    await asyncio.gather(processor.initialize(), processor.initialize())
    strategy = processor.strategy
    await processor.initialize()
    assert processor.strategy is strategy
    assert processor.executor is processor


@pytest.mark.req("processor.caching", "T-SEED-03")
async def test_results_live_as_long_as_cache_ttl_says(fake_clock: FakeClock) -> None:
    registry = tools(fake_clock)
    processor = ToolProcessor(registry, enable_caching=True, cache_ttl=5)
    for wait, cached in ((0, False), (4.9, True), (0.2, False)):
        await fake_clock.advance(wait)
        assert (await one(processor, "sleeper")).cached is cached
    assert sleeper_of(registry).runs == 2


@pytest.mark.req("processor.caching")
async def test_use_cache_false_neither_reads_nor_writes(auto_clock: FakeClock) -> None:
    registry = tools(auto_clock)
    processor = ToolProcessor(registry, enable_caching=True)
    call = [{"tool": "sleeper"}]
    for use_cache, cached in ((False, False), (True, False), (False, False)):
        [result] = await processor.process(call, use_cache=use_cache)
        assert result.cached is cached
    [result] = await processor.execute([ToolCall(None, "sleeper")])
    assert result.cached
    assert sleeper_of(registry).runs == 3


@pytest.mark.req("processor.caching", "T-SEED-05")
async def test_a_cache_and_keys_of_the_callers_own(auto_clock: FakeClock) -> None:
    registry = tools()
    backend = InMemoryCache(clock=auto_clock)
    processor = ToolProcessor(
        registry, cache=backend, cache_key_fn=lambda call: len(call.arguments["text"])
    )
    assert not (await one(processor, "echo", text="ab")).cached
    other = await one(processor, "echo", text="cd")
    assert (other.result, other.cached) == ("ab", True)
    assert (await backend.stats()).entry_count == 1
    stats = await processor.stats()
    assert stats.cached == 1
    assert stats.cache is not None
    assert stats.cache.hits == 1


@pytest.mark.req("processor.retries", "T-SEED-38", "T-TRAP-37")
async def test_retry_base_delay_bounds_the_first_pause(auto_clock: FakeClock) -> None:
    processor = ToolProcessor(
        tools(), enable_retries=True, max_retries=2, retry_base_delay=0.1
    )
    result = await one(processor, "boom")
    assert result.attempts == 3
    assert len(auto_clock.sleeps) == 2
    assert 0 <= auto_clock.sleeps[0] <= 0.1
    assert 0 <= auto_clock.sleeps[1] <= 0.2


@pytest.mark.req("processor.retries")
async def test_retry_config_replaces_max_retries(auto_clock: FakeClock) -> None:
    config = RetryConfig(1, base_delay=0.0)
    processor = ToolProcessor(tools(), max_retries=7, retry_config=config)
    result = await one(processor, "boom")
    assert result.attempts == 2
    assert auto_clock.sleeps == [0.0]


@pytest.mark.req("processor.breaker")
async def test_the_circuit_opens_and_half_opens_as_it_was_told(
    fake_clock: FakeClock,
) -> None:
    processor = ToolProcessor(
        tools(),
        enable_circuit_breaker=True,
        circuit_breaker_threshold=2,
        circuit_breaker_timeout=7.0,
    )
    for _ in range(2):
        assert (await one(processor, "boom")).attempts == 1
    assert (await one(processor, "boom")).error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert (await one(processor, "echo")).is_success
    await fake_clock.advance(6.9)
    assert (await one(processor, "boom")).attempts == 0
    await fake_clock.advance(0.2)
    assert (await one(processor, "boom")).attempts == 1


@pytest.mark.req("processor.rate-limits", "T-SEED-18")
async def test_the_global_rate_limit_is_per_minute_and_over_all_tools(
    auto_clock: FakeClock,
) -> None:
    processor = ToolProcessor(tools(), enable_rate_limiting=True, global_rate_limit=2)
    batch = [ToolCall(None, name) for name in ("echo", "boom", "echo")]
    began = auto_clock.monotonic()
    results = await processor.execute(batch[:2])
    assert auto_clock.monotonic() == began
    results = await processor.execute(batch[2:], timeout=59.9)
    assert results[0].error_code is ErrorCode.TOOL_RATE_LIMITED
    assert (await processor.execute(batch[2:]))[0].is_success
    assert auto_clock.monotonic() == began + 60


@pytest.mark.req("processor.parsers")
async def test_one_text_may_hold_calls_in_several_forms() -> None:
    text = (
        """First <tool name="echo" args='{"text": "a"}'/>, then """
        """<tool_call>{"name": "echo", "arguments": {"text": "b"}}</tool_call>."""
    )

    async def echo(text: str) -> str:
        return text

    processor = ToolProcessor(create_registry(echo))
    results = await processor.process(text, return_order="submission")
    assert [result.result for result in results] == ["a", "b"]


@pytest.mark.req("processor.parsers")
async def test_only_the_chosen_parsers_are_asked() -> None:
    text = "<tool name=\"echo\" args='{}'/>"
    none = ToolProcessor(tools(), parser_plugins=["JsonToolPlugin"])
    assert await none.process(text) == []
    some = ToolProcessor(tools(), parser_plugins=["XmlToolPlugin"])
    assert len(await some.process(text)) == 1
    assert len(some.parsers) == 1


class Veto:
    name = "veto"

    def check(self, call: ToolCall, _record: Any) -> GuardResult:
        if call.arguments.get("text") == "no":
            return GuardResult(verdict=GuardVerdict.BLOCK, reason="not this one")
        return GuardResult(verdict=GuardVerdict.WARN, reason="I saw it")


@pytest.mark.req("processor.guards")
async def test_guards_refuse_and_warn() -> None:
    processor = ToolProcessor(tools(), guards=[Veto()])
    refused = await one(processor, "echo", text="no")
    assert refused.error_code is ErrorCode.TOOL_BLOCKED
    assert (refused.attempts, refused.retryable) == (0, False)
    fine = await one(processor, "echo", text="yes")
    assert fine.result == "yes"
    assert any("I saw it" in text for text in fine.warnings)


@pytest.mark.req("processor.middleware")
async def test_middleware_stands_around_everything_outermost_first() -> None:
    seen: list[str] = []

    class Layer:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __call__(self, request: Any, nxt: Any) -> Any:
            seen.append(f"> {self.name}")
            value = await nxt(request)
            seen.append(f"< {self.name}")
            return f"{self.name}({value})"

    processor = ToolProcessor(tools(), middleware=[Layer("a"), Layer("b")])
    assert (await one(processor, "echo", text="x")).result == "a(b(x))"
    assert seen == ["> a", "> b", "< b", "< a"]


@pytest.mark.req("processor.middleware")
async def test_middleware_may_answer_in_the_place_of_the_tool() -> None:
    async def instead(_request: Any, _nxt: Any) -> Any:
        return "instead"

    result = await one(ToolProcessor(tools(), middleware=[instead]), "boom")
    assert (result.result, result.attempts) == ("instead", 0)


@pytest.mark.req("processor.trace", "OB-05")
@pytest.mark.parametrize("show", [False, True])
async def test_the_start_and_the_end_of_each_call_are_told(show: bool) -> None:
    events: list[TraceEvent] = []
    processor = ToolProcessor(tools(), trace=events.append, show_arguments=show)
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    await processor.execute(
        [
            ToolCall("good", "echo", {"text": secret}),
            ToolCall("bad", "boom"),
            ToolCall("none", "unknown"),
        ]
    )
    told = [(event.kind, event.payload["tool_call_id"]) for event in events]
    assert sorted(told) == [
        ("tool_call_end", "bad"),
        ("tool_call_end", "good"),
        ("tool_call_end", "none"),
        ("tool_call_start", "bad"),
        ("tool_call_start", "good"),
        ("tool_call_start", "none"),
    ]
    ends = {e.payload["tool_call_id"]: e.payload for e in events if "end" in e.kind}
    assert ends["bad"]["error"] == "TOOL_EXECUTION_FAILED"
    assert ends["none"]["error"] == "TOOL_NOT_FOUND"
    assert "error" not in ends["good"]
    assert secret not in repr(events)
    [start] = [
        event.payload
        for event in events
        if (event.kind, event.payload["tool_call_id"]) == ("tool_call_start", "good")
    ]
    assert list(start["arguments"]) == ["text"]
    plain: list[TraceEvent] = []
    processor = ToolProcessor(tools(), trace=plain.append, show_arguments=show)
    await one(processor, "echo", text="words")
    assert ("words" in repr(plain)) is show


@pytest.mark.req("processor.clock")
async def test_the_given_clock_is_the_one_that_counts() -> None:
    clock = FakeClock(auto=True)
    registry = tools(clock)
    result = await one(ToolProcessor(registry, clock=clock), "sleeper", seconds=11)
    assert (result.duration, result.error) == (10.0, "Timeout after 10.0s")


# --- methods --------------------------------------------------------------------------
@pytest.mark.req("processor.process")
async def test_a_call_may_have_less_time_than_its_attempts(
    auto_clock: FakeClock,
) -> None:
    processor = ToolProcessor(tools(auto_clock))
    data = [{"tool": "sleeper", "arguments": {"seconds": 9}}]
    [result] = await processor.process(data, timeout=0.5)
    assert (result.error, result.duration) == ("Timeout after 0.5s", 0.5)
    [result] = await processor.process(data, timeout=0)
    assert (result.error, result.attempts) == ("Timeout after 0s", 0)


@pytest.mark.req("processor.process")
@pytest.mark.parametrize("timeout", [-1, float("nan")])
async def test_a_time_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        await ToolProcessor(tools()).process("", timeout=timeout)


@pytest.mark.req("processor.process")
@pytest.mark.parametrize("timeout", ["1", True])
async def test_a_time_that_is_no_number_is_refused(timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout"):
        await ToolProcessor(tools()).process("", timeout=timeout)


@pytest.mark.req("processor.process", "T-SEED-08")
async def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="sideways"):
        await ToolProcessor(tools()).process("", return_order="sideways")


@pytest.mark.req("processor.process", "T-SEED-06", "T-SEED-07", "T-SEED-08")
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (None, ["c", "b", "a"]),
        ("completion", ["c", "b", "a"]),
        (ReturnOrder.COMPLETION, ["c", "b", "a"]),
        ("submission", ["a", "b", "c"]),
        (ReturnOrder.SUBMISSION, ["a", "b", "c"]),
    ],
)
async def test_results_come_in_the_order_that_is_asked_for(
    auto_clock: FakeClock, order: Any, expected: list[str]
) -> None:
    processor = ToolProcessor(tools(auto_clock))
    batch = [
        ToolCall(key, "sleeper", {"seconds": seconds})
        for key, seconds in (("a", 0.5), ("b", 0.2), ("c", 0.05))
    ]
    began = auto_clock.monotonic()
    results = await processor.process(batch, return_order=order)
    assert [result.call_id for result in results] == expected
    assert auto_clock.monotonic() == began + 0.5


@pytest.mark.req("processor.context", "T-TRAP-28")
async def test_the_tool_sees_the_context_of_its_request_and_no_other() -> None:
    async def who() -> list[str | None]:
        context = get_current_context()
        await asyncio.sleep(0)
        assert get_current_context() is context
        return (
            [None, None] if context is None else [context.request_id, context.tenant_id]
        )

    def who_sync() -> list[str | None]:
        context = get_current_context()
        return (
            [None, None] if context is None else [context.request_id, context.tenant_id]
        )

    processor = ToolProcessor(create_registry(who, who_sync))
    both = [{"tool": "who"}, {"tool": "who_sync"}]

    async def ask(**more: Any) -> list[Any]:
        return [result.result for result in await processor.process(both, **more)]

    def context(tenant: str) -> ExecutionContext:
        return ExecutionContext(request_id=f"r-{tenant}", tenant_id=tenant)

    answers = await asyncio.gather(
        ask(context=context("acme")), ask(context=context("globex")), ask()
    )
    assert list(answers) == [
        [["r-acme", "acme"]] * 2,
        [["r-globex", "globex"]] * 2,
        [[None, None]] * 2,
    ]
    assert await ask(request_id="r7") == [["r7", None]] * 2
    async with execution_scope(context("acme")):
        assert await ask(request_id="r8") == [["r8", "acme"]] * 2
        assert await ask() == [["r-acme", "acme"]] * 2
    assert get_current_context() is None


@pytest.mark.req("processor.context", "T-SEED-11")
async def test_the_deadline_of_the_context_bounds_a_call(
    auto_clock: FakeClock,
) -> None:
    registry = tools(auto_clock)
    processor = ToolProcessor(registry)
    data = [{"tool": "sleeper", "arguments": {"seconds": 9}}]
    context = ExecutionContext.with_deadline(2)
    [result] = await processor.process(data, context=context)
    assert result.error_code is ErrorCode.DEADLINE_EXCEEDED
    assert result.duration == 2
    [late] = await processor.process(data, context=context)
    assert late.error_code is ErrorCode.DEADLINE_EXCEEDED
    assert (late.attempts, sleeper_of(registry).runs) == (0, 1)


@pytest.mark.req("processor.context")
async def test_calls_that_the_budget_does_not_cover_are_not_run() -> None:
    registry = create_registry()
    registry.add(echo, cost=4.0)
    processor = ToolProcessor(registry)
    batch = [ToolCall(str(n), "echo") for n in range(3)]
    results = await processor.execute(batch, context=ExecutionContext(budget=10))
    assert {r.call_id: r.error_code for r in results} == {
        "0": None,
        "1": None,
        "2": ErrorCode.BUDGET_EXHAUSTED,
    }


@pytest.mark.req("processor.text")
async def test_process_text_is_process_for_a_text(auto_clock: FakeClock) -> None:
    registry = tools(auto_clock)
    processor = ToolProcessor(registry, enable_caching=True)
    text = '<tool name="sleeper" args=\'{"seconds": 1}\'/>'
    [result] = await processor.process_text(text, 5.0, False, "r1")
    assert (result.result, result.cached) == (1, False)
    [result] = await processor.process_text(text)
    assert not result.cached


@pytest.mark.req("processor.execute", "T-TRAP-04")
@pytest.mark.parametrize("on", [False, True])
async def test_execute_takes_the_same_arguments_whatever_layers_are_on(
    on: bool,
) -> None:
    options: dict[str, Any] = dict.fromkeys(OPTIONS, on)
    processor = ToolProcessor(tools(), **options)
    batch = [ToolCall("a", "echo", {"text": "x"})]
    assert await processor.execute([]) == []
    ways: list[dict[str, Any]] = [
        {},
        {"use_cache": False},
        {"timeout": 3, "return_order": "submission"},
    ]
    for more in ways:
        [result] = await processor.execute(batch, **more)
        assert (result.call_id, result.result) == ("a", "x")


@pytest.mark.req("processor.lists", "T-SEED-23")
async def test_tools_are_listed_by_their_bare_names() -> None:
    registry = create_registry()
    registry.add(echo, "core.basic")
    registry.add(echo, "premium.advanced")
    processor = ToolProcessor(registry)
    assert await processor.list_tools() == ["basic", "advanced"]
    assert await processor.get_tool_count() == 2
    assert set(processor.describe()) == {"core.basic", "premium.advanced"}
    assert list(processor.describe("basic")) == ["core.basic"]


@pytest.mark.req("processor.changes")
async def test_tools_that_come_later_are_found_and_changed_ones_are_new() -> None:
    registry = tools()
    processor = ToolProcessor(registry)
    assert not (await one(processor, "later")).is_success
    registry.add(echo, "later")
    assert (await one(processor, "later", text="x")).result == "x"
    registry.add(boom, "later", replace=True)
    assert (await one(processor, "later")).error == "boom"
    registry.remove("later")
    assert (await one(processor, "later")).error_code is ErrorCode.TOOL_NOT_FOUND


@pytest.mark.req("processor.stats", "T-TRAP-34")
async def test_stats_count_each_tool_for_itself(auto_clock: FakeClock) -> None:
    registry = tools(auto_clock)
    processor = ToolProcessor(
        registry,
        enable_caching=True,
        retry_config=RetryConfig(1, base_delay=0.0),
        enable_circuit_breaker=True,
        global_rate_limit=50,
        enable_bulkhead=True,
    )
    batch = [
        ToolCall("slow_ok", "sleeper", {"seconds": 0.3}),
        ToolCall("fast_fail", "boom"),
    ]
    results = {r.call_id: r for r in await processor.execute(batch)}
    assert results["slow_ok"].is_success
    assert results["slow_ok"].duration == pytest.approx(0.3)
    assert not results["fast_fail"].is_success
    assert results["fast_fail"].duration == 0
    await processor.execute(batch[:1])
    stats = await processor.stats()
    slow, fast = stats.tools["sleeper"], stats.tools["boom"]
    assert (slow.calls, slow.failures, slow.cached, slow.retries) == (2, 0, 1, 0)
    assert (fast.calls, fast.failures, fast.cached, fast.retries) == (1, 1, 0, 1)
    assert (stats.calls, stats.failures, stats.cached, stats.retries) == (3, 1, 1, 1)
    assert (stats.active, stats.abandoned) == (0, 0)
    assert stats.circuits is not None
    assert set(stats.circuits.values()) == {CircuitState.CLOSED}
    assert stats.rate_limits is not None
    assert stats.rate_limits["global"].used == 3


@pytest.mark.req("processor.stats")
async def test_stats_say_what_runs_right_now(fake_clock: FakeClock) -> None:
    processor = ToolProcessor(tools(fake_clock))
    running = asyncio.create_task(one(processor, "sleeper", seconds=1))
    await settle()
    assert (await processor.stats()).active == 1
    await fake_clock.advance(1)
    await running
    assert (await processor.stats()).active == 0


@pytest.mark.req("processor.batches")
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_source_is_read_no_faster_than_its_calls_end(
    auto_clock: FakeClock, is_async: bool
) -> None:
    registry = tools(auto_clock)
    read = 0
    ahead = 0
    taken = 0

    def source() -> Iterator[Any]:
        nonlocal read, ahead
        for n in range(500):
            read += 1
            ahead = max(ahead, read - taken)
            yield ToolCall(str(n), "sleeper", {"seconds": n % 3})

    async def async_source() -> AsyncIterator[Any]:
        for call in source():
            yield call

    reports: list[BatchProgress] = []
    processor = ToolProcessor(registry)
    found: list[str | None] = []
    async for result in processor.process_batch(
        async_source() if is_async else source(),
        max_in_flight=5,
        on_progress=reports.append,
    ):
        taken += 1
        found.append(result.call_id)
    assert sorted(found, key=str) == sorted(map(str, range(500)))
    assert sleeper_of(registry).peak == 5
    assert ahead < 100
    assert [report.done for report in reports] == list(range(1, 501))


@pytest.mark.req("processor.batches")
async def test_a_stream_that_breaks_counts_as_a_call_that_failed() -> None:
    async def breaks() -> AsyncIterator[int]:
        yield 1
        raise OSError("broken")

    reports: list[BatchProgress] = []
    batch = ToolProcessor(create_registry(breaks)).process_batch(
        [ToolCall("1", "breaks")], on_progress=reports.append
    )
    assert [result.error async for result in batch] == [None, "broken"]
    assert [(report.done, report.failed) for report in reports] == [(1, 1)]


def test_a_function_as_a_layer_is_described_by_its_name() -> None:
    async def timed(request: Any, nxt: Any) -> Any:
        return await nxt(request)

    processor = ToolProcessor(create_registry(echo), middleware=[timed])
    assert processor.describe("echo")["echo"][:2] == ("trace", "timed")


@pytest.mark.req("processor.batches")
async def test_leaving_a_batch_cancels_what_runs_and_reads_no_more(
    auto_clock: FakeClock,
) -> None:
    registry = tools(auto_clock)
    read: list[int] = []

    def source() -> Iterator[dict[str, Any]]:
        for n in range(1000):
            read.append(n)
            yield {"tool": "sleeper", "arguments": {"seconds": 1 + n}}

    batch = ToolProcessor(registry).process_batch(source(), max_in_flight=4)
    async for _ in batch:
        break
    await batch.aclose()
    assert len(read) <= 6
    assert sleeper_of(registry).active == 0


@pytest.mark.req("processor.batches")
@pytest.mark.parametrize("number", [0, -1, 1.5, None])
async def test_a_batch_without_room_for_a_call_is_refused(number: Any) -> None:
    batch = ToolProcessor(tools()).process_batch([], max_in_flight=number)
    with pytest.raises(ValueError, match="max_in_flight"):
        await anext(batch)


@pytest.mark.req("processor.dry-run")
async def test_a_dry_run_says_what_would_happen_and_counts_nothing(
    auto_clock: FakeClock,
) -> None:
    registry = tools(auto_clock)
    processor = ToolProcessor(
        registry, tool_rate_limits={"sleeper": (1, 60)}, guards=[Veto()]
    )
    plan = [
        ToolCall("fine", "sleeper", {"seconds": 1}),
        ToolCall("wrong", "sleeper", {"seconds": "x"}),
        ToolCall("unknown", "nothing"),
        ToolCall("blocked", "echo", {"text": "no"}),
    ]
    for _ in range(2):
        looks = {item.call_id: item for item in await processor.dry_run(plan)}
        assert {key: item.would_run for key, item in looks.items()} == {
            "fine": True,
            "wrong": False,
            "unknown": False,
            "blocked": False,
        }
        codes = {key: [p.code for p in item.problems] for key, item in looks.items()}
        assert codes == {
            "fine": [],
            "wrong": [ErrorCode.TOOL_VALIDATION_ERROR],
            "unknown": [ErrorCode.TOOL_NOT_FOUND],
            "blocked": [ErrorCode.TOOL_BLOCKED],
        }
    stats = await processor.stats()
    assert (stats.calls, sleeper_of(registry).runs) == (0, 0)
    assert stats.rate_limits is not None
    assert stats.rate_limits["sleeper"].used == 0
    await one(processor, "sleeper")
    [look] = await processor.dry_run(plan[:1])
    assert look.wait == 60


class Mender:
    name = "mender"

    def check(self, call: ToolCall, _record: Any) -> GuardResult:
        return {
            "mend": lambda: GuardResult.repair("mended", arguments={"text": "new"}),
            "break": lambda: GuardResult.repair(arguments={"text": 5}),
            "empty": lambda: GuardResult.repair("nothing"),
            "new": lambda: GuardResult.block("seen by the next one"),
        }.get(call.arguments["text"], GuardResult.allow)()


@pytest.mark.req("processor.dry-run")
@pytest.mark.parametrize("text", ["fine", "mend", "break", "empty"])
async def test_a_dry_run_sees_calls_as_guards_would_repair_them(text: str) -> None:
    processor = ToolProcessor(tools(), guards=[Mender()])
    call = ToolCall("c", "echo", {"text": text})
    [look] = await processor.dry_run([call])
    [result] = await processor.execute([call])
    assert look.would_run == result.is_success == (text in {"fine", "mend"})
    assert look.warnings == result.warnings
    assert [p.code for p in look.problems] == (
        [] if result.error_info is None else [result.error_info.code]
    )


@pytest.mark.req("processor.dry-run")
async def test_a_dry_run_shows_each_guard_what_those_before_it_repaired() -> None:
    processor = ToolProcessor(tools(), guards=[Mender(), Mender()])
    call = ToolCall("c", "echo", {"text": "mend"})
    [look] = await processor.dry_run([call])
    [result] = await processor.execute([call])
    assert not look.would_run
    assert result.error_code is ErrorCode.TOOL_BLOCKED


@pytest.mark.req("processor.react-loop")
@pytest.mark.parametrize("asked", [False, True])
async def test_guards_see_the_calls_of_react_loop_before_their_arguments_are_checked(
    asked: bool,
) -> None:
    class Renames:
        name = "renames"

        def check(self, call: ToolCall, _record: Any) -> GuardResult:
            return GuardResult.repair(arguments={"text": call.arguments["txt"]})

    provider = ScriptedProvider([tool_call_reply(("echo", {"txt": "hi"})), "done"])
    gate = ApprovalGate(lambda _request: True) if asked else None
    processor = ToolProcessor(tools(), guards=[Renames()])
    await react_loop(provider, "go", tools=processor, approval_gate=gate)
    stats = await processor.stats()
    assert (stats.calls, stats.failures) == (1, 0)


@pytest.mark.req("processor.react-loop")
async def test_wrong_arguments_in_react_loop_are_a_call_of_the_processor() -> None:
    provider = ScriptedProvider([tool_call_reply(("echo", {"txt": "hi"})), "done"])
    processor = ToolProcessor(tools())
    await react_loop(provider, "go", tools=processor)
    stats = await processor.stats()
    assert (stats.calls, stats.failures) == (1, 1)


@pytest.mark.req("processor.react-loop")
async def test_react_loop_runs_its_calls_through_the_whole_runtime(
    auto_clock: FakeClock,
) -> None:
    registry = create_registry()
    runs: list[str] = []

    async def flaky(text: str) -> str:
        runs.append(text)
        if len(runs) < 3:
            raise ConnectionError
        return text.upper()

    registry.add(flaky, "web.flaky")
    processor = ToolProcessor(registry, enable_retries=True)
    assert isinstance(processor, ToolRunner)
    [schema] = await processor.tool_schemas()
    wire_name = schema["function"]["name"]
    assert "." not in wire_name
    provider = ScriptedProvider([tool_call_reply((wire_name, {"text": "hi"})), "done"])
    result = await react_loop(provider, "go", tools=processor)
    assert result.value == "done"
    assert runs == ["hi"] * 3
    assert "HI" in repr(provider.requests[1].messages)


# --- what comes out -------------------------------------------------------------------
@pytest.mark.req("results.fields", "T-SEED-09")
async def test_a_result_says_when_where_and_how_often(auto_clock: FakeClock) -> None:
    processor = ToolProcessor(tools(auto_clock), enable_caching=True)
    wall = auto_clock.wall()
    call = [ToolCall("id-1", "sleeper", {"seconds": 2})]
    [result] = await processor.execute(call)
    assert (result.call_id, result.tool, result.result) == ("id-1", "sleeper", 2)
    assert (result.start_time, result.end_time) == (wall, wall + 2)
    assert (result.duration, result.attempts, result.cached) == (2, 1, False)
    assert result.pid == os.getpid()
    assert result.machine
    assert (result.is_partial, result.stream_id, result.warnings) == (False, None, ())
    assert (result.error, result.error_info, result.exception) == (None,) * 3
    [hit] = await processor.execute([ToolCall("id-2", "sleeper", {"seconds": 2})])
    assert (hit.call_id, hit.result, hit.cached) == ("id-2", 2, True)
    assert (hit.duration, hit.attempts) == (0, 0)
    data = result.to_dict()
    assert data["success"] is True
    assert data["start_time"].startswith("2023-11-14T")
    assert "error_info" not in data


async def _timeout(clock: FakeClock) -> ToolResult:
    processor = ToolProcessor(tools(clock), default_timeout=1.5)
    return await one(processor, "sleeper", seconds=9)


async def _unknown(_clock: FakeClock) -> ToolResult:
    return await one(ToolProcessor(tools()), "nothing.at_all")


async def _raised(_clock: FakeClock) -> ToolResult:
    return await one(ToolProcessor(tools()), "boom", text="card declined")


async def _empty(_clock: FakeClock) -> ToolResult:
    return await one(ToolProcessor(tools()), "boom", text="")


async def _retried(_clock: FakeClock) -> ToolResult:
    return await one(ToolProcessor(tools(), enable_retries=True), "boom")


async def _cancelled(_clock: FakeClock) -> ToolResult:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    return await one(ToolProcessor(create_registry(gives_up)), "gives_up")


async def _wrong(_clock: FakeClock) -> ToolResult:
    return await one(ToolProcessor(tools()), "echo", text=3)


async def _raises(exc: Exception) -> ToolResult:
    async def fails() -> None:
        raise exc

    return await one(ToolProcessor(create_registry(fails)), "fails")


C, K = ErrorCode, ErrorCategory
TEXTS: list[tuple[Any, str, ErrorCode, ErrorCategory, bool]] = [
    (_timeout, "Timeout after 1.5s", C.TOOL_TIMEOUT, K.TIMEOUT, True),
    (
        _unknown,
        "Tool 'nothing.at_all' not found in namespace 'nothing'",
        C.TOOL_NOT_FOUND,
        K.NOT_FOUND,
        False,
    ),
    (_raised, "card declined", C.TOOL_EXECUTION_FAILED, K.EXECUTION, True),
    (_empty, "", C.TOOL_EXECUTION_FAILED, K.EXECUTION, True),
    (
        _retried,
        "Max retries reached (3): boom",
        C.TOOL_EXECUTION_FAILED,
        K.EXECUTION,
        True,
    ),
    (_cancelled, "Execution was cancelled", C.TOOL_CANCELLED, K.CANCELLED, False),
]


@pytest.mark.req("results.errors", "T-TRAP-14")
@pytest.mark.parametrize(
    ("make", "text", "code", "category", "retryable"),
    TEXTS,
    ids=[row[0].__name__ for row in TEXTS],
)
async def test_each_failure_has_its_text_code_and_category(
    auto_clock: FakeClock,
    make: Any,
    text: str,
    code: ErrorCode,
    category: ErrorCategory,
    retryable: bool,
) -> None:
    result = await make(auto_clock)
    if text or make is not _empty:
        assert result.error == text
    assert result.error is not None
    assert not result.is_success
    assert result.error_info is not None
    assert result.error_info.message == result.error
    assert (result.error_code, result.error_category) == (code, category)
    assert result.retryable is retryable
    assert result.call_id


@pytest.mark.req("results.errors")
async def test_a_bare_unknown_name_was_looked_for_everywhere_and_others_are_offered() -> (
    None
):
    result = await one(ToolProcessor(tools()), "echoo")
    assert result.error is not None
    assert result.error.startswith("Tool 'echoo' not found in any namespace")
    assert "'echo'" in result.error
    assert result.error_info is not None
    assert list(result.error_info.details["suggestions"]) == ["echo"]


@pytest.mark.req("results.errors")
async def test_wrong_arguments_are_named(auto_clock: FakeClock) -> None:
    result = await _wrong(auto_clock)
    assert (result.error_code, result.error_category) == (
        C.TOOL_VALIDATION_ERROR,
        K.VALIDATION,
    )
    assert result.error is not None
    assert "text" in result.error
    assert result.attempts == 0


@pytest.mark.req("results.errors", "T-TRAP-32")
@pytest.mark.parametrize(
    ("exc", "code", "retry_after"),
    [
        (KeyError("account not found"), C.TOOL_EXECUTION_FAILED, None),
        (ValueError("rate limit timeout cancel"), C.TOOL_EXECUTION_FAILED, None),
        (TimeoutError("x"), C.TOOL_TIMEOUT, None),
        (ConnectionResetError("x"), C.TOOL_CONNECTION_FAILED, None),
        (MCPConnectionError("s"), C.MCP_CONNECTION_FAILED, None),
        (ToolRateLimitedError("fails", 2.5, 1, 60), C.TOOL_RATE_LIMITED, 2500),
        (BulkheadFullError("fails"), C.BULKHEAD_FULL, None),
        (MCPTimeoutError("s", "call", 3), C.MCP_TIMEOUT, None),
        (ToolExecutionError("fails"), C.TOOL_EXECUTION_FAILED, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_errors_are_classified_by_type_and_never_by_their_words(
    exc: Exception, code: ErrorCode, retry_after: int | None
) -> None:
    result = await _raises(exc)
    assert result.error_code is code
    assert result.exception is exc
    assert result.retry_after_ms == retry_after


@pytest.mark.req("results.bounded-errors")
@pytest.mark.parametrize(
    "make",
    [
        ValueError,
        ToolProcessorError,
        lambda text: ToolExecutionError("fails", ValueError(text)),
        lambda text: ToolProcessorError("no", details={"body": text, "all": [text]}),
        lambda text: ToolValidationError("fails", [text]),
        lambda text: ToolBlockedError("fails", "guard", text),
    ],
    ids=["foreign", "own", "cause", "details", "errors", "reason"],
)
async def test_the_text_of_an_error_is_short_and_without_secrets(make: Any) -> None:
    secret = "sk-" + "Ab3dEf6hIj" * 4
    most = MAX_ERROR_CHARS + 600
    for before, length in ((7, 4_000), (45, 50_000_000)):
        exc = make(f"{'x' * (MAX_ERROR_CHARS - before)} {secret} {'y' * length}")
        events: list[TraceEvent] = []
        raising = _Raises(exc)
        retried = ToolProcessor(
            create_registry(raising.fails),
            max_retries=1,
            retry_base_delay=0.0,
            trace=events.append,
        )
        failed = ToolCall("c", "fails")
        [result] = await retried.process([failed])
        assert result.exception is raising.exc
        for said in (result.to_dict(), [event.payload for event in events]):
            text = repr(said)
            assert secret[:6] not in text
            assert len(text) < 6 * most
        assert result.error is not None
        assert len(result.error) <= most
        assert len(ToolResult.failure(failed, raising.exc).error or "") <= most


class _Raises:
    def __init__(self, exc: Exception) -> None:
        self.exc = exc

    async def fails(self) -> None:
        raise self.exc


@pytest.mark.req("results.bounded-errors")
async def test_what_callbacks_raise_is_logged_short_and_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "sk-" + "Ab3dEf6hIj" * 4

    def on_start(_call: ToolCall) -> None:
        raise ValueError(f"{secret} {'x' * 10_000_000}")

    strategy = InProcessStrategy(create_registry(echo))
    stream = strategy.stream_run([ToolCall("c", "echo")], on_tool_start=on_start)
    assert [result.result async for result in stream] == [""]
    assert "`on_tool_start` failed: ValueError: [REDACTED]" in caplog.text
    assert "test_processor.py:" in caplog.text
    assert len(caplog.text) < 2 * MAX_ERROR_CHARS


@pytest.mark.req("results.values", "T-TRAP-12")
async def test_nobody_can_change_what_others_see() -> None:
    shared = {"list": [1, 2]}

    async def give() -> dict[str, list[int]]:
        return shared

    async def change(data: dict[str, Any]) -> int:
        data["list"].append(3)
        return len(data["list"])

    processor = ToolProcessor(create_registry(give, change), enable_caching=True)
    result = await one(processor, "give")
    shared["list"].append(99)
    again = await one(processor, "give")
    assert again.cached
    assert result.to_dict()["result"] == again.to_dict()["result"] == {"list": [1, 2]}
    call = ToolCall("a", "change", {"data": {"list": [1]}})
    [changed] = await processor.execute([call])
    assert changed.result == 2
    assert call == ToolCall("a", "change", {"data": {"list": [1]}})


@pytest.mark.req("policies.values")
@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"timeout": float("nan")}, {"max_retries": -1}], ids=str
)
def test_a_policy_is_checked_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ToolPolicy(**options)
