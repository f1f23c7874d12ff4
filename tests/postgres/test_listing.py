"""P11: a page is read from an index, in its order, and no further than its limit, whatever the plan was made for."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from nl2state.binding import Binding
from nl2state.limits import Limits
from nl2state.waiting import Queues
from nl2state_postgres.catalog import Catalog, Statement
from nl2state_postgres.connection import Connection
from tests.servers import PostgresHarness

_SCOPE = uuid.UUID(int=1)
_ROWS = 20_000
_LIMIT = 10
_FILL = {
    "states": "INSERT INTO {schema}.states (scope, record_id, revision, status, is_terminal, schema_version, payload,"
    " payload_encoding, payload_format, write_id, created_at, updated_at)"
    " SELECT {scope}, 'order-' || md5(n::text), 1, 'created', false, 1, '1', 1, 1, gen_random_uuid(), now(), now()",
    "keys": "INSERT INTO {schema}.keys (scope, key, fingerprint, attempt, write_id, attempt_ttl_seconds,"
    " result_ttl_seconds, reserved_at, claim_until, expires_at)"
    " SELECT {scope}, 'order-' || md5(n::text), '', 1, gen_random_uuid(), 1, 1, now(), now(), now()",
    "leases": "INSERT INTO {schema}.leases (scope, resource, token, turn, ttl_seconds, write_id, acquired_at,"
    " expires_at)"
    " SELECT {scope}, 'order-' || md5(n::text), 1, gen_random_uuid(), 1, gen_random_uuid(), now(), now()",
}
_ONE_SCOPE = f"'{_SCOPE}'::uuid"
_MANY_SCOPES = "md5((n % 10000)::text)::uuid"
_TABLES = {"list_states": "states", "list_state_ids": "states", "list_leases": "leases", "list_keys": "keys"}
_INDEXES = {  # either of the leases' has the order of their names
    "keys": {"keys_pkey"},
    "states": {"states_pkey"},
    "leases": {"leases_pkey", "leases_turn"},
}
_ON_AN_EMPTY_TABLE = "generic, made on an empty table"
_FOR_FEW_ROWS = "custom, made for scopes of a few rows"


@pytest.mark.parametrize("plan", ["custom", "generic", _ON_AN_EMPTY_TABLE, _FOR_FEW_ROWS])
@pytest.mark.parametrize(
    ("statement", "prefix"),
    [
        ("list_states", None),
        ("list_states", "order-1"),
        ("list_state_ids", None),
        ("list_state_ids", "order-1"),
        ("list_leases", None),
        ("list_keys", None),
    ],
)
def test_a_page_reads_its_limit_and_one_row_more_from_an_index(
    harness: PostgresHarness, statement: str, prefix: str | None, plan: str
) -> None:
    table = _TABLES[statement]
    nodes = _plan(harness, statement, prefix, plan)
    [scan] = [node for node in nodes if "Scan" in node["Node Type"] and node.get("Relation Name") == table]
    assert scan["Node Type"] == "Index Scan"
    assert scan["Index Name"] in _INDEXES[table]
    assert "scope" in scan["Index Cond"]
    assert "Filter" not in scan
    assert scan["Actual Rows"] == _LIMIT + 1
    assert not any(node["Node Type"] == "Sort" for node in nodes)


@pytest.mark.parametrize("name", list(_TABLES))
def test_a_page_far_behind_touches_no_more_than_the_first(harness: PostgresHarness, name: str) -> None:
    _fill(harness, _TABLES[name], _ONE_SCOPE)
    column = {"states": "record_id", "keys": "key", "leases": "resource"}[_TABLES[name]]
    far = f"SELECT {column} FROM {harness.schema}.{_TABLES[name]} ORDER BY 1 DESC OFFSET {2 * _LIMIT} LIMIT 1"
    (behind,) = harness.observer.execute(far.encode()).fetchone() or ("",)
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    connection = Connection.ready(harness.dsn, harness.settings, catalog)
    try:
        connection.command(f"PREPARE listing AS {catalog[name].sql}")
        _touched(connection, catalog[name], None)  # the first time, it reads the catalog as well
        first, last = (_touched(connection, catalog[name], after) for after in (None, behind))
    finally:
        connection.close()
    assert last <= first + 2  # a page of the index may end in the midst of either


def _touched(connection: Connection, statement: Statement, after: str | None) -> int:
    """List from there on, and return how many pages of the table and its index that touched."""
    row = connection.command(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {_execution(statement, None, after)}").row
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _fill(harness: PostgresHarness, table: str, scope: str) -> None:
    rows = f"{_FILL[table].format(schema=harness.schema, scope=scope)} FROM generate_series(1, {_ROWS}) n"
    harness.observer.execute(rows)


def _plan(harness: PostgresHarness, name: str, prefix: str | None, plan: str) -> list[dict[str, Any]]:
    """Run a list as a session of ours does, and return the nodes of its plan."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    statement, table = catalog[name], _TABLES[name]
    execute = _execution(statement, prefix, None)
    connection = Connection.ready(harness.dsn, harness.settings, catalog)
    try:
        connection.command(f"SET plan_cache_mode = force_{plan.partition(',')[0]}_plan")
        connection.command(f"PREPARE listing AS {statement.sql}")
        if plan == _ON_AN_EMPTY_TABLE:
            connection.command(execute)
        if plan == _FOR_FEW_ROWS:
            _fill(harness, table, _MANY_SCOPES)
            harness.observer.execute(f"ANALYZE {harness.schema}.{table}")
        _fill(harness, table, _ONE_SCOPE)
        if plan in ("custom", "generic"):
            harness.observer.execute(f"ANALYZE {harness.schema}.{table}")
        explained = connection.command(f"EXPLAIN (ANALYZE, FORMAT JSON) {execute}").row
    finally:
        connection.close()
    assert explained is not None
    return _nodes(explained[0][0]["Plan"])


def _execution(statement: Statement, prefix: str | None, after: str | None) -> str:
    binding = Binding(scope=_SCOPE, limits=Limits(), monotonic=float, queues=Queues(float))
    span = binding.span(after=after, limit=_LIMIT, prefix=prefix)
    values = {"scope": _SCOPE, "after": span.after, "first": span.first, "before": span.before}
    values |= {"page_size": span.limit, "status": "running", "record_id": "order-1"}
    return f"EXECUTE listing ({', '.join(_literal(values[parameter]) for parameter in statement.parameters)})"


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"


def _nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for child in node.get("Plans", ()) for below in _nodes(child))]
