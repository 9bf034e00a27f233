"""What stores of limits and circuits promise, whoever keeps them.

Limits and circuits may be shared by many processes. Each decision is one question: the
permits of all limits of a call are had in the same moment, or none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from executionkit._frozen import sealed

if TYPE_CHECKING:
    from executionkit.engine.breaker import BreakerConfig, BreakerSnapshot
    from executionkit.engine.rate_bucket import WindowUsage

__all__ = (
    "BreakerBackend",
    "BreakerLease",
    "LimitPermit",
    "LimitRule",
    "LimiterBackend",
    "Outcome",
)

Outcome: TypeAlias = Literal["success", "failure", "abandoned"]
"""How an admitted call ended; `"abandoned"` says nothing about the other side."""


@sealed
@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit that counts starts: never more than `limit` in any `period` seconds."""

    key: str
    """What is counted together."""

    limit: int
    period: float
    """Seconds."""


@sealed
@dataclass(frozen=True, slots=True)
class LimitPermit:
    """Starts that were counted; what `refund` needs to take them back."""

    rules: tuple[LimitRule, ...]
    cost: int
    token: Any = None
    """The store's own."""


@sealed
@dataclass(frozen=True, slots=True)
class BreakerLease:
    """An admitted call; its end is reported once."""

    key: str
    config: BreakerConfig
    token: Any = None
    """The store's own."""


@runtime_checkable
class LimiterBackend(Protocol):
    """Keeps exact windows, first come, first served."""

    async def acquire(
        self,
        rules: Sequence[LimitRule],
        *,
        cost: int = 1,
        timeout: float | None = None,
    ) -> LimitPermit:
        """Wait until `cost` starts fit into every window, and count them in all.

        Args:
            rules: The limits that concern the call.
            cost: Starts that it stands for.
            timeout: Seconds to wait at most. None = no limit; 0 = do not wait.

        Raises:
            PermitTimeoutError: At once, when they cannot be had in time; its
                `retry_after` says when they could.
            ValueError: When `cost` is above a limit.
        """
        ...

    async def refund(self, permit: LimitPermit) -> None:
        """Take back starts that did not happen. Late and repeated refunds do nothing."""
        ...

    async def usage(self, rule: LimitRule) -> WindowUsage:
        """How much of a window is used right now."""
        ...

    async def reset(self, key: str | None = None) -> None:
        """Forget the starts under a key; None = all of this store."""
        ...


@runtime_checkable
class BreakerBackend(Protocol):
    """Keeps circuits; the state machine is that of `engine.breaker`."""

    async def before(self, key: str, config: BreakerConfig) -> BreakerLease:
        """Admit a call.

        Raises:
            ToolCircuitOpenError: When the circuit is open or all probes are out.
        """
        ...

    async def report(self, lease: BreakerLease, outcome: Outcome) -> None:
        """Say how an admitted call ended.

        Only the first report counts, and only in the state of the circuit in which the
        call was admitted.
        """
        ...

    async def snapshot(self, key: str, config: BreakerConfig) -> BreakerSnapshot:
        """What a circuit looks like; one that was never asked for is closed."""
        ...

    async def states(self) -> Mapping[str, str]:
        """The state of every circuit that is known, by key."""
        ...

    async def reset(self, key: str | None = None) -> None:
        """Close a circuit and forget its failures; None = all of this store."""
        ...
