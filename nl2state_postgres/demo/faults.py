"""The script of what is done to the workers, and when: it depends on the number of deliveries alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

__all__ = ["Fault", "Script"]

_KILLS_MAX = 20
_DELIVERIES_PER_KILL = 200


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker is stopped at a point, and then killed (kill), or left stopped past its lease and continued (pause)."""

    action: Literal["kill", "pause"]
    point: str


_EACH_ONCE = (
    Fault("pause", "leased"),  # with the lease, before its first write
    Fault("kill", "committed"),  # with the lease, and all done
    Fault("pause", "in_transaction"),  # with its writes made, and not committed
    Fault("kill", "leased"),
    Fault("kill", "in_transaction"),
    Fault("kill", "reserved"),
    Fault("kill", "released"),
)
_KILLS = tuple(fault for fault in _EACH_ONCE if fault.action == "kill")


class Script:
    """Which fault is next. Each comes once where there are deliveries enough; many deliveries get more kills."""

    def __init__(self, deliveries: int) -> None:
        kills = min(_KILLS_MAX, deliveries // _DELIVERIES_PER_KILL)
        faults = [*_EACH_ONCE, *(_KILLS[number % len(_KILLS)] for number in range(kills - len(_KILLS)))]
        faults = faults[: (deliveries + 1) // 2]
        self._due = deque(
            ((number + 1) * deliveries // (len(faults) + 1), fault) for number, fault in enumerate(faults)
        )

    def next(self, begun: int) -> Fault | None:
        """Return the fault that is due once so many deliveries have been sent for the first time, if one is."""
        return self._due[0][1] if self._due and self._due[0][0] <= begun else None

    def take(self) -> None:
        """Strike out the fault that `next` returned: it is to be done."""
        self._due.popleft()

    def put_back(self, fault: Fault) -> None:
        """Put a fault back that could not be done: it is due now."""
        self._due.appendleft((0, fault))
