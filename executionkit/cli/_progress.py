"""The progress bar on standard error; without a terminal, a line now and then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit._clock import get_clock

if TYPE_CHECKING:
    from executionkit.batches import BatchState
    from executionkit.cli._console import Console
    from executionkit.cli._job import Meter

__all__ = ("Progress", "batch_words", "span_words")

_BAR_WIDTH: Final = 12
_SECONDS: Final = 10.0
"""Between two lines where there is no terminal."""


def span_words(seconds: float) -> str:
    """A time as `1:02:03` or `2:03`."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def batch_words(state: BatchState) -> str:
    """A batch as `b_1 in_progress: 3 of 10 done, 1 errored`."""
    counts = state.counts
    text = f"{state.id} {state.said or state.status}: "
    parts = [f"{counts.done} of {counts.total} done"]
    ends = ("errored", "canceled", "expired")
    parts += [f"{getattr(counts, n)} {n}" for n in ends if getattr(counts, n)]
    return text + ", ".join([*parts, *state.problems])


class Progress:
    """How far it is, how fast, what it cost, and how long it will take.

    Args:
        console: Where it is shown, and whether.
        meter: Knows the cost.
        total: Things in all. None = nobody knows.
    """

    def __init__(self, console: Console, meter: Meter, total: int | None) -> None:
        self._console = console
        self._meter = meter
        self._total = total
        self._skipped = 0
        self._clock = get_clock()
        self._began = self._told = self._clock.monotonic()
        self._bar: Any = None
        self._task: Any = None
        if console.has_terminal and not console.quiet:
            self._bar = self._make()

    def _make(self) -> Any:
        from rich.console import Console as Screen
        from rich.progress import BarColumn, Progress as Bar, TextColumn
        from rich.table import Column

        plain = bool(os.environ.get("NO_COLOR"))
        bar = Bar(
            TextColumn(
                "{task.percentage:>3.0f}%" if self._total else "...",
                table_column=Column(min_width=4, no_wrap=True),
            ),
            BarColumn(bar_width=_BAR_WIDTH),
            # What a narrow terminal has no room for is cut off at its end: the cost.
            TextColumn(
                "{task.fields[words]}",
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
            console=Screen(stderr=True, no_color=plain, highlight=False),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = bar.add_task("", total=self._total, words="")
        return bar

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def skip(self, count: int) -> None:
        """`count` were done before; they say nothing about the rate."""
        self._skipped = count

    def show(self, done: int, failed: int) -> None:
        """`done` are done, those before included."""
        if self._bar is not None:
            words = self.words(done, failed)
            self._bar.update(self._task, completed=done, words=words)
            return
        now = self._clock.monotonic()
        if now - self._told >= _SECONDS:
            self._told = now
            self._console.note(self.words(done, failed))

    def words(self, done: int, failed: int) -> str:
        """`12/40, 3.1/s, 0:09 left, 12 calls, 4.1k in, 310 out`."""
        passed = max(self._clock.monotonic() - self._began, 1e-9)
        rate = (done - self._skipped) / passed
        of = "" if self._total is None else f"/{self._total}"
        parts = [f"{done}{of}"]
        if failed:
            parts.append(f"{failed} failed")
        parts.append(f"{rate:.1f}/s")
        if self._total is not None and rate > 0:
            parts.append(f"{span_words((self._total - done) / rate)} left")
        parts.append(self._meter.brief())
        return ", ".join(parts)
