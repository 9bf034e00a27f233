"""Tools as providers want them, and names that find their way back."""

from __future__ import annotations

import json
import re
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.errors import ToolNotFoundError, ToolRegistrationError
from executionkit.tools.export import (
    ToolNames,
    export_openapi,
    to_anthropic,
    to_mcp,
    to_openai,
)
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.types import Tool

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class User(TypedDict):
    name: str


async def fetch_user(user_id: str) -> User:
    """Fetch a user."""
    return {"name": user_id}


PARAMETERS = {
    "type": "object",
    "properties": {"user_id": {"type": "string"}},
    "required": ["user_id"],
    "additionalProperties": False,
}


def registry_of(**more: Any) -> ToolRegistry:
    registry = create_registry()
    registry.add(fetch_user, "web.fetch_user", **more)
    return registry


@pytest.mark.req("tools.export")
def test_openai_gets_functions() -> None:
    registry = registry_of()
    expected = {
        "type": "function",
        "function": {
            "name": "web__fetch_user",
            "description": "Fetch a user.",
            "parameters": PARAMETERS,
        },
    }
    assert to_openai(registry) == [expected]
    assert to_openai(registry.records()) == [expected]
    assert to_openai(registry.records()[0]) == expected
    assert json.loads(json.dumps(to_openai(registry))) == [expected]
    mine = to_openai(registry)
    mine[0]["function"]["parameters"]["properties"].clear()
    assert to_openai(registry) == [expected]


@pytest.mark.req("tools.export")
def test_anthropic_gets_input_schemas() -> None:
    assert to_anthropic(registry_of()) == [
        {
            "name": "web__fetch_user",
            "description": "Fetch a user.",
            "input_schema": PARAMETERS,
        }
    ]


@pytest.mark.req("tools.export")
@pytest.mark.parametrize(
    ("said", "hints"),
    [
        ({}, None),
        ({"idempotent": True}, {"idempotentHint": True}),
        (
            {"side_effects": "read"},
            {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
        ),
        (
            {"side_effects": "write", "idempotent": True},
            {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True},
        ),
        (
            {"side_effects": "destructive"},
            {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
        ),
    ],
)
def test_mcp_gets_hints_and_what_comes_out(said: dict[str, Any], hints: Any) -> None:
    made = to_mcp(registry_of(title="Fetch", **said))[0]
    assert made["name"] == "web__fetch_user"
    assert made["title"] == "Fetch"
    assert made["inputSchema"] == PARAMETERS
    assert made["outputSchema"]["properties"] == {"name": {"type": "string"}}
    assert made.get("annotations") == hints


@pytest.mark.req("tools.export")
def test_a_bare_tool_is_exported_too() -> None:
    tool = Tool("x", "words", {}, fetch_user, namespace="web")
    empty = {"type": "object", "properties": {}}
    assert to_openai(tool)["function"] == {
        "name": "web__x",
        "description": "words",
        "parameters": empty,
    }
    assert to_mcp(tool) == {
        "name": "web__x",
        "description": "words",
        "inputSchema": empty,
    }


@pytest.mark.req("tools.export", "registry.deferred")
def test_hidden_tools_are_not_exported() -> None:
    registry = registry_of(defer_loading=True)
    assert to_openai(registry) == []
    assert len(to_openai(registry.records())) == 1


@pytest.mark.req("tools.export")
def test_openapi_gets_an_operation_for_each_tool() -> None:
    document = export_openapi(registry_of(tags=["b", "a"]), title="Mine")
    operation = document["paths"]["/tools/web__fetch_user"]["post"]
    content = operation["requestBody"]["content"]["application/json"]
    assert content["schema"] == PARAMETERS
    assert operation["tags"] == ["a", "b"]
    assert document["info"]["title"] == "Mine"


@pytest.mark.req("tools.export")
def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(TypeError, match="create_registry"):
        to_openai([fetch_user])  # type: ignore[list-item]


# --- names ---

pieces = st.text(st.sampled_from("ab_-.XY9\u00e9/"), min_size=1, max_size=12)
full_names = pieces | st.text(st.sampled_from("a._"), min_size=60, max_size=80)


@pytest.mark.req("tools.wire-names")
@given(names=st.lists(full_names, max_size=12))
@settings(max_examples=500)
def test_names_are_legal_unique_and_come_back(names: list[str]) -> None:
    mapped = ToolNames(tuple(names))
    wires = {name: mapped.wire_name(name) for name in names}
    assert all(LEGAL.fullmatch(wire) for wire in wires.values())
    assert len(set(wires.values())) == len(wires)
    assert all(mapped.full_name(wire) == name for name, wire in wires.items())
    assert all(ToolNames((name,)).wire_name(name) == wires[name] for name in names)


@pytest.mark.req("tools.wire-names")
@pytest.mark.parametrize(
    ("full", "wire"),
    [
        ("search", "search"),
        ("get-weather", "get-weather"),
        ("_private", "_private"),
        ("web.fetch_user", "web__fetch_user"),
        ("mcp.notion.search", "mcp__notion__search"),
    ],
)
def test_ordinary_names_are_read_back_without_a_table(full: str, wire: str) -> None:
    assert ToolNames.wire_name(full) == wire
    assert ToolNames().full_name(wire) == full


@pytest.mark.req("tools.wire-names")
def test_names_that_could_be_mistaken_get_a_hash() -> None:
    for name in (
        "web__fetch",
        "a_.b",
        "a._b",
        "caf\u00e9",
        "x" * 65,
        "a" * 40 + ".b" * 20,
    ):
        wire = ToolNames.wire_name(name)
        assert re.fullmatch(r".*___[0-9a-f]{13}", wire)
        assert ToolNames((name,)).full_name(wire) == name
        assert ToolNames().full_name(wire) == wire  # nobody knows it


@pytest.mark.req("tools.wire-names")
def test_what_a_model_wrote_comes_back_when_nobody_knows_it() -> None:
    names = ToolNames.of(registry_of())
    assert names.names == ("web.fetch_user",)
    assert names.full_name("web.fetch_user") == "web.fetch_user"
    assert names.full_name("invented") == "invented"


@pytest.mark.req("tools.wire-names")
def test_a_registry_knows_the_hashes_of_tools_that_came_later() -> None:
    registry = create_registry()
    for name in ("web__a", "web__b"):
        record = registry.add(fetch_user, name)
        assert registry.resolve(ToolNames.wire_name(name)) is record
    registry.remove("web__a")
    with pytest.raises(ToolNotFoundError):
        registry.resolve(ToolNames.wire_name("web__a"))


@pytest.mark.req("tools.wire-names")
@given(name=full_names)
@settings(max_examples=200)
def test_a_registry_understands_the_names_of_providers(name: str) -> None:
    registry = create_registry()
    try:
        record = registry.add(Tool("t", "", {}, fetch_user), name)
    except ToolRegistrationError:
        return
    assert registry.resolve(ToolNames.wire_name(record.full_name)) is record
    registry.remove(record.full_name)
    with pytest.raises(ToolNotFoundError):
        registry.resolve(ToolNames.wire_name(record.full_name))
