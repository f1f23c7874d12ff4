"""How a store in memory bounds its waits: the same bounds as a server's, under the same names."""

from __future__ import annotations

from dataclasses import dataclass

from nl2state.errors import InvalidInputError
from nl2state.limits import check_seconds

__all__ = ["Settings"]

_SECONDS_MIN = 0.001
_SECONDS_MAX = 86_400.0
_EPOCH_MAX = 4_095


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a MemoryStore. Durations are in seconds."""

    lock_timeout_seconds: float = 10.0
    """How long a call waits for one row lock. A takeover waits so long for the former holder's open transaction."""

    statement_timeout_seconds: float = 30.0
    """How long a call may take, all its waits for locks included."""

    transaction_idle_seconds: float = 30.0
    """How long a transaction may stay open between two calls before it is ended.

    A holder that is stopped inside a transaction delays its successor by at most its TTL and this.
    """

    epoch: int = 1
    """The epoch of tokens: 1, as on a new server."""

    def __post_init__(self) -> None:
        for field in ("lock_timeout_seconds", "statement_timeout_seconds", "transaction_idle_seconds"):
            check_seconds(field, getattr(self, field), least=_SECONDS_MIN, most=_SECONDS_MAX)
        if type(self.epoch) is not int or not 0 <= self.epoch <= _EPOCH_MAX:
            raise InvalidInputError("epoch is out of its bounds", field="epoch", limit=_EPOCH_MAX)
