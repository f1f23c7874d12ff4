"""What a transaction is to its caller, whatever the backend: its end, its savepoints, and what an error does to it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from nl2state.errors import StoreError, UsageError

__all__ = ["OpenTransaction"]

S = TypeVar("S")


class OpenTransaction(ABC, Generic[S]):
    """A transaction, for one thread. A backend says how it commits, undoes, and marks a savepoint `S`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._ended = False
        self._poison: StoreError | None = None
        self._after_commit: list[Callable[[], object]] = []

    def after_commit(self, call: Callable[[], object]) -> None:
        """Keep a call for when the transaction has committed."""
        self.check()
        self._after_commit.append(call)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Commit at the end of the block, or roll back. Raises what poisoned the transaction, if the block did not."""
        try:
            yield
            if self._poison is not None:
                raise self._poison.again()
        except BaseException:
            self._ended = True
            self._after_commit.clear()
            self._roll_back()
            raise
        self._ended = True
        self._commit()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did, and heal what it poisoned, when it raises."""
        self.check()
        mark, kept = self._mark(), len(self._after_commit)
        try:
            yield
            if self._poison is not None:
                raise self._poison.again()
        except BaseException:
            del self._after_commit[kept:]
            if self._can_heal:
                self._poison = None
                self._undo_to(mark)
            raise
        self._forget(mark)

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

    def check(self) -> None:
        """Raise UsageError where the transaction is not to be used: by another thread, after its end, or poisoned."""
        if threading.get_ident() != self._thread:
            raise UsageError("a transaction is used by the thread that opened it")
        if self._ended:
            raise UsageError("the transaction has ended")
        if self._poison is not None:
            raise UsageError(f"the transaction failed before ({self._poison.code}), and is to be rolled back")

    def poison(self, error: StoreError) -> None:
        """Let the transaction do nothing more, because a call of it failed."""
        self._poison = error

    @property
    @abstractmethod
    def _can_heal(self) -> bool:
        """Whether a savepoint can still be undone."""

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _roll_back(self) -> None: ...

    @abstractmethod
    def _mark(self) -> S: ...

    @abstractmethod
    def _undo_to(self, mark: S) -> None: ...

    @abstractmethod
    def _forget(self, mark: S) -> None: ...
