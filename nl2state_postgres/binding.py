"""What the calls of a tenant are bound to: its scope, the session that they run in, their limits, and their fence."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from nl2state.binding import Binding
from nl2state.errors import FencingRejectedError
from nl2state.leases import Fence
from nl2state.payload import Value, encode
from nl2state_postgres.connection import Row
from nl2state_postgres.database import Session

__all__ = ["PostgresBinding", "new_write_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBinding(Binding):
    """A binding with the session that its statements run in."""

    session: Session

    def row(self, name: str, **values: Any) -> Row | None:
        """Run a statement of this scope that returns a row, or none."""
        return self.session.row(name, scope=self.scope, **values)

    def rows(self, name: str, **values: Any) -> list[Row]:
        """Run a statement of this scope that returns many rows."""
        return self.session.rows(name, scope=self.scope, **values)

    def write(self, name: str, fence: Fence | None, **values: Any) -> Row | None:
        """Run a write of this scope, by its guarded form where there is a fence. No row: it was refused."""
        values["write_id"] = new_write_id()
        if fence is None:
            return self.row(name, **values)
        return self.row(f"{name}_fenced", **_columns(fence), **values)

    def require_fence(self, fence: Fence | None) -> None:
        """Raise FencingRejectedError where a refused write's fence explains the refusal."""
        if fence is not None and self.row("check_fence", **_columns(fence)) is None:
            raise FencingRejectedError("the lease was lost")

    def payload(self, column: str, value: Value) -> dict[str, Any]:
        """Return the three columns of a payload. Raises PayloadError."""
        stored = encode(value, self.limits, field="value" if column == "payload" else column)
        return {column: stored.data, f"{column}_encoding": stored.encoding, f"{column}_format": stored.format}


def new_write_id() -> UUID:
    """Return what a call's writes are known by."""
    return UUID(bytes=os.urandom(16))


def _columns(fence: Fence) -> dict[str, Any]:
    return {"fence_resource": fence.resource, "fence_owner": fence.owner, "fence_token": fence.token}
