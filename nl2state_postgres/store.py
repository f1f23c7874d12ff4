"""The store on PostgreSQL: how its capabilities, its connections and its heartbeat are bundled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import psycopg
import psycopg_pool

from nl2state.errors import InvalidInputError, UsageError
from nl2state.leases import Fence, Metadata, elapsed_seconds
from nl2state.limits import Limits
from nl2state.pipeline import Pipeline
from nl2state.scope import TenantScope, scope_uuid
from nl2state.store import RetainCursor, Retained, Swept, Transaction, retain_by_scope
from nl2state.toolkit.holding import Heartbeat, Held, hold
from nl2state.waiting import Queues
from nl2state_postgres.binding import PostgresBinding, new_write_id
from nl2state_postgres.borrowed import Borrowed, require_transaction
from nl2state_postgres.catalog import Catalog
from nl2state_postgres.connection import Connection
from nl2state_postgres.database import BorrowedSession, CheckingSession, Database, TransactionSession
from nl2state_postgres.idempotency import PostgresIdempotency
from nl2state_postgres.leases import PostgresLeases
from nl2state_postgres.pools import LentPool, OwnPool, Pool, beside, taken
from nl2state_postgres.schema import prepare
from nl2state_postgres.sessions import check_session, conninfo_of
from nl2state_postgres.settings import Settings
from nl2state_postgres.states import PostgresStates

__all__ = ["PostgresStore", "PostgresSystem", "PostgresTenant", "PostgresTransaction"]

_HEARTBEAT_LOCK_SECONDS = 0.05  # a renewal has no good reason to wait, and others would wait behind it
_DEFAULTS = Settings()


class PostgresTransaction:
    """A transaction on one connection. What it promises is Transaction's."""

    def __init__(self, binding: PostgresBinding, session: TransactionSession) -> None:
        self._binding = binding
        self._session = session
        self.states = PostgresStates(binding)
        self.leases = PostgresLeases(binding)
        self.idempotency = PostgresIdempotency(binding)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a savepoint. It is used by this same handle."""
        with self._session.savepoint():
            yield self

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Collect writes, and make them when the block ends: together, or where one is refused, one by one.

        One by one they are told apart, and whoever is refused has the words that its own call has.
        """
        checking = CheckingSession(self._session.catalog)
        pipeline = Pipeline(PostgresTransaction(replace(self._binding, session=checking), self._session), self)
        with pipeline.collecting():
            yield pipeline
        if not self._session.run_all(checking.collected):
            with self._session.savepoint():
                pipeline.make_one_by_one()

    def after_commit(self, call: Callable[[], object]) -> None:
        """Run `call` once the outermost transaction has committed."""
        self._session.after_commit(call)


class PostgresTenant:
    """What one scope may do. What it promises is Tenant's."""

    def __init__(
        self, binding: PostgresBinding, database: Database, heartbeat: Heartbeat, renewals: PostgresLeases
    ) -> None:
        self._binding = binding
        self._database = database
        self._heartbeat = heartbeat
        self._renewals = renewals
        self.states = PostgresStates(binding)
        self.leases = PostgresLeases(binding)
        self.idempotency = PostgresIdempotency(binding)

    @contextmanager
    def transaction(self, *, fence: Fence | None = None) -> Iterator[Transaction]:
        """Open a transaction, all of whose writes carry the fence where one is given."""
        fence = self._binding.fence_of(fence)
        with self._database.transaction() as session:
            yield PostgresTransaction(
                replace(self._binding, session=session, fence=fence, in_transaction=True), session
            )

    def on(self, connection: psycopg.Connection[Any], *, fence: Fence | None = None) -> PostgresTransaction:
        """Return this tenant's transaction on a connection of the service's own, in the transaction that is open there.

        What is written through it commits or is undone with the service's own rows, when the service ends that
        transaction; with a fence, every write in it carries that fence. A connection that is not in autocommit begins
        its transaction by this call. Nothing of the connection's settings is touched. Make one in each transaction,
        and use it in the thread that does. `after_commit` does not work in it, as the commit is not seen here. A lost
        answer to the service's own COMMIT is the service's to find out about: read a record, or reserve the key again.

        Raises UsageError where no transaction is open and none is begun, or where it is not READ COMMITTED, is
        read-only, has failed, or is in psycopg's pipeline mode; InvalidInputError for what is no psycopg.Connection.
        """
        fence = self._binding.fence_of(fence)
        borrowed = Borrowed(connection)
        require_transaction(borrowed, self._database.catalog)
        session = BorrowedSession(borrowed, self._database.catalog)
        binding = replace(self._binding, session=session, fence=fence, in_transaction=True)
        return PostgresTransaction(binding, session)

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
        if self._database.has_open_transaction_here:
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


