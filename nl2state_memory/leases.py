"""Leases in memory, and the lock protocol that makes a late write fail.

What may run beside what is said by the strength of the lock on the lease's row:

    a fenced write              KEY SHARE: this grant stays until I commit
    renew, and the first half   NO KEY UPDATE: they do not wait for open fenced writes
      of revoke
    release, takeover, and the  UPDATE: they wait for open fenced writes, and when those have committed, no older
      other half of revoke        token can commit
    acquire, when free          NO KEY UPDATE: nobody has a fence to write with

PostgreSQL needs one thing more, the column `turn`: there, a lock is taken on a version of the row, and the versions
have to be told apart. Here it is on the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from nl2state.errors import FencingRejectedError, LeaseBusyError, StoreTimeoutError
from nl2state.leases import Fence, Lease, LeaseRecord, LeaseStore, Metadata, encode_metadata
from nl2state.many import Outcomes, check_atomic, checked_items
from nl2state.pages import PAGE_SIZE, Page, page_of
from nl2state.store import Swept
from nl2state_memory import rows
from nl2state_memory.binding import MemoryBinding
from nl2state_memory.database import Database, Unit
from nl2state_memory.many import run_each
from nl2state_memory.rows import LeaseRow
from nl2state_memory.tables import Name, Strength
from nl2state_memory.waiting import Waiting

__all__ = ["MemoryLeases", "Wanted", "guard", "sweep"]


def guard(unit: Unit, binding: MemoryBinding, fence: Fence | None) -> None:
    """Keep the grant that a write is fenced with until the write commits. Raises FencingRejectedError.

    The expiry is looked at before the lock and after it, so that a refused write keeps no lock. It proves nothing: the
    lock does.
    """
    if fence is None:
        return
    database = unit.database

    def is_held(row: LeaseRow) -> bool:
        return row.is_grant(fence) and row.expires_at > database.clock()

    if unit.lock(database.leases, binding.name(fence.resource), Strength.KEY_SHARE, is_held) is None:
        raise FencingRejectedError("the lease was lost")


class Wanted(NamedTuple):
    """What an acquire asks for, checked."""

    resource: str
    owner: str
    ttl_seconds: float
    metadata: bytes | None


class MemoryLeases(LeaseStore):
    """The leases of one scope. What the calls promise is LeaseStore's."""

    def __init__(self, binding: MemoryBinding) -> None:
        self._binding = binding
        self._database = binding.session.database

    def acquire(
        self,
        resource: str,
        *,
        owner: str,
        ttl_seconds: float,
        wait_seconds: float = 0.0,
        metadata: Metadata | None = None,
    ) -> Lease:
        """Take the lease of a resource that is free or expired, waiting for it at most so long."""
        binding = self._binding
        binding.refuse_in_transaction("acquire")  # a grant that is rolled back would be issued again
        binding.id("resource", resource)
        binding.id("owner", owner)
        ttl_seconds = binding.ttl("ttl_seconds", ttl_seconds)
        kept = encode_metadata(metadata, binding.limits)
        wanted = Wanted(resource, owner, ttl_seconds, kept)
        with binding.turn(resource, binding.wait(wait_seconds)) as until:
            return self._acquire(wanted, Waiting(self._database, until, binding.monotonic))

    def try_acquire(
        self, resource: str, *, owner: str, ttl_seconds: float, metadata: Metadata | None = None
    ) -> Lease | None:
        """Take the lease of a resource, or return None where it is busy."""
        try:
            return self.acquire(resource, owner=owner, ttl_seconds=ttl_seconds, metadata=metadata)
        except LeaseBusyError:
            return None

    def renew(self, fence: Fence, *, ttl_seconds: float | None = None) -> Lease:
        """Make a lease that is still valid last its own TTL, or another, from now."""
        binding = self._binding
        binding.refuse_in_transaction("renew")  # until its commit, the heartbeat would wait behind it
        binding.checked_fence(fence)
        if ttl_seconds is not None:
            ttl_seconds = binding.ttl("ttl_seconds", ttl_seconds)
        sent_at = binding.monotonic()
        with binding.session.call() as unit:
            return self._renew(unit, fence, ttl_seconds, sent_at)

    def renew_many(self, fences: Sequence[Fence], *, ttl_seconds: float | None = None, atomic: bool) -> Outcomes[Lease]:
        """Make leases that are still valid last their own TTLs, or another, from now."""
        binding = self._binding
        binding.refuse_in_transaction("renew_many")  # as renew
        check_atomic(atomic)
        checked = checked_items(
            fences, Fence, binding.checked_fence, lambda fence: fence.resource, binding.limits, field="fences"
        )
        if ttl_seconds is not None:
            ttl_seconds = binding.ttl("ttl_seconds", ttl_seconds)
        sent_at = binding.monotonic()
        names = [fence.resource for fence in checked]
        with binding.session.call() as unit:
            return run_each(names, lambda index: self._renew(unit, checked[index], ttl_seconds, sent_at), atomic=atomic)

    def release(self, fence: Fence) -> None:
        """Free a resource."""
        binding = self._binding
        binding.checked_fence(fence)
        name = binding.name(fence.resource)
        with binding.session.call() as unit:
            row = unit.lock(self._database.leases, name, Strength.UPDATE, lambda row: row.is_grant(fence))
            if row is None:
                raise FencingRejectedError("the lease was lost")
            self._free(unit, name, row)

    def revoke(self, resource: str) -> bool:
        """Take the lease from whoever holds it."""
        binding, leases, clock = self._binding, self._database.leases, self._database.clock
        binding.refuse_in_transaction("revoke")  # its two halves are two commits
        name = binding.name(binding.id("resource", resource))
        with binding.session.call() as unit:
            # expired first: new fenced writes fail from here on, so that they cannot starve the other half
            expired = unit.lock(
                leases, name, Strength.NO_KEY_UPDATE, lambda row: row.owner is not None and row.expires_at > clock()
            )
            if expired is not None:
                unit.write(leases, name, replace(expired, expires_at=clock()))
        with binding.session.call() as unit:
            # its expiry is not looked at again: a renewal that waited behind the first half may have moved it
            row = unit.lock(
                leases,
                name,
                Strength.UPDATE,
                lambda row: row.owner is not None and (expired is None or row.token == expired.token),
            )
            if row is not None:
                self._free(unit, name, row)
        return row is not None or expired is not None

    def inspect(self, resource: str) -> LeaseRecord | None:
        """Return who holds a lease, expired or not, or None where it is free."""
        name = self._binding.name(self._binding.id("resource", resource))
        with self._binding.session.call() as unit:
            row, at = unit.read(self._database.leases, name), self._database.clock()
        return None if row is None else rows.lease_record(resource, row, at)

    def list(self, *, after: str | None = None, limit: int = PAGE_SIZE) -> Page[LeaseRecord]:
        """Return a page of what `inspect` says of each resource, in their order."""
        binding = self._binding
        span = binding.span(after=after, limit=limit)
        with binding.session.call() as unit:
            scanned, at = self._database.leases.scan(unit, binding.scope, span), self._database.clock()
        return page_of(scanned, limit, lambda resource, row: rows.lease_record(resource, row, at))

    def _acquire(self, wanted: Wanted, waiting: Waiting) -> Lease:
        binding = self._binding
        while True:
            granted = self._grant(wanted, binding.monotonic())
            if isinstance(granted, LeaseBusyError):
                waiting.pause_or_raise(granted)
            elif binding.monotonic() < granted.deadline:
                return granted
            else:
                with suppress(FencingRejectedError):  # it waited behind a lock for longer than it lives
                    self.release(granted.fence)

    def _grant(self, wanted: Wanted, sent_at: float) -> Lease | LeaseBusyError:
        """Grant a lease that is free, or take over an expired one, or say who holds it."""
        leases, name = self._database.leases, self._binding.name(wanted.resource)
        with self._binding.session.call() as unit:
            while True:
                # a held one is seen and not locked: its holder's heartbeat is not to wait for us
                if unit.claim(leases, name, Strength.NO_KEY_UPDATE, lambda row: row is None or row.owner is None):
                    return self._given(unit, wanted, sent_at)
                with suppress(StoreTimeoutError):  # the former holder's transaction is still open: it is busy yet
                    if unit.lock(leases, name, Strength.UPDATE, self._is_dead) is not None:
                        return self._given(unit, wanted, sent_at)
                row = unit.read(leases, name)
                if row is not None and row.owner is not None:
                    remaining = max(0.0, (row.expires_at - self._database.clock()).total_seconds())
                    return LeaseBusyError("the lease is held", owner=row.owner, retry_after_seconds=remaining)
                # it came free while the takeover waited: start over

    def _renew(self, unit: Unit, fence: Fence, ttl_seconds: float | None, sent_at: float) -> Lease:
        leases, name, clock = self._database.leases, self._binding.name(fence.resource), self._database.clock
        row = unit.lock(
            leases, name, Strength.NO_KEY_UPDATE, lambda row: row.is_grant(fence) and row.expires_at > clock()
        )
        if row is None:
            raise FencingRejectedError("the lease was lost")
        until = clock() + timedelta(seconds=row.ttl_seconds if ttl_seconds is None else ttl_seconds)
        row = replace(row, expires_at=max(row.expires_at, until))  # never back: a client was told the later one
        unit.write(leases, name, row)
        return rows.lease(fence, row, sent_at=sent_at, ttl_seconds=ttl_seconds)

    def _is_dead(self, row: LeaseRow) -> bool:
        return row.owner is not None and row.expires_at <= self._database.clock()

    def _given(self, unit: Unit, wanted: Wanted, sent_at: float) -> Lease:
        """Write a grant over a row that is locked, or none."""
        database, name = self._database, self._binding.name(wanted.resource)
        before = unit.read(database.leases, name)
        at = database.clock()  # read after the lock: a life that began before the wait could be over
        token = database.first_number(at)
        if before is not None:
            token = max(before.token + 1, token)
        row = LeaseRow(
            wanted.owner,
            token,
            wanted.ttl_seconds,
            acquired_at=at,
            expires_at=at + timedelta(seconds=wanted.ttl_seconds),
            metadata=wanted.metadata,
        )
        unit.write(database.leases, name, row)
        taken_over = before is not None and before.owner is not None
        return rows.lease(Fence(wanted.resource, wanted.owner, token), row, sent_at=sent_at, taken_over=taken_over)

    def _free(self, unit: Unit, name: Name, row: LeaseRow) -> None:
        """Write that a lease is free; the row keeps its token, and when it came free, for the sweep."""
        freed = replace(row, owner=None, expires_at=self._database.clock(), metadata=None)
        unit.write(self._database.leases, name, freed)


def sweep(database: Database, scope: UUID, until: datetime, page_size: int, after: str) -> Swept:
    """Remove leases of one scope that expired or came free by then. See Database.sweep_page."""
    return database.sweep_page(database.leases, scope, page_size, after, lambda row: row.expires_at <= until)
