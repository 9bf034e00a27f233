"""The provider that a run lends to a user's evaluator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from executionkit.patterns._call import checked_complete
from executionkit.patterns._stream import checked_stream

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse, StreamingProvider
    from executionkit.cost import Budget, CostTracker
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("TrackedProvider",)


class TrackedProvider:
    """A provider whose calls count in the run that lent it out.

    Evaluators get one, so that what they spend is recorded, limited and traced like
    the pattern's own calls. It can do what the provider behind it can, `stream` too;
    only `stream_events`, which could not be counted, is missing.

    Args:
        provider: Answers.
        tracker: Counts.
        budget: Limits.
        retry: How to retry. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
    """

    def __init__(
        self,
        provider: LLMProvider,
        tracker: CostTracker,
        budget: Budget,
        retry: RetryConfig | None,
        trace: TraceCallback | None,
    ) -> None:
        self._provider = provider
        self._tracker = tracker
        self._budget = budget
        self._retry = retry
        self._trace = trace
        if callable(getattr(provider, "stream", None)):
            # Since Python 3.12 a protocol is not satisfied through `__getattr__`.
            self.stream: Callable[..., AsyncIterator[str]] = self._stream

    @property
    def supports_tools(self) -> bool:
        return getattr(self._provider, "supports_tools", False) is True

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        if tools is not None:
            kwargs["tools"] = tools
        return await checked_complete(
            self._provider,
            messages,
            self._tracker,
            self._budget,
            self._retry,
            self._trace,
            temperature=temperature,
            max_tokens=max_tokens,
            **kwargs,
        )

    async def _stream(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        source = cast("StreamingProvider", self._provider)
        if usage_sink is not None:
            source = cast("StreamingProvider", _Teed(source, usage_sink))
        result = await checked_stream(
            source,
            messages,
            self._tracker,
            self._budget,
            self._retry,
            self._trace,
            **kwargs,
        )
        async with result:
            async for text in result:
                yield text

    def __getattr__(self, name: str) -> Any:
        # Private names are not looked up: the own ones do not exist yet while a copy
        # is made.
        if name.startswith("_") or name == "stream_events":
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(self._provider, name)


class _Teed:
    """A provider whose streamed responses go to a second list as well."""

    def __init__(self, provider: StreamingProvider, sink: list[LLMResponse]) -> None:
        self._provider = provider
        self._sink = sink

    def stream(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        usage_sink: list[LLMResponse],
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        both = _Both(usage_sink, self._sink)
        return self._provider.stream(messages, usage_sink=both, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)


class _Both(list["LLMResponse"]):
    """A list whose items go to two others."""

    def __init__(self, first: list[LLMResponse], second: list[LLMResponse]) -> None:
        super().__init__()
        self._lists = (first, second)

    def append(self, item: LLMResponse) -> None:
        for one in self._lists:
            one.append(item)
