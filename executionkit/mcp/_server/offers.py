"""Resources and prompts: what a server offers beside tools."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from executionkit.types import sealed

__all__ = ("Prompt", "PromptArgument", "Resource", "Table", "prompt_messages")

_MAX_URI: Final = 2048
_FIELD: Final = re.compile(r"\{(\w+)\}")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something that clients can read, under a URI.

    A URI with fields (`notes://{name}`) is a template; a field stands for one segment.
    """

    uri: str
    name: str
    read: Callable[..., Any]
    """Called with the fields of the URI by name; gives a text, bytes, or JSON. Plain
    or `async`; a plain one should not block."""

    description: str | None = None
    title: str | None = None
    mime_type: str | None = None
    complete: Callable[[str, str], Iterable[str]] | None = None
    """Proposes values: called with the name of a field and its beginning."""

    @property
    def is_template(self) -> bool:
        """Whether the URI has fields."""
        return _FIELD.search(self.uri) is not None

    @property
    def key(self) -> str:
        return self.uri

    def match(self, uri: str) -> dict[str, str] | None:
        """The fields of `uri`; None when this is not the resource that it names."""
        if not self.is_template:
            return {} if uri == self.uri else None
        if len(uri) > _MAX_URI:
            return None
        parts = _FIELD.split(self.uri)
        pattern = "".join(
            f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        )
        found = re.fullmatch(pattern, uri)
        return None if found is None else found.groupdict()

    def describe(self) -> dict[str, Any]:
        """The entry in the list."""
        made: dict[str, Any] = {
            "uriTemplate" if self.is_template else "uri": self.uri,
            "name": self.name,
        }
        return _with(
            made,
            title=self.title,
            description=self.description,
            mimeType=self.mime_type,
        )

    def contents(self, uri: str, value: object) -> dict[str, Any]:
        """What `read` gave, as the contents of a resource."""
        made: dict[str, Any] = {"uri": uri}
        mime = self.mime_type
        if isinstance(value, (bytes, bytearray)):
            made["mimeType"] = mime or "application/octet-stream"
            made["blob"] = base64.b64encode(value).decode("ascii")
        elif isinstance(value, str):
            made["mimeType"] = mime or "text/plain"
            made["text"] = value
        else:
            from executionkit.calls import render_result

            made["mimeType"] = mime or "application/json"
            made["text"] = render_result(value)
        return made


@sealed
@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt; always a text."""

    name: str
    description: str | None = None
    required: bool = True


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation to begin with, made from arguments."""

    name: str
    render: Callable[..., Any]
    """Called with the arguments by name; gives a text, or a list of messages
    (`{"role": ..., "content": block}`). Plain or `async`."""

    description: str | None = None
    title: str | None = None
    arguments: tuple[PromptArgument, ...] = ()
    complete: Callable[[str, str], Iterable[str]] | None = None
    """Proposes values: called with the name of an argument and its beginning."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(self.arguments))

    @property
    def key(self) -> str:
        return self.name

    def describe(self) -> dict[str, Any]:
        """The entry in the list."""
        made = _with(
            {"name": self.name}, title=self.title, description=self.description
        )
        if self.arguments:
            made["arguments"] = [
                _with(
                    {"name": item.name, "required": item.required},
                    description=item.description,
                )
                for item in self.arguments
            ]
        return made


def _with(made: dict[str, Any], **more: str | None) -> dict[str, Any]:
    made.update({key: value for key, value in more.items() if value is not None})
    return made


def prompt_messages(value: object) -> list[Any]:
    """What `render` gave, as messages."""
    if isinstance(value, str):
        return [{"role": "user", "content": {"type": "text", "text": value}}]
    if isinstance(value, Mapping):
        return [dict(value)]
    return list(value) if isinstance(value, Iterable) else []


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


_T = TypeVar("_T", bound=_Keyed)


class Table(Generic[_T]):
    """Entries by key, in the order in which they came."""

    def __init__(self, items: Iterable[_T] = ()) -> None:
        self._items: dict[str, _T] = {item.key: item for item in items}
        self.version: int = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: _T) -> None:
        """Add an entry, or put it in the place of that of the same key."""
        self._items[item.key] = item
        self.version += 1

    def remove(self, key: str) -> bool:
        """Take an entry away; False when there was none."""
        found = self._items.pop(key, None) is not None
        self.version += found
        return found

    def find(self, key: str) -> _T | None:
        """The entry of that key."""
        return self._items.get(key)

    def all(self) -> tuple[_T, ...]:
        """All entries."""
        return tuple(self._items.values())


async def outcome(value: Any) -> Any:
    """`value`, awaited when it is to be."""
    return await value if inspect.isawaitable(value) else value
