"""Time limits, cancellation and closing: every wait ends, and the socket with it.

The clock is moved by hand once the server has seen the request, so no real time passes.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from executionkit import CostTracker, Provider, RetryConfig, checked_complete
from executionkit._http import (
    ConnectionCounts,
    HttpRequest,
    HttpTimeouts,
    HttpTransport,
)
from executionkit.errors import ProviderConnectionError, ProviderTimeoutError
from executionkit.testing import FakeClock, settle
from executionkit.testing.http import (
    Gate,
    Reply,
    ScriptedServer,
    drip,
    json_reply,
    no_reply,
    sse_reply,
)

Open: TypeAlias = Callable[..., HttpTransport]

BODY = b"x" * 40


def get(url: str) -> HttpRequest:
    return HttpRequest("GET", url)


def dripping(gate: Gate) -> Reply:
    return Reply(body=drip(BODY, gate), framing="chunked")


async def failure_of(task: asyncio.Task[Any]) -> BaseException:
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done, "still running"
    if task.cancelled():
        return asyncio.CancelledError()
    failure = task.exception()
    assert failure is not None, f"it returned {task.result()!r}"
    return failure


@contextmanager
def full_backlog() -> Iterator[str]:
    """A server that answers no connection attempt: the system drops them."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(3):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for each in (*fillers, listener):
            each.close()


async def read_all(transport: HttpTransport, url: str, limits: HttpTimeouts) -> bytes:
    return (await transport.send(get(url), limits)).body


async def stream_all(transport: HttpTransport, url: str, limits: HttpTimeouts) -> bytes:
    stream = await transport.open_stream(get(url), limits)
    try:
        return b"".join([chunk async for chunk in stream.chunks()])
    finally:
        await stream.aclose()


Way: TypeAlias = Callable[
    [HttpTransport, str, HttpTimeouts], Coroutine[None, None, bytes]
]
both_ways = pytest.mark.parametrize(
    "way", [pytest.param(read_all, id="send"), pytest.param(stream_all, id="stream")]
)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def start(
    way: Way, transport: HttpTransport, url: str, limits: HttpTimeouts
) -> asyncio.Task[bytes]:
    return asyncio.create_task(way(transport, url, limits))


class TestTotal:
    @pytest.mark.req("D-16", "http.total")
    @both_ways
    async def test_a_server_that_never_answers_is_given_up(
        self, transport: HttpTransport, fake_clock: FakeClock, way: Way
    ) -> None:
        async with ScriptedServer(no_reply()) as server:
            task = start(way, transport, server.url, HttpTimeouts(total=10))
            await server.received()
            await fake_clock.advance(9.9)
            assert not task.done()
            await fake_clock.advance(0.2)
            failure = await failure_of(task)
            await server.disconnected()
        assert isinstance(failure, ProviderTimeoutError)
        assert failure.metadata["limit"] == "total"
        assert "within 10 s, the `total` limit" in str(failure)
        assert failure.retryable
        assert failure.__cause__ is failure.__context__ is None

    @pytest.mark.req("D-16", "ST-17")
    @both_ways
    async def test_a_dripping_body_does_not_stretch_the_total_limit(
        self, transport: HttpTransport, fake_clock: FakeClock, way: Way
    ) -> None:
        gate = Gate()
        began = fake_clock.monotonic()
        async with ScriptedServer([dripping(gate)]) as server:
            task = start(way, transport, server.url, HttpTimeouts(total=1))
            for count in range(1, 30):
                await gate.arrived(count)
                if task.done():
                    break
                await fake_clock.advance(0.3)
                gate.release()
                await settle()
                if task.done():
                    break
            failure = await failure_of(task)
            await server.disconnected()
        assert isinstance(failure, ProviderTimeoutError)
        assert failure.metadata["limit"] == "total"
        assert fake_clock.monotonic() - began == pytest.approx(1.2)

    @pytest.mark.req("http.total")
    async def test_the_total_limit_runs_on_while_the_reader_is_busy(
        self, transport: HttpTransport, fake_clock: FakeClock
    ) -> None:
        reply = sse_reply(["a", "b"], ending="hang")
        async with ScriptedServer([reply]) as server:
            stream = await transport.open_stream(get(server.url), HttpTimeouts(total=5))
            chunks = stream.chunks()
            async with asyncio.timeout(5):
                await anext(chunks)
                await fake_clock.advance(6)
                with pytest.raises(ProviderTimeoutError, match="total"):
                    await anext(chunks)
            await server.disconnected()

    async def test_without_limits_a_request_waits(
        self, transport: HttpTransport, fake_clock: FakeClock
    ) -> None:
        gate = Gate()
        unlimited = HttpTimeouts(total=None, connect=None)
        async with ScriptedServer([json_reply(1, hold=gate)]) as server:
            task = start(read_all, transport, server.url, unlimited)
            await server.received()
            await fake_clock.advance(100_000)
            gate.open()
            async with asyncio.timeout(5):
                assert await task == b"1"

    async def test_waiting_for_a_slot_counts(
        self, open_one: Open, fake_clock: FakeClock
    ) -> None:
        transport = open_one(max_connections=1)
        async with ScriptedServer(no_reply()) as server:
            first = start(read_all, transport, server.url, HttpTimeouts(total=100))
            await server.received()
            limits = HttpTimeouts(total=10, connect=1)
            second = start(read_all, transport, server.url, limits)
            await fake_clock.advance(11)
            failure = await failure_of(second)
            assert isinstance(failure, ProviderTimeoutError)
            assert failure.metadata["limit"] == "total"
            first.cancel()
            await failure_of(first)
        assert len(server.requests) == 1


