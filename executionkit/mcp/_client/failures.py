"""What can go wrong with a call to a server: by type, never by text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executionkit._redact import redact
from executionkit.errors import ErrorCode, MCPConnectionError, MCPError

__all__ = (
    "MCPRequestError",
    "MCPResultError",
    "MCPToolError",
    "first_leaf",
    "lost",
    "refused",
)

REFUSALS: Final = frozenset({-32600, -32601, -32602})
"""JSON-RPC: the request is wrong. Sent again it is as wrong."""

_MAX_WHY: Final = 2000


class MCPToolError(MCPError):
    """The tool ran, and its answer says that it failed.

    The text is the tool's own, for the model to read: its content, and its data. It is
    not sent again by itself. A circuit counts it as it counts what a local tool raises.

    Args:
        server_name: The server.
        tool_name: The tool, as the server calls it.
        text: What the tool said.
        content: The blocks of its answer, as they came.
        structured: The data of its answer; None = none.
    """

    def __init__(
        self,
        server_name: str,
        tool_name: str = "",
        text: str = "",
        content: list[Any] | None = None,
        structured: Any = None,
    ) -> None:
        details = {"tool_name": tool_name, "content": content or []}
        if structured is not None:
            details["structured_content"] = structured
        super().__init__(server_name, "the tool failed", details)
        if text:
            self.args: tuple[Any, ...] = (text,)


class MCPResultError(MCPError):
    """The tool's answer does not fit the schema that the server gave for it.

    The text keeps what the tool said. No circuit counts it: the server is well.

    Args:
        server_name: The server.
        tool_name: The tool, as the server calls it.
        why: What does not fit.
        text: What the tool said.
        content: The blocks of its answer, as they came.
        structured: The data of its answer; None = none.
    """

    default_code = ErrorCode.TOOL_RESULT_ERROR

    def __init__(
        self,
        server_name: str,
        tool_name: str = "",
        why: str = "",
        text: str = "",
        content: list[Any] | None = None,
        structured: Any = None,
    ) -> None:
        details = {"tool_name": tool_name, "why": why, "content": content or []}
        if structured is not None:
            details["structured_content"] = structured
        said = f"; it said: {text}" if text else ""
        reason = f"the result of '{tool_name}' does not fit its schema: {why}{said}"
        super().__init__(server_name, reason, details)


class MCPRequestError(MCPError):
    """The server refused the request as wrong: an unknown tool, bad arguments.

    Neither sent again nor counted by a circuit.
    """

    default_code = ErrorCode.TOOL_ARGUMENT_ERROR


def first_leaf(exc: BaseException) -> BaseException:
    """The first exception that is no group; what ends the process goes first."""
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    leaves = [first_leaf(item) for item in exc.exceptions]
    grave = [item for item in leaves if not isinstance(item, Exception)]
    return (grave or leaves)[0]


def lost(server_name: str, why: str, **details: Any) -> MCPConnectionError:
    """The error of a connection that failed or is gone."""
    return MCPConnectionError(server_name, redact(why)[:_MAX_WHY], details)


def refused(server_name: str, error: Any, status: int | None) -> MCPError:
    """The error for a JSON-RPC error that the server sent.

    Args:
        server_name: The server.
        error: The SDK's exception, with `code`, `message` and `data`.
        status: The HTTP status that it came with, where there was one.
    """
    code: int = error.code
    reason = redact(str(error.message) or "error")[:_MAX_WHY]
    details: dict[str, Any] = {"json_rpc_code": code}
    if isinstance(error.data, (str, int, float, Mapping, list)):
        details["data"] = error.data
    if status is not None and status >= 400:
        details["status"] = status
    cls = MCPRequestError if code in REFUSALS else MCPError
    return cls(server_name, f"{reason} (JSON-RPC error {code})", details)
