"""The MCP server over HTTP ("streamable HTTP"), on the standard library.

    async with HTTPServer(MCPServer(tools=registry)) as http:
        print(http.url)
        await http.serve_forever()

It listens on this machine alone unless it is told otherwise, and refuses what a page in
somebody's browser sends. It has no TLS and knows no users: put a proxy before it where
others can reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from executionkit._clock import get_clock
from executionkit.mcp._constants import INVALID_REQUEST
from executionkit.mcp._server.endpoint import Endpoint
from executionkit.mcp._server.guard import HostGuard, is_loopback
from executionkit.mcp._server.http_sessions import Sessions
from executionkit.mcp._server.messages import ProtocolError, encode, failure
from executionkit.mcp._server.stdio import stopped_by_signals
from executionkit.mcp._server.wire import Connection, WireError
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit.mcp.server import MCPServer

__all__ = ("HTTPOptions", "HTTPServer", "run_http")

_SWEEP_SECONDS: Final = 30.0
_END_SECONDS: Final = 0.25
_log = logging.getLogger("executionkit")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPOptions:
    """Who may come, and how much of it there may be."""

    path: str = "/mcp"
    """The one path that is served."""

    allowed_hosts: tuple[str, ...] = ()
    """Names under which the server may be reached, without port, beside this machine's
    own. `*` = any: only behind something that checks it."""

    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may use the server, such as `https://app.example`."""

    max_connections: int = 512
    max_sessions: int = 1000
    session_seconds: float = 1800.0
    """How long a session may be unused."""

    max_body_bytes: int = 4 * 1024 * 1024
    read_seconds: float = 30.0
    """How long the rest of a request may take to come."""

    idle_seconds: float = 75.0
    """How long a connection may be unused."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed_hosts", tuple(self.allowed_hosts))
        object.__setattr__(self, "allowed_origins", tuple(self.allowed_origins))
        if not self.path.startswith("/"):
            msg = f"`path` must begin with a slash, got {self.path!r}"
            raise ValueError(msg)
        for name in (
            *("max_connections", "max_sessions", "max_body_bytes"),
            *("session_seconds", "read_seconds", "idle_seconds"),
        ):
            if not getattr(self, name) > 0:
                msg = f"`{name}` must be greater than 0, got {getattr(self, name)!r}"
                raise ValueError(msg)


class HTTPServer:
    """Serves an `MCPServer` over HTTP, to any number of clients.

    Args:
        server: What is offered; it stays open.
        host: The address to listen on.
        port: The port; 0 = any that is free.
        options: Who may come, and limits.

    Raises:
        ValueError: When others can reach `host` and no `allowed_hosts` are given.
    """

    def __init__(
        self,
        server: MCPServer,
        host: str = "127.0.0.1",
        port: int = 0,
        options: HTTPOptions | None = None,
    ) -> None:
        options = options or HTTPOptions()
        if not is_loopback(host) and not options.allowed_hosts:
            msg = (
                f"`host` {host!r} can be reached from elsewhere: give `allowed_hosts`, "
                "the names under which clients reach it"
            )
            raise ValueError(msg)
        self._host, self._port, self._options = host, port, options
        self._core = server.core
        self._guard = HostGuard.local(options.allowed_hosts, options.allowed_origins)
        self._sessions = Sessions(
            self._core, options.max_sessions, options.session_seconds
        )
        self._endpoint = Endpoint(self._core, self._sessions)
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it is served.

        Raises:
            RuntimeError: When it is not.
        """
        if self._listening is None:
            msg = "the server has not been started"
            raise RuntimeError(msg)
        port = self._listening.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}{self._options.path}"

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    async def start(self) -> None:
        """Listen from now on.

        Raises:
            OSError: When the address cannot be used.
        """
        if self._listening is not None:
            return
        self._listening = await asyncio.start_server(
            self._connected, self._host.strip("[]"), self._port
        )
        self._tasks = {asyncio.create_task(self._sweep())}
        if not self._core.fixed:
            self._tasks.add(asyncio.create_task(self._core.watch()))

    async def close(self) -> None:
        """Listen no more, and end what runs. Idempotent."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        listening.close()
        await self._sessions.end_all()
        ending = {*self._tasks, *self._open}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=_END_SECONDS)

    async def serve_forever(self) -> None:
        """Serve until the task is cancelled."""
        await self.start()
        await asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _sweep(self) -> None:
        clock = get_clock()
        while True:
            await clock.sleep(_SWEEP_SECONDS)
            await self._sessions.sweep()

    # --- connections ---
    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the server made one
        self._open.add(task)
        connection = Connection(reader, writer, self._options.read_seconds)
        try:
            await self._requests(connection)
        except OSError:
            pass  # the client has gone
        except asyncio.CancelledError:
            pass  # the server ends; nobody waits for this task
        except Exception as exc:  # noqa: BLE001 - no request ends the server
            _log.warning("an HTTP request was not served: %s", type(exc).__name__)
        finally:
            self._open.discard(task)
            with contextlib.suppress(asyncio.CancelledError):
                await connection.writer.close()

    async def _requests(self, connection: Connection) -> None:
        """Serve requests until the last one, or one that is refused."""
        try:
            if len(self._open) > self._options.max_connections:
                raise WireError(503, "too many connections")  # noqa: TRY301
            while await self._request(connection):
                pass
        except WireError as exc:
            await self._refused(connection, exc)

    async def _request(self, connection: Connection) -> bool:
        """Serve one request; False when it was the last one of the connection."""
        head = await connection.head(self._options.idle_seconds)
        if head is None:
            return False
        self._guard.check(head)
        if head.path != self._options.path:
            raise WireError(404, "there is nothing here")
        if head.headers.get("expect", "").lower() == "100-continue":
            await connection.writer.go_on()
        body = await connection.body(head, self._options.max_body_bytes)
        return await self._endpoint.serve(connection, head, body)

    async def _refused(self, connection: Connection, error: WireError) -> None:
        told = ProtocolError(INVALID_REQUEST, error.reason)
        with contextlib.suppress(OSError):
            await connection.writer.respond(
                error.status, encode(failure(None, told)), keep_alive=False
            )
            await connection.linger()


async def run_http(
    server: MCPServer,
    address: str,
    options: HTTPOptions | None = None,
    *,
    signals: bool = False,
    on_end: Callable[[], None] | None = None,
) -> None:
    """Serve at `address` for ever, or until a signal; says where on standard error.

    Args:
        server: What is offered.
        address: `HOST:PORT`, `:PORT` or `PORT`.
        options: Who may come, and limits.
        signals: Whether SIGTERM and SIGINT end it.
        on_end: Called when the end begins.

    Raises:
        ValueError: When the address is none, or may not be used.
        OSError: When it cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        msg = f"`address` must be HOST:PORT, got {address!r}"
        raise ValueError(msg)
    stop = asyncio.Event()
    async with HTTPServer(
        server, host.strip("[]") or "127.0.0.1", int(port), options
    ) as http:
        sys.stderr.write(f"mcp: serving {http.url}\n")
        sys.stderr.flush()
        with contextlib.ExitStack() as stack:
            if signals:
                stack.enter_context(stopped_by_signals(stop.set))
            await stop.wait()
            if on_end is not None:
                on_end()
