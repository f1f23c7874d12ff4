"""States in memory: compare-and-set under a row lock, and the order in which a write is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from nl2state.expectations import Expectation, refuse_creation
from nl2state.leases import Fence
from nl2state.lifecycle import DEFAULT_LIFECYCLE, Lifecycle, checked_lifecycle
from nl2state.limits import checked_integer
from nl2state.many import Outcomes, check_atomic, check_bytes, checked_items
from nl2state.pages import PAGE_SIZE, Page, page_of
from nl2state.payload import Value, decode, encode
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
from nl2state.store import Swept
from nl2state_memory import rows
from nl2state_memory.binding import MemoryBinding
from nl2state_memory.database import Database, Unit
from nl2state_memory.leases import guard
from nl2state_memory.many import run_each
from nl2state_memory.rows import StateRow
from nl2state_memory.tables import Slot, Strength

__all__ = ["MemoryStates", "sweep_deleted", "sweep_ended", "sweep_expired"]


class _Write(NamedTuple):
    """A write of a record, checked."""

    record_id: str
    refuse: Callable[[StateRow | None], None]
    """It is handed the live record, or None, and raises."""
    written: Callable[[StateRow | None, datetime], StateRow]
    """It is handed the row as it is, live or not, and returns the next."""
    value: Value = None
    value_bytes: int = 0


class MemoryStates(FencedStateStore):
    """The records of one scope. What the calls promise is FencedStateStore's."""

    def __init__(self, binding: MemoryBinding) -> None:
        self._binding = binding
        self._database = binding.session.database

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
        item = NewState(record_id, value, status, ttl_seconds, schema_version, request_id, parent_id)
        return self._write(self._creation(item, lifecycle), fence)

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
        return self._write_many(items, NewState, lambda item: self._creation(item, lifecycle), fence, atomic=atomic)

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
        item = StateUpdate(
            record_id, value, expected_revision, expected_status, status, ttl_seconds, schema_version, request_id
        )
        return self._write(self._update(item, lifecycle), fence)

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
        return self._write_many(items, StateUpdate, lambda item: self._update(item, lifecycle), fence, atomic=atomic)

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
        item = NewState(record_id, value, status, ttl_seconds, schema_version, request_id, parent_id)
        made = self._creation(item, lifecycle)
        sources = None if status is None else lifecycle.sources(status)

        def replaced(former: StateRow | None, at: datetime) -> StateRow:
            row = made.written(former, at)
            if former is None or not former.is_live(at):
                return row
            return replace(row, created_at=former.created_at, status=former.status if status is None else status)

        expected = Expectation(None, sources=sources, required=False)
        return self._write(made._replace(refuse=expected.refuse, written=replaced), fence)

    def get(self, record_id: str) -> StateRecord[Value] | None:
        """Return the record, or None where there is none."""
        row = self._find(record_id)
        return None if row is None else _record(record_id, row)

    def get_many(self, record_ids: Sequence[str]) -> list[StateRecord[Value] | None]:
        """Return the records of these ids in their order, None for each that is not there."""
        binding, states = self._binding, self._database.states
        ids = checked_items(
            record_ids, str, lambda each: binding.id("record_id", each), None, binding.limits, field="record_ids"
        )
        with binding.session.call() as unit:
            found = [self._live(unit.read(states, binding.name(each))) for each in ids]
        return [None if row is None else _record(record_id, row) for record_id, row in zip(ids, found, strict=True)]

    def get_revision(self, record_id: str) -> int | None:
        """Return the record's revision, or None where there is none."""
        row = self._find(record_id)
        return None if row is None else row.revision

    def get_checkpoint(self, record_id: str, request_id: str) -> StateRecord[Value] | None:
        """Return the record if its last write had this `request_id`, or else None."""
        self._binding.id("request_id", request_id)
        row = self._find(record_id)
        return None if row is None or row.request_id != request_id else _record(record_id, row)

    def list(
        self,
        *,
        prefix: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[StateRecord[Value]]:
        """Return a page of the records in the order of their ids."""
        scanned, listed = self._scan(prefix, status, after, limit)
        return page_of(scanned, limit, lambda record_id, row: _record(record_id, row) if listed(row) else None)

    def list_ids(
        self,
        *,
        prefix: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[str]:
        """Return a page of the records' ids."""
        scanned, listed = self._scan(prefix, status, after, limit)
        return page_of(scanned, limit, lambda record_id, row: record_id if listed(row) else None)

    def delete(self, record_id: str, *, expected_revision: ExpectedRevision, fence: Fence | None = None) -> int:
        """Empty a record that is at the expected revision, and return the revision that this made."""
        expected = Expectation(checked_revision(expected_revision), writes=False)

        deletion = _Write(self._binding.id("record_id", record_id), expected.refuse, _emptied)
        return self._written(deletion, fence).revision

    def _creation(self, item: NewState[Value], lifecycle: Lifecycle) -> _Write:
        """Check what a record is made of, and return what makes it. Raises InvalidInputError."""
        binding, lifecycle = self._binding, checked_lifecycle(lifecycle)
        begun = binding.id("status", lifecycle.initial if item.status is None else lifecycle.check(item.status))
        life = None if item.ttl_seconds is None else timedelta(seconds=binding.ttl("ttl_seconds", item.ttl_seconds))
        checked_integer("schema_version", item.schema_version)
        binding.optional_id("request_id", item.request_id)
        binding.optional_id("parent_id", item.parent_id)
        payload = encode(item.value, binding.limits)
        is_terminal = begun in lifecycle.terminal

        def made(former: StateRow | None, at: datetime) -> StateRow:
            return StateRow(
                revision=1 if former is None else former.revision + 1,  # so that a writer of the former life is refused
                status=begun,
                is_terminal=is_terminal,
                schema_version=item.schema_version,
                payload=payload,
                request_id=item.request_id,
                parent_id=item.parent_id,
                created_at=at,
                updated_at=at,
                expires_at=None if life is None else at + life,
                ended_at=at if is_terminal else None,
            )

        return _Write(binding.id("record_id", item.record_id), refuse_creation, made, item.value, len(payload.data))

    def _update(self, item: StateUpdate[Value], lifecycle: Lifecycle) -> _Write:
        """Check what an update is made of, and return what makes it. Raises InvalidInputError."""
        binding, lifecycle, status = self._binding, checked_lifecycle(lifecycle), item.status
        sources = None if status is None else lifecycle.sources(lifecycle.check(status))
        binding.optional_id("expected_status", item.expected_status)
        expected = Expectation(checked_revision(item.expected_revision), status=item.expected_status, sources=sources)
        binding.optional_id("status", status)
        if item.ttl_seconds is not None and item.ttl_seconds is not NEVER:
            binding.ttl("ttl_seconds", item.ttl_seconds)
        if item.schema_version is not None:
            checked_integer("schema_version", item.schema_version)
        binding.optional_id("request_id", item.request_id)
        payload = encode(item.value, binding.limits)
        is_terminal = status in lifecycle.terminal

        def updated(former: StateRow | None, at: datetime) -> StateRow:
            row = _there(former)
            return replace(
                row,
                revision=row.revision + 1,
                status=row.status if status is None else status,
                is_terminal=is_terminal,
                schema_version=row.schema_version if item.schema_version is None else item.schema_version,
                payload=payload,
                request_id=item.request_id,
                updated_at=at,
                expires_at=_expiry(row, item.ttl_seconds, at),
                ended_at=at if is_terminal else None,
            )

        return _Write(binding.id("record_id", item.record_id), expected.refuse, updated, item.value, len(payload.data))

    def _find(self, record_id: str) -> StateRow | None:
        name = self._binding.name(self._binding.id("record_id", record_id))
        with self._binding.session.call() as unit:
            return self._live(unit.read(self._database.states, name))

    def _scan(
        self, prefix: str | None, status: str | None, after: str | None, limit: int
    ) -> tuple[Sequence[tuple[str, StateRow]], Callable[[StateRow], bool]]:
        """Return the rows that a page is made of, live or not, and what says of one whether it is listed."""
        binding = self._binding
        span = binding.span(after=after, limit=limit, prefix=prefix)
        binding.optional_id("status", status)
        with binding.session.call() as unit:
            scanned, at = self._database.states.scan(unit, binding.scope, span), self._database.clock()
        return scanned, lambda row: row.is_live(at) and status in (None, row.status)

    def _write(self, write: _Write, fence: Fence | None) -> StateRecord[Value]:
        return rows.state_record(write.record_id, self._written(write, fence), write.value)

    def _written(self, write: _Write, fence: Fence | None) -> StateRow:
        fence = self._binding.fence_of(fence)
        with self._binding.session.call() as unit:
            guard(unit, self._binding, fence)
            return self._apply(unit, write)

    def _write_many(
        self,
        items: Sequence[Any],
        kind: type[Any],
        check: Callable[[Any], _Write],
        fence: Fence | None,
        *,
        atomic: bool,
    ) -> Outcomes[StateRecord[Value]]:
        binding = self._binding
        check_atomic(atomic)
        fence = binding.fence_of(fence)
        writes = checked_items(items, kind, check, lambda write: write.record_id, binding.limits)
        check_bytes((write.value_bytes for write in writes), binding.limits)
        if not writes:
            return Outcomes(())

        def one(index: int) -> StateRecord[Value]:
            write = writes[index]
            return rows.state_record(write.record_id, self._apply(unit, write), write.value)

        with binding.session.call() as unit:
            guard(unit, binding, fence)
            return run_each([write.record_id for write in writes], one, atomic=atomic)

    def _apply(self, unit: Unit, write: _Write) -> StateRow:
        """Lock the record's row and write it, unless `refuse` speaks against it."""
        states, name = self._database.states, self._binding.name(write.record_id)

        def agreed(row: StateRow | None) -> bool:
            write.refuse(self._live(row))
            return True

        unit.claim(states, name, Strength.NO_KEY_UPDATE, agreed)
        row = write.written(unit.read(states, name), self._database.clock())
        unit.write(states, name, row)
        return row

    def _live(self, row: StateRow | None) -> StateRow | None:
        return row if row is not None and row.is_live(self._database.clock()) else None


def _record(record_id: str, row: StateRow) -> StateRecord[Value]:
    """Return the record of a live row."""
    if row.payload is None:
        raise AssertionError("a live row has a payload")
    return rows.state_record(record_id, row, decode(*row.payload))


def _there(row: StateRow | None) -> StateRow:
    """Return a row that `refuse` has seen."""
    if row is None:
        raise AssertionError("an absent record is refused")
    return row


def _expiry(row: StateRow, ttl_seconds: Ttl, at: datetime) -> datetime | None:
    """Return when an updated record expires: as before unless a TTL, or NEVER, is given."""
    if ttl_seconds is NEVER:
        return None
    return row.expires_at if ttl_seconds is None else at + timedelta(seconds=ttl_seconds)


def _emptied(former: StateRow | None, at: datetime) -> StateRow:
    row = _there(former)
    return replace(
        row,
        revision=row.revision + 1,
        is_terminal=False,
        payload=None,
        request_id=None,
        parent_id=None,
        updated_at=at,
        expires_at=None,
        ended_at=None,
        deleted_at=at,
    )


def sweep_ended(database: Database, scope: UUID, until: datetime, page_size: int, after: str) -> Swept:
    """Empty records of one scope that ended by then, as a deletion does."""
    page, last = _due(database, scope, until, page_size, after, column="ended_at")
    for slot in page:
        database.states.publish(slot, _emptied(slot.committed, database.clock()))
    return Swept(len(page), last)


def sweep_deleted(database: Database, scope: UUID, until: datetime, page_size: int, after: str) -> Swept:
    """Remove emptied rows of one scope that were deleted by then."""
    page, last = _due(database, scope, until, page_size, after, column="deleted_at")
    return Swept(database.remove(database.states, page), last)


def sweep_expired(database: Database, scope: UUID, until: datetime, page_size: int, after: str) -> Swept:
    """Remove records of one scope that expired by then."""
    page, last = _due(database, scope, until, page_size, after, column="expires_at")
    return Swept(database.remove(database.states, page), last)


def _due(
    database: Database, scope: UUID, until: datetime, page_size: int, after: str, *, column: str
) -> tuple[list[Slot[StateRow]], str | None]:
    """Return the next so many rows of a scope that are due and not locked; and from which time on there may be more."""
    begin = datetime.fromisoformat(after) if after else datetime.min.replace(tzinfo=UTC)
    due = database.states.due(column, scope, begin, until)
    page = list(islice((slot for slot in due if not slot.holders), page_size))
    return page, getattr(page[-1].committed, column).isoformat() if len(page) == page_size else None
