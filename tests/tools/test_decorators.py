"""`@tool`, the registry of the process, and what they leave on what is decorated."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from executionkit.errors import ToolRegistrationError
from executionkit.tools.decorators import (
    ToolRegistryProvider,
    ensure_registrations,
    get_default_registry,
    initialize,
    register_fn_tool,
    register_langchain_tool,
    register_tool,
    reset_registry,
    tool,
)
from executionkit.tools.registry import Kind, ToolRegistry, create_registry


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[ToolRegistry]:
    """A fresh registry of the process; the one that was there comes back."""
    before = get_default_registry()
    reset_registry()
    yield get_default_registry()
    _ = ToolRegistryProvider.set_registry(before)


@pytest.mark.req("registry.scoped", "T-30")
async def test_decorated_classes_keep_their_names_in_any_registry() -> None:
    @tool(name="basic_search")
    class BasicSearch:
        async def execute(self, query: str) -> dict[str, Any]:
            return {"results": [f"Basic result for: {query}"]}

    @tool(name="premium_search")
    class PremiumSearch:
        async def execute(self, query: str, depth: int = 10) -> dict[str, Any]:
            return {"results": [f"Premium result for: {query}"], "depth": depth}

    free, premium = create_registry(), create_registry()
    await free.register_tool(BasicSearch)
    await premium.register_tool(BasicSearch)
    await premium.register_tool(PremiumSearch)
    assert [record.name for record in free.records()] == ["basic_search"]
    record = premium.resolve("premium_search")
    assert await record.tool.execute(query="x", depth=2) == {
        "results": ["Premium result for: x"],
        "depth": 2,
    }


@pytest.mark.req("tools.decorator", "T-30")
async def test_decorated_tools_are_there_at_once() -> None:
    @tool(name="web.fetch_user", timeout=3, tags=["a"])
    class FetchUserTool:
        """Fetches."""

        async def execute(self, user_id: str) -> dict[str, Any]:
            return {"user_id": user_id}

    record = get_default_registry().resolve("web.fetch_user")
    assert record.source is FetchUserTool
    assert isinstance(FetchUserTool, type)
    assert await FetchUserTool().execute("1") == {"user_id": "1"}
    assert record.tool.timeout == 3
    elsewhere = create_registry(FetchUserTool).resolve("web.fetch_user")
    assert elsewhere.tool.timeout == 3
    assert elsewhere.tool.tags == {"a"}
    assert elsewhere.tool.description == "Fetches."


@pytest.mark.req("tools.decorator", "T-30")
async def test_functions_of_all_kinds_are_decorated_with_and_without_words() -> None:
    @tool
    def plain(a: int) -> int:
        return a

    @tool()
    async def later(a: int) -> int:
        return a

    @tool(description="Counts.", side_effects="none")
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    @tool
    class Bare:
        async def execute(self) -> int:
            return 1

    assert plain(2) == 2
    assert await later(3) == 3
    assert list(count(2)) == [0, 1]
    assert isinstance(Bare, type)
    kinds = {record.name: record.kind for record in get_default_registry().records()}
    assert kinds == {
        "plain": Kind.SYNC,
        "later": Kind.ASYNC,
        "count": Kind.SYNC_STREAM,
        "Bare": Kind.ASYNC,
    }
    made = create_registry(count).resolve("count")
    assert (made.tool.description, made.tool.side_effects) == ("Counts.", "none")


@pytest.mark.req("tools.decorator")
async def test_an_heir_of_a_decorated_class_has_its_own_name() -> None:
    @tool(name="parent")
    class Parent:
        async def execute(self) -> int:
            return 1

    class Heir(Parent):
        pass

    registry = create_registry(Heir, Parent)
    assert [record.name for record in registry.records()] == ["Heir", "parent"]
    assert create_registry(Parent()).records()[0].name == "parent"
    assert registry.add(Parent, "web.other").full_name == "web.other"


@pytest.mark.req("tools.decorator")
def test_a_module_that_is_loaded_again_replaces_its_tools() -> None:
    source = (
        "from executionkit.tools.decorators import tool\n"
        "@tool\n"
        "def again(a: int) -> int:\n"
        "    return a\n"
    )
    for _ in range(2):
        module = types.ModuleType("loaded_again")
        sys.modules["loaded_again"] = module
        try:
            exec(compile(source, "loaded_again.py", "exec"), vars(module))
        finally:
            del sys.modules["loaded_again"]
        record = get_default_registry().resolve("again")
        assert record.source is module.again
    assert len(get_default_registry().records()) == 1


@pytest.mark.req("tools.decorator", "registry.duplicates")
def test_two_tools_of_one_name_are_refused() -> None:
    @tool(name="same")
    def first() -> int:
        return 1

    with pytest.raises(ToolRegistrationError, match="already"):

        @tool(name="same")
        def second() -> int:
            return 2

    assert get_default_registry().resolve("same").source is first

    @tool(name="same", replace=True)
    def third() -> int:
        return 3

    assert get_default_registry().resolve("same").source is third


@pytest.mark.req("tools.decorator", "registry.validation")
def test_what_cannot_be_called_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(ToolRegistrationError, match="execute"):

        @tool
        class Nothing:
            pass

    with pytest.raises(ToolRegistrationError, match="timeout"):

        @tool(timeuot=3)
        def misspelt() -> None: ...

    assert get_default_registry().records() == ()


@pytest.mark.req("tools.decorator")
async def test_the_older_decorator_takes_its_older_words() -> None:
    @register_tool(
        name="late",
        namespace="web",
        defer_loading=True,
        search_keywords=["slow"],
        allowed_callers=["planner"],
        version="3.0.0",
    )
    class Late:
        async def execute(self) -> int:
            return 1

    @register_tool
    def bare() -> int:
        return 1

    registry = get_default_registry()
    data = await registry.get_metadata("late", "web")
    assert data is not None
    assert data.defer_loading
    assert data.search_keywords == ("slow",)
    assert data.allowed_callers == ("planner",)
    assert data.version == "3.0.0"
    assert [item.name for item in await registry.list_tools()] == ["bare"]


@pytest.mark.req("tools.default-registry", "registry.awaitable")
async def test_functions_are_registered_with_and_without_await() -> None:
    def double(a: int) -> int:
        return 2 * a

    _ = register_fn_tool(double)
    record = await register_fn_tool(
        double, name="math.twice", description="Twice.", idempotent=True
    )
    assert get_default_registry().resolve("double").source is double
    assert (record.full_name, record.tool.description) == ("math.twice", "Twice.")
    assert record.tool.idempotent
    own = create_registry()
    _ = register_fn_tool(double, namespace="math", registry=own)
    assert own.resolve("math.double").source is double
    assert len(get_default_registry().records()) == 2


@pytest.mark.req("tools.forms")
async def test_a_chain_tool_is_registered_by_its_own_function() -> None:
    class Chained:
        name = "chained"
        description = "Words."
        args_schema = None

        async def ainvoke(self, data: Any) -> Any:
            return data

    own = create_registry()
    record = await register_langchain_tool(Chained(), registry=own, name="web.c")
    assert own.resolve("web.c") is record
    assert await record.tool.execute(a=1) == {"a": 1}
    _ = register_langchain_tool(Chained())
    assert "chained" in get_default_registry()


@pytest.mark.req("tools.default-registry")
async def test_the_registry_of_the_process_needs_no_preparation() -> None:
    registry = get_default_registry()
    assert await get_default_registry() is registry
    assert await initialize() is registry
    assert await ToolRegistryProvider.get_registry() is registry
    assert ToolRegistryProvider.get_registry() is registry
    registry.add(lambda: 1, "x")
    assert await ensure_registrations() == 1


@pytest.mark.req("tools.default-registry")
async def test_the_registry_of_the_process_can_be_replaced_and_reset() -> None:
    other = create_registry()
    await ToolRegistryProvider.set_registry(other)
    assert get_default_registry() is other
    reset_registry()
    assert get_default_registry() is not other
    _ = ToolRegistryProvider.set_registry(None)
    before = get_default_registry()
    await ToolRegistryProvider.reset()
    assert get_default_registry() is not before
    with pytest.raises(TypeError, match="create_registry"):
        _ = ToolRegistryProvider.set_registry("x")  # type: ignore[arg-type]
