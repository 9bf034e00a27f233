"""Are the types of everything public known? `pyright --verifytypes`, read as numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "executionkit"
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    # An editable install is no installed package to pyright: it wants the folder on the
    # path, and a working directory in which no other copy of it lies.
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / PACKAGE).symlink_to(ROOT / PACKAGE)
        command = [sys.executable, "-m", "pyright", "--outputjson", "--ignoreexternal"]
        command += ["--pythonpath", sys.executable, "--verifytypes", PACKAGE]
        done = subprocess.run(
            command,
            cwd=empty,
            env={
                **os.environ,
                "PYTHONPATH": empty,
                "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
    try:
        report: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    except (ValueError, KeyError):
        print(done.stdout.decode()[-4000:], done.stderr.decode()[-4000:])
        return 1
    incomplete = [
        symbol
        for symbol in report["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"]
    ]
    for symbol in incomplete:
        print(symbol["name"])
        for problem in symbol["diagnostics"]:
            print(f"    {problem['message'].splitlines()[0]}")
    count = report["exportedSymbolCounts"]
    known = count["withKnownType"]
    total = known + count["withAmbiguousType"] + count["withUnknownType"]
    print(f"{known} of {total} public symbols have known types")
    return 0 if known == total and total else 1


if __name__ == "__main__":
    sys.exit(main())
