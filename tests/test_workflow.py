"""Workflows: what steps see and return, in which order they run, how they go on."""

from __future__ import annotations

import asyncio
import functools
import json
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from executionkit import (
    ApprovalDecision,
    ApprovalDeniedError,
    ApprovalGate,
    ApprovalRequest,
    BudgetExhaustedError,
    DeadlineExceededError,
    EvaluatorError,
    ExecutionContext,
    MemoryTraceSink,
    PatternResult,
    RetryConfig,
    Step,
    TokenUsage,
    Workflow,
    WorkflowCheckpoint,
    WorkflowError,
    WorkflowResult,
    consensus,
    execution_scope,
)
from executionkit.testing import FakeClock, ScriptedProvider, settle
from executionkit.types import thaw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ONE = TokenUsage(10, 2, 1)


def gives(value: Any, cost: TokenUsage | None = None) -> Callable[[Any], Any]:
    async def run(_context: dict[str, Any]) -> Any:
        return value if cost is None else PatternResult(value, cost=cost)

    return run


def takes(
    clock: FakeClock, seconds: float, log: list[tuple[str, float]], name: str
) -> Callable[[Any], Awaitable[str]]:
    async def run(_context: dict[str, Any]) -> str:
        log.append((name, clock.monotonic() - 1000))
        await clock.sleep(seconds)
        return name

    return run


def kinds(sink: MemoryTraceSink) -> list[tuple[str, str]]:
    return [
        (event.kind.removeprefix("workflow_step_"), event.payload["step"])
        for event in sink.events
        if event.kind.startswith("workflow_step")
    ]


@pytest.mark.req("workflow.steps")
class TestSteps:
    async def test_outputs_and_costs_come_together(self) -> None:
        workflow = Workflow(
            [
                Step("a", gives("A", ONE)),
                Step("b", lambda context: context["a"].lower(), ("a",)),
                Step("c", gives({"n": [1]}), ("b",)),
            ]
        )
        result = await workflow.run()
        assert result == WorkflowResult({"a": "A", "b": "a", "c": {"n": [1]}}, ONE)
        assert list(result.outputs) == ["a", "b", "c"]
        assert [step.name for step in workflow.steps] == ["a", "b", "c"]
        assert isinstance(workflow.steps, tuple)

    async def test_a_pattern_is_a_step(self) -> None:
        provider = ScriptedProvider(["42"] * 3)
        workflow = Workflow(
            [Step("ask", lambda c: consensus(provider, c["q"], num_samples=3))]
        )
        result = await workflow.run({"q": "6 * 7?"})
        assert result.outputs["ask"] == "42"
        assert result.cost.llm_calls == 3

    async def test_a_workflow_is_a_step(self) -> None:
        inner = Workflow([Step("x", gives(1, ONE))])
        result = await Workflow([Step("in", lambda _c: inner.run())]).run()
        assert result.outputs["in"] == {"x": 1}
        assert result.cost == ONE

    async def test_outputs_are_read_only(self) -> None:
        result = await Workflow([Step("a", gives({"n": [1]}))]).run({"x": [2]})
        with pytest.raises(TypeError):
            result.outputs["b"] = 1  # type: ignore[index]
        with pytest.raises(TypeError):
            result.outputs["a"]["n"].append(2)
        with pytest.raises(TypeError):
            result.outputs["x"].append(2)

    async def test_the_result_is_a_value(self) -> None:
        result = await Workflow([Step("a", gives(1, ONE))]).run()
        assert pickle.loads(pickle.dumps(result)) == result
        assert hash(result) == hash(WorkflowResult({"a": 1}, ONE))

    async def test_an_empty_workflow_gives_back_its_context(self) -> None:
        assert (await Workflow([]).run({"x": 1})).outputs == {"x": 1}

    @pytest.mark.req("WF-05")
    async def test_one_function_may_serve_many_steps(self) -> None:
        def f(context: dict[str, Any]) -> int:
            return len(context)

        steps = [Step("f", f), Step("g", f, ("f",)), Step("f2", f, ("g",))]
        assert (await Workflow(steps).run()).outputs == {"f": 0, "g": 1, "f2": 2}

    async def test_a_blocking_step_gets_a_thread(self) -> None:
        def where(_context: dict[str, Any]) -> int:
            return threading.get_ident()

        result = await Workflow(
            [Step("loop", where), Step("thread", where, in_thread=True)]
        ).run()
        assert result.outputs["loop"] == threading.get_ident()
        assert result.outputs["thread"] != threading.get_ident()

    async def test_a_workflow_runs_many_times_at_once(self) -> None:
        workflow = Workflow([Step("a", lambda c: c["n"])])
        results = await asyncio.gather(*(workflow.run({"n": n}) for n in range(5)))
        assert [result.outputs["a"] for result in results] == list(range(5))


