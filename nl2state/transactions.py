"""What a transaction is to its caller, whatever the backend: its end, its savepoints, and what an error does to it."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from nl2state.errors import StoreError, StoreUnavailableError, UsageError

__all__ = ["OpenHere", "OpenTransaction"]

S = TypeVar("S")


class OpenHere:
    """How many transactions of a store each thread has open."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    @property
    def any(self) -> bool:
        """Whether this thread has one open."""
        return self._counts[threading.get_ident()] > 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one for the block, to the thread that entered it."""
        thread = threading.get_ident()
        self._counts[thread] += 1
        try:
            yield
        finally:
            self._counts[thread] -= 1
            if not self._counts[thread]:
                del self._counts[thread]


class OpenTransaction(ABC, Generic[S]):
    """A transaction, for one thread. A backend says how it commits, undoes, and marks a savepoint `S`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._process = os.getpid()
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
            self._check_thread()
        except BaseException:
            self._ended = True
            self._after_commit.clear()
            if os.getpid() == self._process:  # in a forked child it is the parent's, and left
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
            self._check_process()
        except BaseException:
            del self._after_commit[kept:]
            if self._can_heal and os.getpid() == self._process:
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
        """Raise UsageError where the transaction is not to be used: elsewhere, after its end, or poisoned."""
        self._check_thread()
        if self._ended:
            raise UsageError("the transaction has ended")
        if self._poison is not None:
            raise UsageError(f"the transaction failed before ({self._poison.code}), and is to be rolled back")

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise UsageError("a transaction is used, and ended, by the thread that opened it")
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # both processes would read each other's answers
            raise UsageError("the transaction was opened before a fork: it is the parent's")

    def poison(self, error: BaseException) -> None:
        """Let the transaction do nothing more: a call of it failed, or was interrupted by a signal's handler."""
        self._poison = error if isinstance(error, StoreError) else StoreUnavailableError("a call of it was interrupted")

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
