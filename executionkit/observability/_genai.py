"""What is said of model calls: the attributes of the GenAI semantic conventions.

Their status is "Development" (https://github.com/open-telemetry/semantic-conventions-genai),
so all names stand here. Messages, replies, arguments and results are left out unless
the environment variable `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` asks for
them (`true`, `SPAN_ONLY` or `SPAN_AND_EVENT`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from executionkit._llm import usage_of
from executionkit._redact import redact, redact_value
from executionkit.observability._names import model_name, provider_name, server_of
from executionkit.types import thaw

__all__ = (
    "captures_content",
    "message_attributes",
    "reply_attributes",
    "request_attributes",
    "response_attributes",
    "shown",
)

_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_YES: Final = frozenset({"true", "1", "span_only", "span_and_event"})
_MAX_CHARS: Final = 65_536
_NUMBERS: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
}


def captures_content() -> bool:
    """Whether somebody has asked for messages and results in spans."""
    return os.environ.get(_CAPTURE, "").strip().lower() in _YES


def request_attributes(
    provider: object, options: Mapping[str, Any]
) -> dict[str, str | int | float | tuple[str, ...]]:
    """What is known of a model call before it is sent."""
    facts: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(provider),
    }
    model = model_name(provider, options)
    if model is not None:
        facts["gen_ai.request.model"] = redact(model)
    server = server_of(provider)
    if server is not None:
        facts["server.address"], facts["server.port"] = server
    for option, name in _NUMBERS.items():
        value = options.get(option)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            facts[name] = value
    stop = options.get("stop") or options.get("stop_sequences")
    if isinstance(stop, str):
        stop = (stop,)
    if isinstance(stop, Sequence):
        facts["gen_ai.request.stop_sequences"] = tuple(redact(str(s)) for s in stop)
    if options.get("response_format") is not None:
        facts["gen_ai.output.type"] = "json"
    return facts


def response_attributes(response: Any) -> dict[str, Any]:
    """What is known of a model call once it is answered."""
    usage = usage_of(response)
    facts: dict[str, Any] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.response.finish_reasons": (redact(str(response.finish_reason)),),
    }
    counts = {
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    facts.update({name: count for name, count in counts.items() if count})
    if response.model:
        facts["gen_ai.response.model"] = redact(response.model)
    if response.id:
        facts["gen_ai.response.id"] = redact(response.id)
    if response.answered_by:
        facts["executionkit.answered_by"] = redact(response.answered_by)
    return facts


def message_attributes(
    messages: Iterable[Mapping[str, Any]], secrets: Iterable[str] = ()
) -> dict[str, str]:
    """The messages of a call, in the form of the conventions; empty unless asked for."""
    if not captures_content():
        return {}
    given = [_message(message) for message in messages]
    return {"gen_ai.input.messages": shown(given, secrets)}


def reply_attributes(response: Any, secrets: Iterable[str] = ()) -> dict[str, str]:
    """The reply, in the form of the conventions; empty unless asked for."""
    if not captures_content():
        return {}
    parts: list[dict[str, Any]] = []
    if response.content:
        parts.append({"type": "text", "content": response.content})
    parts += [
        {
            "type": "tool_call",
            "id": call.id,
            "name": call.name,
            "arguments": thaw(call.arguments),
        }
        for call in response.tool_calls
    ]
    reply = {
        "role": "assistant",
        "parts": parts,
        "finish_reason": response.finish_reason,
    }
    return {"gen_ai.output.messages": shown([reply], secrets)}


def shown(value: Any, secrets: Iterable[str] = ()) -> str:
    """A value as JSON without secrets, cut at 65536 characters."""
    try:
        text = json.dumps(redact_value(value, secrets=secrets), default=str)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(type(value).__name__)
    return text[:_MAX_CHARS]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts: list[dict[str, Any]] = []
    if message.get("role") == "tool":
        answered = message.get("tool_call_id")
        parts.append(
            {"type": "tool_call_response", "id": answered, "response": thaw(content)}
        )
    elif isinstance(content, str):
        parts.append({"type": "text", "content": content})
    elif content is not None:
        parts.append({"type": "json", "content": thaw(content)})
    parts += [
        {"type": "tool_call", "content": thaw(call)}
        for call in message.get("tool_calls") or ()
    ]
    return {"role": str(message.get("role")), "parts": parts}
