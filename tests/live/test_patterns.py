"""The patterns on a real model behind a real server, over both APIs and every transport.

The model has 135 million parameters: what is asserted is the shape of what comes back
and that every token is accounted for, not that the answers are clever.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from executionkit import (
    Kit,
    MaxIterationsError,
    PatternError,
    PatternResult,
    Tool,
    consensus,
    consensus_sync,
    map_reduce,
    pipe,
    react_loop,
    refine_loop,
    structured,
    structured_sync,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

ADD = Tool(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
    lambda a, b: a + b,
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

# Ends with the first sentence: a sample that is cut off at the limit has no vote.
SHORT: dict[str, Any] = {"max_tokens": 60, "stop": [".", "!", "?"], "temperature": 0}


def accounted(result: PatternResult[Any], calls: int) -> None:
    assert result.cost.llm_calls == calls
    assert result.cost.input_tokens > 0
    assert result.cost.output_tokens > 0


@pytest.mark.req("live.patterns")
async def test_consensus(provider: Any) -> None:
    result = await consensus(
        provider,
        "Name the capital of France.",
        num_samples=3,
        normalizer=lambda text: "paris" if "paris" in text.lower() else "other",
        **SHORT,
    )
    accounted(result, 3)
    assert result.score is not None
    assert 1 / 3 <= result.score <= 1
    assert result.metadata["unique_responses"] in {1, 2}
    assert result.value.strip()


@pytest.mark.req("live.patterns")
async def test_structured(provider: Any, form: str) -> None:
    prompt = "Anna is 31 years old. Give her name and age as JSON."
    failure: PatternError | None = None
    try:
        result = await structured(
            provider,
            prompt,
            schema=PERSON,
            native_format=form == "openai",
            max_tokens=40,
            max_retries=0,
        )
    except PatternError as exc:
        failure = exc
    else:
        assert set(result.value) == {"name", "age"}
        assert isinstance(result.value["age"], int)
        assert result.cost.output_tokens > 0
    if failure is not None:
        assert form == "anthropic", "over the other API a schema holds the model"
        assert failure.cost.output_tokens > 0


@pytest.mark.req("live.patterns")
async def test_react_loop_in_json_form(provider: Any, form: str) -> None:
    facts: Any
    try:
        result = await react_loop(
            provider,
            "What is 17 + 25?",
            [ADD],
            tool_mode="json",
            max_rounds=1,
            max_tokens=60,
            temperature=0,
        )
    except MaxIterationsError as exc:  # a model this small goes on calling the tool
        cost, facts = exc.cost, exc.metadata
    else:
        cost, facts = result.cost, result.metadata
    assert cost.output_tokens > 0
    assert facts["messages"][0]["role"] == "user"
    if form == "openai":
        assert facts["tool_calls_made"][0] == "add"
        found = [m["content"] for m in facts["messages"] if m["role"] == "tool"]
        assert found[0] == "42"


@pytest.mark.req("live.patterns")
async def test_map_reduce(provider: Any) -> None:
    result = await map_reduce(
        provider,
        ["Anna has a red cat.", "Tom has a blue car."],
        map_prompt_template="Repeat in three words: {item}",
        reduce_prompt_template="Join these texts:\n{mapped_outputs}",
        max_tokens=8,
    )
    accounted(result, 3)
    assert result.metadata["map_count"] == 2


@pytest.mark.req("live.patterns")
async def test_refine_loop(provider: Any) -> None:
    async def shorter_is_better(text: str, _provider: Any) -> float:
        return 1 / (1 + len(text))

    result = await refine_loop(
        provider,
        "Describe the sea.",
        evaluator=shorter_is_better,
        max_iterations=1,
        max_tokens=8,
    )
    accounted(result, 2)
    assert len(result.metadata["score_history"]) == 2


@pytest.mark.req("live.patterns")
async def test_pipe(provider: Any) -> None:
    async def ask(provider: Any, prompt: str) -> PatternResult[str]:
        return await consensus(provider, prompt, num_samples=1, **SHORT)

    result = await pipe(provider, "Name an animal.", ask, ask)
    accounted(result, 2)
    assert len(result.metadata["step_costs"]) == 2


@pytest.mark.req("live.patterns")
async def test_a_streamed_consensus_of_a_kit(make: Callable[..., Any]) -> None:
    async with Kit(make()) as kit:
        stream = await kit.stream_consensus("Say hello.", max_tokens=8)
        text = "".join([piece async for piece in stream])
        assert text
        assert stream.cost.llm_calls == 1
        assert stream.cost.output_tokens > 0
        assert kit.usage == stream.cost


@pytest.mark.req("live.loops")
def test_sync_wrappers_work_twice_with_one_provider(make: Callable[..., Any]) -> None:
    provider = make()
    for _ in range(2):
        result = consensus_sync(provider, "Say hi.", num_samples=2, **SHORT)
        accounted(result, 2)


@pytest.mark.req("live.local")
def test_sync_wrappers_on_the_local_provider(local: Any) -> None:
    for _ in range(2):
        result = structured_sync(
            local, "Anna is 31 years old.", schema=PERSON, max_tokens=40
        )
        assert set(result.value) == {"name", "age"}


@pytest.mark.req("live.local")
class TestTheLocalProvider:
    async def test_it_votes(self, local: Any) -> None:
        wanted = {"enum": ["positive", "negative"]}
        schema = {
            "type": "object",
            "properties": {"mood": wanted},
            "required": ["mood"],
        }
        result = await consensus(
            local,
            'Review: "I love this lamp, it is bright."\n'
            "Is the review positive or negative? Answer as JSON.",
            num_samples=5,
            max_tokens=20,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "mood", "schema": schema},
            },
        )
        accounted(result, 5)
        assert json.loads(result.value)["mood"] in wanted["enum"]

    async def test_it_calls_a_tool_and_answers(self, local: Any) -> None:
        result = await react_loop(
            local, "What is 17 + 25?", [ADD], temperature=0, max_tokens=60
        )
        assert list(result.metadata["tool_calls_made"]) == ["add"]
        tool = [m for m in result.metadata["messages"] if m["role"] == "tool"]
        assert tool[0]["content"] == "42"
        assert result.metadata["rounds"] == 2
        assert result.value.strip()

    async def test_it_maps_refines_and_pipes(self, local: Any) -> None:
        result = await map_reduce(
            local,
            ["a cat", "a dog"],
            map_prompt_template="Describe {item}.",
            reduce_prompt_template="Sum up: {mapped_outputs}",
            max_tokens=10,
        )
        accounted(result, 3)
        refined = await refine_loop(
            local, "Describe the sea.", max_iterations=1, max_tokens=16
        )
        assert refined.value.strip()
        assert 0 <= (refined.score or 0) <= 1
