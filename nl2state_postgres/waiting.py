"""Waiting for what is busy, by asking again: often at first, then seldom, and with jitter, so that waiters spread."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from nl2state.errors import BusyError, StoreTimeoutError

__all__ = ["Waiting"]

_PAUSE_SECONDS = (0.005, 0.25)
_PAUSE_GROWTH = 1.5
_RESTARTS = 100


class Waiting:
    """The wait of one call."""

    def __init__(self, until: float, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until = until
        self._pause = _PAUSE_SECONDS[0]
        self._restarts = 0

    def sleep_or_raise(self, busy: BusyError) -> None:
        """Pause before the next try, and no longer than the holder has left; raise `busy` when the wait is over."""
        remaining = self._until - self._monotonic()
        if remaining <= 0:
            raise busy
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, no secret
        time.sleep(min(remaining, max(_PAUSE_SECONDS[0], min(pause, busy.retry_after_seconds))))
        self._pause = min(self._pause * _PAUSE_GROWTH, _PAUSE_SECONDS[1])

    def start_over(self) -> None:
        """Go on at once: it came free between two statements. Raises StoreTimeoutError when that never ends."""
        self._restarts += 1
        if self._restarts > _RESTARTS:
            raise StoreTimeoutError("it changed hands under each of the tries")
