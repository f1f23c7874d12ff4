"""The server that is measured on, schemas of its own for each side, and the facts that a figure depends on."""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psycopg

from nl2state_postgres import PostgresStore
from nl2state_postgres.embedded import EmbeddedPostgres
from tests.benchmarks.by_hand import connect

__all__ = ["SIDES", "facts", "serving"]

SIDES: Final = ("ours", "by_hand")
_FACTS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "jit")
_DROP_LOCK_TIMEOUT = "10s"


@contextmanager
def serving(dsn: str | None, *, durable: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the DSN of a server, and the schema of each side: made anew, with the same tables, and dropped in the end.

    Without a DSN it is a temporary server, which syncs to disk only if it is to be durable.
    """
    with ExitStack() as resources:
        if dsn is None:
            setting = "on" if durable else "off"
            settings = {"fsync": setting, "synchronous_commit": setting, "max_connections": "200"}
            dsn = resources.enter_context(EmbeddedPostgres(settings=settings)).dsn
        psycopg.connect(dsn).close()  # a wrong DSN is told now, and there is nothing to drop
        run = secrets.token_hex(6)
        schemas = {side: f"nl2state_benchmark_{run}_{side}" for side in SIDES}
        for schema in schemas.values():
            resources.callback(_drop, dsn, schema)
            PostgresStore.open(dsn, schema=schema).close()
        yield dsn, schemas


def facts(dsn: str, schema: str) -> dict[str, Any]:
    """Return what the machine is, and what is in force in the sessions of both sides."""
    with connect(dsn, schema) as connection:
        in_force = {name: _shown(connection, name) for name in _FACTS}
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "psycopg": f"{version('psycopg')} ({psycopg.pq.__impl__}, libpq {psycopg.pq.version()})",
        "nl2state": version("nl2state"),
        **in_force,
    }


def _shown(connection: psycopg.Connection[Any], name: str) -> str:
    (setting,) = connection.execute("SELECT current_setting($1)", [name]).fetchone() or ("",)
    return str(setting)


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _drop(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT set_config('lock_timeout', %s, false)", [_DROP_LOCK_TIMEOUT])
        connection.execute(psycopg.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(schema)))
