"""The protocol, version by version, on streams in memory."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import pytest

from executionkit.errors import ExecutionKitError, ToolProcessorError
from executionkit.mcp import (
    MCPServer,
    Prompt,
    PromptArgument,
    ProtocolError,
    Resource,
    ServerOptions,
    current_exchange,
    handle_message,
)
from executionkit.provider import Provider
from executionkit.testing import ScriptedProvider
from executionkit.testing.http import Reply, ScriptedServer, json_reply, reset_reply
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from tests.mcp.server_help import LEGACY, MODERN, Client, call, modern, request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

STATE = "io.modelcontextprotocol"


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def fail(text: str = "it broke") -> str:
    """Always fails."""
    raise RuntimeError(text)


async def count(n: int) -> AsyncGenerator[Any]:
    """Count."""
    for number in range(n):
        yield {"progress": number + 1, "total": n, "message": f"step {number + 1}"}


def block(text: str) -> str:
    """A plain function that logs and reports from its thread."""
    here = current_exchange()
    assert here is not None
    here.log({"text": text}, "warning", "block")
    here.progress(1, 2, "half")
    return text


async def rows() -> dict[str, int]:
    """Rows."""
    return {"rows": 3}


ROWS = {
    "type": "object",
    "properties": {"rows": {"type": "integer"}},
    "required": ["rows"],
}


class Gate:
    """A tool that waits, and tells how it ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.running = 0
        self.most = 0

    async def wait(self) -> str:
        """Wait."""
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1
        return "open"


def make(*tools: Any, **options: Any) -> MCPServer:
    return MCPServer(tools=create_registry(*(tools or (add, fail))), **options)


def texts(answer: Any) -> str:
    assert "result" in answer, answer
    return "".join(part.get("text", "") for part in answer["result"]["content"])


# --- versions and the handshake ---
@pytest.mark.req("mcp.server.versions")
@pytest.mark.parametrize("version", LEGACY)
async def test_each_version_with_a_handshake_is_echoed(version: str) -> None:
    async with Client(make()) as client:
        hello = await client.initialize(version)
        assert hello["protocolVersion"] == version
        assert hello["serverInfo"]["name"] == "executionkit"
        assert hello["capabilities"]["tools"] == {"listChanged": True}
        assert texts(await client.ask(call(1, "add", a=2, b=3))) == "5"


@pytest.mark.req("mcp.server.versions")
@pytest.mark.parametrize("version", ["2026-07-28", "1.0", "", "9999-01-01"])
async def test_any_other_version_becomes_the_newest_with_a_handshake(
    version: str,
) -> None:
    async with Client(make()) as client:
        assert (await client.initialize(version))["protocolVersion"] == "2025-11-25"


@pytest.mark.req("mcp.server.lifecycle")
async def test_before_initialize_only_ping_is_served() -> None:
    async with Client(make()) as client:
        assert (await client.ask(request(1, "ping")))["result"] == {}
        for method in ("tools/list", "tools/call", "logging/setLevel", "no/such"):
            answer = await client.ask(request(method, method))
            assert answer["error"]["code"] == -32600
        bad = await client.ask(request(2, "initialize", {"protocolVersion": 1}))
        assert bad["error"]["code"] == -32602
        await client.initialize()
        again = await client.ask(
            request(3, "initialize", {"protocolVersion": "2025-11-25"})
        )
        assert again["error"]["code"] == -32600
        assert (await client.ask(request(4, "no/such")))["error"]["code"] == -32601


@pytest.mark.req("mcp.server.modern")
async def test_without_a_handshake_each_request_says_who_asks() -> None:
    async with Client(make(instructions="Add.")) as client:
        found = (await client.ask(modern(1, "server/discover")))["result"]
        assert found["supportedVersions"] == [MODERN]
        assert found["instructions"] == "Add."
        assert found["resultType"] == "complete"
        assert found["_meta"][f"{STATE}/serverInfo"]["name"] == "executionkit"
        listed = (await client.ask(modern(2, "tools/list")))["result"]
        assert listed["ttlMs"] == 0
        assert listed["cacheScope"] == "private"
        params = {"name": "add", "arguments": {"a": 1, "b": 1}}
        assert texts(await client.ask(modern(3, "tools/call", params))) == "2"
        for method in ("initialize", "ping", "logging/setLevel", "no/such"):
            answer = await client.ask(modern(method, method))
            assert answer["error"]["code"] == -32601


@pytest.mark.req("mcp.server.modern")
async def test_a_modern_request_with_something_missing_is_refused() -> None:
    async with Client(make()) as client:
        bare = await client.ask(request(1, "server/discover"))
        assert bare["error"]["code"] == -32602
        half = {"_meta": {f"{STATE}/protocolVersion": MODERN}}
        assert (await client.ask(request(2, "tools/list", half)))["error"][
            "code"
        ] == -32602
        other = modern(3, "tools/list", meta={f"{STATE}/protocolVersion": "2030-01-01"})
        error = (await client.ask(other))["error"]
        assert error["code"] == -32022
        assert error["data"] == {"supported": [MODERN], "requested": "2030-01-01"}


@pytest.mark.req("mcp.server.modern")
async def test_both_kinds_of_versions_are_served_over_one_pipe() -> None:
    async with Client(make()) as client:
        assert "result" in await client.ask(modern(1, "tools/list"))
        await client.initialize("2025-03-26")
        assert (
            "resultType" not in (await client.ask(request(2, "tools/list")))["result"]
        )
        assert "resultType" in (await client.ask(modern(3, "tools/list")))["result"]


