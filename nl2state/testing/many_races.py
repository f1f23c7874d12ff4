"""The promises about calls for many that meet over the same rows: they wait in turn, look again, and lose nothing."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, Final, TypeVar

import pytest

from nl2state.errors import FencingRejectedError, StoreTimeoutError
from nl2state.idempotency import Completion, KeyRequest
from nl2state.many import Outcomes
from nl2state.states import ANY_REVISION, NewState, StateUpdate
from nl2state.testing.harness import Capability, Harness, start_waiting, together
from nl2state.testing.many_calls import MANY, Many

__all__ = ["TestManyRaces"]

T = TypeVar("T")

_NAMES: Final = ("m", "z", "a")
_MANY_NAMES: Final = [f"n{number:02}" for number in range(12)]
_CALLERS: Final = 4
_LIVES: Final[dict[str, Any]] = {"result_ttl_seconds": 600.0, "attempt_ttl_seconds": 60.0}
_SHORT_SECONDS: Final = 0.15
_ROUNDS: Final = 6
_CAN_BE_SPOILED: Final = [many for many in MANY if many.name != "reserve_many"]
"""Those whose rows an open transaction can write."""


class TestManyRaces:
    """P2, P7, P9: calls for many over the same rows neither deadlock nor lose an update."""

    @pytest.mark.parametrize("many", _CAN_BE_SPOILED, ids=str)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_two_over_the_same_rows_in_opposite_orders_wait_in_turn(
        self, harness: Harness, many: Many, atomic: bool
    ) -> None:
        """Both wait behind a third that is undone: in the order of their items, they would then meet."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        items = [many.prepare(tenant, name) for name in _NAMES]
        with suppress(LookupError), harness.tenant().transaction() as tx:
            many.spoil(tx, _NAMES[0], items[0])
            ahead = [items[2], items[0], items[1]]
            calls = [
                start_waiting(harness, lambda: many.on(tenant, ahead, atomic=atomic)),
                start_waiting(harness, lambda: many.on(other, ahead[::-1], atomic=atomic)),
            ]
            raise LookupError
        accepted = 0
        for call in calls:
            try:
                outcomes = call.result()
            except many.refusal:
                assert atomic
            else:
                assert len(outcomes.refusals) in (0, 3)
                accepted += not outcomes.refusals
        assert accepted == (2 if many.name == "renew_many" else 1)  # a lease is renewed by both
        assert all(many.done(tenant, name) for name in _NAMES)

    @pytest.mark.parametrize("many", _CAN_BE_SPOILED, ids=str)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_one_that_waited_looks_again_and_all_of_it_is_seen_at_once(
        self, harness: Harness, many: Many, atomic: bool
    ) -> None:
        tenant, other = harness.tenant(), harness.tenant(client=1)
        items = [many.prepare(tenant, name) for name in _NAMES]
        with harness.tenant().transaction() as tx:
            many.spoil(tx, _NAMES[0], items[0])
            call = start_waiting(harness, lambda: many.on(other, items, atomic=atomic))
            assert not any(many.done(tenant, name) for name in _NAMES)
        if atomic:
            with pytest.raises(many.refusal) as refused:
                call.result()
            assert refused.value.index == 0
        else:
            assert {index: type(error) for index, error in call.result().refusals.items()} == {0: many.refusal}
        assert [many.done(tenant, name) for name in _NAMES] == ([False] * 3 if atomic else [False, True, True])

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    @pytest.mark.parametrize("many", _CAN_BE_SPOILED, ids=str)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_one_whose_time_for_a_lock_runs_out_keeps_nothing(self, harness: Harness, many: Many, atomic: bool) -> None:
        """P11: not even where each item is by itself, as a failure is not a refusal."""
        tenant = harness.tenant()
        impatient = harness.tenant_of(harness.bounded(lock_seconds=_SHORT_SECONDS))
        items = [many.prepare(tenant, name) for name in _NAMES]
        with tenant.transaction() as tx:
            many.spoil(tx, _NAMES[0], items[0])
            with pytest.raises(StoreTimeoutError) as ended:
                many.on(impatient, items, atomic=atomic)
            assert ended.value.index is None
        assert not any(many.done(tenant, name) for name in _NAMES)
        many.on(tenant, items[1:], atomic=True)

    @pytest.mark.needs(Capability.SHORT_BOUNDS)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_reservations_whose_time_for_a_lock_runs_out_keep_nothing(self, harness: Harness, atomic: bool) -> None:
        keys = harness.tenant().idempotency
        impatient = harness.tenant_of(harness.bounded(lock_seconds=_SHORT_SECONDS)).idempotency
        late = keys.reserve("m", request=1, **_LIVES).attempt
        harness.advance(61)
        with harness.tenant().transaction() as tx:
            tx.idempotency.complete(late, "late")
            with pytest.raises(StoreTimeoutError) as ended:
                impatient.reserve_many([KeyRequest(key, 1) for key in "amz"], atomic=atomic, **_LIVES)
            assert ended.value.index is None
        assert [keys.get(key) is None for key in "amz"] == [True, False, True]

    @pytest.mark.parametrize("atomic", [True, False])
    @pytest.mark.parametrize("end", ["commit", "roll back"])
    def test_reservations_behind_an_open_completion_look_again(self, harness: Harness, end: str, atomic: bool) -> None:
        """The attempt ran out, and is completed at last: both calls wait for that, in opposite orders."""
        tenant, other = harness.tenant(), harness.tenant(client=1)
        late = tenant.idempotency.reserve("m", request=1, **_LIVES).attempt
        harness.advance(61)
        items = [KeyRequest(key, 1) for key in "amz"]
        with suppress(LookupError), harness.tenant().transaction() as tx:
            tx.idempotency.complete(late, "late")
            calls = [
                start_waiting(harness, lambda: tenant.idempotency.reserve_many(items, atomic=atomic, **_LIVES)),
                start_waiting(harness, lambda: other.idempotency.reserve_many(items[::-1], atomic=atomic, **_LIVES)),
            ]
            if end == "roll back":
                raise LookupError
        outcomes = together(2, lambda number: calls[number].result())
        attempts = [
            reservation.attempt.key
            for each in outcomes
            if isinstance(each, Outcomes)
            for index, reservation in enumerate(_accepted(each))
            if reservation is not None and not reservation.completed and index not in each.refusals
        ]
        assert sorted(attempts) == (["a", "z"] if end == "commit" else ["a", "m", "z"])
        m = tenant.idempotency.get("m")
        assert m is not None
        assert (m.outcome == "late") is (end == "commit")

    def test_of_updates_at_once_none_is_lost(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create_many([NewState(name, 0) for name in _MANY_NAMES], atomic=True)

        def update(number: int) -> None:
            own = harness.tenant(client=number % 2).states
            for turn in range(_ROUNDS):
                names = _in_some_order(_MANY_NAMES, number * _ROUNDS + turn)
                items = [StateUpdate(name, number, ANY_REVISION) for name in names]
                written = own.update_many(items, atomic=turn % 2 == 0)
                assert [record.id for record in written] == names

        assert together(_CALLERS, update) == [None] * _CALLERS
        assert [record.revision for record in states.list().items] == [1 + _CALLERS * _ROUNDS] * len(_MANY_NAMES)

    @pytest.mark.parametrize("atomic", [True, False])
    def test_of_creations_and_reservations_at_once_one_makes_each(self, harness: Harness, atomic: bool) -> None:
        for turn in range(_ROUNDS):
            names = [f"{name}-{turn}" for name in _MANY_NAMES]

            def create(number: int, names: list[str] = names) -> Outcomes[Any]:
                items = [NewState(name, number) for name in _in_some_order(names, number)]
                return harness.tenant(client=number % 2).states.create_many(items, atomic=atomic)

            def reserve(number: int, names: list[str] = names) -> Outcomes[Any]:
                return harness.tenant(client=number % 2).idempotency.reserve_many(
                    [KeyRequest(name, 1) for name in _in_some_order(names, number)],
                    result_ttl_seconds=600,
                    attempt_ttl_seconds=600,
                    atomic=atomic,
                )

            for call in (create, reserve):
                outcomes = [each for each in together(_CALLERS, call) if isinstance(each, Outcomes)]
                assert len(outcomes) == (1 if atomic else _CALLERS)
                assert sum(len(each) - len(each.refusals) for each in outcomes) == len(names)

    def test_of_completions_at_once_one_is_kept(self, harness: Harness) -> None:
        keys = harness.tenant().idempotency
        items = [KeyRequest(name, 1) for name in _MANY_NAMES]
        reserved = keys.reserve_many(items, atomic=True, result_ttl_seconds=600, attempt_ttl_seconds=600)

        def complete(number: int) -> Outcomes[None]:
            attempts = _in_some_order([reservation.attempt for reservation in reserved], number)
            completions = [Completion(attempt, number) for attempt in attempts]
            return harness.tenant(client=number % 2).idempotency.complete_many(completions, atomic=False)

        outcomes = [each for each in together(_CALLERS, complete) if isinstance(each, Outcomes)]
        assert len(outcomes) == _CALLERS
        refused = [error for each in outcomes for error in each.refusals.values()]
        assert len(refused) == (_CALLERS - 1) * len(_MANY_NAMES)
        assert {type(error) for error in refused} == {FencingRejectedError}


def _in_some_order(members: list[T], seed: int) -> list[T]:
    return random.Random(seed).sample(members, len(members))  # noqa: S311  # the same on every run


def _accepted(outcomes: Outcomes[Any]) -> list[Any]:
    """Return the outcomes, with None for each that was refused."""
    return [None if index in outcomes.refusals else outcomes[index] for index in range(len(outcomes))]
