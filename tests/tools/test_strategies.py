"""Execution strategies: one contract for all, and what is special about each."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.calls import ToolCall
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

if TYPE_CHECKING:
    from types import ModuleType


def _contract() -> ModuleType:
    # Files of tests are no packages here; the suite of the contract is found by path.
    path = Path(__file__).with_name("strategy_contract.py")
    spec = importlib.util.spec_from_file_location("strategy_contract", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


contract = _contract()
holds = contract.holds


@pytest.mark.req("T-RUN-15")
class TestInProcessStrategy(contract.StrategyContract):  # type: ignore[misc, name-defined]
    @pytest.fixture
    async def strategy(self) -> AsyncIterator[InProcessStrategy]:
        made = InProcessStrategy(contract.registry())
        yield made
        await made.shutdown()

    @pytest.fixture
    async def limited(self) -> AsyncIterator[InProcessStrategy]:
        made = InProcessStrategy(contract.registry(), max_concurrency=2)
        yield made
        await made.shutdown()


@pytest.mark.req("T-RUN-15")
async def test_execute_and_close_are_other_names_of_run_and_shutdown() -> None:
    async def echo(n: int = 0) -> int:
        return n

    strategy = InProcessStrategy(create_registry(echo))
    calls = [ToolCall("1", "echo", {"n": 4})]
    assert (await strategy.execute(calls, timeout=5))[0].result == 4
    await strategy.close()
    assert (await strategy.execute(calls))[0].error == "System is shutting down"


@pytest.mark.req("T-RUN-15")
@pytest.mark.parametrize(
    "options",
    [
        {"default_timeout": 0},
        {"default_timeout": -1.0},
        {"default_timeout": float("nan")},
        {"default_timeout": True},
        {"max_concurrency": 0},
        {"max_concurrency": 1.5},
        {"max_threads": 0},
        {"max_threads": True},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        InProcessStrategy(create_registry(), **options)


@pytest.mark.req("T-RUN-15")
async def test_so_many_plain_functions_run_at_once_and_others_are_not_held_up() -> None:
    import threading

    go = threading.Event()
    count = threading.Semaphore(0)

    def blocks() -> str:
        count.release()
        assert go.wait(20)
        return "ended"

    async def echo() -> str:
        return "echo"

    strategy = InProcessStrategy(create_registry(blocks, echo), max_threads=2)
    calls = [ToolCall(str(n), "blocks") for n in range(5)]
    running = asyncio.ensure_future(strategy.run(calls))
    for _ in range(2):
        assert await asyncio.to_thread(count.acquire, timeout=20)
    [other] = await strategy.run([ToolCall("x", "echo")])
    assert other.result == "echo"
    assert not count.acquire(blocking=False)
    assert strategy.active == 2
    go.set()
    results = await asyncio.wait_for(running, 20)
    assert [result.result for result in results] == ["ended"] * 5
    assert strategy.active == strategy.abandoned == 0
