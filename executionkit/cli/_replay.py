"""The provider `mock`: what it says stands in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from executionkit._clock import get_clock
from executionkit._llm import LLMResponse
from executionkit._mock import MockProvider
from executionkit.calls import ToolCall
from executionkit.cli._ask import read_text
from executionkit.cli._console import UsageError
from executionkit.errors import (
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)

__all__ = ("ReplayProvider", "read_replies")

_KEYS = frozenset({"content", "tool_calls", "usage", "delay", "error", "finish_reason"})


def _failure(name: str) -> Exception:
    text = "the script says so"
    kinds: dict[str, Exception] = {
        "rate_limit": RateLimitError(text, retry_after=0.0),
        "permanent": PermanentError(text),
        "unauthorized": PermanentError(text, metadata={"status": 401}),
        "provider": ProviderError(text),
        "connection": ProviderConnectionError(text),
        "timeout": ProviderTimeoutError(text),
    }
    if name not in kinds:
        msg = f"`error` must be one of {', '.join(kinds)}, got {name!r}"
        raise ValueError(msg)
    return kinds[name]


class ReplayProvider(MockProvider):
    """Says what a script says, over and over again; without one, the last message.

    Args:
        replies: Objects with `content`, `tool_calls` (with `name` and `arguments`),
            `usage`, `finish_reason`, `delay` (seconds) and `error`; or texts.
    """

    def __init__(self, replies: Sequence[str | Mapping[str, Any]]) -> None:
        super().__init__()
        self.model = "mock"
        self._script = [_reply(item) for item in replies]

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
        if not self._script:
            text = str(messages[-1].get("content") or "")
            return LLMResponse(text, usage=_words(text, text))
        delay, error, response = self._script[(len(self.calls) - 1) % len(self._script)]
        if delay:
            await get_clock().sleep(delay)
        if error:
            raise _failure(error)
        return response

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Nothing is open."""


def _words(sent: str, made: str) -> dict[str, int]:
    return {
        "prompt_tokens": len(sent.split()),
        "completion_tokens": len(made.split()),
    }


def _reply(item: Any) -> tuple[float, str, LLMResponse]:
    if isinstance(item, str):
        item = {"content": item}
    if not isinstance(item, Mapping) or not item.keys() <= _KEYS:
        msg = f"a reply must be a text, or an object with {', '.join(sorted(_KEYS))}"
        raise TypeError(msg)
    calls = tuple(
        ToolCall(f"call-{number}", call["name"], call.get("arguments", {}))
        for number, call in enumerate(item.get("tool_calls", ()), 1)
    )
    error = str(item.get("error", ""))
    if error:
        _failure(error)
    content = item.get("content", "")
    if not isinstance(content, str):
        content = json.dumps(content)
    ended = item.get("finish_reason") or ("tool_calls" if calls else "stop")
    usage = item.get("usage") or _words("", content)
    return float(item.get("delay", 0)), error, LLMResponse(content, calls, ended, usage)


def read_replies(name: str) -> list[Any]:
    """The script in a file: JSON lines, or one JSON list.

    Raises:
        UsageError: When it cannot be read, or is no script.
    """
    text = read_text(name)
    try:
        if text.lstrip().startswith("["):
            found = json.loads(text)
        else:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        for item in found:
            _reply(item)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        msg = f"`{name}` is no script of replies: {exc}"
        raise UsageError(msg) from exc
    return list(found)
