"""A tour of ExecutionKit on a real model: `make demo`.

Without settings it runs SmolLM2-135M in this process: no server, no key, no network.
With `EXECUTIONKIT_BASE_URL`, `EXECUTIONKIT_MODEL` and, if needed, `EXECUTIONKIT_API_KEY`
it runs on any endpoint that speaks OpenAI's chat completions.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from executionkit import (
    ExecutionKitError,
    PatternResult,
    Provider,
    TokenUsage,
    Tool,
    TraceEvent,
    __version__,
    consensus,
    react_loop,
    structured,
)
from executionkit.local import LocalProvider

REVIEWS = (
    "The battery died after two days and nobody answered my mails.",
    "Great sound, easy to use, worth every cent.",
)
SAMPLES = 7
ORDER = "Maria Silva ordered 3 blue kettles on 2026-03-14."
QUESTIONS = ("How many blue kettles are in stock?", "What is 17 + 25?")
STOCK = {"blue kettle": 12, "red kettle": 0, "lamp": 31}
PRICES = {"blue kettle": 34.9, "red kettle": 29.9, "lamp": 18.5}


@dataclass(frozen=True)
class Order:
    customer: str
    quantity: int
    product: str
    date: str


def title(number: int, text: str) -> None:
    print(f"\n{number}. {text}\n" + "-" * (len(text) + 3))


def say(who: str, what: object) -> None:
    print(f"  {who + ':':<9}{what}")


def choose_provider() -> tuple[Provider | LocalProvider, str]:
    if os.environ.get("EXECUTIONKIT_BASE_URL"):
        remote = Provider.from_env()
        return remote, f"{remote.model} at {remote.base_url}"
    local = LocalProvider(seed=7)
    return local, f"{local.model}: 135 million parameters, in this process, on one core"


def sentiment(reply: str) -> str:
    """What a reply votes for; also when a server ignores the response format."""
    try:
        return str(json.loads(reply)["sentiment"])
    except (ValueError, KeyError, TypeError):
        return reply.strip(" .\n").lower()


async def vote(provider: Provider | LocalProvider) -> TokenUsage:
    title(1, f"consensus: ask {SAMPLES} times at once, take the majority")
    schema = {
        "type": "object",
        "properties": {"sentiment": {"enum": ["positive", "negative"]}},
        "required": ["sentiment"],
        "additionalProperties": False,
    }
    spent = TokenUsage()
    for review in REVIEWS:
        votes: Counter[str] = Counter()

        def count(event: TraceEvent, votes: Counter[str] = votes) -> None:
            if event.kind == "llm_call_end":
                votes[sentiment(event.payload["content"])] += 1

        result = await consensus(
            provider,
            f'Review: "{review}"\nIs the review positive or negative? Answer as JSON.',
            num_samples=SAMPLES,
            normalizer=sentiment,
            max_tokens=30,
            trace=count,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "review", "schema": schema},
            },
        )
        say("Review", review)
        say("Votes", ", ".join(f"{n} x {name}" for name, n in votes.most_common()))
        say("Answer", f"{sentiment(result.value)} (agreement {result.score:.0%})")
        spent += result.cost
    return spent


async def extract(provider: Provider | LocalProvider) -> TokenUsage:
    title(2, "structured: text in, checked data out")

    def check(order: Order) -> str | None:
        return None if order.quantity > 0 else "`quantity` must be above 0"

    result = await structured(
        provider,
        f"Extract the data as JSON: {ORDER}",
        schema=Order,
        validator=check,
        max_tokens=120,
    )
    attempts = result.metadata["parse_attempts"]
    say("Text", ORDER)
    say("Data", result.value)
    say("Checks", f"schema and validator passed, attempts: {attempts}")
    return result.cost


def make_tools() -> list[Tool]:
    async def stock(product: str) -> int:
        return STOCK[product]

    async def price(product: str) -> float:
        return PRICES[product]

    async def add(a: float, b: float) -> float:
        return a + b

    def takes(**properties: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
        }

    product, number = {"enum": list(STOCK)}, {"type": "number"}
    in_stock = "How many pieces of a product are in stock."
    return [
        Tool("stock", in_stock, takes(product=product), stock),
        Tool("price", "What a product costs.", takes(product=product), price),
        Tool("add", "Add two numbers.", takes(a=number, b=number), add),
    ]


async def use_tools(provider: Provider | LocalProvider) -> TokenUsage:
    title(3, "react_loop: let the model call functions")
    spent = TokenUsage()
    for question in QUESTIONS:
        say("User", question)
        result: PatternResult[str] = await react_loop(
            provider, question, make_tools(), temperature=0, max_tokens=80
        )
        for message in result.metadata["messages"]:
            for call in message.get("tool_calls") or ():
                made = call["function"]
                say("Model", f"calls {made['name']} with {made['arguments']}")
            if message["role"] == "tool":
                say("Tool", message["content"])
        say("Model", result.value.strip())
        spent += result.cost
    return spent


def row(name: str, cost: TokenUsage, seconds: float) -> str:
    counts = f"{cost.llm_calls:>7}{cost.input_tokens:>11}{cost.output_tokens:>12}"
    return f"  {name:<12}{counts}{seconds:>10.1f}"


async def tour(chosen: tuple[Any, str] | None = None) -> TokenUsage:
    """The tour on the provider `chosen` (and what it is called); what it cost."""
    started = time.perf_counter()
    provider, shown = chosen or choose_provider()
    print(f"ExecutionKit {__version__}\nModel: {shown}")
    total, rows = TokenUsage(), []
    async with provider:
        for name, step in (
            ("consensus", vote),
            ("structured", extract),
            ("react_loop", use_tools),
        ):
            began = time.perf_counter()
            spent = await step(provider)
            rows.append(row(name, spent, time.perf_counter() - began))
            total += spent
    title(4, "what it cost")
    print(f"  {'':<12}{'calls':>7}{'tokens in':>11}{'tokens out':>12}{'seconds':>10}")
    print("\n".join(rows))
    print(row("total", total, time.perf_counter() - started))
    if chosen is not None:
        return total
    print(
        "\nThe answers are the model's own: they are as good as 135 million parameters"
        "\nallow. The same code on an endpoint of yours (OpenAI's chat completions):"
        "\n  EXECUTIONKIT_BASE_URL=https://... EXECUTIONKIT_MODEL=... "
        "EXECUTIONKIT_API_KEY=... make demo"
    )
    return total


def main() -> None:
    try:
        asyncio.run(tour())
    except (ExecutionKitError, ValueError) as exc:
        sys.exit(f"demo: {type(exc).__name__}: {exc}")


if __name__ == "__main__":
    main()
