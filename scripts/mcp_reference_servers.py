"""Drive the reference MCP servers through our client, over both transports.

`python -m scripts.mcp_reference_servers`. Node and the servers go into `.node/`, which
is not part of the repository; nothing is installed when they are there. The servers are
`everything`, `filesystem` and `memory`; each call goes through a `ToolProcessor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from executionkit.calls import ToolCall, ToolResult
from executionkit.mcp.client import (
    MCPConnection,
    MCPOptions,
    MCPToolError,
    StdioServer,
    add_mcp_server,
)
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from scripts import mcp_conformance as common

FOLDER = common.FOLDER / "reference"
VERSION = "2026.8.31"
SERVERS = ("everything", "filesystem", "memory")
SECONDS = 60
SCRATCH = Path(tempfile.gettempdir()).resolve()
# The server listens on all interfaces and has no setting for it.
LOOPBACK = """
const net = require("net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  const done = rest.filter((item) => typeof item === "function");
  return isNaN(Number(port)) ? listen.call(this, port, ...rest)
    : listen.call(this, { port: Number(port), host: "127.0.0.1" }, ...done);
};
"""


def script(server: str) -> str:
    package = FOLDER / "node_modules" / "@modelcontextprotocol" / f"server-{server}"
    return str(package / "dist" / "index.js")


def get_servers() -> None:
    wanted = [f"@modelcontextprotocol/server-{name}@{VERSION}" for name in SERVERS]
    mark = FOLDER / "installed.json"
    if mark.exists() and json.loads(mark.read_text(encoding="utf-8")) == wanted:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text("{}", encoding="utf-8")
    (FOLDER / "loopback.cjs").write_text(LOOPBACK, encoding="utf-8")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--save-exact"]
    done = common.run([*common.npm(), "install", *options, *wanted], FOLDER)
    if done.returncode or not Path(script("memory")).exists():
        common.give_up(f"npm failed with code {done.returncode}", done.stdout)
    mark.write_text(json.dumps(wanted), encoding="utf-8")


class Bench:
    """A server's tools in a registry, and a processor around them."""

    def __init__(self, registry: ToolRegistry, connection: MCPConnection) -> None:
        self.connection = connection
        self.processor = ToolProcessor(registry)
        self.count = 0

    async def run(self, name: str, /, **arguments: Any) -> ToolResult:
        self.count += 1
        [result] = await self.processor.process([ToolCall(None, name, arguments)])
        return result

    async def value(self, name: str, /, **arguments: Any) -> Any:
        result = await self.run(name, **arguments)
        if result.error is not None:
            common.give_up(f"{name}: {result.error}")
        return result.result

    def expect(self, what: str, good: object, seen: object) -> None:
        if not good:
            common.give_up(f"{self.connection.name}: {what}", repr(seen))


@asynccontextmanager
async def bench(name: str, server: Any, **settings: Any) -> AsyncIterator[Bench]:
    registry = create_registry()
    connection = await add_mcp_server(registry, server, name=name, **settings)
    async with connection:
        made = Bench(registry, connection)
        try:
            yield made
        finally:
            await made.processor.close()
    version = "" if made.count == 0 else f", {made.count} calls"
    print(f"mcp client: {name}{version}: passed", flush=True)


async def decline(_context: Any, _params: Any) -> Any:
    from mcp.types import ElicitResult

    return ElicitResult(action="decline")


async def sample(_context: Any, _params: Any) -> Any:
    from mcp.types import CreateMessageResult, TextContent

    said = TextContent(type="text", text="sampled!")
    return CreateMessageResult(role="assistant", content=said, model="none")


def answering() -> MCPOptions:
    return MCPOptions(
        client={"elicitation_callback": decline, "sampling_callback": sample}
    )


