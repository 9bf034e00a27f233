"""What a caller hands in by mistake is refused at once, with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executionkit import MockProvider, RetryConfig, TokenUsage
from executionkit._arguments import (
    check_budget,
    check_callable,
    check_prompt,
    check_provider,
    check_retry,
    check_trace,
    shown,
)

pytestmark = pytest.mark.req("arguments.up-front")


def _nothing(*_args: Any) -> None:
    """Stand for any callback."""


def test_what_fits_passes() -> None:
    check_callable("evaluator", _nothing)
    check_budget("max_cost", None)
    check_budget("max_cost", TokenUsage(llm_calls=3))
    check_retry("retry", None)
    check_retry("retry", RetryConfig())
    check_provider(MockProvider())
    check_prompt("prompt", "")
    check_trace(None)
    check_trace(_nothing)


def test_a_refusal_names_parameter_value_and_remedy() -> None:
    with pytest.raises(TypeError) as caught:
        check_callable("evaluator", 3, hint="pass a function `(text, provider)`")
    assert str(caught.value) == (
        "`evaluator` must be callable, got 3 (int); pass a function `(text, provider)`"
    )


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (5, "`TokenUsage(llm_calls=5)`"),
        (True, "`TokenUsage(llm_calls=...)`"),
        ({"llm_calls": 5}, "`TokenUsage(**...)`"),
        ("5", "TokenUsage"),
    ],
)
def test_a_budget_is_a_token_usage(value: object, remedy: str) -> None:
    with pytest.raises(TypeError, match="`max_cost` must be a TokenUsage") as caught:
        check_budget("max_cost", value)
    assert remedy in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [(3, "`RetryConfig(max_retries=3)`"), (True, "RetryConfig"), ({}, "RetryConfig")],
)
def test_a_retry_setting_is_a_retry_config(value: object, remedy: str) -> None:
    with pytest.raises(TypeError, match="`retry` must be a RetryConfig") as caught:
        check_retry("retry", value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (None, "got None; for example `Provider(base_url, model)`"),
        ("gpt-4", "'gpt-4' (str)"),
        (MockProvider, "pass an object: `MockProvider(...)`"),
    ],
)
def test_a_provider_is_an_object_that_completes(value: object, remedy: str) -> None:
    with pytest.raises(TypeError, match="`provider` must be a provider") as caught:
        check_provider(value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, ["a"], b"a", []])
def test_a_prompt_is_a_text(value: object) -> None:
    with pytest.raises(TypeError, match="`prompt` must be a str") as caught:
        check_prompt("prompt", value)
    assert "react_loop" not in str(caught.value)


def test_a_list_of_messages_is_sent_to_the_place_that_takes_one() -> None:
    with pytest.raises(TypeError, match="messages="):
        check_prompt("prompt", [{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("value", ["file.jsonl", Path("file.jsonl")])
def test_a_path_is_no_trace_callback(value: object) -> None:
    with pytest.raises(TypeError, match=r"`JsonlTraceSink\(path\)`"):
        check_trace(value)


def test_anything_else_is_no_trace_callback_either() -> None:
    with pytest.raises(TypeError, match="`trace` must be callable"):
        check_trace(3)


def test_a_value_is_shown_short_and_without_secrets() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert len(shown("x" * 1000)) == 80
    assert shown(Rude()) == "<Rude, whose repr raised RuntimeError>"
    assert "abcdef0123456789" not in shown({"api_key": "sk-abcdef0123456789abcdef"})
