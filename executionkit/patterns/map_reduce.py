"""Map-reduce: one model call per input, one call over all the answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterable, Collection, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal

from executionkit._arguments import check_prompt
from executionkit._constants import DEFAULT_MAX_CONCURRENCY, DEFAULT_MAX_TOKENS
from executionkit.engine.messages import user_message
from executionkit.engine.parallel import map_bounded
from executionkit.errors import (
    BudgetExhaustedError,
    DeadlineExceededError,
    JournalError,
    PatternError,
    PermanentError,
    RequestTooLargeError,
)
from executionkit.patterns._failures import Siblings, describe
from executionkit.patterns.base import (
    Asker,
    check_options,
    check_positive,
    check_run,
    spending,
)
from executionkit.types import PatternResult, TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse, Omit
    from executionkit.engine.retry import RetryConfig
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback

__all__ = ("map_reduce",)

_SEPARATOR: Final = "\n\n---\n\n"
_ITEM: Final = "{item}"
_OUTPUTS: Final = "{mapped_outputs}"
_MAX_POSITIONS: Final = 100
# Not authenticated, not paid, no such model: no input will fare better.
_HOPELESS: Final = frozenset({401, 402, 404})


async def map_reduce(
    provider: LLMProvider,
    inputs: Iterable[str] | AsyncIterable[str],
    *,
    map_prompt_template: str,
    reduce_prompt_template: str,
    on_error: Literal["raise", "collect"] = "raise",
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
    temperature: float | Omit | None = 0.3,
    max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: TraceCallback | None = None,
    stream: bool = False,
    journal: Journal | None = None,
    **options: Any,
) -> PatternResult[str]:
    """Map a prompt over many inputs, then reduce the answers with one call.

    Inputs are taken from the iterable only as calls are made, so it may be long or
    slow; the answers are kept, since the reduce prompt holds them all.

    With `on_error="collect"`, an input whose call fails, or is cancelled from inside,
    is noted, and the reduce prompt is told. What would meet every other input as well
    ends the run all the same: an exhausted budget, the deadline, HTTP 401, 402 and 404.

    Args:
        provider: Answers.
        inputs: The inputs; any iterable or async iterable of texts but a single text.
        map_prompt_template: Prompt for one input; `{item}` is replaced by it.
        reduce_prompt_template: Prompt for the end; `{mapped_outputs}` is replaced by
            the answers in the order of the inputs, separated by lines of `---`.
        on_error: `"raise"` = the first input that fails ends the run;
            `"collect"` = it goes on with what succeeded.
        max_concurrency: Calls in flight at once.
        temperature: Sampling temperature. None = the provider's default, `OMIT` = not
            sent.
        max_tokens: Output tokens per call. None and `OMIT` as above.
        max_cost: Budget of the run: a `TokenUsage`, or a `CostLimit` (money).
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
        stream: Not supported; must be False.
        journal: Keeps the answers, so that a run that broke off pays for none of them
            again; inputs have their places by position.
        **options: Passed to the provider with each call.

    Returns:
        The reduced answer. Metadata: `map_count` (inputs), `reduce_calls` (1),
        `total_calls` (requests, retries included), `failed` (position and error of
        each failed input), `truncated_responses`, `empty_responses`, `over_budget`;
        with a journal `replayed` (calls answered by it) and `replayed_cost` (a part of
        the cost).

    Raises:
        ValueError: For an argument out of range, and a template without its
            placeholder; before any call.
        TypeError: When `inputs` is a single text, or a collection with something else
            than texts, for another argument of the wrong kind, and for an option that
            is a parameter of something else, or looks like a misspelt one.
        PatternError: When an iterator gives something else than a text, or every input
            failed.
        BudgetExhaustedError: When the budget has no room for the next call.
        DeadlineExceededError: When the deadline of the current context has passed.
        LLMError: When a call fails for good.
            All library errors hold the answers so far, by position, in
            `metadata["mapped_outputs"]`, and the failures in `metadata["failed"]`.
            When it was an input that ended the run, its position is in
            `metadata["failed_index"]`, and its failure among the others.
    """
    _check(inputs, map_prompt_template, reduce_prompt_template, on_error, stream)
    check_options(map_reduce, options)
    check_positive(max_concurrency=max_concurrency)
    check_run(provider, max_cost, retry, trace, temperature, max_tokens)
    settings = {"temperature": temperature, "max_tokens": max_tokens, **options}
    asker = Asker(provider, max_cost, retry, trace, settings, journal, "map_reduce")
    phase = _MapPhase(on_error == "collect", asker.secrets)
    siblings = Siblings(asker.secrets, phase.is_fatal)
    positions = itertools.count()

    async def one(item: str) -> LLMResponse:
        place = f"map:{next(positions)}"  # calls begin in the order of the inputs
        siblings.check()
        try:
            prompt = map_prompt_template.replace(_ITEM, _text(item))
            return await asker.ask(
                [user_message(prompt)], place=place, keeps=phase.goes_on
            )
        except Exception as exc:
            siblings.add(exc)
            raise

    async with spending(
        asker.tracker, metadata=phase.partial, pattern="map_reduce", trace=trace
    ):
        with siblings.noted():
            answers = map_bounded(one, inputs, max_concurrency)
            async with aclosing(answers):
                async for index, outcome in answers:
                    phase.add(index, outcome)
        prompt = reduce_prompt_template.replace(_OUTPUTS, phase.joined())
        final = await asker.ask([user_message(prompt)], place="reduce")
    facts = {
        "map_count": phase.count,
        "reduce_calls": 1,
        "total_calls": asker.tracker.call_count,
        "failed": phase.failures(),
        "truncated_responses": phase.truncated + final.was_truncated,
        "empty_responses": phase.empty + (not final.content.strip()),
        **asker.facts(),
    }
    return PatternResult(final.content, None, asker.spent, facts)


def _check(
    inputs: object,
    map_template: str,
    reduce_template: str,
    on_error: str,
    stream: bool,  # noqa: FBT001 - checks the caller's own flag
) -> None:
    if stream:
        msg = "stream=True is not supported by map_reduce()"
        raise ValueError(msg)
    _check_inputs(inputs)
    if on_error not in {"raise", "collect"}:
        msg = f'on_error must be "raise" or "collect", got {on_error!r}'
        raise ValueError(msg)
    for name, template, placeholder in (
        ("map_prompt_template", map_template, _ITEM),
        ("reduce_prompt_template", reduce_template, _OUTPUTS),
    ):
        check_prompt(name, template)
        if placeholder not in template:
            msg = f"{name} has no {placeholder} placeholder"
            raise ValueError(msg)


def _check_inputs(inputs: object) -> None:
    if isinstance(inputs, (str, bytes, bytearray)):
        msg = (
            "`inputs` is a single text, which would be split into characters; "
            "give a list of texts"
        )
        raise TypeError(msg)
    if not isinstance(inputs, (Iterable, AsyncIterable)):
        msg = f"`inputs` must be an iterable of texts, got {type(inputs).__name__}"
        raise TypeError(msg)
    if isinstance(inputs, Collection):
        for index, item in enumerate(inputs):
            if not isinstance(item, str):
                msg = f"inputs[{index}] must be a text, got {type(item).__name__}"
                raise TypeError(msg)


def _text(item: object) -> str:
    if isinstance(item, str):
        return item
    msg = f"each of `inputs` must be a text, got {type(item).__name__}"
    raise PatternError(msg)


def _is_hopeless(failure: BaseException) -> bool:
    """Whether every other input would fail in the same way."""
    if isinstance(failure, PermanentError):
        return failure.metadata.get("status") in _HOPELESS
    if isinstance(failure, RequestTooLargeError):  # another input may be shorter
        return False
    return isinstance(
        failure, (BudgetExhaustedError, DeadlineExceededError, JournalError)
    )


class _MapPhase:
    """What the map calls came to."""

    def __init__(self, collect: bool, secrets: tuple[str, ...]) -> None:  # noqa: FBT001
        self._collect = collect
        self._secrets = secrets
        self._outputs: dict[int, str] = {}
        self._failed: dict[int, str] = {}
        self._ended_by: int | None = None
        self.truncated = 0
        self.empty = 0

    @property
    def count(self) -> int:
        return len(self._outputs) + len(self._failed)

    def is_fatal(self, failure: BaseException) -> bool:
        """Whether a failure of one input ends the run."""
        # A cancellation is none of the run: that would not come as an outcome.
        known = isinstance(failure, (Exception, asyncio.CancelledError))
        return not self._collect or not known or _is_hopeless(failure)

    def goes_on(self, failure: Exception) -> bool:
        """Whether the run goes on after a failure of one input."""
        return not self.is_fatal(failure)

    def add(self, index: int, outcome: LLMResponse | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._failed[index] = describe(outcome, self._secrets)
            if self.is_fatal(outcome):
                self._ended_by = index
                raise outcome
            return
        self.truncated += outcome.was_truncated
        self.empty += not outcome.content.strip()
        self._outputs[index] = outcome.content

    def joined(self) -> str:
        if self._failed and not self._outputs:
            position, why = min(self._failed.items())
            msg = f"Every input failed; the first ({position}): {why}"
            raise PatternError(msg)
        texts = [self._outputs[index] for index in sorted(self._outputs)]
        if self._failed:
            texts.append(self._gap())
        return _SEPARATOR.join(texts)

    def _gap(self) -> str:
        missing = sorted(self._failed)
        shown = ", ".join(map(str, missing[:_MAX_POSITIONS]))
        if len(missing) > _MAX_POSITIONS:
            shown += f" and {len(missing) - _MAX_POSITIONS} more"
        return f"[No answer for the inputs at these positions, from 0: {shown}]"

    def failures(self) -> list[dict[str, Any]]:
        return [
            {"index": index, "error": self._failed[index]}
            for index in sorted(self._failed)
        ]

    def partial(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "mapped_outputs": dict(self._outputs),
            "failed": self.failures(),
        }
        if self._ended_by is not None:
            facts["failed_index"] = self._ended_by
        return facts
