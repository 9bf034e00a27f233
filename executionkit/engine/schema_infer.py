"""The JSON Schema of a function's parameters, and the way from JSON to its arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

from executionkit.engine._schema.annotated import split_annotated
from executionkit.engine._schema.docstring import parse_docstring
from executionkit.engine._schema.fields import (
    Field,
    Unresolved,
    function_behind,
    function_hints,
    json_default,
    object_schema,
)
from executionkit.engine._schema.problems import SchemaError
from executionkit.engine._schema.shapes import SchemaValueError, Shape, keep
from executionkit.engine._schema.types import TypeBuilder, schema_for_type
from executionkit.engine._schema.values import to_plain

if TYPE_CHECKING:
    from inspect import Parameter

__all__ = (
    "SchemaValueError",
    "parser_from_callable",
    "schema_for_type",
    "schema_from_callable",
)

_CONTEXT: Final = "ExecutionContext"
_RECEIVERS: Final = frozenset({"self", "cls"})


def schema_from_callable(
    function: Callable[..., Any], *, injected: Collection[type] = ()
) -> tuple[dict[str, Any], str]:
    """(JSON Schema of the parameters, description) of a function.

    A parameter without a default is required; other members are refused unless the
    function takes `**kwargs`. The description is the docstring up to its first section;
    a parameter's words come from `Annotated[..., "words"]`, else from the docstring
    (Google, NumPy or Sphinx style). A parameter without annotation takes any value.
    `self`, `cls`, the `ExecutionContext` and parameters of an `injected` type are left
    out: the runtime fills them.

    Args:
        function: A function, method, class, `partial`, or object that can be called.
        injected: More types that the runtime fills.

    Raises:
        SchemaError: When a model could not call it: `*args`, positional-only
            parameters, types without a form in JSON, annotations that do not resolve.
    """
    signature = _Signature(function, injected)
    return signature.schema, signature.description


def parser_from_callable(
    function: Callable[..., Any], *, injected: Collection[type] = ()
) -> Callable[[Mapping[str, Any]], dict[str, Any]] | None:
    """The function that turns arguments from JSON into what the annotations say.

    It makes dates, enums, dataclasses, models, tuples and so on. The arguments must fit
    the schema of `schema_from_callable`. It raises `SchemaValueError` when a type
    refuses its value. A dict that needs no change is given back as it is.

    Args:
        function: As for `schema_from_callable`.
        injected: As there.

    Returns:
        None when every parameter takes JSON as it is.

    Raises:
        SchemaError: As for `schema_from_callable`.
    """
    shapes = _Signature(function, injected).shapes
    if all(shape.parse is keep for shape in shapes.values()):
        return None

    scalars = {name: shape.scalar for name, shape in shapes.items()}

    def parse(arguments: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in arguments.items():
            if type(value) is not scalars.get(name):
                break
        else:  # all of it is plain already, which is the common case
            return arguments if type(arguments) is dict else dict(arguments)
        return {
            name: shapes[name].parse(to_plain(value), (name,))
            if name in shapes
            else value
            for name, value in arguments.items()
        }

    exact = {str, int, bool, type(None)}
    # Whether values of the very types that the schema names need no parsing at all.
    parse.is_exact = exact.issuperset(scalars.values())  # type: ignore[attr-defined]
    return parse


def _words_of(function: Any, behind: Any) -> tuple[str, dict[str, str]]:
    """The description and the parameters' words, from all that is documented."""
    documented = [function, behind]
    if isinstance(function, partial):
        documented = [behind]
    elif hasattr(function, "__code__"):
        documented = [function]
    elif not isinstance(function, type):  # an object: what it does when called
        documented = [behind, type(function)]
    read = [parse_docstring(getattr(item, "__doc__", None)) for item in documented]
    words = {name: text for _, found in reversed(read) for name, text in found.items()}
    return next((text for text, _ in read if text), ""), words


class _Signature:
    """A function's parameters, read once."""

    def __init__(self, function: Any, injected: Collection[type]) -> None:
        behind = function_behind(function)
        self._name = getattr(behind, "__qualname__", repr(function))
        self._injected = tuple(injected)
        self._hints = function_hints(behind)
        self.description, self._words = _words_of(function, behind)
        builder = TypeBuilder()
        fields: list[Field] = []
        self.shapes: dict[str, Shape] = {}
        extra: Any = False
        for parameter in self._parameters(function):
            where = f"parameter `{parameter.name}` of `{self._name}`"
            hint = self._hints.get(parameter.name, Any)
            if parameter.kind is parameter.VAR_KEYWORD:
                extra = builder.build(hint, where).schema or True
                continue
            field = self._field(parameter, hint)
            fields.append(field)
            self.shapes[parameter.name] = builder.field_shape(field, where)
        self.schema = builder.finish(object_schema(fields, self.shapes, extra=extra))

    def _parameters(self, function: Any) -> Iterator[Parameter]:
        """The parameters that a model fills, and `**kwargs`."""
        from inspect import signature

        try:
            parameters = list(signature(function).parameters.values())
        except (TypeError, ValueError, NameError) as exc:
            msg = f"`{self._name}` has no readable signature ({exc}); give its schema"
            raise SchemaError(msg) from exc
        for index, parameter in enumerate(parameters):
            if index == 0 and parameter.name in _RECEIVERS:
                continue
            if self._is_injected(self._hints.get(parameter.name)):
                continue
            if parameter.kind in {
                parameter.VAR_POSITIONAL,
                parameter.POSITIONAL_ONLY,
            }:
                msg = (
                    f"parameter `{parameter}` of `{self._name}` can only be given by "
                    "position, and a model gives arguments by name; make it an ordinary "
                    "parameter (a list, for `*args`)"
                )
                raise SchemaError(msg)
            yield parameter

    def _field(self, parameter: Parameter, hint: Any) -> Field:
        required = parameter.default is parameter.empty
        has_default, default = (
            (False, None) if required else json_default(parameter.default)
        )
        words = self._words.get(parameter.name, "")
        return Field(parameter.name, hint, required, words, has_default, default)

    def _is_injected(self, hint: Any) -> bool:
        hint = split_annotated(hint)[0]
        if isinstance(hint, Unresolved):
            return _CONTEXT in hint.text.replace("|", " ").replace(".", " ").split()
        if isinstance(hint, type):
            ours = hint.__name__ == _CONTEXT and hint.__module__.startswith(
                "executionkit."
            )
            return ours or issubclass(hint, self._injected)
        origin = get_origin(hint)
        if origin is None or origin in {list, tuple, dict}:
            return False
        inner = [arg for arg in get_args(hint) if arg is not type(None)]
        return len(inner) == 1 and self._is_injected(inner[0])
