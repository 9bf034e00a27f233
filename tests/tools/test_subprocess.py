"""Tools in worker processes: what comes back, and what travels with a call."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import ErrorCategory, ErrorCode
from executionkit.tools.middleware import ToolRequest
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import (
    ExecutionStrategy,
    IsolatedStrategy,
    RemoteToolError,
    RemoteTraceback,
    SubprocessStrategy,
    ToolLimits,
)
from tests.tools import isolation_tools as tools
from tests.tools.isolation_help import descriptors, registry, running, until

pytestmark = pytest.mark.skipif(
    os.name != "posix" or not Path("/proc/self/stat").exists(), reason="needs Linux"
)


@pytest.mark.req("isolation.forms")
async def test_every_form_of_a_tool_runs_in_a_worker() -> None:
    made = registry()
    made.add(tools.Counter(5), name="counter")
    made.add(tools.power, name="power", parameters=_one_number("exp"))
    made.add(tools.Counter(2).execute, name="method")
    async with running(registry=made) as run:
        assert await run.value("add", a=1, b=2) == 3
        assert await run.value("add_later", a=1, b=2) == 3
        assert await run.value("Doubler", number=4) == 8
        assert await run.value("counter") == 5
        assert await run.value("counter") == 10
        assert await run.value("method") == 2
        assert await run.value("power", exp=5) == 32
        assert await run.value("hidden") == "found through its wrapper"
        assert await run.value("items", count=3) == 2
        assert await run.value("items_later", count=3) == 2
        assert list(await run.value("Both", count=3)) == [0, 1, 2]


def _one_number(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"}}}


@pytest.mark.req("isolation.results")
async def test_a_result_says_which_worker_ran_it() -> None:
    async with running() as run:
        result = await run("pid")
        assert result.result == result.pid != os.getpid()
        assert result.machine == os.uname().nodename
        assert result.attempts == 1
        assert result.tool == "pid"
        failed = await run("fail", kind="key")
        assert failed.pid == result.pid
        assert run.strategy.worker_pids == (result.pid,)


async def test_results_come_in_the_order_asked_for() -> None:
    async with running(max_workers=2) as run:
        results = await run.many("add", [{"a": n, "b": 0} for n in range(200)])
        assert [item.result for item in results] == list(range(200))
        calls = [
            ToolCall(name="nap", arguments={"seconds": 0.3 if n == 0 else 0})
            for n in range(6)
        ]
        by_end = await run.strategy.run(calls)
        assert by_end[-1].call_id == calls[0].id
        with pytest.raises(ValueError, match="nothing"):
            await run.strategy.run(calls, return_order="nothing")


def test_it_is_a_strategy_under_both_names() -> None:
    assert IsolatedStrategy is SubprocessStrategy
    assert isinstance(SubprocessStrategy(create_registry()), ExecutionStrategy)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_workers": 0},
        {"max_workers": 1.5},
        {"default_timeout": 0},
        {"worker_init_timeout": -1},
        {"grace": -1},
        {"max_calls_per_worker": 0},
        {"max_worker_bytes": -5},
        {"context_vars": ["tests.tools.isolation_tools:add"]},
        {"context_vars": ["nowhere:X"]},
        {"context_vars": ["plain"]},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SubprocessStrategy(create_registry(), **settings)


@pytest.mark.parametrize(
    "bad", [{"memory": 0}, {"cpu": 0}, {"file_size": 1.5}, {"open_files": True}]
)
def test_limits_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        ToolLimits(**bad)


@pytest.mark.req("isolation.processor")
async def test_a_processor_runs_its_calls_in_workers() -> None:
    strategy = SubprocessStrategy(registry(), max_workers=1, worker_init_timeout=20)
    async with ToolProcessor(
        strategy.registry,
        strategy,
        enable_caching=True,
        enable_retries=True,
        enable_circuit_breaker=True,
    ) as processor:
        call = {"tool": "pid", "arguments": {}}
        (first,) = await processor.process([call])
        (second,) = await processor.process([call])
    await strategy.shutdown()
    assert first.pid == first.result != os.getpid()
    assert (second.cached, second.result) == (True, first.result)


# --- failures ---------------------------------------------------------------------


@pytest.mark.req("isolation.exceptions")
async def test_exceptions_keep_type_text_and_traceback() -> None:
    async with running() as run:
        for name in ("fail", "fail_later"):
            fine = await run(name, kind="fine")
            assert type(fine.exception) is tools.FineError
            assert fine.error == "fine words"
            assert fine.error_category is ErrorCategory.EXECUTION
            trace = str(fine.exception.__cause__)
            assert "in fail" in trace
            assert (
                "worker.py" not in trace.split("in fail")[0].split("isolation_tools")[0]
            )
            missing = await run(name, kind="key")
            assert type(missing.exception) is KeyError
            odd = await run(name, kind="odd")
            assert "OddError: odd 7" in (odd.error or "")
            assert type(odd.exception) is RemoteToolError
            assert type(odd.exception.__cause__) is RemoteTraceback
            assert (odd.error or "").startswith("Tool execution failed")
            locked = await run(name, kind="lock")
            assert "ValueError" in (locked.error or "")
            assert locked.exception is not None
            assert "in fail" in str(locked.exception.__cause__)


@pytest.mark.parametrize("kind", ["exit", "interrupt", "stop", "cancelled"])
async def test_what_is_no_plain_exception_is_a_failure_too(kind: str) -> None:
    async with running() as run:
        before = await run.value("pid")
        for name in ("fail", "fail_later"):
            if (name, kind) == ("fail_later", "stop"):
                continue  # Python makes a RuntimeError of it
            failed = await run(name, kind=kind)
            assert failed.error
            if kind == "cancelled":
                assert failed.error == "Execution was cancelled"
        assert await run.value("pid") == before


@pytest.mark.req("SP-03", "isolation.serialization")
async def test_what_cannot_be_sent_is_a_clear_error_and_the_worker_lives() -> None:
    made = registry()

    def local() -> int:
        return 1

    made.add(local)
    made.add(lambda: 1, name="lambda")
    async with running(registry=made) as run:
        before = await run.value("pid")
        for name in ("local", "lambda"):
            result = await run(name)
            assert (result.error or "").startswith("Tool serialization failed")
            assert "top level of a module" in (result.error or "")
            assert result.error_code is ErrorCode.TOOL_REGISTRATION_FAILED
            assert (result.retryable, result.attempts) == (False, 0)
        for kind in ("lambda", "lock", "deep"):
            result = await run("give", kind=kind)
            assert (result.error or "").startswith(
                "Tool serialization failed: the result"
            )
            assert result.error_code is ErrorCode.TOOL_RESULT_ERROR
        assert await run.value("pid") == before


@pytest.mark.req("SP-03")
async def test_arguments_that_cannot_be_sent_fail_before_anything_starts() -> None:
    made = create_registry()
    made.add(tools.echo, parameters={"type": "object", "properties": {"text": {}}})
    async with running(registry=made) as run:
        generator = (number for number in range(3))
        context = ExecutionContext()
        object.__setattr__(context, "user_id", generator)  # nothing can pickle it
        with execution_scope(context):
            result = await run("echo", text="x")
        assert (result.error or "").startswith(
            "Tool serialization failed: the arguments"
        )
        assert result.error_code is ErrorCode.TOOL_ARGUMENT_ERROR
        assert (result.attempts, run.strategy.worker_pids) == (0, ())


async def test_a_tool_that_a_worker_cannot_import_says_why(tmp_path: Path) -> None:
    file = tmp_path / "only_here.py"
    file.write_text("import os\ndef ok(): return 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here  # type: ignore[import-not-found]

        file.write_text("raise RuntimeError('no import today')\n")
        made = create_registry()
        made.add(only_here.ok)
        made.add(tools.pid)
        async with running(registry=made) as run:
            result = await run("ok")
            assert "RuntimeError: no import today" in (result.error or "")
            assert (result.attempts, result.retryable) == (0, False)
            assert await run.value("pid")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("only_here", None)


async def test_values_of_classes_come_back_as_what_they_are() -> None:
    async with running() as run:
        assert await run.value("mirror", point={"x": 1, "y": 2}) == tools.Point(2, 1)


# --- context ----------------------------------------------------------------------


@pytest.mark.req("T-20", "isolation.context")
async def test_the_context_of_this_request_travels_and_nothing_of_another() -> None:
    name = "tests.tools.isolation_tools:TENANT"
    async with running(context_vars=[name]) as run:
        with execution_scope(ExecutionContext(user_id="alice")):
            tools.TENANT.set("acme")
            for tool in ("who", "who_later", "who_leaks"):
                assert list(await run.value(tool)) == ["alice", "acme"]
            assert await run.value("told") == "alice"
        with execution_scope(ExecutionContext(user_id="bob")):
            assert list(await run.value("who")) == ["bob", "acme"]
        tools.TENANT.set("globex")
        for tool in ("who_leaks", "who", "who_later"):
            assert list(await run.value(tool)) == [None, "globex"]


async def test_variables_that_are_not_named_stay_at_home() -> None:
    async with running() as run:
        tools.TENANT.set("acme")
        assert list(await run.value("who_leaks")) == [None, "nobody"]
        assert list(await run.value("who")) == [None, "nobody"]


# --- items ------------------------------------------------------------------------


@pytest.mark.req("isolation.items")
@pytest.mark.parametrize("name", ["items", "items_later", "Both"])
async def test_items_come_as_they_are_made(name: str) -> None:
    async with running() as run:
        call = ToolCall(name=name, arguments={"count": 50})
        got = [item async for item in run.strategy.stream_run([call])]
        assert [item.result for item in got if item.is_partial] == list(range(50))
        assert {item.call_id for item in got} == {call.id}
        assert got[-1].result == 49
        assert not got[-1].is_partial


@pytest.mark.req("isolation.items")
async def test_a_slow_reader_slows_the_tool_down(tmp_path: Path) -> None:
    path = tmp_path / "how_far"
    async with running() as run:
        call = ToolCall(name="numbered", arguments={"path": str(path), "count": 1000})
        stream: Any = run.strategy.stream_run([call])
        async with asyncio.timeout(10):
            assert (await anext(stream)).result == 0
            last = ""
            while last != (last := path.read_text()) or int(last or 0) < 20:
                await asyncio.sleep(0.05)  # until it has stopped
            assert int(last) < 150
            rest = [item.result async for item in stream]
        assert rest == [*range(1, 1000), 999]


async def test_leaving_a_stream_ends_the_tool(tmp_path: Path) -> None:
    path = tmp_path / "how_far"
    async with running() as run:
        call = ToolCall(name="numbered", arguments={"path": str(path), "count": 10**6})
        stream: Any = run.strategy.stream_run([call])
        assert (await anext(stream)).result == 0
        await stream.aclose()
        reached = path.read_text()
        assert await run.value("add", a=1, b=1) == 2
        assert path.read_text() == reached


async def test_a_failure_after_items_tells_both() -> None:
    async with running() as run:
        result = await run("items_then_fail", count=3)
        assert result.error == "after the items"
        assert list(result.result) == [0, 1, 2]
        assert await run.value("add", a=1, b=1) == 2


async def test_an_item_that_cannot_be_sent_is_the_failure() -> None:
    async with running() as run:
        result = await run("odd_item")
        assert (result.error or "").startswith("Tool serialization failed: the result")
        assert list(result.result) == [1]
        assert await run.value("add", a=1, b=1) == 2


@pytest.mark.req("T-35")
async def test_streaming_loses_no_result() -> None:
    async with running(max_workers=2) as run:
        calls = [ToolCall(name="add", arguments={"a": n, "b": 0}) for n in range(160)]
        calls += [ToolCall(name="unknown") for _ in range(10)]
        got: list[Any] = []
        started: list[str] = []
        async with asyncio.timeout(20):
            async for item in run.strategy.stream_run(
                calls, on_tool_start=lambda call: started.append(call.id)
            ):
                got.append(item)
                await asyncio.sleep(0)
        assert {item.call_id for item in got} == {call.id for call in calls}
        assert len(got) == 170
        assert len(started) == 160


# --- workers ----------------------------------------------------------------------


@pytest.mark.req("isolation.warm")
async def test_warm_starts_all_workers() -> None:
    async with running(max_workers=2) as run:
        assert [run.strategy.is_pool_ready] == [False]
        await run.strategy.warm()
        assert run.strategy.is_pool_ready
        before = set(run.strategy.worker_pids)
        assert len(before) == 2
        await run.strategy.warm()
        assert await run.value("pid") in before
        assert set(run.strategy.worker_pids) == before


@pytest.mark.req("isolation.warm")
async def test_a_warm_pool_is_started_by_the_first_call() -> None:
    async with running(max_workers=2, warm_pool=True) as run:
        await run.value("add", a=1, b=2)
        assert len(run.strategy.worker_pids) == 2
        await until(lambda: run.strategy.is_pool_ready)


@pytest.mark.req("isolation.recycling")
async def test_a_worker_is_replaced_after_so_many_calls() -> None:
    async with running(max_calls_per_worker=3) as run:
        pids = [await run.value("pid") for _ in range(7)]
        assert [pids.count(item) for item in dict.fromkeys(pids)] == [3, 3, 1]
        await until(lambda: len(run.strategy.worker_pids) == 1)


@pytest.mark.req("isolation.recycling")
async def test_a_worker_with_too_much_memory_is_replaced() -> None:
    async with running(max_worker_bytes=200 << 20) as run:
        first = await run("hoard", megabytes=1)
        assert (await run("pid")).pid == first.pid
        assert (await run("hoard", megabytes=300)).result == 2
        assert (await run("hoard", megabytes=1)).result == 1


@pytest.mark.req("isolation.limits")
async def test_limits_hold_for_their_tools_alone(tmp_path: Path) -> None:
    limits = {
        "take": ToolLimits(memory=50 << 20),
        "wri*": ToolLimits(file_size=1000),
        "open_many": ToolLimits(open_files=30),
        "spin": ToolLimits(cpu=1),
    }
    made = registry()
    made.add(tools.take, name="take_freely")
    path = str(tmp_path / "file")
    async with running(limits=limits, registry=made, default_timeout=20) as run:
        assert await run.value("take", megabytes=20) == 20 << 20
        assert await run.value("take_freely", megabytes=100) == 100 << 20
        too_much = await run("take", megabytes=100)
        assert type(too_much.exception) is MemoryError
        assert await run.value("write", path=path, size=1000) == 1000
        result = await run("write", path=path, size=2000)
        assert result.result == 1000 or isinstance(result.exception, OSError)
        assert isinstance((await run("open_many", count=50)).exception, OSError)
        spun = await run("spin")
        assert "CPU" in (spun.error or "")
        assert await run.value("add", a=1, b=1) == 2


async def test_a_worker_that_was_only_reserved_is_given_back() -> None:
    async with running() as run:
        pid = await run.value("pid")
        record = registry().resolve("pid")
        for _ in range(2):  # once waiting for it, once at once
            request = ToolRequest(ToolCall(name="pid"), record, None)
            request.arguments = {}
            (layer,) = run.strategy.gates(record)
            waiting = layer.enter(request)
            if waiting is not None:
                await waiting
            layer.leave(request, TimeoutError("no time is left to begin"))
            assert run.strategy.active == 0
        assert await run.value("pid") == pid
        assert run.strategy.worker_pids == (pid,)


@pytest.mark.req("SP-09")
async def test_what_tools_print_does_not_get_into_our_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with running() as run:
        assert await run.value("prints") == "''"
        assert await run.value("prints") == "''"
    out, err = capfd.readouterr()
    assert out == ""
    assert "printed by a tool" in err
    assert "to stderr" in err


async def test_what_a_tool_leaves_running_on_its_loop_is_cancelled(
    tmp_path: Path,
) -> None:
    path = tmp_path / "late"
    async with running() as run:
        assert await run.value("forgets_a_task", path=str(path)) == "done"
        await run.value("nap", seconds=0.1)
        assert await run.value("add_later", a=1, b=1) == 2
        assert not path.exists()


async def test_a_worker_has_one_thread_and_can_have_workers_of_its_own() -> None:
    async with running() as run:
        assert list(await run.value("threads_alive")) == ["MainThread"]
        assert await run.value("strategy_inside") == "nested"


@pytest.mark.req("isolation.loops")
def test_one_strategy_serves_one_event_loop_after_the_other() -> None:
    strategy = SubprocessStrategy(registry(), max_workers=1, worker_init_timeout=20)
    call = ToolCall(name="pid")

    async def once() -> Any:
        return (await strategy.run([call]))[0].result

    first = asyncio.run(once())
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(once())))
    thread.start()
    thread.join(20)
    assert [first, asyncio.run(once())] == [found[0], first]
    asyncio.run(strategy.shutdown())


def test_a_loop_that_was_left_in_the_middle_of_a_call_leaves_no_worker_behind() -> None:
    strategy = SubprocessStrategy(registry(), max_workers=1, worker_init_timeout=20)
    before = descriptors()

    async def begin() -> None:
        task = asyncio.ensure_future(strategy.run([ToolCall(name="spin")]))
        await until(lambda: strategy.is_pool_ready)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def after() -> Any:
        result = (await strategy.run([ToolCall(name="pid")]))[0].result
        await strategy.shutdown()
        return result

    asyncio.run(begin())
    assert asyncio.run(after()) != os.getpid()
    assert descriptors() <= before


@pytest.mark.req("isolation.main-script")
def test_tools_of_the_main_script_run_when_it_is_guarded(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio
        from dataclasses import dataclass
        from executionkit.calls import ToolCall
        from executionkit.tools.registry import create_registry
        from executionkit.tools.strategies import SubprocessStrategy

        @dataclass
        class Value:
            number: int

        def make(number: int) -> Value:
            return Value(number)

        async def main():
            registry = create_registry()
            registry.add(make)
            strategy = SubprocessStrategy(registry, max_workers=1, worker_init_timeout=20)
            result, = await strategy.run([ToolCall(name="make", arguments={"number": 4})])
            print(result.result if result.error is None else result.error)
            print(type(result.result) is Value)
            await strategy.shutdown()

        GUARD
            asyncio.run(main())
        """).replace("GUARD", 'if __name__ == "__main__":')
    )
    done = _run(script)
    assert (done.stdout, done.stderr) == ("Value(number=4)\nTrue\n", "")
    unguarded = script.read_text().replace('if __name__ == "__main__":', "if True:")
    script.write_text(unguarded)
    assert "put what the script does under" in _run(script).stderr


def _run(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=25,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_tools_of_a_program_without_a_file_are_refused_clearly() -> None:
    program = textwrap.dedent("""
        import asyncio
        from executionkit.calls import ToolCall
        from executionkit.tools.registry import create_registry
        from executionkit.tools.strategies import SubprocessStrategy
        def one() -> int: return 1
        registry = create_registry()
        registry.add(one)
        result, = asyncio.run(SubprocessStrategy(registry).run([ToolCall(name="one")]))
        print(result.error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=25,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "move it to a module" in done.stdout
