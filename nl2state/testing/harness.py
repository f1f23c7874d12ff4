"""What a test needs around a store: two clients of the same data, clocks that move, and calls that are seen to wait."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from nl2state.scope import TenantScope
from nl2state.store import Store, Tenant

__all__ = ["Call", "Harness", "start", "start_waiting", "together", "until"]

T = TypeVar("T")

_BOUND_SECONDS = 30.0
_POLL_SECONDS = 0.002


class Harness(ABC):
    """An empty store, opened twice. A backend's own harness says how its clocks move and how its waits are seen."""

    clients: tuple[Store, Store]
    """Two clients of the same data, as two processes have them."""

    def tenant(self, name: str = "acme", *, client: int = 0) -> Tenant:
        """Return a tenant, as one of the clients sees it."""
        return self.clients[client].tenant(TenantScope.derive(name, pepper="the pepper of the tests"))

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Move the store's clock, forward or back, for every client at once."""

    @abstractmethod
    def advance_clients(self, seconds: float) -> None:
        """Move the clients' own monotonic clocks forward, as a process finds them that was stopped and goes on."""

    @abstractmethod
    def waiting(self) -> int:
        """Return how many calls wait for a lock in this store now."""


class Call(Generic[T]):
    """A call that runs in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._returned: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has returned or raised."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the call, and return what it returned or raise what it raised."""
        self._thread.join(_BOUND_SECONDS)
        assert self.done, "the call does not end"
        if self._raised:
            raise self._raised[0]
        return self._returned[0]

    def _run(self) -> None:
        try:
            self._returned.append(self._function())
        except BaseException as error:  # noqa: BLE001  # handed over to the thread that asks for the result
            self._raised.append(error)


def start(function: Callable[[], T]) -> Call[T]:
    """Run a call in a thread of its own."""
    return Call(function)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is seen; fail, in the words of `what`, when it is not within a bound."""
    give_up_at = time.monotonic() + _BOUND_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, f"never seen: {what}"
        time.sleep(_POLL_SECONDS)


def start_waiting(harness: Harness, function: Callable[[], T]) -> Call[T]:
    """Run a call in a thread of its own, and return once it is seen to wait for a lock."""
    before = harness.waiting()
    call = start(function)
    until(lambda: harness.waiting() > before or call.done, "the call waits")
    assert not call.done, "the call did not wait"
    return call


def together(count: int, function: Callable[[int], T]) -> list[T | BaseException]:
    """Run a function for 0, 1, 2, ... at the same moment, and return what each returned or raised, in their order."""
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        barrier.wait(_BOUND_SECONDS)
        return function(number)

    calls = [Call(partial(run, number)) for number in range(count)]
    outcomes: list[T | BaseException] = []
    for call in calls:
        try:
            outcomes.append(call.result())
        except Exception as error:  # noqa: BLE001  # an outcome like any other
            outcomes.append(error)
    return outcomes
