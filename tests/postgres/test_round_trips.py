"""One call, one statement, one round trip, where nothing is contended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from nl2state import Completion, KeyRequest, NewState, Reservation, StateUpdate, TenantScope, fingerprint
from nl2state_postgres import PostgresStore, PostgresTenant
from tests.proxy import Proxy
from tests.servers import PostgresHarness

_WARM_UPS = 3


class Counted:
    """A tenant behind a proxy, and how many round trips a call takes once its statement is prepared."""

    def __init__(self, tenant: PostgresTenant, proxy: Proxy) -> None:
        self.tenant = tenant
        self._proxy = proxy

    def trips(self, call: Callable[[int], object]) -> int:
        """Call with 0, 1, 2, and return how many round trips the last took."""
        counts = [self._proxy.round_trips]
        for number in range(_WARM_UPS):
            call(number)
            counts.append(self._proxy.round_trips)
        return counts[-1] - counts[-2]


@pytest.fixture
def counted(harness: PostgresHarness, tmp_path: Path) -> Iterator[Counted]:
    settings = harness.settings.model_copy(update={"connections_max": 1})
    with (
        Proxy(tmp_path, harness.dsn) as proxy,
        PostgresStore.open(proxy.dsn, schema=harness.schema, settings=settings) as store,
    ):
        yield Counted(store.tenant(TenantScope.local()), proxy)


def test_calls_of_states_take_one_round_trip(counted: Counted) -> None:
    states, leases = counted.tenant.states, counted.tenant.leases
    fence = leases.acquire("r", owner="a", ttl_seconds=60).fence
    assert counted.trips(lambda n: states.create(f"plain {n}", n)) == 1
    assert counted.trips(lambda n: states.create(f"fenced {n}", n, fence=fence)) == 1
    assert counted.trips(lambda n: states.put(f"plain {n}", n)) == 1
    assert counted.trips(lambda n: states.put(f"fenced put {n}", n, fence=fence)) == 1
    assert counted.trips(lambda n: states.get(f"plain {n}")) == 1
    assert counted.trips(lambda n: states.get_revision(f"plain {n}")) == 1
    assert counted.trips(lambda n: states.get_checkpoint(f"plain {n}", "q")) == 1
    assert counted.trips(lambda _: states.list(status="running")) == 1
    assert counted.trips(lambda n: states.list_ids(prefix=f"plain {n}", limit=1)) == 1
    assert counted.trips(lambda n: states.update("plain 0", n, expected_revision=n + 2)) == 1
    assert counted.trips(lambda n: states.update("fenced 0", n, expected_revision=n + 1, fence=fence)) == 1
    assert counted.trips(lambda n: states.delete(f"plain {n}", expected_revision=(5 if n == 0 else 2))) == 1
    assert (
        counted.trips(lambda n: states.delete(f"fenced {n}", expected_revision=(4 if n == 0 else 1), fence=fence)) == 1
    )


def test_calls_of_leases_take_one_round_trip(counted: Counted) -> None:
    leases = counted.tenant.leases
    fences = [leases.acquire(f"released {n}", owner="a", ttl_seconds=60).fence for n in range(_WARM_UPS)]
    assert counted.trips(lambda n: leases.acquire(f"new {n}", owner="a", ttl_seconds=60, metadata={"n": n})) == 1
    assert counted.trips(lambda n: leases.inspect(f"new {n}")) == 1
    assert counted.trips(lambda n: leases.list(limit=1 + n)) == 1
    assert counted.trips(lambda n: leases.renew(fences[n])) == 1
    assert counted.trips(lambda n: leases.release(fences[n])) == 1
    assert counted.trips(lambda n: leases.acquire(f"released {n}", owner="b", ttl_seconds=60)) == 1


def test_calls_of_idempotency_take_one_round_trip(counted: Counted) -> None:
    keys = counted.tenant.idempotency

    def reserve(key: str) -> Reservation:
        return keys.reserve(key, request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)

    attempts = [reserve(f"completed {n}").attempt for n in range(_WARM_UPS)]
    assert counted.trips(lambda n: reserve(f"new {n}")) == 1
    assert counted.trips(lambda n: keys.renew(attempts[n])) == 1
    assert counted.trips(lambda n: keys.complete(attempts[n], n)) == 1
    told = [reserve(f"told {n}").attempt for n in range(_WARM_UPS)]
    assert counted.trips(lambda n: keys.complete(told[n], outcome_fingerprint=fingerprint(n))) == 1
    assert counted.trips(lambda n: keys.list(limit=1 + n)) == 1
    assert counted.trips(lambda n: reserve(f"completed {n}")) == 1
    assert counted.trips(lambda n: keys.get(f"completed {n}")) == 1
    assert counted.trips(lambda n: keys.forget(f"completed {n}")) == 1


def test_an_unused_transaction_takes_none(counted: Counted) -> None:
    def open_and_close(_: int) -> None:
        with counted.tenant.transaction():
            pass

    assert counted.trips(open_and_close) == 0


def test_a_transaction_takes_one_for_each_statement_and_one_for_its_commit(counted: Counted) -> None:
    """BEGIN, and what marks and forgets a savepoint, travel with the statements."""
    states = counted.tenant.states
    fence = counted.tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence

    def write_two(n: int) -> None:
        with counted.tenant.transaction(fence=fence) as tx:
            with tx.transaction():
                tx.states.create(f"first {n}", n)
            tx.states.create(f"second {n}", n)

    def mark_alone(_: int) -> None:
        with counted.tenant.transaction() as tx, tx.transaction(), tx.transaction():
            pass

    def undo(n: int) -> None:
        with counted.tenant.transaction() as tx:
            with suppress(ZeroDivisionError), tx.transaction():
                _ = 1 / 0
            tx.states.create(f"kept {n}", n)

    assert counted.trips(write_two) == 3
    assert counted.trips(mark_alone) == 0
    assert counted.trips(undo) == 2
    assert len(states.list_ids(prefix="kept").items) == 3


def test_three_fenced_writes_that_nobody_waits_for_take_two(counted: Counted) -> None:
    """All of them travel together with BEGIN; COMMIT waits until it is known that none was refused."""
    tenant = counted.tenant
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    reserved = [
        tenant.idempotency.reserve(f"k {n}", request=n, result_ttl_seconds=60, attempt_ttl_seconds=60)
        for n in range(_WARM_UPS)
    ]

    def write(n: int) -> None:
        with tenant.transaction(fence=fence) as tx, tx.pipeline() as pipeline:
            pipeline.states.create(f"a {n}", n)
            pipeline.states.create(f"b {n}", n)
            pipeline.idempotency.complete(reserved[n].attempt, n)

    assert counted.trips(write) == 2
    assert counted.tenant.states.require("b 2").value == 2


def test_calls_for_many_take_one_round_trip_or_with_their_transaction_two(counted: Counted) -> None:
    tenant = counted.tenant
    fences = [tenant.leases.acquire(f"r{n}", owner="a", ttl_seconds=60).fence for n in range(9)]
    bounds = {"result_ttl_seconds": 60.0, "attempt_ttl_seconds": 60.0}

    def create(n: int, *, atomic: bool) -> None:
        tenant.states.create_many([NewState(f"{atomic} {n} {each}", n) for each in range(9)], atomic=atomic)

    def update(n: int, *, atomic: bool) -> None:
        updates = [StateUpdate(f"{atomic} 0 {each}", n, n + 1) for each in range(9)]
        tenant.states.update_many(updates, atomic=atomic, fence=fences[0])

    def reserve(n: int, *, atomic: bool) -> None:
        requests = [KeyRequest(f"{atomic} {n} {each}", request=n) for each in range(9)]
        reserved = tenant.idempotency.reserve_many(requests, atomic=atomic, **bounds)
        tenant.idempotency.complete_many([Completion(each.attempt, n) for each in reserved], atomic=atomic)

    assert counted.trips(lambda _: tenant.states.get_many(["a", "b"])) == 1
    for atomic, trips in ((False, 1), (True, 2)):
        assert counted.trips(partial(create, atomic=atomic)) == trips
        assert counted.trips(partial(update, atomic=atomic)) == trips
        assert counted.trips(lambda _, atomic=atomic: tenant.leases.renew_many(fences, atomic=atomic)) == trips  # type: ignore[misc]  # one number
        assert counted.trips(partial(reserve, atomic=atomic)) == 2 * trips
