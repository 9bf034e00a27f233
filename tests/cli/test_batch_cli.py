"""`batch`: the steps, the whole, and leaving early."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from executionkit._clock import use_clock
from executionkit.testing.http import json_reply
from tests.batches.services import KEY, Services, SkippingClock

LINES = [
    {"custom_id": "a", "text": "one"},
    {"id": 7, "text": "two"},
    {"text": "three"},
]
TEMPLATE = ("-p", "say {text}")


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def clock() -> Iterator[SkippingClock]:
    clock = SkippingClock()
    with use_clock(clock):
        yield clock


@pytest.fixture
async def services(clock: SkippingClock) -> AsyncIterator[Services]:
    services = Services()
    services.clock = clock
    async with services.server:
        yield services


@pytest.fixture(params=["anthropic", "openai"])
def settings(
    request: pytest.FixtureRequest,
    services: Services,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, str]:
    """The environment of a service."""
    url = services.server.url
    found = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}
    found["ANTHROPIC_MODEL"] = "m"
    if request.param == "openai":
        found = {"EXECUTIONKIT_API_KEY": KEY, "EXECUTIONKIT_BASE_URL": f"{url}/v1"}
        found["EXECUTIONKIT_MODEL"] = "m"
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def call(settings: dict[str, str], invoke: Callable[..., Any]) -> Any:
    """Runs a command beside the server."""

    async def call(*arguments: str, stdin: str = "") -> Any:
        return await asyncio.to_thread(invoke, "batch", *arguments, stdin=stdin)

    return call


@pytest.mark.req("cli.batch")
async def test_the_steps_of_a_batch(
    call: Any, services: Services, write: Any, folder: Any
) -> None:
    services.looks_needed = 3
    write("in.jsonl", LINES)
    done = await call("submit", "in.jsonl", *TEMPLATE, "--max-tokens", "9")
    assert done.exit_code == 0
    (batch_id,) = services.batches
    assert done.stdout == f"{batch_id}\n"
    assert f"batch wait {batch_id}" in done.stderr
    (batch,) = services.batches.values()
    assert [one["custom_id"] for one in batch.requests] == ["a", "7", "line-3"]
    body = batch.requests[0].get("params") or batch.requests[0]["body"]
    assert (body["model"], body["max_tokens"]) == ("m", 9)

    early = await call("results", batch_id)
    assert (early.exit_code, early.stdout) == (1, "")
    assert "not over" in early.stderr
    status = await call("status", batch_id, "--json")
    assert (status.exit_code, json.loads(status.stdout)["status"]) == (0, "in_progress")
    waited = await call("wait", batch_id)
    assert waited.exit_code == 0
    assert "3 of 3 done" in waited.stdout

    found = await call("results", batch_id, "-i", "in.jsonl", *TEMPLATE)
    assert found.exit_code == 0
    assert [(row["custom_id"], row["output"]) for row in rows(found.stdout)] == [
        ("a", "say one"),
        ("7", "say two"),
        ("line-3", "say three"),
    ]
    assert rows(found.stdout)[0]["cost"]["output_tokens"] == 3
    assert "3 of 3 answered; 3 calls, 30 tokens in, 9 tokens out" in found.stderr
    plain = await call("results", batch_id, "-o", "out.jsonl")
    assert (plain.exit_code, plain.stdout) == (0, "")
    written = (folder / "out.jsonl").read_text()
    ids = {row["custom_id"] for row in rows(written)}
    assert ids == {"a", "7", "line-3"}
    for name in ("out.jsonl", "in.jsonl"):
        more = ("-i", "in.jsonl", *TEMPLATE, "--overwrite") if name[0] == "i" else ()
        again = await call("results", batch_id, "-o", name, *more)
        assert again.exit_code == 2
    assert (folder / "in.jsonl").read_text()


@pytest.mark.req("cli.batch")
async def test_all_in_one_with_what_failed_in_its_place(
    call: Any, services: Services
) -> None:
    def answer(name: str, text: str) -> Any:
        return {"x": {"errored": f"no {KEY}"}, "y": {"absent": 1}}.get(name, text)

    services.answer = answer
    lines = [
        {"id": "x", "prompt": "1"},
        {"id": "y", "messages": [{"role": "user", "content": "2"}]},
        {"id": "z", "prompt": "3", "params": {"model": "big"}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = await call("run", stdin=text)
    assert done.exit_code == 1
    found = rows(done.stdout)
    assert [row["status"] for row in found] == ["errored", "missing", "succeeded"]
    assert found[0]["error"]["type"] == "invalid_request_error"
    assert found[2]["output"] == "3"
    assert KEY not in done.output
    (batch,) = services.batches.values()
    body = batch.requests[2].get("params") or batch.requests[2]["body"]
    assert body["model"] == "big"
    again = await call("run", "--id", batch.id, "--quiet", stdin=text)
    assert rows(again.stdout) == found
    assert len(services.batches) == 1


@pytest.mark.req("cli.batch")
async def test_a_canceled_batch_keeps_its_results(
    call: Any, services: Services, write: Any
) -> None:
    services.looks_needed = 10_000
    services.answer = lambda name, text: text if name == "a" else {"canceled": 1}
    write("in.jsonl", LINES)
    batch_id = (await call("submit", "in.jsonl", *TEMPLATE)).stdout.strip()
    done = await call("cancel", batch_id)
    assert done.exit_code == 0
    assert "cancel" in done.stdout
    services.looks_needed = 0
    assert (await call("wait", batch_id)).exit_code == 0
    found = await call("results", batch_id)
    assert found.exit_code == 1
    kinds = sorted(row["status"] for row in rows(found.stdout))
    assert kinds == ["canceled", "canceled", "succeeded"]


@pytest.mark.req("cli.batch")
@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}\n', "used twice"),
        ('{"id": "", "prompt": "x"}\n', "is empty"),
        ("{\n", "line 1 is no request"),
        ('"fine"\n{"x": 1}\n', "line 2 is no request"),
        ('{"id": "a", "prompt": "x", "params": 3}\n', "must be an object"),
        ('{"id": "a", "prompt": "x", "params": {"stream": true}}\n', "come whole"),
        ("", "no requests"),
    ],
)
async def test_input_that_is_no_batch_is_refused_before_the_upload(
    call: Any, services: Services, stdin: str, words: str
) -> None:
    for command in ("submit", "run"):
        done = await call(command, stdin=stdin)
        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr
    assert services.log == []


@pytest.mark.req("cli.batch")
async def test_failures_have_their_codes(call: Any, services: Services) -> None:
    done = await call("status", "nobody", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["type"] == "PermanentError"
    assert (await call("status", "../x")).exit_code == 2
    refused = json_reply({"error": {"message": "no"}}, status=403)
    services.fail("POST .*", refused)
    assert (await call("run", stdin='"x"\n')).exit_code == 1
    services.looks_needed = 10_000
    late = await call("run", "--timeout", "5", "--json", stdin='"x"\n')
    assert late.exit_code == 1
    error = json.loads(late.stdout)["error"]
    assert error["code"] == "LLM_TIMEOUT"
    assert error["metadata"]["batch_id"] in services.batches


@pytest.mark.req("cli.batch")
def test_without_a_service_nothing_is_asked(invoke: Callable[..., Any]) -> None:
    assert invoke("batch", "status", "b").exit_code == 3
    assert invoke("batch", "status", "b", "--provider", "mock").exit_code == 2
    assert invoke("batch", "status", "b", "--provider", "anthropic").exit_code == 3


@pytest.mark.req("cli.batch")
@pytest.mark.parametrize("command", ["run", "piped", "wait"])
async def test_ctrl_c_names_the_batch_and_how_to_go_on(
    services: Services,
    settings: dict[str, str],
    program: Any,
    write: Any,
    invoke: Callable[..., Any],
    command: str,
    folder: Path,
) -> None:
    services.looks_needed = 10_000
    write("in.jsonl", LINES)
    kind = "anthropic" if "ANTHROPIC_MODEL" in settings else "openai"
    more = [*TEMPLATE, "-o", "the out.jsonl", "--provider", kind]
    arguments = ["run", "in.jsonl", *more]
    if command == "piped":
        arguments = ["run", *more]
    if command == "wait":
        ran = await asyncio.to_thread(invoke, "batch", "submit", "in.jsonl", *TEMPLATE)
        arguments = ["wait", ran.stdout.strip()]
    services.looked.clear()
    program.environment |= settings
    stdin = (folder / "in.jsonl").open() if command == "piped" else None
    process = program.start("batch", *arguments, "--interval", "60", stdin=stdin)
    with process, stdin or nullcontext():
        async with asyncio.timeout(15):
            await services.looked.wait()
        process.send_signal(signal.SIGINT)
        out, errors = await asyncio.to_thread(process.communicate, timeout=10)
    assert (process.returncode, out) == (130, "")
    (batch_id,) = services.batches
    last = errors.splitlines()[-1]
    assert f"interrupted; batch {batch_id} goes on" in last
    assert not services.batches[batch_id].canceled
    _, again, _, end, _ = last.split("`")
    services.looks_needed = 0
    for one in again.split(" && "):
        done = await asyncio.to_thread(invoke, *shlex.split(one)[1:])
        assert done.exit_code == 0, done.stderr
    if command != "wait":
        found = rows((folder / "the out.jsonl").read_text())
        assert sorted(row["output"] for row in found) == [
            "say one",
            "say three",
            "say two",
        ]
    assert list(services.batches) == [batch_id]
    shown = f"executionkit batch cancel {batch_id}"
    assert end == (shown if command == "wait" else f"{shown} --provider {kind}")


@pytest.mark.req("cli.batch")
@pytest.mark.parametrize("settings", ["anthropic"], indirect=True)
async def test_a_file_that_is_there_is_replaced_when_that_is_meant(
    call: Any, services: Services, write: Any, folder: Path
) -> None:
    write("in.jsonl", LINES)
    arguments = ("run", "in.jsonl", *TEMPLATE, "-o", "out.jsonl")
    assert (await call(*arguments)).exit_code == 0
    out = folder / "out.jsonl"
    first = out.read_text()
    refused = await call(*arguments)
    assert (refused.exit_code, len(services.batches)) == (2, 1)
    assert "give --overwrite" in refused.stderr
    assert "--resume" not in refused.stderr
    kept = (*arguments, "--journal", "runs.db")
    for _ in range(2):  # what the first one wrote, and what the journal has
        assert (await call(*kept)).exit_code == 0
        assert out.read_text() == first
    assert len(services.batches) == 2
    out.write_text("my notes\n")
    refused = await call(*kept)
    assert (refused.exit_code, out.read_text()) == (2, "my notes\n")
    assert "holds no results of `batch`" in refused.stderr
    assert (await call(*kept, "--overwrite")).exit_code == 0
    assert out.read_text() == first


async def stopped(
    program: Any, services: Services, number: signal.Signals, *arguments: str
) -> tuple[int, list[str]]:
    """Run `batch run` until it waits, and stop it; its code and the lines of stderr."""
    services.looked.clear()
    process = program.start("batch", "run", *arguments, "--interval", "60")
    with process:
        async with asyncio.timeout(15):
            await services.looked.wait()
        process.send_signal(number)
        out, errors = await asyncio.to_thread(process.communicate, timeout=10)
    assert out == ""
    return process.returncode, errors.splitlines()


@pytest.mark.req("cli.batch")
async def test_with_a_journal_the_same_command_goes_on(
    call: Any, services: Services, settings: dict[str, str], program: Any, write: Any
) -> None:
    services.looks_needed = 10_000
    write("in.jsonl", LINES)
    program.environment |= settings
    arguments = ("in.jsonl", *TEMPLATE, "--journal", "runs.db")
    code, _ = await stopped(program, services, signal.SIGKILL, *arguments)
    assert code == -signal.SIGKILL
    code, errors = await stopped(program, services, signal.SIGINT, *arguments)
    assert code == 130
    assert "the same command goes on with the batch" in errors[-1]
    (batch_id,) = services.batches
    services.looks_needed = 0
    done = await call("run", *arguments)
    assert done.exit_code == 0
    found = [row["output"] for row in rows(done.stdout)]
    assert found == ["say one", "say two", "say three"]
    assert list(services.batches) == [batch_id]
    asked = len(services.log)
    assert (await call("run", *arguments)).stdout == done.stdout
    assert len(services.log) == asked
    other = await call("run", "in.jsonl", "-p", "{text}!", "--journal", "runs.db")
    assert other.exit_code == 1
    assert "JournalMismatchError" in other.stderr
    assert "for a new run give `--run NAME`, another one than 'batch'" in other.stderr
    more = await call("run", *arguments, "--run", "again")
    assert (more.exit_code, len(services.batches)) == (0, 2)
    assert (await call("run", *arguments, "--run", "")).exit_code == 2


@pytest.mark.req("cli.batch")
async def test_leaving_can_end_the_batch(
    services: Services, settings: dict[str, str], program: Any, write: Any
) -> None:
    services.looks_needed = 10_000
    write("in.jsonl", LINES)
    program.environment |= settings
    arguments = ("in.jsonl", *TEMPLATE, "--cancel-on-exit")
    code, errors = await stopped(program, services, signal.SIGINT, *arguments)
    assert code == 130
    (batch,) = services.batches.values()
    assert batch.canceled
    assert f"batch `{batch.id}` was asked to end" in errors[-1]


@pytest.mark.req("cli.batch")
@pytest.mark.parametrize("settings", ["anthropic"], indirect=True)
async def test_a_batch_in_doubt_says_how_to_go_on(
    call: Any, services: Services, write: Any, invoke: Callable[..., Any]
) -> None:
    write("in.jsonl", LINES)
    services.lose("POST /v1/messages/batches")
    arguments = ("run", "in.jsonl", *TEMPLATE, "--journal", "runs.db")
    doubt = await call(*arguments)
    assert doubt.exit_code == 1
    (batch_id,) = services.batches
    command = doubt.stderr.partition("executionkit journal resolve ")[2].split("\n")[0]
    command = command.partition(";")[0].replace("ID", batch_id)
    resolved = await asyncio.to_thread(
        invoke, "journal", "resolve", *shlex.split(command)
    )
    assert resolved.exit_code == 0
    done = await call(*arguments)
    assert (done.exit_code, list(services.batches)) == (0, [batch_id])


@pytest.mark.req("cli.batch")
@pytest.mark.parametrize("settings", ["anthropic"], indirect=True)
async def test_what_the_page_about_it_shows_runs(
    services: Services, settings: dict[str, str], program: Any, folder: Path
) -> None:
    services.looks_needed = 0
    program.environment |= settings
    done = await asyncio.to_thread(program.run_page, "batches.md")
    assert done.returncode == 0, done.stderr
    found = rows((folder / "out.jsonl").read_text())
    assert [row["custom_id"] for row in found] == ["row-1", "row-2"]
    assert list(services.batches) == ["msgbatch_1", "msgbatch_2"]
