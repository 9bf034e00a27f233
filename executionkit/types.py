"""Values that cross function boundaries: frozen, slotted, deeply read-only.

They can be pickled, copied, compared and hashed (when their contents can), so a
result may be cached, shared between tasks, or sent to another process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    cast,
)

from executionkit._constants import DEFAULT_TOOL_TIMEOUT, SIDE_EFFECTS
from executionkit._frozen import (
    FrozenDict,
    FrozenList,
    freeze,
    freeze_mapping,
    sealed,
    thaw,
)

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider

__all__ = (
    "CheckpointCallback",
    "Evaluator",
    "FrozenDict",
    "FrozenList",
    "JsonObject",
    "JsonValue",
    "PatternResult",
    "StreamingPatternResult",
    "T",
    "TerminationReason",
    "TokenUsage",
    "Tool",
    "VotingStrategy",
    "freeze",
    "freeze_mapping",
    "sealed",
    "thaw",
)

_READS: Final = frozenset({"none", "read"})

T = TypeVar("T")
"""The type of a result's value."""

JsonValue: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list, or dict with str keys."""

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object."""

Evaluator: TypeAlias = "Callable[[str, LLMProvider], Awaitable[float] | float]"
"""Scores a text: `(text, provider) -> float in [0, 1]`; sync or async."""

CheckpointCallback: TypeAlias = Callable[
    [int, dict[str, Any]], "Awaitable[None] | None"
]
"""Called with an index and a state after each unit of progress; sync or async."""


@sealed
@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens and calls: what was spent, or (as `max_cost`) what may be spent.

    As a budget, 0 means no limit for that field, a positive number is the limit, and
    -1 is `pipe()`'s mark for a field that an earlier step used up.
    """

    input_tokens: int = 0
    """Tokens sent to the model, cached ones included."""

    output_tokens: int = 0
    """Tokens made by the model, reasoning included."""

    llm_calls: int = 0
    """Requests dispatched, retries included."""

    _: KW_ONLY

    cache_read_tokens: int = 0
    """The part of `input_tokens` that came from the provider's cache."""

    cache_write_tokens: int = 0
    """The part of `input_tokens` that was written to the provider's cache."""

    reasoning_tokens: int = 0
    """The part of `output_tokens` that was spent on hidden reasoning."""

    def __add__(self, other: TokenUsage) -> TokenUsage:
        if not isinstance(other, TokenUsage):
            return NotImplemented
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.llm_calls + other.llm_calls,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )

    def __sub__(self, other: TokenUsage) -> TokenUsage:
        """The field-wise difference; it may be negative."""
        if not isinstance(other, TokenUsage):
            return NotImplemented
        return TokenUsage(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.llm_calls - other.llm_calls,
            cache_read_tokens=self.cache_read_tokens - other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens - other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
        )


