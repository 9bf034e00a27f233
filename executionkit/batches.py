"""Many requests at once, at a lower price, some time within a day.

```python
client = AnthropicBatchClient(api_key, model="claude-sonnet-4-5")
requests = [BatchRequest(f"row-{n}", text) for n, text in enumerate(texts)]
result = await run_batch(client, requests, on_submitted=lambda batch: save(batch.id))
result["row-0"].text, result.failed, result.cost
```

`run_batch` submits, waits and collects; `submit_batch`, `wait_for_batch` and
`collect_batch` do one of these each. A batch outlives the process that made it: whoever
has its id can go on with it (`batch_id=`). What one request of it came to never touches
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from executionkit._arguments import check_callable, check_prompt, check_trace
from executionkit._batches.anthropic import AnthropicBatchClient
from executionkit._batches.asking import Patience
from executionkit._batches.client import checked_id
from executionkit._batches.collecting import check_not_failed, collect
from executionkit._batches.openai import OpenAIBatchClient
from executionkit._batches.running import Run
from executionkit._batches.strict import adapted, answers_of, vote
from executionkit._batches.submitting import checked, encoded, submit
from executionkit._batches.values import (
    BatchClient,
    BatchCounts,
    BatchItem,
    BatchItemStatus,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
    BatchStatus,
)
from executionkit._batches.waiting import BatchCallback, handing_back, wait
from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit._ids import new_id
from executionkit.engine._checks import check_int, check_number
from executionkit.types import PatternResult, VotingStrategy

if TYPE_CHECKING:
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback

__all__ = (
    "AnthropicBatchClient",
    "BatchCallback",
    "BatchClient",
    "BatchCounts",
    "BatchItem",
    "BatchItemStatus",
    "BatchLimits",
    "BatchRequest",
    "BatchResult",
    "BatchState",
    "BatchStatus",
    "OpenAIBatchClient",
    "cancel_batch",
    "collect_batch",
    "consensus_batch",
    "map_batch",
    "run_batch",
    "submit_batch",
    "wait_for_batch",
)

_INTERVAL: Final = 5.0
_DAY: Final = 90_000.0
"""Both services are done after 24 hours; this is one more."""

_HALF_HOUR: Final = 1800.0
_GRACE: Final = 30.0
_MAX_FAILURES: Final = 30


async def run_batch(  # noqa: PLR0913 - settings that have defaults
    client: BatchClient,
    requests: Iterable[BatchRequest],
    *,
    batch_id: str | None = None,
    poll_interval: float = _INTERVAL,
    timeout: float | None = _DAY,
    grace: float = _GRACE,
    on_submitted: BatchCallback | None = None,
    on_progress: BatchCallback | None = None,
    cancel_on_exit: bool = False,
    journal: Journal | None = None,
    trace: TraceCallback | None = None,
) -> BatchResult:
    """Submit `requests` as one batch, wait for its end, and collect the results.

    Leaving early loses nothing: every exception that ends the wait, a cancellation
    included, has the batch's id (`metadata["batch_id"]` of a library error, the
    attribute `batch_id` of any other, and a note), and the batch goes on unless
    `cancel_on_exit`. To survive the end of the process, store the id in `on_submitted`.

    Args:
        client: The service.
        requests: What to ask.
        batch_id: A batch that was submitted before, with the same requests: nothing is
            submitted, it is waited for.
        poll_interval: Seconds between two looks at the batch.
        timeout: Seconds to wait for its end. None = no limit; the deadline of the
            current context counts in any case.
        grace: Seconds for which an answer 404 is taken for "not yet": services know a
            new batch, and its results, a moment late.
        on_submitted: Called with the batch as soon as it exists.
        on_progress: Called with the batch after each look at it.
        cancel_on_exit: Ask the service to end the batch when the wait ends without a
            result.
        journal: Keeps the batch's id and its results, so that a run which was killed
            at any moment goes on: nothing is submitted twice. If it was killed between
            the upload and the answer, the batch is looked up, as in `submit_batch`.
        trace: Receives `pattern_start` and `pattern_end`.

    Raises:
        TypeError, ValueError: For requests that no batch can hold; nothing is uploaded.
        PermanentError: When the service refuses the batch, or does not know it.
        ProviderTimeoutError: When it did not end within `timeout`.
        LLMError: When the service cannot be reached. If results could not be read to
            their end, `metadata["result"]` and `cost` have what could be; if it is not
            known whether there is a batch, see `submit_batch`.
        JournalError: See `Journal`; `InDoubtError` when it is not known whether there
            is a batch, with `metadata["candidates"]` (and `candidates_created_at`).
    """
    check_trace(trace)
    job = checked(client, requests)
    for name, called in (("on_submitted", on_submitted), ("on_progress", on_progress)):
        if called is not None:
            check_callable(name, called)
    if batch_id is not None:
        checked_id(batch_id)
    run = Run(
        client=client,
        job=job,
        patience=_patience(poll_interval, timeout, grace),
        reading=_patience(min(poll_interval, 1.0), None, grace),
        on_submitted=on_submitted,
        on_progress=on_progress,
        cancel_on_exit=cancel_on_exit,
    )
    return await run.go(batch_id, journal, trace)


async def submit_batch(
    client: BatchClient,
    requests: Iterable[BatchRequest],
    *,
    key: str | None = None,
) -> BatchState:
    """Make a batch of `requests`, and do not wait for it.

    An answer that gets lost may have made a batch, so it is looked for before anything
    is sent again: by `key` where the service keeps one (OpenAI), else among its batches
    of that moment and that size (Anthropic).

    Args:
        client: The service.
        requests: What to ask.
        key: A name for this batch, at most 512 characters. None = a fresh one.

    Raises:
        TypeError, ValueError: For requests that no batch can hold; nothing is uploaded.
        LLMError: When there is no batch. With `metadata["in_doubt"]` there may be one:
            `metadata["candidates"]` has the ids of those that look like it.
    """
    job = checked(client, requests)
    patience = _patience(_INTERVAL, None, _GRACE)
    lines = await encoded(client, job)
    return await submit(client, lines, key=key or new_id(), patience=patience)


async def wait_for_batch(
    client: BatchClient,
    batch_id: str,
    *,
    poll_interval: float = _INTERVAL,
    timeout: float | None = _DAY,
    grace: float = _GRACE,
    on_progress: BatchCallback | None = None,
    cancel_on_exit: bool = False,
) -> BatchState:
    """Wait until a batch is over, whoever made it; for the arguments see `run_batch`.

    Returns:
        The batch; `status` says whether it has results.

    Raises:
        PermanentError: When the service does not know it.
        ProviderTimeoutError: When it did not end within `timeout`.
        LLMError: When the service cannot be reached.
    """
    checked_id(batch_id)
    patience = _patience(poll_interval, timeout, grace)
    async with handing_back(client, batch_id, cancel_on_exit=cancel_on_exit):
        return await wait(client, batch_id, patience, on_progress)


async def collect_batch(
    client: BatchClient,
    batch: BatchState | str,
    requests: Iterable[BatchRequest] | None = None,
) -> BatchResult:
    """The results of a batch that is over: completed, canceled or expired.

    Args:
        client: The service.
        batch: The batch, or its id.
        requests: What was asked: the items come in this order, and those that the
            results do not mention are among them. None = what the results have, in
            their order; answers to a `response_format` are read as plain messages.

    Raises:
        ValueError: When the batch is not over.
        PermanentError: When it has failed as a whole, or the service does not know it.
        LLMError: When the results cannot be read to their end; `metadata["result"]`
            and `cost` have what could be.
    """
    job = None if requests is None else checked(client, requests)
    patience = _patience(1.0, None, _GRACE)
    state = batch
    if isinstance(state, str):
        checked_id(state)
        state = await patience.ask(lambda: client.retrieve(str(batch)))
    if not state.is_over:
        msg = f"batch `{state.id}` is {state.status}; wait for it with `wait_for_batch`"
        raise ValueError(msg)
    check_not_failed(state)
    if job is None:
        return await collect(client, state, None, None, patience)
    return await collect(client, state, job.ids, job.by_id, patience)


async def cancel_batch(client: BatchClient, batch_id: str) -> BatchState:
    """Ask the service to end a batch early.

    It goes on until what was begun is done; then `collect_batch` has the results that
    there are, and their cost.

    Raises:
        LLMError: When the service does not take it.
    """
    checked_id(batch_id)
    patience = _patience(1.0, None, 0.0)
    return await patience.ask(lambda: client.cancel(batch_id))


async def consensus_batch(  # noqa: PLR0913 - settings that have defaults
    client: BatchClient,
    model: str,
    prompt: str,
    *,
    num_samples: int = 5,
    strategy: VotingStrategy | str = VotingStrategy.MAJORITY,
    normalizer: Callable[[str], str] | None = None,
    temperature: float | None = 0.9,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    batch_id: str | None = None,
    poll_interval: float = _INTERVAL,
    timeout: float | None = _HALF_HOUR,
    on_submitted: BatchCallback | None = None,
    journal: Journal | None = None,
) -> PatternResult[str]:
    """`consensus` in one batch: ask the same question several times, and vote.

    Args:
        client: The service.
        model: The model's name.
        prompt: What to ask.
        num_samples: How often.
        strategy: See `consensus`, as for `normalizer`.
        normalizer: None = Unicode form and white space only.
        temperature: None = not sent.
        max_tokens: Output tokens per sample.
        batch_id: See `run_batch`, as for all that follow.
        poll_interval: Seconds.
        timeout: Seconds.
        on_submitted: Gets the batch.
        journal: Keeps the run.

    Returns:
        The winner as the model wrote it; the score is the share of votes it got.
        Metadata: `agreement_ratio`, `unique_responses`, `tie_count`, `batch_id`,
        `votes`, `empty_samples`, `truncated_samples`, `answers`.

    Raises:
        ConsensusFailedError: When no sample can vote, or unanimity is broken.
        ProviderError: When a sample has no answer; `metadata["result"]` has the others.
        LLMError: See `run_batch`.
    """
    check_int("num_samples", num_samples, 1)
    check_prompt("prompt", prompt)
    chosen = VotingStrategy(strategy)
    params = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
    result = await run_batch(
        adapted(client),
        [
            BatchRequest(f"consensus-{number}", prompt, params)
            for number in range(num_samples)
        ],
        batch_id=batch_id,
        poll_interval=poll_interval,
        timeout=timeout,
        on_submitted=on_submitted,
        journal=journal,
    )
    tally, facts = vote(result, chosen, normalizer)
    counted = {
        "agreement_ratio": tally.agreement_ratio,
        "unique_responses": tally.unique_responses,
        "tie_count": tally.tie_count,
    }
    return PatternResult(
        tally.winner, tally.agreement_ratio, result.cost, {**counted, **facts}
    )


async def map_batch(  # noqa: PLR0913 - settings that have defaults
    client: BatchClient,
    model: str,
    prompts: Sequence[str],
    *,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    temperature: float | None = None,
    batch_id: str | None = None,
    poll_interval: float = _INTERVAL,
    timeout: float | None = _HALF_HOUR,
    on_submitted: BatchCallback | None = None,
    journal: Journal | None = None,
) -> PatternResult[tuple[str, ...]]:
    """Answer each prompt, in one batch; all or nothing. `run_batch` keeps the rest.

    Args:
        client: The service.
        model: The model's name.
        prompts: What to ask.
        max_tokens: Output tokens per answer.
        temperature: None = not sent.
        batch_id: See `run_batch`, as for all that follow.
        poll_interval: Seconds.
        timeout: Seconds.
        on_submitted: Gets the batch.
        journal: Keeps the run.

    Returns:
        The texts, in the order of the prompts. Metadata: `batch_id`, `num_requests`,
        `truncated_responses` (answers that were cut off at `max_tokens`).

    Raises:
        ValueError: When there are no prompts.
        ProviderError: When one has no answer; `metadata["result"]` has the others.
        LLMError: See `run_batch`.
    """
    if isinstance(prompts, str):
        msg = "`prompts` must be a list of texts, got one text"
        raise TypeError(msg)
    given = list(prompts)
    for prompt in given:
        check_prompt("prompts", prompt)
    if not given:
        msg = "`prompts` must be non-empty"
        raise ValueError(msg)
    params = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
    result = await run_batch(
        adapted(client),
        [BatchRequest(f"map-{n}", prompt, params) for n, prompt in enumerate(given)],
        batch_id=batch_id,
        poll_interval=poll_interval,
        timeout=timeout,
        on_submitted=on_submitted,
        journal=journal,
    )
    answers = answers_of(result)
    facts = {
        "batch_id": result.batch_id,
        "num_requests": len(given),
        "truncated_responses": sum(one.was_truncated for one in answers),
    }
    texts = tuple(one.content for one in answers)
    return PatternResult(texts, None, result.cost, facts)


def _patience(interval: float, timeout: float | None, grace: float) -> Patience:
    check_number("poll_interval", interval, above=True)
    check_number("grace", grace)
    if timeout is not None:
        check_number("timeout", timeout, above=True)
    return Patience(
        interval=interval, grace=grace, max_failures=_MAX_FAILURES, timeout=timeout
    )
