"""Leases: the right to work on a named resource for a while, and the fence that makes a late write fail."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

__all__ = ["Fence", "Lease", "LeaseStore", "deadline", "elapsed_seconds"]


@dataclass(frozen=True, slots=True)
class Fence:
    """A grant of a lease, as one value: what writes are guarded with.

    The token of each later grant of its resource in its scope is greater; those of others may be equal. A fence belongs
    to the tenant that acquired it.
    """

    resource: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was granted or last renewed.

    `expires_at` is the store's. `deadline` is this client's own, in seconds of its monotonic clock, counted from before
    the request was sent: when it has passed, act as one who lost the lease. `taken_over` says that the holder before
    neither released nor renewed it: what that one was doing may be half done.
    """

    fence: Fence
    ttl_seconds: float
    acquired_at: datetime
    expires_at: datetime
    deadline: float
    taken_over: bool


CLOCK_DRIFT_MAX = 0.001
"""How much faster than the store's clock a client's may run: far above what an oscillator that works does."""


def elapsed_seconds() -> float:
    """Return the seconds of a clock that nobody sets, and that goes on while the machine is suspended where it can."""
    return time.clock_gettime(_ELAPSED) if _ELAPSED is not None else time.monotonic()


_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", None)  # CLOCK_MONOTONIC stands still in a suspended Linux


def deadline(sent_at: float, ttl_seconds: float) -> float:
    """Return a client's own deadline of a lease that it asked for at `sent_at` of its monotonic clock."""
    return sent_at + ttl_seconds * (1 - CLOCK_DRIFT_MAX)


class LeaseStore(Protocol):
    """The leases of one scope.

    By the store's clock at most one lease on a resource is valid. Once a takeover, revocation or release has returned,
    no write that carries an older token can commit. What a lease cannot do is stop a holder from *acting* late: guard
    its writes with the fence. Errors of every call: StoreUnavailableError, StoreTimeoutError, OutcomeUnknownError and
    InvalidInputError (before the backend is asked).
    """

    def acquire(self, resource: str, *, owner: str, ttl_seconds: float, wait_seconds: float = 0.0) -> Lease:
        """Take the lease of a resource that is free, or whose holder let it expire, waiting for it at most so long.

        `owner` is an opaque name that others may be shown. An owner that holds it already, or did before it restarted,
        does not inherit: it waits as anybody does. A takeover also waits for the former holder's open fenced writes, at
        most for the store's bound on one lock, even where `wait_seconds` is 0. Raises LeaseBusyError; UsageError in a
        transaction.
        """
        ...

    def try_acquire(self, resource: str, *, owner: str, ttl_seconds: float) -> Lease | None:
        """Take the lease of a resource, or return None where it is busy. See acquire."""
        ...

    def renew(self, fence: Fence, *, ttl_seconds: float | None = None) -> Lease:
        """Make a lease that is still valid last its own TTL, or another, from now. A deadline never moves back.

        Renewing does not wait for an open fenced write, and can be sent twice. Raises FencingRejectedError where it was
        lost; nothing is made anew. Raises UsageError in a transaction.
        """
        ...

    def release(self, fence: Fence) -> None:
        """Free a resource. Open writes of this fence are waited for. Raises FencingRejectedError where it was lost."""
        ...

    def revoke(self, resource: str) -> bool:
        """Take the lease from whoever holds it. Returns whether anybody did.

        These are two commits: the lease is expired first, so that its holder's new writes fail and its open ones cannot
        starve the second, which frees the resource. Where it raises, the first may have been made: call it again.
        Raises UsageError in a transaction.
        """
        ...
