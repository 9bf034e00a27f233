"""A real server that is killed, stopped, emptied and restarted while it is used."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import os
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executionkit.backends import MISS, LimitRule, open_backend
from executionkit.backends._redis import wire as wire_module
from executionkit.backends._redis.resp import Question
from executionkit.backends.redis import RedisBackend
from executionkit.calls import ToolCall
from executionkit.engine.breaker import BreakerConfig, CircuitState
from executionkit.engine.rate_bucket import PermitTimeoutError
from executionkit.errors import ErrorCode, StateStoreError, ToolCircuitOpenError
from executionkit.testing import FakeClock
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry

RULE = LimitRule("tool:a", 100, 60.0)
ONCE = BreakerConfig(failure_threshold=1)
ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def opened(url: str, timeout: float = 5.0) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(url, timeout=timeout)
    try:
        async with asyncio.timeout(20):
            yield backend
    finally:
        await backend.close()


async def used(backend: RedisBackend, rule: LimitRule = RULE) -> int:
    return (await backend.limiter().usage(rule)).used


@pytest.mark.req("redis.down")
async def test_a_killed_server_fails_what_is_asked_and_is_found_again(
    own_server: Any,
) -> None:
    async with opened(own_server.url) as backend:
        limiter, breakers, cache = (
            backend.limiter(),
            backend.breakers(),
            backend.cache(),
        )
        await limiter.acquire([RULE])
        own_server.kill()
        for ask in (
            lambda: limiter.acquire([RULE]),
            lambda: breakers.before("a", ONCE),
            lambda: cache.get("k"),
        ):
            with pytest.raises(StateStoreError, match="Redis at unix://"):
                await ask()
        own_server.start()
        await limiter.acquire([RULE])
        await breakers.report(await breakers.before("a", ONCE), "success")
        assert await cache.set("k", 1, 10)
        assert await used(backend) == 1, "the server had nothing on disk"


async def answered(limiter: Any) -> None:
    """Wait until the server has answered; a busy machine may take longer than said."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(StateStoreError):
                await limiter.acquire([RULE])
                return


@pytest.mark.req("redis.down")
async def test_a_server_that_hangs_is_waited_for_no_longer_than_said(
    own_server: Any,
) -> None:
    async with opened(own_server.url, timeout=0.1) as backend:
        limiter = backend.limiter()
        await answered(limiter)
        own_server.stop()
        # Both on the connection that there is, and on new ones.
        for _ in range(3):
            asked = [limiter.acquire([RULE]) for _ in range(20)]
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(each) for each in ended} == {StateStoreError}
            assert "did not answer within 0.1s" in str(ended[0])
        own_server.go_on()
        await answered(limiter)


@pytest.mark.req("redis.down")
async def test_a_short_timeout_on_a_server_that_hangs_is_no_refusal(
    own_server: Any,
) -> None:
    async with opened(own_server.url, timeout=5) as backend:
        limiter = backend.limiter()
        await limiter.acquire([RULE])
        own_server.stop()
        with pytest.raises(StateStoreError, match="did not answer before"):
            await limiter.acquire([RULE], timeout=0.4)
        own_server.go_on()


@pytest.mark.req("redis.again")
async def test_scripts_that_the_server_lost_are_sent_again(redis_server: Any) -> None:
    async with opened(redis_server.url) as backend:
        await backend.limiter().acquire([RULE])
        redis_server.command("SCRIPT", "FLUSH")
        asked: list[Any] = [backend.limiter().acquire([RULE]) for _ in range(10)]
        asked += [backend.breakers().before("a", ONCE) for _ in range(3)]
        await asyncio.gather(*asked)
        assert await used(backend) == 11


@pytest.mark.req("redis.again")
async def test_connections_that_were_closed_are_made_anew(redis_server: Any) -> None:
    async with opened(redis_server.url) as backend:
        limiter = backend.limiter()
        for _ in range(5):
            await limiter.acquire([RULE])
            redis_server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.gather(*(limiter.acquire([RULE]) for _ in range(5)))
        assert await used(backend) == 10


