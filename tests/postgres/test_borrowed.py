"""A connection and a pool of the service's own: nothing of them is changed, and what is promised holds there too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from pydantic import ValidationError

from nl2state import (
    FencingRejectedError,
    InvalidInputError,
    RevisionConflictError,
    StoreTimeoutError,
    StoreUnavailableError,
    TenantScope,
    UsageError,
)
from nl2state.testing.harness import until
from nl2state_postgres import PostgresStore, PostgresTenant, Settings, session_settings
from tests.servers import PostgresHarness

SCOPE = TenantScope.derive("acme", pepper="the pepper of the tests")
Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def tenant(postgres: PostgresHarness) -> PostgresTenant:
    store = postgres.clients[0]
    assert isinstance(store, PostgresStore)
    return store.tenant(SCOPE)


@pytest.fixture
def connect(postgres: PostgresHarness) -> Iterator[Connect]:
    """Yield what opens a connection as a service does, with a table of the service's own."""
    opened: list[psycopg.Connection[Any]] = []
    postgres.observer.execute(f"CREATE TABLE {postgres.schema}.orders (id int PRIMARY KEY)")

    def connect(**options: Any) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(postgres.dsn, **options))
        opened[-1].execute(f"SET search_path TO {postgres.schema}")
        opened[-1].commit()
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def test_the_service_s_rows_commit_with_ours(
    tenant: PostgresTenant, connect: Connect, postgres: PostgresHarness
) -> None:
    """P9."""
    attempt = tenant.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt
    connection = connect()
    for end, there in ((connection.rollback, False), (connection.commit, True)):
        connection.execute("INSERT INTO orders VALUES (17)")
        tx = tenant.on(connection)
        tx.states.create("s", {"order": 17})
        tx.idempotency.complete(attempt, "done")
        assert tx.states.require("s").value == {"order": 17}
        assert tenant.states.get("s") is None
        end()
        assert (tenant.states.get("s") is not None) is there
        record = tenant.idempotency.get("k")
        assert record is not None
        assert record.outcome == ("done" if there else None)
        assert (connect().execute("SELECT * FROM orders").fetchone() is not None) is there


def test_a_fence_guards_them_to_the_service_s_own_commit(
    tenant: PostgresTenant, connect: Connect, postgres: PostgresHarness
) -> None:
    """P6: the takeover waits for the caller's transaction; after it, the old fence writes nothing there either."""
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    connection = connect()
    tx = tenant.on(connection, fence=fence)
    tx.states.create("s", 1)
    postgres.advance(61)
    taken: list[Any] = []
    takeover = threading.Thread(
        target=lambda: taken.append(postgres.tenant(client=1).leases.acquire("r", owner="b", ttl_seconds=60))
    )
    takeover.start()
    until(lambda: postgres.waiting() == 1, "the takeover waits")
    connection.commit()
    takeover.join(30)
    assert taken[0].taken_over
    with pytest.raises(FencingRejectedError):
        tenant.on(connection, fence=fence).states.update("s", 2, expected_revision=1)
    connection.commit()
    assert tenant.states.require("s").value == 1


def test_a_refusal_leaves_the_transaction_usable(tenant: PostgresTenant, connect: Connect) -> None:
    connection = connect()
    tx = tenant.on(connection)
    tx.states.create("s", 1)
    with pytest.raises(RevisionConflictError):
        tx.states.update("s", 2, expected_revision=7)
    tx.states.update("s", 3, expected_revision=1)
    connection.commit()
    assert tenant.states.require("s").value == 3


def test_a_failure_ends_it_unless_a_savepoint_undoes_it(
    tenant: PostgresTenant, connect: Connect, postgres: PostgresHarness
) -> None:
    tenant.states.create("s", 1)
    connection = connect()
    connection.execute("SET LOCAL lock_timeout = '100ms'")
    tx = tenant.on(connection)
    tx.states.create("t", 1)
    with postgres.tenant(client=1).transaction() as blocker:
        blocker.states.update("s", 2, expected_revision=1)
        for savepoint in (connection.transaction, tx.transaction):
            with pytest.raises(StoreTimeoutError), savepoint():
                tx.states.update("s", 3, expected_revision=1)
            assert tx.states.require("t").value == 1
        with pytest.raises(StoreTimeoutError):
            tx.states.update("s", 3, expected_revision=1)
        with pytest.raises(UsageError):
            tx.states.get("t")
    with pytest.raises(UsageError):
        tenant.on(connection)
    connection.rollback()
    assert tenant.states.get("t") is None


