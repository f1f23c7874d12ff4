"""Where a connection comes from: a pool of ours, or one that the service lends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast
from weakref import WeakSet

import psycopg
import psycopg_pool

from nl2state.errors import StoreError, StoreTimeoutError, StoreUnavailableError, UsageError
from nl2state_postgres.borrowed import Borrowed, session_settings
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.connection import UNREACHABLE, Connection, Runner, check_session
from nl2state_postgres.settings import Settings

__all__ = ["LentPool", "OwnPool", "Pool", "beside", "taken"]


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
    """A pool of our own connections."""

    def __init__(self, conninfo: str, catalog: Catalog, settings: Settings, *, size: tuple[int, int]) -> None:
        self._process = os.getpid()
        self._failure: StoreError | None = None  # of the last connection that was tried
        self._timeout_seconds = settings.checkout_timeout_seconds
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
        _check_process(self._process)
        give_up_at = time.monotonic() + self._timeout_seconds
        while True:
            connection = self._take(give_up_at)
            try:
                if connection.alive:
                    return connection
                connection.close()  # the server hung up while it idled: nothing was sent, and nothing is in doubt
            except BaseException:  # a signal's
                self.give(connection)
                raise
            self.give(connection)

    def give(self, runner: Connection) -> None:
        """Take a connection back, and replace a closed one. In a forked child it is the parent's, and left."""
        if os.getpid() == self._process:
            self._pool.putconn(runner)

    def close(self) -> None:
        """Close the connections; a call that is running fails. In a forked child they are the parent's, and left."""
        if os.getpid() == self._process:
            self._pool.close()

    def _note(self, failure: StoreError | None) -> None:
        self._failure = failure

    def _take(self, give_up_at: float) -> Connection:
        try:
            return self._pool.getconn(max(0.0, give_up_at - time.monotonic()))
        except psycopg_pool.PoolClosed:
            told: StoreError = UsageError("the store is closed")
        except psycopg_pool.PoolTimeout:
            failure = self._failure
            told = StoreTimeoutError("no connection came free") if failure is None else failure.again()
        raise told


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
