"""What a guard is and what it says."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from executionkit._frozen import freeze_mapping, sealed

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = (
    "ALLOWED",
    "Answer",
    "BaseGuard",
    "EnforcementLevel",
    "Guard",
    "GuardResult",
    "GuardVerdict",
)


class GuardVerdict(StrEnum):
    """What a guard says of a call."""

    ALLOW = "allow"
    WARN = "warn"
    """Let it pass, and tell the caller."""

    BLOCK = "block"
    """Do not run it; do not hand out its output."""

    REPAIR = "repair"
    """Let it pass with other arguments, or another output."""


class EnforcementLevel(StrEnum):
    """How far a guard's word goes."""

    OFF = "off"
    """It is not asked."""

    WARN = "warn"
    """Its blocks become warnings, also those of a guard that failed."""

    BLOCK = "block"
    """Its blocks block."""


@sealed
@dataclass(frozen=True, slots=True)
class GuardResult:
    """A guard's verdict on one call or one output."""

    verdict: GuardVerdict
    reason: str = ""
    """In words for the model; secrets in it are hidden before it is shown."""

    repaired_arguments: Mapping[str, Any] | None = None
    """All arguments, as they should be; None = not repaired."""

    repaired_output: Any = ...
    """The output as it should be; `...` = not repaired."""

    details: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """JSON-like facts for the error's details."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "verdict", GuardVerdict(self.verdict))
        put(self, "details", freeze_mapping(self.details))
        if self.repaired_arguments is not None:
            put(self, "repaired_arguments", freeze_mapping(self.repaired_arguments))

    @classmethod
    def allow(cls) -> GuardResult:
        """It may pass. Always the same object."""
        return ALLOWED

    @classmethod
    def warn(cls, reason: str, details: Mapping[str, Any] | None = None) -> GuardResult:
        """It may pass, but `reason` should be known."""
        return cls(GuardVerdict.WARN, reason, details=details or {})

    @classmethod
    def block(
        cls, reason: str, details: Mapping[str, Any] | None = None
    ) -> GuardResult:
        """It must not pass, for `reason`."""
        return cls(GuardVerdict.BLOCK, reason, details=details or {})

    @classmethod
    def repair(
        cls,
        reason: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        output: Any = ...,
        details: Mapping[str, Any] | None = None,
    ) -> GuardResult:
        """It may pass with these `arguments`, or with this `output`.

        A reason that is given is shown among the warnings.
        """
        return cls(GuardVerdict.REPAIR, reason, arguments, output, details or {})


ALLOWED = GuardResult(GuardVerdict.ALLOW)

Answer: TypeAlias = "GuardResult | Awaitable[GuardResult]"


class Guard(Protocol):
    """What a guard has; either of the two checks may be left out."""

    @property
    def name(self) -> str:
        """What errors and warnings call it."""
        ...

    def check(self, call: ToolCall, record: ToolRecord, /) -> Answer:
        """May `call` run?"""
        ...

    def check_output(self, call: ToolCall, record: ToolRecord, value: Any, /) -> Answer:
        """May `value`, which the tool returned, be handed out?"""
        ...


class BaseGuard:
    """A guard that allows everything: override what you need.

    Args:
        enforcement: How far its word goes.
    """

    name: str = "guard"
    enforcement: EnforcementLevel = EnforcementLevel.BLOCK

    def __init__(
        self, *, enforcement: EnforcementLevel = EnforcementLevel.BLOCK
    ) -> None:
        self.enforcement = EnforcementLevel(enforcement)

    def check(self, call: ToolCall, record: ToolRecord, /) -> Answer:  # noqa: ARG002 - the interface
        """May `call` run?"""
        return ALLOWED

    def check_output(self, call: ToolCall, record: ToolRecord, value: Any, /) -> Answer:  # noqa: ARG002 - the interface
        """May `value`, which the tool returned, be handed out?"""
        return ALLOWED

    def peek(self, call: ToolCall, record: ToolRecord, /) -> Answer:
        """What `check` would say; counts nothing."""
        return self.check(call, record)
