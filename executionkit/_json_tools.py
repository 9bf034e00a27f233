"""Tool calls for models that have none of their own: one JSON object per reply.

`offer` writes the tools into the prompt and says, as a `response_format`, what the
reply must look like: `{"tool": name, "arguments": {...}}` or `{"answer": text}`.
`parse_offer` reads such a reply back. Tool calls and results of earlier rounds become
facts in front of the question they belong to: small models copy the shape of an earlier
call instead of using its result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from executionkit.calls import CallProblem, ToolCall, new_id
from executionkit.engine.json_extraction import extract_json
from executionkit.types import JsonObject, Tool, thaw

__all__ = ("Offer", "ParsedOffer", "called_tools", "offer", "parse_offer")

_TEXT: Final[JsonObject] = {"type": "string"}
_AUTO: Final = "auto"
_NONE: Final = "none"
_REQUIRED: Final = "required"
_CUT_ANSWER: Final = re.compile(r'\s*\{\s*"answer"\s*:\s*"((?:[^"\\]|\\.)*)')
_CUT_CALL: Final = re.compile(r'\s*\{\s*"tool"\s*:\s*"([^"\\]+)"')
_MAX_WORDS: Final = 80


class Offer(NamedTuple):
    """What to send so that the model can answer or call a tool."""

    messages: list[dict[str, Any]]
    """Plain text messages; the given ones are never changed."""

    response_format: dict[str, Any] | None
    """What the reply must be; None = plain text."""


class ParsedOffer(NamedTuple):
    """What a reply to an offer says."""

    content: str
    """The answer; empty when the reply is a tool call."""

    calls: tuple[ToolCall, ...] = ()
    problems: tuple[CallProblem, ...] = ()


class _Function(NamedTuple):
    name: str
    description: str
    parameters: JsonObject


def _function(tool: Mapping[str, Any] | Tool) -> _Function:
    if isinstance(tool, Tool):
        return _Function(tool.name, tool.description, tool.parameters)
    inner = tool.get("function")
    source = inner if isinstance(inner, Mapping) else tool
    name = source.get("name")
    if not isinstance(name, str) or not name:
        msg = "a tool has no `name`; give each in OpenAI's function format"
        raise ValueError(msg)
    schema = source.get("parameters") or source.get("input_schema")
    empty: JsonObject = {"type": "object", "properties": {}}
    return _Function(
        name,
        str(source.get("description") or ""),
        schema if isinstance(schema, Mapping) else empty,
    )


def _choice(tool_choice: object) -> tuple[str, str | None]:
    """The mode, and the one tool that is asked for."""
    if tool_choice is None or tool_choice == _AUTO:
        return _AUTO, None
    if tool_choice == _NONE:
        return _NONE, None
    if tool_choice in (_REQUIRED, "any"):
        return _REQUIRED, None
    if isinstance(tool_choice, Mapping):
        inner = tool_choice.get("function")
        source = inner if isinstance(inner, Mapping) else tool_choice
        name = source.get("name")
        if isinstance(name, str):
            return _REQUIRED, name
        kind = tool_choice.get("type")
        if isinstance(kind, str) and kind != "function":
            return _choice(kind)
    msg = (
        f"`tool_choice` is {tool_choice!r}; it must be 'auto', 'required', 'none', or "
        "name one of the tools"
    )
    raise ValueError(msg)


def _chosen(functions: list[_Function], name: str | None) -> list[_Function]:
    if name is None:
        return functions
    chosen = [function for function in functions if function.name == name]
    if not chosen:
        known = ", ".join(function.name for function in functions) or "none"
        msg = f"`tool_choice` names {name!r}, which is not on offer ({known})"
        raise ValueError(msg)
    return chosen


def offer(
    tools: Sequence[Mapping[str, Any] | Tool],
    tool_choice: object,
    messages: Sequence[Mapping[str, Any]],
    *,
    answer: JsonObject | None = None,
) -> Offer:
    """Turn tools into a prompt and a response format.

    Args:
        tools: In OpenAI's function format. None left, or a choice of `"none"`, means
            that the model has to answer.
        tool_choice: `None` or `"auto"`, `"required"` (`"any"`), `"none"`, or an object
            that names a tool in OpenAI's or Anthropic's form.
        messages: The conversation in OpenAI's chat form, tool rounds included.
        answer: JSON Schema of the answer. None = text.

    Raises:
        ValueError: When the choice is none of these, or names a tool not on offer.
    """
    mode, name = _choice(tool_choice)
    offered = _chosen([_function(tool) for tool in tools], name)
    if mode == _NONE or not offered:
        plain = _fold(messages, last="Answer in one short sentence from the facts: ")
        if answer is None:
            return Offer(plain, None)
        return Offer(plain, _response_format(answer))
    plain = _fold(messages, last="")
    _instruct(plain, _instruction(offered, required=mode == _REQUIRED, answer=answer))
    branches = [_call_schema(function) for function in offered]
    if mode == _AUTO:
        branches.insert(0, _object(answer=answer or _TEXT))
    schema = branches[0] if len(branches) == 1 else {"anyOf": branches}
    return Offer(plain, _response_format(schema))


def _response_format(schema: JsonObject) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": thaw(schema)},
    }


def _object(**properties: JsonObject) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _call_schema(function: _Function) -> dict[str, Any]:
    return _object(tool={"const": function.name}, arguments=function.parameters)


def _type_words(schema: object) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    options = schema.get("enum")
    if isinstance(options, (list, tuple)) and options:
        shown = "|".join(json.dumps(thaw(item), ensure_ascii=False) for item in options)
        return shown if len(shown) <= _MAX_WORDS else "string"
    kind = schema.get("type")
    if isinstance(kind, (list, tuple)):
        return "|".join(str(item) for item in kind)
    return str(kind) if isinstance(kind, str) else "any"


def _signature(function: _Function) -> str:
    """The call as the model has to write it, with types in place of values."""
    properties = function.parameters.get("properties")
    required = function.parameters.get("required") or ()
    shown: list[str] = []
    for key, schema in properties.items() if isinstance(properties, Mapping) else ():
        words = _type_words(schema)
        about = schema.get("description") if isinstance(schema, Mapping) else None
        if isinstance(about, str) and 0 < len(about) <= _MAX_WORDS:
            words += f" ({about})"
        shown.append(f'"{key}"{"" if key in required else "?"}: {words}')
    return f'{{"tool": "{function.name}", "arguments": {{{", ".join(shown)}}}}}'


def _instruction(
    functions: Sequence[_Function], *, required: bool, answer: JsonObject | None
) -> str:
    lines = ["Tools:"]
    for function in functions:
        about = " ".join(function.description.split())
        lines.append(_signature(function) + (f" - {about}" if about else ""))
    if required:
        lines.append("Reply with JSON only: call one of the tools.")
        return "\n".join(lines)
    shown = '"..."' if answer is None else "..."
    lines.append(
        "Reply with JSON only. First call the tool that helps. When you have its "
        f'result, reply {{"answer": {shown}}}.'
    )
    return "\n".join(lines)


def _instruct(messages: list[dict[str, Any]], text: str) -> None:
    """Add `text` to the system message, or put it first as one."""
    if not messages or messages[0].get("role") not in {"system", "developer"}:
        messages.insert(0, {"role": "system", "content": text})
        return
    first = messages[0]
    before = first.get("content")
    if isinstance(before, list):
        messages[0] = {**first, "content": [*before, {"type": "text", "text": text}]}
    else:
        messages[0] = {**first, "content": f"{before or ''}\n\n{text}".strip()}


def _call_words(call: object) -> tuple[str, str]:
    """The id of a call and the call in one line."""
    if not isinstance(call, Mapping):
        return "", ""
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    given = function.get("arguments")
    try:
        arguments = json.loads(given) if isinstance(given, str) and given else given
    except (ValueError, RecursionError):
        arguments = None
    inside = str(given or "")
    if isinstance(arguments, Mapping):
        inside = ", ".join(
            f"{key}={json.dumps(thaw(value), ensure_ascii=False)}"
            for key, value in arguments.items()
        )
    return str(call.get("id") or ""), f"{function.get('name') or 'tool'}({inside})"


def _text_of(content: object) -> str:
    if isinstance(content, (list, tuple)):
        return "".join(
            str(part.get("text") or "") for part in content if isinstance(part, Mapping)
        )
    return content if isinstance(content, str) else ""


def _fold(messages: Sequence[Mapping[str, Any]], *, last: str) -> list[dict[str, Any]]:
    """The conversation without tool messages: their results become facts.

    Args:
        messages: In OpenAI's chat form.
        last: What to put between the facts and the newest question.
    """
    folded: list[dict[str, Any]] = []
    facts: dict[int, list[str]] = {}
    calls: dict[str, str] = {}
    question = -1
    for message in messages:
        role = message.get("role")
        asked = message.get("tool_calls")
        if role == "tool":
            if question < 0:
                folded.append({"role": "user", "content": ""})
                question = len(folded) - 1
            words = calls.get(str(message.get("tool_call_id") or ""), "tool()")
            found = f"{words} = {_text_of(message.get('content'))}"
            facts.setdefault(question, []).append(found)
        elif role == "assistant" and asked:
            calls.update(_call_words(call) for call in asked)
        else:
            folded.append(thaw(dict(message)))
            if role == "user":
                question = len(folded) - 1
    for place, known in facts.items():
        between = last if place == question else ""
        folded[place] = _with_facts(folded[place], known, between)
    return folded


def _with_facts(
    message: dict[str, Any], facts: Sequence[str], between: str
) -> dict[str, Any]:
    head = "Facts: " + "\n".join(facts) + "\n" + between
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": head}, *content]}
    return {**message, "content": f"{head}{content or ''}".rstrip()}


def called_tools(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the tools called since the newest question, in order."""
    names: list[str] = []
    for message in messages:
        if message.get("role") == "user":
            names.clear()
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str):
                names.append(name)
    return names


