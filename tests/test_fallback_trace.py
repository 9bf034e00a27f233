"""What those who watch are told of a call over several providers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from executionkit import (
    FallbackProvider,
    HedgeOptions,
    LLMError,
    LLMResponse,
    MemoryTraceSink,
    PermanentError,
    PrometheusMetrics,
    ProviderError,
    RateLimitError,
    RetryConfig,
    TeeTraceSink,
    consensus,
)
from executionkit.cost import CostTracker
from executionkit.patterns.base import checked_complete, checked_stream
from executionkit.testing import FakeClock, ScriptedProvider, settle
from executionkit.viewer import render_trace, summarize_trace

MESSAGES = [{"role": "user", "content": "12345678"}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
ONCE = RetryConfig(max_retries=0)
MORE = RetryConfig(3, 0.0)
RETRIED = ProviderError("down")
RETRIED.attempts = 4
CUT = LLMResponse("half", finish_reason="length", usage=USAGE)


@pytest.fixture
def clock() -> Any:
    fake = FakeClock(auto=True)
    with fake.installed():
        yield fake


def says(*replies: Any, model: str = "m") -> ScriptedProvider:
    made = ScriptedProvider(replies, usage=USAGE)
    made.model = model  # type: ignore[attr-defined]
    return made


def down() -> ProviderError:
    return ProviderError("503")


class Watched:
    """A sink for everything, and what has been spent."""

    def __init__(self) -> None:
        client = pytest.importorskip("prometheus_client")
        self.registry = client.CollectorRegistry()
        self.memory = MemoryTraceSink()
        self.sink = TeeTraceSink(self.memory, PrometheusMetrics(self.registry))
        self.tracker = CostTracker()

    async def ask(self, provider: Any, retry: RetryConfig = ONCE) -> LLMResponse:
        return await checked_complete(
            provider, MESSAGES, self.tracker, None, retry, self.sink
        )

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [dict(e.payload) for e in self.memory.events if e.kind == kind]

    def total(self, name: str, **labels: str) -> float:
        found: list[float] = [
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"executionkit_{name}_total"
            and labels.items() <= sample.labels.items()
        ]
        return sum(found)

    def told(self) -> int:
        """Requests, as a reader of the events counts them."""
        kinds = ("llm_call_end", "llm_call_error", "attempt")
        return sum(one.get("requests", 1) for kind in kinds for one in self.of(kind))


@pytest.mark.req("fallback.trace")
class TestEvents:
    async def test_the_end_says_who_answered_and_attempts_who_failed(
        self, clock: FakeClock
    ) -> None:
        async def slow(_request: Any) -> Any:
            await clock.sleep(2)
            return ProviderError("503")

        first, second = ScriptedProvider(slow), says("fine", model="small")
        first.model = "large"  # type: ignore[attr-defined]
        watched = Watched()
        await watched.ask(FallbackProvider({"a": first, "b": second}))
        (end,) = watched.of("llm_call_end")
        known = {key: end[key] for key in ("answered_by", "provider", "model")}
        assert known == {
            "answered_by": "b",
            "provider": "ScriptedProvider",
            "model": "small",
        }
        assert "requests" not in end
        assert watched.of("attempt") == [
            {
                "call_id": end["call_id"],
                "parent_id": end["span_id"],
                "attempt": 1,
                "member": "a",
                "provider": "ScriptedProvider",
                "model": "large",
                "duration": 2.0,
                "error": "LLM_PROVIDER_ERROR",
            }
        ]

    async def test_a_model_that_only_the_reply_names(self) -> None:
        reply = LLMResponse("x", model="said", usage=USAGE)
        watched = Watched()
        await watched.ask(FallbackProvider([ScriptedProvider([reply])]))
        assert watched.of("llm_call_end")[0]["model"] == "said"

    async def test_a_provider_in_a_provider_is_found(self) -> None:
        inner = FallbackProvider({"x": says(down()), "y/z": says("fine", model="deep")})
        watched = Watched()
        await watched.ask(FallbackProvider({"a": says(down()), "in": inner}))
        (end,) = watched.of("llm_call_end")
        assert (end["answered_by"], end["model"]) == ("in/y/z", "deep")
        assert [one["member"] for one in watched.of("attempt")] == ["a", "x"]

    async def test_who_lost_a_hedge_is_told(self, clock: FakeClock) -> None:
        async def hang(_request: Any) -> Any:
            await asyncio.Event().wait()

        hedge = HedgeOptions(delay=1.0, max_share=1.0)
        stuck = ScriptedProvider(hang)
        watched = Watched()
        provider = FallbackProvider({"a": stuck, "b": says("fine")}, hedge=hedge)
        await watched.ask(provider)
        (lost,) = watched.of("attempt")
        assert (lost["member"], lost["error"]) == ("a", "hedge_lost")
        assert (lost["attempt"], lost["duration"]) == (1, 1.0)
        assert lost["input_tokens"] == watched.tracker.to_usage().input_tokens - 10
        assert watched.total("tokens", type="input") == 10 + lost["input_tokens"]

    async def test_a_stream_tells_the_same(self) -> None:
        watched = Watched()
        provider = FallbackProvider({"a": says([down()]), "b": says(["x", "y"])})
        stream = await checked_stream(
            provider, MESSAGES, watched.tracker, None, ONCE, watched.sink
        )
        assert "".join([text async for text in stream]) == "xy"
        (end,) = watched.of("llm_call_end")
        assert (end["answered_by"], end["model"]) == ("b", "m")
        (lost,) = watched.of("attempt")
        assert (lost["member"], lost["parent_id"]) == ("a", end["span_id"])
        assert lost["attempt"] == 1
        assert watched.told() == watched.total("llm_calls") == 2

    async def test_the_viewer_counts_and_names_them(self) -> None:
        watched = Watched()
        dead = ScriptedProvider(lambda _: down())
        await watched.ask(pair(dead, says(down(), "fine", model="small")), MORE)
        summary = summarize_trace(watched.memory.events)
        assert summary.model_calls.count == 1
        assert summary.failed_attempts == 3
        assert [group.name for group in summary.by_model] == ["small"]
        page = render_trace(watched.memory.events)
        assert "attempt 2 (b)" in page

    async def test_secrets_are_hidden(self) -> None:
        first = says(down(), model="hush-hush-12345")
        first.api_key = "hush-hush-12345"  # type: ignore[attr-defined]
        watched = Watched()
        await watched.ask(FallbackProvider([first, says("fine")]))
        assert "hush-hush" not in str(watched.memory.events)


def pair(first: Any, second: Any, **options: Any) -> FallbackProvider:
    return FallbackProvider({"a": first, "b": second}, **options)


CALLS: dict[str, Callable[[], Any]] = {
    "one after the other": lambda: pair(says(down()), says("fine")),
    "rounds": lambda: pair(
        ScriptedProvider(lambda _: down()), says(down(), down(), "fine")
    ),
    "nobody": lambda: pair(*[ScriptedProvider(lambda _: down())] * 2),
    "final": lambda: pair(says(down()), says(PermanentError("401"))),
    "only one": lambda: FallbackProvider([says(down(), "fine")]),
    "retried inside": lambda: pair(says(RETRIED), says("fine")),
    "cut off": lambda: pair(says(CUT), says("fine"), on_truncated=True),
    "cut off in the second round": lambda: pair(
        says(down(), CUT), says(down(), "fine"), on_truncated=True
    ),
    "all cut off": lambda: pair(says(CUT), says(CUT), on_truncated=True),
    "cut off, then down": lambda: pair(says(CUT), says(down()), on_truncated=True),
    "inside": lambda: pair(says(down()), pair(says(down()), says("fine"))),
    "inside, nobody": lambda: pair(
        pair(*[ScriptedProvider(lambda _: down())] * 2), says(down(), "fine")
    ),
}


@pytest.mark.req("fallback.trace-counts", "metrics.prometheus")
class TestCounts:
    @pytest.mark.parametrize("retry", [ONCE, MORE], ids=["once", "rounds"])
    @pytest.mark.parametrize("name", CALLS)
    async def test_what_is_told_is_what_was_spent(
        self, name: str, retry: RetryConfig, clock: FakeClock
    ) -> None:
        watched = Watched()
        try:
            await watched.ask(CALLS[name](), retry)
        except LLMError:
            answered = 0
        else:
            answered = 1
        sent = watched.tracker.to_usage().llm_calls
        assert watched.told() == watched.total("llm_calls") == sent
        if "cut off" not in name:
            assert watched.total("llm_calls", outcome="ok") == answered

    async def test_nothing_is_counted_when_all_rest(self) -> None:
        busy = [says(RateLimitError("no", retry_after=60)) for _ in range(2)]
        provider = pair(*busy)
        watched = Watched()
        for _ in range(2):
            with pytest.raises(LLMError):
                await watched.ask(provider)
            assert watched.told() == watched.total("llm_calls") == 2

    async def test_a_call_that_is_cancelled(self) -> None:
        started = asyncio.Event()

        async def hang(_request: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

        watched = Watched()
        provider = pair(says(down()), ScriptedProvider(hang))
        asking = asyncio.create_task(watched.ask(provider))
        async with asyncio.timeout(5):
            await started.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert watched.tracker.to_usage().llm_calls == 2
        assert watched.told() == watched.total("llm_calls") == 2

    async def test_two_answers_at_once(self, clock: FakeClock) -> None:
        gate = asyncio.Event()

        async def answer(_request: Any) -> str:
            await gate.wait()
            return "x"

        hedge = HedgeOptions(delay=1.0, max_share=1.0)
        provider = pair(ScriptedProvider(answer), ScriptedProvider(answer), hedge=hedge)
        clock.call_later(5, gate.set)
        watched = Watched()
        await watched.ask(provider)
        assert watched.told() == watched.total("llm_calls") == 2

    async def test_a_pattern_with_calls_at_once(self) -> None:
        watched = Watched()
        flaky = ScriptedProvider(
            lambda request: down() if request.number in {2, 3} else "fine", usage=USAGE
        )
        provider = pair(ScriptedProvider(lambda _: down()), flaky)
        result = await consensus(
            provider, "Hi", num_samples=5, retry=MORE, trace=watched.sink
        )
        await settle()
        assert watched.told() == watched.total("llm_calls") == result.cost.llm_calls
        assert watched.total("llm_calls", outcome="ok") == 5
