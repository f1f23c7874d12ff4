"""The connections, and one statement in one round trip; transactions and their savepoints."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeAlias

import psycopg
import psycopg_pool
from psycopg.adapt import AdaptersMap
from psycopg.pq import ConnStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from nl2state.errors import (
    InvalidInputError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    UsageError,
)
from nl2state.transactions import OpenHere, OpenTransaction
from nl2state_postgres import sqlstates
from nl2state_postgres.catalog import Catalog, Returns, Statement
from nl2state_postgres.settings import Settings

__all__ = ["BEGIN", "Connection", "Database", "Session", "TransactionSession", "conninfo_of"]

Row: TypeAlias = tuple[Any, ...]

_ADAPTERS: Final = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_dumper(int, Int8BinaryDumper)  # or each size of an integer would be planned anew
_ADAPTERS.register_dumper(str, StrBinaryDumper)

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Whatever the role's or the database's defaults are: what a fence and a migration read has to be of now."""

_CONNECT: Final[dict[str, Any]] = {
    "autocommit": True,
    "context": _ADAPTERS,
    "cursor_factory": psycopg.RawCursor,
    "prepare_threshold": 0,  # as soon as a call says so
}


def conninfo_of(dsn: str, settings: Settings) -> str:
    """Return the DSN with what every connection of ours needs. Raises InvalidInputError for one that cannot be read."""
    given: dict[str, Any] | None = None
    if isinstance(dsn, str) and "\0" not in dsn:  # where libpq would stop reading, and say nothing
        with suppress(psycopg.ProgrammingError, UnicodeError):
            given = psycopg.conninfo.conninfo_to_dict(dsn)
    if given is not None:
        packets = {"keepalives": 1, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
        ours = {
            "connect_timeout": max(2, round(settings.connect_timeout_seconds)),  # libpq takes whole seconds, 2 at least
            "tcp_user_timeout": round(1_000 * settings.statement_timeout_seconds),
            **packets,
        }
        fixed = {"client_encoding": "UTF8", "application_name": settings.application_name}
        return psycopg.conninfo.make_conninfo("", **{**ours, **given, **fixed})
    raise InvalidInputError("dsn cannot be read", field="dsn")


class Connection(psycopg.Connection[Row]):
    """A connection that was set up for our statements. Its repr tells nothing of the server: the pool logs it."""

    epoch = 0
    prepare = False

    @classmethod
    def bare(cls, conninfo: str) -> Connection:
        """Open a connection that is not set up: for migrations. Raises StoreUnavailableError."""
        with suppress(psycopg.Error, ValueError):  # ValueError: a host that no resolver takes
            return super().connect(conninfo, **_CONNECT)
        raise StoreUnavailableError("the server cannot be reached, or refused the role or the database")

    @classmethod
    def ready(cls, conninfo: str, settings: Settings, catalog: Catalog) -> Connection:
        """Open and set up a connection. Raises a StoreError, and leaves none open then."""
        connection = cls.bare(conninfo)
        try:
            connection._set_up(settings, catalog)
        except BaseException:
            connection.close()
            raise
        return connection

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Connection:
        """Open and set up a connection for the pool. `away` is set while none can be made.

        Raises psycopg.OperationalError, with words of ours: the pool logs them.
        """
        try:
            connection = cls.ready(conninfo, kwargs["settings"], kwargs["catalog"])
        except StoreError as error:
            reason = error.args[0]
        else:
            kwargs["away"].clear()
            return connection
        kwargs["away"].set()
        raise psycopg.OperationalError(reason)

    def __repr__(self) -> str:
        return f"<nl2state connection {id(self):#x}>"

    def run(self, statement: Statement, values: dict[str, Any], *, in_doubt: bool = False) -> psycopg.Cursor[Row]:
        """Run a statement. Raises a StoreError; the driver's stays here."""
        if "epoch" in statement.parameters:
            values["epoch"] = self.epoch
        return self.send(
            statement.sql, [values[name] for name in statement.parameters], in_doubt=in_doubt and statement.writes
        )

    def send(self, sql: str, parameters: list[Any] | None = None, *, in_doubt: bool = False) -> psycopg.Cursor[Row]:
        """Send one command. Raises a StoreError; the driver's stays here."""
        try:
            if parameters is None:
                return self.execute(sql, prepare=False)
            return self.execute(sql, parameters, prepare=self.prepare, binary=True)
        except psycopg.Error as error:
            state = error.sqlstate or ("08000" if self.pgconn.status == ConnStatus.BAD else "")
            told = sqlstates.failure(state, in_doubt=in_doubt)
        if sqlstates.ends_connection(state):
            self.close()
        raise told

    def _set_up(self, settings: Settings, catalog: Catalog) -> None:
        timeouts = {
            "idle_timeout": _milliseconds(settings.transaction_idle_seconds),
            "lock_timeout": _milliseconds(settings.lock_timeout_seconds),
            "statement_timeout": _milliseconds(settings.statement_timeout_seconds),
        }
        self.run(catalog["set_up_session"], timeouts)
        self.prepare = settings.prepare
        self.epoch = self._read_epoch(catalog) if settings.epoch is None else settings.epoch

    def _read_epoch(self, catalog: Catalog) -> int:
        """Return the epoch of this session's tokens: a session to a primary keeps one timeline for life."""
        while True:
            base, last, timeline = self.run(catalog["read_epoch"], {}).fetchone() or (None, None, None)
            if timeline is None:
                raise StoreUnavailableError("the server is in recovery")
            if timeline == last:
                return int(base + timeline)
            self.run(catalog["note_timeline"], {"timeline": timeline})


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1_000)))


