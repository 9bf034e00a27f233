"""The client and servers that run as programs: well ones, ill ones, dead ones."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("mcp")

import executionkit
from executionkit.calls import ToolCall, ToolResult
from executionkit.context import ExecutionContext, execution_scope
from executionkit.engine.retry import RetryConfig
from executionkit.errors import (
    ErrorCategory,
    ErrorCode,
    MCPConnectionError,
    MCPError,
    MCPTimeoutError,
)
from executionkit.mcp.client import (
    MCPConnection,
    MCPConnections,
    MCPOptions,
    MCPRequestError,
    MCPResultError,
    MCPToolError,
    StdioServer,
    add_mcp_server,
)
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAKE = str(Path(__file__).with_name("fake_server.py"))
LIMIT = 10.0
OLD = MCPOptions(mode="legacy", close_timeout=1.0)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def fake(mode: str = "", log: Path | None = None) -> StdioServer:
    env = {"FAKE_MODE": mode, "FAKE_LOG": "" if log is None else str(log)}
    return StdioServer(sys.executable, ["-I", "-S", FAKE], env)


def sent(log: Path, method: str) -> list[dict[str, Any]]:
    """What the server got, of that method."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line.get("method") == method]


def pids(log: Path) -> list[int]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["pid"] for line in lines if "pid" in line]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def open_files() -> int:
    """How many this process has open; 0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


class Bench:
    """A registry, a connection, and a processor around them."""

    def __init__(self, registry: ToolRegistry, connection: MCPConnection) -> None:
        self.registry = registry
        self.connection = connection
        self.processor = ToolProcessor(registry)

    async def run(self, name: str, /, **arguments: Any) -> ToolResult:
        async with asyncio.timeout(LIMIT):
            call = ToolCall(None, name, arguments)
            [result] = await self.processor.process([call])
        return result

    async def value(self, name: str, /, **arguments: Any) -> Any:
        result = await self.run(name, **arguments)
        assert result.error is None, result.error
        return result.result


@asynccontextmanager
async def bench(
    mode: str = "", log: Path | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    registry = create_registry()
    settings.setdefault("options", MCPOptions(mode="legacy", close_timeout=2.0))
    async with asyncio.timeout(LIMIT):
        connection = await add_mcp_server(
            registry, fake(mode, log), name="fake", **settings
        )
    made = Bench(registry, connection)
    try:
        yield made
    finally:
        await made.processor.close()
        async with asyncio.timeout(LIMIT):
            await connection.close()


async def until(condition: Any, seconds: float = 5.0) -> None:
    """Wait for what happens outside of this process."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


