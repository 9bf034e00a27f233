"""Structured answers: parsed first, repaired second, checked, and asked for again."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import sys
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given, strategies as st

from executionkit import (
    BudgetExhaustedError,
    ExecutionContext,
    Kit,
    LLMResponse,
    MockProvider,
    PatternError,
    PermanentError,
    ProviderError,
    RetryConfig,
    TokenUsage,
    TraceEvent,
    execution_scope,
    structured,
)
from executionkit.anthropic import AnthropicProvider
from executionkit.engine.schema import SchemaError
from executionkit.errors import (
    DeadlineExceededError,
    EvaluatorError,
    MissingExtraError,
)
from executionkit.patterns._format import supports_format
from executionkit.provider import OMIT, Provider
from executionkit.testing import FakeClock, Request, ScriptedProvider, settle

USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONCE = RetryConfig(max_retries=0)
KEY = "custom-key-7f3a91c2"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

# How many things are under way after each event.
CHANGE = {
    "pattern_start": 1,
    "pattern_end": -1,
    "llm_call_start": 1,
    "llm_call_end": -1,
    "llm_call_error": -1,
}


def says(*script: Any, **attributes: Any) -> ScriptedProvider:
    provider = ScriptedProvider(script, usage=USAGE)
    for name, value in attributes.items():
        setattr(provider, name, value)
    return provider


def cut(text: str) -> LLMResponse:
    return LLMResponse(text, finish_reason="length", usage=USAGE)


async def ask(*script: Any, **kwargs: Any) -> Any:
    return (await structured(says(*script), "the task", **kwargs)).value


async def fail(*script: Any, max_retries: int = 0, **kwargs: Any) -> PatternError:
    with pytest.raises(PatternError) as caught:
        await ask(*script, max_retries=max_retries, **kwargs)
    return caught.value


class TestParsing:
    @pytest.mark.req("structured.plain")
    async def test_an_object_or_an_array_comes_back_parsed(self) -> None:
        provider = says('{"a": [1, 2.5, null]}')
        result = await structured(provider, "the task", seed=1, max_tokens=9)
        assert result.value == {"a": [1, 2.5, None]}
        assert (result.score, result.cost) == (None, TokenUsage(10, 2, 1))
        assert result.metadata == {
            "parse_attempts": 1,
            "repair_attempts": 0,
            "validated": False,
            "repairs": (),
            "native_format": False,
            "over_budget": False,
        }
        (request,) = provider.requests
        assert request.messages[0]["role"] == "user"
        assert request.last.endswith("\n\nthe task")
        assert "JSON object or array" in request.last
        assert (request.temperature, request.max_tokens) == (0.0, 9)
        assert request.options == {"seed": 1}
        assert await ask("[1, 2]") == [1, 2]

    @pytest.mark.parametrize(
        ("reply", "value"),
        [
            ('As noted in [1], the answer is {"answer": 42}', {"answer": 42}),
            ('Start from [] and get {"answer": 42}', {"answer": 42}),
            ('arr[0] is {"answer": 42}', {"answer": 42}),
            ('<think>{"answer": 1}</think>{"answer": 2}', {"answer": 2}),
            ('```json\n{"answer": 42}\n```', {"answer": 42}),
            ('Use {braces} like { and: {"answer": 42}', {"answer": 42}),
        ],
    )
    @pytest.mark.req("D-20")
    async def test_the_answer_is_found_not_a_footnote_or_a_draft(
        self, reply: str, value: Any
    ) -> None:
        """D-20: the wrong value is worse than none."""
        assert await ask(reply, max_retries=0) == value

    @pytest.mark.parametrize("reply", ['{"a": NaN}', '{"a": Infinity}'])
    @pytest.mark.req("D-20")
    async def test_what_json_does_not_know_is_not_accepted(self, reply: str) -> None:
        error = await fail(reply, repair=False)
        assert error.metadata["reason"] == "no_json"

    @pytest.mark.parametrize("reply", ["[" * 5000, '{"a":' * 5000, "{" * 100_000])
    @pytest.mark.req("D-21")
    async def test_hostile_nesting_is_asked_about_again(self, reply: str) -> None:
        """D-21: no `RecursionError`; the repair prompt stays small."""
        provider = says(reply, '{"a": 1}')
        assert (await structured(provider, "x")).value == {"a": 1}
        assert len(provider.requests[1].last) < 3000

    @pytest.mark.req("structured.scalars")
    async def test_a_scalar_is_no_answer_without_a_schema(self) -> None:
        assert (await fail("42")).metadata["reason"] == "no_json"

    @pytest.mark.req("D-33")
    async def test_the_value_is_read_only(self) -> None:
        value = await ask('{"a": [{"b": 1}]}')
        with pytest.raises(TypeError):
            value["x"] = 1
        with pytest.raises(TypeError):
            value["a"][0]["b"] = 2
        assert copy.deepcopy(value) == {"a": [{"b": 1}]}


class TestRepair:
    @pytest.mark.parametrize(
        ("reply", "value"),
        [
            ("{'a': True, 'b': None}", {"a": True, "b": None}),
            ('{"a": 1,}', {"a": 1}),
            ("{a: 1}", {"a": 1}),
        ],
    )
    @pytest.mark.req("structured.repair")
    async def test_almost_json_is_repaired_and_that_is_told(
        self, reply: str, value: Any
    ) -> None:
        result = await structured(says(reply), "x")
        assert result.value == value
        assert result.metadata["repairs"]
        assert result.metadata["parse_attempts"] == 1

    @pytest.mark.req("structured.repair")
    async def test_valid_json_is_never_changed(self) -> None:
        reply = '{"fix": "use [a, b,]", "old": "True"}'
        result = await structured(says(reply), "x")
        assert result.value == {"fix": "use [a, b,]", "old": "True"}
        assert result.metadata["repairs"] == ()

    @pytest.mark.req("structured.repair")
    async def test_without_repair_the_model_is_asked_instead(self) -> None:
        result = await structured(says("{'a': 1}", '{"a": 2}'), "x", repair=False)
        assert result.value == {"a": 2}
        assert result.metadata["repair_attempts"] == 1


class TestAmbiguity:
    @pytest.mark.parametrize("repair", [True, False])
    @pytest.mark.req("structured.ambiguity")
    async def test_two_different_answers_are_an_error_not_a_guess(
        self, repair: bool
    ) -> None:
        error = await fail('Either {"a": 1} or {"a": 2}', repair=repair)
        assert error.metadata["reason"] == "ambiguous"
        assert "2 different JSON values" in str(error)

    @pytest.mark.req("structured.ambiguity")
    async def test_the_model_is_told_and_may_decide(self) -> None:
        provider = says('{"a": 1} or {"a": 2}', '{"a": 2}')
        assert (await structured(provider, "x")).value == {"a": 2}
        assert "exactly one" in provider.requests[1].last

    @pytest.mark.req("structured.ambiguity")
    async def test_the_same_answer_twice_is_one_answer(self) -> None:
        assert await ask('{"a": 1} means {"a": 1}') == {"a": 1}

    @pytest.mark.req("structured.ambiguity")
    async def test_the_one_that_fits_the_schema_is_no_guess(self) -> None:
        reply = 'From {"in": 1} follows {"name": "Al", "age": 3}, for {"x": 2}.'
        assert await ask(reply, schema=PERSON) == {"name": "Al", "age": 3}
        both = 'Either {"name": "Al", "age": 3} or {"name": "Bo", "age": 4}.'
        assert (await fail(both, schema=PERSON)).metadata["reason"] == "ambiguous"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            msg = "x must not be negative"
            raise ValueError(msg)
        if self.x > 100:
            raise KeyError("too far")


class Movie(TypedDict):
    title: str
    year: int


class TestSchema:
    @pytest.mark.parametrize(
        ("schema", "reply", "value"),
        [
            (PERSON, '{"name": "Al", "age": 3}', {"name": "Al", "age": 3}),
            (list[int], "[1, 2]", [1, 2]),
            (int, "42", 42),
            (int, "The answer: ```\n42\n```", 42),
            (float, "0.5", 0.5),
            (bool, "false", False),
            (str, '"hello"', "hello"),
            (int | None, "null", None),
            (Literal["yes", "no"], '"yes"', "yes"),
            (Literal["yes", "no"], "yes", "yes"),
            (dict[str, int], '{"a": 1}', {"a": 1}),
            (Point, '{"x": 1}', Point(1)),
            (list[Point], '[{"x": 1, "y": 2}]', [Point(1, 2)]),
            (Movie, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}),
            (tuple[int, str], '[1, "a"]', (1, "a")),
        ],
    )
    @pytest.mark.req("structured.schema")
    async def test_any_type_can_be_the_target(
        self, schema: Any, reply: str, value: Any
    ) -> None:
        result = await structured(says(reply), "x", schema=schema, max_retries=0)
        assert result.value == value
        assert type(result.value) is type(value) or isinstance(value, (dict, list))
        assert result.metadata["validated"] is True

    @pytest.mark.parametrize(
        ("schema", "reply", "value"),
        [
            (list[int], "[]", []),
            (int, "0", 0),
            (bool, "false", False),
            (str, '""', ""),
            (dict[str, int], "{}", {}),
            ({"type": "array"}, "[]", []),
        ],
    )
    @pytest.mark.req("JX-17")
    async def test_an_empty_value_is_an_answer(
        self, schema: Any, reply: str, value: Any
    ) -> None:
        """JX-17: accepted, exactly one request."""
        provider = says(reply)
        result = await structured(provider, "x", schema=schema)
        assert result.value == value
        assert len(provider.requests) == 1

    @pytest.mark.req("structured.schema")
    async def test_a_pydantic_model_can_be_the_target(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        Person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
        value = await ask('{"name": "Al", "age": 3}', schema=Person)
        assert isinstance(value, Person)
        assert value.age == 3

    @pytest.mark.req("structured.schema")
    async def test_the_schema_is_in_the_prompt_and_what_is_wrong_in_the_next(
        self,
    ) -> None:
        provider = says('{"name": "Al"}', '{"name": "Al", "age": 3}')
        await structured(provider, "the task", schema=PERSON)
        first, second = provider.requests
        assert '"additionalProperties": false' in first.last
        assert first.last.endswith("Task: the task")
        assert "age" in second.last.partition("not accepted:")[2]
        assert '{"name": "Al"}' in second.last

    @pytest.mark.req("structured.schema")
    async def test_a_value_that_does_not_fit_is_an_error_that_says_why(self) -> None:
        error = await fail('{"name": "Al", "age": "x"}', schema=PERSON)
        assert error.metadata["reason"] == "schema_mismatch"
        assert "No reply was accepted after 1 attempt(s)" in str(error)
        assert "age" in str(error)

    @pytest.mark.req("structured.types")
    async def test_a_type_that_refuses_a_value_is_told_to_the_model(self) -> None:
        provider = says('{"x": -1}', '{"x": 1}')
        assert (await structured(provider, "x", schema=Point)).value == Point(1)
        assert "x must not be negative" in provider.requests[1].last

    @pytest.mark.req("structured.types", "D-03")
    async def test_a_type_that_breaks_is_an_error_with_the_cost(self) -> None:
        with pytest.raises(EvaluatorError, match="type given as `schema`") as caught:
            await ask('{"x": 101}', schema=Point)
        assert caught.value.cost == TokenUsage(10, 2, 1)

    @pytest.mark.parametrize(
        "schema",
        [{"type": "nonsense"}, {"$ref": "http://elsewhere/"}, object(), complex],
    )
    @pytest.mark.req("structured.bad-schema")
    async def test_a_bad_schema_is_found_before_any_call(self, schema: Any) -> None:
        provider = MockProvider(["{}"])
        with pytest.raises(SchemaError):
            await structured(provider, "x", schema=schema)
        assert provider.call_count == 0

    @pytest.mark.req("structured.bad-schema")
    async def test_a_schema_that_cannot_be_checked_is_found_before_any_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a bare install no reply could pass: the model is not asked four times."""
        for module in ("jsonschema_rs", "jsonschema"):
            monkeypatch.setitem(sys.modules, module, None)
        provider = MockProvider(["{}"])
        with pytest.raises(MissingExtraError, match="jsonschema"):
            await structured(provider, "x", schema={"if": {"type": "string"}})
        assert provider.call_count == 0

    @pytest.mark.req("structured.schema")
    async def test_changing_the_schema_later_changes_nothing(self) -> None:
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        provider = says("{}")
        await structured(provider, "x", schema=schema)
        assert schema == {"type": "object", "properties": {}}