class TestIdle:
    @pytest.mark.req("ST-16")
    @pytest.mark.parametrize("pieces", [(), (b"some",)], ids=["headers", "bytes"])
    @both_ways
    async def test_silence_in_the_body_ends_the_request(
        self,
        transport: HttpTransport,
        fake_clock: FakeClock,
        way: Way,
        pieces: tuple[bytes, ...],
    ) -> None:
        gate = Gate()
        reply = Reply(body=[*pieces, gate], framing="chunked")
        async with ScriptedServer([reply]) as server:
            limits = HttpTimeouts(total=100, idle=5)
            task = start(way, transport, server.url, limits)
            await gate.arrived()
            await fake_clock.advance(4.9)
            assert not task.done()
            await fake_clock.advance(0.2)
            failure = await failure_of(task)
            await server.disconnected()
        assert isinstance(failure, ProviderTimeoutError)
        assert failure.metadata["limit"] == "idle"
        assert "within 5 s, the `idle` limit; raise `idle`" in str(failure)

    @pytest.mark.req("ST-16")
    @both_ways
    async def test_drops_keep_the_idle_limit_away_and_the_total_limit_holds(
        self, transport: HttpTransport, fake_clock: FakeClock, way: Way
    ) -> None:
        gate = Gate()
        async with ScriptedServer([dripping(gate)]) as server:
            limits = HttpTimeouts(total=20, idle=5)
            task = start(way, transport, server.url, limits)
            for count in range(1, 30):
                await gate.arrived(count)
                await fake_clock.advance(2.5)
                if task.done():
                    break
                gate.release()
            failure = await failure_of(task)
        assert isinstance(failure, ProviderTimeoutError)
        assert failure.metadata["limit"] == "total"
        assert count == 8

    async def test_silence_before_the_headers_is_not_idle(
        self, transport: HttpTransport, fake_clock: FakeClock
    ) -> None:
        gate = Gate()
        async with ScriptedServer([json_reply(1, hold=gate)]) as server:
            limits = HttpTimeouts(total=100, idle=5)
            task = start(read_all, transport, server.url, limits)
            await gate.arrived()
            await fake_clock.advance(50)
            gate.open()
            async with asyncio.timeout(5):
                assert await task == b"1"

    async def test_a_slow_reader_is_not_a_silent_server(
        self, transport: HttpTransport, fake_clock: FakeClock
    ) -> None:
        gate = Gate()
        reply = Reply(body=[b"a", gate, b"b"], framing="chunked")
        async with ScriptedServer([reply]) as server:
            limits = HttpTimeouts(total=100, idle=5)
            stream = await transport.open_stream(get(server.url), limits)
            chunks = stream.chunks()
            async with asyncio.timeout(5):
                assert await anext(chunks) == b"a"
                await fake_clock.advance(50)
                gate.open()
                assert await anext(chunks) == b"b"
                assert [chunk async for chunk in chunks] == []


