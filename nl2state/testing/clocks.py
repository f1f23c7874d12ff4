"""The promise about time: the store's clock judges every deadline, and the client's wall clock none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias
from unittest.mock import patch

import pytest
from freezegun import freeze_time

from nl2state.errors import AttemptInFlightError, FencingRejectedError, LeaseBusyError, NotFoundError
from nl2state.idempotency import ReserveOptions
from nl2state.testing.calls import CALLS, Prepared, PublicCall, prepare, told
from nl2state.testing.harness import Harness

__all__ = ["Clock", "TestOneClock"]

_LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)

Clock: TypeAlias = Callable[[], AbstractContextManager[Callable[[float], object]]]
"""A wall clock of the client's for a block, and what moves it."""


@contextmanager
def _wall_clock(behind: timedelta | None) -> Iterator[Callable[[float], object]]:
    """Freeze this client's wall clock long ago, or let it run so far behind. Yields what moves it by seconds.

    Its monotonic clocks run on: they measure how long a call may take, and P8 does not speak of them.
    """
    monotonic = {
        f"fake_{name}": getattr(time, name) for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
    }
    shown = _LONG_AGO if behind is None else datetime.now(UTC) - behind
    with patch.multiple("freezegun.api", **monotonic), freeze_time(shown, tick=behind is not None) as clock:
        yield clock.tick


_CLOCKS: dict[str, Clock] = {
    "frozen": partial(_wall_clock, None),
    "an hour ahead": partial(_wall_clock, -_HOUR),
    "an hour behind": partial(_wall_clock, _HOUR),
}


