"""SQLite files that several processes open: written through to the disk."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ("connect",)

_PAUSE: Final = 0.02
"""Seconds between two tries to set the mode of a file."""


def connect(
    path: Path, tables: Iterable[str], *, busy_seconds: float, any_thread: bool
) -> sqlite3.Connection:
    """Open a file: WAL, `synchronous = FULL`, no transaction that nobody began.

    Args:
        path: The file; made for its owner alone (mode 0600) when it is not there.
        tables: Statements that make what is missing in it.
        busy_seconds: Seconds to wait for other processes.
        any_thread: Whether several threads use it, one after the other.

    Raises:
        sqlite3.Error: When the file cannot be used.
    """
    import sqlite3  # most programs need none

    if not path.exists():
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as exc:
            raise sqlite3.OperationalError(str(exc)) from exc
    db = sqlite3.connect(
        path,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=not any_thread,
    )
    try:
        _use_wal(db, busy_seconds)
        db.execute("PRAGMA synchronous = FULL")
        for statement in tables:
            db.execute(statement)
    except BaseException:
        db.close()
        raise
    return db


def _use_wal(db: sqlite3.Connection, busy_seconds: float) -> None:
    """Set the mode. Of a new file SQLite does not wait for the others by itself."""
    import sqlite3

    pause = threading.Event()
    db.execute("PRAGMA busy_timeout = 0")
    for left in range(int(busy_seconds / _PAUSE), -1, -1):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as exc:
            is_busy = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or not left:
                raise
        pause.wait(_PAUSE)
    db.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
