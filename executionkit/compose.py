"""`pipe`: one pattern's answer is the next one's prompt."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from executionkit.cost import Budget, report_lost_cost
from executionkit.errors import BudgetExhaustedError, ExecutionKitError
from executionkit.types import PatternResult, TokenUsage, thaw

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider

__all__ = ("PatternStep", "pipe")

_NEVER = frozenset({"provider", "prompt"})


class PatternStep(Protocol):
    """One step of a pipe: a pattern, or any function of its shape."""

    async def __call__(
        self, provider: LLMProvider, prompt: str, **kwargs: Any
    ) -> PatternResult[Any]: ...


async def pipe(
    provider: LLMProvider,
    prompt: str,
    *steps: Any,
    max_budget: TokenUsage | None = None,
    **shared_kwargs: Any,
) -> PatternResult[Any]:
    """Run steps one after another, each on the answer of the one before.

    Args:
        provider: Given to every step.
        prompt: The first step's prompt.
        *steps: Patterns, or async functions `(provider, prompt, **kwargs)`.
        max_budget: Budget of all steps together. Each step gets what is left as
            `max_cost`; between steps the pipe itself checks it, so a step that does
            not take `max_cost` cannot be followed by another one once it is spent.
        **shared_kwargs: Given to each step that takes them. A name that only some
            steps know goes to those alone.

    Returns:
        The last step's value and score, and the cost of all. Metadata: the last
        step's own, and `step_count`, `step_metadata`, `step_costs`.

    Raises:
        ExecutionKitError: What a step raised, with the cost of all steps so far and
            `metadata["step_costs"]`.
    """
    budget = Budget.from_usage(max_budget)
    if not steps:
        return PatternResult(prompt)
    known = frozenset().union(*(_named(step) for step in steps))
    spent = TokenUsage()
    costs: list[TokenUsage] = []
    facts: list[dict[str, Any]] = []
    result: PatternResult[Any] = PatternResult(prompt)
    text = prompt
    for step in steps:
        kwargs = _kwargs_for(step, shared_kwargs, known)
        try:
            _refuse_if_spent(budget, spent, len(costs))
            if budget.source is not None and _takes(step, "max_cost"):
                kwargs["max_cost"] = budget.remaining(spent)
            result = await step(provider, text, **kwargs)
        except ExecutionKitError as exc:
            raise _with_total(exc, spent, costs) from exc.__cause__
        except BaseException:
            report_lost_cost(spent)  # the step reports its own
            raise
        spent += result.cost
        costs.append(result.cost)
        facts.append(dict(result.metadata))
        text = _as_prompt(result.value)
    merged = {
        **result.metadata,
        "step_count": len(steps),
        "step_metadata": facts,
        "step_costs": tuple(costs),
    }
    return PatternResult(result.value, result.score, spent, merged)


def _with_total(
    exc: ExecutionKitError, spent: TokenUsage, costs: Sequence[TokenUsage]
) -> ExecutionKitError:
    """A twin of a step's error that carries the cost of the whole pipe.

    The step's own error is left as it is: its raiser may still hold it.
    """
    rebuild, parts = exc.__reduce__()[:2]
    twin: ExecutionKitError = rebuild(*parts)
    twin.cost = spent + exc.cost
    twin.metadata = {**exc.metadata, "step_costs": tuple(costs)}
    return twin.with_traceback(exc.__traceback__)


def _refuse_if_spent(budget: Budget, spent: TokenUsage, done: int) -> None:
    for name in ("llm_calls", "input_tokens", "output_tokens"):
        limit = getattr(budget, name)
        if limit is not None and getattr(spent, name) >= limit:
            msg = (
                f"Pipe budget exhausted after {done} step(s): "
                f"{name} {getattr(spent, name)} of {limit} used"
            )
            raise BudgetExhaustedError(msg, metadata={"budget": budget.source})


def _as_prompt(value: Any) -> str:
    """A step's value as the next prompt: text as it is, data as JSON."""
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(thaw(value), ensure_ascii=False, default=str)
    return str(value)


def _parameters(step: Any) -> Sequence[inspect.Parameter] | None:
    try:
        return tuple(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        return None  # cannot be inspected: it gets everything


def _named(step: Any) -> frozenset[str]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(
        item.name for item in _parameters(step) or () if item.kind in kinds
    )


def _open(step: Any) -> bool:
    parameters = _parameters(step)
    return parameters is None or any(
        item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters
    )


def _takes(step: Any, name: str) -> bool:
    return name in _named(step) or _open(step)


def _kwargs_for(
    step: Any, shared: Mapping[str, Any], known: frozenset[str]
) -> dict[str, Any]:
    """The shared arguments that `step` takes.

    Patterns pass unknown options on to the provider. A name that is a parameter of
    some other step is no provider option, so such a step does not get it.
    """
    named = _named(step)
    passes_on = getattr(step, "__module__", "").startswith("executionkit.patterns.")
    return {
        name: value
        for name, value in shared.items()
        if name not in _NEVER
        and (name in named or (_open(step) and not (passes_on and name in known)))
    }
