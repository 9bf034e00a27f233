"""`map`: order, resuming, errors, bounds."""

from __future__ import annotations

import io
import itertools
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._clock import use_clock
from executionkit.cli._console import Console, UsageError
from executionkit.cli._job import Meter
from executionkit.cli._lines import Done, OutputFile, read_lines
from executionkit.cli._map import _item
from executionkit.cli._progress import Progress, span_words
from executionkit.cost import Prices
from executionkit.testing import FakeClock
from executionkit.types import TokenUsage

MOCK = ("--provider", "mock")


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.req("cli.map")
def test_results_come_in_the_order_of_the_lines(
    invoke: Callable[..., Any], write: Any
) -> None:
    write("say.jsonl", [{"content": "slow", "delay": 0.1}, "quick", "quick"])
    lines = [{"id": "a", "prompt": "1"}, {"prompt": "2"}, "3"]
    write("in.jsonl", lines)
    arguments = ("map", "in.jsonl", *MOCK, "--replies", "say.jsonl")
    done = invoke(*arguments)
    assert done.exit_code == 0
    found = rows(done.stdout)
    assert [row["index"] for row in found] == [0, 1, 2]
    assert found[0]["id"] == "a"
    assert "id" not in found[1]
    assert found[0]["cost"]["output_tokens"] == 1
    assert "3 of 3 lines done; 3 calls" in done.stderr
    found = rows(invoke(*arguments, "--unordered").stdout)
    assert [row["output"] for row in found] == ["quick", "quick", "slow"]
    assert found[-1]["index"] == 0


@pytest.mark.req("cli.map")
def test_a_template_is_filled_with_the_fields_of_a_line(
    invoke: Callable[..., Any],
) -> None:
    lines = '{"text": "hi {tone}", "tone": 3}\n"plain"\n'
    found = rows(invoke("map", *MOCK, "-p", "{tone}: {text} {x y}", stdin=lines).stdout)
    assert found[0]["output"] == "3: hi {tone} {x y}"
    assert found[1]["error"]["message"].startswith("the line has no field `tone`")
    found = rows(invoke("map", *MOCK, "-p", "<{line}>", stdin=lines).stdout)
    assert [row["output"] for row in found] == [
        '<{"text": "hi {tone}", "tone": 3}>',
        "<plain>",
    ]


@pytest.mark.req("cli.map-errors")
def test_the_error_of_a_line_is_kept_and_harms_no_other_line(
    invoke: Callable[..., Any], write: Any
) -> None:
    write("say.jsonl", ["one", {"error": "permanent"}, "three"])
    write("in.jsonl", ["a", "b", "c", {"no": "prompt"}])
    with Path("in.jsonl").open("a") as file:
        file.write("no json\n\n")
    done = invoke("map", "in.jsonl", *MOCK, "--replies", "say.jsonl", "-c", "1")
    assert done.exit_code == 1
    found = rows(done.stdout)
    assert [row.get("output") for row in found] == ["one", None, "three", None, None]
    assert found[1]["error"]["type"] == "PermanentError"
    assert found[1]["error"]["retryable"] is False
    assert [row["error"]["type"] for row in found[3:]] == ["LineError", "LineError"]
    assert "5 of 5 lines done, 3 failed; 3 calls" in done.stderr


@pytest.mark.req("cli.map-errors")
@pytest.mark.parametrize(
    ("reply", "more", "error"),
    [
        ({"error": "unauthorized"}, (), "PermanentError"),
        ("fine", ("--max-calls", "2"), "BudgetExhaustedError"),
    ],
)
def test_what_would_meet_every_line_ends_the_run(
    invoke: Callable[..., Any], write: Any, reply: Any, more: Any, error: str
) -> None:
    write("say.jsonl", ["fine", reply])
    write("in.jsonl", list("abcdef"))
    done = invoke(
        *("map", "in.jsonl", *MOCK, "--replies", "say.jsonl", "-c", "1", *more),
    )
    assert done.exit_code == 1
    assert f"stopped: {error}" in done.stderr
    assert 1 <= len(rows(done.stdout)) <= 2


