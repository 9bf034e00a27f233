"""A reply while it is being made: an iterator that can be closed and accounted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from executionkit._constants import MAX_RESPONSE_BYTES
from executionkit._http.sse import SseDecoder
from executionkit._http.unhooked import unhooked_next
from executionkit._llm import LLMResponse, StreamEnd, StreamEvent, TextDelta
from executionkit._wire.common import parse_json
from executionkit._wire.failures import refuse
from executionkit.errors import (
    ExecutionKitError,
    LLMError,
    ProviderConnectionError,
    ProviderTimeoutError,
    StreamError,
)
from executionkit.observability import RequestSpan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from executionkit._http import HttpStream, HttpTimeouts
    from executionkit._wire.assembly import Assembler

__all__ = ("EventStream", "ReplySource", "TextStream")

_ItemT = TypeVar("_ItemT")
_MAX_BLANK_BYTES: Final = 65_536
_BROKE_AFTER: Final = "the connection broke after the end of the reply"
_BLANK: Final = b" \t\r\n\xef\xbb\xbf"


class ReplySource(Protocol):
    """Where the request of a stream goes; an `Endpoint`, or what stands in for one."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in errors."""
        ...

    async def open(self, body: bytes) -> tuple[HttpStream, HttpTimeouts]:
        """Send `body`; see `Endpoint.open`."""
        ...

    def explain(
        self,
        error: ProviderConnectionError | ProviderTimeoutError,
        timeouts: HttpTimeouts,
    ) -> ExecutionKitError:
        """A transport's error in the words of the settings."""
        ...


class _Run:
    """The state of one streamed reply, shared by its readers."""

    __slots__ = (
        "assembler",
        "body",
        "closed",
        "endpoint",
        "limits",
        "model",
        "provider",
        "sink",
        "source",
    )

    def __init__(
        self,
        endpoint: ReplySource,
        body: bytes,
        assembler: Assembler,
        sink: list[LLMResponse] | None,
        model: str,
        provider: object,
    ) -> None:
        self.provider: object = provider
        self.endpoint: ReplySource = endpoint
        self.body: bytes = body
        self.assembler: Assembler = assembler
        self.sink: list[LLMResponse] | None = sink
        self.model: str = model
        self.source: HttpStream | None = None
        self.limits: HttpTimeouts | None = None
        self.closed: bool = False

    def settle(self, failure: ExecutionKitError | None) -> LLMResponse:
        """The whole reply, now that nothing more comes.

        Args:
            failure: Why nothing more comes; None = the stream is over.
        """
        if failure is None:
            return self.assembler.finish()
        if isinstance(failure, (ProviderConnectionError, ProviderTimeoutError)):
            if self.assembler.ended:
                response = self.assembler.finish()
                return replace(response, notes=(*response.notes, _BROKE_AFTER))
            if self.limits is not None:  # else the endpoint has explained it
                failure = self.endpoint.explain(failure, self.limits)
        if isinstance(failure, LLMError) and not failure.partial_text:
            failure.partial_text = self.assembler.partial_text()
        raise failure


async def _pump(
    run: _Run, *, inner: bool = False
) -> AsyncGenerator[StreamEvent | None, None]:
    """The events of one reply; whoever stops reading closes the connection.

    Args:
        run: The reply.
        inner: Whether another generator reads it: then None comes first, so that it
            can be begun before anything is done (see `unhooked_next`).
    """
    if inner:
        yield None
    told = RequestSpan(run.model, run.provider) if run.model else None
    with told or nullcontext():
        failure: ExecutionKitError | None = None
        try:
            async with aclosing(_batches(run)) as batches:
                await unhooked_next(batches)
                async for events in batches:
                    for event in events:
                        yield event
        except ExecutionKitError as exc:
            failure = exc
        except RecursionError:
            failure = StreamError("the stream sent JSON that is nested too deeply")
        finally:
            if told is not None:
                told.answered(run.assembler.partial())
        if run.closed:
            return
        response = run.settle(failure)
    if run.sink is not None:
        run.sink.append(response)
    yield StreamEnd(response)


