"""What becomes of a call when its connection, its transaction or its server fails."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from nl2state import (
    ANY_REVISION,
    FencingRejectedError,
    InvalidInputError,
    LeaseBusyError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    TenantScope,
    UsageError,
)
from nl2state.testing.harness import start, start_waiting, together, until
from nl2state_postgres import PostgresStore, Settings
from nl2state_postgres.pools import taken
from tests.postgres.everything import everything
from tests.proxy import Proxy
from tests.servers import PostgresHarness

SECRET = "hunter2-planted"


@pytest.fixture
def impatient(dsn: str) -> Iterator[PostgresHarness]:
    """Yield a store whose waits for a lock are short."""
    made = PostgresHarness(dsn, lock_timeout_seconds=0.3)
    yield made
    made.close()


@pytest.fixture
def restless(dsn: str) -> Iterator[PostgresHarness]:
    """Yield a store whose server soon ends an idle transaction."""
    made = PostgresHarness(dsn, transaction_idle_seconds=0.3)
    yield made
    made.close()


def _kill_sessions(harness: PostgresHarness) -> None:
    harness.observer.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", [harness.schema]
    )


def test_a_session_is_set_up(harness: PostgresHarness) -> None:
    seen: dict[str, str] = {}
    with (
        PostgresStore.open(harness.dsn, schema=harness.schema, settings=harness.settings) as store,
        taken(store._database._pool) as connection,
    ):
        names = (
            "TimeZone, synchronous_commit, enable_seqscan, enable_bitmapscan, jit, client_encoding, application_name,"
            " statement_timeout"
        )
        for name in names.split(", "):
            seen[name] = (connection.command(f"SHOW {name}").row or ("",))[0]
    assert seen == {
        "TimeZone": "UTC",
        "synchronous_commit": "on",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "jit": "off",
        "client_encoding": "UTF8",
        "application_name": harness.schema,
        "statement_timeout": "30s",
    }


@pytest.mark.parametrize("pooler", [False, True])
def test_statements_are_prepared_unless_a_pooler_forbids_it(harness: PostgresHarness, pooler: bool) -> None:
    settings = harness.settings.model_copy(update={"transaction_pooler": pooler, "connections_max": 1})
    bounded = "-c lock_timeout=1s -c statement_timeout=9s -c idle_in_transaction_session_timeout=9s"
    with PostgresStore.open(f"{harness.dsn} options='{bounded}'", schema=harness.schema, settings=settings) as store:
        store.tenant(TenantScope.local()).states.get("s")
        store.tenant(TenantScope.local()).states.get("s")
        with taken(store._database._pool) as connection:
            sql = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%states%'"
            assert connection.command(sql).row == (0 if pooler else 1,)


def test_a_call_that_fails_poisons_its_transaction(impatient: PostgresHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    tenant.states.create("s", 1)
    with other.transaction() as blocker:
        blocker.states.update("s", 2, expected_revision=1)
        with pytest.raises(StoreTimeoutError), tenant.transaction() as tx:
            tx.states.create("t", 1)
            with pytest.raises(StoreTimeoutError):
                tx.states.update("s", 3, expected_revision=1)
            with pytest.raises(UsageError, match="STORE_TIMEOUT"):
                tx.states.get("t")
            # the block ends as if nothing had happened: the transaction must not
    assert tenant.states.get("t") is None
    assert tenant.states.require("s").value == 2


def test_a_savepoint_heals_what_failed_in_it(impatient: PostgresHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    tenant.states.create("s", 1)
    with other.transaction() as blocker:
        blocker.states.update("s", 2, expected_revision=1)
        with tenant.transaction() as tx:
            tx.states.create("t", 1)
            with pytest.raises(StoreTimeoutError), tx.transaction():
                tx.states.update("s", 3, expected_revision=1)
            tx.states.create("u", 1)
    assert tenant.states.require("t").value == tenant.states.require("u").value == 1


def test_a_transaction_that_idles_is_ended_by_the_server_and_keeps_nothing(restless: PostgresHarness) -> None:
    tenant = restless.tenant()
    tenant.states.create("s", 1)
    with pytest.raises(StoreTimeoutError), tenant.transaction() as tx:
        tx.states.update("s", 2, expected_revision=1)
        until(lambda: restless.idle_in_transaction() == 0, "the server ends it")
    assert tenant.states.require("s").value == 1


def test_a_holder_stopped_in_its_transaction_delays_its_successor_and_does_not_commit(
    restless: PostgresHarness,
) -> None:
    """P6, P13: the takeover waits for the open transaction, which the server ends; its commit then says so."""
    tenant, other = restless.tenant(), restless.tenant(client=1)
    tenant.states.create("s", 1)
    old = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    with pytest.raises(StoreTimeoutError), tenant.transaction(fence=old) as tx:
        tx.states.update("s", "old", expected_revision=1)
        restless.advance(61)
        new = other.leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=20)
        other.states.update("s", "new", expected_revision=1, fence=new.fence)
    assert new.taken_over
    assert tenant.states.require("s").value == "new"
    with pytest.raises(FencingRejectedError):
        tenant.leases.release(old)


def test_a_takeover_behind_an_open_transaction_is_busy_when_its_time_is_over(impatient: PostgresHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    with tenant.transaction(fence=fence) as tx:
        tx.states.create("s", 1)
        impatient.advance(61)
        takeover = start_waiting(impatient, lambda: other.leases.acquire("r", owner="b", ttl_seconds=60))
        with pytest.raises(LeaseBusyError) as refused:
            takeover.result()
        assert refused.value.owner == "a"


def test_an_acquire_behind_an_open_release_is_busy_when_its_time_is_over(impatient: PostgresHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    with tenant.transaction() as tx:
        tx.leases.release(fence)
        with pytest.raises(LeaseBusyError):
            other.leases.acquire("r", owner="b", ttl_seconds=60)
        waiter = start(lambda: other.leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=20))
    assert waiter.result().fence.token > fence.token


def test_an_acquire_behind_a_free_row_that_stays_locked_is_busy_and_does_not_start_over(
    impatient: PostgresHarness,
) -> None:
    """P11: nobody holds it, and a hundred tries would each wait as long."""
    tenant = impatient.tenant()
    tenant.leases.release(tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence)
    with impatient.observer.transaction():
        impatient.observer.execute(f"SELECT FROM {impatient.schema}.leases FOR UPDATE")
        with pytest.raises(LeaseBusyError) as refused:
            tenant.leases.acquire("r", owner="b", ttl_seconds=60)
        assert refused.value.owner is None


def test_what_waits_is_seen_among_the_server_s_locks(harness: PostgresHarness) -> None:
    """P6, as pg_locks shows it: the takeover waits for the holder's transaction, and the renewal did not."""
    tenant, other = harness.tenant(), harness.tenant(client=1)
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    with tenant.transaction(fence=fence) as tx:
        tx.states.create("s", 1)
        other.leases.renew(fence)
        harness.advance(61)
        takeover = start_waiting(harness, lambda: other.leases.acquire("r", owner="b", ttl_seconds=60))
        waits = harness.observer.execute(
            "SELECT l.locktype, l.mode, holder.state FROM pg_locks l JOIN pg_stat_activity w USING (pid)"
            " CROSS JOIN LATERAL unnest(pg_blocking_pids(l.pid)) AS b(pid)"
            " JOIN pg_stat_activity holder ON holder.pid = b.pid"
            " WHERE NOT l.granted AND w.application_name = %s AND holder.application_name = %s",
            [harness.schema, harness.schema],
        ).fetchall()
        assert waits == [("transactionid", "ShareLock", "idle in transaction")]
    assert takeover.result().fence.token > fence.token


