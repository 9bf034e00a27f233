"""The layer that asks the guards."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from executionkit._frozen import thaw
from executionkit._redact import redact, redact_value
from executionkit.errors import ToolBlockedError
from executionkit.tools._guard_pass import refund_all
from executionkit.tools.guards import GuardChain
from executionkit.tools.middleware._base import Layer

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._guard_pass import Pass
    from executionkit.tools.guards import GuardResult
    from executionkit.tools.middleware._base import Next, ToolRequest

__all__ = ("GuardLayer",)

_STATE = "guards"


class GuardLayer(Layer):
    """Runs a chain of guards before and after a call.

    `enter` asks the guards before the call, `finish` those after it. `leave`, told of
    the failure, gives back what was counted for a call that was never started, and
    reports the failure to guards that want to know (`check_error`).

    Args:
        guards: A chain, or guards to make one of.
    """

    __slots__ = ("_hooks", "chain")

    name = "guards"

    def __init__(self, guards: GuardChain | Iterable[Any]) -> None:
        self.chain: GuardChain = (
            guards if isinstance(guards, GuardChain) else GuardChain(guards)
        )
        """The guards."""
        steps = {id(step.guard): step for step in self.chain.before + self.chain.after}
        self._hooks: tuple[tuple[str, Callable[..., object]], ...] = tuple(
            (step.name, step.check_error)
            for step in steps.values()
            if step.check_error is not None
        )

    def enter(self, request: ToolRequest, /) -> Coroutine[Any, Any, None] | None:
        """Ask the guards before the call.

        Raises:
            ToolBlockedError: When one of them says no. It is never retried and opens
                no breaker.
        """
        found = self.chain.begin(request.call, request.record)
        if found is None:
            return None
        if found.waits is not None:
            return self._enter_later(request, found)
        self._admit(request, found)
        return None

    async def _enter_later(self, request: ToolRequest, found: Pass) -> None:
        await found.finish()
        self._admit(request, found)

    def _admit(self, request: ToolRequest, found: Pass) -> None:
        _settle(request, found)
        if found.repaired:
            request.call = found.call
            request.arguments = None  # to be validated anew
        if found.unenforced:
            request.state = {**(request.state or {}), _STATE: tuple(found.unenforced)}

    def finish(self, request: ToolRequest, value: Any, /) -> Any:
        """Ask the guards after the call.

        Returns:
            The value to hand out; a coroutine of it when a guard has to wait.

        Raises:
            ToolBlockedError: When one of them says no. The tool has run.
        """
        found = self.chain.begin_output(request.call, request.record, value)
        if found is None:
            return value
        if found.waits is not None:
            return self._finish_later(request, found)
        _settle(request, found)
        return found.value

    async def _finish_later(self, request: ToolRequest, found: Pass) -> Any:
        await found.finish()
        _settle(request, found)
        return found.value

    def leave(self, request: ToolRequest, exc: BaseException | None, /) -> None:
        """The call has ended: with `exc`, or well when that is None."""
        if exc is None:
            return
        failed: list[str] = []
        if not request.attempts and not request.started and not request.cached:
            unenforced = (request.state or {}).get(_STATE, ())
            failed = refund_all(
                self.chain.before, unenforced, request.call, request.record
            )
        for name, check_error in self._hooks if isinstance(exc, Exception) else ():
            try:
                check_error(request.call, request.record, exc)
            except Exception as broken:  # noqa: BLE001 - it must not replace `exc`
                kind = type(broken).__name__
                failed.append(f"{name}: `check_error` failed with {kind}")
        for text in failed:
            request.warn(text)

    async def __call__(self, request: ToolRequest, nxt: Next, /) -> Any:
        """The same as a `Middleware`."""
        waiting = self.enter(request)
        if waiting is not None:
            await waiting
        try:
            value = await nxt(request)
        except BaseException as exc:
            self.leave(request, exc)
            raise
        found = self.chain.begin_output(request.call, request.record, value)
        if found is not None:
            await found.finish()
            _settle(request, found)
            value = found.value
        self.leave(request, None)
        return value

    async def peek(
        self, call: ToolCall, record: Any, /
    ) -> tuple[tuple[str, GuardResult], ...]:
        """(name, verdict) of every guard before the call, for dry runs.

        Nothing is counted; a block stops nothing; repairs feed the guards behind.
        """
        return await self.chain.peek(call, record)


def _settle(request: ToolRequest, found: Pass) -> None:
    for text in found.warnings:
        request.warn(redact(text))
    if found.blocked is None:
        return
    step, result = found.blocked
    raise ToolBlockedError(
        request.full_name,
        step.name,
        redact(result.reason) or "no reason given",
        "output" if found.output else "call",
        redact_value(thaw(result.details)) if result.details else None,
    )
