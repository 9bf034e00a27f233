"""What an operator says about effects on record; nothing recorded is lost by mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from executionkit._clock import get_clock
from executionkit._journal.codec import encode
from executionkit._journal.core import Core
from executionkit._journal.values import EffectState, JournalEntry, shown
from executionkit.errors import JournalError

__all__ = ("resolve", "retry")

_SETTLED: Final = frozenset({EffectState.FINISHED, EffectState.FAILED})


async def resolve(core: Core, effect_id: str, outcome: Any, *, force: bool) -> None:
    """See `Journal.resolve`."""
    entry = await _known(core, effect_id)
    if entry.state in _SETTLED and entry.outcome is not None and not force:
        msg = f"{_told(entry)}; `force=True` (`--force`) puts another one in its place"
        raise JournalError(msg)
    failed = isinstance(outcome, Exception)
    ended = replace(
        entry,
        state=EffectState.FAILED if failed else EffectState.FINISHED,
        outcome=encode(outcome),
        ended_at=get_clock().wall(),
    )
    await core.put(ended)


async def retry(core: Core, effect_id: str, *, force: bool) -> tuple[JournalEntry, ...]:
    """See `Journal.retry`."""
    entry = await _known(core, effect_id)
    if entry.state in _SETTLED and not force:
        msg = (
            f"{_told(entry)}; it is not in doubt, and to forget it is to do it again: "
            "`force=True` (`--force`) does that"
        )
        raise JournalError(msg)
    if entry.state is EffectState.GIVEN_UP and not force:
        msg = f"{_told(entry)}; the next run tries it again without this"
        raise JournalError(msg)
    forgotten: list[JournalEntry] = []
    for item in await core.store.entries(core.run):
        is_inside = item.id.startswith(f"{effect_id}/")
        if item.id == effect_id or (
            is_inside and (force or item.state not in _SETTLED)
        ):
            await core.forget(item.id)
            forgotten.append(item)
    return tuple(forgotten)


async def _known(core: Core, effect_id: str) -> JournalEntry:
    entry = await core.look(effect_id)
    if entry is None:
        msg = f"run {core.run!r} has no effect {effect_id!r} on record"
        raise JournalError(msg)
    return entry


def _told(entry: JournalEntry) -> str:
    """What is on record, in words and without secrets."""
    text = f"{entry.id} ({entry.kind} {entry.asked}) is {entry.state.value}"
    if entry.outcome is None:
        return f"{text}, and its value could not be kept"
    try:
        return shown(f"{text}:", json.loads(entry.outcome))
    except (ValueError, RecursionError):
        return f"{text}, and its outcome cannot be read"
