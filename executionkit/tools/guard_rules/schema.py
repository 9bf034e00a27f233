"""The rule that takes a tool's schema at its word."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from executionkit.engine._schema.walk import resolve_pointer
from executionkit.engine.schema_coerce import coerce_arguments
from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("SchemaGuard", "SchemaStrictnessGuard")

_PASS = GuardResult.allow()
_NO_NAMES: Final[Mapping[str, Any]] = {}
_PARTS: Final = ("allOf", "anyOf", "oneOf")
_BRANCHES: Final = ("if", "then", "else")
_MAX_SHOWN: Final = 5


class SchemaGuard(BaseGuard):
    """Refuses arguments that a schema does not name, even where it would let them pass.

    JSON Schema allows unknown properties unless it is told otherwise, so a misspelled
    optional argument is dropped in silence; here it is an error that names the closest
    argument. Only the arguments themselves are looked at, not objects inside of them.

    Args:
        coerce: Whether fields that were encoded once too often are decoded (a repair;
            see `engine.schema_coerce`), when the arguments are not valid as they are.
        validate: Whether arguments that the schema refuses are blocked here. The
            runtime checks them anyway, behind the guards.
        allow_unknown_for: Tools (full names) that take any argument. A schema that
            is open on purpose (`patternProperties`, or `additionalProperties` and no
            property) is one of them.
        enforcement: How far its word goes.
    """

    name = "schema"

    def __init__(
        self,
        *,
        coerce: bool = False,
        validate: bool = False,
        allow_unknown_for: Collection[str] = (),
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        if isinstance(allow_unknown_for, str):
            msg = (
                "`allow_unknown_for` must be a list of tool names, got the text "
                f"{allow_unknown_for!r}"
            )
            raise ValueError(msg)
        self._coerce = coerce
        self._validate = validate
        self._open = frozenset(allow_unknown_for)

    def check(self, call: ToolCall, record: ToolRecord, /) -> GuardResult:
        """Compare the arguments with the schema."""
        named = record.tool.parameters.get("properties") or _NO_NAMES
        if not call.arguments.keys() <= named.keys():
            refused = self._unknown(call, record)
            if refused is not None:
                return refused
        if self._coerce or self._validate:
            return self._checked(call, record)
        return _PASS

    def _unknown(self, call: ToolCall, record: ToolRecord) -> GuardResult | None:
        if record.full_name in self._open:
            return None
        schema = dict(record.tool.parameters)
        known = set(_names(schema, schema, set()))
        unknown = sorted(set(call.arguments) - known)
        if not unknown or _is_open(schema, known):
            return None
        hints: list[str] = []
        for name in unknown[:_MAX_SHOWN]:
            close = get_close_matches(name[:100], known, 1)
            hint = f" (did you mean `{close[0]}`?)" if close else ""
            hints.append(f"`{name[:100]}`{hint}")
        more = ", ..." if len(unknown) > _MAX_SHOWN else ""
        takes = ", ".join(f"`{name}`" for name in sorted(known)) or "none"
        return GuardResult.block(
            f"unknown arguments {', '.join(hints)}{more}; the tool takes {takes}",
            {"unknown": [name[:100] for name in unknown[:_MAX_SHOWN]]},
        )

    def _checked(self, call: ToolCall, record: ToolRecord) -> GuardResult:
        arguments = dict(call.arguments)
        problems = record.validator.validate(arguments)
        if not problems:
            return _PASS
        if self._coerce:
            schema = dict(record.tool.parameters)
            better, notes = coerce_arguments(arguments, schema)
            left = record.validator.validate(better) if notes else problems
            if notes and (not left or not self._validate):
                return GuardResult.repair("; ".join(notes), arguments=better)
            problems = left
        if not self._validate:
            return _PASS
        text = "; ".join(str(problem) for problem in problems)
        return GuardResult.block(f"the arguments are not valid: {text}")


SchemaStrictnessGuard = SchemaGuard
"""Another name of `SchemaGuard`."""


def _is_open(schema: Mapping[str, Any], known: Collection[str]) -> bool:
    """Whether a schema was written to take names that it does not list."""
    if "patternProperties" in schema:
        return True
    return not known and schema.get("additionalProperties", False) is not False


def _names(schema: Any, root: Any, seen: set[int]) -> Iterable[str]:
    """The properties that a schema names, in its parts too."""
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return
    seen.add(id(schema))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        yield from properties
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _names(_resolved(root, reference), root, seen)
    for keyword in _PARTS:
        for part in schema.get(keyword) or ():
            yield from _names(part, root, seen)
    for keyword in _BRANCHES:
        yield from _names(schema.get(keyword), root, seen)
    for part in (schema.get("dependentSchemas") or {}).values():
        yield from _names(part, root, seen)


def _resolved(root: Any, reference: str) -> Any:
    if not reference.startswith("#"):
        return None
    try:
        return resolve_pointer(root, reference)
    except LookupError:
        return None
