"""OpenAI's chat completions: the request's body, and what a whole answer says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from executionkit._llm import TRUNCATED_REASONS, LLMResponse, Owned
from executionkit._wire.common import (
    Calls,
    RawCall,
    check_message,
    check_messages,
    collect_calls,
    text_of_parts,
    without_omitted,
)
from executionkit._wire.failures import failure_in, refuse, to_reply_error
from executionkit.types import JsonValue

__all__ = ("chat_body", "parse_completion", "raw_calls", "reply_of")

_OWN_KEYS: Final = frozenset({"thinking_blocks"})
_NOT_A_LIST: Final = "tool_calls payload was not a list"
_NOT_AN_OBJECT: Final = "tool call payload was not an object"
_NO_FUNCTION: Final = "tool call function payload was not an object"


def chat_body(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    temperature: object,
    max_tokens: object,
    tools: Sequence[Any] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a request.

    Args:
        model: The model's name.
        messages: In OpenAI's chat form; never changed.
        temperature: None or `OMIT` = not sent.
        max_tokens: None or `OMIT` = not sent; nor is it when the options have
            `max_completion_tokens`, its successor.
        tools: In OpenAI's function form; not sent when empty.
        options: Anything else that the API knows; wins over all of the above.

    Raises:
        TypeError: When `messages` is no list of objects.
    """
    check_messages(messages)
    body: dict[str, Any] = {
        "model": model,
        "messages": [_outgoing(message) for message in messages],
    }
    if temperature is not None:
        body["temperature"] = temperature
    if max_tokens is not None and "max_completion_tokens" not in options:
        body["max_tokens"] = max_tokens
    offered = list(tools) if tools is not None else None
    if offered:
        body["tools"] = offered
    if options:
        body.update(options)
    return without_omitted(body)


def _outgoing(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message as strict servers take it; the caller's object is never changed."""
    check_message(message)
    calls = message.get("tool_calls")
    if not calls and _OWN_KEYS.isdisjoint(message):
        return message
    sent = {key: value for key, value in message.items() if key not in _OWN_KEYS}
    if isinstance(calls, (list, tuple)) and calls:
        sent.setdefault("content", None)
        sent["tool_calls"] = [_outgoing_call(call) for call in calls]
    return sent


def _outgoing_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(function, Mapping) and not function.get("arguments"):
        return {**call, "function": {**function, "arguments": "{}"}}
    return call


def parse_completion(payload: JsonValue, secrets: Sequence[str] = ()) -> LLMResponse:
    """The reply in the JSON of a whole answer.

    Args:
        payload: The answer's JSON; it belongs to the reply from here on.
        secrets: Texts that must not appear in an error.

    Raises:
        LLMError: When the answer is an error object, or not what the API promises.
    """
    if not isinstance(payload, dict):
        failure = failure_in(payload)
        if failure is None:
            refuse("the answer was not a JSON object")
        raise to_reply_error(failure, secrets=secrets)
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices:
        failure = failure_in(payload)
        if failure is not None:
            raise to_reply_error(failure, secrets=secrets)
        refuse("the answer did not include any choices")
    choice = choices[0]
    if not isinstance(choice, dict):
        refuse("`choices[0]` of the answer was not an object")
    failure = failure_in(choice) if "error" in choice else None
    if failure is not None:
        raise to_reply_error(failure, secrets=secrets)
    message = choice.get("message")
    if not isinstance(message, dict):
        message = _older_message(choice)
    usage = payload.get("usage")
    if not isinstance(usage, dict):
        usage = choice.get("usage")
    finish = choice.get("finish_reason", "stop")
    extra = f"{len(choices)} choices came back; only the first is read"
    return reply_of(
        message,
        finish=finish,
        usage=usage,
        payload=payload,
        raw=payload,
        notes=() if len(choices) == 1 else (extra,),
        secrets=secrets,
    )


def _older_message(choice: dict[str, Any]) -> dict[str, Any]:
    text = choice.get("text")
    if not isinstance(text, str):
        refuse("`choices[0].message` of the answer was not an object")
    return {"content": text}  # the older completions form


def reply_of(
    message: dict[str, Any],
    *,
    finish: object,
    usage: object,
    payload: Mapping[str, Any],
    raw: JsonValue,
    notes: tuple[str, ...] = (),
    secrets: Sequence[str] = (),
) -> LLMResponse:
    """The reply that an assistant message stands for.

    Args:
        message: The message, whole or assembled from a stream.
        finish: The finish reason; null and "" read as `"unknown"`.
        usage: The usage object, when there is one.
        payload: Where `id` and `model` are.
        raw: What to keep as `raw`.
        notes: What has been put right already.
        secrets: Texts that must not appear in an error.

    Raises:
        BadResponseError: When it has neither text nor a call that can be answered.
    """
    content = message.get("content")
    text = content if isinstance(content, str) else text_of_parts(content)
    reason = finish if isinstance(finish, str) and finish else "unknown"
    read = Calls()
    if message.get("tool_calls") is not None or message.get("function_call"):
        read = collect_calls(
            raw_calls(message), truncated=reason in TRUNCATED_REASONS, secrets=secrets
        )
        if read.unusable and not text:
            refuse(f"the answer's {read.unusable}")
    parts = content if isinstance(content, list) else ()
    return LLMResponse(
        text,
        read.calls,
        reason,
        usage if isinstance(usage, dict) else {},
        Owned(raw),
        problems=read.problems,
        parts=tuple(part for part in parts if isinstance(part, dict)),
        refusal=_refusal(message, parts),
        reasoning=_reasoning(message, parts),
        model=_text(payload.get("model")),
        id=_text(payload.get("id")),
        notes=(*notes, *read.notes),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _refusal(message: Mapping[str, Any], parts: Sequence[Any]) -> str | None:
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        return refusal
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("refusal"), str):
            return str(part["refusal"])
    return None


def _reasoning(message: Mapping[str, Any], parts: Sequence[Any]) -> str | None:
    for key in ("reasoning_content", "reasoning"):
        text = message.get(key)
        if isinstance(text, str) and text:
            return text
    thoughts = [
        text_of_parts(part.get("thinking"))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "thinking"
    ]
    return "".join(thoughts) or None


def raw_calls(message: Mapping[str, Any]) -> list[RawCall]:
    """The calls of an assistant message, as they are written there."""
    calls = message.get("tool_calls")
    if calls is None or calls == []:
        older = message.get("function_call")
        return [_raw_call({"function": older})] if older else []
    if not isinstance(calls, list):
        return [RawCall(problem=_NOT_A_LIST)]
    return [_raw_call(call) for call in calls]


def _raw_call(call: object) -> RawCall:
    if not isinstance(call, Mapping):
        return RawCall(problem=_NOT_AN_OBJECT)
    function = call.get("function")
    if isinstance(function, Mapping):
        return RawCall(call.get("id"), function.get("name"), function.get("arguments"))
    custom = call.get("custom")
    if isinstance(custom, Mapping):  # a tool whose input is free text
        return RawCall(
            call.get("id"), custom.get("name"), {"input": custom.get("input")}
        )
    return RawCall(call.get("id"), problem=_NO_FUNCTION)
