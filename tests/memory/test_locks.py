"""The row locks, the undo log and the waits of the memory backend's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from uuid import UUID

import pytest

from nl2state import StoreTimeoutError, StoreUnavailableError
from nl2state.store import Swept
from nl2state.testing.harness import Call, start, until
from nl2state_memory import Settings
from nl2state_memory.database import Database, Unit
from nl2state_memory.rows import LeaseRow
from nl2state_memory.tables import Strength

_NAME = (UUID(int=1), "r")
_OTHER = (UUID(int=1), "q")
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SHARE, _WRITE, _UPDATE = Strength.KEY_SHARE, Strength.NO_KEY_UPDATE, Strength.UPDATE
_CONFLICTS = {(_SHARE, _UPDATE), (_WRITE, _WRITE), (_WRITE, _UPDATE), (_UPDATE, _UPDATE)}  # and the same mirrored


def _row(token: int) -> LeaseRow:
    return LeaseRow(owner="a", token=token, ttl_seconds=60, acquired_at=_NOW, expires_at=_NOW)


class Transactions:
    """A database with one committed row, and transactions on it that a test moves step by step."""

    def __init__(self, lock_timeout_seconds: float = 30, **settings: float) -> None:
        bounds = {"lock_timeout_seconds": lock_timeout_seconds} | settings
        self.database = Database(lambda: _NOW, Settings(**bounds))  # type: ignore[arg-type]  # none of them is the epoch
        for name in (_NAME, _OTHER):
            unit = self.begin()
            self.write(unit, 1, name=name)
            self.commit(unit)

    def begin(self, lock_timeout_seconds: float | None = None) -> Unit:
        return Unit(self.database, lock_timeout_seconds or self.database.settings.lock_timeout_seconds)

    @contextmanager
    def call(self, unit: Unit) -> Iterator[Unit]:
        with self.database.changed:
            unit.start_call()
            yield unit
            unit.end_call()

    def lock(
        self,
        unit: Unit,
        strength: Strength,
        *,
        name: tuple[UUID, str] = _NAME,
        where: Callable[[LeaseRow], bool] = lambda _: True,
    ) -> LeaseRow | None:
        with self.call(unit):
            return unit.lock(self.database.leases, name, strength, where)

    def write(self, unit: Unit, token: int, *, name: tuple[UUID, str] = _NAME) -> None:
        with self.call(unit):
            unit.claim(self.database.leases, name, _WRITE, lambda _: True)
            unit.write(self.database.leases, name, _row(token))

    def read(self, unit: Unit) -> int:
        with self.database.changed:
            row = unit.read(self.database.leases, _NAME)
            return 0 if row is None else row.token

    def commit(self, unit: Unit) -> None:
        with self.database.changed:
            unit.commit()

    def undo(self, unit: Unit, mark: int = 0) -> None:
        with self.database.changed:
            unit.undo_to(mark)

    def would_wait(self, strength: Strength) -> bool:
        """Whether another transaction would wait for a lock of this strength."""
        probe = self.begin(lock_timeout_seconds=0.001)
        try:
            self.lock(probe, strength)
        except StoreTimeoutError:
            return True
        finally:
            self.undo(probe)
        return False

    def start_waiting(self, call: Callable[[], object]) -> Call[object]:
        before = self.database.waiting
        waiter = start(call)
        until(lambda: self.database.waiting > before, "the call waits")
        return waiter


@pytest.mark.parametrize(("held", "asked"), list(product(Strength, Strength)))
def test_a_lock_waits_for_those_that_it_conflicts_with(held: Strength, asked: Strength) -> None:
    rows = Transactions()
    holder = rows.begin()
    rows.lock(holder, held)
    assert rows.would_wait(asked) == ((held, asked) in _CONFLICTS or (asked, held) in _CONFLICTS)
    rows.commit(holder)
    assert not rows.would_wait(asked)


@pytest.mark.parametrize(("first", "second"), list(product(Strength, Strength)))
def test_a_transaction_does_not_wait_for_itself_and_keeps_the_stronger_lock(first: Strength, second: Strength) -> None:
    rows = Transactions()
    holder = rows.begin()
    rows.lock(holder, first)
    rows.lock(holder, second)
    stronger = max(first, second)
    for asked in Strength:
        assert rows.would_wait(asked) == ((stronger, asked) in _CONFLICTS or (asked, stronger) in _CONFLICTS)


def test_a_stronger_lock_waits_for_all_who_share_the_row() -> None:
    rows = Transactions()
    one, two, three = rows.begin(), rows.begin(), rows.begin()
    rows.lock(one, _SHARE)
    rows.lock(two, _SHARE)
    waiter = rows.start_waiting(lambda: rows.lock(three, _UPDATE))
    rows.commit(one)
    assert rows.database.waiting == 1
    rows.commit(two)
    assert waiter.result() == _row(1)


def test_what_is_refused_is_neither_locked_nor_waited_for() -> None:
    rows = Transactions(lock_timeout_seconds=0.001)
    holder, other = rows.begin(), rows.begin()
    assert rows.lock(other, _UPDATE, where=lambda row: row.token == 7) is None
    assert not rows.would_wait(_UPDATE)
    rows.lock(holder, _UPDATE)
    assert rows.lock(other, _UPDATE, where=lambda row: row.token == 7) is None


def test_a_write_is_seen_by_its_own_transaction_alone_until_it_commits() -> None:
    rows = Transactions()
    writer, other = rows.begin(), rows.begin()
    rows.write(writer, 2)
    assert (rows.read(writer), rows.read(other)) == (2, 1)
    rows.commit(writer)
    assert rows.read(other) == 2


@pytest.mark.parametrize("end", ["commit", "undo"])
def test_a_waiter_looks_again_at_what_the_lock_left(end: str) -> None:
    rows = Transactions()
    writer, other = rows.begin(), rows.begin()
    rows.write(writer, 2)
    waiter = rows.start_waiting(lambda: rows.lock(other, _WRITE, where=lambda row: row.token == 1))
    rows.commit(writer) if end == "commit" else rows.undo(writer)
    assert waiter.result() == (None if end == "commit" else _row(1))
    assert rows.would_wait(_WRITE) == (end == "undo")


def test_an_insertion_waits_for_another_of_the_same_name_and_an_undone_one_leaves_nothing() -> None:
    rows = Transactions()
    name = (UUID(int=2), "new")
    one, two = rows.begin(), rows.begin()
    rows.write(one, 1, name=name)
    waiter = rows.start_waiting(lambda: rows.write(two, 2, name=name))
    rows.undo(one)
    waiter.result()
    rows.undo(two)
    assert rows.database.leases.find(name) is None
    assert rows.database.leases.next_scope(UUID(int=1)) is None


def test_an_undone_savepoint_takes_its_writes_and_its_locks_and_nothing_else() -> None:
    rows = Transactions()
    writer = rows.begin()
    rows.lock(writer, _SHARE)
    first = writer.mark
    rows.write(writer, 2)
    second = writer.mark
    rows.write(writer, 3)
    rows.lock(writer, _UPDATE)
    assert rows.would_wait(_SHARE)
    rows.undo(writer, second)
    assert (rows.read(writer), rows.would_wait(_SHARE), rows.would_wait(_WRITE)) == (2, False, True)
    rows.undo(writer, first)
    assert (rows.read(writer), rows.would_wait(_WRITE), rows.would_wait(_UPDATE)) == (1, False, True)
    rows.commit(writer)
    assert (rows.read(rows.begin()), rows.would_wait(_UPDATE)) == (1, False)


def test_an_undone_savepoint_lets_a_waiter_go_on() -> None:
    rows = Transactions()
    writer, other = rows.begin(), rows.begin()
    rows.lock(writer, _SHARE)
    mark = writer.mark
    rows.lock(writer, _UPDATE)
    waiter = rows.start_waiting(lambda: rows.lock(other, _SHARE))
    rows.undo(writer, mark)
    assert waiter.result() == _row(1)


def test_a_wait_ends_by_the_lock_s_bound_or_by_the_call_s() -> None:
    for bound, words in (("lock_timeout_seconds", "for a lock"), ("statement_timeout_seconds", "the statement's")):
        rows = Transactions(**{bound: 0.02})
        holder, other = rows.begin(), rows.begin()
        rows.lock(holder, _UPDATE)
        with pytest.raises(StoreTimeoutError, match=words):
            rows.lock(other, _SHARE)
        assert rows.database.waiting == 0


@pytest.mark.parametrize("length", [2, 3, 5])
def test_the_wait_that_closes_a_cycle_is_refused_and_frees_the_others(length: int) -> None:
    rows = Transactions()
    units = [rows.begin() for _ in range(length)]
    names = [(UUID(int=3), f"{number}") for number in range(length)]
    for unit, name in zip(units, names, strict=True):
        rows.write(unit, 1, name=name)
    waiters = [
        rows.start_waiting(lambda unit=unit, name=name: rows.write(unit, 2, name=name))  # type: ignore[misc]  # bound now
        for unit, name in zip(units[:-1], names[1:], strict=True)
    ]
    with pytest.raises(StoreUnavailableError, match="deadlock"):
        rows.write(units[-1], 2, name=names[0])
    rows.undo(units[-1])
    for unit, waiter in reversed(list(zip(units[:-1], waiters, strict=True))):
        waiter.result()
        rows.commit(unit)


def test_two_that_share_a_row_and_both_want_it_alone_are_a_deadlock() -> None:
    """Two releases in two transactions that wrote with the same fence: one of them has to give way."""
    rows = Transactions()
    one, two = rows.begin(), rows.begin()
    rows.lock(one, _SHARE)
    rows.lock(two, _SHARE)
    waiter = rows.start_waiting(lambda: rows.lock(one, _UPDATE))
    with pytest.raises(StoreUnavailableError):
        rows.lock(two, _UPDATE)
    rows.undo(two)
    assert waiter.result() == _row(1)


def test_many_that_wait_for_one_are_no_cycle() -> None:
    rows = Transactions()
    holder = rows.begin()
    rows.lock(holder, _UPDATE)

    def take() -> None:
        unit = rows.begin()
        rows.lock(unit, _UPDATE)
        rows.commit(unit)

    waiters = [rows.start_waiting(take) for _ in range(4)]
    rows.commit(holder)
    for waiter in waiters:
        waiter.result()


def test_a_transaction_that_idles_is_ended_by_who_waits_for_it() -> None:
    """P13: there is no thread that looks for them."""
    rows = Transactions(transaction_idle_seconds=0.02)
    stopped, other = rows.begin(), rows.begin()
    rows.write(stopped, 2)
    assert rows.lock(other, _UPDATE) == _row(1)
    with pytest.raises(StoreTimeoutError, match="idle"):
        rows.write(stopped, 3)
    rows.commit(other)
    assert rows.read(rows.begin()) == 1


def test_a_sweep_passes_by_what_is_locked_and_keeps_the_order() -> None:
    rows = Transactions()
    leases = rows.database.leases
    scope = UUID(int=9)
    for key in ("c", "a", "b", "d"):
        unit = rows.begin()
        rows.write(unit, 1, name=(scope, key))
        rows.commit(unit)
    holder = rows.begin()
    rows.lock(holder, _SHARE, name=(scope, "a"))
    with rows.database.changed:
        assert rows.database.sweep_page(leases, scope, 3, "", lambda _: True) == Swept(2, "c")
        assert [slot.name[1] for slot in leases.in_order(scope, "")] == ["a", "d"]
    rows.commit(holder)
