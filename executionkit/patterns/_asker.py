"""How one run asks its model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from executionkit.cost import Budget, CostTracker
from executionkit.engine.retry import DEFAULT_RETRY
from executionkit.patterns._call import ModelCall, known_secrets

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse
    from executionkit.engine.retry import RetryConfig
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback
    from executionkit.patterns._journaled import Recorded
    from executionkit.types import TokenUsage

__all__ = ("Asker",)


class Asker:
    """How one run asks its model: everything that it spends is in one tracker.

    Args:
        provider: Answers.
        max_cost: Budget of the run: a `TokenUsage`, or a `CostLimit` (money).
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
        options: Go to the provider with each request.
        journal: Keeps the replies. None = nothing does.
        pattern: The name of the run in it.

    Raises:
        TypeError: When `journal` is none.
        ValueError: When `max_cost` makes no sense.
    """

    __slots__ = (
        "budget",
        "options",
        "provider",
        "record",
        "retry",
        "trace",
        "tracker",
    )

    def __init__(
        self,
        provider: LLMProvider,
        max_cost: TokenUsage | None,
        retry: RetryConfig | None,
        trace: TraceCallback | None,
        options: dict[str, Any],
        journal: Journal | None = None,
        pattern: str = "",
    ) -> None:
        self.provider: LLMProvider = provider
        self.budget: Budget = Budget.from_usage(max_cost)
        self.retry: RetryConfig = retry or DEFAULT_RETRY
        self.trace: TraceCallback | None = trace
        self.options: dict[str, Any] = options
        self.record: Recorded | None = None
        """What of the run is on record; None = nothing."""

        if journal is not None:
            from executionkit.patterns._journaled import recorded  # costs only then

            self.record = recorded(journal, pattern)
        self.tracker: CostTracker = CostTracker()

    def ask(
        self,
        messages: Sequence[dict[str, Any]],
        options: dict[str, Any] | None = None,
        *,
        place: str | None = None,
        keeps: Callable[[Exception], bool] | None = None,
    ) -> Coroutine[Any, Any, LLMResponse]:
        """One checked call, to be awaited at once; see `checked_complete`.

        Args:
            messages: OpenAI's chat form.
            options: For the provider, instead of the run's own.
            place: Its place on record. None = the next one: for calls that come one
                after the other.
            keeps: Whether a failure stands on record, because the pattern goes on. None
                = it does not.
        """
        chosen = self.options if options is None else options
        call = ModelCall(
            self.provider, messages, self.tracker, self.budget, self.trace, chosen
        )
        if self.record is not None:
            place = self.record.next("model") if place is None else place
            return self.record.ask(self, call, messages, chosen, place, keeps)
        return call.run(self.retry)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in errors."""
        return known_secrets(self.provider)

    @property
    def spent(self) -> TokenUsage:
        """What has been spent up to now."""
        return self.tracker.to_usage()

    def facts(self) -> dict[str, Any]:
        """What the metadata of every result say."""
        facts: dict[str, Any] = {"over_budget": self.over_budget}
        if self.tracker.answered_by:
            facts["answered_by"] = dict(self.tracker.answered_by)
        if self.record is not None:
            facts.update(self.record.facts())
        return facts

    @property
    def over_budget(self) -> bool:
        """Whether more tokens were recorded than `max_cost` allows."""
        return self.tracker.over(self.budget)
