"""The database: its tables, its clock, one mutex; and a transaction's part in it, with its locks and its undo log.

The mutex is held while a call looks and writes, and never while it waits for a row lock: so a call that need not wait
is atomic, and one that waited looks at the row again, as READ COMMITTED does. Not one lock for a whole transaction: the
heartbeat would starve behind its own holder's. Not a check at the commit: a refusal would come at the wrong call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from nl2state.errors import StoreTimeoutError, StoreUnavailableError
from nl2state.store import Swept
from nl2state_memory.rows import KeyRow, LeaseRow, StateRow
from nl2state_memory.settings import Settings
from nl2state_memory.tables import Name, Slot, Strength, Table

__all__ = ["Database", "Unit"]

R = TypeVar("R")

_TOKENS_BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
_EPOCH_SHIFT: Final = 41


class Database:
    """What the clients of one store share: the server, if there were one."""

    def __init__(self, clock: Callable[[], datetime], settings: Settings) -> None:
        self.settings = settings
        self.clock = clock
        self.states = Table[StateRow]("deleted_at", "ended_at", "expires_at")
        self.leases = Table[LeaseRow]()
        self.keys = Table[KeyRow]()
        self.changed = threading.Condition(threading.Lock())
        """The mutex, and the condition that something was written or unlocked."""
        self.changes = 0
        """How often that was. A change between a look and a wait is not missed: see `pause`."""
        self.waiters: set[Unit] = set()

    @property
    def waiting(self) -> int:
        """How many calls wait for a row lock now."""
        with self.changed:
            return len(self.waiters)

    def first_number(self, at: datetime) -> int:
        """Return the least token, or attempt, of a row that is made now.

        It is the epoch in the high bits and the milliseconds since 2025 in the low 41, so that the numbers rise though
        the row of the earlier ones was swept. The caller takes the greater of it and the row's own + 1, so that they
        rise within the life of a row whatever the clock does.
        """
        return (self.settings.epoch << _EPOCH_SHIFT) + (at - _TOKENS_BEGIN) // timedelta(milliseconds=1)

    def announce(self) -> None:
        """Wake whoever waits: for a row that may be unlocked, or a lease that may be free."""
        self.changes += 1
        self.changed.notify_all()

    def pause(self, seen: int, seconds: float) -> None:
        """Wait until there were more than the `seen` changes, at most so long."""
        with self.changed:
            self.changed.wait_for(lambda: self.changes != seen, seconds)

    def remove(self, table: Table[R], slots: Iterable[Slot[R]]) -> int:
        """Remove those of these rows that nobody has locked, and return how many."""
        free = [slot for slot in slots if not slot.holders]
        for slot in free:
            table.publish(slot, None)
            table.vacate(slot)
        return len(free)

    def sweep_page(self, table: Table[R], scope: UUID, page_size: int, after: str, due: Callable[[R], bool]) -> Swept:
        """Read the next so many rows of a scope by their keys, and remove those that are due and nobody has locked."""
        page = list(islice(table.in_order(scope, after), page_size))
        last = page[-1].name[1] if len(page) == page_size else None
        removed = self.remove(table, (slot for slot in page if slot.committed is not None and due(slot.committed)))
        return Swept(removed, last)


class _Before(NamedTuple):
    """An entry of the undo log: a transaction's part in a slot, as it was before a lock or a write."""

    slot: Slot[Any]
    strength: Strength | None
    wrote: bool
    written: Any