# --- JSON-RPC ---
@pytest.mark.req("mcp.server.jsonrpc", "T-R-34")
@pytest.mark.parametrize(
    ("line", "code", "found"),
    [
        (b"{", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"[" * 100_000, -32700, None),
        (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700, None),
        (b"[]", -32600, None),
        (b"1", -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        (b'{"id":1,"method":"ping"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32602, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":7}', -32602, 1),
        (
            b'{"jsonrpc":"2.0","id":"d","method":"ping","params":{"a":'
            + b"[" * 200
            + b"]" * 200
            + b"}}",
            -32600,
            "d",
        ),
    ],
)
async def test_a_malformed_message_is_answered_with_its_code(
    line: bytes, code: int, found: object
) -> None:
    async with Client(make()) as client:
        await client.initialize("2025-11-25")
        await client.send_bytes(line + b"\n")
        answer = await client.until(lambda one: "error" in one)
        assert (answer["error"]["code"], answer["id"]) == (code, found)
        assert (await client.ask(request("after", "ping")))["result"] == {}


@pytest.mark.req("mcp.server.jsonrpc")
async def test_notifications_and_responses_are_never_answered() -> None:
    async with Client(make()) as client:
        await client.initialize()
        await client.send(
            {"jsonrpc": "2.0", "method": "no/such"},
            {"jsonrpc": "2.0", "method": "tools/call", "params": []},
            {"jsonrpc": "2.0", "method": "notifications/cancelled"},
            {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": [1]},
            },
            {"jsonrpc": "2.0", "id": 77, "result": {}},
            {"jsonrpc": "2.0", "id": 78, "error": {"code": 1, "message": "x"}},
            {"result": 1},
        )
        await client.ask(request(1, "ping"))
        assert [one.get("id") for one in client.seen] == ["hello", 1]


@pytest.mark.req("mcp.server.jsonrpc")
async def test_half_a_surrogate_pair_comes_back_as_it_was() -> None:
    async with Client(make()) as client:
        await client.initialize()
        assert (await client.ask(request("\ud800", "ping")))["id"] == "\ud800"


@pytest.mark.req("mcp.server.jsonrpc")
async def test_an_id_that_is_in_use_is_refused() -> None:
    gate = Gate()
    async with Client(make(gate.wait)) as client:
        await client.initialize()
        await client.send(call(1, "wait"), call(1, "wait"))
        refused = await client.answer(1)
        assert refused["error"]["code"] == -32600
        client.seen.clear()
        gate.open.set()
        assert texts(await client.answer(1)) == "open"


@pytest.mark.req("mcp.server.batch")
async def test_a_batch_is_answered_as_one() -> None:
    gate = Gate()
    async with Client(make(gate.wait, add)) as client:
        await client.initialize("2025-03-26")
        await client.send(
            [
                call(1, "wait"),
                request(2, "ping"),
                {"jsonrpc": "2.0", "method": "notifications/whatever"},
                call(3, "add", a=1, b=2),
                {"no": "message"},
                request(4, "initialize", {"protocolVersion": "2025-03-26"}),
            ]
        )
        async with asyncio.timeout(5):
            await gate.started.wait()
        gate.open.set()
        answers = await client.until(lambda one: isinstance(one, list))
        by_id = {one["id"]: one for one in answers}
        assert set(by_id) == {1, 2, 3, 4, None}
        assert texts(by_id[1]) == "open"
        assert texts(by_id[3]) == "3"
        assert by_id[None]["error"]["code"] == by_id[4]["error"]["code"] == -32600
        await client.send([{"jsonrpc": "2.0", "method": "x"}])
        await client.ask(request(9, "ping"))
        assert len([one for one in client.seen if isinstance(one, list)]) == 1


@pytest.mark.req("mcp.server.batch")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_a_batch_is_refused_where_there_are_none(version: str) -> None:
    async with Client(make()) as client:
        await client.initialize(version)
        await client.send([request(1, "ping")])
        answer = await client.until(lambda one: "error" in one)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
        assert "a batch is not part of" in answer["error"]["message"]


@pytest.mark.req("mcp.server.batch")
async def test_an_empty_and_a_huge_batch_are_refused() -> None:
    async with Client(make()) as client:
        await client.initialize("2025-03-26")
        huge = [request(n, "ping") for n in range(101)]
        for batch, why in (([], "is empty"), (huge, "has more than 100 messages")):
            await client.send(batch)
            answer = await client.until(lambda one: "error" in one)
            assert (answer["error"]["code"], answer["id"]) == (-32600, None)
            assert why in answer["error"]["message"]
            client.seen.clear()


# --- many at a time ---
@pytest.mark.req("mcp.server.concurrent")
async def test_a_ping_and_other_calls_pass_a_call_that_waits() -> None:
    gate = Gate()
    async with Client(make(gate.wait, add)) as client:
        await client.initialize()
        await client.send(call(1, "wait"))
        assert (await client.ask(request(2, "ping")))["result"] == {}
        assert texts(await client.ask(call(3, "add", a=1, b=1))) == "2"
        gate.open.set()
        assert texts(await client.answer(1)) == "open"


@pytest.mark.req("mcp.server.cancel")
@pytest.mark.parametrize("id", [1, "one", 0, ""])
async def test_a_cancelled_call_ends_and_is_not_answered(id: object) -> None:  # noqa: A002
    gate = Gate()
    async with Client(make(gate.wait)) as client:
        await client.initialize()
        await client.send(call(id, "wait"))
        async with asyncio.timeout(5):
            await gate.started.wait()
        params = {"requestId": id, "reason": "enough"}
        await client.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        )
        async with asyncio.timeout(5):
            await gate.cancelled.wait()
        await client.ask(request("after", "ping"))
        assert id not in [one.get("id") for one in client.seen]


