"""`LocalProvider` on the real engine: what only the real one can show."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import jsonschema
import pytest

from executionkit._local.grammar import GrammarError, constrain
from executionkit.errors import PermanentError, ProviderConnectionError
from executionkit.local import LocalProvider

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

USER = [{"role": "user", "content": "Say hello to Anna."}]
STORY = [{"role": "user", "content": "Tell a long story about a dragon."}]
LONG = 1200


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.req("live.local")
class TestAnswers:
    async def test_it_answers(self, local: LocalProvider) -> None:
        response = await local.complete(
            ask("Name the capital of France."), temperature=0, max_tokens=24
        )
        assert response.content.strip()
        assert response.model == local.model
        assert response.finish_reason in {"stop", "length"}
        assert 0 < response.output_tokens <= 24

    async def test_a_stream_is_the_same_text(self, local: LocalProvider) -> None:
        whole = await local.complete(USER, temperature=0, max_tokens=12)
        stream = local.stream(USER, temperature=0, max_tokens=12)
        pieces = [piece async for piece in stream]
        assert len(pieces) > 2
        assert "".join(pieces) == whole.content

    async def test_the_same_seed_gives_the_same_answers(self) -> None:
        runs: list[list[str]] = []
        for _ in range(2):
            async with LocalProvider(seed=3, parallel=1, context_size=1024) as provider:
                runs.append(
                    [
                        (await provider.complete(USER, max_tokens=12)).content
                        for _ in range(3)
                    ]
                )
        assert runs[0] == runs[1]
        assert len(set(runs[0])) > 1, "each call has a seed of its own"

    async def test_tokens_are_counted_as_the_engine_bills_them(
        self, local: LocalProvider
    ) -> None:
        response = await local.complete(USER, max_tokens=1)
        assert await local.count_tokens(USER) == response.input_tokens
        assert await local.count_tokens("") == 0
        assert 2 <= await local.count_tokens("hello world") <= 4

    async def test_options_of_the_engine_pass_through(
        self, local: LocalProvider
    ) -> None:
        response = await local.complete(
            ask("Count: one, two, three, four"),
            temperature=0,
            max_tokens=40,
            stop=["three"],
            top_p=0.9,
            repeat_penalty=1.1,
        )
        assert "three" not in response.content

    async def test_a_tool_is_called_and_its_result_told(
        self, local: LocalProvider
    ) -> None:
        number = {"type": "integer"}
        parameters = {
            "type": "object",
            "properties": {"a": number, "b": number},
            "required": ["a", "b"],
        }
        add = {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Add two numbers.",
                "parameters": parameters,
            },
        }
        question = ask("What is 17 + 25?")
        first = await local.complete(question, tools=[add], temperature=0)
        (call,) = first.tool_calls
        assert (call.name, dict(call.arguments)) == ("add", {"a": 17, "b": 25})
        result = {"role": "tool", "tool_call_id": call.id, "content": "42"}
        messages = [*question, first.to_message(), result]
        second = await local.complete(messages, tools=[add], temperature=0)
        assert second.tool_calls == ()
        assert second.content.strip()


@pytest.mark.req("live.local")
class TestErrors:
    async def test_a_prompt_that_is_too_long_says_the_sizes(
        self, local: LocalProvider
    ) -> None:
        with pytest.raises(PermanentError, match="room for 2048") as caught:
            await local.complete(ask("word " * 3000))
        assert caught.value.metadata["prompt_tokens"] > 3000

    @pytest.mark.parametrize(
        ("messages", "options"),
        [
            ([{"content": "no role"}], {}),
            ([{"role": "user"}], {}),
            ([{"role": "user", "content": 5}], {}),
            (ask("\ud800"), {}),
            (USER, {"temperature": "hot"}),
            (USER, {"top_k": "many"}),
        ],
        ids=str,
    )
    async def test_what_the_engine_refuses_is_permanent(
        self, local: LocalProvider, messages: Any, options: dict[str, Any]
    ) -> None:
        with pytest.raises(PermanentError):
            await local.complete(messages, max_tokens=2, **options)

    async def test_a_damaged_model_is_permanent(self, tmp_path: Any) -> None:
        path = tmp_path / "damaged.gguf"
        path.write_bytes(b"GGUF" + b"\0" * 1000)
        with pytest.raises(PermanentError, match=r"damaged\.gguf"):
            await LocalProvider(path).load()


@pytest.mark.req("live.cancellation")
class TestStopping:
    async def test_a_cancelled_call_frees_its_place(
        self, local: LocalProvider, server: Any
    ) -> None:
        task = asyncio.create_task(local.complete(STORY, max_tokens=LONG))
        await server.until(busy=True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.until(busy=False)

    async def test_a_long_prompt_can_be_stopped(
        self, local: LocalProvider, server: Any
    ) -> None:
        long = ask("word " * 1800)
        task = asyncio.create_task(local.complete(long, max_tokens=LONG))
        await server.until(busy=True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            await server.until(busy=False)

    async def test_a_forgotten_stream_stops(
        self, local: LocalProvider, server: Any
    ) -> None:
        stream = local.stream(STORY, max_tokens=LONG)
        await anext(stream)
        del stream
        gc.collect()
        async with asyncio.timeout(5):
            await server.until(busy=False)

    async def test_closing_fails_what_runs_and_the_next_call_loads_again(self) -> None:
        provider = LocalProvider(parallel=1, context_size=1024)
        stream = provider.stream(STORY, max_tokens=LONG)
        await anext(stream)
        await provider.aclose()
        with pytest.raises(ProviderConnectionError, match="closed"):
            async for _ in stream:
                pass
        assert (await provider.complete(USER, max_tokens=2)).content
        await provider.aclose()


@pytest.mark.req("live.loops")
class TestLoopsAndThreads:
    def test_one_loop_after_the_other(self, local: LocalProvider) -> None:
        for _ in range(2):
            assert asyncio.run(local.complete(USER, max_tokens=3)).content

    def test_two_loops_at_the_same_time(self, local: LocalProvider) -> None:
        answers: list[str] = []

        def run() -> None:
            response = asyncio.run(local.complete(USER, max_tokens=6))
            answers.append(response.content)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(answers)
        assert len(answers) == 2

    async def test_more_calls_than_places_all_come_back(
        self, local: LocalProvider
    ) -> None:
        calls = [local.complete(USER, max_tokens=4) for _ in range(12)]
        responses = await asyncio.gather(*calls)
        assert all(response.output_tokens > 0 for response in responses)


def _leaf(random: Random) -> dict[str, Any]:
    kind = random.choice(["string", "integer", "number", "boolean", "enum", "null"])
    schema: dict[str, Any] = {"type": kind}
    if kind == "enum":
        return {"enum": random.sample(["a", "b c", 1, None, True, "é"], 3)}
    if kind == "string":
        extra: list[dict[str, Any]] = [
            {"maxLength": random.randint(1, 9)},
            {"pattern": random.choice(["^[a-z]{1,5}$", r"^\d{2}-\d{2}$", "^(a|b)+$"])},
            {"format": random.choice(["date", "uuid", "ipv4"])},
            {},
        ]
        schema.update(random.choice(extra))
    if kind in {"integer", "number"} and random.random() < 0.6:
        schema["minimum"] = random.choice([0, -5, 2.5])
        schema["maximum"] = random.choice([10, 1000, 7.25])
    return schema


def _schema(random: Random, depth: int = 0) -> dict[str, Any]:
    if depth > 1 or random.random() < 0.3:
        return _leaf(random)
    kind = random.choice(["object", "array", "anyOf"])
    if kind == "array":
        return {
            "type": "array",
            "items": _schema(random, depth + 1),
            "maxItems": random.randint(1, 3),
        }
    if kind == "anyOf":
        return {"anyOf": [_schema(random, depth + 1) for _ in range(2)]}
    names = random.sample(["a", "b", "c key", 'd"q', "é"], random.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _schema(random, depth + 1) for name in names},
        "required": [name for name in names if random.random() < 0.7],
        "additionalProperties": False,
    }


def schemas(count: int) -> Iterator[dict[str, Any]]:
    random = Random(20)
    for _ in range(count):
        yield {
            "type": "object",
            "properties": {"value": _schema(random)},
            "required": ["value"],
        }


@pytest.mark.req("live.grammar")
class TestGrammars:
    async def test_the_engine_keeps_what_the_grammar_promises(
        self, local: LocalProvider
    ) -> None:
        """At high temperature the model would write anything else at once."""
        ended = 0
        for number, schema in enumerate(schemas(25)):
            try:
                constrain(schema)
            except GrammarError:
                continue
            response = await local.complete(
                ask("Write JSON."),
                temperature=1.4,
                max_tokens=60,
                seed=number,
                response_format={"type": "json_object", "schema": schema},
            )
            if response.was_truncated:
                assert response.content.startswith('{"value": ')
                continue
            ended += 1
            value = json.loads(response.content)
            if not response.notes:
                jsonschema.Draft202012Validator(schema).validate(value)
        assert ended > 8

    async def test_many_tools_are_one_choice(self, local: LocalProvider) -> None:
        tools = [
            {"name": f"tool_{number}", "input_schema": {"type": "object"}}
            for number in range(20)
        ]
        response = await local.complete(
            ask("Use tool_7."), tools=tools, tool_choice="required", max_tokens=40
        )
        assert response.tool_calls or response.was_truncated

    async def test_an_object_of_no_known_shape(self, local: LocalProvider) -> None:
        response = await local.complete(
            ask("Give a person as JSON."),
            temperature=0,
            max_tokens=80,
            response_format={"type": "json_object"},
        )
        assert response.content.startswith("{")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    head = textwrap.dedent(
        """
        import asyncio, os, sys, threading
        from executionkit.local import LocalProvider
        provider = LocalProvider(parallel=1, context_size=1024)
        hi = [{"role": "user", "content": "hi"}]
        begun = threading.Event()
        """
    )
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.req("local.exit", "local.fork")
class TestTheEndOfTheProcess:
    def test_while_it_generates(self) -> None:
        done = run_python(
            """
            async def read():
                async for _ in provider.stream(hi, max_tokens=900, stop=[]):
                    begun.set()
            threading.Thread(target=lambda: asyncio.run(read()), daemon=True).start()
            begun.wait(30)
            sys.exit(7)
            """
        )
        assert done.returncode == 7, done.stderr

    def test_without_closing(self) -> None:
        done = run_python(
            """
            print(asyncio.run(provider.complete(hi, max_tokens=2)).output_tokens)
            """
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_loads_its_own_and_ends(self) -> None:
        done = run_python(
            """
            asyncio.run(provider.complete(hi, max_tokens=2))
            child = os.fork()
            if not child:
                asyncio.run(provider.complete(hi, max_tokens=2))
                sys.exit(9)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            child = os.fork()
            if not child:
                sys.exit(8)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            asyncio.run(provider.complete(hi, max_tokens=2))
            """
        )
        assert (done.returncode, done.stdout) == (0, "9\n8\n"), done.stderr

    def test_nothing_is_written_to_the_terminal(self) -> None:
        done = run_python(
            """
            asyncio.run(provider.load())
            asyncio.run(provider.aclose())
            """
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
