"""The statuses that a kind of record goes through, and which may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nl2state.errors import InvalidInputError
from nl2state.keys import check_id

__all__ = ["DEFAULT_LIFECYCLE", "Lifecycle", "checked_lifecycle"]

_STATUS_BYTES_MAX = 64


@dataclass(frozen=True)
class Lifecycle:
    """The statuses that a kind of record goes through.

    A record begins in `initial`; one in a `terminal` status has ended. `transitions`, where given, names for each
    status those that may follow it (to stay in a status is always allowed); where not, any status may follow any that
    is not terminal. It belongs to a view, not to the store: the row keeps its status and whether that is terminal.
    """

    initial: str
    statuses: frozenset[str]
    terminal: frozenset[str] = frozenset()
    transitions: Mapping[str, frozenset[str]] | None = None
    _sources: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._check_kinds()
        for status in self.statuses:
            check_id("statuses", status, _STATUS_BYTES_MAX)
        named = {self.initial} | self.terminal
        for status, following in (self.transitions or {}).items():
            named |= {status} | following
        if not named <= self.statuses:
            raise InvalidInputError("a lifecycle names a status that is not among its statuses", field="statuses")
        if self.initial in self.terminal or (self.transitions or {}).keys() & self.terminal:
            raise InvalidInputError("a lifecycle begins in, or leads out of, a terminal status", field="terminal")
        if self.transitions is not None:
            leads = self.transitions.items()
            sources = {
                to: tuple(sorted({to, *(s for s, following in leads if to in following)})) for to in self.statuses
            }
            object.__setattr__(self, "_sources", sources)

    def check(self, status: str) -> str:
        """Return the status if it is one of this lifecycle's. Raises InvalidInputError."""
        if not isinstance(status, str) or status not in self.statuses:
            raise InvalidInputError("status is not one of the lifecycle's", field="status")
        return status

    def sources(self, status: str) -> tuple[str, ...] | None:
        """Return the statuses that `status` may follow, itself among them; None where any may be followed."""
        return None if self.transitions is None else self._sources[status]

    @property
    def pairs(self) -> tuple[tuple[str, ...], tuple[str, ...]] | tuple[None, None]:
        """The statuses that others may follow, and those others, pair by pair; None where any may follow any."""
        if self.transitions is None:
            return None, None
        pairs = [(source, status) for status, sources in self._sources.items() for source in sources]
        return tuple(source for source, _ in pairs), tuple(status for _, status in pairs)

    def _check_kinds(self) -> None:
        sets = {"statuses": [self.statuses], "terminal": [self.terminal]}
        if self.transitions is not None:
            if not isinstance(self.transitions, Mapping):
                raise InvalidInputError("transitions is not a mapping of statuses", field="transitions")
            sets["transitions"] = list(self.transitions.values())
        for name, given in sets.items():
            if not all(isinstance(each, (frozenset, set)) for each in given):
                raise InvalidInputError(f"{name} has to be of sets of statuses", field=name)
        if not isinstance(self.initial, str):
            raise InvalidInputError("initial is not a status", field="initial")


DEFAULT_LIFECYCLE: Final = Lifecycle(
    initial="created",
    statuses=frozenset(
        {"created", "queued", "running", "waiting", "compensating", "succeeded", "failed", "closed", "cancelled"}
    ),
    terminal=frozenset({"succeeded", "failed", "closed", "cancelled"}),
)
"""created, queued, running, waiting, compensating | succeeded, failed, closed, cancelled, in any order."""


def checked_lifecycle(lifecycle: Lifecycle) -> Lifecycle:
    """Return what is a lifecycle. Raises InvalidInputError. For backends."""
    if not isinstance(lifecycle, Lifecycle):
        raise InvalidInputError("lifecycle is not a Lifecycle", field="lifecycle")
    return lifecycle