@pytest.mark.req("mcp.server.concurrent")
async def test_no_more_calls_run_at_once_than_allowed_and_none_is_lost() -> None:
    gate = Gate()
    options = ServerOptions(max_concurrency=3, max_waiting=10)
    async with Client(make(gate.wait, options=options)) as client:
        await client.initialize()
        await client.send(*(call(n, "wait") for n in range(50)))
        async with asyncio.timeout(5):
            await gate.started.wait()
        gate.open.set()
        for number in range(50):
            assert texts(await client.answer(number)) == "open"
        assert gate.most == 3


@pytest.mark.req("mcp.server.backpressure")
async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async with Client(make(), limit=10_000) as client:
        await client.initialize()
        sending = asyncio.create_task(
            client.send(*(request(n, "tools/list") for n in range(2000)))
        )
        for _ in range(2000):
            await asyncio.sleep(0)
        # Two thousand answers would be more than a hundred times as much.
        assert client.from_server.size < 20_000
        for number in range(2000):
            assert (await client.receive())["id"] == number
        await sending


# --- tools ---
@pytest.mark.req("mcp.server.tool-errors", "T-R-34")
async def test_what_the_model_can_mend_is_a_result_and_the_rest_an_error() -> None:
    async with Client(make()) as client:
        await client.initialize()
        bad: list[tuple[str, dict[str, Any], str]] = [
            ("add", {"a": "x", "b": 1}, "`a`"),
            ("add", {"a": 1, "b": 1, "c": 1}, "`c`"),
            ("fail", {}, "it broke"),
        ]
        for number, (name, arguments, word) in enumerate(bad):
            answer = await client.ask(call(number, name, **arguments))
            assert answer["result"]["isError"] is True
            assert word in texts(answer)
        for params in (
            {"name": "no_such_tool"},
            {"name": 5},
            {},
            {"name": "add", "arguments": [1]},
            {"name": "add", "arguments": None},
        ):
            answer = await client.ask(request(str(params), "tools/call", params))
            assert answer["error"]["code"] == -32602


@pytest.mark.req("mcp.server.tool-errors")
async def test_a_tool_can_answer_with_an_error_of_the_protocol() -> None:
    async def quota() -> str:
        """Refuses."""
        raise ProtocolError(-32050, "no quota", {"left": 0})

    async with Client(make(quota)) as client:
        await client.initialize()
        error = (await client.ask(call(1, "quota")))["error"]
        assert error == {"code": -32050, "message": "no quota", "data": {"left": 0}}


@pytest.mark.req("mcp.server.structured")
@pytest.mark.parametrize("version", [*LEGACY, MODERN])
async def test_data_comes_with_its_schema_from_the_version_that_has_it(
    version: str,
) -> None:
    registry = create_registry()
    registry.add(rows, result_schema=ROWS)
    async with Client(MCPServer(tools=registry)) as client:
        if version == MODERN:
            listed = await client.ask(modern(1, "tools/list"))
            answer = await client.ask(modern(2, "tools/call", {"name": "rows"}))
        else:
            await client.initialize(version)
            listed = await client.ask(request(1, "tools/list"))
            answer = await client.ask(call(2, "rows"))
        (tool,) = listed["result"]["tools"]
        knows = version >= "2025-06-18"
        assert ("outputSchema" in tool) is knows
        assert answer["result"].get("structuredContent") == (
            {"rows": 3} if knows else None
        )
        assert texts(answer) == '{"rows": 3}'
        assert answer["result"]["isError"] is False


@pytest.mark.req("mcp.server.structured", "MC-09")
async def test_data_that_breaks_its_schema_is_a_failure_with_its_text() -> None:
    async def wrong() -> dict[str, str]:
        """Wrong."""
        return {"rows": "three"}

    registry = create_registry()
    registry.add(wrong, result_schema=ROWS)
    async with Client(MCPServer(tools=registry)) as client:
        await client.initialize()
        answer = await client.ask(call(1, "wrong"))
        assert answer["result"]["isError"] is True
        assert "structuredContent" not in answer["result"]
        assert '{"rows": "three"}' in texts(answer)


@pytest.mark.req("mcp.server.content")
async def test_blocks_of_content_stay_what_they_are() -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "t"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "a://b", "name": "b"},
    ]

    async def many() -> Any:
        """Many."""
        return blocks

    async def whole() -> Any:
        """Whole."""
        return {"content": blocks[:1], "isError": True}

    async def odd() -> Any:
        """Not JSON."""
        return {"a": object()}

    for version in ("2024-11-05", "2025-11-25"):
        async with Client(make(many, whole, odd)) as client:
            await client.initialize(version)
            content = (await client.ask(call(1, "many")))["result"]["content"]
            if version == "2025-11-25":
                assert content == blocks
            else:
                kinds = [part["type"] for part in content]
                assert kinds == ["text", "image", "text", "text"]
            result = (await client.ask(call(2, "whole")))["result"]
            assert result == {"content": blocks[:1], "isError": True}
            assert (await client.ask(call(3, "odd")))["result"]["isError"] is True


@pytest.mark.req("mcp.server.processor")
async def test_calls_go_through_the_layers_of_the_processor() -> None:
    made = 0

    async def once() -> int:
        """Counts."""
        nonlocal made
        made += 1
        return made

    async with ToolProcessor(create_registry(once), enable_caching=True) as processor:
        async with Client(MCPServer(tools=processor)) as client:
            await client.initialize()
            for number in range(3):
                assert texts(await client.ask(call(number, "once"))) == "1"
        # The processor is not the server's: it is still open.
        assert (await processor.process({"name": "once", "arguments": {}}))[
            0
        ].result == 1


