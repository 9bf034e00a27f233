"""One checked call to a model: budget, retry, deadline, paired trace events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit._llm import LLMResponse
from executionkit.context import remaining_deadline
from executionkit.cost import (
    Budget,
    CostTracker,
    Reservation,
    estimate_tokens,
    response_usage,
)
from executionkit.engine._attempts import Attempts, OnWait, Turn
from executionkit.engine.retry import DEFAULT_RETRY, RetryConfig, run_with_retry
from executionkit.errors import (
    BadResponseError,
    DeadlineExceededError,
    ExecutionKitError,
    RequestTooLargeError,
)
from executionkit.observability import nobody_watches
from executionkit.patterns._call_trace import CallTrace
from executionkit.patterns._failures import lost_connection, names_itself, own_failure
from executionkit.patterns._paced import PacedRoom
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider
    from executionkit.observability import TraceCallback

__all__ = ("ModelCall", "checked_complete", "known_secrets")

_NO_LIMIT: Final = (None, None)


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

    A library error that the provider raises is copied, never written on: the provider
    may raise the same object again in another run. A `TimeoutError` or another
    `OSError` (a lost connection, say) becomes a `ProviderTimeoutError` or
    `ProviderConnectionError` with the original as its cause, and is retried like one.
    Other exceptions are mistakes of the provider's code most likely: they pass as they
    are, without `cost`, and are tried again only when `retry` names them.

    Args:
        provider: Answers the messages.
        messages: OpenAI's chat form.
        tracker: Counts what is spent.
        budget: Limits; see `TokenUsage`. All of them are checked right before each
            dispatch, retries included.
        retry: How to retry. None = `DEFAULT_RETRY`.
        trace: Receives `llm_call_start`, then `llm_call_end` or `llm_call_error`,
            for every attempt, and `llm_call_retry` between attempts. A call that is
            not sent, for lack of budget or time, is an `llm_call_refused`. All events
            of one call have the same `call_id`; the end and the error of an attempt
            have its `duration` in seconds.
        **kwargs: Passed to the provider (`temperature`, `max_tokens`, `tools`, ...).

    Raises:
        BudgetExhaustedError: When the budget has no room for the call.
        DeadlineExceededError: When the current context's deadline has passed.
        LLMError: When the last attempt failed.
    """
    limits = budget if isinstance(budget, Budget) else Budget.from_usage(budget)
    call = ModelCall(provider, messages, tracker, limits, trace, kwargs)
    return await call.run(retry or DEFAULT_RETRY)


def known_secrets(provider: object) -> tuple[str, ...]:
    """Texts that a provider says must never be shown.

    Those in its attribute `known_secrets`, or the one in `api_key`. A provider without
    either has none.
    """
    try:
        named = getattr(provider, "known_secrets", None)
        if not isinstance(named, (tuple, list, set, frozenset)):
            named = (getattr(provider, "api_key", None),)
    except Exception:  # noqa: BLE001 - a property of a user's own class
        return ()
    return tuple([item for item in named if isinstance(item, str) and item])


