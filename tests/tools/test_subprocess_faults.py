"""Tools in worker processes that crash, hang or are killed: nothing else suffers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from executionkit.calls import ToolCall
from executionkit.engine.retry import RetryConfig
from executionkit.errors import ErrorCategory, ErrorCode
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.strategies import SubprocessStrategy, WorkerCrashedError
from tests.tools import isolation_tools as tools
from tests.tools.isolation_help import (
    children,
    descriptors,
    is_alive,
    kill,
    registry,
    running,
    text,
    until,
)

pytestmark = [
    pytest.mark.usefixtures("_own_children"),
    pytest.mark.skipif(
        os.name != "posix" or not Path("/proc/self/stat").exists(), reason="needs Linux"
    ),
]

CRASHED = "Worker process crashed"


# --- timeouts and cancellation ------------------------------------------------------


@pytest.mark.req("T-19", "isolation.timeout", "SP-06")
async def test_a_call_over_its_time_is_killed_and_its_worker_replaced() -> None:
    async with running() as run:
        await run.value("add", a=1, b=1)
        (pid,) = run.strategy.worker_pids
        result = await run("spin", 0.3)
        assert result.error == "Timeout after 0.3s"
        assert result.error_code is ErrorCode.TOOL_TIMEOUT
        assert (result.pid, result.attempts) == (pid, 1)
        assert not is_alive(pid)
        assert result.duration < 3
        after = await run("pid")
        assert after.result != pid


async def test_sigterm_lets_a_tool_clean_up(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with running() as run:
        for name in ("nap_and_clean", "nap_later"):
            await run.value("add", a=1, b=1)
            result = await run(name, 0.3, seconds=30, path=str(path))
            assert result.error == "Timeout after 0.3s"
            assert path.read_text() == "cleaned up"


async def test_a_tool_that_ignores_sigterm_is_killed_after_the_grace(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pid"
    async with running(grace=0.2) as run:
        await run.value("add", a=1, b=1)
        result = await run("stubborn", 0.3, path=str(path))
        assert result.error == "Timeout after 0.3s"
        assert 0.45 < result.duration < 5
        assert not is_alive(int(path.read_text()))
        assert await run.value("add", a=1, b=1) == 2


@pytest.mark.req("SP-07", "SP-06")
@pytest.mark.parametrize("mood", ["", "stubborn", "away"])
@pytest.mark.parametrize("how", ["timeout", "cancel", "shutdown", "crash"])
async def test_no_effect_comes_after_the_result(
    how: str, mood: str, tmp_path: Path
) -> None:
    started, effect = tmp_path / "started", tmp_path / "effect"
    async with running(grace=0.2) as run:
        await run.value("add", a=1, b=1)
        arguments = {
            "started": str(started),
            "effect": str(effect),
            "after": 2.5,
            "mood": mood,
        }
        call = asyncio.ensure_future(
            run("canary", 1.2 if how == "timeout" else None, **arguments)
        )
        await until(lambda: text(started))
        if how == "timeout":
            assert (await call).error == "Timeout after 1.2s"
        elif how == "cancel":
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        elif how == "crash":
            kill(*run.strategy.worker_pids)
            assert CRASHED in ((await call).error or "")
        else:
            await run.strategy.shutdown()
            assert (await call).error == "Execution was cancelled"
        assert not _processes_with(str(effect))
        assert not effect.exists()


def _processes_with(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(int(entry.name)):
            with contextlib.suppress(OSError):
                if argument in (entry / "cmdline").read_bytes().decode():
                    found.append(int(entry.name))
    return found


@pytest.mark.req("SP-06")
async def test_a_forked_child_with_our_socket_hides_no_crash(tmp_path: Path) -> None:
    started, effect = tmp_path / "started", tmp_path / "effect"
    async with running() as run:
        result = await run("forks", started=str(started), effect=str(effect), after=3.0)
        assert CRASHED in (result.error or "")
        assert "code 5" in (result.error or "")
        assert not text(started) or not is_alive(int(text(started)))
        assert not effect.exists()
        assert await run.value("add", a=1, b=1) == 2


@pytest.mark.req("isolation.queue-time")
async def test_waiting_for_a_worker_is_no_time_of_the_tool() -> None:
    async with running(default_timeout=1.5) as run:
        results = await run.many("nap", [{"seconds": 0.4}] * 5)  # 2 s in all
        assert [item.error for item in results] == [None] * 5


@pytest.mark.req("isolation.queue-time", "T-19")
async def test_a_call_that_never_got_a_worker_was_never_started() -> None:
    async with running() as run:
        await run.value("add", a=1, b=1)
        calls = [ToolCall(name="nap", arguments={"seconds": 0.7}) for _ in range(2)]
        ran, waited = await run.strategy.run(calls, 0.5, "submission")
        assert (ran.error, ran.attempts) == ("Timeout after 0.5s", 1)
        assert (waited.error, waited.attempts) == ("Timeout after 0.5s", 0)
        assert waited.duration < 5


async def test_a_cancelled_waiter_takes_nothing_with_it(tmp_path: Path) -> None:
    path = tmp_path / "running"
    async with running() as run:
        first = asyncio.ensure_future(run("wait_for", path=str(path)))
        await until(lambda: text(path))
        waiting = [asyncio.ensure_future(run("pid")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        path.unlink()
        assert (await first).result == "ended"
        assert (await waiting[0]).result == (await waiting[2]).result
        with pytest.raises(asyncio.CancelledError):
            await waiting[1]


@pytest.mark.req("SP-10")
async def test_a_cancellation_around_the_end_of_a_call_loses_no_worker() -> None:
    chance = random.Random(3)
    async with running(max_workers=2) as run:
        await run.strategy.warm()
        await run.many("echo", [{"text": "x"}] * 4)
        lost = 0
        for _ in range(60):
            task = asyncio.ensure_future(run("echo", text="x"))
            await asyncio.sleep(chance.uniform(0, 0.002))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert (await task).result == "x"
                lost += 1
        assert run.strategy.active == 0
        results = await run.many("echo", [{"text": str(n)} for n in range(20)])
        assert [item.result for item in results] == [str(n) for n in range(20)]
        assert len(run.strategy.worker_pids) <= 2


# --- crashes ------------------------------------------------------------------------


@pytest.mark.req("T-22", "isolation.crash")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("segfault", "SIGSEGV"),
        ("exit", "code 3"),
        ("abort", "SIGABRT"),
        ("kill", "SIGKILL"),
    ],
)
async def test_a_crash_fails_that_call_alone(
    how: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "running"
    async with running(max_workers=2) as run:
        innocent = asyncio.ensure_future(run("wait_for", path=str(path)))
        await until(lambda: text(path))
        result = await run("crash", how=how)
        assert (result.error or "").startswith(CRASHED)
        assert words in (result.error or "")
        assert type(result.exception) is WorkerCrashedError
        assert result.error_category is ErrorCategory.EXECUTION
        assert (result.attempts, result.retryable) == (1, True)
        assert not innocent.done()
        path.unlink()
        assert (await innocent).result == "ended"
        assert len(run.strategy.worker_pids) == 2


@pytest.mark.req("isolation.crash")
async def test_a_crash_is_an_attempt_and_is_retried_by_the_usual_rules() -> None:
    made = registry()
    made.add(tools.crash, name="writes", side_effects="write")
    strategy = SubprocessStrategy(made, max_workers=1, worker_init_timeout=20)
    retry = RetryConfig(max_retries=2, base_delay=0.0)
    async with ToolProcessor(
        made, strategy, enable_retries=True, retry_config=retry
    ) as processor:
        harmless, writes = await processor.process(
            [
                {"tool": "crash", "arguments": {"how": "exit"}},
                {"tool": "writes", "arguments": {"how": "exit"}},
            ],
            return_order="submission",
        )
    await strategy.shutdown()
    assert (harmless.attempts, writes.attempts) == (3, 1)
    assert CRASHED in (writes.error or "")


@pytest.mark.req("SP-04")
async def test_a_hundred_kills_at_any_moment_hurt_only_the_call_that_ran() -> None:
    chance = random.Random(11)
    big = "x" * 10_000_000
    async with running(max_workers=2) as run:
        await run.strategy.warm()
        crashed = 0
        for number in range(100):
            size = 10_000_000 if number % 10 == 0 else chance.choice([1, 100_000])
            doomed = [
                asyncio.ensure_future(run("light_echo", text=big[:size]))
                for _ in range(2)
            ]
            await asyncio.sleep(chance.choice([0, 0.0003, 0.002]))
            pids = run.strategy.worker_pids
            if pids:
                with contextlib.suppress(ProcessLookupError):
                    kill(chance.choice(pids))
            results = await asyncio.gather(*doomed)
            failed = [item for item in results if item.error]
            crashed += len(failed)
            assert crashed <= number + 1  # a kill of before may hit a call of now
            for item in results:
                if item.error is None:
                    assert len(item.result) == size
                else:
                    assert item.error.startswith("Worker process")
        assert crashed
        assert await run.value("add", a=1, b=1) == 2
        assert run.strategy.active == 0
    assert not children()


@pytest.mark.req("SP-04")
async def test_a_call_that_waits_for_a_worker_outlives_the_death_of_that_worker() -> (
    None
):
    async with running(max_workers=1) as run:
        call = asyncio.ensure_future(run("add", a=1, b=1))
        await until(lambda: run.strategy.worker_pids)
        kill(run.strategy.worker_pids[0])
        result = await call
        assert (result.result, result.error, result.attempts) == (2, None, 1)


@pytest.mark.req("isolation.no-leaks")
async def test_whatever_happens_to_calls_the_pool_stays_whole() -> None:
    chance = random.Random(5)
    tools_: list[tuple[str, dict[str, Any]]] = [
        ("crash", {"how": "exit"}),
        ("crash", {"how": "kill"}),
        ("light_nap", {"seconds": 5}),
        ("light_nap", {"seconds": 0.01}),
        ("items", {"count": 100}),
        ("give", {"kind": "lock"}),
        *[("light_echo", {"text": "x"})] * 6,
        ("light_echo", {"text": "x" * 1_000_000}),
    ]
    before = descriptors()
    async with running(max_workers=3, grace=0.1, max_calls_per_worker=7) as run:

        async def lane() -> None:
            for _ in range(20):
                name, arguments = chance.choice(tools_)
                limit = chance.choice([0.02, 0.1, 0.4])
                call = asyncio.ensure_future(run(name, limit, **arguments))
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.uniform(0, 0.05))
                    call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    result = await call
                    if name == "light_echo" and result.error is None:
                        assert result.result == arguments["text"]

        async with asyncio.timeout(25):
            await asyncio.gather(*[lane() for _ in range(5)])
        assert run.strategy.active == 0
        assert len(run.strategy.worker_pids) <= 3
        assert await run.value("light_echo", text="well") == "well"
    assert not children()
    assert descriptors() <= before


async def test_an_idle_worker_that_is_killed_is_noticed_and_replaced() -> None:
    async with running() as run:
        first = await run.value("pid")
        kill(first)
        await until(lambda: not run.strategy.worker_pids)
        assert not run.strategy.is_pool_ready
        await until(lambda: first not in children())
        assert (await run("pid")).error is None
        # Killed, and used before that could be noticed.
        second = run.strategy.worker_pids[0]
        kill(second)
        result = await run("pid")
        assert result.error is None or CRASHED in result.error
        assert await run.value("pid") not in (first, second)


@pytest.mark.req("SP-08", "isolation.no-leaks")
async def test_two_hundred_timeouts_leave_no_zombie_and_no_descriptor() -> None:
    async with running(max_workers=4, default_timeout=0.02) as run:
        await run.strategy.warm()
        await run.many("light_echo", [{"text": "x"}] * 4)
        before = descriptors()
        results = await run.many("light_nap", [{"seconds": 60}] * 200)
        assert {item.error for item in results} == {"Timeout after 0.02s"}
        assert {item.attempts for item in results} == {1}
        await until(lambda: "Z" not in children().values())
        assert len(children()) <= 4
        assert descriptors() <= before
    assert not children()


@pytest.mark.req("SP-01")
async def test_threads_that_hold_locks_do_not_matter() -> None:
    log = logging.getLogger("test.busy")
    log.propagate = False
    handler = logging.StreamHandler(io.StringIO())
    log.addHandler(handler)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            log.error("busy")
            time.sleep(0.0001)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        async with running(max_workers=2, max_calls_per_worker=25) as run:
            results = await run.many("add", [{"a": 1, "b": n} for n in range(200)])
            assert [item.result for item in results] == [n + 1 for n in range(200)]
    finally:
        stop.set()
        thread.join()
        log.removeHandler(handler)


@pytest.mark.req("SP-01")
async def test_a_worker_that_does_not_get_ready_is_reported(tmp_path: Path) -> None:
    hook = tmp_path / "sitecustomize.py"
    hook.write_text("import time\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    async with running(env=env, worker_init_timeout=0.3) as run:
        result = await run("add", a=1, b=2)
        assert "did not get ready within 0.3s" in (result.error or "")
        assert result.attempts == 0
        hook.write_text("import os\nos._exit(9)\n")
        result = await run("add", a=1, b=2)
        assert "code 9" in (result.error or "")
    assert not children()


# --- the end of it all --------------------------------------------------------------


@pytest.mark.req("isolation.shutdown")
async def test_shutdown_cancels_what_runs_and_refuses_what_comes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pid"
    async with running(max_workers=2, grace=0.3) as run:
        calls = [
            asyncio.ensure_future(run("stubborn", path=str(path))),
            asyncio.ensure_future(run("nap", seconds=60)),
        ]
        waiting = asyncio.ensure_future(run("nap", seconds=60))
        await until(lambda: text(path))
        began = time.monotonic()
        await run.strategy.shutdown()
        assert time.monotonic() - began < 3.5
        for call in calls:
            assert (await call).error == "Execution was cancelled"
        assert (await waiting).attempts == 0
        assert (await run("add", a=1, b=1)).error == "System is shutting down"
        await run.strategy.shutdown()
        await run.strategy.close()
        assert not run.strategy.is_pool_ready
        with pytest.raises(Exception, match="System is shutting down"):
            await run.strategy.warm()
        assert not children()


async def test_a_strategy_that_nobody_holds_takes_its_workers_along() -> None:
    strategy: Any = SubprocessStrategy(
        registry(), max_workers=1, worker_init_timeout=20
    )
    await strategy.warm()
    (pid,) = strategy.worker_pids
    del strategy
    gc.collect()
    await until(lambda: pid not in children())


PARENT = """
import asyncio, os, signal, sys
from executionkit.calls import ToolCall
from executionkit.tools.strategies import SubprocessStrategy, WorkerCrashedError
from tests.tools.isolation_help import registry

