"""Trace events, and giving them to a callback that can do no harm."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

from executionkit._clock import get_clock
from executionkit._redact import redact_exception_text, redact_value
from executionkit.context import get_current_context
from executionkit.types import freeze_mapping, sealed

__all__ = ("TraceCallback", "TraceEvent", "emit_trace", "log_once")

_log = logging.getLogger("executionkit")


def _wall() -> float:
    return get_clock().wall()


def _request_id() -> str | None:
    context = get_current_context()
    return None if context is None else context.request_id


@sealed
@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that happened, for a trace sink."""

    kind: str
    """What it is: `llm_call_start`, `tool_call_end`, ..."""

    payload: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """Facts about it; each kind documents its keys. Kept deeply read-only."""

    _: KW_ONLY

    time: float = field(default_factory=_wall, compare=False)
    """When, in wall-clock seconds since 1970-01-01 UTC."""

    request_id: str | None = field(default_factory=_request_id, compare=False)
    """The request of the current `ExecutionContext`; None outside of any."""

    def __post_init__(self) -> None:
        try:
            payload = freeze_mapping(self.payload)
        except ValueError:  # an event never fails the run that it tells of
            payload = freeze_mapping(redact_value(self.payload))
        object.__setattr__(self, "payload", payload)

    @classmethod
    def create(cls, kind: str, payload: Mapping[str, Any] | None = None) -> TraceEvent:
        """An event of now, with an optional payload."""
        return cls(kind, payload or {})


TraceCallback: TypeAlias = Callable[[TraceEvent], "Awaitable[None] | None"]
"""Called with each event; sync (then it should be quick) or async."""


async def emit_trace(
    trace: TraceCallback | None, event: TraceEvent, *, secrets: Iterable[str] = ()
) -> None:
    """Give `event` to `trace`, with the secrets in its payload hidden.

    An exception of the callback is logged, the first one of each callback, and never
    reaches the run. The cancellation of the running task passes.

    Args:
        trace: The sink; None = none. What it returns is awaited when it can be.
        event: What happened.
        secrets: Values that are known to be secret (see `executionkit._redact`).
    """
    if trace is None:
        return
    known = (secrets,) if isinstance(secrets, str) else tuple(secrets)
    try:
        payload = redact_value(event.payload, secrets=known)
        shown = dataclasses.replace(event, payload=payload)
        outcome: object = trace(shown)
        if inspect.isawaitable(outcome):
            await outcome
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        log_once(trace, exc, known)  # the callback's own
    except Exception as exc:  # noqa: BLE001 - a sink never changes the run it watches
        log_once(trace, exc, known)


# Callbacks whose failure has been logged; they are not kept alive by it.
_logged: weakref.WeakSet[Any] = weakref.WeakSet()
# The last of those that can only be kept alive: a list's method, objects with slots.
_logged_and_held: deque[Any] = deque(maxlen=64)


def log_once(sink: object, exc: BaseException, secrets: Iterable[str] = ()) -> None:
    """Log the first failure of a sink, without its traceback: that may show secrets."""
    owner = getattr(sink, "__self__", sink)  # a bound method is a new object each time
    if not _is_first(owner):
        return
    _log.warning(
        "the trace callback %s failed; the run goes on, and further failures of it "
        "are not logged: %s: %s",
        getattr(sink, "__qualname__", type(sink).__qualname__),
        type(exc).__name__,
        redact_exception_text(exc, secrets=secrets),
    )


def _is_first(owner: object) -> bool:
    """Whether no failure of `owner` was logged yet; from now on, one was."""
    try:
        if owner in _logged:
            return False
        _logged.add(owner)
    except TypeError:  # it can neither be hashed nor referred to weakly
        if any(item is owner for item in _logged_and_held):
            return False
        _logged_and_held.append(owner)
    return True