@pytest.mark.req("workflow.steps")
class TestArguments:
    @pytest.mark.parametrize(
        ("make", "error", "words"),
        [
            (lambda: Step(1, gives(1)), TypeError, "`name` of a step"),  # type: ignore[arg-type]
            (lambda: Step("", gives(1)), ValueError, "not be empty"),
            (lambda: Step("a", 5), TypeError, "run of 'a'"),  # type: ignore[arg-type]
            (lambda: Step("a", gives(1), "bc"), TypeError, r"\('bc',\)"),  # type: ignore[arg-type]
            (lambda: Step("a", gives(1), (1,)), TypeError, "must hold names"),  # type: ignore[arg-type]
            (lambda: Step("a", gives(1), (), 3), TypeError, "`metadata`"),  # type: ignore[arg-type]
            (lambda: Step("a", gives(1), timeout=0), ValueError, "timeout"),
            (lambda: Step("a", gives(1), retry=3), TypeError, "max_retries=3"),  # type: ignore[arg-type]
            (lambda: Step("a", gives(1), when=3), TypeError, "when of 'a'"),  # type: ignore[arg-type]
            (lambda: Step("a", gives(1), on_skipped="no"), ValueError, "on_skipped"),  # type: ignore[arg-type]
            (lambda: Workflow([gives(1)]), TypeError, "Step values"),  # type: ignore[list-item]
            (lambda: Workflow([], max_concurrency=0), ValueError, "max_concurrency"),
            (lambda: Workflow([], on_failure="no"), ValueError, "on_failure"),  # type: ignore[arg-type]
        ],
    )
    def test_what_cannot_work_is_refused_at_once(
        self, make: Callable[[], object], error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            make()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"trace": 1}, "trace"),
            ({"approval_gate": lambda _: True}, "approval_gate"),
            ({"checkpoint_fn": 3}, "checkpoint_fn"),
            ({"resume_from": {"outputs": {}}}, "from_dict"),
            ({"max_cost": 3}, "llm_calls=3"),
            ({"initial_context": [1]}, "initial_context"),
        ],
    )
    async def test_arguments_of_a_run_are_checked_before_anything_runs(
        self, options: dict[str, Any], words: str
    ) -> None:
        ran: list[int] = []
        with pytest.raises(TypeError, match=words):
            await Workflow([Step("a", lambda _c: ran.append(1))]).run(**options)
        assert not ran


@pytest.mark.req("workflow.check")
@pytest.mark.req("D-30")
class TestTheGraph:
    def test_names_are_unique(self) -> None:
        with pytest.raises(ValueError, match="unique"):
            Workflow([Step("a", gives(1)), Step("a", gives(2))])

    def test_dependencies_exist(self) -> None:
        with pytest.raises(ValueError, match="'b' depends on unknown steps: 'nope'"):
            Workflow([Step("b", gives(1), ("nope",))])

    def test_a_cycle_is_found_before_anything_runs(self) -> None:
        with pytest.raises(WorkflowError, match="could not be resolved") as caught:
            Workflow(
                [
                    Step("a", gives(1), ("c",)),
                    Step("b", gives(1), ("a",)),
                    Step("c", gives(1), ("b",)),
                    Step("d", gives(1)),
                    Step("waits", gives(1), ("c",)),
                ]
            )
        assert caught.value.metadata == {"cycles": [["a", "b", "c"]]}

    @pytest.mark.req("WF-01")
    def test_a_name_given_twice_hides_no_cycle(self) -> None:
        with pytest.raises(ValueError, match="unique") as caught:
            Workflow([Step("a", gives(1), ("a",)), Step("a", gives(1))])
        assert isinstance(caught.value, WorkflowError)
        assert caught.value.metadata == {
            "duplicate_names": ["a"],
            "self_dependencies": ["a"],
        }

    @pytest.mark.req("WF-02")
    def test_one_error_tells_all(self) -> None:
        with pytest.raises(WorkflowError) as caught:
            Workflow(
                [
                    Step("b", gives(1), ("nope",)),
                    Step("x", gives(1), ("y",)),
                    Step("y", gives(1), ("x",)),
                ]
            )
        assert caught.value.metadata == {
            "unknown_dependencies": {"b": ["nope"]},
            "cycles": [["x", "y"]],
        }
        for word in ("'nope'", "'x', 'y'"):
            assert word in str(caught.value)


