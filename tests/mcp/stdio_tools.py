"""Tools that do what a server over standard streams has to survive."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

from executionkit.tools.registry import create_registry


def noisy() -> str:
    """Prints, at every level at which one can."""
    print("printed")
    sys.stdout.write("written\n")
    sys.stdout.flush()
    os.write(1, b"written to the descriptor\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    return "quiet"


def child() -> str:
    """Runs a Python child that reads standard input to its end."""
    code = "import sys; print(len(sys.stdin.read()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
    return "read"


async def wait(path: str) -> str:
    """Waits for ever, and leaves a file when it is cancelled."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        with open(path, "w", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123
            file.write("cancelled")
        raise
    return ""


async def stubborn() -> str:
    """Does not let itself be cancelled."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


def asleep() -> str:
    """Blocks its thread."""
    time.sleep(60)
    return ""


async def big(size: int) -> str:
    """A long text."""
    return "x" * size


async def die() -> str:
    """Ends the process."""
    os._exit(7)


registry = create_registry(noisy, child, wait, stubborn, asleep, big, die)
