"""Typed views of states: values of one model, and statuses of one lifecycle."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

from pydantic import TypeAdapter

from nl2state.errors import CorruptError, PayloadError
from nl2state.many import Outcomes
from nl2state.pages import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nl2state.leases import Fence
    from nl2state.lifecycle import Lifecycle
    from nl2state.payload import Value
    from nl2state.states import ExpectedRevision, FencedStateStore, NewState, StateRecord, StateUpdate, Ttl

__all__ = ["CreateOptions", "ListOptions", "StateView", "UpdateOptions"]

M = TypeVar("M")


class CreateOptions(TypedDict, total=False):
    """The options of FencedStateStore.create and put, save the lifecycle."""

    status: str | None
    ttl_seconds: float | None
    schema_version: int
    request_id: str | None
    parent_id: str | None
    fence: Fence | None


class UpdateOptions(TypedDict, total=False):
    """The options of FencedStateStore.update, save the lifecycle."""

    expected_status: str | None
    status: str | None
    ttl_seconds: Ttl
    schema_version: int | None
    request_id: str | None
    fence: Fence | None


class ListOptions(TypedDict, total=False):
    """The options of StateStore.list and list_ids."""

    prefix: str | None
    status: str | None
    after: str | None
    limit: int


class StateView(Generic[M]):
    """The records of a scope, with values of one model and statuses of one lifecycle.

    The calls and their errors are FencedStateStore's. A value is validated as it is read: one that the model refuses
    raises CorruptError, without a word of the value.
    """

    def __init__(self, states: FencedStateStore, model: type[M], lifecycle: Lifecycle) -> None:
        self._states = states
        self._adapter: TypeAdapter[M] = TypeAdapter(model)
        self._lifecycle = lifecycle

    def create(self, record_id: str, value: M, **options: Unpack[CreateOptions]) -> StateRecord[M]:
        """Make a record that must be absent."""
        record = self._states.create(record_id, self._dump(value), lifecycle=self._lifecycle, **options)
        return _with_value(record, value)

    def update(
        self, record_id: str, value: M, *, expected_revision: ExpectedRevision, **options: Unpack[UpdateOptions]
    ) -> StateRecord[M]:
        """Write a record at its expected revision."""
        record = self._states.update(
            record_id, self._dump(value), expected_revision=expected_revision, lifecycle=self._lifecycle, **options
        )
        return _with_value(record, value)

    def create_many(
        self, items: Sequence[NewState[M]], *, atomic: bool, fence: Fence | None = None
    ) -> Outcomes[StateRecord[M]]:
        """Make records that must be absent."""
        dumped = self._dump_each(items)
        outcomes = self._states.create_many(dumped, atomic=atomic, lifecycle=self._lifecycle, fence=fence)
        return _with_values(outcomes, items)

    def update_many(
        self, items: Sequence[StateUpdate[M]], *, atomic: bool, fence: Fence | None = None
    ) -> Outcomes[StateRecord[M]]:
        """Write records at their expected revisions."""
        dumped = self._dump_each(items)
        outcomes = self._states.update_many(dumped, atomic=atomic, lifecycle=self._lifecycle, fence=fence)
        return _with_values(outcomes, items)

    def put(self, record_id: str, value: M, **options: Unpack[CreateOptions]) -> StateRecord[M]:
        """Write a record, whatever is there."""
        record = self._states.put(record_id, self._dump(value), lifecycle=self._lifecycle, **options)
        return _with_value(record, value)

    def get(self, record_id: str) -> StateRecord[M] | None:
        """Return the record, or None where there is none."""
        record = self._states.get(record_id)
        return None if record is None else _with_value(record, self._load(record.value))

    def require(self, record_id: str) -> StateRecord[M]:
        """Return the record. Raises NotFoundError where there is none."""
        record = self._states.require(record_id)
        return _with_value(record, self._load(record.value))

    def get_many(self, record_ids: Sequence[str]) -> list[StateRecord[M] | None]:
        """Return the records of these ids in their order. One value that the model refuses fails the call."""
        return [
            None if record is None else _with_value(record, self._load(record.value, index))
            for index, record in enumerate(self._states.get_many(record_ids))
        ]

    def get_revision(self, record_id: str) -> int | None:
        """Return the record's revision, or None where there is none."""
        return self._states.get_revision(record_id)

    def get_checkpoint(self, record_id: str, request_id: str) -> StateRecord[M] | None:
        """Return the record if its last write had this `request_id`, or else None."""
        record = self._states.get_checkpoint(record_id, request_id)
        return None if record is None else _with_value(record, self._load(record.value))

    def list(self, **options: Unpack[ListOptions]) -> Page[StateRecord[M]]:
        """Return a page of the records. One value that the model refuses fails the page."""
        status = options.get("status")
        if status is not None:
            self._lifecycle.check(status)
        page = self._states.list(**options)
        return Page(tuple(_with_value(record, self._load(record.value)) for record in page.items), page.after)

    def list_ids(self, **options: Unpack[ListOptions]) -> Page[str]:
        """Return a page of the records' ids."""
        status = options.get("status")
        if status is not None:
            self._lifecycle.check(status)
        return self._states.list_ids(**options)

    def delete(self, record_id: str, *, expected_revision: ExpectedRevision, fence: Fence | None = None) -> int:
        """Empty a record at its expected revision, and return the revision that this made."""
        return self._states.delete(record_id, expected_revision=expected_revision, fence=fence)

    def _dump_each(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the items with what is stored of their values. What is none, or no list, the store refuses."""
        if not isinstance(items, (list, tuple)):
            return items
        return [
            replace(item, value=self._dump(item.value, index)) if _has_value(item) else item
            for index, item in enumerate(items)
        ]

    def _dump(self, value: M, index: int | None = None) -> Value:
        """Return what is stored of a value, once it is seen that it can be read back."""
        with warnings.catch_warnings(), suppress(ValueError, TypeError):  # which quote the value, so nothing is chained
            warnings.simplefilter("error")
            dumped: Value = json.loads(self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error"))
            self._adapter.validate_json(json.dumps(dumped))
            return dumped
        raise PayloadError(
            "value is not of the view's model, or cannot be read back as one", field="value", index=index
        )

    def _load(self, value: Value, index: int | None = None) -> M:
        with suppress(ValueError, TypeError):  # as above
            return self._adapter.validate_json(json.dumps(value))
        raise CorruptError("a stored value is not of the view's model", index=index)


def _has_value(item: object) -> bool:
    return is_dataclass(item) and not isinstance(item, type) and hasattr(item, "value")


def _with_value(record: StateRecord[Value], value: M) -> StateRecord[M]:
    untyped: StateRecord[Any] = record
    return replace(untyped, value=value)


def _with_values(outcomes: Outcomes[StateRecord[Value]], items: Sequence[Any]) -> Outcomes[StateRecord[Any]]:
    return Outcomes(
        outcomes.refusals[index] if index in outcomes.refusals else _with_value(outcomes[index], item.value)
        for index, item in enumerate(items)
    )
