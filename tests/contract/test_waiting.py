"""Who waits for a lease in one process is served in the order in which they came."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from nl2state import LeaseBusyError, TenantScope
from nl2state.testing.harness import Harness, start, until
from nl2state.waiting import Queues

SCOPE = TenantScope.derive("acme", pepper="the pepper of the tests")


def test_they_are_served_in_their_order_whoever_polls_more_often(harness: Harness) -> None:
    tenant = harness.tenant()
    queues: Queues = harness.clients[0]._queues  # type: ignore[attr-defined]  # to see that each has come
    held = tenant.leases.acquire("r", owner="holder", ttl_seconds=60).fence
    served: list[int] = []

    def serve(number: int) -> None:
        lease = tenant.leases.acquire("r", owner=f"waiter {number}", ttl_seconds=60, wait_seconds=30)
        served.append(number)
        tenant.leases.release(lease.fence)

    calls = []
    for number in range(6):
        calls.append(start(partial(serve, number)))
        until(lambda: queues.length((SCOPE.uuid, "r")) == len(calls), "it has come")
    tenant.leases.release(held)
    for call in calls:
        call.result()
    assert served == list(range(6))
    assert queues.length((SCOPE.uuid, "r")) == 0


def test_who_does_not_wait_heeds_no_queue_and_another_resource_has_another(harness: Harness) -> None:
    tenant = harness.tenant()
    queues: Queues = harness.clients[0]._queues  # type: ignore[attr-defined]  # to see who has come
    held = tenant.leases.acquire("r", owner="holder", ttl_seconds=60).fence
    waiter = start(lambda: tenant.leases.acquire("r", owner="waiter", ttl_seconds=60, wait_seconds=30))
    until(lambda: queues.length((SCOPE.uuid, "r")) == 1, "it waits")
    assert tenant.leases.try_acquire("r", owner="other", ttl_seconds=60) is None
    assert tenant.leases.acquire("s", owner="other", ttl_seconds=60, wait_seconds=30).fence.resource == "s"
    harness.tenant("other").leases.acquire("r", owner="other", ttl_seconds=60, wait_seconds=30)
    tenant.leases.release(held)
    assert waiter.result().fence.owner == "waiter"


def test_a_wait_in_the_queue_ends_by_the_clients_own_clock(harness: Harness) -> None:
    """P11: it is busy then, and the one that waits before it goes on waiting."""
    tenant = harness.tenant()
    queues: Queues = harness.clients[0]._queues  # type: ignore[attr-defined]  # as above
    held = tenant.leases.acquire("r", owner="holder", ttl_seconds=600).fence
    first = start(lambda: tenant.leases.acquire("r", owner="first", ttl_seconds=60, wait_seconds=600))
    until(lambda: queues.length((SCOPE.uuid, "r")) == 1, "it waits")
    second = start(lambda: tenant.leases.acquire("r", owner="second", ttl_seconds=60, wait_seconds=300))
    until(lambda: queues.length((SCOPE.uuid, "r")) == 2, "both wait")
    harness.advance_clients(301)
    with pytest.raises(LeaseBusyError) as raised:
        second.result()
    assert raised.value.owner == "holder"
    assert not first.done
    tenant.leases.release(held)
    assert first.result().fence.owner == "first"


def test_one_that_raises_lets_the_next_go_on() -> None:
    queues = Queues(time.monotonic)
    with pytest.raises(LookupError), queues.turn("r", 30.0):
        raise LookupError
    assert queues.length("r") == 0
    with queues.turn("r", 30.0) as until_then:
        assert until_then > time.monotonic()
        assert queues.length("r") == 1


class _Signalled:
    """A lock that a signal's handler raises at the end of, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._signalled = False

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
        if not self._signalled:
            self._signalled = True
            raise KeyboardInterrupt


def test_one_that_a_signal_stops_as_it_comes_leaves_the_queue() -> None:
    """P11: the others would wait behind nobody, each to the end of its wait."""
    queues = Queues(time.monotonic)
    queues._changing = _Signalled()  # type: ignore[assignment]  # a lock that a signal comes in
    with pytest.raises(KeyboardInterrupt), queues.turn("r", 30.0):
        pass
    assert queues.length("r") == 0
