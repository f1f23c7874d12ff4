"""A store in memory, opened twice, on clocks that a test moves."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from nl2state.testing.harness import Harness
from nl2state_memory import MemoryStore, Settings
from nl2state_memory.sessions import ClientSession

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryHarness(Harness):
    """An empty store and its second client."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._store_seconds = 0.0
        self._client_seconds = 0.0
        self._store = MemoryStore(clock=self._clock, monotonic=self._monotonic, settings=settings or Settings())
        self.clients = (self._store, self._store.client())

    def move_clock(self, seconds: float) -> None:
        self._store_seconds += seconds

    def move_client_clocks(self, seconds: float) -> None:
        self._client_seconds += seconds

    def count_waiting(self) -> int:
        return self._store._database.waiting

    def open_bounded(self, *, lock_seconds: float, idle_seconds: float) -> MemoryStore:
        """Open another client. The bound on an open transaction is the database's, so it is every client's from now."""
        database = self._store._database
        database.settings = replace(database.settings, transaction_idle_seconds=idle_seconds)
        client = self._store.client()
        client._session = ClientSession(database, lock_seconds)
        self.clients = (*self.clients, client)
        return client

    def _clock(self) -> datetime:
        """Return the store's time: as a server's, it is not what a test of P8 freezes, the client's."""
        return _EPOCH + timedelta(seconds=time.clock_gettime(time.CLOCK_REALTIME) + self._store_seconds)

    def _monotonic(self) -> float:
        return time.monotonic() + self._client_seconds
