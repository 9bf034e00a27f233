"""The server that tests talk to, seen through a bare socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
from collections.abc import AsyncIterator

import pytest

from executionkit.testing import FakeClock, settle
from executionkit.testing.http import (
    Gate,
    ReceivedRequest,
    Reply,
    ScriptedServer,
    drip,
    json_reply,
    no_reply,
    raw_reply,
    reset_reply,
    sse_reply,
)

pytestmark = pytest.mark.req("testing.scripted-server")

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


class Client:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.read()

    async def body(self) -> bytes:
        """The body of a reply with a length."""
        head = (await self.until(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        async with asyncio.timeout(5):
            return await self.reader.readexactly(length)


@contextlib.asynccontextmanager
async def connected(server: ScriptedServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def whole(server: ScriptedServer, request: bytes = GET) -> bytes:
    async with connected(server) as client:
        client.write(request)
        return await client.rest()


class TestReplies:
    async def test_a_json_reply_is_complete(self) -> None:
        async with (
            ScriptedServer([json_reply({"a": "ü"}, status=429)]) as server,
            connected(server) as client,
        ):
            client.write(GET)
            head = await client.until(b"\r\n\r\n")
            body = await client.until(b"}")
        lines = head.decode().split("\r\n")
        assert lines[0] == "HTTP/1.1 429 Too Many Requests"
        assert set(lines[1:3]) == {
            "content-type: application/json",
            f"Content-Length: {len(body)}",
        }
        assert json.loads(body) == {"a": "ü"}

    async def test_events_are_chunks_of_their_own(self) -> None:
        reply = sse_reply(["a\nb", {"x": 1}, ("ping", {}), b": raw\n\n"])
        async with ScriptedServer([reply]) as server, connected(server) as client:
            client.write(GET)
            head = await client.until(b"\r\n\r\n")
            body = await client.until(b"0\r\n\r\n")
        assert b"text/event-stream" in head
        chunks = body.split(b"\r\n")[1:-3:2]
        assert chunks == [
            b"data: a\ndata: b\n\n",
            b'data: {"x": 1}\n\n',
            b"event: ping\ndata: {}\n\n",
            b": raw\n\n",
            b"data: [DONE]\n\n",
        ]

    async def test_no_last_event_when_none_is_wanted(self) -> None:
        assert sse_reply(["a"], done=None).pieces == (b"data: a\n\n",)

    async def test_a_body_can_end_with_the_connection(self) -> None:
        async with ScriptedServer([Reply(body=b"abc", framing="close")]) as server:
            answer = await whole(server)
        assert answer.endswith(b"Connection: close\r\n\r\nabc")
        assert b"content-length" not in answer.lower()

    async def test_raw_bytes_are_all_that_is_sent(self) -> None:
        async with ScriptedServer([raw_reply(b"garbage")]) as server:
            assert await whole(server) == b"garbage"

    async def test_a_chunked_body_can_lack_its_end(self) -> None:
        reply = Reply(body=b"abc", framing="chunked", ending="cut")
        async with ScriptedServer([reply]) as server:
            assert (await whole(server)).endswith(b"\r\n\r\n3\r\nabc\r\n")

    async def test_a_sized_body_can_lack_its_end(self) -> None:
        reply = Reply(200, {"Content-Length": "10"}, b"abc", ending="cut")
        async with ScriptedServer([reply]) as server:
            answer = await whole(server)
        assert b"Content-Length: 10\r\n" in answer
        assert answer.endswith(b"\r\n\r\nabc")

    async def test_a_reply_can_be_a_reset(self) -> None:
        async with ScriptedServer([reset_reply()]) as server:
            with pytest.raises(ConnectionResetError):
                await whole(server)

    async def test_a_reset_can_come_inside_the_body(self) -> None:
        gate = Gate()
        reply = Reply(200, {"Content-Length": "9"}, [b"abc", gate], ending="reset")
        async with ScriptedServer([reply]) as server, connected(server) as client:
            client.write(GET)
            await client.until(b"abc")
            gate.open()
            with pytest.raises(ConnectionResetError):
                await client.rest()

    async def test_a_request_can_stay_without_answer(self) -> None:
        async with ScriptedServer([no_reply()]) as server, connected(server) as client:
            client.write(GET)
            await server.received()
            read = asyncio.ensure_future(client.reader.read(1))
            await settle()
            assert not read.done()
            assert server.in_flight == 1
            read.cancel()

    async def test_an_answer_to_head_has_no_body(self) -> None:
        async with ScriptedServer([Reply(body=b"abc", close=True)]) as server:
            answer = await whole(server, GET.replace(b"GET", b"HEAD"))
        assert b"Content-Length: 3\r\n" in answer
        assert answer.endswith(b"\r\n\r\n")

    @pytest.mark.parametrize("status", [204, 304])
    async def test_some_statuses_have_no_body(self, status: int) -> None:
        async with ScriptedServer([Reply(status, close=True)]) as server:
            assert b"content-length" not in (await whole(server)).lower()

    def test_a_reply_is_a_value(self) -> None:
        reply = Reply(200, {"a": "b"}, [b"x", b"y"])
        assert reply.pieces == (b"x", b"y")
        assert pickle.loads(pickle.dumps(reply)) == reply
        assert Reply(body=b"").pieces == ()


class TestGates:
    async def test_a_held_reply_waits_for_its_gate(self) -> None:
        gate = Gate()
        async with (
            ScriptedServer(json_reply(1, hold=gate)) as server,
            connected(server) as client,
        ):
            client.write(GET)
            await gate.arrived()
            assert server.in_flight == 1
            gate.release()
            assert await client.body() == b"1"
            client.write(GET)
            await gate.arrived(2)
            assert server.in_flight == 1
            gate.open()
            assert await client.body() == b"1"

    async def test_an_event_is_a_gate_too(self) -> None:
        event = asyncio.Event()
        reply = Reply(body=[b"a", event, b"b"], hold=event)
        async with ScriptedServer([reply]) as server, connected(server) as client:
            client.write(GET)
            await server.received()
            event.set()
            assert await client.body() == b"ab"

    async def test_drops_come_one_at_a_time(self) -> None:
        gate = Gate()
        reply = Reply(body=drip(b"abcde", gate, size=2), close=True)
        async with ScriptedServer([reply]) as server, connected(server) as client:
            client.write(GET)
            await client.until(b"\r\n\r\n")
            seen = []
            for count in range(1, 4):
                await gate.arrived(count)
                gate.release()
                async with asyncio.timeout(5):
                    seen.append(await client.reader.read(100))
        assert seen == [b"ab", b"cd", b"e"]

    async def test_waiting_for_what_does_not_happen_fails(self) -> None:
        async with ScriptedServer() as server:
            for wait in (
                server.received(timeout=0.001),
                server.busy(1, timeout=0.001),
                server.disconnected(0.001),
                Gate().arrived(timeout=0.001),
            ):
                with pytest.raises(TimeoutError):
                    await wait

    async def test_a_fake_clock_does_not_stop_the_server(
        self, fake_clock: FakeClock
    ) -> None:
        async with ScriptedServer([json_reply(1)]) as server:
            async with connected(server) as client:
                client.write(GET)
                assert await client.body() == b"1"
            with pytest.raises(TimeoutError):
                await server.received(2, timeout=0.001)
        assert fake_clock.sleeps == []


class TestRecords:
    async def test_a_request_is_recorded_as_it_came(self) -> None:
        async with (
            ScriptedServer([json_reply(1), json_reply(2)]) as server,
            connected(server) as client,
        ):
            client.write(b"POST /a?b=c HTTP/1.1\r\nX-A:  b \r\nContent-Le")
            client.write(b'ngth: 7\r\n\r\n{"a"')
            await settle()
            assert server.requests == []
            client.write(b":1}")
            await client.body()
            client.write(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            await client.body()
        first, second = server.requests
        assert (first.method, first.path) == ("POST", "/a?b=c")
        assert first.headers == {"x-a": "b", "content-length": "7"}
        assert first.json() == {"a": 1}
        assert (second.method, second.body) == ("PUT", b"abcde")
        assert (first.connection, second.connection) == (0, 0)
        assert server.accepted == 1

    async def test_requests_in_flight_are_counted(self) -> None:
        gate = Gate()
        async with ScriptedServer(json_reply(1, hold=gate)) as server:
            async with connected(server) as one, connected(server) as two:
                one.write(GET)
                await server.busy(1)
                two.write(GET)
                await server.busy(2)
                assert (server.in_flight, server.open_connections) == (2, 2)
                gate.open()
                await one.body()
                await two.body()
                await settle()
                assert (server.in_flight, server.peak) == (0, 2)
            await server.idle()
            assert server.disconnects == 0

    @pytest.mark.parametrize("reply", [no_reply(), Reply(body=[b"x", Gate()])])
    async def test_a_client_that_leaves_is_noticed(self, reply: Reply) -> None:
        async with ScriptedServer([reply]) as server:
            async with connected(server) as client:
                client.write(GET)
                await server.received()
            await server.disconnected()
            await server.idle()
            assert (server.in_flight, server.disconnects) == (0, 1)

    async def test_a_client_that_leaves_inside_its_request_is_no_request(self) -> None:
        async with ScriptedServer() as server:
            async with connected(server) as client:
                client.write(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
                await settle()
            await server.idle()
            assert (server.requests, server.disconnects) == ([], 0)

    async def test_noise_is_hung_up_on(self) -> None:
        async with ScriptedServer() as server:
            assert await whole(server, b"\x16\x03\x01") == b""


class TestScripts:
    async def test_a_function_decides(self) -> None:
        async def slowly(request: ReceivedRequest) -> Reply:
            await settle(2)
            return Reply(body=request.path.encode(), close=True)

        async with ScriptedServer(slowly) as server:
            assert (await whole(server)).endswith(b"/x")
        async with ScriptedServer(lambda _: Reply(418, close=True)) as server:
            assert b" 418 " in await whole(server)

    async def test_one_request_too_many_is_told_at_the_end(self) -> None:
        async def ask_twice() -> None:
            async with ScriptedServer([Reply(close=True)]) as server:
                assert b" 200 " in await whole(server)
                async with connected(server) as client:
                    client.write(GET)
                    assert b" 500 " in await client.until(b"\r\n\r\n")

        with pytest.raises(AssertionError, match=r"GET /x: .*no more replies"):
            await ask_twice()

    async def test_a_failing_function_is_told_at_the_end(self) -> None:
        def fail(_request: ReceivedRequest) -> Reply:
            raise KeyError("choices")

        async def ask() -> None:
            async with ScriptedServer(fail) as server, connected(server) as client:
                client.write(GET)
                await client.body()

        with pytest.raises(AssertionError, match="KeyError: 'choices'"):
            await ask()

    async def test_a_failure_of_the_test_is_not_hidden_by_it(self) -> None:
        async def ask_and_fail() -> None:
            async with ScriptedServer() as server, connected(server) as client:
                client.write(GET)
                await client.body()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await ask_and_fail()

    @pytest.mark.parametrize("reset", [False, True])
    async def test_connections_can_be_dropped(self, *, reset: bool) -> None:
        async with ScriptedServer(json_reply(1)) as server, connected(server) as client:
            client.write(GET)
            await client.body()
            server.drop_connections(reset=reset)
            if reset:
                with pytest.raises(ConnectionResetError):
                    await client.rest()
            else:
                assert await client.rest() == b""

    async def test_leaving_the_block_ends_everything(self) -> None:
        before = asyncio.all_tasks()
        async with ScriptedServer(no_reply()) as server:
            client = await asyncio.open_connection("127.0.0.1", server.port)
            client[1].write(GET)
            await server.received()
        assert asyncio.all_tasks() == before
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        client[1].close()
