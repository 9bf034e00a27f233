"""Tokens and money of single replies, the limits of a run, and costs left over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final, TypeAlias

from executionkit._constants import MAX_TOKEN_COUNT
from executionkit._llm import LLMResponse
from executionkit.types import TokenUsage, sealed

__all__ = (
    "Budget",
    "CostLimit",
    "Prices",
    "collecting_lost_cost",
    "estimate_cost",
    "estimate_tokens",
    "plain_counts",
    "report_lost_cost",
    "response_usage",
)

_CHARS_PER_TOKEN: Final = 4
_PRICED_TOKENS: Final = 1_000_000
_PLAIN_KEYS: Final = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})


def response_usage(response: LLMResponse) -> TokenUsage:
    """The tokens of a reply; a count that makes no sense reads as zero."""
    plain = plain_counts(response)
    if plain is not None:
        return TokenUsage(*plain)

    def count(name: str) -> int:
        # A custom provider may return any object; a paid reply is never lost over
        # its usage, and reading a senseless count of an `LLMResponse` raises.
        try:
            value = getattr(response, name)
        except Exception:  # noqa: BLE001 - boundary to a user's own class
            return 0
        return value if type(value) is int and value > 0 else 0

    return TokenUsage(
        count("input_tokens"),
        count("output_tokens"),
        cache_read_tokens=count("cache_read_tokens"),
        cache_write_tokens=count("cache_write_tokens"),
        reasoning_tokens=count("reasoning_tokens"),
    )


def plain_counts(response: LLMResponse) -> tuple[int, int] | None:
    """Tokens sent and made, when the usage says no more than that; else None.

    The short way to what `response_usage` says, for the usage of most endpoints.
    """
    if type(response) is not LLMResponse:
        return None
    usage = response.usage
    if not usage:
        return 0, 0
    if not usage.keys() <= _PLAIN_KEYS:
        return None
    sent = usage.get("prompt_tokens", 0)
    made = usage.get("completion_tokens", 0)
    if type(sent) is not int or type(made) is not int:
        return None
    if 0 <= sent <= MAX_TOKEN_COUNT and 0 <= made <= MAX_TOKEN_COUNT:
        return sent, made
    return None


def estimate_tokens(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
) -> int:
    """A rough count of the tokens of a request: four characters a token.

    Counts texts, the arguments of tool calls, and the definitions of `tools`.
    """
    chars = sum(_chars(message.get("content")) for message in messages)
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            chars += _json_chars(calls)
    if tools:
        chars += _json_chars(tools)
    return chars // _CHARS_PER_TOKEN


def _chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, (list, tuple)):
        return sum(
            _chars(part.get("text")) for part in content if isinstance(part, Mapping)
        )
    return 0


def _json_chars(value: Any) -> int:
    try:
        return len(json.dumps(value, default=str))
    except (TypeError, ValueError, RecursionError):  # the provider will say so
        return 0


def estimate_cost(
    usage: TokenUsage,
    *,
    input_rate: float,
    output_rate: float,
    cache_read_rate: float | None = None,
    cache_write_rate: float | None = None,
) -> float:
    """Money from tokens: plain arithmetic with the rates given.

    Args:
        usage: The tokens.
        input_rate: Price of one input token.
        output_rate: Price of one output token.
        cache_read_rate: Price of an input token read from the provider's cache.
            None = `input_rate`.
        cache_write_rate: Price of an input token written to the provider's cache.
            None = `input_rate`.

    Returns:
        `plain * input_rate + reads * cache_read_rate + writes * cache_write_rate +
        output * output_rate`, in the currency of the rates.

    Raises:
        TypeError: When `usage` is no `TokenUsage`.
    """
    given: object = usage
    if not isinstance(given, TokenUsage):
        hint = "pass `result.cost`" if hasattr(given, "cost") else "see `result.cost`"
        msg = f"`usage` must be a TokenUsage, got {type(given).__name__}; {hint}"
        raise TypeError(msg)
    if cache_read_rate is None and cache_write_rate is None:
        return usage.input_tokens * input_rate + usage.output_tokens * output_rate
    read_rate = input_rate if cache_read_rate is None else cache_read_rate
    write_rate = input_rate if cache_write_rate is None else cache_write_rate
    plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    return (
        plain * input_rate
        + usage.cache_read_tokens * read_rate
        + usage.cache_write_tokens * write_rate
        + usage.output_tokens * output_rate
    )


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a model costs: the price of a million tokens, as providers publish it."""

    input: float
    """A million tokens sent that the two below do not price."""

    output: float
    """A million tokens made."""

    cache_read: float | None = None
    """A million tokens sent that came from the provider's cache. None = `input`."""

    cache_write: float | None = None
    """A million tokens sent that were written to the cache. None = `input`."""

    def __post_init__(self) -> None:
        _check_amount("input", self.input)
        _check_amount("output", self.output)
        for name in ("cache_read", "cache_write"):
            if getattr(self, name) is not None:
                _check_amount(name, getattr(self, name))

    def cost(self, usage: TokenUsage) -> float:
        """What `usage` costs, in the currency of the prices."""
        total = estimate_cost(
            usage,
            input_rate=self.input,
            output_rate=self.output,
            cache_read_rate=self.cache_read,
            cache_write_rate=self.cache_write,
        )
        return total / _PRICED_TOKENS


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class CostLimit(TokenUsage):
    """A budget that can limit money and single requests too; for every `max_cost`.

    All limits are separate: `input_tokens` is for the run as a whole, so tokens that
    come cheaply from a cache count in full there, but not in `money`.

    Raises:
        ValueError: For a limit that makes no sense, and for `money` without `prices`.
        TypeError: For a value of the wrong kind.
    """

    request_input_tokens: int | None = None
    """Tokens that one request may send. Its size is estimated (four characters of text
    a token; images are not counted), and a request above the limit is a
    `RequestTooLargeError`, not sent. None = no limit."""

    money: float | None = None
    """What the run may cost, in the currency of `prices`. Kept as token limits are: it
    is passed by one response at most. None = no limit; 0 = nothing may be spent."""

    prices: Prices | None = None
    """What tokens cost; needed for `money`."""

    def __post_init__(self) -> None:
        size = self.request_input_tokens
        if size is not None and (type(size) is not int or size < 1):
            msg = (
                "`request_input_tokens` must be an integer of at least 1, or None for "
                f"no limit, got {size!r}"
            )
            raise ValueError(msg)
        prices: object = self.prices
        if prices is not None and not isinstance(prices, Prices):
            msg = f"`prices` must be a Prices or None, got {type(prices).__name__}"
            raise TypeError(msg)
        if self.money is not None:
            _check_amount("money", self.money)
            if prices is None:
                msg = "`money` needs `prices`: pass `prices=Prices(input=..., output=...)`"
                raise ValueError(msg)


