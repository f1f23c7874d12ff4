"""What a write expects of its record, and the reasons for which it is refused, in their order. For backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from nl2state.errors import (
    AlreadyExistsError,
    NotFoundError,
    RevisionConflictError,
    TerminalError,
    TransitionError,
)

__all__ = ["Expectation", "Found", "refuse_creation"]


class Found(Protocol):
    """A live record, as a refused write found it."""

    @property
    def revision(self) -> int:
        """Its revision."""
        ...

    @property
    def status(self) -> str:
        """Its status."""
        ...

    @property
    def is_terminal(self) -> bool:
        """Whether it ended."""
        ...


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a write expects of its record."""

    revision: int | None
    """None for any, which has to be said aloud."""
    status: str | None = None
    sources: tuple[str, ...] | None = None
    """The statuses from which the lifecycle leads to the new one; None where it does not matter."""
    writes: bool = True
    """Whether the record is to be written: a terminal one can only be deleted."""
    required: bool = True
    """Whether there has to be a record."""

    def refuse(self, found: Found | None) -> None:
        """Raise the first reason that speaks against the write, if there is one."""
        if found is None:
            if self.required:
                raise NotFoundError("there is no such record")
            return
        fields: dict[str, Any] = {"revision": found.revision, "status": found.status}
        if self.revision not in (None, found.revision):
            raise RevisionConflictError("the record is at another revision", **fields)
        if self.status not in (None, found.status):
            raise RevisionConflictError("the record is in another status", **fields)
        if self.writes and found.is_terminal:
            raise TerminalError("the record ended", **fields)
        if self.sources is not None and found.status not in self.sources:
            raise TransitionError("the lifecycle does not lead there", **fields)


def refuse_creation(found: Found | None) -> None:
    """Raise AlreadyExistsError where the record that is to be made is there."""
    if found is not None:
        raise AlreadyExistsError("the record exists", revision=found.revision, status=found.status)