class LossyProxy:
    """Between a client and a server; it can lose replies, after the server's work."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = target
        self._tls = tls
        self.to_lose = 0
        self.requests = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._tls
        )
        host, port = self._server.sockets[0].getsockname()
        return f"{'rediss' if self._tls else 'redis'}://{host}:{port}"

    async def _serve(self, reader: Any, writer: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        away, back = await asyncio.open_unix_connection(self._target)
        try:
            while data := await reader.read(65536):
                self.requests += 1
                back.write(data)
                answer = await away.read(65536)
                if self.to_lose and b"CLIENT" not in data:
                    self.to_lose -= 1
                    return
                writer.write(answer)
        except ConnectionError:
            return
        finally:
            writer.close()
            back.close()
            self._tasks.discard(task)

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        async with asyncio.timeout(5):
            while self._tasks:
                await asyncio.sleep(0)


@pytest.mark.req("redis.again")
async def test_a_lost_reply_is_asked_for_again_and_nothing_counts_twice(
    redis_server: Any,
) -> None:
    proxy = LossyProxy(str(redis_server.socket))
    async with opened(await proxy.start()) as backend:
        limiter, breakers, cache = (
            backend.limiter(),
            backend.breakers(),
            backend.cache(),
        )
        # The server knows all scripts: what is lost is the reply to real work.
        await limiter.acquire([RULE])
        await breakers.report(await breakers.before("warm", ONCE), "success")
        await cache.set("warm", 1, 10)
        full = LimitRule("tool:full", 3, 60.0)
        proxy.to_lose = 1
        await limiter.acquire([full], cost=3, timeout=0)
        assert await used(backend, full) == 3
        proxy.to_lose = 1
        permit = await limiter.acquire([RULE], cost=3)
        assert await used(backend) == 4
        await limiter.refund(permit)
        assert await used(backend) == 1

        proxy.to_lose = 1
        lease = await breakers.before("a", BreakerConfig(failure_threshold=2))
        proxy.to_lose = 1
        await breakers.report(lease, "failure")
        assert (await breakers.snapshot("a", ONCE)).failure_count == 1

        probing = BreakerConfig(failure_threshold=1, reset_timeout=0.0)
        await breakers.report(await breakers.before("b", probing), "failure")
        proxy.to_lose = 1
        lease = await breakers.before("b", probing)
        assert (await breakers.snapshot("b", probing)).half_open_calls == 1
        proxy.to_lose = 1
        await breakers.report(lease, "success")
        assert (await breakers.snapshot("b", probing)).success_count == 1

        proxy.to_lose = 1
        assert await cache.reserve("k", "mine", 10) is MISS, "it is ours"
        found: Any = await cache.reserve("k", "mine", 10)
        assert found.value == "mine"

        proxy.to_lose = 2
        with pytest.raises(StateStoreError, match="closed the connection"):
            await limiter.acquire([RULE])
        await limiter.acquire([RULE])
    await proxy.close()


@pytest.mark.req("redis.tls")
async def test_tls_is_spoken_with_a_server_whose_certificate_is_trusted(
    redis_server: Any,
) -> None:
    certificate = ROOT / "tests" / "http" / "localhost.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    proxy = LossyProxy(str(redis_server.socket), context)
    url = await proxy.start()
    async with opened(f"{url}?ssl_ca_certs={certificate}") as backend:
        await asyncio.gather(*(backend.limiter().acquire([RULE]) for _ in range(9)))
        assert await used(backend) == 9
    async with opened(url) as backend:
        with pytest.raises(StateStoreError, match=r"cannot be reached \(SSLCert"):
            await backend.ping()
    await proxy.close()


@pytest.mark.req("redis.down")
async def test_an_emptied_server_begins_anew(redis_server: Any) -> None:
    async with opened(redis_server.url) as backend:
        limiter, breakers = backend.limiter(), backend.breakers()
        rule = LimitRule("tool:a", 1, 60.0)
        early = await breakers.before("a", ONCE)
        await breakers.report(await breakers.before("a", ONCE), "failure")
        await limiter.acquire([rule])
        with pytest.raises(PermitTimeoutError):
            await limiter.acquire([rule], timeout=0)
        redis_server.command("FLUSHALL")
        await limiter.acquire([rule], timeout=0)
        assert (await breakers.snapshot("a", ONCE)).state is CircuitState.CLOSED
        await breakers.report(early, "success")


@pytest.mark.req("redis.leases")
async def test_the_probe_of_a_killed_process_comes_back(redis_server: Any) -> None:
    config = BreakerConfig(
        failure_threshold=1, reset_timeout=0.0, probe_lease=0.2, success_threshold=1
    )
    code = """
        import asyncio, os, sys
        from executionkit.backends import open_backend
        from executionkit.engine.breaker import BreakerConfig
        config = BreakerConfig(
            failure_threshold=1, reset_timeout=0.0, probe_lease=0.2, success_threshold=1)
        async def main():
            store = open_backend(sys.argv[1]).breakers()
            await store.report(await store.before("a", config), "failure")
            await store.before("a", config)  # a probe
            os.kill(os.getpid(), 9)
        asyncio.run(main())
    """
    await script(code, redis_server.url, expect=-9)
    async with opened(redis_server.url) as backend:
        breakers = backend.breakers()
        probe: Any = None
        async with asyncio.timeout(10):
            while True:
                try:
                    probe = await breakers.before("a", config)
                    break
                except ToolCircuitOpenError:
                    await asyncio.sleep(0.02)
        await breakers.report(probe, "success")
        assert (await breakers.snapshot("a", config)).state is CircuitState.CLOSED


async def script(code: str, *arguments: str, expect: int = 0) -> str:
    """Run a program on its own; every warning is an error there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", textwrap.dedent(code)),
        *arguments,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(20):
        out, err = await process.communicate()
    assert process.returncode == expect, err.decode()
    assert not err, err.decode()
    return out.decode()


