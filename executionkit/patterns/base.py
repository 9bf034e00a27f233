"""What every pattern stands on: one checked way to call a model.

`checked_complete` and `checked_stream` are the only places where a pattern reaches
its provider. They keep the budget, retry, obey the deadline of the current context,
and report paired trace events. A pattern of your own is an async function that calls
them and returns a `PatternResult`; wrap its body in `spending(tracker)` so that each
error that leaves it carries what was spent.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

from executionkit._arguments import (
    check_budget,
    check_provider,
    check_retry,
    check_trace,
    shown,
)
from executionkit._clock import get_clock
from executionkit._error_base import twin_of
from executionkit._llm import OMIT
from executionkit._redact import describe_exception
from executionkit.context import remaining_deadline
from executionkit.cost import CostTracker, collecting_lost_cost, report_lost_cost
from executionkit.engine._attempts import say_sent
from executionkit.engine._checks import check_int
from executionkit.errors import (
    DeadlineExceededError,
    EvaluatorError,
    ExecutionKitError,
)
from executionkit.observability import PatternTrace, watched
from executionkit.patterns._asker import Asker
from executionkit.patterns._call import checked_complete
from executionkit.patterns._failures import describe, first_of_group
from executionkit.patterns._lent import TrackedProvider
from executionkit.patterns._options import check_options
from executionkit.patterns._stream import checked_stream

if TYPE_CHECKING:
    from types import TracebackType

    from executionkit._llm import LLMProvider, Omit
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback
    from executionkit.types import CheckpointCallback, TokenUsage

__all__ = (
    "Asker",
    "TrackedProvider",
    "calling_user",
    "check_max_tokens",
    "check_options",
    "check_positive",
    "check_run",
    "check_temperature",
    "checked_complete",
    "checked_stream",
    "first_of_group",
    "raise_unless_tools",
    "run_checkpoint",
    "spending",
    "validate_score",
)

_log = logging.getLogger("executionkit")


def validate_score(score: float) -> float:
    """Return `score` when it is a number in [0, 1].

    Raises:
        ValueError: When it is not.
    """
    given: Any = score  # by a user's evaluator
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if is_number and 0.0 <= float(given) <= 1.0:  # False for NaN
        return float(given)
    msg = f"Invalid evaluator score: expected a number in [0, 1], got {given!r}"
    raise ValueError(msg)


def check_positive(**values: int) -> None:
    """Refuse values that are not integers of at least 1.

    Raises:
        ValueError: Naming the first one.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            kind = type(value).__name__
            got = repr(value) if kind == "int" else f"{value!r}, which is a {kind}"
            msg = f"{name} must be >= 1 and an integer, got {got}"
            raise ValueError(msg)


def check_max_tokens(max_tokens: int | Omit | None) -> None:
    """Refuse a `max_tokens` below 1; None and `OMIT` are fine.

    Raises:
        ValueError: When it is not an integer of at least 1.
    """
    if max_tokens is not None and max_tokens is not OMIT:
        check_int("max_tokens", max_tokens, 1)


def check_temperature(temperature: float | Omit | None) -> None:
    """Refuse a temperature that is no number; None and `OMIT` are fine.

    Raises:
        TypeError: When it is not. The range is the provider's own affair.
    """
    given: object = temperature
    if given is None or given is OMIT:
        return
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        msg = (
            "`temperature` must be a number, None (the provider's default) or `OMIT` "
            f"(not sent), got {shown(given)} ({type(given).__name__})"
        )
        raise TypeError(msg)


def check_run(
    provider: LLMProvider,
    max_cost: TokenUsage | None,
    retry: RetryConfig | None,
    trace: TraceCallback | None,
    temperature: float | Omit | None,
    max_tokens: int | Omit | None,
) -> None:
    """Refuse what no run of any pattern can work with, before any call.

    Raises:
        TypeError: For an argument of the wrong kind; with its name and the remedy.
        ValueError: For a `max_tokens` below 1.
    """
    check_provider(provider)
    check_temperature(temperature)
    check_max_tokens(max_tokens)
    check_budget("max_cost", max_cost)
    check_retry("retry", retry)
    check_trace(trace)


