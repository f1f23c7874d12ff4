"""States on PostgreSQL. The statements, and what they rest on, are in sql/states.sql."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nl2state.errors import StoreTimeoutError
from nl2state.expectations import Expectation, Found, refuse_creation
from nl2state.leases import Fence
from nl2state.lifecycle import DEFAULT_LIFECYCLE, Lifecycle, checked_lifecycle
from nl2state.limits import checked_integer
from nl2state.pages import PAGE_SIZE, Page, page_of
from nl2state.payload import Value, encode
from nl2state.states import (
    NEVER,
    ExpectedRevision,
    FencedStateStore,
    StateRecord,
    Ttl,
    checked_revision,
)
from nl2state_postgres import rows
from nl2state_postgres.binding import PostgresBinding
from nl2state_postgres.connection import Row

__all__ = ["PostgresStates"]

_TRIES = 10
_PAYLOAD = ("payload", "payload_encoding", "payload_format")


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
        binding, lifecycle = self._binding, checked_lifecycle(lifecycle)
        status = lifecycle.initial if status is None else lifecycle.check(status)
        values = {
            "status": binding.id("status", status),
            "is_terminal": status in lifecycle.terminal,
            "ttl_seconds": None if ttl_seconds is None else binding.ttl("ttl_seconds", ttl_seconds),
            "schema_version": checked_integer("schema_version", schema_version),
            "request_id": binding.optional_id("request_id", request_id),
            "parent_id": binding.optional_id("parent_id", parent_id),
            **dict(zip(_PAYLOAD, encode(value, binding.limits), strict=True)),
        }
        row = self._write("create_state", record_id, fence, refuse_creation, values)
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
        binding, lifecycle = self._binding, checked_lifecycle(lifecycle)
        sources = None if status is None else lifecycle.sources(lifecycle.check(status))
        binding.optional_id("expected_status", expected_status)
        revision = checked_revision(expected_revision)
        values = {
            "expected_revision": revision,
            "expected_status": expected_status,
            "source_statuses": sources,
            "status": binding.optional_id("status", status),
            "is_terminal": status in lifecycle.terminal,
            "lift_expiry": ttl_seconds is NEVER,
            "ttl_seconds": None
            if ttl_seconds is None or ttl_seconds is NEVER
            else binding.ttl("ttl_seconds", ttl_seconds),
            "schema_version": None if schema_version is None else checked_integer("schema_version", schema_version),
            "request_id": binding.optional_id("request_id", request_id),
            **dict(zip(_PAYLOAD, encode(value, binding.limits), strict=True)),
        }

        def refuse(found: Found | None) -> None:
            Expectation(revision, status=expected_status, sources=sources).refuse(found)

        row = self._write("update_state", record_id, fence, refuse, values)
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
            **dict(zip(_PAYLOAD, encode(value, binding.limits), strict=True)),
        }
        refuse = Expectation(None, sources=sources, required=False).refuse
        row = self._write("put_state", record_id, fence, refuse, values)
        return rows.state_record(record_id, row, value)

    def get(self, record_id: str) -> StateRecord[Value] | None:
        """Return the record, or None where there is none."""
        return self._record("get_state", record_id, {})

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
        values = {"expected_revision": revision}
        row = self._write("delete_state", record_id, fence, Expectation(revision, writes=False).refuse, values)
        return int(row[0])

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

    def _write(
        self,
        statement: str,
        record_id: str,
        fence: Fence | None,
        refuse: Callable[[Found | None], None],
        values: dict[str, Any],
    ) -> Row:
        """Run a write, and find the words for its refusal: the fence first, then what `refuse` finds.

        The record is read again for that, and may have changed meanwhile so that nothing speaks against the write: then
        it is tried again.
        """
        binding = self._binding
        values["record_id"] = binding.id("record_id", record_id)
        fence = binding.fence_of(fence)
        for _ in range(_TRIES):
            row = binding.write(statement, fence, values)
            if row is not None:
                return row
            binding.require_fence(fence)
            refuse(self._find(record_id))
        raise StoreTimeoutError("the record changed under each of the tries")

    def _find(self, record_id: str) -> Found | None:
        row = self._binding.row("explain_state", {"record_id": record_id})
        return None if row is None else _Found(*row)


class _Found(NamedTuple):
    """The columns of `explain_state`."""

    revision: int
    status: str
    is_terminal: bool
