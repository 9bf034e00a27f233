"""`consensus`, `structured`, `refine`, `react`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from executionkit.cli._ask import (
    asking,
    call_options,
    provider_of,
    read_json,
    read_prompt,
)
from executionkit.cli._console import Exit, UsageError, as_json

if TYPE_CHECKING:
    from executionkit.cli._job import Job
    from executionkit.types import PatternResult

__all__ = ("run_consensus", "run_react", "run_refine", "run_structured")

_Work = Coroutine[Any, Any, int]


def run_consensus(job: Job) -> _Work:
    """See the table of commands."""
    from executionkit.patterns import consensus

    if job["strategy"] not in {"majority", "unanimous"}:
        msg = f"`--strategy` must be majority or unanimous, got {job['strategy']!r}"
        raise UsageError(msg)
    options, provider = call_options(job), provider_of(job)
    prompt = read_prompt(job)

    def ask(ready: Any) -> Awaitable[PatternResult[Any]]:
        return consensus(
            ready,
            prompt,
            num_samples=job["samples"],
            strategy=job["strategy"],
            early_stop=job["early_stop"],
            max_concurrency=job["concurrency"],
            **options,
        )

    return _answer(job, provider, ask)


def run_structured(job: Job) -> _Work:
    """See the table of commands."""
    from executionkit.patterns import structured

    schema = None if job["schema"] is None else checked_schema(job["schema"])
    options, provider = call_options(job), provider_of(job)
    prompt = read_prompt(job)

    def ask(ready: Any) -> Awaitable[PatternResult[Any]]:
        return structured(
            ready, prompt, schema=schema, max_retries=job["repairs"], **options
        )

    return _answer(job, provider, ask)


def checked_schema(name: str) -> Any:
    """The JSON Schema in a file.

    Raises:
        UsageError: When it is none.
    """
    from executionkit.engine.schema import SchemaError, compile_schema

    schema = read_json(name)
    if not isinstance(schema, dict):
        msg = f"`{name}` is no JSON Schema: it must be an object"
        raise UsageError(msg)
    try:
        compile_schema(schema)
    except (SchemaError, TypeError, ValueError) as exc:
        msg = f"`{name}` is no JSON Schema: {exc}"
        raise UsageError(msg) from exc
    return schema


def run_refine(job: Job) -> _Work:
    """See the table of commands."""
    from executionkit.patterns import refine_loop

    options, provider = call_options(job), provider_of(job)
    prompt = read_prompt(job)

    def ask(ready: Any) -> Awaitable[PatternResult[Any]]:
        return refine_loop(
            ready,
            prompt,
            max_iterations=job["iterations"],
            target_score=job["target"],
            **options,
        )

    return _answer(job, provider, ask)


def run_react(job: Job) -> _Work:
    """See the table of commands."""
    from executionkit.cli._tools import load_tools
    from executionkit.patterns import react_loop

    if job["tool_mode"] not in {"native", "json"}:
        msg = f"`--tool-mode` must be native or json, got {job['tool_mode']!r}"
        raise UsageError(msg)
    tools = load_tools(job)
    options, provider = call_options(job), provider_of(job)
    prompt = read_prompt(job)

    async def ask(ready: Any) -> PatternResult[Any]:
        async with tools:
            return await react_loop(
                ready,
                prompt,
                tools,
                max_rounds=job["rounds"],
                tool_mode=job["tool_mode"],
                **options,
            )

    return _answer(job, provider, ask)


async def _answer(
    job: Job, provider: Any, ask: Callable[[Any], Awaitable[PatternResult[Any]]]
) -> int:
    async with asking(job, provider) as ready:
        result = await ask(ready)
    console = job.console
    if job.wants_json:
        console.json(
            {
                "value": result.value,
                "score": result.score,
                "cost": job.meter.json(result.cost),
                "metadata": console.clean(result.metadata),
            }
        )
        return Exit.OK
    value = result.value
    console.result(value if isinstance(value, str) else as_json(value, indent=2))
    if result.metadata.get("stop_reason") == "evaluator_failed":
        why = console.clean(result.metadata.get("evaluator_error"))
        console.error(f"executionkit: the judge failed, the best draft stands: {why}")
    score = "" if result.score is None else f"score {result.score:.2f}; "
    console.note(f"{score}{job.meter.words(result.cost)}")
    return Exit.OK
