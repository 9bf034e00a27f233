"""Metrics of OpenTelemetry, when its SDK is set up.

Names, units and buckets of `gen_ai.*` are those of the GenAI semantic conventions
(https://github.com/open-telemetry/semantic-conventions-genai); the others are our own.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from executionkit.observability._spans import names_provider

__all__ = (
    "TIME_BUCKETS",
    "TOKEN_BUCKETS",
    "count_cache",
    "count_retry",
    "measure_run",
    "measure_tokens",
    "measure_wait",
    "nobody_measures",
    "track_in_flight",
)

TIME_BUCKETS: Final = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
"""Seconds: 0.01 times the powers of 2, as the conventions say."""

TOKEN_BUCKETS: Final = tuple(4**n for n in range(14))
"""Tokens: the powers of 4, as the conventions say."""

_METER: Final = "executionkit"
_DURATIONS: Final = {
    "chat": "gen_ai.client.operation.duration",
    "execute_tool": "gen_ai.execute_tool.duration",
    "invoke_agent": "gen_ai.invoke_agent.duration",
    "invoke_workflow": "gen_ai.invoke_workflow.duration",
}


@lru_cache(maxsize=1)
def _api() -> Any:
    try:
        return importlib.import_module("opentelemetry.metrics")
    except Exception:  # noqa: BLE001 - a missing or broken package means: no metrics
        return None


@lru_cache(maxsize=1)
def _internal() -> Any:
    """The module that holds the provider; None when it is somewhere else."""
    try:
        return importlib.import_module("opentelemetry.metrics._internal")
    except Exception:  # noqa: BLE001 - another version of the package
        return None


def _is_unset() -> bool:
    """Whether certainly nobody has set a provider up; see `nobody_records`."""
    if getattr(_internal(), "_METER_PROVIDER", _METER) is not None:
        return False
    return not names_provider("OTEL_PYTHON_METER_PROVIDER")


def _provider() -> Any:
    """The meter provider that an application has set up; None = there is none."""
    api = _api()
    if api is None:
        return None
    if _is_unset():
        return None
    try:
        provider = api.get_meter_provider()
    except Exception:  # noqa: BLE001 - a metric never changes the run
        return None
    kind = type(provider).__name__
    return None if kind in {"_ProxyMeterProvider", "NoOpMeterProvider"} else provider


def nobody_measures() -> bool:
    """Whether no SDK for metrics is set up."""
    return _provider() is None


class _Instruments:
    """The instruments of one meter provider."""

    def __init__(self, provider: Any) -> None:
        self._meter = provider.get_meter(_METER)
        self._made: dict[str, Any] = {}

    def histogram(self, name: str, unit: str, about: str, buckets: Any) -> Any:
        found = self._made.get(name)
        if found is None:
            try:
                found = self._meter.create_histogram(
                    name, unit, about, explicit_bucket_boundaries_advisory=buckets
                )
            except TypeError:  # an API before 1.30 knows no advice
                found = self._meter.create_histogram(name, unit, about)
            self._made[name] = found
        return found

    def counter(self, name: str, unit: str, about: str) -> Any:
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = self._meter.create_counter(name, unit, about)
        return found

    def gauge(self, name: str, unit: str, about: str) -> Any:
        found = self._made.get(name)
        if found is None:
            made = self._meter.create_up_down_counter(name, unit, about)
            found = self._made[name] = made
        return found


@lru_cache(maxsize=4)
def _of(provider: Any) -> _Instruments:
    return _Instruments(provider)


def measure_run(
    operation: str, seconds: float, attributes: Mapping[str, Any], error: str | None
) -> None:
    """Record how long an operation took.

    Args:
        operation: `gen_ai.operation.name`.
        seconds: How long.
        attributes: Further ones; few values each.
        error: `error.type`; None = it went well.
    """
    provider = _provider()
    if provider is None:
        return
    facts = {"gen_ai.operation.name": operation, **attributes}
    if error is not None:
        facts["error.type"] = error
    name = _DURATIONS.get(operation, "executionkit.operation.duration")
    with contextlib.suppress(Exception):  # a metric never changes the run
        _of(provider).histogram(
            name, "s", f"Duration of {operation}.", TIME_BUCKETS
        ).record(seconds, facts)


def measure_tokens(kind: str, tokens: int, attributes: Mapping[str, Any]) -> None:
    """Record tokens used, `"input"` or `"output"`."""
    provider = _provider()
    if provider is None or not tokens:
        return
    with contextlib.suppress(Exception):  # a metric never changes the run
        _of(provider).histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            TOKEN_BUCKETS,
        ).record(tokens, {**attributes, "gen_ai.token.type": kind})


def measure_wait(reason: str, seconds: float) -> None:
    """Record a wait."""
    provider = _provider()
    if provider is None:
        return
    with contextlib.suppress(Exception):  # a metric never changes the run
        _of(provider).histogram(
            "executionkit.wait.duration",
            "s",
            "Waits for permits, slots, pauses and approvals.",
            TIME_BUCKETS,
        ).record(seconds, {"executionkit.wait.reason": reason})


def count_retry(operation: str, error: str) -> None:
    """Count an attempt that failed and is followed by another one."""
    provider = _provider()
    if provider is None:
        return
    with contextlib.suppress(Exception):  # a metric never changes the run
        _of(provider).counter(
            "executionkit.retries", "{retry}", "Attempts after the first."
        ).add(1, {"gen_ai.operation.name": operation, "error.type": error})


def count_cache(*, hit: bool, tool: str) -> None:
    """Count a call of a tool whose results are cached."""
    provider = _provider()
    if provider is None:
        return
    with contextlib.suppress(Exception):  # a metric never changes the run
        facts = {
            "executionkit.cache.result": "hit" if hit else "miss",
            "gen_ai.tool.name": tool,
        }
        _of(provider).counter(
            "executionkit.cache.lookups", "{lookup}", "Calls of cached tools."
        ).add(1, facts)


def track_in_flight(operation: str, change: int) -> None:
    """Count operations that are under way: +1 at the start, -1 at the end."""
    provider = _provider()
    if provider is None:
        return
    with contextlib.suppress(Exception):  # a metric never changes the run
        _of(provider).gauge(
            "executionkit.in_flight", "{operation}", "Operations under way."
        ).add(change, {"gen_ai.operation.name": operation})