@pytest.mark.req("workflow.dataflow")
class TestOrder:
    @pytest.mark.req("D-30")
    async def test_a_step_starts_when_its_own_inputs_are_there(
        self, auto_clock: FakeClock
    ) -> None:
        log: list[tuple[str, float]] = []
        step = functools.partial(takes, auto_clock)
        workflow = Workflow(
            [
                Step("slow", step(1.0, log, "slow")),
                Step("quick", step(0.05, log, "quick")),
                Step("child", step(0.0, log, "child"), ("quick",)),
                Step("join", step(0.0, log, "join"), ("slow", "child")),
            ]
        )
        await workflow.run()
        assert dict(log) == {
            "slow": 0,
            "quick": 0,
            "child": pytest.approx(0.05),
            "join": pytest.approx(1.0),
        }

    async def test_the_longest_chain_goes_first(self, auto_clock: FakeClock) -> None:
        log: list[tuple[str, float]] = []
        step = functools.partial(takes, auto_clock, 1.0, log)
        workflow = Workflow(
            [
                Step("lone", step("lone")),
                Step("head", step("head")),
                Step("tail", step("tail"), ("head",)),
            ],
            max_concurrency=1,
        )
        await workflow.run()
        assert log[0][0] == "head"

    @pytest.mark.req("workflow.concurrency")
    @pytest.mark.req("D-30")
    @pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (None, 30), ("", 10)])
    async def test_no_more_run_at_once_than_allowed(
        self, limit: Any, most: int
    ) -> None:
        now = peak = 0

        async def run(_context: dict[str, Any]) -> None:
            nonlocal now, peak
            now += 1
            peak = max(peak, now)
            await settle(3)
            now -= 1

        options = {} if limit == "" else {"max_concurrency": limit}
        await Workflow([Step(f"s{n}", run) for n in range(30)], **options).run()
        assert peak == most

    @pytest.mark.req("workflow.concurrency")
    async def test_who_waits_takes_no_place(self, auto_clock: FakeClock) -> None:
        asked = asyncio.Event()

        async def decide(request: ApprovalRequest) -> bool:
            if request.subject == "asks":
                await asked.wait()
            return True

        attempts: list[float] = []

        def flaky(_context: dict[str, Any]) -> str:
            attempts.append(auto_clock.monotonic())
            if len(attempts) == 1:
                raise ConnectionError
            return "ok"

        workflow = Workflow(
            [
                Step("asks", gives(1)),
                Step(
                    "flaky",
                    flaky,
                    retry=RetryConfig(2, 50.0, retryable=(ConnectionError,)),
                ),
                Step("last", lambda _c: asked.set()),
            ],
            max_concurrency=1,
        )
        async with asyncio.timeout(5):
            result = await workflow.run(approval_gate=ApprovalGate(decide))
        assert list(result.outputs) == ["asks", "flaky", "last"]