class TestWhatFailed:
    """The final error tells a text that is no JSON from JSON that is not accepted."""

    @pytest.mark.req("structured.what-failed")
    async def test_the_validator_is_named(self) -> None:
        with pytest.raises(PatternError) as caught:
            await structured(
                says(*['{"a": -8}'] * 2), "x", max_retries=1, validator=lambda _: "-8"
            )
        assert str(caught.value) == (
            "No JSON passed the validator after 2 attempt(s): -8 (requests sent: 2)"
        )

    @pytest.mark.req("structured.what-failed")
    async def test_the_schema_is_named_in_words_of_data(self) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        with pytest.raises(PatternError) as caught:
            await structured(says('{"b": 1}'), "x", max_retries=0, schema=schema)
        text = str(caught.value)
        assert text.startswith(
            "No reply was accepted after 1 attempt(s): The JSON does not match"
        )
        assert "Missing required property `a`" in text
        assert "Unexpected property `b`" in text
        assert "argument" not in text

    @pytest.mark.req("structured.what-failed")
    async def test_what_is_no_json_failed_to_parse(self) -> None:
        with pytest.raises(PatternError, match=r"JSON parse failed after 1 attempt"):
            await structured(says("no"), "x", max_retries=0)


class TestSchemaSlips:
    @pytest.mark.parametrize(
        "slip",
        [
            {"city": "str"},
            {"city": {"type": "string"}},
            {"title": "str", "year": "int"},
            {"year": "Integer", "description": "a year"},
        ],
    )
    @pytest.mark.req("structured.no-shorthand")
    async def test_a_shorthand_is_told_to_be_no_json_schema(
        self, slip: dict[str, Any]
    ) -> None:
        provider = says("{}")
        with pytest.raises(SchemaError, match=r"no JSON Schema: `(city|year)` is no"):
            await structured(provider, "x", schema=slip)
        assert not provider.requests

    @pytest.mark.parametrize(
        "good",
        [
            {},
            {"title": "City"},
            {"$defs": {}},
            {"x-internal": 1},
            {"type": "object", "propertyOrdering": ["city"]},
            {"properties": {"city": {"type": "string"}}},
        ],
    )
    @pytest.mark.req("structured.no-shorthand")
    async def test_a_schema_is_none(self, good: dict[str, Any]) -> None:
        result = await structured(says('{"city": "Oslo"}'), "x", schema=good)
        assert result.value == {"city": "Oslo"}


