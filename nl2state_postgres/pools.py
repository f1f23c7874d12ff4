"""Where a connection comes from: a pool of ours, or one that the service lends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, cast
from weakref import WeakSet

import psycopg
import psycopg_pool
from psycopg.pq import TransactionStatus

from nl2state.errors import StoreError, StoreTimeoutError, StoreUnavailableError, UsageError
from nl2state_postgres.borrowed import Borrowed, session_settings
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.connection import UNREACHABLE, Connection
from nl2state_postgres.runners import Runner
from nl2state_postgres.sessions import check_session
from nl2state_postgres.settings import Settings

__all__ = ["LentPool", "OwnPool", "Pool", "beside", "taken"]

_AT_HAND_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 0.005
_IDLE: Final = int(TransactionStatus.IDLE)


class Pool(Protocol):
    """Connections that are taken and given back. Safe to share between threads."""

    def take(self) -> Runner:
        """Return a connection that is alive, for one thread until it is given back.

        Raises StoreTimeoutError where none comes free in time, StoreUnavailableError where none can be made, UsageError
        after a fork or the pool's end.
        """
        ...

    def give(self, runner: Any) -> None:
        """Take a connection back: one that `take` returned."""
        ...

    def close(self) -> None:
        """Close what is ours. Can be called twice."""
        ...


@contextmanager
def taken(pool: Pool) -> Iterator[Runner]:
    """Take a connection for a block."""
    runner = pool.take()
    try:
        yield runner
    finally:
        pool.give(runner)


class OwnPool:
    """A pool of our own connections, which psycopg_pool makes, checks, ages and replaces.

    It is asked for one seldom: a connection that comes back stays at hand for a minute. The last one used is the first
    to be used again, since its backend is warm, unless somebody has waited for a moment: then the longest waiter gets
    it. With a free-for-all, some of more threads than connections would get none; but to hand each one over at once
    would leave it idle while its next thread wakes up, which takes as long as a call.
    """

    def __init__(self, conninfo: str, catalog: Catalog, settings: Settings, *, size: tuple[int, int]) -> None:
        self._process = os.getpid()
        self._failure: StoreError | None = None  # of the last connection that was tried
        self._timeout_seconds = settings.checkout_timeout_seconds
        self._closed = False
        self._at_hand: deque[Connection] = deque()
        self._permits = deque([None] * size[1])  # to ask psycopg_pool for one more
        self._borrowers: deque[None] = deque()  # one for each call that asks psycopg_pool, and may wait there
        self._waiters: deque[_Waiter] = deque()
        self._handing = threading.Lock()
        self._pool: psycopg_pool.ConnectionPool[Connection] = psycopg_pool.ConnectionPool(
            conninfo,
            connection_class=Connection,
            kwargs={"settings": settings, "catalog": catalog, "failed": self._note},
            min_size=size[0],
            max_size=size[1],
            # given up soon, and tried anew by the next call: a long back-off would outlast the outage
            reconnect_timeout=settings.checkout_timeout_seconds,
            open=True,
        )

    def take(self) -> Connection:
        """Return a connection that is alive."""
        if os.getpid() != self._process:
            _check_process(self._process)
        now = time.monotonic()
        try:
            connection = None if self._waiters and self._is_overdue(now) else self._at_hand.pop()
        except IndexError:
            connection = None
        give_up_at = now + self._timeout_seconds
        while True:
            if connection is None:
                connection = self._wait(give_up_at)
            try:
                if connection.alive:
                    return connection
                connection.close()  # the server hung up while it idled: nothing was sent, and nothing is in doubt
            except BaseException:  # a signal's
                self.give(connection)
                raise
            self.give(connection)
            connection = None

    def give(self, runner: Connection) -> None:
        """Take a connection back, and replace a closed one. In a forked child it is the parent's, and left."""
        if os.getpid() != self._process:
            return
        now = time.monotonic()
        if runner.pgconn.transaction_status == _IDLE and now < runner.at_hand_until:
            self._at_hand.append(runner)
            if self._borrowers or self._closed:  # after the append, as a borrower queues before it looks
                self._put_back(math.inf)
        else:
            self._pool.putconn(runner)
            self._permits.append(None)
            self._put_back(now)  # what has not been used since long
        if self._waiters and (self._permits or self._is_overdue(now)):  # who is patient yet looks again by itself
            self._hand_over()

    def close(self) -> None:
        """Close the connections; a call that waits for one fails. In a forked child they are the parent's, and left."""
        if os.getpid() == self._process:
            self._closed = True
            self._pool.close()
            self._put_back(math.inf)
            self._hand_over()

    def _note(self, failure: StoreError | None) -> None:
        self._failure = failure

    def _is_overdue(self, now: float) -> bool:
        """Whether somebody has waited for longer than others may pass by."""
        try:
            return self._waiters[0].patient_until <= now
        except IndexError:  # served meanwhile
            return False

    def _put_back(self, until: float) -> None:
        """Return those at hand, whose time was over by then, to psycopg_pool, which keeps or closes them."""
        with suppress(IndexError):
            while self._at_hand[0].at_hand_until < until:
                self._pool.putconn(self._at_hand.popleft())
                self._permits.append(None)

    def _wait(self, give_up_at: float) -> Connection:
        """Queue for a connection, or for the permit to ask for one more."""
        waiter = _Waiter()
        try:
            self._waiters.append(waiter)
            self._hand_over()
            waiter.wait(give_up_at, self._hand_over)
            with self._handing:  # from now on nobody hands it anything
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        except BaseException:  # a signal's: what it was handed meanwhile goes to the next
            with self._handing:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            self._return(waiter)
            raise
        if waiter.connection is not None:
            return waiter.connection
        if not waiter.has_permit:
            raise self._told()
        try:
            return self._borrow(give_up_at)
        except BaseException:
            self._return(waiter)
            raise

    def _hand_over(self) -> None:
        """Give the longest waiters what there is to give."""
        with self._handing:
            while self._waiters and (self._at_hand or self._permits or self._closed):
                waiter = self._waiters[0]
                try:
                    if self._at_hand:
                        waiter.connection = self._at_hand.pop()
                    elif not self._closed:
                        self._permits.pop()
                        waiter.has_permit = True
                except IndexError:  # somebody who did not have to wait was faster
                    continue
                self._waiters.popleft().turn.release()

    def _return(self, waiter: _Waiter) -> None:
        if waiter.connection is not None:
            self.give(waiter.connection)
        elif waiter.has_permit:
            self._permits.append(None)
            self._hand_over()

    def _borrow(self, give_up_at: float) -> Connection:
        """Ask psycopg_pool for a connection, for a minute.

        It may not be able to make one more, and others come back meanwhile: they go there, as long as somebody waits.
        """
        connection = None
        self._borrowers.append(None)
        try:
            self._put_back(math.inf)
            with suppress(psycopg_pool.PoolClosed, psycopg_pool.PoolTimeout):
                connection = self._pool.getconn(max(0.0, give_up_at - time.monotonic()))
        finally:
            self._borrowers.pop()
        if connection is None:
            raise self._told()
        connection.at_hand_until = time.monotonic() + _AT_HAND_SECONDS
        return connection

    def _told(self) -> StoreError:
        """Return what is said where there is no connection."""
        if self._closed:
            return UsageError("the store is closed")
        return StoreTimeoutError("no connection came free") if self._failure is None else self._failure.again()


