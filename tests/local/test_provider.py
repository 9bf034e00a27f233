"""`LocalProvider` over a scripted engine: what it asks for, and what it makes of it."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from executionkit import local
from executionkit._http import HttpRequest, HttpStream, HttpTimeouts, HttpTransport
from executionkit._llm import (
    OMIT,
    LLMProvider,
    LLMResponse,
    StreamEnd,
    StreamingProvider,
    TextDelta,
    ToolCallDelta,
    ToolCallingProvider,
    UsageUpdate,
)
from executionkit._local.host import EngineHost
from executionkit._local.transport import EngineTransport
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    DeadlineExceededError,
    MissingExtraError,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    StreamError,
)
from executionkit.local import LocalProvider
from executionkit.testing import FakeClock

WAIT = 5.0
USER = [{"role": "user", "content": "hi"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
CALL = '{"tool": "add", "arguments": {"a": 1, "b": 2}}'
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}

Make = Callable[..., tuple[LocalProvider, Any]]


@pytest.fixture
async def make(fake: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes a provider and the engine it will load."""
    made: list[LocalProvider] = []

    def build(
        *replies: Any, info: Any = None, **settings: Any
    ) -> tuple[LocalProvider, Any]:
        engine = fake.engine(*replies)
        known = info or fake.info()
        monkeypatch.setattr(local, "build_engine", lambda _: (engine, known))
        provider = LocalProvider(**settings)
        made.append(provider)
        return provider, engine

    yield build
    for provider in made:
        await provider.aclose()


async def began(engine: Any) -> None:
    assert await asyncio.to_thread(engine.began.acquire, timeout=WAIT)


def schema_in(body: dict[str, Any]) -> dict[str, Any]:
    head = "%llguidance {}\nstart: %json "
    schema: dict[str, Any] = json.loads(body["grammar"].removeprefix(head))
    return schema


