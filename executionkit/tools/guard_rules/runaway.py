"""The rule that ends endless loops of equal calls."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

from executionkit.engine._checks import check_int
from executionkit.errors import ErrorCategory, ExecutionKitError
from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult
from executionkit.tools.guard_rules._scopes import MAX_SCOPES, Scopes, current_scope

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("RunawayGuard",)

_PASS = GuardResult.allow()
_PASSING: Final = frozenset(
    {
        ErrorCategory.RATE_LIMIT,
        ErrorCategory.CIRCUIT_OPEN,
        ErrorCategory.BULKHEAD_FULL,
        ErrorCategory.CANCELLED,
    }
)
"""Failures that say nothing of the call: the next one may end otherwise."""


_SHORT: Final = 256
"""Bytes up to which a text is kept as it is; of a longer one a digest."""


class _Known:
    """The last result of one call, and how often it came since something was new."""

    __slots__ = ("result", "times")

    def __init__(self, result: bytes) -> None:
        self.result: bytes = result
        self.times: int = 1


class RunawayGuard(BaseGuard):
    """Stops a call that gave the same result again and again while nothing was new.

    A call is known by tool and arguments (the order of keys does not matter). Each
    result, or error, that differs from the last one of its call is news, and all counts
    begin anew; so polling with changing results goes on, and a check that is repeated
    between other steps too. What brings no news is counted per call: A, A, A as well as
    A, B, A, B. Runs are told apart as in `BudgetGuard`.

    Args:
        max_repeats: Equal results of one call, without news, after which it is blocked.
        max_calls: Different calls of a run that are remembered; longer cycles than
            that are not found.
        max_runs: Runs that are remembered.
        enforcement: How far its word goes.

    Raises:
        ValueError: When a number is too small.
    """

    name = "runaway"

    def __init__(
        self,
        *,
        max_repeats: int = 3,
        max_calls: int = 64,
        max_runs: int = MAX_SCOPES,
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        self._most = check_int("max_repeats", max_repeats, 1)
        self._max_calls = check_int("max_calls", max_calls, 1)
        self._runs: Scopes[dict[bytes, _Known]] = Scopes(
            dict, check_int("max_runs", max_runs, 1)
        )

    def check(self, call: ToolCall, record: ToolRecord, /) -> GuardResult:
        """Whether this call has gone round in circles; counts nothing."""
        known = self._runs.seen(current_scope())
        if not known:
            return _PASS
        last = known.get(_key(call, record))
        if last is None or last.times < self._most:
            return _PASS
        return GuardResult.block(
            f"no progress: this call gave the same result {last.times} times and nothing "
            "else was new; use that result, or do something else",
            {"repeats": last.times},
        )

    def check_output(
        self, call: ToolCall, record: ToolRecord, value: Any, /
    ) -> GuardResult:
        """Remember the result."""
        self._learn(_key(call, record), _digest("value", value))
        return _PASS

    def check_error(self, call: ToolCall, record: ToolRecord, error: Exception) -> None:
        """Remember the failure, when it says something of the call."""
        if isinstance(error, ExecutionKitError) and error.category in _PASSING:
            return
        text = f"{type(error).__qualname__}: {_text_of(error)}"
        self._learn(_key(call, record), _digest("error", text))

    def reset(self) -> None:
        """Forget the current run."""
        self._runs.forget(current_scope())

    def _learn(self, key: bytes, result: bytes) -> None:
        known = self._runs.get(current_scope())
        last = known.pop(key, None)  # put at the end: seen last
        if last is None or last.result != result:
            last = _Known(result)
            for other in known.values():
                other.times = 1
            if len(known) >= self._max_calls:
                del known[next(iter(known))]
        else:
            last.times += 1
        known[key] = last


def _key(call: ToolCall, record: ToolRecord) -> bytes:
    return _digest(record.full_name, dict(call.arguments))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(map(repr, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: getattr(value, item.name) for item in dataclasses.fields(value)
        }
    text = repr(value)
    # The default `repr` has an address in it, which would make each result a new one.
    return type(value).__qualname__ if " object at 0x" in text else text


_encode = json.JSONEncoder(sort_keys=True, default=_plain).encode


def _digest(name: str, value: Any) -> bytes:
    try:
        text = f"s{value}" if type(value) is str else _encode(value)
    except (TypeError, ValueError, RecursionError):  # mixed keys, a cycle, no end
        text = f"{type(value).__qualname__} {id(type(value))}"
    data = f"{name}\0{text}".encode("utf-8", "surrogatepass")
    if len(data) <= _SHORT:
        return data
    return hashlib.blake2b(data, digest_size=16).digest()


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the exception's own code
        return ""
