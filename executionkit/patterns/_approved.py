"""What an approval makes of a call: another one, or one that waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from executionkit.approval import ApprovalDecision, ApprovalRequest
from executionkit.calls import ToolCall, ToolResult
from executionkit.errors import ApprovalPendingError
from executionkit.patterns._react_round import observation
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.patterns._react_round import Round

__all__ = ("changed_call", "pending_error", "pending_in", "tell_of_change")

_MOST_NAMED: Final = 5
_MARK: Final = "approval: "


def changed_call(call: ToolCall, decision: ApprovalDecision) -> ToolCall:
    """The call as it was approved; `call` itself when nothing was changed."""
    arguments: Any = getattr(decision, "arguments", None)
    if arguments is None or arguments == call.arguments:
        return call
    # Without its idempotency key: that stands for the arguments that it came with.
    return ToolCall(call.id, call.name, arguments, namespace=call.namespace)


def pending_error(requests: Sequence[ApprovalRequest]) -> ApprovalPendingError:
    """One error for all that waits."""
    named = [f"{r.action} '{r.subject}' (id {r.id})" for r in requests[:_MOST_NAMED]]
    more = len(requests) - len(named)
    text = ", ".join(named) + (f" and {more} more" if more else "")
    return ApprovalPendingError(
        f"Waiting for an approval: {text}; answer, then run again", requests=requests
    )


def pending_in(result: ToolResult, call: ToolCall) -> ApprovalRequest | None:
    """The question that a runner's own approval has parked, if it has."""
    if result.error_info is None:
        return None
    approval_id = result.error_info.details.get("approval_id")
    if not isinstance(approval_id, str):
        return None
    facts = {"tool_call_id": call.id, "arguments": thaw(call.arguments)}
    return ApprovalRequest("tool_call", call.name, facts, id=approval_id)


def tell_of_change(work: Round, index: int) -> None:
    """Tell the model, and whoever reads the result, when other arguments were run."""
    result = work.results[index]
    changed = work.changed.get(index)
    if result is None:
        return
    if changed is not None:
        shown = json.dumps(thaw(changed.arguments), ensure_ascii=False, default=str)
        note = f"the arguments were changed to {shown}"
        warned = replace(result, warnings=(*result.warnings, f"{_MARK}{note}"))
        work.results[index] = warned
    else:
        notes = [w for w in result.warnings if w.startswith(_MARK)]
        if not notes:
            return
        note = "; ".join(text.removeprefix(_MARK) for text in notes)
    text = work.rendered.get(index)
    text = observation(result) if text is None else text
    work.rendered[index] = f"[Approved, but {note}]\n{text}"
