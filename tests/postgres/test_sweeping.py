"""P11: a sweep reads a page of rows, whatever else is in the scope, and whatever its plan was made for."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final

import pytest

from nl2state_postgres.catalog import Catalog, Statement
from nl2state_postgres.connection import Connection
from tests.servers import PostgresHarness, connect

_SCOPE = uuid.UUID(int=1)
_ROWS = 20_000
_LIMIT = 10
_VALUES = {"scope": _SCOPE, "age_seconds": 86_400, "page_size": _LIMIT, "after": "", "write_id": uuid.UUID(int=2)}
_STATE = (
    "INSERT INTO {schema}.states (scope, record_id, revision, status, is_terminal, schema_version, payload,"
    " payload_encoding, payload_format, write_id, created_at, updated_at, ended_at, deleted_at, expires_at)"
    " SELECT {scope}, md5(concat(n, {ended}, {deleted})), 1, 'created', {deleted} IS NULL, 1, '1', 1, 1,"
    " gen_random_uuid(), now(), now(), now() - {ended}::interval, now() - {deleted}::interval,"
    " now() - {expired}::interval"
)
_KEPT = _STATE.replace("{ended}", "'2 days'").replace("{deleted}", "NULL::text").replace("{expired}", "NULL")
_EMPTIED = _STATE.replace("{ended}", "'2 days'").replace("{deleted}", "'2 days'").replace("{expired}", "NULL")
_EXPIRED = _STATE.replace("{ended}", "NULL::text").replace("{deleted}", "NULL::text").replace("{expired}", "'2 days'")
_KEY = (
    "INSERT INTO {schema}.keys (scope, key, fingerprint, attempt, write_id, attempt_ttl_seconds, result_ttl_seconds,"
    " reserved_at, claim_until, expires_at)"
    " SELECT {scope}, md5(n::text), '', 1, gen_random_uuid(), 1, 1, now(), now(), now() - '2 days'::interval"
)
_LEASE = (
    "INSERT INTO {schema}.leases (scope, resource, token, turn, ttl_seconds, write_id, acquired_at, expires_at)"
    " SELECT {scope}, md5(n::text), 1, gen_random_uuid(), 1, gen_random_uuid(), now(), now() - '2 days'::interval"
)
_TWICE: Final = 2 * _LIMIT + 2  # the page, and the same rows by their names


@pytest.mark.parametrize(
    ("name", "table", "rows"),
    [
        ("sweep_ended_states", "states", [_KEPT, _EMPTIED]),
        ("sweep_ended_states", "states", [_EMPTIED]),
        ("sweep_deleted_states", "states", [_EMPTIED, _KEPT]),
        ("sweep_deleted_states", "states", [_KEPT]),
        ("sweep_expired_states", "states", [_EXPIRED]),
        ("sweep_keys", "keys", [_KEY]),
        ("sweep_leases", "leases", [_LEASE]),
    ],
)
def test_a_sweep_reads_a_page_and_no_more(harness: PostgresHarness, name: str, table: str, rows: list[str]) -> None:
    scans = [node for node in _plan(harness, name, rows) if node.get("Relation Name") == table and _is_scan(node)]
    assert len(scans) >= 2
    for scan in scans:
        assert scan["Node Type"] == "Index Scan"
        read = (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"]
        assert read <= _TWICE, scan


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("sweep_ended_states", _KEPT),
        ("sweep_deleted_states", _EMPTIED),
        ("sweep_expired_states", _EXPIRED),
        ("sweep_keys", _KEY),
        ("sweep_leases", _LEASE),
    ],
)
def test_a_page_costs_the_same_whatever_was_removed_before_it(alone: PostgresHarness, name: str, rows: str) -> None:
    """Though what was removed is there still: an old snapshot keeps it from a vacuum, and its index entries in use."""
    apart = rows.replace("'2 days'", "concat('2 days ', abs(hashint4(n)), ' microseconds')")
    insertion = apart.format(schema=alone.schema, scope=f"'{_SCOPE}'::uuid")
    alone.observer.execute(f"{insertion} FROM generate_series(1, {_ROWS}) n".encode())
    catalog = Catalog.load(schema=alone.schema, clock=alone.settings.clock)
    connection = Connection.ready(alone.dsn, alone.settings, catalog)
    with connect(alone.dsn) as snapshot, snapshot.transaction():
        snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT 1")
        try:
            connection.command(f"PREPARE sweeping AS {catalog[name].sql}")
            first, last = _cost(connection, catalog[name], ""), ""
            for _ in range(50):
                removed, at, _ = connection.command(_execution(catalog[name], last)).row or (0, "", 0)
                assert removed == _LIMIT
                last = at.isoformat() if isinstance(at, datetime) else at
            assert _cost(connection, catalog[name], last) < 1.5 * first
        finally:
            connection.close()


def _cost(connection: Connection, statement: Statement, after: str) -> int:
    """Sweep a page, and return how many pages of the table and its indexes that touched, again and again counted."""
    explained = connection.command(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {_execution(statement, after)}").row
    assert explained is not None
    plan = explained[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _execution(statement: Statement, after: str) -> str:
    values = _VALUES | {"after": after}
    return f"EXECUTE sweeping ({', '.join(_literal(values[parameter]) for parameter in statement.parameters)})"


def _plan(harness: PostgresHarness, name: str, rows: list[str]) -> list[dict[str, Any]]:
    """Run a sweep by a plan that was made on an empty table, and return its nodes."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    statement = catalog[name]
    execution = _execution(statement, "")
    connection = Connection.ready(harness.dsn, harness.settings, catalog)
    try:
        connection.command(f"PREPARE sweeping AS {statement.sql}")
        connection.command(execution)
        for insertion in rows:
            insertion = insertion.format(schema=harness.schema, scope=f"'{_SCOPE}'::uuid")  # noqa: PLW2901
            harness.observer.execute(f"{insertion} FROM generate_series(1, {_ROWS}) n")
        explained = connection.command(f"EXPLAIN (ANALYZE, FORMAT JSON) {execution}").row
    finally:
        connection.close()
    assert explained is not None
    return _nodes(explained[0][0]["Plan"])


def _is_scan(node: dict[str, Any]) -> bool:
    return "Scan" in node["Node Type"]


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"


def _nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for child in node.get("Plans", ()) for below in _nodes(child))]
