"""The promises about idempotency keys."""

from __future__ import annotations

from contextlib import suppress

import pytest

from nl2state.errors import AttemptInFlightError, FencingRejectedError, InvalidInputError, KeyConflictError
from nl2state.idempotency import Attempt, Reservation, ReserveOptions
from nl2state.payload import Value, fingerprint
from nl2state.store import Tenant, Transaction
from nl2state.testing.harness import Harness, start, start_waiting, together, until
from nl2state.toolkit.idempotent import run_once, run_once_in_transaction

__all__ = ["TestOneAttempt", "TestRunOnce"]

_DAY = 86_400.0
_OPTIONS: ReserveOptions = {"request": None, "result_ttl_seconds": 60, "attempt_ttl_seconds": 60}


class TestOneAttempt:
    """P7: at most one live attempt a key; a superseded one cannot complete; a completed key is not run again."""

    def test_a_key_is_reserved_completed_and_replayed(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        reservation = _reserve(harness.tenant())
        assert not reservation.completed
        keys.complete(reservation.attempt, {"charge": "ch_1"})
        again = _reserve(harness.tenant(client=1))
        assert again.completed
        assert again.outcome == {"charge": "ch_1"}

    @pytest.mark.parametrize("outcome", [None, False, 0, "", [], {}, b"", b"\x00", "\u0000", 2**64])
    def test_every_value_is_an_outcome(self, harness: Harness, outcome: Value) -> None:
        harness.tenant().idempotency.complete(_reserve(harness.tenant()).attempt, outcome)
        again = _reserve(harness.tenant())
        assert again.completed
        assert again.outcome == outcome
        assert type(again.outcome) is type(outcome)

    def test_a_second_attempt_learns_that_the_first_is_in_flight(self, harness: Harness) -> None:
        _reserve(harness.tenant())
        with pytest.raises(AttemptInFlightError) as refused:
            _reserve(harness.tenant(client=1))
        assert 50 < refused.value.retry_after_seconds <= 60
        assert refused.value.retryable

    def test_of_many_that_reserve_one_gets_the_attempt(self, harness: Harness) -> None:
        """Case 8: of many threads exactly one acquires; the others learn that it is in flight."""
        outcomes = together(8, lambda n: _reserve(harness.tenant(client=n % 2)))
        assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, AttemptInFlightError) for outcome in outcomes) == 7

    def test_of_many_that_reserve_an_expired_key_one_gets_the_attempt(self, harness: Harness) -> None:
        first = _reserve(harness.tenant()).attempt
        harness.advance(61)
        outcomes = together(8, lambda n: _reserve(harness.tenant(client=n % 2)))
        won = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
        assert len(won) == 1
        assert won[0].attempt.number > first.number
        assert sum(isinstance(outcome, AttemptInFlightError) for outcome in outcomes) == 7

    def test_the_same_key_for_another_request_is_a_conflict(self, harness: Harness) -> None:
        """Case 3: each retry with another payload is a conflict, and the first poisons nothing."""
        attempt = _reserve(harness.tenant(), request={"a": 1}).attempt
        for _ in range(2):
            with pytest.raises(KeyConflictError):
                _reserve(harness.tenant(), request={"a": 2})
        harness.tenant().idempotency.complete(attempt, "done")
        for _ in range(2):
            with pytest.raises(KeyConflictError):
                _reserve(harness.tenant(), request={"a": 2})
        assert _reserve(harness.tenant(), request={"a": 1}).outcome == "done"

    def test_a_key_that_is_reserved_anew_keeps_nothing_of_its_former_life(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        _reserve(harness.tenant(), request="one", record_id="order-1", result_ttl_seconds=_DAY)
        keys.forget("k")
        attempt = _reserve(harness.tenant(), request="two", record_id="order-2", result_ttl_seconds=100).attempt
        keys.complete(attempt, "two's")
        record = keys.get("k")
        assert record is not None
        assert (record.attempt, record.record_id, record.outcome) == (attempt, "order-2", "two's")
        assert record.completed_at is not None
        assert (record.expires_at - record.completed_at).total_seconds() == pytest.approx(100, abs=0.1)

    def test_a_conflict_outlives_an_attempt_that_ran_out(self, harness: Harness) -> None:
        _reserve(harness.tenant(), request="one", result_ttl_seconds=_DAY)
        harness.advance(61)
        with pytest.raises(KeyConflictError):
            _reserve(harness.tenant(), request="another")
        assert not _reserve(harness.tenant(), request="one").completed

    def test_the_same_key_for_another_record_is_a_conflict(self, harness: Harness) -> None:
        _reserve(harness.tenant(), record_id="order-1")
        for record_id in ("order-2", None):
            with pytest.raises(KeyConflictError):
                _reserve(harness.tenant(), record_id=record_id)
        with pytest.raises(AttemptInFlightError):
            _reserve(harness.tenant(), record_id="order-1")

    def test_the_order_of_names_makes_no_other_request_and_that_of_a_list_does(self, harness: Harness) -> None:
        """Case 1: both levels in another order are the same request; a list in another order is a conflict."""
        attempt = _reserve(harness.tenant(), request={"a": 1, "b": {"x": [1, 2], "y": 2}}).attempt
        harness.tenant().idempotency.complete(attempt, "done")
        assert _reserve(harness.tenant(), request={"b": {"y": 2, "x": [1, 2]}, "a": 1}).completed
        with pytest.raises(KeyConflictError):
            _reserve(harness.tenant(), request={"a": 1, "b": {"x": [2, 1], "y": 2}})

    def test_a_request_is_the_same_as_its_fingerprint(self, harness: Harness) -> None:
        _reserve(harness.tenant(), request={"a": 1})
        with pytest.raises(AttemptInFlightError):
            harness.tenant().idempotency.reserve(
                "k", request_fingerprint=fingerprint({"a": 1}), result_ttl_seconds=60, attempt_ttl_seconds=60
            )
        with pytest.raises(InvalidInputError):
            harness.tenant().idempotency.reserve("k", result_ttl_seconds=60, attempt_ttl_seconds=60)

    def test_an_attempt_that_ran_out_can_be_made_again_and_the_old_one_cannot_complete(self, harness: Harness) -> None:
        """Case 7: who was superseded is refused, and told."""
        keys = harness.tenant().idempotency
        old = _reserve(harness.tenant(), result_ttl_seconds=_DAY).attempt
        harness.advance(61)
        new = _reserve(harness.tenant(client=1), result_ttl_seconds=_DAY).attempt
        assert new.number > old.number
        _refused(harness.tenant(), old)
        keys.complete(new, "new")
        _refused(harness.tenant(), old)
        assert _reserve(harness.tenant()).outcome == "new"

    def test_an_attempt_that_ran_out_and_was_not_superseded_can_complete(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant(), result_ttl_seconds=_DAY).attempt
        harness.advance(61)
        harness.tenant().idempotency.complete(attempt, "late, and the only one")
        assert _reserve(harness.tenant()).outcome == "late, and the only one"

    @pytest.mark.parametrize("end", ["expired", "forgotten", "swept", "abandoned"])
    def test_no_attempt_of_a_former_life_completes(self, harness: Harness, end: str) -> None:
        keys = harness.tenant().idempotency
        old = _reserve(harness.tenant()).attempt
        if end == "forgotten":
            assert keys.forget("k")
        elif end == "abandoned":
            keys.abandon(old)
        else:
            harness.advance(_DAY + 61)
        if end == "swept":
            assert harness.clients[0].system.retain().idempotency == 1
        _refused(harness.tenant(), old)
        new = _reserve(harness.tenant(client=1)).attempt
        assert new.number > old.number
        _refused(harness.tenant(), old)
        keys.complete(new, "new")
        _refused(harness.tenant(), old)

    def test_attempts_rise_within_one_millisecond(self, harness: Harness) -> None:
        numbers = []
        for _ in range(50):
            numbers.append(_reserve(harness.tenant()).attempt.number)
            harness.tenant().idempotency.forget("k")
        assert numbers == sorted(set(numbers))

    def test_an_attempt_completes_once(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant()).attempt
        harness.tenant().idempotency.complete(attempt, "once")
        _refused(harness.tenant(), attempt)
        assert _reserve(harness.tenant()).outcome == "once"

    def test_the_life_of_a_result_runs_from_its_completion(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant(), result_ttl_seconds=100, attempt_ttl_seconds=100).attempt
        harness.advance(90)
        harness.tenant().idempotency.complete(attempt, "kept")
        harness.advance(99)
        assert _reserve(harness.tenant()).outcome == "kept"
        harness.advance(2)
        assert not _reserve(harness.tenant()).completed

    def test_a_short_result_does_not_shorten_the_attempt(self, harness: Harness) -> None:
        _reserve(harness.tenant(), result_ttl_seconds=1, attempt_ttl_seconds=60)
        harness.advance(50)
        with pytest.raises(AttemptInFlightError):
            _reserve(harness.tenant())

    def test_a_long_result_does_not_keep_a_dead_attempt_s_retry_out(self, harness: Harness) -> None:
        """Case 4: the attempt's life and the result's are two; a retry after the first gets the attempt."""
        _reserve(harness.tenant(), result_ttl_seconds=_DAY, attempt_ttl_seconds=2)
        harness.advance(3)
        assert not _reserve(harness.tenant()).completed

    def test_keys_of_other_tenants_and_operations_are_others(self, harness: Harness) -> None:
        """Case 5: two tenants reserve one key, and both acquire; neither ends the other's attempt."""
        one = _reserve(harness.tenant("one")).attempt
        harness.advance(1)  # or their attempts could have one number
        assert not _reserve(harness.tenant("two")).completed
        harness.tenant("one").idempotency.complete(one, "one's")
        with pytest.raises(AttemptInFlightError):
            _reserve(harness.tenant("two"))
        _refused(harness.tenant("two"), one)

    def test_a_waiter_gets_the_outcome(self, harness: Harness) -> None:
        attempt = _reserve(harness.tenant()).attempt
        waiter = start(lambda: _reserve(harness.tenant(client=1), wait_seconds=20))
        harness.tenant().idempotency.complete(attempt, "waited for")
        assert waiter.result().outcome == "waited for"

    def test_a_reservation_does_not_wait_for_an_open_completion(self, harness: Harness) -> None:
        tenant = harness.tenant()
        attempt = _reserve(tenant).attempt
        with tenant.transaction() as tx:
            tx.idempotency.complete(attempt, "done")
            other = start(lambda: _reserve(harness.tenant(client=1)))
            until(lambda: other.done or harness.waiting() > 0, "the reservation ends")
            assert harness.waiting() == 0
            with pytest.raises(AttemptInFlightError):
                other.result()
        assert _reserve(harness.tenant(client=1)).outcome == "done"

    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_a_reservation_of_a_key_that_ran_out_waits_for_its_open_completion(
        self, harness: Harness, end: str
    ) -> None:
        tenant = harness.tenant()
        attempt = _reserve(tenant, result_ttl_seconds=_DAY).attempt
        with suppress(LookupError), tenant.transaction() as tx:
            tx.idempotency.complete(attempt, "late")
            harness.advance(61)
            other = start_waiting(harness, lambda: _reserve(harness.tenant(client=1)))
            if end == "roll back":
                raise LookupError
        if end == "commit":
            assert other.result().outcome == "late"
        else:
            assert other.result().attempt.number > attempt.number

    def test_a_completion_that_is_rolled_back_is_none(self, harness: Harness) -> None:
        tenant = harness.tenant()
        attempt = _reserve(tenant).attempt
        with pytest.raises(LookupError), tenant.transaction() as tx:
            tx.idempotency.complete(attempt, "undone")
            raise LookupError
        with pytest.raises(AttemptInFlightError):
            _reserve(tenant)
        tenant.idempotency.complete(attempt, "done")

    def test_a_key_says_how_it_stands(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        assert keys.get("k") is None
        attempt = _reserve(harness.tenant(), record_id="order-1", result_ttl_seconds=100).attempt
        record = keys.get("k")
        assert record is not None
        assert (record.attempt, record.record_id, record.completed_at, record.outcome) == (
            attempt,
            "order-1",
            None,
            None,
        )
        assert (record.claim_until - record.reserved_at).total_seconds() == pytest.approx(60, abs=0.1)
        keys.complete(attempt, [1])
        record = keys.get("k")
        assert record is not None
        assert record.outcome == [1]
        assert record.completed_at is not None
        assert (record.expires_at - record.completed_at).total_seconds() == pytest.approx(100, abs=0.1)
        assert keys.forget("k")
        assert keys.get("k") is None
        assert not keys.forget("k")


class TestRunOnce:
    """P7, as the toolkit keeps it: a function that is run under a key."""

    def test_work_is_done_once_and_its_outcome_replayed(self, harness: Harness) -> None:
        done: list[Attempt] = []

        def send(attempt: Attempt) -> Value:
            done.append(attempt)
            return "sent"

        for _ in range(3):
            assert run_once(harness.tenant(), "k", send, **_OPTIONS) == "sent"
        assert len(done) == 1

    def test_work_that_raises_can_be_tried_again_at_once(self, harness: Harness) -> None:
        def fail(attempt: Attempt) -> Value:
            raise LookupError

        with pytest.raises(LookupError) as raised:
            run_once(harness.tenant(), "k", fail, **_OPTIONS)
        assert not getattr(raised.value, "__notes__", [])
        assert run_once(harness.tenant(), "k", lambda _: "sent", **_OPTIONS) == "sent"

    def test_work_that_was_superseded_is_told(self, harness: Harness) -> None:
        def slow(attempt: Attempt) -> Value:
            harness.advance(61)
            _reserve(harness.tenant(client=1))
            return "late"

        with pytest.raises(FencingRejectedError):
            run_once(harness.tenant(), "k", slow, **_OPTIONS)

    def test_neither_the_work_s_error_nor_the_failed_clean_up_hides_the_other(self, harness: Harness) -> None:
        def slow(attempt: Attempt) -> Value:
            harness.advance(61)
            _reserve(harness.tenant(client=1))
            raise LookupError

        with pytest.raises(LookupError) as raised:
            run_once(harness.tenant(), "k", slow, **_OPTIONS)
        assert raised.value.__notes__ == ["abandoning its attempt failed too: FENCING_REJECTED"]

    def test_work_in_a_transaction_commits_with_its_outcome(self, harness: Harness) -> None:
        tenant = harness.tenant()
        for _ in range(3):
            revision = run_once_in_transaction(tenant, "k", lambda tx: tx.states.create("s", 1).revision, **_OPTIONS)
            assert revision == 1

    def test_work_in_a_transaction_that_raises_leaves_nothing(self, harness: Harness) -> None:
        tenant = harness.tenant()
        with pytest.raises(ZeroDivisionError):
            run_once_in_transaction(tenant, "k", lambda tx: tx.states.create("s", 1).revision // 0, **_OPTIONS)
        assert tenant.states.get("s") is None
        assert run_once_in_transaction(tenant, "k", lambda tx: tx.states.create("s", 1).revision, **_OPTIONS) == 1

    def test_work_in_a_transaction_that_was_superseded_leaves_nothing(self, harness: Harness) -> None:
        """Its outcome is kept by the same commit, or what it wrote is not there either."""

        def slow(tx: Transaction) -> Value:
            tx.states.create("s", "late")
            harness.advance(61)
            _reserve(harness.tenant(client=1))
            return "late"

        with pytest.raises(FencingRejectedError):
            run_once_in_transaction(harness.tenant(), "k", slow, **_OPTIONS)
        assert harness.tenant().states.get("s") is None


def _reserve(
    tenant: Tenant,
    *,
    request: Value = None,
    record_id: str | None = None,
    result_ttl_seconds: float = 60,
    attempt_ttl_seconds: float = 60,
    wait_seconds: float = 0,
) -> Reservation:
    return tenant.idempotency.reserve(
        "k",
        request=request,
        record_id=record_id,
        result_ttl_seconds=result_ttl_seconds,
        attempt_ttl_seconds=attempt_ttl_seconds,
        wait_seconds=wait_seconds,
    )


def _refused(tenant: Tenant, attempt: Attempt) -> None:
    """See an attempt that is over refused, alone and in a transaction."""
    with pytest.raises(FencingRejectedError):
        tenant.idempotency.complete(attempt, "too late")
    with pytest.raises(FencingRejectedError):
        tenant.idempotency.abandon(attempt)
    with pytest.raises(FencingRejectedError):
        tenant.idempotency.renew(attempt)
    with tenant.transaction() as tx, pytest.raises(FencingRejectedError):
        tx.idempotency.complete(attempt, "too late")
