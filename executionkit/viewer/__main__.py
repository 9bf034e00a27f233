"""`python -m executionkit.viewer run.jsonl [page.html]`: the page, by Python alone."""

from __future__ import annotations

import sys
from pathlib import Path

from executionkit.viewer import write_trace_page

_USAGE = "usage: python -m executionkit.viewer TRACE.jsonl [PAGE.html]"


def main(arguments: list[str]) -> int:
    """Write the page and say where; the exit code."""
    if len(arguments) not in {1, 2} or arguments[0].startswith("-"):
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    source = Path(arguments[0])
    target = Path(arguments[1]) if arguments[1:] else source.with_suffix(".html")
    if target.resolve() == source.resolve():
        sys.stderr.write(f"`{target}` is the trace itself; name another file\n")
        return 2
    try:
        write_trace_page(source, target)
    except OSError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