@pytest.mark.req("workflow.context")
class TestContext:
    async def test_a_step_sees_what_it_depends_on_and_the_context(self) -> None:
        seen: dict[str, Any] = {}

        def look(name: str) -> Callable[[dict[str, Any]], str]:
            def run(context: dict[str, Any]) -> str:
                seen[name] = dict(context)
                return name

            return run

        await Workflow(
            [
                Step("a", look("a")),
                Step("aside", look("aside")),
                Step("b", look("b"), ("a",)),
                Step("c", look("c"), ("b",)),
            ]
        ).run({"x": 0})
        assert seen == {
            "a": {"x": 0},
            "aside": {"x": 0},
            "b": {"x": 0, "a": "a"},
            "c": {"x": 0, "a": "a", "b": "b"},
        }

    async def test_the_context_is_the_step_s_own(self) -> None:
        def spoil(context: dict[str, Any]) -> None:
            context["x"].append(9)
            context["a"]["n"].append(9)
            context["new"] = 1

        given = {"x": [0]}
        result = await Workflow(
            [
                Step("a", gives({"n": [1]})),
                Step("spoil", spoil, ("a",)),
                Step("see", lambda c: dict(c), ("spoil",)),
            ]
        ).run(given)
        assert given == {"x": [0]}
        assert result.outputs["see"] == {"x": [0], "a": {"n": [1]}, "spoil": None}

    async def test_many_ways_to_the_same_step_are_walked_once(self) -> None:
        steps = [Step("l0", gives(0)), Step("r0", gives(0))]
        for n in range(1, 60):
            before = (f"l{n - 1}", f"r{n - 1}")
            steps += [Step(f"{side}{n}", len, before) for side in "lr"]
        async with asyncio.timeout(5):
            result = await Workflow(steps).run()
        assert result.outputs["l59"] == 118

    async def test_a_key_of_the_context_is_no_name_of_a_step(self) -> None:
        ran: list[int] = []
        with pytest.raises(ValueError, match=r"\['a'\]"):
            await Workflow([Step("a", lambda _c: ran.append(1))]).run({"a": 1})
        assert not ran


@pytest.mark.req("workflow.condition")
class TestConditions:
    async def test_what_is_not_wanted_is_left_out_with_what_needs_it(self) -> None:
        sink = MemoryTraceSink()

        async def no(_context: dict[str, Any]) -> bool:
            return False

        result = await Workflow(
            [
                Step("a", gives(1), when=lambda c: c["go"]),
                Step("b", gives(2), ("a",), when=no),
                Step("c", gives(3), ("b",)),
                Step("d", gives(4), ("a",)),
            ]
        ).run({"go": True}, trace=sink)
        assert result.outputs == {"go": True, "a": 1, "d": 4}
        assert result.skipped == ("b", "c")
        reasons = {
            event.payload["step"]: event.payload["reason"]
            for event in sink.events
            if event.kind == "workflow_step_skipped"
        }
        assert reasons == {"b": "condition", "c": "dependency"}

    @pytest.mark.req("WF-15")
    async def test_a_step_may_do_without(self) -> None:
        result = await Workflow(
            [
                Step("one", gives(1), when=lambda _c: False),
                Step("two", gives(2)),
                Step(
                    "join",
                    lambda c: sorted(c),
                    ("one", "two"),
                    on_skipped="run",
                ),
            ]
        ).run()
        assert result.outputs == {"two": 2, "join": ["two"]}
        assert result.skipped == ("one",)

    async def test_a_condition_that_fails_is_an_error(self) -> None:
        def broken(_context: dict[str, Any]) -> bool:
            raise KeyError("x")

        with pytest.raises(EvaluatorError, match="condition of step 'a'") as caught:
            await Workflow([Step("a", gives(1), when=broken)]).run()
        assert caught.value.metadata["step"] == "a"