class TestTools:
    @pytest.mark.req("mcp.client.tools")
    async def test_all_pages_become_tools_of_the_registry(self) -> None:
        async with bench() as made:
            names = {record.full_name for record in made.registry.records()}
            assert {"fake.echo", "fake.late", "fake.grow"} <= names
            assert made.connection.tools["echo"] == "fake.echo"
            assert await made.value("fake.echo", a=[1, None]) == '{"a": [1, null]}'
            assert await made.value("echo", a=1) == '{"a": 1}'
        assert made.registry.records() == ()

    @pytest.mark.req("mcp.client.tools")
    async def test_a_tool_that_cannot_be_one_is_left_out_and_named(self) -> None:
        async with bench() as made:
            assert set(made.connection.problems) == {"bad schema", "worse"}
            assert "bad schema" not in made.connection.tools

    @pytest.mark.req("mcp.client.tools")
    async def test_pages_without_end_are_an_error_and_no_loop(self) -> None:
        with pytest.raises(MCPError, match="no end"):
            async with bench("endless"):
                pass

    @pytest.mark.req("mcp.client.changes")
    async def test_a_changed_list_changes_the_registry(self) -> None:
        async with bench() as made:
            version = made.registry.version
            await made.value("grow", name="born_later")
            await until(lambda: made.registry.find("born_later", "fake"))
            assert made.registry.version > version
            assert await made.value("born_later", b=2) == '{"b": 2}'
            version = made.registry.version
            await made.value("shrink")
            await until(lambda: made.registry.find("late", "fake") is None)
            assert made.registry.version > version
            gone = await made.run("fake.late")
            assert gone.error_code is ErrorCode.TOOL_NOT_FOUND
            assert await made.connection.refresh() is False

    @pytest.mark.req("mcp.client.tools")
    async def test_the_newest_protocol_is_asked_for_and_the_old_one_taken(self) -> None:
        async with bench(options=MCPOptions(close_timeout=1.0)) as made:
            assert made.connection.client.protocol_version == "2025-11-25"
            assert await made.value("echo") == "{}"

    @pytest.mark.req("mcp.client.stdio")
    async def test_what_is_no_message_is_passed_over(self) -> None:
        async with bench("chatty") as made:
            assert await made.value("garbage") == "{}"
            assert await made.value("echo") == "{}"

    @pytest.mark.req("mcp.client.stdio")
    async def test_a_long_message_comes_whole_and_a_longer_one_ends_it(self) -> None:
        options = MCPOptions(mode="legacy", max_message_bytes=300_000)
        async with bench(options=options) as made:
            assert len(await made.value("huge", size=200_000)) == 200_000
            result = await made.run("huge", size=400_000)
            assert isinstance(result.exception, MCPConnectionError)
            assert "300000 bytes" in str(result.error)
            assert await made.value("echo") == "{}"
            assert made.connection.generation == 2

    @pytest.mark.req("mcp.client.stdio")
    async def test_a_flood_on_standard_error_blocks_nothing_and_is_bounded(
        self,
    ) -> None:
        async with bench() as made:
            await made.value("stderr")
            await until(lambda: made.connection.stderr.endswith("the end"))
            assert len(made.connection.stderr) == 8192