@pytest.mark.req("mcp.server.names")
async def test_a_tool_in_a_namespace_has_a_name_that_clients_accept() -> None:
    registry = create_registry()
    registry.add(add, namespace="math.core")
    async with Client(MCPServer(tools=registry)) as client:
        await client.initialize()
        (tool,) = (await client.ask(request(1, "tools/list")))["result"]["tools"]
        assert tool["name"].replace("_", "").replace("-", "").isalnum()
        assert texts(await client.ask(call(2, tool["name"], a=1, b=1))) == "2"


# --- progress and logging ---
@pytest.mark.req("mcp.server.progress", "MC-13")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
async def test_items_are_progress_and_all_of_it_comes_before_the_result(
    version: str,
) -> None:
    async with Client(make(count)) as client:
        meta = {"progressToken": "p"}
        params = {"name": "count", "arguments": {"n": 5}, "_meta": meta}
        if version == MODERN:
            del params["_meta"]
            await client.ask(modern(1, "tools/call", params, meta=meta))
        else:
            await client.initialize(version)
            await client.ask(request(1, "tools/call", params))
        *told, _ = [one for one in client.seen if one.get("id") != "hello"]
        assert [one["method"] for one in told] == ["notifications/progress"] * 5
        assert [one["params"]["progress"] for one in told] == [1, 2, 3, 4, 5]
        assert {one["params"]["progressToken"] for one in told} == {"p"}
        assert ("message" in told[0]["params"]) is (version > "2024-11-05")


@pytest.mark.req("mcp.server.progress", "MC-13")
async def test_what_a_tool_says_after_its_end_is_not_sent() -> None:
    kept: list[Any] = []

    def thread() -> str:
        """Keeps its conversation."""
        here = current_exchange()
        assert here is not None
        kept.append(here)
        for number in range(20):
            here.progress(number)
        return "done"

    async with Client(make(thread)) as client:
        await client.initialize()
        params = {"name": "thread", "_meta": {"progressToken": 7}}
        await client.ask(request(1, "tools/call", params))
        assert len(client.seen) == 22
        kept[0].progress(99)
        kept[0].log("late")
        await client.ask(request(2, "ping"))
        assert len(client.seen) == 23


@pytest.mark.req("mcp.server.progress", "MC-13")
async def test_nothing_is_said_while_the_answer_waits_to_be_taken() -> None:
    kept: list[Any] = []

    async def keep() -> str:
        """Keeps its conversation."""
        kept.append(current_exchange())
        return "x" * 1000

    async with Client(make(keep)) as client:
        await client.initialize()
        client.from_server._limit = 10
        params = {"name": "keep", "_meta": {"progressToken": 7}}
        await client.send(request(1, "tools/call", params))
        async with asyncio.timeout(5):
            while not client.from_server.size:
                await asyncio.sleep(0)
        before = client.from_server.size
        kept[0].progress(1)
        assert client.from_server.size == before
        await client.answer(1)


@pytest.mark.req("mcp.server.progress")
async def test_progress_that_does_not_grow_is_not_told() -> None:
    async def odd() -> AsyncGenerator[Any]:
        """Odd numbers."""
        for number in (2, 1, 2, float("nan"), float("inf"), 3, "text"):
            yield {"progress": number}

    async with Client(make(odd)) as client:
        await client.initialize()
        params = {"name": "odd", "_meta": {"progressToken": 7}}
        await client.ask(request(1, "tools/call", params))
        told = [one["params"]["progress"] for one in client.seen if "params" in one]
        assert told == [2, 3, 7]


@pytest.mark.req("mcp.server.progress", "mcp.server.backpressure")
async def test_a_tool_that_says_too_much_fills_no_memory() -> None:
    async def flood() -> str:
        """Says a lot."""
        here = current_exchange()
        assert here is not None
        for _ in range(3000):
            here.log("x" * 1000)
        return "done"

    async with Client(make(flood), limit=100_000) as client:
        await client.initialize()
        assert texts(await client.ask(call(1, "flood"))) == "done"
        told = [one for one in client.seen if "method" in one]
        # What was not taken in time was not kept; the result was.
        assert 50 < len(told) < 200


@pytest.mark.req("mcp.server.progress", "mcp.server.backpressure")
async def test_a_streaming_tool_goes_on_only_as_fast_as_it_is_read() -> None:
    made = 0

    async def stream() -> AsyncGenerator[str]:
        """A lot."""
        nonlocal made
        for made in range(1, 501):
            yield f"{made}:" + "x" * 1000

    async with Client(make(stream), limit=10_000) as client:
        await client.initialize()
        params = {"name": "stream", "_meta": {"progressToken": 7}}
        await client.send(request(1, "tools/call", params))
        for _ in range(3000):
            await asyncio.sleep(0)
        assert 5 < made < 150
        await client.answer(1)
        assert made == len([one for one in client.seen if "method" in one]) == 500


@pytest.mark.req("mcp.server.progress")
async def test_without_a_token_there_is_no_progress() -> None:
    async with Client(make(count)) as client:
        await client.initialize()
        await client.ask(call(1, "count", n=3))
        assert len(client.seen) == 2


@pytest.mark.req("mcp.server.logging")
async def test_the_client_chooses_how_much_it_hears() -> None:
    async with Client(make(block)) as client:
        await client.initialize()
        assert (await client.ask(request(1, "logging/setLevel", {"level": "error"})))[
            "result"
        ] == {}
        await client.ask(call(2, "block", text="quiet"))
        assert not [one for one in client.seen if "method" in one]
        await client.ask(request(3, "logging/setLevel", {"level": "debug"}))
        await client.ask(call(4, "block", text="loud"))
        (told,) = [one for one in client.seen if "method" in one]
        assert told["params"] == {
            "level": "warning",
            "logger": "block",
            "data": {"text": "loud"},
        }
        bad = await client.ask(request(5, "logging/setLevel", {"level": "loud"}))
        assert bad["error"]["code"] == -32602


