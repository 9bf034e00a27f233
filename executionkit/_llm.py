"""What goes to a model and what comes back: response, stream events, protocols."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from executionkit._constants import MAX_TOKEN_COUNT
from executionkit.calls import CallProblem, ToolCall
from executionkit.errors import ProviderError
from executionkit.types import TokenUsage, freeze, freeze_mapping, sealed

__all__ = (
    "OMIT",
    "TRUNCATED_REASONS",
    "LLMProvider",
    "LLMResponse",
    "Omit",
    "Owned",
    "ReasoningDelta",
    "StreamEnd",
    "StreamEvent",
    "StreamingProvider",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallingProvider",
    "UsageUpdate",
    "usage_of",
)

TRUNCATED_REASONS: Final = frozenset(
    {"length", "max_tokens", "model_context_window_exceeded"}
)
"""Finish reasons that mean: the token limit cut the reply off."""

_THINKING = frozenset({"thinking", "redacted_thinking"})
_UNREADABLE = "unreadable"


class Omit(Enum):
    """The type of `OMIT`."""

    OMIT = "omit"


OMIT: Final = Omit.OMIT
"""The value of a call option that must not be sent at all, not even as a default."""


class Owned:
    """Marks a `raw` payload that nobody else can change: frozen when first read."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _frozen_or_not(value: Any) -> Any:
    try:
        return freeze(value)
    except RecursionError:  # nested beyond reason; nobody else holds it
        return value


class _FrozenOnRead:
    """A slot whose `Owned` value is frozen by the first reader.

    A deep freeze costs more than parsing the payload did, and most replies' `raw` is
    never looked at.
    """

    __slots__ = ("_slot",)

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = self._slot.__get__(instance, owner)
        if type(value) is Owned:
            value = _frozen_or_not(value.value)
            self._slot.__set__(instance, value)
        return value

    def __set__(self, instance: object, value: Any) -> None:
        self._slot.__set__(instance, value)

    def settle(self, instance: object) -> None:
        """Freeze a value that is not `Owned`: its maker may still hold it."""
        value = self._slot.__get__(instance)
        if type(value) is not Owned:
            self._slot.__set__(instance, freeze(value))


def _count(usage: Mapping[str, Any], *names: str) -> int:
    """The first of `names` that is present, as a token count."""
    for name in names:
        if name not in usage:
            continue
        value = usage[name]
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            msg = f"`usage.{name}` must be an integer, got {type(value).__name__}"
            raise ProviderError(msg)
        if value < 0:
            msg = f"`usage.{name}` cannot be negative, got {value}"
            raise ProviderError(msg)
        if value > MAX_TOKEN_COUNT:
            msg = f"`usage.{name}` is unreasonably large: more than {MAX_TOKEN_COUNT}"
            raise ProviderError(msg)
        return value
    return 0


