"""Message Batches in the service's own terms, over any three calls."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from executionkit._batches.client import known_id
from executionkit._batches.reading import (
    answered,
    malformed,
    number,
    refused,
    seconds,
    word,
)
from executionkit._batches.values import (
    BatchCounts,
    BatchItem,
    BatchItemStatus,
    BatchLimits,
    BatchLine,
    BatchRequest,
    BatchState,
    BatchStatus,
)
from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit._wire.anthropic_reply import parse_message
from executionkit._wire.anthropic_request import AnswerTool, messages_body
from executionkit._wire.common import encode_body
from executionkit._wire.failures import failure_in, refuse
from executionkit.errors import ProviderError

__all__ = ("MessageBatches", "results_url")

_LIMITS: Final = BatchLimits(
    max_requests=100_000,
    max_bytes=256 * 1024 * 1024,
    max_id_chars=64,
    id_characters="[A-Za-z0-9_-]",
)
_STATUSES: Final = {
    "in_progress": BatchStatus.IN_PROGRESS,
    "canceling": BatchStatus.CANCELING,
    "ended": BatchStatus.ENDED,
}
_PARAMS: Final = frozenset({"model", "temperature", "max_tokens", "tools"})


class MessageBatches:
    """Message Batches over three calls that give and take the service's own objects."""

    @property
    def known_secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in errors and traces."""
        return ()

    @property
    def limits(self) -> BatchLimits:
        """What is refused before anything is uploaded."""
        return _LIMITS

    @property
    def finds_by_key(self) -> bool:
        """False: the service keeps no name of ours with a batch."""
        return False

    async def create_batch(
        self, requests: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Start a batch of `{"custom_id", "params"}` objects; the service's object."""
        raise NotImplementedError

    async def get_batch(self, batch_id: str) -> dict[str, Any]:
        """The service's object of a batch."""
        raise NotImplementedError

    async def fetch_results(self, url: str) -> list[dict[str, Any]]:
        """All lines of the results."""
        raise NotImplementedError

    async def create(self, lines: Sequence[bytes], *, key: str) -> BatchState:  # noqa: ARG002 - the service keeps no key
        """Start a batch of encoded requests."""
        return self._state(await self.create_batch([json.loads(one) for one in lines]))

    async def retrieve(self, batch_id: str) -> BatchState:
        """The batch as it is now."""
        return self._state(await self.get_batch(batch_id))

    async def results(
        self, state: BatchState, requests: Mapping[str, BatchRequest]
    ) -> AsyncGenerator[BatchLine]:
        """The results of a batch that has ended, in any order."""
        for entry in await self.fetch_results(results_url(state)):
            yield self._item(entry, requests)

    def encode(self, request: BatchRequest) -> bytes:
        """The request as one line of JSON."""
        body, _ = self._body(request)
        return encode_body({"custom_id": request.custom_id, "params": body})

    def _model_of(self, request: BatchRequest) -> str:
        return str(request.params["model"])

    def _body(self, request: BatchRequest) -> tuple[dict[str, Any], AnswerTool | None]:
        given = request.params
        return messages_body(
            self._model_of(request),
            request.messages,
            temperature=given.get("temperature"),
            max_tokens=given.get("max_tokens", DEFAULT_MAX_TOKENS),
            tools=given.get("tools"),
            options={key: given[key] for key in given if key not in _PARAMS},
        )

    def _state(self, found: Mapping[str, Any]) -> BatchState:
        batch_id, said = known_id(found), word(found.get("processing_status"))
        if said not in _STATUSES:
            refuse(f"the answer has an unknown `processing_status` {said!r:.80}")
        told = found.get("request_counts")
        counts = told if isinstance(told, Mapping) else {}
        kept = {
            name: number(counts.get(name))
            for name in ("processing", "succeeded", "errored", "canceled", "expired")
        }
        return BatchState(
            batch_id,
            _STATUSES[said],
            BatchCounts(total=sum(kept.values()), **kept),
            said=said,
            created_at=seconds(found.get("created_at")),
            expires_at=seconds(found.get("expires_at")),
            raw=found,
        )

    def _item(
        self, entry: Mapping[str, Any], asked: Mapping[str, BatchRequest]
    ) -> BatchItem:
        custom_id = word(entry.get("custom_id"))
        result = entry.get("result")
        if not isinstance(result, Mapping):
            return malformed(custom_id, "its line has no `result` object")
        kind = word(result.get("type"))
        if kind == "succeeded":
            request = asked.get(custom_id)
            # The tool that stands for a JSON answer is known from the request alone.
            needs = request is not None and "response_format" in request.params
            answer = self._body(request)[1] if request and needs else None
            return answered(
                custom_id,
                result.get("message"),
                lambda payload: parse_message(
                    payload, self.known_secrets, answer=answer
                ),
            )
        if kind == "errored":
            error = result.get("error")
            failure = failure_in(error) or failure_in({"error": error})
            return refused(
                custom_id, BatchItemStatus.ERRORED, failure, self.known_secrets
            )
        if kind in {"canceled", "expired"}:
            return refused(custom_id, BatchItemStatus(kind))
        return malformed(custom_id, f"its result has the unknown type {kind!r:.80}")


def results_url(state: BatchState) -> str:
    """Where the results of a batch are.

    Raises:
        ProviderError: When it does not say.
    """
    url = word(state.raw.get("results_url"))
    if url:
        return url
    msg = f"batch `{state.id}` ended without a results_url"
    error = ProviderError(msg)
    error.retries_exhausted = True  # the same object says the same again
    raise error
