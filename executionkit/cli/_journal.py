"""`journal`: what is on record, and what is to be done about what is in doubt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executionkit.cli._console import Exit, UsageError

if TYPE_CHECKING:
    from executionkit.cli._job import Job
    from executionkit.journal import Journal, JournalEntry, SQLiteJournalStore

__all__ = ("run_list", "run_resolve", "run_retry")

_PARKED: Final = "parked"


def run_list(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    return _list(job, _store(job))


def run_resolve(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    if (job["value"] is None) == (job["error"] is None):
        msg = "give `--value JSON`, or `--error TEXT` when it failed"
        raise UsageError(msg)
    outcome: Any
    if job["error"] is not None:
        outcome = RuntimeError(job["error"])
    else:
        try:
            outcome = json.loads(job["value"])
        except ValueError as exc:
            msg = f"`--value` must be JSON (a text stands in quotes): {exc}"
            raise UsageError(msg) from exc

    async def change(journal: Journal) -> tuple[JournalEntry, ...]:
        await journal.resolve(job["effect_id"], outcome, force=job["force"])
        return ()

    return _change(job, change)


def run_retry(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    return _change(
        job, lambda journal: journal.retry(job["effect_id"], force=job["force"])
    )


def _store(job: Job) -> SQLiteJournalStore:
    from executionkit.journal import SQLiteJournalStore

    if not Path(job["file"]).is_file():
        msg = f"there is no file `{job['file']}`"
        raise UsageError(msg)
    return SQLiteJournalStore(job["file"])


async def _list(job: Job, store: SQLiteJournalStore) -> int:
    try:
        runs = await store.runs() if job["run"] is None else (job["run"],)
        for run in runs:
            entries = await store.entries(run)
            if job["run"] is None:
                _show_run(job, run, entries)
                continue
            if not entries and store.has_lock(run):
                job.console.note(f"the run {run!r} has begun; nothing is on record yet")
            elif not entries:
                msg = f"there is nothing on record of the run {run!r}"
                raise UsageError(msg)
            for entry in entries:
                _show_entry(job, entry)
    finally:
        await store.close("")  # no run was taken: others may be at work
    return Exit.OK


def _show_run(job: Job, run: str, entries: tuple[JournalEntry, ...]) -> None:
    states = Counter(entry.state.value for entry in entries)
    if job["json"]:
        job.console.json({"run": run, "states": dict(states)})
        return
    words = Counter(map(_state, entries))
    told = ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
    last = max((e.ended_at or e.started_at for e in entries), default=0.0)
    job.console.result(f"{run}: {told}; last at {_time(last)}")


def _show_entry(job: Job, entry: JournalEntry) -> None:
    if job["json"]:
        names = ("id", "kind", "state", "asked", "attempts", "started_at", "ended_at")
        facts = {name: getattr(entry, name) for name in names}
        more = {"parked": True} if _state(entry) == _PARKED else {}
        job.console.json({**facts, **more, "cost": entry.cost})
        return
    took = "" if entry.ended_at is None else f" +{_took(entry.ended_at, entry)}s"
    job.console.result(
        f"{entry.id}  {_state(entry)}  {_time(entry.started_at)}{took}  "
        f"{entry.kind} {entry.asked}"
    )


def _took(ended_at: float, entry: JournalEntry) -> str:
    return f"{max(ended_at - entry.started_at, 0.0):.3f}"


def _time(seconds: float) -> str:
    """A point in time in UTC, as ISO 8601 has it."""
    try:
        return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):  # of a damaged file
        return "?"


def _state(entry: JournalEntry) -> str:
    """The state of an effect, and `parked` for an approval that waits."""
    from executionkit.journal import EffectState

    if entry.state is EffectState.GIVEN_UP and entry.outcome is not None:
        try:
            about = json.loads(entry.outcome)
            if about["v"]["type"] == "ApprovalPendingError":
                return _PARKED
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # damaged; `resolve` and the next run tell it
    return entry.state.value


def _change(
    job: Job, change: Callable[[Journal], Awaitable[tuple[JournalEntry, ...]]]
) -> Coroutine[Any, Any, int]:
    if not job["run"]:
        msg = "name the run: `--run RUN`; `journal list FILE` shows them"
        raise UsageError(msg)
    return _changed(job, _store(job), change)


async def _changed(
    job: Job,
    store: SQLiteJournalStore,
    change: Callable[[Journal], Awaitable[tuple[JournalEntry, ...]]],
) -> int:
    from executionkit.journal import Journal

    async with Journal(store, job["run"]) as journal:
        forgotten = await change(journal)
        known = {entry.id: entry.state.value for entry in await journal.entries()}
    if job["json"]:
        effect_id = job["effect_id"]
        told: dict[str, Any] = {
            "id": effect_id,
            "state": known.get(effect_id, "forgotten"),
        }
        if forgotten:
            told["forgotten"] = [entry.id for entry in forgotten]
        job.console.json(told)
        return Exit.OK
    for entry in forgotten:
        job.console.result(
            f"forgotten: {entry.id}  {_state(entry)}  {entry.kind} {entry.asked}"
        )
    return Exit.OK
