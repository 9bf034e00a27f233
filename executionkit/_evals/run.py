"""Running the trials of a suite."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from executionkit._clock import get_clock
from executionkit._evals.values import (
    EvalCase,
    EvalProgress,
    EvalReport,
    EvalResult,
    EvalTrial,
    StopReason,
    TrialResult,
)
from executionkit.context import remaining_deadline
from executionkit.cost import (
    Budget,
    CostTracker,
    collecting_lost_cost,
    report_lost_cost,
)
from executionkit.engine.parallel import map_bounded
from executionkit.errors import BudgetExhaustedError, ExecutionKitError
from executionkit.patterns._failures import describe
from executionkit.patterns.base import first_of_group
from executionkit.types import PatternResult, TokenUsage

__all__ = ("OnProgress", "Settings", "Suite", "judged", "tried")

OnProgress: TypeAlias = Callable[[EvalProgress], "Awaitable[None] | None"]
"""Called after each trial, one at a time; sync or async. Its failure is logged."""

_PASSED: Final = "passed"
_log = logging.getLogger("executionkit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a suite is run."""

    trials: int
    max_concurrency: int
    timeout: float | None
    max_cost: TokenUsage | None
    seed: int
    on_progress: OnProgress | None


class Suite:
    """One run of a suite."""

    def __init__(self, cases: Sequence[EvalCase], settings: Settings) -> None:
        self._cases = cases
        self._settings = settings
        self._takes_trial = [_needs_argument(case.run) for case in cases]
        self._budget = Budget.from_usage(settings.max_cost)
        self._tracker = CostTracker()
        self._results: list[dict[int, TrialResult]] = [{} for _ in cases]
        self._stopped: StopReason = ""
        self._is_deaf = False

    async def run(self, min_accuracy: float | None) -> EvalReport:
        """Run all trials that the budget and the deadline allow."""
        try:
            # What cancelled trials had spent comes here as well.
            with collecting_lost_cost(self._tracker.add_usage):
                await self._run_trials()
        except BaseException:
            report_lost_cost(self._tracker.to_usage())
            raise
        return self.report(min_accuracy)

    async def _run_trials(self) -> None:
        trials, limit = self._settings.trials, self._settings.max_concurrency
        done, cost = 0, TokenUsage()
        async with aclosing(map_bounded(self._trial, self._units(), limit)) as ends:
            async for index, ended in ends:
                place, number = divmod(index, trials)
                result = _ended(ended)
                if result is None:
                    continue
                done += 1
                cost += result.cost
                self._results[place][number] = result
                name, total = self._cases[place].name, trials * len(self._cases)
                await self._tell(EvalProgress(done, total, name, result, cost))

    def _units(self) -> Iterator[tuple[int, int]]:
        for place in range(len(self._cases)):
            for number in range(self._settings.trials):
                if self._must_stop():
                    return
                yield place, number

    def _must_stop(self) -> bool:
        if remaining_deadline() == 0:
            self._stopped = "deadline"
        try:
            self._tracker.has_room(self._budget)
        except BudgetExhaustedError:
            self._stopped = "budget"
        return bool(self._stopped)

    async def _trial(self, unit: tuple[int, int]) -> TrialResult | None:
        place, number = unit
        case, settings = self._cases[place], self._settings
        trial = EvalTrial(number, _seed_of(settings.seed, case.name, number))

        def start() -> Any:
            return case.run(trial) if self._takes_trial[place] else case.run()

        left = remaining_deadline()
        limits = [item for item in (settings.timeout, left) if item is not None]
        result = await tried(
            start, case.check, timeout=min(limits, default=None), seed=trial.seed
        )
        self._tracker.add_usage(result.cost)
        if not result.passed and remaining_deadline() == 0:
            self._stopped = "deadline"  # it was cut short, which says nothing of it
            return None
        return result

    async def _tell(self, progress: EvalProgress) -> None:
        on_progress = self._settings.on_progress
        if on_progress is None:
            return
        try:
            outcome = on_progress(progress)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception as exc:  # noqa: BLE001 - whoever watches changes nothing
            if not self._is_deaf:
                self._is_deaf = True
                _log.warning("the callback `on_progress` failed: %s", describe(exc))

    def report(
        self, min_accuracy: float | None, *, stopped: StopReason = ""
    ) -> EvalReport:
        """What has come of it up to now.

        Args:
            min_accuracy: The accuracy that is enough.
            stopped: Why it goes no further, when somebody else has stopped it.
        """
        done: list[EvalResult] = []
        partial: list[EvalResult] = []
        not_run: list[str] = []
        for case, trials in zip(self._cases, self._results, strict=True):
            ended = [trials[number] for number in sorted(trials)]
            if len(ended) == self._settings.trials:
                done.append(_result(case, ended))
            elif ended:
                partial.append(_result(case, ended))
            else:
                not_run.append(case.name)
        return EvalReport(
            tuple(done),
            min_accuracy,
            cost=self._tracker.to_usage(),
            partial=tuple(partial),
            not_run=tuple(not_run),
            stopped=stopped or self._stopped,
        )


