"""An order that survives its process: killed in the middle, run again, never paid twice.

    PYTHONPATH=. python3 examples/durable_order.py

The same program runs in four processes, one after the other. The first one is killed
(SIGKILL) in the middle of a step that must not be repeated; the second one stops and says
so; an operator tells what became of it, and the third one goes on from there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from executionkit import InDoubtError, Journal, Step, Workflow, current_journal


def die() -> None:
    """As when the machine loses its power."""
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def order(*, dies: bool) -> Workflow:
    """The program: the same in each process, but for the accident."""

    async def reserve(context: dict[str, Any]) -> str:
        print(f"  reserves {context['item']}")
        return "shelf 4"

    async def pay(_context: dict[str, Any]) -> str:
        journal = current_journal()
        assert journal is not None
        print(f"  pays, with the key {journal.idempotency_key[:6]}...")
        if dies:
            die()  # the money is gone, and nobody has written it down
        return "receipt 9"

    async def ship(context: dict[str, Any]) -> str:
        print(f"  ships from {context['reserve']}, {context['pay']}")
        return "parcel 3"

    return Workflow(
        [
            Step("reserve", reserve, idempotent=True),
            Step("pay", pay, depends_on=("reserve",)),
            Step("ship", ship, depends_on=("pay",)),
        ]
    )


async def run(file: str, *, dies: bool) -> None:
    async with Journal.open(file, run="order-17") as journal:
        try:
            result = await order(dies=dies).run({"item": "a lamp"}, journal=journal)
        except InDoubtError as doubt:
            print(f"  stops: {doubt.effect_ids[0]} is in doubt, nothing was done")
        else:
            print(f"  done: {dict(result.outputs)}")


async def resolve(file: str, effect_id: str, outcome: object) -> None:
    async with Journal.open(file, run="order-17") as journal:
        await journal.resolve(effect_id, outcome)


def process(file: Path, *more: str) -> None:
    """The program in a process of its own."""
    command = [sys.executable, *sys.orig_argv[1:], str(file), *more]
    done = subprocess.run(command, check=False)
    if done.returncode:
        print(f"  killed: {signal.Signals(-done.returncode).name}", flush=True)


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "orders.db")
        print("Process 1 is killed while it pays", flush=True)
        process(file, "dies")
        print("Process 2 does not pay again", flush=True)
        process(file)
        print("The operator finds the receipt at the bank", flush=True)
        asyncio.run(resolve(str(file), "workflow:0/pay:1", "receipt 9"))
        print("Process 3 goes on where it was", flush=True)
        process(file)
        print("Process 4 has nothing to do", flush=True)
        process(file)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(run(sys.argv[1], dies="dies" in sys.argv))
    else:
        main()
