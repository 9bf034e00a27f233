"""A tool loop with a journal: what was paid for and done is not paid for or done again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from executionkit._llm import LLMResponse
from executionkit.approval import (
    ApprovalDecision,
    ApprovalGate,
    ApprovalRequest,
    MemoryApprovalStore,
)
from executionkit.calls import ToolCall, ToolResult
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    ApprovalPendingError,
    BudgetExhaustedError,
    DeadlineExceededError,
    ErrorCode,
    InDoubtError,
    JournalError,
    JournalMismatchError,
    ProviderError,
)
from executionkit.journal import (
    EffectState,
    Journal,
    JournalEntry,
    MemoryJournalStore,
    current_journal,
)
from executionkit.kit import Kit
from executionkit.observability import MemoryTraceSink
from executionkit.patterns import react_loop
from executionkit.testing import FakeClock, ScriptedProvider, settle, tool_call_reply
from executionkit.tools.guard_rules import ApprovalGuard
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry
from executionkit.types import TokenUsage, Tool

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}
USAGE = {"prompt_tokens": 10, "completion_tokens": 1}


class Film(MemoryJournalStore):
    """A store that remembers what it held after each write: any moment can be a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[dict[str, JournalEntry]] = [{}]

    async def put(self, run: str, entry: JournalEntry) -> None:
        await super().put(run, entry)
        self.frames.append(dict(self._runs.get(run, {})))

    async def delete(self, run: str, effect_id: str) -> None:
        await super().delete(run, effect_id)
        self.frames.append(dict(self._runs.get(run, {})))

    def cut(self, effect_id: str, state: EffectState) -> MemoryJournalStore:
        """What was there right after this effect had come to this state."""
        for frame in self.frames:
            if effect_id in frame and frame[effect_id].state is state:
                return self.at(frame)
        pytest.fail(f"{effect_id} was never {state}")

    @staticmethod
    def at(frame: dict[str, JournalEntry]) -> MemoryJournalStore:
        store = MemoryJournalStore()
        store._runs["r"] = dict(frame)
        return store


class Shop:
    """Tools that count what they do."""

    def __init__(self, **facts: Any) -> None:
        self.done: list[tuple[str, int]] = []
        self.keys: list[str] = []
        self.pay = Tool("pay", "Pays.", SCHEMA, self._doing("pay"), **facts)
        self.note = Tool("note", "Notes.", SCHEMA, self._doing("note"), idempotent=True)
        self.look = Tool("look", "", SCHEMA, self._doing("look"), side_effects="read")

    @property
    def tools(self) -> list[Tool]:
        return [self.pay, self.note, self.look]

    def _doing(self, name: str) -> Callable[..., Any]:
        async def run(n: int) -> str:
            self.done.append((name, n))
            here = current_journal()
            self.keys.append("" if here is None else here.idempotency_key)
            return f"{name} {n}"

        return run


def calls(*given: tuple[str, int]) -> LLMResponse:
    return replace(
        tool_call_reply(*((name, {"n": n}) for name, n in given)), usage=USAGE
    )


def script(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies), usage=USAGE)


async def run(
    store: Any, provider: Any, tools: Any, prompt: str | None = "Buy.", **options: Any
) -> Any:
    async with Journal(store, "r") as journal:
        return await react_loop(provider, prompt, tools, journal=journal, **options)


async def filmed(shop: Shop, *replies: Any, **options: Any) -> tuple[Film, Any]:
    film = Film()
    result = await run(film, script(*replies), shop.tools, **options)
    shop.done.clear()
    return film, result


ROUNDS = (calls(("pay", 1), ("note", 2)), calls(("pay", 3)), "done")


