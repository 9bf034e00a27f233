"""`trace`: the page and the numbers, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executionkit.viewer import is_trace_page
from tests.viewer.traces import small

pytestmark = pytest.mark.req("cli.trace")


@pytest.fixture
def run(write: Any) -> str:
    name: str = write("run.jsonl", small())
    return name


def test_a_page_stands_beside_its_trace(invoke: Any, run: str, folder: Path) -> None:
    done = invoke("trace", "view", run)
    assert (done.exit_code, done.stdout) == (0, "run.html\n")
    assert "2 model calls (1 failed)" in done.stderr
    assert is_trace_page(folder / "run.html")
    done = invoke("trace", "view", run, "--json", "-o", "other.html", "--quiet")
    found = json.loads(done.stdout)
    assert found["page"] == "other.html"
    assert found["summary"]["tool_calls"]["count"] == 1
    assert done.stderr == ""


def test_standard_streams_take_the_place_of_files(invoke: Any, run: str) -> None:
    text = Path(run).read_text("utf-8")
    done = invoke("trace", "view", "-", "--title", "Mine", stdin=text)
    assert done.exit_code == 0
    assert "<title>Mine · trace</title>" in done.stdout
    assert invoke("trace", "view", run, "-o", "-").stdout.startswith("<!doctype html>")
    for flag in ("--json", "--open"):
        done = invoke("trace", "view", "-", flag, stdin=text)
        assert (done.exit_code, done.stdout) == (2, "")


def test_nothing_that_is_no_page_is_replaced(
    invoke: Any, run: str, folder: Path
) -> None:
    (folder / "run.html").write_text("my own", "utf-8")
    done = invoke("trace", "view", run)
    assert done.exit_code == 2
    assert "`--overwrite` replaces it" in done.stderr
    assert (folder / "run.html").read_text("utf-8") == "my own"
    assert invoke("trace", "view", run, "--overwrite").exit_code == 0
    assert invoke("trace", "view", run).exit_code == 0  # it is a page by now
    before = (folder / run).read_bytes()
    for flag in ((), ("--overwrite",)):
        assert invoke("trace", "view", run, "-o", run, *flag).exit_code == 2
    assert (folder / run).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("view", "nothing.jsonl"), "cannot be read"),
        (("summary", "nothing.jsonl"), "cannot be read"),
        (("view", "run.jsonl", "-o", "no/such/folder.html"), "cannot be written"),
        (("view", "bad.txt"), "none of the 1 lines is an event"),
        (("view", "-", "-"), "can be read once"),
        (("summary", "run.jsonl", "--prices", "x"), "must be two numbers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_says_what_is_wrong(
    invoke: Any, run: str, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert run
    (folder / "bad.txt").write_text("hello\n", "utf-8")
    done = invoke("trace", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr


def test_the_numbers_are_for_people_or_programs(
    invoke: Any, run: str, write: Any
) -> None:
    done = invoke("trace", "summary", run, "--prices", "10,100")
    assert done.exit_code == 0
    first = done.stdout.splitlines()[0]
    assert first == (
        "12 events in 2.000 s; 2 model calls (1 failed); 1 tool calls (0 failed); "
        "100 tokens in, 10 out; cost 0.25"
    )
    for words in (
        "waited 0.600 s in 2 waits",
        "1 failed attempts",
        "  search",
        "  permit",
    ):
        assert words in done.stdout
    assert done.stdout.rstrip().endswith("2  LLM_RATE_LIMITED")
    write("more.jsonl", small())
    found = json.loads(invoke("trace", "summary", run, "more.jsonl", "--json").stdout)
    assert (found["events"], found["errors"]) == (24, {"LLM_RATE_LIMITED": 4})


def test_a_browser_is_opened_when_it_is_asked_for(
    invoke: Any, run: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_page(address: str) -> bool:
        opened.append(address)
        return len(opened) == 1

    monkeypatch.setattr("webbrowser.open", open_page)
    assert invoke("trace", "view", run, "--open").exit_code == 0
    assert opened == [(folder / "run.html").resolve().as_uri()]
    done = invoke("trace", "view", run, "--open")
    assert (done.exit_code, done.stdout) == (1, "run.html\n")
    assert "no browser could be started" in done.stderr


def test_what_the_page_about_it_shows_runs(
    program: Any, run: str, folder: Path
) -> None:
    program.environment["BROWSER"] = "true"  # a program that shows nothing
    done = program.run_page("trace-viewer.md")
    assert done.returncode == 0, done.stderr
    assert "2 model calls (1 failed)" in done.stdout
    assert is_trace_page(folder / "run.html")
