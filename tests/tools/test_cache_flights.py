"""Equal calls in flight: one runs, the others wait, and no cancellation is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ToolCall
from executionkit.errors import (
    DeadlineExceededError,
    ToolCancelledError,
    ToolCircuitOpenError,
    ToolRateLimitedError,
    ToolTimeoutError,
)
from executionkit.testing import FakeClock, settle
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools.middleware import ToolRequest
from executionkit.tools.middleware.cache import LEAD, CacheLayer, CacheOptions
from executionkit.types import Tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

TOOL = ToolRecord(
    Tool("t", "", {"type": "object"}, lambda: None),
    kind=Kind.ASYNC,
    validator=None,  # type: ignore[arg-type]
)


@pytest.fixture(autouse=True)
async def loop_errors() -> AsyncIterator[None]:
    """Errors in callbacks, which a loop would only log: there must be none."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    yield
    assert not errors


def request(deadline: float | None = None) -> ToolRequest:
    made = ToolRequest(ToolCall("c", "t", {"a": 1}), TOOL, None)
    made.deadline = deadline
    return made


def iter_once() -> Iterator[int]:
    yield 1


class Gate:
    """A tool that runs until it is told how to end."""

    def __init__(self) -> None:
        self.runs = 0
        self.running = 0
        self.peak = 0
        self._end: asyncio.Future[Any] | None = None

    async def __call__(self, _request: ToolRequest) -> Any:
        self.runs += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        self._end = asyncio.get_running_loop().create_future()
        try:
            return await self._end
        finally:
            self.running -= 1

    def end(self, outcome: Any) -> None:
        assert self._end is not None
        if isinstance(outcome, BaseException):
            self._end.set_exception(outcome)
        else:
            self._end.set_result(outcome)


class Crowd:
    """Equal calls over one layer, started in order."""

    def __init__(
        self, *deadlines: float | None, clock: FakeClock | None = None
    ) -> None:
        self.layer = CacheLayer(CacheOptions(), clock=clock or FakeClock())
        self.gate = Gate()
        self.requests = [request(deadline) for deadline in deadlines]
        self.tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        for one in self.requests:
            task = asyncio.ensure_future(self.layer(one, self.gate))
            self.tasks.append(task)
        await settle(3)

    async def outcomes(self) -> list[Any]:
        found = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert len(self.layer._flights) == 0
        return list(found)


@pytest.mark.req("T-13", "cache.single-flight")
async def test_fifty_equal_calls_at_once_run_the_tool_once() -> None:
    crowd = Crowd(*[None] * 50)
    async with asyncio.timeout(5):
        await crowd.start()
        crowd.gate.end({"n": 1})
        assert await crowd.outcomes() == [{"n": 1}] * 50
    assert crowd.gate.runs == 1
    assert [one.cached for one in crowd.requests] == [False] + [True] * 49


@pytest.mark.req("cache.followers-share-errors")
@pytest.mark.parametrize("error", [ValueError("x"), ToolCircuitOpenError("t", 5, 1.0)])
async def test_followers_share_the_error_of_the_one_run(error: Exception) -> None:
    crowd = Crowd(None, None, None)
    async with asyncio.timeout(5):
        await crowd.start()
        crowd.gate.end(error)
        outcomes = await crowd.outcomes()
    assert [type(one) for one in outcomes] == [type(error)] * 3
    assert {str(one) for one in outcomes} == {str(error)}
    assert crowd.gate.runs == 1
    if isinstance(error, ToolCircuitOpenError):
        assert len({id(one) for one in outcomes}) == 3  # each may be written on


@pytest.mark.req("cache.take-over")
async def test_a_follower_takes_over_from_a_cancelled_leader() -> None:
    crowd = Crowd(None, None, None)
    async with asyncio.timeout(5):
        await crowd.start()
        crowd.tasks[0].cancel()
        await settle(3)
        assert (crowd.gate.runs, crowd.gate.running) == (2, 1)
        crowd.gate.end("v")
        first, *others = await crowd.outcomes()
    assert isinstance(first, asyncio.CancelledError)
    assert others == ["v", "v"]
    assert [one.cached for one in crowd.requests] == [False, False, True]


@pytest.mark.req("cache.take-over")
@pytest.mark.parametrize(
    ("error", "deadline", "moved"),
    [
        (ToolCancelledError("off"), None, True),
        (DeadlineExceededError("late"), 1005.0, True),
        (ToolRateLimitedError("t"), 1005.0, True),
        (ToolRateLimitedError("t"), None, False),
        (ToolTimeoutError("t", 5.0), 1005.0, False),
        (ToolTimeoutError("t", 5.0), 1000.0, True),
    ],
)
async def test_a_failure_that_is_about_the_leader_alone_is_not_shared(
    error: Exception, deadline: float | None, moved: bool
) -> None:
    crowd = Crowd(deadline, None)
    async with asyncio.timeout(5):
        await crowd.start()
        crowd.gate.end(error)
        await settle(3)
        if moved:
            crowd.gate.end("v")
        outcomes = await crowd.outcomes()
    assert type(outcomes[0]) is type(error)
    assert crowd.gate.runs == (2 if moved else 1)
    assert (outcomes[1] == "v") is moved


