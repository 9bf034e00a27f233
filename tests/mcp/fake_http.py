"""An HTTP server written by hand that answers as an MCP server of 2025-11-25 does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any, Self

OBJECT = {"type": "object"}
NAMES = ("echo", "write", "drop", "cut", "wait", "code_32000", "resumable")


@dataclass
class Seen:
    """One request that came."""

    method: str
    headers: dict[str, str]
    message: dict[str, Any]

    @property
    def rpc(self) -> str:
        return str(self.message.get("method", ""))


class FakeHttp:
    """Serves on a free port of this machine; what it does is set by its fields."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.tokens: set[str] | None = None
        """Bearer tokens that are good; None = anybody may."""
        self.session = 0
        """The session that is known; older ones are not."""
        self.status: int | None = None
        """Answered to each `tools/call`."""
        self.no_session_status = 404
        self.answers_delete = True
        self.is_sse = False
        """Whether it speaks the old transport: answers come on the stream of a GET."""
        self.post_status: int | None = None
        """Answered to each message of the old transport."""
        self._stream: asyncio.StreamWriter | None = None
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def calls(self) -> list[Seen]:
        return [item for item in self.seen if item.rpc == "tools/call"]

    def count(self, rpc: str) -> int:
        return sum(item.rpc == rpc for item in self.seen)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port or 0
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """As if the machine had gone."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                pass
        self._writers.discard(writer)
        writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        line = await reader.readline()
        if not line:
            return False
        method = line.split(b" ")[0].decode()
        headers: dict[str, str] = {}
        while (line := (await reader.readline()).strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        message: dict[str, Any] = json.loads(body) if body else {}
        self.seen.append(Seen(method, headers, message))
        return await self._answer(reader, writer, self.seen[-1])

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen
    ) -> bool:
        if seen.method == "DELETE" and not self.answers_delete:
            await reader.read()
            return False
        if self.tokens is not None:
            token = seen.headers.get("authorization", "").removeprefix("Bearer ")
            if token not in self.tokens:
                return self._send(writer, 401)
        if seen.method == "DELETE":
            return self._send(writer, 200)
        if seen.method == "GET" and self.is_sse:
            self._stream = writer
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
                b"event: endpoint\ndata: /messages?sessionId=1\n\n"
            )
            await reader.read()
            return False
        if seen.method != "POST":
            return self._send(writer, 405)
        session = seen.headers.get("mcp-session-id")
        if session is not None and session != str(self.session):
            return self._send(writer, self.no_session_status)
        if self.post_status is not None:
            return self._send(writer, self.post_status)
        if "id" not in seen.message:
            return self._send(writer, 202)
        if seen.rpc == "tools/call":
            return await self._call(reader, writer, seen)
        number = seen.message["id"]
        if seen.rpc == "initialize":
            result: dict[str, Any] = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "fake", "version": "1"},
            }
            self.session += 1
            more = f"Mcp-Session-Id: {self.session}\r\n"
            return self._result(writer, number, result, more)
        if seen.rpc == "tools/list":
            tools = [{"name": name, "inputSchema": OBJECT} for name in NAMES]
            tools[0]["annotations"] = {"readOnlyHint": True}
            return self._result(writer, number, {"tools": tools})
        return self._error(writer, number, -32601)

    async def _call(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen
    ) -> bool:
        name = seen.message["params"]["name"]
        if self.status is not None:
            return self._send(writer, self.status, more="Retry-After: 7\r\n")
        if name == "drop":
            writer.transport.abort()
            return False
        if name == "wait":
            await reader.read()
            return False
        if name == "cut":
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Connection: close\r\n\r\n: nothing yet\n\n"
            )
            await writer.drain()
            return False
        if name == "resumable":
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Connection: close\r\n\r\nid: 7\nretry: 50\ndata:\n\n"
            )
            await writer.drain()
            return False
        if name == "code_32000":
            return self._error(writer, seen.message["id"], -32000)
        text = json.dumps(seen.message["params"].get("arguments"))
        result = {"content": [{"type": "text", "text": text}]}
        return self._result(writer, seen.message["id"], result)

    def _result(
        self, writer: asyncio.StreamWriter, number: Any, result: Any, more: str = ""
    ) -> bool:
        data = {"jsonrpc": "2.0", "id": number, "result": result}
        if self._stream is not None:
            self._stream.write(f"event: message\ndata: {json.dumps(data)}\n\n".encode())
            return self._send(writer, 202)
        return self._send(writer, 200, data, more)

    def _error(self, writer: asyncio.StreamWriter, number: Any, code: int) -> bool:
        error = {"code": code, "message": "no"}
        return self._send(writer, 200, {"jsonrpc": "2.0", "id": number, "error": error})

    @staticmethod
    def _send(
        writer: asyncio.StreamWriter, status: int, data: Any = None, more: str = ""
    ) -> bool:
        body = b"" if data is None else json.dumps(data).encode()
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{more}\r\n"
        )
        writer.write(head.encode() + body)
        return True
