"""What is planned, within which limits, and what the plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from executionkit._frozen import freeze_mapping, sealed
from executionkit.engine._checks import check_int, check_number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = (
    "ExecutionPlan",
    "SchedulerPolicy",
    "SchedulingConstraints",
    "SkipCause",
    "SkipReason",
    "ToolCallSpec",
    "ToolMetadata",
)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        msg = f"`{name}` must be a text that is not empty, got {value!r}"
        raise ValueError(msg)


def _tuple_of(name: str, value: object) -> tuple[Any, ...]:
    # A set has no order of its own, and a text would be taken letter by letter.
    if type(value) is tuple:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(value)
    msg = f"`{name}` must be a tuple or a list, got {value!r}"
    raise ValueError(msg)


def _check_ids(name: str, ids: Sequence[object]) -> None:
    if not set(map(type, ids)) <= {str} or "" in ids:
        wrong = next(item for item in ids if type(item) is not str or not item)
        msg = f"`{name}` must hold call ids (texts), got {wrong!r}"
        raise ValueError(msg)


def _ids_of(name: str, value: object) -> tuple[str, ...]:
    ids = _tuple_of(name, value)
    _check_ids(name, ids)
    return ids


def _stages_of(value: object) -> tuple[tuple[str, ...], ...]:
    stages = _tuple_of("stages", value)
    if not set(map(type, stages)) <= {tuple}:
        stages = tuple([_tuple_of("stages", stage) for stage in stages])
    _check_ids("stages", list(chain.from_iterable(stages)))
    return stages


def _check_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        msg = f"`{name}` must be a mapping, got {value!r}"
        raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True)
class ToolMetadata:
    """What a scheduler knows of a call."""

    pool: str = "default"
    """Calls of one pool share its limit. A pool without a limit is unlimited."""

    weight: int = 1
    """Slots of the pool that the call takes while it runs."""

    est_ms: int | None = None
    """Estimated milliseconds of the run; 0 is 0. None = the scheduler's default."""

    cost: float | None = None
    """Cost in the caller's unit. None = free."""

    priority: int = 0
    """Higher goes first. 0 and below: optional, may be skipped under a deadline."""

    def __post_init__(self) -> None:
        _check_text("pool", self.pool)
        check_int("weight", self.weight, 1)
        if self.est_ms is not None:
            check_int("est_ms", self.est_ms, 0)
        if self.cost is not None:
            check_number("cost", self.cost)
        if type(self.priority) is not int:
            msg = f"`priority` must be an int, got {self.priority!r}"
            raise ValueError(msg)


def _check_metadata(value: object) -> None:
    # The registry's metadata of a tool has the same name elsewhere.
    if not isinstance(value, ToolMetadata):
        msg = (
            "`metadata` must be a ToolMetadata of executionkit.tools.scheduling, "
            f"got {value!r}"
        )
        raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True)
class ToolCallSpec:
    """One call of a plan."""

    call_id: str
    """Its name in the plan; the node, so one tool may be called many times."""

    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    """The tool's arguments, kept deeply read-only."""

    metadata: ToolMetadata = ToolMetadata()
    depends_on: tuple[str, ...] = ()
    """Ids of the calls that must be finished first; each counts once."""

    timeout_ms: int | None = None
    """Milliseconds that an attempt may take. None = no wish."""

    max_retries: int | None = None
    """Attempts after the first. None = no wish."""

    def __post_init__(self) -> None:
        _check_text("call_id", self.call_id)
        _check_text("tool_name", self.tool_name)
        _check_mapping("args", self.args)
        _check_metadata(self.metadata)
        if self.timeout_ms is not None:
            check_int("timeout_ms", self.timeout_ms, 1)
        if self.max_retries is not None:
            check_int("max_retries", self.max_retries, 0)
        put = object.__setattr__
        put(self, "args", freeze_mapping(self.args))
        if self.depends_on != ():
            ids = _ids_of("depends_on", self.depends_on)
            put(self, "depends_on", tuple(dict.fromkeys(ids)))


