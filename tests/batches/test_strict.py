"""`consensus_batch` and `map_batch`, the client's own calls, and older clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from executionkit import (
    AnthropicBatchClient,
    BatchRequest,
    ConsensusFailedError,
    OpenAIBatchClient,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    RateLimitError,
    TokenUsage,
    consensus_batch,
    consensus_batch_sync,
    map_batch,
    map_batch_sync,
    run_batch,
    run_batch_sync,
)
from executionkit.testing.http import Reply, json_reply
from tests.batches.conftest import Make
from tests.batches.services import KEY, Services

RESULTS = "GET /v1/.*/(results|content)"


@pytest.mark.req("batches.consensus")
async def test_consensus_votes_over_one_batch(client: Any, services: Services) -> None:
    answers = ["7", " 7 ", "8", "", "7"]
    services.answer = lambda name, text: answers[int(name.rpartition("-")[2])]
    result = await consensus_batch(client, "big", "2+5?")
    assert (result.value, result.score) == ("7", 0.75)
    assert result.cost == TokenUsage(50, 15, 5)
    (batch,) = services.batches.values()
    assert [one["custom_id"] for one in batch.requests] == [
        f"consensus-{n}" for n in range(5)
    ]
    body = batch.requests[0].get("params") or batch.requests[0]["body"]
    assert body == {
        "model": "big",
        "max_tokens": 4096,
        "temperature": 0.9,
        "messages": [{"role": "user", "content": "2+5?"}],
    }
    assert dict(result.metadata) == {
        "agreement_ratio": 0.75,
        "unique_responses": 2,
        "tie_count": 1,
        "batch_id": batch.id,
        "votes": 4,
        "empty_samples": 1,
        "truncated_samples": 0,
        "answers": tuple(answers),
    }


@pytest.mark.req("batches.consensus")
async def test_consensus_that_fails_keeps_answers_and_cost(
    client: Any, services: Services
) -> None:
    services.answer = lambda name, text: name
    with pytest.raises(ConsensusFailedError, match="3 distinct") as caught:
        await consensus_batch(client, "m", "x", num_samples=3, strategy="unanimous")
    assert caught.value.cost == TokenUsage(30, 9, 3)
    assert caught.value.metadata["result"].ok
    assert len(caught.value.metadata["answers"]) == 3
    services.answer = lambda name, text: " "
    with pytest.raises(ConsensusFailedError, match="None of 2") as caught:
        await consensus_batch(client, "m", "x", num_samples=2)
    assert caught.value.cost.llm_calls == 2
    wrong: Any
    for wrong in ({"num_samples": 0}, {"strategy": "best"}):
        with pytest.raises(ValueError, match=r"num_samples|VotingStrategy"):
            await consensus_batch(client, "m", "x", **wrong)


@pytest.mark.req("batches.map")
async def test_map_answers_in_the_order_of_the_prompts(
    client: Any, services: Services
) -> None:
    result = await map_batch(client, "m", ["a", "b", "a"], max_tokens=9)
    assert result.value == ("a", "b", "a")
    assert result.cost == TokenUsage(30, 9, 3)
    assert dict(result.metadata) == {
        "batch_id": next(iter(services.batches)),
        "num_requests": 3,
        "truncated_responses": 0,
    }
    (batch,) = services.batches.values()
    body = batch.requests[0].get("params") or batch.requests[0]["body"]
    assert "temperature" not in body
    again = await map_batch(client, "m", ["a", "b", "a"], batch_id=batch.id)
    assert again.value == result.value
    assert len(services.batches) == 1
    with pytest.raises(ValueError, match="non-empty"):
        await map_batch(client, "m", [])
    for wrong in ("abc", ["a", 3]):
        with pytest.raises(TypeError, match="prompts"):
            await map_batch(client, "m", wrong)  # type: ignore[arg-type]


@pytest.mark.req("batches.map")
async def test_what_is_not_answered_is_listed_and_the_rest_is_kept(
    client: Any, services: Services
) -> None:
    others: dict[str, Any] = {
        "map-1": {"errored": "too long"},
        "map-2": {"expired": 1},
        "map-3": {"absent": 1},
        "map-4": {"raw": '{"custom_id": "map-4"}'},
        "map-5": {"raw": "{"},
    }
    services.answer = lambda name, text: others.get(name, text)
    with pytest.raises(ProviderError) as caught:
        await map_batch(client, "m", list("abcdefg"))
    text = str(caught.value)
    for words in (
        "5 of 7 requests",
        "map-1 (errored): invalid_request_error",
        "too long",
        "map-2 (expired)",
        "missing 'map-3'",
        "map-4 (malformed_result)",
        "line 2 is not valid JSON",
    ):
        assert words in text
    assert caught.value.cost == TokenUsage(20, 6, 2)
    result = caught.value.metadata["result"]
    assert result.texts == {"map-0": "a", "map-6": "g"}
    assert caught.value.metadata["batch_id"] == result.batch_id
    assert caught.value.retries_exhausted


@pytest.mark.req("batches.map")
async def test_duplicate_results_are_no_answer(client: Any, services: Services) -> None:
    services.reorder = lambda lines: lines * 2
    with pytest.raises(ProviderError, match="duplicate result for 'map-0'"):
        await map_batch(client, "m", ["a"])


@pytest.mark.req("batches.anthropic-client")
async def test_the_calls_of_the_client_are_those_of_the_service(
    make: Make, services: Services
) -> None:
    client = make("anthropic", model=None)
    params = {
        "model": "m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "a\u2028\x85b"}],
    }
    made = await client.create_batch([{"custom_id": "a", "params": params}])
    assert made["processing_status"] == "in_progress"
    services.looks_needed = 0
    found = await client.get_batch(made["id"])
    (line,) = await client.fetch_results(found["results_url"])
    assert line["result"]["message"]["content"][0]["text"] == "a\u2028\x85b"
    with pytest.raises(ValueError, match="no requests"):
        await client.create_batch([])
    for request in services.server.requests:
        assert request.headers["x-api-key"] == KEY
        assert request.headers["anthropic-version"] == "2023-06-01"
        assert ("content-type" in request.headers) == (request.method == "POST")


@pytest.mark.req("batches.anthropic-client")
async def test_a_line_that_cannot_be_read_is_named_and_the_others_are_kept(
    make: Make, services: Services
) -> None:
    client = make("anthropic")
    services.looks_needed = 0
    services.reorder = lambda lines: lines
    services.answer = lambda name, text: {"raw": "{oops"} if name == "b" else text
    batch = await client.create(
        [client.encode(BatchRequest(one, one)) for one in "abc"], key="k"
    )
    found = await client.get_batch(batch.id)
    with pytest.raises(ProviderError, match="line 2") as caught:
        await client.fetch_results(found["results_url"])
    names = [one["custom_id"] for one in caught.value.metadata["results"]]
    assert names == ["a", "c"]


@pytest.mark.req("batches.secrets")
@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/v1/messages/batches/msgbatch_1/results",
        "/v1/messages/batches/msgbatch_1/results",
        "http://user:pw@evil.example/x/batches/msgbatch_1/results?k=1",
    ],
)
async def test_results_come_from_the_own_server_alone(
    make: Make, services: Services, url: str
) -> None:
    client = make("anthropic")
    services.looks_needed = 0
    batch = await client.create([client.encode(BatchRequest("a", "x"))], key="k")
    await client.retrieve(batch.id)
    (line,) = await client.fetch_results(url)
    assert line["custom_id"] == "a"


@pytest.mark.req("batches.secrets")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/batches/b/results",
        "file:///etc/passwd",
        "https://evil.example/x",
        "",
        "x",
    ],
)
async def test_no_other_address_is_asked_for_results(
    make: Make, services: Services, url: str
) -> None:
    with pytest.raises(ProviderError, match="results cannot be fetched"):
        await make("anthropic").fetch_results(url)
    assert services.log == []


@pytest.mark.req("batches.anthropic-client")
async def test_relative_results_of_a_server_below_a_path(
    make: Make, services: Services
) -> None:
    services.absolute_results = False
    assert (await run_batch(make("anthropic"), [BatchRequest("a", "x")])).ok


@pytest.mark.req("batches.anthropic-client")
async def test_a_batch_that_ended_without_results_url_says_so(
    make: Make, services: Services
) -> None:
    def without(done: Reply) -> Reply:
        body = b"".join(one for one in done.pieces if isinstance(one, bytes))
        return json_reply({**json.loads(body), "results_url": None})

    services.looks_needed = 0
    services.change(r"GET /v1/messages/batches/\w+", without)
    with pytest.raises(ProviderError, match="without a results_url") as caught:
        await map_batch(make("anthropic"), "m", ["a"])
    assert caught.value.metadata["batch_id"] == "msgbatch_1"
    assert services.log.count("GET /v1/messages/batches/msgbatch_1") == 1
    assert services.clock.sleeps == []  # the same object would say the same again


@pytest.mark.req("batches.anthropic-client")
@pytest.mark.parametrize("kind", ["async", "sync", "method", "results"])
async def test_the_seams_can_be_replaced(services: Services, kind: str) -> None:
    answers = {
        "POST": {"id": "b", "processing_status": "in_progress"},
        "GET": {
            "id": "b",
            "processing_status": "ended",
            "results_url": "/v1/messages/batches/b/results",
        },
    }
    message = {
        "content": [{"type": "text", "text": "hi"}],
        "usage": {"input_tokens": 4, "output_tokens": 2},
    }
    line = {
        "custom_id": "map-0",
        "result": {"type": "succeeded", "message": message},
    }
    asked: list[tuple[str, str, bytes | None]] = []

    def raw(method: str, url: str, body: bytes | None) -> bytes:
        asked.append((method, url, body))
        found: Any = line if url.endswith("/results") else answers[method]
        return json.dumps(found).encode()

    async def raw_async(method: str, url: str, body: bytes | None) -> bytes:
        return raw(method, url, body)

    class Own(AnthropicBatchClient):
        async def create_batch(self, requests: Any) -> dict[str, Any]:
            assert requests[0]["params"]["messages"]
            return answers["POST"]

        async def get_batch(self, batch_id: str) -> dict[str, Any]:
            return answers["GET"]

        async def fetch_results(self, url: str) -> list[dict[str, Any]]:
            assert url == answers["GET"]["results_url"]
            return [line]

    client: Any = AnthropicBatchClient(KEY)
    if kind == "async":
        client._http_raw = raw_async
    elif kind == "sync":
        client._http_raw = raw
    elif kind == "method":
        client = Own(KEY)
    else:
        client._http_raw = raw
        client.fetch_results = Own(KEY).fetch_results
    result = await map_batch(client, "m", ["hello"])
    assert (result.value, result.cost) == (("hi",), TokenUsage(4, 2, 1))
    if kind in {"async", "sync"}:
        assert asked[0][0:2] == (
            "POST",
            "https://api.anthropic.com/v1/messages/batches",
        )
        assert [one[0] for one in asked] == ["POST", "GET", "GET"]


@pytest.mark.req("batches.anthropic-client")
async def test_an_object_with_the_three_calls_is_a_client(clock: Any) -> None:
    class Fake:
        """What a test of somebody's has in the place of the client."""

        def __init__(self) -> None:
            self.looks = 0

        def create_batch(self, requests: Any) -> dict[str, Any]:
            self.ids = [one["custom_id"] for one in requests]
            return {"id": "b", "processing_status": "in_progress"}

        async def get_batch(self, batch_id: str) -> dict[str, Any]:
            self.looks += 1
            status = "ended" if self.looks > 2 else "in_progress"
            return {"id": "b", "processing_status": status, "results_url": "u"}

        def fetch_results(self, url: str) -> list[dict[str, Any]]:
            message = {"content": [{"type": "text", "text": "yes"}]}
            result = {"type": "succeeded", "message": message}
            return [{"custom_id": one, "result": result} for one in self.ids]

    fake: Any = Fake()
    result = await consensus_batch(fake, "m", "sure?", num_samples=3)
    assert (result.value, result.cost.llm_calls) == ("yes", 3)
    wrong: Any = object()
    for call in (consensus_batch(wrong, "m", "x"), map_batch(wrong, "m", ["x"])):
        with pytest.raises(TypeError, match="must be a batch client"):
            await call


