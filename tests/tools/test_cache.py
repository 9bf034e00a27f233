"""The cache layer: what is cached, for how long, for whom."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.backends import MISS, CacheBackend, InMemoryCache, open_backend
from executionkit.calls import ToolCall, ToolResult
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    StateStoreError,
    ToolCircuitOpenError,
    ToolExecutionError,
    ToolRateLimitedError,
    ToolTimeoutError,
    ToolValidationError,
)
from executionkit.testing import FakeClock
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools.middleware import Next, ToolRequest
from executionkit.tools.middleware.cache import (
    CacheLayer,
    CacheOptions,
    IdempotencyOptions,
    cacheable,
    invalidate_cache,
)
from executionkit.types import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def record(
    name: str = "search",
    *,
    kind: Kind = Kind.ASYNC,
    source: object = None,
    **facts: Any,
) -> ToolRecord:
    tool = Tool(name, "", {"type": "object"}, lambda: None, **facts)
    return ToolRecord(tool, kind=kind, validator=None, source=source)  # type: ignore[arg-type]


def request(
    of: ToolRecord | None = None,
    arguments: Mapping[str, Any] | None = None,
    **call: Any,
) -> ToolRequest:
    of = of or record()
    return ToolRequest(ToolCall("c", of.full_name, arguments, **call), of, None)


class Tools:
    """The rest of the path: counts, and gives or raises what it is told to."""

    def __init__(self, *outcomes: Any) -> None:
        self.runs = 0
        self.outcomes = list(outcomes)

    async def __call__(self, request: ToolRequest) -> Any:
        self.runs += 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.runs
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def layer(clock: FakeClock) -> CacheLayer:
    return CacheLayer(CacheOptions(), clock=clock)


async def values_and_flags(
    layer: CacheLayer, nxt: Next, *requests: ToolRequest
) -> list[tuple[Any, bool]]:
    return [(await layer(request, nxt), request.cached) for request in requests]


@pytest.mark.req("T-02", "cache.second-call")
async def test_the_second_equal_call_is_answered_without_the_tool(
    layer: CacheLayer,
) -> None:
    tools = Tools()
    found = await values_and_flags(
        layer, tools, request(None, {"q": "x"}), request(None, {"q": "x"})
    )
    assert found == [(1, False), (1, True)]
    assert tools.runs == 1


@pytest.mark.req("T-11")
async def test_each_call_gets_its_own_value_whatever_finishes_first(
    layer: CacheLayer,
) -> None:
    gates = {text: asyncio.Event() for text in "AB"}

    async def echo(request: ToolRequest) -> Any:
        text = request.call.arguments["text"]
        await gates[text].wait()
        return text

    async with asyncio.timeout(5):
        tasks = [
            asyncio.ensure_future(layer(request(None, {"text": text}), echo))
            for text in "AB"
        ]
        gates["B"].set()
        assert await tasks[1] == "B"
        gates["A"].set()
        assert await tasks[0] == "A"
    again = [await layer(request(None, {"text": text}), Tools()) for text in "AB"]
    assert again == ["A", "B"]


@pytest.mark.req("cache.which-tools")
@pytest.mark.parametrize(
    ("facts", "cached"),
    [
        ({}, True),
        ({"side_effects": "none"}, True),
        ({"side_effects": "read"}, True),
        ({"side_effects": "write"}, False),
        ({"side_effects": "destructive"}, False),
        ({"cacheable": False}, False),
        ({"cacheable": False, "side_effects": "read"}, False),
        ({"cacheable": True, "side_effects": "write"}, True),
        ({"streaming": True, "cacheable": True}, False),
        ({"kind": Kind.ASYNC_STREAM, "cacheable": True}, False),
        ({"kind": Kind.SYNC_STREAM}, False),
    ],
)
async def test_metadata_says_which_tools_are_cached(
    layer: CacheLayer, facts: Any, cached: bool
) -> None:
    tool, tools = record(**facts), Tools()
    assert layer.caches(tool) is cached
    await values_and_flags(layer, tools, request(tool), request(tool))
    assert tools.runs == (1 if cached else 2)


async def test_nothing_is_cached_without_options_or_for_a_call_that_says_no(
    layer: CacheLayer,
) -> None:
    off, tools = CacheLayer(None), Tools()
    assert not off.caches(record())
    await values_and_flags(off, tools, request(), request())
    assert tools.runs == 2
    await layer(request(), tools)
    fresh = request()
    fresh.use_cache = False
    assert await values_and_flags(layer, tools, fresh) == [(4, False)]
    assert await values_and_flags(layer, tools, request()) == [(3, True)]


@pytest.mark.req("CA-08", "T-12", "cache.empty-values")
@pytest.mark.parametrize("value", [None, "", 0, False, [], {}])
async def test_empty_results_are_cached(layer: CacheLayer, value: Any) -> None:
    tools = Tools(value)
    found = await values_and_flags(layer, tools, request(), request())
    assert found == [(value, False), (value, True)]


@pytest.mark.req("CA-08", "cache.no-errors")
@pytest.mark.parametrize(
    "first",
    [
        ValueError("x"),
        ToolExecutionError("search"),
        {"isError": True, "content": []},
        ToolResult("search", error="x"),
        ToolResult("search", "half", is_partial=True),
    ],
)
async def test_errors_and_parts_are_not_cached(layer: CacheLayer, first: Any) -> None:
    tools = Tools(first, "good")
    if isinstance(first, Exception):
        with pytest.raises(type(first)):
            await layer(request(), tools)
    else:
        assert await layer(request(), tools) is first
    found = await values_and_flags(layer, tools, request(), request())
    assert found == [("good", False), ("good", True)]


@pytest.mark.req("CA-08", "cache.negative")
async def test_failures_of_the_tool_are_kept_on_request_for_their_own_time(
    clock: FakeClock,
) -> None:
    layer = CacheLayer(CacheOptions(negative_ttl=5), clock=clock)
    tools = Tools(ValueError("first"), "good")
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            await layer(request(), tools)
    assert tools.runs == 1
    await clock.advance(5)
    assert await layer(request(), tools) == "good"


@pytest.mark.req("cache.negative")
@pytest.mark.parametrize(
    "error",
    [
        ToolRateLimitedError("t"),
        ToolCircuitOpenError("t"),
        ToolTimeoutError("t", 1.0),
        ToolValidationError("t"),
        asyncio.CancelledError(),
    ],
)
async def test_refusals_before_the_tool_are_not_kept(error: BaseException) -> None:
    layer = CacheLayer(CacheOptions(negative_ttl=5))
    tools = Tools(error, "good")
    with pytest.raises(type(error)):
        await layer(request(), tools)
    assert await layer(request(), tools) == "good"


@pytest.mark.req("CA-03", "cache.scope")
async def test_tool_version_namespace_tenant_and_user_have_entries_of_their_own(
    layer: CacheLayer,
) -> None:
    tools = Tools()
    arguments = {"city": "X"}
    for tool in (
        record("weather"),
        record("news"),
        record("news", version="2.0.0"),
        record("news", namespace="web"),
    ):
        for scope in (
            None,
            ExecutionContext(tenant_id="a"),
            ExecutionContext(tenant_id="b"),
            ExecutionContext(tenant_id="a", user_id="u"),
        ):
            before = tools.runs
            for _ in range(2):
                with execution_scope(scope):
                    await layer(request(tool, arguments), tools)
            assert tools.runs == before + 1
    assert tools.runs == 16


@pytest.mark.req("cache.ttl")
async def test_the_time_of_a_result_is_that_of_the_tool_or_of_the_cache(
    clock: FakeClock,
) -> None:
    @cacheable(ttl=20)
    class Marked:
        pass

    options = CacheOptions(ttl=10, tool_ttls={"a": 30, "n.a": None, "b": 40})
    layer, tools = CacheLayer(options, clock=clock), Tools()
    tool_of = {
        10: record("plain"),
        20: record("marked", source=Marked),
        30: record("a"),
        40: record("b", source=Marked),
        1e9: record("a", namespace="n"),
    }
    for tool in tool_of.values():
        await layer(request(tool), tools)
    for seconds in (9.5, 10, 19.5, 20, 29.5, 30, 39.5, 40, 1e6):
        await clock.advance(seconds - (clock.monotonic() - 1000.0))
        for ttl, tool in tool_of.items():
            fresh = request(tool)
            found = layer.lookup(layer.key(fresh) or "")
            assert (found is not None) is (seconds < ttl), (seconds, ttl)


def test_the_defaults_are_those_that_are_promised() -> None:
    options = CacheOptions()
    assert (options.ttl, options.negative_ttl, options.on_error) == (300, None, "local")
    once = IdempotencyOptions()
    assert (once.ttl, once.lease, once.on_error) == (86_400, 3_600, "closed")


@pytest.mark.req("cache.key-function")
async def test_a_key_function_strips_what_does_not_count(clock: FakeClock) -> None:
    def counted(call: ToolCall) -> Any:
        if call.arguments.get("live"):
            return None
        return {k: v for k, v in call.arguments.items() if k != "now"}

    layer, tools = CacheLayer(CacheOptions(cache_key_fn=counted), clock=clock), Tools()
    found = await values_and_flags(
        layer,
        tools,
        request(None, {"q": 1, "now": 1}),
        request(None, {"q": 1, "now": 2}),
        request(None, {"q": 2, "now": 2}),
        request(None, {"q": 1, "live": True}),
        request(None, {"q": 1, "live": True}),
    )
    assert found == [(1, False), (1, True), (2, False), (3, False), (4, False)]
    assert await layer.invalidate("search", {"q": 1, "now": 9}) == 1
    assert await layer.invalidate("search", {"live": True}) == 0


@pytest.mark.req("cache.key-function")
async def test_a_key_function_that_raises_warns_and_does_not_cache() -> None:
    def broken(call: ToolCall) -> Any:
        raise KeyError("now")

    layer, tools = CacheLayer(CacheOptions(cache_key_fn=broken)), Tools()
    first = request()
    await values_and_flags(layer, tools, first, request())
    assert tools.runs == 2
    assert first.warnings == ["`cache_key_fn` raised KeyError; the call is not cached"]
    assert await layer.invalidate("search", {}) == 0


@pytest.mark.req("T-12", "cache.no-key-no-cache")
async def test_arguments_without_canonical_form_are_not_cached(
    layer: CacheLayer,
) -> None:
    tools, odd = Tools(), object()
    await values_and_flags(layer, tools, *(request(None, {"o": odd}),) * 2)
    assert tools.runs == 2
    assert len(layer._flights) == 0


@pytest.mark.req("cache.values-fixed")
async def test_no_caller_can_change_what_others_get(layer: CacheLayer) -> None:
    mine = {"list": [1]}
    assert await layer(request(), Tools(mine)) is mine
    mine["list"].append(2)
    found = await layer(request(), Tools())
    assert found == {"list": [1]}
    with pytest.raises(TypeError):
        found["list"].append(3)


async def test_a_result_that_cannot_be_copied_warns_and_is_not_cached(
    layer: CacheLayer,
) -> None:
    first, tools = request(), Tools(threading.Lock(), "good")
    await layer(first, tools)
    assert first.warnings == ["the result cannot be copied, so it is not cached"]
    assert await layer(request(), tools) == "good"


@pytest.mark.req("T-12", "cache.invalidate")
async def test_invalidate_cache_matches_what_the_layer_stored(clock: FakeClock) -> None:
    cache = InMemoryCache(clock=clock)
    layer, tools = CacheLayer(CacheOptions(backend=cache), clock=clock), Tools()
    web = record("search", namespace="web")
    for tool in (record(), record(version="2"), web):
        for arguments in ({"a": 1, "b": [2.0]}, {"b": [2], "a": 1}):
            await layer(request(tool, arguments), tools)
    assert await invalidate_cache("search", {"b": [2.0], "a": 1})(cache) == 2
    assert await invalidate_cache("search", {"b": [2.0], "a": 1})(cache) == 0
    assert await invalidate_cache("search", {"o": object()})(cache) == 0
    assert await invalidate_cache("search")(cache) == 2
    assert await layer.invalidate("web.search", {"a": 1, "b": [2]}) == 1
    assert await layer.invalidate("web.search") == 1
    assert len(cache) == 0


@pytest.mark.req("cache.invalidate")
async def test_a_call_in_flight_when_it_is_invalidated_is_not_kept(
    layer: CacheLayer,
) -> None:
    gate = asyncio.Event()

    async def slow(_request: ToolRequest) -> str:
        await gate.wait()
        return "old"

    async with asyncio.timeout(5):
        task = asyncio.ensure_future(layer(request(), slow))
        await asyncio.sleep(0)
        await layer.invalidate("search")
        gate.set()
        assert await task == "old"
    assert await layer(request(), Tools("new")) == "new"


async def test_many_tools_do_not_make_the_layer_grow_without_end(
    layer: CacheLayer,
) -> None:
    for number in range(5000):
        assert layer.caches(record(f"t{number}"))
    assert len(layer._plans) <= 4096


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: CacheOptions(ttl=0), ValueError, "`ttl` must be > 0"),
        (lambda: CacheOptions(ttl=True), ValueError, "`ttl` must be > 0"),
        (lambda: CacheOptions(negative_ttl=-1), ValueError, "`negative_ttl` must"),
        (lambda: CacheOptions(tool_ttls={"a": 0}), ValueError, "tool_ttls"),
        (lambda: CacheOptions(on_error="x"), ValueError, "local, open, closed"),  # type: ignore[arg-type]
        (lambda: CacheOptions(backend={}), TypeError, "CacheBackend"),  # type: ignore[arg-type]
        (lambda: IdempotencyOptions(ttl=0), ValueError, "`ttl` must be > 0"),
        (lambda: IdempotencyOptions(lease=0), ValueError, "`lease` must be > 0"),
        (lambda: IdempotencyOptions(backend=1), TypeError, "CacheBackend"),  # type: ignore[arg-type]
        (lambda: cacheable(ttl=0), ValueError, "`ttl` must be > 0"),
    ],
)
def test_options_that_cannot_work_are_refused(
    make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


def test_the_mark_stays_on_the_class_and_speaks_for_a_tool_that_writes() -> None:
    @cacheable()
    def write() -> None: ...

    assert (write._cacheable, write._cache_ttl) == (True, None)  # type: ignore[attr-defined]
    tool = record(source=write, side_effects="write")
    assert CacheLayer(CacheOptions()).caches(tool)


# --- a shared store ------------------------------------------------------------------
class Remote:
    """A store elsewhere: asynchronous, and it may be down, or silent."""

    def __init__(self, inner: InMemoryCache) -> None:
        self.inner = inner
        self.state = "up"
        self.asked = 0

    async def _reach(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.state == "down":
            raise ConnectionError("no server")
        if self.state == "silent":
            await asyncio.Event().wait()

    async def get(self, key: str) -> Any:
        await self._reach()
        return self.inner.get_now(key)

    async def set(self, key: str, value: Any, ttl: float | None) -> bool:
        await self._reach()
        return self.inner.set_now(key, value, ttl)

    async def reserve(self, key: str, value: Any, ttl: float | None) -> Any:
        await self._reach()
        return self.inner.reserve_now(key, value, ttl)

    async def delete(self, key: str) -> bool:
        await self._reach()
        return self.inner.delete_now(key)

    async def invalidate(self, tool: str, arguments: str | None = None) -> int:
        await self._reach()
        return await self.inner.invalidate(tool, arguments)

    async def clear(self) -> None:
        await self.inner.clear()

    async def stats(self) -> Any:
        return await self.inner.stats()


@pytest.fixture
def remote(clock: FakeClock) -> Remote:
    return Remote(InMemoryCache(clock=clock))


async def test_two_processes_share_what_one_has_found(
    remote: Remote, clock: FakeClock
) -> None:
    options, tools = CacheOptions(backend=remote), Tools()
    layers = [CacheLayer(options, clock=clock) for _ in range(2)]
    assert not layers[0].is_sync
    assert isinstance(remote, CacheBackend)
    for layer in layers:
        assert await layer(request(), tools) == 1
    assert tools.runs == 1
    assert await layers[0].invalidate("search") == 1
    assert await layers[1](request(), tools) == 2


async def test_equal_calls_ask_a_shared_store_once(
    remote: Remote, clock: FakeClock
) -> None:
    layer, tools = CacheLayer(CacheOptions(backend=remote), clock=clock), Tools()
    async with asyncio.timeout(5):
        found = await asyncio.gather(*(layer(request(), tools) for _ in range(50)))
        assert found == [1] * 50
        assert remote.asked == 2  # one get, one set
        await asyncio.gather(*(layer(request(), tools) for _ in range(50)))
    assert (tools.runs, remote.asked) == (1, 3)


@pytest.mark.req("LM-23")
@pytest.mark.parametrize("state", ["down", "silent"])
@pytest.mark.parametrize("mode", ["local", "open", "closed"])
async def test_an_outage_is_treated_as_set_with_one_warning_and_then_recovered_from(
    mode: Any, state: str
) -> None:
    clock = FakeClock(auto=True)
    remote = Remote(InMemoryCache(clock=clock))
    layer = CacheLayer(CacheOptions(backend=remote, on_error=mode), clock=clock)
    tools = Tools()
    warm, cold = {"warm": True}, {"cold": True}
    async with asyncio.timeout(5):
        assert await layer(request(None, warm), tools) == 1
        remote.state, remote.asked = state, 0
        seen = [request(None, arguments) for arguments in (warm, warm, cold, cold)]
        found: list[Any] = []
        for one in seen:
            try:
                found.append(await layer(one, tools))
            except StateStoreError:
                found.append("refused")
        assert (
            found
            == {
                "local": [1, 1, 2, 2],
                "open": [2, 3, 4, 5],
                "closed": ["refused"] * 4,
            }[mode]
        )
        assert [bool(one.warnings) for one in seen] == [True, False, False, False]
        assert remote.asked <= 2  # not asked by each call
        remote.state = "up"
        await clock.advance(2)
        runs = tools.runs
        assert await layer(request(None, warm), tools) == 1
        assert tools.runs == runs
        remote.state, second = "down", request(None, {"again": True})
        with contextlib.suppress(StateStoreError):
            await layer(second, tools)
        assert second.warnings is not None  # each outage has its warning


@pytest.mark.req("LM-23")
async def test_a_store_that_fails_after_the_tool_ran_does_not_undo_the_call(
    remote: Remote, clock: FakeClock
) -> None:
    layer = CacheLayer(CacheOptions(backend=remote, on_error="closed"), clock=clock)

    async def breaks(_request: ToolRequest) -> str:
        remote.state = "down"
        return "done"

    one = request()
    assert await layer(one, breaks) == "done"
    assert one.warnings is not None
    with pytest.raises(StateStoreError):
        await layer.invalidate("search")


async def test_a_layer_over_an_opened_store_answers_at_once() -> None:
    cache = open_backend("memory://").cache()
    layer = CacheLayer(CacheOptions(backend=cache))
    assert layer.is_sync
    one = request()
    key = layer.key(one)
    assert key is not None
    assert layer.lookup(key) is None
    assert layer.join(key) is None
    assert layer.done(key, one, [1]) is None
    found = layer.lookup(key)
    assert found is not None
    assert found.value == [1]
    assert await layer.lookup_slow(key) is found
    assert await cache.get(key) is not MISS