@pytest.mark.req("cli.map-paid")
def test_an_early_end_keeps_the_answers_that_wait_for_an_earlier_line(
    invoke: Callable[..., Any], write: Any
) -> None:
    write(
        "say.jsonl",
        [{"content": "slow", "delay": 0.05}, *"bc", {"error": "unauthorized"}],
    )
    write("in.jsonl", list("abcdef"))
    done = invoke("map", "in.jsonl", *MOCK, "--replies", "say.jsonl", "-c", "4")
    assert done.exit_code == 1
    found = [row["index"] for row in rows(done.stdout)]
    assert found[:3] == [0, 1, 2]
    assert 5 in found
    assert f"{len(found)} of 6 lines done" in done.stderr


INTERRUPTED = """
import asyncio, os, signal, sys

import executionkit.cli._map as module
from executionkit import LLMResponse
from executionkit.cli import main
from executionkit.cli._replay import ReplayProvider


class Provider(ReplayProvider):
    async def complete(self, messages, **options):
        text = messages[-1]["content"]
        if text == "d":  # with two calls at once: b and c have been answered
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        if text in "ad":
            await asyncio.Event().wait()
        return LLMResponse(text, usage={"prompt_tokens": 1, "completion_tokens": 1})


module.provider_of = lambda job: Provider([])
sys.exit(main(["map", "in.jsonl", "-c", "2", *sys.argv[2:]]))
"""


@pytest.mark.req("cli.map-paid")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("to_file", [False, True])
def test_an_interrupted_map_writes_the_answers_that_were_paid(
    program: Any, write: Any, folder: Path, invoke: Any, number: str, *, to_file: bool
) -> None:
    write("in.jsonl", list("abcdef"))
    program.command = [sys.executable, "-c", INTERRUPTED]
    output = ("-o", "out.jsonl") if to_file else ()
    done = program.run(number, *output)
    assert done.returncode in {130, 143}
    assert "2 of 6 lines done; 4 calls" in done.stderr
    text = (folder / "out.jsonl").read_text() if to_file else done.stdout
    assert [row["output"] for row in rows(text)] == ["b", "c"]
    if to_file:
        rest = invoke("map", "in.jsonl", *MOCK, *output, "--resume", "--json")
        found = json.loads(rest.stdout)
        assert (found["total"], found["done"], found["skipped"]) == (6, 6, 2)
        assert found["cost"]["llm_calls"] == 4
        again = rows((folder / "out.jsonl").read_text())
        assert sorted(row["index"] for row in again) == list(range(6))


@pytest.mark.req("cli.map-paid")
@pytest.mark.parametrize("more", [(), ("--retry-errors",)])
def test_a_map_that_is_killed_loses_no_answer_that_waited(
    program: Any, write: Any, folder: Path, invoke: Any, more: tuple[str, ...]
) -> None:
    """`b` and `c` were answered, and waited for `a`."""
    write("in.jsonl", list("abcdef"))
    program.command = [sys.executable, "-c", INTERRUPTED]
    assert program.run("SIGKILL", "-o", "out.jsonl").returncode == -signal.SIGKILL
    out, aside = folder / "out.jsonl", folder / "out.jsonl.map-waiting"
    assert out.read_text() == ""
    assert [row["output"] for row in rows(aside.read_text())] == ["b", "c"]
    with aside.open("a") as file:
        file.write('{"index": 3, "output": "d", "ke')  # killed within a line

    arguments = ("map", "in.jsonl", *MOCK, "-o", "out.jsonl")
    refused = invoke(*arguments)
    assert (refused.exit_code, "is there already" in refused.stderr) == (2, True)
    done = invoke(*arguments, "--resume", *more, "-c", "2")
    assert done.exit_code == 0
    assert "6 of 6 lines done, 4 calls" in done.stderr.replace(";", ",")
    again = rows(out.read_text())
    assert [(row["index"], row["output"]) for row in again] == [*enumerate("abcdef")]
    assert not aside.exists()


