"""The root of the error tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from executionkit._constants import MAX_ERROR_CHARS
from executionkit._error_codes import (
    ERROR_CODE_TO_CATEGORY,
    RETRYABLE_CATEGORIES,
    ErrorCategory,
    ErrorCode,
)
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("ExecutionKitError", "portable", "said", "shortened", "text_of", "twin_of")


def said(error: BaseException) -> str:
    """All that an exception says; empty when it says nothing, or cannot."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` of a foreign exception may do anything
        return ""


def shortened(text: str, length: int | None = None) -> str:
    """The first `MAX_ERROR_CHARS` characters of a text, and a word on what is missing.

    Args:
        text: The text.
        length: How long it was to begin with; None = as it is.
    """
    if len(text) <= MAX_ERROR_CHARS:
        return text
    return (
        f"{text[:MAX_ERROR_CHARS]}... [cut: {length or len(text):,} characters in all]"
    )


def text_of(error: BaseException) -> str:
    """The words of an exception; its type's name when it has none, or cannot tell.

    Not redacted: what leaves the process goes through `redact_exception_text`.
    """
    return shortened(said(error)) or type(error).__name__


def portable(error: BaseException) -> BaseException | None:
    """`error`, or None when it would not survive being pickled and read back.

    Exceptions of other libraries often take arguments that they do not keep, or hold
    sockets and locks; one of them must not take the whole result down with it.
    """
    import pickle  # nosec B403 - for our own bytes alone

    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 # nosec B301 - our own bytes, just made
    except Exception:  # noqa: BLE001 - pickling runs foreign code, which may do anything
        return None
    return error


def _rebuild(
    cls: type[ExecutionKitError], args: tuple[Any, ...], state: dict[str, Any]
) -> ExecutionKitError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def twin_of(error: ExecutionKitError) -> ExecutionKitError:
    """A copy to write on, with traceback, causes and notes; `error` stays as it is.

    Whoever raised `error` may hold it and raise it again, in another run. A class that
    cannot be made without its own arguments has no twin: `error` itself is returned.
    """
    try:
        twin = type(error).__new__(type(error), *error.args)
    except TypeError:
        return error
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    twin.metadata = dict(error.metadata)
    notes = getattr(error, "__notes__", None)
    if notes:
        twin.__notes__ = list(notes)
    twin.__cause__ = error.__cause__
    twin.__context__ = error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


class ExecutionKitError(Exception):
    """The root of all errors that this library raises on purpose.

    Args:
        message: What happened, with the value and the remedy.
        cost: What had been spent when it happened; zero when unknown.
        metadata: Facts about the failed run (partial results among them).
    """

    default_code: ClassVar[ErrorCode] = ErrorCode.PATTERN_FAILED
    retry_limit: ClassVar[int | None] = None
    """Retries that make sense for this kind of failure at most. None = no own limit."""
    tells_attempts: ClassVar[bool] = True
    """Whether the text says how many requests were sent, when it was more than one."""

    def __init__(
        self,
        message: str = "",
        *,
        cost: TokenUsage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.cost: TokenUsage = cost if cost is not None else TokenUsage()
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.attempts: int = 0
        """Requests or calls that were really dispatched; 0 when not counted."""
        self.retries_exhausted: bool = False
        """True once a retry layer gave up on it: outer layers do not try again."""
        self._retry_after: float | None = None

    @property
    def code(self) -> ErrorCode:
        """The stable name of the failure."""
        return self.default_code

    @property
    def category(self) -> ErrorCategory:
        """The kind of failure."""
        return ERROR_CODE_TO_CATEGORY[self.code]

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.category in RETRYABLE_CATEGORIES

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before trying again, when the other side said so."""
        return self._retry_after

    @retry_after.setter
    def retry_after(self, seconds: float | None) -> None:
        self._retry_after = seconds

    @property
    def message(self) -> str:
        """The text of the error, without the count of requests that `str()` adds."""
        return str(self).removesuffix(self.sent_words)

    @property
    def sent_words(self) -> str:
        """How many requests were sent, as `str()` says it; empty for one or none."""
        attempts = self.__dict__.get("attempts", 0)  # unset while `__init__` runs
        if not self.tells_attempts or attempts < 2:
            return ""
        return f" (requests sent: {attempts})"

    def __str__(self) -> str:
        """The text, and how many requests were sent when it was more than one."""
        text, sent = super().__str__(), self.sent_words
        return f"{text or type(self).__name__}{sent}" if sent else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())
