"""What every store of limits and of circuits must do.

Derive a class and give it the fixtures `limiter` or `breakers`, and `clock`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from executionkit.backends import BreakerBackend, LimiterBackend, LimitRule
from executionkit.engine.breaker import BreakerConfig, CircuitState
from executionkit.engine.rate_bucket import PermitTimeoutError
from executionkit.errors import ToolCircuitOpenError

if TYPE_CHECKING:
    from executionkit.testing import FakeClock

TOOL = LimitRule("tool:search", 2, 10.0)
ALL = LimitRule("global", 3, 60.0)


class LimiterContract:
    """Fixtures of the derived class: `limiter`, and the `clock` that it runs on."""

    async def test_a_limit_counts_starts_and_says_when_the_next_fits(
        self, limiter: LimiterBackend, clock: FakeClock
    ) -> None:
        assert isinstance(limiter, LimiterBackend)
        for _ in range(2):
            await limiter.acquire([TOOL], timeout=0)
        await clock.advance(4)
        with pytest.raises(PermitTimeoutError) as refusal:
            await limiter.acquire([TOOL], timeout=1)
        assert refusal.value.retry_after == pytest.approx(6, abs=0.1)
        await clock.advance(6)
        await limiter.acquire([TOOL], timeout=0)

    async def test_all_windows_are_had_at_once_or_none(
        self, limiter: LimiterBackend, clock: FakeClock
    ) -> None:
        for _ in range(2):
            await limiter.acquire([TOOL, ALL], timeout=0)
        with pytest.raises(PermitTimeoutError):
            await limiter.acquire([TOOL, ALL], timeout=0)
        assert (await limiter.usage(ALL)).used == 2
        assert (await limiter.usage(TOOL)).remaining == 0

    async def test_a_refund_gives_the_start_back_once(
        self, limiter: LimiterBackend, clock: FakeClock
    ) -> None:
        first = await limiter.acquire([TOOL], timeout=0)
        await limiter.acquire([TOOL], timeout=0)
        await limiter.refund(first)
        await limiter.refund(first)
        assert (await limiter.usage(TOOL)).used == 1

    async def test_a_refund_after_the_window_changes_nothing(
        self, limiter: LimiterBackend, clock: FakeClock
    ) -> None:
        late = await limiter.acquire([TOOL], timeout=0)
        await clock.advance(11)
        await limiter.acquire([TOOL], timeout=0)
        await limiter.refund(late)
        assert (await limiter.usage(TOOL)).used == 1

    async def test_waiters_are_served_in_order_and_a_cancelled_one_costs_nothing(
        self, limiter: LimiterBackend, clock: FakeClock
    ) -> None:
        for _ in range(2):
            await limiter.acquire([TOOL], timeout=0)
        served: list[int] = []

        async def wait(number: int) -> None:
            await limiter.acquire([TOOL], timeout=60)
            served.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        tasks[0].cancel()
        await clock.advance(10)
        async with asyncio.timeout(5):
            await asyncio.wait(tasks)
        assert served == [1, 2]
        assert (await limiter.usage(TOOL)).used == 2

    async def test_keys_are_apart_and_a_reset_concerns_its_own(
        self, limiter: LimiterBackend, clock: FakeClock
    ) -> None:
        other = LimitRule("tool:other", 2, 10.0)
        for rule in (TOOL, TOOL, other):
            await limiter.acquire([rule], timeout=0)
        await limiter.reset(TOOL.key)
        assert (await limiter.usage(TOOL)).used == 0
        assert (await limiter.usage(other)).used == 1
        await limiter.reset()
        assert (await limiter.usage(other)).used == 0

    async def test_a_cost_that_never_fits_is_refused_at_once(
        self, limiter: LimiterBackend, clock: FakeClock
    ) -> None:
        with pytest.raises(ValueError, match="limit"):
            await limiter.acquire([TOOL], cost=3)


CONFIG = BreakerConfig(failure_threshold=2, success_threshold=1, reset_timeout=10.0)


class BreakerContract:
    """Fixtures of the derived class: `breakers`, and the `clock` that they run on."""

    async def fail(self, breakers: BreakerBackend, times: int = 2) -> None:
        for _ in range(times):
            await breakers.report(await breakers.before("a", CONFIG), "failure")

    async def test_failures_open_a_circuit_and_a_probe_closes_it(
        self, breakers: BreakerBackend, clock: FakeClock
    ) -> None:
        assert isinstance(breakers, BreakerBackend)
        await self.fail(breakers)
        with pytest.raises(ToolCircuitOpenError) as refusal:
            await breakers.before("a", CONFIG)
        assert refusal.value.retry_after == pytest.approx(10, abs=0.1)
        await clock.advance(10)
        await breakers.report(await breakers.before("a", CONFIG), "success")
        assert (await breakers.snapshot("a", CONFIG)).state is CircuitState.CLOSED

    async def test_only_so_many_probes_go_out_and_an_abandoned_one_frees_its_place(
        self, breakers: BreakerBackend, clock: FakeClock
    ) -> None:
        await self.fail(breakers)
        await clock.advance(10)
        probe = await breakers.before("a", CONFIG)
        with pytest.raises(ToolCircuitOpenError):
            await breakers.before("a", CONFIG)
        await breakers.report(probe, "abandoned")
        await breakers.before("a", CONFIG)

    async def test_what_was_admitted_before_the_opening_does_not_close_it(
        self, breakers: BreakerBackend, clock: FakeClock
    ) -> None:
        early = await breakers.before("a", CONFIG)
        await self.fail(breakers)
        await clock.advance(10)
        await breakers.before("a", CONFIG)
        await breakers.report(early, "success")
        assert (await breakers.snapshot("a", CONFIG)).state is CircuitState.HALF_OPEN

    async def test_a_report_counts_once(
        self, breakers: BreakerBackend, clock: FakeClock
    ) -> None:
        lease = await breakers.before("a", CONFIG)
        await breakers.report(lease, "failure")
        await breakers.report(lease, "failure")
        assert (await breakers.snapshot("a", CONFIG)).failure_count == 1

    async def test_circuits_are_apart_and_can_be_listed_and_reset(
        self, breakers: BreakerBackend, clock: FakeClock
    ) -> None:
        await self.fail(breakers)
        await breakers.before("b", CONFIG)
        states = await breakers.states()
        assert states["a"] == "open"
        assert states.get("b", "closed") == "closed"
        await breakers.reset("a")
        await breakers.before("a", CONFIG)
