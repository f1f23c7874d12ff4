"""Hold a lease for a block: a heartbeat keeps it alive, and the holder can learn that it was lost.

The heartbeat is one thread a store, on a connection of its own, so that a body that keeps every pooled connection busy
cannot starve it. A holder counts its lease as lost as soon as its own conservative deadline has passed, whatever the
heartbeat is doing: a process that was stopped knows it the moment that it goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nl2state.errors import FencingRejectedError, StoreError, UsageError

if TYPE_CHECKING:
    from nl2state.leases import Fence, Lease, LeaseStore, Metadata
    from nl2state.store import Tenant, Transaction

__all__ = ["Heartbeat", "Held", "hold", "note_failure"]

_log = logging.getLogger("nl2state")

_RENEWALS_PER_TTL = 3
_RETRIES_PER_REMAINDER = 4
_RETRY_SECONDS_MIN = 0.05
_CLOSE_SECONDS = 10.0


class Held:
    """A lease that is being held. Safe to share between threads."""

    def __init__(self, tenant: Tenant, lease: Lease, heartbeat: Heartbeat, renewals: LeaseStore) -> None:
        self._tenant = tenant
        self._heartbeat = heartbeat
        self._lease = lease
        self._rejected = False
        self._in_transaction: list[int] = []  # the threads that have one of this lease open
        self.released = False
        """Whether it was given back: by `release`, by a transaction that committed it, or at the block's end."""
        self._renewals = renewals
        self.renew_at = 0.0
        self._schedule()

    @property
    def lease(self) -> Lease:
        """The lease as it was last renewed."""
        return self._lease

    @property
    def fence(self) -> Fence:
        """What this holder's writes are guarded with."""
        return self._lease.fence

    @property
    def lost(self) -> bool:
        """Whether the lease is over as far as this holder can know: refused by the store, or past its own deadline."""
        return self._rejected or self.released or self._heartbeat.monotonic() >= self._lease.deadline

    @property
    def remaining_seconds(self) -> float:
        """How long the lease is surely valid without another renewal; 0 once it is lost."""
        return 0.0 if self.lost else max(0.0, self._lease.deadline - self._heartbeat.monotonic())

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction in which every write carries this fence.

        Raises FencingRejectedError where the lease is lost.

        A lease that runs out while the transaction is open stops no commit by itself; a takeover does.
        """
        if self.lost:
            raise FencingRejectedError("the lease was lost")
        thread = threading.get_ident()
        with self._tenant.transaction(fence=self.fence) as transaction:
            self._in_transaction.append(thread)
            try:
                yield transaction
            finally:
                self._in_transaction.remove(thread)

    def release(self, transaction: Transaction | None = None) -> None:
        """Give the lease back before the block ends: now, or by the commit of a transaction of this holder's.

        Until then it is kept alive: what is rolled back was not released. Raises FencingRejectedError where it was
        lost; UsageError for a release now while this thread has a transaction of the lease open: it would wait for it.
        """
        if transaction is not None:
            sent: list[bool] = []
            transaction.after_commit(lambda: self._mark_released() if sent else None)  # first: it may be refused
            transaction.leases.release(self.fence)
            sent.append(True)
        elif threading.get_ident() in self._in_transaction:
            raise UsageError("this thread has a transaction of the lease open: release it by that one's commit")
        else:
            self._tenant.leases.release(self.fence)
            self._mark_released()

    def renew(self) -> None:
        """Renew once, as the heartbeat does; a failure is remembered or tried again, and never raised."""
        before = self._lease
        try:
            renewed = self._renewals.renew(before.fence)
        except FencingRejectedError as error:
            self._rejected = True
            if not self.released:
                _log.warning("lease lost", extra={"code": error.code})
        except Exception as error:  # noqa: BLE001  # whatever it is, the other leases are to be renewed
            remaining = before.deadline - self._heartbeat.monotonic()
            self.renew_at = self._heartbeat.monotonic() + max(_RETRY_SECONDS_MIN, remaining / _RETRIES_PER_REMAINDER)
            _log.warning("lease not renewed", extra={"code": getattr(error, "code", type(error).__name__)})
        else:
            self._lease = renewed
            self._schedule()

    def _schedule(self) -> None:
        self.renew_at = self._heartbeat.monotonic() + self._lease.ttl_seconds / _RENEWALS_PER_TTL

    def _mark_released(self) -> None:
        self.released = True
        self._heartbeat.drop(self)


class Heartbeat:
    """The thread that renews all that a store holds. It starts with the first lease and ends with `close`."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._held: set[Held] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._closed = False

    def keep(self, held: Held) -> None:
        """Renew this lease from now on. Raises UsageError on a store that is closed."""
        with self._changed:
            if self._closed:
                raise UsageError("the store is closed")
            if os.getpid() != self._process:
                raise UsageError("the store was opened before a fork: open one in each process")
            self._held.add(held)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="nl2state heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, held: Held) -> None:
        """Renew this lease no more."""
        with self._changed:
            self._held.discard(held)

    def beat(self) -> None:
        """Renew what is due, and drop what is lost."""
        with self._changed:
            self._held = {held for held in self._held if not held.lost}
            due = [held for held in self._held if held.renew_at <= self.monotonic()]
        for held in sorted(due, key=lambda held: held.lease.deadline):
            held.renew()

    def close(self) -> None:
        """End the thread. What is held runs out."""
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify()
        if self._thread is not None and os.getpid() == self._process:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            self.beat()
            with self._changed:
                if self._closed:
                    return
                due_at = min((held.renew_at for held in self._held), default=None)
                self._changed.wait(None if due_at is None else max(0.0, due_at - self.monotonic()))


@contextmanager
def hold(
    tenant: Tenant,
    heartbeat: Heartbeat,
    renewals: LeaseStore,
    resource: str,
    *,
    owner: str,
    ttl_seconds: float,
    wait_seconds: float,
    metadata: Metadata | None = None,
) -> Iterator[Held]:
    """Hold a lease for a block, and release it when the block ends.

    `renewals` are the same leases, on the heartbeat's connection. Raises LeaseBusyError. A release that fails is
    raised, FencingRejectedError where the lease had been lost before the end; when the block raises too, that is
    raised, with a note that says how the release failed.
    """
    lease = tenant.leases.acquire(
        resource, owner=owner, ttl_seconds=ttl_seconds, wait_seconds=wait_seconds, metadata=metadata
    )
    held = Held(tenant, lease, heartbeat, renewals)
    try:
        heartbeat.keep(held)
        yield held
    except BaseException as error:
        if not held.released:
            note_failure(error, "the release of its lease", held.release)
        raise
    finally:
        heartbeat.drop(held)
    if not held.released:
        held.release()


def note_failure(error: BaseException, what: str, call: Callable[[], object]) -> None:
    """Clean up after `error`: where that fails too, say so in a note, so that neither hides the other."""
    try:
        call()
    except StoreError as failure:
        error.add_note(f"{what} failed too: {failure.code}")