def parse_offer(
    text: str, tools: Sequence[Mapping[str, Any] | Tool] = ()
) -> ParsedOffer:
    """Read a reply to an offer; any text is a valid input.

    A reply that is no such JSON is taken for a plain answer: servers without
    constrained output ignore the response format. A call that was cut off, or whose
    arguments are no object, is a problem and never run with guessed arguments.

    Args:
        text: The reply's text.
        tools: What was on offer; needed only to know calls in the form
            `{"name": ..., "arguments": ...}` from answers.
    """
    known = [_function(tool).name for tool in tools]
    try:
        value: Any = extract_json(text)
    except ValueError:
        return _parse_cut(text)
    if isinstance(value, list):
        made = [_call_in(item, known) for item in value]
        if not made or None in made:
            return ParsedOffer(text)
    else:
        answer = _answer_in(value)
        if answer is not None:
            return ParsedOffer(answer)
        made = [_call_in(value, known)]
        if made == [None]:
            return ParsedOffer(text)
    calls = tuple(item for item in made if isinstance(item, ToolCall))
    problems = tuple(item for item in made if isinstance(item, CallProblem))
    return ParsedOffer("", calls, problems)


def _answer_in(value: Mapping[str, Any]) -> str | None:
    if "answer" not in value or "tool" in value:
        return None
    answer = value["answer"]
    if isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False)


