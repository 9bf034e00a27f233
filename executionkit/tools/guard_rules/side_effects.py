"""The rule of what may be changed where."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from executionkit.context import get_current_context
from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("Environment", "ExecutionMode", "SideEffectClass", "SideEffectGuard")

_PASS = GuardResult.allow()


class SideEffectClass(StrEnum):
    """What a tool does to the world: `Tool.side_effects`."""

    NONE = "none"
    """It computes."""

    READ = "read"
    """It looks at something outside."""

    WRITE = "write"
    """It changes something that can be changed back."""

    DESTRUCTIVE = "destructive"
    """It deletes, pays, sends: what cannot be undone."""

    UNKNOWN = "unknown"
    """Nobody has said. The same as any other word."""


class ExecutionMode(StrEnum):
    """What a run may do, whatever the environment allows."""

    NORMAL = "normal"
    READ_ONLY = "read_only"
    """Only `none` and `read`."""

    DRY_RUN = "dry_run"
    """Only `none`: nothing outside is even asked."""


class Environment(StrEnum):
    """Where the tools run."""

    DEVELOPMENT = "development"
    STAGING = "staging"
    PRODUCTION = "production"


_C = SideEffectClass
_MODES: Final[Mapping[ExecutionMode, frozenset[SideEffectClass]]] = MappingProxyType(
    {
        ExecutionMode.NORMAL: frozenset(_C),
        ExecutionMode.READ_ONLY: frozenset({_C.NONE, _C.READ}),
        ExecutionMode.DRY_RUN: frozenset({_C.NONE}),
    }
)
_POLICY: Final[Mapping[Environment, frozenset[SideEffectClass]]] = MappingProxyType(
    {
        Environment.DEVELOPMENT: frozenset(_C),
        Environment.STAGING: frozenset({_C.NONE, _C.READ, _C.WRITE, _C.UNKNOWN}),
        Environment.PRODUCTION: frozenset({_C.NONE, _C.READ, _C.WRITE}),
    }
)
_WORDS: Final = frozenset(_C)


class SideEffectGuard(BaseGuard):
    """Allows calls by what the tool does: nothing, read, write, destroy, or unknown.

    In development everything may run; in staging all but `destructive`; in production
    neither `destructive` nor `unknown`. A class that the environment forbids is open to
    who holds the capability token; a mode has no exceptions.

    Args:
        environment: Where the tools run.
        mode: What this run may do at most.
        policy: The classes that an environment allows, in the place of the above.
        allowed_tools: Tools (full names) that count as allowed in the environment. The
            mode still holds.
        blocked_tools: Tools that never run.
        capability_token: A secret. A context whose metadata has it as
            `"capability_token"` may do what the environment forbids. It is never looked
            for in arguments, which the model writes.
        enforcement: How far its word goes.

    Raises:
        ValueError: When a word is not one of those above, or the token is empty.
    """

    name = "side_effects"

    def __init__(
        self,
        *,
        environment: Environment = Environment.PRODUCTION,
        mode: ExecutionMode = ExecutionMode.NORMAL,
        policy: Mapping[Environment, Collection[SideEffectClass]] | None = None,
        allowed_tools: Collection[str] = (),
        blocked_tools: Collection[str] = (),
        capability_token: str | None = None,
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        if capability_token is not None and not capability_token:
            msg = "`capability_token` is empty; give a long secret text, or None"
            raise ValueError(msg)
        self._environment = Environment(environment)
        self._mode = ExecutionMode(mode)
        self._in_mode = _MODES[self._mode]
        self._in_place = _allowed(self._environment, policy)
        self._allowed_tools = _names("allowed_tools", allowed_tools)
        self._blocked_tools = _names("blocked_tools", blocked_tools)
        self._token = capability_token
        # Plain texts, so that a tool's own word finds itself at once.
        self._free = frozenset(map(str, self._in_mode & self._in_place))

    def check(self, call: ToolCall, record: ToolRecord, /) -> GuardResult:  # noqa: ARG002 - the interface
        """Compare what the tool does with what is allowed."""
        if self._blocked_tools and record.full_name in self._blocked_tools:
            return GuardResult.block("it is on the list of blocked tools")
        effects = record.tool.side_effects
        if effects in self._free:
            return _PASS
        kind = _C(effects) if effects in _WORDS else _C.UNKNOWN
        details = {"side_effects": kind.value, "mode": self._mode.value}
        if kind not in self._in_mode:
            text = (
                f"its side effects are {kind.value!r}; this run is {self._mode.value}"
            )
            return GuardResult.block(text, details)
        if kind in self._in_place or record.full_name in self._allowed_tools:
            return _PASS
        if self._holds_token():
            return _PASS
        place = self._environment.value
        return GuardResult.block(
            f"its side effects are {kind.value!r}, which {place} does not allow",
            {**details, "environment": place},
        )

    def _holds_token(self) -> bool:
        context = get_current_context()
        if self._token is None or context is None:
            return False
        given = context.metadata.get("capability_token")
        return isinstance(given, str) and hmac.compare_digest(
            given.encode("utf-8", "surrogatepass"),
            self._token.encode("utf-8", "surrogatepass"),
        )


def _allowed(
    place: Environment,
    policy: Mapping[Environment, Collection[SideEffectClass]] | None,
) -> frozenset[SideEffectClass]:
    given = {Environment(name): classes for name, classes in (policy or {}).items()}
    return frozenset(map(SideEffectClass, given.get(place, _POLICY[place])))


def _names(name: str, values: Collection[str]) -> frozenset[str]:
    if isinstance(values, str):
        msg = f"`{name}` must be a list of tool names, got the text {values!r}"
        raise ValueError(msg)
    return frozenset(values)
