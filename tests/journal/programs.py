"""Programs that are killed: run as a process that forks one child for each run.

It reads one JSON object a line, forks, runs the program named in it, and writes how the
child has ended. So a run costs a fork, not the start of an interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executionkit import (
    InDoubtError,
    Journal,
    Plan,
    PlanStep,
    Provider,
    RetryConfig,
    SQLiteJournalStore,
    Step,
    Tool,
    ToolProcessor,
    ToolRegistry,
    Workflow,
    current_journal,
    map_reduce,
    react_loop,
)

if TYPE_CHECKING:
    from executionkit import JournalEntry

LOADED = Path(sys.argv[1] if len(sys.argv) > 1 else "modules")
"""Where a run leaves the names of what it has loaded: loaded once, before later forks."""

PARAMETERS = {
    "type": "object",
    "properties": {"key": {"type": "string"}},
    "required": ["key"],
}


class KillingStore(SQLiteJournalStore):
    """Kills its process right before or right after a write.

    Args:
        path: The file.
        kill_at: Which moment, from 1: each write has one before and one after.
    """

    def __init__(self, path: Path, kill_at: int) -> None:
        super().__init__(path)
        self.moments = 0
        self._kill_at = kill_at

    def _moment(self) -> None:
        self.moments += 1
        if self.moments == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def put(self, run: str, entry: JournalEntry) -> None:
        self._moment()
        await super().put(run, entry)
        self._moment()

    async def delete(self, run: str, effect_id: str) -> None:
        self._moment()
        await super().delete(run, effect_id)
        self._moment()


class Outside:
    """The world: a ledger that only grows, and a server."""

    def __init__(self, folder: Path, url: str) -> None:
        self._ledger = folder / "ledger"
        self.provider = Provider(base_url=f"{url}/v1", model="m", api_key="k")

    def enter(self, key: str) -> str:
        """An effect: one line, with the idempotency key of the effect."""
        here = current_journal()
        assert here is not None
        file = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{key} {here.path} {here.idempotency_key}\n".encode())
        os.close(file)
        return f"done {key}"


async def react(outside: Outside, journal: Journal, *, runner: bool = False) -> Any:
    async def pay(key: str) -> str:
        return outside.enter(f"pay-{key}")

    async def note(key: str) -> str:
        return outside.enter(f"note-{key}")

    tools = [
        Tool("pay", "Pays once.", PARAMETERS, pay, side_effects="write"),
        Tool("note", "Notes.", PARAMETERS, note, idempotent=True),
    ]
    given: Any = tools
    if runner:
        registry = ToolRegistry()
        for tool in tools:
            registry.add(tool)
        given = ToolProcessor(registry)
    result = await react_loop(
        outside.provider,
        "Pay.",
        given,
        journal=journal,
        retry=RetryConfig(max_retries=0),
    )
    return [result.value, result.cost.llm_calls, result.metadata["tool_calls_made"]]


async def processor(outside: Outside, journal: Journal) -> Any:
    return await react(outside, journal, runner=True)


async def workflow(outside: Outside, journal: Journal) -> Any:
    def doing(name: str) -> Any:
        async def do(context: dict[str, Any]) -> list[str]:
            return [outside.enter(name), *sorted(context)]

        return do

    steps = [
        Step("p1", doing("p1")),
        Step("p2", doing("p2"), idempotent=True),
        Step("join", doing("join"), depends_on=("p1", "p2")),
        Step("side", doing("side"), depends_on=("p1",), idempotent=True),
        Step("end", doing("end"), depends_on=("join", "side")),
    ]
    result = await Workflow(steps).run({"given": 1}, journal=journal)
    return dict(result.outputs)


async def plan(outside: Outside, journal: Journal) -> Any:
    def doing(name: str) -> Any:
        async def do(context: dict[str, Any]) -> str:
            return outside.enter(name) + "".join(sorted(context))

        return do

    steps = [
        PlanStep("one", "1", doing("one")),
        PlanStep("two", "2", doing("two"), idempotent=True),
    ]
    return dict((await Plan(steps).execute(journal=journal)).outputs)


async def mapped(outside: Outside, journal: Journal) -> Any:
    result = await map_reduce(
        outside.provider,
        ["a", "b"],
        map_prompt_template="map {item}",
        reduce_prompt_template="reduce {mapped_outputs}",
        journal=journal,
        retry=RetryConfig(max_retries=0),
    )
    return [result.value, result.cost.llm_calls, result.cost.input_tokens]


PROGRAMS = {
    "react": react,
    "processor": processor,
    "workflow": workflow,
    "plan": plan,
    "mapped": mapped,
}


async def run(order: dict[str, Any]) -> dict[str, Any]:
    folder = Path(order["folder"])
    store = KillingStore(folder / "runs.db", order["kill_at"])
    outside = Outside(folder, order["url"])
    async with Journal(store, "r") as journal, outside.provider:
        for effect_id, value in order["resolve"].items():
            await journal.resolve(effect_id, value)
        for effect_id in order["retry"]:
            await journal.retry(effect_id)
        store.moments = 0
        try:
            value = await PROGRAMS[order["program"]](outside, journal)
        except InDoubtError as exc:
            return {"in_doubt": exc.effect_ids, "text": str(exc)}
        return {"value": value, "moments": store.moments}


def child(order: dict[str, Any]) -> None:
    """One run, in a process of its own; never returns."""
    code = 1
    try:
        outcome = asyncio.run(run(order))
        Path(order["folder"], "outcome").write_text(json.dumps(outcome))
        LOADED.write_text("\n".join(sorted(sys.modules)))
        code = 0
    finally:
        os._exit(code)


def load() -> None:
    """Load what the last run has loaded."""
    if not LOADED.exists():
        return
    for name in LOADED.read_text().split("\n"):
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    LOADED.unlink()


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        load()
        gc.freeze()  # what is never written to is never copied
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
