"""`ScriptedBatchClient` behaves as a service does."""

from __future__ import annotations

from typing import Any

import pytest

from executionkit import (
    BatchClient,
    BatchItemStatus,
    BatchRequest,
    BatchStatus,
    LLMResponse,
    PermanentError,
    TokenUsage,
    cancel_batch,
    run_batch,
    submit_batch,
)
from executionkit.testing import FakeClock, ScriptedBatchClient

REQUESTS = [BatchRequest(one, one, {"temperature": 0}) for one in "abcde"]
REPLY = LLMResponse("yes", usage={"input_tokens": 3, "output_tokens": 1})


@pytest.mark.req("testing.batches")
async def test_a_function_answers_a_batch(auto_clock: FakeClock) -> None:
    asked: list[dict[str, Any]] = []
    answers: dict[str, Any] = {
        "a": "text",
        "b": REPLY,
        "c": PermanentError("no"),
        "d": BatchItemStatus.EXPIRED,
        "e": BatchItemStatus.MISSING,
    }

    def answer(request: dict[str, Any]) -> Any:
        asked.append(request)
        return answers[request["custom_id"]]

    client = ScriptedBatchClient(answer, looks=3)
    assert isinstance(client, BatchClient)
    result = await run_batch(client, REQUESTS)
    kinds = [str(item.status) for item in result.items]
    assert kinds == ["succeeded", "succeeded", "errored", "expired", "missing"]
    assert result.cost == TokenUsage(3, 1, 2)
    assert asked[0] == {
        "custom_id": "a",
        "messages": [{"role": "user", "content": "a"}],
        "temperature": 0,
    }
    assert auto_clock.sleeps == [5.0, 5.0]
    assert client.created == 1
    again = await run_batch(client, REQUESTS, batch_id=result.batch_id)
    assert again.texts == result.texts
    assert len(asked) == 5


@pytest.mark.req("testing.batches")
async def test_batches_are_found_and_canceled(auto_clock: FakeClock) -> None:
    client = ScriptedBatchClient(lambda request: "x", looks=10)
    batch = await submit_batch(client, REQUESTS, key="k")
    since = auto_clock.wall()
    (found,) = await client.find(key="k", requests=5, since=since)
    assert found.id == batch.id
    assert await client.find(key="other", requests=5, since=since) == ()
    assert (await cancel_batch(client, batch.id)).status is BatchStatus.CANCELING
    result = await run_batch(client, REQUESTS, batch_id=batch.id)
    assert result.ok
    with pytest.raises(PermanentError, match="no batch"):
        await run_batch(client, REQUESTS, batch_id="nobody")
