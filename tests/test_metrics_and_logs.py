"""Prometheus, the dashboard, structured logs, several sinks at once."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from executionkit import (
    JsonLogFormatter,
    JsonlTraceSink,
    LoggingTraceSink,
    MemoryTraceSink,
    MissingExtraError,
    PrometheusMetrics,
    Provider,
    ProviderError,
    RateLimitError,
    RetryConfig,
    TeeTraceSink,
    Tool,
    ToolCall,
    ToolProcessor,
    TraceEvent,
    consensus,
    react_loop,
)
from executionkit.testing import (
    FakeClock,
    ScriptedProvider,
    ScriptedServer,
    json_reply,
    tool_call_reply,
)
from executionkit.tools.registry import create_registry

DASHBOARD = Path(__file__).parent.parent / "docs" / "grafana-dashboard.json"
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
SCHEMA: dict[str, Any] = {"type": "object"}


async def double(n: int) -> int:
    return 2 * n


@pytest.fixture
def registry() -> Any:
    return pytest.importorskip("prometheus_client").CollectorRegistry()


class Samples(dict[tuple[str, ...], float]):
    """(name, label values in any order) -> value."""

    def __getitem__(self, key: tuple[str, ...]) -> float:
        return super().__getitem__((key[0], *sorted(key[1:])))


def scraped(registry: Any) -> Samples:
    """What is exported, by the real client's parser."""
    import prometheus_client
    from prometheus_client.parser import text_string_to_metric_families as families

    text = prometheus_client.generate_latest(registry).decode()
    return Samples(
        ((sample.name, *sorted(sample.labels.values())), sample.value)
        for family in families(text)
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    )


@pytest.mark.req("metrics.prometheus")
class TestPrometheus:
    async def test_a_run_is_counted(self, registry: Any, auto_clock: FakeClock) -> None:
        metrics = PrometheusMetrics(registry)
        script: list[Any] = [
            RateLimitError("429", retry_after=3.0),
            tool_call_reply(("double", {"n": 1}), ("nope-1", {}), ("nope-2", {})),
            "done",
        ]
        tools = [Tool("double", "", SCHEMA, double)]
        await react_loop(
            ScriptedProvider(
                script, usage={"prompt_tokens": 10, "completion_tokens": 4}
            ),
            "?",
            tools,
            trace=metrics,
        )
        got = scraped(registry)
        who = ("ScriptedProvider", "_unknown")
        assert got["executionkit_llm_calls_total", *who, "ok"] == 2
        assert got["executionkit_llm_calls_total", *who, "error"] == 1
        assert got["executionkit_llm_call_duration_seconds_count", *who] == 3
        assert got["executionkit_tokens_total", *who, "output"] > 0
        assert got["executionkit_tool_calls_total", "double", "ok"] == 1
        # What a model invents makes no series of its own.
        assert got["executionkit_tool_calls_total", "_unknown", "error"] == 2
        assert not any("nope" in str(key) for key in got)
        assert got["executionkit_errors_total", "llm_call", "LLM_RATE_LIMITED"] == 1
        assert got["executionkit_retries_total", "llm_call"] == 1
        assert got["executionkit_wait_duration_seconds_sum", "retry_after"] == 3.0
        assert got["executionkit_pattern_runs_total", "react_loop", "ok"] == 1
        for operation in ("llm_call", "tool_call", "pattern"):
            assert got["executionkit_in_flight", operation] == 0

    async def test_tools_their_cache_their_retries_and_their_circuit(
        self, registry: Any, auto_clock: FakeClock
    ) -> None:
        async def broken(n: int) -> int:
            raise OSError(n)

        processor = ToolProcessor(
            create_registry(double, broken),
            enable_caching=True,
            enable_circuit_breaker=True,
            circuit_breaker_threshold=3,
            retry_config=RetryConfig(2, retryable=(OSError,)),
            trace=PrometheusMetrics(registry),
        )
        for name in ("double", "double", "broken"):
            await processor.execute([ToolCall("1", name, {"n": 1})])
        got = scraped(registry)
        assert got["executionkit_cache_lookups_total", "double", "hit"] == 1
        assert got["executionkit_cache_lookups_total", "double", "miss"] == 1
        assert got["executionkit_retries_total", "tool_call"] == 2
        assert got["executionkit_circuit_state", "double"] == 0
        assert got["executionkit_circuit_state", "broken"] == 2
        assert got["executionkit_tool_calls_total", "broken", "error"] == 1

    def test_labels_are_bounded(self, registry: Any) -> None:
        metrics = PrometheusMetrics(registry, max_values=3)
        for n in range(50):
            metrics(TraceEvent("tool_call_end", {"tool_name": f"t{n}"}))
            metrics(TraceEvent("llm_call_end", {"provider": "p", "model": f"m{n}"}))
        got = scraped(registry)
        assert got["executionkit_tool_calls_total", "_other", "ok"] == 47
        assert got["executionkit_llm_calls_total", "p", "_other", "ok"] == 47
        names = {key for key in got if key[0] == "executionkit_tool_calls_total"}
        assert len(names) == 4
        with pytest.raises(ValueError, match="max_values"):
            PrometheusMetrics(registry, max_values=0)

    def test_no_text_of_a_label_ends_the_scrapes(self, registry: Any) -> None:
        metrics = PrometheusMetrics(registry)
        name = 'a\ud800"\n\0'
        metrics(TraceEvent("tool_call_end", {"tool_name": name, "error": name}))
        metrics(TraceEvent("llm_call_end", {"provider": name, "model": name}))
        shown = name.replace("\ud800", "\\ud800")
        assert scraped(registry)["executionkit_llm_calls_total", shown, shown, "ok"]

    def test_events_of_older_files_and_others_do_no_harm(self, registry: Any) -> None:
        metrics = PrometheusMetrics(registry)
        for kind in ("llm_call_end", "tool_call_end", "pattern_end", "wait", "else"):
            metrics(TraceEvent(kind, {}))

    def test_a_server_scrapes_it(self, registry: Any) -> None:
        import prometheus_client

        PrometheusMetrics(registry)(TraceEvent("tool_call_end", {"tool_name": "t"}))
        server, thread = prometheus_client.start_http_server(
            0, addr="127.0.0.1", registry=registry
        )
        try:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url, timeout=5) as answer:
                text = answer.read().decode()
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)
        assert 'executionkit_tool_calls_total{outcome="ok",tool="t"} 1.0' in text

    def test_without_the_package_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
        with pytest.raises(MissingExtraError, match=r"executionkit\[prometheus\]"):
            PrometheusMetrics()


