"""A database for a peer: it makes what it wants there, and all of it is dropped in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier, Literal

from tests.benchmarks.by_hand import connect

__all__ = ["database"]

_SETTINGS = (
    "synchronous_commit",
    "enable_seqscan",
    "enable_bitmapscan",
    "jit",
    "plan_cache_mode",
    "default_transaction_isolation",
)
"""Of our sessions, all that durability and a statement's plan depend on."""


@contextmanager
def database(dsn: str, schema: str, name: str, *, durable: bool) -> Iterator[str]:
    """Yield the DSN of a new database, whose sessions begin with the settings that ours have in this schema."""
    with connect(dsn, schema, durable=durable) as connection:
        settings = {setting: _shown(connection, setting) for setting in _SETTINGS}
    of_it = Identifier(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(of_it))
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for setting, value in settings.items():
                words = SQL("ALTER DATABASE {} SET {} = {}").format(of_it, Identifier(setting), Literal(value))
                connection.execute(words)
        yield make_conninfo(dsn, dbname=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(of_it))


def _shown(connection: psycopg.Connection[Any], setting: str) -> str:
    (value,) = connection.execute("SELECT current_setting($1)", [setting]).fetchone() or ("",)
    return str(value)
