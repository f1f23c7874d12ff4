"""What is the memory backend's own: its bounds without a server, its deadlines, and that it costs nothing to make."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nl2state import (
    AlreadyExistsError,
    AttemptInFlightError,
    FencingRejectedError,
    InvalidInputError,
    Lease,
    LeaseBusyError,
    NotFoundError,
    Retained,
    StoreTimeoutError,
    StoreUnavailableError,
    TenantScope,
    UsageError,
)
from nl2state.testing.harness import Call, start, start_waiting, until
from nl2state_memory import MemoryStore, Settings
from nl2state_memory.database import Unit
from nl2state_memory.sessions import ClientSession
from tests.memory.harness import MemoryHarness


@pytest.fixture
def memory() -> Iterator[MemoryHarness]:
    made = MemoryHarness()
    yield made
    made.close()


@pytest.fixture
def impatient() -> Iterator[MemoryHarness]:
    """Yield a store whose waits for a lock are short."""
    made = MemoryHarness(Settings(lock_timeout_seconds=0.05))
    yield made
    made.close()


@pytest.fixture
def restless() -> Iterator[MemoryHarness]:
    """Yield a store that soon ends an idle transaction."""
    made = MemoryHarness(Settings(transaction_idle_seconds=0.05))
    yield made
    made.close()


def test_a_store_starts_no_thread_until_a_lease_is_held() -> None:
    before = threading.active_count()
    with MemoryStore() as store:
        tenant = store.tenant(TenantScope.local())
        tenant.states.create("s", 1)
        tenant.leases.acquire("q", owner="a", ttl_seconds=60)
        assert threading.active_count() == before
        with tenant.hold("r", owner="a"):
            assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_a_client_sees_the_same_data_and_closes_alone() -> None:
    with MemoryStore() as store:
        other = store.client()
        store.tenant(TenantScope.local()).states.create("s", 1)
        assert other.tenant(TenantScope.local()).states.require("s").value == 1
        other.close()
        with pytest.raises(UsageError):
            other.tenant(TenantScope.local()).states.get("s")
        assert store.tenant(TenantScope.local()).states.require("s").value == 1


def test_a_closed_store_says_so() -> None:
    store = MemoryStore()
    tenant = store.tenant(TenantScope.local())
    store.close()
    store.close()
    with pytest.raises(UsageError):
        tenant.states.get("s")
    with pytest.raises(UsageError), tenant.transaction():
        pass
    with pytest.raises(UsageError), tenant.hold("r", owner="a"):
        pass
    with pytest.raises(UsageError):
        store.system.retain()


def test_what_is_stored_is_no_part_of_the_caller_s_value(memory: MemoryHarness) -> None:
    states = memory.tenant().states
    value: Any = {"list": [1]}
    states.create("s", value)
    value["list"].append(2)
    read: Any = states.require("s").value
    read["list"].append(3)
    assert states.require("s").value == {"list": [1]}


def test_a_call_that_fails_poisons_its_transaction(impatient: MemoryHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    tenant.states.create("s", 1)
    with other.transaction() as blocker:
        blocker.states.update("s", 2, expected_revision=1)
        with pytest.raises(StoreTimeoutError), tenant.transaction() as tx:
            tx.states.create("t", 1)
            with pytest.raises(StoreTimeoutError):
                tx.states.update("s", 3, expected_revision=1)
            with pytest.raises(UsageError, match="STORE_TIMEOUT"):
                tx.states.get("t")
            # the block ends as if nothing had happened: the transaction must not
    assert tenant.states.get("t") is None
    assert tenant.states.require("s").value == 2


def test_a_refused_write_keeps_no_lock_on_its_lease(memory: MemoryHarness) -> None:
    tenant = memory.tenant()
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    with tenant.transaction(fence=fence) as tx:
        with pytest.raises(NotFoundError):
            tx.states.update("s", 1, expected_revision=1)
        released = start(lambda: memory.tenant(client=1).leases.release(fence))
        until(lambda: released.done or memory.waiting() > 0, "the release ends")
        assert memory.waiting() == 0
        released.result()


def test_a_savepoint_heals_what_failed_in_it(impatient: MemoryHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    tenant.states.create("s", 1)
    with other.transaction() as blocker:
        blocker.states.update("s", 2, expected_revision=1)
        with tenant.transaction() as tx:
            tx.states.create("t", 1)
            with pytest.raises(StoreTimeoutError), tx.transaction():
                tx.states.create("undone", 1)
                tx.states.update("s", 3, expected_revision=1)
            tx.states.create("u", 1)
    assert tenant.states.require("t").value == tenant.states.require("u").value == 1
    assert tenant.states.get("undone") is None


def test_a_failure_that_is_swallowed_in_a_savepoint_undoes_the_savepoint(impatient: MemoryHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    tenant.states.create("s", 1)
    with other.transaction() as blocker, tenant.transaction() as tx:
        blocker.states.update("s", 2, expected_revision=1)
        with pytest.raises(StoreTimeoutError), tx.transaction():
            tx.states.create("undone", 1)
            with pytest.raises(StoreTimeoutError):
                tx.states.update("s", 3, expected_revision=1)
        assert tx.states.get("undone") is None


def test_a_takeover_behind_an_open_transaction_is_busy_when_its_time_is_over(impatient: MemoryHarness) -> None:
    tenant, other = impatient.tenant(), impatient.tenant(client=1)
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    with tenant.transaction(fence=fence) as tx:
        tx.states.create("s", 1)
        impatient.advance(61)
        with pytest.raises(LeaseBusyError) as refused:
            other.leases.acquire("r", owner="b", ttl_seconds=60)
        assert (refused.value.owner, refused.value.retry_after_seconds) == ("a", 0)


@pytest.mark.parametrize("called_again", [False, True])
def test_a_transaction_that_idles_is_ended_and_keeps_nothing(restless: MemoryHarness, called_again: bool) -> None:
    tenant = restless.tenant()
    tenant.states.create("s", 1)
    with pytest.raises(StoreTimeoutError), tenant.transaction() as tx:
        tx.states.update("s", 2, expected_revision=1)
        tx.after_commit(lambda: pytest.fail("it did not commit"))
        start(lambda: restless.tenant(client=1).states.update("s", 3, expected_revision=1)).result()
        if called_again:
            with pytest.raises(StoreTimeoutError), tx.transaction():
                pass
            with pytest.raises(UsageError):
                tx.states.get("s")
    assert tenant.states.require("s").value == 3


def test_a_holder_stopped_in_its_transaction_delays_its_successor_and_does_not_commit(restless: MemoryHarness) -> None:
    """P6, P13."""
    tenant, other = restless.tenant(), restless.tenant(client=1)
    tenant.states.create("s", 1)
    old = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
    with pytest.raises(StoreTimeoutError), tenant.transaction(fence=old) as tx:
        tx.states.update("s", "old", expected_revision=1)
        restless.advance(61)
        new = other.leases.acquire("r", owner="b", ttl_seconds=60)
        other.states.update("s", "new", expected_revision=1, fence=new.fence)
    assert new.taken_over
    assert tenant.states.require("s").value == "new"
    with pytest.raises(FencingRejectedError):
        tenant.leases.release(old)


def test_records_written_in_opposite_orders_are_a_deadlock_that_is_retryable(memory: MemoryHarness) -> None:
    tenant, other = memory.tenant(), memory.tenant(client=1)
    for record_id in ("s", "t"):
        tenant.states.create(record_id, 0)

    def write_t_then_s() -> None:
        with other.transaction() as tx:
            tx.states.update("t", "other", expected_revision=1)
            ready.set()
            tx.states.update("s", "other", expected_revision=1)

    ready = threading.Event()
    with pytest.raises(StoreUnavailableError) as raised, tenant.transaction() as tx:
        tx.states.update("s", "mine", expected_revision=1)
        call: Call[None] = start_waiting(memory, write_t_then_s)
        assert ready.is_set()
        tx.states.update("t", "mine", expected_revision=1)
    assert raised.value.retryable
    call.result()
    assert [tenant.states.require(record_id).value for record_id in ("s", "t")] == ["other", "other"]


@pytest.mark.parametrize("end", ["commit", "roll back"])
def test_a_creation_waits_for_an_open_one_of_the_same_record(memory: MemoryHarness, end: str) -> None:
    with pytest.raises(LookupError), memory.tenant().transaction() as tx:
        tx.states.create("s", "first")
        second = start_waiting(memory, lambda: memory.tenant(client=1).states.create("s", "second"))
        if end == "roll back":
            raise LookupError
        tx.after_commit(_lookup_error)
    if end == "commit":
        with pytest.raises(AlreadyExistsError):
            second.result()
    else:
        assert second.result().revision == 1
    assert memory.tenant().states.require("s").value == ("first" if end == "commit" else "second")


def test_a_reservation_waits_for_an_open_completion_only_where_it_has_to_write(memory: MemoryHarness) -> None:
    tenant, other = memory.tenant(), memory.tenant(client=1)
    options = {"request": None, "result_ttl_seconds": 600.0, "attempt_ttl_seconds": 60.0}
    attempt = tenant.idempotency.reserve("k", **options).attempt  # type: ignore[arg-type]  # as they are named
    with tenant.transaction() as tx:
        tx.idempotency.complete(attempt, "done")
        with pytest.raises(AttemptInFlightError):
            other.idempotency.reserve("k", **options)  # type: ignore[arg-type]  # as above
        memory.advance(61)
        waiter = start_waiting(memory, lambda: other.idempotency.reserve("k", **options))  # type: ignore[arg-type]  # as above
    assert waiter.result().outcome == "done"
    with tenant.transaction() as tx:
        assert tx.idempotency.forget("k")
        assert other.idempotency.reserve("k", **options).outcome == "done"  # type: ignore[arg-type]  # as above


def test_a_wait_ends_when_the_lease_comes_free_when_it_expires_and_when_its_time_is_over(
    memory: MemoryHarness,
) -> None:
    leases, other = memory.tenant().leases, memory.tenant(client=1).leases
    leases.acquire("r", owner="a", ttl_seconds=60)
    waiter = start(lambda: other.acquire("r", owner="b", ttl_seconds=60, wait_seconds=20))
    memory.advance(61)
    assert waiter.result().taken_over
    waiter = start(lambda: leases.acquire("r", owner="c", ttl_seconds=60, wait_seconds=20))

    def over() -> bool:
        memory.advance_clients(21)  # again and again: it may not have begun yet
        return waiter.done

    until(over, "its time is over")
    with pytest.raises(LeaseBusyError):
        waiter.result()


def test_a_clean_up_takes_the_oldest_first_and_goes_on_where_it_stopped(memory: MemoryHarness) -> None:
    for tenant in (memory.tenant("one"), memory.tenant("two")):
        for number in range(5):
            tenant.states.create(f"s{number}", 1, status="succeeded")
            tenant.leases.release(tenant.leases.acquire(f"r{number}", owner="a", ttl_seconds=1).fence)
            memory.advance(1)
    memory.advance(90_000)
    system = memory.clients[0].system
    assert system.retain(limit=3, terminal_age_seconds=1).states == 3
    remaining = [memory.tenant(name).states.get(f"s{n}") is not None for name in ("one", "two") for n in range(5)]
    assert remaining in ([False] * 3 + [True] * 7, [True] * 5 + [False] * 3 + [True] * 2)
    page = system.retain(limit=3, terminal_age_seconds=1)
    while page.after is not None:
        page = system.retain(limit=3, terminal_age_seconds=1, after=page.after)
    assert not any(memory.tenant(name).states.get(f"s{n}") for name in ("one", "two") for n in range(5))
    assert system.retain() == Retained(states=0, leases=0, idempotency=0, after=None)


def test_settings_are_checked() -> None:
    for wrong in ({"lock_timeout_seconds": 0}, {"transaction_idle_seconds": float("nan")}, {"epoch": 4_096}):
        with pytest.raises(InvalidInputError):
            Settings(**wrong)


def _lookup_error() -> None:
    raise LookupError


def test_a_revocation_leaves_a_grant_that_came_between_its_halves(
    memory: MemoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 11: what the operator saw is revoked, and not what another has taken over meanwhile."""
    mine, theirs = memory.tenant().leases, memory.tenant(client=1).leases
    old = mine.acquire("r", owner="a", ttl_seconds=60)
    call = ClientSession.call
    taken: list[Lease] = []

    @contextmanager
    def take_over_after(session: ClientSession) -> Iterator[Unit]:
        with call(session) as unit:
            yield unit
        monkeypatch.undo()
        taken.append(theirs.acquire("r", owner="b", ttl_seconds=60))

    monkeypatch.setattr(ClientSession, "call", take_over_after)
    assert mine.revoke("r")
    assert taken[0].fence.token > old.fence.token
    assert theirs.renew(taken[0].fence).fence == taken[0].fence


def test_tokens_and_attempts_begin_in_the_epoch_of_the_settings() -> None:
    """P5 and P7: data that is loaded into another store goes on above all that the former one gave."""
    with MemoryStore(settings=Settings(epoch=7)) as store:
        tenant = store.tenant(TenantScope.local())
        attempt = tenant.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt
        for number in (tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence.token, attempt.number):
            assert number >> 41 == 7
