"""Map-reduce: what is asked, what is kept, what is bounded, and how it fails."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

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
    map_reduce,
)
from executionkit.errors import DeadlineExceededError
from executionkit.testing import FakeClock, Request, ScriptedProvider, settle

LIMIT = 5
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONCE = RetryConfig(max_retries=0)
KEY = "custom-key-7f3a91c2"

Items = Any

# How many things are under way after each event.
CHANGE = {
    "pattern_start": 1,
    "pattern_end": -1,
    "llm_call_start": 1,
    "llm_call_end": -1,
    "llm_call_error": -1,
}


async def run(provider: Any, inputs: Items, **kwargs: Any) -> Any:
    return await map_reduce(
        provider,
        inputs,
        map_prompt_template="map {item}",
        reduce_prompt_template="reduce {mapped_outputs}",
        **kwargs,
    )


def upper(request: Request) -> str:
    """The item in capitals; the reduce prompt as it is."""
    word, _, rest = request.last.partition(" ")
    return rest.upper() if word == "map" else rest


class TestWhatIsAsked:
    @pytest.mark.req("map-reduce.requests")
    async def test_one_call_for_each_input_and_one_over_all_answers(self) -> None:
        provider = ScriptedProvider(upper, usage=USAGE)
        result = await run(provider, ["a", "b", "c"], seed=3, max_tokens=9)
        prompts = [request.last for request in provider.requests]
        assert prompts[:3] == ["map a", "map b", "map c"]
        assert prompts[3] == "reduce A\n\n---\n\nB\n\n---\n\nC"
        assert result.value == "A\n\n---\n\nB\n\n---\n\nC"
        assert (result.score, result.cost) == (None, TokenUsage(40, 8, 4))
        assert result.metadata == {
            "map_count": 3,
            "reduce_calls": 1,
            "total_calls": 4,
            "failed": [],
            "truncated_responses": 0,
            "empty_responses": 0,
            "over_budget": False,
        }
        for request in provider.requests:
            assert (request.temperature, request.max_tokens) == (0.3, 9)
            assert request.options == {"seed": 3}

    @pytest.mark.req("map-reduce.order")
    async def test_answers_stand_in_the_order_of_the_inputs(self) -> None:
        async def answer(request: Request) -> str:
            await settle(9 - request.number)
            return upper(request)

        result = await run(ScriptedProvider(answer), list("abcdef"))
        assert result.value.replace("\n\n---\n\n", "") == "ABCDEF"

    @pytest.mark.req("map-reduce.empty")
    async def test_without_inputs_there_is_still_one_reduce_call(self) -> None:
        provider = ScriptedProvider(upper)
        result = await run(provider, [])
        assert [request.last for request in provider.requests] == ["reduce "]
        assert result.metadata["map_count"] == 0

    @pytest.mark.req("map-reduce.placeholders")
    async def test_placeholders_are_replaced_literally_and_once(self) -> None:
        provider = ScriptedProvider(lambda request: request.last)
        result = await map_reduce(
            provider,
            ["{item} {mapped_outputs} {0} %s"],
            map_prompt_template="{item}|{item}|{other}",
            reduce_prompt_template="<{mapped_outputs}>",
        )
        text = "{item} {mapped_outputs} {0} %s"
        assert result.value == f"<{text}|{text}|{{other}}>"

    @pytest.mark.req("map-reduce.counts")
    async def test_retries_count_as_calls(self, auto_clock: FakeClock) -> None:
        provider = ScriptedProvider([ProviderError("once"), "A", "done"])
        result = await run(provider, ["a"])
        assert result.metadata["total_calls"] == result.cost.llm_calls == 3

    @pytest.mark.req("D-28")
    async def test_answers_that_were_cut_off_or_empty_are_counted(self) -> None:
        """D-28: truncation does not go unnoticed."""
        cut = LLMResponse("A", finish_reason="length")
        provider = ScriptedProvider([cut, "", "c", cut])
        result = await run(provider, list("abc"), max_concurrency=1)
        assert result.metadata["truncated_responses"] == 2
        assert result.metadata["empty_responses"] == 1

    @given(st.lists(st.text(max_size=5), max_size=12), st.integers(1, 5))
    def test_every_input_is_asked_once_whatever_the_concurrency(
        self, inputs: list[str], limit: int
    ) -> None:
        provider = ScriptedProvider(lambda request: request.last)
        result = asyncio.run(run(provider, iter(inputs), max_concurrency=limit))
        joined = "\n\n---\n\n".join(f"map {item}" for item in inputs)
        assert result.value == f"reduce {joined}"


class TestValidation:
    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            ({"map_prompt_template": "no"}, "map_prompt_template.*{item}"),
            ({"reduce_prompt_template": "no"}, "reduce_prompt_template.*mapped_outp"),
            ({"stream": True}, "stream=True is not supported"),
            ({"max_concurrency": 0}, "max_concurrency must be >= 1"),
            ({"max_tokens": 0}, "max_tokens must be >= 1"),
            ({"on_error": "ignore"}, "on_error"),
        ],
    )
    @pytest.mark.req("D-28", "map-reduce.validated")
    async def test_bad_arguments_are_found_before_the_first_call(
        self, bad: dict[str, Any], words: str
    ) -> None:
        """D-28: a typo in the reduce template is not found after 50 paid calls."""
        provider = MockProvider(["x"])
        good: dict[str, Any] = {
            "map_prompt_template": "{item}",
            "reduce_prompt_template": "{mapped_outputs}",
        }
        with pytest.raises(ValueError, match=words):
            await map_reduce(provider, ["a"], **{**good, **bad})
        assert provider.call_count == 0

    @pytest.mark.parametrize("text", ["hello world", b"bytes", bytearray(b"x")])
    @pytest.mark.req("D-28")
    async def test_a_single_text_is_not_split_into_characters(self, text: Any) -> None:
        """D-28: `inputs="hello world"` is not twelve calls."""
        provider = MockProvider(["x"])
        with pytest.raises(TypeError, match="single text"):
            await run(provider, text)
        assert provider.call_count == 0

    @pytest.mark.parametrize("inputs", [["a", 3], ("a", None), {1: "a"}, 5, None])
    @pytest.mark.req("map-reduce.validated")
    async def test_what_is_no_text_is_found_before_the_first_call(
        self, inputs: Any
    ) -> None:
        provider = MockProvider(["x"])
        with pytest.raises(TypeError, match=r"inputs"):
            await run(provider, inputs)
        assert provider.call_count == 0

    @pytest.mark.req("map-reduce.validated")
    async def test_an_iterator_is_checked_as_it_goes(self) -> None:
        items: Iterator[Any] = iter(["a", None, "c"])
        with pytest.raises(PatternError, match="must be a text, got NoneType") as e:
            await run(ScriptedProvider(upper), items, max_concurrency=1)
        assert e.value.metadata["mapped_outputs"] == {0: "A"}
        assert e.value.cost.llm_calls == 1


class TestBounds:
    @pytest.mark.parametrize(("limit", "peak"), [(1, 1), (4, 4), (50, 20)])
    @pytest.mark.req("map-reduce.concurrency")
    async def test_the_limit_is_kept_and_reached(self, limit: int, peak: int) -> None:
        async def answer(request: Request) -> str:
            await settle(3)
            return upper(request)

        provider = ScriptedProvider(answer)
        await run(provider, map(str, range(20)), max_concurrency=limit)
        assert provider.peak == peak

    @pytest.mark.req("map-reduce.lazy-inputs")
    async def test_inputs_are_taken_only_as_calls_can_be_made(self) -> None:
        taken = ended = 0
        most = 0

        def source() -> Iterator[str]:
            nonlocal taken, most
            for number in range(50):
                taken += 1
                most = max(most, taken - ended)
                yield str(number)

        async def answer(request: Request) -> str:
            nonlocal ended
            await settle(2)
            ended += 1
            return "x"

        await run(ScriptedProvider(answer), source(), max_concurrency=3)
        assert most <= 6

    @pytest.mark.req("map-reduce.bounded-memory")
    @pytest.mark.no_cover
    async def test_a_hundred_thousand_inputs_leave_nothing_but_their_answers(
        self,
    ) -> None:
        """No input, task or reply lives longer than its turn."""
        most_tasks = 0

        class Instant:
            calls = 0

            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                nonlocal most_tasks
                self.calls += 1
                if not self.calls % 10_000:
                    most_tasks = max(most_tasks, len(asyncio.all_tasks()))
                return Reply("a")

        count = 100_000
        gc.collect()
        with counting(Input), counting(Reply):
            result = await run(Instant(), (Input(n) for n in range(count)))
            assert Input.peak <= 25
            assert Reply.peak <= 25
        assert result.metadata["map_count"] == count
        assert most_tasks <= 25

    @pytest.mark.req("map-reduce.async-inputs")
    async def test_inputs_may_come_from_an_async_iterator(self) -> None:
        closed = False

        async def source() -> AsyncIterator[str]:
            nonlocal closed
            try:
                for item in "abc":
                    await asyncio.sleep(0)
                    yield item
            finally:
                closed = True

        result = await run(ScriptedProvider(upper), source())
        assert result.value == "A\n\n---\n\nB\n\n---\n\nC"
        assert closed

    @pytest.mark.req("map-reduce.async-inputs")
    async def test_a_source_that_fails_is_raised_with_all_calls_ended(self) -> None:
        def source() -> Iterator[str]:
            yield "a"
            raise OSError("cannot read")

        provider = ScriptedProvider(upper, usage=USAGE)
        kit = Kit(provider)
        with pytest.raises(OSError, match="cannot read"):
            await kit.map_reduce(
                source(),
                map_prompt_template="map {item}",
                reduce_prompt_template="{mapped_outputs}",
            )
        assert provider.active == 0
        assert kit.usage == TokenUsage(10, 2, 1)


class Counted:
    """Counts how many of its kind live at once."""

    live = 0
    peak = 0

    def __init__(self, *_args: object) -> None:
        kind = type(self)
        kind.live += 1
        kind.peak = max(kind.peak, kind.live)

    def __del__(self) -> None:
        type(self).live -= 1


class Input(Counted, str):
    """A text that is counted."""


class Reply(LLMResponse):
    """A response that is counted."""

    live = 0
    peak = 0

    def __init__(self, content: str) -> None:
        super().__init__(content)
        Reply.live += 1
        Reply.peak = max(Reply.peak, Reply.live)

    def __del__(self) -> None:
        Reply.live -= 1


@contextmanager
def counting(kind: Any) -> Iterator[None]:
    kind.live = kind.peak = 0
    yield


def failing(*numbers: int, error: Any = None) -> ScriptedProvider:
    """A provider that fails for some items."""

    async def answer(request: Request) -> Any:
        await asyncio.sleep(0)
        word, _, item = request.last.partition(" ")
        if word == "map" and int(item) in numbers:
            return error or ProviderError(f"HTTP 500 for {item}")
        return upper(request)

    return ScriptedProvider(answer, usage=USAGE)


class TestFailures:
    @pytest.mark.req("RP-09", "D-03")
    async def test_fail_fast_keeps_what_was_paid_for_on_the_error(self) -> None:
        """RP-09: the policy `"raise"`."""
        provider = failing(3)
        with pytest.raises(ProviderError, match="for 3") as caught:
            await run(provider, map(str, range(10)), retry=ONCE, max_concurrency=2)
        outputs = caught.value.metadata["mapped_outputs"]
        assert outputs == {n: str(n) for n in outputs}
        assert {0, 1} <= set(outputs) <= {0, 1, 2}
        assert caught.value.cost.llm_calls == caught.value.attempts <= 5
        assert provider.active == 0

    @pytest.mark.req("RP-09")
    async def test_collect_goes_on_with_what_succeeded_and_tells_about_the_gap(
        self,
    ) -> None:
        """RP-09: ten items, number 7 raises, number 9 is cancelled from inside."""

        async def answer(request: Request) -> Any:
            word, _, item = request.last.partition(" ")
            if (word, item) == ("map", "7"):
                return ProviderError("HTTP 500")
            if (word, item) == ("map", "9"):
                return asyncio.CancelledError()
            return upper(request)

        provider = ScriptedProvider(answer)
        result = await run(
            provider, map(str, range(10)), on_error="collect", retry=ONCE
        )
        assert result.metadata["failed"] == [
            {"index": 7, "error": "ProviderError: HTTP 500"},
            {"index": 9, "error": "CancelledError"},
        ]
        assert result.metadata["map_count"] == 10
        parts = provider.requests[-1].last.removeprefix("reduce ").split("\n\n---\n\n")
        assert parts[:8] == ["0", "1", "2", "3", "4", "5", "6", "8"]
        assert parts[8:] == [
            "[No answer for the inputs at these positions, from 0: 7, 9]"
        ]

    @pytest.mark.req("map-reduce.collect")
    async def test_any_failure_of_one_input_is_collected(self) -> None:
        provider = failing(1, error=KeyError("a bug"))
        result = await run(provider, list("012"), on_error="collect")
        assert result.metadata["failed"] == [{"index": 1, "error": "KeyError: 'a bug'"}]

    @pytest.mark.req("map-reduce.collect")
    async def test_an_iterators_bad_item_is_collected_too(self) -> None:
        items: Iterator[Any] = iter(["0", None, "2"])
        result = await run(failing(), items, on_error="collect")
        (failed,) = result.metadata["failed"]
        assert failed["index"] == 1
        assert "must be a text" in failed["error"]

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (PermanentError("HTTP 401", metadata={"status": 401}), PermanentError),
            (PermanentError("HTTP 402", metadata={"status": 402}), PermanentError),
            (PermanentError("HTTP 404", metadata={"status": 404}), PermanentError),
            (DeadlineExceededError("late"), DeadlineExceededError),
        ],
    )
    @pytest.mark.req("map-reduce.hopeless")
    async def test_what_every_input_would_meet_ends_the_run(
        self, error: Exception, kind: type[Exception]
    ) -> None:
        """A wrong key is not tried a thousand times."""
        provider = failing(*range(1000), error=error)
        with pytest.raises(kind):
            await run(
                provider, map(str, range(1000)), on_error="collect", max_concurrency=4
            )
        assert len(provider.requests) <= 4

    @pytest.mark.parametrize("status", [400, 403, 413, 422])
    @pytest.mark.req("map-reduce.collect")
    async def test_a_refusal_of_one_input_is_collected(self, status: int) -> None:
        error = PermanentError("no", metadata={"status": status})
        result = await run(failing(1, error=error), list("012"), on_error="collect")
        assert len(result.metadata["failed"]) == 1

    @pytest.mark.req("map-reduce.hopeless")
    async def test_an_exhausted_budget_ends_the_run_with_what_there_is(self) -> None:
        provider = failing()
        with pytest.raises(BudgetExhaustedError) as caught:
            await run(
                provider,
                map(str, range(100)),
                on_error="collect",
                max_concurrency=1,
                max_cost=TokenUsage(llm_calls=5),
            )
        assert len(provider.requests) == caught.value.cost.llm_calls == 5
        assert caught.value.metadata["mapped_outputs"] == {n: str(n) for n in range(5)}

    @pytest.mark.req("map-reduce.collect")
    async def test_when_every_input_failed_nothing_is_reduced(self) -> None:
        provider = failing(0, 1)
        with pytest.raises(
            PatternError, match=r"Every input failed; the first \(0\)"
        ) as e:
            await run(provider, list("01"), on_error="collect", retry=ONCE)
        assert e.value.cost.llm_calls == 2
        assert len(e.value.metadata["failed"]) == 2

    @pytest.mark.req("map-reduce.collect")
    async def test_many_gaps_do_not_flood_the_reduce_prompt(self) -> None:
        provider = failing(*range(1, 1000))
        await run(provider, map(str, range(1000)), on_error="collect", retry=ONCE)
        assert len(provider.requests[-1].last) < 800
        assert "and 899 more" in provider.requests[-1].last

    @pytest.mark.req("D-03")
    async def test_a_failing_reduce_call_carries_the_cost_of_the_map_phase(
        self,
    ) -> None:
        """D-03: and the answers, so that nothing paid for is lost."""
        provider = ScriptedProvider(["A", "B", PermanentError("HTTP 413")], usage=USAGE)
        with pytest.raises(PermanentError) as caught:
            await run(provider, ["a", "b"], max_concurrency=1)
        assert caught.value.cost == TokenUsage(20, 4, 3)
        assert caught.value.metadata["mapped_outputs"] == {0: "A", 1: "B"}

    @pytest.mark.req("map-reduce.which-input-failed")
    async def test_the_error_says_which_input_ended_the_run(self) -> None:
        with pytest.raises(ProviderError) as caught:
            await run(failing(2), list("0123"), retry=ONCE, max_concurrency=1)
        assert caught.value.metadata["failed_index"] == 2
        assert caught.value.metadata["failed"] == [
            {"index": 2, "error": "ProviderError: HTTP 500 for 2"}
        ]
        assert caught.value.metadata["mapped_outputs"] == {0: "0", 1: "1"}

    @pytest.mark.req("map-reduce.which-input-failed")
    async def test_of_what_an_iterator_gives_the_odd_one_is_named(self) -> None:
        odd: Any = iter(["0", 5])
        with pytest.raises(PatternError) as caught:
            await run(failing(), odd, max_concurrency=1)
        assert caught.value.metadata["failed_index"] == 1

    @pytest.mark.req("map-reduce.which-input-failed")
    async def test_a_failing_reduce_call_is_none_of_an_input(self) -> None:
        provider = ScriptedProvider(["A", PermanentError("HTTP 413")])
        with pytest.raises(PermanentError) as caught:
            await run(provider, ["a"])
        assert "failed_index" not in caught.value.metadata
        assert caught.value.metadata["failed"] == []

    @pytest.mark.req("D-02")
    async def test_failures_at_once_are_one_error_the_others_noted(self) -> None:
        with pytest.raises(ProviderError, match="for 0") as caught:
            await run(failing(0, 1, 2), list("012"), retry=ONCE)
        assert "also: ProviderError: HTTP 500 for 1" in caught.value.__notes__

    @pytest.mark.req("OB-04")
    async def test_the_key_is_in_no_collected_error(self) -> None:
        """OB-04: a provider of one's own says its key in an error."""
        provider: Any = failing(1, error=RuntimeError(f"{KEY} was refused"))
        provider.api_key = KEY
        result = await run(provider, list("012"), on_error="collect")
        assert KEY not in repr(result)
        assert "RuntimeError" in result.metadata["failed"][0]["error"]

    @pytest.mark.req("D-29")
    async def test_a_failing_fan_out_leaves_no_coroutine_unawaited(self) -> None:
        with pytest.raises(ProviderError):
            await run(failing(0), map(str, range(20)), retry=ONCE)
        gc.collect()


