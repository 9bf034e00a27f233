"""Records by name, and what a name in a call means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain, islice
from typing import Any, Final

from executionkit.errors import ToolNotFoundError
from executionkit.tools._record import ToolRecord
from executionkit.tools._registry.missing import (
    AmbiguousToolError,
    NameIndex,
    not_found,
)
from executionkit.tools._registry.names import (
    DEFAULT_NAMESPACE,
    decode_wire,
    wire_name,
)

__all__ = ("CallNames", "ToolTable")

_LISTED: Final = 50
_PER_NAME: Final = 3
_PREFIX: Final = f"{DEFAULT_NAMESPACE}."


class ToolTable:
    """The records of one registry. Not guarded: the registry holds the lock."""

    __slots__ = ("_index", "_wires", "hidden", "homes", "records", "spaces", "version")

    def __init__(self) -> None:
        self.records: dict[str, ToolRecord] = {}
        """Full name -> record."""
        self.homes: dict[str, dict[str, ToolRecord]] = {}
        """Bare name -> namespace -> record."""
        self.spaces: dict[str, dict[str, ToolRecord]] = {}
        """Namespace -> bare name -> record."""
        self.hidden: set[str] = set()
        """Full names of tools that are not listed until they are used."""
        self.version: int = 0
        self._index = NameIndex()
        self._wires: tuple[int, dict[str, str]] = (-1, {})

    def put(self, record: ToolRecord, *, hide: bool) -> None:
        """Take a record in, in the place of one of that name."""
        self.records[record.full_name] = record
        self.homes.setdefault(record.name, {})[record.namespace] = record
        self.spaces.setdefault(record.namespace, {})[record.name] = record
        (self.hidden.add if hide else self.hidden.discard)(record.full_name)
        self.version += 1

    def take(self, record: ToolRecord) -> None:
        """Forget a record."""
        del self.records[record.full_name]
        self.hidden.discard(record.full_name)
        for table, outer, inner in (
            (self.homes, record.name, record.namespace),
            (self.spaces, record.namespace, record.name),
        ):
            del table[outer][inner]
            if not table[outer]:
                del table[outer]
        self.version += 1

    def show(self, record: ToolRecord) -> None:
        """List a hidden tool from now on."""
        if record.full_name in self.hidden:
            self.hidden.discard(record.full_name)
            self.version += 1

    def find(self, name: str, namespace: str) -> ToolRecord | None:
        """The tool of exactly that name; a bare one means the default namespace."""
        if namespace != DEFAULT_NAMESPACE:
            return self.records.get(f"{namespace}.{name}")
        return self.records.get(name.removeprefix(_PREFIX))

    def search(self, name: str, namespace: str) -> ToolRecord:
        """What a name means that is not simply a full name.

        Raises:
            AmbiguousToolError: When several namespaces have it.
            ToolNotFoundError: When there is none.
        """
        if namespace != DEFAULT_NAMESPACE:
            inside = name.startswith(f"{namespace}.")
            found = self.records.get(name) if inside else None
        elif "." in name:
            found = self.find(name, namespace)
        else:
            homes = self.homes.get(name) or {}
            if len(homes) > 1:
                names = [record.full_name for record in homes.values()]
                raise AmbiguousToolError(name, names)
            found = next(iter(homes.values()), None)
        found = found or self._of_wire(name, namespace)
        if found is None:
            raise self._missing(name, namespace)
        return found

    def means(self, name: str) -> bool:
        """Whether a call of that name is meant for a tool, if only an ambiguous one."""
        found = self.find(name, DEFAULT_NAMESPACE)
        if found is None and name not in self.homes:
            found = self._of_wire(name, DEFAULT_NAMESPACE)
            return found is not None
        return True

    def _of_wire(self, name: str, namespace: str) -> ToolRecord | None:
        """The tool that a provider knows under `name`."""
        if "__" not in name:
            return None
        full = decode_wire(name)
        if full is None:
            full = self._hashed().get(name, "")
        record = self.records.get(full)
        if record is None or namespace in (DEFAULT_NAMESPACE, record.namespace):
            return record
        return None  # a call that names a namespace stays in it

    def _hashed(self) -> dict[str, str]:
        version, table = self._wires
        if version != self.version:
            wires = {wire_name(full): full for full in list(self.records)}
            table = {wire: full for wire, full in wires.items() if "___" in wire}
            self._wires = (self.version, table)
        return table

    def _missing(self, name: str, namespace: str) -> ToolNotFoundError:
        space, bare, wanted = namespace, name, name
        if namespace != DEFAULT_NAMESPACE:
            wanted = f"{namespace}.{name}"
        elif "." in name:
            space, _, bare = name.partition(".")
        near = self._index.near(bare, self.homes, self.version)
        found = chain.from_iterable(
            islice(self.homes.get(home, {}).values(), _PER_NAME) for home in near
        )
        inside = islice(self.spaces.get(space, {}).values(), _LISTED)
        candidates = {r.full_name: r.full_name for r in chain(inside, found)}
        if wanted == bare:
            candidates = {
                **{full.partition(".")[2] or full: full for full in candidates},
                **candidates,
            }
        listed = list(islice(self._listed(space), _LISTED))
        return not_found(wanted, space, candidates, listed, list(self.spaces))

    def _listed(self, space: str) -> Iterator[str]:
        """Names to tell about: those of the namespace, else all, those in use first."""
        inside = self.spaces.get(space)
        if inside and space != DEFAULT_NAMESPACE:
            records = list(inside.values())
        else:
            records = [*(inside or {}).values()][:_LISTED]
            records += islice(self.records.values(), 2 * _LISTED)
        for full in dict.fromkeys(record.full_name for record in records):
            if full not in self.hidden:
                yield full


class CallNames:
    """Which names a call may say: `name in names`.

    Args:
        table: The tools.
        lock: Guards them.
    """

    __slots__ = ("_lock", "_table")

    def __init__(self, table: ToolTable, lock: AbstractContextManager[Any]) -> None:
        self._table = table
        self._lock = lock

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return isinstance(name, str) and self._table.means(name)
