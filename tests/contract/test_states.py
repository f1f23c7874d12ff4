"""Lifecycles and typed views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from nl2state import (
    DEFAULT_LIFECYCLE,
    CorruptError,
    FencingRejectedError,
    InvalidInputError,
    Lifecycle,
    NewState,
    NotFoundError,
    Page,
    PayloadError,
    StateUpdate,
    TransitionError,
)
from nl2state.testing.harness import Harness


class Order(BaseModel):
    """A value of the tests."""

    total: int
    paid: bool = False


@dataclass
class Point:
    """Another, that is no pydantic model."""

    x: float


def test_a_view_writes_and_reads_its_model(harness: Harness) -> None:
    states = harness.tenant().states
    orders = states.of(Order)
    created = orders.create("o", Order(total=7), request_id="q")
    assert created.value == Order(total=7)
    updated = orders.update("o", Order(total=7, paid=True), expected_revision=1, status="running")
    assert orders.require("o") == updated
    assert orders.get("p") is None
    with pytest.raises(NotFoundError):
        orders.require("p")
    assert states.require("o").value == {"total": 7, "paid": True}
    assert states.of(Point).create("p", Point(1.5)).value == states.of(Point).require("p").value
    assert orders.put("o", Order(total=8), request_id="q-2").value == Order(total=8)
    assert orders.get_checkpoint("o", "q-2") == orders.require("o")
    assert orders.get_checkpoint("o", "q") is None
    assert orders.get_revision("o") == 3
    assert orders.list(prefix="o", status="running") == Page((orders.require("o"),), None)
    assert orders.list_ids(status="created") == Page(("p",), None)
    with pytest.raises(InvalidInputError):
        orders.list_ids(status="of another lifecycle")
    assert orders.delete("o", expected_revision=3) == 4


def test_a_view_writes_and_reads_many(harness: Harness) -> None:
    tenant = harness.tenant()
    fence = tenant.leases.acquire("r", owner="a", ttl_seconds=600).fence
    line = Lifecycle(initial="new", statuses=frozenset({"new", "paid"}), transitions={"new": frozenset({"paid"})})
    orders = tenant.states.of(Order, lifecycle=line)
    created = orders.create_many([NewState(name, Order(total=7)) for name in "ba"], atomic=True, fence=fence)
    assert [(record.id, record.value, record.status) for record in created] == [
        ("b", Order(total=7), "new"),
        ("a", Order(total=7), "new"),
    ]
    assert orders.get_many(["a", "c", "b"]) == [created[1], None, created[0]]
    updates = [StateUpdate(name, Order(total=8, paid=True), 1, status="paid") for name in "cab"]
    outcomes = orders.update_many(updates, atomic=False, fence=fence)
    assert {index: type(error) for index, error in outcomes.refusals.items()} == {0: NotFoundError}
    assert outcomes[1] == orders.require("a")
    assert outcomes[2].value == Order(total=8, paid=True)
    with pytest.raises(TransitionError) as refused:
        orders.update_many([StateUpdate("a", Order(total=9), 2, status="new")], atomic=True)
    assert refused.value.index == 0
    tenant.leases.release(fence)
    with pytest.raises(FencingRejectedError):
        orders.create_many([NewState("d", Order(total=7))], atomic=False, fence=fence)


def test_of_many_the_one_that_a_view_cannot_take_is_named(harness: Harness) -> None:
    states = harness.tenant().states
    orders = states.of(Order)
    wrong = Order.model_construct(total="planted")
    with pytest.raises(PayloadError) as raised:
        orders.create_many([NewState("a", Order(total=1)), NewState("b", wrong)], atomic=False)
    assert (raised.value.field, raised.value.index) == ("value", 1)
    orders.create("a", Order(total=1))
    with pytest.raises(PayloadError) as raised:
        orders.update_many([StateUpdate("a", wrong, 1)], atomic=True)
    assert (raised.value.index, raised.value.__context__) == (0, None)
    states.create("planted", {"total": "planted"})
    with pytest.raises(CorruptError) as corrupt:
        orders.get_many(["b", "a", "planted"])
    assert (corrupt.value.index, corrupt.value.__context__) == (2, None)
    for items in (7, "ab", None, [7], [None], [NewState], [orders.require("a")], [StateUpdate("b", Order(total=1), 1)]):
        with pytest.raises(InvalidInputError) as refused:
            orders.create_many(items, atomic=True)  # type: ignore[arg-type]  # which is the point
        assert refused.value.field == "items"
    assert orders.list_ids().items == ("a", "planted")
    assert list(orders.create_many([], atomic=True)) == list(orders.update_many((), atomic=True)) == []


class Aliased(BaseModel):
    total: int = Field(alias="Total")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    total: int

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def doubled(self) -> int:
        return 2 * self.total


class Raw(BaseModel):
    data: Any


class Positive(BaseModel):
    planted: int = Field(gt=0)


@pytest.mark.parametrize("value", [Aliased(Total=1), Strict(at=datetime(2026, 1, 1, tzinfo=UTC)), Computed(total=2)])
def test_what_a_view_writes_it_can_read(harness: Harness, value: BaseModel) -> None:
    view = harness.tenant().states.of(type(value))
    view.create("r", value)
    assert view.require("r").value == value


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Order, {"total": "planted"}),
        (Order, Order.model_construct(total="planted")),
        (Raw, Raw(data=object())),
        (Raw, Raw(data=b"\xff")),
        (Positive, Positive.model_construct(planted=-1)),
    ],
)
def test_what_a_view_could_not_read_it_does_not_write(harness: Harness, model: type[BaseModel], value: Any) -> None:
    states = harness.tenant().states
    with pytest.raises(PayloadError) as raised:
        states.of(model).create("r", value)
    assert "planted" not in str(raised.value)
    assert raised.value.__context__ is None
    assert states.get("r") is None


def test_a_value_that_the_model_refuses_is_told_without_it(harness: Harness) -> None:
    states = harness.tenant().states
    states.create("o", {"total": "planted"})
    with pytest.raises(CorruptError) as raised:
        states.of(Order).get("o")
    assert raised.value.__context__ is None
    assert "planted" not in str(raised.value)


def test_a_lifecycle_is_consistent() -> None:
    a, b = frozenset({"a"}), frozenset({"b"})
    inconsistent: list[Callable[[], Lifecycle]] = [
        lambda: Lifecycle(initial="c", statuses=a),
        lambda: Lifecycle(initial="a", statuses=a, terminal=b),
        lambda: Lifecycle(initial="a", statuses=frozenset({"a", "a\0"})),
        lambda: Lifecycle(initial="a", statuses=frozenset({"a", "\ud800"})),
        lambda: Lifecycle(initial="a", statuses=a, terminal=a),
        lambda: Lifecycle(initial="a", statuses=a, transitions={"a": b}),
        lambda: Lifecycle(initial="a", statuses=a | b, terminal=b, transitions={"b": a}),
        lambda: Lifecycle(initial="a", statuses=["a"]),  # type: ignore[arg-type]  # which is the point
        lambda: Lifecycle(initial="a", statuses="a"),  # type: ignore[arg-type]  # which is the point
        lambda: Lifecycle(initial=["a"], statuses=a),  # type: ignore[arg-type]  # which is the point
        lambda: Lifecycle(initial="a", statuses=a, terminal=["a"]),  # type: ignore[arg-type]  # which is the point
        lambda: Lifecycle(initial="a", statuses=a, transitions=["a"]),  # type: ignore[arg-type]  # which is the point
        lambda: Lifecycle(initial="a", statuses=a, transitions={"a": "a"}),  # type: ignore[dict-item]  # which is the point
    ]
    for broken in inconsistent:
        with pytest.raises(InvalidInputError):
            broken()


def test_the_sources_of_a_status_are_those_that_lead_to_it_and_itself() -> None:
    line = Lifecycle(
        initial="a",
        statuses=frozenset("abc"),
        terminal=frozenset("c"),
        transitions={"a": frozenset("b"), "b": frozenset("c")},
    )
    assert [line.sources(status) for status in "abc"] == [("a",), ("a", "b"), ("b", "c")]
    assert DEFAULT_LIFECYCLE.sources("running") is None