async def main():
    strategy = SubprocessStrategy(registry(), max_workers=2, worker_init_timeout=20,
                                  install_signal_handlers=sys.argv[1] == "handlers")
    await strategy.warm()
    print(*strategy.worker_pids, flush=True)
    calls = [ToolCall(name=n, arguments=a) for n, a in eval(sys.argv[2])]
    results = await strategy.run(calls)
    if sys.argv[1] == "restore":
        await strategy.shutdown()
    print([item.error for item in results], flush=True)
    if sys.argv[1] == "raise":
        raise SystemExit(3)

asyncio.run(main())
"""


class Program:
    """A program of its own that runs tools in workers."""

    def __init__(self, mode: str, calls: list[Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PARENT), mode, repr(calls)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        self.workers = [int(item) for item in line.split()]

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=15)
        return self.process.returncode, out, err


@pytest.mark.req("SP-07", "isolation.parent-dies")
async def test_workers_and_their_children_die_with_a_killed_parent(
    tmp_path: Path,
) -> None:
    started, effect, spinning = (
        tmp_path / name for name in ("started", "effect", "spin")
    )
    grandchild = {
        "started": str(started),
        "effect": str(effect),
        "after": 1.5,
        "mood": "stubborn",
    }
    program = Program(
        "kill", [("canary", grandchild), ("spin", {"path": str(spinning)})]
    )
    await until(lambda: text(started) and text(spinning))
    program.process.kill()
    program.end()
    await until(lambda: not any(is_alive(pid) for pid in program.workers), 2)
    await until(lambda: not _processes_with(str(effect)), 2)
    assert not effect.exists()


@pytest.mark.parametrize("mode", ["plain", "raise"])
async def test_a_program_that_forgets_to_shut_down_ends(mode: str) -> None:
    program = Program(mode, [("add", {"a": 1, "b": 2})])
    code, out, err = await asyncio.to_thread(program.end)
    assert (code, out.strip()) == (3 if mode == "raise" else 0, "[None]")
    assert err == ""
    await until(lambda: not any(is_alive(pid) for pid in program.workers), 2)


@pytest.mark.req("T-21", "isolation.signals")
@pytest.mark.parametrize("mode", ["plain", "handlers"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_program_as_it_would_without_us(
    mode: str, number: int, tmp_path: Path
) -> None:
    path = tmp_path / "running"
    program = Program(mode, [("wait_for", {"path": str(path)})])
    await until(lambda: text(path))
    program.process.send_signal(number)
    code, _, err = await asyncio.to_thread(program.end)
    if number == signal.SIGTERM:
        assert code == -signal.SIGTERM
    else:
        assert "KeyboardInterrupt" in err
    await until(lambda: not any(is_alive(pid) for pid in program.workers), 3)


@pytest.mark.req("T-21", "isolation.signals")
async def test_handlers_are_installed_when_asked_for_and_taken_back(
    tmp_path: Path,
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    seen: list[int] = []
    async with running() as run:
        await run.value("add", a=1, b=1)
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    old = signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    try:
        async with running(install_signal_handlers=True) as run:
            assert signal.getsignal(signal.SIGINT) == before[1]  # not by construction
            path = tmp_path / "spinning"
            spin = asyncio.ensure_future(run("spin", path=str(path)))
            await until(lambda: text(path))
            os.kill(os.getpid(), signal.SIGTERM)
            assert (await spin).error == "Execution was cancelled"
            assert seen == [signal.SIGTERM]
            assert (await run("add", a=1, b=1)).error == "System is shutting down"
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM] * 2
        assert signal.getsignal(signal.SIGINT) == before[1]
    finally:
        signal.signal(signal.SIGTERM, old)


async def test_a_forked_child_of_ours_ends_no_worker_of_ours() -> None:
    async with running() as run:
        pid = await run.value("pid")
        child = os.fork()
        if not child:
            try:
                import atexit

                atexit._run_exitfuncs()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - it ends at once
        assert is_alive(pid)
        assert await run.value("pid") == pid
