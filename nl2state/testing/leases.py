"""The promises about leases, and the writes that they guard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from nl2state.errors import FencingRejectedError, InvalidInputError, LeaseBusyError
from nl2state.leases import Fence, Lease
from nl2state.states import ANY_REVISION
from nl2state.store import Tenant
from nl2state.testing.calls import CALLS, PublicCall, prepare
from nl2state.testing.harness import Harness, start, start_waiting, together, until

__all__ = ["TestExclusion", "TestFencedCommit"]


class TestExclusion:
    """P4: by the store's clock, at most one valid lease a resource; an expired one is refused."""

    def test_a_held_lease_is_busy_and_says_who_holds_it(self, harness: Harness) -> None:
        mine = harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60)
        theirs = harness.tenant(client=1).leases
        with pytest.raises(LeaseBusyError) as refused:
            theirs.acquire("r", owner="b", ttl_seconds=60)
        assert refused.value.owner == "a"
        assert refused.value.retryable
        assert 50 < refused.value.retry_after_seconds <= 60
        assert theirs.try_acquire("r", owner="b", ttl_seconds=60) is None
        assert harness.tenant().leases.renew(mine.fence).fence == mine.fence

    def test_an_owner_that_restarts_under_its_name_does_not_inherit(self, harness: Harness) -> None:
        harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60)
        assert harness.tenant(client=1).leases.try_acquire("r", owner="a", ttl_seconds=60) is None

    def test_of_many_that_acquire_one_does(self, harness: Harness) -> None:
        stores = [harness.tenant(client=n % 2).leases for n in range(8)]
        got = together(8, lambda n: stores[n].try_acquire("r", owner=f"o{n}", ttl_seconds=60))
        assert sum(isinstance(lease, Lease) for lease in got) == 1
        assert got.count(None) == 7

    def test_of_many_that_acquire_a_new_one_at_the_same_moment_all_are_answered(self, harness: Harness) -> None:
        stores = [harness.tenant(client=n % 2).leases for n in range(8)]
        for round_number in range(150):
            got = together(8, lambda n: stores[n].try_acquire(f"r{round_number}", owner="a", ttl_seconds=60))  # noqa: B023  # they end within the round
            assert sum(isinstance(lease, Lease) for lease in got) == 1
            assert got.count(None) == 7

    def test_of_many_that_take_an_expired_one_over_one_does(self, harness: Harness) -> None:
        harness.tenant().leases.acquire("r", owner="dead", ttl_seconds=60)
        harness.advance(61)
        stores = [harness.tenant(client=n % 2).leases for n in range(8)]
        got = together(8, lambda n: stores[n].try_acquire("r", owner=f"o{n}", ttl_seconds=60))
        assert sum(isinstance(lease, Lease) for lease in got) == 1
        assert got.count(None) == 7

    def test_the_store_keeps_the_ttl_that_was_asked_for(self, harness: Harness) -> None:
        lease = harness.tenant().leases.acquire("r", owner="a", ttl_seconds=37.5)
        assert (lease.expires_at - lease.acquired_at).total_seconds() == pytest.approx(37.5, abs=0.1)
        harness.advance(37)
        assert harness.tenant().leases.try_acquire("r", owner="b", ttl_seconds=1) is None
        harness.advance(1)
        assert harness.tenant().leases.try_acquire("r", owner="b", ttl_seconds=1) is not None

    def test_an_expired_lease_is_taken_over_and_a_released_one_is_not(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        lease = leases.acquire("r", owner="a", ttl_seconds=60)
        assert not lease.taken_over
        leases.release(lease.fence)
        assert not leases.acquire("r", owner="b", ttl_seconds=60).taken_over
        harness.advance(61)
        assert leases.acquire("r", owner="c", ttl_seconds=60).taken_over

    def test_an_expired_lease_is_refused_though_nobody_took_it(self, harness: Harness) -> None:
        tenant = harness.tenant()
        tenant.states.create("s", 1)
        lease = tenant.leases.acquire("r", owner="a", ttl_seconds=60)
        harness.advance(61)
        with pytest.raises(FencingRejectedError):
            tenant.leases.renew(lease.fence)
        with pytest.raises(FencingRejectedError):
            tenant.states.update("s", 2, expected_revision=1, fence=lease.fence)
        assert tenant.states.require("s").revision == 1

    def test_a_late_release_leaves_the_successor_s_lease(self, harness: Harness) -> None:
        """Case 13: A's late release is refused."""
        leases = harness.tenant().leases
        old = leases.acquire("r", owner="a", ttl_seconds=60)
        harness.advance(61)
        new = leases.acquire("r", owner="b", ttl_seconds=60)
        with pytest.raises(FencingRejectedError):
            leases.release(old.fence)
        assert leases.renew(new.fence).fence == new.fence

    def test_a_late_renewal_is_refused_after_the_successor_lapsed_too(self, harness: Harness) -> None:
        """Case 12: A's delayed renewal lands after B took over and lapsed."""
        leases = harness.tenant().leases
        old = leases.acquire("r", owner="a", ttl_seconds=60)
        harness.advance(61)
        leases.acquire("r", owner="b", ttl_seconds=60)
        harness.advance(61)
        with pytest.raises(FencingRejectedError):
            leases.renew(old.fence)

    def test_a_renewal_of_a_revoked_lease_makes_nothing_anew(self, harness: Harness) -> None:
        """Case 11: the holder is told that its lease is lost."""
        leases = harness.tenant().leases
        lease = leases.acquire("r", owner="a", ttl_seconds=60)
        assert harness.tenant(client=1).leases.revoke("r")
        with pytest.raises(FencingRejectedError):
            leases.renew(lease.fence)
        assert leases.try_acquire("r", owner="b", ttl_seconds=60) is not None

    def test_a_renewal_extends_can_be_sent_twice_and_never_shortens(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        lease = leases.acquire("r", owner="a", ttl_seconds=60)
        harness.advance(40)
        renewed = leases.renew(lease.fence)
        assert (renewed.expires_at - lease.expires_at).total_seconds() == pytest.approx(40, abs=1)
        assert leases.renew(lease.fence).expires_at >= renewed.expires_at
        assert leases.renew(lease.fence, ttl_seconds=1).expires_at >= renewed.expires_at
        longer = leases.renew(lease.fence, ttl_seconds=600)
        assert (longer.expires_at - renewed.expires_at).total_seconds() == pytest.approx(540, abs=1)
        assert leases.renew(lease.fence).ttl_seconds == 60

    def test_a_renewal_s_deadline_is_of_the_life_that_was_asked_for(self, harness: Harness) -> None:
        """A holder that renewed for a shorter time than its own is not to think that it has that."""
        leases = harness.tenant().leases
        for ttl_seconds, later in ((20, 10), (600, 590), (None, 50)):
            lease = leases.acquire(f"r{later}", owner="a", ttl_seconds=60)
            harness.advance_clients(50)
            harness.advance(50)
            renewed = leases.renew(lease.fence, ttl_seconds=ttl_seconds)
            assert renewed.deadline - lease.deadline == pytest.approx(later, abs=5)
            assert (renewed.expires_at - lease.expires_at).total_seconds() == pytest.approx(later, abs=5)

    def test_leases_of_other_resources_and_scopes_are_others(self, harness: Harness) -> None:
        one = harness.tenant("one").leases.acquire("r", owner="a", ttl_seconds=60)
        assert harness.tenant("one").leases.try_acquire("R", owner="a", ttl_seconds=60) is not None
        assert harness.tenant("two").leases.try_acquire("r", owner="b", ttl_seconds=60) is not None
        with pytest.raises(FencingRejectedError):
            harness.tenant("two").leases.renew(one.fence)
        assert not harness.tenant("three").leases.revoke("r")

    def test_a_waiter_gets_the_lease_that_is_released(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        lease = leases.acquire("r", owner="a", ttl_seconds=60)
        waiter = start(lambda: harness.tenant(client=1).leases.acquire("r", owner="b", ttl_seconds=60, wait_seconds=20))
        leases.release(lease.fence)
        assert waiter.result().fence.owner == "b"

    def test_a_life_that_is_over_before_it_is_heard_of_is_refused(self, harness: Harness) -> None:
        """Case 20: a TTL below the store's tolerance is refused at acquire."""
        leases = harness.tenant().leases
        for ttl_seconds in (0, -1, 0.01, float("nan"), float("inf"), True):
            with pytest.raises(InvalidInputError) as refused:
                leases.acquire("r", owner="a", ttl_seconds=ttl_seconds)
            assert refused.value.field == "ttl_seconds"


class TestFencedCommit:
    """P6: once a takeover, revocation or release has returned, no write with an older token can commit."""

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_takeover_waits_for_an_open_fenced_write(self, harness: Harness, end: str) -> None:
        old = _hold(harness)
        with suppress(_RolledBack), harness.tenant().transaction() as tx:
            tx.states.update("s", "old", expected_revision=1, fence=old)
            harness.advance(61)
            takeover = start_waiting(harness, lambda: _acquire(harness.tenant(client=1)))
            assert not takeover.done
            if end == "roll back":
                raise _RolledBack
        new = takeover.result()
        assert new.taken_over
        assert new.fence.token > old.token
        assert harness.tenant().states.require("s").value == ("old" if end == "commit" else "first")

    def test_a_release_waits_for_an_open_fenced_write(self, harness: Harness) -> None:
        fence = _hold(harness)
        with harness.tenant().transaction() as tx:
            tx.states.update("s", "in time", expected_revision=1, fence=fence)
            release = start_waiting(harness, lambda: harness.tenant(client=1).leases.release(fence))
        release.result()
        assert harness.tenant().states.require("s").value == "in time"
        _refused_everywhere(harness, fence)

    def test_a_revocation_waits_for_an_open_fenced_write_and_refuses_the_next_at_once(self, harness: Harness) -> None:
        fence = _hold(harness)
        with harness.tenant().transaction() as tx:
            tx.states.update("s", "in time", expected_revision=1, fence=fence)
            revocation = start_waiting(harness, lambda: harness.tenant(client=1).leases.revoke("r"))
            with pytest.raises(FencingRejectedError):
                tx.states.update("s", "too late", expected_revision=2, fence=fence)
            with pytest.raises(FencingRejectedError):
                harness.tenant(client=1).leases.renew(fence)
        assert revocation.result()
        assert harness.tenant().states.require("s").value == "in time"
        _refused_everywhere(harness, fence)

    def test_a_renewal_does_not_wait_for_an_open_fenced_write(self, harness: Harness) -> None:
        fence = _hold(harness)
        with harness.tenant().transaction() as tx:
            tx.states.update("s", "open", expected_revision=1, fence=fence)
            renewal = start(lambda: harness.tenant(client=1).leases.renew(fence))
            until(lambda: renewal.done or harness.waiting() > 0, "the renewal ends")
            assert harness.waiting() == 0
            assert renewal.result().fence == fence

    def test_a_busy_acquire_keeps_no_renewal_waiting(self, harness: Harness) -> None:
        fence = _hold(harness)
        with harness.tenant().transaction() as tx:
            tx.states.update("s", "open", expected_revision=1, fence=fence)
            attempt = start(lambda: harness.tenant(client=1).leases.try_acquire("r", owner="b", ttl_seconds=60))
            until(lambda: attempt.done or harness.waiting() > 0, "the acquire ends")
            assert harness.waiting() == 0
            assert attempt.result() is None

    def test_two_open_fenced_writes_of_one_lease_do_not_wait(self, harness: Harness) -> None:
        fence = _hold(harness)
        harness.tenant().states.create("t", 1)
        with harness.tenant().transaction() as one, harness.tenant(client=1).transaction() as two:
            one.states.update("s", "one", expected_revision=1, fence=fence)
            two.states.update("t", "two", expected_revision=1, fence=fence)

    def test_a_takeover_waits_for_each_open_fenced_write(self, harness: Harness) -> None:
        fence = _hold(harness)
        harness.tenant().states.create("t", 1)
        with harness.tenant().transaction() as one:
            with harness.tenant(client=1).transaction() as two:
                one.states.update("s", "one", expected_revision=1, fence=fence)
                two.states.update("t", "two", expected_revision=1, fence=fence)
                harness.advance(61)
                takeover = start_waiting(harness, lambda: _acquire(harness.tenant(client=1)))
            until(lambda: harness.waiting() == 1, "the takeover still waits")
            assert not takeover.done
        assert takeover.result().fence.token > fence.token

    def test_a_savepoint_that_is_undone_lets_go_of_the_lease(self, harness: Harness) -> None:
        fence = _hold(harness)
        with harness.tenant().transaction() as tx:
            with pytest.raises(_RolledBack), tx.transaction():
                tx.states.update("s", "undone", expected_revision=1, fence=fence)
                raise _RolledBack
            harness.advance(61)
            assert _acquire(harness.tenant(client=1)).taken_over
            with pytest.raises(FencingRejectedError):
                tx.states.update("s", "late", expected_revision=1, fence=fence)
        assert harness.tenant().states.require("s").value == "first"

    def test_a_takeover_waits_for_a_fenced_write_that_waits_itself(self, harness: Harness) -> None:
        """Case 18: the write has the lease and waits for the record's row; it commits before the takeover returns."""
        fence = _hold(harness)
        with harness.tenant().transaction() as tx:
            tx.states.update("s", "somebody's", expected_revision=1)
            write = start_waiting(
                harness,
                lambda: harness.tenant(client=1).states.update("s", "old", expected_revision=ANY_REVISION, fence=fence),
            )
            harness.advance(61)
            takeover = start_waiting(harness, lambda: _acquire(harness.tenant()))
        assert write.result().revision == 3
        assert takeover.result().taken_over
        assert harness.tenant().states.require("s").value == "old"

    def test_an_old_fence_is_refused_by_every_write(self, harness: Harness) -> None:
        fence = _hold(harness)
        harness.advance(61)
        _acquire(harness.tenant(client=1))
        _refused_everywhere(harness, fence)

    def test_a_release_in_a_transaction_counts_from_its_commit(self, harness: Harness) -> None:
        fence = _hold(harness)
        with pytest.raises(_RolledBack), harness.tenant().transaction(fence=fence) as tx:
            tx.states.update("s", "undone", expected_revision=1)
            tx.leases.release(fence)
            raise _RolledBack
        assert harness.tenant(client=1).leases.renew(fence).fence == fence
        with harness.tenant().transaction(fence=fence) as tx:
            tx.states.update("s", "done", expected_revision=1)
            tx.leases.release(fence)
            with pytest.raises(FencingRejectedError):
                tx.states.update("s", "after the release", expected_revision=2)
        assert harness.tenant(client=1).leases.try_acquire("r", owner="b", ttl_seconds=60) is not None
        _refused_everywhere(harness, fence)

    def test_a_fence_guards_any_record_of_its_scope_and_none_of_another(self, harness: Harness) -> None:
        fence = _hold(harness)
        assert harness.tenant().states.create("another", 1, fence=fence).revision == 1
        with pytest.raises(FencingRejectedError):
            harness.tenant("other").states.create("another", 1, fence=fence)

    def test_a_fence_is_one_value(self, harness: Harness) -> None:
        """Case 19: an owner without a token, or a token without one, is no fence, and never an unfenced write."""
        fence = _hold(harness)
        forged: list[Fence] = [
            Fence("r", "a", fence.token + 1),
            Fence("r", "a", fence.token - 1),
            Fence("r", "b", fence.token),
            Fence("q", "a", fence.token),
        ]
        for other in forged:
            with pytest.raises(FencingRejectedError):
                harness.tenant().states.update("s", "forged", expected_revision=1, fence=other)
        for nonsense in (fence.token, "r", ("r", "a", fence.token), Fence("r", "", 1), Fence("r", "a", None)):  # type: ignore[arg-type]  # which is the point
            with pytest.raises(InvalidInputError):
                harness.tenant().states.update("s", "forged", expected_revision=1, fence=nonsense)  # type: ignore[arg-type]  # as above
        with pytest.raises(TypeError):
            Fence("r", "a")  # type: ignore[call-arg]  # as above
        assert harness.tenant().states.require("s").value == "first"

    @pytest.mark.parametrize("call", [call for call in CALLS if "fence" in call.parameters], ids=str)
    def test_every_call_compares_all_of_a_fence(self, harness: Harness, call: PublicCall) -> None:
        """Case 19: its resource, its owner and its token, each of which another grant may share."""
        p = prepare(harness)
        other = p.tenant.leases.acquire("another", owner="b", ttl_seconds=600).fence
        before = p.snapshot()
        for forged in (
            replace(p.fence, token=p.fence.token + 1),
            replace(p.fence, token=p.fence.token - 1),
            replace(p.fence, owner=other.owner),
            replace(p.fence, resource=other.resource),
            replace(p.fence, resource=p.absent),
        ):
            with pytest.raises(FencingRejectedError):
                if call.noun == "tenant":
                    with p.tenant.transaction(fence=forged) as tx:
                        tx.states.put(p.record, "forged")
                else:
                    call.run(p, fence=forged)
        assert p.snapshot() == before


class _RolledBack(Exception):  # noqa: N818  # it says what is to happen
    """Raised by a test to undo its transaction."""


def _hold(harness: Harness) -> Fence:
    """Make the record "s", and hold the lease "r" for a minute."""
    harness.tenant().states.create("s", "first")
    return harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60).fence


def _acquire(tenant: Tenant) -> Lease:
    return tenant.leases.acquire("r", owner="b", ttl_seconds=60)


def _refused_everywhere(harness: Harness, fence: Fence) -> None:
    """See every kind of write refuse the fence, alone and in a transaction, and leave nothing behind."""
    tenant = harness.tenant()
    before = tenant.states.require("s")
    attempt = tenant.idempotency.reserve(
        f"k{fence.token}", request=None, result_ttl_seconds=60, attempt_ttl_seconds=60
    ).attempt
    writes: list[Callable[[], object]] = [
        lambda: tenant.states.create("new", 1, fence=fence),
        lambda: tenant.states.update("s", "late", expected_revision=ANY_REVISION, fence=fence),
        lambda: tenant.states.put("s", "late", fence=fence),
        lambda: tenant.states.delete("s", expected_revision=ANY_REVISION, fence=fence),
        lambda: tenant.idempotency.complete(attempt, "late", fence=fence),
        lambda: tenant.idempotency.abandon(attempt, fence=fence),
        lambda: tenant.idempotency.forget(attempt.key, fence=fence),
        lambda: tenant.leases.renew(fence),
        lambda: tenant.leases.release(fence),
    ]
    for write in writes:
        with pytest.raises(FencingRejectedError):
            write()
    with tenant.transaction(fence=fence) as tx:
        for late in (
            lambda: tx.states.create("new", 1),
            lambda: tx.states.update("s", "late", expected_revision=ANY_REVISION),
            lambda: tx.states.put("s", "late"),
            lambda: tx.states.delete("s", expected_revision=ANY_REVISION),
            lambda: tx.idempotency.complete(attempt, "late"),
            lambda: tx.idempotency.abandon(attempt),
            lambda: tx.idempotency.forget(attempt.key),
        ):
            with pytest.raises(FencingRejectedError):
                late()
    assert tenant.states.require("s") == before
    assert tenant.states.get("new") is None
    tenant.idempotency.abandon(attempt)
