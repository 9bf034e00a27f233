"""Asking before something is done: requests, decisions, and the gate between.

A gate fails closed. Only a clear yes is a yes: `True`, or a decision that says
`approved`. Anything else, an error and a missing answer included, stops the action,
unless the gate was told that silence means consent.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import get_args

from executionkit._approval.asking import ApprovalCallback, Asker, TimeoutPolicy
from executionkit._approval.sqlite import SQLiteApprovalStore
from executionkit._approval.stores import ApprovalStore, MemoryApprovalStore
from executionkit._approval.values import (
    PARKED,
    ApprovalDecision,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
    Parked,
    named,
)
from executionkit._clock import Clock, get_clock
from executionkit._ids import new_id
from executionkit.context import get_current_context
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalInvalidError,
    ApprovalPendingError,
    StateStoreError,
)
from executionkit.observability import note_wait

__all__ = (
    "PARKED",
    "ApprovalCallback",
    "ApprovalDecision",
    "ApprovalGate",
    "ApprovalRecord",
    "ApprovalRequest",
    "ApprovalState",
    "ApprovalStore",
    "MemoryApprovalStore",
    "SQLiteApprovalStore",
    "TimeoutPolicy",
)


class ApprovalGate:
    """Asks a callback, and lets through only what it allows.

    An exception of the callback passes to the caller; the action is not done then. A
    sync callback may block: it runs in a thread, and one that never returns delays
    neither other work nor the exit of the process. The deadline of the current
    `ExecutionContext` bounds the waiting too.

    An answer allows one action. A decision made by `request.approve()` or `.deny()`
    counts for that one question: given to any other one (other arguments, another
    tool, another run, the same action a second time) it is a no. With a `store`,
    questions and answers are kept there: other processes can list and answer them, and
    a run that ended with `PARKED` finds its answers when it runs again.

    Args:
        callback: Decides; returns an `ApprovalDecision` or a bool, or an awaitable of
            one. `PARKED` means later: `ApprovalPendingError` ends the run. Any other
            answer is a no.
        timeout_seconds: Seconds to wait for the answer (> 0). None = no limit.
        on_timeout: What no answer means: `"raise"` an `ApprovalTimeoutError`,
            `"deny"`, or `"approve"` (which warns: the gate fails open).
        clock: Measures the waiting; None = the clock of the current context.
        store: Keeps questions and answers. A question that was answered there is not
            asked again.
        run_id: The run that answers belong to, the same when it runs again. None = the
            `request_id` of the current `ExecutionContext`; without one, the gate is a
            run of its own, and nobody else finds its answers.
        valid_seconds: For how long a stored answer is good (> 0), from when it was
            given; then it is asked for again. None = for ever.

    Raises:
        TypeError: When `callback` cannot be called, or `store` is no ApprovalStore.
        ValueError: For an empty `run_id`, and for a wrong `timeout_seconds`,
            `valid_seconds` or `on_timeout`.
    """

    def __init__(
        self,
        callback: ApprovalCallback,
        *,
        timeout_seconds: float | None = None,
        on_timeout: TimeoutPolicy = "raise",
        clock: Clock | None = None,
        store: ApprovalStore | None = None,
        run_id: str | None = None,
        valid_seconds: float | None = None,
    ) -> None:
        _check_callback(callback)
        _check_seconds("timeout_seconds", timeout_seconds)
        _check_seconds("valid_seconds", valid_seconds)
        _check_store(store, run_id)
        if on_timeout not in get_args(TimeoutPolicy):
            msg = (
                f"`on_timeout` must be 'raise', 'deny' or 'approve', got {on_timeout!r}"
            )
            raise ValueError(msg)
        if on_timeout == "approve":
            warnings.warn(
                "`on_timeout='approve'` is fail-open: what nobody answers is done, with "
                "all the privileges that it has; use 'deny' or 'raise'",
                UserWarning,
                stacklevel=2,
            )
        self._asker = Asker(callback, timeout_seconds, on_timeout, clock)
        self._store = store
        self._run_id = run_id
        self._valid = valid_seconds
        self._own_run = new_id()
        self._held: set[str] = set()

    @classmethod
    def allow_all(cls) -> ApprovalGate:
        """A gate that allows everything."""

        async def allow(_request: ApprovalRequest) -> ApprovalDecision:
            return ApprovalDecision(approved=True)

        return cls(allow)

    @classmethod
    def deny_all(cls, reason: str = "denied") -> ApprovalGate:
        """A gate that denies everything."""

        async def deny(_request: ApprovalRequest) -> ApprovalDecision:
            return ApprovalDecision(approved=False, reason=reason)

        return cls(deny)

    @classmethod
    def park_all(
        cls,
        store: ApprovalStore,
        *,
        run_id: str | None = None,
        valid_seconds: float | None = None,
    ) -> ApprovalGate:
        """A gate that never waits: what nobody has answered yet ends the run.

        Args:
            store: Keeps the questions; answer them there, then run again.
            run_id: See the class.
            valid_seconds: See the class.
        """

        async def later(_request: ApprovalRequest) -> Parked:
            return PARKED

        return cls(later, store=store, run_id=run_id, valid_seconds=valid_seconds)

    @classmethod
    def wait_for(
        cls,
        store: ApprovalStore,
        *,
        run_id: str | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
        on_timeout: TimeoutPolicy = "raise",
        clock: Clock | None = None,
        valid_seconds: float | None = None,
    ) -> ApprovalGate:
        """A gate that waits until somebody answers in `store`.

        Args:
            store: Keeps the questions and answers.
            run_id: See the class.
            poll_seconds: Seconds between two looks (> 0).
            timeout_seconds: See the class.
            on_timeout: See the class.
            clock: See the class.
            valid_seconds: See the class.
        """
        _check_seconds("poll_seconds", poll_seconds)

        async def wait(request: ApprovalRequest) -> ApprovalDecision:
            while True:
                record = await store.get(request.id)
                if record is None:
                    return ApprovalDecision(approved=False, reason="it was withdrawn")
                if record.decision is not None:
                    return record.decision
                await (clock or get_clock()).sleep(poll_seconds)

        return cls(
            wait,
            timeout_seconds=timeout_seconds,
            on_timeout=on_timeout,
            clock=clock,
            store=store,
            run_id=run_id,
            valid_seconds=valid_seconds,
        )

    @property
    def store(self) -> ApprovalStore | None:
        """Where questions and answers are kept; None = nowhere."""
        return self._store

    @property
    def timeout_seconds(self) -> float | None:
        """Seconds to wait for an answer; None = no limit."""
        return self._asker.timeout

    @property
    def on_timeout(self) -> TimeoutPolicy:
        """What no answer means."""
        return self._asker.on_timeout

    async def request(
        self, request: ApprovalRequest, *, effect: str = ""
    ) -> ApprovalDecision:
        """Ask, and give the answer back.

        Args:
            request: What is asked. It gets an id and a run of its own.
            effect: A name of the action, unique and the same whenever its run runs
                again. An answer that the action took before it crashed is given to it
                again; empty = an answer is never given twice.

        Raises:
            ApprovalPendingError: When the answer comes later.
            ApprovalTimeoutError: When nobody answered and the policy is `"raise"`.
            ApprovalInvalidError: When the stored answer was used by somebody else.
            DeadlineExceededError: When the deadline of the request came first.
            StateStoreError: When the store failed.
            ValueError: When there is a store, and the request cannot be kept in it.
            Exception: What the callback raised.
        """
        clock = get_clock()
        began = clock.monotonic()
        try:
            return await self._request(request, effect)
        finally:
            note_wait("approval", clock.monotonic() - began)

    async def _request(self, request: ApprovalRequest, effect: str) -> ApprovalDecision:
        asked = replace(request, id=new_id(), run_id=self._run_of(request))
        if self._store is None:
            return await self._asker.ask(asked)
        record = await self._open(self._store, asked, effect)
        try:
            if record.decision is None:
                await self._answer_stored(self._store, record.request)
            return await self._store.use(
                record.id, digest=asked.digest, run_id=asked.run_id, by=effect
            )
        finally:
            self._held.discard(record.id)

    def _run_of(self, request: ApprovalRequest) -> str:
        if self._run_id is not None:
            return self._run_id
        if request.run_id:
            return request.run_id
        context = get_current_context()
        return self._own_run if context is None else context.request_id

    async def _open(
        self, store: ApprovalStore, request: ApprovalRequest, effect: str
    ) -> ApprovalRecord:
        old: set[str] = set()
        while True:
            taken = frozenset(self._held | old)
            record = await store.open(request, taken=taken, by=effect)
            if self._is_too_old(record):
                old.add(record.id)
            # Two equal actions at once are two questions.
            elif record.id not in self._held:
                self._held.add(record.id)
                return record

    def _is_too_old(self, record: ApprovalRecord) -> bool:
        """Whether its answer was given too long ago to be acted on for the first time."""
        given = record.answered_at
        if self._valid is None or given is None or record.state is ApprovalState.USED:
            return False
        return get_clock().wall() - given > self._valid

    async def _answer_stored(
        self, store: ApprovalStore, request: ApprovalRequest
    ) -> None:
        try:
            decision = await self._asker.ask(request)
        except (ApprovalPendingError, StateStoreError):
            raise  # it still waits; nothing is known of its answer
        except Exception:
            await store.withdraw(request.id)  # nobody waits for it any more
            raise
        try:
            await store.answer(request.id, decision, by="callback")
        except ApprovalInvalidError:
            record = await store.get(request.id)
            if record is None or record.decision is None:
                raise
            # Somebody else answered first, and that is what counts.

    async def require(
        self, request: ApprovalRequest, *, effect: str = ""
    ) -> ApprovalDecision:
        """Ask, and return only when it is allowed; then do exactly what was allowed.

        Args:
            request: See `request`.
            effect: See `request`.

        Raises:
            ApprovalDeniedError: When it is not.
            ApprovalPendingError: See `request`.
            ApprovalTimeoutError: See `request`.
            DeadlineExceededError: See `request`.
            Exception: As `request`.
        """
        decision = await self.request(request, effect=effect)
        if not decision.approved:
            why = f": {decision.reason}" if decision.reason else ""
            msg = f"{named(request)} was denied{why}"
            raise ApprovalDeniedError(msg)
        return decision


def _check_callback(callback: object) -> None:
    if not callable(callback):
        msg = f"`callback` must be callable, got {callback!r}"
        raise TypeError(msg)


def _check_store(store: object, run_id: object) -> None:
    if store is not None and not isinstance(store, ApprovalStore):
        msg = f"`store` must be an ApprovalStore or None, got {type(store).__name__}"
        raise TypeError(msg)
    if run_id is not None and not (isinstance(run_id, str) and run_id):
        msg = f"`run_id` must be a text or None, got {run_id!r}"
        raise ValueError(msg)


def _check_seconds(name: str, seconds: float | None) -> None:
    if seconds is None:
        return
    number: object = seconds
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        msg = f"`{name}` must be a number or None, got {seconds!r}"
        raise ValueError(msg)
    if not (seconds > 0 and math.isfinite(seconds)):
        msg = f"`{name}` must be > 0 and finite, got {seconds!r}"
        raise ValueError(msg)
