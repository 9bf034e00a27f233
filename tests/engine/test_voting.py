"""Votes: which answers are the same, who wins, and when the rest cannot matter."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from executionkit.engine.voting import (
    Ballot,
    VoteTally,
    answer_normalizer,
    casefold_normalizer,
    normalize_response,
    numeric_normalizer,
    tally_votes,
)
from executionkit.errors import ConsensusFailedError
from executionkit.types import VotingStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

MAJORITY, UNANIMOUS = VotingStrategy.MAJORITY, VotingStrategy.UNANIMOUS
NORMALIZERS = [
    normalize_response,
    casefold_normalizer,
    answer_normalizer,
    numeric_normalizer,
]


# --- which answers are the same ------------------------------------------------------------


@pytest.mark.req("voting.normalize")
def test_white_space_does_not_count() -> None:
    assert normalize_response("  a \t\n b\u00a0c ") == "a b c"
    assert normalize_response("") == ""
    assert normalize_response("A") == "A"


@pytest.mark.req("D-39", "voting.normalize")
def test_two_ways_to_write_an_accent_are_one_answer() -> None:
    """D-39: composed and decomposed `café`, split 2 to 2 before."""
    composed, apart = "caf\u00e9", "cafe\u0301"
    assert normalize_response(apart) == normalize_response(composed) == composed
    tally = tally_votes([composed, apart, apart, composed], MAJORITY)
    assert (tally.unique_responses, tally.agreement_ratio) == (1, 1.0)


@pytest.mark.req("D-39", "voting.normalize")
@pytest.mark.parametrize(
    "hidden",
    [
        "\ufeff",
        "\u200b",
        "\u200c",
        "\u200d",
        "\u200e",
        "\u2060",
        "\u00ad",
        "\u202a",
        "\u2066",
        "\u206f",
        "\u061c",
        "\u180e",
        "\u2064",
    ],
)
def test_invisible_characters_do_not_count(hidden: str) -> None:
    assert normalize_response(f"{hidden}yes{hidden} {hidden}no") == "yes no"


@pytest.mark.req("voting.normalize")
def test_characters_that_tell_answers_apart_stay() -> None:
    england = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
    scotland = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
    assert normalize_response(england) != normalize_response(scotland)
    assert normalize_response("a\u2065b") != "ab"  # unassigned, not invisible
    for kept in ("\u200a", "\u2010", "\u2029", "\u202f", "\u2070"):
        assert normalize_response(f"a{kept}b") != "ab"


@pytest.mark.req("voting.normalize")
@given(st.text())
def test_what_is_normal_stays_as_it_is(text: str) -> None:
    for normalizer in NORMALIZERS:
        once = normalizer(text)
        if normalizer is not numeric_normalizer:
            assert normalizer(once) == once
    assert unicodedata.is_normalized("NFC", normalize_response(text))


@pytest.mark.req("voting.answers")
def test_case_counts_unless_asked_otherwise() -> None:
    assert normalize_response("Yes") != normalize_response("yes")
    assert casefold_normalizer("STRASSE") == casefold_normalizer("Straße")
    assert casefold_normalizer("Yes.") != casefold_normalizer("yes")


@pytest.mark.req("D-39", "voting.answers")
@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        " paris. ",
        "**Paris**",
        "**Paris**.",
        "**Paris.**",
        "`paris`",
        '"Paris"',
        "'Paris'",
        "\u201cParis\u201d",
        "\u2018Paris\u2019",
        "\u00abParis\u00bb",
        "# Paris",
        "### Paris!",
        "Paris?",
        "Paris\u2026",
        "PARIS,",
        "Paris\u3002",
        "* `**Paris!**` *",
    ],
)
def test_markup_and_closing_marks_do_not_count(text: str) -> None:
    assert answer_normalizer(text) == "paris"


@pytest.mark.req("voting.answers")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-3", "3"),
        (".5", "5"),
        ("5!", "5"),
        ("A*", "A"),
        ("C#", "C"),
        ("C++", "C"),
        ("#1", "1"),
        ("5'", "5"),
        ("f(x)", "f(x"),
        ("__init__", "init"),
        ("50%", "50"),
        ("~5", "5"),
        ("####### a", "a"),
    ],
)
def test_what_may_be_part_of_an_answer_stays(one: str, other: str) -> None:
    assert answer_normalizer(one) != answer_normalizer(other)


@pytest.mark.parametrize("text", ["", "...", "**", '"', "?!", "# ", "'", "``"])
def test_an_answer_of_marks_alone_is_left_alone(text: str) -> None:
    assert answer_normalizer(text) == " ".join(text.split())


@pytest.mark.req("RP-02", "voting.numbers")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("0.50", "1/2"),
        (".5", "1/2"),
        ("1/2", "1/2"),
        ("2 / 4", "1/2"),
        ("5e-1", "1/2"),
        ("**0.5**", "1/2"),
        ("+0.5", "1/2"),
        ("-.5", "-1/2"),
        ("-3", "-3"),
        ("\u22123", "-3"),
        ("3", "3"),
        ("3.", "3"),
        ("3.0", "3"),
        ("-0", "0"),
        ("1,000", "1000"),
        ("1,234,567.5", "2469135/2"),
        ("1E3", "1000"),
        ("1e+3", "1000"),
        ("-6/4", "-3/2"),
    ],
)
def test_numbers_are_compared_by_value_when_asked(text: str, key: str) -> None:
    """RP-02: `0.50`, `.5` and `1/2` group together; `-3` and `3` never do."""
    assert numeric_normalizer(text) == key


@pytest.mark.req("voting.numbers")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "1/0",
        "1,00",
        "1,2345",
        "1 2",
        "12-3",
        ".",
        "-",
        "e5",
        "50%",
        "nan",
        "inf",
        "1/2/3",
        "\u0663",
        "0x10",
        "1e5000",
        "9" * 41,
        "--3",
        "1e",
    ],
)
def test_what_is_no_number_is_compared_as_an_answer(text: str) -> None:
    assert numeric_normalizer(text) == answer_normalizer(text)


@pytest.mark.req("voting.numbers")
def test_a_hostile_number_takes_no_time() -> None:
    assert len(numeric_normalizer("9" * 40 + "." + "9" * 40 + "e999")) < 2000
    for text in ("1" * 100_000, "1," * 50_000, "1e" + "9" * 50_000, "-" * 100_000):
        assert numeric_normalizer(text) == answer_normalizer(text)


@pytest.mark.req("voting.numbers")
@given(st.fractions(max_denominator=10**6), st.integers(0, 3))
def test_a_fraction_and_its_multiples_are_one(value: object, zeros: int) -> None:
    assert numeric_normalizer(str(value)) == str(value)


@given(
    st.decimals(
        allow_nan=False,
        allow_infinity=False,
        min_value=-(10**6),
        max_value=10**6,
        places=4,
    )
)
def test_a_decimal_and_its_shortest_form_are_one(value: object) -> None:
    assert numeric_normalizer(str(value)) == numeric_normalizer(f"{value}00")


# --- who wins --------------------------------------------------------------------------------


@pytest.mark.req("voting.tally")
def test_the_most_common_answer_wins_in_its_own_words() -> None:
    tally = tally_votes([" b", "a", "b ", "c", "b"], "majority")
    assert tally == VoteTally(" b", 3 / 5, 3, 1)


@pytest.mark.req("voting.tally")
def test_a_tie_goes_to_the_answer_that_came_first() -> None:
    assert tally_votes(["x", "b", "a", "a", "b"], MAJORITY) == VoteTally(
        "b", 2 / 5, 3, 2
    )
    assert tally_votes(["a", "b", "c"], MAJORITY) == VoteTally("a", 1 / 3, 3, 3)


@pytest.mark.req("voting.tally")
def test_a_unanimous_vote_has_one_answer() -> None:
    assert tally_votes(["a ", "a"], UNANIMOUS) == VoteTally("a ", 1.0, 1, 0)
    with pytest.raises(ConsensusFailedError, match="3 distinct responses"):
        tally_votes(["a", "b", "c", "a"], "unanimous")


@pytest.mark.req("voting.tally")
@pytest.mark.parametrize("strategy", list(VotingStrategy))
def test_nobody_voted(strategy: VotingStrategy) -> None:
    with pytest.raises(ValueError, match="empty response set"):
        tally_votes([], strategy)


@pytest.mark.req("voting.tally")
def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="plurality"):
        tally_votes(["a"], "plurality")


@pytest.mark.req("RP-02", "voting.numbers")
def test_a_sign_is_part_of_the_answer() -> None:
    """RP-02: votes -3, -3, 3."""
    for normalizer in [None, *NORMALIZERS]:
        tally = tally_votes(["-3", "-3", "3"], MAJORITY, normalizer=normalizer)
        assert (tally.winner, tally.unique_responses) == ("-3", 2)


@pytest.mark.req("RP-02", "voting.numbers")
def test_numbers_are_grouped_only_when_asked_for() -> None:
    votes = ["0.50", ".5", "1/2"]
    assert tally_votes(votes, MAJORITY).unique_responses == 3
    tally = tally_votes(votes, UNANIMOUS, normalizer=numeric_normalizer)
    assert tally == VoteTally("0.50", 1.0, 1, 0)


@pytest.mark.req("RP-04", "voting.tally")
def test_the_key_is_the_answer_and_nothing_else() -> None:
    """RP-04: 42/ok, 42/bad, 7/ok: two votes for 42 whatever stands beside it."""
    tally = tally_votes(
        ["42/ok", "42/bad", "7/ok"],
        MAJORITY,
        normalizer=lambda text: text.split("/")[0],
    )
    assert tally == VoteTally("42/ok", 2 / 3, 2, 1)


@pytest.mark.req("voting.tally")
def test_an_error_of_the_normalizer_passes_through() -> None:
    def broken(_text: str) -> str:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        tally_votes(["a"], MAJORITY, normalizer=broken)


@pytest.mark.req("voting.tally")
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_it_agrees_with_a_counter(votes: list[str]) -> None:
    tally = tally_votes(votes, MAJORITY)
    (winner, most), *_ = Counter(votes).most_common()
    assert tally.winner == winner
    assert tally.agreement_ratio == most / len(votes)
    assert tally.tie_count == list(Counter(votes).values()).count(most)


# --- when the rest cannot matter -----------------------------------------------------------------


def ballot(votes: str, strategy: VotingStrategy = MAJORITY) -> Ballot:
    made = Ballot(strategy)
    for vote in votes:
        made.add(vote)
    return made


@pytest.mark.req("voting.early-stop")
@pytest.mark.parametrize(
    ("votes", "remaining", "decided"),
    [
        ("", 0, True),
        ("", 1, False),
        ("a", 1, True),  # a tie goes to the first
        ("a", 2, False),
        ("aab", 1, True),
        ("aab", 2, False),
        ("abb", 1, False),  # a would come first in a tie
        ("abbb", 1, True),
        ("ab", 1, False),
        ("aaabb", 1, True),
        ("aaabb", 2, False),
        ("aaa", 3, True),
        ("aaa", 4, False),
        ("abcc", 1, False),
        ("cab", 0, True),
        ("ab", -1, True),
    ],
)
def test_a_majority_is_decided_when_nobody_can_catch_up(
    votes: str, remaining: int, decided: bool
) -> None:
    assert ballot(votes).decided(remaining) is decided


@pytest.mark.req("voting.early-stop")
@pytest.mark.parametrize(
    ("votes", "remaining", "decided"),
    [
        ("", 1, False),
        ("aaa", 1, False),
        ("ab", 5, True),
        ("aaa", 0, True),
        ("", 0, True),
    ],
)
def test_a_unanimous_vote_is_decided_when_it_is_broken(
    votes: str, remaining: int, decided: bool
) -> None:
    assert ballot(votes, UNANIMOUS).decided(remaining) is decided


@pytest.mark.req("voting.early-stop")
@given(st.text(alphabet="abc", max_size=5), st.integers(0, 3))
def test_decided_means_exactly_that_every_end_has_the_same_winner(
    votes: str, remaining: int
) -> None:
    winners = {
        ballot(votes + "".join(rest)).result().winner
        for rest in itertools.product("abcdef", repeat=remaining)
        if votes or rest
    }
    if votes:
        assert ballot(votes).decided(remaining) is (len(winners) == 1)


@pytest.mark.req("voting.early-stop")
def test_a_ballot_can_be_read_at_any_time() -> None:
    made = Ballot()
    with pytest.raises(ValueError, match="empty response set"):
        made.result()
    for count, vote in enumerate("abb", 1):
        made.add(vote)
        assert made.votes == count
    assert made.result() == VoteTally("b", 2 / 3, 2, 1)


def test_any_callable_will_do_as_normalizer() -> None:
    upper: Callable[[str], str] = str.upper
    assert tally_votes(["a", "A"], UNANIMOUS, normalizer=upper).winner == "a"
