"""The client and servers behind a URL: headers, tokens, sessions, and what breaks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("mcp")

from executionkit.calls import ToolCall, ToolResult
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    MCPConnectionError,
    MCPError,
    MCPTimeoutError,
)
from executionkit.mcp.client import (
    HttpServer,
    MCPConnection,
    MCPOptions,
    SseServer,
    add_mcp_server,
)
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from tests.mcp.fake_http import FakeHttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMIT = 10.0
OLD = MCPOptions(mode="legacy", close_timeout=1.0)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Bench:
    def __init__(
        self, http: FakeHttp, connection: MCPConnection, registry: Any
    ) -> None:
        self.http = http
        self.connection = connection
        self.processor = ToolProcessor(registry)

    async def run(self, name: str, /, **arguments: Any) -> ToolResult:
        async with asyncio.timeout(LIMIT):
            [result] = await self.processor.process([ToolCall(None, name, arguments)])
        return result


@asynccontextmanager
async def bench(
    http: FakeHttp | None = None, server: Any = None, **settings: Any
) -> AsyncIterator[Bench]:
    registry = create_registry()
    settings.setdefault("options", OLD)
    async with http or FakeHttp() as fake, asyncio.timeout(3 * LIMIT):
        where = fake.url if server is None else server(fake.url)
        connection = await add_mcp_server(registry, where, name="web", **settings)
        async with connection:
            yield Bench(fake, connection, registry)


class TestRequests:
    @pytest.mark.req("mcp.client.http", "mcp.client.context")
    async def test_headers_of_user_and_context_go_with_a_call(self) -> None:
        context = ExecutionContext(request_id="r-1", user_id="u", traceparent=TRACE)
        async with bench(headers={"X-Api": "k", "X-User-ID": "mine"}) as made:
            with execution_scope(context):
                assert (await made.run("echo", a=1)).result == '{"a": 1}'
            await made.run("echo")
            with_context, without = made.http.calls()
        assert with_context.headers["x-request-id"] == "r-1"
        assert with_context.headers["traceparent"] == TRACE
        assert with_context.headers["x-user-id"] == "mine"  # what was set on purpose
        assert with_context.headers["x-api"] == without.headers["x-api"] == "k"
        assert "x-request-id" not in without.headers
        for other in made.http.seen:
            if other.rpc != "tools/call":
                assert "x-request-id" not in other.headers

    @pytest.mark.req("mcp.client.context")
    async def test_the_connection_is_not_that_of_who_made_it(self) -> None:
        with execution_scope(ExecutionContext(request_id="r-1")):
            async with bench() as made:
                pass
        assert len(made.http.seen) >= 3
        for seen in made.http.seen:
            assert "x-request-id" not in seen.headers

    @pytest.mark.req("mcp.client.context")
    async def test_calls_at_once_do_not_see_the_context_of_each_other(self) -> None:
        async with bench() as made:

            async def one(number: int) -> None:
                with execution_scope(ExecutionContext(request_id=f"r-{number}")):
                    await made.run("echo", number=number)

            await asyncio.gather(*(one(number) for number in range(12)))
            for seen in made.http.calls():
                number = seen.message["params"]["arguments"]["number"]
                assert seen.headers["x-request-id"] == f"r-{number}"

    @pytest.mark.req("mcp.client.token")
    async def test_a_refused_token_is_asked_for_again_once(self) -> None:
        http = FakeHttp()
        http.tokens = {"one"}
        given: list[str] = []
        names = iter(["one", "two", "bad", "three"])

        async def token() -> str:
            given.append(next(names))
            return given[-1]

        async with bench(http, token=token) as made:
            await made.run("echo")
            assert given == ["one"]
            http.tokens = {"two"}
            results = await asyncio.gather(*(made.run("echo") for _ in range(5)))
            assert all(item.is_success for item in results)
            assert given == ["one", "two"]  # once for all five
            http.tokens = {"three"}
            refused = await made.run("echo")
            assert isinstance(refused.exception, MCPConnectionError)
            assert "HTTP 401" in str(refused.error)
            assert "two" not in str(refused.error)
            assert given == ["one", "two", "bad"]
            assert (await made.run("echo")).is_success

    @pytest.mark.req("mcp.client.token")
    async def test_a_token_function_that_fails_fails_its_call_alone(self) -> None:
        http = FakeHttp()
        http.tokens = {"one"}
        answers: list[Any] = ["one", RuntimeError("vault is sealed"), 7, "one"]

        async def token() -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with bench(http, token=token) as made:
            http.tokens = {"other"}
            first = await made.run("echo")
            assert isinstance(first.exception, MCPConnectionError)
            assert "vault is sealed" in str(first.error)
            assert "must give a str" in str((await made.run("echo")).error)
            http.tokens = {"one"}
            assert (await made.run("echo")).is_success

    @pytest.mark.req("mcp.client.token")
    async def test_a_fixed_token_is_sent_and_never_shown(self) -> None:
        http = FakeHttp()
        http.tokens = {"t0k3n-of-mine"}
        server = HttpServer("http://x.test/", token="t0k3n-of-mine")
        assert "t0k3n" not in repr(server)
        async with bench(http, token="t0k3n-of-mine") as made:
            assert (await made.run("echo")).is_success
        http.seen.clear()
        with pytest.raises(MCPConnectionError, match="HTTP 401"):
            async with bench(http, token="wrong"):
                pass


class TestTrouble:
    @pytest.mark.req("MC-01", "mcp.client.http")
    async def test_nobody_there_is_one_named_error(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}/mcp"
        for server in (url, SseServer(url)):
            for mode in ("auto", "legacy"):
                with pytest.raises(MCPConnectionError) as caught:
                    await add_mcp_server(
                        create_registry(),
                        server,
                        name="nobody",
                        options=MCPOptions(mode=mode),
                    )
                assert "'nobody'" in str(caught.value)
                assert "ConnectError" in str(caught.value)

    @pytest.mark.req("MC-01")
    async def test_a_server_that_goes_away_fails_all_who_wait_at_once(self) -> None:
        async with bench() as made:
            waiting = [asyncio.ensure_future(made.run("wait")) for _ in range(3)]
            while len(made.http.calls()) < 3:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            await made.http.stop()
            results = await asyncio.gather(*waiting)
            results.append(await made.run("echo"))
            assert time.monotonic() - began < 1.0
            for result in results:
                assert isinstance(result.exception, MCPConnectionError)
                assert result.attempts == 1
            await made.http.start()
            assert (await made.run("echo")).is_success

    @pytest.mark.req("mcp.client.http", "mcp.client.replay")
    @pytest.mark.parametrize("status", [404, 400])
    async def test_a_server_that_has_forgotten_the_session_is_greeted_once(
        self, status: int
    ) -> None:
        http = FakeHttp()
        http.no_session_status = status
        async with bench(http) as made:
            http.session += 1
            results = await asyncio.gather(
                *(made.run("write", n=number) for number in range(8))
            )
            assert [item.error for item in results] == [None] * 8
            assert http.count("initialize") == 2
            assert made.connection.generation == 2

    @pytest.mark.req("mcp.client.replay")
    @pytest.mark.parametrize("tool", ["drop", "cut"])
    async def test_a_lost_answer_fails_its_call_alone(self, tool: str) -> None:
        async with bench() as made:
            other = asyncio.ensure_future(made.run("wait"))
            result = await made.run(tool)
            assert isinstance(result.exception, MCPConnectionError)
            assert len(made.http.calls()) <= 2
            assert not other.done()
            other.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await other
            assert made.connection.generation == 1
            assert (await made.run("echo")).is_success

    @pytest.mark.req("MC-01")
    async def test_a_stream_that_cannot_be_taken_up_again_is_named(self) -> None:
        async with bench() as made:
            task = asyncio.ensure_future(made.run("resumable"))
            while not made.http.calls():
                await asyncio.sleep(0.01)
            await made.http.stop()
            result = await task
            assert isinstance(result.exception, MCPConnectionError)
            assert "ConnectError" in str(result.error)
            await made.http.start()

    @pytest.mark.req("MC-01", "mcp.client.http")
    async def test_the_old_transport_is_lost_and_made_anew_as_a_whole(self) -> None:
        http = FakeHttp()
        http.is_sse = True
        async with bench(http, SseServer) as made:
            assert (await made.run("echo", a=1)).result == '{"a": 1}'
            with execution_scope(ExecutionContext(request_id="r-1")):
                await made.run("write")
            assert http.calls()[-1].headers["x-request-id"] == "r-1"
            waiting = asyncio.ensure_future(made.run("wait"))
            while len(http.calls()) < 3:
                await asyncio.sleep(0.01)
            await http.stop()
            result = await waiting
            assert isinstance(result.exception, MCPConnectionError)
            await http.start()
            assert (await made.run("echo", a=2)).result == '{"a": 2}'
            assert made.connection.generation == 2
            http.post_status = 500
            refused = await made.run("write")
            assert isinstance(refused.exception, MCPConnectionError)
            assert "500" in str(refused.error)
            http.post_status = None
            assert (await made.run("echo", a=3)).result == '{"a": 3}'

    @pytest.mark.req("mcp.client.errors")
    async def test_an_http_status_is_told(self) -> None:
        async with bench() as made:
            made.http.status = 503
            result = await made.run("echo")
            assert isinstance(result.exception, MCPConnectionError)
            assert result.exception.details["status"] == 503
            assert result.retry_after_ms == 7000
            made.http.status = None
            mine = await made.run("code_32000")
            assert type(mine.exception) is MCPError

    @pytest.mark.req("mcp.client.http")
    async def test_a_call_without_an_answer_ends_in_time(self) -> None:
        options = MCPOptions(mode="legacy", timeout=0.2, close_timeout=1.0)
        async with bench(options=options) as made:
            result = await made.run("wait")
            assert isinstance(result.exception, MCPTimeoutError)
            assert (await made.run("echo")).is_success

    @pytest.mark.req("MC-19")
    async def test_a_server_that_does_not_answer_the_farewell_is_left(self) -> None:
        http = FakeHttp()
        http.answers_delete = False
        options = MCPOptions(mode="legacy", close_timeout=0.4)
        async with bench(http, options=options) as made:
            began = time.monotonic()
            await made.connection.close()
            assert time.monotonic() - began < 1.4
        assert any(item.method == "DELETE" for item in http.seen)


@asynccontextmanager
async def sdk_server(kind: str) -> AsyncIterator[str]:
    """The SDK's server over real HTTP, in this event loop."""
    import uvicorn

    from tests.mcp.sdk_app import make

    app = make()
    made = app.streamable_http_app() if kind == "http" else app.sse_app()
    config = uvicorn.Config(made, port=0, log_level="critical", ws="none")
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    before = asyncio.all_tasks()
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/{'mcp' if kind == 'http' else 'sse'}"
    finally:
        server.should_exit = True
        await task
        left = asyncio.all_tasks() - before - {task}
        for item in left:  # of the packages under the server
            item.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@pytest.mark.req("mcp.client.http", "mcp.client.progress")
@pytest.mark.parametrize(
    ("kind", "mode"), [("http", "auto"), ("http", "legacy"), ("sse", "legacy")]
)
@pytest.mark.filterwarnings("ignore")
async def test_the_sdks_own_server_over_http(kind: str, mode: str) -> None:
    registry = create_registry()
    async with asyncio.timeout(3 * LIMIT), sdk_server(kind) as url:
        server = url if kind == "http" else SseServer(url)
        connection = await add_mcp_server(
            registry, server, name="real", options=MCPOptions(mode=mode)
        )
        async with connection, ToolProcessor(registry) as processor:
            results = await processor.process(
                [ToolCall(None, "add", {"a": n, "b": 1}) for n in range(10)],
                return_order="submission",
            )
            assert [item.result for item in results] == [
                {"result": n + 1} for n in range(10)
            ]
            call = ToolCall(None, "slow", {"n": 3})
            seen = [item async for item in processor.astream([call])]
            told = [item.result for item in seen if item.is_partial]
            assert told[:3] == [{"progress": n, "total": 3} for n in (1, 2, 3)]
            assert seen[-1].result == {"result": "done"}