@pytest.mark.req("cli.map-paid")
def test_what_was_put_aside_answers_its_own_question_alone(
    program: Any, write: Any, folder: Path, invoke: Any
) -> None:
    write("in.jsonl", list("abcdef"))
    program.command = [sys.executable, "-c", INTERRUPTED]
    program.run("SIGKILL", "-o", "out.jsonl")
    write("in.jsonl", list("axc"))
    arguments = ("map", "in.jsonl", *MOCK, "-o", "out.jsonl")
    done = invoke(*arguments, "--resume")
    assert "2 calls" in done.stderr
    found = rows((folder / "out.jsonl").read_text())
    assert [row["output"] for row in found] == ["a", "x", "c"]

    write("in.jsonl", list("abcdef"))
    program.run("SIGKILL", "-o", "out.jsonl", "--overwrite")
    assert (folder / "out.jsonl.map-waiting").exists()
    assert "6 calls" in invoke(*arguments, "--overwrite").stderr
    assert [path.name for path in folder.iterdir() if "out" in path.name] == [
        "out.jsonl"
    ]


@pytest.mark.req("cli.map-paid")
def test_what_is_put_aside_is_there_only_while_it_waits(folder: Path) -> None:
    def row(index: int) -> str:
        return json.dumps({"index": index, "output": "x", "key": "1"})

    def out(*, resume: bool) -> OutputFile:
        return OutputFile(
            "out.jsonl", resume=resume, overwrite=not resume, retry_errors=False
        )

    aside = folder / "out.jsonl.map-waiting"
    with out(resume=False) as file:
        file.put_aside(row(1))
        file.write(row(0))
        file.write(row(1))
        file.put_aside(row(2))
    assert [found["index"] for found in rows(aside.read_text())] == [1, 2]
    with out(resume=True) as file:
        assert list(file.aside) == [2]  # 1 is written
        file.aside.clear()
        file.put_aside(row(3))
        file.nothing_waits()
        assert aside.read_text() == ""
        file.put_aside(row(4))
        assert json.loads(aside.read_text())["index"] == 4
    with out(resume=False) as file:  # made anew: nothing of before
        assert (file.aside, aside.exists()) == ({}, False)


@pytest.mark.req("cli.map-paid")
def test_an_error_that_waited_is_asked_again_when_that_is_wanted(
    write: Any, folder: Path, invoke: Any
) -> None:
    write("in.jsonl", ["a", "b"])
    write("say.jsonl", ["fine", {"error": "permanent"}])
    arguments = ("map", "in.jsonl", *MOCK, "-o", "out.jsonl")
    invoke(*arguments, "-c", "1", "--replies", "say.jsonl")
    lines = (folder / "out.jsonl").read_text().splitlines(keepends=True)
    for more, calls in (
        (("--resume",), "1 call,"),
        (("--resume", "--retry-errors"), "2 c"),
    ):
        (folder / "out.jsonl").write_text("")
        (folder / "out.jsonl.map-waiting").write_text(lines[1])
        done = invoke(*arguments, *more)
        assert calls in done.stderr
        found = rows((folder / "out.jsonl").read_text())
        assert ["error" in row for row in found] == [False, calls == "1 call,"]


@pytest.mark.req("cli.json")
def test_a_map_into_a_file_tells_in_json_what_was_done(
    invoke: Callable[..., Any], write: Any
) -> None:
    write("say.jsonl", ["fine", {"error": "permanent"}, {"error": "unauthorized"}])
    write("in.jsonl", list("abc"))
    done = invoke(
        *("map", "in.jsonl", *MOCK, "--replies", "say.jsonl", "-c", "1"),
        *("-o", "out.jsonl", "--json"),
    )
    found = json.loads(done.stdout)
    assert (found["done"], found["failed"], found["skipped"]) == (2, 1, 0)
    assert found["error"]["type"] == "PermanentError"
    assert found["cost"]["llm_calls"] == 3


@pytest.mark.req("cli.map")
def test_answers_can_be_held_to_a_schema(
    invoke: Callable[..., Any], write: Any, folder: Path
) -> None:
    (folder / "schema.json").write_text('{"type": "object", "required": ["n"]}')
    write("say.jsonl", ['{"n": 1}', "nonsense", '{"n": 2}'])
    write("in.jsonl", ["a", "b"])
    done = invoke(
        *("map", "in.jsonl", *MOCK, "--replies", "say.jsonl", "-c", "1"),
        *("--schema", "schema.json"),
    )
    found = rows(done.stdout)
    assert [row["output"] for row in found] == [{"n": 1}, {"n": 2}]
    assert [row["cost"]["llm_calls"] for row in found] == [1, 2]
    assert "3 calls" in done.stderr


