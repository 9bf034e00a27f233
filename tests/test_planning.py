"""Plans: steps in order, and plans that a model writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit import (
    ApprovalDeniedError,
    ApprovalGate,
    ApprovalRequest,
    EvaluatorError,
    MemoryTraceSink,
    PatternError,
    PatternResult,
    Plan,
    PlanResult,
    PlanStep,
    ProviderError,
    RetryConfig,
    StepTimeoutError,
    TokenUsage,
    WorkflowError,
    make_plan,
)
from executionkit.testing import FakeClock, ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = TokenUsage(10, 2, 1)


def gives(value: Any, cost: TokenUsage = ONE) -> Callable[[Any], Any]:
    return lambda _context: PatternResult(value, cost=cost)


@pytest.mark.req("planning.steps")
class TestPlans:
    async def test_steps_run_in_order_and_see_all_before(self) -> None:
        seen: list[dict[str, Any]] = []

        def look(context: dict[str, Any]) -> Any:
            seen.append(dict(context))
            return PatternResult(len(seen), cost=ONE)

        plan = Plan([PlanStep(name, f"do {name}", look) for name in "abc"])
        result = await plan.execute({"x": 0})
        assert seen == [{"x": 0}, {"x": 0, "a": 1}, {"x": 0, "a": 1, "b": 2}]
        outputs = {"x": 0, "a": 1, "b": 2, "c": 3}
        assert result == PlanResult(outputs, ONE + ONE + ONE)
        assert [step.name for step in plan.steps] == ["a", "b", "c"]

    async def test_the_context_is_a_copy(self) -> None:
        def spoil(context: dict[str, Any]) -> int:
            context["x"].append(1)
            context["y"] = 1
            return 1

        steps = [PlanStep("a", "", spoil), PlanStep("b", "", lambda c: dict(c))]
        result = await Plan(steps).execute({"x": []})
        assert result.outputs["b"] == {"x": [], "a": 1}

    async def test_steps_that_say_what_they_need_run_side_by_side(self) -> None:
        barrier = asyncio.Barrier(2)

        async def meet(_context: dict[str, Any]) -> None:
            await barrier.wait()

        steps = [
            PlanStep("a", "", meet),
            PlanStep("b", "", meet, depends_on=()),
            PlanStep("c", "", lambda c: sorted(c), depends_on=("a", "b")),
        ]
        async with asyncio.timeout(5):
            result = await Plan(steps).execute()
        assert result.outputs["c"] == ["a", "b"]

    async def test_events_tell_of_each_step(self) -> None:
        sink = MemoryTraceSink()
        await Plan([PlanStep("a", "", gives(1))]).execute(trace=sink)
        events = [(event.kind, event.payload["step"]) for event in sink.events[1:-1]]
        assert events == [("plan_step_start", "a"), ("plan_step_end", "a")]

    @pytest.mark.parametrize(
        ("make", "error", "words"),
        [
            (
                lambda: Plan(
                    [PlanStep("a", "", gives(1)), PlanStep("a", "", gives(1))]
                ),
                ValueError,
                "unique",
            ),
            (
                lambda: Plan([PlanStep("a", "", gives(1), depends_on=("x",))]),
                WorkflowError,
                "'x'",
            ),
            (lambda: Plan([1]), TypeError, "PlanStep"),  # type: ignore[list-item]
            (lambda: PlanStep("a", 3, gives(1)), TypeError, "instruction"),  # type: ignore[arg-type]
            (lambda: PlanStep("", "", gives(1)), ValueError, "empty"),
            (lambda: PlanStep("a", "", gives(1), timeout=-1), ValueError, "timeout"),
        ],
    )
    def test_what_cannot_work_is_refused(
        self, make: Callable[[], Any], error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            make()

    @pytest.mark.req("D-30")
    async def test_a_key_of_the_context_is_no_name_of_a_step(self) -> None:
        with pytest.raises(ValueError, match=r"\['a'\]"):
            await Plan([PlanStep("a", "", gives(1))]).execute({"a": 0})

    @pytest.mark.req("D-30")
    async def test_errors_carry_what_was_done_and_spent(self) -> None:
        def boom(_context: dict[str, Any]) -> None:
            raise KeyError("x")

        steps = [
            PlanStep("a", "", gives("A")),
            PlanStep("b", "", boom),
            PlanStep("c", "", gives(1)),
        ]
        with pytest.raises(EvaluatorError, match="step 'b' failed") as caught:
            await Plan(steps).execute()
        assert caught.value.cost == ONE
        facts = caught.value.metadata
        assert facts["outputs"] == {"a": "A"}
        assert (facts["step"], facts["not_run"]) == ("b", ("c",))
        assert "checkpoint" not in facts

    async def test_attempts_are_repeated_and_limited(
        self, auto_clock: FakeClock
    ) -> None:
        calls: list[int] = []

        async def slow_once(_context: dict[str, Any]) -> str:
            calls.append(1)
            await auto_clock.sleep(5 if len(calls) == 1 else 0)
            return "ok"

        retry = RetryConfig(1, 0.0, retryable=(StepTimeoutError,))
        step = PlanStep("a", "", slow_once, retry=retry, timeout=1)
        assert (await Plan([step]).execute()).outputs == {"a": "ok"}


@pytest.mark.req("planning.gate")
class TestTheGate:
    async def test_it_is_asked_with_the_instruction(self) -> None:
        asked: list[ApprovalRequest] = []

        def decide(request: ApprovalRequest) -> bool:
            asked.append(request)
            return request.subject == "a"

        ran: list[str] = []
        steps = [
            PlanStep("a", "look", lambda _c: ran.append("a"), {"risk": 1}),
            PlanStep("b", "pay", lambda _c: ran.append("b")),
        ]
        with pytest.raises(ApprovalDeniedError) as caught:
            await Plan(steps).execute(approval_gate=ApprovalGate(decide))
        assert ran == ["a"]
        assert caught.value.metadata["outputs"] == {"a": None}
        assert asked == [
            ApprovalRequest("plan_step", "a", {"instruction": "look", "risk": 1}),
            ApprovalRequest("plan_step", "b", {"instruction": "pay"}),
        ]


def search(instruction: str, _context: dict[str, Any]) -> str:
    """Looks something up.

    More words that no model needs.
    """
    return f"found {instruction}"


async def write(instruction: str, context: dict[str, Any]) -> str:
    return f"{instruction}: {sorted(context)}"


ACTIONS: dict[str, Any] = {"search": search, "write": write}


def step(name: str, action: str = "search", **more: Any) -> dict[str, Any]:
    return {"name": name, "instruction": f"do {name}", "action": action, **more}


def plan_of(*steps: Any) -> str:
    return json.dumps({"steps": steps})


@pytest.mark.req("planning.written")
class TestWrittenPlans:
    async def test_a_written_plan_runs(self) -> None:
        text = plan_of(
            step("a"), step("b", depends_on=[]), step("c", "write", depends_on=["a"])
        )
        plan = Plan.parse(text, ACTIONS)
        result = await plan.execute({"x": 1})
        assert result.outputs == {
            "x": 1,
            "a": "found do a",
            "b": "found do b",
            "c": "do c: ['a', 'x']",
        }
        assert plan.steps[2].metadata == {"action": "write"}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "no JSON"),
            ("Sure! " + plan_of(step("a")), "no JSON"),
            ("[" * 100_000, "characters"),
            ("[" * 15_000, "no JSON|too deep"),
            ("[]", 'one key "steps"'),
            ('{"steps": []}', "1 to 32"),
            ('{"steps": {}}', "array"),
            ('{"steps": "ab"}', "array"),
            ('{"steps": [], "more": 1}', "one key"),
            ('{"steps": [], "steps": []}', "twice"),
            ('{"steps": [NaN]}', "NaN"),
            (plan_of(1), r"steps\[0\] must be an object"),
            (plan_of({}), r"steps\[0\]\.name.*instruction.*action"),
            (plan_of(step("a", "rm")), r"'rm' is unknown; there are: 'search'"),
            (plan_of(step("a", cost=1)), "unknown key 'cost'"),
            (plan_of(step("a", depends_on="b")), "depends_on must be an array"),
            (plan_of(step("a", depends_on=[1])), "depends_on must be an array"),
            (plan_of(step(" ")), "name must be a text"),
            (plan_of(step("a"), step("a")), "unique"),
            (plan_of(step("a", depends_on=["b"])), "unknown steps: 'b'"),
            (
                plan_of(step("a", depends_on=["b"]), step("b", depends_on=["a"])),
                "cycle: 'a', 'b'",
            ),
            (plan_of(*(step(f"s{n}") for n in range(33))), "1 to 32 steps, got 33"),
        ],
    )
    def test_what_is_no_plan_is_refused(self, text: str, words: str) -> None:
        with pytest.raises(WorkflowError, match=words):
            Plan.parse(text, ACTIONS)

    def test_all_problems_are_told_at_once(self) -> None:
        with pytest.raises(WorkflowError) as caught:
            Plan.parse(plan_of(step("a", "rm"), step("b", cost=1)), ACTIONS)
        assert len(caught.value.metadata["problems"]) == 2

    def test_there_are_caps(self) -> None:
        chain = plan_of(step("a"), step("b"), step("c"))
        with pytest.raises(WorkflowError, match="chain of 3 steps, allowed are 2"):
            Plan.parse(chain, ACTIONS, max_depth=2)
        flat = plan_of(*(step(name, depends_on=[]) for name in "abc"))
        assert len(Plan.parse(flat, ACTIONS, max_depth=1).steps) == 3
        with pytest.raises(WorkflowError, match="1 to 2 steps, got 3"):
            Plan.parse(flat, ACTIONS, max_steps=2)
        with pytest.raises(WorkflowError, match="characters, allowed are 50"):
            Plan.parse(flat, ACTIONS, max_chars=50)
        long = {"steps": [step("a" * 60)]}
        with pytest.raises(WorkflowError, match="longer than 50"):
            Plan.parse(long, ACTIONS, max_chars=50)

    def test_actions_are_functions(self) -> None:
        with pytest.raises(ValueError, match="empty"):
            Plan.parse(plan_of(step("a")), {})
        with pytest.raises(TypeError, match=r"actions\['a'\]"):
            Plan.parse(plan_of(step("a")), {"a": 1})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="`actions`"):
            Plan.parse(plan_of(step("a")), [search])  # type: ignore[arg-type]

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["steps", "name", "action", "instruction", "x"]),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        )
    )
    @settings(max_examples=200)
    def test_any_data_is_a_plan_or_one_error(self, data: Any) -> None:
        for source in (data, {"steps": data}, {"steps": [data]}, json.dumps(data)):
            with contextlib.suppress(WorkflowError):
                assert Plan.parse(source, ACTIONS).steps


@pytest.mark.req("planning.made")
class TestMadePlans:
    async def test_a_model_writes_a_plan(self) -> None:
        provider = ScriptedProvider(
            [plan_of(step("a"), step("b", "write"))],
            usage={"prompt_tokens": 10, "completion_tokens": 2},
        )
        made = await make_plan(provider, "Write about otters", ACTIONS)
        assert made.cost == ONE
        assert [item.name for item in made.value.steps] == ["a", "b"]
        asked = provider.requests[0].last
        assert "- search: Looks something up.\n- write\n" in asked
        assert "Write about otters" in asked
        assert "More words" not in asked
        assert (await made.value.execute()).outputs["b"] == "do b: ['a']"

    async def test_what_is_wrong_is_told_to_the_model(self) -> None:
        cycle = plan_of(step("a", depends_on=["b"]), step("b", depends_on=["a"]))
        provider = ScriptedProvider([cycle, plan_of(step("a"))])
        made = await make_plan(provider, "x", ACTIONS)
        assert len(made.value.steps) == 1
        assert "a cycle: 'a', 'b'" in provider.requests[1].last

    async def test_without_a_usable_plan_there_is_an_error(self) -> None:
        provider = ScriptedProvider([plan_of(step("a", "rm"))] * 2)
        with pytest.raises(PatternError):
            await make_plan(provider, "x", ACTIONS, max_retries=1)
        with pytest.raises(ProviderError):
            await make_plan(
                ScriptedProvider([ProviderError("down")]),
                "x",
                ACTIONS,
                retry=RetryConfig(0),
            )

    async def test_limits_hold(self) -> None:
        provider = ScriptedProvider([plan_of(step("a"), step("b"))] * 2)
        with pytest.raises(PatternError):
            await make_plan(provider, "x", ACTIONS, max_steps=1, max_retries=0)
        with pytest.raises(PatternError, match="chain of 2"):
            await make_plan(provider, "x", ACTIONS, max_depth=1, max_retries=0)
        with pytest.raises(ValueError, match="max_depth"):
            await make_plan(provider, "x", ACTIONS, max_depth=0)
