"""What callers of a processor ask for, checked."""

from __future__ import annotations

from contextvars import Context, copy_context

from executionkit.calls import ToolCall
from executionkit.context import (
    ExecutionContext,
    get_current_context,
    set_current_context,
)

__all__ = ("context_of", "renamed", "request_context", "seconds")


def seconds(timeout: float | None) -> float | None:
    """`timeout`, which must be seconds or None.

    Raises:
        TypeError: When it is no number.
        ValueError: When it is negative or NaN.
    """
    if timeout is None:
        return None
    number: object = timeout
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        msg = f"`timeout` must be seconds or None, got {number!r}"
        raise TypeError(msg)
    if not timeout >= 0:
        msg = f"`timeout` must be >= 0 seconds or None, got {timeout!r}"
        raise ValueError(msg)
    return timeout


def context_of(
    context: ExecutionContext | None, request_id: str | None
) -> ExecutionContext | None:
    """The context of a request: the one that is given, else one with its id."""
    if context is not None or request_id is None:
        return context
    current = get_current_context()
    if current is None:
        return ExecutionContext(request_id=request_id)
    return current.with_request_id(request_id)


def renamed(call: ToolCall, name: str) -> ToolCall:
    """`call` under another name."""
    if name == call.name:
        return call
    return ToolCall(call.id, name, call.arguments, idempotency_key=call.idempotency_key)


def request_context(given: ExecutionContext | None) -> Context:
    """A copy of the caller's context variables, with the request's context in it."""
    context = copy_context()
    if given is not None:
        context.run(set_current_context, given)
    return context
