"""The tool loop over somebody else's runner: its contract, and runners that break it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from executionkit.approval import ApprovalGate
from executionkit.calls import ErrorInfo, ToolCall, ToolResult
from executionkit.errors import (
    BudgetExhaustedError,
    ErrorCode,
    ExecutionKitError,
    ToolCircuitOpenError,
    ToolProcessorError,
)
from executionkit.patterns import react_loop
from executionkit.testing import FakeClock, ScriptedProvider, tool_call_reply
from executionkit.types import PatternResult, Tool

LIMIT = 5
OBJECT: dict[str, Any] = {"type": "object"}


class Runner:
    """Runs each call by a function of the test, and remembers the calls."""

    def __init__(self, work: Callable[[ToolCall], Any]) -> None:
        self.work = work
        self.calls: list[ToolCall] = []

    async def tool_schemas(self) -> list[dict[str, Any]]:
        names = ("find", "shop_find")
        return [Tool(name, "", OBJECT, print).to_schema() for name in names]

    async def run_calls(self, calls: Sequence[ToolCall]) -> Any:
        self.calls.extend(calls)
        (call,) = calls
        made = self.work(call)
        if asyncio.iscoroutine(made):
            made = await made
        return made


def find(*names: str) -> Any:
    return tool_call_reply(*((name, {}) for name in names or ("find",)))


def found(call: ToolCall) -> list[ToolResult]:
    return [ToolResult(call.name, "found", call_id=call.id)]


def texts(result: PatternResult[str]) -> list[str]:
    return [m["content"] for m in result.metadata["messages"] if m["role"] == "tool"]


@pytest.mark.req("react.any-runner")
class TestAnyRunner:
    async def test_its_tools_are_offered_and_its_results_shown(self) -> None:
        runner = Runner(found)
        provider = ScriptedProvider([find("find", "shop_find"), "x"])
        result = await react_loop(provider, "?", runner)
        offered = [
            tool["function"]["name"] for tool in provider.requests[0].tools or ()
        ]
        assert offered == ["find", "shop_find"]
        assert texts(result) == ["found", "found"]
        assert result.metadata["tools_offered"] == 2

    async def test_dotted_names_on_offer_are_sent_back_as_they_are(self) -> None:
        class Dotted(Runner):
            async def tool_schemas(self) -> list[dict[str, Any]]:
                return [Tool("shop.find", "", OBJECT, print).to_schema()]

        provider = ScriptedProvider([find("shop.find"), "x"])
        await react_loop(provider, "?", Dotted(found))
        call = provider.requests[1].messages[1]["tool_calls"][0]
        assert call["function"]["name"] == "shop.find"

    async def test_calls_of_a_round_run_at_the_same_time(self) -> None:
        together = asyncio.Barrier(2)

        async def work(call: ToolCall) -> list[ToolResult]:
            await together.wait()
            return found(call)

        async with asyncio.timeout(LIMIT):
            result = await react_loop(
                ScriptedProvider([find("find", "find"), "x"]), "?", Runner(work)
            )
        assert texts(result) == ["found", "found"]

    async def test_a_tool_that_is_not_on_offer_never_reaches_it(self) -> None:
        runner = Runner(found)
        asked: list[str] = []

        async def decide(request: Any) -> bool:
            asked.append(request.subject)
            return True

        result = await react_loop(
            ScriptedProvider([find("admin.delete"), "x"]),
            "?",
            runner,
            approval_gate=ApprovalGate(decide),
        )
        assert (runner.calls, asked) == ([], [])
        assert texts(result) == [
            "Error: Unknown tool 'admin.delete'. Available tools: find, shop_find"
        ]

    async def test_what_is_denied_never_reaches_it(self) -> None:
        runner = Runner(found)
        gate = ApprovalGate.deny_all()
        await react_loop(
            ScriptedProvider([find(), "x"]), "?", runner, approval_gate=gate
        )
        assert runner.calls == []

    async def test_limits_hold(self) -> None:
        runner = Runner(found)
        result = await react_loop(
            ScriptedProvider([find(*["find"] * 5), "x"]),
            "?",
            runner,
            tool_call_limits={"find": 2},
        )
        assert len(runner.calls) == 2
        assert result.metadata["rejected_tool_calls"] == 3

    async def test_the_time_limit_includes_its_queue(
        self, auto_clock: FakeClock
    ) -> None:
        async def work(call: ToolCall) -> list[ToolResult]:
            await auto_clock.sleep(60)
            return found(call)

        result = await react_loop(
            ScriptedProvider([find(), "x"]), "?", Runner(work), tool_timeout=5
        )
        assert texts(result) == ["Tool execution timed out after 5s"]
        (made,) = result.metadata["tool_results"]
        assert made.error_code is ErrorCode.TOOL_TIMEOUT

    async def test_progress_is_for_lists_of_tools(self) -> None:
        with pytest.raises(ValueError, match="on_progress"):
            await react_loop(
                ScriptedProvider([]), "?", Runner(found), on_progress=print
            )


@pytest.mark.req("react.broken-runner")
class TestBrokenRunners:
    @pytest.mark.parametrize(
        ("made", "got"),
        [
            ([], "0 results"),
            ([ToolResult("find"), ToolResult("find")], "2 results"),
            (None, "NoneType"),
            (["found"], "a str"),
            ("found", "a str"),
            ({"find": 1}, "a dict"),
        ],
    )
    async def test_a_wrong_answer_is_said_and_nothing_is_lost(
        self, made: Any, got: str, strictly: Callable[[Any], None]
    ) -> None:
        transcript: list[dict[str, Any]] = []
        provider = ScriptedProvider([find("shop_find"), find("find", "shop_find")])

        def work(call: ToolCall) -> Any:
            return found(call) if call.name == "shop_find" else made

        with pytest.raises(ToolProcessorError, match=got) as caught:
            await react_loop(provider, "?", Runner(work), transcript=transcript)
        assert "Runner.run_calls()" in str(caught.value)
        assert caught.value.cost.llm_calls == 2
        assert caught.value.metadata["tool_results"][0].result == "found"
        strictly(transcript)
        assert len(transcript) == 6

    async def test_what_it_raises_is_a_result(self) -> None:
        def work(call: ToolCall) -> Any:
            raise {"find": OSError, "shop_find": ToolCircuitOpenError}[call.name](
                *(() if call.name == "find" else ("shop_find", 3))
            )

        result = await react_loop(
            ScriptedProvider([find("find", "shop_find"), "x"]), "?", Runner(work)
        )
        plain, typed = result.metadata["tool_results"]
        assert plain.error == "Tool 'find' failed: OSError"
        assert typed.error_code is ErrorCode.TOOL_CIRCUIT_OPEN

    async def test_a_group_of_failures_is_a_result(self) -> None:
        def work(_call: ToolCall) -> Any:
            msg = "several"
            raise ExceptionGroup(msg, [OSError(), ValueError()])

        result = await react_loop(ScriptedProvider([find(), "x"]), "?", Runner(work))
        assert texts(result) == ["Tool 'find' failed: ExceptionGroup"]

    async def test_a_cancellation_of_its_own_is_a_result(self) -> None:
        def work(_call: ToolCall) -> Any:
            raise asyncio.CancelledError

        result = await react_loop(
            ScriptedProvider([find("find", "find"), "x"]), "?", Runner(work)
        )
        assert texts(result) == ["Tool 'find' failed: CancelledError"] * 2

    async def test_a_policy_that_must_stop_the_run_does(self) -> None:
        def work(_call: ToolCall) -> Any:
            msg = "no budget for tools"
            raise BudgetExhaustedError(msg)

        with pytest.raises(BudgetExhaustedError, match="for tools") as caught:
            await react_loop(ScriptedProvider([find(), "x"]), "?", Runner(work))
        assert caught.value.cost.llm_calls == 1
        assert caught.value.metadata["rounds"] == 1

    async def test_a_result_that_is_no_json_is_told_not_raised(
        self, strictly: Callable[[Any], None]
    ) -> None:
        def work(call: ToolCall) -> Any:
            return [ToolResult(call.name, object())]

        provider = ScriptedProvider([find(), "x"])
        result = await react_loop(provider, "?", Runner(work))
        assert texts(result)[0].startswith("Tool 'find' returned object, which")
        strictly(provider.requests[1].messages)

    async def test_a_failed_result_shows_its_error(self) -> None:
        def work(call: ToolCall) -> Any:
            info = ErrorInfo.from_code(ErrorCode.TOOL_RATE_LIMITED, "slow down")
            return [ToolResult(call.name, error_info=info)]

        result = await react_loop(ScriptedProvider([find(), "x"]), "?", Runner(work))
        assert texts(result) == ["slow down"]

    async def test_schemas_that_fail_cost_nothing(self) -> None:
        class Broken(Runner):
            async def tool_schemas(self) -> list[dict[str, Any]]:
                msg = "registry is down"
                raise ExecutionKitError(msg)

        provider = ScriptedProvider(["x"])
        with pytest.raises(ExecutionKitError, match="registry"):
            await react_loop(provider, "?", Broken(found))
        assert provider.requests == []