@sealed
@dataclass(frozen=True, slots=True)
class PatternResult(Generic[T]):
    """What a pattern returns: the value, its score, what it cost, and how it went."""

    value: T
    score: float | None = None
    """Quality in [0, 1], where the pattern knows one."""

    cost: TokenUsage = TokenUsage()
    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """Facts about the run; each pattern documents its keys."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", freeze(self.value))
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))

    def __str__(self) -> str:
        return str(self.value)


class VotingStrategy(StrEnum):
    """How `consensus` picks a winner."""

    MAJORITY = "majority"
    UNANIMOUS = "unanimous"


class TerminationReason(StrEnum):
    """Why a `react_loop` ended."""

    NATURAL = "natural"
    """The model answered without asking for a tool."""

    MAX_ITERATIONS = "max_iterations"
    """The round limit was reached."""

    NO_PROGRESS = "no_progress"
    """The same calls kept giving the same results."""

    EMPTY_REPLY = "empty_reply"
    """The model announced tool calls, or nothing, and gave neither text nor calls."""

    TRUNCATED = "truncated"
    """The final answer was cut off at the token limit."""


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        msg = f"`name` of a tool must be a str, got {type(name).__name__}"
        raise TypeError(msg)
    if not name or any(char.isspace() for char in name):
        msg = (
            f"`name` of a tool must have no white space and not be empty, got {name!r}"
        )
        raise ValueError(msg)


def _check_kinds(name: str, parameters: Any, execute: Any) -> None:
    if not isinstance(parameters, Mapping):
        msg = (
            f"`parameters` of the tool '{name}' must be a JSON Schema of its arguments "
            f"(a mapping), got {type(parameters).__name__}"
        )
        raise TypeError(msg)
    if not callable(execute):
        msg = (
            f"`execute` of the tool '{name}' must be a function that takes the "
            f"arguments as keywords, got {type(execute).__name__}"
        )
        raise TypeError(msg)


def _check_seconds(name: str, timeout: Any) -> None:
    if timeout is None:
        return
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not timeout > 0:  # False for NaN
        msg = (
            f"`timeout` of the tool '{name}' must be > 0 seconds, or None for no "
            f"limit; got {timeout!r}"
        )
        raise ValueError(msg)


def _check_effects(tool: Tool) -> None:
    if tool.side_effects not in SIDE_EFFECTS:
        known = ", ".join(SIDE_EFFECTS)
        msg = (
            f"`side_effects` of the tool '{tool.name}' must be one of {known}, got "
            f"{tool.side_effects!r}"
        )
        raise ValueError(msg)
    for name in ("idempotent", "streaming", "cacheable"):
        value: object = getattr(tool, name)
        if not isinstance(value, bool) and (name != "cacheable" or value is not None):
            msg = f"`{name}` of the tool '{tool.name}' must be a bool, got {value!r}"
            raise TypeError(msg)


def _check_limits(name: str, rate: Any, concurrency: Any, retries: Any) -> None:
    for field_name, value, least in (
        ("max_concurrency", concurrency, 1),
        ("max_retries", retries, 0),
    ):
        if value is not None and (type(value) is not int or value < least):
            msg = (
                f"`{field_name}` of the tool '{name}' must be an int >= {least} or "
                f"None, got {value!r}"
            )
            raise ValueError(msg)
    if rate is None:
        return
    good = isinstance(rate, tuple) and len(rate) == 2 and type(rate[0]) is int
    if not good or rate[0] < 1 or not 0 < rate[1] < float("inf"):
        msg = (
            f"`rate_limit` of the tool '{name}' must be (calls >= 1, seconds > 0) or "
            f"None, got {rate!r}"
        )
        raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Raises:
        TypeError: When `name`, `parameters` or `execute` are of a wrong kind.
        ValueError: When `name` is empty or has white space, or `timeout` is no number
            above 0.
    """

    name: str
    """Not empty, without white space; servers may allow letters, digits, `_`, `-` only."""

    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments (an object schema); kept read-only."""

    execute: Callable[..., Any]
    """Called with the arguments as keywords. Async, or sync (run in a thread)."""

    timeout: float | None = DEFAULT_TOOL_TIMEOUT
    """Seconds one call may run, 30 unless said otherwise. None = no limit."""

    _: KW_ONLY

    namespace: str = "default"
    tags: frozenset[str] = frozenset()
    side_effects: str = "unknown"
    """`"none"`, `"read"`, `"write"`, `"destructive"`, or `"unknown"`."""

    idempotent: bool = False
    """True when calling twice with the same arguments does no more than once."""

    cacheable: bool | None = None
    """Whether results may be cached. None = decided from `side_effects`."""

    cost: float = 0.0
    """Abstract budget units per call."""

    version: str = "1.0.0"

    streaming: bool = False
    """True when its values come one by one; such results are never cached."""

    rate_limit: tuple[int, float] | None = None
    """(calls, seconds): at most so many starts in any such window. None = no limit."""

    max_concurrency: int | None = None
    """Calls at once. None = no limit of its own."""

    max_retries: int | None = None
    """Attempts after the first, also where retries are off otherwise. None = as for
    other tools."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_kinds(self.name, self.parameters, self.execute)
        _check_seconds(self.name, self.timeout)
        _check_limits(
            self.name, self.rate_limit, self.max_concurrency, self.max_retries
        )
        _check_effects(self)
        object.__setattr__(self, "parameters", freeze_mapping(self.parameters))
        object.__setattr__(self, "tags", frozenset(self.tags))

    @property
    def is_repeatable(self) -> bool:
        """Whether it says that calling it twice does no more than once."""
        return self.idempotent or self.side_effects in _READS

    def to_schema(self) -> dict[str, Any]:
        """The tool in OpenAI's function format; a fresh copy, free to be changed."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": thaw(self.parameters),
            },
        }


@sealed
@dataclass(frozen=True, slots=True)
class StreamingPatternResult:
    """A text stream with the cost known so far; close it or use `async with`."""

    text_stream: AsyncIterator[str]
    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)
    _usage_source: Callable[[], TokenUsage] = field(default=TokenUsage, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))

    @property
    def cost(self) -> TokenUsage:
        """What has been spent up to now."""
        return self._usage_source()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.text_stream

    async def aclose(self) -> None:
        """Stop the stream; the request is aborted and what it used is counted."""
        close = getattr(self.text_stream, "aclose", None)
        if close is not None:
            await cast("Callable[[], Awaitable[None]]", close)()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
