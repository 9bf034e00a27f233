"""The patterns for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from executionkit.batches import consensus_batch, map_batch, run_batch
from executionkit.compose import pipe
from executionkit.patterns.consensus import consensus
from executionkit.patterns.map_reduce import map_reduce
from executionkit.patterns.react_loop import react_loop
from executionkit.patterns.refine_loop import refine_loop
from executionkit.patterns.structured import structured

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider
    from executionkit.batches import BatchClient, BatchRequest, BatchResult
    from executionkit.calls import ToolRunner
    from executionkit.types import PatternResult, Tool

__all__ = (
    "consensus_batch_sync",
    "consensus_sync",
    "map_batch_sync",
    "map_reduce_sync",
    "pipe_sync",
    "react_loop_sync",
    "refine_loop_sync",
    "run_batch_sync",
    "structured_sync",
)

_T = TypeVar("_T")


def consensus_sync(
    provider: LLMProvider, prompt: str, **kwargs: Any
) -> PatternResult[str]:
    """`consensus` in an event loop of its own; refuses inside a running one."""
    return _run(provider, lambda: consensus(provider, prompt, **kwargs))


def refine_loop_sync(
    provider: LLMProvider, prompt: str, **kwargs: Any
) -> PatternResult[str]:
    """`refine_loop` in an event loop of its own; refuses inside a running one."""
    return _run(provider, lambda: refine_loop(provider, prompt, **kwargs))


def react_loop_sync(
    provider: LLMProvider,
    prompt: str | None,
    tools: Iterable[Tool] | ToolRunner = (),
    **kwargs: Any,
) -> PatternResult[str]:
    """`react_loop` in an event loop of its own; refuses inside a running one.

    Pass None as `prompt` to use `messages=`.
    """
    return _run(provider, lambda: react_loop(provider, prompt, tools, **kwargs))


@overload
def structured_sync(
    provider: LLMProvider, prompt: str, *, schema: type[_T], **kwargs: Any
) -> PatternResult[_T]: ...


@overload
def structured_sync(
    provider: LLMProvider, prompt: str, *, schema: object = None, **kwargs: Any
) -> PatternResult[Any]: ...


def structured_sync(
    provider: LLMProvider, prompt: str, **kwargs: Any
) -> PatternResult[Any]:
    """`structured` in an event loop of its own; refuses inside a running one."""
    return _run(provider, lambda: structured(provider, prompt, **kwargs))


def map_reduce_sync(
    provider: LLMProvider, inputs: Iterable[str] | AsyncIterable[str], **kwargs: Any
) -> PatternResult[str]:
    """`map_reduce` in an event loop of its own; refuses inside a running one."""
    return _run(provider, lambda: map_reduce(provider, inputs, **kwargs))


def pipe_sync(
    provider: LLMProvider, prompt: str, *steps: Any, **kwargs: Any
) -> PatternResult[Any]:
    """`pipe` in an event loop of its own; refuses inside a running one."""
    return _run(provider, lambda: pipe(provider, prompt, *steps, **kwargs))


def run_batch_sync(
    client: BatchClient, requests: Iterable[BatchRequest], **kwargs: Any
) -> BatchResult:
    """`run_batch` in an event loop of its own; refuses inside a running one."""
    return _run(client, lambda: run_batch(client, requests, **kwargs))


def consensus_batch_sync(
    client: BatchClient, model: str, prompt: str, **kwargs: Any
) -> PatternResult[str]:
    """`consensus_batch` in an event loop of its own; refuses inside a running one."""
    return _run(client, lambda: consensus_batch(client, model, prompt, **kwargs))


def map_batch_sync(
    client: BatchClient, model: str, prompts: Sequence[str], **kwargs: Any
) -> PatternResult[tuple[str, ...]]:
    """`map_batch` in an event loop of its own; refuses inside a running one."""
    return _run(client, lambda: map_batch(client, model, prompts, **kwargs))


def _run(provider: object, start: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        msg = (
            "Cannot use sync wrappers inside an async context: an event loop is "
            "running; await the pattern itself instead"
        )
        raise RuntimeError(msg)

    async def main() -> _T:
        try:
            return await start()
        finally:
            # The provider outlives this loop, its connections do not.
            release = getattr(provider, "release_loop", None)
            if release is not None:
                await release()

    return asyncio.run(main())
