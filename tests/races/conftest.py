"""These tests are about PostgreSQL: they run on it alone."""

from __future__ import annotations

import pytest

from tests.servers import PostgresHarness


@pytest.fixture
def harness(postgres: PostgresHarness) -> PostgresHarness:
    """Return an empty store on PostgreSQL."""
    return postgres
