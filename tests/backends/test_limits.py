"""Stores of limits and circuits, and the layers over them."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.backends import (
    BreakerBackend,
    LimiterBackend,
    LimitRule,
    MemoryBackend,
    MemoryBreakers,
    MemoryLimiter,
)
from executionkit.calls import ToolCall
from executionkit.engine.breaker import BreakerConfig
from executionkit.errors import ErrorCode
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry

if TYPE_CHECKING:
    from types import ModuleType

    from executionkit.testing import FakeClock
    from executionkit.tools.middleware._store import OnError


def _contract() -> ModuleType:
    # Files of tests are no packages here; the suite of the contract is found by path.
    path = Path(__file__).with_name("limits_contract.py")
    spec = importlib.util.spec_from_file_location("limits_contract", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


contract = _contract()


@pytest.mark.req("stores.limits")
class TestMemoryLimiter(contract.LimiterContract):  # type: ignore[misc, name-defined]
    @pytest.fixture
    def limiter(self, clock: FakeClock) -> LimiterBackend:
        return MemoryBackend(clock).limiter()

    async def test_windows_of_invented_keys_are_bounded(self, clock: FakeClock) -> None:
        limiter = MemoryLimiter(clock, max_keys=10)
        for number in range(100):
            await limiter.acquire([LimitRule(f"k{number}", 1, 1.0)], timeout=0)
            await clock.advance(1)
        assert len(limiter._windows) <= 10


@pytest.mark.req("stores.circuits")
class TestMemoryBreakers(contract.BreakerContract):  # type: ignore[misc, name-defined]
    @pytest.fixture
    def breakers(self, clock: FakeClock) -> BreakerBackend:
        return MemoryBackend(clock).breakers()

    async def test_circuits_of_invented_keys_are_bounded(
        self, clock: FakeClock
    ) -> None:
        breakers = MemoryBreakers(clock, max_keys=10)
        for number in range(100):
            await breakers.before(f"k{number}", BreakerConfig())
        assert len(await breakers.states()) <= 10


REASON = "ConnectionError: connection refused by redis://"


class Both:
    """Limits and circuits in one store."""

    def __init__(self, limits: Any, circuits: Any) -> None:
        self.acquire, self.refund = limits.acquire, limits.refund
        self.before, self.report = circuits.before, circuits.report


class Broken:
    """A store whose server is gone, until it comes back."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.is_down = False
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            if self.is_down:
                msg = "connection refused by redis://me:s3cr3t-w0rd@there"
                raise ConnectionError(msg)
            return await method(*args, **kwargs)

        return ask


async def echo(n: int) -> int:
    return n


async def fails() -> None:
    msg = "no"
    raise OSError(msg)


class State(MemoryBackend):
    """A place of state whose limits and circuits are those that a test watches."""

    def __init__(self, clock: FakeClock, store: Any) -> None:
        super().__init__(clock)
        self.store = store

    def limiter(self, name: str = "ratelimit") -> Any:
        return self.store

    def breakers(self, name: str = "circuitbreaker") -> Any:
        return self.store


def limited(store: Any, clock: FakeClock, on_error: OnError = "local") -> ToolProcessor:
    return ToolProcessor(
        create_registry(echo, fails),
        tool_rate_limits={"echo": (2, 60)},
        state=State(clock, store),
        on_state_error=on_error,
        clock=clock,
    )


async def codes(processor: ToolProcessor, times: int, tool: str = "echo") -> list[Any]:
    arguments = {"n": 1} if tool == "echo" else {}
    calls = [ToolCall(None, tool, arguments) for _ in range(times)]
    results = await processor.execute(calls, timeout=1)
    return sorted(str(result.error_code or "ok") for result in results)


@pytest.mark.req("stores.limits")
async def test_two_processors_share_the_limit_of_one_store(clock: FakeClock) -> None:
    store = MemoryLimiter(clock)
    first, second = limited(store, clock), limited(store, clock)
    assert await codes(first, 1) == ["ok"]
    assert await codes(second, 2) == [str(ErrorCode.TOOL_RATE_LIMITED), "ok"]


@pytest.mark.req("stores.limits")
async def test_a_call_that_never_began_gives_its_permit_back(clock: FakeClock) -> None:
    store = MemoryLimiter(clock)
    processor = limited(store, clock)
    await processor.strategy.shutdown()
    assert await codes(processor, 1) == [str(ErrorCode.TOOL_CANCELLED)]
    await processor.close()
    assert (await store.usage(LimitRule("tool:echo", 2, 60))).used == 0


@pytest.mark.req("LM-23")
@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        ("local", [str(ErrorCode.TOOL_RATE_LIMITED), "ok"]),
        ("open", ["ok", "ok"]),
        ("closed", [str(ErrorCode.STATE_STORE_FAILED)] * 2),
    ],
)
async def test_limits_while_the_store_is_down(
    mode: OnError, outcome: list[str], clock: FakeClock
) -> None:
    store = Broken(MemoryLimiter(clock))
    processor = limited(store, clock, mode)
    assert await codes(processor, 1) == ["ok"]
    store.is_down = True
    assert await codes(processor, 2) == outcome
    asked = store.asked
    await codes(processor, 1)
    assert store.asked == asked, "left alone for a while"
    store.is_down = False
    await clock.advance(60)
    assert await codes(processor, 2) == ["ok", "ok"]
    assert store.asked > asked, "asked again without a restart"


