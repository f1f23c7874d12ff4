"""P8: the client's wall clock is never used, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from freezegun import freeze_time

from nl2state import Attempt, AttemptInFlightError, FencingRejectedError, Tenant
from nl2state.leases import elapsed_seconds
from nl2state.testing.harness import Harness

_HOUR = 3_600.0
_REAL = ["tests.memory", "tests.servers", "psycopg", "psycopg_pool", "threading", "queue"]
"""Whose clocks are the store's, and the waits of what is not ours: they stay."""


def _story(harness: Harness, skews: tuple[float, float]) -> list[object]:
    """Let two clients, whose wall clocks are off by so much, contend; return what each of them was told."""
    told: list[object] = []

    def as_client(number: int, call: Callable[[Tenant], object]) -> object:
        at = datetime.now(UTC) + timedelta(seconds=skews[number])
        with freeze_time(at, ignore=_REAL):  # it stands still, too
            result = call(harness.tenant(client=number))
        told.append(result if isinstance(result, (bool, int, str, type(None))) else type(result).__name__)
        return result

    def refused(call: Callable[[Tenant], object], error: type[Exception]) -> Callable[[Tenant], object]:
        def see(tenant: Tenant) -> object:
            with pytest.raises(error) as raised:
                call(tenant)
            return round(getattr(raised.value, "retry_after_seconds", 0) / 10)

        return see

    fences = []

    def acquire(tenant: Tenant) -> object:
        lease = tenant.leases.try_acquire("r", owner="a", ttl_seconds=60)
        fences.extend([lease.fence] if lease else [])
        return None if lease is None else round((lease.expires_at - lease.acquired_at).total_seconds())

    def reserve(tenant: Tenant) -> object:
        reserved = tenant.idempotency.reserve("k", request=1, result_ttl_seconds=60, attempt_ttl_seconds=60)
        attempts.extend([] if reserved.completed else [reserved.attempt])
        return reserved.outcome if reserved.completed else None

    attempts: list[Attempt] = []
    as_client(0, lambda tenant: tenant.states.create("s", "a", ttl_seconds=90).revision)
    as_client(0, acquire)
    as_client(0, reserve)
    for _ in range(2):
        as_client(1, acquire)
        as_client(1, refused(reserve, AttemptInFlightError))
        as_client(1, lambda tenant: tenant.states.require("s").revision)
        as_client(0, lambda tenant: tenant.leases.renew(fences[0]).fence == fences[0])
        as_client(0, lambda tenant: tenant.idempotency.renew(attempts[0]) is None)
        harness.advance(40)
    for seconds in (0, 21):
        harness.advance(seconds)
        as_client(1, lambda tenant: [record.expired for record in tenant.leases.list().items] == [True])
    as_client(1, acquire)
    as_client(1, reserve)
    as_client(0, refused(lambda tenant: tenant.leases.renew(fences[0]), FencingRejectedError))
    as_client(0, refused(lambda tenant: tenant.states.put("t", 1, fence=fences[0]), FencingRejectedError))
    as_client(0, lambda tenant: tenant.states.get("s"))
    as_client(1, lambda tenant: tenant.idempotency.complete(attempts[-1], "b's"))
    as_client(0, reserve)
    with freeze_time(datetime.now(UTC) + timedelta(seconds=skews[1]), ignore=_REAL):
        with harness.tenant(client=1).hold("q", owner="b", ttl_seconds=60) as held:
            told += [held.lost, round(held.remaining_seconds / 10)]
        swept = harness.clients[1].system.retain()
    told += [swept.states, swept.leases, swept.idempotency, len(fences), len(attempts)]
    assert fences[1].token > fences[0].token
    return told


@pytest.mark.parametrize("skews", [(0.0, 0.0), (_HOUR, -_HOUR), (-_HOUR, _HOUR), (-48 * _HOUR, 48 * _HOUR)])
def test_clients_whose_clocks_are_apart_are_told_the_same(harness: Harness, skews: tuple[float, float]) -> None:
    """Case 15: an hour apart, or days, either way: leases, attempts and records end when the store's clock says so."""
    assert _story(harness, skews) == [
        *(1, 60, None),
        *(None, 6, 1, True, False),
        *(None, 2, 1, True, False),
        *(False, True, 60, None, 0, 0, None, None, "b's"),
        *(False, 6),
        *(0, 0, 0, 2, 2),
    ]


def test_a_client_s_own_deadlines_are_not_read_off_its_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_asks() -> float:
        raise AssertionError

    monkeypatch.setattr("time.time", nobody_asks)
    assert elapsed_seconds() <= elapsed_seconds()
