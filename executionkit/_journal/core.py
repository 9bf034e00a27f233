"""Looks an effect up before it is done, and writes down what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

from executionkit._clock import get_clock
from executionkit._error_base import text_of
from executionkit._journal.codec import decode, encode
from executionkit._journal.stores import JournalStore
from executionkit._journal.values import (
    NOT_DONE,
    Effect,
    EffectState,
    JournalEntry,
    Outcome,
    differing,
    fingerprint_of,
    is_same,
    shown,
)
from executionkit.errors import (
    ExecutionKitError,
    InDoubtError,
    JournalError,
    JournalMismatchError,
    JournalValueError,
    RecordedError,
)
from executionkit.types import TokenUsage

__all__ = ("Core", "in_doubt")

_T = TypeVar("_T")
_NONE: Final = TokenUsage()


class Core:
    """What all scopes of one journal share: the store, and what this process has done.

    Args:
        store: Where entries are kept.
        run: The run.
    """

    def __init__(self, store: JournalStore, run: str) -> None:
        self.store = store
        self.run = run
        self._known: set[str] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_closed = False
        self._claimed: set[str] = set()
        self._counters: dict[str, int] = {}
        self._broken: dict[str, JournalError] = {}

    # --- life -----------------------------------------------------------------------
    async def ready(self) -> None:
        """Take the run, at the first use."""
        if self._is_closed:
            msg = f"the journal of run {self.run!r} is closed; open it anew"
            raise JournalError(msg)
        if self._known is not None:
            return
        if self._opening is None or self._opening.done():
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        self._known = set(await self.store.open(self.run))

    async def close(self) -> None:
        """Let the run go; a cancellation waits until that is done."""
        self._is_closed = True
        await _unbroken(self._close())

    async def _close(self) -> None:
        if self._opening is not None and not self._opening.done():
            await asyncio.wait([self._opening])
        if self._known is not None:
            self._known = None
            await self.store.close(self.run)

    # --- ids ------------------------------------------------------------------------
    def number(self, place: str) -> int:
        """How often `place` was asked for before, in this process."""
        count = self._counters.get(place, 0)
        self._counters[place] = count + 1
        return count

    def _claim(self, effect_id: str) -> None:
        if effect_id in self._claimed:
            msg = (
                f"two effects of one run have the id {effect_id!r}; give each a name of "
                "its own, or open the journal anew to run again"
            )
            raise JournalError(msg)
        self._claimed.add(effect_id)

    # --- entries --------------------------------------------------------------------
    async def look(self, effect_id: str) -> JournalEntry | None:
        """The entry with this id; None when there is none."""
        await self.ready()
        if self._known is None or effect_id not in self._known:
            return None
        return await self.store.get(self.run, effect_id)

    async def put(self, entry: JournalEntry) -> None:
        """Write an entry; a cancellation waits until it is written."""
        await self.ready()
        assert self._known is not None  # noqa: S101 - `ready` has set it
        self._known.add(entry.id)
        await _unbroken(self.store.put(self.run, entry))

    async def forget(self, effect_id: str) -> None:
        """Forget an entry; a cancellation waits until it is forgotten."""
        await self.ready()
        assert self._known is not None  # noqa: S101 - `ready` has set it
        self._known.discard(effect_id)
        await _unbroken(self.store.delete(self.run, effect_id))

    # --- effects --------------------------------------------------------------------
    async def perform(
        self, effect_id: str, effect: Effect, do: Callable[[], Awaitable[Any]]
    ) -> Outcome:
        """See `Journal.perform`."""
        try:
            return await self._perform(effect_id, effect, do)
        except JournalError as exc:
            self.note_broken(effect_id, exc)
            raise

    async def _perform(
        self, effect_id: str, effect: Effect, do: Callable[[], Awaitable[Any]]
    ) -> Outcome:
        mark = fingerprint_of(effect_id, effect.kind, effect.asked)
        await self.ready()
        self._claim(effect_id)
        before = await self.look(effect_id)
        entry = JournalEntry(
            id=effect_id,
            kind=effect.kind,
            fingerprint=mark,
            asked=shown(effect.words),
            started_at=get_clock().wall(),
        )
        if before is not None:
            _check_same(before, entry)
            settled = await self._settled(before, effect)
            if settled is not None:
                return settled
            entry = replace(entry, attempts=before.attempts + 1)
        earlier = _NONE if before is None else before.cost
        await self._begin(entry, before)
        return await self._done(entry, effect, do, earlier)

    async def _settled(self, before: JournalEntry, effect: Effect) -> Outcome | None:
        """What is on record; None when the effect has to be done (again)."""
        if before.state is EffectState.GIVEN_UP:
            return None
        if before.state is EffectState.STARTED:
            return await self._clear_up(before, effect)
        if before.outcome is None:
            if effect.is_repeatable:
                return None
            msg = (
                f"{before.id} ({before.asked}) was done, but its value could not be "
                f"kept; `Journal.resolve({before.id!r}, value)` tells it"
            )
            raise JournalValueError(msg)
        value = _read(before, before.outcome)
        if before.state is EffectState.FAILED:
            raise value
        if effect.unpack is not None:
            value = effect.unpack(value)
        return Outcome(value, before.cost, is_replayed=True)

    async def _clear_up(self, before: JournalEntry, effect: Effect) -> Outcome | None:
        """Nobody knows what came of it: ask whoever may know."""
        if effect.find is not None:
            value: Any = await effect.find()
            if value is NOT_DONE:
                return None
            outcome = value if isinstance(value, Outcome) else Outcome(value)
            await self._finish(before, effect, outcome)
            return replace(outcome, is_replayed=True)
        if effect.is_repeatable:
            return None
        raise in_doubt([before])

    async def _begin(self, entry: JournalEntry, before: JournalEntry | None) -> None:
        try:
            await self.put(entry)
        except asyncio.CancelledError:
            # Nothing was begun: so there is nothing to be in doubt about.
            if before is None:
                await self.forget(entry.id)
            else:
                await self.put(before)
            raise

    async def _done(
        self,
        entry: JournalEntry,
        effect: Effect,
        do: Callable[[], Awaitable[Any]],
        earlier: TokenUsage,
    ) -> Outcome:
        try:
            made: Any = await do()
        except Exception as exc:
            self._raise_broken(entry.id)
            if not isinstance(exc, JournalError):
                await self._fail(entry, effect, exc, earlier)
            raise
        except BaseException:
            value = NOT_DONE if effect.salvage is None else effect.salvage()
            if value is not NOT_DONE and not self._is_broken(entry.id):
                await self._finish(entry, effect, _with_cost(value, earlier))
            raise
        self._raise_broken(entry.id)
        outcome = _with_cost(made, earlier)
        await self._finish(entry, effect, outcome)
        return outcome

    async def _finish(
        self, entry: JournalEntry, effect: Effect, outcome: Outcome
    ) -> None:
        problem: JournalValueError | None = None
        text: str | None = None
        try:
            value = outcome.value
            text = encode(value if effect.pack is None else effect.pack(value))
        except JournalValueError as exc:
            msg = f"{entry.id} ({entry.asked}) was done, but its value is lost: {exc}"
            problem = JournalValueError(msg)
        ended = replace(
            entry,
            state=EffectState.FINISHED,
            outcome=text,
            cost=outcome.cost,
            ended_at=get_clock().wall(),
        )
        await self.put(ended)
        if problem is not None:
            raise problem

    async def _fail(
        self, entry: JournalEntry, effect: Effect, exc: Exception, earlier: TokenUsage
    ) -> None:
        attempts = exc.attempts if isinstance(exc, ExecutionKitError) else 0
        is_kept = effect.keeps(exc)
        ended = replace(
            entry,
            state=EffectState.FAILED if is_kept else EffectState.GIVEN_UP,
            outcome=_told(exc),
            cost=earlier + TokenUsage(llm_calls=attempts),
            ended_at=get_clock().wall(),
        )
        await self.put(ended)

    async def give_up(self, effect_id: str) -> None:
        """Let the next run try again what has failed here."""
        entry = await self.look(effect_id)
        if entry is not None and entry.state is EffectState.FAILED:
            await self.put(replace(entry, state=EffectState.GIVEN_UP))

    def note_broken(self, effect_id: str, error: JournalError) -> None:
        """Remember an error: whoever is around it may take it for any other failure."""
        self._broken.setdefault(effect_id, error)

    def _is_broken(self, effect_id: str) -> bool:
        return self._broken_in(effect_id) is not None

    def _broken_in(self, effect_id: str) -> JournalError | None:
        for name, error in self._broken.items():
            if name.startswith(f"{effect_id}/"):
                return error
        return None

    def _raise_broken(self, effect_id: str) -> None:
        """What went wrong with the journal inside of an effect is not its outcome."""
        error = self._broken_in(effect_id)
        if error is not None:
            raise error


def _told(failure: Exception) -> str:
    try:
        return encode(failure)
    except JournalValueError:  # nested without end, say: then its words must do
        kind = type(failure).__qualname__
        return encode(RecordedError(text_of(failure), kind))


def _read(entry: JournalEntry, outcome: str) -> Any:
    try:
        return decode(outcome)
    except JournalValueError as exc:
        msg = (
            f"{entry.id} ({entry.asked}) was done, but {exc}; "
            f"`Journal.retry({entry.id!r}, force=True)` forgets it, and does it again"
        )
        raise JournalValueError(msg) from exc.__cause__


def _with_cost(made: Any, earlier: TokenUsage) -> Outcome:
    outcome = made if isinstance(made, Outcome) else Outcome(made)
    return (
        outcome if earlier == _NONE else replace(outcome, cost=outcome.cost + earlier)
    )


def _check_same(before: JournalEntry, entry: JournalEntry) -> None:
    if is_same(before.fingerprint, entry.fingerprint):
        return
    if before.state is EffectState.GIVEN_UP:
        return  # nothing was built upon it
    then, now = f"{before.kind} {before.asked}", f"{entry.kind} {entry.asked}"
    differs = f"the journal has {then!r}, and now {now!r} is asked for"
    fields = differing(before.fingerprint, entry.fingerprint)
    if then == now:
        what = fields or (
            "what these words leave out (settings, tools, earlier messages, inputs)"
        )
        differs = f"{now!r} is asked for, as in the journal, but not the same in {what}"
    elif fields:
        differs += f" (what differs: {fields})"
    msg = (
        f"the program was changed: at {entry.id} {differs}; run it as it was, or begin "
        "a new run"
    )
    raise JournalMismatchError(msg, entry.id, then, now)


def in_doubt(entries: list[JournalEntry]) -> InDoubtError:
    """The error for what may have been done and may not."""
    named = "; ".join(f"{entry.id}: {entry.kind} {entry.asked}" for entry in entries)
    msg = (
        f"an earlier run broke off in the middle of: {named}. It may have been done, "
        "so it is not repeated; look, then `Journal.resolve(id, outcome)`, or "
        "`Journal.retry(id)` when it was not done, and run again"
    )
    return InDoubtError(msg, [entry.id for entry in entries])


async def _unbroken(work: Coroutine[Any, Any, _T]) -> _T:
    """Await something to its end, and only then let a cancellation through."""
    task = asyncio.get_running_loop().create_task(work)
    stop: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            stop = exc
    outcome = task.result()
    if stop is not None:
        raise stop
    return outcome
