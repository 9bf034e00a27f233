"""Steps as the scheduler sees them, and what every run of them returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from executionkit._arguments import check_callable, check_retry, shown
from executionkit.engine._checks import check_number
from executionkit.types import TokenUsage, freeze_mapping, sealed

if TYPE_CHECKING:
    from executionkit.engine.retry import RetryConfig

__all__ = (
    "Condition",
    "FailurePolicy",
    "MissingInput",
    "Node",
    "StepFunction",
    "StepsResult",
    "check_step",
    "names_of",
)

StepFunction: TypeAlias = Callable[[dict[str, Any]], "Awaitable[Any] | Any"]
"""Called with a dict of its own: the initial context, and the outputs that the step
depends on, directly or not. Returns a value, or an awaitable of one."""

Condition: TypeAlias = Callable[[dict[str, Any]], "Awaitable[bool] | bool"]
"""Called as the step would be; False leaves the step out."""

FailurePolicy: TypeAlias = Literal["stop", "cancel", "continue"]
"""What the failure of a step means for the others."""

MissingInput: TypeAlias = Literal["skip", "run"]
"""What a step does when something that it depends on has no output."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One step as the scheduler sees it."""

    name: str
    run: StepFunction
    needs: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """For the approval."""

    when: Condition | None = None
    on_skipped: MissingInput = "skip"
    retry: RetryConfig | None = None
    timeout: float | None = None
    in_thread: bool = False
    may_fail: bool = False
    idempotent: bool = False


@sealed
@dataclass(frozen=True, slots=True)
class StepsResult:
    """What a run of steps returns."""

    outputs: Mapping[str, Any]
    """The initial context and, by name, what each step returned; a `PatternResult` as
    its `value`. Steps stand in the order in which they were given. Deeply read-only."""

    cost: TokenUsage = field(default_factory=TokenUsage)
    """What all attempts at all steps have cost, failed ones included."""

    skipped: tuple[str, ...] = ()
    """Steps that were left out, by their condition or because of what they need."""

    failures: Mapping[str, str] = field(default_factory=freeze_mapping)
    """Steps that failed and were allowed to, with type and text of the error."""

    replayed: int = field(default=0, compare=False)
    """Attempts at steps whose outcome came from the journal; 0 without one."""

    replayed_cost: TokenUsage = field(default_factory=TokenUsage, compare=False)
    """What these had cost in earlier runs; it is a part of `cost`. Neither counts when
    results are compared."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", freeze_mapping(self.outputs))
        object.__setattr__(self, "failures", freeze_mapping(self.failures))


def check_step(kind: str, step: Any) -> None:
    """Refuse a step that cannot be run.

    Raises:
        TypeError: For a field of a wrong kind.
        ValueError: For an empty name, an unknown choice, a timeout that is not > 0.
    """
    if not isinstance(step.name, str):
        msg = f"`name` of a {kind} must be a str, got {shown(step.name)}"
        raise TypeError(msg)
    if not step.name:
        msg = f"`name` of a {kind} must not be empty"
        raise ValueError(msg)
    hint = "pass the function itself, not its result"
    check_callable(f"run of {step.name!r}", step.run, hint=hint)
    check_retry("retry", step.retry)
    if step.timeout is not None:
        check_number("timeout", step.timeout, above=True)
    if not isinstance(step.metadata, Mapping):
        msg = (
            f"`metadata` of {step.name!r} must be a mapping, got {shown(step.metadata)}"
        )
        raise TypeError(msg)


def names_of(owner: str, value: Any) -> tuple[str, ...]:
    """The names in `depends_on`, each one once.

    Raises:
        TypeError: When it is a text (its letters would be names) or holds others.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        msg = (
            f"`depends_on` of {owner!r} must be a tuple of names, got {shown(value)}; "
            f"one name is written ({shown(value)},)"
        )
        raise TypeError(msg)
    names = tuple(dict.fromkeys(value))
    for name in names:
        if not isinstance(name, str):
            msg = f"`depends_on` of {owner!r} must hold names, got {shown(name)}"
            raise TypeError(msg)
    return names
