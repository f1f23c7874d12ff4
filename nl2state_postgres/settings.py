"""How a store uses its server: its connections, and the settings of their sessions."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Settings"]

_SECONDS_MAX = 86_400.0


class Settings(BaseModel):
    """The settings of a PostgresStore. Durations are in seconds, and at most a day."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connections_min: int = Field(default=1, ge=0)
    """Connections that are kept open. One more, for the heartbeat, is opened with the first lease that is held."""

    connections_max: int = Field(default=8, ge=1)
    """Connections at most. More threads than that wait for one another."""

    connect_timeout_seconds: float = Field(default=10.0, gt=0, le=_SECONDS_MAX)
    """How long opening a connection may take: whole seconds, and 2 at least."""

    checkout_timeout_seconds: float = Field(default=10.0, gt=0, le=_SECONDS_MAX)
    """How long a call waits for a free connection."""

    statement_timeout_seconds: float = Field(default=30.0, gt=0, le=_SECONDS_MAX)
    """How long a statement may take on the server, all its waits included."""

    lock_timeout_seconds: float = Field(default=10.0, gt=0, le=_SECONDS_MAX)
    """How long a statement waits for one lock. A takeover waits so long for the former holder's open transaction."""

    transaction_idle_seconds: float = Field(default=30.0, gt=0, le=_SECONDS_MAX)
    """How long a transaction may stay open between two statements before the server ends it.

    A holder that is stopped inside a transaction delays its successor by at most its TTL and this.
    """

    transaction_pooler: bool = False
    """Whether connections lead through a pooler that hands out a server's for a transaction each (PgBouncer's
    pool_mode=transaction).

    Then nothing is prepared, and no session is set up: its settings are to be the role's, and are looked at.
    """

    application_name: str = Field(default="nl2state", min_length=1, max_length=63)
    """What the server shows as the name of these sessions."""

    epoch: int | None = Field(default=None, ge=0, le=4_095)
    """The epoch of tokens, where the server has no timeline to read: raised after each restore or fail-over."""

    @model_validator(mode="after")
    def _check_connections(self) -> Self:
        if self.connections_min > self.connections_max:
            raise ValueError("connections_min is above connections_max")
        return self

    clock: str = "clock_timestamp()"
    """The SQL expression that is the store's clock. `(SELECT clock_timestamp())` on a distributed PostgreSQL, which
    takes no bare function there, for some microseconds a write; another one is for tests, which move it."""
