"""What every execution strategy promises; a suite for one is a class derived from this.

Tools speak through files, so that it does not matter in which process they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.context import ExecutionContext, execution_scope, get_current_context
from executionkit.errors import ErrorCode
from executionkit.tools._record import ToolRecord
from executionkit.tools.middleware._base import ToolRequest
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.tools.strategies import ExecutionStrategy

WAIT = 20
"""Seconds after which something is taken to hang."""


async def echo(n: int = 0) -> int:
    return n


def plain(n: int = 0) -> int:
    return n


async def fails(text: str = "gone") -> None:
    raise LookupError(text)


async def hold(path: str) -> str:
    """Say that it runs, wait until it may end, say that it has ended."""
    mark = Path(path)
    mark.with_suffix(".started").touch()
    try:
        while not mark.with_suffix(".go").exists():
            await asyncio.sleep(0.003)
        return mark.name
    finally:
        mark.with_suffix(".ended").touch()


async def who() -> str | None:
    context = get_current_context()
    return None if context is None else context.request_id


async def items(upto: int = 3) -> AsyncIterator[int]:
    for n in range(upto):
        yield n


def registry() -> ToolRegistry:
    return create_registry(echo, plain, fails, hold, who, items)


def call(name: str, place: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{place}", name, arguments)


async def taken(stream: AsyncIterator[ToolResult]) -> list[ToolResult]:
    return [result async for result in stream]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not true():
            await asyncio.sleep(0.002)


class Holds:
    """Calls of `hold`, each with its marks in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def calls(self, *names: str) -> list[ToolCall]:
        return [
            ToolCall(name, "hold", {"path": str(self.folder / name)}) for name in names
        ]

    def release(self, *names: str) -> None:
        for name in names:
            (self.folder / f"{name}.go").touch()

    def marks(self, kind: str) -> set[str]:
        return {path.stem for path in self.folder.glob(f"*.{kind}")}

    @property
    def started(self) -> set[str]:
        return self.marks("started")

    @property
    def running(self) -> set[str]:
        return self.started - self.marks("ended")


@pytest.fixture
def holds(tmp_path: Path) -> Holds:
    return Holds(tmp_path)


