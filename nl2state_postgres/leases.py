"""Leases on PostgreSQL. The statements, and the lock protocol that they keep, are in sql/leases.sql."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from nl2state.errors import FencingRejectedError, LeaseBusyError
from nl2state.leases import Fence, Lease, LeaseRecord, LeaseStore, Metadata, encode_metadata
from nl2state.many import Outcomes, check_atomic, checked_items
from nl2state.pages import PAGE_SIZE, Page, page_of
from nl2state_postgres import rows
from nl2state_postgres.binding import PostgresBinding, columns_of
from nl2state_postgres.sqlstates import LockTimeoutError
from nl2state_postgres.waiting import Waiting

__all__ = ["PostgresLeases"]

_FENCE = ("resource", "owner", "token")


class PostgresLeases(LeaseStore):
    """The leases of one scope. What the calls promise is LeaseStore's."""

    def __init__(self, binding: PostgresBinding) -> None:
        self._binding = binding

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
        wanted = {
            "resource": binding.id("resource", resource),
            "owner": binding.id("owner", owner),
            "ttl_seconds": binding.ttl("ttl_seconds", ttl_seconds),
            "metadata": encode_metadata(metadata, binding.limits),
        }
        if not binding.wait(wait_seconds):  # who does not wait stands in no queue
            return self._acquire(wanted, Waiting(binding.monotonic(), binding.monotonic))
        with binding.turn(resource, wait_seconds) as until:
            return self._acquire(wanted, Waiting(until, binding.monotonic))

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
        row = binding.row("renew_lease", {"ttl_seconds": ttl_seconds, **_columns(fence)})
        if row is None:
            raise FencingRejectedError("the lease was lost")
        return rows.lease(fence, row, sent_at=sent_at, ttl_seconds=ttl_seconds)

    def renew_many(self, fences: Sequence[Fence], *, ttl_seconds: float | None = None, atomic: bool) -> Outcomes[Lease]:
        """Make leases that are still valid last their own TTLs, or another, from now."""
        binding = self._binding
        binding.refuse_in_transaction("renew_many")
        check_atomic(atomic)
        fences = checked_items(
            fences, Fence, binding.checked_fence, attrgetter("resource"), binding.limits, field="fences"
        )
        if ttl_seconds is not None:
            ttl_seconds = binding.ttl("ttl_seconds", ttl_seconds)
        if not fences:
            return Outcomes(())
        values = columns_of([_columns(fence) for fence in fences], _FENCE)
        sent_at = binding.monotonic()
        with binding.many(atomic=atomic) as within:
            found = within.rows("renew_leases", {"ttl_seconds": ttl_seconds, **values})
            renewed = {resource: tuple(row) for resource, *row in found}
            outcomes = [
                rows.lease(fence, renewed[fence.resource], sent_at=sent_at, ttl_seconds=ttl_seconds)
                if fence.resource in renewed
                else FencingRejectedError("the lease was lost", index=index)
                for index, fence in enumerate(fences)
            ]
            return Outcomes(outcomes, atomic=atomic)

    def release(self, fence: Fence) -> None:
        """Free a resource."""
        binding = self._binding
        binding.checked_fence(fence)
        row = binding.write("release_lease", None, _columns(fence))
        if row is None:
            raise FencingRejectedError("the lease was lost")

    def revoke(self, resource: str) -> bool:
        """Take the lease from whoever holds it."""
        binding = self._binding
        binding.refuse_in_transaction("revoke")  # its two halves are two commits
        binding.id("resource", resource)
        expired = binding.row("expire_lease", {"resource": resource})
        token = None if expired is None else expired[0]
        freed = binding.write("revoke_lease", None, {"resource": resource, "token": token})
        return freed is not None or token is not None

    def inspect(self, resource: str) -> LeaseRecord | None:
        """Return who holds a lease, expired or not, or None where it is free."""
        row = self._binding.row("inspect_lease", {"resource": self._binding.id("resource", resource)})
        return None if row is None else rows.lease_record(resource, *row)

    def list(self, *, after: str | None = None, limit: int = PAGE_SIZE) -> Page[LeaseRecord]:
        """Return a page of what `inspect` says of each resource, in their order."""
        span = self._binding.span(after=after, limit=limit)
        scanned = self._binding.rows("list_leases", {"after": span.after, "page_size": span.limit})
        return page_of(scanned, limit, rows.lease_record)

    def _acquire(self, wanted: dict[str, Any], waiting: Waiting) -> Lease:
        binding = self._binding
        while True:
            lease, blocked = None, True
            with suppress(LockTimeoutError):  # else somebody's transaction on it is still open: it is busy yet
                lease = self._grant("acquire_lease", wanted) or self._grant("take_over_lease", wanted)
                blocked = False
            if lease is not None:
                if binding.monotonic() < lease.deadline:
                    return lease
                with suppress(FencingRejectedError):  # it waited behind a lock for longer than it lives
                    self.release(lease.fence)
            holder = binding.row("inspect_lease", {"resource": wanted["resource"]})
            if holder is None and not blocked:
                waiting.start_over()  # released or swept in between
            else:
                owner_now, remaining = (None, 0.0) if holder is None else (holder[0], holder[-2])
                waiting.sleep_or_raise(
                    LeaseBusyError("the lease is held", owner=owner_now, retry_after_seconds=max(0.0, remaining))
                )

    def _grant(self, statement: str, wanted: dict[str, Any]) -> Lease | None:
        sent_at = self._binding.monotonic()
        row = self._binding.write(statement, None, wanted)
        if row is None:
            return None
        fence = Fence(wanted["resource"], wanted["owner"], row[0])
        return rows.lease(fence, row, sent_at=sent_at, taken_over=statement == "take_over_lease")


def _columns(fence: Fence) -> dict[str, Any]:
    return {"resource": fence.resource, "owner": fence.owner, "token": fence.token}