@pytest.mark.req("journal.react")
class TestReplay:
    async def test_nothing_is_paid_for_or_done_again(self) -> None:
        shop = Shop()
        film, first = await filmed(shop, *ROUNDS)
        again = await run(film, script(), shop.tools)
        assert shop.done == []
        assert again.value == first.value == "done"
        assert again.cost == first.cost == TokenUsage(30, 3, 3)
        assert again.metadata["tool_results"] == first.metadata["tool_results"]
        assert again.metadata["messages"] == first.metadata["messages"]
        assert (first.metadata["replayed"], again.metadata["replayed"]) == (0, 6)
        assert again.metadata["replayed_cost"] == TokenUsage(30, 3, 3)
        assert first.metadata["replayed_cost"] == TokenUsage()

    async def test_after_a_crash_at_any_write_only_what_is_missing_is_done(
        self,
    ) -> None:
        shop = Shop(idempotent=True)
        film, first = await filmed(shop, *ROUNDS)
        effects = [("pay", 1), ("note", 2), ("pay", 3)]
        for frame in film.frames:
            shop.done.clear()
            finished = {e for e, x in frame.items() if x.state is EffectState.FINISHED}
            models = sum("model" in e for e in finished)
            again = await run(film.at(frame), script(*ROUNDS[models:]), shop.tools)
            assert again.cost == first.cost
            assert again.metadata["messages"] == first.metadata["messages"]
            assert sorted(shop.done) == sorted(effects)[: len(shop.done)] or shop.done
            assert len(shop.done) == len(effects) - sum("tool" in e for e in finished)

    async def test_the_metadata_say_nothing_of_it_without_a_journal(self) -> None:
        result = await react_loop(script("done"), "x")
        assert "replayed" not in result.metadata

    async def test_two_loops_of_one_run_have_places_of_their_own(self) -> None:
        store = MemoryJournalStore()
        for provider in (script("one", "two"), script()):
            async with Journal(store, "r") as journal:
                values = [
                    (await react_loop(provider, "same", journal=journal)).value
                    for _ in range(2)
                ]
            assert values == ["one", "two"]

    async def test_a_tool_may_have_a_loop_of_its_own(self) -> None:
        shop = Shop()
        inner = script(calls(("pay", 7)), "inner")

        async def ask(n: int) -> Any:
            result = await react_loop(
                inner, f"sub {n}", shop.tools, journal=current_journal()
            )
            return result.value

        agent = Tool("ask", "", SCHEMA, ask, idempotent=True)
        film = Film()
        await run(film, script(calls(("ask", 1)), "outer"), [agent])
        ids = list(film.frames[-1])
        nested = "react_loop:0/tool:0.0/react_loop:0"
        assert f"{nested}/tool:0.0" in ids
        # The process dies after the sub-agent has paid.
        store = film.cut(f"{nested}/tool:0.0", EffectState.FINISHED)
        inner = script("inner")
        result = await run(store, script("outer"), [agent])
        assert result.value == "outer"
        assert shop.done == [("pay", 7)]

    async def test_a_kit_hands_it_on(self) -> None:
        store = MemoryJournalStore()
        for provider in (script("one"), script()):
            async with Journal(store, "r") as journal:
                result = await Kit(provider).react("x", journal=journal)
            assert result.value == "one"

    async def test_it_tells_which_provider_had_answered(self) -> None:
        store = MemoryJournalStore()
        for provider in (script(LLMResponse("x", answered_by="second")), script()):
            result = await run(store, provider, [])
            assert result.metadata["answered_by"] == {"second": 1}

    async def test_something_else_is_refused(self) -> None:
        wrong: Any = "runs.db"
        with pytest.raises(TypeError, match=r"Journal\.open"):
            await react_loop(script(), "x", journal=wrong)

    async def test_ids_that_are_made_anew_are_no_other_program(self) -> None:
        shop = Shop()
        anonymous = LLMResponse("", (ToolCall("", "note", {"n": 1}),), "tool_calls")
        film, _ = await filmed(shop, anonymous, "done")
        again = await run(
            film.cut("react_loop:0/model:1", EffectState.STARTED),
            script("done"),
            shop.tools,
        )
        assert again.value == "done"
        film = Film()
        offer = '{"name": "note", "arguments": {"n": 1}}'
        first = await run(film, script(offer, "done"), shop.tools, tool_mode="json")
        again = await run(film, script(), shop.tools, tool_mode="json")
        assert again.value == first.value == "done"
        for result in (first, again):
            (one,) = result.metadata["tool_results"]
            (answer,) = [m for m in result.metadata["messages"] if m["role"] == "tool"]
            assert one.call_id == answer["tool_call_id"]

    async def test_summaries_are_on_record(self) -> None:
        shop, asked = Shop(), []

        async def summarize(messages: list[dict[str, Any]]) -> Any:
            asked.append(len(messages))
            return f"summary {random.random()}", TokenUsage(5, 5, 1)

        options: Any = {"max_history_messages": 3, "summarizer": summarize}
        film, first = await filmed(shop, *ROUNDS, **options)
        assert first.metadata["summarized"]
        count = len(asked)
        again = await run(film, script(), shop.tools, **options)
        assert len(asked) == count
        assert again.cost == first.cost


