"""Any bytes that a server can send become a reply or one typed error."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._http import HttpRequest, HttpResponse, HttpTimeouts
from executionkit._llm import LLMResponse, StreamEnd
from executionkit.anthropic import AnthropicProvider
from executionkit.errors import ExecutionKitError
from executionkit.provider import Provider
from executionkit.types import freeze

KEY = "tops3cret-value-17"
USER = [{"role": "user", "content": "hi"}]
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "out", "schema": {"type": "array"}},
}


class Canned:
    """A transport that answers everything with the same bytes."""

    name = "canned"

    def __init__(
        self, body: bytes | Sequence[bytes], status: int = 200, kind: str = ""
    ) -> None:
        self.pieces = [body] if isinstance(body, bytes) else list(body)
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": kind} if kind else {}

    async def send(
        self, _request: HttpRequest, _timeouts: HttpTimeouts
    ) -> HttpResponse:
        return HttpResponse(self.status, self.headers, b"".join(self.pieces))

    async def open_stream(
        self, _request: HttpRequest, _timeouts: HttpTimeouts
    ) -> Canned:
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if piece:
                yield piece

    async def read(self, limit: int) -> bytes:
        return b"".join(self.pieces)[:limit]

    async def aclose(self) -> None:
        return None


OPENAI: dict[str, Any] = {
    "id": "r",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "a"}],
                "refusal": None,
                "reasoning_content": "r",
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a": 1}'},
                    }
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
}
ANTHROPIC: dict[str, Any] = {
    "id": "r",
    "type": "message",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "d", "name": "out", "input": {"value": [1]}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
CHUNKS: list[dict[str, Any]] = [
    {
        "id": "r",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
    },
    {"id": "r", "choices": [{"index": 0, "delta": {"content": "a", "refusal": "n"}}]},
    {"choices": [{"delta": OPENAI["choices"][0]["message"]}]},
    {"choices": [{"delta": {"function_call": {"name": "f", "arguments": "{}"}}}]},
    {"choices": [{"delta": {}, "finish_reason": "length"}], "usage": OPENAI["usage"]},
    {"error": {"message": "m", "type": "server_error", "code": 500}},
]
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**ANTHROPIC, "content": []}},
    *(
        {"type": "content_block_start", "index": index, "content_block": block}
        for index, block in enumerate(ANTHROPIC["content"])
    ),
    *(
        {"type": "content_block_delta", "index": index, "delta": delta}
        for index, delta in enumerate(
            [
                {"type": "thinking_delta", "thinking": "t"},
                {"type": "text_delta", "text": "a"},
                {"type": "input_json_delta", "partial_json": '{"a": 1}'},
                {"type": "input_json_delta", "partial_json": '{"value": 1}'},
                {"type": "signature_delta", "signature": "s"},
            ]
        )
    ),
    *({"type": "content_block_stop", "index": index} for index in range(4)),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "max_tokens"},
        "usage": {"a": 1},
    },
    {"type": "message_stop"},
    {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "text", "{", "{}", '{"a": 1}', "error", "length", "\ud800", KEY]
    )
)
KEYS = st.sampled_from(
    ["type", "text", "id", "name", "index", "input", "error", "message", "function"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to each value inside, outermost first."""
    found = [path]
    items: list[tuple[Any, Any]] = []
    if isinstance(value, (dict, list)):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, item in items:
        found += places(item, (*path, key))
    return found


def changed(original: Any, changes: list[tuple[int, Any]]) -> Any:
    """A copy in which the values at some places are others."""
    value = copy.deepcopy(original)
    for number, new in changes:
        paths = places(value)
        *front, last = paths[number % len(paths)] or (None,)
        if last is None:
            return new
        target = value
        for key in front:
            target = target[key]
        target[last] = new
    return value


CHANGES = st.lists(st.tuples(st.integers(0, 200), VALUES), max_size=4)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def check(response: LLMResponse) -> None:
    """A reply must be whole: readable, frozen, and fit to be sent back."""
    assert isinstance(response, LLMResponse)
    assert all(call.id and call.name for call in response.tool_calls)
    ids = [call.id for call in response.tool_calls]
    ids += [problem.call_id for problem in response.problems]
    assert len(set(ids)) == len(ids)
    freeze(response.raw)
    pickle.dumps(response)
    json.dumps(response.to_message())
    response.to_message()


