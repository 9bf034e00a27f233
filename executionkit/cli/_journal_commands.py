"""The commands of journals."""

from __future__ import annotations

from typing import Final

from executionkit.cli._options import ALWAYS, JSON, Command, argument, flag, option

__all__ = ("JOURNAL",)

_FILE: Final = argument("file", "FILE", "The file of the journal.", needed=True)
_ID: Final = argument(
    "effect_id", "ID", "The effect, as the error names it.", needed=True
)
_RUN: Final = option("run", str | None, None, "The run.", "--run", "-r", metavar="RUN")
_FORCE: Final = flag(
    "force", "Also when its outcome is on record: that is lost.", "--force"
)
_GROUP: Final = "journal"

JOURNAL: Final = (
    Command(
        "list",
        "_journal",
        "run_list",
        "The runs in a journal; with --run, what is on record of that one.",
        (_FILE, _RUN, JSON, *ALWAYS),
        _GROUP,
    ),
    Command(
        "resolve",
        "_journal",
        "run_resolve",
        "Say what came of an effect that is in doubt.",
        (
            _FILE,
            _ID,
            _RUN,
            option(
                "value",
                str | None,
                None,
                "What it gave, as JSON.",
                "--value",
                metavar="JSON",
            ),
            option(
                "error",
                str | None,
                None,
                "That it failed, in words.",
                "--error",
                metavar="TEXT",
            ),
            _FORCE,
            JSON,
            *ALWAYS,
        ),
        _GROUP,
    ),
    Command(
        "retry",
        "_journal",
        "run_retry",
        "Say that an effect in doubt was not done: the next run does it.",
        (_FILE, _ID, _RUN, _FORCE, JSON, *ALWAYS),
        _GROUP,
    ),
)
