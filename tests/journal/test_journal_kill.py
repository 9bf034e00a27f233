"""A process that is killed at every write of its journal, and run again until it is done.

The ledger of the effects and the server of the model calls are outside of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.testing import ReceivedRequest, Reply, ScriptedServer, json_reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PROGRAMS = Path(__file__).parent / "programs.py"
SECONDS = 25
KILLED = -signal.SIGKILL


def tool_call(number: int, name: str, key: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps({"key": key})}
    return {"id": f"c{number}", "type": "function", "function": function}


def reply(content: str | None, *calls: dict[str, Any]) -> Reply:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    choice = {"message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    return json_reply({"choices": [choice], "usage": usage, "model": "m"})


def answer(request: ReceivedRequest) -> Reply:
    """A model without memory: the request alone says what comes next."""
    messages = request.json()["messages"]
    last = messages[-1]["content"]
    if last.startswith("map "):
        return reply(last.removeprefix("map ").upper())
    if last.startswith("reduce "):
        return reply(f"all of {last!r}")
    results = sum(message["role"] == "tool" for message in messages)
    if results == 0:
        return reply(None, tool_call(1, "pay", "a"), tool_call(2, "note", "b"))
    if results == 2:
        return reply(None, tool_call(3, "pay", "c"))
    return reply(f"paid after {last}")


class Lab:
    """Runs programs in processes, and reads what they left behind.

    Args:
        process: `programs.py` at work.
        server: What they ask.
        folder: Theirs.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], server: ScriptedServer, folder: Path
    ) -> None:
        self._process = process
        self.server = server
        self._root = folder
        self.folder = folder
        self._runs = 0

    def fresh(self) -> None:
        """A world where nothing was done."""
        self._runs += 1
        self.folder = self._root / str(self._runs)
        self.folder.mkdir()
        self.server.requests.clear()

    async def run(
        self,
        program: str,
        kill_at: int = 0,
        resolve: dict[str, Any] | None = None,
        retry: tuple[str, ...] = (),
    ) -> dict[str, Any] | None:
        """Run a program; None when it was killed."""
        order = {
            "program": program,
            "folder": str(self.folder),
            "url": self.server.url,
            "kill_at": kill_at,
            "resolve": resolve or {},
            "retry": retry,
        }
        code = await asyncio.to_thread(self._told, json.dumps(order))
        if code == KILLED:
            return None
        assert code == 0, f"the program failed: {code}"
        outcome: dict[str, Any] = json.loads((self.folder / "outcome").read_text())
        return outcome

    def _told(self, order: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n".encode())
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def entries(self) -> dict[str, str]:
        """The states of all that is on record."""
        if not (self.folder / "runs.db").exists():
            return {}
        with closing(sqlite3.connect(self.folder / "runs.db")) as db:
            return dict(db.execute("SELECT id, state FROM executionkit_journal_1"))

    def ledger(self) -> dict[str, list[str]]:
        """Place in the program -> idempotency key of each time it was done."""
        done: dict[str, list[str]] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in (self.folder / "ledger").read_text().splitlines():
                _, place, key = line.split(" ")
                done.setdefault(place, []).append(key)
        return done

    def requests(self) -> Counter[str]:
        """How often each model call was made, by what it asked."""
        return Counter(
            json.dumps(request.json()["messages"][1:] or request.json()["messages"])
            for request in self.server.requests
        )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a killed process loses nothing there."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all: what it has loaded need not be loaded again."""
    modules = tmp_path_factory.mktemp("programs") / "modules"
    with subprocess.Popen(
        [sys.executable, str(PROGRAMS), str(modules)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


@pytest.fixture
async def lab(process: Any, folder: Path) -> AsyncIterator[Lab]:
    async with ScriptedServer(answer) as server:
        yield Lab(process, server, folder)


async def finish(lab: Lab, program: str) -> Any:
    """Run again until it is done, as an operator would who looks at the ledger."""
    resolve: dict[str, Any] = {}
    retry: tuple[str, ...] = ()
    for _ in range(4):
        known = lab.ledger()
        outcome = await lab.run(program, resolve=resolve, retry=retry)
        assert outcome is not None
        if "in_doubt" not in outcome:
            return outcome["value"]
        doubts = outcome["in_doubt"]
        for place in doubts:
            assert lab.ledger().get(place) == known.get(place), "nothing is repeated"
            assert lab.entries()[place] == "started"
            assert place in outcome["text"]
        resolve = {place: OUTCOMES[place] for place in doubts if place in known}
        retry = tuple(place for place in doubts if place not in known)
    pytest.fail("there is doubt again and again")


OUTCOMES = {
    "react_loop:0/tool:0.0": "done pay-a",
    "react_loop:0/tool:1.0": "done pay-c",
    "workflow:0/p1:1": ["done p1", "given"],
    "workflow:0/join:1": ["done join", "given", "p1", "p2"],
    "workflow:0/end:1": ["done end", "given", "join", "p1", "p2", "side"],
    "plan:0/one:1": "done one",
}
"""What the effects give that may not be repeated, as the operator finds out."""


NAMES = ("react", "processor", "workflow", "plan", "mapped")


@pytest.mark.req("journal.killed", "WF-16")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL and no fork")
@pytest.mark.parametrize("program", NAMES)
async def test_killed_at_every_write_nothing_is_paid_or_done_twice(
    program: str, lab: Lab
) -> None:
    async with asyncio.timeout(SECONDS):
        lab.fresh()
        whole = await lab.run(program)
        assert whole is not None
        effects, calls = lab.ledger(), lab.requests()
        assert all(len(keys) == 1 for keys in effects.values())
        assert set(calls.values()) <= {1}
        # The same loop with another runner: a part of its moments is enough.
        step = 3 if program == "processor" else 1
        for moment in range(1, whole["moments"] + 1, step):
            await killed_at(moment, lab, program, whole["value"], effects, calls)


async def killed_at(
    moment: int,
    lab: Lab,
    program: str,
    value: Any,
    effects: dict[str, list[str]],
    calls: Counter[str],
) -> None:
    lab.fresh()
    assert await lab.run(program, moment) is None
    states, before, asked = lab.entries(), lab.ledger(), lab.requests()
    on_record = {place for place, state in states.items() if state == "finished"}
    open_ones = {place for place, state in states.items() if state == "started"}
    assert await finish(lab, program) == value
    after, asked_after = lab.ledger(), lab.requests()
    # Every effect was done, once; what may be repeated, and was in doubt, perhaps twice.
    assert after.keys() == effects.keys()
    for place, keys in after.items():
        assert set(keys) == set(effects[place]), "an effect keeps its key"
        doubtful = place in open_ones and place not in OUTCOMES
        assert len(keys) <= 1 + doubtful, (moment, place)
        if place in on_record:
            assert len(keys) == len(before[place]) == 1
    # Every answer was paid for once; one that had not arrived, perhaps twice.
    assert asked_after.keys() == calls.keys()
    answered = sum("model" in place or "map_" in place for place in on_record)
    twice = [call for call, count in asked_after.items() if count > 1]
    assert max(asked_after.values(), default=1) <= 2
    assert len(twice) <= len(asked) - answered


@pytest.mark.req("journal.killed", "WF-16")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL and no fork")
@pytest.mark.parametrize("program", ["react", "workflow"])
async def test_killed_in_every_run_it_is_done_in_the_end(
    program: str, lab: Lab
) -> None:
    """Each run comes a little further: nothing that was reached is lost."""
    async with asyncio.timeout(SECONDS):
        lab.fresh()
        whole = await lab.run(program)
        assert whole is not None
        effects = lab.ledger()
        lab.fresh()
        for _ in range(40):
            outcome = await lab.run(program, 4)
            if outcome is not None and "in_doubt" in outcome:
                assert await finish(lab, program) == whole["value"]
                break
            if outcome is not None:
                assert outcome["value"] == whole["value"]
                break
        else:
            pytest.fail("it is never done")
        assert {place: set(keys) for place, keys in lab.ledger().items()} == {
            place: set(keys) for place, keys in effects.items()
        }
        for place in OUTCOMES.keys() & effects.keys():
            assert len(lab.ledger()[place]) == 1
