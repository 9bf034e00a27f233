"""Cost of a request through the HTTP layer, against the bare libraries under it.

Run: `python -m bench.bench_http`. The server is a process of its own, so the client's
CPU time is what is measured. Only the ratios mean something: the sides run in turns in
the same process, and the median of the rounds is taken.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from statistics import median
from typing import Any

from executionkit._http import HttpRequest, HttpTimeouts, iter_sse, open_transport

ROUNDS = 9
REQUESTS = {1: 150, 16: 480, 256: 1024}
"""In flight -> requests of one round."""

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer key"}
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
ANSWER = (
    b'{"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": '
    b'[{"index": 0, "message": {"role": "assistant", "content": "hello there"}, '
    b'"finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}'
)
CHUNKS = 80_000

Send = Callable[[], Awaitable[Any]]


class _Server(asyncio.Protocol):
    REPLY = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
    )

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.got = b""

    def data_received(self, data: bytes) -> None:
        self.got += data
        _, found, rest = self.got.partition(b"\r\n\r\n")
        if found and len(rest) >= len(BODY):
            self.got = b""
            self.transport.write(self.REPLY)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent is gone
    server.close()


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.bench_http", "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
        process.communicate("")


@asynccontextmanager
async def _ours(name: str, url: str) -> AsyncIterator[Send]:
    transport = open_transport(name)
    limits = HttpTimeouts()

    async def send() -> bytes:
        request = HttpRequest("POST", url, HEADERS, BODY)
        return (await transport.send(request, limits)).body

    yield send
    await transport.aclose()


@asynccontextmanager
async def _aiohttp(url: str) -> AsyncIterator[Send]:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def send() -> bytes:
            async with session.post(url, data=BODY, headers=HEADERS) as response:
                return await response.read()

        yield send


@asynccontextmanager
async def _httpx(name: str, url: str) -> AsyncIterator[Send]:
    library = importlib.import_module(name)
    limits = library.Limits(max_connections=None, max_keepalive_connections=None)
    async with library.AsyncClient(limits=limits, timeout=120) as client:

        async def send() -> bytes:
            body: bytes = (
                await client.post(url, content=BODY, headers=HEADERS)
            ).content
            return body

        yield send


async def _round(send: Send, width: int, count: int) -> tuple[float, list[float]]:
    """Seconds of CPU for `count` requests, and the seconds that each one took."""
    taken: list[float] = []

    async def worker() -> None:
        for _ in range(count // width):
            began = time.perf_counter()
            assert await send() == ANSWER
            taken.append(time.perf_counter() - began)

    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(width)))
    return time.process_time() - began, taken


async def _compare(
    sides: dict[str, Send], width: int, rounds: int
) -> dict[str, tuple[float, float, float]]:
    """Side -> CPU seconds of a request, its p50 in seconds, p99 / p50; in turns."""
    count = REQUESTS[width]
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    p50: dict[str, list[float]] = {name: [] for name in sides}
    tail: dict[str, list[float]] = {name: [] for name in sides}
    for send in sides.values():
        await _round(send, width, width)  # opens the connections
    names = list(sides)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds, taken = await _round(sides[name], width, count)
            cpu[name].append(seconds / (count // width * width))
            taken.sort()
            p50[name].append(taken[len(taken) // 2])
            tail[name].append(taken[int(len(taken) * 0.99)] / p50[name][-1])
    # Of the tails the quietest round: other work on the machine only adds to one.
    return {
        name: (median(cpu[name]), median(p50[name]), min(tail[name])) for name in sides
    }


def _row(name: str, ours: float, limit: float, target: float | None) -> dict[str, Any]:
    ratio = ours / limit
    return {
        "name": name,
        "ours": ours,
        "limit": limit,
        "ratio": ratio,
        "target": target,
        "met": None if target is None else ratio <= target,
    }


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


async def _requests(url: str, rounds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with (
        _ours("stdlib", url) as stdlib,
        _ours("aiohttp", url) as on_aiohttp,
        _aiohttp(url) as raw,
        _ours("httpx2", url) as on_httpx2,
        _httpx("httpx2", url) as bare,
    ):
        sides = {
            "raw aiohttp": raw,
            "aiohttp": on_aiohttp,
            "stdlib": stdlib,
            "bare httpx2": bare,
            "httpx2": on_httpx2,
        }
        for width in REQUESTS:
            found = await _compare(sides, width, rounds)
            where = f"{width} in flight"
            limit, bare_limit = found["raw aiohttp"][0], found["bare httpx2"][0]
            for side, below, target in (
                ("aiohttp", "raw aiohttp", 1.4),
                ("stdlib", "raw aiohttp", 3.2),
                ("httpx2", "bare httpx2", 1.15),
            ):
                least = limit if below == "raw aiohttp" else bare_limit
                name = f"request on {side}, of {below}, {where}"
                rows.append(_row(name, found[side][0], least, target))
            rows.append(
                _row(
                    f"peer: bare httpx2, of raw aiohttp, {where}",
                    bare_limit,
                    limit,
                    None,
                )
            )
            for side in ("aiohttp", "stdlib"):
                name = f"p99 of p50 on {side}, {where}"
                _, middle, tail = found[side]
                rows.append(_row(name, middle * tail, middle, 2.0))
    return rows


def _stream(count: int) -> list[bytes]:
    text = b'data: {"choices": [{"index": 0, "delta": {"content": "word %d"}}]}\n\n'
    return [text % number for number in range(count)]


async def _each(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _by_hand(chunks: list[bytes]) -> int:
    """What a user writes: lines, a prefix, a decoded text."""
    total, rest = 0, b""
    async for chunk in _each(chunks):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                total += len(line[6:].decode())
    return total


async def _by_reader(chunks: list[bytes]) -> int:
    total = 0
    async for event in iter_sse(_each(chunks)):
        total += len(event.data)
    return total


async def _events(rounds: int) -> list[dict[str, Any]]:
    async def seconds(
        work: Callable[[list[bytes]], Awaitable[int]], count: int
    ) -> float:
        chunks = _stream(count)
        began = time.process_time()
        await work(chunks)
        return time.process_time() - began

    hand, ours, tenth = [], [], []
    for _ in range(rounds):
        hand.append(await seconds(_by_hand, CHUNKS))
        ours.append(await seconds(_by_reader, CHUNKS))
        tenth.append(await seconds(_by_reader, CHUNKS // 10))
    full = median(ours)
    return [
        _row(f"SSE reader, {CHUNKS} chunks", full, median(hand), 3.0),
        _row("SSE reader, 10 times the chunks", full, median(tenth), 12.0),
    ]


def rows(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Each measured thing: ours and the limit in seconds, their ratio, the target."""
    found: list[dict[str, Any]] = []
    if _installed("aiohttp") and _installed("httpx2"):
        with _server() as url:
            found += asyncio.run(_requests(url, rounds))
    found += asyncio.run(_events(rounds))
    return found


def main() -> None:
    if "--serve" in sys.argv:
        asyncio.run(_serve())
        return
    for row in rows():
        target = "" if row["target"] is None else f"target {row['target']:.2f}"
        verdict = {True: "met", False: "MISSED", None: ""}[row["met"]]
        print(
            f"{row['name']:55} {row['ours'] * 1e6:10.1f} us "
            f"{row['ratio']:6.2f}x {target:12} {verdict}"
        )


if __name__ == "__main__":
    main()
