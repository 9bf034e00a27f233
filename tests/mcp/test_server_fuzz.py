"""Whatever comes in: the server lives, and every request gets exactly one answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from executionkit.mcp import MCPServer, Prompt, Resource, ServerOptions
from executionkit.mcp._constants import LEGACY_VERSIONS
from executionkit.mcp._server.lines import lines
from executionkit.mcp._server.pages import page
from executionkit.mcp._server.wire import Connection, Head, WireError
from executionkit.testing import FakeClock
from executionkit.tools.registry import create_registry
from tests.mcp.server_help import MODERN, Client, request

LIMIT = 50_000
quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def echo(value: Any) -> Any:
    """Echo."""
    return value


def make() -> MCPServer:
    return MCPServer(
        tools=create_registry(add, echo),
        resources=[Resource(uri="a://{x}", name="a", read=lambda x: x)],
        prompts=[Prompt(name="p", render=lambda: "x")],
        options=ServerOptions(
            max_message_bytes=LIMIT, max_concurrency=2, max_waiting=3
        ),
    )


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["add", "echo", "a://b", "p", "debug", *LEGACY_VERSIONS, MODERN])
)
KEYS = st.sampled_from(
    [
        *(
            "name",
            "arguments",
            "uri",
            "cursor",
            "level",
            "ref",
            "argument",
            "requestId",
        ),
        *("_meta", "progressToken", "inputResponses", "requestState", "value", "type"),
        *("io.modelcontextprotocol/protocolVersion", "a", "b", "notifications"),
        *("io.modelcontextprotocol/clientCapabilities", "protocolVersion"),
    ]
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=15,
)
methods = st.sampled_from(
    [
        *("initialize", "ping", "tools/list", "tools/call", "logging/setLevel"),
        *("server/discover", "resources/list", "resources/read", "prompts/list"),
        *("resources/templates/list", "resources/subscribe", "resources/unsubscribe"),
        *("prompts/get", "completion/complete", "notifications/initialized"),
        *("notifications/progress", "no/such", ""),
    ]
) | st.text(max_size=10)
messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | scalars,
        "id": st.integers() | st.text(max_size=5) | values,
        "method": methods | scalars,
        "params": st.dictionaries(KEYS, values, max_size=5) | values,
        "result": values,
    },
)


def owed(message: Any) -> str | None:
    """The id under which an answer is owed, as text; None = `id: null` or none."""
    found = message.get("id")
    return json.dumps(found) if type(found) in (int, str) else None


@pytest.mark.req("mcp.server.unkillable", "T-R-34")
@quick
@given(chunks=st.lists(st.binary(max_size=300), max_size=8))
async def test_no_bytes_kill_the_server(chunks: list[bytes]) -> None:
    async with Client(make()) as client:
        for chunk in chunks:
            await client.send_bytes(chunk)
        await client.send_bytes(b"\n")
        assert (await client.ask(request("alive", "ping")))["result"] == {}


@pytest.mark.req("mcp.server.unkillable", "mcp.server.one-answer", "T-R-34")
@quick
@given(
    sent=st.lists(messages | values, max_size=8),
    version=st.sampled_from([None, *LEGACY_VERSIONS]),
)
async def test_every_request_gets_exactly_one_answer(
    sent: list[Any], version: str | None
) -> None:
    async with Client(make()) as client:
        if version is not None:
            await client.initialize(version)
        before = len(client.seen)
        for message in sent:
            await client.send_bytes(json.dumps(message).encode() + b"\n")
        await client.send_bytes(json.dumps(request("last", "ping")).encode() + b"\n")
        await client.answer("last")
        await client.end()
        while True:
            try:
                await asyncio.wait_for(client.receive(), 0.001)
            except (TimeoutError, EOFError):
                break
        answers: Counter[str | None] = Counter()
        for one in client.seen[before:]:
            for part in one if isinstance(one, list) else [one]:
                if "method" not in part:
                    assert ("result" in part) != ("error" in part)
                    assert part["jsonrpc"] == "2.0"
                    answers[None if part["id"] is None else json.dumps(part["id"])] += 1
        expected: Counter[str | None] = Counter(['"last"'])
        for message in sent:
            _expect(message, expected, batches=version == "2025-03-26")
        assert +answers == +expected


def _expect(message: Any, expected: Counter[str | None], *, batches: bool) -> None:
    text = json.dumps(message)
    if "NaN" in text or "Infinity" in text:
        # No JSON at all, unless it is inside of a text.
        try:
            json.loads(text, parse_constant=_refuse)
        except ValueError:
            expected[None] += 1
            return
    if isinstance(message, list):
        if batches and message:
            for part in message:
                _expect_one(part, expected)
        else:
            expected[None] += 1
        return
    _expect_one(message, expected)


def _expect_one(message: Any, expected: Counter[str | None]) -> None:
    if not isinstance(message, dict):
        expected[None] += 1
    elif "method" not in message and ("result" in message or "error" in message):
        pass  # a response
    elif owed(message) is not None:
        expected[owed(message)] += 1
    else:
        named = isinstance(message.get("method"), str)
        if "id" in message or message.get("jsonrpc") != "2.0" or not named:
            expected[None] += 1


def _refuse(name: str) -> None:
    raise ValueError(name)


@pytest.mark.req("mcp.server.unkillable")
async def test_a_line_that_is_too_long_is_refused_and_the_next_one_served() -> None:
    async with Client(make()) as client:
        await client.initialize()
        for length in (LIMIT + 1, LIMIT * 3, LIMIT * 40):
            await client.send_bytes(b"x" * length + b"\n")
            answer = await client.until(lambda one: "error" in one)
            assert (answer["error"]["code"], answer["id"]) == (-32600, None)
            client.seen.clear()
            assert (await client.ask(request(length, "ping")))["result"] == {}
        # It is refused, and forgotten, before its end is there.
        await client.send_bytes(b"x" * (LIMIT + 1))
        await client.until(lambda one: "error" in one)


@pytest.mark.req("mcp.server.unkillable")
@quick
@given(
    parts=st.lists(st.binary(max_size=40), max_size=10),
    cuts=st.lists(st.integers(1, 20), max_size=20),
)
async def test_lines_are_the_same_however_they_are_cut(
    parts: list[bytes], cuts: list[int]
) -> None:
    data = b"\n".join(parts)

    class Reader:
        def __init__(self) -> None:
            self.left = data
            self.cuts = list(cuts)

        async def read(self, n: int, /) -> bytes:
            size = self.cuts.pop() if self.cuts else n
            found, self.left = self.left[:size], self.left[size:]
            return found

    found = [line async for line in lines(Reader(), 60)]
    expected = [
        None if len(part) > 60 else part
        for part in data.split(b"\n")
        if len(part) > 60 or part.strip()
    ]
    assert found == expected


@pytest.mark.req("mcp.server.end")
async def test_the_end_of_the_input_lets_quick_calls_end_and_cancels_the_rest() -> None:
    cancelled = asyncio.Event()

    async def stuck() -> None:
        """Never ends."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = MCPServer(
        tools=create_registry(stuck, add), options=ServerOptions(grace=0.5)
    )
    async with Client(server) as client:
        await client.initialize()
        await client.send(
            request(1, "tools/call", {"name": "stuck"}),
            request(2, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}}),
        )
        await client.end()
        assert cancelled.is_set()
        assert "result" in await client.answer(2)


