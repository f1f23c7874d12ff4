"""What a test needs around a store: two clients of the same data, clocks that move, and calls that are seen to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import ClassVar, Generic, TypeVar

import pytest

from nl2state.scope import TenantScope
from nl2state.store import Store, Tenant

__all__ = ["Call", "Capability", "Harness", "NotDeclaredError", "start", "start_waiting", "together", "until"]

T = TypeVar("T")

_BOUND_SECONDS = 30.0
_POLL_SECONDS = 0.002


class Capability(Enum):
    """What a harness can do for a test. No promise is one: a backend keeps all of them, or fails."""

    SECOND_CLIENT = "open the same data twice"
    MOVES_CLOCK = "move the store's clock"
    MOVES_CLIENT_CLOCKS = "move the clients' monotonic clocks"
    SEES_WAITS = "see how many calls wait for a lock"
    SHORT_BOUNDS = "open a client whose bounds on waits are short"


class NotDeclaredError(pytest.skip.Exception):  # type: ignore[name-defined,misc]  # it has no other public name
    """The test needs what this harness does not declare. It is skipped, as no other skip is allowed to."""

    def __init__(self, capability: Capability) -> None:
        super().__init__(f"the harness does not declare that it can {capability.value}")
        self.capability = capability


class Harness:
    """An empty store, opened twice. A backend's own harness says how its clocks move and how its waits are seen.

    A backend sets `clients`, and overrides `move_clock`, `move_client_clocks`, `count_waiting` and `open_bounded` for
    what it declares. Tests call the methods above those: one that needs what is not declared is skipped there.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)
    """What this harness declares: all of it, unless a backend says less."""

    clients: tuple[Store, ...]
    """Two clients of the same data, as two processes have them; one where no second client is declared."""

    def require(self, capability: Capability) -> None:
        """Skip the test where this is not declared."""
        if capability not in self.capabilities:
            raise NotDeclaredError(capability)

    def client(self, number: int) -> Store:
        """Return one of the clients."""
        if number > 0:
            self.require(Capability.SECOND_CLIENT)
        return self.clients[number]

    def tenant(self, name: str = "acme", *, client: int = 0) -> Tenant:
        """Return a tenant, as one of the clients sees it."""
        return self.tenant_of(self.client(client), name)

    def tenant_of(self, store: Store, name: str = "acme") -> Tenant:
        """Return the tenant of that name, as this client sees it."""
        return store.tenant(TenantScope.derive(name, pepper="the pepper of the tests"))

    def advance(self, seconds: float) -> None:
        """Move the store's clock, forward or back, for every client at once."""
        self.require(Capability.MOVES_CLOCK)
        self.move_clock(seconds)

    def advance_clients(self, seconds: float) -> None:
        """Move the clients' own monotonic clocks forward, as a process finds them that was stopped and goes on."""
        self.require(Capability.MOVES_CLIENT_CLOCKS)
        self.move_client_clocks(seconds)

    def waiting(self) -> int:
        """Return how many calls wait for a lock in this store now."""
        self.require(Capability.SEES_WAITS)
        return self.count_waiting()

    def bounded(self, *, lock_seconds: float = 10.0, idle_seconds: float = 30.0) -> Store:
        """Return another client of the same data, with these bounds."""
        self.require(Capability.SHORT_BOUNDS)
        return self.open_bounded(lock_seconds=lock_seconds, idle_seconds=idle_seconds)

    def close(self) -> None:
        """Close the clients. A backend adds what else has to be given back."""
        for client in self.clients:
            client.close()

    def move_clock(self, seconds: float) -> None:
        """Do what `advance` says. The store's clock is read where no test that freezes the client's reaches it."""
        raise NotImplementedError

    def move_client_clocks(self, seconds: float) -> None:
        """Do what `advance_clients` says."""
        raise NotImplementedError

    def count_waiting(self) -> int:
        """Do what `waiting` says."""
        raise NotImplementedError

    def open_bounded(self, *, lock_seconds: float, idle_seconds: float) -> Store:
        """Open another client of the same data, and close it with the others.

        Its calls wait for one lock at most so long; a transaction of it that does nothing for so long is ended.
        """
        raise NotImplementedError


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
