"""The parts without I/O: heads, framing, decompression, limits, what errors say."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._clock import get_clock
from executionkit._http import HttpRequest, HttpTimeouts, connect
from executionkit._http.bodies import Inflate
from executionkit._http.connect import Address, Resolver, open_socket
from executionkit._http.failures import WireError, explain
from executionkit._http.limits import LimitReachedError, within
from executionkit._http.prepare import Call, parse_target, prepare
from executionkit._http.wire import (
    MAX_HEAD_BYTES,
    ChunkedBody,
    Framing,
    OpenBody,
    SizedBody,
    find_head_end,
    parse_head,
)
from executionkit.errors import ProviderConnectionError, ProviderTimeoutError
from executionkit.testing import FakeClock, settle

CRLF = b"\r\n"
TEXT = random.Random(7).randbytes(500) + b"a" * 5000


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(framing: Framing, pieces: Sequence[bytes]) -> tuple[bytes, bytes]:
    """All payload, and what is left over after the end."""
    payload, rest = b"", b""
    for piece in pieces:
        if framing.complete:
            rest += piece
            continue
        data, rest = framing.feed(rest + piece)
        payload += data
    return payload, rest


def chunked(parts: Sequence[bytes], extension: bytes, trailer: bytes) -> bytes:
    lines = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part]
    return b"".join(lines) + b"0\r\n" + trailer + b"\r\n"


cut_lists = st.lists(st.integers(0, 10_000), max_size=8)


@pytest.mark.req("http.wire")
class TestFraming:
    @given(
        st.lists(st.binary(max_size=40), max_size=6),
        st.sampled_from([b"", b";a=b", b" ; x", b"  "]),
        st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC: d\r\n"]),
        st.binary(max_size=5),
        cut_lists,
    )
    def test_chunks_are_joined_however_they_are_cut(
        self,
        parts: list[bytes],
        extension: bytes,
        trailer: bytes,
        after: bytes,
        cuts: list[int],
    ) -> None:
        framing = ChunkedBody()
        data = chunked(parts, extension, trailer)
        assert read(framing, pieces_of(data + after, cuts)) == (b"".join(parts), after)
        assert framing.complete
        framing.end()

    @given(
        st.lists(st.binary(min_size=1, max_size=9), max_size=4), cut_lists, st.data()
    )
    def test_chunks_that_end_early_are_an_error(
        self, parts: list[bytes], cuts: list[int], data: st.DataObject
    ) -> None:
        whole = chunked(parts, b"", b"")
        kept = data.draw(st.integers(0, len(whole) - 1))
        framing = ChunkedBody()
        payload, _ = read(framing, pieces_of(whole[:kept], cuts))
        assert b"".join(parts).startswith(payload)
        with pytest.raises(WireError, match="last chunk"):
            framing.end()

    @pytest.mark.parametrize(
        "data",
        [
            b"\r\n",
            b"+1\r\nx\r\n",
            b"0x1\r\nx\r\n",
            b"1_0\r\n",
            b"-1\r\n",
            b" 1\r\n",
            b"g\r\n",
            b"11111111111111111\r\n",
            b"1 x\r\n",
            b"1\r\nxy\r\n",
            b"1\r\nx\n1\r\n",
            b"1" * 5000,
            b"1;" + b"x" * 5000,
            b"0\r\n" + b"a: b\r\n" * 20_000,
            b"0\r\n" + b"a" * 5000,
        ],
    )
    @pytest.mark.parametrize("size", [1, 1_000_000])
    def test_malformed_chunks_are_an_error(self, data: bytes, size: int) -> None:
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        with pytest.raises(WireError):
            read(ChunkedBody(), pieces)

    @given(st.binary(max_size=50), st.binary(max_size=5), cut_lists)
    def test_a_sized_body_ends_where_it_said(
        self, body: bytes, after: bytes, cuts: list[int]
    ) -> None:
        framing = SizedBody(len(body))
        assert read(framing, pieces_of(body + after, cuts)) == (body, after)
        framing.end()

    def test_a_sized_body_that_ends_early_says_how_much_is_missing(self) -> None:
        framing = SizedBody(10)
        assert framing.feed(b"abc") == (b"abc", b"")
        with pytest.raises(WireError, match="7 bytes before"):
            framing.end()

    def test_an_open_body_ends_with_the_connection(self) -> None:
        framing = OpenBody()
        assert framing.feed(b"abc") == (b"abc", b"")
        assert not framing.complete
        framing.end()
        assert framing.complete


@pytest.mark.req("http.wire")
class TestHeads:
    @pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\r\n\n"])
    def test_the_head_ends_at_the_blank_line(self, end: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nA: b" + end
        assert find_head_end(head + b"rest\r\n\r\n") == len(head)
        for cut in range(len(head)):
            assert find_head_end(head[:cut]) == -1

    def test_a_head_without_end_is_refused(self) -> None:
        start = b"HTTP/1.1 200 OK\r\nA: "
        assert find_head_end(start + b"b" * 1000) == -1
        with pytest.raises(WireError, match="longer than"):
            find_head_end(start + b"b" * MAX_HEAD_BYTES)

    @pytest.mark.parametrize(
        "data", [b"<html>", b"SSH-2.0", b"HTTP/2.0 200", b"\x16\3"]
    )
    def test_another_protocol_is_recognised_early(self, data: bytes) -> None:
        with pytest.raises(WireError, match="HTTP/1"):
            find_head_end(data)

    @pytest.mark.parametrize(
        ("head", "keep", "kind"),
        [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5", True, SizedBody),
            (b"HTTP/1.1 200\r\nContent-Length: 5", True, SizedBody),
            (b"HTTP/1.1 200 \r\ncontent-length:5, 5", True, SizedBody),
            (
                b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5",
                False,
                SizedBody,
            ),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 5", False, SizedBody),
            (
                b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5",
                True,
                SizedBody,
            ),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", True, ChunkedBody),
            (b"HTTP/1.1 200 OK", False, OpenBody),
            (b"HTTP/1.1 204 No Content", True, SizedBody),
            (b"HTTP/1.1 304 Same\r\nContent-Length: 5", True, SizedBody),
            (b"HTTP/1.1 103 Early\r\nLink: x", True, SizedBody),
        ],
    )
    def test_framing_and_keeping_follow_from_the_head(
        self, head: bytes, keep: bool, kind: type
    ) -> None:
        parsed = parse_head(head + b"\r\n\r\n", "POST")
        assert (parsed.keep_alive, type(parsed.framing)) == (keep, kind)

    def test_an_answer_to_head_has_no_body(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        assert parse_head(head, "HEAD").framing.complete
        assert not parse_head(head, "GET").framing.complete

    @pytest.mark.parametrize(
        "lines",
        [
            b"Content-Length: 1\r\nContent-Length: 2",
            b"Content-Length: -1",
            b"Content-Length: +1",
            b"Content-Length: 1 2",
            b"Content-Length: \xb2",
            b"Content-Length: 9999999999999999999",
            b"Content-Length: 1\r\nTransfer-Encoding: chunked",
            b"Transfer-Encoding: gzip, chunked",
            b"Transfer-Encoding: identity",
            b"A : b",
            b" A: b",
            b"A: b\r\n folded",
            b": b",
            b"A b",
            b"A: b\rC: d",
            b"A: b\0",
        ],
    )
    def test_a_head_that_leaves_doubt_is_refused(self, lines: bytes) -> None:
        with pytest.raises(WireError):
            parse_head(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\n", "GET")

    @pytest.mark.parametrize(
        "line",
        [b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1  200", b"HTTP/1.2 200 OK",
         b"http/1.1 200 OK", b"HTTP/1.1 099 x", b"HTTP/1.1 2x0 OK", b"HTTP/1.1"],
    )  # fmt: skip
    def test_a_malformed_status_line_is_refused(self, line: bytes) -> None:
        with pytest.raises(WireError, match="status line"):
            parse_head(line + b"\r\n\r\n", "GET")

    @given(st.binary(max_size=200))
    def test_no_head_does_harm(self, data: bytes) -> None:
        for head in (data, b"HTTP/1.1 200 OK\r\n" + data):
            try:
                end = find_head_end(head + b"\r\n\r\n")
                parse_head(head[:end], "GET")
            except WireError:
                continue


def compressed(wbits: int) -> bytes:
    engine = zlib.compressobj(wbits=wbits)
    return engine.compress(TEXT) + engine.flush()


@pytest.mark.req("http.decoding")
class TestInflate:
    @given(
        st.sampled_from([("gzip", 31), ("deflate", 15), ("deflate", -15)]), cut_lists
    )
    def test_data_is_decoded_however_it_is_cut(
        self, kind: tuple[str, int], cuts: list[int]
    ) -> None:
        inflate = Inflate(kind[0])
        out = b""
        for piece in pieces_of(compressed(kind[1]), cuts):
            inflate.put(piece)
            while data := inflate.take():
                out += data
        inflate.end()
        assert out == TEXT

    def test_every_cut_off_end_is_an_error(self) -> None:
        data = gzip.compress(b"hello")
        for kept in range(1, len(data)):
            inflate = Inflate("gzip")
            inflate.put(data[:kept])
            while inflate.take():
                pass
            with pytest.raises(WireError, match="incomplete"):
                inflate.end()

    def test_no_end_is_lost_at_the_edge_of_a_piece(self) -> None:
        for size in range((1 << 20) - 20, (1 << 20) + 300, 7):
            engine = zlib.compressobj(wbits=-15)
            inflate = Inflate("deflate")
            inflate.put(engine.compress(b"\0" * size) + engine.flush())
            total = 0
            while data := inflate.take():
                total += len(data)
            inflate.end()
            assert total == size

    def test_pieces_stay_small_when_the_data_explodes(self) -> None:
        inflate = Inflate("gzip")
        inflate.put(gzip.compress(b"\0" * 30_000_000))
        sizes = []
        while data := inflate.take():
            sizes.append(len(data))
        inflate.end()
        assert sum(sizes) == 30_000_000
        assert max(sizes) <= 1 << 20


class TestTargets:
    @pytest.mark.parametrize(
        ("url", "host", "port", "authority", "path"),
        [
            ("http://a", "a", 80, "a", "/"),
            ("HTTPS://A.b/x", "a.b", 443, "a.b", "/x"),
            ("http://a:80/?q", "a", 80, "a", "/?q"),
            ("http://a:81?q=1", "a", 81, "a:81", "/?q=1"),
            ("http://[::1]:8/x", "::1", 8, "[::1]:8", "/x"),
            ("http://my_host/x%20y", "my_host", 80, "my_host", "/x%20y"),
            ("http://bücher.example/", "xn--bcher-kva.example", 80, None, "/"),
            ("http://a/x?y=[1]|{2}", "a", 80, "a", "/x?y=[1]%7C%7B2%7D"),
        ],
    )
    def test_a_url_is_taken_apart(
        self, url: str, host: str, port: int, authority: str | None, path: str
    ) -> None:
        target = parse_target(url)
        assert (target.host, target.port, target.path) == (host, port, path)
        assert target.authority == (authority or host)


def call(
    url: str = "http://host/", limits: HttpTimeouts | None = None, **headers: str
) -> Call:
    request = HttpRequest("POST", url, headers)
    return prepare(request, limits or HttpTimeouts(), get_clock(), encodings="gzip")


@pytest.mark.req("http.one-contract")
class TestExplanations:
    async def test_the_timeout_of_the_system_is_a_connection_error(self) -> None:
        error = explain(TimeoutError(110, "Connection timed out"), call())
        assert isinstance(error, ProviderConnectionError)
        assert isinstance(error.__cause__, TimeoutError)

    async def test_an_error_without_words_names_its_type(self) -> None:
        error = explain(ConnectionResetError(), call())
        assert str(error).endswith("failed: ConnectionResetError")

    async def test_the_reason_of_the_system_is_dug_out(self) -> None:
        outer = RuntimeError("something went wrong")
        outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
        error = explain(outer, call())
        assert "Connection refused" in str(error)
        assert isinstance(error.__cause__, ConnectionRefusedError)
        assert error.metadata["cause"] == "RuntimeError"

    @pytest.mark.req("http.no-secrets")
    async def test_an_error_that_the_caller_is_handling_is_not_ours(self) -> None:
        try:
            raise OSError(5, "the caller's own trouble")
        except OSError:
            try:
                raise RuntimeError("ours")
            except RuntimeError as exc:
                error = explain(exc, call())
        assert "trouble" not in str(error) + repr(error.__cause__)

    async def test_each_limit_says_its_name_value_and_setting(self) -> None:
        limits = HttpTimeouts(total=1.5, connect=2, idle=3)
        for which, seconds in (("total", 1.5), ("connect", 2), ("idle", 3)):
            reached: Any = LimitReachedError(which=which)  # type: ignore[arg-type]
            error = explain(reached, call(limits=limits))
            assert isinstance(error, ProviderTimeoutError)
            assert f"within {seconds} s, the `{which}` limit" in str(error)
            assert f"raise `{which}` of `HttpTimeouts`" in str(error)
            assert error.metadata == {"limit": which, "seconds": seconds}

    async def test_a_step_s_own_timeout_is_not_the_limit(self) -> None:
        async def step() -> None:
            raise TimeoutError(110, "Connection timed out")

        with pytest.raises(TimeoutError, match="timed out"):
            await within(get_clock(), 5, "connect", step)
        with pytest.raises(TimeoutError, match="timed out"):
            await within(get_clock(), None, "connect", step)


class FakeNetwork:
    """Stands in for the system: addresses that answer, refuse or say nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[str] = []
        self.lookups = 0
        self.addresses: dict[str, str] = {}  # address -> what happens there
        self.sockets: list[socket.socket] = []
        self.go_on = asyncio.Event()
        monkeypatch.setattr(connect, "resolve", self.resolve)
        monkeypatch.setattr(connect, "_connect", self.connect)

    def resolve(self, _host: str, port: int) -> Sequence[Address]:
        self.lookups += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, (address, port)) for address in self.addresses]

    async def connect(self, address: Address) -> socket.socket:
        where = str(address[1][0])
        self.tried.append(where)
        what = self.addresses[where]
        if what == "silent":
            await asyncio.Event().wait()
        if what == "refused":
            raise ConnectionRefusedError(111, f"refused by {where}")
        if what == "late":
            await self.go_on.wait()
        self.sockets.append(socket.socket())
        return self.sockets[-1]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    return FakeNetwork(monkeypatch)


