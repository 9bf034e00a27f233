"""`python -m bench [NAME ...]`: run all benchmarks, or the ones named.

Prints a table. A run of all, or one with `--write`, also writes its rows to
`bench/results/latest.json` and to the table in `bench/README.md`; the rows of other
benchmarks stay.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BEGIN = "<!-- results -->"
END = "<!-- /results -->"
WRITE = "--write"


def _names() -> list[str]:
    found = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    wanted = [name for name in sys.argv[1:] if name != WRITE]
    unknown = set(wanted) - set(found)
    if unknown:
        sys.exit(f"no benchmark {sorted(unknown)}; there are {found}")
    return wanted or found


def _show(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value) and abs(value) >= 1:
        return str(int(value))
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1e}"


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = importlib.import_module(f"bench.bench_{name}").rows()
    return rows


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """The row under the common names: some say `ours_s` for seconds."""
    return {key.removesuffix("_s"): value for key, value in row.items()}


def _line(row: dict[str, Any]) -> str:
    verdict = {True: "met", False: "**missed**", None: ""}[row.get("met")]
    timed = bool(row.get("limit")) and not row["name"].startswith(
        ("modules", "installed")
    )
    ours = _seconds(row["ours"]) if timed else _show(row["ours"])
    limit = _seconds(row["limit"]) if timed else ""
    return (
        f"| {row['name']} | {ours} | {limit} | {_show(row['ratio'])} "
        f"| {_show(row.get('target'))} | {verdict} |"
    )


def _write(results: dict[str, list[dict[str, Any]]]) -> None:
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    file = folder / "latest.json"
    if file.exists():
        results = json.loads(file.read_text("utf-8"))["results"] | results
    results = dict(sorted(results.items()))
    facts = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "results": results,
    }
    file.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    lines = ["| work | ours | limit | ratio | target | |", "|---|---|---|---|---|---|"]
    for rows in results.values():
        lines += [_line(row) for row in rows]
    page = HERE / "README.md"
    text = page.read_text("utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    table = "\n".join(lines)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf-8")


def main() -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    names = _names()
    for name in names:
        print(f"-- {name}", flush=True)
        rows = [_named(row) for row in _rows_of(name)]
        results[name] = rows
        for row in rows:
            print("  " + _line(row).strip("| "), flush=True)
    if not sys.argv[1:] or WRITE in sys.argv:
        _write(results)
    missed = [
        row["name"]
        for rows in results.values()
        for row in rows
        if row.get("met") is False
    ]
    print(
        f"\n{len(missed)} target(s) missed" + "".join(f"\n  {name}" for name in missed)
    )


if __name__ == "__main__":
    main()