def test_a_savepoint_that_raises_is_undone_alone(tenant: PostgresTenant, connect: Connect) -> None:
    connection = connect()
    tx = tenant.on(connection)
    tx.states.create("s", 1)
    with pytest.raises(LookupError), tx.transaction():
        tx.states.create("t", 1)
        raise LookupError
    connection.commit()
    assert [tenant.states.get("s") is None, tenant.states.get("t") is None] == [False, True]


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_transaction_of_psycopg_s_is_one(tenant: PostgresTenant, connect: Connect, autocommit: bool) -> None:
    connection = connect(autocommit=autocommit)
    with connection.transaction():
        tenant.on(connection).states.create("s", 1)
    assert tenant.states.require("s").revision == 1
    assert connection.autocommit is autocommit


def test_what_would_not_be_one_transaction_is_refused(tenant: PostgresTenant, connect: Connect) -> None:
    with pytest.raises(UsageError, match="no transaction"):
        tenant.on(connect(autocommit=True))
    for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
        stricter = connect()
        stricter.isolation_level = level
        with pytest.raises(UsageError, match="READ COMMITTED"):
            tenant.on(stricter)
    read_only = connect()
    read_only.read_only = True
    with pytest.raises(UsageError, match="read-only"):
        tenant.on(read_only)
    latin = connect(client_encoding="LATIN1")
    with pytest.raises(UsageError, match="client_encoding"):
        tenant.on(latin)
    piped = connect()
    with piped.pipeline(), pytest.raises(UsageError, match="pipeline"):
        tenant.on(piped)
    closed = connect()
    closed.close()
    with pytest.raises(StoreUnavailableError):
        tenant.on(closed)
    with pytest.raises(InvalidInputError):
        tenant.on("host=somewhere")  # type: ignore[arg-type]


def test_what_it_cannot_do_is_refused(tenant: PostgresTenant, connect: Connect) -> None:
    connection = connect()
    tx = tenant.on(connection)
    with pytest.raises(UsageError, match="after_commit"):
        tx.after_commit(lambda: None)
    with pytest.raises(UsageError):
        tx.leases.acquire("r", owner="a", ttl_seconds=60)
    raised: list[BaseException] = []

    def elsewhere() -> None:
        try:
            tx.states.get("s")
        except UsageError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(30)
    assert len(raised) == 1
    connection.commit()
    with pytest.raises(UsageError, match="has ended"):
        tx.states.get("s")


def test_nothing_of_the_connection_is_touched_and_nothing_of_it_disturbs(
    tenant: PostgresTenant, connect: Connect
) -> None:
    connection = connect(row_factory=dict_row)
    connection.adapters.register_loader("timestamptz", TextLoader)
    connection.adapters.register_loader("uuid", TextLoader)
    connection.execute("SET TimeZone TO 'Asia/Tokyo'")
    seen = connection.execute("SELECT name, setting FROM pg_settings").fetchall()
    record = tenant.on(connection).states.create("s", {"n": 2**70, "text": "\x00ä"})
    assert record.created_at.tzinfo is UTC
    assert tenant.on(connection).states.get("s") == record
    connection.commit()
    assert tenant.states.get("s") == record
    assert connection.execute("SELECT name, setting FROM pg_settings").fetchall() == seen
    assert connection.row_factory is dict_row


@pytest.fixture
def lend(postgres: PostgresHarness) -> Iterator[Callable[..., psycopg_pool.ConnectionPool[Any]]]:
    """Yield what makes a pool as a service does."""
    made: list[psycopg_pool.ConnectionPool[Any]] = []

    def lend(**options: Any) -> psycopg_pool.ConnectionPool[Any]:
        options = {"min_size": 1, "max_size": 1, "timeout": 5, "configure": session_settings(), **options}
        kwargs = {"application_name": postgres.schema, "row_factory": dict_row, **options.pop("kwargs", {})}
        made.append(psycopg_pool.ConnectionPool(postgres.dsn, open=True, kwargs=kwargs, **options))
        return made[-1]

    yield lend
    for pool in made:
        pool.close()


def _open(postgres: PostgresHarness, pool: psycopg_pool.ConnectionPool[Any], **more: Any) -> PostgresStore:
    settings = Settings(clock=postgres.settings.clock, checkout_timeout_seconds=3.0)
    return PostgresStore.open(pool=pool, schema=postgres.schema, settings=settings, **more)