@pytest.mark.req("cli.map-resume")
def test_a_file_is_never_replaced_unasked(
    invoke: Callable[..., Any], write: Any, folder: Path
) -> None:
    write("in.jsonl", ["a"])
    arguments = ("map", "in.jsonl", *MOCK, "-o", "out.jsonl")
    assert invoke(*arguments).exit_code == 0
    first = (folder / "out.jsonl").read_text()
    write("in.jsonl", ["b"])
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert "--resume" in done.stderr
    done = invoke(*arguments, "--resume")
    assert done.exit_code == 2
    assert "line 1 asks for something else" in done.stderr
    assert (folder / "out.jsonl").read_text() == first
    assert invoke(*arguments, "--overwrite").exit_code == 0
    assert rows((folder / "out.jsonl").read_text())[0]["output"] == "b"
    for name in ("hard", "soft"):
        link = folder / f"{name}.jsonl"
        link.hardlink_to("in.jsonl") if name == "hard" else link.symlink_to("in.jsonl")
        wrong = ("map", "in.jsonl", *MOCK, "-o", link.name, "--overwrite")
        assert "the output file is the input file" in invoke(*wrong).stderr
        assert (folder / "in.jsonl").read_text() == '"b"\n'
    assert "is a folder" in invoke(*arguments[:-1], ".", "--overwrite").stderr
    (folder / "out.jsonl").write_text('{"other": 1}\n')
    assert invoke(*arguments, "--resume").exit_code == 2
    assert (folder / "out.jsonl").read_text() == '{"other": 1}\n'


@pytest.mark.req("cli.map-resume")
def test_errors_are_asked_again_when_that_is_wanted(
    invoke: Callable[..., Any], write: Any, folder: Path
) -> None:
    write("say.jsonl", ["fine", {"error": "permanent"}])
    write("in.jsonl", ["a", "b"])
    arguments = ("map", "in.jsonl", *MOCK, "-c", "1", "-o", "out.jsonl")
    assert invoke(*arguments, "--replies", "say.jsonl").exit_code == 1
    done = invoke(*arguments, "--resume")
    assert (done.exit_code, "0 calls" in done.stderr) == (0, True)
    done = invoke(*arguments, "--resume", "--retry-errors")
    assert (done.exit_code, "1 call," in done.stderr) == (0, True)
    found = rows((folder / "out.jsonl").read_text())
    assert [row["output"] for row in found] == ["fine", "b"]


@pytest.mark.req("cli.map-resume")
def test_after_a_kill_at_any_byte_no_line_is_lost_or_asked_twice(
    invoke: Callable[..., Any], write: Any, folder: Path
) -> None:
    write("in.jsonl", ["a", "b", "c"])
    arguments = ("map", "in.jsonl", *MOCK, "-o", "out.jsonl", "--resume")
    assert invoke(*arguments).exit_code == 0
    whole = (folder / "out.jsonl").read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {*(end + more for end in ends for more in (-1, 0, 1, 2)), 0, 1, 50}
    for cut in sorted(cut for cut in cuts if cut <= len(whole)):
        (folder / "out.jsonl").write_bytes(whole[:cut])
        done = invoke(*arguments)
        calls = 3 - whole[:cut].count(b"\n")
        assert done.exit_code == 0
        assert f"{calls} call" in done.stderr
        assert (folder / "out.jsonl").read_bytes() == whole


@pytest.mark.req("cli.map-resume")
@given(st.sets(st.integers(0, 300)), st.integers(0, 2**60 - 1))
def test_what_is_done_is_remembered_exactly(done: set[int], key: int) -> None:
    kept = Done()
    for index in done:
        kept.add(index, f"{key:015x}")
    for index in range(302):
        assert kept.key_of(index) == (f"{key:015x}" if index in done else None)


