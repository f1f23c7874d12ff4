"""A store behind a pooler that hands out a connection for a transaction: PgBouncer, with two of them.

Only the role's settings hold behind it, because a session is everybody's. So the store's role has them here.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import psycopg_pool
import pytest

from nl2state import (
    FencingRejectedError,
    OutcomeUnknownError,
    RevisionConflictError,
    StoreTimeoutError,
    StoreUnavailableError,
    Tenant,
    TenantScope,
)
from nl2state.testing.harness import together, until
from nl2state_postgres import PostgresStore, Settings
from nl2state_postgres.embedded import EmbeddedPostgres
from tests.pooler import Pooler
from tests.servers import connect

_SERVER_CONNECTIONS = 2
_THREADS = 8
_CALLS = 50

_SETTINGS = Settings(transaction_pooler=True, connections_max=_THREADS)
"""How a store is told that it is behind a pooler: the one line to adapt."""

_ROLE_SETTINGS = {
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "synchronous_commit": "on",
    "lock_timeout": "10s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "30s",
}
_POOLER_S_OWN = {"application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings"}
"""What PgBouncer itself sets in a server's session, whenever it gives it to another client."""


@dataclass(frozen=True)
class _Pooled:
    """A pooler, the role of its clients, and a schema that is this test's."""

    dsn: str
    role: str
    schema: str
    owner: psycopg.Connection[tuple[object, ...]]

    def open(self) -> PostgresStore:
        return PostgresStore.open(self.dsn, schema=self.schema, settings=_SETTINGS)


def _make_role(dsn: str) -> str:
    """Make a role that has, as its own, the settings that a store makes in a session where there is no pooler."""
    role = f"pooled_{uuid.uuid4().hex[:16]}"
    password = psycopg.conninfo.conninfo_to_dict(dsn).get("password")  # which the pooler sends, where there is one
    with connect(dsn) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
        if password is not None:
            owner.execute(psycopg.sql.SQL("ALTER ROLE {} PASSWORD {}").format(psycopg.sql.Identifier(role), password))
        owner.execute(f'GRANT CREATE ON DATABASE "{owner.info.dbname}" TO {role}')
        for name, value in _ROLE_SETTINGS.items():
            owner.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
    return role


@pytest.fixture
def pooled(dsn: str) -> Iterator[_Pooled]:
    role = _make_role(dsn)
    with connect(dsn) as owner:
        try:
            with Pooler(dsn, connections=_SERVER_CONNECTIONS, role=role) as pooler:
                yield _Pooled(pooler.dsn, role, f"test_{uuid.uuid4().hex}", owner)
        finally:
            owner.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [role])
            owner.execute(f"DROP OWNED BY {role} CASCADE")
            owner.execute(f"DROP ROLE {role}")


