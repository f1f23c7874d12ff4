"""A connection on which a test runs the library's own statements, one by one, in transactions of its own making."""

from __future__ import annotations

import uuid
from typing import Any

from nl2state_postgres.catalog import Catalog, Statement
from nl2state_postgres.connection import Connection
from tests.servers import PostgresHarness

_SCOPE = uuid.uuid4()


class Session:
    """A connection on which a test runs the library's own statements one by one."""

    def __init__(self, harness: PostgresHarness, catalog: Catalog) -> None:
        self._catalog = catalog
        self._connection = Connection.bare(f"{harness.dsn} application_name={harness.schema}")

    def send(self, command: str) -> None:
        self._connection.command(command)

    def run(self, statement: str | Statement, **values: Any) -> Any:
        if isinstance(statement, str):
            statement = self._catalog[statement]
        known: dict[str, Any] = dict.fromkeys(statement.parameters)
        known |= {"scope": _SCOPE, "write_id": uuid.uuid4(), "resource": "r", "fence_resource": "r", "epoch": 0}
        known |= {
            "payload": b"1",
            "payload_encoding": 1,
            "payload_format": 1,
            "any_revision": True,
            "schema_version": 1,
        }
        known |= {"is_terminal": False, "lift_expiry": False, "status": "created", "owner": "A", "fence_owner": "A"}
        known |= values
        return self._connection.run(statement, {name: known[name] for name in statement.parameters}).row

    def close(self) -> None:
        self._connection.close()
