"""Trace events, their sinks, and spans: they watch a run and never change it."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import os
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from executionkit._redact import PLACEHOLDER
from executionkit.context import ExecutionContext, execution_scope
from executionkit.observability import (
    LLM_CALL_SPAN_NAME,
    JsonlTraceSink,
    MemoryTraceSink,
    TraceEvent,
    _spans,
    emit_trace,
    llm_span,
    record_llm_span_attributes,
)
from executionkit.testing import FakeClock
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

KEY = "sk-" + "a1B2" * 8
EVENT = TraceEvent("tool_call_end", {"tool_name": "t"})


class TestEvents:
    @pytest.mark.req("trace.events")
    def test_kind_and_payload_are_its_positions(self) -> None:
        event = TraceEvent("llm_call_start", {"attempt": 1})
        assert event.kind == "llm_call_start"
        assert event.payload == {"attempt": 1}
        assert dict(TraceEvent("x").payload) == {}
        assert TraceEvent.create("x", {"a": 1}) == TraceEvent("x", {"a": 1})
        assert TraceEvent.create("x") == TraceEvent("x", {})

    @pytest.mark.req("trace.events")
    def test_its_payload_is_read_only(self) -> None:
        payload: dict[str, Any] = {"a": [1]}
        event = TraceEvent("x", payload)
        payload["a"].append(2)
        assert isinstance(event.payload, MappingProxyType)
        assert event.payload == {"a": [1]}
        with pytest.raises(TypeError):
            event.payload["a"].append(3)

    @pytest.mark.req("trace.time-and-request")
    def test_it_knows_its_time_and_its_request(self, fake_clock: FakeClock) -> None:
        with execution_scope(ExecutionContext(request_id="r")):
            event = TraceEvent("x")
        assert event.time == fake_clock.wall()
        assert event.request_id == "r"
        assert TraceEvent("x").request_id is None
        assert TraceEvent("x") == event


@pytest.mark.req("trace.callbacks")
class TestEmit:
    async def test_without_a_callback_nothing_happens(self) -> None:
        await emit_trace(None, EVENT)

    async def test_a_plain_function_is_called(self) -> None:
        seen: list[TraceEvent] = []
        await emit_trace(seen.append, EVENT)
        assert seen == [EVENT]
        assert seen[0].time == EVENT.time

    async def test_whatever_can_be_awaited_is_awaited(self) -> None:
        seen: list[str] = []

        async def sink(name: str, event: TraceEvent) -> None:
            await asyncio.sleep(0)
            seen.append(name)

        class Sink:
            async def __call__(self, event: TraceEvent) -> None:
                await sink("object", event)

            async def method(self, event: TraceEvent) -> None:
                await sink("method", event)

        await emit_trace(functools.partial(sink, "partial"), EVENT)
        await emit_trace(lambda event: sink("lambda", event), EVENT)
        await emit_trace(Sink(), EVENT)
        await emit_trace(Sink().method, EVENT)
        await emit_trace(lambda e: asyncio.ensure_future(sink("task", e)), EVENT)
        assert seen == ["partial", "lambda", "object", "method", "task"]

    @pytest.mark.req("OB-05", "trace.redacted")
    async def test_secrets_are_hidden_in_front_of_every_callback(self) -> None:
        sink = MemoryTraceSink()
        event = TraceEvent.create(
            "llm_call_end",
            {
                "content": f"your key is {KEY}",
                "cost": TokenUsage(1, 2, 3),
                "input_tokens": 4096,
                "arguments": {"api_key": "abc", "n": 1},
                "note": "is wxyz",
            },
        )
        await emit_trace(sink, event, secrets=iter(["wxyz"]))
        assert sink.events[0].payload == {
            "content": f"your key is {PLACEHOLDER}",
            "cost": TokenUsage(1, 2, 3),
            "input_tokens": 4096,
            "arguments": {"api_key": PLACEHOLDER, "n": 1},
            "note": f"is {PLACEHOLDER}",
        }
        assert KEY in event.payload["content"]

    @pytest.mark.req("trace.redacted")
    async def test_hidden_arguments_stay_as_they_were_hidden(self) -> None:
        sink = MemoryTraceSink()
        arguments = {"query": "[redacted]", "token": "[redacted]"}
        await emit_trace(sink, TraceEvent("tool_call_start", {"arguments": arguments}))
        assert sink.events[0].payload["arguments"] == arguments


@pytest.mark.req("D-08", "trace.isolated")
class TestFailingSinks:
    @pytest.mark.parametrize("error", [OSError, TimeoutError, StopIteration])
    async def test_an_exception_of_a_sink_never_reaches_the_run(
        self, error: type[Exception], caplog: pytest.LogCaptureFixture
    ) -> None:
        def sync_sink(event: TraceEvent) -> None:
            raise error("disk full")

        async def async_sink(event: TraceEvent) -> None:
            await asyncio.sleep(0)
            raise error("disk full")

        for sink in (sync_sink, async_sink):
            await emit_trace(sink, EVENT)
            await emit_trace(sink, EVENT)
        assert len(caplog.records) == 2
        assert {record.name for record in caplog.records} == {"executionkit"}
        assert "sync_sink" in caplog.text

    async def test_a_sink_is_logged_once_and_each_sink_is(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Sink:
            def write(self, event: TraceEvent) -> None:
                raise OSError

        sinks = [Sink(), Sink()]
        for _ in range(3):
            for sink in sinks:
                await emit_trace(sink.write, EVENT)
        assert len(caplog.records) == 2

    @pytest.mark.req("OB-04")
    async def test_the_log_shows_no_secret(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)

        def sink(event: TraceEvent) -> None:
            raise ValueError(f"bad header Bearer {KEY} for wxyz")

        await emit_trace(sink, EVENT, secrets=iter(["wxyz"]))
        logged = "".join(logging.Formatter().format(r) for r in caplog.records)
        assert PLACEHOLDER in logged
        assert KEY not in logged
        assert "wxyz" not in logged

    @pytest.mark.req("trace.logged-once")
    async def test_a_sink_that_cannot_be_referred_to_weakly_is_logged_once_too(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Slotted:
            __slots__ = ()

            def __call__(self, event: TraceEvent) -> None:
                raise OSError

        sink: Any
        for sink in (Slotted(), Slotted(), "file.jsonl"):
            await emit_trace(sink, EVENT)
            await emit_trace(sink, EVENT)
        assert len(caplog.records) == 3

    async def test_a_cancellation_of_the_task_passes(self) -> None:
        waiting = asyncio.Event()

        async def sink(event: TraceEvent) -> None:
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(emit_trace(sink, EVENT))
        async with asyncio.timeout(5):
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def test_a_timeout_around_the_run_still_works(self) -> None:
        clock = FakeClock(auto=True)

        async def sink(event: TraceEvent) -> None:
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            async with clock.timeout(1):
                await emit_trace(sink, EVENT)

    async def test_a_cancellation_of_the_sinks_own_does_not_pass(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def sink(event: TraceEvent) -> None:
            raise asyncio.CancelledError

        await emit_trace(sink, EVENT)
        assert "CancelledError" in caplog.text

    async def test_an_odd_payload_never_reaches_the_run(self) -> None:
        class Odd(dict[str, Any]):
            def items(self) -> Any:
                raise RuntimeError("no")

        sink = MemoryTraceSink()
        await emit_trace(sink, TraceEvent("x", {"a": Odd(b=1)}))
        assert sink.events == []


@pytest.mark.req("trace.no-handler")
def test_no_handler_is_installed() -> None:
    handlers = logging.getLogger("executionkit").handlers
    assert all(isinstance(handler, logging.NullHandler) for handler in handlers)


@pytest.mark.req("trace.memory-sink")
class TestMemorySink:
    def test_it_keeps_the_newest_events(self) -> None:
        sink = MemoryTraceSink(max_events=2)
        for kind in "abc":
            sink(TraceEvent(kind))
        assert sink.kinds == ["b", "c"]
        assert [event.kind for event in sink.events] == ["b", "c"]
        assert sink.dropped == 1
        sink.clear()
        assert sink.events == []
        assert sink.dropped == 0

    def test_it_keeps_at_least_one(self) -> None:
        with pytest.raises(ValueError, match="`max_events`"):
            MemoryTraceSink(0)


class Colour(Enum):
    RED = "red"


@pytest.mark.req("trace.jsonl-sink")
class TestJsonlSink:
    def lines(self, path: Path) -> list[dict[str, Any]]:
        text = path.read_bytes()
        assert not text or text.endswith(b"\n")
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    async def test_each_event_is_one_line_with_its_time(
        self, tmp_path: Path, fake_clock: FakeClock
    ) -> None:
        path = tmp_path / "trace.jsonl"
        with (
            JsonlTraceSink(path) as sink,
            execution_scope(ExecutionContext(request_id="r")),
        ):
            await emit_trace(sink, TraceEvent("a", {"cost": TokenUsage(1, 2, 3)}))
            assert len(self.lines(path)) == 1  # written out before it is closed
            await emit_trace(sink, TraceEvent("b", {"text": f"{KEY}\n\u2028é\ud800"}))
        first, second = self.lines(path)
        assert first["kind"] == "a"
        assert first["time"] == fake_clock.wall()
        assert first["request_id"] == "r"
        assert first["payload"]["cost"]["llm_calls"] == 3
        assert second["payload"] == {"text": f"{PLACEHOLDER}\n\u2028é\ud800"}

    def test_it_hides_secrets_by_itself_too(self, tmp_path: Path) -> None:
        with JsonlTraceSink(tmp_path / "t") as sink:
            sink(TraceEvent("a", {"key": KEY}))
        assert KEY not in (tmp_path / "t").read_text()

    def test_any_payload_becomes_valid_json(self, tmp_path: Path) -> None:
        payload: dict[str, Any] = {
            "nan": float("nan"),
            "inf": float("-inf"),
            "colour": Colour.RED,
            "bytes": b"\xff",
            "set": {1},
            "tuple": (1, 2),
            "keys": {1: "a", None: "b"},
            "object": threading.Lock(),
            "none": None,
            "deep": {"a": [{"b": [True]}]},
        }
        ring: list[Any] = []
        ring.append(ring)
        with JsonlTraceSink(str(tmp_path / "t")) as sink:
            sink(TraceEvent("a", payload))
            sink(TraceEvent("b", {"ring": MappingProxyType({"r": tuple(ring)})}))
            assert sink.failed == 0
        shown = self.lines(tmp_path / "t")[0]["payload"]
        assert shown["nan"] == "nan"
        assert shown["inf"] == "-inf"
        assert shown["colour"] == "red"
        assert shown["keys"] == {"1": "a", "None": "b"}
        assert shown["deep"] == {"a": [{"b": [True]}]}

    def test_a_line_that_a_full_disk_cuts_spoils_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, room = os.write, 20

        def write(file: int, data: bytes) -> int:
            return real(file, data[:room])

        with JsonlTraceSink(tmp_path / "t") as sink:
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", write)
                sink(TraceEvent("cut", {}))
                room = 0
                sink(TraceEvent("lost", {}))
            sink(TraceEvent("whole", {}))
            sink(TraceEvent("whole", {}))
            assert sink.failed == 2
        kept = (tmp_path / "t").read_text().splitlines()[1:]
        assert [json.loads(line)["kind"] for line in kept] == ["whole", "whole"]

    def test_it_appends_and_mends_a_broken_last_line(self, tmp_path: Path) -> None:
        path = tmp_path / "t"
        path.write_text('{"kind": "old"}\n{"kind": "bro')
        with JsonlTraceSink(path) as sink:
            sink(EVENT)
            sink.close()
            sink(EVENT)
        lines = path.read_text().splitlines()
        assert lines[:2] == ['{"kind": "old"}', '{"kind": "bro']
        assert [json.loads(line)["kind"] for line in lines[2:]] == [EVENT.kind] * 2

    def test_the_file_is_for_its_owner_only(self, tmp_path: Path) -> None:
        with JsonlTraceSink(tmp_path / "t") as sink:
            sink(EVENT)
            assert sink.path == str(tmp_path / "t")
        if os.name == "posix":
            assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600

    async def test_a_file_that_cannot_be_written_never_reaches_the_run(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = JsonlTraceSink(tmp_path / "missing" / "t")
        sink(EVENT)
        await emit_trace(sink, EVENT)
        assert sink.failed == 2
        assert len(caplog.records) == 1
        (tmp_path / "missing").mkdir()
        sink(EVENT)
        assert sink.failed == 2
        assert len(self.lines(tmp_path / "missing" / "t")) == 1
        sink.close()

    def test_lines_of_several_threads_never_mix(self, tmp_path: Path) -> None:
        event = TraceEvent("x", {"text": "y" * 5000})
        with (
            JsonlTraceSink(tmp_path / "t") as one,
            JsonlTraceSink(tmp_path / "t") as two,
            ThreadPoolExecutor(4) as pool,
        ):
            list(pool.map(lambda n: (one, two)[n % 2](event), range(100)))
        assert len(self.lines(tmp_path / "t")) == 100

    def test_an_unused_sink_makes_no_file_and_leaves_none_open(
        self, tmp_path: Path
    ) -> None:
        JsonlTraceSink(tmp_path / "t").close()
        assert not (tmp_path / "t").exists()
        sink = JsonlTraceSink(tmp_path / "t")
        sink(EVENT)
        number = sink._file
        assert number is not None
        del sink
        gc.collect()
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(number)


class Recorder:
    """A provider of OpenTelemetry of its own, and what it exported."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip(
            "opentelemetry.sdk.trace.export.in_memory_span_exporter"
        )
        self.api = pytest.importorskip("opentelemetry.trace")
        self.exporter = memory.InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    api = SimpleNamespace(
        get_tracer=recorder.provider.get_tracer, StatusCode=recorder.api.StatusCode
    )
    monkeypatch.setattr(_spans, "_opentelemetry", lambda: api)
    yield recorder
    recorder.provider.shutdown()


