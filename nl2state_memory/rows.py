"""The rows of the three tables, and from a row to a model. A row never changes: a write puts another in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from nl2state.idempotency import Attempt, IdempotencyRecord
from nl2state.leases import Fence, Lease, LeaseRecord, deadline, decode_metadata
from nl2state.payload import Payload, Value, decode, fingerprint_text
from nl2state.states import StateRecord

__all__ = [
    "KeyRow",
    "LeaseRow",
    "StateRow",
    "idempotency_record",
    "lease",
    "lease_record",
    "outcome",
    "outcome_fingerprint",
    "state_record",
]


@dataclass(frozen=True, slots=True)
class StateRow:
    """A record. Deleted, it is emptied, and its row keeps the revision until it is swept."""

    revision: int
    status: str
    is_terminal: bool
    schema_version: int
    payload: Payload | None
    request_id: str | None
    parent_id: str | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    ended_at: datetime | None = None
    """When it became terminal; None of one that was deleted, as the clean-up of each looks at its own alone."""
    deleted_at: datetime | None = None

    def is_live(self, at: datetime) -> bool:
        """Whether the record is there at all: neither deleted nor expired."""
        return self.deleted_at is None and (self.expires_at is None or self.expires_at > at)


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease: free where it has no owner; then `expires_at` is when it came free."""

    owner: str | None
    token: int
    ttl_seconds: float
    acquired_at: datetime
    expires_at: datetime
    metadata: bytes | None = None

    def is_grant(self, fence: Fence) -> bool:
        """Whether this is the grant that the fence names, expired or not."""
        return self.owner == fence.owner and self.token == fence.token


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An idempotency key. Forgotten or abandoned, it is expired, and its row keeps the attempt's number until swept."""

    fingerprint: bytes
    """Of the request, and of the record where the key is bound to one."""
    record_id: str | None
    attempt: int
    attempt_ttl_seconds: float
    result_ttl_seconds: float
    reserved_at: datetime
    claim_until: datetime
    expires_at: datetime
    completed_at: datetime | None = None
    outcome: Payload | None = None
    """None: none yet, or its fingerprint alone."""
    outcome_fingerprint: bytes | None = None

    def is_attempt(self, number: int, at: datetime, *, claimed: bool = False) -> bool:
        """Whether this attempt can still be completed: though it ran out, as long as no other followed.

        With `claimed`, also that it did not run out.
        """
        ends_at = self.claim_until if claimed else self.expires_at
        return self.attempt == number and self.completed_at is None and ends_at > at

    def emptied(self, at: datetime) -> KeyRow:
        """Return what is left of a key that is forgotten, or whose attempt is abandoned.

        The number rises too: by the expiry alone, a clock that steps back would bring the attempt to life again.
        """
        return replace(
            self,
            attempt=self.attempt + 1,
            completed_at=None,
            outcome=None,
            outcome_fingerprint=None,
            claim_until=at,
            expires_at=at,
        )

    def is_free(self, fingerprint: bytes, at: datetime) -> bool:
        """Whether the key can be reserved anew: it expired, or its attempt ran out and the request is the same."""
        ran_out = self.completed_at is None and self.claim_until <= at and self.fingerprint == fingerprint
        return self.expires_at <= at or ran_out


def state_record(record_id: str, row: StateRow, value: Value) -> StateRecord[Value]:
    """Return the record of a row, with its value."""
    return StateRecord(
        id=record_id,
        revision=row.revision,
        status=row.status,
        is_terminal=row.is_terminal,
        value=value,
        schema_version=row.schema_version,
        request_id=row.request_id,
        parent_id=row.parent_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        expires_at=row.expires_at,
    )


def lease(
    fence: Fence, row: LeaseRow, *, sent_at: float, ttl_seconds: float | None = None, taken_over: bool = False
) -> Lease:
    """Return a lease that was asked for at `sent_at`, for its own TTL unless another is given."""
    return Lease(
        fence=fence,
        ttl_seconds=row.ttl_seconds,
        acquired_at=row.acquired_at,
        expires_at=row.expires_at,
        deadline=deadline(sent_at, row.ttl_seconds if ttl_seconds is None else ttl_seconds),
        taken_over=taken_over,
        metadata=decode_metadata(row.metadata),
    )


def lease_record(resource: str, row: LeaseRow, at: datetime) -> LeaseRecord | None:
    """Return what anybody may see of a lease then; None of one that is free."""
    if row.owner is None:
        return None
    return LeaseRecord(
        resource=resource,
        owner=row.owner,
        token=row.token,
        acquired_at=row.acquired_at,
        expires_at=row.expires_at,
        expired=row.expires_at <= at,
        metadata=decode_metadata(row.metadata),
    )


def outcome(row: KeyRow) -> Value:
    """Return a key's outcome; None where it has none."""
    return None if row.outcome is None else decode(*row.outcome)


def outcome_fingerprint(row: KeyRow) -> str | None:
    """Return the fingerprint that was kept instead of a key's outcome; None where none was."""
    return None if row.outcome_fingerprint is None else fingerprint_text(row.outcome_fingerprint)


def idempotency_record(key: str, row: KeyRow) -> IdempotencyRecord:
    """Return a key as it stands."""
    return IdempotencyRecord(
        attempt=Attempt(key, row.attempt),
        record_id=row.record_id,
        reserved_at=row.reserved_at,
        claim_until=row.claim_until,
        completed_at=row.completed_at,
        outcome=outcome(row),
        outcome_fingerprint=outcome_fingerprint(row),
        expires_at=row.expires_at,
    )
