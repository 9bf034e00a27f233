"""One request to the engine, and how its reply is read back.

The engine's own handling of `response_format` ignores half of JSON Schema and lets the
model fill its limit with blanks, and the template of a small model has no tools. So a
schema goes out as a grammar (see `grammar`), and tools as a schema (see `_json_tools`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from executionkit._json_tools import ParsedOffer, called_tools, offer, parse_offer
from executionkit._llm import OMIT, TRUNCATED_REASONS, TextDelta, ToolCallDelta
from executionkit._local.grammar import Constraint, GrammarError, constrain
from executionkit._wire.common import encode_body
from executionkit._wire.openai import chat_body
from executionkit._wire.openai_stream import ChatAssembler
from executionkit.errors import PermanentError
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse, StreamEvent
    from executionkit._local.host import ModelInfo
    from executionkit.types import JsonObject

__all__ = ("Call", "LocalAssembler", "Prepared", "prepare")

_SMALL: Final = 1_000_000_000
_ROUNDS_OF_SMALL: Final = 1
_MAX_TOKENS: Final = 1_000_000
_ANY_OBJECT: Final[JsonObject] = {"type": "object"}
_UNHELD: Final = (
    "the local engine did not keep to the response's JSON schema; simplify the schema"
)


@dataclass(frozen=True, slots=True)
class Call:
    """What the caller asked for."""

    model: str
    messages: Sequence[Any]
    temperature: object
    max_tokens: object
    tools: Sequence[Any]
    options: Mapping[str, Any]
    tool_rounds: int | None
    """Tool calls per question after which the model has to answer. None = one for
    models below 1e9 parameters, no limit for larger ones."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is sent, and what is known about the reply."""

    body: bytes
    offered: tuple[Any, ...] = ()
    """The tools that the reply may call in JSON form."""

    starts: tuple[str, ...] = ()
    """How the reply begins when the grammar is in force; empty = no grammar."""

    constrained: bool = False
    notes: tuple[str, ...] = ()


def prepare(call: Call, info: ModelInfo) -> Prepared:
    """The request as the engine takes it.

    Raises:
        PermanentError: When it asks for something that there is not.
        TypeError: When it holds something that is not JSON.
        ValueError: The same for NaN and infinity.
    """
    options = {key: value for key, value in call.options.items() if value is not OMIT}
    if options.get("n", 1) != 1:
        msg = f"`n` is {options['n']!r}; the local model gives one answer per call"
        raise PermanentError(msg)
    for place, message in enumerate(call.messages):
        if not isinstance(message, Mapping):
            msg = f"`messages[{place}]` must be an object, got {type(message).__name__}"
            raise PermanentError(msg)
    if info.native_tools:
        return Prepared(_body(call, call.messages, call.tools, options))
    choice = options.pop("tool_choice", None)
    schema = _schema_of(options.pop("response_format", None))
    if schema is not None or call.tools:
        _refuse_grammars(options)
    if _must_answer(call, choice, info):
        choice = "none"
    messages, limits = _shape(call, choice, schema)
    if limits is None:
        return Prepared(_body(call, messages, (), options))
    options["grammar"] = limits.grammar
    return Prepared(
        _body(call, messages, (), options),
        () if choice == "none" else tuple(call.tools),
        limits.starts,
        constrained=True,
        notes=limits.notes,
    )


def _shape(
    call: Call, choice: object, schema: JsonObject | None
) -> tuple[list[dict[str, Any]], Constraint | None]:
    """The messages, and what holds the reply to its form; None = free text."""
    try:
        made = offer(call.tools, choice, call.messages, answer=schema)
        wanted = made.response_format
        if wanted is None:
            return made.messages, None
        return made.messages, constrain(wanted["json_schema"]["schema"])
    except GrammarError as exc:
        msg = f"the local model cannot be held to this schema: {exc}"
        raise PermanentError(msg) from None
    except ValueError as exc:
        raise PermanentError(str(exc)) from None


def _body(
    call: Call,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any],
    options: Mapping[str, Any],
) -> bytes:
    # More than fits is no error, and the engine's integers have 32 bits.
    most = call.max_tokens
    if isinstance(most, int) and most > _MAX_TOKENS:
        most = _MAX_TOKENS
    wanted = {
        **options,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }
    body = chat_body(
        call.model,
        messages,
        temperature=call.temperature,
        max_tokens=most,
        tools=tools,
        options=wanted,
    )
    return encode_body(body)


