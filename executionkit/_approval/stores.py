"""Where questions wait for their answers: the protocol, and a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Protocol, runtime_checkable

from executionkit._approval.values import (
    ApprovalDecision,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
    named,
)
from executionkit._clock import get_clock
from executionkit._ids import new_id
from executionkit.errors import ApprovalInvalidError

__all__ = (
    "ApprovalStore",
    "MemoryApprovalStore",
    "answered",
    "new_record",
    "used",
)


@runtime_checkable
class ApprovalStore(Protocol):
    """Keeps questions and answers. Every method is atomic, between processes too."""

    async def open(
        self, request: ApprovalRequest, *, taken: Collection[str] = (), by: str = ""
    ) -> ApprovalRecord:
        """The record of a question; a new one when there is none that can be used.

        A record fits when its run and digest are those of the request, its id is not
        among `taken`, and its answer was not used yet, or by the effect `by` (see
        `use`). One that this effect has used comes first, then the oldest one.
        """
        ...

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        """The record with this id; None when there is none."""
        ...

    async def pending(self, *, run_id: str | None = None) -> tuple[ApprovalRecord, ...]:
        """The questions that nobody has answered, oldest first.

        Args:
            run_id: Only those of this run; None = all.
        """
        ...

    async def answer(
        self, approval_id: str, decision: ApprovalDecision, *, by: str = ""
    ) -> ApprovalRecord:
        """Answer a question.

        Args:
            approval_id: The question.
            decision: The answer. One with a `digest` is refused when the question is
                another one.
            by: Who answers.

        Raises:
            ApprovalInvalidError: When there is no such question, when it is another
                one than the decision says, or when it was answered before.
        """
        ...

    async def use(
        self, approval_id: str, *, digest: str, run_id: str, by: str = ""
    ) -> ApprovalDecision:
        """Take the answer, for one action: it counts for nothing more.

        Args:
            approval_id: The question.
            digest: Of the action that is about to be done.
            run_id: The run that is about to do it.
            by: A name of the effect that it is used for. The same effect may take its
                answer again (it crashed before it was done); empty = nobody may.

        Raises:
            ApprovalInvalidError: When there is no such question, when it belongs to
                another run or action, was not answered, or was used before.
        """
        ...

    async def withdraw(self, approval_id: str) -> None:
        """Forget a question that nobody has answered and nobody waits for."""
        ...


def new_record(request: ApprovalRequest) -> ApprovalRecord:
    """A new question."""
    asked = replace(request, id=request.id or new_id())
    return ApprovalRecord(
        request=asked, digest=asked.digest, created_at=get_clock().wall()
    )


def answered(
    record: ApprovalRecord | None,
    approval_id: str,
    decision: ApprovalDecision,
    by: str,
) -> ApprovalRecord:
    """The record with its answer; raises when it cannot be answered so."""
    given: object = decision
    if not isinstance(given, ApprovalDecision):
        msg = f"`decision` must be an ApprovalDecision, got {type(given).__name__}"
        raise TypeError(msg)
    if record is None:
        raise _unknown(approval_id)
    if record.state is not ApprovalState.PENDING:
        msg = f"{named(record.request)} ({approval_id}) was answered before"
        raise ApprovalInvalidError(msg)
    if decision.request_id not in {"", approval_id} or (
        decision.digest not in {"", record.digest}
    ):
        msg = (
            f"The answer is not for {named(record.request)} ({approval_id}): it was "
            "given to another question or to other arguments"
        )
        raise ApprovalInvalidError(msg)
    return replace(
        record,
        state=ApprovalState.ANSWERED,
        decision=replace(decision, request_id=approval_id, digest=record.digest),
        answered_by=by,
        answered_at=get_clock().wall(),
    )


def used(
    record: ApprovalRecord | None,
    approval_id: str,
    *,
    digest: str,
    run_id: str,
    is_same_effect: bool,
) -> ApprovalDecision:
    """The answer, when it may be acted on now; raises when it may not."""
    if record is None:
        raise _unknown(approval_id)
    what = f"The answer to {named(record.request)} ({approval_id})"
    if record.digest != digest:
        msg = f"{what} is not for these arguments"
        raise ApprovalInvalidError(msg)
    if record.request.run_id != run_id:
        msg = f"{what} is not for this run"
        raise ApprovalInvalidError(msg)
    if record.decision is None:
        msg = f"{named(record.request)} ({approval_id}) has not been answered"
        raise ApprovalInvalidError(msg)
    if record.state is ApprovalState.USED and not is_same_effect:
        msg = f"{what} was used before; one answer allows one action"
        raise ApprovalInvalidError(msg)
    return record.decision


def _unknown(approval_id: str) -> ApprovalInvalidError:
    msg = f"There is no question with the id {approval_id!r}; `pending` lists them"
    return ApprovalInvalidError(msg)


class MemoryApprovalStore:
    """An `ApprovalStore` in this process; what it holds ends with it.

    Used answers are forgotten, the oldest first, when there are more than `max_used`;
    they are refused then because nobody asked.

    Args:
        max_used: Used answers to keep, for looking at.
    """

    def __init__(self, *, max_used: int = 1000) -> None:
        self._max_used = max_used
        self._records: dict[str, ApprovalRecord] = {}
        self._used_by: dict[str, str] = {}
        self._lock = threading.Lock()

    async def open(
        self, request: ApprovalRequest, *, taken: Collection[str] = (), by: str = ""
    ) -> ApprovalRecord:
        made = new_record(request)
        with self._lock:
            found = [
                record
                for record in self._records.values()
                if record.digest == made.digest
                and record.request.run_id == request.run_id
                and (
                    record.state is not ApprovalState.USED
                    or (by and self._used_by[record.id] == by)
                )
                and record.id not in taken
            ]
            if found:
                return next(
                    (r for r in found if r.state is ApprovalState.USED), found[0]
                )
            self._records[made.id] = made
            return made

    async def get(self, approval_id: str) -> ApprovalRecord | None:
        with self._lock:
            return self._records.get(approval_id)

    async def pending(self, *, run_id: str | None = None) -> tuple[ApprovalRecord, ...]:
        with self._lock:
            return tuple(
                record
                for record in self._records.values()
                if record.state is ApprovalState.PENDING
                and run_id in {None, record.request.run_id}
            )

    async def answer(
        self, approval_id: str, decision: ApprovalDecision, *, by: str = ""
    ) -> ApprovalRecord:
        with self._lock:
            record = answered(self._records.get(approval_id), approval_id, decision, by)
            self._records[approval_id] = record
            return record

    async def use(
        self, approval_id: str, *, digest: str, run_id: str, by: str = ""
    ) -> ApprovalDecision:
        with self._lock:
            record = self._records.get(approval_id)
            same = bool(by) and self._used_by.get(approval_id) == by
            decision = used(
                record,
                approval_id,
                digest=digest,
                run_id=run_id,
                is_same_effect=same,
            )
            assert record is not None  # noqa: S101 - `used` has raised then
            self._records[approval_id] = replace(record, state=ApprovalState.USED)
            self._used_by[approval_id] = by
            while len(self._used_by) > self._max_used:
                oldest = next(iter(self._used_by))
                del self._used_by[oldest]
                del self._records[oldest]
            return decision

    async def withdraw(self, approval_id: str) -> None:
        with self._lock:
            record = self._records.get(approval_id)
            if record is not None and record.state is ApprovalState.PENDING:
                del self._records[approval_id]
