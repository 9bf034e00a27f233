"""A journal: what was done is on record, and is not done again."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import executionkit._journal.lock as lock_module
from executionkit import MockProvider, map_reduce_sync, react_loop_sync
from executionkit._clock import use_clock
from executionkit._journal.lock import RunLock
from executionkit.errors import (
    InDoubtError,
    JournalError,
    JournalLockedError,
    JournalMismatchError,
    JournalValueError,
    PatternError,
    RateLimitError,
    RecordedError,
)
from executionkit.journal import (
    NOT_DONE,
    EffectState,
    Journal,
    JournalEntry,
    JournalStore,
    MemoryJournalStore,
    Outcome,
    SQLiteJournalStore,
    current_journal,
)
from executionkit.patterns import react_loop
from executionkit.testing import FakeClock, ScriptedProvider, settle
from executionkit.types import TokenUsage, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class KillError(BaseException):
    """Stands for the end of the process: nothing is caught, nothing written."""


class Ledger:
    """Counts what was really done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def do(self, name: str, value: Any = None) -> Callable[[], Any]:
        async def work() -> Any:
            self.done.append(name)
            if isinstance(value, BaseException):
                raise value
            return name if value is None else value

        return work


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalStore]:
    if request.param == "memory":
        yield MemoryJournalStore()
        return
    made = SQLiteJournalStore(tmp_path / "runs.db")
    yield made
    made._disconnect()  # a test may leave its runs open


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def entry(effect_id: str = "a", **changes: Any) -> JournalEntry:
    facts: dict[str, Any] = {"kind": "effect", "fingerprint": "f"}
    return JournalEntry(id=effect_id, **{**facts, **changes})


