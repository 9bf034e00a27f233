"""The processor over the default registry, and what one can read off any processor."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from executionkit import (
    BulkheadConfig,
    ExecutionContext,
    RateLimitOptions,
    RetryConfig,
    ToolCall,
    ToolProcessor,
    create_registry,
    open_backend,
    reset_registry,
    tool,
)
from executionkit.testing import FakeClock, settle
from executionkit.tools.default import get_default_processor, process, process_text

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    reset_registry()
    get_default_processor.cache_clear()
    yield
    reset_registry()
    get_default_processor.cache_clear()


@pytest.mark.req("processor.default")
async def test_the_default_processor_runs_what_is_decorated() -> None:
    @tool
    async def double(n: int) -> int:
        return 2 * n

    assert double is not None
    results = await process([{"tool": "double", "arguments": {"n": 2}}])
    assert results[0].result == 4
    results = await process_text("""<tool name="double" args='{"n": 3}'/>""")
    assert results[0].result == 6
    assert get_default_processor() is get_default_processor()


@pytest.mark.req("processor.default")
def test_settings_can_be_read_off_a_processor() -> None:
    plain = ToolProcessor()
    assert plain.default_timeout == 10.0
    assert plain.max_concurrency is None
    assert not any(
        (
            plain.enable_caching,
            plain.enable_retries,
            plain.enable_rate_limiting,
            plain.enable_circuit_breaker,
            plain.enable_bulkhead,
        )
    )
    assert (plain.cache_ttl, plain.max_retries, plain.retry_config) == (None, 0, None)
    assert (plain.global_rate_limit, dict(plain.tool_rate_limits)) == (None, {})
    config = BulkheadConfig(default_limit=3)
    full = ToolProcessor(
        default_timeout=2,
        max_concurrency=5,
        enable_caching=True,
        cache_ttl=60,
        retry_config=RetryConfig(max_retries=2),
        global_rate_limit=7,
        tool_rate_limits={"a": (1, 2.0)},
        enable_circuit_breaker=True,
        bulkhead_config=config,
    )
    assert (full.default_timeout, full.max_concurrency) == (2, 5)
    assert (full.enable_caching, full.cache_ttl) == (True, 60)
    assert (full.enable_retries, full.max_retries) == (True, 2)
    assert (full.enable_rate_limiting, full.global_rate_limit) == (True, 7)
    assert dict(full.tool_rate_limits) == {"a": (1, 2.0)}
    assert full.enable_circuit_breaker
    assert (full.enable_bulkhead, full.bulkhead_config) == (True, config)


@pytest.mark.req("processor.default")
def test_a_call_can_be_written_and_has_a_key_of_what_it_does() -> None:
    call = ToolCall("1", "web.fetch", {"a": [1, {"b": None}]}, idempotency_key="k")
    assert ToolCall.from_dict(json.loads(json.dumps(call.to_dict()))) == call
    same = ToolCall("2", "web.fetch", {"a": [1, {"b": None}]})
    assert call.get_idempotency_key() == same.get_idempotency_key()
    assert len(call.get_idempotency_key() or "") == hashlib.sha256().digest_size * 2
    assert (
        same.get_idempotency_key()
        != ToolCall("2", "web.fetch", {}).get_idempotency_key()
    )
    assert ToolCall("3", "a", {"x": object()}).get_idempotency_key() is None


@pytest.mark.req("processor.budget")
async def test_a_call_that_never_ran_gives_its_cost_back() -> None:
    ran: list[int] = []

    async def work(n: int) -> int:
        ran.append(n)
        return n

    registry = create_registry()
    registry.add(work, cost=2.0)
    processor = ToolProcessor(registry, enable_caching=True)
    calls = [ToolCall(str(n), "work", {"n": n}) for n in (1, "bad", 1, 2, 3)]
    results = await processor.execute(
        calls,
        context=ExecutionContext(budget=4.0),
        return_order="submission",
    )
    codes = [str(result.error_code or "ok") for result in results]
    assert codes == ["ok", "TOOL_VALIDATION_ERROR", "ok", "ok", "BUDGET_EXHAUSTED"]
    assert ran == [1, 2]


@pytest.mark.req("processor.cancelled-times")
async def test_a_tool_that_cancels_itself_has_run_for_a_time() -> None:
    clock = FakeClock()

    async def quits() -> None:
        await clock.sleep(3)
        raise asyncio.CancelledError

    processor = ToolProcessor(create_registry(quits), clock=clock)
    task = asyncio.create_task(processor.execute([ToolCall("1", "quits")]))
    await settle()
    await clock.advance(3)
    (result,) = await task
    assert result.error_code == "TOOL_CANCELLED"
    assert (result.duration, result.attempts) == (3.0, 1)
    assert result.end_time - result.start_time == pytest.approx(3.0)


@pytest.mark.req("processor.limits-options")
def test_limits_can_be_given_as_a_whole() -> None:
    limits = RateLimitOptions(global_limit=3, global_period=1.0)
    processor = ToolProcessor(rate_limits=limits)
    assert processor.options.rate_limit is limits
    assert (
        ToolProcessor(rate_limits=limits, enable_rate_limiting=False).options.rate_limit
        is None
    )
    with pytest.raises(TypeError, match="rate_limits"):
        ToolProcessor(rate_limits=3)  # type: ignore[arg-type]


@pytest.mark.req("processor.keys-shared")
async def test_keys_hold_for_all_processors_that_share_a_state() -> None:
    charges: list[int] = []

    async def charge(amount: int) -> int:
        charges.append(amount)
        return amount

    registry = create_registry()
    registry.add(charge, side_effects="write")
    state = open_backend("memory://")
    for amount, code in ((10, "ok"), (10, "ok"), (99, "TOOL_IDEMPOTENCY_CONFLICT")):
        processor = ToolProcessor(registry, state=state)
        call = ToolCall(None, "charge", {"amount": amount}, idempotency_key="k1")
        (result,) = await processor.execute([call])
        await processor.close()
        assert str(result.error_code or "ok") == code
    assert charges == [10]
