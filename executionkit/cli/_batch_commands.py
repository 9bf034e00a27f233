"""The commands of batches."""

from __future__ import annotations

from typing import Final

from executionkit.cli._options import (
    ALWAYS,
    JSON,
    OUTPUT,
    PROVIDER,
    SAMPLING,
    Command,
    argument,
    flag,
    option,
)

__all__ = ("BATCH",)

_WHO: Final = PROVIDER[:3]
_ID: Final = argument("batch_id", "ID", "The batch.", needed=True)
_INPUT: Final = argument("input", "INPUT", "A file; `-` or nothing = standard input.")
_TEMPLATE: Final = option(
    "template",
    str | None,
    None,
    "The prompt, as for `map`. Left out: the field `prompt` or `messages`, or a text.",
    "--prompt",
    "-p",
    metavar="TEMPLATE",
)
_OVERWRITE: Final = flag("overwrite", "Replace the output file.", "--overwrite")
_WAITING: Final = (
    option(
        "interval",
        float,
        10.0,
        "Seconds between two looks at the batch.",
        "--interval",
        metavar="SECONDS",
        least=0.01,
    ),
    option(
        "timeout",
        float | None,
        None,
        "Seconds to wait for its end. Left out: 25 hours.",
        "--timeout",
        metavar="SECONDS",
        least=0.01,
    ),
)
_KEEPING: Final = (
    option(
        "journal",
        str | None,
        None,
        "Keep the batch in this file: the same command goes on with it, also after a "
        "crash at any moment.",
        "--journal",
        metavar="FILE",
    ),
    option(
        "run",
        str,
        "batch",
        "The name of this piece of work in the journal.",
        "--run",
        metavar="RUN",
    ),
    flag(
        "cancel_on_exit",
        "Ask the service to end the batch when the wait is left early.",
        "--cancel-on-exit",
    ),
)
_GROUP: Final = "batch"

BATCH: Final = (
    Command(
        "run",
        "_batch",
        "run_run",
        "Submit a batch, wait for its end, and write a line of JSON for each request.",
        (
            _INPUT,
            OUTPUT,
            _TEMPLATE,
            option(
                "batch_id",
                str | None,
                None,
                "Go on with this batch of the same input; nothing is submitted.",
                "--id",
                metavar="ID",
            ),
            *_KEEPING,
            _OVERWRITE,
            *_WAITING,
            *_WHO,
            *SAMPLING,
            JSON,
            *ALWAYS,
        ),
        _GROUP,
    ),
    Command(
        "submit",
        "_batch",
        "run_submit",
        "Submit a batch, and print its id.",
        (_INPUT, _TEMPLATE, *_WHO, *SAMPLING, JSON, *ALWAYS),
        _GROUP,
    ),
    Command(
        "status",
        "_batch",
        "run_status",
        "How far a batch is.",
        (_ID, *_WHO, JSON, *ALWAYS),
        _GROUP,
    ),
    Command(
        "wait",
        "_batch",
        "run_wait",
        "Wait until a batch is over.",
        (_ID, *_WAITING, *_WHO, JSON, *ALWAYS),
        _GROUP,
    ),
    Command(
        "results",
        "_batch",
        "run_results",
        "The results of a batch that is over: a line of JSON for each.",
        (
            _ID,
            OUTPUT,
            option(
                "input",
                str | None,
                None,
                "What the batch was made of: then lines come in its order, and those "
                "without a result too.",
                "--input",
                "-i",
                metavar="FILE",
            ),
            _TEMPLATE,
            _OVERWRITE,
            *_WHO,
            *SAMPLING,
            JSON,
            *ALWAYS,
        ),
        _GROUP,
    ),
    Command(
        "cancel",
        "_batch",
        "run_cancel",
        "End a batch early; what is done is kept.",
        (_ID, *_WHO, JSON, *ALWAYS),
        _GROUP,
    ),
)
