"""What callers of a processor ask for, checked."""

from __future__ import annotations

import inspect
import logging
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from executionkit._redact import describe_exception
from executionkit.calls import CallProblem, ToolCall, ToolResult
from executionkit.context import (
    ExecutionContext,
    get_current_context,
    set_current_context,
)
from executionkit.errors import ToolProcessorError
from executionkit.tools._arguments import checked_arguments
from executionkit.tools._settle import failed_result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from executionkit.tools._runs import Paths, Run
    from executionkit.tools.middleware._base import ToolRequest

__all__ = (
    "announced",
    "check_calls",
    "check_context",
    "check_strategy",
    "checked",
    "context_of",
    "renamed",
    "request_context",
    "seconds",
)

_log = logging.getLogger("executionkit")


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
    check_context(context)
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
    check_context(given)
    context = copy_context()
    if given is not None:
        context.run(set_current_context, given)
    return context


def check_calls(calls: Sequence[object]) -> None:
    """Refuse what is no call.

    Raises:
        TypeError: When there is something else among `calls`.
    """
    for kind in set(map(type, calls)):
        if not issubclass(kind, (ToolCall, CallProblem)):
            msg = (
                f"`calls` must be `ToolCall`s, got a {kind.__name__}; `process` reads "
                "dicts, texts and messages"
            )
            raise TypeError(msg)


def check_context(context: object) -> None:
    """Refuse what is no context.

    Raises:
        TypeError: When it is something else than an `ExecutionContext` or None.
    """
    if context is not None and not isinstance(context, ExecutionContext):
        msg = f"`context` must be an ExecutionContext or None, got {context!r:.60}"
        raise TypeError(msg)


def check_strategy(strategy: object) -> None:
    """Refuse what cannot run tools.

    Raises:
        TypeError: When it has no `start`.
    """
    if strategy is not None and not callable(getattr(strategy, "start", None)):
        hint = ""
        if hasattr(strategy, "create_processor"):
            hint = "; a config makes one with `config.create_processor(registry)`"
        msg = f"`strategy` must run tools (`start`), got {strategy!r:.60}{hint}"
        raise TypeError(msg)


def checked(paths: Paths, call: ToolCall) -> ToolResult | None:
    """The failed result of a call that could not run; None when it could."""
    try:
        path = paths.find(call.name, call.namespace)
        checked_arguments(path.record, call.arguments)
    except ToolProcessorError as exc:
        return failed_result(call, exc, attempts=0)
    return None


def announced(run: Run, tell: Callable[[ToolCall], Awaitable[None] | None]) -> Run:
    """`run` of a call that somebody is told of before it begins."""

    async def tell_and_run(request: ToolRequest) -> ToolResult:
        try:
            told = tell(request.call)
            if inspect.isawaitable(told):
                await told
        except Exception as exc:  # noqa: BLE001 - it does not decide about calls
            _log.warning("`on_tool_start` failed: %s", describe_exception(exc))
        return await run(request)

    return tell_and_run
