"""Usage, results, tools, and the freezing that makes them read-only."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError, dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from hypothesis import given, strategies as st

from executionkit import types
from executionkit._frozen import FrozenDict, FrozenList, freeze_mapping
from executionkit.errors import ToolRegistrationError
from executionkit.tools.decorators import tool
from executionkit.types import (
    PatternResult,
    StreamingPatternResult,
    TerminationReason,
    TokenUsage,
    Tool,
    VotingStrategy,
    freeze,
    sealed,
    thaw,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
json_objects = st.dictionaries(st.text(), json_values)


class TestFreeze:
    @pytest.mark.req("values.deeply-read-only")
    @given(json_values)
    def test_a_frozen_value_equals_the_original_and_thaws_to_it(
        self, value: Any
    ) -> None:
        frozen = freeze(value)
        assert frozen == value
        assert thaw(frozen) == value
        assert type(thaw(frozen)) is type(value)

    @given(json_values)
    def test_a_frozen_value_is_the_same_json(self, value: Any) -> None:
        assert json.dumps(freeze(value)) == json.dumps(value)

    @given(json_values)
    def test_a_frozen_value_pickles_copies_and_hashes(self, value: Any) -> None:
        frozen = freeze(value)
        assert pickle.loads(pickle.dumps(frozen)) == frozen
        assert type(pickle.loads(pickle.dumps(frozen))) is type(frozen)
        assert copy.deepcopy(frozen) == frozen
        assert hash(frozen) == hash(freeze(copy.deepcopy(value)))

    @given(json_values)
    def test_freezing_twice_copies_nothing(self, value: Any) -> None:
        frozen = freeze(value)
        if isinstance(frozen, (dict, list)):
            assert freeze(frozen) is frozen
            assert copy.copy(frozen) is frozen

    def test_the_original_can_change_without_effect(self) -> None:
        original = {"a": [1]}
        frozen = freeze(original)
        original["a"].append(2)
        assert frozen == {"a": [1]}

    @pytest.mark.req("values.deeply-read-only")
    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.__setitem__("a", 1),
            lambda d: d.__delitem__("a"),
            lambda d: d.__ior__({"b": 1}),
            lambda d: d.clear(),
            lambda d: d.pop("a"),
            lambda d: d.popitem(),
            lambda d: d.setdefault("b", 1),
            lambda d: d.update(b=1),
            lambda d: d["a"].__setitem__(0, 1),
            lambda d: d["a"].__delitem__(0),
            lambda d: d["a"].__iadd__([1]),
            lambda d: d["a"].__imul__(2),
            lambda d: d["a"].append(1),
            lambda d: d["a"].extend([1]),
            lambda d: d["a"].insert(0, 1),
            lambda d: d["a"].pop(),
            lambda d: d["a"].remove(1),
            lambda d: d["a"].clear(),
            lambda d: d["a"].sort(),
            lambda d: d["a"].reverse(),
            lambda d: d["a"][1].update(x=1),
        ],
    )
    def test_every_way_to_change_is_refused_with_the_remedy(self, change: Any) -> None:
        frozen = freeze({"a": [1, {"x": 0}]})
        with pytest.raises(TypeError, match=r"is read-only; use thaw\(\)"):
            change(frozen)
        assert frozen == {"a": [1, {"x": 0}]}

    def test_no_method_that_changes_a_dict_or_list_was_forgotten(self) -> None:
        read_only = {
            *("copy", "count", "fromkeys", "get", "index", "items", "keys", "values"),
        }
        operators = {"__setitem__", "__delitem__", "__ior__", "__iadd__", "__imul__"}
        for plain, frozen in ((dict, FrozenDict), (list, FrozenList)):
            public = {name for name in vars(plain) if not name.startswith("_")}
            changing = (public - read_only) | (operators & vars(plain).keys())
            assert changing <= vars(frozen).keys()

    def test_standard_containers_become_read_only_ones(self) -> None:
        assert type(freeze(OrderedDict(a=[1]))) is FrozenDict
        assert type(freeze(defaultdict(list, a=[1]))) is FrozenDict
        assert type(freeze(MappingProxyType({"a": [1]}))) is FrozenDict
        assert type(freeze({1, 2})) is frozenset
        assert freeze(bytearray(b"x")) == b"x"
        assert freeze(([1],)) == ([1],)
        assert type(freeze(([1],))[0]) is FrozenList

    def test_what_is_not_json_like_stays_itself(self) -> None:
        class Row(dict[str, int]):
            pass

        class Pair(NamedTuple):
            a: int

        for value in (object(), Row(a=1), Pair(1), len, b"x"):
            assert freeze(value) is value

    def test_thawing_gives_plain_containers(self) -> None:
        value = thaw(freeze_mapping({"a": ([1], {"b": [2]})}))
        assert value == {"a": ([1], {"b": [2]})}
        assert type(value) is dict
        assert type(value["a"][0]) is list
        assert type(value["a"][1]["b"]) is list

    @given(json_objects)
    def test_a_frozen_mapping_is_a_proxy_over_frozen_items(
        self, value: dict[str, Any]
    ) -> None:
        proxy = freeze_mapping(value)
        assert type(proxy) is MappingProxyType
        assert proxy == value
        assert all(freeze(item) is item for item in proxy.values() if item != ())

    def test_no_mapping_at_all_is_an_empty_one(self) -> None:
        assert freeze_mapping(None) == freeze_mapping({}) == freeze_mapping() == {}

    def test_a_frozen_dict_is_taken_as_it_is(self) -> None:
        items = FrozenDict(a=1)
        assert dict(freeze_mapping(items)) == items

    def test_a_proxy_pickles_and_copies_like_any_value(self) -> None:
        proxy = MappingProxyType({"a": [1]})
        for twin in (pickle.loads(pickle.dumps(proxy)), copy.deepcopy(proxy)):
            assert type(twin) is MappingProxyType
            assert twin == proxy


class TestSealed:
    @pytest.mark.req("values.frozen", "D-01")
    def test_a_subscripted_generic_can_be_called(self) -> None:
        result = PatternResult[str]("x")
        assert result == PatternResult("x")
        assert type(result) is PatternResult

    @pytest.mark.req("values.frozen", "D-01")
    def test_an_unknown_attribute_is_refused_with_the_right_error(self) -> None:
        with pytest.raises(FrozenInstanceError, match="cannot change field 'other'"):
            PatternResult("x").other = 1  # type: ignore[attr-defined]

    def test_a_class_of_a_user_can_be_sealed(self) -> None:
        t = TypeVar("t")

        @sealed
        @dataclass(frozen=True, slots=True)
        class Box(Generic[t]):
            content: t
            note: MappingProxyType[str, Any] = field(default_factory=freeze_mapping)

        assert Box[int](1) == Box(1)
        assert hash(Box(1)) == hash(Box(1))
        assert hash(Box(1)) != hash(Box(2))

    def test_a_field_outside_of_comparison_is_outside_of_the_hash(self) -> None:
        @sealed
        @dataclass(frozen=True, slots=True)
        class Box:
            content: int
            shadow: int = field(default=0, compare=False)
            out: int = field(default=0, hash=False)

        assert hash(Box(1, 2, 3)) == hash(Box(1, 4, 5))
        assert Box(1, 2) == Box(1, 4)


usages = st.builds(
    TokenUsage,
    st.integers(),
    st.integers(),
    st.integers(),
    cache_read_tokens=st.integers(),
    cache_write_tokens=st.integers(),
    reasoning_tokens=st.integers(),
)


class TestTokenUsage:
    def test_the_first_three_fields_are_positional_and_zero_by_default(self) -> None:
        usage = TokenUsage(1, 2, 3)
        assert (usage.input_tokens, usage.output_tokens, usage.llm_calls) == (1, 2, 3)
        assert TokenUsage() == TokenUsage(0, 0, 0)
        with pytest.raises(TypeError):
            TokenUsage(1, 2, 3, 4)  # type: ignore[call-arg]

    @pytest.mark.req("types.usage-arithmetic")
    @given(usages, usages, usages)
    def test_usage_adds_up_field_by_field(
        self, a: TokenUsage, b: TokenUsage, c: TokenUsage
    ) -> None:
        assert a + TokenUsage() == a
        assert a + b == b + a
        assert (a + b) + c == a + (b + c)
        assert (a + b) - b == a

    def test_a_difference_may_be_negative(self) -> None:
        assert TokenUsage() - TokenUsage(1, 2, 3) == TokenUsage(-1, -2, -3)

    def test_only_usage_adds_to_usage(self) -> None:
        with pytest.raises(TypeError, match="unsupported operand"):
            TokenUsage() + 1  # type: ignore[operator]
        with pytest.raises(TypeError, match="unsupported operand"):
            TokenUsage() - 1  # type: ignore[operator]


class TestPatternResult:
    def test_its_text_is_the_text_of_its_value(self) -> None:
        assert str(PatternResult(42)) == "42"

    def test_its_defaults_are_empty(self) -> None:
        result = PatternResult("x")
        assert result.score is None
        assert result.cost == TokenUsage()
        assert result.metadata == {}

    @pytest.mark.req("values.deeply-read-only", "D-33")
    def test_neither_value_nor_metadata_can_be_changed_from_outside(self) -> None:
        history, value = [0.5], {"a": [1]}
        result = PatternResult(value, metadata={"score_history": history})
        history.append(0.9)
        value["a"].append(2)
        assert result.metadata == {"score_history": [0.5]}
        assert result.value == {"a": [1]}
        with pytest.raises(TypeError):
            result.value["a"].append(2)
        with pytest.raises(TypeError):
            result.metadata["new"] = 1  # type: ignore[index]

    @pytest.mark.req("values.as-dict", "D-33")
    def test_its_value_can_be_written_as_json(self) -> None:
        result = PatternResult({"a": [{"b": MappingProxyType({"c": 1})}]})
        assert json.dumps(result.value) == '{"a": [{"b": {"c": 1}}]}'
        assert json.dumps(dict(result.metadata)) == "{}"


async def echo(**arguments: object) -> object:
    return arguments


class TestTool:
    SCHEMA = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}  # noqa: RUF012

    @pytest.mark.req("types.tool-schema")
    def test_its_schema_is_openai_s_function_format(self) -> None:
        tool = Tool("t", "does it", self.SCHEMA, echo)
        assert tool.to_schema() == {
            "type": "function",
            "function": {
                "name": "t",
                "description": "does it",
                "parameters": self.SCHEMA,
            },
        }

    @pytest.mark.req("types.tool-schema", "D-33")
    def test_its_schema_is_a_copy_that_may_be_changed(self) -> None:
        tool = Tool("t", "", self.SCHEMA, echo)
        schema = tool.to_schema()
        schema["function"]["parameters"]["properties"]["a"]["type"].append("x")
        assert tool.parameters == self.SCHEMA
        with pytest.raises(TypeError):
            tool.parameters["properties"]["a"]["type"].append("x")

    def test_its_defaults_are_the_documented_ones(self) -> None:
        tool = Tool("t", "", {}, echo)
        assert tool.timeout == 30.0
        assert tool.namespace == "default"
        assert tool.tags == frozenset()
        assert tool.side_effects == "unknown"
        assert tool.idempotent is False
        assert tool.cacheable is None
        assert tool.cost == 0.0

    def test_any_iterable_of_tags_is_taken(self) -> None:
        tool = Tool("t", "", {}, echo, tags=["a", "b"])  # type: ignore[arg-type]
        assert tool.tags == {"a", "b"}


class TestStreamingPatternResult:
    async def test_it_streams_and_tells_the_cost_so_far(self) -> None:
        spent = [TokenUsage()]

        async def text() -> AsyncIterator[str]:
            for part in ("a", "b"):
                spent[0] += TokenUsage(0, 1)
                yield part

        result = StreamingPatternResult(text(), {"k": [1]}, lambda: spent[0])
        assert result.cost == TokenUsage()
        assert [part async for part in result] == ["a", "b"]
        assert result.cost == TokenUsage(0, 2)
        assert result.metadata == {"k": [1]}

    async def test_leaving_it_early_closes_the_stream(self) -> None:
        closed = asyncio.Event()

        async def text() -> AsyncIterator[str]:
            try:
                while True:
                    yield "x"
            finally:
                closed.set()

        async with StreamingPatternResult(text()) as result:
            async for _ in result:
                break
        assert closed.is_set()

    async def test_a_stream_without_aclose_can_be_left_too(self) -> None:
        class Plain:
            def __aiter__(self) -> Plain:
                return self

            async def __anext__(self) -> str:
                raise StopAsyncIteration

        async with StreamingPatternResult(Plain()) as result:
            assert [part async for part in result] == []
        assert result.cost == TokenUsage()


def test_enumerations_have_the_documented_values() -> None:
    assert VotingStrategy("majority") is VotingStrategy.MAJORITY
    assert VotingStrategy("unanimous") is VotingStrategy.UNANIMOUS
    assert TerminationReason("natural") is TerminationReason.NATURAL
    assert TerminationReason("max_iterations") is TerminationReason.MAX_ITERATIONS


def test_the_module_offers_the_freezing_functions() -> None:
    assert types.freeze is freeze
    assert types.FrozenDict is FrozenDict


@pytest.mark.req("types.effects")
@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        ({"side_effects": "raed"}, ValueError, "none, read, write, destructive"),
        ({"idempotent": "yes"}, TypeError, "`idempotent` of the tool 'a'"),
        ({"streaming": 1}, TypeError, "`streaming` of the tool 'a'"),
        ({"cacheable": "no"}, TypeError, "`cacheable` of the tool 'a'"),
    ],
)
def test_what_a_tool_says_of_its_effects_is_checked_as_by_the_decorator(
    said: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Tool("a", "", {"type": "object"}, print, **said)
    with pytest.raises(ToolRegistrationError):
        tool(**said)(lambda: None)


def test_a_value_nested_too_deep_is_refused_with_a_clear_error() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"x": deep}
    ring: list[Any] = []
    ring.append(ring)
    for value in (deep, {"x": ring}):
        with pytest.raises(ValueError, match="nested too deep"):
            freeze_mapping(value)
        with pytest.raises(ValueError, match="nested too deep"):
            PatternResult(value)