class TestConnect:
    @pytest.mark.skipif(sys.platform != "linux", reason="how the system drops a SYN")
    @pytest.mark.req("HT-15", "http.connect")
    @both_ways
    async def test_an_address_that_does_not_answer_is_given_up(
        self, transport: HttpTransport, fake_clock: FakeClock, way: Way
    ) -> None:
        with full_backlog() as url:
            limits = HttpTimeouts(total=100, connect=2)
            task = start(way, transport, url, limits)
            await fake_clock.advance(1.9)
            assert not task.done()
            await fake_clock.advance(0.2)
            failure = await failure_of(task)
        assert isinstance(failure, ProviderTimeoutError)
        assert failure.metadata["limit"] == "connect"
        assert "within 2 s, the `connect` limit; raise `connect`" in str(failure)

    @pytest.mark.skipif(sys.platform != "linux", reason="how the system drops a SYN")
    @pytest.mark.req("HT-15", "http.connect")
    async def test_two_dead_addresses_of_twenty_hold_the_end_for_the_retries_alone(
        self, transport: HttpTransport, fake_clock: FakeClock
    ) -> None:
        def provider(url: str) -> Provider:
            return Provider(url, "m", connect_timeout=2, transport=transport)

        reply = json_reply({"choices": [{"message": {"content": "ok"}}]})
        messages = [{"role": "user", "content": "q"}]
        retry = RetryConfig(2, base_delay=0.0)
        trackers = [CostTracker() for _ in range(20)]
        began = fake_clock.monotonic()
        async with ScriptedServer(reply) as server:
            with full_backlog() as dead:
                urls = [server.url] * 18 + [dead] * 2
                tasks = [
                    asyncio.create_task(
                        checked_complete(provider(url), messages, counted, None, retry)
                    )
                    for url, counted in zip(urls, trackers, strict=True)
                ]
                async with asyncio.timeout(5):
                    answers = await asyncio.gather(*tasks[:18])
                assert [item.content for item in answers] == ["ok"] * 18
                assert fake_clock.monotonic() == began  # nobody waited for the dead
                for _ in range(3):
                    assert not any(task.done() for task in tasks[18:])
                    await fake_clock.advance(2.0)
                failures = [await failure_of(task) for task in tasks[18:]]
        assert fake_clock.monotonic() - began == pytest.approx(6.0)  # 3 tries of 2 s
        for failure in failures:
            assert isinstance(failure, ProviderTimeoutError)
            assert failure.metadata["limit"] == "connect"
            assert failure.attempts == 3
            assert str(failure).endswith(" (requests sent: 3)")
        assert [counted.call_count for counted in trackers] == [1] * 18 + [3] * 2
        counts = provider(server.url).connection_counts
        assert counts.failed == 6
        assert 7 <= counts.dialed <= 18 + 6
        assert counts.resent == 0

    @pytest.mark.req("http.connect")
    async def test_a_refused_connection_is_counted(
        self, transport: HttpTransport
    ) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        with pytest.raises(ProviderConnectionError):
            await transport.send(get(url), HttpTimeouts())
        counts: Any = getattr(transport, "connection_counts")  # noqa: B009
        assert counts == ConnectionCounts(dialed=1, failed=1)

    @pytest.mark.req("http.connect")
    async def test_a_kept_connection_is_counted_once(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer(json_reply(1)) as server:
            for _ in range(3):
                await transport.send(get(server.url), HttpTimeouts())
        counts: Any = getattr(transport, "connection_counts")  # noqa: B009
        assert counts == ConnectionCounts(dialed=1)

    @pytest.mark.req("http.connect")
    async def test_a_tls_handshake_that_stalls_is_given_up(
        self, transport: HttpTransport, fake_clock: FakeClock
    ) -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        limits = HttpTimeouts(total=100, connect=2)
        task = start(read_all, transport, url, limits)
        async with asyncio.timeout(5):
            accepted, _ = await loop.sock_accept(listener)
            assert await loop.sock_recv(accepted, 10_000)
            await fake_clock.advance(2.1)
            failure = await failure_of(task)
            assert await loop.sock_recv(accepted, 10) == b""
        accepted.close()
        listener.close()
        assert isinstance(failure, ProviderTimeoutError)
        assert failure.metadata["limit"] == "connect"


class TestCancellation:
    @pytest.mark.req("D-16", "D-17", "http.cancel")
    @pytest.mark.parametrize("place", ["head", "body"])
    @both_ways
    async def test_cancelling_closes_the_socket_at_once(
        self, transport: HttpTransport, way: Way, place: str
    ) -> None:
        gate = Gate()
        pieces: list[bytes | Gate] = [b"x", gate]
        reply = no_reply() if place == "head" else Reply(body=pieces, framing="chunked")
        async with ScriptedServer([reply]) as server:
            task = start(way, transport, server.url, HttpTimeouts())
            await server.received()
            if place == "body":
                await gate.arrived()
            await settle()
            task.cancel()
            failure = await failure_of(task)
            await server.disconnected()
            await server.idle()
        assert type(failure) is asyncio.CancelledError

    @pytest.mark.skipif(sys.platform != "linux", reason="how the system drops a SYN")
    @pytest.mark.req("http.cancel")
    async def test_cancelling_ends_an_attempt_to_connect(
        self, transport: HttpTransport
    ) -> None:
        with full_backlog() as url:
            task = start(read_all, transport, url, HttpTimeouts())
            await settle()
            task.cancel()
            assert type(await failure_of(task)) is asyncio.CancelledError

    @pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
    @pytest.mark.req("http.cancel")
    async def test_cancelling_drops_what_is_left_of_an_upload(
        self, transport: HttpTransport
    ) -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        body = b"x" * 30_000_000
        request = HttpRequest("POST", url, {}, body)
        task = asyncio.create_task(transport.send(request, HttpTimeouts()))
        async with asyncio.timeout(10):
            accepted, _ = await loop.sock_accept(listener)
            assert await loop.sock_recv(accepted, 10)
            await settle()
            before = open_files()
            task.cancel()
            assert type(await failure_of(task)) is asyncio.CancelledError
            await settle()
            assert open_files() == before - 1  # though the server has not read it all
            received = 0
            try:
                while data := await loop.sock_recv(accepted, 1 << 20):
                    received += len(data)
            except ConnectionResetError:
                pass
        accepted.close()
        listener.close()
        assert received < len(body)

    @pytest.mark.req("http.cancel")
    async def test_a_timeout_of_the_caller_is_the_caller_s(
        self, transport: HttpTransport, fake_clock: FakeClock
    ) -> None:
        async def impatient(url: str) -> None:
            async with fake_clock.timeout(1):
                await transport.send(get(url), HttpTimeouts(total=1.5))

        async with ScriptedServer(no_reply()) as server:
            task = asyncio.create_task(impatient(server.url))
            await server.received()
            await fake_clock.advance(1)
            failure = await failure_of(task)
        assert type(failure) is TimeoutError

    @pytest.mark.req("ST-18", "http.cancel")
    async def test_a_cancelled_read_closes_the_stream_for_good(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([sse_reply(["a"], ending="hang")]) as server:
            stream = await transport.open_stream(get(server.url), HttpTimeouts())
            chunks = stream.chunks()
            async with asyncio.timeout(5):
                seen = b""
                while not seen.endswith(b"[DONE]\n\n"):
                    seen += await anext(chunks)
            read = asyncio.ensure_future(anext(chunks))
            await settle()
            read.cancel()
            assert type(await failure_of(read)) is asyncio.CancelledError
            await server.disconnected()
            for again in (chunks, stream.chunks()):
                with pytest.raises(ProviderConnectionError, match="closed before"):
                    await anext(again)
            await stream.aclose()

    @pytest.mark.req("D-17", "ST-18")
    async def test_closing_a_stream_early_aborts_it_and_twice_is_fine(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([sse_reply(["a"], ending="hang")]) as server:
            stream = await transport.open_stream(get(server.url), HttpTimeouts())
            async with asyncio.timeout(5):
                async for _ in stream.chunks():
                    break
                await stream.aclose()
                await server.disconnected()
                await stream.aclose()
            with pytest.raises(ProviderConnectionError, match="closed before"):
                await anext(stream.chunks())

    @pytest.mark.req("D-17")
    async def test_closing_a_stream_from_elsewhere_ends_the_waiting_read(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([Reply(framing="chunked", ending="hang")]) as server:
            stream = await transport.open_stream(get(server.url), HttpTimeouts())
            read = asyncio.ensure_future(anext(stream.chunks()))
            await settle()
            await stream.aclose()
            failure = await failure_of(read)
            await server.disconnected()
        assert isinstance(failure, ProviderConnectionError)

    @pytest.mark.req("D-17")
    async def test_a_stream_that_nobody_holds_is_closed(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([sse_reply(["a"], ending="hang")]) as server:
            stream = await transport.open_stream(get(server.url), HttpTimeouts())
            async with asyncio.timeout(5):
                async for _ in stream.chunks():
                    break
            del stream
            gc.collect()
            await server.disconnected()
            await server.idle()

    async def test_a_complete_stream_leaves_its_connection_usable(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([sse_reply(["a"]), json_reply(1)]) as server:
            await stream_all(transport, server.url, HttpTimeouts())
            assert await read_all(transport, server.url, HttpTimeouts()) == b"1"
            assert server.accepted == 1
            assert server.disconnects == 0

    @pytest.mark.req("http.cancel")
    async def test_a_cancelled_request_frees_its_slot(self, open_one: Open) -> None:
        transport = open_one(max_connections=1)
        async with ScriptedServer([no_reply(), json_reply(1)]) as server:
            first = start(stream_all, transport, server.url, HttpTimeouts())
            await server.received()
            second = start(read_all, transport, server.url, HttpTimeouts())
            await settle()
            assert len(server.requests) == 1
            first.cancel()
            await failure_of(first)
            async with asyncio.timeout(5):
                assert await second == b"1"


class TestClosing:
    @pytest.mark.req("http.close")
    async def test_nothing_is_left_and_it_can_be_used_again(
        self, transport: HttpTransport
    ) -> None:
        before = asyncio.all_tasks()
        async with ScriptedServer(json_reply(1)) as server:
            for _ in range(2):
                await asyncio.gather(
                    *(read_all(transport, server.url, HttpTimeouts()) for _ in range(3))
                )
                assert server.open_connections == 3
                await transport.aclose()
                await transport.aclose()
                await server.idle()
            assert server.accepted == 6
        assert asyncio.all_tasks() == before

    @pytest.mark.req("http.close")
    async def test_closing_fails_what_is_looking_up_a_name(
        self, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered, leave = threading.Event(), threading.Event()

        def hang(*_args: object, **_kwargs: object) -> None:
            entered.set()
            leave.wait(5)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda *a, **k: (
                hang() if {"x.invalid", b"x.invalid"} & {*a} else real(*a, **k)
            ),
        )
        task = start(read_all, transport, "http://x.invalid/", HttpTimeouts())
        try:
            while not entered.is_set():
                await settle()
            await transport.aclose()
            failure = await failure_of(task)
        finally:
            leave.set()
        assert isinstance(failure, ProviderConnectionError)
        assert "the transport was closed" in str(failure)

    @pytest.mark.req("http.close")
    async def test_closing_fails_what_waits_for_its_turn(self, open_one: Open) -> None:
        transport = open_one(max_connections=1)
        async with ScriptedServer(no_reply()) as server:
            tasks = [
                start(read_all, transport, server.url, HttpTimeouts()) for _ in range(3)
            ]
            await server.received()
            await transport.aclose()
            for task in tasks:
                assert isinstance(await failure_of(task), ProviderConnectionError)
            assert len(server.requests) == 1

    @pytest.mark.req("http.close")
    @both_ways
    async def test_closing_fails_what_is_in_flight(
        self, transport: HttpTransport, way: Way
    ) -> None:
        reply = Reply(body=[b"x"], framing="chunked", ending="hang")
        async with ScriptedServer([reply]) as server:
            task = start(way, transport, server.url, HttpTimeouts())
            await server.received()
            await settle()
            await transport.aclose()
            failure = await failure_of(task)
            await server.idle()
        assert isinstance(failure, ProviderConnectionError)
