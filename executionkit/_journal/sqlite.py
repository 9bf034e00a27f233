"""A journal in a SQLite file: on the disk before anything is built upon it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from executionkit._journal.lock import RunLock
from executionkit._journal.stores import locked
from executionkit._journal.values import EffectState, JournalEntry
from executionkit._sqlite import connect
from executionkit._threads import run_in_thread
from executionkit.errors import JournalError
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    import sqlite3

__all__ = ("SQLiteJournalStore",)

_T = TypeVar("_T")

# The number is that of the form: another form gets another table.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS executionkit_journal_1 (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    asked TEXT NOT NULL,
    state TEXT NOT NULL,
    outcome TEXT,
    cost TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    UNIQUE (run, id)
) STRICT
"""
_NAMES: Final = tuple(item.name for item in fields(JournalEntry))
_COLUMNS: Final = ", ".join(_NAMES)
_PUT: Final = (
    f"INSERT INTO executionkit_journal_1 (run, {_COLUMNS}) "  # noqa: S608 # nosec B608 - constants
    f"VALUES (?{', ?' * len(_NAMES)}) ON CONFLICT (run, id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _NAMES if name != "id")
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM executionkit_journal_1 WHERE run = ?"  # noqa: S608 # nosec B608 - constants


class SQLiteJournalStore:
    """A `JournalStore` in one file (WAL, and `synchronous = FULL`).

    What is written at the same time goes to the disk together. The file holds prompts,
    replies and arguments as they are, because a run goes on from them: it is made for
    its owner alone, and is as secret as they are. Next to it stand SQLite's own files,
    and a lock file for each run at work.

    Args:
        path: The file, on a local disk; made when it is not there. Its folder must be.
        busy_seconds: Seconds to wait for other processes that write.

    Raises:
        JournalError: From every method, when the file cannot be used.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, busy_seconds: float = 10.0
    ) -> None:
        self._path = Path(path)
        self._busy = busy_seconds
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._locks: dict[str, RunLock] = {}
        self._waiting: list[_Job] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def open(self, run: str) -> Collection[str]:
        def work(db: sqlite3.Connection) -> frozenset[str]:
            rows = db.execute(
                "SELECT id FROM executionkit_journal_1 WHERE run = ?", (run,)
            )
            return frozenset(row[0] for row in rows)

        lock = RunLock(self._lock_path(run))
        try:
            holder = await run_in_thread(lock.take)
        except OSError as exc:
            msg = f"The journal {self._path} cannot be locked: {exc}"
            raise JournalError(msg) from exc
        if holder is not None:
            raise locked(run, str(self._path), holder)
        self._locks[run] = lock
        try:
            return await self._do(work)
        except BaseException:
            await self.close(run)
            raise

    def _lock_path(self, run: str) -> Path:
        name = hashlib.sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return self._path.with_name(f"{self._path.name}.{name}.lock")

    def has_lock(self, run: str) -> bool:
        """Whether a process has this run, or was killed when it had it."""
        return self._lock_path(run).exists()

    async def get(self, run: str, effect_id: str) -> JournalEntry | None:
        def work(db: sqlite3.Connection) -> JournalEntry | None:
            row = db.execute(f"{_SELECT} AND id = ?", (run, effect_id)).fetchone()
            return None if row is None else _entry(row)

        return await self._do(work)

    async def put(self, run: str, entry: JournalEntry) -> None:
        values = (run, *_values(entry))
        await self._write(lambda db: db.execute(_PUT, values))

    async def delete(self, run: str, effect_id: str) -> None:
        await self._write(
            lambda db: db.execute(
                "DELETE FROM executionkit_journal_1 WHERE run = ? AND id = ?",
                (run, effect_id),
            )
        )

    async def entries(self, run: str) -> tuple[JournalEntry, ...]:
        def work(db: sqlite3.Connection) -> tuple[JournalEntry, ...]:
            return tuple(map(_entry, db.execute(f"{_SELECT} ORDER BY seq", (run,))))

        return await self._do(work)

    async def runs(self) -> tuple[str, ...]:
        def work(db: sqlite3.Connection) -> tuple[str, ...]:
            rows = db.execute(
                "SELECT DISTINCT run FROM executionkit_journal_1 ORDER BY run"
            )
            return tuple(row[0] for row in rows)

        return await self._do(work)

    async def close(self, run: str) -> None:
        lock = self._locks.pop(run, None)
        if not self._locks:
            await run_in_thread(self._disconnect)
        if lock is not None:
            await run_in_thread(lock.release)

    def _disconnect(self) -> None:
        with self._lock:
            db, self._db = self._db, None
            if db is not None:
                db.close()

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Read something."""
        return await run_in_thread(lambda: self._locked([work])[0])

    async def _write(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        """Write something, in one transaction with all that waits for the disk."""
        job = _Job(work)
        self._waiting.append(job)
        loop = asyncio.get_running_loop()
        writer = self._writer
        if writer is None or writer.done() or writer.get_loop() is not loop:
            self._writer = loop.create_task(self._write_all())
        await job.done

    async def _write_all(self) -> None:
        while self._waiting:
            jobs, self._waiting = self._waiting, []
            works = [job.work for job in jobs]
            try:
                await run_in_thread(self._locked, works)
            except Exception as exc:  # noqa: BLE001 - goes to those who wait for it
                for job in jobs:
                    job.fail(exc)
            else:
                for job in jobs:
                    job.succeed()

    def _locked(self, works: list[Callable[[sqlite3.Connection], _T]]) -> list[_T]:
        import sqlite3  # most programs need none

        try:
            with self._lock:
                db = self._connected()
                db.execute("BEGIN IMMEDIATE")
                try:
                    outcomes = [work(db) for work in works]
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
                return outcomes
        except (sqlite3.Error, ValueError, TypeError) as exc:
            # The latter two for what a damaged file holds instead of its own.
            msg = f"The journal {self._path} failed: {exc}"
            raise JournalError(msg) from exc

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            # One after the other, under a lock; the library's threads come and go.
            self._db = connect(
                self._path, (_TABLE,), busy_seconds=self._busy, any_thread=True
            )
        return self._db


class _Job:
    """Something to be written, and who waits for it."""

    __slots__ = ("done", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        self.work = work
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def _values(entry: JournalEntry) -> list[Any]:
    row = {name: getattr(entry, name) for name in _NAMES}
    counts = {f.name: getattr(entry.cost, f.name) for f in fields(TokenUsage)}
    row["cost"] = json.dumps({name: n for name, n in counts.items() if n})
    row["state"] = entry.state.value
    return list(row.values())


def _entry(values: tuple[Any, ...]) -> JournalEntry:
    row: dict[str, Any] = dict(zip(_NAMES, values, strict=True))
    row["cost"] = TokenUsage(**json.loads(row["cost"]))
    row["state"] = EffectState(row["state"])
    return JournalEntry(**row)
