"""P11: a page is read from an index, in its order, and no further than its limit, whatever the plan was made for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from nl2state.binding import Binding
from nl2state.limits import Limits
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.database import Connection
from tests.servers import PostgresHarness

_SCOPE = uuid.UUID(int=1)
_ROWS = 20_000
_LIMIT = 10
_FILL = {
    "states": "INSERT INTO {s}.states (scope, record_id, revision, status, is_terminal, schema_version, payload,"
    " payload_encoding, payload_format, write_id, created_at, updated_at)"
    " SELECT %(scope)s, 'order-' || n, 1, 'created', false, 1, '1', 1, 1, %(scope)s, now(), now()"
    " FROM generate_series(1, %(rows)s) n",
    "keys": "INSERT INTO {s}.keys (scope, key, fingerprint, attempt, write_id, attempt_ttl_seconds, result_ttl_seconds,"
    " reserved_at, claim_until, expires_at)"
    " SELECT %(scope)s, 'order-' || n, '', 1, %(scope)s, 1, 1, now(), now(), now() FROM generate_series(1, %(rows)s) n",
    "leases": "INSERT INTO {s}.leases (scope, resource, token, turn, ttl_seconds, write_id, acquired_at, expires_at)"
    " SELECT %(scope)s, 'order-' || n, 1, gen_random_uuid(), 1, %(scope)s, now(), now()"
    " FROM generate_series(1, %(rows)s) n",
}


_TABLES = {"list_states": "states", "list_state_ids": "states", "list_leases": "leases", "list_keys": "keys"}
_INDEXES = {
    "keys": {"keys_pkey"},
    "states": {"states_pkey"},
    "leases": {"leases_pkey", "leases_turn"},
}  # either has the order of the names
_PLANS = ["custom", "generic", "generic, made on an empty table"]


@pytest.mark.parametrize("plan", _PLANS)
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

    def fill() -> None:
        harness.observer.execute(_FILL[table].replace("{s}", harness.schema), {"scope": _SCOPE, "rows": _ROWS})

    nodes = _plan(harness, statement, prefix, plan, fill)
    [scan] = [node for node in nodes if "Scan" in node["Node Type"] and node.get("Relation Name") == table]
    assert scan["Node Type"] == "Index Scan"
    assert scan["Index Name"] in _INDEXES[table]
    assert "scope" in scan["Index Cond"]
    assert "Filter" not in scan
    assert scan["Actual Rows"] == _LIMIT + 1
    assert not any(node["Node Type"] == "Sort" for node in nodes)


def _plan(
    harness: PostgresHarness, name: str, prefix: str | None, plan: str, fill: Callable[[], None]
) -> list[dict[str, Any]]:
    """Run a list as a session of ours does, and return the nodes of its plan."""
    catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
    span = Binding(scope=_SCOPE, limits=Limits(), monotonic=float).span(after=None, limit=_LIMIT, prefix=prefix)
    values = {"scope": _SCOPE, "after": span.after, "first": span.first, "before": span.before}
    values |= {"page_size": span.limit, "status": "running", "record_id": "order-1"}
    statement = catalog[name]
    execute = f"EXECUTE listing ({', '.join(_literal(values[parameter]) for parameter in statement.parameters)})"
    connection = Connection.connect(harness.dsn, settings=harness.settings, catalog=catalog)
    try:
        connection.send(f"SET plan_cache_mode = force_{plan.partition(',')[0]}_plan")
        connection.send(f"PREPARE listing AS {statement.sql}")
        if plan == _PLANS[-1]:
            connection.send(execute)
        fill()
        if plan != _PLANS[-1]:
            harness.observer.execute(f"ANALYZE {harness.schema}.{_TABLES[name]}")
        explained = connection.send(f"EXPLAIN (ANALYZE, FORMAT JSON) {execute}").fetchone()
    finally:
        connection.close()
    assert explained is not None
    return _nodes(explained[0][0]["Plan"])


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"


def _nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for child in node.get("Plans", ()) for below in _nodes(child))]
