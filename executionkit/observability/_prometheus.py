"""Metrics for Prometheus, made of trace events."""

from __future__ import annotations

from typing import Any, Final

from executionkit._error_codes import ErrorCode
from executionkit.errors import require
from executionkit.observability._events import TraceEvent

__all__ = ("PrometheusMetrics",)

_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
_STATES: Final = {"closed": 0, "half_open": 1, "open": 2}
_OTHER: Final = "_other"
_UNKNOWN: Final = "_unknown"

_CALL: Final = ("provider", "model")
_COUNTERS: Final = (
    ("llm_calls", "Requests to models, retries included.", (*_CALL, "outcome")),
    ("tokens", "Tokens used; cached ones are among the input.", (*_CALL, "type")),
    ("tool_calls", "Calls of tools.", ("tool", "outcome")),
    ("pattern_runs", "Runs of patterns.", ("pattern", "outcome")),
    ("errors", "Failures by code, or by type.", ("operation", "error")),
    ("retries", "Attempts after the first.", ("operation",)),
    ("cache_lookups", "Calls of tools whose results are cached.", ("tool", "result")),
)
_HISTOGRAMS: Final = (
    ("llm_call_duration_seconds", "Duration of requests to models.", _CALL),
    (
        "tool_call_duration_seconds",
        "Duration of calls of tools, waits and retries included.",
        ("tool",),
    ),
    ("pattern_duration_seconds", "Duration of runs of patterns.", ("pattern",)),
    (
        "wait_duration_seconds",
        "Waits for permits, slots, pauses and approvals.",
        ("reason",),
    ),
)
_GAUGES: Final = (
    ("in_flight", "Operations under way.", ("operation",), "livesum"),
    (
        "circuit_state",
        "Circuit of a tool as its latest call left it: 0 closed, 1 half open, 2 open.",
        ("tool",),
        "livemax",
    ),
)


