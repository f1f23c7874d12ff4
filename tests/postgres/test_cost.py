"""What a call costs the tables: no write where nothing changes, and updates that touch no index."""

from __future__ import annotations

from typing import Any

import pytest

from nl2state import AttemptInFlightError, Reservation
from nl2state.testing.harness import until
from tests.servers import PostgresHarness


def test_a_replay_and_a_busy_call_write_nothing(harness: PostgresHarness) -> None:
    """A completed key and a held lease are only read by everybody else: no new row version, and no row lock."""
    tenant = harness.tenant()

    def versions() -> list[Any]:
        tables = ((f"{harness.schema}.{table}") for table in ("keys", "leases"))
        return [harness.observer.execute(f"SELECT ctid, xmin, xmax FROM {table}").fetchall() for table in tables]

    def reserve() -> Reservation:
        return tenant.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)

    attempt = reserve().attempt
    tenant.leases.acquire("r", owner="a", ttl_seconds=60)
    before = versions()
    with pytest.raises(AttemptInFlightError):
        reserve()
    assert tenant.leases.try_acquire("r", owner="b", ttl_seconds=60) is None
    assert versions() == before
    tenant.idempotency.complete(attempt, "done")
    before = versions()
    assert reserve().completed
    assert versions() == before


def test_updates_renewals_and_acquisitions_are_hot(harness: PostgresHarness) -> None:
    tenant = harness.tenant()
    tenant.states.create("s", 0, ttl_seconds=600)
    for revision in range(1, 201):
        tenant.states.update("s", revision, expected_revision=revision, status="running")
    fence = tenant.leases.acquire("renewed", owner="a", ttl_seconds=60).fence
    for _ in range(200):
        tenant.leases.renew(fence)
    for client in harness.clients:
        client.close()  # a session hands in its counts when it ends

    def counts(table: str) -> tuple[int, int]:
        sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = %s"
        row = harness.observer.execute(sql, [harness.schema, table]).fetchone() or (0, 0)
        return int(row[0]), int(row[1])

    for table in ("states", "leases"):
        until(lambda table=table: counts(table)[0] >= 200, "the counts")  # type: ignore[misc]  # bound at once
        updates, hot = counts(table)
        assert hot >= 0.95 * updates, (table, updates, hot)
