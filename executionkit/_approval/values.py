"""What is asked, what is answered, and what a store keeps of both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

from executionkit._constants import MAX_ERROR_DETAIL_CHARS
from executionkit._keys import canonical
from executionkit._redact import redact
from executionkit.types import JsonValue, freeze_mapping, sealed, thaw

if TYPE_CHECKING:
    from typing import Self

__all__ = (
    "PARKED",
    "ApprovalDecision",
    "ApprovalRecord",
    "ApprovalRequest",
    "ApprovalState",
    "Parked",
    "named",
)

_SUBJECT_CHARS: Final = 200


class Parked(Enum):
    """The type of `PARKED`."""

    PARKED = "parked"


PARKED: Final = Parked.PARKED
"""What a callback returns when somebody will answer later: the run ends for now."""


@sealed
@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What somebody is asked to allow."""

    action: str
    """The kind of action: `tool_call`, `workflow_step`, `plan_step`, ..."""

    subject: str
    """What it is done with: the name of the tool or the step."""

    metadata: Mapping[str, JsonValue] = field(default_factory=freeze_mapping)
    """Facts to decide by, arguments among them. Kept deeply read-only."""

    id: str = field(default="", kw_only=True, compare=False)
    """Names this one question; the gate gives a new one to each."""

    run_id: str = field(default="", kw_only=True, compare=False)
    """The run that asks; the gate fills it in."""

    arguments: Mapping[str, Any] = field(
        default=cast("Mapping[str, Any]", None),
        kw_only=True,
        compare=False,
        repr=False,
    )
    """What the action is done with: a tool's arguments, the inputs of a step. Left out =
    `metadata["arguments"]`."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "metadata", freeze_mapping(self.metadata))
        given: Any = self.arguments
        if given is None:
            given = self.metadata.get("arguments")
        put(
            self,
            "arguments",
            freeze_mapping(given if isinstance(given, Mapping) else {}),
        )

    @classmethod
    def create(
        cls,
        action: str,
        subject: str,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> ApprovalRequest:
        """A request with optional metadata."""
        return cls(action, subject, metadata or {})

    @property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the action, its subject, arguments and facts.

        The id, the run and the id of the tool call are not part of it: the same action
        has the same digest wherever it is asked for.

        Raises:
            ValueError: When an argument has no canonical form (an object, for
                example): an answer could not be bound to it.
        """
        given = dict(self.arguments or {})
        facts = {k: v for k, v in self.metadata.items() if k != "tool_call_id"}
        # Said twice is said once; but what only looks like the arguments counts too.
        if "arguments" in facts and canonical(facts["arguments"]) == canonical(given):
            del facts["arguments"]
        parts = [canonical(part) for part in (facts, given)]
        if None in parts:
            msg = (
                f"{named(self)} cannot be bound to an answer: its arguments or facts "
                "hold something that has no canonical form; use JSON-like values"
            )
            raise ValueError(msg)
        text = canonical([self.action, self.subject, *parts])
        return hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).hexdigest()

    def approve(
        self, reason: str = "", *, arguments: Mapping[str, Any] | None = None
    ) -> ApprovalDecision:
        """A yes to this one question, and to no other.

        Args:
            reason: Why.
            arguments: All arguments as they should be; None = as they are.
        """
        return ApprovalDecision(
            approved=True,
            reason=reason,
            arguments=arguments,
            request_id=self.id,
            digest=self.digest,
        )

    def deny(self, reason: str = "") -> ApprovalDecision:
        """A no to this one question."""
        return ApprovalDecision(
            approved=False, reason=reason, request_id=self.id, digest=self.digest
        )

    def to_dict(self) -> dict[str, Any]:
        """The request as JSON-like data; `from_dict` is the way back."""
        return {
            "action": self.action,
            "subject": self.subject,
            "metadata": thaw(self.metadata),
            "id": self.id,
            "run_id": self.run_id,
            "arguments": thaw(self.arguments),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The request that `to_dict` wrote."""
        return cls(
            data["action"],
            data["subject"],
            data.get("metadata") or {},
            id=data.get("id", ""),
            run_id=data.get("run_id", ""),
            arguments=cast("Mapping[str, Any]", data.get("arguments")),
        )


@sealed
@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The answer to a request.

    Raises:
        TypeError: When `approved` is not a bool ("no" would count as a yes), or
            `arguments` is no mapping.
        ValueError: When a no has `arguments`.
    """

    approved: bool
    reason: str = ""
    """Why; secrets in it are hidden, and at most 500 characters are kept."""

    arguments: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """All arguments, changed by whoever approved; None = as they were asked for."""

    request_id: str = field(default="", kw_only=True)
    """The one question that it answers; empty = the one that was asked."""

    digest: str = field(default="", kw_only=True)
    """The `digest` of the request that it answers; empty = of the one asked."""

    def __post_init__(self) -> None:
        approved: object = self.approved
        if not isinstance(approved, bool):
            msg = f"`approved` must be True or False, got {approved!r}"
            raise TypeError(msg)
        put = object.__setattr__
        put(self, "reason", shown(self.reason, MAX_ERROR_DETAIL_CHARS))
        given: object = self.arguments
        if given is None:
            return
        if not isinstance(given, Mapping):
            msg = f"`arguments` must be a dict or None, got {type(given).__name__}"
            raise TypeError(msg)
        if not approved:
            msg = "`arguments` belong to a yes; a no changes nothing"
            raise ValueError(msg)
        put(self, "arguments", freeze_mapping(self.arguments))

    def to_dict(self) -> dict[str, Any]:
        """The decision as JSON-like data; `from_dict` is the way back."""
        return {
            "approved": self.approved,
            "reason": self.reason,
            "arguments": thaw(self.arguments),
            "request_id": self.request_id,
            "digest": self.digest,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The decision that `to_dict` wrote."""
        return cls(
            data["approved"],
            data.get("reason", ""),
            arguments=cast("Mapping[str, Any]", data.get("arguments")),
            request_id=data.get("request_id", ""),
            digest=data.get("digest", ""),
        )


class ApprovalState(StrEnum):
    """How far a question has come."""

    PENDING = "pending"
    """Nobody has answered."""

    ANSWERED = "answered"
    """Somebody has; nothing was done yet."""

    USED = "used"
    """The answer has been acted on. It counts for nothing more."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    """A question as a store keeps it."""

    request: ApprovalRequest
    """What was asked, by which run."""

    digest: str
    """What the answer is bound to."""

    state: ApprovalState = ApprovalState.PENDING
    decision: ApprovalDecision | None = None
    """None while nobody has answered."""

    answered_by: str = ""
    """Who answered, as they said."""

    created_at: float = 0.0
    """Wall-clock seconds since 1970."""

    answered_at: float | None = None

    @property
    def id(self) -> str:
        """The id of the question: what an answer has to name."""
        return self.request.id


def named(request: ApprovalRequest) -> str:
    """A request in words, for messages."""
    action, subject = (
        # On one line, so that a name cannot pass for a line of its own in a log.
        "".join(
            char if char.isprintable() else " " for char in shown(text, _SUBJECT_CHARS)
        )
        for text in (request.action, request.subject)
    )
    return f"{action} '{subject}'"


def shown(text: object, most: int) -> str:
    """A text without secrets, in bounded length."""
    clean = "" if text is None else redact(str(text))
    return clean if len(clean) <= most else f"{clean[: most - 3]}..."
