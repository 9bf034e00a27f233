"""Parts of batches: lines of any body, odd objects of a service, limits, chaos."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit import (
    AnthropicBatchClient,
    BadResponseError,
    BatchRequest,
    DeadlineExceededError,
    ExecutionContext,
    OpenAIBatchClient,
    ProviderError,
    ProviderTimeoutError,
    cancel_batch,
    execution_scope,
    run_batch,
    submit_batch,
)
from executionkit._batches.lines import parsed, split_lines
from executionkit._batches.strict import adapted
from executionkit.testing import FakeClock, ScriptedBatchClient
from executionkit.testing.http import Gate, Reply, json_reply, no_reply, reset_reply
from tests.batches.conftest import Make
from tests.batches.services import KEY, Services, SkippingClock


async def pieces(data: bytes, sizes: list[int]) -> AsyncGenerator[bytes]:
    while data:
        size = sizes.pop() if sizes else len(data)
        yield data[:size]
        data = data[size:]


@pytest.mark.req("batches.results")
@given(
    st.lists(st.binary(max_size=6).map(lambda one: one.replace(b"\n", b"x"))),
    st.lists(st.integers(1, 5)),
    st.booleans(),
)
async def test_lines_are_the_same_whatever_pieces_they_come_in(
    lines: list[bytes],
    sizes: list[int],
    ends: bool,
) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    limit = 4
    found = [one async for one in split_lines(pieces(data, sizes), limit=limit)]
    expected = [
        (number, line if len(line) <= limit else None)
        for number, line in enumerate(data.split(b"\n"), 1)
        if line.strip() or len(line) > limit
    ]
    assert found == expected


@pytest.mark.req("batches.results")
async def test_a_line_that_is_too_long_takes_no_memory() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(200):
            yield bytes(100_000)
        yield b"\n{}"

    tracemalloc.start()
    try:
        found = [one async for one in split_lines(endless(), limit=1_000_000)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [(1, None), (2, b"{}")]
    assert peak < 4_000_000


@pytest.mark.req("batches.results")
def test_a_line_that_is_too_long_is_told() -> None:
    assert "line 3 is longer than" in str(parsed(3, None, ()))
    shown = parsed(1, b'{"key": "' + KEY.encode(), (KEY,))
    assert isinstance(shown, str)
    assert KEY not in shown


@pytest.mark.req("batches.results")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "no `id`"),
        ({"id": "b"}, "unknown"),
        ({"id": "b", "processing_status": "lost", "status": "lost"}, "unknown"),
        ({"id": 3, "processing_status": "ended", "status": "completed"}, "no `id`"),
        ({"id": "\ud800", "processing_status": "ended"}, "cannot be used"),
        ({"id": "../x", "status": "completed"}, "cannot be used"),
        ([], "not a JSON object"),
    ],
)
async def test_an_object_that_is_no_batch_is_a_bad_response(
    client: Any, services: Services, answer: Any, words: str
) -> None:
    services.fail("GET .*", json_reply(answer))
    with pytest.raises(BadResponseError, match=words):
        await client.retrieve("b")


@pytest.mark.req("batches.once")
@pytest.mark.parametrize(
    "page",
    [{}, {"data": None}, {"data": {}}, {"data": ["x"]}, {"data": [None]}],
    ids=str,
)
async def test_a_list_that_is_none_does_not_say_that_there_is_no_batch(
    client: Any, services: Services, page: Any
) -> None:
    services.lose("POST /v1/(messages/)?batches")
    services.fail("GET /v1/(messages/)?batches", json_reply(page), times=9)
    with pytest.raises(ProviderError) as caught:
        await run_batch(client, [BatchRequest("a", "x")])
    assert caught.value.metadata["in_doubt"]
    assert len(services.batches) == 1


@pytest.mark.req("batches.results")
async def test_odd_facts_of_a_batch_do_no_harm(client: Any, services: Services) -> None:
    odd = {
        "id": "b",
        "processing_status": "ended",
        "status": "completed",
        "request_counts": {"total": -3, "succeeded": "x", "completed": True},
        "created_at": "yesterday",
        "expires_at": 10**400,
        "errors": {"data": [3, {"message": 4}]},
    }
    services.fail("GET .*", json_reply(odd))
    state = await client.retrieve("b")
    assert (state.created_at, state.expires_at) == (None, None)
    assert (state.counts.total, state.counts.done, state.is_over) == (0, 0, True)
    services.fail("GET .*", json_reply({**odd, "request_counts": 7, "errors": "x"}))
    assert (await client.retrieve("b")).counts.total == 0


@pytest.mark.req("batches.results")
async def test_odd_files_of_openai_do_no_harm(make: Make, services: Services) -> None:
    client = make("openai")
    services.fail("POST /v1/files", json_reply({"object": "file"}))
    with pytest.raises(BadResponseError, match="no `id` of a file"):
        await client.create([b"{}"], key="k")
    with pytest.raises(ValueError, match="no requests"):
        await client.create([], key="k")
    batch = await submit_batch(client, [BatchRequest("a", "x")])

    def elsewhere(done: Reply) -> Reply:
        found = {"id": batch.id, "status": "completed", "output_file_id": "../x"}
        return json_reply({**found, "error_file_id": None})

    services.change("GET /v1/batches/.*", elsewhere)
    with pytest.raises(BadResponseError, match="an id that is none"):
        await run_batch(client, [BatchRequest("a", "x")], batch_id=batch.id)


@pytest.mark.req("batches.polling")
async def test_results_that_do_not_begin_are_an_error_in_time(
    make: Make, services: Services, service: str
) -> None:
    services.looks_needed = 0
    batch = await submit_batch(make(service), [BatchRequest("a", "x")])
    state = await make(service).retrieve(batch.id)
    client = make(service, timeout=0.05)
    services.fail("GET /v1/.*/(results|content)", no_reply())
    with pytest.raises(ProviderTimeoutError, match=r"no answer began within 0\.05 s"):
        async for _ in client.results(state, {}):
            pass
    gate = Gate()
    stalled = Reply(200, {}, [b'{"custom_id"', gate, b""], framing="chunked")
    services.fail("GET /v1/.*/(results|content)", stalled)
    with pytest.raises(ProviderTimeoutError, match="silent"):
        async for _ in make(service, timeout=0.5).results(state, {}):
            pass
    gate.open()


@pytest.mark.req("batches.polling")
async def test_a_large_upload_has_more_time(make: Make, clock: SkippingClock) -> None:
    site = make("openai", timeout=60)._site
    assert site._time_for(10).total == 60
    assert site._time_for(100 * 1024 * 1024).total == 160
    assert make("openai", timeout=None)._site._time_for(1 << 30).total is None
    with execution_scope(ExecutionContext.with_deadline(30)):
        assert site._time_for(100 * 1024 * 1024).total == pytest.approx(30, abs=1)


@pytest.mark.req("batches.once")
async def test_a_deadline_in_the_middle_of_a_creation_leaves_doubt(
    client: Any, services: Services
) -> None:
    services.fail("POST /v1/(messages/)?batches", no_reply())
    with (
        execution_scope(ExecutionContext.with_deadline(1.0)),
        pytest.raises(DeadlineExceededError) as caught,
    ):
        await submit_batch(client, [BatchRequest("a", "x")])
    assert caught.value.metadata["in_doubt"] is True
    with (
        execution_scope(ExecutionContext.with_deadline(0)),
        pytest.raises(DeadlineExceededError) as caught,
    ):
        await submit_batch(client, [BatchRequest("a", "x")])
    assert "in_doubt" not in caught.value.metadata


@pytest.mark.req("batches.anthropic-client")
async def test_a_client_without_these_calls_says_so(clock: SkippingClock) -> None:
    class Fake:
        def __init__(self) -> None:
            self.closed = 0

        def create_batch(self, requests: Any) -> Any:
            raise ProviderError("lost")

        def get_batch(self, batch_id: str) -> Any:
            return {"id": batch_id, "processing_status": "in_progress"}

        def fetch_results(self, url: str) -> Any:
            return []

        async def aclose(self) -> None:
            self.closed += 1

    fake = Fake()
    client = adapted(fake)
    with pytest.raises(ProviderError, match="lost") as caught:
        await submit_batch(client, [BatchRequest("a", "x", {"model": "m"})])
    assert caught.value.metadata["in_doubt"] is True
    with pytest.raises(ProviderError, match="Fake cannot cancel"):
        await client.cancel("b")
    await client.aclose()
    assert fake.closed == 1
    more: Any = fake
    more.cancel_batch = lambda batch_id: {
        "id": batch_id,
        "processing_status": "canceling",
    }
    assert (await cancel_batch(client, "b")).status == "canceling"


@pytest.mark.req("batches.run")
def test_the_environment_describes_both_clients() -> None:
    found = OpenAIBatchClient.from_env(environ={})
    assert (found.base_url, found.model) == ("https://api.openai.com/v1", None)
    names = ("BASE_URL", "MODEL", "API_KEY")
    environ = {f"EXECUTIONKIT_{name}": f"http://{name}/v1" for name in names}
    found = OpenAIBatchClient.from_env(environ=environ, model="own")
    assert (found.base_url, found.model) == ("http://BASE_URL/v1", "own")
    with pytest.raises(ValueError, match="ANTHROPIC_API_KEY"):
        AnthropicBatchClient.from_env(environ={})
    environ = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_MODEL": "m"}
    other = AnthropicBatchClient.from_env(environ=environ)
    assert (other.base_url, other.model) == ("https://api.anthropic.com", "m")


@pytest.mark.req("batches.run")
async def test_a_large_batch_leaves_the_loop_to_others(auto_clock: FakeClock) -> None:
    requests = [BatchRequest(f"r{n}", str(n)) for n in range(2000)]
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    client = ScriptedBatchClient(lambda request: "x")
    batch = await submit_batch(client, requests)
    turns = others
    task.cancel()
    assert 10 <= turns <= 100
    result = await run_batch(client, requests, batch_id=batch.id)
    assert len(result.texts) == 2000


@pytest.mark.req("batches.once")
@pytest.mark.parametrize("seed", range(6))
async def test_chaos_costs_neither_an_answer_nor_a_second_batch(
    make: Make, services: Services, service: str, seed: int
) -> None:
    chance = random.Random(seed)

    def cut(done: Reply) -> Reply:
        part = done.pieces[: chance.randrange(len(done.pieces) + 1)]
        return Reply(200, done.headers, part, framing="chunked", ending="reset")

    def broken() -> Reply:
        status = chance.choice([408, 429, 500, 502, 503, 529])
        body = {"error": {"message": "chaos", "type": "x"}}
        return chance.choice([json_reply(body, status=status), reset_reply()])

    if service == "openai":  # which can be asked for a batch whose answer got lost
        for where in ("POST /v1/batches", "POST /v1/files"):
            if chance.random() < 0.6:
                services.lose(where)
    for _ in range(chance.randrange(6)):
        services.fail(r"GET /v1/(messages/)?batches/\w+", broken())
    for _ in range(chance.randrange(4)):
        services.change("GET /v1/.*/(results|content)", cut)
    services.looks_needed = chance.randrange(1, 5)
    client = make(service, transport=chance.choice(["stdlib", None]))
    requests = [BatchRequest(f"r{n}", f"{n}\u2028") for n in range(20)]
    result = await run_batch(client, requests)
    assert [item.text for item in result.items] == [f"{n}\u2028" for n in range(20)]
    assert result.cost.llm_calls == 20
    assert len(services.batches) == 1
