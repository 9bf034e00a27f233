"""`journal`: what is on record, and an operator's word on what is in doubt."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executionkit.approval import ApprovalGate, MemoryApprovalStore
from executionkit.errors import ApprovalPendingError
from executionkit.journal import EffectState, Journal, SQLiteJournalStore
from executionkit.workflow import Step, Workflow

pytestmark = pytest.mark.req("cli.journal")
FILE = "runs.db"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


async def _crashed(path: Path) -> None:
    """A run that died in the middle of its second step."""
    steps = [Step("a", lambda _c: "A"), Step("b", lambda _c: "B", ("a",))]
    store = SQLiteJournalStore(path)
    async with Journal(store, "r") as journal:
        await Workflow(steps).run(journal=journal)
        found = await store.get("r", "workflow:0/b:1")
        assert found is not None
        broken = replace(found, state=EffectState.STARTED, outcome=None, ended_at=None)
        await store.put("r", broken)


async def _outputs(path: Path) -> Any:
    steps = [Step("a", lambda _c: "A"), Step("b", lambda _c: "again", ("a",))]
    async with Journal.open(path, run="r") as journal:
        return dict((await Workflow(steps).run(journal=journal)).outputs)


@pytest.fixture
def path(folder: Path) -> Path:
    asyncio.run(_crashed(folder / FILE))
    return folder / FILE


def test_it_lists_runs_and_what_is_on_record_of_one(invoke: Any, path: Path) -> None:
    done = invoke("journal", "list", FILE)
    assert done.exit_code == 0
    assert re.fullmatch(rf"r: 2 finished, 1 started; last at {TIME}\n", done.stdout)
    done = invoke("journal", "list", FILE, "--json")
    assert json.loads(done.stdout) == {
        "run": "r",
        "states": {"finished": 2, "started": 1},
    }
    done = invoke("journal", "list", FILE, "--run", "r")
    shown = rf"workflow:0/a:1  finished  {TIME} \+\d+\.\d{{3}}s  step a, attempt 1"
    assert re.fullmatch(shown, done.stdout.splitlines()[1])
    shown = rf"workflow:0/b:1  started  {TIME}  step b, attempt 1"
    assert re.fullmatch(shown, done.stdout.splitlines()[2])
    rows = [
        json.loads(line)
        for line in invoke(
            "journal", "list", FILE, "-r", "r", "--json"
        ).stdout.splitlines()
    ]
    assert [row["state"] for row in rows] == ["finished", "finished", "started"]
    assert rows[2]["id"] == "workflow:0/b:1"
    assert "outcome" not in rows[0]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (("resolve", "--value", '"by hand"'), "by hand"),
        (("resolve", "--value", '{"x": [1]}'), {"x": [1]}),
        (("retry",), "again"),
    ],
    ids=str,
)
def test_an_operator_says_what_came_of_it(
    invoke: Any, path: Path, word: tuple[str, ...], value: Any
) -> None:
    command, *more = word
    done = invoke("journal", command, FILE, "workflow:0/b:1", "--run", "r", *more)
    told = "forgotten: workflow:0/b:1  started  step b, attempt 1\n"
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (told if command == "retry" else "")
    assert asyncio.run(_outputs(path)) == {"a": "A", "b": value}


def test_it_says_in_json_what_it_has_done(invoke: Any, path: Path) -> None:
    asked = (FILE, "workflow:0/b:1", "--run", "r", "--json")
    done = invoke("journal", "resolve", *asked, "--value", "1")
    assert json.loads(done.stdout) == {"id": "workflow:0/b:1", "state": "finished"}
    done = invoke("journal", "retry", *asked)
    assert (done.exit_code, done.stderr.count("--force")) == (1, 1)
    assert asyncio.run(_outputs(path))["b"] == 1
    done = invoke("journal", "retry", *asked, "--force")
    assert json.loads(done.stdout) == {
        "id": "workflow:0/b:1",
        "state": "forgotten",
        "forgotten": ["workflow:0/b:1"],
    }
    assert asyncio.run(_outputs(path))["b"] == "again"
    done = invoke("journal", "resolve", *asked, "--value", "2", "--force")
    assert json.loads(done.stdout)["state"] == "finished"
    assert asyncio.run(_outputs(path))["b"] == 2


def test_that_it_failed_is_an_outcome_too(invoke: Any, path: Path) -> None:
    more = ("workflow:0/b:1", "--run", "r", "--error", "no money")
    assert invoke("journal", "resolve", FILE, *more).exit_code == 0
    with pytest.raises(Exception, match="no money"):
        asyncio.run(_outputs(path))


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("list", "none.db"), "there is no file", 2),
        (("list", FILE, "--run", "s"), "nothing on record", 2),
        (("retry", FILE, "x"), "--run", 2),
        (("retry", FILE, "x", "--run", "r"), "no effect 'x'", 1),
        (("resolve", FILE, "x", "--run", "r"), "--value JSON", 2),
        (("resolve", FILE, "x", "-r", "r", "--value", "{"), "must be JSON", 2),
        (("resolve", FILE, "x", "--value", "1", "--error", "e"), "--value JSON", 2),
        (
            ("resolve", FILE, "workflow:0/a:1", "-r", "r", "--value", "1"),
            "is finished",
            1,
        ),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_told(
    invoke: Any, path: Path, arguments: tuple[str, ...], words: str, code: int
) -> None:
    done = invoke("journal", *arguments)
    assert done.exit_code == code, done.stderr
    assert words in done.stderr
    assert path.is_file()


def test_an_approval_that_waits_is_shown_as_such(invoke: Any, folder: Path) -> None:
    async def parked() -> None:
        steps = [Step("a", lambda _c: "A")]
        gate = ApprovalGate.park_all(MemoryApprovalStore())
        async with Journal.open(folder / FILE, run="r") as journal:
            with pytest.raises(ApprovalPendingError):
                await Workflow(steps).run(journal=journal, approval_gate=gate)

    asyncio.run(parked())
    done = invoke("journal", "list", FILE)
    assert done.stdout.startswith("r: 1 finished, 1 parked; last at 2")
    done = invoke("journal", "list", FILE, "--run", "r")
    assert "workflow:0/a:approval  parked  2" in done.stdout
    done = invoke("journal", "list", FILE, "--run", "r", "--json")
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["state"], row["parked"]) == ("given_up", True)


async def test_a_run_that_has_begun_is_no_mistake(invoke: Any, folder: Path) -> None:
    def ask(run: str) -> Any:
        return invoke("journal", "list", FILE, "--run", run)

    async with Journal.open(folder / FILE, run="r"):
        done = await asyncio.to_thread(ask, "r")
        assert (done.exit_code, done.stdout) == (0, "")
        assert "'r' has begun" in done.stderr
        other = await asyncio.to_thread(ask, "s")
        assert other.exit_code == 2
    assert (await asyncio.to_thread(ask, "r")).exit_code == 2
