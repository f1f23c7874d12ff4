"""One server for the whole run, shared by its worker processes; a schema of its own for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.register_assert_rewrite("nl2state.testing")

from nl2state.testing.harness import Harness  # noqa: E402  # it is rewritten
from tests import pooler, servers  # noqa: E402  # they import what is rewritten
from tests.memory.harness import MemoryHarness  # noqa: E402  # as above

pytest_plugins = ["nl2state.testing.plugin"]

_run = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Start the server before the workers, which find it in their environment."""
    if not hasattr(config, "workerinput"):
        dsn = _run.enter_context(servers.server())
        servers.prepare(dsn)
        os.environ[servers.DSN_VARIABLE] = dsn


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server that this run started. A worker drops what it left there: the server may be one that goes on."""
    if servers.DSN_VARIABLE in os.environ:
        servers.drop_left(os.environ[servers.DSN_VARIABLE])
    _run.close()


def pytest_report_header() -> str:
    """Say whether there is a pooler to test with."""
    return f"pgbouncer: {pooler.BINARY or 'not installed, so that tests/postgres/test_pooler.py is deselected'}"


@pytest.fixture
def dsn() -> str:
    """Return the server's DSN."""
    return os.environ[servers.DSN_VARIABLE]


@pytest.fixture
def memory() -> Iterator[MemoryHarness]:
    """Yield an empty store in memory."""
    made = MemoryHarness()
    yield made
    made.close()


@pytest.fixture
def postgres(dsn: str) -> Iterator[servers.PostgresHarness]:
    """Yield an empty store on PostgreSQL."""
    made = servers.PostgresHarness(dsn)
    yield made
    made.close()


@pytest.fixture(params=["memory", "postgres"])
def harness(request: pytest.FixtureRequest, dsn: str) -> Iterator[Harness]:
    """Yield an empty store of each backend that this suite runs on."""
    made: Harness = MemoryHarness() if request.param == "memory" else servers.ReusedHarness(dsn)
    yield made
    made.close()
