"""What users get wrong first, and what first goes wrong for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from executionkit import (
    ApprovalDecision,
    ApprovalGate,
    Bulkhead,
    BulkheadConfig,
    BulkheadFullError,
    BulkheadLimitType,
    LLMResponse,
    MockProvider,
    ProcessorConfig,
    SchedulingConstraints,
    ToolCall,
    ToolCallSpec,
    ToolProcessor,
    ToolResult,
    create_registry,
    react_loop,
)
from executionkit.testing import FakeClock, settle


async def add(a: int, b: int = 1) -> int:
    return a + b


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


async def endless_later() -> list[Any]:
    await asyncio.sleep(0)
    return endless()


@pytest.mark.req("mistakes.results")
@pytest.mark.parametrize("tool", [endless, endless_later])
async def test_a_value_without_end_is_the_failure_of_its_call_alone(tool: Any) -> None:
    tries: list[int] = []

    def counted() -> Any:
        tries.append(1)
        return endless()

    registry = create_registry(add)
    registry.add(tool, "cyclic")
    registry.add(counted)
    processor = ToolProcessor(registry, enable_retries=True, retry_base_delay=0)
    calls = [
        ToolCall("1", "add", {"a": 1}),
        ToolCall("2", "cyclic"),
        ToolCall("3", "counted"),
    ]
    good, bad, other = await processor.execute(calls, return_order="submission")
    assert good.result == 2
    assert bad.error_code == other.error_code == "TOOL_RESULT_ERROR"
    assert tries == [1], "it has run: nobody runs it again for its value"


@pytest.mark.req("mistakes.approval")
async def test_nobody_is_asked_about_arguments_that_do_not_fit() -> None:
    asked: list[Any] = []

    async def approve(request: Any) -> ApprovalDecision:
        asked.append(dict(request.payload) if hasattr(request, "payload") else request)
        return ApprovalDecision(True)

    def reply(arguments: dict[str, Any]) -> LLMResponse:
        return LLMResponse(content="", tool_calls=(ToolCall("1", "add", arguments),))

    provider = MockProvider([reply({"b": 1}), reply({"a": 1}), "done"])
    await react_loop(
        provider,
        "add",
        tools=ToolProcessor(create_registry(add)),
        approval_gate=ApprovalGate(approve),
    )
    assert len(asked) == 1


@pytest.mark.req("mistakes.batch")
async def test_a_row_without_a_call_is_a_failed_row_and_the_batch_goes_on() -> None:
    rows = [{"tool": "add", "arguments": {"a": 1}}, 5, None, "no call here", {"x": 1},
            {"tool": "add", "arguments": {"a": 2}}]  # fmt: skip
    seen: list[int] = []
    results = [
        result
        async for result in ToolProcessor(create_registry(add)).process_batch(
            rows, on_progress=lambda progress: seen.append(progress.done)
        )
    ]
    assert len(results) == len(rows) == seen[-1]
    assert [r.result for r in results if r.is_success] == [2, 3]
    assert any("item 1" in (r.error or "") for r in results)


@pytest.mark.req("mistakes.batch")
@pytest.mark.parametrize("calls", [{"tool": "add"}, "text", ToolCall("1", "add")])
async def test_one_call_is_no_source_of_calls(calls: Any) -> None:
    processor = ToolProcessor(create_registry(add))
    with pytest.raises(TypeError, match="use `process`"):
        async for _ in processor.process_batch(calls):
            pass


@pytest.mark.req("mistakes.batch")
async def test_a_source_that_is_left_is_closed() -> None:
    closed: list[str] = []

    def rows() -> Iterator[Any]:
        try:
            while True:
                yield ToolCall(None, "add", {"a": 1})
        finally:
            closed.append("sync")

    async def later() -> AsyncIterator[Any]:
        try:
            while True:
                await asyncio.sleep(0)
                yield ToolCall(None, "add", {"a": 1})
        finally:
            closed.append("async")

    processor = ToolProcessor(create_registry(add))
    for source in (rows(), later()):
        async with aclosing(processor.process_batch(source)) as stream:
            async for _ in stream:
                break
    assert closed == ["sync", "async"]


@pytest.mark.req("mistakes.arguments")
async def test_what_is_no_call_or_context_is_refused_with_a_hint() -> None:
    processor = ToolProcessor(create_registry(add))
    wrong: Any = [{"tool": "add"}]
    with pytest.raises(TypeError, match="`process` reads"):
        await processor.execute(wrong)
    context: Any = {"user_id": "x"}
    with pytest.raises(TypeError, match="ExecutionContext"):
        await processor.process([], context=context)
    arguments: Any = '{"a": 1}'
    with pytest.raises(TypeError, match="must be a dict"):
        ToolCall("1", "add", arguments)
    config: Any = ProcessorConfig()
    with pytest.raises(TypeError, match="create_processor"):
        ToolProcessor(create_registry(add), config)


@pytest.mark.req("mistakes.slots")
async def test_a_slot_that_is_used_twice_at_once_is_refused_and_none_is_lost() -> None:
    bulkhead = Bulkhead(BulkheadConfig(default_limit=5))
    slot = bulkhead.acquire("x")
    async with slot:
        with pytest.raises(RuntimeError, match="one use"):
            async with slot:
                pass
    async with slot:
        pass
    stats = bulkhead.get_stats("x")
    assert stats is not None
    assert stats.current_active == 0


@pytest.mark.req("mistakes.slots")
@pytest.mark.parametrize(
    "config",
    [
        BulkheadConfig(global_limit=1, max_queue_depth=2),
        BulkheadConfig(namespace_limits={"default": 1}, max_queue_depth=2),
    ],
)
async def test_the_queue_of_every_level_is_bounded(config: BulkheadConfig) -> None:
    bulkhead = Bulkhead(config)
    go = asyncio.Event()

    async def hold(tool: str) -> str:
        async with bulkhead.acquire(tool):
            await go.wait()
        return tool

    tasks = [asyncio.create_task(hold(f"t{number}")) for number in range(8)]
    await settle()
    go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    full = [error for error in outcomes if isinstance(error, BulkheadFullError)]
    assert len(full) == 5
    assert {error.limit_type for error in full} == {BulkheadLimitType.QUEUE_DEPTH}


@pytest.mark.req("mistakes.late")
async def test_a_value_that_came_too_late_says_so() -> None:
    clock = FakeClock()

    async def stubborn() -> str:
        try:
            await clock.sleep(10)
        except asyncio.CancelledError:
            return "anyway"
        return "in time"

    processor = ToolProcessor(create_registry(stubborn), default_timeout=1, clock=clock)
    task = asyncio.create_task(processor.execute([ToolCall("1", "stubborn")]))
    await settle()
    await clock.advance(1)
    (result,) = await task
    assert result.result == "anyway"
    assert "told to stop" in " ".join(result.warnings)


@pytest.mark.req("mistakes.plans")
async def test_a_plan_that_left_everything_out_is_no_success() -> None:
    result = await ToolProcessor(create_registry(add)).execute_plan(
        [ToolCallSpec("x", "add", {"a": 1})],
        constraints=SchedulingConstraints(deadline_ms=1000),
    )
    assert result.skipped == ("x",)
    assert not result.is_success


class Colour(Enum):
    RED = "red"


@dataclass
class Row:
    at: date
    price: Decimal


@pytest.mark.req("mistakes.rows")
def test_rows_of_a_database_can_be_read_by_a_model() -> None:
    value = {
        "rows": [Row(date(2026, 1, 2), Decimal("1.50"))],
        "when": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "id": UUID(int=7),
        "path": PurePosixPath("/a/b"),
        "colour": Colour.RED,
    }
    assert json.loads(ToolResult("t", value).to_observation()) == {
        "rows": [{"at": "2026-01-02", "price": "1.50"}],
        "when": "2026-01-02T03:04:00+00:00",
        "id": "00000000-0000-0000-0000-000000000007",
        "path": "/a/b",
        "colour": "red",
    }
    with pytest.raises(TypeError, match="cannot be written"):
        ToolResult("t", dict).to_observation()