@pytest.mark.req("batches.anthropic-client")
@pytest.mark.parametrize(
    ("status", "headers", "kind", "hint"),
    [
        (429, {"retry-after": "7"}, RateLimitError, 7.0),
        (429, {}, RateLimitError, 1.0),
        (429, {"retry-after": "inf"}, RateLimitError, 1.0),
        (500, {}, ProviderError, None),
        (503, {"retry-after": "4"}, ProviderError, 4.0),
        (401, {}, PermanentError, None),
    ],
)
async def test_statuses_are_errors_of_the_tree(
    make: Make,
    services: Services,
    status: int,
    headers: dict[str, str],
    kind: type[Exception],
    hint: float | None,
) -> None:
    body = b"x" * 10_000
    services.fail("GET .*", Reply(status, headers, body))
    with pytest.raises(kind, match=str(status)) as caught:
        await make("anthropic").get_batch("b")
    error: Any = caught.value
    assert error.retry_after == hint
    assert len(str(error)) < 700


@pytest.mark.req("batches.anthropic-client")
@pytest.mark.parametrize(
    "make_one",
    [
        lambda: AnthropicBatchClient(""),
        lambda: AnthropicBatchClient("  "),
        lambda: AnthropicBatchClient("k", base_url="ftp://x"),
        lambda: AnthropicBatchClient("k", base_url="x"),
        lambda: OpenAIBatchClient("k", base_url="file://x"),
        lambda: OpenAIBatchClient("k", timeout=0),
        lambda: OpenAIBatchClient("k", model=" "),
    ],
)
def test_a_client_that_cannot_work_is_not_made(make_one: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"api_key|base_url|timeout|model"):
        make_one()


