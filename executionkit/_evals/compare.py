"""Two variants over the same cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executionkit._evals.statistics import (
    bootstrap_interval,
    check_confidence,
    mcnemar_exact,
)
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._evals.values import EvalReport, EvalResult

__all__ = ("EvalComparison", "compare_reports")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class EvalComparison:
    """How two variants did on the cases that both have run."""

    both: int
    """Cases that both passed."""

    only_first: int
    only_second: int
    neither: int

    p_value: float
    """Exact McNemar test over cases (all trials must pass): how likely a difference
    such as this one, or a greater one, is by chance alone. See `mcnemar_exact`."""

    difference: float
    """The second's mean share of passed trials minus the first's."""

    interval: tuple[float, float]
    """Of the difference: bootstrap over cases. See `bootstrap_interval`."""

    confidence: float
    improved: tuple[str, ...]
    """Names of the cases that only the second passed."""

    broken: tuple[str, ...]
    """Names of the cases that only the first passed."""

    unpaired: tuple[str, ...]
    """Names of the cases that only one of them has run to the end."""

    @property
    def total(self) -> int:
        """The number of pairs."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def is_significant(self) -> bool:
        """Whether `p_value` is below 1 - `confidence`."""
        # Without the last digits, which are those of binary fractions.
        return self.p_value < round(1 - self.confidence, 12)

    def summary(self) -> str:
        """One line."""
        low, high = self.interval
        return (
            f"second - first: {self.difference:+.1%} [{low:+.1%}, {high:+.1%}] over "
            f"{self.total} cases; {self.only_second} improved, {self.only_first} broken, "
            f"p = {self.p_value:.3g}"
        )


def compare_reports(
    first: EvalReport,
    second: EvalReport,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> EvalComparison:
    """Compare two variants case by case, which sees more than two accuracies do.

    Args:
        first: The report of the one variant.
        second: That of the other; cases are paired by name.
        confidence: Of the interval, and of `is_significant`; between 0 and 1.
        resamples: Of the bootstrap, at least 100.
        seed: Of the bootstrap: the same seed gives the same interval.

    Raises:
        ValueError: When a name occurs twice in one report, no case is in both, or a
            setting is out of range.
    """
    check_confidence(confidence)
    ours, theirs = _by_name(first), _by_name(second)
    names = [name for name in ours if name in theirs]
    if not names:
        msg = "the reports have no case in common; cases are paired by name"
        raise ValueError(msg)
    improved = tuple(
        name for name in names if theirs[name].passed and not ours[name].passed
    )
    broken = tuple(
        name for name in names if ours[name].passed and not theirs[name].passed
    )
    both = sum(ours[name].passed and theirs[name].passed for name in names)
    gains = [theirs[name].pass_rate - ours[name].pass_rate for name in names]
    return EvalComparison(
        both=both,
        only_first=len(broken),
        only_second=len(improved),
        neither=len(names) - both - len(broken) - len(improved),
        p_value=mcnemar_exact(len(broken), len(improved)),
        difference=sum(gains) / len(gains),
        interval=bootstrap_interval(
            gains, confidence=confidence, resamples=resamples, seed=seed
        ),
        confidence=confidence,
        improved=improved,
        broken=broken,
        unpaired=tuple(
            [name for name in ours if name not in theirs]
            + [name for name in theirs if name not in ours]
        ),
    )


def _by_name(report: EvalReport) -> dict[str, EvalResult]:
    counts = Counter(result.name for result in report.results)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        msg = f"cases are paired by name, and these occur more than once: {twice!r}"
        raise ValueError(msg)
    return {result.name: result for result in report.results}
