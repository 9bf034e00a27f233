"""A plan that a model has written: read strictly, checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from executionkit._arguments import shown
from executionkit.errors import WorkflowError
from executionkit.types import sealed

__all__ = ("WrittenStep", "plan_schema", "read_plan", "refuse_plan")

_FIELDS: Final = ("name", "instruction", "action", "depends_on")
_MOST_NAMED: Final = 20


@sealed
@dataclass(frozen=True, slots=True)
class WrittenStep:
    """One step as it was written; every field is of the right kind."""

    name: str
    instruction: str
    action: str
    depends_on: tuple[str, ...] | None


def plan_schema(actions: Sequence[str], max_steps: int) -> dict[str, Any]:
    """The JSON Schema of a plan over these actions."""
    text = {"type": "string", "minLength": 1}
    step = {
        "type": "object",
        "properties": {
            "name": text,
            "instruction": text,
            "action": {"type": "string", "enum": list(actions)},
            "depends_on": {"type": "array", "items": text},
        },
        "required": ["name", "instruction", "action"],
        "additionalProperties": False,
    }
    steps = {"type": "array", "items": step, "minItems": 1, "maxItems": max_steps}
    return {
        "type": "object",
        "properties": {"steps": steps},
        "required": ["steps"],
        "additionalProperties": False,
    }


def read_plan(
    source: object,
    actions: Mapping[str, Callable[..., Any]],
    *,
    max_steps: int,
    max_chars: int,
) -> list[WrittenStep]:
    """The steps of `source`, JSON text or data that was parsed from it.

    Raises:
        WorkflowError: One for all that is wrong.
    """
    data = _parsed(source, max_chars) if isinstance(source, str) else source
    if not isinstance(data, Mapping) or set(data) != {"steps"}:
        refuse_plan(['a plan is an object with the one key "steps"'])
    items: object = data["steps"]
    if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
        refuse_plan(['"steps" must be an array'])
    if not 1 <= len(items) <= max_steps:
        refuse_plan([f"a plan has 1 to {max_steps} steps, got {len(items)}"])
    problems: list[str] = []
    steps: list[WrittenStep] = []
    for place, item in enumerate(items):
        found = _problems_of(place, item, actions, max_chars)
        problems += found
        if not found:
            needs = item.get("depends_on")
            names = None if needs is None else tuple(needs)
            steps.append(
                WrittenStep(item["name"], item["instruction"], item["action"], names)
            )
    if problems:
        refuse_plan(problems)
    return steps


def _parsed(text: str, max_chars: int) -> object:
    if len(text) > max_chars:
        refuse_plan([f"the text has {len(text)} characters, allowed are {max_chars}"])

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            msg = "a key occurs twice in one object"
            raise ValueError(msg)
        return found

    def no_constant(name: str) -> NoReturn:
        msg = f"{name} is no JSON"
        raise ValueError(msg)

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
    except RecursionError:
        refuse_plan(["the text is nested too deep"])
    except ValueError as exc:
        refuse_plan([f"the text is no JSON: {exc}"])


def _problems_of(
    place: int, item: Any, actions: Mapping[str, Any], max_chars: int
) -> list[str]:
    where = f"steps[{place}]"
    if not isinstance(item, Mapping):
        return [f"{where} must be an object, got {shown(item)}"]
    found = [
        f"{where} has an unknown key {shown(key)}" for key in item if key not in _FIELDS
    ]
    for name in _FIELDS[:3]:
        value = item.get(name)
        if not isinstance(value, str) or not value.strip():
            found.append(f"{where}.{name} must be a text, got {shown(value)}")
        elif len(value) > max_chars:
            found.append(f"{where}.{name} is longer than {max_chars} characters")
        elif name == "action" and value not in actions:
            known = ", ".join(map(repr, list(actions)[:_MOST_NAMED]))
            found.append(
                f"{where}.action {shown(value)} is unknown; there are: {known}"
            )
    needs = item.get("depends_on")
    if needs is not None and (
        isinstance(needs, str)
        or not isinstance(needs, Sequence)
        or not all(isinstance(name, str) for name in needs)
    ):
        found.append(f"{where}.depends_on must be an array of names")
    return found


def refuse_plan(problems: list[str]) -> NoReturn:
    """Refuse a plan.

    Raises:
        WorkflowError: With the problems in its text and its metadata.
    """
    named = "; ".join(problems[:_MOST_NAMED])
    more = len(problems) - _MOST_NAMED
    if more > 0:
        named += f"; and {more} more"
    msg = f"the plan cannot be used: {named}"
    raise WorkflowError(msg, metadata={"problems": problems})
