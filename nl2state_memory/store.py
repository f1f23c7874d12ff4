"""The store in memory: how its capabilities, its database and its heartbeat are bundled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from nl2state.errors import UsageError
from nl2state.leases import Fence, Metadata, elapsed_seconds
from nl2state.limits import Limits
from nl2state.pipeline import Pipeline
from nl2state.scope import TenantScope, scope_uuid
from nl2state.store import RetainCursor, Retained, Swept, Transaction, retain_by_scope
from nl2state.toolkit.holding import Heartbeat, Held, hold
from nl2state.waiting import Queues
from nl2state_memory import idempotency, leases, states
from nl2state_memory.binding import MemoryBinding
from nl2state_memory.database import Database
from nl2state_memory.idempotency import MemoryIdempotency
from nl2state_memory.leases import MemoryLeases
from nl2state_memory.sessions import CheckingSession, ClientSession, TransactionSession
from nl2state_memory.settings import Settings
from nl2state_memory.states import MemoryStates

__all__ = ["MemoryStore", "MemorySystem", "MemoryTenant", "MemoryTransaction"]

_HEARTBEAT_LOCK_SECONDS = 0.05  # a renewal has no good reason to wait, and others would wait behind it
_DEFAULTS = Settings()

_SWEEPS: Final[dict[str, Callable[[Database, UUID, datetime, int, str], Swept]]] = {
    "ended_states": states.sweep_ended,
    "deleted_states": states.sweep_deleted,
    "expired_states": states.sweep_expired,
    "leases": leases.sweep,
    "keys": idempotency.sweep,
}


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryTransaction:
    """A transaction. What it promises is Transaction's."""

    def __init__(self, binding: MemoryBinding, session: TransactionSession) -> None:
        self._binding = binding
        self._session = session
        self.states = MemoryStates(binding)
        self.leases = MemoryLeases(binding)
        self.idempotency = MemoryIdempotency(binding)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a savepoint. It is used by this same handle."""
        with self._session.savepoint():
            yield self

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Collect writes, and make them when the block ends."""
        checking = replace(self._binding, session=CheckingSession(self._session.database))
        pipeline = Pipeline(MemoryTransaction(checking, self._session), self)
        with pipeline.collecting():
            yield pipeline
        with self._session.savepoint():
            pipeline.make_one_by_one()

    def after_commit(self, call: Callable[[], object]) -> None:
        """Run `call` once the outermost transaction has committed."""
        self._session.after_commit(call)


class MemoryTenant:
    """What one scope may do. What it promises is Tenant's."""

    def __init__(
        self, binding: MemoryBinding, session: ClientSession, heartbeat: Heartbeat, renewals: MemoryLeases
    ) -> None:
        self._binding = binding
        self._session = session
        self._heartbeat = heartbeat
        self._renewals = renewals
        self.states = MemoryStates(binding)
        self.leases = MemoryLeases(binding)
        self.idempotency = MemoryIdempotency(binding)

    @contextmanager
    def transaction(self, *, fence: Fence | None = None) -> Iterator[Transaction]:
        """Open a transaction, all of whose writes carry the fence where one is given."""
        fence = self._binding.fence_of(fence)
        with self._session.transaction() as session:
            yield MemoryTransaction(replace(self._binding, session=session, fence=fence, in_transaction=True), session)

    def hold(
        self,
        resource: str,
        *,
        owner: str,
        ttl_seconds: float = 30.0,
        wait_seconds: float = 0.0,
        metadata: Metadata | None = None,
    ) -> AbstractContextManager[Held]:
        """Hold the lease of a resource for a block, kept alive by the store's heartbeat."""
        if self._session.has_open_transaction_here:
            raise UsageError("hold does not work in a transaction: do it around the transaction")
        return hold(
            self,
            self._heartbeat,
            self._renewals,
            resource,
            owner=owner,
            ttl_seconds=ttl_seconds,
            wait_seconds=wait_seconds,
            metadata=metadata,
        )


class MemorySystem:
    """What crosses tenants. What it promises is System's."""

    def __init__(self, session: ClientSession, limits: Limits) -> None:
        self._session = session
        self._limits = limits

    def retain(
        self,
        *,
        terminal_age_seconds: float | None = None,
        expired_age_seconds: float = 86_400.0,
        limit: int = 1_000,
        after: RetainCursor | None = None,
    ) -> Retained:
        """Remove rows that nothing needs any more, scope by scope."""
        return retain_by_scope(
            self._next_scope,
            self._sweep,
            self._limits,
            terminal_age_seconds=terminal_age_seconds,
            expired_age_seconds=expired_age_seconds,
            limit=limit,
            after=after,
        )

    def _next_scope(self, after: UUID) -> UUID | None:
        """Return the least scope after this one that has a row of any noun; None where there is none."""
        database = self._session.database
        with self._session.call():
            found = [table.next_scope(after) for table in (database.states, database.leases, database.keys)]
        return min((scope for scope in found if scope is not None), default=None)

    def _sweep(self, name: str, scope: UUID, age_seconds: float, page_size: int, after: str) -> Swept:
        """Run one clean-up. Each is a call of its own, so that others come between."""
        database = self._session.database
        with self._session.call():
            return _SWEEPS[name](database, scope, database.clock() - timedelta(seconds=age_seconds), page_size, after)


class MemoryStore:
    """A store in this process's memory: for tests, and to read what a backend does. Safe to share between threads.

    It keeps every promise that does not need a disk. It starts no thread until a lease is held, and needs no closing
    otherwise.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock: Callable[[], datetime] = _now,
        monotonic: Callable[[], float] = elapsed_seconds,
        settings: Settings = _DEFAULTS,
    ) -> None:
        """Make an empty store.

        `clock` is the store's own: an aware UTC datetime, which a test may move. It is called with the store's mutex
        held, so it may not call the store. `monotonic` is the clock of this client's own deadlines.
        """
        self._assemble(Database(clock, settings), limits or Limits(), monotonic)

    def client(self) -> MemoryStore:
        """Open the same data again, with a heartbeat of its own, as another process would."""
        other = object.__new__(MemoryStore)
        other._assemble(self._database, self._limits, self._monotonic)
        return other

    def tenant(self, scope: TenantScope) -> MemoryTenant:
        """Return the tenant of a scope. It is light: make one where it is needed."""
        renewals = MemoryLeases(self._binding(scope, self._beating))
        return MemoryTenant(self._binding(scope, self._session), self._session, self._heartbeat, renewals)

    def close(self) -> None:
        """End the heartbeat, and refuse every call from now on. Held leases run out. Can be called twice."""
        self._heartbeat.close()
        self._beating.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _assemble(self, database: Database, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._database = database
        self._limits = limits
        self._monotonic = monotonic
        self._queues = Queues(monotonic)
        self._session = ClientSession(database, database.settings.lock_timeout_seconds)
        # the heartbeat's own: one lease whose release is open may not keep all others from being renewed for long
        self._beating = ClientSession(database, _HEARTBEAT_LOCK_SECONDS)
        self._heartbeat = Heartbeat(monotonic)
        self.system = MemorySystem(self._session, limits)

    def _binding(self, scope: TenantScope, session: ClientSession) -> MemoryBinding:
        return MemoryBinding(
            scope=scope_uuid(scope),
            session=session,
            limits=self._limits,
            monotonic=self._monotonic,
            queues=self._queues,
        )
