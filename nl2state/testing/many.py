"""The promises about calls for many, which all of them keep alike: the order, all or nothing, refusals and bounds."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from nl2state.errors import FencingRejectedError, InvalidInputError, PayloadError, UsageError
from nl2state.idempotency import Completion
from nl2state.leases import Fence
from nl2state.limits import Limits
from nl2state.states import NewState, StateUpdate
from nl2state.store import Tenant
from nl2state.testing.harness import Harness, start_waiting
from nl2state.testing.many_calls import MANY, Many
from nl2state.testing.refusals import leaks

__all__ = ["TestManyAtOnce", "TestManyInTransactions", "TestManyInputs"]

_LIMITS: Final = Limits()
_PLANTED: Final = "planted-4711"
_NAMES: Final = tuple(f"{_PLANTED}-{letter}" for letter in "mzak")
"""In no order of their own."""
_SPOILED: Final = (1, 2)
"""The first of these in the order of items is not the first in the order of names."""

_IN_TRANSACTIONS: Final = [many for many in MANY if many.takes_fence]


@pytest.mark.parametrize("many", MANY, ids=str)
class TestManyAtOnce:
    """P9: each item gets what the call for one gives; all of them or none, where that is asked for."""

    @pytest.mark.parametrize("atomic", [True, False])
    def test_outcomes_are_in_the_order_of_the_items(self, harness: Harness, many: Many, atomic: bool) -> None:
        tenant = harness.tenant()
        items = [many.prepare(tenant, name) for name in _NAMES]
        outcomes = many.on(tenant, items, atomic=atomic)
        assert (len(outcomes), dict(outcomes.refusals)) == (4, {})
        if many.named is not None:
            assert [many.named(outcome) for outcome in outcomes] == list(_NAMES)
            assert many.named(outcomes[-1]) == _NAMES[-1]
        else:
            assert list(outcomes) == [None] * 4
        assert _done(harness, many) == list(_NAMES)

    @pytest.mark.parametrize("atomic", [True, False])
    def test_of_nothing_comes_nothing(self, harness: Harness, many: Many, atomic: bool) -> None:
        """The store is not asked: so a lost fence, which guards nothing then, is not refused."""
        options = {"fence": Fence("lost", "a", 1)} if many.takes_fence else {}
        empty: tuple[Sequence[Any], ...] = ([], ())
        for nothing in empty:
            outcomes = many.on(harness.tenant(), nothing, atomic=atomic, **options)
            assert (list(outcomes), dict(outcomes.refusals)) == ([], {})

    def test_a_refusal_of_one_refuses_an_atomic_call(self, harness: Harness, many: Many) -> None:
        """The first in the order of the items is raised, and says which it was."""
        tenant, items = _spoiled(harness, many)
        before = _snapshot(tenant)
        with pytest.raises(many.refusal) as refused:
            many.on(tenant, items, atomic=True)
        assert type(refused.value) is many.refusal
        assert refused.value.index == _SPOILED[0]
        assert _snapshot(tenant) == before
        rest = [item for index, item in enumerate(items) if index not in _SPOILED]
        assert len(list(many.on(tenant, rest, atomic=True))) == 2
        assert _done(harness, many) == [_NAMES[0], _NAMES[3]]

    def test_a_refusal_of_one_is_its_own_where_the_call_is_not_atomic(self, harness: Harness, many: Many) -> None:
        tenant, items = _spoiled(harness, many)
        outcomes = many.on(tenant, items, atomic=False)
        assert len(outcomes) == 4
        assert {index: (type(error), error.index) for index, error in outcomes.refusals.items()} == {
            index: (many.refusal, index) for index in _SPOILED
        }
        for index in _SPOILED:
            with pytest.raises(many.refusal) as refused:
                outcomes[index]
            assert refused.value.index == index
        with pytest.raises(many.refusal):
            list(outcomes)
        if many.named is not None:
            assert [many.named(outcomes[index]) for index in (0, 3)] == [_NAMES[0], _NAMES[3]]
        assert _done(harness, many) == [_NAMES[0], _NAMES[3]]

    @pytest.mark.parametrize("atomic", [True, False])
    def test_all_can_be_refused(self, harness: Harness, many: Many, atomic: bool) -> None:
        tenant, items = _spoiled(harness, many)
        before = _snapshot(tenant)
        refused = [items[index] for index in _SPOILED]
        if atomic:
            with pytest.raises(many.refusal) as raised:
                many.on(tenant, refused, atomic=True)
            assert raised.value.index == 0
        else:
            assert list(many.on(tenant, refused, atomic=False).refusals) == [0, 1]
        assert _snapshot(tenant) == before

    def test_a_refusal_is_that_of_the_call_for_one_and_says_no_more(self, harness: Harness, many: Many) -> None:
        """P10: a pickle keeps the index too."""
        tenant, items = _spoiled(harness, many)
        with pytest.raises(many.refusal) as raised:
            many.on(tenant, items, atomic=True)
        outcomes = many.on(tenant, items, atomic=False)
        for error in (raised.value, *outcomes.refusals.values()):
            assert vars(error).keys() == {"index", *many.refusal.fields}
            assert leaks(error, _PLANTED) == []
            again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own, of this moment
            assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))

    @pytest.mark.parametrize("atomic", [True, False])
    def test_rows_of_another_scope_are_nobody_s_business(self, harness: Harness, many: Many, atomic: bool) -> None:
        """P1: those of the same names, which would be refused there."""
        theirs, _ = _spoiled(harness, many, "theirs")
        before = _snapshot(theirs)
        tenant = harness.tenant(client=1)
        items = [many.prepare(tenant, name) for name in _NAMES]
        assert len(list(many.on(tenant, items, atomic=atomic))) == 4
        assert _snapshot(theirs) == before
        assert _done(harness, many) == list(_NAMES)


class TestManyInTransactions:
    """P6, P9: a batch in a transaction is undone alone, and under a lost fence nothing of it is written."""

    @pytest.mark.parametrize("many", _IN_TRANSACTIONS, ids=str)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_a_refusal_leaves_the_transaction_usable(self, harness: Harness, many: Many, atomic: bool) -> None:
        tenant, items = _spoiled(harness, many)
        with tenant.transaction() as tx:
            tx.states.create("before", 1)
            if atomic:
                with pytest.raises(many.refusal) as refused:
                    many.on(tx, items, atomic=True)
                assert refused.value.index == _SPOILED[0]
            else:
                assert tuple(many.on(tx, items, atomic=False).refusals) == _SPOILED
            assert tx.states.require("before").value == 1
            tx.states.create("after", 1)
            if atomic:
                many.on(tx, items[:1], atomic=True)  # it was undone, or it would be refused now
        assert tenant.states.require("before").value == tenant.states.require("after").value == 1
        assert _done(harness, many) == ([_NAMES[0]] if atomic else [_NAMES[0], _NAMES[3]])

    @pytest.mark.parametrize("many", _IN_TRANSACTIONS, ids=str)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_it_is_kept_or_undone_with_its_transaction(self, harness: Harness, many: Many, atomic: bool) -> None:
        tenant = harness.tenant()
        items = [many.prepare(tenant, name) for name in _NAMES]
        before = _snapshot(tenant)
        with pytest.raises(LookupError), tenant.transaction() as tx:
            assert len(list(many.on(tx, items, atomic=atomic))) == 4
            raise LookupError
        assert _snapshot(tenant) == before
        with tenant.transaction() as tx:
            with pytest.raises(LookupError), tx.transaction() as inner:
                many.on(inner, items[:2], atomic=atomic)
                raise LookupError
            many.on(tx, items[1:], atomic=atomic)
        assert _done(harness, many) == list(_NAMES[1:])

    @pytest.mark.parametrize("many", [many for many in MANY if not many.takes_fence], ids=str)
    def test_what_cannot_be_undone_is_refused_in_one(self, harness: Harness, many: Many) -> None:
        tenant = harness.tenant()
        item = many.prepare(tenant, _NAMES[0])
        before = _snapshot(tenant)
        with tenant.transaction() as tx:
            for items in ([item], []):
                with pytest.raises(UsageError) as refused:
                    many.on(tx, items, atomic=True)
                assert refused.value.index is None
            tx.states.create("s", 1)
        tenant.states.delete("s", expected_revision=1)
        assert _snapshot(tenant) == before

    @pytest.mark.parametrize("many", _IN_TRANSACTIONS, ids=str)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_a_lost_fence_is_judged_first_and_refuses_the_call(
        self, harness: Harness, many: Many, atomic: bool
    ) -> None:
        """Whether it was lost to a release, to its expiry or to another: it is about no item."""
        tenant, items = _spoiled(harness, many)
        held = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        tenant.leases.release(held)
        before = _snapshot(tenant)
        with pytest.raises(FencingRejectedError) as refused:
            many.on(tenant, items, atomic=atomic, fence=held)
        assert refused.value.index is None
        with tenant.transaction(fence=held) as tx:
            for _ in range(2):
                with pytest.raises(FencingRejectedError) as refused:
                    many.on(tx, items, atomic=atomic)
                assert refused.value.index is None
        assert _snapshot(tenant) == before

    @pytest.mark.parametrize("many", _IN_TRANSACTIONS, ids=str)
    @pytest.mark.parametrize("atomic", [True, False])
    def test_a_fence_that_is_held_lets_it_pass(self, harness: Harness, many: Many, atomic: bool) -> None:
        tenant = harness.tenant()
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=60).fence
        items = [many.prepare(tenant, name) for name in _NAMES]
        many.on(tenant, items[:2], atomic=atomic, fence=fence)
        with tenant.transaction(fence=fence) as tx:
            many.on(tx, items[2:3], atomic=atomic)
            many.on(tx, items[3:], atomic=atomic, fence=fence)
            with pytest.raises(UsageError):
                many.on(tx, items, atomic=atomic, fence=Fence("r", "b", fence.token))
        assert _done(harness, many) == list(_NAMES)

    @pytest.mark.parametrize("many", _IN_TRANSACTIONS, ids=str)
    def test_a_release_waits_for_an_open_batch_under_its_fence(self, harness: Harness, many: Many) -> None:
        tenant = harness.tenant()
        fence = tenant.leases.acquire("r", owner="a", ttl_seconds=600).fence
        items = [many.prepare(tenant, name) for name in _NAMES]
        with tenant.transaction(fence=fence) as tx:
            many.on(tx, items, atomic=True)
            releasing = start_waiting(harness, lambda: harness.tenant(client=1).leases.release(fence))
        releasing.result()
        assert _done(harness, many) == list(_NAMES)


@pytest.mark.parametrize("many", MANY, ids=str)
class TestManyInputs:
    """P10, P11: the items have bounds, and one that cannot be is refused by its index before the store is asked."""

    @pytest.mark.parametrize("atomic", [True, False])
    def test_two_items_of_one_name_are_refused(self, harness: Harness, many: Many, atomic: bool) -> None:
        tenant = harness.tenant()
        items = [many.prepare(tenant, name) for name in _NAMES]
        _refuse(tenant, many, [*items, items[1]], atomic=atomic, field=many.argument, index=4)

    def test_an_item_of_another_kind_is_refused(self, harness: Harness, many: Many) -> None:
        tenant = harness.tenant()
        items = [many.prepare(tenant, name) for name in _NAMES]
        for wrong in (None, 7, _PLANTED, (_PLANTED, 1), {"record_id": _PLANTED}, object()):
            _refuse(tenant, many, [items[0], wrong, items[1]], field=many.argument, index=1)
        for no_list in (None, 7, _PLANTED, iter(items), set(items[:0]), dict.fromkeys("ab")):
            _refuse(tenant, many, no_list, field=many.argument, index=None)

    def test_there_is_a_bound_on_how_many(self, harness: Harness, many: Many) -> None:
        tenant = harness.tenant()
        item = many.prepare(tenant, _NAMES[0])
        items = [item] * (_LIMITS.items_max + 1)  # it is looked at before the items are
        _refuse(tenant, many, items, field=many.argument, index=None, limit=_LIMITS.items_max)

    def test_there_is_a_bound_on_all_values_together(self, harness: Harness, many: Many) -> None:
        most = b"x" * _LIMITS.payload_bytes_max
        count = _LIMITS.items_bytes_max // len(most)
        tenant = harness.tenant()
        values: dict[str, Callable[[Any], Any]] = {
            "create_many": lambda item: NewState(item.record_id, most),
            "update_many": lambda item: StateUpdate(item.record_id, most, 1),
            "complete_many": lambda item: Completion(item.attempt, most),
        }
        if many.name not in values:  # they keep no value
            return
        made = [values[many.name](many.prepare(tenant, f"{_PLANTED}-{number}")) for number in range(count + 1)]
        _refuse(tenant, many, made, field="items", index=None, limit=_LIMITS.items_bytes_max, kind=PayloadError)
        assert len(list(many.on(tenant, made[:-1], atomic=True))) == count


def _refuse(
    tenant: Tenant,
    many: Many,
    items: Any,
    *,
    field: str,
    index: int | None,
    atomic: bool = False,
    limit: float | None = None,
    kind: type[InvalidInputError] = InvalidInputError,
) -> None:
    """See the call refuse its items, and write none of them."""
    before = _snapshot(tenant)
    with pytest.raises(InvalidInputError) as refused:
        many.on(tenant, items, atomic=atomic)
    error = refused.value
    assert (type(error), error.field, error.index, error.limit) == (kind, field, index, limit)
    assert leaks(error, _PLANTED) == []
    assert _snapshot(tenant) == before


def _spoiled(harness: Harness, many: Many, name: str = "acme") -> tuple[Tenant, list[Any]]:
    """Return items of which two will be refused."""
    tenant = harness.tenant(name)
    items = [many.prepare(tenant, name) for name in _NAMES]
    for index in _SPOILED:
        many.spoil(tenant, _NAMES[index], items[index])
    return tenant, items


def _done(harness: Harness, many: Many) -> list[str]:
    """Return the names of the items that were accepted, as another client finds them."""
    tenant = harness.tenant(client=1)
    return [name for name in _NAMES if many.done(tenant, name)]


def _snapshot(tenant: Tenant) -> tuple[object, ...]:
    return tenant.states.list().items, tenant.leases.list().items, tenant.idempotency.list().items