class TestValidator:
    @pytest.mark.parametrize("verdict", [None, True, "", 1, 1.0])
    @pytest.mark.req("structured.validator")
    async def test_what_accepts(self, verdict: Any) -> None:
        result = await structured(says('{"a": 1}'), "x", validator=lambda _: verdict)
        assert result.value == {"a": 1}
        assert result.metadata["validated"] is True

    @pytest.mark.parametrize(
        ("verdict", "words"),
        [
            (False, "rejected by validation"),
            (0, "rejected by validation"),
            ("too small", "too small"),
            (["a", "b"], "['a', 'b']"),
            (2, "2"),
        ],
    )
    @pytest.mark.req("structured.validator")
    async def test_what_rejects_and_what_the_model_is_told(
        self, verdict: Any, words: str
    ) -> None:
        provider = says('{"a": 1}', '{"a": 2}')
        verdicts = iter([verdict, None])
        await structured(provider, "x", validator=lambda _: next(verdicts))
        assert words in provider.requests[1].last

    @pytest.mark.req("D-31")
    async def test_it_may_be_async(self) -> None:
        """D-31: a coroutine is awaited, not taken for a reason."""

        async def even(value: Any) -> str | None:
            await asyncio.sleep(0)
            return None if value["a"] % 2 == 0 else "must be even"

        provider = says('{"a": 1}', '{"a": 2}')
        assert (await structured(provider, "x", validator=even)).value == {"a": 2}
        assert "must be even" in provider.requests[1].last

    @pytest.mark.req("structured.validator", "D-03")
    async def test_one_that_raises_is_an_error_with_the_cost(self) -> None:
        """D-03: not a bare `KeyError` that has cost nothing."""

        def broken(_value: Any) -> None:
            raise KeyError("a bug")

        kit = Kit(says('{"a": 1}'))
        with pytest.raises(
            EvaluatorError, match="validator failed: KeyError"
        ) as caught:
            await kit.structured("x", validator=broken)
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.cost == kit.usage == TokenUsage(10, 2, 1)
        assert caught.value.metadata["last_response"] == '{"a": 1}'

    @pytest.mark.req("structured.validator")
    async def test_it_sees_the_value_of_the_type(self) -> None:
        seen: list[Any] = []
        await ask('{"x": 1}', schema=Point, validator=seen.append)
        assert seen == [Point(1)]