@pytest.mark.req("cli.map-resume")
@given(st.text(), st.text())
def test_the_key_of_a_line_stands_for_what_is_asked(one: str, other: str) -> None:
    first, second = (_item(0, json.dumps(text), "{line}") for text in (one, other))
    assert first.prompt == one
    assert (first.key == second.key) == (one == other)


@pytest.mark.req("cli.map-bounded")
def test_an_endless_input_is_read_only_as_fast_as_calls_end(
    program: Any, write: Any
) -> None:
    write("say.jsonl", ["quick", {"content": "late", "delay": 60}])
    process = program.start(
        *("map", "-", *MOCK, "--replies", "say.jsonl", "-c", "2", "-q"),
    )
    with process:
        for number in range(3):
            process.stdin.write(f'"{number}"\n')
        process.stdin.flush()
        # The input is still open, and the first result is there.
        assert json.loads(process.stdout.readline())["index"] == 0
        process.kill()


@pytest.mark.req("cli.map-resume")
def test_a_line_is_in_the_output_before_the_next_call_ends(
    program: Any, write: Any, folder: Path
) -> None:
    import os

    write("say.jsonl", ["quick", {"content": "late", "delay": 60}])
    write("in.jsonl", ["a", "b"])
    os.mkfifo(folder / "out")
    process = program.start(
        *("map", "in.jsonl", *MOCK, "--replies", "say.jsonl", "-c", "1", "-o", "out"),
    )
    with process, (folder / "out").open() as out:
        assert json.loads(out.readline())["output"] == "quick"
        process.kill()


@pytest.mark.req("cli.map-resume")
@pytest.mark.parametrize("more", ["--resume", "--overwrite", "--retry-errors"])
def test_two_runs_never_write_to_one_file(
    program: Any, write: Any, folder: Path, invoke: Any, more: str
) -> None:
    write("say.jsonl", ["quick", {"content": "late", "delay": 60}])
    write("in.jsonl", ["a", "b", "c"])
    arguments = ("map", "in.jsonl", *MOCK, "-o", "out.jsonl")
    process = program.start(*arguments, "--replies", "say.jsonl", "-c", "1")
    with process:
        out = folder / "out.jsonl"
        while not (out.exists() and out.read_text()):
            assert process.poll() is None
        wanted = ("--resume", more) if more == "--retry-errors" else (more,)
        done = invoke(*arguments, *wanted)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "another process is writing" in done.stderr
        process.kill()
        process.wait(10)
    assert [row["output"] for row in rows(out.read_text())] == ["quick"]
    assert invoke(*arguments, *wanted).exit_code == 0
    assert len(rows(out.read_text())) == 3


@pytest.mark.req("cli.map-resume")
def test_what_another_run_has_added_is_not_cut_off(invoke: Any, write: Any) -> None:
    write("in.jsonl", ["a"])
    arguments = ("map", "in.jsonl", *MOCK, "-o", "out.jsonl")
    assert invoke(*arguments).exit_code == 0
    output = OutputFile("out.jsonl", resume=True, overwrite=False, retry_errors=False)
    with Path("out.jsonl").open("a") as other:
        other.write("more\n")
    with pytest.raises(UsageError, match="has changed"):
        output.__enter__()
    assert Path("out.jsonl").read_text().endswith("more\n")


