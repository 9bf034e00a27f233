"""What is the same for all commands: help, exit codes, streams, missing packages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ALL = (
    *("consensus", "structured", "refine", "react", "map", "eval", "doctor", "demo"),
    *("batch run", "batch submit", "batch status", "batch wait", "batch results"),
    *("batch cancel", "tools list", "tools call", "tools run", "mcp serve"),
    *("journal list", "journal resolve", "journal retry"),
    *("trace view", "trace summary"),
)
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from executionkit.cli import main
sys.exit(main({arguments!r}))
"""


def blocked(program: Any, name: str, *arguments: str) -> Any:
    script = BLOCKER.format(name=name, arguments=list(arguments))
    program.command = [sys.executable, "-W", "error", "-c", script]
    return program.run()


@pytest.mark.req("cli.extra")
@pytest.mark.parametrize("name", ["typer", "rich"])
def test_without_the_extra_there_is_one_clear_line(program: Any, name: str) -> None:
    done = blocked(program, name, "doctor")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"`{name}`" in done.stderr
    assert "pip install 'executionkit[cli]'" in done.stderr


@pytest.mark.req("cli.extra")
def test_importing_it_loads_nothing(program: Any) -> None:
    code = (
        "import sys; import executionkit.cli, executionkit.__main__;"
        "print([n for n in ('typer', 'rich', 'asyncio', 'json') if n in sys.modules])"
    )
    program.command = [sys.executable, "-S", "-c", code]
    assert program.run().stdout == "[]\n"


@pytest.mark.req("cli.commands")
@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help(invoke: Callable[..., Any], name: str) -> None:
    done = invoke(*name.split(), "--help")
    assert done.exit_code == 0
    assert done.stdout.startswith("Usage:")
    assert "\x1b" not in done.stdout


@pytest.mark.req("cli.commands")
def test_every_function_of_the_table_is_there(folder: Path) -> None:
    import importlib

    from executionkit.cli._commands import COMMANDS

    names = {f"{item.group} {item.name}".strip() for item in COMMANDS}
    assert names == set(ALL)
    for item in COMMANDS:
        module = importlib.import_module(f"executionkit.cli.{item.module}")
        assert callable(getattr(module, item.function))
        with_json = {"json", "http"} & {option.name for option in item.options}
        assert with_json, f"{item.name} writes no JSON"


@pytest.mark.req("cli.exit-codes")
def test_the_module_is_the_program(program: Any) -> None:
    import executionkit

    done = program.run("--version")
    assert (done.returncode, done.stdout) == (0, f"{executionkit.__version__}\n")
    assert "Exit codes" in program.run("--help").stdout


@pytest.mark.req("cli.exit-codes")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("consensus", "--nope"), 2),
        (("consensus", "x", "--provider", "none"), 2),
        (("consensus", "x", "--samples", "0"), 2),
        (("consensus", " ", "--provider", "mock"), 2),
        (("consensus", "x", "--strategy", "loud", "--provider", "mock"), 2),
        (("consensus", "x", "--provider", "mock", "--max-money", "1"), 2),
        (("consensus", "x", "--provider", "mock", "--prices", "cheap"), 2),
        (("consensus", "x", "--provider", "mock", "--replies", "none.jsonl"), 2),
        (("structured", "x", "--provider", "mock", "--schema", "none.json"), 2),
        (("refine", "x", "--provider", "mock", "--target", "7"), 2),
        (("react", "x", "--provider", "mock"), 2),
        (("react", "x", "--provider", "mock", "--tools", "no_such_module"), 2),
        (("tools", "list"), 2),
        (("tools", "call", "add", "--tools", "cli_tools", "--args", "{"), 2),
        (("tools", "call", "add", "--tools", "cli_tools", "--args", "[1]"), 2),
        (("map", "none.jsonl", "--provider", "mock"), 2),
        (("map", "same", "-o", "./same", "--provider", "mock"), 2),
        (("map", "--resume", "--provider", "mock"), 2),
        (("eval", "--provider", "mock"), 2),
        (("eval", "--provider", "mock", "--format", "pdf"), 2),
        (("mcp", "serve", "--tools", "no_such_module"), 2),
        (("consensus", "x"), 3),
        (("map",), 3),
        (("consensus", "x", "--provider", "openai"), 3),
        (("consensus", "x", "--provider", "anthropic"), 3),
        (("consensus", "x", "--base-url", "http://127.0.0.1:1"), 3),
    ],
)
def test_a_wrong_call_says_so_and_has_its_code(
    invoke: Callable[..., Any], arguments: tuple[str, ...], code: int
) -> None:
    done = invoke(*arguments)
    assert done.exit_code == code, done.stderr
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.req("cli.interrupt")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_tells_its_cost(
    program: Any, write: Any, number: signal.Signals
) -> None:
    write("in.jsonl", ["one", "two", "three"])
    write("say.jsonl", ["first", {"content": "late", "delay": 60}])
    process = program.start(
        *("map", "in.jsonl", "-c", "1", "--provider", "mock"),
        *("--replies", "say.jsonl"),
    )
    with process:
        assert json.loads(process.stdout.readline())["output"] == "first"
        process.send_signal(number)
        _, errors = process.communicate(timeout=5)
    assert process.returncode == 128 + number
    assert "1 of 3 lines done; 2 calls, 0 tokens in, 1 tokens out" in errors
    assert errors.count("\n") == 1


