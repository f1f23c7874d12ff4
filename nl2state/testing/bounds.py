"""The promises about bounds: of what is waited for, of what is listed, and of every input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nl2state.errors import AttemptInFlightError, BusyError, InvalidInputError, LeaseBusyError, StoreTimeoutError
from nl2state.idempotency import Attempt
from nl2state.leases import Fence
from nl2state.limits import INTEGER_MAX, Limits
from nl2state.testing.calls import CALLS, PublicCall, prepare
from nl2state.testing.harness import Call, Capability, Harness, start, start_waiting, until

__all__ = ["TestBoundedInputs", "TestBoundedLists", "TestBoundedWaits"]

_SHORT_SECONDS = 0.15
_LIMITS = Limits()
_NAME = "n" * (_LIMITS.id_bytes_max + 1)
_WIDE = "ü" * (_LIMITS.id_bytes_max // 2 + 1)
_DEEP: Any = 1
for _ in range(_LIMITS.payload_depth_max + 1):
    _DEEP = [_DEEP]
_LARGE = b"x" * (_LIMITS.payload_bytes_max + 1)

_BEYOND: dict[str, tuple[tuple[object, float], ...]] = {
    **dict.fromkeys(
        ("record_id", "resource", "owner", "key", "request_id", "parent_id", "expected_status", "after", "prefix"),
        ((_NAME, _LIMITS.id_bytes_max), (_WIDE, _LIMITS.id_bytes_max)),
    ),
    **dict.fromkeys(("value", "outcome"), ((_DEEP, _LIMITS.payload_depth_max), (_LARGE, _LIMITS.payload_bytes_max))),
    "request": ((_DEEP, _LIMITS.payload_depth_max),),
    "metadata": (
        ({"m": "x" * _LIMITS.metadata_bytes_max}, _LIMITS.metadata_bytes_max),
        ({"m": _DEEP}, _LIMITS.payload_depth_max),
    ),
    **dict.fromkeys(
        ("ttl_seconds", "result_ttl_seconds", "attempt_ttl_seconds"),
        (
            (_LIMITS.ttl_seconds_max * 1.01, _LIMITS.ttl_seconds_max),
            (_LIMITS.lease_ttl_seconds_min * 0.99, _LIMITS.lease_ttl_seconds_min),
        ),
    ),
    "wait_seconds": ((_LIMITS.wait_seconds_max + 1, _LIMITS.wait_seconds_max),),
    "schema_version": ((INTEGER_MAX + 1, INTEGER_MAX),),
    "expected_revision": ((INTEGER_MAX + 1, INTEGER_MAX),),
    "limit": ((10_001, 10_000),),
    "terminal_age_seconds": ((_LIMITS.ttl_seconds_max * 1.01, _LIMITS.ttl_seconds_max),),
    "expired_age_seconds": ((_LIMITS.ttl_seconds_max * 1.01, _LIMITS.ttl_seconds_max), (3_599, 3_600)),
    **dict.fromkeys(("items", "fences", "record_ids"), (([_NAME] * (_LIMITS.items_max + 1), _LIMITS.items_max),)),
    "attempt": ((Attempt(_NAME, 1), _LIMITS.id_bytes_max),),
    "fence": ((Fence(_NAME, "a", 1), _LIMITS.id_bytes_max), (Fence("r", _NAME, 1), _LIMITS.id_bytes_max)),
}
"""For each input that has a size, one beyond its bound, and the bound that the refusal names."""

_WITHOUT_A_SIZE = {"atomic", "lifecycle", "status", "request_fingerprint", "outcome_fingerprint"}
"""One of a set, or of one size alone."""
_BOUNDED = [
    (call, name)
    for call in CALLS
    for name in call.parameters
    if name not in _WITHOUT_A_SIZE and (str(call), name) != ("system.retain", "after")
]


class TestBoundedWaits:
    """P11: every call ends by its deadline, whoever holds what it waits for."""

    def test_a_call_that_was_told_to_wait_ends_when_its_wait_is_over(self, harness: Harness) -> None:
        p = prepare(harness)
        other = harness.tenant(client=1)
        with pytest.raises(LeaseBusyError) as busy:
            other.leases.acquire(p.fence.resource, owner="b", ttl_seconds=60, wait_seconds=_SHORT_SECONDS)
        assert busy.value.owner == p.owner
        with pytest.raises(AttemptInFlightError):
            other.idempotency.reserve(
                p.attempt.key,
                request=p.request,
                result_ttl_seconds=60,
                attempt_ttl_seconds=60,
                wait_seconds=_SHORT_SECONDS,
            )
        block = other.hold(p.fence.resource, owner="b", wait_seconds=_SHORT_SECONDS)
        with pytest.raises(LeaseBusyError):
            block.__enter__()

    @pytest.mark.parametrize("noun", ["lease", "key"])
    def test_its_wait_is_counted_by_its_own_clock(self, harness: Harness, noun: str) -> None:
        """The store's may be moved by as much as somebody likes: back, so that nothing runs out."""
        p = prepare(harness)
        other = harness.tenant(client=1)
        waits: dict[str, Callable[[], object]] = {
            "lease": lambda: other.leases.acquire(p.fence.resource, owner="b", ttl_seconds=60, wait_seconds=3_000),
            "key": lambda: other.idempotency.reserve(
                p.attempt.key, request=p.request, result_ttl_seconds=60, attempt_ttl_seconds=60, wait_seconds=3_000
            ),
        }
        harness.advance(-3_600)
        call = start(waits[noun])
        until(lambda: _moved_on(harness, call), "the call ends")
        with pytest.raises(BusyError):
            call.result()

    def test_one_that_was_not_told_to_wait_does_not(self, harness: Harness) -> None:
        p = prepare(harness)
        call = start(lambda: harness.tenant(client=1).leases.try_acquire(p.fence.resource, owner="b", ttl_seconds=60))
        assert call.result() is None

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    @pytest.mark.parametrize("noun", ["update", "put", "delete", "create", "complete", "forget", "release", "revoke"])
    def test_a_call_that_waits_for_a_lock_ends_by_the_store_s_bound_and_keeps_nothing(
        self, harness: Harness, noun: str
    ) -> None:
        p = prepare(harness)
        other = harness.tenant_of(harness.bounded(lock_seconds=_SHORT_SECONDS))
        calls: dict[str, Callable[[], object]] = {
            "update": lambda: other.states.update(p.record, "late", expected_revision=1),
            "put": lambda: other.states.put(p.record, "late"),
            "delete": lambda: other.states.delete(p.record, expected_revision=1),
            "create": lambda: other.states.create(p.absent, "late"),
            "complete": lambda: other.idempotency.complete(p.attempt, "late"),
            "forget": lambda: other.idempotency.forget(p.attempt.key),
            "release": lambda: other.leases.release(p.fence),
            "revoke": lambda: other.leases.revoke(p.fence.resource),
        }
        with p.tenant.transaction() as tx:
            tx.states.update(p.record, "in time", expected_revision=1, fence=p.fence)
            tx.states.create(p.absent, "in time")
            tx.idempotency.complete(p.attempt, "in time")
            with pytest.raises(StoreTimeoutError) as refused:
                calls[noun]()
            assert refused.value.retryable
        assert p.tenant.states.require(p.record).value == "in time"
        assert p.tenant.states.require(p.absent).value == "in time"
        completed = p.tenant.idempotency.get(p.attempt.key)
        assert completed is not None
        assert completed.outcome == "in time"
        listed = p.tenant.leases.inspect(p.fence.resource)
        assert listed is not None
        assert listed.expired is (noun == "revoke")  # whose first half was made: its doc says so

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    def test_a_shorter_bound_ends_a_later_wait_sooner(self, harness: Harness) -> None:
        p = prepare(harness)
        other = harness.tenant_of(harness.bounded(lock_seconds=_SHORT_SECONDS))
        with p.tenant.transaction() as tx:
            tx.states.delete(p.record, expected_revision=1)
            patient = start_waiting(harness, lambda: harness.tenant(client=1).states.put(p.record, "late"))
            with pytest.raises(StoreTimeoutError):
                other.states.put(p.record, "too late")
            assert not patient.done
        assert patient.result().revision == 3

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    def test_one_that_waits_for_an_ending_grant_or_attempt_is_told_that_it_is_busy_yet(self, harness: Harness) -> None:
        p = prepare(harness)
        other = harness.tenant_of(harness.bounded(lock_seconds=_SHORT_SECONDS))
        with p.tenant.transaction() as tx:
            tx.states.update(p.record, "open", expected_revision=1, fence=p.fence)
            tx.idempotency.complete(p.attempt, "open")
            harness.advance(601)
            for call in (
                lambda: other.leases.acquire(p.fence.resource, owner="b", ttl_seconds=60),
                lambda: other.idempotency.reserve(
                    p.attempt.key, request=p.request, result_ttl_seconds=60, attempt_ttl_seconds=60
                ),
            ):
                with pytest.raises(BusyError) as refused:
                    call()
                assert refused.value.retryable
                assert refused.value.retry_after_seconds == 0
            assert other.leases.try_acquire(p.fence.resource, owner="b", ttl_seconds=60) is None

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    def test_a_transaction_one_of_whose_calls_ran_out_of_time_keeps_nothing(self, harness: Harness) -> None:
        p = prepare(harness)
        other = harness.tenant_of(harness.bounded(lock_seconds=_SHORT_SECONDS))
        with p.tenant.transaction() as tx:
            tx.states.update(p.record, "in time", expected_revision=1)
            with pytest.raises(StoreTimeoutError), other.transaction() as late:
                late.states.create("beside", 1)
                late.states.update(p.record, "late", expected_revision=1)
        assert p.tenant.states.get("beside") is None


