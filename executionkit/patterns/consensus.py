"""Consensus: ask several times, let the answers vote."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executionkit._arguments import check_callable, check_prompt, shown
from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit.engine.messages import user_message
from executionkit.engine.parallel import map_bounded
from executionkit.engine.voting import Ballot, VoteTally, normalize_response
from executionkit.errors import ConsensusFailedError
from executionkit.patterns._failures import Siblings
from executionkit.patterns.base import (
    Asker,
    calling_user,
    check_options,
    check_positive,
    check_run,
    spending,
)
from executionkit.types import PatternResult, TokenUsage, VotingStrategy

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse, Omit
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("consensus",)


async def consensus(
    provider: LLMProvider,
    prompt: str,
    *,
    num_samples: int = 5,
    strategy: VotingStrategy | str = VotingStrategy.MAJORITY,
    normalizer: Callable[[str], str] | None = None,
    early_stop: bool = False,
    temperature: float | Omit | None = 0.9,
    max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
    max_concurrency: int = 5,
    retry: RetryConfig | None = None,
    max_cost: TokenUsage | None = None,
    trace: TraceCallback | None = None,
    **options: Any,
) -> PatternResult[str]:
    """Ask `num_samples` times at once and return the answer that wins the vote.

    An empty answer, and one cut off at the token limit, does not vote. Which answer
    wins depends on the answers alone, not on the order in which they arrive.

    Args:
        provider: Answers the prompt.
        prompt: The question.
        num_samples: How often it is asked.
        strategy: `"majority"` (a tie goes to the answer of the earliest sample) or
            `"unanimous"`.
        normalizer: Maps an answer to the form that is compared; see
            `engine.voting` for ready ones. None = Unicode form and white space only.
        early_stop: Stop as soon as the winner can no longer be caught (or agreement
            is broken); calls that are saved are not made, or cancelled.
        temperature: Sampling temperature. None = the provider's default, `OMIT` = not
            sent.
        max_tokens: Output tokens per sample. None and `OMIT` as above.
        max_concurrency: Samples in flight at once.
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        max_cost: Budget of the run: a `TokenUsage`, or a `CostLimit` (money).
        trace: Receives trace events.
        **options: Passed to the provider (`seed`, `stop`, ...).

    Returns:
        The winner as the model wrote it; the score is the share of votes it got.
        Metadata: `agreement_ratio`, `unique_responses`, `tie_count`, `votes`,
        `empty_samples`, `truncated_samples`, `samples_used`, `samples_saved`,
        `answers` (the texts that came, in the order of the samples, those that do not
        vote among them), `over_budget`.

    Raises:
        ConsensusFailedError: When no sample can vote, or unanimity is broken.
        BudgetExhaustedError: When the budget has no room for a sample.
        DeadlineExceededError: When the deadline of the current context has passed.
        EvaluatorError: When the normalizer raises, or gives something else than text.
        LLMError: When a sample fails for good; the other ones are cancelled.
            All library errors hold the texts so far in `metadata["answers"]`.
        ValueError: For an argument out of range.
        TypeError: For an argument of the wrong kind, and for an option that is a
            parameter of something else, or looks like a misspelt one.
    """
    check_options(consensus, options)
    check_positive(num_samples=num_samples, max_concurrency=max_concurrency)
    check_run(provider, max_cost, retry, trace, temperature, max_tokens)
    check_prompt("prompt", prompt)
    _check_normalizer(normalizer)
    chosen = _strategy(strategy)
    settings = {"temperature": temperature, "max_tokens": max_tokens, **options}
    asker = Asker(provider, max_cost, retry, trace, settings)
    count = _Count(num_samples, chosen, normalizer, asker.secrets)
    siblings = Siblings(asker.secrets)

    async def sample(number: int) -> None:
        siblings.check()
        if early_stop and count.decided():
            return
        try:
            # Counted at once: the next sample begins only if it is still needed.
            count.add(number, await asker.ask([user_message(prompt)]))
        except Exception as exc:
            siblings.add(exc)
            raise

    async with spending(
        asker.tracker, metadata=count.facts, pattern="consensus", trace=trace
    ):
        with siblings.noted():
            samples = map_bounded(sample, range(num_samples), max_concurrency)
            async with aclosing(samples):
                async for _, outcome in samples:
                    if outcome is not None:
                        raise outcome
                    if early_stop and count.decided():
                        break
        tally = count.result()
    facts = {
        "agreement_ratio": tally.agreement_ratio,
        "unique_responses": tally.unique_responses,
        "tie_count": tally.tie_count,
        **count.facts(),
        **asker.facts(),
    }
    return PatternResult(tally.winner, tally.agreement_ratio, asker.spent, facts)


def _check_normalizer(normalizer: object) -> None:
    if normalizer is None:
        return
    hint = "pass a function from a text to a text"
    check_callable("normalizer", normalizer, hint=hint)
    if inspect.iscoroutinefunction(normalizer):
        msg = (
            f"`normalizer` must be a plain function, got {shown(normalizer)}, which "
            f"is async; {hint}"
        )
        raise TypeError(msg)


def _strategy(strategy: VotingStrategy | str) -> VotingStrategy:
    try:
        return VotingStrategy(strategy)
    except ValueError:
        choices = " or ".join([repr(item.value) for item in VotingStrategy])
        msg = f"{shown(strategy)} is not a valid VotingStrategy; choose {choices}"
        raise ValueError(msg) from None


class _Count:
    """The samples as they come in, and the vote over them."""

    def __init__(
        self,
        asked: int,
        strategy: VotingStrategy,
        normalizer: Callable[[str], str] | None,
        secrets: tuple[str, ...],
    ) -> None:
        self._asked = asked
        self._strategy = strategy
        self._normalizer = normalizer
        self._secrets = secrets
        self._early = Ballot(strategy, normalizer=_as_it_is)
        # Position of the sample -> (what is compared, what was written).
        self._votes: dict[int, tuple[str, str]] = {}
        self._kinds: dict[str, str] = {}
        self._answers: dict[int, str] = {}
        self._used = self._empty = self._truncated = 0

    def add(self, index: int, response: LLMResponse) -> None:
        self._used += 1
        content = self._answers[index] = response.content
        if response.was_truncated:
            self._truncated += 1
        elif not content or content.isspace():
            self._empty += 1
        else:
            kind = self._kind(content)
            self._early.add(kind)
            self._votes[index] = kind, content

    def _kind(self, content: str) -> str:
        if self._normalizer is not None:
            with calling_user("normalizer", secrets=self._secrets):
                return _checked(self._normalizer(content))
        if content not in self._kinds:
            self._kinds[content] = normalize_response(content)
        return self._kinds[content]

    def decided(self) -> bool:
        # One vote more than there are: a tie that could still come counts as open,
        # because the order of the samples, not that of their arrival, would settle it.
        return self._early.decided(self._asked - self._used + 1)

    def result(self) -> VoteTally:
        """The outcome; a tie goes to the answer of the earliest sample."""
        if not self._votes:
            msg = (
                f"None of {self._used} samples can vote: {self._empty} empty, "
                f"{self._truncated} cut off at the token limit (`max_tokens`)"
            )
            raise ConsensusFailedError(msg)
        ballot = Ballot(self._strategy, normalizer=_as_it_is)
        written: dict[str, str] = {}
        for _, (kind, content) in sorted(self._votes.items()):
            ballot.add(kind)
            written.setdefault(kind, content)
        tally = ballot.result()
        return replace(tally, winner=written[tally.winner])

    def facts(self) -> dict[str, Any]:
        return {
            "votes": len(self._votes),
            "empty_samples": self._empty,
            "truncated_samples": self._truncated,
            "samples_used": self._used,
            "samples_saved": self._asked - self._used,
            "answers": tuple([text for _, text in sorted(self._answers.items())]),
        }


def _checked(kind: object) -> str:
    """What a normalizer gave, when it is text: a coroutine equals no other vote."""
    if isinstance(kind, str):
        return kind
    if inspect.iscoroutine(kind):
        kind.close()  # nobody will await it
    msg = (
        "a normalizer must be a plain function that returns a text; it returned a "
        f"{type(kind).__name__}"
    )
    raise TypeError(msg)


def _as_it_is(kind: str) -> str:
    return kind
