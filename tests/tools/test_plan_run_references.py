"""Results of calls as arguments of others."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._frozen import freeze
from executionkit.errors import ErrorCode, ToolProcessorError
from executionkit.testing import FakeClock
from executionkit.tools._plans.references import fill, find_references, part_of
from executionkit.tools.plan_run import ResultOf, ToolPlanResult
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.scheduling import PlanError, ToolCallSpec

RESULT = {"rows": [{"id": 7}, {"id": 8}], "a/b": {"~": 1}, "0": "zero", "n": None}


class Handle:
    """A value that is not JSON."""

    def __init__(self) -> None:
        self.items: list[int] = []


class Stubborn:
    """A value that cannot be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Stubborn:
        raise RuntimeError("no copies")


async def run(*calls: ToolCallSpec, seen: list[Any], **options: Any) -> ToolPlanResult:
    async def give(what: str = "json") -> Any:
        if what == "fail":
            raise RuntimeError("broken")
        if what == "reference":
            return {"$result_of": "x", "path": "/secret"}
        if what == "stubborn":
            return {"value": Stubborn()}
        return RESULT

    async def take(value: Any = None, other: Any = None) -> None:
        seen.append(value)
        if isinstance(value, dict):
            value["changed"] = True

    own = ToolProcessor(create_registry(give, take), clock=FakeClock())
    return await own.execute_plan(calls, **options)


def take(value: Any, *needs: str, name: str = "take") -> ToolCallSpec:
    return ToolCallSpec(name, "take", {"value": value}, depends_on=needs or ("give",))


GIVE = ToolCallSpec("give", "give")


@pytest.mark.req("planrun.result-of")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ResultOf("give", ("rows", 0, "id")), 7),
        (ResultOf("give", ["rows", 1]), {"id": 8}),  # type: ignore[arg-type]
        ({"$result_of": "give", "path": "/rows/1/id"}, 8),
        ({"$result_of": "give", "path": "/a~1b/~0"}, 1),
        ({"$result_of": "give", "path": "/0"}, "zero"),
        (ResultOf("give", (0,)), "zero"),
        ({"$result_of": "give"}, RESULT),
        (ResultOf("give", ("n",)), None),
        ([1, {"deep": (ResultOf("give", ("n",)),)}], [1, {"deep": (None,)}]),
    ],
)
async def test_a_part_of_a_result_becomes_an_argument(
    value: Any, expected: Any
) -> None:
    seen: list[Any] = []
    outcome = await run(GIVE, take(value), seen=seen)
    assert outcome.is_success
    if isinstance(seen[0], dict):
        seen[0].pop("changed")
    assert seen == [expected]


@pytest.mark.req("planrun.result-of")
@pytest.mark.parametrize(
    "path",
    ["/nope", "/rows/2", "/rows/-1", "/rows/00", "/rows/x", "/0/0", "/n/a", "/rows/²"],
)
async def test_a_part_that_is_not_there_is_the_calls_own_error(path: str) -> None:
    seen: list[Any] = []
    value = {"$result_of": "give", "path": path}
    other = ToolCallSpec("other", "take", depends_on=("give",))
    outcome = await run(GIVE, take(value), other, seen=seen)
    result = outcome.results["take"]
    assert result.error_code is ErrorCode.TOOL_ARGUMENT_ERROR
    assert not result.retryable
    assert result.attempts == 0
    assert "'give'" in (result.error or "")
    assert outcome.failed == ("take",)
    assert outcome.succeeded == ("give", "other")
    assert seen == [None]


@pytest.mark.req("planrun.result-of")
async def test_a_tool_that_changes_its_argument_changes_no_result() -> None:
    seen: list[Any] = []
    calls = [take(ResultOf("give"), name=name) for name in ("one", "two")]
    outcome = await run(GIVE, *calls, seen=seen)
    assert outcome.is_success
    assert outcome.results["give"].result == RESULT
    assert "changed" not in RESULT


@pytest.mark.req("planrun.result-of")
def test_values_that_are_no_json_are_copied() -> None:
    handle = Handle()
    part = part_of(ResultOf("give", ("value",)), freeze({"value": [handle]}))
    part[0].items.append(1)
    part.append(2)
    assert handle.items == []


@pytest.mark.req("planrun.result-of")
async def test_a_value_that_cannot_be_copied_is_the_calls_own_error() -> None:
    give = ToolCallSpec("give", "give", {"what": "stubborn"})
    outcome = await run(give, take(ResultOf("give")), seen=[])
    assert outcome.results["take"].error_code is ErrorCode.TOOL_ARGUMENT_ERROR


@pytest.mark.req("planrun.result-of")
async def test_what_a_tool_returns_is_never_read_as_a_reference() -> None:
    seen: list[Any] = []
    give = ToolCallSpec("give", "give", {"what": "reference"})
    outcome = await run(give, take([ResultOf("give")]), seen=seen)
    assert outcome.is_success
    assert seen == [[{"$result_of": "x", "path": "/secret"}]]


