"""The promises about what a lease says of itself: its metadata, and the record of who holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nl2state.errors import PayloadError
from nl2state.leases import LeaseRecord, Metadata
from nl2state.testing.harness import Harness, start, until

__all__ = ["TestInspection", "TestMetadata"]


class TestMetadata:
    """P4: what a holder says of its grant is kept with that grant, and with no other."""

    def test_it_is_returned_by_every_call_that_returns_the_lease(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        metadata: Metadata = {"host": "h-1", "pid": 17, "ü": ["\u0000", 2**64, None, {}]}
        lease = leases.acquire("r", owner="a", ttl_seconds=60, metadata=metadata)
        assert lease.metadata == metadata
        assert leases.renew(lease.fence).metadata == metadata
        assert leases.renew(lease.fence, ttl_seconds=600).metadata == metadata
        record = harness.tenant(client=1).leases.inspect("r")
        assert record is not None
        assert record.metadata == metadata
        tried = leases.try_acquire("s", owner="a", ttl_seconds=60, metadata={})
        assert tried is not None
        assert tried.metadata == {}

    def test_it_is_none_where_none_was_given(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        lease = leases.acquire("r", owner="a", ttl_seconds=60)
        assert lease.metadata is None
        assert leases.renew(lease.fence).metadata is None
        record = leases.inspect("r")
        assert record is not None
        assert record.metadata is None

    def test_it_does_not_change_with_the_object_that_was_given_or_returned(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        given: Metadata = {"step": 1}
        lease = leases.acquire("r", owner="a", ttl_seconds=60, metadata=given)
        given["step"] = 2
        assert lease.metadata == {"step": 1}
        assert lease.metadata is not None
        lease.metadata["step"] = 3
        assert leases.renew(lease.fence).metadata == {"step": 1}

    @pytest.mark.parametrize("end", ["released", "expired", "revoked"])
    def test_the_next_grant_has_its_own_or_none(self, harness: Harness, end: str) -> None:
        leases = harness.tenant().leases
        others: list[Metadata | None] = [None, {"holder": "second"}]
        for metadata in others:
            first = leases.acquire("r", owner="a", ttl_seconds=60, metadata={"holder": "first"})
            if end == "released":
                leases.release(first.fence)
            elif end == "revoked":
                leases.revoke("r")
            else:
                harness.advance(61)
            second = leases.acquire("r", owner="b", ttl_seconds=60, metadata=metadata)
            assert second.metadata == metadata
            record = leases.inspect("r")
            assert record is not None
            assert record.metadata == metadata
            leases.release(second.fence)

    def test_a_holder_gives_it_to_its_block(self, harness: Harness) -> None:
        with harness.tenant().hold("r", owner="a", metadata={"host": "h-1"}) as held:
            assert held.lease.metadata == {"host": "h-1"}
            record = harness.tenant(client=1).leases.inspect("r")
            assert record is not None
            assert record.metadata == {"host": "h-1"}

    @pytest.mark.parametrize(
        "metadata",
        [
            [],
            "text",
            7,
            b"{}",
            True,
            {"a": float("nan")},
            {"a": "\ud800"},
            {1: "a"},
            {"a": (1, 2)},
            {"password": "planted"},
            {"a": [{"Api-Key": "planted"}]},
            {"a": "x" * 4_096},
        ],
    )
    def test_what_it_cannot_be_is_refused_before_anything_is_granted(self, harness: Harness, metadata: Any) -> None:
        leases = harness.tenant().leases
        calls: list[Callable[[], object]] = [
            lambda: leases.acquire("r", owner="a", ttl_seconds=60, metadata=metadata),
            lambda: leases.try_acquire("r", owner="a", ttl_seconds=60, metadata=metadata),
            lambda: harness.tenant().hold("r", owner="a", metadata=metadata).__enter__(),
        ]
        for call in calls:
            with pytest.raises(PayloadError) as refused:
                call()
            assert refused.value.field == "metadata"
            assert "planted" not in str(refused.value)
        assert leases.inspect("r") is None

    def test_its_bound_is_of_its_canonical_bytes(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        assert leases.acquire("r", owner="a", ttl_seconds=60, metadata={"a": "x" * 4_088}).metadata is not None
        with pytest.raises(PayloadError) as refused:
            leases.acquire("s", owner="a", ttl_seconds=60, metadata={"a": "x" * 4_087 + "ü"})
        assert refused.value.limit == 4_096


class TestInspection:
    """P4 and P1: who holds a lease can be looked up, by anybody in its scope, without a lock."""

    def test_a_record_says_who_holds_it_and_since_when(self, harness: Harness) -> None:
        lease = harness.tenant().leases.acquire("r", owner="a", ttl_seconds=60)
        record = harness.tenant(client=1).leases.inspect("r")
        assert record == LeaseRecord(
            resource="r",
            owner="a",
            token=lease.fence.token,
            acquired_at=lease.acquired_at,
            expires_at=lease.expires_at,
            expired=False,
            metadata=None,
        )
        harness.advance(30)
        renewed = harness.tenant().leases.renew(lease.fence)
        record = harness.tenant(client=1).leases.inspect("r")
        assert record is not None
        assert record.expires_at == renewed.expires_at > lease.expires_at

    def test_an_expired_lease_is_its_holder_s_until_somebody_takes_it(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        leases.acquire("r", owner="a", ttl_seconds=60)
        harness.advance(61)
        record = leases.inspect("r")
        assert record is not None
        assert (record.owner, record.expired) == ("a", True)
        taken = leases.acquire("r", owner="b", ttl_seconds=60)
        record = leases.inspect("r")
        assert record is not None
        assert (record.owner, record.token, record.expired) == ("b", taken.fence.token, False)

    def test_a_free_resource_has_none(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        assert leases.inspect("r") is None
        leases.release(leases.acquire("r", owner="a", ttl_seconds=60).fence)
        assert leases.inspect("r") is None
        leases.acquire("r", owner="a", ttl_seconds=60)
        leases.revoke("r")
        assert leases.inspect("r") is None

    def test_a_lease_of_another_scope_is_not_seen(self, harness: Harness) -> None:
        harness.tenant("one").leases.acquire("r", owner="a", ttl_seconds=60)
        assert harness.tenant("two").leases.inspect("r") is None

    def test_an_inspection_waits_for_no_takeover_and_works_in_a_transaction(self, harness: Harness) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        with tenant.transaction(fence=fence) as tx:
            tx.states.create("s", 1)
            tx.leases.release(fence)
            assert tx.leases.inspect("r") is None
            inspection = start(lambda: other.leases.inspect("r"))
            until(lambda: inspection.done or harness.waiting() > 0, "the inspection ends")
            record = inspection.result()
            assert record is not None
            assert (record.owner, record.token) == ("a", fence.token)
