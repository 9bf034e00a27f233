"""Batches of both services: submitting, waiting, collecting, and what goes wrong."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from executionkit import (
    BatchClient,
    BatchItem,
    BatchItemStatus,
    BatchRequest,
    BatchState,
    BatchStatus,
    DeadlineExceededError,
    ExecutionContext,
    MemoryTraceSink,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    TokenUsage,
    cancel_batch,
    collect_batch,
    execution_scope,
    run_batch,
    submit_batch,
    wait_for_batch,
)
from executionkit.testing import ScriptedBatchClient
from executionkit.testing.http import Reply, json_reply, no_reply, reset_reply
from tests.batches.conftest import Make
from tests.batches.services import KEY, Services, SkippingClock

CREATE = "POST /v1/(messages/)?batches"
LOOK = r"GET /v1/(messages/)?batches/\w+"
RESULTS = "GET /v1/.*/(results|content)"
ODD = "a\u2028b\u2029c\x85d\x0be\x1cf\r\ng"


def ask(*names: str) -> list[BatchRequest]:
    return [BatchRequest(name, f"text of {name}") for name in names]


def statuses(result: Any) -> dict[str, str]:
    return {item.custom_id: str(item.status) for item in result.items}


def errors(status: int, **headers: str) -> Reply:
    return json_reply({"error": {"message": "no"}}, status=status, headers=headers)


@pytest.mark.req("batches.run", "D-36")
@pytest.mark.parametrize("transport", ["stdlib", "aiohttp", "httpx2", "httpx"])
async def test_every_request_gets_its_own_answer_over_every_transport(
    make: Make, service: str, transport: str, services: Services
) -> None:
    if transport != "stdlib":
        pytest.importorskip(transport)
    client = make(service, transport=transport)
    seen: list[BatchState] = []
    requests = [BatchRequest(f"row-{n}", f"{n} {ODD}") for n in range(30)]
    result = await run_batch(
        client, requests, on_submitted=seen.append, on_progress=seen.append
    )
    assert [item.custom_id for item in result.items] == [f"row-{n}" for n in range(30)]
    assert [item.text for item in result.items] == [f"{n} {ODD}" for n in range(30)]
    assert (result.ok, result.failed, result.problems) == (True, (), ())
    assert result.cost == TokenUsage(300, 90, 30)
    assert result["row-7"].cost == TokenUsage(10, 3, 1)
    assert {state.id for state in seen} == {result.batch_id}
    assert [state.status for state in seen] == ["in_progress", "in_progress", "ended"]
    assert seen[-1].counts.succeeded == seen[-1].counts.done == 30
    assert seen[0].expires_at is not None
    assert seen[0].created_at is not None
    assert seen[0].expires_at - seen[0].created_at == pytest.approx(86400)
    assert isinstance(client, BatchClient)
    assert pickle.loads(pickle.dumps(result)) == result
    with pytest.raises(KeyError):
        result["row-99"]


@pytest.mark.req("BA-01")
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["row-1", "row-1"], "used twice"),
        (["a", ""], "is empty"),
        (["a", "  "], "is empty"),
        (["x" * 65], "65 characters"),
        (["x" * 513], "513 characters"),
        (["a/b"], "characters outside of"),
        (["é"], "characters outside of"),
        ([], "no requests"),
    ],
)
async def test_ids_that_cannot_be_are_refused_before_the_upload(
    client: Any, services: Services, names: list[str], words: str, service: str
) -> None:
    if service == "openai" and (words.startswith("65") or "outside" in words):
        assert (await run_batch(client, ask(*names))).ok
        return
    for call in (run_batch, submit_batch):
        with pytest.raises(ValueError, match=words):
            await call(client, ask(*names))
    assert services.log == []


@pytest.mark.req("BA-01")
async def test_requests_that_no_batch_can_hold_are_refused_before_the_upload(
    make: Make, services: Services, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = make(service, model=None)
    with pytest.raises(ValueError, match="names no model"):
        await run_batch(nobody, ask("a"))
    client = make(service)
    one: Any = "a text"
    with pytest.raises(TypeError, match="must be a `BatchRequest`"):
        await run_batch(client, [one])
    small = client.limits
    object.__setattr__(small, "max_requests", small.max_requests)
    for change, words in (
        ({"max_requests": 1}, "at most 1 requests"),
        ({"max_bytes": 150}, "larger than 150 bytes"),
    ):
        from dataclasses import replace

        limits = replace(small, **change)
        monkeypatch.setattr(type(client), "limits", limits)
        with pytest.raises(ValueError, match=words):
            await run_batch(client, ask("a", "b"))
        monkeypatch.undo()
    assert services.log == []


@pytest.mark.req("batches.request")
def test_a_request_takes_a_text_or_messages_and_refuses_what_a_batch_cannot_have() -> (
    None
):
    system = {"role": "system", "content": "short"}
    user = {"role": "user", "content": "hi"}
    assert BatchRequest("a", "hi").messages == [user]
    assert BatchRequest("a", [system, user]).messages == [system, user]
    wrong: Any = 3
    raw: Any = b"x"
    given: Any
    for given in ((wrong, "x"), ("a", wrong), ("a", raw), ("a", "x", wrong)):
        with pytest.raises(TypeError):
            BatchRequest(*given)
    for name in ("stream", "messages", "custom_id"):
        with pytest.raises(ValueError, match=name):
            BatchRequest("a", "x", {name: 1})


@pytest.mark.req("batches.request")
async def test_params_reach_the_model_as_a_provider_sends_them(
    client: Any, services: Services, service: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    params = {"model": "big", "temperature": 0.5, "max_tokens": 7, "tools": [tool]}
    messages = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "hi"},
    ]
    result = await run_batch(client, [BatchRequest("a", messages, params)])
    response = result["a"].response
    assert response is not None
    assert response.model == "big"
    (sent,) = services.batches[result.batch_id].requests
    body = sent.get("params") or sent["body"]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("big", 0.5, 7)
    assert len(body["tools"]) == 1
    if service == "anthropic":
        assert body["system"] == "short"


@pytest.mark.req("batches.request")
async def test_an_answer_in_the_form_of_a_schema_is_read_as_anthropic_writes_it(
    make: Make, services: Services
) -> None:
    import json

    def answer(custom_id: str, text: str) -> dict[str, Any]:
        call = {"type": "tool_use", "id": "t", "name": "respond", "input": {"x": 1}}
        message = {"content": [call], "stop_reason": "tool_use", "usage": {}}
        result = {"type": "succeeded", "message": message}
        return {"raw": json.dumps({"custom_id": custom_id, "result": result})}

    services.answer = answer
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    request = BatchRequest("a", "hi", {"response_format": form})
    result = await run_batch(make("anthropic"), [request])
    assert result["a"].text == '{"x": 1}'


@pytest.mark.req("BA-04")
async def test_results_are_mapped_by_id_and_the_rest_is_reported(
    client: Any, services: Services
) -> None:
    def answer(custom_id: str, text: str) -> Any:
        return {
            "2": {"absent": 1},
            "5": {"absent": 1},
            "1": {"errored": f"too long, {KEY}"},
            "3": {"expired": 1},
        }.get(custom_id, text)

    services.answer = answer
    result = await run_batch(client, ask("1", "2", "3", "4", "5"))
    assert statuses(result) == {
        "1": "errored",
        "2": "missing",
        "3": "expired",
        "4": "succeeded",
        "5": "missing",
    }
    assert result["4"].text == "text of 4"
    assert "too long" in result["1"].error
    assert KEY not in result["1"].error
    assert result["1"].error_type == "invalid_request_error"
    assert result["1"].text is None
    assert result["2"].error == "the results do not mention it"
    assert result.cost == TokenUsage(10, 3, 1)
    assert result.texts == {"4": "text of 4"}
    assert not result.ok
    assert [item.custom_id for item in result.failed] == ["1", "2", "3", "5"]


@pytest.mark.req("BA-04", "D-36")
@pytest.mark.parametrize(
    "bad", ['{"custom_id": "2", "resu', "[]", "\x00", '"x"', "NaN-" + "[" * 5000]
)
async def test_a_line_that_cannot_be_read_loses_only_itself(
    client: Any, services: Services, bad: str
) -> None:
    services.answer = lambda name, text: {"raw": bad} if name == "2" else text
    result = await run_batch(client, ask("1", "2", "3"))
    assert statuses(result) == {"1": "succeeded", "2": "missing", "3": "succeeded"}
    (problem,) = result.problems
    assert "line 2 is" in problem
    assert result.cost.llm_calls == 2


@pytest.mark.req("BA-04")
async def test_duplicates_and_strangers_are_told_and_counted_once(
    client: Any, services: Services
) -> None:
    def reorder(lines: list[str]) -> list[str]:
        again = [lines[0], lines[0].replace('"a"', '"stranger"')] if lines else []
        return [*lines, *again]

    services.reorder = reorder
    result = await run_batch(client, ask("a", "b"))
    assert statuses(result) == {"a": "succeeded", "b": "succeeded"}
    assert len(result.problems) == 2
    assert "duplicate result for 'a'" in result.problems[0]
    assert "'stranger'" in result.problems[1]
    assert result.cost.llm_calls == 3  # the stranger was answered, and paid for


@pytest.mark.req("BA-04")
async def test_an_answer_counts_more_than_an_error_for_the_same_request() -> None:
    item = BatchItem("a", BatchItemStatus.SUCCEEDED, cost=TokenUsage(1, 1, 1))
    error = BatchItem("a", BatchItemStatus.ERRORED, error="no")

    class Doubled(ScriptedBatchClient):
        lines: tuple[BatchItem, ...] = ()

        async def results(self, state: Any, requests: Any) -> AsyncGenerator[BatchItem]:
            for one in self.lines:
                yield one

    for lines in ((error, item, error), (item, error, error)):
        client = Doubled(lambda request: "x", looks=1)
        client.lines = lines
        result = await run_batch(client, ask("a"))
        assert result.items == (item,)
        assert len(result.problems) == 2
        assert result.cost == item.cost


@pytest.mark.req("BA-04")
async def test_a_result_of_another_shape_is_an_error_of_its_request_alone(
    client: Any, services: Services, service: str
) -> None:
    import json

    shapes: dict[str, Any] = {
        "none": {},
        "unknown": {"result": {"type": "lost"}},
        "paid": {
            "result": {
                "type": "succeeded",
                "message": {"usage": {"input_tokens": 8, "output_tokens": 2}},
            },
            "response": {
                "status_code": 200,
                "body": {"usage": {"prompt_tokens": 8, "completion_tokens": 2}},
            },
        },
        "server": {
            "result": {"type": "errored", "error": {"type": "api_error"}},
            "response": {"status_code": 500, "body": "oops"},
        },
    }

    def answer(name: str, text: str) -> Any:
        if name not in shapes:
            return text
        return {"raw": json.dumps({"custom_id": name, **shapes[name]})}

    services.answer = answer
    result = await run_batch(client, ask("none", "unknown", "paid", "server", "good"))
    kinds = [item.error_type for item in result.items]
    assert kinds[:3] == ["malformed_result", "malformed_result", "malformed_message"]
    assert all(item.error for item in result.failed)
    assert result["good"].ok
    assert result["paid"].cost == TokenUsage(8, 2, 1)
    assert result.cost == TokenUsage(18, 5, 2)


@pytest.mark.req("batches.cost")
async def test_tokens_from_the_cache_are_counted(
    make: Make, services: Services
) -> None:
    services.usage = {
        "input_tokens": 10,
        "output_tokens": 3,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 2,
    }
    result = await run_batch(make("anthropic"), ask("a", "b"))
    assert result.cost.cache_read_tokens == 10
    assert result.cost.cache_write_tokens == 4
    assert result.cost.input_tokens == 34


@pytest.mark.req("BA-03")
async def test_a_404_soon_after_the_creation_and_the_end_is_waited_out(
    client: Any, services: Services
) -> None:
    services.fail(LOOK, errors(404), times=2)
    services.fail(RESULTS, errors(404))
    assert (await run_batch(client, ask("a"))).ok


@pytest.mark.req("BA-03")
@pytest.mark.parametrize("where", [LOOK, RESULTS])
async def test_a_404_that_stays_is_an_error(
    client: Any, services: Services, clock: SkippingClock, where: str
) -> None:
    services.fail(where, errors(404), times=1000)
    with pytest.raises(PermanentError, match="404") as caught:
        await run_batch(client, ask("a"), grace=30)
    assert 20 <= sum(clock.sleeps) <= 50
    assert caught.value.metadata["batch_id"] in services.batches


@pytest.mark.req("batches.polling", "D-36")
async def test_failures_while_waiting_are_tried_again_as_the_server_asks(
    client: Any, services: Services, clock: SkippingClock
) -> None:
    services.fail(LOOK, errors(503))
    services.fail(LOOK, errors(429, **{"retry-after": "17"}))
    services.fail(LOOK, reset_reply())
    services.fail(LOOK, Reply(200, {}, b"<html>login</html>"))
    services.fail(LOOK, errors(529, **{"retry-after-ms": "9000"}))
    services.fail(RESULTS, errors(500))
    result = await run_batch(client, ask("a", "b"), poll_interval=2)
    assert result.ok
    assert 17 in clock.sleeps
    assert len(services.batches) == 1
    assert all(one >= 0.5 for one in clock.sleeps)


@pytest.mark.req("batches.polling", "D-36")
@pytest.mark.parametrize("status", [400, 401, 403])
async def test_what_will_not_pass_ends_the_wait_at_once_with_the_id(
    client: Any, services: Services, clock: SkippingClock, status: int
) -> None:
    services.fail(LOOK, errors(status), times=50)
    with pytest.raises(PermanentError) as caught:
        await run_batch(client, ask("a"))
    assert clock.sleeps == []
    assert caught.value.metadata["batch_id"] in services.batches
    assert caught.value.metadata["batch_id"] in " ".join(caught.value.__notes__)


@pytest.mark.req("batches.polling")
async def test_an_outage_without_end_is_given_up_with_the_id(
    client: Any, services: Services
) -> None:
    services.fail(LOOK, errors(503), times=1000)
    with pytest.raises(ProviderError, match="503") as caught:
        await run_batch(client, ask("a"), timeout=None)
    assert caught.value.metadata["batch_id"] in services.batches
    assert caught.value.retries_exhausted  # nobody outside submits it again
    assert "31 requests in a row failed" in caught.value.__notes__


@pytest.mark.req("batches.polling", "D-36")
async def test_the_wait_ends_at_the_timeout_whatever_the_interval(
    client: Any, services: Services, clock: SkippingClock
) -> None:
    services.looks_needed = 10_000
    with pytest.raises(ProviderTimeoutError, match="did not end within 7 s") as caught:
        await run_batch(client, ask("a"), timeout=7, poll_interval=2)
    assert 4 < sum(clock.sleeps) <= 7
    assert caught.value.metadata["batch_id"] in services.batches
    clock.sleeps.clear()
    with pytest.raises(ProviderTimeoutError):
        await run_batch(client, ask("a"), timeout=0.1, poll_interval=2)
    assert sum(clock.sleeps) <= 0.1


@pytest.mark.req("batches.polling")
async def test_a_hint_beyond_the_timeout_fails_at_once(
    client: Any, services: Services, clock: SkippingClock
) -> None:
    services.fail(LOOK, errors(429, **{"retry-after": "86400"}))
    with pytest.raises(RateLimitError) as caught:
        await run_batch(client, ask("a"), timeout=100)
    assert clock.sleeps == []
    assert "not tried again" in " ".join(caught.value.__notes__)


@pytest.mark.req("batches.polling")
async def test_a_server_that_does_not_answer_cannot_hold_the_wait(
    client: Any, services: Services
) -> None:
    services.looks_needed = 100
    services.fail(LOOK, no_reply())
    with pytest.raises(ProviderTimeoutError, match="did not end within"):
        await run_batch(client, ask("a"), timeout=0.05)


@pytest.mark.req("batches.polling")
async def test_the_deadline_of_the_context_counts(
    client: Any, services: Services, clock: SkippingClock
) -> None:
    services.looks_needed = 10_000
    with (
        execution_scope(ExecutionContext.with_deadline(22)),
        pytest.raises(DeadlineExceededError) as caught,
    ):
        await run_batch(client, ask("a"))
    assert 15 < sum(clock.sleeps) <= 22
    assert caught.value.metadata["batch_id"] in services.batches


@pytest.mark.req("batches.polling", "D-36")
@pytest.mark.parametrize("wrong", [{"poll_interval": 0}, {"timeout": 0}, {"grace": -1}])
async def test_settings_that_would_hammer_or_never_wait_are_refused(
    client: Any, services: Services, wrong: Any
) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        await run_batch(client, ask("a"), **wrong)
    assert services.log == []


@pytest.mark.req("BA-02")
async def test_a_timeout_around_it_has_the_batch_in_its_cause(
    client: Any, services: Services
) -> None:
    services.looks_needed = 10_000
    limit = asyncio.timeout(None)
    now = asyncio.get_running_loop().time
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(5), limit:
            await run_batch(
                client, ask("a"), on_progress=lambda _: limit.reschedule(now())
            )
    (batch_id,) = services.batches
    assert caught.value.__cause__.batch_id == batch_id  # type: ignore[union-attr]


@pytest.mark.req("BA-02")
async def test_cancelling_the_wait_hands_the_batch_back(
    client: Any, services: Services
) -> None:
    services.looks_needed = 10_000
    submitted: list[BatchState] = []
    looking = asyncio.Event()
    task = asyncio.create_task(
        run_batch(
            client,
            ask("a", "b"),
            on_submitted=submitted.append,
            on_progress=lambda _: looking.set(),
        )
    )
    async with asyncio.timeout(5):
        await looking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    (batch,) = submitted
    assert caught.value.batch_id == batch.id  # type: ignore[attr-defined]
    assert batch.id in " ".join(caught.value.__notes__)
    assert not services.batches[batch.id].canceled
    services.looks_needed = 0
    result = await run_batch(client, ask("a", "b"), batch_id=batch.id)
    assert result.ok
    assert len(services.batches) == 1


@pytest.mark.req("BA-02")
@pytest.mark.parametrize("broken", [False, True])
async def test_cancel_on_exit_ends_the_batch_on_the_server(
    client: Any, services: Services, *, broken: bool
) -> None:
    services.looks_needed = 10_000
    if broken:
        services.fail("POST /.*/cancel", errors(500))
    looking = asyncio.Event()
    task = asyncio.create_task(
        run_batch(
            client,
            ask("a"),
            cancel_on_exit=True,
            on_progress=lambda _: looking.set(),
        )
    )
    async with asyncio.timeout(5):
        await looking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    (batch,) = services.batches.values()
    assert batch.canceled is not broken
    note = " ".join(caught.value.__notes__)
    assert ("could not be canceled" if broken else "was asked to end") in note
    assert batch.id in note


@pytest.mark.req("batches.resume")
async def test_a_failing_callback_leaves_the_id(
    client: Any, services: Services
) -> None:
    async def fail(_state: BatchState) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full") as caught:
        await run_batch(client, ask("a"), on_submitted=fail)
    assert caught.value.batch_id in services.batches  # type: ignore[attr-defined]


@pytest.mark.req("batches.resume")
async def test_the_parts_go_together_across_processes(
    client: Any, make: Make, service: str, services: Services
) -> None:
    batch = await submit_batch(client, ask("b", "a"))
    assert batch.status is BatchStatus.IN_PROGRESS
    other = make(service)
    with pytest.raises(ValueError, match="is in_progress"):
        services.looks_needed = 5
        await collect_batch(other, batch.id)
    ended = await wait_for_batch(other, batch.id)
    assert ended.is_over
    plain = await collect_batch(other, ended)
    assert set(statuses(plain)) == {"a", "b"}
    mapped = await collect_batch(other, batch.id, ask("b", "a", "c"))
    assert list(statuses(mapped)) == ["b", "a", "c"]
    assert mapped["c"].status is BatchItemStatus.MISSING
    assert mapped.cost == plain.cost == TokenUsage(20, 6, 2)
    assert services.log.count("POST /v1/batches") <= 1


@pytest.mark.req("BA-05")
async def test_a_canceled_batch_keeps_what_is_done_and_its_cost(
    client: Any, services: Services
) -> None:
    done = {"1", "2", "3"}
    services.looks_needed = 10_000
    services.answer = lambda name, text: text if name in done else {"canceled": 1}
    names = ("1", "2", "3", "4", "5")
    batch = await submit_batch(client, ask(*names))
    canceling = await cancel_batch(client, batch.id)
    assert canceling.status is BatchStatus.CANCELING
    services.looks_needed = 3
    result = await run_batch(client, ask(*names), batch_id=batch.id)
    assert [item.status for item in result.items] == 3 * ["succeeded"] + 2 * [
        "canceled"
    ]
    assert result.cost == TokenUsage(30, 9, 3)


@pytest.mark.req("batches.results")
async def test_results_that_break_off_are_read_again(
    client: Any, services: Services
) -> None:
    def cut(done: Reply) -> Reply:
        return Reply(
            200, done.headers, done.pieces[:3], framing="chunked", ending="reset"
        )

    services.change(RESULTS, cut)
    services.change(RESULTS, cut)
    result = await run_batch(client, ask("a", "b", "c"))
    assert (result.ok, result.problems) == (True, ())
    assert result.cost.llm_calls == 3


@pytest.mark.req("batches.results")
async def test_results_that_keep_breaking_off_leave_what_was_read(
    client: Any, services: Services, clock: SkippingClock
) -> None:
    def cut(done: Reply) -> Reply:
        half = done.pieces[: len(done.pieces) * 2 // 3]
        return Reply(200, done.headers, half, framing="chunked", ending="cut")

    for _ in range(40):
        services.change(RESULTS, cut)
    with pytest.raises(ProviderConnectionError) as caught:
        await run_batch(client, ask("a", "b", "c"), cancel_on_exit=True)
    assert not any("cancel" in line for line in services.log)  # it is over
    partial = caught.value.metadata["result"]
    found = [item.custom_id for item in partial.items if item.ok]
    assert found == ["c"] or found == ["b", "c"]
    assert partial["a"].error == "the results could not be read to their end"
    assert (
        caught.value.cost
        == partial.cost
        == TokenUsage(10 * len(found), 3 * len(found), len(found))
    )


@pytest.mark.req("batches.once")
@pytest.mark.parametrize("status", [429, 529])
async def test_a_refused_creation_is_tried_again(
    client: Any, services: Services, status: int
) -> None:
    services.fail(CREATE, errors(status, **{"retry-after": "3"}))
    assert (await run_batch(client, ask("a"))).ok
    assert len(services.batches) == 1


@pytest.mark.req("batches.once")
async def test_a_creation_that_is_refused_for_good_is_told_as_it_is(
    client: Any, services: Services, service: str
) -> None:
    services.fail(CREATE, errors(400))
    with pytest.raises(PermanentError) as caught:
        await run_batch(client, ask("a"))
    assert "in_doubt" not in caught.value.metadata
    assert services.deleted == (["file-1"] if service == "openai" else [])


@pytest.mark.req("batches.once")
async def test_a_creation_whose_answer_got_lost_makes_no_second_batch(
    client: Any, services: Services, service: str
) -> None:
    services.lose(CREATE)
    if service == "openai":
        assert (await run_batch(client, ask("a"))).ok
    else:
        with pytest.raises(ProviderConnectionError) as caught:
            await run_batch(client, ask("a"))
        assert caught.value.metadata["in_doubt"] is True
        assert caught.value.metadata["candidates"] == ("msgbatch_1",)
        ((name, made),) = caught.value.metadata["candidates_created_at"].items()
        assert (name, made) == ("msgbatch_1", (await client.retrieve(name)).created_at)
        assert made is not None
        assert "`msgbatch_1` (made 2" in caught.value.__notes__[-1]
        assert caught.value.retries_exhausted
    assert len(services.batches) == 1


@pytest.mark.req("batches.once")
async def test_a_creation_that_was_lost_on_its_way_is_made_once(
    client: Any, services: Services, clock: SkippingClock
) -> None:
    await submit_batch(client, ask("x", "y"))  # another batch, which is not taken
    services.fail(CREATE, reset_reply())
    services.fail(CREATE, errors(502))
    assert (await run_batch(client, ask("a"))).ok
    assert len(services.batches) == 2
    assert sum(clock.sleeps) >= 14  # the service had time to list it


@pytest.mark.req("batches.once")
async def test_a_creation_that_cannot_be_looked_up_is_in_doubt(
    client: Any, services: Services
) -> None:
    services.fail(CREATE, reset_reply())
    services.fail("GET /v1/(messages/)?batches", errors(403))
    with pytest.raises(ProviderConnectionError) as caught:
        await run_batch(client, ask("a"))
    assert caught.value.metadata["in_doubt"] is True
    assert services.batches == {}


@pytest.mark.req("batches.once")
async def test_a_lookup_turns_pages(client: Any, services: Services) -> None:
    services.lose(CREATE)
    with pytest.raises(ProviderConnectionError):
        await client.create([client.encode(ask("a")[0])], key="mine")
    for _ in range(150):
        other: dict[str, Any] = {"params": {}}
        metadata = {"executionkit_key": "other"}
        services.begin("b", [other, other], metadata=metadata, file_id="file-1")
    found = await client.find(key="mine", requests=1, since=services.clock.wall())
    assert len(found) == 1
    services.clock.skipped += 86400
    assert await client.find(key="mine", requests=1, since=services.clock.wall()) == ()


@pytest.mark.req("batches.once")
async def test_an_upload_that_fails_is_tried_again(
    make: Make, services: Services
) -> None:
    services.fail("POST /v1/files", reset_reply())
    services.fail("POST /v1/files", errors(500))
    assert (await run_batch(make("openai"), ask("a"))).ok
    assert services.log.count("POST /v1/batches") == 1
    assert services.log.count("GET /v1/batches") == 0


@pytest.mark.req("batches.once")
async def test_cancelling_a_creation_names_the_key(
    client: Any, services: Services
) -> None:
    services.fail(CREATE, no_reply())
    task = asyncio.create_task(submit_batch(client, ask("a"), key="my-key"))
    await services.server.received(2 if type(client).__name__.startswith("O") else 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert "my-key" in " ".join(caught.value.__notes__)


@pytest.mark.req("batches.refused")
async def test_a_batch_that_the_service_refuses_as_a_whole_says_why(
    make: Make, services: Services
) -> None:
    def failed(done: Reply) -> Reply:
        import json

        body = b"".join(one for one in done.pieces if isinstance(one, bytes))
        found = json.loads(body)
        error = {"code": "bad_line", "message": f"no {KEY}", "line": 2, "param": None}
        errors = {"object": "list", "data": [error, None]}
        return json_reply({**found, "status": "failed", "errors": errors})

    services.change(LOOK, failed)
    with pytest.raises(PermanentError, match=r"bad_line: .*line 2") as caught:
        await run_batch(make("openai"), ask("a"))
    assert KEY not in str(caught.value)
    assert caught.value.metadata["batch_id"] == "batch_1"


@pytest.mark.req("batches.secrets")
async def test_no_key_is_in_any_error_or_repr(make: Make, service: str) -> None:
    client = make(service)
    assert KEY not in repr(client)
    assert client.known_secrets
    again = pickle.loads(pickle.dumps(client))
    assert again.known_secrets == client.known_secrets
    wrong = {"x-api-key": "other-key-99", "Authorization": "Bearer other-key-99"}
    with pytest.raises(PermanentError, match="wrong key") as caught:
        await run_batch(make(service, headers=wrong), ask("a"))
    shown = str(caught.value) + repr(caught.value.metadata)
    assert "other-key-99" not in shown
    assert "[REDACTED]" in shown


@pytest.mark.req("batches.secrets")
async def test_a_redirect_is_not_followed(client: Any, services: Services) -> None:
    away = Reply(302, {"location": f"{services.server.url}/elsewhere"})
    services.fail(RESULTS, away)
    with pytest.raises(PermanentError, match="302"):
        await run_batch(client, ask("a"))
    assert "GET /elsewhere" not in services.log


@pytest.mark.req("batches.secrets")
@pytest.mark.parametrize("bad", ["", "../x", "a/b", "a?b", "..", "a b", "x" * 257])
async def test_an_id_that_leads_elsewhere_is_refused(
    client: Any, services: Services, bad: str
) -> None:
    for call in (wait_for_batch, collect_batch, cancel_batch):
        with pytest.raises(ValueError, match="cannot be the id of a batch"):
            await call(client, bad)
    with pytest.raises(ValueError, match="cannot be the id of a batch"):
        await run_batch(client, ask("a"), batch_id=bad)
    assert services.log == []


@pytest.mark.req("batches.trace")
async def test_who_watches_is_told_of_the_run_and_its_cost(
    client: Any, services: Services
) -> None:
    sink = MemoryTraceSink()
    await run_batch(client, ask("a", "b"), trace=sink)
    start, end = sink.events
    assert (start.kind, end.kind) == ("pattern_start", "pattern_end")
    assert start.payload["pattern"] == end.payload["pattern"] == "batch"
    assert end.payload["cost"] == TokenUsage(20, 6, 2)
    assert end.payload["span_id"] == start.payload["span_id"]
    assert "error" not in end.payload
    services.fail(LOOK, errors(403))
    with pytest.raises(PermanentError):
        await run_batch(client, ask("a"), trace=sink)
    assert sink.events[-1].payload["error"] == "LLM_PERMANENT"
    wrong: Any = 3
    with pytest.raises(TypeError, match="trace"):
        await run_batch(client, ask("a"), trace=wrong)
