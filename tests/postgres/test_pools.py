"""Our own pool: who gets a connection, when, and what becomes of those that nobody uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import psycopg
import pytest

from nl2state import StoreTimeoutError, TenantScope, UsageError
from nl2state.testing.harness import Call, start, until
from nl2state_postgres import PostgresStore, Settings
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.connection import Connection
from nl2state_postgres.pools import OwnPool, taken
from tests.servers import PostgresHarness


@pytest.fixture
def open_pool(harness: PostgresHarness) -> Iterator[Callable[..., OwnPool]]:
    """Return what opens a pool of that many connections."""
    with ExitStack() as opened:

        def open_one(most: int, **settings: Any) -> OwnPool:
            catalog = Catalog.load(schema=harness.schema, clock=harness.settings.clock)
            chosen = harness.settings.model_copy(update=settings)
            pool = OwnPool(harness.dsn, catalog, chosen, size=(0, most))
            opened.callback(pool.close)
            return pool

        yield open_one


def _waiting(pool: OwnPool) -> int:
    return len(pool._waiters)


def test_the_last_one_used_is_the_first_to_be_used_again(open_pool: Callable[..., OwnPool]) -> None:
    """Its backend is warm; and those that are not needed come of age."""
    pool = open_pool(2)
    first, second = pool.take(), pool.take()
    assert first is not second
    pool.give(first)
    pool.give(second)
    assert pool.take() is second
    assert pool.take() is first


def test_there_are_never_more_than_the_most(open_pool: Callable[..., OwnPool]) -> None:
    pool = open_pool(2, checkout_timeout_seconds=0.05)
    first, second = pool.take(), pool.take()
    with pytest.raises(StoreTimeoutError, match="no connection came free"):
        pool.take()
    assert _waiting(pool) == 0
    pool.give(first)
    pool.give(second)
    assert {pool.take(), pool.take()} == {first, second}


def test_who_waited_longest_is_served_first_and_nobody_is_overtaken_for_long(open_pool: Callable[..., OwnPool]) -> None:
    pool = open_pool(1)
    held = pool.take()
    served: list[int] = []
    waiters: list[Call[None]] = []

    def take(number: int) -> None:
        with taken(pool):
            served.append(number)

    for number in range(5):
        waiters.append(start(partial(take, number)))
        until(lambda: _waiting(pool) == len(waiters), "it waits")
    pool.give(held)
    for waiter in waiters:
        waiter.result()
    assert served == [0, 1, 2, 3, 4]


def test_no_thread_starves_where_there_are_more_of_them_than_connections(open_pool: Callable[..., OwnPool]) -> None:
    """A free-for-all leaves some with nothing for as long as the others go on."""
    pool = open_pool(2)
    calls = [0] * 8
    ended = threading.Event()

    def work(number: int) -> None:
        while not ended.is_set():
            with taken(pool):
                calls[number] += 1
                time.sleep(0.0002)

    workers = [start(partial(work, number)) for number in range(len(calls))]
    until(lambda: min(calls) >= 50, "each thread has its turns")
    ended.set()
    for worker in workers:
        worker.result()
    assert max(calls) < 10 * min(calls)


@pytest.mark.parametrize("most", [2, 8])
def test_where_the_server_gives_fewer_connections_than_the_most_they_are_shared(
    open_pool: Callable[..., OwnPool], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """P11: who waits for one more to be made gets the one that comes back, as everybody else does."""
    pool = open_pool(most, checkout_timeout_seconds=5.0)
    with taken(pool) as only:
        monkeypatch.setattr(Connection, "connect", _too_many)
        waiters = [start(partial(_use, pool)) for _ in range(4)]
        until(lambda: len(pool._borrowers) == min(most - 1, 4), "they ask for more")
    assert {waiter.result() for waiter in waiters} == {only}
    assert len(pool._permits) + len(pool._at_hand) == most
    assert len(pool._borrowers) == 0


def _too_many(*_: Any, **__: Any) -> Connection:
    raise psycopg.OperationalError("too many connections")


def _use(pool: OwnPool) -> Connection:
    connection = pool.take()
    for _ in range(20):
        pool.give(connection)
        connection = pool.take()
    pool.give(connection)
    return connection


def test_a_wait_that_is_over_takes_no_connection_with_it(open_pool: Callable[..., OwnPool]) -> None:
    """P11: one that was handed to nobody would be missing for ever. Many race to be handed one as their wait ends."""
    pool = open_pool(1, checkout_timeout_seconds=0.002)

    def work() -> None:
        for _ in range(100):
            with suppress(StoreTimeoutError), taken(pool):
                time.sleep(0.001)

    workers = [start(work) for _ in range(6)]
    for worker in workers:
        worker.result()
    assert _waiting(pool) == 0
    pool._timeout_seconds = 10.0
    with taken(pool) as connection:
        assert not connection.closed


def test_a_connection_that_died_is_replaced_and_costs_the_call_nothing(
    open_pool: Callable[..., OwnPool], harness: PostgresHarness
) -> None:
    pool = open_pool(1)
    with taken(pool) as connection:
        assert isinstance(connection, Connection)
        died = connection
        pid = connection.pgconn.backend_pid
    harness.observer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with taken(pool) as connection:
        assert connection is not died
        assert connection.command("SELECT 1").row == (1,)


def test_a_connection_that_comes_back_in_a_transaction_is_not_handed_on(open_pool: Callable[..., OwnPool]) -> None:
    pool = open_pool(1)
    with taken(pool) as connection:
        connection.command("BEGIN")
    with taken(pool) as connection:
        assert connection.command("SELECT pg_current_xact_id_if_assigned()").row == (None,)
        assert isinstance(connection, Connection)
        assert connection.info.transaction_status == 0


def test_what_has_not_been_used_for_long_goes_back_to_the_pool_beneath(open_pool: Callable[..., OwnPool]) -> None:
    """There it is closed when it is idle or old: its rules hold as they would without us."""
    pool = open_pool(2)
    first, second = pool.take(), pool.take()
    pool.give(first)
    pool.give(second)
    assert len(pool._at_hand) == 2
    first.at_hand_until = second.at_hand_until = 0.0  # a minute later
    used = pool.take()
    assert used is second
    pool.give(used)
    assert len(pool._at_hand) == 0
    assert len(pool._permits) == 2
    assert {pool.take(), pool.take()} == {first, second}


def test_who_waits_when_the_pool_is_closed_is_told_at_once(open_pool: Callable[..., OwnPool]) -> None:
    pool = open_pool(1)
    held = pool.take()
    waiter = start(pool.take)
    until(lambda: _waiting(pool) == 1, "it waits")
    pool.close()
    started = time.monotonic()
    with pytest.raises(UsageError, match="closed"):
        waiter.result()
    assert time.monotonic() - started < 5
    pool.give(held)
    assert held.closed
    with pytest.raises(UsageError, match="closed"):
        pool.take()


def test_a_closed_store_leaves_no_connection_open(harness: PostgresHarness) -> None:
    settings: Settings = harness.settings.model_copy(update={"application_name": f"{harness.schema[:50]}_closing"})
    with PostgresStore.open(harness.dsn, schema=harness.schema, settings=settings) as store:
        store.tenant(TenantScope.local()).states.get("s")
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"

    def none_is_open() -> bool:
        return harness.observer.execute(count, [settings.application_name]).fetchone() == (0,)

    until(none_is_open, "each has ended")
