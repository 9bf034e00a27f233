"""What would happen to a call, without running or counting anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executionkit._redact import redact
from executionkit.calls import ErrorInfo, ToolCall
from executionkit.context import execution_scope, get_current_context
from executionkit.errors import (
    BudgetExhaustedError,
    ErrorCode,
    ToolProcessorError,
    ToolRateLimitedError,
)
from executionkit.tools._arguments import checked_arguments
from executionkit.tools._guard_pass import repaired
from executionkit.tools._guard_values import GuardVerdict
from executionkit.tools.middleware.rate_limit import RateLimitLayer
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit.context import ExecutionContext
    from executionkit.tools._core import Core
    from executionkit.tools._path import ToolPath
    from executionkit.tools.parsing import ParsedCalls

__all__ = ("DryRun", "dry_run")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What would happen to one call."""

    call_id: str
    tool: str
    """The name as it was written; empty when it could not be read."""

    would_run: bool
    """Whether it would reach its tool (at once, or after `wait` seconds)."""

    problems: tuple[ErrorInfo, ...] = ()
    """Why it would not: unknown name, arguments, guards, circuit, budget."""

    warnings: tuple[str, ...] = ()
    """What guards would warn of, and what would be mended."""

    wait: float = 0.0
    """Seconds that it would wait for a permit at least."""

    queue: int = 0
    """Calls that wait for a slot of the same tool."""

    layers: tuple[str, ...] = ()
    """What it would pass, outermost first."""


async def dry_run(
    core: Core, parsed: ParsedCalls, context: ExecutionContext | None
) -> list[DryRun]:
    """What would happen to the calls of `parsed`, each for itself."""
    found: list[DryRun] = []
    with execution_scope(get_current_context() if context is None else context):
        for entry in parsed.entries:
            if isinstance(entry, ToolCall):
                found.append(await _look(core, entry))
            else:
                info = ErrorInfo.from_code(entry.code, entry.to_observation())
                found.append(
                    DryRun(
                        call_id=entry.call_id,
                        tool=entry.name,
                        would_run=False,
                        problems=(info,),
                    )
                )
    return found


async def _look(core: Core, call: ToolCall) -> DryRun:
    try:
        path = core.paths.find(call.name, call.namespace)
    except ToolProcessorError as exc:
        info = ErrorInfo.from_exception(exc)
        return DryRun(
            call_id=call.id, tool=call.name, would_run=False, problems=(info,)
        )
    problems: list[ErrorInfo] = []
    warnings: list[str] = []
    if core.guards is not None:
        call = await _ask_guards(core, path, call, problems, warnings)
    try:
        warnings += checked_arguments(path.record, call.arguments)[1]
    except ToolProcessorError as exc:
        problems.append(ErrorInfo.from_exception(exc))
    problems += _limits(path)
    limits = [x for x in path.parts.layers if isinstance(x, RateLimitLayer)]
    wait = max((layer.wait_time() for layer in limits), default=0.0)
    left = get_current_context()
    remaining = None if left is None else left.remaining_time
    if remaining is not None and wait > remaining:
        error = ToolRateLimitedError(path.record.full_name, wait)
        problems.append(ErrorInfo.from_exception(error))
    bulkhead = core.bulkheads.bulkhead
    queue = await bulkhead.get_queue_depth(path.record.name, path.record.namespace)
    return DryRun(
        call_id=call.id,
        tool=call.name,
        would_run=not problems,
        problems=tuple(problems),
        warnings=tuple(warnings),
        wait=wait,
        queue=queue,
        layers=path.layers,
    )


async def _ask_guards(
    core: Core,
    path: ToolPath,
    call: ToolCall,
    problems: list[ErrorInfo],
    warnings: list[str],
) -> ToolCall:
    """The call as the guards would let it through."""
    guards: Any = core.guards
    for name, verdict in await guards.peek(call, path.record):
        text = redact(f"{name}: {verdict.reason}")
        if verdict.verdict is GuardVerdict.BLOCK:
            problems.append(ErrorInfo.from_code(ErrorCode.TOOL_BLOCKED, text))
        elif verdict.reason and verdict.verdict is not GuardVerdict.ALLOW:
            warnings.append(text)
        if verdict.verdict is GuardVerdict.REPAIR:
            call = repaired(call, verdict)
    return call


def _limits(path: ToolPath) -> list[ErrorInfo]:
    found: list[ErrorInfo] = []
    for layer in path.parts.layers:
        refusal: Any = getattr(layer, "refusal", None)
        error = None if refusal is None else refusal()
        if error is not None:
            found.append(ErrorInfo.from_exception(error))
    context = get_current_context()
    if context is None:
        return found
    if context.is_expired:
        text = "The deadline of the request has passed"
        found.append(ErrorInfo.from_code(ErrorCode.DEADLINE_EXCEEDED, text))
    cost = path.record.tool.cost
    if context.budget is not None and cost > context.budget:
        msg = f"It costs {cost:g} units, and {context.budget:g} are left"
        found.append(ErrorInfo.from_exception(BudgetExhaustedError(msg)))
    return found