def test_connections_that_died_while_they_idled_cost_no_caller_an_error(harness: PostgresHarness) -> None:
    """Case 37: nothing was sent on them, so that nothing is in doubt: not even of a write that is not sent again."""
    tenant = harness.tenant()
    together(4, lambda number: tenant.states.create(f"s{number}", 1))  # so that there are some connections
    for number in range(8):
        _kill_sessions(harness)
        tenant.states.create(f"t{number}", 1)
        _kill_sessions(harness)
        with tenant.transaction() as tx:
            tx.states.put(f"t{number}", 2)
    assert len(tenant.states.list(prefix="t").items) == 8


def test_the_store_works_again_when_a_connection_was_killed_in_its_transaction(harness: PostgresHarness) -> None:
    tenant = harness.tenant()
    tenant.states.create("s", 1)
    with pytest.raises(StoreUnavailableError), tenant.transaction() as tx:
        tx.states.update("s", 2, expected_revision=1)
        _kill_sessions(harness)
        tx.states.update("s", 3, expected_revision=2)
    assert tenant.states.require("s").value == 1


@pytest.mark.parametrize(
    ("dsn", "kind"),
    [
        (f"host=127.0.0.1 port=1 user={SECRET} password={SECRET} dbname={SECRET}", StoreUnavailableError),
        (f"host=/nowhere/{SECRET}", StoreUnavailableError),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/{SECRET}", StoreUnavailableError),
        (f"garbage {SECRET}", InvalidInputError),
        (f"host={SECRET}\ud800", InvalidInputError),
        (None, InvalidInputError),
        (f"host={'x' * 64}.{SECRET}", StoreUnavailableError),
        (f"host={SECRET} nonsense={SECRET}", InvalidInputError),
    ],
)
def test_a_server_that_cannot_be_reached_is_told_without_its_dsn(dsn: str, kind: type[StoreError]) -> None:
    """Case 40: no server, an unknown host and garbage; see test_unreachable for their deadlines."""
    with pytest.raises(kind) as raised:
        PostgresStore.open(dsn, settings=Settings(connect_timeout_seconds=2))
    assert SECRET not in everything(raised.value)


