# pyright: reportMissingImports=false
"""What other libraries cost for the same work, where they are installed.

Run: `python -m bench.bench_peers`. A row stands beside the same work by hand, or beside
the standard library, as our own rows do; it has no target. None of them is needed:
`pip install tenacity stamina aiolimiter limits pybreaker purgatory json_repair
chuk-tool-processor`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.bench_primitives import _by_hand, _compare, _Counter, _Gcra, _noop
from executionkit.engine.retry import RetryConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

LOOPS = 2_000
ROUNDS = 5
_HUGE = 10**9


async def _row(name: str, peer: Any, limit: Any, each: int = LOOPS) -> dict[str, Any]:
    ours, by_hand = await _compare(peer, limit, rounds=ROUNDS)
    return {
        "name": f"peer: {name}",
        "ours": ours / each,
        "limit": by_hand / each,
        "ratio": ours / by_hand,
    }


def _looped(step: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        for _ in range(LOOPS):
            await step()

    return run


async def _tenacity() -> dict[str, Any]:
    from tenacity import retry, stop_after_attempt

    step = partial(retry(stop=stop_after_attempt(4))(_noop), 1)
    by_hand = partial(_by_hand, _noop, RetryConfig(), 1)
    return await _row("10a tenacity, success path", _looped(step), _looped(by_hand))


async def _stamina() -> dict[str, Any]:
    import stamina

    step = partial(stamina.retry(on=ValueError, attempts=4)(_noop), 1)
    by_hand = partial(_by_hand, _noop, RetryConfig(), 1)
    return await _row("10a stamina, success path", _looped(step), _looped(by_hand))


async def _aiolimiter() -> dict[str, Any]:
    from aiolimiter import AsyncLimiter

    ours = _looped(AsyncLimiter(_HUGE, 3600).acquire)
    return await _row(
        "11 aiolimiter (bucket)", ours, _looped(_Gcra(_HUGE, 3600).acquire)
    )


async def _limits() -> dict[str, Any]:
    from limits import RateLimitItemPerHour
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    limiter = MovingWindowRateLimiter(MemoryStorage())
    step = partial(limiter.hit, RateLimitItemPerHour(_HUGE), "a")
    gcra = _looped(_Gcra(_HUGE, 3600).acquire)
    return await _row("11 limits (moving window)", _looped(step), gcra)


async def _purgatory() -> dict[str, Any]:
    from purgatory import AsyncCircuitBreakerFactory

    breaker = await AsyncCircuitBreakerFactory().get_breaker("a")

    async def step() -> None:
        async with breaker:
            pass

    by_hand = partial(_Counter().run, partial(_noop, 1))
    return await _row("13 purgatory, closed", _looped(step), _looped(by_hand))


async def _json_repair() -> dict[str, Any]:
    import json_repair

    text = json.dumps({"items": [{"id": n, "name": f"item {n}"} for n in range(30)]})

    async def ours() -> None:
        for _ in range(LOOPS):
            json_repair.loads(text)

    async def limit() -> None:
        for _ in range(LOOPS):
            json.loads(text)

    return await _row("21 json_repair, 1 KB, clean", ours, limit)


CALLS = 100


async def _gathered(size: int = CALLS) -> None:
    semaphore = asyncio.Semaphore(50)

    async def one(number: int) -> int:
        async with semaphore:
            return await noop("a", number)

    await asyncio.gather(*[one(number) for number in range(size)])


async def _openai_agents() -> dict[str, Any]:
    from agents import function_tool
    from agents.tool_context import ToolContext

    tool = function_tool(noop)
    said = json.dumps({"q": "a", "n": 1})

    async def ours() -> None:
        await asyncio.gather(
            *[
                tool.on_invoke_tool(
                    ToolContext(
                        context=None,
                        tool_name="noop",
                        tool_call_id=str(number),
                        tool_arguments=said,
                    ),
                    said,
                )
                for number in range(CALLS)
            ]
        )

    return await _row("1 openai-agents, no-op, 100 calls", ours, _gathered, CALLS)


async def _langgraph() -> dict[str, Any]:
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([tool(noop)]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    runs = graph.compile()
    calls = [
        {"id": str(n), "name": "noop", "args": {"q": "a", "n": n}} for n in range(CALLS)
    ]

    async def ours() -> None:
        await runs.ainvoke({"messages": [AIMessage("", tool_calls=calls)]})

    return await _row("1 LangGraph ToolNode, no-op, 100 calls", ours, _gathered, CALLS)


async def _chuk() -> dict[str, Any]:
    from chuk_tool_processor import ToolProcessor, create_registry

    registry = create_registry()
    await registry.register_tool(_Noop, name="noop")
    calls = [{"tool": "noop", "arguments": {"q": "a", "n": n}} for n in range(CALLS)]
    async with ToolProcessor(
        registry=registry, enable_caching=False, enable_retries=False
    ) as processor:

        async def ours() -> None:
            await processor.process(calls)

        return await _row(
            "1 chuk-tool-processor, no-op, 100 calls", ours, _gathered, CALLS
        )


class _Noop:
    """Ends at once."""

    async def execute(self, q: str, n: int) -> int:
        return n


async def noop(q: str, n: int) -> int:
    """Ends at once."""
    return n


PEERS: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]] = {
    "tenacity": _tenacity,
    "stamina": _stamina,
    "aiolimiter": _aiolimiter,
    "limits": _limits,
    "purgatory": _purgatory,
    "json_repair": _json_repair,
    "agents": _openai_agents,
    "langgraph": _langgraph,
    "chuk_tool_processor": _chuk,
}
"""What has to be installed, and what is measured then."""


def rows() -> list[dict[str, Any]]:
    """A row of each peer that is installed."""
    there = [name for name in PEERS if importlib.util.find_spec(name) is not None]
    return [asyncio.run(PEERS[name]()) for name in there]


if __name__ == "__main__":
    for row in rows():
        print(f"{row['name']:48} {row['ratio']:8.2f}")