class TestAskingAgain:
    @pytest.mark.req("structured.repair-prompt")
    async def test_the_model_gets_its_error_its_task_and_its_reply(self) -> None:
        provider = says("I think so", '{"a": 1}')
        result = await structured(provider, "the task")
        second = provider.requests[1].last
        assert "contains no valid JSON" in second
        assert "the task" in second
        assert "I think so" in second
        assert result.metadata["parse_attempts"] == 2
        assert result.metadata["repair_attempts"] == 1
        assert result.cost == TokenUsage(20, 4, 2)

    @pytest.mark.req("structured.repair-prompt")
    async def test_of_a_huge_reply_head_and_tail_are_shown(self) -> None:
        reply = "HEAD" + "x" * 100_000 + "TAIL"
        provider = says(reply, '{"a": 1}')
        await structured(provider, "x")
        second = provider.requests[1].last
        assert len(second) < 2600
        assert "HEAD" in second
        assert "TAIL" in second
        assert "98008 characters left out" in second

    @pytest.mark.req("structured.repair-prompt")
    async def test_a_huge_complaint_is_cut(self) -> None:
        provider = says('{"a": 1}', '{"a": 1}')
        verdicts = iter(["z" * 100_000, None])
        await structured(provider, "x", validator=lambda _: next(verdicts))
        assert len(provider.requests[1].last) < 2600

    @pytest.mark.parametrize(("retries", "sent"), [(0, 1), (1, 2), (3, 4)])
    @pytest.mark.req("HT-12", "structured.retries")
    async def test_it_is_asked_again_max_retries_times(
        self, retries: int, sent: int
    ) -> None:
        """HT-12: 0 is exactly one request."""
        provider = says(*["no"] * 9)
        with pytest.raises(PatternError, match="JSON parse failed") as caught:
            await structured(provider, "x", max_retries=retries)
        assert len(provider.requests) == caught.value.attempts == sent
        assert caught.value.cost == TokenUsage(10 * sent, 2 * sent, sent)
        assert caught.value.metadata["parse_attempts"] == sent
        assert caught.value.metadata["last_response"] == "no"

    @pytest.mark.req("LM-24")
    async def test_the_final_error_counts_every_request(
        self, auto_clock: FakeClock
    ) -> None:
        """LM-24: a reply that is no JSON, then four network errors."""
        provider = says("no", *[ProviderError("reset")] * 4)
        with pytest.raises(ProviderError) as caught:
            await structured(provider, "x")
        assert len(provider.requests) == caught.value.attempts == 5
        assert caught.value.cost.llm_calls == 5
        assert str(caught.value).endswith(" (requests sent: 5)")
        assert str(caught.value).count("requests sent") == 1

    @pytest.mark.req("D-03")
    async def test_a_failing_repair_call_carries_the_cost(self) -> None:
        with pytest.raises(PermanentError) as caught:
            await ask("no", PermanentError("HTTP 400"))
        assert caught.value.cost == TokenUsage(10, 2, 2)
        assert caught.value.metadata["reason"] == "no_json"

    @pytest.mark.req("budget.blocks-at-the-limit")
    async def test_repairs_stay_within_the_budget(self) -> None:
        provider = says(*["no"] * 9)
        with pytest.raises(BudgetExhaustedError) as caught:
            await structured(provider, "x", max_cost=TokenUsage(llm_calls=2))
        assert len(provider.requests) == 2
        assert caught.value.metadata["last_response"] == "no"

    @pytest.mark.req("OB-04")
    async def test_the_key_is_in_no_error(self) -> None:
        """OB-04: not even when the server says it in a reply."""
        for script in (
            [f"key {KEY}"],
            [LLMResponse("", refusal=f"no, {KEY}")],
            ['{"a": 1}'],
        ):
            with pytest.raises(PatternError) as caught:
                await structured(
                    says(*script, api_key=KEY),
                    "x",
                    max_retries=0,
                    validator=lambda _: f"bad {KEY}",
                )
            assert KEY not in str(caught.value)
            assert KEY not in repr(caught.value.metadata)


