"""`tools list|call|run`, `mcp serve`, `eval`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from executionkit.evals import read_jsonl

MOCK = ("--provider", "mock")
TOOLS = ("--tools", "cli_tools:registry")


@pytest.mark.req("cli.tools")
def test_tools_are_listed(invoke: Callable[..., Any]) -> None:
    done = invoke("tools", "list", *TOOLS)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["add\tAdds two numbers.", "fail\tFails."]
    assert len(lines) == 4
    found = json.loads(invoke("tools", "list", *TOOLS, "--json").stdout)
    assert found[0]["parameters"]["required"] == ["a", "b"]


@pytest.mark.req("cli.tools")
def test_no_time_limit_is_no_limit(invoke: Callable[..., Any]) -> None:
    arguments = ("tools", "call", "add", "--args", '{"a": 1, "b": 2}', *TOOLS)
    done = invoke(*arguments, "--timeout", "0")
    assert (done.exit_code, done.stdout) == (0, "3\n")


@pytest.mark.req("cli.tools")
def test_a_tool_is_called(invoke: Callable[..., Any]) -> None:
    done = invoke("tools", "call", "add", *TOOLS, "--args", '{"a": 1, "b": 2}')
    assert (done.exit_code, done.stdout) == (0, "3\n")
    done = invoke("tools", "call", "add", *TOOLS, "--args", "-", stdin='{"a":1,"b":4}')
    assert done.stdout == "5\n"
    for arguments in (("add", "--args", '{"a": 1}'), ("fail",), ("nothing",)):
        done = invoke("tools", "call", *arguments, *TOOLS)
        assert (done.exit_code, done.stdout) == (1, "")
        done = invoke("tools", "call", *arguments, *TOOLS, "--json")
        assert json.loads(done.stdout)["success"] is False


@pytest.mark.req("cli.tools")
def test_what_a_model_said_is_run(invoke: Callable[..., Any], folder: Path) -> None:
    said = """<tool name="add" args='{"a": 3, "b": 4}'/> and <tool name="fail"/>"""
    done = invoke("tools", "run", *TOOLS, stdin=said)
    assert (done.exit_code, done.stdout) == (1, "add\t7\n")
    assert "no luck" in done.stderr
    function = {"name": "add", "arguments": '{"a": 1, "b": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    (folder / "said.json").write_text(json.dumps({"tool_calls": [call]}))
    done = invoke("tools", "run", "said.json", *TOOLS, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["result"], found["call_id"]) == (0, 2, "c1")
    done = invoke("tools", "run", *TOOLS, stdin="nothing to do")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no tool call" in done.stderr


@pytest.mark.req("cli.tools")
def test_a_dry_run_runs_nothing(invoke: Callable[..., Any]) -> None:
    said = """<tool name="add" args='{"a": 3}'/><tool name="block"/>"""
    done = invoke("tools", "run", *TOOLS, "--dry-run", stdin=said)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item["would_run"] for item in found] == [False, True]
    assert "blocking" not in done.stderr


@pytest.mark.req("cli.mcp")
def test_the_server_speaks_over_standard_streams(program: Any) -> None:
    def ask(number: int, method: str, **params: Any) -> str:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        return json.dumps(message) + "\n"

    about = {"name": "test", "version": "1"}
    talk = ask(
        *(1, "initialize"),
        protocolVersion="2025-06-18",
        capabilities={},
        clientInfo=about,
    )
    talk += json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n"
    talk += ask(2, "tools/call", name="add", arguments={"a": 1, "b": 1})
    done = program.run("mcp", "serve", *TOOLS, "--name", "mine", stdin=talk)
    answers = {item["id"]: item for item in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0
    assert answers[1]["result"]["serverInfo"]["name"] == "mine"
    assert answers[2]["result"]["content"][0]["text"] == "2"


CASES = (
    {"name": "equal", "prompt": " 4 ", "equals": ["four", "4"]},
    {"name": "words", "prompt": "Oslo is nice", "contains": "oslo", "lacks": "Bergen"},
    {"name": "pattern", "prompt": "in 2026", "matches": "20\\d\\d"},
    {"name": "json", "prompt": 'Sure: {"a": 1}', "json": {"a": 1}},
    {
        "name": "schema",
        "prompt": '{"a": 1}',
        "schema": {"type": "object", "required": ["a"]},
    },
)


@pytest.mark.req("cli.eval")
def test_every_demand_can_be_met(invoke: Callable[..., Any], write: Any) -> None:
    write("cases.jsonl", CASES)
    done = invoke("eval", "cases.jsonl", *MOCK)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("5/5 passed (100.0% accuracy); 5 ")


@pytest.mark.req("cli.eval")
def test_every_demand_can_fail(invoke: Callable[..., Any], write: Any) -> None:
    write("cases.jsonl", [{**case, "prompt": "Bergen"} for case in CASES])
    done = invoke("eval", "cases.jsonl", *MOCK, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["passed"], found["passed_count"]) == (1, False, 0)
    assert found["failures"].keys() == {case["name"] for case in CASES}
    assert found["cost"]["llm_calls"] == 5
    done = invoke("eval", "cases.jsonl", *MOCK, "--min-accuracy", "0")
    assert done.exit_code == 0


@pytest.mark.req("cli.eval")
def test_reports_are_written_and_compared(
    invoke: Callable[..., Any], write: Any, folder: Path
) -> None:
    write("cases.jsonl", [CASES[0], {**CASES[1], "prompt": "Bergen"}])
    arguments = ("eval", "cases.jsonl", *MOCK, "--trials", "2")
    done = invoke(*arguments, "-f", "junit")
    suite = ET.fromstring(done.stdout)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert invoke(*arguments, "-f", "jsonl", "-o", "first.jsonl").stdout == ""
    report = read_jsonl((folder / "first.jsonl").read_text())
    assert [len(result.trials) for result in report.results] == [2, 2]
    write("cases.jsonl", CASES[:2])
    done = invoke("eval", "cases.jsonl", *MOCK, "--baseline", "first.jsonl", "--json")
    assert json.loads(done.stdout)["compared"]["improved"] == ["words"]


@pytest.mark.req("cli.eval-paid")
@pytest.mark.parametrize(
    ("cases", "words"),
    [
        ([{**CASES[0], "name": "new"}], "none of these"),
        ([CASES[0]] * 2, "more than once"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_call(
    invoke: Callable[..., Any], write: Any, cases: Any, words: str
) -> None:
    write("cases.jsonl", CASES[:1])
    assert invoke("eval", "cases.jsonl", *MOCK, "-f", "jsonl", "-o", "b").exit_code == 0
    write("cases.jsonl", cases)
    done = invoke("eval", "cases.jsonl", *MOCK, "--baseline", "b", "-o", "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.req("cli.eval-paid")
def test_a_suite_that_was_stopped_is_written_though_nothing_can_be_compared(
    invoke: Callable[..., Any], write: Any
) -> None:
    write("cases.jsonl", CASES[:2])
    assert invoke("eval", "cases.jsonl", *MOCK, "-f", "jsonl", "-o", "b").exit_code == 0
    done = invoke(
        *("eval", "cases.jsonl", *MOCK, "--baseline", "b", "-c", "1"),
        *("--trials", "3", "--max-calls", "2"),
    )
    assert done.exit_code == 1
    assert "stopped (budget) with 2 cases left" in done.stdout
    assert "not compared" in done.stderr


INTERRUPTED = """
import asyncio, os, signal, sys

