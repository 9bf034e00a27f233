"""The one address of an MCP server over HTTP: what each request comes to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from executionkit.mcp._constants import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY_VERSIONS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    MODERN_VERSIONS,
    PARSE_ERROR,
    SERVER_BUSY,
    UNSUPPORTED_VERSION,
)
from executionkit.mcp._server.guard import accepts, check_modern_headers
from executionkit.mcp._server.messages import (
    Id,
    Kind,
    ProtocolError,
    decode,
    encode,
    failure,
    read_message,
)
from executionkit.mcp._server.peer import is_modern, modern_peer
from executionkit.mcp._server.session import Session
from executionkit.mcp._server.streams import EventStream

if TYPE_CHECKING:
    from executionkit.mcp._server.core import Core
    from executionkit.mcp._server.http_sessions import HTTPSession, Sessions
    from executionkit.mcp._server.wire import Connection, Head

__all__ = ("Endpoint",)

_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
    SERVER_BUSY: 503,
}
_SESSION_LOST: Final = -32001
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_VERSION: Final = "mcp-protocol-version"
_SESSION: Final = "mcp-session-id"


class Endpoint:
    """Serves requests.

    Args:
        core: What is offered.
        sessions: Where sessions are kept.
    """

    def __init__(self, core: Core, sessions: Sessions) -> None:
        self._core = core
        self._sessions = sessions

    async def serve(self, connection: Connection, head: Head, body: bytes) -> bool:
        """Serve a request; False when the connection should be closed."""
        if head.method == "POST":
            return await self._post(connection, head, body)
        version = head.headers.get(_VERSION)
        legacy = version is None or version in LEGACY_VERSIONS
        if head.method == "GET" and legacy:
            return await self._get(connection, head)
        if head.method == "DELETE" and legacy:
            return await self._delete(connection, head)
        allowed = {"Allow": "GET, POST, DELETE" if legacy else "POST"}
        await connection.writer.respond(
            405, headers=allowed, keep_alive=head.keep_alive
        )
        return head.keep_alive

    # --- POST ---
    async def _post(self, connection: Connection, head: Head, body: bytes) -> bool:
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            msg = f"`Content-Type` must be {_JSON}"
            return await _refuse(connection, head, 415, INVALID_REQUEST, msg)
        if not accepts(head, _JSON) and not accepts(head, _EVENTS):
            msg = f"`Accept` must have {_JSON} and {_EVENTS}"
            return await _refuse(connection, head, 406, INVALID_REQUEST, msg)
        try:
            message = decode(body)
            version = head.headers.get(_VERSION)
            if version is None:
                params = message.get("params") if isinstance(message, dict) else None
                modern = isinstance(params, dict) and is_modern(params)
            else:
                modern = version not in LEGACY_VERSIONS
            if modern:
                return await self._modern(connection, head, message)
            return await self._legacy(connection, head, message)
        except ProtocolError as exc:
            return await _refuse_with(connection, head, exc, exc.id)

    async def _modern(
        self, connection: Connection, head: Head, message: object
    ) -> bool:
        incoming = read_message(message)
        if incoming.kind is Kind.NOTIFICATION:
            # There is nothing in this version that one could be about.
            if head.headers.get(_VERSION) not in MODERN_VERSIONS:
                data = {"supported": list(MODERN_VERSIONS)}
                msg = "Unsupported protocol version"
                raise ProtocolError(UNSUPPORTED_VERSION, msg, data)
            await connection.writer.respond(202, keep_alive=head.keep_alive)
            return head.keep_alive
        if incoming.kind is Kind.RESPONSE:
            raise ProtocolError(INVALID_REQUEST, "Invalid request: a response")
        try:
            check_modern_headers(self._core, head, incoming)
            modern_peer(incoming.params)
        except ProtocolError as exc:
            return await _refuse_with(connection, head, exc, incoming.id)
        if incoming.method == "subscriptions/listen" and not accepts(head, _EVENTS):
            msg = f"`Accept` must have {_EVENTS}"
            return await _refuse(connection, head, 406, INVALID_REQUEST, msg)
        stream = EventStream(None)
        session = Session(self._core, stream, can_ask=False)
        task = await session.receive(message, stream, head.headers)
        if task is None:
            return await _answer(connection, head, stream.answer, None)
        try:
            return await self._stream_once(connection, head, stream, task)
        finally:
            await _cancelled(task)

    async def _stream_once(
        self,
        connection: Connection,
        head: Head,
        stream: EventStream,
        task: asyncio.Task[None],
    ) -> bool:
        """Send what a request without a session brings; it ends with the client."""
        task.add_done_callback(lambda _task: stream.finish())
        gone = asyncio.ensure_future(connection.gone())
        events = accepts(head, _EVENTS)
        begun = asyncio.ensure_future(stream.begun() if events else _done(task))
        try:
            await asyncio.wait({begun, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done():
                return False
            if stream.answer is not None and (stream.count == 1 or not events):
                return await _answer(connection, head, stream.answer, None)
            if stream.count == 0:
                return False
            sending = asyncio.ensure_future(_send(connection, head, stream, -1, {}))
            try:
                await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not sending.done():
                    return False
                return await sending and head.keep_alive
            finally:
                await _cancelled(sending)
        finally:
            await _cancelled(begun)
            await _cancelled(gone)

    async def _legacy(self, connection: Connection, head: Head, message: Any) -> bool:
        name = head.headers.get(_SESSION)
        if name is None:
            return await self._begin(connection, head, message)
        found = self._sessions.find(name)
        if found is None:
            msg = "Session not found: begin a new one"
            return await _refuse(connection, head, 404, _SESSION_LOST, msg)
        items: list[Any] = message if isinstance(message, list) else [message]
        asks = not items or any(not _needs_no_answer(one) for one in items)
        if not asks:
            await found.session.receive(message, found.standing, head.headers)
            await connection.writer.respond(202, keep_alive=head.keep_alive)
            return head.keep_alive
        stream = found.open_stream()
        task = await found.session.receive(message, stream, head.headers)
        if task is None:
            found.drop_stream(stream)
            return await _answer(connection, head, stream.answer, 200)
        task.add_done_callback(lambda _task: stream.finish())
        if accepts(head, _EVENTS):
            # When the client goes, the work goes on: it may come back for the rest.
            return await self._follow(connection, head, stream, -1, found)
        await _done(task)
        return await _answer(connection, head, stream.answer, 200)

    async def _begin(self, connection: Connection, head: Head, message: object) -> bool:
        incoming = read_message(message)
        if incoming.method != "initialize" or incoming.kind is not Kind.REQUEST:
            msg = "Invalid request: `Mcp-Session-Id` is missing; begin with initialize"
            raise ProtocolError(INVALID_REQUEST, msg, id=incoming.id)
        made = await self._sessions.make()
        if made is None:
            raise ProtocolError(SERVER_BUSY, "Too many sessions", id=incoming.id)
        answer = EventStream(None)
        await made.session.receive(message, answer, head.headers)
        if made.session.peer is None:
            await self._sessions.end(made)
            return await _answer(connection, head, answer.answer, None)
        named = {"Mcp-Session-Id": made.id}
        return await _answer(connection, head, answer.answer, 200, named)

    # --- GET, DELETE ---
    async def _get(self, connection: Connection, head: Head) -> bool:
        if not accepts(head, _EVENTS):
            msg = f"`Accept` must have {_EVENTS}"
            return await _refuse(connection, head, 406, INVALID_REQUEST, msg)
        found = await self._session_of(connection, head)
        if found is None:
            return head.keep_alive
        stream, after = found.standing, found.standing.last_sent
        last = head.headers.get("last-event-id")
        if last is not None:
            known = found.find_stream(last)
            if known is None:
                msg = "Unknown `Last-Event-ID`"
                return await _refuse(connection, head, 404, INVALID_REQUEST, msg)
            stream, after = known
        return await self._follow(connection, head, stream, after, found)

    async def _follow(
        self,
        connection: Connection,
        head: Head,
        stream: EventStream,
        after: int,
        found: HTTPSession,
    ) -> bool:
        """Send a stream as long as the client is there."""
        named = {"Mcp-Session-Id": found.id}
        sending = asyncio.ensure_future(_send(connection, head, stream, after, named))
        gone = asyncio.ensure_future(connection.gone())
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return False
            return await sending and head.keep_alive
        finally:
            await _cancelled(sending)
            await _cancelled(gone)

    async def _delete(self, connection: Connection, head: Head) -> bool:
        found = await self._session_of(connection, head)
        if found is not None:
            await self._sessions.end(found)
            await connection.writer.respond(204, keep_alive=head.keep_alive)
        return head.keep_alive

    async def _session_of(
        self, connection: Connection, head: Head
    ) -> HTTPSession | None:
        name = head.headers.get(_SESSION)
        found = None if name is None else self._sessions.find(name)
        if found is None:
            status = 400 if name is None else 404
            await _refuse(connection, head, status, _SESSION_LOST, "Session not found")
        return found


def _needs_no_answer(message: object) -> bool:
    try:
        return read_message(message).kind is not Kind.REQUEST
    except ProtocolError:
        return False  # it is told that it is malformed


async def _send(
    connection: Connection,
    head: Head,
    stream: EventStream,
    after: int,
    headers: dict[str, str],
) -> bool:
    """Write a stream as server-sent events; False when the connection is of no use."""
    writer = connection.writer
    try:
        await writer.begin_events(
            headers, chunked=head.chunked, keep_alive=head.keep_alive
        )
        frames = stream.frames(after)
        try:
            async for frame in frames:
                await writer.send(frame)
        finally:
            await frames.aclose()
        await writer.end_events()
    except OSError:
        return False
    return head.chunked


async def _answer(
    connection: Connection,
    head: Head,
    answer: Any,
    status: int | None,
    headers: dict[str, str] | None = None,
) -> bool:
    """Write an answer as JSON; without a status, that of its error."""
    if answer is None:  # the client has taken its request back
        await connection.writer.respond(204, keep_alive=head.keep_alive)
        return head.keep_alive
    if isinstance(answer, dict) and "error" in answer:
        code = answer["error"]["code"]
        if status is None or answer.get("id") is None:
            status = _STATUS.get(code, 200)
    await connection.writer.respond(
        status or 200, encode(answer), headers=headers, keep_alive=head.keep_alive
    )
    return head.keep_alive


async def _refuse_with(
    connection: Connection, head: Head, error: ProtocolError, request_id: Id | None
) -> bool:
    return await _answer(connection, head, failure(request_id, error), None)


async def _refuse(
    connection: Connection, head: Head, status: int, code: int, message: str
) -> bool:
    body = encode(failure(None, ProtocolError(code, message)))
    await connection.writer.respond(status, body, keep_alive=head.keep_alive)
    return head.keep_alive


async def _done(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task that is not needed any more, and see it end."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