class TestSpans:
    @pytest.mark.req("trace.spans")
    def test_a_call_is_a_span_with_its_usage(self, otel: Recorder) -> None:
        with llm_span("gpt") as span:
            record_llm_span_attributes(span, "gpt", 10, 5)
        with llm_span("gpt") as span:
            record_llm_span_attributes(span, "gpt", 10, 5, cost_usd=0.25)
        first, second = otel.spans
        assert first.name == LLM_CALL_SPAN_NAME == "llm.call"
        assert first.instrumentation_scope.name == "executionkit"
        assert dict(first.attributes) == {
            "llm.model": "gpt",
            "llm.input_tokens": 10,
            "llm.output_tokens": 5,
        }
        assert second.attributes["cost_usd"] == 0.25
        assert first.status.status_code is otel.api.StatusCode.OK

    @pytest.mark.req("OB-04", "trace.spans")
    def test_a_failed_call_is_an_error_without_secrets(self, otel: Recorder) -> None:
        with pytest.raises(ValueError, match="bad"), llm_span("gpt"):
            raise ValueError(f"bad key {KEY}")
        (span,) = otel.spans
        assert span.status.status_code is otel.api.StatusCode.ERROR
        assert span.status.description == f"bad key {PLACEHOLDER}"
        assert span.attributes["error.type"] == "ValueError"
        assert KEY not in span.to_json()
        assert not span.events

    @pytest.mark.req("trace.spans")
    async def test_a_cancelled_call_says_so(self, otel: Recorder) -> None:
        with pytest.raises(asyncio.CancelledError), llm_span("gpt"):
            raise asyncio.CancelledError
        assert otel.spans[0].status.description == "cancelled"

    @pytest.mark.req("OB-02")
    def test_it_ends_once_however_often_it_is_left(self, otel: Recorder) -> None:
        ended: list[int] = []
        scope = llm_span("gpt")
        span: Any = scope.__enter__()
        span.end = lambda: ended.append(1)
        scope.__exit__(None, None, None)
        scope.__exit__(ValueError, ValueError(), None)
        assert ended == [1]

    @pytest.mark.req("trace.spans")
    def test_it_is_a_child_of_the_span_around_it(self, otel: Recorder) -> None:
        with otel.tracer.start_as_current_span("turn") as turn, llm_span("gpt"):
            pass
        inner = next(span for span in otel.spans if span.name == "llm.call")
        assert inner.parent.span_id == turn.get_span_context().span_id

    @pytest.mark.req("D-37")
    async def test_spans_of_the_consumer_are_no_children_of_the_call(
        self, otel: Recorder
    ) -> None:
        async def stream() -> AsyncGenerator[int]:
            with llm_span("gpt"):
                yield 1
                yield 2

        async for _ in stream():
            with otel.tracer.start_as_current_span("mine"):
                pass
        assert [span.parent for span in otel.spans] == [None, None, None]
        assert not otel.api.get_current_span().is_recording()

    @pytest.mark.req("OB-02", "D-37")
    async def test_a_stream_closed_from_another_task_ends_its_span_once(
        self, otel: Recorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def stream() -> AsyncGenerator[int]:
            with llm_span("gpt"):
                yield 1
                yield 2

        async def first(items: AsyncGenerator[int]) -> int:
            return await anext(items)

        async with asyncio.timeout(5):
            items = stream()
            assert await asyncio.create_task(first(items)) == 1
            await asyncio.create_task(_close(items))
            await _close(items)
            abandoned = stream()
            async for _ in abandoned:
                break
            del abandoned
            gc.collect()
            await asyncio.sleep(0.01)
        assert len(otel.spans) == 2
        statuses = {span.status.status_code for span in otel.spans}
        assert statuses == {otel.api.StatusCode.OK}
        assert "detach" not in caplog.text
        assert not otel.api.get_current_span().is_recording()

    @pytest.mark.req("trace.isolated")
    def test_a_broken_tracer_never_reaches_the_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Broken:
            def __getattr__(self, name: str) -> Any:
                raise RuntimeError(name)

        class Half:
            StatusCode = SimpleNamespace(OK=1, ERROR=2)

            def get_tracer(self, name: str) -> Any:
                return SimpleNamespace(start_span=lambda *_a, **_k: Broken())

        for api in (Broken(), Half()):
            monkeypatch.setattr(_spans, "_opentelemetry", lambda api=api: api)
            with llm_span("gpt") as span:
                record_llm_span_attributes(span, "gpt", 1, 1)

    @pytest.mark.req("trace.spans")
    def test_attributes_of_no_span_go_nowhere(self) -> None:
        record_llm_span_attributes(None, "gpt", 1, 1)

        written: list[str] = []

        class Silent:
            def is_recording(self) -> bool:
                return False

            def set_attribute(self, key: str, value: Any) -> None:
                written.append(key)

        record_llm_span_attributes(Silent(), "gpt", 1, 1)  # type: ignore[arg-type]
        assert not written


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    _spans._opentelemetry.cache_clear()
    yield
    _spans._opentelemetry.cache_clear()


@pytest.mark.req("D-37", "trace.spans-optional")
@pytest.mark.usefixtures("fresh_probe")
class TestWithoutThePackage:
    def test_without_it_there_is_no_span(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        with llm_span("gpt") as span:
            assert span is None
        with pytest.raises(KeyError), llm_span("gpt"):
            raise KeyError

    def test_a_folder_that_is_left_over_counts_as_none(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
            monkeypatch.delitem(sys.modules, name)
        bare = ModuleType("opentelemetry")
        bare.__path__ = [str(tmp_path)]
        monkeypatch.setitem(sys.modules, "opentelemetry", bare)
        with llm_span("gpt") as span:
            assert span is None

    def test_with_it_there_is_one(self) -> None:
        pytest.importorskip("opentelemetry.trace")
        with llm_span("gpt") as span:
            assert span is not None


async def _close(items: AsyncGenerator[int]) -> None:
    await items.aclose()


@pytest.mark.parametrize("path", [3, None, b"x", ["x"]])
def test_a_sink_without_a_path_is_refused_with_the_name(path: Any) -> None:
    with pytest.raises(TypeError, match="`path` must be a str or a path"):
        JsonlTraceSink(path)