@pytest.mark.req("journal.react")
class TestChangedProgram:
    @pytest.mark.parametrize(
        "changed",
        [{"prompt": "Buy more."}, {"temperature": 0.9}, {"max_tokens": 7}, {"seed": 1}],
        ids=str,
    )
    async def test_another_request_is_refused_and_nothing_is_run(
        self, changed: Any
    ) -> None:
        shop = Shop()
        film, _ = await filmed(shop, *ROUNDS)
        provider = script()
        with pytest.raises(JournalMismatchError, match="react_loop:0/model:0"):
            await run(film, provider, shop.tools, **changed)
        assert provider.requests == []
        assert shop.done == []

    async def test_another_tool_on_offer_is_refused(self) -> None:
        shop = Shop()
        film, _ = await filmed(shop, *ROUNDS)
        with pytest.raises(JournalMismatchError):
            await run(film, script(), [shop.pay, shop.note])

    async def test_another_model_is_refused(self) -> None:
        store = MemoryJournalStore()
        first, second = ScriptedProvider(["one"]), ScriptedProvider(["two"])
        first.model, second.model = "m-1", "m-2"  # type: ignore[attr-defined]
        async with Journal(store, "r") as journal:
            await react_loop(first, "x", [], journal=journal)
        async with Journal(store, "r") as journal:
            with pytest.raises(JournalMismatchError, match=r"'model m-1: .*'model m-2"):
                await react_loop(second, "x", [], journal=journal)

    async def test_the_error_says_when_its_words_are_the_same(self) -> None:
        store = MemoryJournalStore()
        async with Journal(store, "r") as journal:
            await react_loop(ScriptedProvider(["one"]), "x", [], journal=journal)
        async with Journal(store, "r") as journal:
            with pytest.raises(JournalMismatchError, match="same in `temperature`"):
                await react_loop(
                    ScriptedProvider(["two"]), "x", [], journal=journal, temperature=1.0
                )

    async def test_no_part_of_a_secret_is_in_its_words(self) -> None:
        url = (
            "https://ann:hunter2hunter2@example.com/"  # cut before its `@`, it is none
        )
        store = MemoryJournalStore()
        for start in range(70, 121):
            prompt = f"{'x' * start} {url}"
            async with Journal(store, f"{start}") as journal:
                await react_loop(ScriptedProvider(["one"]), prompt, [], journal=journal)
                [entry] = await journal.entries()
            assert "hunter2" not in entry.asked

    async def test_a_call_with_other_arguments_is_refused(self) -> None:
        shop = Shop()
        film, _ = await filmed(shop, *ROUNDS)
        frame = dict(film.frames[-1])
        model = frame["react_loop:0/model:0"]
        frame["react_loop:0/model:0"] = replace(
            model, outcome=(model.outcome or "").replace('"n":1', '"n":9')
        )
        with pytest.raises(JournalMismatchError, match=r"tool:0\.0"):
            await run(film.at(frame), script(), shop.tools)
        assert shop.done == []


