"""The schema: numbered, forward-only migrations, applied by one process at a time.

A lock is taken before anything else, because even CREATE SCHEMA IF NOT EXISTS fails when two processes race. All
that is pending is applied in one transaction. A database that is newer than this code is refused untouched.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources

from nl2state.errors import SchemaError, StoreError
from nl2state_postgres.catalog import Catalog, quote_schema
from nl2state_postgres.runners import BEGIN, Runner

__all__ = ["Migration", "migrations", "prepare"]

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. Its checksum is of its text, so that one that was applied is never edited."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Return this package's migrations, in their order."""
    found = []
    for entry in (resources.files("nl2state_postgres") / "migrations").iterdir():
        if match := _FILE.fullmatch(entry.name):
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def prepare(connection: Runner, catalog: Catalog, schema: str, *, migrate: bool) -> int:
    """Make the schema fit this code, or with `migrate` false require that it does. Returns how many migrations it took.

    Raises SchemaError where it does not fit, or this role may not migrate it; StoreUnavailableError, StoreTimeoutError.
    """
    if connection.run(catalog["read_server_encoding"], {}).row != ("UTF8",):
        raise SchemaError("the database's encoding is not UTF8")
    pending = _pending(connection, catalog, schema)
    if pending and not migrate:
        raise SchemaError("the schema is missing, or older than this code: run `nl2state migrate`")
    return _apply(connection, catalog, schema) if pending else 0


def _pending(connection: Runner, catalog: Catalog, schema: str) -> list[Migration]:
    """Return what is to be applied. Raises SchemaError for a database that this code does not know."""
    applied: dict[str, str] = {}
    if connection.run(catalog["find_ledger"], {"schema_name": schema}).rows:
        applied = (connection.run(catalog["read_ledger"], {}).row or ({},))[0]
    known = {str(migration.version): migration for migration in migrations()}
    if applied.keys() - known.keys():
        raise SchemaError("the schema is newer than this code")
    for version, checksum in applied.items():
        if known[version].checksum != checksum:
            raise SchemaError(f"migration {version} of the schema is not this code's")
    return [migration for version, migration in known.items() if version not in applied]


def _apply(connection: Runner, catalog: Catalog, schema: str) -> int:
    connection.command(BEGIN)
    try:
        connection.run(catalog["lock_migrations"], {"lock_key": _lock_key(schema)})
        pending = _pending(connection, catalog, schema)  # somebody may have been at it while we waited
        if not connection.run(catalog["find_schema"], {"schema_name": schema}).rows:
            connection.run(catalog["create_schema"], {})
        connection.run(catalog["create_ledger"], {})
        for migration in pending:
            connection.command(migration.sql.replace("{schema}", quote_schema(schema)))
            noted = {"version": migration.version, "name": migration.name, "checksum": migration.checksum}
            connection.run(catalog["note_migration"], noted)
        connection.command("COMMIT", in_doubt=True)
    except BaseException:
        with suppress(StoreError):
            connection.command("ROLLBACK")
        raise
    return len(pending)


def _lock_key(schema: str) -> int:
    return int.from_bytes(hashlib.sha256(f"nl2state migrations of {schema}".encode()).digest()[:8], "big", signed=True)
