"""An agent whose tools are guarded, approved, retried and cached.

    PYTHONPATH=. python3 examples/tool_agent.py

The model is a script, so that this runs without one: each reply is what a model might
say, mistakes included. Put a `Provider` in its place and nothing else changes.
"""

from __future__ import annotations

import asyncio
import json

from executionkit import (
    ApprovalDecision,
    ApprovalGate,
    ApprovalRequest,
    BudgetGuard,
    GuardChain,
    LLMResponse,
    MockProvider,
    ToolCall,
    ToolProcessor,
    create_registry,
    react_loop,
    tool,
)

registry = create_registry()
ORDERS = {17: 34.9, 18: 420.0}
refunds: dict[int, float] = {}
failures = iter([True])  # of the database: the first time only


@tool(name="orders.find", registry=registry, side_effects="read")
async def find(number: int) -> dict[str, float | str]:
    """Finds an order.

    Args:
        number: The order's number.
    """
    if next(failures, False):
        raise ConnectionError("the database is waking up")
    return {"total": ORDERS[number], "api_key": "sk-live-0123456789abcdef01234567"}


@tool(name="orders.refund", registry=registry, side_effects="write")
async def refund(number: int, amount: float) -> str:
    """Pays money back."""
    refunds[number] = amount
    return f"{amount:.2f} paid back for order {number}"


@tool(registry=registry, side_effects="read")
def fetch(url: str) -> str:
    """Reads a page (plain functions run in a thread)."""
    return f"the page at {url}"


def asks(name: str, **arguments: object) -> LLMResponse:
    return LLMResponse("", tool_calls=(ToolCall(name=name, arguments=arguments),))


MODEL: list[str | LLMResponse] = [
    asks("orders__find", number=17),
    asks("orders__find", numbr=17),  # a slip
    asks("orders__find", number=17),  # asked again
    asks("fetch", url="https://169.254.169.254/latest/meta-data"),  # talked into it
    asks("orders__refund", number=18, amount=420.0),  # too much
    asks("orders__refund", number=17, amount=34.9),
    "Order 17 is paid back.",
]


async def manager(request: ApprovalRequest) -> ApprovalDecision:
    """Says yes to small sums; in real life, a person."""
    if request.subject != "orders__refund":
        return ApprovalDecision(approved=True)
    amount = request.metadata["arguments"]["amount"]
    print(f"  manager  refund of {amount:.2f}? {'yes' if amount <= 50 else 'no'}")
    return ApprovalDecision(amount <= 50, "above 50 a person has to do it")


async def main() -> None:
    guards = [GuardChain.create_default(), BudgetGuard(per_tool={"orders.refund": 3})]
    async with ToolProcessor(
        registry,
        default_timeout=5,
        enable_retries=True,
        retry_base_delay=0.01,
        enable_caching=True,
        guards=guards,
    ) as processor:
        result = await react_loop(
            MockProvider(MODEL),
            "Pay order 17 back.",
            processor,
            approval_gate=ApprovalGate(manager, timeout_seconds=60, on_timeout="deny"),
        )
        for message in result.metadata["messages"]:
            for call in message.get("tool_calls") or ():
                made = call["function"]
                print(f"  model    {made['name']} {made['arguments']}")
            if message["role"] == "tool":
                print(f"  tool     {message['content'][:110]}")
        print(f"  model    {result.value}")
        stats = await processor.stats()
        print(f"\nretries {stats.retries}, from the cache {stats.cached}")
        print(f"refunds {json.dumps(refunds)}")


if __name__ == "__main__":
    asyncio.run(main())
