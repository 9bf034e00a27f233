"""Calls that tools make in turn: which call makes them, and what that one holds."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextvars import Context

    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("MAKES_CALLS", "caller_in", "waits_for_itself")

MAKES_CALLS: Final[ContextVar[ToolRequest | None]] = ContextVar(
    "executionkit_call", default=None
)
"""The call whose tool is at work, where it has a slot or leads equal calls."""


def caller_in(context: Context) -> ToolRequest | None:
    """The call that makes the calls of `context`; None when nothing depends on it.

    What has ended is passed over, so that a chain of tasks that outlive their calls
    keeps nothing alive.
    """
    found = context.get(MAKES_CALLS)
    while found is not None and not found.places and found.leads is None:
        found = found.caller
    return found


def waits_for_itself(
    request: ToolRequest, key: str, waiting: Iterable[tuple[ToolRequest, str]]
) -> bool:
    """Whether the outcome that `request` would wait for can never come.

    Args:
        request: A call.
        key: Of the equal call that it would wait for.
        waiting: Calls of tools that wait already, each with the key that it waits for.
    """
    left = list(waiting)
    ahead = [(request, key)]
    while ahead:
        call, wanted = ahead.pop()
        if _leads(request, wanted, call):
            return True
        # The leader itself may wait, by calls of its tool.
        blocked = [item for item in left if _leads(item[0], wanted, call)]
        left = [item for item in left if item not in blocked]
        ahead += blocked
    return False


def _leads(request: ToolRequest, key: str, equal: ToolRequest) -> bool:
    """Whether a caller of `request` is what calls like `equal` wait for."""
    caller = request.caller
    while caller is not None:
        if caller.leads == key and caller.record is equal.record:
            return True
        caller = caller.caller
    return False
