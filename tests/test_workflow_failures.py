"""Workflows that fail, are cut short or are cancelled: what ends, what is kept."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from executionkit import (
    ApprovalGate,
    ApprovalRequest,
    EvaluatorError,
    MemoryTraceSink,
    PatternError,
    PatternResult,
    ProviderError,
    RetryConfig,
    Step,
    StepTimeoutError,
    TokenUsage,
    TraceEvent,
    Workflow,
    WorkflowCheckpoint,
    consensus,
)
from executionkit.cost import collecting_lost_cost
from executionkit.testing import FakeClock, ScriptedProvider, settle

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = TokenUsage(10, 2, 1)
QUICK = RetryConfig(2, 0.0, retryable=(ValueError, StepTimeoutError, ProviderError))


def gives(value: Any, cost: TokenUsage = ONE) -> Callable[[Any], Any]:
    return lambda _context: PatternResult(value, cost=cost)


def raises(error: BaseException) -> Callable[[Any], Any]:
    def run(_context: dict[str, Any]) -> None:
        raise error

    return run


class Worker:
    """A step that says when it began and ends when it is told to."""

    def __init__(self, name: str = "worker") -> None:
        self.name = name
        self.began, self.go = asyncio.Event(), asyncio.Event()
        self.was_cancelled = False

    async def __call__(self, _context: dict[str, Any]) -> str:
        self.began.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return self.name


@pytest.mark.req("workflow.failure")
@pytest.mark.req("D-30")
class TestFailures:
    async def test_an_error_carries_what_was_done_and_spent(self) -> None:
        error = ProviderError("down", cost=TokenUsage(1, 1, 1))
        workflow = Workflow(
            [
                Step("a", gives("A")),
                Step("b", raises(error), ("a",)),
                Step("c", gives("C"), ("b",)),
            ]
        )
        with pytest.raises(ProviderError, match="down") as caught:
            await workflow.run({"x": 1})
        assert caught.value is not error
        assert error.cost == TokenUsage(1, 1, 1)
        assert caught.value.cost == ONE + TokenUsage(1, 1, 1)
        facts = caught.value.metadata
        assert (facts["step"], facts["failed"]) == ("b", ("b",))
        assert (facts["not_run"], facts["skipped"]) == (("c",), ())
        assert facts["outputs"] == {"a": "A"}
        assert facts["checkpoint"].outputs == {"a": "A"}
        again = pickle.loads(pickle.dumps(caught.value))
        assert again.metadata["checkpoint"] == facts["checkpoint"]

    async def test_a_foreign_exception_is_the_cause_of_one_of_ours(self) -> None:
        error = KeyError("x")
        with pytest.raises(EvaluatorError, match="step 'b' failed: KeyError") as caught:
            await Workflow(
                [Step("a", gives(1)), Step("b", raises(error), ("a",))]
            ).run()
        assert caught.value.__cause__ is error
        assert caught.value.cost == ONE
        assert caught.value.metadata["outputs"] == {"a": 1}

    @pytest.mark.req("D-02")
    async def test_many_failures_are_one_error(self) -> None:
        def late(ticks: int, error: Exception) -> Callable[[Any], Any]:
            async def run(_context: dict[str, Any]) -> None:
                await settle(ticks)
                raise error

            return run

        with pytest.raises(ProviderError) as caught:
            await Workflow(
                [
                    Step("a", late(1, ProviderError("first", cost=ONE))),
                    Step("b", late(3, ProviderError("second", cost=ONE))),
                    Step("c", late(2, ValueError("third"))),
                ]
            ).run()
        assert "first" in str(caught.value)
        assert caught.value.cost == ONE + ONE
        assert caught.value.metadata["failed"] == ("a", "b", "c")
        assert caught.value.metadata["step"] == "a"
        notes = " ".join(caught.value.__notes__)
        assert "second" in notes
        assert "third" in notes

    @pytest.mark.req("D-02")
    async def test_no_group_leaves(self) -> None:
        def group(_context: dict[str, Any]) -> None:
            raise ExceptionGroup("two", [ValueError("x"), ProviderError("y")])

        with pytest.raises(ProviderError, match="y"):
            await Workflow([Step("a", group)]).run()

    @pytest.mark.req("D-03")
    async def test_money_of_a_failed_pattern_counts(self) -> None:
        provider = ScriptedProvider(
            ["a", "b", "c"], usage={"prompt_tokens": 5, "completion_tokens": 1}
        )

        def vote(_context: dict[str, Any]) -> Any:
            return consensus(provider, "?", num_samples=3, strategy="unanimous")

        with pytest.raises(PatternError) as caught:
            await Workflow([Step("a", gives(1)), Step("vote", vote, ("a",))]).run()
        assert caught.value.cost == ONE + TokenUsage(15, 3, 3)

    async def test_stop_lets_work_end_and_begins_nothing(self) -> None:
        worker, kept = Worker(), list[WorkflowCheckpoint]()

        async def boom(_context: dict[str, Any]) -> None:
            await worker.began.wait()
            asyncio.get_running_loop().call_soon(worker.go.set)
            raise ValueError

        with pytest.raises(EvaluatorError) as caught:
            await Workflow(
                [
                    Step("worker", worker),
                    Step("boom", boom),
                    Step("child", gives(1), ("worker",)),
                    Step("waits", gives(1)),
                ],
                max_concurrency=2,
            ).run(checkpoint_fn=kept.append)
        assert not worker.was_cancelled
        assert caught.value.metadata["outputs"] == {"worker": "worker"}
        assert caught.value.metadata["not_run"] == ("child", "waits")
        assert [c.outputs for c in kept] == [{"worker": "worker"}]

    async def test_nothing_begins_after_a_failure(self) -> None:
        ran: list[str] = []
        with pytest.raises(EvaluatorError) as caught:
            await Workflow(
                [
                    Step("a", raises(ValueError())),
                    Step("b", lambda _c: ran.append("b")),
                ]
            ).run()
        assert not ran
        assert caught.value.metadata["not_run"] == ("b",)

    async def test_an_output_stays_while_a_sink_is_told_of_it(self) -> None:
        told = asyncio.Event()

        async def sink(event: TraceEvent) -> None:
            if event.kind == "workflow_step_end":
                told.set()
                await asyncio.Event().wait()

        async def boom(_context: dict[str, Any]) -> None:
            await told.wait()
            raise ValueError

        with pytest.raises(EvaluatorError) as caught:
            await Workflow([Step("a", gives(1)), Step("b", boom)]).run(trace=sink)
        assert caught.value.metadata["outputs"] == {"a": 1}

    async def test_a_sink_that_hangs_does_not_hold_up_a_failure(
        self, auto_clock: FakeClock
    ) -> None:
        async def sink(event: TraceEvent) -> None:
            if event.kind == "workflow_step_error":
                await asyncio.Event().wait()

        async with asyncio.timeout(5):
            with pytest.raises(EvaluatorError):
                await Workflow([Step("a", raises(ValueError()))]).run(trace=sink)
        assert auto_clock.monotonic() == 1001

    async def test_cancel_ends_work_and_waits_for_it(self) -> None:
        worker = Worker()

        async def boom(_context: dict[str, Any]) -> None:
            await worker.began.wait()
            raise ValueError

        with pytest.raises(EvaluatorError) as caught:
            await Workflow(
                [Step("worker", worker), Step("boom", boom)], on_failure="cancel"
            ).run()
        assert worker.was_cancelled
        assert caught.value.metadata["not_run"] == ("worker",)

    async def test_a_step_that_cleans_up_is_cancelled_once(self) -> None:
        slow, quick = Worker(), Worker()
        told: list[str] = []

        async def cleans_up(context: dict[str, Any]) -> None:
            try:
                await slow(context)
            finally:
                for _ in range(20):  # meanwhile `quick` has ended
                    await asyncio.sleep(0)
                told.append("clean")

        async def boom(_context: dict[str, Any]) -> None:
            await slow.began.wait()
            await quick.began.wait()
            raise ValueError

        steps = [Step("slow", cleans_up), Step("quick", quick), Step("boom", boom)]
        async with asyncio.timeout(5):
            with pytest.raises(EvaluatorError):
                await Workflow(steps, on_failure="cancel").run()
        assert quick.was_cancelled
        assert told == ["clean"]

    async def test_continue_runs_what_does_not_need_it(self) -> None:
        workflow = Workflow(
            [
                Step("boom", raises(ValueError())),
                Step("child", gives(1), ("boom",)),
                Step("other", gives(2)),
                Step("more", gives(3), ("other",)),
                Step("mends", gives(4), ("boom", "other"), on_skipped="run"),
            ],
            on_failure="continue",
        )
        with pytest.raises(EvaluatorError) as caught:
            await workflow.run()
        facts = caught.value.metadata
        assert facts["outputs"] == {"other": 2, "more": 3, "mends": 4}
        assert facts["skipped"] == ("child",)
        assert caught.value.cost == ONE + ONE + ONE

    async def test_a_step_may_be_allowed_to_fail(self) -> None:
        key = "sk-abcdefghijklmnopqrstuvwx123456"

        def decide(request: ApprovalRequest) -> bool:
            return request.subject != "denied"

        workflow = Workflow(
            [
                Step("extra", raises(ValueError(f"with {key}")), may_fail=True),
                Step("denied", gives(0), may_fail=True),
                Step("child", gives(1), ("extra",)),
                Step("main", gives(2), ("extra",), on_skipped="run"),
            ]
        )
        result = await workflow.run(approval_gate=ApprovalGate(decide))
        assert result.outputs == {"main": 2}
        assert result.skipped == ("child",)
        assert list(result.failures) == ["extra", "denied"]
        assert "ValueError: with [REDACTED]" in result.failures["extra"]
        assert key not in str(result)
        assert result.failures["denied"].startswith("ApprovalDeniedError")

    async def test_an_allowed_failure_is_no_cause_of_a_later_error(self) -> None:
        workflow = Workflow(
            [
                Step("extra", raises(ValueError("extra")), may_fail=True),
                Step("boom", raises(KeyError("boom")), ("extra",), on_skipped="run"),
            ]
        )
        with pytest.raises(EvaluatorError, match="boom") as caught:
            await workflow.run()
        assert caught.value.metadata["failed"] == ("extra", "boom")
        assert caught.value.metadata["step"] == "boom"

    @pytest.mark.req("TX-08")
    async def test_a_step_that_cancels_itself_is_a_step_that_failed(self) -> None:
        with pytest.raises(PatternError, match="step 'a' was cancelled") as caught:
            await Workflow(
                [Step("a", raises(asyncio.CancelledError())), Step("b", gives(1))]
            ).run()
        assert caught.value.metadata["step"] == "a"

    async def test_an_output_nested_without_end_is_refused(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(EvaluatorError, match="nested too deep"):
            await Workflow([Step("a", lambda _c: endless)]).run()


@pytest.mark.req("workflow.retry")
class TestRetries:
    async def test_a_failed_attempt_is_repeated_with_a_fresh_context(
        self, auto_clock: FakeClock
    ) -> None:
        seen: list[Any] = []

        def flaky(context: dict[str, Any]) -> PatternResult[str]:
            seen.append(list(context["x"]))
            context["x"].append("spoilt")
            if len(seen) < 3:
                error = ProviderError("again", cost=ONE)
                error.retries_exhausted = False
                raise error
            return PatternResult("ok", cost=ONE)

        result = await Workflow([Step("a", flaky, retry=QUICK)]).run({"x": []})
        assert seen == [[], [], []]
        assert result.outputs["a"] == "ok"
        assert result.cost == ONE + ONE + ONE

    async def test_without_retry_there_is_one_attempt(self) -> None:
        ran: list[int] = []

        def boom(_context: dict[str, Any]) -> None:
            ran.append(1)
            raise ProviderError("x")

        with pytest.raises(ProviderError):
            await Workflow([Step("a", boom)]).run()
        assert ran == [1]

    @pytest.mark.req("HT-12")
    async def test_retries_do_not_multiply(self, auto_clock: FakeClock) -> None:
        provider = ScriptedProvider([ProviderError("down")] * 20)
        inner = RetryConfig(2, 0.0)

        def ask(_context: dict[str, Any]) -> Any:
            return consensus(provider, "?", num_samples=1, retry=inner)

        with pytest.raises(ProviderError) as caught:
            await Workflow([Step("a", ask, retry=RetryConfig(3, 0.0))]).run()
        assert len(provider.requests) == 3
        assert caught.value.attempts == 3

    async def test_a_stop_does_not_wait_for_the_next_attempt(
        self, auto_clock: FakeClock
    ) -> None:
        pause = RetryConfig(5, 1000, retryable=(ValueError,))

        async def boom(_context: dict[str, Any]) -> None:
            await settle(5)
            raise KeyError("boom")

        workflow = Workflow(
            [Step("flaky", raises(ValueError("flaky")), retry=pause), Step("b", boom)]
        )
        with pytest.raises(EvaluatorError) as caught:
            await workflow.run()
        assert auto_clock.monotonic() == 1000
        assert "boom" in str(caught.value)
        assert caught.value.metadata["failed"] == ("flaky", "b")
        assert "flaky" in " ".join(caught.value.__notes__)


@pytest.mark.req("workflow.timeout")
class TestTimeouts:
    async def test_an_attempt_has_its_limit(self, auto_clock: FakeClock) -> None:
        async def endless(_context: dict[str, Any]) -> None:
            await auto_clock.sleep(1000)

        with pytest.raises(StepTimeoutError, match=r"'a' .*`timeout` of 2s") as caught:
            await Workflow([Step("a", endless, timeout=2)]).run()
        assert auto_clock.monotonic() == 1002
        assert caught.value.code == "STEP_TIMEOUT"
        assert caught.value.metadata["step"] == "a"

    async def test_each_attempt_has_it(self, auto_clock: FakeClock) -> None:
        calls: list[int] = []

        async def slow_once(_context: dict[str, Any]) -> str:
            calls.append(1)
            if len(calls) == 1:
                await auto_clock.sleep(1000)
            return "ok"

        result = await Workflow([Step("a", slow_once, timeout=2, retry=QUICK)]).run()
        assert result.outputs["a"] == "ok"

    async def test_waiting_does_not_count(self, auto_clock: FakeClock) -> None:
        async def two_seconds(_context: dict[str, Any]) -> int:
            await auto_clock.sleep(2)
            return 1

        steps = [Step(f"s{n}", two_seconds, timeout=3) for n in range(4)]
        result = await Workflow(steps, max_concurrency=1).run()
        assert len(result.outputs) == 4

    async def test_a_timeout_of_the_step_s_own_is_no_timeout_of_ours(self) -> None:
        with pytest.raises(EvaluatorError, match="TimeoutError"):
            await Workflow([Step("a", raises(TimeoutError()), timeout=60)]).run()

    @pytest.mark.req("WF-13")
    async def test_who_ends_all_the_same_is_done(self, auto_clock: FakeClock) -> None:
        async def stubborn(_context: dict[str, Any]) -> str:
            try:
                await auto_clock.sleep(1000)
            except asyncio.CancelledError:
                return "done"
            return "late"

        result = await Workflow([Step("a", stubborn, timeout=2)]).run()
        assert result.outputs["a"] == "done"


@pytest.mark.req("workflow.cancel")
class TestCancellation:
    async def test_the_steps_are_cancelled_and_awaited(self) -> None:
        workers = [Worker(), Worker()]
        ended: list[str] = []

        async def slow_to_leave(_context: dict[str, Any]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await settle(3)
                ended.append("left")

        sink = MemoryTraceSink()
        workflow = Workflow(
            [
                Step("paid", gives(1)),
                *(Step(f"w{n}", worker) for n, worker in enumerate(workers)),
                Step("slow", slow_to_leave),
            ]
        )
        lost: list[TokenUsage] = []
        with collecting_lost_cost(lost.append):
            task = asyncio.create_task(workflow.run(trace=sink))
        await asyncio.gather(*(worker.began.wait() for worker in workers))
        await settle(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(worker.was_cancelled for worker in workers)
        assert ended == ["left"]
        assert lost == [ONE]
        errors = [e for e in sink.events if e.kind == "workflow_step_error"]
        assert {e.payload["error_type"] for e in errors} == {"CancelledError"}
        assert len(errors) == 3

    async def test_a_second_cancellation_passes_on(self) -> None:
        left = asyncio.Event()
        tries: list[int] = []

        async def stubborn(_context: dict[str, Any]) -> None:
            while not left.is_set():
                try:
                    await left.wait()
                except asyncio.CancelledError:
                    tries.append(1)
                    if len(tries) == 2:
                        raise

        task = asyncio.create_task(Workflow([Step("a", stubborn)]).run())
        await settle(5)
        task.cancel()
        await settle(5)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(tries) == 2

    @pytest.mark.req("WF-13")
    async def test_what_ended_at_that_moment_is_kept(self) -> None:
        worker, kept = Worker(), list[WorkflowCheckpoint]()

        async def stubborn(_context: dict[str, Any]) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "done all the same"
            return ""

        workflow = Workflow([Step("a", stubborn), Step("w", worker)])
        task = asyncio.create_task(workflow.run(checkpoint_fn=kept.append))
        await worker.began.wait()
        worker.go.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert kept[-1].outputs["a"] == "done all the same"
        resumed = await workflow.run(resume_from=kept[-1])
        assert resumed.outputs["a"] == "done all the same"

    async def test_a_checkpoint_that_hangs_does_not_hold_a_cancellation(
        self, auto_clock: FakeClock
    ) -> None:
        async def hang(_checkpoint: WorkflowCheckpoint) -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(
            Workflow([Step("a", gives(1))]).run(checkpoint_fn=hang)
        )
        await settle(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @pytest.mark.req("WF-11")
    async def test_who_waits_may_leave(self) -> None:
        worker = Worker()
        run = asyncio.create_task(Workflow([Step("a", worker)]).run())

        async def wait() -> Any:
            return await asyncio.shield(run)

        waiter = asyncio.create_task(wait())
        await worker.began.wait()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        worker.go.set()
        assert (await run).outputs == {"a": "worker"}

    @pytest.mark.req("WF-14")
    async def test_cancelled_before_it_began_nothing_is_started(self) -> None:
        ran: list[int] = []
        task = asyncio.create_task(
            Workflow([Step("a", lambda _c: ran.append(1))]).run()
        )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ran
