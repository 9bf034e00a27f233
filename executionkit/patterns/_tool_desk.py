"""Takes the calls of a reply through limits, checks, approval and the runner."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from executionkit._clock import get_clock
from executionkit.approval import ApprovalGate, ApprovalRequest
from executionkit.calls import (
    CallProblem,
    ToolCall,
    ToolResult,
    ToolRunner,
)
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalPendingError,
    ApprovalTimeoutError,
    DeadlineExceededError,
    ErrorCode,
    ExecutionKitError,
    JournalError,
    ToolProcessorError,
)
from executionkit.observability import (
    Scope,
    ToolSpan,
    TraceCallback,
    nobody_watches,
    refused_span,
)
from executionkit.patterns._approved import (
    changed_call,
    pending_error,
    pending_in,
    tell_of_change,
)
from executionkit.patterns._call_limits import CallLimits
from executionkit.patterns._desk_results import (
    failed_result,
    refused_result,
    timed_out_result,
    unreadable_result,
)
from executionkit.patterns._desk_trace import DeskTrace
from executionkit.patterns._tool_call import ToolRun, stop_runs
from executionkit.patterns._tool_list import ToolListRunner
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.patterns._journaled import Recorded
    from executionkit.patterns._react_round import Round
    from executionkit.patterns._tool_record import ToolRecord

__all__ = ("ToolDesk",)


class ToolDesk:
    """Runs the calls of one reply at once, and records what became of each.

    Args:
        runner: Runs the tools.
        offered: The names of the tools on offer; no other one is ever run.
        limits: How many calls may run.
        gate: Asked before each valid call.
        trace: Receives `tool_call_start` and `tool_call_end` for each call that is
            not over a limit.
        redact_arguments: Hide argument values in trace events.
        secrets: Texts that must not appear in trace events.
        concurrency: Calls in flight at once.
        timeout: Seconds per call, waiting included, for a runner other than a list.
        record: What of the run is on record. None = nothing.
    """

    def __init__(
        self,
        runner: ToolRunner,
        offered: Collection[str],
        limits: CallLimits,
        *,
        gate: ApprovalGate | None,
        trace: TraceCallback | None,
        redact_arguments: bool,
        secrets: Sequence[str],
        concurrency: int,
        timeout: float | None,
        record: Recorded | None = None,
    ) -> None:
        self._runner = runner
        self._list = runner if isinstance(runner, ToolListRunner) else None
        self._is_told_by_runner = bool(getattr(runner, "makes_spans", False))
        self._offered = offered
        self._limits = limits
        self._gate = gate
        self._trace = trace
        self._redact_arguments = redact_arguments
        self._secrets = secrets
        self._slots = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._timeout = timeout
        self._record = None if record is None else _tool_record(record, runner)

    async def run(self, work: Round) -> None:
        """Fill `work.results`; those that are done stay when this is cancelled.

        Raises:
            ApprovalPendingError: When a call waits for an answer that comes later; all
                other calls have been run.
        """
        ready = self._admit(work)
        if self._record is not None:
            await self._record.begin(work, ready)
        plain = self._gate is None and self._trace is None and self._record is None
        if plain and self._list is not None and len(ready) <= self._concurrency:
            await self._start_all(self._list, work, ready)
        elif len(ready) == 1:
            await self._one(work, ready[0])
        elif ready:
            await self._all(work, ready)
        if work.parked:
            raise pending_error(work.parked)

    def _admit(self, work: Round) -> list[int]:
        """The places of the calls that may run; the others get their answers."""
        ready: list[int] = []
        position = 0
        for index, call in enumerate(work.calls):
            if isinstance(call, CallProblem):
                work.results[index] = unreadable_result(call)
                continue
            refusal = self._limits.refuse(call, position, len(work.calls))
            position += 1
            if refusal is None:
                ready.append(index)
                continue
            work.rejected += 1
            code = ErrorCode.RESOURCE_EXHAUSTED
            work.results[index] = refused_result(call, code, refusal)
        return ready

    async def _start_all(
        self, runner: ToolListRunner, work: Round, ready: Sequence[int]
    ) -> None:
        """The short way: nobody to ask and nobody to tell."""
        runs: dict[int, ToolRun] = {}
        for index in ready:
            call = work.changed.get(index) or _call_at(work, index)
            begun = runner.check_call(call) or runner.start(call)
            if isinstance(begun, ToolRun):
                runs[index] = begun
            else:
                work.results[index] = begun
                _tell_refusal(call, begun, self._offered)
        try:
            if runs:
                await asyncio.gather(*[run.outcome for run in runs.values()])
        except BaseException:
            await stop_runs(runs.values())
            raise
        finally:
            for index, run in runs.items():
                work.results[index] = run.result
                if run.text is not None:
                    work.rendered[index] = run.text

    async def _all(self, work: Round, ready: Sequence[int]) -> None:
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
        if self._trace is None or not self._slots.locked():
            async with self._slots:
                await self._one(work, index)
            return
        began = get_clock().monotonic()
        async with self._slots:
            await self._one(work, index, get_clock().monotonic() - began)

    async def _one(self, work: Round, index: int, waited: float = 0.0) -> None:
        if self._trace is None:
            await self._decide(work, index)
            return
        call = _call_at(work, index)
        scope = Scope(self._trace, self._secrets, {"tool_call_id": call.id})
        scope.waited("slot", waited)
        scope.is_open_to_runner = True
        told = DeskTrace(scope, call)
        scope.enter()
        try:
            await told.started(self._shown(call))
            await self._decide(work, index)
        except BaseException as exc:
            await told.failed(exc)
            raise
        finally:
            scope.leave()
        await told.ended(work.results[index])

    async def _decide(self, work: Round, index: int) -> None:
        """Check, then ask, then run: nobody is asked about a call that cannot run."""
        call = _call_at(work, index)
        refused = self._check(call)
        if refused is None and self._gate is not None:
            answer = await self._ask(self._gate, work, index, call)
            if isinstance(answer, ToolResult):
                refused = answer
            elif answer is not call:
                work.changed[index] = call = answer
                refused = self._check(call)  # whoever changed it may be wrong too
        if refused is not None:
            work.results[index] = refused
            _tell_refusal(call, refused, self._offered)
        elif self._record is not None:
            await self._run_on_record(self._record, work, index, call)
        else:
            await self._run(work, index, call)
        if self._gate is not None or self._list is None:
            tell_of_change(work, index)

    async def _run(self, work: Round, index: int, call: ToolCall) -> None:
        if self._list is not None:
            await self._start_all(self._list, work, [index])
            return
        result = await self._hand_over(call)
        if (parked := pending_in(result, call)) is not None:
            work.parked.append(parked)
        work.results[index] = result

    async def _run_on_record(
        self, record: ToolRecord, work: Round, index: int, call: ToolCall
    ) -> None:
        has_begun = False

        async def run(keyed: ToolCall) -> None:
            nonlocal has_begun
            has_begun = True
            await self._run(work, index, keyed)

        try:
            await record.run(work, index, call, run)
        except JournalError:
            raise
        except Exception as exc:
            if has_begun:
                raise
            work.results[index] = failed_result(call, exc)  # as an operator has said

    def _check(self, call: ToolCall) -> ToolResult | None:
        if self._list is not None:
            return self._list.check_call(call)
        if call.name in self._offered:
            if self._gate is None:
                return None  # the runner checks it where it runs it
            check: Any = getattr(self._runner, "check_call", None)
            return None if check is None else check(call)
        known = ", ".join(self._offered) or "none"
        text = f"Error: Unknown tool '{call.name}'. Available tools: {known}"
        return refused_result(call, ErrorCode.TOOL_NOT_FOUND, text)

    async def _ask(
        self, gate: ApprovalGate, work: Round, index: int, call: ToolCall
    ) -> ToolResult | ToolCall:
        """The call that may run, as it was approved; else the answer for the model."""
        try:
            request = _request(call)
            if self._record is None:
                decision = await gate.request(request)
            else:
                decision = await self._record.ask(gate, request, index)
        except (ApprovalTimeoutError, DeadlineExceededError, JournalError):
            raise  # the gate's policy says that silence ends the run
        except ApprovalPendingError as exc:
            work.parked.extend(exc.requests)
            text = f"Tool '{call.name}' was not run yet: it waits for an approval"
            return refused_result(call, ErrorCode.APPROVAL_PENDING, text, exc)
        except ApprovalDeniedError as exc:
            why = str(exc)
        except Exception as exc:  # noqa: BLE001 - a broken gate is no consent
            text = (
                f"Tool '{call.name}' failed: {type(exc).__name__} "
                "(in the approval check; the tool was not run)"
            )
            return refused_result(call, ErrorCode.APPROVAL_DENIED, text, exc)
        else:
            if decision.approved is True:
                return changed_call(call, decision)
            why = decision.reason
        text = f"Tool '{call.name}' blocked by approval{f': {why}' if why else ''}"
        return refused_result(call, ErrorCode.APPROVAL_DENIED, text)

    async def _hand_over(self, call: ToolCall) -> ToolResult:
        """The result of a runner; it is watched here, unless the runner does so."""
        if self._is_told_by_runner or nobody_watches():
            return await self._run_by_other(call)
        told = ToolSpan(call)
        began = get_clock().monotonic()
        told.begin()
        told.span.make_current()
        result: ToolResult | None = None
        ended: BaseException | None = None
        try:
            result = await self._run_by_other(call)
            ended = result.exception
            return result
        except BaseException as exc:
            ended = exc
            raise
        finally:
            told.span.restore()
            told.end(result, ended, get_clock().monotonic() - began)

    async def _run_by_other(self, call: ToolCall) -> ToolResult:
        """Run a call by somebody else's runner; what it raises is the result.

        Only the caller's own cancellation and errors of a policy pass.
        """
        limit = get_clock().timeout(self._timeout)
        try:
            async with limit:
                results: object = await self._runner.run_calls([call])
        except ToolProcessorError as exc:
            return ToolResult.failure(call, exc)
        except ExecutionKitError:
            raise
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return failed_result(call, exc)
        except Exception as exc:  # noqa: BLE001 - a tool's failure is its result
            if limit.expired() and isinstance(exc, TimeoutError):
                return timed_out_result(call, self._timeout or 0.0)
            return failed_result(call, exc)
        return self._only_one(results)

    def _only_one(self, results: object) -> ToolResult:
        if isinstance(results, (list, tuple)) and len(results) == 1:
            result: object = results[0]
            if isinstance(result, ToolResult):
                return result
            got = f"a {type(result).__name__}"
        elif isinstance(results, (list, tuple)):
            got = f"{len(results)} results"
        else:
            got = f"a {type(results).__name__}"
        msg = (
            f"{type(self._runner).__name__}.run_calls() must return a list of one "
            f"ToolResult for each call; for 1 call it returned {got}"
        )
        raise ToolProcessorError(msg, ErrorCode.TOOL_RESULT_ERROR)

    def _shown(self, call: ToolCall) -> dict[str, Any]:
        if self._redact_arguments:
            return dict.fromkeys(call.arguments, "[redacted]")
        return {key: thaw(value) for key, value in call.arguments.items()}


def _tool_record(record: Recorded, runner: ToolRunner) -> ToolRecord:
    from executionkit.patterns._tool_record import ToolRecord  # only with a journal

    def unknown(_call: ToolCall) -> bool:
        return False

    return ToolRecord(record, getattr(runner, "is_repeatable", unknown))


def _tell_refusal(call: ToolCall, result: ToolResult, offered: Collection[str]) -> None:
    if not nobody_watches():
        refused_span(call, result, known=call.name in offered)


def _call_at(work: Round, index: int) -> ToolCall:
    call = work.calls[index]
    assert isinstance(call, ToolCall)  # noqa: S101 - problems are answered by `_admit`
    return call


def _request(call: ToolCall) -> ApprovalRequest:
    arguments = {key: thaw(value) for key, value in call.arguments.items()}
    facts = {"tool_call_id": call.id, "arguments": arguments}
    return ApprovalRequest.create("tool_call", call.name, facts)