@pytest.mark.req("local.provider")
class TestWhatItIs:
    def test_it_is_every_kind_of_provider(self) -> None:
        provider = LocalProvider()
        assert isinstance(provider, LLMProvider)
        assert isinstance(provider, ToolCallingProvider)
        assert isinstance(provider, StreamingProvider)
        assert provider.supports_tools is True
        assert provider.supports_response_format is True

    @pytest.mark.parametrize(
        "setting",
        ["context_size", "parallel", "threads", "default_max_tokens", "tool_rounds"],
    )
    @pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
    def test_settings_are_checked(self, setting: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"`{setting}` must be an integer >= 1"):
            LocalProvider(**{setting: value})

    @pytest.mark.parametrize("value", ["hot", True])
    def test_a_temperature_that_is_no_number_is_refused(self, value: Any) -> None:
        with pytest.raises(TypeError, match="`default_temperature`"):
            LocalProvider(default_temperature=value)

    def test_nothing_is_loaded_before_it_is_used(self) -> None:
        provider = LocalProvider("/nowhere/model.gguf")
        assert provider.model == "model"
        with pytest.raises(PermanentError, match=r"not loaded.*load\(\)"):
            _ = provider.base_url

    def test_its_key_is_its_own_and_never_shown(self) -> None:
        provider = LocalProvider()
        assert len(provider.api_key) >= 32
        assert provider.api_key != LocalProvider().api_key
        assert provider.api_key not in repr(provider)
        assert provider.known_secrets == (provider.api_key,)

    async def test_the_context_manager_loads_and_closes(self, make: Make) -> None:
        provider, _ = make()
        async with provider as entered:
            assert entered is provider
            assert provider.base_url == "http://127.0.0.1:9/v1"
        with pytest.raises(PermanentError):
            _ = provider.base_url

    async def test_a_forgotten_provider_ends_its_engine(
        self, fake: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = fake.engine()
        monkeypatch.setattr(local, "build_engine", lambda _: (engine, fake.info()))
        provider = LocalProvider()
        await provider.complete(USER)
        crew = provider._host._crew
        assert crew is not None
        del provider
        gc.collect()
        assert await asyncio.to_thread(crew.finished.wait, WAIT)


@pytest.mark.req("local.provider")
class TestTheRequest:
    async def test_it_carries_messages_and_defaults(self, make: Make) -> None:
        provider, engine = make()
        await provider.complete(USER)
        (body,) = engine.bodies
        assert body["messages"] == USER
        assert body["temperature"] == 0.7
        assert body["max_tokens"] == 512
        assert "seed" not in body
        assert "grammar" not in body
        assert body["stream"] is True
        assert body["return_progress"] is True, "or a long prompt cannot be stopped"

    async def test_given_options_win_and_omit_leaves_out(self, make: Make) -> None:
        provider, engine = make()
        await provider.complete(
            USER, temperature=0, max_tokens=OMIT, top_p=0.5, stop=OMIT, stream=False
        )
        with pytest.raises(ValueError, match=r"stream\(\)"):
            await provider.complete(USER, stream=True)
        (body,) = engine.bodies
        assert body["temperature"] == 0
        assert "max_tokens" not in body
        assert body["top_p"] == 0.5
        assert "stop" not in body
        assert body["stream"] is True

    async def test_more_tokens_than_fit_are_no_error(self, make: Make) -> None:
        provider, engine = make()
        await provider.complete(USER, max_tokens=10**13)
        assert engine.bodies[0]["max_tokens"] == 1_000_000

    async def test_each_call_has_a_seed_of_its_own(self, make: Make) -> None:
        provider, engine = make(seed=7)
        for _ in range(3):
            await provider.complete(USER)
        await provider.complete(USER, seed=99)
        assert [body["seed"] for body in engine.bodies] == [7, 8, 9, 99]

    async def test_seeds_follow_the_order_of_the_calls(self, make: Make) -> None:
        provider, engine = make(seed=0, parallel=4)
        calls = [
            provider.complete([{"role": "user", "content": str(number)}])
            for number in range(8)
        ]
        await asyncio.gather(*calls)
        assert all(
            body["messages"][0]["content"] == str(body["seed"])
            for body in engine.bodies
        )

    @pytest.mark.parametrize(
        ("messages", "options", "why"),
        [
            ("x", {}, r"`messages\[0\]` must be an object"),
            (USER, {"n": 2}, "`n` is 2"),
            (USER, {"response_format": {"type": "xml"}}, "`response_format` is"),
            (USER, {"response_format": "json"}, "`response_format` is"),
            (USER, {"response_format": {"type": "json_schema"}}, "json_schema.schema"),
            (
                USER,
                {"response_format": AS_PERSON, "grammar": "root ::= x"},
                "`grammar` cannot",
            ),
            (USER, {"tools": [ADD], "json_schema": {}}, "`json_schema` cannot"),
            (USER, {"tools": [ADD], "tool_choice": "maybe"}, "`tool_choice` is"),
            (USER, {"tools": [{}]}, "no `name`"),
            (
                USER,
                {
                    "response_format": {
                        "type": "json_object",
                        "schema": {"type": "blah"},
                    }
                },
                "'blah' is not a type",
            ),
        ],
        ids=str,
    )
    async def test_what_there_is_not_is_refused(
        self, make: Make, messages: Any, options: dict[str, Any], why: str
    ) -> None:
        provider, engine = make()
        with pytest.raises(PermanentError, match=why):
            await provider.complete(messages, **options)
        assert engine.bodies == []

    async def test_what_is_not_json_is_refused(self, make: Make) -> None:
        provider, _ = make()
        with pytest.raises(TypeError):
            await provider.complete(USER, stop=object())
        with pytest.raises(ValueError, match="JSON"):
            await provider.complete(USER, temperature=float("nan"))


@pytest.mark.req("local.provider")
class TestTheReply:
    async def test_it_has_text_usage_and_reason(self, make: Make, fake: Any) -> None:
        provider, _ = make(fake.reply("hel", "lo", finish="length"))
        response = await provider.complete(USER)
        assert response.content == "hello"
        assert (response.input_tokens, response.output_tokens) == (3, 2)
        assert response.was_truncated
        assert response.model == "m1"

    async def test_a_stream_gives_the_text_as_it_comes(
        self, make: Make, fake: Any
    ) -> None:
        provider, engine = make(fake.reply("a", "b", "c"))
        sink: list[LLMResponse] = []
        with engine.held():
            stream = provider.stream(USER, usage_sink=sink)
            assert await anext(stream) == "a"
            assert sink == []
            assert stream.partial_response().content == "a"
        assert [text async for text in stream] == ["b", "c"]
        assert sink[0].content == "abc"

    async def test_events_end_with_the_whole_reply(self, make: Make, fake: Any) -> None:
        provider, _ = make(fake.reply("a", "b"))
        events = [event async for event in provider.stream_events(USER)]
        assert events[:2] == [TextDelta("a"), TextDelta("b")]
        assert isinstance(events[2], UsageUpdate)
        assert isinstance(events[3], StreamEnd)
        assert events[3].response.content == "ab"


@pytest.mark.req("local.stops")
class TestStopping:
    async def test_a_cancelled_call_stops_the_engine(
        self, make: Make, fake: Any
    ) -> None:
        provider, engine = make(fake.reply(*"abc"), parallel=1)
        with engine.held():
            task = asyncio.create_task(provider.complete(USER))
            await began(engine)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await provider.complete(USER)
        assert engine.stopped == 1

    async def test_a_cancelled_call_in_line_is_never_asked(self, make: Make) -> None:
        provider, engine = make(parallel=1)
        with engine.held():
            first = asyncio.create_task(provider.complete(USER))
            await began(engine)
            second = asyncio.create_task(provider.complete(USER))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        await first
        await provider.complete(USER)
        assert len(engine.bodies) == 2

    async def test_a_closed_stream_stops_the_engine(
        self, make: Make, fake: Any
    ) -> None:
        provider, engine = make(fake.reply(*"abc"), parallel=1)
        with engine.held():
            async with provider.stream(USER) as stream:
                await anext(stream)
        await provider.complete(USER)
        assert engine.stopped == 1

    async def test_closing_it_from_elsewhere_ends_the_reader(
        self, make: Make, fake: Any
    ) -> None:
        provider, engine = make(fake.reply(*"abc"))
        with engine.held():
            stream = provider.stream(USER)
            await anext(stream)

            async def read_on() -> list[str]:
                return [text async for text in stream]

            reader = asyncio.create_task(read_on())
            await asyncio.sleep(0)
            await stream.aclose()
            async with asyncio.timeout(WAIT):
                assert await reader == []

    async def test_a_deadline_stops_the_engine(
        self, make: Make, fake: Any, fake_clock: FakeClock
    ) -> None:
        provider, engine = make(fake.reply(*"abc"), parallel=1)
        with engine.held():
            with execution_scope(ExecutionContext().with_timeout(3.0)):
                task = asyncio.create_task(provider.complete(USER))
            await began(engine)
            await fake_clock.advance(3.5)
            with pytest.raises(DeadlineExceededError, match="deadline"):
                await task
        await provider.complete(USER)
        assert engine.stopped == 1

    async def test_a_passed_deadline_asks_nothing(
        self, make: Make, fake_clock: FakeClock
    ) -> None:
        provider, engine = make()
        await provider.load()
        context = ExecutionContext().with_timeout(1.0)
        await fake_clock.advance(2.0)
        with execution_scope(context), pytest.raises(DeadlineExceededError):
            await provider.complete(USER)
        assert engine.bodies == []


@pytest.mark.req("local.errors")
class TestErrors:
    async def test_a_prompt_that_is_too_long_says_the_sizes(
        self, make: Make, fake: Any
    ) -> None:
        too_long = fake.error(
            "exceeds", 400, "exceed_context_size_error", n_prompt_tokens=9000, n_ctx=512
        )
        provider, _ = make(too_long, context_size=2048)
        with pytest.raises(PermanentError) as caught:
            await provider.complete(USER)
        said = str(caught.value)
        assert "9000 tokens" in said
        assert "room for 512" in said
        assert "`context_size=2048` shared by `parallel=4`" in said
        assert caught.value.metadata == {"prompt_tokens": 9000, "context_tokens": 512}

    @pytest.mark.parametrize(
        ("code", "kind", "error"),
        [
            (400, "invalid_request_error", PermanentError),
            (501, "not_supported_error", PermanentError),
            (500, "server_error", ProviderError),
            (503, "unavailable_error", ProviderError),
        ],
    )
    async def test_a_refusal_keeps_the_engines_words(
        self, make: Make, fake: Any, code: int, kind: str, error: type[Exception]
    ) -> None:
        provider, _ = make(fake.error("field x is odd", code, kind))
        with pytest.raises(error, match="field x is odd"):
            await provider.complete(USER)

    async def test_what_the_engine_raises_is_a_refusal(self, make: Make) -> None:
        provider, _ = make(ValueError("no such role"))
        with pytest.raises(PermanentError, match="no such role") as caught:
            await provider.complete(USER)
        assert not caught.value.retryable

    async def test_an_error_in_the_middle_keeps_the_text(
        self, make: Make, fake: Any
    ) -> None:
        broken = [*fake.reply("half")[:1], *fake.error("boom", 500, "server_error")]
        provider, _ = make(broken)
        with pytest.raises(StreamError, match="boom") as caught:
            await provider.complete(USER)
        assert caught.value.partial_text == "half"

    async def test_an_engine_that_ends_without_a_word_is_an_error(
        self, make: Make
    ) -> None:
        provider, _ = make([])
        with pytest.raises(ProviderConnectionError, match="without an answer"):
            await provider.complete(USER)

    async def test_closing_fails_what_runs(self, make: Make, fake: Any) -> None:
        provider, engine = make(fake.reply(*"abc"))
        with engine.held():
            task = asyncio.create_task(provider.complete(USER))
            await began(engine)
            provider._host.close()
        with pytest.raises(ProviderConnectionError, match="closed"):
            await task

    async def test_a_missing_package_is_said_by_every_way_in(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider, _ = make()

        def missing(_: object) -> None:
            raise MissingExtraError("pip install it", extra="local")

        monkeypatch.setattr(local, "build_engine", missing)
        with pytest.raises(MissingExtraError):
            await provider.complete(USER)
        with pytest.raises(MissingExtraError):
            await provider.load()
        with pytest.raises(MissingExtraError):
            await anext(provider.stream(USER))
        with pytest.raises(MissingExtraError):
            await provider.count_tokens("x")


@pytest.mark.req("local.errors")
class TestTheTransport:
    """What it is as an `HttpTransport`: requests to a thread instead of a socket."""

    @staticmethod
    def transport(engine: Any, info: Any) -> EngineTransport:
        return EngineTransport(EngineHost(lambda: (engine, info), 1), "room")

    async def test_it_answers_whole_and_in_part(self, fake: Any) -> None:
        reply = fake.reply("a", "b")
        transport = self.transport(fake.engine(reply), fake.info())
        assert isinstance(transport, HttpTransport)
        request = HttpRequest("POST", "http://local/v1", {}, b"{}")
        response = await transport.send(request, HttpTimeouts())
        assert (response.status, response.body) == (200, b"".join(reply))
        stream = await transport.open_stream(request, HttpTimeouts())
        assert isinstance(stream, HttpStream)
        assert await stream.read(5) == b"".join(reply)[:5]
        await transport.aclose()

    async def test_reading_what_was_closed_is_an_error(self, fake: Any) -> None:
        engine = fake.engine(fake.reply("a", "b"))
        transport = self.transport(engine, fake.info())
        request = HttpRequest("POST", "http://local/v1", {}, b"{}")
        with engine.held():
            stream = await transport.open_stream(request, HttpTimeouts())
            await stream.aclose()
            with pytest.raises(ProviderConnectionError, match="closed"):
                await stream.read(100)
        await transport.aclose()

    async def test_an_engine_that_raises_in_the_middle_broke_off(
        self, make: Make, fake: Any
    ) -> None:
        provider, engine = make()
        first = fake.reply("half")[0]

        def breaks(_body: bytes, callback: Callable[[bytes], bool]) -> None:
            callback(first)
            raise RuntimeError("out of memory")

        engine.handle_chat_completions = breaks
        with pytest.raises(ProviderConnectionError, match="out of memory") as caught:
            await provider.complete(USER)
        assert caught.value.partial_text == "half"


@pytest.mark.req("local.structured")
class TestResponseFormat:
    async def test_a_schema_becomes_a_grammar(self, make: Make, fake: Any) -> None:
        provider, engine = make(fake.reply('{"name":', ' "Anna"}'))
        response = await provider.complete(USER, response_format=AS_PERSON)
        (body,) = engine.bodies
        assert schema_in(body)["properties"] == PERSON["properties"]
        assert "response_format" not in body
        assert body["messages"] == USER
        assert response.content == '{"name": "Anna"}'
        assert response.notes == ()

    @pytest.mark.parametrize(
        ("wanted", "kind"),
        [
            ({"type": "json_object"}, "object"),
            ({"type": "json_object", "schema": {"type": "array"}}, "array"),
            ({"type": "text"}, None),
            (None, None),
        ],
        ids=str,
    )
    async def test_the_other_formats(
        self, make: Make, fake: Any, wanted: Any, kind: str | None
    ) -> None:
        provider, engine = make(fake.reply("[]" if kind == "array" else "{}"))
        await provider.complete(USER, response_format=wanted)
        (body,) = engine.bodies
        if kind is None:
            assert "grammar" not in body
        else:
            assert schema_in(body)["type"] == kind

    async def test_what_is_not_enforced_is_noted(self, make: Make, fake: Any) -> None:
        provider, _ = make(fake.reply("{}"))
        schema = {"type": "object", "propertyNames": {"maxLength": 3}}
        wanted = {"type": "json_object", "schema": schema}
        response = await provider.complete(USER, response_format=wanted)
        assert response.notes == ("`propertyNames` at # is not enforced",)

    async def test_the_text_is_streamed_as_it_comes(
        self, make: Make, fake: Any
    ) -> None:
        provider, _ = make(fake.reply('{"name"', ': "A"}'))
        stream = provider.stream(USER, response_format=AS_PERSON)
        assert [text async for text in stream] == ['{"name"', ': "A"}']

    @pytest.mark.parametrize("texts", [["```json\n", "{}"], ["{", "\n", "}"], ["{}x"]])
    async def test_a_reply_outside_of_the_grammar_is_an_error(
        self, make: Make, fake: Any, texts: list[str]
    ) -> None:
        provider, _ = make(fake.reply(*texts))
        with pytest.raises(PermanentError, match="did not keep to"):
            await provider.complete(USER, response_format=AS_PERSON)

    async def test_a_reply_that_is_cut_off_is_no_such_error(
        self, make: Make, fake: Any
    ) -> None:
        provider, _ = make(fake.reply('{"name": "An', finish="length"))
        response = await provider.complete(USER, response_format=AS_PERSON)
        assert response.content == '{"name": "An'
        assert response.was_truncated


@pytest.mark.req("local.tools")
class TestTools:
    async def test_a_call_comes_back_as_a_call(self, make: Make, fake: Any) -> None:
        provider, engine = make(fake.reply(CALL[:9], CALL[9:]))
        response = await provider.complete(USER, tools=[ADD])
        (body,) = engine.bodies
        assert "tools" not in body
        assert "Tools:" in body["messages"][0]["content"]
        assert len(schema_in(body)["anyOf"]) == 2
        assert response.content == ""
        assert response.finish_reason == "tool_calls"
        (call,) = response.tool_calls
        assert (call.name, dict(call.arguments)) == ("add", {"a": 1, "b": 2})

    async def test_an_answer_comes_back_as_text(self, make: Make, fake: Any) -> None:
        provider, _ = make(fake.reply('{"answer": "hello"}'))
        response = await provider.complete(USER, tools=[ADD])
        assert (response.content, response.finish_reason) == ("hello", "stop")
        assert response.tool_calls == ()

    async def test_events_and_the_reply_speak_of_the_same_call(
        self, make: Make, fake: Any
    ) -> None:
        provider, _ = make(fake.reply(CALL[:9], CALL[9:]))
        events = [e async for e in provider.stream_events(USER, tools=[ADD])]
        delta, usage, end = events
        assert isinstance(delta, ToolCallDelta)
        assert isinstance(usage, UsageUpdate)
        assert isinstance(end, StreamEnd)
        assert delta.id == end.response.tool_calls[0].id
        assert json.loads(delta.arguments) == {"a": 1, "b": 2}

    async def test_a_streamed_answer_is_the_text_alone(
        self, make: Make, fake: Any
    ) -> None:
        provider, _ = make(fake.reply('{"answer":', ' "hello"}'))
        stream = provider.stream(USER, tools=[ADD])
        assert [text async for text in stream] == ["hello"]

    async def test_a_call_that_is_cut_off_is_a_problem(
        self, make: Make, fake: Any
    ) -> None:
        provider, _ = make(fake.reply(CALL[:30], finish="length"))
        response = await provider.complete(USER, tools=[ADD])
        assert response.tool_calls == ()
        assert response.problems[0].name == "add"
        assert response.was_truncated

    async def test_after_a_call_a_small_model_has_to_answer(
        self, make: Make, fake: Any
    ) -> None:
        provider, engine = make(fake.reply(CALL), fake.reply("It is 3."))
        first = await provider.complete(USER, tools=[ADD])
        result = {
            "role": "tool",
            "tool_call_id": first.tool_calls[0].id,
            "content": "3",
        }
        messages = [*USER, first.to_message(), result]
        second = await provider.complete(messages, tools=[ADD])
        body = engine.bodies[1]
        assert "grammar" not in body
        assert body["messages"][0]["content"].startswith("Facts: add(a=1, b=2) = 3\n")
        assert second.content == "It is 3."

    async def test_a_larger_model_goes_on_as_it_likes(
        self, make: Make, fake: Any
    ) -> None:
        large = fake.info(parameters=7_000_000_000)
        provider, engine = make(fake.reply(CALL), info=large)
        first = await provider.complete(USER, tools=[ADD])
        messages = [*USER, first.to_message()]
        again = await provider.complete(messages, tools=[ADD])
        assert again.has_tool_calls
        assert "grammar" in engine.bodies[1]

    async def test_the_number_of_rounds_can_be_set(self, make: Make, fake: Any) -> None:
        provider, engine = make(fake.reply(CALL), tool_rounds=2)
        messages: list[dict[str, Any]] = [*USER]
        for _ in range(3):
            reply = await provider.complete(messages, tools=[ADD])
            messages.append(reply.to_message())
        assert ["grammar" in body for body in engine.bodies] == [True, True, False]

    async def test_a_forced_choice_is_always_kept(self, make: Make, fake: Any) -> None:
        provider, engine = make(fake.reply(CALL))
        first = await provider.complete(USER, tools=[ADD])
        messages = [*USER, first.to_message()]
        again = await provider.complete(messages, tools=[ADD], tool_choice="required")
        assert again.has_tool_calls
        assert schema_in(engine.bodies[1])["properties"]["tool"] == {"const": "add"}

    async def test_an_answer_with_a_schema(self, make: Make, fake: Any) -> None:
        provider, engine = make(fake.reply('{"answer": {"name": "Anna"}}'))
        response = await provider.complete(USER, tools=[ADD], response_format=AS_PERSON)
        answer = schema_in(engine.bodies[0])["anyOf"][0]["properties"]["answer"]
        assert answer["properties"] == PERSON["properties"]
        assert response.content == '{"name": "Anna"}'

    async def test_history_without_tools_on_offer_is_readable(
        self, make: Make, fake: Any
    ) -> None:
        provider, engine = make(fake.reply(CALL), fake.reply("done"))
        first = await provider.complete(USER, tools=[ADD])
        await provider.complete([*USER, first.to_message()])
        assert engine.bodies[1]["messages"] == USER

    async def test_a_template_with_tools_gets_them_as_they_are(
        self, make: Make, fake: Any
    ) -> None:
        knows = fake.info(native_tools=True)
        provider, engine = make(info=knows)
        history = [*USER, {"role": "tool", "tool_call_id": "1", "content": "x"}]
        await provider.complete(
            history, tools=[ADD], tool_choice="auto", response_format=AS_PERSON
        )
        (body,) = engine.bodies
        assert body["tools"] == [ADD]
        assert body["tool_choice"] == "auto"
        assert body["response_format"] == AS_PERSON
        assert body["messages"] == history


@pytest.mark.req("local.count-tokens")
class TestCountingTokens:
    async def test_texts_and_prompts(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider, _ = make()
        asked: list[tuple[str, Any]] = []

        def server(address: str, key: str, path: str, body: Any) -> dict[str, Any]:
            assert (address, key) == ("http://127.0.0.1:9", provider.api_key)
            asked.append((path, body))
            if path == "/apply-template":
                return {"prompt": "one two three"}
            return {"tokens": body["content"].split()}

        monkeypatch.setattr(local, "ask_server", server)
        assert await provider.count_tokens("a b") == 2
        history = [*USER, {"role": "tool", "tool_call_id": "1", "content": "x"}]
        assert await provider.count_tokens(history) == 3
        path, body = asked[1]
        assert path == "/apply-template"
        assert [message["role"] for message in body["messages"]] == ["user"]
