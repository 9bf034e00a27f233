"""The errors of approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit._error_base import ExecutionKitError
from executionkit._error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executionkit.types import TokenUsage

__all__ = (
    "ApprovalDeniedError",
    "ApprovalInvalidError",
    "ApprovalPendingError",
    "ApprovalTimeoutError",
)


class ApprovalDeniedError(ExecutionKitError):
    """An approval gate said no."""

    default_code = ErrorCode.APPROVAL_DENIED


class ApprovalInvalidError(ApprovalDeniedError):
    """An answer that cannot be taken, so nothing is done.

    It is for another action, for other arguments or for another run, or it was given
    or used before, or nobody asked.
    """


class ApprovalTimeoutError(ExecutionKitError):
    """Nobody answered an approval request in time."""

    default_code = ErrorCode.APPROVAL_TIMEOUT


class ApprovalPendingError(ExecutionKitError):
    """The run has ended because somebody will answer later; run it again then.

    Args:
        message: What waits.
        requests: The questions (`ApprovalRequest`), each with its `id`.
        cost: Spent so far.
        metadata: More facts.
    """

    default_code = ErrorCode.APPROVAL_PENDING

    def __init__(
        self,
        message: str = "",
        *,
        requests: Sequence[Any] = (),
        cost: TokenUsage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, cost=cost, metadata=metadata)
        self.requests: tuple[Any, ...] = tuple(requests)
        """The `ApprovalRequest`s that wait for an answer."""

    @property
    def approval_ids(self) -> tuple[str, ...]:
        """The ids of the questions: what an answer has to name."""
        return tuple(request.id for request in self.requests)

    @property
    def approval_id(self) -> str:
        """The id of the first of them; empty when there is none."""
        return self.approval_ids[0] if self.requests else ""
