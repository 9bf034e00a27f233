"""Tools and arguments of a tool loop that cannot work: refused, or told clearly."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from executionkit import (
    JsonlTraceSink,
    LLMResponse,
    MockProvider,
    Tool,
    ToolCall,
    react_loop,
)
from executionkit.patterns._tool_list import ToolListRunner
from executionkit.testing import ScriptedProvider, tool_call_reply
from executionkit.tools.registry import create_registry

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def double(a: int = 0) -> int:
    return 2 * a


TOOL = Tool("double", "", SCHEMA, double)


@pytest.mark.req("tools.checked-when-made")
class TestTheMakingOfATool:
    @pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "\ta"])
    def test_a_name_is_not_empty_and_has_no_white_space(self, name: str) -> None:
        with pytest.raises(ValueError, match="`name` of a tool") as caught:
            Tool(name, "", SCHEMA, double)
        assert repr(name) in str(caught.value)

    @pytest.mark.parametrize("name", ["a.b", "a-b", "ns__a", "größe", "a/b"])
    def test_any_other_name_is_allowed(self, name: str) -> None:
        assert Tool(name, "", SCHEMA, double).name == name

    def test_a_name_is_a_text(self) -> None:
        with pytest.raises(TypeError, match="`name` of a tool must be a str"):
            Tool(3, "", SCHEMA, double)  # type: ignore[arg-type]

    @pytest.mark.parametrize("parameters", [3, [], "object", None])
    def test_parameters_are_a_mapping(self, parameters: Any) -> None:
        with pytest.raises(TypeError, match="`parameters` of the tool 't'"):
            Tool("t", "", parameters, double)

    @pytest.mark.parametrize("execute", [None, 3, "double"])
    def test_execute_can_be_called(self, execute: Any) -> None:
        with pytest.raises(TypeError, match="`execute` of the tool 't'"):
            Tool("t", "", SCHEMA, execute)

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "3", [1]])
    def test_a_time_limit_is_above_zero(self, timeout: Any) -> None:
        with pytest.raises(ValueError, match="'t' must be > 0 seconds, or None"):
            Tool("t", "", SCHEMA, double, timeout)

    @pytest.mark.parametrize("timeout", [None, 1, 0.5, float("inf")])
    def test_any_other_time_limit_is_allowed(self, timeout: float | None) -> None:
        assert Tool("t", "", SCHEMA, double, timeout).timeout == timeout


async def run(runner: ToolListRunner, **arguments: Any) -> str:
    async with asyncio.timeout(5):
        result = await runner.run_call(ToolCall("c", "double", arguments))
    assert result.error is not None
    return result.error


@pytest.mark.req("tools.failure-logged")
class TestAToolThatRaises:
    async def test_the_first_failure_is_logged_with_its_traceback(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken() -> None:
            msg = "disk on fire near blue-giraffe-17"
            raise OSError(msg)

        tool = Tool("double", "", {}, broken)
        runner = ToolListRunner([tool], secrets=("blue-giraffe-17",))
        with caplog.at_level(logging.DEBUG, logger="executionkit"):
            assert await run(runner) == "Tool 'double' failed: OSError"
            assert await run(runner) == "Tool 'double' failed: OSError"
        assert [item.levelname for item in caplog.records] == ["WARNING", "DEBUG"]
        said = caplog.records[0].getMessage()
        assert "tool 'double' failed" in said
        assert "disk on fire" in said
        assert "in broken" in said
        assert "blue-giraffe-17" not in caplog.text

    async def test_a_huge_message_is_not_logged_whole(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken() -> None:
            raise OSError("x" * 100_000)

        await run(ToolListRunner([Tool("double", "", {}, broken)]))
        assert len(caplog.records[0].getMessage()) < 21_000

    async def test_a_function_that_names_its_parameters_otherwise_is_told(self) -> None:
        tool = Tool("double", "", SCHEMA, lambda n, key="s3cr3t": [n, key])
        error = await run(ToolListRunner([tool]), a=1)
        assert error == (
            "Tool 'double' failed: TypeError: its function (n, key) does not fit its "
            "`parameters`: missing a required argument: 'n'"
        )


@pytest.mark.req("arguments.up-front")
class TestArgumentsOfReactLoop:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"provider": None}, "`provider` must be a provider"),
            ({"provider": MockProvider}, "`MockProvider(...)`"),
            ({"prompt": 3}, "`prompt` must be a str, got 3"),
            ({"prompt": [{"role": "user", "content": "?"}]}, "messages="),
            ({"tools": TOOL}, "pass [double]"),
            ({"tools": None}, "`tools` must be a list of `Tool`s"),
            ({"tools": "double"}, "`tools` must be a list of `Tool`s"),
            ({"tools": [double]}, "`tools` must hold `Tool` objects, got function"),
            ({"tools": [double]}, "`ToolProcessor(create_registry(double))`"),
            ({"tools": create_registry(double)}, "`ToolProcessor(registry)` runs"),
            ({"max_cost": 5}, "`TokenUsage(llm_calls=5)`"),
            ({"retry": 3}, "`RetryConfig(max_retries=3)`"),
            ({"trace": "file.jsonl"}, "`JsonlTraceSink(path)`"),
            ({"on_checkpoint": 3}, "`on_checkpoint` must be callable, got 3"),
            ({"on_progress": 3}, "`on_progress` must be callable, got 3"),
            ({"summarizer": "short"}, "`summarizer` must be callable, got 'short'"),
            ({"tool_timeout": "10"}, "`tool_timeout` must be a number of seconds"),
            ({"tool_timeout": True}, "`tool_timeout` must be a number of seconds"),
            ({"tool_call_limits": 5}, "use `max_tool_calls`"),
            ({"messages": "hello", "prompt": None}, "`messages` must be a list"),
            ({"trace": JsonlTraceSink}, "`JsonlTraceSink(...)`"),
            ({"transcript": ()}, "`transcript` must be a list"),
        ],
    )
    async def test_the_wrong_kind_is_refused_before_any_call(
        self, given: dict[str, Any], said: str
    ) -> None:
        provider = MockProvider(["never asked"])
        arguments: dict[str, Any] = {"provider": provider, "prompt": "?", **given}
        with pytest.raises(TypeError) as caught:
            await react_loop(**arguments)
        assert said in str(caught.value)
        assert provider.call_count == 0


@pytest.mark.req("react.counts-of-calls")
async def test_calls_made_are_those_asked_for_and_rejected_those_over_a_limit() -> None:
    replies: list[str | LLMResponse] = [
        tool_call_reply(("double", {"a": "x"}), ("missing", {}), ("double", {"a": 1})),
        "done",
    ]
    result = await react_loop(
        ScriptedProvider(replies), "?", [TOOL], tool_call_limits={"double": 1}
    )
    assert result.metadata["tool_calls_made"] == ["double", "missing", "double"]
    assert result.metadata["rejected_tool_calls"] == 1