def modes_in(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def child_of(program: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


async def started(store: JournalStore, effect_id: str, **facts: Any) -> None:
    """Leave an effect as a process does that is killed in its middle."""
    journal = Journal(store, "r")
    with pytest.raises(KillError):
        await journal.effect(effect_id, Ledger().do(effect_id, KillError()), **facts)
    await journal.aclose()


@pytest.mark.req("journal.store")
class TestStores:
    async def test_entries_come_back_as_they_were_in_the_order_of_their_first_writing(
        self, store: JournalStore
    ) -> None:
        assert await store.open("r") == frozenset()
        second = entry("b", asked="x\ud800y".encode("utf-8", "replace").decode())
        await store.put("r", entry("a"))
        await store.put("r", second)
        whole = entry(
            "a",
            state=EffectState.FINISHED,
            outcome="[1]",
            cost=TokenUsage(1, 2, 3, cache_read_tokens=4, reasoning_tokens=5),
            attempts=2,
            started_at=1.25,
            ended_at=2.5,
        )
        await store.put("r", whole)
        assert await store.entries("r") == (whole, second)
        assert await store.get("r", "a") == whole
        assert await store.get("r", "c") is None
        assert await store.get("s", "a") is None

    async def test_runs_know_nothing_of_each_other(self, store: JournalStore) -> None:
        await store.open("r")
        await store.open("s")
        await store.put("r", entry("a"))
        await store.put("s", entry("a", kind="other"))
        await store.delete("r", "a")
        assert await store.entries("r") == ()
        assert [e.kind for e in await store.entries("s")] == ["other"]
        assert await store.runs() == ("s",)
        await store.close("r")
        assert await store.open("r") == frozenset()
        await store.close("s")
        assert await store.open("s") == frozenset({"a"})

    async def test_a_run_is_taken_until_it_is_let_go(self, store: JournalStore) -> None:
        await store.open("r")
        with pytest.raises(JournalLockedError, match="run 'r'"):
            await store.open("r")
        await store.close("r")
        await store.open("r")
        await store.close("r")

    async def test_what_is_written_at_once_is_all_there(
        self, store: JournalStore
    ) -> None:
        await store.open("r")
        async with asyncio.timeout(5):
            await asyncio.gather(*[store.put("r", entry(f"{n}")) for n in range(50)])
        assert [e.id for e in await store.entries("r")] == [f"{n}" for n in range(50)]
        await store.close("r")


@pytest.mark.req("journal.sqlite")
class TestTheFile:
    async def test_it_is_safe_on_the_disk_and_its_owners_alone(
        self, tmp_path: Path
    ) -> None:
        store = SQLiteJournalStore(tmp_path / "runs.db")
        await store.open("r")
        db = store._connected()
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        await store.put("r", entry())
        assert set(modes_in(tmp_path).values()) == {0o600}
        await store.close("r")
        assert modes_in(tmp_path) == {"runs.db": 0o600}

    async def test_writes_that_come_together_are_one_transaction(
        self, tmp_path: Path
    ) -> None:
        store = SQLiteJournalStore(tmp_path / "runs.db")
        await store.open("r")
        began: list[str] = []
        store._connected().set_trace_callback(began.append)
        await asyncio.gather(*[store.put("r", entry(f"{n}")) for n in range(9)])
        assert sum(text.startswith("BEGIN") for text in began) <= 2
        await store.close("r")
        await store.close("r")

    async def test_a_file_that_is_none_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "runs.db").write_text("no database " * 100)
        with pytest.raises(JournalError, match=r"runs\.db failed"):
            await SQLiteJournalStore(tmp_path / "runs.db").open("r")
        with pytest.raises(JournalError, match=r"nowhere"):
            await SQLiteJournalStore(tmp_path / "nowhere" / "x.db").open("r")

    async def test_a_failed_write_is_told_to_each_who_waits_for_it(
        self, tmp_path: Path
    ) -> None:
        store = SQLiteJournalStore(tmp_path / "runs.db")
        await store.open("r")
        store._connected().execute("DROP TABLE executionkit_journal_1")
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(
                *[store.put("r", entry(f"{n}")) for n in range(3)],
                return_exceptions=True,
            )
        assert [type(outcome) for outcome in outcomes] == [JournalError] * 3
        await store.close("r")

    async def test_two_loops_one_after_the_other_may_use_it(
        self, tmp_path: Path
    ) -> None:
        store = SQLiteJournalStore(tmp_path / "runs.db")

        def other_loop() -> None:
            async def use() -> None:
                await store.open("r")
                await store.put("r", entry())
                await store.close("r")

            asyncio.run(use())

        await asyncio.to_thread(other_loop)
        assert await store.open("r") == frozenset({"a"})
        await store.close("r")

    async def test_a_live_process_keeps_others_out_and_a_dead_one_does_not(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "runs.db"
        program = """
            import asyncio, sys
            from executionkit.journal import Journal
            async def main():
                async with Journal.open(sys.argv[1], run="r") as journal:
                    await journal.effect("x", lambda: 1)
                    print("ready", flush=True)
                    sys.stdin.read()
            asyncio.run(main())
        """
        with child_of(program, path) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            with pytest.raises(JournalLockedError, match=f"process {child.pid}"):
                await Journal.open(path, run="r").entries()
            async with Journal.open(path, run="other") as journal:
                assert await journal.effect("x", lambda: 2) == 2
            child.kill()
        async with Journal.open(path, run="r") as journal:
            assert await journal.effect("x", lambda: 3) == 1

    @pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
    async def test_a_child_that_outlives_its_parent_keeps_nobody_out(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "runs.db"
        program = """
            import asyncio, os, signal, sys, time
            from executionkit.journal import Journal
            async def main():
                journal = Journal.open(sys.argv[1], run="r")
                await journal.effect("x", lambda: 1)
                parent = os.getpid()
                if not os.fork():
                    print(os.getpid(), flush=True)
                    os.kill(parent, signal.SIGKILL)
                time.sleep(20)
            asyncio.run(main())
        """
        with child_of(program, path) as child:
            assert child.stdout is not None
            orphan = int(child.stdout.readline())
            child.wait(10)
        try:
            async with Journal.open(path, run="r") as journal:
                assert await journal.effect("x", lambda: 3) == 1
        finally:
            os.kill(orphan, signal.SIGKILL)


@pytest.mark.req("journal.sqlite")
class TestTheLock:
    def test_a_file_that_its_holder_removes_meanwhile_is_no_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "lock"
        first, second = RunLock(path), RunLock(path)
        assert first.take() is None
        real = lock_module._try_lock

        def late(file: int) -> bool:
            first.release()  # between the opening and the locking of the second
            return real(file)

        monkeypatch.setattr(lock_module, "_try_lock", late)
        assert second.take() is None
        assert path.exists()
        monkeypatch.undo()
        assert RunLock(path).take() == "this process"
        second.release()
        second.release()
        assert not path.exists()

    async def test_the_error_says_when_it_is_this_very_process(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "runs.db"
        async with Journal.open(path, run="r"):
            with pytest.raises(JournalLockedError, match="this process"):
                await Journal.open(path, run="r").effect("a", lambda: 1)

    async def test_a_folder_that_is_gone_says_so(self, tmp_path: Path) -> None:
        store = SQLiteJournalStore(tmp_path / "none" / "runs.db")
        with pytest.raises(JournalError, match="cannot be locked"):
            await store.open("r")
        with pytest.raises(JournalError, match="failed"):
            await store.runs()


@pytest.mark.req("journal.once")
def test_a_journal_serves_one_loop_after_the_other(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "runs.db", run="r")
    first = react_loop_sync(MockProvider(["one"]), "x", journal=journal)
    second = map_reduce_sync(
        MockProvider(["two", "three"]),
        ["a"],
        map_prompt_template="{item}",
        reduce_prompt_template="{mapped_outputs}",
        journal=journal,
    )
    assert (first.value, second.value) == ("one", "three")
    assert len(asyncio.run(journal.entries())) == 3
    asyncio.run(journal.aclose())


@pytest.mark.req("journal.once")
class TestEffects:
    async def test_what_is_on_record_is_given_back_and_not_done(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        for _ in range(3):
            async with Journal(store, "r") as journal:
                first = await journal.effect("a", ledger.do("a", {"n": (1, 2)}))
                second = await journal.effect("b", lambda: b"sync")
            assert (first, second) == ({"n": (1, 2)}, b"sync")
        assert ledger.done == ["a"]

    async def test_equal_names_are_counted_in_the_order_of_the_calls(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        ids: list[str] = []
        for _ in range(2):
            async with Journal(store, "r") as journal:
                values = [
                    await journal.effect("a", ledger.do(f"{n}", n)) for n in range(3)
                ]
                assert values == [0, 1, 2]
                ids = [e.id for e in await journal.entries()]
        assert ids == ["a:0", "a:1", "a:2"]
        assert ledger.done == ["0", "1", "2"]

    async def test_scopes_keep_what_happens_at_once_apart(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async def one(journal: Journal, name: str, gate: asyncio.Event) -> Any:
            await gate.wait()
            return await journal.scope(name).effect("a", ledger.do(name))

        for order in ("xy", "yx"):
            async with Journal(store, "r") as journal, asyncio.timeout(5):
                gates = {name: asyncio.Event() for name in order}
                tasks = [
                    asyncio.create_task(one(journal, name, gates[name]))
                    for name in order
                ]
                for name, task in zip(order, tasks, strict=True):
                    gates[name].set()
                    assert await task == name
        assert ledger.done == ["x", "y"]

    async def test_names_cannot_be_taken_for_places(self, store: JournalStore) -> None:
        async with Journal(store, "r") as journal:
            await journal.effect("a/b", lambda: 1)
            await journal.scope("a").effect("b", lambda: 2)
            await journal.scope("a%2Fb").effect("\ud800", lambda: 3)
            ids = [e.id for e in await journal.entries()]
        assert len(set(ids)) == 3
        assert ids[0] == "a%2Fb:0"

    async def test_an_effect_inside_of_an_effect_has_its_place_there(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async def outer() -> Any:
            here = current_journal()
            assert here is not None
            assert here.path == journal.path == "outer:0"
            assert journal.scope("s").path == "outer:0/s"
            assert other.path == "other"
            return await journal.effect("inner", ledger.do("inner"))

        async with Journal(store, "r") as journal:
            other = journal.scope("other")
            assert await journal.effect("outer", outer) == "inner"
            assert journal.path == ""
            ids = [e.id for e in await journal.entries()]
        assert current_journal() is None
        assert ids == ["outer:0", "outer:0/inner:0"]

    async def test_an_outcome_says_what_it_cost(self, store: JournalStore) -> None:
        cost = TokenUsage(3, 4, 1)
        async with Journal(store, "r") as journal:
            assert await journal.effect("a", lambda: Outcome(7, cost)) == 7
            assert [e.cost for e in await journal.entries()] == [cost]

    async def test_one_id_is_never_used_twice_in_a_process(
        self, store: JournalStore
    ) -> None:
        async with Journal(store, "r") as journal:
            twin = Journal._at(journal._core, "")
            journal._core.number("a")
            await twin.effect("a", lambda: 1)
            journal._core._counters.clear()
            await twin.effect("a", lambda: 1)
            with pytest.raises(JournalError, match="two effects of one run"):
                await twin.effect("a", lambda: 2)

    async def test_a_closed_journal_refuses(self, store: JournalStore) -> None:
        journal = Journal(store, "r")
        await journal.aclose()
        with pytest.raises(JournalError, match="open it anew"):
            await journal.effect("a", lambda: 1)
        async with Journal(store, "r") as another:
            await another.effect("a", lambda: 1)
        with pytest.raises(JournalError, match="open it anew"):
            await another.entries()

    async def test_many_first_uses_open_it_once(self, store: JournalStore) -> None:
        journal = Journal(store, "r")
        async with asyncio.timeout(5):
            values = await asyncio.gather(
                *[
                    journal.scope(f"{n}").effect("a", Ledger().do("", n))
                    for n in range(9)
                ]
            )
        assert values == list(range(9))
        await journal.aclose()

    def test_wrong_arguments_are_refused(self) -> None:
        wrong: Any = "runs.db"
        with pytest.raises(TypeError, match=r"Journal\.open"):
            Journal(wrong, "r")
        for run in ("", None, 7):
            given: Any = run
            with pytest.raises(ValueError, match="`run`"):
                Journal(MemoryJournalStore(), given)


@pytest.mark.req("journal.changed-program")
class TestWhatDiffers:
    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            (("a", 0.0, 1), None),
            (("a", 0.5, 1), "not the same in `temperature`;"),
            (("a", 0.0, 2), "not the same in `tool count`;"),
            (("a", 0.5, 2), "not the same in `temperature`, `tool count`;"),
            (("b", 0.0, 1), "1 messages, the last: b' is asked for;"),
        ],
        ids=str,
    )
    async def test_of_a_model_call_is_named(
        self, asked: tuple[str, float, int], words: str | None
    ) -> None:
        store = MemoryJournalStore()

        async def go(prompt: str, temperature: float, least: int) -> None:
            schema = {"type": "object", "minProperties": least}
            tools = [Tool("count", "Counts.", schema, lambda: 1)]
            provider = ScriptedProvider(lambda _request: "fine")
            async with Journal(store, "r") as journal:
                await react_loop(
                    provider, prompt, tools, temperature=temperature, journal=journal
                )

        await go("a", 0.0, 1)
        if words is None:
            await go(*asked)
            return
        with pytest.raises(JournalMismatchError) as caught:
            await go(*asked)
        assert words in str(caught.value)

    async def test_of_an_effect_is_named_and_secrets_are_not(
        self, store: JournalStore
    ) -> None:
        key = "sk-" + "ant-" + "api03-" + "aB3dE6gH9jK2mN5pQ8sT1vW4" * 2
        long = ["long"] * 2000
        async with Journal(store, "r") as journal:
            await journal.effect("a", lambda: 1, arguments={"n": 1, key: 2, "z": 3})
            await journal.effect("b", lambda: 1, arguments={"n": 1})
            await journal.effect("c", lambda: 1, arguments=[*long, "x"])
        found = {entry.id: entry for entry in await store.entries("r")}
        bare = found["b:0"].fingerprint.partition(" ")[0]
        await store.put("r", replace(found["b:0"], fingerprint=bare))
        async with Journal(store, "r") as journal:
            with pytest.raises(JournalMismatchError) as caught:
                await journal.effect("a", lambda: 1, arguments={"n": 2, key: 3, "z": 3})
            assert "(what differs: `n`, `" in str(caught.value)
            assert "`z`" not in str(caught.value)
            assert key not in str(caught.value)
            with pytest.raises(JournalMismatchError, match="these words leave out"):
                await journal.effect("c", lambda: 1, arguments=[*long, "y"])
            # Of what was written without fields nobody can tell, and nothing is lost.
            assert await journal.effect("b", lambda: 2, arguments={"n": 1}) == 1


@pytest.mark.req("journal.changed-program")
class TestAChangedProgram:
    async def test_another_argument_in_the_same_place_is_refused(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async with Journal(store, "r") as journal:
            await journal.effect("pay", ledger.do("5"), arguments={"amount": 5})
        for amount in (6, 5.0, "5", True, None):
            async with Journal(store, "r") as journal:
                with pytest.raises(JournalMismatchError) as caught:
                    await journal.effect(
                        "pay", ledger.do("no"), arguments={"amount": amount}
                    )
            assert caught.value.effect_id == "pay:0"
            assert "pay:0" in str(caught.value)
        assert ledger.done == ["5"]

    async def test_the_words_of_the_error_hold_no_secret(
        self, store: JournalStore
    ) -> None:
        secret = "sk-" + "a1B2" * 12
        asked = {"text": f"use {secret}", "password": "swordfish"}
        async with Journal(store, "r") as journal:
            await journal.effect("a", lambda: 1, arguments=asked)
            (found,) = await journal.entries()
            assert found.asked.startswith("a {")
            assert secret not in found.asked
            assert "swordfish" not in found.asked
        asked = {"text": f"{secret}!", "password": "kipper"}
        async with Journal(store, "r") as journal:
            with pytest.raises(JournalMismatchError) as caught:
                await journal.effect("a", lambda: 1, arguments=asked)
            assert secret not in str(caught.value)
            assert "kipper" not in str(caught.value)

    async def test_what_has_no_canonical_form_is_refused_before_anything_is_done(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async with Journal(store, "r") as journal:
            with pytest.raises(JournalValueError, match="canonical"):
                await journal.effect("a", ledger.do("a"), arguments=object())
            assert await journal.entries() == ()
        assert ledger.done == []


@pytest.mark.req("journal.in-doubt")
class TestInDoubt:
    async def test_what_had_begun_is_not_repeated_and_the_error_names_it(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        await started(store, "pay")
        for _ in range(2):
            async with Journal(store, "r") as journal:
                with pytest.raises(InDoubtError) as caught:
                    await journal.effect("pay", ledger.do("pay"))
            assert caught.value.effect_ids == ("pay:0",)
            assert "pay:0" in str(caught.value)
            assert not caught.value.retryable
        assert ledger.done == []

    async def test_what_is_idempotent_is_repeated_with_the_same_key(
        self, store: JournalStore
    ) -> None:
        keys: list[str] = []

        def work() -> int:
            here = current_journal()
            assert here is not None
            keys.append(here.idempotency_key)
            if len(keys) == 1:
                raise KillError
            return 7

        journal = Journal(store, "r")
        with pytest.raises(KillError):
            await journal.effect("a", work, idempotent=True)
        await journal.aclose()
        async with Journal(store, "r") as journal:
            assert await journal.effect("a", work, idempotent=True) == 7
            assert [e.attempts for e in await journal.entries()] == [2]
        async with Journal(store, "other") as journal:
            assert await journal.effect("a", work, idempotent=True) == 7
        assert keys[0] == keys[1] != keys[2]
        assert len(keys[0]) == 64

    async def test_who_can_look_is_asked(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        await started(store, "pay")
        await started(store, "send")

        async def found() -> Any:
            return Outcome("receipt", TokenUsage(1))

        async def not_done() -> Any:
            return NOT_DONE

        for _ in range(2):
            async with Journal(store, "r") as journal:
                paid = await journal.effect("pay", ledger.do("pay"), find=found)
                sent = await journal.effect("send", ledger.do("send"), find=not_done)
                assert (paid, sent) == ("receipt", "send")
        assert ledger.done == ["send"]

    async def test_an_operator_says_what_came_of_it(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        for name in ("pay", "fail", "again"):
            await started(store, name)
        async with Journal(store, "r") as journal:
            await journal.resolve("pay:0", "receipt")
            await journal.resolve("fail:0", ValueError("no money"))
            await journal.retry("again:0")
            with pytest.raises(JournalError, match="is finished"):
                await journal.resolve("pay:0", "another")
            for call in (journal.resolve("x:0", 1), journal.retry("x:0")):
                with pytest.raises(JournalError, match="no effect 'x:0'"):
                    await call
        async with Journal(store, "r") as journal:
            assert await journal.effect("pay", ledger.do("pay")) == "receipt"
            with pytest.raises(ValueError, match="no money"):
                await journal.effect("fail", ledger.do("fail"))
            assert await journal.effect("again", ledger.do("again")) == "again"
        assert ledger.done == ["again"]

    async def test_doubt_inside_of_an_effect_is_not_its_outcome(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async def outer() -> str:
            try:
                await journal.effect("inner", ledger.do("inner", KillError()))
            except JournalError:
                return "swallowed"
            return "fine"

        journal = Journal(store, "r")
        with pytest.raises(KillError):
            await journal.effect("outer", outer, idempotent=True)
        await journal.aclose()
        async with Journal(store, "r") as journal:
            with pytest.raises(InDoubtError, match="inner:0"):
                await journal.effect("outer", outer, idempotent=True)
            states = {e.id: e.state for e in await journal.entries()}
        assert states["outer:0"] is EffectState.STARTED
        assert ledger.done == ["inner"]

    async def test_what_is_on_record_is_forgotten_only_by_force(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async with Journal(store, "r") as journal:
            await journal.effect("pay", ledger.do("paid 40"), arguments={"n": 40})
            await journal.effect("say", lambda: {"password": "pw-hunter2"})
            with pytest.raises(RateLimitError):
                await journal.effect("up", ledger.do("up", RateLimitError("wait")))
            with pytest.raises(JournalError, match=r"finished.*paid 40.*force=True"):
                await journal.retry("pay:0")
            with pytest.raises(JournalError, match=r"finished.*paid 40.*force=True"):
                await journal.resolve("pay:0", "another")
            with pytest.raises(JournalError, match=r"say:0.*finished") as caught:
                await journal.retry("say:0")
            assert "hunter2" not in str(caught.value)
            with pytest.raises(JournalError, match="tries it again without this"):
                await journal.retry("up:0")
            assert len(await journal.entries()) == 3
        async with Journal(store, "r") as journal:
            assert (
                await journal.effect("pay", ledger.do("b"), arguments={"n": 40})
                == "paid 40"
            )
            await journal.resolve("pay:0", "by hand", force=True)
            (gone,) = await journal.retry("say:0", force=True)
            assert (gone.id, gone.state) == ("say:0", EffectState.FINISHED)
        async with Journal(store, "r") as journal:
            assert (
                await journal.effect("pay", ledger.do("b"), arguments={"n": 40})
                == "by hand"
            )
        assert ledger.done == ["paid 40", "up"]

    async def test_retry_keeps_outcomes_inside_of_what_is_in_doubt(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async def outer(*, die: bool) -> Any:
            first = await journal.effect("pay", ledger.do("pay"))
            if die:
                await journal.effect("mail", ledger.do("mail", KillError()))
            return first

        journal = Journal(store, "r")
        with pytest.raises(KillError):
            await journal.effect("outer", lambda: outer(die=True))
        await journal.aclose()
        async with Journal(store, "r") as journal:
            gone = await journal.retry("outer:0")
            assert [e.id for e in gone] == ["outer:0", "outer:0/mail:0"]
        async with Journal(store, "r") as journal:
            assert await journal.effect("outer", lambda: outer(die=False)) == "pay"
        assert ledger.done == ["pay", "mail"]

    async def test_by_force_retry_forgets_what_was_done_inside_too(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async def outer() -> Any:
            return await journal.effect("inner", ledger.do("inner"))

        async with Journal(store, "r") as journal:
            await journal.effect("outer", outer)
            await journal.effect("outer2", lambda: 1)
            gone = await journal.retry("outer:0", force=True)
            assert [e.id for e in gone] == ["outer:0", "outer:0/inner:0"]
            assert [e.id for e in await journal.entries()] == ["outer2:0"]
            await journal.clear()
            assert await journal.entries() == ()


@pytest.mark.req("journal.failures")
class TestFailures:
    async def test_a_failure_that_ended_the_run_is_tried_again_by_the_next(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        async with Journal(store, "r") as journal:
            with pytest.raises(RateLimitError):
                await journal.effect("a", ledger.do("a", RateLimitError("wait")))
            (found,) = await journal.entries()
            assert found.state is EffectState.GIVEN_UP
        async with Journal(store, "r") as journal:
            # Nothing was built upon it: it may even be another question.
            assert await journal.effect("a", ledger.do("b"), arguments=2) == "b"
            (found,) = await journal.entries()
            assert (found.state, found.attempts) == (EffectState.FINISHED, 2)
        assert ledger.done == ["a", "b"]

    async def test_a_failure_that_the_program_went_on_with_stays(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        failure = RateLimitError("wait", retry_after=3.0)
        failure.attempts = 4
        for _ in range(2):
            async with Journal(store, "r") as journal:
                with pytest.raises(RateLimitError, match="wait") as caught:
                    await journal.effect(
                        "a", ledger.do("a", failure), keep_failures=True
                    )
                (found,) = await journal.entries()
            assert caught.value.retry_after == 3.0
            assert caught.value.attempts == 4
            assert found.cost == TokenUsage(llm_calls=4)
        assert ledger.done == ["a"]

    async def test_a_failure_that_has_no_end_is_kept_in_words(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        endless: list[Any] = []
        endless.append(endless)
        failure = PatternError("bad", metadata={"x": endless})
        for kind in (PatternError, RecordedError):
            async with Journal(store, "r") as journal:
                with pytest.raises(kind, match="bad"):
                    await journal.effect(
                        "a", ledger.do("a", failure), keep_failures=True
                    )
        assert ledger.done == ["a"]

    async def test_what_cannot_be_kept_was_done_all_the_same(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        for _ in range(2):
            async with Journal(store, "r") as journal:
                with pytest.raises(JournalValueError, match="a:0"):
                    await journal.effect("a", ledger.do("a", object()))
        assert ledger.done == ["a"]
        async with Journal(store, "r") as journal:
            await journal.resolve("a:0", 5)
        async with Journal(store, "r") as journal:
            assert await journal.effect("a", ledger.do("a")) == 5

    async def test_what_is_idempotent_is_done_again_when_its_value_was_lost(
        self, store: JournalStore, ledger: Ledger
    ) -> None:
        values = [object(), 5]
        for index in range(2):
            async with Journal(store, "r") as journal:
                try:
                    value = await journal.effect(
                        "a", ledger.do("a", values[index]), idempotent=True
                    )
                except JournalValueError:
                    assert index == 0
                else:
                    assert value == 5
        assert ledger.done == ["a", "a"]

    async def test_a_journal_that_fails_lets_nothing_begin(
        self, tmp_path: Path, ledger: Ledger
    ) -> None:
        store = SQLiteJournalStore(tmp_path / "runs.db")
        async with Journal(store, "r") as journal:
            await journal.effect("a", ledger.do("a"))
            with closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
                db.execute("DROP TABLE executionkit_journal_1")
            with pytest.raises(JournalError, match="no such table"):
                await journal.effect("b", ledger.do("b"))
        assert ledger.done == ["a"]


class SlowStore(MemoryJournalStore):
    """Writes only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.at_work = asyncio.Event()

    async def put(self, run: str, entry: JournalEntry) -> None:
        self.at_work.set()
        await self.gate.wait()
        await super().put(run, entry)


@pytest.mark.req("journal.cancel")
class TestCancellation:
    async def test_a_cancel_before_it_began_leaves_no_doubt(self) -> None:
        store, ledger = SlowStore(), Ledger()
        journal = Journal(store, "r")
        task = asyncio.create_task(journal.effect("a", ledger.do("a")))
        async with asyncio.timeout(5):
            await store.at_work.wait()
            task.cancel()
            await settle()
            assert not task.done()
            store.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ledger.done == []
        assert await journal.entries() == ()
        await journal.aclose()

    async def test_a_cancel_after_it_was_done_does_not_lose_it(self) -> None:
        store, ledger = SlowStore(), Ledger()
        store.gate.set()

        async def work() -> Any:
            store.gate.clear()
            store.at_work.clear()
            return await ledger.do("a")()

        journal = Journal(store, "r")
        task = asyncio.create_task(journal.effect("a", work))
        async with asyncio.timeout(5):
            while not ledger.done:
                await settle()
            await store.at_work.wait()
            task.cancel()
            await settle()
            task.cancel()
            await settle()
            store.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        (found,) = await journal.entries()
        assert found.state is EffectState.FINISHED
        await journal.aclose()

    async def test_a_cancel_in_its_middle_leaves_it_in_doubt(
        self, store: JournalStore
    ) -> None:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        journal = Journal(store, "r")
        task = asyncio.create_task(journal.effect("a", work))
        async with asyncio.timeout(5):
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        (found,) = await journal.entries()
        assert found.state is EffectState.STARTED
        await journal.aclose()


@pytest.mark.req("journal.timer")
class TestSleep:
    async def test_the_time_goes_on_while_no_process_runs(
        self, store: JournalStore
    ) -> None:
        clock = FakeClock()
        with use_clock(clock):
            journal = Journal(store, "r")
            async with asyncio.timeout(5):
                task = asyncio.create_task(journal.sleep(60))
                while not await journal.entries():
                    await settle()
                await settle()
                await clock.advance(20)
                assert not task.done()
                task.cancel()
                await settle()
                await journal.aclose()
                async with Journal(store, "r") as journal:
                    task = asyncio.create_task(journal.sleep(60))
                    await _until_asleep(clock)
                    await clock.advance(39)
                    assert not task.done()
                    await clock.advance(2)
                    await task
                await clock.advance(100)
                async with Journal(store, "r") as journal:
                    await journal.sleep(60)

    async def test_another_duration_is_another_program(
        self, store: JournalStore
    ) -> None:
        async with Journal(store, "r") as journal:
            await journal.sleep(0)
        async with Journal(store, "r") as journal:
            with pytest.raises(JournalMismatchError):
                await journal.sleep(1)
            with pytest.raises(ValueError, match="seconds"):
                await journal.sleep(-1)


async def _until_asleep(clock: FakeClock) -> None:
    while not clock.pending:
        await settle()
