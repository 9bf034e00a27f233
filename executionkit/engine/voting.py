"""Counting votes: which answers are the same, and which one wins."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from executionkit.errors import ConsensusFailedError
from executionkit.types import VotingStrategy, sealed

__all__ = (
    "Ballot",
    "VoteTally",
    "answer_normalizer",
    "casefold_normalizer",
    "normalize_response",
    "numeric_normalizer",
    "tally_votes",
)

# Invisible characters that carry no meaning in a vote: soft hyphen, zero-width space,
# joiners, direction marks, word joiner and its kin, byte order mark. Not all of the
# category Cf: tag characters tell one flag from another, Arabic number signs are seen.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"
)
_SURROUNDINGS: Final = frozenset(
    {
        ("*", "*"),
        ("`", "`"),
        ('"', '"'),
        ("'", "'"),
        ("\u2018", "\u2019"),
        ("\u201c", "\u201d"),
        ("\u00ab", "\u00bb"),
    }
)
_SENTENCE_END: Final = " .,;:?\u2026\u3002\uff0c\uff1f\uff01"
_HEADING: Final = re.compile(r"#{1,6} ")
_NUMBER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<top>\d{1,40})/(?P<bottom>\d{1,40})"
    r"|(?P<whole>\d{1,3}(?:,\d{3}){1,12}|\d{0,40})(?:\.(?P<part>\d{0,40}))?"
    r"(?:e(?P<power>[+-]?\d{1,3}))?)",
    re.ASCII,
)


@sealed
@dataclass(frozen=True, slots=True)
class VoteTally:
    """The outcome of a vote."""

    winner: str
    """The first answer of the winning kind, as it was given."""

    agreement_ratio: float
    """The winning kind's share of the votes."""

    unique_responses: int
    """How many kinds of answers there were."""

    tie_count: int
    """How many kinds share the top count: 1 = a clear winner. 0 = unanimous vote."""


def normalize_response(text: str) -> str:
    """The text that decides which answers are the same.

    Unicode form C, no invisible characters, white space collapsed to single spaces.
    """
    visible = unicodedata.normalize("NFC", _INVISIBLE.sub("", text))
    return " ".join(visible.split())


def casefold_normalizer(text: str) -> str:
    """`normalize_response`, and upper and lower case are the same."""
    folded = normalize_response(text).casefold()
    return unicodedata.normalize("NFC", folded)


def answer_normalizer(text: str) -> str:
    """For short answers: case, surrounding markup and closing punctuation do not count.

    `**Paris**`, `"paris"` and `Paris.` are one answer. What may be part of an answer
    stays: `-3` is not `3`, `.5` is not `5`, `5!` is not `5`, `A*` is not `A`.
    """
    answer = casefold_normalizer(text)
    while True:
        shorter = _peel(answer)
        if shorter in {answer, ""}:
            return answer
        answer = shorter


def _peel(answer: str) -> str:
    heading = _HEADING.match(answer)
    if heading is not None:
        answer = answer[heading.end() :]
    answer = answer.rstrip(_SENTENCE_END)
    if answer[-1:] == "!" and answer[-2:-1].isalpha():
        answer = answer[:-1]
    if len(answer) > 1 and (answer[0], answer[-1]) in _SURROUNDINGS:
        answer = answer[1:-1].strip()
    return answer


def numeric_normalizer(text: str) -> str:
    """For numbers: `0.50`, `.5` and `1/2` are one answer; `-3` and `3` are two.

    Knows signs, decimals, fractions, exponents and thousands commas. Anything else is
    compared like `answer_normalizer` does.
    """
    answer = answer_normalizer(text)
    found = _NUMBER.fullmatch(answer.replace("\u2212", "-").replace(" / ", "/"))
    value = None if found is None else _value(found)
    return answer if value is None else str(value)


def _value(found: re.Match[str]) -> Fraction | None:
    top, bottom = found["top"], found["bottom"]
    if top is not None:
        if not int(bottom):
            return None
        size = Fraction(int(top), int(bottom))
    else:
        whole = found["whole"].replace(",", "")
        part = found["part"] or ""
        if not whole + part:
            return None
        shift = int(found["power"] or 0) - len(part)
        size = int(whole + part) * Fraction(10) ** shift
    return -size if found["sign"] == "-" else size


class Ballot:
    """Counts votes as they come, and knows when the rest cannot matter.

    Args:
        strategy: How a winner is picked.
        normalizer: Two answers with the same result are one kind of answer.
            None = `normalize_response`. Its errors pass through.
    """

    __slots__ = ("_counts", "_first", "_normalizer", "_strategy", "_votes")

    def __init__(
        self,
        strategy: VotingStrategy | str = VotingStrategy.MAJORITY,
        *,
        normalizer: Callable[[str], str] | None = None,
    ) -> None:
        self._strategy = VotingStrategy(strategy)
        self._normalizer = normalizer or normalize_response
        # In the order of first appearance, which breaks ties.
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}
        self._votes = 0

    @property
    def votes(self) -> int:
        """How many votes were counted."""
        return self._votes

    def add(self, content: str) -> None:
        """Count one answer."""
        kind = self._normalizer(content)
        self._first.setdefault(kind, content)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._votes += 1

    def decided(self, remaining: int) -> bool:
        """Whether no outcome of the `remaining` votes can change the winner.

        A unanimous vote is decided when it is broken.
        """
        if self._strategy is VotingStrategy.UNANIMOUS:
            return remaining <= 0 or len(self._counts) > 1
        if remaining <= 0:
            return True
        leader = self._leader()
        if leader is None:
            return False
        most = self._counts[leader]
        if remaining > most:  # all for an answer that nobody gave yet
            return False
        is_older = True
        for kind, count in self._counts.items():
            if kind == leader:
                is_older = False
            # Who appeared first wins a tie.
            elif count + remaining >= most + (0 if is_older else 1):
                return False
        return True

    def result(self) -> VoteTally:
        """The outcome of the votes so far; ties go to the answer that came first.

        Raises:
            ConsensusFailedError: When a unanimous vote is not unanimous.
            ValueError: When nobody voted.
        """
        leader = self._leader()
        if leader is None:
            msg = "Cannot tally an empty response set"
            raise ValueError(msg)
        kinds = len(self._counts)
        if self._strategy is VotingStrategy.UNANIMOUS:
            if kinds > 1:
                msg = f"No unanimous answer: {kinds} distinct responses"
                raise ConsensusFailedError(msg)
            return VoteTally(self._first[leader], 1.0, 1, 0)
        most = self._counts[leader]
        tied = sum(count == most for count in self._counts.values())
        return VoteTally(self._first[leader], most / self._votes, kinds, tied)

    def _leader(self) -> str | None:
        return max(self._counts, key=self._counts.__getitem__, default=None)


def tally_votes(
    contents: Iterable[str],
    strategy: VotingStrategy | str,
    *,
    normalizer: Callable[[str], str] | None = None,
) -> VoteTally:
    """Count the votes of `contents`.

    Args:
        contents: The answers.
        strategy: How a winner is picked.
        normalizer: Two answers with the same result are one kind of answer.
            None = `normalize_response`. Its errors pass through.

    Raises:
        ConsensusFailedError: When a unanimous vote is not unanimous.
        ValueError: When there are no answers.
    """
    ballot = Ballot(strategy, normalizer=normalizer)
    for content in contents:
        ballot.add(content)
    return ballot.result()
