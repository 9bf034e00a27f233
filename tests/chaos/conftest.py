"""Two independent model servers that misbehave on demand, and the providers for them.

`llmock` is a Python package whose pytest plugin starts a real server in a thread;
`aimock` is a JavaScript program in `.node/` (see `scripts/aimock.py`). Both are skipped
when they are not installed, and fail where `CI` says that they must run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from executionkit.anthropic import AnthropicProvider
from executionkit.provider import Provider

ROOT = Path(__file__).parents[2]
AIMOCK = ROOT / ".node/node_modules/@copilotkit/aimock/dist/cli.js"
FORMS = ("openai", "anthropic")
TRANSPORTS = ("stdlib", "aiohttp")
START_SECONDS = 20.0


def missing(what: str) -> None:
    """Skip, or fail where it must run."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(f"{what} is not installed", pytrace=False)
    pytest.skip(f"{what} is not installed")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "stdlib" and importlib.util.find_spec(name) is None:
        missing(name)
    return name


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make(form: str, transport: str) -> Callable[..., Any]:
    """Makes a provider for the server at a root URL."""

    def build(root: str, **settings: Any) -> Any:
        settings = {"timeout": 10.0, "transport": transport, **settings}
        if form == "openai":
            return Provider(f"{root}/v1", "gpt-4o", "key-1", **settings)
        base = settings.pop("base_url", root)
        return AnthropicProvider("claude-x", "key-1", base_url=base, **settings)

    return build


@pytest.fixture
async def mocked(
    make: Callable[..., Any], form: str, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Any, Any]]:
    """A provider and the llmock server that it talks to."""
    if importlib.util.find_spec("llmock") is None:
        missing("llmock")
    server: Any = request.getfixturevalue("llmock")
    root = server.url if form == "openai" else f"{server.url}/anthropic"
    async with make(root) as provider:
        yield provider, server


def fixture(message: str, response: dict[str, Any], **more: Any) -> dict[str, Any]:
    sequence = more.pop("sequence", None)
    match: dict[str, Any] = {"userMessage": message, **more.pop("match", {})}
    if sequence is not None:
        match["sequenceIndex"] = sequence
    return {"match": match, "response": response, **more}


def error(status: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": "as asked", "type": kind}, "status": status, **more}


TEXT = {"content": "This is a text of some length that comes in pieces."}


def fixtures() -> list[dict[str, Any]]:
    """What aimock answers, by the words of the question."""
    found = [
        fixture("rate-limited", error(429, "rate_limit_error", retryAfter=7)),
        fixture("overloaded", error(529, "overloaded_error")),
        fixture("server-error", error(500, "server_error")),
        fixture("unavailable", error(503, "server_error")),
        fixture("unauthenticated", error(401, "authentication_error")),
        fixture("forbidden", error(403, "permission_error")),
        fixture("bad-request", error(400, "invalid_request_error")),
        fixture("malformed", TEXT, chaos={"malformedRate": 1}),
        fixture("dropped", TEXT, chaos={"dropRate": 1}),
        fixture("disconnected", TEXT, chaos={"disconnectRate": 1}),
        fixture("limited", TEXT, chaos={"rateLimitRate": 1}),
        fixture("late", TEXT, chaos={"latencyMs": 5000}),
        fixture("cut-off", TEXT, truncateAfterChunks=6, chunkSize=4, latency=20),
        fixture("broken-off", TEXT, disconnectAfterMs=150, chunkSize=3, latency=30),
        fixture("dripping", TEXT, chunkSize=2, latency=400),
        fixture(
            "weather",
            {"toolCalls": [{"name": "weather", "arguments": '{"city": "Paris"}'}]},
            match={"hasToolResult": False},
        ),
        fixture("weather", {"content": "It is sunny in Paris."}),
        fixture("hello", TEXT),
    ]
    for form in FORMS:
        for transport in TRANSPORTS:
            name = f"flaky-{form}-{transport}"
            busy = error(503, "server_error")
            limit = error(429, "rate_limit_error", retryAfter=0)
            found += [
                fixture(name, busy, sequence=0),
                fixture(name, limit, sequence=1),
                fixture(name, TEXT, sequence=2),
            ]
    return found


@pytest.fixture(scope="session")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root URL of a running aimock."""
    node = shutil.which("node")
    if node is None or not AIMOCK.exists():
        missing("aimock")
    folder = tmp_path_factory.mktemp("aimock")
    answers = folder / "fixtures.json"
    answers.write_text(json.dumps({"fixtures": fixtures()}), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (folder / "log.txt").open("wb")
    options = ["-p", str(port), "-f", str(answers), "--log-level", "warn"]
    server = subprocess.Popen(
        [str(node), str(AIMOCK), *options], stdout=log, stderr=subprocess.STDOUT
    )
    try:
        _wait_for(server, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(START_SECONDS)
        log.close()


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"aimock ended with code {server.returncode}", pytrace=False)
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("aimock did not start", pytrace=False)


@pytest.fixture
def read() -> Callable[[Any], Any]:
    """Reads a stream to its end, in time."""

    async def read_all(stream: Any) -> list[Any]:
        async with asyncio.timeout(10):
            return [item async for item in stream]

    return read_all
