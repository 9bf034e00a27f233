"""Anthropic's Messages API: the request's body, from messages in OpenAI's chat form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from executionkit._llm import OMIT
from executionkit._wire.anthropic_content import (
    ToolIds,
    blocks_of,
    system_of,
    to_tool,
    to_tool_choice,
    tool_result,
    tool_use,
)
from executionkit._wire.common import check_message, check_messages, without_omitted
from executionkit.engine.schema_coerce import decode_arguments
from executionkit.types import Tool

__all__ = ("AnswerTool", "messages_body", "to_anthropic_messages")

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_ANSWER_NAME: Final = "respond"
_WRAPPED: Final = "value"
_TRANSLATED: Final = (
    "max_completion_tokens",
    "parallel_tool_calls",
    "response_format",
    "stop",
    "stream_options",
    "tool_choice",
    "user",
)


class AnswerTool(NamedTuple):
    """The tool that stands for a JSON answer, because the API has no `response_format`."""

    name: str
    wrapped: bool
    """True when the answer is the tool's one argument `value`, not all of them."""


def to_anthropic_messages(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[str | list[dict[str, Any]], list[dict[str, Any]]]:
    """The system prompt and the messages of a request.

    System messages are gathered wherever they stand. Tool results become blocks of one
    user message together with the user's text that follows, as the API demands.
    Thinking blocks come first in their message, signatures untouched. Messages that
    turn out empty are left out.
    """
    system: list[object] = []
    turns: list[dict[str, Any]] = []
    ids = ToolIds()
    check_messages(messages)
    for message in messages:
        check_message(message)
        role = message.get("role")
        if role in _SYSTEM_ROLES:
            system.append(message.get("content"))
            continue
        if role == "assistant":
            blocks = _assistant_blocks(message, ids)
        elif role in {"tool", "function"}:
            call_id = ids.result(message.get("tool_call_id", message.get("name", "")))
            blocks = [tool_result(call_id, message)]
            role = "user"
        else:
            blocks = [
                _native(block, ids) for block in blocks_of(message.get("content"))
            ]
            role = "user"
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role and _joins(turns[-1]["content"], blocks):
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    return system_of(system), [_short(turn) for turn in turns]


def _joins(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    """Whether two user messages must be one: results and what follows them."""
    return any(block.get("type") == "tool_result" for block in (*before, *after))


def _short(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn as it is sent: results first, as the API demands; a lone text bare."""
    blocks = turn["content"]
    blocks.sort(key=lambda block: block.get("type") != "tool_result")
    if len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        return {"role": turn["role"], "content": blocks[0]["text"]}
    return turn


def _native(block: dict[str, Any], ids: ToolIds) -> dict[str, Any]:
    if block.get("type") == "tool_result" and "tool_use_id" in block:
        return {**block, "tool_use_id": ids.result(block["tool_use_id"])}
    if block.get("type") == "tool_use" and "id" in block:
        return {**block, "id": ids.call(block["id"])}
    return block


def _assistant_blocks(message: Mapping[str, Any], ids: ToolIds) -> list[dict[str, Any]]:
    thoughts = message.get("thinking_blocks") or ()
    blocks = [dict(block) for block in thoughts if isinstance(block, Mapping)]
    own = blocks_of(message.get("content"))
    blocks += [_native(block, ids) for block in own]
    present = [block.get("id") for block in own if block.get("type") == "tool_use"]
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            msg = "each of `tool_calls` must be an object with a `function` object"
            raise TypeError(msg)
        if call.get("id") not in present:
            arguments = _arguments(function.get("arguments"))
            call_id = ids.call(call.get("id"))
            blocks.append(tool_use(call_id, function.get("name"), arguments))
    return blocks


def _arguments(given: object) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    try:
        return decode_arguments(given) if isinstance(given, str) else {}
    except ValueError:
        # A call that could not be read was answered with that; the API takes no
        # broken JSON, and nothing runs from here.
        return {}


def messages_body(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    temperature: object,
    max_tokens: object,
    tools: Sequence[Any] | None,
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], AnswerTool | None]:
    """The body of a request, and the tool that stands for a JSON answer, if any.

    OpenAI's `stop`, `user`, `tool_choice`, `parallel_tool_calls`,
    `max_completion_tokens` and `response_format` are translated; any other option is
    sent as it is and wins.

    Args:
        model: The model's name.
        messages: In OpenAI's chat form, or with Anthropic's blocks as content.
        temperature: None or `OMIT` = not sent.
        max_tokens: None or `OMIT` = not sent (the API demands one).
        tools: In OpenAI's function form or Anthropic's.
        options: Anything else.
    """
    given = {key: value for key, value in options.items() if value is not OMIT}
    system, turns = to_anthropic_messages(messages)
    body: dict[str, Any] = {"model": model, "messages": turns}
    if system:
        body["system"] = system
    if temperature is not None:
        body["temperature"] = temperature
    limit = given.get("max_completion_tokens", max_tokens)
    if limit is not None:
        body["max_tokens"] = limit
    offered = [_tool(tool) for tool in tools] if tools is not None else []
    choice = to_tool_choice(
        given.get("tool_choice"),
        parallel=given.get("parallel_tool_calls") if offered else None,
    )
    answer = _answer_tool(given, offered)
    if answer is not None and choice is None:
        choice = _forced(answer, given, alone=len(offered) == 1)
    if offered:
        body["tools"] = offered
    if choice is not None and offered:
        body["tool_choice"] = choice
    body.update(_translated(given))
    body.update({k: v for k, v in given.items() if k not in _TRANSLATED})
    return without_omitted(body), answer


def _forced(
    answer: AnswerTool, given: Mapping[str, Any], *, alone: bool
) -> dict[str, Any]:
    thinking = given.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") != "disabled":
        return {"type": "auto"}  # a thinking model cannot be forced
    return {"type": "tool", "name": answer.name} if alone else {"type": "any"}


def _tool(tool: Any) -> dict[str, Any]:
    return to_tool(tool.to_schema() if isinstance(tool, Tool) else tool)


def _translated(given: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    stop = given.get("stop")
    if stop:
        made["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    if given.get("user"):
        made["metadata"] = {"user_id": given["user"]}
    return made


def _input_schema(schema: object) -> tuple[dict[str, Any], bool]:
    """An object schema that a tool can have, and whether the real one is inside."""
    if not isinstance(schema, Mapping):
        return {"type": "object"}, False
    if schema.get("type", "object" if "properties" in schema else None) == "object":
        return {"type": "object", **schema}, False
    outer: dict[str, Any] = {
        key: schema[key] for key in ("$defs", "definitions") if key in schema
    }
    outer["type"] = "object"
    outer["properties"] = {_WRAPPED: schema}
    outer["required"] = [_WRAPPED]
    return outer, True


def _answer_tool(
    given: Mapping[str, Any], offered: list[dict[str, Any]]
) -> AnswerTool | None:
    """Add the tool that a JSON `response_format` stands for.

    The model must call it to answer; its input is the answer.
    """
    wanted = given.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if not isinstance(wanted, Mapping) or kind not in {"json_schema", "json_object"}:
        return None
    described = wanted.get("json_schema")
    described = described if isinstance(described, Mapping) else wanted
    schema, wrapped = _input_schema(described.get("schema"))
    name = described.get("name")
    name = name if isinstance(name, str) and name else _ANSWER_NAME
    taken = {tool.get("name") for tool in offered}
    while name in taken:
        name += "_"
    about = (
        described.get("description") or "Give the final answer by calling this tool."
    )
    offered.append({"name": name, "description": about, "input_schema": schema})
    return AnswerTool(name, wrapped)
