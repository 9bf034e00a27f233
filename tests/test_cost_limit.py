"""Money and single requests are limited apart from the tokens of a run."""

from __future__ import annotations

import asyncio
import copy
import pickle
from functools import partial
from typing import Any

import pytest

from executionkit import (
    BudgetExhaustedError,
    CostLimit,
    Kit,
    LLMResponse,
    PatternResult,
    Prices,
    RequestTooLargeError,
    TokenUsage,
    Tool,
    consensus,
    map_reduce,
    pipe,
    react_loop,
    refine_loop,
    structured,
)
from executionkit.cost import Budget, CostTracker
from executionkit.patterns.base import checked_complete, checked_stream
from executionkit.testing import ScriptedProvider, settle, tool_call_reply

pytestmark = pytest.mark.req("budget.money-and-request-size")

PRICES = Prices(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
ROUNDS = 26
BAD: Any = "1"
CACHED = {
    "prompt_tokens": 20_000,
    "completion_tokens": 100,
    "prompt_tokens_details": {"cached_tokens": 19_000},
}
PLAIN = {"prompt_tokens": 20_000, "completion_tokens": 100}


def call_tool() -> Tool:
    async def look(n: int) -> str:
        return str(n)

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return Tool("look", "Looks", schema, look)


def agent(usage: dict[str, Any]) -> ScriptedProvider:
    steps = [
        tool_call_reply(("look", {"n": n}), usage=usage) for n in range(ROUNDS - 1)
    ]
    return ScriptedProvider([*steps, LLMResponse("done", usage=usage)])


async def run_agent(provider: ScriptedProvider, limit: TokenUsage) -> Any:
    prompt = "word " * 16_000  # 20 000 tokens
    tools = [call_tool()]
    return await react_loop(provider, prompt, tools, max_rounds=40, max_cost=limit)


@pytest.mark.req("LM-20")
async def test_a_long_run_that_reads_from_the_cache_passes() -> None:
    limit = CostLimit(request_input_tokens=30_000, money=1.00, prices=PRICES)
    provider = agent(CACHED)
    result = await run_agent(provider, limit)
    assert result.value == "done"
    assert len(provider.requests) == ROUNDS
    assert result.cost.input_tokens == 520_000  # far above the limit of one request
    assert PRICES.cost(result.cost) == pytest.approx(26 * 0.0102)


@pytest.mark.req("LM-20")
async def test_the_same_run_without_the_cache_is_stopped_by_money_alone() -> None:
    provider = agent(PLAIN)
    with pytest.raises(
        BudgetExhaustedError, match=r"Money budget .* of 1\.0 used"
    ) as got:
        await run_agent(provider, CostLimit(money=1.00, prices=PRICES))
    # 0.0615 a request: the one that passes the limit is paid, the next is not sent.
    assert len(provider.requests) == 17
    assert PRICES.cost(got.value.cost) == pytest.approx(17 * 0.0615)


@pytest.mark.req("LM-20")
async def test_a_request_above_the_limit_is_not_sent() -> None:
    provider = agent(CACHED)
    with pytest.raises(RequestTooLargeError, match="allows 19000") as got:
        await run_agent(provider, CostLimit(request_input_tokens=19_000))
    assert provider.requests == []
    assert got.value.cost == TokenUsage()
    assert isinstance(got.value, BudgetExhaustedError)
    assert not got.value.retryable
    assert pickle.loads(pickle.dumps(got.value)).args == got.value.args


@pytest.mark.req("LM-20")
async def test_a_token_limit_stops_the_run_by_itself_as_before() -> None:
    provider = agent(CACHED)
    with pytest.raises(BudgetExhaustedError, match="Input token budget"):
        await run_agent(provider, CostLimit(input_tokens=30_000))
    assert len(provider.requests) == 2


async def ask(provider: Any, limit: TokenUsage) -> Any:
    messages = [{"role": "user", "content": "x" * 400}]
    return await checked_complete(provider, messages, CostTracker(), limit, None)


async def stream(provider: Any, limit: TokenUsage) -> Any:
    messages = [{"role": "user", "content": "x" * 400}]
    return await checked_stream(provider, messages, CostTracker(), limit, None)


async def kit(provider: Any, limit: TokenUsage) -> Any:
    return await Kit(provider).consensus("x" * 400, num_samples=2, max_cost=limit)


async def piped(provider: Any, limit: TokenUsage) -> Any:
    return await pipe(provider, "x" * 400, consensus, max_budget=limit)


EVERY_WAY = [
    ask,
    stream,
    kit,
    piped,
    lambda provider, limit: consensus(provider, "x" * 400, max_cost=limit),
    lambda provider, limit: refine_loop(provider, "x" * 400, max_cost=limit),
    lambda provider, limit: react_loop(provider, "x" * 400, [], max_cost=limit),
    lambda provider, limit: structured(provider, "x" * 400, max_cost=limit),
    lambda provider, limit: map_reduce(
        provider,
        ["x" * 400],
        map_prompt_template="{item}",
        reduce_prompt_template="{mapped_outputs}",
        max_cost=limit,
    ),
]


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(
    "limit",
    [
        CostLimit(request_input_tokens=50),
        CostLimit(money=0, prices=Prices(input=1, output=1)),
    ],
)
async def test_every_way_to_a_model_obeys(way: Any, limit: CostLimit) -> None:
    provider = ScriptedProvider(["never"] * 20)
    with pytest.raises(BudgetExhaustedError):
        await way(provider, limit)
    assert provider.requests == []


async def test_money_in_flight_counts() -> None:
    tracker = CostTracker()
    limits = Budget.from_usage(
        CostLimit(money=1.0, prices=Prices(input=0.0, output=1_000_000.0))
    )
    finish = asyncio.Event()

    async def one() -> None:
        held = await tracker.admit(limits, output_tokens=1)
        await finish.wait()
        held.refund()

    tasks = [asyncio.create_task(one()) for _ in range(2)]
    await settle()
    assert tracker.call_count == 1  # two would cost 2
    finish.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
    # Alone it goes, whatever it may cost.
    assert tracker.admit_now(limits, output_tokens=9) is not None


async def test_calls_at_once_pass_a_money_limit_by_one_reply_at_most() -> None:
    provider = ScriptedProvider(
        lambda _: LLMResponse("yes", usage={"completion_tokens": 100})
    )
    limit = CostLimit(money=0.00025, prices=Prices(input=0, output=1))
    with pytest.raises(BudgetExhaustedError) as got:
        await consensus(provider, "q", num_samples=9, max_tokens=100, max_cost=limit)
    await settle()
    assert got.value.cost.llm_calls == 3


async def test_one_long_input_does_not_end_the_others() -> None:
    provider = ScriptedProvider(lambda request: "ok")
    result = await map_reduce(
        provider,
        ["short", "x" * 4_000, "brief"],
        map_prompt_template="{item}",
        reduce_prompt_template="{mapped_outputs}",
        on_error="collect",
        max_cost=CostLimit(request_input_tokens=500),
    )
    assert result.value == "ok"
    assert len(provider.requests) == 3


async def test_a_pipe_hands_on_the_money_that_is_left() -> None:
    seen: list[Any] = []

    async def step(_provider: Any, text: str, *, max_cost: Any = None) -> Any:
        seen.append(max_cost)
        return PatternResult(text, cost=TokenUsage(0, 400_000, 1))

    limit = CostLimit(
        llm_calls=9, money=1, prices=Prices(input=0, output=1), request_input_tokens=7
    )
    bound = partial(step, max_cost=CostLimit(request_input_tokens=5, llm_calls=2))
    result = await pipe(None, "x", step, bound, step, max_budget=limit)  # type: ignore[arg-type]
    assert [item.money for item in seen] == pytest.approx([1, 0.6, 0.2])
    assert [item.request_input_tokens for item in seen] == [7, 5, 7]
    assert [item.llm_calls for item in seen] == [9, 2, 7]
    assert result.metadata["over_budget"] is True


async def test_a_pipe_with_no_money_left_starts_no_step() -> None:
    async def step(_provider: Any, text: str) -> Any:
        return PatternResult(text, cost=TokenUsage(0, 2_000_000, 1))

    limit = CostLimit(money=1, prices=Prices(input=0, output=1))
    with pytest.raises(BudgetExhaustedError, match=r"money 2\.0 of 1 used"):
        await pipe(None, "x", step, step, max_budget=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: CostLimit(money=1), ValueError, "needs `prices`"),
        (lambda: CostLimit(money=-1, prices=PRICES), ValueError, "`money`"),
        (lambda: CostLimit(money=BAD, prices=PRICES), TypeError, "`money`"),
        (lambda: CostLimit(money=float("nan"), prices=PRICES), ValueError, "`money`"),
        (lambda: CostLimit(money=1, prices=BAD), TypeError, "`prices`"),
        (lambda: CostLimit(request_input_tokens=0), ValueError, "request_input_tokens"),
        (lambda: CostLimit(request_input_tokens=True), ValueError, "got True"),
        (lambda: Prices(input=-1, output=1), ValueError, "`input`"),
        (lambda: Prices(input=1, output=BAD), TypeError, "`output`"),
        (
            lambda: Prices(input=1, output=1, cache_read=float("inf")),
            ValueError,
            "read",
        ),
    ],
)
def test_a_senseless_limit_is_refused_with_its_name(
    make: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


def test_limits_are_values() -> None:
    limit = CostLimit(llm_calls=3, money=1.5, prices=PRICES)
    assert pickle.loads(pickle.dumps(limit)) == copy.deepcopy(limit) == limit
    assert hash(limit) == hash(copy.deepcopy(limit))
    assert limit != TokenUsage(llm_calls=3)
    with pytest.raises(AttributeError):
        limit.money = 2  # type: ignore[misc]


def test_prices_are_for_a_million_tokens() -> None:
    usage = TokenUsage(
        1_000_000, 100_000, 1, cache_read_tokens=500_000, cache_write_tokens=100_000
    )
    assert PRICES.cost(usage) == pytest.approx(0.4 * 3 + 0.5 * 0.3 + 0.1 * 3.75 + 1.5)
    assert Prices(input=3, output=15).cost(usage) == pytest.approx(4.5)
