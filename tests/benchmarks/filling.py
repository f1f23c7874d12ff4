"""Many rows of one scope, written by the server itself: through the library it would take an hour."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.sql import SQL, Identifier

from nl2state import TenantScope

__all__ = ["DUE", "FREE_LEASES", "LIVE_KEYS", "LIVE_LEASES", "LIVE_STATES", "OWNER", "Rows", "empty", "fill", "settle"]

_CHUNK = 50_000
_TABLES = ("states", "leases", "keys")

OWNER: Final = "worker-1"
_NEVER = "NULL::timestamptz"
_LATER = "now() + interval '1 day'"
_DUE = "now() - interval '2 days' - make_interval(secs => random() * 86400)"
"""In no order: as each page of a sweep touches other pages of the table, it is as hard as it gets."""

_PAYLOAD = """convert_to('"' || repeat(md5(n::text), 7) || '"', 'UTF8')"""
"""A JSON string of 226 bytes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table: their names begin with `prefix`, and the query makes them of `n`."""

    table: str
    prefix: str
    query: str

    def name(self, number: int) -> str:
        """Return the name of one, from 1 on."""
        return f"{self.prefix}{number:08}"


def _states(prefix: str, name: str, *, ended: str = _NEVER, deleted: bool = False, expires: str = _NEVER) -> Rows:
    emptied = "ended.at, NULL" if deleted else f"NULL, {_PAYLOAD}"
    return Rows(
        "states",
        prefix,
        "INSERT INTO {table} (scope, record_id, revision, status, is_terminal, schema_version, payload_encoding,"
        " payload_format, write_id, created_at, updated_at, ended_at, expires_at, deleted_at, payload)"
        f" SELECT {{scope}}, '{prefix}' || {name}, 1, 'created', ended.at IS NOT NULL, 1, 1, 1, gen_random_uuid(),"
        f" now(), now(), ended.at, {expires}, {emptied}"
        f" FROM (SELECT n, {ended} AS at FROM generate_series({{first}}, {{last}}) n) ended",
    )


def _leases(prefix: str, name: str, *, owner: str, expires: str) -> Rows:
    return Rows(
        "leases",
        prefix,
        "INSERT INTO {table} (scope, resource, owner, token, turn, ttl_seconds, write_id, acquired_at, expires_at)"
        f" SELECT {{scope}}, '{prefix}' || {name}, {owner}, 1, gen_random_uuid(), 86400, gen_random_uuid(), now(),"
        f" {expires}"
        " FROM generate_series({first}, {last}) n",
    )


def _keys(prefix: str, name: str, *, completed: bool, expires: str) -> Rows:
    outcome = f"now(), {_PAYLOAD}, 1, 1" if completed else "NULL, NULL, NULL, NULL"
    return Rows(
        "keys",
        prefix,
        "INSERT INTO {table} (scope, key, fingerprint, attempt, write_id, attempt_ttl_seconds, result_ttl_seconds,"
        " reserved_at, completed_at, outcome, outcome_encoding, outcome_format, claim_until, expires_at)"
        f" SELECT {{scope}}, '{prefix}' || {name}, sha256(n::text::bytea), 1, gen_random_uuid(), 86400, 86400, now(),"
        f" {outcome}, {expires}, {expires} FROM generate_series({{first}}, {{last}}) n",
    )


_IN_ORDER = "lpad(n::text, 8, '0')"
_IN_NO_ORDER = "md5(n::text)"

LIVE_STATES: Final = _states("order-", _IN_ORDER)
LIVE_LEASES: Final = _leases("order-", _IN_ORDER, owner=f"'{OWNER}'", expires=_LATER)
FREE_LEASES: Final = _leases("order-", _IN_ORDER, owner="NULL", expires="now()")
LIVE_KEYS: Final = _keys("pay-", _IN_ORDER, completed=False, expires=_LATER)

DUE: Final = {
    "expired states": _states("", _IN_NO_ORDER, expires=_DUE),
    "ended states": _states("", _IN_NO_ORDER, ended=_DUE),
    "deleted states": _states("", _IN_NO_ORDER, ended=_DUE, deleted=True),
    "leases": _leases("", _IN_NO_ORDER, owner="NULL", expires=_DUE),
    "keys": _keys("", _IN_NO_ORDER, completed=True, expires=_DUE),
}
"""What retention removes, or empties: by what it is told of."""


def fill(
    connection: psycopg.Connection[Any], schema: str, rows: Rows, count: int, progress: Callable[[int, int], None]
) -> None:
    """Write so many of these rows into the local scope."""
    for first in range(1, count + 1, _CHUNK):
        progress(first - 1, count)
        last = min(first + _CHUNK - 1, count)
        connection.execute(
            SQL(rows.query).format(
                table=Identifier(schema, rows.table), scope=TenantScope.local().uuid, first=first, last=last
            )
        )


def empty(connection: psycopg.Connection[Any], schema: str) -> None:
    """Remove all rows of a schema, with their files."""
    for table in _TABLES:
        connection.execute(SQL("TRUNCATE {}").format(Identifier(schema, table)))


def settle(connection: psycopg.Connection[Any], schema: str) -> None:
    """Let the server do now what the filling left to be done later."""
    for table in _TABLES:
        connection.execute(SQL("VACUUM (ANALYZE) {}").format(Identifier(schema, table)))
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute("CHECKPOINT")
