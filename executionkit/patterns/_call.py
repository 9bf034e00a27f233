"""One checked call to a model: budget, retry, deadline, paired trace events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from executionkit._clock import get_clock
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
from executionkit.errors import (
    BadResponseError,
    DeadlineExceededError,
    ExecutionKitError,
)
from executionkit.observability import TraceCallback, TraceEvent, emit_trace

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider
    from executionkit.types import TokenUsage

__all__ = ("ModelCall", "checked_complete")


async def checked_complete(
    provider: LLMProvider,
    messages: Sequence[dict[str, Any]],
    tracker: CostTracker,
    budget: TokenUsage | Budget | None,
    retry: RetryConfig | None,
    trace: TraceCallback | None = None,
    **kwargs: Any,
) -> LLMResponse:
    """Call the model once, retrying failures, within budget and deadline.

    Args:
        provider: Answers the messages.
        messages: OpenAI's chat form.
        tracker: Counts what is spent.
        budget: Limits; see `TokenUsage`. Checked right before each dispatch.
        retry: How to retry. None = `DEFAULT_RETRY`.
        trace: Receives `llm_call_start`, then `llm_call_end` or `llm_call_error`,
            for every attempt, and `llm_call_retry` between attempts.
        **kwargs: Passed to the provider (`temperature`, `max_tokens`, `tools`, ...).

    Raises:
        BudgetExhaustedError: When the budget has no room for the call.
        DeadlineExceededError: When the current context's deadline has passed.
        LLMError: When the last attempt failed.
    """
    limits = budget if isinstance(budget, Budget) else Budget.from_usage(budget)
    call = ModelCall(provider, messages, tracker, limits, trace, kwargs)
    left = remaining_deadline()
    try:
        if left is None:
            return await run_with_retry(
                call.attempt,
                retry or DEFAULT_RETRY,
                before_attempt=call.reserve,
                on_retry=call.on_retry,
            )
        return await _within(left, call, retry or DEFAULT_RETRY)
    except ExecutionKitError as exc:
        exc.cost = tracker.to_usage()
        raise


async def _within(left: float, call: ModelCall, retry: RetryConfig) -> LLMResponse:
    if left <= 0:
        msg = "The deadline has passed; no request was sent"
        raise DeadlineExceededError(msg)
    clock = get_clock()
    limit = clock.timeout(left)
    try:
        async with limit:
            return await run_with_retry(
                call.attempt,
                retry,
                deadline=clock.monotonic() + left,
                before_attempt=call.reserve,
                on_retry=call.on_retry,
            )
    except TimeoutError as exc:
        if not limit.expired():
            raise
        msg = f"The deadline was reached after {left:.3f}s, in the middle of a call"
        raise DeadlineExceededError(msg) from exc


class ModelCall:
    """One logical model call: what its attempts share."""

    __slots__ = (
        "_held",
        "_kwargs",
        "_limits",
        "_makes",
        "_messages",
        "_provider",
        "_sends",
        "_trace",
        "_tracker",
    )

    def __init__(
        self,
        provider: LLMProvider,
        messages: Sequence[dict[str, Any]],
        tracker: CostTracker,
        limits: Budget,
        trace: TraceCallback | None,
        kwargs: dict[str, Any],
    ) -> None:
        self._provider = provider
        self._messages = messages
        self._tracker = tracker
        self._limits = limits
        self._trace = trace
        self._kwargs = kwargs
        self._held: Reservation | None = None
        self._sends = self._makes = 0
        if limits.input_tokens is not None:
            self._sends = estimate_tokens(messages)
        if limits.output_tokens is not None:
            self._makes = _max_output(kwargs)

    async def admit(self, number: int) -> Reservation:
        """Reserve room for attempt `number` (from 1) and report its start."""
        moment = "before dispatch" if number == 1 else "before retry dispatch"
        held = await self._tracker.admit(
            self._limits,
            input_tokens=self._sends,
            output_tokens=self._makes,
            moment=moment,
        )
        if self._trace is not None:
            try:
                await self._emit("llm_call_start", attempt=number)
            except asyncio.CancelledError:
                held.refund()
                raise
        return held

    async def reserve(self, number: int) -> None:
        """Reserve room for the attempt that comes next (after its permit was had)."""
        self._held = await self.admit(number)

    async def attempt(self, number: int) -> LLMResponse:
        """Send one request; `reserve` was called right before."""
        held, self._held = self._held, None
        assert held is not None  # noqa: S101 - set by `reserve`
        try:
            response: Any = await self._provider.complete(
                self._messages, **self._kwargs
            )
        except BaseException as exc:
            held.keep()
            await self.failed(number, exc)
            raise
        held.settle(response_usage(response))
        if not isinstance(response, LLMResponse):
            msg = (
                f"{type(self._provider).__name__}.complete() must return an "
                f"LLMResponse, got {type(response).__name__}"
            )
            raise BadResponseError(msg)
        if self._trace is not None:
            await self.ended(number, response)
        return response

    async def failed(self, number: int, exc: BaseException) -> None:
        if self._trace is not None and isinstance(
            exc, (Exception, asyncio.CancelledError)
        ):
            name = type(exc).__name__
            await self._emit("llm_call_error", attempt=number, error_type=name)

    async def ended(self, number: int, response: LLMResponse, **facts: Any) -> None:
        usage = response_usage(response)
        await self._emit(
            "llm_call_end",
            attempt=number,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            content=response.content,
            **facts,
        )

    async def on_retry(self, number: int, exc: BaseException, delay: float) -> None:
        if self._trace is not None:
            name = type(exc).__name__
            await self._emit(
                "llm_call_retry", attempt=number, error_type=name, delay=delay
            )

    async def _emit(self, kind: str, **payload: Any) -> None:
        payload["cost"] = self._tracker.to_usage()
        await emit_trace(self._trace, TraceEvent.create(kind, payload))


def _max_output(kwargs: Mapping[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value = kwargs.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0
