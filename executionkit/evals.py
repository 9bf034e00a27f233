"""Evals: does it work, how often, and is the new variant better?

```python
cases = [EvalCase("sum", lambda: consensus(provider, "1 + 1?"), says_two)]
report = await run_eval_suite(cases, trials=5, max_concurrency=8)
report.summary(), report.interval(), report.pass_hat(3)
```
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit._arguments import check_budget, check_callable, shown
from executionkit._evals.compare import EvalComparison, compare_reports
from executionkit._evals.output import read_jsonl
from executionkit._evals.run import OnProgress, Settings, Suite, tried
from executionkit._evals.statistics import (
    bootstrap_interval,
    mcnemar_exact,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)
from executionkit._evals.values import (
    Check,
    ConversationScript,
    EvalCase,
    EvalProgress,
    EvalReport,
    EvalResult,
    EvalTrial,
    TrialResult,
    Turn,
)
from executionkit.engine._checks import check_int, check_number
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit.kit import Kit
    from executionkit.provider import Provider

__all__ = (
    "LIVE_EVAL_MIN_ACCURACY",
    "Check",
    "ConversationScript",
    "EvalCase",
    "EvalComparison",
    "EvalProgress",
    "EvalReport",
    "EvalResult",
    "EvalTrial",
    "OnProgress",
    "TrialResult",
    "Turn",
    "bootstrap_interval",
    "compare_reports",
    "live_provider_from_env",
    "mcnemar_exact",
    "pass_at_k",
    "pass_hat_k",
    "read_jsonl",
    "run_conversation_script",
    "run_eval_suite",
    "wilson_interval",
)

LIVE_EVAL_MIN_ACCURACY: Final = 0.9
"""The accuracy that is enough for evals with a real model."""

_SWITCH: Final = "EXECUTIONKIT_LIVE_EVAL"
_BASE_URL: Final = "EXECUTIONKIT_BASE_URL"
_MODEL: Final = "EXECUTIONKIT_MODEL"
_API_KEY: Final = "EXECUTIONKIT_API_KEY"


async def run_eval_suite(
    cases: Iterable[EvalCase],
    *,
    min_accuracy: float | None = None,
    trials: int = 1,
    max_concurrency: int = 1,
    timeout: float | None = None,
    max_cost: TokenUsage | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> EvalReport:
    """Run cases, each `trials` times, and report.

    A case that raises has failed, with `Type: message` as its reason; the suite goes
    on. A cancellation cancels the trials in flight and passes; what had ended by then
    was told to `on_progress`.

    Args:
        cases: What to run.
        min_accuracy: The accuracy that is enough, in [0, 1]. None = every case must
            pass.
        trials: Times that each case is run, at least 1. A case passes when every trial
            does; `pass_hat` and `pass_at` of the report say more.
        max_concurrency: Trials at once, at least 1. The default runs one after another.
        timeout: Seconds that one trial may take, its check included. None = no limit.
        max_cost: Once that much is spent no further trial begins; the results up to
            then are kept. Trials in flight may pass it.
        seed: The seeds of all trials come from it (see `EvalTrial`).
        on_progress: Called after each trial with an `EvalProgress`.

    Returns:
        The report; with `stopped`, `partial` and `not_run` when the budget, or the
        deadline of the current context, ended the suite early.

    Raises:
        TypeError: For an argument of the wrong kind.
        ValueError: For an argument out of range.
    """
    given: tuple[Any, ...] = tuple(cases)
    for case in given:
        if not isinstance(case, EvalCase):
            msg = f"`cases` must hold EvalCase values, got {shown(case)}"
            raise TypeError(msg)
    if min_accuracy is not None and check_number("min_accuracy", min_accuracy) > 1:
        msg = f"`min_accuracy` must be <= 1, got {min_accuracy!r}"
        raise ValueError(msg)
    check_int("trials", trials, 1)
    check_int("max_concurrency", max_concurrency, 1)
    if timeout is not None:
        check_number("timeout", timeout, above=True)
    check_budget("max_cost", max_cost)
    if on_progress is not None:
        check_callable("on_progress", on_progress)
    settings = Settings(
        trials=trials,
        max_concurrency=max_concurrency,
        timeout=timeout,
        max_cost=max_cost,
        seed=seed,
        on_progress=on_progress,
    )
    return await Suite(given, settings).run(min_accuracy)


async def run_conversation_script(
    script: ConversationScript, kit: Kit, **turn_options: Any
) -> EvalReport:
    """Have a conversation and judge each answer; a turn that fails stops nothing.

    Args:
        script: What to say.
        kit: Has the conversation, by one `kit.turn` for each turn.
        **turn_options: For every `kit.turn` (`tools`, `max_cost`, ...).

    Returns:
        A result for each turn, named `name[0]`, `name[1]`, ...
    """
    results: list[EvalResult] = []
    for place, turn in enumerate(script.turns):

        def start(user: str = turn.user) -> Any:
            return kit.turn(user, **turn_options)

        ended = await tried(start, turn.check)
        results.append(
            EvalResult(
                f"{script.name}[{place}]",
                ended.passed,
                ended.reason,
                trials=(ended,),
                cost=ended.cost,
                duration=ended.duration,
            )
        )
    cost = sum((result.cost for result in results), TokenUsage())
    return EvalReport(tuple(results), cost=cost)


def live_provider_from_env(
    *, environ: Mapping[str, str] | None = None
) -> Provider | None:
    """A provider for evals with a real model; None unless these are switched on.

    Reads `EXECUTIONKIT_LIVE_EVAL` (must be `1`), `EXECUTIONKIT_BASE_URL`,
    `EXECUTIONKIT_MODEL`, and `EXECUTIONKIT_API_KEY` if there is one.

    Args:
        environ: Where to look. None = the environment of the process.

    Raises:
        ValueError: When it is switched on and the URL or the model is missing.
    """
    given = os.environ if environ is None else environ
    if given.get(_SWITCH) != "1":
        return None
    missing = [name for name in (_BASE_URL, _MODEL) if not given.get(name)]
    if missing:
        msg = f"{_SWITCH} is 1, and these are not set: {', '.join(missing)}"
        raise ValueError(msg)
    from executionkit.provider import Provider

    return Provider(given[_BASE_URL], given[_MODEL], given.get(_API_KEY, ""))
