"""What was lost and what was doubled: one pass over the input, compared with what the store holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nl2state import Value
from nl2state_postgres.demo.deliveries import Delivery
from nl2state_postgres.demo.record import EMPTY_DIGEST, RecordState, add_to_digest, as_state

__all__ = ["Damage", "compare"]


@dataclass(frozen=True, slots=True)
class Damage:
    """How many deliveries the store lacks, and how many it holds more than once."""

    lost: int
    doubled: int


@dataclass(slots=True)
class _Expected:
    counts: Counter[str] = field(default_factory=Counter)
    digest: str = EMPTY_DIGEST


def compare(deliveries: Iterable[Delivery], read: Callable[[str, str], Value]) -> Damage:
    """Compare each record with the deliveries that concern it. `read` returns the record of an account, or None.

    What a record lacks of an event is lost, and what it has too much of one is doubled. Where it has the right numbers
    and another digest, as many were doubled as lost: that counts as one of each, the least that it can be.
    """
    expected: defaultdict[tuple[str, str], _Expected] = defaultdict(_Expected)
    for delivery in deliveries:
        of_record = expected[delivery.account, delivery.record]
        of_record.counts[delivery.event] += 1
        of_record.digest = add_to_digest(of_record.digest, delivery)
    lost = doubled = 0
    for (account, record), of_record in expected.items():
        damage = _damage(of_record, as_state(read(account, record)))
        lost += damage.lost
        doubled += damage.doubled
    return Damage(lost, doubled)


def _damage(expected: _Expected, stored: RecordState) -> Damage:
    counts = Counter(stored["counts"])
    lost = (expected.counts - counts).total()
    doubled = (counts - expected.counts).total()
    if not lost and not doubled and stored["digest"] != expected.digest:
        return Damage(1, 1)
    return Damage(lost, doubled)