class _Waiter:
    """A call that waits for a connection, and what it was handed."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.has_permit = False
        self.patient_until = time.monotonic() + _PATIENCE_SECONDS
        self.turn = threading.Lock()
        self.turn.acquire()

    def wait(self, give_up_at: float, look: Callable[[], None]) -> None:
        """Wait until it was handed something, at most so long; and after a moment, look what is at hand."""
        if not self.turn.acquire(timeout=max(0.0, min(give_up_at, self.patient_until) - time.monotonic())):
            look()
            self.turn.acquire(timeout=max(0.0, give_up_at - time.monotonic()))


class LentPool:
    """The service's own pool. Its sessions are as the service made them: each is looked at once, and none is set up."""

    def __init__(
        self, pool: psycopg_pool.ConnectionPool[Any], catalog: Catalog, settings: Settings, *, closes: bool = False
    ) -> None:
        self._process = os.getpid()
        self._closes = closes
        self._pool = pool
        self._catalog = catalog
        self._settings = settings
        self._seen: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._closed = False

    def take(self) -> Borrowed:
        """Return a connection that is alive. It commits each statement by itself meanwhile, as ours do."""
        _check_process(self._process)
        if self._closed:
            raise UsageError("the store is closed")
        give_up_at = time.monotonic() + self._settings.checkout_timeout_seconds
        while True:
            borrowed = Borrowed(self._take(give_up_at), epoch=self._settings.epoch)
            try:
                if borrowed.alive:
                    borrowed.commit_each()
                    if borrowed.connection not in self._seen:
                        check_session(borrowed, self._catalog)
                        self._seen.add(borrowed.connection)
                    return borrowed
                borrowed.close()
            except BaseException:
                self.give(borrowed)
                raise
            self.give(borrowed)

    def give(self, runner: Borrowed) -> None:
        """Take a connection back, as it was lent. In a forked child it is the parent's, and left."""
        if os.getpid() != self._process:
            return
        if runner.closed:
            runner.close()  # so that the pool replaces it
        runner.restore()
        self._pool.putconn(runner.connection)

    def close(self) -> None:
        """Use it no more. The service closes it, unless it is ours."""
        self._closed = True
        if self._closes and os.getpid() == self._process:
            self._pool.close()

    def _take(self, give_up_at: float) -> psycopg.Connection[Any]:
        try:
            return cast("psycopg.Connection[Any]", self._pool.getconn(max(0.0, give_up_at - time.monotonic())))
        except psycopg_pool.PoolClosed:
            told: StoreError = UsageError("the pool that was lent is closed, or not open yet")
        except psycopg_pool.TooManyRequests:
            told = StoreUnavailableError("too many calls wait for a connection")
        except psycopg_pool.PoolTimeout:
            told = StoreTimeoutError("no connection came free")
        except psycopg.Error:  # of a NullConnectionPool, which connects here
            told = StoreUnavailableError(UNREACHABLE)
        raise told