@pytest.mark.req("journal.react", "journal.in-doubt")
class TestInDoubt:
    async def test_all_calls_in_doubt_are_named_and_none_of_the_round_is_run(
        self,
    ) -> None:
        shop = Shop()
        film, _ = await filmed(shop, calls(("pay", 1), ("pay", 2), ("note", 3)), "done")
        store = film.cut("react_loop:0/tool:0.2", EffectState.STARTED)
        provider = script()
        with pytest.raises(InDoubtError) as caught:
            await run(store, provider, shop.tools)
        assert caught.value.effect_ids == (
            "react_loop:0/tool:0.0",
            "react_loop:0/tool:0.1",
        )
        for words in ("pay", "call-1", '{"n": 1}', '{"n": 2}', "Journal.resolve"):
            assert words in str(caught.value)
        assert caught.value.cost == TokenUsage(10, 1, 1)
        assert shop.done == []
        assert provider.requests == []

    @pytest.mark.parametrize("name", ["note", "look"])
    async def test_what_says_that_it_may_be_repeated_is_with_the_same_key(
        self, name: str
    ) -> None:
        shop = Shop()
        film, _ = await filmed(shop, calls((name, 1)), "done")
        store = film.cut("react_loop:0/tool:0.0", EffectState.STARTED)
        await run(store, script("done"), shop.tools)
        assert shop.done == [(name, 1)]
        assert shop.keys[0] == shop.keys[1]
        assert len(shop.keys[0]) == 64

    async def test_an_operator_says_what_it_returned_or_raised(self) -> None:
        shop = Shop()
        film, _ = await filmed(shop, calls(("pay", 1), ("pay", 2)), "done")
        store = film.cut("react_loop:0/tool:0.1", EffectState.STARTED)
        async with Journal(store, "r") as journal:
            await journal.resolve("react_loop:0/tool:0.0", "paid by hand")
            await journal.resolve("react_loop:0/tool:0.1", ValueError("no money"))
        for provider in (script("done"), script()):
            result = await run(store, provider, shop.tools)
            first, second = result.metadata["tool_results"]
            assert (first.result, first.call_id) == ("paid by hand", "call-1")
            assert second.error == "Tool 'pay' failed: ValueError"
        assert shop.done == []

    async def test_a_processor_tells_which_of_its_tools_may_be_repeated(self) -> None:
        keys: list[str | None] = []

        class Watch:
            async def __call__(self, call: Any, nxt: Any) -> Any:
                keys.append(call.call.idempotency_key)
                return await nxt(call)

        shop = Shop()
        registry = ToolRegistry()
        for tool in shop.tools:
            registry.add(tool)
        registry.add(replace(shop.note, name="two", namespace="my"))
        film = Film()
        replies = (calls(("my__two", 1)), calls(("pay", 2)), "done")

        async def processed(store: Any, *rest: Any) -> Any:
            # One that knew the key would not run the call again.
            async with ToolProcessor(registry, middleware=[Watch()]) as processor:
                return await run(store, script(*rest), processor)

        await processed(film, *replies)
        shop.done.clear()
        store = film.cut("react_loop:0/tool:0.0", EffectState.STARTED)
        await processed(store, *replies[1:])
        assert shop.done == [("note", 1), ("pay", 2)]
        assert keys[0] == keys[2] != keys[1]
        shop.done.clear()
        store = film.cut("react_loop:0/tool:1.0", EffectState.STARTED)
        with pytest.raises(InDoubtError, match=r"tool:1\.0"):
            await processed(store)
        assert shop.done == []

    async def test_a_runner_that_says_nothing_is_never_repeated(self) -> None:
        class Runner:
            async def tool_schemas(self) -> Any:
                return [Shop().note.to_schema()]

            async def run_calls(self, given: Any) -> Any:
                return [ToolResult(call.name, "x", call_id=call.id) for call in given]

        film = Film()
        await run(film, script(calls(("note", 1)), "done"), Runner())
        store = film.cut("react_loop:0/tool:0.0", EffectState.STARTED)
        with pytest.raises(InDoubtError):
            await run(store, script(), Runner())

    async def test_doubt_inside_of_a_tool_stops_the_loop_around_it(self) -> None:
        shop = Shop()

        async def ask(n: int) -> Any:
            inner = script(calls(("pay", n)), "inner")
            return (
                await react_loop(inner, "sub", shop.tools, journal=current_journal())
            ).value

        agent = Tool("ask", "", SCHEMA, ask, idempotent=True)
        film = Film()
        await run(film, script(calls(("ask", 1)), "outer"), [agent])
        nested = "react_loop:0/tool:0.0/react_loop:0/tool:0.0"
        store = film.cut(nested, EffectState.STARTED)
        provider = script()
        with pytest.raises(InDoubtError) as caught:
            await run(store, provider, [agent])
        assert caught.value.effect_ids == (nested,)
        assert provider.requests == []


