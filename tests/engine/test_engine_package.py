"""The engine as a package: its names, and that it stays light."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

import executionkit.engine as engine
from executionkit.engine._checks import check_int, check_number
from executionkit.engine.convergence import ConvergenceDetector
from executionkit.engine.retry import DEFAULT_RETRY

NAMES = {
    "DEFAULT_RETRY",
    "ConvergenceDetector",
    "RetryConfig",
    "assistant_message",
    "extract_json",
    "gather_resilient",
    "gather_strict",
    "user_message",
    "with_retry",
}


@pytest.mark.req("engine.names")
def test_the_package_gives_the_documented_names() -> None:
    assert set(engine.__all__) == NAMES
    assert set(dir(engine)) >= NAMES
    for name in NAMES:
        if (
            name == "extract_json"
            and find_spec("executionkit.engine.json_extraction") is None
        ):
            continue
        assert getattr(engine, name) is getattr(engine, name)
    assert engine.DEFAULT_RETRY is DEFAULT_RETRY
    assert engine.ConvergenceDetector is ConvergenceDetector


@pytest.mark.req("engine.names")
def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = engine.no_such_name


@pytest.mark.req("engine.lazy")
def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = (
        "import sys, executionkit; before = set(sys.modules);"
        "sys.modules.pop('executionkit.engine', None);"
        "import executionkit.engine;"
        "print(sorted(set(sys.modules) - before - {'executionkit.engine'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=25,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_whole_number_is_an_int_and_nothing_else(value: Any) -> None:
    with pytest.raises(ValueError, match="`n` must be an int"):
        check_int("n", value, 0)


def test_checks_give_the_value_back() -> None:
    assert check_int("n", 3, 3) == 3
    assert check_number("x", 0, 0.0) == 0
    assert check_number("x", 0.5, 0.0, above=True) == 0.5
    with pytest.raises(ValueError, match="n must be >= 3, got 2"):
        check_int("n", 2, 3)
    with pytest.raises(ValueError, match=r"x must be > 0.0, got 0"):
        check_number("x", 0, above=True)
    with pytest.raises(ValueError, match=r"x must be >= 1.5, got 1"):
        check_number("x", 1, 1.5)
    with pytest.raises(ValueError, match="`x` must be a number"):
        check_number("x", "1")
    with pytest.raises(ValueError, match="`x` must be finite"):
        check_number("x", float("-inf"))
