"""The rule that asks somebody before a tool runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from executionkit.approval import ApprovalRequest
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalPendingError,
    ApprovalTimeoutError,
    DeadlineExceededError,
    ToolValidationError,
)
from executionkit.tools._arguments import checked_arguments
from executionkit.tools._guard_values import Answer, BaseGuard, GuardResult
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.approval import ApprovalGate
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("ApprovalGuard",)

_PASS = GuardResult.allow()


class ApprovalGuard(BaseGuard):
    """Asks an `ApprovalGate` before a call; only a clear yes lets it through.

    Nobody is asked about a call whose arguments do not fit the tool. Arguments that
    the approver changed are checked by the guards behind this one and by the tool's
    schema, and are what runs. Put it behind guards that repair arguments, so that what
    is approved is what runs. A parked question blocks the call, with its
    `approval_id` in the details of the error; `react_loop` ends with an
    `ApprovalPendingError` then.

    Args:
        gate: Is asked, with the action `tool_call` and the tool's full name.
        tools: The tools to ask for, by full or bare name. None = all.

    Raises:
        TypeError: When `gate` is no ApprovalGate, or `tools` is a text.
    """

    name = "approval"

    def __init__(
        self, gate: ApprovalGate, *, tools: Collection[str] | None = None
    ) -> None:
        super().__init__()
        if not callable(getattr(gate, "request", None)):
            msg = f"`gate` must be an ApprovalGate, got {type(gate).__name__}"
            raise TypeError(msg)
        if isinstance(tools, str):
            msg = f"`tools` must be a list of tool names, got the text {tools!r}"
            raise TypeError(msg)
        self._gate = gate
        self._tools = None if tools is None else frozenset(tools)

    def _asks(self, record: ToolRecord) -> bool:
        return self._tools is None or not self._tools.isdisjoint(record.names)

    async def _ask(self, call: ToolCall, record: ToolRecord) -> GuardResult:
        try:
            arguments, notes = checked_arguments(record, call.arguments)
        except ToolValidationError:
            return _PASS  # it is refused behind the guards
        facts = {"tool_call_id": call.id, "arguments": arguments}
        request = ApprovalRequest.create("tool_call", record.full_name, facts)
        try:
            decision = await self._gate.request(request)
        except ApprovalPendingError as exc:
            details = {"approval_id": exc.approval_id}
            return GuardResult.block("it waits for an approval", details)
        except (
            ApprovalDeniedError,
            ApprovalTimeoutError,
            DeadlineExceededError,
        ) as exc:
            return GuardResult.block(str(exc))
        if decision.approved is not True:
            return GuardResult.block(decision.reason or "it was not approved")
        changed = decision.arguments
        if changed is not None and changed != request.arguments:
            note = f"the arguments were changed to {thaw(changed)}"
            return GuardResult.repair(note, arguments=changed)
        return GuardResult.repair(arguments=arguments) if notes else _PASS

    def check(self, call: ToolCall, record: ToolRecord, /) -> Answer:
        """Ask, when the tool is one to ask for."""
        return self._ask(call, record) if self._asks(record) else _PASS

    def peek(self, call: ToolCall, record: ToolRecord, /) -> GuardResult:  # noqa: ARG002 - the interface
        """Nobody is asked by a dry run."""
        if not self._asks(record):
            return _PASS
        return GuardResult.warn("somebody would be asked to approve it")