@pytest.mark.req("mcp.server.logging")
async def test_a_modern_client_hears_only_what_its_request_asks_for() -> None:
    async with Client(make(block)) as client:
        params = {"name": "block", "arguments": {"text": "x"}}
        await client.ask(modern(1, "tools/call", params))
        assert len(client.seen) == 1
        await client.ask(
            modern(2, "tools/call", params, meta={f"{STATE}/logLevel": "info"})
        )
        assert client.seen[1]["method"] == "notifications/message"


# --- lists ---
@pytest.mark.req("mcp.server.pages")
async def test_a_long_list_comes_in_pages_without_gaps_or_doubles() -> None:
    registry = create_registry()
    for number in range(25):
        registry.add(add, f"tool_{number}")
    server = MCPServer(tools=registry, options=ServerOptions(page_size=10))
    async with Client(server) as client:
        await client.initialize()
        names: list[str] = []
        cursor: str | None = None
        for turn in range(3):
            params = {} if cursor is None else {"cursor": cursor}
            result = (await client.ask(request(turn, "tools/list", params)))["result"]
            names += [tool["name"] for tool in result["tools"]]
            cursor = result.get("nextCursor")
            if turn == 0:
                for gone in (3, 4, 5):  # the list changes in between
                    registry.remove(f"tool_{gone}")
            if turn == 1:
                registry.remove("tool_19")  # the last one of the page
        assert cursor is None
        assert names == [f"tool_{number}" for number in range(25)]
        for bad in (5, "", "no cursor", "W10=", "é"):
            answer = await client.ask(request(str(bad), "tools/list", {"cursor": bad}))
            assert answer["error"]["code"] == -32602


@pytest.mark.req("mcp.server.list-changed")
async def test_a_change_of_the_registry_is_told() -> None:
    registry = create_registry(add)
    server = MCPServer(tools=registry)
    async with Client(server) as client:
        await client.initialize()
        await client.ask(request(1, "tools/list"))
        registry.add(fail)
        await client.notified("notifications/tools/list_changed")
        result = (await client.ask(request(2, "tools/list")))["result"]
        assert [tool["name"] for tool in result["tools"]] == ["add", "fail"]


@pytest.mark.req("mcp.server.list-changed")
async def test_a_tool_that_changes_the_registry_is_noticed_at_once() -> None:
    registry = create_registry()

    async def grow() -> str:
        """Adds a tool."""
        registry.add(add, replace=True)
        return "grown"

    registry.add(grow)
    server = MCPServer(tools=registry)
    async with Client(server) as client:
        await client.initialize()
        await client.ask(call(1, "grow"))
        assert client.seen[1]["method"] == "notifications/tools/list_changed"


@pytest.mark.req("mcp.server.listen")
async def test_a_modern_client_subscribes_to_what_it_wants() -> None:
    registry = create_registry(add)
    server = MCPServer(
        tools=registry,
        resources=[Resource(uri="a://b", name="b", read=lambda: "x")],
        prompts=[Prompt(name="p", render=lambda: "x")],
    )
    async with Client(server) as client:
        wanted = {
            "toolsListChanged": True,
            "resourceSubscriptions": ["a://b"],
            "unknown": True,
        }
        await client.send(
            modern("s", "subscriptions/listen", {"notifications": wanted})
        )
        first = await client.receive()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert first["params"]["notifications"] == {
            "toolsListChanged": True,
            "resourceSubscriptions": ["a://b"],
        }
        server.add_prompt(Prompt(name="q", render=lambda: "x"))
        registry.add(fail)
        server.check_changes()
        server.resource_updated("a://b")
        server.resource_updated("a://c")
        methods = [(await client.receive())["method"] for _ in range(2)]
        assert methods == [
            "notifications/tools/list_changed",
            "notifications/resources/updated",
        ]
        for one in client.seen:
            assert one["params"]["_meta"] == {f"{STATE}/subscriptionId": "s"}
        await client.to_server.close()
        last = await client.answer("s")
        assert last["result"]["_meta"][f"{STATE}/subscriptionId"] == "s"


# --- asking the client ---
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


async def greet() -> str:
    """Asks for a name."""
    here = current_exchange()
    assert here is not None
    found = await here.elicit("Name?", FORM)
    return f"Hello, {found['content']['name']}"


@pytest.mark.req("mcp.server.ask")
async def test_a_client_with_a_session_is_asked_while_the_tool_waits() -> None:
    async with Client(make(greet)) as client:
        await client.initialize(elicitation={})
        await client.send(call(1, "greet"))
        asked = await client.until(
            lambda one: one.get("method") == "elicitation/create"
        )
        assert asked["params"]["requestedSchema"] == FORM
        result = {"action": "accept", "content": {"name": "Ada"}}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        assert texts(await client.answer(1)) == "Hello, Ada"
        await client.send(call(2, "greet"))
        asked = await client.until(
            lambda one: one.get("method") == "elicitation/create" and one is not asked
        )
        error = {"code": -1, "message": "no"}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
        assert (await client.answer(2))["result"]["isError"] is True


@pytest.mark.req("mcp.server.ask")
async def test_a_question_is_taken_back_when_the_call_is_cancelled() -> None:
    async with Client(make(greet)) as client:
        await client.initialize(elicitation={})
        await client.send(call(1, "greet"))
        asked = await client.until(
            lambda one: one.get("method") == "elicitation/create"
        )
        params = {"requestId": 1}
        await client.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        )
        told = await client.notified("notifications/cancelled")
        assert told["requestId"] == asked["id"]


