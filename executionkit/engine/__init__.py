"""Pure mechanisms: no I/O, no wall clock, no global state.

The names of this package are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from executionkit.engine.convergence import ConvergenceDetector
    from executionkit.engine.json_extraction import extract_json
    from executionkit.engine.messages import assistant_message, user_message
    from executionkit.engine.parallel import gather_resilient, gather_strict
    from executionkit.engine.retry import DEFAULT_RETRY, RetryConfig, with_retry

__all__ = (
    "DEFAULT_RETRY",
    "ConvergenceDetector",
    "RetryConfig",
    "assistant_message",
    "extract_json",
    "gather_resilient",
    "gather_strict",
    "user_message",
    "with_retry",
)

_HOMES: Final = {
    "DEFAULT_RETRY": "retry",
    "ConvergenceDetector": "convergence",
    "RetryConfig": "retry",
    "assistant_message": "messages",
    "extract_json": "json_extraction",
    "gather_resilient": "parallel",
    "gather_strict": "parallel",
    "user_message": "messages",
    "with_retry": "retry",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
