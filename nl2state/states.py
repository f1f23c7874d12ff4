"""States: records that are written by compare-and-set on their revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from nl2state.errors import NotFoundError
from nl2state.leases import Fence
from nl2state.lifecycle import DEFAULT_LIFECYCLE, Lifecycle
from nl2state.limits import checked_integer
from nl2state.many import Outcomes
from nl2state.pages import PAGE_SIZE, Page
from nl2state.payload import Value
from nl2state.views import StateView

__all__ = [
    "ANY_REVISION",
    "NEVER",
    "ExpectedRevision",
    "FencedStateStore",
    "NewState",
    "StateRecord",
    "StateStore",
    "StateUpdate",
    "Ttl",
    "checked_revision",
]

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
M = TypeVar("M")


class _Word(Enum):
    ANY_REVISION = "any revision"
    NEVER = "never"


ANY_REVISION: Final = _Word.ANY_REVISION
"""Expect no revision: whatever the record's is. Said aloud, so that it is never what an absent or empty value means."""

NEVER: Final = _Word.NEVER
"""As the `ttl_seconds` of an update: the record no longer expires."""

ExpectedRevision: TypeAlias = int | Literal[_Word.ANY_REVISION]
"""A revision, or ANY_REVISION."""

Ttl: TypeAlias = float | Literal[_Word.NEVER] | None
"""Seconds from now, or NEVER; None: the expiry stays as it is."""


@dataclass(frozen=True, slots=True)
class StateRecord(Generic[V]):
    """A record as a call found or left it.

    `revision` counts its writes from 1; `status` is a word of its lifecycle; `is_terminal` says that it ended and is
    not written again. `schema_version` is the application's own, of `value`; `request_id` is that of the last write.
    The times are UTC, by the store's clock; `expires_at` is None for one that does not expire.
    """

    id: str
    revision: int
    status: str
    is_terminal: bool
    value: V
    schema_version: int
    request_id: str | None
    parent_id: str | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewState(Generic[V_co]):
    """A record to make, with others: see StateStore.create, whose options these are."""

    record_id: str
    value: V_co
    status: str | None = None
    ttl_seconds: float | None = None
    schema_version: int = 1
    request_id: str | None = None
    parent_id: str | None = None


@dataclass(frozen=True, slots=True)
class StateUpdate(Generic[V_co]):
    """A write of a record, with those of others: see StateStore.update, whose options these are."""

    record_id: str
    value: V_co
    expected_revision: ExpectedRevision
    expected_status: str | None = None
    status: str | None = None
    ttl_seconds: Ttl = None
    schema_version: int | None = None
    request_id: str | None = None


