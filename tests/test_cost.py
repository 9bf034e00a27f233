"""Budgets hold, and what is spent is counted: reserve, settle, keep, refund."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, strategies as st

from executionkit import BudgetExhaustedError, CostTracker, LLMResponse, TokenUsage
from executionkit.cost import (
    Budget,
    collecting_lost_cost,
    estimate_cost,
    estimate_tokens,
    report_lost_cost,
    response_usage,
)
from executionkit.testing import settle


def reply(sent: int = 1, made: int = 1) -> LLMResponse:
    return LLMResponse("x", usage={"prompt_tokens": sent, "completion_tokens": made})


def budget(**limits: int) -> Budget:
    return Budget.from_usage(TokenUsage(**limits))


@pytest.mark.req("budget.zero-is-no-limit", "budget.minus-one-is-exhausted")
def test_public_budget_is_read_once_at_the_door() -> None:
    assert Budget.from_usage(None).unlimited
    assert Budget.from_usage(TokenUsage()).unlimited
    read = Budget.from_usage(TokenUsage(5, -1, 0))
    assert (read.input_tokens, read.output_tokens, read.llm_calls) == (5, 0, None)


@pytest.mark.parametrize("bad", [-2, -100, True, 1.5, "3"])
@pytest.mark.req("budget.bad-value-is-named")
def test_senseless_budget_is_refused_with_its_name(bad: object) -> None:
    with pytest.raises(ValueError, match="llm_calls"):
        Budget.from_usage(TokenUsage(llm_calls=bad))  # type: ignore[arg-type]


@pytest.mark.req("budget.calls-are-exact")
async def test_call_limit_is_exact_under_concurrency() -> None:
    tracker = CostTracker()
    limits = budget(llm_calls=3)
    sent = 0

    async def one() -> None:
        nonlocal sent
        held = await tracker.admit(limits)
        sent += 1
        await asyncio.sleep(0)
        held.settle(TokenUsage(1, 1))

    outcomes = await asyncio.gather(*(one() for _ in range(10)), return_exceptions=True)
    refused = [item for item in outcomes if isinstance(item, BudgetExhaustedError)]
    assert (sent, len(refused), tracker.call_count) == (3, 7, 3)


@pytest.mark.req("D-09", "budget.tokens-overshoot-by-one-response-at-most")
async def test_ten_calls_at_once_pass_a_token_limit_by_one_response_at_most() -> None:
    tracker = CostTracker()
    limits = budget(output_tokens=100)
    finish = asyncio.Event()

    async def one() -> None:
        held = await tracker.admit(limits, output_tokens=100)
        await finish.wait()
        held.settle(TokenUsage(0, 100))

    tasks = [asyncio.create_task(one()) for _ in range(10)]
    await settle()
    assert tracker.call_count == 1
    finish.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(item is None for item in outcomes) == 1
    assert tracker.to_usage().output_tokens == 100


@pytest.mark.req("budget.calls-that-fit-run-together")
async def test_calls_that_fit_together_do_not_wait_for_each_other() -> None:
    tracker = CostTracker()
    limits = budget(output_tokens=100)
    held = [await tracker.admit(limits, output_tokens=40) for _ in range(2)]
    third = asyncio.create_task(tracker.admit(limits, output_tokens=40))
    await settle()
    assert not third.done()
    held[0].settle(TokenUsage(0, 5))
    (await third).keep()
    held[1].keep()


@pytest.mark.req("LM-19")
async def test_a_paid_reply_is_kept_and_the_next_request_refused() -> None:
    """LM-19: budget 100, the reply costs 140."""
    tracker = CostTracker()
    limits = budget(output_tokens=100)
    (await tracker.admit(limits, output_tokens=4096)).settle(TokenUsage(0, 140))
    assert tracker.over(limits)
    with pytest.raises(
        BudgetExhaustedError, match="Output token budget exhausted"
    ) as e:
        await tracker.admit(limits)
    assert e.value.cost.output_tokens == 140
    assert e.value.metadata["budget"] == TokenUsage(output_tokens=100)


@pytest.mark.req("LM-20")
async def test_the_limits_of_calls_and_tokens_are_separate() -> None:
    """LM-20: many requests of many tokens pass when only their number is limited."""
    tracker = CostTracker()
    limits = budget(llm_calls=30)
    for _ in range(26):
        (await tracker.admit(limits)).settle(TokenUsage(20_000, 10))
    assert tracker.to_usage().input_tokens == 520_000


async def test_the_order_of_waiting_is_the_order_of_granting() -> None:
    tracker = CostTracker()
    limits = budget(output_tokens=10)
    order: list[int] = []
    first = await tracker.admit(limits, output_tokens=10)

    async def one(number: int) -> None:
        held = await tracker.admit(limits, output_tokens=10)
        order.append(number)
        held.settle(TokenUsage(0, 1))

    tasks = [asyncio.create_task(one(number)) for number in range(5)]
    await settle()
    first.settle(TokenUsage(0, 1))
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


async def test_a_small_call_does_not_overtake_a_large_one_that_waits() -> None:
    tracker = CostTracker()
    limits = budget(output_tokens=10)
    first = await tracker.admit(limits, output_tokens=5)
    order: list[str] = []

    async def one(name: str, tokens: int) -> None:
        held = await tracker.admit(limits, output_tokens=tokens)
        order.append(name)
        held.settle(TokenUsage(0, 1))

    large = asyncio.create_task(one("large", 9))
    await settle()
    small = asyncio.create_task(one("small", 1))
    await settle()
    assert order == []
    first.settle(TokenUsage(0, 1))
    await asyncio.gather(large, small)
    assert order == ["large", "small"]


@pytest.mark.req("budget.no-wait-for-oneself")
async def test_a_task_with_a_call_in_flight_does_not_wait_but_keeps_to_the_limit() -> (
    None
):
    tracker = CostTracker()
    limits = budget(output_tokens=10, llm_calls=3)
    outer = await tracker.admit(limits, output_tokens=10)
    inner = await tracker.admit(limits, output_tokens=10)
    other = asyncio.create_task(tracker.admit(limits, output_tokens=10))
    await settle()
    assert not other.done()
    inner.settle(TokenUsage(0, 4))
    (await tracker.admit(limits, output_tokens=10)).settle(TokenUsage(0, 6))
    with pytest.raises(BudgetExhaustedError):
        await tracker.admit(limits)
    with pytest.raises(BudgetExhaustedError):
        await other
    outer.keep()
    assert not tracker._owners


@pytest.mark.req("budget.cancelled-wait-leaks-nothing")
async def test_a_cancelled_waiter_holds_nothing_and_blocks_nobody() -> None:
    tracker = CostTracker()
    limits = budget(output_tokens=10, llm_calls=3)
    first = await tracker.admit(limits, output_tokens=10)
    gone = asyncio.create_task(tracker.admit(limits, output_tokens=10))
    stays = asyncio.create_task(tracker.admit(limits, output_tokens=10))
    await settle()
    gone.cancel()
    first.settle(TokenUsage(0, 1))
    (await stays).settle(TokenUsage(0, 1))
    assert gone.cancelled() or await asyncio.wait([gone])
    assert tracker.call_count == 2


async def test_a_waiter_cancelled_in_the_tick_of_its_grant_gives_it_back() -> None:
    tracker = CostTracker()
    limits = budget(output_tokens=10, llm_calls=3)
    first = await tracker.admit(limits, output_tokens=10)
    gone = asyncio.create_task(tracker.admit(limits, output_tokens=10))
    stays = asyncio.create_task(tracker.admit(limits, output_tokens=10))
    await settle()
    first.settle(TokenUsage(0, 1))  # grants `gone`, which has not run yet
    gone.cancel()
    (await stays).settle(TokenUsage(0, 1))
    assert tracker.call_count == 2


@given(st.lists(st.sampled_from(["settle", "keep", "refund"]), max_size=30))
def test_a_reservation_counts_exactly_once_however_often_it_is_ended(
    ends: list[str],
) -> None:
    async def run() -> None:
        tracker = CostTracker()
        calls = tokens = 0
        for end in ends:
            held = await tracker.admit(budget(output_tokens=10**9), output_tokens=7)
            actions: dict[str, Callable[[], object]] = {
                "settle": partial(held.settle, TokenUsage(2, 3)),
                "keep": held.keep,
                "refund": held.refund,
            }
            actions[end]()
            for again in actions.values():
                again()
            calls += end != "refund"
            tokens += 5 * (end == "settle")
        assert (tracker.call_count, tracker.total_tokens) == (calls, tokens)
        assert tracker._reserved_output == tracker._in_flight == 0

    asyncio.run(run())


def test_recording_adds_up_every_kind_of_token() -> None:
    tracker = CostTracker()
    tracker.record(reply(3, 4))
    tracker.reserve_call()
    tracker.record_without_call(reply(1, 1))
    tracker.add_usage(TokenUsage(10, 20, 30, cache_read_tokens=5, reasoning_tokens=6))
    expected = TokenUsage(14, 25, 32, cache_read_tokens=5, reasoning_tokens=6)
    assert tracker.to_usage() == tracker.snapshot() == expected
    assert tracker.total_tokens == 39
    assert pickle.loads(pickle.dumps(expected)) == expected


@pytest.mark.parametrize("usage", [{"prompt_tokens": "x"}, {"prompt_tokens": -4}, {}])
@pytest.mark.req("usage.senseless-count-never-loses-a-reply")
def test_a_senseless_count_reads_as_zero(usage: dict[str, object]) -> None:
    assert response_usage(LLMResponse("x", usage=usage)) == TokenUsage()


def test_usage_of_a_foreign_response_object_reads_as_zero() -> None:
    assert response_usage(object()) == TokenUsage()  # type: ignore[arg-type]


@pytest.mark.req("RS-03")
def test_cache_writes_are_billed_once_at_their_own_price() -> None:
    """RS-03: the numbers of the case."""
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12304,
        "cache_read_input_tokens": 0,
        "output_tokens": 550,
    }
    spent = response_usage(LLMResponse("x", usage=usage))
    price = estimate_cost(
        spent,
        input_rate=3e-6,
        output_rate=15e-6,
        cache_write_rate=3.75e-6,
        cache_read_rate=0.30e-6,
    )
    assert round(price, 4) == 0.0544
    assert spent.input_tokens == 12307


@pytest.mark.req("cost.estimate-is-arithmetic")
def test_estimate_is_plain_arithmetic_without_cache_rates() -> None:
    usage = TokenUsage(10, 20, cache_read_tokens=4)
    assert estimate_cost(usage, input_rate=2.0, output_rate=3.0) == 80.0


def test_tokens_of_messages_are_estimated_from_their_text() -> None:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "x" * 40},
        {"role": "user", "content": [{"type": "text", "text": "y" * 8}, "junk"]},
        {"role": "assistant", "content": None},
    ]
    assert estimate_tokens(messages) == 12


def test_what_is_no_json_counts_as_no_tokens() -> None:
    loop: dict[str, object] = {}
    loop["self"] = loop
    assert estimate_tokens([{"content": "x" * 8}], [loop]) == 2
    assert estimate_tokens([], [object()]) > 0


async def test_a_cancelled_watcher_is_no_matter() -> None:
    tracker = CostTracker()
    held = await tracker.admit(budget(output_tokens=10))
    gone, stays = (asyncio.create_task(tracker.changed()) for _ in range(2))
    await settle()
    gone.cancel()
    await settle()
    assert not stays.done()
    held.keep()
    await stays


def test_a_limited_call_driven_by_hand_needs_no_loop() -> None:
    held = CostTracker().admit_now(budget(output_tokens=10))
    assert held is not None
    held.keep()


@pytest.mark.req("cost.cancelled-runs-are-not-forgotten")
def test_lost_cost_goes_to_the_nearest_collector() -> None:
    booked: list[TokenUsage] = []
    report_lost_cost(TokenUsage(1))
    with collecting_lost_cost(booked.append):
        with collecting_lost_cost(None):
            report_lost_cost(TokenUsage(2))
        report_lost_cost(TokenUsage(3))
    assert booked == [TokenUsage(3)]


def test_a_plain_usage_reads_as_the_full_one_does() -> None:
    """The short way gives what the properties of the response give."""
    values = [None, 0, 5, 7.0, 2.5, -1, True, "x", 10**10]
    for sent in values:
        for made in values:
            usage = {"prompt_tokens": sent, "completion_tokens": made}
            short = response_usage(LLMResponse("x", usage=usage))
            full = response_usage(LLMResponse("x", usage={**usage, "other": 1}))
            assert short == full


def test_without_cache_rates_the_price_is_exactly_the_formula() -> None:
    usage = TokenUsage(3, 7, cache_read_tokens=1, cache_write_tokens=1)
    price = estimate_cost(usage, input_rate=0.1, output_rate=0.7)
    assert price == 3 * 0.1 + 7 * 0.7


def test_remaining_budget_marks_what_is_used_up() -> None:
    limits = budget(llm_calls=3, output_tokens=10)
    assert limits.remaining(TokenUsage(5, 10, 1)) == TokenUsage(0, -1, 2)
    assert Budget.from_usage(None).remaining(TokenUsage(1)) is None
