"""Store, Tenant, Transaction and System: how the capabilities are bundled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self
from uuid import UUID

from nl2state.errors import InvalidInputError
from nl2state.idempotency import IdempotencyStore
from nl2state.keys import check_prefix
from nl2state.leases import Fence, LeaseStore, Metadata
from nl2state.limits import Limits, check_seconds, checked_integer
from nl2state.pipeline import Pipeline
from nl2state.scope import TenantScope
from nl2state.states import FencedStateStore
from nl2state.toolkit.holding import Held

__all__ = ["SWEEPS", "RetainCursor", "Retained", "Store", "Swept", "System", "Tenant", "Transaction", "retain_by_scope"]


class Transaction(Protocol):
    """Calls that commit together or not at all. A handle for one thread; the tenant that made it stays outside it.

    A refusal (conflict, fencing, not found) leaves it usable; any other error of the store poisons it: every later call
    raises UsageError, and it is rolled back. Leases can only be released in it, or looked at: to acquire, renew, revoke
    or reserve, and to renew an attempt, raises UsageError.
    """

    @property
    def states(self) -> FencedStateStore:
        """The tenant's records, in this transaction. In a fenced one, every write carries its fence."""
        ...

    @property
    def leases(self) -> LeaseStore:
        """The tenant's leases, in this transaction: to be released, or looked at."""
        ...

    @property
    def idempotency(self) -> IdempotencyStore:
        """The tenant's keys, in this transaction. In a fenced one, `complete` carries its fence."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a savepoint: what is done in it is undone alone, with its locks, when its block raises."""
        ...

    def pipeline(self) -> AbstractContextManager[Pipeline]:
        """Collect writes whose results nobody waits for, and make them together when the block ends, in their order.

        All of them are made, or none; on a server, in one round trip. Their arguments are checked, and their values
        taken, as they are called. The first refusal is raised at the block's end, with its `index` among them, and
        leaves the transaction usable. What else is called in the block comes before all of them. A block that raises
        makes none.
        """
        ...

    def after_commit(self, call: Callable[[], object]) -> None:
        """Run `call` once the outermost transaction has committed, in order; never when it, or this savepoint, did not.

        All are run, though one raises; what they raise is raised then (together, as an ExceptionGroup, where they are
        several), and the commit stands.
        """
        ...


class Tenant(Protocol):
    """What one scope may do. Safe to share between threads."""

    @property
    def states(self) -> FencedStateStore:
        """The tenant's records."""
        ...

    @property
    def leases(self) -> LeaseStore:
        """The tenant's leases."""
        ...

    @property
    def idempotency(self) -> IdempotencyStore:
        """The tenant's idempotency keys."""
        ...

    def transaction(self, *, fence: Fence | None = None) -> AbstractContextManager[Transaction]:
        """Open a transaction: it commits when the block ends, and is rolled back when the block raises.

        With a fence, every write in it carries that fence. Raises OutcomeUnknownError where the answer to the commit
        was lost.
        """
        ...

    def hold(
        self,
        resource: str,
        *,
        owner: str,
        ttl_seconds: float = 30.0,
        wait_seconds: float = 0.0,
        metadata: Metadata | None = None,
    ) -> AbstractContextManager[Held]:
        """Hold the lease of a resource for a block, kept alive by a heartbeat. See nl2state.toolkit.holding.

        Raises LeaseBusyError; UsageError while this thread has a transaction open.
        """
        ...


@dataclass(frozen=True, slots=True)
class RetainCursor:
    """Where a call of `retain` stopped: for the next one to go on.

    `key` is of the last row that it read: its name or, in a clean-up of states, which goes by time, when it was due, in
    UTC, in ISO format.
    """

    scope: UUID
    sweep: str
    key: str


@dataclass(frozen=True, slots=True)
class Retained:
    """How many rows of each noun a call of `retain` removed, and after what to go on; None at the end."""

    states: int
    leases: int
    idempotency: int
    after: RetainCursor | None


class Swept(NamedTuple):
    """How many rows one clean-up of a scope removed, and after which key there may be more; None at the end."""

    removed: int
    after: str | None


