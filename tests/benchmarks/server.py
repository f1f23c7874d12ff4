"""The server that is measured on, and a schema of its own for each side."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import psycopg

from nl2state_postgres import PostgresStore
from nl2state_postgres.embedded import EmbeddedPostgres
from tests.benchmarks.sides import SIDES

__all__ = ["serving"]

_DROP_LOCK_TIMEOUT = "10s"
_SETTINGS: Final = {
    "max_connections": "200",
    "shared_buffers": "1GB",  # a million rows are in memory; what is not used of it costs nothing
}


@contextmanager
def serving(dsn: str | None, *, durable: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the DSN of a server, and the schema of each side: made anew, with the same tables, and dropped in the end.

    Without a DSN it is a temporary server, which syncs to disk only if it is to be durable.
    """
    with ExitStack() as resources:
        if dsn is None:
            settings = _SETTINGS | {"fsync": "on" if durable else "off"}
            dsn = resources.enter_context(EmbeddedPostgres(settings=settings)).dsn
        psycopg.connect(dsn).close()  # a wrong DSN is told now, and there is nothing to drop
        run = secrets.token_hex(6)
        schemas = {side: f"nl2state_benchmark_{run}_{side}" for side in SIDES}
        for schema in schemas.values():
            resources.callback(_drop, dsn, schema)
            PostgresStore.open(dsn, schema=schema).close()
        yield dsn, schemas


def _drop(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT set_config('lock_timeout', %s, false)", [_DROP_LOCK_TIMEOUT])
        connection.execute(psycopg.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(schema)))