@pytest.mark.req("mcp.server.ask")
async def test_a_client_that_cannot_answer_is_not_asked() -> None:
    async with Client(make(greet)) as client:
        error = (await client.ask(modern(1, "tools/call", {"name": "greet"})))["error"]
        assert error["code"] == -32021
        assert error["data"] == {"requiredCapabilities": {"elicitation": {}}}
        await client.initialize()
        assert (await client.ask(call(2, "greet")))["error"]["code"] == -32602


@pytest.mark.req("mcp.server.input-required")
async def test_a_modern_client_is_asked_by_a_result_and_comes_back() -> None:
    async def twice() -> str:
        """Asks, and remembers."""
        here = current_exchange()
        assert here is not None
        form = {"method": "elicitation/create", "params": {"message": "?"}}
        found = await here.ask({"k": form}, state={"n": 1})
        return f"{found['k']['action']} {here.state['n']}"

    able: dict[str, Any] = {"elicitation": {}}
    async with Client(make(twice, greet)) as client:
        first = modern(1, "tools/call", {"name": "twice"}, able=able)
        result = (await client.ask(first))["result"]
        assert result["resultType"] == "input_required"
        assert result["inputRequests"]["k"]["method"] == "elicitation/create"
        state = result["requestState"]
        back = {
            "name": "twice",
            "requestState": state,
            "inputResponses": {"k": {"action": "decline"}, "other": {}},
        }
        answer = await client.ask(modern(2, "tools/call", back, able=able))
        assert texts(answer) == "decline 1"
        for number, changes in enumerate(
            (
                {"requestState": state + "x"},
                {"requestState": state[:-4] + "AAA="},
                {"requestState": "." + state},
                {"requestState": None},
                {"requestState": 5},
                {"name": "greet"},  # a state is for one tool
                {"inputResponses": None},
                {"inputResponses": []},
            )
        ):
            params: dict[str, Any] = {**back, **changes}
            answer = await client.ask(
                modern(f"x{number}", "tools/call", params, able=able)
            )
            assert answer["error"]["code"] == -32602, changes


@pytest.mark.req("mcp.server.ask", "mcp.server.backpressure")
async def test_calls_that_wait_for_the_client_do_not_stop_its_answers() -> None:
    options = ServerOptions(max_waiting=2)
    async with Client(make(greet, options=options)) as client:
        await client.initialize(elicitation={})
        await client.send(*(call(number, "greet") for number in (1, 2, 3)))
        busy = await client.answer(3)
        assert busy["error"]["code"] == -32000
        result = {"action": "accept", "content": {"name": "Ada"}}
        for one in [one for one in client.seen if "method" in one]:
            await client.send({"jsonrpc": "2.0", "id": one["id"], "result": result})
        for number in (1, 2):
            assert texts(await client.answer(number)) == "Hello, Ada"


@pytest.mark.req("mcp.server.list-changed")
async def test_a_list_that_was_not_announced_is_not_told_of() -> None:
    server = make()
    async with Client(server) as client:
        await client.initialize()
        server.add_prompt(Prompt(name="p", render=lambda: "x"))
        await client.ask(request(1, "prompts/list"))
        assert [one for one in client.seen if "method" in one] == []


# --- resources, prompts, completion ---
def shelf() -> MCPServer:
    async def late(name: str) -> bytes:
        return name.encode()

    def words(_name: str, start: str) -> list[str]:
        return [word for word in ("ada", "alan") if word.startswith(start)]

    return MCPServer(
        tools=create_registry(add),
        resources=[
            Resource(uri="notes://all", name="all", read=lambda: {"n": 1}, title="All"),
            Resource(uri="notes://{name}/raw", name="one", read=late, complete=words),
        ],
        prompts=[
            Prompt(
                name="greet",
                render=lambda who, tone="kind": f"{tone} words to {who}",
                arguments=(PromptArgument("who"), PromptArgument("tone", None, False)),
            )
        ],
    )


@pytest.mark.req("mcp.server.resources")
async def test_resources_and_templates_are_listed_and_read() -> None:
    async with Client(shelf()) as client:
        hello = await client.initialize()
        assert hello["capabilities"]["resources"] == {
            "listChanged": True,
            "subscribe": True,
        }
        listed = (await client.ask(request(1, "resources/list")))["result"]["resources"]
        assert listed == [{"uri": "notes://all", "name": "all", "title": "All"}]
        listed = (await client.ask(request(2, "resources/templates/list")))["result"]
        assert listed["resourceTemplates"] == [
            {"uriTemplate": "notes://{name}/raw", "name": "one"}
        ]
        read = await client.ask(request(3, "resources/read", {"uri": "notes://all"}))
        assert read["result"]["contents"] == [
            {"uri": "notes://all", "mimeType": "application/json", "text": '{"n": 1}'}
        ]
        read = await client.ask(request(4, "resources/read", {"uri": "notes://a/raw"}))
        assert read["result"]["contents"][0]["blob"] == "YQ=="
        lost = await client.ask(request(5, "resources/read", {"uri": "notes://no"}))
        assert lost["error"]["code"] == -32002
        lost = await client.ask(modern(6, "resources/read", {"uri": "notes://no"}))
        assert lost["error"]["code"] == -32602
        assert lost["error"]["data"] == {"uri": "notes://no"}


