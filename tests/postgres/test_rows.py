"""What the statements leave in the rows, where the promise rests on a column that no call returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from nl2state import Lease
from nl2state_postgres.leases import PostgresLeases
from nl2state_postgres.states import PostgresStates
from tests.servers import PostgresHarness


def _turn(harness: PostgresHarness) -> tuple[UUID, str | None]:
    row = harness.observer.execute(f"SELECT turn, owner FROM {harness.schema}.leases").fetchone()
    assert row is not None
    return row[0], row[1]


@pytest.mark.parametrize("end", ["release", "revocation", "takeover", "revocation of an expired one"])
def test_each_hand_over_changes_the_turn(harness: PostgresHarness, end: str) -> None:
    """P6: it makes the hand-over a key update, which no fenced write of an older snapshot can pass by."""
    leases = harness.tenant().leases
    lease = leases.acquire("r", owner="a", ttl_seconds=60)
    before, _ = _turn(harness)
    if end == "release":
        leases.release(lease.fence)
    elif end == "revocation":
        assert leases.revoke("r")
    else:
        harness.advance(61)
        if end == "takeover":
            assert leases.acquire("r", owner="b", ttl_seconds=60).taken_over
        else:
            assert leases.revoke("r")
    after, owner = _turn(harness)
    assert after != before
    assert owner == ("b" if end == "takeover" else None)


def test_a_renewal_and_an_acquire_of_a_free_lease_keep_the_turn(harness: PostgresHarness) -> None:
    """P6: else the heartbeat would wait behind the holder's own open write."""
    leases = harness.tenant().leases
    lease = leases.acquire("r", owner="a", ttl_seconds=60)
    turn = _turn(harness)
    leases.renew(lease.fence)
    assert _turn(harness) == turn
    leases.release(lease.fence)
    free, _ = _turn(harness)
    leases.acquire("r", owner="b", ttl_seconds=60)
    assert _turn(harness) == (free, "b")


def _between(states: PostgresStates, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Have somebody change the record between a write that is refused and the look for the reason."""
    session = states._binding.session
    row = session.row

    def row_late(name: str, values: dict[str, Any]) -> Any:
        if name == "explain_state":
            change()
        return row(name, values)

    monkeypatch.setattr(session, "row", row_late)


def test_a_refusal_whose_reason_has_gone_is_tried_again(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the record came to the expected revision, or was made or deleted, before it could be read why not."""
    states, other = harness.tenant().states, harness.tenant(client=1).states
    assert isinstance(states, PostgresStates)
    other.create("s", 1)
    changes: list[Callable[[], object]] = [
        lambda: other.update("s", "theirs", expected_revision=1),
        lambda: other.delete("t", expected_revision=1),
    ]

    def change() -> None:
        changes.pop(0)()

    _between(states, monkeypatch, change)
    assert states.update("s", "mine", expected_revision=2).revision == 3
    other.create("t", 1)
    assert states.create("t", "mine").revision == 3
    assert changes == []


def test_a_revocation_takes_no_lease_that_was_granted_after_its_first_half(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: who takes it over in between holds it; and it was taken from who held it before."""
    leases, other = harness.tenant().leases, harness.tenant(client=1).leases
    assert isinstance(leases, PostgresLeases)
    leases.acquire("r", owner="a", ttl_seconds=60)
    session, granted = leases._binding.session, list[Lease]()
    row = session.row

    def row_then_grant(name: str, values: dict[str, Any]) -> Any:
        found = row(name, values)
        if name == "expire_lease":
            granted.append(other.acquire("r", owner="b", ttl_seconds=60))
        return found

    monkeypatch.setattr(session, "row", row_then_grant)
    assert leases.revoke("r")
    assert other.renew(granted[0].fence).fence == granted[0].fence
