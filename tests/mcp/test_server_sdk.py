"""The official SDK's own client against our server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.mcp import MCPServer, Prompt, Resource, current_exchange
from executionkit.mcp.http import HTTPServer
from executionkit.tools.registry import create_registry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

sdk = pytest.importorskip("mcp", reason="needs the extra `mcp`")

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 20.0
MODES = ["legacy", "2026-07-28", "auto"]


async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


async def count(n: int) -> AsyncGenerator[Any]:
    """Count, with progress."""
    for number in range(1, n + 1):
        yield {"progress": number, "total": n}


async def fail() -> str:
    """Fails."""
    message = "it broke"
    raise RuntimeError(message)


class Waiting:
    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def wait(self) -> str:
        """Waits until it is cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return ""


async def ask() -> str:
    """Asks the user."""
    here = current_exchange()
    assert here is not None
    found = await here.elicit(
        "Name?",
        {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    )
    return f"{found['action']} {found.get('content', {}).get('name')}"


SUM = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
}


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
async def url(waiting: Waiting) -> AsyncIterator[str]:
    registry = create_registry(count, fail, ask, waiting.wait)
    registry.add(add, result_schema=SUM)
    server = MCPServer(
        tools=registry,
        resources=[Resource(uri="a://{name}", name="a", read=lambda name: name)],
        prompts=[Prompt(name="p", render=lambda: "hello")],
    )
    async with server, HTTPServer(server) as http:
        yield http.url


@pytest.mark.req("mcp.server.sdk")
@pytest.mark.parametrize("mode", MODES)
async def test_the_sdk_works_over_http(url: str, mode: str) -> None:
    told: list[float] = []

    async def progress(done: float, _total: float | None, _message: str | None) -> None:
        told.append(done)

    async with asyncio.timeout(SECONDS), sdk.Client(url, mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {"add", "count", "fail", "ask", "wait"}
        found = await client.call_tool("add", {"a": 1, "b": 2})
        assert found.structured_content == {"sum": 3}
        assert not found.is_error
        broken = await client.call_tool("fail", {})
        assert broken.is_error
        assert "it broke" in broken.content[0].text
        with pytest.raises(sdk.MCPError):
            await client.call_tool("no_such_tool", {})
        await client.call_tool("count", {"n": 5}, progress_callback=progress)
        read = await client.read_resource("a://b")
        assert read.contents[0].text == "b"
        prompt = await client.get_prompt("p")
        assert prompt.messages[0].content.text == "hello"
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.req("mcp.server.sdk")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdk_is_asked_over_http(url: str, mode: str) -> None:
    from mcp.types import ElicitResult

    async def answer(_context: Any, _params: Any) -> Any:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with (
        asyncio.timeout(SECONDS),
        sdk.Client(url, mode=mode, elicitation_callback=answer) as client,
    ):
        found = await client.call_tool("ask", {})
        assert found.content[0].text == "accept Ada"


@pytest.mark.req("mcp.server.sdk", "mcp.server.cancel")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_that_the_sdk_gives_up_is_cancelled(
    url: str, mode: str, waiting: Waiting
) -> None:
    async with asyncio.timeout(SECONDS), sdk.Client(url, mode=mode) as client:
        with pytest.raises(sdk.MCPError):
            await client.call_tool("wait", {}, read_timeout_seconds=0.3)
        await waiting.cancelled.wait()


@pytest.mark.req("mcp.server.sdk")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdk_works_over_pipes(mode: str) -> None:
    parameters = sdk.StdioServerParameters(
        command=sys.executable,
        args=["-m", "executionkit.mcp", "--tools", "tests.mcp.stdio_tools"],
        cwd=str(ROOT),
    )
    async with asyncio.timeout(SECONDS), sdk.Client(parameters, mode=mode) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "noisy" in names
        found = await client.call_tool("noisy", {})
        assert found.content[0].text == "quiet"
