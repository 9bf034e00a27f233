"""Worker processes in a sandbox: what tools can reach, and what they can send."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executionkit.errors import ToolProcessorError
from executionkit.tools._isolation import sandbox as fences
from executionkit.tools._isolation.plain import read_plain
from executionkit.tools.strategies import Sandbox
from tests.tools import isolation_tools as tools
from tests.tools.isolation_help import Runner, children, running

pytestmark = [
    pytest.mark.usefixtures("_own_children"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


@pytest.fixture
async def fenced(folder: Path) -> AsyncIterator[Runner]:
    inside = str(folder / "open")
    async with running(sandbox=Sandbox(read=(inside,), write=(inside,))) as run:
        try:
            await run.strategy.warm()
        except ToolProcessorError as exc:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(exc))
        yield run


@pytest.mark.req("isolation.sandbox")
async def test_files_outside_are_out_of_reach(fenced: Runner, folder: Path) -> None:
    inside, outside = str(folder / "open" / "file"), str(folder / "closed" / "file")
    assert await fenced.value("reach", what="read", where=inside) == "open"
    assert await fenced.value("reach", what="start", where=inside) == "open\n"
    assert await fenced.value("reach", what="write", where=inside) == "7"
    for what in ("read", "write"):
        refused = await fenced("reach", what=what, where=outside)
        assert type(refused.exception) is PermissionError
    started = await fenced("reach", what="start", where=outside)
    assert "non-zero exit status" in (started.error or "")
    new = await fenced("reach", what="write", where=str(folder / "new"))
    assert type(new.exception) is PermissionError
    assert not (folder / "new").exists()
    assert await fenced.value("add_later", a=1, b=2) == 3
    assert (folder / "closed" / "file").read_text() == "closed"


@pytest.mark.req("isolation.sandbox")
@pytest.mark.parametrize("network", [False, True])
async def test_the_network_is_there_only_when_it_is_allowed(network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        async with running(sandbox=Sandbox(network=network, write=None)) as run:
            for what in ("tcp", "udp"):
                result = await run("reach", what=what, where=port)
                if "no sandbox" in (result.error or "") and not os.environ.get("CI"):
                    pytest.skip(result.error or "")
                if network:
                    assert result.result == "reached"
                else:
                    assert isinstance(result.exception, OSError)


async def test_other_processes_are_out_of_reach(fenced: Runner) -> None:
    result = await fenced("reach", what="signal", where=str(os.getpid()))
    if result.error is None:
        pytest.skip("this system's landlock knows no signals")
    assert type(result.exception) is PermissionError


@pytest.mark.req("isolation.sandbox")
async def test_a_worker_is_killed_through_its_fence(fenced: Runner) -> None:
    result = await fenced("spin", 0.2)
    assert result.error == "Timeout after 0.2s"
    assert await fenced.value("add", a=1, b=2) == 3
    assert result.pid not in children()


@pytest.mark.req("isolation.sandbox")
async def test_what_a_fenced_tool_sends_runs_no_code_here(
    fenced: Runner, folder: Path
) -> None:
    path = str(folder / "made")
    for result in (
        await fenced("bomb", how="give", path=path),
        await fenced("bombs", path=path),
    ):
        assert "plain data" in (result.error or "")
    raised = await fenced("bomb", how="raise", path=path)
    assert "BombError: boom" in (raised.error or "")
    assert not (folder / "made").exists()
    point = await fenced("mirror", point={"x": 1, "y": 2})
    assert "plain data" in (point.error or "")
    assert type((await fenced("fail", kind="key")).exception) is KeyError
    given = await fenced.value("plain")
    assert [*given][:5] == [1, "x", b"y", 2.5, None]
    assert given[7] == tools.plain()[7]


@pytest.mark.parametrize(
    "thing", [print, tools.Bomb("x"), tools.Point(1, 2), os.system, eval]
)
def test_only_plain_data_is_read(thing: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="plain data"):
        read_plain(pickle.dumps(thing))


@pytest.mark.req("isolation.sandbox")
async def test_a_fence_that_cannot_be_built_lets_no_worker_start(
    tmp_path: Path,
) -> None:
    missing = str(tmp_path / "missing")
    async with running(sandbox=Sandbox(write=(missing,), network=True)) as run:
        result = await run("add", a=1, b=2)
        assert "has no sandbox" in (result.error or "")
        assert result.attempts == 0
    assert not children()


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(fences.SandboxError, match="needs Linux"):
        fences.fence_in(None, [], False)


@pytest.mark.parametrize("bad", [{"read": "/tmp"}, {"write": 3}, {"write": "/tmp"}])
def test_a_sandbox_takes_tuples_of_paths(bad: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(bad))):
        Sandbox(**bad)
