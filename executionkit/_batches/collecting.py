"""Results: mapped by id, each one once, whatever order they come in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from executionkit._batches.asking import Patience
from executionkit._batches.values import (
    BatchClient,
    BatchItem,
    BatchItemStatus,
    BatchRequest,
    BatchResult,
    BatchState,
    BatchStatus,
)
from executionkit.errors import ExecutionKitError, PermanentError
from executionkit.types import TokenUsage

__all__ = ("check_not_failed", "collect")

_MAX_PROBLEMS: Final = 100
_ABSENT: Final = "the results do not mention it"
_UNREAD: Final = "the results could not be read to their end"


class _Found:
    """What has been read so far."""

    def __init__(self, known: Mapping[str, BatchRequest] | None) -> None:
        self._known = known
        self._others = TokenUsage()
        self.items: dict[str, BatchItem] = {}
        self.problems: list[str] = []

    def add(self, line: BatchItem | str) -> None:
        if isinstance(line, str):
            self.problems.append(line)
            return
        name = line.custom_id
        if not name:
            self._other(line, "a result has no `custom_id`")
        elif self._known is not None and name not in self._known:
            self._other(line, f"a result is for {name!r:.100}, which nobody asked for")
        elif name not in self.items:
            self.items[name] = line
        else:
            self.problems.append(f"there is a duplicate result for {name!r:.100}")
            if line.ok and not self.items[name].ok:
                self.items[name] = line

    def _other(self, line: BatchItem, problem: str) -> None:
        self.problems.append(problem)
        self._others += line.cost

    def result(
        self, state: BatchState, ids: Sequence[str] | None, absent: str = _ABSENT
    ) -> BatchResult:
        """The result, in the order of `ids`; None = as they came."""
        items = [
            self.items.get(name)
            or BatchItem(name, BatchItemStatus.MISSING, error=absent)
            for name in (self.items if ids is None else ids)
        ]
        return BatchResult(
            state.id,
            tuple(items),
            sum((item.cost for item in items), self._others),
            problems=tuple(_capped(self.problems)),
            state=state,
        )


def _capped(problems: list[str]) -> list[str]:
    more = len(problems) - _MAX_PROBLEMS
    if more <= 0:
        return problems
    return [*problems[:_MAX_PROBLEMS], f"and {more} more problems"]


async def collect(
    client: BatchClient,
    state: BatchState,
    ids: Sequence[str] | None,
    requests: Mapping[str, BatchRequest] | None,
    patience: Patience,
) -> BatchResult:
    """The results of a batch that is over; read again when they break off.

    Args:
        client: The service.
        state: The batch.
        ids: The order of the result. None = as the lines come.
        requests: The requests by their ids. None = they are not known.
        patience: How often it is tried.

    Raises:
        ExecutionKitError: When they cannot be read to their end; `metadata["result"]`
            and the cost have what could be.
    """
    best = _Found(requests)

    async def read() -> _Found:
        nonlocal best
        found = _Found(requests)
        lines = client.results(state, requests or {})
        try:
            async for line in lines:
                found.add(line)
        finally:
            if len(found.items) >= len(best.items):
                best = found
            await _close(lines)
        return found

    try:
        found = await patience.ask(read)
    except ExecutionKitError as exc:
        partial = best.result(state, ids, _UNREAD)
        exc.metadata |= {"batch_id": state.id, "result": partial}
        exc.cost += partial.cost
        raise
    return found.result(state, ids)


async def _close(lines: AsyncIterator[Any]) -> None:
    close = getattr(lines, "aclose", None)
    if close is not None:
        with suppress(RuntimeError):  # of a generator that is closing itself
            await close()


def check_not_failed(state: BatchState) -> None:
    """Refuse a batch that has no results.

    Raises:
        PermanentError: Saying what the service found wrong with it.
    """
    if state.status is BatchStatus.FAILED:
        why = "; ".join(state.problems[:20]) or "it gave no reason"
        msg = f"the service refused batch `{state.id}` as a whole: {why}"
        raise PermanentError(
            msg, metadata={"batch_id": state.id, "problems": state.problems}
        )
