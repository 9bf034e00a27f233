"""When to stop improving: the target is reached, or the scores stand still."""

from __future__ import annotations

from executionkit.engine._checks import check_int, check_number

__all__ = ("ConvergenceDetector",)

# Scores are written with two digits and compared as floats: 0.81 - 0.80 is a hair more
# than 0.01, and is meant to be 0.01.
_ROUNDING = 1e-12


class ConvergenceDetector:
    """Watches the scores of a loop. One detector per loop; not thread-safe.

    Args:
        delta_threshold: A change of at most this much counts as standing still.
        patience: That many such changes in a row mean: stop. At least 1.
        score_threshold: A score of at least this much means: stop. None = no target.
    """

    __slots__ = ("_delta", "_patience", "_previous", "_stale", "_target")

    def __init__(
        self,
        delta_threshold: float = 0.01,
        patience: int = 3,
        score_threshold: float | None = None,
    ) -> None:
        self._delta = check_number("delta_threshold", delta_threshold)
        self._patience = check_int("patience", patience, 1)
        if score_threshold is not None:
            check_number("score_threshold", score_threshold)
            if score_threshold > 1:
                msg = f"score_threshold must be in [0, 1], got {score_threshold}"
                raise ValueError(msg)
        self._target = score_threshold
        self._previous: float | None = None
        self._stale = 0

    def should_stop(self, score: float) -> bool:
        """Take the next score; True when the loop may end.

        Raises:
            ValueError: When `score` is not a number in [0, 1]; nothing is recorded.
        """
        if isinstance(score, bool) or not 0.0 <= score <= 1.0:
            msg = f"Invalid score {score!r}: must be a number in [0, 1]"
            raise ValueError(msg)
        previous, self._previous = self._previous, score
        if previous is not None:
            moved = abs(score - previous) > self._delta + _ROUNDING
            self._stale = 0 if moved else self._stale + 1
        if self._target is not None and score >= self._target:
            return True
        return self._stale >= self._patience

    def reset(self) -> None:
        """Forget all scores."""
        self._previous = None
        self._stale = 0
