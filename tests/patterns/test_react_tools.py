"""Running tools: kinds of functions, limits of time, failures, progress."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from executionkit._threads import thread_stats
from executionkit.calls import ToolCall, ToolResult, ToolRunner
from executionkit.context import (
    ExecutionContext,
    execution_scope,
    get_current_context,
)
from executionkit.errors import ErrorCode
from executionkit.patterns import react_loop
from executionkit.patterns._tool_call import (
    GRACE_SECONDS,
    ToolRun,
    is_async,
    stop_runs,
)
from executionkit.patterns._tool_list import ToolListRunner
from executionkit.testing import FakeClock, ScriptedProvider, settle, tool_call_reply
from executionkit.types import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 5
OBJECT: dict[str, Any] = {"type": "object"}


def tool_of(execute: Any, name: str = "t", timeout: float | None = 30.0) -> Tool:
    return Tool(name, "", OBJECT, execute, timeout)


async def run_one(execute: Any, **options: Any) -> ToolResult:
    arguments = options.pop("arguments", {})
    timeout = options.pop("timeout", 30.0)
    runner = ToolListRunner([tool_of(execute, timeout=timeout)], **options)
    async with asyncio.timeout(LIMIT):
        return await runner.run_call(ToolCall("c", "t", arguments))


class AsyncObject:
    async def __call__(self, **_arguments: Any) -> str:
        return "object"


class SyncObject:
    def __call__(self, **_arguments: Any) -> str:
        return threading.current_thread().name


def plain_factory() -> Any:
    async def inner() -> str:
        return "from a coroutine"

    return inner()


async def nested_factory() -> Any:
    return plain_factory()


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(**arguments: Any) -> Any:
        return function(**arguments)

    return wrapper


async def awaitable() -> str:
    return "awaited"


@pytest.mark.req("tools.kinds-of-functions")
class TestKindsOfFunctions:
    @pytest.mark.parametrize(
        ("execute", "value"),
        [
            (awaitable, "awaited"),
            (functools.partial(awaitable), "awaited"),
            (AsyncObject(), "object"),
            (functools.partial(AsyncObject()), "object"),
            (plain_factory, "from a coroutine"),
            (nested_factory, "from a coroutine"),
            (wrapped(awaitable), "awaited"),
            (lambda: "plain", "plain"),
            (functools.partial(int, "7"), 7),
            (AsyncMock(return_value="mocked"), "mocked"),
            (MagicMock(return_value="mocked"), "mocked"),
        ],
    )
    async def test_all_of_them_give_their_value(self, execute: Any, value: Any) -> None:
        """D-27: a plain `def` tool ran, then failed with TypeError."""
        result = await run_one(execute)
        assert (result.error, result.result) == (None, value)

    async def test_plain_functions_and_objects_run_in_threads_of_the_library(
        self,
    ) -> None:
        result = await run_one(SyncObject())
        assert str(result.result).startswith("executionkit-")
        assert result.result != threading.main_thread().name

    def test_mocks_do_not_confuse_the_look(self) -> None:
        assert is_async(MagicMock()) is False
        assert is_async(AsyncObject()) is True
        assert is_async(AsyncObject) is False

    @pytest.mark.parametrize("name", ["function", "self", "args", "kwargs", "call"])
    async def test_any_name_may_be_an_argument(self, name: str) -> None:
        sync: Any = lambda **arguments: arguments  # noqa: E731
        result = await run_one(sync, arguments={name: 1})
        assert result.result == {name: 1}

    async def test_a_tool_gets_plain_data_of_its_own(self) -> None:
        async def change(items: list[dict[str, int]]) -> str:
            items.append({})
            items[0]["a"] = 2
            return type(items).__name__

        arguments = {"items": [{"a": 1}]}
        call = ToolCall("c", "t", arguments)
        result = await ToolListRunner([tool_of(change)]).run_call(call)
        assert result.result == "list"
        assert call.arguments == {"items": [{"a": 1}]}

    async def test_the_context_of_the_request_is_seen_inside(self) -> None:
        variable = contextvars.ContextVar("variable", default="outside")
        variable.set("mine")

        def sync() -> list[str | None]:
            context = get_current_context()
            return [variable.get(), context.request_id if context else None]

        async def on_loop() -> list[str | None]:
            seen = sync()
            variable.set("changed inside")
            return seen

        async with execution_scope(ExecutionContext(request_id="r-1")):
            assert (await run_one(sync)).result == ["mine", "r-1"]
            assert (await run_one(on_loop)).result == ["mine", "r-1"]
        assert variable.get() == "mine"

    def test_a_list_of_tools_is_a_runner(self) -> None:
        assert isinstance(ToolListRunner([]), ToolRunner)
        assert ToolListRunner([tool_of(awaitable)]).names == ("t",)


@pytest.mark.req("TX-01")
async def test_blocking_tools_run_at_the_same_time_and_block_nothing() -> None:
    """TX-01: two sync tools wait for each other while an async one ticks."""
    together = threading.Barrier(3)
    ticks: list[int] = []

    def block() -> str:
        together.wait(LIMIT)
        return "both"

    async def tick() -> int:
        # The third at the barrier comes when the loop has turned a hundred times.
        for number in range(100):
            await asyncio.sleep(0)
            ticks.append(number)
        await asyncio.to_thread(together.wait, LIMIT)
        return len(ticks)

    reply = tool_call_reply(("a", {}), ("b", {}), ("tick", {}))
    tools = [tool_of(block, "a"), tool_of(block, "b"), tool_of(tick, "tick")]
    async with asyncio.timeout(LIMIT):
        result = await react_loop(ScriptedProvider([reply, "x"]), "?", tools)
    values = [item.result for item in result.metadata["tool_results"]]
    assert values == ["both", "both", 100]


@pytest.mark.req("TX-02", "TX-04")
async def test_fifty_overrunning_threads_hold_nobody_up(fake_clock: FakeClock) -> None:
    """TX-02, TX-04: counted, and what they do later changes nothing."""
    release = threading.Event()
    began = threading.Semaphore(0)
    late: list[str] = []

    def hang() -> str:
        began.release()
        release.wait(LIMIT)
        late.append("too late")
        return "late"

    reply = tool_call_reply(*[("hang", {})] * 50)
    tools = [
        tool_of(hang, "hang", 0.1),
        tool_of(lambda: "quick", "quick"),
    ]
    before = thread_stats().abandoned
    provider = ScriptedProvider([reply, tool_call_reply(("quick", {})), "x"])
    task = asyncio.create_task(
        react_loop(
            provider,
            "?",
            tools,
            max_tool_calls_per_round=50,
            max_tool_concurrency=50,
        )
    )
    async with asyncio.timeout(LIMIT):
        await asyncio.to_thread(lambda: [began.acquire() for _ in range(50)])
        await fake_clock.advance(0.2)
        while thread_stats().abandoned - before < 50:
            await settle()
        result = await task
    results = result.metadata["tool_results"]
    assert {item.error for item in results[:50]} == {
        "Tool execution timed out after 0.1s"
    }
    assert {item.error_code for item in results[:50]} == {ErrorCode.TOOL_TIMEOUT}
    assert results[50].result == "quick"
    release.set()
    async with asyncio.timeout(LIMIT):
        while thread_stats().abandoned > before:
            await asyncio.to_thread(release.wait, 0.001)
    assert len(late) == 50
    assert results[0].error == "Tool execution timed out after 0.1s"


@pytest.mark.req("tools.time-limit")
class TestTimeLimits:
    async def test_a_tools_own_timeout_error_is_its_failure(self) -> None:
        """D-27: it was reported as a time-out of the loop."""

        async def own() -> None:
            raise TimeoutError

        result = await run_one(own)
        assert result.error == "Tool 't' failed: TimeoutError"
        assert result.error_code is ErrorCode.TOOL_EXECUTION_FAILED

    async def test_an_own_time_limit_inside_works(self, auto_clock: FakeClock) -> None:
        async def own() -> str:
            try:
                async with auto_clock.timeout(1):
                    await auto_clock.sleep(5)
            except TimeoutError:
                return "gave up in time"
            return "slept"

        assert (await run_one(own)).result == "gave up in time"

    async def test_the_limit_given_for_all_wins(self, auto_clock: FakeClock) -> None:
        async def slow() -> None:
            await auto_clock.sleep(10)

        assert (await run_one(slow, timeout=30.0)).is_success
        provider = ScriptedProvider([tool_call_reply(("t", {})), "x"])
        result = await react_loop(provider, "?", [tool_of(slow)], tool_timeout=5)
        assert provider.requests[1].last == "Tool execution timed out after 5s"
        assert result.metadata["tool_results"][0].duration == 5

    async def test_none_is_no_limit(self, auto_clock: FakeClock) -> None:
        async def slow() -> str:
            await auto_clock.sleep(1e6)
            return "at last"

        assert (await run_one(slow, timeout=None)).result == "at last"

    @pytest.mark.parametrize("value", [0, -1.0, True, "5"])
    def test_a_senseless_limit_names_the_tool(self, value: Any) -> None:
        with pytest.raises(ValueError, match="'t' must be > 0 seconds"):
            ToolListRunner([tool_of(awaitable, timeout=value)])

    async def test_a_stubborn_tool_is_left_behind_after_a_grace(
        self, fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        release = asyncio.Event()
        ended = asyncio.Event()

        async def stubborn() -> str:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            ended.set()
            return "never seen"

        runner = ToolListRunner([tool_of(stubborn, timeout=3)])
        task = asyncio.create_task(runner.run_call(ToolCall("c", "t", {})))
        await fake_clock.advance(3)
        assert not task.done()
        await fake_clock.advance(GRACE_SECONDS)
        assert task.done()
        assert (await task).error_code is ErrorCode.TOOL_TIMEOUT
        assert "left behind" in caplog.text
        release.set()
        async with asyncio.timeout(LIMIT):
            await ended.wait()
            await settle()

    async def test_a_cancelled_caller_waits_for_a_grace_only(
        self, fake_clock: FakeClock
    ) -> None:
        release = asyncio.Event()

        async def stubborn() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        runner = ToolListRunner([tool_of(stubborn)])
        task = asyncio.create_task(runner.run_call(ToolCall("c", "t", {})))
        await settle()
        task.cancel()
        await settle()
        assert not task.done()
        await fake_clock.advance(GRACE_SECONDS)
        assert task.cancelled()
        release.set()
        await settle()

    async def test_what_a_tool_returns_when_stopped_is_its_result(
        self, auto_clock: FakeClock
    ) -> None:
        async def careful() -> str:
            try:
                await auto_clock.sleep(10)
            except asyncio.CancelledError:
                return "as far as I came"
            return "all"

        assert (await run_one(careful, timeout=1)).result == "as far as I came"

    async def test_after_the_deadline_nothing_starts(
        self, auto_clock: FakeClock
    ) -> None:
        seen: list[str] = []
        async with execution_scope(ExecutionContext.with_deadline(1)):
            await auto_clock.sleep(2)
            result = await run_one(lambda: seen.append("ran"))
        assert result.error_code is ErrorCode.DEADLINE_EXCEEDED
        assert (result.attempts, seen) == (0, [])

    async def test_the_deadline_stops_a_tool(self, auto_clock: FakeClock) -> None:
        async with execution_scope(ExecutionContext.with_deadline(1)):
            assert (await run_one(awaitable)).is_success
            slow = functools.partial(auto_clock.sleep, 20)
            result = await run_one(slow, timeout=10)
        assert result.error_code is ErrorCode.DEADLINE_EXCEEDED
        assert result.duration == 1


@pytest.mark.req("D-27")
class TestFailures:
    async def test_the_model_reads_the_type_and_the_caller_has_it_all(self) -> None:
        async def broken() -> None:
            msg = "password is hunter2"
            raise KeyError(msg)

        result = await run_one(broken)
        assert result.error == "Tool 't' failed: KeyError"
        assert isinstance(result.exception, KeyError)
        assert result.error_info is not None
        assert result.error_info.details == {"tool_name": "t", "type": "KeyError"}

    @pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, Exception])
    async def test_any_exception_is_a_result(self, kind: type[Exception]) -> None:
        def broken() -> None:
            raise kind

        async def broken_async() -> None:
            raise kind

        for execute in (broken, broken_async):
            assert (await run_one(execute)).error_code is (
                ErrorCode.TOOL_EXECUTION_FAILED
            )

    async def test_wrong_arguments_of_the_function_are_a_failure(self) -> None:
        result = await run_one(awaitable, arguments={"a": 1})
        assert result.error is not None
        assert result.error.startswith("Tool 't' failed: TypeError: its function ")
        assert "does not fit its `parameters`: " in result.error
        assert "unexpected keyword argument 'a'" in result.error

    async def test_a_type_error_within_the_function_is_not_taken_for_a_misfit(
        self,
    ) -> None:
        def broken() -> None:
            raise TypeError

        result = await run_one(broken)
        assert result.error == "Tool 't' failed: TypeError"

    @pytest.mark.req("TX-08")
    async def test_a_cancellation_of_its_own_is_one_calls_error(self) -> None:
        """TX-08: the others finish, the run goes on."""

        async def own() -> None:
            raise asyncio.CancelledError

        async def inner() -> None:
            helper = asyncio.create_task(asyncio.sleep(LIMIT))
            helper.cancel()
            await helper

        async def fine() -> str:
            await asyncio.sleep(0)
            return "fine"

        reply = tool_call_reply(("fine", {}), ("own", {}), ("inner", {}), ("fine", {}))
        tools = [tool_of(fine, "fine"), tool_of(own, "own"), tool_of(inner, "inner")]
        provider = ScriptedProvider([reply, tool_call_reply(("own", {})), "x"])
        async with asyncio.timeout(LIMIT):
            result = await react_loop(provider, "?", tools)
        errors = [item.error for item in result.metadata["tool_results"]]
        assert errors == [
            None,
            "Tool 'own' failed: CancelledError",
            "Tool 'inner' failed: CancelledError",
            None,
            "Tool 'own' failed: CancelledError",
        ]

    async def test_a_tool_that_cancels_its_own_task_hurts_nobody(self) -> None:
        async def reckless() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(LIMIT)

        result = await run_one(reckless)
        assert result.error == "Tool 't' failed: CancelledError"

    @pytest.mark.req("TX-06")
    @pytest.mark.parametrize("how", ["async", "thread"])
    @pytest.mark.parametrize("calls", [1, 2])
    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_the_end_of_the_program_is_no_tool_output(
        self, kind: type[BaseException], calls: int, how: str
    ) -> None:
        """TX-06: both propagate; the policy is documented."""

        async def leave_async() -> None:
            raise kind

        def leave() -> None:
            raise kind

        execute: Any = leave_async if how == "async" else leave
        both: list[tuple[str, dict[str, Any]]] = [("fine", {}), ("t", {})]
        asked = both[-calls:]
        provider = ScriptedProvider([tool_call_reply(*asked), "x"])
        tools = [tool_of(execute), tool_of(awaitable, "fine")]
        with pytest.raises(kind):
            asyncio.run(react_loop(provider, "?", tools))
        assert len(provider.requests) == 1

    async def test_other_ways_out_fail_one_call(self) -> None:
        class WayOutError(BaseException):
            pass

        async def leave() -> None:
            raise WayOutError

        assert (await run_one(leave)).error == "Tool 't' failed: WayOutError"

    @pytest.mark.req("TX-15")
    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            (dict, "type"),
            (len, "builtin_function_or_method"),
            (StringIO("line\n"), "StringIO"),
            (object(), "object"),
            ({"a": {1, 2}}, "dict"),
            (float("nan"), "float"),
            (map(str, "ab"), "map"),
            (iter("ab"), "str_ascii_iterator|str_iterator"),
            (b"bytes", "bytes"),
        ],
    )
    async def test_what_is_no_json_is_an_error_at_the_border(
        self, value: Any, kind: str, strictly: Callable[[Any], None]
    ) -> None:
        """TX-15: naming tool and type; the history stays fit to be sent."""

        async def give() -> Any:
            return value

        provider = ScriptedProvider([tool_call_reply(("t", {})), "x"])
        result = await react_loop(provider, "?", [tool_of(give)])
        (made,) = result.metadata["tool_results"]
        assert made.error_code is ErrorCode.TOOL_RESULT_ERROR
        kinds = kind.split("|")
        assert any(f"Tool 't' returned {name}," in made.error for name in kinds)
        strictly(result.metadata["messages"])

    async def test_a_value_without_end_is_an_error(self) -> None:
        ring: list[Any] = []
        ring.append(ring)
        deep: list[Any] = []
        for _ in range(2000):
            deep = [deep]
        for value in (ring, deep):
            result = await run_one(AsyncMock(return_value=value))
            assert result.error_code is ErrorCode.TOOL_RESULT_ERROR
            assert str(result.error).startswith("Tool 't' returned list, which")


async def count_async(steps: int = 2) -> AsyncIterator[str]:
    for number in range(steps):
        yield f"step {number}"
        await asyncio.sleep(0)
    yield "the end"


def count_sync(steps: int = 2) -> Iterator[str]:
    for number in range(steps):
        yield f"step {number}"
    yield "the end"


@pytest.mark.req("TX-17")
class TestGenerators:
    """TX-17: progress goes to the caller only, the model gets the last value."""

    @pytest.mark.parametrize("execute", [count_async, count_sync])
    async def test_the_model_gets_the_last_value(
        self, execute: Any, strictly: Callable[[Any], None]
    ) -> None:
        told: list[tuple[str, Any]] = []
        provider = ScriptedProvider([tool_call_reply(("t", {})), "x"])
        result = await react_loop(
            provider,
            "?",
            [tool_of(execute)],
            on_progress=lambda call, item: told.append((call.id, item)),
        )
        assert provider.requests[1].last == "the end"
        assert told == [
            ("call-1", "step 0"),
            ("call-1", "step 1"),
            ("call-1", "the end"),
        ]
        assert "step 0" not in json.dumps(result.metadata["messages"])
        strictly(result.metadata["messages"])

    @pytest.mark.parametrize("execute", [count_async, count_sync])
    async def test_nobody_needs_to_listen(self, execute: Any) -> None:
        assert (await run_one(execute)).result == "the end"

    async def test_what_a_generator_returns_is_its_result(self) -> None:
        def with_return() -> Any:
            yield "progress"
            return {"sum": 3}

        told: list[Any] = []
        result = await run_one(with_return, on_progress=lambda _c, i: told.append(i))
        assert (result.result, told) == ({"sum": 3}, ["progress"])

    async def test_one_without_values_gives_none(self) -> None:
        def none() -> Iterator[str]:
            yield from ()

        async def none_async() -> AsyncIterator[str]:
            for item in list[str]():
                yield item

        for execute in (none, none_async):
            result = await run_one(execute)
            assert (result.error, result.result) == (None, None)

    @pytest.mark.parametrize("on_loop", [True, False])
    async def test_what_came_before_a_failure_is_kept(self, on_loop: bool) -> None:
        async def breaks_async() -> AsyncIterator[Any]:
            yield {"done": 1}
            yield object
            raise OSError

        def breaks() -> Iterator[Any]:
            yield {"done": 1}
            yield object
            raise OSError

        provider = ScriptedProvider([tool_call_reply(("t", {})), "x"])
        tool = tool_of(breaks_async if on_loop else breaks)
        result = await react_loop(provider, "?", [tool])
        (made,) = result.metadata["tool_results"]
        assert made.error == "Tool 't' failed: OSError"
        assert made.is_partial
        assert made.result == [{"done": 1}, "type"]
        assert provider.requests[1].last == "Tool 't' failed: OSError"

    async def test_of_many_values_the_newest_are_kept(self) -> None:
        def many() -> Iterator[int]:
            yield from range(1000)
            raise OSError

        made = await run_one(many)
        assert made.result == list(range(900, 1000))

    async def test_a_limit_closes_an_async_one(self, auto_clock: FakeClock) -> None:
        closed: list[str] = []

        async def slow() -> AsyncIterator[str]:
            try:
                yield "first"
                await auto_clock.sleep(100)
                yield "never"
            finally:
                closed.append("closed")

        made = await run_one(slow, timeout=1)
        assert made.error_code is ErrorCode.TOOL_TIMEOUT
        assert made.result == ["first"]
        assert closed == ["closed"]

    async def test_a_cancelled_caller_closes_an_async_one(self) -> None:
        closed: list[str] = []
        waiting = asyncio.Event()

        async def slow() -> AsyncIterator[str]:
            try:
                yield "first"
                waiting.set()
                await asyncio.sleep(LIMIT)
            finally:
                closed.append("closed")

        task = asyncio.create_task(run_one(slow))
        async with asyncio.timeout(LIMIT):
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert closed == ["closed"]

    @pytest.mark.parametrize("listening", [True, False])
    async def test_an_endless_one_in_a_thread_ends_after_its_limit(
        self, listening: bool, fake_clock: FakeClock
    ) -> None:
        closed = threading.Event()
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        def endless() -> Iterator[int]:
            number = 0
            try:
                while True:
                    loop.call_soon_threadsafe(began.set)
                    yield number
                    number += 1
            finally:
                closed.set()

        told: list[Any] = []
        hook = {"on_progress": lambda _c, item: told.append(item)} if listening else {}
        runner = ToolListRunner([tool_of(endless, timeout=1)], **hook)  # type: ignore[arg-type]
        task = asyncio.create_task(runner.run_call(ToolCall("c", "t", {})))
        async with asyncio.timeout(LIMIT):
            await began.wait()
            while listening and not told:
                await settle()
            await fake_clock.advance(1)
            made = await task
            assert made.error_code is ErrorCode.TOOL_TIMEOUT
            assert await asyncio.to_thread(closed.wait, LIMIT)
            count = len(told)
            await settle()
        assert len(told) == count  # late values are dropped
        assert bool(told) is listening

    async def test_one_that_is_made_too_late_never_runs(
        self, fake_clock: FakeClock
    ) -> None:
        release = threading.Event()
        began = threading.Event()
        ran: list[str] = []

        def make() -> Iterator[str]:
            def values() -> Iterator[str]:
                ran.append("ran")
                yield "x"

            began.set()
            release.wait(LIMIT)
            return values()

        runner = ToolListRunner([tool_of(make, timeout=1)])
        before = thread_stats().abandoned
        task = asyncio.create_task(runner.run_call(ToolCall("c", "t", {})))
        async with asyncio.timeout(LIMIT):
            await asyncio.to_thread(began.wait, LIMIT)
            await fake_clock.advance(1)
            await task
            release.set()
            while thread_stats().abandoned > before:
                await asyncio.to_thread(release.wait, 0.001)
        assert ran == []

    async def test_a_sync_one_lives_in_one_thread(self) -> None:
        def threads() -> Any:
            for _ in range(5):
                yield threading.get_ident()

        told: set[int] = set()
        await run_one(threads, on_progress=lambda _c, item: told.add(item))
        assert len(told) == 1
        assert told != {threading.get_ident()}

    async def test_a_sync_one_from_an_async_function_works_too(self) -> None:
        async def make() -> Iterator[str]:
            return count_sync()

        assert (await run_one(make)).result == "the end"

    async def test_a_failing_listener_changes_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(_call: ToolCall, _item: Any) -> None:
            raise ZeroDivisionError

        assert (await run_one(count_sync, on_progress=broken)).result == "the end"
        assert "progress callback failed" in caplog.text

    def test_an_async_listener_is_refused(self) -> None:
        async def listener(_call: ToolCall, _item: Any) -> None:
            return None

        with pytest.raises(TypeError, match="on_progress"):
            ToolListRunner([], on_progress=listener)  # type: ignore[arg-type]


@pytest.mark.req("TX-16")
async def test_five_megabytes_are_cut_for_the_model_and_kept_for_the_caller(
    strictly: Callable[[Any], None],
) -> None:
    """TX-16: one cap, head and tail, the size is told, on character borders."""
    big = "\u00e4\U0001f600" * 1_250_000
    table = {"rows": ["x" * 100] * 1000}

    async def text() -> str:
        return big

    async def rows() -> dict[str, Any]:
        return table

    reply = tool_call_reply(("text", {}), ("rows", {}))
    provider = ScriptedProvider([reply, "x"])
    tools = [tool_of(text, "text"), tool_of(rows, "rows")]
    result = await react_loop(provider, "?", tools, max_observation_chars=1000)
    shown = [m["content"] for m in provider.requests[1].messages if m["role"] == "tool"]
    assert all(len(item) <= 1000 for item in shown)
    assert "2500000 characters in all" in shown[0]
    assert all(item.endswith("[truncated]") for item in shown)  # no JSON by accident
    assert "\ufffd" not in shown[0]
    whole = [item.result for item in result.metadata["tool_results"]]
    assert whole == [big, table]
    assert result.metadata["truncated_observations"] == 2
    strictly(provider.requests[1].messages)


@pytest.mark.req("D-26")
async def test_every_observation_is_capped() -> None:
    """D-26: schema errors, unknown tools and approval reasons were not."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}}
    tool = Tool("t", "", schema, awaitable)
    reply = tool_call_reply(("t", {"a": "y" * 300_000}), ("u" * 300_000, {}))
    provider = ScriptedProvider([reply, "x"])
    await react_loop(provider, "?", [tool], max_observation_chars=200)
    shown = [m["content"] for m in provider.requests[1].messages if m["role"] == "tool"]
    assert [len(item) <= 200 for item in shown] == [True, True]