class StrategyContract:
    """Derive from it, and say how a strategy is made.

    `strategy` must be shut down by its fixture; `limited` runs two calls at once.
    """

    keeps_exceptions = True
    """Whether a result has the very exception that the tool raised."""

    @pytest.fixture
    def strategy(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def limited(self) -> Any:
        raise NotImplementedError

    # --- run ---
    async def test_it_is_a_strategy(self, strategy: ExecutionStrategy) -> None:
        assert isinstance(strategy, ExecutionStrategy)

    async def test_no_calls_give_no_results(self, strategy: ExecutionStrategy) -> None:
        assert await strategy.run([]) == []
        assert await taken(strategy.stream_run([])) == []

    @pytest.mark.parametrize("order", [*ReturnOrder, "completion", "submission"])
    async def test_each_call_has_one_result_with_its_id(
        self, strategy: ExecutionStrategy, order: Any
    ) -> None:
        calls = [call("echo" if n % 2 else "plain", n, n=n) for n in range(20)]
        results = await strategy.run(calls, return_order=order)
        assert {r.call_id: r.result for r in results} == {f"c{n}": n for n in range(20)}
        assert len(results) == 20

    async def test_results_come_as_they_are_there_or_as_they_were_asked_for(
        self, strategy: ExecutionStrategy, holds: Holds
    ) -> None:
        for order in ReturnOrder:
            first = f"{order}-first"
            calls = [*holds.calls(first), call("echo", 1)]
            running = asyncio.ensure_future(strategy.run(calls, return_order=order))
            await until(lambda first=first: first in holds.started)  # type: ignore[misc]
            await strategy.run([call("echo", 2)])  # the other one has ended, too
            holds.release(first)
            results = await asyncio.wait_for(running, WAIT)
            ids = [result.call_id for result in results]
            expected = [first, "c1"]
            assert ids == (
                expected if order is ReturnOrder.SUBMISSION else expected[::-1]
            )

    async def test_an_unknown_order_is_refused(
        self, strategy: ExecutionStrategy
    ) -> None:
        with pytest.raises(ValueError, match="sideways"):
            await strategy.run([call("echo")], return_order="sideways")

    async def test_failures_are_results(self, strategy: ExecutionStrategy) -> None:
        results = await strategy.run(
            [
                call("fails", 0, text="lost"),
                call("nothing", 1),
                call("echo", 2, wrong=1),
                call("echo", 3, n=3),
            ],
            return_order="submission",
        )
        assert [result.error_code for result in results] == [
            ErrorCode.TOOL_EXECUTION_FAILED,
            ErrorCode.TOOL_NOT_FOUND,
            ErrorCode.TOOL_VALIDATION_ERROR,
            None,
        ]
        assert "lost" in str(results[0].error)
        if self.keeps_exceptions:
            assert type(results[0].exception) is LookupError
        assert [result.attempts for result in results] == [1, 0, 0, 1]

    async def test_a_call_that_takes_too_long_is_stopped(
        self, strategy: ExecutionStrategy, holds: Holds
    ) -> None:
        [result] = await strategy.run(holds.calls("long"), timeout=0.3)
        assert result.error_code == ErrorCode.TOOL_TIMEOUT
        assert result.error == "Timeout after 0.3s"
        await until(lambda: not holds.running)

    async def test_the_context_of_the_request_reaches_the_tool(
        self, strategy: ExecutionStrategy
    ) -> None:
        with execution_scope(ExecutionContext(request_id="r7")):
            [result] = await strategy.run([call("who")])
        assert result.result == "r7"
        [result] = await strategy.run([call("who")])
        assert result.result is None

    async def test_so_many_calls_run_at_once_whoever_asks_for_them(
        self, limited: ExecutionStrategy, holds: Holds
    ) -> None:
        first = asyncio.ensure_future(limited.run(holds.calls("a", "b", "c")))
        second = asyncio.ensure_future(taken(limited.stream_run(holds.calls("d", "e"))))
        for ended in range(5):
            await until(
                lambda: len(holds.running) == min(2, 5 - len(holds.marks("go")))
            )
            assert len(holds.started) <= ended + 2
            holds.release(min(holds.running))
            await until(lambda ended=ended: len(holds.marks("ended")) > ended)  # type: ignore[misc]
        results = [*await first, *await second]
        assert all(result.is_success for result in results)

    # --- stream_run ---
    async def test_a_stream_gives_each_result_as_soon_as_it_is_there(
        self, strategy: ExecutionStrategy, holds: Holds
    ) -> None:
        stream = strategy.stream_run([*holds.calls("slow"), call("echo", 1, n=5)])
        async with asyncio.timeout(WAIT):
            assert (await anext(stream)).call_id == "c1"
            await until(lambda: holds.running == {"slow"})
            holds.release("slow")
            assert [r.call_id for r in await taken(stream)] == ["slow"]

    async def test_items_come_before_the_last_one_which_is_the_value(
        self, strategy: ExecutionStrategy
    ) -> None:
        results = await taken(strategy.stream_run([call("items", upto=4)]))
        if strategy.supports_streaming:
            partial = [r.result for r in results if r.is_partial]
            assert partial == [0, 1, 2, 3]
        assert (results[-1].result, results[-1].is_partial) == (3, False)
        [whole] = await strategy.run([call("items", upto=4)])
        assert whole.result == 3

    @pytest.mark.parametrize("awaited", [False, True])
    async def test_somebody_is_told_of_each_call_before_it_begins(
        self, strategy: ExecutionStrategy, holds: Holds, *, awaited: bool
    ) -> None:
        told: list[str | None] = []

        def tell(begun: ToolCall) -> None:
            assert begun.id not in holds.started
            told.append(begun.id)

        async def tell_later(begun: ToolCall) -> None:
            await asyncio.sleep(0)
            tell(begun)

        holds.release("a", "b")
        calls = [*holds.calls("a", "b"), call("nothing", 3)]
        stream = strategy.stream_run(calls, None, tell_later if awaited else tell)
        results = await taken(stream)
        assert len(results) == 3
        assert {"a", "b"} <= set(told)
        assert len(told) == len(set(told))

    async def test_who_is_told_decides_nothing(
        self, strategy: ExecutionStrategy, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(_call: ToolCall) -> None:
            raise KeyError("told")

        [result] = await taken(strategy.stream_run([call("echo", n=3)], None, broken))
        assert result.result == 3
        assert "on_tool_start" in caplog.text

    async def test_leaving_a_stream_stops_its_calls(
        self, strategy: ExecutionStrategy, holds: Holds
    ) -> None:
        stream: Any = strategy.stream_run([*holds.calls("a", "b"), call("echo", 1)])
        async with asyncio.timeout(WAIT):
            await anext(stream)
            await until(lambda: holds.running == {"a", "b"})
            await stream.aclose()
        await until(lambda: not holds.running)

    # --- ends ---
    async def test_cancelling_a_run_stops_its_tools(
        self, strategy: ExecutionStrategy, holds: Holds
    ) -> None:
        running = asyncio.ensure_future(strategy.run(holds.calls("a", "b")))
        await until(lambda: holds.running == {"a", "b"})
        running.cancel()
        await asyncio.wait_for(asyncio.wait([running]), WAIT)
        assert running.cancelled()
        await until(lambda: not holds.running)
        [result] = await strategy.run([call("echo", n=1)])
        assert result.is_success

    async def test_a_shutdown_ends_what_runs_and_refuses_what_comes(
        self, strategy: ExecutionStrategy, holds: Holds
    ) -> None:
        running = asyncio.ensure_future(strategy.run(holds.calls("a", "b")))
        await until(lambda: holds.running == {"a", "b"})
        await asyncio.wait_for(strategy.shutdown(), WAIT)
        results = await asyncio.wait_for(running, WAIT)
        assert [result.error for result in results] == ["Execution was cancelled"] * 2
        assert {result.error_code for result in results} == {ErrorCode.TOOL_CANCELLED}
        await until(lambda: not holds.running)
        [refused] = await strategy.run([call("echo")])
        [too] = await taken(strategy.stream_run([call("plain")]))
        assert refused.error == too.error == "System is shutting down"
        assert refused.attempts == 0
        await asyncio.wait_for(strategy.shutdown(), WAIT)

    async def test_nothing_is_left_when_it_was_shut_down(
        self, strategy: ExecutionStrategy
    ) -> None:
        before = asyncio.all_tasks()
        await strategy.run([call("echo", n, n=n) for n in range(10)])
        await strategy.run([call("plain", n, n=n) for n in range(10)])
        await taken(strategy.stream_run([call("items")]))
        await strategy.shutdown()
        await until(lambda: asyncio.all_tasks() <= before)

    # --- start ---
    def _request(self, name: str, **arguments: Any) -> ToolRequest:
        record: ToolRecord = registry().resolve(name)
        request = ToolRequest(call(name, **arguments), record, None)
        request.arguments = arguments
        return request

    async def test_start_gives_the_plain_value(
        self, strategy: ExecutionStrategy
    ) -> None:
        assert await strategy.start(self._request("echo", n=4)) == 4
        assert await strategy.start(self._request("plain", n=5)) == 5
        assert await strategy.start(self._request("items", upto=3)) == 2

    async def test_start_raises_what_the_tool_raised(
        self, strategy: ExecutionStrategy
    ) -> None:
        kind = LookupError if self.keeps_exceptions else Exception
        with pytest.raises(kind, match="lost"):
            await strategy.start(self._request("fails", text="lost"))

    async def test_cancelling_what_was_started_stops_the_tool(
        self, strategy: ExecutionStrategy, holds: Holds
    ) -> None:
        request = self._request("hold", path=str(holds.folder / "x"))
        running = asyncio.ensure_future(strategy.start(request))
        await until(lambda: holds.running == {"x"})
        running.cancel()
        await asyncio.wait_for(asyncio.wait([running]), WAIT)
        assert running.cancelled()
        await until(lambda: not holds.running)

    async def test_a_processor_runs_its_calls_through_it(
        self, strategy: ExecutionStrategy
    ) -> None:
        processor = ToolProcessor(registry(), strategy, enable_caching=True)
        results = await processor.process([call("echo", n, n=1) for n in range(3)])
        assert [result.result for result in results] == [1, 1, 1]
        [failed] = await processor.process([call("fails")])
        assert failed.error_code == ErrorCode.TOOL_EXECUTION_FAILED
        await processor.close()
        assert (await strategy.run([call("echo", n=2)]))[0].result == 2
