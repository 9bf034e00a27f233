"""Slips of the first hour: each is refused before anything is sent, with a way out."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import executionkit
from executionkit import (
    AnthropicProvider,
    ExecutionContext,
    Kit,
    LLMResponse,
    MockProvider,
    PatternResult,
    Provider,
    TokenBucket,
    TokenUsage,
    consensus,
    estimate_cost,
    execution_scope,
    pipe,
    react_loop,
)
from executionkit._endpoint import Options
from executionkit.engine.schema import SchemaProblem

URL = "http://127.0.0.1:1/v1"
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.req("arguments.up-front")
class TestAProvider:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"base_url": None}, "`base_url` must be a str, got None"),
            ({"model": 3}, "`model` must be a str, the model's name; got 3"),
            ({"api_key": None}, "`api_key` must be a str, got NoneType; leave it out"),
            ({"api_key": 3}, "`api_key` must be a str, got int"),
            ({"timeout": "10"}, "`timeout` must be a number of seconds"),
            ({"idle_timeout": True}, "`idle_timeout` must be a number of seconds"),
            ({"connect_timeout": [1]}, "`connect_timeout` must be a number"),
            ({"transport": 3}, "`transport` must be one of `aiohttp`"),
            ({"headers": 3}, "`headers` must map names to texts, got 3"),
            ({"headers": {"x-a": 3}}, "the header 'x-a' must be a text, got int"),
            ({"max_connections": "9"}, "`max_connections` must be an int, got str"),
        ],
    )
    @pytest.mark.parametrize("kind", [Provider, AnthropicProvider])
    def test_a_setting_of_the_wrong_kind_is_a_type_error(
        self, kind: Any, given: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(TypeError) as caught:
            kind(**{"base_url": URL, "model": "m", **given})
        assert said in str(caught.value)

    @pytest.mark.req("provider.settings-checked")
    @pytest.mark.parametrize("kind", [Provider, AnthropicProvider])
    @pytest.mark.parametrize("model", ["", "  "])
    def test_a_model_has_a_name(self, kind: Any, model: str) -> None:
        with pytest.raises(ValueError, match="`model` must be the model's name"):
            kind(base_url=URL, model=model)

    @pytest.mark.req("provider.settings-checked")
    @pytest.mark.parametrize("name", ["requests", "urllib", ""])
    def test_a_transport_is_known(self, name: str) -> None:
        with pytest.raises(ValueError, match="must be one of `aiohttp`") as caught:
            Provider(URL, "m", transport=name)
        assert repr(name) in str(caught.value)

    @pytest.mark.req("provider.settings-checked")
    @pytest.mark.parametrize(
        "url", [f"{URL}/chat/completions", f"{URL}/chat/completions/?api-version=1"]
    )
    def test_a_base_url_has_not_the_path_that_is_added(self, url: str) -> None:
        with pytest.raises(ValueError, match="must not end in '/chat/completions'"):
            Provider(url, "m")

    @pytest.mark.req("provider.settings-checked")
    def test_nor_that_of_the_other_dialect(self) -> None:
        with pytest.raises(ValueError, match="must not end in '/v1/messages'"):
            AnthropicProvider("m", base_url="http://127.0.0.1:1/v1/messages")

    def test_a_transport_object_is_one_that_sends(self) -> None:
        class Transport:
            async def send(self) -> None: ...

        given: Any = Transport()
        options = Options(
            timeout=1,
            idle_timeout=None,
            connect_timeout=0.5,
            transport=given,
            headers={},
            max_connections=1,
        )
        assert options.transport is given

    @pytest.mark.parametrize("messages", ["hello", None, 3, USER[0], ["hello"]])
    @pytest.mark.parametrize(
        "provider",
        [Provider(URL, "m"), AnthropicProvider("m", base_url=URL)],
        ids=["openai", "anthropic"],
    )
    async def test_messages_are_a_list_of_objects(
        self, provider: Any, messages: Any
    ) -> None:
        for ask in (provider.complete, provider.stream):
            with pytest.raises(TypeError, match="message") as caught:
                await ask(messages)
            assert '[{"role": "user", "content": "Hello"}]' in str(caught.value)


@pytest.mark.req("arguments.up-front")
class TestAKit:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"provider": None}, "`provider` must be a provider, got None"),
            ({"provider": MockProvider}, "`MockProvider(...)`"),
            ({"messages": "hello"}, "`messages` must be a list of messages"),
            ({"messages": USER[0]}, "`messages` must be a list of messages"),
            ({"messages": ["hello"]}, "`messages[0]` must be a message"),
            ({"rate_limiter": 5}, "`TokenBucket(rate=5)`"),
            ({"rate_limiter": TokenBucket}, "`rate_limiter` must be a limiter"),
        ],
    )
    def test_its_settings_are_checked(self, given: dict[str, Any], said: str) -> None:
        make: Any = Kit
        with pytest.raises(TypeError) as caught:
            make(**{"provider": MockProvider(), **given})
        assert said in str(caught.value)

    @pytest.mark.parametrize("text", [None, 3, USER])
    async def test_what_is_said_in_a_turn_is_a_text(self, text: Any) -> None:
        provider = MockProvider(["never"])
        kit = Kit(provider)
        with pytest.raises(TypeError, match="`user_text` must be a str"):
            await kit.turn(text)
        assert provider.call_count == 0
        assert kit.messages == []

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"prompt": 3}, "`prompt` must be a str"),
            ({"max_cost": 5}, "`TokenUsage(llm_calls=5)`"),
            ({"retry": 3}, "`RetryConfig(max_retries=3)`"),
            ({"trace": "file.jsonl"}, "`JsonlTraceSink(path)`"),
        ],
    )
    @pytest.mark.parametrize("name", ["stream_consensus", "stream_react_loop"])
    async def test_arguments_of_a_stream_are_checked(
        self, name: str, given: dict[str, Any], said: str
    ) -> None:
        provider = MockProvider(["never"])
        with pytest.raises(TypeError) as caught:
            await getattr(Kit(provider), name)(**{"prompt": "?", **given})
        assert said in str(caught.value)
        assert provider.call_count == 0

    @pytest.mark.req("kit.stream-takes-no-vote")
    @pytest.mark.parametrize(
        ("name", "option", "owner"),
        [
            ("stream_consensus", {"num_samples": 5}, "consensus()"),
            ("stream_consensus", {"strategy": "majority"}, "consensus()"),
            ("stream_react_loop", {"max_rounds": 3}, "react_loop()"),
            ("stream_react_loop", {"approval_gate": None}, "react_loop()"),
        ],
    )
    async def test_a_stream_takes_nothing_of_the_whole_pattern(
        self, name: str, option: dict[str, Any], owner: str
    ) -> None:
        provider = MockProvider(["never"])
        with pytest.raises(TypeError, match="streams one answer") as caught:
            await getattr(Kit(provider), name)("?", **option)
        assert f"belongs to {owner}" in str(caught.value)
        assert provider.call_count == 0

    @pytest.mark.req("kit.both-names")
    async def test_a_method_has_the_name_of_its_pattern_too(self) -> None:
        kit = Kit(MockProvider(["a", "9"]))
        assert (await kit.react_loop("?")).value == "a"
        assert Kit.refine_loop is Kit.refine
        assert kit.usage.llm_calls == 1


@pytest.mark.req("arguments.up-front")
class TestAPipe:
    @pytest.mark.parametrize(
        ("step", "given", "said"),
        [
            ("consensus", {}, "`steps[1]` must be callable, got 'consensus'"),
            (None, {}, "`steps[1]` must be callable, got None"),
            (consensus, {"prompt": 3}, "`prompt` must be a str"),
            (consensus, {"max_budget": 3}, "`TokenUsage(llm_calls=3)`"),
            (consensus, {"retry": 3}, "`RetryConfig(max_retries=3)`"),
            (consensus, {"trace": "a.jsonl"}, "`JsonlTraceSink(path)`"),
        ],
    )
    async def test_arguments_are_checked_before_the_first_step(
        self, step: Any, given: dict[str, Any], said: str
    ) -> None:
        async def paid(provider: Any, prompt: str) -> PatternResult[str]:
            await provider.complete(USER)
            return PatternResult(prompt)

        provider = MockProvider(["never"])
        options: dict[str, Any] = {"prompt": "?", **given}
        prompt = options.pop("prompt")
        with pytest.raises(TypeError) as caught:
            await pipe(provider, prompt, paid, step, **options)
        assert said in str(caught.value)
        assert provider.call_count == 0

    @pytest.mark.req("pipe.no-max-cost")
    async def test_max_cost_would_be_per_step_and_is_refused(self) -> None:
        provider = MockProvider(["never"])
        with pytest.raises(TypeError, match="use `max_budget`"):
            await pipe(provider, "?", react_loop, max_cost=TokenUsage(llm_calls=1))
        assert provider.call_count == 0


@pytest.mark.req("arguments.up-front")
class TestTheOthers:
    @pytest.mark.parametrize("context", [5, {"timeout": 5}, "5s", ExecutionContext])
    def test_a_scope_is_of_a_context(self, context: Any) -> None:
        with pytest.raises(TypeError, match="`context` must be an ExecutionContext"):
            execution_scope(context)

    @pytest.mark.parametrize(
        ("usage", "remedy"),
        [
            (5, "see `result.cost`"),
            (PatternResult("a"), "pass `result.cost`"),
            (None, "see `result.cost`"),
        ],
    )
    def test_money_is_made_of_usage(self, usage: Any, remedy: str) -> None:
        with pytest.raises(TypeError, match="`usage` must be a TokenUsage") as caught:
            estimate_cost(usage, input_rate=1.0, output_rate=1.0)
        assert remedy in str(caught.value)

    @pytest.mark.req("mock.checked-when-made")
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"responses": "hello"}, "`MockProvider([reply])`"),
            ({"responses": LLMResponse("a")}, "`MockProvider([reply])`"),
            ({"responses": None}, "`responses` must be a list"),
            ({"responses": ["a", 1]}, "`responses[1]` must be a text"),
            ({"responses": [None]}, "got NoneType"),
            ({"exception": "x"}, "`exception` must be an exception or None, got str"),
            ({"exception": int}, "`exception` must be an exception or None, got type"),
        ],
    )
    def test_a_mock_is_checked_when_it_is_made(
        self, given: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(TypeError) as caught:
            MockProvider(**given)
        assert said in str(caught.value)

    def test_a_mock_may_raise_a_class(self) -> None:
        given: Any = OSError
        assert MockProvider(("a",), exception=given).exception is given


@pytest.mark.req("exports.what-signatures-name")
class TestNamesAtTheRoot:
    @pytest.mark.parametrize(
        "name",
        [
            "ApprovalCallback",
            "ProgressCallback",
            "SchemaError",
            "Summarizer",
            "answer_normalizer",
            "casefold_normalizer",
            "numeric_normalizer",
        ],
    )
    def test_what_signatures_and_raises_name_is_there(self, name: str) -> None:
        assert name in executionkit.__all__
        assert getattr(executionkit, name) is not None

    def test_a_schema_error_comes_from_a_public_module(self) -> None:
        error = executionkit.SchemaError("wrong", "/properties/a")
        assert type(error).__module__ == "executionkit.engine.schema"
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.path) == (executionkit.SchemaError, error.path)

    def test_so_does_what_a_validation_finds(self) -> None:
        problem = SchemaProblem("/a", "wrong")
        assert SchemaProblem.__module__ == "executionkit.engine.schema"
        assert pickle.loads(pickle.dumps(problem)) == problem
