"""`batch`: many requests as one batch, in steps or at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any

from executionkit.cli._ask import choose_kind
from executionkit.cli._batch_again import command_words, how_to_go_on, output_file
from executionkit.cli._console import ConfigError, Exit, UsageError, as_json
from executionkit.cli._lines import (
    LineError,
    prompt_of,
    read_json_line,
    read_lines,
)
from executionkit.cli._options import ProviderKind
from executionkit.errors import ExecutionKitError, InDoubtError, JournalMismatchError

if TYPE_CHECKING:
    from executionkit.batches import BatchRequest, BatchResult, BatchState
    from executionkit.cli._job import Job
    from executionkit.cli._lines import OutputFile
    from executionkit.journal import Journal

__all__ = (
    "run_cancel",
    "run_results",
    "run_run",
    "run_status",
    "run_submit",
    "run_wait",
)

_HOW = (
    "no service for batches is configured: set ANTHROPIC_API_KEY and ANTHROPIC_MODEL, or "
    "give --provider openai and set EXECUTIONKIT_API_KEY and EXECUTIONKIT_MODEL"
)


def run_run(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    client, output = _client(job), output_file(job)
    return _run(job, client, output, _journal(job))


def run_submit(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    return _submit(job, _client(job))


def run_status(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    return _tell(job, _client(job), lambda client: client.retrieve(job["batch_id"]))


def run_cancel(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    from executionkit.batches import cancel_batch

    client = _client(job)
    return _tell(job, client, lambda client: cancel_batch(client, job["batch_id"]))


def run_wait(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    from executionkit.batches import wait_for_batch

    def wait(client: Any) -> Any:
        return wait_for_batch(client, job["batch_id"], **_waiting(job))

    client = _client(job)
    job.meter.done = lambda: how_to_go_on(job, "wait", job["batch_id"])
    return _tell(job, client, wait)


def run_results(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    return _results(job, _client(job), output_file(job))


def _client(job: Job) -> Any:
    """The client of the service that the options and the environment describe."""
    from executionkit.batches import AnthropicBatchClient, OpenAIBatchClient

    kind = choose_kind(job["provider"], job["base_url"])
    if kind is None:
        raise ConfigError(_HOW)
    makers: dict[ProviderKind, Callable[..., Any]] = {
        ProviderKind.ANTHROPIC: AnthropicBatchClient.from_env,
        ProviderKind.OPENAI: OpenAIBatchClient.from_env,
    }
    if kind not in makers:
        msg = f"`{kind}` has no batches; use `anthropic` or `openai`"
        raise UsageError(msg)
    given = {"model": job["model"], "base_url": job["base_url"]}
    settings = {name: value for name, value in given.items() if value is not None}
    try:
        client = makers[kind](**settings)
    except (TypeError, ValueError) as exc:
        msg = f"the service `{kind}` cannot be used: {exc}"
        raise ConfigError(msg) from exc
    job.console.secrets = client.known_secrets
    return client


def _journal(job: Job) -> Journal | None:
    if job["journal"] is None:
        return None
    from executionkit.journal import Journal

    try:
        return Journal.open(job["journal"], run=job["run"])
    except (TypeError, ValueError) as exc:
        msg = f"the journal cannot be used: {exc}"
        raise UsageError(msg) from exc


def _waiting(job: Job) -> dict[str, Any]:
    """The arguments of a wait."""
    from executionkit.cli._progress import batch_words

    def show(state: BatchState) -> None:
        job.console.note(batch_words(state))

    found: dict[str, Any] = {
        "poll_interval": job["interval"],
        "on_progress": _Changes(show),
    }
    if job["timeout"] is not None:
        found["timeout"] = job["timeout"]
    return found


class _Changes:
    """Shows a batch when it has changed."""

    def __init__(self, show: Callable[[BatchState], None]) -> None:
        self._show = show
        self._last: Any = None

    def __call__(self, state: BatchState) -> None:
        now = state.said, state.counts
        if now != self._last:
            self._last = now
            self._show(state)


async def _requests(job: Job) -> list[BatchRequest]:
    """The requests that the input describes.

    Raises:
        UsageError: When a line is no request.
    """
    params: dict[str, Any] = {
        name: job[name]
        for name in ("temperature", "max_tokens")
        if job[name] is not None
    }
    found: list[BatchRequest] = []
    number = 0
    lines = read_lines(job["input"])
    async with aclosing(lines):
        async for line in lines:
            if not line.strip():
                continue
            number += 1
            try:
                found.append(_request(line, number, job["template"], params))
            except (LineError, TypeError, ValueError) as exc:
                msg = f"line {number} is no request: {exc}"
                raise UsageError(msg) from exc
    return found


def _request(
    line: str, number: int, template: str | None, params: dict[str, Any]
) -> BatchRequest:
    from executionkit.batches import BatchRequest

    given = read_json_line(line)
    about: dict[str, Any] = given if isinstance(given, dict) else {}
    name: Any = about.get("custom_id", about.get("id", f"line-{number}"))
    custom_id: Any = str(name) if type(name) is int else name
    prompt: Any = about.get("messages") if template is None else None
    if prompt is None:
        prompt = prompt_of(given, line, template)
    own = about.get("params", {})
    if not isinstance(own, dict):
        msg = "its `params` must be an object"
        raise TypeError(msg)
    return BatchRequest(custom_id, prompt, {**params, **own})


async def _submit(job: Job, client: Any) -> int:
    from executionkit.batches import submit_batch

    async with client:
        requests = await _requests(job)
        job.meter.done = lambda: (
            "the batch may have been submitted; look at the service's list"
        )
        state = await submit_batch(client, requests)
    if job.wants_json:
        _write_state(job, state)
    else:
        job.console.result(state.id)
        go_on = command_words(job, "wait", batch_id=state.id)
        job.console.note(f"go on with: {go_on}")
    return Exit.OK


async def _tell(job: Job, client: Any, ask: Callable[[Any], Any]) -> int:
    from executionkit.batches import BatchStatus

    async with client:
        state = await ask(client)
    _write_state(job, state)
    return Exit.FAILED if state.status is BatchStatus.FAILED else Exit.OK


def _write_state(job: Job, state: BatchState) -> None:
    from executionkit.cli._progress import batch_words

    if not job.wants_json:
        job.console.result(batch_words(state))
        return
    counts = state.counts
    names = ("total", "processing", "succeeded", "errored", "canceled", "expired")
    job.console.json(
        {
            "batch_id": state.id,
            "status": str(state.status),
            "said": state.said,
            "counts": {name: getattr(counts, name) for name in names},
            "created_at": state.created_at,
            "expires_at": state.expires_at,
            "problems": list(state.problems),
        }
    )


async def _run(
    job: Job, client: Any, output: OutputFile | None, journal: Journal | None
) -> int:
    from executionkit.batches import run_batch

    def submitted(state: BatchState) -> None:
        _will_go_on(job, state.id)
        job.console.note(f"submitted batch {state.id}")

    async with client:
        requests = await _requests(job)
        if job["batch_id"] is not None:
            _will_go_on(job, job["batch_id"])
        elif journal is not None:
            job.meter.done = lambda: "the same command goes on with the batch, if any"
        else:
            job.meter.done = lambda: (
                "the batch may have been submitted; look at the service's list"
            )
        try:
            async with journal or nullcontext():
                result = await run_batch(
                    client,
                    requests,
                    batch_id=job["batch_id"],
                    on_submitted=submitted,
                    cancel_on_exit=job["cancel_on_exit"],
                    journal=journal,
                    **_waiting(job),
                )
        except ExecutionKitError as exc:
            _write_partial(job, exc, output)
            _say_how(job, exc)
            raise
        except asyncio.CancelledError as exc:
            if job["cancel_on_exit"] and hasattr(exc, "batch_id"):
                told = exc.__notes__[-1]  # whether it was asked to end
                job.meter.done = lambda: told
            raise
    return _write_results(job, result, output)


def _will_go_on(job: Job, batch_id: str) -> None:
    """What Ctrl-C says once there is a batch."""
    end = command_words(job, "cancel", batch_id=batch_id)
    if job["cancel_on_exit"]:
        job.meter.done = lambda: (
            f"batch {batch_id} was to end, and the service has not said yes; `{end}` "
            "ends it"
        )
    elif job["journal"] is not None:
        job.meter.done = lambda: (
            f"batch {batch_id} goes on; the same command goes on with it, `{end}` ends "
            "it"
        )
    else:
        job.meter.done = lambda: how_to_go_on(job, "run", batch_id)


def _say_how(job: Job, exc: ExecutionKitError) -> None:
    """How an operator says what came of a batch, or begins a new run."""
    if isinstance(exc, JournalMismatchError):
        job.console.note(
            f"for a new run give `--run NAME`, another one than {job['run']!r}"
        )
    for effect_id in exc.effect_ids if isinstance(exc, InDoubtError) else ():
        where = f"{job['journal']} {effect_id} --run {job['run']}"
        job.console.note(
            f"when there is a batch: executionkit journal resolve {where} --value "
            f"'\"ID\"'; when there is none: executionkit journal retry {where}"
        )


async def _results(job: Job, client: Any, output: OutputFile | None) -> int:
    from executionkit.batches import collect_batch
    from executionkit.cli._progress import batch_words

    async with client:
        requests = None if job["input"] is None else await _requests(job)
        state = await client.retrieve(job["batch_id"])
        if not state.is_over:
            job.console.error(f"executionkit: it is not over: {batch_words(state)}")
            return Exit.FAILED
        try:
            result = await collect_batch(client, state, requests)
        except ExecutionKitError as exc:
            _write_partial(job, exc, output)
            raise
    return _write_results(job, result, output)


def _write_partial(
    job: Job, error: ExecutionKitError, output: OutputFile | None
) -> None:
    """What could be read before it failed; the error does not repeat it."""
    result = error.metadata.pop("result", None)
    if result is not None:
        _write_results(job, result, output)


def _write_results(job: Job, result: BatchResult, output: OutputFile | None) -> int:
    console = job.console
    write = console.result if output is None else output.write
    with output or nullcontext():
        for index, item in enumerate(result.items):
            found: dict[str, Any] = {
                "index": index,
                "custom_id": item.custom_id,
                "status": str(item.status),
            }
            if item.ok:
                found["output"] = item.text
            else:
                error = {"type": item.error_type or str(item.status)}
                found["error"] = console.clean({**error, "message": item.error})
            found["cost"] = job.meter.json(item.cost)
            write(as_json(found))
    for problem in result.problems:
        console.error(f"executionkit: {problem}")
    failed = len(result.failed)
    done = f"{len(result.items) - failed} of {len(result.items)} answered"
    console.note(f"batch {result.batch_id}: {done}; {job.meter.words(result.cost)}")
    return Exit.OK if result.ok and not result.problems else Exit.FAILED
