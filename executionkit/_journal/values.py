"""What a journal keeps, and what it is told about an effect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final

from executionkit._constants import MAX_ERROR_DETAIL_CHARS
from executionkit._keys import canonical
from executionkit._redact import redact, redact_value
from executionkit.errors import JournalValueError
from executionkit.types import TokenUsage, sealed, thaw

__all__ = (
    "NOT_DONE",
    "Effect",
    "EffectState",
    "JournalEntry",
    "NotDone",
    "Outcome",
    "differing",
    "fingerprint_of",
    "is_same",
    "part",
    "shown",
)


_MOST_SHOWN: Final = 200
_MOST_FIELDS: Final = 100
_MOST_TOLD: Final = 10
_FIELD_CHARS: Final = 80
_LINE: Final = "\n"


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "not_done"


NOT_DONE: Final = NotDone.NOT_DONE
"""What a `find` function returns when the effect was not done: it is done then."""


class EffectState(StrEnum):
    """How far an effect has come."""

    STARTED = "started"
    """It has begun. After a crash nobody knows whether it was done: it is in doubt."""

    FINISHED = "finished"
    """Its outcome is on record, and is given back instead of doing it again."""

    FAILED = "failed"
    """It failed, the program went on, and its failure is its outcome."""

    GIVEN_UP = "given_up"
    """It failed and that ended the run: the next run tries it again."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One effect as a journal keeps it."""

    id: str
    """Its place in the program, the same in every run: `react_loop:0/model:2`."""

    kind: str
    """What it is: `model`, `tool`, `step`, `approval`, `timer`, or a word of yours."""

    fingerprint: str
    """SHA-256 (hex) of what was asked for; after a blank, short ones of its fields as
    a JSON object."""

    asked: str = ""
    """What was asked for, in words, without secrets, shortened."""

    state: EffectState = EffectState.STARTED
    outcome: str | None = None
    """The value or the failure, as JSON. None = there is none, or it cannot be kept."""

    cost: TokenUsage = field(default_factory=TokenUsage)
    """What it has cost."""

    attempts: int = 1
    """How often it was begun, in all runs."""

    started_at: float = 0.0
    """Wall-clock seconds since 1970."""

    ended_at: float | None = None


@sealed
@dataclass(frozen=True, slots=True)
class Outcome:
    """What an effect came to.

    `Journal.perform` returns it; a function that does an effect may return one too, to
    say what it cost.
    """

    value: Any
    cost: TokenUsage = field(default_factory=TokenUsage)
    """What it has cost; failed tries of earlier runs count, when they are known."""

    is_replayed: bool = False
    """True = it comes from the journal, and nothing was done."""


def _always(_failure: Exception) -> bool:
    return True


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What is about to be done, for `Journal.perform`."""

    place: str
    """Names it among its neighbours: the same in every run, whatever ends first."""

    kind: str
    asked: Any
    """All that decides what it does; JSON-like. Another value is another effect."""

    words: str
    """What is asked for, in words: `send {"to": "Ann"}`. See `shown`."""

    is_repeatable: bool = False
    """Whether doing it twice does no more than once: then it is repeated in doubt."""

    keeps: Callable[[Exception], bool] = _always
    """Whether a failure is an outcome, because the program goes on with it. If not, the
    next run tries again."""

    pack: Callable[[Any], Any] | None = None
    """Makes the value JSON-like; None = it is, or is a value of this library."""

    unpack: Callable[[Any], Any] | None = None
    """The way back."""

    find: Callable[[], Awaitable[Any]] | None = None
    """Asked when it is in doubt: looks outside whether it was done, and returns its
    value, or `NOT_DONE`. None = nobody can tell."""

    salvage: Callable[[], Any] | None = None
    """Asked when it was cancelled: its value if it was done all the same, or
    `NOT_DONE`."""


def part(name: str) -> str:
    """A name as one part of an id."""
    text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("%", "%25").replace("/", "%2F")


def fingerprint_of(effect_id: str, kind: str, asked: Any) -> str:
    """SHA-256 (hex) of what is asked for.

    Raises:
        JournalValueError: When it has no canonical form.
    """
    text = canonical(asked)
    if text is None:
        msg = (
            f"{effect_id}: what is asked for holds something that has no canonical "
            "form, so a changed program could not be told; use JSON-like values"
        )
        raise JournalValueError(msg)
    return f"{_digest(f'{kind}{_LINE}{text}')} {json.dumps(_fields_of(asked))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _fields_of(asked: Any) -> dict[str, str]:
    """A short digest for each field with a name; messages are long, and left out."""
    if isinstance(asked, (list, tuple)) and asked:  # a name, and what belongs to it
        asked = asked[-1]
    found: dict[str, str] = {}
    for name, value in asked.items() if isinstance(asked, Mapping) else ():
        if name == "options" and isinstance(value, Mapping):
            found |= _fields_of(value)
        elif name == "tools" and isinstance(value, (list, tuple)):
            for item in value:
                found[f"tool {_tool_name(item)}"] = _digest(canonical(item) or "")[:8]
        elif name != "messages":
            found[str(name)] = _digest(canonical(value) or "")[:8]
    return dict(list(found.items())[:_MOST_FIELDS])


def _tool_name(tool: Any) -> str:
    about = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return str(about.get("name", "")) if isinstance(about, Mapping) else ""


def is_same(one: str, other: str) -> bool:
    """Whether two fingerprints stand for the same."""
    return one.partition(" ")[0] == other.partition(" ")[0]


def differing(one: str, other: str) -> str:
    """The fields in which two fingerprints differ, in words; empty = nobody can tell."""
    try:
        then, now = (
            json.loads(text.partition(" ")[2] or "{}") for text in (one, other)
        )
        names = (
            [name for name in {**then, **now} if then.get(name) != now.get(name)]
            if then and now
            else []
        )
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""  # damaged
    return ", ".join(f"`{shown(name[:_FIELD_CHARS])}`" for name in names[:_MOST_TOLD])


def shown(name: str, value: object = None) -> str:
    """A name and what belongs to it in words, without secrets, in bounded length."""
    text = name
    if value is not None:
        hidden: Any = redact_value(thaw(value), max_items=_MOST_SHOWN)
        text += f" {json.dumps(hidden, ensure_ascii=False, default=_name_of)}"
    text = redact(text[: 4 * MAX_ERROR_DETAIL_CHARS])
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= MAX_ERROR_DETAIL_CHARS:
        return text
    return f"{text[: MAX_ERROR_DETAIL_CHARS - 3]}..."


def _name_of(value: object) -> str:
    return f"<{type(value).__name__}>"
