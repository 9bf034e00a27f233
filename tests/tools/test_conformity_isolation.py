"""The statements of the production patterns document on worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.tools.isolation_help import is_alive, running, text, until

pytestmark = pytest.mark.skipif(
    os.name != "posix" or not Path("/proc/self/stat").exists(), reason="needs Linux"
)


@pytest.mark.req("T-SEED-13")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
@pytest.mark.parametrize("name", ["nap_and_clean", "stubborn"])
async def test_a_worker_gets_sigterm_and_after_a_grace_sigkill(
    name: str, how: str, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    arguments = {"seconds": 60} if name == "nap_and_clean" else {}
    async with running(grace=0.2) as run:
        await run.value("add", a=1, b=1)
        limit = 0.3 if how == "timeout" else None
        call = asyncio.ensure_future(run(name, limit, path=str(path), **arguments))
        await until(lambda: text(path))
        (pid,) = run.strategy.worker_pids
        if how == "cancel":
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        else:
            assert (await call).error == "Timeout after 0.3s"
        assert not is_alive(pid)
        assert (text(path) == "cleaned up") == (name == "nap_and_clean")


@pytest.mark.req("T-SEED-14")
async def test_a_shutdown_refuses_cancels_and_leaves_no_worker(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    async with running(grace=0.2) as run:
        call = asyncio.ensure_future(run("stubborn", path=str(path)))
        await until(lambda: text(path))
        workers = run.strategy.worker_pids
        await run.strategy.shutdown()
        assert (await call).error == "Execution was cancelled"
        assert (await run("add", a=1, b=1)).error == "System is shutting down"
        assert not any(map(is_alive, workers))


@pytest.mark.req("T-SEED-15")
async def test_workers_ignore_sigint_and_signals_are_handled_when_asked_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "running"
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    async with running() as run:
        call = asyncio.ensure_future(run("wait_for", path=str(path)))
        await until(lambda: text(path))
        (pid,) = run.strategy.worker_pids
        os.kill(pid, signal.SIGINT)
        path.unlink()
        result = await call
        assert (result.result, result.pid) == ("ended", pid)
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    async with running(install_signal_handlers=True) as run:
        await run.value("add", a=1, b=1)
        now = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        assert all(new != old for new, old in zip(now, before, strict=True))
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.req("T-SEED-16")
@pytest.mark.parametrize("explicit", [True, False])
async def test_a_warm_pool_has_all_its_workers(explicit: bool) -> None:
    async with running(max_workers=2, warm_pool=not explicit) as run:
        if explicit:
            await run.strategy.warm()
        else:
            await run.value("add", a=1, b=1)
        await until(lambda: run.strategy.is_pool_ready)
        assert len(run.strategy.worker_pids) == 2
