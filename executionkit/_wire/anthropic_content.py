"""Content parts and tools: from OpenAI's form to Anthropic's.

What has Anthropic's form already passes through as it is, `cache_control` included.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from executionkit._wire.common import text_of_part

__all__ = (
    "ToolIds",
    "blocks_of",
    "system_of",
    "to_tool",
    "to_tool_choice",
    "tool_result",
    "tool_use",
)

_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.-]+)*;base64,")
_BAD_ID_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_CHOICES: Final[Mapping[str, str]] = {
    "auto": "auto",
    "required": "any",
    "any": "any",
    "none": "none",
}
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})


class ToolIds:
    """Call ids as Anthropic takes them: letters, digits, `_` and `-`, each one once.

    Models and servers use an id again in a later turn. So a result belongs to the first
    call of its id that has none yet, not to the id.
    """

    __slots__ = ("_last", "_numbers", "_open", "_taken")

    def __init__(self) -> None:
        self._open: dict[str, deque[str]] = {}
        self._last: dict[str, str] = {}
        self._numbers: dict[str, int] = {}  # where to go on when an id comes again
        self._taken: set[str] = set()

    def call(self, call_id: object) -> str:
        """The id to send for a call."""
        given = str(call_id)
        base = _BAD_ID_CHARS.sub("_", given) or "call"
        sent = base
        number = self._numbers.get(base, 2)
        while sent in self._taken:
            sent = f"{base}-{number}"
            number += 1
        self._numbers[base] = number
        self._taken.add(sent)
        self._open.setdefault(given, deque()).append(sent)
        self._last[given] = sent
        return sent

    def result(self, call_id: object) -> str:
        """The id to send for a result."""
        given = str(call_id)
        waiting = self._open.get(given)
        if waiting:
            return waiting.popleft()
        return self._last.get(given) or self.call(given)


def _source(url: str) -> dict[str, Any]:
    match = _DATA_URL.match(url)
    if match is None:
        return {"type": "url", "url": url}
    return {
        "type": "base64",
        "media_type": match[1],
        "data": url[match.end() :],
    }


def _with_cache_mark(block: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("cache_control") is not None:
        block["cache_control"] = part["cache_control"]
    return block


def _block(part: object) -> dict[str, Any] | None:
    """One content part; None when it is empty, which Anthropic refuses."""
    if isinstance(part, str):
        return {"type": "text", "text": part} if part else None
    if not isinstance(part, Mapping):
        msg = f"a content part must be a text or an object, got {type(part).__name__}"
        raise TypeError(msg)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_TYPES:
        if kind == "text" and part.get("text"):
            return dict(part)
        text = text_of_part({**part, "type": "text"})
        return _with_cache_mark({"type": "text", "text": text}, part) if text else None
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        block = {"type": "image", "source": _source(str(url))}
        return _with_cache_mark(block, part)
    file = part.get("file")
    if kind == "file" and isinstance(file, Mapping) and file.get("file_data"):
        block = {"type": "document", "source": _source(str(file["file_data"]))}
        if file.get("filename"):
            block["title"] = file["filename"]
        return _with_cache_mark(block, part)
    if kind == "refusal":
        return _block(part.get("refusal") or "")
    return dict(part)


def blocks_of(content: object) -> list[dict[str, Any]]:
    """A message's content as Anthropic blocks; empty texts are left out.

    Raises:
        TypeError: When it is neither null, a text, nor a list of parts.
    """
    if content is None:
        return []
    if isinstance(content, (str, Mapping)):
        content = [content]
    if not isinstance(content, (list, tuple)):
        msg = f"`content` must be a text or a list, got {type(content).__name__}"
        raise TypeError(msg)
    return [block for part in content if (block := _block(part)) is not None]


def system_of(contents: list[object]) -> str | list[dict[str, Any]]:
    """The contents of the system messages as the `system` of a request."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join([str(content) for content in contents if content])
    return [block for content in contents for block in blocks_of(content)]


def tool_use(
    call_id: str, name: object, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The block of a call that the model made."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def tool_result(call_id: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a call's result, from a message of the role `tool`."""
    content = message.get("content")
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": content if isinstance(content, str) else blocks_of(content),
    }
    if message.get("is_error"):
        block["is_error"] = True
    return _with_cache_mark(block, message)


def to_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's function form as Anthropic's; any other form as it is."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    known = {"name", "description", "parameters", "type", "function"}
    changed: dict[str, Any] = {"name": function.get("name")}
    if function.get("description"):
        changed["description"] = function["description"]
    schema = function.get("parameters")
    changed["input_schema"] = schema or {"type": "object", "properties": {}}
    for source in (function, tool):
        changed.update({k: v for k, v in source.items() if k not in known})
    return changed


def to_tool_choice(choice: object, *, parallel: object = None) -> dict[str, Any] | None:
    """OpenAI's `tool_choice` as Anthropic's; None = do not send one.

    Args:
        choice: `"auto"`, `"required"`, `"none"`, an object in either form, or None.
        parallel: OpenAI's `parallel_tool_calls`; False turns parallel calls off.

    Raises:
        ValueError: When it is none of these.
    """
    made: dict[str, Any]
    if choice is None:
        if parallel is not False:
            return None
        made = {"type": "auto"}
    elif isinstance(choice, str) and choice in _CHOICES:
        made = {"type": _CHOICES[choice]}
    elif isinstance(choice, Mapping):
        function = choice.get("function")
        if isinstance(function, Mapping):
            made = {"type": "tool", "name": function.get("name")}
        else:
            made = dict(choice)
    else:
        msg = (
            "`tool_choice` must be 'auto', 'required', 'none', or an object, "
            f"got {choice!r}"
        )
        raise ValueError(msg)
    if parallel is False and made.get("type") != "none":
        made["disable_parallel_tool_use"] = True
    return made