@pytest.mark.req("redis.clean")
async def test_callers_that_go_away_after_the_end_open_nothing(
    redis_server: Any,
) -> None:
    backend = RedisBackend(redis_server.url, timeout=5)
    limiter = backend.limiter()
    rule = [LimitRule("tool:a", 1, 60.0)]
    await limiter.acquire(rule)
    waiters = [asyncio.create_task(limiter.acquire(rule)) for _ in range(3)]
    for _ in range(3):
        await backend.ping()
    await backend.close()
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    clients = redis_server.command("CLIENT", "LIST").decode().splitlines()
    assert not [line for line in clients if "name=executionkit" in line]


@pytest.mark.req("redis.clean")
async def test_nothing_is_left_open_even_when_nobody_closes(redis_server: Any) -> None:
    code = """
        import asyncio, gc, sys
        from executionkit.backends import LimitRule, open_backend
        store = open_backend(sys.argv[1])
        async def main():
            await store.limiter().acquire([LimitRule("a", 1000, 60.0)])
        for _ in range(3):
            asyncio.run(main())  # one loop after the other
            gc.collect()
    """
    await script(code, redis_server.url)
    async with opened(redis_server.url) as backend:
        rule = LimitRule("a", 1000, 60.0)
        assert await used(backend, rule) == 3
        clients = redis_server.command("CLIENT", "LIST").decode().splitlines()
        assert sum("name=executionkit" in line for line in clients) == 1


@pytest.mark.req("redis.clean")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_a_forked_child_makes_a_connection_of_its_own(redis_server: Any) -> None:
    code = """
        import asyncio, os, sys
        from executionkit.backends import LimitRule, open_backend
        store = open_backend(sys.argv[1])
        rule = [LimitRule("a", 1000, 60.0)]
        async def ask():
            await asyncio.gather(*(store.limiter().acquire(rule) for _ in range(5)))
        async def main():
            await ask()
            child = os.fork()
            if not child:
                asyncio.run(ask())
                os._exit(0)
            await ask()
            assert os.waitpid(child, 0)[1] == 0
            await ask()
            await store.close()
        asyncio.run(main())
    """
    await script(code, redis_server.url)
    async with opened(redis_server.url) as backend:
        assert await used(backend, LimitRule("a", 1000, 60.0)) == 20


