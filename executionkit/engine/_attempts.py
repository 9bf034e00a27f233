"""The course of one call that may be tried again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from executionkit._clock import get_clock
from executionkit._constants import MAX_COOLDOWN
from executionkit.engine._limiter import Limiter, PermitTimeoutError
from executionkit.engine._rounds import at_most, shared_by
from executionkit.errors import (
    AllProvidersFailedError,
    DeadlineExceededError,
    ErrorCode,
    ExecutionKitError,
    RateLimitError,
)

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.engine.retry import RetryConfig

__all__ = (
    "NEVER_RETRIED",
    "Attempts",
    "BeforeAttempt",
    "OnRetry",
    "OnWait",
    "Turn",
    "refund_of",
    "say_sent",
)

T = TypeVar("T")

BeforeAttempt: TypeAlias = "Callable[[int], Awaitable[Any] | None]"
"""Called with the number of an attempt (from 1) right before it is sent; may refuse it
by raising."""

OnRetry: TypeAlias = "Callable[[int, Exception, float], Awaitable[Any] | None]"
"""Called before a pause: the number of the failed attempt, its error, the seconds."""

OnWait: TypeAlias = "Callable[[str, float], object]"
"""Called after a wait with its reason (`"permit"`, `"backoff"`, or `"retry_after"` for
a pause that the server asked for) and its seconds."""

NEVER_RETRIED: Final = frozenset(
    {
        ErrorCode.BUDGET_EXHAUSTED,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.APPROVAL_DENIED,
        ErrorCode.APPROVAL_TIMEOUT,
        ErrorCode.APPROVAL_PENDING,
        ErrorCode.JOURNAL_FAILED,
        ErrorCode.JOURNAL_IN_DOUBT,
        ErrorCode.JOURNAL_LOCKED,
        ErrorCode.JOURNAL_MISMATCH,
        ErrorCode.JOURNAL_VALUE,
        ErrorCode.MISSING_EXTRA,
        ErrorCode.CONFIGURATION_ERROR,
        ErrorCode.TOOL_BLOCKED,
        ErrorCode.TOOL_CANCELLED,
        ErrorCode.TOOL_CIRCUIT_OPEN,
        ErrorCode.TOOL_IDEMPOTENCY_CONFLICT,
        ErrorCode.TOOL_NOT_FOUND,
        ErrorCode.TOOL_REGISTRATION_FAILED,
        ErrorCode.TOOL_VALIDATION_ERROR,
        ErrorCode.TOOL_ARGUMENT_ERROR,
        ErrorCode.PARSER_ERROR,
        ErrorCode.PARSER_INVALID_FORMAT,
    }
)
"""Refusals: nothing was sent, and the same answer would come again. Not retried
whatever `RetryConfig.retryable` says."""

_NOTE = "Requests sent: "
_WHY: Final = "Not retried: "


class Attempts:
    """The course of one call: what was sent, and whether and when to send again."""

    __slots__ = (
        "_allowed",
        "_before_attempt",
        "_clock",
        "_config",
        "_deadline",
        "_is_asked_for",
        "_kinds",
        "_on_retry",
        "_on_wait",
        "_random",
        "_sent",
        "number",
    )

    def __init__(
        self,
        config: RetryConfig,
        clock: Clock | None = None,
        random: Callable[[], float] | None = None,
        deadline: float | None = None,
        before_attempt: BeforeAttempt | None = None,
        on_retry: OnRetry | None = None,
        on_wait: OnWait | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or get_clock()
        self._random = random
        self._deadline = deadline
        self._before_attempt = before_attempt
        self._on_retry = on_retry
        self._on_wait = on_wait
        self._is_asked_for = False
        self._allowed: int | None = None
        self._sent = 0
        self._kinds: dict[ErrorCode, int] = {}
        self.number = 0

    async def go_on(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        """Send the attempt that was admitted, and all that follow."""
        while True:
            try:
                if self._allowed is None:
                    return await attempt(self.number)
                with at_most(self._allowed):
                    return await attempt(self.number)
            except Exception as exc:
                if not await self.next_attempt(exc):
                    raise

    async def first_attempt(self) -> None:
        """Wait until the first attempt may be sent."""
        if self._config.budget is not None:
            self._config.budget.deposit()
        await self._permit()
        await self._check()

    async def next_attempt(self, exc: Exception) -> bool:
        """Wait until the next attempt may be sent; False when there is none.

        Called while `exc` is handled: whatever goes wrong here has it as its context.
        """
        delay = self._judge(exc)
        if delay is None:
            return False
        if self._on_retry is not None:
            outcome = self._on_retry(self.number, exc, delay)
            if inspect.isawaitable(outcome):
                await outcome
        began = self._clock.monotonic()
        await self._clock.sleep(delay)
        self._tell_wait("retry_after" if self._is_asked_for else "backoff", began)
        try:
            await self._permit()
        except DeadlineExceededError:
            self._give_up(exc)
            return False
        await self._check()
        return True

    async def _permit(self) -> None:
        strategy = self._config.rate_limit_strategy
        left = self._left()
        if left is not None and left <= 0:
            msg = "The deadline has passed; nothing was sent"
            raise DeadlineExceededError(msg)
        if strategy is None:
            return
        began = self._clock.monotonic()
        turn = None if self._on_wait is None else Turn()
        try:
            if left is None:
                await strategy.acquire()
            else:
                await _acquire_within(strategy, left)
        except PermitTimeoutError as exc:
            msg = (
                f"The deadline is in {left:.3f}s and the next permit of "
                f"`rate_limit_strategy` in {exc.retry_after:.3f}s; nothing was sent"
            )
            error = DeadlineExceededError(msg)
            error.retry_after = exc.retry_after
            raise error from exc
        finally:
            if turn is not None and turn.is_over():
                self._tell_wait("permit", began)

    def _tell_wait(self, reason: str, began: float) -> None:
        if self._on_wait is not None:
            self._on_wait(reason, self._clock.monotonic() - began)

    async def _check(self) -> None:
        """The last word before dispatch: nothing is awaited between it and the call."""
        if self._before_attempt is not None:
            give_back = refund_of(self._config.rate_limit_strategy)
            try:
                outcome = self._before_attempt(self.number + 1)
                if inspect.isawaitable(outcome):
                    await outcome
            except BaseException as exc:
                give_back()
                if isinstance(exc, ExecutionKitError):
                    exc.attempts = self._sent
                raise
        self.number += 1

    def _judge(self, exc: Exception) -> float | None:
        """Seconds to pause before the next attempt; None when there is none."""
        refused = False
        if isinstance(exc, ExecutionKitError):
            refused = exc.code in NEVER_RETRIED
            exact = refused or isinstance(exc, AllProvidersFailedError)
            self._sent += exc.attempts if exact else max(1, exc.attempts)
            if isinstance(exc, RateLimitError):
                self._cool_down(exc)
            if exc.retries_exhausted:
                self._settle(exc)
                return None
        else:
            self._sent += 1
        if refused or not self._is_retryable(exc):
            self._settle(exc)
            return None
        delay = self._delay_after(exc)
        if delay is None:
            self._give_up(exc)
        return delay

    def _is_retryable(self, exc: Exception) -> bool:
        try:
            return self._config.should_retry(exc)
        except Exception as broken:  # noqa: BLE001 - a user's predicate must not hide `exc`
            exc.add_note(f"Not retried, because `retryable` raised {broken!r}")
            return False

    def _delay_after(self, exc: Exception) -> float | None:
        config = self._config
        if self.number > config.max_retries or self._is_over_its_limit(exc):
            return None
        if self._is_used_up(exc):
            return None
        delay = config.get_delay(self.number, random=self._random)
        hint = _hint(exc)
        if hint > config.max_delay:
            if _is_a_guess(exc):
                hint = config.max_delay
            else:
                _say_why(
                    exc,
                    f"the wait of {hint:g}s is over `max_delay={config.max_delay:g}`",
                )
                return None
        self._is_asked_for = hint > delay
        delay = max(delay, hint)
        left = self._left()
        if left is not None and delay >= left:
            _say_why(exc, f"the wait of {delay:.3g}s ends after the deadline")
            return None
        if config.budget is not None and not config.budget.withdraw():
            _say_why(exc, "the `budget` of retries is used up")
            return None
        return delay

    def _is_over_its_limit(self, exc: Exception) -> bool:
        if not isinstance(exc, ExecutionKitError) or exc.retry_limit is None:
            return False
        used = self._kinds.get(exc.code, 0)
        self._kinds[exc.code] = used + 1
        return used >= exc.retry_limit

    def _is_used_up(self, exc: Exception) -> bool:
        """Whether several providers have sent what they and their retries may send."""
        shared = shared_by(exc)
        if shared is None:
            self._allowed = None
            return False
        most = self._config.max_retries
        self._allowed = shared.total(most) - self._sent
        if self._allowed >= 1:
            return False
        words = shared.words(most)
        _say_why(exc, f"requests sent: {self._sent}, and {words} allow no more")
        return True

    def _cool_down(self, exc: RateLimitError) -> None:
        strategy = self._config.rate_limit_strategy
        if strategy is not None:
            longest = max(self._config.max_delay, MAX_COOLDOWN)
            strategy.drain(min(_hint(exc), longest))

    def _left(self) -> float | None:
        if self._deadline is None:
            return None
        return self._deadline - self._clock.monotonic()

    def _give_up(self, exc: Exception) -> None:
        if isinstance(exc, ExecutionKitError) and self._config.max_retries:
            exc.retries_exhausted = True
        self._settle(exc)

    def _settle(self, exc: Exception) -> None:
        """Write on the error that is raised how many attempts were sent."""
        if isinstance(exc, ExecutionKitError):
            exc.attempts = self._sent
        say_sent(exc, self._sent)


class Turn:
    """Knows whether the event loop got a turn since it was made."""

    __slots__ = ("_handle", "_has_passed")

    def __init__(self) -> None:
        self._has_passed = False
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # stepped by hand: there are no turns
            loop = None
        self._handle = None if loop is None else loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._has_passed = True

    def is_over(self) -> bool:
        """Asked once."""
        if self._handle is not None:
            self._handle.cancel()
        return self._has_passed


def _say_why(exc: BaseException, why: str) -> None:
    """Say in the traceback why a failure that could be retried was not."""
    notes: list[str] = getattr(exc, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(_WHY)]
    exc.add_note(f"{_WHY}{why}")


def say_sent(exc: BaseException, sent: int) -> None:
    """Say in the traceback how many requests were sent, if more than one.

    An error of a model or a pattern has it in its text; others get a note.
    """
    if sent > 1:
        notes: list[str] = getattr(exc, "__notes__", [])
        notes[:] = [note for note in notes if not note.startswith(_NOTE)]
        if not (isinstance(exc, ExecutionKitError) and exc.sent_words):
            exc.add_note(f"{_NOTE}{sent}")


def _hint(exc: Exception) -> float:
    """The seconds that the error says to wait; 0.0 when it says nothing usable."""
    seconds = exc.retry_after if isinstance(exc, ExecutionKitError) else None
    return seconds if seconds is not None and seconds > 0 else 0.0


def refund_of(strategy: object) -> Callable[[], object]:
    """How to give back the permit that was had just now."""
    if isinstance(strategy, Limiter):
        return partial(strategy.refund, since=strategy.now())
    return getattr(strategy, "refund", None) or (lambda: None)


def _is_a_guess(exc: Exception) -> bool:
    return isinstance(exc, RateLimitError) and not exc.retry_after_known


async def _acquire_within(strategy: Any, seconds: float) -> None:
    await strategy.acquire(timeout=seconds)
