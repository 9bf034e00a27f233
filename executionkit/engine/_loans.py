"""Slots that callers lend: a call runs in the place of the one that waits for it.

A tool that calls tools in turn has a slot, and waits. Would its calls need others of the
same pool, all slots could be held by tools that wait for each other. So a call that finds
a pool full gets the slot of one of its own callers; each slot is lent to one call at a
time, so there are never more at work than the pool allows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from executionkit.engine._slots import Pool

__all__ = ("Holder", "Loan", "Loans")


class Holder(Protocol):
    """A call, as far as slots are concerned."""

    places: tuple[Any, ...]
    """The claims whose slots it has: each has `resources`, a tuple of pools."""

    loans: list[Loan] | None
    """What it has lent and borrowed; None = nothing yet."""

    caller: Any
    """The call whose tool makes this one; None = it comes from outside."""


class Loan:
    """One slot, lent. The pool counts who uses it, and not who owns it."""

    __slots__ = ("borrower", "claim", "ledger", "lender", "pool")

    def __init__(
        self, ledger: Loans, lender: Holder, borrower: Holder, claim: Any, pool: Pool
    ) -> None:
        self.ledger: Loans = ledger
        self.lender: Holder = lender
        self.borrower: Holder = borrower
        self.claim: Any = claim
        """What the borrower needs slots for."""
        self.pool: Pool = pool


class Loans:
    """The open loans of some pools. For one event loop; not thread-safe."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: set[Loan] = set()

    def claim(self, claim: Any, borrower: Holder) -> Any:
        """`claim`, or what to ask for in its place: callers of `borrower` have slots."""
        holder = borrower.caller
        while holder is not None:
            for pool in claim.resources:
                if _has(holder, pool):
                    return _Borrowing(self, claim, borrower)
            holder = holder.caller
        return claim

    def lend(self, loan: Loan) -> None:
        """Give the borrower the slot of the lender."""
        self._open.add(loan)
        for holder in (loan.lender, loan.borrower):
            if holder.loans is None:
                holder.loans = []
            holder.loans.append(loan)
        loan.pool.active -= 1

    def end(self, holder: Holder, pool: Pool | None = None) -> None:
        """End what `holder` has lent and borrowed here, of `pool` or of all pools.

        A borrower goes on: in the slot that `holder` had borrowed itself, else in one
        that is its own from now on.
        """
        lenders: dict[Pool, Holder] = {}
        lent: list[Loan] = []
        for loan in list(holder.loans or ()):
            if loan.ledger is self and (pool is None or loan.pool is pool):
                loan.pool.active += 1
                self._forget(loan)
                if loan.lender is holder:
                    lent.append(loan)
                else:
                    lenders[loan.pool] = loan.lender
        for loan in lent:
            if loan.pool in lenders:
                lender = lenders[loan.pool]
                self.lend(Loan(self, lender, loan.borrower, loan.claim, loan.pool))

    def suspend(self) -> None:
        """Count lenders, too, as long as pools are made anew."""
        for loan in self._open:
            loan.pool.active += 1

    def resume(self) -> None:
        """Let the loans go on with the new pools; without a pool of the kind they end."""
        for loan in list(self._open):
            for pool in loan.claim.resources:
                if pool.kind is loan.pool.kind and _has(loan.lender, pool):
                    loan.pool = pool
                    pool.active -= 1
                    break
            else:
                self._forget(loan)

    def _forget(self, loan: Loan) -> None:
        self._open.discard(loan)
        for holder in (loan.lender, loan.borrower):
            (holder.loans or []).remove(loan)


class _Borrowing:
    """A claim of a call whose callers have slots of some of its pools."""

    __slots__ = ("_borrower", "_claim", "_ledger", "_pools", "_wanted")

    def __init__(self, ledger: Loans, claim: Any, borrower: Holder) -> None:
        self._ledger = ledger
        self._claim = claim
        self._borrower = borrower
        self._pools: tuple[Pool, ...] = ()
        self._wanted: tuple[_Slot, ...] = ()

    @property
    def resources(self) -> tuple[_Slot, ...]:
        """A slot of each pool; pools may be made anew while it waits."""
        pools = self._claim.resources
        if pools is not self._pools:
            self._pools = pools
            self._wanted = tuple(
                _Slot(self._ledger, pool, self._borrower, self._claim) for pool in pools
            )
        return self._wanted


class _Slot:
    """A slot of a pool: a free one, else that of a caller."""

    __slots__ = ("_borrower", "_claim", "_ledger", "_pool")

    def __init__(self, ledger: Loans, pool: Pool, borrower: Holder, claim: Any) -> None:
        self._ledger = ledger
        self._pool = pool
        self._borrower = borrower
        self._claim = claim

    def due(self, _cost: float, /) -> float:
        pool = self._pool
        if not pool.is_full or lender_of(pool, self._borrower) is not None:
            return -math.inf
        return math.inf

    def estimate(self, _total: float, now: float, /) -> float:
        return now

    def take(self, _cost: float, _now: float, /) -> None:
        pool = self._pool
        lender = lender_of(pool, self._borrower) if pool.is_full else None
        if lender is not None:
            ledger = self._ledger
            ledger.lend(Loan(ledger, lender, self._borrower, self._claim, pool))
        pool.active += 1

    def started(self, _cost: float, _now: float, /) -> None:
        """Nothing to do: a slot is used from the moment it is granted."""

    def put_back(self, _cost: float, _now: float, /) -> None:
        self._ledger.end(self._borrower, self._pool)
        self._pool.active -= 1


def lender_of(pool: Pool, borrower: Holder) -> Holder | None:
    """The nearest caller with a slot of `pool` that nobody uses in its place."""
    holder: Holder | None = borrower.caller
    while holder is not None:
        if _has(holder, pool) and not any(
            loan.lender is holder and loan.pool is pool for loan in holder.loans or ()
        ):
            return holder
        holder = holder.caller
    return None


def _has(holder: Holder, pool: Pool) -> bool:
    return any(pool in claim.resources for claim in holder.places)