@pytest.mark.req("journal.react", "journal.failures")
class TestFailures:
    async def test_a_tools_failure_is_its_outcome(self) -> None:
        done: list[int] = []

        async def fail(n: int) -> Any:
            done.append(n)
            msg = "no money"
            raise ValueError(msg)

        tool = Tool("pay", "", SCHEMA, fail)
        film = Film()
        first = await run(film, script(calls(("pay", 1)), "done"), [tool])
        again = await run(film, script(), [tool])
        assert done == [1]
        (one,), (two,) = (x.metadata["tool_results"] for x in (first, again))
        assert one == two
        assert type(two.exception) is ValueError
        assert two.error_code is ErrorCode.TOOL_EXECUTION_FAILED

    async def test_a_model_that_failed_is_asked_again_by_the_next_run(self) -> None:
        shop, film = Shop(), Film()
        with pytest.raises(ProviderError):
            await run(
                film, script(ROUNDS[0], ProviderError("down")), shop.tools, retry=once()
            )
        (failed,) = [
            x for x in film.frames[-1].values() if x.state is EffectState.GIVEN_UP
        ]
        assert failed.id == "react_loop:0/model:1"
        shop.done.clear()
        again = await run(film, script(*ROUNDS[1:]), shop.tools)
        assert shop.done == [("pay", 3)]
        assert again.cost == TokenUsage(30, 3, 4), "the failed request counts too"

    async def test_a_value_that_is_no_json_comes_back_as_what_the_model_read(
        self,
    ) -> None:
        from pathlib import PurePosixPath

        values: list[Any] = [PurePosixPath("a/b"), {"x": {3, 1}}, (1, 2), "text"]

        async def get(n: int) -> Any:
            return values[n]

        tool = Tool("get", "", SCHEMA, get)
        film = Film()
        asked = calls(*(("get", n) for n in range(len(values))))
        first = await run(film, script(asked, "done"), [tool])
        again = await run(film, script(), [tool])
        assert again.metadata["messages"] == first.metadata["messages"]
        results = [item.result for item in again.metadata["tool_results"]]
        assert results == ['"a/b"', None, (1, 2), "text"]

    async def test_a_call_that_came_too_late_is_made_by_the_next_run(
        self, fake_clock: FakeClock
    ) -> None:
        shop, film = Shop(), Film()

        async def late(_request: Any) -> LLMResponse:
            fake_clock._now += 10
            return calls(("pay", 1))

        context = ExecutionContext.with_deadline(5)
        async with execution_scope(context):
            with pytest.raises(DeadlineExceededError):
                await run(film, ScriptedProvider(late), shop.tools)
        assert shop.done == []
        await run(film, script("done"), shop.tools)
        assert shop.done == [("pay", 1)]

    async def test_the_budget_bounds_all_runs_together(self) -> None:
        shop = Shop()
        film, _ = await filmed(shop, *ROUNDS)
        store = film.cut("react_loop:0/tool:1.0", EffectState.FINISHED)
        provider = script()
        with pytest.raises(BudgetExhaustedError):
            await run(store, provider, shop.tools, max_cost=TokenUsage(llm_calls=2))
        assert provider.requests == []