async def _batches(run: _Run) -> AsyncGenerator[Sequence[StreamEvent], None]:
    """The events of each server-sent event, until the reply is complete.

    Some servers answer a request for a stream with one whole answer, or with a page.
    The first byte tells: no line of an event stream begins with a brace or `<`. An
    empty batch comes first (see `unhooked_next`).
    """
    yield ()
    assembler = run.assembler
    source, run.limits = await run.endpoint.open(run.body)
    run.source = source
    try:
        if run.closed:
            return
        chunks = source.chunks().__aiter__()
        data = await _first_bytes(chunks)
        if data.lstrip(_BLANK)[:1] in {b"{", b"[", b"<"}:
            yield await _whole(data, chunks, run)
            return
        decoder = SseDecoder()
        while data:
            for frame in decoder.feed(data):
                yield assembler.feed(frame.event, frame.data)
                if assembler.complete:
                    return
            if decoder.error is not None:
                raise decoder.error
            data = await anext(chunks, b"")
        for frame in decoder.close():
            yield assembler.feed(frame.event, frame.data)
        if decoder.error is not None and not assembler.complete:
            raise decoder.error
    finally:
        await source.aclose()


async def _first_bytes(chunks: AsyncIterator[bytes]) -> bytes:
    """The body up to its first byte that is not blank, and what came with it."""
    data = b""
    while len(data) < _MAX_BLANK_BYTES and not data.lstrip(_BLANK):
        more = await anext(chunks, b"")
        if not more:
            break
        data += more
    return data


async def _whole(
    data: bytes, chunks: AsyncIterator[bytes], run: _Run
) -> Sequence[StreamEvent]:
    parts = [data]
    size = len(data)
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            refuse(f"the answer is larger than {MAX_RESPONSE_BYTES} bytes")
    payload = parse_json(b"".join(parts), secrets=run.endpoint.secrets)
    return run.assembler.whole(payload)


async def _texts(
    events: AsyncGenerator[StreamEvent | None, None],
) -> AsyncGenerator[str, None]:
    """The texts alone. Empty ones at the start wait until something has come.

    Servers open with an empty text; had it been given on, a failure right after it
    could not be retried unseen any more.
    """
    waiting = 0
    started = False
    async with aclosing(events):
        await unhooked_next(events)
        async for event in events:
            if type(event) is not TextDelta:
                continue
            if not started and not event.text:
                waiting += 1
                continue
            started = True
            for _ in range(waiting):
                yield ""
            waiting = 0
            yield event.text
    for _ in range(waiting):
        yield ""


class _ReplyStream(Generic[_ItemT]):
    """What both streams can do.

    It is an asynchronous iterator, and a context manager that closes it. Closing,
    cancelling the reader, and dropping the last reference all abort the request at
    once. A read that was cancelled or timed out has closed the stream: the next one
    ends it. The request is sent when the first item is asked for.
    """

    __slots__ = ("__weakref__", "_items", "_run")

    def __init__(self, run: _Run, items: AsyncGenerator[_ItemT, None]) -> None:
        # The generator knows the run, not this object: without a cycle, dropping the
        # last reference finalises it at once.
        self._run = run
        self._items = items

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[_ItemT]:
        return self._items.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop: the request is aborted. Also from another task than the reader's."""
        run = self._run
        run.closed = True
        items: Any = self._items  # `ag_running` is missing from its type
        if not items.ag_running:
            await self._items.aclose()
        elif run.source is not None:
            await run.source.aclose()  # the waiting reader sees the end

    def partial_response(self) -> LLMResponse:
        """What is known now: the whole reply once it is complete, else what has come.

        A part has `finish_reason="incomplete"`, and a `usage` only when the server has
        sent one: what a stream that broke off has cost is unknown, not zero.
        """
        return self._run.assembler.partial()

    @property
    def started(self) -> bool:
        """Whether something of the answer has come (empty texts do not count)."""
        return self._run.assembler.started


class EventStream(_ReplyStream[StreamEvent]):
    """A reply as typed events; the last one is `StreamEnd` with the whole of it.

    Args:
        endpoint: Where the request goes.
        body: The request.
        assembler: Puts the reply together.
        sink: Gets the whole response when the stream is complete.
        model: The name for a span of its own. Empty = the caller has one.
        provider: Who asks, for that span.
    """

    __slots__ = ()

    def __init__(
        self,
        endpoint: ReplySource,
        body: bytes,
        assembler: Assembler,
        sink: list[LLMResponse] | None = None,
        *,
        model: str = "",
        provider: object = None,
    ) -> None:
        run = _Run(endpoint, body, assembler, sink, model, provider)
        events: Any = _pump(run)  # None comes only to a generator around it
        super().__init__(run, events)


class TextStream(_ReplyStream[str]):
    """A reply as pieces of text; see `EventStream`."""

    __slots__ = ()

    def __init__(
        self,
        endpoint: ReplySource,
        body: bytes,
        assembler: Assembler,
        sink: list[LLMResponse] | None = None,
        *,
        model: str = "",
        provider: object = None,
    ) -> None:
        run = _Run(endpoint, body, assembler, sink, model, provider)
        super().__init__(run, _texts(_pump(run, inner=True)))