def test_a_pool_that_is_lent_serves_all_calls(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """Even one of one connection: the heartbeat has one of its own."""
    pool = lend()
    with _open(postgres, pool) as store:
        tenant = store.tenant(SCOPE)
        with tenant.hold("r", owner="a", ttl_seconds=3) as held, held.transaction() as tx:
            tx.states.create("s", 1)
            before = held.lease
            until(lambda: held.lease.expires_at > before.expires_at, "a renewal")
        assert tenant.states.require("s").revision == 1
        reserved = tenant.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
        tenant.idempotency.complete(reserved.attempt, {"n": 1})
        assert store.system.retain().after is None
        with pool.connection() as connection:
            assert connection.autocommit is False
            assert connection.row_factory is dict_row
            tenant.on(connection).states.update("s", 2, expected_revision=1)
        assert tenant.states.require("s").value == 2
    with pool.connection() as connection:  # it is the service's: still open
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    with pytest.raises(UsageError):
        tenant.states.get("s")


def test_a_pool_s_connections_that_died_idle_cost_no_error(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    with _open(postgres, lend(max_size=3, min_size=3)) as store:
        for number in range(3):
            postgres.observer.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
                [postgres.schema],
            )
            store.tenant(SCOPE).states.create(f"s{number}", 1)


def test_a_pool_s_sessions_have_to_bound_their_waits(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """P11, P13: nobody would end what waits without end."""
    bounds = {"lock_timeout": "9s", "statement_timeout": "9s", "idle_in_transaction_session_timeout": "9s"}
    for missing in bounds:
        options = " ".join(f"-c {name}={value}" for name, value in bounds.items() if name != missing)
        with pytest.raises(UsageError, match=missing):
            _open(postgres, lend(configure=None, kwargs={"options": options}))
    options = " ".join(f"-c {name}={value}" for name, value in bounds.items())
    with pytest.raises(UsageError, match="READ COMMITTED"):
        isolation = "-c default_transaction_isolation=serializable"
        _open(postgres, lend(configure=None, kwargs={"options": f"{options} {isolation}"}))
    _open(postgres, lend(configure=None, kwargs={"options": options})).close()


def test_either_a_dsn_or_a_pool_is_needed(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    with pytest.raises(InvalidInputError):
        PostgresStore.open()
    with pytest.raises(InvalidInputError):
        PostgresStore.open(postgres.dsn, pool=lend())
    closed = lend()
    closed.close()
    with pytest.raises(UsageError):
        _open(postgres, closed)


@pytest.mark.parametrize(
    "options",
    [{"pool": "dsn"}, {"dsn": "", "settings": {"connections_max": 2}}, {"dsn": "", "limits": {"page_size_max": 100}}],
    ids=str,
)
def test_an_option_of_the_wrong_kind_is_refused_by_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as refused:
        PostgresStore.open(**options)
    assert refused.value.field == [*options][-1]


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf"), 1e9])
def test_a_bound_that_no_session_can_have_is_refused(seconds: float) -> None:
    for name in Settings.model_fields:
        if name.endswith("_seconds"):
            with pytest.raises(ValidationError):
                Settings.model_validate({name: seconds})


def test_a_pool_that_is_busy_is_a_timeout(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    pool = lend()
    with _open(postgres, pool) as store, pool.connection(), pytest.raises(StoreTimeoutError):
        store.tenant(SCOPE).states.get("s")


def test_a_pool_may_make_its_schema(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    schema = f"{postgres.schema}_lent"
    with PostgresStore.open(pool=lend(), schema=schema) as store:
        store.tenant(SCOPE).states.create("s", 1)
    postgres.observer.execute(f"DROP SCHEMA {schema} CASCADE")


def test_where_one_connection_may_lead_to_two_servers_each_grant_reads_the_epoch(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """P5: a restored server's timeline is lower than the one that was noted, and no session was set up since."""
    with _open(postgres, lend()) as store:
        tenant = store.tenant(SCOPE)
        before = tenant.leases.acquire("a", owner="a", ttl_seconds=60).fence
        attempt = tenant.idempotency.reserve("a", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt
        postgres.observer.execute(f"UPDATE {postgres.schema}.metadata SET timeline = timeline + 6")
        after = tenant.leases.acquire("b", owner="a", ttl_seconds=60).fence
        assert after.token >> 41 == 2 * (before.token >> 41) + 6
        postgres.advance(61)
        taken = tenant.leases.acquire("a", owner="b", ttl_seconds=60).fence
        assert taken.token >> 41 == after.token >> 41
        again = tenant.idempotency.reserve("b", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt
        assert again.number >> 41 == after.token >> 41 > attempt.number >> 41
