"""Batches whose process is killed: at every write of the journal, and in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import executionkit
from executionkit import (
    BatchItem,
    BatchRequest,
    InDoubtError,
    JournalMismatchError,
    PermanentError,
    TokenUsage,
    map_batch,
    run_batch,
)
from executionkit.journal import Journal, MemoryJournalStore
from executionkit.testing.http import json_reply
from tests.batches.services import KEY, Services, SkippingClock

CREATE = "POST /v1/(messages/)?batches"
ROOT = Path(executionkit.__file__).parent.parent

PROGRAM = """
import asyncio, os, signal, sys
from executionkit import AnthropicBatchClient, BatchRequest, OpenAIBatchClient
from executionkit import run_batch
from executionkit.journal import Journal, SQLiteJournalStore

kind, url, key, file, deadly = sys.argv[1:]

class Store(SQLiteJournalStore):
    writes = 0

    async def put(self, run, entry):
        Store.writes += 1
        if Store.writes == int(deadly):
            os.kill(os.getpid(), signal.SIGKILL)
        await super().put(run, entry)

async def main():
    made = AnthropicBatchClient if kind == "anthropic" else OpenAIBatchClient
    path = "" if kind == "anthropic" else "/v1"
    requests = [BatchRequest(one, one, {"model": "m"}) for one in ("a", "b")]
    async with made(key, base_url=url + path) as client:
        async with Journal(Store(file), "r") as journal:
            result = await run_batch(
                client, requests, journal=journal, poll_interval=0.01
            )
    print(*[item.text for item in result.items], result.cost.llm_calls)

asyncio.run(main())
"""


class Crash(BaseException):
    """What a kill is for a program: nothing that it could handle."""


class CrashingStore(MemoryJournalStore):
    """Crashes instead of its `deadly`th write."""

    def __init__(self) -> None:
        super().__init__()
        self.deadly = 0
        self.writes = 0

    async def put(self, run: str, entry: Any) -> None:
        self.writes += 1
        if self.writes == self.deadly:
            raise Crash
        await super().put(run, entry)


REQUESTS = [BatchRequest("a", "one"), BatchRequest("b", "two")]


async def again(client: Any, store: MemoryJournalStore, **more: Any) -> Any:
    async with Journal(store, "r") as journal:
        return await run_batch(client, REQUESTS, journal=journal, **more)


def bare(item: BatchItem) -> BatchItem:
    """Without the service's own object, which a journal does not keep."""
    response = item.response
    return replace(item, response=response and replace(response, raw=None))


@pytest.mark.req("batches.journal")
async def test_a_run_that_is_over_is_given_back_without_any_request(
    client: Any, services: Services
) -> None:
    services.answer = lambda name, text: text if name == "a" else {"expired": 1}
    store = MemoryJournalStore()
    first = await again(client, store)
    asked = len(services.log)
    second = await again(client, store)
    assert len(services.log) == asked
    assert [bare(item) for item in second.items] == [bare(item) for item in first.items]
    assert (second.cost, second.problems) == (TokenUsage(10, 3, 1), ())
    assert second.batch_id == first.batch_id
    assert second.state is not None
    assert second.state.counts == first.state.counts


@pytest.mark.req("batches.journal")
async def test_whatever_write_a_crash_comes_at_there_is_one_batch(
    client: Any, services: Services, service: str
) -> None:
    total = 0
    for deadly in range(1, 20):
        services.batches.clear()
        store = CrashingStore()
        store.deadly = deadly
        try:
            await again(client, store)
        except Crash:
            pass
        else:
            total = deadly - 1
            break
        doubt: InDoubtError | None = None
        result: Any = None
        try:
            result = await again(client, store)
        except InDoubtError as exc:
            doubt = exc
        if doubt is not None:
            # The service keeps no key: somebody has to say which one it is.
            assert service == "anthropic"
            (batch_id,) = services.batches
            assert doubt.metadata["candidates"] == (batch_id,)
            (effect_id,) = doubt.effect_ids
            async with Journal(store, "r") as journal:
                await journal.resolve(effect_id, batch_id)
            result = await again(client, store)
        assert result.texts == {"a": "one", "b": "two"}
        assert result.cost == TokenUsage(20, 6, 2)
        assert len(services.batches) == 1
    assert total == 6  # begin, create and results: two writes each


@pytest.mark.req("batches.journal")
async def test_an_answer_that_got_lost_stays_in_doubt_in_the_journal(
    make: Any, services: Services
) -> None:
    client, store = make("anthropic"), MemoryJournalStore()
    services.lose(CREATE)
    for _ in range(2):
        with pytest.raises(InDoubtError, match="msgbatch_1") as caught:
            await again(client, store)
        assert caught.value.metadata["candidates"] == ("msgbatch_1",)
        made = caught.value.metadata["candidates_created_at"]["msgbatch_1"]
        assert made == (await client.retrieve("msgbatch_1")).created_at is not None
        assert "`msgbatch_1` (made 2" in str(caught.value)
    assert len(services.batches) == 1
    services.batches.clear()  # somebody looked, and there is none
    assert (await again(client, store)).ok
    assert len(services.batches) == 1


@pytest.mark.req("batches.journal")
async def test_what_failed_is_tried_again_by_the_next_run(
    client: Any, services: Services, clock: SkippingClock
) -> None:
    store = MemoryJournalStore()
    refused = json_reply({"error": {"message": "no"}}, status=400)
    services.fail(CREATE, refused)
    with pytest.raises(PermanentError):
        await again(client, store)
    services.looks_needed = 10_000
    with pytest.raises(executionkit.ProviderTimeoutError):
        await again(client, store, timeout=10)
    services.looks_needed = 0
    result = await again(client, store)
    assert (result.ok, result.cost) == (True, TokenUsage(20, 6, 2))
    assert len(services.batches) == 1


@pytest.mark.req("batches.journal")
async def test_other_requests_are_another_program(
    client: Any, services: Services
) -> None:
    store = MemoryJournalStore()
    async with Journal(store, "r") as journal:
        await map_batch(client, "m", ["a", "b"], journal=journal)
    async with Journal(store, "r") as journal:
        with pytest.raises(JournalMismatchError):
            await map_batch(client, "m", ["a", "c"], journal=journal)
    async with Journal(store, "r") as journal:
        again = await map_batch(client, "m", ["a", "b"], journal=journal)
    assert again.value == ("a", "b")
    assert len(services.batches) == 1


@pytest.mark.req("batches.journal")
@pytest.mark.parametrize("deadly", [4, 6])
async def test_a_killed_process_goes_on(
    services: Services, tmp_path: Path, service: str, deadly: int
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    async def start(deadly: int) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            service,
            services.server.url,
            KEY,
            str(tmp_path / "runs.db"),
            str(deadly),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate()
        return int(process.returncode or 0), out.decode(), err.decode()

    code, _, err = await start(deadly)
    assert code == -signal.SIGKILL, err
    code, out, err = await start(0)
    if deadly == 4 and service == "anthropic":  # made, and not yet on record
        assert "InDoubtError" in err
        assert "`msgbatch_1`" in err
    else:
        assert (code, out) == (0, "a b 2\n"), err
    assert len(services.batches) == (1 if deadly > 3 or code == 0 else 0)
    assert len(services.batches) == 1
