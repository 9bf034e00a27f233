"""The rate limits' layer: a permit per attempt, of the tool and of all tools at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from executionkit.backends import LimiterBackend, LimitRule, MemoryLimiter
from executionkit.engine._checks import check_int, check_number
from executionkit.engine.rate_bucket import (
    PermitTimeoutError,
    SlidingWindow,
    WindowUsage,
    acquire_all,
    try_acquire_all,
)
from executionkit.errors import ToolRateLimitedError
from executionkit.tools._lookup import exact, exact_item, matching, matching_item
from executionkit.tools.middleware._base import Layer
from executionkit.tools.middleware._shared import Outage, Reports, SharedRateLayer
from executionkit.tools.middleware._store import (
    OnError,
    Watches,
    check_no_address,
    check_on_error,
)
from executionkit.types import freeze_mapping, sealed

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from executionkit._clock import Clock
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("RateLimitLayer", "RateLimitOptions", "RateLimits")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitOptions:
    """How many calls may start in any window of time. A limit holds exactly."""

    global_limit: int | None = None
    """Starts of all tools together per `global_period`. None = no limit."""

    global_period: float = 60.0
    """Seconds."""

    tool_limits: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """(starts, seconds) by full name, bare name, or glob. All tools that match one
    glob share its permits."""

    backend: LimiterBackend | None = None
    """Where starts are counted for many processes. None = in this one."""

    on_error: OnError = "local"
    """What happens when the backend fails: `"local"`, `"open"` or `"closed"`."""

    def __post_init__(self) -> None:
        check_on_error(self.on_error)
        check_no_address(self.backend, "limiter")
        if self.global_limit is not None:
            check_int("global_limit", self.global_limit, 1)
        check_number("global_period", self.global_period, above=True)
        for name, limit in self.tool_limits.items():
            pair = tuple(limit) if isinstance(limit, (list, tuple)) else ()
            if len(pair) != 2:
                msg = (
                    f"`tool_limits[{name!r}]` must be (starts, seconds), got {limit!r}"
                )
                raise ValueError(msg)
            check_int(f"tool_limits[{name!r}]", pair[0], 1)
            check_number(f"tool_limits[{name!r}]", pair[1], above=True)
        limits = {name: tuple(pair) for name, pair in self.tool_limits.items()}
        object.__setattr__(self, "tool_limits", freeze_mapping(limits))


class RateLimits:
    """The windows of all tools."""

    def __init__(
        self, options: RateLimitOptions, clock: Clock, watches: Watches | None = None
    ) -> None:
        self._clock = clock
        self._options = options
        self._global: SlidingWindow | None = None
        if options.global_limit is not None:
            self._global = SlidingWindow(
                options.global_limit, options.global_period, clock=clock
            )
        self._windows = {
            name: SlidingWindow(limit, period, clock=clock)
            for name, (limit, period) in options.tool_limits.items()
        }
        self._own: dict[str, SlidingWindow] = {}
        watch = None if watches is None else watches.of(options.backend)
        self._outage = Outage(options.on_error, clock, watch)
        self._stand_in = MemoryLimiter(clock) if options.on_error == "local" else None
        self.reports: Reports = Reports()
        """What is being told to the backend beside the calls."""

    def bind(self, record: ToolRecord) -> Layer | None:
        """The layer of one tool; None when no limit concerns it."""
        if self._options.backend is not None:
            return self._bind_shared(record, self._options.backend)
        return self.bind_local(record)

    def _bind_shared(
        self, record: ToolRecord, backend: LimiterBackend
    ) -> SharedRateLayer | None:
        rules = self.rules(record)
        if not rules:
            return None
        return SharedRateLayer(
            backend, rules, self._outage, self.reports, self._clock, self._stand_in
        )

    def rules(self, record: ToolRecord) -> tuple[LimitRule, ...]:
        """The limits of one tool, as a backend knows them: its own, and that of all."""
        options = self._options
        rules: list[LimitRule] = []
        limits = options.tool_limits
        found = exact_item(limits, record.names)
        if found is None and record.tool.rate_limit is not None:
            found = (record.full_name, record.tool.rate_limit)
        found = found or matching_item(limits, record.names)
        if found is not None:
            rules.append(LimitRule(f"tool:{found[0]}", *found[1]))
        if options.global_limit is not None:
            limit = (options.global_limit, options.global_period)
            rules.append(LimitRule("global", *limit))
        return tuple(rules)

    def bind_local(self, record: ToolRecord) -> RateLimitLayer | None:
        """The layer of one tool over the windows of this process."""
        window = exact(self._windows, record.names) or self._own_window(record)
        window = window or matching(self._windows, record.names)
        windows = tuple(w for w in (window, self._global) if w is not None)
        return RateLimitLayer(windows, self._clock) if windows else None

    def get_usage(self, tool: str | None = None) -> dict[str, WindowUsage]:
        """How much is used: under `"global"`, and under the tool's name.

        Args:
            tool: A name as in `tool_limits`, or the full name of a tool with a limit
                of its own. None = all of them.
        """
        windows = {**self._own, **self._windows}
        usage = {} if self._global is None else {"global": self._global.usage()}
        for name, window in windows.items():
            if tool is None or name == tool:
                usage[name] = window.usage()
        return usage

    def reset(self, tool: str | None = None) -> None:
        """Forget the starts of a tool; None = all starts."""
        windows = {**self._own, **self._windows}
        for name, window in windows.items():
            if tool is None or name == tool:
                window.reset()
        if tool is None and self._global is not None:
            self._global.reset()

    def _own_window(self, record: ToolRecord) -> SlidingWindow | None:
        limit = record.tool.rate_limit
        if limit is None:
            return None
        name = record.full_name
        window = self._own.get(name)
        if window is None or (window.limit, window.period) != limit:
            window = self._own[name] = SlidingWindow(*limit, clock=self._clock)
        return window


class RateLimitLayer(Layer):
    """Takes a permit of every window in the same moment, or waits for it.

    A permit that cannot be had before the deadline fails the call at once. One that was
    had and not used, because the call ended before its tool began, is given back; so is
    one whose call has to wait for a slot, and with the slot it needs another one.
    """

    __slots__ = ("_clock", "_now", "windows")

    name = "rate_limit"
    is_moment = True

    def __init__(self, windows: tuple[SlidingWindow, ...], clock: Clock) -> None:
        self.windows: tuple[SlidingWindow, ...] = windows
        self._clock = clock
        self._now = clock.monotonic

    def enter(self, request: ToolRequest, /) -> Awaitable[None] | None:
        return None if self._take_now(request) else self._wait(request)

    def leave(self, request: ToolRequest, exc: BaseException | None, /) -> None:
        if exc is not None and not request.started:
            self.give_back(request)

    def give_back(self, request: ToolRequest, /) -> None:
        since, request.permit_time = request.permit_time, None
        if since is not None:
            for window in self.windows:
                window.refund(since=since)

    def retake(self, request: ToolRequest, /) -> bool:
        if request.permit_time is not None or self._take_now(request):
            return True
        # Others wait, and perhaps for something else than what is needed here.
        if try_acquire_all(self.windows):
            return False
        request.permit_time = self._now()
        return True

    def _take_now(self, request: ToolRequest) -> bool:
        now = self._now()
        for taken, window in enumerate(self.windows):
            if not window.start_now(now):
                for other in self.windows[:taken]:
                    other.take_back()
                return False
        request.permit_time = now
        return True

    def wait_time(self) -> float:
        """Seconds that a call would wait at least right now."""
        return max(window.wait_time() for window in self.windows)

    async def _wait(self, request: ToolRequest) -> None:
        began = self._clock.monotonic()
        timeout = None
        if request.deadline is not None:
            timeout = max(0.0, request.deadline - began)
        try:
            await acquire_all(self.windows, timeout=timeout)
        except PermitTimeoutError as exc:
            scarce = max(self.windows, key=lambda window: window.wait_time())
            raise ToolRateLimitedError(
                request.full_name, exc.retry_after, scarce.limit, scarce.period
            ) from exc
        finally:
            request.waited("permit", self._clock.monotonic() - began)
        request.permit_time = self._clock.monotonic()