def _ended(outcome: TrialResult | BaseException | None) -> TrialResult | None:
    if isinstance(outcome, asyncio.CancelledError):
        return TrialResult(passed=False, reason="the case cancelled its own task")
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _result(case: EvalCase, trials: Sequence[TrialResult]) -> EvalResult:
    failed = [trial for trial in trials if not trial.passed]
    reason = failed[0].reason if failed else _PASSED
    if failed and len(trials) > 1:
        reason = f"{len(failed)} of {len(trials)} trials failed; the first: {reason}"
    return EvalResult(
        case.name,
        not failed,
        reason,
        case.metadata,
        trials=tuple(trials),
        cost=sum((trial.cost for trial in trials), TokenUsage()),
        duration=sum(trial.duration for trial in trials),
    )


async def tried(
    start: Callable[[], Any],
    check: Callable[[Any], Any],
    *,
    timeout: float | None = None,
    seed: int = 0,
) -> TrialResult:
    """Run once and judge. Only cancellation and the like pass; failures are results."""
    clock, tracker = get_clock(), CostTracker()
    began = clock.monotonic()
    limit = clock.timeout(timeout)
    passed = False
    try:
        with collecting_lost_cost(tracker.add_usage):
            async with limit:
                value: Any = start()
                if inspect.isawaitable(value):
                    value = await value
                _add_cost(tracker, value)
                passed, reason = await judged(check, value, tracker)
    except TimeoutError as exc:
        reason = f"timed out after {timeout}s" if limit.expired() else describe(exc)
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            report_lost_cost(tracker.to_usage())
            raise
        reason = describe(exc)  # the case's own
    except Exception as exc:  # noqa: BLE001 - a case that raises has failed
        failure = first_of_group(exc) if isinstance(exc, BaseExceptionGroup) else exc
        _add_cost(tracker, failure if isinstance(failure, ExecutionKitError) else None)
        reason = describe(failure)
    return TrialResult(
        passed, reason, tracker.to_usage(), clock.monotonic() - began, seed
    )


async def judged(
    check: Callable[[Any], Any], value: Any, tracker: CostTracker
) -> tuple[bool, str]:
    """Whether `check` accepts `value`, and its reason."""
    verdict = check(value)
    if inspect.isawaitable(verdict):
        verdict = await verdict
    _add_cost(tracker, verdict)
    if isinstance(verdict, PatternResult):
        verdict = verdict.value
    if isinstance(verdict, str):
        return not verdict, verdict or _PASSED
    if verdict is None or bool(verdict):
        return True, _PASSED
    return False, f"check returned {verdict!r}"


def _add_cost(tracker: CostTracker, value: object) -> None:
    cost = getattr(value, "cost", None)
    if isinstance(cost, TokenUsage):
        tracker.add_usage(cost)


def _seed_of(seed: int, name: str, number: int) -> int:
    text = f"{seed}\0{name}\0{number}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:4]) >> 1  # fits 31 bits


def _needs_argument(run: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(run).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return any(
        item.kind in positional and item.default is inspect.Parameter.empty
        for item in parameters
    )
