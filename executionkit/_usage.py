"""Tokens and money of single replies, and costs that nothing else can carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse

__all__ = (
    "collecting_lost_cost",
    "estimate_cost",
    "estimate_tokens",
    "report_lost_cost",
    "response_usage",
)

_CHARS_PER_TOKEN = 4


def response_usage(response: LLMResponse) -> TokenUsage:
    """The tokens of a reply; a count that makes no sense reads as zero."""

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


def estimate_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """A rough count of the tokens in `messages`: four characters a token."""
    return sum(_chars(message.get("content")) for message in messages) // (
        _CHARS_PER_TOKEN
    )


def _chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(
            _chars(part.get("text")) for part in content if isinstance(part, Mapping)
        )
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
    """
    read_rate = input_rate if cache_read_rate is None else cache_read_rate
    write_rate = input_rate if cache_write_rate is None else cache_write_rate
    plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    return (
        plain * input_rate
        + usage.cache_read_tokens * read_rate
        + usage.cache_write_tokens * write_rate
        + usage.output_tokens * output_rate
    )


_lost_cost: ContextVar[Callable[[TokenUsage], None] | None] = ContextVar(
    "executionkit_lost_cost", default=None
)


@contextmanager
def collecting_lost_cost(book: Callable[[TokenUsage], None] | None) -> Iterator[None]:
    """Have costs that no result and no error can carry booked by `book`.

    A cancelled run ends with `CancelledError`, which carries no cost. Whoever adds up
    costs (`Kit`) gets them this way. None = nobody inside the block reports, because
    whoever is around it will.
    """
    token = _lost_cost.set(book)
    try:
        yield
    finally:
        _lost_cost.reset(token)


def report_lost_cost(usage: TokenUsage) -> None:
    """Book a cost that would be forgotten otherwise."""
    book = _lost_cost.get()
    if book is not None:
        book(usage)
