"""A journal whose user goes away, whose disk is full, or whose file is damaged."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import executionkit._sqlite as sqlite_module
from executionkit._clock import use_clock
from executionkit._journal.lock import RunLock
from executionkit.approval import SQLiteApprovalStore
from executionkit.errors import JournalError, JournalValueError, StateStoreError
from executionkit.journal import Journal, MemoryJournalStore, SQLiteJournalStore
from executionkit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

SECONDS = 20
STEPS = 40
"""Of the event loop: more than an opening or a closing takes."""


async def cancelled_after(steps: int, work: Coroutine[Any, Any, Any]) -> None:
    """Cancel it after this many turns of the loop, and await its end."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def locks(folder: Path) -> list[Path]:
    return list(folder.glob("*.lock"))


async def is_free(path: Path) -> None:
    async with Journal.open(path, run="r") as journal:
        assert await journal.effect("a", lambda: 1) == 1


@pytest.mark.req("journal.cancel", "journal.sqlite")
class TestCancelledAtAnyStep:
    async def test_an_opening_leaves_the_run_free(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.db"

        async def use() -> None:
            async with Journal.open(path, run="r") as journal:
                await journal.effect("a", lambda: 1)

        async with asyncio.timeout(SECONDS):
            for steps in range(STEPS):
                await cancelled_after(steps, use())
                assert not locks(tmp_path)
            await is_free(path)

    async def test_a_closing_leaves_the_run_free(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.db"
        async with asyncio.timeout(SECONDS):
            for steps in range(1, STEPS):
                journal = Journal.open(path, run="r")
                await journal.effect("a", lambda: 1)
                await cancelled_after(steps, journal.aclose())
                assert not locks(tmp_path)
            await is_free(path)

    def test_a_lock_that_nobody_has_any_more_is_let_go(self, tmp_path: Path) -> None:
        """As when its taker was cancelled while a thread took it."""
        path = tmp_path / "lock"
        lock = RunLock(path)
        assert lock.take() is None
        del lock
        gc.collect()
        assert not path.exists()
        again = RunLock(path)
        assert again.take() is None
        again.release()


def damaged(path: Path, column: str, value: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE executionkit_journal_1 SET {column} = ?", (value,))


@pytest.mark.req("journal.sqlite", "journal.values")
class TestDamage:
    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("cost", "x"),
            ("cost", "[]"),
            ("cost", '{"foo": 1}'),
            ("state", "fin!shed"),
        ],
    )
    async def test_an_entry_that_cannot_be_read_is_an_error_of_the_journal(
        self, tmp_path: Path, column: str, value: str
    ) -> None:
        path = tmp_path / "runs.db"
        await is_free(path)
        damaged(path, column, value)
        async with Journal.open(path, run="r") as journal:
            with pytest.raises(JournalError, match=r"runs\.db failed"):
                await journal.effect("a", lambda: 1)
            with pytest.raises(JournalError, match=r"runs\.db failed"):
                await journal.entries()

    @pytest.mark.parametrize(
        "value",
        ["{", '{"$": "no", "v": 1}', '{"$": "Decimal", "v": "x"}', "[" * 99_999],
    )
    async def test_an_outcome_that_cannot_be_read_names_its_effect(
        self, tmp_path: Path, value: str
    ) -> None:
        path = tmp_path / "runs.db"
        await is_free(path)
        damaged(path, "outcome", value)
        done: list[int] = []
        async with Journal.open(path, run="r") as journal:
            with pytest.raises(JournalValueError, match=r"^a:0 .*`Journal.retry\('a:0"):
                await journal.effect("a", lambda: done.append(1))
        assert not done
        async with Journal.open(path, run="r") as journal:
            await journal.retry("a:0", force=True)
        await is_free(path)

    async def test_whatever_bytes_the_file_holds_the_error_is_the_journals(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "runs.db"
        await is_free(path)
        whole = path.read_bytes()
        name = whole.index(b"CREATE TABLE")
        for place in range(name, name + 300, 9):
            broken = bytearray(whole)
            broken[place] = 0xFF  # no UTF-8, in what SQLite tells of it
            path.write_bytes(broken)
            try:
                await is_free(path)
            except JournalError:
                continue


class FullStore(SQLiteJournalStore):
    """Its disk is full once `full` is set."""

    full = False

    def _connected(self) -> sqlite3.Connection:
        db = super()._connected()
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        limit = pages if self.full else 10**6
        db.execute(f"PRAGMA max_page_count = {limit}").fetchone()
        return db


@pytest.mark.req("journal.in-doubt", "journal.sqlite")
async def test_a_full_disk_lets_nothing_begin_and_leaves_doubt_about_what_had(
    tmp_path: Path,
) -> None:
    store = FullStore(tmp_path / "runs.db")
    done: list[str] = []

    def work(name: str) -> Callable[[], str]:
        def do() -> str:
            done.append(name)
            store.full = True
            return name * 50_000

        return do

    async with Journal(store, "r") as journal:
        for name in ("a", "b"):
            with pytest.raises(JournalError, match="disk is full"):
                await journal.effect(name, work(name), arguments=name * 50_000)
    store.full = False
    async with Journal(store, "r") as journal:
        states = {one.id: one.state.value for one in await journal.entries()}
    assert states["a:0"] == "started"
    assert done[:1] == ["a"]
    assert ("b" in done) == ("b:0" in states)


@pytest.mark.req("journal.sqlite")
@pytest.mark.parametrize("kind", ["journal", "approvals"])
async def test_a_new_file_that_others_open_too_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """SQLite waits for nobody while it sets the mode of a new file."""
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    pauses: list[float] = []

    class Pause:
        def wait(self, seconds: float) -> None:
            pauses.append(seconds)
            if other.in_transaction:
                other.execute("COMMIT")

    monkeypatch.setattr(sqlite_module, "threading", SimpleNamespace(Event=Pause))
    made = SQLiteJournalStore if kind == "journal" else SQLiteApprovalStore

    async def read(busy_seconds: float) -> object:
        store: Any = made(path, busy_seconds=busy_seconds)
        return await (store.runs() if kind == "journal" else store.pending())

    async with asyncio.timeout(SECONDS):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises((JournalError, StateStoreError), match="locked"):
            await read(0)
        assert not pauses
        assert await read(5) == ()
    assert len(pauses) == 1
    other.close()


@pytest.mark.req("journal.timer")
async def test_a_clock_that_was_set_back_makes_no_sleep_longer() -> None:
    store, clock = MemoryJournalStore(), FakeClock()
    with use_clock(clock):
        async with asyncio.timeout(SECONDS):
            async with Journal(store, "r") as journal:
                task = asyncio.create_task(journal.sleep(60))
                while not clock.pending:
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
    earlier = FakeClock(wall=clock.wall() - 86_400)
    with use_clock(earlier):
        async with asyncio.timeout(SECONDS), Journal(store, "r") as journal:
            task = asyncio.create_task(journal.sleep(60))
            while not earlier.pending:
                await asyncio.sleep(0)
            await earlier.advance(60)
            await task


@pytest.mark.req("journal.sqlite")
def test_a_run_that_no_file_can_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lone surrogates.*ud800"):
        Journal(MemoryJournalStore(), "a\ud800")
