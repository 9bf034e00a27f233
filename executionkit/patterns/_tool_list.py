"""The minimal tool runner: a plain list of `Tool`, run in this process.

The tool runtime's processor is the full one; both satisfy `ToolRunner`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any

from executionkit._clock import get_clock
from executionkit._threads import run_in_thread
from executionkit.calls import ErrorInfo, ToolCall, ToolResult, render_result
from executionkit.engine.schema import Validator, compile_schema
from executionkit.errors import (
    ErrorCode,
    ToolExecutionError,
    ToolNotFoundError,
    ToolTimeoutError,
)
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.types import Tool

__all__ = ("ToolListRunner",)


class _Entry:
    """What one tool needs at call time, worked out once."""

    __slots__ = ("is_async", "timeout", "tool", "validator")

    def __init__(self, tool: Tool, timeout: float | None) -> None:
        self.tool = tool
        self.timeout = tool.timeout if timeout is None else timeout
        self.is_async = _is_async(tool.execute)
        self.validator: Validator = compile_schema(tool.parameters)


class ToolListRunner:
    """Runs calls of a list of `Tool`: validate, run under a timeout, never raise.

    Args:
        tools: The tools; names must be unique.
        timeout: Seconds per call, instead of each tool's own. None = the tool's.

    Raises:
        ValueError: When two tools have one name.
    """

    def __init__(self, tools: Iterable[Tool], *, timeout: float | None = None) -> None:
        self._entries: dict[str, _Entry] = {}
        doubles: list[str] = []
        for tool in tools:
            if tool.name in self._entries and tool.name not in doubles:
                doubles.append(tool.name)
            self._entries[tool.name] = _Entry(tool, timeout)
        if doubles:
            msg = f"tool names must be unique; given more than once: {doubles}"
            raise ValueError(msg)
        self._schemas = [entry.tool.to_schema() for entry in self._entries.values()]

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names."""
        return tuple(self._entries)

    async def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._schemas

    def check_call(self, call: ToolCall) -> ToolResult | None:
        """The failed result of a call that must not run; None when it may."""
        entry = self._entries.get(call.name)
        if entry is None:
            return self._unknown(call)
        problems = entry.validator.validate(call.arguments)
        if not problems:
            return None
        why = "; ".join(str(problem) for problem in problems)
        text = f"Tool '{call.name}' argument error: {why}"
        info = ErrorInfo.from_code(ErrorCode.TOOL_ARGUMENT_ERROR, text)
        return ToolResult.failure(call, info, attempts=0)

    def _unknown(self, call: ToolCall) -> ToolResult:
        error = ToolNotFoundError(call.name, available_tools=self._entries)
        offered = ", ".join(self._entries) or "none"
        text = f"Error: Unknown tool '{call.name}'. Available tools: {offered}"
        info = ErrorInfo.from_code(error.code, text, error.details)
        return ToolResult.failure(call, info, attempts=0)

    async def run_calls(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult]:
        if len(calls) == 1:
            return [await self.run_call(calls[0])]
        return await _together([self.run_call(call) for call in calls])

    async def run_call(self, call: ToolCall) -> ToolResult:
        """Validate and run one call."""
        return self.check_call(call) or await self.run_checked(call)

    async def run_checked(self, call: ToolCall) -> ToolResult:
        """Run one call that `check_call` has let through."""
        entry = self._entries[call.name]
        clock = get_clock()
        began = clock.monotonic()
        started = clock.wall()
        caught: BaseException | None = None
        value: Any = None
        cancels = _cancel_count()
        limit = clock.timeout(entry.timeout)
        try:
            async with limit:
                value = await _invoke(entry, call)
        except asyncio.CancelledError as exc:
            if _cancel_count() > cancels:
                raise  # the caller itself is being cancelled
            caught = exc
        except Exception as exc:  # noqa: BLE001 - a tool's failure is its result
            caught = exc
        duration = clock.monotonic() - began
        if caught is None:
            return _success(call, value, started, duration)
        return ToolResult(
            tool=call.name,
            error_info=_explain(entry, call, caught, expired=limit.expired()),
            call_id=call.id,
            exception=caught,
            start_time=started,
            end_time=started + duration,
            duration=duration,
        )


async def _together(coroutines: Sequence[Any]) -> list[ToolResult]:
    tasks = [asyncio.ensure_future(item) for item in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _cancel_count() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _invoke(entry: _Entry, call: ToolCall) -> Any:
    # Tools get a plain dict of their own; the call's arguments stay read-only.
    execute: Callable[..., Any] = entry.tool.execute
    arguments = _plain(call.arguments)
    if entry.is_async:
        outcome = execute(**arguments)
    else:
        outcome = await run_in_thread(execute, **arguments)
    if inspect.isawaitable(outcome):
        outcome = await outcome
    if isinstance(outcome, AsyncIterator):
        return await _last_of(outcome)
    if isinstance(outcome, Iterator):
        return await run_in_thread(_last_of_sync, outcome)
    return outcome


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: thaw(value) for key, value in arguments.items()}


async def _last_of(items: AsyncIterator[Any]) -> Any:
    last: Any = None
    try:
        async for item in items:
            last = item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
    return last


def _last_of_sync(items: Iterator[Any]) -> Any:
    last: Any = None
    for item in items:
        last = item
    return last


def _success(call: ToolCall, value: Any, started: float, duration: float) -> ToolResult:
    try:
        render_result(value)
    except (TypeError, ValueError, RecursionError) as exc:
        text = (
            f"Tool '{call.name}' returned {type(value).__name__}, "
            f"which cannot be written as JSON: {exc}"
        )
        info = ErrorInfo.from_code(ErrorCode.TOOL_RESULT_ERROR, text)
        return ToolResult.failure(call, info, start_time=started, duration=duration)
    return ToolResult(
        tool=call.name,
        result=value,
        call_id=call.id,
        start_time=started,
        end_time=started + duration,
        duration=duration,
    )


def _explain(
    entry: _Entry, call: ToolCall, caught: BaseException, *, expired: bool
) -> ErrorInfo:
    if expired and isinstance(caught, TimeoutError) and entry.timeout is not None:
        error = ToolTimeoutError(call.name, entry.timeout)
        text = f"Tool execution timed out after {entry.timeout}s"
        return ErrorInfo.from_code(error.code, text, error.details)
    failed = ToolExecutionError(call.name, caught)
    return ErrorInfo.from_code(
        failed.code,
        f"Tool '{call.name}' failed: {type(caught).__name__}",
        {"tool_name": call.name, "type": type(caught).__name__},
    )


def _is_async(function: Callable[..., Any]) -> bool:
    target: Any = function
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    checks = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    call = getattr(type(target), "__call__", None)  # noqa: B004 - objects too
    return any(check(target) or (call and check(call)) for check in checks)
