"""Docstrings in three styles, and in none."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given, strategies as st

from executionkit.engine._schema.docstring import parse_docstring
from executionkit.engine.schema_infer import schema_from_callable

pytestmark = pytest.mark.req("schema.docstrings")

GOOGLE = """Find flights.

    More words
    on two lines.

    Args:
        origin (str): Where from.
        dest (Optional[dict[str, (int)]], optional): Where to: an airport
            or a city.

            Second paragraph.
        *rest: More.
        bare

    Returns:
        list: A list.

    Raises:
        ValueError: Never.
    """

NUMPY = """Find flights.

    Parameters
    ----------
    origin : str
        Where from.
    dest : {'a', 'b'}, optional
        Where to: an airport
        or a city.
    x, y : int
        A place.
    none

    Returns
    -------
    origin : int
        Not this one.
    """

SPHINX = """Find flights.

    :param origin: Where from.
    :type origin: str
    :param str dest: Where to: an airport
        or a city.
    :keyword x: A place.
    :returns: A list.
    :raises ValueError: Never.
    """


def test_google_style() -> None:
    words, parameters = parse_docstring(GOOGLE)
    assert words == "Find flights.\n\nMore words\non two lines."
    assert parameters == {
        "origin": "Where from.",
        "dest": "Where to: an airport or a city. Second paragraph.",
        "rest": "More. bare",
    }


def test_numpy_style() -> None:
    words, parameters = parse_docstring(NUMPY)
    assert words == "Find flights."
    assert parameters == {
        "origin": "Where from.",
        "dest": "Where to: an airport or a city.",
        "x": "A place.",
        "y": "A place.",
    }


def test_sphinx_style() -> None:
    words, parameters = parse_docstring(SPHINX)
    assert words == "Find flights."
    assert parameters == {
        "origin": "Where from.",
        "dest": "Where to: an airport or a city.",
        "x": "A place.",
    }


@pytest.mark.parametrize("text", [None, "", "   ", "\n\n", 3])
def test_no_docstring_says_nothing(text: Any) -> None:
    assert parse_docstring(text) == ("", {})


@pytest.mark.parametrize("title", ["Args", "Arguments", "Parameters", "Params"])
def test_the_section_has_many_names(title: str) -> None:
    assert parse_docstring(f"X.\n\n{title}:\n    a: A.") == ("X.", {"a": "A."})


@pytest.mark.parametrize("title", ["Returns", "Raises", "Yields", "Example", "Note"])
def test_any_section_ends_the_description(title: str) -> None:
    text = f"X.\n\n{title}:\n    more: words\n\nTail.\n\nArgs:\n    a: A."
    assert parse_docstring(text) == ("X.", {"a": "A."})


def test_text_that_looks_like_a_section_but_is_none_stays() -> None:
    text = (
        "X.\n\nUse it like this:\n    a: b\n\nArgs are nice.\n  Args:\n    no: section"
    )
    words, parameters = parse_docstring(text)
    assert words == text
    assert parameters == {}
    words, parameters = parse_docstring("X.\n\n:see: other\n:param: nothing")
    assert words == "X.\n\n:see: other"
    assert parameters == {}


def test_a_section_ends_where_the_text_is_dedented() -> None:
    text = "X.\n\nArgs:\n    a: A.\nTail: no parameter.\n    b: neither"
    assert parse_docstring(text)[1] == {"a": "A."}
    numpy = "X.\n\nParameters\n----------\na : int\n    A.\n\nSome prose here.\n    b"
    assert parse_docstring(numpy)[1] == {"a": "A."}


def test_styles_may_be_mixed() -> None:
    text = "X.\n\n:param a: A.\n\nArgs:\n    b: B.\n\nOther Parameters\n----------------\nc\n    C."
    assert parse_docstring(text) == ("X.", {"a": "A.", "b": "B.", "c": "C."})


@given(st.text(max_size=80) | st.text("Args:\n -:param x()*,", max_size=80))
def test_any_text_is_read(text: str) -> None:
    words, parameters = parse_docstring(text)
    assert isinstance(words, str)
    assert all(name and value for name, value in parameters.items())


def test_annotated_words_win_over_the_docstring() -> None:
    def run(a: Annotated[int, "from the type"], b: int, c: int) -> None:
        """Runs.

        Args:
            a: From the docstring.
            b: From the docstring.
            unknown: Nobody.
        """

    schema, words = schema_from_callable(run)
    assert words == "Runs."
    assert [part.get("description") for part in schema["properties"].values()] == [
        "from the type",
        "From the docstring.",
        None,
    ]
