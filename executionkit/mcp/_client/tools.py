"""The tools of a server in a registry: their names, what is said of them, changes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from executionkit._frozen import freeze_mapping, sealed
from executionkit.errors import ToolRegistrationError
from executionkit.tools._registry.names import full_name
from executionkit.types import Tool

if TYPE_CHECKING:
    from executionkit.tools.registry import ToolRegistry

__all__ = ("RemoteTool", "Selection", "Shelf", "local_name", "side_effects_of")

_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_WIRE: Final = 64
_MIN_NAME: Final = 16
_DIGEST: Final = 8
_READS: Final = frozenset({"none", "read"})


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which tools of a server are taken, and what they are called here."""

    namespace: str
    prefix: str = ""
    """Put before each name, with a `_` between."""

    include: tuple[str, ...] = ()
    """Names or globs, as the server says them. Empty = all."""

    exclude: tuple[str, ...] = ()
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """More metadata, by the server's name of the tool."""

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            value: Any = getattr(self, name)
            if isinstance(value, str):
                msg = f"`{name}` must be a list of names, got the str {value!r}"
                raise TypeError(msg)
            object.__setattr__(self, name, tuple(value))
        if self.prefix and not _SAFE.fullmatch(self.prefix):
            msg = f"`prefix` may have letters, digits, _ and -, got {self.prefix!r}"
            raise ValueError(msg)
        object.__setattr__(self, "overrides", freeze_mapping(self.overrides))

    def takes(self, name: str) -> bool:
        """Whether that tool is wanted."""
        if self.include and not any(fnmatchcase(name, item) for item in self.include):
            return False
        return not any(fnmatchcase(name, item) for item in self.exclude)


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTool:
    """One tool of a server."""

    name: str
    """As the server calls it; this goes over the wire."""

    full_name: str
    """As the registry knows it."""

    has_schema: bool = False
    """Whether the server says what results look like."""

    is_safe: bool = False
    """Whether a call that may have begun can be sent again."""


def local_name(
    name: str, selection: Selection, server: str, *, taken: bool = False
) -> str:
    """A name of allowed characters that fits, with its namespace, into 64 of them.

    It depends on the server's and the tool's name alone. What had to be changed, and a
    name that somebody else has already (`taken`), ends in a part of a hash.
    """
    whole = f"{selection.prefix}_{name}" if selection.prefix else name
    room = _MAX_WIRE
    if selection.namespace != "default":
        room = max(_MIN_NAME, room - len(selection.namespace) - 2)
    if not taken and len(whole) <= room and _SAFE.fullmatch(whole):
        return whole
    text = f"{server}\0{name}".encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(text).hexdigest()[:_DIGEST]
    kept = _ODD.sub("_", whole)[: room - _DIGEST - 1].strip("_-") or "tool"
    return f"{kept}_{digest}"


def side_effects_of(hints: Any, *, trusted: bool) -> tuple[str, bool]:
    """(side effects, idempotent), as the server's hints say.

    What makes a tool look harmless counts only when the server is trusted.
    """
    if hints is None:
        return "unknown", False
    idempotent = bool(hints.idempotent_hint) and trusted
    if hints.read_only_hint:
        return ("read", True) if trusted else ("unknown", False)
    if hints.destructive_hint:
        return "destructive", idempotent
    if hints.read_only_hint is False and hints.destructive_hint is False and trusted:
        return "write", idempotent
    return "unknown", idempotent


Executes = Callable[[RemoteTool], tuple[Callable[..., Any], Callable[..., Any]]]
"""Gives, for a tool, the function that calls it and the one that also gives progress."""


