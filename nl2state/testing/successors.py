"""The promise about what a holder that died, or was stopped, leaves behind: its successor does not wait for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nl2state.errors import AttemptInFlightError, FencingRejectedError, LeaseBusyError, StoreTimeoutError, UsageError
from nl2state.idempotency import Attempt
from nl2state.store import Tenant, Transaction
from nl2state.testing.harness import Capability, Harness, start

__all__ = ["TestSuccessors"]

_DAY = 86_400.0
_IDLE_SECONDS = 1.0


class TestSuccessors:
    """P13: a dead or stopped holder delays its successor by its TTL and the bound on an open transaction, at most."""

    def test_a_dead_holder_s_lease_is_the_successor_s_when_its_ttl_is_over_and_not_before(
        self, harness: Harness
    ) -> None:
        mine, theirs = harness.tenant(), harness.tenant(client=1)
        dead = mine.leases.acquire("r", owner="dead", ttl_seconds=60)
        harness.advance(50)
        with pytest.raises(LeaseBusyError) as refused:
            theirs.leases.acquire("r", owner="b", ttl_seconds=60)
        assert 0 < refused.value.retry_after_seconds <= 10
        harness.advance(refused.value.retry_after_seconds)
        taken = theirs.leases.acquire("r", owner="b", ttl_seconds=60)
        assert taken.taken_over
        assert taken.fence.token > dead.fence.token
        with pytest.raises(FencingRejectedError):
            mine.leases.renew(dead.fence)

    def test_a_dead_attempt_s_key_is_the_successor_s_when_its_ttl_is_over_and_not_before(
        self, harness: Harness
    ) -> None:
        dead = _reserve(harness.tenant())
        harness.advance(50)
        with pytest.raises(AttemptInFlightError) as refused:
            _reserve(harness.tenant(client=1))
        assert 0 < refused.value.retry_after_seconds <= 10
        harness.advance(refused.value.retry_after_seconds)
        again = _reserve(harness.tenant(client=1))
        with pytest.raises(FencingRejectedError):
            harness.tenant().idempotency.complete(dead, "late")
        harness.tenant(client=1).idempotency.complete(again, "done")

    def test_a_successor_that_waits_is_woken_by_the_expiry(self, harness: Harness) -> None:
        """Nobody writes when a lease, or an attempt, runs out: who waits has to find it."""
        mine, theirs = harness.tenant(), harness.tenant(client=1)
        mine.leases.acquire("r", owner="dead", ttl_seconds=60)
        dead = _reserve(mine)
        acquiring = start(lambda: theirs.leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=25))
        reserving = start(lambda: _reserve(theirs, wait_seconds=25))
        harness.advance(61)
        assert acquiring.result().taken_over
        assert reserving.result().number > dead.number

    def test_a_renewal_delays_the_successor_by_one_ttl_from_then(self, harness: Harness) -> None:
        mine, theirs = harness.tenant(), harness.tenant(client=1)
        fence = mine.leases.acquire("r", owner="dead", ttl_seconds=60).fence
        harness.advance(50)
        mine.leases.renew(fence)
        harness.advance(50)
        assert theirs.leases.try_acquire("r", owner="b", ttl_seconds=60) is None
        harness.advance(11)
        assert theirs.leases.try_acquire("r", owner="b", ttl_seconds=60) is not None

    def test_a_client_that_is_gone_renews_nothing_more(self, harness: Harness) -> None:
        """Its heartbeat ended with it: what it held runs out."""
        block = harness.tenant(client=1).hold("r", owner="gone")
        block.__enter__()
        harness.client(1).close()
        assert harness.tenant().leases.try_acquire("r", owner="b", ttl_seconds=60) is None
        harness.advance(31)
        assert harness.tenant().leases.try_acquire("r", owner="b", ttl_seconds=60) is not None
        with pytest.raises(UsageError):
            block.__exit__(None, None, None)

    def test_the_clients_clocks_neither_hasten_nor_delay_it(self, harness: Harness) -> None:
        mine, theirs = harness.tenant(), harness.tenant(client=1)
        mine.leases.acquire("r", owner="dead", ttl_seconds=60)
        _reserve(mine)
        harness.advance_clients(7 * _DAY)
        assert theirs.leases.try_acquire("r", owner="b", ttl_seconds=60) is None
        with pytest.raises(AttemptInFlightError):
            _reserve(theirs)
        harness.advance(61)
        assert theirs.leases.try_acquire("r", owner="b", ttl_seconds=60) is not None
        _reserve(theirs)

    def test_a_store_s_clock_that_steps_back_delays_it_by_no_more_than_the_ttl_once_it_is_there_again(
        self, harness: Harness
    ) -> None:
        mine, theirs = harness.tenant(), harness.tenant(client=1)
        mine.leases.acquire("r", owner="dead", ttl_seconds=60)
        harness.advance(-7_200)
        assert theirs.leases.try_acquire("r", owner="b", ttl_seconds=60) is None
        harness.advance(7_200 + 61)
        granted = theirs.leases.try_acquire("r", owner="b", ttl_seconds=60)
        assert granted is not None
        harness.advance(-7_200)  # a lease of after the step lasts its own TTL, and no longer
        later = mine.leases.acquire("q", owner="dead", ttl_seconds=60)
        harness.advance(61)
        assert theirs.leases.acquire("q", owner="b", ttl_seconds=60).fence.token > later.fence.token

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    def test_a_holder_that_stops_in_a_fenced_transaction_loses_it_to_its_successor(self, harness: Harness) -> None:
        """Nobody goes on, and nobody rolls back: the store ends the transaction by itself, with all that it wrote."""
        theirs = harness.tenant()
        theirs.states.create("s", "before")
        stopped = harness.tenant_of(harness.bounded(idle_seconds=_IDLE_SECONDS))
        fence = stopped.leases.acquire("r", owner="stopped", ttl_seconds=60).fence
        with _stopped_in(stopped) as tx:
            tx.states.update("s", "late", expected_revision=1, fence=fence)
            harness.advance(61)
            taken = theirs.leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=25)
            assert taken.taken_over
            assert theirs.states.update("s", "after", expected_revision=1, fence=taken.fence).revision == 2
        assert theirs.states.require("s").value == "after"

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    def test_a_holder_that_stops_in_a_transaction_keeps_no_record_and_no_key(self, harness: Harness) -> None:
        theirs = harness.tenant()
        theirs.states.create("s", "before")
        stopped = harness.tenant_of(harness.bounded(idle_seconds=_IDLE_SECONDS))
        attempt = _reserve(stopped)
        with _stopped_in(stopped) as tx:
            tx.states.update("s", "late", expected_revision=1)
            tx.idempotency.complete(attempt, "late")
            writing = start(lambda: theirs.states.update("s", "after", expected_revision=1))
            harness.advance(61)
            again = _reserve(theirs, wait_seconds=25)
            assert again.number > attempt.number
            assert writing.result().revision == 2
        theirs.idempotency.complete(again, "done")
        assert theirs.states.require("s").value == "after"

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    def test_a_holder_that_stops_while_it_gives_its_lease_back_still_has_it_for_its_ttl_alone(
        self, harness: Harness
    ) -> None:
        theirs = harness.tenant()
        stopped = harness.tenant_of(harness.bounded(idle_seconds=_IDLE_SECONDS))
        fence = stopped.leases.acquire("r", owner="stopped", ttl_seconds=60).fence
        with _stopped_in(stopped) as tx:
            tx.leases.release(fence)
            harness.advance(61)
            assert theirs.leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=25).taken_over


@contextmanager
def _stopped_in(tenant: Tenant) -> Iterator[Transaction]:
    """Open a transaction, and let its thread find, when it goes on after the block, that the store has ended it."""
    block = tenant.transaction()
    transaction = block.__enter__()
    try:
        yield transaction
    except BaseException as error:
        block.__exit__(type(error), error, None)
        raise
    with pytest.raises(StoreTimeoutError) as ended:
        transaction.states.get("s")
    assert ended.value.retryable
    with pytest.raises(StoreTimeoutError):
        block.__exit__(None, None, None)


def _reserve(tenant: Tenant, *, wait_seconds: float = 0) -> Attempt:
    return tenant.idempotency.reserve(
        "k", request=1, result_ttl_seconds=600, attempt_ttl_seconds=60, wait_seconds=wait_seconds
    ).attempt
