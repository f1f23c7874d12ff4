"""Migrations: safe from many processes at once, forward only, and refused where they do not fit."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from nl2state import ANY_REVISION, SchemaError, TenantScope
from nl2state_postgres import PostgresStore
from nl2state_postgres.schema import migrations
from tests.servers import connect

_OPEN_AND_WRITE = """
import sys
from nl2state import TenantScope
from nl2state_postgres import PostgresStore
dsn, own = sys.argv[1:]
sys.stdin.readline()
for round, schema in enumerate(sys.stdin.readline().split()):
    print("ready", flush=True)
    sys.stdin.readline()
    with PostgresStore.open(dsn, schema=schema) as store:
        store.tenant(TenantScope.local()).states.create(own, round)
print("done", flush=True)
"""


@pytest.fixture
def schema(dsn: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    yield name
    with connect(dsn) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.mark.parametrize(("rounds", "isolation"), [(20, "read committed"), (4, "repeatable read"), (4, "serializable")])
def test_eight_processes_open_an_empty_database_at_once(dsn: str, rounds: int, isolation: str) -> None:
    """Case 39: each process opens the store, and writes, in a schema that none of them has made.

    Whatever the role's default isolation is: a snapshot from before the lock would show a schema that is not there.
    """
    schemas = [f"test_{uuid.uuid4().hex}" for _ in range(rounds)]
    isolation = isolation.replace(" ", "\\ ")
    dsn = psycopg.conninfo.make_conninfo(dsn, options=f"-c default_transaction_isolation={isolation}")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _OPEN_AND_WRITE, dsn, f"process-{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(8)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n" + " ".join(schemas) + "\n")
            process.stdin.flush()
        for _ in schemas:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", process.communicate()[1]
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        for process in processes:
            out, err = process.communicate(timeout=60)
            assert (out, err) == ("done\n", "")
        with connect(dsn) as connection:
            for name in schemas:
                rows = connection.execute(f"SELECT record_id FROM {name}.states ORDER BY 1").fetchall()
                assert rows == [(f"process-{n}",) for n in range(8)]
                assert connection.execute(f"SELECT count(*) FROM {name}.migrations").fetchone() == (len(migrations()),)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        with connect(dsn) as connection:
            for name in schemas:
                connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def test_a_missing_schema_is_refused_where_it_may_not_be_made(dsn: str, schema: str) -> None:
    with pytest.raises(SchemaError, match="nl2state migrate"):
        PostgresStore.open(dsn, schema=schema, migrate=False)
    PostgresStore.open(dsn, schema=schema).close()
    PostgresStore.open(dsn, schema=schema, migrate=False).close()


def test_a_newer_schema_is_refused_untouched(dsn: str, schema: str) -> None:
    PostgresStore.open(dsn, schema=schema).close()
    with connect(dsn) as connection:
        connection.execute(f"INSERT INTO {schema}.migrations VALUES (9999, 'later', 'x')")
        for migrate in (True, False):
            with pytest.raises(SchemaError, match="newer"):
                PostgresStore.open(dsn, schema=schema, migrate=migrate)
        assert connection.execute(f"SELECT count(*) FROM {schema}.migrations").fetchone() == (len(migrations()) + 1,)


def test_a_migration_that_was_edited_is_refused(dsn: str, schema: str) -> None:
    PostgresStore.open(dsn, schema=schema).close()
    with connect(dsn) as connection:
        connection.execute(f"UPDATE {schema}.migrations SET checksum = 'another' WHERE version = 1")
    with pytest.raises(SchemaError, match="migration 1"):
        PostgresStore.open(dsn, schema=schema)


def test_a_schema_with_a_table_of_somebody_else_s_is_refused_untouched(dsn: str, schema: str) -> None:
    with connect(dsn) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.keys (id integer)")
        with pytest.raises(SchemaError, match="not the store's"):
            PostgresStore.open(dsn, schema=schema)
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
        assert tables == [("keys",)]


def test_a_role_that_may_not_migrate_is_told_the_command_and_one_that_may_write_runs(dsn: str, schema: str) -> None:
    role = f"role_{uuid.uuid4().hex}"
    theirs = psycopg.conninfo.make_conninfo(dsn, user=role)
    with connect(dsn) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        try:
            with pytest.raises(SchemaError, match="nl2state migrate"):
                PostgresStore.open(theirs, schema=schema)
            PostgresStore.open(dsn, schema=schema).close()
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
            with PostgresStore.open(theirs, schema=schema, migrate=False) as store:
                assert store.tenant(TenantScope.local()).states.create("r", 1).revision == 1
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_two_schemas_are_two_stores(dsn: str, schema: str) -> None:
    other = f"{schema[:-1]}é\" .-'%"  # a schema's name can be anything that PostgreSQL takes
    with PostgresStore.open(dsn, schema=schema) as one, PostgresStore.open(dsn, schema=other) as two:
        one.tenant(TenantScope.local()).states.create("r", 1)
        assert two.tenant(TenantScope.local()).states.get("r") is None
        two.tenant(TenantScope.local()).states.create("r", 2)
        assert one.tenant(TenantScope.local()).states.delete("r", expected_revision=ANY_REVISION) == 2
    with connect(dsn) as connection:
        connection.execute('DROP SCHEMA "{}" CASCADE'.format(other.replace('"', '""')))