def test_nothing_of_a_failed_call_is_in_its_error_nor_in_the_log(
    impatient: PostgresHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """P10, in part: a lock timeout, a killed session, and a pool that cannot connect."""
    caplog.set_level(logging.DEBUG)
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    tenant.states.create(SECRET, SECRET)
    errors: list[BaseException] = []

    def fails(call: Callable[[], object]) -> None:
        with pytest.raises(StoreError) as raised:
            call()
        errors.append(raised.value)

    with other.transaction() as tx:
        tx.states.update(SECRET, 1, expected_revision=1)
        fails(lambda: tenant.states.update(SECRET, SECRET, expected_revision=1))
        fails(lambda: tenant.states.update(SECRET, {SECRET: float("nan")}, expected_revision=1))
        fails(lambda: tenant.states.create(SECRET, SECRET + "\ud800"))
        fails(lambda: tenant.states.create(SECRET + "\ud800", 1))
    fails(lambda: tenant.states.update(SECRET, SECRET, expected_revision=7))
    impatient.observer.execute(
        f"ALTER TABLE {impatient.schema}.states RENAME COLUMN payload TO {SECRET.replace('-', '_')}"
    )
    fails(lambda: tenant.states.update(SECRET, SECRET, expected_revision=2))
    _kill_sessions(impatient)
    fails(lambda: tenant.states.update(SECRET, SECRET, expected_revision=ANY_REVISION))
    for error in errors:
        assert SECRET not in everything(error)
        assert impatient.schema not in everything(error)
    assert SECRET not in caplog.text
    assert impatient.dsn not in caplog.text
    host = str(psycopg.conninfo.conninfo_to_dict(impatient.dsn).get("host"))
    assert host not in caplog.text


def test_a_store_is_not_used_over_a_fork(harness: PostgresHarness) -> None:
    """Two processes on one connection would read each other's answers."""
    code = """
import os, sys
from nl2state import TenantScope, UsageError
from nl2state_postgres import PostgresStore
store = PostgresStore.open(sys.argv[1], schema=sys.argv[2])
tenant = store.tenant(TenantScope.local())
tenant.states.create("s", 1)
child = os.fork()
if not child:
    refused = 0
    calls = [lambda: tenant.states.get("s"), tenant.hold("r", owner="a").__enter__, tenant.transaction().__enter__]
    for call in calls:
        try:
            call()
        except UsageError:
            refused += 1
    store.close()  # which must not end the parent's connections
    with PostgresStore.open(sys.argv[1], schema=sys.argv[2]) as own:
        refused += own.tenant(TenantScope.local()).states.require("s").value
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), tenant.states.require("s").value)
store.close()
"""
    command = [sys.executable, "-c", code, harness.dsn, harness.schema]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "4 1\n", ran.stderr


def test_a_transaction_is_not_used_over_a_fork(harness: PostgresHarness) -> None:
    """A child neither commits nor undoes what its parent does on that connection, however it leaves the block."""
    code = """
import contextlib, os, sys
from nl2state import TenantScope, UsageError
from nl2state_postgres import PostgresStore
store = PostgresStore.open(sys.argv[1], schema=sys.argv[2])
tenant = store.tenant(TenantScope.local())
def by_its_end(tx): pass
def by_raising(tx): raise LookupError
def by_a_call(tx): tx.states.get("s")
def by_a_savepoint(tx): tx.transaction().__enter__()
told = []
for number, leave in enumerate([by_its_end, by_raising, by_a_call, by_a_savepoint]):
    for nested in False, True:
        parent, name = os.getpid(), f"{number}-{nested}"
        try:
            with tenant.transaction() as tx, tx.transaction() if nested else contextlib.nullcontext():
                tx.states.create(name, 1)
                child = os.fork()
                if not child:
                    leave(tx)
                else:
                    told.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                    tx.states.update(name, 2, expected_revision=1)
        except UsageError as error:
            os._exit(3 if "fork" in str(error) else 4)
        except LookupError:
            os._exit(5)
        if os.getpid() != parent:
            os._exit(6)
        told.append(tenant.states.require(name).revision)
print(told)
store.close()
"""
    command = [sys.executable, "-W", "ignore", "-c", code, harness.dsn, harness.schema]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == f"{[3, 2, 3, 2, 5, 2, 5, 2, 3, 2, 3, 2, 3, 2, 3, 2]}\n", ran.stderr


def test_a_heartbeat_is_never_behind_a_busy_pool(harness: PostgresHarness) -> None:
    settings = harness.settings.model_copy(update={"connections_max": 1})
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings) as store:
        tenant = store.tenant(TenantScope.local())
        with tenant.hold("r", owner="a", ttl_seconds=3) as held, held.transaction() as tx:
            tx.states.create("s", 1)
            before = held.lease
            until(lambda: held.lease.expires_at > before.expires_at, "a renewal")


def test_a_server_that_is_away_is_said_to_be_unavailable_and_not_slow(harness: PostgresHarness, tmp_path: Path) -> None:
    settings = harness.settings.model_copy(update={"checkout_timeout_seconds": 1.0})
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(tmp_path, harness.dsn))
        store = PostgresStore.open(proxy.dsn, schema=harness.schema, settings=settings)
        tenant = store.tenant(TenantScope.local())
        tenant.states.create("s", 1)
        stack.pop_all().close()
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                tenant.states.get("s")
        store.close()


def test_a_closed_store_says_so(harness: PostgresHarness) -> None:
    store = harness.open()
    tenant = store.tenant(TenantScope.local())
    store.close()
    store.close()
    with pytest.raises(UsageError):
        tenant.states.get("s")
    with pytest.raises(UsageError), tenant.hold("r", owner="a"):
        pass
