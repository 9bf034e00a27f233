"""`trace`: a page with a timeline, and the numbers of a run."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Final

from executionkit.cli._ask import prices_of
from executionkit.cli._console import Exit, UsageError
from executionkit.cli._lines import is_same_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from executionkit.cli._job import Job
    from executionkit.viewer import TraceGroup, TracePage, TraceSummary

__all__ = ("run_summary", "run_view", "told")

_STDIN: Final = "-"


def run_view(job: Job) -> int:
    """See the table of commands."""
    from executionkit.viewer import TracePage

    page = TracePage(prices=prices_of(job))
    files = _files(job)
    target = _target(job, files)
    summary = _read(page, files)
    if target is None:
        job.console.out.write(page.html(job["title"]))
        job.console.out.flush()
        return Exit.OK
    try:
        page.write(target, job["title"])
    except OSError as exc:
        msg = f"`{target}` cannot be written: {exc}"
        raise UsageError(msg) from exc
    if job["json"]:
        job.console.json({"page": str(target), "summary": summary.as_dict()})
    else:
        job.console.result(str(target))
        job.console.note(told(summary)[0])
    if job["open"] and not webbrowser.open(target.resolve().as_uri()):
        job.console.error("executionkit: no browser could be started")
        return Exit.FAILED
    return Exit.OK


def run_summary(job: Job) -> int:
    """See the table of commands."""
    from executionkit.viewer import TracePage

    summary = _read(TracePage(prices=prices_of(job), max_spans=1), _files(job))
    if job["json"]:
        job.console.json(summary.as_dict())
    else:
        job.console.result("\n".join(told(summary)))
    return Exit.OK


def _files(job: Job) -> list[str]:
    files: list[str] = list(job["files"])
    if files.count(_STDIN) > 1:
        msg = "standard input can be read once; give `-` once"
        raise UsageError(msg)
    return files


def _read(page: TracePage, files: list[str]) -> TraceSummary:
    try:
        summary = page.read(files)
    except OSError as exc:
        msg = f"the trace cannot be read: {exc}"
        raise UsageError(msg) from exc
    if summary.skipped and not summary.events:
        msg = (
            f"none of the {summary.skipped} lines is an event; a trace is a file that "
            "JsonlTraceSink has written"
        )
        raise UsageError(msg)
    return summary


def _target(job: Job, files: list[str]) -> Path | None:
    """Where the page goes; None = standard output."""
    from executionkit.viewer import is_trace_page

    name = job["output"]
    if name is None:
        name = (
            _STDIN if files[0] == _STDIN else str(Path(files[0]).with_suffix(".html"))
        )
    if name == _STDIN:
        if job["json"] or job["open"]:
            msg = "`--json` and `--open` need a file for the page: `-o FILE`"
            raise UsageError(msg)
        return None
    if any(is_same_file(name, file) for file in files):
        msg = f"`{name}` is the trace itself; name another file: `-o FILE`"
        raise UsageError(msg)
    target = Path(name)
    if target.exists() and not (job["overwrite"] or is_trace_page(target)):
        msg = f"`{name}` is there, and no page of a trace; `--overwrite` replaces it"
        raise UsageError(msg)
    return target


def told(summary: TraceSummary) -> list[str]:
    """A summary in lines for people; the first one says it all in short."""
    model, tool, waits = summary.model_calls, summary.tool_calls, summary.waits
    parts = [
        f"{summary.events} events in {summary.seconds:.3f} s",
        f"{model.count} model calls ({model.errors} failed)",
        f"{tool.count} tool calls ({tool.errors} failed)",
        f"{model.input_tokens} tokens in, {model.output_tokens} out",
    ]
    if model.cost is not None:
        parts.append(f"cost {model.cost:.6g}")
    lines = ["; ".join(parts)]
    if summary.skipped:
        lines.append(f"{summary.skipped} lines are no events")
    if summary.cut:
        lines.append("the last line has no end: its writer died, or still writes")
    replayed = model.replayed + tool.replayed
    if replayed:
        lines.append(f"{replayed} more calls were given back by a journal")
    unfinished = model.unfinished + tool.unfinished
    if unfinished:
        lines.append(f"{unfinished} calls have no end")
    if waits.count:
        lines.append(f"waited {waits.seconds:.3f} s in {waits.count} waits")
    if summary.failed_attempts:
        lines.append(f"{summary.failed_attempts} failed attempts")
    groups = {
        "model": summary.by_model,
        "tool": summary.by_tool,
        "pattern": summary.by_pattern,
        "step": summary.by_step,
        "wait": summary.by_wait,
    }
    for title, rows in groups.items():
        lines += _table(title, rows)
    if summary.errors:
        lines += ["", f"{'count':>7}  error"]
        lines += [f"{count:>7}  {name}" for name, count in summary.errors.items()]
    return lines


def _table(title: str, rows: Iterable[TraceGroup]) -> list[str]:
    found = [
        f"{row.count:>7} {row.errors:>7} {_seconds(row.p50)} {_seconds(row.p95)} "
        f"{_seconds(row.longest)} {row.input_tokens:>9} {row.output_tokens:>9}  {row.name}"
        for row in rows
    ]
    if not found:
        return []
    names = ("count", "failed", "p50 s", "p95 s", "max s")
    head = " ".join(
        f"{name:>{7 if place < 2 else 9}}" for place, name in enumerate(names)
    )
    return ["", f"{head} {'tokens in':>9} {'out':>9}  {title}", *found]


def _seconds(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.3f'):>9}"
