"""The events of a run make a tree: who belongs to whom, attempts, waits."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from executionkit import (
    ApprovalGate,
    BulkheadConfig,
    ExecutionContext,
    MemoryTraceSink,
    Plan,
    PlanError,
    PlanStep,
    PrometheusMetrics,
    ProviderError,
    RateLimitError,
    RetryConfig,
    Step,
    SubprocessStrategy,
    TokenBucket,
    Tool,
    ToolCall,
    ToolCallSpec,
    ToolProcessor,
    TraceEvent,
    Workflow,
    consensus,
    execution_scope,
    map_reduce,
    pipe,
    react_loop,
    refine_loop,
    structured,
)
from executionkit.cost import CostTracker
from executionkit.patterns.base import checked_complete, spending
from executionkit.testing import FakeClock, ScriptedProvider, tool_call_reply
from executionkit.tools.registry import create_registry
from tests.tools import isolation_tools

ASK = [{"role": "user", "content": "?"}]


def by_kind(sink: MemoryTraceSink, kind: str) -> list[Any]:
    return [event.payload for event in sink.events if event.kind == kind]


def check_tree(events: list[TraceEvent]) -> dict[str, str | None]:
    """Each pair has an id of its own and a parent that is there; gives the parents."""
    parents: dict[str, str | None] = {}
    open_ids: set[str] = set()
    for event in events:
        facts = event.payload
        if event.kind.endswith("_start"):
            assert len(bytes.fromhex(facts["span_id"])) == 8
            assert facts["span_id"] not in parents
            parents[facts["span_id"]] = facts["parent_id"]
            open_ids.add(facts["span_id"])
        elif event.kind.endswith(("_end", "_error")):
            assert parents[facts["span_id"]] == facts["parent_id"]
            open_ids.remove(facts["span_id"])
    assert not open_ids
    assert {parent for parent in parents.values() if parent} <= parents.keys()
    return parents


async def double(n: int) -> int:
    return n * 2


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.req("trace.tree")
class TestTree:
    async def test_each_pattern_is_the_parent_of_its_calls(self) -> None:
        runs: dict[str, Any] = {
            "consensus": lambda p, t: consensus(p, "?", num_samples=2, trace=t),
            "refine_loop": lambda p, t: refine_loop(
                p, "?", evaluator=lambda *_: 1.0, trace=t
            ),
            "structured": lambda p, t: structured(p, "?", trace=t),
            "react_loop": lambda p, t: react_loop(p, "?", trace=t),
            "map_reduce": lambda p, t: map_reduce(
                p,
                ["a", "b"],
                map_prompt_template="{item}",
                reduce_prompt_template="{mapped_outputs}",
                trace=t,
            ),
        }
        for name, run in runs.items():
            sink = MemoryTraceSink()
            result = await run(ScriptedProvider(lambda _: '{"a": 1}'), sink)
            parents = check_tree(sink.events)
            [start] = by_kind(sink, "pattern_start")
            [end] = by_kind(sink, "pattern_end")
            assert start["pattern"] == end["pattern"] == name
            assert start["parent_id"] is None
            assert (end["cost"], "error" in end) == (result.cost, False)
            calls = by_kind(sink, "llm_call_start")
            assert calls
            assert {parents[c["span_id"]] for c in calls} == {start["span_id"]}

    @pytest.mark.parametrize("fails", [False, True])
    async def test_a_plan_of_tools_is_the_parent_of_its_calls(
        self, *, fails: bool
    ) -> None:
        sink = MemoryTraceSink()

        async def step(n: int) -> int:
            if fails and n == 2:
                raise ValueError("two")
            return n

        calls = [
            ToolCallSpec(
                f"c{n}", "step", {"n": n}, depends_on=(f"c{n - 1}",) if n > 2 else ()
            )
            for n in range(4)
        ]
        async with ToolProcessor(create_registry(step), trace=sink) as processor:
            outcome = await processor.execute_plan(calls)
            await processor.process({"tool": "step", "arguments": {"n": 1}})
        assert outcome.is_success is not fails
        parents = check_tree(sink.events)
        [start] = by_kind(sink, "pattern_start")
        [end] = by_kind(sink, "pattern_end")
        assert start["pattern"] == end["pattern"] == "tool_plan"
        starts = by_kind(sink, "tool_call_start")
        inside, alone = starts[:-1], starts[-1]
        assert len(inside) == (3 if fails else 4)
        assert {parents[c["span_id"]] for c in inside} == {start["span_id"]}
        assert alone["parent_id"] is None  # the plan is over by then

    async def test_a_plan_that_is_cancelled_ends_with_an_error(self) -> None:
        sink, begun = MemoryTraceSink(), asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        async with ToolProcessor(create_registry(hang), trace=sink) as processor:
            run = processor.execute_plan([ToolCallSpec("a", "hang")])
            task = asyncio.ensure_future(run)
            async with asyncio.timeout(10):
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            check_tree(sink.events)
            with pytest.raises(PlanError):
                await processor.execute_plan(
                    [ToolCallSpec("a", "hang", depends_on=("b",))]
                )
        [end] = by_kind(sink, "pattern_end")  # none for what was refused
        assert end["error"] == "CancelledError"

    async def test_a_pipe_a_workflow_and_a_plan_hold_what_their_steps_do(self) -> None:
        sink = MemoryTraceSink()
        provider = ScriptedProvider(lambda _: "1")

        async def ask(_context: Any) -> Any:
            return await consensus(provider, "?", num_samples=1, trace=sink)

        await Workflow([Step("w", ask)]).run(trace=sink)
        await Plan([PlanStep("p", "", ask)]).execute(trace=sink)
        await pipe(provider, "?", consensus, trace=sink, num_samples=1)
        parents = check_tree(sink.events)
        names = {
            e.payload["span_id"]: e.payload.get("step") or e.payload.get("pattern")
            for e in sink.events
            if e.kind.endswith("_start")
        }
        chains = set()
        for span in names:
            chain: list[Any] = []
            at: str | None = span
            while at is not None:
                chain.append(names[at])
                at = parents[at]
            chains.add(tuple(reversed(chain)))
        assert ("workflow", "w", "consensus", None) in chains
        assert ("plan", "p", "consensus", None) in chains
        assert ("pipe", "consensus", None) in chains

    @pytest.mark.parametrize("in_thread", [False, True])
    async def test_what_a_tool_asks_belongs_to_the_tool(self, in_thread: bool) -> None:
        """Also when the tool is a plain function, which runs in a thread."""
        sink = MemoryTraceSink()
        inner = ScriptedProvider(lambda _: "1")

        async def ask(n: int = 0) -> str:
            return (await consensus(inner, "?", num_samples=1, trace=sink)).value

        def ask_in_thread(n: int = 0) -> str:
            return asyncio.run(ask())

        chosen: Any = ask_in_thread if in_thread else ask
        provider = ScriptedProvider([tool_call_reply(("ask", {"n": 1})), "done"])
        await react_loop(provider, "?", [Tool("ask", "", SCHEMA, chosen)], trace=sink)
        processor = ToolProcessor(
            create_registry(Tool("ask", "", SCHEMA, chosen)), trace=sink
        )
        await processor.execute([ToolCall("2", "ask", {"n": 1})])
        parents = check_tree(sink.events)
        tools = {facts["span_id"] for facts in by_kind(sink, "tool_call_start")}
        patterns = by_kind(sink, "pattern_start")
        assert [facts["pattern"] for facts in patterns] == [
            "react_loop",
            "consensus",
            "consensus",
        ]
        assert {parents[facts["span_id"]] for facts in patterns[1:]} == tools

    async def test_the_caller_in_another_process_is_the_parent(self) -> None:
        sink = MemoryTraceSink()
        there = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with execution_scope(ExecutionContext(traceparent=there)):
            await consensus(
                ScriptedProvider(lambda _: "1"), "?", num_samples=1, trace=sink
            )
        assert sink.events[0].payload["parent_id"] == "b7ad6b7169203331"

    async def test_a_worker_process_knows_the_call_as_its_parent(self) -> None:
        sink = MemoryTraceSink()
        worker = SubprocessStrategy(max_workers=1)
        processor = ToolProcessor(
            create_registry(isolation_tools.traceparent_seen),
            strategy=worker,
            trace=sink,
        )
        try:
            async with asyncio.timeout(20):
                [result] = await processor.execute([ToolCall("1", "traceparent_seen")])
        finally:
            await processor.close()
            await worker.shutdown()
        [start], [end] = (
            by_kind(sink, "tool_call_start"),
            by_kind(sink, "tool_call_end"),
        )
        assert str(result.result).split("-")[2] == start["span_id"]
        assert end["process"] == result.pid != os.getpid()

    async def test_a_failing_run_says_what_it_cost_and_why(self) -> None:
        sink = MemoryTraceSink()
        provider = ScriptedProvider(lambda _: ProviderError("down"))
        with pytest.raises(ProviderError):
            await consensus(
                provider, "?", num_samples=1, trace=sink, retry=RetryConfig(0)
            )
        check_tree(sink.events)
        [end] = by_kind(sink, "pattern_end")
        assert end["error"] == "LLM_PROVIDER_ERROR"
        assert end["cost"].llm_calls == 1
        assert end["duration"] >= 0

    async def test_a_pattern_of_ones_own_is_watched_by_name(
        self, fake_clock: FakeClock
    ) -> None:
        sink, tracker = MemoryTraceSink(), CostTracker()
        provider = ScriptedProvider(lambda _: "1")
        async with spending(tracker, pattern="mine", trace=sink):
            await checked_complete(provider, ASK, tracker, None, None, sink)
        check_tree(sink.events)
        assert [event.payload.get("pattern") for event in sink.events] == [
            "mine",
            None,
            None,
            "mine",
        ]

    async def test_nothing_stays_current_after_a_run(self) -> None:
        sink = MemoryTraceSink()
        for _ in range(2):
            await consensus(
                ScriptedProvider(lambda _: "1"), "?", num_samples=1, trace=sink
            )
        starts = by_kind(sink, "pattern_start")
        assert [facts["parent_id"] for facts in starts] == [None, None]


@pytest.mark.req("trace.attempts-and-waits")
class TestAttemptsAndWaits:
    async def test_a_model_call_tells_of_its_pauses(
        self, auto_clock: FakeClock
    ) -> None:
        sink = MemoryTraceSink()
        script: list[Any] = [
            ProviderError("1"),
            RateLimitError("2", retry_after=9.0),
            "yes",
        ]
        await checked_complete(
            ScriptedProvider(script), ASK, CostTracker(), None, None, sink, model="m"
        )
        starts = by_kind(sink, "llm_call_start")
        assert len({facts["span_id"] for facts in starts}) == 3
        assert [(f["model"], f["provider"]) for f in starts] == [
            ("m", "ScriptedProvider")
        ] * 3
        waits = by_kind(sink, "wait")
        assert [wait["reason"] for wait in waits] == ["backoff", "retry_after"]
        assert waits[1]["duration"] == 9.0
        # A pause belongs to the attempt that it comes before.
        assert [w["parent_id"] for w in waits] == [s["span_id"] for s in starts[1:]]
        assert len({f["call_id"] for f in [*starts, *waits]}) == 1
        assert by_kind(sink, "llm_call_end")[0]["attempts"] == 3

    async def test_a_wait_is_told_with_the_time_at_which_it_ended(
        self, fake_clock: FakeClock
    ) -> None:
        sink = MemoryTraceSink()
        bucket = TokenBucket(rate=0.5)
        assert bucket.try_acquire()
        retry = RetryConfig(rate_limit_strategy=bucket)
        call = checked_complete(
            ScriptedProvider(["yes"]), ASK, CostTracker(), None, retry, sink
        )
        began = fake_clock.wall()
        task = asyncio.create_task(call)
        await fake_clock.advance(2.0)
        await task
        [wait] = [event for event in sink.events if event.kind == "wait"]
        assert (wait.payload["reason"], wait.payload["duration"]) == ("permit", 2.0)
        assert wait.time - wait.payload["duration"] == began

    async def test_a_tool_call_tells_of_its_attempts(
        self, auto_clock: FakeClock
    ) -> None:
        sink, tries = MemoryTraceSink(), iter(range(9))

        async def flaky(n: int) -> int:
            await auto_clock.sleep(1.0)
            if next(tries) < 2:
                raise ConnectionError("lost")
            return n

        processor = ToolProcessor(
            create_registry(Tool("flaky", "", SCHEMA, flaky)),
            retry_config=RetryConfig(3, retryable=(ConnectionError,)),
            trace=sink,
        )
        await processor.execute([ToolCall("1", "flaky", {"n": 1})])
        [start] = by_kind(sink, "tool_call_start")
        attempts = by_kind(sink, "attempt")
        assert [(a["attempt"], a["duration"], a.get("error")) for a in attempts] == [
            (1, 1.0, "ConnectionError"),
            (2, 1.0, "ConnectionError"),
            (3, 1.0, None),
        ]
        waits = by_kind(sink, "wait")
        assert [wait["reason"] for wait in waits] == ["backoff", "backoff"]
        inside = [*attempts, *waits]
        assert {facts["parent_id"] for facts in inside} == {start["span_id"]}
        assert {facts["tool_call_id"] for facts in inside} == {"1"}
        [end] = by_kind(sink, "tool_call_end")
        assert (end["tool_name"], end["attempts"], end["cached"], end["blocked"]) == (
            "flaky",
            3,
            False,
            False,
        )

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"tool_rate_limits": {"slow": (1, 5.0)}}, "permit"),
            ({"max_concurrency": 1}, "slot"),
            ({"bulkhead_config": BulkheadConfig(default_limit=1)}, "slot"),
        ],
    )
    async def test_a_tool_call_tells_what_it_waited_for(
        self, options: dict[str, Any], reason: str, auto_clock: FakeClock
    ) -> None:
        sink = MemoryTraceSink()

        async def slow(n: int) -> int:
            await auto_clock.sleep(5.0)
            return n

        switches: dict[str, Any] = {
            "enable_rate_limiting": "tool_rate_limits" in options or None,
            "enable_bulkhead": "bulkhead_config" in options or None,
        }
        processor = ToolProcessor(
            create_registry(Tool("slow", "", SCHEMA, slow)),
            trace=sink,
            **switches,
            **options,
        )
        await asyncio.gather(
            *(processor.execute([ToolCall(str(n), "slow", {"n": n})]) for n in (1, 2))
        )
        [wait] = by_kind(sink, "wait")
        assert (wait["reason"], wait["duration"]) == (reason, 5.0)
        assert wait["tool_call_id"] == "2"
        # The attempt of a call that has waited is shorter than the call.
        [attempt] = by_kind(sink, "attempt")
        assert (attempt["parent_id"], attempt["duration"]) == (wait["parent_id"], 5.0)

    async def test_a_call_tells_how_long_it_waited_for_an_approval(
        self, auto_clock: FakeClock
    ) -> None:
        sink = MemoryTraceSink()

        async def decide(_request: Any) -> bool:
            await auto_clock.sleep(7.0)
            return True

        provider = ScriptedProvider([tool_call_reply(("double", {"n": 1})), "done"])
        await react_loop(
            provider,
            "?",
            [Tool("double", "", SCHEMA, double)],
            approval_gate=ApprovalGate(decide),
            trace=sink,
        )
        [wait] = by_kind(sink, "wait")
        [start] = by_kind(sink, "tool_call_start")
        assert (wait["reason"], wait["duration"]) == ("approval", 7.0)
        assert wait["parent_id"] == start["span_id"]

    async def test_a_step_tells_of_its_attempts_and_pauses(
        self, auto_clock: FakeClock
    ) -> None:
        sink, tries = MemoryTraceSink(), iter(range(9))

        def flaky(_context: Any) -> int:
            if next(tries) < 1:
                raise ConnectionError("lost")
            return 1

        retry = RetryConfig(2, retryable=(ConnectionError,))
        await Workflow([Step("s", flaky, retry=retry)]).run(trace=sink)
        [start] = by_kind(sink, "workflow_step_start")
        attempts, waits = by_kind(sink, "attempt"), by_kind(sink, "wait")
        assert [(a["attempt"], a.get("error")) for a in attempts] == [
            (1, "ConnectionError"),
            (2, None),
        ]
        assert [wait["reason"] for wait in waits] == ["backoff"]
        assert {f["parent_id"] for f in [*attempts, *waits]} == {start["span_id"]}

    async def test_what_never_waited_says_nothing_of_it(self) -> None:
        sink = MemoryTraceSink()
        processor = ToolProcessor(
            create_registry(Tool("double", "", SCHEMA, double)),
            retry_config=RetryConfig(3),
            trace=sink,
        )
        await processor.execute([ToolCall("1", "double", {"n": 1})])
        assert sink.kinds == ["tool_call_start", "tool_call_end"]


@pytest.mark.req("trace.refused-calls")
class TestRefusedCalls:
    async def test_an_unknown_tool_makes_a_pair_and_is_counted(self) -> None:
        sink = MemoryTraceSink()
        processor = ToolProcessor(
            create_registry(Tool("double", "", SCHEMA, double)), trace=sink
        )
        results = await processor.execute(
            [ToolCall("1", "nope", {"n": 1}), ToolCall("2", "double", {"n": 1})]
        )
        assert {result.call_id for result in results} == {"1", "2"}
        check_tree(sink.events)
        ends = {f["tool_call_id"]: f for f in by_kind(sink, "tool_call_end")}
        assert ends["1"]["tool_name"] == "nope"
        assert (ends["1"]["error"], ends["1"]["attempts"]) == ("TOOL_NOT_FOUND", 0)
        stats = await processor.stats()
        assert (stats.calls, stats.refused) == (1, 1)
        await ToolProcessor(create_registry()).execute([ToolCall("1", "nope")])

    async def test_a_call_without_room_in_the_budget_makes_a_pair(self) -> None:
        sink = MemoryTraceSink()
        processor = ToolProcessor(
            create_registry(Tool("double", "", SCHEMA, double, cost=2.0)), trace=sink
        )
        await processor.execute(
            [ToolCall("1", "double", {"n": 1})], context=ExecutionContext(budget=1.0)
        )
        [end] = by_kind(sink, "tool_call_end")
        assert end["error"] == "BUDGET_EXHAUSTED"
        assert (await processor.stats()).refused == 1

    async def test_a_call_that_a_guard_blocks_is_marked(self) -> None:
        from executionkit import ApprovalGuard

        sink = MemoryTraceSink()
        processor = ToolProcessor(
            create_registry(Tool("double", "", SCHEMA, double)),
            guards=[ApprovalGuard(ApprovalGate(lambda _: False))],
            trace=sink,
        )
        await processor.execute([ToolCall("1", "double", {"n": 1})])
        [end] = by_kind(sink, "tool_call_end")
        assert (end["blocked"], end["error"]) == (True, "TOOL_BLOCKED")


@pytest.mark.req("trace.replayed")
async def test_what_a_journal_answers_is_marked() -> None:
    from executionkit.journal import Journal, MemoryJournalStore

    store = MemoryJournalStore()
    runs: list[MemoryTraceSink] = []
    scripts: list[list[Any]] = [
        [tool_call_reply(("double", {"n": 1})), RuntimeError("crash")],
        ["done"],
    ]
    for script in scripts:
        sink = MemoryTraceSink()
        runs.append(sink)
        tools = [Tool("double", "", SCHEMA, double)]
        try:
            async with Journal(store, "run") as journal:
                await react_loop(
                    ScriptedProvider(script), "?", tools, trace=sink, journal=journal
                )
        except RuntimeError:
            assert sink is runs[0]
        check_tree(sink.events)
    first, second = runs
    assert not any("replayed" in event.payload for event in first.events)
    told = {e.kind for e in second.events if e.payload.get("replayed")}
    assert told == {"llm_call_start", "llm_call_end", "tool_call_end"}
    ends = [
        e.payload for e in second.events if e.kind in {"llm_call_end", "tool_call_end"}
    ]
    assert [facts.get("replayed", False) for facts in ends] == [True, True, False]
    registry = pytest.importorskip("prometheus_client").CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    for event in second.events:
        metrics(event)
    value = registry.get_sample_value
    assert value("executionkit_in_flight", {"operation": "tool_call"}) == 0
    who = {"provider": "ScriptedProvider", "model": "_unknown", "outcome": "ok"}
    assert value("executionkit_llm_calls_total", who) == 1
    tool = {"tool": "double", "outcome": "ok"}
    assert value("executionkit_tool_calls_total", tool) is None


@pytest.mark.req("trace.once")
async def test_a_call_that_loop_and_processor_tell_of_is_told_once(
    auto_clock: FakeClock,
) -> None:
    """With one sink for both; attempts and waits of the processor are inside."""
    tries = iter(range(9))

    async def flaky(n: int) -> int:
        if next(tries) < 1:
            raise ConnectionError("lost")
        return n

    events: list[TraceEvent] = []
    processor = ToolProcessor(
        create_registry(Tool("flaky", "", SCHEMA, flaky)),
        retry_config=RetryConfig(2, retryable=(ConnectionError,)),
        enable_caching=True,
        trace=events.append,
    )
    provider = ScriptedProvider([tool_call_reply(("flaky", {"n": 1})), "done"])
    await react_loop(provider, "?", processor, trace=events.append)
    check_tree(events)
    told = {event.kind: event.payload for event in events}
    kinds = [event.kind for event in events]
    assert kinds.count("tool_call_start") == kinds.count("tool_call_end") == 1
    assert kinds.count("attempt") == 2
    end = told["tool_call_end"]
    assert (end["attempts"], end["cacheable"], end["tool_name"]) == (2, True, "flaky")
    assert told["wait"]["parent_id"] == told["attempt"]["parent_id"] == end["span_id"]
    # Two sinks: each has all of it.
    inner = MemoryTraceSink()
    processor = ToolProcessor(
        create_registry(Tool("flaky", "", SCHEMA, flaky)), trace=inner
    )
    outer = MemoryTraceSink()
    provider = ScriptedProvider([tool_call_reply(("flaky", {"n": 1})), "done"])
    await react_loop(provider, "?", processor, trace=outer)
    assert "tool_call_end" in inner.kinds
    assert "tool_call_end" in outer.kinds
