"""Server-sent events, from whole streams and from streams cut anywhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from executionkit._http import SseDecoder, SseEvent, iter_sse
from executionkit.errors import ProviderConnectionError, StreamError

pytestmark = pytest.mark.req("http.sse")


def decode(chunks: Sequence[bytes], **options: int) -> list[SseEvent]:
    decoder = SseDecoder(**options)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    events += decoder.close()
    if decoder.error is not None:
        raise decoder.error
    return events


def datas(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    return [event.data for event in decode([data])]


def model(data: bytes) -> list[SseEvent]:
    """The standard, word by word, on a whole stream of valid UTF-8."""
    text = data.decode()
    lines = re.split("\r\n|\n|\r", text.removeprefix("\ufeff"))
    events: list[SseEvent] = []
    name, values = "", []
    for line in [*lines, ""]:  # ours: the end of the stream ends an event
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                values.append(value)
            continue
        if values:
            events.append(SseEvent(name or "message", "\n".join(values)))
        name, values = "", []
    return events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("data: a\n\n", [("message", "a")]),
        ("data:a\n\n", [("message", "a")]),
        ("data:  a\n\n", [("message", " a")]),
        ("data: a\ndata: b\n\n", [("message", "a\nb")]),
        ("data\n\n", [("message", "")]),
        ("data:\ndata:\n\n", [("message", "\n")]),
        ("event: ping\n\ndata: a\n\n", [("message", "a")]),
        ("event: x\ndata: a\n\ndata: b\n\n", [("x", "a"), ("message", "b")]),
        (": comment\n\ndata: a\n: in between\ndata: b\n\n", [("message", "a\nb")]),
        ("id: 7\nretry: 10\nwhat: ever\nalone\ndata: a\n\n", [("message", "a")]),
        (" data: a\n\n", []),
        ("\ufeffdata: a\n\n", [("message", "a")]),
        ("\ufeff\ufeffdata: a\n\n", []),
        ("data: \ufeffa\n\n", [("message", "\ufeffa")]),
        ("\n\n\ndata: a\n\n\n\n", [("message", "a")]),
        ("data: a\r\n\r\ndata: b\r\rdata: c\n\n", [("message", x) for x in "abc"]),
        ("data: a\r\r\n", [("message", "a")]),
        ('data: {"a": "b: c"}\n\n', [("message", '{"a": "b: c"}')]),
        ("data: a\ndatabase: b\n\n", [("message", "a")]),
        ("", []),
    ],
)
def test_the_standard_is_followed(text: str, events: list[tuple[str, str]]) -> None:
    expected = [SseEvent(*event) for event in events]
    assert decode([text.encode()]) == expected
    assert decode([bytes([byte]) for byte in text.encode()]) == expected


@pytest.mark.req("D-18")
@pytest.mark.parametrize(
    "mark", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\0"]
)
def test_only_line_feeds_and_carriage_returns_end_a_line(mark: str) -> None:
    assert datas(f'data: {{"a": "x{mark}y"}}\n\n') == [f'{{"a": "x{mark}y"}}']


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_end_may_be_cut_anywhere(end: str) -> None:
    lines = ["event: x", "data: a", "data: b", "", "data: c", "", "", "data: d", ""]
    data = end.join([*lines, ""]).encode()
    expected = [("x", "a\nb"), ("message", "c"), ("message", "d")]
    for first in range(len(data) + 1):
        for second in (first, first + 1, first + 2):
            chunks = [data[:first], data[first:second], data[second:]]
            assert [(e.event, e.data) for e in decode(chunks)] == expected


def test_the_last_event_needs_no_blank_line_and_no_line_end() -> None:
    assert datas("data: a\n\ndata: [DONE]\n") == ["a", "[DONE]"]
    assert datas("data: a\n\ndata: [DONE]") == ["a", "[DONE]"]


@pytest.mark.req("ST-10")
def test_a_character_may_be_cut_anywhere() -> None:
    data = 'data: {"text": "ein Euro: €, ein Elefant: 🐘"}\n\ndata: ü\n\n'.encode()
    expected = decode([data])
    assert "\ufffd" not in expected[0].data
    for cut in range(len(data) + 1):
        assert decode([data[:cut], data[cut:]]) == expected


@pytest.mark.req("ST-10")
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_character_cut_off_by_the_end_is_an_error(kept: int) -> None:
    data = b"data: one\n\ndata: " + "🐘".encode()[:kept]
    decoder = SseDecoder()
    assert [event.data for event in decoder.feed(data)] == ["one"]
    assert decoder.close() == []
    assert isinstance(decoder.error, StreamError)
    assert "UTF-8" in str(decoder.error)


def test_bytes_that_are_no_text_are_an_error_after_what_was_good() -> None:
    decoder = SseDecoder()
    data = b"data: one\n\ndata: \xff\n\ndata: three\n\n"
    assert [event.data for event in decoder.feed(data)] == ["one"]
    assert isinstance(decoder.error, StreamError)
    assert decoder.feed(b"data: four\n\n") == []
    assert decoder.close() == []


PARTS = st.sampled_from(
    [
        *(b"data: ", b"data:", b"data", b"event: x", b"event:", b":c", b"id: 1"),
        *(b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b" ", b"a", "€🐘".encode()),
        *("\u2028".encode(), "\ufeff".encode(), b"{", b"[DONE]"),
    ]
)


@given(st.lists(PARTS, max_size=40), st.data())
def test_any_stream_reads_as_the_standard_says_however_it_is_cut(
    parts: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=10))
    edges = [0, *sorted(cuts), len(whole)]
    chunks = [whole[a:b] for a, b in pairwise(edges)]
    assert decode(chunks) == model(whole)


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_no_bytes_do_harm(chunks: list[bytes]) -> None:
    with contextlib.suppress(StreamError):
        decode(chunks)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "data",
    [
        b"data: " + b"x" * 200,
        b"x" * 200,
        b"data: " + b"x" * 200 + b"\n\n",
        b"data: x\n" * 50 + b"\n",
        b"data: x\n" * 50,
        b": c\n" * 10 + b"event: e\n" * 50,
    ],
)
def test_a_line_or_an_event_above_the_cap_is_an_error(data: bytes, size: int) -> None:
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    with pytest.raises(StreamError, match="longer than 100 bytes"):
        decode(chunks, max_line=100)


def test_many_small_events_and_comments_do_not_add_up() -> None:
    data = b": keep-alive\n\nid: 5\nevent: e\n\ndata: " + b"x" * 50 + b"\n\n"
    assert len(decode([data] * 100, max_line=100)) == 100
    waiting = [b": keep-alive\n\n"] * 100  # before the first event, or between two
    assert len(decode([*waiting, b"data: a\n\n"], max_line=100)) == 1


async def _iterate(chunks: Sequence[bytes | Exception]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if isinstance(chunk, Exception):
            raise chunk
        yield chunk


async def _collect(chunks: Sequence[bytes | Exception], seen: list[str]) -> None:
    async for event in iter_sse(_iterate(chunks)):
        seen.append(event.data)


async def test_events_are_yielded_as_they_complete_and_errors_pass() -> None:
    broken = ProviderConnectionError("gone")
    seen: list[str] = []
    with pytest.raises(ProviderConnectionError) as caught:
        await _collect([b"data: a\n\nda", b"ta: b\n\n", broken], seen)
    assert seen == ["a", "b"]
    assert caught.value is broken


async def test_a_broken_stream_yields_what_came_before_the_break() -> None:
    for chunks in (
        [b"data: a\n\ndata: \xff\n\n"],
        [b"data: a\n\ndata: \xf0\x9f"],
    ):
        seen: list[str] = []
        with pytest.raises(StreamError):
            await _collect(chunks, seen)
        assert seen == ["a"]


async def test_the_last_event_comes_at_the_end() -> None:
    events = [event async for event in iter_sse(_iterate([b"data: a"]), max_line=10)]
    assert events == [SseEvent("message", "a")]


@pytest.mark.req("D-42")
def test_a_line_in_many_pieces_is_joined_once() -> None:
    # 64 MB in pieces of 1 KB: a decoder that joined each time would move 2 TB.
    decoder = SseDecoder()
    decoder.feed(b"data: ")
    for _ in range(60_000):
        decoder.feed(b"x" * 1024)
    (event,) = decoder.feed(b"\n\n")
    assert len(event.data) == 60_000 * 1024
