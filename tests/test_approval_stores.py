"""Questions that wait in a store: answered elsewhere, used once, bound to their action."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import pickle
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._clock import use_clock
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

    def test_whatever_stands_for_arguments_is_part_of_it(self) -> None:
        def run(given: Any, **more: Any) -> str:
            return ApprovalRequest(
                "tool_call", "sh", {"arguments": given}, **more
            ).digest

        assert run(["ls"]) != run(["rm", "-rf", "/"])
        assert run("ls") != run("rm")
        real = {"x": 1}
        assert run({"shown": 1}, arguments=real) != run({"shown": 2}, arguments=real)
        assert run({"x": True}, arguments=real) != run({"x": 1}, arguments=real)
        assert run(real, arguments=real) == run(real)

    @pytest.mark.req("approval.hostile")
    @pytest.mark.parametrize(
        "value", [float("nan"), float("inf"), "\ud800", b"x", {1: 2}, "x" * 100_000]
    )
    async def test_odd_values_are_bound_or_refused_and_never_let_through(
        self, value: Any, tmp_path: Path
    ) -> None:
        memory = MemoryApprovalStore()
        with pytest.raises(ApprovalPendingError) as caught:
            await ApprovalGate.park_all(memory, run_id="r").require(pay(value))
        (record,) = await memory.pending()
        await memory.answer(record.id, record.request.approve())
        with pytest.raises(ApprovalPendingError):
            await ApprovalGate.park_all(memory, run_id="r").require(pay("other"))
        assert len(str(caught.value)) < 1000
        again = ApprovalGate.park_all(memory, run_id="r")
        assert (await again.require(pay(value))).approved
        file = SQLiteApprovalStore(tmp_path / "a.db")
        gate = ApprovalGate.park_all(file, run_id="r")
        with pytest.raises((ApprovalPendingError, ValueError)) as first:
            await gate.require(pay(value))
        if isinstance(first.value, ApprovalPendingError):
            (record,) = await file.pending()
            await file.answer(record.id, record.request.approve())
            assert (await gate.require(pay(value))).approved
        else:  # what JSON cannot hold, or would change
            assert "must be JSON" in str(first.value)
            assert await file.pending() == ()

    @pytest.mark.req("approval.hostile")
    async def test_names_stay_on_one_line_and_short_in_messages(self) -> None:
        name = "pay'\nINFO: all approved\x1b[2J\ud800 sk-" + "a1B2" * 10 + "x" * 999
        request = ApprovalRequest("tool\ncall", name, {})
        with pytest.raises(ApprovalPendingError) as caught:
            await ApprovalGate.park_all(MemoryApprovalStore()).require(request)
        with pytest.raises(ApprovalDeniedError) as denied:
            await ApprovalGate.deny_all().require(request)
        for text in (str(caught.value), str(denied.value)):
            assert text.isprintable()
            assert "a1B2a1B2" not in text
            assert len(text) < 700

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

    @pytest.mark.req("approval.crash")
    async def test_an_effect_that_crashed_finds_the_answer_that_it_took(
        self, store: ApprovalStore
    ) -> None:
        def gate() -> ApprovalGate:
            return ApprovalGate.park_all(store, run_id="r")

        older = await store.open(pay(run_id="r"))
        mine = await store.open(pay(run_id="r"), taken={older.id})
        await store.answer(mine.id, YES)
        assert (await use(store, mine, by="call-1")).approved
        await store.answer(older.id, NO)
        for _ in range(3):  # nobody is asked again, and the other answer is left
            decision = await gate().require(pay(), effect="call-1")
            assert decision.request_id == mine.id
        assert not (await gate().request(pay(), effect="call-2")).approved
        for effect in ("call-3", ""):
            with pytest.raises(ApprovalPendingError):
                await gate().require(pay(), effect=effect)
        with pytest.raises(ApprovalPendingError):  # for these arguments alone
            await gate().require(pay(6), effect="call-1")

    @pytest.mark.req("approval.expiry")
    async def test_an_old_answer_is_asked_for_again(self, store: ApprovalStore) -> None:
        def gate(effect: str = "") -> Any:
            parking = ApprovalGate.park_all(store, run_id="r", valid_seconds=60)
            return parking.require(pay(), effect=effect)

        clock = FakeClock()
        with use_clock(clock):
            with pytest.raises(ApprovalPendingError) as caught:
                await gate()
            await clock.advance(1000)  # a question does not grow old
            await store.answer(caught.value.approval_id, YES)
            await clock.advance(61)
            with pytest.raises(ApprovalPendingError) as again:
                await gate()
            assert again.value.approval_id != caught.value.approval_id
            await store.answer(again.value.approval_id, YES)
            await clock.advance(60)
            assert (await gate("call-1")).approved
            await clock.advance(1000)
            assert (await gate("call-1")).approved  # it was taken in time
            lasting = ApprovalGate.park_all(store, run_id="r")
            assert (await lasting.require(pay())).approved  # the first one

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

    @pytest.mark.parametrize(
        ("column", "value"),
        [("request", "{"), ("request", "[]"), ("state", "opn"), ("decision", "{}")],
    )
    async def test_a_record_that_cannot_be_read_is_a_typed_error(
        self, tmp_path: Path, column: str, value: str
    ) -> None:
        path = tmp_path / "a.db"
        record = await SQLiteApprovalStore(path).open(pay())
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"UPDATE executionkit_approvals SET {column} = ?", (value,))
        with pytest.raises(StateStoreError, match="cannot be read"):
            await SQLiteApprovalStore(path).get(record.id)

    async def test_a_full_disk_is_named(self, tmp_path: Path) -> None:
        class FullStore(SQLiteApprovalStore):
            def _connect(self) -> sqlite3.Connection:
                db = super()._connect()
                db.execute("PRAGMA max_page_count = 1").fetchone()
                return db

        store = FullStore(tmp_path / "a.db")
        with pytest.raises(StateStoreError, match="disk is full"):
            await store.open(pay("x" * 100_000))

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
    async def test_a_store_that_fails_while_it_is_looked_at_withdraws_nothing(
        self,
    ) -> None:
        class Flaky(MemoryApprovalStore):
            async def get(self, approval_id: str) -> Any:
                raise StateStoreError("the disk is busy")

        store = Flaky()
        with pytest.raises(StateStoreError, match="busy"):
            await ApprovalGate.wait_for(store, run_id="r").require(pay())
        (record,) = await store.pending()
        await store.answer(record.id, YES)
        assert (await ApprovalGate.park_all(store, run_id="r").require(pay())).approved

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
        for seconds in (0, -1, float("nan"), float("inf"), True, "5"):
            wrong: Any = seconds
            with pytest.raises(ValueError, match="`valid_seconds`"):
                ApprovalGate(lambda _r: True, valid_seconds=wrong)
        for run in ("", 5):
            with pytest.raises(ValueError, match="`run_id`"):
                ApprovalGate(lambda _r: True, run_id=run)  # type: ignore[arg-type]


def _race(path: str, me: int, start: Any, out: Any) -> None:
    """Open the file that is not there yet, ask the same, answer it, take the answer."""

    async def go() -> None:
        store = SQLiteApprovalStore(path)
        record = await store.open(pay(run_id="r"))
        start.wait(20)
        try:
            await store.answer(record.id, record.request.approve(str(me)))
            told = "answered"
        except ApprovalInvalidError:
            told = "late"
        start.wait(20)
        try:
            decision = await use(store, record)
            out.put((record.id, told, "used", decision.reason == str(me)))
        except ApprovalInvalidError:
            out.put((record.id, told, "refused", False))

    start.wait(20)
    asyncio.run(go())


@pytest.mark.req("approval.single-use", "approval.store")
def test_processes_that_race_answer_once_and_use_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, out = spawn.Barrier(4), spawn.Queue()
    path = str(tmp_path / "a.db")
    processes = [
        spawn.Process(target=_race, args=(path, me, start, out)) for me in range(4)
    ]
    for process in processes:
        process.start()
    outcomes = [out.get(timeout=25) for _ in processes]
    for process in processes:
        process.join(10)
    assert len({outcome[0] for outcome in outcomes}) == 1  # one question
    assert sorted(o[1] for o in outcomes) == ["answered", "late", "late", "late"]
    assert sorted(o[2] for o in outcomes) == ["refused"] * 3 + ["used"]


CHURN = """
    import asyncio, sys
    from executionkit import ApprovalGate, ApprovalRequest, SQLiteApprovalStore

    async def main():
        store = SQLiteApprovalStore(sys.argv[1])
        gate = ApprovalGate(lambda request: True, store=store, run_id=sys.argv[2])
        for n in range(10**6):
            request = ApprovalRequest("tool_call", "pay", {"arguments": {"n": n}})
            await gate.require(request, effect=f"call-{n}")
            print(n, flush=True)

    asyncio.run(main())
"""


@pytest.mark.req("approval.crash")
def test_a_kill_at_any_moment_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def look(run: str, told: int) -> None:
        store = SQLiteApprovalStore(path)
        gate = ApprovalGate(lambda _r: False, store=store, run_id=run)
        for n in range(told + 1):  # what was allowed stays so for its own effect
            request = ApprovalRequest("tool_call", "pay", {"arguments": {"n": n}})
            assert (await gate.request(request, effect=f"call-{n}")).approved
        for record in await store.pending(run_id=run):
            assert record.decision is None
            await store.answer(record.id, NO)

    for moment in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHURN), str(path), str(moment)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(1 + 3 * moment)]
            process.kill()
            told += process.stdout.read().split("\n")[:-1]
        asyncio.run(look(str(moment), int(told[-1])))


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