EARLY = """
import os, signal, sys

import executionkit.errors as errors
from executionkit.cli import main


def slow(*names, **more):
    os.kill(os.getpid(), int(sys.argv[1]))
    raise AssertionError("it went on")


errors.require = slow  # what is asked for before a command has begun
sys.exit(main(["tools", "list"]))
"""


@pytest.mark.req("cli.interrupt")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_command_has_begun_is_told(
    program: Any, number: signal.Signals
) -> None:
    program.command = [sys.executable, "-c", EARLY]
    done = program.run(str(int(number)))
    assert done.returncode == 128 + number
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert (done.stdout, done.stderr) == ("", f"executionkit: {word}\n")


@pytest.mark.req("cli.interrupt")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_tools_are_loaded_has_its_exit_code(
    program: Any, folder: Path, number: signal.Signals
) -> None:
    # In text that is run by `exec`, as the making of a dataclass is.
    text = f"import os; exec('os.kill(os.getpid(), {int(number)})')"
    (folder / "slow_tools.py").write_text(text)
    done = program.run("tools", "list", "--tools", "slow_tools")
    assert done.returncode == 128 + number
    assert done.stderr.startswith("executionkit: ")
    assert done.stderr.count("\n") == 1


EMBEDDED = """
import asyncio, os, signal, sys, threading

import executionkit.cli._patterns as module
from executionkit.cli import main
from executionkit.cli._replay import ReplayProvider


class Provider(ReplayProvider):
    async def complete(self, messages, **options):
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if sys.argv[1] == "once":
                    raise
                os.kill(os.getpid(), signal.SIGINT)


module.provider_of = lambda job: Provider([])
before = signal.getsignal(signal.SIGINT)
code = main(["consensus", "hi", "-n", "1"])
assert code == 130, code
assert signal.getsignal(signal.SIGINT) is before
assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
print("goes on")
"""


@pytest.mark.req("cli.embedded")
@pytest.mark.parametrize("times", ["once", "twice"])
def test_a_signal_does_not_end_the_process_that_calls_main(
    program: Any, times: str
) -> None:
    program.command = [sys.executable, "-c", EMBEDDED]
    done = program.run(times)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    assert "interrupted; 1 call" in done.stderr