def _check_amount(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        msg = f"`{name}` must be a number, got {type(value).__name__}"
        raise TypeError(msg)
    if not isfinite(value) or value < 0:
        msg = f"`{name}` must be a finite number of at least 0, got {value!r}"
        raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one run. None = no limit; 0 = nothing may be spent."""

    llm_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    source: TokenUsage | None = None
    """The public budget that it was made from."""

    request_input_tokens: int | None = None
    money: float | None = None
    prices: Prices | None = None

    @classmethod
    def from_usage(cls, budget: TokenUsage | None) -> Budget:
        """Read a public budget: 0 = no limit, -1 = exhausted, else the limit.

        Raises:
            ValueError: For any other negative number.
        """
        if budget is None:
            return _UNLIMITED
        counts = (
            _limit(budget, "llm_calls"),
            _limit(budget, "input_tokens"),
            _limit(budget, "output_tokens"),
        )
        if isinstance(budget, CostLimit):
            size, money = budget.request_input_tokens, budget.money
            return cls(*counts, budget, size, money, budget.prices)
        return cls(*counts, budget)

    @property
    def unlimited(self) -> bool:
        """True when no field has a limit."""
        return (
            self.llm_calls is None
            and self.input_tokens is None
            and self.output_tokens is None
            and self.request_input_tokens is None
            and self.money is None
        )

    @property
    def by_size(self) -> bool:
        """True when calls in flight may leave no room for one more."""
        return not (
            self.input_tokens is None
            and self.output_tokens is None
            and self.money is None
        )

    def money_of(self, spent: TokenUsage) -> float:
        """What `spent` costs; 0 when nobody asks."""
        if self.money is None or self.prices is None:
            return 0.0
        return self.prices.cost(spent)

    def remaining(self, spent: TokenUsage) -> TokenUsage | None:
        """The public budget that is left after `spent`; None when there is none."""
        if self.source is None:
            return None
        left: dict[str, Any] = {
            name: _left(getattr(self, name), getattr(spent, name))
            for name in ("input_tokens", "output_tokens", "llm_calls")
        }
        if not isinstance(self.source, CostLimit):
            return TokenUsage(**left)
        money = self.money
        if money is not None:
            money = max(0.0, money - self.money_of(spent))
        return replace(self.source, **left, money=money)


def _limit(budget: TokenUsage, name: str) -> int | None:
    value = getattr(budget, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        msg = (
            f"`{name}` of a budget must be a positive integer, 0 (no limit) "
            f"or -1 (exhausted), got {value!r}"
        )
        raise ValueError(msg)
    if value == 0:
        return None
    return 0 if value == -1 else value


def _left(limit: int | None, spent: int) -> int:
    if limit is None:
        return 0
    left = limit - spent
    return left if left > 0 else -1


_UNLIMITED = Budget()


_Book: TypeAlias = Callable[[TokenUsage], None]
_lost_cost: ContextVar[_Book | None] = ContextVar(
    "executionkit_lost_cost", default=None
)


class collecting_lost_cost:  # noqa: N801 - used like a function
    """Have costs that no result and no error can carry booked by `book`.

    A cancelled run ends with `CancelledError`, which carries no cost. Whoever adds up
    costs (`Kit`) gets them this way. None = nobody inside the block reports, because
    whoever is around it will.
    """

    __slots__ = ("_book", "_token")

    def __init__(self, book: _Book | None) -> None:
        self._book = book
        self._token: Token[_Book | None] | None = None

    def __enter__(self) -> None:
        self._token = _lost_cost.set(self._book)

    def __exit__(self, *_exc: object) -> None:
        assert self._token is not None  # noqa: S101 - entered before
        # An abandoned run may be closed from another context: nothing to undo there.
        with suppress(ValueError):
            _lost_cost.reset(self._token)


def report_lost_cost(usage: TokenUsage) -> None:
    """Book a cost that would be forgotten otherwise."""
    book = _lost_cost.get()
    if book is not None:
        book(usage)