class TestDeadlineAndCancellation:
    @pytest.mark.req("patterns.deadline")
    async def test_the_deadline_also_bounds_a_slow_source(
        self, fake_clock: FakeClock
    ) -> None:
        closed = False

        async def source() -> AsyncIterator[str]:
            nonlocal closed
            yield "a"
            try:
                await asyncio.Event().wait()
            finally:
                closed = True

        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            task = asyncio.create_task(run(ScriptedProvider(upper), source()))
        await fake_clock.advance(2.0)
        with pytest.raises(DeadlineExceededError) as caught:
            await task
        assert caught.value.metadata["mapped_outputs"] == {0: "A"}
        assert closed

    @pytest.mark.req("patterns.cancel")
    @pytest.mark.parametrize("again_after", [None, 0, 2])
    @pytest.mark.parametrize("on_error", ["raise", "collect"])
    async def test_cancelled_anywhere_it_leaves_nothing_and_books_once(
        self, everywhere: Any, again_after: int | None, on_error: str
    ) -> None:
        def make() -> Any:
            open_calls = 0
            replied = 0
            closed: list[bool] = []

            async def answer(request: Request) -> Any:
                nonlocal replied
                await settle(request.number % 3)
                if request.last == "map b" and on_error == "collect":
                    return PermanentError("no")
                replied += 1
                return upper(request)

            async def sink(event: TraceEvent) -> None:
                nonlocal open_calls
                open_calls += CHANGE.get(event.kind, 0)
                await asyncio.sleep(0)

            async def source() -> AsyncIterator[str]:
                try:
                    for item in "abcd":
                        await asyncio.sleep(0)
                        yield item
                finally:
                    closed.append(True)

            provider = ScriptedProvider(answer, usage=USAGE)
            kit = Kit(provider)

            def check(_cancelled: bool) -> None:
                assert (provider.active, open_calls) == (0, 0)
                assert kit.usage == TokenUsage(
                    10 * replied, 2 * replied, len(provider.requests)
                )

            work = kit.map_reduce(
                source(),
                map_prompt_template="map {item}",
                reduce_prompt_template="reduce {mapped_outputs}",
                on_error=on_error,
                max_concurrency=2,
                trace=sink,
            )
            return work, check

        assert await everywhere(make, again_after=again_after) > 8
