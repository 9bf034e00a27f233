"""The server over HTTP, spoken to byte by byte."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.mcp import MCPServer, current_exchange
from executionkit.mcp.http import HTTPOptions, HTTPServer
from executionkit.tools.registry import create_registry
from tests.mcp.server_help import MODERN, call, modern, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECONDS = 10.0
BOTH = "application/json, text/event-stream"


async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Tools:
    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def slow(self) -> str:
        """Waits, with progress before and after."""
        here = current_exchange()
        assert here is not None
        here.progress(1)
        self.started.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        here.progress(2)
        return "slow"

    async def polled(self) -> str:
        """Lets go of its connection."""
        here = current_exchange()
        assert here is not None
        here.pause_stream()
        await self.open.wait()
        return "polled"


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, str]]:
        found = []
        for part in self.body.decode().split("\n\n"):
            fields = [line.partition(": ") for line in part.split("\n") if line]
            if fields:
                found.append({name: value for name, _, value in fields})
        return found

    @property
    def messages(self) -> list[Any]:
        return [json.loads(one["data"]) for one in self.events if one.get("data")]


class Caller:
    """One connection after the other to the server."""

    def __init__(self, http: HTTPServer, tools: Tools) -> None:
        self.http, self.tools = http, tools
        self.port = int(http.url.rpartition(":")[2].partition("/")[0])
        self.session: str | None = None

    async def open(
        self, method: str, message: object = None, **headers: str | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = b"" if message is None else json.dumps(message).encode()
        given: dict[str, str | None] = {
            "Host": f"localhost:{self.port}",
            "Accept": BOTH,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Mcp-Session-Id": self.session,
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        path = given.pop("path", None) or "/mcp"
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [
            f"{name}: {value}" for name, value in given.items() if value is not None
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        return reader, writer

    async def read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer:
        async with asyncio.timeout(SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value
                for name, _, value in (
                    line.partition(": ") for line in head[1:] if line
                )
            }
            body = await reader.read()
        writer.close()
        if headers.get("transfer-encoding") == "chunked":
            body = unchunked(body)
        return Answer(int(head[0].split()[1]), headers, body)

    async def send(
        self, method: str, message: object = None, **headers: str | None
    ) -> Answer:
        return await self.read(*await self.open(method, message, **headers))

    async def initialize(self, version: str = "2025-11-25") -> Answer:
        params = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        answer = await self.send("POST", request(0, "initialize", params))
        self.session = answer.headers.get("mcp-session-id")
        return answer

    async def modern(
        self, message: dict[str, Any], name: str | None = None, **headers: str | None
    ) -> Answer:
        given = {
            "MCP_Protocol_Version": MODERN,
            "Mcp_Method": message["method"],
            "Mcp_Name": name,
            "Mcp_Session_Id": None,
        }
        return await self.send("POST", message, **{**given, **headers})


def unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        found += data[:length]
        data = data[length + 2 :]
    return found


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    tools = Tools()
    registry = create_registry(add, tools.slow, tools.polled)
    options = HTTPOptions(max_sessions=3, max_body_bytes=5000, max_connections=20)
    async with (
        MCPServer(tools=registry) as server,
        HTTPServer(server, options=options) as http,
    ):
        yield Caller(http, tools)


# --- sessions ---
@pytest.mark.req("mcp.http.sessions")
async def test_a_session_begins_with_initialize_and_ends_with_delete(
    caller: Caller,
) -> None:
    refused = await caller.send("POST", request(1, "ping"))
    assert refused.status == 400
    hello = await caller.initialize()
    assert (hello.status, hello.json["result"]["protocolVersion"]) == (
        200,
        "2025-11-25",
    )
    assert caller.session is not None
    assert len(caller.session) == 32
    assert (await caller.send("POST", request(1, "ping"))).json["result"] == {}
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    accepted = await caller.send("POST", told)
    assert (accepted.status, accepted.body) == (202, b"")
    other = await caller.send("POST", request(1, "ping"), Mcp_Session_Id="f" * 32)
    assert other.status == 404
    assert (await caller.send("DELETE")).status == 204
    assert (await caller.send("POST", request(1, "ping"))).status == 404
    assert (await caller.send("DELETE")).status == 404
    assert caller.http.sessions == 0


@pytest.mark.req("mcp.http.sessions")
async def test_a_refused_initialize_leaves_no_session(caller: Caller) -> None:
    answer = await caller.send("POST", request(1, "initialize", {"protocolVersion": 1}))
    assert answer.json["error"]["code"] == -32602
    assert caller.http.sessions == 0


@pytest.mark.req("mcp.http.limits")
async def test_there_are_only_so_many_sessions(caller: Caller) -> None:
    for _ in range(3):
        assert (await caller.initialize()).status == 200
        caller.session = None
    assert (await caller.initialize()).status == 503
    assert caller.http.sessions == 3


@pytest.mark.req("mcp.http.limits")
async def test_a_session_that_is_not_used_makes_room_for_another(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await caller.initialize()
        caller.session = None
    for one in caller.http._sessions:
        one.used -= 61
    assert (await caller.initialize()).status == 200
    assert caller.http.sessions == 3
    for one in caller.http._sessions:
        one.used -= 10_000
    await caller.http._sessions.sweep()
    assert caller.http.sessions == 0


@pytest.mark.req("mcp.http.sessions")
async def test_the_end_of_a_session_cancels_what_runs_in_it(caller: Caller) -> None:
    await caller.initialize()
    reader, writer = await caller.open("POST", call(1, "slow"))
    async with asyncio.timeout(SECONDS):
        await caller.tools.started.wait()
    assert (await caller.send("DELETE")).status == 204
    async with asyncio.timeout(SECONDS):
        await caller.tools.cancelled.wait()
        await reader.read()
    writer.close()


# --- what is refused ---
@pytest.mark.req("mcp.http.hosts")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": None}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:99"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://[bad"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://127.0.0.1"}, 200),
    ],
)
async def test_only_known_hosts_and_origins_pass(
    caller: Caller, headers: dict[str, str | None], status: int
) -> None:
    params = {"protocolVersion": "2025-11-25"}
    answer = await caller.send("POST", request(1, "initialize", params), **headers)
    assert answer.status == status


@pytest.mark.req("mcp.http.hosts")
async def test_other_hosts_and_origins_can_be_allowed() -> None:
    options = HTTPOptions(
        allowed_hosts=("app.example",), allowed_origins=("https://ui.example",)
    )
    server = MCPServer(tools=create_registry(add))
    async with server, HTTPServer(server, options=options) as http:
        caller = Caller(http, Tools())
        hello = request(1, "initialize", {"protocolVersion": "2025-11-25"})
        good = {"Host": "app.example:8080", "Origin": "https://ui.example"}
        assert (await caller.send("POST", hello, **good)).status == 200
        bad = {"Origin": "https://ui.example.evil"}
        assert (await caller.send("POST", hello, **bad)).status == 403


@pytest.mark.req("mcp.http.hosts")
async def test_a_server_that_others_can_reach_must_know_its_names() -> None:
    server = MCPServer(tools=create_registry(add))
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(ValueError, match="allowed_hosts"):
            HTTPServer(server, host)
    HTTPServer(server, "::1")
    HTTPServer(server, "0.0.0.0", options=HTTPOptions(allowed_hosts=("a.example",)))
    with pytest.raises(ValueError, match="path"):
        HTTPOptions(path="mcp")
    with pytest.raises(ValueError, match="max_sessions"):
        HTTPOptions(max_sessions=0)
    await server.close()


@pytest.mark.req("mcp.http.strict")
@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("PUT", {}, 405),
        ("OPTIONS", {}, 405),
        ("GET", {"MCP_Protocol_Version": MODERN}, 405),
        ("DELETE", {"MCP_Protocol_Version": MODERN}, 405),
        ("POST", {"path": "/other"}, 404),
        ("POST", {"Content_Type": "text/plain"}, 415),
        ("POST", {"Content_Type": None}, 415),
        ("POST", {"Accept": "text/html"}, 406),
        ("GET", {"Accept": "application/json"}, 406),
        ("GET", {}, 400),
        ("POST", {"Content_Length": "6000"}, 413),
        ("POST", {"MCP_Protocol_Version": "1999-01-01"}, 400),
    ],
)
async def test_requests_that_are_not_of_the_protocol_are_refused(
    caller: Caller, method: str, headers: dict[str, str | None], status: int
) -> None:
    message = request(1, "ping") if method == "POST" else None
    assert (await caller.send(method, message, **headers)).status == status


@pytest.mark.req("mcp.http.strict")
async def test_a_body_that_is_no_message_is_refused(caller: Caller) -> None:
    await caller.initialize()
    for message in (5, "x", [], [request(1, "ping")], {"jsonrpc": "2.0"}):
        answer = await caller.send("POST", message)
        assert answer.status == 400, message
        assert answer.json["error"]["code"] == -32600
    reader, writer = await caller.open("POST", None, Content_Length="1")
    writer.write(b"{")
    answer = await caller.read(reader, writer)
    assert (answer.status, answer.json["error"]["code"]) == (400, -32700)


@pytest.mark.req("mcp.http.limits")
async def test_more_connections_than_allowed_are_refused(caller: Caller) -> None:
    held = [await asyncio.open_connection("127.0.0.1", caller.port) for _ in range(20)]
    async with asyncio.timeout(SECONDS):
        while len(caller.http._open) < 20:
            await asyncio.sleep(0.01)
    assert (await caller.send("POST", request(1, "ping"))).status == 503
    for _, writer in held:
        writer.close()
    async with asyncio.timeout(SECONDS):
        while len(caller.http._open) > 2:
            await asyncio.sleep(0.01)
    assert (await caller.initialize()).status == 200


@pytest.mark.req("mcp.http.limits")
async def test_a_client_that_takes_nothing_loses_its_connection() -> None:
    async def big() -> str:
        """Eight megabytes."""
        return "x" * 8_000_000

    server = MCPServer(tools=create_registry(big))
    options = HTTPOptions(read_seconds=0.2)
    async with server, HTTPServer(server, options=options) as http:
        caller = Caller(http, Tools())
        await caller.initialize()
        reader, writer = await caller.open("POST", call(1, "big"), Connection=None)
        async with asyncio.timeout(SECONDS):
            while not http._open:
                await asyncio.sleep(0.01)
            while http._open:
                await asyncio.sleep(0.01)
        writer.close()
        assert not reader.at_eof()


# --- streams ---
@pytest.mark.req("mcp.http.streams")
async def test_a_call_is_answered_by_a_stream_and_its_progress_is_in_it(
    caller: Caller,
) -> None:
    await caller.initialize()
    caller.tools.open.set()
    params = {"name": "slow", "_meta": {"progressToken": "p"}}
    answer = await caller.send("POST", request(1, "tools/call", params))
    assert answer.headers["content-type"] == "text/event-stream"
    first, *rest = answer.events
    assert first["data"] == ""
    assert "retry" in first
    ids = [one["id"] for one in answer.events]
    assert len(set(ids)) == len(ids) == 4
    progress = [one["params"]["progress"] for one in answer.messages[:2]]
    assert progress == [1, 2]
    assert answer.messages[2]["result"]["content"][0]["text"] == "slow"
    assert len(rest) == 3


@pytest.mark.req("mcp.http.streams")
async def test_a_client_that_takes_json_alone_gets_it(caller: Caller) -> None:
    await caller.initialize()
    answer = await caller.send(
        "POST", call(1, "add", a=1, b=2), Accept="application/json"
    )
    assert answer.json["result"]["content"][0]["text"] == "3"


@pytest.mark.req("mcp.http.streams")
async def test_a_lost_stream_is_taken_up_where_it_was_lost(caller: Caller) -> None:
    await caller.initialize()
    params = {"name": "slow", "_meta": {"progressToken": "p"}}
    reader, writer = await caller.open("POST", request(1, "tools/call", params))
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b'"progress":1')
    writer.close()  # the connection breaks; the call goes on
    caller.tools.open.set()
    answer = await caller.send("GET", Last_Event_ID="s1-1")
    assert answer.status == 200
    assert [one.get("method") for one in answer.messages] == [
        "notifications/progress",
        None,
    ]
    assert not caller.tools.cancelled.is_set()
    again = await caller.send("GET", Last_Event_ID="s1-0")
    assert len(again.messages) == 3
    for unknown in ("s9-1", "x", "s1-", "s1-x"):
        assert (await caller.send("GET", Last_Event_ID=unknown)).status == 404


@pytest.mark.req("mcp.http.streams")
async def test_a_tool_can_let_go_of_its_connection(caller: Caller) -> None:
    await caller.initialize()
    answer = await caller.send("POST", call(1, "polled"))
    assert answer.messages == []
    last = answer.events[-1]["id"]
    caller.tools.open.set()
    answer = await caller.send("GET", Last_Event_ID=last)
    assert answer.messages[0]["result"]["content"][0]["text"] == "polled"


@pytest.mark.req("mcp.http.streams")
async def test_changes_are_told_over_the_standing_stream(caller: Caller) -> None:
    await caller.initialize()
    reader, writer = await caller.open("GET")
    caller.http._core.tools.processor.registry.remove("add")
    caller.http._core.check_changes()
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b"notifications/tools/list_changed")
    writer.close()


@pytest.mark.req("mcp.http.streams")
async def test_a_connection_is_used_again(caller: Caller) -> None:
    await caller.initialize()
    reader, writer = await caller.open(
        "POST", call(1, "add", a=1, b=2), Connection=None
    )
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b"0\r\n\r\n")
    body = json.dumps(request(2, "ping")).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {caller.session}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Expect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b"100 Continue\r\n\r\n")
    writer.write(body)
    assert (await caller.read(reader, writer)).json == {
        "jsonrpc": "2.0",
        "id": 2,
        "result": {},
    }


# --- without a session ---
@pytest.mark.req("mcp.http.headers")
async def test_a_request_without_a_session_is_served(caller: Caller) -> None:
    found = await caller.modern(modern(1, "server/discover"))
    assert found.json["result"]["supportedVersions"] == [MODERN]
    assert "mcp-session-id" not in found.headers
    params = {"name": "add", "arguments": {"a": 1, "b": 2}}
    answer = await caller.modern(modern(2, "tools/call", params), "add")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["result"]["content"][0]["text"] == "3"
    told = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    assert (await caller.modern(told)).status == 202
    assert caller.http.sessions == 0


@pytest.mark.req("mcp.http.headers")
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Mcp_Method": "tools/list"}, 400, -32020),
        ({"Mcp_Method": "Tools/Call"}, 400, -32020),
        ({"Mcp_Method": None}, 400, -32020),
        ({"Mcp_Name": "other"}, 400, -32020),
        ({"Mcp_Name": None}, 400, -32020),
        ({"Mcp_Name": "=?base64?YWRk?="}, 200, None),
        ({"Mcp_Name": "=?base64?YWR?="}, 400, -32020),
        ({"MCP_Protocol_Version": "2030-01-01"}, 400, -32020),
        ({"MCP_Protocol_Version": None}, 400, -32020),
    ],
)
async def test_headers_must_say_what_the_body_says(
    caller: Caller, headers: dict[str, str | None], status: int, code: int | None
) -> None:
    params = {"name": "add", "arguments": {"a": 1, "b": 2}}
    answer = await caller.modern(modern(1, "tools/call", params), "add", **headers)
    assert answer.status == status
    assert answer.json.get("error", {}).get("code") == code


@pytest.mark.req("mcp.http.headers")
async def test_errors_of_the_protocol_have_their_status(caller: Caller) -> None:
    assert (await caller.modern(modern(1, "no/such"))).status == 404
    params = {"name": "no"}
    assert (await caller.modern(modern(1, "tools/call", params), "no")).status == 400
    assert (
        await caller.modern({"jsonrpc": "2.0", "id": 1, "method": "x"})
    ).status == 400


@pytest.mark.req("mcp.http.headers")
@pytest.mark.parametrize(
    ("arguments", "headers", "status"),
    [
        ({"region": "eu", "n": 1}, {"Mcp_Param_Region": "eu", "Mcp_Param_N": "1"}, 200),
        (
            {"region": "eu", "n": 1},
            {"Mcp_Param_Region": "eu", "Mcp_Param_N": "1.0"},
            200,
        ),
        ({"region": "eu", "n": 1}, {"Mcp_Param_Region": "us", "Mcp_Param_N": "1"}, 400),
        ({"region": "eu", "n": 1}, {"Mcp_Param_Region": "eu", "Mcp_Param_N": "2"}, 400),
        ({"region": "eu", "n": 1}, {"Mcp_Param_N": "1"}, 400),
        ({"region": "eu"}, {"Mcp_Param_Region": "eu", "Mcp_Param_N": "1"}, 400),
        ({"region": "é"}, {"Mcp_Param_Region": "=?base64?w6k=?="}, 200),
        ({"region": "é"}, {"Mcp_Param_Region": "=?base64?w6k?="}, 400),
    ],
)
async def test_arguments_in_headers_must_agree(
    arguments: dict[str, Any], headers: dict[str, str | None], status: int
) -> None:
    async def mirrored(region: str, n: int = 0) -> str:
        """Mirrored."""
        return region

    registry = create_registry()
    registry.add(
        mirrored,
        parameters={
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "n": {"type": "integer", "x-mcp-header": "N"},
            },
        },
    )
    server = MCPServer(tools=registry)
    async with server, HTTPServer(server) as http:
        caller = Caller(http, Tools())
        message = modern(1, "tools/call", {"name": "mirrored", "arguments": arguments})
        answer = await caller.modern(message, "mirrored", **headers)
        assert answer.status == status, answer.body


@pytest.mark.req("mcp.http.gone")
async def test_a_request_without_a_session_ends_with_its_connection(
    caller: Caller,
) -> None:
    message = modern(1, "tools/call", {"name": "slow"}, meta={"progressToken": "p"})
    reader, writer = await caller.open(
        "POST",
        message,
        MCP_Protocol_Version=MODERN,
        Mcp_Method="tools/call",
        Mcp_Name="slow",
    )
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b'"progress":1')
    writer.close()
    async with asyncio.timeout(SECONDS):
        await caller.tools.cancelled.wait()


@pytest.mark.req("mcp.http.gone")
async def test_the_end_of_the_server_ends_what_runs(caller: Caller) -> None:
    await caller.initialize()
    reader, writer = await caller.open("POST", call(1, "slow"))
    async with asyncio.timeout(SECONDS):
        await caller.tools.started.wait()
        await caller.http.close()
        await caller.tools.cancelled.wait()
        await reader.read()
    writer.close()
    with pytest.raises(RuntimeError, match="not been started"):
        _ = caller.http.url
    await caller.http.close()


@pytest.mark.req("mcp.http.gone")
async def test_the_end_while_a_client_is_being_refused_makes_no_noise() -> None:
    noise: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: noise.append(context)
    )
    async with MCPServer(tools=create_registry(add)) as server:
        http = HTTPServer(server)
        await http.start()
        port = int(http.url.rpartition(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"nonsense\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            # It is told, and the server waits for the rest of what it sends.
            assert await reader.readuntil(b"\r\n\r\n")
            await http.close()
        writer.close()
    await asyncio.sleep(0)
    assert noise == []