@pytest.mark.req("redis.clean")
async def test_a_child_leaves_the_connection_of_its_parent_alone(
    redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RedisBackend(redis_server.url, timeout=5)
    wire: Any = backend._wire
    await backend.ping()
    link, process = wire.link(), os.getpid()
    for child in (1, 2):  # one that asks, and one that only closes
        monkeypatch.setattr(os, "getpid", lambda child=child: process + child)
        assert child == 2 or wire.link() is not link
        await backend.close()
        assert link._pipe is not None
        wire._links, wire._process = {asyncio.get_running_loop(): link}, process
    monkeypatch.undo()
    await link.close()
    wire_module._inherited.clear()


@pytest.mark.req("redis.clean")
async def test_loops_in_several_threads_use_one_store(redis_server: Any) -> None:
    backend = RedisBackend(redis_server.url, timeout=5)
    limiter = backend.limiter()

    def work() -> None:
        async def ask() -> None:
            await asyncio.gather(*(limiter.acquire([RULE]) for _ in range(10)))

        asyncio.run(ask())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
    assert await used(backend) == 40
    await backend.close()


@pytest.mark.req("redis.one-connection", "T-24")
async def test_a_thousand_waiters_share_a_connection_and_keep_their_order(
    redis_server: Any,
) -> None:
    async with opened(redis_server.url) as backend:
        limiter = backend.limiter()
        rule = LimitRule("tool:many", 400, 0.1)
        served: list[int] = []

        async def wait(number: int) -> None:
            await limiter.acquire([rule])
            served.append(number)

        redis_server.command("CONFIG", "RESETSTAT")
        await asyncio.gather(*(wait(number) for number in range(1000)))
        assert served == list(range(1000))
        stats = redis_server.command("INFO", "commandstats").decode()
        calls = [
            int(line.partition("calls=")[2].partition(",")[0])
            for line in stats.splitlines()
            if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))
        ]
        assert sum(calls) <= 1000
        clients = redis_server.command("CLIENT", "LIST").decode().splitlines()
        assert sum("name=executionkit" in line for line in clients) == 1


WORKER = """
    import asyncio, json, sys
    from executionkit.backends import LimitRule, open_backend
    from executionkit.backends._redis.resp import Question
    store, limit, period, seconds = open_backend(sys.argv[1]), *map(float, sys.argv[2:])
    rule = LimitRule("tool:shared", int(limit), period)
    async def main():
        limiter, starts = store.limiter(), []
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async def work():
            while loop.time() < end:
                permit = await limiter.acquire([rule])
                member = permit.token[0] + b":1"
                score, now = await asyncio.gather(
                    store._wire.ask(Question((b"ZSCORE", limiter.key(rule), member))),
                    store._wire.ask(Question((b"TIME",))))
                # Whoever is later than a period no longer finds its start there.
                granted = None if score is None else int(float(score))
                starts.append((granted, int(now[0]) * 1_000_000 + int(now[1])))
        await asyncio.gather(*(work() for _ in range(50)))
        await store.close()
        print(json.dumps(starts))
    asyncio.run(main())
"""


@pytest.mark.req("redis.processes")
async def test_four_processes_with_fifty_tasks_never_exceed_one_limit(
    redis_server: Any,
) -> None:
    redis_server.command("CONFIG", "RESETSTAT")
    limit, period = 40, 0.25
    arguments = (redis_server.url, str(limit), str(period), "0.8")
    outputs = await asyncio.gather(*(script(WORKER, *arguments) for _ in range(4)))
    starts = [pair for output in outputs for pair in json.loads(output)]
    known = [pair for pair in starts if pair[0] is not None]
    times = sorted(granted for granted, _ in known)
    assert len(known) > len(starts) / 2
    width = round(period * 1e6)
    most = max(
        bisect.bisect_left(times, moment + width) - index
        for index, moment in enumerate(times)
    )
    assert most <= limit
    assert all(granted <= seen for granted, seen in known), "nobody begins too soon"
    assert all(len(json.loads(output)) for output in outputs), "nobody starves"
    stats = redis_server.command("INFO", "commandstats").decode()
    asked = next(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in stats.splitlines()
        if line.startswith("cmdstat_evalsha:")
    )
    assert asked <= 1.3 * len(starts) + 8


