"""A clock that only tests move."""

from __future__ import annotations

import pytest

from executionkit.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
