"""What every transport does with a request, a response, and a failure."""

from __future__ import annotations

import asyncio
import gzip
import socket
import traceback
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from executionkit._http import (
    HttpRequest,
    HttpResponse,
    HttpStream,
    HttpTimeouts,
    HttpTransport,
    iter_sse,
)
from executionkit.errors import (
    BadResponseError,
    LLMError,
    PermanentError,
    ProviderConnectionError,
)
from executionkit.testing.http import (
    Gate,
    Reply,
    ScriptedServer,
    json_reply,
    raw_reply,
    reset_reply,
    sse_reply,
)

LIMITS = HttpTimeouts(total=30, connect=10)
BEARER = "bearer-of-this-test-0123456789"
URL_KEY = "key-in-the-url-0123456789"


def post(url: str, body: bytes = b"{}", **headers: str) -> HttpRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest("POST", url, named, body)


async def send(transport: HttpTransport, request: HttpRequest) -> HttpResponse:
    async with asyncio.timeout(5):
        return await transport.send(request, LIMITS)


async def stream_whole(transport: HttpTransport, request: HttpRequest) -> HttpResponse:
    async with asyncio.timeout(5):
        stream = await transport.open_stream(request, LIMITS)
        try:
            body = b"".join([chunk async for chunk in stream.chunks()])
        finally:
            await stream.aclose()
    return HttpResponse(stream.status, stream.headers, body)


Way: TypeAlias = Callable[[HttpTransport, HttpRequest], Awaitable[HttpResponse]]
both_ways = pytest.mark.parametrize(
    "way", [pytest.param(send, id="send"), pytest.param(stream_whole, id="stream")]
)


