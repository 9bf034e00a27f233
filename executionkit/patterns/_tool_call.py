"""One call of one tool: a task of its own, a time limit, and an end that is certain."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._threads import run_in_thread
from executionkit.calls import ErrorInfo, ToolCall, ToolResult, render_result
from executionkit.context import remaining_deadline
from executionkit.errors import ErrorCode, ToolExecutionError, ToolTimeoutError
from executionkit.observability import ToolSpan, nobody_watches
from executionkit.patterns._failures import first_of_group
from executionkit.patterns._generators import Progress, ProgressCallback
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit._clock import Clock, TimerHandle
    from executionkit.types import Tool

__all__ = ("ToolRun", "is_async", "stop_runs")

GRACE_SECONDS: Final = 1.0
"""How long a cancelled tool may take to end before it is left behind."""

_log = logging.getLogger("executionkit")


def is_async(function: object) -> bool:
    """Whether calling `function` blocks nothing: async, or an async generator.

    Partial functions and objects with an async `__call__` are seen through. A plain
    function that returns an awaitable counts as blocking: it is called in a thread,
    and what it returns is awaited on the loop.
    """
    while isinstance(function, functools.partial):
        function = function.func
    candidates = (function, getattr(type(function), "__call__", None))  # noqa: B004
    return any(
        inspect.iscoroutinefunction(item) or inspect.isasyncgenfunction(item)
        for item in candidates
    )


class _NoJsonError(Exception):
    """What a tool returned cannot be shown to a model; never leaves this module."""


class ToolRun:
    """A tool at work, from its start to its result.

    `outcome` is done when the call is: with a result in every case but that of a
    cancelled caller. A tool that runs longer than allowed is cancelled; one that does
    not end then is left behind after a grace of one second, so that nobody waits for
    it any longer. Of a generator tool the last value is the result; all its values
    are progress.
    """

    __slots__ = (
        "_began",
        "_begun",
        "_by_deadline",
        "_call",
        "_clock",
        "_expired",
        "_left",
        "_limit",
        "_made",
        "_on_failure",
        "_on_progress",
        "_progress",
        "_started",
        "_stopped",
        "_timer",
        "_tool",
        "outcome",
        "result",
        "task",
        "text",
    )

    def __init__(
        self,
        tool: Tool,
        call: ToolCall,
        timeout: float | None,
        *,
        on_loop: bool,
        on_progress: ProgressCallback | None = None,
        on_failure: Callable[[ToolCall, BaseException], None] | None = None,
    ) -> None:
        self._tool = tool
        self._on_failure = on_failure
        self._call = call
        self._on_progress = on_progress
        self._progress: Progress | None = None
        self._limit, self._by_deadline = _sooner(timeout, remaining_deadline())
        self._begun = self._expired = self._stopped = self._left = False
        self._made: Any = None
        self._clock = clock = get_clock()
        self._began = clock.monotonic()
        self._started = clock.wall()
        self.outcome: asyncio.Future[ToolResult] = (
            asyncio.get_running_loop().create_future()
        )
        self.result: ToolResult | None = None
        """The result, also when nobody waits for `outcome` any more."""

        self.text: str | None = None
        """What the model reads about a success."""

        self._timer: TimerHandle | None = None
        if self._limit is not None:
            self._timer = clock.call_later(self._limit, self._expire)
        # Last: with an eager task factory, the tool may have ended when this returns.
        self.task = asyncio.create_task(self._run(on_loop=on_loop))

    def cancel(self) -> None:
        """The caller is gone: stop the tool; see `stop_runs`."""
        if not self.task.done():
            self._stopped = True
            self.task.cancel()
            if self._timer is not None:  # a task that never began does not do it
                self._timer.cancel()

    async def _run(self, *, on_loop: bool) -> None:
        self._begun = True
        told = None if nobody_watches() else ToolSpan(self._call)
        if told is not None:
            told.begin()
            told.span.make_current()  # for good: the task is the tool's own
        result: Any = None
        ended: BaseException | None = None
        try:
            result = await self._work(on_loop=on_loop)
            ended = result.exception
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit) as exc:
            # The caller is gone, or the event loop ends: no tool's output.
            ended = exc
            self.outcome.cancel()
            raise
        except BaseException as exc:  # noqa: BLE001 - carried to the caller's task
            ended = exc
            if not self.outcome.done():
                self.outcome.set_exception(exc)
            return
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._leave()
            if told is not None:
                told.end(result, ended, self._clock.monotonic() - self._began)
        self._settle(result)

    async def _work(self, *, on_loop: bool) -> ToolResult:
        try:
            return self._success(await self._invoke(on_loop=on_loop))
        except _NoJsonError as exc:
            return self._failed(ErrorCode.TOOL_RESULT_ERROR, str(exc), exc.__cause__)
        except asyncio.CancelledError as exc:
            # Nobody but this class cancels the task, save a loop that shuts down, and
            # then the caller is cancelled too: any other cancellation is the tool's.
            if self._stopped:
                raise
            return self._failure(exc)
        except Exception as exc:  # noqa: BLE001 - a tool's failure is its result
            return self._failure(exc)
        except BaseExceptionGroup as group:
            failure = first_of_group(group)
            if isinstance(failure, asyncio.CancelledError) and not self._stopped:
                return self._failure(failure)
        except BaseException as exc:
            if self._stopped or isinstance(exc, (KeyboardInterrupt, SystemExit)):
                raise
            return self._failure(exc)
        # An exit that was asked for leaves by itself, as if it had been raised alone.
        raise failure

    def _leave(self) -> None:
        """Nobody waits for the function any more; it may still run in its thread."""
        self._left = True
        if self._progress is not None:
            self._progress.leave()
        _close_unused(self._made)

    def _settle(self, result: ToolResult) -> None:
        if self.result is None:
            self.result = result
        if not self.outcome.done():
            self.outcome.set_result(result)

    def _expire(self) -> None:
        self._expired = True
        self.task.cancel()
        if self._begun:
            self._timer = self._clock.call_later(GRACE_SECONDS, self._give_up)
        else:
            self._settle(self._timed_out())

    def _give_up(self) -> None:
        _log.warning(
            "tool '%s' does not end although it was cancelled; it is left behind",
            self._call.name,
        )
        leave_behind(self.task)
        self._settle(self._timed_out())

    async def _invoke(self, *, on_loop: bool) -> Any:
        # Tools get plain data of their own; the call's arguments stay read-only.
        arguments = {key: thaw(value) for key, value in self._call.arguments.items()}
        if on_loop:
            outcome = self._tool.execute(**arguments)
        else:
            outcome = await run_in_thread(self._in_thread, arguments)
        while inspect.isawaitable(outcome):
            outcome = await outcome
        if isinstance(outcome, AsyncGenerator):
            return await self._collector().collect(outcome)
        if isinstance(outcome, Generator):
            return await run_in_thread(self._collector().drain, outcome)
        return outcome

    def _in_thread(self, arguments: Mapping[str, Any]) -> Any:
        outcome = self._made = self._tool.execute(**arguments)
        if isinstance(outcome, Generator) and not inspect.isawaitable(outcome):
            # In the thread that made it: what it opens may be bound to its thread.
            return self._collector().drain(outcome)
        if self._left:
            _close_unused(outcome)
        return outcome

    def _collector(self) -> Progress:
        loop = self.outcome.get_loop()
        self._progress = Progress(self._call, self._on_progress, loop)
        if self._left:  # the caller went before the generator was even made
            self._progress.leave()
        return self._progress

    def _success(self, value: Any) -> ToolResult:
        duration = self._clock.monotonic() - self._began
        try:
            text = render_result(value)
            result = ToolResult(
                tool=self._call.name,
                result=value,
                call_id=self._call.id,
                start_time=self._started,
                end_time=self._started + duration,
                duration=duration,
            )
        except (TypeError, ValueError, RecursionError) as exc:
            msg = (
                f"Tool '{self._call.name}' returned {type(value).__name__}, "
                f"which cannot be written as JSON: {exc}"
            )
            raise _NoJsonError(msg) from exc
        if self.result is None:  # else the caller has been told of a time-out
            self.text = text
        return result

    def _failure(self, exc: BaseException) -> ToolResult:
        name = self._call.name
        if self._expired and isinstance(exc, asyncio.CancelledError):
            return self._timed_out()
        if self._on_failure is not None:
            self._on_failure(self._call, exc)
        kind = type(exc).__name__
        failed = ToolExecutionError(name, exc)
        details = {"tool_name": name, "type": kind}
        text = f"Tool '{name}' failed: {kind}"
        if isinstance(exc, TypeError):
            text += _misfit(self._tool.execute, self._call.arguments)
        return self._failed(failed.code, text, exc, details)

    def _timed_out(self) -> ToolResult:
        name, limit = self._call.name, self._limit or 0.0
        if self._by_deadline:
            text = f"Tool '{name}' was stopped: the deadline of the request passed"
            return self._failed(ErrorCode.DEADLINE_EXCEEDED, text, TimeoutError(text))
        error = ToolTimeoutError(name, limit)
        text = f"Tool execution timed out after {limit}s"
        return self._failed(error.code, text, TimeoutError(text), error.details)

    def _failed(
        self,
        code: ErrorCode,
        text: str,
        exc: BaseException | None,
        details: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        duration = self._clock.monotonic() - self._began
        made = self._progress.items() if self._progress is not None else []
        return ToolResult(
            tool=self._call.name,
            result=made or None,
            call_id=self._call.id,
            error_info=ErrorInfo.from_code(code, text, details),
            exception=exc,
            start_time=self._started,
            end_time=self._started + duration,
            duration=duration,
            is_partial=bool(made),
        )


def _misfit(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """How a function cannot be called with the arguments; empty when it can.

    A tool whose function names its parameters otherwise than its schema fails always.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""  # cannot be inspected
    try:
        signature.bind(**arguments)
    except TypeError as exc:
        names = ", ".join(signature.parameters)  # not the defaults: the model reads it
        return f": its function ({names}) does not fit its `parameters`: {exc}"
    return ""


