"""The numbers of a trace: calls, tokens, cost, waits, errors, percentiles."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from executionkit.cost import Prices
from executionkit.types import TokenUsage, freeze_mapping
from executionkit.viewer._records import Reader, Source, number
from executionkit.viewer._spans import Pairing, Span

if TYPE_CHECKING:
    from executionkit.viewer._records import Record

__all__ = ("Summarizer", "TraceGroup", "TraceSummary", "cost_of", "summarize_trace")

_MAX_SAMPLE: Final = 1 << 16
_MAX_NAMES: Final = 1000
_OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceGroup:
    """What is known about all calls of one name."""

    name: str
    """A model, a tool, a pattern, a step, or the reason of a wait."""

    count: int = 0
    """How many there were."""

    errors: int = 0
    """How many of them failed in the end."""

    unfinished: int = 0
    """How many of them have no end in the trace."""

    attempts: int = 0
    """Attempts that the ends of the calls tell of."""

    cached: int = 0
    """How many were answered from a cache."""

    replayed: int = 0
    """How many more were not done, but given back from a journal; they count nowhere
    else."""

    seconds: float = 0.0
    """The sum of their durations; calls side by side count each."""

    p50: float | None = None
    """The median of the durations in seconds (nearest rank); None without any. Above
    65,536 calls, percentiles are those of every second, fourth, ... call."""

    p95: float | None = None
    """What 95 % of the durations do not exceed."""

    longest: float | None = None
    """The longest duration."""

    input_tokens: int = 0
    """Tokens sent."""

    output_tokens: int = 0
    """Tokens made."""

    cached_tokens: int = 0
    """Tokens sent that came from the provider's cache; part of `input_tokens`."""

    cost: float | None = None
    """What the calls say they cost (`usd`), else their tokens at the prices that were
    given; None when neither is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The numbers of a trace."""

    events: int
    """Events that were read."""

    skipped: int
    """Lines that are no event."""

    cut: bool
    """Whether the last line has no end: its writer died, or still writes."""

    started: float | None
    """The earliest time, in wall-clock seconds since 1970; None for an empty trace."""

    seconds: float
    """From the earliest to the latest time."""

    model_calls: TraceGroup
    """All model calls."""

    tool_calls: TraceGroup
    """All tool calls."""

    waits: TraceGroup
    """All waits."""

    failed_attempts: int
    """Attempts with an error, also of calls that went well in the end."""

    by_model: tuple[TraceGroup, ...]
    """Model calls by model; as all of these, the most frequent first."""

    by_tool: tuple[TraceGroup, ...]
    """Tool calls by tool."""

    by_pattern: tuple[TraceGroup, ...]
    """Patterns; their tokens are those of the `cost` at their ends."""

    by_step: tuple[TraceGroup, ...]
    """Steps of workflows and plans."""

    by_wait: tuple[TraceGroup, ...]
    """Waits by their reason."""

    errors: Mapping[str, int]
    """Failed patterns, steps and calls, and failed single events, by code."""

    @property
    def error_count(self) -> int:
        """How many failed."""
        return sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON data."""
        import dataclasses

        plain = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        for name, value in plain.items():
            if isinstance(value, TraceGroup):
                plain[name] = dataclasses.asdict(value)
            elif isinstance(value, tuple):
                plain[name] = [dataclasses.asdict(group) for group in value]
        plain["errors"] = dict(self.errors)
        return plain


class _Group:
    """A group that grows."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: Counter[str] = Counter()
        self._sample = array("d")
        self._stride = 1
        self._timed = 0
        self._seconds = 0.0
        self._longest: float | None = None
        self._cost: float | None = None

    @property
    def count(self) -> int:
        return self._counts["count"]

    def add(self, span: Span, cost: float | None) -> None:
        counts = self._counts
        if span.is_replayed:
            counts["replayed"] += 1
            return
        counts["count"] += 1
        counts["errors"] += span.error is not None
        counts["attempts"] += span.count("attempts")
        counts["cached"] += span.payload.get("cached") is True
        tokens = tokens_of(span)
        counts["input_tokens"] += tokens.input_tokens
        counts["output_tokens"] += tokens.output_tokens
        counts["cached_tokens"] += tokens.cache_read_tokens
        if cost is not None:
            self._cost = (self._cost or 0.0) + cost
        seconds = span.seconds
        if seconds is None:
            counts["unfinished"] += 1
            return
        self._seconds += seconds
        self._longest = max(self._longest or 0.0, seconds)
        self._remember(seconds)

    def _remember(self, seconds: float) -> None:
        if self._timed % self._stride == 0:
            self._sample.append(seconds)
            if len(self._sample) > _MAX_SAMPLE:
                self._sample = self._sample[::2]
                self._stride *= 2
        self._timed += 1

    def done(self) -> TraceGroup:
        ordered = sorted(self._sample)
        return TraceGroup(
            name=self._name,
            seconds=round(self._seconds, 6),
            p50=_percentile(ordered, 0.5),
            p95=_percentile(ordered, 0.95),
            longest=self._longest,
            cost=None if self._cost is None else round(self._cost, 8),
            **self._counts,
        )


