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
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from executionkit._llm import LLMResponse
from executionkit.calls import ToolCall

__all__ = ("Request", "ScriptedProvider", "tool_call_reply")

Reply: TypeAlias = "str | LLMResponse | BaseException | Sequence[str | BaseException]"
"""What a step of a script gives: a text, a whole response, an error to raise, or the
pieces of a streamed text, with an error to break off with."""

Script: TypeAlias = "Iterable[Reply] | AsyncIterator[Reply] | Callable[[Request], Any]"

_END: Final = object()


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
        script: A list or generator (sync or async) of replies, used one after another;
            or a function (sync or async) from the `Request` to a reply. A reply is a
            text, an `LLMResponse`, an exception, which is raised, or a list of pieces
            for `stream`, an exception among them to break off in the middle.
        usage: The usage of replies that are no `LLMResponse`.
        supports_tools: Whether it claims to call tools.

    A script that has run out fails the test with `AssertionError`.

    Raises:
        TypeError: When the script is a text: its letters would be the replies.
    """

    supports_tools: bool

    def __init__(
        self,
        script: Script,
        *,
        usage: Mapping[str, Any] | None = None,
        supports_tools: bool = True,
    ) -> None:
        if isinstance(script, (str, LLMResponse)):
            msg = f"`script` must be a list of replies, got a {type(script).__name__}"
            raise TypeError(msg)
        self._answer: Callable[[Request], Any] | None = None
        self._steps: Iterator[Any] | AsyncIterator[Any] = iter(())
        if callable(script):
            self._answer = script
        elif isinstance(script, AsyncIterator):
            self._steps = script
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
        with self._answering():
            pieces, response = _spoken(await self._reply(request), self._usage)
            for piece in pieces:
                if isinstance(piece, BaseException):
                    raise piece
            return response

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
        """Yield the reply word by word, or in the pieces that the script gives."""
        request = self._record(messages, temperature, max_tokens, tools, kwargs)
        with self._answering():
            pieces, response = _spoken(await self._reply(request), self._usage)
            for piece in pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        if usage_sink is not None:
            usage_sink.append(response)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            yield
        finally:
            self.active -= 1

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

    async def _reply(self, request: Request) -> Any:
        if self._answer is not None:
            reply = self._answer(request)
            return await reply if inspect.isawaitable(reply) else reply
        if isinstance(self._steps, AsyncIterator):
            reply = await anext(self._steps, _END)
        else:
            reply = next(self._steps, _END)
        if reply is _END:
            msg = f"the script has no reply for request {request.number}"
            raise AssertionError(msg)
        return reply


def _spoken(
    reply: Any, usage: Mapping[str, Any]
) -> tuple[Sequence[str | BaseException], LLMResponse]:
    """The pieces of a reply, and the whole of it."""
    if isinstance(reply, BaseException):
        return [reply], LLMResponse("")
    if isinstance(reply, (list, tuple)):
        said = [piece for piece in reply if isinstance(piece, str)]
        return reply, LLMResponse("".join(said), usage=usage)
    if isinstance(reply, str):
        reply = LLMResponse(reply, usage=usage)
    if not isinstance(reply, LLMResponse):
        msg = (
            "a reply must be a text, an LLMResponse, an exception or a list of pieces, "
            f"got {reply!r}"
        )
        raise TypeError(msg)
    return re.findall(r"\S+\s*|\s+", reply.content), reply