@sealed
@dataclass(frozen=True, slots=True)
class SchedulingConstraints:
    """The limits that a plan must keep."""

    deadline_ms: int | None = None
    """When all must be over, in milliseconds on the scale of `now_ms`. None = never."""

    max_cost: float | None = None
    """What all scheduled calls may cost together, required ones too. None = no limit."""

    pool_limits: Mapping[str, int] = field(default_factory=dict)
    """Pool to slots, at least 1. A pool that is not named is unlimited."""

    now_ms: int = 0
    """The moment at which the plan starts; `deadline_ms - now_ms` is what remains."""

    def __post_init__(self) -> None:
        if self.deadline_ms is not None:
            check_int("deadline_ms", self.deadline_ms, 0)
        if self.max_cost is not None:
            check_number("max_cost", self.max_cost)
        _check_mapping("pool_limits", self.pool_limits)
        for pool, limit in self.pool_limits.items():
            _check_text("pool_limits", pool)
            check_int(f"pool_limits[{pool!r}]", limit, 1)
        check_int("now_ms", self.now_ms, 0)
        object.__setattr__(self, "pool_limits", freeze_mapping(self.pool_limits))


class SkipCause(StrEnum):
    """Why a call is not part of the plan."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    """It would end too late."""

    COST_EXCEEDED = "cost_exceeded"
    """It does not fit the budget."""

    DEPENDENCY_SKIPPED = "dependency_skipped"
    """A call that it needs is skipped."""


@sealed
@dataclass(frozen=True, slots=True)
class SkipReason:
    """Why one call is skipped."""

    call_id: str
    reason: SkipCause
    detail: str = ""
    """The numbers behind it, in words."""

    def __post_init__(self) -> None:
        _check_text("call_id", self.call_id)
        if type(self.reason) is not SkipCause:
            try:
                object.__setattr__(self, "reason", SkipCause(self.reason))
            except ValueError:
                msg = (
                    f"`reason` must be one of {', '.join(SkipCause)}, "
                    f"got {self.reason!r}"
                )
                raise ValueError(msg) from None


@sealed
@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What to run in which order, how long each call may take, and what to leave out."""

    stages: tuple[tuple[str, ...], ...] = ()
    """Call ids; all that a call needs stands in earlier stages, and no stage holds more
    of a pool than its limit. An executor need not wait for a whole stage to end."""

    per_call_timeout_ms: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds per attempt. A call that is not named has no limit from the plan."""

    per_call_max_retries: Mapping[str, int] = field(default_factory=dict)
    """Attempts after the first. A call that is not named has no wish."""

    skip: tuple[str, ...] = ()
    """Call ids that must not be run, in the order in which they were given."""

    skip_reasons: tuple[SkipReason, ...] = ()
    """Why, in the order of `skip`."""

    critical_path_ms: int | None = None
    """The longest chain of estimates. None = not worked out."""

    estimated_total_ms: int | None = None
    """The end of the last call when pools are full at times. None = not worked out."""

    pool_utilization: Mapping[str, int] = field(default_factory=dict)
    """Pool to the most slots that one stage takes of it."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "stages", _stages_of(self.stages))
        put(self, "skip", _ids_of("skip", self.skip))
        put(self, "skip_reasons", _tuple_of("skip_reasons", self.skip_reasons))
        for name in ("per_call_timeout_ms", "per_call_max_retries", "pool_utilization"):
            value = getattr(self, name)
            _check_mapping(name, value)
            for key, number in value.items():
                if type(number) is not int or number < 0:
                    check_int(f"{name}[{key!r}]", number, 0)
            put(self, name, freeze_mapping(value))
        for name in ("critical_path_ms", "estimated_total_ms"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 0)
        self._check_once()

    def _check_once(self) -> None:
        ids = [*chain.from_iterable(self.stages), *self.skip]
        if len(set(ids)) < len(ids):
            twice = [call_id for call_id, count in Counter(ids).items() if count > 1]
            msg = (
                f"a call stands once in a plan, in a stage or in `skip`; more than "
                f"once: {', '.join(map(repr, twice[:10]))}"
            )
            raise ValueError(msg)
        skipped = set(self.skip)
        for item in self.skip_reasons:
            if not isinstance(item, SkipReason) or item.call_id not in skipped:
                msg = f"`skip_reasons` must explain calls of `skip`, got {item!r}"
                raise ValueError(msg)

    @property
    def all_scheduled_calls(self) -> frozenset[str]:
        """The ids of all calls that are to be run."""
        return frozenset(chain.from_iterable(self.stages))

    @property
    def total_stages(self) -> int:
        return len(self.stages)


@runtime_checkable
class SchedulerPolicy(Protocol):
    """Makes plans. The same calls and constraints give the same plan, and nothing else."""

    def plan(
        self,
        calls: Sequence[ToolCallSpec],
        constraints: SchedulingConstraints,
        context: Mapping[str, object] | None = None,
    ) -> ExecutionPlan:
        """The plan for `calls`; `context` is the caller's own, for own policies.

        Raises:
            PlanError: When the calls cannot be brought into any order.
        """
        ...