class System(Protocol):
    """What crosses tenants. Application code is not handed it."""

    def retain(
        self,
        *,
        terminal_age_seconds: float | None = None,
        expired_age_seconds: float = 86_400.0,
        limit: int = 1_000,
        after: RetainCursor | None = None,
    ) -> Retained:
        """Remove rows that nothing needs any more, skipping what is locked: a page of scopes a call, from `after` on.

        Those are: records that ended longer ago than `terminal_age_seconds` (None: none of these), which are emptied as
        `delete` does; and what expired, was deleted, released or forgotten longer ago than `expired_age_seconds`. That
        one is at least an hour, since tokens and attempts go on rising after a row is removed only while no clock steps
        further back.

        A call removes at most `limit` rows of each noun, and reads few more: call it again with the `after` that it
        returned, until that is None. What was locked when its turn came is left for the next pass.
        """
        ...


class Store(Protocol):
    """A store that is open. Safe to share between threads; not over a fork."""

    @property
    def system(self) -> System:
        """What crosses tenants."""
        ...

    def tenant(self, scope: TenantScope) -> Tenant:
        """Return the tenant of a scope. It is light: make one where it is needed."""
        ...

    def close(self) -> None:
        """End the heartbeat and the connections. Held leases run out. Can be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


SWEEPS: Final = {
    "ended_states": "states",
    "deleted_states": "states",
    "expired_states": "states",
    "leases": "leases",
    "keys": "idempotency",
}
"""The clean-ups of a scope, and the noun that each is counted with."""

_BY_TIME: Final = tuple(name for name, noun in SWEEPS.items() if noun == "states")
_STEP = 50
"""How many rows a backend reads at once: a commit beside it has to flush what is written of them as well."""
_SCOPES_MAX = 100
_PAGE_SIZE_MAX = 10_000
_EXPIRED_AGE_SECONDS_MIN = 3_600.0


def retain_by_scope(
    next_scope: Callable[[UUID], UUID | None],
    sweep: Callable[[str, UUID, float, int, str], Swept],
    limits: Limits,
    *,
    terminal_age_seconds: float | None,
    expired_age_seconds: float,
    limit: int,
    after: RetainCursor | None,
) -> Retained:
    """Do what System.retain says, for a backend.

    `next_scope` returns the least scope after one. `sweep` is given one of SWEEPS, a scope, an age, how many rows it
    may read, and after which key: in one of _BY_TIME, from which time on.
    """
    most = limits.ttl_seconds_max
    expired = check_seconds("expired_age_seconds", expired_age_seconds, least=_EXPIRED_AGE_SECONDS_MIN, most=most)
    ages = dict.fromkeys(SWEEPS, expired)
    if terminal_age_seconds is None:
        del ages["ended_states"]
    else:
        ages["ended_states"] = check_seconds("terminal_age_seconds", terminal_age_seconds, most=most)
    checked_integer("limit", limit, most=_PAGE_SIZE_MAX)
    if after is not None:
        _check_cursor(after, limits)
    removed = dict.fromkeys(SWEEPS.values(), 0)
    resumed = after if after is not None and after.sweep in ages else None
    scope = next_scope(UUID(int=0)) if after is None else after.scope
    for _ in range(_SCOPES_MAX):
        if scope is None:
            return Retained(**removed, after=None)
        for name, age_seconds in ages.items():
            if resumed is not None and resumed.sweep != name:
                continue  # it was done before
            noun, key = SWEEPS[name], "" if resumed is None else resumed.key
            resumed = None
            unread = limit - removed[noun]
            while unread:
                page_size = min(unread, _STEP)
                swept = sweep(name, scope, age_seconds, page_size, key)
                removed[noun] += swept.removed
                unread -= page_size
                if swept.after is None:
                    break
                key = swept.after
            else:
                return Retained(**removed, after=RetainCursor(scope, name, key))
        scope = next_scope(scope)
    return Retained(**removed, after=None if scope is None else RetainCursor(scope, next(iter(ages)), ""))


def _check_cursor(after: RetainCursor, limits: Limits) -> None:
    """Refuse what no call of `retain` returned: it may have been kept somewhere meanwhile."""
    known = list(SWEEPS)  # what is compared may not be hashable
    if not isinstance(after, RetainCursor) or not isinstance(after.scope, UUID) or after.sweep not in known:
        raise InvalidInputError("after is not where a call stopped", field="after")
    check_prefix("after", after.key, limits.id_bytes_max)
    if after.sweep in _BY_TIME and after.key and not _is_time(after.key):
        raise InvalidInputError("after is not where a call stopped", field="after")


def _is_time(key: str) -> bool:
    """Return whether this is how we write a time: every other way would be another backend's to read."""
    try:
        at = datetime.fromisoformat(key)
    except ValueError:
        return False
    return at.utcoffset() == timedelta(0) and at.isoformat() == key
