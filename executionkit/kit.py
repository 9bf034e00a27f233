"""`Kit`: a session over one provider that adds up what it costs."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

from executionkit._arguments import (
    check_budget,
    check_limiter,
    check_messages,
    check_prompt,
    check_provider,
    check_retry,
    check_trace,
)
from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit.compose import pipe
from executionkit.cost import CostTracker, collecting_lost_cost
from executionkit.engine.messages import user_message
from executionkit.errors import ExecutionKitError
from executionkit.patterns._paced import take_permit
from executionkit.patterns.base import (
    check_max_tokens,
    check_options,
    checked_stream,
    raise_unless_tools,
)
from executionkit.patterns.consensus import consensus
from executionkit.patterns.map_reduce import map_reduce
from executionkit.patterns.react_loop import react_loop
from executionkit.patterns.refine_loop import refine_loop
from executionkit.patterns.structured import structured
from executionkit.types import (
    PatternResult,
    StreamingPatternResult,
    TokenUsage,
    Tool,
    freeze,
    thaw,
)

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, Omit, StreamingProvider
    from executionkit.calls import ToolRunner
    from executionkit.engine.rate_bucket import Limiter
    from executionkit.engine.retry import RateLimitStrategy, RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("Kit",)

_T = TypeVar("_T")


class Kit:
    """All patterns over one provider, with a limiter, usage and a conversation.

    One kit may be used from many tasks, and from one event loop after another; it is
    not thread-safe. As a context manager it closes its provider.

    Args:
        provider: Used by every method.
        track_cost: Whether `usage` adds up.
        messages: The conversation so far, for `turn`; copied.
        rate_limiter: Gives one permit for each call of a method (not for each request
            that the method makes; for that see `RetryConfig.rate_limit_strategy`).
            The deadline of the current context bounds the wait for it.

    Calls made directly through `kit.provider` are not counted.

    Raises:
        TypeError: When an argument is of the wrong kind.
    """

    def __init__(
        self,
        provider: LLMProvider,
        *,
        track_cost: bool = True,
        messages: Iterable[Mapping[str, Any]] | None = None,
        rate_limiter: Limiter | RateLimitStrategy | None = None,
    ) -> None:
        check_provider(provider)
        check_messages("messages", messages)
        check_limiter("rate_limiter", rate_limiter)
        self.provider = provider
        self.messages: list[dict[str, Any]] = [
            thaw(dict(message)) for message in messages or ()
        ]
        """The conversation of `turn`; a turn that succeeds puts a new list here."""

        self._track_cost = track_cost
        self._rate_limiter: Any = rate_limiter
        self._tracker = CostTracker()
        self._turn_locks: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, asyncio.Lock
        ] = weakref.WeakKeyDictionary()
        self._last_transcript: tuple[Mapping[str, Any], ...] = ()

    @property
    def usage(self) -> TokenUsage:
        """What all calls together have cost; zero when `track_cost` is False.

        What failed and cancelled calls had spent counts too.
        """
        return self._tracker.to_usage()

    @property
    def last_transcript(self) -> tuple[Mapping[str, Any], ...]:
        """The conversation of the latest `turn`, also when that failed; read-only.

        It is well-formed: every tool call has its result, or says that it was
        cancelled. Look here before you repeat a failed turn whose tools had effects.
        """
        return self._last_transcript

    async def consensus(self, prompt: str, **kwargs: Any) -> PatternResult[str]:
        """`consensus` over the kit's provider."""
        return await self._run(
            lambda: consensus(self.provider, prompt, **kwargs), kwargs
        )

    async def refine(self, prompt: str, **kwargs: Any) -> PatternResult[str]:
        """`refine_loop` over the kit's provider."""
        return await self._run(
            lambda: refine_loop(self.provider, prompt, **kwargs), kwargs
        )

    refine_loop = refine
    """Another name of `refine`."""

    @overload
    async def structured(
        self, prompt: str, *, schema: type[_T], **kwargs: Any
    ) -> PatternResult[_T]: ...

    @overload
    async def structured(self, prompt: str, **kwargs: Any) -> PatternResult[Any]: ...

    async def structured(self, prompt: str, **kwargs: Any) -> PatternResult[Any]:
        """`structured` over the kit's provider."""
        return await self._run(
            lambda: structured(self.provider, prompt, **kwargs), kwargs
        )

    async def map_reduce(
        self, inputs: Iterable[str] | AsyncIterable[str], **kwargs: Any
    ) -> PatternResult[str]:
        """`map_reduce` over the kit's provider."""
        return await self._run(
            lambda: map_reduce(self.provider, inputs, **kwargs), kwargs
        )

    async def pipe(self, prompt: str, *steps: Any, **kwargs: Any) -> PatternResult[Any]:
        """`pipe` over the kit's provider."""
        return await self._run(
            lambda: pipe(self.provider, prompt, *steps, **kwargs), kwargs
        )

    async def react(
        self, prompt: str, tools: Iterable[Tool] | ToolRunner = (), **kwargs: Any
    ) -> PatternResult[str]:
        """`react_loop` over the kit's provider.

        Raises:
            TypeError: When the provider cannot call tools.
        """
        self._need_tools(kwargs)
        return await self._run(
            lambda: react_loop(self.provider, prompt, tools, **kwargs), kwargs
        )

    react_loop = react
    """Another name of `react`."""

    async def turn(
        self, user_text: str, tools: Iterable[Tool] | ToolRunner = (), **kwargs: Any
    ) -> PatternResult[str]:
        """Say something in the kit's conversation; turns wait for each other.

        `messages` changes only when the turn succeeds; what a failed turn did is in
        `last_transcript`.

        Raises:
            TypeError: When the provider cannot call tools, or `user_text` is no text.
        """
        check_prompt("user_text", user_text)
        self._need_tools(kwargs)
        async with self._turn_lock():
            asked = [*self.messages, user_message(user_text)]
            transcript: list[dict[str, Any]] = list(asked)
            try:
                result = await self._run(
                    lambda: react_loop(
                        self.provider,
                        None,
                        tools,
                        messages=asked,
                        transcript=transcript,
                        **kwargs,
                    ),
                    kwargs,
                )
            finally:
                self._last_transcript = tuple(freeze(item) for item in transcript)
            self.messages = [thaw(message) for message in transcript]
            return result

    def _turn_lock(self) -> asyncio.Lock:
        # A lock belongs to the event loop in which somebody first waited for it; a
        # kit may outlive its loop (`asyncio.run` again and again).
        loop = asyncio.get_running_loop()
        return self._turn_locks.setdefault(loop, asyncio.Lock())

    async def stream_consensus(
        self,
        prompt: str,
        *,
        temperature: float | Omit | None = 0.9,
        max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
        max_cost: TokenUsage | None = None,
        retry: RetryConfig | None = None,
        trace: TraceCallback | None = None,
        **options: Any,
    ) -> StreamingPatternResult:
        """Stream one answer (there is no vote over a stream).

        Raises:
            TypeError: When the provider cannot stream, an argument is of the wrong
                kind, or an option looks misspelt or needs the whole pattern.
            BudgetExhaustedError: When `max_cost` has no room for the call.
        """
        _refuse_of_pattern(consensus, Kit.stream_consensus, options)
        sampling = {"temperature": temperature, "max_tokens": max_tokens}
        return await self._stream(
            prompt, max_cost, retry, trace, {**sampling, **options}
        )

    async def stream_react_loop(
        self,
        prompt: str,
        tools: Iterable[Tool] | ToolRunner = (),  # noqa: ARG002 - one generation only
        *,
        temperature: float | Omit | None = 0.3,
        max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
        max_cost: TokenUsage | None = None,
        retry: RetryConfig | None = None,
        trace: TraceCallback | None = None,
        **options: Any,
    ) -> StreamingPatternResult:
        """Stream one answer; `tools` are not offered.

        Raises:
            TypeError: When the provider cannot stream, an argument is of the wrong
                kind, or an option looks misspelt or needs the whole pattern.
            BudgetExhaustedError: When `max_cost` has no room for the call.
        """
        _refuse_of_pattern(react_loop, Kit.stream_react_loop, options)
        sampling = {"temperature": temperature, "max_tokens": max_tokens}
        return await self._stream(
            prompt, max_cost, retry, trace, {**sampling, **options}
        )

    async def _stream(
        self,
        prompt: str,
        max_cost: TokenUsage | None,
        retry: RetryConfig | None,
        trace: TraceCallback | None,
        options: dict[str, Any],
    ) -> StreamingPatternResult:
        if not callable(getattr(self.provider, "stream", None)):
            msg = (
                f"{type(self.provider).__name__} is not a StreamingProvider: it has no "
                "`stream`"
            )
            raise TypeError(msg)
        check_prompt("prompt", prompt)
        check_budget("max_cost", max_cost)
        check_retry("retry", retry)
        check_trace(trace)
        check_max_tokens(options["max_tokens"])
        await self._permit(trace)
        tracker = CostTracker()
        try:
            result = await checked_stream(
                cast("StreamingProvider", self.provider),
                [user_message(prompt)],
                tracker,
                max_cost,
                retry,
                trace,
                **options,
            )
        except ExecutionKitError as exc:
            self._record(exc.cost)
            raise
        stream = _Booked(result, lambda: self._record(tracker.to_usage()))
        return StreamingPatternResult(
            stream, result.metadata, _usage_source=tracker.to_usage
        )

    def _need_tools(self, kwargs: Mapping[str, Any]) -> None:
        # Before the permit: a call that cannot work costs nothing.
        if kwargs.get("tool_mode", "native") == "native":
            raise_unless_tools(self.provider)

    def _record(self, cost: TokenUsage) -> None:
        if self._track_cost:
            self._tracker.add_usage(cost)

    async def _permit(self, trace: TraceCallback | None) -> None:
        if self._rate_limiter is not None:
            await take_permit(self._rate_limiter, trace)

    async def _run(
        self,
        start: Callable[[], Awaitable[PatternResult[_T]]],
        asked: Mapping[str, Any],
    ) -> PatternResult[_T]:
        # The pattern is made only after the wait: a call that is cancelled here
        # leaves no coroutine behind that was never awaited.
        await self._permit(asked.get("trace"))
        try:
            with collecting_lost_cost(self._record):
                result = await start()
        except ExecutionKitError as exc:
            self._record(exc.cost)
            raise
        self._record(result.cost)
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        close = getattr(self.provider, "aclose", None)
        if close is not None:
            await close()


