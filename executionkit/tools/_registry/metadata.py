"""What is said about a tool besides its function: what is enforced, and what is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from executionkit._constants import SIDE_EFFECTS
from executionkit._frozen import freeze_mapping, sealed
from executionkit.errors import ToolRegistrationError

__all__ = (
    "NOT_GIVEN",
    "SIDE_EFFECTS",
    "NotGiven",
    "ToolInfo",
    "ToolMetadata",
    "best_matches",
    "read_metadata",
)


class NotGiven(Enum):
    """Tells an argument that was left out from None."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
"""The default of arguments whose None means something."""


@sealed
@dataclass(frozen=True, slots=True)
class ToolInfo:
    """Where a tool is; its text is `namespace:name`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetadata:
    """All that a registry knows about a tool.

    `timeout`, `rate_limit`, `concurrency_limit`, `max_retries`, `cacheable`,
    `side_effects`, `idempotent`, `cost` and `supports_streaming` are enforced or obeyed
    when it is called; `defer_loading` hides it from lists; the rest is kept for those
    who ask. (`executionkit`'s top-level `ToolMetadata` is another one: a scheduler's.)
    """

    name: str
    namespace: str = "default"
    description: str = ""
    version: str = "1.0.0"
    is_async: bool = True
    """Whether it runs on the event loop; else in a thread."""

    argument_schema: Mapping[str, Any] = field(default_factory=freeze_mapping)
    result_schema: Mapping[str, Any] | None = None
    """JSON Schema of what it returns, where known."""

    title: str = ""
    """A name for people."""

    requires_auth: bool = False
    tags: frozenset[str] = frozenset()
    side_effects: str = "unknown"
    """`"none"`, `"read"`, `"write"`, `"destructive"` or `"unknown"`."""

    idempotent: bool = False
    cacheable: bool | None = None
    """None = decided from `side_effects`."""

    cost: float = 0.0
    timeout: float | None = None
    """Seconds one call may run; None = no limit."""

    rate_limit: tuple[int, float] | None = None
    """(calls, seconds); None = no limit of its own."""

    concurrency_limit: int | None = None
    """Calls at once; None = no limit of its own."""

    max_retries: int | None = None
    supports_streaming: bool = False
    source: str = ""
    """`class`, `instance`, `function`, `tool`, `langchain`; or what was given."""

    source_name: str = ""
    """Where it comes from: module and qualified name, unless given."""

    execution_options: Mapping[str, Any] = field(default_factory=freeze_mapping)
    dependencies: tuple[str, ...] = ()
    defer_loading: bool = False
    """True hides it from lists and exports until it is loaded or called."""

    search_keywords: tuple[str, ...] = ()
    import_path: str | None = None
    allowed_callers: tuple[str, ...] = ()
    mcp_factory_params: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """What was said under names that the library does not know."""

    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def is_mutating(self) -> bool:
        """Whether a call may change something; True when nothing is known."""
        return self.side_effects not in ("none", "read")


_SAME: Final[Mapping[str, str]] = {
    "concurrency_limit": "max_concurrency",
    "supports_streaming": "streaming",
    "argument_schema": "parameters",
}
_OF_TOOL: Final = frozenset(
    {
        *("cacheable", "cost", "description", "idempotent", "max_concurrency"),
        *("max_retries", "parameters", "rate_limit", "side_effects", "streaming"),
        *("tags", "timeout", "version"),
    }
)
_KEPT: Final = frozenset(
    {
        *("allowed_callers", "defer_loading", "dependencies", "execution_options"),
        *("import_path", "mcp_factory_params", "requires_auth", "result_schema"),
        *("search_keywords", "source", "source_name", "title"),
    }
)
_RESERVED: Final = frozenset({"name", "namespace", "is_async", "extra", "execute"})
_KNOWN: Final = sorted(_OF_TOOL | _KEPT | set(_SAME))
_TEXTS: Final = ("description", "version", "title", "source", "source_name")
_SWITCHES: Final = ("idempotent", "streaming", "defer_loading", "requires_auth")
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_SWITCHES, (bool,)),
    "cacheable": (bool, type(None)),
}
_TUPLES: Final = frozenset({"dependencies", "search_keywords", "allowed_callers"})


def read_metadata(label: str, *given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of `Tool`, fields of `ToolMetadata`) from what users said.

    Args:
        label: The tool, for errors.
        given: Mappings or None, the later ones more important.

    Raises:
        ToolRegistrationError: For a value that cannot be meant, or a misspelt name.
    """
    of_tool: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for mapping in given:
        if mapping is None:
            continue
        if not isinstance(mapping, Mapping):
            kind = type(mapping).__name__
            raise _refusal(label, f"`metadata` must be a mapping, got {kind}")
        said: Mapping[str, Any] = mapping
        for key, value in said.items():
            name: str = _SAME.get(key, key)
            home = of_tool if name in _OF_TOOL else kept if name in _KEPT else extra
            if home is extra:
                _check_unknown(label, key)
                extra[key] = value
            elif value is not NOT_GIVEN:
                home[name] = _read(label, key, name, value)
    if extra:
        kept["extra"] = freeze_mapping(extra)
    return of_tool, kept


