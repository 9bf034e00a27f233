"""Tools whose names are almost the same stay apart."""

from __future__ import annotations

import pytest

from executionkit import Tool, react_loop
from executionkit.testing import ScriptedProvider, tool_call_reply


def named(name: str, *, namespace: str = "default") -> Tool:
    async def run() -> str:
        return f"ran {namespace}/{name}"

    return Tool(name, "", {"type": "object"}, run, namespace=namespace)


@pytest.mark.req("TC-22")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (named("get-user"), named("get_user")),
        (named("get_user"), named("Get_User")),
        (named("c", namespace="a_b"), named("b_c", namespace="a")),
    ],
)
async def test_each_of_two_similar_names_calls_its_own_tool(
    first: Tool, second: Tool
) -> None:
    """TC-22: both stay callable under names of their own, whatever their order."""
    for tools in ([first, second], [second, first]):
        calls = tool_call_reply((first.name, {}), (second.name, {}))
        provider = ScriptedProvider([calls, "done"])
        result = await react_loop(provider, "?", tools)
        results = result.metadata["tool_results"]
        assert [r.result for r in results] == [
            f"ran {tool.namespace}/{tool.name}" for tool in (first, second)
        ]


@pytest.mark.req("TC-22")
async def test_two_tools_of_one_name_are_refused_whatever_their_namespaces() -> None:
    """TC-22: never a silent overwrite."""
    tools = [named("find", namespace="crm"), named("find", namespace="wiki")]
    provider = ScriptedProvider(["x"])
    with pytest.raises(ValueError, match=r"must be unique.*\['find'\]"):
        await react_loop(provider, "?", tools)
    assert not provider.requests
