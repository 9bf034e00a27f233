"""What the tests of the patterns share: strict servers, and cancelling everywhere."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

LIMIT = 5
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_TICKS = 500


def _check_call(call: dict[str, Any]) -> str:
    assert isinstance(call["id"], str)
    assert call["id"]
    assert call["type"] == "function"
    assert NAME.fullmatch(call["function"]["name"]), call["function"]["name"]
    arguments = call["function"]["arguments"]
    assert isinstance(arguments, str)
    assert isinstance(json.loads(arguments), dict)
    return str(call["id"])


def check_strictly(messages: Sequence[Any]) -> None:
    """Accept only what the strictest server accepts."""
    json.dumps(list(messages), ensure_ascii=False).encode()
    assert messages
    waiting: list[str] = []
    for message in messages:
        role = message["role"]
        assert "content" in message, message
        if role == "tool":
            assert isinstance(message["content"], str)
            assert message["tool_call_id"] in waiting, f"no open call: {message}"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"calls without results before {message}: {waiting}"
        if role != "assistant":
            assert message["content"] is not None, message
            continue
        if "tool_calls" not in message:
            assert message["content"] is not None, message
            continue
        assert message["tool_calls"], "an empty list of calls"
        waiting = [_check_call(call) for call in message["tool_calls"]]
        assert len(set(waiting)) == len(waiting), f"an id comes twice: {waiting}"
    assert not waiting, f"calls without results at the end: {waiting}"


@pytest.fixture
def strictly() -> Callable[[Sequence[Any]], None]:
    """A checker of histories, as strict as the strictest server."""
    return check_strictly


Driven = "tuple[Coroutine[Any, Any, Any], Callable[[bool], None]]"


async def _cancel_after(
    coroutine: Coroutine[Any, Any, Any], ticks: int, again_after: int | None
) -> tuple[bool, bool]:
    """(ended before, cancelled) of `coroutine` cancelled after so many loop turns."""
    task = asyncio.create_task(coroutine)
    for _ in range(ticks):
        await asyncio.sleep(0)
        if task.done():
            break
    ended_before = task.done()
    task.cancel()
    if again_after is not None:
        for _ in range(again_after):
            await asyncio.sleep(0)
        task.cancel()
    async with asyncio.timeout(LIMIT):
        try:
            await task
        except asyncio.CancelledError:
            return ended_before, True
    return ended_before, False


async def cancel_everywhere(
    make: Callable[[], Any], *, again_after: int | None = None
) -> int:
    """Run the same work again and again, cancelled one turn of the loop later each time.

    Args:
        make: Gives a fresh coroutine, and a check that is called with whether the
            coroutine was cancelled.
        again_after: Turns after which it is cancelled a second time.

    Returns:
        The number of turns that the work takes when nobody cancels it.
    """
    for ticks in range(MAX_TICKS):
        before = asyncio.all_tasks()
        coroutine, check = make()
        ended_before, cancelled = await _cancel_after(coroutine, ticks, again_after)
        for _ in range(10):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, f"left running after a cancel at turn {ticks}: {left}"
        check(cancelled)
        if ended_before:
            return ticks
    pytest.fail(f"the work takes more than {MAX_TICKS} turns")


@pytest.fixture
def everywhere() -> Callable[..., Awaitable[int]]:
    """Cancels a piece of work at each turn of the event loop; see above."""
    return cancel_everywhere
