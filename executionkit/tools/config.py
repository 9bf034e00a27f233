"""Settings of a processor as one value, and read from the environment.

Each variable is the name of a field in capitals after a prefix:
`EXECUTIONKIT_MAX_RETRIES=0`. 0 is 0, `none` is None where a field may be None, and an
empty variable is the same as none at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit._frozen import freeze_mapping, sealed
from executionkit.backends import open_backend
from executionkit.engine.breaker import BreakerConfig
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.engine.retry import RetryConfig
from executionkit.tools._environment import (
    Reader,
    read_choice,
    read_count,
    read_counts,
    read_names,
    read_rates,
    read_seconds,
    read_seconds_by_name,
    read_switch,
    reads,
    unknown_variables,
)
from executionkit.tools._options import DEFAULT_PROCESSOR_TIMEOUT, ToolPolicy, is_chosen
from executionkit.tools.middleware._store import ON_ERROR, check_on_error

if TYPE_CHECKING:
    from executionkit.tools.processor import ToolProcessor
    from executionkit.tools.registry import ToolRegistry
    from executionkit.tools.strategies import ExecutionStrategy

__all__ = ("DEFAULT_PREFIX", "ProcessorConfig")

DEFAULT_PREFIX: Final = "EXECUTIONKIT_"
"""What the names of the variables begin with."""

_ELSEWHERE: Final = ("api_key", "base_url", "http", "model")
"""Variables with that prefix that providers and transports read."""

_LAYERS: Final[Mapping[str, tuple[str, ...]]] = {
    "enable_caching": ("cache_ttl",),
    "enable_rate_limiting": ("global_rate_limit", "tool_rate_limits"),
    "enable_retries": ("max_retries", "retry_base_delay", "retry_max_delay"),
    "enable_circuit_breaker": (
        "circuit_breaker_threshold",
        "circuit_breaker_timeout",
        "circuit_breaker_success_threshold",
        "circuit_breaker_half_open_max_calls",
        "circuit_breaker_failure_window",
    ),
    "enable_bulkhead": (
        "bulkhead_default_limit",
        "bulkhead_tool_limits",
        "bulkhead_patterns",
        "bulkhead_namespace_limits",
        "bulkhead_global_limit",
        "bulkhead_acquisition_timeout",
        "bulkhead_max_queue_depth",
    ),
}
"""Each switch, and the settings that belong to it."""


def _read_url(variable: str, text: str) -> str | None:
    """The address of a store; the errors never hold it.

    Raises:
        ValueError: When it is none.
    """
    if text.lower() == "none":
        return None
    try:
        open_backend(text)
    except ValueError as exc:
        msg = f"{variable} must be the address of a store: {exc}"
        raise ValueError(msg) from None
    return text


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorConfig:
    """What a `ToolProcessor` is told, as far as it can be written in an environment.

    The names and defaults are those of `ToolProcessor`. A switch left at None is on
    when a setting of its layer is given, and be it at its default.

    Raises:
        ValueError: For a value out of range.
    """

    default_timeout: float | None = reads(
        read_seconds(above=True), DEFAULT_PROCESSOR_TIMEOUT
    )
    """Seconds that one attempt may run. None = no limit."""

    max_concurrency: int | None = reads(read_count(1), None)
    """Calls at once. None = no limit."""

    enable_caching: bool | None = reads(read_switch, None)
    cache_ttl: float | None = reads(read_seconds(above=True), 300.0)
    """Seconds that results live. None = no end."""

    enable_rate_limiting: bool | None = reads(read_switch, None)
    global_rate_limit: int | None = reads(read_count(1), None)
    """Starts of all tools together in any 60 seconds. None = no limit."""

    tool_rate_limits: Mapping[str, tuple[int, float]] = reads(read_rates, {})
    """(starts, seconds) by name or glob; as a variable `name=10/60,other=5/1`."""

    enable_retries: bool | None = reads(read_switch, None)
    max_retries: int = reads(read_count(0, none=False), 3)
    """Attempts after the first; 0 = none."""

    retry_base_delay: float = reads(read_seconds(none=False), 1.0)
    """Seconds: upper bound of the first pause; 0 = no pauses."""

    retry_max_delay: float = reads(read_seconds(none=False), 60.0)
    """Seconds: upper bound of every pause."""

    enable_circuit_breaker: bool | None = reads(read_switch, None)
    circuit_breaker_threshold: int = reads(read_count(1, none=False), 5)
    """Failures that open a circuit."""

    circuit_breaker_timeout: float = reads(read_seconds(none=False), 60.0)
    """Seconds that it stays open."""

    circuit_breaker_success_threshold: int = reads(read_count(1, none=False), 2)
    """Successful probes that close it."""

    circuit_breaker_half_open_max_calls: int = reads(read_count(1, none=False), 1)
    """Probes at once."""

    circuit_breaker_failure_window: float | None = reads(read_seconds(above=True), 60.0)
    """Seconds after which a failure no longer counts. None = never."""

    parser_plugins: tuple[str, ...] = reads(read_names, ())
    """Names of parsers, as a variable with commas between. Empty = all."""

    enable_bulkhead: bool | None = reads(read_switch, None)
    bulkhead_default_limit: int = reads(read_count(1, none=False), 10)
    """Calls at once of a tool without a limit of its own."""

    bulkhead_tool_limits: Mapping[str, int] = reads(read_counts(1), {})
    """Calls at once by name; as a variable `name=2,other=5`."""

    bulkhead_patterns: Mapping[str, int] = reads(read_counts(1), {})
    """Calls at once by glob; the first one that matches counts."""

    bulkhead_namespace_limits: Mapping[str, int] = reads(read_counts(1), {})
    bulkhead_global_limit: int | None = reads(read_count(1), None)
    """Calls at once of all tools. None = no limit."""

    bulkhead_acquisition_timeout: float | None = reads(read_seconds(), None)
    """Seconds to wait for a slot; 0 = do not wait. None = no limit."""

    bulkhead_max_queue_depth: int | None = reads(read_count(0), None)
    """Waiters per tool; one more fails at once. None = no limit."""

    tool_timeouts: Mapping[str, float] = reads(read_seconds_by_name, {})
    """Seconds that one attempt may run by name or glob; `inf` = no limit. As a variable
    `name=2.5,other=none`."""

    tool_max_retries: Mapping[str, int] = reads(read_counts(0), {})
    """Attempts after the first by name or glob. They turn retries on for these."""

    state_url: str | None = reads(_read_url, None, shown=False)
    """Where cache, limits and circuits are kept when others share them, e.g.
    `redis://host:6379/0`; see `open_backend`. None = in this process. It may hold a
    password, so it is not shown."""

    on_state_error: str = reads(read_choice(ON_ERROR), "local")
    """What happens while the server does not answer: `local` (this process stands in),
    `open` (no limit), `closed` (calls fail)."""

    show_arguments: bool = reads(read_switch, default=False)
    """Whether arguments are in trace events, redacted."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                object.__setattr__(self, item.name, freeze_mapping(value))
        object.__setattr__(self, "parser_plugins", tuple(self.parser_plugins))
        for switch, settings in _LAYERS.items():
            if getattr(self, switch) is None:
                changed = any(self._is_changed(name) for name in settings)
                object.__setattr__(self, switch, changed)
        for item in fields(self):
            value = getattr(self, item.name)
            if not is_chosen(value):
                plain = int if isinstance(value, int) else float
                object.__setattr__(self, item.name, plain(value))
        check_on_error(self.on_state_error)
        self.to_processor_kwargs()  # the parts check what they are given

    def _is_changed(self, name: str) -> bool:
        value, default = getattr(self, name), _DEFAULTS[name]
        if is_chosen(default):
            return bool(value != default)
        return is_chosen(value)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        prefix: str = DEFAULT_PREFIX,
        *,
        strict: bool = False,
    ) -> Self:
        """The settings that an environment holds; defaults for all others.

        Switches read `true`, `yes`, `on`, `1` and their opposites, in any case.

        Args:
            environ: None = the environment of this process.
            prefix: What the names of the variables begin with.
            strict: Whether a variable that begins with `prefix` and that nothing in
                the library reads is an error. False = it is left alone.

        Raises:
            ValueError: When a value cannot be read: names the variable, the value, and
                what it may be. With `strict`, for unknown variables.
        """
        given = os.environ if environ is None else environ
        if strict:
            others = _ELSEWHERE if prefix == DEFAULT_PREFIX else ()
            unknown_variables(given, prefix, (*_DEFAULTS, *others))
        found: dict[str, Any] = {}
        for item in fields(cls):
            variable = prefix + item.name.upper()
            text = given.get(variable, "").strip()
            if text:
                read: Reader = item.metadata["read"]
                found[item.name] = read(variable, text)
        for switch, settings in _LAYERS.items():
            if switch not in found and any(name in found for name in settings):
                found[switch] = True
        return cls(**found)

    def uses_redis(self) -> bool:
        """Whether state is kept on a Redis server."""
        return self.state_url is not None and not self.state_url.startswith("memory:")

    def to_processor_kwargs(self) -> dict[str, Any]:
        """The settings as arguments for `ToolProcessor`.

        Each time there is a new `state`; a processor does not close it, but its
        connection ends with the event loop.
        """
        return {
            "default_timeout": self.default_timeout,
            "max_concurrency": self.max_concurrency,
            "enable_caching": self.enable_caching,
            "cache_ttl": self.cache_ttl,
            "enable_rate_limiting": self.enable_rate_limiting,
            "global_rate_limit": self.global_rate_limit,
            "tool_rate_limits": self.tool_rate_limits,
            "enable_retries": self.enable_retries,
            "retry_config": self._retry(),
            "enable_circuit_breaker": self.enable_circuit_breaker,
            "circuit_breaker_config": self._breaker(),
            "parser_plugins": self.parser_plugins or None,
            "enable_bulkhead": self.enable_bulkhead,
            "bulkhead_config": self._bulkhead(),
            "policies": self._policies(),
            "state": None if self.state_url is None else open_backend(self.state_url),
            "on_state_error": self.on_state_error,
            "show_arguments": self.show_arguments,
        }

    def create_processor(
        self,
        registry: ToolRegistry | None = None,
        strategy: ExecutionStrategy | None = None,
    ) -> ToolProcessor:
        """A processor with these settings.

        Args:
            registry: The tools. None = the default registry.
            strategy: Where tools run. None = in this process.
        """
        from executionkit.tools.processor import ToolProcessor

        return ToolProcessor(registry, strategy, **self.to_processor_kwargs())

    def create_registry(self) -> ToolRegistry:
        """A registry of its own, empty; nothing of it is set by the environment."""
        from executionkit.tools.registry import create_registry

        return create_registry()

    def _retry(self) -> RetryConfig:
        return RetryConfig(
            max_retries=self.max_retries,
            base_delay=self.retry_base_delay,
            max_delay=self.retry_max_delay,
        )

    def _breaker(self) -> BreakerConfig:
        return BreakerConfig(
            failure_threshold=self.circuit_breaker_threshold,
            success_threshold=self.circuit_breaker_success_threshold,
            reset_timeout=self.circuit_breaker_timeout,
            half_open_max_calls=self.circuit_breaker_half_open_max_calls,
            failure_window=self.circuit_breaker_failure_window,
        )

    def _bulkhead(self) -> BulkheadConfig:
        return BulkheadConfig(
            default_limit=self.bulkhead_default_limit,
            tool_limits=self.bulkhead_tool_limits,
            patterns=self.bulkhead_patterns,
            namespace_limits=self.bulkhead_namespace_limits,
            global_limit=self.bulkhead_global_limit,
            acquisition_timeout=self.bulkhead_acquisition_timeout,
            max_queue_depth=self.bulkhead_max_queue_depth,
        )

    def _policies(self) -> dict[str, ToolPolicy]:
        names = dict.fromkeys((*self.tool_timeouts, *self.tool_max_retries))
        return {
            name: ToolPolicy(
                timeout=self.tool_timeouts.get(name),
                max_retries=self.tool_max_retries.get(name),
            )
            for name in names
        }


_DEFAULTS: Final[Mapping[str, Any]] = {
    item.name: item.metadata["default"] for item in fields(ProcessorConfig)
}
