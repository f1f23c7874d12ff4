"""A server that turns read-only, goes away, is killed, and comes back: its store is not opened anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg_pool
import pytest
from psycopg_pool.base import AttemptWithBackoff

from nl2state import (
    StoreTimeoutError,
    StoreUnavailableError,
    Tenant,
    TenantScope,
)
from nl2state.testing.harness import together, until
from nl2state_postgres import PostgresStore, Settings
from nl2state_postgres.embedded import EmbeddedPostgres
from nl2state_postgres.pools import OwnPool, taken
from tests.servers import PostgresHarness, connect

_CONNECTIONS = 4
_THREADS = 6


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """Yield a server of the test's own, which it may kill."""
    with EmbeddedPostgres() as made:
        yield made


@pytest.fixture
def store(server: EmbeddedPostgres) -> Iterator[PostgresStore]:
    """Yield a store on it, which gives up soon where there is no server."""
    settings = Settings(
        connections_min=_CONNECTIONS,
        connections_max=_CONNECTIONS,
        checkout_timeout_seconds=1.0,
        connect_timeout_seconds=2.0,
        application_name="outage",
    )
    with PostgresStore.open(server.dsn, settings=settings) as made:
        yield made


def _tenant(store: PostgresStore) -> Tenant:
    return store.tenant(TenantScope.local())


def _pool(store: PostgresStore) -> psycopg_pool.ConnectionPool[Any]:
    """Return the driver's pool that is beneath the store's."""
    pool = store._database._pool
    assert isinstance(pool, OwnPool)
    return pool._pool


def _works(store: PostgresStore) -> bool:
    try:
        _tenant(store).states.get("s")
    except (StoreUnavailableError, StoreTimeoutError):
        return False
    return True


def _pids(dsn: str, name: str) -> set[int]:
    with connect(dsn) as observer:
        rows = observer.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name]).fetchall()
        return {row[0] for row in rows}


def _use_every_connection(store: PostgresStore) -> list[object]:
    """Read on each of the pool's connections at the same moment, and return what the calls raised or None."""
    inside = threading.Barrier(_CONNECTIONS)

    def read(_: int) -> None:
        with _tenant(store).transaction() as tx:
            tx.states.get("s")
            inside.wait(20)

    return list(together(_CONNECTIONS, read))


@pytest.mark.parametrize("where", ["alone", "in a transaction"])
def test_a_connection_whose_server_turned_read_only_is_not_used_again(harness: PostgresHarness, where: str) -> None:
    """Case 36: after 25006 under a live connection nothing is kept, and the call, or the next one, has another."""
    name = f"{harness.schema[:50]}-ro"
    settings = harness.settings.model_copy(update={"connections_max": 1, "application_name": name})
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings) as store:
        tenant = _tenant(store)
        tenant.states.create("s", 1)
        before = _pids(harness.dsn, name)
        assert len(before) == 1
        if where == "alone":
            with taken(store._database._pool) as connection:
                connection.command("SET default_transaction_read_only = on")
            assert tenant.states.update("s", 3, expected_revision=1).revision == 2  # it is sent again, on another
        else:
            with pytest.raises(StoreUnavailableError) as raised, tenant.transaction() as tx, tx.transaction():
                tx.states.create("t", 1)
                tx._session._connection.command("SET TRANSACTION READ ONLY")  # type: ignore[attr-defined]  # as the server does
                tx.states.update("s", 2, expected_revision=1)
            assert raised.value.retryable
            assert tenant.states.update("s", 3, expected_revision=1).revision == 2
            assert tenant.states.get("t") is None
        after = _pids(harness.dsn, name)
        assert len(after) == 1
        assert after.isdisjoint(before)


def test_a_plan_that_is_older_than_the_schema_costs_a_transaction_at_most(harness: PostgresHarness) -> None:
    """P10: what a migration of a newer version does to the plans of one that still runs."""
    tenant = harness.tenant()
    tenant.states.create("s", 1)
    assert tenant.states.get_checkpoint("s", "q") is None
    harness.observer.execute(f"ALTER TABLE {harness.schema}.states ALTER COLUMN parent_id TYPE varchar(300)")
    assert tenant.states.get_checkpoint("s", "q") is None  # it came before the execution, and was sent again
    harness.observer.execute(f"ALTER TABLE {harness.schema}.states ALTER COLUMN parent_id TYPE varchar(400)")
    with pytest.raises(StoreUnavailableError) as raised, tenant.transaction() as tx:
        tx.states.get_checkpoint("s", "q")
    assert raised.value.retryable
    with tenant.transaction() as tx:
        assert tx.states.get_checkpoint("s", "q") is None


