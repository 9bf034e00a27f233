"""The circuit breaker's layer: one circuit per tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executionkit.backends import BreakerBackend
from executionkit.engine.breaker import (
    BreakerConfig,
    BreakerSnapshot,
    CircuitBreaker,
    CircuitState,
)
from executionkit.errors import ToolCircuitOpenError
from executionkit.tools._lookup import most_specific
from executionkit.tools.middleware._base import Layer
from executionkit.tools.middleware._shared import Outage, Reports, SharedBreakerLayer
from executionkit.tools.middleware._store import (
    OnError,
    Watches,
    check_no_address,
    check_on_error,
)
from executionkit.types import freeze_mapping, sealed

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("BreakerLayer", "BreakerOptions", "Breakers", "shown_state")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOptions:
    """Circuit breakers for tools."""

    default: BreakerConfig = field(default_factory=BreakerConfig)
    """For tools that `tools` does not name."""

    tools: Mapping[str, BreakerConfig] = field(default_factory=dict)
    """By full name, bare name, or glob; the most precise one counts."""

    backend: BreakerBackend | None = None
    """Where circuits are kept for many processes. None = in this one."""

    on_error: OnError = "local"
    """What happens when the backend fails: `"local"`, `"open"` or `"closed"`."""

    def __post_init__(self) -> None:
        check_on_error(self.on_error)
        check_no_address(self.backend, "breakers")
        object.__setattr__(self, "tools", freeze_mapping(self.tools))


class Breakers:
    """The circuits of all tools; one is made when its tool is first called.

    There are as many as there are registered tools: invented names never get here.
    """

    def __init__(
        self, options: BreakerOptions, clock: Clock, watches: Watches | None = None
    ) -> None:
        self._options = options
        self._clock = clock
        self._circuits: dict[str, CircuitBreaker] = {}
        watch = None if watches is None else watches.of(options.backend)
        self._outage = Outage(options.on_error, clock, watch)
        self.reports: Reports = Reports()
        """What is being told to the backend beside the calls."""

    def bind(self, record: ToolRecord) -> Layer:
        """The layer of one tool."""
        backend = self._options.backend
        if backend is None:
            return BreakerLayer(self.circuit(record))
        return SharedBreakerLayer(
            backend,
            record.full_name,
            self._config(record),
            self._outage,
            self.reports,
            self._clock,
        )

    def _config(self, record: ToolRecord) -> BreakerConfig:
        options = self._options
        return most_specific(options.tools, record.names) or options.default

    def circuit(self, record: ToolRecord) -> CircuitBreaker:
        """The circuit of one tool."""
        name = record.full_name
        circuit = self._circuits.get(name)
        if circuit is None:
            config = self._config(record)
            circuit = CircuitBreaker(config, name=name, clock=self._clock)
            self._circuits[name] = circuit
        return circuit

    def get_circuit_states(self) -> dict[str, CircuitState]:
        """The state of each circuit, by the tool's full name."""
        return {name: circuit.state for name, circuit in self._circuits.items()}

    def get_state(self, tool: str) -> BreakerSnapshot | None:
        """What the circuit of a tool looks like; None when it was never called."""
        circuit = self._circuits.get(tool)
        return None if circuit is None else circuit.snapshot()

    def reset_circuit(self, tool: str) -> None:
        """Close the circuit of a tool and forget its failures."""
        circuit = self._circuits.get(tool)
        if circuit is not None:
            circuit.reset()


class BreakerLayer(Layer):
    """Refuses calls of a tool whose circuit is open."""

    __slots__ = ("circuit",)

    name = "breaker"

    def __init__(self, circuit: CircuitBreaker) -> None:
        self.circuit: CircuitBreaker = circuit

    def enter(self, request: ToolRequest, /) -> None:
        request.ticket = self.circuit.before()

    def leave(self, request: ToolRequest, exc: BaseException | None, /) -> None:
        ticket, request.ticket = request.ticket, None
        if ticket is None:
            return
        if exc is None:
            self.circuit.succeeded(ticket)
        elif request.started:
            self.circuit.settle(ticket, exc)
        else:
            ticket.abandon()

    def refusal(self) -> ToolCircuitOpenError | None:
        """Why a call would be refused right now; None when it would not."""
        snapshot = self.circuit.snapshot()
        if snapshot.state is CircuitState.CLOSED or not snapshot.time_until_half_open:
            return None
        return ToolCircuitOpenError(
            self.circuit.name, snapshot.failure_count, snapshot.time_until_half_open
        )


def shown_state(shown: BreakerSnapshot, config: BreakerConfig) -> dict[str, Any]:
    """How a circuit stands, as plain data."""
    return {
        "state": shown.state,
        "failure_count": shown.failure_count,
        "success_count": shown.success_count,
        "opened_at": shown.opened_at,
        "half_open_calls": shown.half_open_calls,
        "time_until_half_open": shown.time_until_half_open,
        "config": {
            "failure_threshold": config.failure_threshold,
            "success_threshold": config.success_threshold,
            "reset_timeout": config.reset_timeout,
            "half_open_max_calls": config.half_open_max_calls,
        },
    }
