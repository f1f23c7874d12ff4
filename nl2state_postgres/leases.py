"""Leases on PostgreSQL. The statements, and the lock protocol that they keep, are in sql/leases.sql."""

from __future__ import annotations

from contextlib import suppress

from nl2state.errors import FencingRejectedError, LeaseBusyError, StoreTimeoutError
from nl2state.leases import Fence, Lease, LeaseStore
from nl2state_postgres import rows
from nl2state_postgres.binding import PostgresBinding
from nl2state_postgres.waiting import Waiting

__all__ = ["PostgresLeases"]


class PostgresLeases(LeaseStore):
    """The leases of one scope. What the calls promise is LeaseStore's."""

    def __init__(self, binding: PostgresBinding) -> None:
        self._binding = binding

    def acquire(self, resource: str, *, owner: str, ttl_seconds: float, wait_seconds: float = 0.0) -> Lease:
        """Take the lease of a resource that is free or expired, waiting for it at most so long."""
        binding = self._binding
        binding.refuse_in_transaction("acquire")  # a grant that is rolled back would be issued again
        binding.id("resource", resource)
        binding.id("owner", owner)
        ttl_seconds = binding.ttl("ttl_seconds", ttl_seconds)
        waiting = Waiting(binding.wait(wait_seconds), binding.monotonic)
        while True:
            lease, blocked = None, True
            with suppress(StoreTimeoutError):  # else somebody's transaction on it is still open: it is busy yet
                lease = self._grant("acquire_lease", resource, owner, ttl_seconds)
                lease = lease or self._grant("take_over_lease", resource, owner, ttl_seconds)
                blocked = False
            if lease is not None:
                if binding.monotonic() < lease.deadline:
                    return lease
                with suppress(FencingRejectedError):  # it waited behind a lock for longer than it lives
                    self.release(lease.fence)
            owner_now, remaining = binding.row("inspect_lease", resource=resource) or (None, 0.0)
            if owner_now is None and not blocked:
                waiting.start_over()  # released or swept in between
            else:
                waiting.sleep_or_raise(
                    LeaseBusyError("the lease is held", owner=owner_now, retry_after_seconds=max(0.0, remaining))
                )

    def try_acquire(self, resource: str, *, owner: str, ttl_seconds: float) -> Lease | None:
        """Take the lease of a resource, or return None where it is busy."""
        try:
            return self.acquire(resource, owner=owner, ttl_seconds=ttl_seconds)
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
        row = binding.row(
            "renew_lease", resource=fence.resource, owner=fence.owner, token=fence.token, ttl_seconds=ttl_seconds
        )
        if row is None:
            raise FencingRejectedError("the lease was lost")
        return rows.lease(fence, row, sent_at=sent_at, ttl_seconds=ttl_seconds)

    def release(self, fence: Fence) -> None:
        """Free a resource."""
        binding = self._binding
        binding.checked_fence(fence)
        row = binding.write("release_lease", None, resource=fence.resource, owner=fence.owner, token=fence.token)
        if row is None:
            raise FencingRejectedError("the lease was lost")

    def revoke(self, resource: str) -> bool:
        """Take the lease from whoever holds it."""
        binding = self._binding
        binding.refuse_in_transaction("revoke")  # its two halves are two commits
        binding.id("resource", resource)
        expired = binding.row("expire_lease", resource=resource)
        token = None if expired is None else expired[0]
        return binding.write("revoke_lease", None, resource=resource, token=token) is not None or token is not None

    def _grant(self, statement: str, resource: str, owner: str, ttl_seconds: float) -> Lease | None:
        sent_at = self._binding.monotonic()
        row = self._binding.write(statement, None, resource=resource, owner=owner, ttl_seconds=ttl_seconds)
        if row is None:
            return None
        fence = Fence(resource, owner, row[0])
        return rows.lease(fence, row, sent_at=sent_at, taken_over=statement == "take_over_lease")