@pytest.mark.req("mcp.server.resources")
async def test_who_subscribed_hears_of_a_resource_and_nobody_else() -> None:
    server = shelf()
    async with Client(server) as client:
        await client.initialize()
        watched = {"uri": "notes://all"}
        await client.ask(request(1, "resources/subscribe", watched))
        server.resource_updated("notes://all")
        assert await client.notified("notifications/resources/updated") == watched
        await client.ask(request(2, "resources/unsubscribe", watched))
        server.resource_updated("notes://all")
        await client.ask(request(3, "ping"))
        assert len([one for one in client.seen if "method" in one]) == 1


@pytest.mark.req("mcp.server.prompts")
async def test_prompts_are_made_of_their_arguments() -> None:
    async with Client(shelf()) as client:
        await client.initialize()
        params = {"name": "greet", "arguments": {"who": "Ada"}}
        answer = (await client.ask(request(1, "prompts/get", params)))["result"]
        (message,) = answer["messages"]
        assert message["content"]["text"] == "kind words to Ada"
        for number, bad in enumerate(
            (
                {"name": "no"},
                {"name": "greet"},
                {"name": "greet", "arguments": {"who": 5}},
                {"name": "greet", "arguments": {"who": "a", "x": "y"}},
            )
        ):
            answer = await client.ask(request(f"b{number}", "prompts/get", bad))
            assert answer["error"]["code"] == -32602


@pytest.mark.req("mcp.server.completion")
async def test_values_are_proposed_for_arguments() -> None:
    async with Client(shelf()) as client:
        await client.initialize()
        ref = {"type": "ref/resource", "uri": "notes://{name}/raw"}
        params = {"ref": ref, "argument": {"name": "name", "value": "al"}}
        found = (await client.ask(request(1, "completion/complete", params)))["result"]
        assert found["completion"]["values"] == ["alan"]
        params["ref"] = {"type": "ref/prompt", "name": "greet"}
        found = (await client.ask(request(2, "completion/complete", params)))["result"]
        assert found["completion"]["values"] == []
        params["ref"] = {"type": "other"}
        bad = await client.ask(request(3, "completion/complete", params))
        assert bad["error"]["code"] == -32602


@pytest.mark.req("mcp.server.jsonrpc")
async def test_a_bug_in_what_is_offered_is_an_internal_error_that_tells_its_type() -> (
    None
):
    def broken() -> str:
        raise KeyError("sk-secret-of-the-house-1234567890")

    server = MCPServer(
        tools=create_registry(add),
        resources=[Resource(uri="a://b", name="b", read=broken)],
    )
    async with Client(server) as client:
        await client.initialize()
        error = (await client.ask(request(1, "resources/read", {"uri": "a://b"})))[
            "error"
        ]
        assert error == {"code": -32603, "message": "Internal error: KeyError"}


# --- context ---
@pytest.mark.req("mcp.server.context")
async def test_the_context_of_a_request_reaches_the_tool() -> None:
    from executionkit.context import get_current_context

    async def seen() -> Any:
        """The context."""
        found = get_current_context()
        assert found is not None
        return [found.traceparent, found.tenant_id, found.user_id]

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with Client(make(seen)) as client:
        await client.initialize()
        meta = {
            "traceparent": trace,
            "executionkit/X-Tenant-ID": "t1",
            "x/X-User-ID": "u",
            "traceState": 5,
            "other": [],
        }
        answer = await client.ask(
            request(1, "tools/call", {"name": "seen", "_meta": meta})
        )
        assert trace in texts(answer)
        assert texts(answer).endswith(', "t1", null]')


# --- the reasoning patterns ---
@pytest.mark.req("mcp.server.reasoning")
async def test_the_server_of_the_document_offers_the_patterns_and_nothing_else() -> (
    None
):
    provider = ScriptedProvider(["4", "4", "5"])
    server = MCPServer(lambda: provider)
    hello = await server.handle_message(
        request(1, "initialize", {"protocolVersion": "2025-06-18"})
    )
    assert isinstance(hello, dict)
    assert hello["result"]["capabilities"] == {"tools": {}}
    for method in ("resources/list", "prompts/list", "logging/setLevel"):
        refused = await server.handle_message(request(2, method))
        assert isinstance(refused, dict)
        assert refused["error"]["code"] == -32601
    answer = await server.handle_message(call(3, "consensus", prompt="2+2?", n=3))
    lines = texts(answer).split("\n")
    assert lines[0] == "4"
    assert lines[2].startswith("agreement_ratio: 0.6")
    assert lines[3] == "unique_responses: 2"
    assert lines[4].startswith("cost: input_tokens=")
    assert lines[4].endswith("llm_calls=3")
    await server.close()


@pytest.mark.req("mcp.server.reasoning")
async def test_one_message_can_be_served_without_a_session() -> None:
    provider = ScriptedProvider(["It is 4."])
    listed = await handle_message(request(1, "tools/list"), lambda: provider)
    assert isinstance(listed, dict)
    assert [tool["name"] for tool in listed["result"]["tools"]] == [
        "consensus",
        "react_loop",
    ]
    for tool in listed["result"]["tools"]:
        assert tool["inputSchema"]["additionalProperties"] is False
    asked = call(2, "react_loop", prompt="2+2?")
    lines = texts(await handle_message(asked, lambda: provider)).split("\n")
    assert lines[0] == "It is 4."
    assert lines[2:4] == ["rounds: 1", "tool_calls_made: 0"]
    assert await handle_message({"jsonrpc": "2.0", "method": "x"}) is None


