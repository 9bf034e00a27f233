"""Workflows, plans and maps with a journal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.approval import ApprovalGate, ApprovalRequest, MemoryApprovalStore
from executionkit.engine.retry import RetryConfig
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalPendingError,
    BudgetExhaustedError,
    EvaluatorError,
    InDoubtError,
    JournalMismatchError,
    JournalValueError,
    PatternError,
    PermanentError,
    ProviderError,
    StepTimeoutError,
)
from executionkit.journal import (
    EffectState,
    Journal,
    MemoryJournalStore,
    current_journal,
)
from executionkit.observability import MemoryTraceSink
from executionkit.patterns import map_reduce
from executionkit.planning import Plan, PlanStep
from executionkit.testing import FakeClock, ScriptedProvider, settle
from executionkit.types import PatternResult, TokenUsage
from executionkit.workflow import Step, Workflow, WorkflowCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable

COST = TokenUsage(5, 1, 1)
ONCE = RetryConfig(max_retries=0)


class World:
    """Counts what steps do."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def step(self, name: str, *needs: str, value: Any = None, **facts: Any) -> Step:
        return Step(name, self.doing(name, value), needs, **facts)

    def doing(self, name: str, value: Any = None) -> Callable[..., Any]:
        async def do(_context: dict[str, Any]) -> Any:
            self.done.append(name)
            outcome = value
            if isinstance(value, list):
                outcome = value[min(self.done.count(name), len(value)) - 1]
            if isinstance(outcome, BaseException):
                raise outcome
            return PatternResult(outcome or name, None, COST)

        return do


async def run(store: Any, steps: Any, context: Any = None, **options: Any) -> Any:
    settings = {
        name: options.pop(name)
        for name in ("on_failure", "max_concurrency")
        if name in options
    }
    async with Journal(store, "r") as journal:
        workflow = Workflow(steps, **settings)
        return await workflow.run(context, journal=journal, **options)


async def states(store: MemoryJournalStore) -> dict[str, str]:
    return {e.id: e.state.value for e in await store.entries("r")}


async def crashed(store: MemoryJournalStore, effect_id: str) -> None:
    """Make it as if the process had died while this was done."""
    entry = store._runs["r"][effect_id]
    begun = replace(entry, state=EffectState.STARTED, outcome=None, ended_at=None)
    await store.put("r", begun)