def _refuse_of_pattern(
    pattern: Callable[..., Any],
    method: Callable[..., Any],
    options: Mapping[str, Any],
) -> None:
    """Refuse what only the whole pattern can do, and what looks misspelt."""
    for name in options:
        if name in inspect.signature(pattern).parameters:
            msg = (
                f"{method.__name__}() streams one answer and takes no `{name}`; "
                f"that belongs to {pattern.__name__}()"
            )
            raise TypeError(msg)
    check_options(method, options)


class _Booked:
    """A stream whose cost is booked once, when it ends in whatever way."""

    def __init__(
        self, source: StreamingPatternResult, book: Callable[[], None]
    ) -> None:
        self._source = source
        self._text = source.text_stream
        self._book = book
        self._booked = False

    def __aiter__(self) -> _Booked:
        return self

    async def __anext__(self) -> str:
        try:
            return await anext(self._text)
        except BaseException:
            self._settle()
            raise

    async def aclose(self) -> None:
        try:
            await self._source.aclose()
        finally:
            self._settle()

    def _settle(self) -> None:
        if not self._booked:
            self._booked = True
            self._book()

    def __del__(self) -> None:
        if not self._booked:  # dropped without being closed
            leave = getattr(self._text, "leave", None)
            if leave is not None:
                leave()
            self._settle()
