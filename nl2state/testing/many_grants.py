"""The promises about many leases and many keys: each is renewed, reserved and completed as by the call for one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from nl2state.errors import (
    AttemptInFlightError,
    FencingRejectedError,
    InvalidInputError,
    KeyConflictError,
    PayloadError,
)
from nl2state.idempotency import NO_REQUEST, Attempt, Completion, KeyRequest
from nl2state.leases import Fence
from nl2state.limits import Limits
from nl2state.payload import fingerprint
from nl2state.store import Tenant
from nl2state.testing.calls import plain, told
from nl2state.testing.harness import Harness
from nl2state.testing.refusals import leaks

__all__ = ["TestManyAttempts", "TestManyLeases"]

_MOST: Final = Limits().items_max
_PLANTED: Final = "planted-4711"
_LIVES: Final[dict[str, Any]] = {"result_ttl_seconds": 600.0, "attempt_ttl_seconds": 60.0}


class TestManyLeases:
    """P4: many leases are renewed at once, each that is still held, and none moves back."""

    @pytest.mark.parametrize("atomic", [True, False])
    @pytest.mark.parametrize("ttl_seconds", [None, 900.0, 1.0])
    def test_a_lease_is_renewed_as_by_the_call_for_one(
        self, harness: Harness, ttl_seconds: float | None, atomic: bool
    ) -> None:
        """For its own TTL, or for another that is given; and never for less than it has."""
        one, many = harness.tenant("one"), harness.tenant("many")
        lives = {"r": 60.0, "a": 600.0, "z": 120.0}
        fences = {
            tenant: [
                tenant.leases.acquire(name, owner=name, ttl_seconds=life, metadata={"m": name}).fence
                for name, life in lives.items()
            ]
            for tenant in (one, many)
        }
        granted = {name: many.leases.inspect(name) for name in lives}
        harness.advance(30)
        harness.advance_clients(30)
        expected = [one.leases.renew(fence, ttl_seconds=ttl_seconds) for fence in fences[one]]
        renewed = list(many.leases.renew_many(fences[many], ttl_seconds=ttl_seconds, atomic=atomic))
        assert [plain(lease) for lease in renewed] == [plain(lease) for lease in expected]
        assert [lease.fence for lease in renewed] == fences[many]
        for lease, other in zip(renewed, expected, strict=True):
            assert abs(lease.expires_at - other.expires_at) < timedelta(seconds=20)
            assert abs(lease.deadline - other.deadline) < 20
            stored, before = many.leases.inspect(lease.fence.resource), granted[lease.fence.resource]
            assert stored is not None
            assert before is not None
            assert (stored.expires_at, stored.token) == (lease.expires_at, lease.fence.token)
            if ttl_seconds == 1.0:
                assert stored.expires_at == before.expires_at
            else:
                assert stored.expires_at > before.expires_at

    def test_one_that_was_lost_is_refused_however_that_came(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        lost = [leases.acquire(f"lost-{n}", owner="a", ttl_seconds=60).fence for n in range(4)]
        held = [leases.acquire(f"held-{n}", owner="a", ttl_seconds=600).fence for n in range(3)]
        leases.release(lost[0])
        leases.revoke(lost[1].resource)
        harness.advance(61)
        theirs = harness.tenant(client=1).leases.acquire(lost[2].resource, owner="a", ttl_seconds=600)
        forged = [
            replace(held[1], token=held[1].token + 1),
            replace(held[2], owner="b"),
            Fence("nothing", "a", 1),
        ]
        before = leases.list()
        fences = [lost[3], held[0], *lost[:3], *forged]
        with pytest.raises(FencingRejectedError) as refused:
            leases.renew_many(fences, atomic=True)
        assert refused.value.index == 0
        assert leases.list() == before
        outcomes = leases.renew_many(fences, ttl_seconds=6_000, atomic=False)
        assert list(outcomes.refusals) == [0, *range(2, 8)]
        assert {type(error) for error in outcomes.refusals.values()} == {FencingRejectedError}
        assert outcomes[1].fence == held[0]
        after = {lease.resource: lease for lease in leases.list().items}
        moved = [lease.resource for lease in before.items if after[lease.resource] != lease]
        assert moved == [held[0].resource]
        assert leases.renew(theirs.fence).fence == theirs.fence

    def test_a_fence_that_cannot_be_is_named_by_its_index(self, harness: Harness) -> None:
        leases = harness.tenant().leases
        good = leases.acquire("r", owner="a", ttl_seconds=60).fence
        before = leases.list()
        for bad in (Fence(f"{_PLANTED}\n", "a", 1), Fence("q", "", 1), Fence("q", "a", -1), Fence("q", "a", True)):
            with pytest.raises(InvalidInputError) as refused:
                leases.renew_many([good, bad], ttl_seconds=600, atomic=False)
            assert (refused.value.field, refused.value.index) == ("fence", 1)
            assert leaks(refused.value, _PLANTED) == []
        assert leases.list() == before


class TestManyAttempts:
    """P7: many keys are reserved and completed at once, each with one live attempt and one outcome."""

    def test_a_key_is_reserved_as_by_the_call_for_one(self, harness: Harness) -> None:
        """New, completed, in flight, another's, or free again, in each of the ways in which a key can be."""
        one, many = harness.tenant("one"), harness.tenant("many")
        items = _stand(harness, one, many)
        expected = [
            told(
                lambda item=item: one.idempotency.reserve(  # type: ignore[misc]  # called at once
                    item.key,
                    request=item.request,
                    request_fingerprint=item.request_fingerprint,
                    record_id=item.record_id,
                    **_LIVES,
                )
            )
            for item in items
        ]
        before = {item.key: many.idempotency.get(item.key) for item in items}
        outcomes = many.idempotency.reserve_many(items, atomic=False, **_LIVES)
        found = [told(lambda index=index: outcomes[index]) for index in range(len(items))]  # type: ignore[misc]  # as above
        assert [_without_index(each) for each in found] == [_without_index(each) for each in expected]
        kinds = {index: type(error) for index, error in outcomes.refusals.items()}
        assert kinds == {3: AttemptInFlightError, 4: KeyConflictError, 5: KeyConflictError, 6: KeyConflictError}
        for index, item in enumerate(items):
            record, was = many.idempotency.get(item.key), before[item.key]
            assert record is not None
            if index in kinds or outcomes[index].completed:
                assert record == was
            else:
                assert record.attempt == outcomes[index].attempt
                assert (record.record_id, record.completed_at) == (item.record_id, None)
                assert (record.claim_until - record.reserved_at).total_seconds() == pytest.approx(60, abs=0.1)
                assert (record.expires_at - record.reserved_at).total_seconds() == pytest.approx(600, abs=0.1)
                assert was is None or record.attempt.number > was.attempt.number

    def test_the_numbers_of_a_key_rise_though_the_clock_steps_back(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        items, numbers = _items(*"zma"), [0, 0, 0]
        for _ in range(3):
            attempts = [reservation.attempt for reservation in keys.reserve_many(items, atomic=True, **_LIVES)]
            assert all(attempt.number > last for attempt, last in zip(attempts, numbers, strict=True))
            numbers = [attempt.number for attempt in attempts]
            harness.advance(-3_600)
            for attempt in attempts:
                keys.abandon(attempt)
            late = keys.complete_many([Completion(attempt, "late") for attempt in attempts], atomic=False)
            assert len(late.refusals) == 3

    def test_what_is_completed_is_none_s_refusal(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        keys.complete(keys.reserve("m", request=1, **_LIVES).attempt, None)
        outcomes = keys.reserve_many([KeyRequest(key, 1) for key in "zma"], atomic=True, **_LIVES)
        assert [reservation.completed for reservation in outcomes] == [False, True, False]
        assert outcomes[1].outcome is None
        again = keys.reserve_many([KeyRequest(key, 1) for key in "amz"], atomic=False, **_LIVES)
        assert list(again.refusals) == [0, 2]
        assert {type(error) for error in again.refusals.values()} == {AttemptInFlightError}
        assert all(50 < error.retry_after_seconds <= 60 for error in again.refusals.values())  # type: ignore[attr-defined]  # it is one
        with pytest.raises(AttemptInFlightError) as refused:
            keys.reserve_many([KeyRequest("new", 1), KeyRequest("z", 1)], atomic=True, **_LIVES)
        assert refused.value.index == 1
        assert keys.get("new") is None

    @pytest.mark.parametrize("atomic", [True, False])
    def test_attempts_are_completed_with_what_came_of_each(self, harness: Harness, atomic: bool) -> None:
        keys = harness.tenant().idempotency
        items = [KeyRequest(key, {"n": key}, record_id="s") for key in "dbca"]
        attempts = [reservation.attempt for reservation in keys.reserve_many(items, atomic=atomic, **_LIVES)]
        assert [attempt.key for attempt in attempts] == list("dbca")
        harness.advance(30)
        completions = [
            Completion(attempts[0], {"b": 1, "a": 2}),
            Completion(attempts[1], None),
            Completion(attempts[2], b"\x00"),
            Completion(attempts[3], outcome_fingerprint=fingerprint("secret")),
        ]
        assert list(keys.complete_many(completions, atomic=atomic)) == [None] * 4
        again = keys.reserve_many(items, atomic=atomic, **_LIVES)
        assert [reservation.completed for reservation in again] == [True] * 4
        assert [reservation.outcome for reservation in again[:3]] == [{"a": 2, "b": 1}, None, b"\x00"]
        assert again[3].outcome_fingerprint == fingerprint("secret")
        for record in keys.list(record_id="s").items:
            assert record.completed_at is not None
            assert (record.expires_at - record.completed_at).total_seconds() == pytest.approx(600, abs=0.1)
        harness.advance(601)
        assert [keys.get(key) for key in "abcd"] == [None] * 4

    def test_one_that_was_superseded_cannot_complete(self, harness: Harness) -> None:
        """Nor one that was completed, abandoned or forgotten, or whose key expired; one that ran out alone can."""
        keys = harness.tenant().idempotency
        names = ("superseded", "completed", "abandoned", "forgotten", "ran out")
        first = [reservation.attempt for reservation in keys.reserve_many(_items(*names), atomic=True, **_LIVES)]
        short = keys.reserve("expired", request=1, result_ttl_seconds=1, attempt_ttl_seconds=1).attempt
        keys.complete(first[1], "before")
        keys.abandon(first[2])
        keys.forget("forgotten")
        harness.advance(61)
        theirs = keys.reserve_many(_items("superseded"), atomic=True, **_LIVES)[0].attempt
        late = [*first, short, Attempt("nothing", 1), replace(first[4], key="nothing too")]
        outcomes = keys.complete_many([Completion(attempt, "late") for attempt in late], atomic=False)
        assert list(outcomes.refusals) == [0, 1, 2, 3, 5, 6, 7]
        assert {type(error) for error in outcomes.refusals.values()} == {FencingRejectedError}
        assert outcomes[4] is None
        keys.complete_many([Completion(theirs, "theirs")], atomic=True)
        again = keys.reserve_many(_items("superseded", "completed", "ran out"), atomic=True, **_LIVES)
        assert [reservation.outcome for reservation in again] == ["theirs", "before", "late"]

    def test_as_many_as_the_bound_are_reserved_and_completed(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        items = _items(*(f"k{number:04}" for number in reversed(range(_MOST))))
        reserved = keys.reserve_many(items, atomic=True, **_LIVES)
        assert [reservation.attempt.key for reservation in reserved] == [item.key for item in items]
        completions = [Completion(reservation.attempt, n) for n, reservation in enumerate(reserved)]
        assert keys.complete_many(completions, atomic=False).refusals == {}
        again = keys.reserve_many(items, atomic=False, **_LIVES)
        assert [reservation.outcome for reservation in again] == list(range(_MOST))

    @pytest.mark.parametrize(
        ("bad", "field"),
        [
            (KeyRequest(f"{_PLANTED}\n", 1), "key"),
            (KeyRequest("", 1), "key"),
            (KeyRequest("k", 1, record_id=f" {_PLANTED}"), "record_id"),
            (KeyRequest("k", {_PLANTED: object()}), "request"),  # type: ignore[dict-item]  # which is the point
            (KeyRequest("k"), "request"),
            (KeyRequest("k", _PLANTED, fingerprint(1)), "request"),
            (KeyRequest("k", NO_REQUEST, _PLANTED), "request_fingerprint"),
            (Completion(Attempt("k", 1)), "outcome"),
            (Completion(Attempt("k", 1), _PLANTED, fingerprint(1)), "outcome"),
            (Completion(Attempt("k", 1), {"password": _PLANTED}), "outcome"),
            (Completion(Attempt("k", 1), outcome_fingerprint=_PLANTED), "outcome_fingerprint"),
            (Completion(Attempt(f"{_PLANTED}\x00", 1), 1), "attempt"),
            (Completion(Attempt("k", -1), 1), "attempt"),
            (Completion(_PLANTED, 1), "attempt"),  # type: ignore[arg-type]  # as above
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_an_item_that_cannot_be_is_named_by_its_index_and_its_field(
        self, harness: Harness, bad: KeyRequest | Completion, field: str
    ) -> None:
        keys = harness.tenant().idempotency
        good = keys.reserve("good", request=1, **_LIVES).attempt
        before = keys.list()
        with pytest.raises(InvalidInputError) as refused:
            if isinstance(bad, KeyRequest):
                keys.reserve_many([KeyRequest("new", 1), bad], atomic=False, **_LIVES)
            else:
                keys.complete_many([Completion(good, 1), bad], atomic=False)
        assert (refused.value.field, refused.value.index) == (field, 1)
        assert leaks(refused.value, _PLANTED) == []
        if isinstance(refused.value, PayloadError):
            assert refused.value.code == "INVALID_PAYLOAD"
        assert keys.list() == before


def _stand(harness: Harness, *tenants: Tenant) -> list[KeyRequest]:
    """Let keys of these tenants be all that a key can be, and return a request for each."""
    lives: dict[str, dict[str, float]] = {"gone": {"result_ttl_seconds": 1.0, "attempt_ttl_seconds": 1.0}}
    for tenant in tenants:
        for key in ("ran out", "gone"):
            tenant.idempotency.reserve(key, request="another's" if key == "gone" else 1, **lives.get(key, _LIVES))
    harness.advance(61)
    for tenant in tenants:
        keys = tenant.idempotency
        made = {
            key: keys.reserve(key, request=1, **_LIVES).attempt
            for key in ("done", "digest", "flying", "ended", "forgotten", "another's outcome", "another's")
        }
        keys.reserve("of a record", request=1, record_id="s", **_LIVES)
        keys.complete(made["done"], {"charge": 1})
        keys.complete(made["digest"], outcome_fingerprint=fingerprint("secret"))
        keys.complete(made["another's outcome"], 1)
        keys.abandon(made["ended"])
        keys.forget("forgotten")
    return [
        KeyRequest("new", {"a": 1}),
        KeyRequest("done", 1),
        KeyRequest("digest", 1),
        KeyRequest("flying", 1),
        KeyRequest("another's", 2),
        KeyRequest("of a record", 1, record_id="t"),
        KeyRequest("another's outcome", 2),
        KeyRequest("ran out", 1),
        KeyRequest("gone", 1, record_id="s"),
        KeyRequest("ended", 2),
        KeyRequest("forgotten", 1),
        KeyRequest("fingerprint", request_fingerprint=fingerprint(1), record_id="t"),
    ]


def _items(*keys: str) -> list[KeyRequest]:
    return [KeyRequest(key, 1) for key in keys]


def _without_index(answer: Any) -> object:
    """Return what was told of a call, save which item it was about."""
    if answer[0] == "raised":
        return *answer[:3], {name: value for name, value in answer[3].items() if name != "index"}
    return answer