def _work(tenant: Tenant, number: int) -> int:
    """Make every kind of call, many times, on rows of its own and on one that all share; return its shared writes."""
    states, leases, keys = tenant.states, tenant.leases, tenant.idempotency
    shared, revision, token = 0, states.create(f"s{number}", 0).revision, 0
    for call in range(_CALLS):
        record = states.require(f"s{number}")
        assert (record.revision, record.value) == (revision, call)
        lease = leases.acquire(f"r{number}", owner=f"o{number}", ttl_seconds=60)
        assert lease.fence.token > token
        token = lease.fence.token
        revision = states.update(f"s{number}", call + 1, expected_revision=revision, fence=lease.fence).revision
        leases.release(lease.fence)
        attempt = keys.reserve(f"k{number}-{call}", request=call, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt
        keys.complete(attempt, {"of": number, "call": call})
        again = keys.reserve(f"k{number}-{call}", request=call, result_ttl_seconds=60, attempt_ttl_seconds=60)
        assert again.outcome == {"of": number, "call": call}
        with suppress(RevisionConflictError):
            states.update("shared", number, expected_revision=states.require("shared").revision)
            shared += 1
    return shared


def test_every_call_is_right_over_two_backends_that_many_threads_share(pooled: _Pooled) -> None:
    """Case 35: each statement far more than five times, on whichever backend: no 26000, no 42P05, the right answers."""
    with pooled.open() as store:
        tenant = store.tenant(TenantScope.local())
        tenant.states.create("shared", None)
        written = together(_THREADS, lambda number: _work(tenant, number))
        assert all(isinstance(count, int) for count in written), written
        assert tenant.states.require("shared").revision == 1 + sum(count for count in written if isinstance(count, int))
        sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
        assert pooled.owner.execute(sql, [pooled.role]).fetchone() == (_SERVER_CONNECTIONS,)


def test_nothing_that_is_set_in_a_session_is_relied_on_or_left_there(pooled: _Pooled) -> None:
    """Case 35: what one client sets would be another's; the role's settings hold on each backend, before and after."""
    with pooled.open() as store:
        _hold_and_look(pooled, store)


def test_a_pool_that_is_lent_leaves_nothing_in_a_session_either(pooled: _Pooled) -> None:
    """Case 35: the heartbeat's own connection leads through the pooler as well."""
    with (
        psycopg_pool.ConnectionPool(pooled.dsn, kwargs={"prepare_threshold": None}, max_size=_THREADS) as pool,
        PostgresStore.open(pool=pool, schema=pooled.schema, settings=_SETTINGS) as store,
    ):
        _hold_and_look(pooled, store)


def _hold_and_look(pooled: _Pooled, store: PostgresStore) -> None:
    """Write, hold a lease until it was renewed, and look at what that left on both backends."""
    tenant = store.tenant(TenantScope.local())
    assert together(_THREADS, lambda n: tenant.states.create(f"s{n}", n).revision) == [1] * _THREADS
    with tenant.hold("r", owner="a", ttl_seconds=1.5) as held:
        before = held.lease
        with held.transaction() as tx:
            tx.states.create("held", 1)
        until(lambda: held.lease.expires_at > before.expires_at, "a renewal")
    inside = threading.Barrier(_SERVER_CONNECTIONS)

    def look(_: int) -> tuple[int, set[str], set[tuple[str, str]], int]:
        """Read a backend's settings, in a transaction that keeps it while another one reads the other's."""
        with psycopg.connect(pooled.dsn, prepare_threshold=None) as client:
            client.execute("SELECT 1")
            inside.wait(20)
            pid = client.execute("SELECT pg_backend_pid()").fetchone() or (0,)
            changed = client.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()
            names = "SELECT name, setting FROM pg_settings WHERE name IN ('enable_seqscan', 'synchronous_commit')"
            ours = set(client.execute(names).fetchall())
            prepared = client.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() or (-1,)
            inside.wait(20)
            return pid[0], {name for (name,) in changed} - _POOLER_S_OWN, ours, prepared[0]

    looks = together(_SERVER_CONNECTIONS, look)
    seen = [look for look in looks if isinstance(look, tuple)]
    assert len({pid for pid, *_ in seen}) == _SERVER_CONNECTIONS, looks
    for _, changed, ours, prepared in seen:
        assert changed == set()
        assert ours == {("enable_seqscan", "off"), ("synchronous_commit", "on")}
        assert prepared == 0


def test_transactions_and_savepoints_stay_on_one_backend(pooled: _Pooled) -> None:
    """Case 35: eight transactions share two backends; each is all or nothing, with its savepoints."""
    with pooled.open() as store:
        tenant = store.tenant(TenantScope.local())

        def work(number: int) -> int:
            for call in range(10):
                with suppress(LookupError), tenant.transaction() as tx:
                    tx.states.create(f"{number}-{call}", 1)
                    with suppress(LookupError), tx.transaction():
                        tx.states.create(f"{number}-{call}-undone", 1)
                        raise LookupError
                    with tx.transaction(), tx.transaction():
                        tx.states.update(f"{number}-{call}", 2, expected_revision=1)
                    if call % 2:
                        raise LookupError
            return number

        assert together(_THREADS, work) == list(range(_THREADS))
        kept = [f"{number}-{call}" for number in range(_THREADS) for call in range(0, 10, 2)]
        assert sorted(tenant.states.list_ids().items) == sorted(kept)
        assert {tenant.states.require(name).value for name in kept} == {2}


def test_a_fenced_write_is_refused_over_whichever_backend(pooled: _Pooled) -> None:
    """Case 35: the lock protocol is one of transactions, and holds behind the pooler too."""
    with pooled.open() as store, pooled.open() as other:
        mine, theirs = store.tenant(TenantScope.local()), other.tenant(TenantScope.local())
        for number in range(10):
            lease = mine.leases.acquire("r", owner="a", ttl_seconds=60)
            mine.states.put("s", number, fence=lease.fence)
            assert theirs.leases.revoke("r")
            with pytest.raises(FencingRejectedError):
                mine.states.put("s", "late", fence=lease.fence)
            with theirs.hold("r", owner="b") as held, held.transaction() as tx:
                assert tx.states.require("s").value == number


@pytest.fixture
def failing_over() -> Iterator[tuple[EmbeddedPostgres, Path]]:
    """Yield a server of the test's own, and the file that makes it a replica at its next start."""
    home = Path(tempfile.mkdtemp(prefix="nl2-home-", dir="/tmp"))
    home.chmod(0o755)
    with EmbeddedPostgres(home / "pg") as server:
        yield server, home / "pg" / "data" / "standby.signal"
    shutil.rmtree(home)


def _turn_replica(server: EmbeddedPostgres, signal_file: Path) -> None:
    """Kill the server, and start it as a replica: it takes reads."""
    server.kill()
    signal_file.touch()
    server.restart()


def _promote(server: EmbeddedPostgres) -> None:
    """Make the replica the primary, on a timeline of its own."""
    with connect(server.dsn) as owner:
        assert owner.execute("SELECT pg_promote()").fetchone() == (True,)


def _write_alone(tenant: Tenant, number: int) -> int:
    return tenant.states.put(f"s{number}", number).revision


def _write_in_transaction(tenant: Tenant, number: int) -> int:
    with tenant.transaction() as tx:
        return tx.states.put(f"s{number}", number).revision


def _take_lease(tenant: Tenant, number: int) -> int:
    return tenant.leases.acquire(f"r{number}", owner="a", ttl_seconds=60).fence.token


@pytest.mark.parametrize("write", [_write_alone, _write_in_transaction, _take_lease])
def test_a_replica_behind_the_pooler_is_told_as_unavailable(
    failing_over: tuple[EmbeddedPostgres, Path], write: Callable[[Tenant, int], int]
) -> None:
    """Cases 35 and 36: the server became one under live sockets: no write is kept; once promoted, all work."""
    settings = _SETTINGS.model_copy(update={"checkout_timeout_seconds": 1.0})
    with (
        Pooler(failing_over[0].dsn, connections=_SERVER_CONNECTIONS, role=_make_role(failing_over[0].dsn)) as pooler,
        PostgresStore.open(pooler.dsn, settings=settings) as store,
    ):
        tenant = store.tenant(TenantScope.local())
        assert together(_THREADS, lambda n: tenant.states.create(f"s{n}", n).revision) == [1] * _THREADS
        _turn_replica(*failing_over)
        for told in together(_THREADS, lambda number: write(tenant, number)):
            assert isinstance(told, (StoreUnavailableError, OutcomeUnknownError)), repr(told)
        _promote(failing_over[0])

        def works() -> bool:
            with suppress(StoreUnavailableError, StoreTimeoutError, OutcomeUnknownError):
                return write(tenant, _THREADS) > 0
            return False

        until(works, "the store works behind its pooler")
        assert {tenant.states.require(f"s{number}").revision for number in range(_THREADS)} == {1}


def test_tokens_rise_over_a_fail_over_that_no_session_noticed(failing_over: tuple[EmbeddedPostgres, Path]) -> None:
    """Case 35: the pooler keeps its clients' connections meanwhile; grants are of the new timeline all the same."""
    with (
        Pooler(failing_over[0].dsn, connections=_SERVER_CONNECTIONS, role=_make_role(failing_over[0].dsn)) as pooler,
        PostgresStore.open(pooler.dsn, settings=_SETTINGS) as store,
    ):
        tenant = store.tenant(TenantScope.local())
        assert together(_THREADS, lambda n: _write_alone(tenant, n)) == [1] * _THREADS
        before = _take_lease(tenant, _THREADS) >> 41
        _turn_replica(*failing_over)
        _promote(failing_over[0])

        def works() -> bool:
            with suppress(StoreUnavailableError, StoreTimeoutError, OutcomeUnknownError):
                return tenant.states.get_revision("s0") == 1
            return False

        until(works, "the store works behind its pooler")
        for number in range(_THREADS):
            assert _take_lease(tenant, number) >> 41 == before + 1
            attempt = tenant.idempotency.reserve(
                f"k{number}", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60
            ).attempt
            assert attempt.number >> 41 == before + 1
