"""Cost of reading replies against the same work written by hand.

Run: `python -m bench.bench_stream`. Only the ratios mean something: both sides run in
turns in the same process, and the median of the rounds is taken. The bytes come from
memory, so that the wire is no part of the time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from executionkit._http import HttpRequest, HttpResponse, HttpTimeouts
from executionkit.anthropic import AnthropicProvider
from executionkit.provider import Provider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

ROUNDS = 7
CHUNKS = 80_000
CALLS = 2_000
TARGET_STREAM = 3.0
TARGET_CALL = 3.0
USER = [{"role": "user", "content": "hi"}]


class Canned:
    """A transport that answers everything with the same pieces."""

    name = "canned"

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.status = 200
        self.headers: dict[str, str] = {}
        self.whole = HttpResponse(200, {}, b"".join(pieces))

    async def send(
        self, _request: HttpRequest, _timeouts: HttpTimeouts
    ) -> HttpResponse:
        return self.whole

    async def open_stream(
        self, _request: HttpRequest, _timeouts: HttpTimeouts
    ) -> Canned:
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def read(self, limit: int) -> bytes:
        return b"".join(self.pieces)[:limit]

    async def aclose(self) -> None:
        return None


def frame(number: int) -> bytes:
    chunk = {
        "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz012",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "some-model-2024-06-01",
        "system_fingerprint": "fp_0123456789",
        "choices": [
            {
                "index": 0,
                "delta": {"content": f"word{number} "},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def event(number: int) -> bytes:
    body = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": f"word{number} "},
    }
    return b"event: content_block_delta\ndata: " + json.dumps(body).encode() + b"\n\n"


END = b"data: [DONE]\n\n"
STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'


def in_reads(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


async def plain_openai(transport: Canned) -> str:
    """What one writes by hand: lines, JSON, delta; nothing is checked."""
    parts: list[str] = []
    rest = b""
    async for data in transport.chunks():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                body = json.loads(line[6:])
                parts.append(body["choices"][0]["delta"]["content"])
    return "".join(parts)


async def plain_anthropic(transport: Canned) -> str:
    parts: list[str] = []
    rest = b""
    async for data in transport.chunks():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                body = json.loads(line[6:])
                if body["type"] == "content_block_delta":
                    parts.append(body["delta"]["text"])
    return "".join(parts)


async def streamed(provider: Provider | AnthropicProvider) -> str:
    return "".join([text async for text in provider.stream(USER)])


async def events(provider: Provider) -> int:
    return len([item async for item in provider.stream_events(USER)])


def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    gc.collect()
    began = time.perf_counter()
    asyncio.run(work())  # type: ignore[arg-type]
    return time.perf_counter() - began


def _compare(
    ours: Callable[[], Awaitable[Any]], limit: Callable[[], Awaitable[Any]]
) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 else (1, 0):
            times[side].append(_timed((ours, limit)[side]))
    return statistics.median(times[0]), statistics.median(times[1])


def _row(
    name: str, pair: tuple[float, float], target: float, each: int
) -> dict[str, Any]:
    ours, limit = pair
    return {
        "name": name,
        "ours": ours / each,
        "limit": limit / each,
        "ratio": ours / limit,
        "target": target,
        "met": ours / limit <= target,
    }


def _stream_rows() -> list[dict[str, Any]]:
    openai = b"".join(map(frame, range(CHUNKS))) + END
    claude = b"".join(map(event, range(CHUNKS))) + STOP
    found: list[dict[str, Any]] = []
    for name, body, plain, make in (
        (
            "openai",
            openai,
            plain_openai,
            lambda t: Provider("http://h", "m", transport=t),
        ),
        (
            "anthropic",
            claude,
            plain_anthropic,
            lambda t: AnthropicProvider("m", base_url="http://h", transport=t),
        ),
    ):
        for how, pieces in (
            ("64 KB reads", in_reads(body, 65_536)),
            ("a read each", [part + b"\n\n" for part in body.split(b"\n\n")[:-1]]),
        ):
            transport = Canned(pieces)
            provider: Any = make(transport)
            assert asyncio.run(streamed(provider)) == asyncio.run(plain(transport))
            pair = _compare(partial(streamed, provider), partial(plain, transport))
            title = f"stream {name}, {CHUNKS:,} chunks, {how}"
            found.append(_row(title, pair, TARGET_STREAM, CHUNKS))
    transport = Canned(in_reads(openai, 65_536))
    provider = Provider("http://h", "m", transport=transport)
    pair = _compare(partial(events, provider), partial(plain_openai, transport))
    found.append(_row("stream_events openai, 64 KB reads", pair, TARGET_STREAM, CHUNKS))
    return found


def _cpu_seconds(provider: Provider) -> float:
    gc.collect()
    began = time.process_time()
    asyncio.run(streamed(provider))
    return time.process_time() - began


def _growth_row() -> dict[str, Any]:
    """Four times the chunks must take four times the time."""
    seconds: list[float] = []
    for count in (CHUNKS // 4, CHUNKS):
        body = b"".join(map(frame, range(count))) + END
        provider = Provider("http://h", "m", transport=Canned(in_reads(body, 65_536)))
        seconds.append(min(_cpu_seconds(provider) for _ in range(ROUNDS)))
    exponent = math.log(seconds[1] / seconds[0], 4)
    return {
        "name": "stream, exponent of the growth",
        "ours": seconds[1] / CHUNKS,
        "limit": seconds[0] / (CHUNKS // 4),
        "ratio": exponent,
        "target": 1.1,
        "met": exponent <= 1.1,
    }


def _call_row() -> dict[str, Any]:
    message = {"role": "assistant", "content": "x" * 400, "refusal": None}
    payload = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 90,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    transport = Canned([json.dumps(payload).encode()])
    provider = Provider("http://h", "m", "key", transport=transport)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer key"}
    timeouts = HttpTimeouts()

    async def ours() -> None:
        for _ in range(CALLS):
            await provider.complete(USER)

    async def by_hand() -> None:
        for _ in range(CALLS):
            body = {
                "model": "m",
                "messages": USER,
                "temperature": 0.7,
                "max_tokens": 4096,
            }
            request = HttpRequest(
                "POST", "http://h", headers, json.dumps(body).encode()
            )
            response = await transport.send(request, timeouts)
            json.loads(response.body)["choices"][0]["message"]["content"]

    return _row(
        "complete, without the wire", _compare(ours, by_hand), TARGET_CALL, CALLS
    )


def rows() -> list[dict[str, Any]]:
    """All measurements; seconds for one chunk or one call."""
    return [*_stream_rows(), _growth_row(), _call_row()]


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:<48} {row['ours'] * 1e6:7.2f} us  limit {row['limit'] * 1e6:7.2f}"
            f" us  ratio {row['ratio']:5.2f}  target {row['target']}"
            f"  {'met' if row['met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
