"""JSON from a server, with a depth that everything after it can take."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._constants import MAX_JSON_DEPTH
from executionkit._wire.loading import load_reply
from executionkit.types import freeze

pytestmark = pytest.mark.req("provider.total")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "extra", ["", ', "b": 1', ', "b": {"c": [1, 2]}', ', "b": "]]{"']
)
@pytest.mark.parametrize("before", ["", '"x": "[[[[", ', '"x": [1], '])
def test_the_limit_is_exact_wherever_the_depth_is(before: str, extra: str) -> None:
    for pad in ("", " " * 1000):
        good = f'{{{before}"a": {nested(MAX_JSON_DEPTH - 1)}{extra}}}{pad}'
        freeze(load_reply(good))
        freeze(load_reply(good.encode()))
        bad = f'{{{before}"a": {nested(MAX_JSON_DEPTH)}{extra}}}{pad}'
        with pytest.raises(ValueError, match="nested deeper than 128 levels"):
            load_reply(bad)
        with pytest.raises(ValueError, match="nested deeper than 128 levels"):
            load_reply(bad.encode())


@given(
    st.recursive(
        st.none() | st.text('[]{}"\\é\ud800', max_size=300),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner),
    )
)
def test_what_is_shallow_is_read(value: Any) -> None:
    assert load_reply(json.dumps(value)) == value
    assert load_reply(json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.parametrize("text", ["", "{", b"\xff", "NaN", b"", "[" * 100_000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="not valid JSON"):
        load_reply(text)
