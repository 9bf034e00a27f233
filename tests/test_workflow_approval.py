"""Steps that wait for an answer, or run with changed inputs."""

from __future__ import annotations

from typing import Any

import pytest

from executionkit.approval import (
    PARKED,
    ApprovalDecision,
    ApprovalGate,
    ApprovalRequest,
    MemoryApprovalStore,
)
from executionkit.engine.retry import RetryConfig
from executionkit.errors import ApprovalPendingError, PatternError
from executionkit.patterns import react_loop
from executionkit.planning import Plan, PlanStep
from executionkit.testing import ScriptedProvider, tool_call_reply
from executionkit.types import Tool
from executionkit.workflow import Step, Workflow


class Log:
    """Steps that note what they were called with."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.given: dict[str, Any] = {}

    def step(self, name: str, *needs: str, **more: Any) -> Step:
        def run(context: dict[str, Any]) -> str:
            self.ran.append(name)
            self.given[name] = context
            return name.upper()

        return Step(name, run, needs, **more)


def park(*names: str) -> Any:
    async def decide(request: ApprovalRequest) -> Any:
        return PARKED if request.subject in names else True

    return decide


@pytest.mark.req("approval.steps")
class TestWorkflow:
    @pytest.mark.parametrize("policy", ["stop", "continue", "cancel"])
    async def test_what_does_not_wait_goes_on(self, policy: Any) -> None:
        log, store = Log(), MemoryApprovalStore()
        steps = [
            log.step("look"),
            log.step("pay", "look"),
            log.step("mail", "pay"),
            log.step("note", "look"),
            log.step("file", "note"),
            log.step("drop"),
        ]
        workflow = Workflow(steps, on_failure=policy)
        gate = ApprovalGate(park("pay", "drop"), store=store, run_id="r")
        with pytest.raises(ApprovalPendingError) as caught:
            await workflow.run(approval_gate=gate)
        error = caught.value
        assert sorted(log.ran) == ["file", "look", "note"]
        assert {r.subject for r in error.requests} == {"pay", "drop"}
        assert error.metadata["waiting"] == ("pay", "drop")
        assert error.metadata["not_run"] == ("pay", "mail", "drop")
        assert error.metadata["failed"] == ()
        for record in await store.pending():
            await store.answer(record.id, ApprovalDecision(approved=True))
        again = ApprovalGate(park("pay", "drop"), store=store, run_id="r")
        result = await workflow.run(
            approval_gate=again, resume_from=error.metadata["checkpoint"]
        )
        assert sorted(log.ran) == sorted(step.name for step in steps)
        assert result.outputs["mail"] == "MAIL"

    @pytest.mark.req("approval.bound")
    async def test_a_yes_is_for_the_inputs_it_was_given_for(self) -> None:
        store = MemoryApprovalStore()

        def workflow(price: int) -> Workflow:
            return Workflow(
                [
                    Step("price", lambda _c: price),
                    Step("pay", lambda c: f"paid {c['price']}", ("price",)),
                ]
            )

        def gate() -> ApprovalGate:
            return ApprovalGate(park("pay"), store=store, run_id="r")

        with pytest.raises(ApprovalPendingError) as caught:
            await workflow(5).run(approval_gate=gate())
        (request,) = caught.value.requests
        assert request.arguments == {"price": 5}
        await store.answer(request.id, request.approve())
        with pytest.raises(ApprovalPendingError):
            await workflow(6).run(approval_gate=gate())
        result = await workflow(5).run(approval_gate=gate())
        assert result.outputs["pay"] == "paid 5"

    @pytest.mark.req("approval.edits")
    async def test_a_step_runs_with_the_inputs_that_were_approved(self) -> None:
        log, attempts = Log(), []

        def flaky(context: dict[str, Any]) -> Any:
            attempts.append(context)
            if len(attempts) < 3:
                raise OSError("once more")
            return context["price"]

        async def decide(request: ApprovalRequest) -> Any:
            if request.subject == "pay":
                return request.approve(arguments={"price": [3]})
            return True

        workflow = Workflow(
            [
                Step("price", lambda _c: [5]),
                Step(
                    "pay",
                    flaky,
                    ("price",),
                    retry=RetryConfig(
                        max_retries=3, base_delay=0, max_delay=0, retryable=(OSError,)
                    ),
                ),
                log.step("mail", "pay"),
            ]
        )
        result = await workflow.run(approval_gate=ApprovalGate(decide))
        assert attempts == [{"price": [3]}] * 3
        assert result.outputs["pay"] == [3]
        assert log.given["mail"] == {"price": [5], "pay": [3]}

    async def test_a_pattern_inside_a_step_can_park_too(self) -> None:
        store, paid, log = MemoryApprovalStore(), [], Log()

        async def pay() -> str:
            paid.append(1)
            return "ok"

        async def agent(_context: dict[str, Any]) -> Any:
            return await react_loop(
                ScriptedProvider([tool_call_reply(("pay", {})), "done"]),
                "?",
                [Tool("pay", "", {"type": "object"}, pay)],
                approval_gate=ApprovalGate.park_all(store, run_id="r"),
            )

        workflow = Workflow(
            [
                Step(
                    "agent",
                    agent,
                    retry=RetryConfig(max_retries=3, retryable=(Exception,)),
                    may_fail=True,
                ),
                log.step("next", "agent"),
                log.step("other"),
            ]
        )
        with pytest.raises(ApprovalPendingError) as caught:
            await workflow.run()
        assert log.ran == ["other"]
        assert caught.value.cost.llm_calls == 1
        (record,) = await store.pending()
        await store.answer(record.id, record.request.approve())
        assert (await workflow.run()).outputs["agent"] == "done"
        assert paid == [1]

    async def test_a_failure_beside_a_parked_step_is_what_is_raised(self) -> None:
        def fail(_context: dict[str, Any]) -> None:
            msg = "broken"
            raise PatternError(msg)

        workflow = Workflow([Step("pay", lambda _c: 1), Step("fail", fail)])
        with pytest.raises(PatternError, match="broken"):
            await workflow.run(approval_gate=ApprovalGate(park("pay")))


@pytest.mark.req("approval.steps")
class TestPlan:
    async def test_a_plan_stops_at_the_step_that_waits(self) -> None:
        ran: list[str] = []

        def step(name: str) -> PlanStep:
            def run(context: dict[str, Any]) -> str:
                ran.append(f"{name} {sorted(context)}")
                return name

            return PlanStep(name, f"do {name}", run)

        plan, store = Plan([step("a"), step("b"), step("c")]), MemoryApprovalStore()

        def gate() -> ApprovalGate:
            return ApprovalGate(park("b"), store=store, run_id="r")

        with pytest.raises(ApprovalPendingError) as caught:
            await plan.execute(approval_gate=gate())
        assert ran == ["a []"]
        assert caught.value.metadata["waiting"] == ("b",)
        (record,) = await store.pending()
        assert record.request.action == "plan_step"
        assert record.request.metadata["instruction"] == "do b"
        await store.answer(
            record.id, record.request.approve(arguments={"a": 1, "z": 2})
        )
        await plan.execute(approval_gate=gate())
        assert ran[1:] == ["a []", "b ['a', 'z']", "c ['a', 'b']"]