async def ask(provider: Provider | AnthropicProvider, options: dict[str, Any]) -> None:
    failure: ExecutionKitError | None = None
    try:
        check(await provider.complete(USER, **options))
    except ExecutionKitError as exc:
        failure = exc
    assert KEY not in repr(failure)


async def drain(
    provider: Provider | AnthropicProvider, options: dict[str, Any]
) -> None:
    sink: list[LLMResponse] = []
    stream = provider.stream_events(USER, usage_sink=sink, **options)
    last: object = None
    failure: ExecutionKitError | None = None
    try:
        async for event in stream:
            last = event
    except ExecutionKitError as exc:
        failure = exc
    if failure is None:
        assert isinstance(last, StreamEnd)
        check(last.response)
        assert sink == [last.response]
    assert KEY not in repr(failure)
    assert failure is None or not sink
    stream.partial_response()


def openai(transport: Canned) -> Provider:
    return Provider("http://h.example", "m", KEY, transport=transport)


def claude(transport: Canned) -> AnthropicProvider:
    return AnthropicProvider("m", KEY, transport=transport)


both = pytest.mark.parametrize(
    ("make", "options"),
    [(openai, {}), (claude, {}), (claude, {"response_format": FORMAT})],
    ids=["openai", "anthropic", "anthropic-format"],
)
Make = Callable[[Canned], Any]
pytestmark = pytest.mark.req("provider.total", "D-13")


@both
@settings(deadline=None)
@given(
    body=st.binary(max_size=200), status=st.sampled_from([200, 200, 204, 302, 404, 500])
)
def test_any_bytes_become_a_reply_or_a_typed_error(
    make: Make, options: dict[str, Any], body: bytes, status: int
) -> None:
    for kind in ("", "application/json", "text/event-stream", "text/html"):
        provider = make(Canned(body, status, kind))
        asyncio.run(ask(provider, options))
        asyncio.run(drain(provider, options))


@both
@settings(max_examples=150, deadline=None)
@given(changes=CHANGES)
def test_any_changed_answer_becomes_a_reply_or_a_typed_error(
    make: Make, options: dict[str, Any], changes: list[tuple[int, Any]]
) -> None:
    original = OPENAI if make is openai else ANTHROPIC
    provider = make(Canned(as_json(changed(original, changes))))
    asyncio.run(ask(provider, options))
    asyncio.run(drain(provider, options))


@both
@settings(max_examples=150, deadline=None)
@given(
    order=st.lists(st.integers(0, 30), max_size=16),
    changes=CHANGES,
    done=st.booleans(),
    junk=st.binary(max_size=8),
)
def test_any_changed_stream_becomes_a_reply_or_a_typed_error(
    make: Make,
    options: dict[str, Any],
    order: list[int],
    changes: list[tuple[int, Any]],
    done: bool,
    junk: bytes,
) -> None:
    known = CHUNKS if make is openai else EVENTS
    frames = changed([known[number % len(known)] for number in order], changes)
    frames = frames if isinstance(frames, list) else [frames]
    body = b"".join(b"data: " + as_json(frame) + b"\n\n" for frame in frames)
    body += junk + (b"data: [DONE]\n\n" if done else b"")
    cut = len(junk) * 7
    asyncio.run(drain(make(Canned([body[:cut], body[cut:]])), options))


@both
@pytest.mark.parametrize("depth", [100, 320, 500, 513, 900, 100_000])
def test_deep_json_becomes_a_reply_or_a_typed_error(
    make: Make, options: dict[str, Any], depth: int
) -> None:
    """Also where freezing it would take more frames than there are."""
    text = as_json({"a": 1})[:-1] + b', "b": ' + b"[" * depth + b"]" * depth + b"}"
    for arguments in (text.decode(), text[:-9].decode()):
        message = copy.deepcopy(OPENAI["choices"][0]["message"])
        message["tool_calls"][0]["function"]["arguments"] = arguments
        body = as_json({"choices": [{"message": message}]})
        asyncio.run(ask(openai(Canned(body)), {}))
    deep = b"[" * depth + b"]" * depth
    for name in (b"usage", b"extra", b"content", b"choices"):
        original = OPENAI if make is openai else ANTHROPIC
        rest = {key: value for key, value in original.items() if key != name.decode()}
        body = b'{"%b": %b, %b' % (name, deep, as_json(rest)[1:])
        asyncio.run(ask(make(Canned(body)), options))
        asyncio.run(drain(make(Canned(b"data: " + body + b"\n\n")), options))