@pytest.mark.req("mcp.server.reasoning", "OB-04")
async def test_a_failure_of_a_pattern_shows_its_type_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = "sk-proj-1234567890abcdefghijklmnop"

    class Broken:
        async def complete(self, *_args: Any, **_options: Any) -> Any:
            raise ToolProcessorError(f"401 for key {secret}")

    answer = await handle_message(call(1, "consensus", prompt="x"), lambda: Broken())
    assert isinstance(answer, dict)
    assert answer["result"]["isError"] is True
    assert texts(answer) == "consensus failed: ToolProcessorError"
    for name in ("BASE_URL", "MODEL", "API_KEY"):
        monkeypatch.delenv(f"EXECUTIONKIT_{name}", raising=False)
    missing = await handle_message(call(2, "react_loop", prompt="x"))
    assert "EXECUTIONKIT_BASE_URL" in texts(missing)
    many = await handle_message(call(3, "consensus", prompt="x", n=50))
    assert isinstance(many, dict)
    assert many["result"]["isError"] is True


@pytest.mark.req("mcp.server.secrets", "OB-04")
async def test_a_secret_in_the_error_of_a_tool_is_masked() -> None:
    secret = "sk-proj-1234567890abcdefghijklmnop"

    async def leak() -> str:
        """Leaks."""
        raise RuntimeError(f"GET https://x/?api_key={secret} failed")

    async with Client(make(leak)) as client:
        await client.initialize()
        answer = await client.ask(call(1, "leak"))
        assert secret not in str(answer)
        assert "REDACTED" in texts(answer)


@pytest.mark.req("mcp.server.secrets", "OB-04")
@pytest.mark.parametrize("fault", ["refused", "reset", "redirect", "unreachable"])
async def test_a_planted_key_reaches_no_client(
    caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """The key has no known shape; the server of the model says it, and sends it on."""
    key = "planted value+17/of nobody"
    spellings = {key, quote(key), quote_plus(key), quote(key, safe="")}
    said = {"error": {"message": f"no such key: {key}"}}
    elsewhere = {"Location": f"http://other.invalid/?api_key={quote(key, safe='')}"}
    replies = {
        "refused": json_reply(said, status=400),
        "reset": reset_reply(),
        "redirect": Reply(302, elsewhere, key.encode()),
        "unreachable": reset_reply(),
    }
    caplog.set_level(logging.DEBUG)
    async with ScriptedServer(replies[fault]) as model:
        url = f"{model.url}/v1?api_key={quote_plus(key)}"
        if fault == "unreachable":
            await model.__aexit__(None, None, None)
        async with Provider(url, "m", api_key=key) as provider:

            async def ask() -> str:
                """Ask the model."""
                await provider.complete([{"role": "user", "content": "?"}])
                return "never"

            async def ask_in_vain() -> str:
                """Ask the model, and say why it failed."""
                try:
                    return await ask()
                except ExecutionKitError as exc:
                    raise RuntimeError(f"the model failed: {exc!r}") from exc

            server = make(ask, ask_in_vain)
            async with Client(server) as client:
                await client.initialize()
                await client.ask(request(1, "logging/setLevel", {"level": "debug"}))
                answers = [await client.ask(call(n, n)) for n in ("ask", "ask_in_vain")]
                seen = [*client.seen, *answers]
            for name in ("consensus", "react_loop"):
                if fault not in {"refused", "redirect"}:
                    break  # these are tried again, after pauses
                asked = call(name, name, prompt="?")
                answers.append(await handle_message(asked, lambda: provider))
        everything = str([seen, answers]) + caplog.text
    assert all(answer["result"]["isError"] for answer in answers)
    assert not [found for found in spellings if found in everything]


@pytest.mark.req("mcp.server.reasoning")
async def test_the_provider_is_made_once_when_there_is_one() -> None:
    made: list[Any] = [None, ScriptedProvider(["a", "a", "b", "b"])]
    asked = 0

    def factory() -> Any:
        nonlocal asked
        asked += 1
        return made.pop(0)

    server = MCPServer(factory)
    await server.handle_message(
        request(0, "initialize", {"protocolVersion": "2025-06-18"})
    )
    one = call(1, "consensus", prompt="x", n=1)
    assert "No model" in texts(await server.handle_message(one))
    assert texts(await server.handle_message(one)).startswith("a\n")
    assert texts(await server.handle_message(one)).startswith("a\n")
    assert asked == 2
    await server.close()


@pytest.mark.req("mcp.server.calculator", "T-R-35")
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("17*83", "1411"),
        ("2**64+1", "18446744073709551617"),
        ("9007199254740993", "9007199254740993"),
        ("7//2", "3"),
        ("-7 % 3", "2"),
        ("1/4", "0.25"),
        ("2**-1", "0.5"),
    ],
)
def test_the_calculator_is_exact(expression: str, value: str) -> None:
    from executionkit.mcp._demo_tools import calculate

    assert calculate(expression) == value


@pytest.mark.req("mcp.server.calculator", "T-R-35")
@pytest.mark.parametrize(
    "expression",
    [
        "(-8)**0.5",
        "True+1",
        "1/0",
        "9**9**9",
        "1e308*10",
        "2.0**5000",
        "__import__('os')",
        "a",
        "",
        "(" * 300,
        "1" * 501,
        "1j",
        "'a'*5",
        "(1,2)",
    ],
)
def test_the_calculator_refuses_what_has_no_exact_value(expression: str) -> None:
    from executionkit.mcp._demo_tools import calculate

    with pytest.raises(ValueError, match=r"\w"):
        calculate(expression)


@pytest.mark.req("mcp.server.options")
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_concurrency": 0},
        {"max_waiting": 0},
        {"page_size": -1},
        {"max_message_bytes": 0},
        {"grace": -1.0},
        {"grace": float("nan")},
        {"cache_seconds": 1e9},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ServerOptions(**wrong)
