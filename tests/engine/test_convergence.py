"""When a loop may stop."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.engine.convergence import ConvergenceDetector


def stops(detector: ConvergenceDetector, *scores: float) -> list[bool]:
    return [detector.should_stop(score) for score in scores]


@pytest.mark.req("convergence.stop")
def test_it_stops_at_the_target() -> None:
    detector = ConvergenceDetector(score_threshold=0.9)
    assert stops(detector, 0.5, 0.89, 0.9, 1.0) == [False, False, True, True]


@pytest.mark.req("convergence.stop")
def test_it_stops_after_three_small_changes_in_a_row_by_default() -> None:
    detector = ConvergenceDetector()
    scores = (0.5, 0.505, 0.5, 0.49)
    assert stops(detector, *scores) == [False, False, False, True]
    detector = ConvergenceDetector()
    assert stops(detector, 0.5, 0.52, 0.5, 0.52, 0.5, 0.52) == [False] * 6


@pytest.mark.req("convergence.stop")
def test_a_real_change_starts_the_count_again() -> None:
    detector = ConvergenceDetector(0.1, 2)
    assert stops(detector, 0.1, 0.1, 0.5, 0.5, 0.5) == [
        False,
        False,
        False,
        False,
        True,
    ]


@pytest.mark.req("convergence.stop")
@pytest.mark.parametrize("step", [0.01, 0.05, 0.1])
def test_a_change_of_exactly_the_threshold_is_no_progress(step: float) -> None:
    """The rounding of two-digit scores must not decide."""
    for index in range(8):
        score = round(0.1 + index * 0.01, 2)
        detector = ConvergenceDetector(step, 1)
        assert stops(detector, score, round(score + step, 2)) == [False, True]
        detector = ConvergenceDetector(step, 1)
        assert stops(detector, score, round(score + step + 0.01, 2)) == [False, False]


@pytest.mark.req("convergence.stop")
def test_a_threshold_of_zero_stops_on_equal_scores_only() -> None:
    detector = ConvergenceDetector(0.0, 1)
    assert stops(detector, 0.5, 0.5001, 0.5001) == [False, False, True]


@pytest.mark.req("convergence.stop")
def test_reset_forgets_all_scores() -> None:
    detector = ConvergenceDetector(0.1, 1)
    assert stops(detector, 0.5, 0.5) == [False, True]
    detector.reset()
    assert stops(detector, 0.5, 0.5) == [False, True]
    detector = ConvergenceDetector(0.1, 2)
    assert stops(detector, 0.5, 0.5) == [False, False]
    detector.reset()
    assert stops(detector, 0.5, 0.5, 0.5) == [False, False, True]


@pytest.mark.req("convergence.valid")
@pytest.mark.parametrize("score", [-0.01, 1.01, math.nan, math.inf, True])
def test_a_senseless_score_is_refused_and_not_recorded(score: Any) -> None:
    detector = ConvergenceDetector(0.1, 1)
    detector.should_stop(0.5)
    with pytest.raises(ValueError, match="Invalid score"):
        detector.should_stop(score)
    assert detector.should_stop(0.5)


@pytest.mark.req("convergence.valid")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"delta_threshold": -0.1}, "delta_threshold"),
        ({"delta_threshold": math.nan}, "delta_threshold"),
        ({"patience": 0}, "patience"),
        ({"patience": 1.5}, "patience"),
        ({"score_threshold": -0.1}, "score_threshold"),
        ({"score_threshold": 1.1}, "score_threshold"),
        ({"score_threshold": math.nan}, "score_threshold"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ConvergenceDetector(**options)


def test_the_ends_of_the_range_are_allowed() -> None:
    assert ConvergenceDetector(0.0, 1, 0.0).should_stop(0.0)
    assert ConvergenceDetector(0.0, 1, 1.0).should_stop(1)


@given(
    st.lists(st.floats(0.0, 1.0), max_size=30),
    st.floats(0.0, 0.5),
    st.integers(1, 4),
)
def test_it_agrees_with_the_definition(
    scores: list[float], delta: float, patience: int
) -> None:
    detector = ConvergenceDetector(delta, patience)
    for index, score in enumerate(scores):
        window = scores[max(0, index - patience) : index + 1]
        still = len(window) == patience + 1 and all(
            abs(a - b) <= delta + 1e-12 for a, b in pairwise(window)
        )
        assert detector.should_stop(score) == still
