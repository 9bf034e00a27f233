"""Questions that wait in a store: answered elsewhere, used once, bound to their action."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import pickle
import stat
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.approval import (
    PARKED,
    ApprovalDecision,
    ApprovalGate,
    ApprovalRequest,
    ApprovalState,
    ApprovalStore,
    MemoryApprovalStore,
    SQLiteApprovalStore,
)
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalInvalidError,
    ApprovalPendingError,
    ApprovalTimeoutError,
    StateStoreError,
)
from executionkit.testing import FakeClock, settle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

YES = ApprovalDecision(approved=True)
NO = ApprovalDecision(approved=False, reason="no")


def pay(amount: Any = 5, tool: str = "pay", **more: Any) -> ApprovalRequest:
    return ApprovalRequest("tool_call", tool, {"arguments": {"amount": amount}}, **more)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ApprovalStore:
    if request.param == "memory":
        return MemoryApprovalStore()
    return SQLiteApprovalStore(tmp_path / "approvals.db")


async def use(store: ApprovalStore, record: Any, **changes: Any) -> ApprovalDecision:
    facts = {"digest": record.digest, "run_id": record.request.run_id, **changes}
    return await store.use(record.id, **facts)


@pytest.mark.req("approval.bound")
class TestTheDigest:
    def test_it_is_of_the_action_its_name_arguments_and_facts(self) -> None:
        requests = [
            pay(),
            pay(6),
            pay("5"),
            pay(5.0),
            pay(True),
            pay(tool="pay2"),
            ApprovalRequest("plan_step", "pay", {"arguments": {"amount": 5}}),
            ApprovalRequest("tool_call", "pay", {"arguments": {"amount": 5}, "x": 1}),
            ApprovalRequest("tool_call", "pay", {}),
            ApprovalRequest("workflow_step", "pay", {}, arguments={"amount": 5}),
        ]
        assert len({request.digest for request in requests}) == len(requests)
        assert all(len(request.digest) == 64 for request in requests)

    def test_ids_and_runs_and_the_order_of_arguments_do_not_matter(self) -> None:
        facts = {"tool_call_id": "c9", "arguments": {"amount": 5}}
        same = ApprovalRequest("tool_call", "pay", facts, id="x", run_id="r")
        assert same.digest == pay().digest
        one = ApprovalRequest("a", "b", {}, arguments={"x": 1, "y": [1, {"z": 2}]})
        two = ApprovalRequest("a", "b", {}, arguments={"y": [1, {"z": 2}], "x": 1})
        assert one.digest == two.digest

    def test_what_has_no_canonical_form_cannot_be_bound(self) -> None:
        with pytest.raises(ValueError, match="cannot be bound"):
            _ = pay(object()).digest

    @given(
        st.dictionaries(
            st.text(max_size=3),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=3),
                lambda inner: st.lists(inner, max_size=3),
                max_leaves=5,
            ),
            max_size=3,
        )
    )
    @settings(max_examples=60, deadline=None)
    def test_values_survive_json_and_pickle(self, arguments: dict[str, Any]) -> None:
        request = ApprovalRequest("a", "b", {"n": 1}, id="i", run_id="r")
        request = ApprovalRequest.from_dict(
            {**request.to_dict(), "arguments": arguments}
        )
        again = ApprovalRequest.from_dict(json.loads(json.dumps(request.to_dict())))
        assert again == request
        assert (again.id, again.run_id) == ("i", "r")
        assert again.arguments == arguments
        assert again.digest == request.digest
        for decision in (
            request.deny("no"),
            request.approve("yes", arguments=arguments),
        ):
            data = json.loads(json.dumps(decision.to_dict()))
            assert ApprovalDecision.from_dict(data) == decision
            assert pickle.loads(pickle.dumps(decision)) == decision

    def test_a_no_changes_nothing(self) -> None:
        with pytest.raises(ValueError, match="arguments"):
            ApprovalDecision(approved=False, arguments={"a": 1})
        with pytest.raises(TypeError, match="arguments"):
            ApprovalDecision(approved=True, arguments=[1])  # type: ignore[arg-type]
        facts: dict[str, Any] = {"a": [1]}
        decision = ApprovalDecision(approved=True, arguments=facts)
        facts["a"].append(2)
        assert decision.arguments == {"a": [1]}


@pytest.mark.req("approval.bound")
class TestBoundDecisions:
    @pytest.mark.parametrize(
        "other", [pay(6), pay(tool="refund"), pay()], ids=["arguments", "tool", "again"]
    )
    async def test_a_decision_for_one_question_is_a_no_to_another(
        self, other: ApprovalRequest
    ) -> None:
        kept: list[ApprovalDecision] = []

        async def decide(request: ApprovalRequest) -> ApprovalDecision:
            if not kept:
                kept.append(request.approve("fine"))
            return kept[0]

        gate = ApprovalGate(decide)
        assert (await gate.request(pay())).approved
        decision = await gate.request(other)
        assert not decision.approved
        assert "another request" in decision.reason
        with pytest.raises(ApprovalDeniedError, match="another request"):
            await gate.require(other)

    async def test_it_is_a_no_in_another_run_and_gate(self) -> None:
        kept: list[ApprovalDecision] = []

        async def first(request: ApprovalRequest) -> ApprovalDecision:
            kept.append(request.approve())
            return kept[0]

        assert (await ApprovalGate(first, run_id="1").request(pay())).approved
        replay = ApprovalGate(lambda _request: kept[0], run_id="2")
        assert not (await replay.request(pay())).approved

    async def test_a_digest_alone_binds_too(self) -> None:
        decision = ApprovalDecision(approved=True, digest=pay(5).digest)
        gate = ApprovalGate(lambda _request: decision)
        assert (await gate.request(pay(5))).approved
        assert not (await gate.request(pay(6))).approved

    async def test_requests_get_ids_and_runs(self) -> None:
        seen: list[ApprovalRequest] = []

        async def decide(request: ApprovalRequest) -> bool:
            seen.append(request)
            return True

        gate = ApprovalGate(decide)
        await gate.request(pay())
        await gate.request(pay())
        assert seen[0] == seen[1] == pay()
        assert seen[0].id != seen[1].id
        assert seen[0].run_id == seen[1].run_id
        with execution_scope(ExecutionContext(request_id="order-1")):
            await gate.request(pay())
            await ApprovalGate(decide, run_id="mine").request(pay())
        assert [request.run_id for request in seen[2:]] == ["order-1", "mine"]


@pytest.mark.req("approval.store")
class TestTheStores:
    async def test_a_question_is_listed_answered_and_used_once(
        self, store: ApprovalStore
    ) -> None:
        assert isinstance(store, ApprovalStore)
        assert await store.pending() == ()
        assert await store.get("nothing") is None
        record = await store.open(pay(run_id="r"))
        assert record.state is ApprovalState.PENDING
        assert (await store.open(pay(run_id="r"))).id == record.id
        assert await store.pending() == (record,)
        assert await store.pending(run_id="r") == (record,)
        assert await store.pending(run_id="other") == ()
        with pytest.raises(ApprovalInvalidError, match="not been answered"):
            await use(store, record)
        done = await store.answer(
            record.id,
            ApprovalDecision(approved=True, arguments={"amount": 1}),
            by="ann",
        )
        assert done.answered_by == "ann"
        assert done.state is ApprovalState.ANSWERED
        assert done.answered_at is not None
        assert await store.get(record.id) == done
        assert await store.pending() == ()
        decision = await use(store, record)
        assert decision.approved
        assert decision.arguments == {"amount": 1}
        with pytest.raises(ApprovalInvalidError, match="used before"):
            await use(store, record)
        used = await store.get(record.id)
        assert used is not None
        assert used.state is ApprovalState.USED
        assert (await store.open(pay(run_id="r"))).id != record.id

    async def test_questions_differ_by_run_arguments_and_tool(
        self, store: ApprovalStore
    ) -> None:
        asked = [pay(), pay(6), pay(tool="x"), pay(run_id="r"), pay(run_id="s")]
        records = [await store.open(request) for request in asked]
        assert len({record.id for record in records}) == 5
        assert [r.id for r in await store.pending()] == [r.id for r in records]
        again = await store.open(pay(), taken={records[0].id})
        assert again.id not in {record.id for record in records}

    async def test_an_answer_for_something_else_is_refused(
        self, store: ApprovalStore
    ) -> None:
        record = await store.open(pay(run_id="r"))
        other = await store.open(pay(6, run_id="r"))
        for wrong in (
            other.request.approve(),
            ApprovalDecision(approved=True, digest=other.digest),
            ApprovalDecision(approved=True, request_id=other.id),
        ):
            with pytest.raises(ApprovalInvalidError, match="not for"):
                await store.answer(record.id, wrong)
        with pytest.raises(ApprovalInvalidError, match="no question"):
            await store.answer("unknown", YES)
        with pytest.raises(TypeError, match="ApprovalDecision"):
            await store.answer(record.id, True)  # type: ignore[arg-type]
        await store.answer(record.id, record.request.approve())
        with pytest.raises(ApprovalInvalidError, match="answered before"):
            await store.answer(record.id, NO)
        with pytest.raises(ApprovalInvalidError, match="arguments"):
            await use(store, record, digest=other.digest)
        with pytest.raises(ApprovalInvalidError, match="run"):
            await use(store, record, run_id="another")
        with pytest.raises(ApprovalInvalidError, match="no question"):
            await store.use("unknown", digest="", run_id="")
        assert (await use(store, record)).approved  # refusals use nothing up

    @pytest.mark.req("approval.single-use")
    async def test_many_at_once_use_it_once(self, store: ApprovalStore) -> None:
        record = await store.open(pay(run_id="r"))
        answers = await asyncio.gather(
            *[store.answer(record.id, YES, by=str(n)) for n in range(8)],
            return_exceptions=True,
        )
        assert sum(not isinstance(item, Exception) for item in answers) == 1
        outcomes = await asyncio.gather(
            *[use(store, record) for _ in range(8)], return_exceptions=True
        )
        assert sum(isinstance(item, ApprovalDecision) for item in outcomes) == 1
        assert sum(isinstance(item, ApprovalInvalidError) for item in outcomes) == 7

    @pytest.mark.req("approval.single-use")
    async def test_the_same_effect_may_take_its_answer_again(
        self, store: ApprovalStore
    ) -> None:
        record = await store.open(pay(run_id="r"))
        await store.answer(record.id, YES)
        assert (await use(store, record, by="call-1")).approved
        assert (await use(store, record, by="call-1")).approved
        for other in ("call-2", ""):
            with pytest.raises(ApprovalInvalidError, match="used before"):
                await use(store, record, by=other)

    async def test_only_unanswered_questions_are_withdrawn(
        self, store: ApprovalStore
    ) -> None:
        record, kept = await store.open(pay()), await store.open(pay(6))
        await store.answer(kept.id, YES)
        await store.withdraw(record.id)
        await store.withdraw(kept.id)
        await store.withdraw("unknown")
        assert await store.get(record.id) is None
        assert await store.get(kept.id) is not None

    async def test_what_memory_holds_has_a_bound(self) -> None:
        store = MemoryApprovalStore(max_used=3)
        records = []
        for amount in range(10):
            record = await store.open(pay(amount))
            await store.answer(record.id, YES)
            await use(store, record)
            records.append(record)
        kept = [await store.get(record.id) for record in records]
        assert [record is not None for record in kept] == [False] * 7 + [True] * 3
        with pytest.raises(ApprovalInvalidError):
            await use(store, records[0])

    async def test_a_file_is_its_owners_and_keeps_all(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        record = await SQLiteApprovalStore(path).open(pay(run_id="r"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        again = SQLiteApprovalStore(str(path))
        assert again.path == path
        assert await again.pending() == (record,)
        kept = (await again.pending())[0]
        assert kept.request.arguments == {"amount": 5}
        assert kept.request.run_id == "r"

    async def test_a_file_that_cannot_be_used_is_a_typed_error(
        self, tmp_path: Path
    ) -> None:
        bad = tmp_path / "bad.db"
        bad.write_bytes(b"this is no database, and long enough to be looked at" * 100)
        for path in (bad, tmp_path / "missing" / "a.db", tmp_path):
            with pytest.raises(StateStoreError, match="approval store"):
                await SQLiteApprovalStore(path).pending()
        gate = ApprovalGate(lambda _request: True, store=SQLiteApprovalStore(bad))
        with pytest.raises(StateStoreError):
            await gate.request(pay())

    async def test_a_file_takes_json_alone(self, tmp_path: Path) -> None:
        store = SQLiteApprovalStore(tmp_path / "a.db")
        with pytest.raises(ValueError, match="must be JSON"):
            await store.open(pay(b"bytes"))


class TestGatesWithAStore:
    @pytest.mark.req("approval.parked")
    async def test_parking_says_what_waits_and_an_answer_is_found(
        self, store: ApprovalStore
    ) -> None:
        gate = ApprovalGate.park_all(store, run_id="r")
        assert gate.store is store
        with pytest.raises(ApprovalPendingError) as caught:
            await gate.require(pay())
        error = caught.value
        assert error.requests == (pay(),)
        assert error.approval_ids == (error.approval_id,)
        assert error.approval_id in str(error)
        assert not error.retryable
        again = pickle.loads(pickle.dumps(error))
        assert again.approval_id == error.approval_id
        with pytest.raises(ApprovalPendingError) as later:  # still the same question
            await ApprovalGate.park_all(store, run_id="r").require(pay())
        assert later.value.approval_id == error.approval_id
        (record,) = await store.pending()
        await store.answer(record.id, YES)
        fresh = ApprovalGate.park_all(store, run_id="r")
        assert (await fresh.require(pay())).approved
        with pytest.raises(ApprovalPendingError):  # one answer, one action
            await fresh.require(pay())

    @pytest.mark.req("approval.parked")
    async def test_parking_needs_no_store(self) -> None:
        async def later(_request: ApprovalRequest) -> Any:
            return PARKED

        callbacks: list[Callable[[ApprovalRequest], Any]] = [later, lambda _r: PARKED]
        for callback in callbacks:
            with pytest.raises(ApprovalPendingError) as caught:
                await ApprovalGate(callback, timeout_seconds=5).request(pay())
            assert caught.value.approval_id

    @pytest.mark.req("approval.bound")
    @pytest.mark.parametrize(
        ("run", "other"),
        [("r", pay(6)), ("r", pay(tool="refund")), ("s", pay())],
        ids=["arguments", "tool", "run"],
    )
    async def test_a_stored_yes_is_for_its_action_and_run_alone(
        self, store: ApprovalStore, run: str, other: ApprovalRequest
    ) -> None:
        with pytest.raises(ApprovalPendingError) as caught:
            await ApprovalGate.park_all(store, run_id="r").require(pay())
        await store.answer(caught.value.approval_id, YES)
        with pytest.raises(ApprovalPendingError):
            await ApprovalGate.park_all(store, run_id=run).require(other)

    @pytest.mark.req("approval.bound")
    async def test_without_a_run_nobody_else_finds_the_answer(self) -> None:
        store = MemoryApprovalStore()
        gate = ApprovalGate.park_all(store)
        with pytest.raises(ApprovalPendingError) as caught:
            await gate.require(pay())
        await store.answer(caught.value.approval_id, YES)
        with pytest.raises(ApprovalPendingError):
            await ApprovalGate.park_all(store).require(pay())
        assert (await gate.require(pay())).approved

    @pytest.mark.req("approval.single-use")
    async def test_equal_actions_at_once_are_two_questions(
        self, store: ApprovalStore
    ) -> None:
        gate = ApprovalGate.park_all(store, run_id="r")

        async def one() -> str:
            try:
                await gate.require(pay())
            except ApprovalPendingError as exc:
                return exc.approval_id
            return "done"

        # Held at the same time by two callbacks: park_all would let go at once.
        both = asyncio.Barrier(2)

        async def meet(_request: ApprovalRequest) -> Any:
            await both.wait()
            return PARKED

        waiting = ApprovalGate(meet, store=store, run_id="r")
        async with asyncio.timeout(10):
            errors = await asyncio.gather(
                waiting.require(pay()), waiting.require(pay()), return_exceptions=True
            )
        ids = {e.approval_id for e in errors if isinstance(e, ApprovalPendingError)}
        assert len(ids) == 2
        for approval_id in ids:
            await store.answer(approval_id, YES)
        assert list(await asyncio.gather(one(), one())) == ["done", "done"]
        assert await one() not in {"done", *ids}

    @pytest.mark.req("approval.store")
    async def test_a_callbacks_answer_is_kept_and_used(
        self, store: ApprovalStore
    ) -> None:
        async def decide(request: ApprovalRequest) -> ApprovalDecision:
            (record,) = await store.pending()  # there before anybody is asked
            assert record.id == request.id
            return request.deny("too much")

        gate = ApprovalGate(decide, store=store, run_id="r")
        decision = await gate.request(pay())
        assert not decision.approved
        assert decision.reason == "too much"
        record = await store.get(decision.request_id)
        assert record is not None
        assert record.state is ApprovalState.USED
        assert record.answered_by == "callback"

    @pytest.mark.req("approval.store")
    async def test_who_answers_first_counts(self, store: ApprovalStore) -> None:
        async def slow(request: ApprovalRequest) -> bool:
            await store.answer(request.id, NO, by="ann")
            return True

        decision = await ApprovalGate(slow, store=store).request(pay())
        assert not decision.approved

    @pytest.mark.req("approval.store")
    @pytest.mark.parametrize("error", [OSError, ApprovalTimeoutError])
    async def test_a_question_that_failed_is_withdrawn(
        self, store: ApprovalStore, error: type[Exception]
    ) -> None:
        async def fail(_request: ApprovalRequest) -> bool:
            raise error("no line")

        with pytest.raises(error, match="no line"):
            await ApprovalGate(fail, store=store).request(pay())
        assert await store.pending() == ()

    @pytest.mark.req("approval.store")
    async def test_a_cancelled_question_stays(self, store: ApprovalStore) -> None:
        asked = asyncio.Event()

        async def wait(_request: ApprovalRequest) -> bool:
            asked.set()
            await asyncio.Event().wait()
            return True

        gate = ApprovalGate(wait, store=store, run_id="r")
        task = asyncio.create_task(gate.request(pay()))
        async with asyncio.timeout(10):
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        (record,) = await store.pending()
        await store.answer(record.id, YES)
        assert (await gate.request(pay())).approved

    @pytest.mark.req("approval.store")
    async def test_waiting_for_an_answer_from_elsewhere(self) -> None:
        clock = FakeClock()
        store = MemoryApprovalStore()
        gate = ApprovalGate.wait_for(
            store, poll_seconds=2, timeout_seconds=60, clock=clock
        )
        async with asyncio.timeout(10):
            task = asyncio.create_task(gate.request(pay()))
            await settle()
            await clock.advance(2)
            (record,) = await store.pending()
            await store.answer(record.id, record.request.approve(arguments={"a": 1}))
            await clock.advance(2)
            decision = await task
        assert decision.approved
        assert decision.arguments == {"a": 1}

    @pytest.mark.req("approval.store")
    async def test_waiting_has_an_end(self) -> None:
        clock = FakeClock(auto=True)
        store = MemoryApprovalStore()
        gate = ApprovalGate.wait_for(
            store, timeout_seconds=5, on_timeout="deny", clock=clock
        )
        async with asyncio.timeout(10):
            assert not (await gate.request(pay())).approved
        assert await store.pending() == ()
        with pytest.raises(ValueError, match="poll_seconds"):
            ApprovalGate.wait_for(store, poll_seconds=0)

    @pytest.mark.req("approval.arguments")
    def test_wrong_settings_are_refused(self) -> None:
        with pytest.raises(TypeError, match="`store`"):
            ApprovalGate(lambda _r: True, store={})  # type: ignore[arg-type]
        for run in ("", 5):
            with pytest.raises(ValueError, match="`run_id`"):
                ApprovalGate(lambda _r: True, run_id=run)  # type: ignore[arg-type]


def _race(path: str, approval_id: str, digest: str, start: Any, out: Any) -> None:
    store = SQLiteApprovalStore(path)
    start.wait(20)
    try:
        asyncio.run(store.use(approval_id, digest=digest, run_id="r"))
    except ApprovalInvalidError:
        out.put("refused")
    else:
        out.put("used")


@pytest.mark.req("approval.single-use")
def test_processes_that_race_use_it_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def prepare() -> Any:
        store = SQLiteApprovalStore(path)
        record = await store.open(pay(run_id="r"))
        return await store.answer(record.id, YES)

    record = asyncio.run(prepare())
    spawn = multiprocessing.get_context("spawn")
    start, out = spawn.Barrier(4), spawn.Queue()
    arguments = (str(path), record.id, record.digest, start, out)
    processes = [spawn.Process(target=_race, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    outcomes = sorted(out.get(timeout=25) for _ in processes)
    for process in processes:
        process.join(10)
    assert outcomes == ["refused", "refused", "refused", "used"]


ASK = """
    import asyncio, sys
    from executionkit import ApprovalGate, ApprovalRequest, SQLiteApprovalStore

    async def ask(request):
        print("asked", flush=True)
        await asyncio.Event().wait()

    async def main():
        store = SQLiteApprovalStore(sys.argv[1])
        gate = ApprovalGate(ask, store=store, run_id="order-1")
        facts = {"arguments": {"amount": 5}}
        decision = await gate.require(ApprovalRequest("tool_call", "pay", facts))
        print("pays", decision.arguments["amount"], decision.reason, flush=True)

    asyncio.run(main())
"""
ANSWER = """
    import asyncio, sys
    from executionkit import SQLiteApprovalStore

    async def main():
        store = SQLiteApprovalStore(sys.argv[1])
        (record,) = await store.pending()
        print(record.request.subject, dict(record.request.arguments))
        decision = record.request.approve("but less", arguments={"amount": 3})
        await store.answer(record.id, decision, by="ann")

    asyncio.run(main())
"""


def _run(code: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.req("approval.processes")
def test_a_killed_process_is_answered_by_another_and_resumed_by_a_third(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ASK), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "asked\n"
        first.kill()
        first.wait(10)
    assert _run(ANSWER, path) == "pay {'amount': 5}\n"
    assert _run(ASK, path) == "pays 3 but less\n"