@pytest.mark.req("mcp.server.end")
async def test_when_nobody_reads_any_more_the_server_ends() -> None:
    async with Client(make()) as client:
        await client.initialize()
        client.from_server.broken = True
        await client.send(request(1, "ping"))
        assert client._task is not None
        async with asyncio.timeout(5):
            await asyncio.wait({client._task})


# --- pages ---
@pytest.mark.req("mcp.server.pages")
@given(
    names=st.lists(st.text(max_size=8), unique=True, max_size=30),
    size=st.integers(1, 10),
)
def test_pages_are_the_whole_list(names: list[str], size: int) -> None:
    found: list[str] = []
    cursor: str | None = None
    while True:
        part, cursor = page(names, cursor, size, str)
        found += part
        assert len(part) <= size
        if cursor is None:
            break
    assert found == names


# --- HTTP ---
class Socket:
    """Enough of a connection to read from."""

    def __init__(self, data: bytes) -> None:
        self.reader = asyncio.StreamReader()
        self.reader.feed_data(data)
        self.reader.feed_eof()

    def connection(self) -> Connection:
        return Connection(self.reader, None, 5.0)  # type: ignore[arg-type]


@pytest.mark.req("mcp.http.strict")
@quick
@given(data=st.binary(max_size=400))
async def test_no_bytes_break_the_reading_of_a_request(data: bytes) -> None:
    connection = Socket(data).connection()
    refused = 400
    try:
        head = await connection.head(5.0)
        if head is not None:
            await connection.body(head, 1000)
    except WireError as exc:
        refused = exc.status
    assert 400 <= refused < 500


@pytest.mark.req("mcp.http.strict")
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET / HTTP/2.0\r\n\r\n", 400),
        ("get / HTTP/1.1\r\n\r\n", 400),
        ("GET http://x/ HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nA: x\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nA: x\0y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nA: x\ry\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"
            "0\r\n\r\n",
            400,
        ),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", 400),
        ("GET / HTTP/1.1\r\n" + "A: b\r\n" * 101 + "\r\n", 431),
        ("GET / HTTP/1.1\r\nA: " + "b" * 40_000 + "\r\n\r\n", 431),
    ],
)
async def test_a_malformed_request_is_refused(text: str, status: int) -> None:
    connection = Socket(text.encode("latin-1")).connection()
    with pytest.raises(WireError) as caught:
        head = await connection.head(5.0)
        assert head is not None
        await connection.body(head, 1000)
    assert caught.value.status == status


@pytest.mark.req("mcp.http.strict")
async def test_a_body_in_chunks_is_put_together_and_the_next_request_read() -> None:
    data = (
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
        b"POST /b?q HTTP/1.0\r\nContent-Length: 2\r\n\r\nok"
    )
    connection = Socket(data).connection()
    first = await connection.head(5.0)
    assert isinstance(first, Head)
    assert await connection.body(first, 100) == b"abcde"
    second = await connection.head(5.0)
    assert isinstance(second, Head)
    assert (second.path, second.keep_alive) == ("/b", False)
    assert await connection.body(second, 100) == b"ok"
    assert await connection.head(5.0) is None


@pytest.mark.req("mcp.http.limits")
async def test_a_slow_client_is_not_waited_for(auto_clock: FakeClock) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab")
    connection = Connection(reader, None, 5.0)  # type: ignore[arg-type]
    head = await connection.head(60.0)
    assert head is not None
    with pytest.raises(WireError) as caught:
        await connection.body(head, 100)
    assert caught.value.status == 408
    assert await connection.head(60.0) is None
    assert auto_clock.monotonic() > 0