@pytest.mark.req("journal.workflow")
class TestReplay:
    async def test_outputs_and_cost_come_from_the_journal(self) -> None:
        world, store, sink = World(), MemoryJournalStore(), MemoryTraceSink()
        steps = [world.step("a"), world.step("b", "a"), world.step("c", "a")]
        first = await run(store, steps, {"x": 1})
        assert sorted(world.done) == ["a", "b", "c"]
        again = await run(store, steps, {"x": 1}, trace=sink)
        assert sorted(world.done) == ["a", "b", "c"]
        assert again == first
        assert again.cost == COST + COST + COST
        assert (first.replayed, first.replayed_cost) == (0, TokenUsage())
        assert (again.replayed, again.replayed_cost) == (3, again.cost)
        kinds = [e.kind for e in sink.events if "step" in e.kind]
        assert kinds == ["workflow_step_replayed"] * 3
        assert list(await states(store)) == [
            "workflow:0/graph",
            "workflow:0/a:1",
            "workflow:0/b:1",
            "workflow:0/c:1",
        ]

    async def test_a_plan_tells_what_came_from_the_journal_failures_too(self) -> None:
        world, store = World(), MemoryJournalStore()
        failure = ProviderError("down", cost=TokenUsage(llm_calls=2))
        retry = RetryConfig(max_retries=1, base_delay=0, max_delay=0)
        do = world.doing("a", [failure, "fine"])
        plan = Plan(
            [PlanStep("a", "", do, retry=retry), PlanStep("b", "", world.doing("b"))]
        )
        results = []
        for _ in range(2):
            async with Journal(store, "r") as journal:
                results.append(await plan.execute(journal=journal))
        first, again = results
        assert world.done == ["a", "a", "b"]
        assert (first.replayed, first.replayed_cost) == (0, TokenUsage())
        assert (again.replayed, again.replayed_cost) == (3, again.cost)
        assert again.cost == first.cost == COST + COST + TokenUsage(llm_calls=2)

    @pytest.mark.req("WF-08")
    async def test_a_join_runs_once_after_all_that_it_needs(self) -> None:
        world, store = World(), MemoryJournalStore()
        gate = asyncio.Event()

        async def p2(_context: Any) -> str:
            world.done.append("p2")
            await gate.wait()
            return "p2"

        steps = [
            world.step("p1"),
            Step("p2", p2, idempotent=True),
            world.step("join", "p1", "p2"),
        ]
        task = asyncio.create_task(run(store, steps))
        async with asyncio.timeout(5):
            while (await states(store)).get("workflow:0/p1:1") != "finished":
                await settle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.set()
            result = await run(store, steps)
        assert sorted(world.done) == ["join", "p1", "p2", "p2"]
        assert world.done[-1] == "join"
        assert result.outputs["join"] == "join"

    async def test_a_step_that_is_left_out_now_is_skipped_and_the_rest_follows(
        self,
    ) -> None:
        world, store, wanted = World(), MemoryJournalStore(), [True]
        steps = [
            world.step("one", when=lambda _c: wanted[0]),
            world.step("two", "one"),
            world.step("three", "two", on_skipped="run", value=[ValueError("x"), "3"]),
        ]
        with pytest.raises(EvaluatorError):
            await run(store, steps)
        wanted[0] = False
        with pytest.raises(JournalMismatchError):  # its inputs are others now
            await run(store, [*steps[:2], world.step("three", "two")])
        store = MemoryJournalStore()
        result = await run(store, steps)
        assert result.skipped == ("one", "two")
        assert result.outputs == {"three": "3"}

    async def test_a_step_that_keeps_its_own_effects_goes_on_where_it_was(
        self,
    ) -> None:
        world, store = World(), MemoryJournalStore()
        failing = [True]

        def doing(name: str) -> Callable[[], int]:
            def do() -> int:
                world.done.append(name)
                return int(name)

            return do

        async def do(_context: Any) -> Any:
            journal = current_journal()
            assert journal is not None
            first = await journal.effect("first", doing("1"))
            if failing[0]:
                msg = "down"
                raise ProviderError(msg)
            return [first, await journal.effect("second", doing("2"))]

        with pytest.raises(ProviderError):
            await run(store, [Step("s", do)])
        failing[0] = False
        result = await run(store, [Step("s", do)])
        assert result.outputs["s"] == [1, 2]
        assert world.done == ["1", "2"]

    async def test_all_checkpoints_and_callbacks_come_again(self) -> None:
        world, store = World(), MemoryJournalStore()
        seen: list[int] = []
        steps = [world.step("a"), world.step("b", "a")]
        for _ in range(2):
            await run(
                store, steps, checkpoint_fn=lambda point: seen.append(point.step_index)
            )
        assert seen == [1, 2, 1, 2]

    async def test_a_journal_and_a_checkpoint_contradict_each_other(self) -> None:
        point = WorkflowCheckpoint(0, {})
        with pytest.raises(ValueError, match="not both"):
            await run(MemoryJournalStore(), [World().step("a")], resume_from=point)
        wrong: Any = 7
        for call in (
            Workflow([World().step("a")]).run(journal=wrong),
            Plan([PlanStep("a", "", World().doing("a"))]).execute(journal=wrong),
        ):
            with pytest.raises(TypeError, match="must be a Journal"):
                await call


