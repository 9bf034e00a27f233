"""What can go wrong with a worker, beside what its tool raises."""

from __future__ import annotations

import signal

from executionkit._error_codes import ErrorCode
from executionkit.errors import ToolProcessorError

__all__ = (
    "RemoteToolError",
    "RemoteTraceback",
    "SerializationError",
    "WorkerCrashedError",
    "WorkerStartError",
)


class WorkerCrashedError(ToolProcessorError):
    """The worker process ended while it ran the tool: the call may have had effects.

    Args:
        tool_name: The tool's full name.
        exit_code: As `subprocess` has it: negative = by that signal. None = unknown.
    """

    default_code = ErrorCode.TOOL_EXECUTION_FAILED

    def __init__(self, tool_name: str, exit_code: int | None = None) -> None:
        super().__init__(
            f"Worker process crashed: {how_it_ended(exit_code)} while it ran tool "
            f"'{tool_name}'",
            details={"tool_name": tool_name, "exit_code": exit_code},
        )
        self.tool_name: str = tool_name
        self.exit_code: int | None = exit_code


def how_it_ended(exit_code: int | None) -> str:
    """An exit code in words."""
    if exit_code is None:
        return "it closed its connection"
    if exit_code >= 0:
        return f"it exited with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    why = ", the limit of its CPU time" if name == "SIGXCPU" else ""
    return f"it was killed by {name}{why}"


class WorkerStartError(ToolProcessorError):
    """No worker could be had: the tool was not started."""

    default_code = ErrorCode.TOOL_EXECUTION_FAILED


class SerializationError(ToolProcessorError):
    """A tool, its arguments or its result cannot go from one process to another.

    Args:
        tool_name: The tool's full name.
        what: `"tool"`, `"arguments"` or `"result"`.
        why: What pickling said.
        remedy: What to do.
    """

    default_code = ErrorCode.TOOL_RESULT_ERROR

    def __init__(self, tool_name: str, what: str, why: str, remedy: str = "") -> None:
        hint = f"; {remedy}" if remedy else ""
        super().__init__(
            f"Tool serialization failed: the {what} of '{tool_name}' cannot be sent "
            f"between processes ({why}){hint}",
            code=_CODES[what],
            details={"tool_name": tool_name, "what": what, "reason": why},
        )


_CODES = {
    "tool": ErrorCode.TOOL_REGISTRATION_FAILED,
    "arguments": ErrorCode.TOOL_ARGUMENT_ERROR,
    "result": ErrorCode.TOOL_RESULT_ERROR,
}


class RemoteToolError(ToolProcessorError):
    """The tool raised an exception that cannot be rebuilt in this process.

    Args:
        tool_name: The tool's full name.
        exception_type: The dotted name of its class.
        text: Its text.
    """

    default_code = ErrorCode.TOOL_EXECUTION_FAILED

    def __init__(self, tool_name: str, exception_type: str, text: str) -> None:
        words = f": {text}" if text else ""
        super().__init__(
            f"Tool execution failed: {exception_type}{words}",
            details={"tool_name": tool_name, "exception_type": exception_type},
        )
        self.exception_type: str = exception_type


class RemoteTraceback(Exception):  # noqa: N818 - it is the text of one, not an error
    """The traceback of the worker, as the `__cause__` of what the tool raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text: str = text

    def __str__(self) -> str:
        return f"\n{self.text}"
