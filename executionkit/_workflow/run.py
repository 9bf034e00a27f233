"""Running steps: each one starts when what it needs is there."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit._clock import get_clock
from executionkit._workflow.course import PENDING, Course
from executionkit._workflow.graph import ancestors_of, queue_of
from executionkit._workflow.shared import is_tolerated
from executionkit.errors import ApprovalPendingError
from executionkit.patterns._failures import describe
from executionkit.patterns.base import first_of_group, spending
from executionkit.types import thaw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from executionkit._workflow.shared import Shared
    from executionkit._workflow.values import Node

__all__ = ("Save", "StepsRun")

Save: TypeAlias = "Callable[[Mapping[str, Any]], Awaitable[None] | None]"
"""Called with the outputs of all finished steps; sync or async."""

_GRACE: Final = 1.0
_log = logging.getLogger("executionkit")


class StepsRun:
    """One run of a graph of steps.

    Args:
        nodes: The steps; their graph has been checked.
        shared: What the steps share.
        context: The initial context.
        done: Outputs of steps that were finished in an earlier run.
        cancel_at_work: Whether steps at work are cancelled when one has failed.
        save: Called each time a step is done, before what waits for it starts.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        shared: Shared,
        *,
        context: Mapping[str, Any],
        done: Mapping[str, Any],
        cancel_at_work: bool,
        save: Save | None,
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._shared = shared
        self._initial = context
        self._done: dict[str, Any] = dict(done)
        self._cancel_at_work = cancel_at_work
        self._save_fn = save
        self._saved = len(done)
        self._queue = queue_of(nodes)
        self._skipped: set[str] = set()
        self._failures: dict[str, BaseException] = {}
        self._tolerated: dict[str, BaseException] = {}
        self._parked: dict[str, ApprovalPendingError] = {}
        self._broken: BaseException | None = None
        self._live: dict[asyncio.Task[Any], tuple[Node, Course]] = {}
        self._called_off: set[asyncio.Task[Any]] = set()
        self._ended: deque[asyncio.Task[Any]] = deque()
        self._waker: asyncio.Future[None] | None = None

    @property
    def outputs(self) -> dict[str, Any]:
        """The outputs so far, in the order in which the steps were given."""
        return {name: self._done[name] for name in self._nodes if name in self._done}

    @property
    def skipped(self) -> tuple[str, ...]:
        """The steps that were left out so far, in the order given."""
        return tuple(name for name in self._nodes if name in self._skipped)

    @property
    def failures(self) -> dict[str, str]:
        """What became of steps that were allowed to fail, and did."""
        return {
            name: describe(self._tolerated[name])
            for name in self._nodes
            if name in self._tolerated
        }

    def facts(self) -> dict[str, Any]:
        """What the errors of the run carry."""
        all_failed = self._failures.keys() | self._tolerated.keys()
        failed = tuple(name for name in self._nodes if name in all_failed)
        facts: dict[str, Any] = {
            "outputs": self.outputs,
            "skipped": self.skipped,
            "failed": failed,
            "not_run": tuple(
                name
                for name in self._nodes
                if name not in self._done
                and name not in self._skipped
                and name not in all_failed
            ),
        }
        if self._parked:
            facts["waiting"] = tuple(n for n in self._nodes if n in self._parked)
        if self._failures:
            facts["step"] = next(iter(self._failures))
        return facts

    async def run(self, more_facts: Callable[[], dict[str, Any]]) -> None:
        """Run all steps; returns when each of them has an output or was left out.

        Whatever way it ends, no step is running any more.

        Args:
            more_facts: For the errors of the run, next to `facts`.
        """

        def metadata() -> dict[str, Any]:
            return {**self.facts(), **more_facts()}

        shared = self._shared
        name = shared.kind.removesuffix("_step")
        async with spending(
            shared.tracker, metadata=metadata, pattern=name, trace=shared.trace
        ):
            try:
                await self._dispatch()
                while self._live:
                    await self._take(await self._next())
            except BaseException:
                await self._close()
                raise
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._broken is not None:
            raise self._broken
        failures = list(self._failures.values())
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise first_of_group(BaseExceptionGroup("steps failed", failures))
        if self._parked:
            errors = list(self._parked.values())
            raise errors[0] if len(errors) == 1 else _all_pending(errors)

    async def _dispatch(self) -> None:
        """Start all that can start now."""
        while (
            not self._shared.is_closed
            and (call := self._queue.next_ready()) is not None
        ):
            node = self._nodes[call.call_id]
            if node.name in self._done:  # in an earlier run
                self._queue.finish(node.name, ok=True)
            elif node.on_skipped == "skip" and not self._has_all(node):
                await self._leave_out(node, "dependency")
            else:
                self._start(node)

    def _has_all(self, node: Node) -> bool:
        return all(name in self._done for name in node.needs)

    async def _leave_out(self, node: Node, reason: str) -> None:
        self._skipped.add(node.name)
        self._queue.finish(node.name, ok=True)
        await self._shared.tell("skipped", node.name, reason=reason)

    def _start(self, node: Node) -> None:
        def context() -> dict[str, Any]:
            seen = thaw(dict(self._initial))
            for other in ancestors_of(node, self._nodes):
                if other in self._done:
                    seen[other] = thaw(self._done[other])
            return seen  # type: ignore[no-any-return]

        course = Course(node, self._shared, context)
        name = self._shared.step_id(node.name)
        task = asyncio.get_running_loop().create_task(course.run(), name=name)
        self._live[task] = (node, course)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._ended.append(task)
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    async def _next(self) -> asyncio.Task[Any]:
        while not self._ended:
            self._waker = asyncio.get_running_loop().create_future()
            try:
                await self._waker
            finally:
                self._waker = None
        return self._ended.popleft()

    async def _take(self, task: asyncio.Task[Any]) -> None:
        """Book how a step has ended, and start what waited for it."""
        name = self._live[task][0].name
        if self._book(task):
            await self._save()
        if self._shared.is_closed:
            self._stop()
            return
        if name in self._parked:
            return  # what needs it waits too
        self._queue.finish(name, ok=True)
        await self._dispatch()

    def _book(self, task: asyncio.Task[Any]) -> bool:
        """Write down how a step has ended; True when there is a new output."""
        node, course = self._live.pop(task)
        error = None if task.cancelled() else task.exception()
        if course.output is not PENDING:  # whatever came after it
            self._done[node.name] = course.output
            return True
        if isinstance(error, ApprovalPendingError):
            self._parked[node.name] = error
            return False
        failures = self._failures
        if error is not None:
            if is_tolerated(node, error):
                failures = self._tolerated
            failures[node.name] = error
        elif not task.cancelled():
            self._skipped.add(node.name)
        elif course.last_failure is not None:  # called off between two attempts
            if is_tolerated(node, course.last_failure):
                failures = self._tolerated
            failures[node.name] = course.last_failure
        return False

    def _stop(self) -> None:
        """Begin nothing more; what is at work ends, or is cancelled if so asked."""
        for task, (_, course) in self._live.items():
            if task not in self._called_off and (
                self._cancel_at_work or not course.at_work
            ):
                self._called_off.add(task)
                task.cancel()

    async def _save(self) -> None:
        if self._save_fn is None or self._broken is not None:
            return
        try:
            outcome = self._save_fn(self.outputs)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception as exc:  # noqa: BLE001 - raised when no step runs any more
            self._broken = exc
            self._shared.is_closed = True
        else:
            self._saved = len(self._done)

    async def _close(self) -> None:
        """Cancel and await all steps; keep what was finished all the same.

        A cancellation that comes meanwhile is passed on, and raised at the end.
        """
        stop: asyncio.CancelledError | None = None
        for task in self._live:
            task.cancel()
        while waiting := [task for task in self._live if not task.done()]:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as exc:
                stop = exc
                for task in waiting:
                    task.cancel()
        for task in list(self._live):
            self._book(task)
        if len(self._done) > self._saved and stop is None:
            # The callback may be what hangs: it cannot hold up the end for ever.
            with suppress(TimeoutError):
                async with get_clock().timeout(_GRACE):
                    await self._save()
            if self._broken is not None:
                _log.warning("the last checkpoint failed: %s", type(self._broken))
        if stop is not None:
            raise stop


def _all_pending(errors: Sequence[ApprovalPendingError]) -> ApprovalPendingError:
    """One error for all that waits; its cost is added by whoever counts it."""
    requests = [request for error in errors for request in error.requests]
    text = "; ".join(error.message for error in errors)
    return ApprovalPendingError(text, requests=requests)
