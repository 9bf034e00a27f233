"""One run of a batch from its requests to its results, with a journal or without."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executionkit._batches.asking import Patience
from executionkit._batches.collecting import check_not_failed, collect
from executionkit._batches.submitting import Job, encoded, lookup, named, submit
from executionkit._batches.values import (
    BatchClient,
    BatchCounts,
    BatchItem,
    BatchItemStatus,
    BatchResult,
    BatchState,
    BatchStatus,
)
from executionkit._batches.waiting import BatchCallback, handing_back, tell, wait
from executionkit._clock import get_clock
from executionkit._ids import new_id
from executionkit.cost import CostTracker
from executionkit.errors import ExecutionKitError, InDoubtError
from executionkit.observability import watched

if TYPE_CHECKING:
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback

__all__ = ("Run",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run was called with; see `run_batch`."""

    client: BatchClient
    job: Job
    patience: Patience
    reading: Patience
    """For the results: the end came in time, so they have time of their own."""

    on_submitted: BatchCallback | None
    on_progress: BatchCallback | None
    cancel_on_exit: bool

    async def go(
        self,
        batch_id: str | None,
        journal: Journal | None,
        trace: TraceCallback | None,
    ) -> BatchResult:
        """The result; who watches is told of the run."""
        tracker = CostTracker()
        told = watched("batch", trace, tracker)
        if told is None:
            return await self._result(batch_id, journal)
        async with told:
            try:
                result = await self._result(batch_id, journal)
            except ExecutionKitError as exc:
                tracker.add_usage(exc.cost)
                raise
            tracker.add_usage(result.cost)
            return result

    async def _result(
        self, batch_id: str | None, journal: Journal | None
    ) -> BatchResult:
        if journal is None:
            return await self.plain(batch_id)
        return await self.journaled(journal, batch_id)

    async def plain(self, batch_id: str | None) -> BatchResult:
        """Without a journal."""
        state = None
        if batch_id is None:
            state = await self._submit(await encoded(self.client, self.job), new_id())
            batch_id = state.id
        return await self._end(batch_id, state)

    async def journaled(self, journal: Journal, batch_id: str | None) -> BatchResult:
        """With a journal: what an earlier run has done is not done again."""
        from executionkit.journal import Effect, Outcome

        place = journal.enter("batch")
        made: list[BatchState] = []
        if batch_id is None:
            batch_id = await self._create(place, made)
        known = batch_id

        async def end() -> Outcome:
            result = await self._end(known, made[0] if made else None)
            return Outcome(result, result.cost)

        results = Effect(
            place="results",
            kind="batch",
            asked=[known, list(self.job.ids)],
            words=f"results of {known}",
            is_repeatable=True,
            keeps=_never,
            pack=_packed,
            unpack=_unpacked,
        )
        found: BatchResult = (await place.perform(results, end)).value
        return found

    async def _create(self, place: Journal, made: list[BatchState]) -> str:
        """The id of the batch that this run, or an earlier one, has made."""
        from executionkit.journal import NOT_DONE, Effect, Outcome

        client, key = self.client, place.idempotency_key
        effect_id = f"{place.path}/create"
        lines = await encoded(client, self.job)

        async def begin() -> float:
            return get_clock().wall()

        started = Effect(
            place="begin", kind="timer", asked=[], words="begin", is_repeatable=True
        )
        since: float = (await place.perform(started, begin)).value

        async def create() -> str:
            try:
                made.append(await self._submit(lines, key))
            except ExecutionKitError as exc:
                if not exc.metadata.get("in_doubt"):
                    raise
                # Only this error leaves the effect in doubt, for the next run too.
                about = exc.metadata.get("candidates_created_at", {})
                raise _doubt(effect_id, about) from exc
            return made[0].id

        async def find() -> Any:
            found = await lookup(client, len(lines), key=key, since=since)
            if not found:
                return NOT_DONE
            if client.finds_by_key:
                return Outcome(found[0].id)
            raise _doubt(effect_id, {state.id: state.created_at for state in found})

        effect = Effect(
            place="create",
            kind="batch",
            asked=[type(client).__name__, len(lines), _digest(lines)],
            words=f"batch of {len(lines)} requests",
            find=find,
            keeps=_never,
        )
        batch_id: str = (await place.perform(effect, create)).value
        return batch_id

    async def _submit(self, lines: list[bytes], key: str) -> BatchState:
        return await submit(self.client, lines, key=key, patience=self.patience)

    async def _end(self, batch_id: str, made: BatchState | None) -> BatchResult:
        client, job = self.client, self.job
        async with handing_back(client, batch_id, cancel_on_exit=self.cancel_on_exit):
            if made is not None:
                await tell(self.on_submitted, made)
            state = await wait(client, batch_id, self.patience, self.on_progress)
        # Over: there is nothing left to cancel.
        async with handing_back(client, batch_id, cancel_on_exit=False):
            check_not_failed(state)
            return await collect(client, state, job.ids, job.by_id, self.reading)


def _never(_failure: Exception) -> bool:
    return False


def _digest(lines: list[bytes]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(b"%d\n" % len(line))
        found.update(line)
    return found.hexdigest()


def _doubt(effect_id: str, about: Mapping[str, float | None]) -> InDoubtError:
    names = named(about)
    known = f"the service has {names}, which may be it" if names else "nobody can tell"
    msg = (
        f"an earlier attempt at {effect_id} broke off, and may have made a batch: "
        f"{known}; look, then `Journal.resolve({effect_id!r}, batch_id)`, or "
        f"`Journal.retry({effect_id!r})` when there is none, and run again"
    )
    error = InDoubtError(msg, [effect_id])
    error.metadata["candidates"] = tuple(about)
    error.metadata["candidates_created_at"] = dict(about)
    return error


def _packed(result: BatchResult) -> dict[str, Any]:
    state = result.state
    counts = None if state is None else state.counts
    return {
        "batch_id": result.batch_id,
        "items": [
            [
                item.custom_id,
                str(item.status),
                item.response,
                item.cost,
                item.error,
                item.error_type,
            ]
            for item in result.items
        ],
        "cost": result.cost,
        "problems": list(result.problems),
        "status": None if state is None else str(state.status),
        "said": "" if state is None else state.said,
        "counts": None
        if counts is None
        else {name: getattr(counts, name) for name in _COUNTS},
    }


_COUNTS = ("total", "processing", "succeeded", "errored", "canceled", "expired")


def _unpacked(kept: Mapping[str, Any]) -> BatchResult:
    batch_id = kept["batch_id"]
    state = None
    if kept["status"] is not None:
        counts = BatchCounts(**kept["counts"])
        state = BatchState(
            batch_id, BatchStatus(kept["status"]), counts, said=kept["said"]
        )
    items = [
        BatchItem(
            name, BatchItemStatus(word), response, cost, error=error, error_type=kind
        )
        for name, word, response, cost, error, kind in kept["items"]
    ]
    return BatchResult(
        batch_id,
        tuple(items),
        kept["cost"],
        problems=tuple(kept["problems"]),
        state=state,
    )
