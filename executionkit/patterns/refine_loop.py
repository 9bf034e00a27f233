"""Refinement: draft, judge, improve; the best draft wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit.cost import Budget, CostTracker
from executionkit.engine.convergence import ConvergenceDetector
from executionkit.engine.messages import assistant_message, user_message
from executionkit.errors import (
    BudgetExhaustedError,
    DeadlineExceededError,
    EvaluatorError,
    LLMError,
)
from executionkit.patterns._judge import default_judge
from executionkit.patterns.base import (
    TrackedProvider,
    calling_user,
    check_options,
    check_positive,
    checked_complete,
    run_checkpoint,
    spending,
    validate_score,
)
from executionkit.types import CheckpointCallback, Evaluator, PatternResult, TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("refine_loop",)


async def refine_loop(
    provider: LLMProvider,
    prompt: str,
    *,
    evaluator: Evaluator | None = None,
    max_eval_chars: int = 32768,
    target_score: float = 0.9,
    max_iterations: int = 5,
    patience: int = 3,
    delta_threshold: float = 0.01,
    temperature: float | None = 0.7,
    max_tokens: int | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: TraceCallback | None = None,
    on_checkpoint: CheckpointCallback | None = None,
    **options: Any,
) -> PatternResult[str]:
    """Draft an answer, let it be judged, improve it, and return the best draft.

    Args:
        provider: Writes the drafts; the built-in judge asks it too.
        prompt: The task.
        evaluator: Scores a text in [0, 1]; gets a provider whose calls count in this
            run. None = the built-in judge.
        max_eval_chars: Characters of a draft that the built-in judge sees.
        target_score: Stop when a draft reaches it.
        max_iterations: Improvements after the first draft. 0 = one draft, not judged.
        patience: Improvements in a row that may bring (almost) nothing.
        delta_threshold: A gain of the best score up to this counts as nothing.
        temperature: For drafts. None = the provider's default.
        max_tokens: Output tokens per draft. None = the provider's default.
        max_cost: Budget of the run; see `TokenUsage`.
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
        on_checkpoint: Called after each judged draft with its index and state.
        **options: Passed to the provider with each draft.

    Returns:
        The best draft with its score (None when no judge could score it). Metadata:
        `iterations`, `converged` (the target was reached), `stop_reason`
        (`"target_reached"`, `"stalled"`, `"max_iterations"`, `"evaluator_failed"`),
        `score_history`, `truncated_responses`, `evaluator_error`, `over_budget`.

    Raises:
        EvaluatorError: When a custom evaluator raises or scores outside [0, 1].
        BudgetExhaustedError: When the budget has no room for the next call.
        LLMError: When drafting fails for good.
            All of them carry the best draft in `metadata["best_text"]` and its
            score in `metadata["best_score"]`.
    """
    check_options(refine_loop, options)
    check_positive(
        patience=patience,
        max_eval_chars=max_eval_chars,
        max_tokens=1 if max_tokens is None else max_tokens,
    )
    if not 0.0 <= target_score <= 1.0:
        msg = f"target_score must be in [0, 1], got {target_score}"
        raise ValueError(msg)
    if max_iterations < 0:
        msg = f"max_iterations must be >= 0, got {max_iterations}"
        raise ValueError(msg)
    tracker = CostTracker()
    budget = Budget.from_usage(max_cost)
    run = _Refinement(
        provider,
        prompt,
        evaluator,
        max_eval_chars,
        ConvergenceDetector(delta_threshold, patience, target_score),
        tracker,
        budget,
        retry,
        trace,
        on_checkpoint,
        {"temperature": temperature, "max_tokens": max_tokens, **options},
    )
    with spending(tracker, metadata=run.best):
        return await run.loop(target_score, max_iterations)


class _Refinement:
    """The state of one run."""

    def __init__(
        self,
        provider: LLMProvider,
        prompt: str,
        evaluator: Evaluator | None,
        max_eval_chars: int,
        detector: ConvergenceDetector,
        tracker: CostTracker,
        budget: Budget,
        retry: RetryConfig | None,
        trace: TraceCallback | None,
        on_checkpoint: CheckpointCallback | None,
        options: dict[str, Any],
    ) -> None:
        self._provider = provider
        self._prompt = prompt
        self._custom = evaluator is not None
        self._evaluator = evaluator or default_judge(max_eval_chars)
        self._lent = TrackedProvider(provider, tracker, budget, retry, trace)
        self._detector = detector
        self._tracker = tracker
        self._budget = budget
        self._retry = retry
        self._trace = trace
        self._on_checkpoint = on_checkpoint
        self._options = options
        self._best = ""
        self._best_score: float | None = None
        self._drafts = 0
        self._truncated = 0
        self._history: list[float] = []
        self._error: str | None = None

    def best(self) -> dict[str, Any]:
        """What must survive an error."""
        if not self._drafts:
            return {}
        return {
            "best_text": self._best,
            "best_score": self._best_score,
            "score_history": tuple(self._history),
        }

    async def loop(self, target: float, max_iterations: int) -> PatternResult[str]:
        self._best = await self._draft([user_message(self._prompt)])
        if max_iterations == 0:
            return self._result("max_iterations", 0)
        if not await self._judge(self._best, 0):
            return self._result("evaluator_failed", 0)
        for index in range(1, max_iterations + 1):
            stop = self._should_stop(target)
            if stop is not None:
                return self._result(stop, index - 1)
            text = await self._draft(self._improve())
            if not await self._judge(text, index):
                return self._result("evaluator_failed", index)
        reached = (self._best_score or 0.0) >= target
        return self._result(
            "target_reached" if reached else "max_iterations", max_iterations
        )

    def _should_stop(self, target: float) -> str | None:
        # The detector watches the best score: a worse draft is no progress, so an
        # answer that swings below the best one does not run to the limit.
        best = self._best_score or 0.0
        if not self._detector.should_stop(best):
            return None
        return "target_reached" if best >= target else "stalled"

    def _improve(self) -> list[dict[str, Any]]:
        instruction = (
            f"That answer was scored {self._best_score:.2f} out of 1.00. "
            "Write a better one. Answer with the improved text only."
        )
        return [
            user_message(self._prompt),
            assistant_message(self._best),
            user_message(instruction),
        ]

    async def _draft(self, messages: list[dict[str, Any]]) -> str:
        response = await checked_complete(
            self._provider,
            messages,
            self._tracker,
            self._budget,
            self._retry,
            self._trace,
            **self._options,
        )
        self._drafts += 1
        self._truncated += response.was_truncated
        return response.content

    async def _judge(self, text: str, index: int) -> bool:
        """Score a draft and keep it if it is the best; False when no score came."""
        try:
            score = await self._score(text)
        except (BudgetExhaustedError, DeadlineExceededError):
            raise
        except (LLMError, EvaluatorError) as exc:
            if self._custom and isinstance(exc, EvaluatorError):
                raise
            self._error = f"{type(exc).__name__}: {exc}"
            return False
        self._history.append(score)
        if self._best_score is None or score > self._best_score:
            self._best, self._best_score = text, score
        if self._on_checkpoint is not None:
            await self._checkpoint(index, text, score)
        return True

    async def _score(self, text: str) -> float:
        with calling_user("evaluator"):
            return validate_score(await self._evaluator(text, self._lent))

    async def _checkpoint(self, index: int, text: str, score: float) -> None:
        usage = self._tracker.to_usage()
        state = {
            "iteration": index,
            "current_text": text,
            "current_score": score,
            "cost": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "llm_calls": usage.llm_calls,
            },
        }
        await run_checkpoint(self._on_checkpoint, index, state, context="refine_loop")

    def _result(self, stop_reason: str, iterations: int) -> PatternResult[str]:
        facts: dict[str, Any] = {
            "iterations": iterations,
            "converged": stop_reason == "target_reached",
            "stop_reason": stop_reason,
            "score_history": list(self._history),
            "truncated_responses": self._truncated,
            "over_budget": self._tracker.over(self._budget),
        }
        if self._error is not None:
            facts["evaluator_error"] = self._error
        return PatternResult(
            self._best, self._best_score, self._tracker.to_usage(), facts
        )
