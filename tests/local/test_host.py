"""The engine's threads: one line, stopping, closing, loops, forks, the end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from executionkit._local.host import EngineHost, Job, ModelInfo
from executionkit.errors import PermanentError, ProviderConnectionError

if TYPE_CHECKING:
    from executionkit._local.host import Engine


WAIT = 5.0
INFO = ModelInfo("http://127.0.0.1:9", native_tools=False, parameters=0)


class Maker:
    """Builds engines and counts them."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.made = 0
        self.failure: Exception | None = None
        self.threads: set[str] = set()

    def __call__(self) -> tuple[Engine, ModelInfo]:
        self.threads.add(threading.current_thread().name)
        self.made += 1
        if self.failure is not None:
            raise self.failure
        return self.engine, INFO


@pytest.fixture
async def close() -> AsyncIterator[list[EngineHost]]:
    hosts: list[EngineHost] = []
    yield hosts
    for host in hosts:
        await host.aclose()


async def began(engine: Any, count: int = 1) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(engine.began.acquire, timeout=WAIT)


async def pieces_of(job: Job) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(WAIT):
        while (item := await job.next()) is not None:
            found.append(item)
    return found


@pytest.mark.req("local.engine-shared")
class TestRequests:
    async def test_pieces_come_in_order_from_a_thread_of_its_own(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        make = Maker(fake.engine(fake.reply("a", "b")))
        host = EngineHost(make, 2)
        close.append(host)
        assert await pieces_of(host.submit(b"{}")) == fake.reply("a", "b")
        (name,) = make.threads
        assert name.startswith("executionkit-local-")

    async def test_the_engine_is_loaded_once_by_the_first_request(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        make = Maker(fake.engine())
        host = EngineHost(make, 3)
        close.append(host)
        assert make.made == 0
        jobs = [host.submit(b"{}") for _ in range(9)]
        for job in jobs:
            assert await pieces_of(job) == fake.reply("hello")
        assert (await host.load()).address == INFO.address
        assert make.made == 1

    async def test_no_more_than_parallel_run_at_once_and_the_rest_wait_in_line(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        engine = fake.engine()
        host = EngineHost(Maker(engine), 2)
        close.append(host)
        with engine.held():
            jobs = [host.submit(b'{"n": %d}' % number) for number in range(6)]
            await began(engine, 2)
            assert engine.busy == 2
        for job in jobs:
            await pieces_of(job)
        assert engine.most_busy == 2
        assert sorted(body["n"] for body in engine.bodies[:2]) == [0, 1]
        assert {body["n"] for body in engine.bodies} == set(range(6))

    async def test_one_thread_keeps_the_order_of_arrival(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        engine = fake.engine()
        host = EngineHost(Maker(engine), 1)
        close.append(host)
        jobs = [host.submit(b'{"n": %d}' % number) for number in range(5)]
        for job in jobs:
            await pieces_of(job)
        assert [body["n"] for body in engine.bodies] == [0, 1, 2, 3, 4]

    async def test_progress_of_the_prompt_is_not_passed_on(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        progress = b'{"choices": [], "prompt_progress": {"processed": 256}}'
        engine = fake.engine([progress, *fake.reply("a")])
        host = EngineHost(Maker(engine), 1)
        close.append(host)
        assert await pieces_of(host.submit(b"{}")) == fake.reply("a")

    async def test_what_the_engine_raises_reaches_the_caller_as_words(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        engine = fake.engine(RuntimeError("no such role"), fake.reply("next"))
        host = EngineHost(Maker(engine), 1)
        close.append(host)
        with pytest.raises(ValueError, match="no such role"):
            await pieces_of(host.submit(b"{}"))
        assert await pieces_of(host.submit(b"{}")) == fake.reply("next")

    async def test_a_failed_load_is_told_to_each_and_tried_again(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        make = Maker(fake.engine())
        make.failure = PermanentError("no model")
        host = EngineHost(make, 1)
        close.append(host)
        for job in [host.submit(b"{}"), host.submit(b"{}")]:
            with pytest.raises(PermanentError, match="no model"):
                await pieces_of(job)
        make.failure = None
        assert await pieces_of(host.submit(b"{}")) == fake.reply("hello")
        assert make.made == 3


@pytest.mark.req("local.stops")
class TestStopping:
    async def test_a_stopped_request_ends_at_the_next_piece_and_frees_its_thread(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        engine = fake.engine(fake.reply(*"abcdef"))
        host = EngineHost(Maker(engine), 1)
        close.append(host)
        with engine.held():
            job = host.submit(b"{}")
            await began(engine)
            job.stop()
        assert await pieces_of(host.submit(b"{}")) == fake.reply(*"abcdef")
        assert engine.stopped == 1

    async def test_one_that_waits_in_line_never_begins(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        engine = fake.engine()
        host = EngineHost(Maker(engine), 1)
        close.append(host)
        with engine.held():
            first = host.submit(b'{"n": 0}')
            await began(engine)
            host.submit(b'{"n": 1}').stop()
            last = host.submit(b'{"n": 2}')
        await pieces_of(first)
        await pieces_of(last)
        assert [body["n"] for body in engine.bodies] == [0, 2]

    def test_a_request_whose_loop_has_ended_stops(self, fake: Any) -> None:
        engine = fake.engine(fake.reply(*"abc"))
        host = EngineHost(Maker(engine), 1)

        async def leave() -> None:
            host.submit(b"{}")
            await began(engine)

        with engine.held():
            asyncio.run(leave())

        async def after() -> None:
            assert await pieces_of(host.submit(b"{}")) == fake.reply(*"abc")
            await host.aclose()

        asyncio.run(after())
        assert engine.stopped == 1


@pytest.mark.req("local.engine-shared")
class TestLoopsAndThreads:
    def test_one_loop_after_the_other(self, fake: Any) -> None:
        make = Maker(fake.engine())
        host = EngineHost(make, 1)

        async def once() -> list[bytes]:
            return await pieces_of(host.submit(b"{}"))

        assert asyncio.run(once()) == asyncio.run(once()) == fake.reply("hello")
        assert make.made == 1
        asyncio.run(host.aclose())

    def test_two_loops_at_the_same_time(self, fake: Any) -> None:
        make = Maker(fake.engine())
        host = EngineHost(make, 2)
        found: list[list[bytes]] = []

        async def once() -> None:
            found.append(await pieces_of(host.submit(b"{}")))

        threads = [
            threading.Thread(target=lambda: asyncio.run(once())) for _ in range(2)
        ]
        with make.engine.held():
            for thread in threads:
                thread.start()
            for _ in threads:
                assert make.engine.began.acquire(timeout=WAIT)
        for thread in threads:
            thread.join(WAIT)
        assert found == [fake.reply("hello")] * 2
        asyncio.run(host.aclose())


@pytest.mark.req("local.close")
class TestClosing:
    async def test_it_stops_what_runs_and_refuses_what_waits(self, fake: Any) -> None:
        engine = fake.engine(fake.reply(*"abc"))
        host = EngineHost(Maker(engine), 1)
        with engine.held():
            running = host.submit(b"{}")
            await began(engine)
            waiting = host.submit(b"{}")
            host.close()
        for job in (running, waiting):
            with pytest.raises(ProviderConnectionError, match="closed"):
                await pieces_of(job)
        await host.aclose()
        assert engine.stopped == 1

    async def test_the_engine_is_let_go(self, fake: Any) -> None:
        engines = [fake.engine()]
        gone = weakref.ref(engines[0])
        host = EngineHost(lambda: (engines.pop(), INFO), 2)
        await pieces_of(host.submit(b"{}"))
        crew = host._crew
        await host.aclose()
        gc.collect()
        assert gone() is None, "it has ended when `aclose` returns"
        assert crew is not None

    async def test_a_failure_does_not_keep_the_engine(self, fake: Any) -> None:
        engines = [fake.engine(RuntimeError("refused"))]
        gone = weakref.ref(engines[0])
        host = EngineHost(lambda: (engines.pop(), INFO), 1)
        with pytest.raises(ValueError, match="refused") as caught:
            await pieces_of(host.submit(b"{}"))
        await host.aclose()
        gc.collect()
        assert gone() is None
        assert caught.value is not None

    async def test_the_next_request_loads_it_again(
        self, fake: Any, close: list[EngineHost]
    ) -> None:
        make = Maker(fake.engine())
        host = EngineHost(make, 1)
        close.append(host)
        await host.load()
        await host.aclose()
        await host.aclose()
        assert await pieces_of(host.submit(b"{}")) == fake.reply("hello")
        assert make.made == 2

    async def test_closing_what_was_never_used_is_nothing(self, fake: Any) -> None:
        host = EngineHost(Maker(fake.engine()), 1)
        host.close()
        await host.aclose()

    async def test_its_threads_end(self, fake: Any) -> None:
        host = EngineHost(Maker(fake.engine()), 3)
        before = threading.active_count()
        await host.load()
        assert threading.active_count() == before + 3
        crew = host._crew
        assert crew is not None
        await host.aclose()
        assert crew.finished.is_set()


@pytest.mark.req("local.fork")
class TestAForkedChild:
    async def test_it_loads_an_engine_of_its_own(
        self, fake: Any, monkeypatch: pytest.MonkeyPatch, close: list[EngineHost]
    ) -> None:
        kept: list[object] = []
        monkeypatch.setattr(
            ctypes.pythonapi, "Py_IncRef", lambda item: kept.append(item)
        )
        make = Maker(fake.engine())
        host = EngineHost(make, 1)
        close.append(host)
        await host.load()
        parent = host._crew
        assert parent is not None
        monkeypatch.setattr(parent, "pid", os.getpid() + 1)
        assert await pieces_of(host.submit(b"{}")) == fake.reply("hello")
        assert make.made == 2
        assert host._crew is not parent
        assert len(kept) == 1, "the parent's engine is never destroyed"
        monkeypatch.setattr(parent, "pid", os.getpid())
        parent.close()

    async def test_closing_there_leaves_the_parents_engine_alone(
        self, fake: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = fake.engine()
        host = EngineHost(Maker(engine), 1)
        await host.load()
        parent = host._crew
        assert parent is not None
        monkeypatch.setattr(parent, "pid", os.getpid() + 1)
        monkeypatch.setattr(ctypes.pythonapi, "Py_IncRef", lambda _: None)
        await host.aclose()
        assert not parent.finished.is_set()
        monkeypatch.setattr(parent, "pid", os.getpid())
        parent.close()


@pytest.mark.req("local.exit")
class TestTheEndOfTheProcess:
    def test_it_waits_for_a_request_to_stop(self, fake: Any) -> None:
        code = textwrap.dedent(
            """
            import asyncio, sys, threading, weakref
            from executionkit._local.host import EngineHost, ModelInfo

            class Engine:
                def handle_chat_completions(self, body, callback):
                    began.set()
                    while not callback(b"{}"):
                        pass
                    print("stopped", flush=True)
                def __del__(self):
                    print("ended", flush=True)

            began = threading.Event()
            host = EngineHost(lambda: (Engine(), ModelInfo("", False, 0)), 2)

            async def leave():
                host.submit(b"{}")
                began.wait(5)

            asyncio.run(leave())
            sys.exit(3)
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=20
        )
        assert (done.returncode, done.stderr) == (3, "")
        assert done.stdout == "stopped\nended\n"
