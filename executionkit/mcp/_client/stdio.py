"""A server that runs as a program: its messages, its words on standard error, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess  # nosec B404 - starting servers is what it is for
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit._clock import get_clock
from executionkit._redact import redact
from executionkit.errors import require
from executionkit.mcp._client.results import mend_result

if TYPE_CHECKING:
    from executionkit.mcp._client.servers import MCPOptions, StdioServer

__all__ = ("StdioWire",)

MAX_STDERR_BYTES: Final = 8192
"""How much of what a server last wrote to standard error is kept."""

_CHUNK: Final = 256 * 1024
_MAX_STRAY: Final = 200
_MAX_SHOWN: Final = 600
_LAST_WORDS: Final = 0.25
"""Seconds after the end of a server in which its output may still be read."""

_PATIENCE: Final = (0.4, 0.8)
"""The parts of the limit after which a server that stays is asked, and then killed."""

_POSIX: Final = os.name == "posix"


class _Process(asyncio.subprocess.SubprocessStreamProtocol):
    """Keeps the end of standard error, and tells at once when the process has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_CHUNK, loop=loop)
        self.loop: asyncio.AbstractEventLoop = loop
        self.words = bytearray()
        self.exited: asyncio.Event = asyncio.Event()
        self.closed: asyncio.Event = asyncio.Event()
        self.is_cut: bool = False

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if fd != 2 or isinstance(data, str):
            if not self.is_cut:
                super().pipe_data_received(fd, data)
            return
        self.words += data
        del self.words[:-MAX_STDERR_BYTES]

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()
        # A child of the server may hold the pipe open for ever.
        self.loop.call_later(_LAST_WORDS, self._end_output)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()

    def _end_output(self) -> None:
        self.is_cut = True
        if self.stdout is not None and not self.stdout.at_eof():
            self.stdout.feed_eof()


