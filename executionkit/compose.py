"""`pipe`: one pattern's answer is the next one's prompt."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from executionkit._arguments import (
    check_budget,
    check_callable,
    check_prompt,
    check_retry,
    check_trace,
)
from executionkit._error_base import twin_of
from executionkit.cost import Budget, CostLimit, report_lost_cost
from executionkit.errors import (
    BudgetExhaustedError,
    ExecutionKitError,
    PatternError,
)
from executionkit.observability import watched
from executionkit.patterns._call import known_secrets
from executionkit.patterns._failures import first_of_group
from executionkit.types import PatternResult, TokenUsage, thaw

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider

__all__ = ("PatternStep", "pipe")

_FIELDS: Final = ("llm_calls", "input_tokens", "output_tokens")


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

    A value that is a list or a mapping reaches the next step as JSON, any other one
    as its text.

    Args:
        provider: Given to every step.
        prompt: The first step's prompt.
        *steps: Patterns, or functions `(provider, prompt, **kwargs)`, async or not,
            that return a `PatternResult`.
        max_budget: Budget of all steps together. A step that has a parameter
            `max_cost` (or takes any keyword) gets what is left as that, or the
            `max_cost` of its own `functools.partial` where that is less. Any step that
            does not name `max_cost` is not even started once the budget is spent.
        **shared_kwargs: Given to each step that takes them. A name that only some
            steps know goes to those alone. `max_cost` is refused: it would limit each
            step by itself.

    Returns:
        The last step's value and score, and the cost of all. Metadata: the last
        step's own, and `step_count`, `step_metadata`, `step_costs`, and, with a
        `max_budget`, `over_budget`: whether more was spent than that allows.

    Raises:
        PatternError: When a step returns no `PatternResult`.
        BudgetExhaustedError: When `max_budget` leaves nothing for the next step.
        ExecutionKitError: What a step raised, with the cost of all steps so far and
            `metadata["step_costs"]`.
        TypeError: When an argument is of the wrong kind, a step cannot be called, or
            `max_cost` is given.
        ValueError: For a senseless `max_budget`.
    """
    _check_arguments(prompt, steps, max_budget, shared_kwargs)
    run = _Pipe(Budget.from_usage(max_budget))
    if not steps:
        return PatternResult(prompt)
    known = frozenset().union(*(_named(step) for step in steps))
    result: PatternResult[Any] = PatternResult(prompt)
    text = prompt
    async with watched("pipe", shared_kwargs.get("trace"), run) or nullcontext():
        for step in steps:
            kwargs = _kwargs_for(step, shared_kwargs, known)
            result = await run.step(step, provider, text, kwargs)
            text = _as_prompt(result.value)
    merged = {
        **result.metadata,
        "step_count": len(steps),
        "step_metadata": run.facts,
        "step_costs": tuple(run.costs),
    }
    if max_budget is not None:
        within_step = merged.get("over_budget") is True  # of a budget of its own
        merged["over_budget"] = within_step or run.over_budget
    return PatternResult(result.value, result.score, run.spent, merged)


def _check_arguments(
    prompt: object,
    steps: Sequence[object],
    max_budget: object,
    shared: Mapping[str, object],
) -> None:
    if "max_cost" in shared:
        msg = (
            "pipe() takes no `max_cost`, which would limit each step by itself; use "
            "`max_budget` for all together, or `functools.partial(step, max_cost=...)`"
        )
        raise TypeError(msg)
    check_prompt("prompt", prompt)
    check_budget("max_budget", max_budget)
    check_retry("retry", shared.get("retry"))
    check_trace(shared.get("trace"))
    hint = "a step is the function itself, not called: `consensus`, or one of its shape"
    for number, step in enumerate(steps, 1):
        check_callable(f"steps[{number - 1}]", step, hint=hint)