def _schema_of(response_format: object) -> JsonObject | None:
    """The schema that the answer must have; None = free text."""
    if response_format is None:
        return None
    if isinstance(response_format, Mapping):
        kind = response_format.get("type")
        if kind == "text":
            return None
        if kind == "json_object":
            schema = response_format.get("schema")
            return schema if isinstance(schema, Mapping) else _ANY_OBJECT
        inner = response_format.get("json_schema")
        if kind == "json_schema" and isinstance(inner, Mapping):
            schema = inner.get("schema")
            if isinstance(schema, Mapping):
                return schema
    msg = (
        f"`response_format` is {thaw(response_format)!r:.200}; it must have the type "
        "'text', 'json_object', or 'json_schema' with a `json_schema.schema`"
    )
    raise PermanentError(msg)


def _refuse_grammars(options: Mapping[str, Any]) -> None:
    for key in ("grammar", "json_schema"):
        if key in options:
            msg = (
                f"`{key}` cannot be given together with `tools` or `response_format`; "
                "leave one of them out"
            )
            raise PermanentError(msg)


def _must_answer(call: Call, choice: object, info: ModelInfo) -> bool:
    """Whether the model has called enough tools for this question.

    A small model goes on calling the same tool with its result at hand.
    """
    if choice not in (None, "auto") or not call.tools:
        return False
    rounds = call.tool_rounds
    if rounds is None and 0 < info.parameters < _SMALL:
        rounds = _ROUNDS_OF_SMALL
    return rounds is not None and len(called_tools(call.messages)) >= rounds


class LocalAssembler(ChatAssembler):
    """Assembles the reply to a prepared request; see `Assembler`.

    A reply in JSON form is held back until it is complete: only then is it known
    whether it is an answer or a call.
    """

    __slots__ = ("_answered", "_begun", "_told", "prepared")

    def __init__(self) -> None:
        super().__init__()
        self.prepared = Prepared(b"")
        """Set when the request is sent."""
        self._begun = False
        self._answered: ParsedOffer | None = None
        self._told = False

    def feed(self, event: str, data: str) -> Sequence[StreamEvent]:
        """See `Assembler`."""
        events = super().feed(event, data)
        prepared = self.prepared
        if not prepared.constrained:
            return events
        if not self._begun:
            self._check_beginning(prepared.starts)
        if not prepared.offered:
            return events
        kept = [item for item in events if not isinstance(item, TextDelta)]
        if self.ended and not self._told:
            made = _events_of(self._assemble())
            self._told = True
            return [*made, *kept]
        return kept

    def _check_beginning(self, starts: tuple[str, ...]) -> None:
        text = self.partial_text()
        if len(text) < max(map(len, starts), default=0):
            return
        self._begun = True
        if starts and not text.startswith(starts):
            raise PermanentError(_UNHELD)

    def _assemble(self) -> LLMResponse:
        response = super()._assemble()
        prepared = self.prepared
        if not prepared.constrained:
            return response
        reason = response.finish_reason
        if reason not in TRUNCATED_REASONS:
            try:
                json.loads(response.content)
            except ValueError:
                raise PermanentError(_UNHELD) from None
        notes = (*response.notes, *prepared.notes)
        if not prepared.offered:
            return replace(response, notes=notes)
        if self._answered is None or not self._told:
            self._answered = parse_offer(response.content, prepared.offered)
        read = self._answered  # once only: each reading makes new call ids
        called = bool(read.calls or read.problems)
        return replace(
            response,
            content=read.content,
            tool_calls=read.calls,
            problems=read.problems,
            finish_reason="tool_calls" if called and reason == "stop" else reason,
            notes=notes,
        )


def _events_of(response: LLMResponse) -> list[StreamEvent]:
    """The text and the calls of a reply that was held back."""
    events: list[StreamEvent] = []
    if response.content:
        events.append(TextDelta(response.content))
    for index, call in enumerate(response.tool_calls):
        arguments = json.dumps(thaw(call.arguments), ensure_ascii=False)
        events.append(ToolCallDelta(index, call.id, call.name, arguments))
    return events
