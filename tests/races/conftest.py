"""These tests are about PostgreSQL: they run on it alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import PostgresHarness


@pytest.fixture
def harness(dsn: str) -> Iterator[PostgresHarness]:
    """Yield an empty store on PostgreSQL."""
    made = PostgresHarness(dsn)
    yield made
    made.close()