class TestBoundedLists:
    """P11: a list that nobody bounded is a page, and a clean-up that nobody bounded is one too."""

    def test_a_list_without_a_limit_is_a_page(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with tenant.transaction() as tx:
            for number in range(101):
                tx.states.create(f"n{number:03}", 1)
        for number in range(101):
            tenant.leases.acquire(f"n{number:03}", owner="a", ttl_seconds=60)
            tenant.idempotency.reserve(f"n{number:03}", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
        for page in (
            tenant.states.list(),
            tenant.states.list_ids(),
            tenant.leases.list(),
            tenant.idempotency.list(),
        ):
            assert len(page.items) == 100
            assert page.after == "n099"

    @pytest.mark.parametrize("call", [call for call in CALLS if "limit" in call.parameters], ids=str)
    def test_a_limit_is_taken_up_to_its_bound(self, harness: Harness, call: PublicCall) -> None:
        most = 10_000 if call.noun == "system" else _LIMITS.page_size_max
        p = prepare(harness)
        call.run(p, limit=most)
        with pytest.raises(InvalidInputError) as refused:
            call.run(p, limit=most + 1)
        assert (refused.value.field, refused.value.limit) == ("limit", most)

    def test_every_call_that_returns_many_takes_a_limit(self) -> None:
        """Those for many are bounded by how many they are given."""
        for call in CALLS:
            if call.name.startswith("list") or call.noun == "system":
                assert "limit" in call.parameters
                assert "after" in call.parameters


class TestBoundedInputs:
    """P11: every input has a bound, which is checked before the backend is asked, and which the refusal names."""

    @pytest.mark.parametrize(("call", "name"), _BOUNDED, ids=str)
    def test_what_is_beyond_a_bound_is_refused(self, harness: Harness, call: PublicCall, name: str) -> None:
        p = prepare(harness)
        before = p.snapshot()
        for value, limit in _BEYOND[name]:
            with pytest.raises(InvalidInputError) as refused:
                call.run(p, **{name: value})
            assert refused.value.field == name
            assert refused.value.limit == limit or name == "limit"
            assert not refused.value.retryable
        assert p.snapshot() == before


def _moved_on(harness: Harness, call: Call[object]) -> bool:
    harness.advance_clients(3_001)  # again and again: it may not have begun yet
    return call.done
