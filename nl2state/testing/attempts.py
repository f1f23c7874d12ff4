"""The promises about attempts that are renewed, and about outcomes of which only the fingerprint is kept."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from nl2state.errors import AttemptInFlightError, FencingRejectedError, InvalidInputError, UsageError
from nl2state.idempotency import IdempotencyRecord, Reservation
from nl2state.payload import fingerprint
from nl2state.store import Tenant
from nl2state.testing.harness import Harness, start_waiting

__all__ = ["TestOutcomeFingerprints", "TestRenewedAttempts"]

_DAY = 86_400.0
_DIGEST = fingerprint({"charge": "ch_1"})


class TestRenewedAttempts:
    """P7: an attempt that is renewed in time stays the only one."""

    def test_a_renewed_attempt_is_in_flight_for_its_own_life_from_then(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant()).attempt
        for _ in range(3):
            harness.advance(59)
            claim_until = harness.tenant().idempotency.renew(attempt)
            assert claim_until == _record(harness.tenant()).claim_until
        with pytest.raises(AttemptInFlightError) as refused:
            _reserve(harness.tenant(client=1))
        assert 50 < refused.value.retry_after_seconds <= 60
        harness.tenant().idempotency.complete(attempt, "done")
        assert _reserve(harness.tenant(client=1)).outcome == "done"

    def test_a_renewal_can_be_longer_can_be_sent_twice_and_never_shortens(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        attempt = _reserve(harness.tenant()).attempt
        first = _record(harness.tenant()).claim_until
        assert keys.renew(attempt, ttl_seconds=1) == first
        longer = keys.renew(attempt, ttl_seconds=600)
        assert (longer - first).total_seconds() == pytest.approx(540, abs=1)
        assert keys.renew(attempt) == longer
        assert keys.renew(attempt, ttl_seconds=600) >= longer
        harness.advance(590)
        with pytest.raises(AttemptInFlightError):
            _reserve(harness.tenant(client=1))

    def test_a_renewed_attempt_outlives_the_result_s_life_and_can_complete(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant(), result_ttl_seconds=1).attempt
        harness.tenant().idempotency.renew(attempt, ttl_seconds=600)
        record = _record(harness.tenant())
        assert record.expires_at >= record.claim_until
        harness.advance(590)
        with pytest.raises(AttemptInFlightError):
            _reserve(harness.tenant(client=1))
        harness.tenant().idempotency.complete(attempt, "late")
        record = _record(harness.tenant())
        assert record.completed_at is not None
        assert (record.expires_at - record.completed_at).total_seconds() == pytest.approx(1, abs=0.1)

    def test_a_renewal_does_not_shorten_the_key_s_life(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant(), result_ttl_seconds=_DAY).attempt
        before = _record(harness.tenant()).expires_at
        harness.tenant().idempotency.renew(attempt)
        assert _record(harness.tenant()).expires_at == before

    @pytest.mark.parametrize(
        "end", ["ran out", "superseded", "completed", "abandoned", "forgotten", "expired", "swept"]
    )
    def test_an_attempt_that_is_over_is_not_renewed_and_nothing_is_made_anew(self, harness: Harness, end: str) -> None:
        tenant, keys = harness.tenant(), harness.tenant().idempotency
        attempt = _reserve(tenant, result_ttl_seconds=600).attempt
        if end in ("ran out", "superseded"):
            harness.advance(61)
        if end == "superseded":
            _reserve(harness.tenant(client=1))
        elif end == "completed":
            keys.complete(attempt, "done")
        elif end == "abandoned":
            keys.abandon(attempt)
        elif end == "forgotten":
            assert keys.forget("k")
        elif end in ("expired", "swept"):
            harness.advance(_DAY + 601)
        if end == "swept":
            assert harness.clients[0].system.retain().idempotency == 1
        before = keys.get("k")
        for ttl_seconds in (None, 600):
            with pytest.raises(FencingRejectedError):
                keys.renew(attempt, ttl_seconds=ttl_seconds)
        assert keys.get("k") == before

    @pytest.mark.parametrize("end", ["abandoned", "forgotten"])
    def test_an_attempt_that_was_ended_stays_ended_though_the_clock_steps_back(
        self, harness: Harness, end: str
    ) -> None:
        """By the clock alone, its time would come again."""
        tenant, keys = harness.tenant(), harness.tenant().idempotency
        attempt = _reserve(tenant, result_ttl_seconds=_DAY).attempt
        harness.advance(30)
        if end == "abandoned":
            keys.abandon(attempt)
        else:
            assert keys.forget("k")
        harness.advance(-20)
        for late in (
            lambda: keys.renew(attempt),
            lambda: keys.complete(attempt, "late"),
            lambda: keys.abandon(attempt),
        ):
            with pytest.raises(FencingRejectedError):
                late()
        with tenant.transaction() as tx, pytest.raises(FencingRejectedError):
            tx.idempotency.complete(attempt, "late")
        harness.advance(20)
        assert _reserve(harness.tenant(client=1)).attempt.number > attempt.number

    def test_an_outcome_that_was_forgotten_stays_so_though_the_clock_steps_back(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        for outcome in ({"outcome": "kept"}, {"outcome_fingerprint": _DIGEST}):
            options: dict[str, Any] = outcome
            keys.complete(_reserve(harness.tenant()).attempt, **options)
            assert keys.forget("k")
            harness.advance(-20)
            record = keys.get("k")
            assert record is None or (record.completed_at, record.outcome, record.outcome_fingerprint) == (None,) * 3
            with suppress(AttemptInFlightError):  # what is told until the clock is there again
                assert not _reserve(harness.tenant(client=1)).completed
            harness.advance(100)

    def test_another_tenant_s_attempt_is_not_renewed(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant("one")).attempt
        with pytest.raises(FencingRejectedError):
            harness.tenant("two").idempotency.renew(attempt)

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_renewal_that_waited_for_an_open_completion_looks_again(self, harness: Harness, end: str) -> None:
        attempt = _reserve(harness.tenant()).attempt
        with suppress(LookupError), harness.tenant().transaction() as tx:
            tx.idempotency.complete(attempt, "done")
            renewal = start_waiting(harness, lambda: harness.tenant(client=1).idempotency.renew(attempt))
            if end == "roll back":
                raise LookupError
        if end == "commit":
            with pytest.raises(FencingRejectedError):
                renewal.result()
            assert _reserve(harness.tenant()).outcome == "done"
        else:
            assert renewal.result() == _record(harness.tenant()).claim_until

    def test_it_is_refused_in_a_transaction(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant()).attempt
        with harness.tenant().transaction() as tx, pytest.raises(UsageError):
            tx.idempotency.renew(attempt)

    @pytest.mark.parametrize("ttl_seconds", [0, -1, 0.01, float("nan"), float("inf"), True, "60"])
    def test_a_life_that_cannot_be_is_refused(self, harness: Harness, ttl_seconds: Any) -> None:
        attempt = _reserve(harness.tenant()).attempt
        with pytest.raises(InvalidInputError) as refused:
            harness.tenant().idempotency.renew(attempt, ttl_seconds=ttl_seconds)
        assert refused.value.field == "ttl_seconds"


class TestOutcomeFingerprints:
    """P7: an outcome that is too large or too secret to be kept can be told by its fingerprint."""

    def test_a_completed_key_replays_the_fingerprint_and_says_that_there_is_no_more(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        keys.complete(_reserve(harness.tenant()).attempt, outcome_fingerprint=_DIGEST)
        for _ in range(2):
            again = _reserve(harness.tenant(client=1))
            assert again.completed
            assert again.outcome_fingerprint == _DIGEST
            with pytest.raises(UsageError):
                assert again.outcome
        record = _record(harness.tenant())
        assert (record.outcome, record.outcome_fingerprint) == (None, _DIGEST)
        assert record.completed_at is not None

    def test_an_outcome_that_is_kept_has_none(self, harness: Harness) -> None:
        first = _reserve(harness.tenant())
        assert first.outcome_fingerprint is None
        assert _record(harness.tenant()).outcome_fingerprint is None
        harness.tenant().idempotency.complete(first.attempt, None)
        again = _reserve(harness.tenant())
        assert (again.outcome, again.outcome_fingerprint) == (None, None)
        assert _record(harness.tenant()).outcome_fingerprint is None

    def test_the_next_life_of_a_key_has_its_own_or_none(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        keys.complete(_reserve(harness.tenant()).attempt, outcome_fingerprint=_DIGEST)
        harness.advance(61)
        attempt = _reserve(harness.tenant()).attempt
        assert _record(harness.tenant()).outcome_fingerprint is None
        keys.complete(attempt, "kept")
        assert _reserve(harness.tenant()).outcome == "kept"
        assert keys.forget("k")
        keys.complete(_reserve(harness.tenant()).attempt, outcome_fingerprint=_DIGEST)
        assert _reserve(harness.tenant()).outcome_fingerprint == _DIGEST
        assert keys.forget("k")
        assert _reserve(harness.tenant()).outcome_fingerprint is None

    def test_it_completes_in_a_transaction_and_under_a_fence(self, harness: Harness) -> None:
        tenant = harness.tenant()
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        attempt = _reserve(tenant).attempt
        with pytest.raises(LookupError), tenant.transaction(fence=fence) as tx:
            tx.idempotency.complete(attempt, outcome_fingerprint=_DIGEST)
            raise LookupError
        tenant.leases.release(fence)
        with pytest.raises(FencingRejectedError):
            tenant.idempotency.complete(attempt, outcome_fingerprint=_DIGEST, fence=fence)
        with tenant.transaction() as tx:
            tx.idempotency.complete(attempt, outcome_fingerprint=_DIGEST)
        assert _reserve(tenant).outcome_fingerprint == _DIGEST
        with pytest.raises(FencingRejectedError):
            tenant.idempotency.complete(attempt, outcome_fingerprint=_DIGEST)

    def test_there_is_an_outcome_or_its_fingerprint_and_not_both(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        attempt = _reserve(harness.tenant()).attempt
        with pytest.raises(InvalidInputError) as refused:
            keys.complete(attempt)
        assert refused.value.field == "outcome"
        with pytest.raises(InvalidInputError) as refused:
            keys.complete(attempt, None, outcome_fingerprint=_DIGEST)
        assert refused.value.field == "outcome"
        for nonsense in ("", "sha256:", _DIGEST.upper(), _DIGEST.removeprefix("sha256:"), _DIGEST + "0", 7):
            options: dict[str, Any] = {"outcome_fingerprint": nonsense}
            with pytest.raises(InvalidInputError) as refused:
                keys.complete(attempt, **options)
            assert refused.value.field == "outcome_fingerprint"
        assert _record(harness.tenant()).completed_at is None


def _reserve(tenant: Tenant, *, result_ttl_seconds: float = 60) -> Reservation:
    return tenant.idempotency.reserve("k", request=None, result_ttl_seconds=result_ttl_seconds, attempt_ttl_seconds=60)


def _record(tenant: Tenant) -> IdempotencyRecord:
    record = tenant.idempotency.get("k")
    assert record is not None
    return record