@pytest.mark.req("http.one-contract")
class TestRequests:
    @both_ways
    async def test_the_server_gets_what_was_asked(
        self, transport: HttpTransport, way: Way
    ) -> None:
        async with ScriptedServer([json_reply({"ok": True})]) as server:
            url = f"{server.url}/v1/chat?api-version=1&q=a%2Fb"
            answer = await way(transport, post(url, b'{"a":1}', X_Custom="x y"))
        got = server.requests[0]
        assert (got.method, got.path) == ("POST", "/v1/chat?api-version=1&q=a%2Fb")
        assert got.body == b'{"a":1}'
        assert got.headers["x-custom"] == "x y"
        assert got.headers["content-length"] == "7"
        assert got.headers["host"] == f"127.0.0.1:{server.port}"
        assert got.headers["user-agent"] == "executionkit"
        assert "content-type" not in got.headers
        assert "cookie" not in got.headers
        assert answer.status == 200
        assert answer.body == b'{"ok": true}'
        assert answer.headers["content-type"] == "application/json"

    async def test_a_stream_asks_for_no_compression_and_a_plain_request_does(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer(json_reply(1)) as server:
            await send(transport, post(server.url))
            await stream_whole(transport, post(server.url))
            await send(transport, post(server.url, accept_encoding="br"))
        asked = [request.headers["accept-encoding"] for request in server.requests]
        assert asked == ["gzip, deflate", "identity", "br"]

    @pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
    async def test_a_request_without_a_body_is_framed_right(
        self, transport: HttpTransport, method: str
    ) -> None:
        async with ScriptedServer([json_reply(1), json_reply(2)]) as server:
            for _ in range(2):
                answer = await send(transport, HttpRequest(method, server.url))
                assert answer.status == 200
                assert bool(answer.body) is (method != "HEAD")
        length = server.requests[0].headers.get("content-length")
        if method != "DELETE":  # both are right there
            assert length == ("0" if method in {"POST", "PUT"} else None)
        assert server.accepted == 1

    async def test_a_large_body_goes_out_whole_and_without_a_warning(
        self, transport: HttpTransport
    ) -> None:
        body = bytes(range(256)) * 12_000  # 3 MB
        async with ScriptedServer([json_reply(1)]) as server:
            await send(transport, post(server.url, body))
        assert server.requests[0].body == body

    async def test_credentials_in_the_url_become_a_basic_header(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer(json_reply(1)) as server:
            url = server.url.replace("://", "://us%40er:pass@")
            await send(transport, post(url))
            await send(transport, post(url, Authorization="Bearer x"))
        asked = [request.headers["authorization"] for request in server.requests]
        assert asked == ["Basic dXNAZXI6cGFzcw==", "Bearer x"]

    async def test_a_path_outside_of_ascii_is_quoted(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([json_reply(1)]) as server:
            await send(transport, post(f"{server.url}/ü?q=ß|x#fragment"))
        assert server.requests[0].path == "/%C3%BC?q=%C3%9F%7Cx"

    async def test_no_cookie_is_kept(self, transport: HttpTransport) -> None:
        reply = Reply(headers={"Set-Cookie": "a=1; Path=/"})
        async with ScriptedServer(reply) as server:
            await send(transport, post(server.url))
            await send(transport, post(server.url))
        assert "cookie" not in server.requests[1].headers


@pytest.mark.req("http.one-contract")
class TestResponses:
    @pytest.mark.parametrize("framing", ["length", "chunked", "close"])
    @both_ways
    async def test_a_body_arrives_however_its_end_is_told(
        self, transport: HttpTransport, way: Way, framing: Any
    ) -> None:
        parts = [b"a" * 10, b"b" * 70_000, b"c"]
        async with ScriptedServer([Reply(body=parts, framing=framing)]) as server:
            answer = await way(transport, post(server.url))
        assert answer.body == b"".join(parts)

    @pytest.mark.parametrize("status", [200, 204, 304, 404, 429, 500])
    @both_ways
    async def test_no_status_is_an_error(
        self, transport: HttpTransport, way: Way, status: int
    ) -> None:
        async with ScriptedServer([Reply(status, {"Retry-After": "7"})]) as server:
            answer = await way(transport, post(server.url))
        assert (answer.status, answer.body) == (status, b"")
        assert answer.headers["retry-after"] == "7"

    @pytest.mark.req("D-23")
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    @both_ways
    async def test_a_redirect_is_returned_and_never_followed(
        self, transport: HttpTransport, way: Way, status: int
    ) -> None:
        async with ScriptedServer() as other:
            moved = Reply(status, {"Location": f"{other.url}/x"}, b"moved")
            async with ScriptedServer([moved]) as server:
                answer = await way(
                    transport, post(server.url, Authorization=f"Bearer {BEARER}")
                )
        assert (answer.status, answer.body) == (status, b"moved")
        assert other.accepted == 0

    async def test_repeated_headers_are_joined(self, transport: HttpTransport) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a:2\r\nX-B:\r\nContent-Length: 0\r\n\r\n"
        )
        async with ScriptedServer([raw_reply(head)]) as server:
            answer = await send(transport, post(server.url))
        assert answer.headers["x-a"] == "1, 2"
        assert answer.headers["x-b"] == ""

    async def test_interim_responses_are_skipped(
        self, transport: HttpTransport
    ) -> None:
        data = (
            b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
            b"HTTP/1.1 100 Continue\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        )
        async with ScriptedServer([raw_reply(data)]) as server:
            answer = await send(transport, post(server.url))
        assert (answer.status, answer.body) == (200, b"ok")

    @pytest.mark.req("HT-07")
    @both_ways
    async def test_a_long_error_page_is_a_response(
        self, transport: HttpTransport, way: Way
    ) -> None:
        page = b"<html>" + b"x" * 120_000
        reply = Reply(502, {"Content-Type": "text/html"}, page)
        async with ScriptedServer([reply]) as server:
            answer = await way(transport, post(server.url))
        assert (answer.status, answer.body) == (502, page)

    @pytest.mark.req("HT-07")
    async def test_a_stream_can_be_read_up_to_a_limit_and_is_closed_then(
        self, transport: HttpTransport
    ) -> None:
        reply = Reply(503, body=[b"x" * 5000, Gate()], framing="chunked")
        async with ScriptedServer([reply]) as server:
            stream = await transport.open_stream(post(server.url), LIMITS)
            async with asyncio.timeout(5):
                assert await stream.read(500) == b"x" * 500
            await server.disconnected()

    async def test_the_protocol_is_satisfied(self, transport: HttpTransport) -> None:
        assert isinstance(transport, HttpTransport)
        async with ScriptedServer([json_reply(1)]) as server:
            stream = await transport.open_stream(post(server.url), LIMITS)
            assert isinstance(stream, HttpStream)
            assert await stream.read(100) == b"1"

    @pytest.mark.req("ST-14")
    async def test_an_event_is_there_at_once_though_the_stream_stays_open(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([sse_reply(["a", "b"], ending="hang")]) as server:
            stream = await transport.open_stream(post(server.url), LIMITS)
            seen: list[str] = []
            async with asyncio.timeout(5):
                async for event in iter_sse(stream.chunks()):
                    seen.append(event.data)
                    if event.data == "[DONE]":
                        break
            await stream.aclose()
            await server.disconnected()
        assert seen == ["a", "b", "[DONE]"]

    @pytest.mark.req("D-42")
    async def test_a_stream_that_nobody_reads_holds_the_server_back(
        self, transport: HttpTransport
    ) -> None:
        size, count = 256 * 1024, 400
        sent = 0
        pause = Gate()
        pause.open()

        class Counter(Gate):
            async def wait(self) -> None:
                nonlocal sent
                sent += 1

        pieces = [piece for _ in range(count) for piece in (b"x" * size, Counter())]
        async with ScriptedServer([Reply(body=pieces, framing="chunked")]) as server:
            stream = await transport.open_stream(post(server.url), LIMITS)
            chunks = stream.chunks()
            async with asyncio.timeout(5):
                await anext(chunks)
                before = -1
                while sent != before:  # until the server cannot go on
                    before = sent
                    for _ in range(50):
                        await asyncio.sleep(0)
            assert sent < count / 4
            async with asyncio.timeout(10):
                rest = [len(chunk) async for chunk in chunks]
        assert sent == count
        assert sum(rest) > size


def deflate(data: bytes, wbits: int) -> bytes:
    engine = zlib.compressobj(wbits=wbits)
    return engine.compress(data) + engine.flush()


@pytest.mark.req("http.decoding")
class TestCompression:
    TEXT = b"the quick brown fox " * 1000

    @pytest.mark.parametrize(
        ("encoding", "data"),
        [
            ("gzip", gzip.compress(TEXT)),
            ("x-gzip", gzip.compress(TEXT)),
            ("gzip", gzip.compress(TEXT[:777]) + gzip.compress(TEXT[777:]) + b"\0\0"),
            ("deflate", zlib.compress(TEXT)),
            ("deflate", deflate(TEXT, -15)),
            ("identity", TEXT),
        ],
        ids=["gzip", "x-gzip", "members", "zlib", "raw", "identity"],
    )
    @pytest.mark.parametrize("cut", [1, 7, 100_000])
    @both_ways
    async def test_a_compressed_body_is_decoded(
        self, transport: HttpTransport, way: Way, encoding: str, data: bytes, cut: int
    ) -> None:
        pieces = [data[:cut], data[cut:]] if cut < len(data) else [data]
        reply = Reply(200, {"Content-Encoding": encoding}, pieces, framing="chunked")
        async with ScriptedServer([reply]) as server:
            answer = await way(transport, post(server.url))
        assert answer.body == self.TEXT

    @pytest.mark.req("D-13")
    @pytest.mark.parametrize(
        ("encoding", "data"),
        [
            ("gzip", b"this is not gzip"),
            ("gzip", gzip.compress(TEXT)[:-9]),
            ("deflate", b"\x78\x9c" + b"\xff" * 50),
            ("deflate", b"x"),
            ("br", b"whatever"),
        ],
        ids=["not-gzip", "truncated", "corrupt", "too-short", "unknown"],
    )
    @both_ways
    async def test_a_body_that_cannot_be_decoded_is_a_connection_error(
        self, transport: HttpTransport, way: Way, encoding: str, data: bytes
    ) -> None:
        reply = Reply(200, {"Content-Encoding": encoding}, data)
        async with ScriptedServer([reply]) as server:
            with pytest.raises(ProviderConnectionError, match="body"):
                await way(transport, post(server.url))

    async def test_an_empty_body_needs_no_decoding(
        self, transport: HttpTransport
    ) -> None:
        reply = Reply(200, {"Content-Encoding": "gzip"})
        async with ScriptedServer([reply]) as server:
            assert (await send(transport, post(server.url))).body == b""

    @pytest.mark.req("http.size-cap")
    @pytest.mark.parametrize("kind", ["length", "chunked", "close", "bomb"])
    async def test_a_body_above_the_cap_is_refused(
        self, open_one: Callable[..., HttpTransport], kind: Any
    ) -> None:
        transport = open_one(max_response_bytes=100_000)
        reply = Reply(body=[b"x" * 50_000] * 3, framing=kind)
        if kind == "bomb":
            bomb = gzip.compress(b"\0" * 50_000_000)
            assert len(bomb) < 100_000
            reply = Reply(200, {"Content-Encoding": "gzip"}, bomb)
        async with ScriptedServer([reply, Reply(body=b"x" * 100_000)]) as server:
            with pytest.raises(BadResponseError, match="100000 bytes"):
                await send(transport, post(server.url))
            assert len((await send(transport, post(server.url))).body) == 100_000

    async def test_a_bomb_in_a_stream_comes_in_small_pieces(
        self, transport: HttpTransport
    ) -> None:
        bomb = gzip.compress(b"\0" * 50_000_000)
        reply = Reply(200, {"Content-Encoding": "gzip"}, bomb)
        async with ScriptedServer([reply]) as server:
            stream = await transport.open_stream(post(server.url), LIMITS)
            sizes = [len(chunk) async for chunk in stream.chunks()]
        assert sum(sizes) == 50_000_000
        assert max(sizes) <= 1 << 20


HEAD = b"HTTP/1.1 200 OK\r\n"
BROKEN: dict[str, Reply] = {
    "reset before the head": reset_reply(),
    "closed before the head": raw_reply(b""),
    "closed inside the head": raw_reply(HEAD + b"Content-Le"),
    "reset inside the head": raw_reply(HEAD, ending="reset"),
    "closed inside a sized body": Reply(
        200, {"Content-Length": "100"}, b"x" * 40, ending="cut"
    ),
    "reset inside a sized body": Reply(
        200, {"Content-Length": "100"}, b"x" * 40, ending="reset"
    ),
    "no final chunk": Reply(body=b"x" * 40, framing="chunked", ending="cut"),
    "reset inside chunks": Reply(body=b"x" * 40, framing="chunked", ending="reset"),
    "not HTTP": raw_reply(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "an old protocol": raw_reply(b"<html>hello</html>\r\n\r\n"),
    "a chunk without size": raw_reply(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nnope\r\n"
    ),
    "a chunk longer than it said": raw_reply(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdefgh\r\n0\r\n\r\n"
    ),
    "a length that is no number": raw_reply(HEAD + b"Content-Length: many\r\n\r\nx"),
    "two lengths": raw_reply(
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy"
    ),
    "a malformed header": raw_reply(HEAD + b"no colon here\r\nA: b\r\n\r\n"),
}


class TestFailures:
    @pytest.mark.req("D-13", "HT-09", "http.one-contract")
    @pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN.keys())
    @both_ways
    async def test_a_broken_connection_is_a_retryable_connection_error(
        self, transport: HttpTransport, way: Way, reply: Reply
    ) -> None:
        async with ScriptedServer(reply) as server:
            with pytest.raises(ProviderConnectionError) as caught:
                await way(transport, post(server.url))
        assert caught.value.retryable
        assert server.url in str(caught.value)
        assert len(server.requests) == 1

    @pytest.mark.req("HT-09")
    async def test_what_came_before_the_break_is_delivered(
        self, transport: HttpTransport
    ) -> None:
        gate = Gate()
        reply = Reply(body=[b"first", gate], framing="chunked", ending="reset")
        async with ScriptedServer([reply]) as server:
            stream = await transport.open_stream(post(server.url), LIMITS)
            chunks = stream.chunks()
            async with asyncio.timeout(5):
                assert await anext(chunks) == b"first"
                gate.open()
                with pytest.raises(ProviderConnectionError) as caught:
                    await anext(chunks)
                with pytest.raises(ProviderConnectionError, match="closed before"):
                    await anext(chunks)
            await stream.aclose()
        assert caught.value.__cause__ is None or isinstance(
            caught.value.__cause__, OSError
        )

    @pytest.mark.req("D-13")
    async def test_a_refused_connection_names_its_reason(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer() as server:
            pass
        with pytest.raises(ProviderConnectionError) as caught:
            await send(transport, post(server.url))
        assert server.url in str(caught.value)
        assert isinstance(caught.value.__cause__, ConnectionError)

    @pytest.mark.req("D-13")
    async def test_an_unknown_name_is_a_connection_error(
        self, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nobody(*_args: object, **_kwargs: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", nobody)
        with pytest.raises(ProviderConnectionError, match="not known"):
            await send(transport, post("http://nowhere.invalid/"))

    @pytest.mark.req("D-13")
    async def test_a_server_that_speaks_no_tls_is_a_connection_error(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer(json_reply(1)) as server:
            with pytest.raises(ProviderConnectionError):
                await send(transport, post(server.url.replace("http", "https")))


INVALID_URLS = [
    "",
    "no-scheme",
    "/path",
    "file:///etc/passwd",
    "ftp://host/",
    "http://",
    "http:///path",
    "http://host:port/",
    "http://host:99999/",
    "http://host:0/",
    "http://[::1/",
    "http://[zz]/",
    "http://ho st/",
    "http://host/a b",
    "http://host/a\r\nX: y",
    "http://host\n.example/",
    "http://ho<st/",
]


class TestRefusals:
    @pytest.mark.req("D-41")
    @pytest.mark.parametrize(
        "ending", ["\n", "\r\n", "\0", "\r\nX-Injected: 1", "\u2013"]
    )
    @both_ways
    async def test_a_key_with_a_line_break_is_refused_and_not_shown(
        self, transport: HttpTransport, way: Way, ending: str
    ) -> None:
        async with ScriptedServer() as server:
            request = post(server.url, Authorization=f"Bearer {BEARER}{ending}")
            with pytest.raises(PermanentError, match="`Authorization`") as caught:
                await way(transport, request)
        assert BEARER not in "".join(traceback.format_exception(caught.value))
        assert server.accepted == 0

    @pytest.mark.req("D-41")
    async def test_blanks_around_a_value_are_dropped(
        self, transport: HttpTransport
    ) -> None:
        async with ScriptedServer([json_reply(1)]) as server:
            await send(transport, post(server.url, Authorization=f" Bearer {BEARER}\t"))
        assert server.requests[0].headers["authorization"] == f"Bearer {BEARER}"

    @pytest.mark.req("http.refusals")
    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("X Y", "1", "name"),
            ("", "1", "name"),
            ("X\n", "1", "name"),
            ("Content-Length", "3", "set by the transport"),
            ("transfer-encoding", "chunked", "set by the transport"),
            ("Connection", "close", "set by the transport"),
            ("X-Number", 5, "must be text"),
        ],
    )
    async def test_a_header_that_cannot_be_sent_is_refused(
        self, transport: HttpTransport, name: str, value: Any, says: str
    ) -> None:
        request = HttpRequest("POST", "http://127.0.0.1:1/", {name: value})
        with pytest.raises(PermanentError, match=says):
            await send(transport, request)

    @pytest.mark.req("http.refusals")
    @pytest.mark.parametrize("url", INVALID_URLS)
    async def test_a_url_that_leads_nowhere_is_refused(
        self, transport: HttpTransport, url: str
    ) -> None:
        with pytest.raises(PermanentError, match="`url`"):
            await send(transport, post(url))

    @pytest.mark.req("http.refusals")
    @pytest.mark.parametrize("method", ["", "GE T", "GET\r\n"])
    async def test_a_method_that_is_none_is_refused(
        self, transport: HttpTransport, method: str
    ) -> None:
        with pytest.raises(PermanentError, match="`method`"):
            await send(transport, HttpRequest(method, "http://127.0.0.1:1/"))


def everything_about(error: BaseException) -> str:
    """All that a handler, a logger or a debugger could print of it."""
    shown: list[str] = ["".join(traceback.format_exception(error))]
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        shown += [repr(each), str(each), repr(each.args), repr(vars(each))]
        todo += [each.__cause__, each.__context__]
    return "\n".join(shown)


class TestSecrets:
    @pytest.mark.req("D-23", "D-41", "http.no-secrets")
    @pytest.mark.parametrize(
        "reply",
        [
            *(BROKEN[name] for name in ("reset before the head", "not HTTP")),
            Reply(200, {"Content-Encoding": "gzip"}, b"nope"),
            raw_reply(HEAD + f"Oops {BEARER} {URL_KEY}\r\n\r\n".encode()),
            raw_reply(f"HTTP/1.1 {BEARER}\r\n\r\n".encode()),
        ],
        ids=["reset", "garbage", "gzip", "echo in a header", "echo in the status"],
    )
    @both_ways
    async def test_no_secret_is_in_an_error_or_behind_it(
        self, transport: HttpTransport, way: Way, reply: Reply
    ) -> None:
        async with ScriptedServer([reply]) as server:
            url = server.url.replace("://", "://user:pass-0123456789@")
            request = post(f"{url}/x?key={URL_KEY}", Authorization=f"Bearer {BEARER}")
            with pytest.raises(LLMError) as caught:
                await way(transport, request)
        shown = everything_about(caught.value)
        for secret in (BEARER, URL_KEY, "pass-0123456789"):
            assert secret not in shown

    @pytest.mark.req("http.no-secrets")
    def test_no_secret_is_in_the_repr_of_the_values(self) -> None:
        request = post(
            f"https://user:pass-0123456789@host/?key={URL_KEY}",
            b"prompt",
            Authorization=f"Bearer {BEARER}",
        )
        response = HttpResponse(200, {"Set-Cookie": BEARER}, b"answer")
        for secret in (BEARER, URL_KEY, "pass-0123456789", "prompt", "answer"):
            assert secret not in repr(request) + repr(response)

    def test_a_time_limit_must_be_positive(self) -> None:
        for name in ("total", "connect", "idle"):
            for value in (0, -1, float("nan")):
                with pytest.raises(ValueError, match=f"`{name}`"):
                    HttpTimeouts(**{name: value})
