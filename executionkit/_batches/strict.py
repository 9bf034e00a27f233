"""Batches of which every request must be answered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from executionkit._arguments import shown
from executionkit._batches.messages import MessageBatches
from executionkit._batches.values import (
    BatchClient,
    BatchItem,
    BatchItemStatus,
    BatchResult,
    BatchState,
)
from executionkit._llm import LLMResponse
from executionkit.engine.voting import VoteTally, tally_votes
from executionkit.errors import ConsensusFailedError, ProviderError

__all__ = ("adapted", "answers_of", "vote")

_SHOWN: Final = 20
_THREE: Final = ("create_batch", "get_batch", "fetch_results")


class _Adapter(MessageBatches):
    """An object that has only the three calls of Message Batches; sync or async."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def create_batch(
        self, requests: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        return dict(await _called(self._client.create_batch, requests))

    async def get_batch(self, batch_id: str) -> dict[str, Any]:
        return dict(await _called(self._client.get_batch, batch_id))

    async def fetch_results(self, url: str) -> list[dict[str, Any]]:
        return list(await _called(self._client.fetch_results, url))

    async def cancel(self, batch_id: str) -> BatchState:
        cancel = getattr(self._client, "cancel_batch", None)
        if cancel is None:
            msg = f"{type(self._client).__name__} cannot cancel batch `{batch_id}`"
            raise ProviderError(msg)
        return self._state(await _called(cancel, batch_id))

    async def find(
        self,
        *,
        key: str,  # noqa: ARG002 - nobody can be asked
        requests: int,  # noqa: ARG002
        since: float,  # noqa: ARG002
    ) -> tuple[BatchState, ...]:
        msg = f"{type(self._client).__name__} cannot look batches up"
        raise ProviderError(msg)

    async def aclose(self) -> None:
        close = getattr(self._client, "aclose", None)
        if close is not None:
            await _called(close)


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    outcome = function(*arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome


def adapted(client: object) -> BatchClient:
    """`client`, or what makes a `BatchClient` of one with the three calls.

    Raises:
        TypeError: When it is neither.
    """
    if isinstance(client, BatchClient):
        return client
    if all(callable(getattr(client, name, None)) for name in _THREE):
        return _Adapter(client)
    msg = (
        f"`client` must be a batch client, got {shown(client)}; pass an "
        "`AnthropicBatchClient`, an `OpenAIBatchClient`, or an object with their methods"
    )
    raise TypeError(msg)


def answers_of(result: BatchResult) -> list[LLMResponse]:
    """The answers of a batch, one for each request.

    Raises:
        ProviderError: When one is missing, or the results were not as promised;
            `metadata["result"]` has the batch's result, `cost` what it cost.
    """
    answers = [item.response for item in result.items if item.response is not None]
    if len(answers) < len(result.items) or result.problems:
        raise _incomplete(result)
    return answers


def _incomplete(result: BatchResult) -> ProviderError:
    wrong = [_words(item) for item in result.failed] + list(result.problems)
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    msg = (
        f"batch `{result.batch_id}`: {len(result.failed)} of {len(result.items)} "
        f"requests have no answer: {'; '.join(wrong[:_SHOWN])}{more}"
    )
    facts = {"batch_id": result.batch_id, "result": result}
    error = ProviderError(msg, cost=result.cost, metadata=facts)
    error.retries_exhausted = True
    return error


def _words(item: BatchItem) -> str:
    if item.status is BatchItemStatus.MISSING:
        return f"missing {item.custom_id!r}"
    kind = item.error_type
    word = kind if kind.startswith("malformed_") else str(item.status)
    why = f"{kind}: {item.error}" if kind and kind != word else item.error
    plain = item.status in {BatchItemStatus.CANCELED, BatchItemStatus.EXPIRED}
    return f"{item.custom_id} ({word})" + ("" if plain else f": {why}")


def vote(
    result: BatchResult, strategy: str, normalizer: Callable[[str], str] | None
) -> tuple[VoteTally, dict[str, Any]]:
    """The vote over the answers of a batch, as `consensus` counts it, and facts.

    Empty answers and those that were cut off do not vote.

    Raises:
        ProviderError: See `answers_of`.
        ConsensusFailedError: When none can vote, or they are not unanimous.
    """
    answers = answers_of(result)
    whole = [one for one in answers if not one.was_truncated]
    texts = [one.content for one in whole if one.content.strip()]
    facts = {
        "batch_id": result.batch_id,
        "votes": len(texts),
        "empty_samples": len(whole) - len(texts),
        "truncated_samples": len(answers) - len(whole),
        "answers": tuple(one.content for one in answers),
    }
    if not texts:
        msg = (
            f"None of {len(answers)} samples can vote: {facts['empty_samples']} empty, "
            f"{facts['truncated_samples']} cut off at the token limit (`max_tokens`)"
        )
        raise ConsensusFailedError(
            msg, cost=result.cost, metadata={**facts, "result": result}
        )
    try:
        return tally_votes(texts, strategy, normalizer=normalizer), facts
    except ConsensusFailedError as exc:
        exc.cost += result.cost
        exc.metadata |= {**facts, "result": result}
        raise
