"""Refinement: draft, judge, improve; the best draft wins."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from executionkit._arguments import check_callable, check_prompt
from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit.context import remaining_deadline
from executionkit.engine._checks import check_int
from executionkit.engine.convergence import ConvergenceDetector
from executionkit.engine.messages import assistant_message, user_message
from executionkit.errors import (
    BudgetExhaustedError,
    DeadlineExceededError,
    EvaluatorError,
    ExecutionKitError,
    LLMError,
)
from executionkit.patterns._failures import describe
from executionkit.patterns._judge import default_judge
from executionkit.patterns.base import (
    Asker,
    TrackedProvider,
    calling_user,
    check_options,
    check_positive,
    check_run,
    run_checkpoint,
    spending,
    validate_score,
)
from executionkit.types import CheckpointCallback, Evaluator, PatternResult, TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, Omit
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
    temperature: float | Omit | None = 0.7,
    max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
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
        evaluator: Scores a text in [0, 1], async or not; gets a provider whose calls
            count in this run. None = the built-in judge.
        max_eval_chars: Characters of a draft that the built-in judge sees.
        target_score: Stop when a draft reaches it.
        max_iterations: Improvements after the first draft. 0 = one draft, which
            nobody judges, since nothing would come of it.
        patience: Improvements in a row that may bring (almost) nothing.
        delta_threshold: A gain of the best score up to this counts as nothing.
        temperature: For drafts. None = the provider's default, `OMIT` = not sent.
        max_tokens: Output tokens per draft. None and `OMIT` as above.
        max_cost: Budget of the run: a `TokenUsage`, or a `CostLimit` (money).
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
        on_checkpoint: Called after each judged draft with its index and state.
        **options: Passed to the provider with each draft.

    Returns:
        The best draft with its score (None when no judge has scored it). When the
        judge fails for lack of an answer or of a rating, that is no reason to lose a
        draft. Metadata: `iterations` (improvements written), `converged` (the target
        was reached), `stop_reason` (`"target_reached"`, `"stalled"`,
        `"max_iterations"`, `"evaluator_failed"`), `score_history`,
        `truncated_responses`, `over_budget`; after `"evaluator_failed"` also
        `evaluator_error` and, when there was a draft before it, the draft that has no
        score, as `unjudged_text`.

    Raises:
        EvaluatorError: When a custom evaluator raises, or scores outside [0, 1]. A
            model call of its own that fails is none of its faults: see above.
        BudgetExhaustedError: When the budget has no room for the next call.
        DeadlineExceededError: When the deadline of the current context has passed.
        LLMError: When drafting fails for good.
            All library errors carry the best draft in `metadata["best_text"]`, its
            score in `metadata["best_score"]`, and a draft that has none yet in
            `metadata["unjudged_text"]`.
        ValueError: For an argument out of range.
        TypeError: For an argument of the wrong kind, and for an option that is a
            parameter of something else, or looks like a misspelt one.
    """
    check_options(refine_loop, options)
    check_positive(patience=patience, max_eval_chars=max_eval_chars)
    check_run(provider, max_cost, retry, trace, temperature, max_tokens)
    check_prompt("prompt", prompt)
    _check_callables(evaluator, on_checkpoint)
    check_int("max_iterations", max_iterations, 0)
    if not isinstance(target_score, (int, float)) or not 0.0 <= target_score <= 1.0:
        msg = f"target_score must be in [0, 1], got {target_score!r}"
        raise ValueError(msg)
    detector = ConvergenceDetector(delta_threshold, patience, target_score)
    settings = {"temperature": temperature, "max_tokens": max_tokens, **options}
    asker = Asker(provider, max_cost, retry, trace, settings)
    judge = default_judge(
        max_eval_chars, temperature=temperature, max_tokens=max_tokens
    )
    drafts = _Drafts(asker, prompt, on_checkpoint)
    panel = _Panel(asker, evaluator or judge, is_custom=evaluator is not None)
    async with spending(
        asker.tracker, metadata=drafts.best, pattern="refine_loop", trace=trace
    ):
        stop, iterations = await _refine(
            drafts, panel, detector, target_score, max_iterations
        )
    facts = {
        "iterations": iterations,
        "converged": stop == "target_reached",
        "stop_reason": stop,
        "score_history": tuple(drafts.scores),
        "truncated_responses": drafts.truncated,
        **asker.facts(),
    }
    if panel.error is not None:
        facts["evaluator_error"] = panel.error
    if drafts.unjudged is not None:
        facts["unjudged_text"] = drafts.unjudged
    return PatternResult(drafts.text, drafts.score, asker.spent, facts)