@pytest.mark.req("workflow.gate")
class TestTheGate:
    async def test_it_is_asked_before_a_step_starts(self) -> None:
        log: list[Any] = []

        def decide(request: ApprovalRequest) -> bool:
            log.append(("ask", request))
            return True

        workflow = Workflow(
            [Step("a", gives(1)), Step("b", gives(2), ("a",), {"risk": "high"})]
        )
        await workflow.run(
            approval_gate=ApprovalGate(decide),
            trace=lambda event: log.append((event.kind, event.payload.get("step"))),
        )
        log = [item for item in log if item[0] not in {"pattern_start", "wait"}]
        assert log[0] == (
            "ask",
            ApprovalRequest("workflow_step", "a", {"depends_on": []}),
        )
        assert log[1] == ("workflow_step_start", "a")
        facts = {"depends_on": ["a"], "risk": "high"}
        assert log[3] == ("ask", ApprovalRequest("workflow_step", "b", facts))

    @pytest.mark.req("D-30")
    async def test_a_denial_leaves_work_in_progress_alone(self) -> None:
        asked, may_end = asyncio.Event(), asyncio.Event()

        async def pay(_context: dict[str, Any]) -> str:
            asked.set()
            await may_end.wait()
            return "paid"

        async def decide(request: ApprovalRequest) -> ApprovalDecision:
            if request.subject == "pay":
                return ApprovalDecision(approved=True)
            await asked.wait()
            asyncio.get_running_loop().call_later(0.01, may_end.set)
            return ApprovalDecision(approved=False, reason="no way")

        workflow = Workflow(
            [Step("pay", pay), Step("drop", gives(1)), Step("next", gives(1), ("pay",))]
        )
        async with asyncio.timeout(5):
            with pytest.raises(ApprovalDeniedError, match="no way") as caught:
                await workflow.run(approval_gate=ApprovalGate(decide))
        assert caught.value.metadata["outputs"] == {"pay": "paid"}
        assert caught.value.metadata["step"] == "drop"
        assert caught.value.metadata["not_run"] == ("next",)

    async def test_a_callback_that_fails_lets_nothing_through(self) -> None:
        ran: list[int] = []

        async def decide(_request: ApprovalRequest) -> bool:
            raise OSError("no line")

        with pytest.raises(EvaluatorError, match="approval of step 'a'"):
            await Workflow([Step("a", lambda _c: ran.append(1))]).run(
                approval_gate=ApprovalGate(decide)
            )
        assert not ran


@pytest.mark.req("workflow.checkpoint")
class TestCheckpoints:
    async def test_each_finished_step_is_kept(self) -> None:
        kept: list[WorkflowCheckpoint] = []
        await Workflow(
            [Step("a", gives(1, ONE)), Step("b", gives(2, ONE), ("a",))]
        ).run({"secret": "x"}, checkpoint_fn=kept.append)
        assert kept == [
            WorkflowCheckpoint(1, {"a": 1}, ONE),
            WorkflowCheckpoint(2, {"a": 1, "b": 2}, ONE + ONE),
        ]

    async def test_it_is_kept_before_what_waits_for_it_starts(self) -> None:
        log: list[str] = []

        async def save(checkpoint: WorkflowCheckpoint) -> None:
            await settle(3)
            log.append(f"saved {len(checkpoint.outputs)}")

        await Workflow(
            [
                Step("a", lambda _c: log.append("a")),
                Step("b", lambda _c: log.append("b"), ("a",)),
            ]
        ).run(checkpoint_fn=save)
        assert log == ["a", "saved 1", "b", "saved 2"]

    async def test_its_error_passes_as_it_is(self) -> None:
        error = OSError("disk full")
        log: list[str] = []

        async def slow(_context: dict[str, Any]) -> None:
            await settle(5)
            log.append("slow ended")

        def save(_checkpoint: WorkflowCheckpoint) -> None:
            log.append("save")
            raise error

        with pytest.raises(OSError, match="disk full") as caught:
            await Workflow(
                [
                    Step("a", gives(1)),
                    Step("slow", slow),
                    Step("b", lambda _c: log.append("b"), ("a",)),
                ]
            ).run(checkpoint_fn=save)
        assert caught.value is error
        assert log == ["save", "slow ended"]

    def test_it_is_plain_data_and_back(self) -> None:
        cost = TokenUsage(1, 2, 3, cache_read_tokens=1)
        checkpoint = WorkflowCheckpoint(2, {"a": [1, {"b": None}]}, cost)
        data = json.loads(json.dumps(checkpoint.to_dict()))
        assert WorkflowCheckpoint.from_dict(data) == checkpoint
        plain = WorkflowCheckpoint(0, {}, TokenUsage(1, 2, 3)).to_dict()
        counts = {"input_tokens": 1, "output_tokens": 2, "llm_calls": 3}
        assert plain == {"step_index": 0, "outputs": {}, "cost": counts}

    @pytest.mark.req("D-30")
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"step_index": ...}, "step_index"),
            ({"outputs": ...}, "outputs"),
            ({"cost": ...}, "cost"),
            ({"cost": {"input_tokens": 1, "llm_calls": 1}}, r"cost\.output_tokens"),
            ({"cost": 5}, "cost"),
            ({"outputs": [1]}, "outputs"),
            ({"step_index": None}, "step_index"),
            ({"step_index": -1}, "step_index"),
            ({"step_index": True}, "step_index"),
            (
                {"cost": {"input_tokens": -1, "output_tokens": 1, "llm_calls": 1}},
                r"cost\.input_tokens",
            ),
            (
                {"cost": {"input_tokens": 1, "output_tokens": "1", "llm_calls": 1}},
                r"cost\.output_tokens",
            ),
        ],
    )
    def test_wrong_data_is_refused_with_its_place(
        self, change: dict[str, Any], words: str
    ) -> None:
        data = {**WorkflowCheckpoint(1, {"a": 1}, ONE).to_dict(), **change}
        data = {key: value for key, value in data.items() if value is not ...}
        with pytest.raises(ValueError, match=words):
            WorkflowCheckpoint.from_dict(data)
        with pytest.raises(ValueError, match="mapping"):
            WorkflowCheckpoint.from_dict([])  # type: ignore[arg-type]


