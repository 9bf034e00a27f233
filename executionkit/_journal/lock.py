"""A lock on a run that ends with its process, in whatever way that ends."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("RunLock",)


class RunLock:
    """A lock file. The system lets go of it when the process is gone.

    Args:
        path: The lock file; made when it is not there, removed at the end.
    """

    __slots__ = ("__weakref__", "_file", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> str | None:
        """Take the lock; when somebody else has it, who ("process 123").

        Raises:
            OSError: When there can be no such file.
        """
        while True:
            file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
            if not _try_lock(file):
                holder = os.read(file, 32).decode("ascii", "replace").strip()
                os.close(file)
                return _named(holder)
            if self._is_current(file):
                break
            os.close(file)  # its holder removed it in this very moment
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode("ascii"))
        self._file = file
        _held.add(self)
        return None

    def _is_current(self, file: int) -> bool:
        try:
            there = os.stat(self._path)  # noqa: PTH116 - next to `fstat`
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(file))

    def leave_to_parent(self) -> None:
        """In a forked child: it is the parent's, and must end with it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def release(self) -> None:
        """Let go of it."""
        _held.discard(self)
        self._let_go()

    def __del__(self) -> None:
        # Its taker was cancelled meanwhile, say: then nobody else lets go of it.
        self._let_go()

    def _let_go(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        if sys.platform != "win32":  # an open file cannot be removed there
            self._path.unlink(missing_ok=True)
        os.close(file)


_held: Final[weakref.WeakSet[RunLock]] = weakref.WeakSet()
"""The locks of this process: a child that it forks inherits them, and may outlive it."""


def _leave_to_parent() -> None:
    for lock in list(_held):
        lock.leave_to_parent()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _named(holder: str) -> str:
    if not holder:
        return "another process"
    return "this process" if holder == str(os.getpid()) else f"process {holder}"


def _try_lock(file: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file, 64, os.SEEK_SET)  # behind what is written into it
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
