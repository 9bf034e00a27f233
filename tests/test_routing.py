"""Routers: which rule takes a prompt, and what runs then."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from executionkit import (
    EvaluatorError,
    LLMProvider,
    MockProvider,
    PatternResult,
    PermanentError,
    Router,
    RouteRule,
    consensus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

BIG, SMALL, OTHER = MockProvider(["big"]), MockProvider(["small"]), MockProvider(["?"])


def rule(verdict: Any, provider: LLMProvider = BIG, name: str = "rule") -> RouteRule:
    def predicate(_prompt: str, _context: Mapping[str, Any]) -> bool:
        if isinstance(verdict, BaseException):
            raise verdict
        return bool(verdict)

    return RouteRule(name, provider, predicate)


def is_long(prompt: str, _context: Mapping[str, Any]) -> bool:
    return len(prompt) > 5


async def long_async(prompt: str, context: Mapping[str, Any]) -> bool:
    await asyncio.sleep(0)
    return is_long(prompt, context)


@pytest.mark.req("routing.select")
class TestSelect:
    def test_the_first_rule_that_matches_wins(self) -> None:
        router = Router(
            rules=[rule(False, OTHER), rule(True, BIG), rule(True, OTHER)],
            fallback=SMALL,
        )
        assert router.select("hi") is BIG

    def test_without_a_match_the_fallback_answers(self) -> None:
        router = Router(rules=[RouteRule("long", BIG, is_long)], fallback=SMALL)
        assert router.select("hi") is SMALL
        assert router.select("hello there") is BIG
        assert Router(rules=[], fallback=SMALL).select("") is SMALL

    def test_rules_after_the_match_are_not_asked(self) -> None:
        router = Router(rules=[rule(True), rule(OSError())], fallback=SMALL)
        assert router.select("hi") is BIG

    def test_predicates_see_a_read_only_context(self) -> None:
        seen: list[Mapping[str, Any]] = []

        def look(_prompt: str, context: Mapping[str, Any]) -> bool:
            seen.append(context)
            return bool(context["tier"] == "gold")

        router = Router(rules=[RouteRule("gold", BIG, look)], fallback=SMALL)
        assert router.select("hi", tier="gold", tags=["x"]) is BIG
        with pytest.raises(TypeError):
            seen[0]["tier"] = "x"  # type: ignore[index]
        with pytest.raises(TypeError):
            seen[0]["tags"].append("y")

    @pytest.mark.req("D-30")
    def test_any_key_of_the_context_may_be_used(self) -> None:
        seen: list[dict[str, Any]] = []

        def look(_prompt: str, context: Mapping[str, Any]) -> bool:
            seen.append(dict(context))
            return False

        router = Router(rules=[RouteRule("r", BIG, look)], fallback=SMALL)
        router.select("hi", self=1, context=2)
        assert seen == [{"self": 1, "context": 2}]
        assert router.select(prompt="hi") is SMALL

    def test_an_error_of_a_predicate_names_its_rule(self) -> None:
        error = KeyError("tier")
        router = Router(rules=[rule(error, name="gold")], fallback=SMALL)
        with pytest.raises(EvaluatorError, match=r"rule 'gold' failed: KeyError") as e:
            router.select("hi")
        assert e.value.__cause__ is error

    def test_an_async_predicate_is_told_apart_and_left_clean(
        self, recwarn: pytest.WarningsRecorder
    ) -> None:
        router = Router(rules=[RouteRule("long", BIG, long_async)], fallback=SMALL)
        with pytest.raises(TypeError, match=r"rule 'long' is async.*router\.match"):
            router.select("hi")
        gc.collect()
        assert not recwarn.list

    @pytest.mark.parametrize(
        "make",
        [
            lambda: RouteRule(1, BIG, is_long),  # type: ignore[arg-type]
            lambda: RouteRule("a", "gpt", is_long),  # type: ignore[arg-type]
            lambda: RouteRule("a", BIG, True),  # type: ignore[arg-type]
            lambda: Router(rules=[is_long], fallback=BIG),  # type: ignore[list-item]
            lambda: Router(rules=[], fallback="gpt"),  # type: ignore[arg-type]
            lambda: Router(rules=[], fallback=BIG).select(3),  # type: ignore[arg-type]
        ],
    )
    def test_what_cannot_work_is_refused(self, make: Any) -> None:
        with pytest.raises(TypeError):
            make()


@pytest.mark.req("routing.async")
class TestMatch:
    async def test_async_predicates_are_awaited(self) -> None:
        rules = [RouteRule("long", BIG, long_async), rule(True, OTHER, "rest")]
        router = Router(rules=rules, fallback=SMALL)
        long, short = await router.match("hello there"), await router.match("hi", {})
        assert long is rules[0]
        assert short is rules[1]
        assert await Router(rules=rules[:1], fallback=SMALL).match("hi") is None
        assert (router.rules, router.fallback) == (tuple(rules), SMALL)

    async def test_their_errors_name_the_rule(self) -> None:
        async def broken(_prompt: str, _context: Mapping[str, Any]) -> bool:
            raise OSError("no line")

        router = Router(rules=[RouteRule("r", BIG, broken)], fallback=SMALL)
        with pytest.raises(EvaluatorError, match="rule 'r' failed: OSError: no line"):
            await router.run(consensus, "hi")


@pytest.mark.req("routing.run")
class TestRun:
    async def test_the_pattern_gets_the_provider_and_its_own_arguments(self) -> None:
        async def pattern(
            provider: LLMProvider, prompt: str, **kwargs: Any
        ) -> PatternResult[Any]:
            return PatternResult([provider is BIG, prompt, kwargs])

        def gold(prompt: str, context: Mapping[str, Any]) -> bool:
            return dict(context) == {"tier": "gold"} and prompt == "hi"

        router = Router(rules=[RouteRule("gold", BIG, gold)], fallback=SMALL)
        result = await router.run(
            pattern, "hi", context={"tier": "gold", "prompt": "other"}, n=3
        )
        assert result.value == [True, "hi", {"n": 3}]
        result = await router.run(pattern, prompt="hi", tier="gold")
        assert result.value == [False, "hi", {"tier": "gold"}]

    async def test_patterns_of_the_library_run(self) -> None:
        router = Router(rules=[RouteRule("long", BIG, long_async)], fallback=SMALL)
        result = await router.run(consensus, "hello there", num_samples=1)
        assert result.value == "big"

    async def test_errors_of_the_pattern_pass(self) -> None:
        down = MockProvider([], exception=PermanentError("no"))
        with pytest.raises(PermanentError):
            await Router(rules=[], fallback=down).run(consensus, "hi")

    async def test_wrong_arguments_are_refused(self) -> None:
        router = Router(rules=[], fallback=SMALL)
        with pytest.raises(TypeError, match="not called"):
            await router.run("consensus", "hi")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="context"):
            await router.run(consensus, "hi", context=[1])  # type: ignore[arg-type]
