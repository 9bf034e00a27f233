"""Run the official MCP conformance suite against our client.

`python -m scripts.mcp_client_conformance [WORD ...]`: all scenarios, or those whose
names have a word in them. Node and the suite go into `.node/` as
`scripts/mcp_conformance.py` puts them there. There is no list of expected failures:
what does not apply is named in `NOT_APPLICABLE`, with the reason.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor

from scripts import mcp_conformance as common

CLIENT = f"{sys.executable} -m tests.mcp.conformance_client"
AT_ONCE = 2
SECONDS = 90
# Folder, more arguments, the mark of scenarios that are for it, how many there are.
RUNS: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("conformance-stable", (), "", 24),
    ("conformance-next", ("--spec-version", "2026-07-28"), "2026-07-28", 33),
)
NOT_APPLICABLE = {
    "auth/2025-03-26-oauth-metadata-backcompat": (
        "logins of a server without metadata: the login is the SDK's, which has none"
    ),
    "auth/cross-app-access-complete-flow": (
        "an optional extension (a login by another login) that our client does not offer"
    ),
}
_CLIENTS = re.compile(r"Client scenarios[^\n]*\n((?:  - [^\n]*\n)*)")
_SCENARIO = re.compile(r"  - (\S+) \[([^\]]*)\]")
_PASSED = re.compile(r"Passed: (\d+)/(\d+)")


def suite(folder: str) -> list[str]:
    script = (
        common.FOLDER / folder / "node_modules" / common.SUITE / "dist" / "index.js"
    )
    return [str(common.node()), str(script)]


def scenarios(folder: str, mark: str) -> list[str]:
    """The names of the scenarios that apply."""
    told = common.run([*suite(folder), "list"]).stdout
    found = _CLIENTS.search(f"{told}\n")
    names = _SCENARIO.findall(found[1]) if found is not None else []
    return [
        name
        for name, versions in names
        if mark in versions and name not in NOT_APPLICABLE
    ]


def run_scenario(folder: str, name: str, more: tuple[str, ...]) -> tuple[int, str]:
    """(checks that passed, the output when anything failed)."""
    command = [*suite(folder), "client", "--command", CLIENT, "--scenario", name]
    done = common.run([*command, "--timeout", "60000", *more], seconds=SECONDS)
    found = _PASSED.search(done.stdout)
    if done.returncode or found is None or found[1] != found[2]:
        return 0, done.stdout or "it said nothing"
    return int(found[1]), ""


def run_suite(
    folder: str, more: tuple[str, ...], mark: str, least: int, words: list[str]
) -> str:
    """Run the scenarios of one suite; what they came to, in a line."""
    names = scenarios(folder, mark)
    if len(names) < least:
        common.give_up(f"{folder}: only {len(names)} scenarios are there")
    if words:
        names = [name for name in names if any(word in name for word in words)]
    # Some measure time: not more of them at once than there are processors.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(lambda name: run_scenario(folder, name, more), names))
    failed = [name for name, (_, output) in zip(names, done, strict=True) if output]
    if failed:
        output = next(output for _, output in done if output)
        common.give_up(f"client: {folder}: {', '.join(failed)}", output)
    checks = sum(count for count, _ in done)
    version = " ".join((common.PACKAGES[folder][1], *more))
    return f"{version}: {len(names)} scenarios, {checks} checks"


def main() -> None:
    common.FOLDER.mkdir(exist_ok=True)
    common.get_node()
    common.get_packages()
    for one in RUNS:
        print(f"mcp client: {run_suite(*one, sys.argv[1:])}: passed", flush=True)


if __name__ == "__main__":
    main()
