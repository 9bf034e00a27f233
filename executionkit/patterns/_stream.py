"""One checked stream from a model: the same rules as a checked call."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._llm import LLMResponse
from executionkit._redact import describe_exception
from executionkit.context import remaining_deadline
from executionkit.cost import (
    Budget,
    CostTracker,
    Reservation,
    estimate_tokens,
)
from executionkit.engine.retry import DEFAULT_RETRY, RetryConfig, run_with_retry
from executionkit.errors import (
    BadResponseError,
    DeadlineExceededError,
    ExecutionKitError,
    LLMError,
)
from executionkit.patterns._call import ModelCall, known_secrets
from executionkit.patterns._failures import lost_connection, names_itself, own_failure
from executionkit.types import StreamingPatternResult, TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import StreamingProvider
    from executionkit.observability import TraceCallback

__all__ = ("checked_stream",)

_CHARS_PER_TOKEN: Final = 4
_log = logging.getLogger("executionkit")


async def checked_stream(
    provider: StreamingProvider,
    messages: Sequence[dict[str, Any]],
    tracker: CostTracker,
    budget: TokenUsage | Budget | None,
    retry: RetryConfig | None,
    trace: TraceCallback | None = None,
    **kwargs: Any,
) -> StreamingPatternResult:
    """Open a stream within budget; text comes as it is made.

    The budget is checked and the call reserved before this returns; the request is
    sent when the first text is asked for. A failure before the first text is retried
    like a call, one after it is raised. The deadline of the context in which this is
    called holds for the whole stream.

    Leaving the stream early (`aclose()`, also from another task, `async with`, or a
    cancelled read) ends it for good and aborts the request; what it used is counted
    (also when the stream is merely dropped, but then no trace event tells of it): as
    reported if the provider said so, else estimated from the messages and the text
    received, four characters a token (the true cost is unknown, not zero). Each library
    error carries the cost, and the text so far as `metadata["partial_text"]`.

    Args:
        provider: A provider with `stream`.
        messages: OpenAI's chat form.
        tracker: Counts what is spent.
        budget: Limits; see `TokenUsage`.
        retry: How to retry before the first text. None = `DEFAULT_RETRY`.
        trace: Receives `llm_call_start` and `llm_call_end` or `llm_call_error`.
        **kwargs: Passed to the provider.

    Raises:
        TypeError: When the provider cannot stream.
        BudgetExhaustedError: When the budget has no room for the call.
        DeadlineExceededError: When the current context's deadline has passed.
    """
    if not callable(getattr(provider, "stream", None)):
        msg = (
            f"{type(provider).__name__} is not a StreamingProvider: it has no `stream`"
        )
        raise TypeError(msg)
    left = remaining_deadline()
    if left is not None and left <= 0:
        msg = "The deadline has passed; no request was sent for this call"
        raise DeadlineExceededError(msg, cost=tracker.to_usage())
    limits = budget if isinstance(budget, Budget) else Budget.from_usage(budget)
    call = ModelCall(provider, messages, tracker, limits, trace, kwargs)
    call.open()
    try:
        held = await call.admit(1)
    except BaseException as exc:
        call.close(exc)
        if isinstance(exc, ExecutionKitError):
            exc.cost = tracker.to_usage()
            await call.refused(exc)
        raise
    stream = _Stream(
        _Opening(provider, messages, kwargs),
        call,
        held,
        tracker,
        retry or DEFAULT_RETRY,
        left,
    )
    return StreamingPatternResult(
        stream, {"streaming": True}, _usage_source=tracker.to_usage
    )


class _Opening:
    """What is needed to send the request, any number of times."""

    __slots__ = ("kwargs", "messages", "provider")

    def __init__(
        self,
        provider: StreamingProvider,
        messages: Sequence[dict[str, Any]],
        kwargs: dict[str, Any],
    ) -> None:
        self.provider = provider
        self.messages = messages
        self.kwargs = kwargs

    async def open(self, sink: list[LLMResponse]) -> AsyncIterator[str]:
        stream: Any = self.provider.stream(
            self.messages, usage_sink=sink, **self.kwargs
        )
        if inspect.isawaitable(stream):  # `stream` was written as a coroutine
            stream = await stream
        if not hasattr(stream, "__anext__"):
            msg = (
                f"{type(self.provider).__name__}.stream() must return an async "
                f"iterator of text, got {type(stream).__name__}"
            )
            raise BadResponseError(msg)
        source: AsyncIterator[str] = stream
        return source


class _Stream(AsyncIterator[str]):
    """The text iterator: opens on first use, settles its account exactly once."""

    def __init__(
        self,
        opening: _Opening,
        call: ModelCall,
        held: Reservation,
        tracker: CostTracker,
        retry: RetryConfig,
        seconds: float | None,
    ) -> None:
        self._opening = opening
        self._call = call
        self._held: Reservation | None = held
        self._tracker = tracker
        self._retry = retry
        self._clock = get_clock()
        self._due = None if seconds is None else self._clock.monotonic() + seconds
        self._attempt = 1
        self._sent = False
        self._source: AsyncIterator[str] | None = None
        self._sink: list[LLMResponse] = []
        self._text: list[str] = []
        self._closed = False
        self._told: BaseException | None = None  # the failure that was reported last

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> str:
        if self._closed:
            raise StopAsyncIteration
        text: Any  # a provider of one's own may give anything
        failure: BaseException
        try:
            text = await self._reading()
            if type(text) is str and not self._is_over():
                self._text.append(text)
                return text
            return await self._odd(text)
        except (StopAsyncIteration, asyncio.CancelledError) as exc:
            if isinstance(exc, asyncio.CancelledError):
                await self._end(exc)
            raise
        except Exception as exc:
            if self._is_over():  # what reading a closed stream gives is of no interest
                raise StopAsyncIteration from exc
            failure = self._given_up(exc) if exc is self._told else self._own(exc)
            await self._end(failure)
            if failure is exc:
                raise
        except BaseException as exc:
            self._call.close(exc, self._settle())
            raise
        # Outside of the handler: so the failure keeps the context that it had.
        raise failure

    def _reading(self) -> Awaitable[str | None]:
        if self._due is not None:
            return self._next_in_time()
        return self._next() if self._source is None else anext(self._source, None)

    async def _odd(self, text: Any) -> str:
        """What is no text: the end, or a mistake of the provider."""
        if self._is_over():  # closed by another task, while this one was waiting
            await _close(self._source)
            raise StopAsyncIteration
        if text is None:
            await self._complete()
            raise StopAsyncIteration
        if isinstance(text, str):
            self._text.append(text)
            return text
        msg = f"the stream gave a {type(text).__name__} instead of text"
        raise BadResponseError(msg)

    def _own(self, exc: Exception) -> BaseException:
        """The failure as an error that belongs to this stream alone."""
        return own_failure(exc, known_secrets(self._opening.provider))

    def _given_up(self, exc: Exception) -> Exception:
        """The failure of the last attempt; a raw one becomes an error of the library."""
        if isinstance(exc, OSError):
            self._told = exc = lost_connection(
                exc, known_secrets(self._opening.provider)
            )
            exc.attempts = self._attempt
            exc.retries_exhausted = self._retry.max_retries > 0
        return exc

    def _is_over(self) -> bool:
        return self._closed

    async def _next(self) -> str | None:
        if self._source is not None:
            return await anext(self._source, None)
        return await run_with_retry(
            self._first,
            self._retry,
            deadline=self._due,
            on_retry=self._call.on_retry,
            on_wait=self._call.on_wait(),
        )

    async def _next_in_time(self) -> str | None:
        assert self._due is not None  # noqa: S101 - why this is called
        limit = self._clock.timeout(max(0.0, self._due - self._clock.monotonic()))
        try:
            async with limit:
                return await self._next()
        except TimeoutError as exc:
            if not limit.expired():
                raise
            msg = "The deadline was reached in the middle of a stream"
            raise DeadlineExceededError(msg) from exc

    async def _first(self, number: int) -> str | None:
        """One attempt: send the request and wait for the first text."""
        if self._closed:  # by another task, during the pause before this attempt
            return None
        self._attempt = number
        if self._held is None:
            self._held = await self._call.admit(number)
        if self._is_over():
            await self._withdraw()
            return None
        self._sink = []
        self._sent = True
        try:
            with self._call.inside():
                self._source = await self._opening.open(self._sink)
                return None if self._is_over() else await anext(self._source, None)
        except Exception as exc:
            keep = isinstance(exc, OSError) and names_itself(self._retry, exc)
            self._told = failure = exc if keep else self._own(exc)
            await self._attempt_failed(number, failure)
            if failure is exc:
                raise
        raise failure

    async def _withdraw(self) -> None:
        """The stream was closed while its request waited for room in the budget."""
        held, self._held = self._held, None
        if held is not None:
            held.refund()
            await self._call.failed(self._attempt, asyncio.CancelledError())

    async def _attempt_failed(self, number: int, exc: BaseException) -> None:
        source, self._source = self._source, None
        held, self._held = self._held, None
        self._sent = False
        if held is not None:
            held.settle_failure(exc)
        await _close(source)
        if held is not None:
            await self._call.failed(number, exc)

    def leave(self) -> None:
        """Settle the account of a stream that nobody reads any more."""
        if not self._closed:
            self._call.close(None, self._settle())

    # Dropped without being closed: the request aborts itself, nothing can be awaited.
    __del__ = leave

    async def aclose(self) -> None:
        """Leave the stream: abort the request and settle the account."""
        if not self._closed:
            await self._end(None)

    async def _end(self, exc: BaseException | None) -> None:
        """Leave before the end: because of `exc`, or because nobody reads on."""
        held = self._held
        partial = self._settle()
        self._call.close(exc, partial)
        if isinstance(exc, ExecutionKitError):
            exc.cost = self._tracker.to_usage()
            exc.attempts = max(exc.attempts, self._attempt if self._sent else 0)
            exc.metadata.setdefault("partial_text", partial.content)
        if isinstance(exc, LLMError) and not exc.partial_text:
            exc.partial_text = partial.content
        told, self._told = self._told, None
        try:
            await _close(self._source)
        finally:
            if held is None:
                if isinstance(exc, ExecutionKitError) and exc is not told:
                    await self._call.refused(exc)
            elif exc is None:
                await self._call.ended(self._attempt, partial, closed_early=True)
            else:
                await self._call.failed(self._attempt, exc)

    def _settle(self) -> LLMResponse:
        """Book what an unfinished reply has cost; what is known of it."""
        self._closed = True
        held, self._held = self._held, None
        partial = self._partial()
        if held is not None and self._sent:
            held.settle_reply(partial)
        elif held is not None:
            held.refund()  # no request was ever sent
        return partial

    async def _complete(self) -> None:
        self._closed = True
        held, self._held = self._held, None
        assert held is not None  # noqa: S101 - held since the start
        response = self._sink[-1] if self._sink else self._partial()
        held.settle_reply(response)
        self._call.close(None, response)
        await self._call.ended(self._attempt, response)

    def _partial(self) -> LLMResponse:
        """What is known of an unfinished reply; its usage estimated if need be."""
        text = "".join(self._text)
        known = [*self._sink[-1:], _said_by(self._source)]
        for response in known:
            if response is not None and response.usage:
                return response
        usage: dict[str, int] = {}
        if self._sent:
            usage = {
                "input_tokens": estimate_tokens(self._opening.messages),
                "output_tokens": -(-len(text) // _CHARS_PER_TOKEN),
            }
        for response in known:
            if response is not None:
                return replace(response, usage=usage)
        return LLMResponse(text, finish_reason="incomplete", usage=usage)


def _said_by(source: object) -> LLMResponse | None:
    """What a stream of ours tells about an unfinished reply."""
    tell = getattr(source, "partial_response", None)
    said = tell() if callable(tell) else None
    return said if isinstance(said, LLMResponse) else None


async def _close(source: AsyncIterator[str] | None) -> None:
    close = getattr(source, "aclose", None)
    # A generator that is being read by another task cannot be closed by this one; its
    # reader sees that the stream is over, and closes it.
    if close is None or getattr(source, "ag_running", False):
        return
    try:
        outcome = close()
        if inspect.isawaitable(outcome):
            await outcome
    except Exception as exc:  # noqa: BLE001 - an aborted request has nothing more to say
        _log.debug("closing a stream failed: %s", describe_exception(exc))
