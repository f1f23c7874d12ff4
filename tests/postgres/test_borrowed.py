"""A connection of the service's own: nothing of it is changed, and what is promised holds there too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import StrDumper, TextLoader

from nl2state import (
    CorruptError,
    FencingRejectedError,
    InvalidInputError,
    RevisionConflictError,
    StoreTimeoutError,
    StoreUnavailableError,
    TenantScope,
    UsageError,
)
from nl2state.testing.harness import until
from nl2state_postgres import PostgresStore, PostgresTenant
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
        tenant.on("host=somewhere")  # type: ignore[arg-type]  # which is the point


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


def test_a_savepoint_is_undone_whole_whichever_handle_opened_one_inside(
    tenant: PostgresTenant, connect: Connect
) -> None:
    """P9: two handles on one connection number their savepoints alike, and one that was undone leaves none behind."""
    connection = connect()
    outer, inner = tenant.on(connection), tenant.on(connection)
    with pytest.raises(LookupError), outer.transaction():
        outer.states.create("s", 1)
        with pytest.raises(ValueError, match="of the inner"), inner.transaction():
            inner.states.create("t", 1)
            raise ValueError("of the inner")
        raise LookupError
    connection.commit()
    assert tenant.states.list_ids().items == ()


class _NoBlanks(StrDumper):
    """As psycopg's documentation shows it: a blank text is a NULL."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj) if obj.strip() else None


class _Strict:
    """A row factory that knows the columns of the service's own rows."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._columns = [column.name for column in cursor.description or ()].index("id")

    def __call__(self, values: Any) -> Any:
        return values[self._columns]


def test_what_the_service_registered_for_its_own_values_and_rows_is_not_used_for_ours(
    tenant: PostgresTenant, connect: Connect
) -> None:
    """A dumper of its own would change what a list asks for; a row factory of its own knows no row of ours."""
    connection = connect()
    connection.row_factory = _Strict
    connection.adapters.register_dumper(str, _NoBlanks)
    tx = tenant.on(connection)
    with tx.transaction():
        record = tx.states.create("s", 1)
    assert tx.states.list().items == (record,)


def test_a_connection_that_is_in_the_midst_of_a_result_is_refused(tenant: PostgresTenant, connect: Connect) -> None:
    """P11: psycopg would wait without end for what the same thread has not read yet."""
    connection = connect()
    tx = tenant.on(connection)
    with connection.cursor().copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT") as copy:
        next(iter(copy))
        with pytest.raises(UsageError, match="result"):
            tenant.on(connection)
        with pytest.raises(UsageError):
            tx.states.get("s")


def test_a_stored_moment_that_cannot_be_read_is_told_as_corrupt(
    tenant: PostgresTenant, connect: Connect, postgres: PostgresHarness
) -> None:
    """P10: the driver's own words for it stay inside."""
    tenant.states.create("s", 1)
    postgres.observer.execute(f"UPDATE {postgres.schema}.states SET expires_at = 'infinity'")
    for read in (tenant.states.get, tenant.on(connect()).states.get):
        with pytest.raises(CorruptError) as raised:
            read("s")
        assert raised.value.__cause__ is raised.value.__context__ is None


def test_a_lease_is_not_released_by_a_commit_that_nobody_sees(tenant: PostgresTenant, connect: Connect) -> None:
    """It is refused before anything is sent: the service's commit would free it, and its holder not know."""
    connection = connect()
    with tenant.hold("r", owner="a") as held:
        with pytest.raises(UsageError):
            held.release(tenant.on(connection, fence=held.fence))
        connection.commit()
        assert tenant.leases.inspect("r") is not None
    assert tenant.leases.inspect("r") is None
