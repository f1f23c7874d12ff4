"""What the calls of a tenant are bound to, whatever the backend: the part of it that asks none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import UUID

from nl2state.errors import InvalidInputError, UsageError
from nl2state.idempotency import Attempt
from nl2state.keys import check_id, check_prefix
from nl2state.leases import Fence
from nl2state.limits import INTEGER_MAX, Limits, check_seconds, checked_integer
from nl2state.pages import AFTER_EVERY_NAME, Span, end_of_prefix
from nl2state.waiting import Queues

__all__ = ["Binding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A scope, its limits, and in a transaction the fence that all its writes carry. A backend adds its session."""

    scope: UUID
    limits: Limits
    monotonic: Callable[[], float]
    queues: Queues
    in_transaction: bool = False
    fence: Fence | None = None

    def refuse_in_transaction(self, call: str) -> None:
        """Raise UsageError in a transaction."""
        if self.in_transaction:
            raise UsageError(f"{call} does not work in a transaction: do it around the transaction")

    def fence_of(self, fence: Fence | None) -> Fence | None:
        """Return the fence that a write carries: its own, or its transaction's. Raises UsageError for two."""
        if fence is None:
            return self.fence
        if self.fence is not None and fence != self.fence:
            raise UsageError("the transaction has another fence: every write in it carries that one")
        return self.checked_fence(fence)

    def checked_fence(self, fence: Fence) -> Fence:
        """Return a fence that can be one. Raises InvalidInputError."""
        if not isinstance(fence, Fence) or type(fence.token) is not int or not 0 <= fence.token <= INTEGER_MAX:
            raise InvalidInputError("fence is not a Fence, as the `fence` of a lease is", field="fence")
        self.id("fence", fence.resource)
        self.id("fence", fence.owner)
        return fence

    def checked_attempt(self, attempt: Attempt) -> Attempt:
        """Return an attempt that can be one. Raises InvalidInputError."""
        if (
            not isinstance(attempt, Attempt)
            or type(attempt.number) is not int
            or not 0 <= attempt.number <= INTEGER_MAX
        ):
            raise InvalidInputError("attempt is not an Attempt, as the `attempt` of a reservation is", field="attempt")
        self.id("attempt", attempt.key)
        return attempt

    def id(self, field: str, value: str) -> str:
        """Return a name that can be one. Raises InvalidInputError."""
        return check_id(field, value, self.limits.id_bytes_max)

    def optional_id(self, field: str, value: str | None) -> str | None:
        """Return a name that can be one, or None. Raises InvalidInputError."""
        return None if value is None else self.id(field, value)

    def ttl(self, field: str, value: float) -> float:
        """Return a life that is longer than nothing. Raises InvalidInputError."""
        least = self.limits.lease_ttl_seconds_min
        return check_seconds(field, value, least=least, most=self.limits.ttl_seconds_max)

    def wait(self, value: float) -> float:
        """Return a wait. Raises InvalidInputError."""
        return check_seconds("wait_seconds", value, most=self.limits.wait_seconds_max)

    def turn(self, resource: str, wait_seconds: float) -> AbstractContextManager[float]:
        """Wait behind those of this process that came before: see Queues.turn."""
        return self.queues.turn((self.scope, resource), wait_seconds)

    def span(self, *, after: str | None, limit: int, prefix: str | None = None) -> Span:
        """Return what a page is looked for in. Raises InvalidInputError."""
        checked_integer("limit", limit, most=self.limits.page_size_max)
        self.optional_id("after", after)
        if prefix is None:
            return Span(after or "", "", AFTER_EVERY_NAME, limit)
        check_prefix("prefix", prefix, self.limits.id_bytes_max)
        return Span(after or "", prefix, end_of_prefix(prefix), limit)
