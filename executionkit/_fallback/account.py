"""What one call has sent and spent, over all providers that it asked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from executionkit._llm import LLMResponse
from executionkit.cost import response_usage
from executionkit.engine.retry import NEVER_RETRIED
from executionkit.errors import (
    AllProvidersFailedError,
    ExecutionKitError,
    ProviderFailure,
)
from executionkit.patterns._failures import describe
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit._fallback.members import Member
    from executionkit.engine._rounds import Shared

__all__ = ("Account", "with_facts")

_NOTHING: Final = TokenUsage()
_SLOTS: Final = tuple(name for name in LLMResponse.__slots__ if name != "raw")


def with_facts(response: LLMResponse, name: str, besides: TokenUsage) -> LLMResponse:
    """A copy that says who answered, and what else was spent.

    An answer that came through a provider of the same kind has its path:
    `"outer/inner"`. `raw` is taken over unread: most are never looked at.
    """
    known = response.answered_by
    if known is not None:
        name = f"{name}/{known}"
    if type(response) is not LLMResponse:
        return replace(response, answered_by=name, besides=besides)
    put, copy = object.__setattr__, object.__new__(LLMResponse)
    for slot in _SLOTS:
        put(copy, slot, getattr(response, slot))
    raw: Any = vars(LLMResponse)["raw"]
    raw.__set__(copy, raw._slot.__get__(response))  # noqa: SLF001 - unfrozen, see `Owned`
    put(copy, "answered_by", name)
    put(copy, "besides", besides)
    return copy


class Account:
    """Counts requests and tokens of one call, each once."""

    __slots__ = ("_spent", "causes", "failures", "sent")

    def __init__(self) -> None:
        self.sent: int = 0
        """Requests that were sent, those in flight and those of inner layers too."""

        self.failures: dict[str, ProviderFailure] = {}
        self.causes: list[BaseException] = []
        self._spent = _NOTHING

    def add(self, usage: TokenUsage) -> None:
        """Spent by a request whose sending was counted; `llm_calls` are on top."""
        self.sent += usage.llm_calls
        self._spent += replace(usage, llm_calls=0)

    def discard(self, response: LLMResponse) -> None:
        """A reply that nobody will see."""
        self._spent += response_usage(response)

    def answered(self, response: LLMResponse) -> None:
        """A reply came, with what it says was spent besides it."""
        if response.besides is not None:
            self.add(response.besides)

    def failed(self, member: Member, exc: BaseException, secrets: Any) -> None:
        """`member` raised `exc`; its request was counted as one when it was sent."""
        spent = getattr(exc, "spent_besides", None)
        more = 0
        if type(spent) is TokenUsage:
            self.add(replace(spent, llm_calls=0))
            more = spent.llm_calls
        code = None
        if isinstance(exc, ExecutionKitError):
            code = exc.code
            nested = isinstance(exc, AllProvidersFailedError)
            exact = nested or code in NEVER_RETRIED
            more = exc.attempts - 1 if exact else max(0, exc.attempts - 1, more)
        self.sent += more
        self.causes.append(exc)
        self._note(member, 1 + more, describe(exc, secrets), code)

    def passed_over(self, member: Member, why: str) -> None:
        """`member` was not asked."""
        if member.name not in self.failures:
            self._note(member, 0, why, None)

    def no_good(self, member: Member, why: str) -> None:
        """`member` answered, and the answer is not wanted."""
        self._note(member, 1, why, None)

    def _note(self, member: Member, requests: int, why: str, code: Any) -> None:
        self.failures[member.name] = ProviderFailure(
            name=member.name, requests=requests, reason=why, code=code
        )

    @property
    def besides(self) -> TokenUsage:
        """What was spent on top of the one request that every caller counts."""
        if self.sent == 1 and self._spent is _NOTHING:  # the way of nearly all calls
            return _NOTHING
        return replace(self._spent, llm_calls=self.sent - 1)

    @property
    def cost(self) -> TokenUsage:
        """All that was spent on requests without an answer that is handed out."""
        return replace(self._spent, llm_calls=self.sent)

    def mark(self, exc: BaseException, shared: Shared) -> None:
        """Write on what leaves the call what it has spent, and may spend."""
        with suppress(AttributeError, TypeError):  # a class without room for it
            shared.write_on(exc)
            exc.spent_besides = self.besides  # type: ignore[attr-defined]
        if isinstance(exc, ExecutionKitError):
            exc.attempts = self.sent
            exc.cost = self.cost
