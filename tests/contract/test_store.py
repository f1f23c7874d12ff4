"""P11: a clean-up reads in small steps, and a call of it no more than its limit."""

from __future__ import annotations

from uuid import UUID

from nl2state.limits import Limits
from nl2state.store import RetainCursor, Retained, Swept, retain_by_scope

_SCOPE = UUID(int=1)
_DAY = 86_400.0


class Keys:
    """A backend with so many keys in one scope, each of which is due if its number is even; and nothing else."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.read: list[int] = []

    def retain(self, limit: int, after: RetainCursor | None = None) -> Retained:
        ages = {"terminal_age_seconds": None, "expired_age_seconds": _DAY}
        return retain_by_scope(self._next_scope, self._sweep, Limits(), **ages, limit=limit, after=after)  # type: ignore[arg-type]  # each has its own

    @staticmethod
    def _next_scope(after: UUID) -> UUID | None:
        return _SCOPE if after < _SCOPE else None

    def _sweep(self, name: str, _scope: UUID, _age_seconds: float, page_size: int, after: str) -> Swept:
        if name != "keys":
            return Swept(0, None)
        page = range(int(after or 0), min(int(after or 0) + page_size, self._count))
        self.read.append(page_size)
        return Swept(sum(number % 2 == 0 for number in page), str(page.stop) if len(page) == page_size else None)


def test_a_call_reads_its_limit_in_steps_whatever_it_removes() -> None:
    keys = Keys(1_000)
    assert keys.retain(120) == Retained(0, 0, 60, RetainCursor(_SCOPE, "keys", "120"))
    assert keys.read == [50, 50, 20]


def test_calls_go_on_where_the_one_before_stopped_and_reach_all() -> None:
    keys = Keys(420)
    first = keys.retain(250)
    assert keys.retain(250, first.after) == Retained(0, 0, 85, None)
    assert keys.read == [50] * 9