@pytest.mark.req("redis.bounded", "T-25")
async def test_every_key_ends_by_itself_and_healthy_circuits_have_none(
    redis_server: Any,
) -> None:
    async with opened(redis_server.url) as backend:
        breakers = backend.breakers()
        for number in range(50):
            lease = await breakers.before(f"healthy{number}", ONCE)
            await breakers.report(lease, "success")
        assert redis_server.command("DBSIZE") == 0
        long = BreakerConfig(failure_threshold=1, reset_timeout=7200.0)
        await breakers.report(await breakers.before("long", long), "failure")
        probing = BreakerConfig(failure_threshold=1, reset_timeout=0.0)
        await breakers.report(await breakers.before("probing", probing), "failure")
        await breakers.before("probing", probing)
        await backend.limiter().acquire([RULE, LimitRule("global", 5, 1.0)])
        await backend.cache().set("k", 1, 10)
        await backend.cache().reserve("other", 1, 10)
        keys = redis_server.command("KEYS", "*")
        assert len(keys) == 12
        assert {key for key in keys if redis_server.command("PTTL", key) <= 0} == set()
        state = b"{executionkit:circuitbreaker}:long:state"
        assert redis_server.command("PTTL", state) > 7200_000
        assert (await breakers.states()) == {"long": "open", "probing": "half_open"}


@pytest.mark.req("redis.hostile")
@pytest.mark.parametrize(
    "name",
    [
        "*",
        "a\r\nFLUSHALL\r\n",
        "[a-z]?",
        "}{x}",
        "a:state",
        "\x00\udcff",
        "ü" * 5000,
        " ",
        "\\",
    ],
)
async def test_any_text_is_a_name(redis_server: Any, name: str) -> None:
    async with opened(redis_server.url) as backend:
        limiter, breakers, cache = (
            backend.limiter(),
            backend.breakers(),
            backend.cache(),
        )
        rule, other = LimitRule(name, 1, 60.0), LimitRule("abc", 1, 60.0)
        await limiter.acquire([rule, other])
        await breakers.report(await breakers.before(name, ONCE), "failure")
        await breakers.report(await breakers.before("abc", ONCE), "failure")
        key = f"{json.dumps(name)}\n1\n\n{{}}"
        await cache.set(key, name, 60)
        await cache.set('"abc"\n1\n\n{}', 1, 60)
        await limiter.reset(name)
        await breakers.reset(name)
        assert (await used(backend, rule), await used(backend, other)) == (0, 1)
        with pytest.raises(ToolCircuitOpenError):
            await breakers.before("abc", ONCE)
        await breakers.before(name, ONCE)
        found: Any = await cache.get(key)
        assert found.value == name
        assert await cache.invalidate("abc") == 1
        names = [len(key) for key in redis_server.command("KEYS", "*")]
        assert max(names) < 400


@pytest.mark.req("redis.secrets")
async def test_a_password_opens_the_door_and_is_never_shown(own_server: Any) -> None:
    own_server.command("CONFIG", "SET", "requirepass", "s3cr3t-w0rd")
    where = f"127.0.0.1:{own_server.port}"
    async with opened(f"redis://:s3cr3t-w0rd@{where}/1") as backend:
        await backend.ping()
        assert "s3cr3t" not in repr(backend)
    for url, code, why in (
        (f"redis://:wr0ng-s3cr3t@{where}", "WRONGPASS", "credentials are wrong"),
        (f"redis://{where}", "NOAUTH", "it wants credentials"),
        (f"redis://:s3cr3t-w0rd@{where}/999", "ERR", "number of the database"),
    ):
        async with opened(url) as backend:
            with pytest.raises(StateStoreError) as caught:
                await backend.ping()
            assert "s3cr3t" not in f"{caught.value!r} {caught.value.__cause__!r}"
            assert f"refused the connection ({code}: " in str(caught.value)
            assert why in str(caught.value)
    own_server.kill()
    async with opened(f"redis://:s3cr3t-w0rd@{where}") as backend:
        with pytest.raises(StateStoreError, match="cannot be reached") as caught:
            await backend.ping()
        assert "s3cr3t" not in repr(caught.value)


