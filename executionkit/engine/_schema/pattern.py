r"""The `pattern` of JSON Schema, matched exactly and in linear time.

JSON Schema's patterns are ECMAScript's, which Python's `re` reads differently (`\d`,
`\w`, `\s`, `.`, `$`), and `re` can be made to run for hours. So the part of the
language without look-around, back references and word boundaries is read here and
matched by a finite automaton (K. Thompson, CACM 11(6), 1968) that is made
deterministic while it runs. Everything else is refused, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from executionkit.engine._schema.regex import (
    Alternatives,
    Characters,
    Edge,
    Node,
    PatternError,
    Repeat,
    Sequence,
    parse_pattern,
)

__all__ = ("Pattern", "compile_pattern")

_MAX_PROGRAM: Final = 2000
_MAX_STATES: Final = 500
_MAX_EDGES: Final = 20_000


@dataclass(frozen=True, slots=True)
class _Split:
    """Go on at each of the targets."""

    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Match:
    """The pattern has matched."""


_Step: TypeAlias = Characters | Edge | _Split | _Match


class _State:
    """A set of places in the program, with the known ways on."""

    __slots__ = ("decided", "matched", "next", "places")

    def __init__(self, places: frozenset[int], *, matched: bool) -> None:
        self.places = places
        self.matched = matched
        self.decided = matched or not places
        self.next: dict[str, _State] = {}


class Pattern:
    """A compiled pattern.

    Args:
        source: The pattern's text.

    Raises:
        PatternError: When the text is no pattern, or uses what cannot be matched here.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._program = _Compiler().compile(parse_pattern(source))
        self._states: dict[frozenset[int], _State] = {}
        self._edges = 0
        self._restart = self._follow([0], at_start=False)
        self._first = self._state(self._follow([0], at_start=True))

    def search(self, text: str) -> bool:
        """Whether the pattern matches anywhere in `text`.

        Takes time in proportion to the text's length.
        """
        state = self._first
        for character in text:
            if state.decided:
                return state.matched
            known = state.next.get(character)
            state = known if known is not None else self._step(state, character)
        return state.matched or self._matches_at_end(state, empty=not text)

    def _step(self, state: _State, character: str) -> _State:
        code = ord(character)
        moved: list[int] = []
        for place in state.places:
            step = self._program[place]
            if isinstance(step, Characters) and step.has(code):
                moved.append(place + 1)
        if self._edges >= _MAX_EDGES or len(self._states) >= _MAX_STATES:
            self._forget(state)
        target = self._state(self._follow(moved, at_start=False) | self._restart)
        self._edges += 1
        state.next[character] = target
        return target

    def _forget(self, current: _State) -> None:
        """Keep memory bounded: states stay valid, but know no way on any more."""
        for state in (*self._states.values(), self._first, current):
            state.next.clear()
        self._states = {}
        self._edges = 0

    def _state(self, places: frozenset[int]) -> _State:
        known = self._states.get(places)
        if known is not None:
            return known
        matched = any(isinstance(self._program[place], _Match) for place in places)
        state = self._states[places] = _State(places, matched=matched)
        return state

    def _follow(
        self, start: list[int], *, at_start: bool, at_end: bool = False
    ) -> frozenset[int]:
        """The places reached from `start` without reading a character."""
        seen: set[int] = set()
        todo = list(start)
        while todo:
            place = todo.pop()
            if place in seen:
                continue
            seen.add(place)
            step = self._program[place]
            if isinstance(step, _Split):
                todo.extend(step.targets)
            elif isinstance(step, Edge) and (at_end if step.end else at_start):
                todo.append(place + 1)
        return frozenset(
            place for place in seen if not isinstance(self._program[place], _Split)
        )

    def _matches_at_end(self, state: _State, *, empty: bool) -> bool:
        places = self._follow(list(state.places), at_start=empty, at_end=True)
        return any(isinstance(self._program[place], _Match) for place in places)


class _Compiler:
    """Writes a syntax tree as a program of character tests, edges and splits."""

    def __init__(self) -> None:
        self._program: list[_Step] = []

    def compile(self, node: Node) -> tuple[_Step, ...]:
        self._write(node)
        self._program.append(_Match())
        return tuple(self._program)

    def _write(self, node: Node) -> None:
        if len(self._program) > _MAX_PROGRAM:
            msg = "the pattern is too long once its counts are written out"
            raise PatternError(msg)
        if isinstance(node, (Characters, Edge)):
            self._program.append(node)
        elif isinstance(node, Sequence):
            for part in node.parts:
                self._write(part)
        elif isinstance(node, Alternatives):
            self._write_alternatives(node)
        elif isinstance(node, Repeat):
            self._write_repeat(node)
        else:
            msg = "look-around cannot be matched without an extra package"
            raise PatternError(msg)

    def _write_alternatives(self, node: Alternatives) -> None:
        fork = self._reserve()
        starts: list[int] = []
        leaves: list[int] = []
        for part in node.parts:
            starts.append(len(self._program))
            self._write(part)
            leaves.append(self._reserve())
        self._program[fork] = _Split(tuple(starts))
        for leave in leaves:
            self._program[leave] = _Split((len(self._program),))

    def _write_repeat(self, node: Repeat) -> None:
        for _ in range(node.least):
            self._write(node.part)
        if node.most is None:
            fork = self._reserve()
            self._write(node.part)
            self._program.append(_Split((fork,)))
            self._program[fork] = _Split((fork + 1, len(self._program)))
            return
        forks: list[int] = []
        for _ in range(node.most - node.least):
            forks.append(self._reserve())
            self._write(node.part)
        for fork in forks:
            self._program[fork] = _Split((fork + 1, len(self._program)))

    def _reserve(self) -> int:
        self._program.append(_Split(()))
        return len(self._program) - 1


@lru_cache(maxsize=256)
def compile_pattern(source: str) -> Pattern:
    """The compiled pattern for `source`; the last 256 are kept.

    Raises:
        PatternError: As for `Pattern`.
    """
    return Pattern(source)
