"""Settings from an environment: read exactly, refused clearly, and in effect."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from inspect import signature
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.backends.redis import RedisLimiter
from executionkit.calls import ToolCall
from executionkit.engine.breaker import BreakerConfig
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.engine.retry import RetryConfig
from executionkit.testing import FakeClock
from executionkit.tools._options import ProcessorOptions
from executionkit.tools.config import ProcessorConfig
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

PREFIX = "EXECUTIONKIT_"


def config(**variables: str) -> ProcessorConfig:
    return ProcessorConfig.from_env(
        {PREFIX + name.upper(): text for name, text in variables.items()}
    )


def options(**variables: str) -> ProcessorOptions:
    return config(**variables).create_processor(create_registry()).options


# Variable, text, and where its value stands in the options of the built processor.
EFFECTS: list[tuple[str, str, str, Any]] = [
    ("default_timeout", "2.5", "timeout", 2.5),
    ("default_timeout", "none", "timeout", None),
    ("default_timeout", "None", "timeout", None),
    ("max_concurrency", "7", "max_concurrency", 7),
    ("enable_caching", "true", "cache.ttl", 300.0),
    ("enable_caching", "false", "cache", None),
    ("cache_ttl", "5", "cache.ttl", 5.0),
    ("cache_ttl", "none", "cache.ttl", None),
    ("enable_rate_limiting", "1", "rate_limit.global_limit", None),
    ("global_rate_limit", "100", "rate_limit.global_limit", 100),
    (
        "tool_rate_limits",
        "name=10/60, other=5/1",
        "rate_limit.tool_limits",
        {"name": (10, 60.0), "other": (5, 1.0)},
    ),
    ("enable_retries", "yes", "retry.max_retries", 3),
    ("enable_retries", "off", "retry", None),
    ("max_retries", "0", "retry.max_retries", 0),
    ("max_retries", "9", "retry.max_retries", 9),
    ("retry_base_delay", "0", "retry.base_delay", 0.0),
    ("retry_base_delay", "0.1", "retry.base_delay", 0.1),
    ("retry_max_delay", "3", "retry.max_delay", 3.0),
    ("enable_circuit_breaker", "on", "breaker.default.failure_threshold", 5),
    ("circuit_breaker_threshold", "2", "breaker.default.failure_threshold", 2),
    ("circuit_breaker_timeout", "0", "breaker.default.reset_timeout", 0.0),
    ("circuit_breaker_success_threshold", "4", "breaker.default.success_threshold", 4),
    (
        "circuit_breaker_half_open_max_calls",
        "3",
        "breaker.default.half_open_max_calls",
        3,
    ),
    ("circuit_breaker_failure_window", "9", "breaker.default.failure_window", 9.0),
    ("circuit_breaker_failure_window", "none", "breaker.default.failure_window", None),
    ("enable_bulkhead", "TRUE", "bulkhead.default_limit", 10),
    ("bulkhead_default_limit", "4", "bulkhead.default_limit", 4),
    ("bulkhead_tool_limits", "a=1,b.c=2", "bulkhead.tool_limits", {"a": 1, "b.c": 2}),
    ("bulkhead_patterns", "db.*=3", "bulkhead.patterns", {"db.*": 3}),
    ("bulkhead_namespace_limits", "web=2", "bulkhead.namespace_limits", {"web": 2}),
    ("bulkhead_global_limit", "50", "bulkhead.global_limit", 50),
    ("bulkhead_acquisition_timeout", "0", "bulkhead.acquisition_timeout", 0.0),
    ("bulkhead_max_queue_depth", "0", "bulkhead.max_queue_depth", 0),
]


@pytest.mark.req("config.effect")
@pytest.mark.parametrize(("name", "text", "place", "value"), EFFECTS)
def test_every_variable_reaches_the_processor(
    name: str, text: str, place: str, value: Any
) -> None:
    found: Any = options(**{name: text})
    for part in place.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value) or isinstance(value, dict)


@pytest.mark.req("config.effect")
def test_every_field_has_a_test_of_its_effect() -> None:
    elsewhere = {
        "parser_plugins",
        "tool_timeouts",
        "tool_max_retries",
        "show_arguments",
        "state_url",
        "on_state_error",
    }
    tested = {name for name, *_ in EFFECTS}
    assert {item.name for item in fields(ProcessorConfig)} == tested | elsewhere


@pytest.mark.req("config.effect")
def test_policies_of_tools_reach_the_processor() -> None:
    policies = options(
        tool_timeouts="slow=2.5,*=none", tool_max_retries="slow=0"
    ).policies
    assert (policies["slow"].timeout, policies["slow"].max_retries) == (2.5, 0)
    assert (policies["*"].timeout, policies["*"].max_retries) == (math.inf, None)


@pytest.mark.req("config.effect")
def test_parsers_and_shown_arguments_reach_the_processor() -> None:
    made = config(parser_plugins="JsonToolPlugin").create_processor(create_registry())
    everything = ToolProcessor(create_registry())
    assert 0 < len(made.parsers) < len(everything.parsers)
    assert config(show_arguments="on").to_processor_kwargs()["show_arguments"] is True


@pytest.mark.req("config.effect", "redis.secrets")
def test_shared_state_is_opened_by_its_address_which_is_not_shown() -> None:
    url = "redis://user:s3cret@host:7000/1"
    made = config(state_url=url, on_state_error="Closed", global_rate_limit="5")
    assert made.uses_redis()
    kwargs = made.to_processor_kwargs()
    assert kwargs["state"].address == "redis://host:7000/1"
    limits = made.create_processor(create_registry()).options.rate_limit
    assert limits is not None
    assert isinstance(limits.backend, RedisLimiter)
    assert limits.on_error == "closed"
    assert "s3cret" not in f"{made!r} {kwargs}"
    assert not config(state_url="memory://").uses_redis()
    assert config(state_url="none").to_processor_kwargs()["state"] is None
    for wrong in ("redis://u:s3cret@h:port", "ftp://u:s3cret@h"):
        with pytest.raises(ValueError, match="EXECUTIONKIT_STATE_URL must be") as bad:
            config(state_url=wrong)
        assert "s3cret" not in str(bad.value)
    with pytest.raises(ValueError, match="must be one of local"):
        ProcessorConfig(on_state_error="no")


@pytest.mark.req("config.effect")
def test_a_processor_without_variables_is_the_processor_without_arguments() -> None:
    assert options() == ToolProcessor(create_registry()).options


@pytest.mark.req("config.effect")
def test_the_arguments_are_those_of_the_processor() -> None:
    kwargs = ProcessorConfig().to_processor_kwargs()
    assert set(kwargs) <= set(signature(ToolProcessor.__init__).parameters)


@pytest.mark.req("config.effect")
def test_registry_and_strategy_are_handed_on() -> None:
    registry = ProcessorConfig().create_registry()
    strategy = InProcessStrategy(registry)
    made = ProcessorConfig().create_processor(registry, strategy)
    assert made.registry is registry
    assert made.strategy is strategy


@pytest.mark.req("config.effect")
async def test_zero_retries_run_a_failing_tool_once() -> None:
    calls: list[int] = []

    async def broken() -> None:
        calls.append(1)
        raise ConnectionError

    with FakeClock(auto=True).installed():
        for text, expected in (("0", 1), ("2", 3)):
            calls.clear()
            made = config(max_retries=text).create_processor(create_registry(broken))
            await made.process([ToolCall("a", "broken")])
            assert len(calls) == expected


@pytest.mark.req("config.env")
@pytest.mark.parametrize("word", ["true", "1", "yes", "on", "True", "YES", " On "])
def test_words_that_mean_yes(word: str) -> None:
    assert config(enable_caching=word).enable_caching is True


@pytest.mark.req("config.env")
@pytest.mark.parametrize("word", ["false", "0", "no", "off", "False", "NO", " oFF "])
def test_words_that_mean_no_win_over_settings_of_the_layer(word: str) -> None:
    made = config(enable_caching=word, cache_ttl="9")
    assert made.enable_caching is False
    assert made.cache_ttl == 9


@pytest.mark.req("config.env")
def test_an_empty_variable_is_not_set() -> None:
    names = [item.name for item in fields(ProcessorConfig)]
    assert config(**dict.fromkeys(names, "")) == ProcessorConfig()
    assert config(**dict.fromkeys(names, "  ")) == ProcessorConfig()


@pytest.mark.req("config.env")
def test_a_setting_of_a_layer_turns_it_on() -> None:
    assert config(max_retries="3").enable_retries is True  # its default, yet written
    assert config().enable_retries is False
    assert ProcessorConfig(max_retries=5).enable_retries is True
    assert ProcessorConfig(max_retries=5, enable_retries=False).enable_retries is False


@pytest.mark.req("config.env")
def test_the_environment_of_the_process_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EXECUTIONKIT_MAX_RETRIES", "4")
    monkeypatch.setenv("MYAPP_MAX_RETRIES", "5")
    assert ProcessorConfig.from_env().max_retries == 4
    assert ProcessorConfig.from_env(prefix="MYAPP_").max_retries == 5


REFUSED: list[tuple[str, str]] = [
    ("default_timeout", "0"),
    ("default_timeout", "-1"),
    ("default_timeout", "nan"),
    ("default_timeout", "inf"),
    ("default_timeout", "ten"),
    ("max_concurrency", "0"),
    ("max_concurrency", "1.5"),
    ("enable_caching", "maybe"),
    ("enable_caching", "2"),
    ("enable_caching", "none"),
    ("cache_ttl", "0"),
    ("global_rate_limit", "0"),
    ("tool_rate_limits", "name=10"),
    ("tool_rate_limits", "name"),
    ("tool_rate_limits", "=10/60"),
    ("tool_rate_limits", "name=0/60"),
    ("tool_rate_limits", "name=10/0"),
    ("tool_rate_limits", "a=1/1,a=2/2"),
    ("max_retries", "-1"),
    ("max_retries", "none"),
    ("retry_base_delay", "-0.1"),
    ("retry_max_delay", "none"),
    ("circuit_breaker_threshold", "0"),
    ("circuit_breaker_timeout", "-1"),
    ("circuit_breaker_failure_window", "0"),
    ("bulkhead_default_limit", "0"),
    ("bulkhead_tool_limits", "a=0"),
    ("bulkhead_max_queue_depth", "-1"),
    ("bulkhead_acquisition_timeout", "-1"),
    ("tool_timeouts", "a=0"),
    ("tool_max_retries", "a=-1"),
    ("show_arguments", "yep"),
    ("on_state_error", "ignore"),
]


@pytest.mark.req("config.refused")
@pytest.mark.req("T-42")
@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_a_value_that_cannot_be_meant_names_variable_value_and_remedy(
    name: str, text: str
) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        config(**{name: text})
    assert str(caught.value).startswith(PREFIX + name.upper() + " must be ")
    assert f"got {text!r}" in str(caught.value)


@pytest.mark.req("config.refused")
def test_values_in_code_are_checked_too() -> None:
    refused: list[dict[str, Any]] = [
        {"max_retries": -1},
        {"cache_ttl": 0, "enable_caching": True},
        {"bulkhead_default_limit": 0},
        {"circuit_breaker_threshold": 0},
        {"tool_timeouts": {"a": 0}},
    ]
    for wrong in refused:
        with pytest.raises(ValueError, match="must be"):
            ProcessorConfig(**wrong).create_processor(create_registry())


@pytest.mark.req("config.strict")
def test_a_misspelt_variable_is_named_with_what_it_is_like() -> None:
    environ = {"EXECUTIONKIT_MAX_RETRYS": "3", "EXECUTIONKIT_QQQ": "1", "PATH": "/bin"}
    with pytest.raises(ValueError, match="unknown variables") as caught:
        ProcessorConfig.from_env(environ, strict=True)
    said = str(caught.value)
    assert "EXECUTIONKIT_MAX_RETRYS (did you mean EXECUTIONKIT_MAX_RETRIES" in said
    assert "EXECUTIONKIT_QQQ;" in said.replace(" correct", "")
    assert "PATH" not in said
    assert ProcessorConfig.from_env(environ) == ProcessorConfig()


@pytest.mark.req("config.strict")
def test_strict_reading_takes_all_that_is_known() -> None:
    environ = {PREFIX + item.name.upper(): "" for item in fields(ProcessorConfig)}
    assert ProcessorConfig.from_env(environ, strict=True) == ProcessorConfig()


@pytest.mark.req("config.strict")
@pytest.mark.parametrize("name", ["BASE_URL", "MODEL", "API_KEY", "HTTP"])
def test_strict_reading_leaves_what_providers_read(name: str) -> None:
    environ = {PREFIX + name: "x"}
    assert ProcessorConfig.from_env(environ, strict=True) == ProcessorConfig()
    with pytest.raises(ValueError, match="unknown variables"):
        ProcessorConfig.from_env({f"APP_{name}": "x"}, "APP_", strict=True)


@pytest.mark.req("config.value")
def test_a_config_is_a_value() -> None:
    made = config(tool_rate_limits="a=1/2", tool_timeouts="a=1", max_retries="0")
    assert pickle.loads(pickle.dumps(made)) == made
    assert replace(made, max_retries=1) != made
    with pytest.raises((FrozenInstanceError, AttributeError)):
        made.max_retries = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        made.tool_timeouts["b"] = 1.0  # type: ignore[index]


_NAMES = st.from_regex(r"[a-z_*?=.]{0,5}[a-z_*?.]", fullmatch=True)


@pytest.mark.req("config.env")
@given(st.dictionaries(_NAMES, st.tuples(st.integers(1, 10**6), st.integers(1, 9999))))
def test_rate_limits_are_read_as_they_were_written(
    limits: dict[str, tuple[int, int]],
) -> None:
    text = " , ".join(f"{name} = {n} / {s}" for name, (n, s) in limits.items())
    assert dict(config(tool_rate_limits=text).tool_rate_limits) == limits


@pytest.mark.req("config.refused")
@given(
    st.sampled_from([item.name for item in fields(ProcessorConfig)]),
    st.text(min_size=1, max_size=12),
)
def test_any_text_is_read_or_refused_with_the_name_of_the_variable(
    name: str, text: str
) -> None:
    if name == "parser_plugins":
        return
    try:
        made = config(**{name: text})
    except ValueError as exc:
        assert PREFIX + name.upper() in str(exc)  # noqa: PT017 - either is right
    else:
        made.create_processor(create_registry())


@pytest.mark.req("config.effect")
def test_the_parts_keep_their_own_defaults() -> None:
    made = ProcessorConfig()
    assert made.to_processor_kwargs()["retry_config"] == RetryConfig()
    assert made.to_processor_kwargs()["circuit_breaker_config"] == BreakerConfig()
    assert made.to_processor_kwargs()["bulkhead_config"] == BulkheadConfig()
