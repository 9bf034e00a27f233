"""Trying again: when, how often, and after what pause.

One attempt goes like this: wait for a permit, check that it may still be sent, send it.
A failed attempt is repeated after a random pause ("full jitter": Marc Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog, 2015), or after the pause that
the server asked for when that is longer. A pause that the server asked for is never
shortened: when it is above `max_delay`, or ends after the deadline, the call fails now
and the error carries the hint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from executionkit._clock import default_random
from executionkit.engine._attempts import (
    NEVER_RETRIED,
    Attempts,
    BeforeAttempt,
    OnRetry,
    OnWait,
)
from executionkit.engine._checks import check_int, check_number
from executionkit.errors import ExecutionKitError, ProviderError, RateLimitError
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._clock import Clock

__all__ = (
    "DEFAULT_RETRY",
    "NEVER_RETRIED",
    "BeforeAttempt",
    "OnRetry",
    "OnWait",
    "RateLimitStrategy",
    "RetryBudget",
    "RetryConfig",
    "run_with_retry",
    "with_retry",
)

T = TypeVar("T")


class RateLimitStrategy(Protocol):
    """What paces attempts: a `TokenBucket`, a `SlidingWindow`, or one of your own.

    A deadline is handed over as `acquire(timeout=seconds)`; a permit that was not used
    is given back by `refund()` where the object has that method.
    """

    async def acquire(self) -> None:
        """Wait for one permit and take it."""
        ...

    def drain(self, seconds: float) -> None:
        """Give no permit for `seconds`."""
        ...


class RetryBudget:
    """Bounds retries as a share of the traffic, over all calls that use it.

    A fixed number of attempts multiplies the load exactly when a server is down. Each
    call pays in `ratio`, each retry takes out 1; without funds a failure is final.

    Args:
        ratio: Retries per call in the long run, above 0.
        reserve: Retries possible from the start and saved up at most, at least 1.
    """

    __slots__ = ("_funds", "_ratio", "_reserve")

    def __init__(self, ratio: float = 0.2, reserve: float = 10.0) -> None:
        self._ratio = check_number("ratio", ratio, above=True)
        self._reserve = check_number("reserve", reserve, 1.0)
        self._funds = self._reserve

    @property
    def funds(self) -> float:
        """Retries that could be made right now."""
        return self._funds

    def deposit(self) -> None:
        """A call begins."""
        self._funds = min(self._reserve, self._funds + self._ratio)

    def withdraw(self) -> bool:
        """Pay for one retry; False when the funds do not suffice."""
        if self._funds < 1.0:
            return False
        self._funds -= 1.0
        return True


@sealed
@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How a failed call is tried again. One object serves any number of calls."""

    max_retries: int = 3
    """Attempts after the first. 0 turns retrying off."""

    base_delay: float = 1.0
    """Seconds: upper bound of the first pause."""

    max_delay: float = 60.0
    """Seconds: upper bound of every pause, and of a pause that a server asks for."""

    exponential_base: float = 2.0
    """Growth of the upper bound from pause to pause, at least 1."""

    retryable: tuple[type[BaseException], ...] | Callable[[Exception], bool] = (
        RateLimitError,
        ProviderError,
    )
    """Which failures are tried again: types, or a predicate. `NEVER_RETRIED` wins."""

    rate_limit_strategy: RateLimitStrategy | None = None
    """Gives a permit to each attempt; a 429 makes it pause all callers."""

    _: KW_ONLY

    budget: RetryBudget | None = None
    """Bounds the retries of all calls together. None = no such bound."""

    def __post_init__(self) -> None:
        check_int("max_retries", self.max_retries, 0)
        check_number("base_delay", self.base_delay)
        check_number("max_delay", self.max_delay)
        check_number("exponential_base", self.exponential_base, 1.0)
        object.__setattr__(self, "retryable", _checked_kinds(self.retryable))

    def should_retry(self, exc: BaseException) -> bool:
        """Whether a failure of this kind is tried again at all."""
        if not isinstance(exc, Exception):
            return False  # a cancellation, an exit: not a failure of the call
        if isinstance(exc, ExecutionKitError) and exc.code in NEVER_RETRIED:
            return False
        if isinstance(self.retryable, tuple):
            return isinstance(exc, self.retryable)
        return bool(self.retryable(exc))

    def get_delay(
        self, attempt: int, *, random: Callable[[], float] | None = None
    ) -> float:
        """Seconds to pause after failed attempt number `attempt` (from 1).

        Full jitter: `random() * min(max_delay, base_delay * exponential_base **
        (attempt - 1))`.

        Args:
            attempt: At least 1; may be large.
            random: Gives a float in [0, 1). None = the shared source.
        """
        check_int("attempt", attempt, 1)
        try:
            grown = self.base_delay * self.exponential_base ** (attempt - 1)
        except OverflowError:
            grown = self.max_delay if self.base_delay else 0.0
        return (random or default_random)() * min(grown, self.max_delay)


