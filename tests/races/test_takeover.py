"""P4, under a lock wait: what a takeover read before it waited proves nothing after it."""

from __future__ import annotations

import pytest

from nl2state import LeaseBusyError, TenantScope
from nl2state.testing.harness import start_waiting
from nl2state_postgres.catalog import Catalog
from tests.races.session import Session
from tests.servers import PostgresHarness


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_takeover_that_waited_behind_a_renewal_looks_again(harness: PostgresHarness, end: str) -> None:
    """A's renewal has the row and is not committed; the lease expires; B's takeover waits, and finds what A left."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, b = Session(harness, catalog), Session(harness, catalog)
    token = a.run("acquire_lease", ttl_seconds=60.0)[0]
    harness.advance(59)
    a.send("BEGIN")
    assert a.run("renew_lease", token=token)
    harness.advance(2)
    takeover = start_waiting(harness, lambda: b.run("take_over_lease", owner="B", ttl_seconds=60.0))
    a.send(end)
    granted = takeover.result()
    if end == "COMMIT":
        assert granted is None
        assert a.run("renew_lease", token=token)
    else:
        assert granted[0] > token
        assert a.run("renew_lease", token=token) is None
    a.close()
    b.close()


def test_a_revocation_s_second_half_leaves_a_successor_alone(harness: PostgresHarness) -> None:
    """Between its two commits, somebody may take the expired lease over: that grant is not the one to be revoked."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, b = Session(harness, catalog), Session(harness, catalog)
    token = a.run("acquire_lease", ttl_seconds=60.0)[0]
    assert b.run("expire_lease")[0] == token
    successor = a.run("take_over_lease", owner="B", ttl_seconds=60.0)[0]
    assert b.run("revoke_lease", token=token) is None
    assert a.run("renew_lease", owner="B", token=successor)
    a.close()
    b.close()


def test_an_acquire_behind_an_uncommitted_grant_is_busy_when_its_time_is_over(dsn: str) -> None:
    harness = PostgresHarness(dsn, lock_timeout_seconds=0.2)
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a = Session(harness, catalog)
    a.send("BEGIN")
    leases = harness.tenant().leases
    a.run("acquire_lease", scope=TenantScope.derive("acme", pepper="the pepper of the tests").uuid, ttl_seconds=60.0)
    assert leases.try_acquire("r", owner="b", ttl_seconds=60) is None
    with pytest.raises(LeaseBusyError) as refused:
        leases.acquire("r", owner="b", ttl_seconds=60)
    assert refused.value.owner is None
    a.close()
    assert leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=20).fence.owner == "b"
    harness.close()


def test_a_revocation_frees_a_lease_that_a_renewal_brought_back(harness: PostgresHarness) -> None:
    """A renewal that read its clock before the first half, and waited behind it, moves the deadline again."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, operator = Session(harness, catalog), Session(harness, catalog)
    token = a.run("acquire_lease", ttl_seconds=60.0)[0]
    operator.send("BEGIN")
    assert operator.run("expire_lease")[0] == token
    renewal = start_waiting(harness, lambda: a.run("renew_lease", token=token))
    operator.send("COMMIT")
    assert renewal.result() is None or renewal.result()[0] == token
    assert operator.run("revoke_lease", token=token)[0] == token
    assert a.run("renew_lease", token=token) is None
    assert a.run("acquire_lease", ttl_seconds=60.0)[0] > token
    a.close()
    operator.close()
