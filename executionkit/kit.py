"""`Kit`: a session over one provider that adds up what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit.compose import pipe
from executionkit.cost import CostTracker, collecting_lost_cost
from executionkit.engine.messages import user_message
from executionkit.errors import ExecutionKitError
from executionkit.patterns.base import checked_stream, raise_unless_tools
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
    thaw,
)

if TYPE_CHECKING:
    from types import TracebackType

    from executionkit._llm import LLMProvider, StreamingProvider
    from executionkit.calls import ToolRunner
    from executionkit.engine.rate_bucket import TokenBucket
    from executionkit.observability import TraceCallback

__all__ = ("Kit",)

_T = TypeVar("_T")


class Kit:
    """All patterns over one provider, with a limiter, usage and a conversation.

    Args:
        provider: Used by every method.
        track_cost: Whether `usage` adds up.
        messages: The conversation so far, for `turn`.
        rate_limiter: Gives one token for each call of a method (not for each request
            that the method makes; for that see `RetryConfig.rate_limit_strategy`).

    Calls made directly through `kit.provider` are not counted.
    """

    def __init__(
        self,
        provider: LLMProvider,
        *,
        track_cost: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
        rate_limiter: TokenBucket | None = None,
    ) -> None:
        self.provider = provider
        self._track_cost = track_cost
        self._messages: list[dict[str, Any]] = [dict(item) for item in messages or ()]
        self._rate_limiter = rate_limiter
        self._tracker = CostTracker()
        self._turn_lock = asyncio.Lock()
        self._last_transcript: tuple[dict[str, Any], ...] = ()

    @property
    def usage(self) -> TokenUsage:
        """What all calls together have cost; zero when `track_cost` is False."""
        return self._tracker.to_usage()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation of `turn`, as a copy."""
        return [thaw(dict(message)) for message in self._messages]

    @property
    def last_transcript(self) -> tuple[dict[str, Any], ...]:
        """The conversation of the latest `turn`, also when that failed.

        It is well-formed: every tool call has its result, or says that it was
        cancelled. Look here before you repeat a failed turn whose tools had effects.
        """
        return self._last_transcript

    async def consensus(self, prompt: str, **kwargs: Any) -> PatternResult[str]:
        """`consensus` over the kit's provider."""
        return await self._run(lambda: consensus(self.provider, prompt, **kwargs))

    async def refine(self, prompt: str, **kwargs: Any) -> PatternResult[str]:
        """`refine_loop` over the kit's provider."""
        return await self._run(lambda: refine_loop(self.provider, prompt, **kwargs))

    async def structured(self, prompt: str, **kwargs: Any) -> PatternResult[Any]:
        """`structured` over the kit's provider."""
        return await self._run(lambda: structured(self.provider, prompt, **kwargs))

    async def map_reduce(
        self, inputs: Iterable[str], **kwargs: Any
    ) -> PatternResult[str]:
        """`map_reduce` over the kit's provider."""
        return await self._run(lambda: map_reduce(self.provider, inputs, **kwargs))

    async def pipe(self, prompt: str, *steps: Any, **kwargs: Any) -> PatternResult[Any]:
        """`pipe` over the kit's provider."""
        return await self._run(lambda: pipe(self.provider, prompt, *steps, **kwargs))

    async def react(
        self, prompt: str, tools: Sequence[Tool] | ToolRunner = (), **kwargs: Any
    ) -> PatternResult[str]:
        """`react_loop` over the kit's provider.

        Raises:
            TypeError: When the provider cannot call tools.
        """
        self._need_tools(kwargs)
        return await self._run(
            lambda: react_loop(self.provider, prompt, tools, **kwargs)
        )

    async def turn(
        self, user_text: str, tools: Sequence[Tool] | ToolRunner = (), **kwargs: Any
    ) -> PatternResult[str]:
        """Say something in the kit's conversation; turns wait for each other.

        `messages` changes only when the turn succeeds; what a failed turn did is in
        `last_transcript`.

        Raises:
            TypeError: When the provider cannot call tools.
        """
        self._need_tools(kwargs)
        async with self._turn_lock:
            transcript: list[dict[str, Any]] = []
            asked = [*self._messages, user_message(user_text)]
            try:
                result = await self._run(
                    lambda: react_loop(
                        self.provider,
                        None,
                        tools,
                        messages=asked,
                        transcript=transcript,
                        **kwargs,
                    )
                )
            finally:
                self._last_transcript = tuple(transcript)
            self._messages = [thaw(dict(message)) for message in transcript]
            return result

    async def stream_consensus(
        self,
        prompt: str,
        *,
        temperature: float | None = 0.9,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        max_cost: TokenUsage | None = None,
        trace: TraceCallback | None = None,
        **options: Any,
    ) -> StreamingPatternResult:
        """Stream one answer (there is no vote over a stream).

        Raises:
            TypeError: When the provider cannot stream.
        """
        return await self._stream(
            prompt,
            max_cost,
            trace,
            {"temperature": temperature, "max_tokens": max_tokens, **options},
        )

    async def stream_react_loop(
        self,
        prompt: str,
        tools: Sequence[Tool] | ToolRunner = (),  # noqa: ARG002 - one generation only
        *,
        temperature: float | None = 0.3,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        max_cost: TokenUsage | None = None,
        trace: TraceCallback | None = None,
        **options: Any,
    ) -> StreamingPatternResult:
        """Stream one answer; `tools` are not offered.

        Raises:
            TypeError: When the provider cannot stream.
        """
        return await self._stream(
            prompt,
            max_cost,
            trace,
            {"temperature": temperature, "max_tokens": max_tokens, **options},
        )

    async def _stream(
        self,
        prompt: str,
        max_cost: TokenUsage | None,
        trace: TraceCallback | None,
        options: dict[str, Any],
    ) -> StreamingPatternResult:
        if not callable(getattr(self.provider, "stream", None)):
            msg = f"{type(self.provider).__name__} is not a StreamingProvider"
            raise TypeError(msg)
        if self._rate_limiter is not None:
            await self._rate_limiter.acquire()
        tracker = CostTracker()
        try:
            result = await checked_stream(
                cast("StreamingProvider", self.provider),
                [user_message(prompt)],
                tracker,
                max_cost,
                None,
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
        if kwargs.get("tool_mode", "native") == "native":
            raise_unless_tools(self.provider)

    def _record(self, cost: TokenUsage) -> None:
        if self._track_cost:
            self._tracker.add_usage(cost)

    async def _run(
        self, start: Callable[[], Awaitable[PatternResult[_T]]]
    ) -> PatternResult[_T]:
        # The pattern is made only after the wait: a call that is cancelled here
        # leaves no coroutine behind that was never awaited.
        if self._rate_limiter is not None:
            await self._rate_limiter.acquire()
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

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        close = getattr(self.provider, "aclose", None)
        if close is not None:
            await close()


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
