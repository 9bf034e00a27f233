"""One round of a tool loop: take the reply's calls, run them, word the results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executionkit.approval import ApprovalGate, ApprovalRequest
from executionkit.calls import (
    CallProblem,
    ErrorInfo,
    ToolCall,
    ToolResult,
    ToolRunner,
    new_id,
    render_result,
)
from executionkit.engine.messages import assistant_tool_calls_message, tool_message
from executionkit.errors import ErrorCode
from executionkit.observability import TraceCallback, TraceEvent, emit_trace
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse

__all__ = ("Round", "ToolDesk", "cap_text", "read_calls")

_NOTICE = "\n[... {left_out} of {length} characters left out ...]\n"
_SUFFIX = "\n[truncated]"
CANCELLED = "Tool call was cancelled before it finished."


def cap_text(text: str, limit: int) -> tuple[str, bool]:
    """`text` within `limit` characters, and whether it had to be cut.

    Head and tail are kept, with a notice of the original length between them. When
    there is no room for the notice, the head alone is kept.
    """
    if len(text) <= limit:
        return text, False
    notice = _NOTICE.format(left_out=len(text) - limit, length=len(text))
    room = limit - len(notice) - len(_SUFFIX)
    if room < len(notice):
        if limit <= len(_SUFFIX):
            return text[:limit], True
        return text[: limit - len(_SUFFIX)] + _SUFFIX, True
    tail = room // 3
    return text[: room - tail] + notice + text[len(text) - tail :] + _SUFFIX, True


def read_calls(response: LLMResponse) -> list[ToolCall | CallProblem]:
    """The calls and the unreadable calls of a reply, in the model's order.

    Every id is present and unique; a repeated id is renamed from its second use on.
    """
    size = len(response.tool_calls) + len(response.problems)
    slots: list[ToolCall | CallProblem | None] = [None] * size
    overflow: list[ToolCall | CallProblem] = []
    for problem in response.problems:
        if 0 <= problem.index < size and slots[problem.index] is None:
            slots[problem.index] = problem
        else:
            overflow.append(problem)
    rest = iter([*response.tool_calls, *overflow])
    merged = [next(rest) if slot is None else slot for slot in slots]
    return _unique_ids(merged)


def _unique_ids(
    calls: Sequence[ToolCall | CallProblem],
) -> list[ToolCall | CallProblem]:
    seen: set[str] = set()
    fixed: list[ToolCall | CallProblem] = []
    for call in calls:
        old = call.call_id if isinstance(call, CallProblem) else call.id
        fresh = old or new_id()
        number = 2
        while fresh in seen:
            fresh = f"{old or 'call'}-{number}"
            number += 1
        seen.add(fresh)
        fixed.append(call if fresh == old else _renamed(call, fresh))
    return fixed


def _renamed(call: ToolCall | CallProblem, fresh: str) -> ToolCall | CallProblem:
    if isinstance(call, ToolCall):
        return ToolCall(
            fresh,
            call.name,
            call.arguments,
            namespace=call.namespace,
            idempotency_key=call.idempotency_key,
        )
    return CallProblem(
        call_id=fresh,
        name=call.name,
        message=call.message,
        raw=call.raw,
        length=call.length,
        position=call.position,
        index=call.index,
        code=call.code,
    )


@dataclass(slots=True)
class Round:
    """What happened to the calls of one reply, in the model's order."""

    content: str
    calls: list[ToolCall | CallProblem]
    results: list[ToolResult | None]
    truncated: int = 0
    """Observations that were cut."""

    rejected: int = 0
    """Calls that were over a limit."""

    texts: list[str] = field(default_factory=list)
    """The whole observations, known once `messages` was called."""

    def messages(self, limit: int) -> list[dict[str, Any]]:
        """The block for the history: the calls, then one answer each.

        A call whose result is missing is answered with "cancelled", so the block is
        always complete.
        """
        self.truncated = 0
        self.texts = [
            CANCELLED if result is None else observation(result)
            for result in self.results
        ]
        block = [assistant_tool_calls_message(self.content, self._as_calls())]
        for call, text in zip(self.calls, self.texts, strict=True):
            call_id = call.id if isinstance(call, ToolCall) else call.call_id
            text, cut = cap_text(text, limit)  # noqa: PLW2901 - the same text, cut
            self.truncated += cut
            block.append(tool_message(call_id, text))
        return block

    def _as_calls(self) -> list[ToolCall]:
        # What the model wrote as arguments cannot be sent back when it is not JSON:
        # servers parse it. An empty object stands for it; the answer tells the model.
        return [
            call
            if isinstance(call, ToolCall)
            else ToolCall(call.call_id, call.name or "unknown", {})
            for call in self.calls
        ]

    def signature(self) -> list[tuple[str, Mapping[str, Any], str]]:
        """(tool, arguments, result) of every call, for the progress watch."""
        return [
            (
                call.name,
                call.arguments if isinstance(call, ToolCall) else {"": call.raw},
                text,
            )
            for call, text in zip(self.calls, self.texts, strict=True)
        ]


def observation(result: ToolResult) -> str:
    """What the model reads about a result."""
    if result.error is not None:
        return result.error
    return render_result(result.result)


