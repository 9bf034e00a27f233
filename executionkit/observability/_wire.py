"""The current span, for others to go on with: headers, and contexts for workers."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Final

from executionkit.context import ExecutionContext, get_current_context
from executionkit.observability._scope import Scope, current_scope
from executionkit.observability._spans import linking, nobody_records

__all__ = ("carried_context", "trace_headers")

_TRACE_ID: Final = slice(3, 35)  # of a `traceparent`: version-trace-parent-flags
_FLAGS: Final = slice(53, 55)


def trace_headers() -> dict[str, str]:
    """`traceparent` and `tracestate` of what is done right now; empty = none.

    They name the current span of OpenTelemetry; else the current span of trace events,
    in the trace of the current context or in a new one; else what the current context
    says.
    """
    carrier: dict[str, str] = {}
    links = None if nobody_records() else linking()
    if links is not None:
        with contextlib.suppress(Exception):  # a span never changes the run
            links.propagator.inject(carrier)
    if carrier:
        return carrier
    context, scope = get_current_context(), current_scope()
    given = None if context is None else context.traceparent
    if scope is not None and scope.sink is not None:
        trace_id = _trace_of(scope) if given is None else given[_TRACE_ID]
        flags = "01" if given is None else given[_FLAGS]
        carrier["traceparent"] = f"00-{trace_id}-{scope.span_id}-{flags}"
    elif context is not None and given is not None:
        carrier["traceparent"] = context.to_headers()["traceparent"]
    if context is not None and given is not None and context.tracestate:
        carrier["tracestate"] = context.tracestate
    return carrier


def carried_context() -> ExecutionContext | None:
    """The current context as somebody in another process needs it.

    Its `traceparent` is that of `trace_headers`. Without a current context there is
    one only when something is watched.
    """
    context, scope = get_current_context(), current_scope()
    if scope is None and nobody_records():
        return context
    headers = trace_headers()
    traceparent = headers.get("traceparent")
    if traceparent is None:
        return context
    state = headers.get("tracestate")
    if context is None:
        return ExecutionContext(traceparent=traceparent, tracestate=state)
    return replace(context, traceparent=traceparent, tracestate=state)


def _trace_of(scope: Scope) -> str:
    """The trace that a span belongs to: one for all that have the same root."""
    root = scope.root
    if root.trace_id is None:
        root.trace_id = os.urandom(16).hex()
    return root.trace_id