async def echo(n: int) -> int:
    return n


@pytest.mark.req("stores.address")
async def test_a_processor_opens_an_address_and_lets_go_of_it(own_server: Any) -> None:
    def clients() -> int:
        return len(own_server.command("CLIENT", "LIST").splitlines())

    before = clients()
    processor = ToolProcessor(
        create_registry(echo), tool_rate_limits={"echo": (2, 60)}, state=own_server.url
    )
    calls = [ToolCall(str(n), "echo", {"n": n}) for n in range(3)]
    async with asyncio.timeout(20):
        results = await processor.execute(calls, timeout=0.2)
        assert sum(result.is_success for result in results) == 2
        assert clients() == before + 1
        await processor.close()
        while clients() != before:
            await asyncio.sleep(0)
        [result] = await processor.execute(calls[:1], timeout=0.2)
        assert not result.is_success, "what is stored stays, and is asked anew"
        await processor.close()


@pytest.mark.req("stores.outage")
async def test_an_outage_of_a_server_is_one_outage_whatever_is_kept_there(
    own_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "executionkit")
    url = f"redis://:s3cr3t-w0rd@127.0.0.1:{own_server.port}"
    clock = FakeClock()
    async with opened(url) as backend:
        processor = ToolProcessor(
            create_registry(echo),
            tool_rate_limits={"echo": (50, 60)},
            enable_circuit_breaker=True,
            enable_caching=True,
            state=backend,
            clock=clock,
        )
        calls = [ToolCall(str(n), "echo", {"n": n}) for n in range(5)]
        results = await processor.execute(calls)
        assert [r.is_success for r in results] == [True] * 5, "this process stands in"
        stats = await processor.stats()
        assert stats.state_outages == 1
        assert "credentials are wrong" in (stats.state_error or "")
        own_server.command("CONFIG", "SET", "requirepass", "s3cr3t-w0rd")
        await clock.advance(2)
        await processor.execute(calls)
        assert (await processor.stats()).state_error is None
        await processor.close()
    logged = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert [level for level, _ in logged] == ["WARNING", "INFO"]
    for _, text in logged:
        assert f"redis://127.0.0.1:{own_server.port}/0" in text
        assert "s3cr3t" not in text


@pytest.mark.req("LM-23", "redis.down")
@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        ("local", ["ok", str(ErrorCode.TOOL_RATE_LIMITED)]),
        ("open", ["ok", "ok"]),
        ("closed", [str(ErrorCode.STATE_STORE_FAILED)] * 2),
    ],
)
async def test_tool_calls_while_the_server_is_down(
    own_server: Any, mode: Any, outcome: list[str]
) -> None:
    clock = FakeClock()
    async with opened(own_server.url) as backend:
        processor = ToolProcessor(
            create_registry(echo),
            tool_rate_limits={"echo": (2, 60)},
            enable_circuit_breaker=True,
            state=backend,
            on_state_error=mode,
            clock=clock,
        )

        async def call(n: int) -> str:
            todo = [ToolCall(None, "echo", {"n": n})]
            results = await processor.execute(todo, timeout=1)
            return str(results[0].error_code or "ok")

        assert await call(0) == "ok"
        own_server.kill()
        assert [await call(n) for n in (1, 2)] == outcome
        own_server.start()
        await clock.advance(60)
        assert await call(3) == "ok"
        async with asyncio.timeout(10):
            while not await used(backend, LimitRule("tool:echo", 2, 60)):
                await clock.advance(60)
                await call(4)
        await processor.close()


