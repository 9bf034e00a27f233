"""The context of the running task: set, read, restored."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from executionkit._clock import get_clock

if TYPE_CHECKING:
    from executionkit.context import ExecutionContext

__all__ = (
    "execution_scope",
    "get_current_context",
    "remaining_deadline",
    "set_current_context",
)


class _Entry:
    """One entered scope; a linked list, so that leaving needs no token of a task."""

    __slots__ = ("before", "context", "scope")

    def __init__(
        self,
        context: ExecutionContext | None,
        before: _Entry | None,
        scope: execution_scope | None,
    ) -> None:
        self.context = context
        self.before = before
        self.scope = scope


def _without(entry: _Entry | None, scope: execution_scope) -> _Entry | None:
    """The scopes that are left when `scope` ends, be it the innermost or not.

    A generator that is closed from another task has nothing to undo there.
    """
    if entry is None:
        return None
    if entry.scope is scope:
        return entry.before
    return _Entry(entry.context, _without(entry.before, scope), entry.scope)


_current: ContextVar[_Entry | None] = ContextVar("executionkit_context", default=None)


def get_current_context() -> ExecutionContext | None:
    """The context of the running request; None outside of any."""
    entry = _current.get()
    return None if entry is None else entry.context


def set_current_context(context: ExecutionContext | None) -> Token[Any]:
    """Set the context of the running task; `execution_scope` also restores it.

    Returns:
        A token: `token.var.reset(token)` brings the old context back.
    """
    entry = _current.get()
    if entry is None:
        return _current.set(_Entry(context, None, None))
    return _current.set(_Entry(context, entry.before, entry.scope))


def remaining_deadline() -> float | None:
    """Seconds until the deadline of the current context; None without one."""
    entry = _current.get()
    if entry is None or entry.context is None or entry.context._due is None:  # noqa: SLF001
        return None
    return max(0.0, entry.context._due - get_clock().monotonic())  # noqa: SLF001


class execution_scope:  # noqa: N801 - used like a function
    """Makes `context` the current one inside of `with` or `async with`.

    Scopes nest, and each restores what was before. One object may be used again, and
    by several tasks at once. None hides the outer context.
    """

    __slots__ = ("_context",)

    def __init__(self, context: ExecutionContext | None) -> None:
        given: object = context
        # By its parts, not by its class: that stands above this module.
        if given is not None and (
            isinstance(given, type) or not hasattr(given, "to_headers")
        ):
            msg = (
                f"`context` must be an ExecutionContext or None, got "
                f"{type(given).__name__}; for a time limit pass "
                "`ExecutionContext.with_deadline(seconds)`"
            )
            raise TypeError(msg)
        self._context = context

    def __enter__(self) -> ExecutionContext | None:
        _current.set(_Entry(self._context, _current.get(), self))
        return self._context

    def __exit__(self, *_exc: object) -> None:
        _current.set(_without(_current.get(), self))

    async def __aenter__(self) -> ExecutionContext | None:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__(*exc)
