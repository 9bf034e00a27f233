"""One call: who is asked, in which order, and what counts as an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit._clock import get_clock
from executionkit._fallback.account import Account, with_facts
from executionkit._fallback.rules import refuse_if_late
from executionkit._fallback.telling import tell_attempt
from executionkit._llm import LLMResponse
from executionkit.context import remaining_deadline
from executionkit.cost import collecting_lost_cost, estimate_tokens
from executionkit.engine._rounds import (
    Shared,
    at_most,
    least,
    requests_left,
    shared_by,
)
from executionkit.errors import (
    AllProvidersFailedError,
    BadResponseError,
    DeadlineExceededError,
)
from executionkit.observability import error_name
from executionkit.patterns._failures import own_failure
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit._fallback.members import Member
    from executionkit._fallback.rules import Rules
    from executionkit.engine.breaker import Ticket

__all__ = ("Asking",)

_Task: TypeAlias = "asyncio.Task[LLMResponse | None]"
_Running: TypeAlias = "dict[_Task, tuple[Member, Ticket]]"


class Asking:
    """The course of one call over several providers.

    Args:
        rules: Of the provider that was called.
        members: Those that can take this request, in order.
        messages: The request.
        options: Its options, as given.
    """

    __slots__ = (
        "_abandons",
        "_asked",
        "_messages",
        "_most",
        "_options",
        "_spare",
        "account",
        "rules",
        "usable",
    )

    def __init__(
        self,
        rules: Rules,
        members: Sequence[Member],
        messages: Sequence[dict[str, Any]],
        options: dict[str, Any],
    ) -> None:
        self.rules: Rules = rules
        self.usable: Sequence[Member] = members
        self.account: Account = Account()
        self._messages = messages
        self._options = options
        self._most = least(rules.max_attempts, requests_left())
        self._asked: set[str] = set()
        self._spare: tuple[Member, LLMResponse] | None = None
        self._abandons = False

    async def answer(self) -> LLMResponse:
        """The first good answer.

        Raises:
            AllProvidersFailedError: When there is none.
            DeadlineExceededError: The deadline of the context comes first.
            Exception: A failure after which nobody else is asked.
        """
        left = remaining_deadline()
        try:
            if left is None:
                return await self._go()
            return await self._go_within(left)
        except BaseException as exc:
            if self._spare is not None:
                self.account.discard(self._spare[1])
            self.mark(exc)
            raise

    def mark(self, exc: BaseException) -> None:
        """Write on what leaves the call what it has spent, and may spend."""
        shared = Shared(len(self.usable), self.rules.max_attempts)
        self.account.mark(exc, shared)

    async def _go_within(self, left: float) -> LLMResponse:
        refuse_if_late(left)
        limit = get_clock().timeout(left)
        try:
            async with limit:
                return await self._go()
        except TimeoutError as exc:
            if not limit.expired():
                raise
            msg = f"The deadline was reached after {left:.3f}s, in the middle of a call"
            raise DeadlineExceededError(msg) from exc

    async def _go(self) -> LLMResponse:
        if self.rules.hedges is not None:
            self.rules.hedges.deposit()
        while (chosen := self.choose()) is not None:
            member, ticket = chosen
            delay = None if self.rules.hedges is None else member.hedge_after()
            if delay is None:
                response = await self._ask(member, ticket)
            else:
                member, response = await self._race(member, ticket, delay)
            if response is not None:
                if self._spare is not None:
                    self.account.discard(self._spare[1])
                return with_facts(response, member.name, self.account.besides)
        if self._spare is None:
            raise self.no_answer()
        member, response = self._spare
        return with_facts(response, member.name, self.account.besides)

    def choose(self) -> tuple[Member, Ticket] | None:
        """The next one to ask; those that rest come last, or not at all."""
        if self._most is not None and self.account.sent >= self._most:
            return None
        now = self.rules.clock.monotonic()
        resting: list[Member] = []
        for member in self.usable:
            if member.name in self._asked:
                continue
            if member.resting(now):
                if not member.must_rest(now):
                    resting.append(member)
                continue
            if (ticket := member.admit()) is not None:
                self._asked.add(member.name)
                return member, ticket
        for member in resting:
            if (ticket := member.admit()) is not None:
                self._asked.add(member.name)
                return member, ticket
        return None

    async def _ask(
        self, member: Member, ticket: Ticket, *, is_hedge: bool = False
    ) -> LLMResponse | None:
        """Its answer; None when another one is to be asked."""
        clock = self.rules.clock
        began = clock.monotonic()
        self.account.sent += 1
        number = self.account.sent
        response: Any  # a provider of one's own may return anything
        try:
            response = await self._reply(member)
        except Exception as exc:
            failure = self.failed(member, ticket, exc, number, began, is_hedge=is_hedge)
            if failure is None:
                return None
            if failure is exc:
                raise
        except BaseException as exc:
            member.failed(ticket, exc, began)
            spent = getattr(exc, "spent_besides", None)
            if type(spent) is TokenUsage:
                self.account.add(spent)
            if self._abandons:
                member.took(clock.monotonic() - began)
            raise
        else:
            if isinstance(response, LLMResponse):
                member.answered(ticket, clock.monotonic() - began)
                return self._judged(member, response)
            msg = (
                f"{type(member.provider).__name__}.complete() must return an "
                f"LLMResponse, got {type(response).__name__}"
            )
            wrong = BadResponseError(msg)
            failure = self.failed(
                member, ticket, wrong, number, began, is_hedge=is_hedge
            )
            if failure is None:
                return None
        # Outside of the handler: so the failure keeps the context that it had.
        raise failure

    def _reply(self, member: Member) -> Awaitable[Any]:
        if self._most is None:
            reply: Awaitable[Any]
            reply = member.provider.complete(self._messages, **self._options)
            return reply
        return self._bounded(member, self._most - self.account.sent + 1)

    async def _bounded(self, member: Member, count: int) -> Any:
        """Its answer; one made of several itself may send `count` requests."""
        with at_most(count):
            return await member.provider.complete(self._messages, **self._options)

    def failed(
        self,
        member: Member,
        ticket: Ticket,
        exc: Exception,
        number: int,
        began: float,
        *,
        is_hedge: bool = False,
    ) -> BaseException | None:
        """Book the failure of request `number`, from `began` on.

        Returns:
            What to raise, or None when somebody else is asked.
        """
        failure = own_failure(exc, self.rules.secrets)
        earlier = list(self.account.failures.values())
        member.failed(ticket, failure, self.rules.clock.monotonic())
        self.account.failed(member, failure, self.rules.secrets)
        if shared_by(failure) is None:  # else those inside have told of themselves
            requests = self.account.failures[member.name].requests
            more = {} if requests == 1 else {"requests": requests}
            self._tell(member, number, began, error_name(failure), **more)
        if not isinstance(failure, Exception):
            return failure
        if is_hedge or self._spare is not None or self.rules.goes_on(exc, failure):
            return None
        for other in earlier:
            failure.add_note(f"before: {other.name}: {other.reason}")
        return failure

    def _tell(
        self, member: Member, number: int, began: float, error: str, **facts: int
    ) -> None:
        seconds = self.rules.clock.monotonic() - began
        tell_attempt(member, self._options, number, seconds, error, facts)

    def _judged(self, member: Member, response: LLMResponse) -> LLMResponse | None:
        self.account.answered(response)
        if not (self.rules.on_truncated and response.was_truncated):
            return response
        self.account.no_good(member, f"cut off: {response.finish_reason}")
        if self._spare is None:
            self._spare = member, response
        else:
            self.account.discard(response)
        return None

    async def _race(
        self, member: Member, ticket: Ticket, delay: float
    ) -> tuple[Member, LLMResponse | None]:
        """Ask, and ask a second one when that takes longer than `delay`."""
        first = asyncio.create_task(self._run(member, ticket, is_hedge=False))
        running: _Running = {first: (member, ticket)}
        winner: _Task | None = None
        try:
            await self._wait(first, delay)
            if not first.done() and (second := self._hedge()) is not None:
                running[asyncio.create_task(self._run(*second, is_hedge=True))] = second
            waiting = list(running)
            while waiting and winner is None:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                ended = [task for task in waiting if task.done()]
                waiting = [task for task in waiting if task not in ended]
                self._abandons = True
                winner = next((task for task in ended if task.result()), None)
                self._abandons = winner is not None
        finally:
            await self._end(running, winner)
        if winner is None:
            return member, None
        return running[winner][0], winner.result()

    async def _run(
        self, member: Member, ticket: Ticket, *, is_hedge: bool
    ) -> LLMResponse | None:
        """`_ask` in a task of its own, with all costs that it leaves behind."""
        lost: list[TokenUsage] = []
        number, began = self.account.sent + 1, self.rules.clock.monotonic()
        try:
            with collecting_lost_cost(lost.append):
                return await self._ask(member, ticket, is_hedge=is_hedge)
        except asyncio.CancelledError:
            # What an abandoned request used is not known, and not nothing.
            if self._abandons:
                sends = 0
                if not lost:
                    sends = estimate_tokens(self._messages, self._options.get("tools"))
                    self.account.add(TokenUsage(sends))
                more = {"input_tokens": sends} if sends else {}
                self._tell(member, number, began, "hedge_lost", **more)
            raise
        finally:
            if lost:
                spent = sum(lost, TokenUsage())
                calls = max(0, spent.llm_calls - 1)
                self.account.add(replace(spent, llm_calls=calls))

    async def _wait(self, task: asyncio.Task[Any], seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not over.done():
                over.set_result(None)

        timer = self.rules.clock.call_later(seconds, wake)
        try:
            await asyncio.wait((task, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            over.cancel()

    def _hedge(self) -> tuple[Member, Ticket] | None:
        """Who gets the second request; None when there shall be none."""
        budget = self.rules.hedges
        if budget is None or budget.funds < 1:
            return None
        chosen = self.choose()
        if chosen is not None:
            budget.withdraw()
        return chosen

    async def _end(self, running: _Running, winner: _Task | None) -> None:
        """Cancel what still runs, wait for its end, book what it brought."""
        stop = await _stopped([task for task in running if not task.done()])
        for task, (_, ticket) in running.items():
            if task.cancelled():
                ticket.abandon()  # it may not even have begun
            elif task.exception() is None and (task is not winner or stop is not None):
                response = task.result()
                if response is not None:
                    self.account.discard(response)
        if stop is not None:
            raise stop

    def no_answer(self) -> AllProvidersFailedError | BaseException:
        """The error that says why nobody answered."""
        rules, account = self.rules, self.account
        if len(rules.members) == 1 and account.causes:
            return account.causes[0]
        now = rules.clock.monotonic()
        for member in rules.members:
            account.passed_over(member, self._why_not(member, now))
        told = [account.failures[member.name] for member in rules.members]
        words = "; ".join(
            f"{item.name} ({item.requests} sent): {item.reason}" for item in told
        )
        error = AllProvidersFailedError(
            f"No provider of `{rules.name}` answered: {words}", failures=told
        )
        wait = min((member.wait(now) for member in self.usable), default=0.0)
        error.retry_after = wait if 0 < wait < float("inf") else None
        if any(getattr(exc, "retries_exhausted", False) for exc in account.causes):
            error.retries_exhausted = True
            error.add_note("Not retried: a provider has retried by itself already")
        if account.causes:
            error.__cause__ = account.causes[-1]
        return error

    def _why_not(self, member: Member, now: float) -> str:
        if member not in self.usable:
            return "passed over, it cannot do what is asked for"
        if left := member.resting(now):
            return f"passed over, it asked to be left alone for {left:.3g}s more"
        if member.wait(now) or (member.breaker and member.breaker.state != "closed"):
            return "passed over, its circuit is open"
        if self._most == self.rules.max_attempts:
            return f"not asked, `max_attempts={self._most}` is used up"
        return "not asked, the requests of the call and its retries are used up"


async def _stopped(waiting: list[_Task]) -> asyncio.CancelledError | None:
    """Cancel tasks and wait for their end; a cancellation that came meanwhile."""
    stop: asyncio.CancelledError | None = None
    for task in waiting:
        task.cancel()
    while waiting:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError as exc:
            stop = exc
            for task in waiting:
                task.cancel()
        waiting = [task for task in waiting if not task.done()]
    return stop
