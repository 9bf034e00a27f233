"""Running a batch command again: the command in words, and the file that is there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executionkit.cli._batch_commands import BATCH
from executionkit.cli._console import UsageError
from executionkit.cli._lines import OutputFile, is_same_file

if TYPE_CHECKING:
    from executionkit.cli._job import Job

__all__ = ("command_words", "how_to_go_on", "output_file")


def command_words(job: Job, name: str, **changes: Any) -> str:
    """A `batch` command with the options of this one, as a shell takes it.

    Args:
        job: What runs.
        name: The command; it gets those options that it has.
        changes: Values instead of those that were given.
    """
    command = next(command for command in BATCH if command.name == name)
    values = {**job.values, **changes}
    words, last = ["executionkit", "batch", name], [""]
    for item in command.options:
        value = values.get(item.name)
        if value is None or value == item.default:
            continue
        if not item.flags:
            text = str(value)
            (last if text.startswith("-") else words).append(text)
        else:
            words += (
                [item.flags[0]] if item.kind is bool else [item.flags[0], str(value)]
            )
    if len(last) > 1:
        words += ["--", *last[1:]]
    return shlex.join(words)


def how_to_go_on(job: Job, name: str, batch_id: str) -> str:
    """What Ctrl-C says: the command that goes on with the batch, and that ends it."""
    go_on = command_words(job, name, batch_id=batch_id)
    if name == "run" and job["input"] in {None, "-"}:  # what was piped in is gone
        results = command_words(job, "results", batch_id=batch_id, template=None)
        go_on = f"{command_words(job, 'wait', batch_id=batch_id)} && {results}"
    end = command_words(job, "cancel", batch_id=batch_id)
    return f"batch {batch_id} goes on; `{go_on}` goes on with it, `{end}` ends it"


def output_file(job: Job) -> OutputFile | None:
    """The file that results go to; None = standard output.

    Raises:
        UsageError: When it is there, and is not to be replaced, or cannot be used.
    """
    if job["output"] is None:
        return None
    if is_same_file(job["input"], job["output"]):
        msg = "the output file is the input file; write to another one"
        raise UsageError(msg)
    path = Path(job["output"])
    is_replaced = bool(job["overwrite"])
    if not is_replaced and path.is_file() and path.stat().st_size:
        has_journal = job.values.get("journal") is not None
        is_replaced = has_journal and _is_of_a_batch(path)
        if not is_replaced:
            why = ", and holds no results of `batch`" if has_journal else ""
            msg = (
                f"`{path}` is there already{why}; give --overwrite to replace it, or "
                "write to another file"
            )
            raise UsageError(msg)
    return OutputFile(
        job["output"], resume=False, overwrite=is_replaced, retry_errors=False
    )


def _is_of_a_batch(path: Path) -> bool:
    """Whether an earlier run of `batch` has written it."""
    try:
        with path.open(encoding="utf-8") as file:
            row: Any = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, dict) and {"index", "custom_id", "status"} <= row.keys()