def beside(pool: psycopg_pool.ConnectionPool[Any], settings: Settings) -> psycopg_pool.ConnectionPool[Any]:
    """Return a pool of one connection more, made as the pool's own are, and set up.

    Not behind a transaction pooler: what is set in a session there is in everybody's.
    """
    by_service = pool._configure  # which may set the role, say
    by_us = None if settings.transaction_pooler else session_settings(settings)

    def configure(connection: psycopg.Connection[Any]) -> None:
        for set_up in (by_service, by_us):
            if set_up is not None:
                set_up(connection)

    return psycopg_pool.ConnectionPool(
        pool.conninfo,
        connection_class=_quiet(pool.connection_class),
        kwargs=pool.kwargs,
        configure=configure,
        min_size=0,
        max_size=1,
        reconnect_timeout=settings.checkout_timeout_seconds,
        open=True,
    )


def _quiet(kind: type[psycopg.Connection[Any]]) -> type[psycopg.Connection[Any]]:
    """Return a class of connections whose failures and reprs tell nothing of the server: the pool logs both."""

    class Quiet(kind):  # type: ignore[misc,valid-type]  # it is the service's own
        @classmethod
        def connect(cls, *arguments: Any, **options: Any) -> Any:
            with suppress(psycopg.Error):
                return super().connect(*arguments, **options)
            raise psycopg.OperationalError(UNREACHABLE)

        def __repr__(self) -> str:
            return f"<nl2state connection {id(self):#x}>"

    return Quiet


def _check_process(process: int) -> None:
    if os.getpid() != process:  # both processes would read each other's answers
        raise UsageError("the store was opened before a fork: open one in each process")
