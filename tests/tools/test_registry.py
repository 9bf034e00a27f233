"""Names: how tools are registered under them, and what a name in a call means."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import threading
import warnings
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.errors import ToolNotFoundError, ToolRegistrationError
from executionkit.tools import registry as registry_module
from executionkit.tools._registry.build import build_record
from executionkit.tools.registry import (
    AmbiguousToolError,
    ToolInfo,
    ToolRecord,
    ToolRegistry,
    create_registry,
)
from executionkit.types import Tool


class FetchUser:
    """Fetch a user."""

    async def execute(self, user_id: str) -> dict[str, Any]:
        return {"user_id": user_id}


class Other:
    async def execute(self) -> int:
        return 1


def plain(a: int) -> int:
    """A function.

    Args:
        a: A number.
    """
    return a


def named(name: str) -> Tool:
    return Tool(name, "", {"type": "object"}, plain)


# --- the document's examples ---


@pytest.mark.req("registry.dotted-names")
async def test_a_dotted_name_is_namespace_and_name() -> None:
    registry = create_registry()
    record = await registry.register_tool(FetchUser, name="web.fetch_user")
    assert (record.namespace, record.name) == ("web", "fetch_user")
    same = create_registry()
    await same.register_tool(FetchUser, name="fetch_user", namespace="web")
    for each in (registry, same):
        assert each.resolve("web.fetch_user").source is FetchUser
        assert await each.list_tools() == [ToolInfo("web", "fetch_user")]


@pytest.mark.req("registry.dotted-names")
async def test_a_given_namespace_wins_and_dots_stay_in_the_name() -> None:
    registry = create_registry()
    await registry.register_tool(FetchUser, name="a.b", namespace="custom")
    assert await registry.list_tools() == [ToolInfo("custom", "a.b")]
    record = registry.resolve("custom.a.b")
    assert registry.resolve("a.b", "custom") is record
    assert registry.resolve("custom.a.b", "custom") is record
    with pytest.raises(ToolNotFoundError):
        registry.resolve("a.b")


@pytest.mark.req("registry.scoped")
async def test_a_registry_is_seen_nowhere_else() -> None:
    a, b = create_registry(), create_registry()
    await a.register_tool(FetchUser, name="core.basic")
    await b.register_tool(FetchUser, name="core.basic")
    await b.register_tool(Other, name="premium.advanced")
    assert [item.name for item in await a.list_tools()] == ["basic"]
    assert [item.name for item in await b.list_tools()] == ["basic", "advanced"]
    assert [str(item) for item in await b.list_tools("premium")] == ["premium:advanced"]
    assert await b.list_namespaces() == ["core", "premium"]
    with pytest.raises(ToolNotFoundError):
        a.resolve("premium.advanced")


# --- what a name means ---


@pytest.mark.req("registry.resolution", "T-30")
def test_a_call_that_names_a_namespace_stays_in_it() -> None:
    registry = create_registry()
    registry.add(plain, "only_b", "b")
    registry.add(plain, "c", "a")
    for name, namespace in (
        *(("only_b", "a"), ("a.only_b", "default"), ("b.only_b", "a")),
        *(("b__only_b", "a"), ("default.only_b", "default")),
    ):
        with pytest.raises(ToolNotFoundError):
            registry.resolve(name, namespace)


@pytest.mark.req("registry.resolution")
def test_a_bare_name_means_default_then_the_only_namespace() -> None:
    registry = create_registry()
    in_b = registry.add(plain, "x", "b")
    assert registry.resolve("x") is in_b
    in_default = registry.add(plain, "x")
    assert registry.resolve("x") is in_default
    assert registry.resolve("default.x") is in_default
    assert registry.resolve("b.x") is in_b


@pytest.mark.req("registry.resolution", "T-30")
def test_an_ambiguous_bare_name_is_an_error_that_lists_the_candidates() -> None:
    registry = create_registry()
    for namespace in ("b", "a"):
        registry.add(plain, "x", namespace)
    with pytest.raises(AmbiguousToolError) as caught:
        registry.resolve("x")
    error = caught.value
    assert error.details["candidates"] == ["b.x", "a.x"]
    assert "b.x, a.x" in str(error)
    assert not error.retryable
    assert pickle.loads(pickle.dumps(error)).details == error.details
    registry.remove("b.x")
    assert registry.resolve("x").full_name == "a.x"


@pytest.mark.req("registry.not-found", "TC-15")
@pytest.mark.parametrize("asked", ["get_weathr", "get_weathr ", "et_weather"])
def test_an_unknown_name_lists_and_suggests_what_there_is(asked: str) -> None:
    registry = create_registry(named("get_weather"), named("send_mail"))
    with pytest.raises(ToolNotFoundError) as caught:
        registry.resolve(asked)
    error = caught.value
    assert error.details["suggestions"] == ["get_weather"]
    assert error.details["available_tools"] == ["get_weather", "send_mail"]
    assert "get_weather" in str(error)
    assert "send_mail" in str(error)
    assert pickle.loads(pickle.dumps(error)).args == error.args


@pytest.mark.req("registry.not-found")
@pytest.mark.parametrize(
    ("name", "namespace", "suggested"),
    [
        ("web.fetch_usr", "default", "web.fetch_user"),
        ("wbe.fetch_user", "default", "web.fetch_user"),
        ("fetch_usr", "default", "web.fetch_user"),
        ("fetch_usr", "web", "web.fetch_user"),
    ],
)
def test_what_is_suggested_can_be_called(
    name: str, namespace: str, suggested: str
) -> None:
    registry = create_registry()
    registry.add(FetchUser, "web.fetch_user")
    registry.add(Other, "db.write")
    with pytest.raises(ToolNotFoundError) as caught:
        registry.resolve(name, namespace)
    assert caught.value.details["suggestions"] == [suggested]
    assert registry.resolve(suggested).source is FetchUser


@pytest.mark.req("registry.not-found")
def test_suggestions_among_many_are_found_with_bounded_work() -> None:
    registry = ToolRegistry()
    template = registry.add(named("template"))
    for number in range(20_000):  # past the checks: only the names matter here
        tool = Tool(
            f"tool_{number:05}_read",
            "",
            template.tool.parameters,
            plain,
            namespace=f"ns{number % 2000}",
        )
        record = ToolRecord(tool, kind=template.kind, validator=template.validator)
        registry._table.put(record, hide=False)
    compared: list[int] = []
    near = registry._table._index.near

    def counted(*args: Any) -> list[str]:
        found = near(*args)
        compared.append(len(found))
        return found

    index: Any = type("Index", (), {"near": staticmethod(counted)})()
    registry._table._index = index
    for asked, suggested in (
        ("tool_01234_raed", "ns1234.tool_01234_read"),
        ("ool_01234_read", "ns1234.tool_01234_read"),
        ("ns7.tool_02007_rea", "ns7.tool_02007_read"),
    ):
        with pytest.raises(ToolNotFoundError) as caught:
            registry.resolve(asked)
        assert suggested in caught.value.details["suggestions"]
        assert len(caught.value.details["available_tools"]) <= 50
        assert len(caught.value.details["available_namespaces"]) <= 50
        assert len(str(caught.value)) < 2000
    with pytest.raises(ToolNotFoundError):
        registry.resolve("x" * 100_000)
    assert max(compared) < 200


@pytest.mark.req("registry.not-found")
def test_invented_names_leave_nothing_behind() -> None:
    registry = create_registry(named("a"))
    before = registry.version
    for number in range(50):
        for invented in (f"x{number}", f"n{number}.x", f"x___{number:013x}"):
            with pytest.raises(ToolNotFoundError):
                registry.resolve(invented)
    table = registry._table
    assert registry.version == before
    assert [len(item) for item in (table.records, table.homes, table.spaces)] == [1] * 3
    assert not table._wires[1]


# --- changing it ---


@pytest.mark.req("registry.awaitable")
async def test_registering_is_done_with_and_without_await() -> None:
    registry = create_registry()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = registry.register_tool(FetchUser, name="a")
        _ = registry.unregister_tool("a")
        _ = registry.register_tool(FetchUser, name="b")
        gc.collect()
    assert [record.name for record in registry.records()] == ["b"]
    answers = await asyncio.gather(
        registry.register_tool(FetchUser, name="c"),
        asyncio.create_task(registry.register_tool(FetchUser, name="d")),
    )
    assert [record.name for record in answers] == ["c", "d"]
    assert await registry.unregister_tool("c") is True
    assert await registry.unregister_tool("c") is False
    assert await registry is registry


@pytest.mark.req("registry.awaitable")
def test_registering_can_be_the_only_thing_that_a_loop_runs() -> None:
    registry = create_registry()
    record = asyncio.run(registry.register_tool(FetchUser, name="c"))
    assert registry.resolve("c") is record


@pytest.mark.req("registry.duplicates", "T-30")
def test_a_taken_name_is_refused_unless_it_is_to_be_replaced() -> None:
    registry = create_registry()
    registry.add(FetchUser, "x")
    with pytest.raises(ToolRegistrationError, match="replace=True"):
        registry.add(Other, "x")
    assert registry.resolve("x").source is FetchUser
    registry.add(Other, "x", replace=True)
    assert registry.resolve("x").source is Other
    assert len(registry.records()) == 1


@pytest.mark.req("registry.duplicates")
def test_a_replaced_tool_keeps_its_place_and_is_never_missing() -> None:
    registry = create_registry()
    for name in ("a", "b", "c"):
        registry.add(FetchUser, name)
    seen: list[object] = []
    records = registry._table.records

    class Watched(dict[str, ToolRecord]):
        def __setitem__(self, key: str, value: ToolRecord) -> None:
            seen.append(self.get("b"))
            super().__setitem__(key, value)

    registry._table.records = Watched(records)
    registry.add(Other, "b", replace=True)
    assert None not in seen
    assert [record.name for record in registry.records()] == ["a", "b", "c"]


@pytest.mark.req("registry.duplicates")
def test_one_full_name_is_one_tool_however_it_is_split() -> None:
    registry = create_registry()
    registry.add(FetchUser, "search", "mcp.notion")
    with pytest.raises(ToolRegistrationError):
        registry.add(Other, "mcp.notion.search")
    registry.add(Other, "mcp.notion.search", replace=True)
    assert [(r.namespace, r.name) for r in registry.records()] == [
        ("mcp", "notion.search")
    ]
    assert registry.records("mcp.notion") == ()
    assert registry.resolve("mcp.notion.search").source is Other


@pytest.mark.req("registry.duplicates")
def test_the_same_tool_in_the_same_words_may_be_registered_again() -> None:
    registry = create_registry()
    record = registry.add(FetchUser, "x", timeout=3)
    version = registry.version
    assert registry.add(FetchUser, "x", timeout=3) is record
    assert registry.version == version
    with pytest.raises(ToolRegistrationError, match="already"):
        registry.add(FetchUser, "x", timeout=4)


@pytest.mark.req("registry.duplicates")
async def test_a_replaced_tool_keeps_the_date_of_its_first(fake_clock: Any) -> None:
    registry = create_registry()
    registry.add(FetchUser, "x")
    await fake_clock.advance(10)
    registry.add(FetchUser, "x", replace=True, timeout=1)
    data = await registry.get_metadata("x")
    assert data is not None
    assert data.created_at is not None
    assert data.updated_at is not None
    assert (data.updated_at - data.created_at).total_seconds() == 10


@pytest.mark.req("registry.names")
@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        *(("a b", "default"), ("", "a"), (".a", "default"), ("a.", "default")),
        *(("a..b", "default"), ("a\x00", "default"), ("x" * 300, "default")),
        *(("a", ""), ("a", "b c"), ("a", "b."), ("default.a.b", "default")),
        *(("<lambda>", "default"), (1, "default"), ("a", None)),
    ],
)
def test_names_that_no_call_could_say_are_refused(name: Any, namespace: Any) -> None:
    with pytest.raises(ToolRegistrationError):
        create_registry().add(named("ok"), name or ".", namespace)


@pytest.mark.req("registry.names")
def test_what_has_no_name_needs_one() -> None:
    registry = create_registry()
    with pytest.raises(ToolRegistrationError, match="name="):
        registry.add(lambda a: a)
    assert registry.add(lambda a: a, "f").name == "f"


@pytest.mark.req("registry.version")
def test_the_version_grows_with_each_change_and_no_look() -> None:
    registry = create_registry()
    seen = [registry.version]
    registry.add(plain, "a")
    seen.append(registry.version)
    registry.add(plain, "a", replace=True)
    seen.append(registry.version)
    registry.remove("a")
    seen.append(registry.version)
    assert seen == sorted(set(seen))
    registry.find("a")
    registry.remove("a")
    assert registry.version == seen[-1]


@pytest.mark.req("registry.version")
async def test_nothing_is_left_of_a_tool_that_was_removed() -> None:
    registry = create_registry()
    for round_ in range(3):
        registry.add(plain, f"space{round_}.name{round_}")
        registry.remove(f"space{round_}.name{round_}")
    table = registry._table
    assert [len(item) for item in (table.records, table.homes, table.spaces)] == [0] * 3
    assert await registry.list_namespaces() == []
    assert registry._asked == {}


@pytest.mark.req("registry.queries")
async def test_questions_are_answered_by_exact_names() -> None:
    registry = create_registry()
    registry.add(FetchUser, "web.fetch_user", version="2.0.0")
    assert await registry.get_tool("fetch_user") is None
    assert await registry.get_tool("fetch_user", "web") is FetchUser
    assert await registry.get_tool("web.fetch_user") is FetchUser
    assert await registry.get_tool_strict("fetch_user") is FetchUser
    with pytest.raises(ToolNotFoundError):
        await registry.get_tool_strict("nothing")
    data = await registry.get_metadata("fetch_user", "web")
    assert data is not None
    assert data.version == "2.0.0"
    assert await registry.list_metadata("web") == [data]
    assert await registry.get_metadata("fetch_user") is None
    assert "web.fetch_user" in registry
    assert bool(registry)  # an empty one too


@pytest.mark.req("registry.threads")
def test_of_two_threads_one_gets_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = create_registry()
    both_inside = threading.Barrier(2)
    build = build_record
    refused: list[int] = []

    def slow_build(*args: Any) -> ToolRecord:
        # Where nothing keeps the second one out, both have seen the name free by now.
        with contextlib.suppress(threading.BrokenBarrierError):
            both_inside.wait(0.2)
        return build(*args)

    def register(number: int) -> None:
        try:
            registry.add(lambda a: a, "x")
        except ToolRegistrationError:
            refused.append(number)

    monkeypatch.setattr(registry_module, "build_record", slow_build)
    threads = [threading.Thread(target=register, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(refused) == 1
    assert len(registry.records()) == 1


# --- a model of it ---

parts = st.sampled_from(["a", "b", "c"])
spaces = st.sampled_from(["default", "a", "b", "a.b"])
names = st.lists(parts, min_size=1, max_size=3).map(".".join)
steps = st.lists(
    st.tuples(st.sampled_from(["add", "replace", "remove"]), names, spaces), max_size=12
)


@pytest.mark.req("registry.resolution")
@given(steps=steps, asked=names, space=spaces)
@settings(max_examples=200, deadline=None)
def test_resolution_is_as_the_rules_say(
    steps: list[tuple[str, str, str]], asked: str, space: str
) -> None:
    registry = create_registry()
    model: dict[str, tuple[str, str]] = {}
    for what, name, namespace in steps:
        key = (namespace, name)
        if namespace == "default" and "." in name:
            key = (name.split(".")[0], name.split(".", 1)[1])
        full = key[1] if key[0] == "default" else ".".join(key)
        if what == "remove":
            assert registry.remove(name, namespace) == (full in model)
            model.pop(full, None)
        elif full in model and what == "add":
            with pytest.raises(ToolRegistrationError):
                registry.add(named("t"), name, namespace)
        else:
            registry.add(named("t"), name, namespace, replace=what == "replace")
            model[full] = key
    assert {r.full_name for r in registry.records()} == set(model)
    homes = [full for full, key in model.items() if key[1] == asked]
    wanted = asked if space == "default" else f"{space}.{asked}"
    if wanted in model:
        assert registry.resolve(asked, space).full_name == wanted
    elif asked.startswith(f"{space}.") and asked in model:
        assert registry.resolve(asked, space).full_name == asked
    elif space == "default" and "." not in asked and len(homes) == 1:
        assert registry.resolve(asked).full_name == homes[0]
    elif space == "default" and "." not in asked and homes:
        with pytest.raises(AmbiguousToolError):
            registry.resolve(asked)
    else:
        with pytest.raises(ToolNotFoundError):
            registry.resolve(asked, space)
