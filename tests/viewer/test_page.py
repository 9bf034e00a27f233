"""The page as a file: whole, alone, and safe."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executionkit.viewer import is_trace_page, render_trace, write_trace_page
from tests.viewer.traces import event, small, write

HOSTILE = (
    "</script><script>alert(1)</script><!--\u2028<img src=x onerror=alert(1)>%%DATA%%"
)


def data_of(page: str) -> Any:
    found = re.search(
        r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL
    )
    assert found is not None
    return json.loads(found[1])


@pytest.mark.req("viewer.alone")
def test_the_page_needs_nothing_and_lets_nothing_in() -> None:
    page = render_trace(small())
    assert not re.findall(
        r"(?:src|href|action)\s*=", page.split("<script", maxsplit=1)[0]
    )
    assert not re.search(r"https?://", page)
    assert "@import" not in page
    assert "url(" not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    program = page.rsplit("<script>", 1)[1].split("</script>")[0]
    style = page.split("<style>", 1)[1].split("</style>")[0]
    for text in (program, style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


@pytest.mark.req("viewer.alone")
@pytest.mark.parametrize(
    "where", ["title", "kind", "request_id", "key", "value", "name"]
)
def test_no_text_of_a_trace_becomes_a_part_of_the_page(where: str) -> None:
    found = event(0, "tool_call_end", "r", tool_name="t")
    plain = render_trace([found])
    title = None
    if where == "title":
        title = HOSTILE
    elif where in {"kind", "request_id"}:
        found[where] = HOSTILE
    elif where == "name":
        found["payload"]["tool_name"] = HOSTILE
    else:
        found["payload"]["note" if where == "value" else HOSTILE] = HOSTILE
    page = render_trace([found], title=title)
    for mark in ("<script", "<!--", "<img", "</script", "alert(1)</"):
        assert page.count(mark) == plain.count(mark), mark
    assert "\u2028" not in page[page.index("<script") :]
    shown = json.dumps(data_of(page), ensure_ascii=False)
    assert "onerror=alert(1)" in shown


@pytest.mark.req("viewer.alone")
def test_the_data_tells_who_belongs_to_whom_and_when() -> None:
    data = data_of(render_trace(small(), title="My run"))
    kinds = [data["kinds"][kind] for kind in data["k"]]
    names = [data["names"][name] for name in data["n"]]
    rows = list(zip(kinds, names, data["p"], data["s"], data["d"], strict=True))
    assert data["title"] == "My run"
    assert rows == [
        ("pattern", "react_loop", -1, 0, 2_000_000),
        ("model", "small-1", 0, 100_000, 500_000),
        ("wait", "permit", 3, 600_000, 200_000),
        ("tool", "search", 0, 600_000, 900_000),
        ("attempt", "attempt 1", 3, 800_000, 200_000),
        ("wait", "backoff", 3, 1_000_000, 400_000),
        ("attempt", "attempt 2", 3, 1_400_000, 100_000),
        ("model", "small-1", 0, 1_500_000, 500_000),
    ]
    assert [data["names"][error] for error in data["e"]].count("LLM_RATE_LIMITED") == 2


@pytest.mark.req("viewer.alone")
def test_the_page_is_small() -> None:
    assert len(render_trace([])) < 80_000


@pytest.mark.req("viewer.file")
def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.html"
    write_trace_page(small(), target)
    before = target.read_text("utf-8")
    assert is_trace_page(target)
    assert target.stat().st_mode & 0o777 == 0o600

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_trace_page([], target)
    assert target.read_text("utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.html"]
    assert not is_trace_page(tmp_path / "not there")


@pytest.mark.req("viewer.file")
def test_python_alone_makes_the_page(tmp_path: Path) -> None:
    write(tmp_path / "run.jsonl", small())

    def view(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "executionkit.viewer", *arguments]
        return subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    done = view("run.jsonl")
    assert (done.returncode, done.stdout) == (0, "run.html\n")
    assert is_trace_page(tmp_path / "run.html")
    assert view("run.jsonl", "run.jsonl").returncode == 2
    assert view("nothing.jsonl").returncode == 1
    assert view().returncode == 2
