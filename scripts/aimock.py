"""Install the JavaScript model server for the fault tests: `python scripts/aimock.py`.

It goes into `.node/`, which is not part of the repository. Nothing is done when the
wanted version is there. Needs Node 20 or newer with npm.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".node"
PACKAGE = "@copilotkit/aimock"
VERSION = "1.43.0"
SECONDS = 300


def installed() -> str | None:
    """The version that is there."""
    about = FOLDER / "node_modules" / PACKAGE / "package.json"
    try:
        version = json.loads(about.read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError):
        return None
    return str(version)


def main() -> None:
    if installed() == VERSION:
        return
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        sys.exit("aimock: Node 20 or newer with npm is needed")
    FOLDER.mkdir(exist_ok=True)
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--save-exact")
    # In the folder, not by `--prefix`, which a `package.json` further up would overrule.
    done = subprocess.run(
        [npm, "install", *options, f"{PACKAGE}@{VERSION}"],
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode or installed() != VERSION:
        print(done.stdout.decode("utf-8", "replace")[-2000:])
        sys.exit(f"aimock: npm failed with code {done.returncode}")
    print(f"aimock: {VERSION} is ready in {FOLDER.name}/")


if __name__ == "__main__":
    main()
