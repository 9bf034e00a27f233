"""Every value class of the package, found by looking, keeps the promises of a value.

A new class needs nothing here when its fields have types that `sample` can make;
otherwise give it an example in EXAMPLES.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import importlib
import inspect
import json
import pickle
import pkgutil
import types as python_types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, is_dataclass
from typing import Any

import pytest

import executionkit
from executionkit import calls, types
from executionkit._frozen import FrozenDict, sealed
from executionkit.calls import ErrorInfo, ToolCall, ToolResult
from executionkit.errors import ErrorCode

# How to make one of those that `sample` cannot make: dotted name -> maker.
EXAMPLES: dict[str, Callable[[], Any]] = {
    "executionkit.calls.ToolResult": lambda: ToolResult(
        "t", {"a": [1]}, error="x", exception=ValueError("x")
    ),
    "executionkit._error_info.ErrorInfo": lambda: ErrorInfo.from_code(
        ErrorCode.TOOL_TIMEOUT, "late", {"a": [1]}
    ),
}

# Sealed, but not values: name -> what they hold that cannot be copied.
HANDLES: dict[str, str] = {
    "executionkit.anthropic.AnthropicProvider": "open connections",
    "executionkit.provider.Provider": "open connections",
    "executionkit.routing.RouteRule": "a provider",
    "executionkit.types.StreamingPatternResult": "a running stream",
}

# Public dataclasses that may be changed, with the reason.
CHANGEABLE: dict[str, str] = {
    "executionkit._mock.MockCall": "holds a request as it was, to compare with",
    "executionkit._mock.MockProvider": "a recorder of calls",
}

# What is not offered to users may be kept simpler.
PUBLIC = frozenset({*dir(executionkit), *types.__all__, *calls.__all__, "MockCall"})

SEALED_SETATTR: object = sealed(type("Probe", (), {})).__setattr__


def function(*_args: object, **_kwargs: object) -> None:
    """Stands in for any callable; a module's own function pickles by name."""


