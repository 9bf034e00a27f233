"""Questions and answers in a SQLite file, for processes that come and go."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from executionkit._approval.stores import answered, new_record, used
from executionkit._approval.values import (
    ApprovalDecision,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
)
from executionkit._sqlite import connect
from executionkit._threads import run_in_thread
from executionkit.errors import StateStoreError

if TYPE_CHECKING:
    import sqlite3

__all__ = ("SQLiteApprovalStore",)

_T = TypeVar("_T")

_NO_JSON: Final = "what waits for an approval in a file must be JSON"

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS executionkit_approvals (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    request TEXT NOT NULL,
    decision TEXT,
    answered_by TEXT NOT NULL DEFAULT '',
    created_at REAL NOT NULL,
    answered_at REAL,
    used_by TEXT
) STRICT
"""
_INDEX: Final = (
    "CREATE INDEX IF NOT EXISTS executionkit_approvals_open "
    "ON executionkit_approvals (run_id, digest, state)"
)
_COLUMNS: Final = (
    "request, digest, state, decision, answered_by, created_at, answered_at"
)


class SQLiteApprovalStore:
    """An `ApprovalStore` in one file, shared by all processes that open it.

    Every answer is on the disk before anybody hears of it. The file holds arguments as
    they are, because somebody has to read them: it is made for its owner alone, and is
    as secret as they are.

    Args:
        path: The file; made when it is not there. Its folder must be.
        busy_seconds: Seconds to wait for other processes.

    Raises:
        StateStoreError: From every method, when the file cannot be used.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, busy_seconds: float = 10.0
    ) -> None:
        self._path = Path(path)
        self._busy = busy_seconds
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def open(
        self, request: ApprovalRequest, *, taken: Collection[str] = (), by: str = ""
    ) -> ApprovalRecord:
        made = new_record(request)
        text = _as_json(made.request.to_dict())
        if ApprovalRequest.from_dict(json.loads(text)).digest != made.digest:
            msg = f"{_NO_JSON}: JSON would change it (keys that are no texts?)"
            raise ValueError(msg)

        def work(db: sqlite3.Connection) -> ApprovalRecord:
            rows = db.execute(
                f"SELECT id, {_COLUMNS} FROM executionkit_approvals "  # noqa: S608 # nosec B608 - constants
                "WHERE run_id = ? AND digest = ? "
                "AND (state != 'used' OR (used_by = ? AND used_by != '')) "
                "ORDER BY state != 'used', created_at, rowid",
                (made.request.run_id, made.digest, by),
            )
            for approval_id, *row in rows:
                if approval_id not in taken:
                    return _record(row)
            db.execute(
                "INSERT INTO executionkit_approvals "
                "(id, run_id, digest, state, request, created_at) "
                "VALUES (?, ?, ?, 'pending', ?, ?)",
                (made.id, made.request.run_id, made.digest, text, made.created_at),
            )
            return made

        return await self._do(work)

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        return await self._do(lambda db: _get(db, approval_id))

    async def pending(self, *, run_id: str | None = None) -> tuple[ApprovalRecord, ...]:
        def work(db: sqlite3.Connection) -> tuple[ApprovalRecord, ...]:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM executionkit_approvals "  # noqa: S608 # nosec B608 - constants
                "WHERE state = 'pending' AND (? IS NULL OR run_id = ?) "
                "ORDER BY created_at, rowid",
                (run_id, run_id),
            )
            return tuple(_record(row) for row in rows)

        return await self._do(work)

    async def answer(
        self, approval_id: str, decision: ApprovalDecision, *, by: str = ""
    ) -> ApprovalRecord:
        def work(db: sqlite3.Connection) -> ApprovalRecord:
            record = answered(_get(db, approval_id), approval_id, decision, by)
            assert record.decision is not None  # noqa: S101 - it has just got it
            db.execute(
                "UPDATE executionkit_approvals SET state = 'answered', decision = ?, "
                "answered_by = ?, answered_at = ? WHERE id = ?",
                (
                    _as_json(record.decision.to_dict()),
                    by,
                    record.answered_at,
                    approval_id,
                ),
            )
            return record

        return await self._do(work)

    async def use(
        self, approval_id: str, *, digest: str, run_id: str, by: str = ""
    ) -> ApprovalDecision:
        def work(db: sqlite3.Connection) -> ApprovalDecision:
            row = db.execute(
                "SELECT used_by FROM executionkit_approvals WHERE id = ?",
                (approval_id,),
            ).fetchone()
            decision = used(
                _get(db, approval_id),
                approval_id,
                digest=digest,
                run_id=run_id,
                is_same_effect=bool(by) and row is not None and row[0] == by,
            )
            db.execute(
                "UPDATE executionkit_approvals SET state = 'used', used_by = ? "
                "WHERE id = ?",
                (by, approval_id),
            )
            return decision

        return await self._do(work)

    async def withdraw(self, approval_id: str) -> None:
        await self._do(
            lambda db: db.execute(
                "DELETE FROM executionkit_approvals WHERE id = ? AND state = 'pending'",
                (approval_id,),
            )
        )

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return await run_in_thread(lambda: self._locked(work))

    def _locked(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        import sqlite3  # most programs need none

        try:
            with self._lock, closing(self._connect()) as db:
                # The write lock first: what is read here stays true until the end.
                db.execute("BEGIN IMMEDIATE")
                try:
                    outcome = work(db)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:  # a full disk, say, has ended it
                        db.execute("ROLLBACK")
                    raise
                return outcome
        except sqlite3.Error as exc:
            msg = f"The approval store {self._path} failed: {exc}"
            raise StateStoreError(msg) from exc

    def _connect(self) -> sqlite3.Connection:
        tables = (_TABLE, _INDEX)
        return connect(self._path, tables, busy_seconds=self._busy, any_thread=False)


def _get(db: sqlite3.Connection, approval_id: str) -> ApprovalRecord | None:
    row = db.execute(
        f"SELECT {_COLUMNS} FROM executionkit_approvals WHERE id = ?",  # noqa: S608 # nosec B608 - constants
        (approval_id,),
    ).fetchone()
    return None if row is None else _record(row)


def _record(row: Any) -> ApprovalRecord:
    try:
        return _read(row)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        msg = f"The approval store holds something that cannot be read: {exc!r}"
        raise StateStoreError(msg) from exc


def _read(row: Any) -> ApprovalRecord:
    request, digest, state, decision, answered_by, created_at, answered_at = row
    return ApprovalRecord(
        request=ApprovalRequest.from_dict(json.loads(request)),
        digest=digest,
        state=ApprovalState(state),
        decision=None
        if decision is None
        else ApprovalDecision.from_dict(json.loads(decision)),
        answered_by=answered_by,
        created_at=created_at,
        answered_at=answered_at,
    )


def _as_json(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"{_NO_JSON}: {exc}"
        raise ValueError(msg) from exc
