"""What a pattern passes on to the provider, and what it refuses to."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from executionkit._arguments import shown
from executionkit._llm import OMIT
from executionkit.types import Tool

__all__ = ("check_options",)

_CLOSE: Final = 0.84
_RESERVED: Final = frozenset({"messages", "stream", "stream_options", "usage_sink"})

_OWNERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "consensus": (
            "early_stop",
            "max_concurrency",
            "normalizer",
            "num_samples",
            "strategy",
        ),
        "map_reduce": (
            "inputs",
            "map_prompt_template",
            "on_error",
            "reduce_prompt_template",
        ),
        "refine_loop": (
            "delta_threshold",
            "evaluator",
            "max_eval_chars",
            "max_iterations",
            "on_checkpoint",
            "patience",
            "prompt",
            "target_score",
        ),
        "react_loop": (
            "approval_gate",
            "max_history_messages",
            "max_observation_chars",
            "max_repeated_rounds",
            "max_rounds",
            "max_tool_calls",
            "max_tool_calls_per_round",
            "max_tool_concurrency",
            "on_progress",
            "redact_trace_args",
            "summarizer",
            "tool_call_limits",
            "tool_mode",
            "tool_timeout",
            "transcript",
        ),
        "structured": ("native_format", "repair", "schema", "validator"),
        "pipe": ("max_budget", "shared_kwargs", "steps"),
        "Kit": ("rate_limiter", "track_cost"),
    }
)
_RETRY: Final = frozenset(
    {
        "base_delay",
        "budget",
        "exponential_base",
        "max_delay",
        "max_retries",
        "rate_limit_strategy",
        "retryable",
    }
)
# Another word for a parameter of the pattern, if it has that parameter.
_SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "budget": "max_cost",
        "concurrency": "max_concurrency",
        "gate": "approval_gate",
        "max_budget": "max_cost",
        "max_iterations": "max_rounds",
        "max_rounds": "max_iterations",
        "max_tool_rounds": "max_rounds",
        "n_samples": "num_samples",
        "samples": "num_samples",
        "tracer": "trace",
    }
)
_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "deadline": (
            "a deadline belongs to the request: "
            "`execution_scope(ExecutionContext.with_deadline(seconds))`"
        ),
        "gate": "it belongs to `react_loop`, as `approval_gate`",
        "journal": "it belongs to `react_loop` and `map_reduce`",
        "max_calls": "to limit calls, pass `max_cost=TokenUsage(llm_calls=...)`",
        "max_tool_rounds": "it belongs to `react_loop`, as `max_rounds`",
        "samples": "it belongs to `consensus`, as `num_samples`",
        "timeout": (
            "the time of one request is set by the provider, `Provider(timeout=...)`, "
            "that of a run by `ExecutionContext.with_deadline(seconds)`"
        ),
    }
)


def check_options(pattern: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse a provider option that is none.

    Options that a pattern does not know go to the provider as they are
    (`response_format`, `tool_choice`, `seed`, `stop`, ...). A slip such as
    `max_round=3`, a parameter of another pattern or of `RetryConfig`, and a value that
    no request can carry (a function, an object of this library) must not end there.

    Raises:
        TypeError: Naming the option and what was probably meant.
    """
    for name, value in options.items():
        problem = _problem(pattern, name)
        if problem is None and value is not OMIT:
            problem = _unsendable(name, value)
        if problem is not None:
            raise TypeError(problem)


@functools.lru_cache(maxsize=512)
def _problem(pattern: Callable[..., Any], name: str) -> str | None:
    if name in _RESERVED:
        return f"`{name}` is set by the pattern itself and cannot be passed"
    meant = _likely_parameter(pattern, name)
    remedy = f"did you mean {meant!r}?" if meant is not None else _belongs(name)
    if remedy is None:
        return None
    who = getattr(pattern, "__name__", type(pattern).__name__)
    return f"{who}() got an unexpected keyword argument {name!r}; {remedy}"


def _likely_parameter(pattern: Callable[..., Any], name: str) -> str | None:
    own = _own_names(pattern)
    synonym = _SYNONYMS.get(name)
    if synonym in own:
        return synonym
    if _belongs(name) is not None:  # a name of something else is no slip
        return None
    close = difflib.get_close_matches(name, own, n=1, cutoff=_CLOSE)
    close += [item for item in own if _stem(item) == _stem(name)]
    return close[0] if close else None


def _belongs(name: str) -> str | None:
    """Where a name is at home that no provider knows; None for any other name."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in _RETRY:
        return f"it belongs to `RetryConfig`: pass `retry=RetryConfig({name}=...)`"
    for owner, names in _OWNERS.items():
        if name in names:
            return f"it belongs to `{owner}`"
    return None


def _unsendable(name: str, value: object) -> str | None:
    listed = value if isinstance(value, (list, tuple)) else ()
    if isinstance(value, Tool) or any(isinstance(item, Tool) for item in listed):
        return f"`{name}` holds a Tool; tools belong to `react_loop(..., tools=[...])`"
    if type(value).__module__.partition(".")[0] != "executionkit":
        if not callable(value):
            return None
        hint = "; a type of answer goes to `structured(..., schema=...)`"
        hint = hint if isinstance(value, type) else ""
    else:
        hint = ""
    return (
        f"`{name}` goes to the provider as an option of the request, which cannot carry "
        f"{shown(value)}{hint}"
    )


def _stem(name: str) -> str:
    """`name` without the differences that are easily overlooked."""
    plain = name.replace("_", "").lower()
    return plain[:-3] + "y" if plain.endswith("ies") else plain.removesuffix("s")


@functools.lru_cache(maxsize=64)
def _own_names(pattern: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(pattern).parameters.values()
    return tuple(item.name for item in parameters if item.kind in kinds)