class ModelCall:
    """One logical model call: what its attempts share."""

    __slots__ = (
        "_cut",
        "_held",
        "_kwargs",
        "_last",
        "_limits",
        "_makes",
        "_messages",
        "_provider",
        "_retry",
        "_sends",
        "_sent",
        "_told",
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
        self._kwargs = kwargs
        self._told: CallTrace | None = None
        if trace is not None or not nobody_watches():
            secrets = known_secrets(provider)
            self._told = CallTrace(provider, messages, kwargs, tracker, trace, secrets)
        self._held: Reservation | None = None
        self._last: BaseException | None = None
        self._cut = False
        self._sent = self._sends = self._makes = 0
        priced = limits.money is not None
        if priced or (limits.input_tokens, limits.request_input_tokens) != _NO_LIMIT:
            self._sends = estimate_tokens(messages, kwargs.get("tools"))
        if priced or limits.output_tokens is not None:
            self._makes = _max_output(provider, kwargs)

    async def run(self, config: RetryConfig) -> LLMResponse:
        """The reply; see `checked_complete`."""
        if self._told is None:
            return await self._run(config)
        with self._told:
            return await self._run(config)

    async def _run(self, config: RetryConfig) -> LLMResponse:
        left = remaining_deadline()
        self._retry = config
        try:
            if left is None:
                return await self._send(config, None)
            return await self._send_within(left, config)
        except ExecutionKitError as exc:
            exc.cost = self._tracker.to_usage()
            if exc is not self._last and not self._cut:
                await self.refused(exc)
            raise
        except OSError as exc:
            if exc is not self._last:  # one of a rate limit, say
                raise
            lost = lost_connection(exc, known_secrets(self._provider))
            lost.cost, lost.attempts = self._tracker.to_usage(), self._sent
            lost.retries_exhausted = config.max_retries > 0
            raise lost from exc
        finally:
            self._last = None  # an error must not refer to itself through its frames

    async def _send_within(self, left: float, config: RetryConfig) -> LLMResponse:
        if left <= 0:
            msg = "The deadline has passed; no request was sent for this call"
            raise DeadlineExceededError(msg)
        clock = get_clock()
        limit = clock.timeout(left)
        try:
            async with limit:
                return await self._send(config, clock.monotonic() + left)
        except TimeoutError as exc:
            if not limit.expired():
                raise
            where = "in the middle of a call" if self._cut else "before the next call"
            msg = f"The deadline was reached after {left:.3f}s, {where}"
            late = DeadlineExceededError(msg)
            late.attempts = self._sent
            raise late from exc

    async def _send(self, config: RetryConfig, deadline: float | None) -> LLMResponse:
        if config.rate_limit_strategy is not None or config.budget is not None:
            return await run_with_retry(
                self.attempt,
                self._paced(config),
                deadline=deadline,
                before_attempt=self.reserve,
                on_retry=self.on_retry,
                on_wait=self.on_wait(),
            )
        # The way of nearly all calls: what retrying needs is made by the first failure.
        if self._told is None and self._limits.unlimited:
            self._held = self._tracker.admit_now(self._limits)
        else:
            await self.reserve(1)
        try:
            return await self.attempt(1)
        except Exception as exc:
            course = Attempts(
                config,
                deadline=deadline,
                before_attempt=self.reserve,
                on_retry=self.on_retry,
                on_wait=self.on_wait(),
            )
            course.number = 1
            if not await course.next_attempt(exc):
                raise
        return await course.go_on(self.attempt)

    def _paced(self, config: RetryConfig) -> RetryConfig:
        strategy = config.rate_limit_strategy
        if strategy is None or not self._limits.by_size:
            return config
        paced = PacedRoom(strategy, self._room, self._has_room)
        return replace(config, rate_limit_strategy=paced)

    async def _room(self) -> None:
        self._refuse_if_large()
        while not self._has_room():
            await self._tracker.changed()

    def _has_room(self) -> bool:
        return self._tracker.has_room(
            self._limits, input_tokens=self._sends, output_tokens=self._makes
        )

    async def admit(self, number: int) -> Reservation:
        """Reserve room for attempt `number` (from 1) and report its start."""
        self._refuse_if_large()
        began = 0.0 if self._told is None else get_clock().monotonic()
        turn = None if self._told is None else Turn()
        held = await self._tracker.admit(
            self._limits,
            input_tokens=self._sends,
            output_tokens=self._makes,
            moment="before dispatch" if number == 1 else "before retry dispatch",
        )
        if self._told is not None:
            if turn is not None and turn.is_over():
                self._told.scope.waited("permit", get_clock().monotonic() - began)
            try:
                await self._told.started(number)
            except BaseException as exc:
                held.refund()
                self._cut = True
                await self.failed(number, exc)
                raise
        return held

    def _refuse_if_large(self) -> None:
        most = self._limits.request_input_tokens
        if most is None or self._sends <= most:
            return
        msg = (
            f"The request would send about {self._sends} tokens, and "
            f"`request_input_tokens` allows {most}; shorten the prompt or the history, "
            "or raise the limit"
        )
        raise RequestTooLargeError(msg, metadata={"budget": self._limits.source})

    async def reserve(self, number: int) -> None:
        """Reserve room for the attempt that comes next (after its permit was had)."""
        self._held = await self.admit(number)

    async def attempt(self, number: int) -> LLMResponse:
        """Send one request; `reserve` was called right before."""
        held, self._held = self._held, None
        assert held is not None  # noqa: S101 - set by `reserve`
        self._sent += 1
        response: Any  # a provider of one's own may return anything
        failure: BaseException
        try:
            response = await self._provider.complete(self._messages, **self._kwargs)
        except BaseException as exc:
            held.settle_failure(exc)
            self._cut = isinstance(exc, asyncio.CancelledError)
            failure = exc if self._cut else self._own(exc)
            await self.failed(number, failure)
            if failure is exc:
                raise
        else:
            held.settle_reply(response)
            if isinstance(response, LLMResponse):
                if self._told is not None:
                    await self.ended(number, response)
                return response
            msg = (
                f"{type(self._provider).__name__}.complete() must return an "
                f"LLMResponse, got {type(response).__name__}"
            )
            failure = BadResponseError(msg)
            await self.failed(number, failure)
        self._last = failure
        # Outside of the handler: so the failure keeps the context that it had.
        try:
            raise failure
        finally:
            del failure

    def _own(self, exc: BaseException) -> BaseException:
        """The failure as an error that belongs to this run alone."""
        if isinstance(exc, OSError) and names_itself(self._retry, exc):
            self._last = exc  # becomes an error of the library when it leaves
            return exc
        return own_failure(exc, known_secrets(self._provider))

    async def failed(self, number: int, exc: BaseException) -> None:
        """Report that attempt `number` ended with `exc`."""
        if self._told is not None:
            await self._told.failed(number, exc)

    async def refused(self, exc: BaseException) -> None:
        """Report that a request was not sent because of `exc`."""
        if self._told is not None:
            await self._told.refused(exc)

    async def ended(self, number: int, response: LLMResponse, **facts: Any) -> None:
        """Report that attempt `number` was answered."""
        if self._told is not None:
            await self._told.ended(number, response, facts)

    async def replayed(self, response: LLMResponse) -> None:
        """Report that the reply came from a journal: nothing was sent."""
        if self._told is not None:
            await self._told.replayed(response)

    async def on_retry(self, number: int, exc: BaseException, delay: float) -> None:
        """Report the pause after attempt `number`."""
        if self._told is not None:
            await self._told.on_retry(number, exc, delay)

    def open(self) -> None:
        """A stream begins; `close` must follow."""
        if self._told is not None:
            self._told.open(streams=True)

    def inside(self) -> AbstractContextManager[None]:
        """Within it, what is done belongs to the call; for a stream that is opened."""
        return nullcontext() if self._told is None else self._told.inside()

    def close(
        self, exc: BaseException | None = None, partial: LLMResponse | None = None
    ) -> None:
        """A stream is over; the first time counts.

        Args:
            exc: Why, when it failed.
            partial: What has come.
        """
        if self._told is not None:
            self._told.close(exc, partial)

    def on_wait(self) -> OnWait | None:
        """Takes waits; None when nobody watches."""
        return None if self._told is None else self._told.scope.waited

    def cost_of(self, response: LLMResponse) -> TokenUsage:
        """What the whole call has cost, failed attempts included."""
        besides = getattr(response, "besides", None)
        cost = response_usage(response) + TokenUsage(llm_calls=self._sent)
        return cost + besides if type(besides) is TokenUsage else cost


def _max_output(provider: object, kwargs: Mapping[str, Any]) -> int:
    """The most tokens that a reply may have: as asked for, else as is usual."""
    asked = (kwargs.get("max_completion_tokens"), kwargs.get("max_tokens"))
    for value in (*asked, getattr(provider, "default_max_tokens", None)):
        if type(value) is int and value > 0:
            return value
    return DEFAULT_MAX_TOKENS
