"""What users' type checkers must see. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import ModuleType
from typing import Any, assert_type

from executionkit._clock import Clock, SystemClock, get_clock, use_clock
from executionkit.calls import (
    CallProblem,
    ErrorInfo,
    ToolCall,
    ToolResult,
    ToolRunner,
    render_result,
)
from executionkit.errors import (
    ErrorCategory,
    ErrorCode,
    ExecutionKitError,
    LLMError,
    MissingExtraError,
    PatternError,
    ProviderError,
    RateLimitError,
    ToolProcessorError,
    require,
)
from executionkit.testing import FakeClock
from executionkit.types import (
    PatternResult,
    StreamingPatternResult,
    TokenUsage,
    Tool,
    freeze,
    thaw,
)


async def weather(city: str, *, days: int = 1) -> dict[str, Any]:
    return {"city": city, "days": days}


def blocking(city: str) -> str:
    return city


def values() -> None:
    assert_type(PatternResult("x"), PatternResult[str])
    assert_type(PatternResult([1]).value, list[int])
    assert_type(PatternResult[float](1.5).value, float)
    assert_type(PatternResult("x").score, float | None)
    assert_type(PatternResult("x").cost, TokenUsage)
    assert_type(PatternResult("x").metadata, Mapping[str, Any])
    assert_type(TokenUsage(1, 2, 3) + TokenUsage(cache_read_tokens=1), TokenUsage)
    assert_type(freeze({"a": 1}), Any)
    assert_type(thaw({"a": 1}), Any)


def values_refuse() -> None:
    result = PatternResult("x")
    result.value = "y"  # type: ignore[misc]
    result.metadata["a"] = 1  # type: ignore[index]
    TokenUsage(1, 2, 3, 4)  # type: ignore[call-arg]
    TokenUsage() + 1  # type: ignore[operator]
    ToolCall("i", "t").arguments["a"] = 1  # type: ignore[index]


def tools() -> None:
    schema: dict[str, Any] = {"type": "object"}
    assert_type(Tool("t", "d", schema, weather).to_schema(), dict[str, Any])
    assert_type(Tool("t", "d", schema, blocking).timeout, float | None)
    Tool("t", "d", schema, weather, None, tags=frozenset({"a"}), idempotent=True)
    Tool("t", "d", schema, weather, 5.0, "namespace")  # type: ignore[call-arg]


def calls(call: ToolCall, problem: CallProblem) -> None:
    assert_type(call.tool, str)
    assert_type(call.arguments, Mapping[str, Any])
    assert_type(ToolCall(tool="t").id, str)
    assert_type(problem.to_observation(), str)
    assert_type(problem.position, int | None)
    assert_type(render_result([1]), str)


def results(result: ToolResult, call: ToolCall) -> None:
    assert_type(result.error_info, ErrorInfo | None)
    assert_type(result.error_code, ErrorCode | None)
    assert_type(result.error_category, ErrorCategory | None)
    assert_type(ToolResult.failure(call, TimeoutError()), ToolResult)
    assert_type(result.to_dict(), dict[str, Any])


class Runner:
    """A user's own runner satisfies the protocol by its shape."""

    async def tool_schemas(self) -> list[dict[str, Any]]:
        return []

    async def run_calls(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return [ToolResult(call.name, call_id=call.id) for call in calls]


def runner() -> ToolRunner:
    return Runner()


def errors(error: ExecutionKitError) -> None:
    assert_type(error.code, ErrorCode)
    assert_type(error.category, ErrorCategory)
    assert_type(error.cost, TokenUsage)
    assert_type(error.retry_after, float | None)
    assert_type(error.attempts, int)
    if isinstance(error, ToolProcessorError):
        assert_type(error.retry_after_ms, int | None)
        assert_type(error.details, dict[str, Any])
    tree: list[type[ExecutionKitError]] = [LLMError, PatternError, ToolProcessorError]
    model: list[type[LLMError]] = [RateLimitError, ProviderError]
    missing: type[ImportError] = MissingExtraError
    del tree, model, missing
    assert_type(require("json", extra="x"), ModuleType)


def clocks() -> None:
    own: list[Clock] = [SystemClock(), FakeClock(), get_clock()]
    with use_clock(own[0]) as clock:
        assert_type(clock, Clock)
    with FakeClock(auto=True).installed() as fake:
        assert_type(fake, FakeClock)
        assert_type(fake.pending, int)


async def streams(result: StreamingPatternResult) -> None:
    async with result as same:
        assert_type(same, StreamingPatternResult)
        async for part in same:
            assert_type(part, str)
    stream: AsyncIterator[str] = result.text_stream
    assert_type(result.cost, TokenUsage)
    del stream
