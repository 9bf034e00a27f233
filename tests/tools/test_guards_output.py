"""The output size guard: what is cut, where, and what it says about it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ToolCall
from executionkit.engine.schema import compile_schema
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools.guard_rules import OutputSizeGuard, TruncationMode
from executionkit.tools.guards import GuardChain, GuardResult, GuardVerdict
from executionkit.types import Tool

WEB = ToolRecord(
    Tool("web", "", {"type": "object"}, lambda **_: None),
    kind=Kind.SYNC,
    validator=compile_schema({"type": "object"}),
)
CALL = ToolCall("c", "web", {})
ALLOW = GuardResult.allow()


def ask(value: Any, **options: Any) -> GuardResult:
    found = OutputSizeGuard(**options).check_output(CALL, WEB, value)
    assert isinstance(found, GuardResult)
    return found


def size(value: Any) -> int:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))


class TestText:
    @pytest.mark.req("TX-16", "guards.output-size")
    def test_head_and_tail_are_kept_with_the_original_size(self) -> None:
        text = "BEGIN" + "x" * 5_000_000 + "END"
        found = ask(text)
        cut = found.repaired_output
        assert found.verdict is GuardVerdict.REPAIR
        assert cut.startswith("BEGINx")
        assert cut.endswith("xEND")
        assert f"{len(text)} bytes" in cut
        assert 256 * 1024 - 4 <= size(cut) <= 256 * 1024
        assert found.details["original_bytes"] == len(text)
        assert str(len(text)) in found.reason

    @pytest.mark.req("TX-16", "guards.output-size")
    def test_json_text_says_that_it_is_none_any_more(self) -> None:
        text = json.dumps([{"a": n} for n in range(1000)])
        assert "no longer valid JSON" in ask(text, max_bytes=1000).repaired_output
        assert "valid JSON" not in ask("x" * 2000, max_bytes=1000).repaired_output

    @pytest.mark.req("TX-16", "guards.output-size")
    @settings(max_examples=150, deadline=None)
    @given(
        st.text(
            st.sampled_from("ab\u00e9\u20ac\U0001f600\ud800\n"), min_size=1, max_size=50
        ),
        st.integers(1, 60),
        st.integers(256, 600),
    )
    def test_texts_are_cut_between_characters(
        self, piece: str, times: int, most: int
    ) -> None:
        text = piece * times
        found = ask(text, max_bytes=most)
        if size(text) <= most:
            assert found is ALLOW
            return
        cut = found.repaired_output
        assert most - 8 <= size(cut) <= most
        head, _, rest = cut.partition("\n[... cut: ")
        tail = rest.partition("...]\n")[2]
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) > 10
        assert len(tail) > 5

    @pytest.mark.parametrize("most", [256, 257, 1000])
    def test_the_cap_itself_passes_and_one_more_does_not(self, most: int) -> None:
        assert ask("x" * most, max_bytes=most) is ALLOW
        assert ask("x" * (most + 1), max_bytes=most) is not ALLOW
        assert ask("\u20ac" * (most // 3), max_bytes=most) is ALLOW
        assert ask("\u20ac" * (most // 3 + 1), max_bytes=most) is not ALLOW

    def test_bytes_are_cut_too(self) -> None:
        cut = ask(b"A" + b"x" * 2000 + b"Z", max_bytes=500).repaired_output
        assert len(cut) == 500
        assert (cut[:1], cut[-1:]) == (b"A", b"Z")
        assert b"2002 bytes" in cut


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=8)
        | st.dictionaries(st.text(max_size=8), inner, max_size=8)
    ),
    max_leaves=60,
)


class TestStructures:
    @pytest.mark.req("TX-16", "guards.output-size")
    @settings(max_examples=150, deadline=None)
    @given(json_values, st.integers(256, 500))
    def test_a_structure_stays_json_within_the_cap(self, value: Any, most: int) -> None:
        found = ask(value, max_bytes=most)
        if isinstance(value, str):
            return
        if size(value) <= most:
            assert found is ALLOW
            return
        cut = json.loads(json.dumps(found.repaired_output))
        assert size(cut) <= most
        assert f"{size(value)} bytes" in cut["truncated"]
        text = json.dumps(value, ensure_ascii=False)
        assert text.startswith(cut["head"])
        assert text.endswith(cut["tail"])

    @pytest.mark.req("guards.output-size")
    def test_lists_objects_and_texts_keep_to_their_caps(self) -> None:
        value = {
            "l": list(range(10)),
            "t": "abcdefghij",
            "o": {str(n): n for n in range(9)},
        }
        cut = ask(value, max_items=4, max_string=6).repaired_output
        assert cut["l"] == [0, 1, 2, "[... 6 of 10 items left out ...]", 9]
        assert cut["t"] == "abcd[... 4 of 10 characters left out ...]ij"
        assert list(cut["o"]) == ["0", "1", "2", "3", "[truncated]"]
        assert cut["o"]["[truncated]"] == "5 of 9 members left out"
        assert ask({"l": [1] * 4, "t": "abcdef"}, max_items=4, max_string=6) is ALLOW
        assert value["l"] == list(range(10))

    @pytest.mark.req("guards.output-size")
    def test_depth_is_capped(self) -> None:
        cut = ask({"a": [{"b": [1, 2]}]}, max_depth=3).repaired_output
        assert cut == {
            "a": [{"b": "[... list with 2 items left out: nested too deep ...]"}]
        }
        assert ask({"a": [{"b": [1, 2]}]}, max_depth=4) is ALLOW
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        found = ask(deep)
        assert "too deep" in json.dumps(found.repaired_output)
        while deep:  # taken apart by hand: freeing it recurses as well
            deep = deep.pop()

    def test_many_small_values_are_cut_as_one(self) -> None:
        found = ask([[n] for n in range(100_000)], max_bytes=1000)
        assert found.repaired_output["head"].startswith("[[0], [1]")
        assert found.repaired_output["tail"].endswith("[99999]]")
        assert size(found.repaired_output) <= 1000

    @pytest.mark.parametrize(
        "value", [None, True, 1.5, 7, "x", [], {}, (1, 2), {1, 2}, object()]
    )
    def test_small_things_of_any_kind_pass(self, value: Any) -> None:
        assert ask(value) is ALLOW

    @pytest.mark.parametrize(
        "value", [{"a": {1, 2}}, {"x": object()}, {(1, 2): "y" * 300}]
    )
    def test_what_is_no_json_is_measured_by_its_words(self, value: Any) -> None:
        big = [value] * 200
        assert size(ask(big, max_bytes=300).repaired_output) <= 300

    def test_what_holds_itself_is_blocked(self) -> None:
        loop: list[Any] = []
        loop.append(loop)
        chain = GuardChain([OutputSizeGuard()])
        assert chain.check_output_all(CALL, WEB, loop).blocked


class TestModes:
    @pytest.mark.parametrize("mode", [TruncationMode.BLOCK, TruncationMode.WARN])
    def test_it_can_block_or_warn_instead(self, mode: TruncationMode) -> None:
        found = ask("x" * 2000, max_bytes=1000, mode=mode)
        assert found.verdict == mode.value
        assert "2000 bytes" in found.reason
        assert ask([1] * 9, max_items=3, mode=mode).verdict == mode.value

    @pytest.mark.req("TX-16", "guards.output-size")
    async def test_the_full_copy_can_be_kept(self) -> None:
        kept: list[tuple[ToolCall, Any]] = []

        def keep(call: ToolCall, value: Any) -> str:
            kept.append((call, value))
            return "store/17"

        async def keep_later(call: ToolCall, value: Any) -> str:
            return keep(call, value)

        text = "x" * 2000
        for function in (keep, keep_later):
            guard = OutputSizeGuard(max_bytes=1000, on_truncated=function)
            chain = GuardChain([guard])
            found = await chain.check_output_all_async(CALL, WEB, text)
            assert "full copy: store/17" in found.value
            assert size(found.value) <= 1000
            await chain.check_output_all_async(CALL, WEB, "small")
        assert kept == [(CALL, text)] * 2

    @pytest.mark.req("guards.fail-closed")
    def test_a_copy_that_cannot_be_kept_blocks(self) -> None:
        guard = OutputSizeGuard(max_bytes=256, on_truncated=lambda _c, _v: 1 / 0)
        assert GuardChain([guard]).check_output_all(CALL, WEB, "x" * 999).blocked

    @pytest.mark.parametrize(
        ("name", "value"),
        [("max_bytes", 255), ("max_depth", 0), ("max_depth", 129), ("max_items", 0),
         ("max_string", 0), ("max_bytes", True), ("mode", "perhaps")],
    )  # fmt: skip
    def test_bad_limits_are_refused(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"{name}|perhaps"):
            OutputSizeGuard(**{name: value})
