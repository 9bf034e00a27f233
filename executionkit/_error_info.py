"""A failure as data, and how an exception becomes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from executionkit._error_base import ExecutionKitError, shortened, text_of
from executionkit._error_codes import (
    ERROR_CODE_TO_CATEGORY,
    RETRYABLE_CATEGORIES,
    ErrorCategory,
    ErrorCode,
)
from executionkit._frozen import freeze_mapping, sealed, thaw

__all__ = ("ErrorInfo",)

_CODES: Final = (
    (TimeoutError, ErrorCode.TOOL_TIMEOUT),
    (ConnectionError, ErrorCode.TOOL_CONNECTION_FAILED),
)
"""What exceptions from outside of this library mean; the first match counts."""


def _code_of(exc: BaseException) -> ErrorCode:
    for kind, code in _CODES:
        if isinstance(exc, kind):
            return code
    from asyncio import CancelledError  # asyncio takes long to import

    if isinstance(exc, CancelledError):
        return ErrorCode.TOOL_CANCELLED
    return ErrorCode.TOOL_EXECUTION_FAILED


@sealed
@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A failure as data: what, which kind, whether and when to try again."""

    code: ErrorCode
    category: ErrorCategory
    message: str
    retryable: bool = True
    retry_after_ms: int | None = None
    details: Mapping[str, Any] = field(default_factory=freeze_mapping)

    def __post_init__(self) -> None:
        if self.retry_after_ms is not None and self.retry_after_ms < 0:
            msg = f"`retry_after_ms` must be >= 0, got {self.retry_after_ms}"
            raise ValueError(msg)
        object.__setattr__(self, "details", freeze_mapping(self.details))

    @classmethod
    def from_code(
        cls, code: ErrorCode, message: str, details: Mapping[str, Any] | None = None
    ) -> ErrorInfo:
        """The info of `code`, with the category's own answer to "try again?"."""
        category = ERROR_CODE_TO_CATEGORY[code]
        retryable = category in RETRYABLE_CATEGORIES
        return cls(code, category, message, retryable, None, details or {})

    @classmethod
    def from_exception(cls, exc: BaseException) -> ErrorInfo:
        """Classify an exception by its type."""
        if isinstance(exc, ExecutionKitError):
            after = exc.retry_after
            details = getattr(exc, "details", None)  # those of the tool side have it
            return cls(
                exc.code,
                exc.category,
                shortened(exc.message),
                exc.retryable,
                None if after is None else max(0, round(after * 1000)),
                details if isinstance(details, Mapping) else {},
            )
        return cls.from_code(_code_of(exc), text_of(exc), {"type": type(exc).__name__})

    def to_dict(self) -> dict[str, Any]:
        """The info as JSON-like data."""
        return {
            "code": self.code.value,
            "category": self.category.value,
            "message": self.message,
            "retryable": self.retryable,
            "retry_after_ms": self.retry_after_ms,
            "details": thaw(self.details),
        }
