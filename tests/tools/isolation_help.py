"""What the tests of worker processes share."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from executionkit.calls import ToolCall, ToolResult
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.tools.strategies import SubprocessStrategy
from tests.tools import isolation_light, isolation_tools as tools

FUNCTIONS = (
    isolation_light.light_nap,
    isolation_light.light_echo,
    tools.add,
    tools.add_later,
    tools.Doubler,
    tools.Both,
    tools.plus_one,
    tools.hidden,
    tools.pid,
    tools.echo,
    tools.mirror,
    tools.fail,
    tools.fail_later,
    tools.give,
    tools.items,
    tools.items_later,
    tools.numbered,
    tools.items_then_fail,
    tools.odd_item,
    tools.who,
    tools.who_later,
    tools.who_leaks,
    tools.told,
    tools.nap,
    tools.nap_later,
    tools.nap_and_clean,
    tools.stubborn,
    tools.spin,
    tools.canary,
    tools.forks,
    tools.crash,
    tools.wait_for,
    tools.prints,
    tools.hoard,
    tools.take,
    tools.write,
    tools.open_many,
    tools.forgets_a_task,
    tools.threads_alive,
    tools.strategy_inside,
    tools.reach,
    tools.bomb,
    tools.bombs,
    tools.plain,
)


def registry() -> ToolRegistry:
    made = create_registry()
    for function in FUNCTIONS:
        made.add(function)
    return made


class Runner:
    """A strategy, and short ways to use it."""

    def __init__(self, strategy: SubprocessStrategy) -> None:
        self.strategy = strategy

    async def __call__(
        self, name: str, /, timeout: float | None = None, **arguments: Any
    ) -> ToolResult:
        call = ToolCall(name=name, arguments=arguments)
        async with asyncio.timeout(20):
            (result,) = await self.strategy.run([call], timeout)
        assert result.call_id == call.id
        return result

    async def value(self, name: str, /, **arguments: Any) -> Any:
        result = await self(name, **arguments)
        assert result.error is None, result.error
        return result.result

    async def many(self, name: str, many: list[dict[str, Any]]) -> list[ToolResult]:
        calls = [ToolCall(name=name, arguments=item) for item in many]
        async with asyncio.timeout(25):
            return await self.strategy.run(calls, return_order="submission")


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Runner]:
    settings.setdefault("worker_init_timeout", 20.0)
    settings.setdefault("max_workers", 1)
    strategy = SubprocessStrategy(
        settings.pop("registry", None) or registry(), **settings
    )
    try:
        yield Runner(strategy)
    finally:
        async with asyncio.timeout(10):
            await strategy.shutdown()


async def until(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait until `what` gives something true: another process cannot set an event."""
    async with asyncio.timeout(seconds):
        while not (found := what()):
            await asyncio.sleep(0.005)
    return found


def text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


_of_others: set[int] = set()


def forget_children() -> None:
    """Count only the children from now on: servers of other tests may still run."""
    _of_others.clear()
    _of_others.update(children())


def children() -> dict[int, str]:
    """The children of this process since `forget_children`, and their states."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            line = text(entry / "stat") if entry.exists() else ""
            fields = line.rpartition(")")[2].split()
            if fields and int(fields[1]) == os.getpid():
                found[int(entry.name)] = fields[0]
    return {pid: state for pid, state in found.items() if pid not in _of_others}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