@pytest.mark.req("redis.cache", "redis.once")
async def test_two_processes_share_results_and_run_an_idempotent_call_once(
    redis_server: Any,
) -> None:
    runs: list[str] = []
    begun, ended = asyncio.Event(), asyncio.Event()

    async def pay(amount: int) -> dict[str, Any]:
        runs.append("pay")
        begun.set()
        await ended.wait()
        return {"paid": amount, "at": (1, 2)}

    async def look(item: str) -> str:
        runs.append("look")
        return f"saw {item}"

    async with opened(redis_server.url) as one, opened(redis_server.url) as two:
        first, second = (
            ToolProcessor(create_registry(pay, look), enable_caching=True, state=state)
            for state in (one, two)
        )
        call = ToolCall(None, "pay", {"amount": 3}, idempotency_key="order-7")
        task = asyncio.create_task(first.execute([call]))
        await begun.wait()
        other = asyncio.create_task(second.execute([call]))
        for _ in range(5):
            await two.ping()
        ended.set()
        results = [*await task, *await other, *await second.execute([call])]
        assert [item.error for item in results] == [None] * 3
        assert {repr(item.result) for item in results} == {repr(results[0].result)}
        assert [item.cached for item in results] == [False, True, True]
        for processor in (first, second):
            todo = [ToolCall(None, "look", {"item": "x"})]
            (result,) = await processor.execute(todo)
            assert result.result == "saw x"
        assert runs == ["pay", "look"]
        await first.close()
        await second.close()


@pytest.mark.req("redis.limits", "T-24")
async def test_cancelled_callers_leave_no_start_behind(redis_server: Any) -> None:
    async with opened(redis_server.url) as backend:
        limiter = backend.limiter()
        for ticks in range(12):
            tasks = [
                asyncio.create_task(limiter.acquire([LimitRule("c", 3, 60.0)]))
                for _ in range(6)
            ]
            for _ in range(ticks):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            for permit in done:
                if not isinstance(permit, BaseException):
                    await limiter.refund(permit)
            for _ in range(4):
                await backend.ping()
            assert await used(backend, LimitRule("c", 3, 60.0)) == 0, ticks
            assert all(line.is_empty for line in limiter._lines.values())


@pytest.mark.req("redis.circuits", "T-25")
async def test_a_cancelled_caller_gives_its_probe_back(redis_server: Any) -> None:
    config = BreakerConfig(failure_threshold=1, reset_timeout=0.0)
    async with opened(redis_server.url) as backend:
        breakers = backend.breakers()
        await breakers.report(await breakers.before("a", config), "failure")
        for ticks in range(8):
            task = asyncio.create_task(breakers.before("a", config))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            ended = (await asyncio.gather(task, return_exceptions=True))[0]
            if not isinstance(ended, BaseException):
                await breakers.report(ended, "abandoned")
            for _ in range(3):
                await backend.ping()
            assert (await breakers.snapshot("a", config)).half_open_calls == 0


