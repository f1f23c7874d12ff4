"""The suite runs on each backend, and on PostgreSQL with the fast path and, on a pool that is lent, without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nl2state.testing.harness import Harness
from tests.memory.harness import MemoryHarness
from tests.servers import LentHarness, ReusedHarness


@pytest.fixture(params=["memory", "postgres", "lent"])
def harness(request: pytest.FixtureRequest, dsn: str) -> Iterator[Harness]:
    """Yield an empty store of each."""
    made: Harness
    if request.param == "memory":
        made = MemoryHarness()
    else:
        made = ReusedHarness(dsn) if request.param == "postgres" else LentHarness(dsn)
    yield made
    made.close()
