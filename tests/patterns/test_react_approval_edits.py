"""Approvals that change a call, and approvals that come later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.approval import (
    PARKED,
    ApprovalDecision,
    ApprovalGate,
    ApprovalRequest,
    MemoryApprovalStore,
)
from executionkit.calls import ToolCall
from executionkit.errors import ApprovalPendingError, ErrorCode
from executionkit.observability import MemoryTraceSink
from executionkit.patterns import react_loop
from executionkit.testing import ScriptedProvider, tool_call_reply
from executionkit.tools.guard_rules import ApprovalGuard, SchemaGuard
from executionkit.tools.guards import GuardVerdict
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.types import PatternResult, Tool

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse

SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "maximum": 100}},
    "required": ["amount"],
    "additionalProperties": False,
}


class Bank:
    """Pays, and remembers what it paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.tool = Tool("pay", "Pays.", SCHEMA, self.pay)

    async def pay(self, amount: int) -> str:
        await asyncio.sleep(0)
        self.paid.append(amount)
        return f"paid {amount}"

    def tools(self, gate: ApprovalGate, *, runtime: bool) -> dict[str, Any]:
        """The tools with the gate, by either of the two ways."""
        if not runtime:
            return {"tools": [self.tool], "approval_gate": gate}
        registry = create_registry()
        registry.add(self.tool)
        processor = ToolProcessor(registry, guards=[SchemaGuard(), ApprovalGuard(gate)])
        return {"tools": processor}


def pay(*amounts: Any) -> LLMResponse:
    return tool_call_reply(*(("pay", {"amount": amount}) for amount in amounts))


def texts(result: PatternResult[str]) -> list[str]:
    return [m["content"] for m in result.metadata["messages"] if m["role"] == "tool"]


def changing(arguments: dict[str, Any]) -> ApprovalGate:
    async def decide(request: ApprovalRequest) -> ApprovalDecision:
        return request.approve(arguments=arguments)

    return ApprovalGate(decide)


both_ways = pytest.mark.parametrize("runtime", [False, True], ids=["list", "runtime"])


