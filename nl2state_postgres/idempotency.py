"""Idempotency on PostgreSQL. The statements, and what they rest on, are in sql/idempotency.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final

from nl2state.errors import (
    AttemptInFlightError,
    FencingRejectedError,
    KeyConflictError,
    StoreError,
    StoreTimeoutError,
)
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
from nl2state.payload import Value, encode
from nl2state_postgres import rows
from nl2state_postgres.binding import PostgresBinding, columns_of, new_write_id
from nl2state_postgres.sqlstates import LockTimeoutError
from nl2state_postgres.waiting import Waiting

__all__ = ["PostgresIdempotency"]


_OUTCOME: Final = ("outcome", "outcome_encoding", "outcome_format")
_NOTHING: Final = (None, None, None)
_REQUESTED: Final = ("key", "fingerprint", "record_id")
_COMPLETED: Final = ("key", "attempt", "outcome_fingerprint", *_OUTCOME)
_TRIES: Final = 100


class PostgresIdempotency(IdempotencyStore):
    """The idempotency keys of one scope. What the calls promise is IdempotencyStore's."""

    def __init__(self, binding: PostgresBinding) -> None:
        self._binding = binding

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
        values = {
            "key": binding.id("key", key),
            "record_id": binding.optional_id("record_id", record_id),
            "fingerprint": reservation_digest(request, request_fingerprint, record_id, binding.limits),
            "result_ttl_seconds": binding.ttl("result_ttl_seconds", result_ttl_seconds),
            "attempt_ttl_seconds": binding.ttl("attempt_ttl_seconds", attempt_ttl_seconds),
            # one for all tries: one that was sent again may have been served the first time, after it was refused
            "write_id": new_write_id(),
        }
        return self._reserve(values, Waiting(binding.monotonic() + binding.wait(wait_seconds), binding.monotonic))

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
        binding.refuse_in_transaction("reserve_many")
        check_atomic(atomic)
        columns = checked_items(items, KeyRequest, self._requested, itemgetter("key"), binding.limits)
        common = {
            "result_ttl_seconds": binding.ttl("result_ttl_seconds", result_ttl_seconds),
            "attempt_ttl_seconds": binding.ttl("attempt_ttl_seconds", attempt_ttl_seconds),
            "write_id": new_write_id(),  # one for all tries, as in reserve
        }
        if not columns:
            return Outcomes(())
        outcomes: dict[int, Reservation | StoreError] = {}
        left = {each["key"]: index for index, each in enumerate(columns)}
        tries = _TRIES
        with binding.many(atomic=atomic) as within:
            try:
                while left:  # again where others were reserved in between
                    values = columns_of([columns[index] for index in left.values()], _REQUESTED)
                    for key, *row in within.rows("reserve_keys", {**values, **common}):
                        index, judged = left.pop(key), _judged(key, row)
                        outcomes[index] = judged.at(index) if isinstance(judged, StoreError) else judged
                    tries -= 1
                    if left and not tries:
                        raise StoreTimeoutError("the keys changed hands under each of the tries")
            except StoreError as error:
                if atomic or not any(isinstance(outcome, Reservation) for outcome in outcomes.values()):
                    raise
                outcomes.update({index: error.at(index) for index in left.values()})  # the others are committed
            return Outcomes([outcomes[index] for index in range(len(columns))], atomic=atomic)

    def renew(self, attempt: Attempt, *, ttl_seconds: float | None = None) -> datetime:
        """Let an attempt last its own TTL, or another, from now, and return when it ends."""
        binding = self._binding
        binding.refuse_in_transaction("renew")  # one that is rolled back would have told a deadline that is not
        checked = self._checked(attempt)
        if ttl_seconds is not None:
            ttl_seconds = binding.ttl("ttl_seconds", ttl_seconds)
        row = binding.row("renew_key", {"ttl_seconds": ttl_seconds, **checked})
        if row is None:
            raise FencingRejectedError("the attempt was superseded, or has ended")
        claim_until: datetime = row[0]
        return claim_until

    def complete(
        self,
        attempt: Attempt,
        outcome: Value | NoOutcome = NO_OUTCOME,
        *,
        outcome_fingerprint: str | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Keep the outcome of an attempt."""
        binding = self._binding
        fence = binding.fence_of(fence)
        row = binding.write("complete_key", fence, self._kept(attempt, outcome, outcome_fingerprint))
        if row is None:
            binding.require_fence(fence)
            raise FencingRejectedError("the attempt was superseded, or has ended")

    def complete_many(self, items: Sequence[Completion], *, atomic: bool, fence: Fence | None = None) -> Outcomes[None]:
        """Keep the outcomes of attempts."""
        binding = self._binding
        check_atomic(atomic)
        fence = binding.fence_of(fence)
        columns = checked_items(items, Completion, self._completed, itemgetter("key"), binding.limits)
        check_bytes((len(each["outcome"] or b"") for each in columns), binding.limits)
        if not columns:
            return Outcomes(())
        with binding.many(atomic=atomic) as within:
            written = within.write_many("complete_keys", fence, columns_of(columns, _COMPLETED))
            if not written:
                within.require_fence(fence)
            completed = {key for (key,) in written}
            lost = "the attempt was superseded, or has ended"
            outcomes = [
                None if each["key"] in completed else FencingRejectedError(lost, index=index)
                for index, each in enumerate(columns)
            ]
            return Outcomes(outcomes, atomic=atomic)

    def abandon(self, attempt: Attempt, *, fence: Fence | None = None) -> None:
        """End an attempt without an outcome."""
        fence = self._binding.fence_of(fence)
        if self._binding.write("abandon_key", fence, self._checked(attempt)) is None:
            self._binding.require_fence(fence)
            raise FencingRejectedError("the attempt was superseded, or has ended")

    def get(self, key: str) -> IdempotencyRecord | None:
        """Return the key as it stands, or None where it is not reserved or has expired."""
        row = self._binding.row("get_key", {"key": self._binding.id("key", key)})
        return None if row is None else rows.idempotency_record(key, row)

    def list(
        self, *, record_id: str | None = None, after: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[IdempotencyRecord]:
        """Return a page of what `get` says of each key, in their order."""
        span = self._binding.span(after=after, limit=limit)
        record_id = self._binding.optional_id("record_id", record_id)
        values = {"record_id": record_id, "after": span.after, "page_size": span.limit}
        scanned = self._binding.rows("list_keys", values)
        return page_of(scanned, limit, rows.listed_key)

    def forget(self, key: str, *, fence: Fence | None = None) -> bool:
        """Drop a key's outcome, or its attempt, which can then not complete."""
        fence = self._binding.fence_of(fence)
        known = self._binding.write("forget_key", fence, {"key": self._binding.id("key", key)}) is not None
        if not known:
            self._binding.require_fence(fence)
        return known

    def _reserve(self, values: dict[str, Any], waiting: Waiting) -> Reservation:
        binding, key = self._binding, values["key"]
        while True:
            try:
                row = binding.row("reserve_key", values)
            except LockTimeoutError:  # the attempt ran out, and its completion is open
                waiting.sleep_or_raise(AttemptInFlightError("another attempt is ending", retry_after_seconds=0.0))
                continue
            if row is None:
                waiting.start_over()  # it was reserved by another in between
                continue
            judged = _judged(key, row)
            if isinstance(judged, Reservation):
                return judged
            if isinstance(judged, KeyConflictError):
                raise judged
            waiting.sleep_or_raise(judged)

    def _requested(self, item: KeyRequest) -> dict[str, Any]:
        binding = self._binding
        return {
            "key": binding.id("key", item.key),
            "record_id": binding.optional_id("record_id", item.record_id),
            "fingerprint": reservation_digest(item.request, item.request_fingerprint, item.record_id, binding.limits),
        }

    def _completed(self, item: Completion) -> dict[str, Any]:
        return self._kept(item.attempt, item.outcome, item.outcome_fingerprint)

    def _kept(self, attempt: Attempt, outcome: Value | NoOutcome, outcome_fingerprint: str | None) -> dict[str, Any]:
        """Check what is kept of an attempt, and return its columns."""
        digest = outcome_digest(outcome, outcome_fingerprint)
        kept = _NOTHING if outcome is NO_OUTCOME else encode(outcome, self._binding.limits, field="outcome")
        return {"outcome_fingerprint": digest, **self._checked(attempt), **dict(zip(_OUTCOME, kept, strict=True))}

    def _checked(self, attempt: Attempt) -> dict[str, Any]:
        attempt = self._binding.checked_attempt(attempt)
        return {"key": attempt.key, "attempt": attempt.number}


def _judged(key: str, row: Sequence[Any]) -> Reservation | AttemptInFlightError | KeyConflictError:
    """Return what a row of `reserve_key` says of a key: an attempt, an outcome, or a refusal."""
    attempt, mine, same, completed_at, claim_until, *kept, at = row
    if not same:
        return KeyConflictError("the key is another request's")
    if mine:
        return Reservation(False, Attempt(key, attempt), None)
    if completed_at is not None:
        return Reservation(True, None, *rows.outcome(*kept))
    remaining = max(0.0, (claim_until - at).total_seconds())
    return AttemptInFlightError("another attempt is being made", retry_after_seconds=remaining)