@pytest.mark.req("cli.interrupt")
def test_a_signal_that_is_ignored_stays_so(program: Any, write: Any) -> None:
    """As in the background of a script."""
    write("in.jsonl", ["one", "two"])
    process = program.start(
        *("map", "-", "--provider", "mock"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        bufsize=1,
    )
    with process:
        process.stdin.write('"a"\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["output"] == "a"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate('"b"\n', timeout=10)
    assert process.returncode == 0
    assert json.loads(output)["output"] == "b"
    assert errors.startswith("2 lines done")


@pytest.mark.req("cli.interrupt")
@pytest.mark.parametrize("name", ["block", "hang"])
def test_a_tool_that_does_not_end_cannot_hold_the_process(
    program: Any, name: str
) -> None:
    process = program.start("tools", "call", name, "--tools", "cli_tools")
    with process:
        assert process.stderr.readline() == "blocking\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=5)
    assert process.returncode == 130
    assert (output, errors) == ("", "executionkit: interrupted\n")


@pytest.mark.req("cli.interrupt")
def test_waiting_for_standard_input_can_be_interrupted(program: Any) -> None:
    write_end = subprocess.PIPE
    process = program.start(
        *("map", "-", "--provider", "mock"), stdin=write_end, bufsize=1
    )
    with process:
        process.stdin.write('"a"\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["output"] == "a"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5) == 130
        errors = process.stderr.read()
    assert errors == (
        "executionkit: interrupted; 1 lines done; 1 call, 1 tokens in, 1 tokens out\n"
    )


@pytest.mark.req("cli.pipe")
def test_a_reader_that_leaves_ends_the_run_quietly(program: Any, write: Any) -> None:
    write("in.jsonl", [f"line {number} " + "x" * 2000 for number in range(2000)])
    process = program.start("map", "in.jsonl", "--provider", "mock", "-q")
    with process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=SECONDS) == 141
        assert process.stderr.read() == ""


SECONDS = 15


@pytest.mark.req("cli.streams")
def test_results_alone_are_on_standard_output(program: Any) -> None:
    done = program.run(
        *("tools", "call", "add", "--tools", "cli_tools:registry"),
        *("--args", '{"a": 1, "b": 2}'),
    )
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert done.stderr == "noise of a tool\n"


@pytest.mark.req("cli.streams")
def test_quiet_says_nothing_and_verbose_logs_to_standard_error(
    program: Any, invoke: Callable[..., Any]
) -> None:
    done = invoke("consensus", "x", "--provider", "mock", "-q")
    assert (done.stdout, done.stderr) == ("x\n", "")
    done = program.run(
        *("tools", "call", "fail", "--tools", "cli_tools", "--verbose", "--json"),
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["success"] is False


@pytest.mark.req("cli.interrupt")
async def test_calls_that_fail_or_still_run_are_counted() -> None:
    from executionkit import MockProvider, TokenUsage
    from executionkit.cli._ask import Watched
    from executionkit.cli._console import Console
    from executionkit.cli._job import Job

    job = Job({"provider": None}, Console())
    provider = Watched(MockProvider(exception=ConnectionError()), job)
    with pytest.raises(ConnectionError):
        await provider.complete([])
    assert job.meter.usage() == TokenUsage(llm_calls=1)
    assert job.meter.words() == "1 call, 0 tokens in, 0 tokens out"


@pytest.mark.req("cli.secrets")
def test_what_is_known_to_be_secret_is_hidden_in_every_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from executionkit.cli._console import Console

    console = Console()
    console.secrets = ("plain words",)
    console.note("a note with plain words in it")
    assert capsys.readouterr().err == "a note with [REDACTED] in it\n"
    assert console.clean({"a": "plain words"}) == {"a": "[REDACTED]"}


@pytest.mark.req("cli.streams")
def test_any_text_of_a_model_can_be_written(program: Any, write: Any) -> None:
    write("say.jsonl", ["\ud800 \u00e9"])
    mock = ("--provider", "mock", "--replies", "say.jsonl", "-q")
    done = program.run("consensus", "x", *mock, PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stdout) == (0, "? \u00e9\n")
    done = program.run("map", *mock, stdin='"x"', PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["output"] == "\ud800 \u00e9"


@pytest.mark.req("cli.json")
def test_numbers_that_json_does_not_have_are_texts() -> None:
    from executionkit.cli._console import as_json

    assert json.loads(as_json({"a": [float("nan"), 1.5]})) == {"a": ["nan", 1.5]}


@pytest.mark.req("cli.exit-codes")
@pytest.mark.skipif(sys.platform == "win32", reason="arguments are text there")
def test_an_argument_that_is_no_text_is_a_wrong_call_in_words(program: Any) -> None:
    done = program.run("tools", "list", "a\udcff")
    assert done.returncode == 2
    assert "unexpected extra argument(s) (a\\udcff)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.req("cli.streams")
def test_streams_that_are_closed_do_no_harm(program: Any) -> None:
    import shlex

    line = shlex.join([*program.command, "consensus", "x", "--provider", "mock"])
    for closed in (">&-", "2>&-", "<&-"):
        program.command = ["sh", "-c", f"{line} {closed}"]
        assert program.run().returncode == 0


@pytest.mark.req("cli.secrets")
def test_no_secret_is_ever_shown(program: Any) -> None:
    key = "sk-very-secret-key-0123456789"
    for command in (("consensus", "x", "--json", "--retries", "0"), ("doctor",)):
        done = program.run(
            *command,
            EXECUTIONKIT_BASE_URL=f"http://user:{key}@127.0.0.1:1/v1",
            EXECUTIONKIT_MODEL="m",
            EXECUTIONKIT_API_KEY=key,
        )
        assert done.returncode in {1, 3}
        assert key not in done.stdout + done.stderr
