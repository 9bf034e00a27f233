"""Where a journal is kept: the protocol, and a store in memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from executionkit._journal.values import JournalEntry
from executionkit.errors import JournalLockedError

__all__ = ("JournalStore", "MemoryJournalStore", "locked")


@runtime_checkable
class JournalStore(Protocol):
    """Keeps the entries of runs, in the order in which they were first written.

    What was written is there for good when a method returns: a process that is killed
    right after loses nothing. Each method is atomic.
    """

    async def open(self, run: str) -> Collection[str]:
        """Take a run for oneself, and tell the ids of its entries.

        Raises:
            JournalLockedError: When somebody else who is alive has it. What a dead
                process had is free.
        """
        ...

    async def get(self, run: str, effect_id: str) -> JournalEntry | None:
        """The entry with this id; None when there is none."""
        ...

    async def put(self, run: str, entry: JournalEntry) -> None:
        """Write an entry, new or instead of the one with its id (in the same place)."""
        ...

    async def delete(self, run: str, effect_id: str) -> None:
        """Forget an entry."""
        ...

    async def entries(self, run: str) -> tuple[JournalEntry, ...]:
        """All entries of a run, in order."""
        ...

    async def runs(self) -> tuple[str, ...]:
        """The runs that have entries, in the order of their names."""
        ...

    async def close(self, run: str) -> None:
        """Let a run go that `open` has taken."""
        ...


def locked(run: str, where: str, holder: str = "") -> JournalLockedError:
    """The error for a run that somebody else has."""
    who = f" ({holder})" if holder else ""
    msg = (
        f"run {run!r} of {where} is in use by another journal{who}; one at a time may "
        "work on a run: wait for it, or give this one another `run`"
    )
    return JournalLockedError(msg)


class MemoryJournalStore:
    """A `JournalStore` in this process alone: for tests."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, JournalEntry]] = {}
        self._taken: set[str] = set()

    async def open(self, run: str) -> Collection[str]:
        if run in self._taken:
            raise locked(run, "the memory")
        self._taken.add(run)
        return frozenset(self._runs.get(run, ()))

    async def get(self, run: str, effect_id: str) -> JournalEntry | None:
        return self._runs.get(run, {}).get(effect_id)

    async def put(self, run: str, entry: JournalEntry) -> None:
        self._runs.setdefault(run, {})[entry.id] = entry

    async def delete(self, run: str, effect_id: str) -> None:
        entries = self._runs.get(run, {})
        entries.pop(effect_id, None)
        if not entries:
            self._runs.pop(run, None)

    async def entries(self, run: str) -> tuple[JournalEntry, ...]:
        return tuple(self._runs.get(run, {}).values())

    async def runs(self) -> tuple[str, ...]:
        return tuple(sorted(self._runs))

    async def close(self, run: str) -> None:
        self._taken.discard(run)
