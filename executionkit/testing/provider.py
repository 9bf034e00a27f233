"""A provider that follows a script."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, TypeAlias

from executionkit._llm import LLMResponse
from executionkit.calls import ToolCall

__all__ = ("Request", "ScriptedProvider", "tool_call_reply")

Reply: TypeAlias = "str | LLMResponse | BaseException"
"""What a step of a script gives: a text, a whole response, or an error to raise."""

Script: TypeAlias = "Iterable[Reply] | Callable[[Request], Any]"


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the provider received."""

    number: int
    """From 1."""

    messages: list[dict[str, Any]]
    temperature: float | None
    max_tokens: int | None
    tools: list[dict[str, Any]] | None
    options: dict[str, Any]

    @property
    def last(self) -> str:
        """The text of the last message."""
        return str(self.messages[-1].get("content") or "")


def tool_call_reply(
    *calls: tuple[str, Mapping[str, Any]],
    content: str = "",
    usage: Mapping[str, Any] | None = None,
) -> LLMResponse:
    """A reply that calls tools: `tool_call_reply(("add", {"a": 1, "b": 2}))`.

    The ids are `call-1`, `call-2`, ... within the reply.
    """
    made = tuple(
        ToolCall(f"call-{number}", name, arguments)
        for number, (name, arguments) in enumerate(calls, 1)
    )
    return LLMResponse(content, made, "tool_calls", usage or {})


class ScriptedProvider:
    """Answers as a script says, and records every request.

    Args:
        script: A list or generator of replies, used one after another; or a function
            (sync or async) from the `Request` to a reply. A reply is a text, an
            `LLMResponse`, or an exception, which is raised.
        usage: The usage of replies given as texts.
        supports_tools: Whether it claims to call tools.

    A script that has run out fails the test with `AssertionError`.
    """

    supports_tools: bool

    def __init__(
        self,
        script: Script,
        *,
        usage: Mapping[str, Any] | None = None,
        supports_tools: bool = True,
    ) -> None:
        self._answer: Callable[[Request], Any] | None = None
        self._steps: Iterator[Reply] = iter(())
        if callable(script):
            self._answer = script
        else:
            self._steps = iter(script)
        self._usage = dict(usage or {})
        self.supports_tools = supports_tools
        self.requests: list[Request] = []
        self.active: int = 0
        """Requests being answered right now."""

        self.peak: int = 0
        """The most requests that were being answered at once."""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        request = self._record(messages, temperature, max_tokens, tools, kwargs)
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            return await self._reply(request)
        finally:
            self.active -= 1

    async def stream(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        """Yield the reply word by word."""
        request = self._record(messages, temperature, max_tokens, tools, kwargs)
        response = await self._reply(request)
        for piece in re.findall(r"\S+\s*|\s+", response.content):
            yield piece
        if usage_sink is not None:
            usage_sink.append(response)

    def _record(
        self,
        messages: Sequence[dict[str, Any]],
        temperature: float | None,
        max_tokens: int | None,
        tools: Sequence[dict[str, Any]] | None,
        options: dict[str, Any],
    ) -> Request:
        # A deep copy: what was sent must not change with what happens later.
        request = Request(
            len(self.requests) + 1,
            json.loads(json.dumps(list(messages))),
            temperature,
            max_tokens,
            None if tools is None else json.loads(json.dumps(list(tools))),
            options,
        )
        self.requests.append(request)
        return request

    async def _reply(self, request: Request) -> LLMResponse:
        if self._answer is not None:
            reply = self._answer(request)
            if inspect.isawaitable(reply):
                reply = await reply
        else:
            reply = next(self._steps, None)
            if reply is None:
                msg = f"the script has no reply for request {request.number}"
                raise AssertionError(msg)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, str):
            return LLMResponse(reply, usage=self._usage)
        if not isinstance(reply, LLMResponse):
            msg = f"a reply must be a text, LLMResponse or exception, got {reply!r}"
            raise TypeError(msg)
        return reply