class PrometheusMetrics:
    """A trace sink that counts; give it as `trace=`, or to a `TeeTraceSink`.

    Values of a label that come after the first `max_values` are counted together as
    `_other`, and tools that do not exist as `_unknown`: what a model invents makes no
    series of its own.

    Args:
        registry: A `CollectorRegistry`. None = the global one of `prometheus_client`.
        max_values: Different values of each label, at least 1.

    Raises:
        MissingExtraError: Without the package (extra `prometheus`).
        ValueError: When the registry has these metrics already, or for a `max_values`
            below 1.
    """

    def __init__(self, registry: Any = None, *, max_values: int = 100) -> None:
        if max_values < 1:
            msg = f"`max_values` must be >= 1, got {max_values}"
            raise ValueError(msg)
        client: Any = require("prometheus_client", extra="prometheus")
        given = client.REGISTRY if registry is None else registry
        self._max_values = max_values
        self._seen: dict[str, set[str]] = {}
        self._made: dict[str, Any] = {}
        for name, about, labels in _COUNTERS:
            self._made[name] = client.Counter(
                f"executionkit_{name}", about, labels, registry=given
            )
        for name, about, labels in _HISTOGRAMS:
            self._made[name] = client.Histogram(
                f"executionkit_{name}", about, labels, registry=given, buckets=_SECONDS
            )
        for name, about, labels, mode in _GAUGES:
            self._made[name] = client.Gauge(
                f"executionkit_{name}",
                about,
                labels,
                registry=given,
                multiprocess_mode=mode,
            )

    def __call__(self, event: TraceEvent) -> None:
        handler = _HANDLERS.get(event.kind)
        if event.payload.get("replayed") and event.kind.startswith("llm_call"):
            return  # nothing was sent
        if handler is not None:
            handler(self, event.payload)

    def _of(self, name: str, *values: str) -> Any:
        return self._made[name].labels(*values)

    def _bounded(self, label: str, value: object) -> str:
        # A lone surrogate, which no scrape can send, would end all scrapes.
        text = str(value)[:100].encode("utf-8", "backslashreplace").decode("utf-8")
        seen = self._seen.setdefault(label, set())
        if text in seen:
            return text
        if len(seen) >= self._max_values:
            return _OTHER
        seen.add(text)
        return text

    def _failed(self, operation: str, error: object) -> None:
        self._of("errors", operation, self._bounded("error", error)).inc()

    def _llm_start(self, _facts: Any) -> None:
        self._of("in_flight", "llm_call").inc()

    def _llm_end(self, facts: Any) -> None:
        self._of("in_flight", "llm_call").dec()
        provider = self._bounded("provider", facts.get("provider", _UNKNOWN))
        model = self._bounded("model", facts.get("model", _UNKNOWN))
        error = facts.get("error_code") or facts.get("error_type")
        outcome = "error" if error else "ok"
        requests = facts.get("requests", 1)  # the others are told as attempts
        if requests > 0:
            self._of("llm_calls", provider, model, outcome).inc(requests)
            self._of("llm_call_duration_seconds", provider, model).observe(
                facts.get("duration", 0.0)
            )
        self._tokens(provider, model, facts)
        if error:
            self._failed("llm_call", error)

    def _attempt(self, facts: Any) -> None:
        if "provider" not in facts:  # of a tool or a step
            return
        provider = self._bounded("provider", facts["provider"])
        model = self._bounded("model", facts.get("model", _UNKNOWN))
        requests = facts.get("requests", 1)
        if requests > 0:
            self._of("llm_calls", provider, model, "error").inc(requests)
            self._of("llm_call_duration_seconds", provider, model).observe(
                facts.get("duration", 0.0)
            )
        self._tokens(provider, model, facts)

    def _tokens(self, provider: str, model: str, facts: Any) -> None:
        for kind in ("input", "output", "cached"):
            count = facts.get(f"{kind}_tokens")
            if count:
                self._of("tokens", provider, model, kind).inc(count)

    def _llm_retry(self, _facts: Any) -> None:
        self._of("retries", "llm_call").inc()

    def _step_retry(self, _facts: Any) -> None:
        self._of("retries", "step").inc()

    def _tool_start(self, _facts: Any) -> None:
        self._of("in_flight", "tool_call").inc()

    def _tool_end(self, facts: Any) -> None:
        self._of("in_flight", "tool_call").dec()
        if facts.get("replayed"):
            return  # nothing was run
        error = facts.get("error")
        is_known = error != ErrorCode.TOOL_NOT_FOUND.value
        tool = self._bounded("tool", facts.get("tool_name")) if is_known else _UNKNOWN
        outcome = "blocked" if facts.get("blocked") else "error" if error else "ok"
        self._of("tool_calls", tool, outcome).inc()
        self._of("tool_call_duration_seconds", tool).observe(facts.get("duration", 0.0))
        if error:
            self._failed("tool_call", error)
        retries = facts.get("attempts", 0) - 1
        if retries > 0:
            self._of("retries", "tool_call").inc(retries)
        if facts.get("cacheable"):
            result = "hit" if facts.get("cached") else "miss"
            self._of("cache_lookups", tool, result).inc()
        state = _STATES.get(facts.get("circuit", ""))
        if state is not None:
            self._of("circuit_state", tool).set(state)

    def _run_start(self, _facts: Any) -> None:
        self._of("in_flight", "pattern").inc()

    def _run_end(self, facts: Any) -> None:
        self._of("in_flight", "pattern").dec()
        pattern = self._bounded("pattern", facts.get("pattern"))
        error = facts.get("error")
        self._of("pattern_runs", pattern, "error" if error else "ok").inc()
        self._of("pattern_duration_seconds", pattern).observe(
            facts.get("duration", 0.0)
        )
        if error:
            self._failed("pattern", error)

    def _wait(self, facts: Any) -> None:
        reason = self._bounded("reason", facts.get("reason"))
        self._of("wait_duration_seconds", reason).observe(facts.get("duration", 0.0))


_HANDLERS: Final = {
    "llm_call_start": PrometheusMetrics._llm_start,  # noqa: SLF001
    "llm_call_end": PrometheusMetrics._llm_end,  # noqa: SLF001
    "llm_call_error": PrometheusMetrics._llm_end,  # noqa: SLF001
    "llm_call_retry": PrometheusMetrics._llm_retry,  # noqa: SLF001
    "tool_call_start": PrometheusMetrics._tool_start,  # noqa: SLF001
    "tool_call_end": PrometheusMetrics._tool_end,  # noqa: SLF001
    "pattern_start": PrometheusMetrics._run_start,  # noqa: SLF001
    "pattern_end": PrometheusMetrics._run_end,  # noqa: SLF001
    "workflow_step_retry": PrometheusMetrics._step_retry,  # noqa: SLF001
    "plan_step_retry": PrometheusMetrics._step_retry,  # noqa: SLF001
    "attempt": PrometheusMetrics._attempt,  # noqa: SLF001
    "wait": PrometheusMetrics._wait,  # noqa: SLF001
}