def all_dataclasses() -> list[type]:
    found: dict[str, Any] = {}
    for info in pkgutil.walk_packages(executionkit.__path__, "executionkit."):
        if info.name.endswith(".__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except Exception:
            continue  # test_exports.py fails on it, or knows the extra that it needs
        members: list[Any] = list(vars(module).values())
        for value in members:
            own = inspect.isclass(value) and value.__module__ == info.name
            if own and value.__name__ in PUBLIC and is_dataclass(value):
                found[name_of(value)] = value
    return [found[name] for name in sorted(found)]


def name_of(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def is_sealed(cls: type) -> bool:
    return cls.__setattr__ is SEALED_SETATTR


every_dataclass = pytest.mark.parametrize("cls", all_dataclasses(), ids=name_of)
every_value = pytest.mark.parametrize(
    "cls",
    [c for c in all_dataclasses() if is_sealed(c) and name_of(c) not in HANDLES],
    ids=name_of,
)


def sample(kind: Any) -> Any:
    """Some value of a type, nested and mutable where the type allows it."""
    origin = typing.get_origin(kind) or kind
    arguments = typing.get_args(kind)
    if kind is Any:
        return {"deep": [{"deeper": [1]}]}
    if origin in {typing.Union, python_types.UnionType}:
        return sample(next(item for item in arguments if item is not type(None)))
    if origin is typing.Literal:
        return arguments[0]
    if isinstance(kind, typing.TypeVar):
        return {"deep": [1]}
    if origin is tuple:
        return tuple(sample(item) for item in arguments if item is not Ellipsis)
    if inspect.isclass(origin):
        return sample_of_class(origin, arguments)
    msg = f"cannot make a {kind!r}; add the class to EXAMPLES"
    raise AssertionError(msg)


def sample_of_class(cls: type, arguments: tuple[Any, ...]) -> Any:
    simple: dict[type, Any] = {str: "x", int: 1, float: 0.5, bool: True, bytes: b"x"}
    if cls in simple:
        return simple[cls]
    if issubclass(cls, enum.Enum):
        return next(iter(cls))
    if issubclass(cls, BaseException):
        return ValueError("x")
    if is_dataclass(cls):
        return example(cls)
    if cls in {Callable, type}:
        return function
    if issubclass(cls, Mapping):
        return {"x": sample(arguments[1]) if arguments else [1]}
    if issubclass(cls, (set, frozenset)):
        return frozenset({sample(arguments[0])}) if arguments else frozenset({"x"})
    if issubclass(cls, Sequence):
        return [sample(arguments[0])] if arguments else ["x"]
    if getattr(cls, "_is_protocol", False):
        return function
    msg = f"cannot make a {cls!r}; add the class that wants it to EXAMPLES"
    raise AssertionError(msg)


def names_for_hints() -> dict[str, Any]:
    """What hints may name that is imported for type checkers only."""
    names: dict[str, Any] = {**vars(typing), **vars(python_types)}
    names |= {name: getattr(typing, name) for name in ("Any", "Literal")}
    names |= {"Callable": Callable, "Mapping": Mapping, "Sequence": Sequence}
    return names | {cls.__name__: cls for cls in all_dataclasses()}


def example(cls: Any) -> Any:
    """An instance of a dataclass, with all fields without a default filled in."""
    if name_of(cls) in EXAMPLES:
        return EXAMPLES[name_of(cls)]()
    hints = typing.get_type_hints(cls, localns=names_for_hints())
    given = {
        item.name: sample(hints[item.name])
        for item in dataclasses.fields(cls)
        if item.init
        and item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
    }
    return cls(**given)


def mutable_parts(value: Any) -> Iterator[str]:
    """Where a value has something that a reader could change."""
    if type(value) in {dict, list, set, bytearray}:
        yield repr(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from mutable_parts(item)
    elif isinstance(value, (list, tuple, frozenset)):
        for item in value:
            yield from mutable_parts(item)


def fields_of(value: Any) -> Iterator[Any]:
    return (getattr(value, item.name) for item in dataclasses.fields(value))


@pytest.mark.req("values.frozen")
@every_dataclass
def test_a_dataclass_is_sealed_or_says_why_not(cls: type) -> None:
    if name_of(cls) in CHANGEABLE:
        return
    assert is_sealed(cls), f"put @sealed on {name_of(cls)}, or give a reason here"
    parameters: Any = cls.__dict__["__dataclass_params__"]
    assert parameters.frozen
    assert "__slots__" in cls.__dict__
    assert "__dict__" not in dir(cls)


@pytest.mark.req("values.frozen", "D-33")
@every_value
def test_no_field_of_a_value_can_be_set_or_deleted(cls: type) -> None:
    value = example(cls)
    for name in [*(item.name for item in dataclasses.fields(value)), "no_such_field"]:
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(value, name, 1)
        with pytest.raises(FrozenInstanceError, match=name):
            delattr(value, name)


@pytest.mark.req("values.deeply-read-only", "D-33")
@every_value
def test_nothing_inside_of_a_value_can_be_changed(cls: type) -> None:
    value = example(cls)
    for item in dataclasses.fields(value):
        found = list(mutable_parts(getattr(value, item.name)))
        assert not found, f"{item.name} holds something mutable: {found}"


@pytest.mark.req("values.pickle", "D-33")
@every_value
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_value_survives_pickling(cls: type, protocol: int) -> None:
    value = example(cls)
    twin: Any = pickle.loads(pickle.dumps(value, protocol))
    assert type(twin) is cls
    assert twin == value
    assert not list(mutable_parts(tuple(fields_of(twin))))
    with pytest.raises(FrozenInstanceError):
        setattr(twin, "no_such_field", 1)  # noqa: B010 - not a field of any type


@pytest.mark.req("values.copy", "D-33")
@every_value
def test_a_value_can_be_copied(cls: type) -> None:
    value = example(cls)
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value
    assert type(copy.deepcopy(value)) is cls


@pytest.mark.req("values.equal", "D-33")
@every_value
def test_a_value_equals_its_twin_and_hashes_like_it(cls: type) -> None:
    value = example(cls)
    twin = pickle.loads(pickle.dumps(value))
    assert value == twin
    assert value != object()
    try:
        number = hash(value)
    except TypeError as exc:
        pytest.fail(f"{name_of(cls)} has contents without a hash: {exc}")
    assert number == hash(twin)


@pytest.mark.req("values.as-dict", "D-33")
@every_value
def test_a_value_can_be_turned_into_a_dict_and_shown(cls: type) -> None:
    value = example(cls)
    data = dataclasses.asdict(value)
    assert list(data) == [item.name for item in dataclasses.fields(value)]
    assert cls.__name__ in repr(value)


@every_value
def test_a_value_can_be_replaced_by_a_changed_one(cls: type) -> None:
    value = example(cls)
    if all(item.init for item in dataclasses.fields(value)):
        assert dataclasses.replace(value) == value


def test_the_search_finds_the_values() -> None:
    found = {cls.__name__ for cls in all_dataclasses() if is_sealed(cls)}
    assert {"TokenUsage", "PatternResult", "Tool", "ToolCall", "ToolResult"} <= found


def test_every_exception_to_the_rule_still_exists() -> None:
    names = {name_of(cls) for cls in all_dataclasses()}
    listed = {*EXAMPLES, *HANDLES, *CHANGEABLE}
    known = listed & names
    assert known == listed, f"gone: {sorted(listed - known)}"


def test_the_search_for_mutable_parts_finds_them() -> None:
    assert list(mutable_parts(({"a": 1}, FrozenDict(a=[1])))) == ["{'a': 1}", "[1]"]
    assert not list(mutable_parts(ToolCall("i", "n", {"a": [1]}).arguments))
    assert json.dumps(dict(ToolCall("i", "n", {"a": [{}]}).arguments)) == '{"a": [{}]}'
