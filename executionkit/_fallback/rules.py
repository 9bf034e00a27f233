"""What makes the next provider answer, and what all calls have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from executionkit._clock import get_clock
from executionkit.errors import DeadlineExceededError, ErrorCode, ExecutionKitError

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit._fallback.members import Member
    from executionkit.engine.retry import RetryBudget

__all__ = ("Rules", "refuse_if_late")

_FINAL: Final = frozenset(
    {
        ErrorCode.BUDGET_EXHAUSTED,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.APPROVAL_DENIED,
        ErrorCode.APPROVAL_TIMEOUT,
        ErrorCode.APPROVAL_PENDING,
        ErrorCode.TOOL_CANCELLED,
    }
)
"""Another provider would be stopped by the same thing."""


def refuse_if_late(left: float | None) -> None:
    """Ask nobody any more when no time is left."""
    if left is not None and left <= 0:
        msg = "The deadline has passed; no provider was asked"
        raise DeadlineExceededError(msg)


class Rules:
    """What all calls of one `FallbackProvider` have in common."""

    __slots__ = (
        "_clock",
        "hedges",
        "max_attempts",
        "members",
        "name",
        "on",
        "on_truncated",
        "secrets",
    )

    def __init__(
        self,
        members: Sequence[Member],
        on: tuple[type[BaseException], ...] | Callable[[Exception], bool],
        *,
        max_attempts: int | None,
        on_truncated: bool,
        hedges: RetryBudget | None,
        name: str,
        secrets: tuple[str, ...],
        clock: Clock | None,
    ) -> None:
        self.members: Sequence[Member] = members
        self.on: tuple[type[BaseException], ...] | Callable[[Exception], bool] = on
        self.max_attempts: int | None = max_attempts
        self.on_truncated: bool = on_truncated
        self.hedges: RetryBudget | None = hedges
        self.name: str = name
        self.secrets: tuple[str, ...] = secrets
        self._clock = clock

    @property
    def clock(self) -> Clock:
        return self._clock or get_clock()

    def goes_on(self, raw: Exception, failure: BaseException) -> bool:
        """Whether another provider is asked after this failure."""
        if not isinstance(failure, Exception):
            return False
        if isinstance(failure, ExecutionKitError) and failure.code in _FINAL:
            return False
        if isinstance(self.on, tuple):
            return isinstance(failure, self.on) or isinstance(raw, self.on)
        try:
            return bool(self.on(failure))
        except Exception as broken:  # noqa: BLE001 - a user's predicate must not hide it
            failure.add_note(f"No fallback, because `on` raised {broken!r}")
            return False
