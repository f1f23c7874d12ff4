"""Who waits for a lease: one queue for each resource, in one process, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["Queues"]

_LOOK_SECONDS: Final = 0.05
"""How often a waiter looks at its own clock, which may be a test's, or may have moved while the process was stopped."""


class Queues:
    """The queues of one client of a store. Safe to share between threads.

    Only the first of a queue asks the store, so that a hundred threads ask no more often than one does; those of other
    processes ask beside it, and which of them is served first is chance.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._queues: dict[Hashable, deque[threading.Event]] = {}
        self._changing = threading.Lock()

    def length(self, name: Hashable) -> int:
        """Return how many wait for this now, the one included that asks the store."""
        with self._changing:
            return len(self._queues.get(name, ()))

    @contextmanager
    def turn(self, name: Hashable, wait_seconds: float) -> Iterator[float]:
        """Wait until nobody waits for this who came before, or for so long, and run the block; then the next goes on.

        Yields when the wait is over, by the monotonic clock. Who does not wait stands in no queue, and heeds none.
        """
        until = self._monotonic() + wait_seconds
        if not wait_seconds:
            yield until
            return
        mine = threading.Event()
        try:  # first, so that a signal's handler leaves no one in the queue
            with self._changing:
                queue = self._queues.setdefault(name, deque())
                queue.append(mine)
                queue[0].set()
            while (remaining := until - self._monotonic()) > 0 and not mine.wait(min(remaining, _LOOK_SECONDS)):
                pass
            yield until
        finally:
            with self._changing:
                queue = self._queues.get(name, deque())
                with suppress(ValueError):  # it had not come yet
                    queue.remove(mine)
                if queue:
                    queue[0].set()
                else:
                    self._queues.pop(name, None)
