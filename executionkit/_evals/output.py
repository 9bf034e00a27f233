"""Reports as JSON lines and as JUnit XML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from executionkit._evals.values import EvalReport, EvalResult, TrialResult
from executionkit._redact import redact, redact_value
from executionkit.types import TokenUsage, thaw

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("read_jsonl", "to_jsonl", "to_junit")

_MOST_BITS: Final = 4096
"""Of a number; longer ones cannot be written in decimals, or not quickly."""

# What XML 1.0 cannot hold, not even as a reference.
_NO_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_jsonl(report: EvalReport) -> str:
    """One line for each case, then one about the suite."""
    states = (("done", report.results), ("partial", report.partial))
    rows = [
        {"kind": "case", "state": state, **_row(result)}
        for state, results in states
        for result in results
    ]
    rows.append(
        {
            "kind": "suite",
            "min_accuracy": report.min_accuracy,
            "cost": _counts(report.cost),
            "not_run": list(report.not_run),
            "stopped": report.stopped,
        }
    )
    return "".join(
        json.dumps(_plain(redact_value(row)), ensure_ascii=True, allow_nan=False) + "\n"
        for row in rows
    )


def _plain(value: Any) -> Any:
    """`value` as JSON has it; what it does not have as text, so that nothing is lost."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MOST_BITS else hex(value)
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, frozenset, set)):
        return [_plain(item) for item in value]
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a text of the caller's own making
        return type(value).__name__


def _row(result: EvalResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "passed": result.passed,
        "reason": result.reason,
        "metadata": thaw(dict(result.metadata)),
        "cost": _counts(result.cost),
        "duration": result.duration,
        "trials": [
            {
                "passed": trial.passed,
                "reason": trial.reason,
                "cost": _counts(trial.cost),
                "duration": trial.duration,
                "seed": trial.seed,
            }
            for trial in result.trials
        ],
    }


def _counts(usage: TokenUsage) -> dict[str, int]:
    return {
        item.name: count
        for item in fields(TokenUsage)
        if (count := getattr(usage, item.name))
    }


def read_jsonl(text: str) -> EvalReport:
    """The report that `to_jsonl` wrote, for a comparison with a later one.

    Raises:
        ValueError: Naming the line that is none of a report.
    """
    done: list[EvalResult] = []
    partial: list[EvalResult] = []
    suite: dict[str, Any] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row["kind"] == "suite":
                suite = {
                    "min_accuracy": row["min_accuracy"],
                    "cost": TokenUsage(**row["cost"]),
                    "not_run": tuple(row["not_run"]),
                    "stopped": row["stopped"],
                }
            else:
                kept = partial if row["state"] == "partial" else done
                kept.append(_result(row))
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            msg = f"line {number} is no line of a report: {exc!r}"
            raise ValueError(msg) from exc
    return EvalReport(tuple(done), partial=tuple(partial), **suite)


def _result(row: Mapping[str, Any]) -> EvalResult:
    trials = [
        TrialResult(
            bool(trial["passed"]),
            trial["reason"],
            TokenUsage(**trial["cost"]),
            trial["duration"],
            trial["seed"],
        )
        for trial in row["trials"]
    ]
    return EvalResult(
        row["name"],
        bool(row["passed"]),
        row["reason"],
        row["metadata"],
        trials=tuple(trials),
        cost=TokenUsage(**row["cost"]),
        duration=row["duration"],
    )


def to_junit(report: EvalReport, name: str) -> str:
    """The report as one `testsuite`."""
    time = sum(result.duration for result in report.results)
    skipped = len(report.partial) + len(report.not_run)
    total = report.total + skipped
    head = (
        f"<testsuite name={_quoted(name)} tests={_quoted(total)} "
        f"failures={_quoted(report.failed_count)} errors={_quoted(0)} "
        f"skipped={_quoted(skipped)} time={_quoted(f'{time:.3f}')}>"
    )
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', head, *_cases(report, name)]
    return "\n".join([*lines, "</testsuite>", ""])


def _cases(report: EvalReport, suite: str) -> Iterator[str]:
    for result in report.results:
        time = _quoted(f"{result.duration:.3f}")
        case = (
            f"  <testcase classname={_quoted(suite)} name={_quoted(result.name)} "
            f"time={time}"
        )
        if result.passed:
            yield f"{case}/>"
        else:
            yield f"{case}><failure message={_quoted(result.reason)}/></testcase>"
    for name in (*(result.name for result in report.partial), *report.not_run):
        yield (
            f"  <testcase classname={_quoted(suite)} name={_quoted(name)}>"
            f"<skipped message={_quoted(f'stopped: {report.stopped}')}/></testcase>"
        )


def _quoted(value: object) -> str:
    from html import escape

    text = _NO_XML.sub("\ufffd", redact(str(value)))
    for char in "\t\n\r":
        text = text.replace(char, f"\0{ord(char)};")
    return f'"{escape(text).replace(chr(0), "&#")}"'
