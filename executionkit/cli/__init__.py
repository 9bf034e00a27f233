"""The command line: `executionkit`, or `python -m executionkit`.

It needs the extra `cli`: `pip install 'executionkit[cli]'`. Importing this module
loads nothing of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ("main",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What stands after the program's name. None = those of the process,
            which then is ended by force when a signal alone cannot stop it.

    Returns:
        The exit code: 0 = done, 1 = the result is a failure, 2 = it was called in a
        wrong way (or the extra `cli` is missing), 3 = no provider is configured or a
        package is missing, 130 = Ctrl-C, 141 = the reader of the output has gone,
        143 = SIGTERM.
    """
    from executionkit.cli._early import EarlyStop

    is_program = arguments is None
    early = EarlyStop(
        is_program=is_program
    )  # until a command has begun, which has its own way to end
    try:
        with early:
            given = sys.argv[1:] if arguments is None else list(arguments)
            code = _main(given, is_program=is_program)
    except KeyboardInterrupt:
        code = 130
    return 128 + early.signum if early.signum else code


def _main(arguments: list[str], *, is_program: bool) -> int:
    from executionkit.errors import MissingExtraError, require

    try:
        for module in ("typer", "rich"):
            require(module, extra="cli")
    except MissingExtraError as exc:
        sys.stderr.write(f"executionkit: the command line needs more: {exc}\n")
        return 2
    from executionkit.cli._app import run

    return run(arguments, is_program=is_program)
