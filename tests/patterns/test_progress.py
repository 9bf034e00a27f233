"""What counts as going round in circles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.patterns._progress import ProgressWatch
from executionkit.types import freeze

Call = tuple[str, Any, str]


def first_stop(rounds: list[list[Call]], repeats: int | None) -> int | None:
    """The number of the round (from 1) at which the watch says stop."""
    watch = ProgressWatch(repeats)
    for number, calls in enumerate(rounds, 1):
        if watch.add(calls):
            return number
    return None


def one(name: str = "t", result: str = "r", **arguments: Any) -> list[Call]:
    return [(name, arguments, result)]


@pytest.mark.req("TX-18")
class TestCircles:
    """TX-18."""

    def test_equal_rounds(self) -> None:
        assert first_stop([one(a=1)] * 9, 4) == 4
        assert first_stop([one(a=1)] * 3, 4) is None

    def test_never(self) -> None:
        assert first_stop([one(a=1)] * 99, None) is None

    def test_the_order_of_keys_and_calls_means_nothing(self) -> None:
        a = [("t", {"a": 1, "b": {"c": 2, "d": 3}}, "r"), ("u", {}, "s")]
        b = [("u", {}, "s"), ("t", {"b": {"d": 3, "c": 2}, "a": 1}, "r")]
        assert first_stop([a, b, freeze(a), b], 4) == 4

    @pytest.mark.parametrize(
        "other",
        [
            one(a=2),
            one(a="1"),
            one(a=1.0),
            one(a=True),
            one("u", a=1),
            one(result="s", a=1),
        ],
    )
    def test_any_difference_is_progress(self, other: list[Call]) -> None:
        assert first_stop([one(a=1), one(a=1), one(a=1), other] * 2, 4) is None

    def test_which_call_gave_which_result_matters(self) -> None:
        a = [("t", {"n": 1}, "x"), ("t", {"n": 2}, "y")]
        b = [("t", {"n": 1}, "y"), ("t", {"n": 2}, "x")]
        assert first_stop([a, a, a, b], 4) is None

    @pytest.mark.parametrize("length", [1, 2, 3, 4])
    def test_cycles_of_up_to_four(self, length: int) -> None:
        cycle = [one(n=number) for number in range(length)]
        assert first_stop(cycle * 9, 3) == 3 * length

    def test_a_longer_cycle_is_not_looked_for(self) -> None:
        assert first_stop([one(n=n) for n in range(5)] * 9, 2) is None

    def test_a_circle_after_progress_is_found(self) -> None:
        assert first_stop([one(n=n) for n in range(20)] + [one(n=0)] * 9, 3) == 23

    def test_arguments_that_are_no_json_will_do(self) -> None:
        assert first_stop([one(a={1, 2})] * 3, 3) == 3
        ring: dict[str, Any] = {}
        ring["a"] = ring
        assert first_stop([[("t", ring, "r")]] * 3, 3) == 3


def model(rounds: list[int], repeats: int) -> int | None:
    """The definition, written down in another way."""
    for end in range(1, len(rounds) + 1):
        for length in range(1, 5):
            tail = rounds[:end][-length * repeats :]
            if len(tail) == length * repeats and tail == tail[:length] * repeats:
                return end
    return None


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(2, 4))
def test_it_stops_exactly_when_the_definition_says_so(
    rounds: list[int], repeats: int
) -> None:
    assert first_stop([one(n=n) for n in rounds], repeats) == model(rounds, repeats)
