"""The page: data, style and program in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executionkit.viewer._records import Reader, Source
from executionkit.viewer._spans import KINDS, Pairing, Span
from executionkit.viewer._summary import Summarizer, cost_of, tokens_of

if TYPE_CHECKING:
    from executionkit.cost import Prices
    from executionkit.viewer._summary import TraceSummary

__all__ = ("TracePage", "is_trace_page", "render_trace", "write_trace_page")

GENERATOR: Final = '<meta name="generator" content="executionkit trace view">'
"""By this a page is known to be one of ours."""

_MICRO: Final = 1_000_000
_CACHED, _BLOCKED, _ORPHAN, _REPLAYED = 1, 2, 4, 8
_SHOWN_AS_COLUMNS: Final = ("duration",)


class TracePage:
    """Collects the spans of a trace and makes the page.

    Args:
        prices: What a million tokens cost, for calls that do not say their cost.
        secrets: Values that are known to be secret.
        max_spans: How many are shown; the summary counts all.
    """

    def __init__(
        self,
        *,
        prices: Prices | None = None,
        secrets: Iterable[str] = (),
        max_spans: int = 200_000,
    ) -> None:
        if max_spans < 1:
            msg = f"`max_spans` must be >= 1, got {max_spans}"
            raise ValueError(msg)
        self._prices = prices
        self._reader = Reader(secrets=secrets)
        self._adder = Summarizer(prices)
        self._max = max_spans
        self._spans: list[Span] = []
        self._left_out = 0

    def read(self, source: Source) -> TraceSummary:
        """Read all of `source`; the summary of it."""
        pairing = Pairing()
        for record in self._reader.records(source):
            self._adder.see(record)
            for span in pairing.feed(record):
                self._add(span)
        for span in pairing.finish():
            self._add(span)
        return self._adder.done(self._reader)

    def _add(self, span: Span) -> None:
        self._adder.add(span)
        if len(self._spans) < self._max:
            self._spans.append(span)
        else:
            self._left_out += 1

    def html(self, title: str | None = None) -> str:
        """The page."""
        summary = self._adder.done(self._reader)
        names = self._reader.names
        shown = title if title is not None else ", ".join(names[:3]) or "Trace"
        if title is None and len(names) > 3:
            shown += f" and {len(names) - 3} more"
        shown = self._reader.clean(shown)
        data = {
            "title": shown,
            "files": names,
            "kinds": KINDS,
            "unit": "$" if self._prices is None else "",
            "leftOut": self._left_out,
            "summary": summary.as_dict(),
            **_columns(self._spans, summary.started or 0.0, self._prices),
        }
        return _assemble(shown, data)

    def write(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Write the page to a file, as a whole or not at all.

        Raises:
            OSError: When it cannot be written.
        """
        _write(self.html(title), path)


def _columns(
    spans: list[Span], zero: float, prices: Prices | None
) -> dict[str, list[Any]]:
    """The spans by their start, as one list for each fact."""
    spans.sort(key=lambda span: span.start)
    parents = _parents(spans)
    names: dict[str, int] = {"": 0}
    columns: dict[str, list[Any]] = {key: [] for key in "knpsdeiocfrx"}

    def index_of(text: str) -> int:
        return names.setdefault(text, len(names))

    for span, parent in zip(spans, parents, strict=True):
        tokens = tokens_of(span)
        seconds = span.seconds
        flags = _CACHED if span.payload.get("cached") is True else 0
        flags |= _BLOCKED if span.payload.get("blocked") is True else 0
        flags |= _ORPHAN if span.is_orphan else 0
        flags |= _REPLAYED if span.is_replayed else 0
        row = {
            "k": KINDS.index(span.kind),
            "n": index_of(span.name),
            "p": parent,
            "s": round((span.start - zero) * _MICRO),
            "d": -1 if seconds is None else round(seconds * _MICRO),
            "e": index_of(span.error or ""),
            "i": tokens.input_tokens,
            "o": tokens.output_tokens,
            "c": _rounded(cost_of(span, prices)),
            "f": flags,
            "r": index_of(span.request_id or ""),
            "x": {k: v for k, v in span.payload.items() if k not in _SHOWN_AS_COLUMNS},
        }
        for key, value in row.items():
            columns[key].append(value)
    return {**columns, "names": list(names)}


