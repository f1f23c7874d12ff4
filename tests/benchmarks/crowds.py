"""How many threads make calls at once, and how many connections they share."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Crowd"]


@dataclass(frozen=True, order=True, slots=True)
class Crowd:
    """So many threads, and the connections of the store that they share. By hand, each has one of its own."""

    threads: int
    connections: int

    @property
    def is_pooled(self) -> bool:
        """Whether threads wait for one another's connections."""
        return self.connections < self.threads

    def __str__(self) -> str:
        words = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return f"{words} on {self.connections} connection{'' if self.connections == 1 else 's'}"
