"""P4, under a lock wait: a grant whose life was counted from before the wait is not handed out when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from nl2state import Fence, Lease, TenantScope
from nl2state.testing.harness import start_waiting
from nl2state_postgres.binding import PostgresBinding
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.runners import Row
from tests.races.session import Session
from tests.servers import PostgresHarness

_SCOPE = TenantScope.derive("acme", pepper="the pepper of the tests").uuid


def test_an_acquire_that_waited_for_longer_than_it_lives_gets_one_that_is_not_over(harness: PostgresHarness) -> None:
    """Case 10: somebody's grant is uncommitted for a minute, and then undone; the waiter's own began before that."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, leases = Session(harness, catalog), harness.tenant().leases
    a.send("BEGIN")
    assert a.run("acquire_lease", scope=_SCOPE, ttl_seconds=60.0)
    waiter = start_waiting(harness, lambda: leases.acquire("r", owner="B", ttl_seconds=60))
    harness.advance(61)
    harness.advance_clients(61)
    a.send("ROLLBACK")
    lease = waiter.result()
    assert lease.deadline - harness._monotonic() > 50
    record = leases.inspect("r")
    assert record is not None
    assert (record.token, record.expired) == (lease.fence.token, False)
    assert leases.renew(lease.fence).fence == lease.fence
    a.close()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_release_that_waited_for_a_takeover_looks_again(harness: PostgresHarness, end: str) -> None:
    """Case 13: A's late release, behind B's takeover, leaves B's lease; behind one that is undone, it frees A's."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, b = Session(harness, catalog), Session(harness, catalog)
    token = a.run("acquire_lease", ttl_seconds=60.0)[0]
    harness.advance(61)
    b.send("BEGIN")
    theirs = b.run("take_over_lease", owner="B", ttl_seconds=60.0)[0]
    release = start_waiting(harness, lambda: a.run("release_lease", token=token))
    b.send(end)
    if end == "COMMIT":
        assert release.result() is None
        assert b.run("renew_lease", owner="B", token=theirs)
    else:
        assert release.result()[0] == token
        assert b.run("acquire_lease", owner="B", ttl_seconds=60.0)[0] > token
    a.close()
    b.close()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_revocation_s_second_half_that_waited_for_a_release_looks_again(harness: PostgresHarness, end: str) -> None:
    """Case 11: what was released meanwhile is free already, and its row is not written again."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    a, operator = Session(harness, catalog), Session(harness, catalog)
    token = a.run("acquire_lease", ttl_seconds=60.0)[0]
    assert operator.run("expire_lease")[0] == token
    a.send("BEGIN")
    assert a.run("release_lease", token=token)
    revocation = start_waiting(harness, lambda: operator.run("revoke_lease", token=token))
    a.send(end)
    assert revocation.result() == (None if end == "COMMIT" else (token,))
    a.close()
    operator.close()


def test_a_revocation_leaves_a_grant_that_came_between_its_halves(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 11: what the operator saw is revoked, and not what another has taken over meanwhile."""
    mine, theirs = harness.tenant().leases, harness.tenant(client=1).leases
    old = mine.acquire("r", owner="a", ttl_seconds=60)
    write = PostgresBinding.write
    taken: list[Lease] = []

    def take_over_first(binding: PostgresBinding, name: str, fence: Fence | None, values: dict[str, Any]) -> Row | None:
        if name == "revoke_lease":
            monkeypatch.undo()
            taken.append(theirs.acquire("r", owner="b", ttl_seconds=60))
        return write(binding, name, fence, values)

    monkeypatch.setattr(PostgresBinding, "write", take_over_first)
    assert mine.revoke("r")
    assert taken[0].fence.token > old.fence.token
    assert theirs.renew(taken[0].fence).fence == taken[0].fence