def _close_unused(made: object) -> None:
    """Close a coroutine that was made in a thread and that nobody will await."""
    if inspect.iscoroutine(made) and (
        inspect.getcoroutinestate(made) == inspect.CORO_CREATED
    ):
        made.close()


def _sooner(timeout: float | None, deadline: float | None) -> tuple[float | None, bool]:
    """The limit that ends first, and whether it is the deadline of the request."""
    if deadline is None or (timeout is not None and timeout <= deadline):
        return timeout, False
    return deadline, True


async def stop_runs(runs: Collection[ToolRun], clock: Clock | None = None) -> None:
    """Cancel what still runs, and wait for its end, a second at most."""
    for run in runs:
        run.cancel()
    pending = {run.task for run in runs if not run.task.done()}
    if pending:
        await _wait_within(pending, GRACE_SECONDS, clock or get_clock())
    for run in runs:
        if not run.task.done():
            leave_behind(run.task)
            run.outcome.cancel()


async def _wait_within(
    tasks: set[asyncio.Task[None]], seconds: float, clock: Clock
) -> None:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fire() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(seconds, fire)
    try:
        waiting: set[asyncio.Future[None]] = {*tasks}
        while waiting and not over.done():
            _, waiting = await asyncio.wait(
                {*waiting, over}, return_when=asyncio.FIRST_COMPLETED
            )
            waiting.discard(over)
    finally:
        timer.cancel()
        over.cancel()


def leave_behind(task: asyncio.Task[None]) -> None:
    """Let a task end by itself; its failure is nobody's any more."""
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
