"""The patterns for programs without an event loop."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import executionkit
from executionkit._sync import (
    consensus_sync,
    map_reduce_sync,
    pipe_sync,
    react_loop_sync,
    refine_loop_sync,
    structured_sync,
)
from executionkit.errors import PermanentError
from executionkit.patterns import consensus
from executionkit.provider import Provider
from executionkit.testing import ScriptedProvider, tool_call_reply
from executionkit.types import PatternResult, TokenUsage, Tool

WRAPPERS: dict[str, Callable[[Any], PatternResult[Any]]] = {
    "consensus_sync": lambda provider: consensus_sync(provider, "?", num_samples=2),
    "refine_loop_sync": lambda provider: refine_loop_sync(
        provider, "?", max_iterations=0
    ),
    "react_loop_sync": lambda provider: react_loop_sync(provider, "?"),
    "structured_sync": lambda provider: structured_sync(provider, "?"),
    "map_reduce_sync": lambda provider: map_reduce_sync(
        provider,
        ["a"],
        map_prompt_template="{item}",
        reduce_prompt_template="{mapped_outputs}",
    ),
    "pipe_sync": lambda provider: pipe_sync(provider, "?", consensus, num_samples=1),
}


@pytest.mark.req("sync.wrappers")
@pytest.mark.parametrize("name", WRAPPERS)
class TestEveryWrapper:
    def test_it_does_what_its_pattern_does(self, name: str) -> None:
        provider = ScriptedProvider(lambda _request: '{"a": 1}')
        result = WRAPPERS[name](provider)
        assert result.cost.llm_calls == len(provider.requests) > 0
        wanted = {"a": 1} if name == "structured_sync" else '{"a": 1}'
        assert result.value == wanted

    async def test_it_refuses_inside_a_running_loop(self, name: str) -> None:
        provider = ScriptedProvider(lambda _request: "x")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(
                RuntimeError, match="Cannot use sync wrappers"
            ) as caught:
                WRAPPERS[name](provider)
        assert "async context" in str(caught.value)
        assert provider.requests == []

    def test_it_is_public(self, name: str) -> None:
        assert getattr(executionkit, name).__name__ == name


@pytest.mark.req("sync.wrappers")
class TestTheLoopWrapper:
    def test_tools_run(self) -> None:
        tool = Tool("now", "", {"type": "object"}, lambda: "noon")
        provider = ScriptedProvider([tool_call_reply(("now", {})), "It is noon."])
        assert react_loop_sync(provider, "?", [tool]).value == "It is noon."

    def test_none_as_prompt_means_messages(self) -> None:
        provider = ScriptedProvider(["x"])
        messages = [{"role": "user", "content": "hello"}]
        react_loop_sync(provider, None, messages=messages)
        assert provider.requests[0].messages == messages

    def test_errors_come_out_as_they_are(self) -> None:
        provider = ScriptedProvider([PermanentError("401")])
        with pytest.raises(PermanentError) as caught:
            react_loop_sync(provider, "?")
        assert caught.value.cost == TokenUsage(llm_calls=1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "17"}
        body = {"choices": [{"message": message, "finish_reason": "stop"}]}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return None


@pytest.fixture
def server_url() -> Iterator[str]:
    """A server in a thread: the wrappers bring loops of their own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join(5)
    server.server_close()


@pytest.mark.req("D-14")
@pytest.mark.parametrize("transport", ["aiohttp", "httpx2", "httpx", "stdlib"])
def test_one_provider_serves_call_after_call(server_url: str, transport: str) -> None:
    """D-14: the second call failed with "Event loop is closed"."""
    if transport != "stdlib":
        pytest.importorskip(transport)
    provider = Provider(server_url, "m", transport=transport)
    for _ in range(3):
        assert consensus_sync(provider, "?", num_samples=3).value == "17"
    assert react_loop_sync(provider, "?").value == "17"
    asyncio.run(provider.aclose())


@pytest.mark.req("D-14")
def test_connections_are_given_back_also_after_a_failure() -> None:
    released: list[str] = []

    class Pooled(ScriptedProvider):
        async def release_loop(self) -> None:
            released.append("released")

    provider = Pooled([PermanentError("401"), "fine"])
    with pytest.raises(PermanentError):
        react_loop_sync(provider, "?")
    assert react_loop_sync(provider, "?").value == "fine"
    assert released == ["released", "released"]
