"""Consensus: ask several times, let the answers vote."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit.cost import Budget, CostTracker
from executionkit.engine.messages import user_message
from executionkit.engine.parallel import map_bounded
from executionkit.engine.voting import Ballot, VoteTally
from executionkit.errors import ConsensusFailedError
from executionkit.patterns.base import (
    calling_user,
    check_options,
    check_positive,
    checked_complete,
    spending,
)
from executionkit.types import PatternResult, TokenUsage, VotingStrategy

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse
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
    temperature: float | None = 0.9,
    max_tokens: int | None = DEFAULT_MAX_TOKENS,
    max_concurrency: int = 5,
    retry: RetryConfig | None = None,
    max_cost: TokenUsage | None = None,
    trace: TraceCallback | None = None,
    **options: Any,
) -> PatternResult[str]:
    """Ask `num_samples` times at once and return the answer that wins the vote.

    An empty answer, and one cut off at the token limit, does not vote.

    Args:
        provider: Answers the prompt.
        prompt: The question.
        num_samples: How often it is asked.
        strategy: `"majority"` (ties go to the answer seen first) or `"unanimous"`.
        normalizer: Maps an answer to the form that is compared; see
            `engine.voting` for ready ones. None = Unicode form and white space only.
        early_stop: Stop as soon as the winner can no longer be caught (or agreement
            is broken); calls that are saved are not made, or cancelled.
        temperature: Sampling temperature. None = the provider's default.
        max_tokens: Output tokens per sample. None = the provider's default.
        max_concurrency: Samples in flight at once.
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        max_cost: Budget of the run; see `TokenUsage`.
        trace: Receives trace events.
        **options: Passed to the provider (`seed`, `stop`, ...).

    Returns:
        The winner as the model wrote it; the score is the share of votes it got.
        Metadata: `agreement_ratio`, `unique_responses`, `tie_count`, `votes`,
        `empty_samples`, `truncated_samples`, `samples_used`, `samples_saved`,
        `over_budget`.

    Raises:
        ConsensusFailedError: When no sample can vote, or unanimity is broken.
        BudgetExhaustedError: When the budget has no room for a sample.
        LLMError: When a sample fails for good; the other ones are cancelled.
    """
    check_options(consensus, options)
    check_positive(
        num_samples=num_samples,
        max_concurrency=max_concurrency,
        max_tokens=1 if max_tokens is None else max_tokens,
    )
    chosen = VotingStrategy(strategy)
    tracker = CostTracker()
    budget = Budget.from_usage(max_cost)
    settings = {"temperature": temperature, "max_tokens": max_tokens, **options}

    async def sample(_number: int) -> LLMResponse:
        return await checked_complete(
            provider, [user_message(prompt)], tracker, budget, retry, trace, **settings
        )

    count = _Count(num_samples, Ballot(chosen, normalizer=normalizer))
    with spending(tracker, metadata=count.facts):
        samples = map_bounded(sample, range(num_samples), max_concurrency)
        async with aclosing(samples):
            async for _, outcome in samples:
                if isinstance(outcome, BaseException):
                    raise outcome
                count.add(outcome)
                if early_stop and count.decided():
                    break
        tally = count.result()
        facts = {
            "agreement_ratio": tally.agreement_ratio,
            "unique_responses": tally.unique_responses,
            "tie_count": tally.tie_count,
            **count.facts(),
            "over_budget": tracker.over(budget),
        }
    return PatternResult(tally.winner, tally.agreement_ratio, tracker.to_usage(), facts)


class _Count:
    """The vote as it comes in."""

    def __init__(self, asked: int, ballot: Ballot) -> None:
        self._asked = asked
        self._ballot = ballot
        self._used = self._empty = self._truncated = 0

    def add(self, response: LLMResponse) -> None:
        self._used += 1
        if response.was_truncated:
            self._truncated += 1
        elif not response.content.strip():
            self._empty += 1
        else:
            with calling_user("normalizer"):
                self._ballot.add(response.content)

    def decided(self) -> bool:
        return self._ballot.decided(self._asked - self._used)

    def result(self) -> VoteTally:
        if not self._ballot.votes:
            msg = (
                f"None of {self._used} samples can vote: {self._empty} empty, "
                f"{self._truncated} cut off at the token limit (`max_tokens`)"
            )
            raise ConsensusFailedError(msg)
        return self._ballot.result()

    def facts(self) -> dict[str, Any]:
        return {
            "votes": self._ballot.votes,
            "empty_samples": self._empty,
            "truncated_samples": self._truncated,
            "samples_used": self._used,
            "samples_saved": self._asked - self._used,
        }
