"""Runs that survive their process: what was done is on record, and not done again.

```python
async with Journal.open("runs.db", run="order-17") as journal:
    await react_loop(provider, "...", tools, journal=journal)
```

A journal looks each effect up before it is done. What is on record is given back, what
is not is done and written down: that it begins before it begins, what came of it before
anybody hears of it. So a run that was killed at any moment is run again from its start
and goes on where it was.

Effects have ids that come from their place in the program, and a fingerprint of what is
asked for. A program that asks for something else in the same place is refused.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit._clock import get_clock
from executionkit._journal import operators
from executionkit._journal.core import Core, in_doubt
from executionkit._journal.sqlite import SQLiteJournalStore
from executionkit._journal.stores import JournalStore, MemoryJournalStore
from executionkit._journal.values import (
    NOT_DONE,
    Effect,
    EffectState,
    JournalEntry,
    NotDone,
    Outcome,
    part,
    shown,
)
from executionkit.engine._checks import check_number

if TYPE_CHECKING:
    from types import TracebackType

__all__ = (
    "NOT_DONE",
    "Effect",
    "EffectState",
    "Journal",
    "JournalEntry",
    "JournalStore",
    "MemoryJournalStore",
    "NotDone",
    "Outcome",
    "SQLiteJournalStore",
    "current_journal",
    "shown",
)

_current: Final[ContextVar[tuple[Core, str] | None]] = ContextVar(
    "executionkit_journal", default=None
)
"""Of the innermost effect: its journal, and its place there."""


def current_journal() -> Journal | None:
    """The journal in whose effect this code runs, in its place there; None = in none."""
    inner = _current.get()
    return None if inner is None else Journal._at(*inner)  # noqa: SLF001 - its own module


class Journal:
    """The record of one run. To run again, open it again.

    It is opened by its first use, or by `async with`, and one process at a time may
    have a run. For one event loop.

    A journal is also a place in the program: inside of an effect it stands for that
    place, wherever it was handed over. Code that does several things at once gives each
    a place by name, with `scope`, since which one comes first may change.

    Args:
        store: Where entries are kept.
        run: The run: one piece of work, in whatever process it goes on.

    Raises:
        TypeError: When `store` is no JournalStore.
        ValueError: When `run` is empty.
    """

    __slots__ = ("_core", "_path")

    def __init__(self, store: JournalStore, run: str) -> None:
        given: Any = store
        if not isinstance(given, JournalStore):
            msg = (
                f"`store` must be a JournalStore, got {type(given).__name__}; for a "
                "file use `Journal.open(path, run=...)`"
            )
            raise TypeError(msg)
        name: Any = run
        if not isinstance(name, str) or not name:
            msg = f"`run` must be a text that is not empty, got {run!r}"
            raise ValueError(msg)
        if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):
            msg = f"`run` must be a text without lone surrogates, got {name[:80]!a}"
            raise ValueError(msg)
        self._core = Core(store, run)
        self._path = ""

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, run: str) -> Journal:
        """A journal in a SQLite file; see `SQLiteJournalStore`.

        Args:
            path: The file, on a local disk; made when it is not there.
            run: See the class.
        """
        return cls(SQLiteJournalStore(path), run)

    @classmethod
    def _at(cls, core: Core, path: str) -> Journal:
        journal = cls.__new__(cls)
        journal._core, journal._path = core, path  # noqa: SLF001 - its own class
        return journal

    @property
    def run(self) -> str:
        """The run."""
        return self._core.run

    @property
    def path(self) -> str:
        """The place in the program that this stands for; empty = the whole run."""
        inner = _current.get()
        if inner is None or inner[0] is not self._core:
            return self._path
        inside = not self._path or f"{inner[1]}/".startswith(f"{self._path}/")
        return inner[1] if inside else self._path

    @property
    def idempotency_key(self) -> str:
        """A key of this place, 64 hex digits: the same in every run of the program.

        Inside of an effect (`current_journal()`) it is what a service should be given,
        so that it knows an effect that is repeated.
        """
        text = f"{self.run}\n{self.path}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _id(self, place: str) -> str:
        path = self.path
        return f"{path}/{place}" if path else place

    def scope(self, name: str) -> Journal:
        """This journal for a part of the program, with a place of its own.

        Args:
            name: Names the part among its neighbours; the same in every run.
        """
        return self._at(self._core, self._id(part(name)))

    def enter(self, kind: str) -> Journal:
        """A scope for the next piece of work of this kind here: `react_loop:0`."""
        place = self._id(part(kind))
        return self._at(self._core, f"{place}:{self._core.number(place)}")

    async def effect(
        self,
        name: str,
        function: Callable[[], Awaitable[Any] | Any],
        *,
        arguments: Any = None,
        idempotent: bool = False,
        find: Callable[[], Awaitable[Any]] | None = None,
        keep_failures: bool = False,
    ) -> Any:
        """Do something once, in whatever number of runs, and return what came of it.

        Args:
            name: What it is. The second effect of this name in one place is another
                one, counted in the order of the calls; where several are made at once,
                give each a name of its own.
            function: Does it. Async, or sync and quick. It may return an `Outcome`, to
                say what it cost.
            arguments: What decides what it does, JSON-like: a later run that says
                something else is refused.
            idempotent: Whether doing it twice does no more than once. Then it is done
                again when a run broke off in its middle, with the same
                `current_journal().idempotency_key`.
            find: For effects that are not: looks outside whether it was done, and
                returns its value, or `NOT_DONE`.
            keep_failures: Whether a failure is on record for good, because the program
                goes on with it. If not, the next run tries again.

        Returns:
            What `function` returned. JSON-like values, tuples, sets, bytes, dates, and
            the values of this library come back as they were.

        Raises:
            InDoubtError: When an earlier run broke off in its middle.
            JournalMismatchError: When the journal has something else in this place.
            JournalValueError: When `arguments` or the value cannot be kept. In the
                second case it was done, and that is on record.
            JournalError: When the journal cannot be used.
            Exception: What `function` raised, now or in an earlier run.
        """
        place = part(name)
        number = self._core.number(self._id(place))

        async def do() -> Any:
            value = function()
            return await value if inspect.isawaitable(value) else value

        outcome = await self.perform(
            Effect(
                place=f"{place}:{number}",
                kind="effect",
                asked=[name, arguments],
                words=shown(name, arguments),
                is_repeatable=idempotent,
                find=find,
                keeps=lambda _failure: keep_failures,
            ),
            do,
        )
        return outcome.value

    async def perform(
        self, effect: Effect, do: Callable[[], Awaitable[Any]]
    ) -> Outcome:
        """Look an effect up, or do it; for who writes patterns. See `effect`.

        Args:
            effect: What it is.
            do: Does it; returns its value, or an `Outcome` with what it cost.

        Returns:
            Its value and cost, and whether it comes from an earlier run.
        """
        effect_id = self._id(effect.place)

        async def inside() -> Any:
            token = _current.set((self._core, effect_id))
            try:
                return await do()
            finally:
                _current.reset(token)

        return await self._core.perform(effect_id, effect, inside)

    async def sleep(self, seconds: float, *, name: str = "sleep") -> None:
        """Wait until `seconds` after this was first asked for, in whatever run.

        Args:
            seconds: At least 0; measured by the wall clock, which goes on while no
                process runs.
            name: See `effect`.
        """
        check_number("seconds", seconds)
        clock = get_clock()
        number = self._core.number(self._id(part(name)))

        async def do() -> float:
            return clock.wall() + seconds

        timer = Effect(
            place=f"{part(name)}:{number}",
            kind="timer",
            asked=[name, seconds],
            words=f"{name} {seconds}s",
            is_repeatable=True,
        )
        due: float = (await self.perform(timer, do)).value
        left = min(due - clock.wall(), seconds)  # also when the clock was set back
        if left > 0:
            await clock.sleep(left)

    # --- for operators --------------------------------------------------------------
    async def entries(self) -> tuple[JournalEntry, ...]:
        """All that is on record of this run, in the order in which it began."""
        await self._core.ready()
        return await self._core.store.entries(self.run)

    async def resolve(
        self, effect_id: str, outcome: Any, *, force: bool = False
    ) -> None:
        """Say what came of an effect that is in doubt, or whose value was lost.

        Args:
            effect_id: As the error names it.
            outcome: Its value; an exception when it failed. For a tool call, what the
                tool would have returned.
            force: Whether it may take the place of an outcome that is on record.

        Raises:
            JournalError: When the journal has no such effect, or knows its outcome.
            JournalValueError: When `outcome` cannot be kept.
        """
        await operators.resolve(self._core, effect_id, outcome, force=force)

    async def retry(
        self, effect_id: str, *, force: bool = False
    ) -> tuple[JournalEntry, ...]:
        """Say that an effect in doubt was not done: it is forgotten, and done again.

        So is what is in doubt, or was given up, inside of it; outcomes on record there
        stay, as when an idempotent effect is repeated.

        Args:
            effect_id: As the error names it.
            force: Whether outcomes on record, of this effect and of all inside of it,
                are forgotten too: all of it is done again.

        Returns:
            What was forgotten.

        Raises:
            JournalError: When the journal has no such effect, or it is not in doubt.
        """
        return await operators.retry(self._core, effect_id, force=force)

    async def clear(self) -> None:
        """Forget the whole run."""
        for entry in await self.entries():
            await self._core.forget(entry.id)

    async def check_doubts(self, places: list[str]) -> None:
        """Refuse to begin any of these when one is in doubt; for who writes patterns.

        Args:
            places: Of effects that are not repeatable, as in `Effect.place`.

        Raises:
            InDoubtError: Naming all that are in doubt.
        """
        found = [await self._core.look(self._id(place)) for place in places]
        open_ones = [e for e in found if e and e.state is EffectState.STARTED]
        if open_ones:
            error = in_doubt(open_ones)
            self._core.note_broken(open_ones[0].id, error)
            raise error

    async def give_up(self, place: str) -> None:
        """Let the next run try again what failed there; for who writes patterns."""
        await self._core.give_up(self._id(place))

    async def ended_at(self, place: str) -> float | None:
        """When what is on record there has ended, in wall-clock seconds."""
        entry = await self._core.look(self._id(place))
        return None if entry is None else entry.ended_at

    async def aclose(self) -> None:
        """Let the run go; the journal cannot be used any more."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        try:
            await self._core.ready()
        except BaseException:  # cancelled, say: then nobody calls `__aexit__`
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
