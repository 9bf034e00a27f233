"""A stream that changes the provider as long as nothing of it was handed out."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from executionkit._fallback.account import with_facts
from executionkit._fallback.rules import refuse_if_late
from executionkit._llm import LLMResponse, StreamEnd, TextDelta, UsageUpdate
from executionkit.context import remaining_deadline
from executionkit.patterns._failures import own_failure

if TYPE_CHECKING:
    from executionkit._fallback.asking import Asking
    from executionkit._fallback.members import Member
    from executionkit.engine.breaker import Ticket

__all__ = ("FallbackStream",)

_ItemT = TypeVar("_ItemT")

_END: Final = object()


class FallbackStream(AsyncIterator[_ItemT], Generic[_ItemT]):
    """The texts or events of the first provider that gives one.

    An asynchronous iterator, and a context manager that closes it. Empty texts and
    usage updates at the start wait until something else has come: a failure after them
    still goes to the next provider. Later failures are raised as they are.

    Args:
        asking: Who is asked.
        method: `"stream"` or `"stream_events"`.
        messages: The request.
        options: Its options.
        usage_sink: Gets the whole response.
    """

    def __init__(
        self,
        asking: Asking,
        method: str,
        messages: Any,
        options: dict[str, Any],
        usage_sink: list[LLMResponse] | None,
    ) -> None:
        self._asking = asking
        self._method = method
        self._messages = messages
        self._options = options
        self._usage_sink = usage_sink
        self._source: Any = None
        self._member: Member | None = None
        self._ready: deque[Any] = deque()
        self._text: list[str] = []
        self._closed = False

    @property
    def answered_by(self) -> str | None:
        """The name of the provider whose stream this is; None before it began."""
        return None if self._member is None else self._member.name

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _ItemT:
        if self._member is None and not self._closed:
            await self._begin()
        item: Any = _END
        if self._ready:
            item = self._ready.popleft()
        elif not self._closed:
            item = await self._next()
        if item is _END:
            self._closed = True
            raise StopAsyncIteration
        shown: _ItemT = self._shown(item)
        return shown

    async def _next(self) -> Any:
        failure: BaseException
        try:
            item = await anext(self._source, _END)
        except Exception as exc:
            if self._closed:  # what reading a closed stream gives is of no interest
                return _END
            self._closed = True
            failure = own_failure(exc, self._asking.rules.secrets)
            self._asking.mark(failure)
            if failure is exc:
                raise
        else:
            return _END if self._closed else item
        raise failure

    async def _begin(self) -> None:
        """Ask one after another until one gives something."""
        try:
            refuse_if_late(remaining_deadline())
            await self._search()
        except BaseException as exc:
            self._closed = True
            self._asking.mark(exc)
            raise

    async def _search(self) -> None:
        while (chosen := self._asking.choose()) is not None:
            if await self._open(*chosen) or self._closed:
                return
        raise self._asking.no_answer()

    async def _open(self, member: Member, ticket: Ticket) -> bool:
        """Whether the stream of this provider is the one."""
        self._asking.account.sent += 1
        number = self._asking.account.sent
        began = self._asking.rules.clock.monotonic()
        try:
            ready = await self._first_items(member)
        except Exception as exc:
            await self._drop()
            failure = self._asking.failed(member, ticket, exc, number, began)
            if failure is None:
                return False
            if failure is exc:
                raise
        except BaseException as exc:
            member.failed(ticket, exc, 0.0)
            raise
        else:
            member.answered(ticket, None)
            self._member = member
            self._ready.extend(ready)
            return True
        # Outside of the handler: so the failure keeps the context that it had.
        raise failure

    async def _first_items(self, member: Member) -> list[Any]:
        options = self._options
        if self._usage_sink is not None:
            options = {**options, "usage_sink": _Sink(self, member)}
        source: Any = getattr(member.provider, self._method)(self._messages, **options)
        if inspect.isawaitable(source):  # it was written as a coroutine
            source = await source
        self._source = source
        ready: list[Any] = []
        while not self._closed:
            item = await anext(source, _END)
            ready.append(item)
            if not _says_nothing(item):
                break
        return ready

    def _shown(self, item: Any) -> Any:
        if isinstance(item, StreamEnd):
            return StreamEnd(self.complete(item.response, self._member))
        if isinstance(item, str):
            self._text.append(item)
        elif isinstance(item, TextDelta):
            self._text.append(item.text)
        return item

    def complete(self, response: LLMResponse, member: Member | None) -> LLMResponse:
        """The response, with who gave it and what was spent besides it."""
        name = self._asking.rules.name if member is None else member.name
        account = self._asking.account
        if response.besides is not None:
            account.add(response.besides)
        return with_facts(response, name, account.besides)

    def append_to_sink(self, response: LLMResponse, member: Member) -> None:
        """The stream of `member` is complete."""
        if self._usage_sink is not None:
            self._usage_sink.append(self.complete(response, member))

    def partial_response(self) -> LLMResponse:
        """What is known now: the whole reply once it is complete, else what has come.

        Its `besides` has what the providers that failed before have cost.
        """
        tell = getattr(self._source, "partial_response", None)
        said = tell() if self._member is not None and callable(tell) else None
        if not isinstance(said, LLMResponse):
            said = LLMResponse("".join(self._text), finish_reason="incomplete")
        name = self._asking.rules.name if self._member is None else self._member.name
        return with_facts(said, name, self._asking.account.besides)

    async def aclose(self) -> None:
        """Stop: the request is aborted. Also from another task than the reader's."""
        self._closed = True
        self._ready.clear()
        await self._drop()

    async def _drop(self) -> None:
        source = self._source
        close = getattr(source, "aclose", None)
        # A generator that is being read by another task cannot be closed by this one.
        if close is None or getattr(source, "ag_running", False):
            return
        with suppress(Exception):  # an aborted request has nothing more to say
            await close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


def _says_nothing(item: Any) -> bool:
    if isinstance(item, TextDelta):
        return not item.text
    return isinstance(item, UsageUpdate) or item == ""


class _Sink(list[LLMResponse]):
    """Hands the response of one provider on, with what is known of it."""

    def __init__(self, stream: FallbackStream[Any], member: Member) -> None:
        super().__init__()
        self._stream = stream
        self._member = member

    def append(self, response: LLMResponse, /) -> None:
        self._stream.append_to_sink(response, self._member)
