"""What every pattern stands on: one checked way to call a model.

`checked_complete` and `checked_stream` are the only places where a pattern reaches
its provider. They keep the budget, retry, obey the deadline of the current context,
and report paired trace events. A pattern of your own is an async function that calls
them and returns a `PatternResult`; wrap its body in `spending(tracker)` so that each
error that leaves it carries what was spent.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from executionkit.cost import (
    Budget,
    CostTracker,
    collecting_lost_cost,
    report_lost_cost,
)
from executionkit.errors import EvaluatorError, ExecutionKitError
from executionkit.patterns._call import checked_complete
from executionkit.patterns._stream import checked_stream

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback
    from executionkit.types import CheckpointCallback

__all__ = (
    "TrackedProvider",
    "calling_user",
    "check_options",
    "check_positive",
    "checked_complete",
    "checked_stream",
    "first_of_group",
    "raise_unless_tools",
    "run_checkpoint",
    "spending",
    "validate_score",
)

_log = logging.getLogger("executionkit")
_RESERVED = frozenset({"messages", "stream", "stream_options", "usage_sink"})


def validate_score(score: float) -> float:
    """Return `score` when it is a number in [0, 1].

    Raises:
        ValueError: When it is not.
    """
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        msg = f"Invalid evaluator score: expected a number in [0, 1], got {score!r}"
        raise ValueError(msg)
    if not 0.0 <= score <= 1.0:  # also False for NaN
        msg = f"Invalid evaluator score: expected a number in [0, 1], got {score}"
        raise ValueError(msg)
    return float(score)


def check_positive(**values: int) -> None:
    """Refuse values that are not integers of at least 1.

    Raises:
        ValueError: Naming the first one.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"{name} must be >= 1, got {value!r}"
            raise ValueError(msg)


@functools.lru_cache(maxsize=64)
def _own_names(pattern: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(pattern).parameters.values()
    return tuple(item.name for item in parameters if item.kind in kinds)


def check_options(pattern: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse a provider option that looks like a misspelt parameter of `pattern`.

    Options that a pattern does not know go to the provider as they are
    (`response_format`, `tool_choice`, `seed`, `stop`, ...). A slip such as
    `max_round=3` must not end there.

    Raises:
        TypeError: Naming the option and the parameter that was probably meant.
    """
    for name in options:
        if name in _RESERVED:
            msg = f"`{name}` is set by the pattern itself and cannot be passed"
            raise TypeError(msg)
        close = difflib.get_close_matches(name, _own_names(pattern), n=1, cutoff=0.84)
        if close:
            msg = (
                f"{pattern.__name__}() got an unexpected keyword argument "
                f"{name!r}; did you mean {close[0]!r}?"
            )
            raise TypeError(msg)


@contextmanager
def spending(
    tracker: CostTracker, *, metadata: Callable[[], Mapping[str, Any]] | None = None
) -> Iterator[None]:
    """Attach what `tracker` has counted to each library error that leaves the block.

    Args:
        tracker: The run's counter.
        metadata: Called for facts about the run so far, added to the error's
            metadata under keys that it does not have yet.
    """
    try:
        with collecting_lost_cost(None):
            yield
    except ExecutionKitError as exc:
        exc.cost = tracker.to_usage()
        if metadata is not None:
            exc.metadata = {**metadata(), **exc.metadata}
        raise
    except BaseException:
        report_lost_cost(tracker.to_usage())
        raise


@contextmanager
def calling_user(what: str) -> Iterator[None]:
    """Turn a failure of a user's function into `EvaluatorError`, cause kept.

    Library errors and cancellation pass as they are.
    """
    try:
        yield
    except ExecutionKitError:
        raise
    except Exception as exc:
        msg = f"The {what} failed: {type(exc).__name__}: {exc}"
        raise EvaluatorError(msg) from exc


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
    except Exception:  # noqa: BLE001 - a user's callback must not end the run
        _log.warning("checkpoint callback of %s failed", context, exc_info=True)


class TrackedProvider:
    """A provider whose calls count in the run that lent it out.

    Evaluators get one, so that what they spend is recorded, limited and traced like
    the pattern's own calls.
    """

    def __init__(
        self,
        provider: LLMProvider,
        tracker: CostTracker,
        budget: Budget,
        retry: RetryConfig | None,
        trace: TraceCallback | None,
    ) -> None:
        self._provider = provider
        self._tracker = tracker
        self._budget = budget
        self._retry = retry
        self._trace = trace

    @property
    def supports_tools(self) -> bool:
        return getattr(self._provider, "supports_tools", False) is True

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        if tools is not None:
            kwargs["tools"] = tools
        return await checked_complete(
            self._provider,
            messages,
            self._tracker,
            self._budget,
            self._retry,
            self._trace,
            temperature=temperature,
            max_tokens=max_tokens,
            **kwargs,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)


def first_of_group(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One error for a group: the first library error, the rest as notes on it."""
    flat = list(_flatten(group))
    known = [exc for exc in flat if isinstance(exc, ExecutionKitError)]
    chosen = known[0] if known else flat[0]
    for other in flat:
        if other is not chosen:
            chosen.add_note(f"also: {type(other).__name__}: {other}")
    return chosen


def _flatten(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _flatten(exc)
        else:
            yield exc


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
