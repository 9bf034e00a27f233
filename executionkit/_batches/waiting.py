"""Waiting for a batch to end, and handing it back when the wait ends first."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from executionkit._batches.asking import Patience
from executionkit._batches.values import BatchClient, BatchState
from executionkit._clock import get_clock
from executionkit.errors import ExecutionKitError

__all__ = ("BatchCallback", "handing_back", "tell", "wait")

BatchCallback: TypeAlias = Callable[[BatchState], "Awaitable[None] | None"]
"""Called with a batch as it is now; sync or async."""

_CANCEL_SECONDS: Final = 10.0


async def wait(
    client: BatchClient,
    batch_id: str,
    patience: Patience,
    on_progress: BatchCallback | None,
) -> BatchState:
    """The batch once it is over.

    Raises:
        ExecutionKitError: When time is up, or the service does not tell.
    """
    while True:
        state = await patience.look(lambda: client.retrieve(batch_id), batch_id)
        await tell(on_progress, state)
        if state.is_over:
            return state
        await patience.rest(batch_id)


async def tell(callback: BatchCallback | None, state: BatchState) -> None:
    """Call the callback, if any."""
    if callback is not None:
        outcome: Any = callback(state)
        if inspect.isawaitable(outcome):
            await outcome


@asynccontextmanager
async def handing_back(
    client: BatchClient, batch_id: str, *, cancel_on_exit: bool
) -> AsyncGenerator[None]:
    """Whatever ends the wait gets the batch's id."""
    try:
        yield
    except BaseException as exc:
        note = (
            f"batch `{batch_id}` is kept by the service: go on with it by "
            f"`batch_id={batch_id!r}`, or end it with `cancel_batch`"
        )
        if cancel_on_exit:
            note = await _canceled(client, batch_id)
        exc.add_note(note)
        if isinstance(exc, ExecutionKitError):
            exc.metadata.setdefault("batch_id", batch_id)
            exc.retries_exhausted = True  # a retry from outside would submit it again
        else:
            exc.batch_id = batch_id  # type: ignore[attr-defined]
        raise


async def _canceled(client: BatchClient, batch_id: str) -> str:
    try:
        async with get_clock().timeout(_CANCEL_SECONDS):
            await client.cancel(batch_id)
    except BaseException as exc:  # noqa: BLE001 - the first reason is the one to raise
        return (
            f"batch `{batch_id}` could not be canceled ({type(exc).__name__}: {exc}); it "
            f"goes on, and `batch_id={batch_id!r}` waits for it"
        )
    return f"batch `{batch_id}` was asked to end; what was done by then is kept"
