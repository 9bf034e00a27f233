"""The errors of journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executionkit._error_base import ExecutionKitError
from executionkit._error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = (
    "InDoubtError",
    "JournalError",
    "JournalLockedError",
    "JournalMismatchError",
    "JournalValueError",
    "RecordedError",
)


class JournalError(ExecutionKitError):
    """A journal cannot be used: its file fails, or it was closed.

    No policy of a run tolerates it: what is not on record must not be built upon.
    """

    default_code = ErrorCode.JOURNAL_FAILED


class JournalLockedError(JournalError):
    """Another process (or another `Journal`) is at work on the same run."""

    default_code = ErrorCode.JOURNAL_LOCKED


class JournalMismatchError(JournalError):
    """The program asks for something else than what the journal has in this place.

    Nothing was run. The program, its prompts or its inputs were changed since the run
    began: run it as it was, or begin a new run.

    Args:
        message: What happened.
        effect_id: The place.
        recorded: What the journal has there, in words, without secrets.
        asked: What the program asks for, in words, without secrets.
    """

    default_code = ErrorCode.JOURNAL_MISMATCH

    def __init__(
        self,
        message: str = "",
        effect_id: str = "",
        recorded: str = "",
        asked: str = "",
    ) -> None:
        super().__init__(message)
        self.effect_id = effect_id
        self.recorded = recorded
        self.asked = asked


class InDoubtError(JournalError):
    """Something had begun when an earlier run broke off, and nobody knows what came of it.

    It is not repeated, because repeating it could do it twice. Look whether it was
    done; then `Journal.resolve(effect_id, outcome)`, or `Journal.retry(effect_id)` when
    it was not, and run again.

    Args:
        message: What is in doubt.
        effect_ids: The places, each one what `resolve` and `retry` take.
    """

    default_code = ErrorCode.JOURNAL_IN_DOUBT

    def __init__(self, message: str = "", effect_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.effect_ids: tuple[str, ...] = tuple(effect_ids)


class JournalValueError(JournalError, ValueError):
    """A value cannot be kept in a journal; the text says which one and where in it."""

    default_code = ErrorCode.JOURNAL_VALUE


class RecordedError(ExecutionKitError):
    """A failure on record whose own type cannot be made here.

    Args:
        message: Its text.
        error_type: The name of its type.
    """

    def __init__(self, message: str = "", error_type: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