@pytest.mark.req("journal.workflow", "journal.changed-program")
class TestChangedProgram:
    @pytest.mark.parametrize(
        "change", ["more", "fewer", "needs", "renamed", "input", "policy"]
    )
    async def test_it_is_refused_before_anything_runs(self, change: str) -> None:
        world, store = World(), MemoryJournalStore()
        steps = {n: world.step(n) for n in "ab"}
        await run(store, list(steps.values()), {"x": 1})
        world.done.clear()
        context = {"x": 2 if change == "input" else 1}
        if change == "more":
            steps["c"] = world.step("c")
        elif change == "fewer":
            del steps["b"]
        elif change == "needs":
            steps["b"] = world.step("b", "a")
        elif change == "renamed":
            steps["b"] = world.step("B")
        elif change == "policy":
            steps["b"] = world.step("b", may_fail=True)
        with pytest.raises(JournalMismatchError, match="workflow:0/"):
            await run(store, list(steps.values()), context)
        assert world.done == []

    async def test_the_order_of_the_steps_and_their_limits_may_change(self) -> None:
        world, store = World(), MemoryJournalStore()
        await run(store, [world.step("a"), world.step("b")])
        again = [world.step("b", timeout=5), world.step("a", retry=ONCE)]
        await run(store, again, max_concurrency=1)
        assert sorted(world.done) == ["a", "b"]

    async def test_an_input_that_is_no_json_counts_by_its_type(self) -> None:
        world, store = World(), MemoryJournalStore()
        await run(store, [world.step("a")], {"client": object()})
        await run(store, [world.step("a")], {"client": object()})
        with pytest.raises(JournalMismatchError):
            await run(store, [world.step("a")], {"client": World()})


@pytest.mark.req("journal.workflow", "journal.in-doubt")
class TestInDoubt:
    @pytest.mark.parametrize("may_fail", [False, True])
    async def test_a_step_is_not_repeated_and_no_policy_tolerates_that(
        self,
        may_fail: bool,
    ) -> None:
        world, store = World(), MemoryJournalStore()
        steps = [
            world.step("a", may_fail=may_fail),
            world.step("b", "a", on_skipped="run"),
        ]
        await run(store, steps)
        await store.delete("r", "workflow:0/b:1")
        await crashed(store, "workflow:0/a:1")
        world.done.clear()
        with pytest.raises(InDoubtError) as caught:
            await run(store, steps)
        assert caught.value.effect_ids == ("workflow:0/a:1",)
        assert caught.value.metadata["step"] == "a"
        assert world.done == []
        async with Journal(store, "r") as journal:
            await journal.resolve("workflow:0/a:1", "by hand")
        result = await run(store, steps)
        assert result.outputs == {"a": "by hand", "b": "b"}
        assert world.done == ["b"]

    async def test_an_idempotent_one_is_repeated(self) -> None:
        world, store = World(), MemoryJournalStore()
        steps = [world.step("a", idempotent=True)]
        await run(store, steps)
        await crashed(store, "workflow:0/a:1")
        await run(store, steps)
        assert world.done == ["a", "a"]

    async def test_a_value_that_cannot_be_kept_is_told_at_once(self) -> None:
        world, store = World(), MemoryJournalStore()

        def do(_context: Any) -> object:
            world.done.append("a")
            return object()

        steps = [Step("a", do)]
        for _ in range(2):
            with pytest.raises(JournalValueError, match="workflow:0/a:1"):
                await run(store, steps)
        assert world.done == ["a"]


RETRY = RetryConfig(max_retries=3, base_delay=8, retryable=(ValueError, ProviderError))