@pytest.mark.parametrize("clock", _CLOCKS.values(), ids=_CLOCKS.keys())
class TestOneClock:
    """P8: every deadline is computed and judged by the store's clock; the client's wall clock is never used."""

    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_no_call_is_answered_otherwise(self, harness: Harness, call: PublicCall, clock: Clock) -> None:
        right = prepare(harness, "by the right clock")
        expected = told(lambda: call.run(right))
        with clock():
            wrong = prepare(harness, "by a wrong one")
            assert told(lambda: call.run(wrong)) == expected

    def test_a_stored_deadline_is_the_store_s_time_and_the_ttl(self, harness: Harness, clock: Clock) -> None:
        """The store's time is read off what it stores just before and just after, by a client whose clock is right."""
        harness.advance(86_400)
        tenant = harness.tenant()
        before = tenant.states.create("before", 1).created_at
        with clock():
            state = tenant.states.create("s", 1, ttl_seconds=37.5)
            longer = tenant.states.update("s", 2, expected_revision=1, ttl_seconds=370.5)
            put = tenant.states.put("put", 1, ttl_seconds=3.5)
            lease = tenant.leases.acquire("r", owner="a", ttl_seconds=37.5)
            renewed = tenant.leases.renew(lease.fence, ttl_seconds=370.5)
            attempt = tenant.idempotency.reserve(
                "k", request=1, result_ttl_seconds=3.5, attempt_ttl_seconds=37.5
            ).attempt
            reserved = tenant.idempotency.get("k")
            claim_until = tenant.idempotency.renew(attempt, ttl_seconds=370.5)
            tenant.idempotency.complete(attempt, 1)
            completed = tenant.idempotency.get("k")
        after = tenant.states.create("after", 1).created_at
        assert reserved is not None
        assert completed is not None
        assert completed.completed_at is not None
        for began, ends, ttl_seconds in (
            (state.created_at, state.expires_at, 37.5),
            (longer.updated_at, longer.expires_at, 370.5),
            (put.updated_at, put.expires_at, 3.5),
            (lease.acquired_at, lease.expires_at, 37.5),
            (reserved.reserved_at, reserved.claim_until, 37.5),
            (reserved.reserved_at, reserved.expires_at, 37.5),
            (completed.completed_at, completed.expires_at, 3.5),
        ):
            assert ends is not None
            assert before <= began <= after
            assert (ends - began).total_seconds() == pytest.approx(ttl_seconds, abs=0.1)
        for ends in (renewed.expires_at, claim_until):
            assert before <= ends - timedelta(seconds=370.5) <= after + timedelta(seconds=0.1)

    def test_nothing_expires_by_the_client_s_clock(self, harness: Harness, clock: Clock) -> None:
        with clock() as move:
            p = _with_lives(harness)
            move(7 * 86_400)
            _all_is_there(harness, p)

    def test_all_expires_by_the_store_s(self, harness: Harness, clock: Clock) -> None:
        with clock():
            p = _with_lives(harness)
            harness.advance(50)
            _all_is_there(harness, p)
            harness.advance(610)
            assert p.tenant.states.get("s-60") is None
            with pytest.raises(NotFoundError):
                p.tenant.states.update("s-60", 2, expected_revision=1)
            for write in (
                lambda: p.tenant.leases.renew(p.fence),
                lambda: p.tenant.states.create("late", 1, fence=p.fence),
                lambda: p.tenant.idempotency.renew(p.attempt),
            ):
                with pytest.raises(FencingRejectedError):
                    write()
            assert harness.tenant(client=1).leases.acquire(p.fence.resource, owner="b", ttl_seconds=60).taken_over
            assert not p.tenant.idempotency.reserve(
                p.done, request=p.request, result_ttl_seconds=60, attempt_ttl_seconds=60
            ).completed
            harness.advance(86_400 + 3_600)
            removed = harness.clients[0].system.retain()
            assert (removed.states, removed.leases, removed.idempotency) == (1, 1, 2)

    def test_a_holder_does_not_lose_its_lease_to_it(self, harness: Harness, clock: Clock) -> None:
        """Nor to a wall clock that is put right in the middle of its block."""
        tenant = harness.tenant()
        with tenant.hold("r", owner="a") as held:
            with clock() as move:
                move(86_400)
                assert not held.lost
                assert 25 < held.remaining_seconds <= 30
                with held.transaction() as tx:
                    tx.states.create("s", 1)
            assert not held.lost
        with clock(), tenant.hold("r", owner="a") as held:
            harness.advance_clients(31)
            assert held.lost

    def test_the_client_s_monotonic_clock_stops_early_and_judges_nothing(self, harness: Harness, clock: Clock) -> None:
        """By it a holder stops in time; what the store says of the lease, to anybody, is by the store's."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        with clock():
            lease = tenant.leases.acquire("r", owner="a", ttl_seconds=60)
            harness.advance_clients(3_600)
            with pytest.raises(LeaseBusyError):
                other.leases.acquire("r", owner="b", ttl_seconds=60)
            assert tenant.states.create("s", 1, fence=lease.fence).revision == 1
            renewed = tenant.leases.renew(lease.fence)
            assert renewed.deadline - lease.deadline == pytest.approx(3_600, abs=30)
            assert (renewed.expires_at - lease.expires_at).total_seconds() == pytest.approx(0, abs=30)


def _with_lives(harness: Harness) -> Prepared:
    """Make a scope whose lease, attempt and result have ten minutes, and a record that has one."""
    p = prepare(harness)
    p.tenant.states.create("s-60", 1, ttl_seconds=60)
    return p


def _all_is_there(harness: Harness, p: Prepared) -> None:
    other = harness.tenant(client=1)
    assert other.states.require("s-60").revision == 1
    assert other.states.list_ids(prefix="s-").items == ("s-60",)
    with pytest.raises(LeaseBusyError):
        other.leases.acquire(p.fence.resource, owner="b", ttl_seconds=60)
    listed = other.leases.inspect(p.fence.resource)
    assert listed is not None
    assert not listed.expired
    options: ReserveOptions = {"request": p.request, "result_ttl_seconds": 60, "attempt_ttl_seconds": 60}
    with pytest.raises(AttemptInFlightError):
        other.idempotency.reserve(p.attempt.key, **options)
    assert other.idempotency.reserve(p.done, **options).completed
    removed = harness.clients[0].system.retain()
    assert (removed.states, removed.leases, removed.idempotency) == (0, 0, 0)
