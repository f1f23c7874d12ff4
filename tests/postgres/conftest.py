"""These tests are about PostgreSQL: they run on it alone."""

from __future__ import annotations

import pytest

from tests import pooler
from tests.servers import PostgresHarness


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs PgBouncer where there is none; the run's header says so."""
    if pooler.BINARY is None:
        needing = [item for item in items if item.path.name == "test_pooler.py"]
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]


@pytest.fixture
def harness(postgres: PostgresHarness) -> PostgresHarness:
    """Return an empty store on PostgreSQL."""
    return postgres
