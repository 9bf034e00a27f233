"""What all transports share: clients per loop, limits, retry of a stale connection.

A backend fills in three methods: make a client for the running loop, close it, and
start one request on it. Everything that callers can see of a transport's behaviour
lives here, in `bodies` and in `failures`, so it is the same for every backend.

**Clients per loop.** Sockets belong to the loop they were opened on, while a transport
lives as long as a provider, which may be used from `asyncio.run` after `asyncio.run`
and from several threads. So each loop gets a client of its own. A loop that ends
closes its client by itself: an asynchronous generator is parked in the loop, and
`asyncio.run` (like every proper runner) closes those before it closes the loop. This
leaves no socket, no warning, and nothing for the caller to forget.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from executionkit._clock import get_clock
from executionkit._http.attempt import Attempt, Tally
from executionkit._http.bodies import RawResponse, Reader
from executionkit._http.failures import closed, explain
from executionkit._http.limits import LimitReachedError
from executionkit._http.prepare import Call, prepare
from executionkit._http.values import HttpResponse
from executionkit.errors import LLMError, ProviderConnectionError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from executionkit._http.values import (
        ConnectionCounts,
        HttpRequest,
        HttpStream,
        HttpTimeouts,
    )

__all__ = ("KEEPALIVE_SECONDS", "BaseTransport", "tick")

KEEPALIVE_SECONDS = 60.0
"""How long an idle connection may be reused. Servers and balancers keep theirs open for
about as long; one that closes earlier costs nothing, see `Attempt`."""

_ENCODINGS = "gzip, deflate"
# A compressor between the model and us may hold events back until its block is full.
_STREAM_ENCODINGS = "identity"

_SETTLE_TICKS = 3
"""Steps of the loop in which whatever was aborted has ended."""

_ClientT = TypeVar("_ClientT")


class tick:  # noqa: N801 - awaited like a function
    """`await tick()` lets the loop run once, whatever the clock."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _LoopClient(Generic[_ClientT]):
    """The client of one loop, and the responses that are being read from it."""

    __slots__ = ("calls", "client", "closer", "closing", "readers", "slots")

    def __init__(
        self,
        client: _ClientT,
        close: Callable[[_ClientT], Awaitable[None]],
        max_connections: int,
    ) -> None:
        self.client = client
        self.slots = asyncio.Semaphore(max_connections)
        self.calls: set[Call] = set()  # waiting for a slot, or for headers
        self.readers: set[Reader] = set()
        self.closing: set[asyncio.Task[None]] = set()
        # It gets no reference to this object: when neither a transport nor a stream
        # holds that any more, the loop finalizes the generator.
        self.closer = _close_at_end(client, close, self.calls, self.readers)
        with suppress(StopIteration):  # runs to its `yield`: parks it in the loop
            self.closer.asend(None).send(None)

    def release(self, reader: Reader) -> None:
        """`reader` needs its connection no more."""
        self.readers.discard(reader)
        self.slots.release()


