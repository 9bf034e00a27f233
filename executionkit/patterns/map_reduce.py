"""Map-reduce: one model call per input, one call over all the answers."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from executionkit._constants import DEFAULT_MAX_CONCURRENCY, DEFAULT_MAX_TOKENS
from executionkit.cost import Budget, CostTracker
from executionkit.engine.messages import user_message
from executionkit.engine.parallel import map_bounded
from executionkit.errors import BudgetExhaustedError, LLMError, PatternError
from executionkit.patterns.base import (
    check_options,
    check_positive,
    checked_complete,
    spending,
)
from executionkit.types import PatternResult, TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("map_reduce",)

_SEPARATOR = "\n\n---\n\n"
_ITEM = "{item}"
_OUTPUTS = "{mapped_outputs}"


async def map_reduce(
    provider: LLMProvider,
    inputs: Iterable[str] | AsyncIterable[str],
    *,
    map_prompt_template: str,
    reduce_prompt_template: str,
    on_error: Literal["raise", "collect"] = "raise",
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
    temperature: float | None = 0.3,
    max_tokens: int | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: TraceCallback | None = None,
    stream: bool = False,
    **options: Any,
) -> PatternResult[str]:
    """Map a prompt over many inputs, then reduce the answers with one call.

    Inputs are taken from the iterable only as calls are made, so it may be long or
    slow; the answers are kept, since the reduce prompt holds them all.

    Args:
        provider: Answers.
        inputs: The inputs; any iterable or async iterable of texts but a single text.
        map_prompt_template: Prompt for one input; `{item}` is replaced by it.
        reduce_prompt_template: Prompt for the end; `{mapped_outputs}` is replaced by
            the answers in the order of the inputs, separated by lines of `---`.
        on_error: `"raise"` = the first input that fails ends the run;
            `"collect"` = failed inputs are noted, and the reduce prompt is told.
        max_concurrency: Calls in flight at once.
        temperature: Sampling temperature. None = the provider's default.
        max_tokens: Output tokens per call. None = the provider's default.
        max_cost: Budget of the run; see `TokenUsage`.
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
        stream: Not supported; must be False.
        **options: Passed to the provider with each call.

    Returns:
        The reduced answer. Metadata: `map_count` (inputs), `reduce_calls` (1),
        `total_calls` (requests, retries included), `failed` (position and error of
        each failed input), `truncated_responses`, `over_budget`.

    Raises:
        ValueError: For a template without its placeholder, before any call.
        TypeError: When `inputs` is a single text.
        BudgetExhaustedError: When the budget has no room for the next call.
        LLMError: When a call fails for good; the answers so far are in
            `metadata["mapped_outputs"]` by position.
    """
    _check(inputs, map_prompt_template, reduce_prompt_template, on_error, stream)
    check_options(map_reduce, options)
    check_positive(
        max_concurrency=max_concurrency,
        max_tokens=1 if max_tokens is None else max_tokens,
    )
    tracker = CostTracker()
    budget = Budget.from_usage(max_cost)
    settings = {"temperature": temperature, "max_tokens": max_tokens, **options}
    phase = _MapPhase(on_error == "collect")

    async def ask(text: str) -> LLMResponse:
        return await checked_complete(
            provider, [user_message(text)], tracker, budget, retry, trace, **settings
        )

    async def one(item: str) -> LLMResponse:
        return await ask(map_prompt_template.replace(_ITEM, _text(item)))

    with spending(tracker, metadata=phase.partial):
        answers = map_bounded(one, inputs, max_concurrency)
        async with aclosing(answers):
            async for index, outcome in answers:
                phase.add(index, outcome)
        final = await ask(reduce_prompt_template.replace(_OUTPUTS, phase.joined()))
    facts = {
        "map_count": phase.count,
        "reduce_calls": 1,
        "total_calls": tracker.call_count,
        "failed": phase.failures(),
        "truncated_responses": phase.truncated + final.was_truncated,
        "over_budget": tracker.over(budget),
    }
    return PatternResult(final.content, None, tracker.to_usage(), facts)


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
    if isinstance(inputs, (str, bytes, bytearray)):
        msg = (
            "`inputs` is a single text, which would be split into characters; "
            "give a list of texts"
        )
        raise TypeError(msg)
    if on_error not in {"raise", "collect"}:
        msg = f'on_error must be "raise" or "collect", got {on_error!r}'
        raise ValueError(msg)
    for name, template, placeholder in (
        ("map_prompt_template", map_template, _ITEM),
        ("reduce_prompt_template", reduce_template, _OUTPUTS),
    ):
        if placeholder not in template:
            msg = f"{name} has no {placeholder} placeholder"
            raise ValueError(msg)


def _text(item: object) -> str:
    if isinstance(item, str):
        return item
    msg = f"each of `inputs` must be a text, got {type(item).__name__}"
    raise TypeError(msg)


class _MapPhase:
    """What the map calls came to."""

    def __init__(self, collect: bool) -> None:  # noqa: FBT001 - one fact
        self._collect = collect
        self._outputs: dict[int, str] = {}
        self._failed: dict[int, str] = {}
        self.truncated = 0

    @property
    def count(self) -> int:
        return len(self._outputs) + len(self._failed)

    def add(self, index: int, outcome: LLMResponse | BaseException) -> None:
        if isinstance(outcome, BaseException):
            keep = self._collect and isinstance(outcome, (LLMError, PatternError))
            # An exhausted budget fails every later input too: that ends the run.
            if not keep or isinstance(outcome, BudgetExhaustedError):
                raise outcome
            self._failed[index] = f"{type(outcome).__name__}: {outcome}"
            return
        self.truncated += outcome.was_truncated
        self._outputs[index] = outcome.content

    def joined(self) -> str:
        if self._failed and not self._outputs:
            position, why = min(self._failed.items())
            msg = f"Every input failed; the first ({position}): {why}"
            raise PatternError(msg)
        texts = [self._outputs[index] for index in sorted(self._outputs)]
        if self._failed:
            missing = ", ".join(str(index) for index in sorted(self._failed))
            texts.append(f"[No answer for the inputs at these positions: {missing}]")
        return _SEPARATOR.join(texts)

    def failures(self) -> list[dict[str, Any]]:
        return [
            {"index": index, "error": self._failed[index]}
            for index in sorted(self._failed)
        ]

    def partial(self) -> dict[str, Any]:
        return {"mapped_outputs": dict(self._outputs), "failed": self.failures()}