@pytest.mark.req("cli.map-bounded")
async def test_lines_are_taken_one_by_one(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    class Endless:
        taken = 0

        def __iter__(self) -> Endless:
            return self

        def __next__(self) -> str:
            self.taken += 1
            return f'"{self.taken}"\n'

        def fileno(self) -> int:
            raise io.UnsupportedOperation

    endless = Endless()
    monkeypatch.setattr("sys.stdin", endless)
    lines = read_lines("-")
    assert [await anext(lines) for _ in range(3)] == ['"1"\n', '"2"\n', '"3"\n']
    await lines.aclose()
    assert endless.taken == 3


@pytest.mark.req("cli.map-bounded")
async def test_no_more_lines_are_taken_than_calls_and_window(folder: Path) -> None:
    import asyncio

    from executionkit.engine.parallel import map_bounded

    taken = itertools.count()
    gate = asyncio.Event()

    async def lines() -> Any:
        while True:
            yield next(taken)

    async def call(item: int) -> int:
        await gate.wait()
        return item

    outcomes = map_bounded(call, lines(), 3, ordered=True)
    first = asyncio.ensure_future(anext(outcomes))
    for _ in range(50):
        await asyncio.sleep(0)
    assert next(taken) <= 4
    gate.set()
    assert (await first)[0] == 0
    await outcomes.aclose()


@pytest.mark.req("cli.map")
def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_the_lines(
    invoke: Callable[..., Any], program: Any
) -> None:
    data = b'\xef\xbb\xbf"one"\r\n\r\n"two"'
    Path("in.jsonl").write_bytes(data)
    done = invoke("map", "in.jsonl", *MOCK)
    assert [row["output"] for row in rows(done.stdout)] == ["one", "two"]
    done = program.run("map", "-", *MOCK, stdin=data.decode())
    assert [row["output"] for row in rows(done.stdout)] == ["one", "two"]
    Path("cases.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a", "equals": "a"}\n')
    assert invoke("eval", "cases.jsonl", *MOCK).exit_code == 0
    assert program.run("consensus", *MOCK, stdin="\ufeffhi").stdout == "hi\n"


@pytest.mark.req("cli.map")
def test_input_that_is_no_text_is_said(invoke: Callable[..., Any]) -> None:
    Path("in.jsonl").write_bytes(b'"ok"\n"\xff"\n')
    done = invoke("map", "in.jsonl", *MOCK)
    assert done.exit_code == 2
    assert "UTF-8" in done.stderr


@pytest.mark.req("cli.progress")
async def test_progress_tells_rate_cost_and_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    with use_clock(clock):
        progress = Progress(Console(), Meter(), 40)
        progress.skip(10)
        await clock.advance(4.0)
        told = progress.words(20, 1)
        progress.show(20, 1)
        assert capsys.readouterr().err == ""
        await clock.advance(6.0)
        progress.show(22, 1)
    assert told == "20/40, 1 failed, 2.5/s, 0:08 left, 0 calls, 0 in, 0 out"
    assert capsys.readouterr().err.startswith("22/40, 1 failed, 1.2/s")
    assert span_words(3723) == "1:02:03"


@pytest.mark.req("cli.progress")
def test_the_cost_of_a_bar_is_short() -> None:
    meter = Meter()
    meter.spent = lambda: TokenUsage(1_234, 99_999_999, 1)
    assert meter.brief() == "1 call, 1.2k in, 100M out"
    meter.prices = Prices(input=1, output=2)
    assert meter.brief() == "1 call, 200 money"


@pytest.mark.req("cli.progress")
@pytest.mark.parametrize(("plain", "width"), [(True, 80), (False, 120), (False, 44)])
def test_a_terminal_sees_a_bar_and_no_colour_when_that_is_unwanted(
    program: Any, write: Any, width: int, *, plain: bool
) -> None:
    pty = pytest.importorskip("pty")
    import os

    write("say.jsonl", [{"content": "x", "delay": 0.15}])
    write("in.jsonl", ["a", "b", "c"])
    ours, theirs = pty.openpty()
    program.environment |= {"TERM": "xterm-256color", "COLUMNS": str(width)}
    program.environment.pop("NO_COLOR", None)
    if plain:
        program.environment["NO_COLOR"] = "1"
    process = program.start(
        *("map", "in.jsonl", *MOCK, "--replies", "say.jsonl", "-c", "1"),
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    with process:
        while True:
            try:
                block = os.read(ours, 4096)
            except OSError:
                break
            if not block:
                break
            seen += block
        output = process.stdout.read()
    os.close(ours)
    assert b" 33% " in seen
    assert b"1/3" in seen
    assert b"/s" in seen
    assert b"left" in seen
    assert (b"1 call, 0 in, 1 out" in seen) is (width > 60)
    assert (b"\x1b[38;" in seen or b"\x1b[3" in seen) is not plain
    assert "\x1b" not in output
    assert len(rows(output)) == 3


@pytest.mark.req("cli.map-resume")
def test_a_folder_that_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(UsageError, match="folder"):
        OutputFile("no/out.jsonl", resume=True, overwrite=False, retry_errors=False)