@pytest.mark.req("LM-23")
async def test_an_outage_is_warned_of_once(clock: FakeClock) -> None:
    store = Broken(MemoryLimiter(clock))
    store.is_down = True
    processor = limited(store, clock, "open")
    calls = [ToolCall(str(n), "echo", {"n": n}) for n in range(3)]
    results = [(await processor.execute([call]))[0] for call in calls]
    assert [bool(result.warnings) for result in results] == [True, False, False]


@pytest.mark.req("stores.outage")
@pytest.mark.parametrize("mode", ["local", "open", "closed"])
async def test_an_outage_is_logged_once_with_its_reason_and_counted(
    mode: OnError, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "executionkit")
    store = Broken(Both(MemoryLimiter(clock), MemoryBreakers(clock)))
    processor = ToolProcessor(
        create_registry(echo),
        tool_rate_limits={"echo": (90, 60)},
        enable_circuit_breaker=True,
        state=State(clock, store),
        on_state_error=mode,
        clock=clock,
    )
    calls = [ToolCall(str(n), "echo", {"n": n}) for n in range(3)]
    for outage in (1, 2):
        store.is_down = True
        results = []
        for _ in range(3):
            results += await processor.execute(calls)
            await clock.advance(2)
        said = [text for r in results for text in (*(r.warnings or ()), r.error or "")]
        assert any(REASON in text and "s3cr3t" not in text for text in said)
        stats = await processor.stats()
        assert stats.state_outages == outage
        assert REASON in (stats.state_error or "")
        store.is_down = False
        await processor.execute(calls)
        assert (await processor.stats()).state_error is None
        logged = [(r.levelname, r.getMessage()) for r in caplog.records]
        assert [level for level, _ in logged] == ["WARNING", "INFO"] * outage
        assert all(REASON in text and "s3cr3t" not in text for _, text in logged)
        assert f"going on as set: {mode}" in logged[0][1]


def guarded(store: Any, clock: FakeClock, on_error: OnError) -> ToolProcessor:
    return ToolProcessor(
        create_registry(echo, fails),
        enable_circuit_breaker=True,
        circuit_breaker_threshold=2,
        state=State(clock, store),
        on_state_error=on_error,
        clock=clock,
    )


OPEN, FAILED = str(ErrorCode.TOOL_CIRCUIT_OPEN), str(ErrorCode.TOOL_EXECUTION_FAILED)


@pytest.mark.req("stores.circuits")
async def test_two_processors_share_a_circuit(clock: FakeClock) -> None:
    store = MemoryBreakers(clock)
    first, second = guarded(store, clock, "local"), guarded(store, clock, "local")
    for _ in range(2):
        assert await codes(first, 1, "fails") == [FAILED]
        await first._ready().flush()
    assert await codes(second, 1, "fails") == [OPEN]


class Watched:
    """A store whose questions take a turn of the loop, and are noted as they come."""

    def __init__(self, limiter: Any, breakers: Any) -> None:
        self.limits, self.circuits = limiter, breakers
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def acquire(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append("acquire")
        await asyncio.sleep(0)
        permit = await self.limits.acquire(*args, **kwargs)
        self.asked.append("permit")
        return permit

    async def refund(self, permit: Any) -> None:
        await self.limits.refund(permit)

    async def before(self, *args: Any) -> Any:
        self.asked.append("before")
        for _ in range(3):
            await asyncio.sleep(0)
        await self.gate.wait()
        lease = await self.circuits.before(*args)
        self.asked.append("lease")
        return lease

    async def report(self, *args: Any) -> None:
        await self.circuits.report(*args)


@pytest.mark.req("stores.one-trip")
async def test_circuit_and_limits_are_asked_in_the_same_moment(
    clock: FakeClock,
) -> None:
    store = Watched(MemoryLimiter(clock), MemoryBreakers(clock))
    rule = LimitRule("global", 5, 60.0)
    processor = ToolProcessor(
        create_registry(echo, fails),
        enable_circuit_breaker=True,
        circuit_breaker_threshold=2,
        global_rate_limit=5,
        state=State(clock, store),
        clock=clock,
    )
    assert await codes(processor, 1) == ["ok"]
    assert store.asked == ["before", "acquire", "permit", "lease"]
    for _ in range(2):
        assert await codes(processor, 1, "fails") == [FAILED]
        await processor._ready().flush()
    # Refused: what was taken for the call is given back, then not asked for any more.
    for _ in range(2):
        assert await codes(processor, 1, "fails") == [OPEN]
        await processor._ready().flush()
    assert (await store.limits.usage(rule)).used == 3
    assert store.asked[-1] == "before"
    assert store.asked.count("acquire") == 4
    # Cancelled while it asks: nothing is left behind.
    store.gate.clear()
    task = asyncio.create_task(codes(processor, 1))
    while store.asked[-1] != "permit":
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await processor._ready().flush()
    assert (await store.limits.usage(rule)).used == 3
    await processor.close()


@pytest.mark.req("LM-23")
@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        ("local", OPEN),
        ("open", FAILED),
        ("closed", str(ErrorCode.STATE_STORE_FAILED)),
    ],
)
async def test_circuits_while_the_store_is_down(
    mode: OnError, outcome: str, clock: FakeClock
) -> None:
    store = Broken(MemoryBreakers(clock))
    processor = guarded(store, clock, mode)
    for _ in range(2):
        await codes(processor, 1, "fails")
        await processor._ready().flush()
    store.is_down = True
    assert await codes(processor, 1, "fails") == [outcome]
