"""Parts of the Redis stores that need no server: addresses, protocol, values, names."""

from __future__ import annotations

import asyncio
import math
import pickle
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.backends import open_backend
from executionkit.backends._redis.address import parse_address
from executionkit.backends._redis.codec import decode, encode
from executionkit.backends._redis.keys import Ids, head_of, short
from executionkit.backends._redis.resp import (
    Parser,
    ProtocolError,
    ReplyError,
    pack,
    to_bytes,
)
from executionkit.backends._redis.wire import checked
from executionkit.backends.redis import RedisBackend
from executionkit.errors import StateStoreError
from executionkit.types import thaw


@pytest.mark.req("backends.open")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://", "redis://localhost:6379/0"),
        ("redis://host", "redis://host:6379/0"),
        ("redis://host:7000/2", "redis://host:7000/2"),
        ("redis://host?db=4", "redis://host:6379/4"),
        ("rediss://u:p%40ss@host:7000", "rediss://host:7000/0"),
        ("redis://:pw@[::1]:7000", "redis://[::1]:7000/0"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis+unix:///run/a%20b", "unix:///run/a b"),
    ],
)
def test_addresses_are_read(url: str, shown: str) -> None:
    address = parse_address(url)
    assert address.shown == shown
    assert repr(open_backend(url)) == f"RedisBackend({shown!r}, prefix='executionkit')"
    assert "p%40ss" not in repr(address)


@pytest.mark.req("backends.open")
def test_users_passwords_and_options_of_an_address() -> None:
    address = parse_address("rediss://us%3Aer:p%40ss@h/1?timeout=2.5&prefix=app")
    assert (address.username, address.password) == ("us:er", "p@ss")
    assert (address.timeout, address.prefix, address.is_tls) == (2.5, "app", True)
    assert parse_address("redis://:only@h").username is None


@pytest.mark.req("backends.open", "redis.secrets")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://u:secret@h:port", "cannot be read"),
        ("redis://u:secret@h/zero", "must be a number >= 0"),
        ("redis://u:secret@h/-1", "must be a number >= 0"),
        ("redis://u:secret@h?timeout=0", "must be > 0 seconds"),
        ("redis://u:secret@h?timeout=nan", "must be > 0 seconds"),
        ("redis://u:secret@h?retries=3", "unknown options 'retries'"),
        ("unix://u:secret@", "needs a path"),
        ("http://u:secret@h", "must begin with one of redis://"),
        ("redis://u:secret@h?prefix={a", "without braces"),
    ],
)
def test_a_wrong_address_is_refused_without_its_secrets(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        RedisBackend(url)
    assert "secret" not in str(caught.value)


def test_just_one_of_address_and_client_is_given() -> None:
    for options in ({}, {"url": "redis://", "client": object()}):
        with pytest.raises(TypeError, match="either `url` or `client`"):
            RedisBackend(**options)  # type: ignore[arg-type]


@pytest.mark.req("redis.down")
async def test_nobody_there_is_an_error_with_the_address() -> None:
    backend = RedisBackend("unix:///no/such/socket", timeout=5)
    async with asyncio.timeout(10):
        with pytest.raises(StateStoreError, match="unix:///no/such/socket cannot be"):
            await backend.ping()
        await backend.close()


@pytest.mark.req("redis.down")
async def test_somebody_else_there_is_an_error_too() -> None:
    async def speak(reader: Any, writer: Any) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = RedisBackend(f"redis://127.0.0.1:{port}", timeout=5)
    async with asyncio.timeout(10):
        for _ in range(2):
            with pytest.raises(StateStoreError, match="closed the connection"):
                await backend.ping()
        await backend.close()
    server.close()


def written(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case _:
            return b"*%d\r\n%b" % (len(reply), b"".join(map(written, reply)))


replies = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**63), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.req("redis.protocol")
@given(st.lists(replies, max_size=6), st.lists(st.integers(1, 9), min_size=1))
def test_replies_are_read_whatever_the_cuts(
    answers: list[Any], sizes: list[int]
) -> None:
    data = b"".join(map(written, answers)) + b"+OK\r\n-ERR no\r\n"
    parser, found, at = Parser(), [], 0
    for turn in range(len(data)):
        size = sizes[turn % len(sizes)]
        found += parser.feed(data[at : at + size])
        at += size
    assert found[:-2] == answers
    assert found[-2] == b"OK"
    assert isinstance(found[-1], ReplyError)
    assert found[-1].code == "ERR"


@pytest.mark.req("redis.protocol")
@given(st.binary(max_size=60))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    try:
        Parser().feed(data)
    except ProtocolError:
        return


@pytest.mark.req("redis.protocol")
@pytest.mark.parametrize(
    "data", [b"*1\r\n" * 40, b"$999999999999\r\n", b":x\r\n", b"!\r\n"]
)
def test_nonsense_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Parser().feed(data)


@pytest.mark.req("redis.protocol")
def test_a_large_reply_in_many_pieces_is_read_in_linear_time() -> None:
    parser = Parser()
    data = written(b"x" * 1_000_000)
    found: list[Any] = []
    for start in range(0, len(data), 1000):
        found += parser.feed(data[start : start + 1000])
    assert found == [b"x" * 1_000_000]


def test_commands_are_packed_by_length() -> None:
    assert pack([b"GET", b"a\r\nb"]) == b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"
    assert to_bytes("\udcff") == b"\xed\xb3\xbf"


values = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.text(), st.binary()),
        st.floats(allow_nan=False),
        *(st.datetimes(timezones=st.none() | st.just(UTC)), st.dates()),
        *(st.timedeltas(), st.complex_numbers(allow_nan=False)),
        st.frozensets(st.text() | st.integers()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text() | st.integers() | st.just("$"), inner, max_size=4),
    ),
    max_leaves=15,
)


