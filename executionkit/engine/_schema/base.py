"""What all validators share: values that are no JSON, values too deep, the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final

from executionkit.engine._schema.problems import (
    Failure,
    SchemaProblem,
    pointer,
    render_failures,
    shorten,
)
from executionkit.engine._schema.values import NotJsonError, is_plain, to_plain

__all__ = ("BackendValidator", "RefusingValidator")

_INSTALL: Final = "pip install 'executionkit[jsonschema]'"
_MAX_SHOWN: Final = 150


class BackendValidator:
    """A compiled schema.

    Args:
        backend: The backend's name.
        find: What is wrong with a value that is plain JSON.
    """

    __slots__ = ("_backend", "_find")

    def __init__(self, backend: str, find: Callable[[Any], Iterable[Failure]]) -> None:
        self._backend = backend
        self._find = find

    @property
    def backend(self) -> str:
        """`"jsonschema-rs"`, `"jsonschema"` or `"subset"`."""
        return self._backend

    def validate(self, value: Any) -> list[SchemaProblem]:
        """What is wrong with `value`; empty = valid.

        What is no JSON (NaN, bytes, sets, other objects) is a problem; a tuple counts
        as an array, a mapping as an object.
        """
        try:
            if type(value) is MappingProxyType:
                value = dict(value)
            plain = value if is_plain(value) else to_plain(value)
            return render_failures(self._find(plain))
        except NotJsonError as exc:
            return [SchemaProblem(pointer(exc.steps), exc.message)]
        except RecursionError:
            return [SchemaProblem("", "is nested too deeply to be checked")]
        except Exception as exc:  # noqa: BLE001 - a foreign validator's fault is no tool's
            name = type(exc).__name__
            return [SchemaProblem("", f"could not be checked: {name} in the validator")]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} backend={self._backend!r}>"


class RefusingValidator(BackendValidator):
    """Stands for a schema that cannot be checked exactly: no value is valid.

    Args:
        backend: The backend's name.
        unsupported: What it cannot check.
    """

    __slots__ = ("_problem",)

    def __init__(self, backend: str, unsupported: Sequence[str]) -> None:
        super().__init__(backend, lambda _: ())
        shown = shorten(", ".join(unsupported), _MAX_SHOWN)
        self._problem = SchemaProblem(
            "", f"the schema uses {shown}, which needs an extra package: {_INSTALL}"
        )

    def validate(self, value: Any) -> list[SchemaProblem]:  # noqa: ARG002
        """One problem that names what cannot be checked and how to get it checked."""
        return [self._problem]
