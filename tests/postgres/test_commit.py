"""P9, where a commit fails: it is never reported as success, and never sent again."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from nl2state import OutcomeUnknownError, StoreError, StoreUnavailableError, TenantScope, Transaction
from nl2state.testing.harness import start, until
from nl2state_postgres.connection import Connection
from tests.servers import PostgresHarness


def _connection_of(tx: Transaction) -> Connection:
    return tx._session._connection  # type: ignore[attr-defined,no-any-return]  # what a fault needs to reach


def test_a_commit_that_the_server_answers_with_rollback_is_none(harness: PostgresHarness) -> None:
    """Case 38: a server that has aborted the transaction takes COMMIT without an error, and rolls back."""
    tenant = harness.tenant()
    ran: list[str] = []
    with pytest.raises(StoreUnavailableError) as raised, tenant.transaction() as tx:
        tx.states.create("s", 1)
        tx.after_commit(lambda: ran.append("reported"))
        with suppress(psycopg.Error):  # behind the store's back, so that nothing is poisoned
            _connection_of(tx).execute("SELECT 1 / 0")
    assert raised.value.retryable
    assert ran == []
    assert tenant.states.get("s") is None
    assert tenant.states.create("s", 2).revision == 1


def test_a_backend_that_is_killed_before_its_commit_has_kept_nothing(harness: PostgresHarness) -> None:
    """Case 38: the connection is gone when COMMIT is sent: that is told, and nothing runs after it."""
    tenant = harness.tenant()
    ran: list[str] = []
    with pytest.raises(StoreError) as raised, tenant.transaction() as tx:
        tx.states.create("s", 1)
        tx.after_commit(lambda: ran.append("reported"))
        harness.observer.execute("SELECT pg_terminate_backend(%s, 5000)", [_connection_of(tx).info.backend_pid])
    assert isinstance(raised.value, (StoreUnavailableError, OutcomeUnknownError))
    assert ran == []

    def is_read_back() -> bool:
        try:
            return tenant.states.get("s") is None
        except StoreUnavailableError:  # another connection that died
            return False

    until(is_read_back, "that nothing was kept")


def test_a_backend_that_is_killed_in_its_commit_leaves_the_outcome_unknown(harness: PostgresHarness) -> None:
    """Case 38: COMMIT is running, and waits, when its backend is killed: what it did can be read, and was done once."""
    tenant = harness.tenant()
    harness.observer.execute(f"SET search_path TO {harness.schema}")
    harness.observer.execute(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(20112); RETURN NULL; END $$"
    )
    harness.observer.execute(
        "CREATE CONSTRAINT TRIGGER pause AFTER INSERT ON states DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION pause()"
    )
    ran: list[str] = []

    def write() -> None:
        with tenant.transaction() as tx:
            tx.states.create("s", 1)
            tx.after_commit(lambda: ran.append("reported"))

    harness.observer.execute("SELECT pg_advisory_lock(20112)")
    call = start(write)
    until(lambda: harness.waiting() == 1, "the commit waits")
    killed = harness.observer.execute(
        "SELECT query, pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = %s AND wait_event_type = 'Lock'",
        [harness.schema],
    ).fetchall()
    assert killed == [("COMMIT", True)]
    with pytest.raises(OutcomeUnknownError) as raised:
        call.result()
    assert not raised.value.retryable
    harness.observer.execute("SELECT pg_advisory_unlock(20112)")
    assert ran == []
    with harness.open() as fresh:
        states = fresh.tenant(TenantScope.derive("acme", pepper="the pepper of the tests")).states
        assert states.get("s") is None
        assert states.create("s", 2).revision == 1
