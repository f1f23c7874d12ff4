"""Lifecycles and typed views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from nl2state import DEFAULT_LIFECYCLE, CorruptError, InvalidInputError, Lifecycle, NotFoundError, Page, PayloadError
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