class Session(Protocol):
    """Where a capability's statements run: on a connection of the pool each, or in one transaction."""

    def row(self, name: str, **values: Any) -> Row | None:
        """Run a statement that returns a row, or none."""
        ...

    def rows(self, name: str, **values: Any) -> list[Row]:
        """Run a statement that returns many rows."""
        ...

    def count(self, name: str, **values: Any) -> int:
        """Run a statement that returns a count of rows."""
        ...


class Database:
    """A pool of connections. As a session, each statement is its own transaction. Safe to share between threads."""

    def __init__(
        self,
        conninfo: str,
        catalog: Catalog,
        settings: Settings,
        *,
        size: tuple[int, int],
    ) -> None:
        self.catalog = catalog
        self._process = os.getpid()
        self._away = threading.Event()  # whether the last connection could not be made
        self._open_here = OpenHere()
        self._pool = psycopg_pool.ConnectionPool(
            conninfo,
            connection_class=Connection,
            kwargs={"settings": settings, "catalog": catalog, "away": self._away},
            min_size=size[0],
            max_size=size[1],
            timeout=settings.checkout_timeout_seconds,
            open=True,
        )

    def close(self) -> None:
        """Close the connections; a call that is running fails. In a forked child they are the parent's, and left."""
        if os.getpid() == self._process:
            self._pool.close()

    @property
    def has_open_transaction_here(self) -> bool:
        """Whether this thread has a transaction open."""
        return self._open_here.any

    def row(self, name: str, **values: Any) -> Row | None:
        """Run a statement that returns a row, or none."""
        statement = _declared(self.catalog[name], Returns.ONE, Returns.OPTIONAL)
        with self._checkout() as connection:
            return connection.run(statement, values, in_doubt=True).fetchone()

    def rows(self, name: str, **values: Any) -> list[Row]:
        """Run a statement that returns many rows."""
        statement = _declared(self.catalog[name], Returns.MANY)
        with self._checkout() as connection:
            return connection.run(statement, values, in_doubt=True).fetchall()

    def count(self, name: str, **values: Any) -> int:
        """Run a statement that returns a count of rows."""
        statement = _declared(self.catalog[name], Returns.COUNT)
        with self._checkout() as connection:
            return connection.run(statement, values, in_doubt=True).rowcount

    @contextmanager
    def transaction(self) -> Iterator[TransactionSession]:
        """Open a transaction on a connection of its own. It commits when the block ends."""
        with self._checkout() as connection:
            session = TransactionSession(connection, self.catalog)
            with self._open_here.one(), session.block():
                yield session
        session.run_after_commit()

    @contextmanager
    def _checkout(self) -> Iterator[Connection]:
        connection = self._take()
        try:
            yield connection
        finally:
            self._pool.putconn(connection)

    def _take(self) -> Connection:
        if os.getpid() != self._process:  # both processes would read each other's answers
            raise UsageError("the store was opened before a fork: open one in each process")
        try:
            return self._pool.getconn()
        except psycopg_pool.PoolClosed:
            told: StoreError = UsageError("the store is closed")
        except psycopg_pool.TooManyRequests:
            told = StoreUnavailableError("too many calls wait for a connection")
        except psycopg_pool.PoolTimeout:
            away = self._away.is_set()
            told = (
                StoreUnavailableError("no connection could be made")
                if away
                else StoreTimeoutError("no connection came free")
            )
        raise told