import executionkit.cli._evaluate as module
from executionkit import LLMResponse
from executionkit.cli import main
from executionkit.cli._replay import ReplayProvider


class Provider(ReplayProvider):
    asked = 0

    async def complete(self, messages, **options):
        self.asked += 1
        if self.asked == 4:  # one by one: three trials have ended
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return LLMResponse(messages[-1]["content"])


module.provider_of = lambda job: Provider([])
sys.exit(main(["eval", "cases.jsonl", "--trials", "2", "-c", "1", *sys.argv[1:]]))
"""


@pytest.mark.req("cli.eval-paid")
def test_an_interrupted_eval_writes_what_was_done(
    program: Any, write: Any, folder: Path
) -> None:
    write("cases.jsonl", [{"name": n, "prompt": n, "equals": n} for n in "abcd"])
    program.command = [sys.executable, "-c", INTERRUPTED]
    done = program.run("-f", "jsonl", "-o", "out.jsonl")
    assert done.returncode == 130
    assert done.stderr.endswith(
        "executionkit: interrupted; 3 of 8 trials done; 4 calls, 0 tokens in, "
        "0 tokens out\n"
    )
    report = read_jsonl((folder / "out.jsonl").read_text())
    assert [result.name for result in report.results] == ["a"]
    assert [len(result.trials) for result in report.partial] == [1]
    assert report.not_run == ("c", "d")
    assert report.stopped == "cancelled"
    assert not report.accuracy_passed
    done = program.run("-f", "junit")
    suite = ET.fromstring(done.stdout)
    assert (suite.get("tests"), suite.get("skipped")) == ("4", "3")


@pytest.mark.req("cli.eval-paid")
def test_a_report_that_cannot_be_written_is_refused_or_printed(
    invoke: Callable[..., Any], write: Any, folder: Path
) -> None:
    write("cases.jsonl", CASES)
    for name in (".", "no/out"):
        done = invoke("eval", "cases.jsonl", *MOCK, "-o", name)
        assert (done.exit_code, done.stdout) == (2, "")
    if Path("/dev/full").exists():
        done = invoke("eval", "cases.jsonl", *MOCK, "-f", "jsonl", "-o", "/dev/full")
        assert done.exit_code == 1
        assert "No space left" in done.stderr
        assert read_jsonl(done.stdout).passed_count == 5


@pytest.mark.req("cli.eval-paid")
def test_an_eval_that_did_nothing_replaces_no_report(
    program: Any, write: Any, folder: Path
) -> None:
    write("cases.jsonl", CASES)
    (folder / "out.jsonl").write_text("mine")
    program.command = [
        sys.executable,
        "-c",
        INTERRUPTED.replace("asked == 4", "asked == 1"),
    ]
    assert program.run("-o", "out.jsonl").returncode == 130
    assert (folder / "out.jsonl").read_text() == "mine"


@pytest.mark.req("cli.eval")
@pytest.mark.parametrize(
    "case",
    [
        {"prompt": "x"},
        {"prompt": 1, "equals": "1"},
        {"prompt": "x", "equal": "1"},
        {"prompt": "x", "matches": "("},
        {"prompt": "x", "contains": 7},
        {"prompt": "x", "schema": {"type": "nothing"}},
        [],
    ],
)
def test_a_case_that_is_none_is_said_before_any_call(
    invoke: Callable[..., Any], write: Any, case: Any
) -> None:
    write("cases.jsonl", [CASES[0], case])
    done = invoke("eval", "cases.jsonl", *MOCK)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "line 2 is no case" in done.stderr


PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.mark.req("cli.docs")
@pytest.mark.timeout(90)
def test_what_the_page_shows_runs(program: Any) -> None:
    done = program.run_page(PAGE.name)
    assert done.returncode == 0, done.stderr
    for words in ('"city": "Oslo"', "add\tAdds two numbers.", "add\t7", "2/2 passed"):
        assert words in done.stdout
    assert "2 of 2 lines done (2 before); 0 calls" in done.stderr


@pytest.mark.req("cli.docs")
def test_the_page_names_every_command_and_no_option_that_is_not_there() -> None:
    import re

    from executionkit.cli._commands import COMMANDS

    text = PAGE.read_text("utf-8")
    for item in COMMANDS:
        assert item.name in text
    known = {
        flag for item in COMMANDS for option in item.options for flag in option.flags
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named - known - {"--no-such-option"} == set()