@pytest.mark.req("workflow.resume")
class TestResuming:
    async def test_what_is_done_is_not_done_again(self) -> None:
        ran: list[str] = []

        def note(name: str) -> Callable[[dict[str, Any]], Any]:
            def run(context: dict[str, Any]) -> Any:
                ran.append(name)
                return PatternResult([name, thaw(context)], cost=ONE)

            return run

        workflow = Workflow([Step("a", note("a")), Step("b", note("b"), ("a",))])
        earlier = WorkflowCheckpoint(1, {"a": "old"}, TokenUsage(1, 1, 1))
        result = await workflow.run(resume_from=earlier)
        assert ran == ["b"]
        assert result.outputs == {"a": "old", "b": ["b", {"a": "old"}]}
        assert result.cost == TokenUsage(1, 1, 1) + ONE

    @pytest.mark.req("D-30")
    async def test_the_initial_context_counts(self) -> None:
        workflow = Workflow([Step("a", gives(1)), Step("b", lambda c: c["x"], ("a",))])
        earlier = WorkflowCheckpoint(1, {"a": 1, "x": "from another program"}, ONE)
        result = await workflow.run({"x": "now"}, resume_from=earlier)
        assert result.outputs == {"x": "now", "a": 1, "b": "now"}

    @pytest.mark.req("WF-08")
    async def test_a_join_runs_once_after_what_was_under_way(self) -> None:
        ran: list[str] = []

        def note(name: str) -> Callable[[Any], None]:
            return lambda _context: ran.append(name)

        workflow = Workflow(
            [
                Step("p1", note("p1")),
                Step("p2", note("p2")),
                Step("j", note("j"), ("p1", "p2")),
            ]
        )
        await workflow.run(resume_from=WorkflowCheckpoint(1, {"p1": None}))
        assert ran == ["p2", "j"]

    async def test_the_checkpoint_of_an_error_goes_on(self) -> None:
        provider = {"down": True}
        ran: list[str] = []

        def b(_context: dict[str, Any]) -> str:
            ran.append("b")
            if provider["down"]:
                raise ConnectionError("down")
            return "b"

        def a(_context: dict[str, Any]) -> PatternResult[str]:
            ran.append("a")
            return PatternResult("a", cost=ONE)

        workflow = Workflow([Step("a", a), Step("b", b, ("a",))])
        with pytest.raises(EvaluatorError) as caught:
            await workflow.run()
        provider["down"] = False
        checkpoint = caught.value.metadata["checkpoint"]
        result = await workflow.run(resume_from=checkpoint)
        assert ran == ["a", "b", "b"]
        assert result == WorkflowResult({"a": "a", "b": "b"}, ONE)

    async def test_nothing_is_left_to_do(self) -> None:
        workflow = Workflow([Step("a", gives(1))])
        result = await workflow.run(resume_from=WorkflowCheckpoint(1, {"a": 7}, ONE))
        assert result == WorkflowResult({"a": 7}, ONE)