class TestTruncation:
    @pytest.mark.req("JX-16", "structured.truncated")
    async def test_a_reply_that_was_cut_off_is_asked_for_with_twice_the_room(
        self,
    ) -> None:
        """JX-16: no identical second request."""
        provider = says(cut('{"a": [1, 2'), '{"a": [1, 2]}')
        result = await structured(provider, "x", max_tokens=100)
        assert result.value == {"a": [1, 2]}
        assert [request.max_tokens for request in provider.requests] == [100, 200]
        assert provider.requests[0].last == provider.requests[1].last
        assert result.cost.llm_calls == 2

    @pytest.mark.req("JX-16", "structured.truncated")
    async def test_cut_off_twice_it_is_an_error_of_its_own(self) -> None:
        """JX-16: "truncated at N tokens", never "parse failed"."""
        provider = says(cut('{"a": 1'), cut('{"a": 1, "b"'))
        with pytest.raises(PatternError, match="truncated at 200 tokens") as caught:
            await structured(provider, "x", max_tokens=100)
        assert "parse failed" not in str(caught.value)
        assert caught.value.metadata["reason"] == "truncated"
        assert len(provider.requests) == 2

    @pytest.mark.req("JX-16")
    async def test_without_retries_one_request_is_all(self) -> None:
        error = await fail(cut('{"a'), max_tokens=100)
        assert "truncated at 100 tokens" in str(error)
        assert error.cost.llm_calls == 1

    @pytest.mark.parametrize(
        ("options", "attributes", "name", "limits"),
        [
            ({"max_completion_tokens": 50}, {}, "max_completion_tokens", [50, 100]),
            ({"max_tokens": None}, {"default_max_tokens": 70}, "", [None, 140]),
        ],
    )
    @pytest.mark.req("structured.truncated")
    async def test_the_limit_that_counts_is_the_one_enlarged(
        self, options: Any, attributes: Any, name: str, limits: list[Any]
    ) -> None:
        provider = says(cut("{"), "{}", **attributes)
        await structured(provider, "x", **options)
        seen = [
            request.options.get(name) if name else request.max_tokens
            for request in provider.requests
        ]
        assert seen == limits

    @pytest.mark.parametrize("unknown", [None, OMIT])
    @pytest.mark.req("structured.truncated")
    async def test_an_unknown_limit_cannot_be_enlarged(self, unknown: Any) -> None:
        provider = says(cut("{"))
        with pytest.raises(PatternError, match="truncated at the token limit"):
            await structured(provider, "x", max_tokens=unknown)
        assert len(provider.requests) == 1

    @pytest.mark.req("structured.truncated")
    async def test_a_server_that_takes_no_larger_limit_leaves_it_at_that(self) -> None:
        refusal = PermanentError("max_tokens is too large", metadata={"status": 400})
        with pytest.raises(PatternError, match="truncated at 100 tokens") as caught:
            await structured(says(cut("{"), refusal), "x", max_tokens=100)
        assert isinstance(caught.value.__cause__, PermanentError)
        with pytest.raises(ProviderError):
            await structured(
                says(cut("{"), ProviderError("down")), "x", max_tokens=1, retry=ONCE
            )

    @pytest.mark.req("structured.truncated")
    async def test_a_value_that_is_complete_is_taken_though_the_text_was_cut(
        self,
    ) -> None:
        assert await ask(cut('{"a": 1} as we can se')) == {"a": 1}
        assert await ask(cut('"yes"'), schema=str) == "yes"
        assert await ask(cut("true"), schema=bool) is True

    @pytest.mark.req("structured.truncated")
    async def test_a_number_at_the_cut_may_be_the_beginning_of_another(self) -> None:
        assert await ask(cut("12"), "123", schema=int) == 123

    @pytest.mark.req("D-28")
    async def test_an_empty_reply_at_the_limit_is_truncation_too(self) -> None:
        """A model that reasons may use up all the room before its first word."""
        assert (await fail(cut(""))).metadata["reason"] == "truncated"