class StdioWire:
    """Starts a server and carries messages; what the SDK calls a transport.

    Args:
        server: What to start.
        options: Limits.
        on_lost: Called once, with the reason, when the server is gone.
    """

    is_http: Final = False

    def __init__(
        self, server: StdioServer, options: MCPOptions, on_lost: Callable[[str], None]
    ) -> None:
        self._server = server
        self._on_lost = on_lost
        self._max_bytes = options.max_message_bytes
        self._limit = options.close_timeout
        self._process: _Process | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._is_closing = False
        self.stray: str = ""
        """The last line that was no message."""
        self.spoilt: dict[str, str] = {}
        """Tools that the last list had and that cannot be read, and why."""

    @property
    def target(self) -> Any:
        """What the SDK's client takes."""
        return self

    @property
    def stderr(self) -> str:
        """What the server last wrote to standard error; secrets are masked."""
        if self._process is None:
            return ""
        return redact(self._process.words.decode("utf-8", "replace")).strip()

    @property
    def pid(self) -> int | None:
        """The process; None before it is started."""
        return None if self._transport is None else self._transport.get_pid()

    def describe(self) -> str:
        """What is known of how the server ended."""
        code = None if self._transport is None else self._transport.get_returncode()
        parts: list[str] = []
        if code is not None:
            how = f"exit code {code}"
            if code < 0:
                how = f"signal {_signal_name(-code)}"
            parts.append(f"the process ended with {how}")
        if self.stray:
            parts.append(f"it printed what is no message: {redact(self.stray)!r}")
        words = self.stderr
        if words:
            parts.append(f"it wrote to stderr: {words[-_MAX_SHOWN:]}")
        return "; ".join(parts)

    async def __aenter__(self) -> tuple[_Reader, _Writer]:
        server = self._server
        loop = asyncio.get_running_loop()
        pipe = subprocess.PIPE
        inherited = require("mcp.client.stdio", extra="mcp").get_default_environment()
        transport, protocol = await loop.subprocess_exec(
            lambda: _Process(loop),
            server.command,
            *server.args,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**inherited, **(server.env or {})},
            cwd=server.cwd,
            start_new_session=_POSIX,
        )
        self._transport, self._process = transport, protocol
        return _Reader(self, protocol, self._max_bytes), _Writer(self, protocol)

    async def __aexit__(self, *_exc: object) -> None:
        self._is_closing = True
        process, transport = self._process, self._transport
        if process is None or transport is None:
            return
        try:
            await self._stop(process)
        except BaseException:  # there is no time: it must not live on
            self._signal(signal.SIGKILL if _POSIX else signal.SIGTERM)
            raise
        finally:
            transport.close()
        await _within(process.closed, _LAST_WORDS)

    def ended(self, why: str = "") -> None:
        """No message comes any more."""
        if not self._is_closing:
            self._is_closing = True
            self._on_lost(why)

    async def _stop(self, process: _Process) -> None:
        """Close its input, wait, ask it to end, wait, kill it."""
        if process.stdin is not None:
            process.stdin.close()
        asked, killed = (part * self._limit for part in _PATIENCE)
        if not await _within(process.exited, asked):
            self._signal(signal.SIGTERM)
            if not await _within(process.exited, killed - asked):
                self._signal(signal.SIGKILL if _POSIX else signal.SIGTERM)
                await _within(process.exited, self._limit - killed)
        elif process.stdout is not None and not process.stdout.at_eof():
            self._signal(signal.SIGTERM)  # what it has started lives on

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and all that it has started."""
        if self._transport is None:
            return
        try:
            if _POSIX:
                os.killpg(self._transport.get_pid(), number)
            else:
                self._transport.terminate()
        except (ProcessLookupError, PermissionError):
            pass


async def _within(event: asyncio.Event, seconds: float) -> bool:
    if event.is_set():
        return True
    try:
        async with get_clock().timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class _Reader:
    """Messages of the server, read by the SDK."""

    def __init__(self, wire: StdioWire, process: _Process, max_bytes: int) -> None:
        self._wire = wire
        self._process = process
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._held = 0
        message = require("mcp.shared.message", extra="mcp")
        self._message: Any = message.SessionMessage
        self._parse: Any = require("mcp.types", extra="mcp").jsonrpc_message_adapter

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Nothing to do: the process owns its pipes."""

    async def receive(self) -> Any:
        """The next message."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            anyio: Any = require("anyio", extra="mcp")
            raise anyio.EndOfStream from None

    async def __anext__(self) -> Any:
        while True:
            while self._lines:
                read = self._read(self._lines.popleft())
                if read is not None:
                    return read
            if not await self._more():
                raise StopAsyncIteration

    def _read(self, line: bytes) -> Any:
        try:
            read = self._parse.validate_json(line, by_name=False)
        except ValueError:
            text = line[: 4 * _MAX_STRAY].decode("utf-8", "replace").strip()
            self._wire.stray = text[:_MAX_STRAY] or self._wire.stray
            return None
        mend_result(getattr(read, "result", None), self._wire.spoilt)
        return self._message(read)

    async def _more(self) -> bool:
        """Read on; False at the end."""
        stdout = self._process.stdout
        chunk = b"" if stdout is None else await stdout.read(_CHUNK)
        if not chunk:
            await _within(self._process.exited, _LAST_WORDS)  # to say how it ended
            self._wire.ended()
            return False
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._lines.extend(lines)
            self._parts, self._held = [], 0
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        if self._held > self._max_bytes:
            self._wire.ended(f"it sent a message of more than {self._max_bytes} bytes")
            return False
        return True


class _Writer:
    """Messages to the server, written by the SDK."""

    def __init__(self, wire: StdioWire, process: _Process) -> None:
        self._wire = wire
        self._process = process
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take nothing more."""
        self._is_closed = True

    async def send(self, item: Any) -> None:
        """Write one message.

        Raises:
            anyio.BrokenResourceError: When the server does not read any more.
        """
        text: str = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        stdin = self._process.stdin
        if self._is_closed or stdin is None or self._process.exited.is_set():
            self._wire.ended()
            raise _broken()
        try:
            stdin.write(text.encode() + b"\n")
            # A cancellation must not wait for a server that does not read.
            if getattr(item.message, "id", None) is not None:
                await stdin.drain()
        except (ConnectionError, RuntimeError) as exc:
            await _within(self._process.exited, _LAST_WORDS)
            self._wire.ended()
            raise _broken() from exc


def _broken() -> Exception:
    anyio: Any = require("anyio", extra="mcp")
    error: Exception = anyio.BrokenResourceError()
    return error
