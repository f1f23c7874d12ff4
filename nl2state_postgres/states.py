"""States on PostgreSQL. The statements, and what they rest on, are in sql/states.sql."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from nl2state.errors import ConflictError, StoreError, StoreTimeoutError
from nl2state.expectations import Expectation, Found, refuse_creation
from nl2state.leases import Fence
from nl2state.lifecycle import DEFAULT_LIFECYCLE, Lifecycle, checked_lifecycle
from nl2state.limits import checked_integer
from nl2state.many import Outcomes, check_atomic, check_bytes, checked_items
from nl2state.pages import PAGE_SIZE, Page, page_of
from nl2state.payload import FORMAT, Value, decode, encode
from nl2state.states import (
    NEVER,
    ExpectedRevision,
    FencedStateStore,
    NewState,
    StateRecord,
    StateUpdate,
    Ttl,
    checked_revision,
)
from nl2state_postgres import rows
from nl2state_postgres.binding import PostgresBinding, columns_of
from nl2state_postgres.runners import Row

__all__ = ["PostgresStates"]

_TRIES = 10

_NOTHING_ELSE = (None, None, None, None)  # of an update's options that change, or expect, more than the value

_NEW_STATE = attrgetter(*(each.name for each in fields(NewState)[2:]))
_STATE_UPDATE = attrgetter(*(each.name for each in fields(StateUpdate)[2:]))

_WRITTEN = (
    "record_id",
    "status",
    "is_terminal",
    "ttl_seconds",
    "schema_version",
    "request_id",
    "payload",
    "payload_encoding",
)
_CREATED = (*_WRITTEN, "parent_id")
_UPDATED = (*_WRITTEN, "expected_revision", "expected_status", "lift_expiry")
_Refuse: TypeAlias = Callable[[dict[str, Any], Found | None], None]  # handed a write's columns, and what was found
Item = TypeVar("Item", NewState[Value], StateUpdate[Value])


class PostgresStates(FencedStateStore):
    """The records of one scope. What the calls promise is FencedStateStore's."""

    def __init__(self, binding: PostgresBinding) -> None:
        self._binding = binding

    def create(
        self,
        record_id: str,
        value: Value,
        *,
        status: str | None = None,
        ttl_seconds: float | None = None,
        schema_version: int = 1,
        request_id: str | None = None,
        parent_id: str | None = None,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        fence: Fence | None = None,
    ) -> StateRecord[Value]:
        """Make a record that must be absent."""
        values = self._created(
            lifecycle, record_id, value, (status, ttl_seconds, schema_version, request_id, parent_id)
        )
        row = self._write("create_state", fence, refuse_creation, values)
        return rows.state_record(record_id, row, value)

    def update(
        self,
        record_id: str,
        value: Value,
        *,
        expected_revision: ExpectedRevision,
        expected_status: str | None = None,
        status: str | None = None,
        ttl_seconds: Ttl = None,
        schema_version: int | None = None,
        request_id: str | None = None,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        fence: Fence | None = None,
    ) -> StateRecord[Value]:
        """Write a record that is at the expected revision."""
        options = expected_revision, expected_status, status, ttl_seconds, schema_version, request_id
        values = self._updated(lifecycle, record_id, value, options)
        statement = "update_value" if options[1:5] == _NOTHING_ELSE else "update_state"
        row = self._write(statement, fence, lambda found: _refuse_update(values, found), values)
        return rows.state_record(record_id, row, value)

    def put(
        self,
        record_id: str,
        value: Value,
        *,
        status: str | None = None,
        ttl_seconds: float | None = None,
        schema_version: int = 1,
        request_id: str | None = None,
        parent_id: str | None = None,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        fence: Fence | None = None,
    ) -> StateRecord[Value]:
        """Write a record, whatever is there."""
        binding, lifecycle = self._binding, checked_lifecycle(lifecycle)
        sources = None if status is None else lifecycle.sources(lifecycle.check(status))
        values = {
            "status": binding.optional_id("status", status),
            "initial_status": binding.id("status", lifecycle.initial),
            "source_statuses": sources,
            "is_terminal": status in lifecycle.terminal,
            "ttl_seconds": None if ttl_seconds is None else binding.ttl("ttl_seconds", ttl_seconds),
            "schema_version": checked_integer("schema_version", schema_version),
            "request_id": binding.optional_id("request_id", request_id),
            "parent_id": binding.optional_id("parent_id", parent_id),
            "record_id": binding.id("record_id", record_id),
            "payload": (stored := encode(value, binding.limits)).data,
            "payload_encoding": stored.encoding,
            "payload_format": stored.format,
        }
        refuse = Expectation(None, sources=sources, required=False).refuse
        row = self._write("put_state", fence, refuse, values)
        return rows.state_record(record_id, row, value)

    def get(self, record_id: str) -> StateRecord[Value] | None:
        """Return the record, or None where there is none."""
        return self._record("get_state", record_id, {})

    def get_many(self, record_ids: Sequence[str]) -> list[StateRecord[Value] | None]:
        """Return the records of these ids in their order, None for each that is not there."""
        binding = self._binding
        record_ids = checked_items(
            record_ids, str, partial(binding.id, "record_id"), None, binding.limits, field="record_ids"
        )
        found: list[StateRecord[Value] | None] = [None] * len(record_ids)
        for place, *row in binding.rows("get_states", {"each_record_id": record_ids}) if record_ids else ():
            found[place - 1] = rows.state_record(record_ids[place - 1], tuple(row), decode(*row[9:]))
        return found

    def get_revision(self, record_id: str) -> int | None:
        """Return the record's revision, or None where there is none."""
        row = self._binding.row("get_revision", {"record_id": self._binding.id("record_id", record_id)})
        return None if row is None else int(row[0])

    def get_checkpoint(self, record_id: str, request_id: str) -> StateRecord[Value] | None:
        """Return the record if its last write had this `request_id`, or else None."""
        return self._record("get_checkpoint", record_id, {"request_id": self._binding.id("request_id", request_id)})

    def list(
        self,
        *,
        prefix: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[StateRecord[Value]]:
        """Return a page of the records in the order of their ids."""
        return page_of(self._scan("list_states", prefix, status, after, limit), limit, rows.listed_state)

    def list_ids(
        self,
        *,
        prefix: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[str]:
        """Return a page of the records' ids."""
        scanned = self._scan("list_state_ids", prefix, status, after, limit)
        return page_of(scanned, limit, lambda record_id, listed: record_id if listed else None)

    def delete(self, record_id: str, *, expected_revision: ExpectedRevision, fence: Fence | None = None) -> int:
        """Empty a record that is at the expected revision, and return the revision that this made."""
        revision = checked_revision(expected_revision)
        values = {"record_id": self._binding.id("record_id", record_id), "expected_revision": revision}
        row = self._write("delete_state", fence, Expectation(revision, writes=False).refuse, values)
        return int(row[0])

    def create_many(
        self,
        items: Sequence[NewState[Value]],
        *,
        atomic: bool,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        fence: Fence | None = None,
    ) -> Outcomes[StateRecord[Value]]:
        """Make records that must be absent."""
        lifecycle = checked_lifecycle(lifecycle)

        def columns(item: NewState[Value]) -> dict[str, Any]:
            return self._created(lifecycle, item.record_id, item.value, _NEW_STATE(item))

        fence, checked = self._checked(items, NewState, columns, fence, atomic=atomic)
        return self._write_many(
            "create_states", fence, checked, lambda _, found: refuse_creation(found), names=_CREATED, atomic=atomic
        )

    def update_many(
        self,
        items: Sequence[StateUpdate[Value]],
        *,
        atomic: bool,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        fence: Fence | None = None,
    ) -> Outcomes[StateRecord[Value]]:
        """Write records that are at their expected revisions."""
        lifecycle = checked_lifecycle(lifecycle)

        def columns(item: StateUpdate[Value]) -> dict[str, Any]:
            return self._updated(lifecycle, item.record_id, item.value, _STATE_UPDATE(item))

        fence, checked = self._checked(items, StateUpdate, columns, fence, atomic=atomic)
        transitions = dict(zip(("from_statuses", "to_statuses"), lifecycle.pairs, strict=True))
        return self._write_many(
            "update_states", fence, checked, _refuse_update, names=_UPDATED, atomic=atomic, **transitions
        )

    def _record(self, statement: str, record_id: str, values: dict[str, Any]) -> StateRecord[Value] | None:
        values["record_id"] = self._binding.id("record_id", record_id)
        row = self._binding.row(statement, values)
        return None if row is None else rows.state_record(record_id, row, rows.state_value(row))

    def _scan(
        self, statement: str, prefix: str | None, status: str | None, after: str | None, limit: int
    ) -> Sequence[Row]:
        """Return the rows that a page is made of, listed or not."""
        span = self._binding.span(after=after, limit=limit, prefix=prefix)
        values = {"after": span.after, "first": span.first, "before": span.before, "page_size": span.limit}
        return self._binding.rows(statement, {"status": self._binding.optional_id("status", status), **values})

    def _created(
        self,
        lifecycle: Lifecycle,
        record_id: str,
        value: Value,
        options: tuple[str | None, float | None, int, str | None, str | None],
    ) -> dict[str, Any]:
        """Check what a record is to be made of, and return its columns."""
        binding, lifecycle = self._binding, checked_lifecycle(lifecycle)
        status, ttl_seconds, schema_version, request_id, parent_id = options
        status = lifecycle.initial if status is None else lifecycle.check(status)
        return {
            "status": binding.id("status", status),
            "is_terminal": status in lifecycle.terminal,
            "ttl_seconds": None if ttl_seconds is None else binding.ttl("ttl_seconds", ttl_seconds),
            "schema_version": checked_integer("schema_version", schema_version),
            "request_id": binding.optional_id("request_id", request_id),
            "parent_id": binding.optional_id("parent_id", parent_id),
            "payload": (stored := encode(value, binding.limits)).data,
            "payload_encoding": stored.encoding,
            "payload_format": stored.format,
            "record_id": binding.id("record_id", record_id),
        }

    def _updated(
        self,
        lifecycle: Lifecycle,
        record_id: str,
        value: Value,
        options: tuple[ExpectedRevision, str | None, str | None, Ttl, int | None, str | None],
    ) -> dict[str, Any]:
        """Check what a record is to become, and return its columns, and what is expected of it."""
        binding, lifecycle = self._binding, checked_lifecycle(lifecycle)
        expected_revision, expected_status, status, ttl_seconds, schema_version, request_id = options
        sources = None if status is None else lifecycle.sources(lifecycle.check(status))
        return {
            "expected_status": binding.optional_id("expected_status", expected_status),
            "expected_revision": checked_revision(expected_revision),
            "source_statuses": sources,
            "status": binding.optional_id("status", status),
            "is_terminal": status in lifecycle.terminal,
            "lift_expiry": ttl_seconds is NEVER,
            "ttl_seconds": (
                None if ttl_seconds is None or ttl_seconds is NEVER else binding.ttl("ttl_seconds", ttl_seconds)
            ),
            "schema_version": None if schema_version is None else checked_integer("schema_version", schema_version),
            "request_id": binding.optional_id("request_id", request_id),
            "payload": (stored := encode(value, binding.limits)).data,
            "payload_encoding": stored.encoding,
            "payload_format": stored.format,
            "record_id": binding.id("record_id", record_id),
        }

    def _checked(
        self,
        items: Sequence[Item],
        kind: type[Item],
        columns: Callable[[Item], dict[str, Any]],
        fence: Fence | None,
        *,
        atomic: bool,
    ) -> tuple[Fence | None, Sequence[tuple[Value, dict[str, Any]]]]:
        """Check a call for many, and return its fence, and the value and the columns of each item."""
        limits = self._binding.limits
        check_atomic(atomic)
        fence = self._binding.fence_of(fence)
        checked = checked_items(items, kind, columns, itemgetter("record_id"), limits)
        check_bytes((len(each["payload"]) for each in checked), limits)
        return fence, [(item.value, each) for item, each in zip(items, checked, strict=True)]

    def _write(
        self, statement: str, fence: Fence | None, refuse: Callable[[Found | None], None], values: dict[str, Any]
    ) -> Row:
        """Run a write, and find the words for its refusal: the fence first, then what `refuse` finds.

        The record is read again for that. Where nothing speaks against the write by then, it is tried again.
        """
        binding = self._binding
        fence = binding.fence_of(fence)
        for _ in range(_TRIES):
            row = binding.write(statement, fence, values)
            if row is not None:
                return row
            binding.require_fence(fence)
            row = binding.row("explain_state", {"record_id": values["record_id"]})
            refuse(None if row is None else _Found(*row))
        raise StoreTimeoutError("the record changed under each of the tries")

    def _write_many(
        self,
        statement: str,
        fence: Fence | None,
        items: Sequence[tuple[Value, dict[str, Any]]],
        refuse: _Refuse,
        *,
        names: Sequence[str],
        atomic: bool,
        **common: Any,
    ) -> Outcomes[StateRecord[Value]]:
        """Run a write of many records, as _write does. Where it is atomic, the first refusal undoes it."""
        if not items:
            return Outcomes(())
        common["payload_format"] = FORMAT
        outcomes: dict[int, StateRecord[Value] | StoreError] = {}
        left = {columns["record_id"]: index for index, (_, columns) in enumerate(items)}
        with self._binding.many(atomic=atomic) as binding:
            try:
                for _ in range(_TRIES):
                    columns = columns_of([items[index][1] for index in left.values()], names)
                    written = binding.write_many(statement, fence, {**columns, **common})
                    for record_id, *row in written:
                        index = left.pop(record_id)
                        outcomes[index] = rows.state_record(record_id, tuple(row), items[index][0])
                    if left and not written:
                        binding.require_fence(fence)
                    refused = _refused(binding, {name: items[index][1] for name, index in left.items()}, refuse)
                    for record_id, refusal in refused.items():
                        index = left.pop(record_id)
                        outcomes[index] = refusal.at(index)
                    if not left:
                        break
                else:
                    raise StoreTimeoutError("the records changed under each of the tries")
            except StoreError as error:
                if atomic or binding.in_transaction or all(isinstance(each, StoreError) for each in outcomes.values()):
                    raise
                outcomes.update({index: error.at(index) for index in left.values()})  # the others are committed
            return Outcomes([outcomes[index] for index in range(len(items))], atomic=atomic)


def _refused(
    binding: PostgresBinding, items: Mapping[str, dict[str, Any]], refuse: _Refuse
) -> dict[str, ConflictError]:
    """Return the refusals of these items, by their records: of those which something speaks against now."""
    explained = binding.rows("explain_states", {"each_record_id": [*items]}) if items else []
    found = {record_id: _Found(*row) for record_id, *row in explained}
    refused = {}
    for record_id, columns in items.items():
        try:
            refuse(columns, found.get(record_id))
        except ConflictError as refusal:
            refused[record_id] = refusal
    return refused


def _refuse_update(values: dict[str, Any], found: Found | None) -> None:
    expected = Expectation(values["expected_revision"], values["expected_status"], values["source_statuses"])
    expected.refuse(found)


class _Found(NamedTuple):
    """The columns of `explain_state`."""

    revision: int
    status: str
    is_terminal: bool