class Unit:
    """The rows as one transaction sees them: all or nothing of what it writes is kept.

    Its methods are called with the mutex held. `lock` and `claim` may wait, and let go of the mutex meanwhile.
    """

    def __init__(self, database: Database, lock_timeout_seconds: float) -> None:
        self.database = database
        self.waits_for: tuple[Slot[Any], Strength] | None = None
        self.ended: StoreTimeoutError | None = None
        """Why it was ended from outside, where it was."""
        self._lock_timeout_seconds = lock_timeout_seconds
        self._undo: list[_Before] = []
        self._call_until = 0.0
        self._idle_until: float | None = None

    def start_call(self) -> None:
        """Begin a call. Raises StoreTimeoutError where the transaction was left idle for too long."""
        now = time.monotonic()
        self.end_if_idle(now)
        if self.ended is not None:
            raise self.ended
        self._idle_until = None
        self._call_until = now + self.database.settings.statement_timeout_seconds

    def end_call(self) -> None:
        """End a call of a transaction that stays open: from now on it is idle."""
        self._idle_until = time.monotonic() + self.database.settings.transaction_idle_seconds

    def end_if_idle(self, now: float) -> bool:
        """Roll the transaction back if it was idle for too long: a stopped holder does not delay others for ever.

        There is no thread that looks for these: who waits for one ends it, or else its own next call.
        """
        if self._idle_until is None or now < self._idle_until:
            return False
        self.ended = StoreTimeoutError("the transaction was idle for too long, and the store ended it")
        self._idle_until = None
        self.undo_to(0)
        return True

    def read(self, table: Table[R], name: Name) -> R | None:
        """Return a row as this transaction sees it: its own writes, and of others what they committed. Never waits."""
        slot = table.find(name)
        return None if slot is None else slot.seen_by(self)

    def lock(self, table: Table[R], name: Name, strength: Strength, where: Callable[[R], bool]) -> R | None:
        """Lock a row that satisfies `where`, and return it; None, and no lock, where there is none. See claim."""
        locked = self.claim(table, name, strength, lambda row: row is not None and where(row))
        return self.read(table, name) if locked else None

    def claim(self, table: Table[R], name: Name, strength: Strength, where: Callable[[R | None], bool]) -> bool:
        """Lock the place of a row, there or not, if `where` agrees to what is there. It may also raise its refusal.

        What is refused is neither waited for nor locked: so a busy acquire keeps no heartbeat waiting. After a wait it
        is asked again, since what it agreed to may have been written over meanwhile, or may have been undone.

        Raises StoreTimeoutError, and StoreUnavailableError where waiting would never end (a deadlock).
        """
        give_up_at: float | None = None
        while where(self.read(table, name)):
            slot = table.place(name)
            blockers = slot.blockers(self, strength)
            if not blockers:
                self._hold(slot, strength)
                return True
            if give_up_at is None:
                give_up_at = time.monotonic() + self._lock_timeout_seconds
            self._wait(slot, strength, blockers, give_up_at)
        return False

    def write(self, table: Table[R], name: Name, row: R) -> None:
        """Write a row whose place this transaction has locked, at least for NO KEY UPDATE."""
        slot = table.place(name)
        assert slot.holders.get(self, 0) >= Strength.NO_KEY_UPDATE, "a row is locked before it is written"  # noqa: S101
        self._note(slot)
        slot.writer, slot.written = self, row

    @property
    def mark(self) -> int:
        """Where the undo log stands: a savepoint."""
        return len(self._undo)

    def undo_to(self, mark: int) -> None:
        """Undo what was written since a mark, and drop the locks that were taken since, in the opposite order."""
        undone = self._undo[mark:]
        del self._undo[mark:]
        for before in reversed(undone):
            slot = before.slot
            if before.strength is None:
                slot.holders.pop(self, None)
            else:
                slot.holders[self] = before.strength
            if slot.writer is self:
                slot.writer = self if before.wrote else None
                slot.written = before.written
            slot.table.vacate(slot)
        if undone:
            self.database.announce()

    def commit(self) -> None:
        """Publish what was written and drop the locks, at once: nobody sees one without the other."""
        slots = dict.fromkeys(before.slot for before in self._undo)
        self._undo.clear()
        self._idle_until = None
        for slot in slots:
            if slot.writer is self:
                slot.table.publish(slot, slot.written)
                slot.writer = slot.written = None
            slot.holders.pop(self, None)
            slot.table.vacate(slot)
        if slots:
            self.database.announce()

    def _hold(self, slot: Slot[Any], strength: Strength) -> None:
        held = slot.holders.get(self)
        if held is None or held < strength:  # a stronger lock does what a weaker one does
            self._note(slot)
            slot.holders[self] = strength

    def _note(self, slot: Slot[Any]) -> None:
        wrote = slot.writer is self
        self._undo.append(_Before(slot, slot.holders.get(self), wrote, slot.written if wrote else None))

    def _wait(self, slot: Slot[Any], strength: Strength, blockers: list[Unit], give_up_at: float) -> None:
        """Wait once, until something changed or one of the bounds has passed."""
        now = time.monotonic()
        for blocker in blockers:
            if blocker.end_if_idle(now):
                return
        if now >= give_up_at:
            raise StoreTimeoutError("the time for a lock ran out")
        if now >= self._call_until:
            raise StoreTimeoutError("the statement's time ran out")
        idle = [blocker._idle_until for blocker in blockers if blocker._idle_until is not None]
        self.waits_for = slot, strength
        self.database.waiters.add(self)
        try:
            if self._is_in_a_cycle():
                raise StoreUnavailableError("the store broke a deadlock")
            self.database.changed.wait(min(give_up_at, self._call_until, *idle) - now)
        finally:
            self.database.waiters.discard(self)
            self.waits_for = None

    def _is_in_a_cycle(self) -> bool:
        """Whether this transaction waits, over others that wait, for itself.

        A cycle is closed by a wait that begins, so to look then is enough; the one that closes it is refused.
        """
        reached, frontier = {self}, [self]
        while frontier:
            unit = frontier.pop()
            if unit.waits_for is not None:
                slot, strength = unit.waits_for
                blockers = slot.blockers(unit, strength)
                if self in blockers:
                    return True
                frontier += [blocker for blocker in blockers if blocker not in reached]
                reached.update(blockers)
        return False
