"""Idempotency: a key for each request, so that one sent again never does its work twice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, Literal, Protocol, Required, TypeAlias, TypedDict

from nl2state.errors import InvalidInputError, UsageError
from nl2state.leases import Fence
from nl2state.limits import Limits
from nl2state.many import Outcomes
from nl2state.pages import PAGE_SIZE, Page
from nl2state.payload import Value, fingerprint_bytes, fingerprint_of

__all__ = [
    "NO_OUTCOME",
    "NO_REQUEST",
    "Attempt",
    "Completion",
    "IdempotencyRecord",
    "IdempotencyStore",
    "KeyRequest",
    "NoOutcome",
    "NoRequest",
    "Reservation",
    "ReserveOptions",
    "outcome_digest",
    "reservation_digest",
]


class _Word(Enum):
    NO_REQUEST = "no request"
    NO_OUTCOME = "no outcome"


NoRequest: TypeAlias = Literal[_Word.NO_REQUEST]
"""The type of NO_REQUEST."""

NO_REQUEST: Final = _Word.NO_REQUEST
"""No request was given: None is a request like any other."""

NoOutcome: TypeAlias = Literal[_Word.NO_OUTCOME]
"""The type of NO_OUTCOME."""

NO_OUTCOME: Final = _Word.NO_OUTCOME
"""No outcome was given: None is an outcome like any other."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a key's request. The number of each later attempt is greater."""

    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """What came of a reservation: an attempt to make, or the outcome of one that was completed.

    `outcome_fingerprint` is there where the attempt was completed with that alone; then there is no `outcome`.
    """

    completed: bool
    _attempt: Attempt | None
    _outcome: Value
    outcome_fingerprint: str | None = None

    @property
    def attempt(self) -> Attempt:
        """The attempt that is now the caller's. Raises UsageError where the key is completed."""
        if self._attempt is None:
            raise UsageError("the key is completed: there is an outcome, and no attempt")
        return self._attempt

    @property
    def outcome(self) -> Value:
        """The completed attempt's outcome; None is one like any other. Raises UsageError where none is kept."""
        if not self.completed:
            raise UsageError("the key is not completed: there is an attempt, and no outcome")
        if self.outcome_fingerprint is not None:
            raise UsageError("the key was completed with its outcome's fingerprint, and the outcome was not kept")
        return self._outcome


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """A key as it stands.

    Until it is completed, `completed_at` and `outcome` are None, and `claim_until` is when its attempt ends. Where it
    was completed with the outcome's fingerprint alone, that is `outcome_fingerprint`, and `outcome` is None.
    """

    attempt: Attempt
    record_id: str | None
    reserved_at: datetime
    claim_until: datetime
    completed_at: datetime | None
    outcome: Value
    outcome_fingerprint: str | None
    expires_at: datetime


