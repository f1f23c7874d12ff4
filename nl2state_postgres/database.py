"""One statement in one round trip, and what becomes of a lost answer; transactions and their savepoints.

A connection that dies takes the answer of its statement with it. A read is then sent again, once. Of a write nobody
knows whether it took effect: its row is read back, and has its `write_id` if it did; a write that can take effect only
once is sent again, once, under the same `write_id`; else the outcome is said to be unknown. The sql/*.sql say which is
which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, Protocol

from nl2state.errors import OutcomeUnknownError, StoreError, StoreUnavailableError, UsageError
from nl2state.pipeline import CollectedError
from nl2state.transactions import OpenHere, OpenTransaction
from nl2state_postgres.borrowed import Borrowed
from nl2state_postgres.catalog import Catalog, Statement
from nl2state_postgres.pools import Pool, taken
from nl2state_postgres.runners import BEGIN, Answer, Row, Runner
from nl2state_postgres.sessions import milliseconds

__all__ = ["BorrowedSession", "CheckingSession", "Database", "Session", "TransactionSession"]

_READ_BACK_MAX: Final = 3
"""How many of a transaction's last writes are looked for where the answer to its commit was lost."""


class Session(Protocol):
    """Where a capability's statements run: on a connection of the pool each, or in one transaction."""

    def row(self, name: str, values: dict[str, Any]) -> Row | None:
        """Run a statement that returns a row, or none."""
        ...

    def rows(self, name: str, values: dict[str, Any]) -> list[Row]:
        """Run a statement that returns many rows."""
        ...

    def count(self, name: str, values: dict[str, Any]) -> int:
        """Run a statement that returns a count of rows."""
        ...

    def atomically(self) -> AbstractContextManager[Session]:
        """Open a block of statements that an error undoes: a transaction, or in one a savepoint."""
        ...


class _Statements:
    """The statements of a session, by name and by what they are declared to return."""

    catalog: Catalog

    def row(self, name: str, values: dict[str, Any]) -> Row | None:
        """Run a statement that returns a row, or none."""
        rows = self._run(self.catalog[name], values).rows
        return rows[0] if rows else None

    def rows(self, name: str, values: dict[str, Any]) -> list[Row]:
        """Run a statement that returns many rows."""
        return self._run(self.catalog[name], values).rows

    def count(self, name: str, values: dict[str, Any]) -> int:
        """Run a statement that returns a count of rows."""
        return self._run(self.catalog[name], values).touched

    def _run(self, statement: Statement, values: dict[str, Any]) -> Answer:
        raise NotImplementedError


