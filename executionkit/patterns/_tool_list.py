"""The minimal tool runner: a plain list of `Tool`, run in this process.

The tool runtime's processor is the full one; both satisfy `ToolRunner`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from executionkit._arguments import check_callable, shown
from executionkit._redact import redact
from executionkit.calls import ErrorInfo, ToolCall, ToolResult
from executionkit.context import remaining_deadline
from executionkit.engine.schema import SchemaError, Validator, compile_schema
from executionkit.errors import ErrorCode, ToolNotFoundError
from executionkit.patterns._generators import ProgressCallback
from executionkit.patterns._tool_call import ToolRun, is_async, stop_runs
from executionkit.types import Tool

__all__ = ("ToolListRunner",)

_MAX_FRAMES: Final = 30
_MAX_LOGGED: Final = 20_000
_log = logging.getLogger("executionkit")


class _Entry:
    """What one tool needs at call time, worked out once."""

    __slots__ = ("_has_failed", "_secrets", "on_loop", "timeout", "tool", "validator")

    def __init__(
        self, tool: Tool, timeout: float | None, secrets: tuple[str, ...]
    ) -> None:
        self.tool = tool
        self._secrets = secrets
        self._has_failed = False
        self.timeout = _checked_timeout(tool, timeout)
        self.on_loop = is_async(tool.execute)
        try:
            self.validator: Validator = compile_schema(tool.parameters)
        except SchemaError as exc:
            exc.add_note(f"In `parameters` of the tool '{tool.name}'")
            raise

    def note_failure(self, call: ToolCall, exc: BaseException) -> None:
        """Log what the tool raised: the model is told the type only.

        The first failure of a tool is a warning, the others are for debugging.
        """
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        if not _log.isEnabledFor(level):
            return
        text = "".join(traceback.format_exception(exc, limit=_MAX_FRAMES))
        # Cut twice: a secret that the first cut halves is gone with the second.
        shown_text = redact(text[: 2 * _MAX_LOGGED], secrets=self._secrets)[
            :_MAX_LOGGED
        ]
        _log.log(
            level,
            "tool '%s' failed (further failures of it are logged at DEBUG):\n%s",
            call.name,
            shown_text.rstrip(),
        )


def _checked_timeout(tool: Tool, timeout: float | None) -> float | None:
    limit: Any = tool.timeout if timeout is None else timeout
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
        msg = f"`timeout` of the tool '{tool.name}' must be > 0 seconds, got {limit!r}"
        raise ValueError(msg)
    return limit


def _check_collection(tools: object) -> None:
    if isinstance(tools, Tool):
        msg = f"`tools` must be a list of `Tool`s, got one Tool; pass [{tools.name}]"
        raise TypeError(msg)
    if not isinstance(tools, Iterable) or isinstance(tools, (str, bytes)):
        remedy = "leave it out, or pass [], for none"
        if hasattr(tools, "call_names"):  # a registry: it only knows the tools
            remedy = "`ToolProcessor(registry)` runs the tools of a registry"
        msg = (
            f"`tools` must be a list of `Tool`s or a ToolRunner, got {shown(tools)}; "
            f"{remedy}"
        )
        raise TypeError(msg)


def _no_tool(given: object) -> str:
    msg = f"`tools` must hold `Tool` objects, got {type(given).__name__}"
    if callable(given):
        name = getattr(given, "__name__", "function")
        msg += (
            f"; pass `ToolProcessor(create_registry({name}))` as `tools`, or make a "
            f"`Tool(name, description, parameters, {name})` of it"
        )
    return msg


class ToolListRunner:
    """Runs calls of a list of `Tool`: validate, run under a timeout, never raise.

    What a tool raises is its result, with two exceptions: `KeyboardInterrupt` and
    `SystemExit` end the program as everywhere else (to keep a tool's `sys.exit()`
    from doing so, run it in another process). Async functions run on the event loop,
    others in threads of the library; a thread that overruns its timeout is abandoned
    and counted (`executionkit._threads.thread_stats`), it cannot be killed.

    Args:
        tools: The tools; names must be unique.
        timeout: Seconds per call, instead of each tool's own. None = the tool's.
        on_progress: Called with each value that a generator tool yields.
        secrets: Texts that must not appear in the log.

    Raises:
        TypeError: When `tools` is no collection of `Tool`s, or `on_progress` is no
            plain function.
        ValueError: When two tools have one name, or a timeout is not above 0.
        SchemaError: When the parameters of a tool are no JSON Schema.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        timeout: float | None = None,
        on_progress: ProgressCallback | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        _check_collection(tools)
        if on_progress is not None:
            hint = "pass a function `(call, item)`"
            check_callable("on_progress", on_progress, hint=hint)
        if inspect.iscoroutinefunction(on_progress):
            msg = "`on_progress` must be a plain function: it is never awaited"
            raise TypeError(msg)
        self._on_progress = on_progress
        self._entries: dict[str, _Entry] = {}
        doubles: list[str] = []
        for tool in tools:
            given: object = tool
            if not isinstance(given, Tool):
                raise TypeError(_no_tool(given))
            if tool.name in self._entries and tool.name not in doubles:
                doubles.append(tool.name)
            self._entries[tool.name] = _Entry(tool, timeout, secrets)
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

    def is_repeatable(self, call: ToolCall) -> bool:
        """Whether running a call twice does no more than once."""
        entry = self._entries.get(call.name)
        return entry is not None and entry.tool.is_repeatable

    def _unknown(self, call: ToolCall) -> ToolResult:
        error = ToolNotFoundError(call.name, available_tools=self._entries)
        offered = ", ".join(self._entries) or "none"
        text = f"Error: Unknown tool '{call.name}'. Available tools: {offered}"
        info = ErrorInfo.from_code(error.code, text, error.details)
        return ToolResult.failure(call, info, attempts=0)

    def start(self, call: ToolCall) -> ToolRun | ToolResult:
        """Start a call that `check_call` let through; a result when it is too late."""
        left = remaining_deadline()
        if left is not None and left <= 0:
            text = f"Tool '{call.name}' was not run: the deadline of the request has passed"
            info = ErrorInfo.from_code(ErrorCode.DEADLINE_EXCEEDED, text)
            return ToolResult.failure(call, info, attempts=0)
        entry = self._entries[call.name]
        return ToolRun(
            entry.tool,
            call,
            entry.timeout,
            on_loop=entry.on_loop,
            on_progress=self._on_progress,
            on_failure=entry.note_failure,
        )

    async def run_calls(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult]:
        begun = [self.check_call(call) or self.start(call) for call in calls]
        runs = [item for item in begun if isinstance(item, ToolRun)]
        try:
            if runs:
                await asyncio.gather(*[run.outcome for run in runs])
        except BaseException:
            await stop_runs(runs)
            raise
        return [
            item.outcome.result() if isinstance(item, ToolRun) else item
            for item in begun
        ]

    async def run_call(self, call: ToolCall) -> ToolResult:
        """Validate and run one call."""
        return (await self.run_calls([call]))[0]
