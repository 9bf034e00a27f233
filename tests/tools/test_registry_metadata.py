"""Metadata: what is checked, what is enforced, what is kept; tools that wait hidden."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from executionkit.errors import ToolRegistrationError
from executionkit.tools.registry import ToolMetadata, create_registry


class Answer(TypedDict):
    text: str


async def search(query: str) -> Answer:
    """Search."""
    return {"text": query}


@pytest.mark.req("registry.metadata")
async def test_what_limits_a_tool_is_put_where_it_is_enforced() -> None:
    registry = create_registry()
    record = registry.add(
        search,
        metadata={
            "timeout": 99,
            "rate_limit": 30,
            "concurrency_limit": 4,
            "tags": {"web"},
            "version": "2.0.0",
            "requires_auth": True,
            "dependencies": ["net"],
            "team": "search",
        },
        timeout=2.5,
        side_effects="read",
        idempotent=True,
        cacheable=True,
        cost=1.5,
        max_retries=0,
    )
    tool = record.tool
    assert tool.timeout == 2.5
    assert tool.rate_limit == (30, 60.0)
    assert tool.max_concurrency == 4
    assert tool.tags == {"web"}
    assert tool.version == "2.0.0"
    assert (tool.side_effects, tool.idempotent, tool.cacheable) == ("read", True, True)
    assert (tool.cost, tool.max_retries) == (1.5, 0)
    data = await registry.get_metadata("search")
    assert isinstance(data, ToolMetadata)
    assert data is record.metadata
    assert (data.timeout, data.rate_limit, data.concurrency_limit) == (2.5, (30, 60), 4)
    assert data.requires_auth
    assert data.dependencies == ("net",)
    assert data.extra == {"team": "search"}
    assert data.argument_schema == tool.parameters
    assert data.is_async
    assert not data.is_mutating
    assert data.result_schema is not None
    assert set(data.result_schema["properties"]) == {"text"}
    assert (data.source, data.source_name) == ("function", f"{__name__}.search")


@pytest.mark.req("registry.metadata")
def test_a_timeout_that_nobody_chose_is_known_as_such() -> None:
    registry = create_registry()
    left_out = registry.add(search, "a").tool.timeout
    assert type(left_out) is not float
    assert left_out == 30
    assert registry.add(search, "b", timeout=None).tool.timeout is None
    assert type(registry.add(search, "c", timeout=30.0).tool.timeout) is float


@pytest.mark.req("registry.metadata")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": "3"}, "timeout"),
        ({"rate_limit": (0, 1.0)}, "rate_limit"),
        ({"rate_limit": "fast"}, "rate_limit"),
        ({"rate_limit": True}, "rate_limit"),
        ({"concurrency_limit": 0}, "max_concurrency"),
        ({"max_retries": -1}, "max_retries"),
        ({"side_effects": "some"}, "destructive"),
        ({"idempotent": "yes"}, "idempotent"),
        ({"cacheable": 1}, "cacheable"),
        ({"cost": -1}, "cost"),
        ({"cost": float("nan")}, "cost"),
        ({"tags": "web"}, "tags"),
        ({"version": 2}, "version"),
        ({"description": 2}, "description"),
        ({"name": "x"}, "reserved"),
        ({"namespace": "x"}, "reserved"),
        ({"execute": 1}, "reserved"),
        ({"timeuot": 1}, "`timeout`"),
        ({"side_effect": "read"}, "`side_effects`"),
        ({"max_concurency": 1}, "`max_concurrency`"),
        ({1: 2}, "str"),
        ([], "mapping"),
    ],
)
def test_metadata_that_cannot_be_meant_is_refused(given: Any, said: str) -> None:
    registry = create_registry()
    with pytest.raises(ToolRegistrationError, match=said):
        registry.add(search, metadata=given)
    assert registry.records() == ()


@pytest.mark.req("registry.metadata")
def test_metadata_is_kept_read_only() -> None:
    options = {"retries": [1]}
    record = create_registry().add(search, execution_options=options)
    options["retries"].append(2)
    assert record.metadata is not None
    assert record.metadata.execution_options == {"retries": [1]}
    with pytest.raises(AttributeError):
        record.metadata.version = "2"  # type: ignore[misc]


@pytest.mark.req("registry.deferred")
async def test_a_hidden_tool_is_found_by_words_and_shown_when_used() -> None:
    registry = create_registry()
    registry.add(search, "web.search", defer_loading=True, search_keywords=["google"])
    registry.add(search, "web.news", defer_loading=True, tags=["press"])
    registry.add(search, "now")

    async def listed() -> list[str]:
        return [str(item) for item in await registry.list_tools()]

    assert await listed() == ["default:now"]
    assert len(await registry.get_deferred_tools()) == 2
    found = await registry.search_deferred_tools("google something")
    assert [item.name for item in found] == ["search"]
    found = await registry.search_deferred_tools(tags=["press"])
    assert [item.name for item in found] == ["news"]
    assert len(await registry.search_deferred_tools("search", limit=1)) == 1
    version = registry.version
    assert registry.resolve("web.search").name == "search"
    assert registry.version > version
    assert await listed() == ["web:search", "default:now"]
    assert await registry.load_deferred_tool("news", "web") is search
    assert await registry.get_deferred_tools() == []
    assert len(await registry.get_active_tools()) == 3
