"""Makes a history that somebody hands in fit to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from executionkit.calls import new_id
from executionkit.engine.messages import copy_message, tool_message

__all__ = ("mend_history",)

Message: TypeAlias = dict[str, Any]

UNANSWERED: Final = "No result was recorded for this call."
_SAYS_SOMETHING: Final = frozenset({"user", "system", "developer"})
_NO_CONTENT: Final = frozenset({"role", "name"})


def mend_history(
    messages: Iterable[Mapping[str, Any]],
) -> tuple[list[Message], int]:
    """A well-formed deep copy of a history, and how many repairs it took.

    Each call has one result and each result its call: a result without a call is
    dropped, a call without a result gets one that says so, a call without an id gets
    an id, an id that is used twice in one message is renamed the second time. Results
    belong to the calls that are still open, so an id that comes again in a later turn
    is fine. Empty arguments become `{}`, content that is None becomes what servers
    accept in its place. The caller's messages are never changed.

    Args:
        messages: In OpenAI's chat form.

    Raises:
        TypeError: When a message is no mapping.
        ValueError: When it has no `role`, a user's message no `content`, or
            `tool_calls` do not have OpenAI's form.
    """
    given: object = messages
    if isinstance(given, (str, bytes, Mapping)):
        msg = f"`messages` must be a list of messages, got {type(given).__name__}"
        raise TypeError(msg)
    mender = _Mender()
    for place, message in enumerate(messages):
        mender.add(f"messages[{place}]", message)
    mender.close()
    return mender.mended, mender.repairs


class _Mender:
    def __init__(self) -> None:
        self.mended: list[Message] = []
        self.repairs = 0
        # The calls that wait for their results: (id in the history, id that is sent).
        self._open: list[tuple[object, str]] = []

    def add(self, where: str, message: Mapping[str, Any]) -> None:
        role = _role_of(where, message)
        if role == "tool":
            self._add_result(message)
            return
        self.close()
        if role == "assistant":
            self._add_reply(where, message)
            return
        if role in _SAYS_SOMETHING and message.get("content") is None:
            msg = f"{where} ({role}) has no `content`; give it a text or remove it"
            raise ValueError(msg)
        self.mended.append(copy_message(dict(message)))

    def close(self) -> None:
        """No more results come for the calls that are open."""
        self.mended.extend(tool_message(sent, UNANSWERED) for _, sent in self._open)
        self.repairs += len(self._open)
        self._open.clear()

    def _add_reply(self, where: str, message: Mapping[str, Any]) -> None:
        calls = _calls_of(where, message)
        if calls:
            copied = copy_message({**message, "tool_calls": calls})
            copied.setdefault("content", None)
            self._open_calls(copied["tool_calls"])
        else:
            copied = copy_message(dict(message))
            copied.pop("tool_calls", None)
            if _says_nothing(copied):
                copied["content"] = ""
                self.repairs += 1
        self.mended.append(copied)

    def _open_calls(self, calls: list[Message]) -> None:
        given = [call.get("id") for call in calls]
        used: set[str] = set()
        for call, old in zip(calls, given, strict=True):
            sent = base = old if isinstance(old, str) and old else new_id()
            number = 2
            while sent in used or (sent is not base and sent in given):
                sent = f"{base}-{number}"
                number += 1
            used.add(sent)
            if sent != old:
                self.repairs += 1
                call["id"] = sent
            self._open.append((old, sent))

    def _add_result(self, message: Mapping[str, Any]) -> None:
        wanted = message.get("tool_call_id")
        for place, (old, sent) in enumerate(self._open):
            if old == wanted or (not old and not wanted):
                del self._open[place]
                copied = copy_message(dict(message))
                copied["tool_call_id"] = sent
                if copied.get("content") is None:
                    copied["content"] = ""
                self.mended.append(copied)
                return
        self.repairs += 1


def _role_of(where: str, message: object) -> str:
    if not isinstance(message, Mapping):
        msg = f"{where} must be a message (a mapping), got {type(message).__name__}"
        raise TypeError(msg)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        msg = f"{where} must have a `role`, got {role!r}"
        raise ValueError(msg)
    return role


def _calls_of(where: str, message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, (list, tuple)):
        msg = f"{where}.tool_calls must be a list, got {type(calls).__name__}"
        raise ValueError(msg)
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            msg = (
                f"{where}.tool_calls[{place}] must be an object with a `function` that "
                "has a `name`"
            )
            raise ValueError(msg)
    return [dict(call) for call in calls]


def _says_nothing(message: Message) -> bool:
    return not any(
        value is not None for key, value in message.items() if key not in _NO_CONTENT
    )
