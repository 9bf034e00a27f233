"""From the arguments of a call to what the tool's function takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit._error_base import text_of
from executionkit.context import get_current_context
from executionkit.engine.schema_coerce import coerce_arguments
from executionkit.engine.schema_infer import SchemaValueError
from executionkit.errors import ToolValidationError
from executionkit.types import thaw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("checked_arguments", "prepare")


def prepare(record: ToolRecord, request: ToolRequest) -> dict[str, Any]:
    """Validate the call's arguments, set `request.arguments` and return them.

    Raises:
        ToolValidationError: When they do not fit the tool's schema.
    """
    given = request.call.arguments
    # A proxy copies what it stands for, which is quicker than going over its items.
    copy: Any = getattr(given, "copy", None)
    arguments: dict[str, Any] = dict(given) if copy is None else copy()
    if record.accepts is not None and record.accepts(arguments):
        parse = record.quick_parse
    else:
        parse = record.parse
        arguments, notes = checked_arguments(record, given)
        for note in notes:
            request.warn(note)
    if parse is not None:
        try:
            arguments = parse(arguments)
        except SchemaValueError as exc:
            raise ToolValidationError(record.full_name, [text_of(exc)]) from exc
    if record.context_parameters:
        context = get_current_context()
        for name in record.context_parameters:
            arguments[name] = context
    request.arguments = arguments
    return arguments


def checked_arguments(
    record: ToolRecord, given: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(arguments as a new dict, notes about decoded fields).

    A field that was encoded once too often is decoded where the schema leaves no
    doubt; nothing is ever guessed.

    Raises:
        ToolValidationError: When they do not fit the tool's schema.
    """
    problems = record.validator.validate(given)
    notes: tuple[str, ...] = ()
    if problems:
        decoded, notes = coerce_arguments(given, record.tool.parameters)
        if not notes or record.validator.validate(decoded):
            raise ToolValidationError(
                record.full_name, [str(item) for item in problems]
            )
        given = decoded
    # The tool may change what it gets: nothing of it is the caller's.
    return {key: thaw(value) for key, value in given.items()}, notes
