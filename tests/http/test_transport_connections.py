"""Connections: kept, reused, retried when stale, one set per loop, TLS, proxies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeAlias

import pytest

from executionkit._http import (
    HttpRequest,
    HttpResponse,
    HttpTimeouts,
    HttpTransport,
    open_transport,
)
from executionkit.errors import (
    MissingExtraError,
    PermanentError,
    ProviderConnectionError,
)
from executionkit.testing import FakeClock, settle
from executionkit.testing.http import (
    Gate,
    ReceivedRequest,
    Reply,
    ScriptedServer,
    raw_reply,
    reset_reply,
)

Open: TypeAlias = Callable[..., HttpTransport]

LIMITS = HttpTimeouts(total=30, connect=10)


async def send(
    transport: HttpTransport, url: str, method: str = "POST"
) -> HttpResponse:
    async with asyncio.timeout(5):
        return await transport.send(HttpRequest(method, url), LIMITS)


async def stream(
    transport: HttpTransport, url: str, method: str = "POST"
) -> HttpResponse:
    async with asyncio.timeout(5):
        opened = await transport.open_stream(HttpRequest(method, url), LIMITS)
        try:
            return HttpResponse(opened.status, opened.headers, await opened.read(1000))
        finally:
            await opened.aclose()


both_ways = pytest.mark.parametrize(
    "way", [pytest.param(send, id="send"), pytest.param(stream, id="stream")]
)


class TestReuse:
    @pytest.mark.req("http.keep-alive")
    @pytest.mark.parametrize("framing", ["length", "chunked"])
    async def test_a_connection_serves_many_requests_also_after_idling(
        self, transport: HttpTransport, fake_clock: FakeClock, framing: Any
    ) -> None:
        async with ScriptedServer(Reply(body=b"ok", framing=framing)) as server:
            for _ in range(3):
                assert (await send(transport, server.url)).body == b"ok"
                await fake_clock.advance(50)
            assert server.accepted == 1

    @pytest.mark.req("http.keep-alive")
    async def test_a_connection_that_the_server_wants_closed_is_not_reused(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer(Reply(body=b"ok", close=True)) as server:
            await send(transport, server.url)
            await send(transport, server.url)
            assert server.accepted == 2

    @pytest.mark.req("http.keep-alive")
    async def test_the_standard_library_drops_what_idled_too_long(
        self, fake_clock: FakeClock
    ) -> None:
        transport = open_transport("stdlib")
        async with ScriptedServer(Reply(body=b"ok")) as server:
            await send(transport, server.url)
            await fake_clock.advance(61)
            await send(transport, server.url)
            assert server.accepted == 2
            await transport.aclose()

    @pytest.mark.req("http.keep-alive")
    async def test_bytes_that_nobody_asked_for_end_the_connection(
        self, transport: HttpTransport
    ) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
        late = Gate()
        first = raw_reply([head + b"ok", late, head + b"NO"], ending="hang")
        async with ScriptedServer([first, Reply(body=b"ok")]) as server:
            assert (await send(transport, server.url)).body == b"ok"
            late.open()
            await settle()
            assert (await send(transport, server.url)).body == b"ok"
            assert server.accepted == 2

    @pytest.mark.req("http.keep-alive")
    async def test_a_connection_with_an_unsent_rest_is_not_reused(self) -> None:
        transport = open_transport("stdlib")
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
        accepted = []
        async with asyncio.timeout(10):
            for body in (b"x" * 30_000_000, b""):
                request = HttpRequest("POST", url, {}, body)
                task = asyncio.create_task(transport.send(request, LIMITS))
                accepted.append((await loop.sock_accept(listener))[0])
                await loop.sock_recv(accepted[-1], 100)
                await loop.sock_sendall(accepted[-1], early)
                assert (await task).status == 413
        await transport.aclose()
        for each in (*accepted, listener):
            each.close()

    @pytest.mark.req("http.stale")
    @pytest.mark.parametrize("reset", [False, True])
    async def test_a_server_that_closed_while_idle_is_not_noticed(
        self, transport: HttpTransport, *, reset: bool
    ) -> None:
        async with ScriptedServer(Reply(body=b"ok")) as server:
            await send(transport, server.url)
            server.drop_connections(reset=reset)
            assert (await send(transport, server.url)).body == b"ok"
            assert len(server.requests) == 2

    @pytest.mark.req("http.stale")
    @pytest.mark.parametrize("broken", [raw_reply(b""), reset_reply()])
    @pytest.mark.parametrize("method", ["GET", "POST"])
    @both_ways
    async def test_a_stale_connection_is_retried_once_on_a_fresh_one(
        self, transport: HttpTransport, way: Any, method: str, broken: Reply
    ) -> None:
        script = [Reply(body=b"1"), broken, Reply(body=b"2")]
        async with ScriptedServer(script) as server:
            await send(transport, server.url)
            assert (await way(transport, server.url, method)).body == b"2"
            assert len(server.requests) == 3
            assert server.accepted == 2
        counts: Any = getattr(transport, "connection_counts")  # noqa: B009
        assert (counts.resent, counts.failed) == (1, 0)

    @pytest.mark.req("http.stale")
    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_the_retry_passes_by_other_old_connections(
        self, transport: HttpTransport, method: str
    ) -> None:
        both = Gate()

        def answer(request: ReceivedRequest) -> Reply:
            if len(server.requests) <= 2:
                return Reply(body=b"old", hold=both)
            return raw_reply(b"") if request.connection < 2 else Reply(body=b"new")

        async with ScriptedServer(answer) as server:
            pair = asyncio.gather(*(send(transport, server.url) for _ in range(2)))
            await server.busy(2)
            both.open()
            await pair
            assert (await send(transport, server.url, method)).body == b"new"
            assert len(server.requests) == 4

    @pytest.mark.req("http.stale")
    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("start", [b"H", b"HTTP/1.1 200 OK\r\nA: b\r\n"])
    @pytest.mark.parametrize("ending", ["cut", "reset"])
    async def test_a_request_that_the_server_has_begun_to_answer_is_not_repeated(
        self, transport: HttpTransport, method: str, start: bytes, ending: Any
    ) -> None:
        gate = Gate()
        broken = raw_reply([start, gate], ending=ending)
        async with ScriptedServer([Reply(body=b"1"), broken]) as server:
            await send(transport, server.url)
            task = asyncio.create_task(send(transport, server.url, method))
            await gate.arrived()
            await settle()
            gate.open()
            with pytest.raises(ProviderConnectionError):
                await task
            assert len(server.requests) == 2

    @pytest.mark.req("http.stale")
    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_a_fresh_connection_is_never_retried(
        self, transport: HttpTransport, method: str
    ) -> None:
        script = [raw_reply(b""), Reply(body=b"1"), raw_reply(b""), raw_reply(b"")]
        async with ScriptedServer(script) as server:
            with pytest.raises(ProviderConnectionError):
                await send(transport, server.url, method)
            assert len(server.requests) == 1
            await send(transport, server.url)
            with pytest.raises(ProviderConnectionError):
                await send(transport, server.url, method)
            assert len(server.requests) == 4


class TestParallel:
    @pytest.mark.req("HT-14", "D-15")
    async def test_150_requests_are_in_flight_at_once(
        self, transport: HttpTransport
    ) -> None:
        gate = Gate()
        async with ScriptedServer(Reply(body=b"ok", hold=gate)) as server:
            tasks = [
                asyncio.create_task(send(transport, server.url)) for _ in range(150)
            ]
            await server.busy(150)
            gate.open()
            answers = await asyncio.gather(*tasks)
            assert {answer.body for answer in answers} == {b"ok"}
            assert server.peak == 150

    @pytest.mark.req("HT-14")
    async def test_the_chosen_limit_holds_and_nobody_is_forgotten(
        self, open_one: Open
    ) -> None:
        transport = open_one(max_connections=3)
        async with ScriptedServer(Reply(body=b"ok")) as server:
            answers = await asyncio.gather(
                *(send(transport, server.url) for _ in range(20)),
                *(stream(transport, server.url) for _ in range(20)),
            )
            assert {answer.body for answer in answers} == {b"ok"}
            assert server.peak <= 3
            assert server.accepted <= 3

    @pytest.mark.req("D-15")
    async def test_a_busy_default_executor_does_not_hold_requests_up(
        self, backend: str, transport: HttpTransport
    ) -> None:
        if backend.startswith("httpx"):
            pytest.skip("httpx looks names up in the default executor")
        release = threading.Event()
        loop = asyncio.get_running_loop()
        blocked = [loop.run_in_executor(None, release.wait, 5) for _ in range(64)]
        try:
            async with ScriptedServer(Reply(body=b"ok")) as server:
                url = server.url.replace("127.0.0.1", "localhost")
                assert (await send(transport, url)).body == b"ok"
        finally:
            release.set()
            await asyncio.gather(*blocked)


@contextlib.contextmanager
def served(
    script: Any,
) -> Iterator[tuple[ScriptedServer, asyncio.AbstractEventLoop]]:
    """A server on a loop of its own, in a thread."""
    server = ScriptedServer(script)
    up, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with server:
            up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert up.wait(5)
    try:
        yield server, loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
        loop.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestLoops:
    @pytest.mark.req("D-14", "http.per-loop")
    def test_one_loop_after_another_without_closing(self, backend: str) -> None:
        transport = open_transport(backend)
        with served(Reply(body=b"ok")) as (server, _):
            for _ in range(3):
                assert asyncio.run(send(transport, server.url)).body == b"ok"
                gc.collect()  # an unclosed socket would speak up here
            assert server.accepted == 3

    @pytest.mark.req("D-14", "http.per-loop")
    def test_two_loops_in_two_threads(self, backend: str) -> None:
        transport = open_transport(backend)
        gate = Gate()
        bodies: list[bytes] = []

        async def several(url: str) -> None:
            for _ in range(5):
                bodies.append((await send(transport, url)).body)
            await transport.aclose()

        with served(Reply(body=b"ok", hold=gate)) as (server, loop):
            threads = [
                threading.Thread(target=lambda: asyncio.run(several(server.url)))
                for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            while server.in_flight < 2:
                threads[0].join(0.001)
            loop.call_soon_threadsafe(gate.open)
            for thread in threads:
                thread.join(10)
        assert bodies == [b"ok"] * 10
        assert server.accepted == 2

    @pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
    @pytest.mark.req("http.per-loop")
    def test_many_short_loops_leave_nothing_behind(self, backend: str) -> None:
        transport = open_transport(backend)
        with served(Reply(body=b"ok")) as (server, _):
            asyncio.run(send(transport, server.url))
            gc.collect()
            before = open_files()
            for _ in range(40):
                asyncio.run(send(transport, server.url))
            gc.collect()
            assert open_files() <= before + 1
        assert len(transport._clients) == 1  # type: ignore[attr-defined]

    @pytest.mark.req("http.per-loop")
    async def test_a_transport_that_nobody_holds_closes_its_connections(
        self, backend: str
    ) -> None:
        async with ScriptedServer(Reply(body=b"ok")) as server:
            transport = open_transport(backend)
            await send(transport, server.url)
            assert server.open_connections == 1
            del transport
            gc.collect()
            await server.idle()


class TestTls:
    @pytest.mark.req("http.tls")
    @both_ways
    async def test_a_trusted_server_is_talked_to(
        self,
        open_one: Open,
        way: Any,
        server_tls: ssl.SSLContext,
        client_tls: ssl.SSLContext,
    ) -> None:
        transport = open_one(tls=client_tls)
        body = b"x" * 500
        async with ScriptedServer(Reply(body=body), tls=server_tls) as server:
            for _ in range(2):
                assert (await way(transport, server.url)).body == body
            assert server.accepted == 1
            await transport.aclose()
            await server.idle()

    @pytest.mark.req("http.tls", "D-13")
    async def test_an_unknown_certificate_is_refused(
        self, transport: HttpTransport, server_tls: ssl.SSLContext
    ) -> None:
        async with ScriptedServer(Reply(), tls=server_tls) as server:
            with pytest.raises(ProviderConnectionError, match=r"(?i)certificate"):
                await send(transport, server.url)
            assert not server.requests

    @pytest.mark.req("http.tls", "http.cancel")
    async def test_cancelling_closes_a_secure_socket_too(
        self,
        open_one: Open,
        server_tls: ssl.SSLContext,
        client_tls: ssl.SSLContext,
    ) -> None:
        transport = open_one(tls=client_tls)
        reply = Reply(body=[b"x"], framing="chunked", ending="hang")
        async with ScriptedServer(reply, tls=server_tls) as server:
            task = asyncio.create_task(send(transport, server.url))
            await server.received()
            await settle()
            task.cancel()
            await asyncio.wait({task}, timeout=5)
            assert task.cancelled()
            await server.disconnected()
            await server.idle()


def is_older(library: str, backend: str, major: int, minor: int) -> bool:
    """Whether the backend is that library, in a version below."""
    if library != backend:
        return False
    version: str = pytest.importorskip(library).__version__
    return tuple(int(part) for part in version.split(".")[:2]) < (major, minor)


class TunnelProxy:
    """A proxy that knows `CONNECT` only."""

    def __init__(self, status: int = 200, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.heads: list[str] = []
        self._status = status
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, ssl=self._tls
        )
        port = self._server.sockets[0].getsockname()[1]
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://user:p%40ss@127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            writer.write(f"HTTP/1.1 {self._status} Whatever\r\n\r\n".encode())
            if self._status != 200:
                return
            host, _, port = head.split(" ")[1].rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            with contextlib.closing(far_writer):
                done, pending = await asyncio.wait(
                    {
                        asyncio.create_task(self._copy(reader, far_writer)),
                        asyncio.create_task(self._copy(far_reader, writer)),
                    },
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in pending:
                    task.cancel()
                await asyncio.gather(*done, *pending, return_exceptions=True)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


class TestProxies:
    @pytest.mark.req("http.proxies")
    @pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
    async def test_plain_requests_go_to_the_proxy_of_the_environment(
        self,
        backend: str,
        open_one: Open,
        monkeypatch: pytest.MonkeyPatch,
        variable: str,
    ) -> None:
        async with ScriptedServer(Reply(body=b"via proxy")) as proxy:
            address = proxy.url.replace("://", "://user:p%40ss@")
            monkeypatch.setenv(variable, address)
            transport = open_one()
            for _ in range(2):
                answer = await send(transport, "http://model.invalid:81/v1?q=1")
                assert answer.body == b"via proxy"
            if not is_older("aiohttp", backend, 3, 11):
                assert proxy.accepted == 1
        got = proxy.requests[0]
        assert got.path == "http://model.invalid:81/v1?q=1"
        assert got.headers["host"] == "model.invalid:81"
        assert got.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"

    @pytest.mark.req("http.proxies")
    async def test_no_proxy_is_honoured(
        self, open_one: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with ScriptedServer(Reply(body=b"ok")) as server, ScriptedServer() as no:
            monkeypatch.setenv("HTTP_PROXY", no.url)
            monkeypatch.setenv("NO_PROXY", "other.example,127.0.0.1")
            assert (await send(open_one(), server.url)).body == b"ok"
        assert no.accepted == 0

    @pytest.mark.req("http.proxies")
    @pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
    async def test_secure_requests_go_through_a_tunnel(
        self,
        secure: bool,
        backend: str,
        open_one: Open,
        monkeypatch: pytest.MonkeyPatch,
        server_tls: ssl.SSLContext,
        client_tls: ssl.SSLContext,
    ) -> None:
        if secure and is_older("httpx", backend, 0, 28):
            pytest.skip("it takes no certificates for a proxy")
        async with (
            ScriptedServer(Reply(body=b"secret"), tls=server_tls) as server,
            TunnelProxy(tls=server_tls if secure else None) as proxy,
        ):
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            transport = open_one(tls=client_tls)
            for _ in range(2):
                assert (await send(transport, server.url)).body == b"secret"
            assert server.accepted == 1
            await transport.aclose()
        assert len(proxy.heads) == 1
        first = proxy.heads[0].split("\r\n")[0]
        assert first == f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"
        assert "proxy-authorization: basic dxnlcjpwqhnz" in proxy.heads[0].lower()
        assert "proxy-authorization" not in server.requests[0].headers

    @pytest.mark.req("http.proxies")
    async def test_a_proxy_that_refuses_is_a_connection_error_without_its_password(
        self, open_one: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with TunnelProxy(407) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            with pytest.raises(ProviderConnectionError) as caught:
                await send(open_one(), "https://model.invalid/")
        assert "407" in str(caught.value)
        assert "p%40ss" not in str(caught.value) + repr(caught.value.__cause__)

    @pytest.mark.req("http.proxies")
    async def test_a_socks_proxy_is_named_where_it_cannot_be_used(
        self, backend: str, open_one: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://user:p%40ss@127.0.0.1:1")
        if backend.startswith("httpx") and importlib.util.find_spec("socksio"):
            pytest.skip("httpx speaks SOCKS with this package")
        with pytest.raises(PermanentError, match=r"(?i)socks") as caught:
            await send(open_one(), "http://model.invalid/")
        assert "p%40ss" not in str(caught.value)

    @pytest.mark.req("http.proxies")
    async def test_a_proxy_that_is_no_url_is_named(
        self, open_one: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://:nope")
        with pytest.raises(PermanentError, match="proxy"):
            await send(open_one(), "http://model.invalid/")


class TestChoice:
    @pytest.mark.req("http.choice")
    def test_every_name_gives_its_transport(self, backend: str) -> None:
        assert open_transport(backend).name == backend

    @pytest.mark.req("http.choice")
    @pytest.mark.parametrize(
        ("installed", "chosen"),
        [
            ({"aiohttp", "httpx2", "httpx"}, "aiohttp"),
            ({"httpx2", "httpx"}, "httpx2"),
            ({"httpx"}, "httpx"),
            (set(), "stdlib"),
        ],
    )
    def test_the_fastest_that_is_installed_is_taken(
        self, monkeypatch: pytest.MonkeyPatch, installed: set[str], chosen: str
    ) -> None:
        if chosen != "stdlib":
            pytest.importorskip(chosen)
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name: name if name in installed else None
        )
        assert open_transport().name == chosen

    @pytest.mark.req("http.choice")
    def test_the_environment_overrides_the_choice_and_an_argument_both(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EXECUTIONKIT_HTTP", "stdlib")
        assert open_transport().name == "stdlib"
        pytest.importorskip("httpx2")
        assert open_transport("httpx2").name == "httpx2"

    @pytest.mark.req("http.choice")
    def test_a_name_that_is_none_lists_the_choices(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ValueError, match="`aiohttp`, `httpx2`, `httpx`, `stdlib`"):
            open_transport("curl")
        monkeypatch.setenv("EXECUTIONKIT_HTTP", "requests")
        with pytest.raises(ValueError, match="`EXECUTIONKIT_HTTP` is 'requests'"):
            open_transport()

    @pytest.mark.req("http.choice")
    def test_a_missing_package_names_its_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "aiohttp", None)
        with pytest.raises(MissingExtraError, match=r"executionkit\[fast\]"):
            open_transport("aiohttp")

    def test_no_connection_at_all_is_no_limit(self) -> None:
        with pytest.raises(ValueError, match="`max_connections` must be >= 1"):
            open_transport("stdlib", max_connections=0)

    @pytest.mark.req("http.choice")
    def test_the_layer_imports_no_backend(self) -> None:
        code = (
            "import sys, executionkit._http; "
            "print([m for m in ('aiohttp', 'httpx', 'httpx2', 'ssl', 'http.client') "
            "if m in sys.modules])"
        )
        import subprocess

        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]"


@pytest.mark.req("http.per-loop")
async def test_an_open_stream_outlives_its_transport(backend: str) -> None:
    gate = Gate()
    reply = Reply(body=[b"a", gate, b"b"], framing="chunked")
    async with ScriptedServer([reply]) as server:
        opened = await open_transport(backend).open_stream(
            HttpRequest("GET", server.url), LIMITS
        )
        gc.collect()
        await settle()
        gate.open()
        async with asyncio.timeout(5):
            assert await opened.read(10) == b"ab"


@contextlib.asynccontextmanager
async def client_of(backend: str, **options: Any) -> AsyncIterator[Any]:
    """A client as a user would make it."""
    library = pytest.importorskip(backend)
    if backend == "aiohttp":
        async with library.ClientSession(**options) as session:
            yield session
    else:
        async with library.AsyncClient(**options) as client:
            yield client


@pytest.mark.parametrize("kind", ["aiohttp", "httpx2", "httpx"])
class TestOwnClients:
    @pytest.mark.req("http.own-client")
    @both_ways
    async def test_a_client_of_the_user_is_used_and_left_open(
        self, kind: str, way: Any
    ) -> None:
        async with ScriptedServer(Reply(302, {"Location": "/x"}, b"ok")) as server:
            async with client_of(kind) as client:
                transport = open_transport(client=client)
                assert transport.name == kind
                for _ in range(2):
                    answer = await way(transport, server.url)
                    assert (answer.status, answer.body) == (302, b"ok")
                await transport.aclose()
                assert not (client.closed if kind == "aiohttp" else client.is_closed)
                assert (await way(transport, server.url)).body == b"ok"
                await transport.aclose()
            assert server.accepted == 1

    @pytest.mark.req("http.own-client")
    async def test_a_closed_client_is_a_connection_error(self, kind: str) -> None:
        async with client_of(kind) as client:
            pass
        transport = open_transport(client=client)
        with pytest.raises(ProviderConnectionError, match=r"(?i)closed"):
            await send(transport, "http://127.0.0.1:1/")
        await transport.aclose()

    @pytest.mark.req("http.own-client")
    async def test_compression_is_undone_once(self, kind: str) -> None:
        import gzip

        packed = Reply(200, {"Content-Encoding": "gzip"}, gzip.compress(b"text"))
        async with ScriptedServer(packed) as server, client_of(kind) as client:
            transport = open_transport(client=client)
            assert (await send(transport, server.url)).body == b"text"
            await transport.aclose()


@pytest.mark.req("http.own-client")
@pytest.mark.parametrize("kind", ["httpx2", "httpx"])
async def test_a_mocked_client_works_and_so_does_a_look_alike(kind: str) -> None:
    library = pytest.importorskip(kind)

    def answer(request: Any) -> Any:
        return library.Response(200, json={"path": request.url.path})

    class LookAlike:
        def __init__(self, client: Any) -> None:
            self._client = client
            self.calls = 0

        async def send(self, request: Any, **options: Any) -> Any:
            self.calls += 1
            return await self._client.send(request, **options)

        async def aclose(self) -> None:
            await self._client.aclose()

    async with client_of(kind, transport=library.MockTransport(answer)) as client:
        transport = open_transport(client=client)
        answer_1 = await send(transport, "http://x/y")
        assert json.loads(answer_1.body) == {"path": "/y"}
        await transport.aclose()
        if kind == "httpx2":
            wrapper = LookAlike(client)
            transport = open_transport(client=wrapper)
            answer_2 = await send(transport, "http://x/z")
            assert json.loads(answer_2.body) == {"path": "/z"}
            assert wrapper.calls == 1
            await transport.aclose()


@pytest.mark.req("http.own-client")
def test_something_that_is_no_client_is_refused() -> None:
    with pytest.raises(ValueError, match="`client` must be"):
        open_transport(client=object())


@pytest.mark.req("http.own-client")
async def test_closing_the_session_of_the_user_is_no_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    if is_older("aiohttp", "aiohttp", 3, 11):
        pytest.skip("closing its session does not end what is under way")
    never = asyncio.Event()

    class Resolver(aiohttp.abc.AbstractResolver):  # type: ignore[name-defined, misc]
        async def resolve(self, *_args: Any, **_options: Any) -> Any:
            await never.wait()

        async def close(self) -> None:
            pass

    connector = aiohttp.TCPConnector(resolver=Resolver())
    session = aiohttp.ClientSession(connector=connector)
    transport = open_transport(client=session)
    task = asyncio.create_task(send(transport, "http://model.invalid/"))
    await settle()
    await session.close()
    with pytest.raises(ProviderConnectionError):
        await task
    await transport.aclose()
