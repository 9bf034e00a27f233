"""The promises of a bare install, with every other package out of sight."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import executionkit

SCRIPT = Path(__file__).parent / "bare" / "checks.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bare_checks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.req("house.zero-dependencies", "house.import-has-no-effect")
@pytest.mark.parametrize("name", script().CHECKS)
def test_a_bare_install_keeps_its_promise(name: str, tmp_path: Path) -> None:
    package_path = str(Path(executionkit.__file__).parent.parent)
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-B", "-W", "error", str(SCRIPT)),
            *("--one", "--package-path", package_path, name),
        ],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_check_has_a_place_in_the_table() -> None:
    checks = script().CHECKS
    assert len(checks) >= 10
    assert all(callable(function) for function in checks.values())