def test_idle_connections_that_died_cost_no_caller_an_error(server: EmbeddedPostgres, store: PostgresStore) -> None:
    """Case 37: the server was away while nobody called; whatever is safe to send again is answered at once."""
    tenant = _tenant(store)
    tenant.states.create("s", 1)
    lease = tenant.leases.acquire("r", owner="a", ttl_seconds=600)
    assert _use_every_connection(store) == [None] * _CONNECTIONS
    server.kill()
    server.restart()
    assert together(8, lambda _: tenant.states.require("s").revision) == [1] * 8
    server.kill()
    server.restart()
    assert together(8, lambda n: tenant.states.create(f"s{n}", n).revision) == [1] * 8
    assert [tenant.states.require(f"s{n}").revision for n in range(8)] == [1] * 8
    server.kill()
    server.restart()
    assert tenant.leases.renew(lease.fence).fence == lease.fence
    server.kill()
    server.restart()
    tenant.leases.release(lease.fence)
    server.kill()
    server.restart()
    assert tenant.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt.key == "k"


def test_a_transaction_that_begins_on_an_idle_connection_that_died_costs_no_error(
    server: EmbeddedPostgres, store: PostgresStore
) -> None:
    """Case 37: nothing of it was done before its first statement, so that it begins on another connection."""
    tenant = _tenant(store)
    assert _use_every_connection(store) == [None] * _CONNECTIONS
    server.kill()
    server.restart()

    def write(number: int) -> int:
        with tenant.transaction() as tx:
            return tx.states.create(f"s{number}", number).revision

    assert together(_CONNECTIONS, write) == [1] * _CONNECTIONS
    assert [tenant.states.require(f"s{n}").revision for n in range(_CONNECTIONS)] == [1] * _CONNECTIONS


@pytest.mark.parametrize("gave_up", [False, True], ids=["", "for longer than the pool tries"])
def test_a_store_whose_server_was_away_works_again(
    server: EmbeddedPostgres, store: PostgresStore, gave_up: bool
) -> None:
    """Case 37: calls are told in their time that it is away; when it is back, the same store works."""
    tenant = _tenant(store)
    tenant.states.create("s", 1)
    assert _use_every_connection(store) == [None] * _CONNECTIONS
    if gave_up:
        _pool(store).reconnect_timeout = 0.2
    server.kill()
    for _ in range(2):
        for outcome in together(_CONNECTIONS + 2, lambda _: tenant.states.get("s")):
            assert isinstance(outcome, StoreUnavailableError | StoreTimeoutError), outcome
            assert outcome.retryable
    if gave_up:
        until(lambda: _pool(store)._nconns == 0, "the pool gives up")
    server.restart()
    until(lambda: _works(store), "the store works again")
    assert _use_every_connection(store) == [None] * _CONNECTIONS
    with tenant.hold("r", owner="a") as held, held.transaction() as tx:
        assert tx.states.update("s", 2, expected_revision=1).revision == 2


def test_a_store_does_not_sleep_on_when_its_server_is_back(
    server: EmbeddedPostgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 37: after minutes of an outage the pool pauses for minutes between its tries: no call waits for that."""
    assert _use_every_connection(store) == [None] * _CONNECTIONS
    monkeypatch.setattr(AttemptWithBackoff, "INITIAL_DELAY", 600.0)
    server.kill()
    for outcome in together(_CONNECTIONS + 2, lambda _: _tenant(store).states.get("s")):
        assert isinstance(outcome, StoreUnavailableError | StoreTimeoutError), outcome
    server.restart()
    until(lambda: _works(store), "the store works again")
    assert _use_every_connection(store) == [None] * _CONNECTIONS


def test_a_held_lease_outlives_an_outage_that_is_shorter_than_its_ttl(server: EmbeddedPostgres) -> None:
    """Case 37: the heartbeat's own connection comes back too, and the holder has lost nothing."""
    moved_seconds = 0.0
    settings = Settings(checkout_timeout_seconds=1.0)
    with (
        PostgresStore.open(server.dsn, settings=settings, monotonic=lambda: time.monotonic() + moved_seconds) as store,
        _tenant(store).hold("r", owner="a", ttl_seconds=60) as held,
    ):
        first = held.lease
        moved_seconds += 21  # a renewal is due
        store._heartbeat.beat()
        assert held.lease.expires_at > first.expires_at
        server.kill()
        renewed = held.lease
        moved_seconds += 21
        store._heartbeat.beat()
        assert not held.lost
        server.restart()

        def is_renewed() -> bool:
            nonlocal moved_seconds
            moved_seconds += 1
            store._heartbeat.beat()
            return held.lease.expires_at > renewed.expires_at

        until(is_renewed, "a renewal")
        assert held.fence == first.fence
        assert held.remaining_seconds > 50
        until(lambda: _works(store), "the store works again, so that it is released")
