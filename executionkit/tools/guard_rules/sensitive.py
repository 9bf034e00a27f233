"""The rule that keeps secrets out of arguments and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from executionkit._redact import PLACEHOLDER, TRUNCATED, redact, redact_value
from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("RedactMode", "SensitiveDataGuard")

_PASS = GuardResult.allow()
_MAX_SHOWN: Final = 5
_PLAIN: Final = frozenset({bool, int, float, type(None)})


class RedactMode(StrEnum):
    """What happens to a secret."""

    OFF = "off"
    """It is not looked for."""

    WARN = "warn"
    """It passes, and the caller is told where it stands."""

    REDACT = "redact"
    """`[REDACTED]` stands in its place."""

    BLOCK = "block"
    """The call does not run; the output is not handed out."""


class SensitiveDataGuard(BaseGuard):
    """Looks for keys, tokens and passwords, by name and by shape, with the one redactor.

    What is too deep or too large to be looked through counts as a secret. Reasons and
    details name places, never values.

    Args:
        arguments: What happens to secrets in arguments. Off unless said otherwise: a
            tool may be meant to get one.
        outputs: What happens to secrets in outputs, which a model will read.
        secrets: Values that are known to be secret (4 characters or more).
        enforcement: How far its word goes.

    Raises:
        ValueError: When a mode is none of the four.
    """

    name = "sensitive_data"

    def __init__(
        self,
        *,
        arguments: RedactMode = RedactMode.OFF,
        outputs: RedactMode = RedactMode.REDACT,
        secrets: Iterable[str] = (),
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        self._arguments = RedactMode(arguments)
        self._outputs = RedactMode(outputs)
        self._secrets = (secrets,) if isinstance(secrets, str) else tuple(secrets)

    def check(self, call: ToolCall, record: ToolRecord, /) -> GuardResult:  # noqa: ARG002 - the interface
        """Look through the arguments."""
        if self._arguments is RedactMode.OFF or not call.arguments:
            return _PASS
        hidden, places = self._look(dict(call.arguments))
        if not places:
            return _PASS
        if self._arguments is RedactMode.REDACT:
            return GuardResult.repair(_reason("arguments", places), arguments=hidden)
        return _verdict(self._arguments, "arguments", places)

    def check_output(
        self,
        call: ToolCall,  # noqa: ARG002 - the interface
        record: ToolRecord,  # noqa: ARG002 - the interface
        value: Any,
        /,
    ) -> GuardResult:
        """Look through the output."""
        if self._outputs is RedactMode.OFF or type(value) in _PLAIN:
            return _PASS
        hidden, places = self._look(value)
        if not places:
            return _PASS
        if self._outputs is RedactMode.REDACT:
            return GuardResult.repair(_reason("output", places), output=hidden)
        return _verdict(self._outputs, "output", places)

    def _look(self, value: Any) -> tuple[Any, list[str]]:
        if isinstance(value, str):
            text = redact(value, secrets=self._secrets)
            return text, [] if text == value else ["the text"]
        hidden = redact_value(value, secrets=self._secrets)
        if type(hidden) is type(value) and hidden == value:
            return value, []
        return hidden, list(islice(_changes(value, hidden, ""), _MAX_SHOWN + 1))


def _verdict(mode: RedactMode, what: str, places: list[str]) -> GuardResult:
    reason = _reason(what, places)
    details = {"places": places[:_MAX_SHOWN]}
    if mode is RedactMode.BLOCK:
        return GuardResult.block(reason, details)
    return GuardResult.warn(reason, details)


def _reason(what: str, places: list[str]) -> str:
    shown = ", ".join(places[:_MAX_SHOWN])
    more = ", ..." if len(places) > _MAX_SHOWN else ""
    return f"secrets in the {what}, at {shown}{more}"


def _changes(old: Any, new: Any, place: str) -> Iterator[str]:
    """Where the redactor has hidden something."""
    if isinstance(new, dict):
        items = (
            list(old.items())
            if isinstance(old, Mapping)
            else [(name, getattr(old, name, None)) for name in new]
        )
        for (old_key, before), (key, after) in zip(items, new.items(), strict=False):
            below = f"{place}.{key}" if place else str(key)
            if old_key != key:
                yield f"a key of `{place or 'the object'}`"
            yield from _changes(before, after, below)
    elif isinstance(new, (list, tuple)):
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from _changes(before, after, f"{place}[{index}]")
    elif new == TRUNCATED and old != TRUNCATED:
        yield f"`{place}` (too deep or too large to be looked through)"
    elif _hides(new) and not (type(old) is type(new) and old == new):
        yield f"`{place}`" if place else "the value"


def _hides(new: Any) -> bool:
    if isinstance(new, bytes):
        return PLACEHOLDER.encode() in new
    return isinstance(new, str) and PLACEHOLDER in new
