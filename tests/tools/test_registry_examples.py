"""The examples of the document about namespaces and scoped registries, run as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from executionkit.tools.decorators import (
    ToolRegistryProvider,
    get_default_registry,
    reset_registry,
    tool,
)
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    before = get_default_registry()
    reset_registry()
    yield
    ToolRegistryProvider.set_registry(before).close()


class FetchUser:
    async def execute(self, user_id: str) -> dict[str, Any]:
        return {"user_id": user_id}


class BasicTool:
    async def execute(self) -> str:
        return "basic"


class PremiumTool:
    async def execute(self) -> str:
        return "premium"


@pytest.mark.req("registry.dotted-names")
async def test_a_tool_is_called_by_its_dotted_name() -> None:
    registry = create_registry()
    await registry.register_tool(FetchUser, name="web.fetch_user")
    async with ToolProcessor(registry=registry) as processor:
        for name in ("web.fetch_user", "web__fetch_user", "fetch_user"):
            result = await processor.process(
                [{"tool": name, "arguments": {"user_id": "123"}}]
            )
            assert result[0].result == {"user_id": "123"}


@pytest.mark.req("registry.scoped")
async def test_tenants_have_tools_of_their_own() -> None:
    tenant_a_registry = create_registry()
    tenant_b_registry = create_registry()
    await tenant_a_registry.register_tool(BasicTool, name="core.basic")
    await tenant_b_registry.register_tool(BasicTool, name="core.basic")
    await tenant_b_registry.register_tool(PremiumTool, name="premium.advanced")
    processor_a = ToolProcessor(registry=tenant_a_registry)
    processor_b = ToolProcessor(registry=tenant_b_registry)
    async with processor_a, processor_b:
        assert await processor_a.list_tools() == ["basic"]
        assert await processor_b.list_tools() == ["basic", "advanced"]
        call = {"tool": "premium.advanced", "arguments": {}}
        assert not (await processor_a.process([call]))[0].is_success
        assert (await processor_b.process([call]))[0].result == "premium"


@pytest.mark.req("registry.scoped", "T-30")
async def test_decorated_tools_are_registered_by_tier() -> None:
    @tool(name="basic_search")
    class BasicSearch:
        async def execute(self, query: str) -> dict[str, Any]:
            return {"results": [f"Basic result for: {query}"]}

    @tool(name="premium_search")
    class PremiumSearch:
        async def execute(self, query: str, depth: int = 10) -> dict[str, Any]:
            return {"results": [f"Premium result for: {query}"], "depth": depth}

    free_registry = create_registry()
    await free_registry.register_tool(BasicSearch)
    premium_registry = create_registry()
    await premium_registry.register_tool(BasicSearch)
    await premium_registry.register_tool(PremiumSearch)
    free_processor = ToolProcessor(registry=free_registry)
    premium_processor = ToolProcessor(registry=premium_registry)
    wanted = '<tool name="premium_search" args=\'{"query": "test", "depth": 20}\'/>'
    async with free_processor, premium_processor:
        free_result = await free_processor.process(
            '<tool name="basic_search" args=\'{"query": "test"}\'/>'
        )
        premium_result = await premium_processor.process(wanted)
        refused = await free_processor.process(wanted)
    assert free_result[0].result == {"results": ["Basic result for: test"]}
    assert premium_result[0].result["depth"] == 20
    assert refused[0].error is not None
    async with ToolProcessor() as processor:  # the decorated ones, without preparation
        assert await processor.list_tools() == ["basic_search", "premium_search"]


@pytest.mark.req("registry.awaitable")
async def test_a_recipe_registers_tools_without_await() -> None:
    def register_tools_for_tier(registry: ToolRegistry, tier: str) -> None:
        registry.add(BasicTool, "core.basic")
        if tier != "free":
            registry.add(PremiumTool, "premium.advanced")

    registry = create_registry()
    register_tools_for_tier(registry, "premium")
    async with ToolProcessor(registry=registry) as processor:
        assert await processor.list_tools() == ["basic", "advanced"]


@pytest.mark.req("registry.resolution")
async def test_the_result_of_an_ambiguous_call_lists_the_candidates() -> None:
    registry = create_registry()
    registry.add(BasicTool, "a.same")
    registry.add(PremiumTool, "b.same")
    async with ToolProcessor(registry=registry) as processor:
        result = (await processor.process([{"tool": "same", "arguments": {}}]))[0]
    assert result.error is not None
    assert "a.same" in result.error
    assert "b.same" in result.error
