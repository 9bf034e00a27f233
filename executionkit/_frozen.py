"""How values are made read-only: deep freezing, and sealing of dataclasses."""

from __future__ import annotations

import copyreg
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar

__all__ = (
    "FrozenDict",
    "FrozenList",
    "freeze",
    "freeze_mapping",
    "sealed",
    "thaw",
)

_C = TypeVar("_C")


# MappingProxyType is read-only but neither pickles nor copies by itself. `copyreg`
# is the standard library's hook for such types; it adds an ability and changes none.
def _restore_proxy(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(FrozenDict(items))


def _reduce_proxy(proxy: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return _restore_proxy, (dict(proxy),)


copyreg.pickle(MappingProxyType, _reduce_proxy)


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    msg = f"{type(self).__name__} is read-only; use thaw() for a copy to change"
    raise TypeError(msg)


class FrozenDict(dict[Any, Any]):
    """A dict that refuses every change; equal to a dict with the same items."""

    __slots__ = ()
    if not TYPE_CHECKING:  # to a type checker it is any dict
        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenDict:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses every change; equal to a list with the same items."""

    __slots__ = ()
    if not TYPE_CHECKING:  # to a type checker it is any list
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
        append = extend = insert = pop = remove = clear = _refuse
        sort = reverse = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __copy__(self) -> FrozenList:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenList:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def _freeze_items(value: Mapping[Any, Any]) -> FrozenDict:
    # Most items need nothing; looking at their type here saves a call for each.
    return FrozenDict(
        {
            key: item if type(item) in _ATOMS else _freeze(item)
            for key, item in value.items()
        }
    )


def _freeze_list(value: list[Any]) -> FrozenList:
    return FrozenList(
        [item if type(item) in _ATOMS else _freeze(item) for item in value]
    )


def _freeze_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([_freeze(item) for item in value])


_FREEZERS: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
    {
        OrderedDict: _freeze_items,
        MappingProxyType: _freeze_items,
        bytearray: bytes,
        defaultdict: _freeze_items,
        dict: _freeze_items,
        list: _freeze_list,
        set: frozenset,
        tuple: _freeze_tuple,
    }
)


_ATOMS = frozenset({bool, bytes, float, int, str, type(None)})


def _freeze(value: Any) -> Any:
    freezer = _FREEZERS.get(type(value))
    return value if freezer is None else freezer(value)


def _too_deep() -> ValueError:
    return ValueError("the value is nested too deep to be kept read-only")


def freeze(value: Any) -> Any:
    """A deeply read-only twin of a JSON-like value.

    dict (also a mapping proxy, `OrderedDict`, `defaultdict`) becomes `FrozenDict`,
    list `FrozenList`, set `frozenset`, bytearray bytes, tuples stay tuples; anything
    else, subclasses of a user among them, is returned as it is. A `FrozenDict` or
    `FrozenList` is not copied.

    Raises:
        ValueError: When it is nested too deep to be copied, or holds itself.
    """
    try:
        return _freeze(value)
    except RecursionError:
        raise _too_deep() from None


def thaw(value: Any) -> Any:
    """A deep copy made of plain dicts and lists, free to be changed."""
    if isinstance(value, (dict, MappingProxyType)):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [thaw(item) for item in value]
    if type(value) is tuple:
        return tuple([thaw(item) for item in value])
    return value


_EMPTY: MappingProxyType[str, Any] = MappingProxyType(FrozenDict())


def freeze_mapping(
    value: Mapping[str, Any] | None = None,
) -> MappingProxyType[str, Any]:
    """A read-only proxy over a deeply frozen copy of `value` (None = empty).

    Raises:
        ValueError: When it is nested too deep to be copied, or holds itself.
    """
    if not value:
        return _EMPTY
    if type(value) is FrozenDict:
        return MappingProxyType(value)
    try:
        return MappingProxyType(_freeze_items(value))
    except RecursionError:
        raise _too_deep() from None


def _refuse_change(self: object, name: str, _value: object = None) -> NoReturn:
    msg = f"cannot change field {name!r} of {type(self).__name__}"
    raise FrozenInstanceError(msg)


def _hash_part(value: Any) -> Any:
    # A proxy is hashable from 3.12 on; all of ours stand over a FrozenDict.
    return FrozenDict(value) if type(value) is MappingProxyType else value


def _hash_fields(self: Any) -> int:
    parts = [
        _hash_part(getattr(self, item.name))
        for item in fields(self)
        if (item.compare if item.hash is None else item.hash)
    ]
    return hash(tuple(parts))


def sealed(cls: type[_C]) -> type[_C]:
    """Finish a frozen, slotted dataclass: put it above `@dataclass(...)`.

    CPython 3.11.7 and 3.12.1 build a `__setattr__` for such classes that raises
    `TypeError` instead of `FrozenInstanceError`, so that `Result[str](...)` crashes
    (python/cpython#111650 family). The replacement always refuses, with the right
    error. Hashing looks through mapping proxies, which 3.11 cannot hash.
    """
    cls.__setattr__ = _refuse_change  # type: ignore[method-assign]
    cls.__delattr__ = _refuse_change  # type: ignore[method-assign]
    cls.__hash__ = _hash_fields  # type: ignore[method-assign]
    return cls