class TestRefusal:
    @pytest.mark.parametrize(
        "reply",
        [
            LLMResponse("", refusal="I cannot do that", usage=USAGE),
            LLMResponse("I cannot", refusal="I cannot do that", usage=USAGE),
            LLMResponse("", finish_reason="content_filter", usage=USAGE),
            LLMResponse("", finish_reason="refusal", usage=USAGE),
        ],
    )
    @pytest.mark.req("structured.refusal")
    async def test_a_refusal_is_final_and_said_as_such(self, reply: Any) -> None:
        provider = says(reply)
        with pytest.raises(PatternError, match="The model refused: ") as caught:
            await structured(provider, "x")
        assert caught.value.metadata["reason"] == "refused"
        assert len(provider.requests) == 1
        assert caught.value.cost == TokenUsage(10, 2, 1)


class TestNativeFormat:
    refused = (400, 415, 422)

    @pytest.mark.req("structured.native-format")
    def test_which_providers_say_that_they_can(self) -> None:
        assert supports_format(AnthropicProvider("m", api_key="k"))
        assert not supports_format(Provider("http://x", "m"))
        assert supports_format(Provider("http://x", "m", supports_response_format=True))
        assert not supports_format(object())

    @pytest.mark.req("structured.native-format")
    async def test_a_provider_that_can_gets_the_schema(self) -> None:
        provider = says('{"name": "Al", "age": 3}', supports_response_format=True)
        result = await structured(provider, "x", schema=PERSON)
        assert result.metadata["native_format"] is True
        assert provider.requests[0].options["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": PERSON},
        }

    @pytest.mark.parametrize(
        ("able", "wanted", "sent"),
        [(False, None, False), (False, True, True), (True, False, False)],
    )
    @pytest.mark.req("structured.native-format")
    async def test_the_caller_may_decide(
        self, able: bool, wanted: bool | None, sent: bool
    ) -> None:
        provider = says("[1]", supports_response_format=able)
        await structured(provider, "x", schema=list[int], native_format=wanted)
        assert ("response_format" in provider.requests[0].options) is sent

    @pytest.mark.parametrize("status", refused)
    @pytest.mark.req("structured.native-format")
    async def test_a_server_that_refuses_it_is_asked_once_without(
        self, status: int
    ) -> None:
        refusal = PermanentError("no", metadata={"status": status})
        provider = says(refusal, "no", "[1]", supports_response_format=True)
        result = await structured(provider, "x", schema=list[int])
        sent = ["response_format" in request.options for request in provider.requests]
        assert sent == [True, False, False]
        assert result.metadata["native_format"] is False
        assert result.cost.llm_calls == 3

    @pytest.mark.parametrize(
        "error",
        [
            PermanentError("HTTP 401", metadata={"status": 401}),
            PermanentError("HTTP 404", metadata={"status": 404}),
            ProviderError("HTTP 500", metadata={"status": 500}),
        ],
    )
    @pytest.mark.req("JX-18")
    async def test_other_errors_do_not_trigger_the_fallback(
        self, error: Exception
    ) -> None:
        """JX-18: one request, the original error surfaces."""
        provider = says(error, supports_response_format=True)
        with pytest.raises(type(error), match=str(error)):
            await structured(provider, "x", schema=list[int], retry=ONCE)
        assert len(provider.requests) == 1

    @pytest.mark.req("structured.native-format")
    async def test_a_second_refusal_surfaces_with_the_first_one_as_context(
        self,
    ) -> None:
        first, second = (
            PermanentError(text, metadata={"status": 400}) for text in ("one", "two")
        )
        provider = says(first, second, supports_response_format=True)
        with pytest.raises(PermanentError, match="two") as caught:
            await structured(provider, "x", schema=list[int])
        assert len(provider.requests) == 2
        assert caught.value.cost.llm_calls == 2

    @pytest.mark.req("structured.native-format")
    async def test_a_format_of_the_callers_own_goes_as_it_is(self) -> None:
        own = {"type": "json_object"}
        provider = says("[1]", supports_response_format=True)
        result = await structured(provider, "x", schema=list[int], response_format=own)
        assert provider.requests[0].options == {"response_format": own}
        assert result.metadata["native_format"] is False


