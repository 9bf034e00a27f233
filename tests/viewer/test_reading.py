"""Reading traces, and adding them up."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit import JsonlTraceSink, MemoryTraceSink, Prices, consensus
from executionkit._redact import redact_value
from executionkit.engine.retry import RetryConfig
from executionkit.errors import RateLimitError
from executionkit.testing import FakeClock, ScriptedProvider
from executionkit.viewer import render_trace, summarize_trace
from executionkit.viewer._page import TracePage, _parents
from executionkit.viewer._records import _NAMES, _NUMBERS, Reader
from executionkit.viewer._spans import Pairing, Span
from tests.viewer.traces import event, many, small, write

SECRET = "sk-live-4242424242424242abcdefgh"


def spans_of(events: Any, **options: Any) -> list[Span]:
    pairing = Pairing(**options)
    found = [s for r in Reader().records(events) for s in pairing.feed(r)]
    return [*found, *pairing.finish()]


@pytest.mark.req("viewer.summary")
def test_a_trace_is_added_up() -> None:
    summary = summarize_trace(small())
    assert (summary.events, summary.skipped, summary.cut) == (12, 0, False)
    assert summary.seconds == 2.0
    model, tool = summary.model_calls, summary.tool_calls
    assert (model.count, model.errors, model.input_tokens) == (2, 1, 100)
    assert (model.output_tokens, model.cost, model.p50) == (10, 0.25, 0.5)
    assert (tool.count, tool.errors, tool.attempts, tool.longest) == (1, 0, 2, 0.9)
    assert (summary.waits.count, round(summary.waits.seconds, 6)) == (2, 0.6)
    assert [group.name for group in summary.by_wait] == ["permit", "backoff"]
    assert summary.failed_attempts == 1
    assert dict(summary.errors) == {"LLM_RATE_LIMITED": 2}
    assert summary.error_count == 2
    assert summary.by_pattern[0].input_tokens == 300
    assert [group.name for group in summary.by_model] == ["small-1"]
    json.dumps(summary.as_dict(), allow_nan=False)


@pytest.mark.req("viewer.summary")
def test_prices_count_for_calls_that_do_not_say_their_cost() -> None:
    events = small()
    del events[2]["payload"]["usd"]
    assert summarize_trace(events).model_calls.cost is None
    summary = summarize_trace(events, prices=Prices(input=10, output=100))
    assert summary.model_calls.cost == pytest.approx(0.002)


@pytest.mark.req("viewer.summary")
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_percentiles_are_values_of_the_trace(times: list[float]) -> None:
    events = [
        event(number, "tool_call_end", None, tool_name="t", duration=value)
        for number, value in enumerate(times)
    ]
    tool = summarize_trace(events).tool_calls
    ordered = sorted(times)
    assert tool.p50 == ordered[math.ceil(len(times) / 2) - 1]
    assert tool.p95 == ordered[math.ceil(0.95 * len(times)) - 1]
    assert tool.longest == ordered[-1]


@pytest.mark.req("viewer.tolerant")
def test_what_is_no_event_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    good = json.dumps(event(1, "wait", reason="permit", duration=1))
    odd = ["", "  ", "nonsense", "[1]", "{}", '{"kind": 1}', "[" * 100_000, '"\ud800"']
    lines = "\n".join(["\ufeff" + good, *odd, good, good[:40]])
    file = tmp_path / "t.jsonl"
    file.write_bytes(lines.encode("utf-8", "surrogatepass"))
    summary = summarize_trace(file)
    assert (summary.events, summary.skipped, summary.cut) == (2, 6, True)
    assert "</html>" in render_trace(file)


@pytest.mark.req("viewer.tolerant")
def test_a_line_without_end_is_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executionkit.viewer._records._MAX_LINE", 200)
    long = json.dumps(event(1, "wait", reason="x" * 1000))
    good = json.dumps(event(2, "wait", reason="slot", duration=1))
    file = tmp_path / "t.jsonl"
    file.write_text(f"{long}\n{good}\n{long}", "utf-8")
    summary = summarize_trace(file)
    assert (summary.events, summary.skipped) == (1, 2)


@pytest.mark.req("viewer.tolerant")
@settings(max_examples=60)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["llm_call_start", "x_end", "wait", "y"])},
            optional={
                "time": st.none() | st.floats() | st.integers() | st.text(),
                "request_id": st.none() | st.text() | st.integers(),
                "payload": st.none()
                | st.dictionaries(
                    st.sampled_from(
                        ["span_id", "parent_id", "duration", "cost", "error", "call_id"]
                    )
                    | st.text(max_size=3),
                    st.none()
                    | st.booleans()
                    | st.floats()
                    | st.integers()
                    | st.text()
                    | st.lists(st.integers(), max_size=2)
                    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
                    max_size=4,
                ),
            },
        ),
        max_size=8,
    )
)
def test_any_events_make_a_page(events: list[Any]) -> None:
    page = TracePage()
    summary = page.read(events)
    assert summary.events == len(events)
    json.dumps(summary.as_dict(), allow_nan=False)
    assert page.html().rstrip().endswith("</html>")


@pytest.mark.req("viewer.tolerant")
def test_starts_without_ends_and_ends_without_starts() -> None:
    events = small()
    lost = [item for item in events if item["kind"] != "pattern_end"][2:]
    found = {span.name: span for span in spans_of(lost)}
    assert found["search"].seconds == 0.9
    orphans = [span for span in spans_of(lost) if span.is_orphan]
    assert [(span.kind, round(span.seconds or 0, 6)) for span in orphans] == [
        ("model", 0.5)
    ]
    begun = spans_of(events[:1])
    assert [(span.name, span.end, span.seconds) for span in begun] == [
        ("react_loop", None, None)
    ]
    assert summarize_trace(events[:2]).model_calls.unfinished == 1


@pytest.mark.req("viewer.tolerant")
def test_older_events_pair_by_what_they_name() -> None:
    events = [
        event(0, "llm_call_start", "r", call_id="a"),
        event(0, "llm_call_start", "r", call_id="b"),
        event(1, "tool_call_start", "r", tool_name="t", tool_call_id="c"),
        event(2, "workflow_step_start", "r", step="s"),
        event(3, "llm_call_error", "r", call_id="a", error_type="X"),
        event(4, "llm_call_end", "r", call_id="b"),
        event(5, "tool_call_end", "r", tool_name="t", tool_call_id="c"),
        event(6, "workflow_step_end", "r", step="s"),
        event(7, "workflow_step_end", "other", step="s"),
    ]
    found = [(s.kind, s.name, s.seconds, s.error) for s in spans_of(events)]
    assert found == [
        ("model", "model call", 4.0, None),
        ("tool", "t", 4.0, None),
        ("step", "s", 4.0, None),
        ("step", "s", 0.0, None),
        ("model", "model call", 3.0, "X"),  # it might have been tried again
    ]


@pytest.mark.req("viewer.pairs-attempts")
@pytest.mark.parametrize("replies", [["a"], [1, "a"], [1, 1, "a"], [1, 1, 1]])
@pytest.mark.parametrize("has_ids", [True, False])
async def test_the_attempts_of_a_model_call_are_one_call(
    replies: list[Any], auto_clock: FakeClock, *, has_ids: bool
) -> None:
    """As the library writes them: a pair of events for each attempt."""
    sink = MemoryTraceSink()
    failures = [RateLimitError("busy") if item == 1 else item for item in replies]
    provider = ScriptedProvider([*failures, "b"])
    retry = RetryConfig(max_retries=len(replies) - 1)
    with suppress(RateLimitError):
        await consensus(provider, "?", num_samples=1, retry=retry, trace=sink)
    events: Any = [
        {"time": e.time, "kind": e.kind, "payload": dict(e.payload)}
        for e in sink.events
    ]
    for at in events if not has_ids else ():
        at["payload"].pop("span_id", None)
        at["payload"].pop("parent_id", None)
    is_lost, count = replies[-1] == 1, len(replies)
    spans = spans_of(events)
    (call,) = [span for span in spans if span.kind == "model"]
    tries = [span for span in spans if span.kind == "attempt"]
    waits = [span for span in spans if span.kind == "wait"]
    assert len(tries) == (count if count > 1 else 0)
    assert len(waits) == count - 1
    assert (call.error is not None, call.count("attempts")) == (is_lost, count)
    waited = sum(span.seconds or 0.0 for span in waits)
    assert call.seconds == pytest.approx(waited, abs=0.01)
    failed = [span.error is not None for span in tries]
    assert failed == ([True] * (count - 1) + [is_lost] if count > 1 else [])
    assert [span.name for span in tries] == [
        f"attempt {n + 1}" for n in range(len(tries))
    ]
    if has_ids:  # else nothing says that it belongs to the call
        retries = [span for span in spans if span.kind == "event"]
        assert [span.name for span in retries] == ["llm_call_retry"] * (count - 1)
        assert {span.parent_id for span in retries} <= {call.id}
        assert {span.id for span in retries} <= {None}
    for span in (*tries, *waits):
        assert span.parent_id == call.id
        assert span.end is not None
        assert call.end is not None
        assert call.start <= span.start + 0.01
        assert span.end <= call.end + 0.01
    summary = summarize_trace(events)
    assert summary.model_calls.count == 1
    assert summary.model_calls.errors == is_lost
    assert summary.model_calls.attempts == count
    assert summary.failed_attempts == sum(failed)


@pytest.mark.req("viewer.pairs-attempts", "viewer.tolerant")
def test_calls_that_failed_for_good_fill_no_memory() -> None:
    events: list[Any] = []
    for n in range(50):
        ids = {"call_id": f"c{n}", "span_id": f"{n:016x}", "attempt": 1}
        events.append(event(n, "llm_call_start", "r", **ids))
        events.append(event(n, "llm_call_error", "r", error_type="X", **ids))
    pairing = Pairing(max_open=10)
    reader = Reader()
    early = [span for record in reader.records(events) for span in pairing.feed(record)]
    assert len(early) == 40
    assert len([*early, *pairing.finish()]) == 50


@pytest.mark.req("viewer.replayed")
def test_what_a_journal_gave_back_counts_apart() -> None:
    again = [
        {**item, "payload": {**item["payload"], "replayed": True}}
        for item in small()
        if item["kind"].startswith(("llm_call", "tool_call"))
    ]
    summary = summarize_trace([*small(), *again], prices=Prices(input=10, output=100))
    alone = summarize_trace(small(), prices=Prices(input=10, output=100))
    assert (summary.model_calls.replayed, summary.tool_calls.replayed) == (2, 1)
    for name in ("count", "errors", "input_tokens", "cost", "attempts", "p95"):
        for group in ("model_calls", "tool_calls"):
            found = getattr(getattr(summary, group), name)
            assert found == getattr(getattr(alone, group), name)
    assert summary.errors == alone.errors
    assert "from the journal" in render_trace(again)


@pytest.mark.req("viewer.tolerant")
def test_no_more_than_so_many_are_open_at_once() -> None:
    events = [event(n, "x_start", None, span_id=f"{n:016x}") for n in range(50)]
    assert len(spans_of(events, max_open=10)) == 50


@pytest.mark.req("viewer.tolerant")
def test_circles_of_parents_are_cut_open() -> None:
    a, b = "a" * 16, "b" * 16
    spans = spans_of(
        [
            event(0, "x_start", None, span_id=a, parent_id=b),
            event(0, "x_start", None, span_id=b, parent_id=a),
            event(0, "x_start", None, span_id="c" * 16, parent_id="c" * 16),
        ]
    )
    parents = _parents(spans)
    assert sorted(parents) == [-1, -1, 0] or sorted(parents) == [-1, -1, 1]


@pytest.mark.req("viewer.tolerant")
@pytest.mark.parametrize("source", [None, 1, b"x", {"kind": "x"}])
def test_another_source_is_refused(source: Any) -> None:
    with pytest.raises(TypeError, match="`source` must be a path"):
        summarize_trace(source)


@pytest.mark.req("viewer.summary")
async def test_a_real_trace_from_file_and_memory_is_the_same(tmp_path: Path) -> None:
    memory = MemoryTraceSink()
    with JsonlTraceSink(tmp_path / "t.jsonl") as sink:

        def both(item: Any) -> None:
            sink(item)
            memory(item)

        await consensus(ScriptedProvider(["a"] * 3), "?", num_samples=3, trace=both)
    summary = summarize_trace(tmp_path / "t.jsonl")
    assert summary.as_dict() == summarize_trace(memory.events).as_dict()
    assert (summary.model_calls.count, summary.model_calls.errors) == (3, 0)
    assert summary.by_pattern[0].name == "consensus"
    spans = spans_of(memory.events)
    pattern = next(span for span in spans if span.kind == "pattern")
    assert {s.parent_id for s in spans if s.kind == "model"} == {pattern.id}
    assert not any(span.is_orphan or span.end is None for span in spans)


@pytest.mark.req("viewer.tolerant")
def test_several_files_and_standard_input_are_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = small()
    one = write(tmp_path / "1.jsonl", events[:5])
    two = write(tmp_path / "2.jsonl", events[5:])
    whole = summarize_trace(events).as_dict()
    assert summarize_trace([one, two]).as_dict() == whole
    with one.open(encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert summarize_trace(["-", os.fspath(two)]).as_dict() == whole


@pytest.mark.req("viewer.no-secrets")
@pytest.mark.parametrize("key", sorted(_NUMBERS | _NAMES))
def test_plain_keys_are_no_secret_names(key: str) -> None:
    assert redact_value({key: 1}) == {key: 1}
    assert redact_value({key: "word"}) == {key: "word"}


@pytest.mark.req("viewer.no-secrets")
@pytest.mark.parametrize(
    "change",
    [
        {"kind": f"x {SECRET}"},
        {"request_id": SECRET},
        {"payload": {"model": SECRET}},
        {"payload": {"error": f"401 for {SECRET}"}},
        {"payload": {"arguments": {"deep": [{"note": f"Bearer {SECRET}"}]}}},
        {"payload": {"x" * 30_000: SECRET, "note": "y" * 9000 + SECRET}},
        {"payload": {"note": "z" * 4090 + SECRET}},
        {"payload": {SECRET: 1}},
        {"payload": {"span_id": SECRET}},
        {"payload": {"cost": {SECRET: 1}}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_no_secret_of_a_file_comes_onto_the_page(change: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [{**event(0, "tool_call_end"), **change}])
    page = render_trace(file)
    for part in (SECRET, SECRET[:24], SECRET[-16:]):
        assert part not in page
    assert SECRET not in json.dumps(summarize_trace(file).as_dict())


@pytest.mark.req("viewer.no-secrets")
def test_values_that_are_known_to_be_secret_are_hidden() -> None:
    events = [event(0, "x", None, note="the word is swordfish")]
    assert "swordfish" in render_trace(events)
    assert "swordfish" not in render_trace(events, secrets=["swordfish"])
    assert "swordfish" not in render_trace(
        events, secrets="swordfish", title="swordfish"
    )


@pytest.mark.req("viewer.bounded")
def test_a_summary_of_many_events_keeps_none_of_them() -> None:
    import tracemalloc

    summarize_trace(many(500))
    tracemalloc.start()
    try:
        summary = summarize_trace(many(20_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert summary.events == 20_000
    assert peak < 3_000_000


@pytest.mark.req("viewer.bounded")
def test_long_payloads_are_cut_and_too_many_spans_are_left_out() -> None:
    page = render_trace([event(0, "x", None, note="y" * 10**6, rows=[1] * 10**5)])
    assert len(page) < 200_000
    assert "more characters" in page
    page = render_trace(many(300), max_spans=10)
    assert '"leftOut":' in page
    assert '"leftOut":0' not in page
    with pytest.raises(ValueError, match="`max_spans` must be >= 1"):
        render_trace([], max_spans=0)
