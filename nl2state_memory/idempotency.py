"""Idempotency in memory. A row is emptied and expired by a call, and removed by the sweep alone: its number goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from nl2state.errors import AttemptInFlightError, FencingRejectedError, KeyConflictError, StoreTimeoutError
from nl2state.idempotency import (
    NO_OUTCOME,
    NO_REQUEST,
    Attempt,
    Completion,
    IdempotencyRecord,
    IdempotencyStore,
    KeyRequest,
    NoOutcome,
    NoRequest,
    Reservation,
    outcome_digest,
    reservation_digest,
)
from nl2state.leases import Fence
from nl2state.many import Outcomes, check_atomic, check_bytes, checked_items
from nl2state.pages import PAGE_SIZE, Page, page_of
from nl2state.payload import Payload, Value, encode
from nl2state.store import Swept
from nl2state_memory import rows
from nl2state_memory.binding import MemoryBinding
from nl2state_memory.database import Database, Unit
from nl2state_memory.leases import guard
from nl2state_memory.many import run_each
from nl2state_memory.rows import KeyRow
from nl2state_memory.tables import Strength
from nl2state_memory.waiting import Waiting

__all__ = ["MemoryIdempotency", "sweep"]


class _Wanted(NamedTuple):
    key: str
    fingerprint: bytes
    """Of the request, and of the record where the key is bound to one."""
    record_id: str | None


class _Lives(NamedTuple):
    result_seconds: float
    attempt_seconds: float


class _Kept(NamedTuple):
    attempt: Attempt
    payload: Payload | None
    digest: bytes | None


class MemoryIdempotency(IdempotencyStore):
    """The idempotency keys of one scope. What the calls promise is IdempotencyStore's."""

    def __init__(self, binding: MemoryBinding) -> None:
        self._binding = binding
        self._database = binding.session.database

    def reserve(
        self,
        key: str,
        *,
        request: Value | NoRequest = NO_REQUEST,
        request_fingerprint: str | None = None,
        record_id: str | None = None,
        result_ttl_seconds: float,
        attempt_ttl_seconds: float,
        wait_seconds: float = 0.0,
    ) -> Reservation:
        """Reserve a key for a request, or learn its outcome."""
        binding = self._binding
        binding.refuse_in_transaction("reserve")  # an attempt that is rolled back would be numbered again
        wanted = self._wanted(KeyRequest(key, request, request_fingerprint, record_id))
        lives = self._lives(result_ttl_seconds, attempt_ttl_seconds)
        waiting = Waiting(self._database, binding.monotonic() + binding.wait(wait_seconds), binding.monotonic)
        while True:
            try:
                with binding.session.call() as unit:
                    return self._reserve(unit, wanted, lives)
            except AttemptInFlightError as busy:
                in_flight = busy.again()
            except StoreTimeoutError:  # the attempt ran out, and its completion is open
                in_flight = AttemptInFlightError("another attempt is ending", retry_after_seconds=0.0)
            waiting.pause_or_raise(in_flight)

    def reserve_many(
        self,
        items: Sequence[KeyRequest],
        *,
        result_ttl_seconds: float,
        attempt_ttl_seconds: float,
        atomic: bool,
    ) -> Outcomes[Reservation]:
        """Reserve keys for requests, or learn their outcomes."""
        binding = self._binding
        binding.refuse_in_transaction("reserve_many")  # as reserve
        check_atomic(atomic)
        wanted = checked_items(items, KeyRequest, self._wanted, lambda each: each.key, binding.limits)
        lives = self._lives(result_ttl_seconds, attempt_ttl_seconds)
        with binding.session.call() as unit:
            return run_each(
                [each.key for each in wanted],
                lambda index: self._reserve(unit, wanted[index], lives),
                atomic=atomic,
            )

    def renew(self, attempt: Attempt, *, ttl_seconds: float | None = None) -> datetime:
        """Let an attempt last its own TTL, or another, from now, and return when it ends."""
        binding, keys, clock = self._binding, self._database.keys, self._database.clock
        binding.refuse_in_transaction("renew")  # one that is rolled back would have told a deadline that is not
        binding.checked_attempt(attempt)
        if ttl_seconds is not None:
            ttl_seconds = binding.ttl("ttl_seconds", ttl_seconds)
        name = binding.name(attempt.key)
        with binding.session.call() as unit:
            row = unit.lock(
                keys, name, Strength.NO_KEY_UPDATE, lambda row: row.is_attempt(attempt.number, clock(), claimed=True)
            )
            if row is None:
                raise FencingRejectedError("the attempt was superseded, or has ended")
            until = clock() + timedelta(seconds=row.attempt_ttl_seconds if ttl_seconds is None else ttl_seconds)
            until = max(row.claim_until, until)  # never back: a client was told the later one
            unit.write(keys, name, replace(row, claim_until=until, expires_at=max(row.expires_at, until)))
        return until

    def complete(
        self,
        attempt: Attempt,
        outcome: Value | NoOutcome = NO_OUTCOME,
        *,
        outcome_fingerprint: str | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Keep the outcome of an attempt."""
        fence = self._binding.fence_of(fence)
        kept = self._kept(Completion(attempt, outcome, outcome_fingerprint))
        with self._binding.session.call() as unit:
            guard(unit, self._binding, fence)
            self._complete(unit, kept)

    def complete_many(self, items: Sequence[Completion], *, atomic: bool, fence: Fence | None = None) -> Outcomes[None]:
        """Keep the outcomes of attempts."""
        binding = self._binding
        check_atomic(atomic)
        fence = binding.fence_of(fence)
        kept = checked_items(items, Completion, self._kept, lambda each: each.attempt.key, binding.limits)
        check_bytes((len(each.payload.data) for each in kept if each.payload is not None), binding.limits)
        if not kept:
            return Outcomes(())
        with binding.session.call() as unit:
            guard(unit, binding, fence)
            return run_each(
                [each.attempt.key for each in kept], lambda index: self._complete(unit, kept[index]), atomic=atomic
            )

    def abandon(self, attempt: Attempt, *, fence: Fence | None = None) -> None:
        """End an attempt without an outcome."""
        fence = self._binding.fence_of(fence)
        self._binding.checked_attempt(attempt)
        with self._binding.session.call() as unit:
            guard(unit, self._binding, fence)
            row = self._lock(unit, attempt).emptied(self._database.clock())
            unit.write(self._database.keys, self._binding.name(attempt.key), row)

    def get(self, key: str) -> IdempotencyRecord | None:
        """Return the key as it stands, or None where it is not reserved or has expired."""
        name = self._binding.name(self._binding.id("key", key))
        with self._binding.session.call() as unit:
            row = unit.read(self._database.keys, name)
            if row is not None and row.expires_at <= self._database.clock():
                row = None
        return None if row is None else rows.idempotency_record(key, row)

    def list(
        self, *, record_id: str | None = None, after: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[IdempotencyRecord]:
        """Return a page of what `get` says of each key, in their order."""
        binding = self._binding
        span = binding.span(after=after, limit=limit)
        binding.optional_id("record_id", record_id)
        with binding.session.call() as unit:
            scanned, at = self._database.keys.scan(unit, binding.scope, span), self._database.clock()

        def listed(key: str, row: KeyRow) -> IdempotencyRecord | None:
            matches = row.expires_at > at and record_id in (None, row.record_id)
            return rows.idempotency_record(key, row) if matches else None

        return page_of(scanned, limit, listed)

    def forget(self, key: str, *, fence: Fence | None = None) -> bool:
        """Drop a key's outcome, or its attempt, which can then not complete."""
        fence = self._binding.fence_of(fence)
        keys, clock = self._database.keys, self._database.clock
        name = self._binding.name(self._binding.id("key", key))
        with self._binding.session.call() as unit:
            guard(unit, self._binding, fence)
            row = unit.lock(keys, name, Strength.NO_KEY_UPDATE, lambda row: row.expires_at > clock())
            if row is not None:
                at = clock()
                unit.write(keys, name, row.emptied(at))
        return row is not None

    def _wanted(self, item: KeyRequest) -> _Wanted:
        """Return what a reservation asks for, checked."""
        binding = self._binding
        binding.id("key", item.key)
        binding.optional_id("record_id", item.record_id)
        bound = reservation_digest(item.request, item.request_fingerprint, item.record_id, binding.limits)
        return _Wanted(item.key, bound, item.record_id)

    def _lives(self, result_ttl_seconds: float, attempt_ttl_seconds: float) -> _Lives:
        binding = self._binding
        return _Lives(
            binding.ttl("result_ttl_seconds", result_ttl_seconds),
            binding.ttl("attempt_ttl_seconds", attempt_ttl_seconds),
        )

    def _reserve(self, unit: Unit, wanted: _Wanted, lives: _Lives) -> Reservation:
        """Reserve a key that is free, or say how it stands: then it is seen, and neither locked nor waited for.

        Raises AttemptInFlightError or KeyConflictError.
        """
        database, name = self._database, self._binding.name(wanted.key)
        claimed = unit.claim(
            database.keys,
            name,
            Strength.NO_KEY_UPDATE,
            lambda row: row is None or row.is_free(wanted.fingerprint, database.clock()),
        )
        before = unit.read(database.keys, name)
        at = database.clock()
        if not claimed:
            return _standing(before, wanted.fingerprint, at)
        number = database.first_number(at)
        if before is not None:
            number = max(before.attempt + 1, number)
        row = KeyRow(
            fingerprint=wanted.fingerprint,
            record_id=wanted.record_id,
            attempt=number,
            attempt_ttl_seconds=lives.attempt_seconds,
            result_ttl_seconds=lives.result_seconds,
            reserved_at=at,
            claim_until=at + timedelta(seconds=lives.attempt_seconds),
            # a short result does not shorten the attempt
            expires_at=at + timedelta(seconds=max(lives.attempt_seconds, lives.result_seconds)),
        )
        unit.write(database.keys, name, row)
        return Reservation(False, Attempt(wanted.key, number), None)

    def _kept(self, item: Completion) -> _Kept:
        """Return what a completion keeps, checked."""
        binding = self._binding
        digest = outcome_digest(item.outcome, item.outcome_fingerprint)
        payload = None if item.outcome is NO_OUTCOME else encode(item.outcome, binding.limits, field="outcome")
        return _Kept(binding.checked_attempt(item.attempt), payload, digest)

    def _complete(self, unit: Unit, kept: _Kept) -> None:
        row, at = self._lock(unit, kept.attempt), self._database.clock()
        completed = replace(
            row,
            completed_at=at,
            outcome=kept.payload,
            outcome_fingerprint=kept.digest,
            expires_at=at + timedelta(seconds=row.result_ttl_seconds),  # the result's life begins now
        )
        unit.write(self._database.keys, self._binding.name(kept.attempt.key), completed)

    def _lock(self, unit: Unit, attempt: Attempt) -> KeyRow:
        """Lock the row of an attempt that can still end. Raises FencingRejectedError."""
        clock = self._database.clock
        row = unit.lock(
            self._database.keys,
            self._binding.name(attempt.key),
            Strength.NO_KEY_UPDATE,
            lambda row: row.is_attempt(attempt.number, clock()),
        )
        if row is None:
            raise FencingRejectedError("the attempt was superseded, or has ended")
        return row


def _standing(row: KeyRow | None, request: bytes, at: datetime) -> Reservation:
    """Say how a key that is not free stands. Raises AttemptInFlightError or KeyConflictError."""
    if row is None:
        raise AssertionError("an absent key is free")
    if row.fingerprint != request:
        raise KeyConflictError("the key is another request's")
    if row.completed_at is not None:
        return Reservation(True, None, rows.outcome(row), rows.outcome_fingerprint(row))
    remaining = max(0.0, (row.claim_until - at).total_seconds())
    raise AttemptInFlightError("another attempt is being made", retry_after_seconds=remaining)


def sweep(database: Database, scope: UUID, until: datetime, page_size: int, after: str) -> Swept:
    """Remove keys of one scope that expired by then. See Database.sweep_page."""
    return database.sweep_page(database.keys, scope, page_size, after, lambda row: row.expires_at <= until)