class Shelf:
    """The tools of one server in a registry.

    Args:
        registry: Where they stand.
        server: The server's name.
        selection: Which, and under which names.
        trusted: Whether the server's hints are believed.
        executes: Makes the functions.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        server: str,
        selection: Selection,
        executes: Executes,
        *,
        trusted: bool,
    ) -> None:
        self._registry = registry
        self._server = server
        self._selection = selection
        self._executes = executes
        self._trusted = trusted
        self._prints: dict[str, str] = {}
        self.tools: dict[str, RemoteTool] = {}
        """By the server's name."""
        self.problems: dict[str, str] = {}
        """Tools that could not be registered, and why."""

    def update(self, listed: Iterable[Any], spoilt: Mapping[str, str]) -> bool:
        """Make the registry say what the server says; whether anything changed.

        Args:
            listed: The tools.
            spoilt: Those that cannot be read, and why.
        """
        takes = self._selection.takes
        self.problems = {name: why for name, why in spoilt.items() if takes(name)}
        wanted: dict[str, Any] = {}
        for item in listed:
            if not takes(item.name):
                continue
            if item.name in wanted:
                self.problems[item.name] = "the server lists two tools of that name"
                continue
            wanted[item.name] = item
        gone = [name for name in self.tools if name not in wanted]
        for name in gone:
            self._remove(name)
        changed = bool(gone)
        for item in wanted.values():
            changed = self._put(item) or changed
        return changed

    def clear(self) -> None:
        """Take all tools away."""
        for name in list(self.tools):
            self._remove(name)

    def _remove(self, name: str) -> None:
        tool = self.tools.pop(name)
        del self._prints[name]
        bare = self._bare(tool)
        if self._is_ours(bare):
            self._registry.remove(bare, self._selection.namespace)

    def _bare(self, tool: RemoteTool) -> str:
        space = self._selection.namespace
        return (
            tool.full_name if space == "default" else tool.full_name[len(space) + 1 :]
        )

    def _is_ours(self, bare: str) -> bool:
        record = self._registry.find(bare, self._selection.namespace)
        source: Any = None if record is None else record.source
        function = getattr(source, "execute", None)
        return getattr(function, "shelf", None) is self

    def _put(self, item: Any) -> bool:
        data: dict[str, Any] = item.model_dump(by_alias=True, mode="json")
        text = json.dumps(data, sort_keys=True)
        known = self.tools.get(item.name)
        if known is not None and self._prints[item.name] == text:
            return False
        try:
            made = self._register(item, known)
        except ToolRegistrationError as exc:
            self.problems[item.name] = str(exc)
            if known is not None:
                self._remove(item.name)
            return known is not None
        self.tools[item.name] = made
        self._prints[item.name] = text
        return True

    def _register(self, item: Any, known: RemoteTool | None) -> RemoteTool:
        selection = self._selection
        more = self._metadata(item)
        bare = self._bare(known) if known is not None else self._free_name(item.name)
        remote = RemoteTool(
            name=item.name,
            full_name=full_name(bare, selection.namespace),
            has_schema=item.output_schema is not None,
            is_safe=more["idempotent"] or more["side_effects"] in _READS,
        )
        execute, stream = self._executes(remote)
        execute.shelf = self  # type: ignore[attr-defined]  # tells ours from others
        schema = {**item.input_schema}
        schema.setdefault("type", "object")
        try:
            tool = Tool(bare, item.description or "", schema, execute, None)
        except (TypeError, ValueError) as exc:
            raise ToolRegistrationError(str(exc), original_error=exc) from exc
        record = self._registry.add(
            tool, bare, selection.namespace, more, replace=known is not None
        )
        # Not a streaming tool, whose results are never kept: the value is one value,
        # and what comes before it is only shown.
        record.stream = stream
        return remote

    def _free_name(self, name: str) -> str:
        selection, server = self._selection, self._server
        bare = local_name(name, selection, server)
        if self._registry.find(bare, selection.namespace) is None:
            return bare
        return local_name(name, selection, server, taken=True)

    def _metadata(self, item: Any) -> dict[str, Any]:
        hints = item.annotations
        effects, idempotent = side_effects_of(hints, trusted=self._trusted)
        said: dict[str, Any] = {
            "side_effects": effects,
            "idempotent": idempotent,
            "timeout": None,
            "source": "mcp",
            "source_name": f"{self._server}:{item.name}",
            "title": item.title or getattr(hints, "title", None) or "",
        }
        if item.output_schema is not None:
            said["result_schema"] = item.output_schema
        said.update(self._selection.overrides.get(item.name, {}))
        return said