def _percentile(ordered: list[float], share: float) -> float | None:
    """The nearest rank: the smallest value that `share` of all do not exceed."""
    if not ordered:
        return None
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def tokens_of(span: Span) -> TokenUsage:
    """What one call used; for patterns, what their end says about the whole run."""
    source: Span = span
    keys = ("input_tokens", "output_tokens", "cached_tokens")
    if span.kind in {"pattern", "step"}:
        cost = span.payload.get("cost")
        if not isinstance(cost, Mapping):
            return TokenUsage()
        source = Span(span.kind, "", "", 0.0, payload=dict(cost))
        keys = ("input_tokens", "output_tokens", "cache_read_tokens")
    sent, made, read = (source.count(key) for key in keys)
    return TokenUsage(input_tokens=sent, output_tokens=made, cache_read_tokens=read)


def cost_of(span: Span, prices: Prices | None) -> float | None:
    """What a model call (or whatever has `usd`) cost; None = not known."""
    told = number(span.payload.get("usd"))
    if told is not None and told >= 0:
        return told
    if prices is None or span.kind not in {"model", "pattern"} or span.end is None:
        return None
    return prices.cost(tokens_of(span))


class Summarizer:
    """Adds spans up; its memory does not grow with their number.

    Args:
        prices: What a million tokens cost, for calls that do not say their cost.
    """

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices
        self._all = {kind: _Group(kind) for kind in ("model", "tool", "wait")}
        self._by: dict[str, dict[str, _Group]] = {
            kind: {} for kind in ("model", "tool", "pattern", "step", "wait")
        }
        self._errors: Counter[str] = Counter()
        self._failed_attempts = 0
        self._first: float | None = None
        self._last = 0.0

    def see(self, record: Record) -> None:
        """Note the time of an event."""
        self._stretch(record.time)

    def add(self, span: Span) -> None:
        """Count one span."""
        self._stretch(span.start)
        if span.kind == "attempt":
            # A failed round over several providers sent nothing but its own attempts.
            sent = span.payload.get("requests") != 0
            self._failed_attempts += sent and span.error is not None
            return
        if span.error is not None and not span.is_replayed:
            code = span.error if len(self._errors) < _MAX_NAMES else _OTHERS
            self._errors[code] += 1
        names = self._by.get(span.kind)
        if names is None:
            return
        cost = cost_of(span, self._prices)
        name = span.name
        if name not in names and len(names) >= _MAX_NAMES:
            name = _OTHERS
        names.setdefault(name, _Group(name)).add(span, cost)
        if span.kind in self._all:
            self._all[span.kind].add(span, cost)

    def done(self, reader: Reader) -> TraceSummary:
        """The summary of all that was added."""
        found = {
            kind: tuple(
                group.done()
                for group in sorted(groups.values(), key=lambda item: -item.count)
            )
            for kind, groups in self._by.items()
        }
        first = self._first
        return TraceSummary(
            events=reader.events,
            skipped=reader.skipped,
            cut=reader.cut,
            started=first,
            seconds=0.0 if first is None else round(self._last - first, 6),
            model_calls=self._all["model"].done(),
            tool_calls=self._all["tool"].done(),
            waits=self._all["wait"].done(),
            failed_attempts=self._failed_attempts,
            by_model=found["model"],
            by_tool=found["tool"],
            by_pattern=found["pattern"],
            by_step=found["step"],
            by_wait=found["wait"],
            errors=freeze_mapping(dict(self._errors.most_common())),
        )

    def _stretch(self, time: float) -> None:
        if self._first is None or time < self._first:
            self._first = time
        self._last = max(self._last, time)


def summarize_trace(
    source: Source, *, prices: Prices | None = None, secrets: Iterable[str] = ()
) -> TraceSummary:
    """Add up what a trace tells; reads it once, in bounded memory.

    Args:
        source: A file of JSON lines (as `JsonlTraceSink` writes it), several of them,
            or events (`TraceEvent`, or the same as dicts). `-` is standard input.
        prices: What a million tokens cost, for calls that do not say their cost.
        secrets: Values that are known to be secret.

    Raises:
        OSError: When a file cannot be read.
        TypeError: For a source of another kind.
    """
    reader = Reader(secrets=secrets)
    pairing, adder = Pairing(), Summarizer(prices)
    for record in reader.records(source):
        adder.see(record)
        for span in pairing.feed(record):
            adder.add(span)
    for span in pairing.finish():
        adder.add(span)
    return adder.done(reader)
