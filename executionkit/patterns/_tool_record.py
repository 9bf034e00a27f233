"""Tool calls and approvals of a tool loop on record: done once, in their place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executionkit._journal.codec import encode, is_plain
from executionkit.approval import ApprovalDecision, ApprovalGate, ApprovalRequest
from executionkit.calls import ToolCall, ToolResult, make_result
from executionkit.errors import (
    ApprovalPendingError,
    ApprovalTimeoutError,
    DeadlineExceededError,
    ErrorCode,
    JournalError,
    JournalValueError,
)
from executionkit.journal import NOT_DONE, Effect, current_journal, shown
from executionkit.observability import note_replay
from executionkit.patterns._approved import pending_in
from executionkit.patterns._journaled import never
from executionkit.patterns._react_round import observation

if TYPE_CHECKING:
    from executionkit.patterns._journaled import Recorded
    from executionkit.patterns._react_round import Round

__all__ = ("ToolRecord",)


class _NothingDoneError(Exception):
    """The call has a result, and nothing was done: it is no outcome for later runs."""


class ToolRecord:
    """The tool calls of one run, as a part of a journal.

    Args:
        record: The run.
        is_repeatable: Whether running a call twice does no more than once.
    """

    __slots__ = ("_is_repeatable", "_record", "_round")

    def __init__(
        self, record: Recorded, is_repeatable: Callable[[ToolCall], bool]
    ) -> None:
        self._record = record
        self._is_repeatable = is_repeatable
        self._round = -1

    async def begin(self, work: Round, ready: Sequence[int]) -> None:
        """A round begins.

        Raises:
            InDoubtError: Before anything is run, when calls of it are in doubt.
        """
        self._round += 1
        places = [
            self._place("tool", index)
            for index in ready
            if isinstance(call := work.calls[index], ToolCall)
            and not self._is_repeatable(call)
        ]
        await self._record.journal.check_doubts(places)

    def _place(self, kind: str, index: int) -> str:
        return f"{kind}:{self._round}.{index}"

    async def run(
        self,
        work: Round,
        index: int,
        call: ToolCall,
        run: Callable[[ToolCall], Awaitable[None]],
    ) -> None:
        """Fill the result of a call: from the journal, or by `run`, which fills it too.

        Args:
            work: The round.
            index: The place of the call in it.
            call: The call, as it was approved.
            run: Runs it. The call that it is given has an idempotency key.
        """

        def made() -> Any:
            result = work.results[index]
            return NOT_DONE if result is None else (result, work.rendered.get(index))

        async def do() -> Any:
            await run(_with_key(call))
            result = work.results[index]
            if result is not None and _is_nothing_done(result, call):
                raise _NothingDoneError
            return made()

        effect = Effect(
            place=self._place("tool", index),
            kind="tool",
            asked=[call.name, call.namespace, call.arguments],
            words=shown(f"{call.name} (call {call.id})", call.arguments),
            is_repeatable=self._is_repeatable(call),
            keeps=never,
            pack=_pack,
            unpack=lambda value: _unpack(value, call),
            salvage=made,
        )
        try:
            outcome = await self._record.perform(effect, do)
        except _NothingDoneError:
            return
        if outcome.is_replayed:
            note_replay(call.id)
        result, text = outcome.value
        work.results[index] = replace(result, call_id=call.id)
        if text is not None:
            work.rendered[index] = text

    async def ask(
        self, gate: ApprovalGate, request: ApprovalRequest, index: int
    ) -> ApprovalDecision:
        """The decision on record, or that of the gate; what it raises."""
        place = self._place("approval", index)
        name = f"{self._record.journal.scope(place).idempotency_key}"
        asked = replace(request, run_id=self._record.journal.run)

        async def do() -> ApprovalDecision:
            given: object = gate
            if isinstance(given, ApprovalGate):
                return await given.request(asked, effect=name)
            return await gate.request(asked)

        effect = Effect(
            place=place,
            kind="approval",
            asked=[request.action, request.subject, request.arguments],
            words=shown(f"{request.action} {request.subject}", request.arguments),
            is_repeatable=True,
            keeps=_is_an_answer,
            pack=_pack_decision,
            unpack=ApprovalDecision.from_dict,
        )
        decision: ApprovalDecision = (await self._record.perform(effect, do)).value
        return decision


def _with_key(call: ToolCall) -> ToolCall:
    here = current_journal()
    if call.idempotency_key is not None or here is None:
        return call
    return ToolCall(
        call.id,
        call.name,
        call.arguments,
        namespace=call.namespace,
        idempotency_key=here.idempotency_key,
    )


def _is_nothing_done(result: ToolResult, call: ToolCall) -> bool:
    """Whether the next run has to ask again: an approval waits, or time was over."""
    if pending_in(result, call) is not None:
        return True
    return result.error_code is ErrorCode.DEADLINE_EXCEEDED and not result.attempts


def _is_an_answer(failure: Exception) -> bool:
    """Whether the model is told of it, and goes on."""
    ends = (ApprovalPendingError, ApprovalTimeoutError, DeadlineExceededError)
    return not isinstance(failure, (*ends, JournalError))


def _pack_decision(decision: Any) -> Any:
    if isinstance(decision, ApprovalDecision):
        return decision.to_dict()
    reason = str(getattr(decision, "reason", ""))
    return ApprovalDecision(decision.approved is True, reason).to_dict()


def _pack(made: tuple[ToolResult, str | None]) -> Any:
    """The result, and what the model read where that cannot be told from the value."""
    result, text = made
    if is_plain(result.result):
        return {"result": result, "text": None}
    text = observation(result) if text is None else text
    try:
        encode(result.result)
    except JournalValueError:
        value = None if result.error is not None else text
        return {"result": replace(result, result=value), "text": text}
    return {"result": result, "text": text}


def _unpack(value: Any, call: ToolCall) -> tuple[ToolResult, str | None]:
    if isinstance(value, dict) and isinstance(value.get("result"), ToolResult):
        return value["result"], value["text"]
    return make_result(call, value), None  # as an operator has said