@pytest.mark.req("batches.sync")
def test_programs_without_a_loop_have_batches_too() -> None:
    def line(custom_id: str) -> dict[str, Any]:
        message = {"content": [{"type": "text", "text": custom_id}]}
        result = {"type": "succeeded", "message": message}
        return {"custom_id": custom_id, "result": result}

    def raw(method: str, url: str, body: bytes | None) -> bytes:
        if url.endswith("/results"):
            return b"\n".join(json.dumps(line(one)).encode() for one in ids)
        if body is not None:
            ids[:] = [one["custom_id"] for one in json.loads(body)["requests"]]
        url = "/v1/messages/batches/b/results"
        found = {"id": "b", "processing_status": "ended", "results_url": url}
        return json.dumps(found).encode()

    ids: list[str] = []
    client: Any = AnthropicBatchClient("k", model="m")
    client._http_raw = raw
    assert run_batch_sync(client, [BatchRequest("a", "x")])["a"].text == "a"
    assert map_batch_sync(client, "m", ["x", "y"]).value == ("map-0", "map-1")
    voted = consensus_batch_sync(client, "m", "x", num_samples=2)
    assert voted.value == "consensus-0"

    async def inside() -> None:
        with pytest.raises(RuntimeError, match="event loop is running"):
            map_batch_sync(client, "m", ["x"])

    asyncio.run(inside())


@pytest.mark.req("batches.once")
@pytest.mark.parametrize("transport", ["stdlib", "aiohttp", "httpx2", "httpx"])
async def test_no_transport_sends_a_creation_twice(
    make: Make, service: str, services: Services, transport: str
) -> None:
    if transport != "stdlib":
        pytest.importorskip(transport)
    client = make(service, transport=transport)
    lines = [client.encode(BatchRequest("a", "x"))]
    # Afterwards there is a connection that was kept alive.
    first = await client.create(lines, key="k")
    await client.retrieve(first.id)
    services.lose("POST /v1/(messages/)?batches")
    with pytest.raises(ProviderConnectionError):
        await client.create(lines, key="k")
    assert len(services.batches) == 2