def _call_in(value: object, known: Sequence[str]) -> ToolCall | CallProblem | None:
    """The call that an object stands for; None = it is none."""
    if not isinstance(value, Mapping):
        return None
    name = value.get("tool")
    if name is None and value.get("name") in known:
        name = value["name"]
    if not isinstance(name, str) or not name.strip():
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError):
            return _problem(name, "its arguments are not valid JSON", arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        shown = json.dumps(arguments, ensure_ascii=False)
        return _problem(name, "its arguments are not a JSON object", shown)
    return ToolCall(new_id(), name.strip(), arguments)


def _problem(name: str, why: str, raw: str) -> CallProblem:
    return CallProblem(
        call_id=new_id(), name=name.strip(), message=why, raw=raw, length=len(raw)
    )


def _parse_cut(text: str) -> ParsedOffer:
    """What can be told from a reply that is no complete JSON."""
    answer = _CUT_ANSWER.match(text)
    if answer:
        try:
            return ParsedOffer(str(json.loads(f'"{answer[1]}"', strict=False)))
        except ValueError:
            return ParsedOffer(answer[1])
    call = _CUT_CALL.match(text)
    if call:
        why = "the reply was cut off before its arguments were complete"
        return ParsedOffer("", (), (_problem(call[1], why, text),))
    return ParsedOffer(text)
