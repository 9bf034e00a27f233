"""A client made of bytes, to talk to the server without any library."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from executionkit.mcp import MCPServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

SECONDS = 10.0
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"


def request(id: object, method: str, params: object = None) -> dict[str, Any]:  # noqa: A002
    made: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        made["params"] = params
    return made


def modern(
    id: object,  # noqa: A002
    method: str,
    params: dict[str, Any] | None = None,
    *,
    able: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A request of the version without a handshake."""
    found = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": able or {},
        **(meta or {}),
    }
    return request(id, method, {**(params or {}), "_meta": found})


def call(id: object, name: str, **arguments: Any) -> dict[str, Any]:  # noqa: A002
    return request(id, "tools/call", {"name": name, "arguments": arguments})


class Pipe:
    """Bytes from the one end to the other, with a limit like that of a pipe."""

    def __init__(self, limit: int = 1024 * 1024) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._limit = limit
        self._data = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.ended = False
        self.broken = False

    async def read(self, n: int, /) -> bytes:
        while not self._chunks and not self.ended:
            self._data.clear()
            await self._data.wait()
        data = self._chunks.popleft() if self._chunks else b""
        if len(data) > n:
            self._chunks.appendleft(data[n:])
            data = data[:n]
        self._size -= len(data)
        if self._size <= self._limit:
            self._room.set()
        return data

    def write(self, data: bytes, /) -> None:
        if self.broken:
            raise BrokenPipeError
        if not data:
            return
        self._chunks.append(data)
        self._size += len(data)
        if self._size > self._limit:
            self._room.clear()
        self._data.set()

    async def drain(self) -> None:
        await self._room.wait()

    async def close(self) -> None:
        self.ended = True
        self._data.set()

    @property
    def full(self) -> bool:
        return self._size > self._limit

    @property
    def size(self) -> int:
        return self._size


class Client:
    """Talks to a server over two pipes; every wait has a limit."""

    def __init__(self, server: MCPServer, *, limit: int = 1024 * 1024) -> None:
        self.server = server
        self.to_server = Pipe()
        self.from_server = Pipe(limit)
        self.seen: list[Any] = []
        """All that was received, in order."""
        self._rest = b""
        self._taken = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        serving = self.server.serve(self.to_server, self.from_server)
        self._task = asyncio.create_task(serving)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()
        await self.server.close()

    async def end(self) -> None:
        """Close the input, and wait for the server's end."""
        await self.to_server.close()
        assert self._task is not None
        async with asyncio.timeout(SECONDS):
            await asyncio.wait({self._task})
        self._task.result()

    async def send_bytes(self, data: bytes) -> None:
        self.to_server.write(data)
        async with asyncio.timeout(SECONDS):
            await self.to_server.drain()

    async def send(self, *messages: object) -> None:
        data = b"".join(json.dumps(one).encode() + b"\n" for one in messages)
        await self.send_bytes(data)

    async def receive(self) -> Any:
        """The next message."""
        async with asyncio.timeout(SECONDS):
            while b"\n" not in self._rest:
                data = await self.from_server.read(65_536)
                if not data:
                    msg = "the server said nothing more"
                    raise EOFError(msg)
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        self.seen.append(message)
        return message

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        """The first message, of those not asked for yet, that is `wanted`."""
        for one in self.seen[self._taken :]:
            if wanted(one):
                return one
        while not wanted(message := await self.receive()):
            pass
        return message

    async def answer(self, id: object) -> Any:  # noqa: A002
        """The answer to a request, whenever it comes."""
        return await self.until(
            lambda one: (
                isinstance(one, dict) and one.get("id") == id and "method" not in one
            )
        )

    async def ask(self, message: dict[str, Any]) -> Any:
        """Send a request; its answer."""
        await self.send(message)
        return await self.answer(message["id"])

    async def notified(self, method: str) -> Any:
        """The params of the first notification of that method."""
        found = await self.until(
            lambda one: isinstance(one, dict) and one.get("method") == method
        )
        return found.get("params")

    async def initialize(self, version: str = "2025-11-25", **able: Any) -> Any:
        """Say hello; what the server is."""
        params = {
            "protocolVersion": version,
            "capabilities": able,
            "clientInfo": {"name": "test", "version": "1"},
        }
        answer = await self.ask(request("hello", "initialize", params))
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]
