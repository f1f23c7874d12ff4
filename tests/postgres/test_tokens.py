"""P5 on PostgreSQL: what the server's timeline, or an operator's epoch, adds to a token."""

from __future__ import annotations

import pytest

from nl2state import TenantScope
from nl2state_postgres import PostgresStore
from tests.servers import PostgresHarness


def test_a_restored_or_upgraded_server_goes_on_with_greater_tokens(harness: PostgresHarness) -> None:
    """P5: a timeline lower than the last one seen says that the data came from another server."""
    before = harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60).fence
    sql = f"SELECT epoch_base, timeline FROM {harness.schema}.metadata"
    base, timeline = harness.observer.execute(sql).fetchone() or (0, 0)
    assert base == 0
    harness.observer.execute(f"UPDATE {harness.schema}.metadata SET timeline = {timeline + 6}")
    for _ in range(2):
        with harness.open() as restored:
            tenant = restored.tenant(TenantScope.derive("acme", pepper="the pepper of the tests"))
            fence = tenant.leases.acquire(f"new {_}", owner="a", ttl_seconds=60).fence
            assert fence.token >> 41 == timeline + 6 + timeline
            assert fence.token > before.token
        assert harness.observer.execute(sql).fetchone() == (timeline + 6, timeline)


def test_an_operator_s_epoch_takes_the_timeline_s_place(harness: PostgresHarness) -> None:
    settings = harness.settings.model_copy(update={"epoch": 77})
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings) as store:
        assert store.tenant(TenantScope.local()).leases.acquire("r", owner="a", ttl_seconds=60).fence.token >> 41 == 77


@pytest.mark.parametrize("before", ["free", "expired"])
def test_a_row_that_outlived_a_fail_over_goes_on_in_the_new_epoch(harness: PostgresHarness, before: str) -> None:
    """P5: the replica that was promoted may lack the last grants, so its row's own next token is not enough."""
    scope = TenantScope.derive("acme", pepper="the pepper of the tests")
    lease = harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60)
    attempt = harness.tenant().idempotency.reserve("k", request=1, result_ttl_seconds=9, attempt_ttl_seconds=9).attempt
    if before == "free":
        harness.tenant().leases.release(lease.fence)
    harness.advance(61)
    settings = harness.settings.model_copy(update={"epoch": 77})
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings) as promoted:
        tenant = promoted.tenant(scope)
        assert tenant.leases.acquire("r", owner="b", ttl_seconds=60).fence.token >> 41 == 77 > lease.fence.token >> 41
        again = tenant.idempotency.reserve("k", request=1, result_ttl_seconds=9, attempt_ttl_seconds=9).attempt
        assert again.number >> 41 == 77 > attempt.number >> 41