def _check_callables(evaluator: object, on_checkpoint: object) -> None:
    if evaluator is not None:
        hint = "pass a function `(text, provider)` that gives a score from 0 to 1"
        check_callable("evaluator", evaluator, hint=hint)
    if on_checkpoint is not None:
        hint = "pass a function `(index, state)`"
        check_callable("on_checkpoint", on_checkpoint, hint=hint)


async def _refine(
    drafts: _Drafts,
    panel: _Panel,
    detector: ConvergenceDetector,
    target: float,
    max_iterations: int,
) -> tuple[str, int]:
    """Run the loop; why it stopped, and after how many improvements."""
    for index in range(max_iterations + 1):
        text = await drafts.write()
        if max_iterations == 0:
            break
        score = await panel.judge(text)
        if score is None:
            return "evaluator_failed", index
        await drafts.book(index, text, score)
        # The detector watches the best score: a worse draft is no progress, so an
        # answer that swings below the best one does not run to the limit.
        assert drafts.score is not None  # noqa: S101 - booked just now
        if detector.should_stop(drafts.score):
            return ("target_reached" if drafts.score >= target else "stalled"), index
    return "max_iterations", max_iterations


class _Drafts:
    """The drafts of one run: the best one, and what became of the others."""

    def __init__(
        self, asker: Asker, prompt: str, on_checkpoint: CheckpointCallback | None
    ) -> None:
        self._asker = asker
        self._prompt = prompt
        self._on_checkpoint = on_checkpoint
        self._written = 0
        self.text = ""
        self.score: float | None = None
        self.scores: list[float] = []
        self.truncated = 0
        self.unjudged: str | None = None
        """A draft that no judge has scored, while another one was."""

    def best(self) -> dict[str, Any]:
        """What must survive an error."""
        if not self._written:
            return {}
        facts: dict[str, Any] = {
            "best_text": self.text,
            "best_score": self.score,
            "score_history": tuple(self.scores),
        }
        if self.unjudged is not None:
            facts["unjudged_text"] = self.unjudged
        return facts

    async def write(self) -> str:
        """Write the first draft, or an improvement on the best one."""
        messages = [user_message(self._prompt)]
        if self._written:
            messages += [assistant_message(self.text), user_message(self._wish())]
        response = await self._asker.ask(messages)
        self.truncated += response.was_truncated
        if self._written:
            self.unjudged = response.content
        else:
            self.text = response.content
        self._written += 1
        return response.content

    def _wish(self) -> str:
        return (
            f"That answer was scored {self.score:.2f} out of 1.00. "
            "Write a better one. Answer with the improved text only."
        )

    async def book(self, index: int, text: str, score: float) -> None:
        """Keep a draft that was judged, if it is the best."""
        self.unjudged = None
        self.scores.append(score)
        if self.score is None or score > self.score:
            self.text, self.score = text, score
        if self._on_checkpoint is None:
            return
        usage = self._asker.spent
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


class _Panel:
    """Whoever scores the drafts."""

    def __init__(self, asker: Asker, evaluator: Evaluator, *, is_custom: bool) -> None:
        self._evaluator = evaluator
        self._is_custom = is_custom
        self._secrets = asker.secrets
        self._lent = TrackedProvider(
            asker.provider, asker.tracker, asker.budget, asker.retry, asker.trace
        )
        self.error: str | None = None
        """Why there was no score."""

    async def judge(self, text: str) -> float | None:
        """The score of a draft; None when asking for one failed.

        Raises:
            EvaluatorError: A custom evaluator failed by itself.
        """
        try:
            return await self._score(text)
        except BudgetExhaustedError:
            raise
        except (LLMError, DeadlineExceededError) as exc:
            if remaining_deadline() == 0:  # the run's own, not one of the evaluator's
                raise
            self.error = describe(exc, self._secrets)
        except EvaluatorError as exc:
            if self._is_custom:
                raise
            self.error = describe(exc, self._secrets)
        except ExecutionKitError as exc:
            msg = f"The evaluator failed: {describe(exc, self._secrets)}"
            raise EvaluatorError(msg) from exc
        return None

    async def _score(self, text: str) -> float:
        with calling_user("evaluator", secrets=self._secrets):
            score: Any = self._evaluator(text, self._lent)
            if inspect.isawaitable(score):
                score = await score
            return validate_score(score)