@pytest.mark.req("journal.workflow", "journal.attempts", "WF-10")
class TestAttempts:
    @pytest.mark.parametrize("failed", [1, 2, 3])
    async def test_a_run_that_broke_off_goes_on_with_the_attempts_that_are_left(
        self, failed: int, auto_clock: FakeClock
    ) -> None:
        store, tries = MemoryJournalStore(), []

        class KillError(BaseException):
            pass

        async def do(_context: Any) -> str:
            tries.append(1)
            if len(tries) == failed + 1:
                raise KillError
            msg = "not yet"
            raise ValueError(msg)

        step = Step("a", do, retry=RETRY, idempotent=True)
        with pytest.raises(KillError):
            await run(store, [step])
        assert len(tries) == failed + 1
        tries[:] = [1] * 10  # from here on no more crash
        with pytest.raises(EvaluatorError, match="not yet") as caught:
            await run(store, [step])
        assert len(tries) - 10 == 4 - failed
        assert isinstance(caught.value.__cause__, ValueError)

    async def test_a_step_that_failed_for_good_is_tried_once_more_by_each_run(
        self, auto_clock: FakeClock
    ) -> None:
        world, store = World(), MemoryJournalStore()
        down = ProviderError("down")
        step = world.step("a", value=[down] * 5 + ["up"], retry=RETRY)
        with pytest.raises(ProviderError):
            await run(store, [step])
        assert len(world.done) == 4
        with pytest.raises(ProviderError):
            await run(store, [step])
        assert len(world.done) == 5
        assert (await run(store, [step])).outputs["a"] == "up"
        assert len(world.done) == 6

    async def test_the_pause_goes_on_while_no_process_runs(
        self, fake_clock: FakeClock
    ) -> None:
        world, store = World(), MemoryJournalStore()
        retry = RetryConfig(max_retries=1, base_delay=0, retryable=(ProviderError,))
        hint = ProviderError("wait")
        hint.retry_after = 30.0
        step = world.step("a", value=[hint, "up"], retry=retry)
        task = asyncio.create_task(run(store, [step]))
        async with asyncio.timeout(5):
            while not fake_clock.pending:
                await settle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await fake_clock.advance(20)
            task = asyncio.create_task(run(store, [step]))
            await fake_clock.advance(9)
            assert not task.done()
            assert world.done == ["a"]
            await fake_clock.advance(2)
            assert (await task).outputs["a"] == "up"

    async def test_what_failed_attempts_have_cost_counts_in_every_run(
        self, auto_clock: FakeClock
    ) -> None:
        world, store = World(), MemoryJournalStore()
        failure = PatternError("bad", cost=COST)
        retry = RetryConfig(max_retries=1, base_delay=0, retryable=(PatternError,))
        step = world.step("a", value=[failure, "up"], retry=retry)
        first = await run(store, [step])
        again = await run(store, [step])
        assert first.cost == again.cost == COST + COST

    async def test_a_failure_that_is_tolerated_is_an_outcome(self) -> None:
        world, store = World(), MemoryJournalStore()
        steps = [
            world.step("a", may_fail=True, value=[ProviderError("down"), "up"]),
            world.step("b", "a", on_skipped="run"),
        ]
        first = await run(store, steps)
        again = await run(store, steps)
        assert again == first
        assert again.failures == {"a": "ProviderError: down"}
        assert world.done == ["a", "b"]

    async def test_an_empty_budget_is_not_held_against_the_step(self) -> None:
        world, store = World(), MemoryJournalStore()
        steps = [world.step("a"), world.step("b", "a")]
        for _ in range(2):
            with pytest.raises(BudgetExhaustedError) as caught:
                await run(store, steps, max_cost=TokenUsage(llm_calls=1))
            assert caught.value.cost == COST
        assert (await run(store, steps)).cost == COST + COST
        assert world.done == ["a", "b"]

    async def test_nor_is_it_when_the_step_may_fail(self) -> None:
        world, store = World(), MemoryJournalStore()
        steps = [world.step("a"), world.step("b", "a", may_fail=True)]
        first = await run(store, steps, max_cost=TokenUsage(llm_calls=1))
        assert list(first.failures) == ["b"]
        assert (await run(store, steps)).failures == {}
        assert world.done == ["a", "b"]

    async def test_a_timeout_is_a_failure_like_any_other(
        self, auto_clock: FakeClock
    ) -> None:
        store, tries = MemoryJournalStore(), []

        async def slow(_context: Any) -> str:
            tries.append(1)
            if len(tries) == 1:
                await asyncio.Event().wait()
            return "fast"

        retry = RetryConfig(max_retries=1, base_delay=0, retryable=(StepTimeoutError,))
        step = Step("a", slow, timeout=5, retry=retry)
        for _ in range(2):
            assert (await run(store, [step])).outputs["a"] == "fast"
        assert len(tries) == 2


