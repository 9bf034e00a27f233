"""Cost of a call to an MCP server, against the bare client of the SDK.

Run: `python -m bench.bench_mcp`. In process the server answers at once, so nearly all
that is measured is the SDK and what is around it; over standard streams a server
written by hand answers from a process of its own. The sides run in turns, and the
median of the rounds is taken. Beside it: the reading of a long message.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from executionkit.calls import ToolCall
from executionkit.mcp.client import MCPOptions, StdioServer, add_mcp_server
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry

ROUNDS = 9
CALLS = 60
AT_ONCE = 64
HUGE = 2_000_000
TOOL_TARGET = 1.15
"""The tool's function against the bare call; its schema is checked on both sides."""
PROCESSOR_TARGET = 1.25
FAKE = Path(__file__).parent.parent / "tests" / "mcp" / "fake_server.py"
COMMAND = ["-I", "-S", str(FAKE)]

Call = Callable[[], Awaitable[Any]]


async def _sequence(call: Call) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter() - began) / CALLS


async def _together(call: Call) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(AT_ONCE)))
    return (time.perf_counter() - began) / AT_ONCE


async def _compare(
    bare: Call,
    ours: Call,
    way: Callable[[Call], Awaitable[float]],
    rounds: int = ROUNDS,
) -> tuple[float, float, float]:
    """(ours, bare, ratio): medians of rounds in turn."""
    left: list[float] = []
    right: list[float] = []
    for _ in range(rounds):
        right.append(await way(bare))
        left.append(await way(ours))
    ratios = [one / other for one, other in zip(left, right, strict=True)]
    return median(left), median(right), median(ratios)


async def _once(call: Call) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def _row(
    name: str, numbers: tuple[float, float, float], target: float
) -> dict[str, Any]:
    ours, limit, ratio = numbers
    return {
        "name": name,
        "ours": ours,
        "limit": limit,
        "ratio": ratio,
        "target": target,
        "met": ratio <= target,
    }


async def _rows(
    where: str, bare: Any, server: Any, options: MCPOptions, tool: str, given: Any
) -> list[dict[str, Any]]:
    registry = create_registry()
    found: list[dict[str, Any]] = []
    connection = await add_mcp_server(registry, server, name="s", options=options)
    async with bare, connection, ToolProcessor(registry) as processor:
        await bare.list_tools()
        execute = registry.resolve(tool).tool.execute

        async def plain() -> Any:
            return await bare.call_tool(tool, given)

        async def ours() -> Any:
            return await execute(**given)

        async def through() -> Any:
            return await processor.process([ToolCall("1", tool, given)])

        for call in (plain, ours, through):
            await _sequence(call)
        cases = (
            ("a call", ours, TOOL_TARGET),
            ("processor", through, PROCESSOR_TARGET),
        )
        for label, call, target in cases:
            numbers = await _compare(plain, call, _sequence)
            found.append(_row(f"MCP {where}, {label}", numbers, target))
        numbers = await _compare(plain, ours, _together)
        found.append(_row(f"MCP {where}, {AT_ONCE} at once", numbers, TOOL_TARGET))
        if where == "stdio":
            size = {"size": HUGE}
            huge = registry.resolve("huge").tool.execute

            async def plain_huge() -> Any:
                return await bare.call_tool("huge", size)

            async def our_huge() -> Any:
                return await huge(**size)

            numbers = await _compare(plain_huge, our_huge, _once, 5)
            found.append(_row("MCP stdio, 2 MB result", numbers, TOOL_TARGET))
    return found


async def _all() -> list[dict[str, Any]]:
    from mcp import Client, StdioServerParameters

    from tests.mcp.sdk_app import make

    given = {"a": 1, "b": 2}
    found = await _rows(
        "in process", Client(make()), make(), MCPOptions(), "add", given
    )
    options = MCPOptions(mode="legacy")
    program = StdioServerParameters(command=sys.executable, args=COMMAND)
    bare = Client(program, mode="legacy")
    server = StdioServer(sys.executable, COMMAND)
    return found + await _rows("stdio", bare, server, options, "echo", given)


def rows() -> list[dict[str, Any]]:
    """All measurements: name, ours, limit (seconds), ratio, target, met."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return asyncio.run(_all())


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:30} ours {row['ours'] * 1e3:8.3f} ms  bare "
            f"{row['limit'] * 1e3:8.3f} ms  ratio {row['ratio']:5.2f}  "
            f"target <= {row['target']:4.2f}  {'ok' if row['met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