@pytest.mark.req("metrics.dashboard")
class TestDashboard:
    def exported(self, registry: Any) -> set[str]:
        """Names of series, without what histograms add."""
        import prometheus_client

        PrometheusMetrics(registry)
        text = prometheus_client.generate_latest(registry).decode()
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        return {name for name in kinds if not name.endswith("_created")}

    def test_it_shows_exactly_what_there_is(self, registry: Any) -> None:
        board = json.loads(DASHBOARD.read_text("utf-8"))
        queries = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
        named = set(re.findall(r"executionkit_\w+", " ".join(queries)))
        shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
        assert shown == self.exported(registry)

    def test_its_labels_exist(self, registry: Any) -> None:
        metrics = PrometheusMetrics(registry)
        labels = {item._name: set(item._labelnames) for item in metrics._made.values()}
        board = json.loads(DASHBOARD.read_text("utf-8"))
        for panel in board["panels"]:
            for target in panel["targets"]:
                names = re.findall(r"executionkit_\w+", target["expr"])
                base = re.sub(r"_(total|bucket|sum|count)$", "", names[0])
                used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert used <= labels[base], panel["title"]

    def test_panels_do_not_overlap_and_ask_a_source_of_choice(self) -> None:
        board = json.loads(DASHBOARD.read_text("utf-8"))
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
        assert len(set(places)) == len(places)
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        [source] = board["templating"]["list"]
        assert source["type"] == "datasource"
        assert {p["datasource"]["uid"] for p in board["panels"]} == {"${datasource}"}


@pytest.fixture
def logs() -> Any:
    """A logger of one's own, and what it wrote."""
    stream = io.StringIO()
    logger = logging.Logger("test", logging.DEBUG)  # noqa: LOG001
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLogFormatter())
    logger.addHandler(handler)
    return logger, lambda: [json.loads(x) for x in stream.getvalue().splitlines()]