@pytest.mark.req("http.connect")
class TestConnecting:
    async def test_a_refusing_address_gives_way_at_once(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        network.addresses = {"a": "refused", "b": "ok", "c": "ok"}
        async with asyncio.timeout(5):
            (await open_socket(Resolver(), "host", 80, fake_clock)).close()
        assert network.tried == ["a", "b"]

    async def test_a_silent_address_gives_way_after_its_head_start(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        network.addresses = {"a": "silent", "b": "ok"}
        task = asyncio.create_task(open_socket(Resolver(), "host", 80, fake_clock))
        while not network.tried:
            await settle()
        await fake_clock.advance(0.2)
        assert network.tried == ["a"]
        await fake_clock.advance(0.1)
        async with asyncio.timeout(5):
            (await task).close()
        assert network.tried == ["a", "b"]

    async def test_a_second_winner_is_closed(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        network.addresses = {"a": "late", "b": "late"}
        task = asyncio.create_task(open_socket(Resolver(), "host", 80, fake_clock))
        while not network.tried:
            await settle()
        await fake_clock.advance(0.3)
        network.go_on.set()
        async with asyncio.timeout(5):
            winner = await task
        assert winner.fileno() >= 0
        assert [each.fileno() >= 0 for each in network.sockets].count(True) == 1
        winner.close()

    async def test_the_first_reason_is_told_when_all_refuse(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        network.addresses = {"a": "refused", "b": "refused"}
        with pytest.raises(ConnectionRefusedError, match="refused by a"):
            await open_socket(Resolver(), "host", 80, fake_clock)

    async def test_cancelling_leaves_no_attempt_running(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        network.addresses = {"a": "silent", "b": "silent"}
        before = asyncio.all_tasks()
        task = asyncio.create_task(open_socket(Resolver(), "host", 80, fake_clock))
        while not network.tried:
            await settle()
        await fake_clock.advance(0.3)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()
        assert asyncio.all_tasks() == before

    async def test_a_name_is_looked_up_once_for_all_and_again_when_old(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        network.addresses = {"a": "ok"}
        resolver = Resolver()

        async def look() -> Sequence[Address]:
            async with asyncio.timeout(5):
                return await resolver.lookup("host", 80, fake_clock)

        found = await asyncio.gather(*(look() for _ in range(20)))
        assert {len(each) for each in found} == {1}
        await look()
        assert network.lookups == 1
        await fake_clock.advance(31)
        await look()
        assert network.lookups == 2

    async def test_a_name_whose_addresses_fail_is_looked_up_again(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        network.addresses = {"a": "refused"}
        resolver = Resolver()
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                await open_socket(resolver, "host", 80, fake_clock)
        assert network.lookups == 2

    async def test_an_address_needs_no_lookup(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        assert len(await Resolver().lookup("127.0.0.1", 80, fake_clock)) == 1
        assert len(await Resolver().lookup("::1", 80, fake_clock)) == 1
        assert network.lookups == 0

    async def test_an_unknown_name_fails_for_all_who_wait(
        self, network: FakeNetwork, fake_clock: FakeClock
    ) -> None:
        resolver = Resolver()
        waiting = [resolver.lookup("host", 80, fake_clock) for _ in range(3)]
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, socket.gaierror) for each in outcomes)
        assert network.lookups == 1

    def test_families_take_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        six, four = socket.AF_INET6, socket.AF_INET
        found: list[Any] = [(six, 1, 6, "", (f"six{n}", 80, 0, 0)) for n in range(3)]
        found += [(four, 1, 6, "", (f"four{n}", 80)) for n in range(2)]
        lookup: Callable[..., Any] = lambda *_args, **_options: found  # noqa: E731
        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        order = [address[0] for _, address in connect.resolve("host", 80)]
        assert order == ["six0", "four0", "six1", "four1", "six2"]