@pytest.mark.req("journal.workflow", "journal.cancel", "WF-13", "WF-14")
class TestCancellation:
    async def test_a_step_that_is_done_as_it_is_cancelled_is_not_run_again(
        self,
    ) -> None:
        store, done = MemoryJournalStore(), []
        points: list[Any] = []
        task: asyncio.Task[Any]

        async def do(_context: Any) -> str:
            done.append(1)
            task.cancel()
            return "done"

        steps = [Step("a", do)]
        task = asyncio.create_task(
            run(store, steps, checkpoint_fn=lambda p: points.append(p))
        )
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await states(store))["workflow:0/a:1"] == "finished"
        assert [dict(p.outputs) for p in points] == [{"a": "done"}]
        assert (await run(store, steps)).outputs["a"] == "done"
        assert done == [1]

    async def test_steps_that_were_called_off_before_they_began_are_in_no_doubt(
        self,
    ) -> None:
        world, store = World(), MemoryJournalStore()
        steps = [
            world.step("bad", value=[ProviderError("x"), "good"]),
            world.step("b"),
            world.step("c"),
        ]
        with pytest.raises(ProviderError):
            await run(store, steps, max_concurrency=1)
        assert set(await states(store)) == {"workflow:0/graph", "workflow:0/bad:1"}
        result = await run(store, steps, max_concurrency=1)
        assert list(result.outputs) == ["bad", "b", "c"]


@pytest.mark.req("journal.approval")
class TestApproval:
    async def test_a_yes_is_asked_for_once_with_its_changes(self) -> None:
        asked: list[ApprovalRequest] = []

        def decide(request: ApprovalRequest) -> Any:
            asked.append(request)
            return request.approve(arguments={"x": 2})

        store, seen = MemoryJournalStore(), []

        async def do(context: dict[str, Any]) -> Any:
            seen.append(context["x"])
            return context["x"]

        step = Step("a", do, idempotent=True)
        await run(store, [step], {"x": 1}, approval_gate=ApprovalGate(decide))
        await crashed(store, "workflow:0/a:1")
        result = await run(store, [step], {"x": 1}, approval_gate=ApprovalGate(decide))
        assert result.outputs["a"] == 2
        assert (len(asked), seen) == (1, [2, 2])

    async def test_a_no_that_ended_the_run_is_asked_for_again_by_the_next(self) -> None:
        world, store = World(), MemoryJournalStore()
        with pytest.raises(ApprovalDeniedError):
            await run(
                store, [world.step("a")], approval_gate=ApprovalGate.deny_all("no")
            )
        await run(store, [world.step("a")], approval_gate=ApprovalGate.allow_all())
        assert world.done == ["a"]
        tolerant = MemoryJournalStore()
        steps = [world.step("a", may_fail=True)]
        for gate in (ApprovalGate.deny_all("no"), ApprovalGate.allow_all()):
            result = await run(tolerant, steps, approval_gate=gate)
            assert list(result.failures) == ["a"]

    async def test_parked_steps_go_on_when_somebody_has_answered(self) -> None:
        world, store, answers = World(), MemoryJournalStore(), MemoryApprovalStore()
        steps = [world.step("a"), world.step("b", "a")]
        for _ in range(2):
            with pytest.raises(ApprovalPendingError):
                await run(store, steps, approval_gate=ApprovalGate.park_all(answers))
            for record in await answers.pending():
                assert record.request.run_id == "r"
                await answers.answer(record.id, record.request.approve())
        await run(store, steps, approval_gate=ApprovalGate.park_all(answers))
        assert world.done == ["a", "b"]

    async def test_a_question_that_is_parked_inside_of_a_step_is_no_outcome(
        self,
    ) -> None:
        world, store = World(), MemoryJournalStore()
        steps = [world.step("a", value=[ApprovalPendingError("wait"), "done"])]
        with pytest.raises(ApprovalPendingError):
            await run(store, steps)
        assert (await run(store, steps)).outputs["a"] == "done"

    async def test_a_gate_of_ones_own_will_do(self) -> None:
        class Gate:
            asked = 0

            async def require(self, _request: Any) -> None:
                self.asked += 1

        world, store, gate = World(), MemoryJournalStore(), Gate()
        given: Any = gate
        for _ in range(2):
            await run(store, [world.step("a")], approval_gate=given)
        assert (gate.asked, world.done) == (1, ["a"])


@pytest.mark.req("journal.workflow")
class TestPlans:
    async def test_a_plan_goes_on_where_it_was(self) -> None:
        world, store = World(), MemoryJournalStore()
        actions = {"find": _action(world, "find"), "write": _action(world, "write")}
        source = {
            "steps": [
                {"name": "one", "instruction": "1", "action": "find"},
                {"name": "two", "instruction": "2", "action": "write"},
            ]
        }
        plan = Plan.parse(source, actions, idempotent=["find"])
        assert [step.idempotent for step in plan.steps] == [True, False]

        async def execute() -> Any:
            async with Journal(store, "r") as journal:
                return await plan.execute({"x": 1}, journal=journal)

        first = await execute()
        await store.delete("r", "plan:0/two:1")
        await crashed(store, "plan:0/one:1")
        assert await execute() == first
        assert world.done == ["find 1", "write 2", "find 1", "write 2"]
        await crashed(store, "plan:0/two:1")
        with pytest.raises(InDoubtError, match="plan:0/two:1"):
            await execute()