@pytest.mark.req("trace.logging")
class TestLogging:
    async def test_events_are_records_with_fields(self, logs: Any) -> None:
        logger, lines = logs
        sink = LoggingTraceSink(logger)
        provider = ScriptedProvider([ProviderError(f"bad key {KEY}")])
        with pytest.raises(ProviderError):
            await consensus(
                provider, "?", num_samples=1, retry=RetryConfig(0), trace=sink
            )
        start, call, failed, end = lines()
        assert (start["level"], failed["level"]) == ("INFO", "WARNING")
        assert start["message"] == "pattern_start consensus"
        assert call["event"]["kind"] == "llm_call_start"
        assert call["event"]["parent_id"] == start["event"]["span_id"]
        assert failed["event"]["error_code"] == "LLM_PROVIDER_ERROR"
        assert "failed: LLM_PROVIDER_ERROR" in end["message"]
        assert end["event"]["cost"]["llm_calls"] == 1
        assert KEY not in json.dumps(lines())

    async def test_content_is_left_out_unless_asked_for(self, logs: Any) -> None:
        logger, lines = logs
        for show in (False, True):
            sink = LoggingTraceSink(logger, show_content=show)
            await consensus(
                ScriptedProvider(["my words"]), "?", num_samples=1, trace=sink
            )
            assert ("my words" in json.dumps(lines())) is show

    def test_nothing_is_installed_and_a_silent_logger_costs_nothing(self) -> None:
        logger = logging.getLogger("executionkit.trace")
        before = (logger.handlers[:], logger.level)
        LoggingTraceSink()(TraceEvent("wait", {}))
        assert (logger.handlers, logger.level) == before
        silent = logging.Logger("silent", logging.ERROR)  # noqa: LOG001
        LoggingTraceSink(silent)(TraceEvent("wait", {"x": object()}))

    @pytest.mark.req("OB-05")
    def test_the_formatter_hides_credentials_of_any_record(self, logs: Any) -> None:
        logger, lines = logs
        try:
            raise ValueError(f"key {KEY}")
        except ValueError:
            logger.exception("api key %s", KEY, extra={"event": {"api_key": "abc123x"}})
        [line] = lines()
        assert line["error"].startswith("ValueError: key ")
        text = json.dumps(line)
        assert KEY not in text
        assert "abc123x" not in text
        assert "Traceback" not in text


@pytest.mark.req("trace.tee")
class TestTee:
    async def test_all_get_the_event_whatever_one_does(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        seen: list[str] = []

        def broken(_event: TraceEvent) -> None:
            raise OSError("full")

        async def slow(event: TraceEvent) -> None:
            await asyncio.sleep(0)
            seen.append(f"slow {event.kind}")

        async def slow_and_broken(_event: TraceEvent) -> None:
            await asyncio.sleep(0)
            raise OSError("full")

        memory = MemoryTraceSink()
        tee = TeeTraceSink(broken, slow_and_broken, memory, slow)
        await consensus(ScriptedProvider(["a"]), "?", num_samples=1, trace=tee)
        kinds = ["pattern_start", "llm_call_start", "llm_call_end", "pattern_end"]
        assert memory.kinds == kinds
        assert seen == [f"slow {kind}" for kind in kinds]
        assert caplog.text.count("failed; the run goes on") == 2
        assert TeeTraceSink(memory)(TraceEvent("x")) is None

    async def test_the_callers_cancellation_passes(self) -> None:
        inside = asyncio.Event()

        async def hangs(_event: TraceEvent) -> None:
            inside.set()
            await asyncio.Event().wait()

        async def never(_event: TraceEvent) -> None:
            raise AssertionError

        task = asyncio.ensure_future(TeeTraceSink(hangs, never)(TraceEvent("x")))  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    def test_what_cannot_be_called_is_refused(self) -> None:
        wrong: Any = "file"
        with pytest.raises(TypeError, match=r"sinks\[1\]"):
            TeeTraceSink(print, wrong)


@pytest.mark.req("OB-04", "OB-05", "trace.redacted")
async def test_a_planted_key_reaches_no_sink(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, registry: Any, logs: Any
) -> None:
    """The key is in the URL, in what the server says, in arguments and in results."""
    logger, lines = logs
    caplog.set_level(logging.DEBUG)
    memory = MemoryTraceSink()
    file = JsonlTraceSink(tmp_path / "trace.jsonl")
    tee = TeeTraceSink(
        memory,
        file,
        LoggingTraceSink(logger, show_content=True),
        LoggingTraceSink(),
        PrometheusMetrics(registry),
    )

    async def leak(**_arguments: Any) -> str:
        raise RuntimeError(f"refused {KEY}")

    errors: list[BaseException] = []
    said = {"error": {"message": f"no such key {KEY}"}}
    async with ScriptedServer([json_reply(said, status=400)] * 2) as server:
        for url in (f"{server.url}?api_key={KEY}", server.url):
            try:
                async with Provider(url, KEY, api_key=KEY) as provider:
                    await consensus(provider, KEY, num_samples=1, trace=tee)
            except Exception as exc:  # a URL with a query may be refused at once
                errors.append(exc)
    processor = ToolProcessor(
        create_registry(Tool("leak", "", SCHEMA, leak)), trace=tee, show_arguments=True
    )
    results = await processor.execute(
        [ToolCall("1", "leak", {"api_key": "hidden-by-name", "x": KEY})]
    )
    assert len(errors) == 2
    shown = [repr(results), repr(memory.events), caplog.text, json.dumps(lines())]
    shown += [(tmp_path / "trace.jsonl").read_text("utf-8"), repr(scraped(registry))]
    for error in errors:
        at: BaseException | None = error
        while at is not None:
            shown += [str(at), repr(at), *getattr(at, "__notes__", [])]
            at = at.__cause__ or at.__context__
    everything = "\n".join(shown)
    assert KEY not in everything
    assert "hidden-by-name" not in everything
    assert memory.kinds.count("tool_call_end") == 1
