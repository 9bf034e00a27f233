"""Before the upload: the checks. After it: which batch it made."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from executionkit._arguments import shown
from executionkit._batches.asking import MAX_SUBMITS, Patience, passes
from executionkit._batches.values import BatchClient, BatchRequest, BatchState
from executionkit._clock import get_clock
from executionkit._http.base import tick
from executionkit.errors import (
    DeadlineExceededError,
    ExecutionKitError,
    RateLimitError,
)

__all__ = ("Job", "checked", "encoded", "lookup", "named", "submit")

_SETTLE: Final = 10.0
"""Seconds after which a service lists a batch that it has made."""

_LOOKS: Final = 4
_AT_ONCE: Final = 200
"""Requests that are encoded before other tasks get a turn."""


_OVERLOADED: Final = 529
"""The status of a server that has not begun to work on a request."""


class Job(NamedTuple):
    """Requests that were checked."""

    ids: tuple[str, ...]
    by_id: Mapping[str, BatchRequest]


def checked(client: BatchClient, requests: Iterable[BatchRequest]) -> Job:
    """The requests, when one batch can hold them.

    Raises:
        TypeError: When one is no `BatchRequest`.
        ValueError: When there are none, or too many, or an id is empty, too long, has
            wrong characters, or occurs twice.
    """
    limits = client.limits
    allowed = limits.id_characters
    pattern = None if allowed is None else re.compile(f"{allowed}+")
    by_id: dict[str, BatchRequest] = {}
    given: Iterable[Any] = requests
    for number, request in enumerate(given, 1):
        if not isinstance(request, BatchRequest):
            msg = f"request {number} must be a `BatchRequest`, got {shown(request)}"
            raise TypeError(msg)
        name = request.custom_id
        problem = ""
        if not name.strip():
            problem = "is empty"
        elif len(name) > limits.max_id_chars:
            problem = f"has {len(name)} characters; {limits.max_id_chars} are allowed"
        elif pattern is not None and not pattern.fullmatch(name):
            problem = f"has characters outside of {allowed}"
        elif name in by_id:
            problem = "is used twice; give each request an id of its own"
        if problem:
            msg = f"`custom_id` {shown(name)} of request {number} {problem}"
            raise ValueError(msg)
        if number > limits.max_requests:
            msg = f"a batch takes at most {limits.max_requests} requests; split them up"
            raise ValueError(msg)
        by_id[name] = request
    if not by_id:
        msg = "there are no requests to make a batch of; give a non-empty list"
        raise ValueError(msg)
    return Job(tuple(by_id), by_id)


async def encoded(client: BatchClient, job: Job) -> list[bytes]:
    """The requests as they are uploaded.

    Raises:
        TypeError, ValueError: When one cannot be sent, or all are too large together.
    """
    lines: list[bytes] = []
    size = 0
    for request in job.by_id.values():
        lines.append(client.encode(request))
        if not len(lines) % _AT_ONCE:
            await tick()  # there may be a hundred thousand
        size += len(lines[-1]) + 1
        if size > client.limits.max_bytes:
            msg = (
                f"the requests are larger than {client.limits.max_bytes} bytes, the most "
                f"for one batch, from {request.custom_id!r} (number {len(lines)}) on; "
                "split them up"
            )
            raise ValueError(msg)
    return lines


async def submit(
    client: BatchClient, lines: Sequence[bytes], *, key: str, patience: Patience
) -> BatchState:
    """Make one batch, and never a second one.

    An answer that got lost may have made a batch. So before it is tried again, the
    service is asked for it: by `key` where it keeps one, else for a batch that looks
    like it; one that only looks like it is not taken, but named in the error.

    Raises:
        ExecutionKitError: When there is no batch, or none that is known. With
            `metadata["in_doubt"]` there may be one, of the `metadata["candidates"]`.
    """
    failures = 0
    while True:
        since = get_clock().wall()
        try:
            return await client.create(lines, key=key)
        except ExecutionKitError as exc:
            failure = exc
        except asyncio.CancelledError as exc:
            exc.add_note(
                f"the batch of the key {key!r} may have been made all the same; look "
                "for it with the client's `find`, or at the service's list"
            )
            raise
        failures += 1
        may_exist = _may_exist(failure)
        try:
            if not passes(failure) or failures >= MAX_SUBMITS:
                raise failure
            await patience.pause(patience.backoff(failures, failure), failure)
            if may_exist:
                found = await _look(client, len(lines), key, since, failure)
                if found is not None:
                    return found
        except ExecutionKitError:
            failure.attempts = max(failure.attempts, failures)
            if may_exist and "in_doubt" not in failure.metadata:
                _doubt(failure, ())
            raise


async def _look(
    client: BatchClient,
    count: int,
    key: str,
    since: float,
    failure: ExecutionKitError,
) -> BatchState | None:
    """The batch that a lost answer made; None when there is none."""
    try:
        found = await lookup(client, count, key=key, since=since)
    except ExecutionKitError as exc:
        failure.add_note(f"whether it was made could not be looked up: {exc}")
        raise failure from exc
    if not found:
        return None
    if client.finds_by_key:
        return found[0]
    _doubt(failure, found)
    raise failure


async def lookup(
    client: BatchClient, count: int, *, key: str, since: float
) -> tuple[BatchState, ...]:
    """What `find` knows, once the service had time to list it.

    Args:
        client: The service.
        count: Of the requests.
        key: Of the batch.
        since: When it was made, in wall-clock seconds.
    """
    clock = get_clock()
    settled = clock.monotonic() + _SETTLE
    while True:
        found = await client.find(key=key, requests=count, since=since)
        if found or clock.monotonic() >= settled:
            return found
        await clock.sleep(_SETTLE / _LOOKS)


def _may_exist(failure: ExecutionKitError) -> bool:
    """Whether a batch may have been made all the same."""
    if failure.metadata.get("created") is False:
        return False
    if isinstance(failure, DeadlineExceededError):  # of the context
        return "limit" in failure.metadata  # else nothing was sent
    if not passes(failure):
        return False
    overloaded = failure.metadata.get("status") == _OVERLOADED
    never_sent = failure.metadata.get("limit") == "connect"
    return not (isinstance(failure, RateLimitError) or overloaded or never_sent)


def _doubt(failure: ExecutionKitError, found: Sequence[BatchState]) -> None:
    about = {state.id: state.created_at for state in found}
    names = named(about)
    known = f"it may be {names}" if names else "look at the service's list"
    failure.metadata |= {
        "in_doubt": True,
        "candidates": tuple(about),
        "candidates_created_at": about,
    }
    failure.retries_exhausted = True
    failure.add_note(
        f"the batch may have been made all the same: {known}; pass the right one as "
        "`batch_id`, and submit again only when there is none"
    )


def named(about: Mapping[str, float | None]) -> str:
    """Batches and when they were made (UTC), in words."""
    return ", ".join(
        f"`{batch_id}`" if made is None else f"`{batch_id}` (made {_utc(made)})"
        for batch_id, made in about.items()
    )


def _utc(seconds: float) -> str:
    from datetime import UTC, datetime  # only for this error

    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # no year that there is
        return f"at {seconds}"
