"""The processor over the default registry, and what one can read off any processor."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from executionkit import (
    BulkheadConfig,
    RetryConfig,
    ToolCall,
    ToolProcessor,
    reset_registry,
    tool,
)
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