class PostgresSystem:
    """What crosses tenants. What it promises is System's."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
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
        row = self._database.row("next_scope", {"scope": after})
        return None if row is None else row[0]

    def _sweep(self, name: str, scope: UUID, age_seconds: float, page_size: int, after: str) -> Swept:
        values = {"scope": scope, "age_seconds": age_seconds, "page_size": page_size, "write_id": new_write_id()}
        removed, last, scanned = self._database.row(f"sweep_{name}", {"after": after, **values}) or (0, None, 0)
        if scanned < page_size:
            return Swept(removed, None)
        return Swept(removed, last.isoformat() if isinstance(last, datetime) else last)


class PostgresStore:
    """A store on a PostgreSQL server, 14 or later. Safe to share between threads; not over a fork."""

    def __init__(
        self,
        database: Database,
        beating: Database,
        *,
        limits: Limits,
        monotonic: Callable[[], float],
    ) -> None:
        """Bundle what `open` made. Applications call that."""
        self._database = database
        self._beating = beating
        self._heartbeat = Heartbeat(monotonic)
        self._limits = limits
        self._monotonic = monotonic
        self._queues = Queues(monotonic)
        self.system = PostgresSystem(database, limits)

    @classmethod
    def open(
        cls,
        dsn: str | None = None,
        *,
        pool: psycopg_pool.ConnectionPool[Any] | None = None,
        schema: str = "nl2state",
        migrate: bool = True,
        settings: Settings = _DEFAULTS,
        limits: Limits | None = None,
        monotonic: Callable[[], float] = elapsed_seconds,
    ) -> PostgresStore:
        """Open a store in a schema of its own, on the server of the DSN or through a pool of the service's.

        With `migrate`, the schema is made, or brought up to this code, first; that is safe from many processes at once.
        Without, it must be there and fit. `monotonic` is the clock of this client's own deadlines.

        A pool that is lent is not closed by the store, and its sessions are not set up: of the settings, the store uses
        `checkout_timeout_seconds`, `epoch`, and `transaction_pooler`, which says that the pool leads through one. Each
        of its sessions has to be READ COMMITTED by default, not without synchronous_commit, and to bound its waits
        (lock_timeout, statement_timeout, idle_in_transaction_session_timeout): `ConnectionPool(...,
        configure=session_settings())` sees to it, or the role's own settings. Held leases are renewed on one connection
        more, which the store makes as the pool would, and sets up as its own; behind a transaction pooler, it is not
        set up.

        Raises SchemaError, StoreUnavailableError, StoreTimeoutError, InvalidInputError; UsageError for sessions of a
        lent pool that do not fit.
        """
        _check_options(dsn, pool, settings, limits)
        # a session to a primary knows its epoch; through these, one connection may lead to one server after another
        reads_epoch = settings.epoch is None and (pool is not None or settings.transaction_pooler)
        catalog = Catalog.load(schema=schema, clock=settings.clock, reads_epoch=reads_epoch)
        # the heartbeat's own, so that it is never behind a busy pool; connected with the first lease that is held
        beats = settings.model_copy(update={"lock_timeout_seconds": _HEARTBEAT_LOCK_SECONDS})
        own: Pool
        beating: Pool
        if pool is not None:
            own = LentPool(pool, catalog, settings)
            with taken(own) as lent:
                prepare(lent, catalog, schema, migrate=migrate)
                if settings.epoch is None:
                    lent.run(catalog["note_timeline"], {})
            beating = LentPool(beside(pool, beats), catalog, beats, closes=True)
        else:
            conninfo = conninfo_of(dsn or "", settings)
            with closing(Connection.bare(conninfo)) as connection:
                if settings.transaction_pooler:
                    check_session(connection, catalog)
                prepare(connection, catalog, schema, migrate=migrate)
            own = OwnPool(conninfo, catalog, settings, size=(settings.connections_min, settings.connections_max))
            try:
                beating = OwnPool(conninfo, catalog, beats, size=(0, 1))
            except BaseException:  # no more threads, or a signal's
                own.close()
                raise
        bound = _HEARTBEAT_LOCK_SECONDS if settings.transaction_pooler else None
        renewals = Database(beating, catalog, lock_timeout_seconds=bound)
        return cls(Database(own, catalog), renewals, limits=limits or Limits(), monotonic=monotonic)

    def tenant(self, scope: TenantScope) -> PostgresTenant:
        """Return the tenant of a scope. It is light: make one where it is needed."""
        uuid = scope_uuid(scope)
        binding = self._binding(uuid, self._database)
        renewals = PostgresLeases(self._binding(uuid, self._beating))
        return PostgresTenant(binding, self._database, self._heartbeat, renewals)

    def close(self) -> None:
        """End the heartbeat and the connections. Held leases run out. Can be called twice."""
        self._heartbeat.close()
        self._beating.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _binding(self, scope: UUID, database: Database) -> PostgresBinding:
        return PostgresBinding(
            scope=scope, session=database, limits=self._limits, monotonic=self._monotonic, queues=self._queues
        )


def _check_options(dsn: object, pool: object, settings: object, limits: object) -> None:
    if (dsn is None) is (pool is None):
        raise InvalidInputError("a DSN or a pool is needed, and not both", field="dsn")
    if pool is not None and not isinstance(pool, psycopg_pool.ConnectionPool):
        raise InvalidInputError("pool is not a psycopg_pool.ConnectionPool", field="pool")
    if not isinstance(settings, Settings):
        raise InvalidInputError("settings is not a nl2state_postgres.Settings", field="settings")
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidInputError("limits is not a nl2state.Limits", field="limits")
