"""The promises about who comes late: a holder that wakes up, a waiter that waited too long, an end behind an end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import pytest

from nl2state.errors import FencingRejectedError, LeaseBusyError
from nl2state.leases import Fence
from nl2state.states import ANY_REVISION
from nl2state.store import Transaction
from nl2state.testing.calls import Prepared, prepare
from nl2state.testing.harness import Harness, start, start_waiting, until

__all__ = ["End", "TestLateEnds", "TestLateHolders", "TestLateWaiters", "TestOpenWrites", "Write"]

_DAY = 86_400.0

Write: TypeAlias = Callable[[Transaction, Prepared], object]
"""A write of a transaction's that is fenced."""

End: TypeAlias = Callable[[Harness, Fence], object]
"""What ends a grant, by another client."""

_WRITES: dict[str, Write] = {
    "create": lambda tx, p: tx.states.create(p.absent, "open"),
    "update": lambda tx, p: tx.states.update(p.record, "open", expected_revision=1),
    "put": lambda tx, p: tx.states.put(p.record, "open"),
    "delete": lambda tx, p: tx.states.delete(p.record, expected_revision=1),
    "complete": lambda tx, p: tx.idempotency.complete(p.attempt, "open"),
    "abandon": lambda tx, p: tx.idempotency.abandon(p.attempt),
    "forget": lambda tx, p: tx.idempotency.forget(p.done),
}


def _take_over(harness: Harness, fence: Fence) -> object:
    harness.advance(601)
    taken = harness.tenant(client=1).leases.acquire(fence.resource, owner="b", ttl_seconds=60)
    harness.advance(-601)  # nothing but the lease is to have run out
    return taken


_ENDS: dict[str, End] = {
    "takeover": _take_over,
    "release": lambda harness, fence: harness.tenant(client=1).leases.release(fence),
    "revocation": lambda harness, fence: harness.tenant(client=1).leases.revoke(fence.resource),
}


