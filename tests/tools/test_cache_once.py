"""Idempotency keys: one effect for one key, and a clear word when there cannot be."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.backends import InMemoryCache
from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext, execution_scope
from executionkit.engine.retry import RetryConfig, with_retry
from executionkit.errors import (
    ErrorCategory,
    StateStoreError,
    ToolIdempotencyError,
    ToolTimeoutError,
)
from executionkit.testing import FakeClock, settle
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools.middleware import ToolRequest
from executionkit.tools.middleware.cache import (
    CacheLayer,
    CacheOptions,
    IdempotencyOptions,
)
from executionkit.types import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping


def record(name: str = "pay", **facts: Any) -> ToolRecord:
    facts.setdefault("side_effects", "write")
    tool = Tool(name, "", {"type": "object"}, lambda: None, **facts)
    return ToolRecord(tool, kind=Kind.ASYNC, validator=None)  # type: ignore[arg-type]


PAY = record()


def request(
    arguments: Mapping[str, Any] | None = None,
    key: str = "k1",
    of: ToolRecord = PAY,
    deadline: float | None = None,
) -> ToolRequest:
    call = ToolCall("c", of.full_name, arguments or {"amount": 10}, idempotency_key=key)
    made = ToolRequest(call, of, None)
    made.deadline = deadline
    return made


class Bank:
    """A tool with an effect that can be counted."""

    def __init__(self, *outcomes: Any) -> None:
        self.paid = 0
        self.outcomes = list(outcomes)
        self.gate: asyncio.Event | None = None

    async def __call__(self, request: ToolRequest) -> Any:
        request.started = True
        self.paid += 1
        if self.gate is not None:
            await self.gate.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else {"receipt": self.paid}
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(auto=True)


@pytest.fixture(params=["off", "on"])
def layer(request: pytest.FixtureRequest, clock: FakeClock) -> CacheLayer:
    options = CacheOptions() if request.param == "on" else None
    return CacheLayer(options, clock=clock)


@pytest.mark.req("CA-04", "cache.idempotency")
async def test_the_same_key_and_call_is_one_effect(layer: CacheLayer) -> None:
    bank, again = Bank(), request()
    assert await layer(request(), bank) == {"receipt": 1}
    assert await layer(again, bank) == {"receipt": 1}
    assert (bank.paid, again.cached) == (1, True)
    assert await layer(request(key="k2"), bank) == {"receipt": 2}


@pytest.mark.req("CA-04", "cache.idempotency-conflict")
@pytest.mark.parametrize(
    "other",
    [
        request({"amount": 99}),
        request({"amount": 10.0}),
        request(of=record("refund")),
    ],
)
async def test_the_key_with_another_call_is_refused_and_never_answered(
    layer: CacheLayer, other: ToolRequest
) -> None:
    bank = Bank()
    await layer(request(), bank)
    with pytest.raises(ToolIdempotencyError) as caught:
        await layer(other, bank)
    error = caught.value
    assert (error.reason, error.category) == ("conflict", ErrorCategory.VALIDATION)
    assert not error.retryable
    assert error.details["idempotency_key"] == "k1"
    assert bank.paid == 1
    assert await layer(request(), bank) == {"receipt": 1}


@pytest.mark.req("CA-04", "cache.idempotency-conflict")
async def test_a_conflict_is_seen_while_the_first_call_still_runs(
    layer: CacheLayer,
) -> None:
    bank = Bank()
    bank.gate = asyncio.Event()
    async with asyncio.timeout(5):
        first = asyncio.ensure_future(layer(request(), bank))
        await settle(2)
        with pytest.raises(ToolIdempotencyError):
            await layer(request({"amount": 99}), bank)
        bank.gate.set()
        assert await first == {"receipt": 1}


@pytest.mark.req("cache.idempotency-conflict")
async def test_a_conflict_is_never_retried() -> None:
    sent = 0

    async def refuse() -> None:
        nonlocal sent
        sent += 1
        raise ToolIdempotencyError("pay", "k1", "conflict", "was used")

    config = RetryConfig(max_retries=3, retryable=(Exception,))
    with pytest.raises(ToolIdempotencyError):
        await with_retry(refuse, config)
    assert sent == 1


@pytest.mark.req("CA-05", "cache.idempotency")
async def test_a_second_caller_waits_for_the_first(layer: CacheLayer) -> None:
    bank = Bank()
    bank.gate = asyncio.Event()
    async with asyncio.timeout(5):
        tasks = [asyncio.ensure_future(layer(request(), bank)) for _ in range(10)]
        await settle(3)
        bank.gate.set()
        assert await asyncio.gather(*tasks) == [{"receipt": 1}] * 10
    assert bank.paid == 1


class Remote:
    """A store of all processes, each answer a step of the loop away."""

    def __init__(self, inner: InMemoryCache) -> None:
        self.inner = inner
        self.down = False

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_now"):
            raise AttributeError(name)
        method = getattr(self.inner, name)

        async def ask(*args: Any) -> Any:
            await asyncio.sleep(0)
            if self.down:
                raise ConnectionError("no server")
            return await method(*args)

        return ask


def processes(
    clock: FakeClock, **options: Any
) -> tuple[CacheLayer, CacheLayer, Remote]:
    remote: Any = Remote(InMemoryCache(clock=clock))
    once = IdempotencyOptions(backend=remote, **options)
    one, two = (CacheLayer(None, idempotency=once, clock=clock) for _ in range(2))
    return one, two, remote


@pytest.mark.req("CA-05", "cache.idempotency-processes")
async def test_a_caller_in_another_process_waits_for_the_first() -> None:
    clock = FakeClock()
    one, two, _ = processes(clock)
    bank = Bank()
    bank.gate = asyncio.Event()
    async with asyncio.timeout(5):
        first = asyncio.ensure_future(one(request(), bank))
        await settle(5)
        second = asyncio.ensure_future(two(request(), bank))
        await clock.advance(3)
        assert not second.done()
        bank.gate.set()
        await clock.advance(1)
        assert await first == await second == {"receipt": 1}
    assert bank.paid == 1
    assert 4 <= len(clock.sleeps) <= 10
    assert max(clock.sleeps) <= 1.0


@pytest.mark.req("CA-05", "cache.idempotency-processes")
async def test_a_caller_without_time_is_told_that_it_is_in_progress(
    clock: FakeClock,
) -> None:
    one, two, _ = processes(clock)
    bank = Bank()
    bank.gate = asyncio.Event()
    async with asyncio.timeout(5):
        first = asyncio.ensure_future(one(request(), bank))
        await settle(5)
        with pytest.raises(ToolIdempotencyError) as caught:
            await two(request(deadline=clock.monotonic() + 3), bank)
        assert caught.value.reason == "in_progress"
        assert clock.monotonic() <= 1003
        bank.gate.set()
        await first
    assert bank.paid == 1


async def test_many_processes_and_callers_have_one_effect(clock: FakeClock) -> None:
    one, two, _ = processes(clock)
    bank = Bank()
    async with asyncio.timeout(5):
        calls = [layer(request(), bank) for layer in (one, two) for _ in range(20)]
        assert await asyncio.gather(*calls) == [{"receipt": 1}] * 40
    assert bank.paid == 1


@pytest.mark.req("cache.idempotency-failure")
async def test_a_failure_frees_the_key(layer: CacheLayer) -> None:
    bank = Bank(ValueError("no money"))
    with pytest.raises(ValueError, match="no money"):
        await layer(request(), bank)
    assert await layer(request({"amount": 11}), bank) == {"receipt": 2}


@pytest.mark.req("cache.idempotency-doubt")
@pytest.mark.parametrize(
    ("facts", "started", "blocked"),
    [
        ({}, True, True),
        ({"side_effects": "unknown"}, True, True),
        ({}, False, False),
        ({"idempotent": True}, True, False),
        ({"side_effects": "read"}, True, False),
    ],
)
@pytest.mark.parametrize(
    "end", [ToolTimeoutError("pay", 1.0), asyncio.CancelledError()]
)
async def test_a_broken_off_effect_is_in_doubt_and_not_repeated(
    layer: CacheLayer, facts: Any, started: bool, blocked: bool, end: BaseException
) -> None:
    tool, paid = record(**facts), 0

    async def pay(request: ToolRequest) -> str:
        nonlocal paid
        request.started = started
        paid += 1
        if paid == 1:
            raise end
        return "paid"

    with pytest.raises(type(end)):
        await layer(request(of=tool), pay)
    if not blocked:
        assert await layer(request(of=tool), pay) == "paid"
        return
    with pytest.raises(ToolIdempotencyError) as caught:
        await layer(request(of=tool), pay)
    assert caught.value.reason == "in_doubt"
    assert paid == 1


@pytest.mark.req("cache.idempotency-doubt")
async def test_followers_of_a_cancelled_effect_do_not_repeat_it(
    layer: CacheLayer,
) -> None:
    bank = Bank()
    bank.gate = asyncio.Event()
    async with asyncio.timeout(5):
        tasks = [asyncio.ensure_future(layer(request(), bank)) for _ in range(3)]
        await settle(3)
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    reasons = [one.reason for one in found if isinstance(one, ToolIdempotencyError)]
    assert reasons == ["in_doubt", "in_doubt"]
    assert bank.paid == 1
    assert layer._once is not None
    assert len(layer._once._flights) == 0


async def test_a_value_that_cannot_be_kept_is_not_made_twice(
    layer: CacheLayer,
) -> None:
    bank = Bank(threading.Lock())
    await layer(request(), bank)
    with pytest.raises(ToolIdempotencyError) as caught:
        await layer(request(), bank)
    assert caught.value.reason == "not_kept"


async def test_arguments_that_cannot_be_compared_are_refused(
    layer: CacheLayer,
) -> None:
    bank = Bank()
    with pytest.raises(ToolIdempotencyError) as caught:
        await layer(request({"o": object()}), bank)
    assert (caught.value.reason, bank.paid) == ("not_comparable", 0)


@pytest.mark.req("cache.idempotency")
async def test_keys_of_tenants_and_users_are_apart(layer: CacheLayer) -> None:
    bank = Bank()
    for scope in (None, ExecutionContext(tenant_id="a"), ExecutionContext(user_id="a")):
        with execution_scope(scope):
            await layer(request(), bank)
            await layer(request(), bank)
    assert bank.paid == 3


@pytest.mark.req("cache.idempotency")
async def test_a_key_counts_for_its_time_whatever_happens_to_the_cache() -> None:
    clock = FakeClock()
    layer = CacheLayer(
        CacheOptions(), idempotency=IdempotencyOptions(ttl=100), clock=clock
    )
    bank = Bank()
    await layer(request(), bank)
    await layer.invalidate("pay")
    once = request()
    once.use_cache = False  # a switch of the cache, not of the promise
    assert await layer(once, bank) == {"receipt": 1}
    assert layer.honours_key(once)
    await clock.advance(100)
    assert await layer(request(), bank) == {"receipt": 2}


async def test_keys_mean_nothing_when_that_is_switched_off() -> None:
    layer = CacheLayer(None, idempotency=None)
    bank = Bank()
    await layer(request(), bank)
    await layer(request(), bank)
    assert bank.paid == 2
    assert not layer.honours_key(request())


@pytest.mark.req("cache.idempotency-processes")
async def test_a_key_left_by_a_dead_process_is_free_after_the_lease() -> None:
    clock = FakeClock(auto=True)
    one, two, _ = processes(clock, lease=30)
    bank = Bank()
    async with asyncio.timeout(5):
        assert one._once is not None
        slot = one._once._slot(request())
        assert await one._once._reserve(slot, request()) is None  # and dies
        assert await two(request(), bank) == {"receipt": 1}
    assert 1029 <= clock.monotonic() <= 1032


@pytest.mark.req("LM-23")
@pytest.mark.parametrize("mode", ["closed", "local", "open"])
async def test_without_the_store_a_key_is_treated_as_set(
    clock: FakeClock, mode: Any
) -> None:
    one, two, remote = processes(clock, on_error=mode)
    bank = Bank()
    remote.down = True
    async with asyncio.timeout(5):
        if mode == "closed":
            with pytest.raises(StateStoreError):
                await one(request(), bank)
            assert bank.paid == 0
            return
        await one(request(), bank)
        await one(request(), bank)
        assert bank.paid == (1 if mode == "local" else 2)
        remote.down = False
        await clock.advance(2)
        if mode == "local":
            # What happened meanwhile reaches the store with the next question.
            assert await one(request(), bank) == {"receipt": 1}
            assert await two(request(), bank) == {"receipt": 1}
