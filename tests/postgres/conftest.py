"""These tests are about PostgreSQL: they run on it alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests import pooler, servers
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


@pytest.fixture
def alone(dsn: str) -> Iterator[PostgresHarness]:
    """Yield an empty store in a database of its own, where no other test's snapshot keeps dead rows."""
    name = f"test_{uuid.uuid4().hex}"
    with servers.connect(dsn) as owner:
        owner.execute(f"CREATE DATABASE {name}".encode())
        try:
            own = psycopg.conninfo.make_conninfo(dsn, dbname=name)
            servers.prepare(own)
            made = PostgresHarness(own)
            yield made
            made.close()
        finally:
            owner.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
