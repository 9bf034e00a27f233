"""Worker processes keep the promises of every strategy."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from executionkit.tools.strategies import SubprocessStrategy
from tests.tools.strategy_contract import StrategyContract, holds, registry

__all__ = ("TestSubprocess", "holds")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs process groups")


@pytest.mark.req("T-RUN-15")
class TestSubprocess(StrategyContract):
    @pytest.fixture
    async def strategy(self) -> AsyncIterator[SubprocessStrategy]:
        made = SubprocessStrategy(registry(), max_workers=3, worker_init_timeout=20)
        yield made
        await made.shutdown()

    @pytest.fixture
    async def limited(self) -> AsyncIterator[SubprocessStrategy]:
        made = SubprocessStrategy(registry(), max_workers=2, worker_init_timeout=20)
        yield made
        await made.shutdown()