@pytest.mark.req("cache.take-over")
async def test_a_follower_cancelled_just_when_it_is_to_lead_passes_it_on() -> None:
    crowd = Crowd(None, None, None)
    async with asyncio.timeout(5):
        await crowd.start()
        crowd.gate.end(ToolCancelledError("off"))
        while not crowd.tasks[0].done():
            await asyncio.sleep(0)
        crowd.tasks[1].cancel()  # told to lead, has not run since
        await settle(3)
        assert crowd.gate.runs == 2
        crowd.gate.end("v")
        outcomes = await crowd.outcomes()
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert outcomes[2] == "v"


@pytest.mark.req("cache.followers-deadline")
async def test_a_follower_keeps_its_own_deadline_and_disturbs_nobody() -> None:
    clock = FakeClock()
    crowd = Crowd(None, clock.monotonic() + 5, clock.monotonic() + 50, clock=clock)
    async with asyncio.timeout(5):
        await crowd.start()
        await clock.advance(5)
        assert [task.done() for task in crowd.tasks] == [False, True, False]
        assert isinstance(crowd.tasks[1].exception(), DeadlineExceededError)
        crowd.gate.end("v")
        outcomes = await crowd.outcomes()
    assert (outcomes[0], outcomes[2]) == ("v", "v")
    assert clock.pending == 0
    assert crowd.gate.runs == 1


async def test_a_follower_whose_deadline_is_over_does_not_wait() -> None:
    crowd = Crowd(None, 999.0)
    async with asyncio.timeout(5):
        await crowd.start()
        assert isinstance(crowd.tasks[1].exception(), DeadlineExceededError)
        crowd.gate.end("v")
        assert (await crowd.outcomes())[0] == "v"


async def test_a_value_that_cannot_be_shared_is_made_for_each() -> None:
    crowd = Crowd(None, None, None)
    async with asyncio.timeout(5):
        await crowd.start()
        for _ in range(3):
            crowd.gate.end(iter_once())
            await settle(3)
        outcomes = await crowd.outcomes()
    assert len({id(one) for one in outcomes}) == 3
    assert (crowd.gate.runs, crowd.gate.peak) == (3, 1)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["cancel", "value", "error", "withdrawn", "join", "step"]),
        st.integers(0, 9),
    ),
    max_size=25,
)


@pytest.mark.req("cache.single-flight", "cache.take-over")
@settings(max_examples=150)
@given(EVENTS)
async def test_whatever_the_order_of_ends_and_cancellations_nobody_is_lost(
    events: list[tuple[str, int]],
) -> None:
    crowd = Crowd(*[None] * 4)
    cancelled: set[int] = set()
    async with asyncio.timeout(5):
        await crowd.start()
        for what, number in events:
            if what == "cancel":
                index = number % len(crowd.tasks)
                if not crowd.tasks[index].done():
                    crowd.tasks[index].cancel()
                    cancelled.add(index)
            elif what == "join":
                call = crowd.layer(request(), crowd.gate)
                crowd.tasks.append(asyncio.ensure_future(call))
            elif what == "step":
                await settle(number % 3)
            elif crowd.gate.running and crowd.gate._end and not crowd.gate._end.done():
                crowd.gate.end(
                    {
                        "value": number,
                        "error": ValueError(number),
                        "withdrawn": ToolCancelledError("off"),
                    }[what]
                )
        for _ in range(len(crowd.tasks) + 1):
            await settle(4)
            if crowd.gate._end and not crowd.gate._end.done():
                crowd.gate.end("last")
        outcomes = await crowd.outcomes()
    assert crowd.gate.peak <= 1
    assert crowd.gate.running == 0
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, asyncio.CancelledError):
            assert index in cancelled


async def test_the_parts_do_what_the_whole_does() -> None:
    layer = CacheLayer(CacheOptions(), clock=FakeClock())
    one, two, three = request(), request(), request()
    key = layer.key(one)
    assert key is not None
    assert layer.join(key) is None
    flight = layer.join(key)
    assert flight is not None
    async with asyncio.timeout(5):
        waits = [asyncio.ensure_future(layer.wait(flight, one)) for one in (two, three)]
        await settle(2)
        layer.failed(key, one, asyncio.CancelledError())
        assert await waits[0] is LEAD
        layer.done(key, two, "v")
        assert await waits[1] == "v"
    found = layer.lookup(key)
    assert found is not None
    assert found.value == "v"
