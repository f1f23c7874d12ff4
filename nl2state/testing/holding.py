"""The promises about a lease that is held for a block."""

from __future__ import annotations

from contextlib import suppress

import pytest

from nl2state.errors import FencingRejectedError, LeaseBusyError, StoreTimeoutError, UsageError
from nl2state.testing.harness import Capability, Harness, start, until

__all__ = ["TestHolding"]


class TestHolding:
    """P4 and P6, as the toolkit keeps them: the holder learns of a loss in time, and its late writes are refused."""

    def test_a_lease_is_held_for_the_block_and_free_after_it(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        with tenant.hold("r", owner="a") as held:
            assert 25 < held.remaining_seconds <= 30
            with pytest.raises(LeaseBusyError), other.hold("r", owner="b"):
                pass
        assert held.lost
        assert held.remaining_seconds == 0
        with other.hold("r", owner="b") as theirs:
            assert theirs.fence.token > held.fence.token

    def test_the_heartbeat_keeps_it(self, harness: Harness) -> None:
        with harness.tenant().hold("r", owner="a", ttl_seconds=3) as held:
            before = held.lease
            until(lambda: held.lease.expires_at > before.expires_at, "a renewal")
            assert held.lease.deadline > before.deadline
            assert held.fence == before.fence

    def test_the_heartbeat_keeps_it_while_the_body_has_its_transaction_open(self, harness: Harness) -> None:
        with harness.tenant().hold("r", owner="a", ttl_seconds=3) as held, held.transaction() as tx:
            tx.states.create("s", 1)
            before = held.lease
            until(lambda: held.lease.expires_at > before.expires_at, "a renewal")
            assert harness.waiting() == 0

    def test_every_write_of_its_transaction_carries_the_fence(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        attempt = tenant.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60).attempt
        with suppress(FencingRejectedError), tenant.hold("r", owner="a") as held, held.transaction() as tx:
            tx.states.create("s", 1)
            # the lease is lost to the store, and neither the holder nor its heartbeat knows
            revocation = start(lambda: other.leases.revoke("r"))
            until(lambda: harness.waiting() == 1, "the revocation waits for the open write")
            for late in (
                lambda: tx.states.create("t", 1),
                lambda: tx.states.update("s", 2, expected_revision=1),
                lambda: tx.states.delete("s", expected_revision=1),
                lambda: tx.idempotency.complete(attempt, "late"),
            ):
                with pytest.raises(FencingRejectedError):
                    late()
        assert revocation.result()
        assert tenant.states.require("s").value == 1
        assert tenant.states.get("t") is None

    def test_a_holder_that_was_stopped_knows_it_at_once(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.hold("r", owner="a") as held:
            harness.advance_clients(31)
            assert held.lost
            assert held.remaining_seconds == 0
            with pytest.raises(FencingRejectedError), held.transaction():
                pass

    def test_a_holder_counts_its_lease_from_before_it_asked(self, harness: Harness) -> None:
        with harness.tenant().hold("r", owner="a") as held:
            harness.advance_clients(29.98)  # within the drift that two clocks may have
            assert held.lost

    def test_a_lost_lease_is_told_when_the_block_ends(self, harness: Harness) -> None:
        with pytest.raises(FencingRejectedError), harness.tenant().hold("r", owner="a"):
            harness.tenant(client=1).leases.revoke("r")

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    def test_a_lease_whose_release_failed_is_renewed_no_more(self, harness: Harness) -> None:
        """P13: it runs out, or nobody would ever have it again."""
        tenant = harness.tenant_of(harness.bounded(lock_seconds=0.15))
        with harness.tenant().transaction() as tx:
            with pytest.raises(StoreTimeoutError), tenant.hold("r", owner="a", ttl_seconds=600) as held:
                tx.states.create("s", 1, fence=held.fence)  # which the release waits for
                granted = held.lease
            with tenant.hold("beside", owner="a", ttl_seconds=600) as beside:
                for number in range(2):  # in the second round, the first one is over
                    before = beside.lease
                    harness.advance_clients(201)
                    with tenant.hold(f"nudge {number}", owner="a", ttl_seconds=600):  # which has the heartbeat look
                        until(lambda: beside.lease is not before, "a renewal")  # noqa: B023  # it ends within the round
        record = harness.tenant().leases.inspect("r")
        assert record is not None
        assert record.expires_at == granted.expires_at

    def test_neither_the_body_s_error_nor_the_failed_release_hides_the_other(self, harness: Harness) -> None:
        with pytest.raises(LookupError) as raised, harness.tenant().hold("r", owner="a"):
            harness.tenant(client=1).leases.revoke("r")
            raise LookupError
        assert raised.value.__notes__ == ["the release of its lease failed too: FENCING_REJECTED"]

    def test_the_body_s_error_goes_through_and_the_lease_is_free(self, harness: Harness) -> None:
        with pytest.raises(LookupError) as raised, harness.tenant().hold("r", owner="a"):
            raise LookupError
        assert not getattr(raised.value, "__notes__", [])
        assert harness.tenant(client=1).leases.try_acquire("r", owner="b", ttl_seconds=60) is not None

    def test_it_is_released_by_the_commit_that_ends_the_work(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        with tenant.hold("r", owner="a") as held:
            with held.transaction() as tx:
                tx.states.create("s", 1)
                held.release(tx)
                assert other.leases.try_acquire("r", owner="b", ttl_seconds=60) is None
            assert held.released
            assert held.lost
            assert other.leases.try_acquire("r", owner="b", ttl_seconds=60) is not None

    def test_a_release_that_is_rolled_back_leaves_it_held(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.hold("r", owner="a", ttl_seconds=3) as held:
            with pytest.raises(LookupError), held.transaction() as tx:
                held.release(tx)
                raise LookupError
            before = held.lease
            until(lambda: held.lease.expires_at > before.expires_at, "a renewal")
            assert not held.released

    def test_a_release_in_a_savepoint_that_is_undone_leaves_it_held(self, harness: Harness) -> None:
        with harness.tenant().hold("r", owner="a", ttl_seconds=3) as held, held.transaction() as tx:
            with suppress(LookupError), tx.transaction():
                held.release(tx)
                raise LookupError
            tx.states.create("s", 1)
            before = held.lease
            until(lambda: held.lease.expires_at > before.expires_at, "a renewal")
            assert not held.released

    def test_a_release_that_is_open_keeps_no_other_lease_from_being_renewed(self, harness: Harness) -> None:
        """The renewal of the one waits for it, and is given up soon: there is one heartbeat for all."""
        tenant = harness.tenant()
        with tenant.hold("r", owner="a", ttl_seconds=3) as one, tenant.hold("q", owner="a", ttl_seconds=3) as two:
            with one.transaction() as tx:
                one.release(tx)
                before = two.lease
                until(lambda: two.lease.expires_at > before.expires_at or two.lost, "a renewal of the other")
                assert not two.lost
            assert one.released

    def test_it_is_not_released_beside_its_own_transaction(self, harness: Harness) -> None:
        with harness.tenant().hold("r", owner="a") as held, held.transaction() as tx:
            tx.states.create("s", 1)
            with pytest.raises(UsageError):
                held.release()

    def test_it_can_be_released_early(self, harness: Harness) -> None:
        with harness.tenant().hold("r", owner="a") as held:
            held.release()
            assert held.lost
            with harness.tenant(client=1).hold("r", owner="b"):
                pass

    def test_it_waits_for_a_lease_that_is_busy(self, harness: Harness) -> None:
        lease = harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60)

        def hold() -> str:
            with harness.tenant(client=1).hold("r", owner="b", wait_seconds=20) as held:
                return held.fence.owner

        waiter = start(hold)
        harness.tenant().leases.release(lease.fence)
        assert waiter.result() == "b"