class ReserveOptions(TypedDict, total=False):
    """The options of IdempotencyStore.reserve."""

    request: Value | NoRequest
    request_fingerprint: str | None
    record_id: str | None
    result_ttl_seconds: Required[float]
    attempt_ttl_seconds: Required[float]
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key to reserve, with others, and the request that it is for: see IdempotencyStore.reserve."""

    key: str
    request: Value | NoRequest = NO_REQUEST
    request_fingerprint: str | None = None
    record_id: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """An attempt to complete, with others, and what came of it: see IdempotencyStore.complete."""

    attempt: Attempt
    outcome: Value | NoOutcome = NO_OUTCOME
    outcome_fingerprint: str | None = None


class IdempotencyStore(Protocol):
    """The idempotency keys of one scope.

    A key has at most one live attempt, and is not run again between its completion and the end of its result's life. An
    attempt that was superseded cannot complete, not even after the key expired, was forgotten or swept, and was
    reserved anew. Errors of every call: StoreUnavailableError, StoreTimeoutError, OutcomeUnknownError and
    InvalidInputError (before the backend is asked).
    """

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
        """Reserve a key for a request, or learn its outcome.

        The request is given as a value, of which only the fingerprint is stored, or as that fingerprint (`sha256:` and
        64 hexadecimal digits); `record_id`, where given, binds the key to a record as well. The attempt is the caller's
        for `attempt_ttl_seconds`; if it is not completed by then, another may be made. The outcome is kept for
        `result_ttl_seconds` from its completion.

        Raises KeyConflictError where the key is another request's or record's; AttemptInFlightError where another
        attempt is still live after `wait_seconds`; UsageError in a transaction.
        """
        ...

    def reserve_many(
        self,
        items: Sequence[KeyRequest],
        *,
        result_ttl_seconds: float,
        attempt_ttl_seconds: float,
        atomic: bool,
    ) -> Outcomes[Reservation]:
        """Reserve keys for requests, or learn their outcomes, by one statement. See reserve.

        It waits for no attempt that is live, and as any call for open transactions: here for one that completes an
        attempt which ran out.

        With `atomic` all of them are reserved or were completed, or else none is reserved: the first refusal is raised,
        and has the item's `index`. Else each by itself, and the outcomes say so. At most `Limits.items_max` items, and
        no two of one key.
        """
        ...

    def renew(self, attempt: Attempt, *, ttl_seconds: float | None = None) -> datetime:
        """Let an attempt last its own TTL, or another, from now, and return when it ends. That never moves back.

        It can be sent twice. Raises FencingRejectedError where the attempt was superseded, completed or ended, or ran
        out, though nobody superseded it yet: nothing is made anew. Raises UsageError in a transaction.
        """
        ...

    def complete(
        self,
        attempt: Attempt,
        outcome: Value | NoOutcome = NO_OUTCOME,
        *,
        outcome_fingerprint: str | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Keep the outcome of an attempt, guarded by a fence where one is given.

        Where the outcome is large or secret, its fingerprint (`sha256:` and 64 hexadecimal digits) is kept instead of
        it: later reservations are told that. Raises FencingRejectedError where the attempt was superseded or ended, or
        the fence's lease was lost; InvalidInputError unless there is either an outcome or its fingerprint.
        """
        ...

    def complete_many(self, items: Sequence[Completion], *, atomic: bool, fence: Fence | None = None) -> Outcomes[None]:
        """Keep the outcomes of attempts, guarded by a fence where one is given, by one statement. See complete.

        With `atomic` all of them are kept, or none: the first refusal is raised, and has the item's `index`. Else each
        by itself, and the outcomes say so. At most `Limits.items_max` items, of `Limits.items_bytes_max` together, and
        no two of one key.
        """
        ...

    def abandon(self, attempt: Attempt, *, fence: Fence | None = None) -> None:
        """End an attempt without an outcome, so that the key can be reserved at once. Raises FencingRejectedError."""
        ...

    def get(self, key: str) -> IdempotencyRecord | None:
        """Return the key as it stands, or None where it is not reserved or has expired."""
        ...

    def list(
        self, *, record_id: str | None = None, after: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[IdempotencyRecord]:
        """Return a page of what `get` says of each key, in their order, from after the key `after` on.

        `record_id` takes those that are bound to that record, and looks at others too: see Page. `limit` is at most the
        limits' `page_size_max`.
        """
        ...

    def forget(self, key: str, *, fence: Fence | None = None) -> bool:
        """Drop a key's outcome, or its attempt, which can then not complete. Returns whether there was either."""
        ...


def reservation_digest(
    request: Value | NoRequest, request_fingerprint: str | None, record_id: str | None, limits: Limits
) -> bytes:
    """Return the 32 bytes that a key is compared by: of its request, and of its record where it has one. For backends.

    Raises InvalidInputError unless there is either a request or its fingerprint, and PayloadError for one that is no
    value.
    """
    if (request is NO_REQUEST) is (request_fingerprint is None):
        raise InvalidInputError("a request or its fingerprint is needed, and not both", field="request")
    if request is not NO_REQUEST:
        digest = fingerprint_of(request, limits)
    else:
        digest = fingerprint_bytes(request_fingerprint or "", field="request_fingerprint")
    return digest if record_id is None else hashlib.sha256(digest + record_id.encode()).digest()


def outcome_digest(outcome: Value | NoOutcome, outcome_fingerprint: str | None) -> bytes | None:
    """Return the 32 bytes of the fingerprint that is kept instead of an outcome; None where that is. For backends.

    Raises InvalidInputError unless there is either an outcome or its fingerprint.
    """
    if (outcome is NO_OUTCOME) is (outcome_fingerprint is None):
        raise InvalidInputError("an outcome or its fingerprint is needed, and not both", field="outcome")
    if outcome_fingerprint is None:
        return None
    return fingerprint_bytes(outcome_fingerprint, field="outcome_fingerprint")
