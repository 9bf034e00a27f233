"""The client: names, hints, results, and servers in the same process."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("mcp")

from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import ErrorCode, MCPConnectionError, ToolBlockedError
from executionkit.mcp._client.results import mend_result, value_of
from executionkit.mcp._client.tools import Selection, local_name, side_effects_of
from executionkit.mcp.client import (
    HttpServer,
    MCPConnections,
    MCPOptions,
    MCPRequestError,
    MCPResultError,
    MCPToolError,
    SseServer,
    StdioServer,
    add_mcp_server,
)
from executionkit.tools.export import ToolNames, to_openai
from executionkit.tools.guard_rules.side_effects import SideEffectGuard
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from tests.mcp.sdk_app import PIXEL, make

if TYPE_CHECKING:
    from pathlib import Path

PROVIDER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
CONTEXT = ExecutionContext(request_id="r-1")


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(None, name, arguments)


class TestNames:
    @pytest.mark.req("MC-07")
    async def test_two_servers_and_a_local_tool_of_one_name(self) -> None:
        """Under the prefix `a`, `create_issue` would be called as the local tool is."""
        registry = create_registry()
        seen: list[str] = []

        def local() -> str:
            """Local."""
            return "local"

        registry.add(local, "a_create_issue")
        async with MCPConnections(registry) as servers, ToolProcessor(registry) as run:
            apps = {name: make() for name in ("a", "b")}
            for name, app in apps.items():

                def create_issue(title: str, *, name: str = name) -> str:
                    seen.append(f"{name}:{title}")
                    return name

                app.add_tool(create_issue, name="create_issue")
                made = await servers.add(
                    app, name=name, prefix=name, include=["create_issue"]
                )
                assert list(made.tools) == ["create_issue"]
            first, second = (servers[n].tools["create_issue"] for n in ("a", "b"))
            names = {"a_create_issue", first, second}
            assert len(names) == 3
            assert second == "b_create_issue"
            assert all(PROVIDER_NAME.fullmatch(name) for name in names)
            for name, wanted in (
                ("a_create_issue", "local"),
                (first, "a"),
                (second, "b"),
            ):
                arguments = {} if wanted == "local" else {"title": "t"}
                [result] = await run.process([ToolCall(None, name, arguments)])
                assert wanted in str(result.result)
            assert seen == ["a:t", "b:t"]
            # The same servers and tools, the same names: also next time.
            await servers.remove("a")
            selection = Selection(namespace="default", prefix="a")
            assert first == local_name("create_issue", selection, "a", taken=True)
            again = await servers.add(
                apps["a"], name="a", prefix="a", include=["create_*"]
            )
            assert again.tools["create_issue"] == first
        assert [record.full_name for record in registry.records()] == ["a_create_issue"]

    @pytest.mark.req("MC-07")
    @given(
        names=st.sets(st.text(min_size=1, max_size=90), min_size=1, max_size=8),
        prefix=st.sampled_from(["", "p", "x-1", "long" * 12]),
        namespace=st.sampled_from(["default", "srv", "n" * 60]),
    )
    def test_every_name_is_one_that_providers_take(
        self, names: set[str], prefix: str, namespace: str
    ) -> None:
        selection = Selection(namespace=namespace, prefix=prefix)
        made = {name: local_name(name, selection, "srv") for name in names}
        assert len(set(made.values())) == len(names)
        assert made == {name: local_name(name, selection, "srv") for name in names}
        for local in made.values():
            full = local if namespace == "default" else f"{namespace}.{local}"
            assert PROVIDER_NAME.fullmatch(local)
            assert PROVIDER_NAME.fullmatch(ToolNames.wire_name(full))

    @pytest.mark.req("mcp.client.tools")
    async def test_only_the_tools_that_are_wanted_are_taken(self) -> None:
        registry = create_registry()
        connection = await add_mcp_server(
            registry,
            make(),
            name="My server!",
            include=["a*", "look"],
            exclude=["look"],
        )
        async with connection:
            assert connection.tools == {"add": "My_server.add"}

    @pytest.mark.req("mcp.client.tools")
    async def test_what_the_user_says_of_a_tool_is_stronger_than_hints(self) -> None:
        registry = create_registry()
        more: dict[str, dict[str, Any]] = {
            "words": {"side_effects": "read", "cost": 2.0},
            "add": {"timeout": 7.0},
        }
        connection = await add_mcp_server(
            registry, make(), name="s", overrides=more, options=MCPOptions()
        )
        async with connection:
            assert registry.resolve("words").tool.side_effects == "read"
            assert registry.resolve("words").tool.cost == 2.0
            assert registry.resolve("add").tool.timeout == 7.0
            assert registry.resolve("slow").tool.timeout is None

    @pytest.mark.req("mcp.client.errors")
    async def test_what_cannot_be_meant_is_refused(self) -> None:
        registry = create_registry()
        cases: tuple[tuple[Any, dict[str, Any]], ...] = (
            (None, {}),
            (["python"], {}),
            (make(), {"token": "t"}),
            ("ftp://x", {}),
            ("http://x", {"name": "!"}),
            ("http://x", {"prefix": "a b"}),
            ("http://x", {"include": "add"}),
            ("http://x", {"timeout": -1}),
        )
        for wrong, settings in cases:
            with pytest.raises((TypeError, ValueError)):
                await add_mcp_server(registry, wrong, **{"name": "s", **settings})
        for make_wrong in (
            lambda: HttpServer("http://x", token="t", auth=object()),
            lambda: SseServer("http://x", token=7),  # type: ignore[arg-type]
            lambda: StdioServer("python", "server.py"),
            lambda: MCPOptions(client={"mode": "legacy"}),
            lambda: MCPOptions(close_timeout=float("inf")),
            lambda: MCPOptions(max_message_bytes=0),
        ):
            with pytest.raises((TypeError, ValueError)):
                make_wrong()


class TestHints:
    @pytest.mark.req("mcp.client.hints")
    @pytest.mark.parametrize(
        ("hints", "trusted", "wary"),
        [
            (None, ("unknown", False), ("unknown", False)),
            ({}, ("unknown", False), ("unknown", False)),
            ({"read_only": True}, ("read", True), ("unknown", False)),
            ({"destructive": True}, ("destructive", False), ("destructive", False)),
            (
                {"destructive": True, "idempotent": True},
                ("destructive", True),
                ("destructive", False),
            ),
            (
                {"read_only": False, "destructive": False},
                ("write", False),
                ("unknown", False),
            ),
            ({"idempotent": True}, ("unknown", True), ("unknown", False)),
        ],
    )
    def test_hints_say_what_a_tool_does(
        self, hints: Any, trusted: tuple[str, bool], wary: tuple[str, bool]
    ) -> None:
        made = None
        if hints is not None:
            names = ("read_only", "destructive", "idempotent")
            made = SimpleNamespace(
                **{f"{name}_hint": hints.get(name) for name in names}
            )
        assert side_effects_of(made, trusted=True) == trusted
        assert side_effects_of(made, trusted=False) == wary

    @pytest.mark.req("mcp.client.hints")
    async def test_the_layers_obey_them(self) -> None:
        registry = create_registry()
        connection = await add_mcp_server(registry, make(), name="s")
        counted = 0
        original = connection.client.call_tool

        async def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal counted
            counted += 1
            return await original(*args, **kwargs)

        connection.client.call_tool = counting
        guard = SideEffectGuard()
        async with (
            connection,
            ToolProcessor(registry, enable_caching=True, guards=[guard]) as run,
        ):
            [first] = await run.process([call("add", a=1, b=2)])
            [second] = await run.process([call("add", a=1, b=2)])
            assert first.result == second.result == {"result": 3}
            assert second.cached
            [blocked] = await run.process([call("wipe")])
            assert isinstance(blocked.exception, ToolBlockedError)
            assert counted == 1


class TestResults:
    @pytest.mark.req("mcp.client.results")
    async def test_pictures_and_sounds_come_as_they_are(self) -> None:
        registry = create_registry()
        async with await add_mcp_server(registry, make(), name="s") as connection:
            assert await connection.call_tool("look") == {
                "content": [
                    {"type": "text", "text": "a pixel"},
                    {"type": "image", "data": PIXEL, "mimeType": "image/png"},
                    {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
                ]
            }
            assert await connection.call_tool("words") == {"result": ["one", "two"]}

    @pytest.mark.req("mcp.client.results")
    @pytest.mark.parametrize(
        ("wire", "value"),
        [
            ({"content": []}, ""),
            ({"content": [{"type": "text", "text": "{}"}]}, "{}"),
            (
                {
                    "content": [
                        {"type": "text", "text": "a", "annotations": {"priority": 1}}
                    ]
                },
                {
                    "content": [
                        {"type": "text", "text": "a", "annotations": {"priority": 1.0}}
                    ]
                },
            ),
            (
                {
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "text", "text": "b"},
                    ]
                },
                {
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "text", "text": "b"},
                    ]
                },
            ),
            (
                {
                    "content": [{"type": "text", "text": "3"}],
                    "structuredContent": {"result": 3},
                },
                {"result": 3},
            ),
            (
                {
                    "content": [{"type": "text", "text": "1"}],
                    "structuredContent": {"result": True},
                },
                {
                    "content": [{"type": "text", "text": "1"}],
                    "structuredContent": {"result": True},
                },
            ),
            (
                {
                    "content": [{"type": "text", "text": "3 rows"}],
                    "structuredContent": {"n": 3},
                },
                {
                    "content": [{"type": "text", "text": "3 rows"}],
                    "structuredContent": {"n": 3},
                },
            ),
            (
                {"content": [{"type": "resource_link", "uri": "x://y", "name": "y"}]},
                {"content": [{"type": "resource_link", "uri": "x://y", "name": "y"}]},
            ),
            (
                {
                    "content": [
                        {"type": "resource", "resource": {"uri": "x://y", "text": "t"}}
                    ]
                },
                {
                    "content": [
                        {"type": "resource", "resource": {"uri": "x://y", "text": "t"}}
                    ]
                },
            ),
        ],
    )
    def test_nothing_of_an_answer_is_lost(self, wire: Any, value: Any) -> None:
        from mcp.types import CallToolResult

        assert value_of(CallToolResult.model_validate(wire)) == value

    @pytest.mark.req("mcp.client.results")
    @given(
        blocks=st.lists(
            st.one_of(
                st.builds(lambda text: {"type": "text", "text": text}, st.text()),
                st.builds(
                    lambda kind, n: {"type": f"new-{kind}", "n": n},
                    st.text(max_size=5),
                    st.integers(),
                ),
                st.just({"no type": 1}),
            ),
            max_size=4,
        ),
        data=st.one_of(
            st.none(),
            st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        ),
    )
    def test_whatever_comes_is_kept(self, blocks: list[Any], data: Any) -> None:
        from mcp.types import CallToolResult

        wire: dict[str, Any] = {"content": [dict(block) for block in blocks]}
        if data is not None:
            wire["structuredContent"] = data
        mend_result(wire, {})
        value = value_of(CallToolResult.model_validate(wire))
        if isinstance(value, dict) and "content" in value and value != data:
            assert value["content"] == blocks
            assert value.get("structuredContent") == data
        elif isinstance(value, str) and data is None:
            assert [value] == [block["text"] for block in blocks] or (
                value,
                blocks,
            ) == ("", [])
        else:
            assert value == data
            for block in blocks:
                assert json.loads(block["text"]) == data

    @pytest.mark.req("mcp.client.errors", "errors.pickle")
    def test_the_errors_survive_pickling(self) -> None:
        for error in (
            MCPToolError(
                "s", "t", "words", [{"type": "text", "text": "words"}], {"a": 1}
            ),
            MCPResultError("s", "t", "why", "words"),
            MCPRequestError("s", "no"),
        ):
            twin = pickle.loads(pickle.dumps(error))
            assert str(twin) == str(error)
            assert twin.details == error.details
        assert MCPResultError("s").code is ErrorCode.TOOL_RESULT_ERROR


class TestInProcess:
    @pytest.mark.req("mcp.client.tools")
    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    async def test_a_server_object_runs_here(self, mode: str) -> None:
        registry = create_registry()
        connection = await add_mcp_server(
            registry, make(), name="s", options=MCPOptions(mode=mode)
        )
        async with connection, ToolProcessor(registry) as run:
            [result] = await run.process([call("add", a=1, b=2)])
            assert result.result == {"result": 3}
            [failed] = await run.process([call("wipe")])
            assert isinstance(failed.exception, MCPToolError)
            assert "no such disk" in str(failed.error)
            [wrong] = await run.process([call("add", a="x", b=2)])
            assert wrong.error_code is ErrorCode.TOOL_VALIDATION_ERROR
            functions = to_openai(registry)
            assert {item["function"]["name"] for item in functions} >= {"s__add"}
            data = registry.resolve("add").metadata
            assert data is not None
            assert data.result_schema is not None
            assert (data.source, data.source_name) == ("mcp", "s:add")

    @pytest.mark.req("mcp.client.changes")
    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    async def test_it_tells_of_its_changes(self, mode: str) -> None:
        registry = create_registry()
        connection = await add_mcp_server(
            registry, make(), name="s", options=MCPOptions(mode=mode)
        )
        async with connection:
            if mode == "auto":  # the subscription is made after the handshake
                await asyncio.sleep(0.05)
            await connection.call_tool("grow", {"name": "later"})
            async with asyncio.timeout(5):
                while "later" not in connection.tools:
                    await asyncio.sleep(0.01)
                    if mode == "legacy":
                        await connection.refresh()
            assert await connection.call_tool("later", {"x": 4}) == {"result": 8}

    @pytest.mark.req("mcp.client.context")
    async def test_the_context_reaches_it(self) -> None:
        async with await add_mcp_server(create_registry(), make(), name="s") as made:
            with execution_scope(CONTEXT):
                said = await made.call_tool("meta")
        assert said["executionkit/X-Request-ID"] == "r-1"

    @pytest.mark.req("mcp.client.cancellation")
    async def test_a_timeout_stops_what_runs_there(self, tmp_path: Path) -> None:
        mark = tmp_path / "stopped"
        registry = create_registry()
        connection = await add_mcp_server(registry, make(), name="s")
        async with connection, ToolProcessor(registry) as run:
            [result] = await run.process([call("forever", mark=str(mark))], timeout=0.1)
            assert result.error_code is ErrorCode.TOOL_TIMEOUT
            async with asyncio.timeout(5):
                while not mark.exists():
                    await asyncio.sleep(0.01)

    @pytest.mark.req("MC-18")
    async def test_it_belongs_to_its_event_loop(self) -> None:
        async with await add_mcp_server(create_registry(), make(), name="s") as made:

            def elsewhere() -> None:
                asyncio.run(made.call_tool("add", {"a": 1, "b": 2}))

            with pytest.raises(MCPConnectionError, match="another event loop"):
                await asyncio.to_thread(elsewhere)

    @pytest.mark.req("mcp.client.tools")
    async def test_unknown_names_are_told_with_those_there_are(self) -> None:
        async with await add_mcp_server(create_registry(), make(), name="s") as made:
            with pytest.raises(MCPRequestError, match="there are: add"):
                await made.call_tool("nope")


@pytest.mark.req("mcp.client.extra")
def test_without_the_sdk_it_says_what_to_install() -> None:
    code = """
import asyncio, sys
sys.modules["mcp"] = None
from executionkit.errors import MissingExtraError
from executionkit.mcp.client import add_mcp_server
from executionkit.tools.registry import create_registry
try:
    asyncio.run(add_mcp_server(create_registry(), "http://x.test", name="x"))
except MissingExtraError as exc:
    print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert "pip install 'executionkit[mcp]'" in done.stdout
