"""A connection of the service's own: driven by psycopg's cursors, so that all that it is set to still holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from nl2state.errors import InvalidInputError, StoreUnavailableError, UsageError
from nl2state_postgres import sqlstates
from nl2state_postgres.catalog import Catalog, Statement, type_of
from nl2state_postgres.connection import reading
from nl2state_postgres.runners import ADAPTERS, Answer, answer_of
from nl2state_postgres.sessions import session_values
from nl2state_postgres.settings import Settings

__all__ = ["Borrowed", "require_transaction", "session_settings"]


class _Cursor(psycopg.RawCursor[Any]):
    """A cursor that the service's own dumpers of values have no part in."""

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


class Borrowed:
    """A connection that the service lends. Nothing of it is changed but whether it commits each statement by itself."""

    def __init__(self, connection: psycopg.Connection[Any], *, epoch: int | None = None) -> None:
        if not isinstance(connection, psycopg.Connection):
            raise InvalidInputError("connection is not a psycopg.Connection", field="connection")
        self.connection = connection
        self._ended = False
        self._autocommit = connection.autocommit
        self.epoch = epoch

    @property
    def closed(self) -> bool:
        """Whether it was lost, or told what no connection is used after. It is its owner's to close."""
        return self._ended or self.connection.closed

    @property
    def lost(self) -> bool:
        """Whether it broke under a statement."""
        return self.closed

    @property
    def alive(self) -> bool:
        """Whether the server has not hung up while it idled: then there would be something to read."""
        return not self.closed and not reading(self.connection.pgconn.socket)(0.0)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on it that can go on."""
        return self.connection.info.transaction_status == TransactionStatus.INTRANS

    def commit_each(self) -> None:
        """Let each statement commit by itself, until `restore`. Raises UsageError where a transaction is open."""
        if not self._set_autocommit(True):
            raise UsageError("the pool lends a connection with a transaction open: its check, say, is to end it")

    def restore(self) -> None:
        """Let it be as it was lent, or close it where a transaction is open, that nobody may go on with."""
        if not self._set_autocommit(self._autocommit):
            self.close()

    def run(
        self, statement: Statement, values: Mapping[str, Any], *, in_doubt: bool = False, after: Sequence[str] = ()
    ) -> Answer:
        """Run a statement. Raises a StoreError; the driver's stays here."""
        for command in after:
            self.command(command)
        parameters = [_adapted(type_of(name) or "", values[name]) for name in statement.parameters]
        return self._execute(statement.sql, parameters, in_doubt=in_doubt and statement.writes)

    def run_many(
        self, statements: Sequence[tuple[Statement, Mapping[str, Any]]], *, after: Sequence[str] = ()
    ) -> list[Answer]:
        """Run statements one by one: what else is sent on it meanwhile is its owner's affair."""
        for command in after:
            self.command(command)
        return [self.run(statement, values) for statement, values in statements]

    def command(self, sql: str, *, in_doubt: bool = False) -> Answer:
        """Run a command that has no parameters, or several."""
        return self._execute(sql, None, in_doubt=in_doubt)

    def close(self) -> None:
        """Hang up, also where the connection's own `close` would give it back to its pool."""
        psycopg.Connection.close(self.connection)

    def _set_autocommit(self, autocommit: bool) -> bool:
        """Return whether that could be done, or does not matter any more."""
        if self.closed:
            return True
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            return False
        self.connection.autocommit = autocommit
        return True

    def _execute(self, sql: str, parameters: list[Any] | None, *, in_doubt: bool) -> Answer:
        if self.connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise UsageError("the connection is in pipeline mode")
        if self.connection.info.transaction_status == TransactionStatus.ACTIVE:  # psycopg would wait, maybe for us
            raise UsageError("the connection is in the midst of another result: a stream's, or a COPY's")
        state = ""
        try:
            cursor = _Cursor(self.connection, row_factory=tuple_row)
            if parameters is None:
                cursor.execute(sql, prepare=False)  # it may be several
            else:
                cursor.execute(sql, parameters, binary=True)
            result = cursor.pgresult
        except psycopg.Error as error:
            lost = self.connection.closed or self.connection.pgconn.status == ConnStatus.BAD
            state, result = error.sqlstate or (sqlstates.LOST if lost else ""), None
        if result is None:
            self._ended = sqlstates.ends_connection(state)
            raise sqlstates.failure(state, in_doubt=in_doubt)
        loaders = Transformer(ADAPTERS)
        loaders.set_pgresult(result)
        return answer_of(loaders, result)


def _adapted(kind: str, value: Any) -> Any:
    """Return a value as psycopg's own dumpers take one of its type."""
    if kind == "uuid" and isinstance(value, bytes):
        return UUID(bytes=value)
    if kind.endswith("[]") and value is not None:
        return list(value)
    return value


def require_transaction(borrowed: Borrowed, catalog: Catalog) -> None:
    """Raise UsageError unless a transaction that our writes may be part of is open, or begun by this.

    A connection that is not in autocommit begins one with its first statement, which this is.
    """
    if borrowed.closed:
        raise StoreUnavailableError("the connection is closed")
    if borrowed.connection.autocommit and not borrowed.in_transaction:
        raise UsageError("the connection has no transaction open, and would commit each write by itself")
    if borrowed.connection.info.transaction_status == TransactionStatus.INERROR:
        raise UsageError("the connection's transaction has failed, and is to be rolled back")
    isolation, read_only, encoding = borrowed.run(catalog["read_transaction"], {}).row or (None, None, None)
    if isolation != "read committed":
        raise UsageError("the connection's transaction is not READ COMMITTED")
    if read_only != "off":
        raise UsageError("the connection's transaction is read-only")
    if encoding != "UTF8":
        raise UsageError("the connection's client_encoding is not UTF8")


def session_settings(settings: Settings | None = None) -> Callable[[psycopg.Connection[Any]], None]:
    """Return what sets a session up as a store's own are: for `configure` of a psycopg_pool.ConnectionPool.

    It bounds the waits of everything that runs on the session, and keeps the planner to index scans: it is for a pool
    that the store has to itself. For one that it shares, set the role's own settings.
    """
    values = session_values(settings or Settings())
    statement = Catalog.load(schema="nl2state", clock="clock_timestamp()")["set_up_session"]

    def configure(connection: psycopg.Connection[Any]) -> None:
        borrowed = Borrowed(connection)
        borrowed.commit_each()
        borrowed.run(statement, values)
        borrowed.restore()

    return configure
