"""The rules that count, compare and hide: budget, runaway, schema, effects, secrets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext, execution_scope
from executionkit.engine.schema import compile_schema
from executionkit.errors import (
    ToolBlockedError,
    ToolCircuitOpenError,
    ToolExecutionError,
)
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools.guard_rules import (
    BudgetGuard,
    ExecutionMode,
    RedactMode,
    RunawayGuard,
    SchemaGuard,
    SchemaStrictnessGuard,
    SensitiveDataGuard,
    SideEffectGuard,
    TagGuard,
)
from executionkit.tools.guards import GuardResult, GuardVerdict
from executionkit.tools.middleware import ToolRequest
from executionkit.tools.middleware.guards import GuardLayer
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.types import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
ALLOW = GuardResult.allow()


ODD = "whatever"


def record(
    name: str = "web", schema: Mapping[str, Any] | None = None, **facts: Any
) -> ToolRecord:
    schema = {"type": "object"} if schema is None else schema
    odd = facts.pop("side_effects") if facts.get("side_effects") == ODD else None
    tool = Tool(name, "", schema, lambda **_: None, **facts)
    if (
        odd is not None
    ):  # no `Tool` can be made so; a guard is on its guard all the same
        object.__setattr__(tool, "side_effects", odd)
    return ToolRecord(tool, kind=Kind.SYNC, validator=compile_schema(schema))


def call(name: str = "web", **arguments: Any) -> ToolCall:
    return ToolCall("c", name, arguments)


WEB = record()


class TestBudget:
    @pytest.mark.req("LM-21", "guards.budget")
    @pytest.mark.parametrize(
        ("guard", "runs"),
        [
            (BudgetGuard(max_calls=3), 3),
            (BudgetGuard(max_calls_per_turn=3), 3),
            (BudgetGuard(per_tool={"web": 1}), 1),
            (BudgetGuard(max_cost=3.5), 3),
            (BudgetGuard(max_calls=0), 0),
        ],
    )
    async def test_of_eight_calls_at_once_so_many_run(
        self, guard: BudgetGuard, runs: int
    ) -> None:
        layer = GuardLayer([guard])
        ran = 0

        async def tool(request: ToolRequest) -> None:
            nonlocal ran
            request.attempts += 1
            await asyncio.sleep(0)
            ran += 1

        found = await asyncio.gather(
            *(
                layer(ToolRequest(call(), record(cost=1.0), None), tool)
                for _ in range(8)
            ),
            return_exceptions=True,
        )
        refused = [error for error in found if isinstance(error, ToolBlockedError)]
        assert (ran, len(refused)) == (runs, 8 - runs)
        assert all("limit reached" in str(error) for error in refused)
        assert all(error.details["limit"] is not None for error in refused)

    @pytest.mark.req("guards.budget")
    def test_a_turn_ends_and_a_run_does_not(self) -> None:
        guard = BudgetGuard(max_calls=3, max_calls_per_turn=2)
        verdicts = [guard.check(call(), WEB) is ALLOW for _ in range(3)]
        guard.start_turn()
        verdicts += [guard.check(call(), WEB) is ALLOW for _ in range(2)]
        assert verdicts == [True, True, False, True, False]
        guard.reset()
        assert guard.check(call(), WEB) is ALLOW

    @pytest.mark.req("guards.budget")
    def test_a_tool_is_found_by_full_name_then_bare_name_then_glob(self) -> None:
        guard = BudgetGuard(per_tool={"net.*": 0, "get": 1, "net.get": 2})
        counts = {}
        for name, space in (
            ("get", "net"),
            ("get", "other"),
            ("put", "net"),
            ("x", "y"),
        ):
            tool = record(name, namespace=space)
            allowed = [guard.check(call(name), tool) is ALLOW for _ in range(4)]
            counts[tool.full_name] = sum(allowed)
        assert counts == {"net.get": 2, "other.get": 1, "net.put": 0, "y.x": 4}

    @pytest.mark.req("guards.budget")
    def test_runs_do_not_see_each_other_and_the_oldest_is_forgotten(self) -> None:
        guard = BudgetGuard(max_calls=1, max_runs=2)

        def ask(run: str | None) -> bool:
            if run is None:
                return guard.check(call(), WEB) is ALLOW
            with execution_scope(ExecutionContext(request_id=run)):
                return guard.check(call(), WEB) is ALLOW

        assert [ask(run) for run in ("a", "b", "a", "b")] == [True, True, False, False]
        assert ask(None)  # forgets "a", which was used longest ago
        assert [ask(run) for run in ("b", "a")] == [False, True]
        assert len(guard._runs) == 2

    @pytest.mark.req("guards.budget")
    def test_the_budget_of_the_context_limits_the_cost(self) -> None:
        guard = BudgetGuard(max_cost=100.0)
        dear, free = record(cost=0.1), record("free")
        with execution_scope(ExecutionContext(budget=0.3)):
            assert [guard.check(call(), dear) is ALLOW for _ in range(4)] == [
                True, True, True, False,
            ]  # fmt: skip
            assert guard.check(call(), free) is ALLOW
            assert guard.usage["calls"] == 4
            blind = BudgetGuard(use_context_budget=False)
            assert all(blind.check(call(), dear) is ALLOW for _ in range(9))
        with execution_scope(ExecutionContext(budget=0.0)):
            assert guard.check(call(), dear).verdict is GuardVerdict.BLOCK

    @pytest.mark.req("guards.budget")
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.sampled_from(["call", "refund", "peek"]), max_size=60),
        st.integers(0, 8),
    )
    def test_admitted_minus_refunded_is_never_over_the_limit(
        self, events: list[str], limit: int
    ) -> None:
        guard = BudgetGuard(max_calls=limit, per_tool={"web": limit}, max_cost=limit)
        tool = record(cost=1.0)
        held = 0
        for event in events:
            if event == "call":
                admitted = guard.check(call(), tool) is ALLOW
                assert admitted is (held < limit)
                held += admitted
            elif event == "peek":
                assert (guard.peek(call(), tool) is ALLOW) is (held < limit)
            elif held:
                guard.refund(call(), tool)
                held -= 1
        usage = guard.usage
        assert (usage["calls"], usage["cost"]) == (held, held)
        assert usage["tools"].get("web", 0) == held

    @pytest.mark.parametrize(
        "options",
        [
            {"max_calls": -1},
            {"max_calls": True},
            {"max_calls_per_turn": 1.5},
            {"per_tool": {"x": -1}},
            {"max_cost": float("nan")},
            {"max_cost": -1.0},
            {"max_runs": 0},
        ],
    )
    def test_bad_limits_are_refused_by_name(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            BudgetGuard(**options)


class TestRunaway:
    def play(
        self, guard: RunawayGuard, steps: list[tuple[dict[str, Any], Any]]
    ) -> list[int]:
        """The places of the steps that were blocked; those that pass give their result."""
        blocked = []
        for at, (arguments, result) in enumerate(steps):
            one = call(**arguments)
            if guard.check(one, WEB) is not ALLOW:
                blocked.append(at)
            elif isinstance(result, Exception):
                guard.check_error(one, WEB, result)
            else:
                guard.check_output(one, WEB, result)
        return blocked

    @pytest.mark.req("TX-18", "guards.runaway")
    def test_the_same_call_with_the_same_result_is_stopped(self) -> None:
        same = {"cmd": "x", "o": {"a": 1, "b": 2}}
        swapped = {"o": {"b": 2, "a": 1}, "cmd": "x"}
        steps: list[Any] = [
            (same, ""),
            (swapped, ""),
            (same, ""),
            (swapped, ""),
            (same, ""),
        ]
        assert self.play(RunawayGuard(), steps) == [3, 4]
        assert self.play(RunawayGuard(max_repeats=1), steps) == [1, 2, 3, 4]

    @pytest.mark.req("TX-18", "guards.runaway")
    def test_polling_with_changing_results_goes_on(self) -> None:
        steps: list[Any] = [({"job": 1}, {"done": n}) for n in range(50)]
        assert self.play(RunawayGuard(), steps) == []
        twice: list[Any] = [({"job": 1}, {"done": n // 2}) for n in range(50)]
        assert self.play(RunawayGuard(), twice) == []

    @pytest.mark.req("TX-18", "guards.runaway")
    @pytest.mark.parametrize("length", [2, 3, 10])
    def test_cycles_are_found(self, length: int) -> None:
        steps: list[Any] = [({"n": at % length}, "r") for at in range(length * 10)]
        assert self.play(RunawayGuard(), steps)[0] == length * 3
        parallel: list[Any] = [({"n": n}, "r") for n in (0, 1, 1, 0, 0, 1, 1, 0)]
        assert self.play(RunawayGuard(), parallel) == [6, 7]

    @pytest.mark.req("guards.runaway")
    def test_a_check_repeated_between_new_steps_goes_on(self) -> None:
        steps: list[Any] = []
        for n in range(20):
            steps += [({"run": "tests"}, "1 failed"), ({"edit": n}, "ok")]
        assert self.play(RunawayGuard(), steps) == []

    @pytest.mark.req("guards.runaway")
    def test_equal_errors_count_and_passing_ones_do_not(self) -> None:
        bad: list[Any] = [({}, ToolExecutionError("web", ValueError("x")))] * 5
        assert self.play(RunawayGuard(), bad) == [3, 4]
        busy: list[Any] = [({}, ToolCircuitOpenError("web"))] * 5
        assert self.play(RunawayGuard(), busy) == []
        own: list[Any] = [({}, KeyError("k"))] * 5
        assert self.play(RunawayGuard(), own) == [3, 4]

    @pytest.mark.req("guards.runaway")
    async def test_the_layer_tells_it_of_failures(self) -> None:
        layer = GuardLayer([RunawayGuard(max_repeats=2)])

        async def tool(request: ToolRequest) -> Any:
            request.attempts += 1
            raise ToolExecutionError("web", ValueError("x"))

        kinds = []
        for _ in range(3):
            with pytest.raises(Exception, match="web") as caught:
                await layer(ToolRequest(call(), WEB, None), tool)
            kinds.append(caught.type)
        assert kinds == [ToolExecutionError, ToolExecutionError, ToolBlockedError]

    @pytest.mark.req("guards.runaway")
    def test_state_is_per_run_and_bounded(self) -> None:
        guard = RunawayGuard(max_repeats=1, max_calls=4, max_runs=3)
        for n in range(10):
            with execution_scope(ExecutionContext(request_id=f"r{n}")):
                assert self.play(guard, [({"n": m}, "r") for m in range(9)]) == []
        assert len(guard._runs) == 3
        assert all(len(known) == 4 for known in guard._runs._kept.values())
        assert self.play(guard, [({}, "x")]) == []
        guard.reset()
        assert self.play(guard, [({}, "x"), ({}, "x")]) == [1]

    @pytest.mark.parametrize(
        "value",
        [object(), {1: 2, "a": 3}, {"s": {1, 2}}, float("nan"), "\ud800", b"x", [None]],
    )
    def test_any_result_can_be_compared(self, value: Any) -> None:
        assert self.play(RunawayGuard(), [({}, value)] * 4) == [3]

    def test_a_cycle_in_a_value_does_no_harm(self) -> None:
        loop: list[Any] = []
        loop.append(loop)
        assert self.play(RunawayGuard(), [({}, loop)] * 4) == [3]

    @pytest.mark.parametrize("name", ["max_repeats", "max_calls", "max_runs"])
    def test_bad_numbers_are_refused_by_name(self, name: str) -> None:
        options: dict[str, Any] = {name: 0}
        with pytest.raises(ValueError, match=name):
            RunawayGuard(**options)


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


class TestSchema:
    @pytest.mark.req("guards.schema")
    def test_unknown_arguments_are_refused_with_the_closest_name(self) -> None:
        guard = SchemaGuard()
        tool = record(schema=CITY)
        assert tool.validator.validate({"city": "x", "dayz": 2}) == []
        assert guard.check(call(city="x", days=2), tool) is ALLOW
        assert guard.check(call(), tool) is ALLOW
        found = guard.check(call(city="x", dayz=2), tool)
        assert found.verdict is GuardVerdict.BLOCK
        assert "`dayz` (did you mean `days`?)" in found.reason
        assert "`city`, `days`" in found.reason
        assert found.details["unknown"] == ["dayz"]
        assert SchemaGuard(allow_unknown_for=["web"]).check(call(z=1), tool) is ALLOW

    @pytest.mark.req("guards.schema")
    @pytest.mark.parametrize(
        "schema",
        [
            {"allOf": [{"properties": {"a": {}}}]},
            {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {}}}}},
            {
                "anyOf": [
                    {"properties": {"b": {}}},
                    {"oneOf": [{"properties": {"a": {}}}]},
                ]
            },
            {"if": {}, "then": {"properties": {"a": {}}}},
            {"dependentSchemas": {"b": {"properties": {"a": {}}}}},
            {
                "$ref": "#/$defs/x",
                "$defs": {"x": {"$ref": "#/$defs/x", "properties": {"a": {}}}},
            },
        ],
    )
    def test_names_in_parts_of_the_schema_count(self, schema: dict[str, Any]) -> None:
        tool = Tool("web", "", schema, lambda **_: None)
        made = ToolRecord(tool, kind=Kind.SYNC, validator=WEB.validator)
        assert SchemaGuard().check(call(a=1), made) is ALLOW
        assert SchemaGuard().check(call(zzz=1), made).verdict is GuardVerdict.BLOCK

    @pytest.mark.req("guards.schema")
    @pytest.mark.parametrize(
        ("schema", "passes"),
        [
            ({}, False),
            ({"additionalProperties": True}, True),
            ({"additionalProperties": {"type": "integer"}}, True),
            ({"additionalProperties": False}, False),
            ({"properties": {"a": {}}, "additionalProperties": True}, False),
            ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, True),
        ],
    )
    def test_what_is_open_on_purpose_stays_open(
        self, schema: dict[str, Any], passes: bool
    ) -> None:
        assert (
            SchemaGuard().check(call(x=1), record(schema=schema)) is ALLOW
        ) is passes

    @pytest.mark.req("guards.schema")
    def test_over_encoded_fields_are_repaired_on_request(self) -> None:
        tool = record(schema=CITY)
        wrong = call(city="x", days="3")
        assert SchemaGuard().check(wrong, tool) is ALLOW
        found = SchemaGuard(coerce=True).check(wrong, tool)
        assert found.verdict is GuardVerdict.REPAIR
        assert found.repaired_arguments == {"city": "x", "days": 3}
        assert "days" in found.reason
        assert SchemaGuard(coerce=True).check(call(city="x", days=3), tool) is ALLOW
        hopeless = call(city="x", days="soon")
        assert SchemaGuard(coerce=True).check(hopeless, tool) is ALLOW
        for guard in (
            SchemaGuard(validate=True),
            SchemaGuard(coerce=True, validate=True),
        ):
            assert "days" in guard.check(hopeless, tool).reason
            assert guard.check(hopeless, tool).verdict is GuardVerdict.BLOCK

    def test_options_and_names(self) -> None:
        assert SchemaStrictnessGuard is SchemaGuard
        with pytest.raises(ValueError, match="allow_unknown_for"):
            SchemaGuard(allow_unknown_for="web")


CLASSES = ("none", "read", "write", "destructive", "unknown", ODD)


class TestSideEffects:
    def allowed(self, guard: SideEffectGuard) -> str:
        """The first letters of the classes that pass."""
        return "".join(
            kind[0]
            for kind in CLASSES
            if guard.check(call(), record(side_effects=kind)) is ALLOW
        )

    @pytest.mark.req("guards.side-effects")
    @pytest.mark.parametrize(
        ("options", "passes"),
        [
            ({}, "nrw"),
            ({"environment": "staging"}, "nrwuw"),
            ({"environment": "development"}, "nrwduw"),
            ({"environment": "development", "mode": "read_only"}, "nr"),
            ({"environment": "development", "mode": "dry_run"}, "n"),
            ({"policy": {"production": ["none"]}}, "n"),
            ({"policy": {"staging": ["none"]}}, "nrw"),
            ({"policy": {"production": ["destructive"]}, "mode": "read_only"}, ""),
            ({"allowed_tools": ["web"]}, "nrwduw"),
            ({"allowed_tools": ["web"], "mode": "read_only"}, "nr"),
            ({"environment": "development", "blocked_tools": ["web"]}, ""),
            ({"allowed_tools": ["web"], "blocked_tools": ["web"]}, ""),
        ],
    )
    def test_classes_by_environment_and_mode(
        self, options: dict[str, Any], passes: str
    ) -> None:
        assert self.allowed(SideEffectGuard(**options)) == passes

    @pytest.mark.req("guards.side-effects")
    def test_a_capability_token_comes_from_the_context_alone(self) -> None:
        guard = SideEffectGuard(capability_token="t0ken\u00e9")
        wipe = record(side_effects="destructive")
        assert guard.check(call(capability_token="t0ken\u00e9"), wipe) is not ALLOW
        for token, passes in (
            ("t0ken\u00e9", True),
            ("t0ken", False),
            (None, False),
            (1, False),
        ):
            context = ExecutionContext(metadata={"capability_token": token})
            with execution_scope(context):
                found = guard.check(call(), wipe)
                assert (found is ALLOW) is passes
                assert "t0ken" not in f"{found.reason}{found.details}"
                none = SideEffectGuard().check(call(), wipe)
                read_only = SideEffectGuard(
                    capability_token="t0ken\u00e9", mode=ExecutionMode.READ_ONLY
                )
                assert none is not ALLOW
                assert read_only.check(call(), wipe) is not ALLOW

    def test_the_reason_says_what_and_where(self) -> None:
        found = SideEffectGuard().check(call(), record(side_effects=ODD))
        assert "'unknown'" in found.reason
        assert "production" in found.reason
        assert found.details["side_effects"] == "unknown"

    @pytest.mark.parametrize(
        "options",
        [
            {"environment": "moon"},
            {"mode": "fast"},
            {"policy": {"moon": []}},
            {"policy": {"production": ["explosive"]}},
            {"capability_token": ""},
            {"allowed_tools": "web"},
            {"blocked_tools": "web"},
        ],
    )
    def test_bad_options_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"moon|fast|explosive|token|_tools"):
            SideEffectGuard(**options)


class TestSensitive:
    DATA: dict[str, Any] = {  # noqa: RUF012 - never changed
        "api_key": KEY,
        "headers": {"Authorization": "Bearer abcdef123456"},
        "meta": [{"token": "abcdefgh12345678"}],
        "text": f"use {KEY} now",
        "max_tokens": 5,
    }

    @pytest.mark.req("guards.sensitive", "OB-05")
    def test_arguments_are_hidden_blocked_or_told_of(self) -> None:
        one = call(**self.DATA)
        assert SensitiveDataGuard().check(one, WEB) is ALLOW
        found = SensitiveDataGuard(arguments=RedactMode.REDACT).check(one, WEB)
        assert found.repaired_arguments is not None
        shown = str(dict(found.repaired_arguments))
        for secret in (KEY, "abcdef123456", "abcdefgh12345678"):
            assert secret not in shown
        assert found.repaired_arguments["max_tokens"] == 5
        for mode, verdict in (("block", "block"), ("warn", "warn")):
            guard = SensitiveDataGuard(arguments=RedactMode(mode))
            found = guard.check(one, WEB)
            assert found.verdict == verdict
            assert "`meta[0].token`" in found.reason
            assert "`headers.Authorization`" in found.reason
            assert "`text`" in found.reason
            assert "max_tokens" not in found.reason
            assert KEY not in f"{found.reason}{found.details}"
            assert guard.check(call(q="hello", n=[1, {"a": None}]), WEB) is ALLOW

    @pytest.mark.req("guards.sensitive", "OB-05")
    @pytest.mark.parametrize(
        "value",
        [
            f"key: {KEY}",
            {"a": [KEY]},
            [{"password": "hunter2hunter2"}],
            ({"api_key": KEY},),
            f"key: {KEY}".encode(),
            {KEY: 1},
        ],
    )
    def test_outputs_are_hidden_unless_told_otherwise(self, value: Any) -> None:
        found = SensitiveDataGuard().check_output(call(), WEB, value)
        assert found.verdict is GuardVerdict.REPAIR
        assert "REDACTED" in str(found.repaired_output)
        assert KEY not in str(found.repaired_output)
        assert "hunter2" not in str(found.repaired_output)
        block = SensitiveDataGuard(outputs=RedactMode.BLOCK)
        said = block.check_output(call(), WEB, value)
        assert said.verdict is GuardVerdict.BLOCK
        assert KEY not in said.reason
        assert "hunter2" not in said.reason
        assert (
            SensitiveDataGuard(outputs=RedactMode.OFF).check_output(call(), WEB, value)
            is ALLOW
        )

    @pytest.mark.req("guards.sensitive")
    def test_known_values_are_found_in_any_place(self) -> None:
        guard = SensitiveDataGuard(secrets=["correct horse"])
        found = guard.check_output(call(), WEB, ["the correct horse is here"])
        assert found.repaired_output == ["the [REDACTED] is here"]

    @pytest.mark.req("guards.sensitive")
    @pytest.mark.parametrize(
        "value",
        [None, 1, "plain words", {"a": (1, 2)}, [object()], {1, 2}, b"abc", WEB],
    )
    def test_what_has_no_secret_stays_the_same(self, value: Any) -> None:
        guard = SensitiveDataGuard(outputs=RedactMode.BLOCK)
        assert guard.check_output(call(), WEB, value) is ALLOW

    @pytest.mark.req("guards.sensitive")
    def test_what_is_too_deep_to_be_looked_through_counts_as_secret(self) -> None:
        deep: Any = "x"
        for _ in range(60):
            deep = [deep]
        guard = SensitiveDataGuard(outputs=RedactMode.BLOCK)
        found = guard.check_output(call(), WEB, deep)
        assert found.verdict is GuardVerdict.BLOCK
        assert "too deep" in found.reason

    def test_bad_modes_are_refused(self) -> None:
        with pytest.raises(ValueError, match="maybe"):
            SensitiveDataGuard(arguments="maybe")  # type: ignore[arg-type]


@pytest.mark.req("guards.tags")
async def test_tools_are_let_through_by_their_tags() -> None:
    async def work() -> str:
        return "done"

    registry = create_registry()
    registry.add(work, "report", tags={"safe", "slow"})
    registry.add(work, "delete", tags={"safe", "admin"})
    registry.add(work, "plain")
    guard = TagGuard(allow=["safe"], deny=["admin"])
    processor = ToolProcessor(registry, guards=[guard])
    calls = [ToolCall(None, name) for name in ("report", "delete", "plain")]
    results = await processor.execute(calls, return_order="submission")
    assert [result.error_code for result in results] == [
        None,
        "TOOL_BLOCKED",
        "TOOL_BLOCKED",
    ]
    assert "admin" in (results[1].error or "")
    assert "safe" in (results[2].error or "")
    with pytest.raises(TypeError, match="put it in a list"):
        TagGuard(allow="safe")
