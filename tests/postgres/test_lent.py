"""A pool of the service's own: nothing of it is changed, and what is promised holds there too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row
from pydantic import ValidationError

from nl2state import (
    InvalidInputError,
    OutcomeUnknownError,
    StoreTimeoutError,
    StoreUnavailableError,
    TenantScope,
    UsageError,
)
from nl2state.testing.harness import until
from nl2state_postgres import PostgresStore, Settings, session_settings
from nl2state_postgres.borrowed import Borrowed
from nl2state_postgres.pools import LentPool
from tests.postgres.everything import everything
from tests.proxy import Proxy
from tests.servers import PostgresHarness

SCOPE = TenantScope.derive("acme", pepper="the pepper of the tests")


@pytest.fixture
def lend(postgres: PostgresHarness) -> Iterator[Callable[..., psycopg_pool.ConnectionPool[Any]]]:
    """Yield what makes a pool as a service does."""
    made: list[psycopg_pool.ConnectionPool[Any]] = []

    def lend(**options: Any) -> psycopg_pool.ConnectionPool[Any]:
        options = {"min_size": 1, "max_size": 1, "timeout": 5, "configure": session_settings(), **options}
        kwargs = {"application_name": postgres.schema, "row_factory": dict_row, **options.pop("kwargs", {})}
        made.append(psycopg_pool.ConnectionPool(options.pop("dsn", postgres.dsn), open=True, kwargs=kwargs, **options))
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


def test_a_pool_s_sessions_have_to_be_fit_for_our_statements(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """P11, P13: nobody would end what waits without end; P9: nor keep what was told as kept."""
    bounds = {"lock_timeout": "9s", "statement_timeout": "9s", "idle_in_transaction_session_timeout": "9s"}
    for missing in bounds:
        options = " ".join(f"-c {name}={value}" for name, value in bounds.items() if name != missing)
        with pytest.raises(UsageError, match=missing):
            _open(postgres, lend(configure=None, kwargs={"options": options}))
    options = " ".join(f"-c {name}={value}" for name, value in bounds.items())
    with pytest.raises(UsageError, match="READ COMMITTED"):
        isolation = "-c default_transaction_isolation=serializable"
        _open(postgres, lend(configure=None, kwargs={"options": f"{options} {isolation}"}))
    with pytest.raises(UsageError, match="client_encoding"):
        _open(postgres, lend(configure=None, kwargs={"options": options, "client_encoding": "LATIN1"}))
    with pytest.raises(UsageError, match="synchronous_commit"):
        _open(postgres, lend(configure=None, kwargs={"options": f"{options} -c synchronous_commit=off"}))
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


def test_a_pool_whose_check_leaves_a_transaction_open_is_refused(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """P9: in it, nothing would commit, and all would be told as done."""
    with pytest.raises(UsageError, match="transaction open"):
        _open(postgres, lend(check=lambda connection: connection.execute("SELECT 1")))
    _open(postgres, lend(check=psycopg_pool.ConnectionPool.check_connection)).close()


def test_a_connection_that_cannot_be_given_back_as_it_was_lent_is_replaced(
    postgres: PostgresHarness,
    lend: Callable[..., psycopg_pool.ConnectionPool[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service's own transactions on it would else commit each statement by itself."""
    pool = lend()
    command = Borrowed.command

    def interrupted(self: Borrowed, sql: str, **options: Any) -> Any:
        if sql == "ROLLBACK":
            raise KeyboardInterrupt
        return command(self, sql, **options)

    with _open(postgres, pool) as store:
        monkeypatch.setattr(Borrowed, "command", interrupted)
        with pytest.raises(KeyboardInterrupt), store.tenant(SCOPE).transaction() as tx:
            tx.states.create("s", 1)
            raise LookupError
        with pool.connection() as connection:
            assert connection.autocommit is False
        assert store.tenant(SCOPE).states.get("s") is None


@pytest.mark.parametrize("threshold", [0, None])
def test_a_pool_may_prepare_as_it_likes(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]], threshold: int | None
) -> None:
    """A migration is several statements in one, which cannot be prepared."""
    schema = f"{postgres.schema}_prepared"
    with PostgresStore.open(pool=lend(kwargs={"prepare_threshold": threshold}), schema=schema) as store:
        with store.tenant(SCOPE).transaction() as tx:
            tx.states.create("s", 1)
        assert store.tenant(SCOPE).states.require("s").revision == 1
    postgres.observer.execute(f"DROP SCHEMA {schema} CASCADE")


def test_a_pool_that_connects_for_each_call_tells_nothing_of_its_server(postgres: PostgresHarness) -> None:
    """P10: such a pool raises what the driver says."""
    with (
        psycopg_pool.NullConnectionPool(postgres.dsn, open=True, configure=session_settings()) as pool,
        _open(postgres, pool) as store,
    ):
        assert store.tenant(SCOPE).states.create("s", 1).revision == 1
        pool.conninfo = psycopg.conninfo.make_conninfo(postgres.dsn, user="hunter2-planted")
        with pytest.raises(StoreUnavailableError) as raised:
            store.tenant(SCOPE).states.get("s")
    assert "planted" not in everything(raised.value)


