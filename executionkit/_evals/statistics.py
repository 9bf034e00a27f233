"""What counts of passes say, and how sure that is. Pure functions."""

from __future__ import annotations

from math import comb, sqrt
from typing import TYPE_CHECKING

from executionkit._clock import Random
from executionkit.engine._checks import check_int, check_number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = (
    "bootstrap_interval",
    "mcnemar_exact",
    "pass_at_k",
    "pass_hat_k",
    "wilson_interval",
)


def wilson_interval(
    successes: int, total: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """The score interval of a proportion, from independent trials.

    Unlike the textbook interval it is right for few trials and for 0 and 100 %: Edwin
    B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference",
    Journal of the American Statistical Association 22 (1927), 209-212.

    Args:
        successes: From 0 to `total`.
        total: Trials. 0 = nothing is known: (0, 1).
        confidence: How often such an interval holds the true value; between 0 and 1.

    Raises:
        ValueError: For a count or a confidence out of range.
    """
    check_int("total", total, 0)
    if check_int("successes", successes, 0) > total:
        msg = f"`successes` must be <= `total`, got {successes} of {total}"
        raise ValueError(msg)
    z = _quantile(confidence)
    if not total:
        return 0.0, 1.0
    rate = successes / total
    scale = 1 + z * z / total
    middle = (rate + z * z / (2 * total)) / scale
    half = z / scale * sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    low = 0.0 if not successes else max(0.0, middle - half)
    high = 1.0 if successes == total else min(1.0, middle + half)
    return low, high


def _quantile(confidence: float) -> float:
    check_confidence(confidence)
    from statistics import NormalDist  # takes long to import

    return NormalDist().inv_cdf((1 + confidence) / 2)


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not between 0 and 1.

    Raises:
        ValueError: When it is not.
    """
    if check_number("confidence", confidence, above=True) >= 1:
        msg = f"`confidence` must be < 1, got {confidence!r}"
        raise ValueError(msg)


def pass_hat_k(trials: int, passes: int, k: int) -> float:
    """How likely `k` trials in a row all pass ("pass^k"), estimated without bias.

    `C(passes, k) / C(trials, k)`: Yao, Shinn, Razavi and Narasimhan, "tau-bench: A
    Benchmark for Tool-Agent-User Interaction in Real-World Domains" (2024), section 3.

    Raises:
        ValueError: When not 1 <= k <= trials, or not 0 <= passes <= trials.
    """
    _check_counts(trials, passes, k)
    return comb(passes, k) / comb(trials, k)


def pass_at_k(trials: int, passes: int, k: int) -> float:
    """How likely at least one of `k` trials passes ("pass@k"), estimated without bias.

    `1 - C(trials - passes, k) / C(trials, k)`: Chen and others, "Evaluating Large
    Language Models Trained on Code" (2021), section 2.1.

    Raises:
        ValueError: When not 1 <= k <= trials, or not 0 <= passes <= trials.
    """
    _check_counts(trials, passes, k)
    return 1 - comb(trials - passes, k) / comb(trials, k)


def _check_counts(trials: int, passes: int, k: int) -> None:
    check_int("k", k, 1)
    check_int("passes", passes, 0)
    if k > trials or passes > trials:
        msg = f"there are {trials} trials; got k={k}, passes={passes}"
        raise ValueError(msg)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """The two-sided p-value that two variants pass equally often, from pairs.

    Only pairs that differ count; under the hypothesis each is a fair coin, which is
    computed exactly: Quinn McNemar, "Note on the Sampling Error of the Difference
    Between Correlated Proportions or Percentages", Psychometrika 12 (1947), 153-157.

    Args:
        only_first: Pairs in which only the first passed.
        only_second: Pairs in which only the second passed.
    """
    check_int("only_first", only_first, 0)
    check_int("only_second", only_second, 0)
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = term = 1
    for count in range(fewer):
        term = term * (total - count) // (count + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << total))


def bootstrap_interval(
    values: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean.

    B. Efron, "Bootstrap Methods: Another Look at the Jackknife", The Annals of
    Statistics 7 (1979), 1-26. The same seed gives the same interval.

    Args:
        values: At least one.
        confidence: Between 0 and 1.
        resamples: Samples drawn with replacement, at least 100.
        seed: Of the chance.

    Raises:
        ValueError: When there are no values, or a setting is out of range.
    """
    check_confidence(confidence)
    check_int("resamples", resamples, 100)
    if not values:
        msg = "`values` is empty: there is no mean"
        raise ValueError(msg)
    chance, count = Random(seed), len(values)
    means = sorted(
        sum(chance.choices(values, k=count)) / count for _ in range(resamples)
    )
    cut = int((1 - confidence) / 2 * resamples)
    return means[cut], means[resamples - 1 - cut]
