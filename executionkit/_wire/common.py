"""What both dialects share: JSON bodies, content parts, and reading tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from executionkit._constants import MAX_PROBLEM_CHARS
from executionkit._llm import OMIT
from executionkit._redact import redact
from executionkit._wire.failures import refuse
from executionkit._wire.loading import load_reply
from executionkit.calls import CallProblem, ToolCall, new_id
from executionkit.engine._json.strict import scan
from executionkit.engine._schema.values import is_plain
from executionkit.engine.schema_coerce import decode_arguments
from executionkit.types import Tool

__all__ = (
    "NAME_MISSING",
    "NO_CALLS",
    "Calls",
    "RawCall",
    "check_message",
    "check_messages",
    "collect_calls",
    "encode_body",
    "parse_json",
    "text_of_part",
    "text_of_parts",
    "without_omitted",
)

_T = TypeVar("_T")
_SHOWN_CHARS: Final = 65_536
_EXAMPLE: Final = 'for example [{"role": "user", "content": "Hello"}]'
_TEXT_TYPES: Final = frozenset({"text", "output_text"})
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}
NAME_MISSING: Final = "tool call function name was missing"


def check_messages(messages: object) -> None:
    """Refuse what is no conversation: a text, one message alone, None.

    Raises:
        TypeError: Saying what to pass.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(
        messages, Iterable
    ):
        msg = (
            "`messages` must be a list of messages, got "
            f"{type(messages).__name__}; {_EXAMPLE}"
        )
        raise TypeError(msg)


def check_message(message: object) -> None:
    """Refuse a message that is not an object.

    Raises:
        TypeError: Saying what to pass.
    """
    if not isinstance(message, Mapping):
        msg = (
            f"each message must be an object, got {type(message).__name__}; {_EXAMPLE}"
        )
        raise TypeError(msg)


def without_omitted(body: dict[str, Any]) -> dict[str, Any]:
    """`body` without the options whose value is `OMIT`."""
    if OMIT in body.values():
        return {key: value for key, value in body.items() if value is not OMIT}
    return body


def _plain(value: object) -> Any:
    if isinstance(value, Tool):
        return value.to_schema()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    msg = f"a {type(value).__name__} cannot be sent to a model; it is not JSON"
    raise TypeError(msg)


_ENCODER: Final = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, default=_plain
)


def encode_body(body: Mapping[str, Any]) -> bytes:
    """`body` as JSON in ASCII, which carries every text, lone surrogates too.

    Raises:
        TypeError: When it holds something that is not JSON.
        ValueError: When it holds NaN, an infinity, or itself.
    """
    try:
        return _ENCODER.encode(body).encode("ascii")
    except RecursionError:
        msg = "the request is nested too deeply to be sent as JSON"
    raise ValueError(msg)


def parse_json(body: str | bytes, *, secrets: Sequence[str] = ()) -> Any:
    """The JSON of an answer.

    Raises:
        BadResponseError: When it is none; its message has the beginning of the text.
    """
    why = payload = None
    try:
        payload = load_reply(body)
    except ValueError as exc:
        why = redact(str(exc), secrets=secrets)
    if why is not None:
        text = body[:_SHOWN_CHARS]
        shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
        refuse(f"the answer is {why}", shown, secrets=secrets)
    return payload


def text_of_part(part: object) -> str:
    """The text of one content part; empty when it is of another kind."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    kind = part.get("type")
    is_text = isinstance(kind, str) and kind in _TEXT_TYPES
    text = part.get("text") if is_text else part
    if isinstance(text, Mapping):
        text = text.get("value")
    return text if isinstance(text, str) else ""


def text_of_parts(content: object) -> str:
    """The text of a message's content: a text, parts, null, or anything else."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join([text_of_part(part) for part in content])
    if isinstance(content, Mapping):
        return text_of_part(content)
    try:
        return str(content)
    except ValueError:  # an integer of more digits than Python writes
        return ""


class RawCall(NamedTuple):
    """A tool call as a model wrote it, before anything is believed."""

    id: object = None
    name: object = None
    arguments: object = None
    problem: str = ""
    """Why it is no call at all, when it is none."""

    incomplete: bool = False
    """True when the reply was cut off inside of it."""

    namespace: object = None
    idempotency_key: object = None
    position: int | None = None
    """Where reading `problem` failed, when that is known."""


class Calls(NamedTuple):
    """Tool calls, sorted into those that can be run and those that cannot."""

    calls: tuple[ToolCall, ...] = ()
    problems: tuple[CallProblem, ...] = ()
    notes: tuple[str, ...] = ()
    unusable: str = ""
    """Set when none of them could even be answered: the first reason."""


NO_CALLS: Final = Calls()


