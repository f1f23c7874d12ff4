"""From a row to a model: the one decoder of every path. The columns are those of `sql/*.sql`, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from typing import Any, TypeAlias, TypeVar, cast

from nl2state.idempotency import Attempt, IdempotencyRecord
from nl2state.leases import Fence, Lease, LeaseRecord, deadline, decode_metadata
from nl2state.payload import Value, decode, fingerprint_text
from nl2state.states import StateRecord

__all__ = [
    "Row",
    "idempotency_record",
    "lease",
    "lease_record",
    "listed_key",
    "listed_state",
    "outcome",
    "state_record",
    "state_value",
]

R = TypeVar("R")

Row: TypeAlias = tuple[Any, ...]
"""What a statement returns, in the order of its columns."""


def _maker(record: type[R]) -> Callable[..., R]:
    """Return what makes a frozen record of its fields, in a fourth of the time.

    Its own `__init__` sets each slot by a call. So a twin that is not frozen is made, and becomes one.
    """
    bases = record.__dict__.get("__orig_bases__", record.__bases__)
    names = [each.name for each in fields(cast("Any", record))]
    twin: Any = make_dataclass(record.__name__, names, bases=bases, slots=True)

    def make(*columns: Any) -> R:
        made = twin(*columns)
        made.__class__ = record
        return cast("R", made)

    return make


_new_state = _maker(StateRecord)
_new_lease = _maker(Lease)


def state_record(record_id: str, row: Row, value: Value) -> StateRecord[Value]:
    """Decode the columns of a state that its writes return."""
    revision, status, is_terminal, schema_version, request_id, parent_id, created_at, updated_at, expires_at = row[:9]
    return _new_state(
        record_id,
        revision,
        status,
        is_terminal,
        value,
        schema_version,
        request_id,
        parent_id,
        created_at,
        updated_at,
        expires_at,
    )


def state_value(row: Row) -> Value:
    """Decode the payload that follows a state's columns in `get_state`."""
    return decode(row[9], row[10], row[11])


def listed_state(record_id: str, listed: bool, *row: Any) -> StateRecord[Value] | None:
    """Decode a row of `list_states`; None for one that does not match."""
    return state_record(record_id, row, state_value(row)) if listed else None


def lease(
    fence: Fence, row: Row, *, sent_at: float, ttl_seconds: float | None = None, taken_over: bool = False
) -> Lease:
    """Decode a lease that was asked for at `sent_at`, for its own TTL unless another is given."""
    _, own_ttl_seconds, acquired_at, expires_at, metadata = row
    until = deadline(sent_at, own_ttl_seconds if ttl_seconds is None else ttl_seconds)
    return _new_lease(fence, own_ttl_seconds, acquired_at, expires_at, until, taken_over, decode_metadata(metadata))


def lease_record(resource: str, *row: Any) -> LeaseRecord | None:
    """Decode what anybody may see of a lease; None of one that is free."""
    owner, token, acquired_at, expires_at, remaining_seconds, metadata = row
    if owner is None:
        return None
    return LeaseRecord(
        resource=resource,
        owner=owner,
        token=token,
        acquired_at=acquired_at,
        expires_at=expires_at,
        expired=remaining_seconds <= 0,
        metadata=decode_metadata(metadata),
    )


def outcome(
    data: bytes | None, encoding: int | None, form: int | None, fingerprint: bytes | None
) -> tuple[Value, str | None]:
    """Decode an outcome, None where the key has none, and the fingerprint that was kept instead, where one was."""
    value = None if data is None else decode(data, encoding, form)
    return value, None if fingerprint is None else fingerprint_text(fingerprint)


def idempotency_record(key: str, row: Row) -> IdempotencyRecord:
    """Decode a key."""
    attempt, record_id, reserved_at, claim_until, completed_at, expires_at, *kept = row
    value, fingerprint = outcome(*kept)
    return IdempotencyRecord(
        attempt=Attempt(key, attempt),
        record_id=record_id,
        reserved_at=reserved_at,
        claim_until=claim_until,
        completed_at=completed_at,
        outcome=value,
        outcome_fingerprint=fingerprint,
        expires_at=expires_at,
    )


def listed_key(key: str, listed: bool, *row: Any) -> IdempotencyRecord | None:
    """Decode a row of `list_keys`; None for one that does not match."""
    return idempotency_record(key, row) if listed else None
