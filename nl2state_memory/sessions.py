"""Where a capability's calls run: each in a transaction of its own, or all of them in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from nl2state.errors import ConflictError, FencingRejectedError, UsageError
from nl2state.pipeline import CollectedError
from nl2state.transactions import OpenHere, OpenTransaction
from nl2state_memory.database import Database, Unit

__all__ = ["CheckingSession", "ClientSession", "Session", "TransactionSession"]


class Session(Protocol):
    """Where calls run."""

    database: Database

    def call(self) -> AbstractContextManager[Unit]:
        """Run one call: with the mutex held, on the rows as its transaction sees them."""
        ...


class ClientSession:
    """A client's session: each call is its own transaction. Safe to share between threads."""

    def __init__(self, database: Database, lock_timeout_seconds: float) -> None:
        self.database = database
        self._lock_timeout_seconds = lock_timeout_seconds
        self._open_here = OpenHere()
        self._closed = False

    def close(self) -> None:
        """Refuse every call from now on."""
        self._closed = True

    @property
    def has_open_transaction_here(self) -> bool:
        """Whether this thread has a transaction open."""
        return self._open_here.any

    @contextmanager
    def call(self) -> Iterator[Unit]:
        """Run one call, and commit it; undo it when it raises."""
        unit = self._unit()
        with self.database.changed:
            try:
                unit.start_call()
                yield unit
            except BaseException:
                unit.undo_to(0)
                raise
            unit.commit()

    @contextmanager
    def transaction(self) -> Iterator[TransactionSession]:
        """Open a transaction. It commits when the block ends."""
        session = TransactionSession(self._unit())
        with self._open_here.one(), session.block():
            yield session
        session.run_after_commit()

    def _unit(self) -> Unit:
        if self._closed:
            raise UsageError("the store is closed")
        return Unit(self.database, self._lock_timeout_seconds)


class TransactionSession(OpenTransaction[int]):
    """A transaction. A savepoint is where its undo log stood."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.database = unit.database
        self._unit = unit

    @contextmanager
    def call(self) -> Iterator[Unit]:
        """Run one call. One that raises leaves nothing behind, not even a lock; a wait that failed poisons the rest."""
        self.check()
        unit = self._unit
        with self.database.changed:
            try:
                unit.start_call()
                mark = unit.mark
                try:
                    yield unit
                except BaseException:
                    unit.undo_to(mark)
                    raise
            except (ConflictError, FencingRejectedError):
                raise  # a refusal leaves the transaction usable
            except BaseException as error:
                self.poison(error)
                raise
            finally:
                if unit.ended is None:
                    unit.end_call()

    @property
    def _can_heal(self) -> bool:
        return self._unit.ended is None

    def _commit(self) -> None:
        with self.database.changed:
            self._unit.start_call()
            self._unit.commit()

    def _roll_back(self) -> None:
        self._undo_to(0)

    def _mark(self) -> int:
        with self.call() as unit:
            return unit.mark

    def _undo_to(self, mark: int) -> None:
        with self.database.changed:
            self._unit.undo_to(mark)

    def _forget(self, mark: int) -> None:
        """Nothing is kept for a savepoint."""


class CheckingSession:
    """The session of a pipeline's calls while they are collected: nothing runs in it."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def call(self) -> AbstractContextManager[Unit]:
        """Raise CollectedError: the call's arguments are checked by now."""
        raise CollectedError
