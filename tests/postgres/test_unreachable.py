"""P10 and P11, where no connection can be had: a StoreError of the tree, in its time, with nothing of the DSN in it.

A bound is the setting's own time and some seconds for a slow machine: that a deadline is kept, and no timing.
"""

from __future__ import annotations

import logging
import pickle
import shutil
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from nl2state import InvalidInputError, StoreError, StoreTimeoutError, StoreUnavailableError, TenantScope
from nl2state.testing.harness import start
from nl2state_postgres import PostgresStore, Settings
from nl2state_postgres.embedded import EmbeddedPostgres
from tests.servers import PostgresHarness, connect

SECRET = "hunter2-planted"
_SETTINGS = Settings(connect_timeout_seconds=2, checkout_timeout_seconds=1)
_SLACK_SECONDS = 8.0


@contextmanager
def _refused(kind: type[StoreError], caplog: pytest.LogCaptureFixture, *, within_seconds: float) -> Iterator[None]:
    """See a block raise this error, within its time, and find nothing planted in it or in what was logged."""
    caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    with pytest.raises(kind) as raised:
        yield
    assert time.monotonic() - began < within_seconds + _SLACK_SECONDS
    error: BaseException | None = raised.value
    while error is not None:
        told = [str(error), repr(error), repr(vars(error)), repr(pickle.dumps(error))]
        told += [*getattr(error, "__notes__", []), *traceback.format_exception_only(error)]
        assert SECRET not in "\n".join(told)
        error = error.__cause__ or error.__context__
    assert SECRET not in caplog.text


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Yield the DSN of a server that asks the role SECRET for its password, without the password."""
    with EmbeddedPostgres() as server:
        with connect(server.dsn) as connection:
            connection.execute(f"CREATE ROLE \"{SECRET}\" LOGIN PASSWORD '{SECRET}' CREATEROLE")
            connection.execute(f'GRANT CREATE ON DATABASE postgres TO "{SECRET}"')
            hba = Path((connection.execute("SHOW hba_file").fetchone() or ("",))[0])
        hba.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        server.restart()
        yield psycopg.conninfo.make_conninfo(server.dsn, user=SECRET)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder for a unix socket, whose path has the secret in it. Pytest's own is too long for a socket."""
    made = Path(tempfile.mkdtemp(prefix=SECRET, dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("password", [f"{SECRET}!", ""])
def test_a_wrong_password_is_refused(guarded: str, password: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 40: a wrong password, and none where one is asked for."""
    with _refused(StoreUnavailableError, caplog, within_seconds=2):
        PostgresStore.open(psycopg.conninfo.make_conninfo(guarded, password=password), settings=_SETTINGS)
    with PostgresStore.open(psycopg.conninfo.make_conninfo(guarded, password=SECRET), settings=_SETTINGS) as store:
        assert store.tenant(TenantScope.local()).states.get("s") is None


def test_a_password_that_was_changed_under_a_store_is_refused(guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 40: the pool meets it in the background; the call is told in its time, and the log nothing."""
    owner = psycopg.conninfo.make_conninfo(guarded, user="postgres")
    dsn = psycopg.conninfo.make_conninfo(guarded, password=SECRET)
    one = _SETTINGS.model_copy(
        update={"connections_max": 1}
    )  # another could be let in just before, and told of just after
    with connect(owner) as connection, PostgresStore.open(dsn, settings=one) as store:
        tenant = store.tenant(TenantScope.local())
        assert tenant.states.get("s") is None
        try:
            connection.execute(f"ALTER ROLE \"{SECRET}\" PASSWORD 'another'")
            sql = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s"
            connection.execute(sql, [SECRET])
            for _ in range(2):
                with _refused(StoreUnavailableError, caplog, within_seconds=4):
                    tenant.states.get("s")
        finally:
            connection.execute(f"ALTER ROLE \"{SECRET}\" PASSWORD '{SECRET}'")


def test_no_server_is_said_to_be_unavailable(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 40: nobody listens, on a port or at a socket."""
    for dsn in (f"host=127.0.0.1 port=1 user={SECRET} password={SECRET} dbname={SECRET}", f"host={folder}"):
        with _refused(StoreUnavailableError, caplog, within_seconds=2):
            PostgresStore.open(dsn, settings=_SETTINGS)


def test_a_server_that_does_not_answer_is_given_up_in_time(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 40: somebody listens, and says nothing."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / ".s.PGSQL.5432"))
        silent.listen()
        with _refused(StoreUnavailableError, caplog, within_seconds=2):
            PostgresStore.open(f"host={folder} user={SECRET}", settings=_SETTINGS)


@pytest.mark.parametrize(
    ("words", "kind"), [("dbname={}-x", StoreUnavailableError), ("user={}-x", StoreUnavailableError)]
)
def test_a_database_or_a_role_that_is_not_there_is_said_to_be_unavailable(
    dsn: str, words: str, kind: type[StoreError], caplog: pytest.LogCaptureFixture
) -> None:
    """Case 40: the server answers, and refuses."""
    with _refused(kind, caplog, within_seconds=2):
        PostgresStore.open(f"{dsn} {words.format(SECRET)}", settings=_SETTINGS)


def test_an_unknown_host_is_said_to_be_unavailable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 40: the resolver knows no such host; and one that no resolver can be asked for."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, f"{SECRET} is not known")

    for host in (f"{'x' * 64}.{SECRET}", f"{SECRET}..invalid", f"{SECRET}.invalid"):
        if host.endswith(f"{SECRET}.invalid"):
            monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with _refused(StoreUnavailableError, caplog, within_seconds=2):
            PostgresStore.open(f"host={host} user={SECRET}", settings=_SETTINGS)


@pytest.mark.parametrize(
    "dsn",
    [
        f"garbage {SECRET}",
        f"host={SECRET} nonsense={SECRET}",
        f"postgresql://{SECRET}:%zz@/",
        f"postgresql://{SECRET}@[::1/{SECRET}",
        f"host='{SECRET}",
        f"host={SECRET}\ud800",
        f"host={SECRET}\x00",
        f"mysql://{SECRET}@{SECRET}/{SECRET}",
        SECRET.encode(),
        None,
        {"host": SECRET},
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_as_such(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 40: garbage is the caller's mistake, and known before anybody is asked."""
    with _refused(InvalidInputError, caplog, within_seconds=0):
        PostgresStore.open(dsn, settings=_SETTINGS)


def test_a_number_that_is_none_in_a_dsn_is_told_without_it(caplog: pytest.LogCaptureFixture) -> None:
    """Case 40: libpq itself finds these when it connects."""
    for dsn in (f"host=127.0.0.1 port={SECRET}", f"host=127.0.0.1 sslmode={SECRET}", f"connect_timeout={SECRET}"):
        with _refused(StoreError, caplog, within_seconds=2):
            PostgresStore.open(dsn, settings=_SETTINGS)


@pytest.mark.parametrize("call", ["a statement", "a transaction", "an acquire", "a hold", "a reservation"])
def test_an_exhausted_pool_is_a_timeout_in_its_time(
    harness: PostgresHarness, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 40: each connection is in use for longer than a call waits for one; then the store works as before."""
    settings = harness.settings.model_copy(update={"connections_max": 2, "checkout_timeout_seconds": 1.0})
    dsn = psycopg.conninfo.make_conninfo(harness.dsn, password=SECRET)
    with PostgresStore.open(dsn, schema=harness.schema, settings=settings) as store:
        tenant = store.tenant(TenantScope.local())

        def run_transaction() -> None:
            with tenant.transaction() as tx:
                tx.states.get("s")

        calls: dict[str, Callable[[], object]] = {
            "a statement": lambda: tenant.states.get("s"),
            "a transaction": run_transaction,
            "an acquire": lambda: tenant.leases.acquire("r", owner="a", ttl_seconds=60),
            "a hold": lambda: tenant.hold("r", owner="a").__enter__(),
            "a reservation": lambda: tenant.idempotency.reserve(
                "k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60
            ),
        }
        with tenant.transaction() as one, tenant.transaction() as two:
            one.states.create("s", 1)
            two.states.create("t", 1)
            with _refused(StoreTimeoutError, caplog, within_seconds=1):
                start(calls[call]).result()
        assert tenant.states.require("s").value == tenant.states.require("t").value == 1
        assert tenant.leases.try_acquire("r", owner="b", ttl_seconds=60) is not None
