"""Tools for the tests of worker processes: a worker imports them from this file."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executionkit.context import ExecutionContext, get_current_context
from executionkit.types import Tool

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
STARTED = threading.Event()


def add(a: int, b: int) -> int:
    return a + b


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


class Doubler:
    async def execute(self, number: int) -> int:
        return number * 2


class Counter:
    """An object with a state: each worker has its own."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.count = 0

    def execute(self) -> int:
        self.count += self.step
        return self.count


class Both:
    """Plain and streaming form in one."""

    supports_streaming = True

    async def execute(self, count: int) -> list[int]:
        return list(range(count))

    async def stream_execute(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number


power = functools.partial(pow, 2)


def plus_one(number: int) -> int:
    return number + 1


def wrapped(function: Callable[..., Any]) -> Tool:
    return Tool("hidden", "", {"type": "object", "properties": {}}, function)


@wrapped
def hidden() -> str:
    return "found through its wrapper"


def pid() -> int:
    return os.getpid()


def echo(text: str) -> str:
    return text


@dataclass
class Point:
    x: int
    y: int


def mirror(point: Point) -> Point:
    return Point(point.y, point.x)


class OddError(Exception):
    """Cannot be rebuilt from its `args`."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"odd {code}")


class FineError(Exception):
    """Can be."""


def fail(kind: str) -> None:
    errors: dict[str, BaseException] = {
        "fine": FineError("fine words"),
        "odd": OddError(code=7),
        "key": KeyError("missing"),
        "stop": StopIteration(3),
        "exit": SystemExit(4),
        "interrupt": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError(),
        "lock": ValueError(threading.Lock()),
    }
    raise errors[kind]


async def fail_later(kind: str) -> None:
    await asyncio.sleep(0)
    fail(kind)


def give(kind: str) -> Any:
    return {"lambda": lambda: 1, "lock": threading.Lock(), "deep": deep()}[kind]


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


def items(count: int) -> Iterator[int]:
    yield from range(count)


async def items_later(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


def numbered(path: str, count: int) -> Iterator[int]:
    """Writes down how far it has come."""
    for number in range(count):
        Path(path).write_text(str(number))
        yield number


def items_then_fail(count: int) -> Iterator[int]:
    yield from range(count)
    msg = "after the items"
    raise RuntimeError(msg)


def odd_item() -> Iterator[Any]:
    yield 1
    yield lambda: 2
    yield 3


def who() -> list[Any]:
    context = get_current_context()
    if context is None:
        return [None, TENANT.get()]
    return [context.user_id, TENANT.get()]


async def who_later() -> list[Any]:
    await asyncio.sleep(0)
    return who()


def who_leaks() -> list[Any]:
    """Sets what no other call may see."""
    found = who()
    TENANT.set("leaked")
    return found


def told(context: ExecutionContext) -> str | None:
    return context.user_id


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def put(path: str, content: str) -> None:
    Path(path).write_text(content)


async def nap_later(seconds: float, path: str) -> None:
    try:
        put(path, str(os.getpid()))
        await asyncio.sleep(seconds)
    finally:
        put(path, "cleaned up")


def nap_and_clean(seconds: float, path: str) -> None:
    try:
        Path(path).write_text(str(os.getpid()))
        time.sleep(seconds)
    finally:
        Path(path).write_text("cleaned up")


def stubborn(path: str) -> None:
    """Does not end for SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).write_text(str(os.getpid()))
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


def spin(path: str = "") -> None:
    if path:
        Path(path).write_text(str(os.getpid()))
    while True:
        pass


_CANARY = """
import signal, sys, time
if sys.argv[4] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write("started")
time.sleep(float(sys.argv[3]))
open(sys.argv[2], "w").write("an effect")
"""


def canary(started: str, effect: str, after: float, mood: str = "") -> None:
    """Starts a process that has an effect later, and waits for it."""
    command = [sys.executable, "-S", "-c", _CANARY, started, effect, str(after), mood]
    if mood == "away":  # out of the reach of signals to the group
        subprocess.Popen(command, start_new_session=True)
        time.sleep(60)
    subprocess.run(command, check=True)


def forks(started: str, effect: str, after: float) -> None:
    """A forked child: it has copies of all that its parent has open."""
    if not os.fork():
        Path(started).write_text(str(os.getpid()))
        time.sleep(after)
        Path(effect).write_text("an effect")
        os._exit(0)
    os._exit(5)


def crash(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "abort":
        os.abort()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for(path: str) -> str:
    """Says that it has begun, and ends when the file is taken away."""
    file = Path(path)
    file.write_text(str(os.getpid()))
    while file.exists():
        time.sleep(0.005)
    return "ended"


def prints() -> str:
    print("printed by a tool", flush=True)
    os.write(1, b"\xe5\x07 raw bytes\n")
    os.write(2, b"to stderr\n")
    subprocess.run([sys.executable, "-S", "-c", "print(1)"], check=True)
    return repr(sys.stdin.read())


def hoard(megabytes: int) -> int:
    """Keeps memory."""
    KEPT.append(bytearray(megabytes << 20))
    return len(KEPT)


KEPT: list[bytearray] = []


def take(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


def write(path: str, size: int) -> int:
    with Path(path).open("wb", buffering=0) as file:
        return file.write(b"x" * size)


def open_many(count: int) -> int:
    return len([os.dup(0) for _ in range(count)])


def forgets_a_task(path: str) -> str:
    async def later() -> str:
        async def effect() -> None:
            await asyncio.sleep(0.05)
            put(path, "late")

        KEPT_TASKS.append(asyncio.create_task(effect()))
        return "done"

    return later()  # type: ignore[return-value]


KEPT_TASKS: list[Any] = []


def threads_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def strategy_inside() -> str:
    from executionkit.tools.registry import create_registry
    from executionkit.tools.strategies import SubprocessStrategy

    async def nested() -> str:
        strategy = SubprocessStrategy(create_registry(), max_workers=1)
        await strategy.warm()
        await strategy.shutdown()
        return "nested"

    return asyncio.run(nested())


def reach(what: str, where: str) -> str:
    """Tries something outside of a sandbox."""
    if what == "read":
        return Path(where).read_text()
    if what == "write":
        return str(Path(where).write_text("written"))
    if what == "start":
        command = [sys.executable, "-S", "-c", f"print(open({where!r}).read())"]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout
    if what == "signal":
        os.kill(int(where), 0)
        return "sent"
    import socket

    kind = socket.SOCK_DGRAM if what == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as made:
        made.settimeout(2)
        made.connect(("127.0.0.1", int(where)))
        made.send(b"x")
    return "reached"


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


class BombError(Exception):
    """The same, raised."""

    def __init__(self, path: str) -> None:
        super().__init__("boom")
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def bomb(how: str, path: str) -> Any:
    if how == "raise":
        raise BombError(path)
    return Bomb(path)


def bombs(path: str) -> Iterator[Any]:
    yield 1
    yield Bomb(path)


def plain() -> list[Any]:
    import datetime as dt
    import decimal

    return [
        1,
        "x",
        b"y",
        2.5,
        None,
        {"a": (1,)},
        dt.date(2026, 1, 2),
        decimal.Decimal("1.5"),
    ]


def traceparent_seen() -> str | None:
    """The trace that a worker is told of."""
    from executionkit import get_current_context

    context = get_current_context()
    return None if context is None else context.traceparent
