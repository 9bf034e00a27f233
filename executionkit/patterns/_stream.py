"""One checked stream from a model: the same rules as a checked call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from executionkit._llm import LLMResponse
from executionkit.context import remaining_deadline
from executionkit.cost import (
    Budget,
    CostTracker,
    Reservation,
    estimate_tokens,
    response_usage,
)
from executionkit.engine.retry import DEFAULT_RETRY, RetryConfig, run_with_retry
from executionkit.errors import DeadlineExceededError, ExecutionKitError
from executionkit.patterns._call import ModelCall
from executionkit.types import StreamingPatternResult, TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import StreamingProvider
    from executionkit.observability import TraceCallback

__all__ = ("checked_stream",)

_CHARS_PER_TOKEN = 4


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
    like a call. Leaving the stream early (`aclose()`, `async with`, cancellation)
    aborts the request; what it used is counted: as reported if the provider said so,
    else estimated from the text received (the true cost is unknown, not zero).

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
        msg = "The deadline has passed; no request was sent"
        raise DeadlineExceededError(msg)
    limits = budget if isinstance(budget, Budget) else Budget.from_usage(budget)
    call = ModelCall(provider, messages, tracker, limits, trace, kwargs)
    held = await call.admit(1)
    stream = _Stream(provider, messages, kwargs, call, held, retry or DEFAULT_RETRY)
    return StreamingPatternResult(
        stream, {"streaming": True}, _usage_source=tracker.to_usage
    )


class _Stream(AsyncIterator[str]):
    """The text iterator: opens on first use, settles its account exactly once."""

    def __init__(
        self,
        provider: StreamingProvider,
        messages: Sequence[dict[str, Any]],
        kwargs: dict[str, Any],
        call: ModelCall,
        held: Reservation,
        retry: RetryConfig,
    ) -> None:
        self._provider = provider
        self._messages = messages
        self._kwargs = kwargs
        self._call = call
        self._held: Reservation | None = held
        self._retry = retry
        self._attempt = 1
        self._source: AsyncIterator[str] | None = None
        self._sink: list[LLMResponse] = []
        self._text: list[str] = []
        self._closed = False

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> str:
        if self._closed:
            raise StopAsyncIteration
        try:
            if self._source is None:
                text = await run_with_retry(
                    self._open, self._retry, on_retry=self._call.on_retry
                )
            else:
                text = await anext(self._source, None)
        except asyncio.CancelledError as exc:
            await self._leave(exc)
            raise
        except ExecutionKitError as exc:
            await self._fail(exc)
            raise
        except Exception as exc:
            await self._fail(exc)
            raise
        if text is None:
            await self._complete()
            raise StopAsyncIteration
        self._text.append(text)
        return text

    async def _open(self, number: int) -> str | None:
        """One attempt: send the request and wait for the first text."""
        self._attempt = number
        if self._held is None:
            self._held = await self._call.admit(number)
        self._sink = []
        source = self._provider.stream(
            self._messages, usage_sink=self._sink, **self._kwargs
        )
        try:
            first = await anext(source, None)
        except Exception as exc:
            await _close(source)
            self._held.keep()
            self._held = None
            await self._call.failed(number, exc)
            raise
        except BaseException:
            self._source = source
            raise
        self._source = source
        return first

    async def aclose(self) -> None:
        """Leave the stream: abort the request and settle the account."""
        if not self._closed:
            await self._leave(None)

    async def _leave(self, exc: BaseException | None) -> None:
        self._closed = True
        source, held = self._source, self._held
        if source is not None:
            await _close(source)
        if held is None:
            return
        if source is None and exc is None:
            held.refund()  # no request was ever sent
            await self._call.failed(self._attempt, asyncio.CancelledError())
            return
        response = self._partial()
        held.settle(response_usage(response))
        if exc is None:
            await self._call.ended(self._attempt, response, closed_early=True)
        else:
            await self._call.failed(self._attempt, exc)

    async def _fail(self, exc: Exception) -> None:
        self._closed = True
        if self._source is not None:
            await _close(self._source)
        if self._held is not None:
            self._held.settle(response_usage(self._partial()))
            await self._call.failed(self._attempt, exc)

    async def _complete(self) -> None:
        self._closed = True
        assert self._held is not None  # noqa: S101 - held since the start
        response = self._sink[-1] if self._sink else self._partial()
        self._held.settle(response_usage(response))
        await self._call.ended(self._attempt, response)

    def _partial(self) -> LLMResponse:
        """What is known of an unfinished reply; its usage estimated if need be."""
        if self._sink:
            return self._sink[-1]
        known = getattr(self._source, "partial_response", None)
        text = "".join(self._text)
        if callable(known):
            response: LLMResponse = known()
            if response.usage:
                return response
        made = -(-len(text) // _CHARS_PER_TOKEN)
        usage = {"input_tokens": estimate_tokens(self._messages), "output_tokens": made}
        return LLMResponse(text, finish_reason="unknown", usage=usage)


async def _close(source: AsyncIterator[str]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        outcome = close()
        if inspect.isawaitable(outcome):
            await outcome
