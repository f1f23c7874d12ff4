"""What the calls of a tenant are bound to: in memory, also the session that they run in."""

from __future__ import annotations

from dataclasses import dataclass

from nl2state.binding import Binding
from nl2state_memory.sessions import Session
from nl2state_memory.tables import Name

__all__ = ["MemoryBinding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBinding(Binding):
    """A binding with the session that its calls run in."""

    session: Session

    def name(self, key: str) -> Name:
        """Return what a row of this scope is found by."""
        return self.scope, key
