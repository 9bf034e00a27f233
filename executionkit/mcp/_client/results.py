"""What a tool's answer becomes: plain JSON, with nothing left out."""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ("KEPT_BLOCK", "answer_text", "blocks_of", "mend_result", "value_of")

KEPT_BLOCK: Final = "executionkit/block"
"""Where a block of an unknown type is kept, in the metadata of its stand-in."""

_KINDS: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})
_PLAIN: Final = frozenset({"type", "text"})


def mend_result(result: Any, spoilt: dict[str, str]) -> None:
    """Make an answer readable for the SDK, which refuses what it does not know.

    Blocks of unknown types get a stand-in that holds them; an answer of data alone gets
    its empty content; one impossible tool does not cost the whole list.

    Args:
        result: The answer, changed in place.
        spoilt: Gets the tools that were left out, and why.
    """
    if not isinstance(result, dict):
        return
    tools: Any = result.get("tools")
    if isinstance(tools, list):
        result["tools"] = [item for item in tools if _is_tool(item, spoilt)]
    content: Any = result.get("content")
    if content is None and "structuredContent" in result:
        result["content"] = []
    if not isinstance(content, list):
        return
    for place, block in enumerate(content):
        if isinstance(block, dict) and block.get("type") not in _KINDS:
            result["content"][place] = {
                "type": "text",
                "text": f"[block of the unknown type {str(block.get('type'))[:80]!r}]",
                "_meta": {KEPT_BLOCK: block},
            }


def _is_tool(item: Any, spoilt: dict[str, str]) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        spoilt["?"] = f"an entry without a name: {str(item)[:80]!r}"
        return False
    schema: Any = item.get("inputSchema")
    good = isinstance(schema, dict) and schema.get("type") == "object"
    if not good or not isinstance(schema.get("properties", {}), dict):
        why = f"its input schema describes no object: {str(schema)[:80]}"
        spoilt[item["name"]] = why
        return False
    return True


def blocks_of(result: Any) -> list[dict[str, Any]]:
    """The blocks of an answer of the SDK as they were on the wire."""
    found: list[dict[str, Any]] = []
    for item in result.content:
        block: dict[str, Any] = item.model_dump(
            by_alias=True, mode="json", exclude_none=True
        )
        kept = block.get("_meta")
        if isinstance(kept, dict) and KEPT_BLOCK in kept:
            block = kept[KEPT_BLOCK]
        found.append(block)
    return found


def value_of(result: Any) -> Any:
    """The value of a call that went well.

    Data, when the text only repeats it; the text of a single plain block; else
    `{"content": [...]}` with all blocks as they came, and `structuredContent` beside it
    where there is data too.
    """
    blocks = blocks_of(result)
    has_data = "structured_content" in result.model_fields_set
    data = result.structured_content
    if has_data and (data is not None or not blocks) and _repeats(blocks, data):
        return data
    if not has_data or data is None:
        if not blocks:
            return ""
        if len(blocks) == 1 and blocks[0].keys() == _PLAIN:
            return blocks[0]["text"]
        return {"content": blocks}
    return {"content": blocks, "structuredContent": data}


def _repeats(blocks: list[dict[str, Any]], data: Any) -> bool:
    """Whether the blocks say nothing that the data does not say."""
    if not blocks:
        return True
    if any(block.keys() != _PLAIN for block in blocks):
        return False
    texts = [block["text"] for block in blocks]
    candidates = [data]
    if isinstance(data, dict) and data.keys() == {"result"}:
        candidates = [data["result"], data]  # how servers wrap what is no object
    for item in candidates:
        if len(texts) == 1 and _says(texts[0], item):
            return True
        if isinstance(item, list) and len(item) == len(texts):
            return all(
                _says(text, part) for text, part in zip(texts, item, strict=True)
            )
    return False


def _says(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text == value
    try:
        read = json.loads(text)
        if read != value or type(read) is not type(value):
            return False
        # `==` takes True for 1; JSON does not.
        is_deep = isinstance(read, (dict, list))
        return not is_deep or _canonical(read) == _canonical(value)
    except (ValueError, RecursionError):
        return False


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def answer_text(result: Any) -> str:
    """An answer as a text for a model: what it says, and its data, each once."""
    blocks = blocks_of(result)
    parts = [_block_text(block) for block in blocks]
    data = result.structured_content
    if data is not None and not (blocks and _repeats(blocks, data)):
        parts.append(json.dumps(data, ensure_ascii=False))
    return "\n".join(part for part in parts if part)


def _block_text(block: dict[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    held: Any = block.get("resource")
    if isinstance(held, dict) and isinstance(held.get("text"), str):
        return str(held["text"])
    if "data" in block or (isinstance(held, dict) and "blob" in held):
        about = block.get("mimeType") or (held or {}).get("mimeType") or "no MIME type"
        return f"[{block.get('type')}: {about}]"
    return json.dumps(block, ensure_ascii=False)