def _rounded(cost: float | None) -> float:
    return 0 if cost is None else round(cost, 8)


def _parents(spans: list[Span]) -> list[int]:
    """The index of each span's parent; -1 = it has none. Circles are cut open."""
    by_id = {span.id: index for index, span in enumerate(spans) if span.id}
    by_call = {
        call: index
        for index, span in enumerate(spans)
        if span.kind not in {"event", "attempt", "wait"}
        and isinstance(call := span.payload.get("call_id"), str)
    }
    parents: list[int] = []
    for index, span in enumerate(spans):
        found = by_id.get(span.parent_id, -1) if span.parent_id else -1
        if found < 0 and span.kind == "event":  # tells of the span that it names
            found = by_id.get(span.id, -1) if span.id else -1
            if found in {-1, index}:
                found = by_call.get(str(span.payload.get("call_id")), -1)
        parents.append(-1 if found == index else found)
    return _without_circles(parents)


def _without_circles(parents: list[int]) -> list[int]:
    seen = [0] * len(parents)
    for start in range(len(parents)):
        at = start
        while at >= 0 and not seen[at]:
            seen[at] = start + 1
            above = parents[at]
            if above >= 0 and seen[above] == start + 1:
                parents[at] = -1
                break
            at = above
    return parents


@cache
def _asset(name: str) -> str:
    return (files("executionkit.viewer") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _assemble(title: str, data: dict[str, Any]) -> str:
    style, program = _asset("page.css"), _asset("page.js")
    # Only this style and this program count; nothing may be loaded from anywhere.
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(program)}; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "GENERATOR": GENERATOR,
        "TITLE": html.escape(title.encode("utf-8", "replace").decode()),
        "STYLE": style,
        "DATA": _safe_json(data),
        "PROGRAM": program,
    }
    pieces = _asset("page.html").split("%%")  # text, name, text, name, ..., text
    return "".join(
        parts[piece] if place % 2 else piece for place, piece in enumerate(pieces)
    )


def _safe_json(data: object) -> str:
    """JSON in ASCII in which nothing can end a script, or begin a tag or a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def render_trace(
    source: Source,
    *,
    title: str | None = None,
    prices: Prices | None = None,
    secrets: Iterable[str] = (),
    max_spans: int = 200_000,
) -> str:
    """A trace as one HTML page that loads nothing and shows no secret.

    Everything goes through the redactor again: the file may be older than this
    version, or come from somewhere else.

    Args:
        source: A file of JSON lines (as `JsonlTraceSink` writes it), several of them,
            or events (`TraceEvent`, or the same as dicts). `-` is standard input.
        title: What stands above it. None = the names of the files.
        prices: What a million tokens cost, for calls that do not say their cost.
        secrets: Values that are known to be secret.
        max_spans: How many calls, attempts, waits and single events are shown at most;
            the page says how many are left out. All of them are counted.

    Raises:
        OSError: When a file cannot be read.
        TypeError: For a source of another kind.
    """
    page = TracePage(prices=prices, secrets=secrets, max_spans=max_spans)
    page.read(source)
    return page.html(title)


def write_trace_page(
    source: Source,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    prices: Prices | None = None,
    secrets: Iterable[str] = (),
    max_spans: int = 200_000,
) -> None:
    """Write the page of `render_trace` to a file, readable by its owner only.

    The file is replaced as a whole, or not at all.

    Args:
        source: See `render_trace`.
        path: The file; its folder must exist.
        title: See `render_trace`.
        prices: See `render_trace`.
        secrets: See `render_trace`.
        max_spans: See `render_trace`.

    Raises:
        OSError: When a file cannot be read or written.
        TypeError: For a source of another kind.
    """
    page = TracePage(prices=prices, secrets=secrets, max_spans=max_spans)
    page.read(source)
    page.write(path, title)


def _write(text: str, path: str | os.PathLike[str]) -> None:
    """Put a page in its place; the file is never half written."""
    target = Path(path).resolve()
    handle, name = tempfile.mkstemp(prefix=".trace-", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def is_trace_page(path: Path) -> bool:
    """Whether a file is one of these pages."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return GENERATOR in file.read(2048)
    except OSError:
        return False
