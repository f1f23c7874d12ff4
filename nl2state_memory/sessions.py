"""Where a capability's calls run: each in a transaction of its own, or all of them in one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, cast

from nl2state.errors import StoreError, StoreTimeoutError, StoreUnavailableError, UsageError
from nl2state_memory.database import Database, Unit

__all__ = ["ClientSession", "Session", "TransactionSession"]


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
        self._open_here = threading.local()
        self._closed = False

    def close(self) -> None:
        """Refuse every call from now on."""
        self._closed = True

    @property
    def has_open_transaction_here(self) -> bool:
        """Whether this thread has a transaction open."""
        return bool(getattr(self._open_here, "depth", 0))

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
        self._open_here.depth = getattr(self._open_here, "depth", 0) + 1
        try:
            with session.block():
                yield session
        finally:
            self._open_here.depth -= 1
        session.run_after_commit()

    def _unit(self) -> Unit:
        if self._closed:
            raise UsageError("the store is closed")
        return Unit(self.database, self._lock_timeout_seconds)


class TransactionSession:
    """A transaction, for one thread."""

    def __init__(self, unit: Unit) -> None:
        self.database = unit.database
        self._unit = unit
        self._thread = threading.get_ident()
        self._ended = False
        self._poison: StoreError | None = None
        self._after_commit: list[Callable[[], object]] = []

    @contextmanager
    def call(self) -> Iterator[Unit]:
        """Run one call. One that raises leaves nothing behind, not even a lock; a wait that failed poisons the rest."""
        self._check()
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
            except (StoreTimeoutError, StoreUnavailableError) as error:
                self._poison = error
                raise
            finally:
                if unit.ended is None:
                    unit.end_call()

    def after_commit(self, call: Callable[[], object]) -> None:
        """Keep a call for when the transaction has committed."""
        self._check()
        self._after_commit.append(call)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Commit at the end of the block, or roll back. Raises what poisoned the transaction, if the block did not."""
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        if self._poison is not None:
            self._roll_back()
            raise _again(self._poison)
        self._ended = True
        with self.database.changed:
            self._unit.start_call()
            self._unit.commit()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did, and heal what it poisoned, when it raises."""
        with self.call() as unit:
            mark, kept = unit.mark, len(self._after_commit)
        try:
            yield
            if self._poison is not None:
                raise _again(self._poison)
        except BaseException:
            del self._after_commit[kept:]
            with self.database.changed:
                if self._unit.ended is None:  # one that was ended is past healing
                    self._poison = None
                    self._unit.undo_to(mark)
            raise

    def run_after_commit(self) -> None:
        """Run what was kept for now: all of it, whatever one of them raises."""
        raised: list[Exception] = []
        for call in self._after_commit:
            try:
                call()
            except Exception as error:  # noqa: BLE001  # the caller's own; raised below
                raised.append(error)
        if len(raised) == 1:
            raise raised[0]
        if raised:
            raise ExceptionGroup("several calls after the commit failed", raised)

    def _roll_back(self) -> None:
        self._ended = True
        self._after_commit.clear()
        with self.database.changed:
            self._unit.undo_to(0)

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise UsageError("a transaction is used by the thread that opened it")
        if self._ended:
            raise UsageError("the transaction has ended")
        if self._poison is not None:
            raise UsageError(f"the transaction failed before ({self._poison.code}), and is to be rolled back")


def _again(error: StoreError) -> StoreError:
    """Return an error as it was, without the traceback and context that it gathered."""
    rebuild, parts = error.__reduce__()
    return cast("StoreError", rebuild(*parts))
