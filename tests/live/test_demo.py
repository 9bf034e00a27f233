"""The tour that `make demo` shows, as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("EXECUTIONKIT_")
    }
    return subprocess.run(
        [sys.executable, str(DEMO)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=80,
    )


@pytest.mark.req("live.demo")
def test_it_shows_every_pattern_and_what_it_cost(local: Any) -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("consensus", "structured", "react_loop", "Votes:", "Data:", "Tool:"):
        assert word in done.stdout
    total = re.search(r"total +(\d+) +(\d+) +(\d+)", done.stdout)
    assert total is not None
    assert all(int(number) > 0 for number in total.groups())
    assert "EXECUTIONKIT_BASE_URL" in done.stdout


@pytest.mark.req("live.demo")
def test_an_endpoint_that_is_not_there_is_said_in_one_line(local: Any) -> None:
    done = run(
        EXECUTIONKIT_BASE_URL="http://127.0.0.1:1/v1",
        EXECUTIONKIT_MODEL="m",
        EXECUTIONKIT_API_KEY="a-secret-key-1",
    )
    assert done.returncode == 1
    assert done.stderr.startswith("demo: ProviderConnectionError: ")
    assert "a-secret-key-1" not in done.stdout + done.stderr
