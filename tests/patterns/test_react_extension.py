"""The two extension points, as the architecture document prints them."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Literal

import pytest

from executionkit import (
    Kit,
    LLMProvider,
    LLMResponse,
    PatternResult,
    Tool,
    ToolCall,
    ToolCallingProvider,
    checked_complete,
    consensus,
    pipe,
    react_loop,
    refine_loop,
)
from executionkit.cost import CostTracker
from executionkit.errors import BudgetExhaustedError
from executionkit.types import TokenUsage

USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


class MyProvider:
    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        last = messages[-1]
        if tools and last["role"] == "user":
            return LLMResponse("", (ToolCall("c", "clock", {}),), usage=USAGE)
        return LLMResponse(f"{last['content']}!", usage=USAGE)


class MyToolProvider(MyProvider):
    supports_tools: Literal[True] = True


async def my_pattern(
    provider: LLMProvider,
    prompt: str,
    **kwargs: Any,
) -> PatternResult[str]:
    tracker = CostTracker()
    messages = [{"role": "user", "content": prompt}]
    response = await checked_complete(
        provider, messages, tracker, kwargs.get("max_cost"), None
    )
    return PatternResult(
        response.content, None, tracker.to_usage(), MappingProxyType({"own": 1})
    )


CLOCK = Tool("clock", "", {"type": "object"}, lambda: "noon")


@pytest.mark.req("react.extension-points")
class TestExtensionPoints:
    def test_one_method_makes_a_provider(self) -> None:
        assert isinstance(MyProvider(), LLMProvider)
        assert not isinstance(MyProvider(), ToolCallingProvider)
        assert isinstance(MyToolProvider(), ToolCallingProvider)

    async def test_the_patterns_take_it(self) -> None:
        assert (await consensus(MyProvider(), "a")).value == "a!"
        made = await refine_loop(MyProvider(), "7", max_iterations=0)
        assert made.value == "7!"

    async def test_the_tool_loop_takes_it_with_its_mark(self) -> None:
        with pytest.raises(TypeError, match="supports_tools = True"):
            await react_loop(MyProvider(), "?", [CLOCK])
        result = await react_loop(MyToolProvider(), "?", [CLOCK])
        assert result.value == "noon!"
        assert result.cost == TokenUsage(20, 4, 2)

    async def test_a_mark_that_is_merely_truthy_is_none(self) -> None:
        provider: Any = type("Odd", (MyProvider,), {"supports_tools": "yes"})()
        with pytest.raises(TypeError, match="supports_tools"):
            await react_loop(provider, "?", [CLOCK])

    async def test_a_pattern_of_ones_own_works_alone_and_in_pipes(self) -> None:
        assert (await my_pattern(MyProvider(), "a")).value == "a!"
        result = await pipe(MyProvider(), "a", my_pattern, consensus, my_pattern)
        assert result.value == "a!!!"
        assert result.metadata["own"] == 1
        kit = Kit(MyProvider())
        await kit.pipe("a", my_pattern, my_pattern)
        assert kit.usage == TokenUsage(20, 4, 2)

    async def test_the_budget_of_a_pipe_reaches_it(self) -> None:
        with pytest.raises(BudgetExhaustedError) as caught:
            await pipe(
                MyProvider(),
                "a",
                my_pattern,
                my_pattern,
                max_budget=TokenUsage(llm_calls=1),
            )
        assert caught.value.cost == TokenUsage(10, 2, 1)