class TestLateHolders:
    """P6: a holder that lost its lease can learn of it in time, and writes nothing any more."""

    def test_a_holder_that_wakes_after_its_successor_finished_writes_nothing(self, harness: Harness) -> None:
        """Case 23: a frozen holder goes on when its successor, of the same name, has written and released."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("s", "first")
        with pytest.raises(FencingRejectedError), tenant.hold("r", owner="worker", ttl_seconds=60) as frozen:
            harness.advance(61)
            with other.hold("r", owner="worker", ttl_seconds=60) as successor, successor.transaction() as tx:
                tx.states.update("s", "the successor's", expected_revision=1)
            assert other.leases.inspect("r") is None
            for expected in (1, 2, ANY_REVISION):
                with pytest.raises(FencingRejectedError):
                    tenant.states.update("s", "late", expected_revision=expected, fence=frozen.fence)
            with pytest.raises(FencingRejectedError), frozen.transaction() as tx:
                tx.states.put("s", "late")
        record = tenant.states.require("s")
        assert (record.value, record.revision) == ("the successor's", 2)
        assert other.leases.inspect("r") is None

    def test_a_holder_learns_of_its_loss_while_its_thread_is_blocked(self, harness: Harness) -> None:
        """Case 16: the heartbeat tells of the loss before the TTL is over; what the holder writes then is refused."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("s", "first")
        with pytest.raises(FencingRejectedError), tenant.hold("r", owner="a", ttl_seconds=60) as held:
            other.leases.revoke("r")
            theirs = other.leases.acquire("r", owner="b", ttl_seconds=60)
            assert not held.lost
            harness.advance_clients(21)  # a renewal is due, and by the holder's own clock there is plenty of time yet
            with tenant.hold("another", owner="a", ttl_seconds=60):  # which has the heartbeat look
                until(lambda: held.lost, "the loss, by the heartbeat alone")
            with pytest.raises(FencingRejectedError), held.transaction():
                pass
            with pytest.raises(FencingRejectedError):
                tenant.states.update("s", "late", expected_revision=1, fence=held.fence)
        assert other.leases.renew(theirs.fence).fence == theirs.fence
        assert tenant.states.require("s").value == "first"

    @pytest.mark.parametrize("end", ["revoked", "released", "swept"])
    def test_a_renewal_of_what_is_gone_makes_nothing_anew(self, harness: Harness, end: str) -> None:
        """Case 11: an operator took the lease away, or its row is deleted; the holder is told, and nothing appears."""
        leases, operator = harness.tenant().leases, harness.tenant(client=1).leases
        lease = leases.acquire("r", owner="a", ttl_seconds=60, metadata={"host": "h-1"})
        if end == "revoked":
            assert operator.revoke("r")
        elif end == "released":
            operator.release(lease.fence)
        else:
            harness.advance(_DAY + 61)
            assert harness.clients[1].system.retain().leases == 1
        for ttl_seconds in (None, 600):
            with pytest.raises(FencingRejectedError):
                leases.renew(lease.fence, ttl_seconds=ttl_seconds)
        assert operator.inspect("r") is None
        assert operator.list().items == ()
        successor = operator.acquire("r", owner="b", ttl_seconds=60)
        assert not successor.taken_over
        assert successor.fence.token > lease.fence.token

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_fenced_write_that_waited_for_a_release_looks_again(self, harness: Harness, end: str) -> None:
        """Case 18: the write waits for the lease's row while its lease goes to another worker."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        tenant.states.create("s", "first")
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        with suppress(LookupError), tenant.transaction() as tx:
            tx.leases.release(fence)
            late = start_waiting(harness, lambda: other.states.update("s", "late", expected_revision=1, fence=fence))
            if end == "roll back":
                raise LookupError
        if end == "commit":
            with pytest.raises(FencingRejectedError):
                late.result()
            successor = other.leases.acquire("r", owner="b", ttl_seconds=60).fence
            assert other.states.update("s", "b's", expected_revision=1, fence=successor).revision == 2
        else:
            assert late.result().revision == 2
            assert other.leases.renew(fence).fence == fence


class TestOpenWrites:
    """P6: whatever a fenced call writes, no end of its grant returns before that is committed, or undone."""

    @pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS.keys())
    @pytest.mark.parametrize("write", _WRITES.values(), ids=_WRITES.keys())
    def test_no_end_of_a_grant_returns_before_an_open_write_of_it(
        self, harness: Harness, write: Write, end: End
    ) -> None:
        p = prepare(harness)
        before = p.snapshot()
        with pytest.raises(LookupError), p.tenant.transaction(fence=p.fence) as tx:
            write(tx, p)
            ending = start_waiting(harness, lambda: end(harness, p.fence))
            raise LookupError
        ending.result()
        states, _, keys = p.snapshot()
        assert (states, keys) == (before[0], before[2])
        with pytest.raises(FencingRejectedError), p.tenant.transaction(fence=p.fence) as tx:
            write(tx, p)


class TestLateWaiters:
    """P4: a lease is not handed out when it is over, however long the call waited for it."""

    def test_a_waiter_whose_own_life_passed_meanwhile_gets_one_that_is_not_over(self, harness: Harness) -> None:
        """Case 10: its TTL passes by its own clock while it waits for the former holder's open write."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = _hold(harness)

        def hold() -> tuple[bool, float, Fence]:
            with other.hold("r", owner="b", ttl_seconds=60) as held:
                return held.lost, held.remaining_seconds, held.fence

        with tenant.transaction() as tx:
            tx.states.update("s", "old", expected_revision=1, fence=fence)
            harness.advance(61)
            waiter = start_waiting(harness, hold)
            harness.advance_clients(61)
        lost, remaining_seconds, newer = waiter.result()
        assert not lost
        assert 50 < remaining_seconds <= 60
        assert newer.token > fence.token

    def test_a_lease_that_was_waited_for_is_counted_from_before_the_wait(self, harness: Harness) -> None:
        """A holder cannot know when in that time it was granted: its own deadline is the earliest that can be."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = _hold(harness)
        with tenant.transaction() as tx:
            tx.states.update("s", "old", expected_revision=1, fence=fence)
            harness.advance(61)
            beside = other.leases.acquire("q", owner="b", ttl_seconds=60)
            waiter = start_waiting(harness, lambda: other.leases.acquire("r", owner="b", ttl_seconds=60))
            harness.advance_clients(20)
        assert waiter.result().deadline - beside.deadline == pytest.approx(0, abs=10)

    def test_a_waiter_that_is_held_up_by_nobody_s_write_gives_up_in_its_time(self, harness: Harness) -> None:
        """Case 10: where the wait is over by its own clock, it is told so, and has left no lease behind."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        lease = tenant.leases.acquire("r", owner="a", ttl_seconds=60)
        waiter = start(lambda: other.leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=30))

        def over() -> bool:
            harness.advance_clients(31)  # again and again: it may not have begun yet
            return waiter.done

        until(over, "its time is over")
        with pytest.raises(LeaseBusyError):
            waiter.result()
        record = other.leases.inspect("r")
        assert record is not None
        assert (record.owner, record.token) == ("a", lease.fence.token)