class _Pipe:
    """What the steps so far have cost and told."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.spent = TokenUsage()
        self.costs: list[TokenUsage] = []
        self.facts: list[dict[str, Any]] = []

    def to_usage(self) -> TokenUsage:
        """What the steps have cost so far."""
        return self.spent

    @property
    def over_budget(self) -> bool:
        """Whether the steps have spent more than the budget of the pipe allows."""
        money = self._budget.money
        if money is not None and self._budget.money_of(self.spent) > money:
            return True
        limits = ((getattr(self._budget, name), name) for name in _FIELDS)
        return any(
            limit is not None and getattr(self.spent, name) > limit
            for limit, name in limits
        )

    async def step(
        self, step: Any, provider: LLMProvider, text: str, kwargs: dict[str, Any]
    ) -> PatternResult[Any]:
        failure: BaseException
        try:
            self._budget_for(step, kwargs)
            result = step(provider, text, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            self._book(step, result)
        except ExecutionKitError as exc:
            failure = _with_total(exc, self.spent, self.costs)
        except BaseExceptionGroup as group:
            failure = first_of_group(group, known_secrets(provider))
            if isinstance(failure, ExecutionKitError):
                failure = _with_total(failure, self.spent, self.costs)
            else:
                report_lost_cost(self.spent)
        except BaseException:
            report_lost_cost(self.spent)  # the step reports its own
            raise
        else:
            return result  # type: ignore[no-any-return]
        # Outside of the handler: so the failure keeps the context that it had.
        raise failure

    def _book(self, step: Any, result: object) -> None:
        if not isinstance(result, PatternResult):
            name = getattr(step, "__qualname__", type(step).__name__)
            msg = (
                f"step {len(self.costs) + 1} ({name}) must return a PatternResult, got "
                f"{type(result).__name__}"
            )
            raise PatternError(msg)
        self.spent += result.cost
        self.costs.append(result.cost)
        self.facts.append(dict(result.metadata))

    def _budget_for(self, step: Any, kwargs: dict[str, Any]) -> None:
        left = self._budget.remaining(self.spent)
        if left is None:
            return
        names_it = "max_cost" in _named(step)
        if names_it or _open(step):
            own = _own_limit(step)
            kwargs["max_cost"] = left if own is None else _tighter(left, own)
        if not names_it:
            self._refuse_if_spent(left)

    def _refuse_if_spent(self, left: TokenUsage) -> None:
        for name in _FIELDS:
            if getattr(left, name) < 0:
                used = getattr(self.spent, name)
                limit = getattr(self._budget, name)
                msg = (
                    f"Pipe budget exhausted after {len(self.costs)} step(s): {name} "
                    f"{used} of {limit} used"
                )
                raise BudgetExhaustedError(
                    msg, metadata={"budget": self._budget.source}
                )
        if isinstance(left, CostLimit) and left.money == 0:
            used = round(self._budget.money_of(self.spent), 9)
            msg = (
                f"Pipe budget exhausted after {len(self.costs)} step(s): money "
                f"{used} of {self._budget.money} used"
            )
            raise BudgetExhaustedError(msg, metadata={"budget": self._budget.source})


def _own_limit(step: Any) -> TokenUsage | None:
    """The `max_cost` that a step was bound to."""
    while isinstance(step, functools.partial):
        if "max_cost" in step.keywords:
            limit: TokenUsage | None = step.keywords["max_cost"]
            return limit
        step = step.func
    return None


def _tighter(first: TokenUsage, second: TokenUsage) -> TokenUsage:
    """The budget that holds both limits: 0 = none, -1 = exhausted."""

    def least(name: str) -> int:
        limits = [value for item in (first, second) if (value := getattr(item, name))]
        return min(limits, default=0)

    counts: dict[str, Any] = {name: least(name) for name in _FIELDS}
    limits = [item for item in (first, second) if isinstance(item, CostLimit)]
    if not limits:
        return TokenUsage(**counts)
    if len(limits) == 1:
        return replace(limits[0], **counts)
    one, other = limits
    sizes = [size for item in limits if (size := item.request_input_tokens) is not None]
    size = min(sizes, default=None)
    if one.money is not None and other.money is not None:
        if one.prices != other.prices:
            msg = (
                "`max_budget` of the pipe and `max_cost` of a step both limit `money`, "
                "with different `prices`; give both the same"
            )
            raise ValueError(msg)
        one = replace(one, money=min(one.money, other.money))
    elif one.money is None:
        one = other
    return replace(one, request_input_tokens=size, **counts)


def _with_total(
    exc: ExecutionKitError, spent: TokenUsage, costs: Sequence[TokenUsage]
) -> ExecutionKitError:
    """A twin of a step's error that carries the cost of the whole pipe.

    The step's own error is left as it is: its raiser may still hold it.
    """
    twin = twin_of(exc)
    twin.cost = spent + exc.cost
    twin.metadata["step_costs"] = tuple(costs)
    return twin


def _as_prompt(value: Any) -> str:
    """A step's value as the next prompt: text as it is, data as JSON."""
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(thaw(value), ensure_ascii=False, default=str)
    return str(value)


def _unwrapped(step: Any) -> Any:
    while isinstance(step, functools.partial):
        step = step.func
    return step


def _parameters(step: Any) -> Sequence[inspect.Parameter] | None:
    try:
        return tuple(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        return None  # cannot be inspected: it gets everything


def _named(step: Any) -> frozenset[str]:
    """The parameters that can be given by keyword, those of the pipe left out."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(
        item.name
        for item in _parameters(step) or ()
        if item.kind in kinds and item.name not in _taken(step)
    )


def _taken(step: Any) -> frozenset[str]:
    """The names that the pipe gives itself: those of the first two parameters."""
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    first = [item.name for item in _parameters(step) or () if item.kind in positional]
    return frozenset({"provider", "prompt", *first[:2]})


def _open(step: Any) -> bool:
    parameters = _parameters(step)
    return parameters is None or any(
        item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters
    )


def _kwargs_for(
    step: Any, shared: Mapping[str, Any], known: frozenset[str]
) -> dict[str, Any]:
    """The shared arguments that `step` takes.

    Patterns pass unknown options on to the provider. A name that is a parameter of
    some other step is no provider option, so such a step does not get it.
    """
    named, taken = _named(step), _taken(step)
    module = getattr(_unwrapped(step), "__module__", None) or ""
    passes_on = module.startswith("executionkit.patterns.")
    return {
        name: value
        for name, value in shared.items()
        if name not in taken
        and (name in named or (_open(step) and not (passes_on and name in known)))
    }
