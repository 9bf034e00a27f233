"""Is the documentation true? Runs its Python, follows its links, looks up its targets.

The ```python blocks of a page are one program, run from top to bottom in a process and
an empty folder of its own; `await` may stand at the top. What readers need not see
stands in a comment:

    <!-- run: from executionkit import MockProvider; provider = MockProvider(["42"]) -->
    <!-- not run: needs an API key -->        the next block is compiled, and not run
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<language>[\w+-]*)")
HIDDEN = re.compile(r"<!-- run:(.*?)-->", re.DOTALL)
SKIP = re.compile(r"<!-- not run: *(\S.*?)-->", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
TARGET = re.compile(r"(?<![\w-])make ([a-z][a-z-]*)")


@dataclass(frozen=True)
class Block:
    line: int
    """Of the first line of code, from 1."""

    code: str
    run: bool = True


def fenced(text: str) -> list[tuple[int, str, str]]:
    """(line of the fence, language, body) of each fenced block."""
    found: list[tuple[int, str, str]] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opening = FENCE.match(lines[at])
        start, at = at, at + 1
        if opening is None:
            continue
        indent, fence = len(opening["indent"]), opening["fence"]
        body: list[str] = []
        while at < len(lines) and not lines[at].strip().startswith(fence):
            body.append(lines[at][indent:])
            at += 1
        at += 1
        found.append((start + 1, opening["language"], "\n".join(body)))
    return found


def blocks_of(text: str) -> list[Block]:
    """The program of a page: hidden and visible code in the order of the page."""
    found: list[Block] = []
    for comment in HIDDEN.finditer(text):
        line = text.count("\n", 0, comment.start(1)) + 1
        found.append(Block(line, comment[1].strip()))
    skipped = {text.count("\n", 0, c.end()) + 1 for c in SKIP.finditer(text)}
    for line, language, body in fenced(text):
        if language == "python":
            run = not {line - 1, line - 2} & skipped
            found.append(Block(line + 1, body, run))
    return sorted(found, key=lambda block: block.line)


def compiled(block: Block, name: str) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile("\n" * (block.line - 1) + block.code, name, "exec", flags)


def run_page(page: Path) -> None:
    """Run one page in this process."""
    names: dict[str, Any] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    with asyncio.Runner() as runner:
        for block in blocks_of(text):
            code = compiled(block, str(page))
            if not block.run:
                continue
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, names))
            else:
                exec(code, names)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def broken_links(page: Path, text: str) -> list[str]:
    return [
        f"the link to {link} leads nowhere"
        for link in LINK.findall(text)
        if not (page.parent / link).exists()
    ]


def unknown_targets(text: str) -> list[str]:
    shell = "\n".join(
        body for _, language, body in fenced(text) if language != "python"
    )
    inline = " ".join(re.findall(r"`(make [^`]*)`", text))
    named = set(TARGET.findall(shell)) | set(TARGET.findall(inline))
    return [f"there is no `make {name}`" for name in sorted(named - targets())]


def failure_of(page: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as empty:
        try:
            done = subprocess.run(
                [sys.executable, "-W", "error", str(Path(__file__)), str(page)],
                cwd=empty,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [f"not done after {SECONDS} s"]
    return [done.stdout + done.stderr] if done.returncode else []


def main() -> int:
    wrong = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        problems = [*broken_links(page, text), *unknown_targets(text)]
        if blocks_of(text):
            problems += failure_of(page)
        for problem in problems:
            print(f"{page.relative_to(ROOT)}: {problem}")
        wrong += bool(problems)
    print(f"{len(pages()) - wrong} of {len(pages())} pages are true")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_page(Path(sys.argv[1]))
    else:
        sys.exit(main())