def looks(value: Any) -> str:
    """A text of the value that does not depend on the order of a set."""
    match value:
        case dict():
            pairs = [f"{looks(key)}:{looks(item)}" for key, item in value.items()]
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"{type(value).__name__}({', '.join(map(looks, value))})"
        case frozenset() | set():
            return f"{type(value).__name__}({', '.join(sorted(map(looks, value)))})"
        case _:
            return repr(value)


@pytest.mark.req("redis.values")
@given(values)
def test_values_come_back_as_they_were(value: Any) -> None:
    data = encode(value)
    assert data is not None
    back = thaw(decode(data))
    assert back == value
    assert looks(back) == looks(value)


@pytest.mark.req("redis.values")
@pytest.mark.parametrize(
    "value",
    [object(), len, [lambda: 1], {"a": {object()}}, type("D", (dict,), {})(a=1)],
)
def test_what_has_no_text_form_is_not_kept(value: Any) -> None:
    assert encode(value) is None


@pytest.mark.req("redis.values")
def test_a_value_that_holds_itself_is_not_kept() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert encode(loop) is None


@pytest.mark.req("redis.values")
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"\xff", b'{"$":1}', b'{"$":["os",1]}', b'{"$":["bytes","*"]}'),
        *(b'{"$":["set",[[1]]]}', b'{"$":["date","x"]}', b'{"$":[]}'),
        pickle.dumps(print),
        b"[" * 100_000,
    ],
)
def test_foreign_bytes_are_an_error_and_run_nothing(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any text
        decode(data)


def test_days_and_moments_are_different_things() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - both kinds are kept
    for value in (moment, date(2026, 1, 2), timedelta(1, 2, 3), math.inf):
        assert decode(encode(value) or b"") == value


def test_names_are_short_and_apart() -> None:
    assert short("abc") == b"abc"
    long = [short("x" * 300 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert {len(name) for name in long} == {256}
    assert head_of("app", "cache") == b"{app:cache}:"
    ids = Ids()
    assert ids.new() != ids.new()


def test_an_error_of_a_cluster_says_what_to_do() -> None:
    with pytest.raises(StateStoreError, match="RedisCluster"):
        checked(ReplyError("MOVED 1 127.0.0.1:7000"))
    with pytest.raises(StateStoreError, match="READONLY"):
        checked(ReplyError("READONLY You can't write against a read only replica."))
