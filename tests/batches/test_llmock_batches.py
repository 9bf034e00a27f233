"""Batches against a second, independent fake of both services."""

from __future__ import annotations

from typing import Any

import pytest

from executionkit import (
    AnthropicBatchClient,
    BatchRequest,
    OpenAIBatchClient,
    run_batch,
)

pytest.importorskip("llmock")


@pytest.fixture(params=["openai", "anthropic"])
def client(request: pytest.FixtureRequest, llmock: Any) -> Any:
    if request.param == "openai":
        return OpenAIBatchClient("x", base_url=llmock.url + "/v1", model="gpt-4o")
    return AnthropicBatchClient(
        "x", base_url=llmock.url + "/anthropic", model="claude-sonnet-4-5"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.req("batches.run")
async def test_another_server_answers_every_request(client: Any) -> None:
    # The server runs in this process, and forgets to close the files it was sent.
    requests = [BatchRequest(f"row-{n}", f"say {n}") for n in range(5)]
    async with client:
        result = await run_batch(client, requests, poll_interval=0.02, timeout=20)
        again = await run_batch(
            client, requests, batch_id=result.batch_id, poll_interval=0.02, timeout=20
        )
    assert (result.ok, result.problems) == (True, ())
    assert [item.custom_id for item in result.items] == [f"row-{n}" for n in range(5)]
    assert all(result.texts.values())
    assert result.cost.llm_calls == 5
    assert result.cost.output_tokens > 0
    assert again.texts == result.texts
