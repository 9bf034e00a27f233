"""Telling those who watch about one model call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit.calls import new_id
from executionkit.cost import response_usage
from executionkit.errors import ExecutionKitError
from executionkit.observability import (
    ChatSpan,
    Scope,
    count_retry,
    error_name,
    model_name,
    provider_name,
)
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from executionkit._llm import LLMResponse
    from executionkit.cost import CostTracker
    from executionkit.observability import TraceCallback

__all__ = ("CallTrace",)

# Nothing may be awaited any more when one of these ends a coroutine.
_FATAL: Final = (GeneratorExit, KeyboardInterrupt, SystemExit)


class CallTrace:
    """What is told of one model call: a pair of events for each of its attempts.

    `with` holds the span of the whole call, which is the current one meanwhile; a
    stream, which is read by anybody, uses `open`, `inside` and `close`.

    Args:
        provider: Is asked.
        messages: What it is asked.
        options: What it is asked with.
        tracker: Says what the run has cost so far.
        sink: Receives the events; None = spans only.
        secrets: Texts that must not appear in them.
    """

    __slots__ = (
        "_began",
        "_call_id",
        "_chat",
        "_options",
        "_provider",
        "_tracker",
        "scope",
    )

    def __init__(
        self,
        provider: object,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        tracker: CostTracker,
        sink: TraceCallback | None,
        secrets: Iterable[str],
    ) -> None:
        self._provider = provider
        self._options = options
        self._tracker = tracker
        self._call_id = new_id()
        self._began = 0.0
        self._chat = ChatSpan(provider, messages, options, secrets)
        labels = {"call_id": self._call_id}
        self.scope: Scope = Scope(sink, secrets, labels, self._chat.span)
        """The attempt that is under way, or that comes next."""
        self.scope.is_call = True

    def open(self, *, streams: bool = False) -> None:
        """The call begins."""
        self._chat.begin(streams=streams)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is done within it belongs to the call."""
        self.scope.enter()
        try:
            yield
        finally:
            self.scope.leave()

    def close(
        self, exc: BaseException | None, partial: LLMResponse | None = None
    ) -> None:
        """The call is over: well, or with `exc`. Once; more often does nothing."""
        if partial is not None:
            self._chat.answered(partial)
        self._chat.end(exc)

    def __enter__(self) -> None:
        self.open()
        self.scope.enter()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.scope.leave()
        self.close(exc)

    async def started(self, number: int) -> None:
        """Attempt `number` (from 1) is about to be sent."""
        self._chat.attempts = number
        self.scope.requests = 0
        self._began = get_clock().monotonic()
        facts: dict[str, Any] = {"attempt": number, **self._who()}
        await self.scope.tell("llm_call_start", self._with_account(facts))
        # What the callback took is none of the attempt.
        self._began = get_clock().monotonic()

    async def failed(self, number: int, exc: BaseException) -> None:
        """Attempt `number` ended with `exc`."""
        if isinstance(exc, _FATAL):
            return
        facts = {
            "attempt": number,
            "attempts": number,
            "duration": self._took(),
            **self._who(),
            **_named(exc),
            **self._requests(getattr(exc, "spent_besides", None), 0),
        }
        self._with_account(facts)
        if isinstance(exc, asyncio.CancelledError):
            # The callback may be the very thing that hangs.
            await self.scope.tell_briefly("llm_call_error", facts)
        else:
            await self.scope.tell("llm_call_error", facts)

    async def refused(self, exc: BaseException) -> None:
        """A request was not sent because of `exc`."""
        facts = self._with_account(_named(exc))
        await self.scope.tell_briefly("llm_call_refused", facts)

    async def ended(
        self, number: int, response: LLMResponse, facts: Mapping[str, Any]
    ) -> None:
        """Attempt `number` was answered."""
        self._chat.answered(response)
        usage = response_usage(response)
        told: dict[str, Any] = {
            "attempt": number,
            "attempts": number,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "content": response.content,
            "duration": self._took(),
            **self._who(response),
            **self._requests(response.besides, 1),
            **facts,
        }
        cached = usage.cache_read_tokens
        if cached:
            told["cached_tokens"] = cached
        await self.scope.tell("llm_call_end", self._with_account(told))

    async def replayed(self, response: LLMResponse) -> None:
        """The reply came from a journal: nothing was sent."""
        facts = {"attempt": 0, "replayed": True, **self._who()}
        await self.scope.tell("llm_call_start", self._with_account(facts))
        usage = response_usage(response)
        told: dict[str, Any] = {
            **facts,
            "attempts": 0,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "content": response.content,
            "duration": 0.0,
        }
        await self.scope.tell("llm_call_end", self._with_account(told))

    async def on_retry(self, number: int, exc: BaseException, delay: float) -> None:
        """A pause begins after attempt `number`."""
        count_retry("chat", error_name(exc))
        told = {"attempt": number, "delay": delay, "error.type": error_name(exc)}
        self._chat.span.tell("retry", told)
        facts = {"attempt": number, "delay": delay, **_named(exc)}
        await self.scope.tell("llm_call_retry", self._with_account(facts))
        self.scope.renew()  # the next attempt has a span of its own

    def _who(self, response: LLMResponse | None = None) -> dict[str, str]:
        """Who is asked, or has answered."""
        path = None if response is None else response.answered_by
        provider = _member(self._provider, path)
        who = {"provider": provider_name(provider)}
        model = model_name(provider, self._options)
        if response is not None and path:
            who["answered_by"] = path
            model = model or response.model
        if model is not None:
            who["model"] = model
        return who

    def _requests(self, besides: object, least: int) -> dict[str, int]:
        """How many requests have no `attempt` that tells of them, if not one."""
        more = besides.llm_calls if isinstance(besides, TokenUsage) else 0
        count = max(least, 1 + more - self.scope.requests)
        return {} if count == 1 else {"requests": count}

    def _took(self) -> float:
        return get_clock().monotonic() - self._began

    def _with_account(self, facts: dict[str, Any]) -> dict[str, Any]:
        facts["call_id"] = self._call_id
        facts["cost"] = self._tracker.to_usage()
        return facts


def _member(provider: object, path: str | None) -> object:
    """The one of several providers that `answered_by` names."""
    members = getattr(provider, "providers", None) if path else None
    if not path or not isinstance(members, Mapping):
        return provider
    known: Mapping[str, object] = members
    if path in known:
        return known[path]
    for name, inner in known.items():
        if path.startswith(f"{name}/"):
            return _member(inner, path.removeprefix(f"{name}/"))
    return provider


def _named(exc: BaseException) -> dict[str, Any]:
    """What a failure is called; only errors of this library have a code."""
    code = str(exc.code) if isinstance(exc, ExecutionKitError) else None
    return {"error_type": type(exc).__name__, "error_code": code}