def once() -> Any:
    from executionkit.engine.retry import RetryConfig

    return RetryConfig(max_retries=0)


@pytest.mark.req("journal.react", "journal.cancel")
class TestCancellation:
    async def test_a_tool_that_ends_as_it_is_cancelled_is_on_record(self) -> None:
        done: list[int] = []
        task: asyncio.Task[Any]

        async def pay(n: int) -> str:
            task.cancel()  # the caller leaves in the very moment in which it is done
            done.append(n)
            return "paid"

        tool = Tool("pay", "", SCHEMA, pay)
        store = MemoryJournalStore()
        task = asyncio.create_task(run(store, script(calls(("pay", 1))), [tool]))
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await task
        result = await run(store, script("done"), [tool])
        assert result.value == "done"
        assert done == [1]

    async def test_a_client_that_leaves_finds_the_result_later(self) -> None:
        shop, store, gate = Shop(), MemoryJournalStore(), asyncio.Event()

        async def slow(request: Any) -> Any:
            if request.number == 1:
                return ROUNDS[0]
            await gate.wait()
            return "done"

        work = asyncio.create_task(run(store, ScriptedProvider(slow), shop.tools))
        client = asyncio.create_task(_waiting(work))
        async with asyncio.timeout(5):
            while not shop.done:
                await settle()
            client.cancel()
            with pytest.raises(asyncio.CancelledError):
                await client
            gate.set()
            assert (await work).value == "done"
            shop.done.clear()
            assert (await run(store, script(), shop.tools)).value == "done"
        assert shop.done == []


async def _waiting(work: asyncio.Task[Any]) -> Any:
    return await asyncio.shield(work)


@pytest.mark.req("journal.order")
async def test_parallel_calls_have_the_same_ids_and_events_in_every_run(
    auto_clock: FakeClock,
) -> None:
    film, seen = Film(), []

    async def wait(n: int) -> int:
        await auto_clock.sleep(random.random())
        return n

    tool = Tool("wait", "", SCHEMA, wait)
    asked = calls(("wait", 1), ("wait", 2), ("wait", 3))
    await run(film, script(asked, "done"), [tool])
    ids = list(film.frames[-1])
    assert [i for i in ids if "tool" in i] == [
        f"react_loop:0/tool:0.{n}" for n in range(3)
    ]
    for _ in range(50):
        sink = MemoryTraceSink()
        await run(film, script(), [tool], trace=sink)
        seen.append([(e.kind, e.payload.get("tool_call_id")) for e in sink.events])
        assert list(film.frames[-1]) == ids
    assert all(events == seen[0] for events in seen)
    assert auto_clock.sleeps
    # Recorded anew, whichever ends first: the same places.
    for _ in range(5):
        other = Film()
        await run(other, script(asked, "done"), [tool])
        assert list(other.frames[-1]) == ids


YES = ApprovalDecision(approved=True)