class TestLateEnds:
    """P4 and P6: of two ends of one grant, one is it; the other waits, looks again, and touches nothing."""

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_release_behind_a_release_looks_again(self, harness: Harness, end: str) -> None:
        """Case 13: one release frees the lease, and the other is told that it was lost."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = _hold(harness)
        with suppress(LookupError), tenant.transaction() as tx:
            tx.leases.release(fence)
            second = start_waiting(harness, lambda: other.leases.release(fence))
            if end == "roll back":
                raise LookupError
        if end == "commit":
            with pytest.raises(FencingRejectedError):
                second.result()
        else:
            second.result()
        assert other.leases.inspect("r") is None

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_renewal_behind_a_release_looks_again(self, harness: Harness, end: str) -> None:
        """Or a lease that was given back would be held by nobody, and by its former holder too."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = _hold(harness)
        with suppress(LookupError), tenant.transaction() as tx:
            tx.leases.release(fence)
            renewal = start_waiting(harness, lambda: other.leases.renew(fence))
            if end == "roll back":
                raise LookupError
        if end == "commit":
            with pytest.raises(FencingRejectedError):
                renewal.result()
            assert other.leases.inspect("r") is None
            assert not other.leases.acquire("r", owner="b", ttl_seconds=60).taken_over
        else:
            assert renewal.result().fence == fence
            assert other.leases.renew(fence).fence == fence

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_revocation_behind_a_release_looks_again(self, harness: Harness, end: str) -> None:
        """Case 13: of a lease that ran out and is being released, a revocation says whether it took it from anybody."""
        tenant, operator = harness.tenant(), harness.tenant(client=1)
        fence = _hold(harness)
        harness.advance(61)
        with suppress(LookupError), tenant.transaction() as tx:
            tx.leases.release(fence)
            revocation = start_waiting(harness, lambda: operator.leases.revoke("r"))
            if end == "roll back":
                raise LookupError
        assert revocation.result() is (end == "roll back")
        assert operator.leases.inspect("r") is None

    def test_no_late_end_or_renewal_touches_the_successor_s_lease(self, harness: Harness) -> None:
        """Cases 12 and 13: what A does late leaves what B holds, and what comes after B lapsed, as it is."""
        leases = harness.tenant().leases
        old = leases.acquire("r", owner="a", ttl_seconds=60).fence
        for owner in ("b", "a"):  # the second has the late one's own name
            harness.advance(61)
            theirs = harness.tenant(client=1).leases
            successor = theirs.acquire("r", owner=owner, ttl_seconds=60, metadata={"of": owner})
            before = leases.inspect("r")
            for late in (leases.renew, leases.release):
                with pytest.raises(FencingRejectedError):
                    late(old)
            assert leases.inspect("r") == before
            assert leases.renew(successor.fence).metadata == {"of": owner}
        harness.advance(61)  # and when the last has lapsed too, nobody's renewal brings anything back
        for late in (leases.renew, leases.release):
            with pytest.raises(FencingRejectedError):
                late(old)
        record = leases.inspect("r")
        assert record is not None
        assert record.expired


def _hold(harness: Harness) -> Fence:
    """Make the record "s", and hold the lease "r" for a minute."""
    harness.tenant().states.create("s", "first")
    return harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60).fence
