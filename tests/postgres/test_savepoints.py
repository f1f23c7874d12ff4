"""P9: a savepoint undoes and heals whatever failed in it, though it travels with what is sent next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nl2state import StoreTimeoutError, Tenant, Transaction
from tests.servers import PostgresHarness, connect


@pytest.fixture
def impatient(dsn: str) -> Iterator[PostgresHarness]:
    """Yield a store whose waits for a lock are short, and whose connections have prepared nothing of keys yet."""
    made = PostgresHarness(dsn, lock_timeout_seconds=0.2, connections_max=1)
    yield made
    made.close()


@contextmanager
def _locked(harness: PostgresHarness) -> Iterator[None]:
    """Lock the table of keys: then a statement of it cannot even be prepared."""
    with connect(harness.dsn) as other, other.transaction():
        other.execute(f"LOCK TABLE {harness.schema}.keys IN ACCESS EXCLUSIVE MODE".encode())
        yield


def _ask(tx: Transaction) -> None:
    tx.idempotency.get("k")


def _collect(tx: Transaction) -> None:
    with tx.pipeline() as pipeline:
        pipeline.states.create("undone", 1)
        pipeline.idempotency.forget("k")


@pytest.mark.parametrize("fails", [_ask, _collect])
@pytest.mark.parametrize("begun", [True, False])
def test_a_savepoint_heals_a_statement_that_could_not_be_prepared(
    impatient: PostgresHarness, begun: bool, fails: Callable[[Transaction], None]
) -> None:
    tenant: Tenant = impatient.tenant()
    with tenant.transaction() as tx:
        if begun:
            tx.states.create("before", 1)
        with _locked(impatient), pytest.raises(StoreTimeoutError) as raised, tx.transaction() as inner:
            fails(inner)
        assert raised.value.__context__ is None
        tx.states.create("kept", 1)
        with pytest.raises(LookupError), tx.transaction():
            tx.states.create("undone too", 1)
            fails(tx)
            raise LookupError
    assert set(tenant.states.list_ids().items) == {"kept"} | ({"before"} if begun else set())
