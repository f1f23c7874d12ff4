"""Waiting for what is busy: until something is written, or for a while, since an expiry writes nothing."""

from __future__ import annotations

from collections.abc import Callable

from nl2state.errors import BusyError
from nl2state_memory.database import Database

__all__ = ["Waiting"]

_PAUSE_SECONDS_MAX = 0.05
"""The clock may be a test's, which moves without a word."""


class Waiting:
    """The wait of one call."""

    def __init__(self, database: Database, until: float, monotonic: Callable[[], float]) -> None:
        self._database = database
        self._monotonic = monotonic
        self._until = until
        self._seen = database.changes

    def pause_or_raise(self, busy: BusyError) -> None:
        """Pause before the next try; raise `busy` when the wait is over."""
        remaining = self._until - self._monotonic()
        if remaining <= 0:
            raise busy
        self._database.pause(self._seen, min(remaining, _PAUSE_SECONDS_MAX))
        self._seen = self._database.changes  # read before the next try, so that no change after that is missed
