"""One run of a command: its options, what it spent, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit.cli._console import Console, cost_json
from executionkit.cli._early import Stopped, is_ignored
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit.cost import Prices
    from executionkit.observability import TraceEvent

__all__ = ("Job", "Meter", "run_stoppable")

_GRACE_SECONDS: Final = 0.8
"""From a signal to the end of the process, whatever a tool or a library does."""


class Meter:
    """What a command has done and spent up to now."""

    def __init__(self) -> None:
        self.prices: Prices | None = None
        self.done: Callable[[], str] = lambda: ""
        """Says what was done, in words; set by commands that do many things."""

        self.spent: Callable[[], TokenUsage] | None = None
        """What was spent, where the command knows it better than the trace."""

        self._seen = TokenUsage()

    def trace(self, event: TraceEvent) -> None:
        """Reads the cost off each event of a run."""
        cost = event.payload.get("cost")
        if isinstance(cost, TokenUsage):
            self._seen = cost

    def usage(self) -> TokenUsage:
        """Tokens and calls."""
        return self._seen if self.spent is None else self.spent()

    def money(self, usage: TokenUsage | None = None) -> float | None:
        """What it cost, when the prices are known."""
        if self.prices is None:
            return None
        return self.prices.cost(self.usage() if usage is None else usage)

    def json(self, usage: TokenUsage | None = None) -> dict[str, Any]:
        """The cost as JSON."""
        chosen = self.usage() if usage is None else usage
        return cost_json(chosen, self.money(chosen))

    def brief(self) -> str:
        """The cost in few words: money when the prices are known, else tokens."""
        spent, money = self.usage(), self.money()
        calls = f"{spent.llm_calls} call{'' if spent.llm_calls == 1 else 's'}"
        if money is not None:
            return f"{calls}, {money:.4g} money"
        counts = (_short(spent.input_tokens), _short(spent.output_tokens))
        return f"{calls}, {counts[0]} in, {counts[1]} out"

    def words(self, usage: TokenUsage | None = None) -> str:
        """The cost in words."""
        spent = self.usage() if usage is None else usage
        calls = "1 call" if spent.llm_calls == 1 else f"{spent.llm_calls} calls"
        text = (
            f"{calls}, {spent.input_tokens} tokens in, {spent.output_tokens} tokens out"
        )
        money = self.money(spent)
        return text if money is None else f"{text}, {money:.6g} in money"


def _short(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 10 * size:
            return f"{count / size:.0f}{unit}"
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


class Job:
    """One run of a command."""

    def __init__(
        self, values: Mapping[str, Any], console: Console, *, is_program: bool = True
    ) -> None:
        self.values = values
        self.is_program = is_program
        """Whether the process is there for this alone, and may be ended by force."""

        self.console = console
        self.meter = Meter()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def wants_json(self) -> bool:
        """Whether results are to be JSON."""
        return bool(self.values.get("json"))


class _Stop:
    """Ends a job on Ctrl-C and SIGTERM: at first in order, then by force."""

    def __init__(self, job: Job) -> None:
        self.signum: int = 0
        self._job = job
        self._told = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def follow(self) -> None:
        """Cancel the current task when the signal comes."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        if self.signum:  # it came before there was a task
            self._cancel()

    def on_signal(self, signum: int, _frame: object) -> None:
        if self.signum and not self._job.is_program:
            raise Stopped
        if self.signum:
            self._job.console.show_cursor()
            os._exit(128 + signum)
        self.signum = signum
        if self._job.is_program:
            watchdog = threading.Timer(_GRACE_SECONDS, self._force)
            watchdog.daemon = True
            watchdog.start()
        if self._loop is None or self._loop.is_closed():
            raise Stopped
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _force(self) -> None:
        self.tell()
        self._job.console.show_cursor()
        os._exit(128 + self.signum)

    def tell(self) -> None:
        """Say what was done and what it cost; once."""
        if not self._told.acquire(blocking=False):
            return
        meter = self._job.meter
        word = "interrupted" if self.signum == signal.SIGINT else "terminated"
        done = meter.done()
        cost = meter.words() if "provider" in self._job.values else ""
        text = "; ".join(part for part in (word, done, cost) if part)
        self._job.console.error(f"executionkit: {text}")


def run_stoppable(job: Job, start: Callable[[Job], Any]) -> int:
    """Run a command; its exit code.

    `start` gives a coroutine, or the exit code of something that is done already.
    """
    stop = _Stop(job)
    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM):
            if not is_ignored(signum):  # as in the background of a script
                old[signum] = signal.signal(signum, stop.on_signal)
    stdout, sys.stdout = sys.stdout, sys.stderr  # what tools print is no result
    try:
        started = start(job)
        if isinstance(started, int):
            return started
        return asyncio.run(_followed(started, stop))
    except (KeyboardInterrupt, asyncio.CancelledError):
        if not stop.signum:
            raise
        stop.tell()
        return 128 + stop.signum
    finally:
        sys.stdout = stdout
        if not (stop.signum and job.is_program):
            for number, handler in old.items():
                signal.signal(number, handler)


async def _followed(work: Coroutine[Any, Any, int], stop: _Stop) -> int:
    stop.follow()
    return await work
