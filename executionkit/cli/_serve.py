"""`mcp serve`: the same as `python -m executionkit.mcp`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executionkit.cli._job import Job

__all__ = ("run_serve",)


def run_serve(job: Job) -> int:
    """See the table of commands."""
    from executionkit.mcp.__main__ import main

    names = ("tools", "http", "name")
    given = [f"--{name}={job[name]}" for name in names if job[name] is not None]
    given += [f"--allow-host={host}" for host in job["allow_host"] or ()]
    # Here standard output is the protocol, and the server keeps it clean by itself.
    sys.stdout = job.console.out
    return main(given)
