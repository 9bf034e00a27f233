"""The table of commands."""

from __future__ import annotations

from typing import Final

from executionkit.cli._batch_commands import BATCH
from executionkit.cli._journal_commands import JOURNAL
from executionkit.cli._options import (
    ALWAYS,
    BUDGET,
    JSON,
    OUTPUT,
    PROMPT,
    PROVIDER,
    SAMPLING,
    TOOLS,
    Command,
    argument,
    flag,
    option,
)
from executionkit.cli._trace_commands import TRACE

__all__ = ("COMMANDS", "GROUPS", "Command")

GROUPS: Final = {
    "tools": "List tools, call one, or run the calls in what a model said.",
    "batch": "Many requests at once, at a lower price, within a day.",
    "journal": "What runs have done, and what is in doubt.",
    "trace": "What a run did: a page with a timeline, or the numbers.",
    "mcp": "Tools over the Model Context Protocol.",
}


_ASKING: Final = (*PROVIDER, *SAMPLING, *BUDGET, JSON, *ALWAYS)
_CONCURRENCY: Final = option(
    "concurrency", int, 5, "Calls at once.", "--concurrency", "-c", metavar="N", least=1
)
_TOOL_TIMEOUT: Final = option(
    "timeout",
    float | None,
    None,
    "Seconds for each call; 0 = no limit.",
    "--timeout",
    metavar="SECONDS",
    least=0,
)

_PATTERNS: Final = (
    Command(
        "consensus",
        "_patterns",
        "run_consensus",
        "Ask several times, let the answers vote, print the winner.",
        (
            PROMPT,
            option("samples", int, 5, "Times to ask.", "--samples", "-n", least=1),
            option(
                "strategy", str, "majority", "majority, or unanimous.", "--strategy"
            ),
            flag("early_stop", "Stop when it is decided.", "--early-stop"),
            _CONCURRENCY,
            *_ASKING,
        ),
    ),
    Command(
        "structured",
        "_patterns",
        "run_structured",
        "Ask for JSON that fits a schema, and print it.",
        (
            PROMPT,
            option(
                "schema",
                str | None,
                None,
                "A file with a JSON Schema. Left out: any object or array.",
                "--schema",
                metavar="FILE",
            ),
            option(
                "repairs",
                int,
                3,
                "Times that the model may correct itself.",
                "--repairs",
                least=0,
            ),
            *_ASKING,
        ),
    ),
    Command(
        "refine",
        "_patterns",
        "run_refine",
        "Draft, judge, improve; print the best draft.",
        (
            PROMPT,
            option(
                "iterations", int, 5, "Improvements at most.", "--iterations", least=0
            ),
            option(
                "target", float, 0.9, "The score that is enough.", "--target", least=0
            ),
            *_ASKING,
        ),
    ),
    Command(
        "react",
        "_patterns",
        "run_react",
        "Let a model call tools until it answers.",
        (
            PROMPT,
            TOOLS,
            option("rounds", int, 8, "Replies at most.", "--rounds", least=1),
            option("tool_mode", str, "native", "native, or json.", "--tool-mode"),
            *_ASKING,
        ),
    ),
)

_MAP: Final = Command(
    "map",
    "_map",
    "run_map",
    "Ask for each line of a JSON lines file; one line of JSON comes out for each.",
    (
        argument("input", "INPUT", "A file; `-` or nothing = standard input."),
        OUTPUT,
        option(
            "template",
            str | None,
            None,
            "The prompt; {field} is that field of the line, {line} the whole line. "
            "Left out: the field `prompt`, or a line that is a text.",
            "--prompt",
            "-p",
            metavar="TEMPLATE",
        ),
        option(
            "schema",
            str | None,
            None,
            "A file with a JSON Schema that each answer must fit.",
            "--schema",
            metavar="FILE",
        ),
        flag("unordered", "Write as answers come.", "--unordered"),
        flag("resume", "Skip what the output file has.", "--resume"),
        flag(
            "retry_errors",
            "With --resume, ask again where the output file has an error.",
            "--retry-errors",
        ),
        flag("overwrite", "Replace the output file.", "--overwrite"),
        _CONCURRENCY,
        *_ASKING,
    ),
)

_EVAL: Final = Command(
    "eval",
    "_evaluate",
    "run_eval",
    "Run cases from a JSON lines file; the code is 0 when enough of them pass.",
    (
        argument("cases", "CASES", "A file; `-` or nothing = standard input."),
        OUTPUT,
        option(
            "format",
            str,
            "text",
            "What is written: text, jsonl or junit.",
            "--format",
            "-f",
        ),
        option("trials", int, 1, "Times that each case is run.", "--trials", least=1),
        option(
            "min_accuracy",
            float | None,
            None,
            "The share of cases that is enough. Left out: all of them.",
            "--min-accuracy",
            least=0,
        ),
        option(
            "baseline",
            str | None,
            None,
            "An earlier report (jsonl) to compare with.",
            "--baseline",
            metavar="FILE",
        ),
        _CONCURRENCY,
        *_ASKING,
    ),
)

_TOOLS: Final = (
    Command(
        "list",
        "_tools",
        "run_list",
        "What tools there are.",
        (TOOLS, JSON, *ALWAYS),
        "tools",
    ),
    Command(
        "call",
        "_tools",
        "run_call",
        "Call one tool and print its result.",
        (
            argument("name", "NAME", "The tool.", needed=True),
            option(
                "args",
                str,
                "{}",
                "The arguments, a JSON object; `-` = read standard input.",
                "--args",
                metavar="JSON",
            ),
            TOOLS,
            _TOOL_TIMEOUT,
            JSON,
            *ALWAYS,
        ),
        "tools",
    ),
    Command(
        "run",
        "_tools",
        "run_said",
        "Run the tool calls in what a model said.",
        (
            argument("said", "FILE", "A file; `-` or nothing = standard input."),
            TOOLS,
            _TOOL_TIMEOUT,
            flag("dry_run", "Say what would happen.", "--dry-run"),
            JSON,
            *ALWAYS,
        ),
        "tools",
    ),
)

_OTHERS: Final = (
    Command(
        "serve",
        "_serve",
        "run_serve",
        "Serve tools, or the reasoning patterns, over standard streams or HTTP.",
        (
            TOOLS,
            option(
                "http",
                str | None,
                None,
                "Serve HTTP there.",
                "--http",
                metavar="HOST:PORT",
            ),
            option(
                "allow_host",
                list[str] | None,
                None,
                "A name under which the HTTP server may be reached; may be repeated.",
                "--allow-host",
                metavar="HOST",
            ),
            option("name", str | None, None, "What the server is called.", "--name"),
        ),
        "mcp",
    ),
    Command(
        "doctor",
        "_doctor",
        "run_doctor",
        "What is installed, what is reachable, and what is misconfigured.",
        (
            *PROVIDER[:3],
            option(
                "timeout",
                float,
                5.0,
                "Seconds for the look at the endpoint.",
                "--timeout",
                metavar="SECONDS",
                least=0,
            ),
            flag("offline", "Do not look at it.", "--offline"),
            JSON,
            *ALWAYS,
        ),
    ),
    Command(
        "demo",
        "_demo",
        "run_demo",
        "A tour: on the endpoint or the local model that is there, else with a script.",
        (*PROVIDER[:3], JSON, *ALWAYS),
    ),
)

COMMANDS: Final = (*_PATTERNS, _MAP, _EVAL, *BATCH, *_TOOLS, *JOURNAL, *TRACE, *_OTHERS)
