"""How a batch of calls is run, and what is different for single ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executionkit.calls import ReturnOrder, ToolCall
from executionkit.engine._checks import check_number
from executionkit.engine.retry import RetryConfig
from executionkit.tools._options import tool_retry
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit.context import ExecutionContext

__all__ = ("Override", "RunOptions")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What is different for one call; None = as usual."""

    timeout: float | None = None
    """Seconds that one attempt may run."""

    retry: RetryConfig | None = None
    """How it is retried."""

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_number("timeout", self.timeout)
        given: object = self.retry
        if given is not None and not isinstance(given, RetryConfig):
            msg = f"`retry` must be a RetryConfig or None, got {given!r}"
            raise TypeError(msg)
        if self.retry is not None:
            object.__setattr__(self, "retry", tool_retry(self.retry))


@dataclass(slots=True, kw_only=True)
class RunOptions:
    """How a batch is run. Made for it, and not changed: freezing would only cost time."""

    timeout: float | None = None
    """Seconds for each call, from now on, waiting and retries included."""

    order: ReturnOrder = ReturnOrder.COMPLETION
    use_cache: bool = True
    context: ExecutionContext | None = None
    on_tool_start: Callable[[ToolCall], Awaitable[None] | None] | None = None
    overrides: Mapping[str, Override] | None = None
    """By call id."""

    items: bool = True
    """Whether items of streaming tools are handed out."""

    from_start: bool = False
    """Whether `timeout` of a call begins when the call is taken from its source."""
