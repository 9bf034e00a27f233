"""What finding tool calls costs against parsing their arguments, and hostile text.

Run: `python -m bench.bench_parsing`. Only the ratios mean something: both sides run in
turns in the same process. What is measured is CPU time, and the least of the rounds is
taken, because whatever else the machine does can only add to it.

The limit of row 5 is `json.loads` on each arguments text, whatever the format; a text
that holds those texts once more in quotes must be parsed twice, so the row "text, both"
compares it with both.
"""

from __future__ import annotations

import json
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from executionkit.tools.parsing import parse_calls

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
SECONDS_A_ROUND = 0.01
MEGABYTE = 1_000_000
COST_LIMIT = 3.0
HOSTILE_LIMIT = 0.030
EXPONENT_LIMIT = 1.05
SIZES = (1, 100, 1000)

HOSTILE: dict[str, str] = {
    "<tool": "<tool ",
    "<tool name=": "<tool name=",
    "<tool name='a' args='": "<tool name='a' args='",
    "open tags": """<tool name="a" args='{"x""",
    "open pairs": '<tool name="a">{',
    "tags of HTML": '<div class="a">x</div>',
    "<": "<",
    "{": "{",
    "[": "[",
    "fences": "```json\n",
    '"': '"',
    "'": "'",
    "words": "word ",
    "<tool_call>": "<tool_call>",
    '<tool_call>{"': '<tool_call>{"',
    "<function=a>": "<function=a>",
    "open parameters": "<function=a><parameter=b>",
    "[TOOL_CALLS]": "[TOOL_CALLS]",
    "open Python": "<|python_tag|>[a(x=[",
    "Python, cut": "<|python_tag|>[a(x='",
    "a program": "<|python_tag|>a(x=1, y=f());",
    "brackets": "<|python_tag|>[a(x=f[]",
    "<tool_call>a": "<tool_call>a",
    "open keys": "<tool_call>a<arg_key>b</arg_key><arg_value>",
    "<invoke": '<invoke name="a">',
    "open invokes": '<invoke name="a"><parameter name="b">',
    "<|channel|>": "<|channel|>",
    "messages": "<|channel|>a to=b<|message|>",
    "<think>": "<think>",
    '{"name":': '{"name":',
    '{"a": "name"': '{"a": "name"',
    "open calls": '{"name": "a", "arguments": {',
}
"""A name, and what a megabyte is made of. None of them holds a call."""


def _arguments(count: int) -> list[str]:
    return [
        json.dumps(
            {
                "city": f"Oslo {number}",
                "units": "metric",
                "days": 3,
                "detail": True,
                "tags": ["a", "b"],
            }
        )
        for number in range(count)
    ]


def replies(arguments: list[str]) -> dict[str, Any]:
    """The same calls in each format."""
    data = {
        "tool_calls": [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": "get_weather", "arguments": text},
            }
            for number, text in enumerate(arguments)
        ]
    }
    return {
        "dict": data,
        "text": json.dumps(data),
        "XML": "\n".join(
            [f"<tool name=\"get_weather\" args='{text}'/>" for text in arguments]
        ),
        "JSON": json.dumps(
            [
                {"name": "get_weather", "arguments": json.loads(text)}
                for text in arguments
            ]
        ),
    }


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


def _load_all(texts: list[str]) -> None:
    for text in texts:
        json.loads(text)


def parsing_rows() -> list[dict[str, Any]]:
    """1, 100 and 1,000 calls in each format against `json.loads` of their arguments."""
    found = []
    for count in SIZES:
        arguments = _arguments(count)
        for name, reply in replies(arguments).items():
            assert len(parse_calls(reply).calls) == count
            work = partial(parse_calls, reply)
            pair = _compare(work, partial(_load_all, arguments))
            found.append(_row(f"5 parse {count} calls, {name}", pair, COST_LIMIT))
            if name == "text":
                pair = _compare(work, partial(_load_all, [reply, *arguments]))
                label = f"5 parse {count} calls, text, both"
                found.append(_row(label, pair, COST_LIMIT))
    return found


def _refuse(text: str) -> None:
    assert not parse_calls(text).calls


def _one_scan(text: str) -> int:
    return text.count("<tool")


def hostile_rows() -> list[dict[str, Any]]:
    """One megabyte of text that is made to be slow, and how the time grows."""
    found = []
    for name, piece in HOSTILE.items():
        text = (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]
        ours, limit = _compare(partial(_refuse, text), partial(_one_scan, text))
        quarter = partial(_refuse, text[: MEGABYTE // 4])
        less = min(_seconds(quarter, 4) for _ in range(ROUNDS))
        exponent = math.log(ours / less, 4)
        found += [
            {
                "name": f"6 1 MB of {name}: seconds",
                "ours_s": ours,
                "limit_s": limit,
                "ratio": ours / limit,
                "target": HOSTILE_LIMIT,
                "met": ours <= HOSTILE_LIMIT,
            },
            {
                "name": f"6 1 MB of {name}: exponent",
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
    return parsing_rows() + hostile_rows()


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:44} ours {row['ours_s'] * 1e3:10.4f} ms  limit "
            f"{row['limit_s'] * 1e3:10.4f} ms  ratio {row['ratio']:7.3f}  "
            f"target <= {row['target']:5.3f}  {'ok' if row['met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