def _refusal(label: str, why: str) -> ToolRegistrationError:
    return ToolRegistrationError(f"Tool {label}: {why}")


def _check_unknown(label: str, key: object) -> None:
    import difflib

    if not isinstance(key, str):
        raise _refusal(label, f"metadata has names of type str, got {key!r}")
    if key in _RESERVED:
        why = f"`{key}` is reserved; it is no metadata"
        if key in {"name", "namespace"}:
            why = f"`{key}` is reserved; give it as an argument, not in the metadata"
        raise _refusal(label, why)
    close = difflib.get_close_matches(key, _KNOWN, n=1, cutoff=0.8)
    if close:
        raise _refusal(label, f"unknown metadata `{key}`; did you mean `{close[0]}`?")


def _read(label: str, key: str, name: str, value: Any) -> Any:
    if name == "rate_limit":
        return _read_rate(label, value)
    if name in _TUPLES or name == "tags":
        return _read_names(label, key, value, as_set=name == "tags")
    if name == "side_effects":
        if value not in SIDE_EFFECTS:
            known = ", ".join(SIDE_EFFECTS)
            raise _refusal(label, f"`{key}` must be one of {known}, got {value!r}")
        return str(value)
    wanted = _KINDS.get(name)
    if wanted is not None and not isinstance(value, wanted):
        kinds = " or ".join(kind.__name__ for kind in wanted)
        raise _refusal(label, f"`{key}` must be {kinds}, got {value!r}")
    if name == "cost":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 <= value < float("inf"):
            raise _refusal(label, f"`cost` must be a number >= 0, got {value!r}")
    if isinstance(value, Mapping):
        return freeze_mapping(value)
    return value


def _read_rate(label: str, value: Any) -> tuple[int, float] | None:
    """(calls, seconds); a number alone is calls a minute."""
    if value is None or isinstance(value, tuple):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value, 60.0
    if isinstance(value, list) and len(value) == 2:
        return value[0], value[1]
    why = f"`rate_limit` must be (calls, seconds) or calls a minute, got {value!r}"
    raise _refusal(label, why)


def _read_names(label: str, key: str, value: Any, *, as_set: bool) -> Any:
    if value is None:
        value = ()
    good = isinstance(value, (list, tuple, set, frozenset)) and all(
        isinstance(item, str) for item in value
    )
    if not good:
        raise _refusal(label, f"`{key}` must be a list of str, got {value!r}")
    return frozenset(value) if as_set else tuple(value)


def best_matches(
    found: Iterable[ToolMetadata], query: str, tags: frozenset[str], limit: int
) -> list[ToolMetadata]:
    """Those that have most words of `query`, best first; all when it is empty."""
    words = query.lower().replace("_", " ").split()
    scored: list[tuple[int, ToolMetadata]] = []
    for item in found:
        if tags and not tags & item.tags:
            continue
        parts = (item.name, item.namespace, item.description)
        text = " ".join((*parts, *item.search_keywords, *item.tags)).lower()
        score = sum(word in text for word in words)
        if score or not words:
            scored.append((score, item))
    scored.sort(key=lambda pair: -pair[0])
    return [item for _, item in scored[: max(0, limit)]]
