"""`MockProvider`: canned replies for tests of code that calls models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from executionkit._llm import LLMResponse
from executionkit.errors import ExecutionKitError

__all__ = ("MockCall", "MockProvider")


@dataclass(frozen=True, slots=True)
class MockCall:
    """One recorded call."""

    messages: list[dict[str, Any]]
    temperature: float | None
    max_tokens: int | None
    tools: list[dict[str, Any]] | None
    kwargs: dict[str, Any]


@dataclass
class MockProvider:
    """A provider that cycles through canned replies and records its calls.

    Args:
        responses: Texts or `LLMResponse`s, used in order and over again. Without any,
            every reply is an empty text.
        exception: Raised by every call instead; the call is recorded all the same.

    Raises:
        TypeError: When `responses` is no sequence of these, or `exception` is none.

    See `executionkit.testing.ScriptedProvider` for scripts that react to the request.
    """

    responses: Sequence[str | LLMResponse] = field(default_factory=list)
    exception: BaseException | None = None
    calls: list[MockCall] = field(default_factory=list, init=False, repr=False)
    supports_tools: Literal[True] = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_replies(self.responses)
        given: object = self.exception
        is_class = isinstance(given, type) and issubclass(given, BaseException)
        if given is not None and not is_class and not isinstance(given, BaseException):
            msg = (
                f"`exception` must be an exception or None, got {type(given).__name__};"
                " for example `RateLimitError('slow down')`"
            )
            raise TypeError(msg)

    @property
    def call_count(self) -> int:
        """How many calls were made."""
        return len(self.calls)

    @property
    def last_call(self) -> MockCall | None:
        """The latest call, or None."""
        return self.calls[-1] if self.calls else None

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        self._record(messages, temperature, max_tokens, tools, kwargs)
        return self._reply(len(self.calls))

    def stream(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        """Yield the next reply one character at a time; recorded at once."""
        kwargs = {**kwargs, "stream": True}
        self._record(messages, temperature, max_tokens, tools, kwargs)
        return self._stream(len(self.calls), usage_sink)

    async def _stream(
        self, number: int, usage_sink: list[LLMResponse] | None
    ) -> AsyncIterator[str]:
        response = self._reply(number)
        for character in response.content:
            yield character
        if usage_sink is not None:
            usage_sink.append(_with_usage(response))

    def _record(
        self,
        messages: Sequence[dict[str, Any]],
        temperature: float | None,
        max_tokens: int | None,
        tools: Sequence[dict[str, Any]] | None,
        kwargs: dict[str, Any],
    ) -> None:
        offered = None if tools is None else list(tools)
        call = MockCall(list(messages), temperature, max_tokens, offered, kwargs)
        self.calls.append(call)

    def _reply(self, number: int) -> LLMResponse:
        """The reply to call `number`, from 1."""
        if self.exception is not None:
            if isinstance(self.exception, ExecutionKitError):
                # One object stands for many failures here: an earlier run's verdict
                # on it must not decide about the next one.
                self.exception.retries_exhausted = False
                self.exception.attempts = 0
            raise self.exception
        if not self.responses:
            return LLMResponse("")
        reply = self.responses[(number - 1) % len(self.responses)]
        return LLMResponse(reply) if isinstance(reply, str) else reply


def _check_replies(responses: object) -> None:
    if isinstance(responses, (str, bytes, LLMResponse)) or not isinstance(
        responses, Sequence
    ):
        msg = (
            f"`responses` must be a list of texts or LLMResponses, got "
            f"{type(responses).__name__}; a single reply is `MockProvider([reply])`"
        )
        raise TypeError(msg)
    for index, reply in enumerate(responses):
        if not isinstance(reply, (str, LLMResponse)):
            msg = (
                f"`responses[{index}]` must be a text or an LLMResponse, got "
                f"{type(reply).__name__}"
            )
            raise TypeError(msg)


def _with_usage(response: LLMResponse) -> LLMResponse:
    if response.usage:
        return response
    words = len(response.content.split())
    made = max(1, words) if response.content else 0
    return replace(response, usage={"prompt_tokens": 0, "completion_tokens": made})
