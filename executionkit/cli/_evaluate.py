"""`eval`: cases from JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executionkit.cli._ask import Watched, asking, call_options, provider_of, read_text
from executionkit.cli._console import Exit, UsageError
from executionkit.engine.json_extraction import extract_json
from executionkit.engine.schema import SchemaError, compile_schema

if TYPE_CHECKING:
    from executionkit.cli._job import Job
    from executionkit.evals import EvalCase, EvalComparison, EvalProgress, EvalReport

__all__ = ("run_eval",)

_FORMATS: Final = ("text", "jsonl", "junit")
_OTHERS: Final = frozenset({"name", "prompt", "metadata"})

_Check = Callable[[str], str | None]


def run_eval(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    from executionkit.evals import read_jsonl

    if job["format"] not in _FORMATS:
        msg = f"`--format` must be one of {', '.join(_FORMATS)}, got {job['format']!r}"
        raise UsageError(msg)
    if job["min_accuracy"] is not None and job["min_accuracy"] > 1:
        msg = f"`--min-accuracy` must be from 0 to 1, got {job['min_accuracy']}"
        raise UsageError(msg)
    if job["output"] is not None:
        _check_output(Path(job["output"]))
    provider = Watched(provider_of(job), job)
    rows = _rows(read_text(job["cases"]))
    baseline = None
    if job["baseline"] is not None:
        baseline = read_jsonl(read_text(job["baseline"]))
        _check_pairs([row[0] for row in rows], baseline)
    return _run(job, provider, rows, baseline)


def _check_output(path: Path) -> None:
    """Refuse, before anything is paid, a file that cannot be written.

    Raises:
        UsageError: When it cannot.
    """
    if not path.parent.is_dir():
        msg = f"the folder of `{path}` is not there"
        raise UsageError(msg)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        msg = f"`{path}` cannot be written"
        raise UsageError(msg)


def _check_pairs(names: list[str], baseline: EvalReport) -> None:
    """Refuse, before anything is paid, what could not be compared afterwards.

    Raises:
        UsageError: When there are no pairs, or names that make several.
    """
    before = [result.name for result in baseline.results]
    twice = [name for name in names if names.count(name) + before.count(name) > 2]
    if twice:
        msg = f"cases are compared by name, and {twice[0]!r} occurs more than once"
        raise UsageError(msg)
    if not set(names) & set(before):
        msg = "the report of `--baseline` has none of these cases; names are compared"
        raise UsageError(msg)


def _rows(text: str) -> list[tuple[str, str, _Check, dict[str, Any]]]:
    found: list[tuple[str, str, _Check, dict[str, Any]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(_row(json.loads(line), number))
        except (ValueError, TypeError, SchemaError, RecursionError, re.error) as exc:
            msg = f"line {number} is no case: {exc}"
            raise UsageError(msg) from exc
    if not found:
        msg = "there are no cases"
        raise UsageError(msg)
    return found


def _row(row: Any, number: int) -> tuple[str, str, _Check, dict[str, Any]]:
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        msg = "it must be an object with a text `prompt`"
        raise TypeError(msg)
    name = str(row.get("name", f"case-{number}"))
    return name, row["prompt"], _check(row), row.get("metadata", {})


def _check(row: Mapping[str, Any]) -> _Check:
    """All that the case demands, as one function from an answer to a reason."""
    demands = {name: value for name, value in row.items() if name not in _OTHERS}
    unknown = sorted(demands.keys() - _MAKERS.keys())
    if unknown or not demands:
        known = ", ".join(_MAKERS)
        what = f"unknown: {', '.join(unknown)}" if unknown else "nothing is demanded"
        msg = f"{what}; a case demands one or more of {known}"
        raise ValueError(msg)
    checks = [_MAKERS[name](value) for name, value in demands.items()]

    def check(answer: str) -> str | None:
        return next((why for one in checks if (why := one(answer))), None)

    return check


def _shown(answer: str) -> str:
    return repr(answer if len(answer) <= 200 else answer[:200] + "...")


def _texts(value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        msg = f"a text or a list of texts is needed, got {value!r:.80}"
        raise TypeError(msg)
    return found


def _equals(value: Any) -> _Check:
    wanted = [text.strip() for text in _texts(value)]

    def check(answer: str) -> str | None:
        same = answer.strip() in wanted
        return None if same else f"expected {wanted!r}, got {_shown(answer)}"

    return check


def _contains(value: Any) -> _Check:
    wanted = _texts(value)

    def check(answer: str) -> str | None:
        missing = [text for text in wanted if text.casefold() not in answer.casefold()]
        return f"{missing!r} is not in {_shown(answer)}" if missing else None

    return check


def _lacks(value: Any) -> _Check:
    banned = _texts(value)

    def check(answer: str) -> str | None:
        there = [text for text in banned if text.casefold() in answer.casefold()]
        return f"{there!r} is in {_shown(answer)}" if there else None

    return check


def _matches(value: Any) -> _Check:
    pattern = re.compile(value)

    def check(answer: str) -> str | None:
        if pattern.search(answer):
            return None
        return f"{value!r} does not match {_shown(answer)}"

    return check


def _parsed(answer: str) -> tuple[Any, str | None]:
    try:
        return extract_json(answer), None
    except ValueError as exc:
        return None, f"no JSON in {_shown(answer)}: {exc}"


def _json(value: Any) -> _Check:
    def check(answer: str) -> str | None:
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found, problem = _parsed(answer)
            if problem:
                return problem
        return None if found == value else f"expected {value!r}, got {found!r:.200}"

    return check


def _schema(value: Any) -> _Check:
    validator = compile_schema(value)

    def check(answer: str) -> str | None:
        found, problem = _parsed(answer)
        if problem:
            return problem
        return "; ".join(str(item) for item in validator.validate(found)) or None

    return check


_MAKERS: Final[dict[str, Callable[[Any], _Check]]] = {
    "equals": _equals,
    "contains": _contains,
    "lacks": _lacks,
    "matches": _matches,
    "json": _json,
    "schema": _schema,
}


async def _run(
    job: Job, provider: Any, rows: list[Any], baseline: EvalReport | None
) -> int:
    from executionkit._evals.run import Settings, Suite
    from executionkit.cli._progress import Progress

    options = call_options(job)
    budget = options.pop("max_cost")
    options.pop("trace")
    done = failed = 0
    total = len(rows) * job["trials"]
    job.meter.done = lambda: f"{done} of {total} trials done"
    with Progress(job.console, job.meter, total) as progress:

        def tell(now: EvalProgress) -> None:
            nonlocal done, failed
            done = now.done
            failed += not now.trial.passed
            progress.show(done, failed)

        settings = Settings(
            trials=job["trials"],
            max_concurrency=job["concurrency"],
            timeout=None,
            max_cost=budget,
            seed=0,
            on_progress=tell,
        )
        async with asking(job, provider) as ready:
            suite = Suite([_case(ready, options, *row) for row in rows], settings)
            try:
                report = await suite.run(job["min_accuracy"])
            except asyncio.CancelledError:
                if done:  # what was paid is not thrown away
                    least = job["min_accuracy"]
                    _write(job, suite.report(least, stopped="cancelled"), None)
                raise
    _write(job, report, baseline)
    return Exit.OK if report.accuracy_passed else Exit.FAILED


def _case(
    provider: Any,
    options: dict[str, Any],
    name: str,
    prompt: str,
    check: _Check,
    metadata: dict[str, Any],
) -> EvalCase:
    from executionkit.evals import EvalCase
    from executionkit.patterns import consensus

    def run() -> Any:
        return consensus(provider, prompt, num_samples=1, **options)

    return EvalCase(name, run, lambda result: check(result.value), metadata)


def _write(job: Job, report: EvalReport, baseline: EvalReport | None) -> None:
    console = job.console
    compared = None if baseline is None else _compared(job, baseline, report)
    kind = job["format"]
    if kind == "text":
        text = _text(report, job.meter.words(report.cost))
    else:
        text = report.to_junit() if kind == "junit" else report.to_jsonl()
    if job["output"] is not None:
        try:
            Path(job["output"]).write_text(text, encoding="utf-8")
        except OSError:
            console.result(text)  # it has been paid
            raise
    elif not job.wants_json:
        console.result(text)
    if job.wants_json:
        found: dict[str, Any] = {
            "passed": report.accuracy_passed,
            "total": report.total,
            "passed_count": report.passed_count,
            "accuracy": report.accuracy,
            "interval": report.interval() if report.total else None,
            "stopped": report.stopped,
            "failures": {item.name: item.reason for item in report.failures},
            "cost": job.meter.json(report.cost),
        }
        if compared is not None:
            found["compared"] = {
                "p_value": compared.p_value,
                "difference": compared.difference,
                "interval": compared.interval,
                "improved": compared.improved,
                "broken": compared.broken,
            }
        console.json(console.clean(found))
    elif kind != "text" or job["output"] is not None:
        console.note(report.summary())
    if compared is not None:
        console.note(compared.summary())


def _compared(
    job: Job, baseline: EvalReport, report: EvalReport
) -> EvalComparison | None:
    from executionkit.evals import compare_reports

    try:
        return compare_reports(baseline, report)
    except ValueError as exc:  # it was stopped before any pair was there
        job.console.note(f"not compared: {exc}")
        return None


def _text(report: EvalReport, cost: str) -> str:
    lines = [
        f"{'ok  ' if item.passed else 'FAIL'} {item.name}"
        + ("" if item.passed else f": {item.reason}")
        for item in (*report.results, *report.partial)
    ]
    return "\n".join([*lines, f"{report.summary()}; {cost}", ""])
