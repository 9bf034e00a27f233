"""The command line, in this process and as a real one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import executionkit

pytest.importorskip("typer")

ROOT = Path(executionkit.__file__).parent.parent
DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 20

TOOLS = '''
import time

from executionkit import create_registry, tool

registry = create_registry()


@tool(registry=registry)
def add(a: int, b: int) -> int:
    """Adds two numbers.

    More words.
    """
    print("noise of a tool")
    return a + b


@tool(registry=registry)
def fail() -> str:
    """Fails."""
    raise RuntimeError("no luck")


@tool(registry=registry)
def block() -> str:
    """Blocks a thread."""
    print("blocking", flush=True)
    time.sleep(60)
    return "late"


@tool(registry=registry)
async def hang() -> str:
    """Blocks the event loop."""
    print("blocking", flush=True)
    time.sleep(60)
    return "late"
'''


def clean_environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EXECUTIONKIT_", "ANTHROPIC_", "FORCE_", "COVERAGE_"))
    }
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


class Program:
    """`python -m executionkit` in the folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = clean_environment()
        self.command = [sys.executable, "-W", "error", "-m", "executionkit"]

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.folder,
            env=self.environment,
            text=True,
            **{**pipes, **more},
        )

    def run(
        self, *arguments: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def run_page(self, page: str) -> subprocess.CompletedProcess[str]:
        """Run what a page of the documentation shows for a shell."""
        text = (DOCS / page).read_text("utf-8")
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        assert blocks
        python = shlex.quote(sys.executable)
        head = f'executionkit() {{ {python} -m executionkit "$@"; }}\n'
        head += f'python() {{ {python} "$@"; }}\n'
        return subprocess.run(
            ["sh", "-e"],
            input=head + "\n".join(blocks),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a module of tools, and no settings in the environment."""
    for name in list(os.environ):
        if name.startswith(("EXECUTIONKIT_", "ANTHROPIC_")):
            monkeypatch.delenv(name)
    (tmp_path / "cli_tools.py").write_text(TOOLS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_tools", raising=False)
    return tmp_path


@pytest.fixture
def program(folder: Path) -> Program:
    return Program(folder)


@pytest.fixture
def invoke(folder: Path) -> Callable[..., Any]:
    """Run the command line in this process, through typer's runner."""
    from typer.testing import CliRunner

    from executionkit.cli._app import build

    def run(*arguments: str, stdin: str = "") -> Any:
        return CliRunner().invoke(build(), list(arguments), input=stdin)

    return run


@pytest.fixture
def write(folder: Path) -> Callable[..., str]:
    """Write JSON lines into the folder; the name of the file."""

    def write_rows(name: str, rows: Iterable[Any]) -> str:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8")
        return name

    return write_rows