@pytest.mark.req("redis.circuits")
async def test_a_cancellation_in_the_moment_of_the_reply_loses_no_probe(
    redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BreakerConfig(failure_threshold=1, reset_timeout=0.0)
    async with opened(redis_server.url) as backend:
        breakers, tell = backend.breakers(), backend._wire.tell
        await breakers.report(await breakers.before("a", config), "failure")

        def cancelling(question: Any, then: Any) -> None:
            def heard(reply: Any) -> None:
                then(reply)
                task.cancel()

            tell(question, heard)

        monkeypatch.setattr(backend._wire, "tell", cancelling)
        task = asyncio.create_task(breakers.before("a", config))
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        await backend.ping()
        assert (await breakers.snapshot("a", config)).half_open_calls == 0


@pytest.mark.req("redis.circuits", "T-43")
async def test_no_failure_is_lost_when_many_come_at_once(redis_server: Any) -> None:
    config = BreakerConfig(failure_threshold=100_000)
    async with opened(redis_server.url) as one, opened(redis_server.url) as two:
        stores = [one.breakers(), two.breakers()]

        async def fail(store: Any) -> None:
            await store.report(await store.before("a", config), "failure")

        await asyncio.gather(*(fail(store) for store in stores * 300))
        assert (await stores[0].snapshot("a", config)).failure_count == 600


@pytest.mark.req("redis.client")
@pytest.mark.parametrize("decode", [False, True])
async def test_a_client_of_the_package_can_be_given(
    redis_server: Any, decode: bool
) -> None:
    redis = pytest.importorskip("redis.asyncio")
    client = redis.Redis(
        unix_socket_path=str(redis_server.socket), decode_responses=decode
    )
    backend = RedisBackend(client=client, timeout=5)
    limiter, breakers, cache = backend.limiter(), backend.breakers(), backend.cache()
    redis_server.command("SCRIPT", "FLUSH")
    async with asyncio.timeout(20):
        rules = [RULE, LimitRule("global", 100, 1.0)]
        permits = await asyncio.gather(*(limiter.acquire(rules) for _ in range(9)))
        await limiter.refund(permits[0])
        assert await used(backend) == 8
        await limiter.reset("tool:a")
        assert await used(backend) == 0
        await breakers.report(await breakers.before("ü", ONCE), "failure")
        assert await breakers.states() == {"ü": "open"}
        with pytest.raises(ToolCircuitOpenError):
            await breakers.before("ü", ONCE)
        assert await cache.set("k", {"ü": (1, b"\xff")}, 60)
        found: Any = await cache.get("k")
        assert found.value == {"ü": (1, b"\xff")}
        assert await cache.reserve("k", 2, 60) is not MISS
        await cache.clear()
        await backend.close()
        assert await client.ping(), "it stays its owner's"
    await client.aclose()


@pytest.mark.req("redis.cluster")
async def test_in_a_cluster_all_keys_of_a_question_are_in_one_slot(
    own_server: Any,
) -> None:
    own_server.kill()
    own_server.start("--cluster-enabled", "yes", "--cluster-config-file", "nodes")
    own_server.command("CLUSTER", "ADDSLOTS", *range(16384))
    async with asyncio.timeout(20):
        while b"cluster_state:ok" not in own_server.command("CLUSTER", "INFO"):
            await asyncio.sleep(0.02)
    async with opened(f"redis://127.0.0.1:{own_server.port}", timeout=10) as backend:
        await _everything(backend, own_server)
    cluster = pytest.importorskip("redis.asyncio.cluster")
    client = cluster.RedisCluster(host="127.0.0.1", port=own_server.port)
    async with asyncio.timeout(20):
        backend = RedisBackend(client=client, timeout=10)
        await _everything(backend, own_server)
        await backend.close()
        await client.aclose()


async def _everything(backend: RedisBackend, server: Any) -> None:
    limiter, breakers, cache = backend.limiter(), backend.breakers(), backend.cache()
    permit = await limiter.acquire([RULE, LimitRule("global", 9, 1.0)], cost=2)
    await limiter.refund(permit)
    assert await used(backend) == 0
    await breakers.report(await breakers.before("a", ONCE), "failure")
    assert await breakers.states() == {"a": "open"}
    await breakers.reset()
    for tool in ("a", "b"):
        await cache.set(f'"{tool}"\n1\n\n{{}}', tool, 60)
    assert await cache.invalidate("a") == 1
    await cache.clear()
    await limiter.reset()
    left = server.command("KEYS", "*")
    assert [key for key in left if not key.endswith(b":a:state")] == []
    await backend.ping()


async def test_a_port_works_as_a_socket_does(redis_server: Any) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/3?prefix=app&timeout=5"
    backend = open_backend(url)
    await backend.limiter().acquire([RULE])
    await backend.close()
    name = "{app:ratelimit}:tool:a:60000000us"
    assert redis_server.command("KEYS", "*") == []
    async with opened(f"{redis_server.url}?db=3") as other:
        found = await other._wire.ask(Question((b"KEYS", b"*")))
    assert found == [name.encode()]