def _beside(store: PostgresStore) -> psycopg_pool.ConnectionPool[Any]:
    """Return the pool of the heartbeat's connection."""
    pool = store._beating._pool
    assert isinstance(pool, LentPool)
    return pool._pool


def test_the_heartbeats_connection_tells_the_log_nothing_of_its_server(
    postgres: PostgresHarness,
    lend: Callable[..., psycopg_pool.ConnectionPool[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P10."""
    with _open(postgres, lend()) as store, store.tenant(SCOPE).hold("r", owner="a") as held:
        with _beside(store).connection() as connection:
            assert postgres.schema not in repr(connection)
        _beside(store).drain()
        _beside(store).conninfo = psycopg.conninfo.make_conninfo(postgres.dsn, user="hunter2-planted")
        with caplog.at_level(logging.DEBUG):
            held.renew()
            until(lambda: "error connecting" in caplog.text, "it is logged")
    assert "planted" not in caplog.text
    assert "FATAL" not in caplog.text


def test_the_heartbeats_connection_is_made_as_the_pool_makes_its_own(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """Its `configure` too, which may set the role that the schema was granted to."""
    role = f"{postgres.schema[:50]}_holder"
    schemas = f"{postgres.schema}, test_clock"
    postgres.observer.execute(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schemas} TO {role};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schemas} TO {role}"
    )
    bounds = session_settings()

    def configure(connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"SET ROLE {role}")
        connection.commit()
        bounds(connection)

    with _open(postgres, lend(configure=configure)) as store:
        with store.tenant(SCOPE).hold("r", owner="a") as held:
            before = held.lease
            held.renew()
            assert held.lease.expires_at > before.expires_at
        with _beside(store).connection() as connection:
            row = connection.execute("SELECT current_user AS role, current_setting('lock_timeout') AS bound").fetchone()
            assert row == {"role": role, "bound": "50ms"}
    postgres.observer.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_no_session_behind_a_pooler_is_set_up_for_a_pool_that_is_lent(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """Case 35: it would be another client's."""
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    options = " ".join(f"-c {name}=9s" for name in names)
    settings = Settings(clock=postgres.settings.clock, transaction_pooler=True)
    pool = lend(configure=None, kwargs={"options": options})
    with PostgresStore.open(pool=pool, schema=postgres.schema, settings=settings) as store:
        with store.tenant(SCOPE).hold("r", owner="a") as held:
            before = held.lease
            held.renew()
            assert held.lease.expires_at > before.expires_at
        with _beside(store).connection() as connection:
            changed = connection.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()
            assert {row["name"] for row in changed} <= {"client_encoding"}


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


def test_an_answer_that_is_lost_on_a_pool_that_is_lent_is_looked_for_too(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]], tmp_path: Path
) -> None:
    """P9, and each call is one round trip there as well, once its session was looked at."""
    with Proxy(tmp_path, postgres.dsn) as proxy, _open(postgres, lend(dsn=proxy.dsn)) as store:
        tenant = store.tenant(SCOPE)
        proxy.cut_at(b"planted")
        assert tenant.states.create("planted", 1).revision == 1
        proxy.cut_at(b"planted", unsent=True)
        assert tenant.states.update("planted", 2, expected_revision=1).revision == 2
        proxy.cut_at(b"planted")
        assert tenant.states.require("planted").value == 2
        proxy.cut_at(b"planted", unsent=True)
        with pytest.raises(OutcomeUnknownError):
            tenant.states.put("planted", 3)
        with tenant.transaction() as tx:
            tx.states.update("planted", 4, expected_revision=2)
            proxy.cut_at(b"COMMIT")
        assert proxy.has_cut
        assert tenant.states.require("planted").value == 4
        before = proxy.round_trips
        assert tenant.states.get_revision("planted") == 3
        assert proxy.round_trips == before + 1


def test_a_lent_connection_whose_server_turned_read_only_is_not_used_again(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    """Case 36: it is replaced, and the call is sent again on another."""
    pool = lend()
    with _open(postgres, pool) as store:
        with pool.connection() as connection:
            connection.execute("SET default_transaction_read_only = on")
        assert store.tenant(SCOPE).states.create("s", 1).revision == 1


def test_what_the_store_made_beside_a_pool_ends_with_the_store(
    postgres: PostgresHarness, lend: Callable[..., psycopg_pool.ConnectionPool[Any]]
) -> None:
    pool = lend()
    store = _open(postgres, pool)
    store.close()
    assert _beside(store).closed
    assert not pool.closed