@pytest.mark.req("journal.approval")
class TestApproval:
    @pytest.mark.parametrize("approved", [True, False])
    async def test_a_decision_is_asked_for_once(self, approved: bool) -> None:
        asked: list[ApprovalRequest] = []

        async def decide(request: ApprovalRequest) -> ApprovalDecision:
            asked.append(request)
            if not approved:
                return request.deny("no")
            return request.approve("but less", arguments={"n": 0})

        shop = Shop()
        options: Any = {"approval_gate": ApprovalGate(decide)}
        film, first = await filmed(shop, calls(("pay", 5)), "done", **options)
        again = await run(film, script(), shop.tools, **options)
        assert len(asked) == 1
        assert asked[0].run_id == "r"
        assert again.metadata["messages"] == first.metadata["messages"]
        store = film.cut("react_loop:0/approval:0.0", EffectState.FINISHED)
        await run(store, script("done"), shop.tools, **options)
        assert len(asked) == 1
        assert shop.done == ([("pay", 0)] if approved else [])

    async def test_a_gate_that_broke_is_no_consent_in_any_run(self) -> None:
        async def broken(_request: ApprovalRequest) -> ApprovalDecision:
            raise ZeroDivisionError

        shop = Shop()
        film, first = await filmed(
            shop, calls(("pay", 5)), "done", approval_gate=ApprovalGate(broken)
        )
        again = await run(
            film, script(), shop.tools, approval_gate=ApprovalGate.allow_all()
        )
        assert again.metadata["messages"] == first.metadata["messages"]
        assert shop.done == []

    @pytest.mark.parametrize("approved", [True, "yes"])
    async def test_a_gate_of_ones_own_will_do(self, approved: Any) -> None:
        class Gate:
            asked = 0

            async def request(self, _request: Any) -> Any:
                self.asked += 1
                return SimpleNamespace(approved=approved, reason="because")

        shop, gate = Shop(), Gate()
        given: Any = gate
        film, first = await filmed(shop, calls(("pay", 5)), "done", approval_gate=given)
        again = await run(film, script(), shop.tools, approval_gate=given)
        assert again.metadata["messages"] == first.metadata["messages"]
        assert first.metadata["tool_results"][0].is_success is (approved is True)
        assert gate.asked == 1

    async def test_a_parked_question_is_answered_and_the_run_goes_on(self) -> None:
        shop, store, answers = Shop(), MemoryJournalStore(), MemoryApprovalStore()
        asked = calls(("pay", 5), ("note", 6))

        def gate() -> ApprovalGate:
            return ApprovalGate.park_all(answers)

        for provider in (script(asked), script()):
            with pytest.raises(ApprovalPendingError) as caught:
                await run(store, provider, shop.tools, approval_gate=gate())
            assert len(caught.value.approval_ids) == 2
        for record in await answers.pending():
            await answers.answer(record.id, YES)
        await run(store, script("done"), shop.tools, approval_gate=gate())
        assert sorted(shop.done) == [("note", 6), ("pay", 5)]

    async def test_an_answer_is_taken_again_by_the_call_that_took_it(self) -> None:
        shop, film, answers = Shop(), Film(), MemoryApprovalStore()
        gate = ApprovalGate(lambda _r: YES, store=answers)
        await run(
            film, script(calls(("note", 5)), "done"), shop.tools, approval_gate=gate
        )
        store = film.cut("react_loop:0/approval:0.0", EffectState.STARTED)
        gate = ApprovalGate.park_all(answers)
        await run(store, script("done"), shop.tools, approval_gate=gate)
        assert shop.done == [("note", 5), ("note", 5)]

    async def test_a_question_that_a_guard_has_parked_is_no_outcome(self) -> None:
        shop, store, answers = Shop(), MemoryJournalStore(), MemoryApprovalStore()
        registry = ToolRegistry()
        registry.add(shop.pay)
        guard = ApprovalGuard(ApprovalGate.park_all(answers, run_id="r"))
        async with ToolProcessor(registry, guards=[guard]) as processor:
            for provider in (script(calls(("pay", 5))), script()):
                with pytest.raises(ApprovalPendingError):
                    await run(store, provider, processor)
            (record,) = await answers.pending()
            await answers.answer(record.id, YES)
            await run(store, script("done"), processor)
        assert shop.done == [("pay", 5)]


@pytest.mark.req("journal.react")
async def test_a_store_that_fails_ends_the_run_with_what_was_spent() -> None:
    class Full(MemoryJournalStore):
        async def put(self, run: str, entry: JournalEntry) -> None:
            if "tool" in entry.id:
                msg = "the disk is full"
                raise JournalError(msg)
            await super().put(run, entry)

    shop = Shop()
    with pytest.raises(JournalError, match="disk is full") as caught:
        await run(Full(), script(calls(("pay", 1))), shop.tools)
    assert caught.value.cost == TokenUsage(10, 1, 1)
    assert shop.done == []