class TestValidation:
    @pytest.mark.parametrize(
        "bad",
        [
            {"stream": True},
            {"max_retries": -1},
            {"max_retries": True},
            {"max_retries": 1.5},
            {"max_tokens": 0},
        ],
    )
    @pytest.mark.req("structured.validated")
    async def test_bad_arguments_are_refused_before_any_call(
        self, bad: dict[str, Any]
    ) -> None:
        provider = MockProvider(["{}"])
        with pytest.raises(ValueError, match=next(iter(bad))):
            await structured(provider, "x", **bad)
        assert provider.call_count == 0


class TestDeadlineAndCancellation:
    @pytest.mark.req("patterns.deadline")
    async def test_the_deadline_bounds_the_validator(
        self, fake_clock: FakeClock
    ) -> None:
        async def hang(_value: Any) -> None:
            await asyncio.Event().wait()

        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            task = asyncio.create_task(structured(says("{}"), "x", validator=hang))
        await fake_clock.advance(2.0)
        with pytest.raises(DeadlineExceededError) as caught:
            await task
        assert caught.value.cost == TokenUsage(10, 2, 1)
        assert caught.value.metadata["last_response"] == "{}"

    @pytest.mark.req("patterns.cancel")
    @pytest.mark.parametrize("again_after", [None, 1])
    async def test_cancelled_anywhere_it_leaves_nothing_and_books_once(
        self, everywhere: Any, again_after: int | None
    ) -> None:
        def make() -> Any:
            open_calls = replied = 0
            script = ["no", cut("{"), '{"a": 1}', '{"a": 2}']

            async def answer(request: Request) -> Any:
                nonlocal replied
                await settle(2)
                replied += 1
                reply = script[request.number - 1]
                if isinstance(reply, str):
                    return LLMResponse(reply, usage=USAGE)
                return reply

            async def even(value: Any) -> bool:
                await asyncio.sleep(0)
                return value["a"] % 2 == 0  # type: ignore[no-any-return]

            async def sink(event: TraceEvent) -> None:
                nonlocal open_calls
                open_calls += CHANGE.get(event.kind, 0)
                await asyncio.sleep(0)

            provider = ScriptedProvider(answer)
            kit = Kit(provider)

            def check(_cancelled: bool) -> None:
                assert (provider.active, open_calls) == (0, 0)
                assert kit.usage == TokenUsage(
                    10 * replied, 2 * replied, len(provider.requests)
                )

            return kit.structured("x", validator=even, trace=sink), check

        assert await everywhere(make, again_after=again_after) > 10


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(max_size=60) | JSON.map(repr))
def test_any_reply_whatever_is_a_value_or_a_pattern_error(reply: str) -> None:
    try:
        value = asyncio.run(ask(reply, max_retries=0))
    except PatternError as exc:
        reason = exc.metadata["reason"]
    else:
        reason = "" if isinstance(value, (dict, list)) else "a scalar"
    assert reason in {"", "no_json", "incomplete_json", "ambiguous"}
