"""The engine in the place of an HTTP transport: requests go to a thread, not a socket.

So a local model shares everything above the transport with the remote ones: limits,
deadlines, streams, and how an error object becomes an error.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

from executionkit._clock import get_clock
from executionkit._http import HttpResponse
from executionkit._wire.failures import failure_in, to_error
from executionkit.errors import (
    PermanentError,
    ProviderConnectionError,
    ProviderTimeoutError,
)

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit._http import HttpRequest, HttpStream, HttpTimeouts
    from executionkit._local.host import EngineHost, Job
    from executionkit.errors import LLMError
    from executionkit.types import JsonValue

__all__ = ("EngineTransport",)

_OK: Final = 200
_REFUSED: Final = "the local engine refused the request"
_ERROR: Final = b'{"error"'
_TOO_LONG: Final = "exceed_context_size_error"
_CLOSED: Final = "the answer of the local engine was closed"
_DONE: Final = b"data: [DONE]\n\n"


class EngineTransport:
    """Sends requests to the engine of a host.

    Args:
        host: Whose engine.
        context: What to say about the room for one request when it is too small.
    """

    name = "local"

    def __init__(self, host: EngineHost, context: str) -> None:
        self._host = host
        self._context = context

    async def send(self, request: HttpRequest, timeouts: HttpTimeouts) -> HttpResponse:
        """Answer `request`, whole."""
        stream = await self._start(request, timeouts)
        body = await stream.read(-1)
        return HttpResponse(stream.status, {}, body)

    async def open_stream(
        self, request: HttpRequest, timeouts: HttpTimeouts
    ) -> HttpStream:
        """Answer `request`; returns as soon as the engine has begun, or refused."""
        return await self._start(request, timeouts)

    async def aclose(self) -> None:
        """End the engine; the next request loads it again."""
        await self._host.aclose()

    async def _start(self, request: HttpRequest, timeouts: HttpTimeouts) -> _Answer:
        answer = _Answer(self._host.submit(request.body), timeouts.total)
        await answer.begin(self._context)
        return answer


class _Answer:
    """What the engine says to one request, in the form of an HTTP body."""

    def __init__(self, job: Job, total: float | None) -> None:
        self.status = _OK
        self.headers: Mapping[str, str] = {}
        self._job = job
        self._clock: Clock = get_clock()
        self._total = total
        self._began = self._clock.monotonic()
        self._first = b""
        self._closed = False

    async def begin(self, context: str) -> None:
        """Wait for the first piece: it tells whether the engine refuses."""
        try:
            first = await self._next()
        except ValueError as exc:
            msg = f"{_REFUSED}: {exc}"
            raise PermanentError(msg) from None
        except BaseException:
            self._job.stop()
            raise
        if first is None:
            msg = "the local engine ended without an answer"
            raise ProviderConnectionError(msg)
        if first.startswith(_ERROR):
            self._job.stop()
            raise _error_of(first, context)
        self._first = first

    async def chunks(self) -> AsyncIterator[bytes]:
        """The pieces as server-sent events."""
        try:
            piece: bytes | None = self._first
            while piece is not None:
                yield b"data: %b\n\n" % piece
                piece = await self._next()
            yield _DONE
        except ValueError as exc:
            msg = f"the local engine broke off: {exc}"
            raise ProviderConnectionError(msg) from None
        finally:
            self._job.stop()

    async def read(self, limit: int) -> bytes:
        """The whole answer as it is, and close."""
        parts = [self._first]
        try:
            while (piece := await self._next()) is not None:
                parts.append(piece)
        finally:
            self._job.stop()
        body = b"".join(parts)
        return body if limit < 0 else body[:limit]

    async def aclose(self) -> None:
        """Stop the engine at the next token; a waiting reader sees an error."""
        if not self._closed:
            self._closed = True
            self._job.stop()
            self._job.end(ProviderConnectionError(_CLOSED))

    async def _next(self) -> bytes | None:
        if self._closed:
            raise ProviderConnectionError(_CLOSED)
        if self._total is None:
            return await self._job.next()
        left = self._total - (self._clock.monotonic() - self._began)
        scope = self._clock.timeout(left)
        try:
            async with scope:
                return await self._job.next()
        except TimeoutError:
            if not scope.expired():
                raise
        self._job.stop()
        msg = f"the local model was not done after {self._total:g} s"
        raise ProviderTimeoutError(msg, metadata={"limit": "total"})


def _error_of(payload: bytes, context: str) -> LLMError:
    """The error that the engine answered in place of a reply."""
    said: JsonValue = json.loads(payload)
    error = said["error"]
    if error.get("type") == _TOO_LONG:
        have, room = error.get("n_prompt_tokens"), error.get("n_ctx")
        msg = (
            f"the prompt has {have} tokens and one request has room for {room} "
            f"({context}); shorten it or raise `context_size`"
        )
        facts = {"prompt_tokens": have, "context_tokens": room}
        return PermanentError(msg, metadata=facts)
    failure = failure_in(said)
    if failure is None or failure.permanent:
        msg = f"{_REFUSED}: {error.get('message') or error}"
        return PermanentError(msg)
    return to_error(failure, who="the local engine answered")
