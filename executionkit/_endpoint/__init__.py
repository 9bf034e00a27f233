"""What both providers share: requests to one address, and streams of replies from it.

Nothing here knows a dialect; `executionkit._wire` does.
"""

from __future__ import annotations

from executionkit._endpoint.base import (
    ProviderBase,
    check_defaults,
    checked_headers,
    checked_key,
    environment_settings,
    refuse_streaming,
)
from executionkit._endpoint.requests import Endpoint, Options, make_endpoint
from executionkit._endpoint.site import Site
from executionkit._endpoint.streams import EventStream, TextStream

__all__ = (
    "Endpoint",
    "EventStream",
    "Options",
    "ProviderBase",
    "Site",
    "TextStream",
    "check_defaults",
    "checked_headers",
    "checked_key",
    "environment_settings",
    "make_endpoint",
    "refuse_streaming",
)