@pytest.mark.req("tools.concurrency")
async def test_no_more_run_at_once_than_allowed() -> None:
    active = peak = 0

    async def busy() -> None:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        for _ in range(3):
            await asyncio.sleep(0)
        active -= 1

    for limit, wanted in ((1, 1), (3, 3), (10, 10)):
        peak = 0
        provider = ScriptedProvider([tool_call_reply(*[("t", {})] * 25), "x"])
        await react_loop(provider, "?", [tool_of(busy)], max_tool_concurrency=limit)
        assert peak == wanted


async def test_many_calls_of_a_runner_keep_their_order() -> None:
    async def echo(n: int) -> int:
        for _ in range(5 - n):
            await asyncio.sleep(0)
        return n

    runner = ToolListRunner([tool_of(echo)])
    calls = [ToolCall(None, "t", {"n": n}) for n in range(5)]
    made = await runner.run_calls([*calls, ToolCall(None, "u", {})])
    assert [item.result for item in made] == [0, 1, 2, 3, 4, None]
    assert [item.call_id for item in made[:5]] == [call.id for call in calls]
    assert made[5].error_code is ErrorCode.TOOL_NOT_FOUND
    assert await runner.run_calls([]) == []


async def test_nothing_is_left_unawaited() -> None:
    """D-29."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for execute in (plain_factory, count_async, awaitable):
            task = asyncio.create_task(run_one(execute))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await settle()


class TestOneRun:
    """The corners that a loop meets once in a thousand years."""

    @staticmethod
    def start(execute: Any, timeout: float | None = 3.0) -> ToolRun:
        begun = ToolListRunner([tool_of(execute, timeout=timeout)]).start(
            ToolCall("c", "t", {})
        )
        assert isinstance(begun, ToolRun)
        return begun

    async def test_a_coroutine_that_met_a_cancel_on_its_way_is_closed(self) -> None:
        run = self.start(plain_factory)
        await asyncio.sleep(0)  # the task is in its thread now
        wait = threading.Event()
        while run._made is None:
            wait.wait(0.001)  # the loop stands still: nothing is delivered
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.outcome
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert inspect.getcoroutinestate(run._made) == inspect.CORO_CLOSED

    async def test_a_late_result_changes_nothing(self, fake_clock: FakeClock) -> None:
        release = asyncio.Event()

        async def stubborn() -> str:
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()
            return "late"

        run = self.start(stubborn)
        await fake_clock.advance(3 + GRACE_SECONDS)
        told = await run.outcome
        release.set()
        await settle()
        assert run.task.done()
        assert run.result is told
        assert run.text is None
        assert told.error == "Tool execution timed out after 3.0s"

    async def test_a_limit_that_ends_before_the_first_step(
        self, fake_clock: FakeClock
    ) -> None:
        ran: list[str] = []

        async def execute() -> None:
            ran.append("ran")

        run = self.start(execute)
        run._expire()
        assert run.outcome.done()  # nobody waits for a grace that is not needed
        result = await run.outcome
        await settle()
        assert result.error_code is ErrorCode.TOOL_TIMEOUT
        assert ran == []

    async def test_a_cancel_before_the_first_step_leaves_no_timer(
        self, fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = self.start(awaitable)
        await stop_runs([run])
        assert run.task.cancelled()
        assert fake_clock.pending == 0
        await fake_clock.advance(100)
        assert not caplog.text

    async def test_a_mistake_of_ours_reaches_the_caller(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Anything but a call that never ends."""

        def broken(*_args: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(ToolRun, "_failed", broken)
        with pytest.raises(ZeroDivisionError):
            await run_one(MagicMock(side_effect=OSError))


async def test_errors_of_the_event_loop_are_not_hidden(
    recwarn: pytest.WarningsRecorder,
) -> None:
    problems: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    await run_one(count_sync)
    await settle()
    assert problems == []
    assert not recwarn.list
    assert sys.exc_info() == (None, None, None)


@pytest.mark.req("react.eager-tasks")
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
async def test_a_tool_that_ends_within_the_making_of_its_task(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An eager task factory runs it at once; its timer is not left behind."""

    async def instant() -> str:
        return "done"

    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - new
    try:
        result = await run_one(instant)
    finally:
        loop.set_task_factory(None)
    assert (result.result, result.error) == ("done", None)
    assert fake_clock.pending == 0
    assert not caplog.text
