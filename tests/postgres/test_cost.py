"""What a call costs the tables: no write where nothing changes, and updates that touch no index."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nl2state import AttemptInFlightError, Json, Reservation, TenantScope
from nl2state.testing.harness import until
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.connection import Connection
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


def test_updates_renewals_and_completions_are_hot_and_tables_stay_as_small_as_they_were(
    alone: PostgresHarness,
) -> None:
    """In a full table too: what was replaced makes room on its page. Not with an index on what they change."""
    names = [f"order-{number:03}" for number in range(200)]
    value: Json = {"text": "x" * 300}
    with alone.open() as store:
        tenant = store.tenant(TenantScope.local())
        for name in names:
            tenant.states.create(name, value, ttl_seconds=600)
        fences = [tenant.leases.acquire(name, owner="a", ttl_seconds=600).fence for name in names]
    for table in ("states", "leases"):
        alone.observer.execute(f"VACUUM {alone.schema}.{table}")
    before = _sizes(alone)
    with alone.open() as store:
        tenant = store.tenant(TenantScope.local())
        for revision in range(1, 11):
            for name in names:
                tenant.states.update(name, value, expected_revision=revision, status="running")
        for fence in fences * 5 + fences[:1] * 1_000:
            tenant.leases.renew(fence)
        for name in names:
            reservation = tenant.idempotency.reserve(name, request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
            tenant.idempotency.renew(reservation.attempt)
            tenant.idempotency.complete(reservation.attempt, value)
    for table, count in {"states": 2_000, "leases": 2_000, "keys": 400}.items():
        until(lambda table=table, count=count: _updates(alone, table)[0] >= count, "the counts")  # type: ignore[misc]
        updates, hot = _updates(alone, table)
        assert hot >= 0.99 * updates, (table, updates, hot)
    assert _sizes(alone) == before


def _updates(harness: PostgresHarness, table: str) -> tuple[int, int]:
    """Return how many updates the ended sessions made, and how many of them were HOT."""
    sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = %s"
    updates, hot = harness.observer.execute(sql, [harness.schema, table]).fetchone() or (0, 0)
    return int(updates), int(hot)


def _sizes(harness: PostgresHarness) -> list[Any]:
    tables = [f"{harness.schema}.{table}" for table in ("states", "leases")]
    sql = "SELECT pg_table_size(name), pg_indexes_size(name) FROM unnest(%s::regclass[]) name"
    return harness.observer.execute(sql, [tables]).fetchall()


@pytest.mark.parametrize(
    "name",
    [
        *("get_states", "create_states", "update_states", "reserve_keys", "complete_keys", "renew_leases"),
        *("create_states_fenced", "update_states_fenced", "complete_keys_fenced"),
        *("explain_states", "read_back_states", "read_back_keys"),
    ],
)
def test_a_call_for_many_looks_each_row_up_by_its_key_whatever_its_plan_was_made_for(
    harness: PostgresHarness, name: str
) -> None:
    """P11: a plan that reads the table, since that was small when it was made, would read it when it is large."""
    for table in ("states", "leases", "keys"):
        harness.observer.execute(f"VACUUM (ANALYZE) {harness.schema}.{table}")  # so that it is known to be empty
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    connection = Connection.ready(harness.dsn, harness.settings, catalog)
    try:
        connection.command(f"PREPARE many AS {catalog[name].sql}")
        nothing = ", ".join(["NULL"] * len(catalog[name].parameters))
        (plan,) = connection.command(f"EXPLAIN (FORMAT JSON) EXECUTE many ({nothing})").row or (None,)
    finally:
        connection.close()
    scans = [node for node in _nodes(plan[0]["Plan"]) if "Scan" in node["Node Type"] and "Relation Name" in node]
    assert scans
    for scan in scans:
        assert len(re.findall(r"\((scope|record_id|key|resource) = ", scan.get("Index Cond", ""))) == 2, scan


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for inner in plan.get("Plans", ()) for node in _nodes(inner))]
