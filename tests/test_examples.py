"""The examples run from a fresh checkout, and show what they say they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from executionkit import ProcessorConfig

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60
EXAMPLES = (
    "durable_order",
    "multi_tenant",
    "production_patterns",
    "slo_endpoint",
    "tool_agent",
)


def output_of(name: str) -> str:
    """What an example prints where nothing but the checkout is installed."""
    done = subprocess.run(
        [sys.executable, "-S", "-W", "error", str(ROOT / "examples" / f"{name}.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def assert_in_order(text: str, *parts: str) -> None:
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is not in {text[at:]!r}"
        at = found + len(part)


@pytest.mark.req("examples.bare")
def test_every_example_is_tested() -> None:
    there = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert there == {*EXAMPLES, "demo"}  # the demo needs its model: `tests/live`


@pytest.mark.req("recipe.slo")
def test_the_endpoint_keeps_its_limit_where_a_long_timeout_does_not() -> None:
    text = output_of("slo_endpoint")
    assert_in_order(
        text,
        "A long timeout, nothing else: p95 of 2 s MISSED",
        "p95 30.00 s",
        "640 requests, 640 calls of the service",
        "The recipe: p95 of 2 s kept",
        "640 requests",
    )
    bare, recipe = text.split("The recipe")
    answered = [
        sum(int(n) for n in re.findall(r"(\d+) (?:answered|cached)", part))
        for part in (bare, recipe)
    ]
    assert answered[1] >= 400  # of 512 that came while the service was there
    worst = re.search(r"worst ([\d.]+) s", recipe)
    assert worst is not None
    assert float(worst[1]) <= 2.0
    assert "TOOL_CIRCUIT_OPEN" in recipe


@pytest.mark.req("recipe.multi-tenant")
def test_tenants_have_their_own_tools_limits_and_caches() -> None:
    assert_in_order(
        output_of("multi_tenant"),
        "acme (premium)",
        "1 x acme: pages about cats",
        "1 x the sum of month 3",
        "globex (free)",
        "TOOL_NOT_FOUND",
        "globex sends 40 calls at once",
        "28 x BULKHEAD_FULL",  # two run, ten wait
        "acme asks again",
        "1 x cached",
        "another user of acme",
        "1 x acme: pages about cats",
    )


@pytest.mark.req("recipe.combined")
def test_all_patterns_work_together() -> None:
    assert_in_order(
        output_of("production_patterns"),
        "trace > guards > validation > cache > retry > breaker > rate_limit > bulkhead",
        "[6, 2, 3] (attempts 2, cached False)",
        "[6, 2, 3] (attempts 0, cached True)",
        "did you mean `path`?",
        "order-17 = 3 (written now)",
        "order-17 = 3 (written before)",
        "the tool was closed",
        "cut off after some lines",
        "sum     12",
        "store   total = 12",
        "audit   Tool 'web.fetch' was not run",
        "9 calls, 1 failed, 2 from the cache, 1 retries, ",
        " trace events",
    )


@pytest.mark.req("examples.agent")
def test_an_agent_is_guarded_and_asks_first() -> None:
    text = output_of("tool_agent")
    assert_in_order(
        text,
        '"api_key": "[REDACTED]"',
        "did you mean `number`?",
        "is not a public address",
        "blocked by approval: above 50",
        "34.90 paid back for order 17",
        "Order 17 is paid back.",
        "retries 1, from the cache 1",
        'refunds {"17": 34.9}',
    )
    assert "sk-live" not in text


@pytest.mark.req("examples.durable")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_an_order_survives_its_process_and_is_paid_once() -> None:
    text = output_of("durable_order")
    assert_in_order(
        text,
        "Process 1",
        "reserves a lamp",
        "pays, with the key",
        "killed: SIGKILL",
        "Process 2",
        "stops: workflow:0/pay:1 is in doubt",
        "Process 3",
        "ships from shelf 4, receipt 9",
        "done: {'item': 'a lamp', 'reserve': 'shelf 4', 'pay': 'receipt 9'",
        "Process 4",
        "done: ",
    )
    for word in ("reserves", "pays,", "ships"):
        assert text.count(word) == 1


@pytest.mark.req("config.documented")
def test_every_setting_is_in_the_document_with_its_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z_]+)` \|([^|]*)\|", text, re.MULTILINE))
    assert list(rows) == [item.name for item in fields(ProcessorConfig)]
    for item in fields(ProcessorConfig):
        default = item.metadata["default"]
        if isinstance(default, (dict, tuple)):
            shown = ""
        elif item.name.startswith("enable_") or default is False:
            shown = "off"
        else:
            number = isinstance(default, (int, float))
            shown = f"{default:g}" if number else str(default or "none")
        assert rows[item.name].strip() == shown, item.name
