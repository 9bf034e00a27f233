"""Fixtures of the tests of tools."""

from __future__ import annotations

import pytest

from tests.tools.isolation_help import forget_children


@pytest.fixture
def _own_children() -> None:
    """Children that run already are not this test's."""
    forget_children()
