"""Cost of the tool loop against a loop written by hand with the same duties.

Run: `python -m bench.bench_react`. Only the ratios mean something: both sides run in
turns in the same process, and the median of the rounds is taken. The model is scripted
and answers at once, so that nothing but the loop is measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

from executionkit._llm import LLMResponse
from executionkit.calls import ToolCall
from executionkit.engine.schema import compile_schema
from executionkit.patterns import react_loop
from executionkit.types import Tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

ROUNDS = 9
LOOPS = 20
TARGET_LOOP = 3.0
TARGET_GROWTH = 4.1

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 80},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


async def weather(city: str, days: int, unit: str = "celsius") -> dict[str, Any]:
    return {"city": city, "days": days, "unit": unit, "high": 21.5, "low": 11}


TOOL = Tool("weather", "The weather of the next days", PARAMETERS, weather)


class Model:
    """Calls `weather` a few times in each of its first rounds, then answers."""

    supports_tools = True

    def __init__(self, rounds: int, calls: int) -> None:
        # The replies differ, as real ones do: equal rounds would end the loop.
        self._script = [
            LLMResponse(
                "",
                tuple(
                    ToolCall(
                        f"call-{number}-{place}",
                        "weather",
                        {"city": f"City {number} {place}", "days": 1 + place % 14},
                    )
                    for place in range(calls)
                ),
                "tool_calls",
                {"prompt_tokens": 10, "completion_tokens": 5},
            )
            for number in range(rounds)
        ]
        self._script.append(LLMResponse("done"))
        self._next = 0

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        response = self._script[self._next]
        self._next = (self._next + 1) % len(self._script)
        return response


async def by_hand(model: Model, prompt: str, max_rounds: int) -> str:
    """The same duties: full validation, a timeout, tasks, messages, JSON, usage."""
    validator = compile_schema(PARAMETERS)
    schemas = [TOOL.to_schema()]
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    spent = 0

    async def run(call: ToolCall) -> str:
        problems = validator.validate(call.arguments)
        if problems:
            return f"argument error: {problems}"
        try:
            async with asyncio.timeout(30.0):
                return json.dumps(await TOOL.execute(**call.arguments))
        except Exception as exc:
            return f"failed: {type(exc).__name__}"

    for _ in range(max_rounds):
        response = await model.complete(messages, tools=schemas)
        spent += response.input_tokens + response.output_tokens
        if not response.tool_calls:
            return response.content
        messages.append(
            {
                "role": "assistant",
                "content": response.content or None,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {
                            "name": call.name,
                            "arguments": json.dumps(dict(call.arguments)),
                        },
                    }
                    for call in response.tool_calls
                ],
            }
        )
        results = await asyncio.gather(*(run(call) for call in response.tool_calls))
        for call, text in zip(response.tool_calls, results, strict=True):
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": text[:12000]}
            )
    raise RuntimeError


async def _ours(rounds: int, calls: int) -> None:
    model = Model(rounds, calls)
    for _ in range(LOOPS):
        await react_loop(model, "How warm?", [TOOL], max_rounds=rounds + 1)


async def _limit(rounds: int, calls: int) -> None:
    model = Model(rounds, calls)
    for _ in range(LOOPS):
        await by_hand(model, "How warm?", rounds + 1)


async def _measure(work: Callable[[], Awaitable[None]]) -> float:
    gc.collect()
    began = time.process_time()  # the other programs of the machine do not count
    await work()
    return (time.process_time() - began) / LOOPS


async def _interleaved(
    *sides: Callable[[], Awaitable[None]], rounds: int = ROUNDS
) -> list[float]:
    """The median seconds of each side; they take turns."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        await side()
    for number in range(rounds):
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
    ours, limit, longer = await _interleaved(
        lambda: _ours(10, 5), lambda: _limit(10, 5), lambda: _ours(40, 5)
    )
    single, single_limit = await _interleaved(
        lambda: _ours(10, 1), lambda: _limit(10, 1)
    )
    return [
        _row("react_loop: 10 rounds x 5 calls", ours, limit, TARGET_LOOP),
        _row("react_loop: 10 rounds x 1 call", single, single_limit, TARGET_LOOP),
        _row("react_loop: 40 rounds against 10", longer, ours, TARGET_GROWTH),
    ]


def rows() -> list[dict[str, Any]]:
    """What was measured: name, ours, limit (seconds), ratio, target, met."""
    return asyncio.run(_rows())


if __name__ == "__main__":
    for row in rows():
        mark = "met" if row["met"] else "MISSED"
        print(
            f"{row['name']:36} {row['ours'] * 1e3:8.3f} ms {row['limit'] * 1e3:8.3f} ms"
            f" {row['ratio']:6.2f}x  target {row['target']:.2f}x  {mark}"
        )
