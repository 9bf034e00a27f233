"""Parsing that needs more than the type's own shape: unions and models."""

from __future__ import annotations

import json
from typing import Any, Final, ForwardRef

from executionkit.engine._schema.defs import assemble
from executionkit.engine._schema.problems import SchemaProblem, pointer
from executionkit.engine._schema.shapes import (
    Parser,
    SchemaValueError,
    Shape,
    Steps,
    reject,
    type_name,
)
from executionkit.engine.schema import Validator, compile_schema

__all__ = ("Choices", "model_parser", "no_form")

_BINARY: Final = (bytes, bytearray, memoryview)


class Choices:
    """Parses a union: the first type whose schema fits and that takes the value.

    A number or boolean goes first to the type that it already is, so `int | float`
    leaves both alone. Text goes by the order alone: `date | str` tries the date first.
    """

    def __init__(self, shapes: list[Shape], definitions: dict[str, Any]) -> None:
        self._shapes = shapes
        self._definitions = definitions
        self._validators: list[Validator] = []

    def __call__(self, value: Any, steps: Steps) -> Any:
        # Compiled late: a type that contains itself is not complete before.
        if not self._validators:
            self._validators = [
                compile_schema(assemble(shape.schema, self._definitions))
                for shape in self._shapes
            ]
        pairs = list(zip(self._shapes, self._validators, strict=True))
        if not isinstance(value, str):
            pairs.sort(key=lambda pair: pair[0].scalar is not type(value))
        refusal = reject("fits none of the types", steps)
        for shape, validator in pairs:
            if validator.validate(value):
                continue
            try:
                return shape.parse(value, steps)
            except SchemaValueError as exc:
                refusal = exc
        raise refusal


def model_parser(tp: Any) -> Parser:
    """Parses with a pydantic model, or anything with its `model_validate_json`."""

    def parse(value: Any, steps: Steps) -> Any:
        # As JSON text, so that the model applies its rules for JSON.
        try:
            return tp.model_validate_json(json.dumps(value))
        except ValueError as exc:
            errors: Any = getattr(exc, "errors", None)
            if not callable(errors):
                raise reject(str(exc), steps) from exc
            raise SchemaValueError(_model_problems(errors(), steps)) from exc

    return parse


def _model_problems(errors: Any, steps: Steps) -> list[SchemaProblem]:
    return [
        SchemaProblem(pointer((*steps, *item["loc"])), str(item["msg"]))
        for item in errors
    ]


def no_form(tp: Any, where: str) -> str:
    """Why a type has no schema, and what to do."""
    if tp in _BINARY:
        return (
            f"{where} is `{type_name(tp)}`, which JSON cannot carry; take `str` and "
            "decode it (base64, hex) inside"
        )
    if isinstance(tp, (str, ForwardRef)):
        return f"{where} is the name {tp!r}, not resolved; give the type itself"
    return (
        f"{where} is `{type_name(tp)}`, which has no form in JSON; use a dataclass, a "
        "typed dict or a built-in type, or give the schema by hand"
    )
