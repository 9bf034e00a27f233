"""The commands of traces."""

from __future__ import annotations

from typing import Final

from executionkit.cli._options import ALWAYS, JSON, Command, Option, flag, option

__all__ = ("TRACE",)

_FILES: Final = Option(
    "files",
    list[str],
    ...,
    "Files of JSON lines, as JsonlTraceSink writes them; `-` = standard input.",
    (),
    "FILE...",
)
_PRICES: Final = option(
    "prices",
    str | None,
    None,
    "Money for a million tokens in, and out, for calls that do not say their cost.",
    "--prices",
    metavar="IN,OUT",
)
_GROUP: Final = "trace"

TRACE: Final = (
    Command(
        "view",
        "_trace",
        "run_view",
        "Make one HTML page of a trace: a timeline that needs no network.",
        (
            _FILES,
            option(
                "output",
                str | None,
                None,
                "The page; `-` = standard output. Left out: the file's name with .html.",
                "--output",
                "-o",
                metavar="FILE",
            ),
            option("title", str | None, None, "What stands above it.", "--title"),
            flag("open", "Show it in the browser.", "--open"),
            flag("overwrite", "Replace a file that is no such page.", "--overwrite"),
            _PRICES,
            JSON,
            *ALWAYS,
        ),
        _GROUP,
    ),
    Command(
        "summary",
        "_trace",
        "run_summary",
        "The numbers of a trace: calls, tokens, cost, waits, errors.",
        (_FILES, _PRICES, JSON, *ALWAYS),
        _GROUP,
    ),
)
