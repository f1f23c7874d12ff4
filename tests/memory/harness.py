"""A store in memory, opened twice, on clocks that a test moves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from nl2state.testing.harness import Harness
from nl2state_memory import MemoryStore, Settings


class MemoryHarness(Harness):
    """An empty store and its second client."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._store_seconds = 0.0
        self._client_seconds = 0.0
        self._store = MemoryStore(clock=self._clock, monotonic=self._monotonic, settings=settings or Settings())
        self.clients = (self._store, self._store.client())

    def advance(self, seconds: float) -> None:
        self._store_seconds += seconds

    def advance_clients(self, seconds: float) -> None:
        self._client_seconds += seconds

    def waiting(self) -> int:
        return self._store._database.waiting

    def close(self) -> None:
        """Close the clients."""
        for client in self.clients:
            client.close()

    def _clock(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._store_seconds)

    def _monotonic(self) -> float:
        return time.monotonic() + self._client_seconds