async def everything(made: Bench) -> None:
    """Text, data, pictures, links, progress, questions of the server, bad arguments."""
    expect = made.expect
    expect("its tools", len(made.connection.tools) >= 10, made.connection.tools)
    expect("no problems", not made.connection.problems, made.connection.problems)
    said = await made.value("echo", message="hi")
    expect("echo", said == "Echo: hi", said)
    said = await made.value("get-sum", a=1, b=2)
    expect("sum", "3" in said, said)
    said = await made.value("get-structured-content", location="New York")
    expect("data", set(said) >= {"temperature", "conditions"}, said)
    said = await made.value("get-tiny-image")
    kinds = [block["type"] for block in said["content"]]
    expect("an image", "image" in kinds, kinds)
    said = await made.value("get-resource-links", count=2)
    kinds = [block["type"] for block in said["content"]]
    expect("links", kinds.count("resource_link") == 2, kinds)
    said = await made.value("get-annotated-message", messageType="error")
    expect("annotations", "annotations" in said["content"][0], said)
    call = ToolCall(
        None, "trigger-long-running-operation", {"duration": 0.3, "steps": 3}
    )
    items = [item async for item in made.processor.astream([call])]
    told = [item.result for item in items if item.is_partial][:-1]
    expect("progress", [item["progress"] for item in told] == [1, 2, 3], told)
    wrong = await made.run("get-sum", a="x")
    expect("our check of arguments", "not valid" in str(wrong.error), wrong)
    for name in ("trigger-sampling-request", "trigger-elicitation-request"):
        if name in made.connection.tools:
            arguments = {"prompt": "x"} if "sampling" in name else {}
            await made.value(name, **arguments)


async def filesystem(made: Bench, folder: Path) -> None:
    """Files that are there, and files that are out of bounds."""
    expect = made.expect
    said = await made.value("read_text_file", path=str(folder / "a.txt"))
    expect("a file", "hello" in json.dumps(said), said)
    await made.value("write_file", path=str(folder / "b.txt"), content="new")
    expect("a new file", (folder / "b.txt").read_text() == "new", "")
    outside = await made.run("read_text_file", path="/etc/passwd")
    expect("a refusal", isinstance(outside.exception, MCPToolError), outside)
    expect("its words", "denied" in str(outside.error), outside.error)
    effects = {
        record.name: record.tool.side_effects
        for record in made.processor.registry.records()
    }
    expect("hints", effects["read_text_file"] == "read", effects)
    expect("hints", effects["write_file"] == "destructive", effects)


async def memory(made: Bench) -> None:
    """What was written is found, by another process too."""
    entity = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
    await made.value("create_entities", entities=[entity])
    said = await made.value("search_nodes", query="Ada")
    made.expect("what was written", "counts" in json.dumps(said), said)
    pid = made.connection.pid
    if pid is not None:
        os.kill(pid, 9)
    for _ in range(100):
        if not made.connection.is_connected:
            break
        await asyncio.sleep(0.05)
    said = await made.value("open_nodes", names=["Ada"])
    made.expect("what was kept", "counts" in json.dumps(said), said)
    made.expect("anew", made.connection.generation == 2, made.connection)


@contextmanager
def over_http() -> Iterator[str]:
    """The server `everything` on a free port of this machine; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    preload = ["--require", str(FOLDER / "loopback.cjs")]
    process = subprocess.Popen(
        [str(common.node()), *preload, script("everything"), "streamableHttp"],
        env={**os.environ, "PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()


async def listening(url: str) -> None:
    port = int(url.rpartition(":")[2].partition("/")[0])
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def drive() -> None:
    node = str(common.node())
    stdio = StdioServer(node, [script("everything"), "stdio"])
    async with bench("everything over stdio", stdio, options=answering()) as made:
        await everything(made)
    with over_http() as url:
        await listening(url)
        async with bench("everything over HTTP", url, options=answering()) as made:
            await everything(made)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        folder = Path(name)
        (folder / "a.txt").write_text("hello\n")
        stdio = StdioServer(node, [script("filesystem"), str(folder)])
        async with bench("filesystem over stdio", stdio) as made:
            await filesystem(made, folder)
        env = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
        stdio = StdioServer(node, [script("memory")], env)
        async with bench("memory over stdio", stdio) as made:
            await memory(made)


async def main() -> None:
    async with asyncio.timeout(SECONDS):
        await drive()


if __name__ == "__main__":
    common.FOLDER.mkdir(exist_ok=True)
    common.get_node()
    get_servers()
    try:
        asyncio.run(main())
    except TimeoutError:
        sys.exit(f"mcp: not done after {SECONDS} s")