class TestAnswers:
    @pytest.mark.req("MC-08")
    async def test_an_error_shows_its_text_and_its_data(self) -> None:
        async with bench() as made:
            result = await made.run("error_with_data")
        assert isinstance(result.exception, MCPToolError)
        assert "db refused" in result.to_observation()
        assert '{"trace": "T1"}' in result.to_observation()
        assert result.error_category is ErrorCategory.EXECUTION
        details = result.exception.details
        assert details["structured_content"] == {"trace": "T1"}

    @pytest.mark.req("MC-09")
    async def test_an_error_is_not_checked_against_the_schema(self) -> None:
        async with bench() as made:
            result = await made.run("error_of_schema")
        assert isinstance(result.exception, MCPToolError)
        assert result.error == "no table"

    @pytest.mark.req("MC-09")
    async def test_an_answer_without_its_data_fails_and_keeps_its_text(self) -> None:
        registry = create_registry()
        connection = await add_mcp_server(
            registry, fake(), name="fake", options=MCPOptions(mode="legacy")
        )
        async with (
            connection,
            ToolProcessor(
                registry,
                enable_circuit_breaker=True,
                circuit_breaker_threshold=1,
                enable_retries=True,
                retry_base_delay=0.001,
            ) as processor,
        ):
            for _ in range(2):  # the second is not refused by a circuit
                [result] = await processor.process([ToolCall(None, "text_of_schema")])
                assert isinstance(result.exception, MCPResultError)
                assert "three rows were found" in str(result.error)
                assert result.error_code is ErrorCode.TOOL_RESULT_ERROR
                assert result.attempts == 1

    @pytest.mark.req("MC-09")
    async def test_more_fields_than_the_schema_has_are_kept(self) -> None:
        async with bench() as made:
            assert await made.value("extra_fields") == {"rows": 3, "more": 1}

    @pytest.mark.req("MC-10")
    async def test_data_alone_is_a_result(self) -> None:
        async with bench() as made:
            result = await made.run("data_only")
            assert result.result == {"rows": 3}
            assert json.loads(result.to_observation()) == {"rows": 3}

    @pytest.mark.req("MC-10")
    async def test_a_block_of_an_unknown_type_is_kept(self) -> None:
        async with bench() as made:
            assert await made.value("unknown_block") == {
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "video", "url": "x://y", "n": 1},
                ]
            }

    @pytest.mark.req("mcp.client.errors")
    async def test_an_answer_against_the_protocol_is_the_servers_error(self) -> None:
        async with bench() as made:
            result = await made.run("malformed")
            assert type(result.exception) is MCPError
            assert "not what the protocol says" in str(result.error)
            assert await made.value("echo") == "{}"

    @pytest.mark.req("mcp.client.errors")
    async def test_errors_of_the_server_are_told_by_their_code(self) -> None:
        async with bench() as made:
            wrong = await made.run("refuse")
            assert isinstance(wrong.exception, MCPRequestError)
            assert wrong.exception.details["data"] == {"why": 1}
            assert not wrong.retryable
            other = await made.run("code_32000")
            assert type(other.exception) is MCPError  # not taken for a lost connection
            assert made.connection.generation == 1

    @pytest.mark.req("MC-20")
    async def test_what_the_tool_refuses_is_not_sent_again(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        async with bench(log=log) as made:
            made.processor = ToolProcessor(
                made.registry, enable_retries=True, retry_base_delay=0.001
            )
            await made.run("error_with_data")
            await made.run("refuse")
        assert len(sent(log, "tools/call")) == 2


class TestProgress:
    @pytest.mark.req("MC-13")
    async def test_late_and_unknown_progress_is_ignored(self) -> None:
        async with bench() as made:
            for _ in range(3):
                assert await made.value("late") == "{}"
            assert made.connection.generation == 1

    @pytest.mark.req("MC-16")
    async def test_progress_keeps_a_call_alive(self) -> None:
        options = MCPOptions(mode="legacy", timeout=0.8)
        async with bench(options=options) as made:
            assert await made.value("beat", beats=6, every=0.2)

    @pytest.mark.req("MC-16")
    async def test_progress_does_not_keep_it_alive_for_ever(self) -> None:
        options = MCPOptions(mode="legacy", timeout=0.8, max_total=1.0)
        async with bench(options=options) as made:
            began = time.monotonic()
            result = await made.run("beat", beats=8, every=0.2)
            assert time.monotonic() - began < 2.5
        assert isinstance(result.exception, MCPTimeoutError)
        assert "idle limit 0.8s, total limit 1s" in str(result.error)
        assert result.exception.details["limit"] == "total"

    @pytest.mark.req("MC-16")
    async def test_without_progress_the_idle_limit_counts(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        options = MCPOptions(mode="legacy", timeout=0.2, max_total=5)
        async with bench(log=log, options=options) as made:
            result = await made.run("hang")
            assert isinstance(result.exception, MCPTimeoutError)
            assert result.exception.details["limit"] == "idle"
            assert "idle limit 0.2s, total limit 5s" in str(result.error)
            await until(lambda: sent(log, "notifications/cancelled"))
            assert await made.value("echo") == "{}"
        calls = sent(log, "tools/call")
        [cancelled] = sent(log, "notifications/cancelled")
        assert cancelled["params"]["requestId"] == calls[0]["id"]
        assert all("progressToken" in call["params"]["_meta"] for call in calls)

    @pytest.mark.req("mcp.client.progress")
    async def test_progress_comes_as_partial_results_before_the_result(self) -> None:
        async with bench() as made:
            call = ToolCall(None, "beat", {"beats": 3, "every": 0})
            seen = [item async for item in made.processor.astream([call])]
        partial = [item.result for item in seen if item.is_partial]
        assert partial[:3] == [{"progress": n, "total": 10} for n in (1, 2, 3)]
        assert len({item.stream_id for item in seen if item.is_partial}) == 1
        assert not seen[-1].is_partial
        assert seen[-1].result == partial[-1]

    @pytest.mark.req("mcp.client.cancellation")
    async def test_a_cancelled_call_is_cancelled_at_the_server(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        async with bench(log=log) as made:
            task = asyncio.ensure_future(made.run("hang"))
            await until(lambda: sent(log, "tools/call"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: sent(log, "notifications/cancelled"))
            assert await made.value("echo") == "{}"

    @pytest.mark.req("mcp.client.cancellation")
    async def test_leaving_a_stream_cancels_its_call(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        async with bench(log=log) as made:
            stream = made.processor.astream([ToolCall(None, "hang")])
            task = asyncio.ensure_future(anext(stream))
            await until(lambda: sent(log, "tools/call"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await stream.aclose()
            await until(lambda: sent(log, "notifications/cancelled"))


class TestContext:
    @pytest.mark.req("mcp.client.context", "T-34", "T-39", "T-SEED-34")
    async def test_context_trace_and_deadline_go_with_each_call(self) -> None:
        context = ExecutionContext.with_deadline(
            60, request_id="r-1", tenant_id="t-1", traceparent=TRACE
        )
        async with bench() as made:
            with execution_scope(context):
                meta = json.loads(await made.value("meta"))
            assert meta["traceparent"] == TRACE
            assert meta["executionkit/X-Request-ID"] == "r-1"
            assert meta["executionkit/X-Tenant-ID"] == "t-1"
            assert 50 < float(meta["executionkit/X-Deadline-Seconds"]) <= 60
            bare = json.loads(await made.value("meta"))
            assert set(bare) <= {"progressToken"}

    @pytest.mark.req("mcp.client.context")
    async def test_nothing_of_it_is_sent_where_that_is_not_wanted(self) -> None:
        options = MCPOptions(mode="legacy", send_context=False)
        async with bench(options=options) as made:
            with execution_scope(ExecutionContext(user_id="u")):
                meta = json.loads(await made.value("meta"))
            assert set(meta) <= {"progressToken"}


class TestDeath:
    @pytest.mark.req("MC-01")
    async def test_a_dead_server_is_named_at_once_to_all_who_wait(self) -> None:
        async with bench() as made:
            calls = [ToolCall(None, "hang"), ToolCall(None, "hang")]
            waiting = asyncio.ensure_future(made.processor.process(calls))
            await asyncio.sleep(0.05)
            began = time.monotonic()
            dead = await made.run("die")
            others = await waiting
            assert time.monotonic() - began < 1.0
            for result in (dead, *others):
                assert isinstance(result.exception, MCPConnectionError)
                assert "'fake'" in str(result.error)
                assert "SIGKILL" in str(result.error)
                assert "last words" in str(result.error)
                assert "sk-abcdefghijklmnop" not in str(result.error)
                assert result.attempts == 1
            assert await made.value("echo") == "{}"  # made anew
            assert made.connection.generation == 2

    @pytest.mark.req("MC-01")
    async def test_a_server_killed_from_outside_is_noticed(self) -> None:
        async with bench() as made:
            task = asyncio.ensure_future(made.run("hang"))
            await asyncio.sleep(0.05)
            assert made.connection.pid is not None
            os.kill(made.connection.pid, signal.SIGTERM)
            result = await task
            assert isinstance(result.exception, MCPConnectionError)
            assert "SIGTERM" in str(result.error)
            await until(lambda: not made.connection.is_connected)

    @pytest.mark.req("mcp.client.replay")
    async def test_only_a_call_that_reads_is_sent_again_and_once(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        async with bench(log=log) as made:
            mark = str(tmp_path / "mark")
            assert await made.value("die_once", mark=mark)
            assert made.connection.generation == 2
            result = await made.run("die_reading")
            assert isinstance(result.exception, MCPConnectionError)
            await made.run("die")
        names = [call["params"]["name"] for call in sent(log, "tools/call")]
        assert names == ["die_once", "die_once", "die_reading", "die_reading", "die"]

    @pytest.mark.req("mcp.client.replay")
    async def test_a_retry_layer_does_not_repeat_what_may_have_happened(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        async with bench(log=log) as made:
            made.processor = ToolProcessor(
                made.registry, retry_config=RetryConfig(max_retries=2, base_delay=0.001)
            )
            result = await made.run("die")
            assert result.attempts == 1
            assert result.retryable  # whoever knows better may
        assert len(sent(log, "tools/call")) == 1

    @pytest.mark.req("mcp.client.reconnect")
    async def test_many_calls_after_a_loss_connect_once(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        async with bench(log=log) as made:
            await made.run("die")
            calls = [ToolCall(None, "echo", {"n": n}) for n in range(20)]
            results = await made.processor.process(calls)
            assert all(item.is_success for item in results)
            assert made.connection.generation == 2
        assert len(sent(log, "initialize")) == 2
        assert not any(alive(pid) for pid in pids(log))

    @pytest.mark.req("mcp.client.reconnect")
    async def test_who_gives_up_waiting_takes_nothing_from_the_others(self) -> None:
        async with bench() as made:
            await made.run("die")
            waiting = [asyncio.ensure_future(made.run("echo")) for _ in range(3)]
            while made.connection._owner._opening is None:
                await asyncio.sleep(0)
            waiting[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]
            for task in waiting[1:]:
                assert (await task).is_success
            assert made.connection.generation == 2

    @pytest.mark.req("mcp.client.reconnect")
    async def test_a_server_that_does_not_come_back_fails_each_call_by_itself(
        self, tmp_path: Path
    ) -> None:
        program = tmp_path / "server.py"
        shutil.copy(FAKE, program)
        server = StdioServer(sys.executable, ["-I", "-S", str(program)])
        registry = create_registry()
        async with (
            asyncio.timeout(LIMIT),
            await add_mcp_server(
                registry, server, name="fake", options=OLD
            ) as connection,
            ToolProcessor(registry) as processor,
        ):
            program.unlink()
            await processor.process([ToolCall(None, "die")])
            calls = [ToolCall(None, "echo") for _ in range(4)]
            results = await processor.process(calls)
            errors = [item.exception for item in results]
            assert len({id(error) for error in errors}) == 4
            for error in errors:
                assert isinstance(error, MCPConnectionError)
                assert "No such file" in str(error)
            assert not connection.is_connected

    @pytest.mark.req("mcp.client.stdio")
    async def test_connecting_again_and_again_leaks_nothing(self) -> None:
        counts: list[int] = []
        for _ in range(4):
            async with bench() as made:
                await made.run("die")
                await made.value("echo")
            await asyncio.sleep(0)
            counts.append(open_files())
        assert counts[-1] <= counts[0]

    @pytest.mark.req("mcp.client.stdio")
    async def test_a_server_that_ends_at_once_says_why(self) -> None:
        with pytest.raises(MCPConnectionError) as caught:
            async with bench("exit"):
                pass
        assert "exit code 4" in str(caught.value)
        assert "no configuration" in str(caught.value)

    @pytest.mark.req("mcp.client.stdio")
    async def test_a_program_that_is_not_there_is_a_connection_error(self) -> None:
        with pytest.raises(MCPConnectionError, match="FileNotFoundError"):
            await add_mcp_server(
                create_registry(), StdioServer("/no/such/program"), name="x"
            )

    @pytest.mark.req("mcp.client.stdio")
    async def test_a_server_that_never_answers_is_a_timeout(self) -> None:
        options = MCPOptions(mode="legacy", connect_timeout=0.3, close_timeout=1)
        with pytest.raises(MCPTimeoutError, match="connecting"):
            async with bench("mute", options=options):
                pass


class TestClosing:
    @pytest.mark.req("MC-18")
    async def test_connections_close_in_any_order_and_from_any_task(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        registry = create_registry()
        options = MCPOptions(mode="legacy")
        first = await add_mcp_server(registry, fake(log=log), name="a", options=options)
        second = await asyncio.create_task(
            add_mcp_server(registry, fake(log=log), name="b", options=options)
        )
        await first.close()
        assert {record.namespace for record in registry.records()} == {"b"}
        await asyncio.create_task(second.close())
        await second.close()
        assert registry.records() == ()
        assert not any(alive(pid) for pid in pids(log))

    @pytest.mark.req("MC-18")
    async def test_all_close_together(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        options = MCPOptions(mode="legacy")
        async with MCPConnections(create_registry()) as servers:
            await asyncio.gather(
                *(
                    servers.add(fake(log=log), name=name, options=options)
                    for name in ("a", "b")
                )
            )
            assert len(servers) == 2
            assert servers["a"].is_connected
            with pytest.raises(ValueError, match="already"):
                await servers.add(fake(), name="a")
            assert await servers.remove("a")
            assert not await servers.remove("a")
        assert not any(alive(pid) for pid in pids(log))

    @pytest.mark.req("MC-18")
    def test_an_interrupted_run_leaves_no_process(self, tmp_path: Path) -> None:
        log = tmp_path / "log"

        async def main() -> None:
            async with await add_mcp_server(
                create_registry(), fake(log=log), name="a", options=OLD
            ) as connection:
                loop = asyncio.get_running_loop()
                loop.call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
                await connection.call_tool("hang")

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
        assert len(pids(log)) == 1
        assert not any(alive(pid) for pid in pids(log))

    @pytest.mark.req("MC-18")
    def test_a_connection_that_nobody_closed_ends_with_its_loop(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"

        async def main() -> None:
            await add_mcp_server(
                create_registry(), fake(log=log), name="a", options=OLD
            )
            # What `asyncio.run` does with all that is left at its end.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            async with asyncio.timeout(LIMIT):
                await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run(main())
        assert len(pids(log)) == 1
        assert not any(alive(pid) for pid in pids(log))

    @pytest.mark.req("MC-18")
    async def test_cancelled_while_connecting_leaves_no_process(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        options = MCPOptions(mode="legacy", close_timeout=1.0)
        task = asyncio.create_task(
            add_mcp_server(
                create_registry(), fake("mute", log), name="a", options=options
            )
        )
        await until(lambda: log.exists() and pids(log))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not any(alive(pid) for pid in pids(log)))

    @pytest.mark.req("MC-19")
    async def test_a_server_that_stays_is_killed_within_the_limit(
        self, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        options = MCPOptions(mode="legacy", close_timeout=0.5)
        async with bench("deaf", log, options=options) as made:
            assert await made.value("echo") == "{}"
            began = time.monotonic()
            await made.connection.close()
            assert time.monotonic() - began < 1.5
        assert not any(alive(pid) for pid in pids(log))

    @pytest.mark.req("MC-18")
    async def test_a_closed_connection_fails_those_who_wait_and_those_who_come(
        self,
    ) -> None:
        async with bench() as made:
            waiting = asyncio.ensure_future(made.run("hang"))
            await asyncio.sleep(0.05)
            execute = made.registry.resolve("echo").tool.execute
            await made.connection.close()
            result = await waiting
            assert isinstance(result.exception, MCPConnectionError)
            with pytest.raises(MCPConnectionError, match="closed"):
                await execute()
            with pytest.raises(MCPConnectionError):
                _ = made.connection.client


OURS = '''
import asyncio
from executionkit.context import get_current_context
from executionkit.mcp import current_exchange
from executionkit.tools.registry import create_registry


async def add(a: int, b: int = 1) -> int:
    """Adds two integers."""
    return a + b


async def who() -> str:
    """The context that came along."""
    found = get_current_context()
    return f"{found.request_id} {found.tenant_id} {found.remaining_time is not None}"


async def steps(n: int) -> str:
    """Tells how far it is."""
    for step in range(n):
        current_exchange().progress(step + 1, n)
    return "done"


async def fail() -> str:
    """Fails."""
    raise ValueError("no such thing")


registry = create_registry(add, who, steps, fail)
'''


@pytest.mark.req("mcp.client.tools", "mcp.client.context", "mcp.client.progress")
async def test_our_client_and_our_server_understand_each_other(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(OURS)
    package = Path(executionkit.__file__).parent.parent
    path = f"{package}{os.pathsep}{tmp_path}"
    command = ["-m", "executionkit.mcp", "--tools", "ours"]
    server = StdioServer(sys.executable, command, {"PYTHONPATH": path})
    registry = create_registry()
    async with asyncio.timeout(3 * LIMIT):
        connection = await add_mcp_server(registry, server, name="ours")
        async with connection, ToolProcessor(registry) as processor:
            assert connection.client.protocol_version == "2026-07-28"
            made = Bench(registry, connection)
            assert await made.value("add", a=2, b=40) in {42, "42"}
            context = ExecutionContext.with_deadline(
                60, request_id="r-1", tenant_id="t-1"
            )
            with execution_scope(context):
                assert await made.value("who") == "r-1 t-1 True"
            failed = await made.run("fail")
            assert isinstance(failed.exception, MCPToolError)
            assert "no such thing" in str(failed.error)
            call = ToolCall(None, "steps", {"n": 3})
            seen = [item async for item in processor.astream([call])]
            told = [item.result for item in seen if item.is_partial][:3]
            assert [item["progress"] for item in told] == [1, 2, 3]
            await made.processor.close()