class CallLimits:
    """How many tool calls a run may make; counts as calls are let through."""

    __slots__ = ("_left", "_per_round", "_per_tool")

    def __init__(
        self,
        per_round: int,
        total: int | None,
        per_tool: Mapping[str, int] | None,
    ) -> None:
        self._per_round = per_round
        self._left = total
        self._per_tool = dict(per_tool or {})

    def refuse(self, call: ToolCall, position: int, requested: int) -> str | None:
        """Why `call` may not run, in words for the model; None lets it through."""
        if position >= self._per_round:
            return (
                f"Not run: {requested} tool calls were requested in one reply and "
                f"the limit is {self._per_round}. Retry with fewer calls."
            )
        if self._left is not None and self._left <= 0:
            return "Not run: the limit of tool calls for this run is reached."
        if self._per_tool.get(call.name, 1) <= 0:
            return f"Not run: the limit of calls to '{call.name}' is reached."
        if self._left is not None:
            self._left -= 1
        if call.name in self._per_tool:
            self._per_tool[call.name] -= 1
        return None


class ToolDesk:
    """Takes the calls of a reply through checks, approval and the runner."""

    def __init__(
        self,
        runner: ToolRunner,
        limits: CallLimits,
        *,
        gate: ApprovalGate | None,
        trace: TraceCallback | None,
        redact_arguments: bool,
        concurrency: int,
    ) -> None:
        self._runner = runner
        self._check = getattr(runner, "check_call", None)
        # A list runner lets a call that was checked here skip its second check.
        self._run_checked = getattr(runner, "run_checked", None)
        self._limits = limits
        self._gate = gate
        self._trace = trace
        self._redact_arguments = redact_arguments
        self._slots = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency

    async def run(self, work: Round) -> None:
        """Fill `work.results`; those that are done stay when this is cancelled."""
        ready: list[int] = []
        position = 0
        for index, call in enumerate(work.calls):
            if isinstance(call, CallProblem):
                work.results[index] = _unreadable(call)
                continue
            refusal = self._limits.refuse(call, position, len(work.calls))
            position += 1
            if refusal is not None:
                work.rejected += 1
                work.results[index] = _refused(
                    call, ErrorCode.RESOURCE_EXHAUSTED, refusal
                )
                continue
            ready.append(index)
        if len(ready) == 1:
            await self._one(work, ready[0])
        elif ready:
            await self._all(work, ready)

    async def _all(self, work: Round, ready: list[int]) -> None:
        run = self._one if len(ready) <= self._concurrency else self._one_in_slot
        tasks = [asyncio.create_task(run(work, index)) for index in ready]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _one_in_slot(self, work: Round, index: int) -> None:
        async with self._slots:
            await self._one(work, index)

    async def _one(self, work: Round, index: int) -> None:
        call = work.calls[index]
        assert isinstance(call, ToolCall)  # noqa: S101 - problems never come here
        if self._trace is None:
            work.results[index] = await self._decide(call)
            return
        await self._emit("tool_call_start", call, arguments=self._shown(call))
        blocked = False
        error = "CancelledError"
        try:
            result = await self._decide(call)
            work.results[index] = result
            blocked = result.error_code is ErrorCode.APPROVAL_DENIED
            error = "" if result.error_code is None else result.error_code.value
        finally:
            facts = {"error": error} if error else {}
            await self._emit("tool_call_end", call, blocked=blocked, **facts)

    async def _decide(self, call: ToolCall) -> ToolResult:
        if self._check is not None:
            failed: ToolResult | None = self._check(call)
            if failed is not None:
                return failed
        if self._gate is not None:
            decision = await self._gate.request(_request(call))
            if not decision.approved:
                why = f": {decision.reason}" if decision.reason else ""
                text = f"Tool '{call.name}' blocked by approval{why}"
                return _refused(call, ErrorCode.APPROVAL_DENIED, text)
        if self._run_checked is not None:
            checked: ToolResult = await self._run_checked(call)
            return checked
        return (await self._runner.run_calls([call]))[0]

    def _shown(self, call: ToolCall) -> dict[str, Any]:
        if self._redact_arguments:
            return dict.fromkeys(call.arguments, "[redacted]")
        return {key: thaw(value) for key, value in call.arguments.items()}

    async def _emit(self, kind: str, call: ToolCall, **facts: Any) -> None:
        payload = {"tool_name": call.name, "tool_call_id": call.id, **facts}
        await emit_trace(self._trace, TraceEvent.create(kind, payload))


def _request(call: ToolCall) -> ApprovalRequest:
    arguments = {key: thaw(value) for key, value in call.arguments.items()}
    facts = {"tool_call_id": call.id, "arguments": arguments}
    return ApprovalRequest.create("tool_call", call.name, facts)


def _unreadable(problem: CallProblem) -> ToolResult:
    info = ErrorInfo.from_code(problem.code, problem.to_observation())
    return ToolResult(
        tool=problem.name or "unknown",
        error_info=info,
        call_id=problem.call_id,
        attempts=0,
    )


def _refused(call: ToolCall, code: ErrorCode, text: str) -> ToolResult:
    return ToolResult.failure(call, ErrorInfo.from_code(code, text), attempts=0)