class Database(_Statements):
    """A pool of connections. As a session, each statement is its own transaction. Safe to share between threads."""

    def __init__(self, pool: Pool, catalog: Catalog, *, lock_timeout_seconds: float | None = None) -> None:
        """Run on this pool. `lock_timeout_seconds` is for what a session that we do not set up would wait too long."""
        self.catalog = catalog
        self._pool = pool
        self._lock_timeout = None if lock_timeout_seconds is None else milliseconds(lock_timeout_seconds)
        self._open_here = OpenHere()

    def close(self) -> None:
        """Close the connections; a call that is running fails."""
        self._pool.close()

    @property
    def has_open_transaction_here(self) -> bool:
        """Whether this thread has a transaction open."""
        return self._open_here.any

    @contextmanager
    def transaction(self) -> Iterator[TransactionSession]:
        """Open a transaction on a connection of its own. It commits when the block ends."""
        session = TransactionSession(self.catalog)
        try:
            with taken(self._pool) as connection, self._open_here.one(), session.on(connection):
                yield session
        except OutcomeUnknownError:
            if not (session.lost_its_commit and self._find(session.written)):
                raise
        session.run_after_commit()

    def atomically(self) -> AbstractContextManager[Session]:
        """Open a transaction."""
        return self.transaction()

    def _run(self, statement: Statement, values: dict[str, Any]) -> Answer:
        connection = self._pool.take()
        try:
            if self._lock_timeout is not None:
                return self._run_bounded(connection, statement, values, self._lock_timeout)
            return _run(connection, statement, values)
        except (StoreUnavailableError, OutcomeUnknownError) as error:
            if not connection.lost:
                raise
            lost = error.again()
        finally:
            self._pool.give(connection)
        if isinstance(lost, StoreUnavailableError):  # it did not take effect
            return self._once(statement, values)
        with suppress(StoreError):
            answer = self._recover(statement, values)
            if answer is not None:
                return answer
        raise lost

    def _run_bounded(
        self, connection: Runner, statement: Statement, values: dict[str, Any], lock_timeout: str
    ) -> Answer:
        connection.command(BEGIN)
        try:
            connection.run(self.catalog["bound_lock_waits"], {"lock_timeout": lock_timeout})
            answer = _run(connection, statement, values)
            connection.command("COMMIT", in_doubt=statement.writes)
        except BaseException:
            with suppress(StoreError):
                connection.command("ROLLBACK")
            raise
        return answer

    def _recover(self, statement: Statement, values: dict[str, Any]) -> Answer | None:
        """Return the answer that was lost, or that of the write sent again; None where nobody can tell."""
        if statement.read_back is not None:
            found = self._once(self.catalog[statement.read_back], values)
            if found.rows and len(found.rows) == _asked(values):
                return found
        at_any_revision = values.get("expected_revision", 0) is None
        if not statement.sent_again or at_any_revision:
            return None
        again = self._once(statement, values)
        if again.rows or statement.read_back is None:
            return again
        found = self._once(self.catalog[statement.read_back], values)  # refused, maybe by what it did the first time
        return found if found.rows else None

    def _once(self, statement: Statement, values: dict[str, Any]) -> Answer:
        with taken(self._pool) as connection:
            return _run(connection, statement, values)

    def _find(self, written: list[tuple[Statement, dict[str, Any]]]) -> bool:
        """Return whether one of a transaction's writes is there: then all of them are."""
        for statement, values in written[-_READ_BACK_MAX:][::-1]:
            with suppress(StoreError):
                if self._once(statement, values).rows:
                    return True
        return False


def _asked(values: Mapping[str, Any]) -> int:
    """Return how many rows a write is of."""
    return next((len(values[name]) for name in ("each_key", "each_resource", "each_record_id") if name in values), 1)


def _run(
    connection: Runner,
    statement: Statement,
    values: dict[str, Any],
    *,
    in_doubt: bool = True,
    after: Sequence[str] = (),
) -> Answer:
    """Run a statement, which commits by itself where its outcome can be in doubt."""
    if statement.takes_epoch:
        values["epoch"] = connection.epoch
    return connection.run(statement, values, in_doubt=in_doubt, after=after)