@pytest.mark.req("approval.edits")
class TestEdits:
    @both_ways
    async def test_what_was_approved_is_what_runs_and_the_model_is_told(
        self, *, runtime: bool
    ) -> None:
        bank = Bank()
        provider = ScriptedProvider([pay(50), "Paid five."])
        result = await react_loop(
            provider, "?", **bank.tools(changing({"amount": 5}), runtime=runtime)
        )
        assert bank.paid == [5]
        (text,) = texts(result)
        assert "changed" in text
        assert "5" in text
        assert text.endswith("paid 5")
        (entry,) = result.metadata["tool_results"]
        assert entry.result == "paid 5"
        assert any("approval" in warning for warning in entry.warnings)
        # What the model said stays what it said.
        calls = [m for m in result.metadata["messages"] if m["role"] == "assistant"]
        assert "50" in str(calls[0])

    @both_ways
    @pytest.mark.parametrize(
        "wrong", [{"amount": "a lot"}, {"amount": 1000}, {}, {"amount": 1, "to": "me"}]
    )
    async def test_changed_arguments_must_fit_the_tool(
        self, wrong: dict[str, Any], *, runtime: bool
    ) -> None:
        bank = Bank()
        provider = ScriptedProvider([pay(50), "x"])
        result = await react_loop(
            provider, "?", **bank.tools(changing(wrong), runtime=runtime)
        )
        assert bank.paid == []
        (entry,) = result.metadata["tool_results"]
        assert not entry.is_success
        assert "argument" in texts(result)[0]

    @both_ways
    async def test_equal_arguments_are_no_change(self, *, runtime: bool) -> None:
        bank = Bank()
        provider = ScriptedProvider([pay(5), "x"])
        result = await react_loop(
            provider, "?", **bank.tools(changing({"amount": 5}), runtime=runtime)
        )
        assert texts(result) == ["paid 5"]

    async def test_each_call_of_a_round_runs_as_it_was_approved(self) -> None:
        async def halve(request: ApprovalRequest) -> ApprovalDecision:
            assert request.arguments is not None
            amount = request.arguments["amount"]
            if amount == 4:
                return request.deny("no fours")
            return request.approve(arguments={"amount": amount // 2})

        bank = Bank()
        result = await react_loop(
            ScriptedProvider([pay(2, 4, 6), "x"]),
            "?",
            [bank.tool],
            approval_gate=ApprovalGate(halve),
            max_tool_concurrency=1,
        )
        assert bank.paid == [1, 3]
        assert texts(result)[1] == "Tool 'pay' blocked by approval: no fours"

    async def test_an_edit_leaves_the_idempotency_key_of_the_old_arguments(
        self,
    ) -> None:
        seen: list[ToolCall] = []

        class Runner:
            async def tool_schemas(self) -> list[Any]:
                return [Bank().tool.to_schema()]

            async def run_calls(self, calls: list[ToolCall]) -> list[Any]:
                from executionkit.calls import make_result

                seen.extend(calls)
                return [make_result(call, "ok") for call in calls]

        await react_loop(
            ScriptedProvider([pay(50), "x"]),
            "?",
            Runner(),  # type: ignore[arg-type]
            approval_gate=changing({"amount": 5}),
        )
        (call,) = seen
        assert call.arguments == {"amount": 5}
        assert call.idempotency_key is None


@pytest.mark.req("approval.parked")
class TestParking:
    @both_ways
    async def test_a_parked_call_ends_the_run_when_the_others_have_run(
        self, *, runtime: bool
    ) -> None:
        async def small_only(request: ApprovalRequest) -> Any:
            assert request.arguments is not None
            return True if request.arguments["amount"] < 10 else PARKED

        store, bank, sink = MemoryApprovalStore(), Bank(), MemoryTraceSink()
        gate = ApprovalGate(small_only, store=store, run_id="r")
        transcript: list[dict[str, Any]] = []
        with pytest.raises(ApprovalPendingError) as caught:
            await react_loop(
                ScriptedProvider([pay(50, 1, 60, 2), "x"]),
                "?",
                **bank.tools(gate, runtime=runtime),
                transcript=transcript,
                trace=sink,
            )
        error = caught.value
        assert sorted(bank.paid) == [1, 2]
        assert [r.arguments["amount"] for r in error.requests] == [50, 60]
        assert error.cost.llm_calls == 1
        assert {r.id for r in await store.pending()} == set(error.approval_ids)
        for approval_id in error.approval_ids:
            assert approval_id in str(error)
        answers = [m["content"] for m in transcript if m["role"] == "tool"]
        assert len(answers) == 4
        assert "approval" in answers[0]
        assert answers[1] == "paid 1"
        ends = [e for e in sink.events if e.kind == "tool_call_end"]
        assert len(ends) == 4
        if not runtime:
            blocked = [e.payload["blocked"] for e in ends]
            assert sorted(blocked) == [False, False, True, True]
            results = error.metadata["tool_results"]
            assert results[0].error_code is ErrorCode.APPROVAL_PENDING

    @both_ways
    async def test_an_answer_lets_the_same_call_run_in_the_same_run(
        self, *, runtime: bool
    ) -> None:
        store, bank = MemoryApprovalStore(), Bank()

        async def run() -> PatternResult[str]:
            gate = ApprovalGate.park_all(store, run_id="r")
            return await react_loop(
                ScriptedProvider([pay(50), "done"]),
                "?",
                **bank.tools(gate, runtime=runtime),
            )

        with pytest.raises(ApprovalPendingError) as caught:
            await run()
        (record,) = await store.pending()
        assert record.id == caught.value.approval_id
        assert record.request.subject == "pay"
        await store.answer(record.id, record.request.approve(arguments={"amount": 7}))
        assert (await run()).value == "done"
        assert bank.paid == [7]
        with pytest.raises(ApprovalPendingError):
            await run()
        assert bank.paid == [7]


@pytest.mark.req("approval.guard")
class TestTheGuard:
    async def test_the_processor_asks_only_for_the_tools_that_were_named(self) -> None:
        asked: list[str] = []

        async def decide(request: ApprovalRequest) -> bool:
            asked.append(request.subject)
            return False

        registry = create_registry()

        async def look(amount: int) -> str:
            return "seen"

        registry.add(Bank().tool)
        registry.add(Tool("look", "", SCHEMA, look))
        guard = ApprovalGuard(ApprovalGate(decide), tools=["pay"])
        async with ToolProcessor(registry, guards=[guard]) as processor:
            looked, paid, unfit = await processor.run_calls(
                [
                    ToolCall("1", "look", {"amount": 1}),
                    ToolCall("2", "pay", {"amount": 1}),
                    ToolCall("3", "pay", {"amount": "x"}),
                ]
            )
        assert looked.result == "seen"
        assert paid.error_code is ErrorCode.TOOL_BLOCKED
        assert "approved" in str(paid.error)
        assert unfit.error_code is ErrorCode.TOOL_VALIDATION_ERROR
        assert asked == ["pay"]  # nobody is asked about what cannot run

    @pytest.mark.parametrize("error", [OSError, ValueError])
    async def test_a_gate_that_fails_lets_nothing_pass(
        self, error: type[Exception]
    ) -> None:
        def decide(_request: ApprovalRequest) -> bool:
            raise error

        bank = Bank()
        result = await react_loop(
            ScriptedProvider([pay(1), "x"]),
            "?",
            **bank.tools(ApprovalGate(decide), runtime=True),
        )
        assert bank.paid == []
        assert "blocked" in texts(result)[0]

    async def test_a_dry_run_asks_nobody(self) -> None:
        def decide(_request: ApprovalRequest) -> bool:
            raise AssertionError

        bank = Bank()
        guard = ApprovalGuard(ApprovalGate(decide))
        registry = create_registry()
        registry.add(bank.tool)
        record = registry.find("pay")
        verdict = guard.peek(ToolCall("1", "pay", {"amount": 1}), record)  # type: ignore[arg-type]
        assert verdict.verdict is GuardVerdict.WARN

    def test_wrong_settings_are_refused(self) -> None:
        with pytest.raises(TypeError, match="`gate`"):
            ApprovalGuard(lambda _r: True)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="`tools`"):
            ApprovalGuard(ApprovalGate.allow_all(), tools="pay")
