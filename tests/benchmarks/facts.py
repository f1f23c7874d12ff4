"""What a figure depends on: the machine, the versions, and the settings that are in force in the sessions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psycopg
from psycopg import sql

from tests.benchmarks import pgbench
from tests.benchmarks.by_hand import connect
from tests.benchmarks.ours import open_ours
from tests.benchmarks.sides import BY_HAND, OURS, PGBENCH

__all__ = ["facts"]

_SETTINGS: Final = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "jit",
    "enable_seqscan",
    "plan_cache_mode",
)
_RECORD = "settings"
_TELL = """
CREATE FUNCTION {schema}.tell_settings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.payload := (
    SELECT convert_to(json_object_agg(name, current_setting(name))::text, 'UTF8') FROM unnest(TG_ARGV) name);
  RETURN NEW;
END $$;
CREATE TRIGGER tell_settings BEFORE INSERT ON {schema}.states FOR EACH ROW
EXECUTE FUNCTION {schema}.tell_settings({names})
"""
_TELL_NO_MORE = """
DROP FUNCTION {schema}.tell_settings() CASCADE;
DELETE FROM {schema}.states WHERE record_id = {record_id}
"""


def facts(dsn: str, schemas: Mapping[str, str], *, durable: bool, apart: Collection[str] = ()) -> dict[str, Any]:
    """Return what the machine is, and what is in force in the sessions of each side.

    Apart from them may be parts whose sessions are ours, and durable.
    """
    found = pgbench.find(dsn)
    sessions = {"ours": _ours(dsn, schemas[OURS], durable), "by hand": _by_hand(dsn, schemas[BY_HAND], durable)}
    if found is not None:
        sessions["pgbench"] = _pgbench(dsn, schemas[PGBENCH], durable)
    sessions |= {part: _ours(dsn, schemas[OURS], True) for part in apart}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "nl2state": " ".join(filter(None, (version("nl2state"), _commit()))),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "psycopg": f"{version('psycopg')} ({psycopg.pq.__impl__}, libpq {psycopg.pq.version()})",
        "pgbench": "not found: nothing is compared with it" if found is None else found[1],
        **{name: _agreed(sessions, name) for name in _SETTINGS},
    }


def _agreed(sessions: Mapping[str, Mapping[str, str]], name: str) -> str:
    """Return a setting, of each side apart where they differ."""
    values = {side: session[name] for side, session in sessions.items()}
    if len(set(values.values())) == 1:
        return values["ours"]
    return ", ".join(f"{side}: {value}" for side, value in values.items())


def _ours(dsn: str, schema: str, durable: bool) -> dict[str, str]:
    """Ask a session of the library's own. It runs only its own statements: a trigger tells, in what they write."""
    names = {
        "schema": sql.Identifier(schema),
        "names": sql.SQL(", ").join(map(sql.Literal, _SETTINGS)),
        "record_id": sql.Literal(_RECORD),
    }
    with psycopg.connect(dsn, autocommit=True) as connection, open_ours(dsn, schema, 1, durable=durable) as (side,):
        connection.execute(sql.SQL(_TELL).format(**names))
        try:
            side.create(_RECORD)
            told: dict[str, str] = side.get(_RECORD).value
        finally:
            connection.execute(sql.SQL(_TELL_NO_MORE).format(**names))
    return told


def _by_hand(dsn: str, schema: str, durable: bool) -> dict[str, str]:
    with connect(dsn, schema, durable=durable) as connection:
        return {name: _shown(connection, "SELECT current_setting($1)", name) for name in _SETTINGS}


def _pgbench(dsn: str, schema: str, durable: bool) -> dict[str, str]:
    """Ask a session that is led by pgbench's environment alone."""
    environment = pgbench.environment(dsn, schema, durable=durable)
    with patch.dict(os.environ, environment), closing(psycopg.connect("")) as connection:
        return {name: _shown(connection, "SELECT current_setting(%s)", name) for name in _SETTINGS}


def _shown(connection: psycopg.Connection[Any], query: str, name: str) -> str:
    (setting,) = connection.execute(query, [name]).fetchone() or ("",)
    return str(setting)


def _commit() -> str | None:
    """Return the commit that is measured, where it is known, and whether there is more than it has."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10.0).stdout.strip()
    return None


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