def _ids(raw: Sequence[RawCall]) -> tuple[list[str], list[str]]:
    """A distinct id for each call, and notes on what had to be changed."""
    given = [
        item.id if isinstance(item.id, str) else str(item.id) if _small(item.id) else ""
        for item in raw
    ]
    known = set(given)
    if len(known) == len(given) and "" not in known:
        return given, []
    used: set[str] = set()
    numbers: dict[str, int] = {}  # where to go on: equal ids are not tried again
    notes: list[str] = []
    for place, call_id in enumerate(given):
        if not call_id:
            given[place] = new_id()
        elif call_id in used:
            number = numbers.get(call_id, 2)
            while f"{call_id}-{number}" in known:
                number += 1
            numbers[call_id] = number + 1
            given[place] = f"{call_id}-{number}"
            known.add(given[place])
            notes.append(f"renamed duplicate call id {call_id!r} to {given[place]!r}")
        used.add(given[place])
    return given, notes


def _small(value: object) -> bool:
    return (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    )


def _read_arguments(item: RawCall) -> Mapping[str, Any]:
    """The arguments of a call.

    Raises:
        ValueError: Saying why they cannot be used.
    """
    if item.incomplete:
        msg = "the reply was cut off before its arguments were complete"
        raise ValueError(msg)
    given = item.arguments
    if isinstance(given, str):
        return _decoded(given)
    if given is None:
        return _NO_ARGUMENTS
    if isinstance(given, dict):
        return given
    if isinstance(given, Mapping):
        return decode_arguments(given)
    msg = f"arguments must be a dict or JSON string, got {type(given).__name__}"
    raise ValueError(msg)


def _decoded(text: str) -> Mapping[str, Any]:
    # The usual case, an object from the first to the last character, at the speed of
    # the scanner; `decode_arguments` knows all the others.
    try:
        value, end = scan(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return decode_arguments(text)
    if end == len(text) and type(value) is dict and is_plain(value):
        return value
    return decode_arguments(text)


def _problem(
    item: RawCall, call_id: str, index: int, why: Exception, secrets: Sequence[str]
) -> CallProblem:
    raw = item.arguments if isinstance(item.arguments, str) else ""
    position = item.position if item.problem else getattr(why, "position", None)
    return CallProblem(
        call_id=call_id,
        name=item.name.strip() if isinstance(item.name, str) else "",
        message=redact(str(why), secrets=secrets),
        # What is cut off here is not shown anyway; a key cut in half would be.
        raw=redact(raw[: 4 * MAX_PROBLEM_CHARS], secrets=secrets),
        length=len(raw),
        position=position if isinstance(position, int) else None,
        index=index,
    )


def _cut_off(problem: CallProblem) -> CallProblem:
    why = f"{problem.message} (the reply was cut off at the token limit)"
    return replace(problem, message=why)


def _one_call(item: RawCall, call_id: str) -> ToolCall:
    if item.problem:
        raise ValueError(item.problem)
    name = item.name.strip() if isinstance(item.name, str) else ""
    if not name:
        raise ValueError(NAME_MISSING)
    if item.namespace is None and item.idempotency_key is None:
        return ToolCall(call_id, name, _read_arguments(item))
    return ToolCall(
        call_id,
        name,
        _read_arguments(item),
        namespace=_text_or(item.namespace, "default", "namespace"),
        idempotency_key=_text_or(item.idempotency_key, None, "idempotency_key"),
    )


def _text_or(value: object, default: _T, what: str) -> str | _T:
    if value is None or value == "":
        return default
    if isinstance(value, str):
        return value
    msg = f"`{what}` must be a text, got {type(value).__name__}"
    raise ValueError(msg)


def _is_broken(item: RawCall) -> bool:
    """Whether it is so broken that no answer could be paired with it."""
    named = isinstance(item.name, str) and item.name.strip()
    return bool(item.problem) or not named


def collect_calls(
    raw: Sequence[RawCall], *, truncated: bool = False, secrets: Sequence[str] = ()
) -> Calls:
    """Sort the calls of one reply into calls and problems, in order.

    Ids that are missing are made, and of two equal ones the second is renamed. A call
    whose arguments cannot be read becomes a problem with the call's own id; it is never
    given other arguments. In a truncated reply that includes a last call whose
    arguments are empty: nobody knows what was still to come.

    Args:
        raw: The calls as received.
        truncated: Whether the token limit cut the reply off.
        secrets: Texts that must not appear in a problem.
    """
    if not raw:
        return NO_CALLS
    ids, notes = _ids(raw)
    calls: list[ToolCall] = []
    problems: list[CallProblem] = []
    last = len(raw) - 1
    for index, (item, call_id) in enumerate(zip(raw, ids, strict=True)):
        if truncated and index == last and item.arguments in ("", None):
            item = item._replace(incomplete=True)  # noqa: PLW2901 - one fact more
        try:
            calls.append(_one_call(item, call_id))
            continue
        except ValueError as exc:
            why: Exception = exc
        except RecursionError:
            why = ValueError("arguments are nested too deeply")
        problem = _problem(item, call_id, index, why, secrets)
        problems.append(_cut_off(problem) if truncated else problem)
    lost = problems[0].message if all(map(_is_broken, raw)) else ""
    return Calls(tuple(calls), tuple(problems), tuple(notes), lost)
