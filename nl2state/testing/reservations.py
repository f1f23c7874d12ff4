"""The promises about keys that many reserve at once, while they run out and are swept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from nl2state.errors import AttemptInFlightError, FencingRejectedError
from nl2state.idempotency import Reservation
from nl2state.keys import derive_key
from nl2state.store import Tenant
from nl2state.testing.harness import Harness, start, together, until

__all__ = ["TestReservations"]

_DAY = 86_400.0
_ROUNDS = 40
_CALLERS = 6


class TestReservations:
    """P7: one of many gets the attempt, each of the others is told the truth, and none is told that there is no key."""

    def test_all_that_wait_get_the_outcome_of_the_one_that_works(self, harness: Harness) -> None:
        """Case 8: many threads reserve one fresh key; one acquires, and those that are ready to wait replay."""
        outcomes = together(8, lambda n: _reserve(harness.tenant(client=n % 2)))
        won = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
        assert len(won) == 1
        begun: list[int] = []

        def wait(number: int) -> object:
            begun.append(number)
            return _reserve(harness.tenant(client=number % 2), wait_seconds=20).outcome

        waiters = [start(partial(wait, number)) for number in range(7)]
        until(lambda: len(begun) == 7, "all of them have begun")
        for number in range(7):  # for as long as a call takes that does not wait, and more
            with pytest.raises(AttemptInFlightError):
                _reserve(harness.tenant(client=number % 2))
        assert not any(waiter.done for waiter in waiters)
        harness.tenant().idempotency.complete(won[0].attempt, "done once")
        assert [waiter.result() for waiter in waiters] == ["done once"] * 7

    @pytest.mark.parametrize("seconds", [61, _DAY + 61], ids=["to be replaced", "to be swept"])
    def test_none_is_told_that_there_is_no_key_while_it_is_replaced_and_swept(
        self, harness: Harness, seconds: float
    ) -> None:
        """Case 9: it ran out, and is reserved anew by many while clean-up runs: one attempt, the others in flight."""
        last = _reserve(harness.tenant()).attempt.number
        over = threading.Event()

        def sweep() -> None:
            while not over.is_set():
                harness.clients[0].system.retain()

        sweeping = start(sweep)
        for _ in range(_ROUNDS):
            harness.advance(seconds)
            outcomes = together(_CALLERS, lambda n: _reserve(harness.tenant(client=n % 2)))
            won = [outcome for outcome in outcomes if isinstance(outcome, Reservation)]
            told = [outcome for outcome in outcomes if isinstance(outcome, AttemptInFlightError)]
            assert (len(won), len(told)) == (1, _CALLERS - 1), outcomes
            assert all(50 < error.retry_after_seconds < 65 for error in told), told
            assert won[0].attempt.number > last
            last = won[0].attempt.number
            record = harness.tenant().idempotency.get("k")
            assert record is not None
            assert record.attempt == won[0].attempt
        over.set()
        sweeping.result()

    def test_a_late_completion_leaves_the_record_of_its_successor_whole(self, harness: Harness) -> None:
        """Case 7: A reserves and expires, B reserves, A completes or gives up: A is told, B's record is as it was."""
        keys = harness.tenant().idempotency
        late = _reserve(harness.tenant(), result_ttl_seconds=_DAY).attempt
        harness.advance(61)
        theirs = _reserve(harness.tenant(client=1), result_ttl_seconds=_DAY).attempt
        ends: list[Callable[[], object]] = [
            lambda: keys.complete(late, "A's"),
            lambda: keys.abandon(late),
            lambda: keys.renew(late),
        ]

        def refuse_all() -> None:
            before = keys.get("k")
            for end in ends:
                with pytest.raises(FencingRejectedError):
                    end()
            assert keys.get("k") == before

        refuse_all()
        harness.tenant(client=1).idempotency.complete(theirs, "B's")
        refuse_all()
        assert _reserve(harness.tenant()).outcome == "B's"

    def test_one_request_of_two_operations_has_two_outcomes(self, harness: Harness) -> None:
        """Case 6: keys of one request id for two operations are two, and neither replays the other's outcome."""
        tenant = harness.tenant()
        outcomes: list[object] = []
        for operation in ("pay", "refund", "pay", "refund"):
            reservation = _reserve(tenant, derive_key(operation, "request-1"))
            if not reservation.completed:
                tenant.idempotency.complete(reservation.attempt, f"{operation} is done")
            else:
                outcomes.append(reservation.outcome)
        assert outcomes == ["pay is done", "refund is done"]


def _reserve(tenant: Tenant, key: str = "k", *, result_ttl_seconds: float = 60, wait_seconds: float = 0) -> Reservation:
    return tenant.idempotency.reserve(
        key,
        request={"a": 1},
        result_ttl_seconds=result_ttl_seconds,
        attempt_ttl_seconds=60,
        wait_seconds=wait_seconds,
    )
