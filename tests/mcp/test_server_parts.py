"""The parts of the server by themselves: pipes, loading, writing messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.mcp import MCPServer, Prompt, Resource
from executionkit.mcp.__main__ import main
from executionkit.mcp._server import stdio as stdio_module
from executionkit.mcp._server.loading import load_server
from executionkit.mcp._server.messages import encode
from executionkit.mcp._server.pipes import PipeReader, PipeWriter
from executionkit.mcp._server.streams import EventStream, heartbeat
from executionkit.mcp.http import HTTPOptions, HTTPServer, run_http
from executionkit.testing import FakeClock
from executionkit.tools.registry import create_registry
from tests.mcp.server_help import Client, call, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

SECONDS = 10.0
MIB = 1024 * 1024


async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


# --- pipes ---
@pytest.mark.req("mcp.server.stdio")
async def test_a_pipe_is_read_to_its_end(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reader = PipeReader(read)
    os.write(write, b"one")
    async with asyncio.timeout(SECONDS):
        assert await reader.read(100) == b"one"
        os.write(write, b"two")
        os.close(write)
        assert await reader.read(100) == b"two"
        assert await reader.read(100) == b""
        assert await reader.read(100) == b""
    reader.close()


@pytest.mark.req("mcp.server.stdio", "mcp.server.backpressure")
async def test_of_a_pipe_no_more_is_read_than_is_taken(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reader = PipeReader(read)
    os.set_blocking(write, False)
    written = idle = 0
    while idle < 50:
        try:
            written += os.write(write, b"x" * 65_536)
            idle = 0
        except BlockingIOError:
            idle += 1
        await asyncio.sleep(0)
    assert MIB / 2 < written < 2 * MIB
    taken = 0
    async with asyncio.timeout(SECONDS):
        while taken < written:
            taken += len(await reader.read(65_536))
    assert taken == written
    os.write(write, b"more")
    async with asyncio.timeout(SECONDS):
        assert await reader.read(10) == b"more"
    reader.close()


@pytest.mark.req("mcp.server.stdio")
async def test_a_file_is_read_in_a_thread(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"x" * (3 * MIB))
    fd = os.open(file, os.O_RDONLY)
    reader = PipeReader(fd)
    taken = 0
    async with asyncio.timeout(SECONDS):
        while data := await reader.read(65_536):
            taken += len(data)
    assert taken == 3 * MIB
    os.close(fd)


@pytest.mark.req("mcp.server.stdio")
async def test_short_and_long_messages_are_written_in_order(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    writer = PipeWriter(write, lambda: None)
    parts = [bytes([65 + n % 26]) * (n * 7919 % 20_000) for n in range(200)]
    reader = PipeReader(read)
    expected = b"".join(parts)
    found = b""
    async with asyncio.timeout(SECONDS):
        for part in parts:
            writer.write(part)
            if len(found) < len(expected) // 2:
                found += await reader.read(65_536) if part else b""
        while len(found) < len(expected):
            found += await reader.read(65_536)
    assert found == expected
    await writer.flush(1.0)
    reader.close()


@pytest.mark.req("mcp.server.stdio", "mcp.server.backpressure")
async def test_a_writer_that_nobody_reads_says_that_it_is_full(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    writer = PipeWriter(write, lambda: None)
    for _ in range(30):
        writer.write(b"x" * 65_536)
    writer.close()
    assert writer.full
    waiting = asyncio.create_task(writer.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    await writer.flush(0.01)  # does not wait longer than it is told
    reader = PipeReader(read)
    async with asyncio.timeout(SECONDS):
        taken = 0
        while taken < 30 * 65_536:
            taken += len(await reader.read(65_536))
        await waiting
    assert [writer.full] == [False]
    reader.close()


@pytest.mark.req("mcp.server.stdio", "mcp.server.end")
async def test_a_broken_pipe_is_told(pipe: tuple[int, int]) -> None:
    read, write = pipe
    broken = asyncio.Event()
    writer = PipeWriter(write, broken.set)
    os.close(read)
    writer.write(b"into the void")
    async with asyncio.timeout(SECONDS):
        await broken.wait()
        await writer.drain()
        await writer.flush(1.0)
    with pytest.raises(BrokenPipeError):
        writer.write(b"more")


@pytest.mark.req("mcp.server.stdio", "mcp.server.end")
@pytest.mark.parametrize("how", ["end", "broken", "cancel"])
async def test_the_standard_streams_are_served_to_their_end(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    monkeypatch.setattr(
        stdio_module,
        "taken_standard_streams",
        lambda: contextlib.nullcontext((in_read, out_write)),
    )
    ended: list[bool] = []
    async with MCPServer(tools=create_registry(add)) as server:
        task = asyncio.create_task(
            stdio_module.run_stdio(
                server.serve, signals=True, on_end=lambda: ended.append(True)
            )
        )
        os.write(in_write, json.dumps(request(1, "ping")).encode() + b"\n")
        reader = PipeReader(out_read)
        async with asyncio.timeout(SECONDS):
            assert json.loads(await reader.read(1000))["id"] == 1
            reader.close()
            if how == "end":
                os.close(in_write)
            elif how == "broken":
                os.close(out_read)
                os.write(in_write, json.dumps(request(2, "ping")).encode() + b"\n")
            else:
                task.cancel()
            await asyncio.wait({task})
        assert ended == [True]
        assert task.cancelled() is (how == "cancel")
    for fd in (in_read, out_write, *((in_write,) if how != "end" else ())):
        os.close(fd)
    if how != "broken":
        os.close(out_read)


@pytest.mark.req("mcp.server.stdout")
def test_the_standard_streams_are_given_back() -> None:
    from executionkit.mcp._server.pipes import taken_standard_streams

    before = [os.fstat(fd).st_ino for fd in (0, 1)]
    with taken_standard_streams() as (in_fd, out_fd):
        assert [os.fstat(fd).st_ino for fd in (in_fd, out_fd)] == before
        assert not os.get_inheritable(in_fd)
        assert not os.get_inheritable(out_fd)
        assert os.fstat(1).st_ino == os.fstat(2).st_ino
        assert stat.S_ISCHR(os.fstat(0).st_mode)
        assert os.read(0, 10) == b""
    assert [os.fstat(fd).st_ino for fd in (0, 1)] == before
    os.close(in_fd)
    os.close(out_fd)


# --- loading ---
def module(monkeypatch: pytest.MonkeyPatch, **names: Any) -> ModuleType:
    from types import ModuleType

    made = ModuleType("some_tools")
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, "some_tools", made)
    return made


async def tools_of(server: MCPServer) -> set[str]:
    await server.handle_message(
        request(0, "initialize", {"protocolVersion": "2025-11-25"})
    )
    listed = await server.handle_message(request(1, "tools/list"))
    await server.close()
    assert isinstance(listed, dict)
    return {tool["name"] for tool in listed["result"]["tools"]}


@pytest.mark.req("mcp.server.command")
@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("some_tools", {"registry": lambda: create_registry(add)}),
        ("some_tools", {"tools": lambda: [add]}),
        ("some_tools:mine", {"mine": lambda: create_registry(add)}),
        ("some_tools:make", {"make": lambda: lambda: [add]}),
        ("some_tools:box.inner", {"box": lambda: type("Box", (), {"inner": [add]})}),
        ("some_tools:server", {"server": lambda: MCPServer(tools=[add])}),
    ],
)
async def test_tools_are_found_where_the_command_line_says(
    where: str, names: dict[str, Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, **{name: make() for name, make in names.items()})
    assert await tools_of(load_server(where, "a name")) == {"add"}


@pytest.mark.req("mcp.server.command")
async def test_without_a_name_the_default_registry_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from executionkit.tools.decorators import ToolRegistryProvider, get_default_registry

    before = get_default_registry()
    await ToolRegistryProvider.set_registry(create_registry(add))
    try:
        module(monkeypatch, tools="no list")
        assert await tools_of(load_server("some_tools")) == {"add"}
    finally:
        await ToolRegistryProvider.set_registry(before)
    assert await tools_of(load_server(None)) == {"consensus", "react_loop"}


@pytest.mark.req("mcp.server.command")
def test_what_cannot_be_served_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module(monkeypatch, text="text", number=5, missing=lambda: None)
    for where in ("text", "number", "missing"):
        with pytest.raises(TypeError, match=f"some_tools:{where}"):
            load_server(f"some_tools:{where}")
    assert main(["--tools", "some_tools:number"]) == 2
    assert main(["--http", "x"]) == 2
    assert main(["--http", ":99999"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


# --- messages ---
@pytest.mark.req("mcp.server.jsonrpc", "mcp.server.one-answer")
async def test_an_answer_that_is_no_json_is_an_error_and_never_missing() -> None:
    server = MCPServer(
        tools=create_registry(add),
        resources=[Resource(uri="a://b", name="b", read=lambda: {"x": object()})],
        prompts=[
            Prompt(name="p", render=lambda: [{"role": "user", "content": float("nan")}])
        ],
    )
    async with Client(server) as client:
        await client.initialize()
        for message in (
            request(1, "prompts/get", {"name": "p"}),
            request(2, "resources/read", {"uri": "a://b"}),
        ):
            assert (await client.ask(message))["error"]["code"] == -32603


@pytest.mark.req("mcp.server.jsonrpc")
def test_what_cannot_be_written_is_replaced() -> None:
    good = {"jsonrpc": "2.0", "id": 1, "result": {"a": (1, {2})}}
    bad = {"jsonrpc": "2.0", "id": 2, "result": object()}
    told = {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"data": bad},
    }
    assert json.loads(encode(good))["result"] == {"a": [1, [2]]}
    first, second = json.loads(encode([good, bad]))
    assert first["id"] == 1
    assert (second["id"], second["error"]["code"]) == (2, -32603)
    assert json.loads(encode(told)) == {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {},
    }


# --- streams ---
@pytest.mark.req("mcp.http.streams")
async def test_a_quiet_stream_shows_that_it_is_there(auto_clock: FakeClock) -> None:
    stream = EventStream("s1")
    frames = stream.frames()
    assert await anext(frames) == heartbeat
    assert auto_clock.monotonic() >= 15
    stream.put({"jsonrpc": "2.0", "method": "x"})
    assert b"id: s1-0" in await anext(frames)
    stream.finish()
    with pytest.raises(StopAsyncIteration):
        await anext(frames)


@pytest.mark.req("mcp.http.streams", "mcp.http.limits")
async def test_a_stream_keeps_only_so_much() -> None:
    stream = EventStream("s1")
    for number in range(6000):
        stream.put({"jsonrpc": "2.0", "method": "x", "params": {"n": number}})
    assert stream.full
    stream.finish()
    frames = [frame async for frame in stream.frames()]
    assert b'"n":5999' in frames[-1]
    assert len(frames) <= 4097
    assert len([frame async for frame in stream.frames()]) <= 256
    assert stream.size < MIB
    plain = EventStream(None)
    plain.put({"jsonrpc": "2.0", "method": "x"})
    plain.finish()
    assert len([frame async for frame in plain.frames()]) == 1
    assert plain.size == 0


@pytest.mark.req("mcp.http.streams", "mcp.server.backpressure")
async def test_a_stream_is_waited_for_only_while_somebody_reads_it() -> None:
    stream = EventStream("s1")
    for _ in range(300):
        stream.put({"jsonrpc": "2.0", "method": "x"})
    async with asyncio.timeout(SECONDS):
        await stream.drain()  # nobody reads
        frames = stream.frames()
        await anext(frames)
        waiting = asyncio.create_task(stream.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        for _ in range(60):
            await anext(frames)
        await waiting
        await frames.aclose()


# --- running HTTP ---
@pytest.mark.req("mcp.server.command", "mcp.http.limits")
async def test_http_is_served_until_it_is_told_to_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with MCPServer(tools=create_registry(add)) as server:
        task = asyncio.create_task(run_http(server, "127.0.0.1:0", signals=False))
        async with asyncio.timeout(SECONDS):
            while "serving http://127.0.0.1:" not in capsys.readouterr().err:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait({task})
        with pytest.raises(ValueError, match="HOST:PORT"):
            await run_http(server, "here")


@pytest.mark.req("mcp.http.sessions")
async def test_a_server_can_be_started_and_ended_again() -> None:
    async with MCPServer(tools=create_registry(add)) as server:
        http = HTTPServer(server, options=HTTPOptions(path="/tools"))
        for _ in range(2):
            task = asyncio.create_task(http.serve_forever())
            while True:
                await asyncio.sleep(0)
                try:
                    assert http.url.endswith("/tools")
                    break
                except RuntimeError:
                    continue
            task.cancel()
            await asyncio.wait({task})
            await http.close()


@pytest.mark.req("mcp.server.names")
async def test_a_tool_can_be_called_by_its_full_name_too() -> None:
    registry = create_registry()
    registry.add(add, namespace="math")
    async with Client(MCPServer(tools=registry)) as client:
        await client.initialize()
        answer = await client.ask(call(1, "math.add", a=1, b=2))
        assert answer["result"]["content"][0]["text"] == "3"