class BaseTransport(Generic[_ClientT]):
    """A transport without a backend.

    Args:
        max_connections: Requests of one loop in flight at once; more wait for their turn,
            bounded by their total limit.
        max_response_bytes: The cap for one body.
    """

    name: str

    def __init__(self, *, max_connections: int, max_response_bytes: int) -> None:
        if max_connections < 1:
            msg = f"`max_connections` must be >= 1, got {max_connections}"
            raise ValueError(msg)
        self._max_connections = max_connections
        self._max_response_bytes = max_response_bytes
        self._clients: dict[asyncio.AbstractEventLoop, _LoopClient[_ClientT]] = {}
        self._lock = threading.Lock()
        self._tally = Tally()

    # What a backend fills in.

    def _new_client(self) -> _ClientT:
        """A client for the running loop."""
        raise NotImplementedError

    @staticmethod
    async def _close_client(client: _ClientT) -> None:
        """Close it with all of its connections."""
        raise NotImplementedError

    async def _start(
        self, client: _ClientT, call: Call, attempt: Attempt
    ) -> RawResponse:
        """Send the request; return when the response's headers are there.

        Whatever interrupts it, cancellation included, must abort the connection.
        """
        raise NotImplementedError

    # What callers see.

    @property
    def connection_counts(self) -> ConnectionCounts:
        """Connections opened, failed, and requests sent again, up to now."""
        return self._tally.counts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} max_connections={self._max_connections}>"

    async def send(self, request: HttpRequest, timeouts: HttpTimeouts) -> HttpResponse:
        """Send `request` and read the whole response."""
        call = prepare(request, timeouts, get_clock(), encodings=_ENCODINGS)
        try:
            async with call.scope:
                reader = await self._open(call, None)
                try:
                    body = await reader.read_all(self._max_response_bytes)
                except BaseException:
                    await reader.abort()
                    raise
            return HttpResponse(reader.status, reader.headers, body)
        except Exception as exc:  # noqa: BLE001 - the edge: any backend, one error tree
            failure = explain(exc, call)
        except asyncio.CancelledError:
            failure = _explain_cancelled(call)
        # Outside of the handler, so that the backend's error is not its context either.
        raise failure

    async def open_stream(
        self, request: HttpRequest, timeouts: HttpTimeouts
    ) -> HttpStream:
        """Send `request` and return as soon as the headers are there."""
        clock = get_clock()
        call = prepare(request, timeouts, clock, encodings=_STREAM_ENCODINGS)
        deadline = (
            None if timeouts.total is None else clock.monotonic() + timeouts.total
        )
        try:
            async with call.scope:
                reader = await self._open(call, deadline)
            return BodyStream(reader, call)
        except Exception as exc:  # noqa: BLE001 - the edge: any backend, one error tree
            failure = explain(exc, call)
        except asyncio.CancelledError:
            failure = _explain_cancelled(call)
        raise failure

    async def aclose(self) -> None:
        """Close the running loop's connections. Using it again opens new ones."""
        with self._lock:
            entry = self._clients.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry.closer.aclose()

    async def _open(self, call: Call, deadline: float | None) -> Reader:
        loop = asyncio.get_running_loop()
        entry = self._clients.get(loop) or self._add_client(loop)
        entry.calls.add(call)
        try:
            await entry.slots.acquire()
            try:
                raw = await self._start_twice(entry.client, call)
            except BaseException:
                entry.slots.release()
                raise
        finally:
            entry.calls.discard(call)
        try:
            reader = Reader(raw, call, entry, deadline)
        except BaseException:
            entry.slots.release()
            await raw.abort()
            raise
        entry.readers.add(reader)
        return reader

    async def _start_twice(self, client: _ClientT, call: Call) -> RawResponse:
        attempt = Attempt(call, self._tally, fresh=call.once)
        try:
            return await self._start(client, call, attempt)
        except (LimitReachedError, LLMError):
            raise
        except Exception:
            if not attempt.stale:
                raise
        self._tally.add(resent=1)
        return await self._start(client, call, Attempt(call, self._tally, fresh=True))

    def _add_client(self, loop: asyncio.AbstractEventLoop) -> _LoopClient[_ClientT]:
        entry = _LoopClient(
            self._new_client(), self._close_client, self._max_connections
        )
        with self._lock:
            for other in [each for each in self._clients if each.is_closed()]:
                del self._clients[other]
            self._clients[loop] = entry
        return entry


async def _close_at_end(
    client: _ClientT,
    close: Callable[[_ClientT], Awaitable[None]],
    calls: set[Call],
    readers: set[Reader],
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        # First whatever is under way: not every client ends that when it is closed.
        for call in list(calls):
            call.abort()
        for reader in list(readers):
            await reader.abort()
        for _ in range(_SETTLE_TICKS):
            await tick()
        await close(client)


def _explain_cancelled(call: Call) -> LLMError:
    """The error for a `CancelledError` that a backend made up by itself.

    aiohttp cancels its own futures when a session of the user's is closed. A
    cancellation of the caller's task, time limits among them, is raised on.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling() > 0:
        raise  # noqa: PLE0704 - called from `except`
    return closed(call)


class BodyStream:
    """The `HttpStream` of every backend."""

    __slots__ = ("_call", "_loop", "_reader")

    def __init__(self, reader: Reader, call: Call) -> None:
        self._reader = reader
        self._call = call
        self._loop = asyncio.get_running_loop()

    @property
    def status(self) -> int:
        """The status code."""
        return self._reader.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        return self._reader.headers

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces as they arrive."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self._next()
        if data:
            return data
        raise StopAsyncIteration

    async def read(self, limit: int) -> bytes:
        """The rest of the body, at most `limit` bytes of it; then close."""
        parts: list[bytes] = []
        size = 0
        while size < limit and (data := await self._next()):
            parts.append(data)
            size += len(data)
        await self._reader.abort()
        return b"".join(parts)[:limit]

    async def aclose(self) -> None:
        """Abort the connection at once, unless the body is complete. Idempotent."""
        await self._reader.abort()

    async def _next(self) -> bytes:
        reader = self._reader
        if reader.closed and not reader.complete:
            self._refuse()
        try:
            return await reader.next()
        except Exception as exc:  # noqa: BLE001 - the edge: any backend, one error tree
            failure = explain(exc, self._call)
        except asyncio.CancelledError:
            await reader.abort()
            failure = _explain_cancelled(self._call)
        await reader.abort()
        raise failure

    def _refuse(self) -> NoReturn:
        msg = (
            f"the stream from `{self._call.shown_url}` was closed before its body was "
            "complete: by `aclose()`, by a cancelled read, or by an earlier failure"
        )
        raise ProviderConnectionError(msg)

    def __del__(self) -> None:
        # Nobody can read on: give the connection back to the system. A finalizer may
        # run in any thread, and late, when the loop has gone.
        reader: Any = getattr(self, "_reader", None)
        if reader is None or reader.closed or self._loop.is_closed():
            return
        with suppress(RuntimeError):  # closed in this very moment
            self._loop.call_soon_threadsafe(reader.abort_soon)
