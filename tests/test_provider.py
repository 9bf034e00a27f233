"""`Provider`: what it is, what it sends, what comes back, over real sockets."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from executionkit import AnthropicProvider
from executionkit._http import open_transport
from executionkit._llm import LLMProvider, StreamingProvider, ToolCallingProvider
from executionkit.errors import (
    BadResponseError,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from executionkit.provider import (
    OMIT,
    Provider,
    _classify_http_error,
    _parse_retry_after,
    _redact_sensitive,
)
from executionkit.testing import FakeClock
from executionkit.testing.http import (
    Gate,
    ReceivedRequest,
    Reply,
    ScriptedServer,
    drip,
    json_reply,
    no_reply,
    raw_reply,
    reset_reply,
)

KEY = "tops3cret-value-17"
USER = [{"role": "user", "content": "hi"}]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
TRANSPORTS = ["aiohttp", "httpx2", "stdlib"]


def answer(content: str = "hello", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "r1", "model": "m1", "choices": [choice], "usage": USAGE, **more}


OK = json_reply(answer())


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "stdlib":
        pytest.importorskip(name)
    return name


class TestValue:
    def test_the_documented_order_and_defaults_hold(self) -> None:
        provider = Provider("http://h.example/v1", "m", "k", 0.1, 7, 9.0)
        assert provider.default_temperature == 0.1
        assert provider.default_max_tokens == 7
        assert provider.timeout == 9.0
        plain = Provider("http://h.example/v1", "m")
        assert (plain.api_key, plain.default_temperature) == ("", 0.7)
        assert (plain.default_max_tokens, plain.timeout) == (4096, 120.0)

    def test_it_is_a_provider_of_every_kind(self) -> None:
        provider = Provider("http://h.example", "m")
        assert isinstance(provider, LLMProvider)
        assert isinstance(provider, ToolCallingProvider)
        assert isinstance(provider, StreamingProvider)
        assert provider.supports_tools is True
        typed: ToolCallingProvider = provider
        streaming: StreamingProvider = provider
        assert (typed, streaming) == (provider, provider)

    def test_it_is_a_frozen_value(self) -> None:
        provider = Provider("http://h.example", "m", KEY, headers={"X-A": "1"})
        with pytest.raises(FrozenInstanceError):
            provider.model = "other"  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            provider.supports_tools = False  # type: ignore[misc,assignment]
        assert not hasattr(provider, "__dict__")
        with pytest.raises(TypeError):
            provider.headers["X-A"] = "2"  # type: ignore[index]
        assert Provider("http://h.example", "m", headers=None).headers == {}
        same = Provider("http://h.example", "m", KEY, headers={"X-A": "1"})
        assert provider == same
        assert hash(provider) == hash(same)
        assert provider != replace(provider, model="other")

    def test_it_can_be_copied_and_sent_to_another_process(self) -> None:
        provider = Provider("http://h.example?a=b", "m", KEY, transport="stdlib")
        for twin in (
            pickle.loads(pickle.dumps(provider)),
            copy.deepcopy(provider),
            copy.copy(provider),
        ):
            assert twin == provider
            assert twin is not provider

    @pytest.mark.req("D-23", "OB-04")
    def test_its_repr_shows_no_secret(self) -> None:
        """D-23: neither key, nor userinfo, nor query."""
        provider = Provider("https://me:hunter22@h.example/v1?key=abcd1234", "m", KEY)
        shown = repr(provider)
        assert shown.startswith("Provider(base_url='https://")
        assert shown.endswith("model='m', api_key='***')")
        for secret in (KEY, "hunter22", "abcd1234"):
            assert secret not in shown
        assert repr(Provider("http://h", "m")) == (
            "Provider(base_url='http://h', model='m', api_key='')"
        )

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({"timeout": 0}, "`timeout` must be > 0"),
            ({"idle_timeout": -1}, "`idle_timeout` must be > 0"),
            ({"connect_timeout": float("nan")}, "`connect_timeout` must be > 0"),
            ({"max_connections": 0}, "`max_connections` must be >= 1"),
            ({"base_url": "file:///x"}, "scheme must be 'http' or 'https'"),
            ({"headers": {"a b": "c"}}, "'a b' cannot be the name of a header"),
        ],
    )
    def test_settings_that_cannot_work_are_refused(
        self, settings: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(ValueError, match=why):
            Provider(**{"base_url": "http://h.example", "model": "m", **settings})

    @pytest.mark.req("D-41", "OB-04")
    @pytest.mark.parametrize("key", [f"{KEY}\r\nX: y", f"{KEY}é", f"{KEY}\x00"])
    def test_a_key_that_cannot_be_sent_is_refused_unseen(self, key: str) -> None:
        """D-41: the message does not show it."""
        with pytest.raises(ValueError, match="header `Authorization`") as caught:
            Provider("http://h.example", "m", key)
        assert KEY not in repr(caught.value)

    def test_the_environment_can_describe_it(self, monkeypatch: Any) -> None:
        environ = {
            "EXECUTIONKIT_BASE_URL": "http://h.example/v1",
            "EXECUTIONKIT_MODEL": "m",
            "EXECUTIONKIT_API_KEY": KEY,
        }
        provider = Provider.from_env(environ=environ, timeout=3)
        assert provider == Provider("http://h.example/v1", "m", KEY, timeout=3)
        assert (
            Provider.from_env(environ={**environ, "EXECUTIONKIT_API_KEY": ""}).api_key
            == ""
        )
        with pytest.raises(
            ValueError, match="`EXECUTIONKIT_BASE_URL` and `EXECUTIONKIT_MODEL`"
        ):
            Provider.from_env(environ={})
        with pytest.raises(ValueError, match="set `EXECUTIONKIT_MODEL`"):
            Provider.from_env(environ={"EXECUTIONKIT_BASE_URL": "http://h"})
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert Provider.from_env().api_key == KEY
        given = Provider.from_env(environ={}, base_url="http://h", model="m")
        assert given == Provider("http://h", "m")

    def test_the_environment_can_describe_claude(self, monkeypatch: Any) -> None:
        environ = {"ANTHROPIC_MODEL": "claude", "ANTHROPIC_API_KEY": KEY}
        provider = AnthropicProvider.from_env(environ=environ, timeout=3)
        assert provider == AnthropicProvider("claude", KEY, timeout=3)
        elsewhere = {**environ, "ANTHROPIC_BASE_URL": "http://h.example"}
        assert AnthropicProvider.from_env(environ=elsewhere).base_url == (
            "http://h.example"
        )
        with pytest.raises(ValueError, match="set `ANTHROPIC_MODEL`"):
            AnthropicProvider.from_env(environ={})
        assert AnthropicProvider.from_env(environ={}, model="m").model == "m"
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert AnthropicProvider.from_env().api_key == KEY


class TestRequest:
    async def test_it_posts_what_was_asked_for(self, transport: str) -> None:
        async with (
            ScriptedServer(OK) as server,
            Provider(server.url + "/v1/", "m", KEY, transport=transport) as provider,
        ):
            response = await provider.complete(USER, tools=[{"type": "x"}], seed=3)
        assert response.content == "hello"
        assert response.usage == USAGE
        (request,) = server.requests
        assert (request.method, request.path) == ("POST", "/v1/chat/completions")
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["content-type"] == "application/json"
        assert request.json() == {
            "model": "m",
            "messages": USER,
            "temperature": 0.7,
            "max_tokens": 4096,
            "tools": [{"type": "x"}],
            "seed": 3,
        }

    @pytest.mark.req("D-41", "provider.omit")
    async def test_parameters_can_be_left_out(self) -> None:
        """D-41: for models that refuse them."""
        async with ScriptedServer(OK) as server:
            provider = Provider(server.url, "m", "", None, None)
            await provider.complete(USER)
            await provider.complete(USER, temperature=0.0, max_tokens=1)
            provider = Provider(server.url, "m")
            await provider.complete(USER, temperature=OMIT, max_completion_tokens=5)
            await provider.complete(USER, max_tokens=OMIT, temperature=0)
            await provider.aclose()
        sent = [
            set(request.json()) - {"model", "messages"} for request in server.requests
        ]
        assert sent == [
            set(),
            {"temperature", "max_tokens"},
            {"max_completion_tokens"},
            {"temperature"},
        ]
        assert all("authorization" not in each.headers for each in server.requests)

    @pytest.mark.req("D-41")
    async def test_an_address_with_a_query_works(self, transport: str) -> None:
        """D-41: Azure."""
        async with ScriptedServer(OK) as server:
            base = f"{server.url}/openai/deployments/d?api-version=2024-06-01"
            async with Provider(
                base, "m", transport=transport, headers={"api-key": KEY}
            ) as provider:
                await provider.complete(USER)
        (request,) = server.requests
        assert request.path == (
            "/openai/deployments/d/chat/completions?api-version=2024-06-01"
        )
        assert request.headers["api-key"] == KEY

    @pytest.mark.req("D-41")
    async def test_blanks_around_the_key_are_dropped(self, transport: str) -> None:
        """D-41: a key read from a file ends in a newline."""
        async with (
            ScriptedServer(OK) as server,
            Provider(server.url, "m", f" {KEY}\n", transport=transport) as provider,
        ):
            await provider.complete(USER)
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"

    async def test_own_headers_win_and_userinfo_is_a_header(self) -> None:
        async with ScriptedServer(OK) as server:
            base = server.url.replace("http://", "http://me:pw@")
            for settings in (
                {"base_url": base},
                {"base_url": base, "api_key": KEY},
                {"base_url": base, "headers": {"AUTHORIZATION": "Mine x"}},
            ):
                async with Provider(model="m", **settings) as provider:
                    await provider.complete(USER)
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == ["Basic bWU6cHc=", f"Bearer {KEY}", "Mine x"]

    async def test_what_is_not_json_never_leaves(self) -> None:
        provider = Provider("http://h.example", "m")
        with pytest.raises(TypeError, match="cannot be sent"):
            await provider.complete(USER, seed=object())
        with pytest.raises(TypeError, match="cannot be sent"):
            provider.stream(USER, seed=object())

    async def test_a_stream_is_not_awaited_as_one_answer(self) -> None:
        with pytest.raises(ValueError, match=r"use `stream\(\)`"):
            await Provider("http://h.example", "m").complete(USER, stream=True)

    async def test_the_messages_are_taken_when_the_stream_is_made(self) -> None:
        messages = [{"role": "user", "content": "first"}]
        async with ScriptedServer(OK) as server, Provider(server.url, "m") as provider:
            stream = provider.stream(messages)
            messages[0]["content"] = "second"
            assert [text async for text in stream] == ["hello"]
        assert server.requests[0].json()["messages"][0]["content"] == "first"


class TestFailures:
    async def test_a_huge_error_page_does_not_hide_the_status(
        self, transport: str
    ) -> None:
        page = Reply(
            500, {"content-type": "text/html"}, b"<p>down</p>" + b" " * 200_000
        )
        small = open_transport(transport, max_response_bytes=1_000)
        async with ScriptedServer([page, json_reply({"error": "x"})]) as server:
            provider = Provider(server.url, "m", transport=small)
            with pytest.raises(ProviderError, match="HTTP 500") as caught:
                await provider.complete(USER)
            await small.aclose()
        assert type(caught.value) is ProviderError

    @pytest.mark.parametrize(
        ("settings", "kind", "words"),
        [
            ({"default_temperature": "hot"}, TypeError, "`default_temperature`"),
            ({"default_temperature": True}, TypeError, "`default_temperature`"),
            ({"default_temperature": float("nan")}, ValueError, "must be finite"),
            ({"default_max_tokens": 1.5}, TypeError, "`default_max_tokens`"),
            ({"default_max_tokens": "9"}, TypeError, "`default_max_tokens`"),
            ({"default_max_tokens": 0}, ValueError, "`default_max_tokens`"),
            ({"timeout": "9"}, TypeError, "`timeout`"),
            ({"max_connections": 1.5}, TypeError, "`max_connections`"),
        ],
    )
    def test_a_default_that_is_no_number_is_refused_at_once(
        self, settings: dict[str, Any], kind: type[Exception], words: str
    ) -> None:
        for make in (
            lambda: Provider("http://h.example", "m", **settings),
            lambda: AnthropicProvider("m", **settings),
        ):
            with pytest.raises(kind, match=words):
                make()

    def test_only_one_api_can_do_without_a_number_of_tokens(self) -> None:
        assert Provider("http://h", "m", default_max_tokens=None) is not None
        with pytest.raises(TypeError, match="must be an int; got None"):
            AnthropicProvider("m", default_max_tokens=None)  # type: ignore[arg-type]

    @pytest.mark.req("D-12", "HT-12")
    @pytest.mark.parametrize(
        ("reply", "kind", "why"),
        [
            (
                json_reply({"error": {"message": "boom"}}, status=401),
                PermanentError,
                "boom",
            ),
            (json_reply({"error": "boom"}, status=402), PermanentError, "HTTP 402"),
            (json_reply({"error": "boom"}, status=500), ProviderError, "HTTP 500"),
            (json_reply({"error": {"message": "boom"}}), PermanentError, "boom"),
            (Reply(501), PermanentError, "HTTP 501"),
            (
                Reply(307, {"location": "/elsewhere"}),
                PermanentError,
                "HTTP 307",
            ),
        ],
    )
    async def test_a_failure_is_one_request_and_one_typed_error(
        self, reply: Reply, kind: type[Exception], why: str
    ) -> None:
        """D-12, HT-12: nothing is sent twice from here; redirects are not followed."""
        async with (
            ScriptedServer(reply) as server,
            Provider(server.url, "m") as provider,
        ):
            with pytest.raises(kind, match=why) as caught:
                await provider.complete(USER)
            with pytest.raises(kind, match=why):
                async for _ in provider.stream(USER):
                    pass
        assert type(caught.value) is kind
        assert len(server.requests) == 2

    @pytest.mark.req("HT-02")
    async def test_a_long_hint_arrives_whole(self) -> None:
        """HT-02: whoever cannot wait decides; nothing is shortened here."""
        reply = json_reply({}, status=429, headers={"Retry-After": "86400"})
        async with (
            ScriptedServer(reply) as server,
            Provider(server.url, "m") as provider,
        ):
            with pytest.raises(RateLimitError) as caught:
                await provider.complete(USER)
        assert caught.value.retry_after == 86400

    @pytest.mark.req("HT-08", "D-13")
    @pytest.mark.parametrize(
        "body",
        [
            b"<html><title>Welcome</title></html>",
            json.dumps(answer()).encode()[:50],
            b"",
            b"\xff\xfe\xfa",
            b"[]",
        ],
    )
    async def test_a_200_that_is_no_answer_is_a_bad_response(
        self, transport: str, body: bytes
    ) -> None:
        """HT-08: the text is shown, bounded; retryable once."""
        async with (
            ScriptedServer(
                Reply(200, {"content-type": "application/json"}, body)
            ) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            with pytest.raises(BadResponseError) as caught:
                await provider.complete(USER)
        assert caught.value.retryable
        assert caught.value.retry_limit == 1
        assert len(str(caught.value)) < 800
        if b"Welcome" in body:
            assert "Welcome" in str(caught.value)

    @pytest.mark.req("HT-09", "D-13")
    @pytest.mark.parametrize(
        "reply",
        [
            reset_reply(),
            raw_reply(b""),
            Reply(200, {"Content-Length": "999"}, b'{"choices"', ending="cut"),
            Reply(200, {}, [b'{"choices"'], framing="chunked", ending="cut"),
            Reply(200, {}, [b'{"choices"'], framing="chunked", ending="reset"),
        ],
    )
    async def test_a_broken_connection_is_a_connection_error(
        self, transport: str, reply: Reply
    ) -> None:
        """HT-09, D-13: with its cause, retryable."""
        async with (
            ScriptedServer(reply) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            with pytest.raises(
                ProviderConnectionError, match="Transport failure"
            ) as caught:
                await provider.complete(USER)
        assert caught.value.retryable
        assert caught.value.__context__ is None

    async def test_a_refused_connection_says_so(self, transport: str) -> None:
        provider = Provider("http://127.0.0.1:1", "m", transport=transport)
        with pytest.raises(ProviderConnectionError, match="Transport failure"):
            await provider.complete(USER)
        await provider.aclose()

    @pytest.mark.req("ST-17", "D-16")
    async def test_the_total_limit_holds_while_bytes_drip(
        self, transport: str, fake_clock: FakeClock
    ) -> None:
        """ST-17: a byte every 0.3 s; error at 1 s."""
        gate = Gate()
        body = json.dumps(answer()).encode()
        reply = Reply(200, {}, drip(body, gate), framing="chunked")
        async with ScriptedServer(reply) as server:
            provider = Provider(server.url, "m", timeout=1.0, transport=transport)
            call = asyncio.create_task(provider.complete(USER))
            for arrived in range(1, 4):
                await gate.arrived(arrived)
                await fake_clock.advance(0.3)
                gate.release()
            await gate.arrived(4)
            assert not call.done()
            await fake_clock.advance(0.2)
            with pytest.raises(ProviderTimeoutError, match="within 1 s") as caught:
                async with asyncio.timeout(5):
                    await call
            await provider.aclose()
        assert "`timeout` of the provider" in str(caught.value)
        assert caught.value.metadata["setting"] == "timeout"

    @pytest.mark.req("ST-17")
    async def test_a_server_that_never_answers_ends_with_the_limit(
        self, transport: str, fake_clock: FakeClock
    ) -> None:
        async with ScriptedServer(no_reply()) as server:
            provider = Provider(server.url, "m", timeout=7.0, transport=transport)
            call = asyncio.create_task(provider.complete(USER))
            await server.received()
            await fake_clock.advance(7.0)
            with pytest.raises(ProviderTimeoutError, match="within 7 s"):
                async with asyncio.timeout(5):
                    await call
            await server.disconnected()
            await provider.aclose()

    @pytest.mark.req("D-16")
    async def test_cancelling_a_call_ends_the_request(self, transport: str) -> None:
        """D-16: at once, and the server sees it."""
        async with ScriptedServer(no_reply()) as server:
            provider = Provider(server.url, "m", transport=transport)
            call = asyncio.create_task(provider.complete(USER))
            await server.received()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await server.disconnected()
            await provider.aclose()


class TestLoops:
    @pytest.mark.req("D-14")
    def test_one_loop_after_another_works(self, transport: str) -> None:
        """D-14: `*_sync` twice with one provider."""
        started, stop = threading.Event(), threading.Event()
        urls: list[str] = []

        def serve() -> None:
            async def main() -> None:
                async with ScriptedServer(OK) as server:
                    urls.append(server.url)
                    started.set()
                    while not stop.is_set():
                        await asyncio.sleep(0.005)

            asyncio.run(main())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert started.wait(5)
            provider = Provider(urls[0], "m", transport=transport)
            for _ in range(3):
                response = asyncio.run(provider.complete(USER))
                assert response.content == "hello"
        finally:
            stop.set()
            thread.join(5)

    @pytest.mark.req("D-14")
    async def test_two_loops_in_two_threads_work(self, transport: str) -> None:
        """D-14: at the same time."""
        async with ScriptedServer(OK) as server:
            provider = Provider(server.url, "m", transport=transport)

            async def work() -> list[str]:
                got = await asyncio.gather(
                    *(provider.complete(USER) for _ in range(10))
                )
                return [each.content for each in got]

            in_threads = [
                asyncio.to_thread(lambda: asyncio.run(work())) for _ in range(3)
            ]
            async with asyncio.timeout(10):
                results = await asyncio.gather(work(), *in_threads)
            await provider.aclose()
        assert results == [["hello"] * 10] * 4

    @pytest.mark.req("D-13")
    async def test_it_can_be_used_after_closing(self, transport: str) -> None:
        """D-13: never a RuntimeError."""
        async with ScriptedServer(OK) as server:
            provider = Provider(server.url, "m", transport=transport)
            await provider.aclose()
            for _ in range(2):
                async with provider:
                    await provider.complete(USER)
                await server.idle()

    async def test_a_transport_of_the_caller_is_shared_and_left_open(self) -> None:
        shared = open_transport("stdlib")
        async with ScriptedServer(OK) as server:
            for _ in range(2):
                async with Provider(server.url, "m", transport=shared) as provider:
                    await provider.complete(USER)
            assert server.accepted == 1
            assert server.open_connections == 1
            await shared.aclose()

    @pytest.mark.req("HT-14")
    async def test_as_many_requests_run_at_once_as_asked_for(
        self, transport: str
    ) -> None:
        """HT-14: no hidden ceiling below `max_connections`."""
        gate = Gate()

        def held(_request: ReceivedRequest) -> Reply:
            return json_reply(answer(), hold=gate)

        async with ScriptedServer(held) as server:
            provider = Provider(server.url, "m", transport=transport)
            calls = [asyncio.create_task(provider.complete(USER)) for _ in range(150)]
            await server.busy(150)
            gate.open()
            async with asyncio.timeout(10):
                await asyncio.gather(*calls)
            await provider.aclose()
        assert server.peak == 150


class TestHelpers:
    def test_the_classifier_raises_with_its_cause(self) -> None:
        cause = OSError("x")
        with pytest.raises(RateLimitError) as limited:
            _classify_http_error(429, {"error": {"message": "m"}}, 3.0, cause=cause)
        assert limited.value.retry_after == 3.0
        assert limited.value.__cause__ is cause
        for raw in (b"not json", "text", {}, {"error": "boom"}):
            with pytest.raises(PermanentError, match="HTTP 404"):
                _classify_http_error(404, raw)
        with pytest.raises(ProviderError, match="HTTP 503"):
            _classify_http_error(503, {}, None, cause=None)

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            ("2.5", 2.5),
            ("-3", 0.0),
            ("nan", 1.0),
            ("inf", 1.0),
            ("junk", 1.0),
            (None, 1.0),
        ],
    )
    def test_the_older_parser_of_hints_keeps_its_contract(
        self, header: str | None, seconds: float
    ) -> None:
        assert _parse_retry_after(header) == seconds
        assert _parse_retry_after("junk", default=4.0) == 4.0

    def test_the_older_name_of_the_redactor_works(self) -> None:
        assert "sk-abcdef123456" not in _redact_sensitive("key sk-abcdef123456")