class StateStore(Protocol):
    """The records of one scope.

    Each successful write raises the record's revision by exactly 1. A refused write changes nothing. An expired record
    is absent to every call. Errors of every call: StoreUnavailableError, StoreTimeoutError, InvalidInputError (before
    the backend is asked); of writes also OutcomeUnknownError, when the answer was lost.
    """

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
    ) -> StateRecord[Value]:
        """Make a record that must be absent, in the lifecycle's initial status unless another is given.

        Its revision is 1, or goes on from that of its former life while the emptied row of that is not swept, so that a
        writer of the former life is refused. Without `ttl_seconds` it does not expire. Raises AlreadyExistsError.
        """
        ...

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
    ) -> StateRecord[Value]:
        """Write a record that is at the expected revision (and in the expected status, where one is given).

        What is not given stays: the status, the schema version, and when it expires (`ttl_seconds` sets that anew, from
        now; NEVER lifts it). `request_id` is that of this write. Refusals are judged in this order: NotFoundError,
        RevisionConflictError (also for the status), TerminalError, TransitionError.
        """
        ...

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
    ) -> StateRecord[Value]:
        """Write a record, whatever is there: make it, or replace it at any revision.

        All of it is replaced by what is given or by the defaults of `create`: so without `ttl_seconds` it no longer
        expires. Two things of a record that is there stay: when it was created, and, where none is given, its status.
        The revision rises by 1, from that of a former life too. Raises TerminalError; TransitionError where the
        lifecycle does not lead from the status of a record that is there to the one that is given.
        """
        ...

    def get(self, record_id: str) -> StateRecord[Value] | None:
        """Return the record, or None where there is none."""
        ...

    def require(self, record_id: str) -> StateRecord[Value]:
        """Return the record. Raises NotFoundError where there is none."""
        record = self.get(record_id)
        if record is None:
            raise NotFoundError("there is no such record")
        return record

    def get_many(self, record_ids: Sequence[str]) -> list[StateRecord[Value] | None]:
        """Return the records of these ids in their order, None for each that is not there, as they are at one moment.

        At most `Limits.items_max` of them.
        """
        ...

    def get_revision(self, record_id: str) -> int | None:
        """Return the record's revision, or None where there is none. Its value is not read."""
        ...

    def get_checkpoint(self, record_id: str, request_id: str) -> StateRecord[Value] | None:
        """Return the record if its last write had this `request_id`, or else None.

        It tells one who does not know whether its write was kept, as long as nobody has written after it.
        """
        ...

    def list(
        self,
        *,
        prefix: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[StateRecord[Value]]:
        """Return a page of the records in the order of their ids, from after the id `after` on.

        `prefix` takes those whose id begins with it, byte by byte, and looks at no others; `status` those in it, and
        looks at others too: see Page. `limit` is at most the limits' `page_size_max`.
        """
        ...

    def list_ids(
        self,
        *,
        prefix: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[str]:
        """Return a page of the records' ids. See list; values are not read."""
        ...

    def delete(self, record_id: str, *, expected_revision: ExpectedRevision) -> int:
        """Empty a record that is at the expected revision, terminal or not, and return the revision that this made.

        Raises NotFoundError or RevisionConflictError.
        """
        ...


class FencedStateStore(StateStore, Protocol):
    """A StateStore whose writes can be guarded by a lease.

    With a `fence`, the write happens only while that lease is held, and its commit comes before any takeover,
    revocation or release returns; otherwise FencingRejectedError, judged before all else. A fence may guard any
    record of its scope: a lease names work, not a row.
    """

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
        """Make a record that must be absent, guarded by the fence. See StateStore.create."""
        ...

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
        """Write a record at its expected revision, guarded by the fence. See StateStore.update."""
        ...

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
        """Write a record, whatever is there, guarded by the fence. See StateStore.put."""
        ...

    def delete(self, record_id: str, *, expected_revision: ExpectedRevision, fence: Fence | None = None) -> int:
        """Empty a record at its expected revision, guarded by the fence. See StateStore.delete."""
        ...

    def create_many(
        self,
        items: Sequence[NewState[Value]],
        *,
        atomic: bool,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        fence: Fence | None = None,
    ) -> Outcomes[StateRecord[Value]]:
        """Make records that must be absent, guarded by the fence, by one statement. See create.

        With `atomic` all of them are made, or none: the first refusal is raised, and has the item's `index`. Else each
        is made or refused by itself, and the outcomes say so: see Outcomes.

        At most `Limits.items_max` items, of `Limits.items_bytes_max` together, and no two of one record. Of none, the
        store is not asked.
        """
        ...

    def update_many(
        self,
        items: Sequence[StateUpdate[Value]],
        *,
        atomic: bool,
        lifecycle: Lifecycle = DEFAULT_LIFECYCLE,
        fence: Fence | None = None,
    ) -> Outcomes[StateRecord[Value]]:
        """Write records that are at their expected revisions, guarded by the fence, by one statement.

        See update; and create_many of `atomic`, and of the bounds.
        """
        ...

    def of(self, model: type[M], *, lifecycle: Lifecycle = DEFAULT_LIFECYCLE) -> StateView[M]:
        """Return a view of these records whose values are of `model`: whatever pydantic can validate."""
        return StateView(self, model, lifecycle)


def checked_revision(expected: ExpectedRevision) -> int | None:
    """Return the revision that a caller expects, or None for any. Raises InvalidInputError. For backends."""
    return None if expected is ANY_REVISION else checked_integer("expected_revision", expected)
