"""Traces to look at: events by the documented form, made from nothing but numbers."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START = 1_780_000_000.0


def event(time: float, kind: str, request: str | None = None, **payload: Any) -> Any:
    return {
        "time": START + time,
        "kind": kind,
        "request_id": request,
        "payload": payload,
    }


def small() -> list[Any]:
    """A loop: two model calls, and a tool that failed once and waited twice."""
    loop, first, tool, last = (f"{n:016x}" for n in (1, 2, 3, 4))
    usage: dict[str, Any] = {"input_tokens": 300, "output_tokens": 30, "llm_calls": 2}
    model: dict[str, Any] = {"model": "small-1", "provider": "here", "parent_id": loop}
    return [
        event(0.0, "pattern_start", "r1", span_id=loop, pattern="react_loop"),
        event(0.1, "llm_call_start", "r1", span_id=first, **model),
        event(
            *(0.6, "llm_call_end", "r1"),
            **{"span_id": first, "duration": 0.5, "attempts": 1, **model},
            input_tokens=100,
            output_tokens=10,
            usd=0.25,
        ),
        event(
            *(0.6, "tool_call_start", "r1"),
            span_id=tool,
            parent_id=loop,
            tool_name="search",
            tool_call_id="c1",
            arguments={"query": "cats"},
        ),
        event(0.8, "wait", "r1", parent_id=tool, reason="permit", duration=0.2),
        event(
            *(1.0, "attempt", "r1"),
            parent_id=tool,
            attempt=1,
            duration=0.2,
            error="TOOL_TIMEOUT",
        ),
        event(1.4, "wait", "r1", parent_id=tool, reason="backoff", duration=0.4),
        event(1.5, "attempt", "r1", parent_id=tool, attempt=2, duration=0.1),
        event(
            *(1.5, "tool_call_end", "r1"),
            span_id=tool,
            parent_id=loop,
            tool_name="search",
            tool_call_id="c1",
            duration=0.9,
            attempts=2,
            cached=False,
        ),
        event(1.5, "llm_call_start", "r1", span_id=last, **model),
        event(
            *(2.0, "llm_call_error", "r1"),
            **{"span_id": last, "duration": 0.5, "attempts": 1, **model},
            error_type="RateLimitError",
            error_code="LLM_RATE_LIMITED",
        ),
        event(
            *(2.0, "pattern_end", "r1"),
            span_id=loop,
            pattern="react_loop",
            duration=2.0,
            cost=usage,
            error="LLM_RATE_LIMITED",
        ),
    ]


def many(count: int) -> Iterator[Any]:
    """`count` events of runs that overlap; the same ones each time."""
    return itertools.islice(_endless(), count)


def _endless() -> Iterator[Any]:
    draw = random.Random(7)
    ids = (f"{n:016x}" for n in itertools.count(1))
    time = 0.0
    while True:
        loop, now = next(ids), time
        request = f"request {loop}"
        yield event(now, "pattern_start", request, span_id=loop, pattern="react_loop")
        for number in range(6):
            call = next(ids)
            facts: dict[str, Any] = {
                "span_id": call,
                "parent_id": loop,
                "tool_name": f"tool{number}",
            }
            facts["tool_call_id"] = call
            yield event(now, "tool_call_start", request, **facts)
            took = draw.uniform(0.01, 0.5)
            yield event(
                *(now + took / 2, "wait", request),
                parent_id=call,
                reason="slot",
                duration=took / 2,
            )
            now += took
            if draw.random() < 0.02:
                facts["error"] = "TOOL_TIMEOUT"
            yield event(now, "tool_call_end", request, duration=took, **facts)
        yield event(now, "pattern_end", request, span_id=loop, pattern="react_loop")
        time += 0.3


def write(path: Path, events: Any) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in events), "utf-8")
    return path