@pytest.mark.req("workflow.trace")
class TestTrace:
    async def test_events_come_in_pairs_with_the_same_id_in_each_run(self) -> None:
        first, second = MemoryTraceSink(), MemoryTraceSink()
        workflow = Workflow([Step("a", gives(1)), Step("b", gives(1), ("a",))])
        await workflow.run(trace=first)
        await workflow.run(trace=second)
        assert kinds(first) == [
            ("start", "a"),
            ("end", "a"),
            ("start", "b"),
            ("end", "b"),
        ]
        ids = [event.payload["call_id"] for event in first.events[1:-1]]
        assert ids == [event.payload["call_id"] for event in second.events[1:-1]]
        assert ids[0] == ids[1] != ids[2] == ids[3]
        assert first.events[2].payload["duration"] >= 0

    @pytest.mark.req("D-38")
    async def test_a_failure_ends_what_was_started(self, auto_clock: FakeClock) -> None:
        sink = MemoryTraceSink()
        retry = RetryConfig(1, retryable=(ValueError,))

        def boom(_context: dict[str, Any]) -> None:
            raise ValueError("boom")

        with pytest.raises(EvaluatorError):
            await Workflow([Step("a", boom, retry=retry)]).run(trace=sink)
        assert kinds(sink) == [("start", "a"), ("retry", "a"), ("error", "a")]
        told = {event.kind: event.payload for event in sink.events}
        assert told["workflow_step_retry"]["attempt"] == 1
        error = told["workflow_step_error"]
        assert error["error_type"] == "EvaluatorError"
        assert error["code"] == error["error"] == "EVALUATOR_FAILED"

    async def test_a_failing_sink_changes_nothing(self) -> None:
        def sink(_event: object) -> None:
            raise OSError

        assert (await Workflow([Step("a", gives(1))]).run(trace=sink)).outputs["a"] == 1

    @pytest.mark.req("WF-12")
    async def test_ids_do_not_depend_on_who_ends_first(
        self, auto_clock: FakeClock
    ) -> None:
        seen: set[tuple[str, ...]] = set()
        for times in ((1, 2, 3), (3, 1, 2), (2, 3, 1)):
            sink = MemoryTraceSink()
            log: list[tuple[str, float]] = []
            steps = [
                Step(f"s{n}", takes(auto_clock, seconds, log, f"s{n}"))
                for n, seconds in enumerate(times)
            ]
            await Workflow([*steps, Step("end", gives(1), ("s0", "s1", "s2"))]).run(
                trace=sink
            )
            seen.add(
                tuple(
                    event.payload["call_id"]
                    for event in sink.events
                    if event.kind == "workflow_step_start"
                )
            )
        assert len(seen) == 1


@pytest.mark.req("workflow.budget")
class TestBudgetAndDeadline:
    async def test_nothing_begins_when_the_budget_is_spent(self) -> None:
        ran: list[str] = []

        def run(_context: dict[str, Any]) -> PatternResult[int]:
            ran.append("x")
            return PatternResult(1, cost=ONE)

        steps = [Step("a", run), Step("b", run, ("a",)), Step("c", run, ("b",))]
        with pytest.raises(BudgetExhaustedError) as caught:
            await Workflow(steps).run(max_cost=TokenUsage(llm_calls=2))
        assert ran == ["x", "x"]
        assert caught.value.cost == ONE + ONE
        assert caught.value.metadata["outputs"] == {"a": 1, "b": 1}
        assert caught.value.metadata["step"] == "c"

    async def test_the_deadline_ends_all_and_keeps_what_is_done(
        self, auto_clock: FakeClock
    ) -> None:
        ended: list[str] = []
        kept: list[WorkflowCheckpoint] = []

        async def endless(_context: dict[str, Any]) -> None:
            try:
                await auto_clock.sleep(1000)
            finally:
                ended.append("endless")

        workflow = Workflow([Step("a", gives(1, ONE)), Step("endless", endless)])
        with (
            execution_scope(ExecutionContext.with_deadline(2)),
            pytest.raises(DeadlineExceededError) as caught,
        ):
            await workflow.run(checkpoint_fn=kept.append)
        assert ended == ["endless"]
        assert caught.value.cost == ONE
        assert caught.value.metadata["outputs"] == {"a": 1}
        assert len(kept) == 1