def _details(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = usage.get(name)
        if isinstance(value, Mapping):
            return value
    return {}


@sealed
@dataclass(frozen=True, slots=True)
class LLMResponse:
    """One reply of a model, with everything the provider said.

    Reading a token count that is not a sane number raises `ProviderError`; patterns
    use `usage_of`, which never loses a paid reply over its usage.
    """

    content: str
    """The text; empty when the reply has none."""

    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that can be run."""

    finish_reason: str = "stop"
    """The provider's own word for why it ended; `"unknown"` when it said null."""

    usage: Mapping[str, Any] = field(default_factory=dict)
    """The provider's own usage object."""

    raw: Any = field(default=None, repr=False)
    """The payload as received. Never logged or traced by the library."""

    _: KW_ONLY

    problems: tuple[CallProblem, ...] = ()
    """The calls that cannot be run, with the reason; see `CallProblem`."""

    parts: tuple[Mapping[str, Any], ...] = ()
    """Content parts when the provider sent a list instead of one text."""

    refusal: str | None = None
    """The model's refusal, when the provider marks it as one."""

    reasoning: str | None = None
    """Visible reasoning text (`reasoning_content`, thinking blocks)."""

    model: str | None = None
    """The model that answered, in the provider's words."""

    id: str | None = None
    """The provider's id of this reply."""

    notes: tuple[str, ...] = ()
    """What had to be put right in the reply, e.g. a renamed duplicate call id."""

    answered_by: str | None = None
    """Which one of several providers it came from; see `FallbackProvider`."""

    besides: TokenUsage | None = None
    """What the other requests of the same call have cost; counted on top of `usage`."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "tool_calls", tuple(self.tool_calls))
        put(self, "problems", tuple(self.problems))
        put(self, "usage", freeze_mapping(self.usage))
        _RAW.settle(self)
        put(self, "parts", freeze(tuple(self.parts)))

    @property
    def input_tokens(self) -> int:
        """Tokens sent, cached ones included.

        Anthropic reports the cached ones apart. A gateway that speaks of
        `prompt_tokens` has added them already, even when it lists them too.
        """
        sent = _count(self.usage, "input_tokens", "prompt_tokens")
        if "prompt_tokens" in self.usage:
            return sent
        return (
            sent
            + _count(self.usage, "cache_creation_input_tokens")
            + _count(self.usage, "cache_read_input_tokens")
        )

    @property
    def output_tokens(self) -> int:
        """Tokens made by the model."""
        return _count(self.usage, "output_tokens", "completion_tokens")

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cache_read_tokens(self) -> int:
        """The part of `input_tokens` that came from the provider's cache."""
        details = _details(self.usage, "prompt_tokens_details", "input_tokens_details")
        if "cached_tokens" in details:
            return _count(details, "cached_tokens")
        return _count(self.usage, "cache_read_input_tokens", "prompt_cache_hit_tokens")

    @property
    def cache_write_tokens(self) -> int:
        """The part of `input_tokens` that was written to the provider's cache."""
        return _count(self.usage, "cache_creation_input_tokens")

    @property
    def reasoning_tokens(self) -> int:
        """The part of `output_tokens` spent on hidden reasoning."""
        details = _details(
            self.usage, "completion_tokens_details", "output_tokens_details"
        )
        return _count(details, "reasoning_tokens")

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    @property
    def was_truncated(self) -> bool:
        """True when the token limit cut the reply off."""
        return self.finish_reason in TRUNCATED_REASONS

    def to_message(self) -> dict[str, Any]:
        """The reply as a message of the next request (OpenAI's chat form).

        Calls that cannot be run stand in their places with empty arguments, because
        the answer to each needs a call to belong to. Thinking blocks with their
        signatures come along as `thinking_blocks`, which only `AnthropicProvider`
        sends.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        calls = [_wire_call(c.id, c.name, dict(c.arguments)) for c in self.tool_calls]
        for problem in sorted(self.problems, key=lambda item: item.index):
            broken = _wire_call(problem.call_id, problem.name or _UNREADABLE, {})
            calls.insert(problem.index, broken)
        if calls:
            message["tool_calls"] = calls
        thoughts = [part for part in self.parts if part.get("type") in _THINKING]
        if thoughts:
            message["thinking_blocks"] = thoughts
        return message


_RAW = _FrozenOnRead(LLMResponse.__dict__["raw"])
type.__setattr__(LLMResponse, "raw", _RAW)


def _wire_call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def usage_of(response: LLMResponse) -> TokenUsage:
    """The tokens of one reply; a count that makes no sense reads as zero."""

    def safe(name: str) -> int:
        try:
            return int(getattr(response, name))
        except (ProviderError, TypeError, ValueError, AttributeError):
            return 0

    return TokenUsage(
        safe("input_tokens"),
        safe("output_tokens"),
        cache_read_tokens=safe("cache_read_tokens"),
        cache_write_tokens=safe("cache_write_tokens"),
        reasoning_tokens=safe("reasoning_tokens"),
    )


@sealed
@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text; servers send empty pieces too."""

    text: str


@sealed
@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of visible reasoning."""

    text: str


@sealed
@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call; the assembled calls come with `StreamEnd`."""

    index: int
    """Which call of this reply, from 0, in order of appearance."""

    id: str | None
    name: str | None
    arguments: str
    """The next piece of the arguments' JSON text."""


@sealed
@dataclass(frozen=True, slots=True)
class UsageUpdate:
    """The usage known so far (absolute, not a difference)."""

    usage: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "usage", freeze_mapping(self.usage))


@sealed
@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The stream is complete; `response` is the whole reply."""

    response: LLMResponse


StreamEvent: TypeAlias = (
    TextDelta | ReasoningDelta | ToolCallDelta | UsageUpdate | StreamEnd
)
"""What `stream_events` yields; the last one is always a `StreamEnd`."""


@runtime_checkable
class LLMProvider(Protocol):
    """Anything that answers messages: one method is enough."""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        """Answer `messages` (OpenAI's chat form) once, without retrying."""
        ...


@runtime_checkable
class ToolCallingProvider(LLMProvider, Protocol):
    """A provider whose model can call tools by itself."""

    @property
    def supports_tools(self) -> Literal[True]:
        """Always True; its presence is the mark."""
        ...


@runtime_checkable
class StreamingProvider(LLMProvider, Protocol):
    """A provider that can give the text while it is being made."""

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
        """Yield the answer's text; called without await.

        The whole response is appended to `usage_sink` when the stream is complete.
        """
        ...
