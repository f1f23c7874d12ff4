"""What the calls of a tenant are bound to: its scope, the session that they run in, their limits, and their fence."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from nl2state.errors import FencingRejectedError, InvalidInputError, UsageError
from nl2state.keys import check_id
from nl2state.leases import Fence
from nl2state.limits import Limits, check_seconds
from nl2state.payload import Value, encode
from nl2state_postgres.database import Row, Session

__all__ = ["BIGINT_MAX", "Binding"]

BIGINT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Binding:
    """A scope and a session. In a transaction, `fence` is the one that all its writes carry."""

    scope: UUID
    session: Session
    limits: Limits
    monotonic: Callable[[], float]
    in_transaction: bool = False
    fence: Fence | None = None

    def row(self, name: str, **values: Any) -> Row | None:
        """Run a statement of this scope that returns a row, or none."""
        return self.session.row(name, scope=self.scope, **values)

    def write(self, name: str, fence: Fence | None, **values: Any) -> Row | None:
        """Run a write of this scope, by its guarded form where there is a fence. No row: it was refused."""
        values["write_id"] = UUID(bytes=os.urandom(16))
        if fence is None:
            return self.row(name, **values)
        return self.row(f"{name}_fenced", **_columns(fence), **values)

    def require_fence(self, fence: Fence | None) -> None:
        """Raise FencingRejectedError where a refused write's fence explains the refusal."""
        if fence is not None and self.row("check_fence", **_columns(fence)) is None:
            raise FencingRejectedError("the lease was lost")

    def fence_of(self, fence: Fence | None) -> Fence | None:
        """Return the fence that a write carries: its own, or its transaction's. Raises UsageError for two."""
        if fence is None:
            return self.fence
        if self.fence is not None and fence != self.fence:
            raise UsageError("the transaction has another fence: every write in it carries that one")
        return self.checked(fence)

    def checked(self, fence: Fence) -> Fence:
        """Return a fence that can be one. Raises InvalidInputError."""
        if not isinstance(fence, Fence) or type(fence.token) is not int or not 0 <= fence.token <= BIGINT_MAX:
            raise InvalidInputError("fence is not a lease's fence", field="fence")
        self.id("fence", fence.resource)
        self.id("fence", fence.owner)
        return fence

    def id(self, field: str, value: str) -> str:
        """Return a name that can be one. Raises InvalidInputError."""
        return check_id(field, value, self.limits.id_bytes_max)

    def optional_id(self, field: str, value: str | None) -> str | None:
        """Return a name that can be one, or None. Raises InvalidInputError."""
        return None if value is None else check_id(field, value, self.limits.id_bytes_max)

    def ttl(self, field: str, value: float) -> float:
        """Return a life that is longer than nothing. Raises InvalidInputError."""
        least = self.limits.lease_ttl_seconds_min
        return check_seconds(field, value, least=least, most=self.limits.ttl_seconds_max)

    def wait(self, value: float) -> float:
        """Return a wait. Raises InvalidInputError."""
        return check_seconds("wait_seconds", value, most=self.limits.wait_seconds_max)

    def payload(self, column: str, value: Value) -> dict[str, Any]:
        """Return the three columns of a payload. Raises PayloadError."""
        stored = encode(value, self.limits, field="value" if column == "payload" else column)
        return {column: stored.data, f"{column}_encoding": stored.encoding, f"{column}_format": stored.format}

    def refuse_in_transaction(self, call: str) -> None:
        """Raise UsageError in a transaction."""
        if self.in_transaction:
            raise UsageError(f"{call} does not work in a transaction: do it around the transaction")


def _columns(fence: Fence) -> dict[str, Any]:
    return {"fence_resource": fence.resource, "fence_owner": fence.owner, "fence_token": fence.token}