class TransactionSession(_Statements, OpenTransaction[tuple[str, int]]):
    """A transaction on one connection.

    BEGIN, and what marks and forgets a savepoint, wait for the next statement and travel with it: nobody asks what
    comes of them, and an unused transaction is free.
    """

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog = catalog
        self.written: list[tuple[Statement, dict[str, Any]]] = []
        """How each write that still stands can be read back."""
        self._committing = False
        self._connection: Runner
        self._begun = False
        self._unsent = [BEGIN]
        self._wrote = False
        self._savepoints = 0

    @contextmanager
    def on(self, connection: Runner) -> Iterator[None]:
        """Run on this connection, and commit at the end of the block, or roll back."""
        self._connection = connection
        with self.block():
            yield

    @contextmanager
    def atomically(self) -> Iterator[Session]:
        """Open a savepoint."""
        with self.savepoint():
            yield self

    @property
    def lost_its_commit(self) -> bool:
        """Whether the connection broke under the commit."""
        return self._committing and self._connection.lost

    @property
    def _can_heal(self) -> bool:
        return not self._connection.closed

    def _run(self, statement: Statement, values: dict[str, Any]) -> Answer:
        self.check()
        unsent, self._unsent = self._unsent, []
        try:
            self._begun = True
            self._wrote |= statement.writes
            answer = _run(self._connection, statement, values, in_doubt=False, after=unsent)
        except BaseException as error:
            self.poison(error)
            raise
        if answer.rows:
            self._note(statement, values)
        return answer

    def run_all(self, collected: Sequence[tuple[Statement, dict[str, Any]]]) -> bool:
        """Run writes in one round trip. Returns whether each found its row; where one did not, none is kept."""
        if not collected:
            return True
        with suppress(_RefusedError), self.savepoint():
            unsent, self._unsent = self._unsent, []
            try:
                self._begun = self._wrote = True
                answers = self._connection.run_many(collected, after=unsent)
            except BaseException as error:
                self.poison(error)
                raise
            if not all(answer.rows for answer in answers):
                raise _RefusedError
            for statement, values in collected:
                self._note(statement, values)
            return True
        return False

    def _note(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Keep how this write can be read back, and no more of it."""
        if statement.read_back is not None:
            reading = self.catalog[statement.read_back]
            self.written.append((reading, {name: values[name] for name in reading.parameters}))

    def _mark(self) -> tuple[str, int]:
        self._savepoints += 1
        name = f"nl2state_{self._savepoints}"
        self._send_later(f"SAVEPOINT {name}")
        return name, len(self.written)

    def _undo_to(self, mark: tuple[str, int]) -> None:
        name, kept = mark
        del self.written[kept:]
        if not self._unmark(name):
            self._unsent.clear()  # of savepoints within this one
            # at once, for the sake of those who wait for its locks; released as well: it would stay open, and another
            # handle's on the connection may have its name
            self._command("; ".join((f"ROLLBACK TO SAVEPOINT {name}", f"RELEASE SAVEPOINT {name}")))

    def _forget(self, mark: tuple[str, int]) -> None:
        if not self._unmark(mark[0]):
            self._send_later(f"RELEASE SAVEPOINT {mark[0]}")

    def _send_later(self, command: str) -> None:
        self._unsent.append(command)

    def _command(self, command: str) -> None:
        try:
            self._connection.command(command)
        except BaseException as error:
            self.poison(error)
            raise

    def _unmark(self, name: str) -> bool:
        """Take back a savepoint that was not sent yet, with all within it. Returns whether it was one."""
        marking = f"SAVEPOINT {name}"
        if marking not in self._unsent:
            return False
        del self._unsent[self._unsent.index(marking) :]
        return True

    def _commit(self) -> None:
        if not self._begun:
            return
        self._committing = True
        answer = self._connection.command("COMMIT", in_doubt=self._wrote)
        self._committing = False
        if answer.command != "COMMIT":
            # the server says ROLLBACK, without an error, when it had aborted the transaction
            raise StoreUnavailableError("the server rolled the transaction back")

    def _roll_back(self) -> None:
        if self._begun and not self._connection.closed:
            try:
                self._connection.command("ROLLBACK")
            except StoreError:
                self._connection.close()  # which rolls back as well


class _RefusedError(Exception):
    """One of the writes that ran together found no row."""


class CheckingSession(_Statements):
    """The session of a pipeline's calls while they are collected: nothing runs in it."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.collected: list[tuple[Statement, dict[str, Any]]] = []

    def atomically(self) -> AbstractContextManager[Session]:
        """Raise UsageError: there is no call for many in a pipeline."""
        raise UsageError("a pipeline has no calls for many")

    def _run(self, statement: Statement, values: dict[str, Any]) -> Answer:
        self.collected.append((statement, values))
        raise CollectedError


class BorrowedSession(TransactionSession):
    """A transaction of the caller's own, on the caller's own connection: begun and ended by the caller."""

    def __init__(self, borrowed: Borrowed, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._connection = self._borrowed = borrowed
        self._begun = True
        self._unsent = []

    def after_commit(self, call: object) -> None:  # noqa: ARG002  # it is never called
        """Raise UsageError: the commit is the caller's, and never seen here. A Held's release by it needs that."""
        raise UsageError(
            "after_commit and Held.release by a commit do not work on a connection of yours: it is not seen"
        )

    def check(self) -> None:
        """Raise UsageError where the transaction has ended, failed, or is another thread's."""
        self._check_thread()
        if not self._borrowed.in_transaction:
            raise UsageError("the connection's transaction has ended, or failed")

    def poison(self, error: BaseException) -> None:
        """Leave it to the connection, which knows whether its transaction can go on."""

    def _note(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Keep nothing: the commit is not seen here."""

    def _send_later(self, command: str) -> None:
        """Send it now: what the caller does meanwhile, on the connection itself, is to be undone with it."""
        self._command(command)
