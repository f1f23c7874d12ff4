"""The heartbeat, beat by beat, on a clock of the test's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import create_autospec

import pytest

from nl2state import Fence, FencingRejectedError, Held, Lease, LeaseStore, StoreUnavailableError, Tenant, UsageError
from nl2state.toolkit.holding import Heartbeat

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A monotonic clock that stands still until it is moved."""

    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _lease(clock: Clock, ttl_seconds: float = 30.0) -> Lease:
    return Lease(
        fence=Fence("r", "a", 7),
        ttl_seconds=ttl_seconds,
        acquired_at=_NOW,
        expires_at=_NOW,
        deadline=clock() + ttl_seconds,
        taken_over=False,
    )


def _held(clock: Clock, renewals: LeaseStore) -> tuple[Held, Heartbeat]:
    heartbeat = Heartbeat(clock)
    held = Held(create_autospec(Tenant), _lease(clock), heartbeat, renewals)
    heartbeat._held.add(held)  # as keep() does, without its thread
    return held, heartbeat


def test_it_renews_at_a_third_of_the_ttl(clock: Clock) -> None:
    renewals = create_autospec(LeaseStore)
    renewals.renew.side_effect = lambda _: _lease(clock)
    held, heartbeat = _held(clock, renewals)
    for seconds, count in ((9.0, 0), (2.0, 1), (9.0, 1), (2.0, 2)):
        clock.seconds += seconds
        heartbeat.beat()
        assert renewals.renew.call_count == count
    assert held.remaining_seconds == 30


def test_a_renewal_that_fails_is_tried_again_until_the_deadline_and_not_after(clock: Clock) -> None:
    renewals = create_autospec(LeaseStore)
    renewals.renew.side_effect = StoreUnavailableError("away")
    held, heartbeat = _held(clock, renewals)
    clock.seconds += 10
    for _ in range(201):
        heartbeat.beat()
        clock.seconds += 0.1
    assert 5 < renewals.renew.call_count < 40
    assert held.lost
    before = renewals.renew.call_count
    clock.seconds += 100
    heartbeat.beat()
    assert renewals.renew.call_count == before


def test_a_renewal_that_is_refused_loses_the_lease_at_once(
    clock: Clock, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    renewals = create_autospec(LeaseStore)
    renewals.renew.side_effect = FencingRejectedError("lost")
    held, heartbeat = _held(clock, renewals)
    clock.seconds += 10
    heartbeat.beat()
    assert held.lost
    with pytest.raises(FencingRejectedError), held.transaction():
        pass
    assert [record.getMessage() for record in caplog.records] == ["lease lost"]
    assert capsys.readouterr().out == ""  # a service's stdout is its own


def test_a_renewal_that_fails_unexpectedly_ends_no_heartbeat(clock: Clock) -> None:
    renewals = create_autospec(LeaseStore)
    renewals.renew.side_effect = ZeroDivisionError
    held, heartbeat = _held(clock, renewals)
    clock.seconds += 10
    heartbeat.beat()
    renewals.renew.side_effect = lambda _: _lease(clock)
    clock.seconds += 10
    heartbeat.beat()
    assert held.remaining_seconds == 30


def test_the_most_urgent_is_renewed_first(clock: Clock) -> None:
    renewals = create_autospec(LeaseStore)
    order: list[str] = []
    renewals.renew.side_effect = lambda fence: order.append(fence.resource) or _lease(clock)  # type: ignore[func-returns-value]  # a note
    heartbeat = Heartbeat(clock)
    for name, left in (("later", 20.0), ("soon", 5.0), ("latest", 25.0)):
        lease = replace(_lease(clock), fence=Fence(name, "a", 1), deadline=clock() + 10 + left)
        heartbeat._held.add(Held(create_autospec(Tenant), lease, heartbeat, renewals))
    clock.seconds += 10
    heartbeat.beat()
    assert order == ["soon", "later", "latest"]


def test_a_heartbeat_that_is_closed_keeps_nothing(clock: Clock) -> None:
    held, heartbeat = _held(clock, create_autospec(LeaseStore))
    heartbeat.close()
    heartbeat.close()
    with pytest.raises(UsageError):
        heartbeat.keep(held)
