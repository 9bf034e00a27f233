"""What the import costs: time, modules, and the installed size."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROUNDS = 9
LIMIT = "import asyncio, json, dataclasses"
OURS = "import asyncio, json, dataclasses, executionkit"
FULL = f"{OURS}; executionkit.consensus, executionkit.Provider"
TIMED = """
import sys, time
begin = time.perf_counter()
{0}
print(time.perf_counter() - begin, len(sys.modules))
"""


def _measure(code: str, cache: str) -> tuple[float, int]:
    root = Path(__file__).resolve().parent.parent
    # As installed: byte code is there, whatever the caller's settings are.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(root)!r})\n" + TIMED.format(code),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=tempfile.gettempdir(),
        env=environment,
    )
    seconds, modules = done.stdout.split()
    return float(seconds), int(modules)


def _size() -> int:
    package = Path(__file__).resolve().parent.parent / "executionkit"
    return sum(
        path.stat().st_size
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def rows() -> list[dict[str, Any]]:
    """Import time and modules against the bare limit; size against a megabyte."""
    times: dict[str, list[float]] = {LIMIT: [], OURS: [], FULL: []}
    modules: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as cache:
        for code in times:
            _measure(code, cache)  # compiles
        for _ in range(ROUNDS):
            for code, seen in times.items():
                seconds, modules[code] = _measure(code, cache)
                seen.append(seconds)
    middle = {code: statistics.median(seen) for code, seen in times.items()}
    size = _size()
    return [
        _row("import executionkit", middle[OURS], middle[LIMIT], 1.4),
        _row(
            "import, with consensus and Provider used",
            middle[FULL],
            middle[LIMIT],
            None,
        ),
        _row("modules after import executionkit", modules[OURS], 1, 150),
        _row("modules with consensus and Provider used", modules[FULL], 1, None),
        _row("installed size, MB", size / 1e6, 1, 1.0),
    ]


def _row(name: str, ours: float, limit: float, target: float | None) -> dict[str, Any]:
    ratio = ours / limit
    met = None if target is None else ratio <= target
    return {
        "name": name,
        "ours": ours,
        "limit": limit,
        "ratio": ratio,
        "target": target,
        "met": met,
    }


if __name__ == "__main__":
    for row in rows():
        print(
            f"{row['name']:44} {row['ours']:9.4f} {row['ratio']:8.2f}x  {row['target']}  {row['met']}"
        )
