"""The server of a test run, and schemas of their own on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
import psycopg_pool

from nl2state.testing.harness import Harness
from nl2state_postgres import PostgresStore, Settings, session_settings
from nl2state_postgres.embedded import EmbeddedPostgres

DSN_VARIABLE = "NL2STATE_TEST_DSN"

# A clock that a test moves. Every session sees it at once: a volatile function takes a new snapshot.
_CLOCK = """
CREATE SCHEMA IF NOT EXISTS test_clock;
CREATE TABLE IF NOT EXISTS test_clock.offsets (name text PRIMARY KEY, seconds double precision NOT NULL);
CREATE OR REPLACE FUNCTION test_clock.at(text) RETURNS timestamptz VOLATILE LANGUAGE sql AS
  'SELECT clock_timestamp() + make_interval(secs => seconds) FROM test_clock.offsets WHERE name = $1';
"""


@contextmanager
def server() -> Iterator[str]:
    """Yield the DSN of the run's server: the one that was named, else Docker's, else the embedded one."""
    if named := os.environ.get(DSN_VARIABLE):
        yield named
    elif _docker_answers():
        from testcontainers.postgres import PostgresContainer  # noqa: PLC0415  # seldom there, and slow to import

        with PostgresContainer("postgres:18", driver=None) as container:
            yield container.get_connection_url()
    else:
        with EmbeddedPostgres(settings={"fsync": "off", "max_connections": "200"}) as embedded:
            yield embedded.dsn


def prepare(dsn: str) -> None:
    """Install the clock. It is done once, before the tests' processes start: CREATE IF NOT EXISTS races."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_CLOCK)


def connect(dsn: str, **options: Any) -> psycopg.Connection[Any]:
    """Open a connection of the test's own."""
    return psycopg.connect(dsn, autocommit=True, **options)


class PostgresHarness(Harness):
    """A schema of its own, opened twice, on a clock of its own."""

    def __init__(self, dsn: str, **settings: Any) -> None:
        self.dsn = dsn
        self._client_seconds = 0.0
        self.observer = connect(dsn)
        self.schema = self._choose_schema()
        self.observer.execute(
            "INSERT INTO test_clock.offsets VALUES (%s, 0) ON CONFLICT (name) DO UPDATE SET seconds = 0", [self.schema]
        )
        self.settings = Settings(application_name=self.schema, clock=f"test_clock.at('{self.schema}')", **settings)
        self.clients = (self.open(), self.open())

    def open(self, settings: Settings | None = None) -> PostgresStore:
        """Open another client."""
        return PostgresStore.open(
            self.dsn, schema=self.schema, settings=settings or self.settings, monotonic=self._monotonic
        )

    def move_clock(self, seconds: float) -> None:
        self.observer.execute(
            "UPDATE test_clock.offsets SET seconds = seconds + %s WHERE name = %s", [seconds, self.schema]
        )

    def move_client_clocks(self, seconds: float) -> None:
        self._client_seconds += seconds

    def open_bounded(self, *, lock_seconds: float, idle_seconds: float) -> PostgresStore:
        bounds = {"lock_timeout_seconds": lock_seconds, "transaction_idle_seconds": idle_seconds}
        client = self.open(self.settings.model_copy(update=bounds))
        self.clients = (*self.clients, client)
        return client

    def count_waiting(self) -> int:
        return self._activity("wait_event_type = 'Lock'")

    def idle_in_transaction(self) -> int:
        """Return how many sessions have a transaction open and wait for their client."""
        return self._activity("state = 'idle in transaction'")

    def close(self) -> None:
        """Close the clients and drop the schema."""
        super().close()
        self.observer.execute(f"DROP SCHEMA {self.schema} CASCADE")
        self.observer.execute("DELETE FROM test_clock.offsets WHERE name = %s", [self.schema])
        self.observer.close()

    def _choose_schema(self) -> str:
        return f"test_{uuid.uuid4().hex}"

    def _activity(self, condition: str) -> int:
        sql = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND {condition}"
        row = self.observer.execute(sql, [self.schema]).fetchone()
        return int(row[0]) if row else 0

    def _monotonic(self) -> float:
        return time.monotonic() + self._client_seconds


class ReusedHarness(PostgresHarness):
    """A harness in a schema that an earlier test of this process has left: to make one costs more than most tests do.

    For tests that look at nothing but the store: the tables' statistics, their files and their dead rows are old.
    """

    _left: ClassVar[deque[str]] = deque()

    def close(self) -> None:
        """Close the clients, and leave the schema to a later test."""
        Harness.close(self)
        self.observer.close()
        self._left.append(self.schema)

    def _choose_schema(self) -> str:
        """Return the schema that was left longest ago, emptied: if no session of its test is still about."""
        if not self._left:
            return super()._choose_schema()
        self.schema = self._left[0]
        if self._activity("true"):
            return super()._choose_schema()
        for table in ("states", "leases", "keys"):
            self.observer.execute(f"DELETE FROM {self.schema}.{table}")
        return self._left.popleft()


class LentHarness(ReusedHarness):
    """A harness whose clients run on a pool of the service's own: by psycopg's cursors, and not by our own path."""

    def __init__(self, dsn: str, **settings: Any) -> None:
        self._pools: list[psycopg_pool.ConnectionPool[Any]] = []
        super().__init__(dsn, **settings)

    def open(self, settings: Settings | None = None) -> PostgresStore:
        chosen = settings or self.settings
        pool: psycopg_pool.ConnectionPool[Any] = psycopg_pool.ConnectionPool(
            self.dsn,
            kwargs={"application_name": self.schema},
            configure=session_settings(chosen),
            min_size=1,
            max_size=chosen.connections_max,
            open=True,
        )
        self._pools.append(pool)
        return PostgresStore.open(pool=pool, schema=self.schema, settings=chosen, monotonic=self._monotonic)

    def close(self) -> None:
        super().close()
        for pool in self._pools:
            pool.close()


def drop_left(dsn: str) -> None:
    """Drop the schemas that this process left to later tests."""
    if ReusedHarness._left:
        with connect(dsn) as connection:
            for schema in ReusedHarness._left:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")
                connection.execute("DELETE FROM test_clock.offsets WHERE name = %s", [schema])


def _docker_answers() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        return subprocess.run([docker, "info"], capture_output=True, timeout=10, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
