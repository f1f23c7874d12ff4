"""The promise about scopes: what is in another one is nobody else's business."""

from __future__ import annotations

import pytest

from nl2state.errors import FencingRejectedError
from nl2state.states import ANY_REVISION
from nl2state.testing.calls import CALLS, TENANT_CALLS, Prepared, PublicCall, prepare, told
from nl2state.testing.harness import Harness, start, until

__all__ = ["TestIsolation"]

_DAY = 86_400.0


class TestIsolation:
    """P1: no result, error or lock wait of one tenant depends on another scope's rows."""

    @pytest.mark.parametrize("call", TENANT_CALLS, ids=str)
    def test_a_call_is_answered_as_if_there_were_no_other_scope_and_touches_none(
        self, harness: Harness, call: PublicCall
    ) -> None:
        """The other has rows of the same names, all of which stand otherwise."""
        alone = prepare(harness, "alone")
        expected = told(lambda: call.run(alone))
        theirs = _contrary(harness)
        before = theirs.snapshot()
        mine = prepare(harness, "mine", client=1)
        assert told(lambda: call.run(mine)) == expected
        assert theirs.snapshot() == before

    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_no_call_waits_for_an_open_transaction_of_another_scope(self, harness: Harness, call: PublicCall) -> None:
        theirs = prepare(harness, "theirs")
        free = theirs.tenant.leases.acquire(theirs.absent, owner="a", ttl_seconds=600).fence
        mine = prepare(harness, "mine", client=1)
        with theirs.tenant.transaction() as tx:
            tx.states.update(theirs.record, 2, expected_revision=1, fence=theirs.fence)
            tx.states.create(theirs.absent, 2)
            tx.idempotency.complete(theirs.attempt, 2)
            tx.idempotency.forget(theirs.done)
            tx.leases.release(theirs.fence)
            tx.leases.release(free)
            running = start(lambda: call.run(mine))
            until(lambda: running.done or harness.waiting() > 0, "the call ends")
            assert harness.waiting() == 0
            running.result()

    @pytest.mark.parametrize("call", [call for call in CALLS if "fence" in call.parameters], ids=str)
    def test_a_fence_of_another_scope_guards_nothing(self, harness: Harness, call: PublicCall) -> None:
        """Not even where its resource is free, and its owner's name and its token could be anybody's."""
        theirs, mine = prepare(harness, "theirs"), prepare(harness, "mine", client=1)
        stranger = theirs.tenant.leases.acquire("only theirs", owner="a", ttl_seconds=600).fence
        before = mine.snapshot()
        if str(call) == "tenant.transaction":
            with mine.tenant.transaction(fence=stranger) as tx, pytest.raises(FencingRejectedError):
                tx.states.create("late", 1)
        else:
            with pytest.raises(FencingRejectedError):
                call.run(mine, fence=stranger)
        assert mine.snapshot() == before
        assert theirs.tenant.leases.renew(stranger).fence == stranger

    @pytest.mark.parametrize("call", [call for call in CALLS if "attempt" in call.parameters], ids=str)
    def test_an_attempt_of_another_scope_is_none(self, harness: Harness, call: PublicCall) -> None:
        theirs, mine = prepare(harness, "theirs"), prepare(harness, "mine", client=1)
        stranger = theirs.tenant.idempotency.reserve(
            "only theirs", request=1, result_ttl_seconds=600, attempt_ttl_seconds=600
        ).attempt
        before = mine.snapshot()
        with pytest.raises(FencingRejectedError):
            call.run(mine, attempt=stranger)
        assert mine.snapshot() == before
        theirs.tenant.idempotency.complete(stranger, "theirs")

    def test_a_list_shows_and_counts_its_own_scope_s_rows_alone(self, harness: Harness) -> None:
        """Pages of two: the rows of the others lie between, and neither fill a page nor end one."""
        scopes = ("one", "two", "three")
        for number in range(12):
            tenant, name = harness.tenant(scopes[number % 3], client=number % 2), f"n{number:02}"
            tenant.states.create(name, 1)
            tenant.leases.acquire(name, owner="a", ttl_seconds=60)
            tenant.idempotency.reserve(name, request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
        for number, scope in enumerate(scopes):
            tenant = harness.tenant(scope)
            own = [f"n{n:02}" for n in range(number, 12, 3)]
            assert [record.resource for record in tenant.leases.list().items] == own
            assert [record.attempt.key for record in tenant.idempotency.list().items] == own
            assert [record.id for record in tenant.states.list(prefix="n").items] == own
            first = tenant.states.list_ids(limit=2)
            assert (first.items, first.after) == (tuple(own[:2]), own[1])
            second = tenant.states.list_ids(limit=2, after=first.after)
            assert (second.items, second.after) == (tuple(own[2:]), None)
            assert tenant.leases.list(limit=3).after == own[2]
            assert tenant.idempotency.list(limit=4).after is None
        assert harness.tenant("nobody").states.list_ids().items == ()

    def test_two_scopes_hold_one_name_at_once(self, harness: Harness) -> None:
        with (
            harness.tenant("one").hold("r", owner="a") as one,
            harness.tenant("two", client=1).hold("r", owner="a") as two,
            one.transaction() as in_one,
            two.transaction() as in_two,
        ):
            in_one.states.create("s", "one's")
            in_two.states.create("s", "two's")
        assert [harness.tenant(name).states.require("s").value for name in ("one", "two")] == ["one's", "two's"]

    def test_rows_that_another_scope_has_locked_keep_no_clean_up_from_this_one(self, harness: Harness) -> None:
        for name in ("one", "two", "three"):
            tenant = harness.tenant(name)
            tenant.states.create("s", 1, ttl_seconds=60)
            tenant.states.create("t", 1)
            tenant.leases.acquire("r", owner="a", ttl_seconds=60)
        tenant = harness.tenant("two")
        fence = tenant.leases.acquire("q", owner="a", ttl_seconds=3 * _DAY).fence
        harness.advance(_DAY + 61)
        with tenant.transaction() as tx:
            tx.states.update("t", 2, expected_revision=ANY_REVISION, fence=fence)
            tx.states.put("s", 2)
            tidying = start(harness.client(1).system.retain)
            until(lambda: tidying.done or harness.waiting() > 0, "the clean-up ends")
            assert harness.waiting() == 0
            assert (tidying.result().states, tidying.result().leases) == (2, 3)
        assert tenant.states.require("s").value == 2
        assert [harness.tenant(name).states.get_revision("t") for name in ("one", "two", "three")] == [1, 2, 1]


def _contrary(harness: Harness) -> Prepared:
    """Make a scope in which all names of a prepared one stand otherwise."""
    theirs = prepare(harness, "theirs")
    tenant = theirs.tenant
    tenant.states.update(theirs.record, "theirs", expected_revision=1, status="failed", request_id="q")
    tenant.states.delete(theirs.ended, expected_revision=1)
    tenant.states.create(theirs.absent, "theirs", status="running")
    tenant.leases.release(theirs.fence)
    tenant.leases.acquire(theirs.fence.resource, owner="their own", ttl_seconds=60)
    tenant.leases.acquire(theirs.absent, owner="their own", ttl_seconds=60)
    tenant.idempotency.complete(theirs.attempt, "theirs")
    tenant.idempotency.forget(theirs.done)
    tenant.idempotency.reserve(
        theirs.absent, request="theirs", record_id="their own", result_ttl_seconds=60, attempt_ttl_seconds=60
    )
    return theirs
