"""What an executor asks while a plan runs: which call now, and what a failure means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executionkit.tools._scheduling.graph import build_graph, checked_calls, tails
from executionkit.tools._scheduling.lanes import Lanes
from executionkit.tools._scheduling.values import SchedulingConstraints

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from executionkit.tools._scheduling.values import ToolCallSpec

__all__ = ("ReadyQueue",)

_WAITING, _RUNNING, _DONE, _SKIPPED = range(4)
_STATES = ("not started", "running", "finished", "skipped")


class ReadyQueue:
    """The calls of a plan, handed out the moment their dependencies are done.

    There are no stages: `next_ready` gives a call as soon as all it needs is finished
    and its pool has room. First the higher `priority`, then the longer chain of
    estimates that waits behind it, then the earlier one in `calls`. A call that fits
    never waits behind a heavier one that does not. Not thread-safe; no clock, no loop.

    `next_ready` and `finish` cost O(log n) for each call that they move; `finish` also
    looks at each weight that occurs in the pool.

    Args:
        calls: All calls of the plan.
        pool_limits: Pool to slots; a pool that is not named is unlimited.
        skip: Ids that must not run (`ExecutionPlan.skip`). What needs them is skipped
            too, also with `continue_on_error`.
        default_est_ms: Milliseconds for calls without an estimate.
        continue_on_error: When True a failed call releases what needs it, as a
            finished one does. When False all that needs it is skipped.

    Raises:
        PlanError: When the calls cannot be brought into any order.
        TypeError: When something in `calls` is no `ToolCallSpec`.
        ValueError: When `skip` names an unknown call, or a limit is below 1.
    """

    __slots__ = (
        "_calls",
        "_graph",
        "_keep_on",
        "_lanes",
        "_left",
        "_order",
        "_rank",
        "_running",
        "_skipped",
        "_state",
        "_waiting",
    )

    def __init__(
        self,
        calls: Sequence[ToolCallSpec],
        pool_limits: Mapping[str, int] | None = None,
        *,
        skip: Iterable[str] = (),
        default_est_ms: int = 1000,
        continue_on_error: bool = False,
    ) -> None:
        limits = SchedulingConstraints(pool_limits=pool_limits or {}).pool_limits
        self._calls = checked_calls(calls)
        self._graph = graph = build_graph(self._calls, limits)
        metadata = [call.metadata for call in self._calls]
        tail = tails(
            graph, [default_est_ms if m.est_ms is None else m.est_ms for m in metadata]
        )
        order = sorted(range(len(tail)), key=tail.__getitem__, reverse=True)
        order.sort(key=lambda number: metadata[number].priority, reverse=True)
        self._order = order
        self._rank = [0] * len(order)
        for rank, number in enumerate(order):
            self._rank[number] = rank
        self._lanes = Lanes([metadata[number] for number in order], limits)
        self._waiting = graph.waiting.copy()
        self._state = bytearray(len(order))
        self._keep_on = continue_on_error
        self._left = len(order)
        self._running = 0
        self._skipped: list[str] = []
        self._leave_out(skip)
        for number, count in enumerate(self._waiting):
            if not count and not self._state[number]:
                self._lanes.add(self._rank[number])

    def _leave_out(self, skip: Iterable[str]) -> None:
        roots: list[int] = []
        for call_id in skip:
            number = self._graph.index.get(call_id)
            if number is None:
                msg = f"`skip` names {call_id!r}, which is no call of the plan"
                raise ValueError(msg)
            if not self._state[number]:
                self._state[number] = _SKIPPED
                roots.append(number)
        self._cascade(roots, roots.copy())

    @property
    def is_done(self) -> bool:
        """True when every call is finished or skipped."""
        return not self._left

    @property
    def has_ready(self) -> bool:
        """False = `next_ready` has nothing now. True = it has something, most likely."""
        return bool(self._lanes.offer)

    @property
    def running(self) -> int:
        """Calls that were handed out and are not finished."""
        return self._running

    @property
    def skipped(self) -> tuple[str, ...]:
        """The ids of all calls skipped so far, as planned or after a failure."""
        return tuple(self._skipped)

    def next_ready(self) -> ToolCallSpec | None:
        """The call to start now; it holds its slots until `finish`.

        None = nothing can start before a running call is finished; with `is_done`, ever.
        """
        rank = self._lanes.take()
        if rank < 0:
            return None
        number = self._order[rank]
        self._state[number] = _RUNNING
        self._running += 1
        return self._calls[number]

    def finish(self, call_id: str, *, ok: bool) -> tuple[str, ...]:
        """A call that was handed out is over, and its slots are free.

        Args:
            call_id: The call.
            ok: Whether it succeeded.

        Returns:
            The ids of the calls that will never run because this one failed (those that
            need it, directly or not), in the order of the plan; each is told once.

        Raises:
            ValueError: When the call is not running.
        """
        number = self._end(call_id, _DONE)
        if not ok and not self._keep_on:
            return self._cascade([number], [])
        waiting = self._waiting
        for child in self._graph.children[number]:
            waiting[child] -= 1
            if not waiting[child] and not self._state[child]:
                self._lanes.add(self._rank[child])
        return ()

    def drop(self, call_id: str) -> tuple[str, ...]:
        """A call that was handed out is not run after all, and its slots are free.

        It counts as one of `skip`: what needs it is skipped too, also with
        `continue_on_error`.

        Returns:
            The ids of the calls that will never run because of it, as `finish` does.

        Raises:
            ValueError: When the call is not running.
        """
        number = self._end(call_id, _SKIPPED)
        self._skipped.append(call_id)
        return self._cascade([number], [])

    def _end(self, call_id: str, state: int) -> int:
        number = self._graph.index.get(call_id)
        if number is None or self._state[number] != _RUNNING:
            found = "unknown" if number is None else _STATES[self._state[number]]
            msg = (
                f"call {call_id!r} cannot be finished: it is {found}; finish each call "
                "of `next_ready` once"
            )
            raise ValueError(msg)
        self._state[number] = state
        self._running -= 1
        self._left -= 1
        self._lanes.release(self._rank[number])
        return number

    def _cascade(self, todo: list[int], found: list[int]) -> tuple[str, ...]:
        # Whoever waits for one of `todo`, directly or not, has not started.
        while todo:
            for child in self._graph.children[todo.pop()]:
                if self._state[child] != _SKIPPED:
                    self._state[child] = _SKIPPED
                    todo.append(child)
                    found.append(child)
        found.sort()
        self._left -= len(found)
        ids = tuple([self._calls[number].call_id for number in found])
        self._skipped += ids
        return ids
