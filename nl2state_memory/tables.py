"""Tables of rows, the versions that a row may have at one moment, and the locks that it may be under.

All of it is read and changed under the database's mutex alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

from nl2state.pages import Span

if TYPE_CHECKING:
    from nl2state_memory.database import Unit

__all__ = ["CONFLICTS", "Name", "Slot", "Strength", "Table"]

R = TypeVar("R")
Name: TypeAlias = tuple[UUID, str]
"""What a row is found by: its scope, and its id, resource or key."""

_AFTER_EVERY_KEY: Final = "\U0010ffff"


class Strength(IntEnum):
    """The row locks that the protocol uses, from the weakest. Each conflicts with all that a weaker one does."""

    KEY_SHARE = 1
    """A fenced write's, on the lease: this grant stays until I commit."""
    NO_KEY_UPDATE = 2
    """An ordinary write's: of a state, a key, a renewal, a lease that is free. It lets a KEY SHARE pass."""
    UPDATE = 3
    """That of a write which ends a grant: a takeover, a revocation, a release. It lets nothing pass."""


CONFLICTS: Final = {
    Strength.KEY_SHARE: frozenset({Strength.UPDATE}),
    Strength.NO_KEY_UPDATE: frozenset({Strength.NO_KEY_UPDATE, Strength.UPDATE}),
    Strength.UPDATE: frozenset(Strength),
}
"""PostgreSQL's table (its manual, 13.3.2), without FOR SHARE, which nothing uses."""


class Slot(Generic[R]):
    """The place of one row: its committed version, the one that a transaction wrote over it, and who has it locked.

    There is one uncommitted version at most: a writer holds at least NO KEY UPDATE, which conflicts with itself.
    """

    __slots__ = ("committed", "holders", "name", "table", "writer", "written")

    def __init__(self, table: Table[R], name: Name) -> None:
        self.table = table
        self.name = name
        self.committed: R | None = None
        self.written: R | None = None
        self.writer: Unit | None = None
        self.holders: dict[Unit, Strength] = {}

    def seen_by(self, unit: Unit) -> R | None:
        """Return the version that a transaction sees: its own, or else the committed one."""
        return self.written if self.writer is unit else self.committed

    def blockers(self, unit: Unit, strength: Strength) -> list[Unit]:
        """Return the other transactions whose locks keep this one from a lock of that strength."""
        conflicting = CONFLICTS[strength]
        return [holder for holder, held in self.holders.items() if held in conflicting and holder is not unit]


class Table(Generic[R]):
    """The slots of all rows, by scope and key, and an index in the order of time for each column that is named."""

    def __init__(self, *columns: str) -> None:
        self._slots: dict[UUID, dict[str, Slot[R]]] = {}
        self._keys: dict[UUID, list[str]] = {}  # of the slots of a scope, in order
        self._scopes: list[UUID] = []  # of the committed rows, in order
        self._counts: dict[UUID, int] = {}  # of the committed rows of a scope
        self._indexes: dict[str, dict[UUID, list[tuple[datetime, str]]]] = {column: {} for column in columns}

    def find(self, name: Name) -> Slot[R] | None:
        """Return the slot of a row, or None where there is none."""
        return self._slots.get(name[0], {}).get(name[1])

    def place(self, name: Name) -> Slot[R]:
        """Return the slot of a row, made where there is none: it is there to be locked before the row is."""
        slots = self._slots.get(name[0])
        if slots is None:
            slots = self._slots[name[0]] = {}
            self._keys[name[0]] = []
        slot = slots.get(name[1])
        if slot is None:
            slot = slots[name[1]] = Slot(self, name)
            insort(self._keys[name[0]], name[1])
        return slot

    def publish(self, slot: Slot[R], row: R | None) -> None:
        """Make a version the committed one; None removes the row."""
        scope, key = slot.name
        for column, index in self._indexes.items():
            before, after = getattr(slot.committed, column, None), getattr(row, column, None)
            if before != after:
                _move(index.setdefault(scope, []), key, before, after)
        self._count(scope, (row is not None) - (slot.committed is not None))
        slot.committed = row

    def vacate(self, slot: Slot[R]) -> None:
        """Drop a slot that has neither a row nor a lock: of an insertion that was undone, or a row that was swept."""
        scope, key = slot.name
        slots = self._slots.get(scope, {})
        if slot.committed is None and not slot.holders and slots.get(key) is slot:
            del slots[key]
            keys = self._keys[scope]
            del keys[bisect_left(keys, key)]
            if not slots:
                del self._slots[scope]
                del self._keys[scope]
                for index in self._indexes.values():
                    index.pop(scope, None)

    def next_scope(self, after: UUID) -> UUID | None:
        """Return the least scope after this one that has a committed row; None where there is none."""
        place = bisect_right(self._scopes, after)
        return self._scopes[place] if place < len(self._scopes) else None

    def in_order(self, scope: UUID, after: str) -> Iterator[Slot[R]]:
        """Yield the slots of a scope in the order of their keys, from after one on."""
        keys, slots = self._keys.get(scope, []), self._slots.get(scope, {})
        return (slots[keys[place]] for place in range(bisect_right(keys, after), len(keys)))

    def scan(self, unit: Unit, scope: UUID, span: Span) -> list[tuple[str, R]]:
        """Return the first rows of a span as a transaction sees them, with their keys: its limit, and one more."""
        keys, slots = self._keys.get(scope, []), self._slots.get(scope, {})
        begin = max(bisect_right(keys, span.after), bisect_left(keys, span.first))
        seen = (
            (keys[place], slots[keys[place]].seen_by(unit)) for place in range(begin, bisect_left(keys, span.before))
        )
        return list(islice(((key, row) for key, row in seen if row is not None), span.limit + 1))

    def due(self, column: str, scope: UUID, begin: datetime, until: datetime) -> Iterator[Slot[R]]:
        """Yield the slots of a scope whose indexed time is neither before nor after these, the earliest first.

        Take them before any of them is written: a write moves what follows.
        """
        index = self._indexes[column].get(scope, [])
        slots = self._slots.get(scope, {})
        span = range(bisect_left(index, (begin, "")), bisect_right(index, (until, _AFTER_EVERY_KEY)))
        return (slots[index[place][1]] for place in span)

    def _count(self, scope: UUID, more: int) -> None:
        before = self._counts.get(scope, 0)
        self._counts[scope] = before + more
        if not before and more:
            insort(self._scopes, scope)
        elif not self._counts[scope]:
            del self._counts[scope]
            if before:
                del self._scopes[bisect_left(self._scopes, scope)]


def _move(index: list[tuple[datetime, str]], key: str, before: datetime | None, after: datetime | None) -> None:
    """Move an entry of a sorted index, by bisection."""
    if before is not None:
        del index[bisect_left(index, (before, key))]
    if after is not None:
        insort(index, (after, key))
