"""The promises about many states: each item is written, refused and read as by the call for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

import pytest

from nl2state.errors import InvalidInputError, NotFoundError, PayloadError, RevisionConflictError, StoreError
from nl2state.lifecycle import Lifecycle
from nl2state.limits import Limits
from nl2state.payload import Value
from nl2state.states import ANY_REVISION, NEVER, NewState, StateRecord, StateUpdate
from nl2state.store import Tenant
from nl2state.testing.calls import plain
from nl2state.testing.harness import Harness
from nl2state.testing.refusals import leaks

__all__ = ["TestManyReadings", "TestManyWrites"]

_MOST: Final = Limits().items_max
_PLANTED: Final = "planted-4711"
_ORDERS: Final = Lifecycle(
    initial="new",
    statuses=frozenset({"new", "paid", "shipped"}),
    terminal=frozenset({"shipped"}),
    transitions={"new": frozenset({"paid"}), "paid": frozenset({"shipped"})},
)

_NEW: Final[tuple[NewState[Value], ...]] = (
    NewState("plain", 1),
    NewState("bytes", b"\x00"),
    NewState("none", None),
    NewState("nested", {"b": [1, None], "a": "\u00fc"}),
    NewState("paid", 1, status="paid"),
    NewState("shipped", 1, status="shipped"),
    NewState("short", 1, ttl_seconds=60),
    NewState("all", "", "paid", 600.0, 7, "q", "plain"),
)
_UPDATES: Final[tuple[StateUpdate[Value], ...]] = (
    StateUpdate("plain", 2, 1),
    StateUpdate("bytes", b"", ANY_REVISION),
    StateUpdate("none", None, 1, status="paid"),
    StateUpdate("nested", {"a": 1}, 1, expected_status="new", status="new"),
    StateUpdate("paid", 2, 1, expected_status="paid", status="shipped"),
    StateUpdate("short", 2, 1, ttl_seconds=NEVER),
    StateUpdate("all", "x", 1, ttl_seconds=60, schema_version=8, request_id="q-2"),
)
_REFUSED: Final[tuple[StateUpdate[Value], ...]] = (
    StateUpdate("absent", 2, 1, expected_status="paid", status="shipped"),
    StateUpdate("absent too", 2, ANY_REVISION),
    StateUpdate("shipped", 2, 7, expected_status="new", status="new"),
    StateUpdate("shipped-1", 2, 1, expected_status="new", status="new"),
    StateUpdate("shipped-2", 2, 1, expected_status="shipped", status="new"),
    StateUpdate("shipped-3", 2, ANY_REVISION),
    StateUpdate("plain", 2, 2),
    StateUpdate("plain-1", 2, 1, expected_status="paid", status="shipped"),
    StateUpdate("plain-2", 2, 1, status="shipped"),
)
"""Each with all that speaks against it, so that the order of the judgement shows."""
_JUDGED: Final = [
    "NotFoundError",
    "NotFoundError",
    "RevisionConflictError",
    "RevisionConflictError",
    "TerminalError",
    "TerminalError",
    "RevisionConflictError",
    "RevisionConflictError",
    "TransitionError",
]


class TestManyWrites:
    """P2, P3, P12: what a call for many does with an item is what the call for one does with it."""

    @pytest.mark.parametrize("atomic", [True, False])
    def test_an_item_is_written_as_by_the_call_for_one(self, harness: Harness, atomic: bool) -> None:
        one, many = harness.tenant("one"), harness.tenant("many")
        expected = [_create(one, item) for item in _NEW]
        created = list(many.states.create_many(_NEW, atomic=atomic, lifecycle=_ORDERS))
        _are_alike(many, created, expected)
        harness.advance(30)
        expected = [_update(one, item) for item in _UPDATES]
        updated = list(many.states.update_many(_UPDATES, atomic=atomic, lifecycle=_ORDERS))
        _are_alike(many, updated, expected)
        assert {record.id: record.revision for record in many.states.list().items} == {
            item.record_id: 1 if item.record_id == "shipped" else 2 for item in _NEW
        }
        harness.advance(40)
        assert many.states.get("short") is not None
        harness.advance(30)
        assert many.states.get("all") is None

    def test_refusals_are_judged_in_the_order_of_the_call_for_one(self, harness: Harness) -> None:
        one, many = harness.tenant("one"), harness.tenant("many")
        for tenant in (one, many):
            for number in range(4):
                tenant.states.create(
                    f"shipped-{number}" if number else "shipped", 1, status="shipped", lifecycle=_ORDERS
                )
                tenant.states.create(f"plain-{number}" if number else "plain", 1, lifecycle=_ORDERS)
        before = many.states.list()
        refusals = many.states.update_many(_REFUSED, atomic=False, lifecycle=_ORDERS).refusals
        assert list(refusals) == list(range(len(_REFUSED)))
        assert [type(error).__name__ for error in refusals.values()] == _JUDGED
        for index, item in enumerate(_REFUSED):
            with pytest.raises(StoreError) as of_one:
                _update(one, item)
            with pytest.raises(type(of_one.value)) as atomic:
                many.states.update_many(_REFUSED[index:], atomic=True, lifecycle=_ORDERS)
            for error, where in ((refusals[index], index), (atomic.value, 0)):
                assert error.args == of_one.value.args
                assert vars(error) == {**vars(of_one.value), "index": where}
        assert many.states.list() == before

    @pytest.mark.parametrize("atomic", [True, False])
    def test_a_record_made_again_goes_on_from_its_last_revision(self, harness: Harness, atomic: bool) -> None:
        states = harness.tenant().states
        states.create("deleted", "a")
        states.delete("deleted", expected_revision=1)
        states.create("expired", "a", ttl_seconds=60)
        states.update("expired", "b", expected_revision=1)
        states.create("short", "a", ttl_seconds=60)
        harness.advance(61)
        updates = [StateUpdate(name, "late", ANY_REVISION) for name in ("deleted", "expired")]
        refusals = states.update_many(updates, atomic=False).refusals
        assert [type(error) for error in refusals.values()] == [NotFoundError, NotFoundError]
        assert states.get_many(["deleted", "expired"]) == [None, None]
        made = states.create_many([NewState(name, "c") for name in ("expired", "new", "deleted")], atomic=atomic)
        assert [record.revision for record in made] == [3, 1, 3]
        late = [StateUpdate("deleted", "late", 1), StateUpdate("expired", "late", 2)]
        refusals = states.update_many(late, atomic=False).refusals
        assert [type(error) for error in refusals.values()] == [RevisionConflictError, RevisionConflictError]
        assert [record.value for record in states.list().items] == ["c", "c", "c"]

    def test_as_many_as_the_bound_are_written_and_read(self, harness: Harness) -> None:
        states = harness.tenant().states
        names = [f"n{number:04}" for number in range(_MOST)]
        backwards = names[::-1]
        created = states.create_many([NewState(name, name) for name in backwards], atomic=True)
        assert [record.value for record in created] == backwards
        updates: list[StateUpdate[Value]] = [StateUpdate(name, [name], 1) for name in names]
        assert {record.revision for record in states.update_many(updates, atomic=False)} == {2}
        found = states.get_many(backwards)
        assert [None if record is None else record.value for record in found] == [[name] for name in backwards]

    @pytest.mark.parametrize("name", [field.name for field in fields(NewState)])
    def test_a_new_record_that_cannot_be_is_named_by_its_index_and_its_field(self, harness: Harness, name: str) -> None:
        good = {"record_id": "s", "value": 1}
        states = harness.tenant().states
        for bad in _BAD[name]:
            wrong: Any = NewState(**{**good, name: bad})
            _refuse(lambda items: states.create_many(items, atomic=False), NewState("good", 1), wrong, name)
        assert states.list_ids().items == ()

    @pytest.mark.parametrize("name", [field.name for field in fields(StateUpdate)])
    def test_an_update_that_cannot_be_is_named_by_its_index_and_its_field(self, harness: Harness, name: str) -> None:
        good = {"record_id": "s", "value": 1, "expected_revision": 1}
        states = harness.tenant().states
        states.create_many([NewState("s", 1), NewState("good", 1)], atomic=True)
        bad_ones = _BAD[name] if name != "expected_revision" else [*_BAD[name], None]
        for bad in bad_ones:
            wrong: Any = StateUpdate(**{**good, name: bad})
            _refuse(lambda items: states.update_many(items, atomic=False), StateUpdate("good", 2, 1), wrong, name)
        assert [record.revision for record in states.list().items] == [1, 1]


_NO_NAMES: Final[list[Any]] = ["", f"{_PLANTED}\n", 7, "x" * 256]
_BAD: Final[dict[str, list[Any]]] = {
    **dict.fromkeys(("record_id", "request_id", "parent_id", "expected_status"), _NO_NAMES),
    "status": [_PLANTED, "", 7],
    "ttl_seconds": [0, -1, float("nan"), True, _PLANTED],
    "schema_version": [0, True, 1.0, _PLANTED],
    "expected_revision": [0, -1, True, 1.0, _PLANTED],
    "value": [float("nan"), {_PLANTED: [object()]}, (_PLANTED,), {"password": _PLANTED}, _PLANTED + "\ud800"],
}


class TestManyReadings:
    """P1, P11: many records by their ids, in the order in which they were asked for."""

    def test_each_is_returned_in_its_place_or_none(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create("z", {"n": 1}, request_id="q", parent_id="p")
        states.create("a", b"\x00")
        states.create("expired", 1, ttl_seconds=60)
        states.create("deleted", 1)
        states.delete("deleted", expected_revision=1)
        harness.tenant("other").states.create("theirs", 1)
        harness.advance(61)
        wanted = ["z", "absent", "a", "expired", "z", "deleted", "theirs", "a"]
        found = harness.tenant(client=1).states.get_many(wanted)
        assert found == [states.get(record_id) for record_id in wanted]
        assert [record is not None for record in found] == [True, False, True, False, True, False, False, True]
        assert harness.tenant("other").states.get_many(tuple(wanted)) == [
            harness.tenant("other").states.get(record_id) for record_id in wanted
        ]
        assert states.get_many([]) == []

    def test_a_transaction_reads_what_it_wrote_and_nobody_else_does(self, harness: Harness) -> None:
        states = harness.tenant().states
        states.create_many([NewState("a", 1), NewState("b", 1)], atomic=True)
        with harness.tenant().transaction() as tx:
            tx.states.update_many([StateUpdate("a", 2, 1)], atomic=True)
            tx.states.create_many([NewState("c", 2)], atomic=True)
            tx.states.delete("b", expected_revision=1)
            assert _values(tx.states.get_many(["c", "b", "a"])) == [2, None, 2]
            assert _values(states.get_many(["c", "b", "a"])) == [None, 1, 1]
        assert _values(states.get_many(["c", "b", "a"])) == [2, None, 2]

    def test_an_id_that_cannot_be_is_named_by_its_index(self, harness: Harness) -> None:
        states = harness.tenant().states
        for bad in ("", f"{_PLANTED}\x00", "x" * 256, f" {_PLANTED}"):
            with pytest.raises(InvalidInputError) as refused:
                states.get_many(["a", "a", bad])
            assert (refused.value.field, refused.value.index) == ("record_id", 2)
            assert leaks(refused.value, _PLANTED) == []
        for wrong in (None, 7, b"a", ["a"]):
            with pytest.raises(InvalidInputError) as refused:
                states.get_many(["a", wrong])  # type: ignore[list-item]  # which is the point
            assert (refused.value.field, refused.value.index) == ("record_ids", 1)

    def test_there_is_a_bound_on_how_many(self, harness: Harness) -> None:
        with pytest.raises(InvalidInputError) as refused:
            harness.tenant().states.get_many(["a"] * (_MOST + 1))
        assert (refused.value.field, refused.value.index, refused.value.limit) == ("record_ids", None, _MOST)
        assert harness.tenant().states.get_many(["a"] * _MOST) == [None] * _MOST


def _create(tenant: Tenant, item: NewState[Any]) -> StateRecord[Any]:
    return tenant.states.create(
        item.record_id,
        item.value,
        status=item.status,
        ttl_seconds=item.ttl_seconds,
        schema_version=item.schema_version,
        request_id=item.request_id,
        parent_id=item.parent_id,
        lifecycle=_ORDERS,
    )


def _update(tenant: Tenant, item: StateUpdate[Any]) -> StateRecord[Any]:
    return tenant.states.update(
        item.record_id,
        item.value,
        expected_revision=item.expected_revision,
        expected_status=item.expected_status,
        status=item.status,
        ttl_seconds=item.ttl_seconds,
        schema_version=item.schema_version,
        request_id=item.request_id,
        lifecycle=_ORDERS,
    )


def _are_alike(tenant: Tenant, found: list[StateRecord[Any]], expected: list[StateRecord[Any]]) -> None:
    """See that records are as expected, save the moment, and that they are what is stored."""
    assert [plain(record) for record in found] == [plain(record) for record in expected]
    assert tenant.states.get_many([record.id for record in found]) == found
    for record, other in zip(found, expected, strict=True):
        assert abs(record.created_at - other.created_at) < timedelta(seconds=20)
        assert abs(record.updated_at - other.updated_at) < timedelta(seconds=20)
        if record.expires_at is not None:
            assert other.expires_at is not None
            assert abs(record.expires_at - other.expires_at) < timedelta(seconds=20)


def _refuse(call: Callable[[list[Any]], object], good: object, wrong: object, name: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        call([good, wrong])
    error = refused.value
    assert (error.field, error.index) == (name, 1), wrong
    assert type(error) is (PayloadError if name == "value" else InvalidInputError)
    assert leaks(error, _PLANTED) == []


def _values(records: list[StateRecord[Any] | None]) -> list[object]:
    return [None if record is None else record.value for record in records]
