"""All checks: `python scripts/check.py [STEP ...]`; without a step, all of them.

Each step is one command. Steps run in two lanes side by side: the tests in one, all
that only reads the code in the other. Only a step that fails shows its output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 780
LINES = 200

PYTHON = sys.executable
CODE = ("executionkit", "tests", "scripts", "examples", "bench")
PYTEST = (PYTHON, "-m", "pytest", "-q", "--no-header")
STRUCTURE = ("tests/test_layers.py", "tests/test_exports.py")
# The tests of the structure are a step of their own.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile", *(f"--ignore={x}" for x in STRUCTURE))
BANDIT = (PYTHON, "-m", "bandit", "-q", "-c", "pyproject.toml", "-r")
COVERAGE = (PYTHON, "-m", "coverage", "report", "--skip-covered")


@dataclass(frozen=True)
class Step:
    name: str
    commands: tuple[tuple[str, ...], ...]
    lane: int = 0
    summary: bool = False
    """Whether the last line of the output is worth showing."""


@dataclass
class Outcome:
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def here(*names: str) -> tuple[str, ...]:
    return tuple(name for name in names if (ROOT / name).exists())


def steps() -> list[Step]:
    code = here(*CODE)
    pyright = (PYTHON, "-m", "pyright", "--pythonpath", PYTHON)
    return [
        Step("format", ((PYTHON, "-m", "ruff", "format", "--check", *code),)),
        Step("lint", ((PYTHON, "-m", "ruff", "check", *code),)),
        Step("security", ((*BANDIT, "executionkit"),)),
        Step("layers", ((*PYTEST, *STRUCTURE),), summary=True),
        Step("mypy", ((PYTHON, "-m", "mypy"),), summary=True),
        Step("pyright", (pyright,), summary=True),
        Step("complete types", ((PYTHON, "scripts/public_types.py"),), summary=True),
        Step("docs", ((PYTHON, "scripts/docs.py"),), summary=True),
        Step(
            "tests",
            (
                (*PYTEST, *SIDE_BY_SIDE, "-m", "not live", "--cov", "--cov-report="),
                (*COVERAGE, "--fail-under=95"),
                (
                    *(*COVERAGE, "--fail-under=100"),
                    *("--include", "executionkit/engine/*"),
                ),
            ),
            lane=1,
            summary=True,
        ),
    ]


def run(step: Step) -> tuple[bool, str]:
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    output: list[str] = []
    for command in step.commands:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            late = (exc.stdout or b"").decode("utf-8", "replace")
            return False, f"{late}\nnot done after {SECONDS} s: {' '.join(command)}"
        text = done.stdout.decode("utf-8", "replace").rstrip()
        output.append(text)
        if done.returncode:
            shown = " ".join(command).replace(PYTHON, "python")
            return False, f"{text}\n[{shown}: code {done.returncode}]"
    return True, "\n".join(output)


def summary_of(text: str) -> str:
    """The line of the test runner, or the last one."""
    lines = [line.strip("= ") for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if " passed" in line or line.startswith("TOTAL")]
    return "; ".join(" ".join(line.split()) for line in wanted or lines[-1:])


def work(lane: list[Step], outcome: Outcome) -> None:
    for step in lane:
        started = time.monotonic()
        ok, text = run(step)
        took = time.monotonic() - started
        tail = f"  {summary_of(text)}" if ok and step.summary else ""
        with outcome.lock:
            word = "ok    " if ok else "FAILED"
            print(f"{word} {step.name:<15} {took:6.1f} s{tail}", flush=True)
            if not ok:
                outcome.failed.append(step.name)
                print("\n".join(text.splitlines()[-LINES:]), flush=True)


def main(names: list[str]) -> int:
    known = steps()
    unknown = set(names) - {step.name for step in known}
    if unknown:
        print(f"no such step: {unknown}; there are {[step.name for step in known]}")
        return 2
    chosen = [step for step in known if not names or step.name in names]
    outcome = Outcome()
    lanes = [
        threading.Thread(
            target=work, args=([s for s in chosen if s.lane == lane], outcome)
        )
        for lane in (0, 1)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    if outcome.failed:
        print(f"check: failed: {', '.join(outcome.failed)}")
        return 1
    print("check: all green")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
