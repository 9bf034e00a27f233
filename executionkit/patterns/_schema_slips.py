"""What people write in place of a JSON Schema, told apart from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executionkit._arguments import shown
from executionkit.engine.schema import SchemaError

__all__ = ("refuse_shorthand",)

_KEYWORDS: Final = frozenset(
    """
    additionalItems additionalProperties allOf anyOf const contains contentEncoding
    contentMediaType contentSchema default definitions dependencies dependentRequired
    dependentSchemas deprecated description else enum example examples exclusiveMaximum
    exclusiveMinimum format id if items maxContains maxItems maxLength maxProperties
    maximum minContains minItems minLength minProperties minimum multipleOf not nullable
    oneOf pattern patternProperties prefixItems properties propertyNames readOnly
    required then title type unevaluatedItems unevaluatedProperties uniqueItems
    writeOnly
    """.split()  # noqa: SIM905 - a line for each would hide them
)
_TYPE_NAMES: Final = frozenset(
    """
    any array bool boolean date datetime dict float int integer list number object str
    string text
    """.split()  # noqa: SIM905 - a line for each would hide them
)


def refuse_shorthand(schema: Mapping[str, Any]) -> None:
    """Refuse `{"city": "str"}`: as a JSON Schema that allows everything.

    Keywords of one's own are fine beside real ones, and with `$` or `x-` alone too.

    Raises:
        SchemaError: Naming what is no keyword, and how the schema is written.
    """
    names = [key for key in schema if isinstance(key, str)]
    own = [key for key in names if not key.startswith(("$", "x-"))]
    strange = [key for key in own if key not in _KEYWORDS]
    named = [key for key in strange if _is_type_name(schema[key])]
    if not named and (not strange or len(strange) < len(names)):
        return
    what = ", ".join([f"`{key}`" for key in (named or strange)[:5]])
    msg = (
        f"{shown(schema)} is no JSON Schema: {what} is no keyword of one. For an object "
        'with these fields, pass a dataclass or a TypedDict, or {"type": "object", '
        '"properties": {...}, "required": [...]}'
    )
    raise SchemaError(msg)


def _is_type_name(value: object) -> bool:
    return isinstance(value, str) and value.lower() in _TYPE_NAMES