def _action(world: World, name: str) -> Callable[..., Any]:
    async def act(instruction: str, _context: dict[str, Any]) -> str:
        world.done.append(f"{name} {instruction}")
        return name

    return act


@pytest.mark.req("journal.map")
class TestMaps:
    async def mapped(self, store: Any, provider: Any, inputs: Any, **more: Any) -> Any:
        async with Journal(store, "r") as journal:
            options: Any = {"retry": ONCE, **more}
            return await map_reduce(
                provider,
                list(inputs) if isinstance(inputs, str) else inputs,
                map_prompt_template="m {item}",
                reduce_prompt_template="r {mapped_outputs}",
                journal=journal,
                **options,
            )

    async def test_answers_have_their_places_by_position(
        self, auto_clock: FakeClock
    ) -> None:
        delays = {"m a": 3.0, "m b": 1.0, "m c": 2.0}

        async def answer(request: Any) -> Any:
            await auto_clock.sleep(delays.get(request.last, 0))
            return request.last.upper()

        store = MemoryJournalStore()
        usage = {"prompt_tokens": 1, "completion_tokens": 2}
        first = await self.mapped(store, ScriptedProvider(answer, usage=usage), "abc")
        ids = list(await states(store))
        assert ids == [f"map_reduce:0/map:{n}" for n in range(3)] + [
            "map_reduce:0/reduce"
        ]

        async def source() -> Any:
            for item in "abc":
                yield item

        again = await self.mapped(store, ScriptedProvider([]), source())
        assert (again.value, again.cost) == (first.value, first.cost)
        assert again.metadata["replayed"] == 4
        assert again.metadata["replayed_cost"] == first.cost

    async def test_a_failure_that_ended_the_run_is_asked_again(self) -> None:
        store = MemoryJournalStore()
        script: list[Any] = ["A", ProviderError("down")]
        with pytest.raises(ProviderError):
            await self.mapped(store, ScriptedProvider(script), "ab", max_concurrency=1)
        provider = ScriptedProvider(["B", "end"])
        result = await self.mapped(store, provider, "ab", max_concurrency=1)
        assert provider.requests[1].last == "r A\n\n---\n\nB"
        assert result.cost.llm_calls == 4

    async def test_a_failure_that_was_collected_stays(self) -> None:
        store, more = (
            MemoryJournalStore(),
            {"on_error": "collect", "max_concurrency": 1},
        )
        script: list[Any] = ["A", ProviderError("down"), "end"]
        first = await self.mapped(store, ScriptedProvider(script), "ab", **more)
        again = await self.mapped(store, ScriptedProvider([]), "ab", **more)
        assert again.metadata["failed"] == first.metadata["failed"]
        assert (again.value, again.cost) == (first.value, first.cost)

    async def test_a_key_that_is_wrong_is_no_outcome(self) -> None:
        store, more = (
            MemoryJournalStore(),
            {"on_error": "collect", "max_concurrency": 1},
        )
        refused = PermanentError("no", metadata={"status": 401})
        with pytest.raises(PermanentError):
            await self.mapped(store, ScriptedProvider(["A", refused]), "ab", **more)
        result = await self.mapped(store, ScriptedProvider(["B", "end"]), "ab", **more)
        assert not result.metadata["failed"]

    async def test_other_inputs_are_another_program(self) -> None:
        store = MemoryJournalStore()
        more: dict[str, Any] = {"on_error": "collect"}
        await self.mapped(store, ScriptedProvider(["A", "B", "end"]), "ab", **more)
        provider = ScriptedProvider([])
        with pytest.raises(JournalMismatchError, match="map:1"):
            await self.mapped(store, provider, "ac", **more)
        assert provider.requests == []
