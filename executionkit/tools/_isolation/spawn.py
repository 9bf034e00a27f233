"""Starts the interpreter of a worker."""

from __future__ import annotations

import os
import subprocess  # nosec B404 - starts this very interpreter
import sys
from typing import TYPE_CHECKING, Final

from executionkit.tools._isolation.strays import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

    from executionkit.tools._isolation.options import PoolOptions

__all__ = ("exit_descriptor", "spawn")

_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[3].split({sep!r}); "
    "from executionkit.tools._isolation.worker import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[4:])"
)


def exit_descriptor(pid: int) -> int | None:
    """A descriptor that tells of the end of a process; None where there is none.

    The socket alone does not: a child of the tool may have a copy of it.
    """
    make: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if make is None:
        return None
    try:
        return make(pid)
    except OSError:
        return None


def spawn(
    ends: tuple[int, int], main_script: str, options: PoolOptions, mark: str
) -> subprocess.Popen[bytes]:
    """Start a worker in a session of its own.

    Args:
        ends: Its ends of the socket, and of the pipe that ends with this process.
        main_script: Where the main script is, see `where_main_is`.
        options: Its environment and its sandbox.
        mark: What it and all that it starts are known by.

    Raises:
        OSError: When it cannot be started.
    """
    try:
        os.fstat(2)
        output = 2
    except OSError:
        output = subprocess.DEVNULL
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    boot = _BOOT.format(sep=os.pathsep)
    path = os.pathsep.join(map(str, sys.path))
    command = [sys.executable, *flags, "-c", boot]
    return subprocess.Popen(  # noqa: S603 # nosec B603 - this interpreter, our program
        [*command, *map(str, ends), path, main_script, options.fence],
        stdin=subprocess.DEVNULL,
        # What tools print must not get into what this process says to others.
        stdout=output,
        pass_fds=ends,
        start_new_session=True,
        env={**(os.environ if options.env is None else options.env), MARK: mark},
    )
