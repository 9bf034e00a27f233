"""What finding JSON costs against parsing it, and what hostile text costs.

Run: `python -m bench.bench_extract_json`. Only the ratios mean something: both sides run
in turns in the same process. What is measured is CPU time, and the least of the rounds
is taken, because whatever else the machine does can only add to it.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from executionkit.engine.json_extraction import extract_json, find_json, loads_json

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
SECONDS_A_ROUND = 0.02
MEGABYTE = 1_000_000
HOSTILE_LIMIT = 0.040
EXPONENT_LIMIT = 1.05

BEFORE = (
    "Sure! Here is the result that you asked for, in the format of the instructions."
    "\n\n"
)
AFTER = (
    "\n\nLet me know if anything else is needed. I checked it twice and it looks right."
)
_MARKS = re.compile(r"[\[\]{}\"`<]")


def _record(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"user {number}",
        "ok": number % 2 == 0,
        "score": number * 1.5,
        "tags": ["a", "b", f"c{number}"],
        "meta": {"k": None, "text": "a few words, as models like to write them"},
    }


def documents() -> dict[str, str]:
    """JSON of the sizes to measure."""
    rng = random.Random(1)
    return {
        "1 KB": json.dumps([_record(n) for n in range(6)]),
        "1 MB records": json.dumps([_record(n) for n in range(6_000)]),
        "1 MB indented": json.dumps([_record(n) for n in range(4_000)], indent=2),
        "1 MB text": json.dumps({"text": "lorem ipsum dolor sit amet\n" * 36_000}),
        "1 MB numbers": json.dumps([rng.random() for _ in range(50_000)]),
    }


HOSTILE: dict[str, str] = {
    "{": "{",
    "[": "[",
    '[{"a":': '[{"a":',
    "open fences": "```json\n",
    "{this} and see": "{this} and see ",
    "prose": "The quick brown fox jumps over the lazy dog and goes home. ",
    "[x]": "[x]",
    '{"a": 1 x': '{"a": 1 x ',
    '{"': '{"',
    '{"a": "': '{"a": "',
}
"""A name, and what a megabyte is made of. None of them holds an answer."""


def _seconds(work: Callable[[], object], loops: int) -> float:
    began = time.process_time()
    for _ in range(loops):
        work()
    return (time.process_time() - began) / loops


def _compare(
    ours: Callable[[], object], limit: Callable[[], object]
) -> tuple[float, float]:
    """Least CPU seconds of both sides, run in turns."""
    loops = max(1, int(SECONDS_A_ROUND / max(_seconds(limit, 1), 1e-9)))
    pairs = [
        (_seconds(ours, loops), _seconds(limit, loops))
        if number % 2
        else (_seconds(limit, loops), _seconds(ours, loops))[::-1]
        for number in range(ROUNDS)
    ]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def _row(name: str, pair: tuple[float, float], target: float) -> dict[str, Any]:
    ours, limit = pair
    return {
        "name": name,
        "ours_s": ours,
        "limit_s": limit,
        "ratio": ours / limit,
        "target": target,
        "met": ours / limit <= target,
    }


def extraction_rows() -> list[dict[str, Any]]:
    """`extract_json` and `loads_json` against `json.loads` of the bare JSON."""
    found = []
    for size, text in documents().items():
        shapes = {
            "clean": text,
            "fenced": f"{BEFORE}```json\n{text}\n```{AFTER}",
            "in prose": f"{BEFORE}{text}{AFTER}",
            "among footnotes": f"As noted in [1]:\n{BEFORE}{text}{AFTER} See [2].",
        }
        value = json.loads(text)
        for shape, shown in shapes.items():
            assert extract_json(shown) == value
            pair = _compare(partial(extract_json, shown), partial(json.loads, text))
            found.append(_row(f"21 extract_json, {size}, {shape}", pair, 1.15))
        pair = _compare(partial(loads_json, text), partial(json.loads, text))
        found.append(_row(f"21 loads_json, {size}", pair, 1.05))
    return found


def _refuse(text: str) -> None:
    try:
        extract_json(text)
    except ValueError:
        return
    msg = "hostile text has an answer"
    raise AssertionError(msg)


def _look(text: str) -> None:
    finding = find_json(text, repair=True)
    assert finding is None or finding.truncated


def _one_scan(text: str) -> int:
    return sum(1 for _ in _MARKS.finditer(text))


def hostile_rows() -> list[dict[str, Any]]:
    """One megabyte of text that is made to be slow, and how the time grows."""
    found = []
    for name, piece in HOSTILE.items():
        text = (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]
        for label, refuse in (("", _refuse), (", repair", _look)):
            ours, limit = _compare(partial(refuse, text), partial(_one_scan, text))
            quarter = partial(refuse, text[: MEGABYTE // 4])
            less = min(_seconds(quarter, 4) for _ in range(ROUNDS))
            exponent = math.log(ours / less, 4)
            found += [
                {
                    "name": f"22 1 MB of {name}{label}: seconds",
                    "ours_s": ours,
                    "limit_s": limit,
                    "ratio": ours / limit,
                    "target": HOSTILE_LIMIT,
                    "met": ours <= HOSTILE_LIMIT,
                },
                {
                    "name": f"22 1 MB of {name}{label}: exponent",
                    "ours_s": ours,
                    "limit_s": less,
                    "ratio": exponent,
                    "target": EXPONENT_LIMIT,
                    "met": exponent <= EXPONENT_LIMIT,
                },
            ]
    return found


def rows() -> list[dict[str, Any]]:
    """All rows."""
    return extraction_rows() + hostile_rows()


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:52} ours {row['ours_s'] * 1e3:10.4f} ms  limit "
            f"{row['limit_s'] * 1e3:10.4f} ms  ratio {row['ratio']:7.3f}  "
            f"target <= {row['target']:5.3f}  {'ok' if row['met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
