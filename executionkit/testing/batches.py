"""A batch service in memory, for tests and examples."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from executionkit._clock import get_clock
from executionkit._llm import LLMResponse
from executionkit._usage import response_usage
from executionkit._wire.common import encode_body
from executionkit.batches import (
    BatchCounts,
    BatchItem,
    BatchItemStatus,
    BatchLimits,
    BatchRequest,
    BatchState,
    BatchStatus,
)
from executionkit.errors import ExecutionKitError, PermanentError
from executionkit.types import TokenUsage

__all__ = ("BatchAnswer", "ScriptedBatchClient")

BatchAnswer: TypeAlias = "str | LLMResponse | ExecutionKitError | BatchItemStatus"
"""A text, a response, the error of a request, or what became of it instead."""


@dataclass(slots=True)
class _Batch:
    id: str
    key: str
    requests: list[dict[str, Any]]
    created_at: float
    looks: int = 0
    is_canceled: bool = False
    items: list[BatchItem] = field(default_factory=list)


class ScriptedBatchClient:
    """A `BatchClient` whose service is a function; nothing leaves the process.

    Args:
        answer: Called once for each request, with `custom_id`, `messages` and the
            request's params.
        looks: How often a batch is looked at until it is over.
    """

    def __init__(
        self, answer: Callable[[dict[str, Any]], BatchAnswer], *, looks: int = 2
    ) -> None:
        self._answer = answer
        self._looks = looks
        self._batches: dict[str, _Batch] = {}
        self.created: int = 0
        """Batches that were made."""

    @property
    def limits(self) -> BatchLimits:
        """As narrow as those of any service."""
        return BatchLimits(
            max_requests=50_000,
            max_bytes=200 * 1024 * 1024,
            max_id_chars=64,
            id_characters="[A-Za-z0-9_-]",
        )

    @property
    def finds_by_key(self) -> bool:
        """True."""
        return True

    def encode(self, request: BatchRequest) -> bytes:
        """The request as one line of JSON."""
        about = {"custom_id": request.custom_id, "messages": request.messages}
        return encode_body({**about, **request.params})

    async def create(self, lines: Sequence[bytes], *, key: str) -> BatchState:
        """Start a batch."""
        self.created += 1
        requests = [json.loads(line) for line in lines]
        made = _Batch(f"batch-{self.created}", key, requests, get_clock().wall())
        self._batches[made.id] = made
        return self._state(made)

    async def retrieve(self, batch_id: str) -> BatchState:
        """The batch, after one look more."""
        batch = self._known(batch_id)
        batch.looks += 1
        if batch.looks == self._looks:
            batch.items = [self._item(request) for request in batch.requests]
        return self._state(batch)

    async def cancel(self, batch_id: str) -> BatchState:
        """End the batch at the next look; its requests are answered all the same."""
        batch = self._known(batch_id)
        batch.is_canceled = True
        batch.looks = max(batch.looks, self._looks - 1)
        return self._state(batch)

    async def find(
        self, *, key: str, requests: int, since: float
    ) -> tuple[BatchState, ...]:
        """The batches of this key."""
        found = [
            batch
            for batch in self._batches.values()
            if batch.key == key
            and len(batch.requests) == requests
            and batch.created_at >= since
        ]
        return tuple(self._state(batch) for batch in found)

    async def results(
        self,
        state: BatchState,
        requests: Mapping[str, BatchRequest],  # noqa: ARG002 - the protocol's
    ) -> AsyncGenerator[BatchItem]:
        """The items, the last one first: no order is promised."""
        for item in reversed(self._known(state.id).items):
            if item.status is not BatchItemStatus.MISSING:
                yield item

    async def aclose(self) -> None:
        """Nothing to close."""

    def _known(self, batch_id: str) -> _Batch:
        batch = self._batches.get(batch_id)
        if batch is None:
            msg = f"there is no batch `{batch_id}`"
            raise PermanentError(msg, metadata={"status": 404})
        return batch

    def _state(self, batch: _Batch) -> BatchState:
        is_over = batch.looks >= self._looks
        status = BatchStatus.IN_PROGRESS
        if is_over or batch.is_canceled:
            status = BatchStatus.ENDED if is_over else BatchStatus.CANCELING
        kinds = [str(item.status) for item in batch.items]
        names = ("succeeded", "errored", "canceled", "expired")
        counts = {name: kinds.count(name) for name in names}
        total = len(batch.requests)
        return BatchState(
            batch.id,
            status,
            BatchCounts(total=total, processing=0 if is_over else total, **counts),
            said=str(status),
            created_at=batch.created_at,
        )

    def _item(self, request: dict[str, Any]) -> BatchItem:
        name, answer = request["custom_id"], self._answer(request)
        if isinstance(answer, BatchItemStatus):
            return BatchItem(name, answer, error=f"the request is {answer}")
        if isinstance(answer, ExecutionKitError):
            kind = type(answer).__name__
            status = BatchItemStatus.ERRORED
            return BatchItem(name, status, error=str(answer), error_type=kind)
        response = LLMResponse(answer) if isinstance(answer, str) else answer
        cost = response_usage(response) + TokenUsage(llm_calls=1)
        return BatchItem(name, BatchItemStatus.SUCCEEDED, response, cost)
