"""What travels with a request: ids, trace, deadline, budget.

The current context is task-local (`contextvars`): nothing of one request is visible in
another. It crosses processes by pickling and services by headers. A context is logged
and sent: put identifiers into it, never credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Unpack

from executionkit._clock import get_clock
from executionkit.calls import new_id
from executionkit.context._current import (
    execution_scope,
    get_current_context,
    remaining_deadline,
    set_current_context,
)
from executionkit.context._wire import (
    MAX_BUDGET,
    ContextFields,
    ContextHeader,
    encode,
    in_seconds,
    is_span_id,
    is_traceparent,
    is_tracestate,
    now,
    read_headers,
    seconds_text,
    version_00,
)
from executionkit.types import JsonValue, freeze_mapping, sealed, thaw

__all__ = (
    "ContextFields",
    "ContextHeader",
    "ContextKey",
    "ExecutionContext",
    "execution_scope",
    "get_current_context",
    "remaining_deadline",
    "set_current_context",
)

_TEXTS = (
    "request_id",
    "correlation_id",
    "user_id",
    "tenant_id",
    "traceparent",
    "tracestate",
    "span_id",
)


class ContextKey(StrEnum):
    """The keys of `ExecutionContext.to_dict`."""

    REQUEST_ID = "request_id"
    CORRELATION_ID = "correlation_id"
    USER_ID = "user_id"
    TENANT_ID = "tenant_id"
    TRACEPARENT = "traceparent"
    TRACESTATE = "tracestate"
    SPAN_ID = "span_id"
    DEADLINE = "deadline"
    REMAINING_TIME = "remaining_time"
    BUDGET = "budget"
    METADATA = "metadata"


class _Timed:
    # Not fields: they mean something in this process only, and are made anew elsewhere.
    __slots__ = ("_due", "_skew")
    _due: float | None
    """The deadline on the monotonic clock: setting the wall clock does not move it."""

    _skew: float
    """Monotonic minus wall time, when the context was made."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext(_Timed):
    """The facts of one request; frozen, `with_...` gives changed copies.

    Raises:
        TypeError: For a field of the wrong type, or an unknown one.
        ValueError: For an empty `request_id`, a negative or infinite `budget`, a
            `deadline` without time zone, a `traceparent` or `tracestate` that is not
            W3C Trace Context.
    """

    request_id: str = field(default_factory=new_id)
    correlation_id: str | None = None
    """Joins the requests of one larger operation."""

    user_id: str | None = None
    tenant_id: str | None = None
    traceparent: str | None = None
    """W3C Trace Context: the caller's trace and span."""

    tracestate: str | None = None
    """W3C Trace Context: what tracing vendors add."""

    span_id: str | None = None
    """The span that the work of this context belongs to."""

    deadline: datetime | None = None
    """When the request must be done (with a time zone). None = no limit."""

    budget: float | None = None
    """Abstract units that may be spent. None = no limit."""

    metadata: Mapping[str, JsonValue] = field(default_factory=freeze_mapping)
    """Other facts, JSON-like; kept deeply read-only, and not sent by headers."""

    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        _check_texts(self)
        _check_times(self)
        put = object.__setattr__
        if self.budget is not None:
            put(self, "budget", _checked_budget(self.budget))
        put(self, "metadata", freeze_mapping(self.metadata))
        clock = get_clock()
        put(self, "_skew", clock.monotonic() - clock.wall())
        _set_due(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, ({name: getattr(self, name) for name in _FIELDS},)

    @classmethod
    def with_deadline(
        cls, seconds: float, **fields: Unpack[ContextFields]
    ) -> ExecutionContext:
        """A new context that expires in `seconds` (finite; <= 0 = already expired)."""
        if "deadline" in fields:
            msg = "give `seconds` or `deadline`, not both"
            raise TypeError(msg)
        fields["deadline"] = in_seconds(seconds)
        return cls(**fields)

    @classmethod
    def with_timeout(
        cls, seconds: float, **fields: Unpack[ContextFields]
    ) -> ExecutionContext:
        """Another name of `with_deadline`."""
        return cls.with_deadline(seconds, **fields)

    @property
    def remaining_time(self) -> float | None:
        """Seconds until the deadline, never negative; None without a deadline."""
        if self._due is None:
            return None
        return max(0.0, self._due - get_clock().monotonic())

    @property
    def is_expired(self) -> bool:
        """Whether the deadline has passed; False without a deadline."""
        return self._due is not None and get_clock().monotonic() >= self._due

    @property
    def elapsed_time(self) -> float:
        """Seconds since the context was created, never negative."""
        born = self.created_at.timestamp() + self._skew
        return max(0.0, get_clock().monotonic() - born)

    def with_span(self, span_id: str) -> ExecutionContext:
        """A copy in another span; see `child`."""
        return self.child(span_id)

    def with_metadata(self, **metadata: JsonValue) -> ExecutionContext:
        """A copy with more metadata; given keys replace old ones."""
        return self._changed(metadata={**self.metadata, **metadata})

    def with_request_id(self, request_id: str) -> ExecutionContext:
        """A copy for another request."""
        return self._changed(request_id=request_id)

    def with_budget(self, budget: float | None) -> ExecutionContext:
        """A copy with another budget (>= 0; None = no limit)."""
        return self._changed(budget=budget)

    def child(
        self, span_id: str | None = None, *, timeout: float | None = None
    ) -> ExecutionContext:
        """A copy for a part of the work: in a span of its own, with less time.

        Args:
            span_id: The new span; None = a random one. When it is a W3C span id (16
                hex digits) it also becomes the parent in `traceparent`.
            timeout: Seconds that the part may take. The deadline only ever comes
                nearer. None = the same deadline.
        """
        span = new_id().replace("-", "")[:16] if span_id is None else span_id
        changes: ContextFields = {"span_id": span}
        if self.traceparent is not None and is_span_id(span):
            changes["traceparent"] = version_00(self.traceparent, span)
        if timeout is not None:
            deadline = in_seconds(timeout)
            changes["deadline"] = min(self.deadline or deadline, deadline)
        return self._changed(**changes)

    def _changed(self, **changes: Unpack[ContextFields]) -> ExecutionContext:
        twin = replace(self, **changes)
        object.__setattr__(twin, "_skew", self._skew)
        _set_due(twin)
        return twin

    def to_dict(self) -> dict[str, JsonValue]:
        """The context as JSON-like data for logs; what is not set is left out."""
        data: dict[str, JsonValue] = {}
        for key in ContextKey:
            value = getattr(self, key.value)
            if isinstance(value, datetime):
                value = value.isoformat()
            if value is not None and (key is not ContextKey.METADATA or value):
                data[key.value] = thaw(value)
        return data

    def to_headers(self) -> dict[str, str]:
        """The context as headers: visible ASCII only, anything else percent-encoded."""
        headers = {
            header.value: encode(value)
            for header, value in (
                (ContextHeader.REQUEST_ID, self.request_id),
                (ContextHeader.CORRELATION_ID, self.correlation_id),
                (ContextHeader.USER_ID, self.user_id),
                (ContextHeader.TENANT_ID, self.tenant_id),
            )
            if value
        }
        if self.traceparent is not None:
            headers[ContextHeader.TRACEPARENT.value] = version_00(self.traceparent)
            if self.tracestate:
                headers[ContextHeader.TRACESTATE.value] = self.tracestate
        remaining = self.remaining_time
        if remaining is not None:
            headers[ContextHeader.DEADLINE_SECONDS.value] = seconds_text(remaining)
        if self.budget is not None:
            headers[ContextHeader.BUDGET.value] = repr(self.budget)
        return headers

    @classmethod
    def from_headers(
        cls, headers: Mapping[str, Any], **overrides: Unpack[ContextFields]
    ) -> ExecutionContext:
        """The context that came with a request; names in any case.

        What cannot be read (a bad trace, a number that is none, a value of absurd
        length) is left out: a remote caller can never make this fail.

        Args:
            headers: Text or bytes by name.
            overrides: Fields that are set whatever the headers say.
        """
        fields = read_headers(headers)
        fields.update(overrides)
        return cls(**fields)


_FIELDS = tuple(ContextFields.__annotations__)


def _restore(fields: ContextFields) -> ExecutionContext:
    return ExecutionContext(**fields)


# --- checking -------------------------------------------------------------------
def _check_texts(context: ExecutionContext) -> None:
    for name in _TEXTS:
        value = getattr(context, name)
        optional = name != ContextKey.REQUEST_ID
        if not (isinstance(value, str) or (value is None and optional)):
            msg = f"`{name}` must be a text, got {value!r}"
            raise TypeError(msg)
    metadata: object = context.metadata
    if not isinstance(metadata, Mapping):
        msg = f"`metadata` must be a mapping, got {metadata!r}"
        raise TypeError(msg)
    if not context.request_id:
        msg = "`request_id` is empty; leave it out to get a new one"
        raise ValueError(msg)
    if context.traceparent is not None and not is_traceparent(context.traceparent):
        msg = (
            f"`traceparent` {context.traceparent!r} is not W3C Trace Context; give "
            "version-trace-span-flags in lower-case hex, e.g. 00-<32>-<16>-01"
        )
        raise ValueError(msg)
    if context.tracestate is not None and not is_tracestate(context.tracestate):
        msg = f"`tracestate` {context.tracestate!r} is not a list of key=value members"
        raise ValueError(msg)


def _check_times(context: ExecutionContext) -> None:
    for name, value in (
        ("deadline", context.deadline),
        ("created_at", context.created_at),
    ):
        if value is None and name == "deadline":
            continue
        if not isinstance(value, datetime):
            msg = f"`{name}` must be a datetime, got {value!r}"
            raise TypeError(msg)
        if value.utcoffset() is None:
            msg = f"`{name}` {value} has no time zone; use e.g. datetime.now(UTC)"
            raise ValueError(msg)


def _checked_budget(budget: float) -> float:
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        msg = f"`budget` must be a number, got {budget!r}"
        raise TypeError(msg)
    if not 0 <= budget <= MAX_BUDGET:
        msg = f"`budget` must be >= 0 and finite, got {budget!r}"
        raise ValueError(msg)
    return float(budget)


def _set_due(context: ExecutionContext) -> None:
    deadline = context.deadline
    due = None if deadline is None else deadline.timestamp() + context._skew  # noqa: SLF001
    object.__setattr__(context, "_due", due)