@pytest.mark.req("planrun.result-of")
async def test_all_arguments_may_be_one_result() -> None:
    seen: list[Any] = []
    args = {"$result_of": "give", "path": "/rows/0"}
    bad = ToolCallSpec("bad", "take", args | {"path": "/0"}, depends_on=("give",))
    call = ToolCallSpec("all", "take", args, depends_on=("give",))
    outcome = await run(GIVE, call, bad, seen=seen)
    assert outcome.results["all"].error_code is ErrorCode.TOOL_VALIDATION_ERROR
    assert outcome.results["bad"].error_code is ErrorCode.TOOL_ARGUMENT_ERROR


@pytest.mark.req("planrun.result-of", "planrun.continue")
async def test_a_failed_result_cannot_be_used_even_when_the_plan_goes_on() -> None:
    seen: list[Any] = []
    give = ToolCallSpec("give", "give", {"what": "fail"})
    without = ToolCallSpec("without", "take", depends_on=("give",))
    outcome = await run(
        give, take(ResultOf("give")), without, seen=seen, continue_on_error=True
    )
    result = outcome.results["take"]
    assert result.error_code is ErrorCode.TOOL_ARGUMENT_ERROR
    assert "'give', which failed" in (result.error or "")
    assert outcome.succeeded == ("without",)


@pytest.mark.req("planrun.result-of", "planrun.refused")
async def test_a_result_of_a_call_that_is_not_needed_is_refused() -> None:
    seen: list[Any] = []
    with pytest.raises(PlanError, match="depends_on") as caught:
        await run(
            GIVE,
            ToolCallSpec("mid", "take", depends_on=("give",)),
            take({"a": [ResultOf("give")]}, "mid"),
            take({"$result_of": "take"}, "give", name="self"),
            take({"$result_of": "give", "or": 1}, name="odd"),
            take({"$result_of": "give", "path": "x"}, name="no pointer"),
            seen=seen,
        )
    details = caught.value.details
    assert details["missing_dependencies"] == {"take": ["give"], "self": ["take"]}
    assert set(details["bad_references"]) == {"odd", "no pointer"}
    assert seen == []


@pytest.mark.req("planrun.result-of")
@pytest.mark.parametrize(
    ("call_id", "path"),
    [("", ()), (1, ()), ("a", "b"), ("a", (-1,)), ("a", (True,)), ("a", (1.5,))],
)
def test_what_makes_no_sense_is_refused(call_id: Any, path: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        ResultOf(call_id, path)


@pytest.mark.req("planrun.result-of")
@pytest.mark.parametrize(
    "data",
    [
        {},
        {"path": "/a"},
        {"$result_of": "a", "x": 1},
        {"$result_of": "a", "path": "a"},
        {"$result_of": "a", "path": "/~2"},
        {"$result_of": "a", "path": "/~"},
        {"$result_of": "a", "path": 1},
        {"$result_of": 1},
    ],
)
def test_json_that_is_no_reference_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"`|must|may"):
        ResultOf.from_json(data)


paths = st.lists(st.text() | st.integers(0, 99), max_size=4).map(tuple)


@pytest.mark.req("planrun.result-of")
@given(st.text(min_size=1), paths)
def test_a_reference_survives_json_and_pickle(
    call_id: str, path: tuple[str | int, ...]
) -> None:
    reference = ResultOf(call_id, path)
    data = json.loads(json.dumps(reference.to_json()))
    twin = ResultOf.from_json(data)
    assert twin.call_id == call_id
    assert twin.path == tuple(map(str, path))
    assert twin.pointer == reference.pointer
    assert pickle.loads(pickle.dumps(reference)) == reference
    assert hash(pickle.loads(pickle.dumps(reference))) == hash(reference)


jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[Any]:
    found = [(path, value)]
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            found += places(item, (*path, place))
    return found


@pytest.mark.req("planrun.result-of")
@given(jsons)
def test_every_place_of_a_result_can_be_pointed_at(value: Any) -> None:
    result = freeze(value)
    for path, part in places(value):
        assert part_of(ResultOf("a", path), result) == part
        twin = ResultOf.from_json(ResultOf("a", path).to_json())
        assert part_of(twin, result) == part


@pytest.mark.req("planrun.result-of")
@given(jsons, paths)
def test_a_wrong_path_is_only_ever_an_argument_error(
    value: Any, path: tuple[str | int, ...]
) -> None:
    failure: ToolProcessorError | None = None
    try:
        part_of(ResultOf("a", path), freeze(value))
    except ToolProcessorError as exc:
        failure = exc
    if failure is not None:
        where = {"result_of": "a", "path": ResultOf("a", path).pointer}
        assert failure.code is ErrorCode.TOOL_ARGUMENT_ERROR
        assert failure.details == where


@pytest.mark.req("planrun.result-of")
@given(jsons)
def test_arguments_without_references_stay_as_they_are(value: Any) -> None:
    args = freeze({"value": value})
    assert find_references(args) == ()
    assert fill(args, lambda _: None) == args
