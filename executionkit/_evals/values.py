"""Cases, what came of them, and the report of a suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from executionkit._arguments import check_callable, check_prompt, shown
from executionkit._evals.statistics import pass_at_k, pass_hat_k, wilson_interval
from executionkit.types import TokenUsage, freeze_mapping, sealed

__all__ = (
    "Check",
    "ConversationScript",
    "EvalCase",
    "EvalProgress",
    "EvalReport",
    "EvalResult",
    "EvalTrial",
    "StopReason",
    "TrialResult",
    "Turn",
)

Check: TypeAlias = Callable[[Any], Any]
"""Judges a value; sync or async. None, a true value or an empty text accepts, another
text rejects and is the reason, any other false value rejects. A `PatternResult` (of a
model that judges) counts as its `value`, and its cost is added up."""

StopReason: TypeAlias = Literal["", "budget", "deadline", "cancelled"]
"""Why a suite was not run to its end; empty when it was. The command line writes what
was done when it is `cancelled`, by Ctrl-C."""


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str):
        msg = f"`name` of {kind} must be a str, got {shown(name)}"
        raise TypeError(msg)


@sealed
@dataclass(frozen=True, slots=True)
class EvalTrial:
    """Which trial of a case is being run."""

    number: int
    """From 0."""

    seed: int
    """For whatever in the case draws chance: the same in each run of the suite with the
    same `seed`, whatever else runs, and for both variants of a comparison."""


@sealed
@dataclass(frozen=True, slots=True)
class EvalCase:
    """Something to run, and how to tell whether it went well."""

    name: str
    run: Callable[..., Awaitable[Any] | Any]
    """Sync or async. Called with an `EvalTrial` when it has a parameter without a
    default, else without anything."""

    check: Check
    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """Facts that the result shall carry."""

    def __post_init__(self) -> None:
        _check_name("a case", self.name)
        check_callable(f"run of {self.name!r}", self.run)
        check_callable(f"check of {self.name!r}", self.check)
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))


@sealed
@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of one trial."""

    passed: bool
    reason: str = ""
    """`passed`, or why not."""

    cost: TokenUsage = field(default_factory=TokenUsage)
    """Of the run and the check, also when they failed."""

    duration: float = 0.0
    """Seconds."""

    seed: int = 0


@sealed
@dataclass(frozen=True, slots=True)
class EvalResult:
    """What came of a case."""

    name: str
    passed: bool
    """Whether every trial passed."""

    reason: str = ""
    """`passed`, or why not."""

    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """That of the case."""

    _: KW_ONLY

    trials: tuple[TrialResult, ...] = ()
    cost: TokenUsage = field(default_factory=TokenUsage)
    """Of all trials."""

    duration: float = 0.0
    """Seconds of all trials together."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))
        object.__setattr__(self, "trials", tuple(self.trials))

    @property
    def pass_rate(self) -> float:
        """The share of the trials that passed."""
        if not self.trials:
            return float(self.passed)
        return sum(trial.passed for trial in self.trials) / len(self.trials)


@sealed
@dataclass(frozen=True, slots=True)
class EvalReport:
    """What came of a suite."""

    results: tuple[EvalResult, ...]
    """Of the cases whose trials were all run, in their order."""

    min_accuracy: float | None = None
    """The accuracy that is enough. None = every case must pass."""

    _: KW_ONLY

    cost: TokenUsage = field(default_factory=TokenUsage)
    """Of all trials, those of `partial` included."""

    partial: tuple[EvalResult, ...] = ()
    """Cases of which only some trials were run; they do not count."""

    not_run: tuple[str, ...] = ()
    """Names of the cases of which no trial was run."""

    stopped: StopReason = ""
    """Why there are such cases."""

    def __post_init__(self) -> None:
        for name in ("results", "partial", "not_run"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def total(self) -> int:
        """The number of results."""
        return len(self.results)

    @property
    def passed_count(self) -> int:
        """The number of cases that passed."""
        return sum(result.passed for result in self.results)

    @property
    def failed_count(self) -> int:
        """The number of cases that failed."""
        return self.total - self.passed_count

    @property
    def passed(self) -> bool:
        """Whether there are cases, and all were run to the end and passed."""
        return bool(self.results) and not self.failed_count and not self.stopped

    @property
    def failures(self) -> tuple[EvalResult, ...]:
        """The cases that failed."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def accuracy(self) -> float:
        """The share of the cases that passed; 0.0 when there are none."""
        return self.passed_count / self.total if self.results else 0.0

    @property
    def accuracy_passed(self) -> bool:
        """Whether the accuracy is enough; never when the suite was stopped."""
        if self.min_accuracy is None:
            return self.passed
        return self.accuracy >= self.min_accuracy and not self.stopped

    def interval(self, *, confidence: float = 0.95) -> tuple[float, float]:
        """Where the true accuracy lies, as far as these cases tell.

        Cases are the unit: trials of one case are not independent of each other. See
        `wilson_interval`.
        """
        return wilson_interval(self.passed_count, self.total, confidence=confidence)

    def pass_hat(self, k: int) -> float:
        """How likely `k` trials of a case all pass ("pass^k"), over all cases.

        Raises:
            ValueError: When there are no results, or less than `k` trials of a case.
        """
        return self._mean(pass_hat_k, k)

    def pass_at(self, k: int) -> float:
        """How likely one of `k` trials of a case passes ("pass@k"), over all cases.

        Raises:
            ValueError: When there are no results, or less than `k` trials of a case.
        """
        return self._mean(pass_at_k, k)

    def _mean(self, estimate: Callable[[int, int, int], float], k: int) -> float:
        if not self.results:
            msg = "there are no results"
            raise ValueError(msg)
        shares = [
            estimate(len(r.trials), sum(t.passed for t in r.trials), k)
            for r in self.results
        ]
        return sum(shares) / len(shares)

    def summary(self) -> str:
        """One line, such as `7/9 passed (77.8% accuracy)`."""
        line = f"{self.passed_count}/{self.total} passed ({self.accuracy:.1%} accuracy)"
        if self.stopped:
            left = len(self.partial) + len(self.not_run)
            line += f"; stopped ({self.stopped}) with {left} cases left"
        return line

    def to_jsonl(self) -> str:
        """One line of JSON for each case; `read_jsonl` reads it."""
        from executionkit._evals.output import to_jsonl

        return to_jsonl(self)

    def to_junit(self, *, name: str = "evals") -> str:
        """The report as JUnit XML, which CI systems show. Secrets are hidden."""
        from executionkit._evals.output import to_junit

        return to_junit(self, name)


@sealed
@dataclass(frozen=True, slots=True)
class EvalProgress:
    """How far a suite has come; for `on_progress`."""

    done: int
    """Trials that have ended."""

    total: int
    """Trials in all."""

    name: str
    """The case whose trial ended just now."""

    trial: TrialResult
    cost: TokenUsage
    """Of all trials that were told up to now."""


@sealed
@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says, and how to judge the answer."""

    user: str
    check: Check
    """Gets the `PatternResult` of the turn."""

    def __post_init__(self) -> None:
        check_prompt("user", self.user)
        check_callable("check of a turn", self.check)


@sealed
@dataclass(frozen=True, slots=True)
class ConversationScript:
    """A conversation to run, turn by turn."""

    name: str
    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        _check_name("a script", self.name)
        object.__setattr__(self, "turns", tuple(self.turns))