class spending:  # noqa: N801 - used like a function
    """The block in which a pattern does its work.

    Each library error that leaves it carries what `tracker` has counted, and in
    `attempts` how many requests were sent in all. Of an exception group, one failure
    leaves it, the others noted. With `async with`, the deadline of
    the current context bounds everything inside, evaluators and callbacks too.

    Args:
        tracker: The run's counter.
        metadata: Called for facts about the run so far, which go to the metadata of
            the error. They win over what an inner run has left there.
        pattern: The name under which the run is watched: `async with` emits
            `pattern_start` and `pattern_end`, and whatever is told inside belongs to
            it. Empty = it is not.
        trace: Receives these events.

    Raises:
        DeadlineExceededError: By `async with`, when the deadline has passed.
    """

    __slots__ = (
        "_hidden",
        "_limit",
        "_metadata",
        "_pattern",
        "_seconds",
        "_told",
        "_trace",
        "_tracker",
    )

    def __init__(
        self,
        tracker: CostTracker,
        *,
        metadata: Callable[[], Mapping[str, Any]] | None = None,
        pattern: str = "",
        trace: TraceCallback | None = None,
    ) -> None:
        self._tracker = tracker
        self._metadata = metadata
        self._hidden = collecting_lost_cost(None)
        self._limit: asyncio.Timeout | None = None
        self._seconds = 0.0
        self._pattern = pattern
        self._trace = trace
        self._told: PatternTrace | None = None

    def __enter__(self) -> None:
        self._hidden.__enter__()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._hidden.__exit__()
        failure = first_of_group(exc) if isinstance(exc, BaseExceptionGroup) else exc
        if isinstance(failure, ExecutionKitError):
            self._write_on(failure)
        elif failure is not None:
            report_lost_cost(self._tracker.to_usage())
        if failure is not None and failure is not exc:
            raise failure from exc

    async def __aenter__(self) -> None:
        left = remaining_deadline()
        if left is not None:
            self._seconds = left
            if left <= 0:
                msg = "The deadline has passed; no request was sent for this run"
                raise self._write_on(DeadlineExceededError(msg))
            self._limit = get_clock().timeout(left)
            await self._limit.__aenter__()
        self.__enter__()
        if self._pattern:
            self._told = told = watched(self._pattern, self._trace, self._tracker)
            if told is not None:
                try:
                    await told.started()
                except BaseException as exc:
                    await self.__aexit__(type(exc), exc, exc.__traceback__)
                    raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._told is None:
            await self._leave(kind, exc, traceback)
            return
        if exc is None:
            try:
                await self._told.ended(None)
            except BaseException as late:
                await self._leave(type(late), late, late.__traceback__)
                raise
        try:
            await self._leave(kind, exc, traceback)
        except BaseException as error:
            await self._tell_end(self._told, error)
            raise
        if exc is not None:
            await self._tell_end(self._told, exc)

    async def _tell_end(self, told: PatternTrace, failure: BaseException) -> None:
        try:
            await told.ended(failure)
        except BaseException:
            if isinstance(failure, ExecutionKitError):  # with it, the cost is lost
                report_lost_cost(self._tracker.to_usage())
            raise

    async def _leave(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._limit is not None:
            try:
                await self._limit.__aexit__(kind, exc, traceback)
            except TimeoutError as late:
                msg = f"The deadline was reached after {self._seconds:.3f}s"
                error = DeadlineExceededError(msg)
                self.__exit__(type(error), error, None)
                raise error from late
        self.__exit__(kind, exc, traceback)

    def _write_on(self, error: ExecutionKitError) -> ExecutionKitError:
        error.cost = self._tracker.to_usage()
        if self._tracker.call_count > error.attempts:
            error.attempts = self._tracker.call_count
            say_sent(error, error.attempts)
        if self._metadata is not None:
            error.metadata = {**error.metadata, **self._metadata()}
        return error


@contextmanager
def calling_user(what: str, *, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Turn a failure of a user's function into `EvaluatorError`, cause kept.

    Library errors (as copies, see `twin_of`), also those inside an exception group,
    and cancellation pass.

    Args:
        what: What the function is called in the message.
        secrets: Texts that must not appear in the message.
    """
    failure: BaseException
    try:
        yield
    except BaseExceptionGroup as group:
        failure = first_of_group(group, secrets)
        if isinstance(failure, Exception) and not isinstance(
            failure, ExecutionKitError
        ):
            msg = f"The {what} failed: {describe(failure, secrets)}"
            raise EvaluatorError(msg) from group
    except ExecutionKitError as exc:
        failure = twin_of(exc)
    except Exception as exc:
        msg = f"The {what} failed: {describe(exc, secrets)}"
        raise EvaluatorError(msg) from exc
    else:
        return
    # Outside of the handler: so the failure keeps the context that it had.
    raise failure


async def run_checkpoint(
    callback: CheckpointCallback | None,
    index: int,
    state: dict[str, Any],
    *,
    context: str,
) -> None:
    """Call a checkpoint callback; its failure is logged and changes nothing."""
    if callback is None:
        return
    try:
        outcome = callback(index, state)
        if inspect.isawaitable(outcome):
            await outcome
    except Exception as exc:  # noqa: BLE001 - a user's callback must not end the run
        why = describe_exception(exc)
        _log.warning("checkpoint callback of %s failed: %s", context, why)


def raise_unless_tools(provider: object) -> None:
    """Refuse a provider that cannot call tools.

    Raises:
        TypeError: Naming what is missing.
    """
    if getattr(provider, "supports_tools", False) is not True or not callable(
        getattr(provider, "complete", None)
    ):
        msg = (
            f"{type(provider).__name__} is not a ToolCallingProvider: it needs an async "
            "`complete` and `supports_tools = True`"
        )
        raise TypeError(msg)
