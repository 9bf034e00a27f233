"""Cost of the patterns against the same work written by hand.

Run: `python -m bench.bench_patterns`. Only the ratios mean something: both sides run in
turns in the same process, and the median of the rounds is taken. The model answers at
once, so that nothing but the pattern is measured. The side written by hand does what is
needed to be right: it retries, bounds what is in flight, counts calls and tokens.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from executionkit._llm import LLMResponse
from executionkit.cost import CostTracker
from executionkit.errors import ProviderError, RateLimitError
from executionkit.patterns import consensus, map_reduce, structured
from executionkit.patterns.base import checked_complete

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

ROUNDS = 9
CALLS = 2_000
TARGET_CALL = 3.0
TARGET_FAN_OUT = 2.0
TARGET_SMALL = 3.0  # what a run costs once is shared by few calls
TARGET_STRUCTURED = 8.0
TARGET_GROWTH = 10.5

PROMPT = "Return only 'yes' or 'no': is 17 prime?"
MESSAGES = [{"role": "user", "content": PROMPT}]
TEMPLATES: dict[str, Any] = {
    "map_prompt_template": "Sum up: {item}",
    "reduce_prompt_template": "Sum up all: {mapped_outputs}",
}


class Model:
    """Answers the same at once."""

    def __init__(self, text: str = "yes") -> None:
        usage = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}
        self._reply = LLMResponse(text, usage=usage)

    async def complete(
        self, messages: Iterable[dict[str, Any]], **_options: Any
    ) -> LLMResponse:
        return self._reply


class ByHand:
    """Calls a model with the duties of a pattern, and no more."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.calls = self.sent = self.made = 0

    async def ask(self, prompt: str) -> LLMResponse:
        messages = [{"role": "user", "content": prompt}]
        for attempt in range(4):
            self.calls += 1
            try:
                response = await self._model.complete(
                    messages, temperature=0.9, max_tokens=4096
                )
            except (RateLimitError, ProviderError):
                if attempt == 3:
                    raise
                await asyncio.sleep(random.uniform(0, 2.0**attempt))
            else:
                self.sent += response.input_tokens
                self.made += response.output_tokens
                return response
        raise AssertionError

    async def all(self, prompts: Iterable[str], at_once: int) -> list[LLMResponse]:
        gate = asyncio.Semaphore(at_once)

        async def one(prompt: str) -> LLMResponse:
            async with gate:
                return await self.ask(prompt)

        return await asyncio.gather(*[one(prompt) for prompt in prompts])


async def _call() -> None:
    model, tracker = Model(), CostTracker()
    for _ in range(CALLS):
        await checked_complete(
            model, MESSAGES, tracker, None, None, temperature=0.9, max_tokens=4096
        )


async def _call_by_hand() -> None:
    hand = ByHand(Model())
    for _ in range(CALLS):
        await hand.ask(PROMPT)


def _consensus(samples: int, at_once: int) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        model = Model()
        for _ in range(CALLS // samples):
            await consensus(model, PROMPT, num_samples=samples, max_concurrency=at_once)

    return run


def _vote_by_hand(samples: int, at_once: int) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        model = Model()
        for _ in range(CALLS // samples):
            replies = await ByHand(model).all([PROMPT] * samples, at_once)
            votes = Counter(" ".join(reply.content.split()) for reply in replies)
            votes.most_common(1)

    return run


def _map(inputs: int) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        texts = (f"text {number}" for number in range(inputs))
        await map_reduce(Model(), texts, **TEMPLATES)

    return run


def _map_by_hand(inputs: int) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        hand = ByHand(Model())
        texts = [f"Sum up: text {number}" for number in range(inputs)]
        replies = await hand.all(texts, 10)
        joined = "\n\n---\n\n".join(reply.content for reply in replies)
        await hand.ask(f"Sum up all: {joined}")

    return run


ANSWER = '{"name": "Ada", "age": 36}'


async def _structured() -> None:
    model = Model(ANSWER)
    for _ in range(CALLS):
        await structured(model, PROMPT)


async def _structured_by_hand() -> None:
    hand = ByHand(Model(ANSWER))
    for _ in range(CALLS):
        json.loads((await hand.ask(PROMPT)).content)


async def _measure(work: Callable[[], Awaitable[None]]) -> float:
    gc.collect()
    began = time.process_time()  # the other programs of the machine do not count
    await work()
    return time.process_time() - began


async def _interleaved(*sides: Callable[[], Awaitable[None]]) -> list[float]:
    """The median seconds of each side; they take turns."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        await side()
    for number in range(ROUNDS):
        order = range(len(sides)) if number % 2 else reversed(range(len(sides)))
        for place in order:
            times[place].append(await _measure(sides[place]))
    return [statistics.median(item) for item in times]


def _row(name: str, ours: float, limit: float, target: float) -> dict[str, Any]:
    ratio = ours / limit
    return {
        "name": name,
        "ours": ours,
        "limit": limit,
        "ratio": ratio,
        "target": target,
        "met": ratio <= target,
    }


async def _rows() -> list[dict[str, Any]]:
    call, by_hand = await _interleaved(_call, _call_by_hand)
    found = [
        _row("checked_complete, one call", call / CALLS, by_hand / CALLS, TARGET_CALL)
    ]
    for samples, at_once in ((100, 100), (100, 5), (5, 5)):
        ours, limit = await _interleaved(
            _consensus(samples, at_once), _vote_by_hand(samples, at_once)
        )
        name = f"consensus: {samples} samples, {at_once} at once, each"
        target = TARGET_SMALL if samples == 5 else TARGET_FAN_OUT
        found.append(_row(name, ours / CALLS, limit / CALLS, target))
    ours, limit, longer = await _interleaved(
        _map(1_000), _map_by_hand(1_000), _map(10_000)
    )
    found += [
        _row("map_reduce: 1,000 inputs", ours, limit, TARGET_FAN_OUT),
        _row("map_reduce: 10,000 inputs against 1,000", longer, ours, TARGET_GROWTH),
    ]
    ours, limit = await _interleaved(_structured, _structured_by_hand)
    name = "structured: one object of 27 characters"
    found.append(_row(name, ours / CALLS, limit / CALLS, TARGET_STRUCTURED))
    return found


def rows() -> list[dict[str, Any]]:
    """What was measured: name, ours, limit (seconds), ratio, target, met."""
    return asyncio.run(_rows())


if __name__ == "__main__":
    for row in rows():
        mark = "met" if row["met"] else "MISSED"
        print(
            f"{row['name']:42} {row['ours'] * 1e6:10.2f} us {row['limit'] * 1e6:10.2f} us"
            f" {row['ratio']:6.2f}x  target {row['target']:.2f}x  {mark}"
        )
