"""What the calls of a tenant are bound to: its scope, the session that they run in, their limits, and their fence."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from nl2state.binding import Binding
from nl2state.errors import FencingRejectedError
from nl2state.leases import Fence
from nl2state_postgres.database import Session
from nl2state_postgres.runners import Row

__all__ = ["PostgresBinding", "columns_of", "new_write_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBinding(Binding):
    """A binding with the session that its statements run in."""

    session: Session

    def row(self, name: str, values: dict[str, Any]) -> Row | None:
        """Run a statement of this scope that returns a row, or none. The scope is added to the values."""
        values["scope"] = self.scope
        return self.session.row(name, values)

    def rows(self, name: str, values: dict[str, Any]) -> list[Row]:
        """Run a statement of this scope that returns many rows. The scope is added to the values."""
        values["scope"] = self.scope
        return self.session.rows(name, values)

    def write(self, name: str, fence: Fence | None, values: dict[str, Any]) -> Row | None:
        """Run a write of this scope, by its guarded form where there is a fence. No row: it was refused.

        The scope, a new write_id and the fence are added to the values.
        """
        return self.row(self._guard(name, fence, values), values)

    def write_many(self, name: str, fence: Fence | None, values: dict[str, Any]) -> list[Row]:
        """Run a write of many rows of this scope, as `write` does. No row of one: it was refused."""
        return self.rows(self._guard(name, fence, values), values)

    @contextmanager
    def many(self, *, atomic: bool) -> Iterator[Self]:
        """Yield the binding for what a call for many does: if it is atomic, in a block that an error undoes."""
        if not atomic:
            yield self
            return
        with self.session.atomically() as session:
            yield replace(self, session=session)

    def require_fence(self, fence: Fence | None) -> None:
        """Raise FencingRejectedError where a refused write's fence explains the refusal."""
        if fence is not None and self.row("check_fence", _columns(fence)) is None:
            raise FencingRejectedError("the lease was lost")

    def _guard(self, name: str, fence: Fence | None, values: dict[str, Any]) -> str:
        """Add a new write_id and the fence to the values of a write, and return the name of its statement."""
        values["write_id"] = new_write_id()
        if fence is None:
            return name
        values.update(_columns(fence))
        return f"{name}_fenced"


def columns_of(items: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Return the columns of many items, each as the array of a statement's `each_` parameter."""
    return {f"each_{name}": [item[name] for item in items] for name in names}


def new_write_id() -> bytes:
    """Return what a call's writes are known by: the 16 bytes of a uuid that no other call has.

    They are counted on from a random one. To ask the system each time would let other threads run, and wait for them.
    """
    if os.getpid() != _process:  # not by register_at_fork: a server that forks in C need not call its hooks
        _begin_write_ids()
    return next(_write_ids).to_bytes(16, "big")


def _columns(fence: Fence) -> dict[str, Any]:
    return {"fence_resource": fence.resource, "fence_owner": fence.owner, "fence_token": fence.token}


def _begin_write_ids() -> None:
    global _process, _write_ids  # noqa: PLW0603  # a forked child begins its own
    _write_ids = itertools.count(int.from_bytes(os.urandom(16), "big") >> 1)
    _process = os.getpid()  # last: another thread of the child sees it when they are begun


_write_ids: itertools.count[int]
_process: int
_begin_write_ids()