def _checked_kinds(kinds: Any) -> Any:
    if callable(kinds) and not isinstance(kinds, type):
        return kinds
    chosen: Any = (kinds,) if isinstance(kinds, type) else kinds
    if not isinstance(chosen, Iterable) or isinstance(chosen, (str, bytes)):
        msg = f"`retryable` must be exception types or a predicate, got {kinds!r}"
        raise TypeError(msg)
    chosen = tuple(chosen)
    for kind in chosen:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            msg = f"`retryable` must hold exception types, got {kind!r}"
            raise TypeError(msg)
    return chosen


DEFAULT_RETRY: Final = RetryConfig()
"""Three retries, pauses up to 1, 2 and 4 seconds; connection, server and 429 errors."""


async def with_retry(
    fn: Callable[..., Awaitable[T]],
    config: RetryConfig,
    *args: Any,
    _before_attempt: BeforeAttempt | None = None,
    **kwargs: Any,
) -> T:
    """Call `fn(*args, **kwargs)` until it succeeds or trying again makes no sense.

    See `run_with_retry` for the rules; here all keywords but `_before_attempt` belong
    to `fn`.

    Args:
        fn: An async function.
        config: How to retry.
        *args: For `fn`.
        _before_attempt: Called with the number of each attempt after the permit was
            had and right before `fn` is called, so that a limit it checks cannot
            change in between. An error it raises is final.
        **kwargs: For `fn`.
    """
    if (
        _before_attempt is None
        and config.rate_limit_strategy is None
        and config.budget is None
    ):
        # The way of nearly all calls costs no more than a loop by hand.
        try:
            return await fn(*args, **kwargs)
        except Exception as exc:
            run = Attempts(config)
            run.number = 1
            if not await run.next_attempt(exc):
                raise
    else:
        run = Attempts(config, before_attempt=_before_attempt)
        await run.first_attempt()
    return await run.go_on(_bound(fn, args, kwargs))


def _bound(
    fn: Callable[..., Awaitable[T]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[int], Awaitable[T]]:
    return lambda _number: fn(*args, **kwargs)


async def run_with_retry(
    attempt: Callable[[int], Awaitable[T]],
    config: RetryConfig,
    *,
    clock: Clock | None = None,
    random: Callable[[], float] | None = None,
    deadline: float | None = None,
    before_attempt: BeforeAttempt | None = None,
    on_retry: OnRetry | None = None,
    on_wait: OnWait | None = None,
) -> T:
    """Run `attempt(1)`, `attempt(2)`, ... until one succeeds or none makes sense.

    - A cancellation passes at once. `NEVER_RETRIED` errors, and errors on which an
      inner retry layer gave up already (`retries_exhausted`), are raised as they are.
    - An error's own `retry_limit` bounds the retries of its kind.
    - A pause is the longer one of the jittered delay and the error's `retry_after`.
    - After every 429, also the last one, `rate_limit_strategy` gives no permit for
      `retry_after` seconds (at most `max_delay`, or a minute if that is longer: a
      caller without a deadline must not hang for a day on the hint of another one).
    - The error that is raised in the end is the last one that really happened; its
      `attempts` says how many attempts were sent in all, inner layers included, and so
      does its text (a note, for an error that is none of this library).
      `retries_exhausted` tells outer layers to stop, unless `max_retries` is 0: then
      this was no retry layer.

    Args:
        attempt: Called with the number of the attempt, from 1.
        config: How to retry.
        clock: None = the clock of the current context.
        random: The source of jitter, floats in [0, 1). None = the shared one.
        deadline: Monotonic time after which nothing is started. A wait that would end
            later is not begun. It does not interrupt an attempt.
        before_attempt: Called after the permit was had, right before each attempt; the
            permit is given back when it raises.
        on_retry: Called before each pause.
        on_wait: Called after each wait, for a permit or of a pause.

    Raises:
        DeadlineExceededError: When not even the first attempt can start in time.
    """
    run = Attempts(config, clock, random, deadline, before_attempt, on_retry, on_wait)
    await run.first_attempt()
    return await run.go_on(attempt)