def _declared(statement: Statement, *returns: Returns) -> Statement:
    if statement.returns not in returns:
        raise UsageError(f"{statement.name} is declared to return {statement.returns.value}")
    return statement


class TransactionSession(OpenTransaction[str]):
    """A transaction on one connection. BEGIN waits for its first statement: an unused one is free."""

    def __init__(self, connection: Connection, catalog: Catalog) -> None:
        super().__init__()
        self._connection = connection
        self._catalog = catalog
        self._begun = False
        self._savepoints = 0

    def row(self, name: str, **values: Any) -> Row | None:
        """Run a statement that returns a row, or none. An error poisons the transaction."""
        return self._run(_declared(self._catalog[name], Returns.ONE, Returns.OPTIONAL), values).fetchone()

    def rows(self, name: str, **values: Any) -> list[Row]:
        """Run a statement that returns many rows. An error poisons the transaction."""
        return self._run(_declared(self._catalog[name], Returns.MANY), values).fetchall()

    def count(self, name: str, **values: Any) -> int:
        """Run a statement that returns a count of rows. An error poisons the transaction."""
        return self._run(_declared(self._catalog[name], Returns.COUNT), values).rowcount

    @property
    def _can_heal(self) -> bool:
        return not self._connection.closed

    def _run(self, statement: Statement, values: dict[str, Any]) -> psycopg.Cursor[Row]:
        self.check()
        self._begin()
        try:
            return self._connection.run(statement, values)
        except BaseException as error:
            self.poison(error)
            raise

    def _begin(self) -> None:
        if not self._begun:
            self._command(BEGIN)
            self._begun = True

    def _mark(self) -> str:
        self._begin()
        self._savepoints += 1
        name = f"s{self._savepoints}"
        self._command(f"SAVEPOINT {name}")
        return name

    def _undo_to(self, mark: str) -> None:
        self._command(f"ROLLBACK TO SAVEPOINT {mark}")

    def _forget(self, mark: str) -> None:
        self._command(f"RELEASE SAVEPOINT {mark}")

    def _command(self, command: str) -> None:
        try:
            self._connection.send(command)
        except BaseException as error:
            self.poison(error)
            raise

    def _commit(self) -> None:
        if self._begun and self._connection.send("COMMIT", in_doubt=True).statusmessage != "COMMIT":
            # the server says ROLLBACK, without an error, when it had aborted the transaction
            raise StoreUnavailableError("the server rolled the transaction back")

    def _roll_back(self) -> None:
        if self._begun and not self._connection.closed:
            try:
                self._connection.send("ROLLBACK")
            except StoreError:
                self._connection.close()  # which rolls back as well
