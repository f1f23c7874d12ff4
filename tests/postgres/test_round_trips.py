"""One call, one statement, one round trip, where nothing is contended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nl2state import Reservation, TenantScope, fingerprint
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
