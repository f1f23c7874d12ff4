"""Leases: the right to work on a named resource for a while, and the fence that makes a late write fail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from nl2state.errors import CorruptError, PayloadError
from nl2state.limits import Limits
from nl2state.many import Outcomes
from nl2state.pages import PAGE_SIZE, Page
from nl2state.payload import FORMAT, Encoding, Json, decode, encode

__all__ = [
    "CLOCK_DRIFT_MAX",
    "Fence",
    "Lease",
    "LeaseRecord",
    "LeaseStore",
    "Metadata",
    "deadline",
    "decode_metadata",
    "elapsed_seconds",
    "encode_metadata",
]

Metadata: TypeAlias = "dict[str, Json]"
"""What a holder says of its grant: a JSON object whose canonical form has at most `Limits.metadata_bytes_max` bytes."""


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
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease as anybody in its scope may see it.

    `expired` says that by the store's clock it had run out when it was looked at, and that nobody had taken it over.
    """

    resource: str
    owner: str
    token: int
    acquired_at: datetime
    expires_at: datetime
    expired: bool
    metadata: Metadata | None


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

    def acquire(
        self,
        resource: str,
        *,
        owner: str,
        ttl_seconds: float,
        wait_seconds: float = 0.0,
        metadata: Metadata | None = None,
    ) -> Lease:
        """Take the lease of a resource that is free, or whose holder let it expire, waiting for it at most so long.

        `owner` is an opaque name that others may be shown. An owner that holds it already, or did before it restarted,
        does not inherit: it waits as anybody does. A takeover also waits for the former holder's open fenced writes, at
        most for the store's bound on one lock, even where `wait_seconds` is 0. `metadata` is kept with this grant, and
        with no other.

        Those that wait in one process are served in the order in which they came. Between processes it is chance, as
        the first of each asks again every few milliseconds, and later every 250 at most. Who does not wait, or whose
        wait is over, tries once, whoever waits.

        Raises LeaseBusyError; PayloadError for metadata that is no JSON object, or that a value could not be;
        UsageError in a transaction.
        """
        ...

    def try_acquire(
        self, resource: str, *, owner: str, ttl_seconds: float, metadata: Metadata | None = None
    ) -> Lease | None:
        """Take the lease of a resource, or return None where it is busy. See acquire."""
        ...

    def renew(self, fence: Fence, *, ttl_seconds: float | None = None) -> Lease:
        """Make a lease that is still valid last its own TTL, or another, from now. A deadline never moves back.

        Renewing does not wait for an open fenced write, and can be sent twice. Raises FencingRejectedError where it was
        lost; nothing is made anew. Raises UsageError in a transaction.
        """
        ...

    def renew_many(self, fences: Sequence[Fence], *, ttl_seconds: float | None = None, atomic: bool) -> Outcomes[Lease]:
        """Make leases that are still valid last their own TTLs, or another, from now, by one statement. See renew.

        With `atomic` all of them are renewed, or none: the first that was lost raises FencingRejectedError with its
        `index`. Else each by itself, and the outcomes say which were lost. At most `Limits.items_max` of them, and no
        two of one resource.
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

    def inspect(self, resource: str) -> LeaseRecord | None:
        """Return who holds a lease, expired or not, or None where it is free. It waits for nobody.

        What it says may be over when it arrives: to learn whether a lease can be had, try to acquire it.
        """
        ...

    def list(self, *, after: str | None = None, limit: int = PAGE_SIZE) -> Page[LeaseRecord]:
        """Return a page of what `inspect` says of each resource, in their order, from after the resource `after` on.

        Free ones are looked at, and not listed: see Page. `limit` is at most the limits' `page_size_max`.
        """
        ...


def encode_metadata(metadata: Metadata | None, limits: Limits) -> bytes | None:
    """Return the canonical form of metadata. Raises PayloadError for what is no JSON object. For backends."""
    if metadata is None:
        return None
    if type(metadata) is not dict:
        raise PayloadError("metadata is not a JSON object", field="metadata")
    return encode(metadata, limits, field="metadata", bytes_max=limits.metadata_bytes_max).data


def decode_metadata(data: bytes | None) -> Metadata | None:
    """Return the metadata of its canonical form. Raises CorruptError. For backends."""
    metadata = None if data is None else decode(data, Encoding.JSON, FORMAT)
    if metadata is None or isinstance(metadata, dict):
        return metadata
    raise CorruptError("the stored metadata of a lease is not an object")
