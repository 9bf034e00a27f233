"""Events become spans: a start and its end are one thing with a length."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from executionkit.viewer._records import Record, number, seconds

__all__ = ("KINDS", "Pairing", "Span")

KINDS: Final = (
    *("pattern", "step", "model", "tool", "attempt", "wait", "event", "other"),
)
"""What a span can be. An event that has no length, and is none of the others, is an
`event`; a pair of an unknown kind is an `other`."""

_GROUPS: Final = {
    "pattern": "pattern",
    "workflow_step": "step",
    "plan_step": "step",
    "llm_call": "model",
    "tool_call": "tool",
}
_ENDS: Final = ("end", "error")
_ERROR_KEYS: Final = ("error", "error_code", "error_type", "code")
_NAME_KEYS: Final = {
    "pattern": ("pattern",),
    "step": ("step",),
    "model": ("model",),
    "tool": ("tool_name", "tool"),
    "attempt": ("attempt",),
    "wait": ("reason",),
}
_UNNAMED: Final = {"model": "model call", "tool": "tool call"}
_MAX_OPEN: Final = 100_000


@dataclass(slots=True)
class Span:
    """One thing that happened, with all that its events say."""

    kind: str
    """One of `KINDS`."""
    base: str
    """The kind of its events, without `_start` and `_end`."""
    name: str
    start: float
    """Wall-clock seconds."""
    end: float | None = None
    """None = it has no end: it still ran, or its process died."""
    id: str | None = None
    parent_id: str | None = None
    request_id: str | None = None
    error: str | None = None
    is_orphan: bool = False
    """Whether only its end is known."""
    tried_at: float | None = None
    """Of a model call that was tried again: when its latest attempt began."""
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """How long it took: as its end says, else from the two times."""
        told = seconds(self.payload.get("duration"))
        if self.end is None:
            return None
        return told if told is not None and told >= 0 else self.end - self.start

    @property
    def is_replayed(self) -> bool:
        """Whether it was not done, but given back from a journal."""
        return self.payload.get("replayed") is True

    def count(self, key: str) -> int:
        """A number of its payload, >= 0."""
        value = number(self.payload.get(key))
        return 0 if value is None or value < 0 else int(value)


class Pairing:
    """Brings starts and ends together; keeps only what is open.

    Ids decide. Without `span_id`, as in older files, it is `call_id`, then
    `tool_call_id` or the name of the step, within one request.

    A model call has a pair of events for each attempt, with one `call_id`: they become
    one span, with the attempts in it when there were several.
    """

    def __init__(self, max_open: int = _MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: dict[tuple[str, ...], deque[Span]] = {}
        self._count = 0
        self._failed: dict[str, Span] = {}
        """By `call_id`: model calls that may be tried again."""
        self._same: dict[str, str] = {}
        """Span of a later attempt -> that of its call."""

    def feed(self, record: Record) -> Iterator[Span]:
        """Spans that are whole with this event."""
        base, _, suffix = record.kind.rpartition("_")
        if suffix == "start" and base:
            yield from self._begin(base, record)
        elif suffix in _ENDS and base and _is_pair(base, record):
            span = self._end(base, suffix, record)
            if span.tried_at is not None:
                yield _attempt(span)
                span.payload.pop("duration", None)  # of the last attempt alone
            yield from self._done(span)
        else:
            yield self._placed(_single(record))

    def finish(self) -> Iterator[Span]:
        """What has no end."""
        for spans in self._open.values():
            yield from spans
        self._open.clear()
        self._count = 0
        yield from self._failed.values()
        self._failed.clear()

    def _placed(self, span: Span) -> Span:
        """What has no end of its own, under what it belongs to."""
        call_id = _text(span.payload.get("call_id"))
        is_known = call_id in self._failed or ("", span.id or "") in self._open
        if span.kind == "event" and span.id is not None and is_known:
            span.parent_id, span.id = span.id, None  # it tells of that span
        if span.parent_id is not None:
            span.parent_id = self._same.get(span.parent_id, span.parent_id)
        return span

    def _done(self, span: Span) -> Iterator[Span]:
        """A span is whole, unless it is a model call that may be tried again."""
        call_id = _text(span.payload.get("call_id"))
        if span.kind != "model" or span.error is None or call_id is None:
            yield span
            return
        self._failed[call_id] = span
        if len(self._failed) > self._max_open:
            yield self._failed.pop(next(iter(self._failed)))

    def _begin(self, base: str, record: Record) -> Iterator[Span]:
        call_id = _text(record.payload.get("call_id"))
        is_again = base == "llm_call" and call_id in self._failed
        if is_again and call_id is not None:
            span = self._failed.pop(call_id)
            if span.tried_at is None:  # only now it has several
                yield _attempt(span)
            self._go_on(span, record)
        else:
            span = _span(_GROUPS.get(base, "other"), base, record, record.time)
        self._open.setdefault(_key(base, record), deque()).append(span)
        self._count += 1
        if self._count > self._max_open:
            key = next(iter(self._open))
            yield self._take(key)

    def _go_on(self, span: Span, record: Record) -> None:
        """A call that has failed is tried again."""
        own = _text(record.payload.get("span_id"))
        if own is not None and span.id is not None:
            self._same[own] = span.id
            if len(self._same) > self._max_open:
                del self._same[next(iter(self._same))]
        span.end = span.error = None
        span.tried_at = record.time
        for key in ("duration", "requests", *_ERROR_KEYS):
            span.payload.pop(key, None)

    def _take(self, key: tuple[str, ...]) -> Span:
        spans = self._open[key]
        self._count -= 1
        span = spans.popleft()
        if not spans:
            del self._open[key]
        return span

    def _end(self, base: str, suffix: str, record: Record) -> Span:
        key = _key(base, record)
        if key in self._open:
            span = self._take(key)
            span.payload.update(record.payload)
            named = _name(span.kind, base, span.payload)
            if named != base:
                span.name = named
        else:
            took = _duration(record.payload)
            group = _GROUPS.get(base, "other")
            span = _span(group, base, record, record.time - took)
            span.is_orphan = True
        span.end = max(record.time, span.start)
        span.error = _error(record.payload)
        if suffix == "error" and span.error is None:
            span.error = "error"
        return span


def _is_pair(base: str, record: Record) -> bool:
    # `something_error` of an unknown kind may well be an event on its own.
    known = base in _GROUPS or "span_id" in record.payload
    return known or record.kind.endswith("_end")


def _key(base: str, record: Record) -> tuple[str, ...]:
    payload = record.payload
    span_id = _text(payload.get("span_id"))
    if span_id is not None:
        return ("", span_id)
    for name in ("call_id", "tool_call_id", "step", "pattern"):
        value = _text(payload.get(name))
        if value is not None:
            return (base, record.request_id or "", name, value)
    return (base, record.request_id or "")


def _span(kind: str, base: str, record: Record, start: float) -> Span:
    payload = record.payload
    return Span(
        kind,
        base,
        _name(kind, base, payload),
        start,
        id=_text(payload.get("span_id")),
        parent_id=_text(payload.get("parent_id")),
        request_id=record.request_id,
        payload=payload,
    )


def _single(record: Record) -> Span:
    """One event that is whole by itself."""
    payload = record.payload
    kind = record.kind if record.kind in {"attempt", "wait"} else "event"
    took = _duration(payload) if kind != "event" else 0.0
    span = _span(kind, record.kind, record, record.time - took)
    span.end = record.time
    # That a call is tried again is no failure of its own: the attempt before was one.
    calm = kind == "wait" or record.kind.endswith("_retry")
    span.error = None if calm else _error(payload)
    if kind == "event" and record.kind.endswith(("_error", "_failed")):
        span.error = span.error or "error"
    return span


def _attempt(span: Span) -> Span:
    """The latest attempt of a model call that has several."""
    keys = ("attempt", "duration", "requests", *_ERROR_KEYS)
    facts = {key: span.payload[key] for key in keys if key in span.payload}
    start = span.start if span.tried_at is None else span.tried_at
    return Span(
        "attempt",
        "attempt",
        _name("attempt", "attempt", facts),
        start,
        span.end,
        parent_id=span.id,
        request_id=span.request_id,
        error=span.error,
        payload=facts,
    )


def _name(kind: str, base: str, payload: dict[str, Any]) -> str:
    for key in _NAME_KEYS.get(kind, ()):
        value = payload.get(key)
        if isinstance(value, (str, int)) and value != "":
            if kind != "attempt":
                return str(value)
            member = _text(payload.get("member"))
            return f"attempt {value}" + (f" ({member})" if member else "")
    return _UNNAMED.get(kind, base)


def _error(payload: dict[str, Any]) -> str | None:
    for key in _ERROR_KEYS:
        value = payload.get(key)
        if value:
            return value if isinstance(value, str) else "error"
    return "blocked" if payload.get("blocked") is True else None


def _duration(payload: dict[str, Any]) -> float:
    told = seconds(payload.get("duration"))
    return told if told is not None and told > 0 else 0.0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
