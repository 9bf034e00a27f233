"""What is spent and what may be spent: reserve, then settle or refund.

A call is admitted only if the budget has room for it together with everything that
is in flight. Calls are counted exactly. For tokens, a call reserves what it may use:
`max_tokens` of output, and an estimate of its input (four characters a token). A call
that does not fit beside the ones in flight waits until they are settled; alone it is
always admitted while the recorded total is below the limit. So the recorded total can
pass a limit of output tokens by one response at most, however many calls run at once.
Money is tokens at the given prices, and is reserved as if nothing came from a cache.

What bounds the rest:

- A call without `max_tokens` reserves its provider's `default_max_tokens`, else 4096.
  A response may be longer by what the server makes beyond that.
- Input is an estimate; the total may pass its limit by one call and by what the
  estimates of the calls in flight are short of.
- A task that has a call in flight does not wait for room: it could be waiting for
  itself, as when it calls a model while it reads a stream. Such a call may come on top.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit._usage import (
    Budget,
    CostLimit,
    Prices,
    collecting_lost_cost,
    estimate_cost,
    estimate_tokens,
    plain_counts,
    report_lost_cost,
    response_usage,
)
from executionkit.errors import BudgetExhaustedError
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse

__all__ = (
    "Budget",
    "CostLimit",
    "CostTracker",
    "Prices",
    "Reservation",
    "collecting_lost_cost",
    "estimate_cost",
    "estimate_tokens",
    "report_lost_cost",
    "response_usage",
)


_Task: TypeAlias = "asyncio.Task[Any] | None"


class Reservation:
    """Room that one call holds in a budget until it is settled, kept or refunded."""

    __slots__ = ("_done", "_input", "_output", "_owner", "_tracker")

    def __init__(
        self, tracker: CostTracker, input_tokens: int, output_tokens: int, owner: _Task
    ) -> None:
        self._tracker = tracker
        self._input = input_tokens
        self._output = output_tokens
        self._owner = owner
        self._done = False

    def settle(self, usage: TokenUsage) -> None:
        """The call answered: record the tokens that it really used."""
        if not self._done:
            self._tracker._add_tokens(usage)  # noqa: SLF001 - one unit with the tracker
        self.keep()

    def settle_reply(self, response: LLMResponse) -> None:
        """The call answered with `response`: record its tokens."""
        if not self._done:
            self._tracker.record_without_call(response)
        self.keep()

    def settle_failure(self, exc: BaseException) -> None:
        """The call failed with `exc`: record what it says was spent besides it."""
        besides = getattr(exc, "spent_besides", None)
        if not self._done and type(besides) is TokenUsage:
            self._tracker.add_usage(besides)
        self.keep()

    def keep(self) -> None:
        """The call failed after dispatch: its slot stays used, its tokens are freed."""
        self._end(0)

    def refund(self) -> None:
        """The call was never dispatched: give everything back."""
        self._end(1)

    def _end(self, calls: int) -> None:
        if not self._done:
            self._done = True
            self._tracker._release(  # noqa: SLF001 - one unit with the tracker
                self._input, self._output, calls, self._owner
            )
            self._owner = None


class CostTracker:
    """Counts tokens and calls of one run. For one event loop; not thread-safe."""

    __slots__ = (
        "_cache_read",
        "_cache_write",
        "_calls",
        "_in_flight",
        "_input",
        "_output",
        "_owners",
        "_reasoning",
        "_reserved_input",
        "_reserved_output",
        "_waiters",
        "_watchers",
        "answered_by",
    )

    def __init__(self) -> None:
        self._input = self._output = self._calls = 0
        self._cache_read = self._cache_write = self._reasoning = 0
        self._reserved_input = self._reserved_output = self._in_flight = 0
        self._waiters: deque[_Waiter] = deque()
        self._watchers: list[asyncio.Future[None]] = []
        # How many calls each task has in flight; only where a budget limits them.
        self._owners: dict[_Task, int] = {}
        # Replies by provider; of a provider that is made of several.
        self.answered_by: dict[str, int] = {}

    def record(self, response: LLMResponse) -> None:
        """Add a reply's tokens and one call."""
        self._calls += 1
        self.record_without_call(response)

    def reserve_call(self) -> None:
        """Add one call."""
        self._calls += 1

    def record_without_call(self, response: LLMResponse) -> None:
        """Add a reply's tokens; its call was counted before."""
        besides = getattr(response, "besides", None)
        if type(besides) is TokenUsage:
            self.add_usage(besides)
        if isinstance(name := getattr(response, "answered_by", None), str):
            self.answered_by[name] = self.answered_by.get(name, 0) + 1
        plain = plain_counts(response)
        if plain is None:
            self._add_tokens(response_usage(response))
        else:
            self._input += plain[0]
            self._output += plain[1]

    def add_usage(self, usage: TokenUsage) -> None:
        """Add tokens and calls."""
        self._calls += usage.llm_calls
        self._add_tokens(usage)

    @property
    def call_count(self) -> int:
        return self._calls

    @property
    def total_tokens(self) -> int:
        return self._input + self._output

    def to_usage(self) -> TokenUsage:
        """What has been spent up to now."""
        return TokenUsage(
            self._input,
            self._output,
            self._calls,
            cache_read_tokens=self._cache_read,
            cache_write_tokens=self._cache_write,
            reasoning_tokens=self._reasoning,
        )

    def snapshot(self) -> TokenUsage:
        """The same as `to_usage`."""
        return self.to_usage()

    def over(self, budget: Budget) -> bool:
        """Whether more tokens were recorded than the budget allows."""
        return (
            _exceeds(budget.input_tokens, self._input)
            or _exceeds(budget.output_tokens, self._output)
            or _exceeds(budget.money, self._money(budget))
        )

    async def admit(
        self,
        budget: Budget,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        moment: str = "before dispatch",
    ) -> Reservation:
        """Reserve room for one call, waiting for calls in flight if need be.

        Args:
            budget: The limits.
            input_tokens: Tokens that the call will send, as far as known.
            output_tokens: Tokens that it may make, as far as known.
            moment: Words for the error message.

        Raises:
            BudgetExhaustedError: When no room is left.
        """
        held = self.admit_now(
            budget,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            moment=moment,
        )
        if held is not None:
            return held
        waiter = _Waiter(budget, input_tokens, output_tokens, moment)
        self._waiters.append(waiter)
        try:
            return await waiter.granted
        except BaseException:
            self._withdraw(waiter)
            raise

    def admit_now(
        self,
        budget: Budget,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        moment: str = "before dispatch",
    ) -> Reservation | None:
        """Like `admit`; None when the call has to wait."""
        if budget.unlimited:
            return self._reserve(0, 0, None)
        owner = _running_task()
        if self._may_go(budget, input_tokens, output_tokens, moment, owner):
            return self._reserve(input_tokens, output_tokens, owner)
        return None

    def has_room(
        self, budget: Budget, *, input_tokens: int = 0, output_tokens: int = 0
    ) -> bool:
        """Whether a call would not have to wait right now.

        Raises:
            BudgetExhaustedError: When no room is left.
        """
        return self._may_go(
            budget, input_tokens, output_tokens, "before dispatch", _running_task()
        )

    async def changed(self) -> None:
        """Wait until a call in flight has ended."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    def _may_go(
        self, budget: Budget, sends: int, makes: int, moment: str, owner: _Task
    ) -> bool:
        fits = self._fits(budget, sends, makes, moment)
        return owner in self._owners or (fits and not self._waiters)

    def _withdraw(self, waiter: _Waiter) -> None:
        granted = waiter.granted
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        elif granted.done() and not granted.cancelled() and not granted.exception():
            granted.result().refund()
        self._serve()

    def _reserve(
        self, input_tokens: int, output_tokens: int, owner: _Task
    ) -> Reservation:
        self._calls += 1
        self._in_flight += 1
        self._reserved_input += input_tokens
        self._reserved_output += output_tokens
        if owner is not None:
            self._owners[owner] = self._owners.get(owner, 0) + 1
        return Reservation(self, input_tokens, output_tokens, owner)

    def _release(
        self, input_tokens: int, output_tokens: int, calls: int, owner: _Task
    ) -> None:
        self._calls -= calls
        self._in_flight -= 1
        self._reserved_input -= input_tokens
        self._reserved_output -= output_tokens
        if owner is not None:
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]
        if self._waiters:
            self._serve()
        while self._watchers:
            watcher = self._watchers.pop()
            if not watcher.done():
                watcher.set_result(None)

    def _add_tokens(self, usage: TokenUsage) -> None:
        self._input += usage.input_tokens
        self._output += usage.output_tokens
        self._cache_read += usage.cache_read_tokens
        self._cache_write += usage.cache_write_tokens
        self._reasoning += usage.reasoning_tokens

    def _fits(self, budget: Budget, sends: int, makes: int, moment: str) -> bool:
        self._refuse_if_spent(budget, moment)
        if not self._in_flight:
            return True
        sends += self._reserved_input
        makes += self._reserved_output
        return not (
            _exceeds(budget.input_tokens, self._input + sends)
            or _exceeds(budget.output_tokens, self._output + makes)
            or (
                budget.money is not None
                and budget.money_of(self.to_usage() + TokenUsage(sends, makes))
                > budget.money
            )
        )

    def _money(self, budget: Budget) -> float:
        """What was spent; not worked out when nobody limits it."""
        if budget.money is None:
            return 0
        # Without the last digits, which are those of binary fractions.
        return round(budget.money_of(self.to_usage()), 9)

    def _refuse_if_spent(self, budget: Budget, moment: str) -> None:
        for label, limit, spent in (
            ("LLM call", budget.llm_calls, self._calls),
            ("Input token", budget.input_tokens, self._input),
            ("Output token", budget.output_tokens, self._output),
            ("Money", budget.money, self._money(budget)),
        ):
            if limit is None or spent < limit:
                continue
            detail = "forwarded from pipe" if limit == 0 else moment
            msg = f"{label} budget exhausted ({detail}): {spent} of {limit} used"
            raise BudgetExhaustedError(
                msg, cost=self.to_usage(), metadata={"budget": budget.source}
            )

    def _serve(self) -> None:
        """Grant or refuse the waiters at the head of the queue, in order."""
        while self._waiters:
            head = self._waiters[0]
            if head.granted.done():
                self._waiters.popleft()
                continue
            try:
                fits = self._fits(head.budget, head.sends, head.makes, head.moment)
            except BudgetExhaustedError as exc:
                self._waiters.popleft()
                head.granted.set_exception(exc)
                continue
            if not fits:
                return
            self._waiters.popleft()
            head.granted.set_result(self._reserve(head.sends, head.makes, head.owner))


class _Waiter:
    __slots__ = ("budget", "granted", "makes", "moment", "owner", "sends")

    def __init__(self, budget: Budget, sends: int, makes: int, moment: str) -> None:
        self.budget = budget
        self.sends = sends
        self.makes = makes
        self.moment = moment
        self.owner = _running_task()
        self.granted: asyncio.Future[Reservation] = (
            asyncio.get_running_loop().create_future()
        )


def _exceeds(limit: float | None, amount: float) -> bool:
    return limit is not None and amount > limit


def _running_task() -> _Task:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a coroutine driven by hand
        return None
